// Sums of affine-grid codes times up to 64 activations: parts[segment, row tile, block of eight activations, lane] = the lane's four numbers of the sum
// over the segment's columns of q t' (include/mma.cuh).
//
// t' comes from unisvq_prepare.cu, rotated and folded, as halves: [unit][block of eight activations][8 vectors][lane][4 words], in the order of B of
// mma.m16n8k16. A code is an operand as it is, the mantissa of a half that is not normal (include/unisvq.cuh): one AND for two weights; what the
// place of a quad multiplies it by, t' has been divided by.
//
// A warp has two row tiles, a block those of its warps: a row block. Items (include/unisvq_items.cuh) are dealt out evenly, so that all blocks end at
// about the same time whatever the shape; `unisvq_finish` adds the segments of a row block and transforms the sums. A stage of shared memory is one
// item: its activations, of all warps, then each warp's words; the next depth - 1 stages are on their way by cp.async.
//
// Grid: n_blocks, at most as many as items. Block: 32 x (a multiple of 4, at most 16). Dynamic shared memory:
// depth * (blocks of eight * 4096 + warps * BITS * 1024).
//
// Defines: BITS. Caller: gosset-cuda/src/launch/unisvq_gemm.rs.

#include <cuda_fp16.h>

#include "copy.cuh"
#include "mma.cuh"
#include "params.cuh"
#include "rht.cuh"
#include "unisvq.cuh"
#include "unisvq_items.cuh"

namespace {

using namespace unisvq;
using gosset::commit_copies;
using gosset::copy_16;
using gosset::load_shared;
using gosset::load_shared_2;
using gosset::mma;
using gosset::wait_for_copy;

constexpr uint32_t kUnitBytes = BITS * 512;
constexpr uint32_t kBlockVectors = 256, kBlockBytes = 16 * kBlockVectors;
constexpr int kMaxWarps = 16;

// Where copies, or products, are.
struct Cursor {
    uint32_t block, unit, left, stage;

