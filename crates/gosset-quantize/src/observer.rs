//! How a long run tells where it is.

use std::time::Duration;

/// Something that happened in a run.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A tensor is being searched for values that cannot be coded.
    Scanning {
        /// The tensor.
        tensor: &'a str,
        /// Its number, from 0.
        index: usize,
        /// How many there are.
        total: usize,
    },
    /// An unfinished run is taken up.
    Resumed {
        /// Tensors that were finished before.
        done: usize,
        /// How many are to be quantized.
        total: usize,
    },
    /// The inputs of a tensor are being computed.
    Calibrating {
        /// The tensor.
        tensor: &'a str,
        /// Its number, from 0.
        index: usize,
        /// How many there are.
        total: usize,
    },
    /// The matrices of a block are being tuned.
    Tuning {
        /// The block.
        block: &'a str,
    },
    /// A tensor is being worked on.
    Started {
        /// The tensor.
        tensor: &'a str,
        /// Its number, from 0.
        index: usize,
        /// How many there are.
        total: usize,
        /// Its weights.
        n_weights: u64,
    },
    /// A tensor is finished.
    Finished {
        /// The tensor.
        tensor: &'a str,
        /// Its number, from 0.
        index: usize,
        /// How many there are.
        total: usize,
        /// Weights of all finished tensors.
        weights_done: u64,
        /// Weights of all tensors.
        weights_total: u64,
        /// Time since the first tensor was started.
        elapsed: Duration,
    },
    /// Something the user should know.
    Warning {
        /// One sentence.
        message: &'a str,
    },
    /// All tensors are finished; the file is being put together.
    Writing,
}

impl Event<'_> {
    /// Weights per second so far; `None` for other events than [`Event::Finished`].
    pub fn weights_per_second(&self) -> Option<f64> {
        match self {
            Event::Finished { weights_done, elapsed, .. } => {
                Some(*weights_done as f64 / elapsed.as_secs_f64().max(1e-9))
            }
            _ => None,
        }
    }
}

/// Receives events and may ask to stop.
pub trait Observer: Sync {
    /// Called for every event, on the thread of the run.
    fn event(&self, event: &Event<'_>);

    /// Asked between tensors; `true` stops the run, which leaves nothing behind, or its work folder if it can be taken up again.
    fn cancelled(&self) -> bool {
        false
    }
}

/// Ignores everything.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Observer for Silent {
    fn event(&self, _event: &Event<'_>) {}
}
