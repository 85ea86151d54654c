#!/usr/bin/env python3
"""Makes tests/golden/models: tiny seeded checkpoints of every architecture, with the logits of an implementation that is not ours.

    python3 -m venv /tmp/golden && /tmp/golden/bin/pip install torch transformers gguf safetensors numpy
    /tmp/golden/bin/python tests/golden/models.py tests/golden/models

Made with torch 2.15.0, transformers 5.24.0 and gguf 0.19.0, on a CPU. For each model:

- NAME/config.json, NAME/model.safetensors: as transformers writes them;
- NAME.gguf: the same weights as llama.cpp's converter lays them out, with the names of the gguf package (where GGUF can say what the model is);
- NAME.golden.safetensors: `tokens` (I32) and `logits` (F32, all positions), computed in f32 with eager attention; `logits.full` is the same
  without the window.

Gemma 3 multiplies embeddings by a scale in the type of the weights. For a BF16 checkpoint that scale is rounded to BF16 here although the
rest is f32: that is what the model was trained with.
"""

import pathlib
import sys

import gguf
import numpy as np
import torch
import transformers
from safetensors.numpy import save_file

VOCAB = 96
N_TOKENS = 50
WINDOW = 8


def common(**more):
    base = dict(
        vocab_size=VOCAB,
        intermediate_size=48,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=None,
    )
    return base | more


GEMMA = dict(hidden_size=40, head_dim=16, sliding_window=WINDOW, tie_word_embeddings=True)


def gemma_rope(factor=None):
    full = {"rope_type": "default", "rope_theta": 100_000.0}
    if factor:
        full = {"rope_type": "linear", "factor": factor, "rope_theta": 100_000.0}
    return {"full_attention": full, "sliding_attention": {"rope_type": "default", "rope_theta": 1_000.0}}


def vision():
    return transformers.SiglipVisionConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=8, patch_size=4
    )


