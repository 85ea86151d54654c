//! Keys and values as strings of the fixed-width bit-shift trellis.
//!
//! As with norms in [`crate::LatticeKv`], or in the frame `probe`, but every vector takes the same bits: all of a page lies where a
//! multiplication says, and a row is read with a shift, a mask and a look-up for each pair of coordinates, which is what a GPU is good at. The
//! format and the order of operations are those of [`crate::shift`], to the bit.
//!
//! What all vectors take alike must do for each of them: a scale of its own makes up for its size, but keys of the first token lie tens of
//! deviations out in a few directions, and attention looks there all the time. Positions like these belong among the sinks: `sinks=4`.
//!
//! In the frame `probe` each head's axes (see [`crate::frame`]) have their bits by their variances, once and for all keys.

use std::cell::RefCell;
use std::sync::Arc;

use gosset_transform::Backend;

use crate::float_kv::{check_len, check_vectors};
use crate::frame::{Shape, query_weights};
use crate::norm_frame::means;
use crate::place::{Places, checked_probe};
use crate::rotary::Rotary;
use crate::rotation::Rotator;
use crate::shift::{
    Buffers, GAINS, INVERSES, MAX_STEP_BITS, PageFormat, PageView, Reader, SCALES, ShiftFrame, ShiftPlan, ShiftRotary,
    ShiftRotation, Strings, Trellis, even, least_bits, waterfill,
};
use crate::spec::{Code, Frame, RoleSpec};
use crate::{KvCodec, KvError, KvShape, KvSpec, PageBits, Place, Probe, Role};

/// Bits by which the width of a vector grows: pages stay a multiple of 16 bytes with any multiple of 8 vectors.
const WIDTH_BITS: usize = 16;
/// Largest element of a matrix of a frame: products with coordinates within 2^40, and sums of them, stay within f32.
const MOST_MATRIX: f32 = 1e22;
/// Least standard deviation of a coordinate: those that a probe saw at rest are not amplified without end.
const LEAST_SIGMA: f64 = 1e-20;

thread_local! {
    static BUFFERS: RefCell<Buffers> = RefCell::default();
}

/// A codec of keys or values by strings of the bit-shift trellis.
///
/// Made by [`KvSpec::codecs`]. Any even width is possible that leaves enough bits.
#[derive(Debug)]
pub struct ShiftKv {
    places: Places,
    spec: RoleSpec,
    trellis: &'static Trellis,
    format: PageFormat,
    /// Whether reconstructions are in original coordinates.
    original: bool,
    role: Role,
    /// By layer and head; a single one of each layer where heads do not differ.
    plans: Vec<ShiftPlan>,
}

impl ShiftKv {
    /// The codec of one role of a specification, for whoever moves its pages to another machine.
    ///
    /// # Errors
    ///
    /// Those of [`KvSpec::codecs`], and [`KvError::Spec`] if the code of that role is another.
    pub fn of(spec: &KvSpec, role: Role, shape: KvShape, probe: Option<&Probe>) -> Result<Self, KvError> {
        match spec.role(role).code {
            Code::Shift(bits) => Self::new(bits, spec, role, shape, probe),
            _ => {
                let reason = "expected shift-10 or shift-12".to_owned();
                Err(KvError::Spec { spec: spec.role(role).code_and_rate(), reason })
            }
        }
    }

    /// The codec of one role of a specification whose code for it is the shift trellis with states of that many bits.
    pub(crate) fn new(
        state_bits: u32,
        spec: &KvSpec,
        role: Role,
        shape: KvShape,
        probe: Option<&Probe>,
    ) -> Result<Self, KvError> {
        let own = *spec.role(role);
        let d = shape.head_dim;
        if d == 0 || d % 2 == 1 {
            let codec = own.code.name().to_owned();
            return Err(KvError::HeadDim { head_dim: d, codec, allowed: "even widths fit" });
        }
        let trellis = Trellis::get(state_bits)?;
        let field = usize::from(own.scale);
        // Rates that are tenths in binary must not lose their last bits.
        let bits = (own.rate * d as f64 + 1e-6) as usize / WIDTH_BITS * WIDTH_BITS;
        let range = (least_bits(state_bits), MAX_STEP_BITS as usize * d / 2);
        let string = bits.saturating_sub(8 * field);
        if !(range.0..=range.1).contains(&string) {
            let bps = |string: usize| (string + 8 * field) as f64 / d as f64;
            let (least, most) = (bps(range.0).max(WIDTH_BITS as f64 / d as f64), bps(range.1));
            let reason =
                format!("{string} bits for the string of a vector: expected {least:.3} to {most:.3} bits per scalar");
            return Err(KvError::Spec { spec: own.code_and_rate(), reason });
        }
        let plans = match own.frame {
            Frame::Probe => probed_plans(checked_probe(own.frame, shape, probe)?, string)?,
            Frame::Pairs => paired_plans(checked_probe(own.frame, shape, probe)?, string)?,
            _ => {
                let means = match own.frame {
                    Frame::Mean => means(checked_probe(own.frame, shape, probe)?),
                    _ => Vec::new(),
                };
                rotated_plans(spec, role, shape, &means, string)
            }
        };
        let original = own.frame == Frame::Pairs || role == Role::Key && spec.keys_before_rope;
        let format = PageFormat { field, string: string / 8 };
        Ok(Self { places: Places::new(shape)?, spec: own, trellis, format, original, role, plans })
    }

