//! Keys and values as points of a lattice.
//!
//! **With norms** (values, and keys without a frame): the vector x, less its mean if one is known, goes through an orthonormal map R and
//! is divided by its stored norm n. With u = alpha·√d/n the points are y = Q(u·Rx + U), U being the dither or 0, and the reconstruction is
//! (g/u)·(y − U), g being the gain or 1. It is in the frame of R; where keys are read in original coordinates, Rᵀ is applied and the mean
//! added.
//!
//! **In the frame `probe`**: y = Q(2^−s·T(x − m) + U) with the mean m and the matrix T of the head (see [`crate::frame`]), and
//! m + 2^s·T⁻¹G(y − U), G being the gains or 1. The shift s is 0 unless a coordinate would not fit its row.

use gosset_codec::points::PointCode;
use gosset_lattice::{BitStrip, LatticeKind, LatticeVisitor};

use crate::coder::{self, PageFormat};
use crate::curve::Curve;
use crate::float_kv::{check_len, non_finite};
use crate::frame::Axes;
use crate::matrix::ROWS;
use crate::norm;
use crate::rotation::Rotator;
use crate::rows::RowFormat;
use crate::spec::{Code, Coder, Frame, NormKind, RoleSpec};
use crate::{KvCodec, KvError, KvShape, KvSpec, PageBits, Place, Probe, Role, dither};

/// Coordinates beyond which a vector in the frame `probe` would be shifted even if its row had room.
const REACH_SIGMAS: f64 = 10.0;
/// How far a nearest point and a dither may take a coordinate away, together, rounded up.
const MARGIN: f64 = 5.0;
/// What vectors of different norms in one page under one set of tables cost, in bits per scalar: measured at 64 and 128 elements.
const MIXTURE_BITS: f64 = 0.0045;
/// Most halvings of a vector in the frame `probe`.
const MAX_SHIFT: u16 = 255;
/// Largest share of a rate that is set aside because a probe was short.
const MOST_SAMPLING: f64 = 0.1;
/// Scales from which reconstructions might leave the range of f32.
const LARGE: f64 = 1e24;
/// Bits of a page besides its points under ANS: states, the head, and the last byte in part.
const ANS_PAGE_BITS: f64 = 40.0 + 24.0 + 4.0;
/// The same under Rice codes.
const RICE_PAGE_BITS: f64 = 32.0 + 4.0;

/// A codec of keys or values by nearest points of a lattice.
///
/// Made by [`KvSpec::codecs`]. Any even width that the lattice's dimension divides is possible.
#[derive(Debug)]
pub struct LatticeKv {
    name: String,
    lattice: LatticeKind,
    role: Role,
    shape: KvShape,
    spec: RoleSpec,
    seed: u64,
    rows: RowFormat,
    /// Whether reconstructions are in original coordinates.
    original: bool,
    /// Scale, with norms.
    alpha: f64,
    gain: f64,
    /// Rotations by layer, with norms.
    rotators: Vec<Rotator>,
    /// Means by layer and head, of keys with a frame.
    means: Vec<Vec<f32>>,
    /// Transforms by layer and head, in the frame `probe`.
    axes: Vec<Axes>,
    /// Tables of all points, with norms.
    codes: Vec<PointCode>,
    expected_bps: f64,
}

