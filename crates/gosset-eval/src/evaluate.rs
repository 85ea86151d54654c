//! The evaluation loop.

use std::{
    error::Error,
    ops::{ControlFlow, Range},
};

use serde::{Deserialize, Serialize};

use crate::{
    BosPolicy, EvalError, NllSum, PplProtocol, Scored, Tail, TokenStream, TokenTree, TreeToken, token_nll, window_spans,
};

/// A language model that can be scored.
pub trait CausalLm {
    /// Number of logits per position.
    fn vocab_size(&self) -> usize;

    /// Runs `tokens` from an empty cache and hands the logits of `positions` to `sink`, in order, one call per position: the row
    /// at position `p` has seen tokens `0..=p` and predicts token `p + 1`. Each row has [`Self::vocab_size`] logits.
    ///
    /// # Errors
    ///
    /// Whatever keeps the model from answering; the evaluation stops there.
    fn score(
        &mut self,
        tokens: &[u32],
        positions: Range<usize>,
        sink: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), Box<dyn Error + Send + Sync>>;

    /// Hands `sink` the logits that predict each scored token of `trees`: those of a branch in order, branches and trees in any.
    ///
    /// A model that can share the work on a common prefix does so; this one runs every branch by itself.
    ///
    /// # Errors
    ///
    /// Those of [`Self::score`].
    fn score_trees(
        &mut self,
        trees: &[TokenTree],
        sink: &mut dyn FnMut(TreeToken, &[f32]),
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        for (tree_idx, tree) in trees.iter().enumerate() {
            for (branch_idx, branch) in tree.branches.iter().enumerate().filter(|(_, branch)| branch.n_scored > 0) {
                let tokens = [&tree.prefix[..], &branch.tokens].concat();
                let Some(first) = tokens.len().checked_sub(1 + branch.n_scored) else {
                    return Err("a scored token has nothing before it".into());
                };
                self.score(&tokens, first..tokens.len() - 1, &mut |position, logits| {
                    sink(TreeToken { tree: tree_idx, branch: branch_idx, index: position - first }, logits);
                })?;
            }
        }
        Ok(())
    }
}

/// What one window gave, and where the whole stands after it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct WindowResult {
    /// Window, counted from 1.
    pub window: usize,
    /// Number of windows that this run will score.
    pub of: usize,
    /// First token of the window in the stream.
    pub start: usize,
    /// Tokens in the window.
    pub tokens: usize,
    /// Tokens that it scored.
    pub tokens_scored: usize,
    /// Sum of their NLLs in nats.
    pub nll: f64,
    /// Perplexity over all windows so far.
    pub cumulative_ppl: f64,
}

/// A perplexity and everything it was computed from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PplResult {
    /// Perplexity: exponential of the mean NLL over all scored tokens of all windows.
    pub ppl: f64,
    /// Its standard error, see [`NllSum::ppl_sigma`].
    pub ppl_sigma: f64,
    /// Mean NLL per scored token in nats.
    pub mean_nll: f64,
    /// Sum of all NLLs in nats.
    pub total_nll: f64,
    /// Tokens of the text, without any BOS.
    pub tokens: usize,
    /// Tokens of the stream that windows were cut from: one more than `tokens` if a BOS was put in front.
    pub stream_tokens: usize,
    /// Tokens scored.
    pub tokens_scored: usize,
    /// Windows scored.
    pub windows: usize,
    /// Windows that the text has under this protocol.
    pub windows_available: usize,
    /// Window length in tokens.
    pub window: usize,
    /// Stride in tokens.
    pub stride: usize,
    /// The BOS policy that took effect: [`BosPolicy::None`] if the model has none.
    pub bos: BosPolicy,
    /// The id of the BOS that was used.
    pub bos_id: Option<u32>,
    /// Which positions counted.
    pub scored: Scored,
    /// What happened to the tail.
    pub tail: Tail,
    /// False if the callback stopped the run before its last window.
    pub complete: bool,
    /// One entry per window.
    pub per_window: Vec<WindowResult>,
}

