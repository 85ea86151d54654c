//! Where a calibration is, and the question whether to go on.

use std::ops::ControlFlow;

use crate::error::RuntimeError;

/// What is being computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pass {
    /// A layer and the second moments of its inputs.
    Moments,
    /// A layer alone, on the way to the next.
    Forward,
    /// Outputs of a layer that a quantized one is tuned to.
    Targets,
    /// A quantized layer forth and back, with a step of its parameters after some sequences.
    Tuning,
}

/// One sequence of one pass over one layer begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CalibrationProgress {
    /// What is being computed.
    pub pass: Pass,
    /// The layer, from 0.
    pub layer: usize,
    /// How many there are.
    pub n_layers: usize,
    /// The sequence, from 0.
    pub sequence: usize,
    /// How many there are.
    pub n_sequences: usize,
}

/// Is told of progress, some times a second, and answers whether to go on.
pub type CalibrationObserver = dyn FnMut(&CalibrationProgress) -> ControlFlow<()> + Send;

/// The observer with what it is told every time.
pub(super) struct Reporter {
    pub(super) n_layers: usize,
    pub(super) n_sequences: usize,
    pub(super) observer: Option<Box<CalibrationObserver>>,
}

impl Reporter {
    /// Fails with [`RuntimeError::Cancelled`] if the observer asks to stop.
    pub(super) fn at(&mut self, pass: Pass, layer: usize, sequence: usize) -> Result<(), RuntimeError> {
        let Self { n_layers, n_sequences, .. } = *self;
        let progress = CalibrationProgress { pass, layer, n_layers, sequence, n_sequences };
        match self.observer.as_mut().map(|observer| observer(&progress)) {
            Some(ControlFlow::Break(())) => Err(RuntimeError::Cancelled),
            _ => Ok(()),
        }
    }
}
