//! Matrices under the bit-shift trellis on a device: products that decode on the way, and decoding.
//!
//! ```text
//! y = W (R x)     W rows x cols, bf16 row scales; R the rotation of the rows: products take x as it is
//! ```
//!
//! The words are those of the container, put into the order of the tensor cores' operands by a kernel; nothing else is
//! stored (beside rows: 16 bits of history per row and 128 columns). The twin on the CPU is
//! [`ShiftDecoder`](gosset_trellis::shift::ShiftDecoder).

use std::ops::Range;
use std::sync::Arc;

use gosset_codec::{Decoder, MatrixHeader, Plane, PlaneData, SchemeHeader};
use gosset_transform::Rht;
use gosset_trellis::shift::{ShiftCode, ShiftLayout, ShiftOrder, ShiftSpec, ShiftTrellis};
use half::{bf16, f16};

use super::rht::{DeviceRht, RhtInput};
use super::shift_layout::{GemvCut, MIN_SHARED, UNIT_COLS, UNIT_ROWS, Units, is_wide, multipliers, unit_ranges};
use crate::error::CudaError;
use crate::generated::modules::Module;
use crate::generated::params::{
    ShiftAnyParams, ShiftDecodeParams, ShiftExactParams, ShiftExactRowsParams, ShiftGemvParams, ShiftPackParams,
    ShiftRandomParams,
};
use crate::gpu::Gpu;
use crate::kernel::Launch;
use crate::memory::{Buffer, DevSlice, DevSliceMut, DeviceType};
use crate::stream::StreamRef;

pub use super::shift_gemm::{MAX_GEMM_BATCH, ShiftWorkspace};
pub use super::shift_layout::random_word;

/// Threads of the kernels that copy.
const COPY_THREADS: u32 = 256;
/// Threads of a block of the kernels that take any trellis.
const ANY_THREADS: u32 = 256;
/// Longest tile of a rotation that a product takes on itself.
const MAX_FUSED_TILE: u32 = 128;

/// Element types of activations and results.
pub trait ShiftElement: DeviceType + RhtInput + sealed::Sealed {
    /// Number of the type in the parameters of the kernels.
    #[doc(hidden)]
    const TYPE: u32;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for half::f16 {}
    impl Sealed for half::bf16 {}
}

impl ShiftElement for f32 {
    const TYPE: u32 = 0;
}

impl ShiftElement for f16 {
    const TYPE: u32 = 1;
}

impl ShiftElement for bf16 {
    const TYPE: u32 = 2;
}

/// A matrix on a device.
#[derive(Debug)]
pub struct ShiftMatrix {
    pub(super) gpu: Gpu,
    pub(super) trellis: ShiftTrellis,
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) units: Units,
    pub(super) words: Buffer<u32>,
    pub(super) histories: Buffer<u32>,
    pub(super) table: Arc<Buffer<u32>>,
    pub(super) scales: Buffer<bf16>,
    pub(super) step: f32,
    pub(super) rotation: Rotation,
    pub(super) exact: Option<ExactRows>,
}

/// The rotation of the rows.
#[derive(Debug)]
pub(super) enum Rotation {
    None,
    /// Done by the product: signs of whole units, and the log2 of each column's tile unless all are 128.
    Fused {
        signs: Buffer<u32>,
        tile_logs: Option<Buffer<u8>>,
        rht: Box<DeviceRht>,
    },
    /// Tiles are too long for that.
    Separate {
        rht: Box<DeviceRht>,
    },
}

/// Rows that are stored as they are.
#[derive(Debug)]
pub(super) struct ExactRows {
    pub(super) rows: Buffer<u32>,
    /// In the original basis.
    pub(super) values: Buffer<f32>,
    /// In the rotated frame.
    pub(super) rotated: Buffer<f32>,
}

