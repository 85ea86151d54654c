//! Checkpoints on disk, the containers made from them, and models out of both.

use std::error::Error;
use std::fs;
use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gosset_codec::DecodeScratch;
use gosset_container::Container;
use gosset_eval::{BosPolicy, CausalLm, EvalError, PplProtocol, PplResult, Scored, Tail, evaluate};
use gosset_quantize::{FloatDtype, QuantizeError, QuantizeOptions, Report, RunOptions, Silent, dequantize, plan, run};
use gosset_runtime::source::open_source;
use gosset_runtime::{GenerateOptions, Generation, LanguageModel, LoadOptions, RuntimeError, generate};
use gosset_tests::t0::{T0, T0Tensor, safetensors};
use tempfile::TempDir;

use crate::reference::Reference;

/// A folder that lives as long as its test.
pub(crate) struct Folder(TempDir);

impl Folder {
    pub(crate) fn new() -> Self {
        Folder(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Names of what is in it, sorted.
    pub(crate) fn names(&self) -> Vec<String> {
        let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
        let mut names: Vec<String> = fs::read_dir(self.0.path()).unwrap().map(name).collect();
        names.sort();
        names
    }

    /// Writes `t0` into the folder `name`.
    pub(crate) fn t0(&self, name: &str, t0: &T0) -> PathBuf {
        let folder = self.path(name);
        t0.write(&folder).unwrap();
        folder
    }

    /// Writes `t0` with its tensors changed.
    pub(crate) fn changed(&self, name: &str, t0: &T0, change: impl FnOnce(&mut Vec<T0Tensor>)) -> PathBuf {
        let folder = self.t0(name, t0);
        let mut tensors = t0.tensors();
        change(&mut tensors);
        fs::write(folder.join("model.safetensors"), t0.safetensors(&tensors)).unwrap();
        folder
    }

    /// Writes a bare file of F32 tensors.
    pub(crate) fn tensors(&self, name: &str, tensors: &[(String, Vec<usize>, Vec<f32>)]) -> PathBuf {
        let encode = |values: &[f32]| values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let all: Vec<_> = tensors.iter().map(|(n, shape, v)| (n.clone(), "F32", shape.clone(), encode(v))).collect();
        fs::write(self.path(name), safetensors(&all)).unwrap();
        self.path(name)
    }
}

/// The tensor of that name.
#[track_caller]
pub(crate) fn tensor<'a>(tensors: &'a mut [T0Tensor], name: &str) -> &'a mut T0Tensor {
    tensors.iter_mut().find(|t| t.name == name).unwrap()
}

/// E8 with the Rice code.
pub(crate) fn e8(rate: f64) -> QuantizeOptions {
    QuantizeOptions::new("e8-rice", rate)
}

/// Quantizes the checkpoint at `from` into the file `to` and opens that.
pub(crate) fn quantize(from: &Path, options: &QuantizeOptions, to: &Path) -> (Arc<Container>, Report) {
    let report = try_quantize(from, options, to).unwrap();
    (Container::open(to).unwrap(), report)
}

/// Quantizes the checkpoint at `from` into the file `to`, which must not exist.
pub(crate) fn try_quantize(from: &Path, options: &QuantizeOptions, to: &Path) -> Result<Report, QuantizeError> {
    let source = open_source(from).unwrap();
    run(&plan(&*source, options)?, &*source, None, to, &RunOptions::default(), &Silent)
}

/// All values of a coded tensor in its original basis.
pub(crate) fn decoded(container: &Arc<Container>, name: &str) -> Vec<f32> {
    let coded = container.coded(name).unwrap();
    let decoder = coded.decoder().unwrap();
    let mut out = vec![f32::NAN; decoder.rows() * decoder.cols()];
    decoder.decode_rows(0..decoder.rows(), &mut out, &mut DecodeScratch::new()).unwrap();
    out
}

/// The model of a container.
pub(crate) fn load(container: &Arc<Container>) -> LanguageModel {
    LanguageModel::from_container(Arc::clone(container), &LoadOptions::default()).unwrap()
}

/// The model of a checkpoint, in f32.
pub(crate) fn load_source(path: &Path) -> LanguageModel {
    LanguageModel::from_source(&*open_source(path).unwrap(), &LoadOptions::default()).unwrap()
}

