//! Plane elements to little-endian bytes and back.

use std::borrow::Cow;

use bytemuck::{Pod, PodCastError};
use gosset_codec::{Plane, PlaneData, PlaneDtype};
use half::bf16;

/// Dtype of a plane from its safetensors name; `None` for a name that planes do not have.
pub(crate) fn dtype_named(name: &str) -> Option<PlaneDtype> {
    use PlaneDtype::*;
    [U8, U16, U32, U64, Bf16, F32].into_iter().find(|d| d.name() == name)
}

/// The elements as little-endian bytes; borrowed on little-endian machines.
pub(crate) fn to_le_bytes<'a>(data: &'a PlaneData<'_>) -> Cow<'a, [u8]> {
    match data {
        PlaneData::U8(v) => Cow::Borrowed(v),
        PlaneData::U16(v) => elements_to_le(v, |x| x.to_le_bytes()),
        PlaneData::U32(v) => elements_to_le(v, |x| x.to_le_bytes()),
        PlaneData::U64(v) => elements_to_le(v, |x| x.to_le_bytes()),
        PlaneData::Bf16(v) => elements_to_le(v, |x| x.to_le_bytes()),
        PlaneData::F32(v) => elements_to_le(v, |x| x.to_le_bytes()),
    }
}

fn elements_to_le<T: Pod, const N: usize>(v: &[T], le: impl Fn(&T) -> [u8; N]) -> Cow<'_, [u8]> {
    if cfg!(target_endian = "little") {
        Cow::Borrowed(bytemuck::cast_slice(v))
    } else {
        Cow::Owned(v.iter().flat_map(le).collect())
    }
}

/// Little-endian bytes as elements: borrowed when the machine is little-endian and the bytes are aligned, copied otherwise.
///
/// `bytes.len()` is a multiple of the element size; a remainder would be dropped.
pub(crate) fn from_le_bytes(dtype: PlaneDtype, bytes: &[u8]) -> PlaneData<'_> {
    match dtype {
        PlaneDtype::U8 => PlaneData::U8(Cow::Borrowed(bytes)),
        PlaneDtype::U16 => PlaneData::U16(elements_from_le(bytes, u16::from_le_bytes)),
        PlaneDtype::U32 => PlaneData::U32(elements_from_le(bytes, u32::from_le_bytes)),
        PlaneDtype::U64 => PlaneData::U64(elements_from_le(bytes, u64::from_le_bytes)),
        PlaneDtype::Bf16 => PlaneData::Bf16(elements_from_le(bytes, bf16::from_le_bytes)),
        PlaneDtype::F32 => PlaneData::F32(elements_from_le(bytes, f32::from_le_bytes)),
    }
}

fn elements_from_le<T: Pod, const N: usize>(bytes: &[u8], le: impl Fn([u8; N]) -> T) -> Cow<'_, [T]> {
    if cfg!(target_endian = "little") {
        let cast: Result<&[T], PodCastError> = bytemuck::try_cast_slice(bytes);
        if let Ok(v) = cast {
            return Cow::Borrowed(v);
        }
    }
    Cow::Owned(bytes.as_chunks::<N>().0.iter().map(|c| le(*c)).collect())
}

/// A copy of a plane that borrows nothing.
pub(crate) fn into_owned(plane: Plane<'_>) -> Plane<'static> {
    fn own<T: Clone>(v: Cow<'_, [T]>) -> Cow<'static, [T]> {
        Cow::Owned(v.into_owned())
    }
    let data = match plane.data {
        PlaneData::U8(v) => PlaneData::U8(own(v)),
        PlaneData::U16(v) => PlaneData::U16(own(v)),
        PlaneData::U32(v) => PlaneData::U32(own(v)),
        PlaneData::U64(v) => PlaneData::U64(own(v)),
        PlaneData::Bf16(v) => PlaneData::Bf16(own(v)),
        PlaneData::F32(v) => PlaneData::F32(own(v)),
    };
    Plane { name: Cow::Owned(plane.name.into_owned()), data }
}

/// Whether [`from_le_bytes`] would copy.
pub(crate) fn needs_copy(dtype: PlaneDtype, bytes: &[u8]) -> bool {
    dtype.size() > 1 && (cfg!(target_endian = "big") || !bytes.as_ptr().addr().is_multiple_of(dtype.size()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aligned_and_misaligned_bytes_give_the_same_elements() {
        let words: Vec<u32> = (0..9).map(|i| i * 0x0102_0305).collect();
        let data = PlaneData::U32(Cow::Borrowed(&words));
        let bytes = to_le_bytes(&data).into_owned();
        assert_eq!(&bytes[4..8], &[5, 3, 2, 1]);
        let mut shifted = vec![0u8; bytes.len() + 8];
        for offset in 0..8 {
            let at = &mut shifted[offset..offset + bytes.len()];
            at.copy_from_slice(&bytes);
            let back = from_le_bytes(PlaneDtype::U32, at);
            assert_eq!(back, data);
            let PlaneData::U32(cow) = &back else { panic!("dtype changed") };
            assert_eq!(matches!(cow, Cow::Owned(_)), needs_copy(PlaneDtype::U32, at));
        }
    }

    #[test]
    fn every_plane_dtype_has_its_name() {
        use PlaneDtype::*;
        for d in [U8, U16, U32, U64, Bf16, F32] {
            assert_eq!(dtype_named(d.name()), Some(d));
        }
        assert_eq!(dtype_named("F64"), None);
    }
}