impl LatticeKv {
    /// The codec of one role of a specification whose code for it is a lattice.
    ///
    /// # Errors
    ///
    /// Those of [`KvSpec::codecs`].
    pub(crate) fn new(spec: &KvSpec, role: Role, shape: KvShape, probe: Option<&Probe>) -> Result<Self, KvError> {
        let own = *spec.role(role);
        let Code::Lattice(lattice) = own.code else {
            let reason = "expected a lattice: z, a2, d4 or e8".to_owned();
            return Err(KvError::Spec { spec: own.code_and_rate(), reason });
        };
        check_shape(lattice, shape)?;
        let head_probes = match own.frame {
            Frame::None => None,
            _ => Some(checked_probe(own.frame, shape, probe)?),
        };
        let (d, page) = (shape.head_dim as f64, spec.policy.page as f64);
        let curve = Curve::new(lattice, own.coder, own.dither);
        let mut codec = Self {
            name: own.code_and_rate(),
            lattice,
            role,
            shape,
            spec: own,
            seed: spec.seed,
            rows: RowFormat::new(shape.head_dim, 0.0),
            original: role == Role::Key && spec.keys_before_rope,
            alpha: 1.0,
            gain: 1.0,
            rotators: Vec::new(),
            means: Vec::new(),
            axes: Vec::new(),
            codes: Vec::new(),
            expected_bps: own.rate,
        };
        if let Some(probe) = head_probes {
            let heads = (0..shape.layers).flat_map(|layer| (0..shape.kv_heads).map(move |head| (layer, head)));
            let head = |(layer, head)| probe.head(layer, head).expect("the probe has the shape of the model");
            codec.means = heads.map(|at| head(at).mean.iter().map(|&m| m as f32).collect()).collect();
            if own.frame == Frame::Probe {
                // Head and states of a page, the last byte in part, zero strips.
                let blocks = shape.head_dim / lattice.dim();
                let page_bits = 8.0 + 40.0 + 4.0 + (8 * blocks.div_ceil(8)) as f64;
                // Axes and variances of n tokens fit those better than others: Gaussian keys of d elements take (d + 1)/(2n) nats more.
                let sampling = (d + 1.0) / (2.0 * probe.tokens() as f64) * std::f64::consts::LOG2_E;
                let bits = own.rate - page_bits / (page * d) - sampling.min(MOST_SAMPLING * own.rate);
                codec.axes = crate::frame::axes(probe, lattice, curve, bits, own.gain)?;
                let reach = codec.axes.iter().map(|axes| axes.largest_sigma).fold(0.0, f64::max);
                codec.rows = RowFormat::new(shape.head_dim, REACH_SIGMAS * reach + MARGIN);
                codec.axes.iter().for_each(|axes| coder::prepare(&axes.codes, false));
                return Ok(codec);
            }
        }
        let norm_bits = match own.norm {
            NormKind::Coded if own.coder == Coder::Rice => 2.0,
            NormKind::Coded => coded_norm_bits(d),
            NormKind::Log8 => 8.0,
            NormKind::F16 => 16.0,
        };
        let page_bits = if own.coder == Coder::Rice { RICE_PAGE_BITS } else { ANS_PAGE_BITS };
        let overhead = norm_bits / d + page_bits / (page * d) + MIXTURE_BITS;
        let bits = own.rate - overhead;
        let (least, most) = curve.range();
        if !(least..=most).contains(&bits) {
            let reason = format!(
                "norms and page ends take {overhead:.3} bits per scalar: expected {:.2} to {:.2}",
                least + overhead,
                most + overhead
            );
            return Err(KvError::Spec { spec: codec.name, reason });
        }
        codec.alpha = curve.alpha(bits);
        if own.gain {
            codec.gain = curve.gain(codec.alpha);
        }
        // The stored norm is at least 2^(-1/8) of the norm.
        codec.rows = RowFormat::new(shape.head_dim, 1.1 * codec.alpha * d.sqrt() + MARGIN);
        // One rotation for each layer; those of values are other ones than those of keys.
        let seed = |layer: usize| spec.seed.wrapping_add(2 * layer as u64 + u64::from(role == Role::Value));
        codec.rotators =
            (0..shape.layers).map(|layer| Rotator::new(own.rotation, shape.head_dim, seed(layer))).collect();
        let spread = if own.dither { (codec.alpha.powi(2) + lattice.mse_per_dim()).sqrt() } else { codec.alpha };
        codec.codes = vec![PointCode::for_alpha(lattice, spread as f32)];
        if own.coder == Coder::Ans {
            coder::prepare(&codec.codes, true);
        }
        Ok(codec)
    }

    /// Place of a head among those of all layers.
    fn head(&self, place: Place) -> Result<usize, KvError> {
        let (layer, head) = (place.layer as usize, place.head as usize);
        let KvShape { layers, kv_heads, .. } = self.shape;
        if layer >= layers {
            return Err(KvError::Length { what: "layers of the codec", found: layers, expected: layer + 1 });
        }
        if head >= kv_heads {
            return Err(KvError::Length { what: "heads of the codec", found: kv_heads, expected: head + 1 });
        }
        Ok(layer * kv_heads + head)
    }

    fn format(&self, head: usize) -> PageFormat<'_> {
        let (norm, codes) = match self.axes.get(head) {
            Some(axes) => (None, &axes.codes[..]),
            None => (Some(self.spec.norm), &self.codes[..]),
        };
        let blocks = self.shape.head_dim / self.lattice.dim();
        PageFormat { coder: self.spec.coder, norm, codes, blocks }
    }

    /// The rotation of a layer that is left in reconstructions.
    fn rotation_of_frame(&self, place: Place, role: Role) -> Option<&Rotator> {
        if self.original || role != self.role { None } else { self.rotators.get(place.layer as usize) }
    }
}