/// The reference model of a checkpoint.
pub(crate) fn reference(path: &Path) -> Reference {
    Reference::of(&*open_source(path).unwrap())
}

/// The reference model of what a container holds, by way of its dequantized folder.
pub(crate) fn reference_of(container: &Arc<Container>) -> Reference {
    let folder = Folder::new();
    let out = folder.path("dequantized");
    dequantize(container, &out, FloatDtype::F32, None, &Silent).unwrap();
    reference(&out)
}

/// Logits of every position.
pub(crate) fn logits(model: &LanguageModel, tokens: &[u32]) -> Vec<Vec<f32>> {
    let mut rows = Vec::new();
    model.score(tokens, 0..tokens.len(), &mut |_, row| rows.push(row.to_vec())).unwrap();
    rows
}

/// Asserts that the model computes what the reference does, relative to the largest logit.
#[track_caller]
pub(crate) fn assert_logits(model: &LanguageModel, reference: &Reference, tokens: &[u32], tolerance: f64) {
    let (found, expected) = (logits(model, tokens), reference.forward(tokens).logits);
    let scale = expected.iter().flatten().fold(0f64, |m, v| m.max(v.abs()));
    for (p, (found, expected)) in found.iter().zip(&expected).enumerate() {
        assert_eq!(found.len(), expected.len());
        for (id, (&f, e)) in found.iter().zip(expected).enumerate() {
            let error = (f64::from(f) - e).abs() / scale;
            assert!(error <= tolerance, "position {p}, id {id}: {f}, expected {e}, scale {scale}");
        }
    }
}

/// Seeded ids below `vocab`.
pub(crate) fn ids(n: usize, vocab: u32, seed: u32) -> Vec<u32> {
    (0..n as u32).map(|i| gosset_transform::philox4x32_10([i, 0, 0, 3], [seed, 0])[0] % vocab).collect()
}

/// Seeded, nearly normal values.
pub(crate) fn normal(n: usize, seed: u32, sigma: f32) -> Vec<f32> {
    let uniform = |w: u32| w as f32 / 2f32.powi(32) - 0.5;
    let value = |i| gosset_transform::philox4x32_10([i, 0, 0, 4], [seed, 0]).into_iter().map(uniform).sum::<f32>();
    (0..n as u32).map(|i| value(i) * 3f32.sqrt() * sigma).collect()
}

/// A model under evaluation, with the windows it was asked for.
pub(crate) struct Lm<'a> {
    model: &'a LanguageModel,
    pub(crate) asked: Vec<(Vec<u32>, Range<usize>)>,
}

impl<'a> Lm<'a> {
    pub(crate) fn new(model: &'a LanguageModel) -> Self {
        Lm { model, asked: Vec::new() }
    }
}

impl CausalLm for Lm<'_> {
    fn vocab_size(&self) -> usize {
        self.model.vocab_size()
    }

    fn score(
        &mut self,
        tokens: &[u32],
        positions: Range<usize>,
        sink: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.asked.push((tokens.to_vec(), positions.clone()));
        Ok(self.model.score(tokens, positions, sink)?)
    }
}

/// A protocol without BOS over the raw text.
pub(crate) fn windows(window: usize, stride: usize, scored: Scored, tail: Tail) -> PplProtocol {
    PplProtocol { window, stride, scored, tail, bos: BosPolicy::None, ..PplProtocol::default() }
}

/// Perplexity over the first `n` windows, or all.
pub(crate) fn perplexity(
    model: &LanguageModel,
    tokens: &[u32],
    protocol: &PplProtocol,
    n: Option<usize>,
) -> Result<PplResult, EvalError> {
    evaluate(&mut Lm::new(model), tokens, None, protocol, n, &mut |_| ControlFlow::Continue(()))
}

/// Greedy text after `prompt`, past any stop id.
pub(crate) fn greedy(model: &LanguageModel, prompt: &[u32], n: usize) -> Result<Generation, RuntimeError> {
    let options = GenerateOptions { ignore_model_stop_ids: true, ..GenerateOptions::greedy(n) };
    generate(model, prompt, &options, &mut |_| ControlFlow::Continue(()))
}
