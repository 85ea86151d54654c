//! The forward pass written down once more, in f64: no cache, explicit masks, repeated KV heads, nothing shared with the crate.

use std::cell::RefCell;
use std::collections::HashMap;

use serde_json::Value;

pub(super) type Matrix = Vec<Vec<f64>>;

/// A checkpoint as plain numbers.
pub(super) struct Reference {
    pub(super) config: Value,
    pub(super) tensors: HashMap<String, (Vec<usize>, Vec<f32>)>,
    /// What each linear read in the last pass, by its name without `.weight`.
    pub(super) inputs: RefCell<HashMap<String, Matrix>>,
}

impl Reference {
    fn number(&self, key: &str) -> f64 {
        self.config[key].as_f64().unwrap_or_else(|| panic!("{key} in config"))
    }

    fn count(&self, key: &str) -> usize {
        self.number(key) as usize
    }

    fn head_dim(&self) -> usize {
        let stated = self.config["head_dim"].as_u64().map(|d| d as usize);
        stated.unwrap_or_else(|| self.count("hidden_size") / self.count("num_attention_heads"))
    }

    fn vector(&self, name: &str) -> Option<Vec<f64>> {
        self.tensors.get(name).map(|(_, data)| data.iter().map(|&v| f64::from(v)).collect())
    }

    fn linear(&self, name: &str, x: &Matrix) -> Matrix {
        let (shape, w) = &self.tensors[&format!("{name}.weight")];
        let bias = self.vector(&format!("{name}.bias"));
        self.inputs.borrow_mut().insert(name.to_owned(), x.clone());
        x.iter()
            .map(|x| {
                assert_eq!(x.len(), shape[1], "{name}");
                (0..shape[0])
                    .map(|r| {
                        let dot: f64 = x.iter().zip(&w[r * shape[1]..]).map(|(a, &b)| a * f64::from(b)).sum();
                        dot + bias.as_ref().map_or(0.0, |b| b[r])
                    })
                    .collect()
            })
            .collect()
    }

    /// Whether the model has what Gemma 3 has and others have not.
    fn is_gemma(&self) -> bool {
        self.config["model_type"] == "gemma3_text"
    }

    /// Positions that a query of a layer sees, and the layer's rotary base.
    fn sight_and_base(&self, layer: usize) -> (usize, f64) {
        let window = self.config["sliding_window"].as_u64().map_or(usize::MAX, |window| window as usize);
        match self.config["sliding_window_pattern"].as_u64() {
            Some(pattern) if !(layer as u64 + 1).is_multiple_of(pattern) => {
                (window, self.number("rope_local_base_freq"))
            }
            Some(_) => (usize::MAX, self.number("rope_theta")),
            None => (window, self.number("rope_theta")),
        }
    }

    fn norm(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let mut weight = self.vector(&format!("{name}.weight")).unwrap();
        if self.is_gemma() {
            weight.iter_mut().for_each(|w| *w += 1.0);
        }
        let mean = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
        let scale = 1.0 / (mean + self.number("rms_norm_eps")).sqrt();
        x.iter().zip(weight).map(|(v, w)| v * scale * w).collect()
    }

    fn frequency(&self, pair: usize, base: f64) -> f64 {
        let f = base.powf(-2.0 * pair as f64 / self.head_dim() as f64);
        let scaling = &self.config["rope_scaling"];
        if scaling["rope_type"] != "llama3" {
            return f;
        }
        let get = |k: &str| scaling[k].as_f64().unwrap();
        let (factor, low, high) = (get("factor"), get("low_freq_factor"), get("high_freq_factor"));
        let original = get("original_max_position_embeddings");
        let wavelength = 2.0 * std::f64::consts::PI / f;
        if wavelength < original / high {
            f
        } else if wavelength > original / low {
            f / factor
        } else {
            let smooth = (original / wavelength - low) / (high - low);
            (1.0 - smooth) * f / factor + smooth * f
        }
    }

    fn rotate(&self, position: usize, head: &[f64], base: f64) -> Vec<f64> {
        let half = head.len() / 2;
        let mut out = head.to_vec();
        for i in 0..half {
            let (sin, cos) = (position as f64 * self.frequency(i, base)).sin_cos();
            out[i] = head[i] * cos - head[i + half] * sin;
            out[i + half] = head[i + half] * cos + head[i] * sin;
        }
        out
    }

