//! The one table of baselines by name.

use crate::grid::grids;
use crate::{Baseline, BaselineError, E8p, E8pRtn, Gptq, Higgs, Iq4Nl, Nf4, Rotation, Rtn};

/// Baselines of one name that differ in rate.
#[derive(Debug, Clone, PartialEq)]
pub struct Family {
    /// Name, such as `higgs2`.
    pub name: &'static str,
    /// One line for people.
    pub about: &'static str,
    /// Every R of `name@R`, ascending: bits of codes per weight.
    pub rates: Vec<f64>,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Rtn { group: usize, symmetric: bool },
    Nf4,
    Iq4Nl,
    Higgs { p: usize },
    E8pRtn,
    E8p,
    Gptq { act_order: bool },
    RtnPerRow,
}

/// All baselines of this crate.
///
/// ```
/// let names: Vec<_> = gosset_baselines::families().iter().map(|family| family.name).collect();
/// assert_eq!(names[..3], ["rtn-g32", "rtn-g64", "rtn-g128"]);
/// assert_eq!(names[6..], ["nf4", "iq4_nl", "higgs1", "higgs2", "higgs4", "e8p-rtn", "e8p", "gptq", "gptq-noact", "rtn"]);
/// ```
pub fn families() -> Vec<Family> {
    let whole = || (2..=8).map(f64::from).collect::<Vec<_>>();
    let of_grids = |p| grids(p).map(|grid| grid.payload_bps()).collect::<Vec<_>>();
    let rtn =
        |name, about, group, symmetric| Family { name, about, rates: whole(), kind: Kind::Rtn { group, symmetric } };
    let other = |name, about, rates, kind| Family { name, about, rates, kind };
    vec![
        rtn("rtn-g32", "rounding to nearest, fp16 scale and R-bit zero point per 32 weights", 32, false),
        rtn("rtn-g64", "rounding to nearest, fp16 scale and R-bit zero point per 64 weights", 64, false),
        rtn("rtn-g128", "rounding to nearest, fp16 scale and R-bit zero point per 128 weights", 128, false),
        rtn("rtn-sym-g32", "symmetric rounding to nearest, fp16 scale per 32 weights", 32, true),
        rtn("rtn-sym-g64", "symmetric rounding to nearest, fp16 scale per 64 weights", 64, true),
        rtn("rtn-sym-g128", "symmetric rounding to nearest, fp16 scale per 128 weights", 128, true),
        other("nf4", "NormalFloat levels, fp16 maximum per 64 weights", vec![4.0], Kind::Nf4),
        other("iq4_nl", "IQ4_NL levels, fp16 scale per 32 weights", vec![4.0], Kind::Iq4Nl),
        other("higgs1", "RHT and the best scalar quantizer, one scale per row", of_grids(1), Kind::Higgs { p: 1 }),
        other(
            "higgs2",
            "RHT and a converged Lloyd grid for pairs, one scale per row",
            of_grids(2),
            Kind::Higgs { p: 2 },
        ),
        other(
            "higgs4",
            "RHT and a converged Lloyd grid for fours, one scale per row",
            of_grids(4),
            Kind::Higgs { p: 4 },
        ),
        other("e8p-rtn", "RHT and QuIP#'s padded E8 codebook, one scale per row", vec![2.0], Kind::E8pRtn),
        other("e8p", "QuIP#-style: RHT on both sides, padded E8 codebook, LDLQ, re-tuning", vec![2.0], Kind::E8p),
        other(
            "gptq",
            "error feedback by column in the order of activations, fp16 scale and R-bit zero point per 128 weights",
            vec![2.0, 3.0, 4.0],
            Kind::Gptq { act_order: true },
        ),
        other(
            "gptq-noact",
            "error feedback by column from first to last, fp16 scale and R-bit zero point per 128 weights",
            vec![2.0, 3.0, 4.0],
            Kind::Gptq { act_order: false },
        ),
        other("rtn", "rounding to nearest, fp16 scale and R-bit zero point per row", whole(), Kind::RtnPerRow),
    ]
}

