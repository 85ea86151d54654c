//! Runs the command and makes its inputs.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use gosset_tests::t0::T0;
use serde_json::Value;
use tempfile::TempDir;

/// A finished run.
#[derive(Debug)]
pub(crate) struct Run {
    /// Exit code; -1 for death by signal.
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Run {
    /// Ends the test unless the run succeeded.
    #[track_caller]
    pub(crate) fn ok(self) -> Self {
        assert_eq!(self.code, 0, "{self:?}");
        self
    }

    /// Ends the test unless the run failed with `code` and one clear line on stderr, the last, that holds all `parts`.
    #[track_caller]
    pub(crate) fn fails(self, code: i32, parts: &[&str]) -> Self {
        assert_eq!(self.code, code, "{self:?}");
        let errors: Vec<&str> = self.stderr.lines().filter(|line| line.starts_with("error: ")).collect();
        assert_eq!(errors.len(), 1, "{self:?}");
        assert_eq!(self.stderr.lines().last(), Some(errors[0]), "{self:?}");
        for part in parts {
            assert!(errors[0].contains(part), "{part:?} in {self:?}");
        }
        for debris in ["panicked", "RUST_BACKTRACE", "Err(", "Error {", "\u{1b}"] {
            assert!(!self.stderr.contains(debris), "{self:?}");
        }
        self
    }

    /// Stdout as JSON.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }
}

/// A folder of its own with a cache inside.
#[derive(Debug)]
pub(crate) struct Bench {
    dir: TempDir,
}

impl Bench {
    pub(crate) fn new() -> Self {
        Bench { dir: tempfile::tempdir().unwrap() }
    }

    /// A path in the folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The command with `args`, run inside the folder.
    pub(crate) fn command<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gosset"));
        command.args(args).current_dir(self.dir.path()).env("GOSSET_CACHE", self.path("cache")).stdin(Stdio::null());
        command
    }

    /// Runs the command with the words of `line`; a word cannot hold a space.
    pub(crate) fn run(&self, line: &str) -> Run {
        self.run_args(line.split_whitespace())
    }

    /// Runs the command with `args`.
    pub(crate) fn run_args<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Run {
        finish(&mut self.command(args))
    }

    /// Runs the command with the words of `line` and `input` on stdin.
    pub(crate) fn run_with_stdin(&self, line: &str, input: &[u8]) -> Run {
        let path = self.path(".stdin");
        fs::write(&path, input).unwrap();
        let mut command = self.command(line.split_whitespace());
        command.stdin(fs::File::open(path).unwrap());
        finish(&mut command)
    }

    /// Writes `t0` into the folder `name`.
    pub(crate) fn t0(&self, name: &str, t0: &T0) -> PathBuf {
        let folder = self.path(name);
        t0.write(&folder).unwrap();
        folder
    }

    /// Writes a file.
    pub(crate) fn file(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, bytes).unwrap();
        path
    }

    /// Names in the folder, sorted, without the cache and the stdin of runs.
    pub(crate) fn names(&self) -> Vec<String> {
        names(self.dir.path()).into_iter().filter(|name| name != "cache" && name != ".stdin").collect()
    }

    /// Quantizes T0 into `t0.gosset`.
    pub(crate) fn container(&self) -> PathBuf {
        self.t0("t0", &T0::llama());
        self.run("quantize t0 -o t0.gosset --rate 4 --quiet").ok();
        self.path("t0.gosset")
    }
}

/// Names in a folder, sorted.
pub(crate) fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Waits for a command.
pub(crate) fn finish(command: &mut Command) -> Run {
    let output = command.output().unwrap();
    Run {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// The folder named by `GOSSET_DATA`; says so and gives `None` without it.
pub(crate) fn stories() -> Option<PathBuf> {
    let path = std::env::var_os("GOSSET_DATA").map(|data| PathBuf::from(data).join("stories260K/stories260K.f32.gguf"));
    let path = path.filter(|path| path.exists());
    if path.is_none() {
        eprintln!("SKIPPED: GOSSET_DATA names no folder with stories260K");
    }
    path
}

/// A safetensors file with f32 tensors.
pub(crate) fn safetensors_f32(tensors: &[(&str, &[usize], Vec<f32>)]) -> Vec<u8> {
    let encoded: Vec<_> = tensors
        .iter()
        .map(|(name, shape, values)| {
            let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
            ((*name).to_owned(), "F32", shape.to_vec(), bytes)
        })
        .collect();
    gosset_tests::t0::safetensors(&encoded)
}

/// Values that look random, from -1 to 1.
pub(crate) fn values(n: usize) -> Vec<f32> {
    (0..n as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 8) as f32 / (1 << 23) as f32 - 1.0).collect()
}
