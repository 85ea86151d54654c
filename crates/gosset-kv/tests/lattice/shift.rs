//! Strings of the shift trellis: bits, distortion, bytes.

use crate::{
    KEY, VALUE, codecs, gaussian, keys_and_queries, probe, reconstructed, rows_of, shape, squared_error, turns,
};
use gosset_kv::{KvCodec, KvError, KvSpec, KvStore, ShiftFrame};

fn mse(codec: &dyn KvCodec, x: &[f32]) -> f64 {
    squared_error(x, &reconstructed(codec, VALUE, 0, x)) / x.len() as f64
}

/// Bits of pages are those that the codec says, and the largest multiple of 16 bits for a vector in those that were asked for.
#[test]
fn every_vector_takes_the_same_bits() {
    for d in [64, 80, 96, 128, 256, 66] {
        let x = gaussian(d * 5, 1);
        for rate in [1.0, 2.0, 2.25, 2.5, 3.3, 4.0, 5.0] {
            for code in ["shift-10", "shift-12"] {
                let (key, value) = codecs(&format!("{code}@{rate},k@{rate}"), d);
                for (codec, place) in [(key, KEY), (value, VALUE)] {
                    let rows = rows_of(&*codec, place, 0, &x);
                    let mut page = Vec::new();
                    let bits = codec.pack(place, &rows, &mut page).unwrap();
                    assert_eq!((bits.total(), bits.overhead), (8 * page.len() as u64, 0));
                    let width = (rate * d as f64) as usize / 16 * 16;
                    assert_eq!(8 * page.len(), 5 * width, "{code}@{rate}, {d}");
                    assert_eq!(codec.expected_bps(), width as f64 / d as f64);
                }
            }
        }
    }
}

#[test]
fn rates_and_widths_that_cannot_be_met_are_refused() {
    let error = |spec: &str, d: usize| {
        let spec: KvSpec = spec.parse().unwrap();
        spec.codecs(shape(d), Some(&probe(d))).unwrap_err()
    };
    for (spec, d) in [("shift-10@6", 64), ("shift-10@5.3", 64), ("shift-12@1", 8), ("shift-10@1,frame=none", 16)] {
        assert!(matches!(error(spec, d), KvError::Spec { .. }), "{spec}, {d}");
    }
    let spec: KvSpec = "shift-10@3,frame=none".parse().unwrap();
    assert!(matches!(spec.codecs(shape(7), None), Err(KvError::HeadDim { .. })));
}

/// Distortion over the bound of rate and distortion, in bits per scalar of a string, for the string's bits per pair: as measured when the
/// table was made, 0.02 more.
#[test]
fn distortion_is_near_theory() {
    for (code, d, rate, gap) in [
        ("shift-10", 64, 2.125, 0.16),
        ("shift-10", 128, 2.0625, 0.15),
        ("shift-10", 128, 2.5625, 0.175),
        ("shift-10", 128, 3.0625, 0.21),
        ("shift-10", 128, 4.0625, 0.38),
        ("shift-12", 128, 2.0625, 0.135),
        ("shift-12", 128, 3.0625, 0.185),
    ] {
        let x = gaussian(d * 384, 4);
        let (_, codec) = codecs(&format!("{code}@{rate},frame=none"), d);
        let bits = codec.expected_bps() - 8.0 / d as f64;
        let found = bits + 0.5 * mse(&*codec, &x).log2();
        assert!(found < gap && found > gap - 0.06, "{code}@{rate}, {d}: {found}");
    }
}

