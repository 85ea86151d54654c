//! Containers with one matrix for every width, in every kind of storage, and what they decode to.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::{Device, Tensor};
use gosset_codec::{CodecSpec, DecodeScratch, MatRef};
use gosset_container::{Container, ContainerKind, ManifestInfo, Writer};
use gosset_runtime::Linear;
use half::{bf16, f16};
use tempfile::TempDir;

/// Kinds of storage: candle's own tensor, raw bytes of a container, codes.
pub(crate) const OPS: &[&str] = &[
    "dense",
    "F32",
    "F16",
    "BF16",
    "shift-16@4",
    "shift-16@3",
    "shift-16@2",
    "shift-14@3",
    "e8-rice@4",
    "e8-rice@3",
    "trellis-256@3",
];

/// A matrix in one kind of storage.
pub(crate) struct Matrix {
    pub(crate) linear: Linear,
    /// What it stands for, row-major.
    pub(crate) values: Vec<f32>,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
}

/// Values from a normal distribution of this deviation; the same for the same seed.
pub(crate) fn normal(n: usize, seed: u32, sigma: f32) -> Vec<f32> {
    gosset_codec::calibrate::gaussian(n, seed.into()).into_iter().map(|v| v * sigma).collect()
}

/// Folder of the containers, and the owner of one that is removed at the end.
fn folder() -> (Option<TempDir>, PathBuf) {
    match std::env::var_os("GOSSET_PARITY") {
        Some(folder) => (None, PathBuf::from(folder)),
        None => {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().to_owned();
            (Some(dir), path)
        }
    }
}

fn write(path: &Path, op: &str, rows: usize, cols: usize, values: &[f32]) {
    let mut writer = Writer::create(path, true).unwrap();
    let raw = match op {
        "F32" => Some(bytes(values, f32::to_le_bytes)),
        "F16" => Some(bytes(values, |v| f16::from_f32(v).to_le_bytes())),
        "BF16" => Some(bytes(values, |v| bf16::from_f32(v).to_le_bytes())),
        _ => None,
    };
    match raw {
        Some(raw) => writer.add_raw("w", op, &[rows, cols], &raw, "kept for the test").unwrap(),
        None => {
            let codec = CodecSpec::parse(op).unwrap().check().unwrap();
            writer.add_matrix("w", &codec.encode(MatRef::new(values, rows, cols).unwrap()).unwrap(), "F32").unwrap();
        }
    }
    let info = ManifestInfo { kind: ContainerKind::Tensors, source: "parity".into(), recipe: op.into() };
    writer.finish(info).unwrap();
}

fn bytes<const N: usize>(values: &[f32], of: impl Fn(f32) -> [u8; N]) -> Vec<u8> {
    values.iter().flat_map(|&v| of(v)).collect()
}

/// A random matrix of that shape in the storage `op`.
pub(crate) fn matrix(op: &str, rows: usize, cols: usize, bias: Option<Vec<f32>>) -> Matrix {
    let values = normal(rows * cols, cols as u32, 0.02);
    if op == "dense" {
        let weight = Tensor::from_vec(values.clone(), (rows, cols), &Device::Cpu).unwrap();
        return Matrix { linear: Linear::Dense { weight, bias }, values, rows, cols };
    }
    let (_owner, folder) = folder();
    let path = folder.join(format!("{op}-{rows}x{cols}.gosset"));
    if !path.exists() {
        write(&path, op, rows, cols, &values);
    }
    let container: Arc<Container> = Container::open(&path).unwrap();
    let mut linear = Linear::from_container(&container, "w", None).unwrap();
    let values = match &mut linear {
        Linear::Coded { weight, bias: slot } => {
            *slot = bias;
            let mut out = vec![f32::NAN; rows * cols];
            weight.decoder().unwrap().decode_rows(0..rows, &mut out, &mut DecodeScratch::new()).unwrap();
            out
        }
        Linear::Blocks { bias: slot, .. } => {
            *slot = bias;
            values.into_iter().map(|v| round(op, v)).collect()
        }
        other => panic!("{other:?}"),
    };
    Matrix { linear, values, rows, cols }
}

/// The containers of every other test, made where no GPU is.
#[test]
fn containers_are_made_once_and_decode_alike() {
    for &op in OPS {
        for cols in [576, 896, 2560, 4864] {
            let (first, second) = (matrix(op, 70, cols, None), matrix(op, 70, cols, None));
            assert!(first.values == second.values && first.linear.in_features() == cols, "{op}");
            let exact = normal(70 * cols, cols as u32, 0.02);
            let distance = first.values.iter().zip(&exact).map(|(a, b)| (a - b).powi(2)).sum::<f32>().sqrt();
            assert!(distance < 0.3 * exact.iter().map(|v| v * v).sum::<f32>().sqrt(), "{op} {cols}");
        }
    }
}

/// `v` as the type holds it.
pub(crate) fn round(dtype: &str, v: f32) -> f32 {
    match dtype {
        "F16" => f16::from_f32(v).to_f32(),
        "BF16" => bf16::from_f32(v).to_f32(),
        _ => v,
    }
}
