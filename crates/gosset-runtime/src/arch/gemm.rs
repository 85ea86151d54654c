//! f32 matrix products of strided views, on the kernels that candle uses too.

use gemm::Parallelism;

/// A read-only matrix inside a slice: element `(r, c)` is `data[r * row_stride + c * col_stride]`.
#[derive(Clone, Copy)]
pub(crate) struct Mat<'a> {
    data: &'a [f32],
    rows: usize,
    cols: usize,
    row_stride: usize,
    col_stride: usize,
}

impl<'a> Mat<'a> {
    /// A row-major matrix whose rows start `row_stride` elements apart.
    ///
    /// # Panics
    ///
    /// If the last element lies outside `data`.
    pub(crate) fn new(data: &'a [f32], rows: usize, cols: usize, row_stride: usize) -> Self {
        assert!(fits(data.len(), rows, cols, row_stride), "{rows} x {cols} at stride {row_stride} in {}", data.len());
        Self { data, rows, cols, row_stride, col_stride: 1 }
    }

    /// The transpose, without moving anything.
    pub(crate) fn t(self) -> Self {
        Self { rows: self.cols, cols: self.rows, row_stride: self.col_stride, col_stride: self.row_stride, ..self }
    }
}

/// A matrix to write to: row-major, rows `row_stride` elements apart, not overlapping.
pub(crate) struct MatMut<'a> {
    data: &'a mut [f32],
    rows: usize,
    cols: usize,
    row_stride: usize,
}

impl<'a> MatMut<'a> {
    /// A row-major matrix whose rows start `row_stride` elements apart.
    ///
    /// # Panics
    ///
    /// If the last element lies outside `data` or rows overlap.
    pub(crate) fn new(data: &'a mut [f32], rows: usize, cols: usize, row_stride: usize) -> Self {
        assert!(fits(data.len(), rows, cols, row_stride), "{rows} x {cols} at stride {row_stride} in {}", data.len());
        Self { data, rows, cols, row_stride }
    }
}

/// Whether every element of the matrix lies in a slice of `len` and no two share a place.
fn fits(len: usize, rows: usize, cols: usize, row_stride: usize) -> bool {
    let last = || (rows - 1).checked_mul(row_stride)?.checked_add(cols);
    rows == 0 || cols == 0 || ((rows == 1 || row_stride >= cols) && last().is_some_and(|end| end <= len))
}

/// How many threads of the current rayon pool a product may use.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Threads {
    /// The calling one.
    One,
    /// Those of the pool.
    Pool,
}

/// Writes `a · b` to `dst`.
///
/// Every element is one sum over the inner dimension in an order that depends on the shapes alone, so the result is
/// the same for any number of threads.
///
/// # Panics
///
/// If the shapes do not agree.
pub(crate) fn matmul(dst: MatMut<'_>, a: Mat<'_>, b: Mat<'_>, threads: Threads) {
    product(dst, a, b, threads, false);
}

/// Adds `a · b` to `dst`; otherwise as [`matmul`].
///
/// # Panics
///
/// If the shapes do not agree.
pub(crate) fn matmul_add(dst: MatMut<'_>, a: Mat<'_>, b: Mat<'_>, threads: Threads) {
    product(dst, a, b, threads, true);
}

