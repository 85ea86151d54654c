//! The decode recipe of an encoded matrix.

use gosset_transform::{Rht, TilePlan, TileRun};
use serde::{Deserialize, Serialize};

use crate::columns::ColumnsHeader;
use crate::{CodeKind, CodecError, Gain, LatticeName, SchemeSpec, ShiftCodeKind, ShiftOrderKind};

/// Everything that a decoder needs besides the planes. Nothing here is trusted before
/// [`Decoder::new`](crate::Decoder::new) has checked it.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct MatrixHeader {
    /// Number of rows.
    pub rows: u64,
    /// Number of columns, the input dimension.
    pub cols: u64,
    /// Rotation that was applied to each row.
    pub rotation: RotationHeader,
    /// Of a matrix that is stored by columns; absent for one that is stored by rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub columns: Option<ColumnsHeader>,
    /// How bits become values.
    pub scheme: SchemeHeader,
}

impl MatrixHeader {
    /// Name of the codec as in [`codecs`](crate::codecs), such as `e8-rice`; `unknown` for a header that no codec makes.
    pub fn codec_name(&self) -> &'static str {
        let scheme = match &self.scheme {
            SchemeHeader::Lattice(LatticeHeader { lattice, code, .. }) => {
                // Gains are in the scales of rows or columns; whether there were any cannot be seen.
                let (code, gain) = match code {
                    CodeHeader::Rice { .. } => (CodeKind::Rice, Gain::None),
                    CodeHeader::Ans { .. } => (CodeKind::Ans, Gain::LeastSquares),
                };
                SchemeSpec::Lattice { lattice: *lattice, code, gain }
            }
            SchemeHeader::Trellis(header) => SchemeSpec::Trellis { states: header.states },
            SchemeHeader::Shift(header) => {
                let ShiftHeader { state_bits, code, order, .. } = *header;
                SchemeSpec::Shift { state_bits, code, order }
            }
        };
        scheme.name().unwrap_or("unknown")
    }
}

/// Rotation that was applied to each row.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RotationHeader {
    /// None.
    None,
    /// Randomized Hadamard transform.
    Rht {
        /// Seed of the signs.
        seed: u64,
        /// Tiles from left to right, as `[tile, count]` pairs that cover the columns exactly.
        runs: Vec<[u32; 2]>,
    },
}

/// How bits become values.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum SchemeHeader {
    /// Stripped lattice points under an entropy code.
    Lattice(LatticeHeader),
    /// Paths through a trellis over two interleaved grids, under an entropy code.
    Trellis(TrellisHeader),
    /// Paths through a trellis of bit shifts.
    Shift(ShiftHeader),
}

/// Header of the entropy-coded trellis.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct TrellisHeader {
    /// Number of states.
    pub states: u32,
    /// Factor from grid points to rows of unit RMS.
    pub step: f32,
    /// Member of the family of tables.
    pub table: u16,
}

/// Header of the bit-shift trellis.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct ShiftHeader {
    /// Bits per weight, k.
    pub bits: u8,
    /// Bits of the state, L.
    pub state_bits: u8,
    /// What maps a state to weights.
    pub code: ShiftCodeKind,
    /// Order of the weights in the bit strings.
    pub order: ShiftOrderKind,
    /// Factor from the values of the code to rows of unit RMS.
    pub step: f32,
}

/// Header of the lattice scheme.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct LatticeHeader {
    /// The lattice.
    pub lattice: LatticeName,
    /// Scale that the encoder applied to rows of unit RMS. For the record: decoders use `step`.
    pub alpha: f32,
    /// Factor from an embedded lattice point to rows of unit RMS, 1/alpha.
    pub step: f32,
    /// The entropy code of the symbols.
    pub code: CodeHeader,
}

/// Parameters of an entropy code.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CodeHeader {
    /// Rice code.
    Rice {
        /// Parameter k of each symbol class of the lattice.
        ks: Vec<u8>,
    },
    /// Table-driven asymmetric numeral system.
    Ans {
        /// Member of the family of tables.
        table: u16,
        /// Low bits of each magnitude that are stored as they are.
        raw_bits: u8,
    },
}

impl RotationHeader {
    /// The header of a transform.
    #[must_use]
    pub fn of(rht: Option<&Rht>) -> Self {
        match rht {
            None => RotationHeader::None,
            Some(rht) => RotationHeader::Rht {
                seed: rht.seed(),
                runs: rht.plan().runs().iter().map(|run| [run.tile, run.count]).collect(),
            },
        }
    }

    /// The transform of rows of `cols` columns.
    ///
    /// # Errors
    /// [`CodecError::Rotation`] if the runs do not cover the columns.
    pub fn to_rht(&self, cols: usize) -> Result<Option<Rht>, CodecError> {
        match self {
            RotationHeader::None => Ok(None),
            RotationHeader::Rht { seed, runs } => {
                let runs: Vec<_> = runs.iter().map(|&[tile, count]| TileRun { tile, count }).collect();
                Ok(Some(Rht::new(TilePlan::from_runs(cols, &runs)?, *seed)))
            }
        }
    }
}
