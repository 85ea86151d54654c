//! Matrices of affine-grid codes in files: round trips, accounts, damage, hostile headers.
#![allow(clippy::unwrap_used, reason = "fixtures of tests")]

use std::fs;
use std::path::Path;

use gosset_container::{
    Container, ContainerError, ContainerKind, EntryKind, Forecast, FormatVersion, ManifestInfo, VerifyReport, Writer,
};
use gosset_unisvq::{UniSvqMatrix, UniSvqSpec};
use half::f16;
use proptest::prelude::*;

fn info() -> ManifestInfo {
    ManifestInfo { kind: ContainerKind::Tensors, source: "a test".into(), recipe: "a test".into() }
}

fn matrix(name: &str, bits: f64, rows: usize, cols: usize, tuned: bool) -> UniSvqMatrix {
    let w: Vec<f32> = (0..rows * cols).map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0).collect();
    let (mut m, _) = UniSvqSpec::named(name, bits).unwrap().check().unwrap().encode(&w, rows, cols, None).unwrap();
    if tuned {
        m.input_scales = Some((0..cols).map(|i| f16::from_f32(1.0 + i as f32 / 256.0)).collect());
        m.output_scales = Some((0..rows).map(|i| f16::from_f32(-1.0 - i as f32 / 256.0)).collect());
        m.header.affine = Some(m.header.affine_map());
    }
    m
}

/// `plain` at 2 bits, `odd` at 3 bits with rows that end inside bytes, `tuned` with a map and scales.
fn sample(path: &Path) -> [(&'static str, UniSvqMatrix); 3] {
    let tensors = [
        ("plain", matrix("unisvq", 2.0, 32, 64, false)),
        ("odd#name", matrix("unisvq-norht", 3.0, 3, 21, false)),
        ("tuned", matrix("unisvq-random-full", 2.0, 20, 48, true)),
    ];
    let mut w = Writer::create(path, true).unwrap();
    for (name, m) in &tensors {
        w.add_unisvq(name, m, "BF16").unwrap();
    }
    w.add_raw("norm", "F32", &[2], &[0; 8], "norm").unwrap();
    w.finish(info()).unwrap();
    tensors
}

#[test]
fn matrices_come_back_and_every_bit_has_its_cause() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("u.gosset");
    let tensors = sample(&path);
    let c = Container::open(&path).unwrap();
    assert_eq!(c.manifest().format, FormatVersion { major: 1, minor: 2 });
    let ledger = c.ledger().unwrap();
    assert_eq!(ledger.causes.total_bits(), c.file_bytes() * 8);
    for (name, m) in &tensors {
        let stored = c.unisvq(name).unwrap();
        assert_eq!(&stored.to_matrix(), m);
        let (rows, cols) = (m.header.rows, m.header.cols);
        let mut values = [vec![0f32; (rows * cols) as usize], vec![0f32; (rows * cols) as usize]];
        stored.decoder().unwrap().decode_rows(0..rows as usize, &mut values[0]);
        m.decoder().unwrap().decode_rows(0..rows as usize, &mut values[1]);
        assert_eq!(values[0], values[1]);
        let line = ledger.tensor(name).unwrap();
        assert_eq!((line.kind, line.n_weights), (EntryKind::Coded, rows * cols));
        assert_eq!(line.causes.payload_bits, m.payload_bits());
        assert_eq!(line.causes.scale_bits, m.scale_bits());
        assert_eq!(line.causes.padding_bits, m.codes.len() as u64 * 8 - m.payload_bits());
        assert_eq!(line.rate().payload_bps(), f64::from(m.header.bits));
        assert_eq!(line.plane_bytes(), stored.n_bytes());
        let entry = c.entry(name).unwrap();
        assert!(entry.is_unisvq() && entry.is_quantized() && !entry.is_coded());
        assert_eq!((entry.shape(), entry.dtype()), (vec![rows as usize, cols as usize], "BF16"));
        assert!(matches!(c.coded(name), Err(ContainerError::WrongKind { .. })));
        assert!(matches!(c.raw(name), Err(ContainerError::WrongKind { .. })));
    }
    assert!(matches!(c.unisvq("norm"), Err(ContainerError::WrongKind { .. })));
    assert!(matches!(c.unisvq("absent"), Err(ContainerError::NoTensor { .. })));
    assert_eq!(ledger.n_quantized, 32 * 64 + 3 * 21 + 20 * 48);
    let VerifyReport { n_decoded, n_weights, .. } = c.verify().unwrap();
    assert_eq!((n_decoded as u64, n_weights), (3, ledger.n_quantized));
    // The same content gives the same bytes.
    let again = dir.path().join("again.gosset");
    sample(&again);
    assert_eq!(fs::read(&path).unwrap(), fs::read(&again).unwrap());
}

