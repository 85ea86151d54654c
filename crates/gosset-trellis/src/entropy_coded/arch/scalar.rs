//! Plain Rust.

use crate::entropy_coded::viterbi::Simd;
use crate::entropy_coded::{LANES, Quantizer};

/// Eight lanes in an array.
#[derive(Clone, Copy)]
pub(super) struct Scalar;

impl Simd for Scalar {
    type Register = [f32; LANES];

    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> [f32; LANES] {
        *x
    }

    #[inline(always)]
    fn store(self, x: &mut [f32; LANES], v: [f32; LANES]) {
        *x = v;
    }

    #[inline(always)]
    fn add(self, a: [f32; LANES], b: [f32; LANES]) -> [f32; LANES] {
        core::array::from_fn(|i| a[i] + b[i])
    }

    #[inline(always)]
    fn min(self, a: [f32; LANES], b: [f32; LANES]) -> ([f32; LANES], u8) {
        let least = core::array::from_fn(|i| if b[i] < a[i] { b[i] } else { a[i] });
        let bits = (0..LANES).fold(0, |bits, i| bits | u8::from(b[i] < a[i]) << i);
        (least, bits)
    }

    #[inline(always)]
    fn metrics(self, quantizer: &Quantizer, x: &[f32; LANES]) -> [[f32; LANES]; 4] {
        [0, 1, 2, 3].map(|subset| x.map(|x| quantizer.best(x, subset >> 1, subset & 1).0))
    }
}
