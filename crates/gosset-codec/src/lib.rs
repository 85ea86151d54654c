//! Matrix to bitstream and back: randomized Hadamard transform, lattice, entropy code, rate targeting.
#![forbid(unsafe_code)]

pub mod calibrate;
mod codec;
mod decode;
mod encoded;
mod error;
mod header;
mod matrix;
mod parallel;
mod plane;
mod scale;
mod scheme;
mod spec;

pub use codec::{Codec, RateEstimate};
pub use decode::{DecodeScratch, Decoder};
pub use encoded::EncodedMatrix;
pub use error::CodecError;
pub use header::{CodeHeader, LatticeHeader, MatrixHeader, RotationHeader, SchemeHeader};
pub use matrix::MatRef;
pub use plane::{Plane, PlaneData, PlaneDtype};
pub use spec::{
    CodeKind, CodecInfo, CodecSpec, LatticeName, MAX_ALPHA, MIN_ALPHA, RateTarget, RotationSpec, SchemeSpec, codecs,
};

pub use gosset_entropy::Rate;
pub use gosset_transform::Rht;
