//! A quantized tensor in memory or in a file: what it takes, what it decodes to, how far that is from the source.

use std::ops::Range;
use std::sync::Arc;

use gosset_codec::{DecodeScratch, Decoder, EncodedMatrix};
use gosset_container::{Container, Forecast, Storage, Writer};
use gosset_unisvq::{UniSvqDecoder, UniSvqMatrix};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::budget::forecast_of;
use crate::error::QuantizeError;
use crate::scan::BLOCK_VALUES;
use crate::source::{ModelSource, TensorInfo};

/// A quantized tensor.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Stored {
    /// Planes of a codec.
    Coded(EncodedMatrix),
    /// Codes of the affine grid.
    UniSvq(UniSvqMatrix),
}

/// Signal and noise energy of a tensor.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Energy {
    pub(crate) signal: f64,
    pub(crate) noise: f64,
}

impl Stored {
    /// What it takes as tensor `t` of a file of at most `max_bytes`.
    pub(crate) fn forecast(&self, t: &TensorInfo, max_bytes: u64) -> Forecast {
        match self {
            Stored::Coded(m) => forecast_of(t, &m.header, &m.planes, max_bytes),
            Stored::UniSvq(m) => Forecast::unisvq(&t.name, &t.dtype, &m.header, m.input_scales.is_some(), max_bytes),
        }
    }

    /// Adds it to a container as tensor `t`.
    pub(crate) fn write(&self, t: &TensorInfo, writer: &mut Writer) -> Result<(), QuantizeError> {
        match self {
            Stored::Coded(m) => writer.add_matrix(&t.name, m, &t.dtype)?,
            Stored::UniSvq(m) => writer.add_unisvq(&t.name, m, &t.dtype)?,
        }
        Ok(())
    }

    /// A decoder of it.
    pub(crate) fn decoder(&self, tensor: &str) -> Result<StoredDecoder<'_>, QuantizeError> {
        match self {
            Stored::Coded(m) => m.decoder().map(StoredDecoder::Coded).map_err(|e| of_codec(tensor, e)),
            Stored::UniSvq(m) => m.decoder().map(StoredDecoder::UniSvq).map_err(|e| of_grid(tensor, e)),
        }
    }
}

/// What the quantized tensor `t` of a container takes in a file of at most `max_bytes`; `None` if it is not quantized there.
pub(crate) fn forecast_in(
    container: &Arc<Container>,
    t: &TensorInfo,
    max_bytes: u64,
) -> Result<Option<Forecast>, QuantizeError> {
    Ok(match container.entry(&t.name).map(|e| &e.storage) {
        Some(Storage::Coded { header, .. }) => {
            Some(forecast_of(t, header, &container.coded(&t.name)?.planes(), max_bytes))
        }
        Some(Storage::UniSvq { header, planes, .. }) => {
            Some(Forecast::unisvq(&t.name, &t.dtype, header, planes.len() > 1, max_bytes))
        }
        _ => None,
    })
}

/// The values of the tensor `name` of a container, row-major; those of one kept bit-exact only if it is f32.
pub(crate) fn values_in(container: &Arc<Container>, name: &str) -> Result<Vec<f32>, QuantizeError> {
    match container.entry(name).map(|e| &e.storage) {
        Some(Storage::Coded { .. }) => StoredDecoder::Coded(container.coded(name)?.decoder()?).values(name),
        Some(Storage::UniSvq { .. }) => StoredDecoder::UniSvq(container.unisvq(name)?.decoder()?).values(name),
        _ => Ok(container.raw(name)?.bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()),
    }
}

fn of_codec(tensor: &str, source: gosset_codec::CodecError) -> QuantizeError {
    QuantizeError::Codec { tensor: tensor.to_owned(), source }
}

fn of_grid(tensor: &str, source: gosset_unisvq::UniSvqError) -> QuantizeError {
    QuantizeError::UniSvq { tensor: tensor.to_owned(), source }
}

