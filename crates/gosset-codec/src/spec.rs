//! Plain-data specifications of a codec, and the one table of codec names.

use gosset_lattice::LatticeKind;
use gosset_transform::{DEFAULT_TILE, Rht, TilePlan};
use gosset_trellis::shift::{ShiftCode, ShiftOrder};
use serde::{Deserialize, Serialize};

use crate::{Codec, CodecError, RotationHeader};

/// Smallest alpha that a specification may ask for.
pub const MIN_ALPHA: f64 = 1.0 / 1_048_576.0;
/// Largest alpha that a specification may ask for.
pub const MAX_ALPHA: f64 = 65_536.0;

/// Everything that decides the bytes of an encoded matrix, besides the matrix.
///
/// ```
/// use gosset_codec::{CodecSpec, RateTarget};
///
/// let spec = CodecSpec::parse("e8-rice@3.5")?;
/// assert_eq!(spec.name(), "e8-rice");
/// assert_eq!(spec.target, RateTarget::PayloadBps(3.5));
/// # Ok::<(), gosset_codec::CodecError>(())
/// ```
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct CodecSpec {
    /// Rotation along the rows before quantization.
    pub rotation: RotationSpec,
    /// How rotated rows become symbols and symbols become bits.
    pub scheme: SchemeSpec,
    /// What fixes the rate.
    pub target: RateTarget,
}

/// Rotation along the rows (the input dimension) of a matrix.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RotationSpec {
    /// None: the frame of the codec is the original basis.
    None,
    /// Randomized Hadamard transform with the tile plan that [`TilePlan::new`] makes of the width and `tile`.
    Rht {
        /// Asked tile, a power of two.
        tile: u32,
        /// Seed of the signs.
        seed: u64,
    },
}

impl RotationSpec {
    /// What codecs named on the command line use: tiles of 128 (where the width allows), seed 0.
    pub const DEFAULT: RotationSpec = RotationSpec::Rht { tile: DEFAULT_TILE, seed: 0 };

    /// The rotation of rows of `width` values.
    ///
    /// # Errors
    /// [`CodecError::Rotation`] for a width or a tile that no plan has.
    ///
    /// ```
    /// use gosset_codec::{RotationHeader, RotationSpec};
    ///
    /// let expected = RotationHeader::Rht { seed: 0, runs: vec![[64, 9]] };
    /// assert_eq!(RotationSpec::DEFAULT.header(576)?, expected);
    /// # Ok::<(), gosset_codec::CodecError>(())
    /// ```
    pub fn header(&self, width: usize) -> Result<RotationHeader, CodecError> {
        let rht = match *self {
            RotationSpec::None => None,
            RotationSpec::Rht { tile, seed } => Some(Rht::new(TilePlan::new(width, tile)?, seed)),
        };
        Ok(RotationHeader::of(rht.as_ref()))
    }
}

/// How rotated rows become symbols and symbols become bits.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum SchemeSpec {
    /// Nearest lattice points, stripped, under an entropy code.
    Lattice {
        /// The lattice.
        lattice: LatticeName,
        /// The entropy code of the symbols.
        code: CodeKind,
        /// Gain of the reconstruction.
        #[serde(default, skip_serializing_if = "Gain::is_none")]
        gain: Gain,
    },
    /// Paths through a trellis over two interleaved grids, under an entropy code; least-squares gain.
    Trellis {
        /// Number of states, a power of two: 8, 64 or 256.
        states: u32,
    },
    /// Paths through a trellis of bit shifts, at a fixed rate; least-squares gain. The payload is the number k of bits
    /// per weight.
    Shift {
        /// Bits of the state, L.
        state_bits: u8,
        /// What maps a state to weights.
        code: ShiftCodeKind,
        /// Order of the weights in the bit strings.
        #[serde(default)]
        order: ShiftOrderKind,
    },
}

/// An entropy code.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CodeKind {
    /// Rice code with one parameter k per symbol class and matrix, the best one.
    Rice,
    /// Table-driven asymmetric numeral system with integer tables from a family that needs no data.
    Ans,
}

/// What the scale of a reconstructed row is fitted to.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Gain {
    /// To nothing: points are taken as they are, which keeps dithered reconstructions unbiased.
    #[default]
    None,
    /// To the least squared error of each row; the factor is part of the row scale and costs nothing.
    LeastSquares,
}

