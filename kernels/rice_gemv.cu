// Products with E8 points under Rice codes in the plane layout: y = W x for 1 to 8 columns of x at one price.
//
//   y[b][row] = scale[row] * step * sum over columns of point * x[b][column]
//
// The layout keeps the codewords of the code with parameter K and moves their bits: unary parts to one bit string per lane,
// signs and low bits to planes, so that one look-up gives four unary parts and four points take a few byte-wise
// operations (crates/gosset-cuda/src/launch/rice_layout.rs). Lane l has rows l / 4 and l / 4 + 8 of a group, blocks l mod 4
// of every 4, so that the bytes of two blocks are a fragment of mma.m16n8k32.
//
// x is rounded to 16 bits below the largest magnitude of its column, as two digits of 8 bits, and sums are integers until
// the end of a segment: the result does not depend on the order.
//
// Shapes: rows in groups of 16; columns in p.n_segments segments of at most 16 halves of 64.
//   planes [task, half, lane, K] words; task = group * n_segments + segment, segments padded to p.n_halves
//   unary  [row, lane] words, task t having the rows row0[t] to row0[t + 1]; bit i of a lane is bit i mod 32 of word i / 32,
//          and two zero bits come first, so that a window shifted by two is an address
//   patches: corrections of single points: row << 28 | column of the segment << 16 | difference (16 bits)
// Grid: one block per multiprocessor, blocks of up to 28 warps; a warp takes every n-th task of its block.
// Dynamic shared memory: 64 KB table; per column of x 16 bytes per block and 64; per warp 128 bytes per column of x and
// p.stage_rows * 128.
// The last warp to finish a group adds its segments in order; its counter returns to zero.
// Caller: gosset-cuda/src/launch/rice_planes.rs.

#include <cuda_bf16.h>

#include "params.cuh"

#ifndef K
#define K 2
#endif

namespace {

static_assert(K >= 1 && K <= 4, "bytes hold the points of these parameters");

constexpr uint32_t kWindowBits = 14;                        // A look-up sees this many bits and finds four unary parts.
constexpr uint32_t kTableBytes = 4u << kWindowBits;
constexpr uint32_t kAddressMask = kTableBytes - 4;
constexpr uint32_t kMaxBatch = 8;                           // Columns of x: the n of the mma.
constexpr uint32_t kHalfColumns = 64;                       // Columns of half a chunk: 4 blocks per lane, 2 of each row.
constexpr uint32_t kRows = 16;                              // Rows of a group: the m of the mma.
constexpr float kXSteps = 32600.0f;                         // Steps of x on either side of zero.
constexpr int kHalfPoint = (1 << (5 - K)) / 2;              // A byte is this times a point.
constexpr uint32_t kValueMask = 0x01010101u * ((0xFFu << (5 - K)) & 0xFFu);

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
// Address of the word of a column of the stage that has a bit: own + 128 (position / 32), in two instructions.
__device__ __forceinline__ uint32_t row_address(uint32_t own, uint32_t position) {
    uint32_t at;
    asm("mad.lo.u32 %0, %1, 4, %2;" : "=r"(at) : "r"(position & ~31u), "r"(own));
    return at;
}
// sums += A x for 16 rows and 32 columns of A: bytes of the blocks of this lane's rows (first and second halves).
__device__ __forceinline__ void multiply(int (&sums)[4], const uint32_t (&a)[4], uint32_t x0, uint32_t x1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(sums[0]), "+r"(sums[1]), "+r"(sums[2]), "+r"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(x0), "r"(x1));
}
// 0xFF in each byte whose top bit is set.
__device__ __forceinline__ uint32_t byte_signs(uint32_t a) {
    uint32_t v;
    asm("prmt.b32 %0, %1, %1, 0xBA98;" : "=r"(v) : "r"(a));
    return v;
}
// Bits of `a` where `mask` is set and of `b` elsewhere.
__device__ __forceinline__ uint32_t select(uint32_t mask, uint32_t a, uint32_t b) { return (a & mask) | (b & ~mask); }

