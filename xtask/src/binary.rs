//! Release binaries that link what this program does not: built, started, waited for.

use std::{
    env, io,
    io::BufReader,
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, Stdio},
    sync::mpsc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use cargo_metadata::Message;

use crate::workspace::{Workspace, exit_code};

/// Time between two looks at the child.
const POLL: Duration = Duration::from_millis(50);

/// Time that the child has to clean up.
const GRACE: Duration = Duration::from_secs(10);

/// Builds a binary of `gosset-benches` in release mode and returns its path.
pub(crate) fn build(workspace: &Workspace, name: &str, features: &[&str]) -> Result<PathBuf> {
    let mut args = vec!["build".to_owned(), "--package=gosset-benches".to_owned(), format!("--bin={name}")];
    if !features.is_empty() {
        args.push(format!("--features={}", features.join(",")));
    }
    build_target(workspace, name, &args)
}

/// Builds the target `name` in release mode with these arguments of cargo, and returns the path of its executable.
pub(crate) fn build_target(workspace: &Workspace, name: &str, args: &[String]) -> Result<PathBuf> {
    let mut cargo = workspace.cargo();
    cargo.args(args).args(["--release", "--message-format", "json-render-diagnostics"]);
    // The release build of the runtime takes minutes the first time, and cargo says so on stderr.
    if env::var_os("CARGO_TERM_QUIET").is_none() {
        eprintln!("building {name} (release)");
    }
    let mut child = cargo.stdout(Stdio::piped()).stderr(io::stderr()).spawn().context("starting cargo")?;
    let stdout = child.stdout.take().context("cargo's stdout is piped")?;
    let mut binary = None;
    for message in Message::parse_stream(BufReader::new(stdout)) {
        match message? {
            Message::CompilerArtifact(artifact) if artifact.target.name == name => {
                binary = artifact.executable.or(binary);
            }
            _ => {}
        }
    }
    if !child.wait()?.success() {
        bail!("building {name} failed");
    }
    Ok(binary.with_context(|| format!("cargo named no executable for {name}"))?.into_std_path_buf())
}

/// Runs a binary to its end and passes its exit code on.
pub(crate) fn run(binary: &Path, args: &[String]) -> Result<ExitCode> {
    let mut child =
        Command::new(binary).args(args).spawn().with_context(|| format!("starting {}", binary.display()))?;
    wait_politely(&mut child)
}

/// Waits for the child. Ctrl-C reaches it as well, and it is the child that has files to clean up, so this process stays until it
/// has done so; a signal that reached only this process ends the child after [`GRACE`].
fn wait_politely(child: &mut Child) -> Result<ExitCode> {
    let (signal, signalled) = mpsc::channel();
    ctrlc::set_handler(move || {
        // Nobody listens any more once the child has ended.
        let _ = signal.send(());
    })
    .context("installing the Ctrl-C handler")?;
    let mut deadline = None;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(exit_code(status));
        }
        if signalled.recv_timeout(POLL).is_ok() {
            deadline.get_or_insert_with(|| Instant::now() + GRACE);
        }
        if deadline.is_some_and(|deadline| Instant::now() > deadline) {
            child.kill()?;
        }
    }
}
