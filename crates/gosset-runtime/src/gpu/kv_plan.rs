//! What compressed caches on a device are made of, once for all conversations.

use std::sync::{Arc, Mutex, PoisonError};

use gosset_cuda::Gpu;
use gosset_cuda::launch::kv::{KvShiftModel, KvShiftShape, KvShiftTables, PAGE};
use gosset_kv::{KvShape, KvSpec, Place, Policy, Probe, Role, ShiftFrame, ShiftKv, ShiftPlan, ShiftRotary};
use rayon::prelude::*;

use super::ledger::Ledger;
use crate::error::RuntimeError;
use crate::kv::kv_device_gap;

/// Rows of a prompt that go through the model at once: each has its place in the ring of exact positions.
pub(super) const PROMPT_ROWS: usize = 128;

/// Positions that angles are there for at least.
const LEAST_ANGLES: usize = 32;

/// The codecs of a cache and its policy.
#[derive(Debug)]
pub(crate) struct KvPlan {
    keys: ShiftKv,
    values: ShiftKv,
    policy: Policy,
    shape: KvShape,
    heads: usize,
    /// Tables for the room that was asked for last: conversations that grow alike share them.
    tables: Mutex<Option<Arc<KvShiftModel>>>,
}

impl KvPlan {
    /// For a model with these many query heads.
    pub(super) fn new(
        spec: &KvSpec,
        shape: KvShape,
        heads: usize,
        probe: Option<&Probe>,
        device: &str,
    ) -> Result<Self, RuntimeError> {
        if let Some(reason) = kv_device_gap(spec, Some(shape.head_dim)) {
            return Err(RuntimeError::KvDevice { device: device.to_owned(), reason });
        }
        let codec = |role| ShiftKv::of(spec, role, shape, probe);
        let (keys, values) = (codec(Role::Key)?, codec(Role::Value)?);
        let place = Place { layer: 0, role: Role::Value, head: 0 };
        if values.plan(place)?.bits.contains(&0) {
            let found = spec.value.rate;
            let reason = format!("expected 2 bits for each pair of values and one byte beside them, found v@{found}");
            return Err(RuntimeError::KvDevice { device: device.to_owned(), reason });
        }
        Ok(Self { keys, values, policy: spec.policy, shape, heads, tables: Mutex::new(None) })
    }

    /// Sizes of keys and values.
    pub(super) fn shape(&self) -> KvShape {
        self.shape
    }

    /// The account of a cache without positions.
    pub(super) fn ledger(&self) -> Ledger {
        Ledger::new(self.policy.sinks, self.policy.window, PROMPT_ROWS)
    }

    /// Bytes of the string of a vector, of keys and of values; each has a byte for its scale beside it.
    pub(super) fn string_bytes(&self) -> [usize; 2] {
        [&self.keys, &self.values].map(|codec| codec.string_bits() / 8)
    }

    fn codec(&self, role: Role) -> &ShiftKv {
        match role {
            Role::Key => &self.keys,
            Role::Value => &self.values,
        }
    }

    fn plan(&self, layer: usize, role: Role, head: usize) -> Result<&ShiftPlan, RuntimeError> {
        let place = Place { layer: layer as u32, role, head: head as u32 };
        Ok(self.codec(role).plan(place)?)
    }

    /// The rows and the page that the codec of the processor makes of the vectors of a head.
    #[cfg(test)]
    pub(super) fn page(&self, place: Place, first: u64, vectors: &[f32]) -> Vec<u8> {
        use gosset_kv::KvCodec;

        let codec = self.codec(place.role);
        let mut rows = vec![0; vectors.len() / self.shape.head_dim * codec.row_bytes()];
        codec.quantize(place, first, vectors, &mut rows).unwrap();
        let mut page = Vec::new();
        codec.pack(place, &rows, &mut page).unwrap();
        page
    }

