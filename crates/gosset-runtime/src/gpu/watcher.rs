//! What a pass on a device shows to whoever looks.

use gosset_cuda::launch::model::{Rope, Rows, read};
use gosset_cuda::{Buffer, DevSlice, StreamRef};

use super::GpuDecoder;
use crate::error::RuntimeError;
use crate::kv::Seen;
use crate::language_model::Watch;
use crate::norm::scale_of;

/// Who looks at a pass; an error of theirs ends it.
pub(super) enum Watcher<'a, 'b> {
    Nobody,
    /// The residual stream after the embedding, after every layer and after the last norm.
    Residual(&'a mut Watch<'b>),
    /// Queries and keys of every layer before their rotation.
    Keys(&'a mut Seen<'b>),
}

impl GpuDecoder {
    fn fetch(&self, stream: StreamRef<'_>, from: DevSlice<'_, f32>) -> Result<Vec<f32>, RuntimeError> {
        let mut out = vec![0f32; from.len()];
        read(self.gpu(), stream, from, &mut out)?;
        Ok(out)
    }

    /// Shows what the residual stream is, or will be when the next norm has added `delta`.
    pub(super) fn show(
        &self,
        stream: StreamRef<'_>,
        name: &str,
        x: DevSlice<'_, f32>,
        delta: Option<DevSlice<'_, f32>>,
        bias: Option<&Buffer<f32>>,
        watch: &mut Watcher<'_, '_>,
    ) -> Result<(), RuntimeError> {
        let Watcher::Residual(watch) = watch else { return Ok(()) };
        let mut x = self.fetch(stream, x)?;
        if let Some(delta) = delta {
            x.iter_mut().zip(self.fetch(stream, delta)?).for_each(|(x, d)| *x += d);
        }
        if let Some(bias) = bias {
            add_to_rows(&mut x, &self.fetch(stream, bias.as_slice())?);
        }
        watch(name, &x)
    }

    /// Shows the queries and keys of layer `i`: biases and norms, which the device applies as it rotates, are applied here.
    pub(super) fn show_keys(
        &self,
        stream: StreamRef<'_>,
        i: usize,
        rope: &Rope<'_>,
        [q, k, _]: [Rows<'_>; 3],
        n: usize,
        watch: &mut Watcher<'_, '_>,
    ) -> Result<(), RuntimeError> {
        let Watcher::Keys(see) = watch else { return Ok(()) };
        let shape = self.attention_shape();
        let (q_width, k_width) = (shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim);
        let bias = rope.bias.map(|bias| self.fetch(stream, bias)).transpose()?;
        let rows = |rows: Rows<'_>, width: usize, bias_at: usize, norm: Option<DevSlice<'_, f32>>| {
            let laid = self.fetch(stream, rows.values.slice(0..(n - 1) * rows.stride + width)?)?;
            let mut x: Vec<f32> = laid.chunks(rows.stride).flat_map(|row| &row[..width]).copied().collect();
            if let Some(bias) = &bias {
                add_to_rows(&mut x, &bias[bias_at..bias_at + width]);
            }
            if let Some(norm) = norm {
                let weight = self.fetch(stream, norm)?;
                for head in x.chunks_exact_mut(weight.len()) {
                    let scale = scale_of(head, rope.eps);
                    head.iter_mut().zip(&weight).for_each(|(x, w)| *x *= scale * w);
                }
            }
            Ok::<_, RuntimeError>(x)
        };
        see(i, &rows(q, q_width, 0, rope.q_norm)?, &rows(k, k_width, q_width, rope.k_norm)?)
    }
}

fn add_to_rows(x: &mut [f32], bias: &[f32]) {
    x.chunks_exact_mut(bias.len()).for_each(|row| row.iter_mut().zip(bias).for_each(|(x, b)| *x += b));
}
