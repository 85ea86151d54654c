//! The folder that containers pass through, and Ctrl-C.

use std::path::Path;
use std::process;

use anyhow::{Context, Result};
use tempfile::TempDir;

/// Exit code of a run that Ctrl-C ended.
const INTERRUPTED: i32 = 130;

/// A temporary folder that is removed at the end, also at the one that Ctrl-C makes.
#[derive(Debug)]
pub(super) struct Scratch(TempDir);

impl Scratch {
    /// A new folder; Ctrl-C is left to whoever has it.
    ///
    /// # Errors
    /// Those of the file system.
    pub(super) fn new() -> Result<Self> {
        Ok(Scratch(tempfile::tempdir().context("a folder for containers")?))
    }

    /// A new folder, with Ctrl-C taken over; once per process.
    pub(super) fn with_interrupt() -> Result<Self> {
        let scratch = Scratch::new()?;
        let folder = scratch.path().to_owned();
        ctrlc::set_handler(move || {
            // The table is only written when it is whole, so this folder is all there is to clean; nothing is left to tell the
            // user if even that fails.
            let _ = std::fs::remove_dir_all(&folder);
            process::exit(INTERRUPTED);
        })
        .context("installing the Ctrl-C handler")?;
        Ok(scratch)
    }

    /// The folder.
    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }
}
