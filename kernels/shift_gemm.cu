// y = x W^T for up to 64 activations, W under the bit-shift trellis, decoded once for all of them (layout: shift.cuh).
//
// x comes from shift_prepare.cu: rotated, f16, [unit][block of 8 activations][512 words] in the order of B registers.
// Grid: (groups of n_tiles row tiles) x (splits of the columns). Block: 32 x n_tiles x 4: a warp has one row tile and a
// quarter of the columns of its split, and up to eight 16 x 8 accumulators. Columns are walked in steps of one run of a
// unit, 64 columns; x comes through shared memory in stages of 8 (step, block)s per quarter, the next stage by cp.async
// while one is used; the words of the next unit are on their way while one is decoded. The quarters are added in shared
// memory, in order; splits are written for `shift_reduce`.
//
// Shared memory: 1024 + 131072 (table) + 2 x 32768 (stages), dynamic; sums of quarters take the place of the stages.
//
// Tiles and L <= 17 only. Defines: BITS (2 to 4). Caller: gosset-cuda/src/launch/shift_gemm.rs.

#include "params.cuh"
#include "shift.cuh"

namespace {

using namespace shift;

constexpr int kParts = 4;
constexpr int kMaxTiles = 7;
constexpr unsigned kChunk = 256;          // words of a step and eight activations
constexpr unsigned kPartWords = 8 * kChunk;
constexpr unsigned kStageWords = kParts * kPartWords;

__device__ __forceinline__ void copy_16(uint32_t* to, const uint32_t* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(to))), "l"(from) : "memory");
}

