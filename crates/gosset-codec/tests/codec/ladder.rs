//! More bits never give more distortion.

use gosset_codec::{CodecSpec, RotationSpec};

use crate::{decode, encode, gaussian, snr_db, spec};

/// Symmetric exponential values of unit variance, from the same counters as the Gaussian ones.
fn laplace(n: usize, seed: u64) -> Vec<f32> {
    // The squares of two Gaussians add up to an exponential; a third gives the sign.
    let x = gaussian(3 * n, seed);
    x.chunks(3)
        .map(|x| 0.5f32.sqrt() * 0.5 * (x[0] * x[0] + x[1] * x[1]) * if x[2] < 0.0 { -1.0 } else { 1.0 })
        .collect()
}

/// Distortion of Gaussian data at these rates lies above the rate-distortion bound 2^(−2R) by the loss of the lattice
/// (1.53 dB at most at high rate) and of the code: most for A2 at 2 bits, where the fact sheet has 7.73 dB of 12.04.
const SLACK_DB: f64 = 4.5;

#[test]
fn distortion_does_not_rise_with_the_rate() {
    let (rows, cols) = (128, 512);
    for (shape, x) in [("gaussian", gaussian(rows * cols, 51)), ("laplace", laplace(rows * cols, 52))] {
        for (name, rotation) in [
            ("e8-rice", RotationSpec::DEFAULT),
            ("e8-rice", RotationSpec::None),
            ("d4-rice", RotationSpec::DEFAULT),
            ("a2-rice", RotationSpec::DEFAULT),
            ("z-rice", RotationSpec::DEFAULT),
            ("e8", RotationSpec::DEFAULT),
            ("e8", RotationSpec::None),
            ("d4", RotationSpec::DEFAULT),
            ("a2", RotationSpec::DEFAULT),
            ("z", RotationSpec::DEFAULT),
        ] {
            let mut before = -10.0;
            let lowest = if name.ends_with("-rice") {
                assert!(CodecSpec::named(name, 1.0).unwrap_err().to_string().contains("from 1.05"));
                5
            } else {
                assert!(CodecSpec::named(name, 0.25).unwrap_err().to_string().contains("from 0.5"));
                2
            };
            for bps in (lowest..=32).map(|quarter| 0.25 * f64::from(quarter)) {
                let spec = CodecSpec { rotation: rotation.clone(), ..spec(name, bps) };
                let decoded = decode(&encode(&spec.check().unwrap(), &x, rows, cols));
                let snr = snr_db(&x, &decoded);
                // Two per cent of distortion.
                assert!(snr > before - 0.086, "{shape} {name}@{bps}: {snr} dB after {before} dB");
                if bps >= 2.0 && (shape == "gaussian" || rotation == RotationSpec::DEFAULT) {
                    let bound_db = 6.0206 * bps;
                    assert!(snr > bound_db - SLACK_DB, "{shape} {name}@{bps}: {snr} dB, bound {bound_db} dB");
                    assert!(snr < bound_db + 0.1, "{shape} {name}@{bps}: {snr} dB is too good to be true");
                }
                before = snr;
            }
        }
    }
}

#[test]
fn neighbouring_tiles_differ_little() {
    let (rows, cols) = (64, 2048);
    let x = laplace(rows * cols, 53);
    let snrs: Vec<f64> = (0..=11)
        .map(|log2| {
            let spec = CodecSpec { rotation: RotationSpec::Rht { tile: 1 << log2, seed: 1 }, ..spec("e8-rice", 3.0) };
            snr_db(&x, &decode(&encode(&spec.check().unwrap(), &x, rows, cols)))
        })
        .collect();
    assert!(snrs.windows(2).all(|pair| (pair[0] - pair[1]).abs() < 0.6), "{snrs:?}");
}
