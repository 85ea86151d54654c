//! Exit codes, and how an error becomes one line and one code.
//!
//! This is the only place that knows which error means which code; `gosset --help` prints [`TABLE`].

use std::io;

use gosset_codec::CodecError;
use gosset_container::ContainerError;
use gosset_kv::KvError;
use gosset_quantize::{QuantizeError, SourceError};
use gosset_runtime::{DeviceError, RuntimeError};

/// Why a command ended, as scripts see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Everything asked for was done.
    Ok = 0,
    /// None of the reasons below.
    Failure = 1,
    /// The command line asks for something impossible.
    Usage = 2,
    /// The model that was given cannot be used.
    Model = 3,
    /// The container is damaged, of another version, or no container.
    Container = 4,
    /// The operating system refused: absent file, existing output, full disk.
    Io = 5,
    /// A part that the command needs is not in the model.
    MissingPart = 6,
    /// The device that was asked for cannot be had.
    Device = 7,
    /// Ctrl-C.
    Interrupted = 130,
}

/// The table of exit codes in `gosset --help`.
pub(crate) const TABLE: &str = "Exit codes:
    0  done
    1  another failure
    2  usage: an option or a combination of options is wrong
    3  bad or unsupported model input
    4  container damaged, of another version, or not a container
    5  file system: missing file, existing output, no permission, full disk
    6  a part is missing: tokenizer, chat template, shard, tensor, part of a run
    7  the device that was asked for cannot be had
  130  interrupted with Ctrl-C";

/// An error that this program itself found.
#[derive(Debug)]
pub(crate) struct CliError {
    exit: Exit,
    message: String,
}

impl std::fmt::Display for CliError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for CliError {}

/// An error with its code; `message` says what, where and what to do.
pub(crate) fn error(exit: Exit, message: impl Into<String>) -> anyhow::Error {
    CliError { exit, message: message.into() }.into()
}

/// Stdout was closed by its reader, as `gosset inspect x | head` does: nobody is left to tell, and nothing is wrong.
pub(crate) fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|e| e.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe))
}

/// The code for `error`: that of the outermost cause that has one.
pub(crate) fn code(error: &anyhow::Error) -> Exit {
    error
        .chain()
        .find_map(|e| {
            None.or_else(|| e.downcast_ref().map(|e: &CliError| e.exit))
                .or_else(|| e.downcast_ref().map(of_quantize))
                .or_else(|| e.downcast_ref().map(of_runtime))
                .or_else(|| e.downcast_ref().map(of_source))
                .or_else(|| e.downcast_ref().map(of_container))
                .or_else(|| e.downcast_ref().map(of_codec))
                .or_else(|| e.downcast_ref().map(of_device))
                .or_else(|| e.downcast_ref().map(|_: &io::Error| Exit::Io))
        })
        .unwrap_or(Exit::Failure)
}

fn of_codec(error: &CodecError) -> Exit {
    match error {
        CodecError::UnknownCodec { .. }
        | CodecError::SpecSyntax { .. }
        | CodecError::RateRange { .. }
        | CodecError::RateSet { .. }
        | CodecError::Alpha { .. }
        | CodecError::Rotation(_)
        | CodecError::RowRange { .. } => Exit::Usage,
        CodecError::Shape { .. } | CodecError::NonFinite { .. } | CodecError::Magnitude { .. } => Exit::Model,
        // What is left speaks of the planes of a container.
        _ => Exit::Container,
    }
}

fn of_device(error: &DeviceError) -> Exit {
    match error {
        DeviceError::Syntax { .. } => Exit::Usage,
        _ => Exit::Device,
    }
}

fn of_container(error: &ContainerError) -> Exit {
    match error {
        ContainerError::Io { .. } | ContainerError::Exists { .. } | ContainerError::OutputPath { .. } => Exit::Io,
        ContainerError::NoTensor { .. } => Exit::MissingPart,
        ContainerError::Duplicate { .. } | ContainerError::Input { .. } => Exit::Model,
        ContainerError::Poisoned { .. } => Exit::Failure,
        _ => Exit::Container,
    }
}

