//! Inputs that are not what they should be: one clear line each, and the code of the table.

use std::fs;

use gosset_tests::t0::{T0, safetensors};

use crate::support::{Bench, safetensors_f32, stories, values};

#[test]
fn i01_other_kinds_of_file_are_no_container() {
    let bench = Bench::new();
    bench.t0("t0", &T0::llama());
    bench.file("m.gguf", [b"GGUF\x03\0\0\0".as_slice(), &[0; 64]].concat());
    bench.file("m.zip", [b"PK\x03\x04".as_slice(), &[0; 64]].concat());
    bench.file("m.pkl", [b"\x80\x02}q\0".as_slice(), &[0; 64]].concat());
    bench.file("m.txt", "hello");
    bench.file("m.empty", "");
    for command in ["inspect", "verify", "dequantize -o out"] {
        for (file, kind) in [
            ("m.gguf", "GGUF"),
            ("t0/model.safetensors", "safetensors"),
            ("m.zip", "zip"),
            ("m.pkl", "pickle"),
            ("m.txt", "m.txt"),
            ("m.empty", "empty"),
            ("t0", "folder"),
        ] {
            let run = bench.run(&format!("{command} {file}")).fails(4, &[file, kind]);
            assert_eq!(run.stdout, "");
        }
    }
}

#[test]
fn a_container_is_no_model() {
    let bench = Bench::new();
    bench.container();
    let run = bench.run("quantize t0.gosset -o x.gosset --rate 3");
    run.fails(3, &["t0.gosset", "Gosset container", "gosset dequantize"]);
    // Nor under another name.
    fs::copy(bench.path("t0.gosset"), bench.path("t0.safetensors")).unwrap();
    bench.run("quantize t0.safetensors -o x.gosset --rate 3").fails(3, &["Gosset container"]);
    assert!(!bench.path("x.gosset").exists());
}

#[test]
fn missing_files_are_named() {
    let bench = Bench::new();
    for line in [
        "inspect none.gosset",
        "verify none.gosset",
        "dequantize none.gosset -o out",
        "generate none.gosset -p a",
        "chat none.gosset",
        "quantize none.gguf -o x.gosset --rate 4",
        "quantize ./none -o x.gosset --rate 4",
    ] {
        bench.run(line).fails(5, &["none", "o such file"]);
    }
    assert_eq!(bench.names(), [""; 0]);
}

#[test]
fn unknown_and_uncached_names_tell_what_to_do() {
    let bench = Bench::new();
    bench
        .run("quantize smollm2 -o x.gosset --rate 4")
        .fails(5, &["smollm2", "cargo xtask fetch smollm2", "from the hub"]);
    bench.run("generate gpt-99 -p a").fails(5, &["gpt-99", "cache"]);
}

#[test]
fn c08_folders_without_usable_weights_say_what_is_there() {
    let bench = Bench::new();
    for (folder, file, bytes) in [
        ("zip", "pytorch_model.bin", b"PK\x03\x04".as_slice()),
        ("old", "pytorch_model.bin", b"\x80\x02\x8a\x0a"),
        ("spm", "tokenizer.model", b"\x0a\x0e"),
    ] {
        fs::create_dir(bench.path(folder)).unwrap();
        bench.file(&format!("{folder}/{file}"), bytes);
        let word = if folder == "spm" { "safetensors" } else { "pickle" };
        bench.run(&format!("quantize {folder} -o x.gosset --rate 4")).fails(3, &[file, word]);
    }
    fs::create_dir(bench.path("empty")).unwrap();
    bench.run("quantize empty -o x.gosset --rate 4").fails(3, &["empty"]);
}

#[test]
fn unsupported_dtypes_are_one_line() {
    let bench = Bench::new();
    let tensor = |dtype: &'static str, bytes: usize| ("w".to_owned(), dtype, vec![64, 64], vec![0x38; bytes]);
    for (dtype, size) in [("F8_E4M3", 4096), ("I32", 4 * 4096), ("U8", 4096), ("F99", 4096)] {
        bench.file("w.safetensors", safetensors(&[tensor(dtype, size)]));
        bench.run("quantize w.safetensors -o w.gosset --rate 4").fails(3, &[dtype]);
    }
    assert_eq!(bench.names(), ["w.safetensors"]);
}

#[test]
fn a_missing_tensor_is_named() {
    let bench = Bench::new();
    let t0 = T0::llama();
    bench.t0("t0", &t0);
    let mut tensors = t0.tensors();
    tensors.retain(|t| t.name != "model.layers.1.mlp.down_proj.weight");
    bench.file("t0/model.safetensors", t0.safetensors(&tensors));
    bench.run("generate t0 -p a").fails(6, &["model.layers.1.mlp.down_proj.weight", "64", "176"]);
}

#[test]
fn a_missing_shard_is_named() {
    let bench = Bench::new();
    let t0 = T0 { shards: 3, ..T0::llama() };
    bench.t0("t0", &t0);
    fs::remove_file(bench.path("t0").join(t0.shard_name(1))).unwrap();
    for command in ["quantize t0 -o x.gosset --rate 4", "generate t0 -p a"] {
        bench.run(command).fails(6, &[&t0.shard_name(1), "missing"]);
    }
}

#[test]
fn a_container_of_plain_tensors_does_not_generate() {
    let bench = Bench::new();
    bench.file("w.safetensors", safetensors_f32(&[("w", &[32, 128], values(32 * 128))]));
    bench.run("quantize w.safetensors -o w.gosset --rate 4 -q").ok();
    bench.run("generate w.gosset -p a").fails(6, &["w.gosset", "model"]);
    bench.run("generate w.safetensors -p a").fails(6, &["config.json"]);
}

#[test]
fn names_from_files_cannot_steer_the_terminal() {
    let bench = Bench::new();
    let name = "a\\u001b[2J";
    bench.file("w.safetensors", safetensors_f32(&[("PLACE", &[32, 128], values(32 * 128))]));
    let text = fs::read(bench.path("w.safetensors")).unwrap();
    let n = u64::from_le_bytes(text[..8].try_into().unwrap()) as usize;
    let header = String::from_utf8(text[8..8 + n].to_vec()).unwrap().replace("PLACE", name);
    let padded = format!("{header}{}", " ".repeat(header.len().next_multiple_of(8) - header.len()));
    let bytes = [&(padded.len() as u64).to_le_bytes(), padded.as_bytes(), &text[8 + n..]].concat();
    bench.file("w.safetensors", bytes);
    for line in [
        "quantize w.safetensors -o w.gosset --rate 4",
        "quantize w.safetensors --rate 4 --dry-run",
        "inspect w.gosset --tensors",
    ] {
        let run = bench.run(line).ok();
        assert!(!run.stdout.contains('\u{1b}') && !run.stderr.contains('\u{1b}'), "{run:?}");
    }
}

#[test]
fn truncated_gguf_files_are_one_line() {
    let Some(gguf) = stories() else { return };
    let bench = Bench::new();
    let bytes = fs::read(gguf).unwrap();
    for len in [5, 24, 1000, bytes.len() / 2, bytes.len() - 1] {
        bench.file("s.gguf", &bytes[..len]);
        bench.run("quantize s.gguf -o s.gosset --rate 4").fails(3, &["s.gguf"]);
        bench.run("generate s.gguf -p a").fails(3, &["s.gguf"]);
    }
}
