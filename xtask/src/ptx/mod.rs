//! `cargo xtask ptx`: kernels to PTX, parameter structs for both sides, and what proves that both are fresh.
//!
//! `spec` reads `kernels/kernels.toml`; `inputs` digests what a module depends on; `nvcc` installs and runs the pinned
//! compiler; `image` is the form of a committed PTX file; `generate` writes the Rust and CUDA texts; `report` reads
//! `ptxas -v`.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use self::{
    generate::Built,
    image::{Header, PTX_VERSIONS},
    nvcc::Nvcc,
    report::Usage,
    spec::{Module, Spec},
};
use crate::workspace::Workspace;

mod generate;
mod image;
mod inputs;
mod nvcc;
mod report;
mod spec;

/// Compilers that run at once.
const JOBS: usize = 2;

/// Most bytes of PTX that the crate may embed: they are in every binary that links it, and a published crate has a limit. Caches in code took
/// the last 0.9 million.
const MAX_BYTES: u64 = 9_000_000;

#[derive(Debug, Args)]
pub(crate) struct PtxArgs {
    /// Rebuild and compare with the committed files byte for byte; write nothing.
    #[arg(long)]
    check: bool,
    /// Compare digests only: needs no compiler, writes nothing.
    #[arg(long, conflicts_with_all = ["check", "force", "report"])]
    fresh: bool,
    /// Rebuild modules whose inputs did not change, too.
    #[arg(long)]
    force: bool,
    /// Build this module only (may be given several times).
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Print registers, spills, stack and shared memory of each kernel.
    #[arg(long)]
    report: bool,
    /// The report as JSON.
    #[arg(long, requires = "report")]
    json: bool,
}

/// Where everything lies.
#[derive(Debug)]
struct Folders {
    kernels: PathBuf,
    ptx: PathBuf,
    generated: PathBuf,
}

impl Folders {
    fn new(workspace: &Workspace) -> Self {
        let krate = workspace.root().join("crates/gosset-cuda");
        Folders {
            kernels: workspace.root().join("kernels"),
            ptx: krate.join("ptx"),
            generated: krate.join("src/generated"),
        }
    }
}

/// A module for one target.
#[derive(Debug, Clone, Copy)]
struct Job<'a> {
    module: &'a Module,
    target: &'a str,
}

pub(crate) fn run(workspace: &Workspace, args: &PtxArgs) -> Result<ExitCode> {
    if args.fresh {
        check_fresh(workspace)?;
        println!("the PTX is fresh");
        return Ok(ExitCode::SUCCESS);
    }
    let nvcc = Nvcc::find_or_install(workspace)?;
    // Two runs at once would write each other's half-made files.
    let lock = File::create(workspace.root().join("target/cuda/.lock"))?;
    lock.lock()?;
    let folders = Folders::new(workspace);
    let spec = Spec::read(&folders.kernels.join("kernels.toml"))?;
    for name in &args.only {
        ensure!(spec.modules.iter().any(|m| m.name == *name), "expected a module of kernels.toml, found {name}");
    }
    let chosen = |module: &Module| args.only.is_empty() || args.only.contains(&module.name);
    let compiler = nvcc::pinned(workspace)?;
    if !args.check {
        write_if_changed(&folders.kernels.join("include/params.cuh"), &generate::params_cuh(&spec))?;
    }

    let begin = Instant::now();
    let mut failures = Vec::new();
    let mut jobs = Vec::new();
    for job in jobs_of(&spec).filter(|job| chosen(job.module)) {
        match inputs::digest(&spec, job.module, job.target, &folders.kernels, &compiler) {
            Ok(inputs) => {
                let fresh = committed(&folders, job).is_ok_and(|header| header.inputs == inputs);
                if args.check || args.force || !fresh {
                    jobs.push((job, inputs));
                }
            }
            Err(error) => failures.push(format!("{error:#}")),
        }
    }
    let n_built = jobs.len();
    for ((job, _), built) in
        jobs.iter().zip(in_parallel(&jobs, |(job, inputs)| build(&spec, &nvcc, &folders, *job, inputs)))
    {
        let path = folders.ptx.join(job.module.file(job.target));
        let outcome =
            built.and_then(|text| if args.check { compare(&path, &text) } else { write_if_changed(&path, &text) });
        if let Err(error) = outcome {
            failures.push(format!("{error:#}"));
        }
    }
    for (path, text) in generated(&spec, &folders)? {
        let outcome = if args.check { compare(&path, &text) } else { write_if_changed(&path, &text) };
        failures.extend(outcome.err().map(|error| format!("{error:#}")));
    }
    if !args.check && args.only.is_empty() {
        remove_strangers(&spec, &folders)?;
    }
    failures.iter().for_each(|failure| eprintln!("{failure}"));
    if !failures.is_empty() {
        bail!("{} failures", failures.len());
    }
    if args.report {
        let rows = usage(&spec, &nvcc, &folders, chosen)?;
        if args.json {
            println!("{}", serde_json::to_string_pretty(&rows)?);
        } else {
            print!("{}", report::table(&rows));
        }
    }
    let what = if args.check { "compared" } else { "built" };
    let (n, seconds) = (jobs_of(&spec).count(), begin.elapsed().as_secs_f64());
    let megabytes = bytes(&spec, &folders) as f64 / 1e6;
    eprintln!("{what} {n_built} of {n} in {seconds:.1} s; {megabytes:.1} MB of PTX in all");
    Ok(ExitCode::SUCCESS)
}

