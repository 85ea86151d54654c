//! Rotary position embedding in the half-split layout of Hugging Face checkpoints.

use std::ops::Range;

use crate::config::ModelConfig;

/// How the frequencies are stretched for long contexts.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum RopeScaling {
    /// As trained.
    None,
    /// Every frequency divided by `factor`.
    Linear {
        /// Stretch.
        factor: f64,
    },
    /// Llama 3.1: long wavelengths divided by `factor`, short ones kept, a linear blend between.
    Llama3 {
        /// Stretch of the long wavelengths.
        factor: f64,
        /// Wavelengths above `original_max_positions / low_freq_factor` are stretched in full.
        low_freq_factor: f64,
        /// Wavelengths below `original_max_positions / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// Context of the first training.
        original_max_positions: f64,
    },
    /// Each frequency divided by its own factor, as GGUF files store the result of the Llama 3.1 rule.
    Factors(Vec<f64>),
}

/// The angular frequencies of one model: `theta^(-2i/d)` after scaling, in radians per position.
#[derive(Debug, Clone)]
pub(crate) struct RopeFrequencies {
    inv_freq: Vec<f64>,
}

impl RopeFrequencies {
    /// Frequencies of `head_dim / 2` pairs. `head_dim` is even; a list of factors has one per pair.
    pub(crate) fn new(head_dim: usize, theta: f64, scaling: &RopeScaling) -> Self {
        let plain = (0..head_dim / 2).map(|i| theta.powf(-((2 * i) as f64) / head_dim as f64));
        let inv_freq = match scaling {
            RopeScaling::None => plain.collect(),
            RopeScaling::Linear { factor } => plain.map(|f| f / factor).collect(),
            RopeScaling::Factors(factors) => plain.zip(factors).map(|(f, factor)| f / factor).collect(),
            &RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_positions } => plain
                .map(|f| {
                    let turns = original_max_positions * f / std::f64::consts::TAU;
                    let keep = ((turns - low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0.0, 1.0);
                    keep * f + (1.0 - keep) * f / factor
                })
                .collect(),
        };
        Self { inv_freq }
    }

    /// Turns per position of each pair, which are reduced to the last one before sines are taken.
    pub(crate) fn turns(&self) -> Vec<f64> {
        self.inv_freq.iter().map(|f| f / std::f64::consts::TAU).collect()
    }

    /// Cosines and sines of a run of positions; angles are reduced in f64.
    pub(crate) fn table(&self, positions: Range<usize>) -> RopeTable {
        let angles = positions.clone().flat_map(|p| self.inv_freq.iter().map(move |f| p as f64 * f));
        let (cos, sin) = angles.map(|a| (a.cos() as f32, a.sin() as f32)).unzip();
        RopeTable { start: positions.start, half: self.inv_freq.len(), cos, sin }
    }
}

/// The frequencies of a model, and those of its local layers where they have their own.
#[derive(Debug, Clone)]
pub(crate) struct Ropes {
    all: RopeFrequencies,
    local: Option<RopeFrequencies>,
}

impl Ropes {
    /// The frequencies that a configuration states.
    pub(crate) fn of(config: &ModelConfig) -> Self {
        let local = config.local_rope.as_ref();
        Self {
            all: RopeFrequencies::new(config.head_dim, config.rope_theta, &config.rope_scaling),
            local: local.map(|local| RopeFrequencies::new(config.head_dim, local.theta, &local.scaling)),
        }
    }

    /// The only frequencies, if all layers have the same.
    pub(crate) fn single(&self) -> Option<&RopeFrequencies> {
        if self.local.is_some() { None } else { Some(&self.all) }
    }

    /// The frequencies of layers that are local or not.
    pub(crate) fn of_layer(&self, local: bool) -> &RopeFrequencies {
        self.local.as_ref().filter(|_| local).unwrap_or(&self.all)
    }

