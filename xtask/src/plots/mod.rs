//! The plots of README and docs, made from the JSON under `docs/results` by `cargo xtask tables`.
//!
//! An SVG depends on its JSON alone: no fonts are read, no clock, and coordinates are whole pixels.

use std::{fs, path::Path};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::kernel_results::{self, KernelResults};
use crate::results::{Evaluation, RateDistortion};

mod chart;
mod series;

use chart::{Axis, Chart, Reference};
use series::Series;

/// One picture: where it goes and what it is drawn from.
struct Plot {
    svg: &'static str,
    json: &'static str,
    draw: fn(&str, &str) -> Result<String>,
}

const PLOTS: &[Plot] = &[
    Plot { svg: "docs/plots/gap.svg", json: "docs/results/rd.json", draw: gap },
    Plot { svg: "docs/plots/ppl.svg", json: "docs/results/smollm2-wikitext2.json", draw: perplexity },
    Plot { svg: "docs/plots/kv.svg", json: "docs/results/smollm2-kv.json", draw: caches },
    Plot { svg: "docs/plots/kv-qwen.svg", json: "docs/results/qwen-kv.json", draw: caches },
    Plot { svg: "docs/plots/kernels.svg", json: "docs/results/h200-kernels.json", draw: kernels },
];

/// Largest distance to the bound that is drawn, in bits.
const MAX_GAP_BITS: f64 = 0.7;

/// Distances in ln PPL that are drawn for caches.
const CACHE_DISTANCES: std::ops::Range<f64> = 0.003..4.0;

/// Largest perplexity that is drawn, over that of the unquantized model.
const MAX_PPL_RATIO: f64 = 60.0;

/// Draws every plot whose JSON is there; with `check` nothing is written, and a plot that differs is an error.
pub(crate) fn refresh(root: &Path, check: bool) -> Result<()> {
    for plot in PLOTS {
        let json = fs::read_to_string(root.join(plot.json)).with_context(|| format!("{} is made from it", plot.svg))?;
        let svg = (plot.draw)(&json, plot.json).with_context(|| plot.json.to_owned())?;
        let path = root.join(plot.svg);
        if fs::read_to_string(&path).is_ok_and(|old| old == svg) {
            continue;
        }
        if check {
            bail!("{}: differs from what {} says; run `cargo xtask tables`", plot.svg, plot.json);
        }
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).with_context(|| format!("{}", folder.display()))?;
        }
        fs::write(&path, svg).with_context(|| format!("{}", path.display()))?;
        println!("{}", plot.svg);
    }
    Ok(())
}

/// Distance to the Shannon bound over the rate, one line per codec.
fn gap(json: &str, file: &str) -> Result<String> {
    let table: RateDistortion = parse(json)?;
    let gaussian = table.rows.iter().filter(|row| row.source == "gaussian");
    let points = gaussian.filter_map(|row| Some((row.codec.as_str(), row.stream_bps, row.gap_bits?)));
    Chart {
        title: "Distance to the Shannon bound, Gaussian source",
        subtitle: &format!("{file}: {}", table.command),
        x: Axis::linear("stream rate, bits per weight (all but one scale per row)", 1.0..6.2, quarters(1.0..6.2)),
        y: Axis::linear("rate above R(D), bits per weight", 0.0..MAX_GAP_BITS, steps(0.0..MAX_GAP_BITS, 0.1)),
        series: Series::group(points),
        reference: None,
    }
    .svg()
}

