//! Tensors by name, out of a checkpoint or a container.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use gosset_codec::DecodeScratch;
use gosset_container::Container;
use gosset_quantize::{ModelSource, QuantizeError, SourceError, resolve_tie};

use crate::config::ModelConfig;
use crate::error::RuntimeError;
use crate::linear::{Linear, StoredRows};
use crate::models::{EMBEDDING, HEAD, expected_tensors, text_name};
use crate::source::dequantize_rows;
use crate::tensor::tensor2;
use crate::unisvq;

/// Where a model's tensors come from.
pub(crate) trait Weights {
    /// Shape of tensor `name`, `None` if there is none.
    fn shape(&self, name: &str) -> Option<&[usize]>;

    /// Names of all tensors, in no particular order.
    fn names(&self) -> Box<dyn Iterator<Item = &str> + '_>;

    /// A small tensor (norm or bias) as f32 on the heap.
    fn vector(&self, name: &str) -> Result<Vec<f32>, RuntimeError>;

    /// A two-dimensional tensor as a layer.
    fn linear(&self, name: &str, bias: Option<Vec<f32>>) -> Result<Linear, RuntimeError>;

    /// A two-dimensional tensor as it is stored.
    #[cfg(feature = "gpu")]
    fn stored(&self, name: &str) -> Result<Stored<'_>, RuntimeError>;

    /// Whether two tensors hold the same bytes.
    fn equal(&self, a: &str, b: &str) -> Result<bool, RuntimeError>;
}

/// A two-dimensional tensor, not read yet.
#[cfg(feature = "gpu")]
pub(crate) enum Stored<'a> {
    /// Coded in a container.
    Coded(gosset_container::CodedTensor),
    /// Affine-grid codes in a container.
    UniSvq(gosset_container::UniSvqTensor),
    /// Numbers of type `dtype`, read as f32 by rows.
    Rows { dtype: String, rows: usize, cols: usize, read: Box<ReadRows<'a>> },
}

/// Writes a range of rows.
#[cfg(feature = "gpu")]
pub(crate) type ReadRows<'a> = dyn Fn(std::ops::Range<usize>, &mut [f32]) -> Result<(), RuntimeError> + Sync + 'a;

/// Checks names and shapes of everything the model needs, reading no weights.
///
/// The first mismatch is returned: [`RuntimeError::MissingTensor`] or [`RuntimeError::Shape`]. Layers beyond those of the
/// configuration are [`RuntimeError::Config`], since a model without its last layers answers, but with nonsense.
pub(crate) fn check(config: &ModelConfig, weights: &dyn Weights, tied: bool) -> Result<(), RuntimeError> {
    let one = |name: &str, expected: &[usize], required: bool| match weights.shape(name) {
        Some(found) if found == expected => Ok(()),
        None if !required => Ok(()),
        None => Err(RuntimeError::MissingTensor { name: name.to_owned(), expected: expected.to_vec() }),
        Some(found) => {
            Err(RuntimeError::Shape { name: name.to_owned(), expected: expected.to_vec(), found: found.to_vec() })
        }
    };
    expected_tensors(config).try_for_each(|t| one(&t.name, &t.shape, t.required))?;
    if !tied {
        one(HEAD, &[config.vocab_size, config.hidden_size], true)?;
    }
    check_no_further_layers(config.n_layers, weights)
}

/// Checks the shapes of a checkpoint against its `config.json`, reading no weights: what would fail when the model is loaded.
///
/// A checkpoint that does not run anyway (without configuration, of an unknown architecture, with a part missing) passes, since it
/// may be meant for another program.
///
/// # Errors
/// [`RuntimeError::Shape`] with the first tensor that has another shape, such as projections that contradict `head_dim`.
pub fn check_shapes(source: &dyn ModelSource) -> Result<(), RuntimeError> {
    let Some(Ok(config)) = source.blob("config.json").map(ModelConfig::from_json) else { return Ok(()) };
    // The head is checked as if it were tied: whether it is may be decided by an option.
    match check(&config, &SourceWeights::new(source), true) {
        Err(error @ RuntimeError::Shape { .. }) => Err(error),
        _ => Ok(()),
    }
}

