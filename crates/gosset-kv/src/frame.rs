//! The frame `probe`: axes in which keys of one head are independent and errors count alike.
//!
//! An error e of a key changes a score by ⟨q, e⟩, where q is the query turned back by the rotary embedding. Over positions, the square of
//! that is eᵀ A² e on average, A being diagonal with the root mean square of the query in each pair that rotates together. With C the
//! covariance of keys before the rotary embedding, the axes are the eigenvectors of A·C·A: in the frame z = Eᵀ·A·(k − m) coordinates
//! are uncorrelated and a squared error costs the same in each. One step then serves all coordinates of the heads of a layer: those with
//! much variance get more bits, those below the step none. The step is the one at which keys of these variances take the asked bits:
//! Gaussian ones first, then corrected by what some keys of the probe take.

use std::num::NonZeroUsize;

use gosset_codec::points::PointCode;
use gosset_lattice::{BitStrip, LatticeKind, LatticeVisitor};

use crate::coder::PageFormat;
use crate::curve::Curve;
use crate::eigen::principal_axes;
use crate::matrix::{ROWS, apply};
use crate::norm_frame::scale_and_shift;
use crate::probe::HeadProbe;
use crate::spec::{Coder, DEFAULT_PAGE};
use crate::{KvError, Probe};

/// Least weight of a pair of coordinates, relative to the largest: queries may never look at some of them.
const LEAST_WEIGHT: f64 = 1e-4;
/// Steps of the search for a step, each of which halves its logarithm's bracket.
const SEARCH_STEPS: usize = 60;
/// Times the step is corrected by what sampled keys take.
const CORRECTIONS: usize = 3;
/// Sampled keys of a layer below which they say too little.
const LEAST_SAMPLE: usize = 256;
/// Largest part of the bits by which they are corrected.
const MOST_EXCESS: f64 = 0.4;
/// Octaves on either side over which the slope of bits is taken.
const SLOPE_REACH: f64 = 0.125;
/// Largest share of the bits that is set aside because a probe was short.
const MOST_SAMPLING: f64 = 0.1;
/// Most halvings of a vector.
const MAX_SHIFT: u16 = 255;

/// The transform of one head, with the step in it.
#[derive(Debug, Clone)]
pub(crate) struct Axes {
    mean: Vec<f32>,
    /// Row j: what coordinate j of a key adds to each coordinate of the frame.
    to_frame: Vec<f32>,
    /// Row i: what coordinate i of the frame adds to each coordinate of a key.
    from_frame: Vec<f32>,
    /// Tables of each block of coordinates.
    pub(crate) codes: Vec<PointCode>,
    /// Largest standard deviation of a coordinate, in steps.
    pub(crate) largest_sigma: f64,
}

impl Axes {
    /// Writes the coordinates of key `x` in the frame to `v`, up to `max` in magnitude, and returns the number of halvings that takes;
    /// `scratch` has as many elements.
    pub(crate) fn enter(&self, x: &[f32], v: &mut [f32], scratch: &mut [f32], max: f32) -> u16 {
        let d = x.len();
        scratch.iter_mut().zip(x.iter().zip(&self.mean)).for_each(|(s, (x, m))| *s = x - m);
        let mut shift = 0;
        apply(&self.to_frame, d, scratch, v);
        if v.iter().any(|v| !v.is_finite()) {
            // Far beyond any key: 2^-64 leaves room for all sums.
            shift = 64;
            let small = |(x, m): (&f32, &f32)| ((f64::from(*x) - f64::from(*m)) / 18_446_744_073_709_551_616.0) as f32;
            scratch.iter_mut().zip(x.iter().zip(&self.mean)).for_each(|(s, pair)| *s = small(pair));
            apply(&self.to_frame, d, scratch, v);
        }
        while shift < MAX_SHIFT && v.iter().any(|v| v.abs() > max) {
            v.iter_mut().for_each(|v| *v *= 0.5);
            shift += 1;
        }
        shift
    }

    /// Takes quantized coordinates, `[n, head_dim]`, to keys, in place.
    pub(crate) fn leave(&self, shifts: impl Iterator<Item = u16>, out: &mut [f32]) {
        let d = self.mean.len();
        let mut scratch = vec![0.0; ROWS * d];
        for keys in out.chunks_mut(ROWS * d) {
            let scratch = &mut scratch[..keys.len()];
            scratch.copy_from_slice(keys);
            apply(&self.from_frame, d, scratch, keys);
        }
        for (key, shift) in out.chunks_exact_mut(d).zip(shifts) {
            let scale = if shift == 0 { 1.0 } else { libm::exp2(f64::from(shift.min(MAX_SHIFT))) };
            scale_and_shift(key, scale, Some(&self.mean));
        }
    }
}

