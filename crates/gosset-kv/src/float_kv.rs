//! Vectors in floating point as a codec like any other: what leaves one role uncoded.

use half::{bf16, f16};

use crate::{ExactType, KvCodec, KvError, PageBits, Place};

/// Keys or values in f32, bf16 or f16: rows and pages are the elements, little-endian.
///
/// ```
/// use gosset_kv::{ExactType, FloatKv, KvCodec, Place, Role};
///
/// let codec = FloatKv::new(ExactType::Bf16, 2)?;
/// let place = Place { layer: 0, role: Role::Value, head: 0 };
/// let (mut row, mut out) = ([0; 4], [0.0; 2]);
/// codec.quantize(place, 0, &[1.0, -0.5], &mut row)?;
/// codec.dequantize(place, 0, &row, &mut out)?;
/// assert_eq!((row, out), ([0x80, 0x3f, 0x00, 0xbf], [1.0, -0.5]));
/// # Ok::<(), gosset_kv::KvError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FloatKv {
    ty: ExactType,
    head_dim: usize,
}

impl FloatKv {
    /// For vectors of `head_dim` elements.
    ///
    /// # Errors
    ///
    /// [`KvError::HeadDim`] for vectors without elements.
    pub fn new(ty: ExactType, head_dim: usize) -> Result<Self, KvError> {
        if head_dim == 0 {
            return Err(KvError::HeadDim { head_dim, codec: ty.name().to_owned(), allowed: "any width from 1 fits" });
        }
        Ok(Self { ty, head_dim })
    }
}

impl KvCodec for FloatKv {
    fn name(&self) -> String {
        self.ty.name().to_owned()
    }

    fn head_dim(&self) -> usize {
        self.head_dim
    }

    fn row_bytes(&self) -> usize {
        self.head_dim * self.ty.bytes()
    }

    /// Elements beyond the largest of the type become that.
    fn quantize(&self, place: Place, first: u64, x: &[f32], rows: &mut [u8]) -> Result<(), KvError> {
        check_vectors(self, place, first, x, rows)?;
        match self.ty {
            ExactType::F32 => rows.as_chunks_mut().0.iter_mut().zip(x).for_each(|(row, v)| *row = v.to_le_bytes()),
            ExactType::Bf16 => {
                let round = |v: f32| bf16::from_f32(v).clamp(bf16::MIN, bf16::MAX);
                rows.as_chunks_mut().0.iter_mut().zip(x).for_each(|(row, &v)| *row = round(v).to_le_bytes());
            }
            ExactType::F16 => {
                let round = |v: f32| f16::from_f32(v).clamp(f16::MIN, f16::MAX);
                rows.as_chunks_mut().0.iter_mut().zip(x).for_each(|(row, &v)| *row = round(v).to_le_bytes());
            }
        }
        Ok(())
    }

    fn dequantize(&self, _place: Place, _first: u64, rows: &[u8], out: &mut [f32]) -> Result<(), KvError> {
        check_len("rows", rows.len(), out.len() * self.ty.bytes())?;
        match self.ty {
            ExactType::F32 => out.iter_mut().zip(rows.as_chunks().0).for_each(|(v, row)| *v = f32::from_le_bytes(*row)),
            ExactType::Bf16 => {
                out.iter_mut().zip(rows.as_chunks().0).for_each(|(v, row)| *v = bf16::from_le_bytes(*row).to_f32());
            }
            ExactType::F16 => {
                out.iter_mut().zip(rows.as_chunks().0).for_each(|(v, row)| *v = f16::from_le_bytes(*row).to_f32());
            }
        }
        Ok(())
    }

    fn pack(&self, _place: Place, rows: &[u8], page: &mut Vec<u8>) -> Result<PageBits, KvError> {
        let n = rows.len() / self.row_bytes();
        check_len("rows", rows.len(), n * self.row_bytes())?;
        page.extend_from_slice(rows);
        Ok(PageBits { codes: 8 * rows.len() as u64, ..PageBits::default() })
    }

    fn unpack(&self, _place: Place, page: &[u8], rows: &mut [u8]) -> Result<(), KvError> {
        if page.len() != rows.len() {
            let reason = format!("{} bytes, expected {}", page.len(), rows.len());
            return Err(KvError::Page { n: rows.len() / self.row_bytes(), reason });
        }
        rows.copy_from_slice(page);
        Ok(())
    }

    fn keys_from_frame(&self, _place: Place, _keys: &mut [f32]) {}

    fn expected_bps(&self) -> f64 {
        8.0 * self.ty.bytes() as f64
    }
}

pub(crate) fn check_len(what: &'static str, found: usize, expected: usize) -> Result<(), KvError> {
    if found == expected { Ok(()) } else { Err(KvError::Length { what, found, expected }) }
}

/// What [`KvCodec::quantize`] asks of its slices: whole vectors, as many rows, everything finite.
pub(crate) fn check_vectors(
    codec: &impl KvCodec,
    Place { layer, role, head }: Place,
    first: u64,
    x: &[f32],
    rows: &[u8],
) -> Result<(), KvError> {
    let d = codec.head_dim();
    let n = x.len() / d;
    check_len("x", x.len(), n * d)?;
    check_len("rows", rows.len(), n * codec.row_bytes())?;
    match x.iter().position(|v| !v.is_finite()) {
        Some(i) => Err(KvError::NonFinite { role: role.name(), layer, head, position: first + (i / d) as u64 }),
        None => Ok(()),
    }
}
