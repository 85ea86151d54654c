//! Matrices of E8 points under Rice codes, from the streams of a file: products with one column.
//!
//! A stream keeps its bits; 32 streams lie word by word side by side, so that the lanes of a warp read them together. That is
//! the code of the paper as it is; [`RicePlanes`](super::rice_planes::RicePlanes) moves its bits and is faster.

use std::sync::Arc;

use gosset_codec::{CodeHeader, DecodeScratch, Decoder, LatticeHeader, MatrixHeader, Plane, PlaneData, SchemeHeader};
use gosset_entropy::{STREAM_LEN, StreamIndex, rice};
use gosset_lattice::{BitStrip, E8, LatticeKind};

use super::checks::{check_len, to_u32};
use super::decoded::{ExactRows, find, scale_bits};
use super::rice_planes::RiceScratch;
use crate::error::CudaError;
use crate::generated::modules::Module;
use crate::generated::params::RiceLanesParams;
use crate::gpu::Gpu;
use crate::kernel::Launch;
use crate::memory::{Buffer, DevSlice, DevSliceMut};
use crate::stream::StreamRef;

/// Rows of a group: lanes of a warp.
const LANES: usize = 32;
/// Warps of a block.
const WARPS: usize = 28;
/// Bits that a look-up sees.
const WINDOW_BITS: u32 = 14;
/// Rows of a warp's ring.
const RING_ROWS: usize = 32;
/// Symbols that are decoded between two looks at the ring.
const CHUNK: usize = 64;
/// Zero bits before a stream, so that a window begins with an address.
const LEAD_BITS: usize = 2;
/// Rows are copied this many at a time.
const COPY_ROWS: usize = 4;
/// Largest parameter.
const MAX_K: u32 = 5;

/// A matrix of E8 points whose streams lie side by side.
#[derive(Debug)]
pub struct RiceLanes {
    rows: u32,
    cols: u32,
    step: f32,
    k: u32,
    words: Buffer<u32>,
    row0: Buffer<u32>,
    table: Arc<Buffer<u32>>,
    scales: Buffer<u16>,
    exact: Option<ExactRows>,
}

impl RiceLanes {
    /// Checks header and planes, lays the streams side by side and brings them to the device.
    ///
    /// # Errors
    /// [`CudaError::Codec`] for planes that no decoder accepts; [`CudaError::Unsupported`] for other codes and lattices,
    /// columns that are no multiple of 512, parameters above 5, and streams too different to be read together;
    /// [`CudaError::OutOfMemory`].
    pub fn upload(gpu: &Gpu, header: &MatrixHeader, planes: &[Plane<'_>]) -> Result<Self, CudaError> {
        let decoder = Decoder::new(header, planes)?;
        let (step, k) = match &header.scheme {
            SchemeHeader::Lattice(LatticeHeader { lattice, step, code: CodeHeader::Rice { ks }, .. })
                if lattice.0 == LatticeKind::E8 =>
            {
                (*step, u32::from(ks.first().copied().unwrap_or_default()))
            }
            _ => return Err(unsupported(header.codec_name().to_owned())),
        };
        if k > MAX_K {
            return Err(unsupported(format!("parameter {k}, more than {MAX_K}")));
        }
        let (words, row0) = side_by_side(&decoder, planes, k)?;
        Ok(Self {
            rows: to_u32("rows", decoder.rows())?,
            cols: to_u32("columns", decoder.cols())?,
            step,
            k,
            words: gpu.upload(&words)?,
            row0: gpu.upload(&row0)?,
            table: gpu.table(table(k))?,
            scales: gpu.upload(&scale_bits(planes))?,
            exact: ExactRows::upload(gpu, &decoder, planes)?,
        })
    }

    /// Number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows as usize
    }

