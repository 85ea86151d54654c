//! What is measured: every codec and every baseline behind one interface.

use std::path::Path;

use anyhow::{Context, Result};
use gosset_baselines::{Baseline, Rotation, families, named};
use gosset_codec::{CodecSpec, Rate, codecs};

use super::matrix::Matrix;
use crate::kquants::KQUANTS;

/// A way to quantize matrices that goes by a name, at the rates that it has.
pub(super) struct Method {
    pub(super) name: String,
    pub(super) about: String,
    /// The rates it can be asked for.
    pub(super) rates: Rates,
    /// The quantizer at one of them.
    make: Box<dyn Fn(f64) -> Result<Box<dyn Quantizer>>>,
}

/// Rates that a method can be asked for, in bits per weight.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Rates {
    /// All between two.
    Between(f64, f64),
    /// These.
    Only(Vec<f64>),
}

impl Rates {
    /// The one rate of a method that has no choice; it is measured whatever rates are asked for.
    pub(super) fn single(&self) -> Option<f64> {
        match self {
            Rates::Only(rates) => <[f64; 1]>::try_from(rates.as_slice()).ok().map(|[rate]| rate),
            Rates::Between(min, max) => (min == max).then_some(*min),
        }
    }

    pub(super) fn contains(&self, rate: f64) -> bool {
        match self {
            Rates::Between(min, max) => (*min..=*max).contains(&rate),
            Rates::Only(rates) => rates.contains(&rate),
        }
    }
}

/// A method at a rate.
pub(super) trait Quantizer {
    /// The matrix as bits.
    fn encode<'a>(&'a self, m: &Matrix) -> Result<Box<dyn Encoded + 'a>>;
}

/// A matrix as bits.
pub(super) trait Encoded {
    /// Bits by cause, without a file around them.
    fn rate(&self) -> Rate;

    /// Every bit that the matrix takes, by cause, in the file that it is stored in; `None` for methods without a file.
    ///
    /// Where there is a file it is written in `folder`, closed and read back, and what it holds is compared.
    fn stored_rate(&self, folder: &Path) -> Result<Option<Rate>>;

    /// Writes the matrix in its original basis.
    fn decode(&self, out: &mut [f32]) -> Result<()>;

    /// Writes the matrix in the frame that products are computed in.
    fn decode_for_product(&self, out: &mut [f32]) -> Result<()> {
        self.decode(out)
    }

    /// The type that stands in for the method because it cannot take this matrix.
    fn fallback(&self) -> Option<&'static str> {
        None
    }
}

impl Method {
    pub(super) fn at(&self, rate: f64) -> Result<Box<dyn Quantizer>> {
        (self.make)(rate).with_context(|| format!("{}@{rate}", self.name))
    }
}

/// Everything that can be measured, codecs before baselines.
pub(super) fn methods() -> Vec<Method> {
    let codecs = codecs().iter().map(|info| Method {
        name: info.name.to_owned(),
        about: info.about.to_owned(),
        rates: match info.rates {
            Some(rates) => Rates::Only(rates.to_vec()),
            None => Rates::Between(info.min_bps, info.max_bps),
        },
        make: Box::new(|rate| Ok(Box::new(CodecSpec::named(info.name, rate)?))),
    });
    let baselines = families().into_iter().map(|family| Method {
        name: family.name.to_owned(),
        about: family.about.to_owned(),
        rates: Rates::Only(family.rates),
        make: Box::new(move |rate| Ok(Box::new(named(family.name, rate, Rotation::DEFAULT)?))),
    });
    let kquants = KQUANTS.into_iter().map(|kquant| Method {
        name: kquant.name.to_owned(),
        about: kquant.about.to_owned(),
        rates: Rates::Only(vec![kquant.payload_bps()]),
        make: Box::new(move |_| Ok(Box::new(Box::new(kquant) as Box<dyn Baseline>))),
    });
    codecs.chain(baselines).chain(kquants).collect()
}

impl Quantizer for Box<dyn Baseline> {
    fn encode<'a>(&'a self, m: &Matrix) -> Result<Box<dyn Encoded + 'a>> {
        let encoded = Baseline::encode(&**self, m.rows, m.cols, &m.values)?;
        Ok(Box::new(BaselineMatrix { method: &**self, rows: m.rows, cols: m.cols, encoded }))
    }
}

/// A matrix in a baseline's form.
struct BaselineMatrix<'a> {
    method: &'a dyn Baseline,
    rows: usize,
    cols: usize,
    encoded: gosset_baselines::Encoded,
}

impl Encoded for BaselineMatrix<'_> {
    fn rate(&self) -> Rate {
        self.encoded.rate
    }

    fn stored_rate(&self, _folder: &Path) -> Result<Option<Rate>> {
        Ok(None)
    }

    fn decode(&self, out: &mut [f32]) -> Result<()> {
        out.copy_from_slice(&self.method.decode(self.rows, self.cols, &self.encoded)?);
        Ok(())
    }

    fn fallback(&self) -> Option<&'static str> {
        self.encoded.fallback
    }
}
