//! Products of rows by a matrix, as loops over independent lanes that the compiler turns into vector code.

use gosset_transform::{Backend, Kernel};

/// Outputs that are summed in registers.
const LANES: usize = 16;
/// Rows that share what is read of the matrix.
pub(crate) const ROWS: usize = 4;

/// `out[r]` = Σ_j x[r][j] · row j of `matrix`; the terms are added in order and never contracted, so that bits are the same on every
/// machine.
///
/// `x` is `[n, inputs]`, `matrix` `[inputs, outputs]`, `out` `[n, outputs]`.
pub(crate) fn apply(matrix: &[f32], inputs: usize, x: &[f32], out: &mut [f32]) {
    Backend::detect().vectorize(Apply { matrix, inputs, x, out });
}

struct Apply<'a> {
    matrix: &'a [f32],
    inputs: usize,
    x: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for Apply<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { matrix, inputs, x, out } = self;
        let outputs = matrix.len() / inputs;
        let mut x = x.chunks_exact(ROWS * inputs);
        let mut out = out.chunks_exact_mut(ROWS * outputs);
        for (x, out) in (&mut x).zip(&mut out) {
            rows::<ROWS>(matrix, inputs, outputs, x, out);
        }
        let rest = x.remainder().chunks_exact(inputs);
        for (x, out) in rest.zip(out.into_remainder().chunks_exact_mut(outputs)) {
            rows::<1>(matrix, inputs, outputs, x, out);
        }
    }
}

#[inline(always)]
fn rows<const R: usize>(matrix: &[f32], inputs: usize, outputs: usize, x: &[f32], out: &mut [f32]) {
    let whole = outputs / LANES * LANES;
    for at in (0..whole).step_by(LANES) {
        let mut sums = [[0.0f32; LANES]; R];
        for (j, row) in matrix.chunks_exact(outputs).enumerate() {
            // An array: loops of unknown length over a tile end up on the stack, one float at a time.
            let Some(row) = row[at..].first_chunk::<LANES>() else { continue };
            for (r, sums) in sums.iter_mut().enumerate() {
                let x = x[r * inputs + j];
                for (sum, m) in sums.iter_mut().zip(row) {
                    *sum += x * m;
                }
            }
        }
        for (r, sums) in sums.iter().enumerate() {
            out[r * outputs + at..][..LANES].copy_from_slice(sums);
        }
    }
    for r in 0..R {
        for i in whole..outputs {
            let terms = matrix.chunks_exact(outputs).zip(&x[r * inputs..(r + 1) * inputs]);
            out[r * outputs + i] = terms.fold(0.0, |sum, (row, &x)| sum + x * row[i]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gosset_transform::{Domain, RandomStream};

    #[test]
    fn products_are_the_sums_in_order() {
        for (n, inputs, outputs) in [(1, 2, 2), (4, 16, 16), (5, 7, 50), (11, 64, 64), (3, 33, 20)] {
            let mut stream = RandomStream::new(2, Domain::Rotation, 8);
            let mut draw =
                |len: usize| -> Vec<f32> { (0..len).map(|_| stream.next_u32() as i32 as f32 / 1e9).collect() };
            let (matrix, x) = (draw(inputs * outputs), draw(n * inputs));
            let mut out = vec![0.0; n * outputs];
            apply(&matrix, inputs, &x, &mut out);
            for r in 0..n {
                for i in 0..outputs {
                    let expected = (0..inputs).fold(0.0, |sum, j| sum + x[r * inputs + j] * matrix[j * outputs + i]);
                    assert_eq!(out[r * outputs + i].to_bits(), f32::to_bits(expected), "{n} {inputs} {outputs}");
                }
            }
        }
    }
}
