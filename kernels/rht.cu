// u = H (d * x) / sqrt(t) on each tile of t columns of each row, or its inverse x = d * (H u) / sqrt(t); any plan.
//
// Shapes: x and y hold batch rows of width columns; a plan is up to 17 runs of power-of-two tiles, longest first
// (gosset-transform, src/plan.rs). f32 results are the CPU's bit for bit; f16 results are those times a power of two (or
// the caller's factor), rounded to nearest even.
//
// rht: a block takes `chunk` columns of a row, a warp a window of 128 of them (include/rht.cuh). Tiles of up to
//   128 columns end there, in registers. Longer ones, up to `chunk`, are joined in shared memory, one stage at a time.
//   Tiles beyond LONG are left after the stages that fit, in f32, for rht_long.
// Grid: (ceil(width / chunk), min(batch, 65535)); block: 32 to 1024 threads; dynamic shared memory: 4 * chunk bytes if
//   some tile is longer than 128, else none.
// rht_long: the stages of stride LONG and more, on f32 rows that rht left. A thread takes the up to four values that these
//   stages mix. Grid: (ceil(width / 256), min(batch, 65535)); block: 256.
// Caller: gosset-cuda, launch/rht.rs.

#include "params.cuh"
#include "rht.cuh"

namespace {

// log2 of the longest tile that a block's shared memory holds (64 KiB).
constexpr uint32_t LONG_LOG = 14;
constexpr uint32_t LONG = 1u << LONG_LOG;
constexpr uint32_t MAX_LOG = 16;
constexpr uint32_t MAX_WAYS = 1u << (MAX_LOG - LONG_LOG);
constexpr uint32_t WINDOW = 128;
static_assert(LONG % WINDOW == 0);

constexpr uint32_t INVERSE = 1;
constexpr uint32_t VECTOR_X = 2;
constexpr uint32_t VECTOR_Y = 4;
constexpr uint32_t F16_X = 8;
constexpr uint32_t BF16_X = 16;
constexpr uint32_t F16_Y = 32;

// Types are flags at run time: one text of each kernel serves all of them, and the branches are the same for all lanes.

__device__ __forceinline__ float bf16_to_float(uint32_t bits) { return __uint_as_float(bits << 16); }
__device__ __forceinline__ float f16_to_float(uint32_t bits) { return __half2float(__ushort_as_half(uint16_t(bits))); }
__device__ __forceinline__ uint32_t float_to_f16(float x) { return __half_as_ushort(__float2half_rn(x)); }

// Values at .. at + 3 of x; those of column `width` on, `past` of them, are zero.
__device__ __forceinline__ void load4(const RhtParams& p, size_t at, int past, float (&v)[4]) {
    const bool vector = (p.flags & VECTOR_X) && past <= 0;
    if (p.flags & (F16_X | BF16_X)) {
        const uint16_t* x = static_cast<const uint16_t*>(p.x) + at;
        uint32_t bits[4] = {0, 0, 0, 0};
        if (vector) {
            const uint2 four = *reinterpret_cast<const uint2*>(x);
            bits[0] = four.x & 0xffff, bits[1] = four.x >> 16, bits[2] = four.y & 0xffff, bits[3] = four.y >> 16;
        } else {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                if (i + past < 4) bits[i] = x[i];
            }
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) v[i] = p.flags & BF16_X ? bf16_to_float(bits[i]) : f16_to_float(bits[i]);
    } else {
        const float* x = static_cast<const float*>(p.x) + at;
        if (vector) {
            const float4 four = *reinterpret_cast<const float4*>(x);
            v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
        } else {
#pragma unroll
            for (int i = 0; i < 4; ++i) v[i] = i + past < 4 ? x[i] : 0.0f;
        }
    }
}

__device__ __forceinline__ void store1(const RhtParams& p, size_t at, float v) {
    if (p.flags & F16_Y) {
        static_cast<uint16_t*>(p.y)[at] = uint16_t(float_to_f16(v));
    } else {
        static_cast<float*>(p.y)[at] = v;
    }
}

__device__ __forceinline__ void store4(const RhtParams& p, size_t at, int past, const float (&v)[4]) {
    if ((p.flags & VECTOR_Y) && past <= 0) {
        if (p.flags & F16_Y) {
            const uint2 four = make_uint2(float_to_f16(v[0]) | float_to_f16(v[1]) << 16,
                                          float_to_f16(v[2]) | float_to_f16(v[3]) << 16);
            *reinterpret_cast<uint2*>(static_cast<uint16_t*>(p.y) + at) = four;
        } else {
            *reinterpret_cast<float4*>(static_cast<float*>(p.y) + at) = make_float4(v[0], v[1], v[2], v[3]);
        }
    } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if (i + past < 4) store1(p, at + i, v[i]);
        }
    }
}

// The run that column `col` lies in; the last one beyond the width.
__device__ __forceinline__ uint32_t run_of(const RhtParams& p, uint32_t col) {
    uint32_t run = 0;
    while (run + 1 < p.n_runs && col >= p.run_end[run]) ++run;
    return run;
}