    /// Bits of a state, L.
    pub fn state_bits(&self) -> u32 {
        self.trellis.state_bits()
    }

    /// A · 2^(17−L): what a state is multiplied by for its place in the table.
    pub fn multiplier(&self) -> u32 {
        self.trellis.multiplier()
    }

    /// Words of two binary16 numbers, first coordinate lower.
    pub fn table(&self) -> &'static [u32; 1024] {
        Trellis::table()
    }

    /// What scales stand for, and their inverses, by byte; `None` if vectors have no scale.
    pub fn scales(&self) -> Option<(&'static [f32; 256], &'static [f32; 256])> {
        (self.format.field > 0).then(|| (&*SCALES, &*INVERSES))
    }

    /// Bits of a string, B.
    pub fn string_bits(&self) -> usize {
        8 * self.format.string
    }

    /// What codes the vectors of a head, and reads them.
    ///
    /// # Errors
    ///
    /// [`KvError::Length`] for a layer or head that the codec does not have.
    pub fn plan(&self, place: Place) -> Result<&ShiftPlan, KvError> {
        let head = self.places.index(place)?;
        let KvShape { layers, kv_heads, .. } = self.places.shape();
        Ok(&self.plans[head * self.plans.len() / (layers * kv_heads)])
    }

    /// [`KvCodec::quantize`] with the instructions of a backend, which change no bit.
    fn quantize_with(
        &self,
        backend: Backend,
        place: Place,
        first: u64,
        x: &[f32],
        rows: &mut [u8],
    ) -> Result<(), KvError> {
        let plan = self.plan(place)?;
        check_vectors(self, place, first, x, rows)?;
        BUFFERS.with_borrow_mut(|buffers| {
            let rows = rows.chunks_exact_mut(self.format.row_bytes());
            for (position, (x, row)) in (first..).zip(x.chunks_exact(self.head_dim()).zip(rows)) {
                plan.write(backend, self.trellis, self.format, position, x, row, buffers);
            }
        });
        Ok(())
    }

    /// Takes scaled points to the stored frame.
    fn finish(&self, plan: &ShiftPlan, first: u64, out: &mut [f32]) {
        if self.original {
            plan.leave(first, out);
        }
    }

    /// The plan of a place whose stored frame is not that of original coordinates.
    fn framed(&self, place: Place, role: Role) -> Option<(&ShiftPlan, &Rotator)> {
        if self.original || role != self.role {
            return None;
        }
        let plan = self.plan(place).ok()?;
        match &plan.frame {
            ShiftFrame::Rotation(rotation) => Some((plan, &rotation.0)),
            ShiftFrame::Matrix { .. } | ShiftFrame::Pairs(_) => None,
        }
    }
}

/// Plans of vectors with norms: one for each layer, or for each head where means differ.
fn rotated_plans(spec: &KvSpec, role: Role, shape: KvShape, means: &[Vec<f32>], string: usize) -> Vec<ShiftPlan> {
    let KvShape { layers, kv_heads, head_dim: d } = shape;
    let bits = even(d / 2, string);
    (0..layers)
        .flat_map(|layer| {
            let seed = spec.seed.wrapping_add(2 * layer as u64 + u64::from(role == Role::Value));
            let rotation = ShiftRotation(Arc::new(Rotator::new(spec.role(role).rotation, d, seed)));
            let bits = &bits;
            let heads = if means.is_empty() { 1 } else { kv_heads };
            (0..heads).map(move |head| {
                let mean = means.get(layer * kv_heads + head).cloned();
                ShiftPlan::new(bits.clone(), &vec![1.0; d / 2], mean, ShiftFrame::Rotation(rotation.clone()))
            })
        })
        .collect()
}

