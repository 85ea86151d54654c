//! The measured table that recommendations are read from: a copy of parts of `docs/results`, made by the test below.

use serde::{Deserialize, Serialize};

/// The copy; `GOSSET_BLESS=1 cargo test -p gosset-cli` makes it anew.
const JSON: &str = include_str!("measured.json");

/// Rate, distortion, speed and perplexity of the codecs, as measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Measured {
    /// Command that measured rates and distortions.
    pub(crate) rd_command: String,
    /// Processor that the speeds are of, one core.
    pub(crate) cpu: String,
    /// On Gaussian values.
    pub(crate) rates: Vec<RatePoint>,
    /// Model of the perplexities.
    pub(crate) ppl_model: String,
    /// On that model.
    pub(crate) perplexities: Vec<PplPoint>,
}

/// One codec at one rate on Gaussian values.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct RatePoint {
    /// Codec.
    pub(crate) codec: String,
    /// Code bits per weight.
    pub(crate) payload_bps: f64,
    /// Signal-to-noise ratio.
    pub(crate) snr_db: f64,
    /// Bits per weight above the rate-distortion bound.
    pub(crate) gap_bits: f64,
    /// Millions of weights decoded per second on one core.
    pub(crate) decode_mws: f64,
}

/// One codec at one rate on a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct PplPoint {
    /// Codec.
    pub(crate) codec: String,
    /// All bits per quantized weight.
    pub(crate) all_in_bps: f64,
    /// Natural logarithm of the ratio to the model's own perplexity.
    pub(crate) delta_ln: f64,
}

/// What a codec does at one payload.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Quality {
    /// Signal-to-noise ratio on Gaussian values.
    pub(crate) snr_db: f64,
    /// Bits per weight above the rate-distortion bound.
    pub(crate) gap_bits: f64,
    /// Millions of weights decoded per second on one core.
    pub(crate) decode_mws: f64,
}

impl Measured {
    /// The table of this program.
    pub(crate) fn read() -> serde_json::Result<Self> {
        serde_json::from_str(JSON)
    }

    /// Quality at a payload: between measured rates on a line, beyond them 6.02 dB per bit; `None` if the codec was not measured.
    pub(crate) fn quality(&self, codec: &str, payload_bps: f64) -> Option<Quality> {
        const DB_PER_BIT: f64 = 6.020_599_913_279_624;
        let points: Vec<&RatePoint> = self.rates.iter().filter(|p| p.codec == codec).collect();
        let (first, last) = (points.first()?, points.last()?);
        let end = |p: &RatePoint| Quality {
            snr_db: p.snr_db + DB_PER_BIT * (payload_bps - p.payload_bps),
            gap_bits: p.gap_bits,
            decode_mws: p.decode_mws,
        };
        if payload_bps <= first.payload_bps {
            return Some(end(first));
        }
        let Some([a, b]) = points.array_windows().find(|[_, b]| payload_bps <= b.payload_bps) else {
            return Some(end(last));
        };
        let t = (payload_bps - a.payload_bps) / (b.payload_bps - a.payload_bps);
        let at = |of: fn(&RatePoint) -> f64| of(a) + t * (of(b) - of(a));
        Some(Quality { snr_db: at(|p| p.snr_db), gap_bits: at(|p| p.gap_bits), decode_mws: at(|p| p.decode_mws) })
    }

    /// By which factor the perplexity of the measured model grows at that rate; `None` outside of what was measured.
    pub(crate) fn ppl_factor(&self, codec: &str, all_in_bps: f64) -> Option<f64> {
        // How far a rate may lie from a measured one to be read from it.
        const NEAR_BPS: f64 = 0.15;
        let points: Vec<&PplPoint> = self.perplexities.iter().filter(|p| p.codec == codec).collect();
        let near = points.iter().find(|p| (p.all_in_bps - all_in_bps).abs() <= NEAR_BPS);
        let between = points.array_windows().find(|[a, b]| (a.all_in_bps..=b.all_in_bps).contains(&all_in_bps));
        let delta = match (near, between) {
            (_, Some([a, b])) if a.delta_ln > 0.0 && b.delta_ln > 0.0 => {
                // The logarithm of the loss is nearly linear in the rate.
                let t = (all_in_bps - a.all_in_bps) / (b.all_in_bps - a.all_in_bps);
                (a.delta_ln.ln() + t * (b.delta_ln.ln() - a.delta_ln.ln())).exp()
            }
            (Some(near), _) => near.delta_ln,
            _ => return None,
        };
        Some(delta.exp())
    }

