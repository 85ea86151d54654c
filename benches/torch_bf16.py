"""PyTorch's times in bf16, CUDA graphs, cold data, medians of many replays: dense products by F.linear, and attention of one
row over a cache by flash scaled_dot_product_attention, 32 query heads and 8 key heads of 128 (`--contexts`).

    python3 benches/torch_bf16.py torch.json
    kernels --torch torch.json --json results.json

The copies of each matrix take more than 200 MiB together, so that no weight is in the L2 when it is read.
"""

import argparse
import json
import statistics

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

SHAPES = "4096x4096,14336x4096,4096x14336,6144x4096,28672x4096"
BATCHES = "1,2,4,8,16,32,64"


def time_us(rows, cols, batch, replays):
    copies = max(4, -(-(200 << 20) // (2 * rows * cols)))
    weights = [torch.randn(rows, cols, device="cuda").to(torch.bfloat16) for _ in range(copies)]
    x = torch.randn(batch, cols, device="cuda").to(torch.bfloat16)
    return replayed(lambda i: F.linear(x, weights[i]), copies, replays)


def attention_us(context, replays):
    copies = max(4, -(-(200 << 20) // (2 * 2 * 8 * context * 128)))
    shape = (copies, 1, 8, context, 128)
    keys, values = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    q = torch.randn(1, 32, 1, 128, device="cuda", dtype=torch.bfloat16)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        run = lambda i: F.scaled_dot_product_attention(q, keys[i], values[i], enable_gqa=True)
        return replayed(run, copies, replays)


def replayed(run, copies, replays):
    n_ops = copies * -(-48 // copies)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for i in range(copies):
            run(i)
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for i in range(n_ops):
            run(i % copies)
    for _ in range(3):
        graph.replay()
    times = []
    for _ in range(replays):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        times.append((start, end))
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) * 1e3 / n_ops for start, end in times)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", help="JSON file")
    parser.add_argument("--shapes", default=SHAPES, help="output x input dimension, with commas")
    parser.add_argument("--batches", default=BATCHES)
    parser.add_argument("--contexts", default="2048,8192,32768", help="positions of attention, with commas")
    parser.add_argument("--replays", type=int, default=60)
    args = parser.parse_args()
    rows = []
    for context in map(int, filter(None, args.contexts.split(","))):
        us = attention_us(context, args.replays)
        # Scalars of keys and values of a position, as the rows of kv_attend have it.
        rows.append({"shape": f"{context}x2048", "batch": 1, "us": us})
        print(f"torch attention over {context}: {us:.2f} us", flush=True)
    for shape in filter(None, args.shapes.split(",")):
        n, k = map(int, shape.split("x"))
        for batch in map(int, args.batches.split(",")):
            us = time_us(n, k, batch, args.replays)
            rows.append({"shape": shape, "batch": batch, "us": us})
            print(f"torch {shape} batch {batch}: {us:.2f} us", flush=True)
        torch.cuda.empty_cache()
    result = {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "device": torch.cuda.get_device_name(),
        "rows": rows,
    }
    with open(args.out, "w") as file:
        json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