/// The baseline of that name whose codes take `rate` bits per weight; `rotation` is for those that rotate.
///
/// # Errors
/// [`BaselineError::Unknown`], or [`BaselineError::Rate`] with the rates that there are.
///
/// ```
/// use gosset_baselines::{Rotation, named};
/// let error = named("higgs4", 4.0, Rotation::DEFAULT).unwrap_err();
/// assert_eq!(error.to_string(), "higgs4 has no form of 4 bits per weight, expected one of 2, 2.25, 2.5, 2.75, 3");
/// ```
pub fn named(name: &str, rate: f64, rotation: Rotation) -> Result<Box<dyn Baseline>, BaselineError> {
    let families = families();
    let Some(family) = families.iter().find(|family| family.name == name) else {
        let expected = families.iter().map(|family| family.name).collect::<Vec<_>>().join(", ");
        return Err(BaselineError::Unknown { name: name.to_owned(), expected });
    };
    if !family.rates.contains(&rate) {
        let expected = family.rates.iter().map(f64::to_string).collect::<Vec<_>>().join(", ");
        return Err(BaselineError::Rate { name: name.to_owned(), asked: rate, expected });
    }
    Ok(match family.kind {
        Kind::Rtn { group, symmetric } => Box::new(Rtn::new(rate as u32, group, symmetric)?),
        Kind::Nf4 => Box::new(Nf4),
        Kind::Iq4Nl => Box::new(Iq4Nl),
        // The rates of a family of grids are those of its powers of two, so that this is one of them.
        Kind::Higgs { p } => Box::new(Higgs::new(p, 1 << (rate * p as f64).round() as u32, rotation)?),
        Kind::E8pRtn => Box::new(E8pRtn::new(rotation)),
        Kind::E8p => Box::new(E8p::new(rotation)),
        Kind::Gptq { act_order } => Box::new(Gptq::new(rate as u32, act_order)?),
        Kind::RtnPerRow => Box::new(Rtn::per_row(rate as u32)?),
    })
}

/// The baseline written as `name@R`.
///
/// # Errors
/// [`BaselineError::Syntax`] without a readable rate, and those of [`named`].
pub fn parse(text: &str, rotation: Rotation) -> Result<Box<dyn Baseline>, BaselineError> {
    let syntax = || BaselineError::Syntax { text: text.to_owned() };
    let (name, rate) = text.split_once('@').ok_or_else(syntax)?;
    named(name, rate.parse().map_err(|_| syntax())?, rotation)
}

#[cfg(test)]
mod tests {
    use rand::{SeedableRng, rngs::StdRng};
    use rand_distr::{Distribution, StandardNormal};

    use gosset_unisvq::{Hessian, HessianAccumulator};

    use super::*;
    use crate::Encoded;

    fn gaussian(n: usize, seed: u64) -> Vec<f32> {
        let rng = StdRng::seed_from_u64(seed);
        StandardNormal.sample_iter(rng).take(n).collect()
    }

    fn all() -> Vec<Box<dyn Baseline>> {
        let members = families().into_iter().flat_map(|f| f.rates.clone().into_iter().map(move |rate| (f.name, rate)));
        members.map(|(name, rate)| named(name, rate, Rotation::DEFAULT).unwrap()).collect()
    }

    fn mse(a: &[f32], b: &[f32]) -> f64 {
        let error: f64 = a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum();
        error / a.len() as f64
    }

    /// Widths with short last groups, pieces across the ends of rows, a piece that is not full, and one weight alone.
    const SHAPES: [(usize, usize); 5] = [(1, 1), (3, 37), (2, 128), (5, 200), (7, 33)];