/// A head before its step is known.
pub(crate) struct Shape {
    pub(crate) mean: Vec<f32>,
    /// Of coordinates: how much queries look at them.
    pub(crate) weights: Vec<f64>,
    /// Eigenvectors as rows.
    pub(crate) axes: Vec<f64>,
    /// Standard deviations of blocks of coordinates.
    pub(crate) sigmas: Vec<f64>,
    largest: f64,
}

/// Octaves by which the coarsest step lies above the largest standard deviation: nothing is coded there.
const COARSEST: f64 = 8.0;

/// The transforms of all heads, layer after layer, for `bits` per scalar in each layer.
pub(crate) fn axes(
    probe: &Probe,
    lattice: LatticeKind,
    curve: Curve,
    bits: f64,
    gain: bool,
    dithered: bool,
) -> Result<Vec<Axes>, KvError> {
    let shape = probe.shape();
    if !(bits.is_finite() && bits > 0.0) {
        let reason = "the ends of pages alone take more: expected a higher rate or longer pages".to_owned();
        return Err(KvError::Spec { spec: "frame=probe".to_owned(), reason });
    }
    // Layers do not depend on each other: threads change nothing but the time, which is some milliseconds for each head.
    let threads = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let layers: Vec<usize> = (0..shape.layers).collect();
    let part = |layers: &[usize]| -> Option<Vec<Vec<Axes>>> {
        layers.iter().map(|&layer| axes_of_layer(probe, layer, lattice, curve, bits, gain, dithered)).collect()
    };
    let part = &part;
    let all: Option<Vec<Vec<Vec<Axes>>>> = std::thread::scope(|scope| {
        let parts: Vec<_> = layers
            .chunks(shape.layers.div_ceil(threads).max(1))
            .map(|layers| scope.spawn(move || part(layers)))
            .collect();
        parts.into_iter().map(|part| part.join().unwrap_or_else(|e| std::panic::resume_unwind(e))).collect()
    });
    let Some(all) = all else {
        let reason = format!(
            "{bits:.2} bits for codes are fewer than they need at any step: expected a higher rate or longer pages"
        );
        return Err(KvError::Spec { spec: "frame=probe".to_owned(), reason });
    };
    let all: Vec<Axes> = all.into_iter().flatten().flatten().collect();
    if let Some(i) = all.iter().position(|axes| axes.to_frame.iter().chain(&axes.from_frame).any(|v| !v.is_finite())) {
        let reason = format!("keys of layer {} are out of range", i / shape.kv_heads);
        return Err(KvError::Spec { spec: "frame=probe".to_owned(), reason });
    }
    Ok(all)
}

/// The transforms of the heads of one layer, which share a step; `None` if no step takes so few bits.
fn axes_of_layer(
    probe: &Probe,
    layer: usize,
    lattice: LatticeKind,
    curve: Curve,
    bits: f64,
    gain: bool,
    dithered: bool,
) -> Option<Vec<Axes>> {
    let (d, dim) = (probe.shape().head_dim, lattice.dim());
    let heads: Vec<Shape> = (0..probe.shape().kv_heads)
        .filter_map(|head| probe.head(layer, head))
        .map(|head| Shape::new(head, probe, dim))
        .collect();
    let payload = |log2_step: f64| -> f64 {
        let step = libm::exp2(log2_step);
        let blocks = heads.iter().flat_map(|head| &head.sigmas);
        blocks.map(|&sigma| dim as f64 * curve.bits(sigma / step)).sum::<f64>() / (heads.len() * d) as f64
    };
    // Axes and variances of n tokens fit those better than others: Gaussian keys of d elements take (d + 1)/(2n) nats per coordinate more,
    // by as much as its bits follow its variance.
    let sampling = (d as f64 + 1.0) / (2.0 * probe.tokens() as f64) * std::f64::consts::LOG2_E;
    let total = |log2_step: f64| {
        let slope = (payload(log2_step - SLOPE_REACH) - payload(log2_step + SLOPE_REACH)) / (2.0 * SLOPE_REACH);
        payload(log2_step) + (sampling * slope).min(MOST_SAMPLING * bits)
    };
    let largest = heads.iter().map(|head| head.largest).fold(0.0, f64::max);
    let top = libm::log2(largest.max(1e-30));
    if total(top + COARSEST) > bits {
        return None;
    }
    let step_of = |bits: f64| {
        // From a step at which nothing is coded to one far below what f32 resolves.
        let (mut fine, mut coarse) = (top - 24.0, top + COARSEST);
        for _ in 0..SEARCH_STEPS {
            let middle = 0.5 * (fine + coarse);
            if total(middle) > bits { fine = middle } else { coarse = middle }
        }
        coarse
    };
    let finish = |log2_step: f64| -> Vec<Axes> {
        heads.iter().map(|head| head.finish(lattice, curve, libm::exp2(log2_step), gain)).collect()
    };
    let mut log2_step = step_of(bits);
    let samples: Vec<&[f32]> =
        (0..heads.len()).filter_map(|head| probe.head(layer, head)).map(|head| &head.sample[..]).collect();
    let n: usize = samples.iter().map(|sample| sample.len()).sum();
    if dithered || n < LEAST_SAMPLE * d {
        return Some(finish(log2_step));
    }
    for _ in 0..CORRECTIONS {
        // Keys are not Gaussian, and variances of a few thousand tokens not those of others: what tables charge for keys that are not part
        // of the statistics tells how much less is to be asked for.
        let axes = finish(log2_step);
        let codes: u64 =
            axes.iter().zip(&samples).map(|(axes, sample)| lattice.dispatch(CodesOf { axes, sample })).sum();
        let excess = codes as f64 / n as f64 - total(log2_step);
        log2_step = step_of(bits - excess.clamp(-MOST_EXCESS * bits, MOST_EXCESS * bits));
    }
    Some(finish(log2_step))
}

