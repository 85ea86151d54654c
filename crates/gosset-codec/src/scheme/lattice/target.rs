//! Alpha for an asked payload.

use gosset_lattice::LatticeKind;

use super::curve::curve_of;
use super::encode::MAX_SCALED;
use super::{SymbolStats, count_symbols};
use crate::scheme::Units;
use crate::scheme::curve::Curve;
use crate::{CodeKind, MAX_ALPHA, MIN_ALPHA};

/// A payload this near to the asked one is accepted, in bits per weight: half of what is promised.
const TOLERANCE_BPS: f64 = 0.004;
/// The same for the sample, whose error adds to that of the whole.
const SAMPLE_TOLERANCE_BPS: f64 = 0.000_5;
/// Values that a sample has at least.
const MIN_SAMPLE: usize = 1 << 17;
/// A sample has at least this fraction of the values.
const MIN_SAMPLE_FRACTION: usize = 16;
/// Corrections of the sample's rate by that of the whole before the whole is searched itself.
const MAX_CORRECTIONS: usize = 4;
/// Steps of a search.
const MAX_STEPS: usize = 60;
/// A bracket of alphas relatively narrower than this is not searched further: the rate jumps inside it.
const MIN_BRACKET: f32 = 1e-5;

/// Alpha at which `units` take `asked` bits per value, those already spent included, and the statistics of all symbols
/// at that alpha.
///
/// First guess: the stored curve of Gaussian data. Then a search on a sample of the streams; the whole is counted at
/// what it finds, and the difference between the sample's rate and that of the whole corrects what the sample is asked
/// for.
pub(super) fn find_alpha(lattice: LatticeKind, code: CodeKind, asked: f64, units: &Units<'_>) -> (f32, SymbolStats) {
    let n = units.values.len();
    // Exactly stored rows may take half of the budget; beyond that the others are not made worse for them.
    let bps = (asked - units.spent_bits as f64 / n as f64).max(0.5 * asked);
    let curve = curve_of(lattice, code);
    let guess = curve.at_bps(bps).alpha as f32;
    let whole = Counter { lattice, code, units, stride: 1 };
    let limit = highest_alpha(units.peak);
    if units.peak == 0.0 {
        return (guess, whole.stats(guess));
    }
    let stride = (n / (n / MIN_SAMPLE_FRACTION).max(MIN_SAMPLE)).max(1);
    let mut best = None;
    let mut start = guess.min(limit);
    if stride > 1 {
        let sample = Counter { lattice, code, units, stride };
        let mut asked_of_sample = bps;
        for _ in 0..MAX_CORRECTIONS {
            let (alpha, _, sample_bps) = search(&sample, &curve, asked_of_sample, start, limit, SAMPLE_TOLERANCE_BPS);
            let stats = whole.stats(alpha);
            let found = whole.bps(&stats);
            if (found - bps).abs() <= TOLERANCE_BPS {
                return (alpha, stats);
            }
            keep_nearer(&mut best, bps, (alpha, stats, found));
            start = alpha;
            if (sample_bps - asked_of_sample).abs() > TOLERANCE_BPS {
                // Values on few levels, whose rate jumps: the whole may have finer steps.
                break;
            }
            asked_of_sample = sample_bps + (bps - found);
        }
    }
    keep_nearer(&mut best, bps, search(&whole, &curve, bps, start, limit, TOLERANCE_BPS));
    let (alpha, stats, _) = best.expect("a result was just kept");
    (alpha, stats)
}

type Found = (f32, SymbolStats, f64);

fn keep_nearer(best: &mut Option<Found>, bps: f64, new: Found) {
    if best.as_ref().is_none_or(|best| (new.2 - bps).abs() < (best.2 - bps).abs()) {
        *best = Some(new);
    }
}

/// Largest alpha at which a value of magnitude `peak` stays in the range of the lattice.
fn highest_alpha(peak: f32) -> f32 {
    let limit = f64::from(MAX_SCALED) / f64::from(peak) * (1.0 - 1e-6);
    limit.clamp(MIN_ALPHA, MAX_ALPHA) as f32
}

/// Counts bits of some of the streams.
struct Counter<'a> {
    lattice: LatticeKind,
    code: CodeKind,
    units: &'a Units<'a>,
    stride: usize,
}

impl Counter<'_> {
    fn stats(&self, alpha: f32) -> SymbolStats {
        count_symbols(self.lattice, self.code, self.units.values, alpha, self.stride)
    }

    /// Bits per symbol. The padding of the last block counts as symbols, which is next to nothing in a matrix of useful
    /// size and keeps those of a few values from having to pay for it.
    fn bps(&self, stats: &SymbolStats) -> f64 {
        stats.bits() as f64 / stats.n() as f64
    }
}

/// The alpha whose rate is nearest to `bps` among those tried: within `tolerance` if the data allow.
///
/// Steps along the Gaussian curve, whose shape real data share, inside a bracket; where that does not help, the bracket
/// is halved.
fn search(counter: &Counter<'_>, curve: &Curve, bps: f64, start: f32, limit: f32, tolerance: f64) -> Found {
    let (mut low, mut high) = (MIN_ALPHA as f32, limit);
    let mut alpha = start.clamp(low, high);
    let mut best = None;
    let mut previous_error = f64::INFINITY;
    for _ in 0..MAX_STEPS {
        let stats = counter.stats(alpha);
        let found = counter.bps(&stats);
        let error = (found - bps).abs();
        keep_nearer(&mut best, bps, (alpha, stats, found));
        if error <= tolerance {
            break;
        }
        if found < bps {
            low = alpha;
        } else {
            high = alpha;
        }
        // Where the curve would be as far from the found rate as the asked one is, as a ratio of alphas.
        let on_curve = f64::from(alpha) * (curve.at_bps(bps).alpha / curve.at_bps(found).alpha);
        let inside = on_curve > f64::from(low) && on_curve < f64::from(high);
        let next = if inside && error < 0.5 * previous_error {
            on_curve as f32
        } else if high == limit {
            (low * 2.0).min(limit)
        } else {
            low + 0.5 * (high - low)
        };
        if next == alpha || high - low <= MIN_BRACKET * high {
            break;
        }
        (alpha, previous_error) = (next, error);
    }
    best.expect("at least one alpha was tried")
}