fn of_source(error: &SourceError) -> Exit {
    match error {
        SourceError::Io { .. } | SourceError::NotFound { .. } | SourceError::Sink { .. } => Exit::Io,
        SourceError::MissingShards { .. } | SourceError::MissingTensor { .. } => Exit::MissingPart,
        SourceError::Other { source: Some(inner), .. } => inner.downcast_ref().map_or(Exit::Model, of_runtime),
        _ => Exit::Model,
    }
}

fn of_quantize(error: &QuantizeError) -> Exit {
    match error {
        QuantizeError::Source(e) => of_source(e),
        QuantizeError::Container(e) => of_container(e),
        QuantizeError::Codec { source, .. } => of_codec(source),
        QuantizeError::UniSvq { .. } => Exit::Model,
        QuantizeError::Activations { source: Some(inner), .. } => {
            inner.downcast_ref().map_or(Exit::Failure, of_runtime)
        }
        QuantizeError::Options(_)
        | QuantizeError::UnknownMethod { .. }
        | QuantizeError::MethodRate { .. }
        | QuantizeError::NeedsCalibration { .. }
        | QuantizeError::CalibrationDiffers { .. }
        | QuantizeError::OtherJob { .. }
        | QuantizeError::PartSyntax { .. }
        | QuantizeError::PartImpossible { .. }
        | QuantizeError::PartsDiffer { .. }
        | QuantizeError::OverrideSyntax { .. }
        | QuantizeError::OverrideUnmatched { .. }
        | QuantizeError::OverrideImpossible { .. }
        | QuantizeError::Weight { .. }
        | QuantizeError::TargetRange { .. }
        | QuantizeError::TargetMissed { .. }
        | QuantizeError::OutputIsInput { .. } => Exit::Usage,
        QuantizeError::NotAPart { .. } => Exit::Container,
        QuantizeError::PartsIncomplete { .. } => Exit::MissingPart,
        QuantizeError::OutputExists { .. }
        | QuantizeError::Io { .. }
        | QuantizeError::Locked { .. }
        | QuantizeError::WorkFolder { .. } => Exit::Io,
        QuantizeError::Cancelled { .. } | QuantizeError::Paused { .. } => Exit::Interrupted,
        _ => Exit::Model,
    }
}

fn of_runtime(error: &RuntimeError) -> Exit {
    match error {
        RuntimeError::Source(e) => of_source(e),
        RuntimeError::Container(e) => of_container(e),
        RuntimeError::Codec(e) => of_codec(e),
        RuntimeError::Device(e) => of_device(e),
        #[cfg(feature = "gpu")]
        RuntimeError::Cuda(_) => Exit::Device,
        RuntimeError::Io { .. } | RuntimeError::UnknownModel { .. } => Exit::Io,
        RuntimeError::MissingTensor { .. } | RuntimeError::MissingPart { .. } | RuntimeError::MissingParts { .. } => {
            Exit::MissingPart
        }
        RuntimeError::Kv(KvError::Spec { .. } | KvError::HeadDim { .. })
        | RuntimeError::KvDevice { .. }
        | RuntimeError::ContextOverflow { .. }
        | RuntimeError::Options { .. } => Exit::Usage,
        RuntimeError::Cancelled => Exit::Interrupted,
        RuntimeError::DeviceMemory { .. } | RuntimeError::DeviceModel { .. } | RuntimeError::UnsupportedOp { .. } => {
            Exit::Device
        }
        RuntimeError::TensorDevice { .. } | RuntimeError::Candle(_) => Exit::Failure,
        _ => Exit::Model,
    }
}

