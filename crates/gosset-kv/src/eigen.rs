//! Principal axes of a symmetric matrix.

/// Steps of the iteration for each eigenvalue before what is left of a coupling is ignored.
const MAX_STEPS: usize = 40;

/// Eigenvalues of the symmetric matrix `a`, `[n, n]`, descending, and its eigenvectors as rows, `[n, n]`.
///
/// Householder reflections to tridiagonal form, then implicitly shifted QR steps (Golub and Van Loan, *Matrix Computations*, 4th ed.,
/// sections 8.3.1 to 8.3.3). The rows are orthonormal to rounding for any input without NaN and infinities. Only the four operations
/// and square roots are used, in a fixed order: the same bits on every machine.
pub(crate) fn principal_axes(mut a: Vec<f64>, n: usize) -> (Vec<f64>, Vec<f64>) {
    // Powers of two keep squares in range whatever the scale of the matrix.
    let largest = a.iter().fold(0.0f64, |m, v| m.max(v.abs()));
    let scale = power_of_two_near(largest);
    a.iter_mut().for_each(|v| *v /= scale);
    let mut axes = vec![0.0; n * n];
    (0..n).for_each(|i| axes[i * n + i] = 1.0);
    let (mut diagonal, mut coupling) = tridiagonal(&mut a, &mut axes, n);
    diagonalize(&mut diagonal, &mut coupling, &mut axes, n);
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by(|&i, &j| diagonal[j].total_cmp(&diagonal[i]));
    let values = order.iter().map(|&i| diagonal[i] * scale).collect();
    let rows = order.iter().flat_map(|&i| axes[i * n..(i + 1) * n].iter().copied()).collect();
    (values, rows)
}

/// A power of two within a factor of two of a positive number; 1 for 0.
fn power_of_two_near(x: f64) -> f64 {
    if x < f64::MIN_POSITIVE { 1.0 } else { f64::from_bits(x.to_bits() & (0x7ff << 52)) }
}

/// Brings `a` to tridiagonal form T; returns the diagonal of T and its couplings. Rows of `axes` become those of Q with T = Q a Qᵀ.
fn tridiagonal(a: &mut [f64], axes: &mut [f64], n: usize) -> (Vec<f64>, Vec<f64>) {
    let mut coupling = vec![0.0; n];
    let (mut v, mut w) = (vec![0.0; n], vec![0.0; n]);
    for k in 0..n.saturating_sub(2) {
        // The reflection that leaves only the first of the elements below the diagonal in column k.
        let squares: f64 = (k + 1..n).map(|i| a[i * n + k] * a[i * n + k]).sum();
        let first = a[(k + 1) * n + k];
        let target = if first > 0.0 { -squares.sqrt() } else { squares.sqrt() };
        coupling[k] = target;
        let length = squares - first * target;
        if length <= f64::MIN_POSITIVE {
            coupling[k] = first;
            continue;
        }
        (k + 1..n).for_each(|i| v[i] = a[i * n + k]);
        v[k + 1] = first - target;
        // |v|² / 2 = length.
        for i in k + 1..n {
            w[i] = (k + 1..n).map(|j| a[i * n + j] * v[j]).sum::<f64>() / length;
        }
        let half = (k + 1..n).map(|i| v[i] * w[i]).sum::<f64>() / (2.0 * length);
        (k + 1..n).for_each(|i| w[i] -= half * v[i]);
        for i in k + 1..n {
            for j in k + 1..n {
                a[i * n + j] -= v[i] * w[j] + w[i] * v[j];
            }
        }
        // Rows k + 1 and on of the axes: Q becomes (1 − v vᵀ / length) Q.
        let mut products = vec![0.0; n];
        for i in k + 1..n {
            products.iter_mut().zip(&axes[i * n..]).for_each(|(p, q)| *p += v[i] * q);
        }
        for i in k + 1..n {
            let factor = v[i] / length;
            axes[i * n..(i + 1) * n].iter_mut().zip(&products).for_each(|(q, p)| *q -= factor * p);
        }
    }
    if n >= 2 {
        coupling[n - 2] = a[(n - 1) * n + n - 2];
    }
    ((0..n).map(|i| a[i * n + i]).collect(), coupling)
}

