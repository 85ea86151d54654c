//! Second moments of the inputs of a linear layer.

use faer::linalg::matmul::matmul;
use faer::{Accum, MatMut, MatRef, Par};

use crate::UniSvqError;
use crate::parallel::map_chunks_mut;

/// Tokens that are multiplied at once. Sums run over tokens of a block and then over blocks, whatever the calls of `add` were.
const TOKENS: usize = 512;

/// Rows of the second moments that one task computes.
const PANEL: usize = 64;

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

/// Collects second moments from activations, token by token, in f64.
///
/// The result depends on the tokens and their order alone: neither on how they were split into calls nor on the number of threads.
#[derive(Debug, Clone)]
pub struct HessianAccumulator {
    n: usize,
    sums: Vec<f64>,
    pending: Vec<f64>,
    n_tokens: u64,
}

impl HessianAccumulator {
    /// For `n` inputs. Takes 8 n² bytes, and 4 KiB per input for tokens that wait.
    ///
    /// # Errors
    /// [`UniSvqError::Shape`] for no inputs, or more than whose second moments can be addressed.
    pub fn new(n: usize) -> Result<Self, UniSvqError> {
        Ok(Self { n, sums: vec![0.0; order_len(n)?], pending: Vec::new(), n_tokens: 0 })
    }

    /// Number of inputs.
    #[must_use]
    pub fn n(&self) -> usize {
        self.n
    }

    /// Tokens so far.
    #[must_use]
    pub fn n_tokens(&self) -> u64 {
        self.n_tokens
    }

    /// Adds tokens: `x` is `[tokens, n]`, row-major.
    ///
    /// # Errors
    /// [`UniSvqError::Shape`] unless `x` is whole tokens, [`UniSvqError::NonFinite`] for NaN and infinities, with the token since the
    /// beginning as row and the input as column. Nothing is added then.
    pub fn add(&mut self, x: &[f32]) -> Result<(), UniSvqError> {
        check_tokens(x, self.n, self.n_tokens)?;
        let mut rest = x;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(TOKENS * self.n - self.pending.len()));
            self.pending.extend(now.iter().map(|v| f64::from(*v)));
            rest = later;
            if self.pending.len() == TOKENS * self.n {
                self.flush();
            }
        }
        self.n_tokens += (x.len() / self.n) as u64;
        Ok(())
    }

    /// The mean over all tokens; zeros if there were none.
    ///
    /// # Errors
    /// [`UniSvqError::NonFinite`] if a sum left the range of f64.
    pub fn finish(mut self) -> Result<Hessian, UniSvqError> {
        self.flush();
        let scale = 1.0 / self.n_tokens.max(1) as f64;
        self.sums.iter_mut().for_each(|v| *v *= scale);
        Hessian::new(self.n, self.sums, self.n_tokens)
    }

    fn flush(&mut self) {
        let (n, x) = (self.n, &self.pending);
        let tokens = x.len() / n;
        if tokens > 0 {
            let x = MatRef::from_row_major_slice(x, tokens, n);
            map_chunks_mut(&mut self.sums, PANEL * n, |i, panel| {
                let (from, rows) = (i * PANEL, panel.len() / n);
                // Columns up to the diagonal; the rest mirrors what other panels compute.
                let sums = MatMut::from_row_major_slice_mut(panel, rows, n).subcols_mut(0, from + rows);
                let (left, right) = (x.subcols(from, rows).transpose(), x.subcols(0, from + rows));
                matmul(sums, Accum::Add, left, right, 1.0, Par::Seq);
            });
        }
        self.pending.clear();
    }
}

/// Collects the mean of x x̂ᵀ, of inputs and of the same inputs as a quantized prefix makes them, in f64.
#[derive(Debug, Clone)]
pub struct CrossAccumulator {
    n: usize,
    sums: Vec<f64>,
    pending: Vec<f64>,
    pending_hat: Vec<f64>,
    n_tokens: u64,
}

impl CrossAccumulator {
    /// For `n` inputs. Takes 8 n² bytes, and 8 KiB per input for tokens that wait.
    ///
    /// # Errors
    /// [`UniSvqError::Shape`] for no inputs, or more than whose moments can be addressed.
    pub fn new(n: usize) -> Result<Self, UniSvqError> {
        let sums = vec![0.0; order_len(n)?];
        Ok(Self { n, sums, pending: Vec::new(), pending_hat: Vec::new(), n_tokens: 0 })
    }

