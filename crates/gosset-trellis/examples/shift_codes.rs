//! Makes the constants of the bit-shift trellis: multipliers, steps, the table of quantiles and the tables of pairs.
//!
//! `cargo run --release -p gosset-trellis --example shift_codes -- all` writes `src/shift/constants_table.rs` of this crate; it
//! takes about an hour of one core. `-- search CODE BITS` does one code (`quantiles` or `pairs`; `-- steps` its steps only) and leaves what it finds in
//! `target/shift-codes`, from which `-- assemble` writes the file. `-- measure` prints error and speed of every trellis with
//! the constants there are. All data are seeded, and the number of threads does not matter.
#![allow(clippy::print_stdout, reason = "a command-line tool talks to its terminal")]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Instant, SystemTime};

use gosset_trellis::shift::{
    Code, MAX_STATE_BITS, MIN_STATE_BITS, ShiftCode, ShiftDecoder, ShiftEncoder, ShiftOrder, ShiftScratch, ShiftSpec,
    ShiftTrellis, TABLE_LEN, f32_to_half,
};

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn gaussian(&mut self, n: usize) -> Vec<f32> {
        let mut values = Vec::with_capacity(n + 1);
        while values.len() < n {
            let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
            let (sin, cos) = (std::f64::consts::TAU * self.unit()).sin_cos();
            values.extend([(radius * cos) as f32, (radius * sin) as f32]);
        }
        values.truncate(n);
        values
    }
}

/// Bits of the state with which tables of pairs are trained.
const TRAINING_STATE_BITS: u8 = 15;

/// Columns of the rows of a search.
const COLS: usize = 1024;

/// Words and decoded values of rows.
fn encode(trellis: &ShiftTrellis, data: &[f32], cols: usize) -> (Vec<u32>, Vec<f32>) {
    let layout = trellis.layout(data.len() / cols, cols).expect("rows and columns");
    let mut words = vec![0; layout.n_words()];
    let encoder = ShiftEncoder::new(trellis);
    encoder.encode(&layout, data, 0..layout.n_strings(), &mut words, &mut ShiftScratch::new()).expect("the layout's");
    let mut decoded = vec![0.0; data.len()];
    ShiftDecoder::new(trellis).decode(&layout, &words, 0..layout.n_blocks(), &mut decoded).expect("the layout's");
    (words, decoded)
}

/// Squared error per unit of energy after the gain of each row, and the mean gain over the step.
fn measure(trellis: &ShiftTrellis, data: &[f32], cols: usize) -> (f64, f64) {
    let (_, decoded) = encode(trellis, data, cols);
    let (mut error, mut energy, mut gains) = (0.0, 0.0, 0.0);
    for (x, y) in data.chunks(cols).zip(decoded.chunks(cols)) {
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
        let (xx, xy, yy) = (dot(x, x), dot(x, y), dot(y, y));
        error += xx - xy * xy / yy;
        energy += xx;
        gains += xy / yy / f64::from(trellis.step());
    }
    (error / energy, gains / (data.len() / cols) as f64)
}

fn gap(bits: u8, mse: f64) -> f64 {
    f64::from(bits) + 0.5 * mse.log2()
}

/// Results of `f` on all items, on as many threads as there are.
fn parallel<T: Sync, R: Send>(items: &[T], f: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let n_threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let mut results: Vec<(usize, R)> = std::thread::scope(|scope| {
        let worker = || {
            let mut results = Vec::new();
            loop {
                let i = next.fetch_add(1, Ordering::Relaxed);
                let Some(item) = items.get(i) else { return results };
                results.push((i, f(item)));
            }
        };
        let workers: Vec<_> = (0..n_threads).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("no worker panics")).collect()
    });
    results.sort_by_key(|(i, _)| *i);
    results.into_iter().map(|(_, result)| result).collect()
}

/// Distribution function of a unit Gaussian, by the series of its density's integral.
fn distribution(x: f64) -> f64 {
    let (mut term, mut sum) = (x, x);
    for i in 1..200 {
        term *= x * x / f64::from(2 * i + 1);
        sum += term;
    }
    0.5 + sum * (-0.5 * x * x).exp() / std::f64::consts::TAU.sqrt()
}

