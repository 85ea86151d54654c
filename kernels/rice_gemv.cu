// Products with E8 points under Rice codes in the plane layout: y = W x for 1 to BATCH columns of x.
//
//   y[b][row] = scale[row] * step * sum over columns of point * x[b][column]
//
// The layout keeps the codewords of the code with parameter K and moves their bits: unary parts to one bit string per lane,
// signs and low bits to planes, so that one look-up gives four unary parts and four points take a few byte-wise
// operations (crates/gosset-cuda/src/launch/rice_layout.rs).
//
// x is rounded to 16 bits below the largest magnitude of its column, as two planes of 8 bits, and sums are integers until
// the end of a segment: the result does not depend on the order.
//
// Shapes: rows in groups of 32, one per lane; columns in p.n_segments segments of at most 8 chunks of 64.
//   planes [task, chunk, lane, 2 K] words; task = group * n_segments + segment, chunks of a segment padded to p.n_chunks
//   unary  [row, lane] words, task t having the rows row0[t] to row0[t + 1]; bit i of a lane is bit i mod 32 of word i / 32,
//          and two zero bits come first, so that a window shifted by two is an address
//   patches: corrections of single points, lane << 27 | column of the segment << 16 | difference (16 bits)
// Grid: one block per multiprocessor, blocks of up to 28 warps; a warp takes every n-th task of its block.
// Dynamic shared memory: 64 KB table, 20 bytes per 8 columns and column of x, 256 bytes and p.stage_rows * 128 per warp.
// The last warp to finish a group adds its segments in order; its counter returns to zero.
// Caller: gosset-cuda/src/launch/rice_planes.rs.

#include <cuda_bf16.h>

#include "params.cuh"

#ifndef K
#define K 2
#endif
#ifndef BATCH
#define BATCH 1
#endif
#ifndef THREADS
#define THREADS 896
#endif

namespace {

static_assert(K >= 1 && K <= 4, "bytes hold the points of these parameters");

constexpr uint32_t kWindowBits = 14;                        // A look-up sees this many bits and finds four unary parts.
constexpr uint32_t kTableBytes = 4u << kWindowBits;
constexpr uint32_t kAddressMask = kTableBytes - 4;
constexpr int kChunkBlocks = 8;                             // Blocks of E8 in a chunk.
constexpr int kPlaneWords = 2 * K;                          // Words of a lane in a chunk.
constexpr float kXSteps = 32600.0f;                         // Steps of x on either side of zero.
constexpr uint32_t kValueMask = 0x01010101u * ((0xFFu << (5 - K)) & 0xFFu);
constexpr float kUnit = 2.0f / (1 << (5 - K));              // A byte is 2^(5 - K) times half of a point.
constexpr int kPatchUnit = (1 << (5 - K)) / 2;

__device__ __forceinline__ uint32_t shared_address(const void* p) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
// What is never written after the block's first barrier may be read in any order.
__device__ __forceinline__ uint32_t load_constant(uint32_t address) {
    uint32_t v;
    asm("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(address));
    return v;
}
__device__ __forceinline__ uint4 load_constant4(uint32_t address) {
    uint4 v;
    asm("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address));
    return v;
}
__device__ __forceinline__ uint32_t load(uint32_t address) {
    uint32_t v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(address));
    return v;
}
__device__ __forceinline__ void copy16(uint32_t to, const uint4* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from));
}
__device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;"); }
template <int N>
__device__ __forceinline__ void wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N));
}
__device__ __forceinline__ int dot(uint32_t a, uint32_t b, int sum) {
    return __dp4a(static_cast<int>(a), static_cast<int>(b), sum);
}
// 0xFF in each byte whose top bit is set.
__device__ __forceinline__ uint32_t byte_signs(uint32_t a) {
    uint32_t v;
    asm("prmt.b32 %0, %1, %1, 0xBA98;" : "=r"(v) : "r"(a));
    return v;
}
// Bits of `a` where `mask` is set and of `b` elsewhere.
__device__ __forceinline__ uint32_t select(uint32_t mask, uint32_t a, uint32_t b) { return (a & mask) | (b & ~mask); }

