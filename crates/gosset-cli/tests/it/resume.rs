//! C12: interrupted runs, on the embedded model.
#![cfg(unix)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{Bench, finish};

/// The model that is part of the repository.
fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/tiny")
}

/// Words of a run into `out` that can be taken up again, with calibration where the codec needs one.
fn line(out: &str, codec: &str, rate: &str) -> String {
    let model = tiny().display().to_string();
    let how = if codec.ends_with("+feedback") || codec.starts_with("unisvq") {
        "--calibration-tokens 1024"
    } else {
        "--resumable"
    };
    format!("quantize {model} -o {out} --codec {codec} --rate {rate} {how} --quiet")
}

/// Numbers that look random, the same in every run.
fn random(state: &mut u64) -> f64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 40) as f64 / (1 << 24) as f64
}

/// How many tensors the work folder of `out.gosset` keeps.
fn n_parts(bench: &Bench) -> usize {
    let is_part = |e: std::io::Result<fs::DirEntry>| e.is_ok_and(|e| e.path().extension().is_some_and(|e| e == "part"));
    fs::read_dir(bench.path("out.gosset.work")).map_or(0, |entries| entries.map(is_part).filter(|p| *p).count())
}

#[test]
fn c12_a_killed_run_goes_on_to_the_same_bytes() {
    /// Tensors of the model that are quantized.
    const TENSORS: f64 = 21.0;
    let bench = Bench::new();
    // Kills until a run is left to its end.
    for (codec, kills) in [("e8+feedback", 10), ("unisvq", 10), ("trellis-256", 20)] {
        bench.run(&line("whole.gosset", codec, "3")).ok();
        let whole = fs::read(bench.path("whole.gosset")).unwrap();
        let mut state = 20_260_610;
        let mut n_killed = 0;
        for kill in 0..kills {
            // Evenly over the run, at any moment of a tensor.
            let at = (kill as f64 * TENSORS / kills as f64) as usize;
            let words = line("out.gosset", codec, "3");
            let mut child = bench.command(words.split_whitespace()).stderr(Stdio::null()).spawn().unwrap();
            while n_parts(&bench) < at && child.try_wait().unwrap().is_none() {
                std::thread::sleep(Duration::from_millis(1));
            }
            std::thread::sleep(Duration::from_secs_f64(0.05 * random(&mut state)));
            // SIGKILL.
            child.kill().unwrap();
            n_killed += usize::from(!child.wait().unwrap().success());
            match fs::read(bench.path("out.gosset")) {
                Ok(bytes) => assert!(bytes == whole, "{codec}: a name without the whole file"),
                Err(_) => continue,
            }
            break;
        }
        assert!(n_killed >= kills / 2, "only {n_killed} runs were killed before their end");
        if !bench.path("out.gosset").exists() {
            bench.run(&line("out.gosset", codec, "3")).ok();
            assert!(!bench.path("out.gosset.work").exists(), "{codec}: a complete run leaves no work folder");
        }
        assert!(fs::read(bench.path("out.gosset")).unwrap() == whole, "{codec}");
        fs::remove_file(bench.path("out.gosset")).unwrap();
        fs::remove_file(bench.path("whole.gosset")).unwrap();
        let _ = fs::remove_dir_all(bench.path("out.gosset.work"));
    }
}

/// Starts a run and presses Ctrl-C when its work folder holds a part.
fn interrupted(bench: &Bench, words: &str) -> crate::support::Run {
    let mut command = bench.command(words.split_whitespace());
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let id = child.id().to_string();
    let work = bench.path("out.gosset.work");
    let has_part = || {
        fs::read_dir(&work)
            .is_ok_and(|mut d| d.any(|e| e.is_ok_and(|e| e.path().extension().is_some_and(|e| e == "part"))))
    };
    let started = Instant::now();
    while !has_part() && started.elapsed() < Duration::from_secs(120) {
        std::thread::sleep(Duration::from_millis(2));
    }
    assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    crate::support::Run {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

#[test]
fn c12_ctrl_c_keeps_what_is_finished_and_other_jobs_are_refused() {
    let bench = Bench::new();
    let words = line("out.gosset", "trellis-8+feedback", "3").replace(" --quiet", "");
    let run = interrupted(&bench, &words).fails(130, &["kept in out.gosset.work", "same command again to go on"]);
    assert!(run.stderr.contains("calibrating"), "{run:?}");
    assert_eq!(bench.names(), ["out.gosset.work"]);

    let other = bench.run(&line("out.gosset", "trellis-8+feedback", "2.5"));
    other.fails(2, &["recipe.options.rate: 3.0 there, 2.5 asked for", "--restart"]);
    let seed = format!("{} --calibration-seed 5", line("out.gosset", "trellis-8+feedback", "3"));
    bench.run(&seed).fails(2, &["seed: 0 there, 5 asked for", "--restart"]);

    let run = bench.run(&words).ok();
    assert!(run.stderr.contains("going on from an interrupted run"), "{run:?}");
    assert_eq!(bench.names(), ["out.gosset"]);
    bench.run(&line("whole.gosset", "trellis-8+feedback", "3")).ok();
    assert!(fs::read(bench.path("out.gosset")).unwrap() == fs::read(bench.path("whole.gosset")).unwrap());
}

#[test]
fn c12_a_changed_input_is_refused_until_restarted() {
    let bench = Bench::new();
    let model = bench.path("model");
    fs::create_dir(&model).unwrap();
    for entry in fs::read_dir(tiny()).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, model.join(path.file_name().unwrap())).unwrap();
    }
    let words = "quantize model -o out.gosset --codec unisvq --rate 2 --calibration-tokens 512";
    interrupted(&bench, words).fails(130, &["kept in"]);
    let weights = model.join("model.safetensors");
    let mut bytes = fs::read(&weights).unwrap();
    // The lowest bit of the last weight.
    let last = bytes.len() - 2;
    bytes[last] ^= 1;
    fs::write(&weights, bytes).unwrap();
    bench.run(words).fails(2, &["source.content", "--restart"]);
    bench.run(&format!("{words} --restart")).ok();
    assert_eq!(bench.names(), ["model", "out.gosset"]);
    bench.run("verify out.gosset").ok();
}

