//! C04: every way a safetensors header can be wrong has its own error; oddities that are right load.
#![allow(clippy::unwrap_used, reason = "fixtures of tests")]

use gosset_container::safetensors_header::{HeaderProblem, MAX_HEADER_LEN, header_len, parse};
use proptest::prelude::*;

fn tensor(name: &str, dtype: &str, shape: &str, range: &str) -> String {
    format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{range}}}"#)
}

fn problem(entries: &[String]) -> HeaderProblem {
    parse(format!("{{{}}}", entries.join(",")).as_bytes()).unwrap_err()
}

#[test]
fn c04_duplicate_name_is_refused() {
    let t = tensor("a", "U8", "[1]", "[0,1]");
    assert_eq!(problem(&[t.clone(), t]), HeaderProblem::DuplicateName { name: "a".into() });
    let escaped = tensor("\\u0061", "U8", "[1]", "[1,2]");
    assert!(matches!(problem(&[tensor("a", "U8", "[1]", "[0,1]"), escaped]), HeaderProblem::DuplicateName { .. }));
    let twice = r#""__metadata__":{"k":"1","k":"2"}"#.to_owned();
    assert!(matches!(problem(&[twice]), HeaderProblem::Json { reason } if reason.contains("twice")));
}

#[test]
fn c04_overlap_is_refused() {
    let same = problem(&[tensor("a", "U8", "[4]", "[0,4]"), tensor("b", "U8", "[4]", "[0,4]")]);
    assert_eq!(same, HeaderProblem::Overlap { first: "a".into(), second: "b".into(), at: 0 });
    let partly = problem(&[tensor("b", "U8", "[4]", "[2,6]"), tensor("a", "U8", "[4]", "[0,4]")]);
    assert_eq!(partly, HeaderProblem::Overlap { first: "a".into(), second: "b".into(), at: 2 });
}

#[test]
fn c04_gap_is_refused() {
    let hole = problem(&[tensor("a", "U8", "[4]", "[0,4]"), tensor("b", "U8", "[4]", "[8,12]")]);
    assert_eq!(hole, HeaderProblem::Gap { start: 4, end: 8, next: "b".into() });
    let first = problem(&[tensor("a", "U8", "[4]", "[4,8]")]);
    assert_eq!(first, HeaderProblem::Gap { start: 0, end: 4, next: "a".into() });
}

#[test]
fn c04_bad_ranges_are_refused() {
    let reversed = problem(&[tensor("a", "U8", "[4]", "[4,0]")]);
    assert_eq!(reversed, HeaderProblem::ReversedRange { name: "a".into(), start: 4, end: 0 });
    let negative = problem(&[tensor("a", "U8", "[4]", "[-4,0]")]);
    assert!(
        matches!(&negative, HeaderProblem::Json { reason } if reason.contains("\"a\"") && reason.contains("-4")),
        "{negative}"
    );
    assert!(matches!(problem(&[tensor("a", "U8", "[4]", "[0,4,8]")]), HeaderProblem::Json { .. }));
    assert!(matches!(problem(&[tensor("a", "U8", "[-1]", "[0,4]")]), HeaderProblem::Json { .. }));
}

#[test]
fn c04_size_that_does_not_match_the_shape_is_refused() {
    for (dtype, shape, range) in [
        ("F32", "[2,2]", "[0,15]"),
        ("F32", "[2,2]", "[0,17]"),
        ("F4", "[3]", "[0,2]"),
        ("U64", "[4611686018427387904,4611686018427387904]", "[0,8]"),
        ("F32", "[1073741824,4294967296]", "[0,0]"),
    ] {
        let found = problem(&[tensor("a", dtype, shape, range)]);
        assert!(matches!(found, HeaderProblem::SizeMismatch { .. }), "{found}");
    }
    assert!(matches!(problem(&[tensor("a", "F33", "[1]", "[0,4]")]), HeaderProblem::UnknownDtype { .. }));
}