// Planes of the 4 blocks of half a chunk: what the quads of block j need, and the cosets.
struct HalfPlanes {
    uint32_t first, second;  // K = 2: words of the first and the second quads; otherwise signs and lowest bits of both.
    uint32_t high[2];        // K > 2: further bits, the highest first.
    uint32_t parity;         // K = 1: byte 0 has the parity of the signs of block j at bit 7 - 2j.
    uint32_t cosets;         // Byte 3 - j is 1 if block j lies in the odd coset.
};

// One bit per block at bits 0 to 3 (STRIDE 1) or 0, 2, 4, 6 (STRIDE 2), to bit 0 of a byte each.
template <int STRIDE>
__device__ __forceinline__ uint32_t spread(uint32_t bits) {
    return (STRIDE == 1 ? (bits & 0xFu) * 0x00204081u : (bits & 0x55u) * 0x00041041u) & 0x01010101u;
}

// The lowest bit of the last coordinate of a block is its coset; the parity of the others takes its place.
__device__ __forceinline__ HalfPlanes prepare(const uint32_t* words) {
    HalfPlanes h{};
    if constexpr (K == 2) {
        // Byte i is coordinate i of a quad: signs of blocks 0 to 3 from bit 7 down, low bits from bit 3 down.
        const uint32_t a = words[0], b = words[1];
        uint32_t x = a ^ (b & 0x00FFFFFFu);
        x ^= x >> 16;
        x ^= x >> 8;
        x ^= x >> 4;
        h.cosets = spread<1>(b >> 24);
        h.first = a;
        h.second = select(0x0F000000u, (x << 24) ^ (b >> 4), b);
    } else {
        // Byte i is coordinate i of 8 quads from bit 7 down, first and second quads of blocks in turn.
        const uint32_t signs = words[0], low = K == 1 ? 0u : words[K - 1];
        uint32_t x = signs ^ low;
        x ^= (x << 1) & 0x00FFFFFFu;
        x ^= x >> 16;
        x ^= x >> 8;
        h.first = signs;
        if constexpr (K == 1) {
            h.cosets = spread<2>(signs >> 24);
            h.parity = x;
        } else {
            h.cosets = spread<2>(low >> 24);
            h.second = select(0x55000000u, ((x & 0xAAu) << 23) ^ signs, low);
#pragma unroll
            for (int i = 0; i < K - 2; ++i) h.high[i] = words[1 + i];
        }
    }
    return h;
}

// The points of a block as bytes, 2^(5 - K) times (point - coset) / 2, from the entries of its two quads.
__device__ __forceinline__ void points(
    const HalfPlanes& h, int j, uint32_t entry1, uint32_t entry2, uint32_t& value1, uint32_t& value2) {
    // Entries have the unary parts at bits 4 to 6 of each byte; below lies what they use for themselves.
    if constexpr (K == 2) {
        const uint32_t a = h.first << j, b = h.second << j;
        value1 = (select(0xF0F0F0F0u, entry1, a) ^ byte_signs(a)) & kValueMask;
        value2 = (select(0xF0F0F0F0u, entry2, b) ^ byte_signs(b)) & kValueMask;
    } else if constexpr (K == 1) {
        const uint32_t a = h.first << (2 * j), b = h.first << (2 * j + 1);
        value1 = (entry1 ^ byte_signs(a)) & kValueMask;
        // The last symbol has no sign bit but its own lowest bit, and twice its value leaves room for the parity.
        const uint32_t signs = byte_signs(select(0x80000000u, entry2 << 3, b));
        const uint32_t parity = ((entry1 << 7) ^ (entry2 << 6) ^ (h.parity << (8 + 2 * j))) & 0x8000u;
        value2 = ((entry2 ^ signs) & kValueMask) | (parity << 13);
    } else {
        uint32_t v[2] = {entry1, entry2};
#pragma unroll
        for (int q = 0; q < 2; ++q) {
            const int s = 2 * j + q;
#pragma unroll
            for (int i = 0; i < K - 2; ++i) {
                // The bit of quad s is at bit 7 - s and goes to bit 3 - i.
                const uint32_t bits = s >= 4 + i ? h.high[i] << (s - 4 - i) : h.high[i] >> (4 + i - s);
                v[q] = select(0x08080808u >> i, bits, v[q]);
            }
            const int to = 5 - K;
            const uint32_t low = s >= 7 - to ? h.second << (s - 7 + to) : h.second >> (7 - to - s);
            v[q] = select(0x01010101u << to, low, v[q]);
            v[q] = (v[q] ^ byte_signs(h.first << s)) & kValueMask;
        }
        value1 = v[0];
        value2 = v[1];
    }
}

