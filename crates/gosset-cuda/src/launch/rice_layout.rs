//! The plane layout of E8 points under Rice codes: the bits of the codewords, moved to where a warp decodes them fast.
//!
//! The codewords are those of a Rice code with one parameter k, 1 to 4, chosen for the fewest bytes. Rows are cut into
//! groups of 16 and columns into segments of at most 16 *halves* of 64; a group and a segment are a *task*, the work of one
//! warp at a time. Lane l has the rows l / 4 and l / 4 + 8 of the group, and of every 4 blocks in a row block l mod 4; its
//! blocks come in the order of columns, that of the upper row first. So a half has 4 blocks of each lane, and two blocks of all
//! lanes are a fragment of mma.m16n8k32. A symbol z of k low bits goes to three places:
//!
//! - its unary part, ⌊z/2^k⌋ zeros and a one, to the bit string of the lane, from the least significant bit of words; word i
//!   of all lanes is one row of 128 bytes, a task has as many rows as its longest lane needs;
//! - its sign, bit 0, and k − 1 magnitude bits to planes of fixed width, k words per lane and half;
//! - in the last symbol of a block, bit 1 is the sign, and bit 0, the coset, takes the place of the lowest magnitude bit,
//!   which the parity of the others determines.
//!
//! Four unary parts in a row (a *quad*) take 14 bits at most and each is at most 7, so that one look-up in a table of 2^14
//! entries finds all four. A larger symbol is shortened and the difference to the point becomes a *patch*, a
//! correction of one weight. So every point is exact, at the price of 32 bits for a patch.

use std::num::NonZero;
use std::ops::Range;
use std::sync::Mutex;

use gosset_codec::{DecodeScratch, Decoder};
use gosset_lattice::{BitStrip, E8};

use crate::error::CudaError;

/// Largest parameter of the layout.
pub(super) const MAX_K: usize = 4;
/// Bits that one look-up sees.
const WINDOW_BITS: u32 = 14;
/// Largest unary part.
const MAX_UNARY: u32 = 7;
/// Rows of a group.
pub(super) const GROUP_ROWS: usize = 16;
/// Lanes of a warp.
const LANES: usize = 32;
/// Coordinates of a block.
const DIM: usize = 8;
/// Columns of a half.
const HALF_COLS: usize = 64;
/// Most halves of a segment.
const SEGMENT_HALVES: usize = 16;
/// Blocks of a lane in a half.
const LANE_BLOCKS: usize = 4;
/// Zero bits before the first codeword of a lane, so that a window begins with an address.
const LEAD_BITS: usize = 2;
/// Sum of the differences of a row in a task, so that 32-bit sums of patches cannot overflow.
const MAX_PATCHED: u64 = 1 << 20;

/// A matrix in the plane layout, on the host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct PlaneLayout {
    pub(super) k: usize,
    pub(super) n_groups: usize,
    pub(super) n_segments: usize,
    /// Halves of the widest segment.
    pub(super) n_halves: usize,
    /// Unary rows of the longest task.
    pub(super) max_rows: usize,
    /// `[task, half, lane, k]`.
    pub(super) planes: Vec<u32>,
    /// `[row, lane]`.
    pub(super) unary: Vec<u32>,
    /// First row of each task, and the end.
    pub(super) row0: Vec<u32>,
    /// Row of the group in bits 28 to 31, column of the segment in bits 16 to 25, difference in the low 16 bits.
    pub(super) patches: Vec<u32>,
    /// First patch of each task, and the end.
    pub(super) patch0: Vec<u32>,
}

/// Entries by window: the unary part of symbol i of a quad at bit 8i + 4, the length in bits 0 to 3, the parity of all four
/// unary parts at bit 8 and that of the first three at bit 9.
pub(super) fn table() -> Vec<u32> {
    let entry = |window: u32| {
        let (mut rest, mut len, mut entry, mut parity) = (window, 0, 0, [0; 2]);
        for i in 0..4 {
            let zeros = rest.trailing_zeros();
            if zeros > MAX_UNARY || len + zeros >= WINDOW_BITS {
                // No codewords of a layout; the length keeps a walk over damaged memory going.
                return 4;
            }
            rest >>= zeros + 1;
            len += zeros + 1;
            entry |= zeros << (8 * i + 4);
            parity[0] ^= zeros & 1;
            parity[1] ^= if i < 3 { zeros & 1 } else { 0 };
        }
        entry | len | parity[0] << 8 | parity[1] << 9
    };
    (0..1 << WINDOW_BITS).map(entry).collect()
}

