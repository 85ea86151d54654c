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
use crate::float_kv::{check_len, check_vectors};
use crate::frame::Axes;
use crate::norm_frame::{NormFrame, means};
use crate::overhead::{NORM_MARGIN, probe_page_bits, with_norms};
use crate::place::{Places, checked_probe};
use crate::rows::RowFormat;
use crate::spec::{Code, Coder, Frame, RoleSpec};
use crate::{KvCodec, KvError, KvShape, KvSpec, PageBits, Place, Probe, Role, dither};

/// Standard deviations of a coordinate in the frame `probe` that rows have room for; vectors that reach farther are shifted.
const REACH_SIGMAS: f64 = 10.0;
/// How far a nearest point and a dither may take a coordinate away, together, rounded up.
const MARGIN: f64 = 5.0;

/// A codec of keys or values by nearest points of a lattice.
///
/// Made by [`KvSpec::codecs`]. Any even width that the lattice's dimension divides is possible.
#[derive(Debug)]
pub struct LatticeKv {
    name: String,
    lattice: LatticeKind,
    role: Role,
    places: Places,
    spec: RoleSpec,
    seed: u64,
    rows: RowFormat,
    form: Form,
}

/// How vectors are brought to lattice points.
#[derive(Debug)]
enum Form {
    /// With norms, all points under one set of tables.
    Normed(NormFrame, [PointCode; 1]),
    /// In the frame `probe`, by layer and head.
    Probed(Vec<Axes>),
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
        check_width(lattice, shape.head_dim)?;
        let places = Places::new(shape)?;
        let curve = Curve::new(lattice, own.coder, own.dither);
        let (d, page) = (shape.head_dim, spec.policy.page);
        let (form, reach) = if own.frame == Frame::Probe {
            let probe = checked_probe(own.frame, shape, probe)?;
            let bits = own.rate - probe_page_bits(d, page);
            let axes = crate::frame::axes(probe, lattice, curve, bits, own.gain, own.dither)?;
            axes.iter().for_each(|axes| coder::prepare(&axes.codes, false));
            let largest = axes.iter().map(|axes| axes.largest_sigma).fold(0.0, f64::max);
            (Form::Probed(axes), REACH_SIGMAS * largest)
        } else {
            let means = match own.frame {
                Frame::None => Vec::new(),
                _ => means(checked_probe(own.frame, shape, probe)?),
            };
            let alpha = curve.alpha(with_norms(&own, d, page, curve.range())?);
            let gain = if own.gain { curve.gain(alpha) } else { 1.0 };
            let spread = if own.dither { (alpha * alpha + lattice.mse_per_dim()).sqrt() } else { alpha };
            let codes = [PointCode::for_alpha(lattice, spread as f32)];
            if own.coder == Coder::Ans {
                coder::prepare(&codes, true);
            }
            let frame = NormFrame::new(spec, role, shape, means, alpha, gain);
            (Form::Normed(frame, codes), NORM_MARGIN * alpha * (d as f64).sqrt())
        };
        let rows = RowFormat::new(d, reach + MARGIN);
        Ok(Self { name: own.code_and_rate(), lattice, role, places, spec: own, seed: spec.seed, rows, form })
    }

    fn page_format(&self, head: usize) -> PageFormat<'_> {
        let (norm, codes) = match &self.form {
            Form::Normed(frame, codes) => (Some(frame.kind), &codes[..]),
            Form::Probed(axes) => (None, &axes[head].codes[..]),
        };
        PageFormat { coder: self.spec.coder, norm, codes, blocks: self.head_dim() / self.lattice.dim() }
    }

    /// The rotation that is left in reconstructions of a role.
    fn rotation(&self, place: Place, role: Role) -> Option<&crate::rotation::Rotator> {
        match &self.form {
            Form::Normed(frame, _) if role == self.role => frame.rotation_of_frame(place),
            _ => None,
        }
    }
}

fn check_width(lattice: LatticeKind, head_dim: usize) -> Result<(), KvError> {
    let allowed = match lattice {
        LatticeKind::Z | LatticeKind::A2 => "even widths fit",
        LatticeKind::D4 => "multiples of 4 fit; a2 and z take any even width",
        LatticeKind::E8 => "multiples of 8 fit; d4 takes multiples of 4, a2 and z any even width",
    };
    if head_dim == 0 || head_dim % 2 == 1 || !head_dim.is_multiple_of(lattice.dim()) {
        return Err(KvError::HeadDim { head_dim, codec: lattice.name().to_owned(), allowed });
    }
    Ok(())
}

impl KvCodec for LatticeKv {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn head_dim(&self) -> usize {
        self.places.shape().head_dim
    }