/// Bits of the codes of keys in pages.
struct CodesOf<'a> {
    axes: &'a Axes,
    sample: &'a [f32],
}

impl LatticeVisitor for CodesOf<'_> {
    type Out = u64;

    fn visit<const N: usize, L: BitStrip<N>>(self) -> u64 {
        let Self { axes, sample } = self;
        let d = axes.mean.len();
        let (mut v, mut scratch) = (vec![0.0; d], vec![0.0; d]);
        let format = PageFormat { coder: Coder::Ans, norm: None, codes: &axes.codes, blocks: d / N };
        let mut codes = 0;
        for page in sample.chunks(DEFAULT_PAGE * d) {
            let (mut fields, mut points) = (Vec::new(), Vec::new());
            for x in page.chunks_exact(d) {
                fields.push(axes.enter(x, &mut v, &mut scratch, i16::MAX as f32 - 8.0));
                points.extend(v.as_chunks::<N>().0.iter().map(L::nearest_point));
            }
            codes += format.pack::<N, L>(&fields, &points, &mut Vec::new()).codes;
        }
        codes
    }
}

/// How much queries look at each coordinate of the keys of a head.
pub(crate) fn query_weights(head: &HeadProbe, probe: &Probe) -> Vec<f64> {
    let d = head.mean.len();
    let largest = head.query_energy.iter().fold(0.0f64, |m, &e| m.max(e));
    let weight = |i: usize| {
        let energy = head.query_energy[probe.pairs().pair_of(i, d)];
        if largest > 0.0 { energy.sqrt().max(LEAST_WEIGHT * largest.sqrt()) } else { 1.0 }
    };
    (0..d).map(weight).collect()
}

impl Shape {
    pub(crate) fn new(head: &HeadProbe, probe: &Probe, dim: usize) -> Self {
        let d = head.mean.len();
        let weights = query_weights(head, probe);
        let weighted = (0..d * d).map(|ij| weights[ij / d] * head.covariance[ij] * weights[ij % d]).collect();
        let (variances, axes) = principal_axes(weighted, d);
        let largest = variances.first().copied().unwrap_or(0.0).max(0.0).sqrt();
        // Below what rounding lets us know, variances are taken as that.
        let floor = (largest * 1e-7).powi(2).max(1e-60);
        let sigmas = variances
            .chunks(dim)
            .map(|block| (block.iter().map(|v| v.max(floor)).sum::<f64>() / dim as f64).sqrt())
            .collect();
        let mean = head.mean.iter().map(|&m| m as f32).collect();
        Self { mean, weights, axes, sigmas, largest }
    }

    fn finish(&self, lattice: LatticeKind, curve: Curve, step: f64, gain: bool) -> Axes {
        let d = self.weights.len();
        let gains: Vec<f64> =
            self.sigmas.iter().map(|sigma| if gain { curve.gain(sigma / step) } else { 1.0 }).collect();
        let to_frame =
            (0..d * d).map(|ji| (self.axes[ji % d * d + ji / d] * self.weights[ji / d] / step) as f32).collect();
        let from_frame = (0..d * d)
            .map(|ij| (gains[ij / d / lattice.dim()] * step * self.axes[ij] / self.weights[ij % d]) as f32)
            .collect();
        let codes = self.sigmas.iter().map(|sigma| PointCode::for_alpha(lattice, (sigma / step) as f32)).collect();
        Axes { mean: self.mean.clone(), to_frame, from_frame, codes, largest_sigma: self.largest / step }
    }
}