/// Perplexity over the rate, one line per codec.
fn perplexity(json: &str, file: &str) -> Result<String> {
    let table: Evaluation = parse(json)?;
    let baseline = table.rows.iter().find(|row| row.is_unquantized()).map(|row| row.ppl);
    // What rounds to the source's own levels says nothing about a codec.
    let coded = table.rows.iter().filter(|row| !row.is_unquantized() && row.kv.is_none() && !row.is_source_grid());
    let points: Vec<_> = coded.map(|row| (row.codec.as_str(), row.all_in_bps, row.ppl)).collect();
    let least = points.iter().map(|p| p.2).chain(baseline).fold(f64::INFINITY, f64::min);
    if !least.is_finite() {
        bail!("expected at least one row");
    }
    let rates = points.iter().map(|p| p.1);
    let last = rates.fold(4.0, f64::max);
    let (x, y) = (1.8..last + 0.2, 0.9 * least..MAX_PPL_RATIO * least);
    let labels = [1.0, 10.0, 100.0, 1000.0, 10_000.0];
    let labels = labels.iter().flat_map(|decade| [1.0, 1.5, 2.0, 3.0, 5.0, 7.0].map(|digit| digit * decade));
    Chart {
        title: &format!("Perplexity of {}, {}", table.model, table.protocol),
        subtitle: &format!("{file}: {} windows, {} tokens scored", table.windows, table.tokens_scored),
        x: Axis::linear("all-in rate of the quantized tensors, bits per weight", x.clone(), quarters(x)),
        y: Axis::logarithmic("perplexity", y.clone(), labels.filter(|label| y.contains(label)).collect()),
        series: Series::group(points.into_iter()),
        reference: baseline.map(|ppl| Reference { value: ppl, label: "unquantized" }),
    }
    .svg()
}

/// Distance in ln PPL over the rate of compressed caches without an exact part, one line per method.
fn caches(json: &str, file: &str) -> Result<String> {
    let table: Evaluation = parse(json)?;
    let rows = table.rows.iter().filter_map(|row| Some((row.kv.as_deref()?, row.kv_all_in_bps?, row.delta_ln?)));
    let all_coded = rows.filter(|(spec, ..)| !spec.contains("window="));
    let points: Vec<_> = all_coded.map(|(spec, rate, distance)| (method(spec), rate, distance)).collect();
    let last = points.iter().map(|p| p.1).fold(4.0, f64::max);
    let x = 1.4..last + 0.2;
    let labels = [0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0];
    Chart {
        title: &format!("Compressed KV caches of {}, every position coded, {}", table.model, table.protocol),
        subtitle: &format!("{file}: {} windows, {} tokens scored", table.windows, table.tokens_scored),
        x: Axis::linear("all-in rate at the end of a window, bits per scalar", x.clone(), quarters(x)),
        y: Axis::logarithmic("ln PPL over that of the cache in f32", CACHE_DISTANCES, labels.to_vec()),
        series: Series::group(points.iter().map(|(name, x, y)| (name.as_str(), *x, *y))),
        reference: None,
    }
    .svg()
}

/// The code of a spec, and its frame where that is another than the default.
fn method(spec: &str) -> String {
    let code = spec.split('@').next().unwrap_or(spec);
    let option = |name: &str| spec.split(',').find(|option| option.starts_with(name));
    [Some(code), option("frame="), option("k.rot="), option("k.dither=")]
        .into_iter()
        .flatten()
        .collect::<Vec<_>>()
        .join(" ")
}

/// Speed of products over their distortion, one line per codec.
fn kernels(json: &str, file: &str) -> Result<String> {
    let results: KernelResults = parse(json)?;
    let points = kernel_results::speeds(&results);
    let top = points.iter().map(|p| p.2).fold(4.0, f64::max).ceil();
    let labels = [3.0, 5.0, 7.0, 10.0, 20.0, 30.0, 50.0, 70.0, 100.0, 150.0];
    Chart {
        title: &format!("Product with one activation on an {}, 14336 x 4096", results.device),
        subtitle: &format!("{file}: {}; rotation of the activation in the time, weights cold", results.command),
        x: Axis::logarithmic("mean squared error in thousandths of the variance", 3.0..150.0, labels.to_vec()),
        y: Axis::linear("times the speed of bf16 (the fastest of cuBLAS and cublasLt)", 0.0..top, steps(0.0..top, 0.5)),
        series: Series::group(points.iter().map(|(name, mse, speed)| (name.as_str(), 1e3 * mse, *speed))),
        reference: Some(Reference { value: 1.0, label: "bf16" }),
    }
    .svg()
}

