//! The command line of `kernels`.

use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use clap::Parser;

/// The matrices of Llama-3.1-8B: attention output, feed-forward up and down, fused query-key-value, fused gate-up.
const SHAPES: &str = "4096x4096,14336x4096,4096x14336,6144x4096,28672x4096";
/// Shapes of a quick run.
const QUICK_SHAPES: [Shape; 2] = [Shape { rows: 4096, cols: 4096 }, Shape { rows: 14336, cols: 4096 }];
/// Batches of a quick run.
const QUICK_BATCHES: [usize; 3] = [1, 4, 16];
/// Largest batch: what the kernels for small batches are built for.
const MAX_BATCH: usize = 64;

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Op {
    /// Product with one activation, weights as bit-shift trellis.
    ShiftGemv,
    /// Product with several activations, weights as bit-shift trellis.
    ShiftGemm,
    /// Product with one activation, weights as Rice or ANS streams.
    RiceGemv,
    /// Product with several activations, weights as Rice or ANS streams.
    RiceGemm,
    /// Product with one activation, weights as integers of fixed width.
    FixedGemv,
    /// Product with one activation, affine-grid weights.
    UnisvqGemv,
    /// Product with several activations, affine-grid weights.
    UnisvqGemm,
    /// Randomized Hadamard transform of activations.
    Rht,
    /// From weights to streams.
    Quantize,
    /// From streams to bf16 weights.
    Decode,
    /// Attention of one row over a cache in code, with rotation and append.
    KvAttend,
}

impl Op {
    /// All of them, in the order of the table.
    pub const ALL: [Op; 11] = [
        Op::ShiftGemv,
        Op::ShiftGemm,
        Op::RiceGemv,
        Op::RiceGemm,
        Op::FixedGemv,
        Op::UnisvqGemv,
        Op::UnisvqGemm,
        Op::Rht,
        Op::Quantize,
        Op::Decode,
        Op::KvAttend,
    ];

    /// Whether it is a product of a matrix with activations, so that the dense product is its peer.
    pub(super) fn is_product(self) -> bool {
        !matches!(self, Op::Rht | Op::Quantize | Op::Decode | Op::KvAttend)
    }

    /// Name as in tables and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Op::ShiftGemv => "shift_gemv",
            Op::ShiftGemm => "shift_gemm",
            Op::RiceGemv => "rice_gemv",
            Op::RiceGemm => "rice_gemm",
            Op::FixedGemv => "fixed_gemv",
            Op::UnisvqGemv => "unisvq_gemv",
            Op::UnisvqGemm => "unisvq_gemm",
            Op::Rht => "rht",
            Op::Quantize => "quantize",
            Op::Decode => "decode",
            Op::KvAttend => "kv_attend",
        }
    }
}

/// Rows and columns of a weight matrix: output and input dimension.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Shape {
    /// Output dimension.
    pub rows: usize,
    /// Input dimension.
    pub cols: usize,
}

impl Shape {
    /// Number of weights.
    pub fn n_weights(self) -> usize {
        self.rows * self.cols
    }
}

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}x{}", self.rows, self.cols)
    }
}

impl FromStr for Shape {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let (rows, cols) = text.split_once('x').context("expected ROWSxCOLS, such as 14336x4096")?;
        let side = |text: &str| match text.parse::<usize>() {
            Ok(n) if (1..=1 << 20).contains(&n) => Ok(n),
            _ => bail!("found a side of {text:?}, expected 1 to {}", 1 << 20),
        };
        Ok(Shape { rows: side(rows)?, cols: side(cols)? })
    }
}

