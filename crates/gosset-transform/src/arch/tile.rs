//! The traversal of a tile with vector instructions.
//!
//! Parts of up to 64 coefficients live in eight registers of eight; longer tiles are joined from them by radix-4
//! passes, depth first, so that most passes over a long tile find it in the L1 cache. Signs, scale and butterflies
//! are fused into one walk. Each coefficient goes through the stages in the order of the scalar path.
//!
//! Everything here is inlined into an entry function of the instruction set, which is what lets the compiler use it.

use super::scalar;
use crate::fwht::fwht_scalar;
use crate::plan::TileRun;

/// Coefficients of one register.
pub(super) const LANES: usize = 8;

/// Coefficients of the longest part that is transformed in registers.
const PART: usize = 64;

/// What is fused with the butterflies: nothing.
const PLAIN: u8 = 0;
/// Signs before, scale after.
const FORWARD: u8 = 1;
/// Scale, then signs, after.
const INVERSE: u8 = 2;

/// An instruction set; a value proves that this machine has it.
pub(super) trait Simd: Copy {
    /// Eight f32.
    type Register: Copy;

    fn load(self, x: &[f32; LANES]) -> Self::Register;
    fn store(self, x: &mut [f32; LANES], v: Self::Register);
    /// `(a + b, a - b)`.
    fn butterfly(self, a: Self::Register, b: Self::Register) -> (Self::Register, Self::Register);
    /// The transform of the eight lanes: strides 1, 2 and 4.
    fn within(self, v: Self::Register) -> Self::Register;
    fn scale(self, v: Self::Register, factor: f32) -> Self::Register;
    /// Negates lane `i` iff bit `i` of `bits` is set; bits above the eighth are ignored.
    fn flip(self, v: Self::Register, bits: u32) -> Self::Register;
}

#[inline(always)]
pub(super) fn fwht<S: Simd>(simd: S, x: &mut [f32]) {
    if x.len() < LANES {
        return fwht_scalar(x);
    }
    let tile = x.len();
    tiles::<S, PLAIN>(Fused { simd, words: &[], factor: 1.0 }, x, tile, 0);
}

#[inline(always)]
pub(super) fn rht_forward<S: Simd>(simd: S, runs: &[TileRun], words: &[u32], row: &mut [f32]) {
    rht::<S, FORWARD>(simd, runs, words, row);
}

#[inline(always)]
pub(super) fn rht_inverse<S: Simd>(simd: S, runs: &[TileRun], words: &[u32], row: &mut [f32]) {
    rht::<S, INVERSE>(simd, runs, words, row);
}

#[inline(always)]
fn rht<S: Simd, const MODE: u8>(simd: S, runs: &[TileRun], words: &[u32], row: &mut [f32]) {
    let mut start = 0;
    for run in runs {
        let (tile, factor) = (run.tile as usize, run.scale());
        let end = start + tile * run.count as usize;
        let x = &mut row[start..end];
        if tile >= LANES {
            tiles::<S, MODE>(Fused { simd, words, factor }, x, tile, start);
        } else {
            for (i, x) in x.chunks_exact_mut(tile).enumerate() {
                match MODE {
                    FORWARD => scalar::forward_tile(words, start + i * tile, factor, x),
                    _ => scalar::inverse_tile(words, start + i * tile, factor, x),
                }
            }
        }
        start = end;
    }
}

/// What the walk over a tile applies: butterflies of an instruction set, the signs of the row, and `1/sqrt(h)`.
#[derive(Clone, Copy)]
struct Fused<'a, S> {
    simd: S,
    words: &'a [u32],
    factor: f32,
}

/// Transforms each tile of `x`, which starts at column `start` of its row, a multiple of the tile.
#[inline(always)]
fn tiles<S: Simd, const MODE: u8>(with: Fused<'_, S>, x: &mut [f32], tile: usize, start: usize) {
    for (i, x) in x.chunks_exact_mut(tile).enumerate() {
        let col = start + i * tile;
        let (x, _) = x.as_chunks_mut::<LANES>();
        match tile {
            8 => part::<S, 1, MODE, true>(with, x, col),
            16 => part::<S, 2, MODE, true>(with, x, col),
            32 => part::<S, 4, MODE, true>(with, x, col),
            64 => part::<S, 8, MODE, true>(with, x, col),
            128 => two_parts::<S, MODE, true>(with, x, col),
            _ => long::<S, MODE>(with, x, col),
        }
    }
}

/// A tile of 256 or more.
///
/// Leaves of 64 or 128, whichever leaves a whole number of radix-4 stages, are transformed from left to right; as soon
/// as four neighbours of one level are done, they are joined.
#[inline(always)]
fn long<S: Simd, const MODE: u8>(with: Fused<'_, S>, x: &mut [[f32; LANES]], col: usize) {
    let odd = (x.len() * LANES / PART).ilog2() % 2 == 1;
    let leaf = if odd { 2 * PART / LANES } else { PART / LANES };
    for end in (leaf..=x.len()).step_by(leaf) {
        let (here, at) = (&mut x[end - leaf..end], col + (end - leaf) * LANES);
        if odd {
            two_parts::<S, MODE, false>(with, here, at)
        } else {
            part::<S, 8, MODE, false>(with, here, at)
        }
        let mut span = 4 * leaf;
        while end.is_multiple_of(span) && span < x.len() {
            radix4::<S, MODE, false>(with, &mut x[end - span..end], 0);
            span *= 4;
        }
    }
    radix4::<S, MODE, true>(with, x, col);
}

