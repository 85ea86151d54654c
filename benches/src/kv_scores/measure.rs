//! Scores of queries over coded keys beside those over the keys.

use std::error::Error;

use anyhow::{Result, anyhow};
use gosset_kv::{KvShape, Place, Role};
use gosset_runtime::LanguageModel;

use super::variant::Keys;

/// Keys of a page.
const PAGE: usize = 64;

/// Keys of one KV head and the queries that look at them.
pub(super) struct Head {
    pub(super) place: Place,
    /// Before the rotary embedding, `[n, head_dim]`.
    plain: Vec<f32>,
    /// After it.
    rotated: Vec<f32>,
    /// Positions of queries, and for each its query heads, rotated and divided by the root of the width: `[group, head_dim]`.
    queries: Vec<(usize, Vec<f32>)>,
    head_dim: usize,
}

/// The heads of some layers over `tokens`, with queries of `n_queries` positions of the second half.
pub(super) fn heads(model: &LanguageModel, tokens: &[u32], layers: &[usize], n_queries: usize) -> Result<Vec<Head>> {
    let KvShape { kv_heads, head_dim, .. } = model.kv_shape();
    let n = tokens.len();
    let positions: Vec<usize> = (0..n_queries.min(n - n / 2)).map(|i| n - 1 - i * (n - n / 2) / n_queries).collect();
    let scale = 1.0 / (head_dim as f32).sqrt();
    let mut heads = Vec::new();
    let mut failed: Option<Box<dyn Error + Send + Sync>> = None;
    model.see_queries_and_keys(tokens, &mut |layer, queries, keys| {
        if !layers.contains(&layer) || failed.is_some() {
            return;
        }
        let (mut rotated, mut turned) = (keys.to_vec(), queries.to_vec());
        let width = queries.len() / n;
        for (rows, width) in [(&mut rotated, keys.len() / n), (&mut turned, width)] {
            if let Err(error) = model.rotate_by_position(0, width, rows) {
                failed = Some(error.into());
            }
        }
        let group = width / (kv_heads * head_dim) * head_dim;
        for head in 0..kv_heads {
            let of_head = |rows: &[f32]| -> Vec<f32> {
                rows.chunks_exact(kv_heads * head_dim)
                    .flat_map(|row| &row[head * head_dim..][..head_dim])
                    .copied()
                    .collect()
            };
            let query =
                |&p: &usize| (p, turned[p * width + head * group..][..group].iter().map(|q| q * scale).collect());
            heads.push(Head {
                place: Place { layer: layer as u32, role: Role::Key, head: head as u32 },
                plain: of_head(keys),
                rotated: of_head(&rotated),
                queries: positions.iter().map(query).collect(),
                head_dim,
            });
        }
    })?;
    match failed {
        Some(error) => Err(anyhow!(error)),
        None => Ok(heads),
    }
}

impl Head {
    /// The keys as a cache gives them back, after the rotary embedding, and the bits of their pages.
    pub(super) fn stored(&self, model: &LanguageModel, (codec, before_rope): &Keys) -> Result<(Vec<f32>, u64)> {
        let keys = if *before_rope { &self.plain } else { &self.rotated };
        let n = keys.len() / self.head_dim;
        let mut rows = vec![0; n * codec.row_bytes()];
        codec.quantize(self.place, 0, keys, &mut rows)?;
        let mut bits = 0;
        let mut page = Vec::new();
        for rows in rows.chunks(PAGE * codec.row_bytes()) {
            page.clear();
            bits += codec.pack(self.place, rows, &mut page)?.total();
        }
        let mut out = vec![0.0; keys.len()];
        codec.dequantize(self.place, 0, &rows, &mut out)?;
        codec.keys_from_frame(self.place, &mut out);
        if *before_rope {
            model.rotate_by_position(0, self.head_dim, &mut out)?;
        }
        Ok((out, bits))
    }

    /// Scores of every query over the keys up to its own, one list per query and query head.
    fn scores<'a>(&'a self, keys: &'a [f32]) -> impl Iterator<Item = Vec<f64>> + 'a {
        let d = self.head_dim;
        self.queries.iter().flat_map(move |(position, group)| {
            group.chunks_exact(d).map(move |query| {
                let dot = |key: &[f32]| key.iter().zip(query).map(|(k, q)| f64::from(*k) * f64::from(*q)).sum();
                keys.chunks_exact(d).take(position + 1).map(dot).collect()
            })
        })
    }

    /// Number of scalars in the keys.
    pub(super) fn n_scalars(&self) -> u64 {
        self.plain.len() as u64
    }

    /// What the scores over `stored`, one list of keys for each draw, are beside those over the keys.
    pub(super) fn compare(&self, stored: &[Vec<f32>]) -> Errors {
        let exact: Vec<Vec<f64>> = self.scores(&self.rotated).collect();
        let n_keys = self.rotated.len() / self.head_dim;
        let mut of_key = vec![(0.0, 0.0); n_keys];
        let mut errors = Errors::default();
        let mut estimates: Vec<_> = stored.iter().map(|keys| self.scores(keys)).collect();
        let draws = stored.len() as f64;
        for exact in &exact {
            let estimates: Vec<Vec<f64>> = estimates.iter_mut().filter_map(Iterator::next).collect();
            let n = exact.len() as f64;
            let mean = exact.iter().sum::<f64>() / n;
            errors.scores += exact.iter().map(|s| (s - mean).powi(2)).sum::<f64>();
            for estimate in &estimates {
                // What all scores of a query have in common does not reach its weights.
                let shift = estimate.iter().zip(exact).map(|(e, s)| e - s).sum::<f64>() / n;
                for (e, s) in estimate.iter().zip(exact) {
                    errors.noise += (e - s - shift).powi(2) / draws;
                    errors.along += (e - s) * (s - mean) / draws;
                }
            }
            for (key, s) in exact.iter().enumerate() {
                let of = |estimate: &Vec<f64>| estimate[key] - s;
                let mean = estimates.iter().map(of).sum::<f64>() / draws;
                let square = estimates.iter().map(|e| of(e).powi(2)).sum::<f64>() / draws;
                errors.squares += square;
                // The square of a mean over draws holds their variance once more.
                let variance = if draws > 1.0 { (square - mean * mean) / (draws - 1.0) } else { 0.0 };
                errors.biases += mean * mean - variance;
                errors.pairs += 1.0;
                of_key[key].0 += mean;
                of_key[key].1 += 1.0;
            }
        }
        let rms = (errors.squares / errors.pairs.max(1.0)).sqrt();
        let relative = |(sum, n): &(f64, f64)| if rms > 0.0 { sum / n / rms } else { 0.0 };
        errors.of_keys = of_key.iter().filter(|(_, n)| *n > 0.0).map(relative).collect();
        errors
    }
}

