//! Matrices encoded on the device: the planes of the CPU codec, byte for byte.
//!
//! [`unit_rows`] rotates and scales rows, [`rice()`] makes the streams of the paper's format of them, and
//! [`encode`] is a whole [`EncodedMatrix`] of a specification: a lattice under Rice codes at a given alpha, or the
//! bit-shift trellis. To find alpha for a payload is the CPU's work.

use std::borrow::Cow;

use gosset_codec::{
    CodeHeader, CodeKind, CodecError, CodecSpec, EncodedMatrix, Gain, LatticeHeader, LatticeName, MatrixHeader, Plane,
    PlaneData, RateTarget, RotationHeader, RotationSpec, SchemeHeader, SchemeSpec, ShiftHeader,
};
use gosset_entropy::rice::{self, MAX_K};
use gosset_entropy::{STREAM_LEN, STREAMS_PER_PAGE};
use gosset_lattice::LatticeKind;
use gosset_transform::{Rht, TilePlan};
use gosset_trellis::shift::ShiftSpec;
use half::{bf16, f16};

use super::checks::to_u32;
use super::viterbi::{ViterbiEncoder, ViterbiScratch};
use crate::error::CudaError;
use crate::generated::modules::Module;
use crate::generated::params::{QuantizeRowsParams, QuantizeStreamParams};
use crate::gpu::Gpu;
use crate::kernel::Launch;
use crate::memory::{Buffer, DevSlice, DeviceType};
use crate::stream::StreamRef;

/// Most runs of a plan: powers of two up to 2^16, each at most once.
const MAX_RUNS: usize = 17;
/// Streams of a block.
const STREAMS_PER_BLOCK: u64 = 8;
/// Symbols below this are counted one by one.
const DENSE: usize = 256;
/// Counts of a class: those of small symbols, the cost of the others under each parameter, and their number.
const CLASS_COUNTS: usize = DENSE + MAX_K as usize + 2;
/// Largest magnitude of alpha times a value, as in the CPU codec.
const MAX_SCALED: f32 = 16_777_216.0;
/// Scales are within 2^-100 and 2^100, as in the CPU codec.
const SCALES: std::ops::RangeInclusive<f32> = f32::from_bits((127 - 100) << 23)..=f32::from_bits((127 + 100) << 23);

/// Element types of matrices.
pub trait QuantizeInput: DeviceType + sealed::Sealed {
    /// How the kernel is told.
    #[doc(hidden)]
    const DTYPE: u32;
    /// The value, exactly.
    fn widen(self) -> f32;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for half::bf16 {}
    impl Sealed for half::f16 {}
}

impl QuantizeInput for f32 {
    const DTYPE: u32 = 0;
    fn widen(self) -> f32 {
        self
    }
}

impl QuantizeInput for bf16 {
    const DTYPE: u32 = 1;
    fn widen(self) -> f32 {
        self.to_f32()
    }
}

impl QuantizeInput for f16 {
    const DTYPE: u32 = 2;
    fn widen(self) -> f32 {
        self.to_f32()
    }
}

/// Rows of unit RMS on a device, and what is known of them.
#[derive(Debug)]
pub struct UnitRows {
    gpu: Gpu,
    units: Buffer<f32>,
    scales: Vec<bf16>,
    exact_rows: Vec<u32>,
    exact_values: Vec<f32>,
    peak: f32,
    peak_row: usize,
    rows: usize,
    cols: usize,
}

