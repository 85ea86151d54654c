//! TurboQuant, both variants.

use half::f16;

use super::bits::{BitSink, BitSource};
use super::fixed::{FixedRate, Layout, half};
use super::levels::{Levels, coordinate};
use super::rotation::Rotation;
use super::sketch::Sketch;

/// Scales a vector to norm 1; its norm. A vector of zeros stays one.
pub(super) fn normalize(x: &mut [f32]) -> f64 {
    let norm = norm(x);
    if norm > 0.0 {
        x.iter_mut().for_each(|v| *v = (f64::from(*v) / norm) as f32);
    }
    norm
}

/// The Euclidean norm.
pub(super) fn norm(x: &[f32]) -> f64 {
    x.iter().map(|&v| f64::from(v) * f64::from(v)).sum::<f64>().sqrt()
}

/// A uniform random rotation, the norm as fp16, and for every coordinate of the direction one of `2^bits` levels that are best for a
/// coordinate of a random direction (Lloyd and Max).
///
/// Source: Zandieh, Daliri, Hadian, Mirrokni, *TurboQuant: online vector quantization with near-optimal distortion rate*,
/// arXiv 2504.19874, algorithm 1 (the variant of least squared error).
#[derive(Debug)]
pub(crate) struct TurboQuant {
    bits: u32,
    levels: Levels,
    rotation: Rotation,
    head_dim: usize,
}

impl TurboQuant {
    pub(crate) fn new(head_dim: usize, bits: u32, seed: u64, stream: u64) -> Self {
        Self::with_levels(head_dim, bits, coordinate(bits, head_dim), seed, stream)
    }

    /// For many seeds: the levels are those of [`coordinate`].
    pub(super) fn with_levels(head_dim: usize, bits: u32, levels: Levels, seed: u64, stream: u64) -> Self {
        Self { bits, levels, rotation: Rotation::haar(seed, stream, head_dim), head_dim }
    }

    /// Codes of a rotated direction, of which the error is left.
    fn encode_direction(&self, z: &mut [f32], codes: &mut BitSink<'_>) {
        for z in z {
            let code = self.levels.nearest(*z);
            codes.put(code, self.bits);
            *z -= self.levels.level(code);
        }
    }

    fn decode_direction(&self, norm: f32, codes: &mut BitSource<'_>, out: &mut [f32]) {
        out.iter_mut().for_each(|z| *z = norm * self.levels.level(codes.take(self.bits)));
    }
}

impl FixedRate for TurboQuant {
    fn name(&self) -> String {
        format!("turboquant@{}", self.bits)
    }

    fn head_dim(&self) -> usize {
        self.head_dim
    }

    fn layout(&self) -> Layout {
        Layout { n_scales: 1, code_bits: self.head_dim * self.bits as usize }
    }

    fn encode(&self, x: &mut [f32], scales: &mut [f16], codes: &mut BitSink<'_>) {
        scales[0] = half(normalize(x));
        self.rotation.forward(x);
        self.encode_direction(x, codes);
    }

    fn decode(&self, scales: &[f16], codes: &mut BitSource<'_>, out: &mut [f32]) {
        self.decode_direction(scales[0].to_f32(), codes, out);
    }

    fn enter_frame(&self, x: &mut [f32]) {
        self.rotation.forward(x);
    }

    fn leave_frame(&self, x: &mut [f32]) {
        self.rotation.inverse(x);
    }
}

/// The variant for inner products: [`TurboQuant`] with one bit less, and the signs of a square Gaussian sketch of what it leaves, with
/// the norm of that as fp16. Over seeds the estimate of any inner product is unbiased, up to the rounding of the two norms.
///
/// With r the error of the rotated direction z and γ its norm, the direction is read as ẑ + γ √(π/2) / d · Sᵀ sign(S r). With 1 bit
/// there is nothing but the sketch.
///
/// Source: as for [`TurboQuant`], algorithm 2.
#[derive(Debug)]
pub(crate) struct TurboQuantProduct {
    first: TurboQuant,
    sketch: Sketch,
}

impl TurboQuantProduct {
    pub(crate) fn new(head_dim: usize, bits: u32, seed: u64, stream: u64) -> Self {
        Self::over(TurboQuant::new(head_dim, bits - 1, seed, stream), seed, stream)
    }

    /// A sketch of what `first` leaves.
    pub(super) fn over(first: TurboQuant, seed: u64, stream: u64) -> Self {
        let sketch = Sketch::new(first.head_dim, first.head_dim, seed, stream | SKETCH);
        Self { first, sketch }
    }
}

/// Marks streams of sketches, which are not those of rotations.
const SKETCH: u64 = 1 << 32;

impl FixedRate for TurboQuantProduct {
    fn name(&self) -> String {
        format!("turboquant-prod@{}", self.first.bits + 1)
    }

    fn head_dim(&self) -> usize {
        self.first.head_dim
    }

    fn layout(&self) -> Layout {
        Layout { n_scales: 2, code_bits: self.first.layout().code_bits + self.sketch.rows() }
    }

    fn encode(&self, x: &mut [f32], scales: &mut [f16], codes: &mut BitSink<'_>) {
        self.first.encode(x, scales, codes);
        // A vector of zeros has no direction, and its levels no error that would matter.
        scales[1] = half(norm(x));
        self.sketch.encode(x, codes);
    }

    fn decode(&self, scales: &[f16], codes: &mut BitSource<'_>, out: &mut [f32]) {
        let norm = scales[0].to_f32();
        let mut first = vec![0.0; out.len()];
        self.first.decode_direction(norm, codes, &mut first);
        self.sketch.decode(norm * scales[1].to_f32(), codes, out);
        out.iter_mut().zip(first).for_each(|(out, first)| *out += first);
    }

    fn enter_frame(&self, x: &mut [f32]) {
        self.first.enter_frame(x);
    }

    fn leave_frame(&self, x: &mut [f32]) {
        self.first.leave_frame(x);
    }
}