/// What a person can do about `error`, where the message itself does not say it.
fn hint(error: &anyhow::Error) -> Option<&'static str> {
    error.chain().find_map(|e| {
        match e.downcast_ref() {
            Some(QuantizeError::Options(CodecError::RateSet { .. })) => {
                return Some("--target-bpw reaches averages in between by mixing these over tensors");
            }
            Some(QuantizeError::OutputExists { .. }) => return Some("pass --force to write into it"),
            Some(QuantizeError::TieUndecided) => return Some("--tie or --no-tie"),
            Some(QuantizeError::Cancelled { .. }) => return Some("run the command again to start over"),
            Some(QuantizeError::Paused { .. }) => return Some("run the same command again to go on"),
            Some(QuantizeError::OtherJob { .. }) => {
                return Some("run the command it was started with to go on, or pass --restart to start over");
            }
            Some(QuantizeError::WorkFolder { .. }) => return Some("pass --restart to start over"),
            _ => {}
        }
        if let Some(DeviceError::Unusable { .. }) = e.downcast_ref() {
            return Some("--device cpu computes without a GPU, `gosset doctor` tells more");
        }
        match e.downcast_ref().map(io::Error::kind) {
            Some(io::ErrorKind::NotFound) => return Some("check the path"),
            Some(io::ErrorKind::PermissionDenied) => return Some("check the permissions"),
            Some(io::ErrorKind::StorageFull) => return Some("free some space or choose another place"),
            _ => {}
        }
        let container = e
            .downcast_ref::<ContainerError>()
            .or_else(|| match e.downcast_ref() {
                Some(QuantizeError::Container(inner)) => Some(inner),
                _ => None,
            })
            .or_else(|| match e.downcast_ref() {
                Some(RuntimeError::Container(inner)) => Some(inner),
                _ => None,
            });
        match container? {
            ContainerError::Exists { .. } => Some("pass --force to replace it"),
            ContainerError::OtherFormat { .. } => Some("`gosset quantize` makes containers"),
            ContainerError::Version { .. } | ContainerError::UnknownSection { .. } => Some("update gosset"),
            _ => None,
        }
    })
}

/// `error` with all its causes on one line, each said once, and what to do about it.
///
/// Errors whose text already contains that of their cause are common; their cause is not repeated. Characters that could break the
/// line or steer a terminal (paths and names come from outside) are escaped.
pub(crate) fn one_line(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    if let Some(hint) = hint(error) {
        text = format!("{text}; {hint}");
    }
    printable(&text)
}

/// `text` with control characters escaped.
pub(crate) fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.trim_end().chars() {
        if c.is_control() {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn io_error() -> io::Error {
        io::Error::new(io::ErrorKind::NotFound, "gone")
    }

    #[test]
    fn causes_are_said_once_and_on_one_line() {
        let inner = SourceError::Io { path: PathBuf::from("a\nb"), what: "opening", source: io_error() };
        let error = anyhow::Error::from(QuantizeError::from(inner)).context("outer");
        assert_eq!(one_line(&error), r"outer: a\nb: opening: gone; check the path");
        assert_eq!(code(&error), Exit::Io);
    }

    #[test]
    fn wrapped_errors_keep_the_code_of_what_they_wrap() {
        let absent = || SourceError::MissingTensor { path: PathBuf::from("x"), name: "w".into() };
        assert_eq!(code(&QuantizeError::from(absent()).into()), Exit::MissingPart);
        assert_eq!(code(&RuntimeError::from(absent()).into()), Exit::MissingPart);
        assert_eq!(
            code(&SourceError::other(RuntimeError::Io { path: "x".into(), source: io_error() }).into()),
            Exit::Io
        );
        assert_eq!(code(&QuantizeError::Cancelled { done: 1, total: 2 }.into()), Exit::Interrupted);
        assert_eq!(code(&anyhow::anyhow!("anything")), Exit::Failure);
    }

    #[test]
    fn an_existing_output_names_the_way_out() {
        let error: anyhow::Error = QuantizeError::from(ContainerError::Exists { path: "x.gosset".into() }).into();
        assert_eq!(one_line(&error), "x.gosset: exists already; pass --force to replace it");
        assert_eq!(code(&error), Exit::Io);
    }

    #[test]
    fn every_code_is_in_the_table() {
        for exit in [
            Exit::Ok,
            Exit::Failure,
            Exit::Usage,
            Exit::Model,
            Exit::Container,
            Exit::Io,
            Exit::MissingPart,
            Exit::Device,
            Exit::Interrupted,
        ] {
            let code = (exit as u8).to_string();
            assert!(TABLE.lines().any(|line| line.trim_start().starts_with(&format!("{code} "))), "{code}");
        }
    }
}
