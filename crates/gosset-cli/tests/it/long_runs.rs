//! Runs over many machines, small memory and full disks. Kills are in `resume`.
#![cfg(unix)]

use std::fs;
use std::process::Command;

use gosset_tests::t0::T0;

use crate::support::{Bench, finish};

/// Runs a shell script in the folder of `bench`; `$GOSSET` is the command.
fn script(bench: &Bench, text: &str) -> crate::support::Run {
    let mut command = Command::new("sh");
    command.args(["-c", text]).current_dir(bench.path(".")).env("GOSSET", env!("CARGO_BIN_EXE_gosset"));
    finish(command.env("GOSSET_CACHE", bench.path("cache")))
}

#[test]
fn parts_made_side_by_side_merge_to_the_bytes_of_one_run() {
    let bench = Bench::new();
    bench.t0("t0", &T0 { layers: 3, ..T0::llama() });
    bench.run("quantize t0 -o whole.gosset --codec e8 --rate 3 --quiet").ok();
    // The example of docs/LONG_RUNS.md.
    script(
        &bench,
        "seq 0 2 | xargs -P 3 -I@ $GOSSET quantize t0 -o p@.gosset --codec e8 --rate 3 --part @/3 --threads 1 --quiet",
    )
    .ok();
    let run = bench.run("merge p2.gosset p0.gosset p1.gosset -o merged.gosset").ok();
    assert!(run.stdout.contains("3 parts"), "{run:?}");
    assert!(fs::read(bench.path("merged.gosset")).unwrap() == fs::read(bench.path("whole.gosset")).unwrap());
    bench.run("generate merged.gosset --prompt a -n 2 --quiet").ok();

    bench.run("generate p0.gosset --prompt a -n 2").fails(6, &["p0.gosset", "tensors only"]);
    bench.run("merge p0.gosset p1.gosset -o m.gosset").fails(6, &["missing 2/3"]);
    bench.run("merge p0.gosset whole.gosset -o m.gosset").fails(4, &["whole.gosset", "found a whole container"]);
    bench.run("merge p0.gosset p1.gosset p2.gosset -o merged.gosset").fails(5, &["--force"]);
    bench.run("quantize t0 -o q.gosset --rate 2.5 --codec e8 --part 1/3 --quiet").ok();
    let other = bench.run("merge p0.gosset q.gosset p2.gosset -o m.gosset");
    other.fails(2, &["recipe.options.rate: 3.0 in the first, 2.5 in the second"]);
    bench.run("quantize t0 -o m.gosset --target-bpw 3 --part 0/3").fails(2, &["part 0/3", "--rate"]);
    bench.run("quantize t0 -o m.gosset --rate 3 --part 3/3").fails(2, &["i/n"]);
    assert!(!bench.path("m.gosset").exists());
}

#[test]
fn calibrated_parts_merge_to_the_bytes_of_one_run() {
    let bench = Bench::new();
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../../assets/tiny");
    let run = |more: &str| {
        let words = format!("quantize {model} --codec e8+feedback --rate 3 --calibration-tokens 512 --quiet {more}");
        bench.run(&words)
    };
    run("-o whole.gosset").ok();
    run("-o p0.gosset --part 0/2").ok();
    run("-o p1.gosset --part 1/2").ok();
    bench.run("merge p0.gosset p1.gosset -o merged.gosset --quiet").ok();
    assert!(fs::read(bench.path("merged.gosset")).unwrap() == fs::read(bench.path("whole.gosset")).unwrap());
    run("-o p.gosset --part 0/2 --sequential").fails(2, &["part 0/2", "--sequential"]);
}

#[test]
fn d01_a_model_beyond_the_limit_is_quantized_within_it() {
    /// Of the private memory of the process, in KiB.
    const LIMIT: u64 = 48 << 10;
    let bench = Bench::new();
    bench.t0("t0", &T0 { layers: 12, hidden: 512, ffn: 1408, heads: 8, kv_heads: 4, head_dim: 64, ..T0::llama() });
    let model = fs::metadata(bench.path("t0/model.safetensors")).unwrap().len();
    assert!(model > LIMIT << 10, "the model has {model} bytes");
    let quantize = "$GOSSET quantize t0 -o out.gosset --codec e8 --rate 3 --threads 2";
    let run = script(&bench, &format!("ulimit -d {LIMIT} && exec {quantize} --max-memory 48MiB")).ok();
    let opening = run.stderr.lines().find(|line| line.contains("of memory")).unwrap();
    assert!(opening.contains("expecting about") && opening.contains("and about"), "{opening}");
    bench.run("verify out.gosset").ok();
    let json = bench.run("quantize t0 --codec e8 --rate 3 --threads 2 --dry-run --json").ok().json();
    let stated = json["expected"]["peak_memory_bytes"].as_u64().unwrap();
    assert!(stated <= LIMIT << 10, "{stated} bytes are stated");

    let run = bench.run("quantize t0 -o no.gosset --codec e8 --rate 3 --max-memory 16MiB");
    run.fails(2, &["--max-memory", "mlp.down_proj.weight (512x1408)", "--keep"]);
    assert!(!bench.path("no.gosset").exists());
}

