//! The table of docs/FUZZING.md is that of docs/results/fuzz.json.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::entries::ENTRIES;

const BEGIN: &str = "<!-- fuzz docs/results/fuzz.json -->\n";
const END: &str = "<!-- end fuzz -->";

fn docs(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(name)
}

fn table(results: &Value) -> String {
    let mut out = format!("{}\n\n", results["setting"].as_str().unwrap());
    out.push_str(
        "| target | minutes | executions | edges reached | inputs kept | findings |\n|---|---|---|---|---|---|\n",
    );
    let mut all = [0.0, 0.0];
    for t in results["targets"].as_array().unwrap() {
        let n = |key: &str| t[key].as_f64().unwrap_or_else(|| panic!("{key} of {t}"));
        all = [all[0] + n("seconds") / 60.0, all[1] + n("executions")];
        out.push_str(&format!(
            "| `{}` | {:.1} | {} | {} | {} | {} |\n",
            t["target"].as_str().unwrap(),
            n("seconds") / 60.0,
            thousands(n("executions")),
            n("edges"),
            n("corpus"),
            n("findings"),
        ));
    }
    out.push_str(&format!(
        "| all | {:.1} | {} | | | {} |\n",
        all[0],
        thousands(all[1]),
        results["findings"].as_array().unwrap().len()
    ));
    out
}

/// Digits in groups of three.
fn thousands(n: f64) -> String {
    let digits = format!("{n:.0}");
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().map(|group| std::str::from_utf8(group).unwrap()).collect();
    groups.join(",")
}

/// The results; says so and gives `None` where there are none yet.
fn results() -> Option<Value> {
    match fs::read(docs("results/fuzz.json")) {
        Ok(bytes) => Some(serde_json::from_slice(&bytes).unwrap()),
        Err(error) => {
            eprintln!("SKIPPED: docs/results/fuzz.json is not there ({error}); fuzz/README.md says how it is made");
            None
        }
    }
}

#[test]
fn the_table_of_the_docs_is_that_of_the_results() {
    let Some(results) = results() else { return };
    let page = fs::read_to_string(docs("FUZZING.md")).unwrap();
    let (before, rest) = page.split_once(BEGIN).unwrap();
    let (found, after) = rest.split_once(END).unwrap();
    let expected = table(&results);
    if std::env::var_os("GOSSET_BLESS").is_some() {
        fs::write(docs("FUZZING.md"), [before, BEGIN, &expected, END, after].concat()).unwrap();
    } else {
        assert_eq!(found, expected, "GOSSET_BLESS=1 renews the table");
    }
}

/// Every target was fuzzed for ten minutes at least, and what was found is described, fixed and kept.
#[test]
fn every_target_was_fuzzed_long_enough_and_every_finding_is_kept() {
    const SECONDS: f64 = 600.0;
    let Some(results) = results() else { return };
    for entry in ENTRIES {
        let line = results["targets"].as_array().unwrap().iter().find(|t| t["target"] == entry.name);
        let line = line.unwrap_or_else(|| panic!("{} was not fuzzed", entry.name));
        assert!(line["seconds"].as_f64().unwrap() >= SECONDS, "{line}");
    }
    for finding in results["findings"].as_array().unwrap() {
        for key in ["target", "what", "fix"] {
            assert!(finding[key].as_str().is_some_and(|text| !text.is_empty()), "{key} of {finding}");
        }
        if let Some(input) = finding["input"].as_str() {
            assert!(docs("../fuzz/corpus").join(input).is_file(), "{input} is not kept");
        }
    }
}
