//! Pages from nowhere: errors with a reason, never a panic, no memory by a claimed size.

use crate::{KEY, VALUE, codecs, gaussian, keys_and_queries, rows_of, words};
use gosset_kv::{KvCodec, KvError, Place};

const SPECS: [&str; 13] = [
    "e8@2.25,frame=none",
    "d4@3,frame=none,norm=log8",
    "a2@8,frame=none,norm=f16,dither=on",
    "z@2,frame=mean",
    "e8@3,frame=none,coder=rice",
    "d4@4,frame=none,coder=rice,norm=f16",
    "e8@2",
    "z@4,dither=on",
    "trellis-8@3,norm=log8",
    "trellis-64@7",
    "shift-10@3,frame=none",
    "shift-12@4.5",
    "shift-10@4,frame=mean",
];

fn each(f: impl Fn(&str, Place, &dyn KvCodec, &[f32])) {
    let d = 16;
    let (keys, values) = (keys_and_queries(30, d, 6).0, gaussian(30 * d, 7));
    for spec in SPECS {
        let (key, value) = codecs(&format!("{spec},page=256"), d);
        f(spec, KEY, &*key, &keys);
        f(spec, VALUE, &*value, &values);
    }
}

/// What a damaged page may do: be refused as a page, or be rows that differ.
fn check(spec: &str, place: Place, codec: &dyn KvCodec, n: usize, page: &[u8]) -> bool {
    let mut rows = vec![0; n * codec.row_bytes()];
    let mut out = vec![0.0; n * codec.head_dim()];
    let unpacked = codec.unpack(place, page, &mut rows);
    let decoded = codec.decode(place, 0, page, &mut Vec::new(), &mut out);
    for result in [&unpacked, &decoded] {
        if let Err(error) = result {
            assert!(matches!(error, KvError::Page { n: found, .. } if *found == n), "{spec}: {error}");
        }
    }
    if unpacked.is_ok() {
        assert!(decoded.is_ok(), "{spec}: {decoded:?}");
        codec.dequantize(place, 0, &rows, &mut out).unwrap();
    }
    unpacked.is_ok()
}

#[test]
fn truncated_and_extended_pages_are_refused() {
    each(|spec, place, codec, x| {
        let n = x.len() / codec.head_dim();
        let mut page = Vec::new();
        codec.pack(place, &rows_of(codec, place, 0, x), &mut page).unwrap();
        assert!(check(spec, place, codec, n, &page));
        for len in 0..page.len() {
            assert!(!check(spec, place, codec, n, &page[..len]), "{spec}: {len}");
        }
        for extra in [4, 5, 1000] {
            let mut long = page.clone();
            long.resize(page.len() + extra, 1);
            assert!(!check(spec, place, codec, n, &long), "{spec}: {extra} more");
        }
        assert!(!check(spec, place, codec, 0, &page) && check(spec, place, codec, 0, &[]), "{spec}");
        assert!(!check(spec, place, codec, n - 1, &page) && !check(spec, place, codec, n + 1, &page), "{spec}");
    });
}

#[test]
fn random_bytes_and_flipped_bits_never_panic() {
    each(|spec, place, codec, x| {
        let n = x.len() / codec.head_dim();
        let mut page = Vec::new();
        codec.pack(place, &rows_of(codec, place, 0, x), &mut page).unwrap();
        let mut stream = words(4);
        for bit in 0..page.len() * 8 {
            let mut damaged = page.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            check(spec, place, codec, n, &damaged);
        }
        for len in 0..200 {
            let bytes: Vec<u8> = (0..len).map(|_| stream.next_u32() as u8).collect();
            check(spec, place, codec, n, &bytes);
            check(spec, place, codec, 1, &bytes);
        }
        check(spec, place, codec, n, &vec![0; 4096]);
        check(spec, place, codec, n, &vec![0xff; 4096]);
    });
}

#[test]
fn rows_that_are_no_lattice_points_are_not_packed() {
    let (codec, _) = codecs("e8@3,frame=none", 16);
    let mut rows = rows_of(&*codec, KEY, 0, &gaussian(32, 1));
    rows[2] ^= 1;
    let error = codec.pack(KEY, &rows, &mut Vec::new()).unwrap_err();
    assert!(error.to_string().contains("is no point of e8"), "{error}");
    assert!(matches!(codec.pack(KEY, &rows[1..], &mut Vec::new()), Err(KvError::Length { .. })));
    let (codec, _) = codecs("trellis-8@3", 16);
    let mut rows = rows_of(&*codec, KEY, 0, &gaussian(32, 1));
    rows[2] ^= 1;
    let error = codec.pack(KEY, &rows, &mut Vec::new()).unwrap_err();
    assert!(error.to_string().contains("no path of trellis-8@3"), "{error}");
}

/// Any rows, even those that no quantizer makes, give numbers.
#[test]
fn any_rows_dequantize() {
    each(|spec, place, codec, _| {
        let mut stream = words(9);
        let rows: Vec<u8> = (0..20 * codec.row_bytes()).map(|_| stream.next_u32() as u8).collect();
        let mut out = vec![0.0; 20 * codec.head_dim()];
        codec.dequantize(place, 0, &rows, &mut out).unwrap();
        assert!(out.iter().all(|v| v.is_finite()), "{spec}");
    });
}
