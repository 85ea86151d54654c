//! Laws of the container: what is written comes back, every byte is accounted for, every damage is noticed.
#![allow(clippy::unwrap_used, reason = "fixtures of tests")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use gosset_codec::{CodecSpec, DecodeScratch, EncodedMatrix, MatRef, Plane, PlaneData};
use gosset_container::safetensors_header as st;
use gosset_container::{Container, ContainerError, ContainerKind, FORMAT_MINOR, ManifestInfo, Writer};
use proptest::prelude::*;
use serde_json::json;

/// Values without libm: the same on every machine.
fn weights(n: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as i32
    };
    (0..n).map(|_| ((next() + next() + next() + next() - (2 << 24)) as f32) / 8_388_608.0).collect()
}

fn matrix(spec: &str, rows: usize, cols: usize) -> EncodedMatrix {
    let data = weights(rows * cols, rows as u64);
    CodecSpec::parse(spec).unwrap().check().unwrap().encode(MatRef::new(&data, rows, cols).unwrap()).unwrap()
}

fn info() -> ManifestInfo {
    ManifestInfo { kind: ContainerKind::Tensors, source: json!({ "kind": "test" }), recipe: json!({ "a": [1, 2.5] }) }
}

/// A container with coded and raw tensors of every element size, side files and awkward names.
fn write_sample(path: &Path, overwrite: bool) {
    let mut w = Writer::create(path, overwrite).unwrap();
    w.add_matrix("a", &matrix("e8-rice@3", 40, 64), "BF16").unwrap();
    w.add_raw("norm", "F32", &[3], &[0, 0, 128, 63, 0, 0, 0, 64, 0, 0, 64, 64], "norm").unwrap();
    w.add_raw("odd", "Q8_0", &[1, 32], &[7; 34], "embeddings").unwrap();
    w.add_matrix("b", &matrix("z-rice@2", 3, 700), "F32").unwrap();
    w.add_raw("empty", "BF16", &[0, 5], &[], "no elements").unwrap();
    w.add_raw("scalar", "I64", &[], &[1, 0, 0, 0, 0, 0, 0, 0], "not a float dtype").unwrap();
    w.add_raw("__metadata__", "U8", &[1], &[9], "x").unwrap();
    w.add_raw("a#words", "U8", &[1], &[8], "x").unwrap();
    w.add_raw("名前/%\"\\\u{7}", "U8", &[1], &[6], "x").unwrap();
    w.add_blob("config.json", b"{}").unwrap();
    w.add_blob("empty", b"").unwrap();
    w.finish(info()).unwrap();
}

fn sample() -> (tempfile::TempDir, PathBuf) {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.gosset");
    let bytes = BYTES.get_or_init(|| {
        write_sample(&path, false);
        fs::read(&path).unwrap()
    });
    fs::write(&path, bytes).unwrap();
    (dir, path)
}

fn open_and_verify(path: &Path) -> Result<(), ContainerError> {
    Container::open(path)?.verify().map(|_| ())
}

fn decoded(c: &Arc<Container>, name: &str) -> Vec<f32> {
    let coded = c.coded(name).unwrap();
    let d = coded.decoder().unwrap();
    let mut out = vec![0.0; d.rows() * d.cols()];
    d.decode_rows(0..d.rows(), &mut out, &mut DecodeScratch::new()).unwrap();
    out
}