    /// Tables of a run of positions.
    pub(crate) fn table(&self, positions: Range<usize>) -> RopeTables {
        let local = self.local.as_ref().map(|local| local.table(positions.clone()));
        RopeTables { all: self.all.table(positions), local }
    }
}

/// The tables of a model for a run of positions.
#[derive(Debug, Clone)]
pub(crate) struct RopeTables {
    all: RopeTable,
    local: Option<RopeTable>,
}

impl RopeTables {
    /// The table of layers that are local or not.
    pub(crate) fn of_layer(&self, local: bool) -> &RopeTable {
        self.local.as_ref().filter(|_| local).unwrap_or(&self.all)
    }
}

/// Cosines and sines, one row of `head_dim / 2` per position.
#[derive(Debug, Clone)]
pub(crate) struct RopeTable {
    start: usize,
    half: usize,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl RopeTable {
    /// Cosines, `[positions, head_dim / 2]`.
    pub(crate) fn cos(&self) -> &[f32] {
        &self.cos
    }

    /// Sines, `[positions, head_dim / 2]`.
    pub(crate) fn sin(&self) -> &[f32] {
        &self.sin
    }

    /// Writes `scale` times the rotated `head` (one head at `position`) to `out`.
    ///
    /// Coordinates `i` and `i + head_dim / 2` are a pair.
    pub(crate) fn rotate(&self, position: usize, head: &[f32], scale: f32, out: &mut [f32]) {
        let at = (position - self.start) * self.half;
        let (cos, sin) = (&self.cos[at..at + self.half], &self.sin[at..at + self.half]);
        let (x, y) = head.split_at(self.half);
        let (out_x, out_y) = out.split_at_mut(self.half);
        for i in 0..self.half {
            out_x[i] = (x[i] * cos[i] - y[i] * sin[i]) * scale;
            out_y[i] = (y[i] * cos[i] + x[i] * sin[i]) * scale;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_depend_on_the_distance_only() {
        let rope = RopeFrequencies::new(8, 10_000.0, &RopeScaling::None);
        let table = rope.table(3..60);
        let (q, k) = ([1.0, -0.5, 2.0, 0.25, 0.1, 0.7, -1.0, 0.3], [0.2, 1.5, -0.3, 0.9, 1.1, -0.4, 0.6, 0.8]);
        let score = |p: usize, s: usize| -> f32 {
            let (mut a, mut b) = ([0.0; 8], [0.0; 8]);
            table.rotate(p, &q, 1.0, &mut a);
            table.rotate(s, &k, 1.0, &mut b);
            a.iter().zip(b).map(|(x, y)| x * y).sum()
        };
        for shift in [0, 1, 17, 40] {
            assert!((score(10 + shift, 4 + shift) - score(10, 4)).abs() < 1e-5);
        }
    }

    #[test]
    fn llama3_scaling_keeps_short_and_stretches_long_wavelengths() {
        let scaling = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_positions: 8192.0,
        };
        let plain = RopeFrequencies::new(128, 500_000.0, &RopeScaling::None).inv_freq;
        let scaled = RopeFrequencies::new(128, 500_000.0, &scaling).inv_freq;
        for (p, s) in plain.iter().zip(&scaled) {
            let wavelength = std::f64::consts::TAU / p;
            if wavelength < 8192.0 / 4.0 {
                assert_eq!(p, s);
            } else if wavelength > 8192.0 {
                assert!((p / s - 8.0).abs() < 1e-9);
            } else {
                assert!(*s < *p && *s > p / 8.0);
            }
        }
        // The same frequencies through per-pair factors, as a GGUF file carries them.
        let factors = plain.iter().zip(&scaled).map(|(p, s)| p / s).collect();
        let by_factor = RopeFrequencies::new(128, 500_000.0, &RopeScaling::Factors(factors)).inv_freq;
        assert!(by_factor.iter().zip(&scaled).all(|(a, b)| (a / b - 1.0).abs() < 1e-12));
    }
}
