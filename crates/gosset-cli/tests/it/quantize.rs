//! `gosset quantize`: reports, refusals, files.

use std::fs;

use gosset_tests::t0::T0;

use crate::support::{Bench, safetensors_f32, values};

/// T0 whose value projections are too small to be coded.
fn narrow() -> T0 {
    T0 { hidden: 24, heads: 2, kv_heads: 1, ..T0::llama() }
}

#[test]
fn a02_the_report_gives_asked_and_true_rate_and_groups_fallbacks() {
    let bench = Bench::new();
    bench.t0("t0", &narrow());
    let run = bench.run("quantize t0 -o t0.gosset --rate 4").ok();
    for part in
        ["asked", "trellis-256 at 4 bits", "true rate", "all-in", "worst SNR", "fallback: 4 tensors", "fewer than 512"]
    {
        assert!(run.stdout.contains(part), "{part}: {}", run.stdout);
    }
    let json = bench.run("quantize t0 -o t0.gosset --rate 4 --force --json").ok().json();
    let bits = json["file_bytes"].as_f64().unwrap() * 8.0;
    assert_eq!(json["file_bps"].as_f64().unwrap(), bits / json["n_params"].as_f64().unwrap());
    assert_eq!(json["fallbacks"][0]["n_tensors"], 4);
    assert_eq!(json["fallbacks"][0]["names"].as_array().unwrap().len(), 4);
}

#[test]
fn a02_odd_widths_are_no_fallback() {
    let bench = Bench::new();
    bench.t0("t0", &T0 { ffn: 172, ..T0::llama() });
    let json = bench.run("quantize t0 -o t0.gosset --rate 4 --json").ok().json();
    assert_eq!(json["fallbacks"].as_array().unwrap().len(), 0);
    assert!(json["tensors"].as_array().unwrap().iter().all(|t| t["action"] != "quantized" || t["snr_db"].is_f64()));
}

#[test]
fn a02_strict_mode_and_impossible_overrides_stop_before_writing() {
    let bench = Bench::new();
    bench.t0("t0", &narrow());
    let run = bench.run("quantize t0 -o t0.gosset --rate 4 --strict");
    run.fails(3, &["strict", "k_proj.weight", "fewer than 512"]);
    bench
        .run("quantize t0 -o t0.gosset --rate 4 --rate-for *.input_layernorm.weight=5")
        .fails(2, &["model.layers.0.input_layernorm.weight", "two dimensions"]);
    bench.run("quantize t0 -o t0.gosset --rate 4 --keep *.nothing").fails(2, &["*.nothing", "none"]);
    bench.run("quantize t0 -o t0.gosset --rate 4 --rate-for x").fails(2, &["PATTERN=R"]);
    assert_eq!(bench.names(), ["t0"]);
}

#[test]
fn overrides_do_what_they_say() {
    let bench = Bench::new();
    bench.t0("t0", &T0::llama());
    let line = "quantize t0 -o t0.gosset --rate 4 --keep *.0.* --rate-for *.up_proj.weight=6 --embeddings 5 --json";
    let json = bench.run(line).ok().json();
    for tensor in json["tensors"].as_array().unwrap() {
        let name = tensor["name"].as_str().unwrap();
        let expected = match name {
            _ if name.contains(".0.") => None,
            _ if name.ends_with("up_proj.weight") => Some(6.0),
            _ if name.contains("embed_tokens") => Some(5.0),
            _ if name.contains("proj") => Some(4.0),
            _ => None,
        };
        assert_eq!(tensor["target_bps"].as_f64(), expected, "{name}");
    }
}

#[test]
fn rates_out_of_reach_are_refused_with_the_floor() {
    let bench = Bench::new();
    bench.t0("t0", &T0::llama());
    for rate in ["0.3", "-1", "nan", "1e9"] {
        let run = bench.run(&format!("quantize t0 -o t0.gosset --rate={rate}"));
        run.fails(2, &["trellis-256", "expected a payload from"]);
    }
    bench.run("quantize t0 -o t0.gosset --rate 4 --codec e9-rice").fails(2, &["e9-rice", "e8-rice", "--help"]);
    bench.run("quantize t0 -o t0.gosset --rate 4 --tile 96").fails(2, &["96"]);
    bench.run("quantize t0 -o t0.gosset").fails(2, &["--rate", "gosset quantize --help"]);
    bench.run("quantize t0 --rate 4").fails(2, &["--output"]);
}

