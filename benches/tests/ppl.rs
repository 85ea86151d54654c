//! The binary `ppl` on the embedded model, with compressed caches.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// The report of `ppl` on windows of 512 tokens of the embedded text.
fn report(rest: &[&str]) -> Value {
    let assets = Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets");
    let output = Command::new(env!("CARGO_BIN_EXE_ppl"))
        .arg("--model")
        .arg(assets.join("tiny"))
        .arg("--text")
        .arg(assets.join("text/eval.txt"))
        .args(["--protocol", "full-512", "--windows", "2", "--json"])
        .args(rest)
        .output()
        .expect("ppl runs");
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).expect("a report in JSON")
}

fn number(row: &Value, field: &str) -> f64 {
    row[field].as_f64().unwrap_or_else(|| panic!("{field} of {row}"))
}

#[test]
fn every_cache_is_a_row_beside_the_one_in_f32() {
    let specs = ["f32,exact=f32", "e8@8", "e8@2.25,window=64,sinks=16", "turboquant@3,sinks=16"];
    let kv: Vec<&str> = specs.iter().flat_map(|spec| ["--kv", spec]).collect();
    let report = report(&kv);
    let rows = report["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 5);
    assert!(rows.iter().all(|row| row["codec"] == "none" && number(row, "ppl").is_finite()));
    assert!(["kv", "kv_page_bps", "kv_all_in_bps"].iter().all(|field| rows[0][field].is_null()), "{}", rows[0]);
    assert_eq!(number(&rows[0], "delta_ln"), 0.0);
    for (row, spec) in rows[1..].iter().zip(specs) {
        assert_eq!(row["kv"], spec);
        let (page, all_in) = (number(row, "kv_page_bps"), number(row, "kv_all_in_bps"));
        assert!(page > 0.0 && all_in > 0.0, "{spec}: {page}, {all_in}");
        let delta = number(&rows[0], "ppl").ln() + number(row, "delta_ln") - number(row, "ppl").ln();
        assert!(delta.abs() < 1e-9, "{spec}: delta_ln is to the row with the cache in f32");
    }
    // An exact store differs by the order of sums.
    assert!(number(&rows[1], "delta_ln").abs() < 1e-5, "{}", rows[1]["delta_ln"]);
    assert!((number(&rows[1], "kv_page_bps") - 32.0).abs() < 1.0);
    assert!(number(&rows[2], "delta_ln").abs() < 1e-3, "{}", rows[2]["delta_ln"]);
    // 512 positions, of which 80 are exact in 16 bits and 48 wait for their page: beyond the page rate at least the share of the first,
    // and no more than twice it.
    let beyond = number(&rows[3], "kv_all_in_bps") - number(&rows[3], "kv_page_bps");
    let share = 80.0 / 512.0 * (16.0 - 2.25);
    assert!((share..2.0 * share).contains(&beyond), "{beyond} for {share}");
    // Six pages of 64 a head share the headers of few allocations.
    assert!((2.0..2.5).contains(&number(&rows[3], "kv_page_bps")), "{}", rows[3]["kv_page_bps"]);
}

#[test]
fn numbers_do_not_depend_on_how_tokens_are_cut_into_chunks() {
    let spec = ["--no-baseline", "--kv", "e8@3,window=20,sinks=3,page=32", "--kv-chunk"];
    let of = |chunk: &str| report(&[&spec[..], &[chunk]].concat());
    let (a, b) = (of("256"), of("61"));
    let rows = [&a, &b].map(|report| &report["rows"][0]);
    assert_eq!(a["rows"].as_array().map(Vec::len), Some(1));
    // Sums in another order move a coordinate to another code once in a while.
    assert!(
        (number(rows[0], "ppl") / number(rows[1], "ppl") - 1.0).abs() < 1e-4,
        "{} {}",
        rows[0]["ppl"],
        rows[1]["ppl"]
    );
    assert!((number(rows[0], "kv_page_bps") - number(rows[1], "kv_page_bps")).abs() < 1e-3);
}

#[test]
fn weights_and_caches_are_compressed_together_if_both_are_asked_for() {
    let report = report(&["--kv", "e8@4,page=32", "--codecs", "e8@4"]);
    let rows: Vec<(&Value, &Value)> =
        report["rows"].as_array().expect("rows").iter().map(|row| (&row["codec"], &row["kv"])).collect();
    let (none, e8, null, kv) = ("none".into(), "e8".into(), Value::Null, "e8@4,page=32".into());
    assert_eq!(rows, [(&none, &null), (&none, &kv), (&e8, &null), (&e8, &kv)]);
}
