// y = S_V U_m (W U_n^T (S_U x)) for 1 to 8 activations, W = scale (A q + B) by groups of columns, q codes of 2 to 4 bits.
//
// A and B act on the activation: codes meet t' = A^T t, 16-bit integers under one scale per warp or activation, in int8 tensor cores (layout:
// include/unisvq.cuh). U are tiles of up to 128, S half-precision factors.
//
// A warp owns UNITS units of columns of every row tile of its block, and keeps those of the activations in registers: for up to
// four activations of one unit per warp it rotates, folds and rounds them by itself, others come from unisvq_prepare.cu. Its words
// of the next `depth` row tiles are on their way to its part of shared memory: copies start before the previous kernel has ended,
// and need no registers. Sums of up to `slots` row tiles
// wait in shared memory; then those of all warps are added up and written to z. Whoever writes the last of the eight row tiles of
// a group of 128 rows transforms it: where blocks share a group, counters, all zero before and after, say who that is.
//
// Grid: at most a block per row tile; row tiles are dealt out evenly, in order. Block: 32 WARPS. Dynamic shared memory:
// slots * WARPS * 16 * batch * 4 for sums, at least 512 WARPS; depth * WARPS * UNITS * BITS * 512 for words.
// Wider matrices than WARPS UNITS units take several launches: all but the last only add to z.
//
// Defines: BITS. Caller: gosset-cuda/src/launch/unisvq.rs.

#include <cuda_fp16.h>

#include "copy.cuh"
#include "params.cuh"
#include "rht.cuh"
#include "unisvq.cuh"

namespace {

using namespace unisvq;
using gosset::commit_copies;
using gosset::copy_16;
using gosset::load_shared;
using gosset::wait_for_copy;

constexpr uint32_t kGroupTiles = 8;

// Transforms a group of rows of all activations and writes it.
__device__ __forceinline__ void finish(const UniSvqParams& p, uint32_t group, int lane) {
    const uint32_t row = group * 128 + lane * 4;
    const Rows rows = rows_of(p, group, lane);
#pragma unroll 1
    for (uint32_t b = 0; b < p.batch; ++b) {
        const float4 f = __ldcg(reinterpret_cast<const float4*>(p.z + static_cast<size_t>(b) * p.z_stride + row));
        const float v[4] = {f.x, f.y, f.z, f.w};
        write_rows(p, rows, row, b, v);
    }
}

// What a lane knows of the activation that its column of the mma stands for.
struct Activation {
    float step;  // of half a unit of the sums
    float beta;
    int fix;
};

// The activations of one unit per warp, rotated, folded and rounded here: x [batch, cols] of f32 in tiles of 128 or as it is.
__device__ __forceinline__ void prepare(const UniSvqParams& p, uint32_t (&x)[16], Activation& mine, uint32_t unit, int warp, int lane, uint32_t* room) {
    const int g = lane >> 2, t = lane & 3;
    const uint32_t col = unit * kUnitCols + lane * 4;
#pragma unroll 1
    for (uint32_t b = 0; b < p.batch; ++b) {
        float v[2][4] = {};
        float sum = 0.0f;
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            if (col + j * 128 < p.cols) {
                float su[4];
                halves(su, p.input_scales + col + j * 128);
                const float4 f = *reinterpret_cast<const float4*>(p.x + static_cast<size_t>(b) * p.cols + col + j * 128);
                v[j][0] = f.x * su[0], v[j][1] = f.y * su[1], v[j][2] = f.z * su[2], v[j][3] = f.w * su[3];
            }
        }
        if (p.flags & kInput) {
#pragma unroll
            for (int j = 0; j < 2; ++j) transform(v[j], nullptr, 0);
        }
        if (p.fold != kPlain) {
#pragma unroll
            for (int j = 0; j < 2; ++j) sum += fold<false>(v[j], p.fold_table, p.centre, col + j * 128, p.cols);
#pragma unroll
            for (int m = 16; m != 0; m /= 2) sum += __shfl_xor_sync(kAll, sum, m);
        }
        uint32_t most = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) most = max(most, max(__float_as_uint(v[0][i]) & 0x7fffffffu, __float_as_uint(v[1][i]) & 0x7fffffffu));
        most = __reduce_max_sync(kAll, most);
        const float scale = scale_of(most);
        int total = 0;
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const Planes planes = unisvq::planes(v[j], scale);
            room[j * 32 + lane] = planes.hi;
            room[64 + j * 32 + lane] = planes.lo;
            total += planes.sum;
        }
        total = __reduce_add_sync(kAll, total);
        if (t == b) mine = {0.5f * step_of(most), sum, total * ((1 << BITS) - 1)};
        __syncwarp();
        if (g / 2 == b) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                *reinterpret_cast<uint4*>(&x[4 * i]) =
                    *reinterpret_cast<const uint4*>(room + (g & 1) * 64 + i / 2 * 32 + t * 8 + i % 2 * 4);
            }
        }
        __syncwarp();
    }
}

