//! Keys that lie far off zero, which codecs without a mean lose their bits to.

use gosset_kv::{KvShape, Protected, Role};

/// Ratio of energies from which a warning is due.
///
/// A code that divides by the norm errs in proportion to the whole energy, so its error beside what tells keys apart is (1 + ratio)
/// times as large: 65 times at this ratio, three bits. One head of SmolLM2-135M comes to 16, which it bears; Qwen2.5-Coder-0.5B to 9733
/// in its first layer (`gosset generate --kv e8@8,frame=none`).
const HEAVY: f64 = 64.0;

/// The head of a layer whose keys lie furthest off zero.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KeyMean {
    /// The layer.
    pub layer: usize,
    /// The KV head.
    pub head: usize,
    /// Energy of the mean key over the mean energy about it.
    pub ratio: f64,
    /// Coordinate of the largest mean.
    pub channel: usize,
    /// That mean.
    pub mean: f64,
}

/// How far the keys of a model, before their rotation, lie off zero; one entry per layer, by [`LanguageModel::key_means`].
///
/// [`LanguageModel::key_means`]: crate::LanguageModel::key_means
#[derive(Debug, Clone, PartialEq)]
pub struct KeyMeans {
    /// The worst head of every layer.
    pub layers: Vec<KeyMean>,
}

impl KeyMeans {
    /// The layers whose keys lie so far off zero that a cache has to know.
    pub fn heavy(&self) -> impl Iterator<Item = &KeyMean> {
        self.layers.iter().filter(|mean| mean.ratio >= HEAVY)
    }

    /// One sentence for people who compress keys without taking a mean off, but in layers that are protected; `None` for a model whose
    /// keys allow it.
    pub fn notice(&self, protect: &[Protected]) -> Option<String> {
        let coded = |mean: &&KeyMean| !protect.iter().any(|p| p.covers(mean.layer, Role::Key));
        let n = self.heavy().filter(coded).count();
        let worst = self.heavy().filter(coded).max_by(|a, b| a.ratio.total_cmp(&b.ratio))?;
        let layers = if n == 1 { "1 layer".to_owned() } else { format!("{n} layers") };
        Some(format!(
            "keys of {layers} lie far off zero (layer {}, channel {}: mean {:.0}, {:.0} times the energy about it), which compressing them \
             by their norm does not survive at few bits; choose a spec whose keys are probed, or protect these layers",
            worst.layer, worst.channel, worst.mean, worst.ratio
        ))
    }
}

/// Sums over keys, in f64.
pub(super) struct Means {
    shape: KvShape,
    /// Per layer: keys, sums and sums of squares by coordinate.
    layers: Vec<(usize, Vec<f64>, Vec<f64>)>,
}

impl Means {
    pub(super) fn new(shape: KvShape) -> Self {
        let zeros = vec![0.0; shape.width()];
        Self { shape, layers: vec![(0, zeros.clone(), zeros); shape.layers] }
    }

    /// Adds keys of a layer, `[n, kv_heads * head_dim]`.
    pub(super) fn add(&mut self, layer: usize, keys: &[f32]) {
        let (n, sums, squares) = &mut self.layers[layer];
        for key in keys.chunks_exact(self.shape.width()) {
            *n += 1;
            for ((sum, square), &x) in sums.iter_mut().zip(squares.iter_mut()).zip(key) {
                *sum += f64::from(x);
                *square += f64::from(x) * f64::from(x);
            }
        }
    }

    pub(super) fn finish(self) -> KeyMeans {
        let head_dim = self.shape.head_dim;
        let layers = self.layers.iter().enumerate().filter_map(|(layer, (n, sums, squares))| {
            let n = (*n).max(1) as f64;
            let heads = sums.chunks_exact(head_dim).zip(squares.chunks_exact(head_dim)).enumerate();
            let of_head = heads.map(|(head, (sums, squares))| {
                let means: Vec<f64> = sums.iter().map(|sum| sum / n).collect();
                let of_mean: f64 = means.iter().map(|mean| mean * mean).sum();
                let about = squares.iter().sum::<f64>() / n - of_mean;
                let (channel, mean) = means.iter().enumerate().fold((0, 0f64), |worst, (channel, &mean)| {
                    if mean.abs() > worst.1.abs() { (channel, mean) } else { worst }
                });
                // Keys that are all alike have nothing about their mean; a model of zeros has no mean either.
                let ratio = if of_mean == 0.0 { 0.0 } else { of_mean / about.max(of_mean * 1e-9) };
                KeyMean { layer, head, ratio, channel, mean }
            });
            of_head.max_by(|a, b| a.ratio.total_cmp(&b.ratio))
        });
        KeyMeans { layers: layers.collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heavy_channel_is_named_and_small_means_are_not() {
        let shape = KvShape { layers: 2, kv_heads: 2, head_dim: 4 };
        let mut means = Means::new(shape);
        for i in 0..100 {
            let x = if i % 2 == 0 { 1.0 } else { -1.0 };
            means.add(0, &[x, x, x + 1.0, x, x, -x, x, x]);
            means.add(1, &[x, x, x, x, x, x - 500.0, x, x]);
        }
        let means = means.finish();
        assert_eq!((means.layers[0].head, means.layers[0].channel, means.layers[0].ratio), (0, 2, 0.25));
        let heavy: Vec<_> = means.heavy().map(|mean| (mean.layer, mean.head, mean.channel, mean.mean)).collect();
        assert_eq!(heavy, [(1, 1, 1, -500.0)]);
        let notice = means.notice(&[]).unwrap();
        assert!(
            notice.contains("1 layer ") && notice.contains("layer 1, channel 1: mean -500, 62500 times"),
            "{notice}"
        );
        let protected = |role| [Protected { layer: 1, role }];
        assert_eq!(means.notice(&protected(None)), None);
        assert_eq!(means.notice(&protected(Some(Role::Key))), None);
        assert_eq!(means.notice(&protected(Some(Role::Value))), Some(notice));
    }
}