    /// What a device holds that has room for `capacity` positions.
    fn device_shape(&self, capacity: usize) -> KvShiftShape {
        let KvShape { layers, kv_heads, head_dim } = self.shape;
        let Policy { sinks, window, .. } = self.policy;
        KvShiftShape {
            layers,
            heads: self.heads,
            kv_heads,
            head_dim,
            state_bits: self.keys.state_bits(),
            key_bits: self.keys.string_bits(),
            value_bits: self.values.string_bits(),
            sinks,
            window,
            tail: self.ledger().ring(),
            pages: capacity.saturating_sub(sinks + window).div_ceil(PAGE).max(1),
            interleaved: false,
        }
    }

    /// Tables for that many positions.
    pub(super) fn tables(&self, gpu: &Gpu, capacity: usize) -> Result<Arc<KvShiftModel>, RuntimeError> {
        let shape = self.device_shape(capacity);
        let mut known = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tables) = known.as_ref().filter(|tables| *tables.shape() == shape) {
            return Ok(Arc::clone(tables));
        }
        let tables = Arc::new(self.upload(gpu, shape)?);
        *known = Some(Arc::clone(&tables));
        Ok(tables)
    }

    fn upload(&self, gpu: &Gpu, shape: KvShiftShape) -> Result<KvShiftModel, RuntimeError> {
        let KvShape { layers, kv_heads, head_dim } = self.shape;
        let (mut bits, mut weights, mut shares, mut means) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (mut scales, mut targets, mut factors) = (Vec::new(), Vec::new(), Vec::new());
        let mut angles = None;
        for layer in 0..layers {
            for head in 0..kv_heads {
                let plan = self.plan(layer, Role::Key, head)?;
                let ShiftFrame::Pairs(rotary) = &plan.frame else { return Err(self.unfit("keys in another frame")) };
                angles.get_or_insert(rotary);
                bits.extend_from_slice(&plan.bits);
                weights.extend_from_slice(&plan.weights);
                scales.extend(by_pair(&plan.scales));
                targets.extend(by_pair(&plan.to_target));
                factors.extend(by_pair(&plan.factors));
                shares.push(plan.share);
                means.extend_from_slice(plan.mean.as_deref().unwrap_or(&vec![0.0; head_dim]));
            }
        }
        let Some(angles) = angles else { return Err(self.unfit("a model without heads")) };
        let rotations = rotations(angles, shape.capacity().max(LEAST_ANGLES));
        let mut signs = Vec::new();
        for layer in 0..layers {
            let ShiftFrame::Rotation(rotation) = &self.plan(layer, Role::Value, 0)?.frame else {
                return Err(self.unfit("values in another frame"));
            };
            let of_layer = rotation.signs(head_dim).ok_or_else(|| self.unfit("values under another rotation"))?;
            signs.extend(of_layer.chunks(32).map(|signs| {
                signs.iter().enumerate().fold(0u32, |word, (i, sign)| word | u32::from(*sign < 0.0) << i)
            }));
        }
        let values = self.plan(0, Role::Value, 0)?;
        let (_, inverses) = self.values.scales().ok_or_else(|| self.unfit("values without a scale"))?;
        let tables = KvShiftTables {
            table: self.keys.table(),
            multiplier: self.keys.multiplier(),
            inverses,
            key_bits: &bits,
            key_scales: &scales,
            key_targets: &targets,
            key_weights: &weights,
            key_factors: &factors,
            key_shares: &shares,
            key_means: Some(&means),
            rotations: &rotations,
            value_bits: &values.bits,
            value_targets: &by_pair(&values.to_target),
            value_factors: &by_pair(&values.factors),
            value_share: values.share,
            value_signs: &signs,
        };
        Ok(KvShiftModel::new(gpu, shape, &tables)?)
    }

    /// The specification was looked at before, so this is not expected.
    fn unfit(&self, what: &str) -> RuntimeError {
        RuntimeError::KvDevice { device: "a CUDA device".to_owned(), reason: format!("found {what}") }
    }
}

/// The first of every two equal numbers.
fn by_pair(by_coordinate: &[f32]) -> Vec<f32> {
    by_coordinate.iter().step_by(2).copied().collect()
}

/// Cosines and sines of positions and pairs, `[positions, head_dim / 2, 2]`.
fn rotations(angles: &ShiftRotary, positions: usize) -> Vec<f32> {
    (0..positions as u64).into_par_iter().flat_map_iter(|p| angles.units(p).into_iter().flatten()).collect()
}
