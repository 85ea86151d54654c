//! `gosset diff` against figures that are known otherwise, and both depths of `gosset verify`.

use std::fs;
use std::path::Path;

use gosset_container::{Container, ContainerKind, Digest, ManifestInfo, Writer};
use gosset_tests::t0::T0;
use serde_json::{Value, json};

use crate::support::{Bench, safetensors_f32, values};

/// A file of two matrices and a vector, and one in which known values differ.
fn pair(bench: &Bench) {
    let (a, b) = (values(32 * 64), values(16 * 8));
    let bias = vec![1.0, -2.0, 3.0];
    bench.file(
        "a.safetensors",
        safetensors_f32(&[("a", &[32, 64], a.clone()), ("b", &[16, 8], b.clone()), ("bias", &[3], bias.clone())]),
    );
    let mut other = b.clone();
    other[5] += 0.5;
    other[127] -= 0.25;
    bench.file("b.safetensors", safetensors_f32(&[("a", &[32, 64], a), ("b", &[16, 8], other), ("bias", &[3], bias)]));
}

fn tensor<'a>(diff: &'a Value, name: &str) -> &'a Value {
    diff["tensors"].as_array().unwrap().iter().find(|t| t["name"] == name).unwrap_or_else(|| panic!("{name} in {diff}"))
}

#[test]
fn two_checkpoints_differ_by_what_was_changed() {
    let bench = Bench::new();
    pair(&bench);
    let diff = bench.run("diff a.safetensors b.safetensors --json").ok().json();
    assert_eq!((&diff["identical"], &diff["n_compared"]), (&false.into(), &3.into()));
    assert_eq!(diff["worst"]["name"], "b");
    let signal: f64 = values(16 * 8).iter().map(|v| f64::from(*v) * f64::from(*v)).sum();
    let expected = 10.0 * (signal / (0.5f64.powi(2) + 0.25f64.powi(2))).log10();
    // The sums of the changed values are rounded to f32.
    assert!((diff["worst"]["snr_db"].as_f64().unwrap() - expected).abs() < 1e-3, "{diff}");
    assert!((diff["worst"]["max_abs_difference"].as_f64().unwrap() - 0.5).abs() < 1e-5);
    for name in ["a", "bias"] {
        assert_eq!((&tensor(&diff, name)["identical"], &tensor(&diff, name)["snr_db"]), (&true.into(), &Value::Null));
    }
    assert_eq!((&diff["reference_bps"], &diff["other_bps"]), (&32.0.into(), &32.0.into()));
    let text = bench.run("diff a.safetensors b.safetensors --tensors -q").ok().stdout;
    for part in ["worst: b", "2 identical", "32.0000", "bias"] {
        assert!(text.contains(part), "{part:?} in {text}");
    }
    let same = bench.run("diff a.safetensors a.safetensors").ok().stdout;
    assert!(same.contains("every tensor is the same"), "{same}");
    assert_eq!(bench.run("diff a.safetensors a.safetensors --json").ok().json()["identical"], true);
}

#[test]
fn what_is_on_one_side_only_is_told() {
    let bench = Bench::new();
    pair(&bench);
    bench.file(
        "c.safetensors",
        safetensors_f32(&[("a", &[64, 32], values(2048)), ("b", &[16, 8], values(128)), ("z", &[2], vec![0.0; 2])]),
    );
    let diff = bench.run("diff a.safetensors c.safetensors --json").ok().json();
    assert_eq!((&diff["only_in_reference"], &diff["only_in_other"]), (&json!(["bias"]), &json!(["z"])));
    assert_eq!(diff["other_shape"], json!([{ "name": "a", "reference": [32, 64], "other": [64, 32] }]));
    assert_eq!(diff["identical"], false);
    let text = bench.run("diff a.safetensors c.safetensors").ok().stdout;
    for part in ["only in A: bias", "only in B: z", "other shape: a, A 32x64, B 64x32"] {
        assert!(text.contains(part), "{part:?} in {text}");
    }
    bench.run("diff a.safetensors c.safetensors --min-snr 1").fails(1, &["bias", "not on both sides"]);
}