// Planes of 4 blocks of a lane: what the quads of block j need, and the cosets.
struct HalfPlanes {
    uint32_t first, second;  // K = 2: words of the first and the second quads; otherwise signs and lowest bits of both.
    uint32_t high[2];        // K > 2: further bits, the highest first.
    uint32_t parity;         // K = 1: byte 0 has the parity of the signs of block j at bit 7 - 2j.
    uint32_t cosets;         // Byte 3 - j is half a point if block j lies in the odd coset.
};

// One bit per block at bits 0 to 3 (STRIDE 1) or 0, 2, 4, 6 (STRIDE 2), to a byte each.
template <int STRIDE>
__device__ __forceinline__ uint32_t spread(uint32_t bits) {
    return ((STRIDE == 1 ? (bits & 0xFu) * 0x00204081u : (bits & 0x55u) * 0x00041041u) & 0x01010101u) * kHalfPoint;
}

// The lowest bit of the last coordinate of a block is its coset; the parity of the others takes its place.
__device__ __forceinline__ HalfPlanes prepare(const uint32_t (&words)[K]) {
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

// The points of block j as bytes, kHalfPoint times each, from the entries of its two quads.
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
    const uint32_t coset = __byte_perm(h.cosets, 0, 0x1111 * (3 - j));
    value1 |= coset;
    value2 |= coset;
}

// Largest magnitude of a column of x over the block.
__device__ __forceinline__ float block_max(const float* x, uint32_t n, float* shared) {
    float m = 0.0f;
#pragma unroll 4
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

// Rounds a column of x to signed digits, 256 hi + lo: 16 bytes per block of 8 columns, first those of hi.
__device__ __forceinline__ void quantize(const float* x, uint32_t cols, uint32_t n_blocks, float inverse, uint8_t* digits) {
#pragma unroll 1
    for (uint32_t block = threadIdx.x; block < n_blocks; block += blockDim.x) {
        uint32_t w[4] = {0, 0, 0, 0};
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const uint32_t col = block * 8 + i;
            const int v = col < cols ? __float2int_rn(x[col] * inverse) : 0;
            const int lo = static_cast<int8_t>(v), hi = (v - lo) >> 8;
            w[i >> 2] |= static_cast<uint32_t>(hi & 255) << (8 * (i & 3));
            w[2 + (i >> 2)] |= static_cast<uint32_t>(lo & 255) << (8 * (i & 3));
        }
        *reinterpret_cast<uint4*>(digits + block * 16) = make_uint4(w[0], w[1], w[2], w[3]);
    }
}

// Starts copying the unary words of a task in three groups. A quad takes 14 bits at most and half a chunk 112, so that 16
// rows hold what halves 0 to 3 need, and 32 rows what halves 0 to 7 need.
__device__ __forceinline__ void fetch(const RiceGemvParams& p, uint32_t task, uint32_t stage) {
    const uint32_t lane = threadIdx.x & 31, from = p.row0[task], n = (p.row0[task + 1] - from) * 8;
    const uint4* const source = reinterpret_cast<const uint4*>(p.unary) + static_cast<uint64_t>(from) * 8;
#pragma unroll
    for (int part = 0; part < 3; ++part) {
        const uint32_t stop = part < 2 ? min(n, 128u * (part + 1)) : n;
#pragma unroll 1
        for (uint32_t i = 128u * part + lane; i < stop; i += 32) copy16(stage + i * 16, source + i);
        commit();
    }
}

// The words of a lane of half a chunk.
__device__ __forceinline__ void load_planes(const uint32_t* from, uint32_t (&words)[K]) {
    if constexpr (K == 4) {
        const uint4 v = __ldcs(reinterpret_cast<const uint4*>(from));
        words[0] = v.x;
        words[1] = v.y;
        words[2] = v.z;
        words[3] = v.w;
    } else if constexpr (K == 2) {
        const uint2 v = __ldcs(reinterpret_cast<const uint2*>(from));
        words[0] = v.x;
        words[1] = v.y;
    } else {
#pragma unroll
        for (int i = 0; i < K; ++i) words[i] = __ldcs(from + i);
    }
}

