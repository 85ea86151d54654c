//! Second moments of the unquantized model: one stream of hidden states, one pass over each layer.

use std::sync::Arc;

use gosset_quantize::InputMoments;
use gosset_unisvq::HessianAccumulator;

use super::cache::HessianCache;
use super::layer_input::{InputCoverage, LayerInput};
use super::progress::{Pass, Reporter};
use super::runner::{Count, Runner, See, Watch, check_output};
use super::token_factors::{token_factors, weighted};
use crate::error::RuntimeError;
use crate::tensor::f32_slice;

/// The hidden states of all tokens before a layer.
pub(super) struct PlainStream {
    /// Layer that they are the input of.
    next: usize,
    x: Vec<f32>,
}

/// The four second moments of one layer with what was seen.
pub(super) type LayerMoments = [(InputMoments, InputCoverage); 4];

impl PlainStream {
    /// Before the first layer.
    pub(super) fn new(runner: &Runner<'_>) -> Result<Self, RuntimeError> {
        Ok(Self { next: 0, x: runner.embed()? })
    }

    /// The layer that comes next.
    pub(super) fn next(&self) -> usize {
        self.next
    }

    /// Moves over one layer without a look at it.
    pub(super) fn skip(&mut self, runner: &Runner<'_>, reporter: &mut Reporter) -> Result<(), RuntimeError> {
        self.walk(runner, reporter, Pass::Forward, &mut |_, _, _| Ok(()))
    }

    /// Moves over one layer and takes its second moments, which the cache gets too.
    pub(super) fn take(
        &mut self,
        runner: &Runner<'_>,
        reporter: &mut Reporter,
        cache: Option<&HessianCache>,
    ) -> Result<LayerMoments, RuntimeError> {
        let layer = self.next;
        let failed = |input: LayerInput| move |source| RuntimeError::Moments { place: input.place(layer), source };
        let mut parts = Vec::with_capacity(4);
        for input in LayerInput::ALL {
            let sums = HessianAccumulator::new(input.width(&runner.config)).map_err(failed(input))?;
            parts.push((sums, Watch::new(layer, input, &runner.config)));
        }
        self.walk(runner, reporter, Pass::Moments, &mut |input, x, count| {
            let (sums, watch) = &mut parts[input as usize];
            if !matches!(count, Count::By(_)) {
                watch.look(x)?;
            }
            match count {
                Count::Equally => sums.add(x).map_err(failed(input)),
                Count::Later => Ok(()),
                Count::By(factors) => sums.add(&weighted(x, factors)).map_err(failed(input)),
            }
        })?;
        let mut finished = Vec::with_capacity(4);
        for ((sums, watch), input) in parts.into_iter().zip(LayerInput::ALL) {
            let hessian = sums.finish().map_err(failed(input))?;
            let seen = InputCoverage { dead: hessian.dead_inputs() as u64, ..watch.seen };
            if let Some(cache) = cache {
                cache.write(&hessian, &seen)?;
            }
            let (dead_inputs, hessian) = (seen.dead, Arc::new(hessian));
            finished.push((InputMoments { dead_inputs, hessian, drift: None, output_energy: None }, seen));
        }
        finished.try_into().map_err(|_| unreachable!("a layer has four inputs"))
    }

    fn walk(
        &mut self,
        runner: &Runner<'_>,
        reporter: &mut Reporter,
        pass: Pass,
        see: &mut See<'_>,
    ) -> Result<(), RuntimeError> {
        let layer = runner.layer(self.next)?;
        for i in 0..runner.sequences.n_sequences() {
            reporter.at(pass, self.next, i)?;
            let x = runner.sequence(&self.x, i)?;
            let hidden = runner.config.hidden_size;
            // Inputs that wait for the energy of the stream.
            let mut waiting = Vec::new();
            let after = runner.pass(&layer, &x, None, &mut |input, x| {
                if pass == Pass::Moments && runner.weighs(input) {
                    waiting.push((input, x.clone()));
                    return see(input, &f32_slice(x)?, Count::Later);
                }
                see(input, &f32_slice(x)?, Count::Equally)
            })?;
            if let Some(after) = after {
                let first = runner.sequences.range(i).start;
                check_output(self.next, first, &f32_slice(&after)?, hidden)?;
                if !waiting.is_empty() {
                    let factors = token_factors(runner.token_weights, &f32_slice(&after)?, hidden);
                    for (input, x) in waiting {
                        see(input, &f32_slice(&x)?, Count::By(factors.as_deref()))?;
                    }
                }
                runner.set_sequence(&mut self.x, i, &after)?;
            }
        }
        self.next += 1;
        Ok(())
    }
}