// Signed digits of x: the value is 256 hi + lo.
__device__ __forceinline__ int low_digit(int v) { return static_cast<int8_t>(v); }

// Sums of one column of x.
struct Sums {
    int hi, lo;              // With the digits of x.
    int c2, c1, c0;          // Of x over the blocks of the odd coset, by digits.
    __device__ __forceinline__ float total() const {
        return (256.0f * static_cast<float>(hi) + static_cast<float>(lo)) * kUnit +
               (65536.0f * static_cast<float>(c2) + 256.0f * static_cast<float>(c1) + static_cast<float>(c0));
    }
};

// Where things lie in shared memory.
struct Places {
    uint32_t table, x, cosets, sums, stage;  // Addresses; sums and stage are those of this warp.
    uint32_t x_bytes, coset_bytes;           // Of one column of x.
};

// Largest magnitude of a column of x over the block.
__device__ __forceinline__ float block_max(const float* x, uint32_t n, float* shared) {
    float m = 0.0f;
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) m = fmaxf(m, fabsf(x[i]));
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, d));
    __syncthreads();
    if ((threadIdx.x & 31) == 0) shared[threadIdx.x >> 5] = m;
    __syncthreads();
    m = (threadIdx.x & 31) < blockDim.x / 32 ? shared[threadIdx.x & 31] : 0.0f;
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, d));
    return m;
}

// Rounds a column of x to digits: 16 bytes per block of 8 columns (hi, lo), and the sums of each block as three digits.
__device__ __forceinline__ void quantize(const float* x, uint32_t cols, uint32_t n_blocks, float inverse, uint8_t* digits, uint8_t* sums) {
    for (uint32_t block = threadIdx.x; block < n_blocks; block += blockDim.x) {
        uint32_t w[4] = {0, 0, 0, 0};
        int sum = 0;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const uint32_t col = block * 8 + i;
            const int v = col < cols ? __float2int_rn(x[col] * inverse) : 0;
            const int lo = low_digit(v), hi = (v - lo) >> 8;
            sum += v;
            w[i >> 2] |= static_cast<uint32_t>(hi & 255) << (8 * (i & 3));
            w[2 + (i >> 2)] |= static_cast<uint32_t>(lo & 255) << (8 * (i & 3));
        }
        *reinterpret_cast<uint4*>(digits + block * 16) = make_uint4(w[0], w[1], w[2], w[3]);
        const int lo = low_digit(sum), rest = (sum - lo) >> 8, middle = low_digit(rest);
        uint8_t* const out = sums + (block >> 2) * 16 + 3 - (block & 3);
        out[0] = static_cast<uint8_t>((rest - middle) >> 8);
        out[4] = static_cast<uint8_t>(middle);
        out[8] = static_cast<uint8_t>(lo);
    }
}

// Starts copying the unary words of a task in three groups. A quad takes 14 bits at most and a chunk 224, so that 16 rows
// hold what chunks 0 and 1 need, and 32 rows what chunks 0 to 3 need.
__device__ __forceinline__ void fetch(const RiceGemvParams& p, uint32_t task, uint32_t stage) {
    const uint32_t lane = threadIdx.x & 31, from = p.row0[task], n = (p.row0[task + 1] - from) * 8;
    const uint4* const source = reinterpret_cast<const uint4*>(p.unary) + static_cast<uint64_t>(from) * 8;
#pragma unroll
    for (int part = 0; part < 3; ++part) {
        const uint32_t stop = part < 2 ? min(n, 128u * (part + 1)) : n;
        for (uint32_t i = 128u * part + lane; i < stop; i += 32) copy16(stage + i * 16, source + i);
        commit();
    }
}

