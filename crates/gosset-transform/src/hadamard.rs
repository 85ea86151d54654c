//! Orthonormal Hadamard transforms of a whole row, for widths that are no powers of two as well.

use alloc::vec;
use alloc::vec::Vec;
use core::fmt;
use core::ops::{Add, Mul, Neg, Sub};

use crate::error::TransformError;
use crate::fwht::{butterflies, fwht};
use crate::hadamard_order::{self, Construction, MAX_PALEY_ORDER};
use crate::plan::MAX_WIDTH;

/// The orthonormal map `Uᵀ x` with `U = (H₁ ⊗ H₂ ⊗ …) / sqrt(width)`, and its inverse `U x`.
///
/// Each `H` is the Hadamard matrix of its order: Sylvester's for a power of two, otherwise that of Paley's first construction
/// (order q + 1, prime q = 3 mod 4) or second (2 (q + 1), prime q = 1 mod 4), whichever comes first. A row is read as an array with
/// one axis for each order, the last axis contiguous.
///
/// In this order of operations, which fixes every bit of the result: axes from the last to the first, for each output a sum over the
/// axis in ascending order (butterflies from stride 1 up where the order is a power of two), and one multiplication by `1/sqrt(width)`.
///
/// ```
/// use gosset_transform::Hadamard;
///
/// let hadamard = Hadamard::new(576).expect("576 = 12 · 12 · 4");
/// assert_eq!(hadamard.to_string(), "12 x 12 x 4");
/// let mut row = vec![0.0f32; 576];
/// row[0] = 24.0;
/// hadamard.inverse(&mut row); // Column 0 of U times 24: all entries have the same magnitude.
/// assert!(row.iter().all(|x| x.abs() == 1.0));
/// assert!(Hadamard::new(172).is_none());
/// ```
#[derive(Clone, PartialEq)]
pub struct Hadamard {
    width: usize,
    factors: Vec<Factor>,
    scale: f64,
}

#[derive(Clone, PartialEq)]
struct Factor {
    order: usize,
    /// Entries that are -1, row by row; `None` for Sylvester's matrix.
    negative: Option<Vec<bool>>,
}

impl Hadamard {
    /// The transform of rows of `width` columns with the least work, `None` if no product of known orders has that width.
    ///
    /// Of all products of a power of two and orders of Paley matrices it takes that with the smallest sum of the latter, which is
    /// the number of additions for each column; they come first, descending, and the power of two last.
    ///
    /// ```
    /// use gosset_transform::Hadamard;
    ///
    /// let orders = |width| Hadamard::new(width).map(|h| h.orders());
    /// assert_eq!(orders(4096), Some(vec![4096]));
    /// assert_eq!(orders(14336), Some(vec![28, 512]));
    /// assert_eq!(orders(25600), Some(vec![20, 20, 64]));
    /// ```
    #[must_use]
    pub fn new(width: usize) -> Option<Self> {
        let orders = factorization(u32::try_from(width).ok().filter(|_| (1..=MAX_WIDTH).contains(&width))?)?;
        Self::with_orders(width, &orders).ok()
    }

    /// The transform of these orders, as read from an untrusted file.
    ///
    /// # Errors
    ///
    /// [`TransformError::Width`] for a width not in `1..=`[`MAX_WIDTH`], [`TransformError::HadamardOrder`] for an order of which no
    /// matrix is known here, [`TransformError::HadamardProduct`] if the orders do not multiply to the width.
    pub fn with_orders(width: usize, orders: &[u32]) -> Result<Self, TransformError> {
        if !(1..=MAX_WIDTH).contains(&width) {
            return Err(TransformError::Width { width });
        }
        let mut product = 1u64;
        for (index, &order) in orders.iter().enumerate() {
            // Orders of at least 2 bound the number of factors and of tables by the width.
            if order < 2 || hadamard_order::construction(order).is_none() {
                return Err(TransformError::HadamardOrder { index, order });
            }
            product = product.saturating_mul(u64::from(order));
            if product > width as u64 {
                break;
            }
        }
        if product != width as u64 {
            return Err(TransformError::HadamardProduct { product, width });
        }
        let factor = |&order: &u32| Factor { order: order as usize, negative: hadamard_order::negative_entries(order) };
        Ok(Self { width, factors: orders.iter().map(factor).collect(), scale: inverse_sqrt(width) })
    }

