//! The block types of llama.cpp through candle's quantizer, with the fallback types of llama.cpp where a width does not fit.

use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};
use gosset_baselines::{Baseline, BaselineError, Encoded, Iq4Nl, Plane};
use gosset_entropy::Rate;
use gosset_runtime::source::dequantize_rows;

/// Name of the only plane: blocks, which hold codes and scales together.
const BLOCKS: &str = "blocks";

/// What the blocks of one type are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Blocks {
    /// Name in a GGUF file.
    gguf: &'static str,
    candle: GgmlDType,
    /// Bits of the codes of one weight; the rest of a block is scales.
    code_bits: u64,
}

const fn blocks(gguf: &'static str, candle: GgmlDType, code_bits: u64) -> Blocks {
    Blocks { gguf, candle, code_bits }
}

const F16: Blocks = blocks("F16", GgmlDType::F16, 16);
const Q4_0: Blocks = blocks("Q4_0", GgmlDType::Q4_0, 4);
const Q4_1: Blocks = blocks("Q4_1", GgmlDType::Q4_1, 4);
const Q5_0: Blocks = blocks("Q5_0", GgmlDType::Q5_0, 5);
const Q5_1: Blocks = blocks("Q5_1", GgmlDType::Q5_1, 5);
const Q8_0: Blocks = blocks("Q8_0", GgmlDType::Q8_0, 8);
const Q2_K: Blocks = blocks("Q2_K", GgmlDType::Q2K, 2);
const Q3_K: Blocks = blocks("Q3_K", GgmlDType::Q3K, 3);
const Q4_K: Blocks = blocks("Q4_K", GgmlDType::Q4K, 4);
const Q5_K: Blocks = blocks("Q5_K", GgmlDType::Q5K, 5);
const Q6_K: Blocks = blocks("Q6_K", GgmlDType::Q6K, 6);

/// What takes the place of a type where the width is no multiple of its block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fallback {
    Blocks(Blocks),
    Iq4Nl,
}

/// One type by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KQuant {
    /// Name, such as `q4_k`.
    pub name: &'static str,
    /// One line for people.
    pub about: &'static str,
    blocks: Blocks,
    fallback: Fallback,
}

const fn kquant(name: &'static str, about: &'static str, blocks: Blocks, fallback: Fallback) -> KQuant {
    KQuant { name, about, blocks, fallback }
}

/// Every type; `iq4_nl` is one of [`gosset_baselines::families`], because candle has no quantizer for it.
///
/// The fallbacks are those that llama.cpp's quantizer takes when a row is no whole number of blocks: types of one 16-bit scale per 32
/// weights. Where a width is no multiple of 32 either, weights stay F16. Every matrix of a model gets the one type; llama.cpp's file
/// types such as Q3_K_M mix several, and wider ones for some of the matrices.
pub const KQUANTS: [KQuant; 10] = [
    kquant("q2_k", "Q2_K in blocks of 256, elsewhere IQ4_NL", Q2_K, Fallback::Iq4Nl),
    kquant("q3_k", "Q3_K in blocks of 256, elsewhere IQ4_NL", Q3_K, Fallback::Iq4Nl),
    kquant("q4_k", "Q4_K in blocks of 256, elsewhere Q5_0", Q4_K, Fallback::Blocks(Q5_0)),
    kquant("q5_k", "Q5_K in blocks of 256, elsewhere Q5_1", Q5_K, Fallback::Blocks(Q5_1)),
    kquant("q6_k", "Q6_K in blocks of 256, elsewhere Q8_0", Q6_K, Fallback::Blocks(Q8_0)),
    kquant("q4_0", "Q4_0: fp16 scale per 32 weights", Q4_0, Fallback::Blocks(F16)),
    kquant("q4_1", "Q4_1: fp16 scale and minimum per 32 weights", Q4_1, Fallback::Blocks(F16)),
    kquant("q5_0", "Q5_0: fp16 scale per 32 weights", Q5_0, Fallback::Blocks(F16)),
    kquant("q5_1", "Q5_1: fp16 scale and minimum per 32 weights", Q5_1, Fallback::Blocks(F16)),
    kquant("q8_0", "Q8_0: fp16 scale per 32 weights", Q8_0, Fallback::Blocks(F16)),
];

impl KQuant {
    /// The type of that name.
    pub fn named(name: &str) -> Option<KQuant> {
        KQUANTS.into_iter().find(|kquant| kquant.name == name)
    }

    /// What a matrix of `cols` columns is stored as.
    fn stored_as(&self, cols: usize) -> Fallback {
        let fits = |blocks: Blocks| cols.is_multiple_of(blocks.candle.block_size());
        match self.fallback {
            _ if fits(self.blocks) => Fallback::Blocks(self.blocks),
            Fallback::Blocks(fallback) if fits(fallback) => Fallback::Blocks(fallback),
            Fallback::Iq4Nl if cols.is_multiple_of(32) => Fallback::Iq4Nl,
            _ => Fallback::Blocks(F16),
        }
    }
}

impl Baseline for KQuant {
    fn name(&self) -> &str {
        self.name
    }

    fn payload_bps(&self) -> f64 {
        self.blocks.code_bits as f64
    }

