//! Stored frames, and what specifications refuse.

use crate::{KEY, VALUE, codecs, gaussian, keys_and_queries, probe, rows_of, shape};
use gosset_kv::{KvError, KvShape, KvSpec, ProbeBuilder, Role, RopePairs, parse_policy};

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
}

/// ⟨q, x⟩ = ⟨query_to_frame(q), z⟩ and value_from_frame(Σ w z) = Σ w x, x being what comes back out of the frame.
#[test]
fn frames_keep_scores_and_sums() {
    let d = 48;
    for rotation in ["rht", "haar", "signs", "none"] {
        for rope in ["before", "after"] {
            let (key, value) = codecs(&format!("e8@4,frame=none,rope={rope},rot={rotation}"), d);
            let (x, q) = (gaussian(5 * d, 1), gaussian(d, 2));
            let back = crate::reconstructed(&*key, KEY, 0, &x);
            let mut z = vec![0.0; x.len()];
            key.dequantize(KEY, 0, &rows_of(&*key, KEY, 0, &x), &mut z).unwrap();
            let mut in_frame = q.clone();
            key.query_to_frame(KEY, &mut in_frame);
            if rope == "before" {
                assert_eq!((&in_frame, &z), (&q, &back), "keys before the rotary embedding have no frame");
            }
            for (x, z) in back.chunks_exact(d).zip(z.chunks_exact(d)) {
                assert!((dot(&q, x) - dot(&in_frame, z)).abs() < 1e-3);
            }
            let back = crate::reconstructed(&*value, VALUE, 0, &x);
            value.dequantize(VALUE, 0, &rows_of(&*value, VALUE, 0, &x), &mut z).unwrap();
            let weigh = |v: &[f32]| -> Vec<f32> {
                (0..d).map(|i| v.chunks_exact(d).zip(1..).map(|(v, w)| v[i] * w as f32 * 0.1).sum()).collect()
            };
            let (mut sum, expected) = (weigh(&z), weigh(&back));
            value.value_from_frame(VALUE, &mut sum);
            assert!(sum.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-4));
        }
    }
}

/// Case F01 at the level of the codec: biases of ±500 on three channels do no harm where a mean is taken off.
#[test]
fn f01_biases_of_keys_do_no_harm_with_a_probe() {
    let (d, n) = (64, 512);
    let biased = |mut keys: Vec<f32>| {
        for key in keys.chunks_exact_mut(d) {
            for (channel, bias) in [(5, 500.0), (20, -500.0), (63, 500.0)] {
                key[channel] += bias;
            }
        }
        keys
    };
    let error = |keys: &[f32], queries: &[f32], spec: &str| {
        let spec: KvSpec = spec.parse().unwrap();
        let mut builder = ProbeBuilder::new(shape(d), RopePairs::Halves).unwrap();
        builder.add(0, keys, queries).unwrap();
        let probe = builder.finish().unwrap();
        let (codec, _) = spec.codecs(shape(d), Some(&probe)).unwrap();
        let back = crate::reconstructed(&*codec, KEY, 0, keys);
        (crate::squared_error(keys, &back) / keys.len() as f64, probe.largest_bias())
    };
    let (keys, queries) = (gaussian(n * d, 1), gaussian(n * d, 2));
    let shifted = biased(keys.clone());
    for rate in [8, 4, 3, 2] {
        for frame in ["probe", "mean"] {
            let spec = format!("e8@{rate},frame={frame}");
            let ((plain, bias), (with, large)) = (error(&keys, &queries, &spec), error(&shifted, &queries, &spec));
            assert!(with < 1.1 * plain + 1e-7, "{spec}: {with}, without biases {plain}");
            assert!(bias < 1.0 && large > 50.0, "{bias} {large}");
        }
        let ((plain, _), (with, _)) =
            (error(&keys, &queries, "e8@3,frame=none"), error(&shifted, &queries, "e8@3,frame=none"));
        assert!(with > 100.0 * plain, "without a mean the biases take all bits: {with} {plain}");
    }
}

#[test]
fn a_probe_does_not_depend_on_how_tokens_arrive() {
    let d = 16;
    let (keys, queries) = keys_and_queries(60, d, 3);
    let collect = |parts: &[usize]| {
        let mut builder = ProbeBuilder::new(shape(d), RopePairs::Interleaved).unwrap();
        let mut at = 0;
        for &n in parts {
            builder.add(0, &keys[at * d..(at + n) * d], &queries[at * d..(at + n) * d]).unwrap();
            at += n;
        }
        builder.finish().unwrap()
    };
    assert_eq!(collect(&[60]), collect(&[1, 20, 39]));
    assert_eq!(collect(&[60]).tokens(), 60);
}

