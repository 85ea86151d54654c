//! The runtime's model as evaluation sees it.

use std::{error::Error, ops::Range};

use gosset_eval::{CausalLm, TokenTree, TreeToken};
use gosset_runtime::{self as runtime, LanguageModel};

/// A borrowed [`LanguageModel`] that can be scored.
pub(super) struct RuntimeLm<'a>(pub(super) &'a LanguageModel);

impl CausalLm for RuntimeLm<'_> {
    fn vocab_size(&self) -> usize {
        self.0.vocab_size()
    }

    fn score(
        &mut self,
        tokens: &[u32],
        positions: Range<usize>,
        sink: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        Ok(self.0.score(tokens, positions, sink)?)
    }
    fn score_trees(
        &mut self,
        trees: &[TokenTree],
        sink: &mut dyn FnMut(TreeToken, &[f32]),
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        let trees: Vec<runtime::TokenTree<'_>> = trees
            .iter()
            .map(|tree| {
                let branches = tree.branches.iter();
                let branches = branches.map(|b| runtime::TokenBranch { tokens: &b.tokens, n_scored: b.n_scored });
                runtime::TokenTree { prefix: &tree.prefix, branches: branches.collect() }
            })
            .collect();
        Ok(self.0.score_trees(&trees, &mut |at, logits| {
            sink(TreeToken { tree: at.tree, branch: at.branch, index: at.index }, logits);
        })?)
    }
}
