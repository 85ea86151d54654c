//! Which trellis: plain data, checked once.

use super::code::{Code, TABLE_LEN};
use super::constants;
use super::layout::ShiftLayout;
use crate::TrellisError;

/// Fewest bits of a state.
pub const MIN_STATE_BITS: u8 = 12;
/// Most bits of a state.
pub const MAX_STATE_BITS: u8 = 18;

/// Everything that decides what a string of bits means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ShiftSpec {
    /// Bits per weight, k: one of [`ShiftSpec::BITS`].
    pub bits: u8,
    /// Bits of the state, L: [`MIN_STATE_BITS`] to [`MAX_STATE_BITS`].
    pub state_bits: u8,
    /// What maps a state to weights.
    pub code: ShiftCode,
    /// Order of the weights in the strings.
    pub order: ShiftOrder,
}

/// What maps a state to the weights of a step; formulas at [`Code`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ShiftCode {
    /// One product per weight, each of which picks one of 1024 quantiles of a Gaussian: the least distortion.
    Quantiles,
    /// One product per step, which picks one of 1024 pairs of weights: the least work. Two, three and four bits per
    /// weight only.
    Pairs,
}

/// Order of the weights in the strings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ShiftOrder {
    /// One string per row, from the first column to the last.
    Rows,
    /// One string per tile of 16 rows and 16 columns, in the order of the registers of a tensor core's A operand
    /// (`mma.m16n8k16`): eight consecutive weights belong to one lane. Tiles are ordered by rows of tiles.
    Tiles,
}

impl ShiftSpec {
    /// The bits per weight that there are.
    ///
    /// There are none beyond six: 1024 quantiles are too coarse for seven bits and eight (0.9 bits per weight from the
    /// bound at eight bits and L = 13, as searched for).
    pub const BITS: [u8; 5] = [2, 3, 4, 5, 6];

    /// The working trellis.
    ///
    /// # Errors
    /// [`TrellisError::Parameter`] for bits or a state that there are not.
    pub fn check(self) -> Result<ShiftTrellis, TrellisError> {
        let parameter =
            |name, expected, found: u8| Err(TrellisError::Parameter { name, expected, found: found.into() });
        if !Self::BITS.contains(&self.bits) {
            return parameter("bits per weight", "2, 3, 4, 5 or 6", self.bits);
        }
        if self.code == ShiftCode::Pairs && self.bits > 4 {
            return parameter("bits per weight of a code of pairs", "2, 3 or 4", self.bits);
        }
        if !(MIN_STATE_BITS..=MAX_STATE_BITS).contains(&self.state_bits) {
            return parameter("state bits", "12 to 18", self.state_bits);
        }
        Ok(ShiftTrellis { spec: self, code: constants::code(self), step: constants::step(self) })
    }

    /// Weights that a step appends, V: two up to four bits per weight, one beyond.
    ///
    /// Two halve the work of decoders and encoders; from five bits on, a step of two would have 1024 ways and more.
    #[must_use]
    pub fn weights_per_step(self) -> usize {
        if self.bits <= 4 { 2 } else { 1 }
    }

    /// Bits that a step appends, k V.
    #[must_use]
    pub fn step_bits(self) -> u32 {
        u32::from(self.bits) * self.weights_per_step() as u32
    }
}

/// A checked trellis with its code.
#[derive(Clone, Debug, PartialEq)]
pub struct ShiftTrellis {
    spec: ShiftSpec,
    code: Code,
    step: f32,
}

impl ShiftTrellis {
    /// A trellis with a code and a step of one's own, for the search for codes.
    ///
    /// # Errors
    /// Those of [`ShiftSpec::check`], and [`TrellisError::Length`] for a table that has not 1024 entries.
    pub fn with_code(spec: ShiftSpec, code: Code, step: f32) -> Result<Self, TrellisError> {
        let found = match &code {
            Code::Quantiles { table, .. } => table.len(),
            Code::Pairs { table, .. } => table.len(),
        };
        if found != TABLE_LEN {
            return Err(TrellisError::Length { slice: "table", expected: TABLE_LEN, found });
        }
        Ok(Self { code, step, ..spec.check()? })
    }

    /// What it was made from.
    #[must_use]
    pub fn spec(&self) -> ShiftSpec {
        self.spec
    }

    /// The code, with the constants of this version.
    #[must_use]
    pub fn code(&self) -> &Code {
        &self.code
    }

    /// Factor from the values of the code to rows of unit variance.
    #[must_use]
    pub fn step(&self) -> f32 {
        self.step
    }

    /// Squared error per weight of Gaussian rows of unit variance and 4096 columns after the least-squares gain, as
    /// measured when the constants were made.
    #[must_use]
    pub fn gaussian_mse(&self) -> f64 {
        constants::gaussian_mse(self.spec)
    }

    /// Strings of a matrix.
    ///
    /// # Errors
    /// [`TrellisError::Parameter`] for a matrix without weights or one whose words cannot be counted.
    pub fn layout(&self, rows: usize, cols: usize) -> Result<ShiftLayout, TrellisError> {
        ShiftLayout::new(self.spec, rows, cols)
    }
}
