//! What the system may do with the cached pages of a file that is read by position. Advice: nothing depends on it but memory and time.

use std::fs::File;

/// Asks for `len` bytes from byte `at` to be read ahead, without waiting for them.
pub fn read_ahead(file: &File, at: u64, len: u64) {
    advise(file, at, len, true);
}

/// Gives back the cached pages of `len` bytes from byte `at`: they will not be read again.
pub fn release(file: &File, at: u64, len: u64) {
    advise(file, at, len, false);
}

#[cfg(target_os = "linux")]
fn advise(file: &File, at: u64, len: u64, is_wanted: bool) {
    use rustix::fs::Advice;
    // A length of zero would mean the rest of the file.
    if let Some(len) = std::num::NonZeroU64::new(len) {
        let advice = if is_wanted { Advice::WillNeed } else { Advice::DontNeed };
        let _ = rustix::fs::fadvise(file, at, Some(len), advice);
    }
}

#[cfg(not(target_os = "linux"))]
fn advise(_file: &File, _at: u64, _len: u64, _is_wanted: bool) {}
