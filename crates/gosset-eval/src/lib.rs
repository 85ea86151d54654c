//! Perplexity protocols, zero-shot tasks, metrics and result records; independent of any runtime.
//!
//! A perplexity is a number only together with its protocol: how the text was joined, how it was cut into windows, what
//! stood in front of each window and which positions were scored. [`PplProtocol`] holds all of that as plain data,
//! [`evaluate()`] follows it over anything that implements [`CausalLm`], and [`PplRecord`] keeps every choice beside the
//! result. [`read_questions`] and [`score_questions`] do the same for multiple-choice tasks.
//!
//! # Example
//!
//! A model that knows nothing has the perplexity of its vocabulary:
//!
//! ```
//! use std::{error::Error, ops::{ControlFlow, Range}};
//! use gosset_eval::{evaluate, CausalLm, PplProtocol};
//!
//! struct Uniform;
//! impl CausalLm for Uniform {
//!     fn vocab_size(&self) -> usize { 50 }
//!     fn score(
//!         &mut self, _: &[u32], positions: Range<usize>, sink: &mut dyn FnMut(usize, &[f32]),
//!     ) -> Result<(), Box<dyn Error + Send + Sync>> {
//!         for p in positions { sink(p, &[0.25; 50]) }
//!         Ok(())
//!     }
//! }
//!
//! let tokens: Vec<u32> = (0..4100).map(|i| i % 50).collect();
//! let protocol = PplProtocol::parse("full-2048")?;
//! let result = evaluate(&mut Uniform, &tokens, None, &protocol, None, &mut |_| ControlFlow::Continue(()))?;
//! assert_eq!((result.windows, result.tokens_scored), (2, 4094));
//! assert!((result.ppl - 50.0).abs() < 1e-9);
//! # Ok::<(), gosset_eval::EvalError>(())
//! ```
#![forbid(unsafe_code)]

mod error;
mod evaluate;
mod nll;
mod overlap;
mod passkey;
mod protocol;
mod record;
mod text;
mod window;
mod zero_shot;

pub use error::EvalError;
pub use evaluate::{CausalLm, PplResult, WindowResult, evaluate};
pub use nll::{NllSum, token_nll};
pub use overlap::TextOverlap;
pub use passkey::{
    PASSKEY_ANSWER_START, PASSKEY_ANSWER_TOKENS, Passkey, PasskeyAnswer, PasskeyAsk, PasskeyPlan, PasskeyReply,
    PasskeyResult, score_passkeys,
};
pub use protocol::{BosPolicy, PRESETS, PplProtocol, Preset, Scored, Tail, TextJoin};
pub use record::{CalibrationNote, EvalReport, PplRecord, Provenance, Rates, ReportRow};
pub use text::{join_rows, sha256_hex, sha256_ids};
pub use window::{TokenStream, WindowSpan, window_spans};
pub use zero_shot::{
    Accuracy, Encode, EncodeRules, EncodedOption, OptionScore, OptionText, Question, QuestionScore, TaskLog,
    TaskResult, TokenTree, TreeBranch, TreeToken, encode_option, read_questions, read_task_log, score_questions,
    write_task_log,
};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
