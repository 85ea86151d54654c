//! Planes: the typed arrays that an encoded matrix consists of.

use std::borrow::Cow;
use std::fmt;

use half::bf16;

use crate::CodecError;

/// A named array of an encoded matrix.
#[derive(Debug, Clone, PartialEq)]
pub struct Plane<'a> {
    /// Name, unique within a matrix, such as `words`.
    pub name: Cow<'a, str>,
    /// The elements.
    pub data: PlaneData<'a>,
}

impl<'a> Plane<'a> {
    /// A plane that borrows from `self`.
    pub fn borrowed(&self) -> Plane<'_> {
        Plane { name: Cow::Borrowed(&self.name), data: self.data.borrowed() }
    }

    /// A plane that owns its elements.
    pub(crate) fn owned(name: &'static str, data: PlaneData<'static>) -> Plane<'static> {
        Plane { name: Cow::Borrowed(name), data }
    }
}

/// Elements of a plane, in one of the types that planes have.
#[derive(Debug, Clone, PartialEq)]
pub enum PlaneData<'a> {
    /// Bytes.
    U8(Cow<'a, [u8]>),
    /// 16-bit unsigned integers.
    U16(Cow<'a, [u16]>),
    /// 32-bit unsigned integers.
    U32(Cow<'a, [u32]>),
    /// 64-bit unsigned integers.
    U64(Cow<'a, [u64]>),
    /// bfloat16 numbers.
    Bf16(Cow<'a, [bf16]>),
    /// Single-precision numbers.
    F32(Cow<'a, [f32]>),
}

impl PlaneData<'_> {
    /// Type of the elements.
    pub fn dtype(&self) -> PlaneDtype {
        match self {
            PlaneData::U8(_) => PlaneDtype::U8,
            PlaneData::U16(_) => PlaneDtype::U16,
            PlaneData::U32(_) => PlaneDtype::U32,
            PlaneData::U64(_) => PlaneDtype::U64,
            PlaneData::Bf16(_) => PlaneDtype::Bf16,
            PlaneData::F32(_) => PlaneDtype::F32,
        }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            PlaneData::U8(data) => data.len(),
            PlaneData::U16(data) => data.len(),
            PlaneData::U32(data) => data.len(),
            PlaneData::U64(data) => data.len(),
            PlaneData::Bf16(data) => data.len(),
            PlaneData::F32(data) => data.len(),
        }
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Size of all elements in bytes.
    pub fn n_bytes(&self) -> usize {
        self.len() * self.dtype().size()
    }

    /// Data that borrow from `self`.
    pub fn borrowed(&self) -> PlaneData<'_> {
        match self {
            PlaneData::U8(data) => PlaneData::U8(Cow::Borrowed(data)),
            PlaneData::U16(data) => PlaneData::U16(Cow::Borrowed(data)),
            PlaneData::U32(data) => PlaneData::U32(Cow::Borrowed(data)),
            PlaneData::U64(data) => PlaneData::U64(Cow::Borrowed(data)),
            PlaneData::Bf16(data) => PlaneData::Bf16(Cow::Borrowed(data)),
            PlaneData::F32(data) => PlaneData::F32(Cow::Borrowed(data)),
        }
    }
}

/// Type of the elements of a plane.
///
/// ```
/// use gosset_codec::PlaneDtype;
/// assert_eq!((PlaneDtype::Bf16.name(), PlaneDtype::Bf16.size()), ("BF16", 2));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PlaneDtype {
    /// Bytes.
    U8,
    /// 16-bit unsigned integers.
    U16,
    /// 32-bit unsigned integers.
    U32,
    /// 64-bit unsigned integers.
    U64,
    /// bfloat16 numbers.
    Bf16,
    /// Single-precision numbers.
    F32,
}

impl PlaneDtype {
    /// Name in the spelling of safetensors: `U8`, `U16`, `U32`, `U64`, `BF16` or `F32`.
    pub const fn name(self) -> &'static str {
        match self {
            PlaneDtype::U8 => "U8",
            PlaneDtype::U16 => "U16",
            PlaneDtype::U32 => "U32",
            PlaneDtype::U64 => "U64",
            PlaneDtype::Bf16 => "BF16",
            PlaneDtype::F32 => "F32",
        }
    }

    /// Size of one element in bytes.
    pub const fn size(self) -> usize {
        match self {
            PlaneDtype::U8 => 1,
            PlaneDtype::U16 | PlaneDtype::Bf16 => 2,
            PlaneDtype::U32 | PlaneDtype::F32 => 4,
            PlaneDtype::U64 => 8,
        }
    }
}

impl fmt::Display for PlaneDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The planes of a matrix by name, each of a known type.
///
/// Two lifetimes: the set borrows the list of planes for `'p`, the elements for `'a`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlaneSet<'p, 'a> {
    planes: &'p [Plane<'a>],
}

/// Defines an accessor of the planes of one type.
macro_rules! accessor {
    ($name:ident, $variant:ident, $element:ty) => {
        /// The elements of the plane, which may be absent.
        pub(crate) fn $name(&self, name: &'static str) -> Result<Option<Cow<'a, [$element]>>, CodecError> {
            match self.find(name) {
                None => Ok(None),
                // A borrowed plane stays borrowed; only an owned one is copied.
                Some(Plane { data: PlaneData::$variant(data), .. }) => Ok(Some(data.clone())),
                Some(Plane { data, .. }) => {
                    Err(CodecError::PlaneDtype { plane: name, found: data.dtype(), expected: PlaneDtype::$variant })
                }
            }
        }
    };
}

impl<'p, 'a> PlaneSet<'p, 'a> {
    /// A view of `planes`.
    pub(crate) fn new(planes: &'p [Plane<'a>]) -> Self {
        Self { planes }
    }

    /// Refuses planes whose name is not in `names`, and names that occur twice.
    pub(crate) fn check_names(&self, names: &[&'static str]) -> Result<(), CodecError> {
        for (i, plane) in self.planes.iter().enumerate() {
            let twice = self.planes[..i].iter().any(|other| other.name == plane.name);
            if twice || !names.contains(&&*plane.name) {
                return Err(CodecError::UnexpectedPlane { plane: plane.name.to_string(), expected: names.join(", ") });
            }
        }
        Ok(())
    }

    accessor!(u8s, U8, u8);
    accessor!(u16s, U16, u16);
    accessor!(u32s, U32, u32);
    accessor!(u64s, U64, u64);
    accessor!(bf16s, Bf16, bf16);
    accessor!(f32s, F32, f32);

    /// The plane of that name.
    pub(crate) fn find(&self, name: &str) -> Option<&'p Plane<'a>> {
        self.planes.iter().find(|plane| plane.name == name)
    }

    /// Size of the plane of that name in bits, 0 if it is absent.
    pub(crate) fn n_bits(&self, name: &str) -> u64 {
        self.find(name).map_or(0, |plane| plane.data.n_bytes() as u64 * 8)
    }
}

/// The elements of a plane that must be there.
pub(crate) fn required<T>(plane: &'static str, found: Option<T>) -> Result<T, CodecError> {
    found.ok_or(CodecError::MissingPlane { plane })
}

/// Refuses a plane of another length.
pub(crate) fn check_len(plane: &'static str, found: usize, expected: u64) -> Result<(), CodecError> {
    if found as u64 != expected {
        return Err(CodecError::PlaneLength { plane, found: found as u64, expected });
    }
    Ok(())
}
