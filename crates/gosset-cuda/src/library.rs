//! Whether a library is on this machine: asked before cudarc loads it, which panics where it is not.

use std::env::consts::{DLL_PREFIX, DLL_SUFFIX};

/// Endings that NVIDIA gives the files, beside none: `libcuda.so.1`, `libcublas.so.12`. Each is one that cudarc tries as well.
const UNIX_VERSIONS: &[&str] = &[".1", ".13", ".12", ".11"];
/// The same on Windows: `cublas64_12.dll`.
const WINDOWS_VERSIONS: &[&str] = &["64", "64_13", "64_12", "64_11"];

/// Whether one of the libraries `names` (without prefix, version and ending) can be loaded.
///
/// cudarc's own question is compiled away when another crate of the program asks cudarc to link the libraries at build time, as
/// candle's `cuda` feature does; this one is always there.
pub(crate) fn is_present(names: &[&str]) -> bool {
    names.iter().flat_map(|name| file_names(name)).any(|file| {
        // SAFETY: NVIDIA's libraries may be loaded and unloaded at any time; their initialisers touch no state of ours.
        unsafe { libloading::Library::new(file) }.is_ok()
    })
}

fn file_names(name: &str) -> impl Iterator<Item = String> {
    let plain = format!("{DLL_PREFIX}{name}{DLL_SUFFIX}");
    let unix = UNIX_VERSIONS.iter().map(|version| format!("{DLL_PREFIX}{name}{DLL_SUFFIX}{version}"));
    let windows = WINDOWS_VERSIONS.iter().map(|version| format!("{DLL_PREFIX}{name}{version}{DLL_SUFFIX}"));
    let versioned: Vec<String> = if cfg!(windows) { windows.collect() } else { unix.collect() };
    std::iter::once(plain).chain(versioned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_nobody_has_is_absent() {
        assert!(!is_present(&["gosset-no-such-library", "nor-this"]));
        assert!(!is_present(&[]));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn names_are_those_of_the_driver() {
        let names: Vec<String> = file_names("cuda").collect();
        assert_eq!(names[..2], ["libcuda.so", "libcuda.so.1"]);
    }
}
