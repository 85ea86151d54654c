//! The Lloyd grids of HIGGS.

use crate::BaselineError;

/// One grid: `n` codewords of `p` coordinates for pieces of iid N(0, 1) values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GridInfo {
    /// Coordinates per codeword.
    pub p: usize,
    /// Codewords, a power of two.
    pub n: usize,
}

impl GridInfo {
    /// Bits of an index.
    pub fn bits(self) -> u32 {
        self.n.ilog2()
    }

    /// Bits of an index per weight.
    pub fn payload_bps(self) -> f64 {
        f64::from(self.bits()) / self.p as f64
    }
}

const fn info(p: usize, n: usize) -> GridInfo {
    GridInfo { p, n }
}

/// Every grid of the crate, in the order of `data/higgs.bin`.
pub const GRIDS: [GridInfo; 19] = [
    info(1, 4),
    info(1, 8),
    info(1, 16),
    info(1, 32),
    info(1, 64),
    info(2, 16),
    info(2, 32),
    info(2, 64),
    info(2, 128),
    info(2, 256),
    info(2, 512),
    info(2, 1024),
    info(2, 2048),
    info(2, 4096),
    info(4, 256),
    info(4, 512),
    info(4, 1024),
    info(4, 2048),
    info(4, 4096),
];

/// All grids as little-endian f32, made by `cargo run --release -p gosset-baselines --bin higgs-grids`.
static DATA: &[u8] = include_bytes!("../data/higgs.bin");

/// The codewords of one grid.
#[derive(Debug, Clone, PartialEq)]
pub struct Grid {
    /// Its size.
    pub info: GridInfo,
    /// Codewords one after the other, in ascending order of their first, then second, … coordinate.
    pub values: Vec<f32>,
}

impl Grid {
    /// The grid of `n` codewords of `p` coordinates.
    ///
    /// # Errors
    /// [`BaselineError::Rate`] if there is none.
    ///
    /// ```
    /// let grid = gosset_baselines::Grid::of(1, 4)?;
    /// // Max 1960: 0.4528 and 1.510.
    /// assert!(grid.values.iter().zip([-1.510, -0.4528, 0.4528, 1.510]).all(|(a, b)| (a - b).abs() < 1e-3));
    /// # Ok::<(), gosset_baselines::BaselineError>(())
    /// ```
    pub fn of(p: usize, n: usize) -> Result<Self, BaselineError> {
        let mut at = 0;
        for info in GRIDS {
            let len = info.n * info.p * 4;
            if info == (GridInfo { p, n }) {
                let bytes = DATA.get(at..at + len).unwrap_or_default();
                let values = bytes.as_chunks::<4>().0.iter().map(|&b| f32::from_le_bytes(b)).collect();
                return Ok(Grid { info, values });
            }
            at += len;
        }
        let asked = (n as f64).log2() / p as f64;
        Err(BaselineError::Rate { name: format!("higgs{p}"), asked, expected: rates_of(p) })
    }
}

/// The grids of `p` coordinates, by ascending rate.
///
/// ```
/// let rates: Vec<f64> = gosset_baselines::grids(4).map(|grid| grid.payload_bps()).collect();
/// assert_eq!(rates, [2.0, 2.25, 2.5, 2.75, 3.0]);
/// ```
pub fn grids(p: usize) -> impl Iterator<Item = GridInfo> {
    GRIDS.into_iter().filter(move |info| info.p == p)
}

fn rates_of(p: usize) -> String {
    grids(p).map(|info| info.payload_bps().to_string()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_data_hold_every_grid_in_order_and_nothing_else() {
        let len: usize = GRIDS.iter().map(|info| info.n * info.p * 4).sum();
        assert_eq!(DATA.len(), len);
        for info in GRIDS {
            let grid = Grid::of(info.p, info.n).unwrap();
            assert!(grid.values.iter().all(|v| v.abs() < 6.0));
            let codewords: Vec<&[f32]> = grid.values.chunks(info.p).collect();
            assert!(codewords.windows(2).all(|pair| pair[0] < pair[1]), "{info:?}");
        }
        assert!(Grid::of(2, 17).is_err() && Grid::of(3, 64).is_err());
    }
}