#[test]
fn what_is_written_comes_back() {
    let (_dir, path) = sample();
    let c = Container::open(&path).unwrap();
    assert_eq!(c.verify().unwrap().n_decoded, 2);
    for (name, spec, rows, cols) in [("a", "e8-rice@3", 40, 64), ("b", "z-rice@2", 3, 700)] {
        let m = matrix(spec, rows, cols);
        let mut expected = vec![0.0; rows * cols];
        m.decoder().unwrap().decode_rows(0..rows, &mut expected, &mut DecodeScratch::new()).unwrap();
        assert_eq!(decoded(&c, name), expected);
        assert_eq!(c.coded(name).unwrap().header(), &m.header);
    }
    let raw = c.raw("norm").unwrap();
    assert_eq!((raw.dtype, raw.shape, raw.bytes.len()), ("F32", &[3][..], 12));
    assert_eq!(raw.bytes.as_ptr().addr() % 4, 0);
    assert_eq!(c.raw("odd").unwrap().bytes, [7; 34]);
    assert!(c.raw("empty").unwrap().bytes.is_empty());
    assert_eq!(c.raw("scalar").unwrap().shape, &[] as &[usize]);
    for (name, byte) in [("__metadata__", 9), ("a#words", 8), ("名前/%\"\\\u{7}", 6)] {
        assert_eq!(c.raw(name).unwrap().bytes, [byte], "{name}");
    }
    assert_eq!(c.blob("config.json").unwrap(), Some(&b"{}"[..]));
    assert_eq!(c.blob("empty").unwrap(), Some(&b""[..]));
    assert_eq!(c.blob("tokenizer.json").unwrap(), None);
    assert_eq!(c.manifest().recipe, json!({ "a": [1, 2.5] }));
    assert!(matches!(c.coded("norm"), Err(ContainerError::WrongKind { .. })));
    assert!(matches!(c.raw("a"), Err(ContainerError::WrongKind { .. })));
    assert!(matches!(c.raw("zz"), Err(ContainerError::NoTensor { .. })));
}

#[test]
fn the_same_content_gives_the_same_bytes() {
    let (dir, first) = sample();
    let second = dir.path().join("again.gosset");
    write_sample(&second, false);
    assert_eq!(fs::read(first).unwrap(), fs::read(second).unwrap());
}

#[test]
fn copied_tensors_give_the_same_bytes() {
    let (dir, path) = sample();
    let from = Container::open(&path).unwrap();
    let copy = dir.path().join("copy.gosset");
    let mut writer = Writer::create(&copy, false).unwrap();
    for entry in from.entries() {
        writer.copy_tensor(&from, &entry.name).unwrap();
    }
    assert!(matches!(writer.copy_tensor(&from, "absent"), Err(ContainerError::NoTensor { .. })));
    for blob in &from.manifest().blobs {
        writer.add_blob(&blob.name, from.blob(&blob.name).unwrap().unwrap()).unwrap();
    }
    let manifest = from.manifest();
    let (kind, source, recipe) = (manifest.kind, manifest.source.clone(), manifest.recipe.clone());
    writer.finish(ManifestInfo { kind, source, recipe }).unwrap();
    assert_eq!(fs::read(&copy).unwrap(), fs::read(&path).unwrap());
}

#[test]
fn other_safetensors_readers_see_every_plane() {
    let (_dir, path) = sample();
    let bytes = fs::read(&path).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let (header_len, _) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    assert_eq!((8 + header_len) % 64, 0);
    assert_eq!(tensors.tensor("norm").unwrap().shape(), [3]);
    assert_eq!(tensors.tensor("odd").unwrap().dtype(), safetensors::Dtype::U8);
    let names: Vec<_> = tensors.names().into_iter().map(str::to_owned).collect();
    for name in ["a#words", "a#lengths", "a#bases", "a#scales", "a%23words", "%5F_metadata__", "@blob/config.json"] {
        assert!(names.iter().any(|n| n == name), "{name} among {names:?}");
    }
    for (name, t) in tensors.tensors() {
        let align = t.data().as_ptr().addr() - bytes.as_ptr().addr();
        assert_eq!(align * 8 % t.dtype().bitsize().max(8), 0, "{name}");
    }
}

#[test]
fn the_ledger_closes_to_the_byte() {
    let (_dir, path) = sample();
    let c = Container::open(&path).unwrap();
    let ledger = c.ledger().unwrap();
    let file = fs::metadata(&path).unwrap().len();
    assert_eq!(ledger.causes.total_bits(), file * 8);
    assert_eq!(ledger.entries.iter().map(|e| e.causes.total_bits()).sum::<u64>(), file * 8);
    assert_eq!(ledger.causes.header_bits, c.header_bytes() * 8);
    assert_eq!(ledger.n_quantized, 40 * 64 + 3 * 700);
    let all: u64 = ledger.entries.iter().map(|e| e.n_weights).sum();
    assert_eq!(ledger.n_params, all);
    let a = ledger.tensor("a").unwrap();
    let planes: usize = matrix("e8-rice@3", 40, 64).planes.iter().map(|p| p.data.n_bytes()).sum();
    assert_eq!(a.plane_bytes(), planes as u64);
    assert_eq!(a.rate().total_bits(), a.causes.total_bits());
    assert!(a.rate().all_in_bps() > a.rate().stream_bps() && a.rate().stream_bps() > a.rate().payload_bps());
}

