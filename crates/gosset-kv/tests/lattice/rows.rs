//! Rows and pages hold what was put into them.

use std::sync::Arc;

use crate::{KEY, VALUE, codecs, gaussian, keys_and_queries, rows_of, shape, words};
use gosset_kv::{KvCodec, KvError, KvSpec, Place};
use proptest::prelude::*;

const OPTIONS: [&str; 10] = [
    "frame=none",
    "frame=none,norm=log8,dither=on",
    "frame=none,norm=f16,rot=haar",
    "frame=none,coder=rice,rot=signs",
    "frame=none,coder=rice,norm=f16,dither=on",
    "frame=none,rope=before,rot=none",
    "frame=mean",
    "frame=mean,coder=rice,gain=off",
    "frame=probe",
    "frame=probe,dither=on",
];

fn round_trip(codec: &dyn KvCodec, place: Place, x: &[f32], name: &str) {
    let d = codec.head_dim();
    let n = x.len() / d;
    let rows = rows_of(codec, place, 5, x);
    let mut page = Vec::new();
    codec.pack(place, &rows, &mut page).unwrap();
    let mut unpacked = vec![0xaa; rows.len()];
    codec.unpack(place, &page, &mut unpacked).unwrap();
    assert_eq!(unpacked, rows, "{name}");
    let (mut a, mut b) = (vec![0.0; x.len()], vec![0.0; x.len()]);
    codec.dequantize(place, 5, &rows, &mut a).unwrap();
    codec.decode(place, 5, &page, &mut Vec::new(), &mut b).unwrap();
    assert!(a.iter().zip(&b).all(|(a, b)| a.to_bits() == b.to_bits()), "{name}: decode and dequantize differ");
    assert!(a.iter().all(|v| v.is_finite()), "{name}: {a:?}");
    assert_eq!(n == 0, page.is_empty(), "{name}");
}

/// Both codecs of all options, lattices and a few rates.
fn each_codec(d: usize, f: impl Fn(&str, Place, Arc<dyn KvCodec>)) {
    let probe = crate::probe(d);
    for options in OPTIONS {
        for code in ["z@1.5", "a2@3", "d4@8", "e8@2.25", "e8@4", "trellis-8@2.5", "trellis-64@5"] {
            let spec = format!("{code},{options}");
            let Ok(parsed) = spec.parse::<KvSpec>() else {
                assert!(code.starts_with("trellis"), "{spec}: paths have no dither, no frame `probe` and no gain");
                continue;
            };
            let Ok((key, value)) = parsed.codecs(shape(d), Some(&probe)) else {
                assert!(spec.contains("1.5") && spec.contains("rice"), "{spec}: Rice codes need more than 1.5 bits");
                continue;
            };
            f(&spec, KEY, key);
            f(&spec, VALUE, value);
        }
    }
}

#[test]
fn pages_give_back_the_rows_of_random_and_extreme_vectors() {
    let d = 32;
    let mut x = keys_and_queries(20, d, 8).0;
    x.extend(gaussian(20 * d, 9));
    x.extend(vec![0.0; 2 * d]);
    x.extend(vec![1e30; d]);
    x.extend(gaussian(d, 10).iter().map(|v| v * 1e30));
    x.extend(gaussian(d, 11).iter().map(|v| v * 1e-30));
    x.extend(vec![f32::from_bits(1); d]);
    x.extend(vec![-f32::MAX; d]);
    for (i, huge) in [(0, 1e6), (d - 1, -1e20), (3, 1e38)] {
        let mut one = gaussian(d, 12);
        one[i] = huge;
        x.extend(one);
    }
    each_codec(d, |spec, place, codec| {
        for n in [0, 1, 3, x.len() / d] {
            round_trip(&*codec, place, &x[..n * d], spec);
        }
    });
}

#[test]
fn zeros_come_back_as_zeros() {
    each_codec(16, |spec, place, codec| {
        if codec.name().starts_with(&spec[..2]) && !spec.contains("frame=mean") && !spec.contains("frame=probe") {
            let rows = rows_of(&*codec, place, 0, &[0.0; 16]);
            let mut out = [1.0; 16];
            codec.dequantize(place, 0, &rows, &mut out).unwrap();
            assert_eq!(out, [0.0; 16], "{spec}");
        }
    });
}

/// A vector of any size is coded as one of size 1 is: errors scale with it, a huge coordinate spoils its own vector only.
#[test]
fn errors_scale_with_the_vector() {
    let d = 64;
    for spec in ["e8@4,frame=none", "e8@4"] {
        let (codec, _) = codecs(spec, d);
        let x = gaussian(d, 3);
        for scale in [1e10f32, 1e25] {
            let big: Vec<f32> = x.iter().map(|v| v * scale).collect();
            let back = crate::reconstructed(&*codec, KEY, 0, &big);
            let error = crate::squared_error(&big, &back).sqrt();
            let norm = big.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>().sqrt();
            assert!(error < 0.1 * norm, "{spec} {scale}: {}", error / norm);
        }
    }
}