impl Gain {
    fn is_none(&self) -> bool {
        *self == Gain::None
    }
}

/// What maps a state of a bit-shift trellis to weights.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ShiftCodeKind {
    /// A product per weight into a table of the quantiles of a Gaussian.
    Quantiles,
    /// A product for two weights into a table of pairs.
    Pairs,
}

/// Order of the weights in the bit strings of a bit-shift trellis.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ShiftOrderKind {
    /// One string per row.
    #[default]
    Rows,
    /// One string per tile of 16 rows and 16 columns.
    Tiles,
}

impl From<ShiftCodeKind> for ShiftCode {
    fn from(code: ShiftCodeKind) -> Self {
        match code {
            ShiftCodeKind::Quantiles => Self::Quantiles,
            ShiftCodeKind::Pairs => Self::Pairs,
        }
    }
}

impl From<ShiftOrderKind> for ShiftOrder {
    fn from(order: ShiftOrderKind) -> Self {
        match order {
            ShiftOrderKind::Rows => Self::Rows,
            ShiftOrderKind::Tiles => Self::Tiles,
        }
    }
}

/// A [`LatticeKind`] that is stored as its name.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[serde(try_from = "String", into = "&'static str")]
pub struct LatticeName(pub LatticeKind);

impl From<LatticeName> for &'static str {
    fn from(name: LatticeName) -> Self {
        name.0.name()
    }
}

impl TryFrom<String> for LatticeName {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        LatticeKind::from_name(&name).map(LatticeName).ok_or_else(|| {
            let names = LatticeKind::ALL.map(LatticeKind::name).join(", ");
            format!("unknown lattice `{name}`, expected one of {names}")
        })
    }
}

/// What fixes the rate of an encoded matrix.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RateTarget {
    /// Payload in bits per weight: code bits and exactly stored rows, without lengths, scales and padding.
    ///
    /// Matrices of 2^16 weights or more are encoded within 0.01 of it, save those that cannot be: values on so few
    /// levels that the rate jumps, or none but zeros, or exactly stored rows that take more than half of the budget
    /// (the other rows get half then). Smaller matrices are encoded as near as their few symbols allow; the padding of
    /// their last block is not charged against the target, but it is counted in the rate.
    PayloadBps(f64),
    /// Scale of the lattice: a row of unit RMS is multiplied by this before the nearest points are taken.
    Alpha(f64),
}

/// A codec that can be asked for by name.
#[derive(Debug, Clone, PartialEq)]
pub struct CodecInfo {
    /// Name, such as `e8-rice`.
    pub name: &'static str,
    /// One line for people.
    pub about: &'static str,
    /// Lowest payload that may be asked for, in bits per weight.
    pub min_bps: f64,
    /// Highest payload that may be asked for, in bits per weight.
    pub max_bps: f64,
    /// The payloads that may be asked for where the codec has a fixed set of them, ascending; `None` for a continuum.
    pub rates: Option<&'static [f64]>,
    scheme: SchemeSpec,
}

const fn lattice_rice(name: &'static str, about: &'static str, lattice: LatticeKind) -> CodecInfo {
    // A Rice codeword has at least one bit, so 1 is approached by zeros only. A twentieth of a bit above it Gaussian
    // data still carry something.
    let scheme = SchemeSpec::Lattice { lattice: LatticeName(lattice), code: CodeKind::Rice, gain: Gain::None };
    CodecInfo { name, about, min_bps: 1.05, max_bps: 10.0, rates: None, scheme }
}

const fn lattice_ans(name: &'static str, about: &'static str, lattice: LatticeKind) -> CodecInfo {
    // At half a bit Gaussian data lose less than 2.5 dB, and below it the tables, whose symbols cost 1/32 bit at least, lose
    // their edge.
    let scheme = SchemeSpec::Lattice { lattice: LatticeName(lattice), code: CodeKind::Ans, gain: Gain::LeastSquares };
    CodecInfo { name, about, min_bps: 0.5, max_bps: 10.0, rates: None, scheme }
}

const fn lattice_unbiased(name: &'static str, about: &'static str, lattice: LatticeKind) -> CodecInfo {
    let scheme = SchemeSpec::Lattice { lattice: LatticeName(lattice), code: CodeKind::Ans, gain: Gain::None };
    CodecInfo { scheme, ..lattice_ans(name, about, lattice) }
}

