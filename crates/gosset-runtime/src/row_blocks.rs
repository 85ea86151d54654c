//! Products with a weight matrix that is made a block of rows at a time.

use std::ops::Range;

use rayon::prelude::*;

use crate::arch::{Mat, MatMut, Threads, matmul};
use crate::error::RuntimeError;

/// Elements of the block that is multiplied at once: 2 MB of f32, a core's share of the second-level cache.
///
/// The block is the only decoded copy of any weight. Larger ones save nothing: with 2048 activation rows the product
/// is a hundred times the work of reading its result back.
const BLOCK_LEN: usize = 1 << 19;

/// Elements that one task decodes: small enough that a block gives every core several, large enough to hide the start.
const TASK_LEN: usize = 1 << 15;

/// A matrix whose rows can be written anywhere, any range of whole steps at a time.
pub(crate) trait WeightRows: Sync {
    /// Working memory of one task.
    type Scratch: Default + Send;

    /// Rows (output features) and columns (input features).
    fn shape(&self) -> (usize, usize);

    /// Ranges that start at multiples of this many rows cost no extra work.
    fn row_step(&self) -> usize;

    /// Writes `rows` as f32, row-major.
    fn fill(&self, rows: Range<usize>, out: &mut [f32], scratch: &mut Self::Scratch) -> Result<(), RuntimeError>;
}

/// `x · Wᵀ` for `n` rows of `x`, row-major; `W` is made in row blocks and never held whole.
///
/// Blocks and tasks are cut by the shape alone, so the result does not depend on the number of threads.
pub(crate) fn product<W: WeightRows>(w: &W, x: &[f32], n: usize) -> Result<Vec<f32>, RuntimeError> {
    let (rows, cols) = w.shape();
    let task_rows = step_rows(w, TASK_LEN);
    let mut y = vec![0f32; n * rows];
    if n == 1 {
        y.par_chunks_mut(task_rows).enumerate().try_for_each_init(
            || (Vec::new(), W::Scratch::default()),
            |(block, scratch), (i, y)| {
                let range = i * task_rows..i * task_rows + y.len();
                block.resize(range.len() * cols, 0.0);
                w.fill(range, block, scratch)?;
                let (m, k) = (y.len(), cols);
                matmul(MatMut::new(y, m, 1, 1), Mat::new(block, m, k, k), Mat::new(x, 1, k, k).t(), Threads::One);
                Ok::<_, RuntimeError>(())
            },
        )?;
        return Ok(y);
    }
    let block_rows = (step_rows(w, BLOCK_LEN) / task_rows).max(1) * task_rows;
    let mut block = vec![0f32; block_rows.min(rows) * cols];
    for first in (0..rows).step_by(block_rows) {
        let m = block_rows.min(rows - first);
        let block = &mut block[..m * cols];
        block.par_chunks_mut(task_rows * cols).enumerate().try_for_each_init(
            W::Scratch::default,
            |scratch, (i, out)| {
                let start = first + i * task_rows;
                w.fill(start..start + out.len() / cols, out, scratch)
            },
        )?;
        let columns = MatMut::new(&mut y[first..], n, m, rows);
        matmul(columns, Mat::new(x, n, cols, cols), Mat::new(block, m, cols, cols).t(), Threads::Pool);
    }
    Ok(y)
}

/// The largest number of rows of about `len` elements that is a multiple of the step.
fn step_rows<W: WeightRows>(w: &W, len: usize) -> usize {
    let step = w.row_step().max(1);
    (len / w.shape().1.max(1) / step).max(1) * step
}

/// `x · Wᵀ` for a matrix in memory.
pub(crate) fn dense_product(w: &[f32], x: &[f32], n: usize, cols: usize) -> Vec<f32> {
    let rows = w.len() / cols;
    let mut y = vec![0f32; n * rows];
    if n == 1 {
        let task_rows = (TASK_LEN / cols).max(1);
        y.par_chunks_mut(task_rows).zip(w.par_chunks(task_rows * cols)).for_each(|(y, w)| {
            let m = y.len();
            matmul(MatMut::new(y, m, 1, 1), Mat::new(w, m, cols, cols), Mat::new(x, 1, cols, cols).t(), Threads::One);
        });
    } else {
        let (x, w) = (Mat::new(x, n, cols, cols), Mat::new(w, rows, cols, cols));
        matmul(MatMut::new(&mut y, n, rows, rows), x, w.t(), Threads::Pool);
    }
    y
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::numbers;

    /// A dense matrix that insists on ranges of whole steps.
    struct Stepped {
        data: Vec<f32>,
        cols: usize,
        step: usize,
    }

    impl WeightRows for Stepped {
        type Scratch = ();

        fn shape(&self) -> (usize, usize) {
            (self.data.len() / self.cols, self.cols)
        }

        fn row_step(&self) -> usize {
            self.step
        }

        fn fill(&self, rows: Range<usize>, out: &mut [f32], (): &mut ()) -> Result<(), RuntimeError> {
            assert!(rows.start.is_multiple_of(self.step), "{rows:?} is no range of whole steps of {}", self.step);
            assert!(rows.end.is_multiple_of(self.step) || rows.end == self.shape().0);
            out.copy_from_slice(&self.data[rows.start * self.cols..rows.end * self.cols]);
            Ok(())
        }
    }

    #[test]
    fn blocks_of_whole_steps_give_the_dense_product() {
        // Several blocks with a short last one; a step wider than a task; a step wider than the matrix; one column.
        for (rows, cols, step) in [(3001, 300, 7), (1500, 701, 512), (40, 33, 512), (700, 1, 3), (2, 70_000, 1)] {
            let w = Stepped { data: numbers(rows * cols, 1, 0.0, 1.0), cols, step };
            for n in [1, 2, 9] {
                let x = numbers(n * cols, 2, 0.0, 1.0);
                let (blocked, dense) = (product(&w, &x, n).unwrap(), dense_product(&w.data, &x, n, cols));
                let bound = 1e-5 * (cols as f32).sqrt();
                let close = |(a, b): (&f32, &f32)| (a - b).abs() <= bound;
                assert!(blocked.len() == n * rows && blocked.iter().zip(&dense).all(close), "{rows} x {cols}, {n}");
            }
        }
    }

    #[test]
    fn an_error_of_one_block_ends_the_product() {
        struct Broken;
        impl WeightRows for Broken {
            type Scratch = ();
            fn shape(&self) -> (usize, usize) {
                (5000, 300)
            }
            fn row_step(&self) -> usize {
                1
            }
            fn fill(&self, rows: Range<usize>, _: &mut [f32], (): &mut ()) -> Result<(), RuntimeError> {
                if rows.contains(&4321) { Err(RuntimeError::Tokenizer("broken".into())) } else { Ok(()) }
            }
        }
        for n in [1, 3] {
            assert_eq!(product(&Broken, &vec![0.0; 300 * n], n).unwrap_err().to_string(), "tokenizer: broken");
        }
    }
}
