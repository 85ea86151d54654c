//! Checkpoints on disk as one `ModelSource`: GGUF files, Hugging Face folders, bare safetensors.
