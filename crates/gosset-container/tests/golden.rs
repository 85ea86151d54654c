//! The golden file of format 1: today's writer makes it byte for byte, today's reader decodes it to the recorded values, and so does
//! `tests/golden/decode_golden.py`, which was written from docs/FORMAT.md alone.
//!
//! After a deliberate change of the format or of the program's version, make the files anew with
//! `GOSSET_BLESS=1 cargo test -p gosset-container --test golden`, and keep the old ones under the name of their version.

#![allow(clippy::unwrap_used, reason = "fixtures of tests")]

use std::fs;
use std::path::{Path, PathBuf};

use gosset_codec::{CodecSpec, DecodeScratch, EncodedMatrix, RateTarget, RotationSpec};
use gosset_container::{Container, ContainerKind, Digest, ManifestInfo, Writer};
use serde_json::{Value, json};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(name)
}

/// Values in steps of 2^-12 from integer arithmetic: the same on every machine. Sums of four, so roughly normal.
fn values(n: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 52) as i32 - 2048
    };
    (0..n).map(|_| (next() + next() + next() + next()) as f32 / 4096.0).collect()
}

fn encode(codec: &str, alpha: f64, rotation: RotationSpec, data: Vec<f32>, rows: usize) -> EncodedMatrix {
    // A fixed alpha, so that the golden file does not depend on how rates are calibrated.
    let mut spec = CodecSpec::named(codec, 3.0).unwrap();
    spec.rotation = rotation;
    spec.target = RateTarget::Alpha(alpha);
    let cols = data.len() / rows;
    spec.check().unwrap().encode_owned(data, rows, cols).unwrap()
}

fn write(path: &Path) {
    let rht = |tile, seed| RotationSpec::Rht { tile, seed };
    let mut w = Writer::create(path, true).unwrap();

    // Small enough to be worked through by hand in docs/FORMAT.md.
    w.add_matrix("tiny", &encode("e8-rice", 2.0, rht(8, 0), values(16, 1), 2), "F32").unwrap();
    // Full streams, one tile of 64 per row.
    w.add_matrix("e8", &encode("e8-rice", 3.59, rht(128, 0), values(40 * 64, 2), 40), "BF16").unwrap();
    // More than one page, and a row in several tiles: 172 = 128 + 32 + 8 + 4.
    w.add_matrix("d4", &encode("d4-rice", 4.2, rht(128, 7), values(200 * 172, 3), 200), "F16").unwrap();
    // A padded last block, blocks across rows, and one value far out that needs an escape.
    let mut outlier = values(3 * 1111, 4);
    outlier[1500] = 25.0;
    w.add_matrix("a2", &encode("a2-rice", 6.747, RotationSpec::None, outlier, 3), "F32").unwrap();
    // A row of zeros, and two rows that are stored exactly.
    let mut rows = values(7 * 65, 5);
    rows[65..130].fill(0.0);
    rows[130..195].fill(1e-42);
    rows[390..455].fill(-2e-39);
    w.add_matrix("z", &encode("z-rice", 1.755, rht(128, u64::MAX), rows, 7), "F32").unwrap();

    w.add_raw("norm", "F32", &[3], &[1.0f32, -0.5, 1e-40].map(f32::to_le_bytes).concat(), "norm").unwrap();
    let block: Vec<u8> = (0..34).collect();
    w.add_raw("model.embed_tokens.weight", "Q8_0", &[1, 32], &block, "embeddings").unwrap();
    w.add_raw("100%#odd@name", "BF16", &[0, 4], &[], "no elements").unwrap();
    w.add_raw("ids", "I64", &[], &7i64.to_le_bytes(), "not a float dtype").unwrap();
    w.add_blob("config.json", b"{\"model_type\": \"golden\"}\n").unwrap();
    w.add_blob("tokenizer.json", "{\"é\": \"\\\"🦀\\\"\"}".as_bytes()).unwrap();
    let source = json!({ "kind": "test" });
    let recipe = json!({ "program": "golden", "rate": 3.5, "list": [1, null, true] });
    w.finish(ManifestInfo { kind: ContainerKind::Tensors, source, recipe }).unwrap();
}