/// Halves of a segment: all are cut as evenly as whole halves allow.
fn segment_halves(segment: usize, n_segments: usize, n_halves: usize) -> Range<usize> {
    segment * n_halves / n_segments..(segment + 1) * n_halves / n_segments
}

/// Row of the group and block of the half of a lane's `i`-th block in a half.
fn place(lane: usize, i: usize) -> (usize, usize) {
    (lane / 4 + 8 * (i % 2), 4 * (i / 2) + lane % 4)
}

impl PlaneLayout {
    /// The layout of the points of `decoder`, those of E8; columns are a multiple of 8.
    pub(super) fn new(decoder: &Decoder<'_>) -> Result<Self, CudaError> {
        let (rows, cols) = (decoder.rows(), decoder.cols());
        if !cols.is_multiple_of(DIM) {
            return Err(unsupported(format!("{cols} columns, no multiple of {DIM}")));
        }
        let n_groups = rows.div_ceil(GROUP_ROWS);
        let k = best_k(decoder)?;
        let n_threads = std::thread::available_parallelism().map_or(1, NonZero::get).min(n_groups);
        let parts = Mutex::new(Vec::with_capacity(n_threads));
        std::thread::scope(|scope| {
            for thread in 0..n_threads {
                let groups = thread * n_groups / n_threads..(thread + 1) * n_groups / n_threads;
                let parts = &parts;
                scope.spawn(move || {
                    let part = Self::of_groups(decoder, k, groups);
                    parts.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push((thread, part));
                });
            }
        });
        let mut parts = parts.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        parts.sort_unstable_by_key(|&(thread, _)| thread);
        let mut parts = parts.into_iter().map(|(_, part)| part);
        let mut layout = parts.next().unwrap_or_else(|| Self::of_groups(decoder, k, 0..0))?;
        for part in parts {
            layout.append(part?)?;
        }
        layout.n_groups = n_groups;
        Ok(layout)
    }

    fn append(&mut self, other: Self) -> Result<(), CudaError> {
        let (rows, patches) = (self.unary.len() / LANES, self.patches.len());
        let most = u32::MAX as usize;
        if rows + other.unary.len() / LANES > most || patches + other.patches.len() > most {
            return Err(unsupported("a matrix of more than 2^32 words".to_owned()));
        }
        self.row0.pop();
        self.patch0.pop();
        self.row0.extend(other.row0.iter().map(|row| row + rows as u32));
        self.patch0.extend(other.patch0.iter().map(|patch| patch + patches as u32));
        self.planes.extend_from_slice(&other.planes);
        self.unary.extend_from_slice(&other.unary);
        self.patches.extend_from_slice(&other.patches);
        self.max_rows = self.max_rows.max(other.max_rows);
        Ok(())
    }

    /// The tasks of some groups.
    fn of_groups(decoder: &Decoder<'_>, k: usize, groups: Range<usize>) -> Result<Self, CudaError> {
        let (rows, cols) = (decoder.rows(), decoder.cols());
        let all_halves = cols.div_ceil(HALF_COLS);
        let n_segments = all_halves.div_ceil(SEGMENT_HALVES);
        let n_halves = (0..n_segments).map(|s| segment_halves(s, n_segments, all_halves).len()).max().unwrap_or(0);
        let mut layout = Self { k, n_segments, n_halves, ..Self::default() };
        let mut points = vec![0; GROUP_ROWS * cols];
        let mut scratch = DecodeScratch::new();
        for group in groups {
            let present = group * GROUP_ROWS..((group + 1) * GROUP_ROWS).min(rows);
            let points = &mut points[..present.len() * cols];
            decoder.decode_points(present, points, &mut scratch)?;
            for segment in 0..n_segments {
                layout.push_task(points, cols, segment_halves(segment, n_segments, all_halves))?;
            }
        }
        layout.row0.push((layout.unary.len() / LANES) as u32);
        layout.patch0.push(layout.patches.len() as u32);
        Ok(layout)
    }

