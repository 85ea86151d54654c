//! Coefficients per second of the Walsh-Hadamard transform and the RHT, on one core, in the L1 cache.

use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use gosset_transform::{Backend, Rht, TilePlan, fwht, fwht_scalar};

/// Columns of a row: 16 KiB, a common width of real models.
const WIDTH: usize = 4096;

const TILES: [usize; 3] = [32, 128, 1024];

fn row() -> Vec<f32> {
    (0..WIDTH).map(|j| ((j * 37) % 101) as f32 / 101.0 - 0.5).collect()
}

/// Runs `transform` on copies of one row. Unnormalised transforms in place would reach infinity in a few rounds, so
/// the row is copied back each time; the copy is part of the figure.
fn on_rows(bencher: Bencher<'_, '_>, transform: impl Fn(&mut [f32])) {
    let (source, mut row) = (row(), row());
    bencher.counter(ItemsCount::new(WIDTH)).bench_local(|| {
        row.copy_from_slice(black_box(&source));
        transform(black_box(&mut row));
    });
}

#[divan::bench(consts = TILES)]
fn fwht_tiles<const TILE: usize>(bencher: Bencher<'_, '_>) {
    on_rows(bencher, |row| row.chunks_exact_mut(TILE).for_each(fwht));
}

#[divan::bench(consts = TILES)]
fn fwht_scalar_tiles<const TILE: usize>(bencher: Bencher<'_, '_>) {
    on_rows(bencher, |row| row.chunks_exact_mut(TILE).for_each(fwht_scalar));
}

fn rht(tile: usize, backend: Backend) -> Rht {
    let plan = TilePlan::new(WIDTH, tile as u32).expect("the tiles of this benchmark are powers of two");
    Rht::with_backend(plan, 0, backend)
}

#[divan::bench(consts = TILES)]
fn rht_forward<const TILE: usize>(bencher: Bencher<'_, '_>) {
    let rht = rht(TILE, Backend::detect());
    on_rows(bencher, |row| rht.forward(row));
}

#[divan::bench(consts = TILES)]
fn rht_inverse<const TILE: usize>(bencher: Bencher<'_, '_>) {
    let rht = rht(TILE, Backend::detect());
    on_rows(bencher, |row| rht.inverse(row));
}

#[divan::bench(consts = TILES)]
fn rht_forward_scalar<const TILE: usize>(bencher: Bencher<'_, '_>) {
    let rht = rht(TILE, Backend::scalar());
    on_rows(bencher, |row| rht.forward(row));
}
