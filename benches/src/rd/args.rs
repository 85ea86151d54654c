//! The command line of `rd`.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Parser;

use super::matrix::{GAUSSIAN, LAPLACE};
use super::method::{Method, Rates, methods};

/// Rates of a quick run, in bits per weight.
const QUICK_RATES: [f64; 3] = [2.0, 3.0, 4.0];

/// Rates, distortions and speeds of every codec and baseline, as one table.
#[derive(Debug, Parser)]
#[command(name = "rd", version, after_help = after_help())]
pub struct Args {
    /// What is quantized: `gaussian`, `laplace`, or the path of a checkpoint (`NAME=PATH` gives it a name); several with commas.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = GAUSSIAN)]
    pub source: Vec<String>,
    /// Seed of drawn matrices.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Rows of drawn matrices [default: 64, with --full 256].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    pub rows: Option<u32>,
    /// Columns of drawn matrices.
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub cols: u32,
    /// Matrices of a checkpoint: those whose name contains one of these, `all` for all [default: an attention and a feed-forward
    /// matrix of a model's middle layer, every matrix of other files].
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub tensors: Vec<String>,
    /// Codecs and baselines; `e8@3.5` fixes the rate of one [default: all].
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub codecs: Vec<String>,
    /// Payload rates in bits per weight [default: 2,3,4; with --full 1.25 to 6 in steps of 0.25 for drawn matrices, 1.5 to 6 in
    /// steps of 0.5 for others].
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub rates: Vec<f64>,
    /// The whole ladder of rates, on larger matrices; takes an hour or more.
    #[arg(long)]
    pub full: bool,
    /// Split the gap from this baseline to E8 by cause, at each of its rates.
    #[arg(long, value_name = "BASELINE")]
    pub decompose: Option<String>,
    /// Print JSON instead of a table.
    #[arg(long)]
    pub json: bool,
    /// Write the JSON to this file, and CSV beside it.
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// The command to name in the output.
    #[arg(long, value_name = "TEXT", hide = true)]
    pub command: Option<String>,
}

/// A method at the rates that it is measured at.
pub(super) struct Target {
    pub(super) method: Method,
    pub(super) rates: Vec<f64>,
    /// Rates that were asked for and that the method does not have.
    pub(super) unreachable: Vec<f64>,
}

impl Args {
    /// Rows of drawn matrices.
    pub(super) fn rows(&self) -> usize {
        self.rows.map_or(if self.full { 256 } else { 64 }, |rows| rows as usize)
    }

    /// What to measure on `source`, in the order of `--codecs`, or of the table of methods.
    pub(super) fn targets(&self, source: &str) -> Result<Vec<Target>> {
        let rates = self.rates(source)?;
        if self.codecs.is_empty() {
            return Ok(methods().into_iter().map(|method| Target::new(method, &rates)).collect());
        }
        let mut targets: Vec<Target> = Vec::new();
        for text in &self.codecs {
            let (name, rates) = match text.split_once('@') {
                Some((name, rate)) => {
                    let rate = rate.parse().with_context(|| format!("--codecs {text}: the rate after @"))?;
                    (name, vec![rate])
                }
                None => (text.as_str(), rates.clone()),
            };
            let mut all = methods();
            let Some(at) = all.iter().position(|method| method.name == name) else {
                let names: Vec<_> = all.iter().map(|method| method.name.as_str()).collect();
                bail!("--codecs {text}: unknown codec `{name}`, expected one of {}", names.join(", "));
            };
            let mut target = Target::new(all.swap_remove(at), &rates);
            let seen = |rate: &f64| targets.iter().any(|t| t.method.name == name && t.rates.contains(rate));
            target.rates.retain(|rate| !seen(rate));
            targets.push(target);
        }
        Ok(targets)
    }

    fn rates(&self, source: &str) -> Result<Vec<f64>> {
        if let Some(bad) = self.rates.iter().find(|rate| !(rate.is_finite() && **rate > 0.0)) {
            bail!("--rates: found {bad}, expected bits per weight above 0");
        }
        let drawn = [GAUSSIAN, LAPLACE].contains(&source);
        Ok(match (self.rates.is_empty(), self.full) {
            (false, _) => self.rates.clone(),
            (true, false) => QUICK_RATES.to_vec(),
            (true, true) if drawn => (5..=24).map(|quarter| 0.25 * f64::from(quarter)).collect(),
            (true, true) => (3..=12).map(|half| 0.5 * f64::from(half)).collect(),
        })
    }
}

impl Target {
    fn new(method: Method, asked: &[f64]) -> Self {
        let (rates, unreachable) = match method.rates.single() {
            Some(rate) => (vec![rate], Vec::new()),
            None => asked.iter().partition(|rate| method.rates.contains(**rate)),
        };
        Target { method, rates, unreachable }
    }
}

/// The codecs, each with its line.
fn after_help() -> String {
    let mut text = "Codecs and baselines, with their rates in bits per weight:\n".to_owned();
    for method in methods() {
        let rates = match &method.rates {
            Rates::Between(min, max) => format!("{min} to {max}"),
            Rates::Only(rates) => rates.iter().map(f64::to_string).collect::<Vec<_>>().join(", "),
        };
        text += &format!("  {:14} {} ({rates})\n", method.name, method.about);
    }
    text += "\nA method with one rate is measured at it whatever --rates says.";
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn args(rest: &[&str]) -> Args {
        Args::try_parse_from(["rd"].iter().chain(rest)).unwrap()
    }

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
        for bad in [["--rows", "0"], ["--cols", "0"], ["--seed", "x"]] {
            assert!(Args::try_parse_from(["rd"].iter().chain(&bad)).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn targets_are_codecs_times_rates() {
        let targets = args(&["--codecs", "e8-rice,z-rice@3.5", "--rates", "0.5,3"]).targets(GAUSSIAN).unwrap();
        let seen: Vec<_> =
            targets.iter().map(|t| (t.method.name.as_str(), t.rates.clone(), t.unreachable.clone())).collect();
        assert_eq!(seen, [("e8-rice", vec![3.0], vec![0.5]), ("z-rice", vec![3.5], vec![])]);
        let again = args(&["--codecs", "e8-rice@3,e8-rice", "--rates", "3,2"]).targets(GAUSSIAN).unwrap();
        assert_eq!(again.iter().map(|t| t.rates.clone()).collect::<Vec<_>>(), [vec![3.0], vec![2.0]]);
        for bad in [["--codecs", "f9"], ["--codecs", "e8-rice@x"], ["--rates", "0"], ["--rates", "nan"]] {
            assert!(args(&bad).targets(GAUSSIAN).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn every_method_is_measured_by_default() {
        let targets = args(&[]).targets(GAUSSIAN).unwrap();
        assert_eq!(targets.len(), methods().len());
        assert!(targets.iter().all(|t| t.rates.len() + t.unreachable.len() == 3 || t.method.rates.single().is_some()));
        let full = args(&["--full"]);
        assert_eq!((full.rates(GAUSSIAN).unwrap().len(), full.rates("x").unwrap().len(), full.rows()), (20, 10, 256));
    }
}
