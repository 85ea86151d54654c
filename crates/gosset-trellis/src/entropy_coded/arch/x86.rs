//! AVX2.

use core::arch::x86_64::*;

use crate::entropy_coded::quantizer::Lookup;
use crate::entropy_coded::viterbi::{Forward, Simd, forward};
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
    fn metrics(self, quantizer: &Quantizer, x: &[f32; LANES]) -> [__m256; 4] {
        let x = self.load(x);
        let (even, odd) = (quantizer.lookup(0), quantizer.lookup(1));
        [best(self, &even, x, 0, 0), best(self, &even, x, 0, 1), best(self, &odd, x, 1, 0), best(self, &odd, x, 1, 1)]
    }
}

/// Least costs of a subset: the arithmetic of [`Quantizer::best`], whose tables are read by gathers.
#[inline(always)]
fn best(simd: Avx2, lookup: &Lookup<'_>, x: __m256, union: i32, z1: i32) -> __m256 {
    // SAFETY: `simd` proves AVX2.
    unsafe {
        let place = _mm256_sub_ps(x, _mm256_set1_ps((2 * z1 + union) as f32));
        let floor = _mm256_cvttps_epi32(_mm256_floor_ps(_mm256_mul_ps(place, _mm256_set1_ps(0.25))));
        let lower = _mm256_add_epi32(_mm256_slli_epi32::<1>(floor), _mm256_set1_epi32(z1));
        let upper = _mm256_add_epi32(lower, _mm256_set1_epi32(2));
        let (a, b) = (cost_of(simd, lookup, x, union, lower), cost_of(simd, lookup, x, union, upper));
        _mm256_min_ps(b, a)
    }
}

/// Costs of approximating `x` by the points of a union with the given indices.
#[inline(always)]
fn cost_of(_: Avx2, lookup: &Lookup<'_>, x: __m256, union: i32, index: __m256i) -> __m256 {
    let len = 2 * lookup.reach as usize;
    assert!(lookup.reach > 0 && lookup.offsets.len() == len && lookup.costs.len() == len);
    // SAFETY: the first argument proves AVX2. Entries are limited to 0 … 2·reach - 1 before the gathers, which is inside of
    // both tables by the assertion above.
    unsafe {
        let biased = _mm256_add_epi32(index, _mm256_set1_epi32(lookup.bias));
        let class = _mm256_sra_epi32(biased, _mm_cvtsi32_si128(lookup.shift as i32));
        let class = _mm256_max_epi32(class, _mm256_set1_epi32(-lookup.reach));
        let class = _mm256_min_epi32(class, _mm256_set1_epi32(lookup.reach - 1));
        let entry = _mm256_add_epi32(class, _mm256_set1_epi32(lookup.reach));
        let offset = _mm256_i32gather_ps::<4>(lookup.offsets.as_ptr(), entry);
        let cost = _mm256_i32gather_ps::<4>(lookup.costs.as_ptr(), entry);
        let point = _mm256_add_epi32(_mm256_slli_epi32::<1>(index), _mm256_set1_epi32(union));
        let error = _mm256_sub_ps(x, _mm256_add_ps(_mm256_cvtepi32_ps(point), offset));
        _mm256_add_ps(_mm256_mul_ps(error, error), cost)
    }
}
