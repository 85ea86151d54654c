//! From values to points, symbols and words.

use std::borrow::Cow;

use gosset_entropy::rice::{self, accumulate_by_class};
use gosset_entropy::{EncodedPage, PageBuilder, RiceFit, STREAM_LEN, STREAMS_PER_PAGE, StreamTable};
use gosset_lattice::{BitStrip, LatticeKind, LatticeVisitor};

use super::{BASES, LENGTHS, WORDS, target};
use crate::plane::PlaneData;
use crate::scheme::{EncodedUnits, Units};
use crate::{
    CodeHeader, CodeKind, CodecError, Gain, LatticeHeader, LatticeName, Plane, RateTarget, SchemeHeader, parallel,
};

/// Largest magnitude of alpha times a value: up to here single precision holds every integer.
pub(crate) const MAX_SCALED: f32 = 16_777_216.0;

/// Streams of one task while counting.
const TASK_STREAMS: usize = 32;

/// Header and planes of `units`.
pub(crate) fn encode(
    lattice: LatticeKind,
    code: CodeKind,
    _gain: Gain,
    target: RateTarget,
    units: &Units<'_>,
) -> Result<EncodedUnits, CodecError> {
    let (alpha, stats) = match target {
        RateTarget::PayloadBps(bps) => target::find_alpha(lattice, code, bps, units),
        RateTarget::Alpha(alpha) => {
            let alpha = alpha as f32;
            let found = alpha * units.peak;
            if found > MAX_SCALED {
                return Err(CodecError::Magnitude { row: units.peak_row, found, max: MAX_SCALED });
            }
            (alpha, count_symbols(lattice, units.values, alpha, 1))
        }
    };
    match code {
        CodeKind::Rice => {
            let ks = stats.best_ks();
            let pages = lattice.dispatch(RicePages { values: units.values, alpha, ks: &ks });
            let (words, table) = StreamTable::assemble(pages).expect("every page but the last was given 64 streams");
            let code = CodeHeader::Rice { ks: ks.iter().map(|&k| k as u8).collect() };
            let header = LatticeHeader { lattice: LatticeName(lattice), alpha, step: 1.0 / alpha, code };
            let planes = vec![
                Plane::owned(WORDS, PlaneData::U32(Cow::Owned(words))),
                Plane::owned(LENGTHS, PlaneData::U16(Cow::Owned(table.lengths))),
                Plane::owned(BASES, PlaneData::U64(Cow::Owned(table.bases))),
            ];
            Ok(EncodedUnits { header: SchemeHeader::Lattice(header), planes, gains: None })
        }
        CodeKind::Ans => unimplemented!("no name leads here yet"),
    }
}

/// Symbols of one stream: at most 512 values, padded with zeros to whole blocks.
#[inline]
fn stream_symbols<'s, const N: usize, L: BitStrip<N>>(
    values: &[f32],
    alpha: f32,
    symbols: &'s mut [u32; STREAM_LEN],
) -> &'s [u32] {
    let (blocks, rest) = values.as_chunks::<N>();
    let (out, _) = symbols.as_chunks_mut::<N>();
    for (x, s) in blocks.iter().zip(out.iter_mut()) {
        *s = L::strip(L::nearest_point(&x.map(|v| v * alpha)));
    }
    if !rest.is_empty() {
        let x = std::array::from_fn(|i| rest.get(i).map_or(0.0, |v| v * alpha));
        out[blocks.len()] = L::strip(L::nearest_point(&x));
    }
    &symbols[..values.len().next_multiple_of(N)]
}

/// Sizes of the symbols of some streams under every parameter of the code.
#[derive(Debug, Clone)]
pub(crate) struct SymbolStats {
    /// One fit per symbol class.
    fits: Vec<RiceFit>,
}

impl SymbolStats {
    fn new(n_classes: usize) -> Self {
        Self { fits: vec![RiceFit::new(); n_classes] }
    }

    fn merge(&mut self, other: Self) {
        self.fits.iter_mut().zip(&other.fits).for_each(|(fit, other)| fit.merge(other));
    }

    /// Number of symbols.
    pub(crate) fn n(&self) -> u64 {
        self.fits.iter().map(RiceFit::n).sum()
    }

    /// Bits of all symbols with the best parameters.
    pub(crate) fn bits(&self) -> u64 {
        self.fits.iter().map(|fit| fit.best_k().1).sum()
    }

    /// The best parameter of each class.
    pub(crate) fn best_ks(&self) -> Vec<u32> {
        self.fits.iter().map(|fit| fit.best_k().0).collect()
    }
}

/// Statistics of the symbols of every `stride`-th group of 32 streams of `values` at scale `alpha`.
pub(crate) fn count_symbols(lattice: LatticeKind, values: &[f32], alpha: f32, stride: usize) -> SymbolStats {
    lattice.dispatch(Count { values, alpha, stride })
}

struct Count<'a> {
    values: &'a [f32],
    alpha: f32,
    stride: usize,
}

impl LatticeVisitor for Count<'_> {
    type Out = SymbolStats;

    fn visit<const N: usize, L: BitStrip<N>>(self) -> SymbolStats {
        let group = TASK_STREAMS * STREAM_LEN;
        let n_tasks = self.values.len().div_ceil(group).div_ceil(self.stride);
        let count = |stats: &mut SymbolStats, task: usize| {
            let mut symbols = [0; STREAM_LEN];
            let start = task * self.stride * group;
            let end = (start + group).min(self.values.len());
            for stream in self.values[start..end].chunks(STREAM_LEN) {
                let symbols = stream_symbols::<N, L>(stream, self.alpha, &mut symbols);
                accumulate_by_class(&mut stats.fits, symbols, &L::SYMBOL_CLASS);
            }
        };
        parallel::accumulate(n_tasks, || SymbolStats::new(L::N_CLASSES), count, SymbolStats::merge)
    }
}

struct RicePages<'a> {
    values: &'a [f32],
    alpha: f32,
    /// Parameter of each symbol class.
    ks: &'a [u32],
}

impl LatticeVisitor for RicePages<'_> {
    type Out = Vec<EncodedPage>;

    fn visit<const N: usize, L: BitStrip<N>>(self) -> Vec<EncodedPage> {
        let page_len = STREAM_LEN * STREAMS_PER_PAGE;
        let ks: [u32; N] = std::array::from_fn(|i| self.ks[L::SYMBOL_CLASS[i]]);
        parallel::map_indexed(self.values.len().div_ceil(page_len), |page_idx| {
            let start = page_idx * page_len;
            let page = &self.values[start..(start + page_len).min(self.values.len())];
            let mut symbols = [0; STREAM_LEN];
            let mut builder = PageBuilder::with_capacity_bits(page.len() as u64 * 4);
            for stream in page.chunks(STREAM_LEN) {
                let symbols = stream_symbols::<N, L>(stream, self.alpha, &mut symbols);
                builder
                    .push_stream(|writer| rice::encode(writer, symbols, &ks))
                    .expect("512 codewords of at most 56 bits fit a 16-bit length, and a page has 64 chunks");
            }
            builder.finish()
        })
    }
}
