//! QuIP#'s padded E8 codebook with 2^16 codewords.
//!
//! Take the vectors of Z^8 + 1/2 whose coordinates have an even sum (a coset of D8). Their magnitudes with squared norm up to 10 are
//! 227 vectors; 29 of norm 12 make them 256: 8 bits. Seven signs are free, the eighth follows from the parity of the sum: 7 bits. One
//! more bit adds 1/4 or -1/4 to every coordinate, which makes the whole a subset of E8 + 1/4. Of the 56 magnitudes of norm 12 with
//! five coordinates 3/2 the first 29 in lexicographic order are taken; which ones is immaterial for a distribution without
//! preferred axes.
//!
//! Source: Tseng et al., *QuIP#*, arXiv 2402.04396, section 4.2 (the description; no code).

/// Values per codeword.
pub(super) const P: usize = 8;

/// Factor from values of unit RMS to the codebook; it has the least squared error on N(0, 1), as measured on seeded values
/// (see the test).
pub(super) const ALPHA: f32 = 1.03;

/// Magnitude vectors of squared norm 12 that fill the 227 of norm up to 10 to a table of 256.
const PADDING: usize = 29;

/// The magnitudes and the way back from them to their number.
///
/// A code is `magnitude * 256 + signs * 2 + shift`: bit i of `signs` is set if coordinate i < 7 is negative, `shift` is 1 for +1/4.
#[derive(Debug, Clone)]
pub(super) struct Codebook {
    /// Twice the magnitudes: 1, 3 or 5.
    magnitudes: Vec<[u8; P]>,
    /// Number of the magnitude whose coordinate i is digit i in base 3 (0, 1, 2 for 1/2, 3/2, 5/2).
    number: Vec<u16>,
    /// The magnitudes of squared norm 12: the coordinates that are 1/2, and the number.
    padding: Vec<([u8; 3], u16)>,
}

/// Coordinates with their magnitudes in descending order.
struct Sorted {
    magnitude: [f32; P],
    axis: [u8; P],
}

impl Codebook {
    pub(super) fn new() -> Self {
        let digits = |key: usize| -> [u8; P] { std::array::from_fn(|i| (key / 3usize.pow(i as u32) % 3) as u8) };
        // Four times the squared norm: 1 + 8 for 3/2, 1 + 24 for 5/2.
        let norm = |m: &[u8; P]| m.iter().map(|&v| u32::from(v) * u32::from(v)).sum::<u32>();
        let all = (0..3usize.pow(8)).map(|key| (key, digits(key).map(|d| 2 * d + 1)));
        let mut magnitudes: Vec<(usize, [u8; P])> = all.clone().filter(|(_, m)| norm(m) <= 40).collect();
        let mut ring: Vec<_> = all.filter(|(_, m)| norm(m) == 48 && !m.contains(&5)).collect();
        ring.sort_by_key(|(_, m)| *m);
        magnitudes.extend(ring.into_iter().take(PADDING));
        let mut number = vec![u16::MAX; 3usize.pow(8)];
        let mut padding = Vec::new();
        for (i, (key, m)) in magnitudes.iter().enumerate() {
            number[*key] = i as u16;
            if norm(m) == 48 {
                let mut ones = (0..P as u8).filter(|&axis| m[usize::from(axis)] == 1);
                padding.push((std::array::from_fn(|_| ones.next().unwrap_or(0)), i as u16));
            }
        }
        Codebook { magnitudes: magnitudes.into_iter().map(|(_, m)| m).collect(), number, padding }
    }

