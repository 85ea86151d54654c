//! Laws of all baselines of keys and values, and their published figures.

use std::sync::Arc;

use gosset_kv::{KvCodec, KvError, KvShape, Place, Role};

use super::fixed::{Fixed, FixedRate};
use super::levels::coordinate;
use super::octopus::{Octopus, Split};
use super::sketch::QjlKeys;
use super::turboquant::{TurboQuant, TurboQuantProduct};
use super::{kv_baseline, kv_families};
use crate::lloyd::random_normals;

const KEY: Place = Place { layer: 3, role: Role::Key, head: 1 };
const VALUE: Place = Place { layer: 3, role: Role::Value, head: 1 };

fn codecs(text: &str, head_dim: usize, seed: u64) -> (Arc<dyn KvCodec>, Arc<dyn KvCodec>) {
    kv_baseline(text, KvShape { layers: 4, kv_heads: 2, head_dim }, seed).unwrap().unwrap()
}

/// Every name with its lowest, its highest and a middle rate.
fn names() -> Vec<String> {
    let mut names = Vec::new();
    for family in kv_families() {
        if family.rates.is_empty() {
            names.push(family.name.to_owned());
        }
        let n = family.rates.len();
        let some = [0, 1, n / 2, n.wrapping_sub(1)].map(|i| family.rates.get(i));
        let mut some: Vec<f64> = some.into_iter().flatten().copied().collect();
        some.dedup();
        names.extend(some.iter().map(|rate| format!("{}@{rate}", family.name)));
    }
    names
}

fn gaussians(n: usize, d: usize, seed: u64) -> Vec<f32> {
    random_normals::<2>(n * d / 2, seed).into_flattened()
}

/// Vectors as attention sees them, out of the stored frame: n of them through rows.
fn through(codec: &dyn KvCodec, place: Place, x: &[f32]) -> Vec<f32> {
    let n = x.len() / codec.head_dim();
    let mut rows = vec![0; n * codec.row_bytes()];
    codec.quantize(place, 0, x, &mut rows).unwrap();
    let mut out = vec![0.0; x.len()];
    codec.dequantize(place, 0, &rows, &mut out).unwrap();
    // Rotations are orthogonal, so this leaves the frame of keys too.
    out.chunks_exact_mut(codec.head_dim()).for_each(|v| codec.value_from_frame(place, v));
    out
}

