//! Weight quantizers and codecs of KV caches that Gosset is compared with, each in real packed bytes.
//!
//! | name | what it is | rates R |
//! |---|---|---|
//! | `rtn` | rounding to nearest, one fp16 scale and R-bit zero point per row | 2 to 8 |
//! | `rtn-g32`, `rtn-g64`, `rtn-g128` | rounding to nearest, groups with an fp16 scale and an R-bit zero point | 2 to 8 |
//! | `rtn-sym-g32`, `rtn-sym-g64`, `rtn-sym-g128` | rounding to nearest, groups with an fp16 scale | 2 to 8 |
//! | `nf4` | the 16 NormalFloat levels, groups of 64 with an fp16 maximum | 4 |
//! | `iq4_nl` | the 16 IQ4_NL levels, groups of 32 with an fp16 scale | 4 |
//! | `higgs1`, `higgs2`, `higgs4` | RHT, one bf16 scale per row, nearest codeword of a converged Lloyd grid | [`grids`] |
//! | `e8p-rtn` | RHT, one bf16 scale per row, QuIP#'s padded E8 codebook | 2 |
//! | `e8p` | QuIP#-style: RHT on both sides, the padded E8 codebook, LDLQ in blocks of 8, re-tuning; calibrated | 2 |
//! | `gptq`, `gptq-noact` | groups of 128 with an fp16 scale and an R-bit zero point, column by column with error feedback, in the order of activations or of columns; calibrated | 2, 3, 4 |
//!
//! [`families`] is that table as data. The R of `name@R` is the payload: bits of codes per weight. What else a method writes is in
//! the [`Rate`](gosset_entropy::Rate) of each [`Encoded`], which adds up to its bytes: group scales and zero points are table bits,
//! because [`stream_bps`](gosset_entropy::Rate::stream_bps) leaves out nothing but one scale per row.
//!
//! ```
//! use gosset_baselines::{Baseline, Rotation, parse};
//!
//! let weights: Vec<f32> = (0..256).map(|i| (i as f32 * 0.7).sin()).collect();
//! let rtn = parse("rtn-g128@4", Rotation::DEFAULT)?;
//! let encoded = rtn.encode(2, 128, &weights)?;
//! // 128 codes of 4 bits, a scale of 16 bits, a zero point of 4 bits: per row.
//! assert_eq!(encoded.rate.all_in_bps(), 4.0 + 20.0 / 128.0);
//! assert_eq!(encoded.n_bytes() * 8, encoded.rate.total_bits());
//! let decoded = rtn.decode(2, 128, &encoded)?;
//! assert!(weights.iter().zip(&decoded).all(|(w, d)| (w - d).abs() < 0.07));
//! # Ok::<(), gosset_baselines::BaselineError>(())
//! ```
//!
//! Calibrated methods take the second moments of the inputs ([`Baseline::encode_calibrated`]); without them they are their data-free
//! forms.
//!
//! Codecs of keys and values of a KV cache are found by [`kv_baseline`]; [`kv_families`] lists them.
//!
//! Nothing here is reachable from the product. A method of one's own joins the comparison by implementing [`Baseline`].
#![forbid(unsafe_code)]

mod baseline;
mod decompose;
mod e8p;
mod error;
mod families;
mod gptq;
mod grid;
mod groups;
mod higgs;
mod iq4_nl;
mod kv;
pub mod lloyd;
mod nearest;
mod nf4;
mod pack;
mod rows;
mod rtn;

pub use baseline::{Baseline, Encoded, Plane};
pub use decompose::{Decomposition, MethodPoint, decompose};
pub use e8p::{E8p, E8pRtn};
pub use error::BaselineError;
pub use families::{Family, families, named, parse};
pub use gptq::Gptq;
pub use grid::{GRIDS, Grid, GridInfo, grids};
pub use higgs::Higgs;
pub use iq4_nl::Iq4Nl;
pub use kv::{KvFamily, kv_baseline, kv_families};
pub use nf4::Nf4;
pub use rows::Rotation;
pub use rtn::Rtn;
