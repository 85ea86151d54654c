//! What is trained, and the optimizer's step.

use candle_core::{Tensor, Var, backprop::GradStore};
use half::f16;

use super::linear::variable;
use crate::error::RuntimeError;

/// What a parameter is: it decides the learning rate and how it is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// S_U of a matrix, stored in f16.
    InputScales,
    /// S_V of a matrix, stored in f16.
    OutputScales,
    /// A of a matrix.
    Map,
    /// B of a matrix.
    Offset,
    /// Weights of a norm.
    Norm,
}

/// A variable with the moments of its gradients.
pub(super) struct Parameter {
    pub(super) kind: Kind,
    pub(super) var: Var,
    /// Root mean square at the start, which learning rates are relative to.
    magnitude: f64,
    first: Tensor,
    second: Tensor,
    /// Steps that the moments are of.
    steps: i32,
}

/// Decay of the mean of gradients; Kingma & Ba, *Adam*, 2015, as the next two.
const BETA_1: f64 = 0.9;
/// Decay of the mean of their squares.
const BETA_2: f64 = 0.999;
/// Keeps steps finite.
const EPSILON: f64 = 1e-8;

impl Parameter {
    pub(super) fn new(kind: Kind, values: Vec<f32>, shape: &[usize]) -> Result<Self, RuntimeError> {
        let squares: f64 = values.iter().map(|v| f64::from(*v).powi(2)).sum();
        let magnitude = (squares / values.len().max(1) as f64).sqrt();
        let var = variable(values, shape)?;
        let zeros = var.as_tensor().zeros_like()?.detach();
        Ok(Self { kind, first: zeros.clone(), second: zeros, var, magnitude, steps: 0 })
    }

    /// All values, row-major.
    pub(super) fn values(&self) -> Result<Vec<f32>, RuntimeError> {
        Ok(self.var.as_tensor().flatten_all()?.to_vec1::<f32>()?)
    }

    pub(super) fn set(&self, values: Vec<f32>) -> Result<(), RuntimeError> {
        let tensor = Tensor::from_vec(values, self.var.shape(), self.var.device())?;
        Ok(self.var.set(&tensor)?)
    }

    /// All values as they are stored.
    pub(super) fn stored(&self) -> Result<Vec<f32>, RuntimeError> {
        let mut values = self.values()?;
        if matches!(self.kind, Kind::InputScales | Kind::OutputScales) {
            values.iter_mut().for_each(|v| *v = f16::from_f32(*v).to_f32());
        }
        Ok(values)
    }

    /// Forgets the moments.
    pub(super) fn forget(&mut self) -> Result<(), RuntimeError> {
        self.first = self.first.zeros_like()?;
        self.second = self.second.zeros_like()?;
        self.steps = 0;
        Ok(())
    }

    /// A step of Adam with decoupled weight decay of zero.
    pub(super) fn step(&mut self, grads: &[GradStore], weights: &[f64], rate: f64) -> Result<(), RuntimeError> {
        let mut sum: Option<Tensor> = None;
        for (grads, weight) in grads.iter().zip(weights) {
            let Some(grad) = grads.get(self.var.as_tensor()) else { continue };
            let grad = (grad.detach() * *weight)?;
            sum = Some(match sum {
                Some(sum) => (sum + grad)?,
                None => grad,
            });
        }
        let Some(grad) = sum else { return Ok(()) };
        self.steps += 1;
        self.first = ((&self.first * BETA_1)? + (&grad * (1.0 - BETA_1))?)?;
        self.second = ((&self.second * BETA_2)? + (grad.sqr()? * (1.0 - BETA_2))?)?;
        let first = (&self.first / (1.0 - BETA_1.powi(self.steps)))?;
        let second = (&self.second / (1.0 - BETA_2.powi(self.steps)))?;
        let change = ((first / (second.sqrt()? + EPSILON)?)? * (rate * self.magnitude))?;
        Ok(self.var.set(&(self.var.as_detached_tensor() - change)?)?)
    }
}
