//! Scales per group of channels of one vector: q8_0, q4_0, and values as KIVI and QJL store them.

use half::f16;

use super::bits::{BitSink, BitSource};
use super::fixed::{FixedRate, Layout, half};

/// Channels of a group; the last one of a vector is shorter where 32 does not divide the width.
pub(super) const GROUP: usize = 32;

/// How a group becomes codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
    /// Signed 8-bit codes, the scale puts the largest magnitude on 127. GGUF's type of that name.
    Q8_0,
    /// 4-bit codes about 8, the scale puts the value of largest magnitude on -8. GGUF's type of that name.
    Q4_0,
    /// Codes of so many bits from the least value to the largest; both a scale and the least value are stored.
    MinMax(u32),
}

impl Rule {
    fn bits(self) -> u32 {
        match self {
            Self::Q8_0 => 8,
            Self::Q4_0 => 4,
            Self::MinMax(bits) => bits,
        }
    }

    fn scales_per_group(self) -> usize {
        match self {
            Self::Q8_0 | Self::Q4_0 => 1,
            Self::MinMax(_) => 2,
        }
    }
}

/// fp16 scale and least value of values whose codes have `bits` bits.
pub(super) fn min_max(values: impl Iterator<Item = f32>, bits: u32) -> [f16; 2] {
    let (least, most) = values.fold((f32::INFINITY, f32::NEG_INFINITY), |(a, b), v| (a.min(v), b.max(v)));
    let least = half(f64::from(least));
    // From the rounded end, so that the largest value keeps its place. What rounding makes negative is nothing.
    let span = (f64::from(most) - least.to_f64()).max(0.0);
    [half(span / f64::from((1u32 << bits) - 1)), least]
}

/// Code of `v` under [`min_max`].
pub(super) fn min_max_code(v: f32, [scale, least]: [f16; 2], bits: u32) -> u32 {
    nearest((v - least.to_f32()) / scale.to_f32(), 0, (1 << bits) - 1) as u32
}

/// Value of a code under [`min_max`].
pub(super) fn min_max_value(code: u32, [scale, least]: [f16; 2]) -> f32 {
    code as f32 * scale.to_f32() + least.to_f32()
}

/// The nearest integer of an interval; 0 for what a scale of zero gives.
fn nearest(v: f32, least: i32, most: i32) -> i32 {
    if v.is_nan() { 0 } else { v.round_ties_even().clamp(least as f32, most as f32) as i32 }
}

/// Vectors in groups of 32 channels with scales of their own. No rotation.
#[derive(Debug)]
pub(crate) struct Groups {
    name: String,
    rule: Rule,
    head_dim: usize,
}

impl Groups {
    pub(crate) fn new(name: String, head_dim: usize, rule: Rule) -> Self {
        Self { name, rule, head_dim }
    }
}

impl FixedRate for Groups {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn head_dim(&self) -> usize {
        self.head_dim
    }

    fn layout(&self) -> Layout {
        Layout {
            n_scales: self.head_dim.div_ceil(GROUP) * self.rule.scales_per_group(),
            code_bits: self.head_dim * self.rule.bits() as usize,
        }
    }

    fn encode(&self, x: &mut [f32], scales: &mut [f16], codes: &mut BitSink<'_>) {
        let groups = x.chunks(GROUP).zip(scales.chunks_exact_mut(self.rule.scales_per_group()));
        match self.rule {
            Rule::Q8_0 => {
                for (group, scale) in groups {
                    let most = group.iter().fold(0f32, |most, v| most.max(v.abs()));
                    scale[0] = half(f64::from(most) / 127.0);
                    for &v in group {
                        codes.put(nearest(v / scale[0].to_f32(), -127, 127) as u32 & 0xff, 8);
                    }
                }
            }
            Rule::Q4_0 => {
                for (group, scale) in groups {
                    let peak = group.iter().fold(0f32, |peak, &v| if v.abs() > peak.abs() { v } else { peak });
                    scale[0] = half(f64::from(peak) / -8.0);
                    for &v in group {
                        codes.put((nearest(v / scale[0].to_f32(), -8, 7) + 8) as u32, 4);
                    }
                }
            }
            Rule::MinMax(bits) => {
                for (group, scale) in groups {
                    let both = min_max(group.iter().copied(), bits);
                    scale.copy_from_slice(&both);
                    group.iter().for_each(|&v| codes.put(min_max_code(v, both, bits), bits));
                }
            }
        }
    }

    fn decode(&self, scales: &[f16], codes: &mut BitSource<'_>, out: &mut [f32]) {
        for (group, scale) in out.chunks_mut(GROUP).zip(scales.chunks_exact(self.rule.scales_per_group())) {
            match self.rule {
                Rule::Q8_0 => {
                    let scale = scale[0].to_f32();
                    group.iter_mut().for_each(|v| *v = scale * f32::from(codes.take(8) as u8 as i8));
                }
                Rule::Q4_0 => {
                    let scale = scale[0].to_f32();
                    group.iter_mut().for_each(|v| *v = scale * (codes.take(4) as f32 - 8.0));
                }
                Rule::MinMax(bits) => {
                    let both = [scale[0], scale[1]];
                    group.iter_mut().for_each(|v| *v = min_max_value(codes.take(bits), both));
                }
            }
        }
    }
}