    /// The codeword of a code.
    pub(super) fn point(&self, code: u16) -> [f32; P] {
        let magnitude = &self.magnitudes[usize::from(code >> 8)];
        let mut negative = (code >> 1) & 0x7f;
        let shift = if code & 1 == 1 { 0.25 } else { -0.25 };
        // The sum of the signed vector is even exactly if the number of negative coordinates has the parity of the number of 3/2.
        let parity = magnitude.iter().filter(|&&m| m == 3).count() as u32;
        if (negative.count_ones() + parity) % 2 == 1 {
            negative |= 0x80;
        }
        std::array::from_fn(|i| {
            let half = f32::from(magnitude[i]) / 2.0;
            shift + if negative >> i & 1 == 1 { -half } else { half }
        })
    }

    /// Code of the codeword nearest to `x`, and its squared distance.
    pub(super) fn nearest(&self, x: &[f32; P]) -> (u16, f32) {
        let down = self.nearest_half_integer(&x.map(|v| v + 0.25));
        let up = self.nearest_half_integer(&x.map(|v| v - 0.25));
        if up.1 < down.1 { (up.0 | 1, up.1) } else { down }
    }

    /// Code, with shift 0, of the nearest vector before the shift, and its squared distance.
    ///
    /// Of magnitudes that are all permutations of one another the best puts its large coordinates where `y` has them, and if the
    /// parity of the signs of `y` is wrong, flips the sign where `y` is smallest, which has magnitude 1/2 then: no other change
    /// costs less. That leaves one candidate per class; the 29 of norm 12 are no whole class and are tried one by one.
    fn nearest_half_integer(&self, y: &[f32; P]) -> (u16, f32) {
        let sorted = sort(y);
        let a = &sorted.magnitude;
        let negative = (0..P).fold(0u16, |bits, i| bits | u16::from(y[i] < 0.0) << i);
        let odd = negative.count_ones() % 2 == 1;
        let half_sum = 0.5 * a.iter().sum::<f32>();
        let energy = y.iter().fold(0.0, |sum, v| sum + v * v);
        let mut best = Candidate { error: f32::INFINITY, magnitude: 0, flip: None };
        // Classes: `fives` coordinates 5/2, then `threes` coordinates 3/2, the rest 1/2.
        for (fives, threes) in [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (1, 0), (1, 1)] {
            let large: f32 =
                a[..fives].iter().map(|v| 2.0 * v).sum::<f32>() + a[fives..fives + threes].iter().sum::<f32>();
            let flip = (odd != (threes % 2 == 1)).then_some(P - 1);
            let product = half_sum + large - flip.map_or(0.0, |i| a[i]);
            let error = (2 + 2 * threes + 6 * fives) as f32 - 2.0 * product;
            if error < best.error {
                let key = (0..fives + threes).map(|i| {
                    let digit = if i < fives { 2 } else { 1 };
                    digit * 3usize.pow(u32::from(sorted.axis[i]))
                });
                best =
                    Candidate { error, magnitude: self.number[key.sum::<usize>()], flip: flip.map(|i| sorted.axis[i]) };
            }
        }
        self.try_padding(y, half_sum, odd, &sorted, &mut best);
        let mut signs = negative;
        if let Some(axis) = best.flip {
            signs ^= 1 << axis;
        }
        ((best.magnitude << 8) | ((signs & 0x7f) << 1), energy + best.error)
    }

    /// Offers the magnitudes of norm 12 to `best`.
    fn try_padding(&self, y: &[f32; P], half_sum: f32, odd: bool, sorted: &Sorted, best: &mut Candidate) {
        let a = &sorted.magnitude;
        // Five large coordinates are an odd number: the signs of `y` are right if they are odd.
        let bound = 12.0 - 2.0 * (half_sum + a[..5].iter().sum::<f32>() - if odd { 0.0 } else { a[P - 1] });
        if bound >= best.error {
            return;
        }
        for (ones, number) in &self.padding {
            let small = ones.map(|axis| y[usize::from(axis)].abs());
            let mut product = 3.0 * half_sum - (small[0] + small[1] + small[2]);
            let mut flip = None;
            if !odd {
                let mut cost = f32::INFINITY;
                for (axis, v) in y.iter().enumerate() {
                    let this = if ones.contains(&(axis as u8)) { v.abs() } else { 3.0 * v.abs() };
                    if this < cost {
                        (cost, flip) = (this, Some(axis as u8));
                    }
                }
                product -= cost;
            }
            let error = 12.0 - 2.0 * product;
            if error < best.error {
                *best = Candidate { error, magnitude: *number, flip };
            }
        }
    }
}

