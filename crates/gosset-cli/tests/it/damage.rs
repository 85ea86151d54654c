//! I02: changed and cut containers are found out, and never crash anything.

use std::fs;

use gosset_container::Container;

use crate::support::Bench;

const FLIPS: usize = 2000;
const CUTS: usize = 200;
const RUNS: usize = 40;

/// SplitMix64, for positions that are the same in every run.
fn random(seed: u64) -> impl FnMut(usize) -> usize {
    let mut state = seed;
    move |below| {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % below as u64) as usize
    }
}

/// Whether opening and verifying fails, as the command does it.
fn is_detected(bench: &Bench, bytes: &[u8]) -> Option<String> {
    let path = bench.file("damaged.gosset", bytes);
    Container::open(&path).and_then(|container| container.verify()).err().map(|e| e.to_string())
}

#[test]
fn i02_every_flipped_bit_is_detected() {
    let bench = Bench::new();
    let good = fs::read(bench.container()).unwrap();
    assert_eq!(is_detected(&bench, &good), None);
    let mut draw = random(2);
    for i in 0..FLIPS {
        // Half of them in the header, which is a small part of larger files.
        let header = 8 + u64::from_le_bytes(good[..8].try_into().unwrap()) as usize;
        let byte = if i % 2 == 0 { draw(header) } else { draw(good.len()) };
        let bit = draw(8);
        let mut bad = good.clone();
        bad[byte] ^= 1 << bit;
        assert!(is_detected(&bench, &bad).is_some(), "byte {byte}, bit {bit} of {}", good.len());
    }
}

#[test]
fn i02_every_cut_and_every_addition_is_detected() {
    let bench = Bench::new();
    let good = fs::read(bench.container()).unwrap();
    let mut draw = random(3);
    let mut lengths: Vec<usize> = (0..CUTS - 20).map(|_| draw(good.len())).collect();
    lengths.extend(0..10);
    lengths.extend(good.len() - 10..good.len());
    for len in lengths {
        assert!(is_detected(&bench, &good[..len]).is_some(), "cut to {len} of {}", good.len());
    }
    for extra in [&b"\0"[..], b"GGUF", &[0; 4096]] {
        assert!(is_detected(&bench, &[&good, extra].concat()).is_some());
    }
    let mut zeroed = good.clone();
    let page = good.len() / 8192 * 4096;
    zeroed[page..page + 4096].fill(0);
    assert!(is_detected(&bench, &zeroed).is_some());
}

#[test]
fn i02_the_command_names_what_is_damaged() {
    let bench = Bench::new();
    let good = fs::read(bench.container()).unwrap();
    let header = 8 + u64::from_le_bytes(good[..8].try_into().unwrap()) as usize;
    let mut draw = random(4);
    for i in 0..RUNS {
        let mut bad = good.clone();
        let byte = if i % 4 == 0 { draw(header) } else { header + draw(good.len() - header) };
        if i % 5 == 4 {
            bad.truncate(byte);
        } else {
            bad[byte] ^= 1 << draw(8);
        }
        bench.file("bad.gosset", &bad);
        let run = bench.run("verify bad.gosset").fails(4, &["bad.gosset"]);
        assert_eq!(run.stdout, "");
        if i % 5 != 4 && byte >= header {
            assert!(run.stderr.contains("checksum"), "{run:?}");
        }
        let json = bench.run("verify bad.gosset --json").fails(4, &[]).json();
        assert!(json["ok"] == false && !json["problems"].as_array().unwrap().is_empty(), "{json}");
        // Whatever else is asked of the file ends in an answer or in one line, never in a crash.
        for line in ["inspect bad.gosset", "generate bad.gosset -p a -n 1", "dequantize bad.gosset -o out -q"] {
            let run = bench.run(line);
            match run.code {
                0 => {}
                code => drop(run.fails(code, &["bad.gosset"])),
            }
            let _ = fs::remove_dir_all(bench.path("out"));
        }
    }
}

#[test]
fn intact_files_verify_as_such() {
    let bench = Bench::new();
    bench.container();
    let run = bench.run("verify t0.gosset").ok();
    assert!(run.stdout.contains("intact"), "{run:?}");
    let json = bench.run("verify t0.gosset --json").ok().json();
    assert_eq!((&json["ok"], &json["checked"]["n_decoded"]), (&true.into(), &14.into()));
}
