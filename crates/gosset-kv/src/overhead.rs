//! What pages take besides the codes of coordinates, as it is set aside from a rate.

use std::f64::consts::{E, LOG2_E, TAU};

use crate::KvError;
use crate::spec::{Coder, NormKind, RoleSpec};

/// What vectors of different norms in one page under one set of tables cost, in bits per scalar: measured at 64 and 128 elements.
const MIXTURE_BITS: f64 = 0.0045;
/// Starting states of the four lanes, and the last byte in part.
const ANS_END_BITS: f64 = 40.0 + 4.0;
/// Head of a page with norms under ANS.
const ANS_HEAD_BITS: f64 = 24.0;
/// Head of a page under Rice codes, and the last byte in part.
const RICE_PAGE_BITS: f64 = 32.0 + 4.0;
/// How much larger than its norm over the stored norm a vector may be: 2^(1/8) for quarter octaves, rounded up.
pub(crate) const NORM_MARGIN: f64 = 1.1;

/// Bits per scalar that are left for coordinates of `d` elements under norms, with pages of `page` vectors.
///
/// # Errors
///
/// [`KvError::Spec`] unless they lie in `range`.
pub(crate) fn with_norms(spec: &RoleSpec, d: usize, page: usize, range: (f64, f64)) -> Result<f64, KvError> {
    let (d, page) = (d as f64, page as f64);
    let norm_bits = match spec.norm {
        NormKind::Coded if spec.coder == Coder::Rice => 2.0,
        NormKind::Coded => coded_norm_bits(d),
        NormKind::Log8 => 8.0,
        NormKind::F16 => 16.0,
    };
    let page_bits = if spec.coder == Coder::Rice { RICE_PAGE_BITS } else { ANS_HEAD_BITS + ANS_END_BITS };
    let overhead = norm_bits / d + page_bits / (page * d) + MIXTURE_BITS;
    let (bits, (least, most)) = (spec.rate - overhead, range);
    if !(least..=most).contains(&bits) {
        let (least, most) = (least + overhead, most + overhead);
        let reason =
            format!("norms and page ends take {overhead:.3} bits per scalar: expected {least:.2} to {most:.2}");
        return Err(KvError::Spec { spec: spec.code_and_rate(), reason });
    }
    Ok(bits)
}

/// Bits of the norm of `d` Gaussian values in quarter octaves: their spread is about 4·log2(e)/√(2d) of them, and rounding adds 1/12 to
/// its square.
fn coded_norm_bits(d: f64) -> f64 {
    let spread = 4.0 * LOG2_E / (2.0 * d).sqrt();
    0.5 * libm::log2(TAU * E * (spread * spread + 1.0 / 12.0))
}

/// Bits per scalar that pages in the frame `probe` take besides coordinates.
pub(crate) fn probe_page_bits(d: usize, page: usize) -> f64 {
    let page_bits = 8.0 + (8 * d.div_ceil(16)) as f64 + ANS_END_BITS;
    page_bits / (page * d) as f64
}