    fn attention(&self, index: usize, x: &Matrix) -> Matrix {
        let layer = &format!("model.layers.{index}");
        let (window, base) = self.sight_and_base(index);
        let (heads, kv_heads, dim) =
            (self.count("num_attention_heads"), self.count("num_key_value_heads"), self.head_dim());
        let project = |part: &str| self.linear(&format!("{layer}.self_attn.{part}_proj"), x);
        let (q, k, v) = (project("q"), project("k"), project("v"));
        let prepared = |rows: &Matrix, part: &str, head: usize, rotate: bool| -> Matrix {
            let norm = format!("{layer}.self_attn.{part}_norm");
            rows.iter()
                .enumerate()
                .map(|(p, row)| {
                    let mut head = row[head * dim..(head + 1) * dim].to_vec();
                    if self.tensors.contains_key(&format!("{norm}.weight")) {
                        head = self.norm(&norm, &head);
                    }
                    if rotate { self.rotate(p, &head, base) } else { head }
                })
                .collect()
        };
        let mut out = vec![Vec::new(); x.len()];
        for head in 0..heads {
            let kv = head * kv_heads / heads;
            let (q, k) = (prepared(&q, "q", head, true), prepared(&k, "k", kv, true));
            let v = prepared(&v, "v", kv, false);
            for (p, out) in out.iter_mut().enumerate() {
                let score = |s: usize| -> f64 {
                    let mask = if s > p || p - s >= window { f64::NEG_INFINITY } else { 0.0 };
                    let scalar = self.config["query_pre_attn_scalar"].as_f64().unwrap_or(dim as f64);
                    q[p].iter().zip(&k[s]).map(|(a, b)| a * b).sum::<f64>() / scalar.sqrt() + mask
                };
                let weights: Vec<f64> = (0..x.len()).map(|s| score(s).exp()).collect();
                let total: f64 = weights.iter().sum();
                out.extend((0..dim).map(|i| weights.iter().zip(&v).map(|(w, v)| w / total * v[i]).sum::<f64>()));
            }
        }
        self.linear(&format!("{layer}.self_attn.o_proj"), &out)
    }

    /// Logits of every position.
    pub(super) fn logits(&self, tokens: &[u32]) -> Matrix {
        let (shape, table) = &self.tensors["model.embed_tokens.weight"];
        let row = |id: u32| table[id as usize * shape[1]..][..shape[1]].iter().map(|&v| f64::from(v)).collect();
        let mut x: Matrix = tokens.iter().map(|&id| row(id)).collect();
        let gemma = self.is_gemma();
        if gemma {
            let scale = (self.count("hidden_size") as f64).sqrt();
            x.iter_mut().flatten().for_each(|v| *v *= scale);
        }
        let (before_feed_forward, gate_value): (_, fn(f64) -> f64) = if gemma {
            let gelu = |g: f64| {
                let inner = (2.0 / std::f64::consts::PI).sqrt() * (g + 0.044715 * g.powi(3));
                0.5 * g * (1.0 + inner.tanh())
            };
            ("pre_feedforward_layernorm", gelu)
        } else {
            ("post_attention_layernorm", |g| g / (1.0 + (-g).exp()))
        };
        let add = |x: &mut Matrix, y: Matrix| {
            x.iter_mut().zip(y).for_each(|(x, y)| x.iter_mut().zip(y).for_each(|(a, b)| *a += b));
        };
        for i in 0..self.count("num_hidden_layers") {
            let layer = format!("model.layers.{i}");
            let normed = x.iter().map(|x| self.norm(&format!("{layer}.input_layernorm"), x)).collect();
            let behind = |name: &str, y: Matrix| -> Matrix {
                if gemma { y.iter().map(|y| self.norm(&format!("{layer}.{name}"), y)).collect() } else { y }
            };
            let attended = behind("post_attention_layernorm", self.attention(i, &normed));
            add(&mut x, attended);
            let normed = x.iter().map(|x| self.norm(&format!("{layer}.{before_feed_forward}"), x)).collect();
            let gate = self.linear(&format!("{layer}.mlp.gate_proj"), &normed);
            let up = self.linear(&format!("{layer}.mlp.up_proj"), &normed);
            let gated =
                gate.iter().zip(&up).map(|(g, u)| g.iter().zip(u).map(|(&g, u)| gate_value(g) * u).collect()).collect();
            let down = self.linear(&format!("{layer}.mlp.down_proj"), &gated);
            let down = behind("post_feedforward_layernorm", down);
            add(&mut x, down);
        }
        let x = x.iter().map(|x| self.norm("model.norm", x)).collect();
        let tied = self.config["tie_word_embeddings"] == true;
        self.linear(if tied { "model.embed_tokens" } else { "lm_head" }, &x)
    }
}
