//! The binary `kv-scores` on the embedded model.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

#[test]
fn dither_leaves_no_bias_and_roundings_without_it_are_nothing_else() {
    let assets = Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets");
    let output = Command::new(env!("CARGO_BIN_EXE_kv-scores"))
        .arg("--model")
        .arg(assets.join("tiny"))
        .arg("--text")
        .arg(assets.join("text/eval.txt"))
        .args(["--tokens", "192", "--queries", "8", "--bits", "2,4", "--seeds", "8", "--json"])
        .output()
        .expect("kv-scores runs");
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("a report in JSON");
    let rows = report["rows"].as_array().expect("rows");
    let number = |row: &Value, field: &str| row[field].as_f64().unwrap_or_else(|| panic!("{field} of {row}"));
    assert!(rows.len() > 20 && rows.iter().all(|row| number(row, "noise") > 0.0 && number(row, "page_bps") > 1.0));
    for row in rows {
        let share = number(row, "bias_share");
        match row["drawn"].as_str() {
            Some("nothing") => assert!((share - 1.0).abs() < 1e-9, "{row}"),
            // Eight draws leave the square of a mean known to a few per cent.
            Some("position") => assert!(share.abs() < 0.08 && number(row, "score_slope").abs() < 0.05, "{row}"),
            _ => {}
        }
    }
    let noise = |variant: &str, bits: f64| {
        let row = rows.iter().find(|row| row["variant"] == variant && row["bits"] == bits);
        number(row.expect("a row of every variant and rate"), "noise")
    };
    for variant in ["rht", "frame probe", "turboquant", "octopus"] {
        assert!(noise(variant, 4.0) < 0.2 * noise(variant, 2.0), "{variant}: two bits are a factor of 16");
    }
}
