//! A program that has candle already and takes a compressed model into it: `consumer-candle MODEL`.

use candle_core::{DType, Device, IndexOp, Result, Tensor};
use gosset::container::Container;
use gosset_eval::PplProtocol;
use gosset_runtime::{LanguageModel, Linear, LoadOptions, source::open_source};

/// Candle's tensor and the one that the runtime speaks are one type.
fn likeliest(model: &LanguageModel, prompt: &[u32]) -> std::result::Result<u32, Box<dyn std::error::Error>> {
    let hidden: Tensor = model.forward(prompt, &mut model.new_cache())?;
    let logits: gosset_runtime::candle_core::Tensor = model.logits(&hidden)?;
    Ok(logits.i(prompt.len() - 1)?.argmax(0)?.to_scalar()?)
}

/// A layer of ours among candle's.
fn layer(layer: &Linear, x: &Tensor) -> Result<Tensor> {
    x.to_dtype(DType::F32)?.apply(layer)?.relu()
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    println!("{}", gosset_cuda::Gpu::detect().map_or_else(|reason| reason.to_string(), |gpu| gpu.info().to_string()));
    println!("{:?}", PplProtocol::parse("full-2048")?);
    let path = std::env::args_os().nth(1).ok_or("expected a model")?;
    let model = match Container::open(path.as_ref()) {
        Ok(container) => LanguageModel::from_container(container, &LoadOptions::default())?,
        Err(_) => LanguageModel::from_source(open_source(path.as_ref())?.as_ref(), &LoadOptions::default())?,
    };
    println!("{}", likeliest(&model, &[1, 2, 3])?);
    let weights = Tensor::ones((2, 3), DType::F32, &Device::Cpu)?;
    println!(
        "{:?}",
        layer(&Linear::Dense { weight: weights, bias: None }, &Tensor::ones((1, 3), DType::F32, &Device::Cpu)?)?.dims()
    );
    Ok(())
}
