//! From a checkpoint to a Gosset container: sources, tensor policy, rate targets, pipeline.
//!
//! A [`ModelSource`] lists tensors and reads their rows. [`plan`] decides for each tensor whether it is quantized, kept bit-exact
//! or skipped, and why; [`run`] carries the plan out into one file; [`dequantize`] turns such a file back into a safetensors folder.
#![forbid(unsafe_code)]

mod allocate;
mod budget;
mod calibration;
mod dequantize;
mod encode;
mod error;
pub mod feedback;
mod merge;
mod method;
mod observer;
mod options;
mod part;
mod plan;
mod policy;
mod report;
mod resumable;
mod run;
mod safetensors;
mod scan;
mod source;
mod stored;
mod summary;
mod target;
mod tie;
mod work;

pub use calibration::{Activations, CalibrationRecord, InputMoments, TokenWeights, TuneReport, TunedBlock};
pub use dequantize::{DequantizeSummary, FloatDtype, RawDequantizer, check_dequantize_targets, dequantize};
pub use error::{QuantizeError, SourceError};
pub use merge::{MergeSummary, merge};
pub use method::{Method, MethodInfo, methods};
pub use observer::{Event, Observer, Silent};
pub use options::{Override, OverrideAction, QuantizeOptions, TensorWeight};
pub use part::Part;
pub use plan::{Action, Plan, PlanEstimate, PlanItem, plan};
pub use policy::MIN_WEIGHTS;
pub use report::{CalibrationSummary, Fallback, FeedbackFigures, Report, TensorReport, TunedFigures};
pub use run::{RunOptions, run};
pub use safetensors::SafetensorsSource;
pub use source::{ModelSource, SourceInfo, TensorInfo};
pub use target::{Allocation, QuantizeTarget};
pub use tie::{TIE_KEY, TieDecision, resolve_tie};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