fn quantile(p: f64) -> f64 {
    let (mut low, mut high) = (-6.0, 6.0);
    for _ in 0..60 {
        let middle = 0.5 * (low + high);
        if distribution(middle) < p { low = middle } else { high = middle }
    }
    0.5 * (low + high)
}

/// The table of quantiles: of the middles of 1024 equal parts.
fn quantiles() -> Vec<u16> {
    (0..TABLE_LEN).map(|i| f32_to_half(quantile((i as f64 + 0.5) / TABLE_LEN as f64) as f32)).collect()
}

fn spec(code: ShiftCode, bits: u8, state_bits: u8) -> ShiftSpec {
    ShiftSpec { bits, state_bits, code, order: ShiftOrder::Rows }
}

/// Step at which multipliers are compared.
fn first_step(bits: u8) -> f32 {
    match bits {
        2 => 1.0,
        3 => 1.05,
        4 => 1.08,
        5 => 1.15,
        _ => 1.22,
    }
}

/// What is found for one number of state bits.
#[derive(Clone, Debug)]
struct Found {
    multipliers: [u32; 2],
    step: f32,
    mse: f64,
}

struct Search {
    code: ShiftCode,
    bits: u8,
    quantiles: Vec<u16>,
    /// Trained pairs; before that, pairs are made from quantiles.
    pairs: Option<Vec<u32>>,
}

impl Search {
    fn trellis(&self, state_bits: u8, multipliers: [u32; 2], step: f32) -> ShiftTrellis {
        let code = match self.code {
            ShiftCode::Quantiles => Code::Quantiles { multipliers, table: self.quantiles.clone() },
            _ => {
                let table = self.pairs.clone().unwrap_or_else(|| self.ring_of_pairs(multipliers[1]));
                Code::Pairs { multiplier: multipliers[0], table }
            }
        };
        ShiftTrellis::with_code(spec(self.code, self.bits, state_bits), code, step).expect("the parameters are right")
    }

    /// The second weight walks the ring of the first at another pace.
    fn ring_of_pairs(&self, pace: u32) -> Vec<u32> {
        let at = |i: usize| u32::from(self.quantiles[i % TABLE_LEN]);
        (0..TABLE_LEN).map(|i| at(i) | at(i * pace as usize) << 16).collect()
    }

    /// The best of the candidates: all on few data, then fewer on more.
    fn select(&self, state_bits: u8, mut candidates: Vec<[u32; 2]>, rounds: &[(usize, usize)]) -> Vec<(f64, [u32; 2])> {
        candidates.sort_unstable();
        candidates.dedup();
        let mut best = Vec::new();
        for (round, &(n, keep)) in rounds.iter().enumerate() {
            let data = Random(1000 * u64::from(state_bits) + round as u64).gaussian(n);
            let step = first_step(self.bits);
            let error = |&candidate: &[u32; 2]| measure(&self.trellis(state_bits, candidate, step), &data, COLS).0;
            best = parallel(&candidates, error).into_iter().zip(candidates).collect();
            best.sort_by(|a: &(f64, _), b| a.0.total_cmp(&b.0));
            best.truncate(keep);
            candidates = best.iter().map(|(_, candidate)| *candidate).collect();
        }
        best
    }

    /// Multipliers for every number of state bits: some at random, and those that come near to the same paces around the
    /// ring as the best for one bit less.
    fn multipliers(&self, max_state_bits: u8) -> Vec<[u32; 2]> {
        let mut random = Random(u64::from(self.bits) << 8 | self.code as u64);
        let mut beam: Vec<(f64, [u32; 2])> = Vec::new();
        let mut found = Vec::new();
        for state_bits in MIN_STATE_BITS..=max_state_bits {
            let n = 1u32 << state_bits;
            let odd = |random: &mut Random, n: u32| (random.next() % u64::from(n)) as u32 | 1;
            let near = |x: u32| [-3, -1, 1, 3].map(|d| (2 * x).wrapping_add_signed(d) % n);
            let two = self.code == ShiftCode::Quantiles && self.bits <= 4;
            let n_fresh = match state_bits {
                12 => 3000,
                13..=15 => 400,
                16 => 150,
                _ => 40,
            };
            // One multiplier is found with less than two.
            let n_fresh = if two { n_fresh } else { n_fresh / 4 };
            let keep = if two { 16 } else { 10 };
            let mut candidates: Vec<[u32; 2]> = (0..n_fresh)
                .map(|_| {
                    let first = odd(&mut random, n);
                    match self.code {
                        ShiftCode::Quantiles if two => [first, odd(&mut random, n)],
                        ShiftCode::Quantiles => [first, 1],
                        _ if self.pairs.is_some() => [first, 1],
                        _ => [first, odd(&mut random, TABLE_LEN as u32)],
                    }
                })
                .collect();
            for (_, [a, b]) in &beam {
                for a in near(*a) {
                    if two {
                        candidates.extend(near(*b).map(|b| [a, b]));
                    } else {
                        candidates.push([a, *b]);
                    }
                }
            }
            beam =
                self.select(state_bits, candidates, &[(4 * COLS, 3 * keep), (16 * COLS, keep), (48 * COLS, keep / 2)]);
            println!("L = {state_bits}: gap {:.4} with {:x?}", gap(self.bits, beam[0].0), beam[0].1);
            found.push(beam[0].1);
        }
        found
    }