#[test]
fn every_codec_of_the_help_text_works() {
    let bench = Bench::new();
    bench.t0("t0", &T0::llama());
    let help = bench.run("quantize --help").ok().stdout;
    for codec in gosset_codec::codecs().iter().map(|codec| codec.name) {
        assert!(help.contains(codec), "{help}");
        let out = format!("{codec}.gosset");
        let json = bench.run(&format!("quantize t0 -o {out} --codec {codec} --rate 3 --json")).ok().json();
        assert_eq!(json["codec"], codec);
        bench.run(&format!("verify {out}")).ok();
    }
}

#[test]
fn a_dry_run_shows_every_tensor_and_writes_nothing() {
    let bench = Bench::new();
    bench.t0("t0", &T0::llama());
    let text = bench.run("quantize t0 --rate 4 --dry-run").ok().stdout;
    for part in ["model.layers.1.mlp.down_proj.weight", "trellis-256@4", "embeddings", "true rate"] {
        assert!(text.contains(part), "{text}");
    }
    let dry = bench.run("quantize t0 -o never.gosset --rate 4 --dry-run --json").ok().json();
    assert_eq!(dry["tensors"].as_array().unwrap().len(), 20);
    assert_eq!(bench.names(), ["t0"]);
    let wet = bench.run("quantize t0 -o t0.gosset --rate 4 --json").ok().json();
    let (expected, found) = (dry["expected"]["file_bytes"].as_f64().unwrap(), wet["file_bytes"].as_f64().unwrap());
    // The header of so small a file is a large part of it, and the estimate of its size is rough.
    assert!((expected / found - 1.0).abs() < 0.15, "expected {expected}, found {found}");
}

#[test]
fn an_existing_output_is_replaced_only_if_asked() {
    let bench = Bench::new();
    bench.t0("t0", &T0::llama());
    bench.file("t0.gosset", "precious");
    bench.run("quantize t0 -o t0.gosset --rate 4").fails(5, &["t0.gosset", "exists already", "--force"]);
    assert_eq!(fs::read(bench.path("t0.gosset")).unwrap(), b"precious");
    bench.run("quantize t0 -o t0.gosset --rate 4 --force -q").ok();
    bench.run("verify t0.gosset").ok();
}

#[test]
fn j04_asked_for_output_that_cannot_be_written_is_an_error() {
    let bench = Bench::new();
    bench.t0("t0", &T0::llama());
    bench.run("quantize t0 -o no/such/folder/t0.gosset --rate 4").fails(5, &["no/such/folder", "does not exist"]);
    fs::create_dir(bench.path("dir")).unwrap();
    bench.run("quantize t0 -o dir --rate 4 --force").fails(5, &["dir", "folder"]);
    bench.run("quantize t0 -o t0 --rate 4").fails(2, &["t0", "inside the input"]);
    bench.run("quantize t0 -o t0/model.safetensors --rate 4 --force").fails(2, &["overwrite"]);
    assert_eq!(bench.names(), ["dir", "t0"]);
}

#[test]
fn j04_progress_is_on_stderr_and_results_on_stdout() {
    let bench = Bench::new();
    bench.t0("t0", &T0::llama());
    let run = bench.run("quantize t0 -o t0.gosset --rate 4 --json").ok();
    run.json();
    for part in ["/20", "model.", "weights/s", "done"] {
        assert!(run.stderr.contains(part), "{part}: {}", run.stderr);
    }
    assert!(!run.stderr.contains(['\r', '\u{1b}']), "a pipe gets plain lines: {}", run.stderr);
    let quiet = bench.run("quantize t0 -o t0.gosset --rate 4 --force --quiet").ok();
    assert_eq!((quiet.stdout.as_str(), quiet.stderr.as_str()), ("", ""));
}