/// What a reader must find: points as integers, values as the bits of f32, both digested, with the first few in clear.
fn expected(path: &Path) -> Value {
    let c = Container::open(path).unwrap();
    let mut out = serde_json::Map::new();
    for entry in c.entries() {
        let name = entry.name.as_str();
        let line = if entry.is_coded() {
            let coded = c.coded(name).unwrap();
            let d = coded.decoder().unwrap();
            let n = d.rows() * d.cols();
            let (mut points, mut values) = (vec![0i32; n], vec![0f32; n]);
            let mut scratch = DecodeScratch::new();
            d.decode_points(0..d.rows(), &mut points, &mut scratch).unwrap();
            d.decode_rows(0..d.rows(), &mut values, &mut scratch).unwrap();
            let digest = |bytes: Vec<u8>| Digest::of(&bytes).to_string();
            json!({
                "shape": [d.rows(), d.cols()],
                "points_xxh3": digest(points.iter().flat_map(|p| p.to_le_bytes()).collect()),
                "values_xxh3": digest(values.iter().flat_map(|v| v.to_le_bytes()).collect()),
                "first_points": points[..8],
                "first_value_bits": values[..8].iter().map(|v| format!("{:08x}", v.to_bits())).collect::<Vec<_>>(),
            })
        } else {
            let raw = c.raw(name).unwrap();
            json!({ "shape": raw.shape, "dtype": raw.dtype, "bytes_xxh3": Digest::of(raw.bytes).to_string() })
        };
        out.insert(name.to_owned(), line);
    }
    for blob in &c.manifest().blobs {
        let bytes = c.blob(&blob.name).unwrap().unwrap();
        out.insert(format!("@blob/{}", blob.name), json!({ "bytes_xxh3": Digest::of(bytes).to_string() }));
    }
    Value::Object(out)
}

fn bless() {
    if std::env::var_os("GOSSET_BLESS").is_some() {
        write(&golden("format-1.0.gosset"));
        let text = serde_json::to_string_pretty(&expected(&golden("format-1.0.gosset"))).unwrap();
        fs::write(golden("format-1.0.json"), text + "\n").unwrap();
    }
}

#[test]
fn i01_golden_file_is_written_and_read_as_recorded() {
    bless();
    let stored = golden("format-1.0.gosset");
    let dir = tempfile::tempdir().unwrap();
    let today = dir.path().join("today.gosset");
    write(&today);
    assert!(
        fs::read(&today).unwrap() == fs::read(&stored).unwrap(),
        "today's writer makes other bytes than {stored:?}"
    );
    let recorded: Value = serde_json::from_slice(&fs::read(golden("format-1.0.json")).unwrap()).unwrap();
    assert_eq!(expected(&stored), recorded);
    let c = Container::open(&stored).unwrap();
    c.verify().unwrap();
    assert_eq!(c.ledger().unwrap().causes.total_bits(), c.file_bytes() * 8);
    // The file exercises what it says: escapes, exact rows, several pages.
    assert_eq!(c.coded("z").unwrap().decoder().unwrap().n_exact_rows(), 2);
    assert!(c.coded("d4").unwrap().header().rows * 172 > 64 * 512);
}

#[test]
fn g07_golden_file_decodes_without_this_program() {
    let script = golden("decode_golden.py");
    let python = std::process::Command::new("python3").arg(&script).arg(golden("format-1.0.gosset")).output();
    match python {
        Ok(out) => {
            let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
            assert!(out.status.success(), "{text}");
            assert!(text.contains("1 escapes"), "{text}");
        }
        Err(e) => eprintln!("SKIPPED: python3 cannot be run ({e})"),
    }
}
