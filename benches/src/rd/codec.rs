//! Gosset's own codecs, through a container and back.

use std::ops::Range;
use std::path::Path;

use anyhow::{Result, ensure};
use gosset_codec::{CodecError, CodecSpec, DecodeScratch, Decoder, EncodedMatrix, MatRef, Rate};
use gosset_container::{Container, ContainerKind, ManifestInfo, Writer};

use super::matrix::Matrix;
use super::method::{Encoded, Quantizer};

impl Quantizer for CodecSpec {
    fn encode<'a>(&'a self, m: &Matrix) -> Result<Box<dyn Encoded + 'a>> {
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

type DecodeRows<'a> = fn(&Decoder<'a>, Range<usize>, &mut [f32], &mut DecodeScratch) -> Result<(), CodecError>;

/// Decodes all rows in blocks of about 16, as the runtime does.
fn in_blocks<'a>(decoder: &Decoder<'a>, out: &mut [f32], decode: DecodeRows<'a>) -> Result<()> {
    let block = decoder.row_block() * 16usize.div_ceil(decoder.row_block());
    let mut scratch = DecodeScratch::new();
    for (i, out) in out.chunks_mut(block * decoder.cols()).enumerate() {
        decode(decoder, i * block..i * block + out.len() / decoder.cols(), out, &mut scratch)?;
    }
    Ok(())
}
