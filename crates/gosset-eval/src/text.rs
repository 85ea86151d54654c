//! Texts: how rows are joined and how a text and its tokens are identified.

use std::borrow::Cow;

use sha2::{Digest, Sha256};

use crate::TextJoin;

/// The string that is tokenized: `raw` itself, or its rows joined by `"\n\n"`.
///
/// A row of the raw set is a line of the file. A line of nothing but white space is the empty row; any other keeps its trailing
/// newline, so that two neighbouring lines end up three newlines apart. This is what `"\n\n".join(dataset["text"])` gives.
///
/// ```
/// use gosset_eval::{join_rows, TextJoin};
/// assert_eq!(join_rows(" \n = A = \n \n b\n", TextJoin::GptqRows), "\n\n = A = \n\n\n\n\n b\n");
/// ```
pub fn join_rows(raw: &str, join: TextJoin) -> Cow<'_, str> {
    match join {
        TextJoin::Raw => Cow::Borrowed(raw),
        TextJoin::GptqRows => {
            let rows: Vec<&str> =
                raw.split_inclusive('\n').map(|row| if row.trim().is_empty() { "" } else { row }).collect();
            Cow::Owned(rows.join("\n\n"))
        }
    }
}

/// SHA-256 of `bytes` in lowercase hex.
pub fn sha256_hex(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// SHA-256 of token ids written as little-endian 32-bit integers, in lowercase hex.
pub fn sha256_ids(ids: &[u32]) -> String {
    let mut hasher = Sha256::new();
    for id in ids {
        hasher.update(id.to_le_bytes());
    }
    hex(&hasher.finalize())
}

fn hex(digest: &[u8]) -> String {
    digest.iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_text_is_left_alone() {
        let text = " \n = A = \n \n b";
        assert!(matches!(join_rows(text, TextJoin::Raw), Cow::Borrowed(t) if t == text));
    }

    #[test]
    fn hashes_match_the_published_test_vector() {
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(sha256_hex(b"abc"), abc);
        assert_eq!(sha256_ids(&[0x0201, 5]), sha256_hex(&[1, 2, 0, 0, 5, 0, 0, 0]));
    }
}
