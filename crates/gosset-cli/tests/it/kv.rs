//! `--kv`: compressed caches from the command line.

use std::path::Path;

use crate::support::Bench;

/// The embedded model, trained on text, by its path.
fn tiny() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/tiny");
    path.canonicalize().unwrap().display().to_string()
}

const PROMPT: &str = "--prompt The_old_house_was";

#[test]
fn greedy_text_at_eight_bits_is_that_of_a_cache_in_f32() {
    let bench = Bench::new();
    let tiny = tiny();
    for prompt in ["The old house was", "In the year"] {
        let generate = |rest: &[&str]| {
            let line = ["generate", &tiny, "--prompt", prompt, "-n", "60", "--json", "-q", "--device", "cpu"];
            bench.run_args(line.iter().chain(rest)).ok().json()
        };
        let plain = generate(&[]);
        assert!(plain["kv"].is_null() && plain["kv_bytes"].is_null());
        for spec in ["e8@8", "e8@8,window=16,sinks=4", "e8@8,frame=none", "f16"] {
            let json = generate(&["--kv", spec]);
            assert_eq!((&json["text"], &json["kv"]), (&plain["text"], &spec.into()), "{spec}");
            assert!(json["kv_bytes"].as_u64().unwrap() > 0);
        }
    }
}

#[test]
fn f08_what_a_cache_takes_is_said_in_one_line() {
    let bench = Bench::new();
    let line = format!("generate {} {PROMPT} --device cpu", tiny());
    let said = |options: &str| {
        let stderr = bench.run(&format!("{line} {options}")).ok().stderr;
        stderr
            .lines()
            .filter(|line| line.starts_with("kv cache: ") && line.contains(" positions"))
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let [long] = &said("-n 600 --kv e8@2.25")[..] else { panic!("one line") };
    assert!(long.contains(" positions, ") && long.contains(" in f16 (") && long.contains("times less"), "{long}");
    let [short] = &said("-n 9 --kv e8@2.25,window=256,sinks=64")[..] else { panic!("one line") };
    assert!(short.contains("nothing saved yet"), "{short}");
    assert!(said("-n 9").is_empty() && said("-n 9 -q --kv e8@2.25").is_empty());
    let json = bench.run(&format!("{line} -n 600 -q --json --kv e8@2.25")).ok().json();
    let (taken, plain) = (json["kv_bytes"].as_u64().unwrap(), json["kv_f16_bytes"].as_u64().unwrap());
    // Keys and values of 3 layers and 2 heads of 64 in 2 bytes; the last token made has no position.
    let positions = json["n_prompt"].as_u64().unwrap() + json["n_tokens"].as_u64().unwrap() - 1;
    assert_eq!(plain, positions * 3 * 2 * 64 * 2 * 2);
    assert!(taken < plain / 4, "{taken} of {plain}");
}

#[test]
fn a_spec_is_refused_before_a_model_is_read() {
    let bench = Bench::new();
    for (spec, words) in
        [("f9@2", &["f9"][..]), ("e8", &["e8", "rate"]), ("e8@2,window=x", &["window"]), ("e8@99", &["99"])]
    {
        bench.run(&format!("generate nowhere -p a --kv {spec}")).fails(2, words);
    }
    for command in ["generate", "chat"] {
        let input = if command == "generate" { "-p a" } else { "" };
        let run = bench.run(&format!("{command} nowhere {input} --kv e8@2 --device cuda:0"));
        run.fails(2, &["cuda:0", "CPU", "shift-10", "e8"]);
        // Where the choice is free the CPU keeps what a GPU cannot, and says so.
        let run = bench.run(&format!("{command} nowhere {input} --kv shift-10@3,page=32"));
        assert!(run.stderr.contains("--kv on a GPU: expected page=64, found page=32"), "{}", run.stderr);
    }
}

#[test]
fn help_lists_the_grammar() {
    let bench = Bench::new();
    let help = bench.run("generate --help").ok().stdout;
    for word in ["--kv <SPEC>", "window=", "sinks=", "frame=", "protect=", "e8@2.25"] {
        assert!(help.contains(word), "{word} in {help}");
    }
}

#[test]
fn a_conversation_in_a_compressed_cache_goes_on_and_is_forgotten() {
    let bench = Bench::new();
    let chat = |options: &str, lines: &str| {
        bench.run_with_stdin(&format!("chat {} -n 12 --device cpu {options}", tiny()), lines.as_bytes()).ok()
    };
    let lines = "The old house\n/clear\nThe old house\n/quit\n";
    let plain = chat("", lines);
    let coded = chat("--kv e8@8,window=16", lines);
    assert_eq!(coded.stdout, plain.stdout);
    assert!(coded.stderr.contains("bits per scalar") && !plain.stderr.contains("kv cache: "), "{coded:?}");
}
