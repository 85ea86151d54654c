//! The forward pass once more, in f64 and as plainly as possible: no cache, no blocks, nothing shared with the runtime.

use std::collections::HashMap;

use gosset_quantize::ModelSource;
use serde_json::Value;

/// A checkpoint as plain numbers.
pub(crate) struct Reference {
    config: Value,
    tensors: HashMap<String, (usize, Vec<f64>)>,
}

/// What a pass gave.
pub(crate) struct Pass {
    /// Logits of every position.
    pub(crate) logits: Vec<Vec<f64>>,
    /// Largest magnitude of silu(gate) · up in any layer.
    pub(crate) gated_peak: f64,
}

type Rows = Vec<Vec<f64>>;

impl Reference {
    /// Reads every tensor of `source`.
    pub(crate) fn of(source: &dyn ModelSource) -> Self {
        let read = |(i, t): (usize, &gosset_quantize::TensorInfo)| {
            let (rows, cols) = t.rows_cols();
            let mut values = vec![0f32; rows * cols];
            source.read_rows(i, 0..rows, &mut values).unwrap();
            (t.name.clone(), (cols, values.into_iter().map(f64::from).collect()))
        };
        let config = serde_json::from_slice(source.blob("config.json").unwrap()).unwrap();
        Reference { config, tensors: source.tensors().iter().enumerate().map(read).collect() }
    }

    /// NLL in nats of `tokens[target]` after all tokens before it, for each target in turn.
    pub(crate) fn nlls(&self, tokens: &[u32]) -> Vec<f64> {
        let logits = self.forward(tokens).logits;
        let nll = |(row, &next): (&Vec<f64>, &u32)| row.iter().map(|l| l.exp()).sum::<f64>().ln() - row[next as usize];
        logits.iter().zip(&tokens[1..]).map(nll).collect()
    }

    /// Runs `tokens` from an empty context.
    pub(crate) fn forward(&self, tokens: &[u32]) -> Pass {
        let (cols, table) = &self.tensors["model.embed_tokens.weight"];
        let mut x: Rows = tokens.iter().map(|&id| table[id as usize * cols..][..*cols].to_vec()).collect();
        let mut gated_peak = 0f64;
        for i in 0..self.count("num_hidden_layers") {
            let part = |name: &str| format!("model.layers.{i}.{name}");
            let normed = self.norm(&part("input_layernorm"), &x);
            add(&mut x, self.attention(&part("self_attn"), &normed));
            let normed = self.norm(&part("post_attention_layernorm"), &x);
            let (gate, up) = (self.linear(&part("mlp.gate_proj"), &normed), self.linear(&part("mlp.up_proj"), &normed));
            let silu = |g: f64| g / (1.0 + (-g).exp());
            let gated: Rows =
                gate.iter().zip(&up).map(|(g, u)| g.iter().zip(u).map(|(&g, u)| silu(g) * u).collect()).collect();
            gated_peak = gated.iter().flatten().fold(gated_peak, |m, v| m.max(v.abs()));
            add(&mut x, self.linear(&part("mlp.down_proj"), &gated));
        }
        let tied = self.config["tie_word_embeddings"] == true;
        let head = if tied { "model.embed_tokens" } else { "lm_head" };
        Pass { logits: self.linear(head, &self.norm("model.norm", &x)), gated_peak }
    }

    fn count(&self, key: &str) -> usize {
        self.config[key].as_u64().unwrap_or_else(|| panic!("{key} in config.json")) as usize
    }

    fn linear(&self, name: &str, x: &Rows) -> Rows {
        let (cols, w) = &self.tensors[&format!("{name}.weight")];
        let bias = self.tensors.get(&format!("{name}.bias"));
        let row = |x: &Vec<f64>| -> Vec<f64> {
            assert_eq!(x.len(), *cols, "{name}");
            let mut y: Vec<f64> = w.chunks_exact(*cols).map(|w| dot(w, x)).collect();
            bias.iter().for_each(|(_, b)| y.iter_mut().zip(b).for_each(|(y, b)| *y += b));
            y
        };
        x.iter().map(row).collect()
    }

