//! Plain Rust: the oracle of the other backends.

use super::{DecodeTables, DecodeValues, INDEX_BITS, LANES, METRIC_CAP, StepLane, StepShape};

pub(super) fn step<const R: usize>(
    shape: StepShape,
    pairs: &[u32],
    base: &[i32],
    lanes: &mut [StepLane<'_>; R],
) -> [i32; R] {
    let ways = shape.ways();
    let (way_shift, stride) = shape.way_shift_and_stride();
    let way_mask = ways as i32 - 1;
    core::array::from_fn(|r| {
        let lane = &mut lanes[r];
        let target = [lane.target as i16 as i32, (lane.target >> 16) as i16 as i32];
        let mut least = i32::MAX;
        for first in (0..shape.suffixes()).step_by(LANES) {
            let low = first >> shape.step_bits;
            let mut best = [i32::MAX; LANES];
            for way in 0..ways {
                let before = lane.before[(way >> way_shift) * stride + low];
                let at = first * ways + way * LANES;
                for ((best, &pair), &base) in best.iter_mut().zip(&pairs[at..][..LANES]).zip(&base[at..][..LANES]) {
                    let dot = target[0] * (pair as i16 as i32) + target[1] * ((pair >> 16) as i16 as i32);
                    *best = (*best).min(base + before + dot);
                }
            }
            let place = shape.place(first);
            for (i, best) in best.into_iter().enumerate() {
                lane.ways[first + i] = (best & way_mask) as u8;
                let metric = ((best & !way_mask) - lane.bias).min(METRIC_CAP);
                lane.after[place + i] = metric;
                least = least.min(metric);
            }
        }
        least
    })
}

/// Decodes from step `first` on; `out` starts with its first weight.
pub(super) fn decode(tables: &DecodeTables, words: &[u32], first: usize, out: &mut [f32]) {
    let index = |window: u32, i: usize| (window.wrapping_mul(tables.multipliers[i]) >> (32 - INDEX_BITS)) as usize;
    match &tables.values {
        DecodeValues::Single(values) => {
            for (step, out) in out.iter_mut().enumerate() {
                *out = values[index(tables.window(words, first + step), 0)];
            }
        }
        DecodeValues::Double(values) => {
            for (step, out) in out.chunks_mut(2).enumerate() {
                let window = tables.window(words, first + step);
                for (i, out) in out.iter_mut().enumerate() {
                    *out = values[index(window, i)];
                }
            }
        }
        DecodeValues::Pairs(values) => {
            for (step, out) in out.chunks_mut(2).enumerate() {
                let pair = values[index(tables.window(words, first + step), 0)];
                out.copy_from_slice(&pair[..out.len()]);
            }
        }
    }
}
