//! What is measured: every codec and every baseline behind one interface.

use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use gosset_codec::{CodecSpec, DecodeScratch, Decoder, EncodedMatrix, MatRef, Rate, codecs};
use gosset_container::{Container, ContainerKind, ManifestInfo, Writer};

use super::matrix::Matrix;

/// A way to quantize matrices that goes by a name, at the rates that it has.
pub(super) struct Method {
    pub(super) name: String,
    pub(super) about: String,
    /// The rates it can be asked for.
    pub(super) rates: Rates,
    /// The quantizer at one of them.
    make: Box<dyn Fn(f64) -> Result<Box<dyn Quantizer>>>,
}

/// Rates that a method can be asked for, in bits per weight.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Rates {
    /// All between two.
    Between(f64, f64),
    /// These.
    Only(Vec<f64>),
}

impl Rates {
    /// The one rate of a method that has no choice; it is measured whatever rates are asked for.
    pub(super) fn single(&self) -> Option<f64> {
        match self {
            Rates::Only(rates) => <[f64; 1]>::try_from(rates.as_slice()).ok().map(|[rate]| rate),
            Rates::Between(min, max) => (min == max).then_some(*min),
        }
    }

    pub(super) fn contains(&self, rate: f64) -> bool {
        match self {
            Rates::Between(min, max) => (*min..=*max).contains(&rate),
            Rates::Only(rates) => rates.contains(&rate),
        }
    }
}

/// A method at a rate.
pub(super) trait Quantizer {
    /// The matrix as bits.
    fn encode(&self, m: &Matrix) -> Result<Box<dyn Encoded>>;
}

/// A matrix as bits.
pub(super) trait Encoded {
    /// Bits by cause, without a file around them.
    fn rate(&self) -> Rate;

    /// Every bit that the matrix takes, by cause, in the file that it is stored in; `None` for methods without a file.
    ///
    /// Where there is a file it is written in `folder`, closed and read back, and what it holds is compared.
    fn stored_rate(&self, folder: &Path) -> Result<Option<Rate>>;

    /// Writes the matrix in its original basis.
    fn decode(&self, out: &mut [f32]) -> Result<()>;

    /// Writes the matrix in the frame that products are computed in.
    fn decode_for_product(&self, out: &mut [f32]) -> Result<()> {
        self.decode(out)
    }
}

impl Method {
    pub(super) fn at(&self, rate: f64) -> Result<Box<dyn Quantizer>> {
        (self.make)(rate).with_context(|| format!("{}@{rate}", self.name))
    }
}

/// Everything that can be measured, codecs before baselines.
pub(super) fn methods() -> Vec<Method> {
    let codecs = codecs().iter().map(|info| Method {
        name: info.name.to_owned(),
        about: info.about.to_owned(),
        rates: match info.rates {
            Some(rates) => Rates::Only(rates.to_vec()),
            None => Rates::Between(info.min_bps, info.max_bps),
        },
        make: Box::new(|rate| Ok(Box::new(CodecSpec::named(info.name, rate)?))),
    });
    codecs.collect()
}

impl Quantizer for CodecSpec {
    fn encode(&self, m: &Matrix) -> Result<Box<dyn Encoded>> {
        Ok(Box::new(self.check()?.encode(MatRef::new(&m.values, m.rows, m.cols)?)?))
    }
}

impl Encoded for EncodedMatrix {
    fn rate(&self) -> Rate {
        EncodedMatrix::rate(self)
    }

    fn stored_rate(&self, folder: &Path) -> Result<Option<Rate>> {
        const NAME: &str = "w";
        let path = folder.join("w.gosset");
        let mut writer = Writer::create(&path, true)?;
        writer.add_matrix(NAME, self, "F32")?;
        writer.finish(ManifestInfo { kind: ContainerKind::Tensors, source: "rd".into(), recipe: "rd".into() })?;
        let container = Container::open(&path)?;
        container.verify()?;
        let stored = container.coded(NAME)?;
        ensure!(stored.header() == &self.header, "the header that was read back differs from the one written");
        let n = (self.header.rows * self.header.cols) as usize;
        let (mut here, mut there) = (vec![0.0; n], vec![0.0; n]);
        self.decode(&mut here)?;
        in_blocks(&stored.decoder()?, &mut there, Decoder::decode_rows)?;
        let same = here.iter().zip(&there).all(|(a, b)| a.to_bits() == b.to_bits());
        ensure!(same, "the matrix that was read back differs from the one written");
        Ok(Some(container.ledger()?.coded_rate()))
    }

    fn decode(&self, out: &mut [f32]) -> Result<()> {
        in_blocks(&self.decoder()?, out, Decoder::decode_rows)
    }

    fn decode_for_product(&self, out: &mut [f32]) -> Result<()> {
        in_blocks(&self.decoder()?, out, Decoder::decode_rows_rotated)
    }
}

type DecodeRows<'a> =
    fn(&Decoder<'a>, Range<usize>, &mut [f32], &mut DecodeScratch) -> Result<(), gosset_codec::CodecError>;

/// Decodes all rows in blocks of about 16, as the runtime does.
fn in_blocks<'a>(decoder: &Decoder<'a>, out: &mut [f32], decode: DecodeRows<'a>) -> Result<()> {
    let block = decoder.row_block() * 16usize.div_ceil(decoder.row_block());
    let mut scratch = DecodeScratch::new();
    for (i, out) in out.chunks_mut(block * decoder.cols()).enumerate() {
        decode(decoder, i * block..i * block + out.len() / decoder.cols(), out, &mut scratch)?;
    }
    Ok(())
}