    fn norm(&self, name: &str, x: &Rows) -> Rows {
        let (_, weight) = &self.tensors[&format!("{name}.weight")];
        let eps = self.config["rms_norm_eps"].as_f64().unwrap();
        let row = |x: &Vec<f64>| -> Vec<f64> {
            let scale = 1.0 / (dot(x, x) / x.len() as f64 + eps).sqrt();
            x.iter().zip(weight).map(|(v, w)| v * scale * w).collect()
        };
        x.iter().map(row).collect()
    }

    /// The heads of one projection: `[head][position]`, normalized where the model has weights for that, rotated if asked.
    fn heads(&self, layer: &str, part: &str, n: usize, x: &Rows, rotate: bool) -> Vec<Rows> {
        let all = self.linear(&format!("{layer}.{part}_proj"), x);
        let dim = all[0].len() / n;
        let norm = format!("{layer}.{part}_norm");
        let one = |head: usize| -> Rows {
            let mut rows: Rows = all.iter().map(|row| row[head * dim..][..dim].to_vec()).collect();
            if self.tensors.contains_key(&format!("{norm}.weight")) {
                rows = self.norm(&norm, &rows);
            }
            if rotate {
                rows.iter_mut().enumerate().for_each(|(position, row)| self.rotate(position as f64, row));
            }
            rows
        };
        (0..n).map(one).collect()
    }

    fn attention(&self, layer: &str, x: &Rows) -> Rows {
        let (heads, kv_heads) = (self.count("num_attention_heads"), self.count("num_key_value_heads"));
        let q = self.heads(layer, "q", heads, x, true);
        let (k, v) = (self.heads(layer, "k", kv_heads, x, true), self.heads(layer, "v", kv_heads, x, false));
        let mut out = vec![Vec::new(); x.len()];
        for (head, q) in q.iter().enumerate() {
            let (k, v) = (&k[head / (heads / kv_heads)], &v[head / (heads / kv_heads)]);
            for (p, out) in out.iter_mut().enumerate() {
                let scale = (q[p].len() as f64).sqrt();
                let weights: Vec<f64> = (0..=p).map(|s| (dot(&q[p], &k[s]) / scale).exp()).collect();
                let total: f64 = weights.iter().sum();
                out.extend((0..v[0].len()).map(|i| weights.iter().zip(v).map(|(w, v)| w * v[i]).sum::<f64>() / total));
            }
        }
        self.linear(&format!("{layer}.o_proj"), &out)
    }

    /// Turns coordinates i and i + half of a head by the angle of their frequency.
    fn rotate(&self, position: f64, head: &mut [f64]) {
        let half = head.len() / 2;
        for i in 0..half {
            let (sin, cos) = (position * self.frequency(i, head.len())).sin_cos();
            let (a, b) = (head[i], head[i + half]);
            (head[i], head[i + half]) = (a * cos - b * sin, b * cos + a * sin);
        }
    }

    fn frequency(&self, i: usize, dim: usize) -> f64 {
        let plain = self.config["rope_theta"].as_f64().unwrap().powf(-2.0 * i as f64 / dim as f64);
        let scaling = &self.config["rope_scaling"];
        if scaling["rope_type"] != "llama3" {
            assert!(scaling.is_null(), "the reference knows llama3 scaling only");
            return plain;
        }
        let get = |key: &str| scaling[key].as_f64().unwrap();
        let (low, high) = (get("low_freq_factor"), get("high_freq_factor"));
        // Turns within the original context: few are slowed down in full, many are left alone.
        let turns = get("original_max_position_embeddings") * plain / std::f64::consts::TAU;
        let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
        plain * (kept + (1.0 - kept) / get("factor"))
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn add(x: &mut Rows, y: Rows) {
    x.iter_mut().zip(y).for_each(|(x, y)| x.iter_mut().zip(y).for_each(|(a, b)| *a += b));
}