#[test]
fn probes_refuse_what_does_not_fit() {
    let shape = KvShape { layers: 2, kv_heads: 2, head_dim: 4 };
    assert!(ProbeBuilder::new(KvShape { head_dim: 3, ..shape }, RopePairs::Halves).is_err());
    let mut builder = ProbeBuilder::new(shape, RopePairs::Halves).unwrap();
    assert!(matches!(builder.add(2, &[0.0; 8], &[0.0; 8]), Err(KvError::Length { .. })));
    assert!(matches!(builder.add(0, &[0.0; 9], &[0.0; 8]), Err(KvError::Length { .. })));
    assert!(matches!(builder.add(0, &[0.0; 8], &[0.0; 12]), Err(KvError::Length { .. })));
    assert!(matches!(builder.add(0, &[f32::NAN; 8], &[0.0; 8]), Err(KvError::NonFinite { .. })));
    builder.add(0, &[1.0; 16], &[0.0; 32]).unwrap();
    assert!(matches!(builder.finish(), Err(KvError::Positions { held: 0, .. })));
    let spec: KvSpec = "e8@3".parse().unwrap();
    assert!(spec.codecs(crate::shape(64), None).unwrap_err().to_string().contains("probed first"));
    assert!(spec.codecs(crate::shape(32), Some(&probe(64))).is_err());
}

/// Keys that are all the same, or of which some coordinates are, have codecs too.
#[test]
fn degenerate_statistics_give_working_codecs() {
    let d = 16;
    for (keys, queries) in [
        (vec![2.5; 20 * d], vec![0.0; 20 * d]),
        (gaussian(20 * d, 1).iter().map(|v| v * 1e-20).collect(), gaussian(20 * d, 2)),
        (
            gaussian(20 * d, 1).iter().enumerate().map(|(i, v)| if i % d < 12 { 0.0 } else { v * 1e4 }).collect(),
            gaussian(20 * d, 2),
        ),
        (gaussian(3 * d, 1), gaussian(3 * d, 2)),
    ] {
        let mut builder = ProbeBuilder::new(shape(d), RopePairs::Halves).unwrap().turns(&crate::turns(d)).unwrap();
        builder.add(0, &keys, &queries).unwrap();
        let probe = builder.finish().unwrap();
        for spec in [
            "e8@3,page=256",
            "e8@3,page=256,dither=on",
            "e8@3,page=256,k.gain=on",
            "z@4,page=256",
            "shift-10@3,page=256",
            "shift-12@4,k.scale=off",
        ] {
            let (codec, _) = spec.parse::<KvSpec>().unwrap().codecs(shape(d), Some(&probe)).unwrap();
            for x in [&keys, &gaussian(5 * d, 7)] {
                let rows = rows_of(&*codec, KEY, 0, x);
                let (mut page, mut back, mut out) = (Vec::new(), vec![0; rows.len()], vec![0.0; x.len()]);
                codec.pack(KEY, &rows, &mut page).unwrap();
                codec.unpack(KEY, &page, &mut back).unwrap();
                codec.dequantize(KEY, 0, &rows, &mut out).unwrap();
                assert!(back == rows && out.iter().all(|v| v.is_finite()));
            }
        }
    }
}

#[test]
fn specifications_round_trip() {
    for text in [
        "e8@2.25",
        "e8@2.25,k@2.25",
        "e8@1.2",
        "e8@8",
        "e8@2.25,window=256,sinks=64",
        "e8@2.5,k@2",
        "d4@3,k=e8@2,frame=mean",
        "z@8,frame=none,rope=before",
        "a2@2,frame=none,k.rot=haar,k.norm=f16,k.coder=rice,v.dither=on",
        "e8@3,k.dither=on,v.gain=off,page=32,exact=bf16,budget=fixed,protect=k0+v0+23,seed=18446744073709551615",
        "e8@3,k.gain=on",
        "f16",
        "f16,k=e8@2",
        "e8@2,k=bf16",
        "trellis-8@2.25",
        "e8@2,v=trellis-64@2.5,v.norm=f16",
        "trellis-8@2,frame=mean",
        "shift-10@2.25",
        "shift-12@3,frame=none",
        "shift-10@2,v=shift-12@2.5,k.scale=off",
        "shift-10@3,frame=mean,k.rot=haar",
        "e8@2,v=shift-10@2.5",
    ] {
        let spec: KvSpec = text.parse().unwrap();
        let shown = spec.to_string();
        assert_eq!(shown.parse::<KvSpec>().unwrap(), spec, "{text} is shown as {shown}");
    }
    let one: KvSpec = "e8@2.25".parse().unwrap();
    assert_eq!((one.key.rate, one.value.rate, one.to_string().as_str()), (1.85, 2.65, "e8@2.25"));
    let both: KvSpec = "e8@3,frame=none,rot=haar,v.rot=none,norm=log8,dither=on,k.dither=off".parse().unwrap();
    let each: KvSpec = "e8@3,frame=none,k.rot=haar,v.rot=none,k.norm=log8,v.norm=log8,v.dither=on".parse().unwrap();
    assert_eq!(both, each);
    assert_eq!(
        "e8@3,k.rot=none,rot=haar,frame=none".parse::<KvSpec>().unwrap().role(Role::Key).rotation.name(),
        "none"
    );
}

