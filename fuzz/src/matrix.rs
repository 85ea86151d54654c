//! Coded matrices: a header as JSON on a line of its own, then planes, each with the number of its name, its length and its bytes.

use gosset_codec::{CodeHeader, DecodeScratch, Decoder, MatrixHeader, Plane, PlaneData, SchemeHeader};
use gosset_unisvq::{UniSvqDecoder, UniSvqHeader, UniSvqMatrix};
use half::{bf16, f16};

const NAMES: [&str; 8] =
    ["words", "lengths", "bases", "scales", "exact_rows", "exact_values", "columns", "row_exponents"];

/// Most weights that are decoded for one input.
const MAX_WEIGHTS: usize = 1 << 21;

/// The input that holds a matrix.
pub fn matrix_input(header: &MatrixHeader, planes: &[Plane<'_>]) -> Vec<u8> {
    let planes = planes.iter().filter_map(|plane| {
        let name = NAMES.iter().position(|name| *name == plane.name)?;
        let bytes: Vec<u8> = match &plane.data {
            PlaneData::U8(data) => data.to_vec(),
            PlaneData::U16(data) => data.iter().flat_map(|v| v.to_le_bytes()).collect(),
            PlaneData::U32(data) => data.iter().flat_map(|v| v.to_le_bytes()).collect(),
            PlaneData::U64(data) => data.iter().flat_map(|v| v.to_le_bytes()).collect(),
            PlaneData::Bf16(data) => data.iter().flat_map(|v| v.to_le_bytes()).collect(),
            PlaneData::F32(data) => data.iter().flat_map(|v| v.to_le_bytes()).collect(),
        };
        Some((name as u8, bytes))
    });
    join(serde_json::to_string(header).unwrap_or_default(), planes)
}

/// The input that holds a matrix of grid codes.
pub fn unisvq_input(m: &UniSvqMatrix) -> Vec<u8> {
    let halves = |v: &Option<Vec<f16>>| v.as_ref().map(|v| v.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>());
    let planes = [Some(m.codes.clone()), halves(&m.input_scales), halves(&m.output_scales)];
    let planes = planes.into_iter().enumerate().filter_map(|(i, bytes)| Some((i as u8, bytes?)));
    join(serde_json::to_string(&m.header).unwrap_or_default(), planes)
}

fn join(header: String, planes: impl Iterator<Item = (u8, Vec<u8>)>) -> Vec<u8> {
    let mut out = header.into_bytes();
    out.push(b'\n');
    for (name, bytes) in planes {
        out.push(name);
        out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        out.extend(bytes);
    }
    out
}

/// Planes with the numbers of their names.
type Planes<'a> = Vec<(u8, &'a [u8])>;

/// Header and planes of an input; lengths beyond its end stop there.
fn split(data: &[u8]) -> Option<(&[u8], Planes<'_>)> {
    let line = data.iter().position(|&b| b == b'\n')?;
    let (header, mut rest) = (&data[..line], &data[line + 1..]);
    let mut planes = Planes::new();
    while let Some((head, body)) = rest.split_first_chunk::<5>() {
        let len = u32::from_le_bytes([head[1], head[2], head[3], head[4]]) as usize;
        let (bytes, next) = body.split_at(len.min(body.len()));
        planes.push((head[0], bytes));
        rest = next;
    }
    Some((header, planes))
}

macro_rules! numbers {
    ($bytes:expr, $ty:ty) => {
        $bytes.as_chunks().0.iter().map(|b| <$ty>::from_le_bytes(*b)).collect::<Vec<_>>().into()
    };
}

/// The matrix of an input; `None` where its header cannot be read.
pub fn parse_matrix(data: &[u8]) -> Option<(MatrixHeader, Vec<Plane<'_>>)> {
    let (header, planes) = split(data)?;
    let header = serde_json::from_slice(header).ok()?;
    let planes = planes.into_iter().map(|(name, bytes)| {
        let name = NAMES[usize::from(name) % NAMES.len()];
        let data = match name {
            "words" | "exact_rows" => PlaneData::U32(numbers!(bytes, u32)),
            "lengths" => PlaneData::U16(numbers!(bytes, u16)),
            "bases" => PlaneData::U64(numbers!(bytes, u64)),
            "scales" => PlaneData::Bf16(numbers!(bytes, bf16)),
            "exact_values" => PlaneData::F32(numbers!(bytes, f32)),
            _ => PlaneData::U8(bytes.into()),
        };
        Plane { name: name.into(), data }
    });
    Some((header, planes.collect()))
}