    #[test]
    fn stated_bits_are_those_of_the_bytes_for_every_shape() {
        for method in all() {
            for (rows, cols) in SHAPES {
                let encoded = method.encode(rows, cols, &gaussian(rows * cols, 1)).unwrap();
                let label = method.label();
                assert_eq!(encoded.rate.total_bits(), encoded.n_bytes() * 8, "{label} {rows} x {cols}");
                assert_eq!(encoded.rate.n, (rows * cols) as u64);
                let payload = encoded.rate.payload_bps();
                assert!((payload - method.payload_bps()).abs() * (rows * cols) as f64 <= 1.0, "{label}: {payload}");
            }
        }
    }

    #[test]
    fn decoding_needs_the_bytes_alone_and_gives_the_weights_back_roughly() {
        for method in all() {
            for (rows, cols) in SHAPES {
                let weights = gaussian(rows * cols, 2);
                let encoded = method.encode(rows, cols, &weights).unwrap();
                let copy = Encoded {
                    planes: encoded.planes.clone(),
                    ..Encoded { rate: Default::default(), ..encoded.clone() }
                };
                let decoded = named(method.name(), method.payload_bps(), Rotation::DEFAULT)
                    .unwrap()
                    .decode(rows, cols, &copy)
                    .unwrap();
                assert_eq!(decoded.len(), weights.len());
                let allowed = if rows * cols == 1 { 1.0 } else { 0.9 };
                let energy = mse(&weights, &vec![0.0; weights.len()]);
                assert!(mse(&weights, &decoded) <= allowed * energy, "{} {rows} x {cols}", method.label());
                assert_eq!(decoded, method.decode(rows, cols, &encoded).unwrap());
            }
        }
    }

    #[test]
    fn more_bits_mean_less_error() {
        let weights = gaussian(1 << 13, 3);
        for family in families() {
            let errors: Vec<f64> = family
                .rates
                .iter()
                .map(|&rate| {
                    let method = named(family.name, rate, Rotation::DEFAULT).unwrap();
                    mse(&weights, &method.decode(32, 256, &method.encode(32, 256, &weights).unwrap()).unwrap())
                })
                .collect();
            assert!(errors.windows(2).all(|pair| pair[1] < pair[0]), "{}: {errors:?}", family.name);
        }
    }

    /// Squared error on N(0, 1): scalar grids from Max 1960, the others from independent computations. 2^20 values keep what rare
    /// large values do to the mean below half a percent.
    #[test]
    fn known_gaussian_errors_are_reached_within_a_percent() {
        let (rows, cols) = (256, 4096);
        let weights = gaussian(rows * cols, 4);
        let energy = mse(&weights, &vec![0.0; weights.len()]);
        for (label, known) in [
            ("higgs1@2", 0.1175),
            ("higgs1@3", 0.03454),
            ("higgs1@4", 0.009497),
            ("higgs1@5", 0.002499),
            ("higgs2@2", 0.1074),
            ("higgs2@3", 0.0297),
            ("higgs2@4", 0.00773),
            ("higgs4@2", 0.0956),
            ("e8p-rtn@2", 0.0914),
            ("e8p@2", 0.0914),
        ] {
            let method = parse(label, Rotation::DEFAULT).unwrap();
            let decoded = method.decode(rows, cols, &method.encode(rows, cols, &weights).unwrap()).unwrap();
            let found = mse(&weights, &decoded) / energy;
            assert!((found / known - 1.0).abs() < 0.01, "{label}: expected {known}, found {found}");
        }
    }