    /// The step of least error, within two hundredths.
    fn step(&self, state_bits: u8, multipliers: [u32; 2]) -> f32 {
        let data = Random(2000 + u64::from(state_bits)).gaussian(64 * COLS);
        let steps: Vec<f32> = (-4..=6).map(|i| first_step(self.bits) + 0.02 * i as f32).collect();
        let errors = parallel(&steps, |&step| measure(&self.trellis(state_bits, multipliers, step), &data, COLS).0);
        let least = (0..steps.len()).min_by(|&a, &b| errors[a].total_cmp(&errors[b]));
        steps[least.expect("there are steps")]
    }

    /// Pairs moved to the means of what they stand for, by and by, on fresh data each time.
    fn train(&mut self, multipliers: [u32; 2]) {
        const STATE_BITS: u8 = TRAINING_STATE_BITS;
        let step = first_step(self.bits);
        let ring = self.ring_of_pairs(multipliers[1]);
        let mut pairs: Vec<[f64; 2]> = ring.iter().map(|&word| [word as u16, (word >> 16) as u16].map(half)).collect();
        for round in 0..24u64 {
            let trellis = self.trellis(STATE_BITS, multipliers, step);
            let chunks: Vec<u64> = (0..8).collect();
            let sums = parallel(&chunks, |chunk| {
                let data = Random(3000 + round * 8 + chunk).gaussian(32 * COLS);
                let layout = trellis.layout(32, COLS).expect("rows and columns");
                let (words, _) = encode(&trellis, &data, COLS);
                let mut sums = vec![[0.0f64; 3]; TABLE_LEN];
                let decoder = ShiftDecoder::new(&trellis);
                let mut states = vec![0; layout.n_steps()];
                for (words, row) in words.chunks(layout.words_per_string()).zip(data.chunks(COLS)) {
                    decoder.states(&layout, words, &mut states).expect("words of the layout");
                    for (state, x) in states.iter().zip(row.chunks(2)) {
                        let index = (state.wrapping_mul(multipliers[0]) << (32 - STATE_BITS) >> 22) as usize;
                        for (sum, x) in sums[index].iter_mut().zip([x[0], x[1], 1.0]) {
                            *sum += f64::from(x);
                        }
                    }
                }
                sums
            });
            let pace = if round < 8 { 0.5 } else { 4.0 / (round + 1) as f64 };
            for (i, pair) in pairs.iter_mut().enumerate() {
                let [x, y, n] = sums.iter().fold([0.0; 3], |a, b| [0, 1, 2].map(|j| a[j] + b[i][j]));
                // As if sixteen more had been where the pair is.
                let n = n + 16.0;
                let mean = [x, y].map(|sum| sum / f64::from(step));
                for (value, sum) in pair.iter_mut().zip(mean) {
                    *value += pace * ((sum + 16.0 * *value) / n - *value);
                }
            }
            let word = |p: &[f64; 2]| u32::from(f32_to_half(p[0] as f32)) | u32::from(f32_to_half(p[1] as f32)) << 16;
            self.pairs = Some(pairs.iter().map(word).collect());
            if round % 8 == 7 {
                let data = Random(4000).gaussian(128 * COLS);
                let (mse, gain) = measure(&self.trellis(STATE_BITS, multipliers, step), &data, COLS);
                println!("round {round}: gap {:.4}, gain {gain:.4}", gap(self.bits, mse));
            }
        }
    }

