//! What rows of an input are multiplied by before second moments, so that a few tokens of great energy do not make all of them.

use std::borrow::Cow;

use gosset_quantize::TokenWeights;

/// Factors of the tokens of one sequence, by the stream after the layer, `[tokens, hidden]` and finite; `None` where all are 1.
pub(super) fn token_factors(weights: TokenWeights, stream: &[f32], hidden: usize) -> Option<Vec<f32>> {
    if weights.is_equal() {
        return None;
    }
    let energy = |row: &[f32]| row.iter().map(|v| f64::from(*v) * f64::from(*v)).sum::<f64>();
    let energies: Vec<f64> = stream.chunks_exact(hidden).map(energy).collect();
    let mut sorted = energies.clone();
    sorted.sort_unstable_by(f64::total_cmp);
    // The stream of most tokens may be zero in a model that does nothing; then there is nothing to compare with.
    let limit = TokenWeights::ENERGY_CAP * sorted.get(sorted.len() / 2)?;
    let factor = |energy: &f64| if *energy > limit { (limit / energy).sqrt() as f32 } else { 1.0 };
    (limit > 0.0).then(|| energies.iter().map(factor).collect())
}

/// Rows of `x` times their factors.
pub(super) fn weighted<'x>(x: &'x [f32], factors: Option<&[f32]>) -> Cow<'x, [f32]> {
    let Some(factors) = factors.filter(|factors| factors.iter().any(|&f| f != 1.0)) else { return Cow::Borrowed(x) };
    let width = x.len() / factors.len();
    let rows = x.chunks_exact(width).zip(factors);
    Cow::Owned(rows.flat_map(|(row, factor)| row.iter().map(move |v| v * factor)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_far_above_the_median_count_by_the_limit_over_their_energy() {
        // Energies 2, 2, 2, 32 (at the limit of 16 medians) and 200.
        let stream = [1.0, 1.0, 1.0, -1.0, -1.0, 1.0, 4.0, 4.0, 10.0, -10.0];
        let factors = token_factors(TokenWeights::Capped, &stream, 2).unwrap();
        assert_eq!(factors, [1.0, 1.0, 1.0, 1.0, 0.4]);
        assert_eq!(*weighted(&[1.0, 2.0, 3.0, 4.0, 5.0], Some(&factors)), [1.0, 2.0, 3.0, 4.0, 2.0]);
        assert_eq!(token_factors(TokenWeights::Equal, &stream, 2), None);
    }

    #[test]
    fn nothing_to_compare_with_leaves_all_tokens_equal() {
        assert_eq!(token_factors(TokenWeights::Capped, &[], 2), None);
        assert_eq!(token_factors(TokenWeights::Capped, &[0.0, 0.0, 0.0, 0.0, 3.0, 4.0], 2), None);
        assert_eq!(token_factors(TokenWeights::Capped, &[f32::MAX, f32::MAX], 2), Some(vec![1.0]));
        assert!(matches!(weighted(&[1.0, 2.0], Some(&[1.0])), Cow::Borrowed(_)));
    }
}
