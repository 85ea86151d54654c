//! What strangers' bytes are fed to: one function per format, shared by the fuzz targets and by the test that replays their corpora.
//!
//! [`check`] runs one of them and panics where it allocates more than the [limit](Entry::limit) of the input's size. Anything but a
//! panic, a signal or an end without end is right: values or a typed error. Where there is a law (the same values in any pieces,
//! rows that come back from their page), the function asserts it.

mod files;
mod kv;
mod matrix;
mod text;

pub use files::{SEPARATOR, repaired};
pub use kv::{n_codecs, page_of};
pub use matrix::{matrix_input, parse_matrix, unisvq_input};

use peak_alloc::PeakAlloc;

#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

/// One kind of input.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// Name of the fuzz target and of the folder of its corpus.
    pub name: &'static str,
    /// Feeds an input to everything that reads it.
    run: fn(&[u8]),
    /// Bytes that may be allocated for any input.
    base: usize,
    /// Bytes that may be allocated for each byte of the input.
    factor: usize,
}

const MIB: usize = 1 << 20;

/// A coded matrix may hold 64 weights for a bit of its planes, hence 512 for a byte. Decoding it row by row may take one row, and
/// columns all of it, in f32, twice here; a transform and its signs as much again.
const MATRIX: usize = 4 * 4 * 512;

/// Values of JSON take some 100 bytes each, of which the shortest have two characters; names are kept several times.
const JSON: usize = 256;

/// All of them.
pub const ENTRIES: &[Entry] = &[
    Entry { name: "rice", run: matrix::rice, base: 4 * MIB, factor: MATRIX },
    Entry { name: "ans", run: matrix::ans, base: 4 * MIB, factor: MATRIX },
    Entry { name: "trellis", run: matrix::trellis, base: 4 * MIB, factor: MATRIX },
    Entry { name: "shift", run: matrix::shift, base: 16 * MIB, factor: MATRIX },
    Entry { name: "columns", run: matrix::columns, base: 16 * MIB, factor: MATRIX },
    Entry { name: "unisvq", run: matrix::unisvq, base: 4 * MIB, factor: MATRIX },
    Entry { name: "kv_pages", run: kv::pages, base: 4 * MIB, factor: 0 },
    Entry { name: "container", run: files::container, base: 16 * MIB, factor: MATRIX },
    Entry { name: "safetensors", run: files::safetensors, base: 16 * MIB, factor: JSON },
    Entry { name: "folder", run: files::folder, base: 16 * MIB, factor: JSON },
    Entry { name: "gguf", run: files::gguf, base: 16 * MIB, factor: 4 * JSON },
    Entry { name: "config", run: text::config, base: MIB, factor: JSON },
    Entry { name: "tokenizer", run: text::tokenizer, base: 64 * MIB, factor: 4 * JSON },
    Entry { name: "chat_template", run: text::chat_template, base: 256 * MIB, factor: 4 * JSON },
    Entry { name: "kv_spec", run: kv::spec, base: 64 * MIB, factor: JSON },
];

impl Entry {
    /// Most bytes that may be allocated at once for an input of `len` bytes.
    pub fn limit(&self, len: usize) -> usize {
        self.base + self.factor * len
    }
}

/// The entry of that name.
///
/// # Panics
/// If there is none.
pub fn entry(name: &str) -> &'static Entry {
    ENTRIES.iter().find(|entry| entry.name == name).unwrap_or_else(|| panic!("no entry is named {name}"))
}

/// Makes what the entry `name` needs for every input: codecs of caches are made once, and what they take is theirs, not an input's.
pub fn prepare(name: &str) {
    if name == "kv_pages" {
        _ = n_codecs();
    }
}

/// Feeds `data` to the entry `name`; the bytes that were allocated at once.
///
/// # Panics
/// If they are more than the limit, or where the entry finds a law broken.
pub fn check(name: &str, data: &[u8]) -> usize {
    let entry = entry(name);
    prepare(name);
    HEAP.reset_peak_usage();
    let before = HEAP.current_usage();
    (entry.run)(data);
    let (peak, limit) = (HEAP.peak_usage().saturating_sub(before), entry.limit(data.len()));
    assert!(
        peak <= limit,
        "{name}: {} bytes of input made {peak} bytes be allocated, expected {limit} at most",
        data.len()
    );
    peak
}

/// For fuzz targets: as [`check`], with panics that the code under test catches left alone and one line for those that it does not.
#[allow(clippy::print_stderr, reason = "the last line of a fuzz target that found something")]
pub fn fuzz(name: &'static str, data: &[u8]) {
    static ONCE: std::sync::Once = std::sync::Once::new();
    // libFuzzer's own hook ends the process on every panic, also on those of libraries that are caught and told as errors.
    ONCE.call_once(|| std::panic::set_hook(Box::new(|_| {})));
    if let Err(panic) = std::panic::catch_unwind(|| check(name, data)) {
        let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
        eprintln!("{name}: {text}");
        std::process::abort();
    }
}
