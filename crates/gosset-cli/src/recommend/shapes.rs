//! A container as the checkpoint it was made of, without its weights: names, shapes, side files.

use std::borrow::Cow;
use std::ops::Range;

use anyhow::Result;
use gosset_container::Container;
use gosset_quantize::{ModelSource, SourceError, SourceInfo, TensorInfo};

/// Shapes and side files of a container.
pub(super) struct Shapes<'a> {
    info: SourceInfo,
    tensors: Vec<TensorInfo>,
    blobs: Vec<(&'a str, &'a [u8])>,
}

impl<'a> Shapes<'a> {
    pub(super) fn of(container: &'a Container) -> Result<Self> {
        let manifest = container.manifest();
        let ledger = container.ledger()?;
        let tensors: Vec<TensorInfo> = container
            .entries()
            .iter()
            .map(|t| TensorInfo {
                name: t.name.clone(),
                shape: t.shape(),
                dtype: t.dtype().to_owned(),
                n_bytes: ledger.tensor(&t.name).map_or(0, |line| line.plane_bytes()),
            })
            .collect();
        let mut blobs = Vec::new();
        for blob in &manifest.blobs {
            blobs.extend(container.blob(&blob.name)?.map(|bytes| (blob.name.as_str(), bytes)));
        }
        let text = |key: &str| manifest.source.get(key).and_then(serde_json::Value::as_str).map(str::to_owned);
        let info = SourceInfo {
            kind: text("kind").unwrap_or_default(),
            name: container.path().file_stem().map_or_else(String::new, |name| name.to_string_lossy().into_owned()),
            architecture: text("architecture"),
            files: vec![container.path().to_owned()],
            total_bytes: tensors.iter().map(|t| t.n_bytes).sum(),
            fingerprint: text("fingerprint").unwrap_or_default(),
        };
        Ok(Shapes { info, tensors, blobs })
    }
}

/// Nobody reads weights to plan with shapes.
fn no_weights() -> SourceError {
    SourceError::other("a container has no weights of the original checkpoint")
}

impl ModelSource for Shapes<'_> {
    fn info(&self) -> &SourceInfo {
        &self.info
    }

    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    fn read_rows(&self, _index: usize, _rows: Range<usize>, _out: &mut [f32]) -> Result<(), SourceError> {
        Err(no_weights())
    }

    fn raw_bytes(&self, _index: usize) -> Result<Cow<'_, [u8]>, SourceError> {
        Err(no_weights())
    }

    fn blob(&self, name: &str) -> Option<&[u8]> {
        self.blobs.iter().find(|(n, _)| *n == name).map(|(_, bytes)| *bytes)
    }

    fn blobs(&self) -> Vec<(&str, &[u8])> {
        self.blobs.clone()
    }
}
