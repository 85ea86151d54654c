//! A transformer block in candle operations.

use std::collections::HashMap;
use std::sync::Arc;

use candle_core::{Device, Tensor};
use gosset_unisvq::UniSvqMatrix;

use super::linear::{GridLinear, TuneLinear};
use super::ops::{Attention, Codes, attention, gate, rms_norm};
use super::parameter::{Kind, Parameter};
use crate::attention::AttentionShape;
use crate::config::ModelConfig;
use crate::error::RuntimeError;
use crate::models::{Gate, layer_name};
use crate::rope::{RopeFrequencies, Ropes};
use crate::weights::Weights;

/// The linears of a block, as the data flow.
const LINEARS: [&str; 7] = [
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
];

/// Norms of queries and keys, which are optional; those of the layer come before them.
const HEAD_NORMS: [&str; 2] = ["self_attn.q_norm", "self_attn.k_norm"];

/// One block with its parameters.
pub(super) struct TuneBlock {
    shape: AttentionShape,
    eps: f64,
    gate: Gate,
    /// What the weights of norms are stored less by.
    norm_offset: f32,
    rope: RopeFrequencies,
    linears: Vec<(TuneLinear, Option<Tensor>)>,
    /// Those of the layer as the data flow, then those of queries and keys.
    norms: Vec<Option<Parameter>>,
    names: Vec<String>,
}

impl TuneBlock {
    /// Block `layer` of `weights`, with `matrices` by the names of their tensors in place of their weights.
    pub(super) fn load(
        config: &ModelConfig,
        weights: &dyn Weights,
        layer: usize,
        matrices: &HashMap<&str, &UniSvqMatrix>,
    ) -> Result<Self, RuntimeError> {
        let name = layer_name(layer);
        let norms = config.architecture.layer_norms();
        // A norm that there is none of has the name of no tensor.
        let norms = norms.iter().map(|norm| norm.unwrap_or_default()).chain(HEAD_NORMS);
        let names: Vec<String> = LINEARS.into_iter().chain(norms).map(|part| format!("{name}.{part}.weight")).collect();
        let norm_offset = if config.architecture.gemma_norms { 1.0 } else { 0.0 };
        let vector = |values: Vec<f32>| {
            let n = values.len();
            Tensor::from_vec(values, n, &Device::Cpu)
        };
        let linear = |(part, tensor): (&&str, &String)| {
            let bias = format!("{name}.{part}.bias");
            let bias = match weights.shape(&bias) {
                Some(_) => Some(vector(weights.vector(&bias)?)?),
                None => None,
            };
            let linear = match (matrices.get(tensor.as_str()), weights.shape(tensor)) {
                (Some(matrix), _) => TuneLinear::Grid(Box::new(GridLinear::new(matrix)?)),
                (None, Some(&[rows, cols])) => {
                    let values = weights.vector(tensor)?;
                    TuneLinear::Constant(Arc::new(Codes { values, rows, cols, dim: 1, scale: 1.0 }))
                }
                _ => return Err(RuntimeError::MissingTensor { name: tensor.clone(), expected: Vec::new() }),
            };
            Ok((linear, bias))
        };
        let norm = |tensor: &String| match weights.shape(tensor) {
            Some(_) => {
                let mut values = weights.vector(tensor)?;
                values.iter_mut().for_each(|w| *w += norm_offset);
                let n = values.len();
                Parameter::new(Kind::Norm, values, &[n]).map(Some)
            }
            None => Ok(None),
        };
        let linears = LINEARS.iter().zip(&names).map(linear).collect::<Result<_, RuntimeError>>()?;
        let norms = names[LINEARS.len()..].iter().map(norm).collect::<Result<_, RuntimeError>>()?;
        Ok(Self {
            shape: AttentionShape::of(config, layer),
            eps: config.rms_norm_eps,
            gate: config.architecture.gate,
            norm_offset,
            rope: Ropes::of(config).of_layer(config.local_layers.contains(layer)).clone(),
            linears,
            norms,
            names,
        })
    }

    fn linear(&self, index: usize, x: &Tensor) -> Result<Tensor, RuntimeError> {
        let (linear, bias) = &self.linears[index];
        linear.forward(x, bias.as_ref())
    }

    fn norm(&self, index: usize, x: &Tensor) -> Result<Tensor, RuntimeError> {
        match &self.norms[index] {
            Some(norm) => Ok(rms_norm(x, norm.var.as_tensor(), self.eps)?),
            None => Ok(x.clone()),
        }
    }

    /// The residual stream after the block from position `first` on, for a sequence from position 0 on, `[n, hidden]`.
    pub(super) fn forward(&self, x: &Tensor, first: usize) -> Result<Tensor, RuntimeError> {
        let n = x.dim(0)?;
        let angles = Arc::new(Attention { shape: self.shape, rope: self.rope.table(0..n) });
        let input = self.norm(0, x)?;
        let q = self.norm(4, &self.linear(0, &input.narrow(0, first, n - first)?)?)?;
        let k = self.norm(5, &self.linear(1, &input)?)?;
        let attended = attention(&q, &k, &self.linear(2, &input)?, &angles)?;
        let x = (x.narrow(0, first, n - first)? + self.norm(1, &self.linear(3, &attended)?)?)?;

        let input = self.norm(2, &x)?;
        let gated = gate(self.gate, &self.linear(4, &input)?, &self.linear(5, &input)?)?;
        Ok((&x + self.norm(3, &self.linear(6, &gated)?)?)?)
    }

    /// Everything that is trained, in a fixed order.
    pub(super) fn parameters(&self) -> Vec<&Parameter> {
        let grids = self.linears.iter().filter_map(|(linear, _)| match linear {
            TuneLinear::Grid(grid) => Some(grid.parameters()),
            TuneLinear::Constant(_) => None,
        });
        grids.flatten().chain(self.norms.iter().flatten()).collect()
    }

    /// [`parameters`](Self::parameters), to be changed.
    pub(super) fn parameters_mut(&mut self) -> Vec<&mut Parameter> {
        let grids = self.linears.iter_mut().filter_map(|(linear, _)| match linear {
            TuneLinear::Grid(g) => Some([&mut g.input_scales, &mut g.output_scales, &mut g.map, &mut g.offset]),
            TuneLinear::Constant(_) => None,
        });
        grids.flatten().chain(self.norms.iter_mut().flatten()).collect()
    }

    /// Writes the parameters of the matrix named `tensor`, as they are stored.
    pub(super) fn store(&self, tensor: &str, matrix: &mut UniSvqMatrix) -> Result<(), RuntimeError> {
        for ((linear, _), name) in self.linears.iter().zip(&self.names) {
            if let (TuneLinear::Grid(grid), true) = (linear, name == tensor) {
                grid.store(matrix)?;
            }
        }
        Ok(())
    }

    /// The norms by the names of their tensors.
    pub(super) fn norms(&self) -> Result<Vec<(String, Vec<f32>)>, RuntimeError> {
        let norms = self.norms.iter().zip(&self.names[LINEARS.len()..]);
        let values = |norm: &Parameter| {
            let mut values = norm.values()?;
            values.iter_mut().for_each(|w| *w -= self.norm_offset);
            Ok::<_, RuntimeError>(values)
        };
        norms.filter_map(|(norm, name)| norm.as_ref().map(|norm| Ok((name.clone(), values(norm)?)))).collect()
    }
}
