//! The CUDA compiler: nvcc and ptxas from the pinned wheels of `requirements-cuda.txt`, in a virtual environment under `target/`.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use anyhow::{Context, Result, bail, ensure};

use super::spec::Module;
use crate::workspace::Workspace;

const REQUIREMENTS: &str = "requirements-cuda.txt";

/// The wheel whose version is the compiler's.
const NVCC_WHEEL: &str = "nvidia-cuda-nvcc";

/// Flags of every module. No line tables: they would name paths. No word about unused functions (177): headers have them.
const FLAGS: &[&str] = &["-ptx", "-O3", "-std=c++17", "-Iinclude", "-diag-suppress=177"];

/// What the digests of modules call the compiler: the pinned versions, without white space.
pub(super) fn pinned(workspace: &Workspace) -> Result<String> {
    let path = workspace.root().join(REQUIREMENTS);
    let text = fs::read_to_string(&path).with_context(|| format!("{}", path.display()))?;
    Ok(text.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// An installed compiler of the pinned version.
#[derive(Debug)]
pub(super) struct Nvcc {
    bin: PathBuf,
    scratch: PathBuf,
}

impl Nvcc {
    /// Finds the compiler under `target/cuda`, or installs it there (105 MB to download).
    pub(super) fn find_or_install(workspace: &Workspace) -> Result<Self> {
        let venv = workspace.root().join("target/cuda");
        let pinned = pinned(workspace)?;
        let version = pinned
            .split(' ')
            .find_map(|line| line.strip_prefix(NVCC_WHEEL)?.strip_prefix("=="))
            .with_context(|| format!("{REQUIREMENTS}: expected {NVCC_WHEEL}==VERSION"))?
            .to_owned();
        let found = bin_folder(&venv).filter(|bin| version_of(bin).is_ok_and(|found| found == version));
        let bin = match found {
            Some(bin) => bin,
            None => {
                eprintln!("installing nvcc {version} into {}", venv.display());
                install(workspace, &venv)?;
                let bin = bin_folder(&venv).with_context(|| format!("{}: expected nvidia/cu13/bin", venv.display()))?;
                let found = version_of(&bin)?;
                ensure!(found == version, "{}: expected nvcc {version}, found {found}", bin.display());
                bin
            }
        };
        let scratch = venv.join("scratch");
        fs::create_dir_all(&scratch).with_context(|| format!("{}", scratch.display()))?;
        Ok(Nvcc { bin, scratch })
    }

    /// The toolkit's folder, which holds bin, include, lib and nvvm.
    pub(super) fn root(&self) -> &Path {
        self.bin.parent().unwrap_or(&self.bin)
    }

    /// PTX of a module for a target. `kernels` is the working folder, so that no path enters the text.
    pub(super) fn ptx(&self, kernels: &Path, module: &Module, target: &str) -> Result<String> {
        let Module { source, defines, .. } = module;
        let out = self.scratch_file(&module.name, target, "ptx");
        let mut command = self.tool("nvcc");
        command.current_dir(kernels).args(FLAGS).arg(format!("-arch={}", target.replace("sm_", "compute_")));
        command.args(defines.iter().map(|define| format!("-D{define}"))).arg("-o").arg(&out).arg(source);
        succeed(&command.output().context("starting nvcc")?, source)?;
        let text = fs::read_to_string(&out).with_context(|| format!("{}", out.display()))?;
        fs::remove_file(&out).ok();
        Ok(text.replace("\r\n", "\n"))
    }

    /// What `ptxas -v` says of a PTX text, or its refusal.
    pub(super) fn assemble(&self, name: &str, ptx: &str, target: &str) -> Result<String> {
        let input = self.scratch_file(name, target, "in.ptx");
        fs::write(&input, ptx).with_context(|| format!("{}", input.display()))?;
        let cubin = input.with_extension("cubin");
        let mut command = self.tool("ptxas");
        command.args(["-v", "-O3"]).arg(format!("-arch={target}")).arg("-o").arg(&cubin).arg(&input);
        let output = command.output().context("starting ptxas");
        fs::remove_file(&input).ok();
        fs::remove_file(&cubin).ok();
        let output = output?;
        succeed(&output, name)?;
        Ok(String::from_utf8_lossy(&output.stderr).into_owned())
    }

    fn tool(&self, name: &str) -> Command {
        let mut command = Command::new(self.bin.join(name));
        let path = std::env::var_os("PATH").unwrap_or_default();
        let paths = [self.bin.clone()].into_iter().chain(std::env::split_paths(&path));
        if let Ok(path) = std::env::join_paths(paths) {
            command.env("PATH", path);
        }
        // Flags from outside would change the output behind the digests' back.
        for name in ["NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS"] {
            command.env_remove(name);
        }
        command
    }

    fn scratch_file(&self, name: &str, target: &str, end: &str) -> PathBuf {
        self.scratch.join(format!("{name}.{target}.{}.{end}", std::process::id()))
    }
}

fn succeed(output: &Output, what: &str) -> Result<()> {
    if !output.status.success() {
        bail!("{what}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    said.lines().filter(|line| line.contains("warning")).for_each(|line| eprintln!("{line}"));
    Ok(())
}

/// `lib/python3.*/site-packages/nvidia/cu13/bin` of a virtual environment.
fn bin_folder(venv: &Path) -> Option<PathBuf> {
    let pythons = fs::read_dir(venv.join("lib")).ok()?;
    let mut bins: Vec<PathBuf> = pythons
        .filter_map(|entry| Some(entry.ok()?.path().join("site-packages/nvidia/cu13/bin")))
        .filter(|bin| bin.join("nvcc").is_file())
        .collect();
    bins.sort();
    bins.pop()
}

/// `13.0.88` of an installed nvcc.
fn version_of(bin: &Path) -> Result<String> {
    let output = Command::new(bin.join("nvcc")).arg("--version").output().context("starting nvcc")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let version = text.split_whitespace().filter_map(|word| word.strip_prefix('V')).find(|v| v.contains('.'));
    Ok(version.context("nvcc --version names no version")?.to_owned())
}

fn install(workspace: &Workspace, venv: &Path) -> Result<()> {
    let python = Command::new("python3").args(["-m", "venv"]).arg(venv).status().context("starting python3")?;
    ensure!(python.success(), "python3 -m venv {}: {python}", venv.display());
    let pip = venv.join("bin/pip");
    let args = ["install", "--quiet", "--no-deps", "--no-compile", "--requirement", REQUIREMENTS];
    let status = Command::new(&pip).current_dir(workspace.root()).args(args).status().context("starting pip")?;
    ensure!(status.success(), "pip install -r {REQUIREMENTS}: {status}");
    Ok(())
}