/// Fails if a tensor belongs to a layer that the configuration does not have; names the first such tensor.
fn check_no_further_layers(n_layers: usize, weights: &dyn Weights) -> Result<(), RuntimeError> {
    let layer = |name: &str| name.strip_prefix("model.layers.")?.split('.').next()?.parse::<usize>().ok();
    let n_stored = weights.names().filter_map(layer).max().map_or(0, |last| last.saturating_add(1));
    let unused = weights.names().filter_map(|name| Some((layer(name)?, name))).filter(|&(n, _)| n >= n_layers).min();
    unused.map_or(Ok(()), |(_, name)| {
        let expected = format!("{n_stored}, the layers that the weights hold (the first beyond is {name})");
        Err(RuntimeError::config("num_hidden_layers", expected, n_layers))
    })
}

/// Tensors of a checkpoint, widened to f32 one by one. Those of a language model within a larger one have the names of one alone.
pub(crate) struct SourceWeights<'a> {
    source: &'a dyn ModelSource,
    index: HashMap<Cow<'a, str>, usize>,
}

impl<'a> SourceWeights<'a> {
    pub(crate) fn new(source: &'a dyn ModelSource) -> Self {
        let index = source.tensors().iter().enumerate().map(|(i, t)| (text_name(&t.name), i)).collect();
        Self { source, index }
    }

    pub(crate) fn find(&self, name: &str) -> Result<usize, RuntimeError> {
        let missing = || RuntimeError::MissingTensor { name: name.to_owned(), expected: Vec::new() };
        self.index.get(name).copied().ok_or_else(missing)
    }
}

impl Weights for SourceWeights<'_> {
    fn shape(&self, name: &str) -> Option<&[usize]> {
        self.index.get(name).map(|&i| self.source.tensors()[i].shape.as_slice())
    }

    fn names(&self) -> Box<dyn Iterator<Item = &str> + '_> {
        Box::new(self.index.keys().map(Cow::as_ref))
    }

    fn vector(&self, name: &str) -> Result<Vec<f32>, RuntimeError> {
        let i = self.find(name)?;
        let (rows, cols) = self.source.tensors()[i].rows_cols();
        let mut out = vec![0f32; rows * cols];
        self.source.read_rows(i, 0..rows, &mut out)?;
        Ok(out)
    }

    fn linear(&self, name: &str, bias: Option<Vec<f32>>) -> Result<Linear, RuntimeError> {
        let (rows, cols) = self.source.tensors()[self.find(name)?].rows_cols();
        Ok(Linear::Dense { weight: tensor2(self.vector(name)?, rows, cols)?, bias })
    }

    #[cfg(feature = "gpu")]
    fn stored(&self, name: &str) -> Result<Stored<'_>, RuntimeError> {
        let i = self.find(name)?;
        let info = &self.source.tensors()[i];
        let (rows, cols) = info.rows_cols();
        let source = self.source;
        let read = move |range, out: &mut [f32]| Ok(source.read_rows(i, range, out)?);
        Ok(Stored::Rows { dtype: info.dtype.clone(), rows, cols, read: Box::new(read) })
    }

    fn equal(&self, a: &str, b: &str) -> Result<bool, RuntimeError> {
        Ok(self.source.raw_bytes(self.find(a)?)? == self.source.raw_bytes(self.find(b)?)?)
    }
}

/// Tensors of a container: linears stay in the file's map. Those of a language model within a larger one have the names of one alone.
pub(crate) struct ContainerWeights {
    container: Arc<Container>,
    /// Names in the container, and shapes.
    tensors: HashMap<String, (String, Vec<usize>)>,
}

impl ContainerWeights {
    pub(crate) fn new(container: Arc<Container>) -> Self {
        let entries = container.entries().iter();
        let tensors = entries.map(|e| (text_name(&e.name).into_owned(), (e.name.clone(), e.shape()))).collect();
        Self { container, tensors }
    }

    /// The name in the container; of a tensor that is not there, the one that was asked for.
    fn stored_name<'b>(&'b self, name: &'b str) -> &'b str {
        self.tensors.get(name).map_or(name, |(stored, _)| stored)
    }

    fn is_coded(&self, stored: &str) -> bool {
        self.container.entry(stored).is_some_and(|e| e.is_coded())
    }

