//! What is measured: codecs and baselines by name, at the rates they have.

use anyhow::{Context, Result, bail};
use gosset_baselines::{Baseline, Rotation, families, named};
use gosset_quantize::{Method, MethodInfo, QuantizeTarget, methods};

use crate::kquants::{KQUANTS, KQuant};

/// The codec of rows that name none, and of `cargo xtask eval`.
pub(super) const BEST_CODEC: &str = "trellis-256";

/// Why it is that one.
pub(super) const WHY_BEST: &str = "the data-free codec with the least distortion at every rate, by docs/results/rd.csv";

/// The rows of `--ablations`, at 2 bits: the affine grid as published, each of its parts left out or replaced, and plain rounding.
pub(super) const ABLATIONS: [&str; 10] = [
    "unisvq+ft",
    "unisvq",
    "unisvq-random",
    "unisvq-d4gen",
    "unisvq-full",
    "unisvq-norht",
    "unisvq-d1",
    "unisvq-d2",
    "unisvq-d8",
    "rtn",
];

/// Payload rates of rows that name none.
const DEFAULT_RATES: [f64; 3] = [4.0, 3.0, 2.0];

/// One row to measure.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Target {
    /// Name of a codec or baseline.
    pub(super) codec: String,
    /// What is asked of its rate; always a payload for a baseline.
    pub(super) rate: QuantizeTarget,
    /// Whether it is a baseline.
    pub(super) baseline: bool,
    /// Whether it needs the activations of the model.
    pub(super) calibrated: bool,
}

impl Target {
    /// `e8-rice@3.5`, `trellis-256@3bpw`.
    pub(super) fn label(&self) -> String {
        format!("{}@{}", self.codec, self.rate)
    }

    fn of_method(info: &MethodInfo, rate: QuantizeTarget) -> Self {
        Target { codec: info.name.clone(), rate, baseline: false, calibrated: info.needs_calibration }
    }
}

/// The rates that rows are asked for.
#[derive(Debug, Clone, Copy)]
pub(super) struct AskedRates<'a> {
    /// Payloads, of codecs and baselines.
    pub(super) payload: Option<&'a [f64]>,
    /// All-in rates, of codecs.
    pub(super) all_in: Option<&'a [f64]>,
}

/// What follows the number of an all-in rate in a name: `e8@2bpw`, as in the labels of rows.
const ALL_IN: &str = "bpw";

/// The rows for `names` (`codec`, `codec@rate` or `codec@ratebpw`) in order, each once, and what is left out.
///
/// A method that has one rate only is measured at it, once. Of the rates in a list those that a method cannot reach are left out; an
/// explicit `codec@rate`, and a method that reaches none of them, are errors. Baselines have payload rates only: where all-in rates
/// alone are asked for, they are taken at payloads of those numbers, and what they take beyond is in their all-in rate.
pub(super) fn targets(names: &[String], asked: AskedRates<'_>) -> Result<(Vec<Target>, Vec<String>)> {
    let mut targets: Vec<Target> = Vec::new();
    let mut left_out = Vec::new();
    for text in names.iter().map(|name| name.trim()).filter(|name| *name != "none") {
        let (name, explicit) = match text.split_once('@') {
            Some((name, rate)) => {
                let (number, of): (_, fn(f64) -> QuantizeTarget) = match rate.strip_suffix(ALL_IN) {
                    Some(number) => (number, QuantizeTarget::AllInBpw),
                    None => (rate, QuantizeTarget::PayloadBps),
                };
                let number: f64 = number.parse().with_context(|| format!("--codecs {text}: the rate after @"))?;
                (name, Some(of(number)))
            }
            None => (text, None),
        };
        let found = match Method::info(name) {
            Ok(info) => codec_rows(&info, explicit, asked, &mut left_out)?,
            Err(_) => baseline_rows(name, explicit, asked, &mut left_out)?,
        };
        for target in found {
            if !targets.contains(&target) {
                targets.push(target);
            }
        }
    }
    Ok((targets, left_out))
}

