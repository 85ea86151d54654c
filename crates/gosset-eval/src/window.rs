//! Windows over a token stream: where each begins and ends and which of its tokens it scores.

use std::ops::Range;

use crate::{BosPolicy, PplProtocol, Scored, Tail};

/// One window of the stream: tokens `start..end` are its context, tokens `first_target..end` are scored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowSpan {
    /// First token of the window, an index into the stream.
    pub start: usize,
    /// One past its last token.
    pub end: usize,
    /// First token that this window scores; at least `start + 1`.
    pub first_target: usize,
}

impl WindowSpan {
    /// Number of tokens that the window scores.
    pub fn n_scored(&self) -> usize {
        self.end - self.first_target
    }
}

/// The token stream that windows are cut from: the text's ids, with a BOS in front when the policy asks for one, the model has one
/// and the text does not begin with it already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenStream<'a> {
    tokens: &'a [u32],
    front: Option<u32>,
}

impl<'a> TokenStream<'a> {
    /// The stream of `tokens`, which hold no special tokens but what the text spells out.
    pub fn new(tokens: &'a [u32], bos: Option<u32>, policy: BosPolicy) -> Self {
        let front = bos.filter(|bos| policy != BosPolicy::None && tokens.first() != Some(bos));
        TokenStream { tokens, front }
    }

    /// Number of tokens, the BOS included.
    pub fn len(&self) -> usize {
        self.tokens.len() + usize::from(self.front.is_some())
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Tokens `range` of the stream.
    ///
    /// # Panics
    ///
    /// If the range reaches beyond [`Self::len`].
    pub fn slice(&self, range: Range<usize>) -> impl Iterator<Item = u32> + use<'a> {
        let shift = usize::from(self.front.is_some());
        let front = self.front.filter(|_| range.start == 0 && range.end > 0);
        let text = &self.tokens[range.start.saturating_sub(shift)..range.end.saturating_sub(shift)];
        front.into_iter().chain(text.iter().copied())
    }
}

/// The windows of a stream of `n_tokens` that score at least one token, in order.
///
/// Window `i` starts at `i * stride`. No token is scored twice: a window scores from the end of the one before it, and never
/// its own first token, which nothing predicts (that token is where a BOS may stand, so a BOS put there is never scored). With
/// [`Scored::SecondHalf`] it scores only what positions `window / 2` and up predict.
/// The protocol must have passed [`PplProtocol::check`]; otherwise there may be no windows at all.
pub fn window_spans(n_tokens: usize, protocol: &PplProtocol) -> impl Iterator<Item = WindowSpan> + use<> {
    let &PplProtocol { window, stride, scored, tail, .. } = protocol;
    let first_offset = match scored {
        Scored::All => 1,
        Scored::SecondHalf => window / 2 + 1,
    };
    let mut next_start = (window >= 2 && stride >= 1).then_some(0usize);
    let mut scored_up_to = 0;
    std::iter::from_fn(move || {
        while let Some(start) = next_start {
            let full_end = start.checked_add(window).filter(|&end| end <= n_tokens);
            let end = match (full_end, tail) {
                (Some(end), _) => end,
                (None, Tail::Keep) if start < n_tokens => n_tokens,
                _ => {
                    next_start = None;
                    break;
                }
            };
            next_start = if end == n_tokens { None } else { start.checked_add(stride) };
            let first_target = scored_up_to.max(start.saturating_add(first_offset));
            scored_up_to = end;
            if first_target < end {
                return Some(WindowSpan { start, end, first_target });
            }
        }
        None
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn protocol(window: usize, stride: usize, scored: Scored, tail: Tail) -> PplProtocol {
        PplProtocol { window, stride, scored, tail, ..PplProtocol::default() }
    }

    #[test]
    fn overlapping_windows_score_each_token_once() {
        for n in [2, 3, 7, 8, 9, 100, 101, 127] {
            for (window, stride) in [(8, 8), (8, 4), (8, 1), (8, 3), (16, 16), (5, 2)] {
                for scored in [Scored::All, Scored::SecondHalf] {
                    for tail in [Tail::Drop, Tail::Keep] {
                        let p = protocol(window, stride, scored, tail);
                        let mut seen = vec![0; n];
                        for s in window_spans(n, &p) {
                            assert!(s.start < s.first_target && s.first_target < s.end && s.end <= n);
                            assert!(s.end - s.start <= window);
                            assert!(tail == Tail::Keep || s.end - s.start == window);
                            seen[s.first_target..s.end].iter_mut().for_each(|c| *c += 1);
                        }
                        assert_eq!(seen[0], 0);
                        assert!(seen.iter().all(|&c| c <= 1));
                        if scored == Scored::All && tail == Tail::Keep && stride < window {
                            assert!(seen[1..].iter().all(|&c| c == 1), "n {n} window {window} stride {stride}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn counts_are_those_of_the_reference_protocols() {
        let count = |n, p: &PplProtocol| window_spans(n, p).fold((0, 0), |(w, t), s| (w + 1, t + s.n_scored()));
        let full = PplProtocol::parse("full-2048").unwrap();
        assert_eq!(count(12 * 2048, &full), (12, 24_564));
        assert_eq!(count(303_415, &full).0, 148);
        assert_eq!(count(12 * 2048, &PplProtocol::parse("half-2048").unwrap()), (12, 12_276));
        assert_eq!(count(20 * 512, &PplProtocol::parse("full-512").unwrap()), (20, 10_220));
        assert_eq!(count(20 * 512, &PplProtocol::parse("llama.cpp-512").unwrap()), (20, 5_100));
    }

    #[test]
    fn a_bos_is_never_doubled() {
        let stream = |tokens, bos, policy| {
            let stream = TokenStream::new(tokens, bos, policy);
            let all: Vec<u32> = stream.slice(0..stream.len()).collect();
            assert_eq!(all.len(), stream.len());
            for cut in 0..=all.len() {
                assert!(stream.slice(cut..all.len()).eq(all[cut..].iter().copied()));
                assert!(stream.slice(0..cut).eq(all[..cut].iter().copied()));
            }
            all
        };
        assert_eq!(stream(&[5, 6], Some(1), BosPolicy::Once), [1, 5, 6]);
        assert_eq!(stream(&[1, 5, 6], Some(1), BosPolicy::Once), [1, 5, 6]);
        assert_eq!(stream(&[1, 5, 6], Some(1), BosPolicy::EachWindow), [1, 5, 6]);
        assert_eq!(stream(&[5, 6], Some(1), BosPolicy::None), [5, 6]);
        assert_eq!(stream(&[5, 6], None, BosPolicy::EachWindow), [5, 6]);
        assert_eq!(stream(&[], Some(1), BosPolicy::Once), [1]);
        assert!(TokenStream::new(&[], None, BosPolicy::Once).is_empty());
    }
}
