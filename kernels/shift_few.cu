// y = x W^T for 2 to 8 activations, W under the bit-shift trellis in tiles (layout: shift.cuh), at least 16 units wide.
//
// x comes from shift_prepare.cu: rotated, f16, [unit][512 words] in the order of B registers.
// Grid: one block per multiprocessor; block b has the row tiles b, b + grid, ... Block: 32 x parts. A warp holds the B
// registers of a unit of 128 columns while it walks row tiles, the next words on their way. The 16 x 8 sums of the parts of a
// row tile meet in shared memory, where each row of eight lanes adds the parts of one sum in a fixed order.
//
//   once   one unit per warp (4096 columns at most): four row tiles' sums take turns, each with an mbarrier. A warp says that its
//          part is there, decodes the next row tile, and only then adds up its share of the one before, so that nobody waits.
//          Who has seen all parts of row tile t + 2 knows that row tile t has been added up by everyone, and reuses its room.
//   long   several units per warp, in passes over pairs of row tiles, with a barrier of the block per pair.
//
// Shared memory: 1024 + 131072 (table) + 4 x parts x 528 (sums) + 64 per row tile of a block + 64, dynamic.
//
// Defines: BITS (2 to 4). Caller: gosset-cuda/src/launch/shift_few.rs.

#include "params.cuh"
#include "shift.cuh"

namespace {

using namespace shift;

constexpr int kThreads = 1024;
constexpr unsigned kGroup = 2;         // row tiles of a pass
constexpr unsigned kTurns = 4;         // row tiles whose sums there is room for
constexpr unsigned kPartFloats = 132;  // 128 sums of a part, apart by what keeps banks apart
constexpr unsigned kBlockWords = 512;

// What a block has in shared memory beside the table.
struct Room {
    float* sums;        // [kTurns][parts][kPartFloats]
    float* row_scales;  // [row tiles of the block][16]
    float* x_scales;    // [8]
    uint64_t* arrived;  // [kTurns]
};

__device__ __forceinline__ Room room_of(uint8_t* shared, uint32_t n_local) {
    Room room;
    room.arrived = reinterpret_cast<uint64_t*>(shared + kTableBytes);
    room.x_scales = reinterpret_cast<float*>(room.arrived + kTurns);
    room.sums = room.x_scales + 8;
    room.row_scales = room.sums + kTurns * blockDim.y * kPartFloats;
    return room;
}

// Fills shared memory and waits for the preceding kernel.
template <class F>
__device__ __forceinline__ void enter(const ShiftFewParams& p, uint8_t* shared, const Room& room, uint32_t n_local, unsigned thread) {
    const unsigned n_threads = blockDim.y * 32;
    fill_table<F>(shared, p.table, thread, n_threads);
    for (uint32_t r = thread; r < n_local * kUnitRows; r += n_threads) {
        const uint32_t row = (blockIdx.x + r / kUnitRows * gridDim.x) * kUnitRows + r % kUnitRows;
        room.row_scales[r] = row < p.rows ? __bfloat162float(p.scales[row]) * p.step : 0.0f;
    }
    if (thread < kTurns) {
        const uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(room.arrived + thread));
        asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(at), "r"(blockDim.y) : "memory");
    }
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;");
#endif
    if (thread < 8) room.x_scales[thread] = thread < p.batch ? p.x_scales[thread] : 0.0f;
    __syncthreads();
}

// The B registers of a unit, 0 if it is not there.
__device__ __forceinline__ void load_b(uint4 (&b)[4], const ShiftFewParams& p, uint32_t unit, unsigned lane) {
    const uint4* x = reinterpret_cast<const uint4*>(p.x + static_cast<size_t>(unit) * kBlockWords) + lane;
    const bool there = unit < p.row_units;
#pragma unroll
    for (int q = 0; q < 4; ++q) b[q] = there ? x[q * 32] : make_uint4(0, 0, 0, 0);
}

