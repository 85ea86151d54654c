"""Perplexity of the embedded model on the evaluation text, by a forward pass of its own in numpy.

    python3 check_tiny.py [--assets ASSETS] [--dtype float64|float32] [--context 2048 512]

Independent of the training code: the safetensors file is parsed by hand, BF16 is widened exactly, and everything is computed
in `--dtype`. Protocol: the whole text is encoded once, no BOS, windows of C ids do not overlap and start from an empty
cache. FULL scores the C - 1 predictions of a window, HALF those made at positions C/2 and up (C/2 - 1 of them). The ids
after the last whole window are left out; the line `+ tail` adds them to FULL as a shorter window.
"""

import argparse
import hashlib
import json
import struct
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer


def load(path, dtype):
    """Tensors of a BF16 safetensors file, by name."""
    raw = path.read_bytes()
    (n,) = struct.unpack_from("<Q", raw)
    tensors = {}
    for name, info in json.loads(raw[8 : 8 + n]).items():
        if name == "__metadata__":
            continue
        assert info["dtype"] == "BF16", (name, info["dtype"])
        begin, end = info["data_offsets"]
        bits = np.frombuffer(raw[8 + n + begin : 8 + n + end], dtype="<u2").astype("<u4") << 16
        tensors[name] = bits.view("<f4").reshape(info["shape"]).astype(dtype)
    return tensors


def rms_norm(x, weight, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + x.dtype.type(eps)) * weight


def rope(x, cos, sin):
    """x is [t, heads, head_dim]; coordinate i is paired with i + head_dim / 2."""
    half = x.shape[-1] // 2
    lo, hi = x[..., :half], x[..., half:]
    return np.concatenate([lo * cos - hi * sin, hi * cos + lo * sin], axis=-1)


def logits(w, cfg, ids, dtype):
    """[t, vocab] logits of one window."""
    heads, kv, hd = cfg["num_attention_heads"], cfg["num_key_value_heads"], cfg["head_dim"]
    t = len(ids)
    freq = cfg["rope_theta"] ** (-2.0 * np.arange(hd // 2) / hd)
    angle = np.arange(t)[:, None] * freq
    cos, sin = np.cos(angle).astype(dtype)[:, None, :], np.sin(angle).astype(dtype)[:, None, :]
    mask = np.triu(np.full((t, t), -np.inf, dtype), 1)
    x = w["model.embed_tokens.weight"][ids]
    for i in range(cfg["num_hidden_layers"]):
        p = f"model.layers.{i}."
        h = rms_norm(x, w[p + "input_layernorm.weight"], cfg["rms_norm_eps"])
        q = rope((h @ w[p + "self_attn.q_proj.weight"].T).reshape(t, heads, hd), cos, sin)
        k = rope((h @ w[p + "self_attn.k_proj.weight"].T).reshape(t, kv, hd), cos, sin)
        v = (h @ w[p + "self_attn.v_proj.weight"].T).reshape(t, kv, hd)
        out = np.empty((t, heads, hd), dtype)
        for head in range(heads):
            g = head * kv // heads
            s = q[:, head] @ k[:, g].T * dtype(hd**-0.5) + mask
            s = np.exp(s - s.max(-1, keepdims=True))
            out[:, head] = (s / s.sum(-1, keepdims=True)) @ v[:, g]
        x = x + out.reshape(t, heads * hd) @ w[p + "self_attn.o_proj.weight"].T
        h = rms_norm(x, w[p + "post_attention_layernorm.weight"], cfg["rms_norm_eps"])
        gate = h @ w[p + "mlp.gate_proj.weight"].T
        up = h @ w[p + "mlp.up_proj.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * up) @ w[p + "mlp.down_proj.weight"].T
    return rms_norm(x, w["model.norm.weight"], cfg["rms_norm_eps"]) @ w["model.embed_tokens.weight"].T


def losses(w, cfg, ids, dtype):
    """Negative log-likelihoods in nats of ids 1.. of one window, f64."""
    z = logits(w, cfg, ids, dtype)[:-1].astype(np.float64)
    top = z.max(-1)
    return np.log(np.exp(z - top[:, None]).sum(-1)) + top - z[np.arange(len(ids) - 1), ids[1:]]


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--assets", type=Path, default=Path(__file__).parent.parent)
    ap.add_argument("--dtype", choices=["float64", "float32"], default="float64")
    ap.add_argument("--context", type=int, nargs="+", default=[2048, 512])
    args = ap.parse_args()
    dtype = np.dtype(args.dtype).type
    cfg = json.loads((args.assets / "tiny/config.json").read_text())
    w = load(args.assets / "tiny/model.safetensors", dtype)
    data = (args.assets / "text/eval.txt").read_bytes()
    tok = Tokenizer.from_file(str(args.assets / "tiny/tokenizer.json"))
    text = data.decode("utf-8")
    ids = np.array(tok.encode(text).ids)
    assert tok.decode(ids.tolist()) == text and 0 not in ids
    print("weights sha256", hashlib.sha256((args.assets / "tiny/model.safetensors").read_bytes()).hexdigest())
    print("parameters", sum(t.size for t in w.values()))
    print("text", len(data), "bytes, sha256", hashlib.sha256(data).hexdigest())
    print("ids", len(ids), "first", ids[:8].tolist(), "sha256 (i32 LE)", hashlib.sha256(ids.astype("<i4").tobytes()).hexdigest())
    for c in args.context:
        whole = [losses(w, cfg, ids[a : a + c], dtype) for a in range(0, len(ids) - c + 1, c)]
        full, half = np.concatenate(whole), np.concatenate([n[c // 2 :] for n in whole])
        print(f"C {c}: {len(whole)} windows, FULL {np.exp(full.mean()):.6f} (n {len(full)}), HALF {np.exp(half.mean()):.6f} (n {len(half)})")
        print("  FULL of windows 1..4, cumulative:", " ".join(f"{np.exp(np.concatenate(whole[: k + 1]).mean()):.6f}" for k in range(4)))
        tail = ids[len(whole) * c :]
        if len(tail) > 1:
            both = np.concatenate([full, losses(w, cfg, tail, dtype)])
            print(f"  + tail of {len(tail)} ids: FULL {np.exp(both.mean()):.6f} (n {len(both)})")
        bits = full.sum() / np.log(2) / len(tok.decode(ids[: len(whole) * c].tolist()).encode())
        print(f"  bits per byte {bits:.4f}")


if __name__ == "__main__":
    main()
