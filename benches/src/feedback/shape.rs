//! What is rounded together under error feedback: a codec, with or without feedback, or E8 over inputs.

use std::time::Instant;

use anyhow::{Result, bail};
use gosset_codec::{CodecSpec, DecodeScratch, EncodedMatrix, MatRef};
use gosset_quantize::feedback::{self, FeedbackOptions};
use gosset_quantize::{InputMoments, Method};
use gosset_unisvq::DampingSpec;

use super::e8_inputs;

/// A way to round at a rate.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Shape {
    /// Name on the command line.
    pub(super) name: String,
    /// Payload that is asked for, in bits per weight.
    pub(super) rate: f64,
    how: How,
}

#[derive(Debug, Clone, PartialEq)]
enum How {
    /// By what is known of the weights alone.
    DataFree(CodecSpec),
    Feedback(CodecSpec),
    E8Inputs {
        in_metric: bool,
    },
}

/// A matrix as it was rounded.
pub(super) struct Rounded {
    /// The reconstruction, row-major.
    pub(super) values: Vec<f32>,
    pub(super) payload_bps: f64,
    pub(super) all_in_bps: f64,
    /// Whether the rate is of coded bytes, and not the length of an ideal code.
    pub(super) is_coded: bool,
    pub(super) seconds: f64,
}

impl Shape {
    /// The one of that name at `rate` bits per weight.
    pub(super) fn parse(name: &str, rate: f64) -> Result<Self> {
        let how = match name {
            "e8-inputs-metric" | "e8-inputs-euclidean" => {
                CodecSpec::named("e8", rate)?;
                How::E8Inputs { in_metric: name.ends_with("metric") }
            }
            _ => match Method::parse(name, rate)? {
                Method::Codec(spec) => How::DataFree(spec),
                Method::Feedback(spec) => How::Feedback(spec),
                _ => bail!(
                    "{name}: expected a codec, with or without feedback, or e8-inputs-metric, e8-inputs-euclidean"
                ),
            },
        };
        Ok(Shape { name: name.to_owned(), rate, how })
    }

    /// Rounds `w`, `[rows, cols]` row-major.
    pub(super) fn round(
        &self,
        w: &[f32],
        (rows, cols): (usize, usize),
        moments: &InputMoments,
        damping: DampingSpec,
    ) -> Result<Rounded> {
        let begin = Instant::now();
        let coded = |encoded: EncodedMatrix, seconds: f64| -> Result<Rounded> {
            let mut values = vec![0.0; w.len()];
            encoded.decoder()?.decode_rows(0..rows, &mut values, &mut DecodeScratch::new())?;
            let (payload_bps, all_in_bps) = (encoded.rate().payload_bps(), encoded.rate().all_in_bps());
            Ok(Rounded { values, payload_bps, all_in_bps, is_coded: true, seconds })
        };
        match &self.how {
            How::DataFree(spec) => {
                let encoded = spec.check()?.encode(MatRef::new(w, rows, cols)?)?;
                coded(encoded, begin.elapsed().as_secs_f64())
            }
            How::Feedback(spec) => {
                let options = FeedbackOptions { damping, sampling: 0.0, ..FeedbackOptions::default() };
                let (encoded, report) = feedback::encode(spec, w, rows, cols, moments, &options)?;
                if let Some(why) = report.simpler {
                    bail!("{}: rounded without feedback: {why}", self.name);
                }
                coded(encoded, begin.elapsed().as_secs_f64())
            }
            How::E8Inputs { in_metric } => {
                let e8_inputs::Rounded { values, payload_bps, all_in_bps } =
                    e8_inputs::round(w, rows, &moments.hessian, &damping, self.rate, *in_metric)?;
                let seconds = begin.elapsed().as_secs_f64();
                Ok(Rounded { values, payload_bps, all_in_bps, is_coded: false, seconds })
            }
        }
    }
}
