//! What to make of a matrix: bits, groups, grid, frames.

use serde::{Deserialize, Serialize};

use crate::UniSvqError;

/// What the map A starts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum GridInit {
    /// The identity: nothing to store and nothing to fold but one factor. On rotated weights no orthogonal map is better.
    Identity,
    /// A random orthogonal matrix, the published choice.
    Random,
    /// The simple roots of D4; for the ablation, 28 % worse than the others.
    D4,
}

/// The frames in which a matrix is quantized.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Incoherence {
    /// None; for the ablation.
    None,
    /// Randomized Hadamard transforms of tiles on both sides.
    Tiles {
        /// Asked length of a tile, a power of two.
        tile: u32,
    },
    /// One randomized Hadamard transform across each side, tiles of 128 where its width has none.
    Full,
}

/// Parameters of an encoder; [`check`](UniSvqSpec::check) makes it one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UniSvqSpec {
    /// Bits of a code, 2 to 4.
    pub bits: u8,
    /// Columns of a group: 1, 2, 4 or 8. Error feedback goes from group to group.
    pub dim: u8,
    /// What A starts from.
    pub init: GridInit,
    /// Frames.
    pub incoherence: Incoherence,
    /// Seed of signs and of the random map.
    pub seed: u64,
    /// Candidates of c, the RMS of weights in units of a grid of unit variance; the one with the least error proxy is taken.
    pub scales: Vec<f64>,
    /// Most re-tuning passes after the sweep of error feedback.
    pub passes: u32,
}

/// A checked [`UniSvqSpec`].
#[derive(Debug, Clone, PartialEq)]
pub struct UniSvq {
    pub(crate) spec: UniSvqSpec,
}

/// Name of the method; parts that are no defaults follow it.
const NAME: &str = "unisvq";

impl UniSvqSpec {
    /// The parameters that a name stands for at 2, 3 or 4 `bits`.
    ///
    /// `unisvq`, then optionally in this order `-d1`, `-d2` or `-d8` (default 4), `-random` or `-d4gen` (default identity), and
    /// `-norht` or `-full` (default tiles of 128).
    ///
    /// # Errors
    /// [`UniSvqError::Parameter`] for another name or number of bits.
    ///
    /// ```
    /// use gosset_unisvq::{GridInit, Incoherence, UniSvqSpec};
    ///
    /// let spec = UniSvqSpec::named("unisvq-d8-random-norht", 2.0)?;
    /// assert_eq!((spec.dim, spec.init, spec.incoherence), (8, GridInit::Random, Incoherence::None));
    /// assert_eq!(spec.name(), "unisvq-d8-random-norht");
    /// assert!(UniSvqSpec::named("unisvq", 2.5).is_err());
    /// # Ok::<(), gosset_unisvq::UniSvqError>(())
    /// ```
    pub fn named(name: &str, bits: f64) -> Result<Self, UniSvqError> {
        let unknown = || UniSvqError::Parameter {
            name: "method",
            expected: "unisvq[-d1|-d2|-d8][-random|-d4gen][-norht|-full]".to_owned(),
            found: name.to_owned(),
        };
        let mut rest = name.strip_prefix(NAME).ok_or_else(unknown)?;
        let mut take = |part: &str| match rest.strip_prefix(part) {
            Some(tail) if tail.is_empty() || tail.starts_with('-') => {
                rest = tail;
                true
            }
            _ => false,
        };
        let dim = [("-d1", 1), ("-d2", 2), ("-d8", 8)].into_iter().find(|(part, _)| take(part)).map_or(4, |(_, d)| d);
        let init = if take("-random") {
            GridInit::Random
        } else if take("-d4gen") {
            GridInit::D4
        } else {
            GridInit::Identity
        };
        let incoherence = if take("-norht") {
            Incoherence::None
        } else if take("-full") {
            Incoherence::Full
        } else {
            Incoherence::Tiles { tile: gosset_transform::DEFAULT_TILE }
        };
        if !rest.is_empty() {
            return Err(unknown());
        }
        let Some(bits) = [2u8, 3, 4].into_iter().find(|&b| f64::from(b) == bits) else {
            return Err(UniSvqError::Parameter { name: "bits", expected: "2, 3 or 4".into(), found: bits.to_string() });
        };
        let spec = Self { bits, dim, init, incoherence, seed: 0, scales: default_scales(bits, init), passes: 3 };
        spec.clone().check()?;
        Ok(spec)
    }

