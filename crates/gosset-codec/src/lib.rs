//! Matrix to bitstream and back: randomized Hadamard transform, lattice, entropy code, rate targeting.
//!
//! | step | what happens |
//! |---|---|
//! | rotation | each row goes through an orthonormal transform that makes its values look Gaussian |
//! | scale | each row is divided by its RMS, stored as bf16 |
//! | alpha | all rows are multiplied by one number, found so that the payload is the asked one |
//! | nearest point | the rows, as one sequence, are cut into blocks and each is replaced by the nearest lattice point |
//! | code | points become symbols, symbols become codewords, in streams of 512 symbols |
//!
//! [`CodecSpec`] is plain data; [`CodecSpec::check`] makes it a [`Codec`], whose [`encode`](Codec::encode) gives an
//! [`EncodedMatrix`]: a [`MatrixHeader`] with the decode recipe and [`Plane`]s with the bits. A [`Decoder`] takes both
//! from anywhere, checks them once, and gives back rows in the original basis, rows in the rotated frame (a product
//! with an activation that was rotated once needs no other), or the exact integer points.
//!
//! ```
//! use gosset_codec::{CodecSpec, DecodeScratch, MatRef, calibrate};
//!
//! let (rows, cols) = (128, 512);
//! let weights = calibrate::gaussian(rows * cols, 0);
//! let codec = CodecSpec::parse("e8-rice@3")?.check()?;
//! let encoded = codec.encode(MatRef::new(&weights, rows, cols)?)?;
//!
//! let rate = encoded.rate();
//! assert_eq!(format!("{:.2} payload, {:.3} all-in", rate.payload_bps(), rate.all_in_bps()), "3.00 payload, 3.066 all-in");
//!
//! let mut decoded = vec![0.0; rows * cols];
//! encoded.decoder()?.decode_rows(0..rows, &mut decoded, &mut DecodeScratch::new())?;
//! let signal: f64 = weights.iter().map(|&w| f64::from(w).powi(2)).sum();
//! let noise: f64 = weights.iter().zip(&decoded).map(|(&w, &d)| f64::from(w - d).powi(2)).sum();
//! assert_eq!(format!("{:.1} dB", 10.0 * (signal / noise).log10()), "16.5 dB");
//! # Ok::<(), gosset_codec::CodecError>(())
//! ```
//!
//! **Formulas.** With R the rotation and r the RMS of a rotated row w rounded to bf16, the points are y = Q(alpha · R w
//! / r), and the decoder gives (r · step) · y in the rotated frame, step = 1/alpha, coordinates of A2 in their real
//! embedding. Sources: HyperQuant (arXiv 2606.23406) for the scheme; the stream layout is [`gosset_entropy::stream`].
//!
//! **Rates** count every byte of the planes: see [`EncodedMatrix::rate`]. Rice codes need more than one bit per symbol,
//! so each codec has a floor, named by [`codecs`] and by the refusal of what lies below.
//!
//! **Exactness.** The bytes depend on the values and the specification only: on no thread count, instruction set or
//! platform. Nothing is clamped: a value of any size within [`f32`] survives, large symbols by the escape of the code,
//! rows too small or too large for a scale by being stored as they are. NaN and infinities are refused with their
//! place.
//!
//! **Seams.** A scheme (lattice, trellis) is one variant of [`SchemeSpec`] and [`SchemeHeader`], an entropy code
//! one of [`CodeKind`] and [`CodeHeader`]; callers see none of it. The lattice is matched once per call, everything
//! below is generic over it.
//!
//! With the `rayon` feature (default) encoding uses the current thread pool; decoding never starts threads, callers
//! split rows by [`Decoder::row_block`].
#![forbid(unsafe_code)]

pub mod calibrate;
mod codec;
mod columns;
mod decode;
pub mod device;
mod encoded;
mod error;
mod header;
mod matrix;
mod parallel;
pub mod paths;
mod plane;
pub mod points;
mod scale;
mod scheme;
mod spec;
mod tiles;

pub use codec::{Codec, RateEstimate};
pub use columns::{
    ColumnEncoder, ColumnOptions, ColumnSums, ColumnsHeader, N_CLASSES, N_EXPONENTS, gaussian_payload_bps, row_factor,
};
pub use decode::{DecodeScratch, Decoder};
pub use encoded::EncodedMatrix;
pub use error::CodecError;
pub use header::{CodeHeader, LatticeHeader, MatrixHeader, RotationHeader, SchemeHeader, ShiftHeader, TrellisHeader};
pub use matrix::MatRef;
pub use plane::{Plane, PlaneData, PlaneDtype};
pub use spec::{
    CodeKind, CodecInfo, CodecSpec, Gain, LatticeName, MAX_ALPHA, MIN_ALPHA, RateTarget, RotationSpec, SchemeSpec,
    ShiftCodeKind, ShiftOrderKind, codecs,
};
pub use tiles::TileEncoder;

pub use gosset_entropy::Rate;
pub use gosset_transform::Rht;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
