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

    fn norm(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let weight = self.vector(&format!("{name}.weight")).unwrap();
        let mean = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
        let scale = 1.0 / (mean + self.number("rms_norm_eps")).sqrt();
        x.iter().zip(weight).map(|(v, w)| v * scale * w).collect()
    }

    fn frequency(&self, pair: usize) -> f64 {
        let f = self.number("rope_theta").powf(-2.0 * pair as f64 / self.head_dim() as f64);
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

    fn rotate(&self, position: usize, head: &[f64]) -> Vec<f64> {
        let half = head.len() / 2;
        let mut out = head.to_vec();
        for i in 0..half {
            let (sin, cos) = (position as f64 * self.frequency(i)).sin_cos();
            out[i] = head[i] * cos - head[i + half] * sin;
            out[i + half] = head[i + half] * cos + head[i] * sin;
        }
        out
    }

    fn attention(&self, layer: &str, x: &Matrix) -> Matrix {
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
                    if rotate { self.rotate(p, &head) } else { head }
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
                    let mask = if s > p { f64::NEG_INFINITY } else { 0.0 };
                    q[p].iter().zip(&k[s]).map(|(a, b)| a * b).sum::<f64>() / (dim as f64).sqrt() + mask
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
        let add = |x: &mut Matrix, y: Matrix| {
            x.iter_mut().zip(y).for_each(|(x, y)| x.iter_mut().zip(y).for_each(|(a, b)| *a += b));
        };
        for i in 0..self.count("num_hidden_layers") {
            let layer = format!("model.layers.{i}");
            let normed = x.iter().map(|x| self.norm(&format!("{layer}.input_layernorm"), x)).collect();
            let attended = self.attention(&layer, &normed);
            add(&mut x, attended);
            let normed = x.iter().map(|x| self.norm(&format!("{layer}.post_attention_layernorm"), x)).collect();
            let gate = self.linear(&format!("{layer}.mlp.gate_proj"), &normed);
            let up = self.linear(&format!("{layer}.mlp.up_proj"), &normed);
            let silu = |g: f64| g / (1.0 + (-g).exp());
            let gated =
                gate.iter().zip(&up).map(|(g, u)| g.iter().zip(u).map(|(&g, u)| silu(g) * u).collect()).collect();
            let down = self.linear(&format!("{layer}.mlp.down_proj"), &gated);
            add(&mut x, down);
        }
        let x = x.iter().map(|x| self.norm("model.norm", x)).collect();
        let tied = self.config["tie_word_embeddings"] == true;
        self.linear(if tied { "model.embed_tokens" } else { "lm_head" }, &x)
    }
}