#[test]
fn c04_header_length_is_checked_against_the_file() {
    let with = |len: u64, file: u64| {
        let mut prefix = len.to_le_bytes().to_vec();
        prefix.extend_from_slice(b"{}");
        header_len(&prefix, file)
    };
    assert_eq!(with(2, 10), Ok(2));
    for claimed in [0, 1, 1 << 63, u64::MAX, MAX_HEADER_LEN + 1] {
        assert!(matches!(with(claimed, 1000), Err(HeaderProblem::HeaderLength { .. })), "{claimed}");
    }
    let beyond = with(1001, 1000).unwrap_err();
    assert_eq!(beyond, HeaderProblem::TooShort { expected: 1009, found: 1000 });
    assert!(matches!(header_len(b"\x02\0\0\0", 4), Err(HeaderProblem::TooShort { .. })));
    assert!(matches!(header_len(b"", 0), Err(HeaderProblem::TooShort { .. })));
}

#[test]
fn c04_other_contents_are_refused() {
    assert!(matches!(parse(b"[1,2]"), Err(HeaderProblem::Json { reason }) if reason.contains('[')));
    assert!(matches!(parse(b"{\"a\":1}"), Err(HeaderProblem::Json { .. })));
    assert!(matches!(parse(b"{\xff}"), Err(HeaderProblem::Json { reason }) if reason.contains("UTF-8")));
    assert!(matches!(parse(b" {}"), Err(HeaderProblem::Json { .. })));
    assert!(matches!(parse(b"{} x"), Err(HeaderProblem::Json { .. })));
    assert!(matches!(parse(b"{\"__metadata__\":{\"a\":1}}"), Err(HeaderProblem::Json { .. })));
    let zip = header_len(b"PK\x03\x04\x14\0\0\0\x08\x08", 4000).unwrap_err();
    assert!(matches!(zip, HeaderProblem::OtherFormat { found } if found.contains("zip")));
    let pickle = header_len(b"\x80\x02\x8a\nl\xfc\x9cF\xf9 ", 4000).unwrap_err();
    assert!(matches!(pickle, HeaderProblem::OtherFormat { found } if found.contains("pickle")));
    // A header of 0x0280 bytes is no pickle.
    assert_eq!(header_len(b"\x80\x02\0\0\0\0\0\0{", 4000), Ok(0x280));
}

#[test]
fn c04_valid_oddities_load() {
    let entries = [
        tensor("scalar", "F32", "[]", "[0,4]"),
        tensor("empty", "F32", "[0]", "[4,4]"),
        tensor("wide", "BF16", "[5,0,7]", "[4,4]"),
        tensor("half", "F4", "[2]", "[4,5]"),
        r#""__metadata__":{"format":"pt"}"#.to_owned(),
    ];
    let header = parse(format!("{{{}}}   ", entries.join(",")).as_bytes()).unwrap();
    assert_eq!(header.tensors.len(), 4);
    assert_eq!(header.data_len, 5);
    assert_eq!(header.metadata("format"), Some("pt"));
    header.check_file_length(header.data_start + 5).unwrap();
    assert!(matches!(header.check_file_length(header.data_start + 4), Err(HeaderProblem::FileLength { .. })));
    assert_eq!(parse(b"{}").unwrap().tensors, []);
}

/// Text that is nearly a header.
fn nearly_json() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just("{".to_owned()),
        Just("}".to_owned()),
        Just("\"a\":".to_owned()),
        Just("\"__metadata__\":".to_owned()),
        Just("{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}".to_owned()),
        Just(",".to_owned()),
        Just("[".to_owned()),
        "[\\[\\]{}:,\"0-9a-z\\\\-]{0,6}",
    ];
    proptest::collection::vec(piece, 0..12).prop_map(|p| format!("{{{}}}", p.concat()))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn c04_no_bytes_make_the_parser_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), text in nearly_json(), file in any::<u64>()) {
        let _ = parse(&bytes);
        let _ = parse(text.as_bytes());
        let _ = header_len(&bytes, file);
    }

    #[test]
    fn c04_accepted_headers_cover_their_data(n in 1usize..6, sizes in proptest::collection::vec(0u64..9, 6), swap in 0usize..6) {
        let mut at = 0;
        let mut entries: Vec<String> = (0..n).map(|i| {
            let start = at;
            at += sizes[i];
            tensor(&format!("t{i}"), "U8", &format!("[{}]", sizes[i]), &format!("[{start},{at}]"))
        }).collect();
        entries.swap(0, swap % n);
        let header = parse(format!("{{{}}}", entries.join(",")).as_bytes()).unwrap();
        prop_assert_eq!(header.data_len, at);
        prop_assert!(header.tensors.windows(2).all(|w| w[0].end == w[1].start));
    }
}
