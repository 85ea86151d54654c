//! `gosset chat` and `generate --chat`: templates, history, end tokens.

use std::fs;

use gosset_tests::t0::T0;

use crate::support::Bench;

const TEMPLATE: &str = "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[a]";
const CONFIG: &str = r#"{ "bos_token": "<s>", "eos_token": "</s>" }"#;

fn with_template(template: &str) -> Bench {
    let bench = Bench::new();
    bench.t0("t0", &T0::llama());
    bench.file("t0/tokenizer_config.json", CONFIG);
    bench.file("t0/chat_template.jinja", template);
    bench
}

#[test]
fn j02_a_prompt_has_one_bos_with_a_template_that_prints_it() {
    let bench = with_template(TEMPLATE);
    let json = bench.run("generate t0 --chat -p hi -n 1 --json").ok().json();
    // <s>, "[user]hi[a]".
    assert_eq!(json["n_prompt"], 1 + 11);
    let raw = bench.run("generate t0 --raw -p hi -n 1 --json").ok().json();
    assert_eq!(raw["n_prompt"], 2);
}

#[test]
fn j02_a_template_travels_in_the_container() {
    let bench = with_template(TEMPLATE);
    bench.run("quantize t0 -o t0.gosset --rate 5 -q").ok();
    fs::rename(bench.path("t0"), bench.path("away")).unwrap();
    let json = bench.run("generate t0.gosset --chat -p hi -n 1 --json").ok().json();
    assert_eq!(json["n_prompt"], 12);
}

#[test]
fn j02_a_template_in_the_tokenizer_configuration_works_too() {
    let bench = with_template("");
    fs::remove_file(bench.path("t0/chat_template.jinja")).unwrap();
    bench.file("t0/tokenizer_config.json", r#"{ "bos_token": "<s>", "chat_template": "{{ messages[0].content }}" }"#);
    assert_eq!(bench.run("generate t0 --chat -p hi -n 1 --json").ok().json()["n_prompt"], 2);
}

#[test]
fn j02_bad_templates_are_one_line_with_the_construct() {
    let bench = with_template("{{ bos_token }}\n{{ messages[0].content.frobnicate() }}");
    bench.run("generate t0 --chat -p hi").fails(3, &["template", "line 2", "frobnicate"]);
    bench.file("t0/chat_template.jinja", "{% if %}");
    bench.run("generate t0 --chat -p hi").fails(3, &["template", "line 1"]);
    // The raw mode does not look at it.
    bench.run("generate t0 -p hi -n 1").ok();
}

#[test]
fn j02_without_a_template_chat_completes_plainly() {
    let bench = Bench::new();
    bench.t0("t0", &T0::llama());
    bench.run("generate t0 --chat -p hi").fails(6, &["chat template", "--chat"]);
    let run = bench.run_with_stdin("chat t0 -n 5", b"abc\nabc\n/quit\nabc\n").ok();
    assert!(run.stderr.contains("no chat template"), "{run:?}");
    let once = bench.run("generate t0 -p abc -n 5").ok().stdout;
    assert_eq!(run.stdout, format!("{once}{once}"), "lines do not depend on each other");
}

#[test]
fn a_conversation_is_kept_until_it_is_cleared() {
    let bench = with_template(TEMPLATE);
    let chat = |input: &[u8]| bench.run_with_stdin("chat t0 -n 6 --system be-brief", input).ok().stdout;
    let (one, two) = (chat(b"abc\n"), chat(b"abc\nabc\n"));
    assert!(two.starts_with(&one));
    assert_eq!(chat(b"abc\n/clear\nabc\n"), format!("{one}{one}"));
    assert_eq!(chat(b"\n\n/help\n"), "");
}

#[test]
fn a_conversation_that_outgrows_the_context_goes_on_after_clear() {
    let bench = with_template(TEMPLATE);
    let long = "y".repeat(600);
    let run = bench.run_with_stdin("chat t0 -n 3", format!("{long}\nabc\n").as_bytes()).ok();
    assert!(run.stderr.contains("/clear"), "{run:?}");
    assert_eq!(run.stdout, bench.run_with_stdin("chat t0 -n 3", b"abc\n").ok().stdout);
}