#[test]
fn b03_rows_without_a_usable_scale_are_counted() {
    let bench = Bench::new();
    let rows: [f32; 7] = [0.0, 9.0, 1e-6, 1e-38, 1e-42, -0.0, 0.02];
    let cols = 128;
    let mut matrix = Vec::new();
    for (r, row) in rows.iter().enumerate() {
        let noise = values(cols);
        matrix.extend((0..cols).map(|c| if r < 2 || r == 5 { *row } else { row * noise[c].signum() }));
    }
    bench.file("w.safetensors", safetensors_f32(&[("w", &[rows.len(), cols], matrix)]));
    let json = bench.run("quantize w.safetensors -o w.gosset --rate 8 --json").ok().json();
    assert!(json["exact_rows"].as_u64().unwrap() >= 1, "{json}");
    assert!(json["warnings"].to_string().contains("stored exactly"), "{json}");
    bench.run("verify w.gosset").ok();
    bench.run("dequantize w.gosset -o w -q").ok();
    let bytes = fs::read(bench.path("w/model.safetensors")).unwrap();
    let data = &bytes[bytes.len() - rows.len() * cols * 4..];
    let at = |r: usize, c: usize| {
        let i = (r * cols + c) * 4;
        f32::from_le_bytes(data[i..i + 4].try_into().unwrap())
    };
    for c in 0..cols {
        assert_eq!((at(0, c), at(5, c)), (0.0, 0.0), "zero rows come back exactly zero");
        assert!((at(1, c) / 9.0 - 1.0).abs() < 0.5 && at(4, c).abs() == 1e-42, "{} {}", at(1, c), at(4, c));
    }
}

#[test]
fn b05_non_finite_weights_stop_the_run_with_their_place() {
    let bench = Bench::new();
    let mut matrix = values(16 * 128);
    (matrix[3 * 128 + 7], matrix[5 * 128]) = (f32::NAN, f32::INFINITY);
    bench.file("w.safetensors", safetensors_f32(&[("layer.w", &[16, 128], matrix)]));
    let run = bench.run("quantize w.safetensors -o w.gosset --rate 4");
    run.fails(3, &["layer.w", "row 3", "column 7", "1 NaN", "1 infinite"]);
    assert_eq!(bench.names(), ["w.safetensors"]);

    let mut matrix: Vec<f32> = values(64 * 128).iter().map(|v| v * 0.02).collect();
    (0..18).for_each(|i| matrix[i * 311] = 1e3 + 2e3 * i as f32);
    bench.file("w.safetensors", safetensors_f32(&[("layer.w", &[64, 128], matrix)]));
    let json = bench.run("quantize w.safetensors -o w.gosset --rate 4 --json").ok().json();
    let warnings = json["warnings"].to_string();
    for part in ["layer.w", "18 outlier", "row"] {
        assert!(warnings.contains(part), "{warnings}");
    }
}

#[test]
fn c01_contradictory_tie_settings_need_a_decision() {
    let bench = Bench::new();
    bench.t0("t0", &T0 { tie: Some(false), head: false, ..T0::llama() });
    bench.run("quantize t0 -o t0.gosset --rate 4").fails(3, &["lm_head.weight", "--tie"]);
    bench.run("quantize t0 -o t0.gosset --rate 4 --tie").ok();
    bench.run("generate t0.gosset -p a -n 2").ok();
    bench.run("quantize t0 -o x.gosset --rate 4 --tie --no-tie").fails(2, &["--tie", "--no-tie"]);
}

#[test]
fn c08_weights_without_a_tokenizer_quantize_with_a_warning() {
    let bench = Bench::new();
    bench.t0("t0", &T0::llama());
    fs::remove_file(bench.path("t0/tokenizer.json")).unwrap();
    let run = bench.run("quantize t0 -o t0.gosset --rate 4").ok();
    assert!(run.stdout.contains("no tokenizer.json"), "{}", run.stdout);
    bench.run("verify t0.gosset").ok();
    bench.run("generate t0.gosset -p a").fails(6, &["tokenizer.json"]);
    bench.run("generate t0 -p a").fails(6, &["tokenizer.json"]);
}