// ONE: a single column of x, by dp4a; that takes fewer cycles than mma, whose other columns would be idle.
template <bool ONE>
__device__ __forceinline__ void product(const RiceGemvParams& p) {
    extern __shared__ __align__(16) uint8_t shared[];
    __shared__ float reduced[32], x_steps[kMaxBatch];
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, n_warps = blockDim.x >> 5;
    const uint32_t n_halves_all = (p.cols + kHalfColumns - 1) / kHalfColumns, n_blocks = n_halves_all * 8;
    // The 64 bytes between columns of x keep the lanes of two columns on different banks.
    const uint32_t x_stride = n_blocks * 16 + 64;
    uint8_t* const x_digits = shared + kTableBytes;
    int* const patched = reinterpret_cast<int*>(x_digits + p.n_batch * x_stride) + warp * p.n_batch * 2 * kRows;
    uint8_t* const stages = x_digits + p.n_batch * (x_stride + n_warps * 8 * kRows);
    const uint32_t stage = shared_address(stages) + warp * p.stage_rows * 128, table = shared_address(shared);

    const uint64_t n_tasks = static_cast<uint64_t>(p.n_groups) * p.n_segments;
    const uint32_t first = static_cast<uint32_t>(n_tasks * blockIdx.x / gridDim.x);
    const uint32_t stop = static_cast<uint32_t>(n_tasks * (blockIdx.x + 1) / gridDim.x);
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < kTableBytes / 16; i += blockDim.x) {
        copy16(table + i * 16, reinterpret_cast<const uint4*>(p.table) + i);
    }
    commit();
    uint32_t task = first + warp;
    uint32_t ahead[K] = {};
    const uint32_t* planes = p.planes + (static_cast<uint64_t>(task) * p.n_halves * 32 + lane) * K;
    if (task < stop) {
        fetch(p, task, stage);
        load_planes(planes, ahead);
    }
#pragma unroll 1
    for (uint32_t b = 0; b < p.n_batch; ++b) {
        const float* const x = p.x + static_cast<uint64_t>(b) * p.cols;
        const float largest = block_max(x, p.cols, reduced);
        if (threadIdx.x == 0) x_steps[b] = largest / kXSteps;
        quantize(x, p.cols, n_blocks, largest > 0.0f ? kXSteps / largest : 0.0f, x_digits + b * x_stride);
        patched[b * 2 * kRows + lane] = 0;
    }
    if (task < stop) wait<3>();  // The table is older than the three groups of the task.
    else wait<0>();
    __syncthreads();

    // Columns of the mma beyond the batch repeat the last one.
    const uint32_t x_own = shared_address(x_digits) + min(lane / 4, p.n_batch - 1) * x_stride + (lane & 3) * 16;
    const uint32_t own = stage + lane * 4;
#pragma unroll 1
    while (task < stop) {
        const uint32_t group = task / p.n_segments, segment = task - group * p.n_segments;
        const uint32_t half0 = segment * n_halves_all / p.n_segments;
        const uint32_t n_halves = (segment + 1) * n_halves_all / p.n_segments - half0;
        int hi[4] = {0, 0, 0, 0}, lo[4] = {0, 0, 0, 0};
        uint32_t position = 0, x_at = x_own + half0 * 128;
#pragma unroll 1
        for (uint32_t half = 0; half < n_halves; ++half) {
            if ((half & 3u) == 0) {
                if (half == 0) wait<2>();
                else if (half == 4) wait<1>();
                else wait<0>();
                __syncwarp();
            }
            const HalfPlanes h = prepare(ahead);
            // One half beyond the end is there as well.
            planes += 32 * K;
            load_planes(planes, ahead);
#pragma unroll
            for (int step = 0; step < 2; ++step) {
                uint32_t a[4];
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const uint32_t at = row_address(own, position);
                    const uint32_t window = __funnelshift_r(load(at), load(at + 128), position);
                    const uint32_t entry1 = load_constant(table + (window & kAddressMask));
                    const uint32_t taken = entry1 & 15u;
                    const uint32_t entry2 = load_constant(table + (__funnelshift_r(window, 0u, taken) & kAddressMask));
                    position += taken + (entry2 & 15u);
                    points(h, 2 * step + i, entry1, entry2, a[i], a[2 + i]);
                }
                const uint4 x = load_constant4(x_at + step * 64);
                if constexpr (ONE) {
#pragma unroll
                    for (int i = 0; i < 2; ++i) {
                        hi[2 * i] = dot(a[2 + i], x.y, dot(a[i], x.x, hi[2 * i]));
                        lo[2 * i] = dot(a[2 + i], x.w, dot(a[i], x.z, lo[2 * i]));
                    }
                } else {
                    multiply(hi, a, x.x, x.y);
                    multiply(lo, a, x.z, x.w);
                }
            }
            x_at += 128;
        }
        if constexpr (ONE) {
            // The four lanes of a row; sums 0 and 2 then are what the mma has for column 0.
#pragma unroll
            for (int d = 1; d < 4; d *= 2) {
#pragma unroll
                for (int i = 0; i < 4; i += 2) {
                    hi[i] += __shfl_xor_sync(0xffffffffu, hi[i], d);
                    lo[i] += __shfl_xor_sync(0xffffffffu, lo[i], d);
                }
            }
        }
        const uint32_t patch1 = p.patch0[task + 1];
