//! The matrices that rates and distortions are measured on.

use std::path::Path;

use anyhow::{Context, Result, bail};
use gosset_codec::calibrate;
use gosset_quantize::{MIN_WEIGHTS, ModelSource, TensorInfo};
use gosset_runtime::source::open_source;
use gosset_transform::philox4x32_10;

/// What `--source` may name besides a path.
pub(super) const GAUSSIAN: &str = "gaussian";
/// The other one.
pub(super) const LAPLACE: &str = "laplace";

/// Tables of a model that are looked up and not multiplied with.
const TABLES: [&str; 2] = ["model.embed_tokens.weight", "lm_head.weight"];

/// A matrix with its name in the table.
#[derive(Debug, Clone, PartialEq)]
pub struct Matrix {
    /// `gaussian`, `laplace`, or `CHECKPOINT:TENSOR`.
    pub source: String,
    /// Number of rows.
    pub rows: usize,
    /// Number of columns.
    pub cols: usize,
    /// The values, row-major.
    pub values: Vec<f32>,
}

impl Matrix {
    /// `rows` x `cols` independent standard normal values.
    pub fn gaussian(rows: usize, cols: usize, seed: u64) -> Self {
        Matrix { source: GAUSSIAN.to_owned(), rows, cols, values: calibrate::gaussian(rows * cols, seed) }
    }

    /// `rows` x `cols` independent Laplace values of unit variance.
    pub fn laplace(rows: usize, cols: usize, seed: u64) -> Self {
        let key = [seed as u32, (seed >> 32) as u32];
        let blocks = (0..(rows * cols).div_ceil(4) as u64).flat_map(|i| {
            // The second counter word sets these words apart from those of the Gaussian values under the same seed.
            philox4x32_10([i as u32, (i >> 32) as u32, 1, 0], key).map(|word| {
                // An odd multiple of 2^-33: inside (0, 1), so that the logarithm is finite; half of it is the sign.
                let u = (2.0 * f64::from(word) + 1.0) / 8_589_934_592.0;
                let magnitude = -(1.0 - (2.0 * u - 1.0).abs()).ln() * 0.5f64.sqrt();
                magnitude.copysign(u - 0.5) as f32
            })
        });
        Matrix { source: LAPLACE.to_owned(), rows, cols, values: blocks.take(rows * cols).collect() }
    }

    /// Variance about the mean.
    pub fn variance(&self) -> f64 {
        let n = self.values.len() as f64;
        let mean = self.values.iter().map(|&v| f64::from(v)).sum::<f64>() / n;
        self.values.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>() / n
    }
}

/// Size and seed of drawn matrices, and which tensors of a checkpoint are taken.
#[derive(Debug, Clone, Copy)]
pub(super) struct Choice<'a> {
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) seed: u64,
    /// Parts of tensor names; `all` takes every matrix. Empty for the default.
    pub(super) tensors: &'a [String],
}

/// The matrices of `source`: `gaussian`, `laplace`, a path, or `NAME=PATH` for a path that goes by another name.
pub(super) fn load(source: &str, choice: Choice<'_>) -> Result<Vec<Matrix>> {
    let Choice { rows, cols, seed, .. } = choice;
    match source {
        GAUSSIAN => Ok(vec![Matrix::gaussian(rows, cols, seed)]),
        LAPLACE => Ok(vec![Matrix::laplace(rows, cols, seed)]),
        _ => {
            let (name, path) = match source.split_once('=') {
                Some((name, path)) if !Path::new(source).exists() => (Some(name), Path::new(path)),
                _ => (None, Path::new(source)),
            };
            if !path.exists() {
                bail!("--source {source}: no such file, expected {GAUSSIAN}, {LAPLACE} or the path of a checkpoint");
            }
            let checkpoint = open_source(path).with_context(|| format!("--source {source}"))?;
            let name = name.unwrap_or(&checkpoint.info().name).to_owned();
            from_checkpoint(&*checkpoint, &name, choice.tensors).with_context(|| format!("--source {source}"))
        }
    }
}