const fn trellis(name: &'static str, about: &'static str, states: u32) -> CodecInfo {
    // The tables go on to about 0.2 and 10.3 bits on Gaussian data.
    CodecInfo { name, about, min_bps: 0.5, max_bps: 10.0, rates: None, scheme: SchemeSpec::Trellis { states } }
}

const fn shift(name: &'static str, about: &'static str, state_bits: u8, order: ShiftOrderKind) -> CodecInfo {
    let scheme = SchemeSpec::Shift { state_bits, code: ShiftCodeKind::Quantiles, order };
    CodecInfo { name, about, min_bps: 2.0, max_bps: 6.0, rates: Some(&[2.0, 3.0, 4.0, 5.0, 6.0]), scheme }
}

const fn shift_pairs(name: &'static str, about: &'static str, state_bits: u8, order: ShiftOrderKind) -> CodecInfo {
    let scheme = SchemeSpec::Shift { state_bits, code: ShiftCodeKind::Pairs, order };
    CodecInfo { name, about, min_bps: 2.0, max_bps: 4.0, rates: Some(&[2.0, 3.0, 4.0]), scheme }
}

static CODECS: [CodecInfo; 22] = [
    lattice_ans("e8", "E8 lattice with ANS: 0.15 bits from the bound at any rate", LatticeKind::E8),
    lattice_ans("d4", "D4 lattice with ANS: 0.20 bits from the bound", LatticeKind::D4),
    lattice_ans("a2", "hexagonal lattice with ANS: 0.23 bits from the bound", LatticeKind::A2),
    lattice_ans("z", "rounding to integers with ANS: 0.26 bits from the bound", LatticeKind::Z),
    lattice_rice("e8-rice", "E8 lattice with Rice codes: the least distortion of the four", LatticeKind::E8),
    lattice_rice("d4-rice", "D4 lattice with Rice codes", LatticeKind::D4),
    lattice_rice("a2-rice", "hexagonal lattice with Rice codes", LatticeKind::A2),
    lattice_rice("z-rice", "rounding to integers with Rice codes", LatticeKind::Z),
    trellis("trellis-8", "entropy-coded trellis of 8 states: 0.08 bits from the bound at any rate", 8),
    trellis("trellis-64", "entropy-coded trellis of 64 states: 0.05 bits from the bound", 64),
    trellis("trellis-256", "entropy-coded trellis of 256 states: 0.04 bits from the bound", 256),
    shift("shift-12", "bit-shift trellis of 2^12 states: fixed rate, the fastest to encode", 12, ShiftOrderKind::Rows),
    shift("shift-13", "bit-shift trellis of 2^13 states", 13, ShiftOrderKind::Rows),
    shift("shift-14", "bit-shift trellis of 2^14 states", 14, ShiftOrderKind::Rows),
    shift("shift-15", "bit-shift trellis of 2^15 states", 15, ShiftOrderKind::Rows),
    shift("shift-16", "bit-shift trellis of 2^16 states", 16, ShiftOrderKind::Rows),
    shift("shift-17", "bit-shift trellis of 2^17 states", 17, ShiftOrderKind::Rows),
    shift("shift-18", "bit-shift trellis of 2^18 states: fixed rate, the least distortion", 18, ShiftOrderKind::Rows),
    shift_pairs(
        "shiftlut-17",
        "bit-shift trellis of 2^17 states over pairs: the fastest to decode",
        17,
        ShiftOrderKind::Rows,
    ),
    shift("shift-16-tiles", "shift-16 in tiles of 16 x 16 weights: for GPUs", 16, ShiftOrderKind::Tiles),
    shift_pairs(
        "shiftlut-17-tiles",
        "shiftlut-17 in tiles of 16 x 16 weights: the fastest on a GPU",
        17,
        ShiftOrderKind::Tiles,
    ),
    lattice_unbiased("e8-unbiased", "e8 without the gain of least squares, which shrinks weights", LatticeKind::E8),
];

/// All codecs by name: the one table behind names, help texts and refusals.
///
/// ```
/// let names: Vec<_> = gosset_codec::codecs().iter().map(|codec| codec.name).collect();
/// assert_eq!(names[..4], ["e8", "d4", "a2", "z"]);
/// assert_eq!(names[4..11], ["e8-rice", "d4-rice", "a2-rice", "z-rice", "trellis-8", "trellis-64", "trellis-256"]);
/// assert_eq!(names[11..15], ["shift-12", "shift-13", "shift-14", "shift-15"]);
/// assert_eq!(names[15..19], ["shift-16", "shift-17", "shift-18", "shiftlut-17"]);
/// assert_eq!(names[19..], ["shift-16-tiles", "shiftlut-17-tiles", "e8-unbiased"]);
/// ```
pub fn codecs() -> &'static [CodecInfo] {
    &CODECS
}

