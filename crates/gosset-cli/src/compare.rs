//! Tensors of containers and checkpoints as values, and how far those of one are from those of another.

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, anyhow};
use gosset_codec::{DecodeScratch, Decoder};
use gosset_container::{CodedTensor, Container, RawTensor, UniSvqTensor};
use gosset_quantize::ModelSource;
use gosset_runtime::source::dequantize_rows;
use gosset_unisvq::UniSvqDecoder;
use rayon::prelude::*;

use crate::model::Input;
use crate::recipe_check::codec_of;

/// About how many values are decoded at a time.
const BLOCK_VALUES: usize = 1 << 16;

/// One of two models.
pub(crate) struct Side {
    name: String,
    input: Input,
}

/// A tensor as its model stores it.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) name: String,
    pub(crate) shape: Vec<usize>,
    /// Codec or dtype.
    pub(crate) stored_as: String,
    pub(crate) n_bytes: u64,
    /// Number among the tensors of its model.
    index: usize,
}

impl Stored {
    pub(crate) fn n_weights(&self) -> u64 {
        self.shape.iter().fold(1u64, |n, &d| n.saturating_mul(d as u64))
    }

    /// Rows and columns: the first dimension and all others flattened; one row without a first.
    fn rows_cols(&self) -> (usize, usize) {
        match self.shape.as_slice() {
            [] => (1, 1),
            [n] => (1, *n),
            [rows, rest @ ..] => (*rows, rest.iter().product()),
        }
    }
}

impl Side {
    /// Opens a container, a checkpoint or a model known by name.
    pub(crate) fn open(name: &Path) -> Result<Self> {
        Ok(Side { name: name.display().to_string(), input: Input::open(name)? })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn tensors(&self) -> Result<Vec<Stored>> {
        Ok(match &self.input {
            Input::Container(container) => {
                let ledger = container.ledger()?;
                let bytes: HashMap<&str, u64> =
                    ledger.entries.iter().map(|line| (line.name.as_str(), line.plane_bytes())).collect();
                let stored = |(index, t): (usize, &gosset_container::TensorEntry)| Stored {
                    name: t.name.clone(),
                    shape: t.shape(),
                    stored_as: if t.is_quantized() { codec_of(t) } else { t.dtype().to_owned() },
                    n_bytes: bytes.get(t.name.as_str()).copied().unwrap_or(0),
                    index,
                };
                container.entries().iter().enumerate().map(stored).collect()
            }
            Input::Source(source) => {
                let stored = |(index, t): (usize, &gosset_quantize::TensorInfo)| Stored {
                    name: t.name.clone(),
                    shape: t.shape.clone(),
                    stored_as: t.dtype.clone(),
                    n_bytes: t.n_bytes,
                    index,
                };
                source.tensors().iter().enumerate().map(stored).collect()
            }
        })
    }

    fn open_tensor(&self, t: &Stored) -> Result<Opened<'_>> {
        Ok(match &self.input {
            Input::Source(source) => Opened::Source(source.as_ref(), t.index),
            Input::Container(container) => {
                let entry = &container.entries()[t.index];
                if entry.is_coded() {
                    Opened::Coded(container.coded(&t.name)?)
                } else if entry.is_unisvq() {
                    Opened::UniSvq(container.unisvq(&t.name)?)
                } else {
                    Opened::Raw(container, container.raw(&t.name)?)
                }
            }
        })
    }
}

/// A tensor whose planes were checked.
enum Opened<'a> {
    Source(&'a dyn ModelSource, usize),
    Coded(CodedTensor),
    UniSvq(UniSvqTensor),
    Raw(&'a Arc<Container>, RawTensor<'a>),
}

/// What gives the values of rows.
enum Reader<'a> {
    Source(&'a dyn ModelSource, usize),
    Coded(Decoder<'a>),
    UniSvq(UniSvqDecoder<'a>),
    Raw(&'a Arc<Container>, RawTensor<'a>),
}

impl Opened<'_> {
    /// `None` for dtypes that are no floats.
    fn reader(&self) -> Result<Option<Reader<'_>>> {
        Ok(Some(match self {
            Opened::Source(source, index) => {
                let mut nothing = [];
                let is_float = source.read_rows(*index, 0..0, &mut nothing);
                if let Err(gosset_quantize::SourceError::NotFloat { .. }) = is_float {
                    return Ok(None);
                }
                Reader::Source(*source, *index)
            }
            Opened::Coded(tensor) => Reader::Coded(tensor.decoder()?),
            Opened::UniSvq(tensor) => Reader::UniSvq(tensor.decoder()?),
            Opened::Raw(container, raw) => {
                let integer = matches!(raw.dtype, "BOOL" | "F4")
                    || raw.dtype.starts_with("F8_")
                    || raw.dtype.starts_with("F6_")
                    || raw.dtype.strip_prefix(['I', 'U', 'C']).is_some_and(|bits| bits.parse::<u8>().is_ok());
                if integer {
                    return Ok(None);
                }
                Reader::Raw(container, *raw)
            }
        }))
    }
}

