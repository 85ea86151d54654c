//! The text that a model is calibrated on, and the sequences of token ids that are taken from it.

use std::borrow::Cow;
use std::fs;
use std::path::{Path, PathBuf};

use gosset_transform::philox4x32_10;
use sha2::{Digest, Sha256};

use crate::error::RuntimeError;
use crate::text::Tokenizer;

/// Texts of licences that let anybody use them, none of it from Wikipedia; `assets/CALIBRATION.md` says what it is.
const BUILT_IN: &str = include_str!("../../assets/calibration.txt");

/// Name of the built-in text in records.
const BUILT_IN_NAME: &str = "built-in";

/// Last word of the counters that choose sequences, so that no other use of a seed shares them.
const COUNTER: u32 = u32::from_le_bytes(*b"cali");

/// Where the text comes from.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum CalibrationText {
    /// The text of this crate: about 650 KB of descriptions, speeches, prose, worked problems and programs; not WikiText.
    #[default]
    BuiltIn,
    /// A UTF-8 file, or all `.txt` files of a folder in the order of their names, joined by blank lines.
    Path(PathBuf),
}

/// A text that was read.
pub(super) struct LoadedText {
    pub(super) name: String,
    pub(super) text: Cow<'static, str>,
    pub(super) sha256: String,
}

impl CalibrationText {
    /// The text itself, with which an evaluation compares its own.
    ///
    /// # Errors
    /// [`RuntimeError::Io`] for what cannot be read, [`RuntimeError::CalibrationText`] for bytes that are no UTF-8 and folders
    /// without a text.
    pub fn read(&self) -> Result<Cow<'static, str>, RuntimeError> {
        Ok(self.load()?.text)
    }

    pub(super) fn load(&self) -> Result<LoadedText, RuntimeError> {
        let (name, text) = match self {
            CalibrationText::BuiltIn => (BUILT_IN_NAME.to_owned(), Cow::Borrowed(BUILT_IN)),
            CalibrationText::Path(path) => {
                // The last part of the path as it was resolved, so that `.` has a name too.
                let real = fs::canonicalize(path).map_err(RuntimeError::io(path))?;
                let name = real.file_name().unwrap_or(real.as_os_str()).to_string_lossy().into_owned();
                (name, Cow::Owned(read_path(path)?))
            }
        };
        let sha256 = hex(&Sha256::digest(text.as_bytes()));
        Ok(LoadedText { name, text, sha256 })
    }
}

fn read_path(path: &Path) -> Result<String, RuntimeError> {
    if !fs::metadata(path).map_err(RuntimeError::io(path))?.is_dir() {
        return read_file(path);
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(path).map_err(RuntimeError::io(path))? {
        let file = entry.map_err(RuntimeError::io(path))?.path();
        if file.extension().is_some_and(|e| e.eq_ignore_ascii_case("txt")) && file.is_file() {
            files.push(file);
        }
    }
    if files.is_empty() {
        let detail = "expected a folder with .txt files, found none".to_owned();
        return Err(RuntimeError::CalibrationText { path: path.to_owned(), detail });
    }
    files.sort();
    let texts = files.iter().map(|file| read_file(file)).collect::<Result<Vec<_>, _>>()?;
    Ok(texts.iter().map(|text| text.trim_end()).collect::<Vec<_>>().join("\n\n"))
}

fn read_file(path: &Path) -> Result<String, RuntimeError> {
    String::from_utf8(fs::read(path).map_err(RuntimeError::io(path))?).map_err(|e| RuntimeError::CalibrationText {
        path: path.to_owned(),
        detail: format!("expected UTF-8, found another byte at {}", e.utf8_error().valid_up_to()),
    })
}

/// Token ids in sequences that do not see each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sequences {
    /// All sequences after each other.
    pub(super) ids: Vec<u32>,
    /// Tokens of every sequence but the last, which may be shorter.
    pub(super) window: usize,
    /// Tokens of the whole text.
    pub(super) available: usize,
}

impl Sequences {
    /// `tokens` ids out of the text, in sequences of `window`.
    ///
    /// Of a longer text, the sequences of a cut into windows that `seed` chooses, in the order of the text; the last one is cut
    /// to the number of tokens. Of a shorter one all of it. A family whose tokenizer puts a token in front of a text gets it in
    /// front of every sequence, as in evaluations.
    pub(super) fn new(
        tokenizer: &Tokenizer,
        text: &str,
        tokens: usize,
        window: usize,
        seed: u64,
    ) -> Result<Self, RuntimeError> {
        let leading = match tokenizer.leading_ids() {
            [bos] => Some(*bos),
            _ => None,
        };
        let ids = tokenizer.encode_with_bos(text, leading)?;
        Ok(Self::choose(&ids, leading, tokens, window, seed))
    }