__device__ __forceinline__ uint32_t sign_bit(const RhtParams& p, uint32_t col) {
    return p.words[col / 32] >> (col % 32) << 31;
}

// The power of two s for which |u| s < 2^15 in a row whose largest magnitude is `most`; 1 where there is none.
__device__ __forceinline__ float safe_scale(float bound, float most) {
    const float limit = bound * most;
    if (!(limit > 0.0f) || !(limit < __int_as_float(0x7f800000))) return 1.0f;
    // limit < 2^(exponent + 1); both s and 1 / s stay normal.
    const int exponent = int(__float_as_uint(limit) >> 23) - 127;
    const int log = min(max(14 - exponent, -126), 126);
    return __uint_as_float(uint32_t(log + 127) << 23);
}

// Magnitudes as integers: for finite numbers their order is that of the bits without the sign, and whatever is not finite
// is larger than they.
__device__ __forceinline__ uint32_t magnitude16(uint32_t most, uint32_t pair) {
    return max(most, max(pair & 0x7fff, pair >> 16 & 0x7fff));
}

// max |x| of a row, over all threads of the block; not finite if some value is not.
__device__ __forceinline__ float row_max(const RhtParams& p, size_t row) {
    __shared__ uint32_t parts[32];
    // Loads in flight per thread before the first is used.
    constexpr int AHEAD = 4;
    const bool half = p.flags & (F16_X | BF16_X);
    const uint32_t stride = 4 * blockDim.x;
    uint32_t most = 0;
    uint32_t col = 4 * threadIdx.x;
    if (p.flags & VECTOR_X) {
#pragma unroll 1
        for (; col < p.width; col += AHEAD * stride) {
            if (half) {
                uint2 x[AHEAD];
#pragma unroll
                for (int i = 0; i < AHEAD; ++i) {
                    const uint32_t at = col + i * stride;
                    x[i] = make_uint2(0, 0);
                    if (at < p.width) x[i] = *reinterpret_cast<const uint2*>(static_cast<const uint16_t*>(p.x) + row + at);
                }
#pragma unroll
                for (int i = 0; i < AHEAD; ++i) most = magnitude16(magnitude16(most, x[i].x), x[i].y);
            } else {
                uint4 x[AHEAD];
#pragma unroll
                for (int i = 0; i < AHEAD; ++i) {
                    const uint32_t at = col + i * stride;
                    x[i] = make_uint4(0, 0, 0, 0);
                    if (at < p.width) x[i] = *reinterpret_cast<const uint4*>(static_cast<const float*>(p.x) + row + at);
                }
#pragma unroll
                for (int i = 0; i < AHEAD; ++i) {
                    most = max(most, max(x[i].x & 0x7fffffff, x[i].y & 0x7fffffff));
                    most = max(most, max(x[i].z & 0x7fffffff, x[i].w & 0x7fffffff));
                }
            }
        }
    } else {
#pragma unroll 1
        for (col = threadIdx.x; col < p.width; col += blockDim.x) {
            const uint32_t bits = half ? static_cast<const uint16_t*>(p.x)[row + col]
                                       : static_cast<const uint32_t*>(p.x)[row + col];
            most = max(most, bits & (half ? 0x7fff : 0x7fffffff));
        }
    }
    most = __reduce_max_sync(0xffffffffu, most);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = most;
    __syncthreads();
    most = threadIdx.x % 32 < blockDim.x / 32 ? parts[threadIdx.x % 32] : 0;
    most = __reduce_max_sync(0xffffffffu, most);
    __syncthreads();
    if (p.flags & F16_X) return f16_to_float(most);
    return p.flags & BF16_X ? bf16_to_float(most) : __uint_as_float(most);
}

