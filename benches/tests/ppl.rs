//! The binary `ppl` on the embedded model, with compressed caches.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// The report of `ppl` on two windows of 512 tokens of the embedded text.
fn report(rest: &[&str]) -> Value {
    report_of(&[&["--windows", "2"], rest].concat())
}

/// The same on as many windows as are asked for.
fn report_of(rest: &[&str]) -> Value {
    let assets = Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets");
    let output = Command::new(env!("CARGO_BIN_EXE_ppl"))
        .arg("--model")
        .arg(assets.join("tiny"))
        .arg("--text")
        .arg(assets.join("text/eval.txt"))
        .args(["--protocol", "full-512", "--json"])
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

#[test]
fn zero_shot_tasks_see_the_cache_of_their_row() {
    let folder = tempfile::tempdir().expect("a folder");
    let line = |doc: usize, idx: usize, text: &str| {
        format!(
            r#"{{"doc_id": {doc}, "idx": {idx}, "label": 0, "request": {{"context": "The river runs past the old", "continuation": " {text}"}}}}"#
        )
    };
    let lines =
        [line(0, 0, "mill"), line(0, 1, "seventeen"), line(1, 0, "town and its gardens"), line(1, 1, "of of the and")];
    std::fs::write(folder.path().join("t.jsonl"), lines.join("\n")).expect("a task");
    let path = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_owned();
    let (tasks, logs) = (path(""), path("logs"));
    let specs = ["--kv", "f32,exact=f32", "--kv", "e8@2"];
    let report = report(&[&["--tasks", "t", "--tasks-dir", &tasks, "--task-log", &logs], &specs[..]].concat());
    for row in report["rows"].as_array().expect("rows") {
        assert_eq!((&row["tasks"][0]["task"], &row["tasks"][0]["n"]), (&"t".into(), &2.into()), "{row}");
        assert!(row.get("passkey").is_none(), "{row}");
    }
    let log = |row: &str| -> Vec<f64> {
        let text = std::fs::read_to_string(folder.path().join("logs").join(row).join("t.jsonl")).expect("a log");
        let questions = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        let options = questions.flat_map(|question| question["options"].as_array().expect("options").clone());
        options.map(|option| number(&option, "ll")).collect()
    };
    let distance = |row: &str| {
        let (plain, coded) = (log("none"), log(row));
        assert_eq!((plain.len(), coded.len()), (4, 4));
        plain.iter().zip(&coded).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
    };
    let (exact, coarse) = (distance("none_with_kv_f32_exact_f32"), distance("none_with_kv_e8@2"));
    assert!(exact < 1e-3 && coarse > 1e-2, "{exact} {coarse}");
}

#[test]
fn pass_keys_are_asked_through_the_cache_of_their_row() {
    let of = |rest: &[&str]| {
        let asked = ["--windows", "1", "--passkey", "512,256,65536", "--passkey-trials", "2", "--kv", "e8@2,sinks=8"];
        let report = report_of(&[&asked, rest].concat());
        report["rows"].as_array().expect("rows").clone()
    };
    let rows = of(&[]);
    assert_eq!(rows.len(), 2);
    for row in &rows {
        let results = row["passkey"].as_array().expect("pass keys");
        let contexts: Vec<&Value> = results.iter().map(|result| &result["context"]).collect();
        // The model has no room for 65536.
        assert_eq!(contexts, [256, 512]);
        for result in results {
            let (tokens, context) = (number(result, "prompt_tokens"), number(result, "context"));
            assert!(tokens + 12.0 <= context && tokens > context - 40.0, "{result}");
            assert_eq!((number(result, "trials"), result["answers"].as_array().map(Vec::len)), (2.0, Some(2)));
            assert_eq!(result["form"], "plain");
            let bps = result.get("kv_all_in_bps").map(|bps| bps.as_f64().expect("a number"));
            match row["kv"].as_str() {
                None => assert_eq!(bps, None),
                Some(_) => assert!(bps.is_some_and(|bps| (2.0..8.0).contains(&bps)), "{result}"),
            }
        }
    }
    let keys = |row: &Value| -> Vec<Value> {
        let answers = row["passkey"].as_array().into_iter().flatten().flat_map(|r| r["answers"].as_array().cloned());
        answers.flatten().map(|answer| answer["key"].clone()).collect()
    };
    assert_eq!((keys(&rows[0]).len(), keys(&rows[0])), (4, keys(&rows[1])));
    assert_ne!(keys(&rows[0]), keys(&of(&["--passkey-seed", "1", "--no-baseline"])[0]));
}