/// Sums over all scores of a head.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Errors {
    /// Squares of the scores about the mean of their query.
    scores: f64,
    /// Squares of the errors about the mean of their query.
    noise: f64,
    /// Products of errors and scores about the mean of their query.
    along: f64,
    /// Squares of the errors.
    squares: f64,
    /// Squares of the mean errors over draws, without what the number of draws leaves of their variance.
    biases: f64,
    pairs: f64,
    /// Mean error of the scores of each key, over the root mean square of all errors.
    of_keys: Vec<f64>,
}

/// What a table shows; ratios are means over layers and heads.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Summary {
    /// Slope of the estimated scores of a query on the true ones, less 1.
    pub(super) slope: f64,
    /// Mean error over the root mean square error.
    pub(super) mean_error: f64,
    /// The same in standard errors, keys counting as independent.
    pub(super) mean_error_z: f64,
    /// Share of the squared error that is the mean over draws, for each query and key by itself.
    pub(super) bias_share: f64,
    /// Variance of errors over variance of scores, both about the means of their queries.
    pub(super) noise: f64,
}

impl Summary {
    pub(super) fn of(errors: &[Errors]) -> Self {
        let mean = |of: &dyn Fn(&Errors) -> f64| errors.iter().map(of).sum::<f64>() / errors.len().max(1) as f64;
        let keys: Vec<f64> = errors.iter().flat_map(|e| e.of_keys.iter().copied()).collect();
        let n = keys.len().max(2) as f64;
        let mean_error = keys.iter().sum::<f64>() / n;
        let variance = keys.iter().map(|x| (x - mean_error).powi(2)).sum::<f64>() / (n - 1.0);
        Self {
            slope: mean(&|e| e.along / e.scores),
            mean_error,
            mean_error_z: if variance > 0.0 { mean_error / (variance / n).sqrt() } else { 0.0 },
            bias_share: mean(&|e| e.biases / e.squares),
            noise: mean(&|e| e.noise / e.scores),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::{Rng as _, SeedableRng as _};

    const D: usize = 4;
    const N: usize = 200;

    fn head(random: &mut StdRng) -> Head {
        let mut draw = |n: usize| -> Vec<f32> { (0..n).map(|_| random.random_range(-1.0..1.0)).collect() };
        let keys = draw(N * D);
        Head {
            place: Place { layer: 0, role: Role::Key, head: 0 },
            plain: keys.clone(),
            rotated: keys,
            queries: (0..20).map(|i| (N - 1 - i, draw(2 * D))).collect(),
            head_dim: D,
        }
    }

    fn summary(head: &Head, stored: &[Vec<f32>]) -> Summary {
        Summary::of(&[head.compare(stored)])
    }

    #[test]
    fn a_gain_is_a_slope_and_a_bias() {
        let head = head(&mut StdRng::seed_from_u64(1));
        let shrunk: Vec<f32> = head.rotated.iter().map(|x| 0.9 * x).collect();
        let found = summary(&head, &[shrunk]);
        assert!((found.slope + 0.1).abs() < 1e-6 && (found.noise - 0.01).abs() < 1e-6, "{found:?}");
        assert_eq!(found.bias_share, 1.0);
    }

    #[test]
    fn noise_of_its_own_at_every_draw_is_no_bias_and_the_same_noise_is() {
        let mut random = StdRng::seed_from_u64(2);
        let head = head(&mut random);
        let mut noisy = || -> Vec<f32> { head.rotated.iter().map(|x| x + random.random_range(-0.5..0.5)).collect() };
        let draws: Vec<Vec<f32>> = (0..16).map(|_| noisy()).collect();
        let found = summary(&head, &draws);
        // The variance of one square of 16 draws, over thousands of scores that share keys.
        assert!(found.bias_share.abs() < 0.02 && found.slope.abs() < 0.02, "{found:?}");
        assert!(found.mean_error_z.abs() < 4.0, "{found:?}");
        // 1/12 of the error's variance over 1/3 of the keys'.
        assert!((found.noise - 0.25).abs() < 0.03, "{found:?}");
        let same = vec![draws[0].clone(); 4];
        assert!((summary(&head, &same).bias_share - 1.0).abs() < 1e-9);
    }

    #[test]
    fn a_shift_of_all_keys_reaches_the_mean_error_alone() {
        let head = head(&mut StdRng::seed_from_u64(3));
        let shifted: Vec<f32> = head.rotated.iter().map(|x| x + 1.0).collect();
        let found = summary(&head, &[shifted]);
        assert!(found.noise < 1e-9 && found.slope.abs() < 1e-6, "{found:?}");
        assert!(found.mean_error.abs() > 0.05, "{found:?}");
    }
}
