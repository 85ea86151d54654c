//! The weights: Gaussian rows, encoded for real, repeated to the size of a layer.

use std::borrow::Cow;

use anyhow::{Context, Result, ensure};
use gosset_codec::{
    CodecSpec, DecodeScratch, EncodedMatrix, MatRef, Plane, PlaneData, RateTarget, SchemeHeader, SchemeSpec,
    ShiftOrderKind, calibrate,
};
use rayon::prelude::*;

use super::args::Shape;

/// Gaussian rows of unit variance.
#[derive(Debug, Clone)]
pub(super) struct Block {
    /// The rows, one after the other.
    pub(super) weights: Vec<f32>,
    /// Their width.
    pub(super) cols: usize,
}

impl Block {
    /// Rows for a matrix of `shape`: at most `unique_rows`, and all of its rows if those do not divide them.
    pub(super) fn new(shape: Shape, unique_rows: usize, seed: u64) -> Self {
        let rows = if shape.rows.is_multiple_of(unique_rows) { unique_rows } else { shape.rows };
        Block { weights: calibrate::gaussian(rows * shape.cols, seed), cols: shape.cols }
    }

    /// Number of rows.
    pub(super) fn rows(&self) -> usize {
        self.weights.len() / self.cols
    }
}

/// A block under a codec.
#[derive(Debug, Clone)]
pub(super) struct Encoded {
    /// Codec and payload, such as `shift-16@2`.
    pub(super) label: String,
    spec: CodecSpec,
    /// The block.
    pub(super) matrix: EncodedMatrix,
    /// What it decodes to, in the original basis.
    pub(super) decoded: Vec<f32>,
    /// Mean squared error of that over the mean square of the block.
    pub(super) mse: f64,
    /// Bits per weight of the codewords.
    pub(super) payload_bps: f64,
}

impl Encoded {
    /// The block under the codec of that label; `order` is for bit-shift trellises.
    pub(super) fn new(label: &str, order: ShiftOrderKind, block: &Block) -> Result<Self> {
        let mut spec = CodecSpec::parse(label)?;
        if let SchemeSpec::Shift { order: asked, .. } = &mut spec.scheme {
            *asked = order;
        }
        let matrix = spec.check()?.encode(MatRef::new(&block.weights, block.rows(), block.cols)?)?;
        Self::of(label, spec, matrix, block)
    }

    /// A block that someone else has encoded.
    pub(super) fn of(label: &str, spec: CodecSpec, matrix: EncodedMatrix, block: &Block) -> Result<Self> {
        let decoded = decode(&matrix)?;
        let squares = |errors: &mut dyn Iterator<Item = f64>| errors.map(|e| e * e).sum::<f64>();
        let noise = squares(&mut block.weights.iter().zip(&decoded).map(|(&w, &d)| f64::from(w) - f64::from(d)));
        let signal = squares(&mut block.weights.iter().map(|&w| f64::from(w)));
        let payload_bps = matrix.rate().payload_bps();
        Ok(Encoded { label: label.to_owned(), spec, matrix, decoded, mse: noise / signal, payload_bps })
    }

    /// The matrix of `rows` rows that repeats the block.
    ///
    /// Strings of a bit-shift trellis are repeated as they are, which is what encoding the repeated rows would give;
    /// entropy-coded streams are encoded again, at the step of the block.
    pub(super) fn repeated(&self, rows: usize, block: &Block) -> Result<EncodedMatrix> {
        let times = rows / block.rows();
        ensure!(times * block.rows() == rows, "{rows} rows are no multiple of the {} of the block", block.rows());
        if times == 1 {
            return Ok(self.matrix.clone());
        }
        let matrix = match &self.matrix.header.scheme {
            SchemeHeader::Shift(_) => {
                let planes = self.matrix.planes.iter().map(|plane| repeat_plane(plane, times)).collect();
                let mut header = self.matrix.header.clone();
                header.rows = rows as u64;
                EncodedMatrix { header, planes }
            }
            scheme => {
                let mut spec = self.spec.clone();
                if let SchemeHeader::Lattice(lattice) = scheme {
                    spec.target = RateTarget::Alpha(f64::from(lattice.alpha));
                }
                spec.check()?.encode_owned(block.weights.repeat(times), rows, block.cols)?
            }
        };
        let decoder = matrix.decoder()?;
        let n = decoder.row_block().clamp(1, block.rows());
        let last = rows - block.rows();
        let mut found = vec![0.0; n * block.cols];
        decoder.decode_rows(last..last + n, &mut found, &mut DecodeScratch::new())?;
        let same = found.iter().zip(&self.decoded).all(|(a, b)| a.to_bits() == b.to_bits());
        ensure!(same, "{}: the repeated matrix decodes to something else", self.label);
        Ok(matrix)
    }
}

/// All rows in the original basis.
pub(super) fn decode(matrix: &EncodedMatrix) -> Result<Vec<f32>> {
    let decoder = matrix.decoder()?;
    let cols = decoder.cols();
    let block = decoder.row_block() * 16usize.div_ceil(decoder.row_block().max(1));
    let mut out = vec![0.0; decoder.rows() * cols];
    out.par_chunks_mut(block * cols)
        .enumerate()
        .try_for_each_init(DecodeScratch::new, |scratch, (i, out)| {
            decoder.decode_rows(i * block..i * block + out.len() / cols, out, scratch)
        })
        .context("decoding")?;
    Ok(out)
}

fn repeat_plane(plane: &Plane<'static>, times: usize) -> Plane<'static> {
    fn again<T: Copy>(data: &[T], times: usize) -> Cow<'static, [T]> {
        Cow::Owned(data.repeat(times))
    }
    let data = match &plane.data {
        PlaneData::U8(data) => PlaneData::U8(again(data, times)),
        PlaneData::U16(data) => PlaneData::U16(again(data, times)),
        PlaneData::U32(data) => PlaneData::U32(again(data, times)),
        PlaneData::U64(data) => PlaneData::U64(again(data, times)),
        PlaneData::Bf16(data) => PlaneData::Bf16(again(data, times)),
        PlaneData::F32(data) => PlaneData::F32(again(data, times)),
    };
    Plane { name: plane.name.clone(), data }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_blocks_decode_to_the_same_rows() {
        let shape = Shape { rows: 96, cols: 256 };
        let block = Block::new(shape, 32, 3);
        assert_eq!(block.rows(), 32);
        for (label, order) in [
            ("shift-12@2", ShiftOrderKind::Rows),
            ("shift-12@3", ShiftOrderKind::Tiles),
            ("e8-rice@4", ShiftOrderKind::Rows),
            ("e8@3", ShiftOrderKind::Rows),
        ] {
            let encoded = Encoded::new(label, order, &block).unwrap();
            assert!(encoded.mse > 0.0 && encoded.mse < 0.2, "{label}: {}", encoded.mse);
            let whole = decode(&encoded.repeated(96, &block).unwrap()).unwrap();
            assert_eq!(whole.len(), 96 * 256);
            assert!(whole.chunks_exact(32 * 256).all(|part| part == encoded.decoded), "{label}");
        }
    }

    #[test]
    fn odd_numbers_of_rows_are_drawn_whole() {
        assert_eq!(Block::new(Shape { rows: 40, cols: 64 }, 32, 0).rows(), 40);
    }
}