fn codec_rows(
    info: &MethodInfo,
    explicit: Option<QuantizeTarget>,
    asked: AskedRates<'_>,
    left_out: &mut Vec<String>,
) -> Result<Vec<Target>> {
    let row = |rate| Target::of_method(info, QuantizeTarget::PayloadBps(rate));
    let check = |rate: f64| Method::parse(&info.name, rate);
    let is_positive = |bpw: f64| bpw.is_finite() && bpw > 0.0;
    if let Some(target) = explicit {
        match target {
            QuantizeTarget::PayloadBps(rate) => drop(check(rate).with_context(|| format!("{}@{rate}", info.name))?),
            // What a model can make of it is known when its shapes are.
            QuantizeTarget::AllInBpw(bpw) if !is_positive(bpw) => {
                bail!("{}@{target}: expected a positive rate in bits per weight", info.name)
            }
            _ => {}
        }
        return Ok(vec![Target::of_method(info, target)]);
    }
    let all_in = asked.all_in.unwrap_or_default();
    if let Some(bad) = all_in.iter().find(|bpw| !is_positive(**bpw)) {
        bail!("--target-bpw {bad}: expected a positive rate in bits per weight");
    }
    let mut rows: Vec<Target> =
        all_in.iter().map(|&bpw| Target::of_method(info, QuantizeTarget::AllInBpw(bpw))).collect();
    let payload = match (asked.payload, asked.all_in) {
        (Some(rates), _) => rates,
        (None, Some(_)) => &[],
        (None, None) => &DEFAULT_RATES,
    };
    let mut refused = None;
    for &rate in payload {
        match check(rate) {
            Ok(_) => rows.push(row(rate)),
            Err(error) => {
                left_out.push(format!("left out: {error}"));
                refused = Some(error);
            }
        }
    }
    match refused {
        Some(error) if rows.is_empty() => Err(error).context(info.name.clone()),
        _ => Ok(rows),
    }
}

fn baseline_rows(
    name: &str,
    explicit: Option<QuantizeTarget>,
    asked: AskedRates<'_>,
    left_out: &mut Vec<String>,
) -> Result<Vec<Target>> {
    let row = |rate| {
        let calibrated = baseline(name, rate, Rotation::DEFAULT).is_ok_and(|method| method.needs_calibration());
        Target { codec: name.to_owned(), rate: QuantizeTarget::PayloadBps(rate), baseline: true, calibrated }
    };
    let Some(rates) = baseline_rates(name) else {
        bail!("unknown codec `{name}`, expected one of {}", names().join(", "));
    };
    let there_are = || rates.iter().map(f64::to_string).collect::<Vec<_>>().join(", ");
    if let Some(target) = explicit {
        let QuantizeTarget::PayloadBps(rate) = target else {
            bail!("{name}@{target}: baselines have payload rates only, expected one of {}", there_are());
        };
        if !rates.contains(&rate) {
            bail!("{name} has no form of {rate} bits per weight, expected one of {}", there_are());
        }
        return Ok(vec![row(rate)]);
    }
    if let [only] = rates[..] {
        return Ok(vec![row(only)]);
    }
    let payload = asked.payload.or(asked.all_in).unwrap_or(&DEFAULT_RATES);
    let (reached, missed): (Vec<f64>, Vec<f64>) = payload.iter().partition(|rate| rates.contains(rate));
    for rate in &missed {
        left_out.push(format!("left out: {name}@{rate}, which has forms of {} bits per weight", there_are()));
    }
    if reached.is_empty() && !missed.is_empty() {
        bail!("{name} has no form of {} bits per weight, expected one of {}", missed[0], there_are());
    }
    Ok(reached.into_iter().map(row).collect())
}

/// The payloads of a baseline, `None` if there is none of that name.
fn baseline_rates(name: &str) -> Option<Vec<f64>> {
    let kquant = KQuant::named(name).map(|kquant| vec![kquant.payload_bps()]);
    kquant.or_else(|| families().into_iter().find(|family| family.name == name).map(|family| family.rates))
}

/// The working baseline of a row.
pub(super) fn baseline(name: &str, rate: f64, rotation: Rotation) -> Result<Box<dyn Baseline>> {
    match KQuant::named(name) {
        Some(kquant) => Ok(Box::new(kquant)),
        None => Ok(named(name, rate, rotation)?),
    }
}

fn names() -> Vec<String> {
    let baselines = families().into_iter().map(|family| family.name);
    let baselines = baselines.chain(KQUANTS.iter().map(|kquant| kquant.name)).map(str::to_owned);
    methods().into_iter().map(|info| info.name).chain(baselines).collect()
}