#[test]
fn a_full_disk_is_named_and_leaves_no_output() {
    let bench = Bench::new();
    fs::create_dir(bench.path("disk")).unwrap();
    // A file system of our own in a namespace of our own: nothing to clean up, whatever happens.
    let on_disk = |kib: u64, text: &str| {
        let inner = format!("mount -t tmpfs -o size={kib}k none disk && {text}");
        script(&bench, &format!("unshare -rm sh -c '{inner}'"))
    };
    let probe = on_disk(64, "true");
    if probe.code != 0 {
        eprintln!("SKIPPED: no tmpfs can be mounted here: {}", probe.stderr);
        return;
    }
    bench.t0("t0", &T0 { layers: 4, hidden: 256, ffn: 512, heads: 4, head_dim: 64, ..T0::llama() });
    bench.run("quantize t0 -o whole.gosset --codec e8 --rate 4 --quiet").ok();
    let kib = fs::metadata(bench.path("whole.gosset")).unwrap().len() >> 10;
    let quantize = "$GOSSET quantize t0 -o disk/out.gosset --codec e8 --rate 4 --quiet";
    // Full while tensors are written, and full while the file is put together.
    for size in [kib / 4, kib + kib / 2] {
        let run = on_disk(size, &format!("{quantize}; code=$?; ls -A disk; exit $code"));
        assert_eq!(run.stdout, "", "nothing is left: {run:?}");
        run.fails(5, &["out.gosset", "No space left", "free some space"]);
        // What is finished is kept, and goes on once there is space.
        let more = format!("mount -o remount,size={}k disk", 4 * kib);
        let text = format!(
            "{quantize} --resumable; ls disk >&2; {more} && {quantize} --resumable && cmp disk/out.gosset whole.gosset"
        );
        let run = on_disk(size, &text).ok();
        assert!(run.stderr.contains("No space left") && run.stderr.contains("out.gosset.work"), "{run:?}");
        assert!(!run.stderr.lines().any(|name| name == "out.gosset"), "{run:?}");
    }
    let parts = "$GOSSET quantize t0 -o p0.gosset --rate 4 --codec e8 --part 0/1 --quiet";
    let run = on_disk(
        kib / 2,
        &format!("{parts} && $GOSSET merge p0.gosset -o disk/out.gosset; code=$?; ls -A disk; exit $code"),
    );
    assert_eq!(run.stdout, "", "{run:?}");
    run.fails(5, &["out.gosset", "No space left"]);
}

#[test]
fn an_output_in_shards_runs_and_joins_to_the_one_file() {
    let bench = Bench::new();
    bench.t0("t0", &T0 { layers: 3, ..T0::llama() });
    let quantize = "quantize t0 --codec e8 --rate 3";
    bench.run(&format!("{quantize} -o whole.gosset --quiet")).ok();
    let bytes = fs::metadata(bench.path("whole.gosset")).unwrap().len();
    let run = bench.run(&format!("{quantize} -o m.gosset --shard-size {}", bytes / 2)).ok();
    assert!(run.stdout.contains("shards"), "{run:?}");
    let shards: Vec<String> = bench.names().into_iter().filter(|name| name.starts_with("m-")).collect();
    assert!(shards.len() >= 3, "{shards:?}");
    for shard in &shards {
        assert!(fs::metadata(bench.path(shard)).unwrap().len() <= bytes / 2, "{shard}");
        bench.run(&format!("verify {shard}")).ok();
    }
    bench.run("verify m.gosset").ok();
    let [whole, sharded] =
        ["whole", "m"].map(|name| bench.run(&format!("generate {name}.gosset --prompt a -n 4 --quiet")).ok());
    assert_eq!(whole.stdout, sharded.stdout);
    bench.run("merge m.gosset -o joined.gosset --quiet").ok();
    assert!(fs::read(bench.path("joined.gosset")).unwrap() == fs::read(bench.path("whole.gosset")).unwrap());
    // Small enough is one file.
    bench.run(&format!("{quantize} -o one.gosset --shard-size 1GB --quiet")).ok();
    assert!(fs::read(bench.path("one.gosset")).unwrap() == fs::read(bench.path("whole.gosset")).unwrap());
    fs::remove_file(bench.path(&shards[1])).unwrap();
    bench.run("verify m.gosset").fails(5, &[&shards[1]]);
}
