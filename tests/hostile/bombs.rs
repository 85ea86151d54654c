//! Small files that claim to be large: counts without bytes behind them, runs without an end, nesting without a bottom.

use gosset_codec::{DecodeScratch, Decoder, PlaneData};
use gosset_runtime::RuntimeError;
use gosset_runtime::source::open_source;
use gosset_runtime::text::{ChatTemplate, Message};
use serde_json::json;

use crate::{alone, entries, seeds};

/// Every seed of a matrix.
fn matrices() -> Vec<seeds::Seed> {
    let kinds = ["rice", "ans", "trellis", "shift", "columns", "unisvq"];
    seeds::all().into_iter().filter(|(name, ..)| kinds.contains(name)).collect()
}

#[test]
fn a_matrix_that_claims_more_than_its_planes_hold_is_refused_before_it_is_allocated() {
    let _alone = alone();
    for (name, seed, bytes) in matrices() {
        let line = bytes.iter().position(|&b| b == b'\n').unwrap();
        let header: serde_json::Value = serde_json::from_slice(&bytes[..line]).unwrap();
        for (rows, cols) in [
            (1u64 << 31, 1 << 20),
            (1, 1 << 28),
            (u64::from(u32::MAX), 1),
            (1 << 20, 1 << 20),
            (u64::MAX, u64::MAX),
            (0, 5),
            (5, 0),
        ] {
            let mut claim = header.clone();
            (claim["rows"], claim["cols"]) = (rows.into(), cols.into());
            for key in ["rotation", "input", "output"] {
                if claim.get(key).is_some_and(|frame| *frame != "none") {
                    claim[key] = json!({ "rht": { "seed": 1, "runs": [[cols.min(1 << 31), 1]] } });
                }
            }
            let input = [claim.to_string().as_bytes(), &bytes[line..]].concat();
            entries::check(name, &input);
            if let (true, Some((header, planes))) = (name != "unisvq", entries::parse_matrix(&input)) {
                assert!(Decoder::new(&header, &planes).is_err(), "{name} {seed}: {rows} x {cols}");
            }
        }
    }
}

/// All words zero: unary runs that never end in a one. All ones: states and escapes at their largest.
#[test]
fn runs_without_an_end_stop_where_the_stream_stops() {
    let _alone = alone();
    for (name, seed, bytes) in matrices().into_iter().filter(|(name, ..)| *name != "unisvq") {
        let (header, mut planes) = entries::parse_matrix(&bytes).unwrap();
        for word in [0, u32::MAX, 1, 1 << 31, 0x5555_5555] {
            for plane in planes.iter_mut().filter(|plane| plane.name == "words") {
                let PlaneData::U32(words) = &mut plane.data else { panic!("words are u32") };
                words.to_mut().fill(word);
            }
            let decoder = Decoder::new(&header, &planes).unwrap();
            let mut out = vec![0f32; decoder.rows() * decoder.cols()];
            let result = decoder.decode_rows(0..decoder.rows(), &mut out, &mut DecodeScratch::new());
            // Entropy-coded streams must end where they say, and these do not; strings of the shift trellis are all weights.
            let fixed_rate = name == "shift" || matches!(header.scheme, gosset_codec::SchemeHeader::Shift(_));
            if word == 0 && !fixed_rate {
                let text = result.unwrap_err().to_string();
                assert!(text.contains("stream"), "{name} {seed}: {text}");
            }
            entries::check(name, &entries::matrix_input(&header, &planes));
        }
    }
}

#[test]
fn pages_of_nothing_but_zeros_or_ones_are_bounded() {
    let _alone = alone();
    for index in 0..entries::n_codecs() {
        for (byte, len) in [(0u8, 0), (0, 1), (0, 40), (0, 4000), (0xff, 3), (0xff, 4000), (0x80, 500)] {
            for blocks in [0, 1, 64, 255] {
                let mut input = vec![index as u8, blocks];
                input.resize(2 + len, byte);
                entries::check("kv_pages", &input);
            }
        }
    }
}

/// A GGUF file by hand: counts, then what follows them.
fn gguf(tensors: u64, values: u64, rest: &[u8]) -> Vec<u8> {
    [&b"GGUF"[..], &3u32.to_le_bytes(), &tensors.to_le_bytes(), &values.to_le_bytes(), rest].concat()
}

