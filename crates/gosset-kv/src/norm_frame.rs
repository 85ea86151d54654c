//! Vectors of one size: less their mean, divided by their stored norm, rotated.

use crate::norm;
use crate::rotation::Rotator;
use crate::spec::RoleSpec;
use crate::{KvShape, KvSpec, NormKind, Place, Probe, Role};

/// Scales from which reconstructions might leave the range of f32.
const LARGE: f64 = 1e24;

/// How vectors of one role become values of unit variance, and back.
///
/// The vector x, less its mean if one is known, is multiplied by u = alpha·√d/n, n being its stored norm, and rotated by R. Back from v it
/// is (gain/u)·v in the stored frame, or (gain/u)·Rᵀv plus the mean in original coordinates.
#[derive(Debug)]
pub(crate) struct NormFrame {
    pub(crate) kind: NormKind,
    pub(crate) alpha: f64,
    pub(crate) gain: f64,
    /// Whether reconstructions are in original coordinates.
    original: bool,
    /// By layer.
    rotators: Vec<Rotator>,
    /// By layer and head; empty where no mean is taken off.
    means: Vec<Vec<f32>>,
}

impl NormFrame {
    /// The frame of one role. Layers have rotations of their own, and so have keys and values.
    pub(crate) fn new(spec: &KvSpec, role: Role, shape: KvShape, means: Vec<Vec<f32>>, alpha: f64, gain: f64) -> Self {
        let RoleSpec { norm: kind, rotation, .. } = *spec.role(role);
        let seed = |layer: usize| spec.seed.wrapping_add(2 * layer as u64 + u64::from(role == Role::Value));
        let rotators = (0..shape.layers).map(|layer| Rotator::new(rotation, shape.head_dim, seed(layer))).collect();
        let original = role == Role::Key && spec.keys_before_rope;
        Self { kind, alpha, gain, original, rotators, means }
    }

    /// Writes the scaled and rotated vector `x` to `v` and returns the field of its norm; `scratch` has as many elements.
    pub(crate) fn enter(&self, place: Place, head: usize, x: &[f32], v: &mut [f32], scratch: &mut [f32]) -> u16 {
        let mean = self.means.get(head);
        let centred = |i: usize| mean.map_or(x[i], |mean| x[i] - mean[i]);
        let squares = (0..x.len()).map(|i| f64::from(centred(i)) * f64::from(centred(i))).sum();
        let stored = norm::store(self.kind, squares);
        let scale = if stored.divisor == 0.0 { 0.0 } else { self.alpha * (x.len() as f64).sqrt() / stored.divisor };
        // Squares and scales of f32 may leave its range.
        v.iter_mut().enumerate().for_each(|(i, v)| *v = (f64::from(centred(i)) * scale) as f32);
        self.rotators[place.layer as usize].forward(v, scratch);
        stored.field
    }

    /// Takes quantized values, `[n, head_dim]`, to reconstructions, in place.
    pub(crate) fn leave(
        &self,
        place: Place,
        head: usize,
        fields: impl Iterator<Item = u16>,
        out: &mut [f32],
        d: usize,
    ) {
        if self.original {
            let (rotator, mut scratch) = (&self.rotators[place.layer as usize], vec![0.0; d]);
            out.chunks_exact_mut(d).for_each(|v| rotator.inverse(v, &mut scratch));
        }
        let mean = self.means.get(head).map(Vec::as_slice);
        let per_norm = self.gain / (self.alpha * (d as f64).sqrt());
        for (v, field) in out.chunks_exact_mut(d).zip(fields) {
            scale_and_shift(v, norm::value(self.kind, field) * per_norm, mean);
        }
    }

    /// The rotation of a layer that is left in reconstructions.
    pub(crate) fn rotation_of_frame(&self, place: Place) -> Option<&Rotator> {
        if self.original { None } else { self.rotators.get(place.layer as usize) }
    }
}

/// `v` times `scale` plus `mean`, within the range of f32.
pub(crate) fn scale_and_shift(v: &mut [f32], scale: f64, mean: Option<&[f32]>) {
    if scale < LARGE {
        let scale = scale as f32;
        v.iter_mut().for_each(|v| *v *= scale);
        if let Some(mean) = mean {
            v.iter_mut().zip(mean).for_each(|(v, m)| *v += m);
        }
        return;
    }
    for (i, v) in v.iter_mut().enumerate() {
        let exact = f64::from(*v) * scale + mean.map_or(0.0, |mean| f64::from(mean[i]));
        *v = exact.clamp(f32::MIN.into(), f32::MAX.into()) as f32;
    }
}

/// Means of all heads, layer after layer.
pub(crate) fn means(probe: &Probe) -> Vec<Vec<f32>> {
    let KvShape { layers, kv_heads, .. } = probe.shape();
    let heads = (0..layers).flat_map(|layer| (0..kv_heads).filter_map(move |head| probe.head(layer, head)));
    heads.map(|head| head.mean.iter().map(|&m| m as f32).collect()).collect()
}