    /// The name that [`named`](Self::named) takes.
    #[must_use]
    pub fn name(&self) -> String {
        let dim = if self.dim == 4 { String::new() } else { format!("-d{}", self.dim) };
        let init = match self.init {
            GridInit::Identity => "",
            GridInit::Random => "-random",
            GridInit::D4 => "-d4gen",
        };
        let frame = match self.incoherence {
            Incoherence::None => "-norht",
            Incoherence::Tiles { .. } => "",
            Incoherence::Full => "-full",
        };
        format!("{NAME}{dim}{init}{frame}")
    }

    /// Checks all parameters.
    ///
    /// # Errors
    /// [`UniSvqError::Parameter`] for the first that is out of range.
    pub fn check(self) -> Result<UniSvq, UniSvqError> {
        let refuse = |name, expected: &str, found: String| {
            Err(UniSvqError::Parameter { name, expected: expected.to_owned(), found })
        };
        crate::pack::check_bits(self.bits)?;
        if !matches!(self.dim, 1 | 2 | 4 | 8) {
            return refuse("dim", "1, 2, 4 or 8", self.dim.to_string());
        }
        if self.init == GridInit::D4 && self.dim != 4 {
            return refuse("dim", "4 for the generator of D4", self.dim.to_string());
        }
        if let Incoherence::Tiles { tile } = self.incoherence {
            gosset_transform::TilePlan::new(1, tile)?;
        }
        if self.scales.is_empty() || self.scales.len() > 64 {
            return refuse("scales", "1 to 64 candidates", self.scales.len().to_string());
        }
        if let Some(c) = self.scales.iter().find(|c| !(1e-3..=1e3).contains(*c)) {
            return refuse("scales", "numbers from 0.001 to 1000", c.to_string());
        }
        if self.passes > 100 {
            return refuse("passes", "at most 100", self.passes.to_string());
        }
        Ok(UniSvq { spec: self })
    }
}

impl UniSvq {
    /// The parameters.
    #[must_use]
    pub fn spec(&self) -> &UniSvqSpec {
        &self.spec
    }
}

/// Around the best c of Gaussian weights (0.898, 0.745 and 0.647 at 2, 3 and 4 bits), towards the smaller values that feedback asks for.
fn default_scales(bits: u8, _init: GridInit) -> Vec<f64> {
    match bits {
        2 => vec![0.76, 0.83, 0.90, 0.97],
        3 => vec![0.62, 0.68, 0.745, 0.81],
        _ => vec![0.53, 0.59, 0.647, 0.71],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back() {
        for dim in ["", "-d1", "-d2", "-d8"] {
            for init in ["", "-random", "-d4gen"] {
                for frame in ["", "-norht", "-full"] {
                    let name = format!("unisvq{dim}{init}{frame}");
                    let spec = UniSvqSpec::named(&name, 3.0);
                    match (dim, init) {
                        ("-d1" | "-d2" | "-d8", "-d4gen") => assert!(spec.is_err(), "{name}"),
                        _ => assert_eq!(spec.unwrap().name(), name),
                    }
                }
            }
        }
        for bad in ["", "unisv", "unisvq-", "unisvq-d4", "unisvq-random-d8", "unisvq-d8x", "unisvq-full-norht", "e8"] {
            assert!(UniSvqSpec::named(bad, 2.0).is_err(), "{bad}");
        }
        for bits in [0.0, 1.0, 2.5, 5.0, f64::NAN] {
            assert!(UniSvqSpec::named("unisvq", bits).is_err(), "{bits}");
        }
    }
}