/// A vector under consideration.
struct Candidate {
    /// Squared distance less the squared norm of the point.
    error: f32,
    magnitude: u16,
    /// The coordinate whose sign differs from that of the point.
    flip: Option<u8>,
}

/// Sorts by insertion: eight values, mostly moved a little.
fn sort(y: &[f32; P]) -> Sorted {
    let mut out = Sorted { magnitude: y.map(f32::abs), axis: std::array::from_fn(|i| i as u8) };
    for i in 1..P {
        let mut j = i;
        while j > 0 && out.magnitude[j - 1] < out.magnitude[j] {
            out.magnitude.swap(j - 1, j);
            out.axis.swap(j - 1, j);
            j -= 1;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use gosset_lattice::{E8, Lattice};

    use super::*;
    use crate::lloyd::random_normals;
    use crate::nearest::squared_distance;

    #[test]
    fn the_codebook_is_a_part_of_shifted_e8_with_65536_points() {
        let book = Codebook::new();
        assert_eq!((book.magnitudes.len(), book.padding.len()), (256, PADDING));
        let mut seen = HashSet::new();
        for code in 0..=u16::MAX {
            let point = book.point(code);
            // E8 shifted by a quarter along all coordinates, embedded as 2 E8: all coordinates even or all odd, sum 0 mod 4.
            let embedded = point.map(|v| ((v - 0.25) * 2.0) as i32);
            assert!(E8::contains(&embedded), "{code:04x}: {point:?}");
            assert!(seen.insert(point.map(|v| (v * 4.0) as i8)), "{code:04x}");
        }
    }

    #[test]
    fn the_nearest_codeword_is_that_of_an_exhaustive_search() {
        let book = Codebook::new();
        let points: Vec<[f32; P]> = (0..=u16::MAX).map(|code| book.point(code)).collect();
        for (i, x) in random_normals::<P>(60, 11).into_iter().enumerate() {
            // From the middle of the codebook to far outside of it.
            let x = x.map(|v| v * [0.3, 1.03, 2.0, 8.0][i % 4]);
            let (code, distance) = book.nearest(&x);
            let best = points.iter().map(|p| squared_distance(&x, p)).fold(f32::INFINITY, f32::min);
            let found = squared_distance(&x, &points[usize::from(code)]);
            assert!(found <= best * (1.0 + 1e-5), "{x:?}: found {found}, best {best}");
            assert!((found - distance).abs() <= 1e-4 * (1.0 + x.iter().map(|v| v * v).sum::<f32>()));
        }
        for code in (0..=u16::MAX).step_by(7) {
            assert_eq!(book.nearest(&points[usize::from(code)]).0, code);
        }
    }

    /// Squared error per value on N(0, 1) with factor `alpha`.
    fn mse(book: &Codebook, points: &[[f32; P]], alpha: f32) -> f64 {
        let error: f64 = points.iter().map(|x| f64::from(book.nearest(&x.map(|v| v * alpha)).1)).sum();
        error / f64::from(alpha * alpha) / (points.len() * P) as f64
    }

    #[test]
    fn alpha_is_the_best_factor_and_reaches_the_published_error() {
        let book = Codebook::new();
        let points = random_normals::<P>(1 << 15, 12);
        let at = mse(&book, &points, ALPHA);
        assert!((at / 0.0914 - 1.0).abs() < 0.01, "{at}");
        for alpha in [ALPHA * 0.97, ALPHA * 1.03] {
            assert!(mse(&book, &points, alpha) > at, "{alpha}");
        }
    }
}