fn matrix(data: &[u8], wanted: impl Fn(&MatrixHeader) -> bool) {
    let Some((header, planes)) = parse_matrix(data) else { return };
    if !wanted(&header) {
        return;
    }
    let Ok(decoder) = Decoder::new(&header, &planes) else { return };
    let (rows, cols) = (decoder.rows(), decoder.cols());
    _ = (decoder.rate(), header.codec_name(), decoder.n_exact_rows());
    // What the planes vouch for bounds the columns, hence a row; blocks of rows may be all of the matrix.
    let some = (MAX_WEIGHTS / cols).clamp(1, rows);
    let (mut scratch, mut other) = (DecodeScratch::new(), DecodeScratch::filled_with(0x5a5a_5a5a));
    let mut whole = vec![0f32; some * cols];
    let result = decoder.decode_rows(0..some, &mut whole, &mut scratch);
    let mut rotated = vec![0f32; cols];
    // A single row needs fewer streams, so it may be whole where the others are damaged; never the other way round.
    let row = some / 2;
    let single = decoder.decode_rows(row..row + 1, &mut rotated, &mut other);
    if result.is_ok() {
        assert!(single.is_ok(), "row {row} of {some} good ones is refused");
        let expected = &whole[row * cols..][..cols];
        assert!(
            rotated.iter().zip(expected).all(|(a, b)| a.to_bits() == b.to_bits()),
            "row {row} depends on its neighbours"
        );
    }
    let again = decoder.decode_rows_rotated(0..some, &mut whole, &mut other);
    assert_eq!(again.is_ok(), result.is_ok());
    drop(whole);
    match decoder.n_column_streams() {
        None => {
            let mut points = vec![0i32; some * cols];
            _ = decoder.decode_points(0..some, &mut points, &mut scratch);
        }
        Some(n) => {
            for stream in 0..n.min(4096) {
                let known = decoder.columns_of_stream(stream);
                let check = |col: usize, first: usize, values: &[f32]| {
                    assert!(known.contains(&(col as u32)) && first + values.len() <= rows);
                };
                if decoder.decode_column_stream(stream, &mut scratch, check).is_err() {
                    break;
                }
            }
            if rows <= MAX_WEIGHTS {
                let mut column = vec![0f32; rows];
                if decoder.decode_columns_rotated(cols / 2..cols / 2 + 1, &mut column, &mut scratch).is_ok() {
                    decoder.restore_outputs(&mut column);
                }
            }
        }
    }
}

pub(crate) fn rice(data: &[u8]) {
    matrix(data, |h| h.columns.is_none() && code(h).is_some_and(|code| matches!(code, CodeHeader::Rice { .. })));
}

pub(crate) fn ans(data: &[u8]) {
    matrix(data, |h| h.columns.is_none() && code(h).is_some_and(|code| matches!(code, CodeHeader::Ans { .. })));
}

pub(crate) fn trellis(data: &[u8]) {
    matrix(data, |h| h.columns.is_none() && matches!(h.scheme, SchemeHeader::Trellis(_)));
}

pub(crate) fn shift(data: &[u8]) {
    matrix(data, |h| h.columns.is_none() && matches!(h.scheme, SchemeHeader::Shift(_)));
}

pub(crate) fn columns(data: &[u8]) {
    matrix(data, |h| h.columns.is_some());
}

fn code(header: &MatrixHeader) -> Option<&CodeHeader> {
    match &header.scheme {
        SchemeHeader::Lattice(lattice) => Some(&lattice.code),
        _ => None,
    }
}

pub(crate) fn unisvq(data: &[u8]) {
    let Some((header, planes)) = split(data) else { return };
    let Ok(header) = serde_json::from_slice::<UniSvqHeader>(header) else { return };
    let plane = |i: u8| planes.iter().find(|(name, _)| name % 3 == i).map(|(_, bytes)| *bytes);
    let halves = |i: u8| plane(i).map(|bytes| -> Vec<f16> { numbers!(bytes, f16) });
    let (input, output) = (halves(1), halves(2));
    let codes = plane(0).unwrap_or_default();
    let Ok(decoder) = UniSvqDecoder::new(&header, codes, input.as_deref(), output.as_deref()) else { return };
    let (rows, cols) = (decoder.rows(), decoder.cols());
    _ = (header.name(), decoder.input_is_shared(), decoder.row_codes(rows - 1));
    let mut row = vec![0f32; cols];
    decoder.codes_as_f32(rows - 1..rows, &mut row);
    decoder.decode_rows_rotated(0..1, &mut row);
    // Values in the original basis need whole blocks of rows.
    let some = decoder.row_block().max(1).min(rows);
    if some.saturating_mul(cols) <= MAX_WEIGHTS {
        let mut out = vec![0f32; some * cols];
        decoder.decode_rows(0..some, &mut out);
    }
    let mut x: Vec<f32> = (0..cols).map(|i| i as f32 / cols as f32 - 0.5).collect();
    decoder.rotate_input(&mut x);
    let beta = decoder.fold(&x, &mut row);
    let mut y = vec![beta; rows];
    decoder.finish_output(&mut y);
}