    /// Number of columns.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.cols as usize
    }

    /// Bytes of the weights on the device: streams, where they begin, row scales and exact rows.
    #[must_use]
    pub fn device_bytes(&self) -> u64 {
        let exact = self.exact.as_ref().map_or(0, ExactRows::device_bytes);
        (self.words.bytes() + self.row0.bytes() + self.scales.bytes()) as u64 + exact
    }

    /// Scratch for products with this matrix.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`].
    pub fn scratch(&self, gpu: &Gpu) -> Result<RiceScratch, CudaError> {
        RiceScratch::of_len(gpu, self.n_segments() * self.n_groups() * LANES, self.n_groups())
    }

    /// `y = W x`: `x` is `[cols]` in the rotated frame, `y` is `[rows]`.
    ///
    /// x is rounded to 1/32600 of its largest magnitude; sums are integers within segments of 512 columns and added in a
    /// fixed order beyond.
    ///
    /// # Errors
    /// [`CudaError::Shape`], for scratch that is too small too; [`CudaError::Unsupported`] on devices with too little shared
    /// memory; what a launch can fail with.
    pub fn gemv(
        &self,
        gpu: &Gpu,
        stream: StreamRef<'_>,
        x: DevSlice<'_, f32>,
        mut y: DevSliceMut<'_, f32>,
        scratch: &mut RiceScratch,
    ) -> Result<(), CudaError> {
        check_len("x of a product", x.len(), self.cols())?;
        check_len("y of a product", y.len(), self.rows())?;
        let (n_groups, n_segments) = (self.n_groups(), self.n_segments());
        let (partial, counters) = scratch.pointers(n_segments * n_groups * LANES, n_groups)?;
        let params = RiceLanesParams {
            words: self.words.as_slice().ptr(),
            row0: self.row0.as_slice().ptr(),
            table: self.table.as_slice().ptr(),
            x: x.ptr(),
            scales: self.scales.as_slice().ptr(),
            y: y.ptr(),
            partial,
            counters,
            rows: self.rows,
            cols: self.cols,
            n_groups: n_groups as u32,
            n_segments: n_segments as u32,
            k: self.k,
            step: self.step,
        };
        let shared_bytes = (4 << WINDOW_BITS) + self.cols() * 5 / 2 + WARPS * RING_ROWS * 128;
        let kernel = gpu.kernel(Module::RiceLanes, "rice_lanes")?;
        if shared_bytes > kernel.max_dynamic_bytes() as usize {
            return Err(unsupported(format!("{} columns on a device with so little shared memory", self.cols)));
        }
        let launch = Launch {
            grid: [(n_groups * n_segments).min(gpu.info().n_sms as usize) as u32, 1, 1],
            block: [32 * WARPS as u32, 1, 1],
            shared_bytes: shared_bytes as u32,
            ..Launch::default()
        };
        // SAFETY: lengths were checked; the streams were laid out on the host, which checked that the ring holds them.
        unsafe {
            kernel.launch(stream, launch, &params)?;
            self.exact.as_ref().map_or(Ok(()), |exact| exact.dot(gpu, stream, x, &mut y, 1))
        }
    }

    fn n_groups(&self) -> usize {
        self.rows().div_ceil(LANES)
    }

    fn n_segments(&self) -> usize {
        self.cols() / STREAM_LEN
    }
}

fn unsupported(what: String) -> CudaError {
    CudaError::Unsupported { op: "the product from interleaved Rice streams", what }
}

/// Entries by window, see `rice_lanes.cu`.
fn table(k: u32) -> Vec<u32> {
    let unzigzag = |z: u32| (z >> 1) as i32 ^ -((z & 1) as i32);
    let entry = |window: u32| {
        let (mut rest, mut len, mut symbols) = (window, 0, [0; 2]);
        for z in &mut symbols {
            let zeros = rest.trailing_zeros();
            if len + zeros + 1 + k > WINDOW_BITS {
                return 1;
            }
            rest >>= zeros + 1;
            // The first bit of the low part is its highest.
            let low = (0..k).fold(0, |low, i| low << 1 | rest >> i & 1);
            rest >>= k;
            len += zeros + 1 + k;
            *z = zeros << k | low;
        }
        let (first, second) = (unzigzag(symbols[0]), unzigzag(symbols[1]));
        let last = 2 * unzigzag(symbols[1] >> 1);
        let Ok([first, second, last]) = [first, second, last].try_map_i8() else { return 1 };
        let parities = u32::from(first as u8 & 1) << 6 | u32::from((first ^ second) as u8 & 1) << 7;
        len | 32 | parities | u32::from(last as u8) << 8 | u32::from(first as u8) << 16 | u32::from(second as u8) << 24
    };
    (0..1 << WINDOW_BITS).map(entry).collect()
}

/// Conversion of all or none.
trait TryMapI8 {
    fn try_map_i8(self) -> Result<[i8; 3], std::num::TryFromIntError>;
}

impl TryMapI8 for [i32; 3] {
    fn try_map_i8(self) -> Result<[i8; 3], std::num::TryFromIntError> {
        Ok([self[0].try_into()?, self[1].try_into()?, self[2].try_into()?])
    }
}

/// The 32 bits of MSB-first `words` from `at` on; zeros beyond the end.
fn bits_at(words: &[u32], at: u64) -> u32 {
    let (word, shift) = ((at / 32) as usize, at % 32);
    let get = |i: usize| u64::from(words.get(i).copied().unwrap_or(0));
    ((get(word) << 32 | get(word + 1)) << shift >> 32) as u32
}