#[test]
fn i02_every_flipped_bit_is_noticed() {
    let (dir, path) = sample();
    let bytes = fs::read(&path).unwrap();
    let target = dir.path().join("flipped.gosset");
    // A step that is coprime to 8 visits every bit position; about 2000 of them.
    let n_bits = bytes.len() * 8;
    let step = (n_bits / 2000) | 1;
    let mut damaged = bytes.clone();
    for bit in (0..n_bits).step_by(step) {
        damaged[bit / 8] ^= 1 << (bit % 8);
        fs::write(&target, &damaged).unwrap();
        assert!(open_and_verify(&target).is_err(), "bit {bit} of {n_bits}");
        damaged[bit / 8] ^= 1 << (bit % 8);
    }
}

#[test]
fn i02_every_flipped_bit_of_the_opening_is_noticed() {
    let (dir, path) = sample();
    let bytes = fs::read(&path).unwrap();
    let target = dir.path().join("flipped.gosset");
    let mut damaged = bytes.clone();
    // The length prefix, the key of the checksum and its digits.
    for bit in 0..72 * 8 {
        damaged[bit / 8] ^= 1 << (bit % 8);
        fs::write(&target, &damaged).unwrap();
        assert!(open_and_verify(&target).is_err(), "bit {bit}");
        damaged[bit / 8] ^= 1 << (bit % 8);
    }
}

#[test]
fn i02_every_cut_and_every_tail_is_noticed() {
    let (dir, path) = sample();
    let bytes = fs::read(&path).unwrap();
    let target = dir.path().join("cut.gosset");
    for len in (0..bytes.len()).step_by(bytes.len() / 300).chain([8, 9, bytes.len() - 1]) {
        fs::write(&target, &bytes[..len]).unwrap();
        assert!(Container::open(&target).is_err(), "cut to {len}");
    }
    for tail in [1, 8, 64, 4096] {
        let mut longer = bytes.clone();
        longer.resize(bytes.len() + tail, 0);
        fs::write(&target, &longer).unwrap();
        assert!(Container::open(&target).is_err(), "{tail} bytes more");
    }
}

#[test]
fn i02_damage_is_named_and_found_before_use() {
    let (dir, path) = sample();
    let bytes = fs::read(&path).unwrap();
    let header = st::parse(&bytes[8..8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize]).unwrap();
    let place = |name: &str| {
        let t = header.tensors.iter().find(|t| t.name == name).unwrap();
        (header.data_start + t.start) as usize..(header.data_start + t.end) as usize
    };
    let target = dir.path().join("d.gosset");
    // Two planes of one size, swapped.
    let mut swapped = bytes.clone();
    let (a, b) = (place("a%23words"), place("%5F_metadata__"));
    swapped.copy_within(a.clone(), b.start);
    swapped[a].copy_from_slice(&bytes[b]);
    fs::write(&target, &swapped).unwrap();
    assert!(open_and_verify(&target).is_err());
    // A zeroed run in the words of one tensor: the lazy path finds it too, other tensors stay usable.
    let mut zeroed = bytes.clone();
    zeroed[place("a#words")][..64].fill(0);
    fs::write(&target, &zeroed).unwrap();
    let c = Container::open(&target).unwrap();
    let error = c.verify().unwrap_err().to_string();
    assert!(error.contains("\"a#words\"") && error.contains("checksum"), "{error}");
    assert!(matches!(c.coded("a"), Err(ContainerError::PlaneChecksum { plane, .. }) if plane == "a#words"));
    assert!(c.coded("b").is_ok());
}

