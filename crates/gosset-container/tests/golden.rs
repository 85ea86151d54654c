//! The golden files, one or two per version of format 1: today's writer makes them byte for byte, today's reader decodes them to the
//! recorded values, and so does `tests/golden/decode_golden.py`, which was written from docs/FORMAT.md alone.
//!
//! After a deliberate change of the newest version that no release has, make its files anew with
//! `GOSSET_BLESS=1 cargo test -p gosset-container --test golden`; those of older versions stay as they are.

#![allow(clippy::unwrap_used, reason = "fixtures of tests")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Once;

use gosset_codec::{
    CodeHeader, CodecSpec, ColumnEncoder, ColumnOptions, DecodeScratch, EncodedMatrix, N_CLASSES, N_EXPONENTS,
    RateTarget, RotationHeader, RotationSpec, SchemeHeader, SchemeSpec, ShiftCodeKind, ShiftOrderKind,
};
use gosset_container::{Container, ContainerKind, Digest, FORMAT_MINOR, FormatVersion, ManifestInfo, Writer};
use gosset_unisvq::UniSvqSpec;
use half::f16;
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

/// A matrix under a fixed alpha, so that the golden files do not depend on how rates are calibrated.
fn encode(codec: &str, alpha: f64, rotation: RotationSpec, data: Vec<f32>, rows: usize) -> EncodedMatrix {
    encode_as(
        CodecSpec { rotation, target: RateTarget::Alpha(alpha), ..CodecSpec::named(codec, 3.0).unwrap() },
        data,
        rows,
    )
}

/// A matrix under a bit-shift trellis of `bits` per weight.
fn shift(codec: &str, bits: f64, in_order: ShiftOrderKind, data: Vec<f32>, rows: usize) -> EncodedMatrix {
    let mut spec = CodecSpec::named(codec, bits).unwrap();
    if let SchemeSpec::Shift { order, .. } = &mut spec.scheme {
        *order = in_order;
    }
    encode_as(spec, data, rows)
}

fn encode_as(spec: CodecSpec, data: Vec<f32>, rows: usize) -> EncodedMatrix {
    let cols = data.len() / rows;
    spec.check().unwrap().encode_owned(data, rows, cols).unwrap()
}

const fn rht(tile: u32, seed: u64) -> RotationSpec {
    RotationSpec::Rht { tile, seed }
}

/// A golden file: minor version, which of its files, what writes it, and the number of escapes that the Python decoder counts.
struct Golden {
    minor: u32,
    part: &'static str,
    write: fn(&Path),
    n_escapes: u32,
}

/// The newest last.
const GOLDENS: [Golden; 4] = [
    Golden { minor: 0, part: "", write: write_1_0, n_escapes: 1 },
    Golden { minor: 1, part: "", write: write_1_1, n_escapes: 43 },
    Golden { minor: 2, part: "", write: write_1_2, n_escapes: 0 },
    Golden { minor: 2, part: "-columns", write: write_1_2_columns, n_escapes: 2 },
];

impl Golden {
    fn container(&self) -> PathBuf {
        golden(&format!("format-1.{}{}.gosset", self.minor, self.part))
    }

    fn recorded(&self) -> PathBuf {
        golden(&format!("format-1.{}{}.json", self.minor, self.part))
    }
}

