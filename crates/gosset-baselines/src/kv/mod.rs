//! Codecs of keys and values that Gosset is compared with, in real bytes.
//!
//! | name | keys | values | bits per scalar, norms and scales included, at width d |
//! |---|---|---|---|
//! | `turboquant@b` | random rotation, fp16 norm, Lloyd-Max level per coordinate | the same | b + 16/d |
//! | `turboquant-prod@b` | that with b - 1 bits, signs of a sketch of the error, its fp16 norm | `turboquant@b` | b + 32/d and b + 16/d |
//! | `octopus@b` | signs and Hadamard matrix, fp16 norm, triplets by the octahedral map | the same | about b + 1/3 + 16/d |
//! | `octopus-joint@b` | the same bits, rounded together | the same | as above |
//! | `qjl@b` | signs of b · d projections, fp16 norm | 2 bits, fp16 scale and least value per token and 32 channels | b + 16/d and 3 |
//! | `kivi@b` | fp16 scale and least value per channel and 32 tokens | fp16 scale and least value per token and 32 channels | b + 1 |
//! | `q8_0` | 8 bits, fp16 scale per 32 channels | the same | 8.5 |
//! | `q4_0` | 4 bits, fp16 scale per 32 channels | the same | 4.5 |
//!
//! `name@k/v` gives keys and values rates of their own: `octopus@2/3` (not for `qjl`).
//!
//! What each leaves out of its paper is said at its type. Scales beyond the range of fp16 become the largest finite number.
//!
//! ```
//! use gosset_kv::{KvShape, Place, Role};
//!
//! let shape = KvShape { layers: 1, kv_heads: 1, head_dim: 64 };
//! let (keys, _) = gosset_baselines::kv_baseline("turboquant@3", shape, 0).expect("a baseline of that name")?;
//! let place = Place { layer: 0, role: Role::Key, head: 0 };
//! let x: Vec<f32> = (0..64).map(|i| (i as f32 * 0.7).sin()).collect();
//! let mut rows = vec![0; keys.row_bytes()];
//! keys.quantize(place, 0, &x, &mut rows)?;
//! let mut page = Vec::new();
//! let bits = keys.pack(place, &rows, &mut page)?;
//! assert_eq!((bits.codes, bits.scales, bits.total()), (192, 16, 208));
//! assert_eq!(keys.expected_bps(), 3.25);
//! # Ok::<(), gosset_kv::KvError>(())
//! ```

use std::sync::Arc;

use gosset_kv::{KvCodec, KvError, KvShape, Role};

mod bits;
mod fixed;
mod groups;
mod kivi;
mod levels;
mod octopus;
mod rotation;
mod sketch;
#[cfg(test)]
mod tests;
mod turboquant;

use fixed::Fixed;
use groups::{Groups, Rule};
use kivi::KiviKeys;
use octopus::Octopus;
use sketch::QjlKeys;
use turboquant::{TurboQuant, TurboQuantProduct};

/// Baselines of one name that differ in rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KvFamily {
    /// Name, such as `octopus`.
    pub name: &'static str,
    /// One line for people.
    pub about: &'static str,
    /// Every b of `name@b`, ascending; empty where the name is all there is.
    pub rates: &'static [f64],
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    TurboQuant,
    TurboQuantProduct,
    Octopus { joint: bool },
    Qjl,
    Kivi,
    Blocks(Rule),
}

const BITS: &[f64] = &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
const OCTOPUS_BITS: &[f64] = &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0];
const QJL_ROWS: &[f64] = &[0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 7.0, 8.0];

const fn family(name: &'static str, about: &'static str, rates: &'static [f64], kind: Kind) -> KvFamily {
    KvFamily { name, about, rates, kind }
}

const FAMILIES: &[KvFamily] = &[
    family("turboquant", "random rotation, a Lloyd-Max level per coordinate, fp16 norm", BITS, Kind::TurboQuant),
    family(
        "turboquant-prod",
        "keys unbiased: TurboQuant with a bit less and a sketch of its error; values as turboquant",
        BITS,
        Kind::TurboQuantProduct,
    ),
    family(
        "octopus",
        "triplets by the octahedral map, 3b + 1 bits each, fp16 norm",
        OCTOPUS_BITS,
        Kind::Octopus { joint: false },
    ),
    family(
        "octopus-joint",
        "octopus with the parts of a triplet rounded together",
        OCTOPUS_BITS,
        Kind::Octopus { joint: true },
    ),
    family("qjl", "keys: signs of b projections per channel, fp16 norm; values: 2 bits in groups", QJL_ROWS, Kind::Qjl),
    family("kivi", "keys in groups of 32 tokens per channel, values of 32 channels per token", &[2.0, 4.0], Kind::Kivi),
    family("q8_0", "8 bits, fp16 scale per 32 channels", &[], Kind::Blocks(Rule::Q8_0)),
    family("q4_0", "4 bits, fp16 scale per 32 channels", &[], Kind::Blocks(Rule::Q4_0)),
];

/// All baselines of keys and values.
///
/// ```
/// let names: Vec<_> = gosset_baselines::kv_families().iter().map(|family| family.name).collect();
/// assert_eq!(names, ["turboquant", "turboquant-prod", "octopus", "octopus-joint", "qjl", "kivi", "q8_0", "q4_0"]);
/// ```
pub const fn kv_families() -> &'static [KvFamily] {
    FAMILIES
}