#[test]
fn i02_open_survives_hostile_bytes() {
    let (dir, path) = sample();
    let bytes = fs::read(&path).unwrap();
    let target = dir.path().join("h.gosset");
    let len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header = String::from_utf8(bytes[8..8 + len].to_vec()).unwrap();
    // Headers that are wrong in other ways than a checksum would notice: it is made right each time.
    for (from, to) in [
        ("\\\"rows\\\":40", "\\\"rows\\\":4000000000"),
        ("\\\"rows\\\":40", "\\\"rows\\\":0"),
        ("\\\"cols\\\":64", "\\\"cols\\\":18446744073709551615"),
        ("\\\"cols\\\":64", "\\\"cols\\\":-64"),
        ("[64,1]", "[64,4294967295]"),
        ("\\\"name\\\":\\\"words\\\"", "\\\"name\\\":\\\"wards\\\""),
        ("\\\"name\\\":\\\"b\\\"", "\\\"name\\\":\\\"a\\\""),
        ("\\\"dtype\\\":\\\"F32\\\"", "\\\"dtype\\\":\\\"F64\\\""),
        ("\\\"shape\\\":[3]", "\\\"shape\\\":[4]"),
        ("\\\"required\\\":true", "\\\"required\\\":7"),
        ("\\\"kind\\\":\\\"tensors\\\"", "\\\"kind\\\":\\\"tenors\\\""),
        ("\\\"blobs\\\":[", "\\\"blobs\\\":[0,"),
        ("\"dtype\":\"U16\"", "\"dtype\":\"U61\""),
    ] {
        assert!(header.contains(from), "{from}");
        fs::write(&target, rebuilt(&header.replacen(from, to, 1), &bytes[8 + len..])).unwrap();
        assert!(open_and_verify(&target).is_err(), "{from} -> {to}");
    }
    // The untouched header passes through the same path.
    fs::write(&target, rebuilt(&header, &bytes[8 + len..])).unwrap();
    open_and_verify(&target).unwrap();
}

#[test]
fn misaligned_planes_are_copied_and_mean_the_same() {
    let (dir, path) = sample();
    let bytes = fs::read(&path).unwrap();
    let len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header = String::from_utf8(bytes[8..8 + len].to_vec()).unwrap();
    let shifted = dir.path().join("shifted.gosset");
    let c = Container::open(&path).unwrap();
    for shift in 1..=8 {
        fs::write(&shifted, aligned_to(&header, shift, &bytes[8 + len..])).unwrap();
        let s = Container::open(&shifted).unwrap();
        s.verify().unwrap();
        for name in ["a", "b"] {
            assert_eq!(decoded(&s, name), decoded(&c, name));
        }
    }
}

#[test]
fn i02_more_weights_than_bits_are_refused_before_memory_is_taken() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("many.gosset");
    // Streams that claim no bits: 512 weights for each of their two bytes.
    let n_streams = 64 * 1000;
    let mut m = matrix("e8-rice@3", 1, 512);
    m.header.cols = n_streams * 512;
    m.header.rotation = gosset_codec::RotationHeader::None;
    for p in &mut m.planes {
        match p.name.as_ref() {
            "words" => p.data = PlaneData::U32(vec![].into()),
            "lengths" => p.data = PlaneData::U16(vec![0; n_streams as usize].into()),
            "bases" => p.data = PlaneData::U64(vec![0; n_streams as usize / 64].into()),
            _ => {}
        }
    }
    let mut w = Writer::create(&path, false).unwrap();
    w.add_matrix("a", &m, "F32").unwrap();
    w.finish(info()).unwrap();
    assert!(matches!(Container::open(&path), Err(ContainerError::Manifest { reason, .. }) if reason.contains("bits")));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn i02_no_header_makes_a_reader_panic(edits in proptest::collection::vec((any::<prop::sample::Index>(), 0usize..11), 1..4)) {
        // Bytes that keep JSON alive more often than random ones do.
        const BYTES: &[u8; 11] = b"0919-e.\"],}";
        let (dir, path) = sample();
        let bytes = fs::read(&path).unwrap();
        let len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let mut header = bytes[8..8 + len].to_vec();
        for (at, byte) in edits {
            let at = at.index(len);
            if header[at].is_ascii() {
                header[at] = BYTES[byte];
            }
        }
        let target = dir.path().join("p.gosset");
        fs::write(&target, rebuilt(&String::from_utf8(header).unwrap(), &bytes[8 + len..])).unwrap();
        if let Ok(c) = Container::open(&target) {
            let _ = c.verify();
            let _ = c.ledger();
            for entry in c.entries() {
                let _ = c.coded(&entry.name);
                let _ = c.raw(&entry.name);
            }
        }
    }
}

