// y[i] = y[i] * factor + i (mod 2^32): proves that modules load and launches reach the device.
//
// Shapes: y holds n words.
// Grid: ceil(n / 256) blocks of 256 threads. No shared memory.
// Caller: the tests of gosset-cuda (tests/gpu/loading.rs) and its diagnosis of a device.

#include "params.cuh"

extern "C" __global__ void probe_affine(const __grid_constant__ ProbeParams p) {
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < p.n) p.y[i] = p.y[i] * p.factor + i;
}
