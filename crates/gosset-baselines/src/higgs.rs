//! HIGGS: Hadamard transform and a Gaussian-optimal grid.

use gosset_entropy::Rate;

use crate::baseline::check_shape;
use crate::grid::Grid;
use crate::groups::CODES;
use crate::nearest::CodeTree;
use crate::pack::{pack, packed_len, unpack};
use crate::rows::{Rotation, SCALES, normalize, restore};
use crate::{Baseline, BaselineError, Encoded, Plane};

/// Rotated rows of unit RMS, in pieces of p values, to the nearest codeword of a Lloyd grid; an index of log2 n bits per piece.
///
/// Rotation and scale (one bf16 per row) are those of Gosset's codecs. Pieces run through the rows without regard to their ends; the
/// last one is filled with zeros, and the bits of what is filled count as padding.
///
/// Source: Malinovskii et al., *Pushing the limits of large language model quantization via the linearity theorem*, arXiv
/// 2411.17525.
#[derive(Debug, Clone)]
pub struct Higgs {
    name: String,
    grid: Grid,
    tree: Tree,
    rotation: Rotation,
}

#[derive(Debug, Clone)]
enum Tree {
    One(CodeTree<1>),
    Two(CodeTree<2>),
    Four(CodeTree<4>),
}

impl Higgs {
    /// The method with the grid of `n` codewords of `p` values.
    ///
    /// # Errors
    /// [`BaselineError::Rate`] if there is no such grid.
    pub fn new(p: usize, n: usize, rotation: Rotation) -> Result<Self, BaselineError> {
        let grid = Grid::of(p, n)?;
        let tree = match p {
            1 => Tree::One(CodeTree::new(grid.values.as_chunks().0)),
            2 => Tree::Two(CodeTree::new(grid.values.as_chunks().0)),
            _ => Tree::Four(CodeTree::new(grid.values.as_chunks().0)),
        };
        Ok(Higgs { name: format!("higgs{p}"), grid, tree, rotation })
    }

    /// Empirical entropy of the indices of an encoded matrix, in bits per weight: what an ideal code for single indices would take.
    ///
    /// # Errors
    /// As for [`Baseline::decode`].
    pub fn index_entropy_bps(&self, rows: usize, cols: usize, encoded: &Encoded) -> Result<f64, BaselineError> {
        let n = check_shape(rows, cols)?;
        let (bits, n_pieces) = (self.grid.info.bits(), n.div_ceil(self.grid.info.p));
        let bytes = encoded.plane(CODES, packed_len(n_pieces, bits))?;
        let mut counts = vec![0u64; self.grid.info.n];
        unpack(bytes, bits).take(n_pieces).for_each(|code| counts[usize::from(code)] += 1);
        let total = n_pieces as f64;
        let bits: f64 = counts.iter().filter(|&&c| c > 0).map(|&c| c as f64 * libm::log2(total / c as f64)).sum();
        Ok(bits / n as f64)
    }
}

/// Indices of the codewords nearest to the pieces of `values`.
fn indices<const P: usize>(tree: &CodeTree<P>, values: &[f32]) -> Vec<u16> {
    let (pieces, rest) = values.as_chunks::<P>();
    let mut out: Vec<u16> = pieces.iter().map(|piece| tree.nearest(piece).0).collect();
    if !rest.is_empty() {
        let mut piece = [0.0; P];
        piece[..rest.len()].copy_from_slice(rest);
        out.push(tree.nearest(&piece).0);
    }
    out
}

/// The rate of indices of `bits` bits for pieces of `p` of `n` weights in `rows` rows.
pub(crate) fn piecewise_rate(n: usize, rows: usize, p: usize, bits: u32) -> Rate {
    let n_pieces = n.div_ceil(p);
    let total = packed_len(n_pieces, bits) as u64 * 8;
    // An index is spread over its weights; the part of filled values is padding.
    let payload = n as u64 * u64::from(bits) / p as u64;
    Rate {
        payload_bits: payload,
        scale_bits: rows as u64 * 16,
        header_bits: total - payload,
        n: n as u64,
        ..Rate::default()
    }
}

impl Baseline for Higgs {
    fn name(&self) -> &str {
        &self.name
    }

    fn payload_bps(&self) -> f64 {
        self.grid.info.payload_bps()
    }

    fn encode(&self, rows: usize, cols: usize, weights: &[f32]) -> Result<Encoded, BaselineError> {
        let (values, scales) = normalize(self.rotation, rows, cols, weights)?;
        let codes = match &self.tree {
            Tree::One(tree) => indices(tree, &values),
            Tree::Two(tree) => indices(tree, &values),
            Tree::Four(tree) => indices(tree, &values),
        };
        let info = self.grid.info;
        let planes = vec![Plane { name: CODES, bytes: pack(&codes, info.bits()) }, scales];
        Ok(Encoded { planes, rate: piecewise_rate(values.len(), rows, info.p, info.bits()), fallback: None })
    }

    fn decode(&self, rows: usize, cols: usize, encoded: &Encoded) -> Result<Vec<f32>, BaselineError> {
        let n = check_shape(rows, cols)?;
        let info = self.grid.info;
        let n_pieces = n.div_ceil(info.p);
        let codes = encoded.plane(CODES, packed_len(n_pieces, info.bits()))?;
        let scales = encoded.plane(SCALES, rows * 2)?;
        let mut values = Vec::with_capacity(n_pieces * info.p);
        for code in unpack(codes, info.bits()).take(n_pieces) {
            values.extend_from_slice(&self.grid.values[usize::from(code) * info.p..][..info.p]);
        }
        values.truncate(n);
        restore(self.rotation, rows, cols, scales, &mut values)?;
        Ok(values)
    }
}