// Signs, stages and scales of the tiles of up to 128 columns in a window, and the first seven stages of longer ones. The
// lane holds columns col .. col + 3.
__device__ __forceinline__ void any_window(
    const RhtParams& p, uint32_t col, uint32_t nibble, bool inverse, float (&v)[4]) {
    if (!inverse) gosset::flip_signs(v, nibble);
    uint32_t log[4], runs[4], ends = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        runs[i] = i > 0 && col + i < p.run_end[runs[0]] ? runs[0] : run_of(p, col + i);
        log[i] = p.run_log[runs[i]];
        ends |= uint32_t(log[i] <= 7) << i;
    }
    gosset::fwht_window(v, log);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        if (log[i] <= 7) v[i] *= p.run_scale[runs[i]];
    }
    // Signs come at the end of a tile, and longer tiles do not end here.
    if (inverse) gosset::flip_signs(v, nibble & ends);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(1024, 1) rht(const __grid_constant__ RhtParams p) {
    extern __shared__ float shared[];
    const bool inverse = p.flags & INVERSE;
    const bool half = p.flags & F16_Y;
    const uint32_t begin = blockIdx.x * p.chunk, end = min(begin + p.chunk, p.width);
    const uint32_t lane = threadIdx.x % 32;
#if __CUDA_ARCH__ >= 900
    // Nothing is read or written before the kernels ahead in the stream have finished.
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;");
#endif
    // Tiles beyond a window are joined in shared memory if the first column of the chunk lies in one: longest first.
    const uint32_t longest = min(p.run_log[run_of(p, begin)], LONG_LOG);
    const bool joined = longest > 7;
#pragma unroll 1
    for (uint32_t row_idx = blockIdx.y; row_idx < p.batch; row_idx += gridDim.y) {
        const size_t row = size_t(row_idx) * p.width;
        float factor = p.factor;
        if (p.row_scale != nullptr) {
            factor = safe_scale(p.bound, row_max(p, row));
            // Both are powers of two, so this is exact.
            if (begin == 0 && threadIdx.x == 0) p.row_scale[row_idx] = 1.0f / factor;
        }
#pragma unroll 1
        for (uint32_t window = begin + threadIdx.x / 32 * WINDOW; window < end; window += blockDim.x / 32 * WINDOW) {
            const uint32_t col = window + 4 * lane;
            const int past = int(col + 4) - int(p.width);
            const uint32_t run = run_of(p, window);
            float v[4];
            load4(p, row + col, past, v);
            const uint32_t nibble = past < 4 ? gosset::sign_nibble(p.words, col) : 0;
            if (window + WINDOW <= p.run_end[run] && p.run_log[run] == 7 && !inverse) {
                gosset::rht128(v, nibble);
            } else {
                any_window(p, col, nibble, inverse, v);
            }
            if (joined) {
                *reinterpret_cast<float4*>(shared + col - begin) = make_float4(v[0], v[1], v[2], v[3]);
            } else {
                if (half) {
#pragma unroll
                    for (int i = 0; i < 4; ++i) v[i] *= factor;
                }
                store4(p, row + col, past, v);
            }
        }
        if (!joined) continue;

#pragma unroll 1
        for (uint32_t log = 7; log < longest; ++log) {
            __syncthreads();
            const uint32_t stride = 1u << log;
#pragma unroll 1
            for (uint32_t pair = threadIdx.x; pair < p.chunk / 2; pair += blockDim.x) {
                const uint32_t at = (pair >> log << (log + 1)) + (pair & (stride - 1));
                if (begin + at < end && p.run_log[run_of(p, begin + at)] > log) {
                    const float a = shared[at], b = shared[at + stride];
                    shared[at] = a + b;
                    shared[at + stride] = a - b;
                }
            }
        }
        __syncthreads();
#pragma unroll 1
        for (uint32_t col = begin + threadIdx.x; col < end; col += blockDim.x) {
            const uint32_t run = run_of(p, col);
            const uint32_t log = p.run_log[run];
            float v = shared[col - begin];
            if (log > 7 && log <= LONG_LOG) {
                v *= p.run_scale[run];
                if (inverse) v = __uint_as_float(__float_as_uint(v) ^ sign_bit(p, col));
            }
            if (half) v *= factor;
            store1(p, row + col, v);
        }
        __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(256) rht_long(const __grid_constant__ RhtParams p) {
    const uint32_t col = blockIdx.x * blockDim.x + threadIdx.x;
    if (col >= p.width) return;
    const uint32_t run = run_of(p, col);
    const uint32_t log = p.run_log[run];
    const uint32_t ways = log > LONG_LOG ? 1u << (log - LONG_LOG) : 1;
    // The first of the columns that a thread mixes; the others' threads have nothing to do.
    if (log > LONG_LOG && (col & ((1u << log) - 1)) >= LONG) return;
#pragma unroll 1
    for (uint32_t row_idx = blockIdx.y; row_idx < p.batch; row_idx += gridDim.y) {
        const size_t row = size_t(row_idx) * p.width;
        const float* x = static_cast<const float*>(p.x) + row;
        const float factor = p.row_scale != nullptr ? 1.0f / p.row_scale[row_idx] : p.factor;
        float v[MAX_WAYS];
#pragma unroll
        for (uint32_t way = 0; way < MAX_WAYS; ++way) v[way] = way < ways ? x[col + way * LONG] : 0.0f;
#pragma unroll
        for (uint32_t stride = 1; stride < MAX_WAYS; stride *= 2) {
            if (stride < ways) {
#pragma unroll
                for (uint32_t way = 0; way < MAX_WAYS; ++way) {
                    if ((way & stride) == 0) {
                        const float a = v[way], b = v[way + stride];
                        v[way] = a + b;
                        v[way + stride] = a - b;
                    }
                }
            }
        }
#pragma unroll
        for (uint32_t way = 0; way < MAX_WAYS; ++way) {
            if (way < ways) {
                const uint32_t at = col + way * LONG;
                float u = v[way];
                if (ways > 1) {
                    u *= p.run_scale[run];
                    if (p.flags & INVERSE) u = __uint_as_float(__float_as_uint(u) ^ sign_bit(p, at));
                }
                if (p.flags & F16_Y) u *= factor;
                store1(p, row + at, u);
            }
        }
    }
}