    /// Appends the task of the rows in `points` and of some halves of columns.
    fn push_task(&mut self, points: &[i32], cols: usize, halves: Range<usize>) -> Result<(), CudaError> {
        let first_row = u32::try_from(self.unary.len() / LANES);
        self.row0.push(first_row.map_err(|_| unsupported("a matrix of more than 2^32 words".to_owned()))?);
        self.patch0.push(self.patches.len() as u32);
        let plane0 = self.planes.len();
        self.planes.resize(plane0 + self.n_halves * LANES * self.k, 0);
        let mut lanes: [BitString; LANES] = std::array::from_fn(|_| BitString::default());
        let mut patched = [0; GROUP_ROWS];
        for (lane, bits) in lanes.iter_mut().enumerate() {
            bits.zeros(LEAD_BITS);
            for (half, i) in halves.clone().flat_map(|half| (0..LANE_BLOCKS).map(move |i| (half, i))) {
                let (row, block) = place(lane, i);
                let col = half * HALF_COLS + block * DIM;
                // Beyond the edges there are points 0.
                let y = points.get(row * cols + col..row * cols + col + DIM).filter(|_| col < cols);
                let y: [i32; DIM] = y.and_then(|y| y.try_into().ok()).unwrap_or_default();
                let symbols = shorten(E8::strip(y), self.k as u32);
                for z in symbols {
                    bits.zeros((z >> self.k) as usize);
                    bits.one();
                }
                let planes = plane0 + ((half - halves.start) * LANES + lane) * self.k;
                put_planes(&mut self.planes[planes..][..self.k], symbols, i, self.k);
                for (c, (&is, coded)) in y.iter().zip(E8::unstrip(symbols)).enumerate() {
                    let mut left = i64::from(is) - i64::from(coded);
                    patched[row] += left.unsigned_abs();
                    if patched[row] > MAX_PATCHED {
                        return Err(unsupported("points as large as these".to_owned()));
                    }
                    while left != 0 {
                        let part = left.clamp(-32_768, 32_767);
                        left -= part;
                        let at = row << 28 | (col + c - halves.start * HALF_COLS) << 16;
                        self.patches.push(at as u32 | u32::from(part as i16 as u16));
                    }
                }
            }
        }
        let n_rows = lanes.iter().map(|bits| bits.words.len()).max().unwrap_or(0);
        for row in 0..n_rows {
            self.unary.extend(lanes.iter().map(|bits| bits.words.get(row).copied().unwrap_or(0)));
        }
        self.max_rows = self.max_rows.max(n_rows);
        Ok(())
    }
}

/// The parameter that needs the fewest bits, by a sample of rows.
fn best_k(decoder: &Decoder<'_>) -> Result<usize, CudaError> {
    /// Rows that are looked at, evenly spread.
    const SAMPLE: usize = 64;
    let (rows, cols) = (decoder.rows(), decoder.cols());
    let mut row = vec![0; cols];
    let mut scratch = DecodeScratch::new();
    let mut bits = [0u64; MAX_K + 1];
    let n = rows.min(SAMPLE);
    for i in 0..n {
        let at = i * rows / n;
        decoder.decode_points(at..at + 1, &mut row, &mut scratch)?;
        for y in row.as_chunks::<DIM>().0 {
            let symbols = E8::strip(*y);
            for (k, bits) in bits.iter_mut().enumerate().skip(1) {
                let short = shorten(symbols, k as u32);
                let unary: u64 = short.iter().map(|z| u64::from(z >> k) + 1).sum();
                let patches = short.iter().zip(&symbols).filter(|(a, b)| a != b).count() as u64;
                *bits += unary + DIM as u64 * k as u64 + 32 * patches;
            }
        }
    }
    Ok((1..=MAX_K).min_by_key(|&k| bits[k]).unwrap_or(1))
}

