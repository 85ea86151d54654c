//! Whether a calibration text is the text that a model is measured on, or of its kind.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::sha256_hex;

/// Characters of a shingle: long enough that two texts share one only if one quotes the other, or both a third.
const SHINGLE: usize = 64;

/// Share of common shingles from which texts are said to coincide.
const COINCIDE: f64 = 0.01;

/// Marks that the makers of WikiText put around separators inside numbers and words.
const WIKITEXT_MARKS: [&str; 3] = [" @-@ ", " @,@ ", " @.@ "];

/// Characters per mark up to which a text is of that kind; WikiText-2 has one in some 400.
const CHARS_PER_MARK: usize = 4000;

/// How a calibration text relates to the text of an evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TextOverlap {
    /// Whether the two are one text.
    pub same: bool,
    /// Part of the evaluation text that stands in the calibration text as well, in shingles of 64 characters.
    pub shared: f64,
    /// Whether both are in the notation of WikiText: the calibration is in-domain even if nothing is shared.
    pub in_domain: bool,
}

impl TextOverlap {
    /// Of these two texts. White space counts as one blank.
    ///
    /// ```
    /// use gosset_eval::TextOverlap;
    /// let text: String = (0..500).map(|i| format!("sentence {i}. ")).collect();
    /// let half = &text[..text.len() / 2];
    /// let found = TextOverlap::of(&text, half);
    /// assert!(!found.same && (0.45..0.55).contains(&found.shared));
    /// assert!(found.warning("x").is_some_and(|w| w.contains("stands in the calibration text x")));
    /// ```
    pub fn of(evaluation: &str, calibration: &str) -> Self {
        TextOverlap {
            same: sha256_hex(evaluation.as_bytes()) == sha256_hex(calibration.as_bytes()),
            shared: shared(&plain(evaluation), &plain(calibration)),
            in_domain: [evaluation, calibration].iter().all(|text| is_wikitext(text)),
        }
    }

    /// What has to be said before the figures of a model that was calibrated on the text `name`; `None` if nothing.
    pub fn warning(&self, name: &str) -> Option<String> {
        if self.same {
            return Some(format!("the calibration text {name} is the text of the evaluation: its figures are no test"));
        }
        if self.shared >= COINCIDE {
            let percent = 100.0 * self.shared;
            return Some(format!(
                "{percent:.0} % of the text of the evaluation stands in the calibration text {name}: its figures are no test"
            ));
        }
        let in_domain =
            || format!("the calibration text {name} is in-domain: WikiText, like the text of the evaluation");
        self.in_domain.then(in_domain)
    }
}

/// Runs of white space as one blank, so that line breaks do not hide a copy.
fn plain(text: &str) -> Vec<char> {
    let mut out = Vec::with_capacity(text.len());
    for word in text.split_whitespace() {
        out.extend(word.chars());
        out.push(' ');
    }
    out
}

/// Part of the shingles of `evaluation`, taken side by side, that occur anywhere in `calibration`.
fn shared(evaluation: &[char], calibration: &[char]) -> f64 {
    let mut seen: HashMap<u64, (usize, bool)> = HashMap::new();
    for shingle in evaluation.chunks_exact(SHINGLE) {
        let hash = shingle.iter().fold(0, |hash, c| push(hash, *c));
        seen.entry(hash).or_insert((0, false)).0 += 1;
    }
    // The weight of the character that leaves a window of one more.
    let leaving = (0..SHINGLE).fold(1u64, |power, _| power.wrapping_mul(BASE));
    let mut hash = 0u64;
    for (i, c) in calibration.iter().enumerate() {
        hash = push(hash, *c);
        if i >= SHINGLE {
            hash = hash.wrapping_sub(leaving.wrapping_mul(value(calibration[i - SHINGLE])));
        }
        if i + 1 >= SHINGLE
            && let Some(entry) = seen.get_mut(&hash)
        {
            entry.1 = true;
        }
    }
    let total: usize = seen.values().map(|(n, _)| n).sum();
    let found: usize = seen.values().filter(|(_, found)| *found).map(|(n, _)| n).sum();
    if total == 0 { 0.0 } else { found as f64 / total as f64 }
}

/// Base of the rolling hash; odd, so that it permutes the residues.
const BASE: u64 = 0x9e37_79b9_7f4a_7c15;

fn value(c: char) -> u64 {
    (u64::from(c) + 1).wrapping_mul(0xd6e8_feb8_6659_fd93)
}

fn push(hash: u64, c: char) -> u64 {
    hash.wrapping_mul(BASE).wrapping_add(value(c))
}

fn is_wikitext(text: &str) -> bool {
    let marks: usize = WIKITEXT_MARKS.iter().map(|mark| text.matches(mark).count()).sum();
    marks > 0 && text.len() / marks <= CHARS_PER_MARK
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(seed: u64, n: usize) -> String {
        (0..n).map(|i| format!("word{} ", (i as u64 * 7919 + seed * 104_729) % 100_003)).collect()
    }

    #[test]
    fn copies_are_found_at_any_offset_and_with_other_line_breaks() {
        let evaluation = text(1, 2000);
        let apart = TextOverlap::of(&evaluation, &text(2, 2000));
        assert_eq!((apart.same, apart.shared, apart.warning("t")), (false, 0.0, None));
        let copy = format!("intro {} end", evaluation.replace(' ', "\n"));
        let found = TextOverlap::of(&evaluation, &copy);
        assert!(!found.same && found.shared > 0.99, "{found:?}");
        let same = TextOverlap::of(&evaluation, &evaluation);
        assert!(same.same && same.warning("t").is_some_and(|w| w.contains("is the text of the evaluation")));
        assert_eq!(TextOverlap::of("short", "short too").shared, 0.0);
    }

    #[test]
    fn wikitext_is_in_domain_for_wikitext() {
        let wiki = |seed| format!("{} 1 @,@ 200 well @-@ known {}", text(seed, 100), text(seed + 1, 100));
        let found = TextOverlap::of(&wiki(1), &wiki(5));
        assert!(found.in_domain && found.warning("v").is_some_and(|w| w.contains("in-domain")));
        assert!(!TextOverlap::of(&wiki(1), &text(3, 100)).in_domain);
    }
}
