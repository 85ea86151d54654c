//! What a grid point stands for and what it costs.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::TrellisError;

/// Largest magnitude of a value in grid steps: half of what lets every integer below it, and its neighbours, be a [`f32`].
pub const MAX_VALUE: f32 = 4_194_304.0;

/// Reconstruction and cost of the points of one union, by index: point = 2 index + union.
#[derive(Debug, Clone, PartialEq)]
struct Union {
    /// What is added to the point where it stands for a value.
    offsets: Vec<f32>,
    /// Cost of the index, in squared grid steps.
    costs: Vec<f32>,
}

/// The class of an index, 2^`shift` neighbours being one class, and which of them it is, from 0.
///
/// The classes of the odd union lie symmetrically around its middle, -1/2; those of the even union are as near to symmetric as
/// their even number of members allows: class 0 is -2^(shift - 1) to 2^(shift - 1) - 1.
///
/// ```
/// use gosset_trellis::entropy_coded::index_class;
/// assert_eq!([-3, -2, -1, 0, 1, 2].map(|index| index_class(0, index, 1).0), [-1, -1, 0, 0, 1, 1]);
/// assert_eq!([-3, -2, -1, 0, 1, 2].map(|index| index_class(1, index, 1).0), [-2, -1, -1, 0, 0, 1]);
/// assert_eq!(index_class(0, 5, 2), (1, 3));
/// ```
#[inline(always)]
pub const fn index_class(union: u32, index: i32, shift: u32) -> (i32, u32) {
    let biased = index + class_bias(union, shift);
    (biased >> shift, biased as u32 & ((1 << shift) - 1))
}

/// The index of a class and the place within it: the inverse of [`index_class`].
#[inline(always)]
pub const fn class_index(union: u32, class: i32, place: u32, shift: u32) -> i32 {
    (class << shift).wrapping_add(place as i32).wrapping_sub(class_bias(union, shift))
}

#[inline(always)]
const fn class_bias(union: u32, shift: u32) -> i32 {
    if union & 1 == 0 { (1 << shift) >> 1 } else { 0 }
}

/// The tables of one union: the entry of an index is `((index + bias) >> shift)`, limited to -`reach` … `reach` - 1, plus
/// `reach`, which is below the length of both.
#[cfg(target_arch = "x86_64")]
pub(super) struct Lookup<'a> {
    pub shift: u32,
    pub bias: i32,
    pub reach: i32,
    pub offsets: &'a [f32],
    pub costs: &'a [f32],
}

/// Reconstruction values and costs of all grid points: what the Viterbi search and the decoder need besides the code.
///
/// A point y = 2 index + union stands for the value y + offset, in grid steps, and costs a number in squared grid steps:
/// lambda times its bits. Both are tables over classes of indices of each union, from -`reach` to `reach` - 1: the class of
/// an index is [`index_class`]; classes beyond have the offset and the cost of the last one on their side.
#[derive(Debug, Clone, PartialEq)]
pub struct Quantizer {
    shift: u32,
    reach: i32,
    unions: Box<[Union; 2]>,
}

impl Quantizer {
    /// A quantizer from the offsets and costs of both unions, each of the same even length 2 `reach`.
    ///
    /// Entry i of a table is for the indices of class i - `reach`. Costs are finite and not negative, offsets within -1
    /// to 1.
    ///
    /// # Errors
    /// [`TrellisError::Length`] for slices of different or odd lengths or empty ones, [`TrellisError::Parameter`] for a
    /// shift above 16 or entries out of range.
    pub fn new(shift: u32, offsets: [&[f32]; 2], costs: [&[f32]; 2]) -> Result<Self, TrellisError> {
        let len = offsets[0].len();
        for (slice, found) in [("offsets", offsets[1].len()), ("costs", costs[0].len()), ("costs", costs[1].len())] {
            if found != len {
                return Err(TrellisError::Length { slice, expected: len, found });
            }
        }
        if len == 0 || len % 2 == 1 || len > 1 << 16 {
            let expected = "an even number up to 65536";
            return Err(TrellisError::Parameter { name: "entries of a table", expected, found: len as u64 });
        }
        if shift > 16 {
            return Err(TrellisError::Parameter { name: "shift", expected: "0 to 16", found: u64::from(shift) });
        }
        let bad_offset = offsets.iter().flat_map(|o| o.iter()).find(|o| !(-1.0..=1.0).contains(*o));
        let bad_cost = costs.iter().flat_map(|c| c.iter()).find(|c| !(0.0..=1e6).contains(*c));
        for (name, expected, bad) in [("offset", "-1 to 1", bad_offset), ("cost", "0 to 10^6", bad_cost)] {
            if let Some(bad) = bad {
                return Err(TrellisError::Parameter { name, expected, found: u64::from(bad.to_bits()) });
            }
        }
        let union = |u: usize| Union { offsets: offsets[u].to_vec(), costs: costs[u].to_vec() };
        Ok(Self { shift, reach: (len / 2) as i32, unions: Box::new([union(0), union(1)]) })
    }

    /// The value, in grid steps, of the point with that index within a union.
    #[inline(always)]
    pub fn value(&self, union: u32, index: i32) -> f32 {
        let table = &self.unions[(union & 1) as usize];
        super::point(union, index) as f32 + table.offsets[self.entry(union, index)]
    }

    #[inline(always)]
    fn entry(&self, union: u32, index: i32) -> usize {
        let (class, _) = index_class(union, index, self.shift);
        (class.clamp(-self.reach, self.reach - 1) + self.reach) as usize
    }

    /// The tables of a union, for vector instructions.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn lookup(&self, union: u32) -> Lookup<'_> {
        let Union { offsets, costs } = &self.unions[(union & 1) as usize];
        let bias = class_bias(union, self.shift);
        Lookup { shift: self.shift, bias, reach: self.reach, offsets, costs }
    }

    /// Least cost of approximating `x` by a point of the subset (`union`, `z1`), and the index of that point.
    ///
    /// The cost is (x - value)^2 plus the cost of the point. Of a subset, whose points are 4 apart, the two around `x`
    /// are looked at (one farther out costs 16 squared steps more, which no rate saves); the lower one wins ties.
    #[inline(always)]
    pub(super) fn best(&self, x: f32, union: u32, z1: u32) -> (f32, i32) {
        let table = &self.unions[(union & 1) as usize];
        let place = (x - (2 * z1 + union) as f32) * 0.25;
        let truncated = place as i32;
        let floor = truncated - i32::from(truncated as f32 > place);
        let cost_of = |index: i32| {
            let entry = self.entry(union, index);
            let error = x - (super::point(union, index) as f32 + table.offsets[entry]);
            error * error + table.costs[entry]
        };
        let lower = 2 * floor + z1 as i32;
        let (a, b) = (cost_of(lower), cost_of(lower + 2));
        if b < a { (b, lower + 2) } else { (a, lower) }
    }
}
