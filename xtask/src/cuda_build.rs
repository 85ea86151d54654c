//! `cargo xtask cuda-build`: cargo with candle's `cuda` feature on a machine that need have neither toolkit nor GPU.
//!
//! Candle's kernels are compiled by nvcc when candle is built, and its cudarc links the driver and three libraries. Here the compiler
//! is the pinned one of `cargo xtask ptx`, and what is linked are stubs with the libraries' names and symbols, made from cudarc's own
//! list. A program that was built so runs wherever the real libraries are.

use std::{
    collections::BTreeSet,
    env, fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context, Result, bail, ensure};
use cargo_metadata::MetadataCommand;
use clap::Args;

use crate::{
    ptx,
    workspace::{Workspace, exit_code},
};

/// Cargo with candle's `cuda` feature, without toolkit or GPU.
#[derive(Debug, Args)]
pub(crate) struct CudaBuildArgs {
    /// Compute capability that candle's own kernels are compiled for; ours fit any from 8.0 on.
    #[arg(long, value_name = "CC", default_value = "90")]
    capability: String,
    /// What cargo is to do.
    #[arg(last = true, required = true, value_name = "CARGO ARGS")]
    cargo: Vec<String>,
}

/// Name, soname, module of cudarc with its symbols, and how these begin.
const LIBRARIES: &[[&str; 4]] = &[
    ["cuda", "libcuda.so.1", "driver", "cu"],
    ["nvrtc", "libnvrtc.so.13", "nvrtc", "nvrtc"],
    ["curand", "libcurand.so.10", "curand", "curand"],
    ["cublas", "libcublas.so.13", "cublas", "cublas"],
    ["cublasLt", "libcublasLt.so.13", "cublaslt", "cublasLt"],
];

pub(crate) fn run(workspace: &Workspace, args: &CudaBuildArgs) -> Result<ExitCode> {
    ensure!(
        cfg!(target_os = "linux"),
        "cuda-build: expected Linux; elsewhere install the CUDA toolkit and use cargo as it is"
    );
    let toolkit = ptx::toolkit(workspace)?;
    let stubs = workspace.root().join("target/cuda/stubs");
    make_stubs(workspace, &toolkit, &stubs)?;
    let mut path = vec![toolkit.join("bin")];
    path.extend(env::split_paths(&env::var_os("PATH").unwrap_or_default()));
    let mut libraries = vec![stubs];
    libraries.extend(env::split_paths(&env::var_os("LIBRARY_PATH").unwrap_or_default()));
    let status = workspace
        .cargo()
        .args(&args.cargo)
        .env("CUDA_HOME", &toolkit)
        .env("CUDA_COMPUTE_CAP", &args.capability)
        .env("PATH", env::join_paths(path)?)
        .env("LIBRARY_PATH", env::join_paths(libraries)?)
        // Its own folder: features and flags differ from those of every other build.
        .env("CARGO_TARGET_DIR", workspace.root().join("target/candle-cuda"))
        .status()
        .context("starting cargo")?;
    Ok(exit_code(status))
}

/// Writes the libraries to link against; those that are there already stay.
fn make_stubs(workspace: &Workspace, toolkit: &Path, folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("{}", folder.display()))?;
    let cudarc = cudarc_sources(workspace)?;
    for [name, soname, module, prefix] in LIBRARIES {
        let to = folder.join(format!("lib{name}.so"));
        if to.is_file() {
            continue;
        }
        let bindings = cudarc.join(module).join("sys/mod.rs");
        let text = fs::read_to_string(&bindings).with_context(|| format!("{}", bindings.display()))?;
        let symbols = symbols(&text, prefix);
        ensure!(!symbols.is_empty(), "{}: expected functions {prefix}..., found none", bindings.display());
        // 100 is CUDA_ERROR_NO_DEVICE: a program that meets a stub at run time finds no device.
        let code: String = symbols.iter().map(|symbol| format!("int {symbol}(void) {{ return 100; }}\n")).collect();
        let source = folder.join(format!("{name}.c"));
        fs::write(&source, code).with_context(|| format!("{}", source.display()))?;
        let compiler = env::var_os("CC").unwrap_or_else(|| "cc".into());
        let mut cc = Command::new(&compiler);
        cc.args(["-shared", "-fPIC", "-w", "-fno-builtin", "-nostdlib"]).arg(format!("-Wl,-soname,{soname}"));
        let status = cc.arg("-o").arg(&to).arg(&source).status();
        match status {
            Ok(status) if status.success() => fs::remove_file(&source).context("removing a stub's source")?,
            Ok(status) => bail!("{}: {status} from the C compiler", source.display()),
            Err(error) => {
                bail!("cuda-build needs a C compiler ({}: {error}); install one, or set CC", compiler.display())
            }
        }
    }
    // Candle links the CUDA runtime dynamically; the static one is all that the wheels have, and needs no file at run time.
    let runtime = toolkit.join("lib/libcudart_static.a");
    ensure!(runtime.is_file(), "{}: expected the CUDA runtime", runtime.display());
    let script = format!("INPUT({} -ldl -lrt -lpthread)\n", runtime.display());
    fs::write(folder.join("libcudart.so"), script).with_context(|| format!("{}", folder.display()))
}

/// The functions that cudarc declares, by prefix.
fn symbols<'a>(bindings: &'a str, prefix: &str) -> BTreeSet<&'a str> {
    let names = bindings.split("fn ").skip(1).filter_map(|rest| rest.split('(').next());
    names
        .filter(|name| name.starts_with(prefix) && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_'))
        .filter(|name| name.len() > prefix.len())
        .collect()
}

/// The folder `src` of the cudarc that the lock file names.
fn cudarc_sources(workspace: &Workspace) -> Result<PathBuf> {
    let metadata = MetadataCommand::new().current_dir(workspace.root()).exec().context("cargo metadata")?;
    let package = metadata.packages.iter().find(|package| *package.name == "cudarc");
    let manifest = &package.context("the lock file names no cudarc")?.manifest_path;
    Ok(manifest.with_file_name("src").into_std_path_buf())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_are_the_functions_of_the_library() {
        let text = "pub unsafe fn cuInit(a: u32) -> X {\n fn cuInit(a: u32); }\nfn cublasFoo<T>(x)\nfn load<T>(cuNot)\nfn cu(x)";
        assert_eq!(symbols(text, "cu").into_iter().collect::<Vec<_>>(), ["cuInit"]);
    }
}