// d += a row tile of a unit times b; the next words are asked for as soon as these were used.
template <class F>
__device__ __forceinline__ void multiply_unit(
    float (&d)[4], uint32_t (&words)[2][F::bits], const uint4 (&b)[4], const Code& code, unsigned lane,
    const uint32_t* next, bool on) {
    uint32_t h[2];
    h[0] = history_of<F>(words[0][F::bits - 1], 0, lane);
    h[1] = 0;
    unrolled<4>([&](auto j) {
        constexpr int kJ = decltype(j)::value;
        uint32_t a[4];
        operands<F, kJ>(a, words, h, code);
        const uint4 v = b[kJ / 2];
        mma(d, a, kJ % 2 ? v.z : v.x, kJ % 2 ? v.w : v.y);
    });
    load_run<F>(words[0], next, lane, on);
    h[1] = history_of<F>(words[1][F::bits - 1], 0, lane);
    unrolled<4>([&](auto j) {
        constexpr int kJ = decltype(j)::value + 4;
        uint32_t a[4];
        operands<F, kJ>(a, words, h, code);
        const uint4 v = b[kJ / 2];
        mma(d, a, kJ % 2 ? v.z : v.x, kJ % 2 ? v.w : v.y);
    });
    load_run<F>(words[1], next + F::run_words, lane, on);
}

// The share of warp `part` of the sums of row tile `tile` of the block, which lie in turn `turn`.
__device__ __forceinline__ void add_up(const ShiftFewParams& p, const Room& room, uint32_t tile, uint32_t turn, unsigned part, unsigned lane) {
    const unsigned n_parts = blockDim.y;
    // Lane `source` of the mma wrote four sums: rows g and g + 8, two columns.
    for (uint32_t source = part; source < 32; source += n_parts) {
        const float* from = room.sums + turn * n_parts * kPartFloats + source * 4 + (lane & 3);
        float sum = 0.0f;
#pragma unroll 4
        for (uint32_t k = lane >> 2; k < n_parts; k += 8) sum += from[k * kPartFloats];
        sum += __shfl_xor_sync(kAll, sum, 4);
        sum += __shfl_xor_sync(kAll, sum, 8);
        sum += __shfl_xor_sync(kAll, sum, 16);
        const uint32_t in_tile = (source >> 2) + 8 * (lane >> 1 & 1), column = 2 * (source & 3) + (lane & 1);
        const uint32_t row = (blockIdx.x + tile * gridDim.x) * kUnitRows + in_tile;
        if (lane < 4 && column < p.batch && row < p.rows) {
            p.y[static_cast<size_t>(column) * p.rows + row] =
                sum * room.row_scales[tile * kUnitRows + in_tile] * room.x_scales[column];
        }
    }
}

__device__ __forceinline__ void arrive(const uint64_t* barrier) {
    const uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(barrier));
    asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}" ::"r"(at) : "memory");
}

__device__ __forceinline__ void wait(const uint64_t* barrier, uint32_t parity) {
    const uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(barrier));
    uint32_t done;
    do {
        asm volatile(
            "{\n.reg .pred p;\nmbarrier.test_wait.parity.shared.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
            : "=r"(done)
            : "r"(at), "r"(parity)
            : "memory");
    } while (!done);
}

template <class F>
__device__ __forceinline__ void once(const ShiftFewParams& p) {
    static_assert(!F::rows && F::per_step == 2);
    extern __shared__ __align__(1024) uint8_t dynamic[];
    uint8_t* shared = shared_from_table(dynamic);
    // A grid never has more blocks than row tiles.
    const uint32_t n_local = (p.n_row_tiles - blockIdx.x - 1) / gridDim.x + 1;
    const Room room = room_of(shared, n_local);
    // Volatile, so that the compiler keeps the lane and does not ask for it again in the loop.
    unsigned lane;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(lane));
    const unsigned part = threadIdx.y, n_parts = blockDim.y;
    const size_t tile_step = static_cast<size_t>(gridDim.x) * p.row_units * F::unit_words;
    const uint32_t* next = p.words + (static_cast<size_t>(blockIdx.x) * p.row_units + part) * F::unit_words;
    uint32_t words[2][F::bits] = {};
    load_run<F>(words[0], next, lane, true);
    load_run<F>(words[1], next + F::run_words, lane, true);
    const Code code = make_code<F>(p.m0, p.m1, lane);
    enter<F>(p, shared, room, n_local, part * 32 + lane);

    uint4 b[4];
    load_b(b, p, part, lane);
    float* const mine = room.sums + part * kPartFloats + lane * 4;
    for (uint32_t tile = 0; tile < n_local; ++tile) {
        next += tile_step;
        float d[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        multiply_unit<F>(d, words, b, code, lane, next, tile + 1 < n_local);
        const uint32_t turn = tile % kTurns;
        *reinterpret_cast<float4*>(mine + turn * n_parts * kPartFloats) = make_float4(d[0], d[1], d[2], d[3]);
        __syncwarp();
        if (lane == 0) arrive(room.arrived + turn);
        if (tile != 0) {
            const uint32_t before = tile - 1;
            wait(room.arrived + before % kTurns, before / kTurns & 1);
            add_up(p, room, before, before % kTurns, part, lane);
        }
    }
    const uint32_t last = n_local - 1;
    wait(room.arrived + last % kTurns, last / kTurns & 1);
    add_up(p, room, last, last % kTurns, part, lane);
}