/// 128 coefficients, a whole tile if `TOP`.
#[inline(always)]
fn two_parts<S: Simd, const MODE: u8, const TOP: bool>(with: Fused<'_, S>, x: &mut [[f32; LANES]], col: usize) {
    let (a, b) = x.split_at_mut(PART / LANES);
    part::<S, 8, MODE, false>(with, a, col);
    part::<S, 8, MODE, false>(with, b, col + PART);
    for (i, (a, b)) in a.iter_mut().zip(b).enumerate() {
        let at = col + i * LANES;
        let (s, d) = with.simd.butterfly(with.simd.load(a), with.simd.load(b));
        with.simd.store(a, finish::<S, MODE, TOP>(with, s, bits_after::<MODE, TOP>(with.words, at)));
        with.simd.store(b, finish::<S, MODE, TOP>(with, d, bits_after::<MODE, TOP>(with.words, at + PART)));
    }
}

/// `N` registers from column `col` on, a whole tile if `TOP`.
#[inline(always)]
fn part<S: Simd, const N: usize, const MODE: u8, const TOP: bool>(
    with: Fused<'_, S>,
    x: &mut [[f32; LANES]],
    col: usize,
) {
    let x: &mut [[f32; LANES]; N] = x.try_into().expect("callers match on the length");
    let signs = if MODE == PLAIN { 0 } else { sign_bits::<N>(with.words, col) };
    let mut v = x.map(|x| with.simd.load(&x));
    for (j, v) in v.iter_mut().enumerate() {
        if MODE == FORWARD {
            *v = with.simd.flip(*v, (signs >> (LANES * j)) as u32);
        }
        *v = with.simd.within(*v);
    }
    let mut stride = 1;
    while stride < N {
        for j in 0..N {
            if j & stride == 0 {
                (v[j], v[j + stride]) = with.simd.butterfly(v[j], v[j + stride]);
            }
        }
        stride *= 2;
    }
    for j in 0..N {
        with.simd.store(&mut x[j], finish::<S, MODE, TOP>(with, v[j], (signs >> (LANES * j)) as u32));
    }
}

/// The stages whose strides are a quarter and a half of `x`, the last of their tile if `TOP`.
#[inline(always)]
fn radix4<S: Simd, const MODE: u8, const TOP: bool>(with: Fused<'_, S>, x: &mut [[f32; LANES]], col: usize) {
    let quarter = x.len() / 4;
    let (ab, cd) = x.split_at_mut(2 * quarter);
    let (a, b) = ab.split_at_mut(quarter);
    let (c, d) = cd.split_at_mut(quarter);
    for (i, (((a, b), c), d)) in a.iter_mut().zip(b).zip(c).zip(d).enumerate() {
        let (p, q) = with.simd.butterfly(with.simd.load(a), with.simd.load(b));
        let (r, s) = with.simd.butterfly(with.simd.load(c), with.simd.load(d));
        let (p, r) = with.simd.butterfly(p, r);
        let (q, s) = with.simd.butterfly(q, s);
        for (k, (x, v)) in [(a, p), (b, q), (c, r), (d, s)].into_iter().enumerate() {
            let at = col + (i + k * quarter) * LANES;
            with.simd.store(x, finish::<S, MODE, TOP>(with, v, bits_after::<MODE, TOP>(with.words, at)));
        }
    }
}

/// Scale and signs at the end of a tile; nothing before that.
#[inline(always)]
fn finish<S: Simd, const MODE: u8, const TOP: bool>(with: Fused<'_, S>, v: S::Register, bits: u32) -> S::Register {
    if MODE == PLAIN || !TOP {
        return v;
    }
    let v = with.simd.scale(v, with.factor);
    if MODE == INVERSE { with.simd.flip(v, bits) } else { v }
}

/// The sign bits of `8 N` columns from `col` on. `col` is a multiple of `8 N`, so fewer than 32 never straddle words.
#[inline(always)]
fn sign_bits<const N: usize>(words: &[u32], col: usize) -> u64 {
    let low = u64::from(words[col / 32] >> (col % 32));
    if N == 8 { low | u64::from(words[col / 32 + 1]) << 32 } else { low }
}

/// The sign bits of the eight columns from `col` on, if they are needed after the last stage.
#[inline(always)]
fn bits_after<const MODE: u8, const TOP: bool>(words: &[u32], col: usize) -> u32 {
    if MODE == INVERSE && TOP { words[col / 32] >> (col % 32) } else { 0 }
}