// kBlocks: blocks of eight activations that there is room for; `p.n_blocks` are used.
template <class F, int kBlocks>
__device__ __forceinline__ void gemm(const ShiftGemmParams& p) {
    extern __shared__ __align__(1024) uint8_t dynamic[];
    uint8_t* shared = shared_from_table(dynamic);
    uint32_t* stages = reinterpret_cast<uint32_t*>(shared + kTableBytes);
    constexpr unsigned stage_steps = 8 / kBlocks;
    static_assert(8 % kBlocks == 0 && kBlocks % 2 == 0);

    unsigned lane;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(lane));
    const unsigned part = threadIdx.z, n_threads = 32 * kParts * blockDim.y;
    const uint32_t tile = blockIdx.x * p.n_tiles + threadIdx.y;
    const bool tile_on = tile < p.n_row_tiles;
    // Units of this split, and of this part.
    const uint32_t first = blockIdx.y * p.split_units, end = min(first + p.split_units, p.row_units);
    const uint32_t part_units = (end - first + kParts - 1) / kParts;
    const uint32_t my_first = min(first + part * part_units, end), my_units = min(part_units, end - my_first);

    uint32_t words[2][F::bits] = {};
    const uint32_t* at = p.words + (static_cast<size_t>(tile) * p.row_units + my_first) * F::unit_words;
    uint32_t on = tile_on && my_units != 0;
    load_run<F>(words[0], at, lane, on);
    load_run<F>(words[1], at + F::run_words, lane, on);
    const Code code = make_code<F>(p.m0, p.m1, lane);
    fill_table<F>(shared, p.table, (part * blockDim.y + threadIdx.y) * 32 + lane, n_threads);
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;");
#endif

    // Stage `s` of this part, by the threads of the part.
    auto copy_stage = [&](uint32_t s) {
        uint32_t* to = stages + (s & 1) * kStageWords + part * kPartWords;
        for (uint32_t i = threadIdx.y * 32 + lane; i < 8 * (kChunk / 4); i += blockDim.y * 32) {
            const uint32_t chunk = i / (kChunk / 4), n = chunk % kBlocks, step = s * stage_steps + chunk / kBlocks;
            if (n >= p.n_blocks || step >= 2 * my_units) continue;
            const size_t block = static_cast<size_t>(my_first + step / 2) * p.n_blocks + n;
            copy_16(to + i * 4, p.x + (block * 2 + step % 2) * kChunk + i % (kChunk / 4) * 4);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
    float d[kBlocks][4];
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) d[n][0] = d[n][1] = d[n][2] = d[n][3] = 0.0f;

    const uint32_t n_stages = (2 * part_units + stage_steps - 1) / stage_steps;
    copy_stage(0);
#pragma unroll 1
    for (uint32_t u = 0; u < part_units; ++u) {
        at += F::unit_words;
        on = tile_on && u + 1 < my_units;
        unrolled<2>([&](auto run) {
            constexpr int kRun = decltype(run)::value;
            const uint32_t step = 2 * u + kRun;
            if (step % stage_steps == 0) {
                const uint32_t s = step / stage_steps;
                asm volatile("cp.async.wait_group 0;" ::: "memory");
                __syncthreads();
                if (s + 1 < n_stages) copy_stage(s + 1);
            }
            // What is not there was not copied either.
            if (u >= my_units) return;
            const uint4* x = reinterpret_cast<const uint4*>(
                                 stages + (step / stage_steps & 1) * kStageWords + part * kPartWords +
                                 step % stage_steps * kBlocks * kChunk) +
                             lane;
            uint32_t h[2];
            h[kRun] = history_of<F>(words[kRun][F::bits - 1], 0, lane);
            h[1 - kRun] = 0;
            unrolled<2>([&](auto quarter) {
                constexpr int kQ = decltype(quarter)::value;
                uint32_t a[2][4];
                operands<F, 4 * kRun + 2 * kQ>(a[0], words, h, code);
                operands<F, 4 * kRun + 2 * kQ + 1>(a[1], words, h, code);
                // Blocks take turns in pairs, so that few mma wait for the one before.
#pragma unroll
                for (int n = 0; n < kBlocks; n += 2) {
                    if (kBlocks > 2 && n >= p.n_blocks) break;
                    const uint4 b0 = x[n * (kChunk / 4) + kQ * 32], b1 = x[(n + 1) * (kChunk / 4) + kQ * 32];
                    mma(d[n], a[0], b0.x, b0.y);
                    mma(d[n + 1], a[0], b1.x, b1.y);
                    mma(d[n], a[1], b0.z, b0.w);
                    mma(d[n + 1], a[1], b1.z, b1.w);
                }
            });
            load_run<F>(words[kRun], at + kRun * F::run_words, lane, on);
        });
    }

    // The other parts hand their sums to the first, two at a time: that is what there is room for.
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncthreads();
    float4* sums = reinterpret_cast<float4*>(stages) + threadIdx.y * kBlocks * 32 + lane;
    const unsigned part_sums = blockDim.y * kBlocks * 32;
    if (part >= 2) {
#pragma unroll
        for (int n = 0; n < kBlocks; ++n) sums[(part - 2) * part_sums + n * 32] = make_float4(d[n][0], d[n][1], d[n][2], d[n][3]);
    }
    __syncthreads();
    if (part < 2) {
#pragma unroll
        for (int n = 0; n < kBlocks; ++n) {
            const float4 other = sums[part * part_sums + n * 32];
            d[n][0] += other.x, d[n][1] += other.y, d[n][2] += other.z, d[n][3] += other.w;
        }
    }
    __syncthreads();
    if (part == 1) {
#pragma unroll
        for (int n = 0; n < kBlocks; ++n) sums[n * 32] = make_float4(d[n][0], d[n][1], d[n][2], d[n][3]);
    }
    __syncthreads();
    if (part != 0 || !tile_on) return;
    const uint32_t row = tile * kUnitRows + (lane >> 2);
    const float scale[2] = {
        row < p.rows ? __bfloat162float(p.scales[row]) * p.step : 0.0f,
        row + 8 < p.rows ? __bfloat162float(p.scales[row + 8]) * p.step : 0.0f};
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
        if (n >= p.n_blocks) break;
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

#define GEMM(name, pairs, blocks)                                                                                             \
    extern "C" __global__ void __launch_bounds__(32 * kParts * kMaxTiles, 1) name(const __grid_constant__ ShiftGemmParams p) { \
        gemm<Format<BITS, pairs, false, false>, blocks>(p);                                                                   \
    }

GEMM(shift_gemm_16_quantiles, false, 2)
GEMM(shift_gemm_16_pairs, true, 2)
GEMM(shift_gemm_32_quantiles, false, 4)
GEMM(shift_gemm_32_pairs, true, 4)
GEMM(shift_gemm_64_quantiles, false, 8)
GEMM(shift_gemm_64_pairs, true, 8)