    /// Adds tokens: both are `[tokens, n]`, row-major.
    ///
    /// # Errors
    /// As for [`HessianAccumulator::add`], and [`UniSvqError::Shape`] if the two differ in length.
    pub fn add(&mut self, x: &[f32], x_hat: &[f32]) -> Result<(), UniSvqError> {
        check_tokens(x, self.n, self.n_tokens)?;
        check_tokens(x_hat, self.n, self.n_tokens)?;
        if x.len() != x_hat.len() {
            let (expected, found) = (format!("{} values", x.len()), x_hat.len().to_string());
            return Err(UniSvqError::Shape { what: "inputs from the quantized prefix", expected, found });
        }
        let (mut rest, mut rest_hat) = (x, x_hat);
        while !rest.is_empty() {
            let len = rest.len().min(TOKENS * self.n - self.pending.len());
            let (now, later) = rest.split_at(len);
            let (now_hat, later_hat) = rest_hat.split_at(len);
            self.pending.extend(now.iter().map(|v| f64::from(*v)));
            self.pending_hat.extend(now_hat.iter().map(|v| f64::from(*v)));
            (rest, rest_hat) = (later, later_hat);
            if self.pending.len() == TOKENS * self.n {
                self.flush();
            }
        }
        self.n_tokens += (x.len() / self.n) as u64;
        Ok(())
    }

    /// The mean over all tokens, `[n, n]` row-major, x along rows and x̂ along columns; zeros if there were none.
    ///
    /// # Errors
    /// [`UniSvqError::NonFinite`] if a sum left the range of f64.
    pub fn finish(mut self) -> Result<Vec<f64>, UniSvqError> {
        self.flush();
        let scale = 1.0 / self.n_tokens.max(1) as f64;
        self.sums.iter_mut().for_each(|v| *v *= scale);
        match self.sums.iter().position(|v| !v.is_finite()) {
            Some(i) => Err(UniSvqError::NonFinite {
                what: "cross moments",
                row: i / self.n,
                col: i % self.n,
                value: self.sums[i].to_string(),
            }),
            None => Ok(self.sums),
        }
    }

    fn flush(&mut self) {
        let n = self.n;
        let tokens = self.pending.len() / n;
        if tokens > 0 {
            let x = MatRef::from_row_major_slice(&self.pending, tokens, n);
            let x_hat = MatRef::from_row_major_slice(&self.pending_hat, tokens, n);
            map_chunks_mut(&mut self.sums, PANEL * n, |i, panel| {
                let (from, rows) = (i * PANEL, panel.len() / n);
                let sums = MatMut::from_row_major_slice_mut(panel, rows, n);
                matmul(sums, Accum::Add, x.subcols(from, rows).transpose(), x_hat, 1.0, Par::Seq);
            });
        }
        self.pending.clear();
        self.pending_hat.clear();
    }
}

/// Values of an `n` x `n` matrix.
fn order_len(n: usize) -> Result<usize, UniSvqError> {
    let wrong = || UniSvqError::Shape {
        what: "hessian",
        expected: "at least one input, and no more than fit".into(),
        found: n.to_string(),
    };
    // Blocks of tokens have to be addressed as well.
    n.checked_mul(n.max(TOKENS)).filter(|len| *len > 0 && len.checked_mul(8).is_some()).ok_or_else(wrong)?;
    Ok(n * n)
}

/// Refuses what is no whole number of tokens, or not finite.
fn check_tokens(x: &[f32], n: usize, n_before: u64) -> Result<(), UniSvqError> {
    if !x.len().is_multiple_of(n) {
        let (expected, found) = (format!("tokens of {n} values"), format!("{} values", x.len()));
        return Err(UniSvqError::Shape { what: "activations", expected, found });
    }
    // A sum of magnitudes is not finite if one of them is not; f64 holds the sum of all f32 there can be.
    if x.chunks(4096).all(|part| part.iter().map(|v| f64::from(v.abs())).sum::<f64>().is_finite()) {
        return Ok(());
    }
    let i = x.iter().position(|v| !v.is_finite()).unwrap_or(0);
    let row = usize::try_from(n_before).unwrap_or(usize::MAX).saturating_add(i / n);
    Err(UniSvqError::NonFinite { what: "activations", row, col: i % n, value: x[i].to_string() })
}