    /// The table in JSON that `docs/results` holds: rows of `rd.json` on Gaussian values, and of one perplexity report.
    #[cfg(test)]
    fn of_results(rd: &serde_json::Value, ppl: &serde_json::Value) -> Self {
        let text = |v: &serde_json::Value| v.as_str().unwrap_or_default().to_owned();
        let rows = |v: &serde_json::Value| v["rows"].as_array().cloned().unwrap_or_default();
        // Figures that a table of recommendations needs, no more.
        let round = |v: &serde_json::Value, digits: i32| {
            let scale = 10f64.powi(digits);
            v.as_f64().map(|x| (x * scale).round() / scale)
        };
        let is_product = |codec: &str| gosset_codec::codecs().iter().any(|c| c.name == codec);
        let mut rates: Vec<RatePoint> = rows(rd)
            .iter()
            .filter(|r| r["source"] == "gaussian" && is_product(&text(&r["codec"])))
            .filter_map(|r| {
                Some(RatePoint {
                    codec: text(&r["codec"]),
                    payload_bps: round(&r["payload_bps"], 4)?,
                    snr_db: round(&r["snr_db"], 3)?,
                    gap_bits: round(&r["gap_bits"], 4)?,
                    decode_mws: round(&r["decode_mws"], 0)?,
                })
            })
            .collect();
        let mut perplexities: Vec<PplPoint> = rows(ppl)
            .iter()
            .filter(|r| is_product(&text(&r["codec"])))
            .filter_map(|r| {
                let (all_in_bps, delta_ln) = (round(&r["all_in_bps"], 4)?, round(&r["delta_ln"], 4)?);
                Some(PplPoint { codec: text(&r["codec"]), all_in_bps, delta_ln })
            })
            .collect();
        rates.sort_by(|a, b| a.codec.cmp(&b.codec).then(a.payload_bps.total_cmp(&b.payload_bps)));
        perplexities.sort_by(|a, b| a.codec.cmp(&b.codec).then(a.all_in_bps.total_cmp(&b.all_in_bps)));
        let ppl_model = text(&ppl["model"]).trim_end_matches(".gguf").to_owned();
        Measured { rd_command: text(&rd["command"]), cpu: text(&rd["cpu"]), rates, ppl_model, perplexities }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    #[test]
    fn the_copy_is_that_of_the_results() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let result = |name: &str| {
            let text = fs::read(root.join("../../docs/results").join(name)).unwrap();
            serde_json::from_slice::<serde_json::Value>(&text).unwrap()
        };
        let fresh = Measured::of_results(&result("rd.json"), &result("smollm2-wikitext2.json"));
        if std::env::var_os("GOSSET_BLESS").is_some() {
            let text = serde_json::to_string_pretty(&fresh).unwrap() + "\n";
            fs::write(root.join("src/recommend/measured.json"), text).unwrap();
            return;
        }
        assert!(
            Measured::read().unwrap() == fresh,
            "docs/results changed: make the copy anew with GOSSET_BLESS=1 cargo test -p gosset-cli the_copy_is"
        );
    }

    #[test]
    fn qualities_are_read_between_and_beyond_the_rows() {
        let row = |payload_bps: f64, gap_bits: f64| RatePoint {
            codec: "x".to_owned(),
            payload_bps,
            snr_db: 6.0 * payload_bps,
            gap_bits,
            decode_mws: 100.0,
        };
        let ppl = |all_in_bps: f64, delta_ln: f64| PplPoint { codec: "x".to_owned(), all_in_bps, delta_ln };
        let table = Measured {
            rd_command: String::new(),
            cpu: String::new(),
            rates: vec![row(2.0, 0.2), row(3.0, 0.1)],
            ppl_model: String::new(),
            perplexities: vec![ppl(2.0, 0.4), ppl(3.0, 0.1)],
        };
        let at = |bps: f64| table.quality("x", bps).unwrap();
        assert!((at(2.5).snr_db - 15.0).abs() < 1e-9 && (at(2.5).gap_bits - 0.15).abs() < 1e-9);
        assert!((at(4.0).snr_db - 24.02).abs() < 0.01 && (at(1.0).snr_db - 5.98).abs() < 0.01);
        assert_eq!(table.quality("y", 2.0), None);
        assert!((table.ppl_factor("x", 2.5).unwrap().ln() - 0.2).abs() < 1e-9);
        assert!((table.ppl_factor("x", 3.1).unwrap().ln() - 0.1).abs() < 1e-9);
        assert_eq!(table.ppl_factor("x", 5.0), None);
    }
}