#[test]
fn a_file_without_grid_codes_keeps_its_version() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r.gosset");
    let mut w = Writer::create(&path, true).unwrap();
    w.add_raw("norm", "F32", &[2], &[0; 8], "norm").unwrap();
    w.finish(info()).unwrap();
    assert_eq!(Container::open(&path).unwrap().manifest().format.minor, 0);
}

#[test]
fn forecasts_of_grid_codes_are_never_too_low_and_hardly_too_high() {
    let dir = tempfile::tempdir().unwrap();
    for tuned in [false, true] {
        let path = dir.path().join(format!("{tuned}.gosset"));
        let m = matrix("unisvq", 3.0, 40, 172, tuned);
        let mut w = Writer::create(&path, true).unwrap();
        w.add_unisvq("layers.0.w", &m, "F32").unwrap();
        let forecast = Forecast::unisvq("layers.0.w", "F32", &m.header, tuned, 99_999);
        let header = Forecast::frame(&info()).unwrap() + forecast.header_bytes;
        let summary = w.finish(info()).unwrap();
        assert_eq!(summary.file_bytes - summary.header_bytes, forecast.plane_bytes);
        assert_eq!(summary.n_planes as u64, forecast.n_planes);
        assert!(header >= summary.header_bytes && header - summary.header_bytes < 160, "{header}, {summary:?}");
    }
}

#[test]
fn i02_every_flipped_bit_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("u.gosset");
    sample(&path);
    let mut bytes = fs::read(&path).unwrap();
    let target = dir.path().join("flipped.gosset");
    let n_bits = bytes.len() * 8;
    for bit in (0..n_bits).step_by((n_bits / 1000) | 1) {
        bytes[bit / 8] ^= 1 << (bit % 8);
        fs::write(&target, &bytes).unwrap();
        assert!(Container::open(&target).and_then(|c| c.verify()).is_err(), "bit {bit} of {n_bits}");
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
}

#[test]
fn a_matrix_that_does_not_decode_is_not_written() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("u.gosset");
    let mut w = Writer::create(&path, true).unwrap();
    let mut m = matrix("unisvq", 2.0, 32, 64, false);
    m.codes.pop();
    assert!(matches!(w.add_unisvq("a", &m, "F32"), Err(ContainerError::Input { .. })));
    // Nothing of it is left behind.
    w.add_unisvq("a", &matrix("unisvq", 2.0, 32, 64, false), "F32").unwrap();
    w.finish(info()).unwrap();
    Container::open(&path).unwrap().verify().unwrap();
}

/// A file with this header, its checksum made right, and this data.
fn rebuilt(header: &str, data: &[u8]) -> Vec<u8> {
    const OPENING: usize = "{\"__metadata__\":{\"gosset_header_xxh3\":\"".len();
    let mut text = header.trim_end().as_bytes().to_vec();
    text[OPENING..OPENING + 16].fill(b'0');
    text.resize((8 + text.len()).next_multiple_of(64) - 8, b' ');
    let mut out = (text.len() as u64).to_le_bytes().to_vec();
    out.extend_from_slice(&text);
    let digest = format!("{:016x}", xxhash_rust::xxh3::xxh3_64(&out));
    out[8 + OPENING..][..16].copy_from_slice(digest.as_bytes());
    out.extend_from_slice(data);
    out
}

