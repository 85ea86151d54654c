// Two kernels that prove that modules load, launches reach the device, and random words are those of the CPU.
//
// probe_affine: y[i] = y[i] * factor + i (mod 2^32); y holds n words.
// probe_random: y[4 i .. 4 i + 3] = words 4 (first + i) .. of the stream (seed, domain, index); y holds 4 n words.
// Grid: ceil(n / 256) blocks of 256 threads. No shared memory.
// Caller: gosset-cuda, launch/probe.rs.

#include "params.cuh"
#include "philox.cuh"

extern "C" __global__ void probe_affine(const __grid_constant__ ProbeParams p) {
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < p.n) p.y[i] = p.y[i] * p.factor + i;
}

extern "C" __global__ void probe_random(const __grid_constant__ ProbeRandomParams p) {
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= p.n) return;
    const uint4 words = gosset::random_block(p.seed, p.domain, p.index, p.first + i);
    p.y[4 * size_t(i)] = words.x;
    p.y[4 * size_t(i) + 1] = words.y;
    p.y[4 * size_t(i) + 2] = words.z;
    p.y[4 * size_t(i) + 3] = words.w;
}
