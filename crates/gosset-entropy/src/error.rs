//! What can be wrong with bits that came from elsewhere.

use core::fmt;

/// Why bits or tables were rejected.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum EntropyError {
    /// A bit range reaches beyond the words it points into.
    RangeOutsideWords {
        /// First bit of the range.
        start_bit: u64,
        /// Length of the range in bits.
        len_bits: u64,
        /// Bits in the words.
        available_bits: u64,
    },
    /// A read reaches beyond the end of its range.
    Truncated {
        /// Bit position of the read, from the start of the range.
        position: u64,
        /// Bits asked for.
        requested: u32,
        /// Length of the range in bits.
        len_bits: u64,
    },
    /// The symbols of a stream do not end where the stream ends.
    LengthMismatch {
        /// First bit of the stream.
        start_bit: u64,
        /// Length of the stream in bits.
        expected: u64,
        /// Bits that its symbols took.
        consumed: u64,
    },
    /// A code parameter is out of range.
    InvalidParameter {
        /// The parameter.
        k: u32,
        /// Largest allowed value.
        max: u32,
    },
    /// A stream is too long for a 16-bit length.
    StreamTooLong {
        /// Index of the stream in its page.
        stream_idx: usize,
        /// Its length in bits.
        len_bits: u64,
    },
    /// More streams than a page holds.
    PageFull {
        /// Streams of a full page.
        capacity: usize,
    },
    /// A page other than the last is not full.
    ShortPage {
        /// Index of the page.
        page_idx: usize,
        /// Streams it has.
        n_streams: usize,
        /// Streams it must have.
        expected: usize,
    },
    /// A table has the wrong number of entries.
    TableLength {
        /// Which table.
        table: &'static str,
        /// Entries it must have.
        expected: u64,
        /// Entries it has.
        found: u64,
    },
    /// A page starts off a word boundary.
    UnalignedPage {
        /// Index of the page.
        page_idx: usize,
        /// Its base in bits.
        base: u64,
    },
    /// A page starts before the end of the one before it.
    OverlappingPages {
        /// Index of the later page.
        page_idx: usize,
        /// Its base in bits.
        base: u64,
        /// End of the page before it, in bits.
        previous_end: u64,
    },
    /// The frequencies of an ANS table are not what they must be.
    Frequencies {
        /// Number of frequencies.
        n: usize,
        /// Their sum.
        sum: u64,
        /// Largest that is allowed.
        largest_allowed: u16,
    },
    /// The values of an ANS table or the order of its escape are out of range.
    FrequencyRun {
        /// First value.
        first: i64,
        /// Last value.
        last: i64,
        /// Distance of the values.
        step: i32,
        /// Order of the escape code.
        escape_k: u8,
    },
    /// An ANS stream is too long for a 16-bit length.
    StreamWords {
        /// Words that it takes.
        n_words: u64,
        /// Most words that a stream may have.
        max: usize,
    },
    /// The symbols of an ANS stream do not end in its last word.
    StreamEnd {
        /// Bits that they took.
        consumed: u64,
        /// Length of the stream in bits.
        len_bits: u64,
    },
    /// A lane of an ANS stream does not end in state 0.
    FinalState {
        /// The lane.
        lane: usize,
        /// Its last state.
        found: u32,
    },
    /// The bits after the last symbol of an ANS stream are not zero.
    StreamPadding {
        /// The last word.
        last_word: u32,
        /// Number of its low bits that are padding.
        padding_bits: u32,
    },
    /// An escape of an ANS stream holds no 32-bit value.
    Escape,
    /// An ANS stream is too short to hold so many symbols, however cheap they are.
    StreamTooShort {
        /// Symbols expected in it.
        n_symbols: u64,
        /// Words that it has.
        n_words: u64,
    },
}

impl fmt::Display for EntropyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RangeOutsideWords { start_bit, len_bits, available_bits } => {
                write!(
                    f,
                    "bit {start_bit}: range of {len_bits} bits reaches beyond the {available_bits} bits available"
                )
            }
            Self::Truncated { position, requested, len_bits } => {
                write!(f, "bit {position}: read of {requested} bits reaches beyond the end at bit {len_bits}")
            }
            Self::LengthMismatch { start_bit, expected, consumed } => {
                write!(f, "stream at bit {start_bit}: expected {expected} bits of symbols, found {consumed}")
            }
            Self::InvalidParameter { k, max } => write!(f, "code parameter {k}: expected at most {max}"),
            Self::StreamTooLong { stream_idx, len_bits } => {
                write!(f, "stream {stream_idx} of the page: expected at most {} bits, found {len_bits}", u16::MAX)
            }
            Self::PageFull { capacity } => write!(f, "page is full: expected at most {capacity} streams"),
            Self::ShortPage { page_idx, n_streams, expected } => {
                write!(f, "page {page_idx}: expected {expected} streams in every page but the last, found {n_streams}")
            }
            Self::TableLength { table, expected, found } => {
                write!(f, "table of {table}: expected {expected} entries, found {found}")
            }
            Self::UnalignedPage { page_idx, base } => {
                write!(f, "page {page_idx}: expected a base at a multiple of 32 bits, found {base}")
            }
            Self::OverlappingPages { page_idx, base, previous_end } => {
                write!(f, "page {page_idx}: expected a base of at least {previous_end} bits, found {base}")
            }
            Self::Frequencies { n, sum, largest_allowed } => {
                write!(
                    f,
                    "frequency table: expected at least 2 frequencies from 1 to {largest_allowed} with sum 1024, found {n} with \
                     sum {sum}"
                )
            }
            Self::FrequencyRun { first, last, step, escape_k } => {
                write!(
                    f,
                    "frequency table: expected values of at most 32767 in magnitude, a step of at least 1 and an escape order \
                     of at most 16, found {first} to {last} in steps of {step} and order {escape_k}"
                )
            }
            Self::StreamWords { n_words, max } => write!(f, "stream: expected at most {max} words, found {n_words}"),
            Self::StreamEnd { consumed, len_bits } => {
                write!(
                    f,
                    "stream: expected symbols to end in the last word of {len_bits} bits, found {consumed} bits of them"
                )
            }
            Self::FinalState { lane, found } => write!(f, "lane {lane}: expected final state 0, found {found}"),
            Self::StreamPadding { last_word, padding_bits } => {
                write!(
                    f,
                    "stream: expected {padding_bits} zero bits after the last symbol, found last word {last_word:#010x}"
                )
            }
            Self::StreamTooShort { n_symbols, n_words } => {
                write!(
                    f,
                    "stream: expected at least {} words for {n_symbols} symbols, found {n_words}",
                    n_symbols.div_ceil(2048)
                )
            }
            Self::Escape => f.write_str("escape: expected a value of 32 bits, found a longer one"),
        }
    }
}

impl core::error::Error for EntropyError {}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn messages_say_where_what_and_what_was_expected() {
        let error = EntropyError::LengthMismatch { start_bit: 912, expected: 100, consumed: 103 };
        assert_eq!(error.to_string(), "stream at bit 912: expected 100 bits of symbols, found 103");
    }
}