    /// Columns of a row.
    #[must_use]
    pub fn width(&self) -> usize {
        self.width
    }

    /// The orders of the factors, first to last; they multiply to the width.
    #[must_use]
    pub fn orders(&self) -> Vec<u32> {
        self.factors.iter().map(|f| f.order as u32).collect()
    }

    /// `Uᵀ x` in place.
    ///
    /// # Panics
    ///
    /// If the length of `row` is not the width.
    pub fn forward(&self, row: &mut [f32]) {
        self.apply(row, true, fwht);
        let scale = self.scale as f32;
        row.iter_mut().for_each(|x| *x *= scale);
    }

    /// `U x` in place: undoes [`forward`](Self::forward) up to rounding.
    ///
    /// # Panics
    ///
    /// If the length of `row` is not the width.
    pub fn inverse(&self, row: &mut [f32]) {
        self.apply(row, false, fwht);
        let scale = self.scale as f32;
        row.iter_mut().for_each(|x| *x *= scale);
    }

    /// [`forward`](Self::forward) in double precision.
    ///
    /// # Panics
    ///
    /// If the length of `row` is not the width.
    pub fn forward_f64(&self, row: &mut [f64]) {
        self.apply(row, true, |x| butterflies(x, 1));
        row.iter_mut().for_each(|x| *x *= self.scale);
    }

    fn apply<T: Real>(&self, row: &mut [T], transposed: bool, contiguous: impl Fn(&mut [T])) {
        assert_eq!(row.len(), self.width, "row length and width of the Hadamard transform");
        let mut stride = 1;
        let mut scratch = Vec::new();
        for factor in self.factors.iter().rev() {
            let block = factor.order * stride;
            for x in row.chunks_exact_mut(block) {
                match &factor.negative {
                    None if stride == 1 => contiguous(x),
                    None => butterflies(x, stride),
                    Some(negative) => mix(x, &mut scratch, factor.order, stride, negative, transposed),
                }
            }
            stride = block;
        }
    }
}

/// The orders, joined by ` x `; `1` for a width of one.
impl fmt::Display for Hadamard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.factors.is_empty() {
            return f.write_str("1");
        }
        for (i, factor) in self.factors.iter().enumerate() {
            write!(f, "{}{}", if i == 0 { "" } else { " x " }, factor.order)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Hadamard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hadamard({self})")
    }
}

/// f32 or f64.
trait Real: Copy + Default + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Neg<Output = Self> {}

impl Real for f32 {}
impl Real for f64 {}

/// The product with a Paley matrix, or its transpose, along the outer axis of `x`.
fn mix<T: Real>(x: &mut [T], scratch: &mut Vec<T>, order: usize, stride: usize, negative: &[bool], transposed: bool) {
    scratch.clear();
    scratch.resize(x.len(), T::default());
    for (i, out) in scratch.chunks_exact_mut(stride).enumerate() {
        for (j, term) in x.chunks_exact(stride).enumerate() {
            let is_negative = if transposed { negative[j * order + i] } else { negative[i * order + j] };
            match (j, is_negative) {
                (0, false) => out.copy_from_slice(term),
                (0, true) => out.iter_mut().zip(term).for_each(|(o, &t)| *o = -t),
                (_, false) => out.iter_mut().zip(term).for_each(|(o, &t)| *o = *o + t),
                (_, true) => out.iter_mut().zip(term).for_each(|(o, &t)| *o = *o - t),
            }
        }
    }
    x.copy_from_slice(scratch);
}