__device__ __forceinline__ void load_planes(const RiceGemvParams& p, uint32_t task, uint32_t chunk, uint32_t (&words)[kPlaneWords]) {
    const uint64_t at = (static_cast<uint64_t>(task) * p.n_chunks + chunk) * 32 + (threadIdx.x & 31);
    const uint2* const from = reinterpret_cast<const uint2*>(p.planes) + at * K;
    if constexpr (K % 2 == 0) {
#pragma unroll
        for (int i = 0; i < K / 2; ++i) {
            const uint4 v = __ldcs(reinterpret_cast<const uint4*>(from) + i);
            words[4 * i] = v.x;
            words[4 * i + 1] = v.y;
            words[4 * i + 2] = v.z;
            words[4 * i + 3] = v.w;
        }
    } else {
#pragma unroll
        for (int i = 0; i < K; ++i) {
            const uint2 v = __ldcs(from + i);
            words[2 * i] = v.x;
            words[2 * i + 1] = v.y;
        }
    }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS, 1) rice_gemv(const __grid_constant__ RiceGemvParams p) {
    extern __shared__ __align__(16) uint8_t shared[];
    __shared__ float reduced[32];
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, n_warps = blockDim.x >> 5;
    const uint32_t n_blocks = (p.cols + 63) / 64 * kChunkBlocks, n_chunks_all = n_blocks / kChunkBlocks;
    uint8_t* const x_digits = shared + kTableBytes;
    uint8_t* const x_sums = x_digits + BATCH * n_blocks * 16;
    int* const patched = reinterpret_cast<int*>(x_sums + BATCH * n_blocks * 4) + warp * BATCH * 64;
    uint8_t* const stage_base = x_sums + BATCH * n_blocks * 4 + n_warps * BATCH * 256;
    const uint32_t stage = shared_address(stage_base) + warp * p.stage_rows * 128;
    const uint32_t table = shared_address(shared), x_at = shared_address(x_digits), sums_at = shared_address(x_sums);

    const uint64_t n_tasks = static_cast<uint64_t>(p.n_groups) * p.n_segments;
    const uint32_t first = static_cast<uint32_t>(n_tasks * blockIdx.x / gridDim.x);
    const uint32_t stop = static_cast<uint32_t>(n_tasks * (blockIdx.x + 1) / gridDim.x);
    for (uint32_t i = threadIdx.x; i < kTableBytes / 16; i += blockDim.x) copy16(table + i * 16, reinterpret_cast<const uint4*>(p.table) + i);
    commit();
    uint32_t task = first + warp;
    uint32_t ahead[kPlaneWords] = {};
    if (task < stop) {
        fetch(p, task, stage);
        load_planes(p, task, 0, ahead);
    }
    float x_step[BATCH];
#pragma unroll
    for (int b = 0; b < BATCH; ++b) {
        x_step[b] = 0.0f;
        if (b < p.n_batch) {
            const float* const x = p.x + static_cast<uint64_t>(b) * p.cols;
            const float largest = block_max(x, p.cols, reduced);
            x_step[b] = largest / kXSteps;
            quantize(x, p.cols, n_blocks, largest > 0.0f ? kXSteps / largest : 0.0f, x_digits + b * n_blocks * 16, x_sums + b * n_blocks * 4);
        }
        patched[b * 64 + lane] = 0;
        patched[b * 64 + 32 + lane] = 0;
    }
    if (task < stop) wait<3>();  // The table is older than the three groups of the task.
    else wait<0>();
    __syncthreads();

    const uint32_t own = stage + lane * 4;
    while (task < stop) {
        const uint32_t group = task / p.n_segments, segment = task - group * p.n_segments;
        const uint32_t chunk0 = segment * n_chunks_all / p.n_segments, chunk1 = (segment + 1) * n_chunks_all / p.n_segments;
        Sums sums[BATCH] = {};
        uint32_t position = 0;
        uint32_t x_block = x_at + chunk0 * (kChunkBlocks * 16), x_sum = sums_at + chunk0 * (kChunkBlocks * 4);
#pragma unroll 1
        for (uint32_t chunk = 0; chunk < chunk1 - chunk0; ++chunk) {
            if (chunk == 0) wait<2>();
            else if (chunk == 2) wait<1>();
            else if (chunk == 4) wait<0>();
            __syncwarp();
            uint32_t words[kPlaneWords];
#pragma unroll
            for (int i = 0; i < kPlaneWords; ++i) words[i] = ahead[i];
            if (chunk + 1 < chunk1 - chunk0) load_planes(p, task, chunk + 1, ahead);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const HalfPlanes h = prepare(words + half * K);
#pragma unroll
                for (int b = 0; b < BATCH; ++b) {
                    const uint4 s = load_constant4(x_sum + b * n_blocks * 4 + half * 16);
                    sums[b].c2 = dot(h.cosets, s.x, sums[b].c2);
                    sums[b].c1 = dot(h.cosets, s.y, sums[b].c1);
                    sums[b].c0 = dot(h.cosets, s.z, sums[b].c0);
                }
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    const uint32_t at = own + (position & ~31u) * 4;
                    const uint32_t window = __funnelshift_r(load(at), load(at + 128), position);
                    const uint32_t entry1 = load_constant(table + (window & kAddressMask));
                    const uint32_t taken = entry1 & 15u;
                    const uint32_t entry2 = load_constant(table + (__funnelshift_r(window, 0u, taken) & kAddressMask));
                    position += taken + (entry2 & 15u);
                    uint32_t value1, value2;
                    points(h, j, entry1, entry2, value1, value2);
#pragma unroll
                    for (int b = 0; b < BATCH; ++b) {
                        const uint4 x = load_constant4(x_block + b * n_blocks * 16 + (half * 4 + j) * 16);
                        sums[b].hi = dot(value1, x.x, sums[b].hi);
                        sums[b].lo = dot(value1, x.z, sums[b].lo);
                        sums[b].hi = dot(value2, x.y, sums[b].hi);
                        sums[b].lo = dot(value2, x.w, sums[b].lo);
                    }
                }
            }
            x_block += kChunkBlocks * 16;
            x_sum += kChunkBlocks * 4;
        }
        for (uint32_t i = p.patch0[task] + lane; i < p.patch0[task + 1]; i += 32) {
            const uint32_t patch = p.patches[i], row = patch >> 27, col = (patch >> 16) & 511u;
            const int difference = static_cast<int16_t>(patch) * kPatchUnit;
#pragma unroll
            for (int b = 0; b < BATCH; ++b) {
                const int8_t* const x = reinterpret_cast<const int8_t*>(x_digits) + (b * n_blocks + chunk0 * kChunkBlocks + (col >> 3)) * 16 + (col & 7);
                atomicAdd(patched + b * 64 + row, difference * x[0]);
                atomicAdd(patched + b * 64 + 32 + row, difference * x[8]);
            }
        }
        wait<0>();
        __syncwarp();
        const uint32_t next = task + n_warps;
        if (next < stop) {
            fetch(p, next, stage);
            load_planes(p, next, 0, ahead);
        }
        const uint32_t row = group * 32 + lane, n_rows = p.n_groups * 32;
        float part[BATCH];