/// The names of [`codecs`], for an error message.
pub(crate) fn codec_names() -> String {
    CODECS.each_ref().map(|codec| codec.name).join(", ")
}

impl SchemeSpec {
    /// Name of the codec with this scheme; `None` if no codec has it.
    pub(crate) fn name(&self) -> Option<&'static str> {
        self.info().map(|codec| codec.name)
    }

    /// The codec with this scheme, gain and order included where there is one.
    fn info(&self) -> Option<&'static CodecInfo> {
        let named = || CODECS.iter().filter(|codec| codec.scheme.has_name_of(self));
        named().find(|codec| codec.scheme == *self).or_else(|| named().next())
    }

    /// Whether both are one code: gain and order are options of it.
    fn has_name_of(&self, other: &SchemeSpec) -> bool {
        use SchemeSpec::{Lattice, Shift, Trellis};
        match (self, other) {
            (Lattice { lattice: a, code: c, .. }, Lattice { lattice: b, code: d, .. }) => (a, c) == (b, d),
            (Trellis { states: a }, Trellis { states: b }) => a == b,
            (Shift { state_bits: a, code: c, .. }, Shift { state_bits: b, code: d, .. }) => (a, c) == (b, d),
            _ => false,
        }
    }
}

impl CodecSpec {
    /// The specification written as `codec@rate`, the rate being a payload in bits per weight; default rotation.
    ///
    /// # Errors
    /// [`CodecError::SpecSyntax`] without a readable rate, and those of [`CodecSpec::named`].
    ///
    /// ```
    /// use gosset_codec::CodecSpec;
    /// let error = CodecSpec::parse("e8-rice@0.9").unwrap_err();
    /// assert_eq!(error.to_string(), "e8-rice cannot reach 0.9 bits per weight, expected a payload from 1.05 to 10");
    /// ```
    pub fn parse(text: &str) -> Result<Self, CodecError> {
        let syntax = || CodecError::SpecSyntax { text: text.to_owned() };
        let (name, rate) = text.split_once('@').ok_or_else(syntax)?;
        let rate = rate.parse::<f64>().map_err(|_| syntax())?;
        Self::named(name, rate)
    }

    /// The codec of that name at a payload of `payload_bps` bits per weight, with [`RotationSpec::DEFAULT`].
    ///
    /// # Errors
    /// [`CodecError::UnknownCodec`], or [`CodecError::RateRange`] when the codec cannot reach the rate.
    pub fn named(name: &str, payload_bps: f64) -> Result<Self, CodecError> {
        let info = CODECS.iter().find(|codec| codec.name == name);
        let info = info.ok_or_else(|| CodecError::UnknownCodec { name: name.to_owned() })?;
        let spec = CodecSpec {
            rotation: RotationSpec::DEFAULT,
            scheme: info.scheme.clone(),
            target: RateTarget::PayloadBps(payload_bps),
        };
        spec.check()?;
        Ok(spec)
    }

