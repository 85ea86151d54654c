// Products with E8 points under Rice codes, from the streams of the file with their words interleaved: y = W x.
//
//   y[row] = scale[row] * step * sum over columns of point * x[column]
//
// A stream is 512 columns of a row, bit for bit as in the file; 32 streams, those of a group of rows and a segment of
// columns, lie word by word side by side, so that the lanes of a warp read them together. One look-up in a table of 2^14
// entries decodes two codewords; pairs that take more bits, and escapes, are decoded one by one.
//
// x is rounded to 16 bits below its largest magnitude, as two digits of 8 bits, and sums are integers until the end of a
// segment: the result does not depend on the order.
//
// Shapes: rows in groups of 32, one per lane; cols = 512 n_segments.
//   words [row, lane], bits of each word reversed, task t = group * n_segments + segment having the rows row0[t] to
//         row0[t + 1], a multiple of 4; two zero bits come before each stream
//   table [16384]: bits 0 to 4 the length, bit 5 set if the pair fits, bits 6 and 7 the parities of the first value and of
//         both, byte 1 twice the value of the second symbol without its lowest bit, bytes 2 and 3 the values
// Grid: one block of 28 warps per multiprocessor; a warp takes every 28th task of its block.
// Dynamic shared memory: 64 KB table, 20 bytes per 8 columns, 4 KB per warp: a ring of 32 rows, which the host has checked
// to hold whatever the lanes of a task need at a time.
// The last warp to finish a group adds its segments in order; its counter returns to zero.
// Caller: gosset-cuda/src/launch/rice_lanes.rs.

#include <cuda_bf16.h>

#include "params.cuh"

namespace {

constexpr uint32_t kWarps = 28;
constexpr uint32_t kWindowBits = 14;
constexpr uint32_t kTableBytes = 4u << kWindowBits;
constexpr uint32_t kAddressMask = kTableBytes - 4;
constexpr uint32_t kRing = 32;                          // Rows of a ring.
constexpr uint32_t kRingMask = (kRing - 1) * 128;
constexpr uint32_t kChunks = 8;                         // Of 8 blocks each, in a stream.
constexpr uint32_t kOk = 32;
constexpr uint32_t kEscapeZeros = 24;
constexpr float kXSteps = 32600.0f;                     // Steps of x on either side of zero.

__device__ __forceinline__ uint32_t shared_address(const void* p) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
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
__device__ __forceinline__ int unzigzag(uint32_t z) { return static_cast<int>(z >> 1) ^ -static_cast<int>(z & 1u); }
__device__ __forceinline__ int signed_byte(uint32_t v, int i) { return static_cast<int8_t>(v >> (8 * i)); }

// 32 bits of a lane's column of the ring from two bits before `position` on.
__device__ __forceinline__ uint32_t window(uint32_t ring, uint32_t position) {
    const uint32_t at = (position & ~31u) * 4;
    return __funnelshift_r(load(ring + (at & kRingMask)), load(ring + ((at + 128) & kRingMask)), position);
}

// One symbol under parameter `k` <= 5, escapes included.
__device__ __forceinline__ uint32_t symbol(uint32_t ring, uint32_t k, uint32_t& position) {
    const uint32_t bits = __brev(window(ring, position) >> 2);
    const uint32_t zeros = __clz(bits);
    if (zeros < kEscapeZeros) {
        position += zeros + 1 + k;
        return (zeros << k) | __funnelshift_l(bits << (zeros + 1), 0u, k);
    }
    position += kEscapeZeros;
    const uint32_t high = __brev(window(ring, position) >> 2) >> 16;
    const uint32_t low = __brev(window(ring, position + 16) >> 2) >> 16;
    position += 32;
    return high << 16 | low;
}

struct Sums {
    int hi, lo, odd;    // With the digits of x; of x over the blocks of the odd coset.
    uint32_t position;  // In bits.
};

// A block whose pairs do not all fit the table.
__device__ __noinline__ Sums slow_block(uint32_t ring, uint32_t k, uint32_t position, uint4 x, int x_sum) {
    Sums sums{0, 0, 0, 0};
    int parity = 0;
#pragma unroll 1
    for (int i = 0; i < 8; ++i) {
        const uint32_t z = symbol(ring, k, position);
        int v = unzigzag(z);
        if (i < 7) {
            parity ^= v;
        } else {
            v = 2 * unzigzag(z >> 1) + (parity & 1);
            if (z & 1u) sums.odd = x_sum;
        }
        sums.hi += v * signed_byte(i < 4 ? x.x : x.y, i & 3);
        sums.lo += v * signed_byte(i < 4 ? x.z : x.w, i & 3);
    }
    sums.position = position;
    return sums;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(896, 1) rice_lanes(const __grid_constant__ RiceLanesParams p) {
    extern __shared__ __align__(16) uint8_t shared[];
    __shared__ float reduced[kWarps];
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    uint8_t* const x_digits = shared + kTableBytes;
    int* const x_sums = reinterpret_cast<int*>(x_digits + p.cols * 2);
    const uint32_t table = shared_address(shared), x_at = shared_address(x_digits), sums_at = shared_address(x_sums);
    const uint32_t ring = sums_at + p.cols / 2 + warp * kRing * 128, own = ring + lane * 4;

    const uint64_t n_tasks = static_cast<uint64_t>(p.n_groups) * p.n_segments;
    const uint32_t first = static_cast<uint32_t>(n_tasks * blockIdx.x / gridDim.x);
    const uint32_t stop = static_cast<uint32_t>(n_tasks * (blockIdx.x + 1) / gridDim.x);
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < kTableBytes / 16; i += blockDim.x) {
        copy16(table + i * 16, reinterpret_cast<const uint4*>(p.table) + i);
    }
    commit();
    float largest = 0.0f;
#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < p.cols; i += blockDim.x) largest = fmaxf(largest, fabsf(p.x[i]));
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, d));
    if (lane == 0) reduced[warp] = largest;
    __syncthreads();
    largest = lane < kWarps ? reduced[lane] : 0.0f;
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, d));
    const float inverse = largest > 0.0f ? kXSteps / largest : 0.0f;