    fn run(&mut self) -> Vec<Found> {
        if self.code == ShiftCode::Pairs {
            // The pace of the second weight is found with few states; the table then belongs to it.
            let found = self.multipliers(TRAINING_STATE_BITS);
            self.train(found[found.len() - 1]);
        }
        let multipliers = self.multipliers(MAX_STATE_BITS);
        self.finish(multipliers)
    }

    /// Steps and errors.
    fn finish(&self, multipliers: Vec<[u32; 2]>) -> Vec<Found> {
        let mut found = Vec::new();
        for (state_bits, multipliers) in (MIN_STATE_BITS..).zip(multipliers) {
            let step = self.step(state_bits, multipliers);
            let data = Random(5000).gaussian(32 * 4096);
            let rows: Vec<&[f32]> = data.chunks(4 * 4096).collect();
            let trellis = self.trellis(state_bits, multipliers, step);
            let errors = parallel(&rows, |rows| measure(&trellis, rows, 4096).0);
            let mse = errors.iter().sum::<f64>() / errors.len() as f64;
            println!("L = {state_bits}: step {step:.2}, mse {mse:.6}, gap {:.4}", gap(self.bits, mse));
            found.push(Found { multipliers, step, mse });
        }
        found
    }
}

fn half(bits: u16) -> f64 {
    let (exponent, mantissa) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023));
    let magnitude =
        if exponent == 0 { mantissa * 2f64.powi(-24) } else { (1024.0 + mantissa) * 2f64.powi(exponent - 25) };
    if bits >> 15 == 1 { -magnitude } else { magnitude }
}

const CODES: [(&str, ShiftCode); 2] = [("quantiles", ShiftCode::Quantiles), ("pairs", ShiftCode::Pairs)];

fn bits_of(code: ShiftCode) -> &'static [u8] {
    if code == ShiftCode::Quantiles { &ShiftSpec::BITS } else { &ShiftSpec::BITS[..3] }
}

fn folder() -> PathBuf {
    PathBuf::from(std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into())).join("shift-codes")
}

/// Searches, for steps only if multipliers and pairs are there already.
fn search(name: &str, code: ShiftCode, bits: u8, steps_only: bool) {
    println!("{name}, {bits} bits");
    let mut search = Search { code, bits, quantiles: quantiles(), pairs: None };
    let found = if steps_only {
        let text = std::fs::read_to_string(folder().join(format!("{name}-{bits}.txt"))).expect("results of a search");
        let numbers = |line: &str| line.split_whitespace().flat_map(str::parse).collect::<Vec<u32>>();
        let lines: Vec<Vec<u32>> = text.lines().map(numbers).collect();
        search.pairs = lines.get(7).cloned();
        search.finish(lines[..7].iter().map(|line| [line[0], line[1]]).collect())
    } else {
        search.run()
    };
    save(name, &search, &found);
}

/// Leaves one line per number of state bits, and the table of pairs in the last.
fn save(name: &str, search: &Search, found: &[Found]) {
    let bits = search.bits;
    let mut text = String::new();
    for Found { multipliers: [a, b], step, mse } in found {
        writeln!(text, "{a} {b} {step:.2} {mse:.6e}").expect("a string takes everything");
    }
    for word in search.pairs.iter().flatten() {
        write!(text, "{word} ").expect("a string takes everything");
    }
    std::fs::create_dir_all(folder()).expect("a folder for results");
    std::fs::write(folder().join(format!("{name}-{bits}.txt")), text).expect("a file for results");
}