impl UnitRows {
    /// The rotated rows, each divided by its scale: `[rows, cols]`.
    #[must_use]
    pub fn units(&self) -> DevSlice<'_, f32> {
        self.units.as_slice()
    }

    /// RMS of each rotated row, rounded to bf16; zero for rows of zeros and for those in [`UnitRows::exact_rows`].
    #[must_use]
    pub fn scales(&self) -> &[bf16] {
        &self.scales
    }

    /// Rows that have no usable scale, ascending; their units are zero.
    #[must_use]
    pub fn exact_rows(&self) -> &[u32] {
        &self.exact_rows
    }

    /// Original values of those rows, one after the other.
    #[must_use]
    pub fn exact_values(&self) -> &[f32] {
        &self.exact_values
    }

    /// Largest magnitude among the units.
    #[must_use]
    pub fn peak(&self) -> f32 {
        self.peak
    }

    /// Rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.cols
    }
}

/// Streams of Rice codes on a device.
#[derive(Debug)]
pub struct RiceStreams {
    words: Buffer<u32>,
    lengths: Buffer<u16>,
    bases: Buffer<u64>,
    ks: Vec<u32>,
}

impl RiceStreams {
    /// Codewords, most significant bit first.
    #[must_use]
    pub fn words(&self) -> DevSlice<'_, u32> {
        self.words.as_slice()
    }

    /// Length of each stream in bits.
    #[must_use]
    pub fn lengths(&self) -> DevSlice<'_, u16> {
        self.lengths.as_slice()
    }

    /// First bit of each page.
    #[must_use]
    pub fn bases(&self) -> DevSlice<'_, u64> {
        self.bases.as_slice()
    }

    /// Parameter of each symbol class of the lattice.
    #[must_use]
    pub fn ks(&self) -> &[u32] {
        &self.ks
    }
}

/// Rotates the rows of a row-major matrix and divides each by its scale, as the CPU codec does, bit for bit.
///
/// # Errors
/// [`CudaError::Shape`] for an empty matrix, another length or another width of the transform; [`CudaError::Codec`] for a
/// value that is not finite, with its row; [`CudaError::OutOfMemory`].
pub fn unit_rows<T: QuantizeInput>(
    gpu: &Gpu,
    stream: StreamRef<'_>,
    data: DevSlice<'_, T>,
    rows: usize,
    cols: usize,
    rht: Option<&Rht>,
) -> Result<UnitRows, CudaError> {
    if rows == 0 || cols == 0 || rows.checked_mul(cols) != Some(data.len()) {
        return Err(CudaError::shape(
            "matrix to quantize",
            format!("{rows} rows of {cols}, at least one value"),
            data.len(),
        ));
    }
    let mut params = QuantizeRowsParams {
        x: data.ptr(),
        units: 0,
        scales: 0,
        signs: 0,
        status: 0,
        rows: to_u32("rows", rows)?,
        cols: to_u32("columns", cols)?,
        dtype: T::DTYPE,
        n_runs: 0,
        run_tile: [1; MAX_RUNS],
        run_end: [0; MAX_RUNS],
        run_scale: [1.0; MAX_RUNS],
    };
    let signs = match rht {
        None => Buffer::uninit(gpu, 0)?,
        Some(rht) => {
            let runs = rht.plan().runs();
            if rht.plan().width() != cols || runs.len() > MAX_RUNS {
                return Err(CudaError::shape("columns to rotate", rht.plan().width(), cols));
            }
            params.n_runs = runs.len() as u32;
            let mut end = 0;
            for (i, run) in runs.iter().enumerate() {
                // Within the width, which is below 2^31.
                end += run.columns() as u32;
                (params.run_tile[i], params.run_end[i], params.run_scale[i]) = (run.tile, end, run.scale());
            }
            gpu.upload(rht.signs().words())?
        }
    };
    let mut units = Buffer::<f32>::uninit(gpu, data.len())?;
    let mut scales = Buffer::<u16>::uninit(gpu, rows)?;
    let mut status = gpu.upload(&[0, 0, u64::MAX])?;
    params.units = units.as_mut().ptr();
    params.scales = scales.as_mut().ptr();
    params.signs = signs.as_slice().ptr();
    params.status = status.as_mut().ptr();
    let kernel = gpu.kernel(Module::Quantize, "quantize_rows")?;
    let launch = Launch { grid: [params.rows, 1, 1], block: [256, 1, 1], ..Launch::default() };
    // SAFETY: data and units have a value per row and column, scales one per row; the runs end at the width, and there is
    // a sign for each column.
    unsafe { kernel.launch(stream, launch, &params)? };
    let status = gpu.download(status.as_slice())?;
    if status[2] != u64::MAX {
        return Err(CudaError::Codec(format!("row {}: found NaN or infinity, expected finite values", status[2])));
    }
    let scales: Vec<_> = gpu.download(scales.as_slice())?.into_iter().map(bf16::from_bits).collect();
    let (mut exact_rows, mut exact_values) = (Vec::new(), Vec::new());
    if status[1] > 0 {
        for (row, _) in scales.iter().enumerate().filter(|(_, scale)| **scale == bf16::ZERO) {
            let values = gpu.download(data.slice(row * cols..(row + 1) * cols)?)?;
            if values.iter().any(|v| v.widen() != 0.0) {
                exact_rows.push(row as u32);
                exact_values.extend(values.into_iter().map(T::widen));
            }
        }
    }
    // The upper half is the magnitude, the lower one the row, counted down.
    let (peak, peak_row) = (f32::from_bits((status[0] >> 32) as u32), (u32::MAX - status[0] as u32) as usize);
    let peak_row = if peak == 0.0 { 0 } else { peak_row };
    Ok(UnitRows { gpu: gpu.clone(), units, scales, exact_rows, exact_values, peak, peak_row, rows, cols })
}