    /// The row of [`codecs`] for this scheme.
    pub fn info(&self) -> &'static CodecInfo {
        self.scheme.info().expect("every scheme has a row in the table")
    }

    /// Name of the scheme, such as `e8-rice`.
    pub fn name(&self) -> &'static str {
        self.info().name
    }

    /// The working codec of this specification.
    ///
    /// # Errors
    /// [`CodecError::UnknownCodec`] for a scheme that no codec has; [`CodecError::RateRange`], [`CodecError::Alpha`] or
    /// [`CodecError::Rotation`] for values that no matrix can be encoded with. Widths that the tile cannot serve are
    /// found when a matrix is given.
    pub fn check(&self) -> Result<Codec, CodecError> {
        if self.scheme.name().is_none() {
            return Err(CodecError::UnknownCodec { name: format!("{:?}", self.scheme) });
        }
        let info = self.info();
        match self.target {
            RateTarget::PayloadBps(asked) if info.rates.is_some_and(|rates| !rates.contains(&asked)) => {
                let rates = info.rates.unwrap_or_default();
                return Err(CodecError::RateSet { codec: info.name, asked, rates });
            }
            RateTarget::PayloadBps(asked) if !(info.min_bps..=info.max_bps).contains(&asked) => {
                return Err(CodecError::RateRange { codec: info.name, asked, min: info.min_bps, max: info.max_bps });
            }
            RateTarget::Alpha(_) if matches!(self.scheme, SchemeSpec::Shift { .. }) => {
                return Err(CodecError::NoAlpha { codec: info.name });
            }
            RateTarget::Alpha(found) if !(MIN_ALPHA..=MAX_ALPHA).contains(&found) => {
                return Err(CodecError::Alpha { found, min: MIN_ALPHA, max: MAX_ALPHA });
            }
            _ => {}
        }
        if let RotationSpec::Rht { tile, .. } = self.rotation {
            TilePlan::new(1, tile)?;
        }
        Ok(Codec::new(self.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_parses_and_names_itself() {
        for info in codecs() {
            let between = if info.rates.is_some() { 3.0 } else { 3.5 };
            for rate in [info.min_bps, between, info.max_bps] {
                let spec = CodecSpec::parse(&format!("{}@{rate}", info.name)).unwrap();
                assert_eq!((spec.name(), spec.rotation), (info.name, RotationSpec::Rht { tile: 128, seed: 0 }));
                assert_eq!(spec.target, RateTarget::PayloadBps(rate));
            }
        }
    }

    #[test]
    fn unreachable_rates_are_refused_with_floor_and_ceiling() {
        for (text, message) in [
            ("e8-rice@1", "e8-rice cannot reach 1 bits per weight, expected a payload from 1.05 to 10"),
            ("z-rice@11", "z-rice cannot reach 11 bits per weight, expected a payload from 1.05 to 10"),
            ("d4-rice@NaN", "d4-rice cannot reach NaN bits per weight, expected a payload from 1.05 to 10"),
            (
                "e9-rice@2",
                "unknown codec `e9-rice`, expected one of e8, d4, a2, z, e8-rice, d4-rice, a2-rice, z-rice, trellis-8, trellis-64, trellis-256, \
                 shift-12, shift-13, shift-14, shift-15, shift-16, shift-17, shift-18, shiftlut-17, shift-16-tiles, shiftlut-17-tiles, \
                 e8-unbiased",
            ),
            ("e8-rice", "`e8-rice` is no codec specification, expected `codec@rate` such as `e8-rice@3.5`"),
            ("e8-rice@x", "`e8-rice@x` is no codec specification, expected `codec@rate` such as `e8-rice@3.5`"),
        ] {
            assert_eq!(CodecSpec::parse(text).unwrap_err().to_string(), message);
        }
    }

    #[test]
    fn bad_alphas_and_tiles_are_refused() {
        let mut spec = CodecSpec::parse("a2-rice@2").unwrap();
        for alpha in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e6] {
            spec.target = RateTarget::Alpha(alpha);
            assert!(matches!(spec.check(), Err(CodecError::Alpha { .. })), "{alpha}");
        }
        spec.target = RateTarget::Alpha(2.0);
        spec.rotation = RotationSpec::Rht { tile: 96, seed: 0 };
        assert!(matches!(spec.check(), Err(CodecError::Rotation(_))));
    }

    #[test]
    fn schemes_that_no_codec_has_are_refused() {
        let mut spec = CodecSpec::parse("trellis-8@2").unwrap();
        spec.scheme = SchemeSpec::Trellis { states: 16 };
        let error = spec.check().unwrap_err();
        assert!(matches!(&error, CodecError::UnknownCodec { name } if name.contains("16")), "{error}");
    }

    #[test]
    fn specs_have_a_stable_json_form() {
        let spec = CodecSpec::parse("e8-rice@3.5").unwrap();
        let json = serde_json::to_string(&spec).unwrap();
        assert_eq!(
            json,
            r#"{"rotation":{"rht":{"tile":128,"seed":0}},"scheme":{"lattice":{"lattice":"e8","code":"rice"}},"target":{"payload_bps":3.5}}"#
        );
        assert_eq!(serde_json::from_str::<CodecSpec>(&json).unwrap(), spec);
        let error = serde_json::from_str::<CodecSpec>(&json.replace("e8", "e7")).unwrap_err().to_string();
        assert!(error.contains("unknown lattice `e7`, expected one of z, a2, d4, e8"), "{error}");
    }
}