#pragma unroll
        for (int b = 0; b < BATCH; ++b) {
            sums[b].hi += patched[b * 64 + lane];
            sums[b].lo += patched[b * 64 + 32 + lane];
            patched[b * 64 + lane] = 0;
            patched[b * 64 + 32 + lane] = 0;
            part[b] = sums[b].total();
        }
        __syncwarp();
        bool last = true;
        if (p.n_segments > 1) {
#pragma unroll
            for (int b = 0; b < BATCH; ++b) {
                if (b < p.n_batch) __stcg(p.partial + (static_cast<uint64_t>(b) * p.n_segments + segment) * n_rows + row, part[b]);
            }
            __threadfence();
            __syncwarp();
            uint32_t before = 0;
            if (lane == 0) before = atomicInc(p.counters + group, p.n_segments - 1);
            last = __shfl_sync(0xffffffffu, before, 0) == p.n_segments - 1;
            if (last) {
                __threadfence();
#pragma unroll
                for (int b = 0; b < BATCH; ++b) {
                    part[b] = 0.0f;
                    if (b < p.n_batch) {
                        for (uint32_t s = 0; s < p.n_segments; ++s) part[b] += __ldcg(p.partial + (static_cast<uint64_t>(b) * p.n_segments + s) * n_rows + row);
                    }
                }
            }
        }
        if (last && row < p.rows) {
            const float factor = __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(p.scales)[row]) * p.step;
#pragma unroll
            for (int b = 0; b < BATCH; ++b) {
                if (b < p.n_batch) p.y[static_cast<uint64_t>(b) * p.rows + row] = factor == 0.0f ? 0.0f : part[b] * x_step[b] * factor;
            }
        }
        task = next;
    }
}
