//! Lattices named at run time.

use core::fmt;

use crate::{A2, BitStrip, D4, E8, Lattice, Z};

/// One of the four lattices, as specifications and files name it.
///
/// ```
/// use gosset_lattice::LatticeKind;
/// let kind = LatticeKind::from_name("e8").unwrap();
/// assert_eq!(kind, LatticeKind::E8);
/// assert_eq!(kind.dim(), 8);
/// assert!((kind.alpha_for_snr_db(21.0) - 6.008).abs() < 5e-4);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LatticeKind {
    /// The integers, [`Z`].
    Z,
    /// The hexagonal lattice, [`A2`].
    A2,
    /// The checkerboard lattice, [`D4`].
    D4,
    /// The Gosset lattice, [`E8`].
    E8,
}

/// A computation generic over the lattice, for [`LatticeKind::dispatch`].
pub trait LatticeVisitor {
    /// Result of the computation.
    type Out;
    /// Runs the computation for the lattice `L` of dimension `N`.
    fn visit<const N: usize, L: BitStrip<N>>(self) -> Self::Out;
}

impl LatticeKind {
    /// All lattices, by dimension.
    pub const ALL: [LatticeKind; 4] = [LatticeKind::Z, LatticeKind::A2, LatticeKind::D4, LatticeKind::E8];

    /// The lattice of that [`LatticeKind::name`], if any.
    pub fn from_name(name: &str) -> Option<LatticeKind> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// `z`, `a2`, `d4` or `e8`.
    pub const fn name(self) -> &'static str {
        match self {
            LatticeKind::Z => Z::NAME,
            LatticeKind::A2 => A2::NAME,
            LatticeKind::D4 => D4::NAME,
            LatticeKind::E8 => E8::NAME,
        }
    }

    /// Coordinates per block: 1, 2, 4 or 8.
    pub const fn dim(self) -> usize {
        match self {
            LatticeKind::Z => 1,
            LatticeKind::A2 => 2,
            LatticeKind::D4 => 4,
            LatticeKind::E8 => 8,
        }
    }

    /// Normalized second moment G.
    pub const fn second_moment(self) -> f64 {
        match self {
            LatticeKind::Z => Z::SECOND_MOMENT,
            LatticeKind::A2 => A2::SECOND_MOMENT,
            LatticeKind::D4 => D4::SECOND_MOMENT,
            LatticeKind::E8 => E8::SECOND_MOMENT,
        }
    }

    /// Cell volume V in the embedding of this crate.
    pub const fn cell_volume(self) -> f64 {
        match self {
            LatticeKind::Z => Z::CELL_VOLUME,
            LatticeKind::A2 => A2::CELL_VOLUME,
            LatticeKind::D4 => D4::CELL_VOLUME,
            LatticeKind::E8 => E8::CELL_VOLUME,
        }
    }

    /// Mean squared error per dimension at high rate, G·V^(2/n).
    pub const fn mse_per_dim(self) -> f64 {
        match self {
            LatticeKind::Z => Z::MSE_PER_DIM,
            LatticeKind::A2 => A2::MSE_PER_DIM,
            LatticeKind::D4 => D4::MSE_PER_DIM,
            LatticeKind::E8 => E8::MSE_PER_DIM,
        }
    }

    /// Scale alpha that quantizes a source of variance 1 with a nominal signal-to-noise ratio of `snr_db` decibels:
    /// alpha = √(10^(snr/10) · G·V^(2/n)).
    pub fn alpha_for_snr_db(self, snr_db: f64) -> f64 {
        libm::sqrt(libm::pow(10.0, snr_db / 10.0) * self.mse_per_dim())
    }

    /// Nominal signal-to-noise ratio in decibels at scale `alpha`: the inverse of [`LatticeKind::alpha_for_snr_db`].
    pub fn snr_db_for_alpha(self, alpha: f64) -> f64 {
        10.0 * libm::log10(alpha * alpha / self.mse_per_dim())
    }

    /// Number of symbol classes of the stripped lattice.
    pub const fn n_classes(self) -> usize {
        match self {
            LatticeKind::Z => Z::N_CLASSES,
            LatticeKind::A2 => A2::N_CLASSES,
            LatticeKind::D4 => D4::N_CLASSES,
            LatticeKind::E8 => E8::N_CLASSES,
        }
    }

    /// Runs `visitor` with the lattice type of this name: the one place where the enum is matched.
    ///
    /// ```
    /// use gosset_lattice::{BitStrip, LatticeKind, LatticeVisitor};
    ///
    /// struct NearestToZero;
    /// impl LatticeVisitor for NearestToZero {
    ///     type Out = usize;
    ///     fn visit<const N: usize, L: BitStrip<N>>(self) -> usize {
    ///         assert_eq!(L::nearest_point(&[0.1; N]), [0; N]);
    ///         N
    ///     }
    /// }
    /// assert_eq!(LatticeKind::D4.dispatch(NearestToZero), 4);
    /// ```
    #[inline]
    pub fn dispatch<V: LatticeVisitor>(self, visitor: V) -> V::Out {
        match self {
            LatticeKind::Z => visitor.visit::<1, Z>(),
            LatticeKind::A2 => visitor.visit::<2, A2>(),
            LatticeKind::D4 => visitor.visit::<4, D4>(),
            LatticeKind::E8 => visitor.visit::<8, E8>(),
        }
    }
}

impl fmt::Display for LatticeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for kind in LatticeKind::ALL {
            assert_eq!(LatticeKind::from_name(kind.name()), Some(kind));
        }
        assert_eq!(LatticeKind::from_name("E8"), None);
    }

    #[test]
    fn alpha_has_its_published_values() {
        assert!((LatticeKind::E8.alpha_for_snr_db(21.0) - 6.008).abs() < 5e-4);
        assert!((LatticeKind::Z.alpha_for_snr_db(21.0) - 3.239).abs() < 5e-4);
        for kind in LatticeKind::ALL {
            assert!((kind.snr_db_for_alpha(kind.alpha_for_snr_db(17.25)) - 17.25).abs() < 1e-12);
        }
    }

    #[test]
    fn dispatch_reaches_the_lattice_of_that_name() {
        struct Name;
        impl LatticeVisitor for Name {
            type Out = (&'static str, usize);
            fn visit<const N: usize, L: BitStrip<N>>(self) -> Self::Out {
                (L::NAME, N)
            }
        }
        for kind in LatticeKind::ALL {
            assert_eq!(kind.dispatch(Name), (kind.name(), kind.dim()));
        }
    }
}