/// The SNR of the report of quantizing, measured by other code, is what diff finds between the source and the container.
#[test]
fn a_container_differs_from_its_source_by_the_snr_of_its_report() {
    let bench = Bench::new();
    bench.t0("t0", &T0::llama());
    for (name, options) in
        [("e8", "--rate 3"), ("shift", "--codec shift-12 --rate 3"), ("trellis", "--codec trellis-8 --rate 5")]
    {
        let report = bench.run(&format!("quantize t0 -o {name}.gosset {options} --json")).ok().json();
        let diff = bench.run(&format!("diff t0 {name}.gosset --json")).ok().json();
        assert_eq!(diff["n_compared"], diff["tensors"].as_array().unwrap().len());
        let mut quantized = 0;
        for t in report["tensors"].as_array().unwrap().iter().filter(|t| t["action"] != "skipped") {
            let found = tensor(&diff, t["name"].as_str().unwrap());
            assert_eq!(found["identical"], t["action"] == "kept", "{t} {found}");
            if t["action"] == "quantized" {
                quantized += 1;
                let (told, measured) = (t["snr_db"].as_f64().unwrap(), found["snr_db"].as_f64().unwrap());
                assert!((told - measured).abs() < 1e-6, "{t} {found}");
                assert_eq!(
                    (&found["reference_stored_as"], found["reference_bps"].as_f64()),
                    (&"BF16".into(), Some(16.0))
                );
                assert!(found["other_bps"].as_f64().unwrap() < 8.0);
            }
        }
        assert_eq!(quantized, 14);
        // The worst is the least of them, and stands for all.
        let least = diff["worst"]["snr_db"].as_f64().unwrap();
        let all = diff["tensors"].as_array().unwrap().iter().filter_map(|t| t["snr_db"].as_f64());
        assert_eq!(all.fold(f64::INFINITY, f64::min), least);
        bench.run(&format!("diff t0 {name}.gosset --min-snr {}", least - 0.01)).ok();
        let worst = diff["worst"]["name"].as_str().unwrap();
        bench.run(&format!("diff t0 {name}.gosset --min-snr {}", least + 0.01)).fails(1, &[worst, "dB"]);
        // Threads change nothing.
        let one = bench.run(&format!("diff t0 {name}.gosset --json --threads 1")).ok().stdout;
        assert_eq!(one, bench.run(&format!("diff t0 {name}.gosset --json --threads 5")).ok().stdout);
    }
    // Two containers.
    let diff = bench.run("diff e8.gosset trellis.gosset --json").ok().json();
    assert!(diff["worst"]["snr_db"].as_f64().unwrap() > 5.0, "{diff}");
    assert_eq!(bench.run("diff e8.gosset e8.gosset --json").ok().json()["identical"], true);
}

#[test]
fn diff_refuses_what_it_cannot_read() {
    let bench = Bench::new();
    pair(&bench);
    bench.run("diff a.safetensors absent.gosset").fails(5, &["absent.gosset"]);
    bench.file("bad.gosset", b"no container at all, and long enough to see that");
    bench.run("diff a.safetensors bad.gosset").fails(4, &["bad.gosset"]);
    bench.run("diff a.safetensors b.safetensors --min-snr NaN").fails(2, &["--min-snr"]);
    bench.run("diff a.safetensors").fails(2, &["--help"]);
}

/// Rewrites the header of a container with `from` replaced by `to` of the same length, checksum included.
fn patch(path: &Path, from: &str, to: &str) {
    let mut bytes = fs::read(path).unwrap();
    let len = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header = String::from_utf8(bytes[8..len].to_vec()).unwrap();
    assert!(header.contains(from) && from.len() == to.len(), "{from} in {header}");
    bytes[8..len].copy_from_slice(header.replace(from, to).as_bytes());
    bytes[47..63].fill(b'0');
    let digest = Digest::of(&bytes[..len]).to_string();
    bytes[47..63].copy_from_slice(digest.as_bytes());
    fs::write(path, bytes).unwrap();
}

