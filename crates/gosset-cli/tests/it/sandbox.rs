//! Chat templates of strangers: what they may take is bounded by the system, not by their goodwill.

use gosset_tests::t0::T0;

use crate::support::Bench;

#[test]
fn a_template_that_takes_all_memory_ends_its_own_process_only() {
    if !cfg!(target_os = "linux") {
        eprintln!("SKIPPED: limits on memory are tested on Linux");
        return;
    }
    let bench = Bench::new();
    bench.t0("t0", &T0::llama());
    // Doubled 64 times at run time; 10 GB of constants that are joined while compiling.
    let doubled =
        "{% set ns = namespace(s='x') %}{% for i in range(64) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}";
    let folded = format!("{{{{ {} }}}}", ["'a' * 99999999"; 100].join(" ~ "));
    for template in [doubled, &folded] {
        bench.file("t0/chat_template.jinja", template);
        bench.run("generate t0 --chat -p hi").fails(3, &["template", "2048 MiB"]);
        let run = bench.run_with_stdin("chat t0", b"hi\n");
        run.fails(3, &["template", "2048 MiB"]);
    }
    bench
        .file("t0/chat_template.jinja", "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}");
    bench.run("generate t0 --chat -p hi").fails(3, &["template", "instructions"]);
    // A good one goes on working.
    bench.file("t0/chat_template.jinja", "{{ messages[0].content }}");
    bench.run("generate t0 --chat -p hi -n 2").ok();
}

#[test]
fn the_verb_of_the_sandbox_is_hidden_and_refuses_what_it_does_not_know() {
    let bench = Bench::new();
    assert!(!bench.run("--help").ok().stdout.contains("render-template"));
    for input in [&b""[..], b"[1, 2", b"\xff"] {
        bench.run_with_stdin("render-template", input).fails(1, &[]);
    }
    let request = br#"{"chat_template":[123,123,32,49,32,125,125],"tokenizer_config":null,"messages":[]}"#;
    assert_eq!(bench.run_with_stdin("render-template", request).ok().json()["text"], "1");
}