    __device__ __forceinline__ void next(const UniSvqGemmParams& p, uint32_t base, uint32_t stage_bytes) {
        --left;
        if (++unit == p.row_units) unit = 0, ++block;
        stage += stage_bytes;
        if (stage == base + p.depth * stage_bytes) stage = base;
    }
};

// d += a unit of two row tiles times its activations; `x` and `words` are those of the lane.
template <int kBlocks>
__device__ __forceinline__ void multiply(float (&d)[2][kBlocks][4], uint32_t x, uint32_t words) {
#pragma unroll 1
    for (int half = 0; half < 2; ++half, x += kBlockBytes / 2, words += 8) {
        uint32_t v[2][BITS][2];
#pragma unroll
        for (int m = 0; m < 2; ++m) {
#pragma unroll
            for (int i = 0; i < BITS; ++i) {
                const uint2 both = load_shared_2(words + m * kUnitBytes + i * 512);
                v[m][i][0] = both.x, v[m][i][1] = both.y;
            }
        }
#pragma unroll
        for (int pair = 0; pair < 4; ++pair) {
            uint32_t a[2][2][4];
#pragma unroll
            for (int m = 0; m < 2; ++m) {
                Codes<BITS>::halves(a[m][0], v[m], 2 * pair);
                Codes<BITS>::halves(a[m][1], v[m], 2 * pair + 1);
            }
            // Blocks take turns in pairs, so that few mma wait for the one before.
#pragma unroll
            for (int b = 0; b < kBlocks; b += 2) {
                const uint4 x0 = load_shared(x + b * kBlockBytes + pair * 512);
                const uint4 x1 = load_shared(x + (b + 1) * kBlockBytes + pair * 512);
                mma(d[0][b], a[0][0], x0.x, x0.y);
                mma(d[1][b], a[1][0], x0.x, x0.y);
                mma(d[0][b + 1], a[0][0], x1.x, x1.y);
                mma(d[1][b + 1], a[1][0], x1.x, x1.y);
                mma(d[0][b], a[0][1], x0.z, x0.w);
                mma(d[1][b], a[1][1], x0.z, x0.w);
                mma(d[0][b + 1], a[0][1], x1.z, x1.w);
                mma(d[1][b + 1], a[1][1], x1.z, x1.w);
            }
        }
    }
}

template <int kBlocks>  // of eight activations
__device__ __forceinline__ void gemm(const UniSvqGemmParams& p) {
    static_assert(kBlocks % 2 == 0, "blocks take turns in pairs");
    extern __shared__ __align__(128) unsigned char shared[];
    const uint32_t base = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, n_warps = blockDim.x >> 5;
    const uint32_t x_bytes = kBlocks * kBlockBytes, stage_bytes = x_bytes + n_warps * (2 * kUnitBytes);
    const uint32_t first = first_item(p.n_items, gridDim.x, blockIdx.x), n = first_item(p.n_items, gridDim.x, blockIdx.x + 1) - first;

    auto copy_words = [&](const Cursor& at) {
#pragma unroll
        for (uint32_t m = 0; m < 2; ++m) {
            const uint32_t tile = (at.block * n_warps + warp) * 2 + m;
            if (tile >= p.tiles) break;
            const uint32_t to = at.stage + x_bytes + (warp * 2 + m) * kUnitBytes + lane * 16;
            const uint4* from = p.words + (static_cast<size_t>(tile) * p.row_units + at.unit) * (BITS * 32) + lane;
#pragma unroll
            for (uint32_t v = 0; v < BITS; ++v) copy_16(to + v * 512, from + v * 32);
        }
    };
    auto copy_x = [&](const Cursor& at) {
        constexpr uint32_t vectors = kBlocks * kBlockVectors;
        const uint4* from = p.x + static_cast<size_t>(at.unit) * vectors;
#pragma unroll 1
        for (uint32_t i = threadIdx.x; i < vectors; i += blockDim.x) copy_16(at.stage + i * 16, from + i);
    };
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
    // Words do not depend on the previous kernel.
    const Cursor begin = {first / p.row_units, first % p.row_units, n, base};
    Cursor ask = begin;
#pragma unroll 1
    for (uint32_t i = 1; i < p.depth && ask.left != 0; ++i) {
        copy_words(ask);
        ask.next(p, base, stage_bytes);
    }
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
    ask = begin;
#pragma unroll 1
    for (uint32_t i = 1; i < p.depth; ++i) {
        if (ask.left != 0) {
            copy_x(ask);
            ask.next(p, base, stage_bytes);
        }
        commit_copies();
    }

    Cursor at = begin;
#pragma unroll 1
    while (at.left != 0) {
        // A segment. Warps beyond the last tile multiply whatever there is, and write nothing.
        float d[2][kBlocks][4] = {};
        const uint32_t block = at.block, tile = (block * n_warps + warp) * 2;
        do {
            wait_for_copy(p.depth - 1);
            __syncthreads();
            if (ask.left != 0) {
                copy_words(ask);
                copy_x(ask);
                ask.next(p, base, stage_bytes);
            }
            commit_copies();
            multiply(d, at.stage + lane * 16, at.stage + x_bytes + warp * (2 * kUnitBytes) + lane * 16);
            at.next(p, base, stage_bytes);
        } while (at.unit != 0 && at.left != 0);

        const uint32_t segment = blockIdx.x - owner(p.n_items, gridDim.x, block * p.row_units);
        float4* to = p.parts + (static_cast<size_t>(segment) * p.part_tiles + tile) * (kBlocks * 32) + lane;
#pragma unroll
        for (int m = 0; m < 2; ++m) {
            if (tile + m >= p.tiles) break;
#pragma unroll
            for (int b = 0; b < kBlocks; ++b) __stcg(to + (m * kBlocks + b) * 32, make_float4(d[m][b][0], d[m][b][1], d[m][b][2], d[m][b][3]));
        }
    }
}

}  // namespace

#define GEMM(name, blocks)                                                                                                \
    extern "C" __global__ void __launch_bounds__(32 * kMaxWarps, 1) name(const __grid_constant__ UniSvqGemmParams p) { \
        gemm<blocks>(p);                                                                                                  \
    }

GEMM(unisvq_gemm_16, 2)
GEMM(unisvq_gemm_32, 4)
GEMM(unisvq_gemm_64, 8)