// Row tiles of a block follow each other, so that most groups are its own.
__device__ __forceinline__ uint32_t first_tile_of(const UniSvqParams& p, uint32_t block) {
    return static_cast<uint32_t>(static_cast<uint64_t>(p.tiles) * block / gridDim.x);
}

template <int WARPS,   // of the block
          int UNITS,   // of a warp
          int N,       // blocks of four activations
          bool FUSED>  // activations are prepared here: one unit, one block
__device__ __forceinline__ void product(const UniSvqParams& p) {
    static_assert(32 * WARPS <= 1024 && (!FUSED || (UNITS == 1 && N == 1)));
    using C = Codes<BITS>;
    extern __shared__ __align__(128) unsigned char shared[];
    float* sums = reinterpret_cast<float*>(shared);  // [slots][WARPS][16 rows][batch]
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    constexpr uint32_t kUnitBytes = BITS * 512, kStageBytes = WARPS * UNITS * kUnitBytes;
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif

    // Words do not depend on the previous kernel.
    const uint32_t first_tile = first_tile_of(p, blockIdx.x), n_mine = first_tile_of(p, blockIdx.x + 1) - first_tile;
    const uint32_t first_unit = p.first_unit + warp * UNITS;
    const uint32_t n_units = min(static_cast<uint32_t>(UNITS), p.end_unit - min(p.end_unit, first_unit));
    const uint32_t ring = static_cast<uint32_t>(__cvta_generic_to_shared(shared)) + p.ring_at + warp * (UNITS * kUnitBytes) + lane * 16;
    const uint32_t ring_end = ring + p.depth * kStageBytes;
    uint32_t put = ring, asked = 0;
    const uint4* at = p.words + (static_cast<size_t>(first_tile) * p.row_units + first_unit) * (BITS * 32) + lane;
    auto copy = [&] {
        if (asked < n_mine) {
#pragma unroll
            for (int u = 0; u < UNITS; ++u) {
                if (u < n_units) {
#pragma unroll
                    for (int v = 0; v < BITS; ++v) copy_16(put + u * kUnitBytes + v * 512, at + (u * BITS + v) * 32);
                }
            }
        }
        commit_copies();
        ++asked;
        at += p.row_units * (BITS * 32);
        put += kStageBytes;
        if (put == ring_end) put = ring;
    };
#pragma unroll 1
    for (uint32_t i = 0; i < p.depth; ++i) copy();
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif

    uint32_t x[UNITS][N][16] = {};
    Activation of[N] = {};
    if constexpr (FUSED) {
        prepare(p, x[0][0], of[0], first_unit, warp, lane, reinterpret_cast<uint32_t*>(shared) + warp * 128);
        __syncthreads();
    } else {
#pragma unroll
        for (int n = 0; n < N; ++n) {
            if (4 * n + t < p.batch) {
                // What is no product is added once.
                const float2 a = p.activations[4 * n + t];
                of[n] = {a.x, first_unit == 0 ? a.y : 0.0f, 0};
            }
#pragma unroll
            for (int u = 0; u < UNITS; ++u) {
                if (u < n_units) {
                    const uint4* from = p.prepared + (static_cast<size_t>(first_unit + u) * p.x_blocks + n) * 128 + lane;
#pragma unroll
                    for (int i = 0; i < 4; ++i) *reinterpret_cast<uint4*>(&x[u][n][4 * i]) = from[32 * i];
                }
            }
        }
    }

    uint32_t get = ring, held = 0, first = first_tile;
#pragma unroll 1
    for (uint32_t i = 0; i < n_mine; ++i) {
        wait_for_copy(p.depth);
        int d[N][C::kPlaces][4] = {};
#pragma unroll
        for (int u = 0; u < UNITS; ++u) {
            if (UNITS > 1 && u >= n_units) break;
            uint32_t words[BITS][4];
#pragma unroll
            for (int v = 0; v < BITS; ++v) *reinterpret_cast<uint4*>(words[v]) = load_shared(get + u * kUnitBytes + v * 512);
            multiply<BITS, N>(d, words, x[u]);
        }
        get += kStageBytes;
        if (get == ring_end) get = ring;
        copy();
#pragma unroll
        for (int n = 0; n < N; ++n) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int sum = 256 * C::total(d[n], 2 * h) + C::total(d[n], 2 * h + 1);
                if (4 * n + t < p.batch) {
                    sums[((held * WARPS + warp) * 16 + g + 8 * h) * p.batch + 4 * n + t] =
                        static_cast<float>(2 * sum - of[n].fix) * of[n].step + of[n].beta;
                }
            }
        }
        if (++held < p.slots && i + 1 < n_mine) continue;
        __syncthreads();
        const uint32_t each = 16 * p.batch;
