//! The runtime's model as evaluation sees it.

use std::{error::Error, ops::Range};

use gosset_eval::CausalLm;
use gosset_runtime::LanguageModel;

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
}