    fn is_unisvq(&self, stored: &str) -> bool {
        self.container.entry(stored).is_some_and(|e| e.is_unisvq())
    }
}

impl Weights for ContainerWeights {
    fn shape(&self, name: &str) -> Option<&[usize]> {
        self.tensors.get(name).map(|(_, shape)| shape.as_slice())
    }

    fn names(&self) -> Box<dyn Iterator<Item = &str> + '_> {
        Box::new(self.tensors.keys().map(String::as_str))
    }

    fn vector(&self, name: &str) -> Result<Vec<f32>, RuntimeError> {
        let n = self.shape(name).unwrap_or_default().iter().product();
        let mut out = vec![0f32; n];
        let name = self.stored_name(name);
        if self.is_unisvq(name) {
            let tensor = self.container.unisvq(name)?;
            let decoder = tensor.decoder()?;
            unisvq::decode(&decoder, 0..decoder.rows(), &mut out);
        } else if self.is_coded(name) {
            let coded = self.container.coded(name)?;
            let decoder = coded.decoder()?;
            decoder.decode_rows(0..decoder.rows(), &mut out, &mut DecodeScratch::new())?;
        } else {
            let raw = self.container.raw(name)?;
            dequantize_rows(raw.dtype, raw.bytes, n, 0..1, &mut out)?;
        }
        Ok(out)
    }

    fn linear(&self, name: &str, bias: Option<Vec<f32>>) -> Result<Linear, RuntimeError> {
        let stored = self.stored_name(name);
        if self.is_coded(stored) {
            return Ok(Linear::Coded { weight: self.container.coded(stored)?, bias });
        }
        if self.is_unisvq(stored) {
            return Ok(Linear::UniSvq { weight: self.container.unisvq(stored)?, bias });
        }
        let &[rows, cols] = self.shape(name).unwrap_or_default() else {
            return Err(RuntimeError::MissingTensor { name: name.to_owned(), expected: Vec::new() });
        };
        Ok(Linear::Blocks { weight: StoredRows::new(Arc::clone(&self.container), stored, rows, cols), bias })
    }

    #[cfg(feature = "gpu")]
    fn stored(&self, name: &str) -> Result<Stored<'_>, RuntimeError> {
        let stored = self.stored_name(name);
        if self.is_coded(stored) {
            return Ok(Stored::Coded(self.container.coded(stored)?));
        }
        if self.is_unisvq(stored) {
            return Ok(Stored::UniSvq(self.container.unisvq(stored)?));
        }
        let &[rows, cols] = self.shape(name).unwrap_or_default() else {
            return Err(RuntimeError::MissingTensor { name: name.to_owned(), expected: Vec::new() });
        };
        let raw = self.container.raw(stored)?;
        let read = move |range, out: &mut [f32]| dequantize_rows(raw.dtype, raw.bytes, cols, range, out);
        Ok(Stored::Rows { dtype: raw.dtype.to_owned(), rows, cols, read: Box::new(read) })
    }

    fn equal(&self, a: &str, b: &str) -> Result<bool, RuntimeError> {
        let [a, b] = [a, b].map(|name| self.stored_name(name));
        if [a, b].iter().any(|name| self.is_coded(name) || self.is_unisvq(name)) {
            return Ok(false);
        }
        Ok(self.container.raw(a)?.bytes == self.container.raw(b)?.bytes)
    }
}

/// Whether the output head is the embedding table, and a warning if the files leave a doubt.
///
/// The rules are those of [`gosset_quantize::resolve_tie`]; a contradiction is [`RuntimeError::Tie`].
pub(crate) fn tie(
    config: &serde_json::Value,
    weights: &dyn Weights,
    force: Option<bool>,
) -> Result<(bool, Option<String>), RuntimeError> {
    let equal = || match weights.shape(EMBEDDING).is_some() {
        true => weights.equal(EMBEDDING, HEAD).map_err(SourceError::other),
        false => Ok(false),
    };
    let decision = resolve_tie(Some(config), weights.shape(HEAD).is_some(), equal, force).map_err(|e| match e {
        QuantizeError::Source(e) => RuntimeError::Source(e),
        other => RuntimeError::Tie(other.to_string()),
    })?;
    Ok((decision.is_tied(), decision.warning().map(str::to_owned)))
}