fn text(s: &str) -> Vec<u8> {
    [&(s.len() as u64).to_le_bytes()[..], s.as_bytes()].concat()
}

#[test]
fn gguf_headers_that_claim_more_than_the_file_are_refused() {
    let _alone = alone();
    const STRING: u32 = 8;
    const ARRAY: u32 = 9;
    let huge = [1u64 << 32, 1 << 60, u64::MAX];
    let mut files = vec![];
    for n in huge {
        files.push(gguf(n, 0, &[]));
        files.push(gguf(0, n, &[]));
        files.push(gguf(n, n, &[0; 64]));
        // A key, a string, an array of strings, of bytes, of arrays.
        files.push(gguf(0, 1, &n.to_le_bytes()));
        files.push(gguf(0, 1, &[text("k"), STRING.to_le_bytes().to_vec(), n.to_le_bytes().to_vec()].concat()));
        for element in [STRING, 0, 10, ARRAY] {
            let array = [ARRAY.to_le_bytes(), element.to_le_bytes()].concat();
            files.push(gguf(0, 1, &[text("k"), array, n.to_le_bytes().to_vec(), vec![0; 100]].concat()));
        }
        // A tensor: name, number of dimensions, dimensions, type, offset.
        for dims in [vec![n], vec![n, n], vec![1 << 31, 1 << 33]] {
            let shape: Vec<u8> = dims.iter().flat_map(|d| d.to_le_bytes()).collect();
            let count = (dims.len() as u32).to_le_bytes().to_vec();
            files.push(gguf(1, 0, &[text("token_embd.weight"), count, shape, vec![0; 12]].concat()));
        }
    }
    // Arrays of one array each.
    let level = [&ARRAY.to_le_bytes()[..], &1u64.to_le_bytes()].concat();
    files.push(gguf(0, 1, &[text("k"), ARRAY.to_le_bytes().to_vec(), level.repeat(20_000)].concat()));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bomb.gguf");
    for file in files {
        entries::check("gguf", &file);
        std::fs::write(&path, &file).unwrap();
        let error = open_source(&path).map(drop).unwrap_err();
        assert!(error.to_string().contains("bomb.gguf"), "{error}");
    }
}

#[test]
fn nesting_without_a_bottom_is_refused() {
    let _alone = alone();
    const DEPTH: usize = 100_000;
    for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
        let deep = [open.repeat(DEPTH), "1".to_owned(), close.repeat(DEPTH)].concat();
        for inside in
            ["", "\"model\":", "\"normalizer\":", "\"__metadata__\":", "\"rope_scaling\":", "\"chat_template\":"]
        {
            let json = if inside.is_empty() { deep.clone() } else { format!("{{{inside}{deep}}}") };
            for name in ["config", "tokenizer", "chat_template"] {
                entries::check(name, json.as_bytes());
            }
            let file = [&(json.len() as u64).to_le_bytes()[..], json.as_bytes()].concat();
            entries::check("safetensors", &file);
            entries::check("container", &file);
        }
    }
}

/// What a template may take: instructions, depth, text. Each of these would go on for ever or take the machine.
#[test]
fn templates_run_in_a_sandbox() {
    let _alone = alone();
    let render = |source: &str| {
        let template = ChatTemplate::new(source.to_owned(), None, None)?;
        template.render(&[Message::new("user", "Hi")], true)
    };
    for (source, word) in [
        ("{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}", "instructions"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{% for a in [1] recursive %}{{ loop([a]) }}{% endfor %}", "recursion"),
        ("{% for i in range(2000) %}{{ 'x' * 100000 }}{% endfor %}", "bytes"),
        ("{{ 'x' * 1000000000000 }}", "too large"),
        ("{{ range(1000000000000) | length }}", "range"),
        ("{% include 'etc/passwd' %}", "template"),
        ("{% import '/etc/passwd' as p %}", "template"),
    ] {
        let error = render(source).unwrap_err();
        assert!(matches!(error, RuntimeError::Template(_)), "{source}: {error}");
        let text = error.to_string().to_lowercase();
        assert!(text.contains(word), "{source}: {text}");
    }
}