    fn row_bytes(&self) -> usize {
        self.rows.bytes()
    }

    fn quantize(&self, place: Place, first: u64, x: &[f32], rows: &mut [u8]) -> Result<(), KvError> {
        let head = self.places.index(place)?;
        check_vectors(self, place, first, x, rows)?;
        self.lattice.dispatch(Quantize { codec: self, place, head, first, x, rows });
        Ok(())
    }

    fn dequantize(&self, place: Place, first: u64, rows: &[u8], out: &mut [f32]) -> Result<(), KvError> {
        let (d, head) = (self.head_dim(), self.places.index(place)?);
        let n = out.len() / d;
        check_len("out", out.len(), n * d)?;
        check_len("rows", rows.len(), n * self.rows.bytes())?;
        self.lattice.dispatch(Dequantize { codec: self, place, head, first, rows, out });
        Ok(())
    }

    fn pack(&self, place: Place, rows: &[u8], page: &mut Vec<u8>) -> Result<PageBits, KvError> {
        let head = self.places.index(place)?;
        let n = rows.len() / self.rows.bytes();
        check_len("rows", rows.len(), n * self.rows.bytes())?;
        self.lattice.dispatch(Pack { codec: self, head, rows, page })
    }

    fn unpack(&self, place: Place, page: &[u8], rows: &mut [u8]) -> Result<(), KvError> {
        let head = self.places.index(place)?;
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
        let (d, head) = (self.head_dim(), self.places.index(place)?);
        let n = out.len() / d;
        check_len("out", out.len(), n * d)?;
        self.lattice.dispatch(Decode { codec: self, place, head, first, page, out })
    }

    fn query_to_frame(&self, place: Place, query: &mut [f32]) {
        if let Some(rotator) = self.rotation(place, Role::Key) {
            rotator.forward(query, &mut vec![0.0; query.len()]);
        }
    }

    fn value_from_frame(&self, place: Place, sum: &mut [f32]) {
        if let Some(rotator) = self.rotation(place, Role::Value) {
            rotator.inverse(sum, &mut vec![0.0; sum.len()]);
        }
    }

    fn keys_from_frame(&self, place: Place, keys: &mut [f32]) {
        if let Some(rotator) = self.rotation(place, Role::Key) {
            let mut scratch = vec![0.0; self.places.shape().head_dim];
            keys.chunks_exact_mut(self.places.shape().head_dim).for_each(|key| rotator.inverse(key, &mut scratch));
        }
    }

    fn expected_bps(&self) -> f64 {
        self.spec.rate
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
        let d = codec.head_dim();
        let (mut v, mut scratch, mut u) = (vec![0.0; d], vec![0.0; d], vec![0.0; d]);
        let format = codec.rows;
        for ((x, row), position) in x.chunks_exact(d).zip(rows.chunks_exact_mut(format.bytes())).zip(first..) {
            let field = match &codec.form {
                Form::Normed(frame, _) => frame.enter(place, head, x, &mut v, &mut scratch),
                Form::Probed(axes) => {
                    axes[head].enter(x, &mut v, &mut scratch, (f64::from(format.max()) - MARGIN) as f32)
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
    let d = codec.head_dim();
    if codec.spec.dither {
        let mut u = vec![0.0; d];
        for (v, position) in out.chunks_exact_mut(d).zip(first..) {
            dither::fill::<N, L>(&mut dither::stream(codec.seed, place, position), &mut u);
            v.iter_mut().zip(&u).for_each(|(v, u)| *v -= u);
        }
    }
    match &codec.form {
        Form::Normed(frame, _) => frame.leave(place, head, fields, out, d),
        Form::Probed(axes) => axes[head].leave(fields, out),
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
        for (row, v) in rows().zip(out.chunks_exact_mut(codec.head_dim())) {
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
        let (format, pages) = (codec.rows, codec.page_format(head));
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
        let (format, pages) = (codec.rows, codec.page_format(head));
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
        let mut fields = vec![0; out.len() / codec.head_dim()];
        let (blocks, _) = out.as_chunks_mut::<N>();
        // What rows cannot hold no quantizer made.
        let mut fits = true;
        codec.page_format(head).unpack::<N, L>(page, &mut fields, |at, step, points| {
            fits &= points.iter().all(|y| codec.rows.fits(y));
            blocks[at..].iter_mut().step_by(step).zip(points).for_each(|(v, y)| *v = L::embed(y));
        })?;
        if !fits {
            let reason = format!("a coordinate is larger than {}", codec.rows.max());
            return Err(KvError::Page { n: fields.len(), reason });
        }
        reconstruct::<N, L>(codec, place, head, first, fields.into_iter(), out);
        Ok(())
    }
}