/// A page by its definition: states of a circular string, first bit highest, words of all rows beside each other.
#[test]
fn pages_are_read_by_their_definition() {
    for (spec, d) in
        [("shift-10@2.25", 64), ("shift-12@2.5", 80), ("shift-10@3.25", 128), ("shift-12@2", 96), ("shift-10@1.5", 24)]
    {
        let n = 7;
        let spec: KvSpec = format!("{spec},frame=none").parse().unwrap();
        let (_, codec) = spec.codecs(shape(d), None).unwrap();
        let x = gaussian(n * d, 8);
        let rows = rows_of(&*codec, VALUE, 0, &x);
        let mut page = Vec::new();
        codec.pack(VALUE, &rows, &mut page).unwrap();
        let mut out = vec![0.0; n * d];
        codec.decode(VALUE, 0, &page, &mut Vec::new(), &mut out).unwrap();
        let (string, words) = (codec.row_bytes() - 1, (codec.row_bytes() - 1) / 4);
        let (state_bits, odd) = if codec.name().starts_with("shift-10") { (10, 1) } else { (12, 905) };
        let bits = 8 * string;
        let table = shift_table(d);
        for r in 0..n {
            let mut ring: Vec<u32> = Vec::new();
            for w in 0..words {
                let word = u32::from_le_bytes(page[n + 4 * (w * n + r)..][..4].try_into().unwrap());
                ring.extend((0..32).map(|i| word >> (31 - i) & 1));
            }
            let rest = &page[n + 4 * words * n + r * (string - 4 * words)..][..string - 4 * words];
            ring.extend(rest.iter().flat_map(|byte| (0..8).map(move |i| u32::from(byte >> (7 - i) & 1))));
            assert_eq!(ring.len(), bits);
            let scale = if page[r] == 0 { 0.0 } else { ((f64::from(page[r]) - 129.0) / 8.0).exp2() };
            let shares = bits.min(5 * d);
            let mut end = 0;
            for pair in 0..d / 2 {
                let step = if bits < d {
                    2 * ((pair + 1) * (shares / 2) / (d / 2) - pair * (shares / 2) / (d / 2))
                } else {
                    (pair + 1) * shares / (d / 2) - pair * shares / (d / 2)
                };
                end += step;
                let state = (0..state_bits).fold(0u32, |s, i| s << 1 | ring[(end + bits - state_bits + i) % bits]);
                let word = table[((state * odd % (1 << state_bits)) >> (state_bits - 10)) as usize];
                for (i, half) in [word as u16, (word >> 16) as u16].into_iter().enumerate() {
                    let point = if step == 0 { 0.0 } else { f64::from(half::f16::from_bits(half)) };
                    let found = f64::from(out[r * d + 2 * pair + i]);
                    assert!((found - scale * point).abs() <= 1e-6 * found.abs(), "{d}, row {r}, pair {pair}: {found}");
                }
            }
        }
    }
}

/// The table, as another machine gets it.
fn shift_table(d: usize) -> &'static [u32; 1024] {
    let spec: KvSpec = "shift-10@3,frame=none".parse().unwrap();
    gosset_kv::ShiftKv::of(&spec, gosset_kv::Role::Value, shape(d), None).unwrap().table()
}

/// Bytes of a page that must never change.
#[test]
fn pages_have_golden_bytes() {
    let (_, codec) = codecs("shift-10@3,frame=none,rot=none", 16);
    let x: Vec<f32> = (0..48).map(|i| ((i * 7 % 23) as f32 - 11.0) / 8.0).collect();
    let mut page = Vec::new();
    codec.pack(VALUE, &rows_of(&*codec, VALUE, 0, &x), &mut page).unwrap();
    let hex: String = page.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, "7f7f7ff577fff9f7ec7851afb925d48e3028");
}

/// Keys: bits of all heads add up to the same, those of axes follow their variances.
#[test]
fn patterns_of_keys_follow_variances() {
    let d = 64;
    let spec: KvSpec = "shift-10@2,frame=probe".parse().unwrap();
    let codec = gosset_kv::ShiftKv::of(&spec, gosset_kv::Role::Key, shape(d), Some(&probe(d))).unwrap();
    let plan = codec.plan(KEY).unwrap();
    assert_eq!(plan.bits.iter().map(|&k| usize::from(k)).sum::<usize>(), codec.string_bits());
    assert!(plan.bits.is_sorted_by(|a, b| a >= b) && plan.bits[0] > plan.bits[d / 2 - 1] + 3, "{:?}", plan.bits);
    assert!(matches!(plan.frame, ShiftFrame::Matrix { .. }) && codec.scales().is_some());

    assert!(plan.weights.iter().all(|&w| (0.0..=1.0).contains(&w)));
}

/// Sizes over the whole range of a byte, and beyond; elements as large as they get.
#[test]
fn any_finite_vectors_are_coded() {
    let d = 64;
    for spec in [
        "shift-10@2.5",
        "shift-10@2.5,frame=probe",
        "shift-12@3,frame=mean",
        "shift-10@2,frame=none",
        "shift-10@2.5,k.scale=off",
        "shift-10@2.5,frame=probe",
        "shift-10@2.5,frame=probe,scale=on",
    ] {
        let (key, value) = codecs(spec, d);
        for (codec, place) in [(key, KEY), (value, VALUE)] {
            for scale in [0.0, 1e-38, 1e-4, 1.0, 1e4, 1e20, f32::MAX / 8.0] {
                let x: Vec<f32> = gaussian(2 * d, 5).iter().map(|v| v * scale).collect();
                let back = reconstructed(&*codec, place, 0, &x);
                assert!(back.iter().all(|v| v.is_finite()), "{spec}, {scale}");
                if place == VALUE && (1e-4..=1e4).contains(&scale) {
                    assert!(squared_error(&x, &back) < 0.1 * squared_error(&x, &vec![0.0; 2 * d]), "{spec}, {scale}");
                }
            }
        }
    }
}