#[test]
fn targets_are_met_and_reported() {
    let bench = Bench::new();
    bench.t0("t0", &T0::llama());
    let json = bench.run("quantize t0 -o a.gosset --target-bpw 4.5 --json").ok().json();
    let found = json["all_in_bps"].as_f64().unwrap();
    assert!(found <= 4.5 && found > 4.45, "{found}");
    assert_eq!(json["target"]["all_in_bpw"], 4.5);
    assert_eq!(json["allocation"], "equal-slope");
    let run = bench.run("quantize t0 -o b.gosset --target-size 150kB --allocation uniform").ok();
    assert!(fs::metadata(bench.path("b.gosset")).unwrap().len() <= 150_000);
    for part in ["in 150000 bytes (uniform); reached", "asked", "model.layers.1.mlp.down_proj.weight"] {
        assert!(run.stdout.contains(part), "{part}: {}", run.stdout);
    }
    bench.file("w.json", r#"{"*": 1, "*.down_proj.weight": 4}"#);
    let json = bench.run("quantize t0 -o c.gosset --target-size 0.15MB --weights w.json --json").ok().json();
    let of = |name: &str| {
        let tensors = json["tensors"].as_array().unwrap();
        tensors.iter().find(|t| t["name"] == format!("model.layers.0.mlp.{name}.weight")).unwrap().clone()
    };
    assert_eq!((&of("down_proj")["weight"], &of("up_proj")["weight"]), (&4.0.into(), &1.0.into()));
    assert!(of("down_proj")["target_bps"].as_f64() > of("up_proj")["target_bps"].as_f64());
    assert_eq!(json["recipe"]["options"]["weights"][1]["weight"], 4.0);
}

#[test]
fn targets_that_cannot_be_met_are_refused_before_writing() {
    let bench = Bench::new();
    bench.t0("t0", &T0::llama());
    bench.file("list.json", "[1]");
    bench.file("none.json", r#"{"nothing.*": 2}"#);
    bench.run("quantize t0 -o x.gosset").fails(2, &["--rate", "--target-bpw", "--target-size"]);
    bench.run("quantize t0 -o x.gosset --rate 4 --target-bpw 4").fails(2, &["--target-bpw"]);
    bench.run("quantize t0 -o x.gosset --target-size 1MB --target-bpw 4").fails(2, &["--target-size"]);
    bench.run("quantize t0 -o x.gosset --rate 4 --allocation uniform").fails(2, &["--allocation"]);
    bench.run("quantize t0 -o x.gosset --target-bpw 1").fails(2, &["1 bits per quantized weight", "expected from"]);
    bench.run("quantize t0 -o x.gosset --target-size 5kB").fails(2, &["5000 bytes", "expected from"]);
    bench.run("quantize t0 -o x.gosset --target-size 8XB").fails(2, &["7.5GB"]);
    bench.run("quantize t0 -o x.gosset --target-bpw 4 --weights list.json").fails(2, &["list.json", "JSON map"]);
    bench.run("quantize t0 -o x.gosset --target-bpw 4 --weights none.json").fails(2, &["nothing.*", "none"]);
    bench.run("quantize t0 -o x.gosset --rate 3.5 --codec shift-16").fails(2, &["shift-16", "2, 3, 4", "--target-bpw"]);
    assert_eq!(bench.names(), ["list.json", "none.json", "t0"]);
}

#[test]
fn a04_a_contradicting_head_dim_is_refused_before_writing() {
    let bench = Bench::new();
    let config = bench.t0("t0", &T0::llama()).join("config.json");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, text.replace("\"head_dim\": 16", "\"head_dim\": 20")).unwrap();
    let run = bench.run("quantize t0 -o t0.gosset --rate 4");
    run.fails(3, &["self_attn.q_proj.weight", "[80, 64]", "[64, 64]"]);
    assert_eq!(bench.names(), ["t0"]);
}
