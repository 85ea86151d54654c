// u = H (d * x) / sqrt(t) on each tile of t columns of each row, or its inverse x = d * (H u) / sqrt(t); any plan.
//
// Shapes: x and y hold batch rows of width columns; a plan is up to 17 runs of power-of-two tiles, longest first
// (gosset-transform, src/plan.rs). f32 results are the CPU's bit for bit; f16 results are those times a power of two (or
// the caller's factor), rounded to nearest even.
//
// rht_IN_OUT: a block takes `chunk` columns of a row, a warp a window of 128 of them (include/rht.cuh). Tiles of up to
//   128 columns end there, in registers. Longer ones, up to `chunk`, are joined in shared memory, one stage at a time.
//   Tiles beyond LONG are left after the stages that fit, in f32, for rht_long.
// Grid: (ceil(width / chunk), min(batch, 65535)); block: 32 to 1024 threads; dynamic shared memory: 4 * chunk bytes if
//   some tile is longer than 128, else none.
// rht_long_OUT: the stages of stride LONG and more, on f32 rows that rht_*_f32 left. A thread takes the up to four
//   values that these stages mix. Grid: (ceil(width / 256), min(batch, 65535)); block: 256.
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

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(__half x) { return __half2float(x); }
__device__ __forceinline__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ void from_float(float x, float& y) { y = x; }
__device__ __forceinline__ void from_float(float x, __half& y) { y = __float2half_rn(x); }

// Four neighbours, moved as one where both sides allow it.
template <typename T>
struct alignas(4 * sizeof(T)) Four {
    T v[4];
};

template <typename T>
__device__ __forceinline__ void load4(const T* row, uint32_t col, uint32_t width, bool vector, float (&v)[4]) {
    if (vector && col + 4 <= width) {
        const Four<T> four = *reinterpret_cast<const Four<T>*>(row + col);
#pragma unroll
        for (int i = 0; i < 4; ++i) v[i] = to_float(four.v[i]);
    } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) v[i] = col + i < width ? to_float(row[col + i]) : 0.0f;
    }
}

template <typename T>
__device__ __forceinline__ void store4(T* row, uint32_t col, uint32_t width, bool vector, const float (&v)[4]) {
    if (vector && col + 4 <= width) {
        Four<T> four;
#pragma unroll
        for (int i = 0; i < 4; ++i) from_float(v[i], four.v[i]);
        *reinterpret_cast<Four<T>*>(row + col) = four;
    } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if (col + i < width) from_float(v[i], row[col + i]);
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

// max |x| of a row, over all threads of the block.
template <typename In>
__device__ __forceinline__ float row_max(const RhtParams& p, const In* row) {
    __shared__ float parts[32];
    float most = 0.0f;
    for (uint32_t col = 4 * threadIdx.x; col < p.width; col += 4 * blockDim.x) {
        float v[4];
        load4(row, col, p.width, p.flags & VECTOR_X, v);
#pragma unroll
        for (int i = 0; i < 4; ++i) most = fmaxf(most, fabsf(v[i]));
    }
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, mask));
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = most;
    __syncthreads();
    most = threadIdx.x % 32 < blockDim.x / 32 ? parts[threadIdx.x % 32] : 0.0f;
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, mask));
    __syncthreads();
    return most;
}

// Signs, stages and scales of the tiles of up to 128 columns in a window, and the first seven stages of longer ones. The
// lane holds columns col .. col + 3; `run` is that of the whole window, or n_runs where several meet.
__device__ __forceinline__ void any_window(
    const RhtParams& p, uint32_t col, uint32_t run, uint32_t nibble, bool inverse, float (&v)[4]) {
    if (!inverse) gosset::flip_signs(v, nibble);
    const bool uniform = run < p.n_runs;
    uint32_t log[4], runs[4], ends = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        runs[i] = uniform ? run : run_of(p, col + i);
        log[i] = p.run_log[runs[i]];
        ends |= uint32_t(log[i] <= 7) << i;
    }
    if (uniform) {
        gosset::fwht_window(v, log[0]);
    } else {
        gosset::fwht_window(v, log);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        if (log[i] <= 7) v[i] *= p.run_scale[runs[i]];
    }
    // Signs come at the end of a tile, and longer tiles do not end here.
    if (inverse) gosset::flip_signs(v, nibble & ends);
}

