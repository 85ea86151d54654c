//! The exact second moments against Monte Carlo: the mean squared error of the nearest point over one period.

use gosset_lattice::{A2, D4, E8, Lattice, Z};

/// Tolerance on the normalized second moment. With 4 M scalars the standard error is below 4e-5 for each lattice.
const TOLERANCE: f64 = 1e-4;
const N_SCALARS: usize = 4_000_000;
const SEED: u64 = 0x5eed;

/// SplitMix64, mapped to [0, 1).
struct Uniform(u64);

impl Uniform {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 40) as f64 / (1u64 << 24) as f64
    }
}

/// E‖x − Q(x)‖² / (N·V^(2/N)) for x uniform on the box `period`, a union of cells of a sublattice.
fn monte_carlo_moment<const N: usize, L: Lattice<N>>(period: [f64; N]) -> f64 {
    let mut uniform = Uniform(SEED);
    let n_blocks = N_SCALARS / N;
    let mut sum = 0.0;
    for _ in 0..n_blocks {
        let x = period.map(|p| (p * uniform.next()) as f32);
        let y = L::embed(&L::nearest_point(&x));
        sum += x.iter().zip(&y).map(|(x, y)| f64::from(x - y).powi(2)).sum::<f64>();
    }
    sum / (n_blocks * N) as f64 / L::CELL_VOLUME.powf(2.0 / N as f64)
}

fn check<const N: usize, L: Lattice<N>>(period: [f64; N]) {
    let moment = monte_carlo_moment::<N, L>(period);
    let exact = L::SECOND_MOMENT;
    assert!((moment - exact).abs() < TOLERANCE, "{}: {moment} by Monte Carlo (seed {SEED:#x}), {exact} exact", L::NAME);
}

#[test]
fn second_moment_of_z() {
    check::<1, Z>([1.0]);
}

#[test]
fn second_moment_of_a2() {
    check::<2, A2>([12.0f64.sqrt(), 2.0]);
}

#[test]
fn second_moment_of_d4() {
    check::<4, D4>([4.0; 4]);
}

#[test]
fn second_moment_of_e8() {
    check::<8, E8>([4.0; 8]);
}
