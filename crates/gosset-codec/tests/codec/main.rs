//! Laws of the codec on whole matrices.
#![allow(clippy::unwrap_used, reason = "helpers of tests, which fail by panicking")]

mod ans;
mod columns;
mod damage;
mod determinism;
mod ladder;
mod rates;
mod rows;
mod shapes;
mod shift;
mod vectors;

use gosset_codec::{
    Codec, CodecSpec, DecodeScratch, EncodedMatrix, LatticeHeader, MatRef, RateTarget, RotationSpec, SchemeHeader,
};

/// The codec of that name without rotation at a fixed alpha.
fn at_alpha(name: &str, alpha: f64) -> Codec {
    let spec = CodecSpec { target: RateTarget::Alpha(alpha), rotation: RotationSpec::None, ..spec(name, 3.0) };
    spec.check().unwrap()
}

fn spec(name: &str, bps: f64) -> CodecSpec {
    CodecSpec::named(name, bps).unwrap()
}

fn encode(codec: &Codec, data: &[f32], rows: usize, cols: usize) -> EncodedMatrix {
    codec.encode(MatRef::new(data, rows, cols).unwrap()).unwrap()
}

fn decode(encoded: &EncodedMatrix) -> Vec<f32> {
    let decoder = encoded.decoder().unwrap();
    let mut out = vec![f32::NAN; decoder.rows() * decoder.cols()];
    decoder.decode_rows(0..decoder.rows(), &mut out, &mut DecodeScratch::new()).unwrap();
    out
}

fn lattice_header(encoded: &EncodedMatrix) -> &LatticeHeader {
    match &encoded.header.scheme {
        SchemeHeader::Lattice(header) => header,
        other => panic!("unexpected scheme {other:?}"),
    }
}

fn snr_db(x: &[f32], decoded: &[f32]) -> f64 {
    let signal: f64 = x.iter().map(|&v| f64::from(v).powi(2)).sum();
    let noise: f64 = x.iter().zip(decoded).map(|(&a, &b)| (f64::from(a) - f64::from(b)).powi(2)).sum();
    10.0 * (signal / noise).log10()
}

fn gaussian(n: usize, seed: u64) -> Vec<f32> {
    gosset_codec::calibrate::gaussian(n, seed)
}