/// A decoder of either kind.
pub(crate) enum StoredDecoder<'a> {
    Coded(Decoder<'a>),
    UniSvq(UniSvqDecoder<'a>),
}

impl StoredDecoder<'_> {
    pub(crate) fn rows(&self) -> usize {
        match self {
            StoredDecoder::Coded(d) => d.rows(),
            StoredDecoder::UniSvq(d) => d.rows(),
        }
    }

    pub(crate) fn cols(&self) -> usize {
        match self {
            StoredDecoder::Coded(d) => d.cols(),
            StoredDecoder::UniSvq(d) => d.cols(),
        }
    }

    /// Rows of a block that is decoded at a time: whole units of the code, about 2^16 values.
    pub(crate) fn step(&self) -> usize {
        let unit = match self {
            StoredDecoder::Coded(d) => d.row_block(),
            StoredDecoder::UniSvq(d) => d.row_block(),
        };
        unit * (BLOCK_VALUES / (unit * self.cols()).max(1)).max(1)
    }

    /// Rows that are stored exactly.
    pub(crate) fn n_exact_rows(&self) -> u64 {
        match self {
            StoredDecoder::Coded(d) => d.n_exact_rows() as u64,
            StoredDecoder::UniSvq(_) => 0,
        }
    }

    /// Writes some rows to `out`, row-major.
    pub(crate) fn decode(
        &self,
        tensor: &str,
        rows: Range<usize>,
        out: &mut [f32],
        scratch: &mut DecodeScratch,
    ) -> Result<(), QuantizeError> {
        match self {
            StoredDecoder::Coded(d) => d.decode_rows(rows, out, scratch).map_err(|e| of_codec(tensor, e)),
            StoredDecoder::UniSvq(d) => {
                d.decode_rows(rows, out);
                Ok(())
            }
        }
    }

    /// All values, row-major.
    pub(crate) fn values(&self, tensor: &str) -> Result<Vec<f32>, QuantizeError> {
        let (cols, step) = (self.cols(), self.step());
        let mut values = vec![0f32; self.rows() * cols];
        values.par_chunks_mut(step * cols).enumerate().try_for_each_init(DecodeScratch::new, |scratch, (b, out)| {
            let first = b * step;
            self.decode(tensor, first..first + out.len() / cols, out, scratch)
        })?;
        Ok(values)
    }

    /// Signal and noise against tensor `index` of the source, read once more; blocks are summed in order.
    pub(crate) fn energy(&self, source: &dyn ModelSource, index: usize, tensor: &str) -> Result<Energy, QuantizeError> {
        let (rows, cols, step) = (self.rows(), self.cols(), self.step());
        let blocks: Vec<Energy> = (0..rows.div_ceil(step))
            .into_par_iter()
            .map_init(
                || (DecodeScratch::new(), Vec::new(), Vec::new()),
                |(scratch, original, decoded), b| {
                    let block = b * step..((b + 1) * step).min(rows);
                    original.resize(block.len() * cols, 0f32);
                    decoded.resize(block.len() * cols, 0f32);
                    source.read_rows(index, block.clone(), original)?;
                    self.decode(tensor, block, decoded, scratch)?;
                    Ok(energy(original, decoded))
                },
            )
            .collect::<Result<_, QuantizeError>>()?;
        let sum = |f: fn(&Energy) -> f64| blocks.iter().map(f).sum();
        Ok(Energy { signal: sum(|e| e.signal), noise: sum(|e| e.noise) })
    }
}

fn energy(original: &[f32], decoded: &[f32]) -> Energy {
    const LANES: usize = 8;
    let (mut signal, mut noise) = ([0f64; LANES], [0f64; LANES]);
    let mut add = |lane: usize, x: f32, y: f32| {
        let (x, y) = (f64::from(x), f64::from(y));
        signal[lane] += x * x;
        noise[lane] += (x - y) * (x - y);
    };
    let ((xs, x_rest), (ys, y_rest)) = (original.as_chunks::<LANES>(), decoded.as_chunks::<LANES>());
    for (x, y) in xs.iter().zip(ys) {
        (0..LANES).for_each(|i| add(i, x[i], y[i]));
    }
    x_rest.iter().zip(y_rest).enumerate().for_each(|(i, (&x, &y))| add(i, x, y));
    Energy { signal: signal.iter().sum(), noise: noise.iter().sum() }
}

impl Energy {
    /// Noise over signal; `None` if nothing was there.
    pub(crate) fn relative_error(self) -> Option<f64> {
        (self.signal > 0.0).then(|| self.noise / self.signal)
    }

    /// Signal-to-noise ratio in dB; `None` if nothing was lost or nothing was there.
    pub(crate) fn snr_db(self) -> Option<f64> {
        (self.signal > 0.0 && self.noise > 0.0).then(|| 10.0 * (self.signal / self.noise).log10())
    }
}