#[test]
fn specifications_are_refused_with_what_would_be_right() {
    for (text, expected) in [
        (
            "",
            "no code is named \"\"; there are z, a2, d4, e8, trellis-8, trellis-64, shift-10, shift-12, f32, bf16, f16",
        ),
        ("e9@2", "no code is named \"e9\""),
        ("e8", "expected a rate in bits per scalar, such as e8@2.25"),
        ("e8@0.2", "rate \"0.2\": expected 1 to 8 bits per scalar"),
        ("e8@9", "expected 1 to 8"),
        ("e8@NaN", "expected 1 to 8"),
        ("f16@3", "f16 has no rate"),
        ("e8@2,windows=3", "no option is named \"windows\"; there are frame"),
        ("e8@2,window", "expected option=value"),
        ("e8@2,window=-1", "expected a whole number"),
        ("e8@2,window=18446744073709551615", "expected at most 1073741824 positions"),
        ("e8@2,window=1,window=2", "given twice"),
        ("e8@2,k@2,k@3", "given twice"),
        ("e8@3,k=e8@2,k@4", "a rate given twice"),
        ("e8@2,rot=spin", "expected rht, haar, signs, none"),
        ("e8@2,dither=yes", "expected on or off"),
        ("e8@2,page=0", "expected 1 to"),
        ("e8@2,exact=f8", "expected f32, bf16 or f16"),
        ("e8@2,protect=0+x", "expected numbers such as 0+23"),
        ("e8@2,q.rot=rht", "no option is named \"q.rot\""),
        ("e8@2,rope=after,frame=probe", "rope=after has no fixed mean or axes"),
        ("e8@2,rope=after", "or frame=none"),
        ("e8@2,k.rot=none", "has no meaning with frame=probe"),
        ("e8@2,k.coder=rice", "expected ans, or frame=none"),
        ("e8@2,dither=on,v.gain=on", "expected one of the two"),
        ("trellis-8@2,dither=on", "no dither makes unbiased"),
        ("trellis-8@2,frame=probe", "expected frame=none or frame=mean, or e8"),
        ("e8@2,v=trellis-8@2,v.gain=on", "has no meaning for a trellis"),
        ("shift-11@2", "no code is named \"shift-11\""),
        ("shift-10@2,dither=on", "no dither makes unbiased"),
        ("shift-10@2,v.norm=f16", "eighth octaves"),
        ("shift-10@2,v.scale=off", "vectors need their size"),
        ("shift-10@2,v.coder=rice", "has no meaning for a trellis"),
        ("e8@2,k.scale=on", "has no meaning for e8"),
        ("trellis-8@2,v.scale=on", "has no meaning for trellis-8"),
        ("f16,v.scale=on", "has no meaning for f16"),
        ("f16,k.dither=on", "has no meaning for f16"),
        ("f16,frame=probe", "has no meaning for keys in f16"),
    ] {
        let error = text.parse::<KvSpec>().unwrap_err();
        assert!(matches!(error, KvError::Spec { .. }) && error.to_string().contains(expected), "{text:?}: {error}");
    }
    let (policy, protect) = parse_policy("window=256,sinks=64,protect=3").unwrap();
    assert_eq!((policy.window, policy.sinks, policy.page, protect.len()), (256, 64, 64, 1));
    assert!(parse_policy("frame=none").is_err() && parse_policy("window").is_err());
    assert_eq!(parse_policy("").unwrap().0.window, 0);
}

#[test]
fn rates_that_pages_leave_no_bits_for_are_refused() {
    for (text, expected) in [
        ("e8@1,k@1,page=1", "the ends of pages alone take more"),
        ("e8@1,k@1,page=2,dither=on", "fewer than they need at any step"),
    ] {
        let error = text.parse::<KvSpec>().unwrap().codecs(shape(64), Some(&probe(64))).unwrap_err();
        assert!(matches!(error, KvError::Spec { .. }) && error.to_string().contains(expected), "{text:?}: {error}");
    }
}
