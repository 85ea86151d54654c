// y = x W^T for 2 to 64 activations, W under the bit-shift trellis, decoded once for all of them (layout: shift.cuh).
//
// x comes from shift_prepare.cu: rotated, f16, [unit][block of 8 activations][512 words] in the order of B registers.
// Grid: (groups of n_tiles row tiles) x (splits of the columns). Block: 32 x n_tiles x parts, four parts for up to eight
// activations, else two: a warp has one row tile and one part of the columns of its split, unit by unit, and up to eight
// 16 x 8 accumulators. The units of x come through shared memory in stages of 16 (unit, block)s, the next stage by cp.async
// while one is used; the words of the next unit are on their way while one is decoded. The parts are added in shared
// memory, in order; splits are written for `shift_reduce`.
//
// Shared memory: 1024 + 131072 (table) + 2 x 32768 (stages), dynamic; sums of parts take the place of the stages.
//
// Tiles and L <= 17 only. Defines: BITS (2 to 4). Caller: gosset-cuda/src/launch/shift_gemm.rs.

#include "params.cuh"
#include "shift.cuh"

namespace {

using namespace shift;

constexpr unsigned kBlockWords = 512;   // of a unit and eight activations
constexpr unsigned kStageWords = 8192;  // 16 of them

__device__ __forceinline__ void copy_16(uint32_t* to, const uint32_t* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(to))), "l"(from) : "memory");
}

// kBlocks: blocks of eight activations that there is room for, `p.n_blocks` are used; kParts: parts of the columns.
template <class F, int kBlocks, int kParts>
__device__ __forceinline__ void gemm(const ShiftGemmParams& p) {
    extern __shared__ __align__(1024) uint8_t dynamic[];
    uint8_t* shared = shared_from_table(dynamic);
    uint32_t* stages = reinterpret_cast<uint32_t*>(shared + kTableBytes);
    constexpr unsigned part_words = kStageWords / kParts;

    unsigned lane;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(lane));
    const unsigned n_threads = 32 * kParts * blockDim.y;
    const unsigned part = threadIdx.z, thread = (part * blockDim.y + threadIdx.y) * 32 + lane;
    const uint32_t tile = blockIdx.x * p.n_tiles + threadIdx.y;
    const bool tile_on = tile < p.n_row_tiles;
    // Units of this split, and of this part.
    const uint32_t first = blockIdx.y * p.split_units, end = min(first + p.split_units, p.row_units);
    const uint32_t part_units = (end - first + kParts - 1) / kParts;
    const uint32_t my_first = min(first + part * part_units, end), my_units = min(part_units, end - my_first);
    const uint32_t n_blocks = kBlocks == 1 ? 1 : p.n_blocks;
    const uint32_t stage_units = kBlocks == 1 ? part_words / kBlockWords : p.stage_units;

    uint32_t words[2][F::bits] = {};
    uint32_t own = 0;
    const uint32_t* at = p.words + (static_cast<size_t>(tile) * p.row_units + my_first) * F::unit_words;
    uint32_t on = tile_on && my_units != 0;
    load_run<F>(words[0], at, lane, on);
    load_run<F>(words[1], at + F::run_words, lane, on);
    const Code code = make_code<F>(p.m0, p.m1, lane);
    fill_table<F>(shared, p.table, thread, n_threads);
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;");
#endif

    // Stage `s` of all parts: copies are dealt out to the warps part by part.
    auto copy_stage = [&](uint32_t s, uint32_t slot) {
        const uint32_t u = my_first + s * stage_units;
        const uint32_t n = s * stage_units < my_units ? min(stage_units, my_units - s * stage_units) * n_blocks * (kBlockWords / 4) : 0;
        const uint32_t* from = p.x + static_cast<size_t>(u) * n_blocks * kBlockWords;
        uint32_t* to = stages + slot * kStageWords + part * part_words;
        for (uint32_t i = threadIdx.y * 32 + lane; i < n; i += blockDim.y * 32) copy_16(to + i * 4, from + i * 4);
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
    float d[kBlocks][4];
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) d[n][0] = d[n][1] = d[n][2] = d[n][3] = 0.0f;

    const uint32_t n_stages = (part_units + stage_units - 1) / stage_units;
    copy_stage(0, 0);
    for (uint32_t s = 0; s < n_stages; ++s) {
        asm volatile("cp.async.wait_group 0;" ::: "memory");
        __syncthreads();
        if (s + 1 < n_stages) copy_stage(s + 1, (s + 1) & 1);
        const uint4* x = reinterpret_cast<const uint4*>(stages + (s & 1) * kStageWords + part * part_words) + lane;
#pragma unroll 1
        for (uint32_t i = 0; i < stage_units; ++i, x += n_blocks * (kBlockWords / 4)) {
            const uint32_t u = s * stage_units + i;
            if (u >= my_units) break;
            at += F::unit_words;
            on = tile_on && u + 1 < my_units;
            uint32_t h[2];
            h[0] = history_of<F>(words[0][F::bits - 1], own, lane);
            h[1] = history_of<F>(words[1][F::bits - 1], own, lane);
            if constexpr (kBlocks == 1) {
                unrolled<4>([&](auto q) {
                    constexpr int kQ = decltype(q)::value;
                    uint32_t a[4];
                    const uint4 b = x[kQ * 32];
                    operands<F, 2 * kQ>(a, words, h, code);
                    mma(d[0], a, b.x, b.y);
                    operands<F, 2 * kQ + 1>(a, words, h, code);
                    mma(d[0], a, b.z, b.w);
                    if constexpr (kQ == 1) load_run<F>(words[0], at, lane, on);
                });
                load_run<F>(words[1], at + F::run_words, lane, on);
                continue;
            }
            uint32_t a[8][4];
            unrolled<4>([&](auto j) { operands<F, decltype(j)::value>(a[decltype(j)::value], words, h, code); });
            load_run<F>(words[0], at, lane, on);
            unrolled<4>([&](auto j) { operands<F, decltype(j)::value + 4>(a[decltype(j)::value + 4], words, h, code); });
            load_run<F>(words[1], at + F::run_words, lane, on);
            // Four blocks take turns, so that no mma waits for the one before.
#pragma unroll
            for (int n = 0; n < kBlocks; n += 4) {
                if (n >= n_blocks) break;
                const bool all = n + 2 < n_blocks;
#pragma unroll
                for (int q = 0; q < 4; ++q) {
                    uint4 b[4];
                    b[0] = x[n * (kBlockWords / 4) + q * 32];
                    b[1] = x[(n + 1) * (kBlockWords / 4) + q * 32];
                    if (all) {
                        b[2] = x[(n + 2) * (kBlockWords / 4) + q * 32];
                        b[3] = x[(n + 3) * (kBlockWords / 4) + q * 32];
                    }
                    mma(d[n], a[2 * q], b[0].x, b[0].y);
                    mma(d[n + 1], a[2 * q], b[1].x, b[1].y);
                    if (all) {
                        mma(d[n + 2], a[2 * q], b[2].x, b[2].y);
                        mma(d[n + 3], a[2 * q], b[3].x, b[3].y);
                    }
                    mma(d[n], a[2 * q + 1], b[0].z, b[0].w);
                    mma(d[n + 1], a[2 * q + 1], b[1].z, b[1].w);
                    if (all) {
                        mma(d[n + 2], a[2 * q + 1], b[2].z, b[2].w);
                        mma(d[n + 3], a[2 * q + 1], b[3].z, b[3].w);
                    }
                }
            }
        }
    }

    // The other parts hand their sums to the first.
    __syncthreads();
    float4* sums = reinterpret_cast<float4*>(stages) + lane;
    if (part != 0) {
#pragma unroll
        for (int n = 0; n < kBlocks; ++n) {
            sums[(((part - 1) * blockDim.y + threadIdx.y) * kBlocks + n) * 32] = make_float4(d[n][0], d[n][1], d[n][2], d[n][3]);
        }
    }
    __syncthreads();
    if (part != 0 || !tile_on) return;
    const uint32_t row = tile * kUnitRows + (lane >> 2);
    const float scale[2] = {
        row < p.rows ? __bfloat162float(p.scales[row]) * p.step : 0.0f,
        row + 8 < p.rows ? __bfloat162float(p.scales[row + 8]) * p.step : 0.0f};
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
        if (kBlocks > 1 && n >= n_blocks) break;
        float sum[4] = {d[n][0], d[n][1], d[n][2], d[n][3]};
