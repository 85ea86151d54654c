//! Statistics of the keys and queries of a model: what the frames of keys are made from.

use crate::{KvError, KvShape};

/// Keys of a head that are held back at most.
const MAX_SAMPLE: usize = 512;
/// One key in so many is held back at first.
const FIRST_STRIDE: u64 = 4;

/// Which two coordinates of a vector the rotary embedding turns in one plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RopePairs {
    /// i and i + head_dim/2.
    Halves,
    /// 2i and 2i + 1.
    Interleaved,
}

impl RopePairs {
    /// The pair of coordinate `i`, below `head_dim / 2`.
    pub const fn pair_of(self, i: usize, head_dim: usize) -> usize {
        match self {
            Self::Halves => i % (head_dim / 2),
            Self::Interleaved => i / 2,
        }
    }

    /// The coordinates of pair `t`, below `head_dim / 2`: the one whose sine is taken off comes first.
    pub const fn coordinates(self, t: usize, head_dim: usize) -> [usize; 2] {
        match self {
            Self::Halves => [t, t + head_dim / 2],
            Self::Interleaved => [2 * t, 2 * t + 1],
        }
    }
}

/// Statistics of one KV head.
#[derive(Debug, Clone, PartialEq)]
pub struct HeadProbe {
    /// Mean of keys before the rotary embedding, `[head_dim]`.
    pub mean: Vec<f64>,
    /// Covariance of them, `[head_dim, head_dim]`, symmetric.
    pub covariance: Vec<f64>,
    /// Mean square of the coordinates of queries by pair, `[head_dim / 2]`, averaged over the pair and the query heads of the group.
    pub query_energy: Vec<f64>,
    /// Keys that are not part of mean and covariance, `[n, head_dim]`, evenly spread over the tokens: what tells how many bits keys really
    /// take.
    pub sample: Vec<f32>,
}

/// Statistics of the keys before the rotary embedding and of the queries of a model.
///
/// A few thousand tokens of any text are enough.
#[derive(Debug, Clone, PartialEq)]
pub struct Probe {
    shape: KvShape,
    pairs: RopePairs,
    /// By layer, then head.
    heads: Vec<HeadProbe>,
    tokens: u64,
    turns: Option<Vec<f64>>,
}

impl Probe {
    /// Sizes of the model.
    pub fn shape(&self) -> KvShape {
        self.shape
    }

    /// Which coordinates rotate together.
    pub fn pairs(&self) -> RopePairs {
        self.pairs
    }

    /// Tokens seen by the layer that saw the fewest.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Turns per position of each pair of coordinates, if they were given to [`ProbeBuilder::turns`].
    pub fn turns(&self) -> Option<&[f64]> {
        self.turns.as_deref()
    }

    /// Statistics of a head; `None` if the model has not as many.
    pub fn head(&self, layer: usize, head: usize) -> Option<&HeadProbe> {
        if layer >= self.shape.layers || head >= self.shape.kv_heads {
            return None;
        }
        self.heads.get(layer * self.shape.kv_heads + head)
    }

    /// Largest ratio, over all heads, of the norm of the mean key to the root mean square of the norm of what is left: above about 10
    /// the keys of that head are mostly bias, and codecs that keep it lose what differs from token to token.
    pub fn largest_bias(&self) -> f64 {
        let ratio = |head: &HeadProbe| {
            let d = self.shape.head_dim;
            let mean: f64 = head.mean.iter().map(|m| m * m).sum();
            let rest: f64 = (0..d).map(|i| head.covariance[i * d + i]).sum();
            if mean == 0.0 { 0.0 } else { (mean / rest.max(f64::MIN_POSITIVE)).sqrt() }
        };
        self.heads.iter().map(ratio).fold(0.0, f64::max)
    }
}

/// Sums of one KV head.
#[derive(Debug, Clone)]
struct HeadSums {
    /// First key, which all others are taken relative to: sums of squares of large biases would cancel.
    origin: Vec<f64>,
    keys: Vec<f64>,
    products: Vec<f64>,
    query_squares: Vec<f64>,
    sample: Vec<f32>,
}

