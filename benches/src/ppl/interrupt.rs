//! Ctrl-C.

use std::{
    fs,
    path::PathBuf,
    process,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use anyhow::{Context, Result};

use super::INTERRUPTED;

/// What Ctrl-C needs to know.
///
/// While a file is being written the writer is asked to stop and cleans up after itself. At any other time there is nothing to
/// clean but the scratch folder, and scoring a window cannot be cut short, so the process ends at once.
#[derive(Debug, Clone)]
pub(super) struct Interrupt(Arc<State>);

#[derive(Debug, Default)]
struct State {
    raised: AtomicBool,
    writing: AtomicBool,
    scratch: Mutex<Option<PathBuf>>,
}

impl Interrupt {
    /// Takes Ctrl-C over; once per process.
    pub(super) fn install() -> Result<Self> {
        let state = Arc::new(State::default());
        let seen = Arc::clone(&state);
        ctrlc::set_handler(move || {
            let again = seen.raised.swap(true, Ordering::SeqCst);
            if again || !seen.writing.load(Ordering::SeqCst) {
                if let Some(folder) = seen.scratch.lock().unwrap_or_else(PoisonError::into_inner).take() {
                    // Nothing is left to tell the user if even this fails.
                    let _ = fs::remove_dir_all(folder);
                }
                process::exit(INTERRUPTED.into());
            }
        })
        .context("installing the Ctrl-C handler")?;
        Ok(Interrupt(state))
    }

    /// The folder to remove if the process is ended.
    pub(super) fn set_scratch(&self, folder: PathBuf) {
        *self.0.scratch.lock().unwrap_or_else(PoisonError::into_inner) = Some(folder);
    }

    /// Whether Ctrl-C was pressed.
    pub(super) fn raised(&self) -> bool {
        self.0.raised.load(Ordering::SeqCst)
    }

    /// Runs `write`, which must watch [`Self::raised`].
    pub(super) fn while_writing<T>(&self, write: impl FnOnce() -> T) -> T {
        self.0.writing.store(true, Ordering::SeqCst);
        let result = write();
        self.0.writing.store(false, Ordering::SeqCst);
        result
    }
}
