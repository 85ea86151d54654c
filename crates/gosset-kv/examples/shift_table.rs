//! Trains the table of the shift trellis and prints `src/shift/table.rs`: `cargo run --release -p gosset-kv --example shift_table`.
//!
//! Points start as a lattice of rank 1 in the square, brought to a Gaussian by its quantiles: states that share their first bits, or their last,
//! then have points that are spread evenly. Generators of some thousand random lattices were compared by the distortion at 3 to 8 bits
//! of a step. From there on it is Lloyd's algorithm: strings of Gaussian vectors for each number of bits of a step, then every point goes to
//! the mean of what it stood for, with a gain for each number of bits.
//!
//! The table of this version came from other Gaussian numbers: what this prints differs from it in its digits and not in its distortion, and
//! would be another format.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "the table is the output, distortions the progress")]

#[path = "../src/shift/search.rs"]
mod search;

use gosset_codec::calibrate::gaussian;
use gosset_transform::Backend;
use half::f16;
use search::{Scratch, States, Step, ring};

/// Bits of a state; its index in the table is the state itself.
const STATE_BITS: u32 = 10;
const ENTRIES: usize = 1 << STATE_BITS;
/// Generator of the lattice, over [`ENTRIES`].
const GENERATOR: [usize; 2] = [137, 781];
const D: usize = 64;
/// Vectors of a round and of the test.
const VECTORS: usize = 6000;
const ROUNDS: u64 = 18;
/// What distortions at 0, 1, 2, … bits of a step count, relative to themselves.
const IMPORTANCE: [f64; 11] = [0.0, 0.0, 1.0, 1.0, 2.0, 2.0, 2.0, 1.0, 1.0, 0.5, 0.5];

type Point = [f32; 2];

/// The sum of targets and their number, for one point.
type Sums = [f64; 3];

struct Outcome {
    mse: f64,
    sums: Vec<Sums>,
    /// The gain that suits the points as they were used.
    gain: f64,
}

/// Codes Gaussian vectors with the same bits for every step.
fn code(table: &[Point], bits: u32, gain: f32, x: &[f32]) -> Outcome {
    let states = States::new(STATE_BITS, |state| table[state as usize]);
    let steps = vec![Step { bits, weight: 1.0 }; D / 2];
    let (mut out, mut scratch) = (vec![0; D / 2], Scratch::default());
    let mut sums = vec![Sums::default(); ENTRIES];
    let (mut squares, mut products, mut energy) = (0.0, 0.0, 0.0);
    for x in x.chunks_exact(D) {
        let targets: Vec<f32> = x.iter().map(|x| x / gain).collect();
        ring(Backend::detect(), &states, &steps, &targets, &mut out, &mut scratch);
        for (&state, x) in out.iter().zip(targets.as_chunks::<2>().0) {
            let (point, sums) = (table[state as usize], &mut sums[state as usize]);
            sums[2] += 1.0;
            for i in 0..2 {
                let (x, c) = (f64::from(x[i]), f64::from(point[i]));
                sums[i] += x;
                squares += (x - c) * (x - c);
                products += x * c;
                energy += c * c;
            }
        }
    }
    let mse = squares / x.len() as f64 * f64::from(gain * gain);
    Outcome { mse, sums, gain: products / energy }
}

/// Quantile of a Gaussian, by halving.
fn quantile(p: f64) -> f32 {
    let (mut low, mut high) = (-8.0, 8.0);
    for _ in 0..60 {
        let middle: f64 = 0.5 * (low + high);
        if 0.5 * libm::erfc(-middle * std::f64::consts::FRAC_1_SQRT_2) < p { low = middle } else { high = middle }
    }
    (0.5 * (low + high)) as f32
}

fn main() {
    let coordinate =
        |state: usize, i: usize| quantile(((state * GENERATOR[i] % ENTRIES) as f64 + 0.5) / ENTRIES as f64);
    let mut table: Vec<Point> = (0..ENTRIES).map(|state| [coordinate(state, 0), coordinate(state, 1)]).collect();
    let mut gains = [1.0f32; 11];
    for round in 0..ROUNDS {
        let x = gaussian(D * VECTORS, 1 + round);
        let mut sums = vec![Sums::default(); ENTRIES];
        for bits in 2..=10usize {
            let outcome = code(&table, bits as u32, gains[bits], &x);
            let weight = IMPORTANCE[bits] * f64::from(gains[bits] * gains[bits]) / outcome.mse;
            for (sums, own) in sums.iter_mut().zip(&outcome.sums) {
                sums.iter_mut().zip(own).for_each(|(sum, own)| *sum += weight * own);
            }
            eprint!(" {bits}: {:.4}", 0.5 * (bits as f64 + outcome.mse.log2()));
            if round > 1 {
                gains[bits] *= outcome.gain as f32;
            }
        }
        eprintln!(" bits from the bound, round {round}");
        for (point, sums) in table.iter_mut().zip(&sums).filter(|(_, sums)| sums[2] > 0.0) {
            *point = [(sums[0] / sums[2]) as f32, (sums[1] / sums[2]) as f32];
        }
    }
    let words: Vec<u32> = table
        .iter_mut()
        .map(|point| {
            let halves = point.map(f16::from_f32);
            *point = halves.map(f16::to_f32);
            u32::from(halves[0].to_bits()) | u32::from(halves[1].to_bits()) << 16
        })
        .collect();
    let x = gaussian(D * VECTORS, 77);
    let mse: Vec<f64> = (2..=10).map(|bits| code(&table, bits, gains[bits as usize], &x).mse).collect();
    let list = |values: &mut dyn Iterator<Item = String>| values.collect::<Vec<_>>().join(", ");
    println!("//! The table of the shift trellis, made by `cargo run --release -p gosset-kv --example shift_table`.\n");
    println!("/// Factors of the table by bits of a step.");
    println!("#[rustfmt::skip]");
    println!("pub(super) const GAINS: [f32; 11] = [{}];", list(&mut gains.iter().map(|gain| format!("{gain:?}"))));
    println!("/// Squared errors of unit Gaussian values by bits of a step; there is no step of one bit.");
    println!("#[rustfmt::skip]");
    let mse = list(&mut mse.iter().map(|mse| format!("{mse:.6}")));
    println!("pub(super) const DISTORTIONS: [f64; 11] = [1.0, 1.0, {mse}];");
    println!("/// Words of two binary16 numbers, first coordinate lower.");
    println!("#[rustfmt::skip]");
    println!("pub(super) static TABLE: [u32; {ENTRIES}] = [");
    for line in words.chunks(10) {
        println!("    {},", list(&mut line.iter().map(|word| format!("0x{word:08x}"))));
    }
    println!("];");
}