/// Mean squared error per element of N(0, 1).
fn gaussian_mse(codec: &dyn KvCodec, place: Place, n: usize) -> f64 {
    let x = gaussians(n, codec.head_dim(), 11);
    let y = through(codec, place, &x);
    x.iter().zip(&y).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>() / x.len() as f64
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

/// The figures of the OCTOPUS paper at d = 128, each within 3 %.
#[test]
fn published_errors_are_reproduced() {
    for (name, published) in
        [("octopus@2", 0.0897), ("octopus@4", 0.0071), ("turboquant@2", 0.1161), ("turboquant@4", 0.0094)]
    {
        let (keys, values) = codecs(name, 128, 0);
        for (codec, place) in [(keys, KEY), (values, VALUE)] {
            let found = gaussian_mse(&*codec, place, 4096);
            assert!((found / published - 1.0).abs() < 0.03, "{name}: {found:.5}, published {published}");
        }
    }
}

/// `cargo test -p gosset-baselines table_of_errors -- --nocapture` prints what docs quote.
#[test]
fn table_of_errors() {
    println!("| baseline | keys: bits and error, d = 64 | d = 128 | values: bits and error, d = 64 | d = 128 |");
    println!("|---|---|---|---|---|");
    let bits = [2.0, 3.0, 4.0];
    for family in kv_families() {
        let texts: Vec<String> = match family.rates {
            [] => vec![family.name.to_owned()],
            rates => rates.iter().filter(|r| bits.contains(r)).map(|r| format!("{}@{r}", family.name)).collect(),
        };
        for text in texts {
            let mut cells = [const { String::new() }; 4];
            for (i, d) in [64, 128].into_iter().enumerate() {
                let (keys, values) = codecs(&text, d, 0);
                for (j, (codec, place)) in [(keys, KEY), (values, VALUE)].into_iter().enumerate() {
                    let error = gaussian_mse(&*codec, place, 2048);
                    assert!(error.is_finite() && error > 0.0);
                    cells[2 * j + i] = format!("{:.3} b, {error:.5}", codec.expected_bps());
                }
            }
            println!("| {text} | {} |", cells.join(" | "));
        }
    }
}

#[test]
fn pages_give_back_rows_bit_for_bit_and_hold_the_promised_bits() {
    for text in names() {
        for d in [8, 34, 64, 80, 96, 112, 128] {
            let (keys, values) = codecs(&text, d, 1);
            for (codec, place) in [(keys, KEY), (values, VALUE)] {
                let n = 3 * codec.block();
                let x = gaussians(n, d, 5);
                let mut rows = vec![0xaa; n * codec.row_bytes()];
                codec.quantize(place, 7, &x, &mut rows).unwrap();
                let mut page = vec![9];
                let bits = codec.pack(place, &rows, &mut page).unwrap();
                let page = &page[1..];
                assert_eq!(bits.total(), 8 * page.len() as u64, "{text} {d}");
                let promised = codec.expected_bps() * (n * d) as f64;
                assert!((bits.total() as f64 - promised - bits.overhead as f64).abs() < 1e-6, "{text} {d}");
                assert!(bits.overhead < 8);

                let mut back = vec![0x55; rows.len()];
                codec.unpack(place, page, &mut back).unwrap();
                assert_eq!(back, rows, "{text} {d}");
                let (mut from_rows, mut from_page) = (vec![0.0; n * d], vec![1.0; n * d]);
                codec.dequantize(place, 7, &rows, &mut from_rows).unwrap();
                codec.decode(place, 7, page, &mut Vec::new(), &mut from_page).unwrap();
                assert_eq!(from_rows, from_page, "{text} {d}");
            }
        }
    }
}

#[test]
fn rows_do_not_depend_on_how_vectors_arrive() {
    for text in names() {
        let (keys, values) = codecs(&text, 64, 1);
        for (codec, place) in [(keys, KEY), (values, VALUE)] {
            let m = codec.block();
            let x = gaussians(3 * m, 64, 6);
            let mut rows = vec![0; 3 * m * codec.row_bytes()];
            codec.quantize(place, 0, &x, &mut rows).unwrap();
            for i in 0..3 {
                let mut own = vec![0; m * codec.row_bytes()];
                codec.quantize(place, (i * m) as u64, &x[i * m * 64..][..m * 64], &mut own).unwrap();
                assert_eq!(own, rows[i * m * codec.row_bytes()..][..own.len()], "{text}");
            }
        }
    }
}

/// Bytes of a page of 64 vectors at widths 64 and 128, by hand.
#[test]
fn pages_of_64_have_the_expected_bytes() {
    let bytes = |codec: &dyn KvCodec, place: Place| {
        let mut page = Vec::new();
        codec.pack(place, &vec![0; 64 * codec.row_bytes()], &mut page).unwrap();
        page.len()
    };
    for (text, d, keys, values) in [
        ("turboquant@3", 64, 64 * (24 + 2), 64 * (24 + 2)),
        ("turboquant@3", 128, 64 * (48 + 2), 64 * (48 + 2)),
        ("turboquant-prod@3", 64, 64 * (24 + 4), 64 * (24 + 2)),
        // 21 triplets of 7 bits and 2 bits; 42 of 13 bits and 2 of 4.
        ("octopus@2", 64, 64 * 2 + 8 * (21 * 7 + 2), 64 * 2 + 8 * (21 * 7 + 2)),
        ("octopus@4", 128, 64 * 2 + 8 * (42 * 13 + 8), 64 * 2 + 8 * (42 * 13 + 8)),
        ("qjl@2", 64, 64 * (16 + 2), 64 * (16 + 8)),
        ("qjl@0.5", 128, 64 * (8 + 2), 64 * (32 + 16)),
        ("kivi@2", 64, 64 * 24, 64 * 24),
        ("kivi@4", 128, 64 * 80, 64 * 80),
        ("q8_0", 64, 64 * 68, 64 * 68),
        ("q4_0", 128, 64 * 72, 64 * 72),
        // Groups of 32 and 2 channels.
        ("q8_0", 34, 64 * 38, 64 * 38),
    ] {
        let (k, v) = codecs(text, d, 0);
        assert_eq!((bytes(&*k, KEY), bytes(&*v, VALUE)), (keys, values), "{text} {d}");
    }
}

#[test]
fn products_survive_the_stored_frame() {
    for text in names() {
        let (keys, _) = codecs(&text, 96, 2);
        let m = keys.block();
        let x = gaussians(m, 96, 8);
        let mut rows = vec![0; m * keys.row_bytes()];
        keys.quantize(KEY, 0, &x, &mut rows).unwrap();
        let mut z = vec![0.0; m * 96];
        keys.dequantize(KEY, 0, &rows, &mut z).unwrap();
        let q = gaussians(1, 96, 9);
        let mut framed = q.clone();
        keys.query_to_frame(KEY, &mut framed);
        let y = through(&*keys, KEY, &x);
        for (z, y) in z.chunks_exact(96).zip(y.chunks_exact(96)) {
            assert!((dot(&framed, z) - dot(&q, y)).abs() < 1e-3, "{text}");
        }
        keys.keys_from_frame(KEY, &mut z);
        assert_eq!(z, y, "{text}");
    }
}

/// Mean of ⟨q, x̂⟩ over seeds minus ⟨q, x⟩, in standard errors, at width 16.
fn bias(seeds: u64, codec: impl Fn(u64) -> Box<dyn KvCodec>) -> f64 {
    // A norm that fp16 holds exactly, 8; the norm of the error is rounded up as often as down.
    let x: Vec<f32> = (0..16).map(|i| if i % 3 == 0 { 2.0 } else { -2.0 }).collect();
    let q: Vec<f32> = x.iter().zip(gaussians(1, 16, 3)).map(|(x, g)| x + g).collect();
    let expected = dot(&q, &x);
    let (mut sum, mut squares) = (0.0, 0.0);
    for seed in 0..seeds {
        let error = dot(&q, &through(&*codec(seed), KEY, &x)) - expected;
        sum += error;
        squares += error * error;
    }
    let n = seeds as f64;
    let (mean, square) = (sum / n, squares / n);
    mean / ((square - mean * mean) / n).sqrt()
}

/// The bound of 4 standard errors fails by chance once in 16 000 sets of seeds; these seeds are fixed.
#[test]
fn sketches_are_unbiased_over_seeds_and_plain_levels_are_not() {
    const SEEDS: u64 = 20_000;
    let turboquant = |bits, seed| TurboQuant::with_levels(16, bits, coordinate(bits, 16), seed, 0);
    let levels: Vec<_> = (0..3).map(|bits| coordinate(bits, 16)).collect();
    for bits in 1..=3 {
        let found = bias(SEEDS, |seed| {
            let first = TurboQuant::with_levels(16, bits - 1, levels[bits as usize - 1].clone(), seed, 0);
            Box::new(Fixed(TurboQuantProduct::over(first, seed, 0)))
        });
        assert!(found.abs() < 4.0, "turboquant-prod@{bits}: {found} standard errors");
    }
    for rows in [16, 32] {
        let found = bias(SEEDS, |seed| Box::new(Fixed(QjlKeys::new(16, rows, seed, 0))));
        assert!(found.abs() < 4.0, "qjl with {rows} rows: {found} standard errors");
    }
    let found = bias(500, |seed| Box::new(Fixed(turboquant(2, seed))));
    assert!(found < -10.0, "turboquant@2: {found} standard errors");
}

/// Of all ways to spend the 3b + 1 bits of a triplet (and of those that leave a bit unused), the paper's has the least error.
#[test]
fn the_split_of_bits_of_octopus_is_the_best_one() {
    for d in [64, 128] {
        for bits in 1..=4 {
            let best = Split::of(bits);
            let error = |split: Split| {
                let codec = Fixed(Octopus::with_split(String::new(), d, split, false, 0, 0));
                gaussian_mse(&codec, KEY, 512)
            };
            let least = error(best);
            for direction in 1..=(3 * bits).div_ceil(2) {
                let norm = 3 * bits + 1 - 2 * direction;
                let split = Split { direction, norm, ..best };
                assert!(split == best || error(split) > least, "{d} {bits}: {split:?}");
            }
        }
    }
}

#[test]
fn rounding_together_is_better_at_the_same_bits() {
    for bits in 1..=5 {
        let (plain, _) = codecs(&format!("octopus@{bits}"), 128, 0);
        let (joint, _) = codecs(&format!("octopus-joint@{bits}"), 128, 0);
        assert_eq!(plain.expected_bps(), joint.expected_bps());
        let (plain, joint) = (gaussian_mse(&*plain, KEY, 512), gaussian_mse(&*joint, KEY, 512));
        assert!(joint < 0.98 * plain, "{bits}: {joint} {plain}");
    }
}

#[test]
fn scales_of_keys_do_not_mix_channels_and_those_of_values_do_not_mix_tokens() {
    let (keys, values) = codecs("kivi@4", 64, 0);
    let plain = gaussians(32, 64, 4);
    let (mut tall, mut loud) = (plain.clone(), plain.clone());
    tall.iter_mut().step_by(64).for_each(|v| *v += 500.0);
    loud[..64].iter_mut().for_each(|v| *v *= 1000.0);
    let (a, b) = (through(&*keys, KEY, &plain), through(&*keys, KEY, &tall));
    assert!((0..32 * 64).all(|i| i % 64 == 0 || a[i] == b[i]));
    let (a, b) = (through(&*values, VALUE, &plain), through(&*values, VALUE, &loud));
    assert_eq!(a[64..], b[64..]);
    // 15 steps over a range of 5 or so: errors of up to half a step.
    assert!(plain.iter().zip(&a).all(|(x, y)| (x - y).abs() < 0.25));
}

#[test]
fn scalar_types_keep_within_half_a_step() {
    let x = gaussians(16, 80, 4);
    for (text, steps) in [("q8_0", 127.0), ("q4_0", 8.0)] {
        let y = through(&*codecs(text, 80, 0).0, KEY, &x);
        for (x, y) in x.chunks_exact(80).zip(y.chunks_exact(80)) {
            for (x, y) in x.chunks(32).zip(y.chunks(32)) {
                let peak = x.iter().fold(0f32, |m, v| m.max(v.abs()));
                // A value opposite to the one of largest magnitude may lie one step beyond the codes of q4_0.
                let half = peak / steps * if text == "q4_0" { 1.01 } else { 0.57 };
                assert!(x.iter().zip(y).all(|(a, b)| (a - b).abs() <= half), "{text}");
            }
        }
    }
}

#[test]
fn zeros_stay_zeros_and_huge_values_stay_finite() {
    for text in names() {
        let (keys, values) = codecs(&text, 64, 0);
        for (codec, place) in [(keys, KEY), (values, VALUE)] {
            let zeros = vec![0.0; 64 * codec.block()];
            assert_eq!(through(&*codec, place, &zeros), zeros, "{text}");
            for size in [f32::MAX, 1e-30, 1e5] {
                let x: Vec<f32> = gaussians(codec.block(), 64, 1).iter().map(|v| v.signum() * size).collect();
                assert!(through(&*codec, place, &x).iter().all(|v| v.is_finite()), "{text} {size}");
            }
        }
    }
}

#[test]
fn hostile_pages_are_errors_or_numbers() {
    for text in names() {
        let (keys, values) = codecs(&text, 34, 0);
        for (codec, place) in [(keys, KEY), (values, VALUE)] {
            let n = codec.block();
            let mut rows = vec![0; n * codec.row_bytes()];
            codec.quantize(place, 0, &gaussians(n, 34, 2), &mut rows).unwrap();
            let mut page = Vec::new();
            let bits = codec.pack(place, &rows, &mut page).unwrap();
            let unpack = |page: &[u8]| codec.unpack(place, page, &mut vec![0; rows.len()]);
            for wrong in [&page[..page.len() - 1], &[], &[page.as_slice(), &[0]].concat()] {
                assert!(matches!(unpack(wrong), Err(KvError::Page { .. })), "{text}");
            }
            for not_finite in [0x7c00u16, 0xfc00, 0x7e01] {
                let mut bad = page.clone();
                bad[..2].copy_from_slice(&not_finite.to_le_bytes());
                assert!(matches!(unpack(&bad), Err(KvError::Page { .. })), "{text}");
            }
            if bits.overhead > 0 {
                let mut bad = page.clone();
                *bad.last_mut().unwrap() |= 0x80;
                assert!(matches!(unpack(&bad), Err(KvError::Page { .. })), "{text}");
            }
            // Whatever codes are there, they are codes of something.
            for fill in [0x00u8, 0xff, 0x5a, 0xa7] {
                let mut any = page.clone();
                let codes = any.len() - bits.codes as usize / 8;
                any[codes..].fill(fill);
                let mut out = vec![0.0; n * 34];
                if codec.decode(place, 0, &any, &mut Vec::new(), &mut out).is_ok() {
                    assert!(out.iter().all(|v| v.is_finite()), "{text}");
                }
            }
        }
    }
}

#[test]
fn slices_that_do_not_fit_and_numbers_that_are_none_are_refused() {
    for text in names() {
        let (keys, _) = codecs(&text, 64, 0);
        let (m, row) = (keys.block(), keys.row_bytes());
        let mut x = gaussians(m, 64, 2);
        let mut rows = vec![0; m * row];
        let length = |e: Result<(), KvError>| matches!(e, Err(KvError::Length { .. }));
        assert!(length(keys.quantize(KEY, 0, &x[1..], &mut rows)));
        assert!(length(keys.quantize(KEY, 0, &x, &mut rows[1..])));
        assert!(length(keys.quantize(KEY, 0, &x, &mut vec![0; (m + 1) * row])));
        assert!(length(keys.dequantize(KEY, 0, &rows[1..], &mut x)));
        assert!(length(keys.dequantize(KEY, 0, &rows, &mut vec![0.0; m * 64 + 1])));
        assert!(length(keys.unpack(KEY, &[], &mut rows[1..])));
        assert!(length(keys.pack(KEY, &rows[1..], &mut Vec::new()).map(drop)));
        if m > 1 {
            assert!(length(keys.quantize(KEY, 0, &x[..64], &mut vec![0; row])));
        }
        let last = x.len() - 1;
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            x[last] = bad;
            let found = keys.quantize(KEY, 40, &x, &mut rows);
            let position = 40 + m as u64 - 1;
            assert_eq!(found, Err(KvError::NonFinite { role: "key", layer: 3, head: 1, position }), "{text}");
        }
    }
}

