//! Why a fixed-rate codebook is behind E8: what its indices waste, and what its finite codebook loses.

use anyhow::{Context, Result, bail};
use gosset_baselines::{Baseline, Higgs, MethodPoint, Rotation, families};
use gosset_codec::{CodecSpec, DecodeScratch, EncodedMatrix, MatRef};
use serde::{Deserialize, Serialize};

use super::matrix::Matrix;
use super::measure::{mean_squared_error, stream_bps};

/// The codec at the other end of the distance.
pub(super) const REFERENCE: &str = "e8";

/// The distance from a codebook to E8 with an ideal coder at one rate, in bits per weight.
///
/// The two lie at different distortions; gaps to the Shannon bound compare them along its slope of 6.02 dB per bit. The parts add up:
/// `gap_bits - e8_gap_bits = index_entropy_slack_bits + finite_codebook_loss_bits`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GapParts {
    /// Name of the matrix.
    pub source: String,
    /// Name of the baseline.
    pub codec: String,
    /// Payload of both.
    pub target_bps: f64,
    /// The baseline's distance to the Shannon bound.
    pub gap_bits: f64,
    /// That of E8.
    pub e8_gap_bits: f64,
    /// Bits of an index less the entropy of the indices: what an entropy coder would save.
    pub index_entropy_slack_bits: f64,
    /// The rest: a finite codebook ends somewhere, and its cells fill space less well.
    pub finite_codebook_loss_bits: f64,
}

/// Dimension of the codewords of `higgs1`, `higgs2` or `higgs4`.
pub(super) fn grid_dimension(baseline: &str) -> Result<usize> {
    let grids: Vec<&str> = families().iter().map(|f| f.name).filter(|name| name.starts_with("higgs")).collect();
    if !grids.contains(&baseline) {
        bail!("--decompose {baseline}: expected a codebook with indices of a fixed rate, one of {}", grids.join(", "));
    }
    baseline.trim_start_matches("higgs").parse().with_context(|| format!("--decompose {baseline}"))
}

/// The parts at every rate of `baseline` that the reference has as well.
pub(super) fn decompose(m: &Matrix, baseline: &str) -> Result<Vec<GapParts>> {
    let p = grid_dimension(baseline)?;
    let family = families().into_iter().find(|family| family.name == baseline).context("a grid has a family")?;
    let variance = m.variance();
    if variance == 0.0 {
        bail!("{}: expected a matrix with variance, which distances to a bound are relative to", m.source);
    }
    let mut all = Vec::new();
    for rate in family.rates {
        let Ok(spec) = CodecSpec::named(REFERENCE, rate) else { continue };
        let encoded = spec.check()?.encode(MatRef::new(&m.values, m.rows, m.cols)?)?;
        let e8 = point(m, stream_bps(&encoded.rate(), m.rows), &decoded(&encoded, m)?);
        let grid = Higgs::new(p, 1 << (rate * p as f64).round() as u32, Rotation::DEFAULT)?;
        let encoded = grid.encode(m.rows, m.cols, &m.values)?;
        let codebook = point(m, stream_bps(&encoded.rate, m.rows), &grid.decode(m.rows, m.cols, &encoded)?);
        let entropy = grid.index_entropy_bps(m.rows, m.cols, &encoded)?;
        let parts = gosset_baselines::decompose(codebook, entropy, e8);
        let gap = |point: MethodPoint| point.stream_bps - point.snr_db / (20.0 * std::f64::consts::LOG10_2);
        all.push(GapParts {
            source: m.source.clone(),
            codec: baseline.to_owned(),
            target_bps: rate,
            gap_bits: gap(codebook),
            e8_gap_bits: gap(e8),
            index_entropy_slack_bits: parts.slack_bits,
            finite_codebook_loss_bits: parts.rest_bits,
        });
    }
    Ok(all)
}

fn point(m: &Matrix, stream_bps: f64, decoded: &[f32]) -> MethodPoint {
    let snr_db = 10.0 * (m.variance() / mean_squared_error(&m.values, decoded)).log10();
    MethodPoint { stream_bps, snr_db }
}

fn decoded(encoded: &EncodedMatrix, m: &Matrix) -> Result<Vec<f32>> {
    let mut out = vec![0.0; m.values.len()];
    encoded.decoder()?.decode_rows(0..m.rows, &mut out, &mut DecodeScratch::new())?;
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_codebooks_of_a_fixed_rate_are_decomposed() {
        assert_eq!(grid_dimension("higgs2").unwrap(), 2);
        assert!(grid_dimension("e8").unwrap_err().to_string().contains("higgs1, higgs2, higgs4"));
    }

    /// Entropy slack of a fine Lloyd grid for pairs, in bits per weight: its codewords lie with density f^(1/2), so that the slack is
    /// the divergence of N(0, I) from N(0, 2 I), (1 - 1/(2 ln 2)) / 2 for each coordinate.
    const FINE_SLACK_BITS: f64 = 0.5 - 0.25 * std::f64::consts::LOG2_E;

    #[test]
    fn the_parts_add_up_and_slack_grows_towards_that_of_a_fine_grid() {
        let m = Matrix::gaussian(32, 2048, 5);
        let parts = decompose(&m, "higgs2").unwrap();
        for part in &parts {
            let sum = part.index_entropy_slack_bits + part.finite_codebook_loss_bits;
            assert!((part.gap_bits - part.e8_gap_bits - sum).abs() < 1e-9, "{part:?}");
            assert!(part.index_entropy_slack_bits > 0.0 && part.finite_codebook_loss_bits > 0.0, "{part:?}");
        }
        // Beyond 4 bits there are too few pairs for each codeword to tell the entropy.
        let coarse: Vec<_> = parts.iter().filter(|part| part.target_bps <= 4.0).collect();
        assert!(coarse.iter().all(|part| part.index_entropy_slack_bits < FINE_SLACK_BITS), "{parts:?}");
        let grows = |pair: &[&GapParts]| pair[0].index_entropy_slack_bits < pair[1].index_entropy_slack_bits;
        assert!(coarse.windows(2).all(grows), "{parts:?}");
    }
}