/// The pinned CUDA toolkit of wheels, installed if need be: a folder with bin, include, lib and nvvm.
pub(crate) fn toolkit(workspace: &Workspace) -> Result<PathBuf> {
    Ok(Nvcc::find_or_install(workspace)?.root().to_owned())
}

/// Passes if every committed file is what its inputs ask for, as far as digests tell; runs no compiler.
pub(crate) fn check_fresh(workspace: &Workspace) -> Result<()> {
    let folders = Folders::new(workspace);
    let spec = Spec::read(&folders.kernels.join("kernels.toml"))?;
    let compiler = nvcc::pinned(workspace)?;
    let mut failures = Vec::new();
    for job in jobs_of(&spec) {
        let inputs = inputs::digest(&spec, job.module, job.target, &folders.kernels, &compiler)?;
        let file = job.module.file(job.target);
        match committed(&folders, job) {
            Ok(header) if header.inputs == inputs => {}
            Ok(_) => failures.push(format!("{file}: its inputs changed")),
            Err(error) => failures.push(format!("{file}: {error:#}")),
        }
    }
    for (path, text) in generated(&spec, &folders)? {
        failures.extend(compare(&path, &text).err().map(|error| format!("{error:#}")));
    }
    failures.extend(strangers(&spec, &folders)?.iter().map(|path| format!("{}: no module makes it", path.display())));
    failures.iter().for_each(|failure| eprintln!("{failure}"));
    if !failures.is_empty() {
        bail!("{} stale files; run `cargo xtask ptx`", failures.len());
    }
    let found = bytes(&spec, &folders);
    ensure!(
        found <= MAX_BYTES,
        "expected at most {MAX_BYTES} bytes of PTX, found {found}: unroll less, or fewer targets"
    );
    Ok(())
}

fn jobs_of(spec: &Spec) -> impl Iterator<Item = Job<'_>> {
    spec.modules.iter().flat_map(|module| module.targets.iter().map(move |target| Job { module, target }))
}

/// Bytes of the committed PTX of all jobs.
fn bytes(spec: &Spec, folders: &Folders) -> u64 {
    let path = |job: Job<'_>| folders.ptx.join(job.module.file(job.target));
    jobs_of(spec).filter_map(|job| Some(fs::metadata(path(job)).ok()?.len())).sum()
}

/// The committed PTX of a job, its text held to its digest.
fn committed(folders: &Folders, job: Job<'_>) -> Result<Header> {
    let path = folders.ptx.join(job.module.file(job.target));
    image::read(&fs::read_to_string(&path).with_context(|| format!("{}", path.display()))?)
}

/// Compiles one module for one target and lowers its `.version` as far as ptxas follows.
fn build(spec: &Spec, nvcc: &Nvcc, folders: &Folders, job: Job<'_>, inputs: &str) -> Result<String> {
    let Job { module, target } = job;
    let begin = Instant::now();
    let body = image::without_paths(&module.source, &image::compact(&nvcc.ptx(&folders.kernels, module, target)?));
    image::check_entries(spec, module, &body)?;
    let own = image::version(&body)?;
    let mut refusal = None;
    for &version in PTX_VERSIONS.iter().filter(|version| **version <= own) {
        let lowered = image::with_version(&body, version)?;
        match nvcc.assemble(&module.name, &lowered, target) {
            Ok(_) => {
                let (major, minor) = version;
                let time = begin.elapsed().as_secs_f64();
                eprintln!("{} for {target}: PTX {major}.{minor}, {time:.1} s", module.name);
                return Ok(image::compose(module, inputs, &lowered));
            }
            Err(error) => refusal = Some(error),
        }
    }
    Err(refusal.unwrap_or_else(|| anyhow::anyhow!("PTX {own:?} is older than any version expected")))
        .with_context(|| format!("{} for {target}", module.name))
}

