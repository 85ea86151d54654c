//! One transform, several instruction sets: the choice is made here, once per row.
//!
//! `tile` is the traversal, written once over the trait `Simd`; `x86` and `aarch64` implement that trait; `scalar` is
//! the oracle and shares no code with them beyond the tiles that are shorter than a register.

#[cfg(target_arch = "aarch64")]
#[allow(unsafe_code)]
mod aarch64;
mod scalar;
#[cfg(any(target_arch = "aarch64", target_arch = "x86_64"))]
mod tile;
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
mod x86;

use crate::plan::TileRun;

/// A computation that [`Backend::vectorize`] compiles for the instructions of a backend.
///
/// ```
/// use gosset_transform::{Backend, Kernel};
///
/// struct Axpy<'a>(f32, &'a [f32], &'a mut [f32]);
///
/// impl Kernel for Axpy<'_> {
///     type Output = ();
///
///     #[inline(always)]
///     fn run(self) {
///         self.2.iter_mut().zip(self.1).for_each(|(y, x)| *y += self.0 * x);
///     }
/// }
///
/// let mut y = [1.0; 3];
/// Backend::detect().vectorize(Axpy(2.0, &[0.0, 1.0, 2.0], &mut y));
/// assert_eq!(y, [1.0, 3.0, 5.0]);
/// ```
pub trait Kernel {
    /// What it gives.
    type Output;

    /// Computes. To be marked `#[inline(always)]`, and so is what it calls: code that is not inlined is compiled for the build's target.
    fn run(self) -> Self::Output;
}

/// Which instructions a transform uses. All backends give the same bits.
///
/// A value is a proof that this machine has the instructions: only [`detect`](Self::detect) hands out vector backends.
///
/// ```
/// use gosset_transform::Backend;
///
/// assert_eq!(Backend::scalar().name(), "scalar");
/// assert!(["scalar", "avx2", "neon"].contains(&Backend::detect().name()));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backend(Level);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    Scalar,
    #[cfg(target_arch = "x86_64")]
    Avx2(x86::Avx2),
    #[cfg(target_arch = "aarch64")]
    Neon(aarch64::Neon),
}

impl Backend {
    /// The portable backend: plain Rust, the oracle of the others.
    #[must_use]
    pub fn scalar() -> Self {
        Self(Level::Scalar)
    }

    /// The fastest backend of this machine. The answer is cached by the standard library; asking again is one load.
    ///
    /// Without the `std` feature nothing can be detected, and it is what the build's own target features allow.
    #[must_use]
    pub fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        if let Some(avx2) = x86::Avx2::detect() {
            return Self(Level::Avx2(avx2));
        }
        #[cfg(target_arch = "aarch64")]
        if let Some(neon) = aarch64::Neon::detect() {
            return Self(Level::Neon(neon));
        }
        Self::scalar()
    }

    /// `scalar`, `avx2` or `neon`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self.0 {
            Level::Scalar => "scalar",
            #[cfg(target_arch = "x86_64")]
            Level::Avx2(_) => "avx2",
            #[cfg(target_arch = "aarch64")]
            Level::Neon(_) => "neon",
        }
    }
}

impl Backend {
    /// Runs plain loops as code for the instructions of this backend: for crates that have loops the compiler can turn into vector code, and
    /// no unsafe code. Multiplications and additions are not contracted, so the bits are those of the same loops without vectors.
    pub fn vectorize<K: Kernel>(self, kernel: K) -> K::Output {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Level::Avx2(avx2) => avx2.vectorize(kernel),
            // NEON is part of what the build targets.
            _ => kernel.run(),
        }
    }
}

/// The unnormalised transform of `x`, whose length is a power of two.
pub(crate) fn fwht(backend: Backend, x: &mut [f32]) {
    match backend.0 {
        Level::Scalar => crate::fwht::fwht_scalar(x),
        #[cfg(target_arch = "x86_64")]
        Level::Avx2(avx2) => avx2.fwht(x),
        #[cfg(target_arch = "aarch64")]
        Level::Neon(neon) => neon.fwht(x),
    }
}

/// Signs, butterflies, scale on each tile of `row`. The runs cover the row, `words` hold a sign bit for each column.
pub(crate) fn rht_forward(backend: Backend, runs: &[TileRun], words: &[u32], row: &mut [f32]) {
    match backend.0 {
        Level::Scalar => scalar::rht_forward(runs, words, row),
        #[cfg(target_arch = "x86_64")]
        Level::Avx2(avx2) => avx2.rht_forward(runs, words, row),
        #[cfg(target_arch = "aarch64")]
        Level::Neon(neon) => neon.rht_forward(runs, words, row),
    }
}

/// Butterflies, scale, signs on each tile of `row`; arguments as for [`rht_forward`].
pub(crate) fn rht_inverse(backend: Backend, runs: &[TileRun], words: &[u32], row: &mut [f32]) {
    match backend.0 {
        Level::Scalar => scalar::rht_inverse(runs, words, row),
        #[cfg(target_arch = "x86_64")]
        Level::Avx2(avx2) => avx2.rht_inverse(runs, words, row),
        #[cfg(target_arch = "aarch64")]
        Level::Neon(neon) => neon.rht_inverse(runs, words, row),
    }
}