/// A file with this header, its checksum made right, and this data.
fn rebuilt(header: &str, data: &[u8]) -> Vec<u8> {
    aligned_to(header, 0, data)
}

/// The same with the data `shift` bytes behind a multiple of 64.
fn aligned_to(header: &str, shift: usize, data: &[u8]) -> Vec<u8> {
    const OPENING: usize = "{\"__metadata__\":{\"gosset_header_xxh3\":\"".len();
    let mut text = header.trim_end().as_bytes().to_vec();
    text[OPENING..OPENING + 16].fill(b'0');
    text.resize((8 + text.len()).next_multiple_of(64) - 8 + shift, b' ');
    let mut out = (text.len() as u64).to_le_bytes().to_vec();
    out.extend_from_slice(&text);
    let digest = format!("{:016x}", xxhash_rust::xxh3::xxh3_64(&out));
    out[8 + OPENING..][..16].copy_from_slice(digest.as_bytes());
    out.extend_from_slice(data);
    out
}

#[test]
fn i01_versions_name_both_sides() {
    let (dir, path) = sample();
    let bytes = fs::read(&path).unwrap();
    let len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header = String::from_utf8(bytes[8..8 + len].to_vec()).unwrap();
    let target = dir.path().join("v.gosset");
    let version = "\\\"format\\\":{\\\"major\\\":1,\\\"minor\\\":0}";
    let with = |major: &str, minor: &str| {
        let to = format!("\\\"format\\\":{{\\\"major\\\":{major},\\\"minor\\\":{minor}}}");
        assert!(header.contains(version));
        let header = header.replace(version, &to).replace("gosset 0.1.0\\\",\\\"needs", "gosset 9.8.7\\\",\\\"needs");
        fs::write(&target, rebuilt(&header, &bytes[8 + len..])).unwrap();
        open_and_verify(&target)
    };
    with("1", "1").unwrap();
    with("1", "4294967295").unwrap();
    for major in ["2", "0", "4294967295"] {
        let error = with(major, "0").unwrap_err();
        assert!(matches!(error, ContainerError::Version { .. }), "{error}");
        let text = error.to_string();
        for part in [&format!("format {major}.0"), "made by gosset 9.8.7", "needs gosset 0.1.0", "this is gosset"] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }
    assert!(matches!(with("4294967296", "0"), Err(ContainerError::Version { .. })));
    // A newer minor version that this reader has no words for is told as such, not as damage; the same in a version that it
    // knows all of is damage.
    let with_scheme = |minor: u32, from: &str, to: &str| {
        let format = format!("\\\"format\\\":{{\\\"major\\\":1,\\\"minor\\\":{minor}}}");
        let header = header.replace(version, &format).replacen(from, to, 1);
        let header = header.replacen("needs\\\":\\\"gosset 0.1.0", "needs\\\":\\\"gosset 9.7.0", 1);
        fs::write(&target, rebuilt(&header, &bytes[8 + len..])).unwrap();
        Container::open(&target).map(|_| ()).unwrap_err()
    };
    for (from, to) in [("\\\"lattice\\\":{", "\\\"mosaic\\\":{"), ("\\\"rice\\\"", "\\\"lace\\\"")] {
        assert!(header.contains(from), "{from}");
        let newer = FORMAT_MINOR + 1;
        let error = with_scheme(newer, from, to);
        assert!(matches!(error, ContainerError::Version { .. }), "{error}");
        let text = error.to_string();
        for part in [&format!("format 1.{newer}"), "made by gosset 0.1.0", "needs gosset 9.7.0"] {
            assert!(text.contains(part), "{part} in {text}");
        }
        for minor in 0..=FORMAT_MINOR {
            let error = with_scheme(minor, from, to);
            assert!(matches!(error, ContainerError::Manifest { .. }), "{error}");
        }
    }
}