/// Plans in the frame `probe`, of each head.
fn probed_plans(probe: &Probe, string: usize) -> Result<Vec<ShiftPlan>, KvError> {
    let KvShape { layers, kv_heads, head_dim: d } = probe.shape();
    let heads = (0..layers).flat_map(|layer| (0..kv_heads).filter_map(move |head| probe.head(layer, head)));
    heads
        .enumerate()
        .map(|(i, head)| {
            let Shape { mean, weights, axes, mut sigmas, .. } = Shape::new(head, probe, 2);
            sigmas.iter_mut().for_each(|sigma| *sigma = sigma.max(LEAST_SIGMA));
            let bits = waterfill(&sigmas, string);
            let coded = |i: usize| bits[i / 2] > 0;
            let to_frame: Vec<f32> = (0..d * d)
                .map(|ji| (ji / d, ji % d))
                .map(|(j, i)| if coded(i) { (axes[i * d + j] * weights[j] / sigmas[i / 2]) as f32 } else { 0.0 })
                .collect();
            let scale = |i: usize| sigmas[i / 2] * f64::from(GAINS[usize::from(bits[i / 2])]);
            let from_frame: Vec<f32> = (0..d * d)
                .map(|ij| (ij / d, ij % d))
                .map(|(i, j)| if coded(i) { (scale(i) * axes[i * d + j] / weights[j]) as f32 } else { 0.0 })
                .collect();
            let fits = |v: &f32| v.abs() <= MOST_MATRIX;
            if !to_frame.iter().chain(&from_frame).chain(&mean).all(fits) {
                let reason = format!("keys of layer {} are out of range", i / kv_heads);
                return Err(KvError::Spec { spec: "frame=probe".to_owned(), reason });
            }
            let costs: Vec<f64> = (0..d / 2).map(|pair| scale(2 * pair).powi(2)).collect();
            Ok(ShiftPlan::new(bits, &costs, Some(mean), ShiftFrame::Matrix { to_frame, from_frame }))
        })
        .collect()
}

/// Plans in the frame `pairs`, of each head: bits by the variances of rotary pairs in the metric of queries.
fn paired_plans(probe: &Probe, string: usize) -> Result<Vec<ShiftPlan>, KvError> {
    let KvShape { layers, kv_heads, head_dim: d } = probe.shape();
    let refused = |reason: String| KvError::Spec { spec: "frame=pairs".to_owned(), reason };
    let Some(turns) = probe.turns() else {
        return Err(refused(
            "the probe does not know how positions turn keys: expected one with ProbeBuilder::turns".into(),
        ));
    };
    let rotary = ShiftRotary(Arc::new(Rotary::new(turns, probe.pairs())));
    let heads = (0..layers).flat_map(|layer| (0..kv_heads).filter_map(move |head| probe.head(layer, head)));
    heads
        .enumerate()
        .map(|(i, head)| {
            let weights = query_weights(head, probe);
            let (mut sigmas, mut shares) = (Vec::new(), Vec::new());
            for t in 0..d / 2 {
                let variance = rotary.coordinates(t).map(|i| head.covariance[i * d + i]).iter().sum::<f64>() / 2.0;
                sigmas.push(variance.sqrt().max(LEAST_SIGMA));
                shares.push(sigmas[t] * weights[rotary.coordinates(t)[0]]);
            }
            let bits = waterfill(&shares, string);
            let mean: Vec<f32> = head.mean.iter().map(|&m| m as f32).collect();
            if !mean.iter().all(|m| m.abs() <= MOST_MATRIX) || !sigmas.iter().all(|s| *s <= f64::from(MOST_MATRIX)) {
                return Err(refused(format!("keys of layer {} are out of range", i / kv_heads)));
            }
            let gain = |t: usize| f64::from(GAINS[usize::from(bits[t])]);
            let costs: Vec<f64> = (0..d / 2).map(|t| (shares[t] * gain(t)).powi(2)).collect();
            Ok(ShiftPlan::new(bits, &costs, Some(mean), ShiftFrame::Pairs(rotary.clone())).scaled_by(&sigmas))
        })
        .collect()
}

/// Rows beside each other.
struct Rows<'a>(PageFormat, &'a [u8]);

impl Strings for Rows<'_> {
    #[inline(always)]
    fn row(&self, reader: &Reader, row: usize, words: &mut Vec<u32>) -> f32 {
        let Self(format, rows) = self;
        let row = &rows[row * format.row_bytes()..][..format.row_bytes()];
        reader.words(&row[format.field..], words);
        if format.field > 0 { SCALES[usize::from(row[0])] } else { 1.0 }
    }
}

impl Strings for PageView<'_> {
    #[inline(always)]
    fn row(&self, reader: &Reader, row: usize, words: &mut Vec<u32>) -> f32 {
        self.words(reader, row, words);
        self.field(row).map_or(1.0, |byte| SCALES[usize::from(byte)])
    }
}