#[test]
fn names_come_back_and_wrong_ones_say_what_is_right() {
    let shape = |head_dim| KvShape { layers: 1, kv_heads: 1, head_dim };
    for text in names() {
        assert_eq!(codecs(&text, 64, 0).0.name(), text);
        for head_dim in [0, 2, 6, 7, 65, 514] {
            let error = kv_baseline(&text, shape(head_dim), 0).unwrap().unwrap_err();
            assert!(matches!(error, KvError::HeadDim { .. }) && error.to_string().contains("even widths"), "{error}");
        }
    }
    for unknown in ["", "@2", "e8@2.25", "turbo@2", "turboquant-prod-x@2", " q8_0"] {
        assert!(kv_baseline(unknown, shape(64), 0).is_none(), "{unknown}");
    }
    for wrong in [
        "turboquant",
        "turboquant@",
        "turboquant@9",
        "turboquant@2.5",
        "octopus@8",
        "kivi@NaN",
        "q8_0@8",
        "kivi@2/",
        "kivi@2/3",
        "qjl@2/2",
        "octopus@2/3/4",
        "qjl@0",
    ] {
        let error = kv_baseline(wrong, shape(64), 0).unwrap().unwrap_err();
        assert!(matches!(&error, KvError::Spec { spec, .. } if spec == wrong), "{error}");
    }
}

