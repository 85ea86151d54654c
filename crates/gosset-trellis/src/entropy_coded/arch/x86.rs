//! AVX2.

use core::arch::x86_64::*;

use crate::entropy_coded::viterbi::{Forward, Simd, forward, metrics};
use crate::entropy_coded::{LANES, Quantizer};

/// Proof that this machine has AVX2: only [`detect`](Self::detect) makes a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::entropy_coded) struct Avx2(());

impl Avx2 {
    pub(super) fn detect() -> Option<Self> {
        #[cfg(feature = "std")]
        let found = std::is_x86_feature_detected!("avx2");
        #[cfg(not(feature = "std"))]
        let found = cfg!(target_feature = "avx2");
        found.then_some(Self(()))
    }

    pub(super) fn forward<const N: usize>(self, job: &Forward<'_>, decisions: &mut [u8]) -> [u32; LANES] {
        #[target_feature(enable = "avx2")]
        fn entry<const N: usize>(simd: Avx2, job: &Forward<'_>, decisions: &mut [u8]) -> [u32; LANES] {
            forward::<_, N>(simd, job, decisions)
        }
        // SAFETY: `self` proves that this machine has AVX2.
        unsafe { entry::<N>(self, job, decisions) }
    }
}

impl Simd for Avx2 {
    type Register = __m256;

    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> __m256 {
        // SAFETY: `self` proves AVX2; the reference covers the eight floats that are read, of any alignment.
        unsafe { _mm256_loadu_ps(x.as_ptr()) }
    }

    #[inline(always)]
    fn store(self, x: &mut [f32; LANES], v: __m256) {
        // SAFETY: `self` proves AVX2; the reference covers the eight floats that are written, of any alignment.
        unsafe { _mm256_storeu_ps(x.as_mut_ptr(), v) }
    }

    #[inline(always)]
    fn add(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: `self` proves AVX2.
        unsafe { _mm256_add_ps(a, b) }
    }

    #[inline(always)]
    fn min(self, a: __m256, b: __m256) -> (__m256, u8) {
        // SAFETY: `self` proves AVX2. The costs are numbers, so the minimum is the one that comparison finds.
        unsafe {
            let bits = _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_LT_OQ>(b, a));
            (_mm256_min_ps(b, a), bits as u8)
        }
    }

    #[inline(always)]
    fn metrics(self, quantizer: &Quantizer, x: &[f32; LANES]) -> [[f32; LANES]; 4] {
        metrics(quantizer, x)
    }
}