def models():
    """Name, configuration, dtype, and the GGUF architecture if the model has such a form."""
    llama3 = {
        "rope_type": "llama3",
        "rope_theta": 10_000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    t = transformers
    return [
        ("llama", t.LlamaConfig(**common(hidden_size=32, num_hidden_layers=2, rope_parameters=llama3)), "bfloat16", "llama"),
        ("qwen2", t.Qwen2Config(**common(hidden_size=32, num_hidden_layers=2)), "float32", "qwen2"),
        (
            "qwen2-window",
            t.Qwen2Config(
                **common(
                    hidden_size=32, num_hidden_layers=3, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1
                )
            ),
            "bfloat16",
            None,
        ),
        ("qwen3", t.Qwen3Config(**common(hidden_size=40, num_hidden_layers=2, head_dim=16)), "bfloat16", "qwen3"),
        (
            "mistral",
            t.MistralConfig(**common(hidden_size=32, num_hidden_layers=2, head_dim=16, sliding_window=WINDOW)),
            "bfloat16",
            "llama",
        ),
        # Seven layers, so that the usual pattern of five local layers and one other is seen to go on.
        (
            "gemma3",
            t.Gemma3TextConfig(
                **common(num_hidden_layers=7, query_pre_attn_scalar=16, rope_parameters=gemma_rope(4.0), **GEMMA)
            ),
            "bfloat16",
            "gemma3",
        ),
        # In f32, with a pattern, a score scale and a cap of logits of its own.
        (
            "gemma3-capped",
            t.Gemma3TextConfig(
                **common(
                    num_hidden_layers=3,
                    query_pre_attn_scalar=24,
                    final_logit_softcapping=12.0,
                    layer_types=["sliding_attention", "full_attention", "sliding_attention"],
                    rope_parameters=gemma_rope(),
                    **GEMMA,
                )
            ),
            "float32",
            None,
        ),
        (
            "gemma3-seeing",
            t.Gemma3Config(
                text_config=t.Gemma3TextConfig(
                    **common(num_hidden_layers=2, sliding_window_pattern=2, rope_parameters=gemma_rope(2.0), **GEMMA)
                ),
                vision_config=vision(),
                mm_tokens_per_image=1,
                image_token_index=95,
                boi_token_index=94,
                eoi_token_index=93,
            ),
            "bfloat16",
            None,
        ),
    ]


def fill(model, seed):
    """Weights that make attention choose and norms matter, exact in BF16 whatever the type is."""
    gemma = "Gemma3" in type(model).__name__
    generator = torch.Generator().manual_seed(seed)
    for name, p in sorted(model.named_parameters()):
        normal = torch.randn(p.shape, generator=generator)
        if "norm" in name and p.ndim == 1:
            normal = normal * 0.3 + (0.0 if gemma else 1.0)
        elif p.ndim == 1:
            normal = normal * 0.5
        elif "embed" in name:
            normal = normal * (0.5 if gemma else 1.0)
        else:
            normal = normal * 1.2 / p.shape[-1] ** 0.5
        p.data.copy_(normal.to(torch.bfloat16).to(p.dtype))


def logits(model, tokens, dtype):
    model = model.float().eval()
    embedding = model.get_input_embeddings()
    if hasattr(embedding, "embed_scale"):
        scale = torch.tensor(embedding.scalar_embed_scale)
        embedding.embed_scale.data = scale.to(dtype).float()
    with torch.no_grad():
        return model(input_ids=tokens[None]).logits[0].float().numpy()


def without_window(model):
    """The same weights, every layer seeing everything."""
    config = type(model.config)(**(model.config.to_dict() | {"sliding_window": None}))
    if hasattr(config, "use_sliding_window"):
        config = type(model.config)(**(model.config.to_dict() | {"use_sliding_window": False, "layer_types": None}))
    full = type(model)._from_config(config, attn_implementation="eager", dtype=torch.float32)
    full.load_state_dict(model.state_dict())
    return full


def write_gguf(path, model, config, arch, dtype):
    """As convert_hf_to_gguf.py of llama.cpp: norms and biases in F32, q and k of Llama dealt out by pairs, norms of Gemma plus one."""
    kind = {"bfloat16": gguf.GGMLQuantizationType.BF16, "float32": gguf.GGMLQuantizationType.F32}[dtype]
    names = gguf.get_tensor_name_map({v: k for k, v in gguf.MODEL_ARCH_NAMES.items()}[arch], config.num_hidden_layers)
    w = gguf.GGUFWriter(str(path), arch)
    w.add_context_length(config.max_position_embeddings)
    w.add_embedding_length(config.hidden_size)
    w.add_block_count(config.num_hidden_layers)
    w.add_feed_forward_length(config.intermediate_size)
    w.add_head_count(config.num_attention_heads)
    w.add_head_count_kv(config.num_key_value_heads)
    w.add_layer_norm_rms_eps(config.rms_norm_eps)
    w.add_vocab_size(config.vocab_size)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if arch in ("qwen3", "gemma3") or head_dim * config.num_attention_heads != config.hidden_size:
        w.add_key_length(head_dim)
        w.add_value_length(head_dim)
        if arch == "llama":
            w.add_rope_dimension_count(head_dim)
    rope = config.rope_parameters
    if arch == "gemma3":
        w.add_sliding_window(config.sliding_window)
        w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        w.add_rope_scaling_factor(rope["full_attention"]["factor"])
        # The converter leaves it out, as every released model has the same.
        w.add_float32("gemma3.rope.freq_base_swa", rope["sliding_attention"]["rope_theta"])
        rope = rope["full_attention"]
    elif getattr(config, "sliding_window", None):
        w.add_sliding_window(config.sliding_window)
    w.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "llama3":
        w.add_tensor("rope_freqs.weight", llama3_factors(rope, head_dim))
    for name, p in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        data = p.float().numpy()
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
        part = name.split(".")[-2]
        if arch == "llama" and part in heads:
            n = heads[part]
            data = data.reshape(n, 2, data.shape[0] // n // 2, *data.shape[1:]).swapaxes(1, 2).reshape(data.shape)
        if arch == "gemma3" and part.endswith("norm"):
            data = data + 1
        stored = gguf.GGMLQuantizationType.F32 if data.ndim == 1 else kind
        found = names.get_name(name, try_suffixes=(".weight", ".bias"))
        w.add_tensor(found, gguf.quants.quantize(np.ascontiguousarray(data), stored), raw_dtype=stored)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def llama3_factors(rope, head_dim):
    base, factor, low, high = rope["rope_theta"], rope["factor"], rope["low_freq_factor"], rope["high_freq_factor"]
    original = rope["original_max_position_embeddings"]
    factors = []
    for i in range(head_dim // 2):
        wavelength = 2 * np.pi * base ** (2 * i / head_dim)
        if wavelength < original / high:
            factors.append(1.0)
        elif wavelength > original / low:
            factors.append(factor)
        else:
            smooth = (original / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(factors, dtype=np.float32)


def main(out):
    out.mkdir(parents=True, exist_ok=True)
    for seed, (name, config, dtype, arch) in enumerate(models()):
        kind = getattr(torch, dtype)
        auto = transformers.AutoModelForImageTextToText if hasattr(config, "text_config") else transformers.AutoModelForCausalLM
        model = auto.from_config(config, attn_implementation="eager", dtype=kind)
        fill(model, seed)
        model.tie_weights()
        model.save_pretrained(out / name)
        (out / name / "generation_config.json").unlink(missing_ok=True)
        if arch:
            write_gguf(out / f"{name}.gguf", model, config, arch, dtype)
        # Ids of images are left to those who see.
        tokens = torch.randint(3, VOCAB - 4, (N_TOKENS,), generator=torch.Generator().manual_seed(100 + seed))
        tensors = {"tokens": tokens.numpy().astype(np.int32), "logits": logits(model, tokens, kind)}
        if name in ("mistral", "qwen2-window"):
            tensors["logits.full"] = logits(without_window(model), tokens, kind)
            print("  window matters:", float(abs(tensors["logits.full"] - tensors["logits"]).max()))
        save_file(tensors, out / f"{name}.golden.safetensors")
        print(name, "logits up to", float(abs(tensors["logits"]).max()), "parameters", model.num_parameters())


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
