//! Makes the stored family of tables of the entropy-coded trellis, and its rate curves.
//!
//! `cargo run --release -p gosset-codec --example trellis_family` writes
//! `src/scheme/trellis/{family_table,curve_table}.rs` and `tables/trellis-family.json` of this crate; it takes minutes.
#![allow(clippy::print_stdout, reason = "a command-line tool talks to its terminal")]

use std::path::Path;

use gosset_codec::calibrate::{TrellisFamily, gaussian, trellis_curve_source};

/// Values and seed that the family is made from.
const FAMILY: (usize, u64) = (1 << 20, 20_260_711);
/// Values and seed that the curves are measured on.
const CURVES: (usize, u64) = (1 << 20, 20_260_712);

fn main() -> std::io::Result<()> {
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
    for states in [8, 64, 256] {
        println!("curve of {states} states");
        let points = family.curve(states, &values);
        curves.push('\n');
        curves.push_str(&trellis_curve_source(&format!("TRELLIS_{states}"), &points));
    }
    std::fs::write(root.join("src/scheme/trellis/curve_table.rs"), curves)
}
