//! Exponentials of whole slices, for softmax and SiLU.

/// Replaces each `x` by `exp(x - shift)` and returns the sum; every `x` is expected to be at most `shift`.
///
/// Relative error below 3e-7. A NaN stays one and reaches the sum. Uses AVX2 where the machine has it, with the same
/// bits: the same operations in the same order, no contraction.
pub(crate) fn exp_sum_in_place(x: &mut [f32], shift: f32) -> f32 {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: AVX2 was detected on the line above.
        return unsafe { exp_sum_avx2(x, shift) };
    }
    exp_sum(x, shift)
}

/// Writes `silu(gate) * up` to `gate`, with `silu(g) = g / (1 + exp(-g))`.
///
/// # Panics
///
/// If the lengths differ.
pub(crate) fn silu_mul(gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len(), "lengths of gate and up");
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: AVX2 was detected on the line above.
        return unsafe { silu_mul_avx2(gate, up) };
    }
    silu_mul_scalar(gate, up);
}

/// Writes `gelu(gate) * up` to `gate`, with GELU as tanh approximates it.
///
/// # Panics
///
/// If the lengths differ.
pub(crate) fn gelu_tanh_mul(gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len(), "lengths of gate and up");
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: AVX2 was detected on the line above.
        return unsafe { gelu_tanh_mul_avx2(gate, up) };
    }
    gelu_tanh_mul_scalar(gate, up);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn gelu_tanh_mul_avx2(gate: &mut [f32], up: &[f32]) {
    gelu_tanh_mul_scalar(gate, up);
}

/// `0.5 g (1 + tanh u)` is `g / (1 + exp(-2u))`, with `u = sqrt(2/pi) (g + 0.044715 g³)`.
///
/// Source: Hendrycks & Gimpel, *Gaussian Error Linear Units*, 2016.
#[inline(always)]
fn gelu_tanh_mul_scalar(gate: &mut [f32], up: &[f32]) {
    for (g, u) in gate.iter_mut().zip(up) {
        let inner = GELU_ROOT * (*g + GELU_CUBE * *g * *g * *g);
        *g = *g / (1.0 + exp(-2.0 * inner)) * u;
    }
}

/// `sqrt(2 / pi)`.
pub(crate) const GELU_ROOT: f32 = std::f32::consts::FRAC_2_SQRT_PI * std::f32::consts::FRAC_1_SQRT_2;

/// Factor of the cube in the approximation.
pub(crate) const GELU_CUBE: f32 = 0.044715;

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn exp_sum_avx2(x: &mut [f32], shift: f32) -> f32 {
    exp_sum(x, shift)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn silu_mul_avx2(gate: &mut [f32], up: &[f32]) {
    silu_mul_scalar(gate, up);
}

/// Independent partial sums: enough to hide the latency of additions, and a fixed order for every vector width.
const LANES: usize = 32;

#[inline(always)]
fn exp_sum(x: &mut [f32], shift: f32) -> f32 {
    let mut sums = [0f32; LANES];
    let mut chunks = x.chunks_exact_mut(LANES);
    for chunk in &mut chunks {
        for (v, sum) in chunk.iter_mut().zip(&mut sums) {
            *v = exp(*v - shift);
            *sum += *v;
        }
    }
    for (v, sum) in chunks.into_remainder().iter_mut().zip(&mut sums) {
        *v = exp(*v - shift);
        *sum += *v;
    }
    sums.iter().sum()
}

#[inline(always)]
fn silu_mul_scalar(gate: &mut [f32], up: &[f32]) {
    for (g, u) in gate.iter_mut().zip(up) {
        *g = *g / (1.0 + exp(-*g)) * u;
    }
}

/// `exp(x)` without branches, so that loops over it become vector code; below -87 and above 88 the result stops there.
///
/// `x = n ln 2 + r` with `|r| <= ln(2) / 2`; `2^n` is put together from bits and `exp(r)` is its Taylor polynomial of
/// degree 7, whose remainder `(ln(2)/2)^8 / 8!` is 5e-9.
#[inline(always)]
fn exp(x: f32) -> f32 {
    /// 1.5 · 2^23: adding it leaves the nearest integer in the low bits of the mantissa.
    const ROUND: f32 = 12_582_912.0;
    /// ln 2 in two parts, the first of which has 9 bits: `n * LN2_HI` is exact for every n here.
    const LN2_HI: f32 = 355.0 / 512.0;
    const LN2_LO: f32 = (std::f64::consts::LN_2 - 355.0 / 512.0) as f32;
    // Comparisons written so that a NaN passes through.
    let x = if x < -87.0 { -87.0 } else { x };
    let x = if x > 88.0 { 88.0 } else { x };
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (x - n * LN2_HI) - n * LN2_LO;
    let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(0x3f80_0000));
    let p = 1.0 / 5040.0;
    let p = p * r + 1.0 / 720.0;
    let p = p * r + 1.0 / 120.0;
    let p = p * r + 1.0 / 24.0;
    let p = p * r + 1.0 / 6.0;
    let p = p * r + 0.5;
    let p = p * r + 1.0;
    let p = p * r + 1.0;
    p * power
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_close_over_its_whole_range() {
        for i in -870_000..=880_000 {
            let x = i as f32 / 10_000.0;
            let exact = f64::from(x).exp();
            let error = (f64::from(exp(x)) - exact).abs() / exact;
            assert!(error < 3e-7, "exp({x}): relative error {error}");
        }
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(-1e30) > 0.0 && exp(f32::NEG_INFINITY) < 2e-38);
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn vector_paths_give_the_bits_of_the_scalar_ones() {
        let x: Vec<f32> = (0..1003).map(|i| -(i as f32) * 0.037).collect();
        for len in [0, 1, 31, 32, 33, 64, 1003] {
            let (mut a, mut b) = (x[..len].to_vec(), x[..len].to_vec());
            assert_eq!(exp_sum(&mut a, 0.1).to_bits(), exp_sum_in_place(&mut b, 0.1).to_bits());
            assert_eq!(a, b);
            silu_mul_scalar(&mut a, &x[..len]);
            silu_mul(&mut b, &x[..len]);
            assert_eq!(a, b);
        }
    }

    #[test]
    fn silu_is_the_logistic_times_its_argument() {
        let gate = [-30.0f32, -2.0, 0.0, 0.5, 20.0];
        let (mut out, up) = (gate, [3.0f32; 5]);
        silu_mul(&mut out, &up);
        for (g, o) in gate.iter().zip(out) {
            let exact = f64::from(*g) / (1.0 + f64::from(-*g).exp()) * 3.0;
            assert!((f64::from(o) - exact).abs() <= 1e-6 * exact.abs() + 1e-12, "{g}: {o}");
        }
    }

    #[test]
    fn a_nan_reaches_the_sum() {
        let mut x = vec![0.0; 100];
        x[77] = f32::NAN;
        assert!(exp_sum_in_place(&mut x, 0.0).is_nan());
    }
}
