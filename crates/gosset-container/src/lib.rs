//! The Gosset file: compressed matrices, exact tensors and everything needed to run a model, in one safetensors file.
