//! AVX2 and AVX-512.

use core::arch::x86_64::*;

use super::{DecodeTables, DecodeValues, INDEX_BITS, LANES, METRIC_CAP, StepLane, StepShape, scalar};

/// Proof that this machine has AVX2: only [`detect`](Self::detect) makes a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Avx2(());

/// Proof that this machine has AVX-512 F, BW and VNNI, and what [`Avx2`] has: only [`detect`](Self::detect) makes a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Avx512(());

impl Avx2 {
    pub(super) fn detect() -> Option<Self> {
        #[cfg(feature = "std")]
        let found = std::is_x86_feature_detected!("avx2");
        #[cfg(not(feature = "std"))]
        let found = cfg!(target_feature = "avx2");
        found.then_some(Self(()))
    }

    pub(super) fn step<const R: usize>(
        self,
        shape: StepShape,
        pairs: &[u32],
        base: &[i32],
        lanes: &mut [StepLane<'_>; R],
    ) -> [i32; R] {
        // SAFETY: `self` proves that this machine has AVX2; `super::step` checked the lengths.
        unsafe { step_avx2(shape, pairs, base, lanes) }
    }

    pub(super) fn decode(self, tables: &DecodeTables, words: &[u32], out: &mut [f32]) {
        // SAFETY: `self` proves that this machine has AVX2; `super::decode` checked that the words hold all steps.
        unsafe { decode_avx2(tables, words, out) }
    }
}

impl Avx512 {
    pub(super) fn detect() -> Option<Self> {
        #[cfg(feature = "std")]
        let found = std::is_x86_feature_detected!("avx512f")
            && std::is_x86_feature_detected!("avx512bw")
            && std::is_x86_feature_detected!("avx512vnni");
        #[cfg(not(feature = "std"))]
        let found = cfg!(target_feature = "avx512f")
            && cfg!(target_feature = "avx512bw")
            && cfg!(target_feature = "avx512vnni");
        (found && Avx2::detect().is_some()).then_some(Self(()))
    }

    pub(super) fn avx2(self) -> Avx2 {
        // `detect` asked for it.
        Avx2(())
    }

