//! Normalized second moments, cell volumes and mean squared errors of the lattices, as exact expressions.
//!
//! The normalized second moment of a lattice of dimension n with cell volume V is G = E‖U‖² / (n·V^(2/n)), U uniform on
//! the Voronoi cell. Source of all four: Conway & Sloane, *Sphere Packings, Lattices and Groups*, 3rd ed., chapter 21
//! (table 21.1 and the second moments of the regular polytopes in section 3).

/// √3.
pub(crate) const SQRT_3: f64 = 1.732_050_807_568_877_2;
/// 1/√3.
pub(crate) const INV_SQRT_3: f64 = 0.577_350_269_189_625_8;

/// G(Z) = 1/12, the unit interval.
pub const SECOND_MOMENT_Z: f64 = 1.0 / 12.0;
/// G(A2) = 5√3/108 = 0.0801875…, the regular hexagon.
pub const SECOND_MOMENT_A2: f64 = 5.0 * SQRT_3 / 108.0;
/// G(D4) = 13/(120√2) = 0.0766032…, the 24-cell.
pub const SECOND_MOMENT_D4: f64 = 13.0 / (120.0 * core::f64::consts::SQRT_2);
/// G(E8) = 929/12960 = 0.0716821….
pub const SECOND_MOMENT_E8: f64 = 929.0 / 12960.0;

/// Cell volume of Z.
pub const CELL_VOLUME_Z: f64 = 1.0;
/// Cell volume of {(n_y·√3, n_x): n_y ≡ n_x (mod 2)}: index 2 in a √3 by 1 grid.
pub const CELL_VOLUME_A2: f64 = 2.0 * SQRT_3;
/// Cell volume of 2·D4: 2^4 times the determinant 2 of D4.
pub const CELL_VOLUME_D4: f64 = 32.0;
/// Cell volume of 2·E8: 2^8, as E8 is unimodular.
pub const CELL_VOLUME_E8: f64 = 256.0;

/// G·V² of Z.
pub const MSE_PER_DIM_Z: f64 = 1.0 / 12.0;
/// G·V of 2·A2: 5√3/108 · 2√3 = 5/18.
pub const MSE_PER_DIM_A2: f64 = 5.0 / 18.0;
/// G·V^(1/2) of 2·D4: 13/(120√2) · 4√2 = 13/30.
pub const MSE_PER_DIM_D4: f64 = 13.0 / 30.0;
/// G·V^(1/4) of 2·E8: 929/12960 · 4 = 929/3240.
pub const MSE_PER_DIM_E8: f64 = 929.0 / 3240.0;

/// Distance in bits per dimension between a lattice with an ideal entropy coder and the rate-distortion bound at high
/// rate: ½·log2(2πe·G).
///
/// Source: Zamir & Feder, "On lattice quantization noise", IEEE Trans. Inf. Theory 42(4), 1996.
///
/// ```
/// use gosset_lattice::moments::{SECOND_MOMENT_E8, high_rate_gap_bits};
/// assert!((high_rate_gap_bits(SECOND_MOMENT_E8) - 0.1460).abs() < 5e-5);
/// ```
pub fn high_rate_gap_bits(second_moment: f64) -> f64 {
    0.5 * libm::log2(2.0 * core::f64::consts::PI * core::f64::consts::E * second_moment)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{A2, D4, E8, Lattice, Z};

    /// About fifty units in the last place of a number near 1.
    const ROUNDING: f64 = 1e-14;

    #[test]
    fn moments_have_their_published_values() {
        assert!((SECOND_MOMENT_Z - 0.083_333_3).abs() < 1e-7);
        assert!((SECOND_MOMENT_A2 - 0.080_187_5).abs() < 1e-7);
        assert!((SECOND_MOMENT_D4 - 0.076_603_2).abs() < 1e-7);
        assert!((SECOND_MOMENT_E8 - 0.071_682_1).abs() < 1e-7);
    }

    /// The gap of E8 follows from the published 0.654 dB of granular gain over Z: 0.2546 − 0.6541/6.0206 = 0.1460. Tables
    /// that print 0.1457 or 0.1458 start from a rounded second moment.
    #[test]
    fn gaps_have_their_published_values() {
        let lattices = [
            (SECOND_MOMENT_Z, 0.2546),
            (SECOND_MOMENT_A2, 0.2269),
            (SECOND_MOMENT_D4, 0.1939),
            (SECOND_MOMENT_E8, 0.1460),
        ];
        for (g, expected) in lattices {
            let gap = high_rate_gap_bits(g);
            assert!((gap - expected).abs() < 5.1e-5, "G {g}: {gap} bits, expected {expected}");
        }
    }

    #[test]
    fn mse_per_dim_is_moment_times_volume_power() {
        fn check<const N: usize, L: Lattice<N>>() {
            let mse = L::SECOND_MOMENT * L::CELL_VOLUME.powf(2.0 / N as f64);
            assert!((mse - L::MSE_PER_DIM).abs() < ROUNDING, "{}: {mse} is not {}", L::NAME, L::MSE_PER_DIM);
        }
        check::<1, Z>();
        check::<2, A2>();
        check::<4, D4>();
        check::<8, E8>();
    }
}