impl HeadSums {
    fn add(&mut self, key: &[f32], row: &mut [f64]) {
        let d = row.len();
        for ((row, &v), o) in row.iter_mut().zip(key).zip(&self.origin) {
            *row = f64::from(v) - o;
        }
        for (i, &v) in row.iter().enumerate() {
            self.keys[i] += v;
            // The lower triangle; the rest follows.
            for (p, w) in self.products[i * d..][..=i].iter_mut().zip(&*row) {
                *p += v * w;
            }
        }
    }
}

/// Collects statistics from the keys and queries of a forward pass, in f64 and in the order in which they come.
///
/// ```
/// use gosset_kv::{KvShape, ProbeBuilder, RopePairs};
///
/// let shape = KvShape { layers: 1, kv_heads: 1, head_dim: 2 };
/// let mut builder = ProbeBuilder::new(shape, RopePairs::Halves)?;
/// // Two tokens: keys of one head, queries of two heads.
/// builder.add(0, &[1.0, 5.0, 3.0, 5.0], &[1.0, 1.0, 2.0, 0.0, 0.0, 1.0, 0.0, 1.0])?;
/// let probe = builder.finish()?;
/// let head = probe.head(0, 0).unwrap();
/// assert_eq!((&head.mean[..], &head.covariance[..]), (&[2.0, 5.0][..], &[1.0, 0.0, 0.0, 0.0][..]));
/// assert_eq!(head.query_energy, [1.0]);
/// # Ok::<(), gosset_kv::KvError>(())
/// ```
#[derive(Debug, Clone)]
pub struct ProbeBuilder {
    shape: KvShape,
    pairs: RopePairs,
    heads: Vec<HeadSums>,
    /// Tokens and query vectors of each layer.
    counts: Vec<(u64, u64)>,
    /// Tokens from one that is sampled to the next, by layer.
    strides: Vec<u64>,
    row: Vec<f64>,
    turns: Option<Vec<f64>>,
}

impl ProbeBuilder {
    /// Without any token.
    ///
    /// # Errors
    ///
    /// [`KvError::HeadDim`] for an odd width or none.
    pub fn new(shape: KvShape, pairs: RopePairs) -> Result<Self, KvError> {
        let d = shape.head_dim;
        if d == 0 || d % 2 == 1 {
            return Err(KvError::HeadDim { head_dim: d, codec: "probe".to_owned(), allowed: "even widths" });
        }
        let zero = HeadSums {
            origin: vec![0.0; d],
            keys: vec![0.0; d],
            products: vec![0.0; d * d],
            query_squares: vec![0.0; d / 2],
            sample: Vec::new(),
        };
        let heads = vec![zero; shape.layers * shape.kv_heads];
        Ok(Self {
            shape,
            pairs,
            heads,
            counts: vec![(0, 0); shape.layers],
            strides: vec![FIRST_STRIDE; shape.layers],
            row: vec![0.0; d],
            turns: None,
        })
    }

    /// Says how far the rotary embedding turns each pair of coordinates from one position to the next, in turns, `[head_dim / 2]`: the
    /// frame `pairs` needs it.
    ///
    /// # Errors
    ///
    /// [`KvError::Length`] for another number of pairs, [`KvError::Spec`] for turns that are no numbers.
    pub fn turns(mut self, turns: &[f64]) -> Result<Self, KvError> {
        crate::float_kv::check_len("turns of pairs", turns.len(), self.shape.head_dim / 2)?;
        if let Some(t) = turns.iter().position(|turns| !turns.is_finite()) {
            let reason = format!("turns per position of pair {t} are {}: expected a number", turns[t]);
            return Err(KvError::Spec { spec: "frame=pairs".to_owned(), reason });
        }
        self.turns = Some(turns.to_vec());
        Ok(self)
    }

