//! Rows and pages: where the bits of strings lie. The formats are those of [`crate::shift`].

use super::Trellis;
use super::search::Step;
use crate::KvError;

const WORD_BYTES: usize = 4;

/// Writes the string whose steps end in `states`, first bit highest; `string` has exactly as many bits.
pub(crate) fn write_states(steps: &[Step], states: &[u32], string: &mut [u8]) {
    let (mut held, mut n_held, mut at) = (0u64, 0, 0);
    for (step, &state) in steps.iter().zip(states) {
        held = held << step.bits | u64::from(state & ((1 << step.bits) - 1));
        n_held += step.bits;
        while n_held >= 8 {
            n_held -= 8;
            string[at] = (held >> n_held) as u8;
            at += 1;
        }
    }
}

/// Where a step's window ends: with the word before the string in front, that of the last L bits.
#[derive(Debug, Clone, Copy)]
struct Window {
    word: u32,
    shift: u32,
    pair: u32,
}

/// Reads the pairs of strings of one pattern.
#[derive(Debug, Clone)]
pub(crate) struct Reader {
    windows: Vec<Window>,
    bytes: usize,
}

impl Reader {
    /// For pairs with these bits, whose sum is a multiple of 8 and 16 at least.
    pub(crate) fn new(bits: &[u8]) -> Self {
        let mut end = 32;
        let mut windows = Vec::new();
        for (pair, &bits) in bits.iter().enumerate().filter(|(_, bits)| **bits > 0) {
            end += u32::from(bits);
            windows.push(Window { word: (end - 1) / 32, shift: 31 - (end - 1) % 32, pair: pair as u32 });
        }
        Self { windows, bytes: (end as usize - 32) / 8 }
    }

    /// The string as words, the last in part, with the bits before the first in front.
    pub(crate) fn words(&self, string: &[u8], words: &mut Vec<u32>) {
        words.clear();
        words.push(0);
        words.extend(string.chunks(WORD_BYTES).map(|bytes| {
            let mut word = [0; WORD_BYTES];
            word[..bytes.len()].copy_from_slice(bytes);
            u32::from_be_bytes(word)
        }));
        self.close(words);
    }

    /// Fills in the bits before the first: the last of the ring.
    fn close(&self, words: &mut [u32]) {
        let (last, odd) = (words.len() - 1, self.bytes % WORD_BYTES);
        words[0] = match odd {
            0 => words[last],
            _ => (u64::from(words[last - 1]) << 32 | u64::from(words[last])).wrapping_shr(32 - 8 * odd as u32) as u32,
        };
    }

    /// Writes `scale` times the points of a string to `out`; pairs without bits are left as they are.
    #[inline]
    pub(crate) fn read(&self, trellis: &Trellis, words: &[u32], scale: f32, out: &mut [f32]) {
        let pairs = out.as_chunks_mut::<2>().0;
        for window in &self.windows {
            let at = window.word as usize;
            let bits = (u64::from(words[at - 1]) << 32 | u64::from(words[at])) >> window.shift;
            pairs[window.pair as usize] = trellis.pair(bits as u32).map(|c| scale * c);
        }
    }
}

/// Sizes of rows and pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PageFormat {
    /// Bytes of scales of a row: 0 or 1.
    pub(crate) field: usize,
    /// Bytes of a string.
    pub(crate) string: usize,
}

impl PageFormat {
    pub(crate) fn row_bytes(self) -> usize {
        self.field + self.string
    }

    /// Appends the page of `rows`.
    pub(crate) fn pack(self, rows: &[u8], page: &mut Vec<u8>) {
        let rows = || rows.chunks_exact(self.row_bytes());
        page.extend(rows().flat_map(|row| &row[..self.field]));
        let whole = self.string / WORD_BYTES * WORD_BYTES;
        for at in (self.field..self.field + whole).step_by(WORD_BYTES) {
            page.extend(rows().flat_map(|row| row[at..at + WORD_BYTES].iter().rev()));
        }
        page.extend(rows().flat_map(|row| &row[self.field + whole..]));
    }

    /// The parts of a page of `n` vectors.
    pub(crate) fn view(self, page: &[u8], n: usize) -> Result<PageView<'_>, KvError> {
        let expected = n * self.row_bytes();
        if page.len() != expected {
            let reason = format!("{} bytes, expected {expected}", page.len());
            return Err(KvError::Page { n, reason });
        }
        let (fields, strings) = page.split_at(n * self.field);
        let (words, rest) = strings.split_at(n * (self.string / WORD_BYTES * WORD_BYTES));
        Ok(PageView { n, fields, words: words.as_chunks().0, rest, odd: self.string % WORD_BYTES })
    }

    /// The rows of a page.
    pub(crate) fn unpack(self, page: &[u8], rows: &mut [u8]) -> Result<(), KvError> {
        let n = rows.len() / self.row_bytes();
        let view = self.view(page, n)?;
        for (r, row) in rows.chunks_exact_mut(self.row_bytes()).enumerate() {
            let (field, string) = row.split_at_mut(self.field);
            field.copy_from_slice(&view.fields[r * self.field..][..self.field]);
            let (whole, rest) = string.split_at_mut(string.len() - view.odd);
            for (bytes, word) in whole.as_chunks_mut().0.iter_mut().zip(view.words_of(r)) {
                *bytes = word.to_be_bytes();
            }
            rest.copy_from_slice(view.rest_of(r));
        }
        Ok(())
    }
}

/// A page of `n` rows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PageView<'a> {
    n: usize,
    fields: &'a [u8],
    words: &'a [[u8; WORD_BYTES]],
    rest: &'a [u8],
    odd: usize,
}

impl<'a> PageView<'a> {
    /// The scale of a row, if rows have one.
    pub(crate) fn field(&self, row: usize) -> Option<u8> {
        self.fields.get(row).copied()
    }

    fn words_of(&self, row: usize) -> impl Iterator<Item = u32> + 'a {
        // Strings of less than a word have none.
        self.words.get(row..).unwrap_or_default().iter().step_by(self.n).map(|bytes| u32::from_le_bytes(*bytes))
    }

    fn rest_of(&self, row: usize) -> &'a [u8] {
        &self.rest[row * self.odd..][..self.odd]
    }

    /// The string of a row as [`Reader::words`] gives it.
    pub(crate) fn words(&self, reader: &Reader, row: usize, words: &mut Vec<u32>) {
        words.clear();
        words.push(0);
        words.extend(self.words_of(row));
        if self.odd > 0 {
            let mut word = [0; WORD_BYTES];
            word[..self.odd].copy_from_slice(self.rest_of(row));
            words.push(u32::from_be_bytes(word));
        }
        reader.close(words);
    }
}
