//! A program that compresses matrices and has no use for a runtime: a file is written, read back and measured.

use gosset_codec::{CodecSpec, DecodeScratch, MatRef, calibrate};
use gosset_container::{Container, ContainerKind, ManifestInfo, Writer};
use gosset_kv::KvSpec;
use gosset_quantize::{ModelSource, SafetensorsSource};
use gosset_unisvq::UniSvqSpec;

const ROWS: usize = 64;
const COLS: usize = 256;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::temp_dir().join(format!("consumer-{}.gosset", std::process::id()));
    let weights = calibrate::gaussian(ROWS * COLS, 0);
    let mut writer = Writer::create(&path, true)?;
    for codec in ["e8@3", "trellis-64@3", "shift-12@3"] {
        writer.add_matrix(
            codec,
            &CodecSpec::parse(codec)?.check()?.encode(MatRef::new(&weights, ROWS, COLS)?)?,
            "F32",
        )?;
    }
    let (grid, _) = UniSvqSpec::named("unisvq", 3.0)?.check()?.encode(&weights, ROWS, COLS, None)?;
    writer.add_unisvq("unisvq@3", &grid, "F32")?;
    writer.finish(ManifestInfo {
        kind: ContainerKind::Tensors,
        source: Default::default(),
        recipe: Default::default(),
    })?;

    let container = Container::open(&path)?;
    container.verify()?;
    let mut decoded = vec![0.0; weights.len()];
    container.coded("e8@3")?.decoder()?.decode_rows(0..ROWS, &mut decoded, &mut DecodeScratch::new())?;
    let error: f32 = weights.iter().zip(&decoded).map(|(w, d)| (w - d).powi(2)).sum();
    assert!(error <= 0.03 * (ROWS * COLS) as f32, "{error}");
    drop(container);
    std::fs::remove_file(&path)?;

    println!("{}", "e8@2.25,window=256".parse::<KvSpec>()?);
    if let Some(folder) = std::env::args_os().nth(1) {
        println!("{} tensors", SafetensorsSource::open(folder.as_ref())?.tensors().len());
    }
    Ok(())
}