/// The orders of [`Hadamard::new`].
fn factorization(width: u32) -> Option<Vec<u32>> {
    let candidates: Vec<u32> = (4..=MAX_PALEY_ORDER.min(width))
        .step_by(4)
        .filter(|&k| width.is_multiple_of(k))
        .filter(|&k| !matches!(hadamard_order::construction(k), None | Some(Construction::Sylvester)))
        .collect();
    let mut best: Option<(u32, Vec<u32>)> = None;
    search(width, &candidates, &mut vec![], &mut best);
    let (_, mut orders) = best?;
    orders.sort_unstable_by(|a, b| b.cmp(a));
    let power = width / orders.iter().product::<u32>();
    orders.extend((power > 1).then_some(power));
    Some(orders)
}

/// Tries every multiset of `candidates` whose product leaves a power of two of `rest`; the first of several with the smallest sum wins.
fn search(rest: u32, candidates: &[u32], chosen: &mut Vec<u32>, best: &mut Option<(u32, Vec<u32>)>) {
    let sum: u32 = chosen.iter().sum();
    if best.as_ref().is_some_and(|(least, _)| sum >= *least) {
        return;
    }
    if rest.is_power_of_two() {
        *best = Some((sum, chosen.clone()));
        return;
    }
    for (i, &k) in candidates.iter().enumerate() {
        if rest.is_multiple_of(k) {
            chosen.push(k);
            search(rest / k, &candidates[i..], chosen, best);
            chosen.pop();
        }
    }
}

/// `1 / sqrt(n)` by Newton's method, which needs no square root of the platform: the same bits everywhere.
fn inverse_sqrt(n: usize) -> f64 {
    let n = n as f64;
    // Below the root, from where the iteration rises monotonically; it doubles the correct bits each time.
    let mut y = 1.0;
    while y * y * n > 1.0 {
        y *= 0.5;
    }
    for _ in 0..8 {
        y *= 1.5 - 0.5 * n * y * y;
    }
    y
}

#[cfg(test)]
mod tests {
    use std::string::ToString;

    use super::*;
    use crate::philox::{Domain, RandomStream};

    /// Widths of the linear layers of Llama, Qwen and SmolLM2 models, with their products.
    const WIDTHS: [(usize, &str); 19] = [
        (1024, "1024"),
        (2048, "2048"),
        (4096, "4096"),
        (8192, "8192"),
        (2560, "20 x 128"),
        (3072, "12 x 256"),
        (5120, "20 x 256"),
        (6144, "12 x 512"),
        (9728, "76 x 128"),
        (12288, "12 x 1024"),
        (14336, "28 x 512"),
        (17408, "68 x 256"),
        (25600, "20 x 20 x 64"),
        (576, "12 x 12 x 4"),
        (896, "28 x 32"),
        (1536, "12 x 128"),
        (4864, "76 x 64"),
        (192, "12 x 16"),
        (1, "1"),
    ];

    fn entry(h: &Hadamard, i: usize, j: usize) -> i32 {
        let (mut i, mut j, mut sign) = (i, j, 1);
        for f in h.factors.iter().rev() {
            let (a, b) = (i % f.order, j % f.order);
            let negative = f.negative.as_ref().map_or((a & b).count_ones() % 2 == 1, |n| n[a * f.order + b]);
            sign *= if negative { -1 } else { 1 };
            (i, j) = (i / f.order, j / f.order);
        }
        sign
    }

    #[test]
    fn every_width_has_its_product() {
        for (width, expected) in WIDTHS {
            assert_eq!(Hadamard::new(width).unwrap().to_string(), expected, "{width}");
        }
        for width in [0, 3, 6, 172, 173, 100, 92, 2 * 107, MAX_WIDTH + 1] {
            assert!(Hadamard::new(width).is_none(), "{width}");
        }
    }