#pragma unroll
        for (int k = 0; k < kParts - 1; ++k) {
            const float4 other = sums[((k * blockDim.y + threadIdx.y) * kBlocks + n) * 32];
            sum[0] += other.x, sum[1] += other.y, sum[2] += other.z, sum[3] += other.w;
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const uint32_t column = 8 * n + 2 * (lane & 3) + (i & 1), r = row + 8 * (i >> 1);
            if (column >= p.batch || r >= p.rows) continue;
            if (gridDim.y == 1) {
                p.y[static_cast<size_t>(column) * p.rows + r] = sum[i] * scale[i >> 1] * p.x_scales[column];
            } else {
                p.parts[(static_cast<size_t>(blockIdx.y) * p.batch + column) * p.rows + r] = sum[i];
            }
        }
    }
}

}  // namespace

#define GEMM(name, pairs, blocks, parts)                                                                          \
    extern "C" __global__ void __launch_bounds__(256 * parts, 1) name(const __grid_constant__ ShiftGemmParams p) { \
        gemm<Format<BITS, pairs, false, false>, blocks, parts>(p);                                                \
    }

GEMM(shift_gemm_8_quantiles_tiles, false, 1, 4)
GEMM(shift_gemm_8_pairs_tiles, true, 1, 4)
GEMM(shift_gemm_64_quantiles_tiles, false, 8, 2)
GEMM(shift_gemm_64_pairs_tiles, true, 8, 2)
