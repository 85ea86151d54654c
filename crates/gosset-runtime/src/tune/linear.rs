//! A linear of a block in candle operations: codes of an affine grid with their trainable parameters, or constant weights.

use std::sync::Arc;

use candle_core::{Device, Tensor, Var};
use gosset_unisvq::{AffineMap, Frame, UniSvqMatrix};
use half::f16;

use super::ops::{Codes, codes_product, constant_product, enter, leave};
use super::parameter::{Kind, Parameter};
use crate::error::RuntimeError;

/// Codes, frames and scale, all constant, and what is trained.
pub(super) struct GridLinear {
    input: Arc<Frame>,
    output: Arc<Frame>,
    codes: Arc<Codes>,
    /// S_U, `[cols]`.
    pub(super) input_scales: Parameter,
    /// S_V, `[rows]`.
    pub(super) output_scales: Parameter,
    /// A, `[d, d]`.
    pub(super) map: Parameter,
    /// B, `[d]`.
    pub(super) offset: Parameter,
}

/// One linear of a block.
pub(super) enum TuneLinear {
    Grid(Box<GridLinear>),
    Constant(Arc<Codes>),
}

impl GridLinear {
    /// The parameters as the matrix has them.
    pub(super) fn new(matrix: &UniSvqMatrix) -> Result<Self, RuntimeError> {
        let decoder = matrix.decoder()?;
        let (rows, cols, dim) = (decoder.rows(), decoder.cols(), usize::from(matrix.header.dim));
        let mut values = vec![0f32; rows * cols];
        decoder.codes_as_f32(0..rows, &mut values);
        let AffineMap { a, b } = matrix.header.affine_map();
        Ok(Self {
            input: Arc::new(decoder.input().clone()),
            output: Arc::new(decoder.output().clone()),
            codes: Arc::new(Codes { values, rows, cols, dim, scale: matrix.header.scale }),
            input_scales: Parameter::new(Kind::InputScales, decoder.input_scales().to_vec(), &[cols])?,
            output_scales: Parameter::new(Kind::OutputScales, decoder.output_scales().to_vec(), &[rows])?,
            map: Parameter::new(Kind::Map, a, &[dim, dim])?,
            offset: Parameter::new(Kind::Offset, b, &[dim])?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor, RuntimeError> {
        let t = enter(x, &self.input_scales.var, &self.input)?;
        let z = codes_product(&t, &self.map.var, &self.offset.var, &self.codes)?;
        Ok(leave(&z, &self.output_scales.var, &self.output)?)
    }

    /// Writes the parameters as they are stored.
    pub(super) fn store(&self, matrix: &mut UniSvqMatrix) -> Result<(), RuntimeError> {
        let halves = |p: &Parameter| Ok::<_, RuntimeError>(p.values()?.into_iter().map(f16::from_f32).collect());
        matrix.header.affine = Some(AffineMap { a: self.map.values()?, b: self.offset.values()? });
        matrix.input_scales = Some(halves(&self.input_scales)?);
        matrix.output_scales = Some(halves(&self.output_scales)?);
        Ok(())
    }

    pub(super) fn parameters(&self) -> [&Parameter; 4] {
        [&self.input_scales, &self.output_scales, &self.map, &self.offset]
    }
}

impl TuneLinear {
    /// `[tokens, cols]` to `[tokens, rows]`.
    pub(super) fn forward(&self, x: &Tensor, bias: Option<&Tensor>) -> Result<Tensor, RuntimeError> {
        let y = match self {
            TuneLinear::Grid(grid) => grid.forward(x)?,
            TuneLinear::Constant(weight) => constant_product(x, weight)?,
        };
        Ok(match bias {
            Some(bias) => y.broadcast_add(bias)?,
            None => y,
        })
    }
}

/// A variable of these values.
pub(super) fn variable(values: Vec<f32>, shape: &[usize]) -> Result<Var, RuntimeError> {
    Ok(Var::from_tensor(&Tensor::from_vec(values, shape, &Device::Cpu)?)?)
}