/// The header of a sample as text, and its data.
fn parts(path: &Path) -> (String, Vec<u8>) {
    sample(path);
    let bytes = fs::read(path).unwrap();
    let len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    (String::from_utf8(bytes[8..8 + len].to_vec()).unwrap(), bytes[8 + len..].to_vec())
}

#[test]
fn i02_hostile_headers_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("h.gosset");
    let (header, data) = parts(&dir.path().join("u.gosset"));
    for (from, to) in [
        ("\\\"rows\\\":32", "\\\"rows\\\":4000000000"),
        ("\\\"rows\\\":32", "\\\"rows\\\":0"),
        ("\\\"rows\\\":32", "\\\"rows\\\":31"),
        ("\\\"cols\\\":64", "\\\"cols\\\":18446744073709551615"),
        ("\\\"cols\\\":64", "\\\"cols\\\":68"),
        ("\\\"bits\\\":2", "\\\"bits\\\":1"),
        ("\\\"bits\\\":2", "\\\"bits\\\":200"),
        ("\\\"bits\\\":2", "\\\"bits\\\":4"),
        ("\\\"dim\\\":4", "\\\"dim\\\":0"),
        ("\\\"dim\\\":4", "\\\"dim\\\":16"),
        ("\\\"scale\\\":", "\\\"scale\\\":1e40,\\\"was\\\":"),
        ("[[64,1]]", "[[64,4294967295]]"),
        ("[[64,1]]", "[]"),
        ("[[64,1]]", "[[63,1]]"),
        ("\\\"orders\\\":[12,4]", "\\\"orders\\\":[12,8]"),
        ("\\\"orders\\\":[12,4]", "\\\"orders\\\":[12,4,1]"),
        ("\\\"orders\\\":[12,4]", "\\\"orders\\\":[4294967295,4294967295]"),
        ("\\\"b\\\":[", "\\\"b\\\":[1.0,"),
        ("\\\"a\\\":[", "\\\"a\\\":[1e39,"),
        ("\\\"name\\\":\\\"codes\\\"", "\\\"name\\\":\\\"cods\\\""),
        ("\\\"name\\\":\\\"input_scales\\\"", "\\\"name\\\":\\\"codes\\\""),
        ("\"dtype\":\"F16\"", "\"dtype\":\"BF16\""),
        ("\"dtype\":\"F16\"", "\"dtype\":\"U16\""),
    ] {
        assert!(header.contains(from), "{from} in {header}");
        fs::write(&target, rebuilt(&header.replacen(from, to, 1), &data)).unwrap();
        assert!(Container::open(&target).and_then(|c| c.verify()).is_err(), "{from} -> {to}");
    }
    // The untouched header passes through the same path.
    fs::write(&target, rebuilt(&header, &data)).unwrap();
    Container::open(&target).and_then(|c| c.verify()).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn i02_no_header_makes_a_reader_panic(edits in proptest::collection::vec((any::<prop::sample::Index>(), 0usize..11), 1..4)) {
        const BYTES: &[u8; 11] = b"0919-e.\"],}";
        let dir = tempfile::tempdir().unwrap();
        let (header, data) = parts(&dir.path().join("u.gosset"));
        let mut header = header.into_bytes();
        for (at, byte) in edits {
            let at = at.index(header.len());
            header[at] = BYTES[byte];
        }
        let target = dir.path().join("p.gosset");
        fs::write(&target, rebuilt(&String::from_utf8(header).unwrap(), &data)).unwrap();
        if let Ok(c) = Container::open(&target) {
            let _ = c.verify();
            let _ = c.ledger();
            for entry in c.entries() {
                if let Ok(tensor) = c.unisvq(&entry.name) {
                    let decoder = tensor.decoder().unwrap();
                    let mut row = vec![0f32; decoder.cols()];
                    decoder.decode_rows(0..1, &mut row);
                }
            }
        }
    }
}