#pragma unroll 1
    for (uint32_t block = threadIdx.x; block < p.cols / 8; block += blockDim.x) {
        uint32_t w[4] = {0, 0, 0, 0};
        int sum = 0;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const int v = __float2int_rn(p.x[block * 8 + i] * inverse);
            const int lo = static_cast<int8_t>(v), hi = (v - lo) >> 8;
            sum += v;
            w[i >> 2] |= static_cast<uint32_t>(hi & 255) << (8 * (i & 3));
            w[2 + (i >> 2)] |= static_cast<uint32_t>(lo & 255) << (8 * (i & 3));
        }
        *reinterpret_cast<uint4*>(x_digits + block * 16) = make_uint4(w[0], w[1], w[2], w[3]);
        x_sums[block] = sum;
    }
    wait<0>();
    __syncthreads();

#pragma unroll 1
    for (uint32_t task = first + warp; task < stop; task += kWarps) {
        const uint32_t group = task / p.n_segments, segment = task - group * p.n_segments;
        const uint32_t from = p.row0[task], n_rows = p.row0[task + 1] - from;
        const uint4* const source = reinterpret_cast<const uint4*>(p.words) + static_cast<uint64_t>(from) * 8 + lane;
        uint32_t issued = 0, done = 0, position = 0;  // Rows that were asked for, that all lanes have passed; bits.
        uint32_t x_block = x_at + segment * 1024, x_sum = sums_at + segment * 256;
        int hi = 0, lo = 0, odd = 0;
        __syncwarp();
#pragma unroll 1
        for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
            // What the previous chunk asked for is there; what this one asks for is for the next.
            if (chunk > 0) {
                done = __reduce_min_sync(0xffffffffu, position >> 5);
                __syncwarp();
            }
            while (issued < n_rows && issued + 4 - done <= kRing) {
                copy16(ring + ((issued * 128) & kRingMask) + lane * 16, source + issued * 8);
                issued += 4;
            }
            commit();
            if (chunk == 0) wait<0>();
            else wait<1>();
            __syncwarp();
#pragma unroll 2
            for (int j = 0; j < 8; ++j) {
                uint32_t bits = window(own, position);
                const uint32_t e1 = load_constant(table + (bits & kAddressMask));
                const uint32_t e2 = load_constant(table + (__funnelshift_r(bits, 0u, e1) & kAddressMask));
                const uint32_t middle = position + (e1 & 31u) + (e2 & 31u);
                bits = window(own, middle);
                const uint32_t e3 = load_constant(table + (bits & kAddressMask));
                const uint32_t e4 = load_constant(table + (__funnelshift_r(bits, 0u, e3) & kAddressMask));
                const uint4 x = load_constant4(x_block);
                const int of_block = static_cast<int>(load_constant(x_sum));
                x_block += 16;
                x_sum += 4;
                if (e1 & e2 & e3 & e4 & kOk) {
                    position = middle + (e3 & 31u) + (e4 & 31u);
                    // The last symbol: twice its value without the coset bit, and the parity of the others.
                    const uint32_t first_half = __byte_perm(e1, e2, 0x7632), last = __byte_perm(e3, e4, 0x5632);
                    const uint32_t parity = (((e1 ^ e2 ^ e3) >> 1) ^ e4) & 64u;
                    const uint32_t second_half = last + (parity << 18);
                    hi = dot(second_half, x.y, dot(first_half, x.x, hi));
                    lo = dot(second_half, x.w, dot(first_half, x.z, lo));
                    odd += (static_cast<int>(e4) >> 31) & of_block;
                } else {
                    const Sums more = slow_block(own, p.k, position, x, of_block);
                    hi += more.hi;
                    lo += more.lo;
                    odd += more.odd;
                    position = more.position;
                }
            }
        }
        wait<0>();
        float total = 2.0f * (256.0f * static_cast<float>(hi) + static_cast<float>(lo)) + static_cast<float>(odd);
        const uint32_t row = group * 32 + lane, all_rows = p.n_groups * 32;
        bool last = true;
        if (p.n_segments > 1) {
            __stcg(p.partial + static_cast<uint64_t>(segment) * all_rows + row, total);
            __threadfence();
            __syncwarp();
            uint32_t before = 0;
            if (lane == 0) before = atomicInc(p.counters + group, p.n_segments - 1);
            last = __shfl_sync(0xffffffffu, before, 0) == p.n_segments - 1;
            if (last) {
                __threadfence();
                total = 0.0f;
#pragma unroll 1
                for (uint32_t s = 0; s < p.n_segments; ++s) total += __ldcg(p.partial + static_cast<uint64_t>(s) * all_rows + row);
            }
        }
        if (last && row < p.rows) {
            const float factor = __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(p.scales)[row]) * p.step;
            p.y[row] = factor == 0.0f ? 0.0f : total * (largest / kXSteps) * factor;
        }
    }
}