impl ShiftMatrix {
    /// The matrix of a container's header and planes.
    ///
    /// # Errors
    /// [`CudaError::Codec`] for planes that do not decode under the header, [`CudaError::Unsupported`] for another scheme,
    /// [`CudaError::OutOfMemory`], and what a launch can fail with.
    pub fn new(gpu: &Gpu, header: &MatrixHeader, planes: &[Plane<'_>]) -> Result<Self, CudaError> {
        let SchemeHeader::Shift(shift) = &header.scheme else {
            return Err(CudaError::Unsupported { op: "shift", what: header.codec_name().to_owned() });
        };
        // Checks everything that is relied on below.
        let decoder = Decoder::new(header, planes)?;
        let trellis = ShiftSpec {
            bits: shift.bits,
            state_bits: shift.state_bits,
            code: shift.code.into(),
            order: shift.order.into(),
        }
        .check()?;
        let layout = trellis.layout(decoder.rows(), decoder.cols())?;
        let plane = |name| planes.iter().find(|plane| plane.name == name).map(|plane| &plane.data);
        let missing = |name: &str| CudaError::Codec(format!("plane `{name}` is missing or of another type"));
        let Some(PlaneData::U32(words)) = plane("words") else { return Err(missing("words")) };
        let Some(PlaneData::Bf16(scales)) = plane("scales") else { return Err(missing("scales")) };
        let source = gpu.upload(words)?;
        let mut matrix =
            Self::pack(gpu, &trellis, &layout, source, gpu.upload(scales)?, shift.step, decoder.rotation())?;
        if decoder.n_exact_rows() > 0 {
            let Some(PlaneData::U32(rows)) = plane("exact_rows") else { return Err(missing("exact_rows")) };
            let Some(PlaneData::F32(values)) = plane("exact_values") else { return Err(missing("exact_values")) };
            let mut rotated = values.to_vec();
            if let Some(rht) = decoder.rotation() {
                rht.forward_rows(&mut rotated);
            }
            let (rows, values, rotated) = (gpu.upload(rows)?, gpu.upload(values)?, gpu.upload(&rotated)?);
            matrix.exact = Some(ExactRows { rows, values, rotated });
        }
        Ok(matrix)
    }

    /// A matrix of the random words of [`random_word`], all rows with one scale; for benchmarks.
    ///
    /// # Errors
    /// As for [`ShiftMatrix::new`].
    pub fn random(
        gpu: &Gpu,
        spec: ShiftSpec,
        rows: usize,
        cols: usize,
        rotation: Option<&Rht>,
        scale: bf16,
        seed: u32,
    ) -> Result<Self, CudaError> {
        let trellis = spec.check()?;
        let layout = trellis.layout(rows, cols)?;
        let source = Buffer::<u32>::uninit(gpu, layout.n_words())?;
        let params = ShiftRandomParams { words: source.as_slice().ptr(), n: layout.n_words() as u64, seed };
        let stream = gpu.stream()?;
        let launch = copy_launch(gpu, layout.n_words());
        // SAFETY: the kernel writes `n` words, as many as the buffer has.
        unsafe { gpu.kernel(Module::ShiftPack, "shift_random")?.launch(stream.as_ref(), launch, &params) }?;
        stream.synchronize()?;
        Self::pack(gpu, &trellis, &layout, source, gpu.upload(&vec![scale; rows])?, trellis.step(), rotation)
    }

    /// Puts the words into the order of the device.
    fn pack(
        gpu: &Gpu,
        trellis: &ShiftTrellis,
        layout: &ShiftLayout,
        source: Buffer<u32>,
        scales: Buffer<bf16>,
        step: f32,
        rotation: Option<&Rht>,
    ) -> Result<Self, CudaError> {
        let units = Units::new(layout)?;
        let (rows, cols, spec) = (layout.rows(), layout.cols(), layout.spec());
        if let Some(rht) = rotation
            && rht.plan().width() != cols
        {
            return Err(CudaError::shape("rotation of a shift matrix", format!("{cols} columns"), rht.plan().width()));
        }
        let words = Buffer::<u32>::uninit(gpu, units.n_words)?;
        let histories = Buffer::<u32>::uninit(gpu, units.n_histories)?;
        let params = ShiftPackParams {
            source: source.as_slice().ptr(),
            words: words.as_slice().ptr(),
            histories: histories.as_slice().ptr(),
            rows: rows as u32,
            n_row_tiles: units.n_row_tiles,
            row_units: units.row_units,
            bits: spec.bits.into(),
            string_words: layout.words_per_string() as u32,
            tiles: cols.div_ceil(UNIT_ROWS) as u32,
            rows_order: (spec.order == ShiftOrder::Rows).into(),
        };
        let stream = gpu.stream()?;
        // SAFETY: the source has the words of the layout, which the kernel does not exceed; the others have the lengths of
        // `units`.
        unsafe {
            gpu.kernel(Module::ShiftPack, "shift_pack")?.launch(
                stream.as_ref(),
                copy_launch(gpu, units.n_words),
                &params,
            )
        }?;
        stream.synchronize()?;
        let table = gpu.table(trellis.code().device_table())?;
        let rotation = Rotation::new(gpu, rotation, units)?;
        let trellis = trellis.clone();
        Ok(Self {
            gpu: gpu.clone(),
            trellis,
            rows,
            cols,
            units,
            words,
            histories,
            table,
            scales,
            step,
            rotation,
            exact: None,
        })
    }

    /// Number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The trellis.
    #[must_use]
    pub fn spec(&self) -> ShiftSpec {
        self.trellis.spec()
    }

    /// The rotation that activations need before [`ShiftMatrix::gemv_rotated`]; `None` for none.
    #[must_use]
    pub fn rotation(&self) -> Option<&DeviceRht> {
        match &self.rotation {
            Rotation::None => None,
            Rotation::Fused { rht, .. } | Rotation::Separate { rht } => Some(rht),
        }
    }

    /// Whether [`ShiftMatrix::gemv`] takes activations in the original basis: there is no rotation, or none of its tiles
    /// exceeds 128 columns and the trellis has a kernel of its own (2 to 4 bits; of states of 18 bits quantiles in tiles; on
    /// devices with 163 KiB of shared memory per block).
    /// [`ShiftMatrix::gemm`] takes all.
    #[must_use]
    pub fn fuses_rotation(&self) -> bool {
        match self.rotation {
            Rotation::None => true,
            Rotation::Fused { .. } => self.gemv_module().is_some(),
            Rotation::Separate { .. } => false,
        }
    }

    /// Bytes of device memory: words with their padding, histories, scales, signs, exact rows, and the table, which matrices
    /// of one code share.
    #[must_use]
    pub fn device_bytes(&self) -> usize {
        let rotation = match &self.rotation {
            Rotation::None => 0,
            Rotation::Fused { signs, tile_logs, rht } => {
                signs.bytes() + tile_logs.as_ref().map_or(0, Buffer::bytes) + 4 * rht.words().len()
            }
            Rotation::Separate { rht } => 4 * rht.words().len(),
        };
        let exact = self.exact.as_ref().map_or(0, |e| e.rows.bytes() + e.values.bytes() + e.rotated.bytes());
        self.words.bytes() + self.histories.bytes() + self.scales.bytes() + self.table.bytes() + rotation + exact
    }

    /// y = W (R x) for one activation `x` of `cols` values in the original basis; `y` has `rows` values.
    ///
    /// x is rotated and rounded to f16 per 128 columns inside the kernel; products are exact, sums f32, in a fixed order.
    ///
    /// # Errors
    /// [`CudaError::Shape`]; [`CudaError::Unsupported`] if [`ShiftMatrix::fuses_rotation`] does not hold or the device has
    /// too little shared memory; what a launch can fail with.
    pub fn gemv<X: ShiftElement, Y: ShiftElement>(
        &self,
        stream: StreamRef<'_>,
        x: DevSlice<'_, X>,
        y: DevSliceMut<'_, Y>,
    ) -> Result<(), CudaError> {
        if !self.fuses_rotation() {
            let what = format!("{:?} and this rotation without a workspace", self.spec());
            return Err(CudaError::Unsupported { op: "shift_gemv", what });
        }
        self.product(stream, x, y, true)
    }

    /// y = W u for one activation `u` that was rotated by [`ShiftMatrix::rotation`].
    ///
    /// # Errors
    /// As for [`ShiftMatrix::gemv`].
    pub fn gemv_rotated<X: ShiftElement, Y: ShiftElement>(
        &self,
        stream: StreamRef<'_>,
        u: DevSlice<'_, X>,
        y: DevSliceMut<'_, Y>,
    ) -> Result<(), CudaError> {
        self.product(stream, u, y, false)
    }

    /// `y = W x`, x rotated by the kernel or before.
    pub(super) fn product<X: ShiftElement, Y: ShiftElement>(
        &self,
        stream: StreamRef<'_>,
        x: DevSlice<'_, X>,
        y: DevSliceMut<'_, Y>,
        rotate: bool,
    ) -> Result<(), CudaError> {
        if x.len() != self.cols {
            return Err(CudaError::shape("x of shift_gemv", format!("{} elements", self.cols), x.len()));
        }
        if y.len() != self.rows {
            return Err(CudaError::shape("y of shift_gemv", format!("{} elements", self.rows), y.len()));
        }
        let Some(module) = self.gemv_module() else { return self.product_of_any(stream, x, y) };
        let info = self.gpu.info();
        let (signs, tile_logs, rotation) = self.fused_rotation(rotate);
        let [m0, m1] = multipliers(&self.trellis);
        let kernel = self.gpu.kernel(module, self.entry(GEMV_ENTRIES))?;
        let unit_words = 64 * u64::from(self.spec().bits);
        for (first_unit, n_units) in unit_ranges(self.units.row_units, kernel.max_dynamic_bytes()) {
            if first_unit > 0 && Y::TYPE != f32::TYPE {
                let what = format!("{} columns with a result that is not f32", self.cols);
                return Err(CudaError::Unsupported { op: "shift_gemv", what });
            }
            let cut = GemvCut::new(self.units.n_row_tiles, n_units, info.n_sms, kernel.max_dynamic_bytes());
            let Some(cut) = cut else {
                let what = format!("{} bytes of shared memory per block", info.max_shared_bytes);
                return Err(CudaError::Unsupported { op: "shift_gemv", what });
            };
            let tiles_apart = u64::from(self.units.row_units) * u64::from(cut.grid) * u64::from(cut.n_slots);
            let params = ShiftGemvParams {
                words: self.words.as_slice().ptr(),
                histories: self.histories.as_slice().ptr(),
                table: self.table.as_slice().ptr(),
                x: x.ptr(),
                signs,
                tile_logs,
                scales: self.scales.as_slice().ptr(),
                y: y.ptr(),
                tile_step: tiles_apart * unit_words * 4,
                history_step: tiles_apart * 8,
                rows: self.rows as u32,
                cols: self.cols as u32,
                row_units: self.units.row_units,
                first_unit,
                n_units,
                n_parts: cut.n_parts,
                n_slots: cut.n_slots,
                part_units: cut.part_units,
                min_tiles: cut.min_tiles,
                extra_tiles: cut.extra_tiles,
                max_tiles: cut.max_tiles(),
                sum_step: cut.n_slots * cut.n_parts * 64,
                m0,
                m1,
                step: self.step,
                x_type: X::TYPE,
                y_type: Y::TYPE,
                x_vector: x.ptr().is_multiple_of(16).into(),
                rotation,
                add: (first_unit > 0).into(),
                plain: (cut.n_slots == 1 && cut.n_parts == n_units).into(),
            };
            let launch = Launch {
                grid: [cut.grid, 1, 1],
                block: [32, cut.n_parts, cut.n_slots],
                shared_bytes: cut.shared_bytes,
                // The kernels of rows and of wide states are not built for programmatic launches.
                programmatic: self.spec().order != ShiftOrder::Rows && !is_wide(self.spec()),
            };
            // SAFETY: x and y have the lengths of the matrix, checked above; the others are the matrix's own.
            unsafe { kernel.launch(stream, launch, &params) }?;
        }
        let values = self.exact.as_ref().map(|exact| if rotate { &exact.values } else { &exact.rotated });
        self.exact_products(stream, values, x, None, y, 1)
    }

    /// Signs, tiles and kind of the rotation that a kernel does.
    pub(super) fn fused_rotation(&self, rotate: bool) -> (u64, u64, u32) {
        match &self.rotation {
            Rotation::Fused { signs, tile_logs, .. } if rotate => {
                let logs = tile_logs.as_ref().map_or(0, |logs| logs.as_slice().ptr());
                (signs.as_slice().ptr(), logs, 1 + u32::from(tile_logs.is_some()))
            }
            _ => (0, 0, 0),
        }
    }

    /// `y = W x` for a trellis that has no kernel of its own; x is rotated and f32. Lengths were checked.
    fn product_of_any<X: ShiftElement, Y: ShiftElement>(
        &self,
        stream: StreamRef<'_>,
        x: DevSlice<'_, X>,
        y: DevSliceMut<'_, Y>,
    ) -> Result<(), CudaError> {
        if X::TYPE != f32::TYPE {
            return Err(CudaError::Unsupported {
                op: "shift_gemv",
                what: format!("{:?} and an x that is not f32", self.spec()),
            });
        }
        let any = AnySpec::new(&self.trellis);
        let params = ShiftAnyParams {
            words: self.words.as_slice().ptr(),
            histories: self.histories.as_slice().ptr(),
            table: self.table.as_slice().ptr(),
            x: x.ptr(),
            scales: self.scales.as_slice().ptr(),
            y: y.ptr(),
            rows: self.rows as u32,
            cols: self.cols as u32,
            row_units: self.units.row_units,
            bits: any.bits,
            per_step: any.per_step,
            pairs: any.pairs,
            rows_order: any.rows_order,
            index_shift: any.index_shift,
            m0: any.m0,
            m1: any.m1,
            step: self.step,
            y_type: Y::TYPE,
        };
        let launch = Launch { grid: [self.units.n_row_tiles, 1, 1], block: [ANY_THREADS, 1, 1], ..Launch::default() };
        // SAFETY: x and y have the lengths of the matrix, checked by the caller; the others are the matrix's own.
        unsafe { self.gpu.kernel(Module::ShiftAny, "shift_gemv_any")?.launch(stream, launch, &params) }?;
        let values = self.exact.as_ref().map(|exact| &exact.rotated);
        self.exact_products(stream, values, x, None, y, 1)
    }

    /// Products with the rows that are stored exactly.
    pub(super) fn exact_products<X: ShiftElement, Y: ShiftElement>(
        &self,
        stream: StreamRef<'_>,
        values: Option<&Buffer<f32>>,
        x: DevSlice<'_, X>,
        x_scales: Option<DevSlice<'_, f32>>,
        y: DevSliceMut<'_, Y>,
        batch: usize,
    ) -> Result<(), CudaError> {
        let (Some(exact), Some(values)) = (&self.exact, values) else { return Ok(()) };
        let params = ShiftExactParams {
            values: values.as_slice().ptr(),
            rows: exact.rows.as_slice().ptr(),
            x: x.ptr(),
            x_scales: x_scales.map_or(0, |scales| scales.ptr()),
            y: y.ptr(),
            cols: self.cols as u32,
            x_stride: self.cols as u32,
            y_stride: self.rows as u32,
            x_type: X::TYPE,
            y_type: Y::TYPE,
        };
        let grid = [exact.rows.len() as u32, batch as u32, 1];
        let launch = Launch { grid, block: [128, 1, 1], ..Launch::default() };
        // SAFETY: the caller checked x and y; the numbers of rows are below that of the matrix, which the decoder checked.
        unsafe { self.gpu.kernel(Module::ShiftPack, "shift_exact")?.launch(stream, launch, &params) }
    }

    /// Writes rows `rows` to `out`, row-major, dequantized, in the rotated frame.
    ///
    /// Values are those of [`Decoder::decode_rows_rotated`](gosset_codec::Decoder::decode_rows_rotated), rounded once if T
    /// is narrower than f32.
    ///
    /// # Errors
    /// [`CudaError::Shape`] for rows that do not start and end at multiples of 16 (or at the last row), or an `out` of
    /// another length; what a launch can fail with.
    pub fn decode<T: ShiftElement>(
        &self,
        stream: StreamRef<'_>,
        rows: Range<usize>,
        out: DevSliceMut<'_, T>,
    ) -> Result<(), CudaError> {
        let whole = |row: usize| row.is_multiple_of(UNIT_ROWS) || row == self.rows;
        if rows.start > rows.end || rows.end > self.rows || !whole(rows.start) || !whole(rows.end) {
            let expected = format!("multiples of {UNIT_ROWS} up to {}", self.rows);
            return Err(CudaError::shape("rows of shift_decode", expected, format!("{rows:?}")));
        }
        let expected = rows.len() * self.cols;
        if out.len() != expected {
            return Err(CudaError::shape("out of shift_decode", format!("{expected} elements"), out.len()));
        }
        if rows.is_empty() {
            return Ok(());
        }
        let any = AnySpec::new(&self.trellis);
        let n_tiles = rows.len().div_ceil(UNIT_ROWS) as u32;
        let params = ShiftDecodeParams {
            words: self.words.as_slice().ptr(),
            histories: self.histories.as_slice().ptr(),
            table: self.table.as_slice().ptr(),
            scales: self.scales.as_slice().ptr(),
            out: out.ptr(),
            rows: self.rows as u32,
            cols: self.cols as u32,
            row_units: self.units.row_units,
            first_tile: (rows.start / UNIT_ROWS) as u32,
            n_tiles,
            bits: any.bits,
            per_step: any.per_step,
            pairs: any.pairs,
            rows_order: any.rows_order,
            index_shift: any.index_shift,
            m0: any.m0,
            m1: any.m1,
            step: self.step,
            out_type: T::TYPE,
            vector: (self.cols.is_multiple_of(2) && out.ptr().is_multiple_of(2 * size_of::<T>() as u64)).into(),
        };
        let warps = u64::from(n_tiles) * u64::from(self.units.row_units);
        let most = u64::from(self.gpu.info().n_sms) * 8;
        let blocks = warps.div_ceil(u64::from(ANY_THREADS / 32)).min(most) as u32;
        let launch = Launch { grid: [blocks, 1, 1], block: [ANY_THREADS, 1, 1], ..Launch::default() };
        // SAFETY: `out` has room for the rows, checked above; the others are the matrix's own.
        unsafe { self.gpu.kernel(Module::ShiftAny, "shift_decode")?.launch(stream, launch, &params) }?;
        let Some(exact) = &self.exact else { return Ok(()) };
        let params = ShiftExactRowsParams {
            values: exact.rotated.as_slice().ptr(),
            rows: exact.rows.as_slice().ptr(),
            out: out.ptr(),
            cols: self.cols as u32,
            first_row: rows.start as u32,
            n_rows: rows.len() as u32,
            out_type: T::TYPE,
        };
        let launch = Launch { grid: [exact.rows.len() as u32, 1, 1], block: [128, 1, 1], ..Launch::default() };
        // SAFETY: rows outside of the range are left out by the kernel.
        unsafe { self.gpu.kernel(Module::ShiftPack, "shift_exact_rows")?.launch(stream, launch, &params) }
    }

    /// The kernel of this code and order among those of a module: quantiles by rows and tiles, pairs by rows and tiles.
    pub(super) fn entry(&self, entries: [&'static str; 4]) -> &'static str {
        let spec = self.spec();
        entries[2 * usize::from(spec.code == ShiftCode::Pairs) + usize::from(spec.order == ShiftOrder::Tiles)]
    }

    /// Whether a table with a copy per bank fits into the shared memory of a block: 163 KiB (A100) and more do, the 99 KiB
    /// of smaller devices do not.
    pub(super) fn has_shared(&self) -> bool {
        self.gpu.info().max_shared_bytes >= MIN_SHARED
    }

    /// The module of the products with one activation, if this trellis has one on this device.
    fn gemv_module(&self) -> Option<Module> {
        use Module as M;
        let spec = self.spec();
        let wide = is_wide(spec);
        if wide && (spec.code, spec.order) != (ShiftCode::Quantiles, ShiftOrder::Tiles) || !self.has_shared() {
            return None;
        }
        let [tiles, rows, of_wide] = match spec.bits {
            2 => [M::ShiftGemvK2, M::ShiftGemvK2Rows, M::ShiftGemvK2Wide],
            3 => [M::ShiftGemvK3, M::ShiftGemvK3Rows, M::ShiftGemvK3Wide],
            4 => [M::ShiftGemvK4, M::ShiftGemvK4Rows, M::ShiftGemvK4Wide],
            _ => return None,
        };
        Some(match spec.order {
            _ if wide => of_wide,
            ShiftOrder::Rows => rows,
            _ => tiles,
        })
    }
}

const GEMV_ENTRIES: [&str; 4] =
    ["shift_gemv_quantiles_rows", "shift_gemv_quantiles_tiles", "shift_gemv_pairs_rows", "shift_gemv_pairs_tiles"];

/// A trellis as the kernels that take any have it.
#[derive(Debug, Clone, Copy)]
struct AnySpec {
    bits: u32,
    per_step: u32,
    pairs: u32,
    rows_order: u32,
    index_shift: u32,
    m0: u32,
    m1: u32,
}

impl AnySpec {
    fn new(trellis: &ShiftTrellis) -> Self {
        let spec = trellis.spec();
        let [m0, m1] = multipliers(trellis);
        Self {
            bits: spec.bits.into(),
            per_step: spec.weights_per_step() as u32,
            pairs: (spec.code == ShiftCode::Pairs).into(),
            rows_order: (spec.order == ShiftOrder::Rows).into(),
            index_shift: 7 + u32::from(is_wide(spec)),
            m0,
            m1,
        }
    }
}

impl Rotation {
    fn new(gpu: &Gpu, rht: Option<&Rht>, units: Units) -> Result<Self, CudaError> {
        let Some(rht) = rht else { return Ok(Self::None) };
        let device = Box::new(DeviceRht::new(gpu, rht)?);
        let runs = rht.plan().runs();
        if runs.iter().any(|run| run.tile > MAX_FUSED_TILE) {
            return Ok(Self::Separate { rht: device });
        }
        let mut signs = rht.signs().words().to_vec();
        signs.resize(units.row_units as usize * UNIT_COLS / 32, 0);
        let tile_logs = if runs.len() == 1 && runs[0].tile == MAX_FUSED_TILE {
            None
        } else {
            let logs = runs
                .iter()
                .flat_map(|run| std::iter::repeat_n(run.tile.ilog2() as u8, (run.tile * run.count) as usize));
            let mut logs: Vec<u8> = logs.collect();
            logs.resize(units.row_units as usize * UNIT_COLS, 0);
            Some(gpu.upload(&logs)?)
        };
        Ok(Self::Fused { signs: gpu.upload(&signs)?, tile_logs, rht: device })
    }
}

/// A launch of kernels that go over words with the whole grid.
fn copy_launch(gpu: &Gpu, n: usize) -> Launch {
    let blocks = n.div_ceil(COPY_THREADS as usize).min(gpu.info().n_sms as usize * 16).max(1) as u32;
    Launch { grid: [blocks, 1, 1], block: [COPY_THREADS, 1, 1], ..Launch::default() }
}
