//! `gosset generate`: what is printed, and what is asked of a model.

use std::fs;

use gosset_tests::t0::T0;

use crate::support::Bench;

#[test]
fn j01_streamed_text_is_the_whole_text() {
    let bench = Bench::new();
    // Random weights of a byte-level model spell every kind of broken character.
    for seed in 0..6 {
        bench.t0("t0", &T0 { seed, ..T0::llama() });
        for (temperature, draw) in [("0", "0"), ("1.5", "1"), ("3", "2")] {
            let line = format!("generate t0 -p é -n 80 --temperature {temperature} --seed {draw}");
            let streamed = bench.run(&line).ok().stdout;
            let json = bench.run(&format!("{line} --json")).ok().json();
            let text = json["text"].as_str().unwrap();
            let expected = if text.is_empty() || text.ends_with('\n') { text.to_owned() } else { format!("{text}\n") };
            assert_eq!(streamed, expected);
            assert_eq!(json["n_prompt"], 2);
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_text() {
    let bench = Bench::new();
    bench.container();
    let text = |options: &str| bench.run(&format!("generate t0.gosset -p abc -n 40 {options}")).ok().stdout;
    assert_eq!(text("--temperature 1 --seed 5"), text("--temperature 1 --seed 5 --threads 1"));
    assert_ne!(text("--temperature 1 --seed 5"), text("--temperature 1 --seed 6"));
    assert_eq!(text(""), text("--seed 9"), "greedy text needs no seed");
}

#[test]
fn the_prompt_comes_from_stdin_too() {
    let bench = Bench::new();
    bench.t0("t0", &T0::llama());
    let by_option = bench.run("generate t0 -p abc -n 9").ok().stdout;
    assert_eq!(bench.run_with_stdin("generate t0 --stdin -n 9", b"abc").ok().stdout, by_option);
    bench.run_with_stdin("generate t0 --stdin", b"a\xff").fails(2, &["UTF-8", "byte 1"]);
    bench.run("generate t0").fails(2, &["--prompt", "--stdin"]);
    bench.run("generate t0 -p a --stdin").fails(2, &["--stdin"]);
    bench.run_with_stdin("generate t0 --stdin", b"").fails(2, &["empty"]);
}

#[test]
fn a06_ids_without_a_token_are_never_sampled() {
    let bench = Bench::new();
    let t0 = T0 { vocab: 320, ..T0::llama() };
    bench.t0("t0", &t0);
    // The rows beyond the tokenizer win every argmax: they are the sum of many others, much larger.
    let mut tensors = t0.tensors();
    let table = &mut tensors[0].values;
    for row in 260..320 {
        (0..t0.hidden).for_each(|c| table[row * t0.hidden + c] *= 64.0);
    }
    bench.file("t0/model.safetensors", t0.safetensors(&tensors));
    for line in ["generate t0 -p abc -n 30 --json", "generate t0 -p abc -n 30 --temperature 2 --json"] {
        let run = bench.run(line).ok();
        assert!(run.json()["tokens"].as_array().unwrap().iter().all(|id| id.as_u64().unwrap() < 260));
        assert!(run.stderr.contains("60 of 320"), "{}", run.stderr);
    }
}

#[test]
fn options_out_of_range_are_refused_at_once() {
    let bench = Bench::new();
    bench.t0("t0", &T0::llama());
    for option in ["--temperature -1", "--temperature nan", "--top-p 0", "--top-p 1.1", "--max-tokens 0", "--threads 0"]
    {
        let (name, value) = option.split_once(' ').unwrap();
        bench.run(&format!("generate t0 -p a {name}={value}")).fails(2, &[name]);
    }
}

#[test]
fn a_prompt_longer_than_the_context_is_refused() {
    let bench = Bench::new();
    bench.t0("t0", &T0::llama());
    let long = "x".repeat(600);
    bench.run_with_stdin("generate t0 --stdin", long.as_bytes()).fails(2, &["512", "600"]);
    let run = bench.run_with_stdin("generate t0 --stdin -n 300 --json", "x".repeat(400).as_bytes()).ok();
    assert!(run.json()["n_tokens"].as_u64().unwrap() <= 113, "{run:?}");
}

#[test]
fn e04_a_model_that_computes_nan_says_where() {
    let bench = Bench::new();
    let t0 = T0::llama();
    bench.t0("t0", &t0);
    let mut tensors = t0.tensors();
    let norm = tensors.iter_mut().find(|t| t.name == "model.layers.1.input_layernorm.weight").unwrap();
    norm.values[3] = f32::NAN;
    bench.file("t0/model.safetensors", t0.safetensors(&tensors));
    bench.run("generate t0 -p abc").fails(3, &["non-finite", "model.layers.1"]);
}

#[test]
fn i05_a_stripped_part_is_named() {
    let bench = Bench::new();
    bench.t0("t0", &T0::llama());
    fs::remove_file(bench.path("t0/config.json")).unwrap();
    // Without a configuration the folder is a heap of tensors, which quantize but do not run.
    bench.run("quantize t0 -o t0.gosset --rate 4 -q").ok();
    bench.run("generate t0.gosset -p a").fails(6, &["t0.gosset"]);
}