/// What `quantize_streams` does.
const COUNT: u32 = 0;
const LENGTHS: u32 = 1;
const WRITE: u32 = 2;

fn streams_of(lattice: LatticeKind) -> &'static str {
    match lattice {
        LatticeKind::Z => "quantize_streams_z",
        LatticeKind::A2 => "quantize_streams_a2",
        LatticeKind::D4 => "quantize_streams_d4",
        LatticeKind::E8 => "quantize_streams_e8",
    }
}

/// The parameter with the fewest bits, the smallest of equals.
fn best_k(counts: &[u64]) -> u32 {
    let bits = |k: u32| -> u64 {
        let dense: u64 = (0..).zip(&counts[..DENSE]).map(|(z, &n)| n * u64::from(rice::len_bits(z, k))).sum();
        dense + counts[DENSE + k as usize]
    };
    (0..=MAX_K).min_by_key(|&k| bits(k)).unwrap_or(0)
}

/// Nearest points of `alpha` times the units, stripped, under Rice codes with the given parameters or, without them, those
/// of the fewest bits. Waits for the device.
///
/// # Errors
/// [`CudaError::Codec`] where a value leaves the range of the lattice; [`CudaError::Shape`] for parameters that are not one
/// per class of at most 15; [`CudaError::OutOfMemory`].
pub fn rice(
    stream: StreamRef<'_>,
    rows: &UnitRows,
    lattice: LatticeKind,
    alpha: f32,
    ks: Option<&[u32]>,
) -> Result<RiceStreams, CudaError> {
    let gpu = &rows.gpu;
    let found = alpha * rows.peak;
    if found > MAX_SCALED || !alpha.is_finite() {
        return Err(CodecError::Magnitude { row: rows.peak_row, found, max: MAX_SCALED }.into());
    }
    let n_classes = lattice.n_classes();
    let n_values = rows.units.len() as u64;
    let n_streams = n_values.div_ceil(STREAM_LEN as u64);
    let n_pages = n_streams.div_ceil(STREAMS_PER_PAGE as u64);
    let blocks = to_u32("streams of a matrix", n_streams.div_ceil(STREAMS_PER_BLOCK) as usize)?;
    let mut lengths = Buffer::<u16>::uninit(gpu, n_streams as usize)?;
    let mut bases = Buffer::<u64>::uninit(gpu, n_pages as usize)?;
    let mut n_words = gpu.alloc::<u64>(1)?;
    let mut params = QuantizeStreamParams {
        units: rows.units.as_slice().ptr(),
        counts: 0,
        lengths: lengths.as_mut().ptr(),
        bases: bases.as_mut().ptr(),
        n_words: n_words.as_mut().ptr(),
        words: 0,
        n_values,
        n_streams,
        alpha,
        k: [0; 2],
        mode: COUNT,
    };
    let launch = |entry, grid, block, params: &QuantizeStreamParams| {
        let launch = Launch { grid: [grid, 1, 1], block: [block, 1, 1], ..Launch::default() };
        // SAFETY: there are a length per stream and a base per page of the units; counts and words as the callers below say.
        unsafe { gpu.kernel(Module::Quantize, entry)?.launch(stream, launch, params) }
    };
    let ks = match ks {
        Some(ks) if ks.len() == n_classes && ks.iter().all(|&k| k <= MAX_K) => ks.to_vec(),
        Some(ks) => {
            let expected = format!("{} of at most {MAX_K}", n_classes);
            return Err(CudaError::shape("rice parameters", expected, format!("{ks:?}")));
        }
        None => {
            // Counts of each class, zero before.
            let mut counts = gpu.alloc::<u64>(n_classes * CLASS_COUNTS)?;
            params.counts = counts.as_mut().ptr();
            launch(streams_of(lattice), blocks.min(8 * gpu.info().n_sms), 256, &params)?;
            gpu.download(counts.as_slice())?.chunks(CLASS_COUNTS).map(best_k).collect()
        }
    };
    params.k[..ks.len()].copy_from_slice(&ks);
    params.mode = LENGTHS;
    launch(streams_of(lattice), blocks, 256, &params)?;
    launch("quantize_bases", 1, 1024, &params)?;
    let n_words = gpu.download(n_words.as_slice())?[0];
    let n_words = usize::try_from(n_words).map_err(|_| CudaError::shape("words of a matrix", "countable", n_words))?;
    // As many words as the pages take, zero before.
    let mut words = gpu.alloc::<u32>(n_words)?;
    params.words = words.as_mut().ptr();
    params.mode = WRITE;
    launch(streams_of(lattice), blocks, 256, &params)?;
    stream.synchronize()?;
    Ok(RiceStreams { words, lengths, bases, ks })
}