#pragma unroll 1
        for (uint32_t e = threadIdx.x; e < held * each; e += WARPS * 32) {
            const uint32_t slot = e / each, within = e % each;
            float sum = 0.0f;
#pragma unroll
            for (int w = 0; w < WARPS; ++w) sum += sums[(slot * WARPS + w) * each + within];
            float* z = p.z + static_cast<size_t>(within % p.batch) * p.z_stride + (first + slot) * 16 + within / p.batch;
            if (p.flags & kAdd) sum += *z;
            __stcg(z, sum);
        }
        held = 0;
        first += p.slots;
        if (i + 1 < n_mine) __syncthreads();
    }
    if (!(p.flags & kFinish)) return;
    __threadfence();
    __syncthreads();
    const uint32_t end_tile = first_tile + n_mine;
#pragma unroll 1
    for (uint32_t group = first_tile / kGroupTiles + warp; group * kGroupTiles < end_tile; group += WARPS) {
        const uint32_t from = group * kGroupTiles, to = min(from + kGroupTiles, p.tiles);
        const uint32_t mine = min(to, end_tile) - max(from, first_tile);
        if (mine < to - from) {
            uint32_t before = 0;
            if (lane == 0) before = atomicAdd(p.counters + group, mine);
            before = __shfl_sync(kAll, before, 0);
            if (before + mine < to - from) continue;
            if (lane == 0) p.counters[group] = 0;
            __threadfence();
        }
        finish(p, group, lane);
    }
}

}  // namespace

#define PRODUCT(name, warps, units, n, fused, blocks)                                                                 \
    extern "C" __global__ void __launch_bounds__(32 * warps, blocks) name(const __grid_constant__ UniSvqParams p) { \
        product<warps, units, n, fused>(p);                                                                            \
    }

PRODUCT(unisvq_4, 16, 1, 1, true, 2)
PRODUCT(unisvq_8, 16, 1, 2, false, 1)
PRODUCT(unisvq_4_middle, 32, 1, 1, false, 1)
PRODUCT(unisvq_4_wide, 28, 2, 1, false, 1)