/// Bits of the norm of `d` Gaussian values in quarter octaves: their spread is about 4·log2(e)/√(2d) of them, and rounding adds 1/12 to
/// its square.
fn coded_norm_bits(d: f64) -> f64 {
    let spread = 4.0 * std::f64::consts::LOG2_E / (2.0 * d).sqrt();
    0.5 * libm::log2(std::f64::consts::TAU * std::f64::consts::E * (spread * spread + 1.0 / 12.0))
}

fn check_shape(lattice: LatticeKind, shape: KvShape) -> Result<(), KvError> {
    let d = shape.head_dim;
    let allowed = match lattice {
        LatticeKind::Z | LatticeKind::A2 => "even widths fit",
        LatticeKind::D4 => "multiples of 4 fit; a2 and z take any even width",
        LatticeKind::E8 => "multiples of 8 fit; d4 takes multiples of 4, a2 and z any even width",
    };
    if d == 0 || d % 2 == 1 || !d.is_multiple_of(lattice.dim()) {
        return Err(KvError::HeadDim { head_dim: d, codec: lattice.name().to_owned(), allowed });
    }
    for (what, found, expected) in [
        ("layers of the model", shape.layers, dither::MAX_LAYERS),
        ("heads of a layer", shape.kv_heads, dither::MAX_HEADS),
    ] {
        if found > expected {
            return Err(KvError::Length { what, found, expected });
        }
    }
    Ok(())
}

fn checked_probe(frame: Frame, shape: KvShape, probe: Option<&Probe>) -> Result<&Probe, KvError> {
    let spec = format!("frame={}", frame.name());
    let Some(probe) = probe else {
        let reason = "keys of the model have to be probed first; frame=none needs no probe".to_owned();
        return Err(KvError::Spec { spec, reason });
    };
    if probe.shape() != shape {
        let reason = format!("the probe is of {:?}, expected {shape:?}", probe.shape());
        return Err(KvError::Spec { spec, reason });
    }
    Ok(probe)
}

impl KvCodec for LatticeKv {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn head_dim(&self) -> usize {
        self.shape.head_dim
    }

    fn row_bytes(&self) -> usize {
        self.rows.bytes()
    }

    fn quantize(&self, place: Place, first: u64, x: &[f32], rows: &mut [u8]) -> Result<(), KvError> {
        let (d, head) = (self.shape.head_dim, self.head(place)?);
        let n = x.len() / d;
        check_len("x", x.len(), n * d)?;
        check_len("rows", rows.len(), n * self.rows.bytes())?;
        if let Some(i) = x.iter().position(|v| !v.is_finite()) {
            return Err(non_finite(place, first + (i / d) as u64));
        }
        self.lattice.dispatch(Quantize { codec: self, place, head, first, x, rows });
        Ok(())
    }

    fn dequantize(&self, place: Place, first: u64, rows: &[u8], out: &mut [f32]) -> Result<(), KvError> {
        let (d, head) = (self.shape.head_dim, self.head(place)?);
        let n = out.len() / d;
        check_len("out", out.len(), n * d)?;
        check_len("rows", rows.len(), n * self.rows.bytes())?;
        self.lattice.dispatch(Dequantize { codec: self, place, head, first, rows, out });
        Ok(())
    }

    fn pack(&self, place: Place, rows: &[u8], page: &mut Vec<u8>) -> Result<PageBits, KvError> {
        let head = self.head(place)?;
        let n = rows.len() / self.rows.bytes();
        check_len("rows", rows.len(), n * self.rows.bytes())?;
        self.lattice.dispatch(Pack { codec: self, head, rows, page })
    }

    fn unpack(&self, place: Place, page: &[u8], rows: &mut [u8]) -> Result<(), KvError> {
        let head = self.head(place)?;
        let n = rows.len() / self.rows.bytes();
        check_len("rows", rows.len(), n * self.rows.bytes())?;
        self.lattice.dispatch(Unpack { codec: self, head, page, rows })
    }

    fn decode(
        &self,
        place: Place,
        first: u64,
        page: &[u8],
        _rows: &mut Vec<u8>,
        out: &mut [f32],
    ) -> Result<(), KvError> {
        let (d, head) = (self.shape.head_dim, self.head(place)?);
        let n = out.len() / d;
        check_len("out", out.len(), n * d)?;
        self.lattice.dispatch(Decode { codec: self, place, head, first, page, out })
    }