    fn choose(ids: &[u32], leading: Option<u32>, tokens: usize, window: usize, seed: u64) -> Self {
        let (available, tokens) = (ids.len(), tokens.min(ids.len()));
        let window = window.min(tokens).max(1);
        let wanted = tokens.div_ceil(window);
        let whole = available / window;
        // Without room for a choice the text is taken from its start.
        let starts = if wanted < whole { sample(whole, wanted, seed) } else { (0..wanted).collect() };
        let mut chosen: Vec<u32> =
            starts.iter().flat_map(|i| ids.iter().skip(i * window).take(window).copied()).collect();
        chosen.truncate(tokens);
        if let Some(leading) = leading {
            chosen.iter_mut().step_by(window).for_each(|first| *first = leading);
        }
        Self { ids: chosen, window, available }
    }

    /// Number of sequences.
    pub(super) fn n_sequences(&self) -> usize {
        self.ids.len().div_ceil(self.window)
    }

    /// Tokens of sequence `i` within all.
    pub(super) fn range(&self, i: usize) -> std::ops::Range<usize> {
        i * self.window..((i + 1) * self.window).min(self.ids.len())
    }

    /// SHA-256 of the ids, little-endian u32.
    pub(super) fn sha256(&self) -> String {
        let mut hash = Sha256::new();
        self.ids.iter().for_each(|id| hash.update(id.to_le_bytes()));
        hex(&hash.finalize())
    }
}

/// `k` of `0..n` in ascending order: those with the smallest random words.
fn sample(n: usize, k: usize, seed: u64) -> Vec<usize> {
    let key = [seed as u32, (seed >> 32) as u32];
    let word = |i: usize| philox4x32_10([i as u32, (i as u64 >> 32) as u32, 0, COUNTER], key);
    let mut all: Vec<_> = (0..n).map(|i| (word(i), i)).collect();
    all.sort_unstable();
    all.truncate(k);
    let mut chosen: Vec<usize> = all.into_iter().map(|(_, i)| i).collect();
    chosen.sort_unstable();
    chosen
}

/// Lowercase hex.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_are_windows_of_the_text_in_its_order() {
        let ids: Vec<u32> = (0..1000).collect();
        for seed in 0..20 {
            let chosen = Sequences::choose(&ids, None, 250, 64, seed);
            assert_eq!((chosen.ids.len(), chosen.window, chosen.n_sequences()), (250, 64, 4));
            let starts: Vec<u32> = chosen.ids.iter().step_by(64).copied().collect();
            assert!(starts.is_sorted_by(|a, b| a < b) && starts.iter().all(|s| s % 64 == 0), "{starts:?}");
            for i in 0..4 {
                let sequence = &chosen.ids[chosen.range(i)];
                assert!(sequence.windows(2).all(|w| w[1] == w[0] + 1));
            }
            assert_eq!(chosen, Sequences::choose(&ids, None, 250, 64, seed));
        }
        let firsts: std::collections::HashSet<_> =
            (0..20).map(|seed| Sequences::choose(&ids, None, 250, 64, seed).ids).collect();
        assert!(firsts.len() > 10, "seeds choose");
    }

    #[test]
    fn a_short_text_is_taken_whole() {
        let ids: Vec<u32> = (0..100).collect();
        for (tokens, window, n) in [(500, 64, 2), (500, 2048, 1), (100, 30, 4), (99, 100, 1)] {
            let chosen = Sequences::choose(&ids, None, tokens, window, 3);
            assert_eq!(chosen.ids, ids[..tokens.min(100)], "{tokens} {window}");
            assert_eq!(chosen.n_sequences(), n);
        }
        assert_eq!(Sequences::choose(&[], None, 10, 4, 0).ids, Vec::<u32>::new());
    }

    #[test]
    fn every_sequence_starts_with_the_leading_token() {
        let ids: Vec<u32> = (5..105).collect();
        let chosen = Sequences::choose(&ids, Some(1), 40, 20, 3);
        assert!(chosen.ids.chunks(20).all(|s| s[0] == 1 && s[1] > 1));
    }

    #[test]
    fn a_folder_is_its_texts_in_the_order_of_their_names() {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in [("b.txt", "second\n"), ("a.TXT", "first\n\n"), ("c.md", "no text")] {
            fs::write(dir.path().join(name), text).unwrap();
        }
        let text = CalibrationText::Path(dir.path().to_owned());
        assert_eq!(text.read().unwrap(), "first\n\nsecond");
        fs::write(dir.path().join("d.txt"), b"ok\xff").unwrap();
        let error = text.read().unwrap_err().to_string();
        assert!(error.contains("d.txt") && error.contains("found another byte at 2"), "{error}");
        let empty = tempfile::tempdir().unwrap();
        assert!(matches!(
            CalibrationText::Path(empty.path().to_owned()).read(),
            Err(RuntimeError::CalibrationText { .. })
        ));
        assert!(matches!(CalibrationText::Path("nowhere".into()).read(), Err(RuntimeError::Io { .. })));
    }

    #[test]
    fn the_built_in_text_is_the_one_that_is_attributed() {
        let attribution = include_str!("../../assets/CALIBRATION.md");
        let text = CalibrationText::BuiltIn.load().unwrap();
        assert!(attribution.contains(&text.sha256), "{}", text.sha256);
        assert!((500_000..700_000).contains(&text.text.len()));
    }
}