/// The symbols with unary parts that the table of quads has.
fn shorten(mut symbols: [u32; DIM], k: u32) -> [u32; DIM] {
    for quad in symbols.as_chunks_mut::<4>().0 {
        let low = quad.map(|z| z & ((1 << k) - 1));
        let mut unary = quad.map(|z| (z >> k).min(MAX_UNARY));
        while unary.iter().sum::<u32>() > WINDOW_BITS - 4 {
            if let Some(largest) = unary.iter_mut().max() {
                *largest -= 1;
            }
        }
        *quad = std::array::from_fn(|i| unary[i] << k | low[i]);
    }
    symbols
}

/// Puts sign and low bits of the symbols of a lane's block `j` of a half into its planes.
fn put_planes(planes: &mut [u32], symbols: [u32; DIM], j: usize, k: usize) {
    for (i, z) in symbols.into_iter().enumerate() {
        let last = i == DIM - 1;
        let bit = |n: usize| z >> n & 1;
        // The last symbol: its sign is bit 1, the coset takes the lowest place.
        let (sign, lowest) = match (last, k) {
            (_, 1) => (bit(0), 0),
            (true, _) => (bit(1), bit(0)),
            (false, _) => (bit(0), bit(1)),
        };
        let (quad, byte) = (i / 4, 8 * (i % 4));
        if k == 2 {
            planes[quad] |= (sign << (7 - j) | lowest << (3 - j)) << byte;
        } else {
            let at = byte + 7 - (2 * j + quad);
            planes[0] |= sign << at;
            if k > 2 {
                planes[k - 1] |= lowest << at;
                for (plane, n) in planes[1..k - 1].iter_mut().zip((2..k).rev()) {
                    *plane |= bit(n) << at;
                }
            }
        }
    }
}

fn unsupported(what: String) -> CudaError {
    CudaError::Unsupported { op: "the plane layout of Rice codes", what }
}

/// Bits from the least significant one of word 0.
#[derive(Debug, Default)]
struct BitString {
    words: Vec<u32>,
    len: usize,
}

impl BitString {
    fn zeros(&mut self, n: usize) {
        self.len += n;
    }