template <class F>
__device__ __forceinline__ void long_(const ShiftFewParams& p) {
    static_assert(!F::rows && F::per_step == 2);
    extern __shared__ __align__(1024) uint8_t dynamic[];
    uint8_t* shared = shared_from_table(dynamic);
    const uint32_t n_local = (p.n_row_tiles - blockIdx.x - 1) / gridDim.x + 1;
    const Room room = room_of(shared, n_local);
    unsigned lane;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(lane));
    const unsigned part = threadIdx.y, n_parts = blockDim.y;
    const size_t tile_step = static_cast<size_t>(gridDim.x) * p.row_units * F::unit_words;
    const uint32_t* const first = p.words + (static_cast<size_t>(blockIdx.x) * p.row_units + part) * F::unit_words;
    uint32_t words[2][F::bits] = {};
    load_run<F>(words[0], first, lane, true);
    load_run<F>(words[1], first + F::run_words, lane, true);
    const Code code = make_code<F>(p.m0, p.m1, lane);
    enter<F>(p, shared, room, n_local, part * 32 + lane);

    uint32_t turn = 0;
    for (uint32_t group = 0; group < n_local; group += kGroup, turn ^= kGroup) {
        const uint32_t n_tiles = min(kGroup, n_local - group);
        float* const mine = room.sums + (turn * n_parts + part) * kPartFloats + lane * 4;
        for (uint32_t pass = 0; pass < p.n_passes; ++pass) {
            const uint32_t unit = part + pass * n_parts;
            uint4 b[4];
            load_b(b, p, unit, lane);
            for (uint32_t i = 0; i < n_tiles; ++i) {
                // The next words: of the next row tile, else of the next unit, else of the next pair.
                const uint32_t* next;
                bool on;
                if (i + 1 < n_tiles) {
                    next = first + (group + i + 1) * tile_step + static_cast<size_t>(pass) * n_parts * F::unit_words;
                    on = unit < p.row_units;
                } else if (pass + 1 < p.n_passes) {
                    next = first + group * tile_step + static_cast<size_t>(pass + 1) * n_parts * F::unit_words;
                    on = unit + n_parts < p.row_units;
                } else {
                    next = first + (group + kGroup) * tile_step;
                    on = group + kGroup < n_local;
                }
                float d[4] = {0.0f, 0.0f, 0.0f, 0.0f};
                float* const slot = mine + i * n_parts * kPartFloats;
                if (pass != 0) {
                    const float4 before = *reinterpret_cast<const float4*>(slot);
                    d[0] = before.x, d[1] = before.y, d[2] = before.z, d[3] = before.w;
                }
                multiply_unit<F>(d, words, b, code, lane, next, on);
                *reinterpret_cast<float4*>(slot) = make_float4(d[0], d[1], d[2], d[3]);
            }
        }
        // Sums of the pair before lie elsewhere, and everyone has added them up before this barrier lets anyone pass.
        __syncthreads();
        for (uint32_t i = 0; i < n_tiles; ++i) add_up(p, room, group + i, turn + i, part, lane);
    }
}

}  // namespace

#define FEW(name, pairs, how)                                                                                 \
    extern "C" __global__ void __launch_bounds__(kThreads, 1) name(const __grid_constant__ ShiftFewParams p) { \
        how<Format<BITS, pairs, false, false>>(p);                                                             \
    }

FEW(shift_few_once_quantiles, false, once)
FEW(shift_few_once_pairs, true, once)
FEW(shift_few_long_quantiles, false, long_)
FEW(shift_few_long_pairs, true, long_)
