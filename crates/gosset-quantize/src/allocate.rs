//! Shares bits out among tensors: least weighted sum of relative errors for a given number of bits.
//!
//! A codec does the same to every tensor whose values are Gaussian after rotation, so one curve D(R) of relative error over payload
//! serves all; tensors differ by their number of weights n and by the weight w of their relative error. The least
//! Σ w D(R) for Σ n R bits is where −D'(R) w / n is the same for all: where it is worth most, a bit is spent first.
//!
//! The curve is cut into steps and those that no line between two others beats are kept (its lower convex hull), so that spending the
//! steps in the order of their slopes is exact: bisection over the slope would find the same place. Only the four basic operations and
//! comparisons are used, so that every machine finds the same rates.

/// Distance of the points of a continuous curve, in bits per weight.
const STEP_BPS: f64 = 1.0 / 32.0;

/// Relative error over payload of a codec: the lower convex hull, ascending in rate.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ErrorCurve {
    /// Payload in bits per weight.
    rates: Vec<f64>,
    /// Relative error at each.
    errors: Vec<f64>,
    /// Whether every rate between the ends can be asked for, or only those of the curve.
    pub(crate) is_continuous: bool,
}

/// What one tensor asks of the budget.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Demand {
    /// Number of weights.
    pub(crate) n_weights: u64,
    /// What its relative error counts, for each of its weights. Equal densities mean equal rates, so they are not made of a weight
    /// divided by a number it was multiplied with.
    pub(crate) density: f64,
}

impl ErrorCurve {
    /// The curve of a codec with payloads `min..=max`, or only `rates`; `snr_db` tells the signal-to-noise ratio at each.
    pub(crate) fn new(min: f64, max: f64, rates: Option<&[f64]>, snr_db: impl Fn(f64) -> f64) -> Self {
        let all: Vec<f64> = match rates {
            Some(rates) => rates.to_vec(),
            None => {
                let n_steps = ((max - min) / STEP_BPS).ceil() as usize;
                (0..n_steps).map(|i| min + i as f64 * STEP_BPS).chain([max]).collect()
            }
        };
        let mut curve = ErrorCurve { rates: Vec::new(), errors: Vec::new(), is_continuous: rates.is_none() };
        for rate in all {
            curve.push(rate, relative_error(snr_db(rate)));
        }
        curve
    }

    /// Adds a point beyond all others and drops those that it leaves above the hull.
    fn push(&mut self, rate: f64, error: f64) {
        while let (&[.., r0, r1], &[.., e0, e1]) = (self.rates.as_slice(), self.errors.as_slice()) {
            // Whether the slope to the last point is no steeper than that from it on.
            if (e0 - e1) * (rate - r1) > (e1 - error) * (r1 - r0) {
                break;
            }
            self.rates.pop();
            self.errors.pop();
        }
        self.rates.push(rate);
        self.errors.push(error);
    }

    /// The payloads of the curve, ascending.
    pub(crate) fn rates(&self) -> &[f64] {
        &self.rates
    }

    /// The payload of the curve below `rate`.
    pub(crate) fn below(&self, rate: f64) -> Option<f64> {
        self.rates.iter().copied().rfind(|&r| r < rate)
    }

    /// Lowest payload.
    pub(crate) fn min(&self) -> f64 {
        self.rates.first().copied().unwrap_or(0.0)
    }

    /// Highest payload.
    pub(crate) fn max(&self) -> f64 {
        self.rates.last().copied().unwrap_or(0.0)
    }

    /// Gain in relative error per bit and weight of each step, descending.
    fn slopes(&self) -> impl Iterator<Item = f64> {
        let pair = |i: usize| (self.errors[i] - self.errors[i + 1]) / (self.rates[i + 1] - self.rates[i]);
        (0..self.rates.len().saturating_sub(1)).map(pair)
    }

    /// Every step of every tensor that gains anything, the steepest first; then by tensor.
    fn steps(&self, demands: &[Demand]) -> Vec<Step> {
        let slopes: Vec<f64> = self.slopes().collect();
        let mut steps = Vec::with_capacity(demands.len() * slopes.len());
        for (tensor, demand) in demands.iter().enumerate() {
            let step = |(index, s): (usize, &f64)| Step { slope: s * demand.density, tensor, index };
            steps.extend(slopes.iter().enumerate().map(step));
        }
        // Within a tensor the slopes descend already, and the sort is stable.
        steps.sort_by(|a, b| b.slope.total_cmp(&a.slope));
        steps
    }
}

/// From one point of the curve to the next, for one tensor.
#[derive(Debug, Clone, Copy)]
struct Step {
    slope: f64,
    tensor: usize,
    index: usize,
}

