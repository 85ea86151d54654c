//! The portable path: three plain loops per tile.

use crate::fwht::fwht_scalar;
use crate::plan::TileRun;
use crate::signs::apply_from;

pub(super) fn rht_forward(runs: &[TileRun], words: &[u32], row: &mut [f32]) {
    for_each_tile(runs, row, |start, scale, tile| forward_tile(words, start, scale, tile));
}

pub(super) fn rht_inverse(runs: &[TileRun], words: &[u32], row: &mut [f32]) {
    for_each_tile(runs, row, |start, scale, tile| inverse_tile(words, start, scale, tile));
}

/// The tile that starts at column `start` of its row.
pub(super) fn forward_tile(words: &[u32], start: usize, scale: f32, tile: &mut [f32]) {
    apply_from(words, start, tile);
    fwht_scalar(tile);
    tile.iter_mut().for_each(|x| *x *= scale);
}

/// The tile that starts at column `start` of its row.
pub(super) fn inverse_tile(words: &[u32], start: usize, scale: f32, tile: &mut [f32]) {
    fwht_scalar(tile);
    tile.iter_mut().for_each(|x| *x *= scale);
    apply_from(words, start, tile);
}

fn for_each_tile(runs: &[TileRun], row: &mut [f32], mut f: impl FnMut(usize, f32, &mut [f32])) {
    let mut start = 0;
    for run in runs {
        let (tile, scale) = (run.tile as usize, run.scale());
        let end = start + tile * run.count as usize;
        for x in row[start..end].chunks_exact_mut(tile) {
            f(start, scale, x);
            start += tile;
        }
    }
}