#[test]
fn i01_a_file_says_the_lowest_version_that_reads_it() {
    let dir = tempfile::tempdir().unwrap();
    for (specs, minor) in [
        (&["e8-rice@3", "z-rice@2"][..], 0),
        (&["e8@3"], 1),
        (&["z-rice@2", "trellis-8@2"], 1),
        (&["shift-12@2", "z-rice@2"], 1),
    ] {
        let path = dir.path().join(format!("{}.gosset", specs[0]));
        let mut w = Writer::create(&path, false).unwrap();
        for &spec in specs {
            w.add_matrix(spec, &matrix(spec, 3, 32), "F32").unwrap();
        }
        w.finish(info()).unwrap();
        let c = Container::open(&path).unwrap();
        c.verify().unwrap();
        assert_eq!((c.manifest().format.major, c.manifest().format.minor), (1, minor), "{specs:?}");
        // No release read 1.0 alone.
        assert_eq!((c.manifest().needs.as_str(), c.manifest().generator.as_str()), ("gosset 0.1.0", "gosset 0.1.0"));
    }
}

#[test]
fn i01_unknown_sections_are_skipped_or_refused() {
    let dir = tempfile::tempdir().unwrap();
    let planes = [Plane { name: "x".into(), data: PlaneData::U16(vec![1, 2, 3].into()) }];
    for required in [false, true] {
        let path = dir.path().join(format!("{required}.gosset"));
        let mut w = Writer::create(&path, false).unwrap();
        w.add_raw("t", "F32", &[1], &[0; 4], "x").unwrap();
        w.add_section("kv_scales", required, &planes).unwrap();
        w.finish(info()).unwrap();
        match Container::open(&path) {
            Ok(c) => {
                assert!(!required);
                c.verify().unwrap();
                assert_eq!(c.section_plane("kv_scales", "x").unwrap(), Some(&[1, 0, 2, 0, 3, 0][..]));
                assert_eq!(c.ledger().unwrap().causes.total_bits(), c.file_bytes() * 8);
            }
            Err(e) => {
                assert!(required);
                assert!(matches!(&e, ContainerError::UnknownSection { section, .. } if section == "kv_scales"));
                assert!(e.to_string().contains("made by gosset 0.1.0, needs gosset 0.1.0"), "{e}");
            }
        }
    }
}

#[test]
fn i01_other_kinds_of_files_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x");
    for (bytes, named) in [
        (&b"GGUF\x03\0\0\0\0\0\0\0"[..], "GGUF"),
        (b"PK\x03\x04\0\0\0\0\0\0\0\0", "zip"),
        (b"\x80\x02}q\0X\0\0\0\0\0\0", "pickle"),
        (b"\x02\0\0\0\0\0\0\0{}", "plain safetensors"),
        (b"version https://git-lfs.github.com/spec/v1\n", "LFS"),
        (b"", "empty"),
    ] {
        fs::write(&path, bytes).unwrap();
        let error = Container::open(&path).unwrap_err();
        assert!(matches!(error, ContainerError::OtherFormat { .. }), "{error}");
        assert!(error.to_string().contains(named), "{error}");
    }
    assert!(matches!(Container::open(dir.path()), Err(ContainerError::OtherFormat { .. })));
    assert!(matches!(Container::open(&dir.path().join("none")), Err(ContainerError::Io { .. })));
}

#[test]
fn a_dropped_or_failed_writer_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("w.gosset");
    let n_files = || fs::read_dir(dir.path()).unwrap().count();
    let mut w = Writer::create(&path, false).unwrap();
    w.add_matrix("a", &matrix("e8-rice@3", 8, 64), "F32").unwrap();
    drop(w);
    assert_eq!(n_files(), 0);
    let mut w = Writer::create(&path, false).unwrap();
    let failed = w.add_raw_with::<ContainerError>("t", "U8", &[4], 4, "x", |out| {
        out.write_all(&[1, 2]).unwrap();
        Ok(())
    });
    assert!(matches!(failed, Err(ContainerError::Input { .. })));
    assert!(matches!(w.add_blob("b", b""), Err(ContainerError::Poisoned { .. })));
    assert!(matches!(w.finish(info()), Err(ContainerError::Poisoned { .. })));
    assert_eq!(n_files(), 0);
}