/// The planes of a specification, equal byte for byte to those of its [`Codec`](gosset_codec::Codec).
///
/// Lattices under Rice codes at a given alpha, and the bit-shift trellises.
///
/// # Errors
/// Those of [`unit_rows`], [`rice()`] and [`ViterbiEncoder::encode`]; [`CudaError::Unsupported`] for other codes and for a
/// lattice with a payload target.
pub fn encode<T: QuantizeInput>(
    gpu: &Gpu,
    spec: &CodecSpec,
    data: DevSlice<'_, T>,
    rows: usize,
    cols: usize,
) -> Result<EncodedMatrix, CudaError> {
    spec.check()?;
    let unsupported = |what: &str| CudaError::Unsupported { op: "quantize", what: what.to_owned() };
    let rht = match spec.rotation {
        RotationSpec::None => None,
        RotationSpec::Rht { tile, seed } => {
            let plan = TilePlan::new(cols, tile).map_err(|error| CudaError::Codec(error.to_string()))?;
            Some(Rht::new(plan, seed))
        }
        _ => return Err(unsupported("this rotation")),
    };
    let stream = gpu.stream()?;
    let units = || unit_rows(gpu, stream.as_ref(), data, rows, cols, rht.as_ref());
    let (units, scales, mut planes, scheme) = match (&spec.scheme, spec.target) {
        (SchemeSpec::Lattice { lattice, code: CodeKind::Rice, gain: Gain::None }, RateTarget::Alpha(alpha)) => {
            let units = units()?;
            let alpha = alpha as f32;
            let streams = rice(stream.as_ref(), &units, lattice.0, alpha, None)?;
            let planes = vec![
                plane("words", PlaneData::U32(Cow::Owned(gpu.download(streams.words())?))),
                plane("lengths", PlaneData::U16(Cow::Owned(gpu.download(streams.lengths())?))),
                plane("bases", PlaneData::U64(Cow::Owned(gpu.download(streams.bases())?))),
            ];
            let code = CodeHeader::Rice { ks: streams.ks.iter().map(|&k| k as u8).collect() };
            let header = LatticeHeader { lattice: LatticeName(lattice.0), alpha, step: 1.0 / alpha, code };
            let scales = units.scales.clone();
            (units, scales, planes, SchemeHeader::Lattice(header))
        }
        (SchemeSpec::Lattice { code: CodeKind::Rice, gain: Gain::None, .. }, _) => {
            return Err(unsupported("a lattice with a payload target; give alpha"));
        }
        (&SchemeSpec::Shift { state_bits, code, order }, RateTarget::PayloadBps(bits)) => {
            let shift = ShiftSpec { bits: bits as u8, state_bits, code: code.into(), order: order.into() };
            let trellis = shift.check()?;
            let units = units()?;
            let (words, gains) = search(gpu, stream.as_ref(), &trellis, &units)?;
            let header = ShiftHeader { bits: shift.bits, state_bits, code, order, step: trellis.step() };
            let scales = fold_gains(&units.scales, &gains);
            (units, scales, vec![plane("words", PlaneData::U32(Cow::Owned(words)))], SchemeHeader::Shift(header))
        }
        _ => return Err(unsupported(spec.name())),
    };
    planes.push(plane("scales", PlaneData::Bf16(Cow::Owned(scales))));
    if !units.exact_rows.is_empty() {
        planes.push(plane("exact_rows", PlaneData::U32(Cow::Owned(units.exact_rows))));
        planes.push(plane("exact_values", PlaneData::F32(Cow::Owned(units.exact_values))));
    }
    let rotation = RotationHeader::of(rht.as_ref());
    Ok(EncodedMatrix {
        header: MatrixHeader { rows: rows as u64, cols: cols as u64, rotation, columns: None, scheme },
        planes,
    })
}