    pub(super) fn step<const R: usize>(
        self,
        shape: StepShape,
        pairs: &[u32],
        base: &[i32],
        lanes: &mut [StepLane<'_>; R],
    ) -> [i32; R] {
        // SAFETY: `self` proves that this machine has AVX-512 F, BW and VNNI; `super::step` checked the lengths.
        unsafe { step_avx512(shape, pairs, base, lanes) }
    }
}

/// # Safety
/// The machine has AVX-512 F, BW and VNNI, and all lengths are those that `super::step` checks.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn step_avx512<const R: usize>(
    shape: StepShape,
    pairs: &[u32],
    base: &[i32],
    lanes: &mut [StepLane<'_>; R],
) -> [i32; R] {
    let ways = shape.ways();
    let (way_shift, stride) = shape.way_shift_and_stride();
    let way_mask = _mm512_set1_epi32(ways as i32 - 1);
    let cap = _mm512_set1_epi32(METRIC_CAP);
    let targets: [__m512i; R] = core::array::from_fn(|r| _mm512_set1_epi32(lanes[r].target as i32));
    let biases: [__m512i; R] = core::array::from_fn(|r| _mm512_set1_epi32(lanes[r].bias));
    let before: [*const i32; R] = core::array::from_fn(|r| lanes[r].before.as_ptr());
    let mut least = [_mm512_set1_epi32(i32::MAX); R];
    let mut at = 0;
    for first in (0..shape.suffixes()).step_by(LANES) {
        let low = first >> shape.step_bits;
        let mut best = [_mm512_set1_epi32(i32::MAX); R];
        for way in 0..ways {
            // SAFETY: `at` stays below the number of states, which is the length of both tables.
            let (pair, base) = unsafe {
                (
                    _mm512_loadu_si512(pairs.as_ptr().add(at).cast::<__m512i>()),
                    _mm512_loadu_si512(base.as_ptr().add(at).cast::<__m512i>()),
                )
            };
            at += LANES;
            let from = (way >> way_shift) * stride + low;
            for r in 0..R {
                // SAFETY: `from` is the place of a suffix, and there is a metric at each.
                let metric = _mm512_set1_epi32(unsafe { *before[r].add(from) });
                let metric = _mm512_dpwssd_epi32(_mm512_add_epi32(base, metric), pair, targets[r]);
                best[r] = _mm512_min_epi32(best[r], metric);
            }
        }
        let place = shape.place(first);
        for r in 0..R {
            let metric = _mm512_sub_epi32(_mm512_andnot_si512(way_mask, best[r]), biases[r]);
            let metric = _mm512_min_epi32(metric, cap);
            least[r] = _mm512_min_epi32(least[r], metric);
            let way = _mm512_cvtepi32_epi8(_mm512_and_si512(way_mask, best[r]));
            // SAFETY: a block of 16 suffixes lies within `after` and `ways`.
            unsafe {
                _mm512_storeu_si512(lanes[r].after.as_mut_ptr().add(place).cast::<__m512i>(), metric);
                _mm_storeu_si128(lanes[r].ways.as_mut_ptr().add(first).cast::<__m128i>(), way);
            }
        }
    }
    core::array::from_fn(|r| _mm512_reduce_min_epi32(least[r]))
}

/// # Safety
/// The machine has AVX2, and all lengths are those that `super::step` checks.
#[target_feature(enable = "avx2")]
unsafe fn step_avx2<const R: usize>(
    shape: StepShape,
    pairs: &[u32],
    base: &[i32],
    lanes: &mut [StepLane<'_>; R],
) -> [i32; R] {
    let ways = shape.ways();
    let (way_shift, stride) = shape.way_shift_and_stride();
    let way_mask = _mm256_set1_epi32(ways as i32 - 1);
    let cap = _mm256_set1_epi32(METRIC_CAP);
    let targets: [__m256i; R] = core::array::from_fn(|r| _mm256_set1_epi32(lanes[r].target as i32));
    let biases: [__m256i; R] = core::array::from_fn(|r| _mm256_set1_epi32(lanes[r].bias));
    let before: [*const i32; R] = core::array::from_fn(|r| lanes[r].before.as_ptr());
    let mut least = [_mm256_set1_epi32(i32::MAX); R];
    for first in (0..shape.suffixes()).step_by(LANES / 2) {
        let low = first >> shape.step_bits;
        let mut best = [_mm256_set1_epi32(i32::MAX); R];
        let mut at = first / LANES * LANES * ways + first % LANES;
        for way in 0..ways {
            // SAFETY: `at` stays below the number of states, which is the length of both tables.
            let (pair, base) = unsafe {
                (
                    _mm256_loadu_si256(pairs.as_ptr().add(at).cast::<__m256i>()),
                    _mm256_loadu_si256(base.as_ptr().add(at).cast::<__m256i>()),
                )
            };
            at += LANES;
            let from = (way >> way_shift) * stride + low;
            for r in 0..R {
                // SAFETY: `from` is the place of a suffix, and there is a metric at each.
                let metric = _mm256_set1_epi32(unsafe { *before[r].add(from) });
                let dot = _mm256_madd_epi16(pair, targets[r]);
                best[r] = _mm256_min_epi32(best[r], _mm256_add_epi32(_mm256_add_epi32(base, metric), dot));
            }
        }
        let place = shape.place(first);
        for r in 0..R {
            let metric = _mm256_sub_epi32(_mm256_andnot_si256(way_mask, best[r]), biases[r]);
            let metric = _mm256_min_epi32(metric, cap);
            least[r] = _mm256_min_epi32(least[r], metric);
            let way = _mm256_and_si256(way_mask, best[r]);
            let way = _mm_packs_epi32(_mm256_castsi256_si128(way), _mm256_extracti128_si256::<1>(way));
            let way = _mm_packus_epi16(way, way);
            // SAFETY: a block of 8 suffixes lies within `after` and `ways`.
            unsafe {
                _mm256_storeu_si256(lanes[r].after.as_mut_ptr().add(place).cast::<__m256i>(), metric);
                _mm_storel_epi64(lanes[r].ways.as_mut_ptr().add(first).cast::<__m128i>(), way);
            }
        }
    }
    core::array::from_fn(|r| {
        let half = _mm_min_epi32(_mm256_castsi256_si128(least[r]), _mm256_extracti128_si256::<1>(least[r]));
        let quarter = _mm_min_epi32(half, _mm_shuffle_epi32::<0b01_00_11_10>(half));
        _mm_cvtsi128_si32(_mm_min_epi32(quarter, _mm_shuffle_epi32::<0b10_11_00_01>(quarter)))
    })
}

/// # Safety
/// The machine has AVX2, the words hold all steps of `out`, and their bits are counted in 31 bits.
#[target_feature(enable = "avx2")]
unsafe fn decode_avx2(tables: &DecodeTables, words: &[u32], out: &mut [f32]) {
    const STEPS: usize = 8;
    let v = if matches!(tables.values, DecodeValues::Single(_)) { 1 } else { 2 };
    // The windows of the first steps reach over the seam; from bit 33 on they lie within two neighbouring words, and
    // eight steps have at least 32 bits.
    let (head, body) = out.split_at_mut(out.len().min(STEPS * v));
    scalar::decode(tables, words, 0, head);
    let step_bits = tables.step_bits as i32;
    let lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    // Index of the last bit of each step.
    let mut last = _mm256_add_epi32(
        _mm256_mullo_epi32(lane, _mm256_set1_epi32(step_bits)),
        _mm256_set1_epi32((STEPS as i32 + 1) * step_bits - 1),
    );
    let advance = _mm256_set1_epi32(STEPS as i32 * step_bits);
    let multipliers = tables.multipliers.map(|multiplier| _mm256_set1_epi32(multiplier as i32));
    let all = _mm256_set1_epi32(31);
    let n_groups = body.len() / (STEPS * v);
    let mut groups = body.chunks_exact_mut(STEPS * v);
    for out in groups.by_ref() {
        let word = _mm256_srli_epi32::<5>(last);
        let right = _mm256_sub_epi32(all, _mm256_and_si256(last, all));
        // SAFETY: the last bits of all steps of `out` are bits of `words`, and those of these groups are at least 32, so
        // that the word before is one too.
        let (newer, older) = unsafe {
            let base = words.as_ptr().cast::<i32>();
            (
                _mm256_i32gather_epi32::<4>(base, word),
                _mm256_i32gather_epi32::<4>(base, _mm256_sub_epi32(word, _mm256_set1_epi32(1))),
            )
        };
        // A shift by 32 gives zero.
        let left = _mm256_sub_epi32(_mm256_set1_epi32(32), right);
        let window = _mm256_or_si256(_mm256_srlv_epi32(newer, right), _mm256_sllv_epi32(older, left));
        let index =
            |i: usize| _mm256_srli_epi32::<{ 32 - INDEX_BITS as i32 }>(_mm256_mullo_epi32(window, multipliers[i]));
        // SAFETY: indices have ten bits and tables 1024 entries; `out` takes the weights of eight steps.
        unsafe {
            let to = out.as_mut_ptr();
            match &tables.values {
                DecodeValues::Single(values) => {
                    _mm256_storeu_ps(to, _mm256_i32gather_ps::<4>(values.as_ptr(), index(0)));
                }
                DecodeValues::Double(values) => {
                    let first = _mm256_i32gather_ps::<4>(values.as_ptr(), index(0));
                    let second = _mm256_i32gather_ps::<4>(values.as_ptr(), index(1));
                    let (low, high) = (_mm256_unpacklo_ps(first, second), _mm256_unpackhi_ps(first, second));
                    _mm256_storeu_ps(to, _mm256_permute2f128_ps::<0x20>(low, high));
                    _mm256_storeu_ps(to.add(8), _mm256_permute2f128_ps::<0x31>(low, high));
                }
                DecodeValues::Pairs(values) => {
                    let (index, base) = (index(0), values.as_ptr().cast::<f64>());
                    let low = _mm256_i32gather_pd::<8>(base, _mm256_castsi256_si128(index));
                    let high = _mm256_i32gather_pd::<8>(base, _mm256_extracti128_si256::<1>(index));
                    _mm256_storeu_ps(to, _mm256_castpd_ps(low));
                    _mm256_storeu_ps(to.add(8), _mm256_castpd_ps(high));
                }
            }
        }
        last = _mm256_add_epi32(last, advance);
    }
    scalar::decode(tables, words, (n_groups + 1) * STEPS, groups.into_remainder());
}