#[test]
fn rows_do_not_depend_on_the_split() {
    let d = 32;
    let x = keys_and_queries(40, d, 8).0;
    each_codec(d, |spec, place, codec| {
        let whole = rows_of(&*codec, place, 100, &x);
        for split in [vec![40], vec![1; 40], vec![7, 33], vec![16, 16, 8]] {
            let (mut rows, mut at) = (Vec::new(), 0);
            for n in split {
                rows.extend(rows_of(&*codec, place, 100 + at as u64, &x[at * d..(at + n) * d]));
                at += n;
            }
            assert_eq!(rows, whole, "{spec}");
        }
    });
}

#[test]
fn a07_widths_work_or_are_refused_by_name() {
    for d in [64, 80, 96, 112, 128, 256] {
        let probe = crate::probe(d);
        for options in ["frame=none", "frame=none,rot=haar,dither=on", "frame=probe"] {
            for code in ["z@3", "a2@3", "d4@3", "e8@3", "e8@2.25", "trellis-8@3"] {
                let options = if code == "trellis-8@3" { "frame=none,rot=haar" } else { options };
                let spec: KvSpec = format!("{code},{options}").parse().unwrap();
                let (key, value) = spec.codecs(shape(d), Some(&probe)).unwrap();
                let x = gaussian(3 * d, d as u64);
                round_trip(&*key, KEY, &x, &format!("{spec} {d}"));
                round_trip(&*value, VALUE, &x, &format!("{spec} {d}"));
            }
        }
    }
    let spec: KvSpec = "e8@3,frame=none".parse().unwrap();
    for d in [0, 7, 20, 100] {
        let error = spec.codecs(shape(d), None).unwrap_err();
        assert!(matches!(error, KvError::HeadDim { head_dim, .. } if head_dim == d), "{error}");
        assert!(error.to_string().contains("multiples of 8 fit; d4 takes multiples of 4"), "{error}");
    }
    let spec: KvSpec = "a2@3,frame=none".parse().unwrap();
    for d in [2, 6, 50] {
        let codec = spec.codecs(shape(d), None);
        // Norms and page ends take more than the rate leaves where vectors are tiny, which is an error of its own.
        match codec {
            Ok((key, _)) => round_trip(&*key, KEY, &gaussian(3 * d, 1), "a2"),
            Err(error) => assert!(matches!(error, KvError::Spec { .. }), "{error}"),
        }
    }
}

#[test]
fn what_is_not_finite_is_refused_with_its_place() {
    let (codec, _) = codecs("e8@3,frame=none", 16);
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut x = gaussian(48, 1);
        x[35] = bad;
        let error = codec.quantize(KEY, 7, &x, &mut vec![0; 3 * codec.row_bytes()]).unwrap_err();
        assert_eq!(error.to_string(), "key of layer 0, head 0, position 9 is not finite");
    }
    assert!(matches!(codec.quantize(KEY, 0, &[0.0; 17], &mut []), Err(KvError::Length { .. })));
    assert!(matches!(codec.dequantize(KEY, 0, &[0; 3], &mut [0.0; 16]), Err(KvError::Length { .. })));
    let elsewhere = Place { layer: 1, ..KEY };
    assert!(matches!(codec.quantize(elsewhere, 0, &[], &mut []), Err(KvError::Length { .. })));
}

#[test]
fn seeds_layers_and_roles_have_rotations_of_their_own() {
    let d = 32;
    let shape = gosset_kv::KvShape { layers: 2, kv_heads: 2, head_dim: d };
    let x = gaussian(d, 4);
    let mut seen = Vec::new();
    for seed in [0, 9] {
        let spec: KvSpec = format!("e8@4,frame=none,seed={seed}").parse().unwrap();
        let (key, value) = spec.codecs(shape, None).unwrap();
        for layer in [0, 1] {
            seen.push(rows_of(&*key, Place { layer, ..KEY }, 0, &x));
            seen.push(rows_of(&*value, Place { layer, ..VALUE }, 0, &x));
        }
    }
    for (i, a) in seen.iter().enumerate() {
        assert!(seen[..i].iter().all(|b| a != b), "{i}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn pages_give_back_any_rows(n in 1usize..70, scale in -30i32..30, seed in 0u64..1000, spike in 0usize..2000) {
        let d = 16;
        let mut x: Vec<f32> = gaussian(n * d, seed).iter().map(|v| v * 10f32.powi(scale)).collect();
        let at = spike % x.len();
        x[at] *= 1e3;
        let mut stream = words(seed);
        for code in ["z@4", "a2@3", "d4@4", "e8@5"] {
            let option = OPTIONS[stream.next_u32() as usize % OPTIONS.len()];
            let (key, value) = codecs(&format!("{code},page=512,{option}"), d);
            round_trip(&*key, KEY, &x, option);
            round_trip(&*value, VALUE, &x, option);
        }
    }
}