/// Payload of each tensor, for curves on which every rate can be asked for; `budget_bits` are the bits of their payloads together.
///
/// Tensors whose next bit is worth the same share what is left of the budget evenly, so equal tensors get equal rates. A budget
/// beyond the ends of the curve gives the ends.
pub(crate) fn continuous(curve: &ErrorCurve, demands: &[Demand], budget_bits: f64) -> Vec<f64> {
    let mut rates = vec![curve.min(); demands.len()];
    let mut left = budget_bits - demands.iter().map(|d| d.n_weights as f64 * curve.min()).sum::<f64>();
    let steps = curve.steps(demands);
    for group in steps.chunk_by(|a, b| a.slope == b.slope) {
        let width = |s: &Step| curve.rates[s.index + 1] - curve.rates[s.index];
        let cost: f64 = group.iter().map(|s| demands[s.tensor].n_weights as f64 * width(s)).sum();
        let share = if cost <= left { 1.0 } else { (left / cost).max(0.0) };
        for s in group {
            rates[s.tensor] = curve.rates[s.index] + share * width(s);
        }
        if share < 1.0 {
            break;
        }
        left -= cost;
    }
    rates
}

/// Payload of each tensor, for a fixed set of rates; `bits` tells all bits of a tensor at a rate of the curve.
///
/// Steps are spent in the order of their slopes, those of equal slope in the order of the tensors; what does not fit any more is
/// passed over for later steps that do. `None` if even the lowest rates do not fit.
pub(crate) fn mixed(
    curve: &ErrorCurve,
    demands: &[Demand],
    budget_bits: u64,
    bits: impl Fn(usize, f64) -> u64,
) -> Option<Vec<f64>> {
    let floor = (0..demands.len()).map(|t| bits(t, curve.min())).fold(0u64, u64::saturating_add);
    let mut left = budget_bits.checked_sub(floor)?;
    let mut taken = vec![0; demands.len()];
    for s in curve.steps(demands) {
        if taken[s.tensor] != s.index {
            // An earlier step of this tensor did not fit.
            continue;
        }
        let [before, after] = [s.index, s.index + 1].map(|i| bits(s.tensor, curve.rates[i]));
        if let Some(rest) = left.checked_sub(after.saturating_sub(before)) {
            (left, taken[s.tensor]) = (rest, s.index + 1);
        }
    }
    Some(taken.into_iter().map(|i| curve.rates[i]).collect())
}

/// Noise over signal at a signal-to-noise ratio in decibels: 10^(−snr/10).
///
/// The ratio is rounded to a millionth, because a codec may have computed it with a logarithm, which differs in the last bit between
/// machines.
fn relative_error(snr_db: f64) -> f64 {
    let snr_db = (snr_db * 1e6).round() / 1e6;
    exp2(-snr_db * (std::f64::consts::LOG2_10 / 10.0))
}

