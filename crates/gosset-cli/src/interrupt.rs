//! Ctrl-C: the first one asks the running command to stop at a safe point, the second one ends the program at once.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::exit::Exit;
use crate::output;

/// Ctrl-C presses since the last [`take`].
static PRESSED: AtomicU32 = AtomicU32::new(0);

/// Whether a command is running that looks at [`requested`]; otherwise the first press already ends the program.
static WATCHED: AtomicBool = AtomicBool::new(false);

/// Whether the command wants the first press to be acknowledged.
static TOLD: AtomicBool = AtomicBool::new(false);

/// Installs the handler. Without one (no permission, unusual platform) Ctrl-C keeps its usual meaning.
pub(crate) fn install() {
    let _ = ctrlc::set_handler(|| {
        let earlier = PRESSED.fetch_add(1, Ordering::SeqCst);
        if earlier > 0 || !WATCHED.load(Ordering::SeqCst) {
            std::process::exit(Exit::Interrupted as i32);
        }
        if TOLD.load(Ordering::SeqCst) {
            output::note("stopping at the next safe point; Ctrl-C again stops at once");
        }
    });
}

/// From here on the command looks at [`requested`] within a fraction of a second; ends when the guard is dropped.
pub(crate) fn watch() -> Watch {
    start(false)
}

/// As [`watch`], for commands that may take a while to reach a safe point: says that the press was seen.
pub(crate) fn watch_slowly() -> Watch {
    start(true)
}

fn start(told: bool) -> Watch {
    PRESSED.store(0, Ordering::SeqCst);
    TOLD.store(told, Ordering::SeqCst);
    WATCHED.store(true, Ordering::SeqCst);
    Watch
}

/// See [`watch`].
#[derive(Debug)]
pub(crate) struct Watch;

impl Drop for Watch {
    fn drop(&mut self) {
        WATCHED.store(false, Ordering::SeqCst);
    }
}

/// Whether Ctrl-C was pressed.
pub(crate) fn requested() -> bool {
    PRESSED.load(Ordering::SeqCst) > 0
}

/// Whether Ctrl-C was pressed; forgets it.
pub(crate) fn take() -> bool {
    PRESSED.swap(0, Ordering::SeqCst) > 0
}
