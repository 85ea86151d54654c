//! `gosset recommend`: what it says is what `gosset quantize` then does.

use std::fs;

use gosset_tests::t0::T0;

use crate::support::Bench;

#[test]
fn the_recommended_command_makes_a_file_that_fits() {
    let bench = Bench::new();
    bench.t0("t0", &T0::llama());
    let ample = bench.run("recommend t0 --memory 1GiB --context 64 --json").ok().json();
    let needs: u64 = ample["needs"].as_object().unwrap().values().map(|n| n.as_u64().unwrap()).sum();
    // All that weights, kept tensors and side files may take is 150 kB, then more than they can.
    for memory in [needs + 150_000, 1 << 30] {
        let json = bench.run(&format!("recommend t0 --memory {memory} --context 64 --json")).ok().json();
        let n = |value: &serde_json::Value| value.as_u64().unwrap();
        let parts =
            ["kv_bytes", "kv_growth_bytes", "scratch_bytes", "program_bytes"].map(|part| n(&json["needs"][part]));
        assert_eq!(parts[0], 2 * 2 * 2 * 16 * 64 * 4);
        let file = n(&json["recommended"]["file_bytes"]);
        let weights = ["quantized_bytes", "kept_bytes", "other_bytes"].map(|part| n(&json["weights"][part]));
        assert_eq!(weights.iter().sum::<u64>(), file);
        assert_eq!(parts.iter().sum::<u64>() + file + n(&json["left_bytes"]), n(&json["memory_bytes"]));
        let command = json["command"].as_str().unwrap().strip_prefix("gosset ").unwrap();
        bench.run(&format!("{command} --quiet --force")).ok();
        let made = bench.names().into_iter().find(|name| name.ends_with(".gosset")).unwrap();
        let size = fs::metadata(bench.path(&made)).unwrap().len();
        assert!(size <= file + file / 50, "{size} of {file}");
        fs::remove_file(bench.path(&made)).unwrap();
        for rejected in json["rejected"].as_array().unwrap() {
            assert!(!rejected["why"].as_str().unwrap().is_empty());
        }
    }
    let text = bench.run("recommend t0 --memory 1GB --context 64").ok().stdout;
    for part in [
        "KV cache",
        "2 layers x 2 heads x 16 wide x 64 positions",
        "left",
        "quality: SNR",
        "run: gosset quantize t0",
        "rejected",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn what_does_not_fit_is_told_with_what_is_missing() {
    let bench = Bench::new();
    bench.t0("t0", &T0::llama());
    bench
        .run("recommend t0 --memory 1MB --context 64")
        .fails(2, &["nothing fits into 1.0 MB", "the least is", "more than that"]);
    bench.run("recommend t0 --memory 8GB --context 100000000").fails(2, &["--context 100000000", "at most"]);
    bench.run("recommend t0 --memory lots").fails(2, &["500MB", "7.5GB"]);
    bench.run("recommend none.gguf --memory 8GB").fails(5, &["none.gguf"]);
}

#[test]
fn containers_are_models_too() {
    let bench = Bench::new();
    bench.container();
    let run = bench.run("recommend t0.gosset --memory 1GB --context 32").ok();
    assert!(
        run.stdout.contains("the container as it is takes") && run.stdout.contains("run: gosset quantize ORIGINAL")
    );
    let of_container = bench.run("recommend t0.gosset --memory 1GB --context 32 --json").ok().json();
    let of_source = bench.run("recommend t0 --memory 1GB --context 32 --json").ok().json();
    assert_eq!(of_container["recommended"]["codec"], of_source["recommended"]["codec"]);
    assert_eq!(of_container["recommended"]["all_in_bps"], of_source["recommended"]["all_in_bps"]);
}