fn plane(name: &'static str, data: PlaneData<'static>) -> Plane<'static> {
    Plane { name: Cow::Borrowed(name), data }
}

/// Words and gains of unit rows under a trellis.
fn search(
    gpu: &Gpu,
    stream: StreamRef<'_>,
    trellis: &gosset_trellis::shift::ShiftTrellis,
    units: &UnitRows,
) -> Result<(Vec<u32>, Vec<f32>), CudaError> {
    let layout = trellis.layout(units.rows, units.cols)?;
    let encoder = ViterbiEncoder::new(gpu, trellis)?;
    let mut words = Buffer::uninit(gpu, layout.n_words())?;
    let mut gains = Buffer::uninit(gpu, units.rows)?;
    let mut scratch = ViterbiScratch::new();
    encoder.encode(stream, &layout, units.units(), words.as_mut(), &mut scratch)?;
    encoder.gains(stream, &layout, units.units(), words.as_slice(), gains.as_mut())?;
    Ok((gpu.download(words.as_slice())?, gpu.download(gains.as_slice())?))
}

/// Scales with a gain per row made part of them, where that leads to a usable scale: as in the CPU codec.
fn fold_gains(scales: &[bf16], gains: &[f32]) -> Vec<bf16> {
    let fold = |(&scale, &gain): (&bf16, &f32)| {
        let folded = bf16::from_f32(scale.to_f32() * gain);
        if scale != bf16::ZERO && SCALES.contains(&folded.to_f32()) { folded } else { scale }
    };
    scales.iter().zip(gains).map(fold).collect()
}