/// 2^x to about 1e-15, from the four basic operations: the library function differs in the last bit between machines.
fn exp2(x: f64) -> f64 {
    let x = x.clamp(-1000.0, 1000.0);
    let whole = x.round();
    let t = (x - whole) * std::f64::consts::LN_2;
    // The Taylor series of e^t for |t| < 0.35: the first term left out is below 1e-17.
    let mut sum = 1.0;
    for i in (1..=14).rev() {
        sum = 1.0 + sum * t / f64::from(i);
    }
    sum * f64::from_bits(((1023 + whole as i64) as u64) << 52)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn demand(n_weights: u64, weight: f64) -> Demand {
        Demand { n_weights, density: weight / n_weights as f64 }
    }

    /// The curve of an ideal coder, 6.02 dB per bit, with or without bumps.
    fn curve(rates: Option<&[f64]>, bump: f64) -> ErrorCurve {
        ErrorCurve::new(1.0, 9.0, rates, |r| 6.02 * r + bump * (4.0 * r).sin())
    }

    fn total(curve: &ErrorCurve, demands: &[Demand], rates: &[f64]) -> f64 {
        let at = |r: f64| {
            let i = curve.rates.partition_point(|&x| x < r).clamp(1, curve.rates.len() - 1);
            let t = (r - curve.rates[i - 1]) / (curve.rates[i] - curve.rates[i - 1]);
            curve.errors[i - 1] + t * (curve.errors[i] - curve.errors[i - 1])
        };
        demands.iter().zip(rates).map(|(d, &r)| d.density * d.n_weights as f64 * at(r)).sum()
    }

    #[test]
    fn powers_of_two_are_those_of_the_library() {
        for i in -4000..=4000 {
            let x = f64::from(i) / 100.0;
            assert!((exp2(x) / x.exp2() - 1.0).abs() < 1e-14, "{x}");
        }
        assert_eq!((exp2(0.0), exp2(10.0), exp2(-3.0)), (1.0, 1024.0, 0.125));
        assert!((relative_error(30.0) / 1e-3 - 1.0).abs() < 1e-14);
    }

    #[test]
    fn hulls_are_convex_and_never_above_the_curve() {
        let c = curve(None, 2.0);
        let slopes: Vec<f64> = c.slopes().collect();
        assert!(slopes.is_sorted_by(|a, b| a > b));
        assert_eq!((c.min(), c.max()), (1.0, 9.0));
        assert!(c.rates.len() < 257);
        assert_eq!(curve(None, 0.0).rates.len(), 257);
    }

    #[test]
    fn equal_slope_on_relative_error_is_half_a_bit_per_halving() {
        // −D'(R) w / n is the same: R falls by one bit where n / w grows four times.
        let demands = [demand(1000, 1.0), demand(4000, 1.0), demand(16_000, 1.0), demand(16_000, 16.0)];
        let budget = 3.0 * 37_000.0;
        let rates = continuous(&curve(None, 0.0), &demands, budget);
        for (i, expected) in [(1, -1.0), (2, -2.0), (3, 0.0)] {
            assert!((rates[i] - rates[0] - expected).abs() < 0.04, "{rates:?}");
        }
        let spent: f64 = demands.iter().zip(&rates).map(|(d, r)| d.n_weights as f64 * r).sum();
        assert!((spent - budget).abs() < 1e-6);
    }

    #[test]
    fn weights_by_size_give_one_rate() {
        let demands = [5, 77, 10_000].map(|n| demand(n, n as f64));
        for r in [1.0, 2.3, 5.01, 9.0, 12.0] {
            let rates = continuous(&curve(None, 0.0), &demands, 10_082.0 * r);
            assert!(rates.iter().all(|x| (x - r.min(9.0)).abs() < 1e-9), "{r}: {rates:?}");
        }
    }

    proptest! {
        #[test]
        fn no_exchange_between_two_tensors_is_better(
            sizes in proptest::collection::vec((1u64..100_000, 0.01f64..10.0), 2..7),
            rate in 1.2f64..8.5,
            bump in 0.0f64..1.5,
        ) {
            let c = curve(None, bump);
            let demands: Vec<Demand> = sizes.iter().map(|&(n, w)| demand(n, w)).collect();
            let n: u64 = demands.iter().map(|d| d.n_weights).sum();
            let rates = continuous(&c, &demands, rate * n as f64);
            let spent: f64 = demands.iter().zip(&rates).map(|(d, r)| d.n_weights as f64 * r).sum();
            prop_assert!((spent / (rate * n as f64) - 1.0).abs() < 1e-9);
            let best = total(&c, &demands, &rates);
            for i in 0..demands.len() {
                for j in 0..demands.len() {
                    let mut other = rates.clone();
                    let bits = 0.01 * demands[i].n_weights.min(demands[j].n_weights) as f64;
                    other[i] += bits / demands[i].n_weights as f64;
                    other[j] -= bits / demands[j].n_weights as f64;
                    if i != j && other[i] <= c.max() && other[j] >= c.min() {
                        prop_assert!(total(&c, &demands, &other) >= best * (1.0 - 1e-9));
                    }
                }
            }
        }

        #[test]
        fn mixing_a_fixed_set_fits_and_leaves_no_step_that_fits(
            sizes in proptest::collection::vec((1u64..5000, 0.01f64..10.0), 1..9),
            rate in 2.0f64..8.5,
        ) {
            let set = [2.0, 3.0, 4.0, 5.0, 6.0, 8.0];
            let c = curve(Some(&set), 0.0);
            prop_assert!(!c.is_continuous);
            let demands: Vec<Demand> = sizes.iter().map(|&(n, w)| demand(n, w)).collect();
            let bits = |t: usize, r: f64| demands[t].n_weights * r as u64 + 16;
            let n: u64 = demands.iter().map(|d| d.n_weights).sum();
            let budget = (rate * n as f64) as u64 + 16 * demands.len() as u64;
            let rates = mixed(&c, &demands, budget, bits).unwrap();
            let spent: u64 = rates.iter().enumerate().map(|(t, &r)| bits(t, r)).sum();
            prop_assert!(spent <= budget);
            prop_assert!(rates.iter().all(|r| set.contains(r)));
            for (t, &r) in rates.iter().enumerate() {
                if let Some(&next) = set.iter().find(|&&x| x > r) {
                    prop_assert!(spent - bits(t, r) + bits(t, next) > budget);
                }
            }
            prop_assert_eq!(mixed(&c, &demands, 2 * n + 16 * demands.len() as u64 - 1, bits), None);
        }
    }
}