/// Bits of the values of `qjl`.
const QJL_VALUE_BITS: u32 = 2;

/// Widths that rotations and levels are made for.
const WIDTHS: std::ops::RangeInclusive<usize> = 8..=512;

/// The codecs of keys and of values of the baseline written as `name@b`, `name@k/v` or, where there is one rate only, `name`; `None`
/// if no family has that name.
///
/// `seed` makes rotations and sketches; keys and values have different ones, layers and heads share them.
///
/// # Errors
/// [`KvError::Spec`] with the rates that there are, [`KvError::HeadDim`] for odd widths and those below 8 or above 512.
///
/// ```
/// use gosset_baselines::kv_baseline;
/// use gosset_kv::KvShape;
///
/// let shape = KvShape { layers: 2, kv_heads: 1, head_dim: 128 };
/// let (keys, values) = kv_baseline("octopus@2", shape, 0).expect("a baseline of that name")?;
/// assert_eq!((keys.expected_bps(), values.name().as_str()), ((42.0 * 7.0 + 2.0 * 2.0 + 16.0) / 128.0, "octopus@2"));
/// assert!(kv_baseline("e8@2.25", shape, 0).is_none());
/// let error = kv_baseline("kivi@3", shape, 0).expect("a baseline of that name").unwrap_err();
/// assert_eq!(error.to_string(), "kv spec \"kivi@3\": expected kivi@b with b one of 2, 4");
/// # Ok::<(), gosset_kv::KvError>(())
/// ```
#[allow(clippy::type_complexity)]
pub fn kv_baseline(
    text: &str,
    shape: KvShape,
    seed: u64,
) -> Option<Result<(Arc<dyn KvCodec>, Arc<dyn KvCodec>), KvError>> {
    let (name, rate) = text.split_once('@').map_or((text, None), |(name, rate)| (name, Some(rate)));
    let family = FAMILIES.iter().find(|family| family.name == name)?;
    Some(family.pair(text, rate).and_then(|[key, value]| {
        let d = shape.head_dim;
        if !WIDTHS.contains(&d) || !d.is_multiple_of(2) {
            let allowed = "even widths from 8 to 512";
            return Err(KvError::HeadDim { head_dim: d, codec: text.to_owned(), allowed });
        }
        Ok((family.codec(Role::Key, key, d, seed), family.codec(Role::Value, value, d, seed)))
    }))
}

impl KvFamily {
    /// Rates of keys and of values in a text, each one of those that there are; 0 where there are none.
    fn pair(&self, text: &str, rate: Option<&str>) -> Result<[f64; 2], KvError> {
        let wrong = |reason| KvError::Spec { spec: text.to_owned(), reason };
        if self.rates.is_empty() {
            return if rate.is_none() { Ok([0.0; 2]) } else { Err(wrong(format!("expected {}", self.name))) };
        }
        let split = rate.and_then(|rate| rate.split_once('/')).filter(|_| self.kind != Kind::Qjl);
        let texts = split.map(|(key, value)| [key, value]).or(rate.map(|both| [both; 2]));
        let one = |text: &str| text.parse().ok().filter(|rate| self.rates.contains(rate));
        texts.and_then(|[key, value]| Some([one(key)?, one(value)?])).ok_or_else(|| {
            let rates = self.rates.iter().map(f64::to_string).collect::<Vec<_>>().join(", ");
            wrong(format!("expected {}@b with b one of {rates}", self.name))
        })
    }

    fn codec(&self, role: Role, rate: f64, d: usize, seed: u64) -> Arc<dyn KvCodec> {
        let bits = rate as u32;
        let stream = match role {
            Role::Key => 0,
            Role::Value => 1,
        };
        match (self.kind, role) {
            (Kind::TurboQuant, _) | (Kind::TurboQuantProduct, Role::Value) => {
                Arc::new(Fixed(TurboQuant::new(d, bits, seed, stream)))
            }
            (Kind::TurboQuantProduct, Role::Key) => Arc::new(Fixed(TurboQuantProduct::new(d, bits, seed, stream))),
            (Kind::Octopus { joint }, _) => Arc::new(Fixed(Octopus::new(d, bits, joint, seed, stream))),
            // Even widths have a whole number of rows at half a bit.
            (Kind::Qjl, Role::Key) => Arc::new(Fixed(QjlKeys::new(d, (rate * d as f64) as usize, seed, stream))),
            (Kind::Qjl, Role::Value) => {
                let name = format!("qjl-values@{QJL_VALUE_BITS}");
                Arc::new(Fixed(Groups::new(name, d, Rule::MinMax(QJL_VALUE_BITS))))
            }
            (Kind::Kivi, Role::Key) => Arc::new(KiviKeys::new(d, bits)),
            (Kind::Kivi, Role::Value) => Arc::new(Fixed(Groups::new(format!("kivi@{bits}"), d, Rule::MinMax(bits)))),
            (Kind::Blocks(rule), _) => Arc::new(Fixed(Groups::new(self.name.to_owned(), d, rule))),
        }
    }
}