    fn query_to_frame(&self, place: Place, query: &mut [f32]) {
        if let Some(rotator) = self.rotation_of_frame(place, Role::Key) {
            rotator.forward(query, &mut vec![0.0; query.len()]);
        }
    }

    fn value_from_frame(&self, place: Place, sum: &mut [f32]) {
        if let Some(rotator) = self.rotation_of_frame(place, Role::Value) {
            rotator.inverse(sum, &mut vec![0.0; sum.len()]);
        }
    }

    fn keys_from_frame(&self, place: Place, keys: &mut [f32]) {
        if let Some(rotator) = self.rotation_of_frame(place, Role::Key) {
            let mut scratch = vec![0.0; self.shape.head_dim];
            keys.chunks_exact_mut(self.shape.head_dim).for_each(|key| rotator.inverse(key, &mut scratch));
        }
    }

    fn expected_bps(&self) -> f64 {
        self.expected_bps
    }
}

struct Quantize<'a> {
    codec: &'a LatticeKv,
    place: Place,
    head: usize,
    first: u64,
    x: &'a [f32],
    rows: &'a mut [u8],
}

impl LatticeVisitor for Quantize<'_> {
    type Out = ();

    fn visit<const N: usize, L: BitStrip<N>>(self) {
        let Self { codec, place, head, first, x, rows } = self;
        let d = codec.shape.head_dim;
        let (mut v, mut scratch, mut u) = (vec![0.0; d], vec![0.0; d], vec![0.0; d]);
        let mean = codec.means.get(head);
        let format = codec.rows;
        for ((x, row), position) in x.chunks_exact(d).zip(rows.chunks_exact_mut(format.bytes())).zip(first..) {
            let centred = |i: usize| mean.map_or(x[i], |mean| x[i] - mean[i]);
            let field = match codec.axes.get(head) {
                None => {
                    let squares = (0..d).map(|i| f64::from(centred(i)) * f64::from(centred(i))).sum();
                    let stored = norm::store(codec.spec.norm, squares);
                    let scale =
                        if stored.divisor == 0.0 { 0.0 } else { codec.alpha * (d as f64).sqrt() / stored.divisor };
                    v.iter_mut().enumerate().for_each(|(i, v)| *v = (f64::from(centred(i)) * scale) as f32);
                    codec.rotators[place.layer as usize].forward(&mut v, &mut scratch);
                    stored.field
                }
                Some(axes) => {
                    scratch.iter_mut().enumerate().for_each(|(i, v)| *v = centred(i));
                    axes.to_frame(&mut scratch, &mut v, format.max() as f32 - MARGIN as f32)
                }
            };
            if codec.spec.dither {
                dither::fill::<N, L>(&mut dither::stream(codec.seed, place, position), &mut u);
                v.iter_mut().zip(&u).for_each(|(v, u)| *v += u);
            }
            format.set_field(row, field);
            for (b, v) in v.as_chunks::<N>().0.iter().enumerate() {
                let fits = format.set_block(row, b, &L::nearest_point(v));
                debug_assert!(fits, "the format of rows has room for {v:?}");
            }
        }
    }
}

/// Takes embedded points, `[n, head_dim]` in `out`, to reconstructions in the stored frame.
fn reconstruct<const N: usize, L: BitStrip<N>>(
    codec: &LatticeKv,
    place: Place,
    head: usize,
    first: u64,
    fields: impl Iterator<Item = u16>,
    out: &mut [f32],
) {
    let d = codec.shape.head_dim;
    if codec.spec.dither {
        let mut u = vec![0.0; d];
        for (v, position) in out.chunks_exact_mut(d).zip(first..) {
            dither::fill::<N, L>(&mut dither::stream(codec.seed, place, position), &mut u);
            v.iter_mut().zip(&u).for_each(|(v, u)| *v -= u);
        }
    }
    let mut scratch = vec![0.0; ROWS * d];
    let axes = codec.axes.get(head);
    if let Some(axes) = axes {
        axes.leave_frame(out, &mut scratch);
    } else if codec.original {
        let rotator = &codec.rotators[place.layer as usize];
        out.chunks_exact_mut(d).for_each(|v| rotator.inverse(v, &mut scratch[..d]));
    }
    let zeros = vec![0.0; d];
    let mean = codec.means.get(head).unwrap_or(&zeros);
    let per_norm = codec.gain / (codec.alpha * (d as f64).sqrt());
    for (v, field) in out.chunks_exact_mut(d).zip(fields) {
        let scale = match axes {
            None => norm::value(codec.spec.norm, field) * per_norm,
            Some(_) if field == 0 => 1.0,
            Some(_) => libm::exp2(f64::from(field.min(MAX_SHIFT))),
        };
        if scale < LARGE {
            let scale = scale as f32;
            v.iter_mut().zip(mean).for_each(|(v, m)| *v = *v * scale + m);
        } else {
            let place = |v: f32, m: f32| (f64::from(v) * scale + f64::from(m)).clamp(f32::MIN.into(), f32::MAX.into());
            v.iter_mut().zip(mean).for_each(|(v, &m)| *v = place(*v, m) as f32);
        }
    }
}

