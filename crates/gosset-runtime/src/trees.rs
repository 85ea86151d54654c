//! Many short texts in one pass: sequences that share their start, side by side.

use std::ops::Range;

use candle_core::Tensor;
use rayon::prelude::*;

use crate::attention::{AttentionShape, attend};
use crate::error::RuntimeError;
use crate::kv_cache::LayerCache;
use crate::rope::RopeTable;
use crate::tensor::{f32_slice, tensor2};

/// Sequences of tokens with a common start: each branch follows `prefix`, and knows nothing of the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenTree<'a> {
    /// The common start.
    pub prefix: &'a [u32],
    /// What follows it.
    pub branches: Vec<TokenBranch<'a>>,
}

/// One continuation of a [`TokenTree`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenBranch<'a> {
    /// Tokens after the prefix.
    pub tokens: &'a [u32],
    /// Number of tokens at the end whose logits are asked for; at most all of them, and one less without a prefix.
    pub n_scored: usize,
}

/// A scored token of one of the trees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScoredToken {
    /// Index of the tree.
    pub tree: usize,
    /// Index of its branch.
    pub branch: usize,
    /// Index among the scored tokens of the branch.
    pub index: usize,
}

/// Trees laid out in rows: prefix and branches of the first, then of the next. The last token of a branch is left out, since nothing
/// follows it.
#[derive(Debug)]
pub(crate) struct Trees {
    tokens: Vec<u32>,
    /// Rows of the prefix and of each branch, by tree.
    rows: Vec<(Range<usize>, Vec<Range<usize>>)>,
    /// Rows whose logits are asked for, ascending, and the tokens that each predicts.
    asked: Vec<(usize, Vec<ScoredToken>)>,
    longest: usize,
}

impl Trees {
    /// Lays the trees out; `Err(tree)` of the first that asks for a token which nothing precedes.
    pub(crate) fn new(trees: &[TokenTree<'_>]) -> Result<Self, usize> {
        let mut out = Self { tokens: Vec::new(), rows: Vec::new(), asked: Vec::new(), longest: 0 };
        for (t, tree) in trees.iter().enumerate() {
            let prefix = out.push(tree.prefix);
            let mut asked: Vec<(usize, ScoredToken)> = Vec::new();
            let mut branches = Vec::with_capacity(tree.branches.len());
            for (b, branch) in tree.branches.iter().enumerate() {
                let len = branch.tokens.len();
                if branch.n_scored > len || (branch.n_scored == len && tree.prefix.is_empty() && len > 0) {
                    return Err(t);
                }
                let rows = out.push(&branch.tokens[..len.saturating_sub(1)]);
                let first = len - branch.n_scored;
                for index in 0..branch.n_scored {
                    // The row before the token: in the branch, or the last of the prefix.
                    let row = (first + index).checked_sub(1).map_or(prefix.end.wrapping_sub(1), |i| rows.start + i);
                    asked.push((row, ScoredToken { tree: t, branch: b, index }));
                }
                out.longest = out.longest.max(tree.prefix.len() + rows.len());
                branches.push(rows);
            }
            // Stable: the scored tokens of a branch stay in order.
            asked.sort_by_key(|(row, _)| *row);
            for (row, token) in asked {
                match out.asked.last_mut() {
                    Some((last, tokens)) if *last == row => tokens.push(token),
                    _ => out.asked.push((row, vec![token])),
                }
            }
            out.longest = out.longest.max(prefix.len());
            out.rows.push((prefix, branches));
        }
        Ok(out)
    }

    fn push(&mut self, tokens: &[u32]) -> Range<usize> {
        let start = self.tokens.len();
        self.tokens.extend_from_slice(tokens);
        start..self.tokens.len()
    }

    /// The token of each row.
    pub(crate) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Rows whose logits are asked for, ascending, with the tokens that each predicts.
    pub(crate) fn asked(&self) -> &[(usize, Vec<ScoredToken>)] {
        &self.asked
    }

    /// Positions of the longest sequence.
    pub(crate) fn longest(&self) -> usize {
        self.longest
    }

    /// Attention of every row over its own sequence. `q`, `k` (neither rotated yet) and `v` have one row per token.
    pub(crate) fn attend(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        rope: &RopeTable,
        shape: AttentionShape,
    ) -> Result<Tensor, RuntimeError> {
        let kv_row = shape.kv_heads * shape.head_dim;
        let (k, v) = (f32_slice(k)?, f32_slice(v)?);
        let (k, v): (&[f32], &[f32]) = (&k, &v);
        let of_tree = |(prefix, branches): &(Range<usize>, Vec<Range<usize>>)| {
            let mut cache = LayerCache::new(shape);
            let mut out = Vec::new();
            for rows in std::iter::once(prefix).chain(branches) {
                if !rows.is_empty() {
                    cache.truncate(prefix.len());
                    let elements = rows.start * kv_row..rows.end * kv_row;
                    cache.append(&k[elements.clone()], &v[elements], rope);
                    let attended = attend(&q.narrow(0, rows.start, rows.len())?, &cache, rope, shape)?;
                    out.extend_from_slice(&f32_slice(&attended)?);
                }
            }
            Ok(out)
        };
        let parts = self.rows.par_iter().map(of_tree).collect::<Result<Vec<Vec<f32>>, RuntimeError>>()?;
        tensor2(parts.concat(), self.tokens.len(), shape.heads * shape.head_dim)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_predict_the_tokens_after_them_and_shared_rows_all_of_theirs() {
        let branch = |tokens, n_scored| TokenBranch { tokens, n_scored };
        let trees = [
            TokenTree { prefix: &[1, 2], branches: vec![branch(&[3, 4], 2), branch(&[5], 1), branch(&[6, 7, 8], 1)] },
            TokenTree { prefix: &[], branches: vec![branch(&[9, 10], 1)] },
        ];
        let laid = Trees::new(&trees).unwrap();
        assert_eq!(laid.tokens(), [1, 2, 3, 6, 7, 9]);
        let token = |tree, branch, index| ScoredToken { tree, branch, index };
        let expected = vec![
            (1, vec![token(0, 0, 0), token(0, 1, 0)]),
            (2, vec![token(0, 0, 1)]),
            (4, vec![token(0, 2, 0)]),
            (5, vec![token(1, 0, 0)]),
        ];
        assert_eq!(laid.asked(), expected);
        assert_eq!(laid.longest(), 4);
        assert_eq!(Trees::new(&[TokenTree { prefix: &[], branches: vec![branch(&[9], 1)] }]).unwrap_err(), 0);
        assert_eq!(Trees::new(&[TokenTree { prefix: &[1], branches: vec![branch(&[9], 2)] }]).unwrap_err(), 0);
    }
}