    /// Adds n tokens of a layer: `keys` before the rotary embedding, `[n, kv_heads * head_dim]`, and `queries`, `[n, heads * head_dim]`
    /// with a multiple of `kv_heads` heads, before or after it; query head h belongs to KV head h / (heads / kv_heads).
    ///
    /// # Errors
    ///
    /// [`KvError::Length`] for slices that do not fit, [`KvError::NonFinite`] for NaN or infinity among the keys or queries (named by
    /// the token's number in this call); nothing is added then.
    pub fn add(&mut self, layer: usize, keys: &[f32], queries: &[f32]) -> Result<(), KvError> {
        let KvShape { layers, kv_heads, head_dim: d } = self.shape;
        if layer >= layers {
            return Err(KvError::Length { what: "layers of the probe", found: layers, expected: layer + 1 });
        }
        let width = self.shape.width();
        let n = keys.len() / width.max(1);
        crate::float_kv::check_len("keys", keys.len(), n * width)?;
        if n == 0 {
            return crate::float_kv::check_len("queries", queries.len(), 0);
        }
        let group = queries.len() / (n * width);
        crate::float_kv::check_len("queries", queries.len(), n * width * group.max(1))?;
        for (role, values, width) in [("key", keys, width), ("query", queries, width * group)] {
            if let Some(i) = values.iter().position(|v| !v.is_finite()) {
                let head = (i % width / d) as u32;
                let position = (i / width) as u64;
                return Err(KvError::NonFinite { role, layer: layer as u32, head, position });
            }
        }
        for (token, keys) in (self.counts[layer].0..).zip(keys.chunks_exact(width)) {
            self.add_token(layer, token, keys);
        }
        for head in 0..kv_heads {
            let sums = &mut self.heads[layer * kv_heads + head];
            for queries in queries.chunks_exact(width * group) {
                for (i, &q) in queries[head * group * d..][..group * d].iter().enumerate() {
                    sums.query_squares[self.pairs.pair_of(i % d, d)] += f64::from(q) * f64::from(q);
                }
            }
        }
        self.counts[layer].0 += n as u64;
        self.counts[layer].1 += (n * group) as u64;
        Ok(())
    }

    /// Adds the keys of one token to the sums, or holds them back as a sample; whenever there are too many of those, every other one goes
    /// to the sums after all.
    fn add_token(&mut self, layer: usize, token: u64, keys: &[f32]) {
        let KvShape { kv_heads, head_dim: d, .. } = self.shape;
        let heads = &mut self.heads[layer * kv_heads..][..kv_heads];
        let stride = &mut self.strides[layer];
        let held = token % *stride == *stride - 1;
        for (sums, key) in heads.iter_mut().zip(keys.chunks_exact(d)) {
            if token == 0 {
                sums.origin.iter_mut().zip(key).for_each(|(o, &v)| *o = f64::from(v));
            }
            if held {
                sums.sample.extend_from_slice(key);
            } else {
                sums.add(key, &mut self.row);
            }
        }
        if heads.first().is_some_and(|sums| sums.sample.len() > MAX_SAMPLE * d) {
            *stride *= 2;
            for sums in heads {
                let sample = std::mem::take(&mut sums.sample);
                for (i, key) in sample.chunks_exact(d).enumerate() {
                    if i % 2 == 1 {
                        sums.sample.extend_from_slice(key);
                    } else {
                        sums.add(key, &mut self.row);
                    }
                }
            }
        }
    }

    /// The statistics.
    ///
    /// # Errors
    ///
    /// [`KvError::Positions`] if a layer has seen fewer than two tokens.
    pub fn finish(self) -> Result<Probe, KvError> {
        let KvShape { kv_heads, head_dim: d, .. } = self.shape;
        let tokens = self.counts.iter().map(|&(n, _)| n).min().unwrap_or(0);
        if tokens < 2 {
            let reason = "a probe needs two tokens or more in every layer";
            return Err(KvError::Positions { asked: 2, held: tokens, reason });
        }
        let head = |(i, sums): (usize, HeadSums)| {
            let (n, n_queries) = self.counts[i / kv_heads];
            let n = (n - (sums.sample.len() / d) as u64) as f64;
            let n_queries = n_queries as f64;
            let shift: Vec<f64> = sums.keys.iter().map(|s| s / n).collect();
            let mut covariance = vec![0.0; d * d];
            for i in 0..d {
                for j in 0..=i {
                    let c = sums.products[i * d + j] / n - shift[i] * shift[j];
                    (covariance[i * d + j], covariance[j * d + i]) = (c, c);
                }
                // Rounding must not make a variance negative.
                covariance[i * d + i] = covariance[i * d + i].max(0.0);
            }
            let mean = sums.origin.iter().zip(&shift).map(|(o, s)| o + s).collect();
            let query_energy = sums.query_squares.iter().map(|q| q / (2.0 * n_queries)).collect();
            HeadProbe { mean, covariance, query_energy, sample: sums.sample }
        };
        let heads = self.heads.into_iter().enumerate().map(head).collect();
        Ok(Probe { shape: self.shape, pairs: self.pairs, heads, tokens, turns: self.turns })
    }
}
