// y = x W^T for 2 to 64 activations, W under the bit-shift trellis, decoded once for all of them (layout: shift.cuh).
//
// x comes from shift_prepare.cu: rotated, f16, [unit][block of 8 activations][512 words] in the order of B registers.
// Grid: (groups of n_tiles row tiles) x (splits of the columns). Block: 32 x n_tiles x 2: a warp has one row tile and one
// half of the columns of its split, unit by unit, and up to eight 16 x 8 accumulators. The units of x come through shared
// memory in stages of 8 (unit, block)s per half, the next stage by cp.async while one is used; the words of the next unit
// are on their way while one is decoded. The halves are added in shared memory; splits are written for `shift_reduce`.
//
// Shared memory: 1024 + 131072 (table) + 4 x 16384 (stages), dynamic; sums of a half take the place of the stages.
//
// Defines: BITS (2 to 4), WIDE (0: L <= 17, 1: L = 18). Caller: gosset-cuda/src/launch/shift_gemm.rs.

#include "params.cuh"
#include "shift.cuh"

namespace {

using namespace shift;

constexpr int kThreads = 512;
constexpr unsigned kBlockWords = 512;  // of a unit and eight activations
constexpr unsigned kStageBlocks = 8;   // per half
constexpr unsigned kHalfWords = kStageBlocks * kBlockWords;

__device__ __forceinline__ void copy_16(uint32_t* to, const uint32_t* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(to))), "l"(from) : "memory");
}