template <typename In, typename Out>
__device__ __forceinline__ void rht(const RhtParams& p) {
    extern __shared__ float shared[];
    const bool inverse = p.flags & INVERSE;
    const uint32_t begin = blockIdx.x * p.chunk, end = min(begin + p.chunk, p.width);
    const uint32_t lane = threadIdx.x % 32;
    constexpr bool HALF = sizeof(Out) == 2;
#if __CUDA_ARCH__ >= 900
    // Nothing is read or written before the kernels ahead in the stream have finished.
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;");
#endif
    // Tiles beyond a window are joined in shared memory if the first column of the chunk lies in one: longest first.
    const bool joined = p.run_log[run_of(p, begin)] > 7;
    for (uint32_t row_idx = blockIdx.y; row_idx < p.batch; row_idx += gridDim.y) {
        const In* x = static_cast<const In*>(p.x) + size_t(row_idx) * p.width;
        Out* y = static_cast<Out*>(p.y) + size_t(row_idx) * p.width;
        float factor = p.factor;
        if (p.row_scale != nullptr) {
            factor = safe_scale(p.bound, row_max(p, x));
            // Both are powers of two, so this is exact.
            if (begin == 0 && threadIdx.x == 0) p.row_scale[row_idx] = 1.0f / factor;
        }
        for (uint32_t window = begin + threadIdx.x / 32 * WINDOW; window < end; window += blockDim.x / 32 * WINDOW) {
            const uint32_t col = window + 4 * lane;
            const uint32_t run = run_of(p, window);
            const bool uniform = window + WINDOW <= p.run_end[run];
            float v[4];
            load4(x, col, p.width, p.flags & VECTOR_X, v);
            const uint32_t nibble = col < p.width ? gosset::sign_nibble(p.words, col) : 0;
            if (uniform && p.run_log[run] == 7 && !inverse) {
                gosset::rht128(v, nibble);
            } else {
                any_window(p, col, uniform ? run : p.n_runs, nibble, inverse, v);
            }
            if (joined) {
                *reinterpret_cast<float4*>(shared + col - begin) = make_float4(v[0], v[1], v[2], v[3]);
            } else {
                if (HALF) {
#pragma unroll
                    for (int i = 0; i < 4; ++i) v[i] *= factor;
                }
                store4(y, col, p.width, p.flags & VECTOR_Y, v);
            }
        }
        if (!joined) continue;

        const uint32_t longest = min(p.run_log[run_of(p, begin)], LONG_LOG);
        for (uint32_t log = 7; log < longest; ++log) {
            __syncthreads();
            const uint32_t stride = 1u << log;
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
        for (uint32_t col = begin + threadIdx.x; col < end; col += blockDim.x) {
            const uint32_t run = run_of(p, col);
            const uint32_t log = p.run_log[run];
            float v = shared[col - begin];
            if (log > 7 && log <= LONG_LOG) {
                v *= p.run_scale[run];
                if (inverse) v = __uint_as_float(__float_as_uint(v) ^ sign_bit(p, col));
            }
            if (HALF) v *= factor;
            from_float(v, y[col]);
        }
        __syncthreads();
    }
}

template <typename Out>
__device__ __forceinline__ void rht_long(const RhtParams& p) {
    const uint32_t col = blockIdx.x * blockDim.x + threadIdx.x;
    if (col >= p.width) return;
    const uint32_t run = run_of(p, col);
    const uint32_t log = p.run_log[run];
    const uint32_t ways = log > LONG_LOG ? 1u << (log - LONG_LOG) : 1;
    // The first of the columns that a thread mixes; the others' threads have nothing to do.
    if (log > LONG_LOG && (col & ((1u << log) - 1)) >= LONG) return;
    constexpr bool HALF = sizeof(Out) == 2;
    for (uint32_t row_idx = blockIdx.y; row_idx < p.batch; row_idx += gridDim.y) {
        const float* x = static_cast<const float*>(p.x) + size_t(row_idx) * p.width;
        Out* y = static_cast<Out*>(p.y) + size_t(row_idx) * p.width;
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
                if (HALF) u *= factor;
                from_float(u, y[at]);
            }
        }
    }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(1024, 1) rht_f32_f32(const __grid_constant__ RhtParams p) { rht<float, float>(p); }
extern "C" __global__ void __launch_bounds__(1024, 1) rht_f16_f32(const __grid_constant__ RhtParams p) { rht<__half, float>(p); }
extern "C" __global__ void __launch_bounds__(1024, 1) rht_bf16_f32(const __grid_constant__ RhtParams p) { rht<__nv_bfloat16, float>(p); }
extern "C" __global__ void __launch_bounds__(1024, 1) rht_f32_f16(const __grid_constant__ RhtParams p) { rht<float, __half>(p); }
extern "C" __global__ void __launch_bounds__(1024, 1) rht_f16_f16(const __grid_constant__ RhtParams p) { rht<__half, __half>(p); }
extern "C" __global__ void __launch_bounds__(1024, 1) rht_bf16_f16(const __grid_constant__ RhtParams p) { rht<__nv_bfloat16, __half>(p); }
extern "C" __global__ void __launch_bounds__(256) rht_long_f32(const __grid_constant__ RhtParams p) { rht_long<float>(p); }
extern "C" __global__ void __launch_bounds__(256) rht_long_f16(const __grid_constant__ RhtParams p) { rht_long<__half>(p); }