#[test]
fn keys_and_values_may_have_rates_of_their_own() {
    for (text, key, value) in [
        ("octopus@2/3", "octopus@2", "octopus@3"),
        ("kivi@4/2", "kivi@4", "kivi@2"),
        ("turboquant-prod@3/2", "turboquant-prod@3", "turboquant@2"),
    ] {
        let (keys, values) = codecs(text, 64, 0);
        assert_eq!((keys.name().as_str(), values.name().as_str()), (key, value));
    }
}

#[test]
fn keys_and_values_of_one_seed_have_different_rotations() {
    let x = gaussians(1, 64, 1);
    for text in ["turboquant@4", "octopus@4"] {
        let (keys, values) = codecs(text, 64, 0);
        let mut framed = [x.clone(), x.clone()];
        keys.query_to_frame(KEY, &mut framed[0]);
        values.query_to_frame(KEY, &mut framed[1]);
        assert!(dot(&framed[0], &framed[1]).abs() < 0.6 * dot(&x, &x), "{text}");
    }
}

/// The layout says what a vector takes; the sink would overflow, or leave bytes, if codes took anything else.
#[test]
fn octopus_layout_is_what_codes_take() {
    for d in [8, 10, 64, 80, 128] {
        let octopus = Octopus::new(d, 3, false, 0, 0);
        assert_eq!(octopus.layout().code_bits, d / 3 * 10 + d % 3 * 3);
    }
}