fn product(dst: MatMut<'_>, a: Mat<'_>, b: Mat<'_>, threads: Threads, add: bool) {
    assert_eq!((dst.rows, dst.cols, a.cols), (a.rows, b.cols, b.rows), "shapes of a matrix product");
    let parallelism = match threads {
        Threads::One => Parallelism::None,
        Threads::Pool => Parallelism::Rayon(0),
    };
    // SAFETY: `Mat::new` and `MatMut::new` checked that every element of each view lies inside its slice and that the
    // destination's elements are distinct; `t()` exchanges both dimensions and both strides, which keeps that. The
    // strides are below the slices' lengths, hence within isize. `dst` is borrowed mutably, so it aliases neither
    // operand, and it is initialized, so it may be read from.
    unsafe {
        gemm::gemm::<f32>(
            dst.rows,
            dst.cols,
            a.cols,
            dst.data.as_mut_ptr(),
            1,
            dst.row_stride as isize,
            add,
            a.data.as_ptr(),
            a.col_stride as isize,
            a.row_stride as isize,
            b.data.as_ptr(),
            b.col_stride as isize,
            b.row_stride as isize,
            if add { 1.0 } else { 0.0 },
            1.0,
            false,
            false,
            false,
            parallelism,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(n: usize, seed: u32) -> Vec<f32> {
        let word = |i: usize| gosset_transform::philox4x32_10([i as u32, 0, 0, 9], [seed, 0])[0];
        (0..n).map(|i| (word(i) as i32) as f32 / 2f32.powi(31)).collect()
    }

    #[test]
    fn equals_the_naive_sum_for_strided_views() {
        for (m, n, k) in [(1, 1, 1), (1, 70, 33), (65, 1, 40), (3, 5, 7), (130, 67, 129), (20, 300, 64)] {
            let (a_stride, b_stride, d_stride) = (k + 3, k + 1, n + 2);
            let (a, b) = (numbers(m * a_stride, 1), numbers(n * b_stride, 2));
            let mut dst = vec![f32::NAN; m * d_stride];
            matmul(
                MatMut::new(&mut dst, m, n, d_stride),
                Mat::new(&a, m, k, a_stride),
                Mat::new(&b, n, k, b_stride).t(),
                Threads::Pool,
            );
            for i in 0..m {
                for j in 0..n {
                    let sum: f64 =
                        (0..k).map(|l| f64::from(a[i * a_stride + l]) * f64::from(b[j * b_stride + l])).sum();
                    assert!(
                        (f64::from(dst[i * d_stride + j]) - sum).abs() < 1e-5 * k as f64,
                        "{m} {n} {k}: ({i}, {j})"
                    );
                }
                assert!(i + 1 == m || dst[i * d_stride + n].is_nan(), "a gap between rows was written");
            }
        }
    }

    #[test]
    fn adds_to_what_is_there() {
        let (a, b, start) = (numbers(7 * 33, 1), numbers(33 * 5, 2), numbers(7 * 5, 3));
        let (a, b) = (Mat::new(&a, 7, 33, 33), Mat::new(&b, 33, 5, 5));
        let (mut product, mut sum) = (vec![0.0; 35], start.clone());
        matmul(MatMut::new(&mut product, 7, 5, 5), a, b, Threads::One);
        matmul_add(MatMut::new(&mut sum, 7, 5, 5), a, b, Threads::Pool);
        assert!(sum.iter().zip(&product).zip(&start).all(|((sum, p), s)| (sum - p - s).abs() < 1e-5));
    }

    #[test]
    fn is_the_same_for_any_number_of_threads() {
        for (m, n, k) in [(1, 500, 576), (7, 300, 1536), (128, 1000, 576), (300, 576, 1536), (2048, 192, 576)] {
            let (a, b) = (numbers(m * k, 3), numbers(n * k, 4));
            let product = |threads| {
                let mut dst = vec![0.0; m * n];
                matmul(MatMut::new(&mut dst, m, n, n), Mat::new(&a, m, k, k), Mat::new(&b, n, k, k).t(), threads);
                dst
            };
            let one = product(Threads::One);
            for n_threads in [1, 2, 7] {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(n_threads).build().unwrap();
                assert!(pool.install(|| product(Threads::Pool)) == one, "{m} {n} {k} on {n_threads}");
            }
        }
    }

    #[test]
    #[should_panic(expected = "2 x 3 at stride 3 in 5")]
    fn refuses_a_view_outside_its_slice() {
        Mat::new(&[0.0; 5], 2, 3, 3);
    }
}