    #[test]
    fn bad_input_is_an_error_and_damage_never_panics() {
        for method in all() {
            let label = method.label();
            assert!(matches!(method.encode(2, 2, &[1.0; 3]), Err(BaselineError::Shape { .. })), "{label}");
            assert!(matches!(method.encode(0, 2, &[]), Err(BaselineError::Shape { .. })), "{label}");
            let nan = method.encode(1, 2, &[1.0, f32::NAN]);
            assert!(matches!(nan, Err(BaselineError::NotFinite { row: 0, col: 1, .. })), "{label}");
            assert!(method.encode(1, 64, &[3e38; 64]).is_err(), "{label}");
            let zeros = method.encode(1, 64, &[0.0; 64]).unwrap();
            assert_eq!(method.decode(1, 64, &zeros).unwrap(), [0.0; 64], "{label}");
            let encoded = method.encode(3, 40, &gaussian(120, 5)).unwrap();
            assert!(
                method.decode(3, 41, &encoded).is_err() && method.decode(usize::MAX, 2, &encoded).is_err(),
                "{label}"
            );
            for plane in 0..encoded.planes.len() {
                let mut damaged = encoded.clone();
                damaged.planes[plane].bytes.iter_mut().for_each(|byte| *byte = !*byte);
                assert_eq!(method.decode(3, 40, &damaged).unwrap().len(), 120, "{label}");
                damaged.planes[plane].bytes.pop();
                assert!(matches!(method.decode(3, 40, &damaged), Err(BaselineError::PlaneLength { .. })), "{label}");
            }
        }
        assert!(parse("higgs2", Rotation::DEFAULT).is_err() && parse("higgs3@2", Rotation::DEFAULT).is_err());
    }

    /// Entropy of the indices against their nominal bits. A converged grid has the density of N(0, (p + 2) / p), so that fine grids
    /// waste the divergence of N(0, 1) from it: 0.28 bits per index of a pair, 3.5 % of 8 bits.
    #[test]
    fn indices_of_a_lloyd_grid_waste_a_few_percent() {
        let (rows, cols) = (64, 4096);
        let weights = gaussian(rows * cols, 6);
        for (p, n, slack) in [(1, 8, 0.0585), (2, 64, 0.033), (2, 256, 0.0313)] {
            let higgs = Higgs::new(p, n, Rotation::DEFAULT).unwrap();
            let encoded = higgs.encode(rows, cols, &weights).unwrap();
            let entropy = higgs.index_entropy_bps(rows, cols, &encoded).unwrap();
            let found = 1.0 - entropy / higgs.payload_bps();
            assert!((found - slack).abs() < 0.003, "p {p}, n {n}: expected {slack}, found {found}");
        }
    }

    /// Second moments whose eigenvalues fall over two orders of magnitude, each input correlated with its neighbours.
    fn spread_moments(n: usize, seed: u64) -> Hessian {
        let tokens = 4 * n;
        let mut x = gaussian(tokens * n, seed);
        for token in x.chunks_exact_mut(n) {
            (1..n).for_each(|j| token[j] += 0.9 * token[j - 1]);
            token.iter_mut().enumerate().for_each(|(j, v)| *v *= 1.0 + (j % 7) as f32);
        }
        let mut moments = HessianAccumulator::new(n).unwrap();
        moments.add(&x).unwrap();
        moments.finish().unwrap()
    }

    fn calibrated() -> Vec<Box<dyn Baseline>> {
        all().into_iter().filter(|method| method.needs_calibration()).collect()
    }

    fn proxy(
        method: &dyn Baseline,
        (rows, cols): (usize, usize),
        weights: &[f32],
        h: Option<&Hessian>,
        under: &Hessian,
    ) -> f64 {
        let encoded = method.encode_calibrated(rows, cols, weights, h).unwrap();
        let decoded = method.decode(rows, cols, &encoded).unwrap();
        gosset_unisvq::relative_proxy(weights, &decoded, rows, under.as_slice())
    }

    #[test]
    fn calibration_lowers_the_error_of_outputs() {
        let (rows, cols) = (64, 328);
        let (weights, h) = (gaussian(rows * cols, 7), spread_moments(cols, 8));
        let labels: Vec<_> = calibrated().iter().map(|method| method.label()).collect();
        assert_eq!(labels, ["e8p@2", "gptq@2", "gptq@3", "gptq@4", "gptq-noact@2", "gptq-noact@3", "gptq-noact@4"]);
        for method in calibrated() {
            let plain = proxy(&*method, (rows, cols), &weights, None, &h);
            let found = proxy(&*method, (rows, cols), &weights, Some(&h), &h);
            println!("{}: {plain:.5} without, {found:.5} with", method.label());
            assert!(found < 0.5 * plain, "{}: {found} of {plain}", method.label());
        }
    }