    fn encode(&self, rows: usize, cols: usize, weights: &[f32]) -> Result<Encoded, BaselineError> {
        let n = rows.checked_mul(cols).filter(|n| *n == weights.len() && *n > 0).ok_or_else(|| {
            BaselineError::Shape { rows, cols, what: format!("expected that many weights, found {}", weights.len()) }
        })?;
        if let Some(i) = weights.iter().position(|w| !w.is_finite()) {
            return Err(BaselineError::NotFinite { row: i / cols, col: i % cols, value: weights[i] });
        }
        let blocks = match self.stored_as(cols) {
            Fallback::Iq4Nl => return Ok(Encoded { fallback: Some("IQ4_NL"), ..Iq4Nl.encode(rows, cols, weights)? }),
            Fallback::Blocks(blocks) => blocks,
        };
        let bytes = quantize(blocks, rows, cols, weights).map_err(|e| BaselineError::Other(e.to_string()))?;
        let payload_bits = n as u64 * blocks.code_bits;
        let table_bits = bytes.len() as u64 * 8 - payload_bits;
        Ok(Encoded {
            planes: vec![Plane { name: BLOCKS, bytes }],
            rate: Rate { payload_bits, table_bits, n: n as u64, ..Rate::default() },
            fallback: (blocks != self.blocks).then_some(blocks.gguf),
        })
    }

    fn decode(&self, rows: usize, cols: usize, encoded: &Encoded) -> Result<Vec<f32>, BaselineError> {
        let blocks = match self.stored_as(cols) {
            Fallback::Iq4Nl => return Iq4Nl.decode(rows, cols, encoded),
            Fallback::Blocks(blocks) => blocks,
        };
        let shape = || BaselineError::Shape { rows, cols, what: "expected fewer weights".to_owned() };
        let row_bytes = cols / blocks.candle.block_size() * blocks.candle.type_size();
        let bytes = encoded.plane(BLOCKS, rows.checked_mul(row_bytes).ok_or_else(shape)?)?;
        let mut out = vec![0.0; rows.checked_mul(cols).ok_or_else(shape)?];
        dequantize_rows(blocks.gguf, bytes, cols, 0..rows, &mut out)
            .map_err(|e| BaselineError::Other(e.to_string()))?;
        Ok(out)
    }
}

fn quantize(blocks: Blocks, rows: usize, cols: usize, weights: &[f32]) -> candle_core::Result<Vec<u8>> {
    let tensor = Tensor::from_slice(weights, (rows, cols), &Device::Cpu)?;
    Ok(QTensor::quantize(&tensor, blocks.candle)?.data()?.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weights(n: usize) -> Vec<f32> {
        gosset_baselines::lloyd::random_normals::<2>(n.div_ceil(2), 4).concat()[..n].to_vec()
    }

    fn relative_error(a: &[f32], b: &[f32]) -> f64 {
        let sum = |f: &dyn Fn(usize) -> f32| (0..a.len()).map(|i| f64::from(f(i)).powi(2)).sum::<f64>();
        sum(&|i| a[i] - b[i]) / sum(&|i| a[i])
    }

    #[test]
    fn bits_are_those_of_the_format_and_of_the_bytes() {
        let weights = weights(2 * 512);
        // Bits per weight of llama.cpp's types, and the relative error that they stay below on normal values.
        for (name, bpw, error) in [
            ("q2_k", 2.625, 0.1),
            ("q3_k", 3.4375, 0.03),
            ("q4_k", 4.5, 0.01),
            ("q5_k", 5.5, 0.003),
            ("q6_k", 6.5625, 0.001),
            ("q4_0", 4.5, 0.012),
            ("q4_1", 5.0, 0.01),
            ("q5_0", 5.5, 0.003),
            ("q5_1", 6.0, 0.003),
            ("q8_0", 8.5, 0.0001),
        ] {
            let kquant = KQuant::named(name).unwrap();
            let encoded = kquant.encode(2, 512, &weights).unwrap();
            assert_eq!((encoded.rate.all_in_bps(), encoded.fallback), (bpw, None), "{name}");
            assert_eq!(encoded.rate.total_bits(), encoded.n_bytes() * 8);
            let found = relative_error(&weights, &kquant.decode(2, 512, &encoded).unwrap());
            assert!(found < error, "{name}: {found}");
        }
    }

    #[test]
    fn widths_that_do_not_fit_fall_back_and_say_so() {
        for (name, cols, fallback, bpw) in [
            ("q2_k", 576, Some("IQ4_NL"), 4.5),
            ("q3_k", 576, Some("IQ4_NL"), 4.5),
            ("q4_k", 576, Some("Q5_0"), 5.5),
            ("q5_k", 576, Some("Q5_1"), 6.0),
            ("q6_k", 576, Some("Q8_0"), 8.5),
            ("q4_0", 576, None, 4.5),
            ("q3_k", 172, Some("F16"), 16.0),
            ("q8_0", 172, Some("F16"), 16.0),
        ] {
            let weights = weights(3 * cols);
            let kquant = KQuant::named(name).unwrap();
            let encoded = kquant.encode(3, cols, &weights).unwrap();
            assert_eq!((encoded.fallback, encoded.rate.all_in_bps()), (fallback, bpw), "{name} {cols}");
            assert!(relative_error(&weights, &kquant.decode(3, cols, &encoded).unwrap()) < 0.012, "{name} {cols}");
            assert!(kquant.decode(3, cols + 32, &encoded).is_err() && kquant.decode(4, cols, &encoded).is_err());
        }
    }

    #[test]
    fn bad_input_is_an_error() {
        for kquant in KQUANTS {
            assert!(kquant.encode(1, 256, &[0.0; 255]).is_err() && kquant.encode(0, 256, &[]).is_err());
            assert!(kquant.encode(1, 256, &[f32::NAN; 256]).is_err());
            assert_eq!(kquant.decode(1, 256, &kquant.encode(1, 256, &[0.0; 256]).unwrap()).unwrap(), [0.0; 256]);
        }
    }
}
