//! Nearest points, stripping and unstripping of each lattice, in weights per second.

use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use gosset_lattice::{A2, BitStrip, D4, E8, Z};
use rand::{Rng, SeedableRng, rngs::StdRng};
use rand_distr::StandardNormal;

/// Weights per iteration: enough that no branch predictor learns them by heart, few enough for the second-level cache.
const N_WEIGHTS: usize = 131_072;

/// Gaussian weights at a scale where the stripped symbols take about 3 bits each.
fn weights() -> Vec<f32> {
    let mut rng = StdRng::seed_from_u64(1);
    (0..N_WEIGHTS).map(|_| 3.59 * rng.sample::<f32, _>(StandardNormal)).collect()
}

fn points<const N: usize, L: BitStrip<N>>() -> Vec<i32> {
    let mut y = vec![0; N_WEIGHTS];
    L::nearest_points(&weights(), &mut y);
    y
}

fn bench_nearest_points<const N: usize, L: BitStrip<N>>(bencher: Bencher) {
    let x = weights();
    let mut y = vec![0; N_WEIGHTS];
    bencher.counter(ItemsCount::new(N_WEIGHTS)).bench_local(|| L::nearest_points(black_box(&x), black_box(&mut y)));
}

fn bench_strip<const N: usize, L: BitStrip<N>>(bencher: Bencher) {
    let y = points::<N, L>();
    let mut symbols = vec![0; N_WEIGHTS];
    bencher.counter(ItemsCount::new(N_WEIGHTS)).bench_local(|| {
        for (y, s) in black_box(&y).as_chunks::<N>().0.iter().zip(symbols.as_chunks_mut::<N>().0) {
            *s = L::strip(*y);
        }
        black_box(&mut symbols);
    });
}

fn bench_unstrip<const N: usize, L: BitStrip<N>>(bencher: Bencher) {
    let symbols: Vec<u32> = points::<N, L>().as_chunks::<N>().0.iter().flat_map(|y| L::strip(*y)).collect();
    let mut y = vec![0; N_WEIGHTS];
    bencher.counter(ItemsCount::new(N_WEIGHTS)).bench_local(|| {
        for (s, y) in black_box(&symbols).as_chunks::<N>().0.iter().zip(y.as_chunks_mut::<N>().0) {
            *y = L::unstrip(*s);
        }
        black_box(&mut y);
    });
}

macro_rules! per_lattice {
    ($($module:ident: $lattice:ty, $n:literal;)*) => {$(
        mod $module {
            use super::*;

            #[divan::bench]
            fn nearest_points(bencher: Bencher) {
                bench_nearest_points::<$n, $lattice>(bencher);
            }

            #[divan::bench]
            fn strip(bencher: Bencher) {
                bench_strip::<$n, $lattice>(bencher);
            }

            #[divan::bench]
            fn unstrip(bencher: Bencher) {
                bench_unstrip::<$n, $lattice>(bencher);
            }
        }
    )*};
}

per_lattice! {
    z: Z, 1;
    a2: A2, 2;
    d4: D4, 4;
    e8: E8, 8;
}
