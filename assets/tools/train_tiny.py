"""Trains the embedded model on the corpus of `make_text.py` and writes it in Hugging Face's Llama layout.

    python3 train_tiny.py --corpus DIR --out DIR

The defaults are the settings of the model in `assets/tiny`. Plain recipe: AdamW, weight decay on matrices, linear warm-up
then cosine, dropout on the residual branches, gradient clipping; the weights with the best validation loss are kept and
rounded to BF16 once at the end. Seeds are fixed and deterministic kernels are asked for; another device or library version
still changes the last digits, hence the weights.
"""

import argparse
import json
import math
import os
import time
from pathlib import Path

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

END_ID = 0
CONTEXT = 2048
ROPE_THETA = 10000.0
EPS = 1e-5


class RmsNorm(nn.Module):
    """x / rms(x) * weight, in f32."""

    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        x = x.float()
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * self.weight


class Attention(nn.Module):
    """Causal grouped-query attention; rotary pairs are (i, i + head_dim / 2)."""

    def __init__(self, cfg):
        super().__init__()
        d, hd = cfg["hidden_size"], cfg["head_dim"]
        self.heads, self.kv_heads, self.head_dim = cfg["num_attention_heads"], cfg["num_key_value_heads"], hd
        self.q_proj = nn.Linear(d, self.heads * hd, bias=False)
        self.k_proj = nn.Linear(d, self.kv_heads * hd, bias=False)
        self.v_proj = nn.Linear(d, self.kv_heads * hd, bias=False)
        self.o_proj = nn.Linear(self.heads * hd, d, bias=False)

    def forward(self, x, cos, sin):
        b, t, _ = x.shape
        q = self.q_proj(x).view(b, t, self.heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(b, t, self.kv_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(b, t, self.kv_heads, self.head_dim).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        group = self.heads // self.kv_heads
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(out.transpose(1, 2).reshape(b, t, -1))


def rotate(x, cos, sin):
    """Rotary embedding of [b, heads, t, head_dim]; cos and sin are [t, head_dim / 2]."""
    lo, hi = x.chunk(2, dim=-1)
    return torch.cat((lo * cos - hi * sin, hi * cos + lo * sin), dim=-1).to(x.dtype)


class Mlp(nn.Module):
    """SwiGLU."""

    def __init__(self, cfg):
        super().__init__()
        d, f = cfg["hidden_size"], cfg["intermediate_size"]
        self.gate_proj = nn.Linear(d, f, bias=False)
        self.up_proj = nn.Linear(d, f, bias=False)
        self.down_proj = nn.Linear(f, d, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """Pre-norm attention, then pre-norm SwiGLU, each on a residual branch with dropout."""

    def __init__(self, cfg, dropout):
        super().__init__()
        self.input_layernorm = RmsNorm(cfg["hidden_size"])
        self.self_attn = Attention(cfg)
        self.post_attention_layernorm = RmsNorm(cfg["hidden_size"])
        self.mlp = Mlp(cfg)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, cos, sin):
        x = x + self.dropout(self.self_attn(self.input_layernorm(x), cos, sin))
        return x + self.dropout(self.mlp(self.post_attention_layernorm(x)))


class Llama(nn.Module):
    """Llama with tied embeddings; module names are those of the checkpoint without the `model.` prefix."""

    def __init__(self, cfg, dropout):
        super().__init__()
        self.embed_tokens = nn.Embedding(cfg["vocab_size"], cfg["hidden_size"])
        self.layers = nn.ModuleList(Layer(cfg, dropout) for _ in range(cfg["num_hidden_layers"]))
        self.norm = RmsNorm(cfg["hidden_size"])
        self.dropout = nn.Dropout(dropout)
        half = cfg["head_dim"] // 2
        inv_freq = ROPE_THETA ** (-torch.arange(half, dtype=torch.float64) / half)
        angle = torch.outer(torch.arange(CONTEXT, dtype=torch.float64), inv_freq)
        self.register_buffer("cos", angle.cos().float(), persistent=False)
        self.register_buffer("sin", angle.sin().float(), persistent=False)
        branch_std = 0.02 / math.sqrt(2 * cfg["num_hidden_layers"])
        for name, p in self.named_parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=branch_std if name.endswith(("o_proj.weight", "down_proj.weight")) else 0.02)

    def forward(self, ids):
        x = self.dropout(self.embed_tokens(ids).float())
        cos, sin = self.cos[: ids.shape[1]], self.sin[: ids.shape[1]]
        for layer in self.layers:
            x = layer(x, cos, sin)
        return F.linear(self.norm(x), self.embed_tokens.weight)


class Stream:
    """Endless ids of one corpus file, documents in a new order every epoch.

    Two documents are joined by a blank line (ids of `paragraph_break`), as in the evaluation text, or by the end-of-text id.
    """

    def __init__(self, path, joint, p_joint, rng):
        ids = np.fromfile(path, dtype="<u2").astype(np.int64)
        cuts = np.flatnonzero(ids == END_ID)
        self.docs = [d[1:] if i else d for i, d in enumerate(np.split(ids, cuts)[:-1])]
        self.joint, self.p_joint, self.rng = np.array(joint), p_joint, rng
        self.buffer, self.at, self.epochs = np.empty(0, np.int64), 0, 0

    def take(self, n):
        while len(self.buffer) - self.at < n:
            parts = [self.buffer[self.at :]]
            for i in self.rng.permutation(len(self.docs)):
                parts += [self.docs[i], self.joint if self.rng.random() < self.p_joint else np.array([END_ID])]
            self.buffer, self.at, self.epochs = np.concatenate(parts), 0, self.epochs + 1
        self.at += n
        return self.buffer[self.at - n : self.at]


@torch.no_grad()
def validation_loss(model, ids, device):
    """Mean loss in nats over non-overlapping windows of `CONTEXT` ids, every predictable position scored, in f32."""
    model.eval()
    total, count = 0.0, 0
    for at in range(0, len(ids), CONTEXT):
        window = torch.from_numpy(ids[at : at + CONTEXT]).to(device)[None]
        if window.shape[1] < 2:
            continue
        loss = F.cross_entropy(model(window)[0, :-1].float(), window[0, 1:], reduction="sum")
        total, count = total + loss.item(), count + window.shape[1] - 1
    model.train()
    return total / count


def config(args):
    """config.json of the checkpoint."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": END_ID,
        "eos_token_id": END_ID,
        "head_dim": 64,
        "hidden_act": "silu",
        "hidden_size": 256,
        "initializer_range": 0.02,
        "intermediate_size": args.ffn,
        "max_position_embeddings": CONTEXT,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": 4,
        "num_hidden_layers": args.layers,
        "num_key_value_heads": args.kv_heads,
        "rms_norm_eps": EPS,
        "rope_scaling": None,
        "rope_theta": ROPE_THETA,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": 2048,
    }


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--corpus", type=Path, required=True)
    ap.add_argument("--out", type=Path, required=True)
    ap.add_argument("--layers", type=int, default=3)
    ap.add_argument("--ffn", type=int, default=256)
    ap.add_argument("--kv-heads", type=int, default=2)
    ap.add_argument("--steps", type=int, default=5000)
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--dropout", type=float, default=0.1)
    ap.add_argument("--weight-decay", type=float, default=0.1)
    ap.add_argument("--wiki-share", type=float, default=0.65)
    ap.add_argument("--batch-ids", type=int, default=32768)
    ap.add_argument("--seed", type=int, default=1)
    args = ap.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(args.seed)
    torch.use_deterministic_algorithms(True, warn_only=True)
    rng = np.random.default_rng(args.seed)
    cfg = config(args)
    model = Llama(cfg, args.dropout).to(device)
    n_params = sum(p.numel() for p in model.parameters())
    corpus = json.loads((args.corpus / "corpus.json").read_text())
    wiki = Stream(args.corpus / "wiki.bin", corpus["paragraph_break"], 0.9, rng)
    books = Stream(args.corpus / "books.bin", corpus["paragraph_break"], 0.0, rng)
    val = np.fromfile(args.corpus / "val.bin", dtype="<u2").astype(np.int64)

    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": args.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    extra = {"fused": True} if device == "cuda" else {}
    opt = torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.95), eps=1e-8, **extra)
    warmup = min(200, args.steps // 10 + 1)

    best, best_state, curve, start = math.inf, None, [], time.time()
    for step in range(args.steps):
        up = (step + 1) / warmup
        down = 0.5 * (1 + math.cos(math.pi * max(0, step - warmup) / max(1, args.steps - warmup)))
        for g in opt.param_groups:
            g["lr"] = args.lr * min(up, down)
        length = CONTEXT if rng.random() < 0.5 else 512
        rows = [(wiki if rng.random() < args.wiki_share else books).take(length) for _ in range(args.batch_ids // length)]
        ids = torch.from_numpy(np.stack(rows)).to(device)
        with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
            logits = model(ids)
        loss = F.cross_entropy(logits[:, :-1].float().flatten(0, 1), ids[:, 1:].flatten())
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        if (step + 1) % 100 == 0 or step + 1 == args.steps:
            v = validation_loss(model, val, device)
            curve.append((step + 1, round(loss.item(), 4), round(v, 4)))
            if v < best:
                best, best_state = v, {k: p.detach().to("cpu", copy=True) for k, p in model.state_dict().items()}
            if (step + 1) % 500 == 0:
                print(args.out.name, curve[-1], f"{time.time() - start:.0f} s", flush=True)

    args.out.mkdir(parents=True, exist_ok=True)
    tensors = {f"model.{k}": p.to(torch.bfloat16).contiguous() for k, p in best_state.items()}
    save_file(tensors, str(args.out / "model.safetensors"), metadata={"format": "pt"})
    model.load_state_dict({k: p.to(torch.bfloat16).float() for k, p in best_state.items()})
    rounded = validation_loss(model, val, device)
    (args.out / "config.json").write_text(json.dumps(cfg, indent=2) + "\n")
    generation = {"bos_token_id": END_ID, "eos_token_id": END_ID, "pad_token_id": END_ID, "do_sample": True}
    (args.out / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    log = {
        "args": {k: v for k, v in vars(args).items() if not isinstance(v, Path)},
        "parameters": n_params,
        "ids_seen": args.steps * args.batch_ids,
        "epochs_wiki_books": [wiki.epochs, books.epochs],
        "best_validation_loss": best,
        "validation_loss_bf16": rounded,
        "validation_perplexity_bf16": math.exp(rounded),
        "seconds": round(time.time() - start, 1),
        "curve_step_train_validation": curve,
    }
    (args.out / "log.json").write_text(json.dumps(log) + "\n")
    print(args.out.name, {k: log[k] for k in log if k != "curve_step_train_validation"}, flush=True)


if __name__ == "__main__":
    main()
