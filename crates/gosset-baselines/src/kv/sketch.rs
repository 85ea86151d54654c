//! QJL: the signs of random projections of a vector.

use half::f16;

use super::bits::{BitSink, BitSource};
use super::fixed::{FixedRate, Layout, half};
use super::levels::sqrt_half_pi;
use super::rotation::Matrix;
use super::turboquant::norm;

/// Signs of `m` projections on independent standard normal vectors.
///
/// With the norm γ of the vector r they give γ √(π/2) / m · Sᵀ sign(S r), whose inner product with any q has the mean ⟨q, r⟩ over S.
///
/// Source: Zandieh, Daliri, Han, *QJL: 1-bit quantized JL transform for KV cache quantization with zero overhead*, arXiv 2406.03482.
#[derive(Debug)]
pub(crate) struct Sketch {
    matrix: Matrix,
}

impl Sketch {
    pub(crate) fn new(rows: usize, head_dim: usize, seed: u64, stream: u64) -> Self {
        Self { matrix: Matrix::gaussian(seed, stream, rows, head_dim) }
    }

    /// Bits of a sketch.
    pub(crate) fn rows(&self) -> usize {
        self.matrix.rows()
    }

    pub(crate) fn encode(&self, x: &[f32], codes: &mut BitSink<'_>) {
        let mut projections = vec![0.0; self.rows()];
        self.matrix.forward(x, &mut projections);
        projections.iter().for_each(|p| codes.put(u32::from(*p < 0.0), 1));
    }

    /// Overwrites `out` with the vector of norm `norm` that the signs stand for.
    pub(crate) fn decode(&self, norm: f32, codes: &mut BitSource<'_>, out: &mut [f32]) {
        let amount = norm * (sqrt_half_pi() / self.rows() as f64) as f32;
        let signs = (0..self.rows()).map(|_| if codes.take(1) == 0 { amount } else { -amount });
        self.matrix.transposed(signs, out);
    }
}

/// Keys as QJL stores them: signs of `m` projections, the norm as fp16. Keys stay in their own frame.
///
/// The separate, finer code that QJL gives to outlier channels, which are found in a prompt, is left out.
#[derive(Debug)]
pub(crate) struct QjlKeys {
    sketch: Sketch,
    head_dim: usize,
}

impl QjlKeys {
    pub(crate) fn new(head_dim: usize, rows: usize, seed: u64, stream: u64) -> Self {
        Self { sketch: Sketch::new(rows, head_dim, seed, stream), head_dim }
    }
}

impl FixedRate for QjlKeys {
    fn name(&self) -> String {
        format!("qjl@{}", self.sketch.rows() as f64 / self.head_dim as f64)
    }

    fn head_dim(&self) -> usize {
        self.head_dim
    }

    fn layout(&self) -> Layout {
        Layout { n_scales: 1, code_bits: self.sketch.rows() }
    }

    fn encode(&self, x: &mut [f32], scales: &mut [f16], codes: &mut BitSink<'_>) {
        scales[0] = half(norm(x));
        // Any positive multiple has the same signs, and this one has no overflow.
        super::turboquant::normalize(x);
        self.sketch.encode(x, codes);
    }

    fn decode(&self, scales: &[f16], codes: &mut BitSource<'_>, out: &mut [f32]) {
        self.sketch.decode(scales[0].to_f32(), codes, out);
    }
}