    fn one(&mut self) {
        let word = self.len / 32;
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= 1 << (self.len % 32);
        self.len += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gosset_codec::{Codec, CodecSpec};
    use gosset_transform::{Domain, RandomStream};

    /// Sums of uniform numbers with outliers, in rows of very different size.
    fn matrix(rows: usize, cols: usize) -> Vec<f32> {
        let mut stream = RandomStream::new(5, Domain::Rotation, 3);
        let mut uniform = || stream.next_u32() as f32 / 4_294_967_296.0 - 0.5;
        let mut value = |i: usize| (uniform() + uniform() + uniform()) * if i % 1201 == 7 { 40.0 } else { 1.0 };
        (0..rows * cols).map(&mut value).collect()
    }

    /// The points of a layout, by the rules of the module's first page, one bit after the other.
    fn points_of(layout: &PlaneLayout, rows: usize, cols: usize) -> Vec<i32> {
        let (mut points, k, table) = (vec![0i64; rows * cols], layout.k, table());
        for task in 0..layout.n_groups * layout.n_segments {
            let (group, segment) = (task / layout.n_segments, task % layout.n_segments);
            let halves = segment_halves(segment, layout.n_segments, cols.div_ceil(64));
            for lane in 0..LANES {
                let mut position = LEAD_BITS;
                let bit =
                    |at: usize| layout.unary[(layout.row0[task] as usize + at / 32) * LANES + lane] >> (at % 32) & 1;
                for at in 0..halves.len() * LANE_BLOCKS {
                    let (half, j) = (at / LANE_BLOCKS, at % LANE_BLOCKS);
                    let planes = &layout.planes[((task * layout.n_halves + half) * LANES + lane) * k..][..k];
                    let (mut symbols, mut lens) = ([0u32; DIM], [0; 2]);
                    for (i, z) in symbols.iter_mut().enumerate() {
                        let start = position;
                        while bit(position) == 0 {
                            position += 1;
                        }
                        let unary = (position - start) as u32;
                        position += 1;
                        lens[i / 4] += position - start;
                        let plane = |n: usize| match k {
                            2 => planes[i / 4] >> (8 * (i % 4) + 7 - j - 4 * n) & 1,
                            _ => planes[n] >> (8 * (i % 4) + 7 - (2 * j + i / 4)) & 1,
                        };
                        let low = match (i, k) {
                            (_, 1) => plane(0),
                            (7, _) => plane(0) << 1 | plane(k - 1),
                            _ => plane(0) | plane(k - 1) << 1,
                        };
                        let high = (1..k.max(2) - 1).fold(0, |high, n| high << 1 | plane(n));
                        *z = unary << k | high << 2 | low;
                    }
                    for (quad, len) in lens.into_iter().enumerate() {
                        let start = position - lens[1] - if quad == 0 { lens[0] } else { 0 };
                        let n_bits = 32 * (layout.row0[task + 1] - layout.row0[task]) as usize;
                        let window = (0..14).filter(|i| start + i < n_bits).fold(0, |w, i| w | bit(start + i) << i);
                        let entry = table[window as usize];
                        assert_eq!(entry & 15, len as u32);
                        for i in 0..4 {
                            assert_eq!(entry >> (8 * i + 4) & 15, symbols[4 * quad + i] >> k);
                        }
                    }
                    let (row, block) = place(lane, j);
                    let (row, col) = (group * GROUP_ROWS + row, (halves.start + half) * HALF_COLS + block * DIM);
                    if row < rows && col < cols {
                        for (i, y) in E8::unstrip(symbols).into_iter().enumerate() {
                            points[row * cols + col + i] += i64::from(y);
                        }
                    } else {
                        assert_eq!(symbols, [0; DIM]);
                    }
                }
            }
            for &patch in &layout.patches[layout.patch0[task] as usize..layout.patch0[task + 1] as usize] {
                let row = group * GROUP_ROWS + (patch >> 28) as usize;
                let col = halves.start * HALF_COLS + (patch >> 16 & 1023) as usize;
                points[row * cols + col] += i64::from(patch as u16 as i16);
            }
        }
        points.into_iter().map(|y| y as i32).collect()
    }

    #[test]
    fn the_layout_holds_the_points_exactly() {
        for (rows, cols, rate) in
            [(33, 576, 1.5), (70, 896, 2.0), (1, 8, 3.0), (32, 1224, 4.0), (40, 512, 5.0), (65, 600, 6.0)]
        {
            let codec: Codec = CodecSpec::named("e8-rice", rate).unwrap().check().unwrap();
            let encoded = codec.encode_owned(matrix(rows, cols), rows, cols).unwrap();
            let decoder = encoded.decoder().unwrap();
            let layout = PlaneLayout::new(&decoder).unwrap();
            let mut points = vec![0; rows * cols];
            decoder.decode_points(0..rows, &mut points, &mut DecodeScratch::new()).unwrap();
            assert!(points_of(&layout, rows, cols) == points, "{rows} x {cols} at {rate}, k = {}", layout.k);
            assert_eq!(layout.row0.len(), layout.n_groups * layout.n_segments + 1);
        }
    }

    #[test]
    fn points_too_large_for_patches_are_refused() {
        let mut values = vec![1e-6f32; 1 << 16];
        values[5] = 1.0;
        let mut spec = CodecSpec::named("e8-rice", 6.0).unwrap();
        spec.target = gosset_codec::RateTarget::Alpha(16_000.0);
        spec.rotation = gosset_codec::RotationSpec::None;
        let encoded = spec.check().unwrap().encode_owned(values, 1, 1 << 16).unwrap();
        let refused = PlaneLayout::new(&encoded.decoder().unwrap());
        assert!(matches!(refused, Err(CudaError::Unsupported { .. })), "{:?}", refused.map(|_| ()));
    }
}