    #[test]
    fn u_times_its_transpose_is_the_identity() {
        for (width, _) in WIDTHS {
            let h = Hadamard::new(width).unwrap();
            // Rows of the matrix of signs, exact in integers: a sample of pairs, all of them for small widths.
            let step = (width / 97).max(1);
            for a in (0..width).step_by(step) {
                for b in [a, 0, (a * 7 + 1) % width, width - 1] {
                    let product: i64 = (0..width).map(|j| i64::from(entry(&h, a, j) * entry(&h, b, j))).sum();
                    assert_eq!(product, if a == b { width as i64 } else { 0 }, "{width}: rows {a}, {b}");
                }
            }
            // Every basis vector comes back.
            for j in (0..width).step_by(step) {
                let mut x = vec![0.0; width];
                x[j] = 1.0;
                h.forward(&mut x);
                h.inverse(&mut x);
                let off =
                    x.iter().enumerate().map(|(i, &v)| (v - f32::from(u8::from(i == j))).abs()).fold(0.0, f32::max);
                assert!(off < 1e-5, "{width}: column {j} is off by {off}");
            }
        }
    }

    #[test]
    fn both_directions_equal_the_dense_products() {
        for width in [12, 20, 28, 48, 144, 192, 240, 560, 576, 896] {
            let h = Hadamard::new(width).unwrap();
            let mut stream = RandomStream::new(3, Domain::Rotation, width as u64);
            // Multiples of 2^-8 below 8: sums are exact in f32.
            let x: Vec<f32> = (0..width).map(|_| (stream.next_u32() as i32 >> 20) as f32 / 256.0).collect();
            let dense = |transposed: bool| -> Vec<f64> {
                let sign = |i, j| f64::from(if transposed { entry(&h, j, i) } else { entry(&h, i, j) });
                (0..width).map(|i| (0..width).map(|j| sign(i, j) * f64::from(x[j])).sum::<f64>()).collect()
            };
            let scale = (1.0 / (width as f64).sqrt()) as f32;
            let (mut forward, mut inverse) = (x.clone(), x.clone());
            h.forward(&mut forward);
            h.inverse(&mut inverse);
            for (y, expected) in [(forward, dense(true)), (inverse, dense(false))] {
                assert!(y.iter().zip(&expected).all(|(&a, &b)| a == b as f32 * scale), "{width}");
            }
            let mut wide: Vec<f64> = x.iter().map(|&v| f64::from(v)).collect();
            h.forward_f64(&mut wide);
            let expected = dense(true).into_iter().map(|v| v / (width as f64).sqrt());
            assert!(wide.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12), "{width} in f64");
        }
    }

    #[test]
    fn the_walsh_hadamard_transform_of_one_to_eight() {
        let mut x = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
        fwht(&mut x);
        assert_eq!(x, [36.0, -4.0, -8.0, 0.0, -16.0, 0.0, 0.0, 0.0]);
        let mut y = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
        Hadamard::new(8).unwrap().forward(&mut y);
        let scale = (1.0 / 8f64.sqrt()) as f32;
        assert_eq!(y, x.map(|v| v * scale));
    }

    #[test]
    fn inverse_roots_are_those_of_the_platform() {
        for n in (1..3000).chain([4864, 25600, MAX_WIDTH]) {
            let (ours, exact) = (inverse_sqrt(n), 1.0 / (n as f64).sqrt());
            assert!((ours / exact - 1.0).abs() < 4.0 * f64::EPSILON, "{n}");
            assert_eq!(ours as f32, exact as f32, "{n}");
        }
    }

    #[test]
    fn untrusted_orders_are_checked() {
        let with = Hadamard::with_orders;
        assert_eq!(with(0, &[]).unwrap_err(), TransformError::Width { width: 0 });
        assert_eq!(with(100, &[100]).unwrap_err(), TransformError::HadamardOrder { index: 0, order: 100 });
        assert_eq!(with(4, &[4, 1]).unwrap_err(), TransformError::HadamardOrder { index: 1, order: 1 });
        assert_eq!(with(96, &[12, 4]).unwrap_err(), TransformError::HadamardProduct { product: 48, width: 96 });
        let huge = [1 << 28; 9];
        assert_eq!(with(8, &huge).unwrap_err(), TransformError::HadamardProduct { product: 1 << 28, width: 8 });
        assert_eq!(with(48, &[4, 12]).unwrap().orders(), [4, 12]);
    }
}
