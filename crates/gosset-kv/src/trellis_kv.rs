//! Keys and values as paths of the entropy-coded trellis.
//!
//! As with norms in [`crate::LatticeKv`], but the coordinates of a vector are rounded together: the points of a vector are a path of the
//! trellis from state 0, the cheapest in distortion and rate. At the same rate the distortion is 0.3 dB below that of E8 with gain; writing
//! takes a search, reading a look-up more. The rounding depends on all coordinates, so that no dither makes it unbiased.

use gosset_codec::paths::{LANES, PathCode, Scratch};

use crate::coder::{PathPages, prepare_paths};
use crate::float_kv::{check_len, check_vectors};
use crate::norm_frame::{NormFrame, means};
use crate::overhead::{NORM_MARGIN, with_norms};
use crate::place::{Places, checked_probe};
use crate::rows::RowFormat;
use crate::spec::{Frame, RoleSpec};
use crate::{KvCodec, KvError, KvShape, KvSpec, PageBits, Place, Probe, Role};

/// Bits per scalar for which there are tables.
const RANGE: (f64, f64) = (0.7, 8.5);
/// How far the point of a path may be from its value, rounded up.
const MARGIN: f64 = 12.0;

/// A codec of keys or values by paths of the entropy-coded trellis.
///
/// Made by [`KvSpec::codecs`]. Any even width is possible.
#[derive(Debug)]
pub struct TrellisKv {
    role: Role,
    places: Places,
    spec: RoleSpec,
    rows: RowFormat,
    frame: NormFrame,
    code: PathCode,
}

impl TrellisKv {
    /// The codec of one role of a specification whose code for it is a trellis with that many states.
    ///
    /// # Errors
    ///
    /// Those of [`KvSpec::codecs`].
    pub(crate) fn new(
        states: u32,
        spec: &KvSpec,
        role: Role,
        shape: KvShape,
        probe: Option<&Probe>,
    ) -> Result<Self, KvError> {
        let own = *spec.role(role);
        let d = shape.head_dim;
        let refused = |reason: &str| KvError::Spec { spec: own.code_and_rate(), reason: reason.to_owned() };
        if d == 0 || d % 2 == 1 {
            return Err(KvError::HeadDim {
                head_dim: d,
                codec: own.code.name().to_owned(),
                allowed: "even widths fit",
            });
        }
        let means = match own.frame {
            Frame::None => Vec::new(),
            _ => means(checked_probe(own.frame, shape, probe)?),
        };
        let bits = with_norms(&own, d, spec.policy.page, RANGE)?;
        let no_table = || refused("no table of the trellis has this rate");
        let alpha = PathCode::alpha_for_bits(states, bits).ok_or_else(no_table)?;
        let code = PathCode::for_alpha(states, alpha).ok_or_else(no_table)?;
        prepare_paths(code);
        let rows = RowFormat::new(d, NORM_MARGIN * alpha * (d as f64).sqrt() + MARGIN);
        let frame = NormFrame::new(spec, role, shape, means, alpha, 1.0);
        Ok(Self { role, places: Places::new(shape)?, spec: own, rows, frame, code })
    }

    fn pages(&self) -> PathPages {
        PathPages { norm: self.spec.norm, code: self.code, width: self.head_dim() }
    }

    fn rotation(&self, place: Place, role: Role) -> Option<&crate::rotation::Rotator> {
        if role == self.role { self.frame.rotation_of_frame(place) } else { None }
    }

    /// Points of rows, groups of `[head_dim][8]`.
    fn groups(&self, rows: &[u8]) -> Vec<[i32; LANES]> {
        let (d, bytes) = (self.head_dim(), self.rows.bytes());
        let mut groups = Vec::new();
        for rows in rows.chunks(LANES * bytes) {
            let first = groups.len();
            groups.resize(first + d, [0; LANES]);
            for (lane, row) in rows.chunks_exact(bytes).enumerate() {
                (0..d).for_each(|i| [groups[first + i][lane]] = self.rows.block::<1>(row, i));
            }
        }
        groups
    }
}

impl KvCodec for TrellisKv {
    fn name(&self) -> String {
        self.spec.code_and_rate()
    }

    fn head_dim(&self) -> usize {
        self.places.shape().head_dim
    }

    fn row_bytes(&self) -> usize {
        self.rows.bytes()
    }

    fn quantize(&self, place: Place, first: u64, x: &[f32], rows: &mut [u8]) -> Result<(), KvError> {
        let (d, head, bytes) = (self.head_dim(), self.places.index(place)?, self.rows.bytes());
        check_vectors(self, place, first, x, rows)?;
        let (mut v, mut scratch, mut search) = (vec![0.0; d], vec![0.0; d], Scratch::default());
        let (mut values, mut points) = (vec![[0.0; LANES]; d], vec![[0; LANES]; d]);
        for (x, rows) in x.chunks(LANES * d).zip(rows.chunks_mut(LANES * bytes)) {
            values.fill([0.0; LANES]);
            for (lane, (x, row)) in x.chunks_exact(d).zip(rows.chunks_exact_mut(bytes)).enumerate() {
                self.rows.set_field(row, self.frame.enter(place, head, x, &mut v, &mut scratch));
                values.iter_mut().zip(&v).for_each(|(step, v)| step[lane] = *v);
            }
            self.code.round(&values, &mut points, &mut search).expect("scaled values are below alpha·√d, as rows are");
            for (lane, row) in rows.chunks_exact_mut(bytes).enumerate() {
                let fits = (0..d).all(|i| self.rows.set_block(row, i, &[points[i][lane]]));
                debug_assert!(fits, "the format of rows has room for all points");
            }
        }
        Ok(())
    }

