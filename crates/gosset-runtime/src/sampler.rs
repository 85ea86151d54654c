//! From logits to the next token.

use gosset_transform::philox4x32_10;

use crate::error::RuntimeError;

/// How a token is chosen among the logits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// 0 takes the most likely token; above, logits are divided by it before the draw.
    pub temperature: f64,
    /// Only the most likely tokens that together reach this probability can be drawn; 1 allows all.
    pub top_p: f64,
    /// Same seed, same draws.
    pub seed: u64,
}

impl Sampling {
    /// Always the most likely token.
    pub const GREEDY: Sampling = Sampling { temperature: 0.0, top_p: 1.0, seed: 0 };

    /// Checks the ranges: `temperature >= 0` and finite, `0 < top_p <= 1`.
    pub(crate) fn check(self) -> Result<Sampler, RuntimeError> {
        let refuse = |option: &str, expected: &str, found: f64| {
            Err(RuntimeError::Options {
                option: option.to_owned(),
                expected: expected.to_owned(),
                found: found.to_string(),
            })
        };
        if !(self.temperature >= 0.0 && self.temperature.is_finite()) {
            return refuse("temperature", "a number of at least 0", self.temperature);
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return refuse("top_p", "a number above 0 and at most 1", self.top_p);
        }
        Ok(Sampler { sampling: self, n_draws: 0, order: Vec::new() })
    }
}

/// A checked [`Sampling`] and the number of draws so far.
#[derive(Debug)]
pub(crate) struct Sampler {
    sampling: Sampling,
    n_draws: u64,
    /// Token ids by falling weight, with the weight; kept for its memory.
    order: Vec<(f64, u32)>,
}

impl Sampler {
    /// Index of the chosen logit among those that `allowed` admits; `None` if it admits none.
    ///
    /// Logits are finite. Ties go to the lowest id.
    pub(crate) fn pick(&mut self, logits: &[f32], allowed: impl Fn(u32) -> bool) -> Option<u32> {
        let candidates = || (0..).zip(logits).filter(|&(id, _)| allowed(id));
        let best = candidates().reduce(|a, b| if b.1 > a.1 { b } else { a })?;
        if self.sampling.temperature == 0.0 {
            return Some(best.0);
        }
        let uniform = self.uniform();
        self.order.clear();
        let weight = |logit: f32| ((f64::from(logit) - f64::from(*best.1)) / self.sampling.temperature).exp();
        self.order.extend(candidates().map(|(id, &logit)| (weight(logit), id)));
        self.order.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let total: f64 = self.order.iter().map(|(w, _)| w).sum();
        let mut kept = 0.0;
        let n_kept = self.order.iter().position(|(w, _)| {
            kept += w;
            kept >= self.sampling.top_p * total
        });
        let pool = &self.order[..n_kept.map_or(self.order.len(), |n| n + 1)];
        let mut place = uniform * pool.iter().map(|(w, _)| w).sum::<f64>();
        let drawn = pool.iter().find(|(w, _)| {
            place -= w;
            place < 0.0
        });
        // Rounding can leave the place just beyond the last weight.
        drawn.or(pool.last()).map(|&(_, id)| id)
    }

    /// The next number of the seed's stream, uniform in [0, 1) with 53 bits.
    fn uniform(&mut self) -> f64 {
        /// Keeps the counter apart from those of signs, dither and rotations, whose last word is small.
        const DOMAIN: u32 = 0x7361_6d70;
        let (n, seed) = (self.n_draws, self.sampling.seed);
        self.n_draws += 1;
        let words = philox4x32_10([n as u32, (n >> 32) as u32, 0, DOMAIN], [seed as u32, (seed >> 32) as u32]);
        let bits = u64::from(words[0]) << 32 | u64::from(words[1]);
        (bits >> 11) as f64 * 2f64.powi(-53)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampler(temperature: f64, top_p: f64, seed: u64) -> Sampler {
        Sampling { temperature, top_p, seed }.check().unwrap()
    }

    #[test]
    fn greedy_takes_the_first_of_the_largest() {
        let mut greedy = Sampling::GREEDY.check().unwrap();
        assert_eq!(greedy.pick(&[0.0, 3.0, 3.0, -1.0], |_| true), Some(1));
        assert_eq!(greedy.pick(&[0.0, 3.0, 3.0, -1.0], |id| id != 1), Some(2));
        assert_eq!(greedy.pick(&[0.0, 3.0], |_| false), None);
    }

    #[test]
    fn draws_follow_the_softmax() {
        let logits = [1f32, 0.0, -1.0, 2.0];
        for temperature in [0.5, 1.0, 2.0] {
            let mut sampler = sampler(temperature, 1.0, 7);
            let mut counts = [0u32; 4];
            const DRAWS: u32 = 20_000;
            (0..DRAWS).for_each(|_| counts[sampler.pick(&logits, |_| true).unwrap() as usize] += 1);
            let weights = logits.map(|l| (f64::from(l) / temperature).exp());
            let total: f64 = weights.iter().sum();
            for (count, weight) in counts.iter().zip(weights) {
                let p = weight / total;
                // Five standard deviations of a binomial share.
                let bound = 5.0 * (p * (1.0 - p) / f64::from(DRAWS)).sqrt();
                assert!((f64::from(*count) / f64::from(DRAWS) - p).abs() < bound, "{counts:?} at {temperature}");
            }
        }
    }

    #[test]
    fn top_p_keeps_the_smallest_set_that_reaches_it() {
        // Probabilities 0.5, 0.3, 0.2 in shuffled order.
        let logits = [0.3f32.ln(), 0.5f32.ln(), 0.2f32.ln()];
        let seen = |top_p| {
            let mut sampler = sampler(1.0, top_p, 3);
            let mut seen: Vec<u32> = (0..300).map(|_| sampler.pick(&logits, |_| true).unwrap()).collect();
            seen.sort_unstable();
            seen.dedup();
            seen
        };
        assert_eq!(seen(0.4), [1]);
        assert_eq!(seen(0.6), [0, 1]);
        assert_eq!(seen(0.9), [0, 1, 2]);
        assert_eq!(seen(1.0), [0, 1, 2]);
    }

    #[test]
    fn a_seed_fixes_the_draws() {
        let logits: Vec<f32> = (0..50).map(|i| (i as f32 * 0.7).sin()).collect();
        let draws = |seed| {
            let mut sampler = sampler(1.0, 0.95, seed);
            (0..40).map(|_| sampler.pick(&logits, |_| true).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(draws(1), draws(1));
        assert_ne!(draws(1), draws(2));
        assert_ne!(draws(1), draws(1 << 32 | 1));
    }

    #[test]
    fn options_out_of_range_are_named() {
        let message = |t, p| Sampling { temperature: t, top_p: p, seed: 0 }.check().unwrap_err().to_string();
        assert_eq!(message(-1.0, 1.0), "temperature: expected a number of at least 0, found -1");
        assert_eq!(message(f64::NAN, 1.0), "temperature: expected a number of at least 0, found NaN");
        assert_eq!(message(1.0, 0.0), "top_p: expected a number above 0 and at most 1, found 0");
        assert_eq!(message(1.0, 1.5), "top_p: expected a number above 0 and at most 1, found 1.5");
    }
}