#[test]
fn j04_the_next_writer_removes_what_a_killed_one_left() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join(".gosset-Ab12Cd.tmp"), "half a container").unwrap();
    write_sample(&dir.path().join("s.gosset"), false);
    let names: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["s.gosset"]);
}

#[test]
fn outputs_are_refused_before_the_work() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.gosset");
    write_sample(&path, false);
    let before = fs::read(&path).unwrap();
    assert!(matches!(Writer::create(&path, false), Err(ContainerError::Exists { .. })));
    assert!(matches!(Writer::create(dir.path(), true), Err(ContainerError::OutputPath { .. })));
    assert!(matches!(Writer::create(&dir.path().join("no/x"), true), Err(ContainerError::OutputPath { .. })));
    write_sample(&path, true);
    assert_eq!(fs::read(&path).unwrap(), before);
    // A file that appears meanwhile is not replaced either.
    let late = dir.path().join("late.gosset");
    let mut w = Writer::create(&late, false).unwrap();
    w.add_blob("b", b"x").unwrap();
    fs::write(&late, b"mine").unwrap();
    assert!(matches!(w.finish(info()), Err(ContainerError::Exists { .. })));
    assert_eq!(fs::read(&late).unwrap(), b"mine");
    let mut w = Writer::create(&dir.path().join("d"), false).unwrap();
    w.add_blob("b", b"x").unwrap();
    assert!(matches!(w.add_blob("b", b"y"), Err(ContainerError::Duplicate { .. })));
    assert!(matches!(w.add_raw("t", "F32", &[2], &[0; 4], "x"), Err(ContainerError::Input { .. })));
}

/// A named pipe.
#[cfg(unix)]
fn fifo(path: &Path) {
    assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[cfg(unix)]
#[test]
fn what_is_no_regular_file_is_never_replaced() {
    use std::os::unix::fs::{FileTypeExt, symlink};
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fifo(&at("pipe"));
    symlink(at("pipe"), at("to_pipe")).unwrap();
    symlink(at("absent"), at("broken")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
    for name in ["pipe", "to_pipe", "broken", "socket"] {
        for overwrite in [false, true] {
            let error = Writer::create(&at(name), overwrite).unwrap_err();
            assert!(matches!(error, ContainerError::Io { .. }), "{name}: {error}");
            assert!(error.to_string().ends_with("not a regular file"), "{name}: {error}");
        }
    }
    // One that appears during the work stays as well.
    let mut w = Writer::create(&at("late"), true).unwrap();
    w.add_blob("b", b"x").unwrap();
    fifo(&at("late"));
    assert!(matches!(w.finish(info()), Err(ContainerError::Io { .. })));
    for (name, is_kind) in [("pipe", true), ("late", true), ("socket", false)] {
        let kind = at(name).symlink_metadata().unwrap().file_type();
        assert_eq!((kind.is_fifo(), kind.is_socket()), (is_kind, !is_kind), "{name}");
    }
    assert!(at("to_pipe").is_symlink() && at("broken").is_symlink());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 5);
    // A link to a regular file is replaced like the file.
    fs::write(at("file"), b"old").unwrap();
    symlink(at("file"), at("to_file")).unwrap();
    write_sample(&at("to_file"), true);
    open_and_verify(&at("to_file")).unwrap();
}

#[cfg(unix)]
#[test]
fn i01_a_pipe_is_refused_without_waiting_for_its_writer() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pipe");
    fifo(&path);
    let error = Container::open(&path).unwrap_err();
    assert!(matches!(error, ContainerError::Io { .. }), "{error}");
    assert!(error.to_string().ends_with("not a regular file"), "{error}");
}

#[cfg(unix)]
#[test]
fn a_new_file_has_the_usual_permissions() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.gosset");
    write_sample(&path, false);
    let other = dir.path().join("plain");
    fs::write(&other, b"").unwrap();
    let mode = |p: &Path| fs::metadata(p).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&path), mode(&other));
}
