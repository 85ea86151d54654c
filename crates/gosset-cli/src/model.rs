//! From what the user calls a model to something open: a checkpoint or a container.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;
use gosset_container::{Container, ContainerError};
use gosset_quantize::ModelSource;
use gosset_runtime::{ComputeDevice, LanguageModel, LoadOptions, source};

use crate::cache::{self, KnownModel};
use crate::exit::{Exit, error};

/// An open model.
pub(crate) enum Input {
    /// A compressed one.
    Container(Arc<Container>),
    /// A checkpoint.
    Source(Box<dyn ModelSource>),
}

impl Input {
    /// Opens a container, a checkpoint or a model known by name.
    pub(crate) fn open(name: &Path) -> Result<Self> {
        let path = resolve(name)?;
        match as_container(&path)? {
            Some(container) => Ok(Input::Container(container)),
            None => Ok(Input::Source(source::open_source(&path)?)),
        }
    }

    /// Opens a checkpoint or a model known by name; a container is refused.
    pub(crate) fn open_source(name: &Path) -> Result<Box<dyn ModelSource>> {
        let path = resolve(name)?;
        let is_container = match as_container(&path) {
            Ok(found) => found.is_some(),
            Err(e @ ContainerError::Io { .. }) => return Err(e.into()),
            Err(_) => true,
        };
        if is_container {
            let path = path.display();
            let message = format!(
                "{path}: this is a Gosset container, so its weights are compressed already; quantize the original model, or \
                 expand it with `gosset dequantize` first"
            );
            return Err(error(Exit::Model, message));
        }
        Ok(source::open_source(&path)?)
    }

    /// Loads the model for running on `device`.
    pub(crate) fn load(&self, device: &ComputeDevice) -> Result<LanguageModel> {
        let options = LoadOptions { device: device.for_loading(), ..LoadOptions::default() };
        Ok(match self {
            Input::Container(container) => LanguageModel::from_container(Arc::clone(container), &options)?,
            Input::Source(source) => LanguageModel::from_source(source.as_ref(), &options)?,
        })
    }

    /// The side file `name`.
    pub(crate) fn blob(&self, name: &str) -> Result<Option<&[u8]>> {
        Ok(match self {
            Input::Container(container) => container.blob(name)?,
            Input::Source(source) => source.blob(name),
        })
    }
}

/// The container at `path`; `None` if the file is of another kind. A damaged container is an error.
fn as_container(path: &Path) -> Result<Option<Arc<Container>>, ContainerError> {
    if !path.is_file() {
        return Ok(None);
    }
    match Container::open(path) {
        Ok(container) => Ok(Some(container)),
        // Not even the beginning of one: let the reader of checkpoints say what is wrong.
        Err(ContainerError::OtherFormat { .. } | ContainerError::Header { .. }) if !has_our_extension(path) => Ok(None),
        Err(ContainerError::Io { .. }) if !has_our_extension(path) => Ok(None),
        Err(error) => Err(error),
    }
}

fn has_our_extension(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == "gosset")
}

/// The path that `name` stands for.
fn resolve(name: &Path) -> Result<PathBuf> {
    if name.exists() {
        return Ok(name.to_owned());
    }
    let known_extension = name
        .extension()
        .and_then(|e| e.to_str())
        .is_some_and(|e| matches!(e.to_ascii_lowercase().as_str(), "gosset" | "gguf" | "safetensors"));
    let is_path = known_extension || name.is_absolute() || name.starts_with(".") || name.starts_with("..");
    let text = match name.to_str() {
        Some(text) if !is_path => text,
        _ => {
            let message = format!("{}: no such file or folder; check the path, or see `gosset list`", name.display());
            return Err(error(Exit::Io, message));
        }
    };
    let cache = cache::folder()?;
    match (source::resolve_model(text, &cache), KnownModel::find(text)) {
        (Ok(path), _) => Ok(path),
        (Err(_), Some(model)) => {
            let message = format!(
                "{text}: not in the cache ({}); fetch it with `cargo xtask fetch {text}`, or use {} from the hub",
                model.path(&cache).display(),
                model.hub
            );
            Err(error(Exit::Io, message))
        }
        (Err(e), None) => Err(e.into()),
    }
}
