//! Which pair of coordinates gets how many bits.

use super::{DISTORTIONS, MAX_STEP_BITS};

/// Fewest bits of a step that has some.
const MIN_STEP_BITS: u32 = 2;

/// Fewest bits of a string for states of so many bits: as many, in whole bytes.
pub(crate) fn least_bits(state_bits: u32) -> usize {
    state_bits.next_multiple_of(8) as usize
}

/// `bits` shared out as evenly as steps allow; at most 10 times `pairs`, and even if there are fewer than 2 for each.
pub(crate) fn even(pairs: usize, bits: usize) -> Vec<u8> {
    // Fewer than two bits for each: a part of the pairs has two.
    let unit = if bits < MIN_STEP_BITS as usize * pairs { MIN_STEP_BITS as usize } else { 1 };
    let units = bits / unit;
    (0..pairs).map(|i| (unit * ((i + 1) * units / pairs - i * units / pairs)) as u8).collect()
}

/// `bits` shared out among pairs with these standard deviations so that the sum of squared errors is about the least: the step that takes
/// most off it for each of its bits, one after the other. At most 10 times the number of pairs.
pub(crate) fn waterfill(sigmas: &[f64], bits: usize) -> Vec<u8> {
    let mut shares = vec![0u8; sigmas.len()];
    let mut left = bits as u32;
    while left > 0 {
        let mut best: Option<(f64, usize, u32)> = None;
        for (i, (&sigma, &has)) in sigmas.iter().zip(&shares).enumerate() {
            let more = if has == 0 { MIN_STEP_BITS } else { 1 };
            let will = usize::from(has) + more as usize;
            if more > left || will > MAX_STEP_BITS as usize {
                continue;
            }
            let gain = sigma * sigma * (DISTORTIONS[usize::from(has)] - DISTORTIONS[will]) / f64::from(more);
            if best.is_none_or(|(most, ..)| gain > most) {
                best = Some((gain, i, more));
            }
        }
        let Some((_, i, more)) = best else { break };
        shares[i] += more as u8;
        left -= more;
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(shares: &[u8]) -> usize {
        shares.iter().map(|&k| usize::from(k)).sum()
    }

    #[test]
    fn shares_add_up_and_are_steps() {
        for pairs in [1, 8, 32, 40, 64] {
            for bits in (16..=10 * pairs).step_by(8) {
                let sigmas: Vec<f64> = (0..pairs).map(|i| (-(i as f64) * 6.0 / pairs as f64).exp2()).collect();
                for shares in [even(pairs, bits), waterfill(&sigmas, bits), waterfill(&vec![1.0; pairs], bits)] {
                    assert_eq!(sum(&shares), bits, "{pairs}: {shares:?}");
                    assert!(shares.iter().all(|&k| k == 0 || (2..=10).contains(&k)), "{shares:?}");
                }
                assert!(waterfill(&sigmas, bits).is_sorted_by(|a, b| a >= b), "{bits} {:?}", waterfill(&sigmas, bits));
                let even = even(pairs, bits);
                let most = even.iter().max().unwrap();
                assert!(even.iter().all(|k| most - k <= if bits < 2 * pairs { 2 } else { 1 }), "{even:?}");
            }
        }
        assert_eq!(even(8, 36), [4, 5, 4, 5, 4, 5, 4, 5]);
        assert_eq!(waterfill(&[1.0, 1e-9, 1e-9], 16), [10, 3, 3]);
    }

    #[test]
    fn shares_follow_variances() {
        // A factor of two in deviation is about a bit for each of the two coordinates.
        let shares = waterfill(&[4.0, 2.0, 1.0, 0.5], 16);
        assert_eq!(shares, [8, 5, 3, 0]);
    }
}
