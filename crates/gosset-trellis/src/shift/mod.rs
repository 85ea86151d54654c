//! The fixed-rate bit-shift trellis.
//!
//! A string is a ring of bits. Each step appends k V bits for V weights, and the L bits that end with a step are its
//! state; a [`Code`] maps the state to the weights. So a weight costs exactly k bits, weights anywhere are decoded from
//! L bits before them, and nothing is stored about where a string starts: the state before the first step is the end of
//! the string. The encoder searches all 2^L states.
//!
//! ```
//! use gosset_trellis::shift::{ShiftCode, ShiftDecoder, ShiftEncoder, ShiftOrder, ShiftScratch, ShiftSpec};
//!
//! let spec = ShiftSpec { bits: 2, state_bits: 12, code: ShiftCode::Quantiles, order: ShiftOrder::Rows };
//! let trellis = spec.check()?;
//! let layout = trellis.layout(1, 16)?;
//! let row: Vec<f32> = (0..16).map(|i| (i as f32 - 7.5) / 5.0).collect();
//!
//! let mut words = vec![0; layout.n_words()];
//! assert_eq!(words.len() * 32, 2 * 16);
//! ShiftEncoder::new(&trellis).encode(&layout, &row, 0..1, &mut words, &mut ShiftScratch::new())?;
//!
//! let mut decoded = vec![0.0; 16];
//! ShiftDecoder::new(&trellis).decode(&layout, &words, 0..1, &mut decoded)?;
//! let error: f32 = row.iter().zip(&decoded).map(|(x, y)| (x - trellis.step() * y).powi(2)).sum();
//! assert!(error / 16.0 < 0.2);
//! # Ok::<(), gosset_trellis::TrellisError>(())
//! ```

mod arch;
mod code;
mod constants;
mod constants_table;
mod decode;
mod encode;
mod layout;
mod spec;
mod viterbi;

pub use arch::Backend;
pub use code::{Code, TABLE_LEN, f32_to_half};
pub use decode::ShiftDecoder;
pub use encode::{STRINGS_AT_ONCE, ShiftEncoder, ShiftScratch};
pub use layout::{ShiftLayout, TILE_SIDE};
pub use spec::{MAX_STATE_BITS, MIN_STATE_BITS, ShiftCode, ShiftOrder, ShiftSpec, ShiftTrellis};