/// Diagonalizes a tridiagonal matrix by shifted QR steps; the rotations act on rows of `axes`.
fn diagonalize(diagonal: &mut [f64], coupling: &mut [f64], axes: &mut [f64], n: usize) {
    let is_small = |d: &[f64], e: &[f64], i: usize| e[i].abs() <= f64::EPSILON * (d[i].abs() + d[i + 1].abs());
    let mut steps = 0;
    let mut high = n.saturating_sub(1);
    while high > 0 {
        if is_small(diagonal, coupling, high - 1) || steps == MAX_STEPS {
            (coupling[high - 1], high, steps) = (0.0, high - 1, 0);
            continue;
        }
        let mut low = high - 1;
        while low > 0 && !is_small(diagonal, coupling, low - 1) {
            low -= 1;
        }
        steps += 1;
        // The eigenvalue of the last two rows that is nearer to the last element.
        let (e, half) = (coupling[high - 1], 0.5 * (diagonal[high - 1] - diagonal[high]));
        let root = (half * half + e * e).sqrt();
        let shift = diagonal[high] - e * e / (half + if half < 0.0 { -root } else { root });
        let (mut x, mut z) = (diagonal[low] - shift, coupling[low]);
        for k in low..high {
            let r = (x * x + z * z).sqrt();
            let (c, s) = if r == 0.0 { (1.0, 0.0) } else { (x / r, z / r) };
            if k > low {
                coupling[k - 1] = r;
            }
            let (p, q, e) = (diagonal[k], diagonal[k + 1], coupling[k]);
            diagonal[k] = c * c * p + 2.0 * c * s * e + s * s * q;
            diagonal[k + 1] = s * s * p - 2.0 * c * s * e + c * c * q;
            coupling[k] = c * s * (q - p) + (c * c - s * s) * e;
            x = coupling[k];
            if k + 1 < high {
                z = s * coupling[k + 1];
                coupling[k + 1] *= c;
            }
            let (upper, lower) = axes[k * n..].split_at_mut(n);
            for (a, b) in upper.iter_mut().zip(&mut lower[..n]) {
                (*a, *b) = (c * *a + s * *b, c * *b - s * *a);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gosset_transform::{Domain, RandomStream};

    fn check(a: &[f64], n: usize, scale: f64) {
        let (values, rows) = principal_axes(a.to_vec(), n);
        assert!(values.windows(2).all(|w| w[0] >= w[1]));
        for i in 0..n {
            let image: Vec<f64> = (0..n).map(|r| (0..n).map(|c| a[r * n + c] * rows[i * n + c]).sum()).collect();
            for (v, r) in image.iter().zip(&rows[i * n..]) {
                assert!((v - values[i] * r).abs() < 1e-12 * scale * n as f64, "{n}: {v} {}", values[i] * r);
            }
            for j in 0..=i {
                let product: f64 = (0..n).map(|c| rows[i * n + c] * rows[j * n + c]).sum();
                assert!((product - f64::from(u8::from(i == j))).abs() < 1e-12, "{n}: rows {i}, {j}: {product}");
            }
        }
    }

    #[test]
    fn axes_are_orthonormal_and_map_to_multiples_of_themselves() {
        for n in [1, 2, 3, 8, 64] {
            let mut stream = RandomStream::new(3, Domain::Rotation, n as u64);
            let b: Vec<f64> = (0..n * n).map(|_| f64::from(stream.next_u32() as i32) / 2f64.powi(31)).collect();
            for decay in [1.0, 0.5, 1e-3] {
                // Covariances whose eigenvalues fall off by any rate, and some that are zero.
                let weight = |k: usize| if k > 40 { 0.0 } else { f64::powi(decay, k as i32) };
                let a: Vec<f64> = (0..n * n)
                    .map(|ij| (0..n).map(|k| weight(k) * b[ij / n * n + k] * b[ij % n * n + k]).sum())
                    .collect();
                check(&a, n, 2.0 * n as f64);
                let large: Vec<f64> = a.iter().map(|v| v * 1e60).collect();
                check(&large, n, 2e60 * n as f64);
            }
        }
        check(&[0.0; 16], 4, 1.0);
        check(&[2.0, 0.0, 0.0, 0.0, 5.0, 0.0, 0.0, 0.0, 5.0], 3, 1.0);
    }
}