#[test]
fn c12_two_runs_on_one_output_do_not_mix() {
    let bench = Bench::new();
    let words = line("out.gosset", "e8+feedback", "3");
    let mut first = bench.command(words.split_whitespace()).stderr(Stdio::null()).spawn().unwrap();
    let lock = bench.path("out.gosset.work/job.json");
    while !lock.exists() && first.try_wait().unwrap().is_none() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let second = finish(&mut bench.command(words.split_whitespace()));
    second.fails(5, &["another run is working here", &first.id().to_string()]);
    assert!(first.wait().unwrap().success());
    bench.run("verify out.gosset").ok();
}

#[test]
fn g05_calibrated_bytes_do_not_depend_on_threads_and_come_from_what_inspect_shows() {
    let bench = Bench::new();
    for (codec, rate) in [("e8+feedback", "2.5"), ("unisvq", "2"), ("shift-12+feedback", "2")] {
        let on = |threads: usize| {
            let out = format!("{threads}.gosset");
            bench.run(&format!("{} --force --threads {threads}", line(&out, codec, rate))).ok();
            fs::read(bench.path(&out)).unwrap()
        };
        let one = on(1);
        assert!(on(2) == one && on(7) == one, "{codec}");
        let shown = bench.run("inspect 1.gosset").ok().stdout;
        for part in ["method", codec, "calibration", "built-in (1024 tokens", "seed 0"] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        let json = bench.run("inspect 1.gosset --json").ok().json();
        assert_eq!(json["recipe"]["options"]["calibration"]["tokens"], 1024);
        assert_eq!(json["recipe"]["settings"]["damping"]["sigma"], 0.01);
    }
}

#[test]
fn calibration_is_planned_reported_and_refused_where_it_has_no_use() {
    let bench = Bench::new();
    let model = tiny().display().to_string();
    let dry = bench.run(&format!("quantize {model} --codec unisvq --rate 2 --calibration-tokens 512 --dry-run")).ok();
    for part in ["unisvq@2", "calibration: built-in (512 tokens", "memory: at most"] {
        assert!(dry.stdout.contains(part), "{part}: {}", dry.stdout);
    }
    let run = bench.run(&line("out.gosset", "unisvq", "2").replace(" --quiet", "")).ok();
    for part in ["calibration", "coverage", "feedback", "damping", "calibrating"] {
        assert!(run.stdout.contains(part), "{part}: {}", run.stdout);
    }
    assert!(run.stderr.contains("of memory") && run.stderr.contains("calibrating on built-in"), "{}", run.stderr);
    bench.file("text.txt", "once upon a time there was a small model. ".repeat(200));
    let words = format!("quantize {model} -o out.gosset --force --codec unisvq --rate 2 --calibration text.txt --json");
    let json = bench.run(&words).ok().json();
    assert_eq!(json["calibration"]["record"]["text"], "text.txt");
    assert!(json["warnings"].to_string().contains("tokens were asked for"), "{}", json["warnings"]);
    assert!(json["calibration"]["record"].get("token_weights").is_none(), "as files of 0.1.0 have it");
    let json = bench.run(&format!("{words} --token-weights capped")).ok().json();
    assert_eq!(json["calibration"]["record"]["token_weights"], "capped");
    let inspected = bench.run("inspect out.gosset").ok();
    assert!(inspected.stdout.contains("tokens of great energy capped"), "{}", inspected.stdout);
    bench.run(&format!("{words} --token-weights most")).fails(2, &["--token-weights", "most", "equal, capped"]);
    let refused = format!("quantize {model} -o e.gosset --rate 3 --codec e8 --token-weights capped");
    bench.run(&refused).fails(2, &["--token-weights", "e8+feedback"]);
    let unbiased = format!("quantize {model} -o u.gosset --rate 2 --codec e8-unbiased+feedback --calibration text.txt");
    let report = bench.run(&unbiased).ok();
    assert!(report.stdout.contains("e8-unbiased+feedback"), "{}", report.stdout);
    bench.run("verify u.gosset").ok();

    bench.run(&format!("quantize {model} -o e.gosset --rate 3 --codec e8 --sequential")).fails(2, &["e8+feedback"]);
    bench
        .run(&format!("quantize {model} -o e.gosset --rate 3 --codec e8-rice+feedback"))
        .fails(2, &["e8-rice+feedback"]);
    bench.run(&format!("quantize {model} -o e.gosset --rate 2.5 --codec unisvq")).fails(2, &["2, 3, 4"]);
}