/// Words of all tasks, `[row, lane]`, and the first row of each task with the end.
fn side_by_side(decoder: &Decoder<'_>, planes: &[Plane<'_>], k: u32) -> Result<(Vec<u32>, Vec<u32>), CudaError> {
    let (rows, cols) = (decoder.rows(), decoder.cols());
    if !cols.is_multiple_of(STREAM_LEN) {
        return Err(unsupported(format!("{cols} columns, no multiple of {STREAM_LEN}")));
    }
    let (Some(PlaneData::U32(words)), Some(PlaneData::U16(lengths)), Some(PlaneData::U64(bases))) =
        (find(planes, "words"), find(planes, "lengths"), find(planes, "bases"))
    else {
        return Err(unsupported("planes without streams".to_owned()));
    };
    let index = StreamIndex::new(lengths, bases, (rows * cols) as u64, words.len())
        .map_err(|error| CudaError::Codec(error.to_string()))?;
    let scales = scale_bits(planes);
    let n_segments = cols / STREAM_LEN;
    let (mut out, mut row0) = (Vec::with_capacity(words.len() + words.len() / 8), Vec::new());
    let mut points = vec![0; LANES * cols];
    let mut scratch = DecodeScratch::new();
    for group in 0..rows.div_ceil(LANES) {
        let present = group * LANES..((group + 1) * LANES).min(rows);
        let points = &mut points[..present.len() * cols];
        decoder.decode_points(present.clone(), points, &mut scratch)?;
        for segment in 0..n_segments {
            let first = u32::try_from(out.len() / LANES);
            row0.push(first.map_err(|_| unsupported("a matrix of more than 2^32 rows of words".to_owned()))?);
            // Lanes beyond the matrix repeat its last row; those of rows of scale 0, whose products are 0 whatever their
            // streams say, one that is like the others.
            let is_used = |row: &usize| scales.get(present.start + row).is_some_and(|&scale| scale & 0x7FFF != 0);
            let substitute = (0..present.len()).find(is_used).unwrap_or(0);
            let row_of = |lane: usize| Some(lane.min(present.len() - 1)).filter(is_used).unwrap_or(substitute);
            let spans = std::array::from_fn::<_, LANES, _>(|lane| {
                index.locate((present.start + row_of(lane)) * n_segments + segment)
            });
            check_ring(points, cols, segment, k, row_of)?;
            let longest = spans.iter().map(|&(_, len)| LEAD_BITS + len as usize).max().unwrap_or(0);
            // A window reads one word further.
            let n_rows = (longest.div_ceil(32) + 1).next_multiple_of(COPY_ROWS);
            for row in 0..n_rows {
                out.extend(spans.iter().map(|&(start, len)| {
                    let word = if row == 0 {
                        bits_at(words, start) >> LEAD_BITS
                    } else {
                        bits_at(words, start + (32 * row - LEAD_BITS) as u64)
                    };
                    let left = (LEAD_BITS as u64 + len).saturating_sub(32 * row as u64);
                    let kept = if left >= 32 { u32::MAX } else { !(u32::MAX >> left) };
                    (word & kept).reverse_bits()
                }));
            }
        }
    }
    row0.push((out.len() / LANES) as u32);
    Ok((out, row0))
}

/// Checks that the ring of a warp holds what its lanes read in each chunk.
///
/// The rows for a chunk are asked for when the chunk before begins (those for the first two at once), up to the size of
/// the ring after the row that the last lane stands at.
fn check_ring(
    points: &[i32],
    cols: usize,
    segment: usize,
    k: u32,
    row_of: impl Fn(usize) -> usize,
) -> Result<(), CudaError> {
    const N_CHUNKS: usize = STREAM_LEN / CHUNK;
    // Word that a lane stands at when a chunk begins, and at the end: least and largest of all lanes.
    let (mut least, mut largest) = ([usize::MAX; N_CHUNKS + 1], [0; N_CHUNKS + 1]);
    for lane in 0..LANES {
        let from = row_of(lane) * cols + segment * STREAM_LEN;
        let mut position = 0usize;
        for (chunk, points) in points[from..from + STREAM_LEN].chunks(CHUNK).enumerate() {
            least[chunk] = least[chunk].min(position / 32);
            largest[chunk] = largest[chunk].max(position / 32);
            let blocks = points.as_chunks::<8>().0.iter();
            position += blocks.flat_map(|y| E8::strip(*y)).map(|z| rice::len_bits(z, k) as usize).sum::<usize>();
        }
        largest[N_CHUNKS] = largest[N_CHUNKS].max(position / 32);
    }
    for chunk in 0..N_CHUNKS {
        if largest[chunk + 1] + 2 - least[chunk.saturating_sub(1)] > RING_ROWS {
            return Err(unsupported("streams of so different lengths".to_owned()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_two_symbols() {
        for k in 0..=MAX_K {
            let table = table(k);
            // 1 and k ones, twice: symbols 2^k - 1.
            let entry = table[(1 << WINDOW_BITS) - 1];
            assert_eq!(entry & 63, (2 * (1 + k)) | 32);
            let value = ((1u32 << k) - 1) as i32;
            let value = value >> 1 ^ -(value & 1);
            assert_eq!((entry >> 16) as u8 as i8, value as i8);
            assert_eq!((entry >> 24) as u8 as i8, value as i8);
            assert_eq!(table[0], 1);
        }
    }
}