/// Applies `f` to each item on [`JOBS`] threads; results in the order of the items.
fn in_parallel<T: Sync, R: Send>(items: &[T], f: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for _ in 0..JOBS.min(items.len()) {
            scope.spawn(|| {
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(i) else { break };
                    let result = f(item);
                    done.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).insert(i, result);
                }
            });
        }
    });
    done.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()).into_values().collect()
}

/// The generated files other than PTX. A module without PTX for all of its targets is left out, with a word.
fn generated(spec: &Spec, folders: &Folders) -> Result<Vec<(PathBuf, String)>> {
    let (mut built, mut left_out) = (Vec::new(), Vec::new());
    for module in &spec.modules {
        let headers: Result<Vec<Header>> =
            module.targets.iter().map(|target| committed(folders, Job { module, target })).collect();
        match headers {
            Ok(headers) => built.push(Built { module, headers }),
            Err(_) => left_out.push(module.name.as_str()),
        }
    }
    if !left_out.is_empty() {
        eprintln!("left out of the crate, for want of sound PTX: {}", left_out.join(" "));
    }
    Ok(vec![
        (folders.kernels.join("include/params.cuh"), generate::params_cuh(spec)),
        (folders.generated.join("params.rs"), generate::params_rs(spec)),
        (folders.generated.join("modules.rs"), generate::modules_rs(spec, &built)),
        (folders.generated.join("mod.rs"), generate::mod_rs()),
    ])
}

/// PTX files that no module makes.
fn strangers(spec: &Spec, folders: &Folders) -> Result<Vec<PathBuf>> {
    let expected: Vec<String> = jobs_of(spec).map(|job| job.module.file(job.target)).collect();
    let mut out = Vec::new();
    if folders.ptx.is_dir() {
        for entry in fs::read_dir(&folders.ptx)? {
            let entry = entry?;
            if !expected.iter().any(|name| entry.file_name().to_str() == Some(name)) {
                out.push(entry.path());
            }
        }
    }
    out.sort();
    Ok(out)
}

fn remove_strangers(spec: &Spec, folders: &Folders) -> Result<()> {
    for path in strangers(spec, folders)? {
        eprintln!("removing {}, which no module makes", path.display());
        fs::remove_file(&path).with_context(|| format!("{}", path.display()))?;
    }
    Ok(())
}

/// Assembles the committed PTX and reads what it needs.
fn usage(spec: &Spec, nvcc: &Nvcc, folders: &Folders, chosen: impl Fn(&Module) -> bool) -> Result<Vec<Usage>> {
    let jobs: Vec<Job<'_>> = jobs_of(spec).filter(|job| chosen(job.module)).collect();
    let one = |job: &Job<'_>| {
        let path = folders.ptx.join(job.module.file(job.target));
        let text = fs::read_to_string(&path).with_context(|| format!("{}", path.display()))?;
        let said = nvcc.assemble(&job.module.name, &text, job.target)?;
        report::parse(&job.module.name, job.target, image::version(&text)?, &said)
    };
    Ok(in_parallel(&jobs, one).into_iter().collect::<Result<Vec<_>>>()?.concat())
}

fn write_if_changed(path: &Path, text: &str) -> Result<()> {
    if fs::read(path).is_ok_and(|found| found == text.as_bytes()) {
        return Ok(());
    }
    let write = || -> Result<()> {
        fs::create_dir_all(path.parent().context("a file lies in a folder")?)?;
        let temporary = path.with_extension("tmp");
        fs::write(&temporary, text)?;
        Ok(fs::rename(&temporary, path)?)
    };
    write().with_context(|| format!("{}", path.display()))
}

fn compare(path: &Path, text: &str) -> Result<()> {
    let found = fs::read(path).with_context(|| format!("{}", path.display()))?;
    let differs = found.split(|&b| b == b'\n').zip(text.split('\n')).position(|(a, b)| a != b.as_bytes());
    match differs {
        Some(line) => bail!("{}: line {} is not what `cargo xtask ptx` makes", path.display(), line + 1),
        None if found.len() != text.len() => bail!("{}: longer or shorter than expected", path.display()),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_ptx_is_fresh() {
        check_fresh(&Workspace::find().unwrap()).unwrap();
    }

    #[test]
    fn work_in_parallel_keeps_its_order() {
        assert_eq!(in_parallel(&[3, 1, 2], |x| x * 10), [30, 10, 20]);
        assert_eq!(in_parallel(&[0; 0], |x| x * 10), [0; 0]);
    }
}
