//! One search, several instruction sets: the choice is made here, once per call.

mod scalar;
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
mod x86;

use super::LANES;
use super::viterbi::{Forward, forward};

/// Which instructions the search uses. All backends give the same points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Backend {
    /// Plain Rust, the oracle of the others.
    Scalar,
    #[cfg(target_arch = "x86_64")]
    Avx2(x86::Avx2),
}

impl Backend {
    /// The fastest backend of this machine.
    pub(super) fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        if let Some(avx2) = x86::Avx2::detect() {
            return Self::Avx2(avx2);
        }
        Self::Scalar
    }

    pub(super) fn forward<const N: usize>(self, job: &Forward<'_>, decisions: &mut [u8]) -> [u32; LANES] {
        match self {
            Self::Scalar => forward::<_, N>(scalar::Scalar, job, decisions),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(avx2) => avx2.forward::<N>(job, decisions),
        }
    }
}