    fn dequantize(&self, place: Place, _first: u64, rows: &[u8], out: &mut [f32]) -> Result<(), KvError> {
        let (d, head, bytes) = (self.head_dim(), self.places.index(place)?, self.rows.bytes());
        let n = out.len() / d;
        check_len("out", out.len(), n * d)?;
        check_len("rows", rows.len(), n * bytes)?;
        for (row, v) in rows.chunks_exact(bytes).zip(out.chunks_exact_mut(d)) {
            v.iter_mut().enumerate().for_each(|(i, v)| *v = self.code.value(self.rows.block::<1>(row, i)[0]));
        }
        self.frame.leave(place, head, rows.chunks_exact(bytes).map(|row| self.rows.field(row)), out, d);
        Ok(())
    }

    fn pack(&self, place: Place, rows: &[u8], page: &mut Vec<u8>) -> Result<PageBits, KvError> {
        self.places.index(place)?;
        let (d, bytes) = (self.head_dim(), self.rows.bytes());
        let n = rows.len() / bytes;
        check_len("rows", rows.len(), n * bytes)?;
        let fields: Vec<u16> = rows.chunks_exact(bytes).map(|row| self.rows.field(row)).collect();
        let groups = self.groups(rows);
        for (g, group) in groups.chunks_exact(d).enumerate() {
            if !self.code.allows(group, LANES.min(n - g * LANES)) {
                let reason = format!("one of the rows from {} on is no path of {}", g * LANES, self.name());
                return Err(KvError::Page { n, reason });
            }
        }
        Ok(self.pages().pack(&fields, &groups, page))
    }

    fn unpack(&self, place: Place, page: &[u8], rows: &mut [u8]) -> Result<(), KvError> {
        self.places.index(place)?;
        let (d, bytes) = (self.head_dim(), self.rows.bytes());
        let n = rows.len() / bytes;
        check_len("rows", rows.len(), n * bytes)?;
        let mut fields = vec![0; n];
        let mut fits = true;
        self.pages().unpack(page, &mut fields, |first, points| {
            for (lane, row) in rows[first * bytes..].chunks_exact_mut(bytes).take(LANES).enumerate() {
                (0..d).for_each(|i| fits &= self.rows.set_block(row, i, &[points[i][lane]]));
            }
        })?;
        if !fits {
            return Err(KvError::Page { n, reason: format!("a coordinate is larger than {}", self.rows.max()) });
        }
        rows.chunks_exact_mut(bytes).zip(fields).for_each(|(row, field)| self.rows.set_field(row, field));
        Ok(())
    }

    fn decode(
        &self,
        place: Place,
        _first: u64,
        page: &[u8],
        _rows: &mut Vec<u8>,
        out: &mut [f32],
    ) -> Result<(), KvError> {
        let (d, head) = (self.head_dim(), self.places.index(place)?);
        let n = out.len() / d;
        check_len("out", out.len(), n * d)?;
        let mut fields = vec![0; n];
        let mut fits = true;
        self.pages().unpack(page, &mut fields, |first, points| {
            fits &= points.iter().all(|step| self.rows.fits(step));
            for (lane, v) in out[first * d..].chunks_exact_mut(d).take(LANES).enumerate() {
                v.iter_mut().zip(points).for_each(|(v, step)| *v = self.code.value(step[lane]));
            }
        })?;
        if !fits {
            return Err(KvError::Page { n, reason: format!("a coordinate is larger than {}", self.rows.max()) });
        }
        self.frame.leave(place, head, fields.into_iter(), out, d);
        Ok(())
    }

    fn query_to_frame(&self, place: Place, query: &mut [f32]) {
        if let Some(rotator) = self.rotation(place, Role::Key) {
            rotator.forward(query, &mut vec![0.0; query.len()]);
        }
    }

    fn keys_from_frame(&self, place: Place, keys: &mut [f32]) {
        if let Some(rotator) = self.rotation(place, Role::Key) {
            let mut scratch = vec![0.0; self.head_dim()];
            keys.chunks_exact_mut(self.head_dim()).for_each(|key| rotator.inverse(key, &mut scratch));
        }
    }

    fn value_from_frame(&self, place: Place, sum: &mut [f32]) {
        if let Some(rotator) = self.rotation(place, Role::Value) {
            rotator.inverse(sum, &mut vec![0.0; sum.len()]);
        }
    }

    fn expected_bps(&self) -> f64 {
        self.spec.rate
    }
}
