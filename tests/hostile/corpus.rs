//! The corpora of the fuzz targets, replayed: every file goes through the functions that fuzzing feeds.

use std::fs;
use std::path::{Path, PathBuf};

use crate::entries::{self, ENTRIES};
use crate::{alone, seeds};

/// Most bytes of all corpora together.
const MAX_BYTES: u64 = 600_000;

fn corpus(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(name)
}

/// Files of a corpus in order of their names.
fn files(name: &str) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(corpus(name)) else { return Vec::new() };
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

/// Writes the seeds anew, if asked to (`GOSSET_BLESS=1`); what fuzzing found stays.
fn bless() {
    if std::env::var_os("GOSSET_BLESS").is_none() {
        return;
    }
    for (name, seed, bytes) in seeds::all() {
        fs::create_dir_all(corpus(name)).unwrap();
        fs::write(corpus(name).join(format!("seed-{seed}")), bytes).unwrap();
    }
}

#[test]
fn corpora_are_replayed() {
    let _alone = alone();
    bless();
    let mut bytes = 0;
    for entry in ENTRIES {
        let files = files(entry.name);
        assert!(!files.is_empty(), "{} has no corpus", entry.name);
        let mut most = 0;
        for file in files {
            let data = fs::read(&file).unwrap();
            bytes += data.len() as u64;
            let caught = std::panic::catch_unwind(|| entries::check(entry.name, &data));
            most = most.max(caught.unwrap_or_else(|_| panic!("{} (see above)", file.display())));
        }
        println!("{}: at most {most} bytes allocated", entry.name);
    }
    assert!(
        bytes <= MAX_BYTES,
        "{bytes} bytes of corpora, expected {MAX_BYTES} at most: minimize them (fuzz/README.md)"
    );
}

/// A seed that reaches nothing is no seed: each is accepted by the reader that it is for.
#[test]
fn seeds_are_good_inputs() {
    let _alone = alone();
    for (name, seed, bytes) in seeds::all() {
        if let "rice" | "ans" | "trellis" | "shift" | "columns" = name {
            let (header, planes) = entries::parse_matrix(&bytes).unwrap();
            let decoder = gosset_codec::Decoder::new(&header, &planes).unwrap();
            let mut out = vec![0f32; decoder.rows() * decoder.cols()];
            decoder.decode_rows(0..decoder.rows(), &mut out, &mut gosset_codec::DecodeScratch::new()).unwrap();
            assert!(out.iter().any(|v| *v != 0.0), "{name} {seed}");
        }
    }
}