    #[test]
    fn uncorrelated_inputs_leave_nothing_to_feed_back() {
        for (rows, cols) in [(16, 256), (5, 37), (1, 1)] {
            let (weights, h) = (gaussian(rows * cols, 7), Hessian::identity(cols).unwrap());
            for method in calibrated() {
                let encoded = method.encode_calibrated(rows, cols, &weights, Some(&h)).unwrap();
                assert_eq!(encoded, method.encode(rows, cols, &weights).unwrap(), "{} {rows} x {cols}", method.label());
            }
        }
        // GPTQ without feedback is rounding in groups of 128, and the order on top.
        let weights = gaussian(16 * 256, 7);
        for bits in [2.0, 3.0, 4.0] {
            let rtn = named("rtn-g128", bits, Rotation::DEFAULT).unwrap().encode(16, 256, &weights).unwrap();
            let noact = named("gptq-noact", bits, Rotation::DEFAULT).unwrap().encode(16, 256, &weights).unwrap();
            assert_eq!(noact, rtn);
            let gptq = named("gptq", bits, Rotation::DEFAULT).unwrap().encode(16, 256, &weights).unwrap();
            assert_eq!(gptq.planes[..3], rtn.planes);
            assert_eq!(gptq.rate.total_bits(), rtn.rate.total_bits() + 256 * 16);
        }
    }

    #[test]
    fn calibrated_planes_say_their_bits_and_decode_alone() {
        for (rows, cols) in SHAPES {
            let (weights, h) = (gaussian(rows * cols, 1), spread_moments(cols, 2));
            for method in calibrated() {
                let encoded = method.encode_calibrated(rows, cols, &weights, Some(&h)).unwrap();
                assert_eq!(encoded.rate.total_bits(), encoded.n_bytes() * 8, "{} {rows} x {cols}", method.label());
                assert_eq!(encoded.rate, method.encode(rows, cols, &weights).unwrap().rate);
                let found = proxy(&*method, (rows, cols), &weights, Some(&h), &h);
                assert!(found < 0.9 || rows * cols == 1, "{} {rows} x {cols}: {found}", method.label());
            }
        }
    }

    #[test]
    fn inputs_without_activations_keep_their_weights_and_odd_moments_are_refused() {
        let (rows, cols) = (32, 64);
        let weights = gaussian(rows * cols, 3);
        let dead = |j: usize| j % 6 == 5;
        let mut data = spread_moments(cols, 4).as_slice().to_vec();
        data.iter_mut().enumerate().filter(|(i, _)| dead(i / cols) || dead(i % cols)).for_each(|(_, v)| *v = 0.0);
        for h in [Hessian::new(cols, data, 256).unwrap(), Hessian::new(cols, vec![0.0; cols * cols], 256).unwrap()] {
            for method in calibrated() {
                let encoded = method.encode_calibrated(rows, cols, &weights, Some(&h)).unwrap();
                let decoded = method.decode(rows, cols, &encoded).unwrap();
                let errors = weights.iter().zip(&decoded).enumerate().filter(|(i, _)| dead(i % cols));
                let (error, n) =
                    errors.fold((0.0, 0.0), |(sum, n), (_, (a, b))| (sum + f64::from(a - b).powi(2), n + 1.0));
                println!("{}: {:.4}", method.label(), error / n);
                assert!(error / n < 0.35, "{}: {}", method.label(), error / n);
                let other = method.encode_calibrated(rows, cols, &weights, Some(&Hessian::identity(cols + 1).unwrap()));
                assert!(matches!(other, Err(BaselineError::Shape { .. })));
            }
        }
    }
}
