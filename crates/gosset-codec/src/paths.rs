//! Paths of the entropy-coded trellis under ANS, for callers that lay out streams of their own.
//!
//! A [`PathCode`] is a table of the family of the trellis scheme: what grid points cost and stand for, made for Gaussian values of one
//! spread. Eight sequences are searched, coded and decoded side by side, each a path of its own from state 0.
//!
//! ```
//! use gosset_codec::paths::{PathCode, Scratch};
//! use gosset_entropy::ans::{StreamDecoder, StreamEncoder};
//!
//! let values: Vec<[f32; 8]> = (0..40).map(|step| std::array::from_fn(|lane| ((step * 37 + lane * 11) % 19) as f32 / 4.0 - 2.2)).collect();
//! let code = PathCode::for_alpha(8, 1.5).expect("there are codes of 8 states");
//! let mut points = vec![[0; 8]; values.len()];
//! code.round(&values, &mut points, &mut Scratch::default())?;
//!
//! // The first five of the eight sequences.
//! let mut encoder = StreamEncoder::new();
//! code.encode(&mut encoder, 0, &points, 5);
//! let mut words = Vec::new();
//! encoder.finish_by(|table| &code.encode_tables()[usize::from(table)], &mut words);
//!
//! let mut decoder = StreamDecoder::new(&words)?;
//! let mut decoded = vec![[0; 8]; values.len()];
//! code.decode(&mut decoder, &mut decoded, 5);
//! decoder.finish()?;
//! assert!(decoded.iter().zip(&points).all(|(a, b)| a[..5] == b[..5]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::sync::OnceLock;

use gosset_entropy::ans::{self, DecodeTable, EncodeTable, StreamDecoder, StreamEncoder};
use gosset_trellis::TrellisError;
pub use gosset_trellis::entropy_coded::{LANES, Scratch};
use gosset_trellis::entropy_coded::{Quantizer, TrellisCode, encode};

use crate::scheme::trellis::{N_TABLES, NextStates, Table, ValueTable, curve_of, join, next_states};

/// Tables for the points of paths at one spread of the values.
#[derive(Debug, Clone, Copy)]
pub struct PathCode {
    code: TrellisCode,
    next_states: &'static NextStates,
    index: usize,
    tables: &'static Tables,
}

#[derive(Debug)]
struct Tables {
    table: Table,
    quantizer: Quantizer,
    values: ValueTable,
    encode: [EncodeTable; 2],
    decode: [DecodeTable; 2],
}

/// The tables with that index, made when they are first asked for and kept.
fn tables(index: usize) -> Option<&'static Tables> {
    static KEPT: [OnceLock<Box<Tables>>; N_TABLES] = [const { OnceLock::new() }; N_TABLES];
    let kept = KEPT.get(index)?;
    let table = Table::get(index as u16)?;
    Some(kept.get_or_init(|| {
        Box::new(Tables {
            quantizer: table.quantizer(),
            values: table.values(),
            encode: table.freqs().each_ref().map(EncodeTable::new),
            decode: table.freqs().each_ref().map(DecodeTable::new),
            table,
        })
    }))
}

impl PathCode {
    /// The code with that many states (8, 64 or 256) made for values of standard deviation `alpha`, in grid steps, or the nearest there
    /// is; `None` for another number of states.
    pub fn for_alpha(states: u32, alpha: f64) -> Option<Self> {
        static NEXT: [OnceLock<Box<NextStates>>; 3] = [const { OnceLock::new() }; 3];
        let code = TrellisCode::with_states(states).ok()?;
        let kept = &NEXT[TrellisCode::STATES.iter().position(|&s| s == states)?];
        let index = curve_of(states).at_alpha(alpha).nearest;
        Some(Self { code, next_states: kept.get_or_init(|| next_states(code)), index, tables: tables(index)? })
    }

    /// The spread at which Gaussian values take `bits` each; `None` for a number of states of which there is no code, and for rates that
    /// no table is made for.
    pub fn alpha_for_bits(states: u32, bits: f64) -> Option<f64> {
        TrellisCode::with_states(states).ok()?;
        let (curve, close) = (curve_of(states), 1e-3);
        let point = curve.at_bps(bits);
        ((point.payload_bps - bits).abs() < close).then_some(point.alpha)
    }