#[test]
fn checksums_alone_are_one_depth_and_values_the_other() {
    let bench = Bench::new();
    bench.t0("t0", &T0::llama());
    bench.run("quantize t0 -o t0.gosset --codec e8 --rate 4 --quiet").ok();
    let path = bench.path("t0.gosset");
    let quick = bench.run("verify --checksums t0.gosset --json").ok().json();
    assert_eq!((&quick["checked"]["depth"], &quick["checked"]["n_decoded"]), (&"checksums".into(), &0.into()));
    assert!(bench.run("verify --checksums t0.gosset").ok().stdout.contains("nothing was decoded"));
    let full = bench.run("verify t0.gosset --json").ok().json();
    let checked = &full["checked"];
    assert_eq!((&checked["depth"], &checked["recipe"]), (&"values".into(), &true.into()));
    assert_eq!(checked["n_planes"], quick["checked"]["n_planes"]);
    let tensors = checked["tensors"].as_array().unwrap();
    assert_eq!(tensors.len(), 14);
    for t in tensors {
        // T0's weights are near normal with sigma 0.02, and keep their length in the frame of the code.
        let rms = t["rms"].as_f64().unwrap();
        assert!((0.018..0.022).contains(&rms), "{t}");
        assert!(t["max_abs"].as_f64().unwrap() > 2.0 * rms && t["codec"] == "e8", "{t}");
        assert!((t["payload_bps"].as_f64().unwrap() - 4.0).abs() < 0.2, "{t}");
    }
    let text = bench.run("verify t0.gosset --tensors").ok().stdout;
    assert!(text.contains("as the recipe says") && text.contains("down_proj"), "{text}");
    bench.run("verify t0.gosset --tensors --checksums").fails(2, &["--checksums"]);

    // A recipe that says another thing is seen by the second depth only.
    patch(&path, r#"\"rate\":4.0"#, r#"\"rate\":3.0"#);
    bench.run("verify --checksums t0.gosset").ok();
    bench.run("verify t0.gosset").fails(4, &["t0.gosset", "recipe", "3 bits"]);
    let json = bench.run("verify t0.gosset --json").fails(4, &[]).json();
    assert!(json["ok"] == false && json["problems"][0]["part"] == "file", "{json}");
    patch(&path, r#"\"rate\":3.0"#, r#"\"rate\":4.0"#);
    bench.run("verify t0.gosset").ok();
    patch(&path, r#"\"codec\":\"e8\""#, r#"\"codec\":\"d4\""#);
    bench.run("verify t0.gosset").fails(4, &["recipe", "d4", "e8", "13 more"]);
}

/// A plane whose checksum is right and whose streams or values are not: the first depth is content, the second is not.
#[test]
fn damage_under_right_checksums_is_found_by_decoding() {
    let bench = Bench::new();
    let from = Container::open(&bench.container()).unwrap();
    let name = "model.layers.0.mlp.up_proj.weight";
    let write = |to: &str, plane: &str, change: &dyn Fn(&mut [u8])| {
        let path = bench.path(to);
        let mut writer = Writer::create(&path, true).unwrap();
        writer.copy_tensor(&from, name).unwrap();
        let info = ManifestInfo { kind: ContainerKind::Tensors, source: json!({}), recipe: json!({}) };
        writer.finish(info).unwrap();
        let mut bytes = fs::read(&path).unwrap();
        let len = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let header = gosset_container::safetensors_header::parse(&bytes[8..len]).unwrap();
        let t = header.tensors.iter().find(|t| t.name.ends_with(&format!("#{plane}"))).unwrap();
        let range = len + t.start as usize..len + t.end as usize;
        let before = Digest::of(&bytes[range.clone()]).to_string();
        change(&mut bytes[range.clone()]);
        let after = Digest::of(&bytes[range]).to_string();
        fs::write(&path, bytes).unwrap();
        patch(&path, &before, &after);
    };
    write("streams.gosset", "words", &|bytes| bytes.iter_mut().step_by(7).for_each(|b| *b ^= 0x5a));
    write("values.gosset", "scales", &|bytes| bytes[..2].copy_from_slice(&0x7fc0u16.to_le_bytes()));
    for (file, word) in [("streams.gosset", "stream"), ("values.gosset", "NaN")] {
        bench.run(&format!("verify --checksums {file}")).ok();
        bench.run(&format!("verify {file}")).fails(4, &[file, name, word]);
    }
}

#[test]
fn the_doctor_tells_of_memory_and_cache() {
    let bench = Bench::new();
    fs::create_dir_all(bench.path("cache/models/tiny")).unwrap();
    let json = bench.run("doctor --json").ok().json();
    assert_eq!((&json["cache"]["exists"], &json["cache"]["models"]), (&true.into(), &json!(["tiny"])));
    assert!(json["memory"].get("limit_bytes").is_some());
    let text = bench.run("doctor").ok().stdout;
    assert!(text.contains("models: tiny") && text.contains("threads") && text.contains("memory"), "{text}");
}