/// Writes the table of constants from what the searches left.
fn assemble() {
    let mut out = String::from("//! Constants of the codes, found by the example `shift_codes`.\n\n");
    out += "/// The quantiles above the middle, binary16.\n#[rustfmt::skip]\npub(super) const UPPER_QUANTILES: [u16; 512] = [\n";
    for line in quantiles()[TABLE_LEN / 2..].chunks(12) {
        out += &format!("    {},\n", line.iter().map(|half| format!("{half:#06x}")).collect::<Vec<_>>().join(", "));
    }
    out += "];\n";
    for (name, code) in CODES {
        let upper = name.to_uppercase();
        let files: Vec<Vec<String>> = bits_of(code)
            .iter()
            .map(|bits| {
                let path = folder().join(format!("{name}-{bits}.txt"));
                let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
                text.lines().map(str::to_owned).collect()
            })
            .collect();
        let n_bits = files.len();
        out += "\n/// Multipliers, step and squared error for each of the bits per weight and each L from 12 on.\n";
        out += &format!("#[rustfmt::skip]\npub(super) const {upper}: [[([u32; 2], f32, f64); 7]; {n_bits}] = [\n");
        for lines in &files {
            out += "    [\n";
            for line in &lines[..7] {
                let f: Vec<&str> = line.split(' ').collect();
                out += &format!("        ([{}, {}], {}, {}),\n", f[0], f[1], f[2], f[3]);
            }
            out += "    ],\n";
        }
        out += "];\n";
        if code == ShiftCode::Pairs {
            out += "\n/// Pairs for 2, 3 and 4 bits per weight, two binary16 numbers each, lower first.\n";
            out += "#[rustfmt::skip]\npub(super) const PAIR_TABLES: [[u32; 1024]; 3] = [\n";
            for lines in &files {
                out += "    [\n";
                let words: Vec<&str> = lines[7].split_whitespace().collect();
                for line in words.chunks(8) {
                    let hex = |word: &&str| format!("{:#010x}", word.parse::<u32>().expect("a word"));
                    out += &format!("        {},\n", line.iter().map(hex).collect::<Vec<_>>().join(", "));
                }
                out += "    ],\n";
            }
            out += "];\n";
        }
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/shift/constants_table.rs");
    std::fs::write(&path, out).expect("the source is writable");
    println!("wrote {}", path.display());
}

/// Seconds that this thread has run, where Linux tells them, so that a busy machine measures the same; else the time.
fn busy_s() -> f64 {
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let told = told.and_then(|text| text.split(' ').next()?.parse::<f64>().ok());
    told.map_or_else(|| SystemTime::UNIX_EPOCH.elapsed().map_or(0.0, |time| time.as_secs_f64()), |ns| ns * 1e-9)
}

/// Error and speed, on one thread, of every trellis.
fn measure_all() {
    println!("code bits L mse gap encode_mws decode_mws");
    for (name, code) in CODES {
        for &bits in bits_of(code) {
            for state_bits in MIN_STATE_BITS..=MAX_STATE_BITS {
                let trellis = spec(code, bits, state_bits).check().expect("a trellis that there is");
                // Long enough for clocks that tick every few milliseconds.
                let (rows, cols) = (4 << (MAX_STATE_BITS - state_bits).min(4), 4096);
                let data = Random(6000).gaussian(rows * cols);
                let layout = trellis.layout(rows, cols).expect("rows and columns");
                let (encoder, mut scratch) = (ShiftEncoder::new(&trellis), ShiftScratch::new());
                let mut words = vec![0; layout.n_words()];
                let start = busy_s();
                encoder.encode(&layout, &data, 0..rows, &mut words, &mut scratch).expect("the layout's");
                let encode_s = busy_s() - start;
                let (decoder, mut out) = (ShiftDecoder::new(&trellis), vec![0.0; rows * cols]);
                let decode_s = (0..20).map(|_| {
                    let start = Instant::now();
                    decoder.decode(&layout, &words, 0..rows, &mut out).expect("words of the layout");
                    start.elapsed().as_secs_f64()
                });
                let decode_s = decode_s.fold(f64::INFINITY, f64::min);
                let (mse, _) = measure(&trellis, &data, cols);
                let mws = (rows * cols) as f64 / 1e6;
                let (enc, dec) = (mws / encode_s, mws / decode_s);
                println!("{name} {bits} {state_bits} {mse:.6} {:.4} {enc:.3} {dec:.0}", gap(bits, mse));
            }
        }
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let code_of = |name: &str| CODES.into_iter().find(|(other, _)| *other == name);
    match arguments[..] {
        ["all"] => {
            for (name, code) in CODES {
                bits_of(code).iter().for_each(|&bits| search(name, code, bits, false));
            }
            assemble();
        }
        [verb @ ("search" | "steps"), name, bits] if code_of(name).is_some() => {
            let (name, code) = code_of(name).expect("the guard found it");
            search(name, code, bits.parse().expect("bits per weight"), verb == "steps");
        }
        ["assemble"] => assemble(),
        ["measure"] => measure_all(),
        _ => println!("usage: shift_codes all | search|steps quantiles|pairs BITS | assemble | measure"),
    }
}