fn parse<'a, T: Deserialize<'a>>(json: &'a str) -> Result<T> {
    Ok(serde_json::from_str(json)?)
}

fn quarters(range: std::ops::Range<f64>) -> Vec<f64> {
    steps(range, 0.5)
}

/// Multiples of `step` within `range`.
fn steps(range: std::ops::Range<f64>, step: f64) -> Vec<f64> {
    let first = (range.start / step).ceil() as i64;
    let last = (range.end / step + 1e-9).floor() as i64;
    (first..=last).map(|i| i as f64 * step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::Workspace;

    const RD: &str = r#"{"command": "cargo xtask rd", "seed": 1, "cpu": "x", "rows": [
        {"source": "gaussian", "codec": "e8", "target_bps": 2, "stream_bps": 2.0, "mse": 0.07, "gap_bits": 0.15,
         "encode_mws": 1, "decode_mws": 2},
        {"source": "gaussian", "codec": "e8", "target_bps": 3, "stream_bps": 3.0, "mse": 0.02, "gap_bits": 0.15,
         "encode_mws": 1, "decode_mws": 2},
        {"source": "laplace", "codec": "z", "target_bps": 3, "stream_bps": 3.0, "mse": 0.02, "gap_bits": 0.25,
         "encode_mws": 1, "decode_mws": 2},
        {"source": "gaussian", "codec": "poor", "target_bps": 3, "stream_bps": 3.0, "mse": 0.02, "gap_bits": 9.25,
         "encode_mws": 1, "decode_mws": 2}]}"#;

    #[test]
    fn a_plot_names_what_it_shows_and_is_the_same_every_time() {
        let svg = gap(RD, "docs/results/rd.json").unwrap();
        assert!(svg.contains("docs/results/rd.json: cargo xtask rd") && svg.contains(">\ne8\n<"), "{svg}");
        // Another source is left out; a codec off the scale is named as such.
        assert!(!svg.contains(">\nz\n<") && svg.contains("off the scale:"), "{svg}");
        assert_eq!(gap(RD, "docs/results/rd.json").unwrap(), svg);
        assert!(!svg.contains('\t') && svg.ends_with('\n'));
    }

    #[test]
    fn rows_on_the_grid_of_the_source_are_left_out() {
        let row = |codec: &str, target: &str, grid: bool| {
            format!(
                r#"{{"codec": "{codec}", "target_bps": {target}, "payload_bps": 4, "all_in_bps": 4.1, "file_bps": 5,
                "file_bytes": 9, "ppl": 21.0, "ppl_sigma": 1, "delta_ln": 0, "source_grid": {grid}}}"#
            )
        };
        let rows = [row("none", "null", false), row("e8", "4", false), row("rtn", "4", true)].join(",");
        let json = format!(r#"{{"model": "m", "protocol": "p", "windows": 1, "tokens_scored": 2, "rows": [{rows}]}}"#);
        let svg = perplexity(&json, "x.json").unwrap();
        assert!(svg.contains(">\ne8\n<") && !svg.contains(">\nrtn\n<") && svg.contains("unquantized"), "{svg}");
        assert!(perplexity(&json.replace(&rows, ""), "x.json").is_err());
    }

    #[test]
    fn the_committed_plots_are_those_of_the_committed_results() {
        refresh(Workspace::find().unwrap().root(), true).unwrap();
    }

    #[test]
    fn steps_stay_within_their_range() {
        assert_eq!(steps(1.8..3.2, 0.5), [2.0, 2.5, 3.0]);
        assert_eq!(steps(0.0..0.3, 0.1).len(), 4);
    }
}
