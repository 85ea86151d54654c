//! Second moments of the inputs of a linear layer.

use crate::UniSvqError;
use crate::parallel::map_chunks_mut;

/// Rows that one task transforms.
const TRANSFORM_ROWS: usize = 16;

/// First bytes of stored second moments.
const MAGIC: [u8; 8] = *b"GOSSHES1";

/// Bytes before the values.
const HEADER: usize = 24;

/// The mean of x xᵀ over calibration tokens, `n` x `n`, symmetric, undamped.
#[derive(Debug, Clone, PartialEq)]
pub struct Hessian {
    n: usize,
    data: Vec<f64>,
    n_tokens: u64,
    dead_inputs: usize,
}

impl Hessian {
    /// Around row-major `data` of `n` x `n` values, a mean over `n_tokens` tokens.
    ///
    /// The lower triangle counts; the upper one is set to its mirror image.
    ///
    /// # Errors
    /// [`UniSvqError::Shape`] for another length or `n` = 0, [`UniSvqError::NonFinite`] for NaN and infinities.
    pub fn new(n: usize, mut data: Vec<f64>, n_tokens: u64) -> Result<Self, UniSvqError> {
        if n == 0 || n.checked_mul(n) != Some(data.len()) {
            let (expected, found) = (format!("{n} x {n} values"), data.len().to_string());
            return Err(UniSvqError::Shape { what: "hessian", expected, found });
        }
        match data.iter().position(|v| !v.is_finite()) {
            Some(i) => {
                Err(UniSvqError::NonFinite { what: "hessian", row: i / n, col: i % n, value: data[i].to_string() })
            }
            None => {
                mirror(&mut data, n);
                let dead_inputs = data.iter().step_by(n + 1).filter(|v| **v == 0.0).count();
                Ok(Self { n, data, n_tokens, dead_inputs })
            }
        }
    }

    /// The identity: inputs about which nothing is known. It counts no tokens.
    ///
    /// # Errors
    /// [`UniSvqError::Shape`] for `n` = 0 or an order whose square is no length.
    pub fn identity(n: usize) -> Result<Self, UniSvqError> {
        let len = n.checked_mul(n).unwrap_or(0);
        let mut data = vec![0.0; len];
        data.iter_mut().step_by(n.saturating_add(1)).for_each(|v| *v = 1.0);
        Self::new(n, data, 0)
    }

    /// Number of inputs.
    #[must_use]
    pub fn n(&self) -> usize {
        self.n
    }

    /// All values, row-major.
    #[must_use]
    pub fn as_slice(&self) -> &[f64] {
        &self.data
    }

    /// Tokens that the mean is over.
    #[must_use]
    pub fn n_tokens(&self) -> u64 {
        self.n_tokens
    }

    /// The mean square of the inputs. Values up to the end of the range of f64 do not overflow.
    #[must_use]
    pub fn mean_diagonal(&self) -> f64 {
        let n = self.n as f64;
        self.data.iter().step_by(self.n + 1).map(|v| v / n).sum()
    }

    /// Number of inputs that were zero in every token, before any transform.
    #[must_use]
    pub fn dead_inputs(&self) -> usize {
        self.dead_inputs
    }

    /// R H Rᵀ, the second moments of R x, for `r` that replaces a vector x by R x.
    ///
    /// An input that was never active first gets the mean square of those that were: in another frame it is a direction in which errors
    /// cost nothing, and feedback would push the errors of all others there. This way its weights keep ordinary accuracy.
    ///
    /// # Errors
    /// [`UniSvqError::NonFinite`] if a result leaves the range of f64.
    ///
    /// ```
    /// let h = gosset_unisvq::Hessian::new(2, vec![2.0, 1.0, 1.0, 3.0], 9)?;
    /// let swapped = h.transformed(|x| x.swap(0, 1))?;
    /// assert_eq!(swapped.as_slice(), [3.0, 1.0, 1.0, 2.0]);
    /// # Ok::<(), gosset_unisvq::UniSvqError>(())
    /// ```
    pub fn transformed(&self, r: impl Fn(&mut [f64]) + Sync + Send) -> Result<Self, UniSvqError> {
        let n = self.n;
        let mut data = self.data.clone();
        let live = (n - self.dead_inputs).max(1) as f64;
        let mean = self.mean_diagonal() * (n as f64 / live);
        data.iter_mut().step_by(n + 1).filter(|v| **v == 0.0).for_each(|v| *v = mean);
        // Rows become rows of H Rᵀ, which is (R H)ᵀ; its rows are those of the result after the same again.
        for _ in 0..2 {
            map_chunks_mut(&mut data, TRANSFORM_ROWS * n, |_, rows| rows.chunks_exact_mut(n).for_each(&r));
            transpose(&mut data, n);
        }
        Ok(Self { dead_inputs: self.dead_inputs, ..Self::new(n, data, self.n_tokens)? })
    }

