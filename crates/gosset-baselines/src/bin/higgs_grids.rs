//! Makes `data/higgs.bin`: `cargo run --release -p gosset-baselines --bin higgs-grids -- [--write FILE] [P N]`.
//!
//! Without `--write` the grids of the crate are measured on points that no grid was made from; with it they are made anew, in a few
//! minutes on 16 cores. `P N` restricts either to one grid.
#![allow(clippy::print_stdout, reason = "this is a command")]

use std::{env, fs, process::ExitCode, time::Instant};

use gosset_baselines::{GRIDS, Grid, GridInfo, lloyd};

/// Seed of the starts.
const SEED: u64 = 3;

/// Seed of the points that grids are measured on.
const CHECK_SEED: u64 = 1_000_003;

/// Points that grids are measured on.
const CHECK_POINTS: usize = 1 << 22;

/// Passes of Lloyd's algorithm, at most; it stops before when nothing is gained any more.
const PASSES: usize = 400;

/// Noisy passes from each start.
const NOISY_PASSES: usize = 300;

/// Their first noise, in distance scales of the codebook.
const SHAKE: f64 = 0.5;

/// Random starts, besides the spiral in the plane: many of the small codebooks, of which few arrangements are best.
fn random_starts(n: usize) -> u64 {
    (6144 / n as u64).clamp(3, 24)
}

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let file = args.iter().position(|arg| arg == "--write").and_then(|at| args.get(at + 1));
    let numbers: Vec<usize> = args.iter().filter_map(|arg| arg.parse().ok()).collect();
    let mut bytes = Vec::new();
    for info in GRIDS {
        if numbers.len() == 2 && (info.p, info.n) != (numbers[0], numbers[1]) {
            continue;
        }
        let begin = Instant::now();
        let values = match file {
            Some(_) => make(info),
            None => match Grid::of(info.p, info.n) {
                Ok(grid) => grid.values,
                Err(error) => {
                    println!("{error}");
                    return ExitCode::FAILURE;
                }
            },
        };
        let mse = match info.p {
            1 => measure::<1>(&values),
            2 => measure::<2>(&values),
            _ => measure::<4>(&values),
        };
        println!("p {} n {:4}: mse {mse:.6}, {:.1} s", info.p, info.n, begin.elapsed().as_secs_f64());
        bytes.extend(values.iter().flat_map(|v| v.to_le_bytes()));
    }
    if let Some(file) = file
        && let Err(error) = fs::write(file, bytes)
    {
        println!("{file}: {error}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// The grid, made from nothing.
fn make(info: GridInfo) -> Vec<f32> {
    match info.p {
        1 => lloyd::lloyd_max(info.n).0.iter().map(|&v| v as f32).collect(),
        2 => ascending(plane(info.n)),
        _ => ascending(space(info.n)),
    }
}

/// Points that a grid is made from: 512 per codeword or more, so that it fits them hardly better than others.
fn n_points(n: usize) -> usize {
    (n * 512).clamp(1 << 19, 1 << 21)
}

fn plane(n: usize) -> Vec<[f32; 2]> {
    let spiral = std::iter::once(lloyd::spiral_start(n));
    let random = (0..random_starts(n)).map(|start| lloyd::random_start(n, SEED + start));
    best(&lloyd::even_normals::<2>(n_points(n)), spiral.chain(random))
}

fn space(n: usize) -> Vec<[f32; 4]> {
    best(
        &lloyd::even_normals::<4>(n_points(n)),
        (0..random_starts(n)).map(|start| lloyd::random_start(n, SEED + start)),
    )
}

/// The best codebook from several starts: relaxed on an eighth of the points, then run to convergence on all.
fn best<const P: usize>(points: &[[f32; P]], starts: impl Iterator<Item = Vec<[f32; P]>>) -> Vec<[f32; P]> {
    let few = &points[..points.len() / 8];
    let tries = starts.zip(SEED..).map(|(mut codebook, seed)| {
        let mse = lloyd::relax(&mut codebook, few, NOISY_PASSES, 20, SHAKE, seed);
        (codebook, mse)
    });
    let found = tries.min_by(|a, b| a.1.total_cmp(&b.1));
    let mut codebook = found.map(|(codebook, _)| codebook).unwrap_or_default();
    lloyd::lloyd(&mut codebook, points, PASSES);
    codebook
}

fn ascending<const P: usize>(mut codebook: Vec<[f32; P]>) -> Vec<f32> {
    codebook.sort_by(|a, b| {
        a.iter().zip(b).map(|(a, b)| a.total_cmp(b)).find(|o| o.is_ne()).unwrap_or(std::cmp::Ordering::Equal)
    });
    codebook.concat()
}

/// Squared error per value on points that the grid has not seen.
fn measure<const P: usize>(values: &[f32]) -> f64 {
    if P == 1 {
        let points = lloyd::random_normals::<2>(CHECK_POINTS / 2, CHECK_SEED);
        let points: Vec<[f32; 1]> = points.concat().iter().map(|&v| [v]).collect();
        return lloyd::mse(values.as_chunks::<1>().0, &points);
    }
    lloyd::mse(values.as_chunks::<P>().0, &lloyd::random_normals::<P>(CHECK_POINTS, CHECK_SEED))
}