    /// The code for a spread 2^(steps/12) times as wide, or the last one in that direction.
    pub fn shifted(self, steps: i32) -> Self {
        let index = (self.index as i64 + i64::from(steps)).clamp(0, N_TABLES as i64 - 1) as usize;
        Self { index, tables: tables(index).expect("the index is one of the family"), ..self }
    }

    /// Finds the cheapest paths for `values` in grid steps, by distortion and rate.
    ///
    /// # Errors
    /// [`TrellisError`] for slices of different lengths and values beyond 2^22.
    pub fn round(
        &self,
        values: &[[f32; LANES]],
        points: &mut [[i32; LANES]],
        scratch: &mut Scratch,
    ) -> Result<(), TrellisError> {
        encode(self.code, &self.tables.quantizer, values.as_flattened(), points.as_flattened_mut(), scratch)
    }

    /// What a point stands for, in grid steps.
    #[inline]
    pub fn value(&self, point: i32) -> f32 {
        self.tables.values.get(point)
    }

    /// The two tables that [`PathCode::encode`] names.
    pub fn encode_tables(&self) -> &'static [EncodeTable; 2] {
        &self.tables.encode
    }

    /// Whether the points of the first `n_lanes` paths follow each other as the code allows.
    pub fn allows(&self, points: &[[i32; LANES]], n_lanes: usize) -> bool {
        let mut states = [0; LANES];
        points.iter().all(|step| {
            states.iter_mut().zip(step).take(n_lanes).all(|(state, &y)| {
                let allowed = y as u32 & 1 == self.code.union(*state);
                *state = self.code.next(*state, y >> 1);
                allowed
            })
        })
    }

    /// Hands the points of the first `n_lanes` paths to the encoder under tables `first_table` and the next; path l is in lane l mod 4.
    ///
    /// Points that do not follow each other as the code allows make the end of the stream panic or come back as others.
    pub fn encode(&self, encoder: &mut StreamEncoder, first_table: u16, points: &[[i32; LANES]], n_lanes: usize) {
        let mut states = [0; LANES];
        let table = &self.tables.table;
        for step in points {
            for (lane, (state, &y)) in states.iter_mut().zip(step).enumerate().take(n_lanes) {
                let (value, raw) = table.split(y);
                encoder.symbol(lane % ans::LANES, first_table + self.code.union(*state) as u16, value);
                if table.raw_bits() > 0 {
                    encoder.raw(raw, table.raw_bits());
                }
                *state = self.code.next(*state, y >> 1);
            }
        }
    }

    /// Takes the points of the first `n_lanes` paths from the decoder; the others stay as they are.
    pub fn decode(&self, decoder: &mut StreamDecoder<'_>, points: &mut [[i32; LANES]], n_lanes: usize) {
        // A local copy stays in registers.
        let mut local = *decoder;
        let mut states = [0u8; LANES];
        for step in points {
            if n_lanes == LANES {
                for lane in 0..LANES {
                    self.decode_value(&mut local, &mut states, step, lane);
                }
            } else {
                (0..n_lanes.min(LANES)).for_each(|lane| self.decode_value(&mut local, &mut states, step, lane));
            }
        }
        *decoder = local;
    }

    #[inline(always)]
    fn decode_value(
        &self,
        decoder: &mut StreamDecoder<'_>,
        states: &mut [u8; LANES],
        step: &mut [i32; LANES],
        lane: usize,
    ) {
        let (state, raw_bits) = (states[lane], self.tables.table.raw_bits());
        decoder.refill();
        let coded = decoder.symbol(lane % ans::LANES, &self.tables.decode[usize::from(state & 1)]);
        let y = if raw_bits == 0 { coded } else { join(coded, decoder.raw(raw_bits), raw_bits) };
        states[lane] = self.next_states[(2 * usize::from(state) + (y >> 1) as usize % 2) % 512];
        step[lane] = y;
    }

    /// Bits that the points of the first `n_lanes` paths take on average, in units of 2^-16 bit.
    pub fn cost(&self, points: &[[i32; LANES]], n_lanes: usize) -> u64 {
        let table = &self.tables.table;
        points.iter().flat_map(|step| &step[..n_lanes.min(LANES)]).map(|&y| table.cost(y)).sum()
    }
}
