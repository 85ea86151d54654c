//! From values to points, symbols and words.

use std::borrow::Cow;

use gosset_entropy::rice::{self, accumulate_by_class};
use gosset_entropy::{EncodedPage, PageBuilder, RiceFit, STREAM_LEN, STREAMS_PER_PAGE, StreamTable};
use gosset_lattice::{BitStrip, LatticeKind, LatticeVisitor};

use super::ans::stats::AnsStats;
use super::{BASES, LENGTHS, WORDS, ans, target};
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
    gain: Gain,
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
            (alpha, count_symbols(lattice, code, units.values, alpha, 1))
        }
    };
    let (code, planes, gains) = match stats {
        SymbolStats::Rice(stats) => {
            let ks = stats.best_ks();
            let pages = lattice.dispatch(RicePages { values: units.values, alpha, ks: &ks });
            let (words, table) = StreamTable::assemble(pages).expect("every page but the last was given 64 streams");
            let planes = vec![
                Plane::owned(WORDS, PlaneData::U32(Cow::Owned(words))),
                Plane::owned(LENGTHS, PlaneData::U16(Cow::Owned(table.lengths))),
                Plane::owned(BASES, PlaneData::U64(Cow::Owned(table.bases))),
            ];
            // No name asks for a gain with this code.
            (CodeHeader::Rice { ks: ks.iter().map(|&k| k as u8).collect() }, planes, None)
        }
        SymbolStats::Ans(stats) => {
            let choice = stats.choose();
            let streams = ans::encode::encode(lattice, units, alpha, choice);
            let planes = vec![
                Plane::owned(WORDS, PlaneData::U32(Cow::Owned(streams.words))),
                Plane::owned(LENGTHS, PlaneData::U16(Cow::Owned(streams.lengths))),
            ];
            let code = CodeHeader::Ans { table: choice.member as u16, raw_bits: choice.raw_bits as u8 };
            (code, planes, (gain == Gain::LeastSquares).then_some(streams.gains))
        }
    };
    let header = LatticeHeader { lattice: LatticeName(lattice), alpha, step: 1.0 / alpha, code };
    Ok(EncodedUnits { header: SchemeHeader::Lattice(header), planes, gains })
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

/// Statistics of symbols, enough to know their size under the best parameters of the code.
#[derive(Debug, Clone)]
pub(crate) enum SymbolStats {
    Rice(RiceStats),
    Ans(AnsStats),
}

impl SymbolStats {
    /// Number of symbols.
    pub(crate) fn n(&self) -> u64 {
        match self {
            Self::Rice(stats) => stats.fits.iter().map(RiceFit::n).sum(),
            Self::Ans(stats) => stats.n(),
        }
    }

    /// Bits of all symbols with the best parameters.
    pub(crate) fn bits(&self) -> u64 {
        match self {
            Self::Rice(stats) => stats.fits.iter().map(|fit| fit.best_k().1).sum(),
            Self::Ans(stats) => stats.choose().bits,
        }
    }
}

/// Sizes of symbols under every parameter of the Rice code.
#[derive(Debug, Clone)]
pub(crate) struct RiceStats {
    /// One fit per symbol class.
    fits: Vec<RiceFit>,
}

impl RiceStats {
    fn new(n_classes: usize) -> Self {
        Self { fits: vec![RiceFit::new(); n_classes] }
    }

    fn merge(&mut self, other: Self) {
        self.fits.iter_mut().zip(&other.fits).for_each(|(fit, other)| fit.merge(other));
    }

    /// The best parameter of each class.
    pub(crate) fn best_ks(&self) -> Vec<u32> {
        self.fits.iter().map(|fit| fit.best_k().0).collect()
    }
}

/// Statistics of the symbols of every `stride`-th group of 32 streams of 512 of `values` at scale `alpha`.
pub(crate) fn count_symbols(
    lattice: LatticeKind,
    code: CodeKind,
    values: &[f32],
    alpha: f32,
    stride: usize,
) -> SymbolStats {
    let count = Count { values, alpha, stride };
    match code {
        CodeKind::Rice => SymbolStats::Rice(lattice.dispatch(CountRice(count))),
        CodeKind::Ans => SymbolStats::Ans(lattice.dispatch(CountAns(count, lattice))),
    }
}

struct Count<'a> {
    values: &'a [f32],
    alpha: f32,
    stride: usize,
}

impl<'a> Count<'a> {
    /// Values of one group.
    const GROUP: usize = TASK_STREAMS * STREAM_LEN;

    fn n_groups(&self) -> usize {
        self.values.len().div_ceil(Self::GROUP).div_ceil(self.stride)
    }

    fn group(&self, i: usize) -> &'a [f32] {
        let start = i * self.stride * Self::GROUP;
        &self.values[start..(start + Self::GROUP).min(self.values.len())]
    }
}

struct CountRice<'a>(Count<'a>);

impl LatticeVisitor for CountRice<'_> {
    type Out = RiceStats;

    fn visit<const N: usize, L: BitStrip<N>>(self) -> RiceStats {
        let count = |stats: &mut RiceStats, group: usize| {
            let mut symbols = [0; STREAM_LEN];
            for stream in self.0.group(group).chunks(STREAM_LEN) {
                let symbols = stream_symbols::<N, L>(stream, self.0.alpha, &mut symbols);
                accumulate_by_class(&mut stats.fits, symbols, &L::SYMBOL_CLASS);
            }
        };
        parallel::accumulate(self.0.n_groups(), || RiceStats::new(L::N_CLASSES), count, RiceStats::merge)
    }
}

struct CountAns<'a>(Count<'a>, LatticeKind);

impl LatticeVisitor for CountAns<'_> {
    type Out = AnsStats;

    fn visit<const N: usize, L: BitStrip<N>>(self) -> AnsStats {
        let Self(counted, lattice) = self;
        let alpha = counted.alpha;
        let count = |stats: &mut AnsStats, group: usize| {
            for x in counted.group(group).chunks(N) {
                stats.add(&L::nearest_point(&std::array::from_fn(|i| x.get(i).map_or(0.0, |v| v * alpha))));
            }
        };
        let merge = |all: &mut AnsStats, part: AnsStats| all.merge(&part);
        parallel::accumulate(counted.n_groups(), || AnsStats::new(lattice, alpha), count, merge)
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