/// In the frame of a probe the score error is a fraction of what norms leave, as with lattices.
#[test]
fn the_frame_of_a_probe_keeps_scores() {
    let (d, n) = (64, 512);
    let (keys, queries) = keys_and_queries(n, d, 91);
    let error = |spec: &str| {
        let (codec, _) = codecs(spec, d);
        let back = reconstructed(&*codec, KEY, 0, &keys);
        let scores = keys.chunks_exact(d).zip(back.chunks_exact(d)).enumerate().map(|(i, (x, y))| {
            let q = &queries[(i * 37 % n) * d..][..d];
            q.iter().zip(x.iter().zip(y)).map(|(&q, (&a, &b))| f64::from(q) * f64::from(a - b)).sum::<f64>().powi(2)
        });
        scores.sum::<f64>() / n as f64
    };
    let (probe, mean, e8) = (error("shift-10@3,k@3,frame=probe"), error("shift-10@3,frame=mean"), error("e8@3,k@3"));
    assert!(probe < 0.2 * mean && probe < 1.5 * e8, "probe {probe}, mean {mean}, e8 {e8}");
}

/// Keys after the rotary embedding: the mean goes where positions turn it, and bits follow the variances of rotary pairs, whatever the
/// position.
#[test]
fn the_frame_of_pairs_keeps_scores_at_any_position() {
    let (d, n) = (64, 256);
    let (keys, queries) = keys_and_queries(n, d, 92);
    let half = d / 2;
    let errors = [0u64, 70_000].map(|first| {
        let mut rotated = keys.clone();
        for (i, key) in rotated.chunks_exact_mut(d).enumerate() {
            for (t, turns) in turns(d).iter().enumerate() {
                let (s, c) = ((first + i as u64) as f64 * turns * std::f64::consts::TAU).sin_cos();
                let (a, b) = (f64::from(key[t]), f64::from(key[t + half]));
                (key[t], key[t + half]) = ((a * c - b * s) as f32, (a * s + b * c) as f32);
            }
        }
        let error = |spec: &str| {
            let (codec, _) = codecs(spec, d);
            let back = reconstructed(&*codec, KEY, first, &rotated);
            let scores = rotated.chunks_exact(d).zip(back.chunks_exact(d)).enumerate().map(|(i, (x, y))| {
                let q = &queries[(i * 37 % n) * d..][..d];
                q.iter().zip(x.iter().zip(y)).map(|(&q, (&a, &b))| f64::from(q) * f64::from(a - b)).sum::<f64>().powi(2)
            });
            scores.sum::<f64>() / n as f64
        };
        let (pairs, none) = (error("shift-10@3,k@3"), error("shift-10@3,frame=none"));
        assert!(pairs < 0.3 * none, "{first}: pairs {pairs}, none {none}");
        pairs
    });
    assert!((0.8..1.25).contains(&(errors[0] / errors[1])), "{errors:?}");
}

/// A probe that does not know the turns of positions, and a codec of a lattice, have no pairs.
#[test]
fn pairs_need_turns() {
    let spec: KvSpec = "shift-10@3".parse().unwrap();
    assert_eq!(spec.to_string(), "shift-10@3");
    assert!(!spec.keys_before_rope && spec.wants_probe() && spec.removes_mean());
    let (keys, queries) = keys_and_queries(64, 32, 3);
    let mut builder = gosset_kv::ProbeBuilder::new(shape(32), gosset_kv::RopePairs::Halves).unwrap();
    builder.add(0, &keys, &queries).unwrap();
    let error = spec.codecs(shape(32), Some(&builder.finish().unwrap())).unwrap_err();
    assert!(error.to_string().contains("ProbeBuilder::turns"), "{error}");
    for (spec, reason) in [
        ("e8@3,frame=pairs", "is for shift-10 and shift-12"),
        ("shift-10@3,rope=before", "expected rope=after"),
        ("shift-10@3,k.rot=haar", "has no meaning with frame=pairs"),
    ] {
        let error = spec.parse::<KvSpec>().unwrap_err().to_string();
        assert!(error.contains(reason), "{spec}: {error}");
    }
}

/// In a store every position takes the same bytes, those of the rows, and lengths of heads.
#[test]
fn stores_take_what_rows_take() {
    let d = 64;
    let spec: KvSpec = "shift-10@2.5,k@2,page=64".parse().unwrap();
    let (key, value) = spec.codecs(shape(d), Some(&probe(d))).unwrap();
    let row_bytes = (key.row_bytes() + value.row_bytes()) as u64;
    assert_eq!(row_bytes, 16 + 20);
    let mut store = KvStore::new(shape(d), spec.policy, key, value, &[]).unwrap();
    let n = 40 * 64;
    let (keys, values) = (keys_and_queries(n, d, 11).0, gaussian(n * d, 12));
    for (keys, values) in keys.chunks(100 * d).zip(values.chunks(100 * d)) {
        store.append(0, keys, values).unwrap();
        store.settle(0);
    }
    let memory = store.memory();
    assert_eq!((memory.pages, memory.open), (80, 0));
    assert_eq!((memory.codes, memory.scales), ((row_bytes - 2) * n as u64, 2 * n as u64));
    assert!(memory.page_bits_per_value() < 2.25 * 1.015, "{memory}");
}