impl Reader<'_> {
    /// Rows that are best read together.
    fn unit(&self) -> usize {
        match self {
            Reader::Source(..) | Reader::Raw(..) => 1,
            Reader::Coded(decoder) => decoder.row_block().max(1),
            Reader::UniSvq(decoder) => decoder.row_block().max(1),
        }
    }

    fn read(&self, cols: usize, rows: Range<usize>, out: &mut [f32], scratch: &mut DecodeScratch) -> Result<()> {
        match self {
            Reader::Source(source, index) => source.read_rows(*index, rows, out)?,
            Reader::Coded(decoder) => decoder.decode_rows(rows, out, scratch)?,
            Reader::UniSvq(decoder) => decoder.decode_rows(rows, out),
            Reader::Raw(container, raw) if raw.dtype == "F64" => {
                let bytes = raw.bytes.get(rows.start * cols * 8..rows.end * cols * 8);
                let bytes = bytes.ok_or_else(|| anyhow!("{}: a tensor is short", container.path().display()))?;
                for (out, b) in out.iter_mut().zip(bytes.as_chunks::<8>().0) {
                    *out = f64::from_le_bytes(*b) as f32;
                }
            }
            Reader::Raw(_, raw) => dequantize_rows(raw.dtype, raw.bytes, cols, rows, out)?,
        }
        Ok(())
    }
}

/// Energy of a tensor and of its difference from another.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Distance {
    pub(crate) signal: f64,
    pub(crate) noise: f64,
    pub(crate) max_abs: f32,
    /// Values that are not the same.
    pub(crate) n_different: u64,
}

impl Distance {
    pub(crate) fn add(&mut self, other: Distance) {
        self.signal += other.signal;
        self.noise += other.noise;
        self.max_abs = self.max_abs.max(other.max_abs);
        self.n_different += other.n_different;
    }

    /// In dB; `None` if nothing was lost, nothing was there or a difference is no number.
    pub(crate) fn snr_db(self) -> Option<f64> {
        let some = self.signal > 0.0 && self.noise > 0.0 && self.noise.is_finite();
        some.then(|| 10.0 * (self.signal / self.noise).log10())
    }

    /// Of `b` from `a`. A value that is no number on one side only is infinitely far.
    fn of(a: &[f32], b: &[f32]) -> Self {
        let mut found = Distance::default();
        for (&a, &b) in a.iter().zip(b) {
            let same = a == b || (a.is_nan() && b.is_nan());
            let (x, y) = (f64::from(a), f64::from(b));
            found.signal += if a.is_finite() { x * x } else { 0.0 };
            if !same {
                let d = if (x - y).is_nan() { f64::INFINITY } else { (x - y).abs() };
                found.noise += d * d;
                found.max_abs = found.max_abs.max(d as f32);
                found.n_different += 1;
            }
        }
        found
    }
}

/// How far tensor `two` of `b` is from tensor `one` of `a`, which has its shape; `None` where one of them is no floats. Blocks are
/// summed in order, so that the result does not depend on threads.
pub(crate) fn compare(a: &Side, one: &Stored, b: &Side, two: &Stored) -> Result<Option<Distance>> {
    let (open_a, open_b) = (a.open_tensor(one)?, b.open_tensor(two)?);
    let (Some(a), Some(b)) = (open_a.reader()?, open_b.reader()?) else { return Ok(None) };
    let (rows, cols) = one.rows_cols();
    if rows == 0 || cols == 0 {
        return Ok(Some(Distance::default()));
    }
    let unit = a.unit().max(b.unit());
    let step = unit.saturating_mul((BLOCK_VALUES / unit.saturating_mul(cols).max(1)).max(1)).min(rows);
    let parts: Vec<Distance> = (0..rows.div_ceil(step))
        .into_par_iter()
        .map_init(
            || (DecodeScratch::new(), vec![0f32; step * cols], vec![0f32; step * cols]),
            |(scratch, x, y), block| {
                let range = block * step..((block + 1) * step).min(rows);
                let n = range.len() * cols;
                a.read(cols, range.clone(), &mut x[..n], scratch)?;
                b.read(cols, range, &mut y[..n], scratch)?;
                Ok(Distance::of(&x[..n], &y[..n]))
            },
        )
        .collect::<Result<_>>()?;
    let mut sum = Distance::default();
    parts.into_iter().for_each(|part| sum.add(part));
    Ok(Some(sum))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_those_of_the_definition() {
        let d = Distance::of(&[3.0, 4.0, 0.0], &[3.0, 4.5, 0.0]);
        assert_eq!((d.signal, d.noise, d.max_abs, d.n_different), (25.0, 0.25, 0.5, 1));
        assert!((d.snr_db().unwrap() - 20.0).abs() < 1e-12);
        assert_eq!(Distance::of(&[1.0, f32::NAN], &[1.0, f32::NAN]).n_different, 0);
        let lost = Distance::of(&[1.0, f32::NAN], &[1.0, 2.0]);
        assert_eq!((lost.n_different, lost.max_abs, lost.snr_db()), (1, f32::INFINITY, None));
        assert_eq!(Distance::of(&[0.0], &[1.0]).snr_db(), None);
    }
}
