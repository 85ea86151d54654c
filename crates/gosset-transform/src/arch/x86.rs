//! AVX2.

use core::arch::x86_64::*;

use super::Kernel;
use super::tile::{self, LANES, Simd};
use crate::plan::TileRun;

/// Proof that this machine has AVX2: only [`detect`](Self::detect) makes a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Avx2(());

impl Avx2 {
    pub(super) fn detect() -> Option<Self> {
        #[cfg(feature = "std")]
        let found = std::is_x86_feature_detected!("avx2");
        #[cfg(not(feature = "std"))]
        let found = cfg!(target_feature = "avx2");
        found.then_some(Self(()))
    }

    pub(super) fn vectorize<K: Kernel>(self, kernel: K) -> K::Output {
        #[target_feature(enable = "avx2")]
        fn entry<K: Kernel>(kernel: K) -> K::Output {
            kernel.run()
        }
        // SAFETY: `self` proves that this machine has AVX2.
        unsafe { entry(kernel) }
    }

    pub(super) fn fwht(self, x: &mut [f32]) {
        #[target_feature(enable = "avx2")]
        fn entry(simd: Avx2, x: &mut [f32]) {
            tile::fwht(simd, x);
        }
        // SAFETY: `self` proves that this machine has AVX2.
        unsafe { entry(self, x) }
    }

    pub(super) fn rht_forward(self, runs: &[TileRun], words: &[u32], row: &mut [f32]) {
        #[target_feature(enable = "avx2")]
        fn entry(simd: Avx2, runs: &[TileRun], words: &[u32], row: &mut [f32]) {
            tile::rht_forward(simd, runs, words, row);
        }
        // SAFETY: `self` proves that this machine has AVX2.
        unsafe { entry(self, runs, words, row) }
    }

    pub(super) fn rht_inverse(self, runs: &[TileRun], words: &[u32], row: &mut [f32]) {
        #[target_feature(enable = "avx2")]
        fn entry(simd: Avx2, runs: &[TileRun], words: &[u32], row: &mut [f32]) {
            tile::rht_inverse(simd, runs, words, row);
        }
        // SAFETY: `self` proves that this machine has AVX2.
        unsafe { entry(self, runs, words, row) }
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
    fn butterfly(self, a: __m256, b: __m256) -> (__m256, __m256) {
        // SAFETY: `self` proves AVX2.
        unsafe { (_mm256_add_ps(a, b), _mm256_sub_ps(a, b)) }
    }

    /// The partner of each lane is in the same register: `b + a` in the lower lane of a pair, `a + (-b)` in the upper,
    /// which IEEE 754 makes the same as `a + b` and `a - b`.
    #[inline(always)]
    fn within(self, v: __m256) -> __m256 {
        // SAFETY: `self` proves AVX2.
        unsafe {
            let odd = _mm256_setr_ps(0.0, -0.0, 0.0, -0.0, 0.0, -0.0, 0.0, -0.0);
            let v = _mm256_add_ps(_mm256_permute_ps::<0b10_11_00_01>(v), _mm256_xor_ps(v, odd));
            let odd_pairs = _mm256_setr_ps(0.0, 0.0, -0.0, -0.0, 0.0, 0.0, -0.0, -0.0);
            let v = _mm256_add_ps(_mm256_permute_ps::<0b01_00_11_10>(v), _mm256_xor_ps(v, odd_pairs));
            let upper = _mm256_setr_ps(0.0, 0.0, 0.0, 0.0, -0.0, -0.0, -0.0, -0.0);
            _mm256_add_ps(_mm256_permute2f128_ps::<0x01>(v, v), _mm256_xor_ps(v, upper))
        }
    }

    #[inline(always)]
    fn scale(self, v: __m256, factor: f32) -> __m256 {
        // SAFETY: `self` proves AVX2.
        unsafe { _mm256_mul_ps(v, _mm256_set1_ps(factor)) }
    }

    #[inline(always)]
    fn flip(self, v: __m256, bits: u32) -> __m256 {
        // SAFETY: `self` proves AVX2.
        unsafe {
            let to_sign = _mm256_setr_epi32(31, 30, 29, 28, 27, 26, 25, 24);
            let moved = _mm256_sllv_epi32(_mm256_set1_epi32(bits as i32), to_sign);
            _mm256_xor_ps(v, _mm256_and_ps(_mm256_castsi256_ps(moved), _mm256_set1_ps(-0.0)))
        }
    }
}