    /// The second moments of inputs in another order: input `i` of the result is input `order[i]`.
    ///
    /// # Errors
    /// [`UniSvqError::Shape`] unless `order` names every input once.
    pub fn permuted(&self, order: &[usize]) -> Result<Self, UniSvqError> {
        let n = self.n;
        let mut seen = vec![false; n];
        if order.len() != n || order.iter().any(|&i| i >= n || std::mem::replace(&mut seen[i], true)) {
            let (expected, found) = (format!("each of {n} inputs once"), format!("{} entries", order.len()));
            return Err(UniSvqError::Shape { what: "order of inputs", expected, found });
        }
        let data = order.iter().flat_map(|&i| order.iter().map(move |&j| self.data[i * n + j])).collect();
        Ok(Self { n, data, n_tokens: self.n_tokens, dead_inputs: self.dead_inputs })
    }

    /// The stored form: a magic number, `n` and the tokens as u64, then the lower triangle row by row as f64, all little-endian.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER + self.n * (self.n + 1) / 2 * 8);
        out.extend(MAGIC);
        out.extend((self.n as u64).to_le_bytes());
        out.extend(self.n_tokens.to_le_bytes());
        for (i, row) in self.data.chunks_exact(self.n).enumerate() {
            row[..=i].iter().for_each(|v| out.extend(v.to_le_bytes()));
        }
        out
    }

    /// The second moments that [`to_bytes`](Hessian::to_bytes) stored. Nothing is allocated before the length is right.
    ///
    /// # Errors
    /// [`UniSvqError::Shape`] for bytes that are no stored second moments, [`UniSvqError::NonFinite`] for NaN and infinities.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, UniSvqError> {
        let wrong = |expected: String, found: String| UniSvqError::Shape { what: "stored hessian", expected, found };
        let (header, values) = bytes
            .split_at_checked(HEADER)
            .ok_or_else(|| wrong(format!("{HEADER} bytes or more"), bytes.len().to_string()))?;
        let (fields, _) = header.as_chunks::<8>();
        if fields[0] != MAGIC {
            return Err(wrong(format!("magic number {MAGIC:?}"), format!("{:?}", fields[0])));
        }
        let (order, n_tokens) = (u64::from_le_bytes(fields[1]), u64::from_le_bytes(fields[2]));
        let len = (u128::from(order) * (u128::from(order) + 1)).saturating_mul(4);
        if order == 0 || len != values.len() as u128 {
            return Err(wrong(format!("{len} bytes for {order} inputs"), values.len().to_string()));
        }
        // The length fits, so the order and its square do.
        let n = order as usize;
        let mut data = vec![0.0; n * n];
        let mut stored = values.as_chunks::<8>().0.iter().map(|b| f64::from_le_bytes(*b));
        for (i, row) in data.chunks_exact_mut(n).enumerate() {
            row[..=i].iter_mut().zip(&mut stored).for_each(|(v, s)| *v = s);
        }
        Self::new(n, data, n_tokens)
    }
}

/// Sets the upper triangle to the lower one.
fn mirror(data: &mut [f64], n: usize) {
    each_pair(n, |lower, upper| data[upper] = data[lower]);
}

/// Transposes in place.
fn transpose(data: &mut [f64], n: usize) {
    each_pair(n, |lower, upper| data.swap(lower, upper));
}

/// Calls `f` with the place of every entry below the diagonal and the place of its mirror image.
fn each_pair(n: usize, mut f: impl FnMut(usize, usize)) {
    // In squares, so that neither side misses the cache at every step.
    const SIDE: usize = 32;
    for i0 in (0..n).step_by(SIDE) {
        for j0 in (0..=i0).step_by(SIDE) {
            for i in i0..n.min(i0 + SIDE) {
                for j in j0..i.min(j0 + SIDE) {
                    f(i * n + j, j * n + i);
                }
            }
        }
    }
}