#pragma unroll 1
        for (uint32_t i = p.patch0[task] + lane; i < patch1; i += 32) {
            const uint32_t patch = p.patches[i], row = patch >> 28, col = half0 * kHalfColumns + ((patch >> 16) & 1023u);
            const int difference = static_cast<int16_t>(patch) * kHalfPoint;
#pragma unroll 1
            for (uint32_t b = 0; b < p.n_batch; ++b) {
                const int8_t* const x = reinterpret_cast<const int8_t*>(x_digits) + b * x_stride + (col >> 3) * 16 + (col & 7);
                atomicAdd(patched + b * 2 * kRows + row, difference * x[0]);
                atomicAdd(patched + b * 2 * kRows + kRows + row, difference * x[8]);
            }
        }
        wait<0>();
        __syncwarp();
        const uint32_t next = task + n_warps;
        if (next < stop) {
            fetch(p, next, stage);
            planes = p.planes + (static_cast<uint64_t>(next) * p.n_halves * 32 + lane) * K;
            load_planes(planes, ahead);
        }
        // Sums i of this lane are those of row lane / 4 + 8 (i / 2) and column 2 (lane mod 4) + i mod 2 of the batch.
        const uint32_t row0 = group * kRows, n_rows = p.n_groups * kRows;
        float total[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const uint32_t row = lane / 4 + 8 * (i / 2), b = 2 * (lane & 3) + i % 2;
            total[i] = 0.0f;
            if (b < p.n_batch) {
                int* const patch = patched + b * 2 * kRows + row;
                total[i] = 256.0f * static_cast<float>(hi[i] + patch[0]) + static_cast<float>(lo[i] + patch[kRows]);
                patch[0] = 0;
                patch[kRows] = 0;
                if (p.n_segments > 1) __stcg(p.partial + (static_cast<uint64_t>(b) * p.n_segments + segment) * n_rows + row0 + row, total[i]);
            }
        }
        __syncwarp();
        bool last = true;
        if (p.n_segments > 1) {
            __threadfence();
            __syncwarp();
            uint32_t before = 0;
            if (lane == 0) before = atomicInc(p.counters + group, p.n_segments - 1);
            last = __shfl_sync(0xffffffffu, before, 0) == p.n_segments - 1;
            if (last) __threadfence();
        }
        if (last) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const uint32_t row = row0 + lane / 4 + 8 * (i / 2), b = 2 * (lane & 3) + i % 2;
                if (b < p.n_batch && row < p.rows) {
                    if (p.n_segments > 1) {
                        const float* const parts = p.partial + static_cast<uint64_t>(b) * p.n_segments * n_rows + row;
                        total[i] = 0.0f;
#pragma unroll 1
                        for (uint32_t s = 0; s < p.n_segments; ++s) total[i] += __ldcg(parts + static_cast<uint64_t>(s) * n_rows);
                    }
                    const float factor = __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(p.scales)[row]) * p.step;
                    const float sum = total[i] * (x_steps[b] / kHalfPoint);
                    p.y[static_cast<uint64_t>(b) * p.rows + row] = factor == 0.0f ? 0.0f : sum * factor;
                }
            }
        }
        task = next;
    }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(896, 1) rice_gemv(const __grid_constant__ RiceGemvParams p) { product<true>(p); }

extern "C" __global__ void __launch_bounds__(896, 1) rice_gemm(const __grid_constant__ RiceGemvParams p) { product<false>(p); }
