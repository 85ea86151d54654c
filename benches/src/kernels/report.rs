//! What a run found, as rows.

use serde::{Deserialize, Serialize};

/// A run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Name of the device, or `none`.
    pub device: String,
    /// CUDA version that the driver supports.
    pub driver: String,
    /// Version of cuBLAS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cublas: Option<i32>,
    /// Processor.
    pub cpu: String,
    /// The command that made it.
    pub command: String,
    /// Seed of weights and activations.
    pub seed: u64,
    /// Rows that were drawn and encoded; larger matrices repeat them.
    pub unique_rows: usize,
    /// How times were taken.
    pub method: String,
    /// Bytes read and written per second of a large copy on the device, in this run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copy_gbps: Option<f64>,
    /// PyTorch's times of the dense product on this machine, just before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub torch: Option<Torch>,
    /// Whether the run counts: every row is right, and the dense product was as fast as it should be.
    pub valid: bool,
    /// Why it does not count.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
    /// The measurements.
    pub rows: Vec<Row>,
    /// Products with matrices of a compressed model: correctness only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub container: Vec<ContainerRow>,
    /// Codecs on the CPU.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cpu_rows: Vec<CpuRow>,
}

/// What PyTorch measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Torch {
    /// Version of PyTorch.
    pub version: String,
    /// Version of CUDA that it was built with.
    pub cuda: String,
    /// Name of the device.
    pub device: String,
    /// One product each.
    pub rows: Vec<TorchRow>,
}

/// `F.linear` in bf16.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TorchRow {
    /// Output x input dimension.
    pub shape: String,
    /// Activations at once.
    pub batch: usize,
    /// Microseconds, the median.
    pub us: f64,
}

/// One measurement.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Row {
    /// Operation.
    pub op: String,
    /// Codec and payload, such as `shift-16@2`; `-` for none.
    pub codec: String,
    /// Order of the weights, or other variant of the kernel; empty if there is one only.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub variant: String,
    /// `single`: products with cold weights, one after the other; `layers`: eight successive layers in one graph.
    pub mode: String,
    /// Output x input dimension.
    pub shape: String,
    /// Activations at once.
    pub batch: usize,
    /// Bits per weight of the codewords.
    pub bps: Option<f64>,
    /// Bits per weight of everything that is on the device for the matrix.
    pub bps_all_in: Option<f64>,
    /// Mean squared error of the stream that was timed, for weights of unit variance.
    pub mse: Option<f64>,
    /// Microseconds, the median.
    pub us: f64,
    /// Microseconds of the fastest replay.
    pub us_min: f64,
    /// Bytes that must move, per second.
    pub gbps: f64,
    /// Time that moving them takes at the copy's speed, over the time.
    pub floor_fraction: f64,
    /// Millions of weights per second.
    pub mws: f64,
    /// Microseconds of the dense bf16 product.
    pub us_bf16: Option<f64>,
    /// Which kernel that was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bf16_kernel: Option<String>,
    /// Microseconds of PyTorch's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub us_torch: Option<f64>,
    /// `us_bf16 / us`.
    pub speedup_vs_bf16: Option<f64>,
    /// Largest error of an output over the product of the norms of activation and row.
    pub rel_err: Option<f64>,
    /// Copies of the matrix that were rotated.
    pub copies: usize,
    /// Whether every output was right.
    pub valid: bool,
    /// What is to be known beside.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
}

/// A check on a matrix of a compressed model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ContainerRow {
    /// Operation.
    pub op: String,
    /// Codec.
    pub codec: String,
    /// Name of the tensor.
    pub tensor: String,
    /// Output x input dimension.
    pub shape: String,
    /// Activations at once.
    pub batch: usize,
    /// Largest error of an output over the product of the norms of activation and row.
    pub rel_err: f64,
    /// Whether every output was right.
    pub valid: bool,
}

/// A codec on the CPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CpuRow {
    /// Codec and payload.
    pub codec: String,
    /// Output x input dimension.
    pub shape: String,
    /// Bits per weight of the codewords.
    pub bps: f64,
    /// Mean squared error for weights of unit variance.
    pub mse: f64,
    /// Microseconds to decode the matrix and multiply it with one activation, one thread.
    pub us: f64,
    /// Millions of weights per second.
    pub mws: f64,
    /// Largest error of an output over the product of the norms of activation and row.
    pub rel_err: f64,
}
