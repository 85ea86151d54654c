//! Products of a matrix under the bit-shift trellis with two to eight activations, whose operands stay in registers.

use gosset_trellis::shift::ShiftCode;

use super::shift::ShiftMatrix;
use super::shift_layout::{TABLE_SHARED, UNIT_ROWS, multipliers};
use crate::error::CudaError;
use crate::generated::modules::Module;
use crate::generated::params::ShiftFewParams;
use crate::kernel::Launch;
use crate::memory::{Buffer, DevSliceMut};
use crate::stream::StreamRef;

/// Most activations.
pub(super) const MAX_FEW: usize = 8;
/// Most parts of the columns, warps of a block.
const MAX_PARTS: u32 = 32;
/// Fewest units of 128 columns, with one warp each, that keep a multiprocessor busy.
const MIN_UNITS: u32 = 16;
/// Bytes of the sums of a part: four row tiles.
const PART_SUMS: u32 = 4 * 528;
/// Bytes of barriers and of the factors of the activations.
const ROOM: u32 = 64;

/// How a product with a few activations is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FewCut {
    grid: u32,
    n_parts: u32,
    n_passes: u32,
    shared_bytes: u32,
}

impl FewCut {
    /// The cut, `None` where another kernel is better or shared memory does not suffice.
    pub(super) fn new(n_row_tiles: u32, row_units: u32, n_sms: u32, max_shared: u32) -> Option<Self> {
        if row_units < MIN_UNITS {
            return None;
        }
        let grid = n_row_tiles.min(n_sms);
        let n_passes = row_units.div_ceil(MAX_PARTS);
        let n_parts = row_units.div_ceil(n_passes);
        let scales = n_row_tiles.div_ceil(grid).checked_mul(UNIT_ROWS as u32 * 4)?;
        let shared_bytes =
            (TABLE_SHARED + ROOM + n_parts * PART_SUMS).checked_add(scales).filter(|&n| n <= max_shared)?;
        Some(Self { grid, n_parts, n_passes, shared_bytes })
    }
}

impl ShiftMatrix {
    /// Module and cut of a product with a few activations, if there is one for this matrix and device.
    pub(super) fn few(&self) -> Result<Option<(Module, FewCut)>, CudaError> {
        let module = match self.gemm_module() {
            Some(Module::ShiftGemmK2) => Module::ShiftFewK2,
            Some(Module::ShiftGemmK3) => Module::ShiftFewK3,
            Some(Module::ShiftGemmK4) => Module::ShiftFewK4,
            _ => return Ok(None),
        };
        let info = self.gpu.info();
        let max_shared = self.gpu.kernel(module, self.few_entry(1))?.max_dynamic_bytes();
        Ok(FewCut::new(self.units.n_row_tiles, self.units.row_units, info.n_sms, max_shared).map(|cut| (module, cut)))
    }

    fn few_entry(&self, n_passes: u32) -> &'static str {
        match (self.spec().code == ShiftCode::Pairs, n_passes > 1) {
            (false, false) => "shift_few_once_quantiles",
            (true, false) => "shift_few_once_pairs",
            (false, true) => "shift_few_long_quantiles",
            (true, true) => "shift_few_long_pairs",
        }
    }

    /// Puts the product of prepared activations into the stream; `y` is `[batch, rows]`, `batch` at most [`MAX_FEW`].
    pub(super) fn few_launch(
        &self,
        stream: StreamRef<'_>,
        (module, cut): (Module, FewCut),
        prepared: &Buffer<u32>,
        x_scales: &Buffer<f32>,
        batch: usize,
        y: DevSliceMut<'_, f32>,
    ) -> Result<(), CudaError> {
        let [m0, m1] = multipliers(&self.trellis);
        let params = ShiftFewParams {
            words: self.words.as_slice().ptr(),
            table: self.table.as_slice().ptr(),
            x: prepared.as_slice().ptr(),
            x_scales: x_scales.as_slice().ptr(),
            scales: self.scales.as_slice().ptr(),
            y: y.ptr(),
            rows: self.rows as u32,
            row_units: self.units.row_units,
            n_row_tiles: self.units.n_row_tiles,
            n_passes: cut.n_passes,
            batch: batch.min(MAX_FEW) as u32,
            m0,
            m1,
            step: self.step,
        };
        let launch = Launch {
            grid: [cut.grid, 1, 1],
            block: [32, cut.n_parts, 1],
            shared_bytes: cut.shared_bytes,
            programmatic: true,
        };
        // SAFETY: y holds `batch` results, and the prepared activations one block of eight, checked by the caller.
        unsafe { self.gpu.kernel(module, self.few_entry(cut.n_passes))?.launch(stream, launch, &params) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_unit_has_a_warp_and_a_pass() {
        for row_units in 1..400 {
            match FewCut::new(896, row_units, 132, 227 * 1024) {
                None => assert!(row_units < MIN_UNITS),
                Some(cut) => {
                    assert!(cut.n_parts <= MAX_PARTS && cut.n_parts <= row_units);
                    assert!(cut.n_parts * cut.n_passes >= row_units);
                }
            }
        }
        assert_eq!(FewCut::new(896, 32, 132, 99 * 1024), None, "the table does not fit");
    }
}