/// Times of the CUDA kernels beside cuBLAS, each beside its own distortion; correctness first.
#[derive(Debug, Parser)]
#[command(name = "kernels", version)]
pub struct Args {
    /// Operations [default: all].
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub ops: Vec<Op>,
    /// Codecs, such as `shift-16@2`; a name without a rate stands for all its rates here [default: those of the table].
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub codecs: Vec<String>,
    /// Matrices as output x input dimension.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = SHAPES)]
    pub shapes: Vec<Shape>,
    /// Activations at once; 1 is for the GEMV, the others for the GEMM.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,2,4,8,16,32,64")]
    pub batches: Vec<usize>,
    /// Check only: no times, no dense products, each batch of up to 16 and small shapes as well.
    #[arg(long)]
    pub check: bool,
    /// Two shapes, three batches, fewer replays: half a minute.
    #[arg(long)]
    pub quick: bool,
    /// Replays of each graph; the time is their median.
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u32).range(3..=10_000))]
    pub replays: u32,
    /// Rows that are drawn and encoded; the matrix repeats them.
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(16..=1 << 20))]
    pub unique_rows: u32,
    /// Seed of weights and activations.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Check the products of the matrices of these compressed models too.
    #[arg(long, value_name = "FILES", value_delimiter = ',')]
    pub container: Vec<PathBuf>,
    /// Most matrices of the compressed model that are checked per codec and shape.
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub container_matrices: usize,
    /// What benches/torch_bf16.py wrote on this machine just before.
    #[arg(long, value_name = "FILE")]
    pub torch: Option<PathBuf>,
    /// Write the results as JSON to this file.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Leave the device alone, measure the CPU part only.
    #[arg(long)]
    pub cpu: bool,
    /// The command to name in the output.
    #[arg(long, value_name = "TEXT", hide = true)]
    pub command: Option<String>,
}

impl Args {
    /// Whether an operation was asked for.
    pub(super) fn wants(&self, op: Op) -> bool {
        self.ops.is_empty() || self.ops.contains(&op)
    }

    /// Whether a codec such as `shift-16@2` was asked for.
    pub(super) fn wants_codec(&self, label: &str) -> bool {
        let name = label.split('@').next().unwrap_or(label);
        self.codecs.is_empty() || self.codecs.iter().any(|asked| asked == label || asked == name)
    }

    /// Shapes to measure.
    pub(super) fn shapes(&self) -> Vec<Shape> {
        let mut shapes = self.shapes.clone();
        if self.quick {
            shapes.retain(|shape| QUICK_SHAPES.contains(shape));
            if shapes.is_empty() {
                shapes = QUICK_SHAPES.to_vec();
            }
        }
        shapes
    }

    /// Batches to measure, ascending.
    ///
    /// # Errors
    /// Batches that no kernel takes.
    pub(super) fn batches(&self) -> Result<Vec<usize>> {
        if let Some(bad) = self.batches.iter().find(|batch| !(1..=MAX_BATCH).contains(*batch)) {
            bail!("--batches: found {bad}, expected 1 to {MAX_BATCH}");
        }
        let mut batches = self.batches.clone();
        if self.quick {
            batches.retain(|batch| QUICK_BATCHES.contains(batch));
        }
        batches.sort_unstable();
        batches.dedup();
        Ok(batches)
    }

    /// Replays of each graph.
    pub(super) fn replays(&self) -> usize {
        if self.quick { self.replays.min(20) as usize } else { self.replays as usize }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn args(rest: &[&str]) -> Args {
        Args::try_parse_from(["kernels"].iter().chain(rest)).unwrap()
    }

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
        for bad in [["--shapes", "12"], ["--shapes", "0x4"], ["--ops", "gemv"], ["--replays", "1"]] {
            assert!(Args::try_parse_from(["kernels"].iter().chain(&bad)).is_err(), "{bad:?}");
        }
        assert!(args(&["--batches", "65"]).batches().is_err());
    }

    #[test]
    fn everything_is_measured_by_default() {
        let all = args(&[]);
        assert_eq!(all.shapes().len(), 5);
        assert_eq!(all.batches().unwrap(), [1, 2, 4, 8, 16, 32, 64]);
        assert!(Op::ALL.iter().all(|&op| all.wants(op)) && all.wants_codec("shift-16@2"));
        let quick = args(&["--quick", "--ops", "shift_gemv", "--codecs", "shift-16@2,e8-rice"]);
        assert_eq!((quick.shapes().len(), quick.batches().unwrap().len()), (2, 3));
        assert!(quick.wants(Op::ShiftGemv) && !quick.wants(Op::Rht));
        assert!(quick.wants_codec("e8-rice@4") && !quick.wants_codec("shift-16@3"));
    }

    #[test]
    fn names_are_those_of_the_command_line() {
        for op in Op::ALL {
            assert_eq!(args(&["--ops", op.name()]).ops, [op]);
        }
    }
}