/// Every codec and baseline with its line.
pub(super) fn describe() -> String {
    let rates = |rates: &[f64]| rates.iter().map(f64::to_string).collect::<Vec<_>>().join(", ");
    let mut text = "Codecs:\n".to_owned();
    for method in methods() {
        let range = match &method.rates {
            Some(fixed) => rates(fixed),
            None => format!("{} to {}", method.min_bps, method.max_bps),
        };
        text += &format!("  {:14} {}; {range} bits per weight\n", method.name, method.about);
    }
    text += "\nBaselines (payload in bits per weight; what they store beside codes is in their all-in rate):\n";
    for family in families() {
        text += &format!("  {:14} {}; {}\n", family.name, family.about, rates(&family.rates));
    }
    for kquant in KQUANTS {
        text += &format!("  {:14} {}; {}\n", kquant.name, kquant.about, kquant.payload_bps());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(names: &[&str], payload: Option<&[f64]>, all_in: Option<&[f64]>) -> Result<Vec<String>> {
        let names: Vec<String> = names.iter().map(|name| name.to_string()).collect();
        Ok(targets(&names, AskedRates { payload, all_in })?.0.iter().map(Target::label).collect())
    }

    #[test]
    fn the_best_codec_is_one_and_has_the_default_rates() {
        assert_eq!(labels(&[BEST_CODEC], None, None).unwrap().len(), DEFAULT_RATES.len());
    }

    #[test]
    fn names_of_codecs_and_baselines_do_not_collide() {
        let mut all = names();
        all.sort_unstable();
        assert!(all.windows(2).all(|pair| pair[0] != pair[1]), "{all:?}");
    }

    #[test]
    fn methods_with_and_without_calibration_are_told_apart() {
        let names = "e8@3,e8+feedback@3,shift-16+feedback@3,unisvq@2,unisvq+ft@2,unisvq-d8-random-norht@2,gptq@2,e8p@2,e8p-rtn@2,rtn@2";
        let names: Vec<String> = names.split(',').map(str::to_owned).collect();
        let (rows, _) = targets(&names, AskedRates { payload: None, all_in: None }).unwrap();
        assert_eq!(rows.iter().map(Target::label).collect::<Vec<_>>(), names);
        let calibrated: Vec<bool> = rows.iter().map(|row| row.calibrated).collect();
        assert_eq!(calibrated, [false, true, true, true, true, true, true, true, false, false]);
        let baselines: Vec<bool> = rows.iter().map(|row| row.baseline).collect();
        assert_eq!(baselines, [false, false, false, false, false, false, true, true, true, true]);
        assert!(labels(&ABLATIONS, Some(&[2.0]), None).is_ok_and(|rows| rows.len() == ABLATIONS.len()));
    }

    #[test]
    fn methods_of_one_rate_are_measured_at_it_once() {
        let rates = Some(&[4.0, 3.0, 2.0][..]);
        assert_eq!(labels(&["q3_k", "nf4", "e8p"], rates, None).unwrap(), ["q3_k@3", "nf4@4", "e8p@2"]);
        assert_eq!(labels(&["higgs4"], rates, None).unwrap(), ["higgs4@3", "higgs4@2"]);
    }

    #[test]
    fn what_cannot_be_reached_is_left_out_of_lists_and_refused_alone() {
        let names = ["higgs4".to_owned(), "e8-rice".to_owned()];
        let rates = AskedRates { payload: Some(&[4.0, 3.0, 1.0]), all_in: None };
        let (rows, left_out) = targets(&names, rates).unwrap();
        assert_eq!(rows.iter().map(Target::label).collect::<Vec<_>>(), ["higgs4@3", "e8-rice@4", "e8-rice@3"]);
        assert_eq!(left_out.len(), 3, "{left_out:?}");
        for bad in ["higgs4@4", "e8-rice@0.5", "q3_k@4", "f9@2", "e8-rice@x"] {
            assert!(labels(&[bad], None, None).is_err(), "{bad}");
        }
        assert!(labels(&["higgs4"], Some(&[4.0]), None).is_err());
        assert!(labels(&["e8-rice"], Some(&[0.5]), None).is_err());
        assert!(labels(&["e8-rice"], None, Some(&[-1.0])).is_err());
    }

    #[test]
    fn all_in_rates_are_for_codecs_and_stand_beside_payloads_if_both_are_asked_for() {
        let all_in = Some(&[3.0][..]);
        assert_eq!(
            labels(&["e8-rice", "higgs2", "q4_k"], None, all_in).unwrap(),
            ["e8-rice@3bpw", "higgs2@3", "q4_k@4"]
        );
        assert_eq!(labels(&["e8-rice"], Some(&[2.0]), all_in).unwrap(), ["e8-rice@3bpw", "e8-rice@2"]);
    }

    #[test]
    fn a_name_may_fix_its_all_in_rate() {
        let names = ["e8+feedback@2bpw", "e8+feedback@2", "unisvq@2", "e8p@2"];
        assert_eq!(labels(&names, None, None).unwrap(), names);
        let (rows, _) = targets(&[names[0].to_owned()], AskedRates { payload: None, all_in: None }).unwrap();
        assert_eq!((rows[0].rate, rows[0].calibrated), (QuantizeTarget::AllInBpw(2.0), true));
        for bad in ["e8@0bpw", "e8@-1bpw", "e8@nanbpw", "e8@bpw", "e8@2bpwx", "f9@2bpw", "e8p@2bpw"] {
            assert!(labels(&[bad], None, None).is_err(), "{bad}");
        }
    }
}