/// Rice codes, exact rows, rotations, raw tensors and side files.
fn write_1_0(path: &Path) {
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
    w.add_matrix("z", &encode("z-rice", 1.755, rht(128, u64::MAX), odd_rows(), 7), "F32").unwrap();

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

/// What 1.1 added: ANS, the entropy-coded trellis and the bit-shift trellis.
fn write_1_1(path: &Path) {
    let mut w = Writer::create(path, true).unwrap();
    let mut add = |name: &str, encoded: EncodedMatrix| w.add_matrix(name, &encoded, "F32").unwrap();
    let with = |mut data: Vec<f32>, outliers: &[(usize, f32)]| {
        outliers.iter().for_each(|&(at, value)| data[at] = value);
        data
    };

    // Several streams, the last one short; few and many contexts.
    add("ans/z", encode("z", 0.5, rht(128, 1), values(180 * 200, 11), 180));
    add("ans/e8", encode("e8", 1.1, RotationSpec::None, values(99 * 333, 12), 99));
    // Every context at a higher rate, a last block that is padded, escapes on both sides.
    add("ans/z at 3 bits", encode("z", 2.3, RotationSpec::None, with(values(3 * 65, 13), &[(7, 20.0), (80, -9.0)]), 3));
    add("ans/a2", encode("a2", 4.5, RotationSpec::None, with(values(3 * 333, 14), &[(500, 25.0), (501, -25.0)]), 3));
    add("ans/d4", encode("d4", 4.2, RotationSpec::None, with(values(5 * 131, 15), &[(400, 25.0), (403, -30.0)]), 5));
    // The last coordinates of eight blocks, so that every residue has its escape.
    let last: Vec<(usize, f32)> = (0..8).map(|i| (207 + 80 * i, [1.0, -1.0][i % 2] * (20 + i) as f32)).collect();
    add("ans/e8 at 3 bits", encode("e8", 3.59, RotationSpec::None, with(values(7 * 123, 16), &last), 7));
    // Raw bits: one for A2 and Z, two for D4 and E8, and more.
    add("ans/z raw", encode("z", 15.0, RotationSpec::None, with(values(3 * 67, 17), &[(9, 30.0)]), 3));
    add("ans/a2 raw", encode("a2", 20.0, rht(128, 18), values(5 * 67, 18), 5));
    add("ans/d4 raw", encode("d4", 30.0, RotationSpec::None, with(values(3 * 67, 19), &[(66, -40.0)]), 3));
    add("ans/e8 raw", encode("e8", 24.0, RotationSpec::None, with(values(3 * 67, 20), &[(100, 40.0)]), 3));
    add("ans/z raw, wide", encode("z", 60_000.0, RotationSpec::None, values(33, 21), 1));
    add("ans/a2 raw, wide", encode("a2", 3000.0, RotationSpec::None, values(33, 22), 1));
    add("ans/d4 raw, wide", encode("d4", 1000.0, RotationSpec::None, values(33, 23), 1));
    add("ans/e8 raw, wide", encode("e8", 4000.0, RotationSpec::None, values(33, 24), 1));
    // A row of zeros, and two rows that are stored exactly.
    add("ans/odd rows", encode("e8", 3.0, rht(128, 5), odd_rows(), 7));

    add("trellis/8", encode("trellis-8", 0.7, rht(128, 31), values(128 * 129, 31), 129));
    add(
        "trellis/64",
        encode("trellis-64", 3.0, RotationSpec::None, with(values(7 * 65, 32), &[(300, 29.0), (303, -29.0)]), 7),
    );
    add("trellis/256", encode("trellis-256", 12.0, rht(128, 33), values(5 * 172, 33), 5));
    add("trellis/8 raw", encode("trellis-8", 30.0, RotationSpec::None, with(values(3 * 43, 34), &[(40, -25.0)]), 3));
    add("trellis/64 raw", encode("trellis-64", 600.0, RotationSpec::None, values(3 * 43, 35), 3));
    add("trellis/odd rows", encode("trellis-256", 1.0, rht(128, 36), odd_rows(), 7));

    use ShiftOrderKind::{Rows, Tiles};
    for (i, (codec, bits, order, rows, cols)) in [
        ("shift-12", 2.0, Rows, 3, 77),
        ("shift-14", 3.0, Rows, 3, 70),
        ("shift-16", 4.0, Rows, 2, 41),
        ("shift-13", 5.0, Rows, 3, 33),
        ("shift-15", 6.0, Rows, 2, 37),
        ("shift-18", 6.0, Rows, 2, 19),
        ("shift-17", 2.0, Tiles, 7, 17),
        ("shift-12", 3.0, Tiles, 18, 33),
        ("shift-13", 4.0, Tiles, 17, 16),
        ("shift-12", 5.0, Tiles, 16, 16),
        ("shift-14", 6.0, Tiles, 5, 20),
        ("shift-12", 6.0, Tiles, 1, 1),
        ("shiftlut-17", 2.0, Rows, 2, 45),
        ("shiftlut-17", 3.0, Rows, 1, 33),
        ("shiftlut-17", 4.0, Rows, 2, 17),
        ("shiftlut-17", 2.0, Tiles, 9, 15),
        ("shiftlut-17", 3.0, Tiles, 16, 16),
        ("shiftlut-17", 4.0, Tiles, 3, 5),
    ]
    .into_iter()
    .enumerate()
    {
        let order_name = if order == Rows { "rows" } else { "tiles" };
        let data = values(rows * cols, 40 + i as u64);
        add(&format!("shift/{codec}@{bits} {order_name}"), shift(codec, bits, order, data, rows));
    }
    add("shift/odd rows", shift("shift-12", 3.0, Rows, odd_rows(), 7));
    add("shift/odd rows in tiles", shift("shift-12", 2.0, Tiles, odd_rows(), 7));

    w.add_raw("norm", "F32", &[3], &[1.0f32, -0.5, 1e-40].map(f32::to_le_bytes).concat(), "norm").unwrap();
    w.add_blob("config.json", b"{\"model_type\": \"golden\"}\n").unwrap();
    w.finish(ManifestInfo { kind: ContainerKind::Tensors, source: json!({ "kind": "test" }), recipe: json!({}) })
        .unwrap();
}

/// What 1.2 added: matrices of affine-grid codes.
fn write_1_2(path: &Path) {
    let mut w = Writer::create(path, true).unwrap();
    for (i, (name, bits, rows, cols)) in [
        // Tiles on both sides, ends of bytes, of tiles and of groups.
        ("unisvq", 2.0, 64, 128),
        ("unisvq", 3.0, 43, 172),
        ("unisvq-d8", 4.0, 13, 33),
        // Maps of their own; the last columns have a part of the map.
        ("unisvq-random", 2.0, 20, 36),
        ("unisvq-d8-random", 2.0, 12, 43),
        ("unisvq-d4gen", 3.0, 5, 18),
        ("unisvq-norht", 2.0, 3, 10),
        // Both constructions of Paley, several factors, a width without a matrix.
        ("unisvq-full", 2.0, 36, 48),
        ("unisvq-d2-random-full", 3.0, 28, 144),
        ("unisvq-d1-full", 2.0, 43, 20),
    ]
    .into_iter()
    .enumerate()
    {
        let mut spec = UniSvqSpec::named(name, bits).unwrap();
        (spec.scales, spec.seed) = (vec![0.8], i as u64);
        let data = values(rows * cols, 60 + i as u64);
        let (mut matrix, _) = spec.check().unwrap().encode(&data, rows, cols, None).unwrap();
        w.add_unisvq(&format!("{name}@{bits}"), &matrix, "F32").unwrap();
        // As fine-tuning leaves it.
        let noise = |n: usize, seed| values(n, seed).into_iter().map(|v| v / 16.0);
        let mut map = matrix.header.affine_map();
        map.a.iter_mut().zip(noise(64, 80)).for_each(|(a, e)| *a += e);
        map.b.iter_mut().zip(noise(8, 81)).for_each(|(b, e)| *b += e);
        let decoder = matrix.decoder().unwrap();
        let tuned = |s: &[f32], seed| s.iter().zip(noise(s.len(), seed)).map(|(s, e)| f16::from_f32(s + e)).collect();
        let (su, sv) = (tuned(decoder.input_scales(), 82), tuned(decoder.output_scales(), 83));
        drop(decoder);
        (matrix.header.affine, matrix.input_scales) = (Some(map), Some(su));
        matrix.output_scales = (i % 2 == 0).then_some(sv);
        w.add_unisvq(&format!("{name}@{bits}, tuned"), &matrix, "BF16").unwrap();
    }
    w.add_raw("norm", "F32", &[3], &[1.0f32, -0.5, 1e-40].map(f32::to_le_bytes).concat(), "norm").unwrap();
    w.finish(ManifestInfo { kind: ContainerKind::Tensors, source: json!({ "kind": "test" }), recipe: json!({}) })
        .unwrap();
}

/// Matrices stored by columns, with and without factors of rows.
fn write_1_2_columns(path: &Path) {
    let mut w = Writer::create(path, true).unwrap();
    for (i, (codec, bits, rows, cols)) in [
        // Several streams, a last block that is padded, classes and exponents of all kinds.
        ("e8", 3.0, 129, 300),
        ("d4", 2.0, 37, 65),
        ("a2", 3.5, 33, 40),
        ("z", 1.5, 40, 36),
        // Raw bits.
        ("e8", 7.0, 19, 23),
        ("z", 8.0, 9, 20),
        ("trellis-8", 2.5, 64, 300),
        ("trellis-64", 3.0, 37, 30),
        ("trellis-256", 7.5, 21, 20),
        // Strings of unequal length, several in a line, pairs.
        ("shift-12", 3.0, 37, 20),
        ("shift-13", 2.0, 300, 5),
        ("shift-14", 5.0, 40, 7),
        ("shiftlut-17", 4.0, 70, 5),
        // A line in several streams; a single row.
        ("e8", 1.0, 33_000, 1),
        ("trellis-8", 1.0, 17_000, 1),
        ("z", 2.0, 1, 70),
    ]
    .into_iter()
    .enumerate()
    {
        let encoded = by_columns(codec, bits, rows, cols, i);
        w.add_matrix(&format!("{codec}@{bits} {rows} x {cols}"), &encoded, "F32").unwrap();
    }
    w.finish(ManifestInfo { kind: ContainerKind::Tensors, source: json!({ "kind": "test" }), recipe: json!({}) })
        .unwrap();
}

/// Columns of different spread, some of zeros; every other matrix with rotated outputs, every third with factors of rows.
fn by_columns(codec: &str, bits: f64, rows: usize, cols: usize, i: usize) -> EncodedMatrix {
    let is_shift = codec.starts_with("shift");
    let rotated = |asked: bool, width: usize| {
        if asked && width > 1 { rht(128, i as u64).header(width).unwrap() } else { RotationHeader::None }
    };
    let exponent = |col: usize| col * 7 % N_EXPONENTS;
    let step = 2f32.powi(-bits.round() as i32);
    let mut gains = [1.0; N_CLASSES];
    gains
        .iter_mut()
        .take(if i.is_multiple_of(2) { N_CLASSES } else { 0 })
        .enumerate()
        .for_each(|(c, g)| *g = 0.8 + 0.0625 * c as f32);
    let options = ColumnOptions {
        inputs: rotated(is_shift, cols),
        outputs: rotated(i.is_multiple_of(2), rows),
        step: if is_shift { 1.0 / 4096.0 } else { step },
        exponents: if is_shift { Vec::new() } else { (0..cols).map(|col| exponent(col) as u8).collect() },
        reach: 8.0 / step,
        gains,
        row_exponents: if i.is_multiple_of(3) {
            (0..rows).map(|row| (row * 5 % 16) as u8).collect()
        } else {
            Vec::new()
        },
    };
    let spec = CodecSpec::named(codec, bits).unwrap();
    let mut encoder = ColumnEncoder::new(&spec, rows, cols, &options).unwrap();
    let values = values(rows * cols, 100 + i as u64);
    let mut written = vec![0.0; rows];
    for col in (0..cols).rev() {
        let spread = if col % 11 == 4 { 0.0 } else { 2f32.powi((col as i32 * 5 + 4) % 5 - 3) };
        let column: Vec<f32> = values[col * rows..][..rows].iter().map(|v| spread * v).collect();
        encoder.round_column(col, &column, &mut written).unwrap();
    }
    encoder.finish().unwrap()
}

/// Seven rows of 65 values, of which one is zero and two are stored exactly.
fn odd_rows() -> Vec<f32> {
    let mut rows = values(7 * 65, 5);
    rows[65..130].fill(0.0);
    rows[130..195].fill(1e-42);
    rows[390..455].fill(-2e-39);
    rows
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
            d.decode_rows(0..d.rows(), &mut values, &mut scratch).unwrap();
            let digest = |bytes: Vec<u8>| Digest::of(&bytes).to_string();
            let mut line = json!({
                "shape": [d.rows(), d.cols()],
                "values_xxh3": digest(values.iter().flat_map(|v| v.to_le_bytes()).collect()),
                "first_value_bits": values[..n.min(8)].iter().map(|v| format!("{:08x}", v.to_bits())).collect::<Vec<_>>(),
            });
            if coded.header().columns.is_none() {
                d.decode_points(0..d.rows(), &mut points, &mut scratch).unwrap();
                line["points_xxh3"] = json!(digest(points.iter().flat_map(|p| p.to_le_bytes()).collect()));
                line["first_points"] = json!(points[..n.min(8)]);
            }
            line
        } else if entry.is_unisvq() {
            let tensor = c.unisvq(name).unwrap();
            let d = tensor.decoder().unwrap();
            let n = d.rows() * d.cols();
            let (mut codes, mut values) = (vec![0f32; n], vec![0f32; n]);
            d.codes_as_f32(0..d.rows(), &mut codes);
            d.decode_rows(0..d.rows(), &mut values);
            let codes: Vec<u8> = codes.iter().map(|q| *q as u8).collect();
            json!({
                "shape": [d.rows(), d.cols()],
                "codes_xxh3": Digest::of(&codes).to_string(),
                "values_xxh3": Digest::of(&values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>()).to_string(),
                "first_codes": codes[..n.min(8)],
                "first_value_bits": values[..n.min(8)].iter().map(|v| format!("{:08x}", v.to_bits())).collect::<Vec<_>>(),
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

/// Renews the files of the newest version, if asked to.
fn bless() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if std::env::var_os("GOSSET_BLESS").is_some() {
            for newest in GOLDENS.iter().filter(|golden| golden.minor == FORMAT_MINOR) {
                (newest.write)(&newest.container());
                let text = serde_json::to_string_pretty(&expected(&newest.container())).unwrap();
                fs::write(newest.recorded(), text + "\n").unwrap();
            }
        }
    });
}

#[test]
fn i01_golden_files_are_written_and_read_as_recorded() {
    bless();
    assert_eq!(GOLDENS.map(|golden| golden.minor).last(), Some(&FORMAT_MINOR), "every version has a golden file");
    for golden in &GOLDENS {
        let stored = golden.container();
        let dir = tempfile::tempdir().unwrap();
        let today = dir.path().join("today.gosset");
        (golden.write)(&today);
        assert!(
            fs::read(&today).unwrap() == fs::read(&stored).unwrap(),
            "today's writer makes other bytes than {stored:?}"
        );
        let recorded: Value = serde_json::from_slice(&fs::read(golden.recorded()).unwrap()).unwrap();
        let found = expected(&stored);
        for (name, line) in found.as_object().unwrap() {
            assert_eq!(Some(line), recorded.get(name), "{name} in {stored:?}");
        }
        assert_eq!(found, recorded);
        let c = Container::open(&stored).unwrap();
        assert_eq!(c.manifest().format, FormatVersion { major: 1, minor: golden.minor });
        c.verify().unwrap();
        assert_eq!(c.ledger().unwrap().causes.total_bits(), c.file_bytes() * 8);
    }
}

#[test]
fn the_golden_files_exercise_what_they_say() {
    bless();
    // Exact rows and several pages.
    let c = Container::open(&golden("format-1.0.gosset")).unwrap();
    assert_eq!(c.coded("z").unwrap().decoder().unwrap().n_exact_rows(), 2);
    assert!(c.coded("d4").unwrap().header().rows * 172 > 64 * 512);

    let c = Container::open(&golden("format-1.1.gosset")).unwrap();
    assert!(c.file_bytes() < 300_000);
    let (mut raw_bits, mut states, mut shifts) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for entry in c.entries().iter().filter(|entry| entry.is_coded()) {
        let coded = c.coded(&entry.name).unwrap();
        match &coded.header().scheme {
            SchemeHeader::Lattice(lattice) => match lattice.code {
                CodeHeader::Ans { raw_bits: w, .. } => raw_bits.insert((lattice.lattice.0.dim(), w.min(3))),
                _ => panic!("{} is under a Rice code", entry.name),
            },
            // Tables from 62 on have raw bits.
            SchemeHeader::Trellis(trellis) => states.insert((trellis.states, trellis.table >= 62)),
            SchemeHeader::Shift(shift) => {
                let (code, order) = (shift.code == ShiftCodeKind::Pairs, shift.order == ShiftOrderKind::Tiles);
                shifts.insert((code, order, shift.bits))
            }
            other => panic!("{} has the scheme {other:?}", entry.name),
        };
        let n_exact_rows = if entry.name.contains("odd rows") { 2 } else { 0 };
        assert_eq!(coded.decoder().unwrap().n_exact_rows(), n_exact_rows, "{}", entry.name);
    }
    assert_eq!(
        Vec::from_iter(raw_bits),
        [(1, 0), (1, 1), (1, 3), (2, 0), (2, 1), (2, 3), (4, 0), (4, 2), (4, 3), (8, 0), (8, 2), (8, 3)]
    );
    assert_eq!(states.len(), 5);
    let bits: Vec<(bool, u8)> =
        [2, 3, 4, 5, 6].map(|bits| (false, bits)).into_iter().chain([2, 3, 4].map(|bits| (true, bits))).collect();
    for (pairs, k) in bits {
        for tiles in [false, true] {
            assert!(shifts.contains(&(pairs, tiles, k)), "{k} bits, pairs {pairs}, tiles {tiles}");
        }
    }
}

#[test]
fn g07_golden_files_decode_without_this_program() {
    bless();
    for golden_file in &GOLDENS {
        let python = Command::new("python3").arg(golden("decode_golden.py")).arg(golden_file.container()).output();
        match python {
            Ok(out) => {
                let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
                assert!(out.status.success(), "{text}");
                assert!(text.contains(&format!(" {} escapes", golden_file.n_escapes)), "{text}");
            }
            Err(e) => eprintln!("SKIPPED: python3 cannot be run ({e})"),
        }
    }
}