impl KvCodec for ShiftKv {
    fn name(&self) -> String {
        self.spec.code_and_rate()
    }

    fn head_dim(&self) -> usize {
        self.places.shape().head_dim
    }

    fn row_bytes(&self) -> usize {
        self.format.row_bytes()
    }

    fn quantize(&self, place: Place, first: u64, x: &[f32], rows: &mut [u8]) -> Result<(), KvError> {
        self.quantize_with(Backend::detect(), place, first, x, rows)
    }

    fn dequantize(&self, place: Place, first: u64, rows: &[u8], out: &mut [f32]) -> Result<(), KvError> {
        let (d, plan) = (self.head_dim(), self.plan(place)?);
        let n = out.len() / d;
        check_len("out", out.len(), n * d)?;
        check_len("rows", rows.len(), n * self.row_bytes())?;
        plan.read(self.trellis, Rows(self.format, rows), out);
        self.finish(plan, first, out);
        Ok(())
    }

    fn pack(&self, place: Place, rows: &[u8], page: &mut Vec<u8>) -> Result<PageBits, KvError> {
        self.places.index(place)?;
        let n = rows.len() / self.row_bytes();
        check_len("rows", rows.len(), n * self.row_bytes())?;
        self.format.pack(rows, page);
        let bits = |bytes: usize| (8 * n * bytes) as u64;
        Ok(PageBits { codes: bits(self.format.string), scales: bits(self.format.field), overhead: 0 })
    }

    fn unpack(&self, place: Place, page: &[u8], rows: &mut [u8]) -> Result<(), KvError> {
        self.places.index(place)?;
        check_len("rows", rows.len(), rows.len() / self.row_bytes() * self.row_bytes())?;
        self.format.unpack(page, rows)
    }

    fn decode(
        &self,
        place: Place,
        first: u64,
        page: &[u8],
        _rows: &mut Vec<u8>,
        out: &mut [f32],
    ) -> Result<(), KvError> {
        let (d, plan) = (self.head_dim(), self.plan(place)?);
        let n = out.len() / d;
        check_len("out", out.len(), n * d)?;
        plan.read(self.trellis, self.format.view(page, n)?, out);
        self.finish(plan, first, out);
        Ok(())
    }

    fn query_to_frame(&self, place: Place, query: &mut [f32]) {
        if let Some((plan, rotator)) = self.framed(place, Role::Key) {
            rotator.forward(query, &mut vec![0.0; query.len()]);
            query.iter_mut().zip(&plan.factors).for_each(|(q, f)| *q *= f);
        }
    }

    fn keys_from_frame(&self, place: Place, keys: &mut [f32]) {
        if let Some((plan, _)) = self.framed(place, Role::Key) {
            plan.leave(0, keys);
        }
    }

    fn value_from_frame(&self, place: Place, sum: &mut [f32]) {
        if let Some((plan, _)) = self.framed(place, Role::Value) {
            plan.leave(0, sum);
        }
    }

    fn expected_bps(&self) -> f64 {
        (8 * self.row_bytes()) as f64 / self.head_dim() as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gosset_transform::{Domain, RandomStream};

    /// A whole page at once, vector by vector, and with every backend: the same bytes.
    #[test]
    fn bytes_do_not_depend_on_backends_or_company() {
        for (spec, d) in
            [("shift-10@2.25,frame=none", 64), ("shift-12@3.3,frame=none", 80), ("shift-10@5,frame=none", 24)]
        {
            let spec: KvSpec = spec.parse().unwrap();
            let shape = KvShape { layers: 1, kv_heads: 1, head_dim: d };
            let codec = ShiftKv::of(&spec, Role::Value, shape, None).unwrap();
            let place = Place { layer: 0, role: Role::Value, head: 0 };
            let mut stream = RandomStream::new(4, Domain::Rotation, 1);
            let x: Vec<f32> = (0..12 * d).map(|_| stream.next_u32() as i32 as f32 * 1e-9).collect();
            let mut rows = vec![0; 12 * codec.row_bytes()];
            codec.quantize(place, 0, &x, &mut rows).unwrap();
            let mut plain = vec![0; rows.len()];
            codec.quantize_with(Backend::scalar(), place, 0, &x, &mut plain).unwrap();
            assert_eq!(rows, plain);
            for (x, row) in x.chunks(d).zip(rows.chunks(codec.row_bytes())) {
                codec.quantize(place, 5, x, &mut plain[..row.len()]).unwrap();
                assert_eq!(row, &plain[..row.len()]);
            }
        }
    }
}
