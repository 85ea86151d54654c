//! NEON: a register of eight is a pair of four.

use core::arch::aarch64::*;

use super::tile::{self, LANES, Simd};
use crate::plan::TileRun;

/// Proof that this machine has NEON: only [`detect`](Self::detect) makes a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Neon(());

impl Neon {
    /// NEON is part of every ordinary aarch64 target, so it is known when the crate is built.
    pub(super) fn detect() -> Option<Self> {
        cfg!(target_feature = "neon").then_some(Self(()))
    }

    pub(super) fn fwht(self, x: &mut [f32]) {
        tile::fwht(self, x);
    }

    pub(super) fn rht_forward(self, runs: &[TileRun], words: &[u32], row: &mut [f32]) {
        tile::rht_forward(self, runs, words, row);
    }

    pub(super) fn rht_inverse(self, runs: &[TileRun], words: &[u32], row: &mut [f32]) {
        tile::rht_inverse(self, runs, words, row);
    }
}

const SIGN_BIT: u32 = 1 << 31;

impl Simd for Neon {
    type Register = [float32x4_t; 2];

    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> Self::Register {
        // SAFETY: `self` proves NEON; the reference covers the eight floats that are read.
        unsafe { [vld1q_f32(x.as_ptr()), vld1q_f32(x.as_ptr().add(4))] }
    }

    #[inline(always)]
    fn store(self, x: &mut [f32; LANES], v: Self::Register) {
        // SAFETY: `self` proves NEON; the reference covers the eight floats that are written.
        unsafe {
            vst1q_f32(x.as_mut_ptr(), v[0]);
            vst1q_f32(x.as_mut_ptr().add(4), v[1]);
        }
    }

    #[inline(always)]
    fn butterfly(self, a: Self::Register, b: Self::Register) -> (Self::Register, Self::Register) {
        // SAFETY: `self` proves NEON.
        unsafe { ([vaddq_f32(a[0], b[0]), vaddq_f32(a[1], b[1])], [vsubq_f32(a[0], b[0]), vsubq_f32(a[1], b[1])]) }
    }

    /// Strides 1 and 2 pair lanes of one half: `b + a` in the lower lane, `a + (-b)` in the upper, which IEEE 754 makes
    /// the same as `a + b` and `a - b`. Stride 4 pairs the halves.
    #[inline(always)]
    fn within(self, v: Self::Register) -> Self::Register {
        let [a, b] = v.map(|v| {
            let odd = flip_mask(v, [0, SIGN_BIT, 0, SIGN_BIT]);
            // SAFETY: `self` proves NEON.
            let v = unsafe { vaddq_f32(vrev64q_f32(v), odd) };
            let odd_pair = flip_mask(v, [0, 0, SIGN_BIT, SIGN_BIT]);
            // SAFETY: `self` proves NEON.
            unsafe { vaddq_f32(vextq_f32::<2>(v, v), odd_pair) }
        });
        // SAFETY: `self` proves NEON.
        unsafe { [vaddq_f32(a, b), vsubq_f32(a, b)] }
    }

    #[inline(always)]
    fn scale(self, v: Self::Register, factor: f32) -> Self::Register {
        // SAFETY: `self` proves NEON.
        v.map(|v| unsafe { vmulq_n_f32(v, factor) })
    }

    #[inline(always)]
    fn flip(self, v: Self::Register, bits: u32) -> Self::Register {
        let masks = |shifts: [u32; 4]| shifts.map(|shift| (bits << shift) & SIGN_BIT);
        [flip_mask(v[0], masks([31, 30, 29, 28])), flip_mask(v[1], masks([27, 26, 25, 24]))]
    }
}

/// XOR of the bits of `v` with `mask`.
#[inline(always)]
fn flip_mask(v: float32x4_t, mask: [u32; 4]) -> float32x4_t {
    // SAFETY: only called where a `Neon` exists; the array covers the four words that are read.
    unsafe { vreinterpretq_f32_u32(veorq_u32(vreinterpretq_u32_f32(v), vld1q_u32(mask.as_ptr()))) }
}