struct Dequantize<'a> {
    codec: &'a LatticeKv,
    place: Place,
    head: usize,
    first: u64,
    rows: &'a [u8],
    out: &'a mut [f32],
}

impl LatticeVisitor for Dequantize<'_> {
    type Out = ();

    fn visit<const N: usize, L: BitStrip<N>>(self) {
        let Self { codec, place, head, first, rows, out } = self;
        let format = codec.rows;
        let rows = || rows.chunks_exact(format.bytes());
        for (row, v) in rows().zip(out.chunks_exact_mut(codec.shape.head_dim)) {
            for (b, v) in v.as_chunks_mut::<N>().0.iter_mut().enumerate() {
                *v = L::embed(&format.block(row, b));
            }
        }
        reconstruct::<N, L>(codec, place, head, first, rows().map(|row| format.field(row)), out);
    }
}

struct Pack<'a> {
    codec: &'a LatticeKv,
    head: usize,
    rows: &'a [u8],
    page: &'a mut Vec<u8>,
}

impl LatticeVisitor for Pack<'_> {
    type Out = Result<PageBits, KvError>;

    fn visit<const N: usize, L: BitStrip<N>>(self) -> Self::Out {
        let Self { codec, head, rows, page } = self;
        let (format, pages) = (codec.rows, codec.format(head));
        let rows = || rows.chunks_exact(format.bytes());
        let fields: Vec<u16> = rows().map(|row| format.field(row)).collect();
        let points: Vec<[i32; N]> =
            rows().flat_map(|row| (0..pages.blocks).map(move |b| format.block(row, b))).collect();
        if let Some(i) = points.iter().position(|y| !L::contains(y)) {
            let reason = format!("row {}: {:?} is no point of {}", i / pages.blocks, points[i], L::NAME);
            return Err(KvError::Page { n: fields.len(), reason });
        }
        Ok(pages.pack::<N, L>(&fields, &points, page))
    }
}

struct Unpack<'a> {
    codec: &'a LatticeKv,
    head: usize,
    page: &'a [u8],
    rows: &'a mut [u8],
}

impl LatticeVisitor for Unpack<'_> {
    type Out = Result<(), KvError>;

    fn visit<const N: usize, L: BitStrip<N>>(self) -> Self::Out {
        let Self { codec, head, page, rows } = self;
        let (format, pages) = (codec.rows, codec.format(head));
        let bytes = format.bytes();
        let mut fields = vec![0; rows.len() / bytes];
        let mut fits = true;
        pages.unpack::<N, L>(page, &mut fields, |first, step, points| {
            for (k, y) in points.iter().enumerate() {
                let at = first + k * step;
                let row = &mut rows[at / pages.blocks * bytes..][..bytes];
                fits &= format.set_block(row, at % pages.blocks, y);
            }
        })?;
        if !fits {
            let reason = format!("a coordinate is larger than {}", format.max());
            return Err(KvError::Page { n: fields.len(), reason });
        }
        rows.chunks_exact_mut(bytes).zip(fields).for_each(|(row, field)| format.set_field(row, field));
        Ok(())
    }
}

struct Decode<'a> {
    codec: &'a LatticeKv,
    place: Place,
    head: usize,
    first: u64,
    page: &'a [u8],
    out: &'a mut [f32],
}

impl LatticeVisitor for Decode<'_> {
    type Out = Result<(), KvError>;

    fn visit<const N: usize, L: BitStrip<N>>(self) -> Self::Out {
        let Self { codec, place, head, first, page, out } = self;
        let mut fields = vec![0; out.len() / codec.shape.head_dim];
        let (blocks, _) = out.as_chunks_mut::<N>();
        codec.format(head).unpack::<N, L>(page, &mut fields, |at, step, points| {
            blocks[at..].iter_mut().step_by(step).zip(points).for_each(|(v, y)| *v = L::embed(y));
        })?;
        reconstruct::<N, L>(codec, place, head, first, fields.into_iter(), out);
        Ok(())
    }
}
