//! What is trained, and the optimizer's step.

use candle_core::{Tensor, Var, backprop::GradStore};
use half::f16;

use super::linear::variable;
use crate::error::RuntimeError;
use crate::tensor::f32_slice;

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
    /// Mean of gradients and of their squares; empty before the first step.
    moments: (Vec<f32>, Vec<f32>),
    /// Steps that the moments are of.
    steps: i32,
}

/// Decay of the mean of gradients; Kingma & Ba, *Adam*, 2015, as the next two.
const BETA_1: f64 = 0.9;
/// Decay of the mean of their squares.
const BETA_2: f64 = 0.999;
/// Keeps steps finite.
const EPSILON: f32 = 1e-8;

impl Parameter {
    pub(super) fn new(kind: Kind, values: Vec<f32>, shape: &[usize]) -> Result<Self, RuntimeError> {
        let squares: f64 = values.iter().map(|v| f64::from(*v).powi(2)).sum();
        let magnitude = (squares / values.len().max(1) as f64).sqrt();
        Ok(Self { kind, var: variable(values, shape)?, magnitude, moments: (Vec::new(), Vec::new()), steps: 0 })
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
    pub(super) fn forget(&mut self) {
        self.moments = (Vec::new(), Vec::new());
        self.steps = 0;
    }

    /// A step of Adam with decoupled weight decay of zero.
    pub(super) fn step(&mut self, grads: &GradStore, rate: f64) -> Result<(), RuntimeError> {
        let Some(grad) = grads.get(self.var.as_tensor()) else { return Ok(()) };
        let grad = f32_slice(grad)?;
        self.steps += 1;
        let mut values = self.values()?;
        let (first, second) = &mut self.moments;
        first.resize(grad.len(), 0.0);
        second.resize(grad.len(), 0.0);
        let (beta_1, beta_2) = (BETA_1 as f32, BETA_2 as f32);
        let (whole_1, whole_2) = (1.0 - BETA_1.powi(self.steps), 1.0 - BETA_2.powi(self.steps));
        let (unit_2, rate) = ((1.0 / whole_2) as f32, (rate * self.magnitude / whole_1) as f32);
        for (((v, g), m), s) in values.iter_mut().zip(&*grad).zip(first).zip(second) {
            *m = beta_1 * *m + (1.0 - beta_1) * g;
            *s = beta_2 * *s + (1.0 - beta_2) * g * g;
            *v -= rate * *m / ((*s * unit_2).sqrt() + EPSILON);
        }
        self.set(values)
    }
}
