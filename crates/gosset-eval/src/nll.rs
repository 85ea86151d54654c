//! Negative log-likelihoods of single tokens and their sums.

/// Negative log-likelihood, in nats, of `target` under the softmax of `logits`; `Err(index)` of the first logit that is not
/// finite.
///
/// The maximum is subtracted first and everything after that is f64, so large logits neither overflow nor lose the answer:
///
/// ```
/// let nll = gosset_eval::token_nll(&[1000.0, 1000.0], 1).unwrap();
/// assert!((nll - 2f64.ln()).abs() < 1e-15);
/// assert_eq!(gosset_eval::token_nll(&[0.0, f32::NAN], 0), Err(1));
/// ```
///
/// # Panics
///
/// If `target` is not an index of `logits`.
pub fn token_nll(logits: &[f32], target: usize) -> Result<f64, usize> {
    let target = f64::from(logits[target]);
    // Eight independent maxima: one would be a chain of 49152 dependent comparisons per position.
    let mut lanes = [f32::NEG_INFINITY; 8];
    let mut finite = true;
    let (chunks, rest) = logits.as_chunks::<8>();
    for chunk in chunks {
        for (lane, &x) in lanes.iter_mut().zip(chunk) {
            *lane = if x > *lane { x } else { *lane };
            finite &= x.is_finite();
        }
    }
    let max = rest.iter().chain(&lanes).fold(f32::NEG_INFINITY, |m, &x| if x > m { x } else { m });
    finite &= rest.iter().all(|x| x.is_finite());
    if !finite {
        return Err(logits.iter().position(|x| !x.is_finite()).unwrap_or(0));
    }
    let max = f64::from(max);
    let mut sums = [0f64; 8];
    for chunk in chunks {
        for (sum, &x) in sums.iter_mut().zip(chunk) {
            *sum += exp_of_negative(f64::from(x) - max);
        }
    }
    let sum = sums.iter().sum::<f64>() + rest.iter().map(|&x| exp_of_negative(f64::from(x) - max)).sum::<f64>();
    Ok(sum.ln() + (max - target))
}

/// `exp(x)` for `x <= 0`, to 2e-14 relative; below -700 it stays at the value there, which is 0 beside the maximum's 1.
///
/// The standard function is a call per element. This one is straight arithmetic that the compiler turns into vector code, and
/// gives the same bits on every machine. Taylor polynomial of degree 11 on half a binade: its remainder is `(ln 2 / 2)^12 / 12!`,
/// 6e-15.
fn exp_of_negative(x: f64) -> f64 {
    /// 1.5 x 2^52: adding it rounds to an integer, which then stands in the lowest bits.
    const ROUND: f64 = 6_755_399_441_055_744.0;
    /// ln 2 in two parts, the first with so few bits that its product with an exponent is exact.
    const LN2_HIGH: f64 = f64::from_bits(0x3fe6_2e42_fee0_0000);
    const LN2_LOW: f64 = f64::from_bits(0x3dea_39ef_3579_3c76);
    const INVERSE_FACTORIALS: [f64; 12] = {
        let mut c = [1.0; 12];
        let mut i = 2;
        while i < 12 {
            c[i] = c[i - 1] / i as f64;
            i += 1;
        }
        c
    };
    let x = if x < -700.0 { -700.0 } else { x };
    let rounded = x * std::f64::consts::LOG2_E + ROUND;
    let n = rounded - ROUND;
    let r = (x - n * LN2_HIGH) - n * LN2_LOW;
    let polynomial = INVERSE_FACTORIALS.iter().rev().fold(0.0, |p, &c| p * r + c);
    // 2^n: the low bits of the rounded number are n, moved into the exponent.
    let power = f64::from_bits(rounded.to_bits().wrapping_add(1023) << 52);
    polynomial * power
}

/// Sum of token NLLs with what the standard error needs.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct NllSum {
    /// Number of tokens.
    pub n: usize,
    /// Sum of their NLLs in nats.
    pub sum: f64,
    /// Sum of the squares of their NLLs.
    pub sum_sq: f64,
}

impl NllSum {
    /// Adds one token.
    pub fn push(&mut self, nll: f64) {
        self.n += 1;
        self.sum += nll;
        self.sum_sq += nll * nll;
    }

    /// Adds the tokens of another sum.
    pub fn add(&mut self, other: &NllSum) {
        self.n += other.n;
        self.sum += other.sum;
        self.sum_sq += other.sum_sq;
    }

    /// Mean NLL per token, in nats; NaN for no tokens.
    pub fn mean(&self) -> f64 {
        self.sum / self.n as f64
    }

    /// Perplexity: the exponential of the mean over all tokens.
    pub fn ppl(&self) -> f64 {
        self.mean().exp()
    }

    /// Standard error of the perplexity: the standard error of the mean NLL (tokens taken as independent) times the perplexity.
    /// 0 for fewer than two tokens.
    pub fn ppl_sigma(&self) -> f64 {
        if self.n < 2 {
            return 0.0;
        }
        let n = self.n as f64;
        let variance = ((self.sum_sq - self.sum * self.mean()) / (n - 1.0)).max(0.0);
        (variance / n).sqrt() * self.ppl()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_softmax_is_stable_and_shift_invariant() {
        let logits: Vec<f32> = (0..1003).map(|i| ((i * 7919) % 1003) as f32 / 64.0).collect();
        let naive = |t: usize| {
            let sum: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum();
            sum.ln() - f64::from(logits[t])
        };
        let shifted: Vec<f32> = logits.iter().map(|x| x + 8192.0).collect();
        for t in [0, 1, 7, 8, 500, 1000, 1002] {
            assert!((token_nll(&logits, t).unwrap() - naive(t)).abs() < 1e-12);
            // Sixty-fourths below 8208 are exact in f32, so the shift changes nothing but the maximum.
            assert_eq!(token_nll(&logits, t), token_nll(&shifted, t));
        }
    }

    #[test]
    fn the_exponential_is_that_of_the_library() {
        const TOLERANCE: f64 = 2e-14;
        for i in 0..=70_000 {
            let x = -f64::from(i) / 100.0;
            let (ours, exact) = (exp_of_negative(x), x.exp());
            assert!((ours - exact).abs() <= TOLERANCE * exact, "exp({x}): {ours} for {exact}");
        }
        assert_eq!(exp_of_negative(0.0), 1.0);
        assert!(exp_of_negative(-1e300) < 1e-300);
    }

    #[test]
    fn the_first_non_finite_logit_is_named_wherever_it_stands() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for at in [0, 5, 8, 16, 17, 18] {
                let mut logits = vec![0.5f32; 19];
                logits[at] = bad;
                logits[18] = bad;
                assert_eq!(token_nll(&logits, 3), Err(at));
            }
        }
    }

    #[test]
    fn sigma_is_the_standard_error_times_the_perplexity() {
        let mut s = NllSum::default();
        [1.0, 2.0, 3.0, 6.0].into_iter().for_each(|x| s.push(x));
        // Mean 3, squared deviations 4 + 1 + 0 + 9 = 14, variance 14 / 3, standard error sqrt(14 / 12).
        assert!((s.ppl_sigma() - (14.0f64 / 12.0).sqrt() * 3.0f64.exp()).abs() < 1e-12);
        let mut one = NllSum::default();
        one.push(1.0);
        assert_eq!(one.ppl_sigma(), 0.0);
    }
}
