//! A hundred random mutations of each golden container, as they are and with every checksum made right again.

use std::fs;
use std::path::Path;

use gosset_codec::DecodeScratch;
use gosset_container::{Container, ContainerError, Digest};
use serde_json::Value;

use crate::seeds::{GOLDENS, golden};
use crate::{Draw, alone, entries};

const MUTATIONS: usize = 100;

/// One change of a kind that copying, editing or attacking makes.
fn mutate(draw: &mut Draw, bytes: &[u8]) -> Vec<u8> {
    let mut out = bytes.to_vec();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    // The header is small, and most of what can be confused is there.
    let end = if draw.below(2) == 0 { header } else { bytes.len() };
    let at = draw.below(end);
    let run = (1 + draw.below(64)).min(out.len() - at);
    match draw.below(10) {
        0 => out[at] ^= 1 << draw.below(8),
        1 => out[at] = draw.below(256) as u8,
        2 => out[at..at + run].fill(0),
        3 => out[at..at + run].fill(0xff),
        4 => drop(out.drain(at..at + run)),
        5 => out.splice(at..at, bytes[at..at + run].to_vec()).for_each(drop),
        6 => out.truncate(at),
        7 => out[at..at + run].reverse(),
        // A digit, where there is one: counts, offsets and versions are decimal.
        8 => {
            let digits: Vec<usize> = (at..header.max(at)).filter(|&i| out[i].is_ascii_digit()).take(40).collect();
            match digits.get(draw.below(digits.len())) {
                Some(&i) => out[i] = b'0' + draw.below(10) as u8,
                None => out[at] = out[at].wrapping_add(1),
            }
        }
        _ => {
            let from = draw.below(out.len() - run + 1);
            out.copy_within(from..from + run, at);
        }
    }
    out
}

/// What the golden file's own record says of every part that decodes.
fn check_values(container: &std::sync::Arc<Container>, recorded: &Value) {
    let digest =
        |values: &[f32]| Digest::of(&values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>()).to_string();
    for entry in container.entries() {
        let name = entry.name.as_str();
        let (key, found) = if entry.is_coded() {
            let tensor = container.coded(name).unwrap();
            let decoder = tensor.decoder().unwrap();
            let mut values = vec![0f32; decoder.rows() * decoder.cols()];
            decoder.decode_rows(0..decoder.rows(), &mut values, &mut DecodeScratch::new()).unwrap();
            ("values_xxh3", digest(&values))
        } else if entry.is_unisvq() {
            let tensor = container.unisvq(name).unwrap();
            let decoder = tensor.decoder().unwrap();
            let mut values = vec![0f32; decoder.rows() * decoder.cols()];
            decoder.decode_rows(0..decoder.rows(), &mut values);
            ("values_xxh3", digest(&values))
        } else {
            ("bytes_xxh3", Digest::of(container.raw(name).unwrap().bytes).to_string())
        };
        assert_eq!(recorded[name][key], Value::from(found), "{name}");
    }
}

fn open_verified(path: &Path, bytes: &[u8]) -> Result<std::sync::Arc<Container>, ContainerError> {
    fs::write(path, bytes).unwrap();
    let container = Container::open(path)?;
    container.verify()?;
    Ok(container)
}

#[test]
fn i02_mutated_golden_files_are_refused_or_hold_the_right_values() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mutant.gosset");
    for (seed, name) in GOLDENS.into_iter().enumerate() {
        let good = fs::read(golden(name)).unwrap();
        let recorded = fs::read(golden(name).with_extension("json")).unwrap();
        let recorded: Value = serde_json::from_slice(&recorded).unwrap();
        check_values(&open_verified(&path, &good).unwrap(), &recorded);
        let mut draw = Draw(seed as u64);
        let mut refused = 0;
        for i in 0..MUTATIONS {
            let mutant = mutate(&mut draw, &good);
            match open_verified(&path, &mutant) {
                Ok(container) => {
                    check_values(&container, &recorded);
                    assert!(mutant == good, "{name}, mutation {i}: a change that nothing noticed");
                }
                Err(error) => {
                    assert!(error.to_string().contains("mutant.gosset"), "{error}");
                    refused += 1;
                }
            }
        }
        assert!(refused > MUTATIONS * 9 / 10, "{name}: {refused} of {MUTATIONS} mutants were refused");
    }
}

/// With right checksums nothing stands between a change and the decoders: any values, or a typed error, and no more memory than stated.
#[test]
fn mutants_with_right_checksums_end_in_values_or_a_typed_error() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mutant.gosset");
    let (mut opened, mut refused) = (0, 0);
    for (seed, name) in GOLDENS.into_iter().enumerate() {
        let good = fs::read(golden(name)).unwrap();
        let again = entries::repaired(&good).unwrap();
        open_verified(&path, &again).unwrap();
        let mut draw = Draw(1000 + seed as u64);
        for _ in 0..MUTATIONS {
            // The entry repairs by itself what can be repaired.
            let mutant = mutate(&mut draw, &again);
            entries::check("container", &mutant);
            match entries::repaired(&mutant).map(|bytes| open_verified(&path, &bytes)) {
                Some(Ok(_)) => opened += 1,
                _ => refused += 1,
            }
        }
    }
    // Both happen, or the test tests nothing.
    assert!(opened > 20 && refused > 20, "{opened} opened, {refused} refused");
}