/// The chosen matrices of a checkpoint.
fn from_checkpoint(checkpoint: &dyn ModelSource, name: &str, tensors: &[String]) -> Result<Vec<Matrix>> {
    let all = checkpoint.tensors();
    let matrices: Vec<usize> = (0..all.len()).filter(|&i| is_matrix(&all[i])).collect();
    let chosen = if tensors.is_empty() {
        let is_model = checkpoint.info().architecture.is_some();
        if is_model { representatives(all, &matrices) } else { matrices.clone() }
    } else {
        let wanted = |i: &usize| tensors.iter().any(|part| part == "all" || all[*i].name.contains(part.as_str()));
        matrices.iter().copied().filter(wanted).collect()
    };
    if chosen.is_empty() {
        let names: Vec<_> = matrices.iter().take(8).map(|&i| all[i].name.as_str()).collect();
        let more = if matrices.len() > names.len() { ", …" } else { "" };
        bail!(
            "expected a matrix of at least {MIN_WEIGHTS} weights{}, found {} ({}{more}) among {} tensors",
            if tensors.is_empty() { String::new() } else { format!(" whose name contains {}", tensors.join(" or ")) },
            matrices.len(),
            names.join(", "),
            all.len()
        );
    }
    let read = |i: usize| -> Result<Matrix> {
        let (rows, cols) = all[i].rows_cols();
        let mut values = vec![0.0; rows * cols];
        checkpoint.read_rows(i, 0..rows, &mut values).with_context(|| all[i].name.clone())?;
        if let Some(at) = values.iter().position(|v| !v.is_finite()) {
            let (row, col) = (at / cols, at % cols);
            bail!("{}: row {row}, column {col}: found {}, expected finite values", all[i].name, values[at]);
        }
        Ok(Matrix { source: format!("{name}:{}", all[i].name), rows, cols, values })
    };
    chosen.into_iter().map(read).collect()
}

fn is_matrix(tensor: &TensorInfo) -> bool {
    // Integers have no distortion; GGUF block types decode to floats.
    let is_integer = ["I8", "U8", "I16", "U16", "I32", "U32", "I64", "U64", "BOOL"].contains(&tensor.dtype.as_str());
    tensor.shape.len() == 2 && !is_integer && tensor.n_weights() >= MIN_WEIGHTS && !TABLES.contains(&&*tensor.name)
}

/// An attention and a feed-forward matrix of the middle layer; every matrix where names do not follow the usual pattern.
fn representatives(all: &[TensorInfo], matrices: &[usize]) -> Vec<usize> {
    let layer = |i: usize| all[i].name.strip_prefix("model.layers.")?.split('.').next()?.parse::<usize>().ok();
    let last = matrices.iter().filter_map(|&i| layer(i)).max();
    let middle = last.map(|last| last / 2);
    let ends = ["self_attn.q_proj.weight", "mlp.down_proj.weight"];
    let is_chosen = |i: &usize| layer(*i) == middle && ends.iter().any(|end| all[*i].name.ends_with(end));
    let chosen: Vec<usize> = matrices.iter().copied().filter(is_chosen).collect();
    if chosen.is_empty() { matrices.to_vec() } else { chosen }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHOICE: Choice<'_> = Choice { rows: 64, cols: 512, seed: 3, tensors: &[] };

    fn tiny() -> String {
        concat!("embedded=", env!("CARGO_MANIFEST_DIR"), "/../assets/tiny").to_owned()
    }

    #[test]
    fn drawn_matrices_follow_their_distribution_and_seed() {
        for (source, fourth) in [(GAUSSIAN, 3.0), (LAPLACE, 6.0)] {
            let choice = Choice { rows: 512, ..CHOICE };
            let m = load(source, choice).unwrap().remove(0);
            let n = m.values.len() as f64;
            let moment = |p: i32| m.values.iter().map(|&v| f64::from(v).powi(p)).sum::<f64>() / n;
            // Five standard deviations of the sample moments of 2^18 values; the fourth of Laplace has variance 2520 - 36.
            assert!(moment(1).abs() < 0.01 && (m.variance() - 1.0).abs() < 0.025, "{source}: {}", m.variance());
            assert!((moment(4) - fourth).abs() < 0.5, "{source}: {}", moment(4));
            assert_eq!(load(source, choice).unwrap()[0], m);
            assert_ne!(load(source, Choice { seed: 4, ..choice }).unwrap()[0].values, m.values);
        }
    }

    #[test]
    fn a_model_gives_an_attention_and_a_feed_forward_matrix() {
        let names: Vec<_> = load(&tiny(), CHOICE).unwrap().into_iter().map(|m| m.source).collect();
        assert_eq!(names.len(), 2, "{names:?}");
        assert!(names.iter().all(|name| name.starts_with("embedded:model.layers.")), "{names:?}");
        assert!(
            names.iter().any(|n| n.ends_with("q_proj.weight")) && names.iter().any(|n| n.ends_with("down_proj.weight"))
        );
    }

    #[test]
    fn tensors_are_chosen_by_parts_of_their_names() {
        let parts = ["layers.0.mlp".to_owned()];
        let found = load(&tiny(), Choice { tensors: &parts, ..CHOICE }).unwrap();
        assert_eq!(found.len(), 3);
        let all = load(&tiny(), Choice { tensors: &["all".to_owned()], ..CHOICE }).unwrap();
        assert!(all.len() > 3 && all.iter().all(|m| !m.source.contains("embed_tokens")));
        let error = load(&tiny(), Choice { tensors: &["layers.77".to_owned()], ..CHOICE }).unwrap_err();
        assert!(format!("{error:#}").contains("whose name contains layers.77"), "{error:#}");
        assert!(format!("{:#}", load("no/such/file", CHOICE).unwrap_err()).contains("gaussian"));
    }
}