// kBlocks: blocks of eight activations that there is room for; `p.n_blocks` are used.
template <class F, int kBlocks>
__device__ __forceinline__ void gemm(const ShiftGemmParams& p) {
    extern __shared__ __align__(1024) uint8_t dynamic[];
    uint8_t* shared = shared_from_table(dynamic);
    uint32_t* stages = reinterpret_cast<uint32_t*>(shared + kTableBytes);

    unsigned lane;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(lane));
    const unsigned n_threads = 64 * blockDim.y;
    const unsigned half = threadIdx.z, thread = (half * blockDim.y + threadIdx.y) * 32 + lane;
    const uint32_t tile = blockIdx.x * p.n_tiles + threadIdx.y;
    const bool tile_on = tile < p.n_row_tiles;
    // Units of this split, and of this half.
    const uint32_t first = blockIdx.y * p.split_units, end = min(first + p.split_units, p.row_units);
    const uint32_t half_units = (end - first + 1) / 2;
    const uint32_t my_first = first + half * half_units, my_units = min(half_units, end - my_first);
    // Units of a stage and half.
    const uint32_t n_blocks = kBlocks == 1 ? 1 : p.n_blocks, stage_units = kBlocks == 1 ? kStageBlocks : p.stage_units;

    uint32_t words[2][F::bits] = {};
    uint32_t own = 0;
    const uint32_t* at = p.words + (static_cast<size_t>(tile) * p.row_units + my_first) * F::unit_words;
    const uint32_t* history_at = p.histories + (static_cast<size_t>(tile) * p.row_units + my_first) * 8 + (lane >> 2);
    uint32_t on = tile_on && my_units != 0;
    load_run<F>(words[0], at, lane, on);
    load_run<F>(words[1], at + F::run_words, lane, on);
    if (F::rows && on && !(lane & 3)) own = *history_at;
    const Code code = make_code<F>(p.m0, p.m1, lane);
    fill_table<F>(shared, p.table, thread, n_threads);
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;");
#endif

    // Stage `s` of both halves.
    auto copy_stage = [&](uint32_t s, uint32_t slot) {
#pragma unroll
        for (uint32_t h = 0; h < 2; ++h) {
            const uint32_t u = first + h * half_units + s * stage_units, stop = h == 0 ? first + half_units : end;
            const uint32_t n = u < stop ? min(stage_units, stop - u) * n_blocks * (kBlockWords / 4) : 0;
            const uint32_t* from = p.x + static_cast<size_t>(u) * n_blocks * kBlockWords;
            uint32_t* to = stages + (slot * 2 + h) * kHalfWords;
            for (uint32_t i = thread; i < n; i += n_threads) copy_16(to + i * 4, from + i * 4);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
    float d[kBlocks][4];
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) d[n][0] = d[n][1] = d[n][2] = d[n][3] = 0.0f;

    const uint32_t n_stages = (half_units + stage_units - 1) / stage_units;
    copy_stage(0, 0);
    for (uint32_t s = 0; s < n_stages; ++s) {
        asm volatile("cp.async.wait_group 0;" ::: "memory");
        __syncthreads();
        if (s + 1 < n_stages) copy_stage(s + 1, (s + 1) & 1);
        const uint4* x = reinterpret_cast<const uint4*>(stages + ((s & 1) * 2 + half) * kHalfWords) + lane;
#pragma unroll 1
        for (uint32_t i = 0; i < stage_units; ++i, x += n_blocks * (kBlockWords / 4)) {
            const uint32_t u = s * stage_units + i;
            if (u >= my_units) break;
            at += F::unit_words;
            history_at += 8;
            on = tile_on && u + 1 < my_units;
            uint32_t h[2];
            h[0] = history_of<F>(words[0][F::bits - 1], own, lane);
            h[1] = history_of<F>(words[1][F::bits - 1], own >> 16, lane);
            uint32_t a[8][4];
            unrolled<4>([&](auto j) { operands<F, decltype(j)::value>(a[decltype(j)::value], words, h, code); });
            if (!F::rows) load_run<F>(words[0], at, lane, on);
            unrolled<4>([&](auto j) { operands<F, decltype(j)::value + 4>(a[decltype(j)::value + 4], words, h, code); });
            if (F::rows) load_run<F>(words[0], at, lane, on);
            load_run<F>(words[1], at + F::run_words, lane, on);
            if (F::rows && on && !(lane & 3)) own = *history_at;
#pragma unroll
            for (int n = 0; n < kBlocks; ++n) {
                if (kBlocks > 1 && n >= n_blocks) break;
#pragma unroll
                for (int q = 0; q < 4; ++q) {
                    const uint4 b = x[n * (kBlockWords / 4) + q * 32];
                    mma(d[n], a[2 * q], b.x, b.y);
                    mma(d[n], a[2 * q + 1], b.z, b.w);
                }
            }
        }
    }

    // The second half hands its sums to the first.
    __syncthreads();
    float4* sums = reinterpret_cast<float4*>(stages) + threadIdx.y * kBlocks * 32 + lane;
    if (half == 1) {
#pragma unroll
        for (int n = 0; n < kBlocks; ++n) sums[n * 32] = make_float4(d[n][0], d[n][1], d[n][2], d[n][3]);
    }
    __syncthreads();
    if (half == 1 || !tile_on) return;
    const uint32_t row = tile * kUnitRows + (lane >> 2);
    const float scale[2] = {
        row < p.rows ? __bfloat162float(p.scales[row]) * p.step : 0.0f,
        row + 8 < p.rows ? __bfloat162float(p.scales[row + 8]) * p.step : 0.0f};
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
        if (kBlocks > 1 && n >= n_blocks) break;
        const float4 other = sums[n * 32];
        const float sum[4] = {d[n][0] + other.x, d[n][1] + other.y, d[n][2] + other.z, d[n][3] + other.w};
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

#define GEMM(name, pairs, rows, blocks)                                                                        \
    extern "C" __global__ void __launch_bounds__(kThreads, 1) name(const __grid_constant__ ShiftGemmParams p) { \
        gemm<Format<BITS, pairs, rows, WIDE != 0>, blocks>(p);                                                 \
    }

GEMM(shift_gemm_8_quantiles_tiles, false, false, 1)
GEMM(shift_gemm_8_pairs_tiles, true, false, 1)
GEMM(shift_gemm_64_quantiles_tiles, false, false, 8)
GEMM(shift_gemm_64_pairs_tiles, true, false, 8)
