//! Groups along a row, each with an fp16 scale.

use half::f16;

use crate::BaselineError;

/// Name of the plane of codes.
pub(crate) const CODES: &str = "codes";

/// Groups of a row; the last one is shorter where the width is no multiple of `group`.
pub(crate) fn groups_per_row(cols: usize, group: usize) -> usize {
    cols.div_ceil(group)
}

/// Calls `each` on every group with its row and its place in the row, in order.
pub(crate) fn for_groups(
    cols: usize,
    group: usize,
    weights: &[f32],
    mut each: impl FnMut(&[f32]) -> Result<(), f32>,
) -> Result<(), BaselineError> {
    for (row, values) in weights.chunks_exact(cols).enumerate() {
        for (group, values) in values.chunks(group).enumerate() {
            each(values).map_err(|scale| BaselineError::Scale { row, group, scale })?;
        }
    }
    Ok(())
}

/// The nearest fp16 of a scale; the scale itself if fp16 cannot hold it.
pub(crate) fn half_scale(scale: f32) -> Result<f16, f32> {
    let stored = f16::from_f32(scale);
    if stored.is_finite() { Ok(stored) } else { Err(scale) }
}

/// The scales of a plane, in order.
pub(crate) fn read_scales(bytes: &[u8]) -> impl Iterator<Item = f32> + '_ {
    bytes.as_chunks::<2>().0.iter().map(|&b| f16::from_le_bytes(b).to_f32())
}

/// The values half-way between ascending levels.
pub(crate) const fn thresholds(levels: &[f32; 16]) -> [f32; 15] {
    let mut out = [0.0; 15];
    let mut i = 0;
    while i < 15 {
        out[i] = 0.5 * (levels[i] + levels[i + 1]);
        i += 1;
    }
    out
}

/// Index of the level nearest to `x`, the lower one at equal distance, by the thresholds of the levels.
pub(crate) fn nearest_level(thresholds: &[f32; 15], x: f32) -> u16 {
    // Without a branch: fifteen comparisons are two vector instructions.
    thresholds.iter().map(|&t| u16::from(x > t)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_level_is_nearest() {
        let levels: [f32; 16] = std::array::from_fn(|i| (i * i) as f32 - 50.0);
        for i in -3000..3000 {
            let x = i as f32 * 0.07;
            let found = levels[usize::from(nearest_level(&thresholds(&levels), x))];
            let best = levels.iter().map(|l| (l - x).abs()).fold(f32::INFINITY, f32::min);
            assert!((found - x).abs() <= best + 1e-5, "{x}");
        }
    }

    #[test]
    fn scales_beyond_fp16_are_refused() {
        assert_eq!(half_scale(65504.0).map(f16::to_f32), Ok(65504.0));
        assert_eq!(half_scale(7e4), Err(7e4));
        let error = for_groups(4, 2, &[1.0, 1.0, 1e6, 1.0], |g| half_scale(g[0]).map(drop)).unwrap_err();
        assert_eq!(error, BaselineError::Scale { row: 0, group: 1, scale: 1e6 });
    }
}
