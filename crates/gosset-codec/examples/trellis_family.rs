//! Makes the stored family of tables of the entropy-coded trellis and its rate curves, or looks for convolutional codes.
//!
//! - `cargo run --release -p gosset-codec --example trellis_family` writes
//!   `src/scheme/trellis/{family_table,curve_table}.rs` and `tables/trellis-family.json` of this crate; it takes minutes.
//! - `cargo run --release -p gosset-codec --example trellis_family codes STATES N` prints the best of N random codes, or of all
//!   where there are no more, by the cost of paths for Gaussian values at 2 bits. The codes in use are the best over several
//!   samples and rates among those that this finds.
#![allow(clippy::print_stdout, reason = "a command-line tool talks to its terminal")]

use std::error::Error;
use std::path::Path;

use gosset_codec::calibrate::{TrellisFamily, gaussian, trellis_code_cost, trellis_curve_source};
use gosset_transform::{Domain, RandomStream};
use gosset_trellis::entropy_coded::TrellisCode;

/// Values and seed that the family is made from.
const FAMILY: (usize, u64) = (1 << 20, 20_260_711);
/// Values and seed that the curves are measured on.
const CURVES: (usize, u64) = (1 << 20, 20_260_712);
/// Values and seed that codes are compared on.
const CODES: (usize, u64) = (1 << 17, 20_260_713);
/// Member of the family for 2 bits per value.
const TWO_BITS: u16 = 21;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.as_slice() {
        [] => Ok(write_family()?),
        [verb, states, n] if verb == "codes" => search_codes(states.parse()?, n.parse()?),
        _ => Err("expected no arguments, or `codes STATES N`".into()),
    }
}

fn write_family() -> std::io::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let command = "`cargo run --release -p gosset-codec --example trellis_family`";
    println!("family");
    let family = TrellisFamily::train(&gaussian(FAMILY.0, FAMILY.1));
    let head = format!(
        "//! Members of the family of tables, made on 2^20 Gaussian values by\n//! {command}.\n\nuse super::family::{{Member, N_MEMBERS}};\n\n"
    );
    std::fs::write(root.join("src/scheme/trellis/family_table.rs"), head + &family.source())?;
    std::fs::write(root.join("tables/trellis-family.json"), family.json())?;
    let mut curves = format!(
        "//! Rate curves of the tables of the family, on 2^20 Gaussian values: rows of alpha, payload in bits per value and\n//! signal-to-noise ratio in decibels. Made by\n//! {command}.\n#![allow(clippy::approx_constant, reason = \"powers of two in octaves are no misspelt constants\")]\n\nuse super::family::N_TABLES;\n"
    );
    let values = gaussian(CURVES.0, CURVES.1);
    for states in TrellisCode::STATES {
        println!("curve of {states} states");
        let points = family.curve(states, &values);
        curves.push('\n');
        curves.push_str(&trellis_curve_source(&format!("TRELLIS_{states}"), &points));
    }
    std::fs::write(root.join("src/scheme/trellis/curve_table.rs"), curves)
}

fn search_codes(states: u32, n: usize) -> Result<(), Box<dyn Error>> {
    let values = gaussian(CODES.0, CODES.1);
    let all: Vec<[u32; 2]> =
        (0..states / 2).flat_map(|h0| (1..states / 2).map(move |h1| [states + 2 * h0 + 1, 2 * h1])).collect();
    let mut random = RandomStream::new(CODES.1, Domain::Dither, 0);
    let tried =
        if n >= all.len() { all } else { (0..n).map(|_| all[random.next_u32() as usize % all.len()]).collect() };
    let cost = |code| trellis_code_cost(code, TWO_BITS, &values);
    println!("in use: {:.5}", cost(TrellisCode::with_states(states)?));
    let mut found = Vec::new();
    for checks in tried {
        found.push((cost(TrellisCode::from_parity_checks(states, checks)?), checks));
    }
    found.sort_by(|a, b| a.0.total_cmp(&b.0));
    for (cost, [h0, h1]) in found.iter().take(10) {
        println!("h0 = {h0:o}, h1 = {h1:o} (octal): {cost:.5}");
    }
    Ok(())
}