/// Perplexity of `lm` on `tokens` under `protocol`.
///
/// `tokens` is the whole text without special tokens; `bos` is the id to use where the protocol asks for one (`None`: the model
/// has none, and the policy falls away). `windows` limits the run to the first that many windows. `on_window` is called after
/// each window and may stop the run, which leaves [`PplResult::complete`] false.
///
/// # Errors
///
/// [`EvalError::BadProtocol`], [`EvalError::TooShort`] and [`EvalError::TokenOutOfRange`] before the model is asked for
/// anything; [`EvalError::NonFinite`] at the first logit that is not a number; [`EvalError::Model`] and [`EvalError::BadLogits`]
/// when the model fails. None of them leaves a partial mean behind.
pub fn evaluate(
    lm: &mut dyn CausalLm,
    tokens: &[u32],
    bos: Option<u32>,
    protocol: &PplProtocol,
    windows: Option<usize>,
    on_window: &mut dyn FnMut(&WindowResult) -> ControlFlow<()>,
) -> Result<PplResult, EvalError> {
    protocol.check()?;
    let vocab_size = lm.vocab_size();
    let bos = bos.filter(|_| protocol.bos != BosPolicy::None);
    let policy = if bos.is_some() { protocol.bos } else { BosPolicy::None };
    let stream = TokenStream::new(tokens, bos, policy);
    if let Some((position, token)) = stream.slice(0..stream.len()).enumerate().find(|&(_, t)| t as usize >= vocab_size)
    {
        return Err(EvalError::TokenOutOfRange { position, token, vocab_size });
    }
    let windows_available = window_spans(stream.len(), protocol).count();
    let of = windows.unwrap_or(usize::MAX).min(windows_available);
    if of == 0 {
        if windows == Some(0) {
            let what = "windows: expected at least 1, found 0".to_owned();
            return Err(EvalError::BadProtocol { name: protocol.name.clone(), what });
        }
        let needed = match protocol.tail {
            Tail::Drop => protocol.window,
            Tail::Keep if protocol.scored == Scored::SecondHalf => protocol.window / 2 + 2,
            Tail::Keep => 2,
        };
        return Err(EvalError::TooShort { name: protocol.name.clone(), needed, found: stream.len() });
    }

    let mut total = NllSum::default();
    let mut per_window = Vec::with_capacity(of);
    let mut complete = true;
    let mut window_tokens = Vec::with_capacity(protocol.window.min(stream.len()));
    for (i, span) in window_spans(stream.len(), protocol).take(of).enumerate() {
        let window = i + 1;
        window_tokens.clear();
        window_tokens.extend(stream.slice(span.start..span.end));
        if let (BosPolicy::EachWindow, Some(bos)) = (policy, bos) {
            window_tokens[0] = bos;
        }
        let positions = span.first_target - span.start - 1..span.end - span.start - 1;
        let sum = score_window(lm, &window_tokens, positions, window, vocab_size)?;
        total.add(&sum);
        let result = WindowResult {
            window,
            of,
            start: span.start,
            tokens: span.end - span.start,
            tokens_scored: sum.n,
            nll: sum.sum,
            cumulative_ppl: total.ppl(),
        };
        per_window.push(result);
        if on_window(&result).is_break() {
            complete = window == of;
            break;
        }
    }
    Ok(PplResult {
        ppl: total.ppl(),
        ppl_sigma: total.ppl_sigma(),
        mean_nll: total.mean(),
        total_nll: total.sum,
        tokens: tokens.len(),
        stream_tokens: stream.len(),
        tokens_scored: total.n,
        windows: per_window.len(),
        windows_available,
        window: protocol.window,
        stride: protocol.stride,
        bos: policy,
        bos_id: bos,
        scored: protocol.scored,
        tail: protocol.tail,
        complete,
        per_window,
    })
}

/// Sum of the NLLs of tokens `positions.start + 1 ..= positions.end` of one window.
fn score_window(
    lm: &mut dyn CausalLm,
    tokens: &[u32],
    positions: Range<usize>,
    window: usize,
    vocab_size: usize,
) -> Result<NllSum, EvalError> {
    let mut sum = NllSum::default();
    let mut first_error = None;
    let mut next = positions.start;
    // The sink cannot stop the model, so after the first error it only waits for the end of the window.
    let mut sink = |position: usize, logits: &[f32]| {
        if first_error.is_some() {
            return;
        }
        if position != next || position >= positions.end {
            let what = format!("expected the logits of position {next} of {positions:?}, found those of {position}");
            first_error = Some(EvalError::BadLogits { window, what });
        } else if logits.len() != vocab_size {
            let what = format!("position {position}: expected {vocab_size} logits, found {}", logits.len());
            first_error = Some(EvalError::BadLogits { window, what });
        } else {
            match token_nll(logits, tokens[position + 1] as usize) {
                Ok(nll) => sum.push(nll),
                Err(index) => {
                    first_error = Some(EvalError::NonFinite { window, position, index, value: logits[index] });
                }
            }
            next += 1;
        }
    };
    let outcome = lm.score(tokens, positions.clone(), &mut sink);
    if let Some(error) = first_error {
        return Err(error);
    }
    outcome.map_err(|source| EvalError::Model { window, source })?;
    if next != positions.end {
        let what = format!("expected logits of positions {positions:?}, found none from {next} on");
        return Err(EvalError::BadLogits { window, what });
    }
    Ok(sum)
}
