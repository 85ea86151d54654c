// The paper's format made on the device: rotation and row scale, nearest points, bit strip, Rice code.
//
//   rows     u = RHT(x) per row;  scale = bf16(rms(u));  units = u / scale
//   streams  of the symbols strip(nearest(alpha * units)), by mode: how often each occurs per class; the bits of each stream of
//            512 of them; the codewords
//   bases    first bit of each page of 64 streams
//
// Every operation is that of the CPU codec in the same order, so that planes are equal bit for bit: butterflies from
// stride 1 up, sums of squares in double precision by columns modulo 8, no contraction where a rounding could differ.
//
// Shapes: rows and units [rows, cols], row-major; the symbols are those of the whole matrix as one sequence.
// Grid: rows: one block of 256 threads per row. streams: one warp per stream, 8 per block. bases: one block of 1024 threads.
// Shared memory: static, at most 30 KB.
// Caller: gosset-cuda/src/launch/quantize.rs.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "params.cuh"

namespace {

constexpr unsigned kAll = 0xffffffffu;
constexpr unsigned kStream = 512;         // symbols of a stream
constexpr unsigned kPageStreams = 64;     // streams of a page
constexpr unsigned kLane = kStream / 32;  // symbols of a lane
constexpr unsigned kWarps = 8;            // streams of a block
constexpr unsigned kEscapeZeros = 24;
constexpr unsigned kEscapeBits = 56;
constexpr unsigned kMaxStreamWords = kStream * kEscapeBits / 32 + 2;
constexpr unsigned kDense = 256;  // symbols below are counted, larger ones add their cost
constexpr unsigned kParameters = 16;
constexpr unsigned kClassCounts = kDense + kParameters + 1;
// Modes of `streams`.
constexpr unsigned kCount = 0, kLengths = 1, kWrite = 2;

// ---- rows ----

__device__ __forceinline__ float read(const QuantizeRowsParams& p, size_t at) {
    if (p.dtype == 0) return reinterpret_cast<const float*>(p.x)[at];
    if (p.dtype == 1) return __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(p.x)[at]);
    return __half2float(reinterpret_cast<const __half*>(p.x)[at]);
}

// Index of the run of tiles that holds a column; `n_runs` beyond the last.
__device__ __forceinline__ unsigned run_of(const QuantizeRowsParams& p, unsigned col) {
    unsigned run = 0;
    while (run < p.n_runs && col >= p.run_end[run]) ++run;
    return run;
}

// Squared values added up in the order of the CPU: eight sums over the columns modulo 8, then a tree.
__device__ double sum_of_squares(const float* row, unsigned cols) {
    const unsigned lane = threadIdx.x & 31;
    double sum = 0.0;
    if (lane < 8) {
#pragma unroll 8
        for (unsigned i = lane; i < cols; i += 8) {
            const double v = row[i];
            sum = __dadd_rn(sum, __dmul_rn(v, v));
        }
    }
    double s[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) s[i] = __shfl_sync(kAll, sum, i);
    return __dadd_rn(__dadd_rn(__dadd_rn(s[0], s[4]), __dadd_rn(s[2], s[6])),
                     __dadd_rn(__dadd_rn(s[1], s[5]), __dadd_rn(s[3], s[7])));
}

// The bits of the bf16 number that the CPU rounds to: it looks at the upper half of the double only. Zero for what is no
// scale: below 2^-100, above 2^100, not finite.
__device__ __forceinline__ unsigned scale_bits(double v) {
    const unsigned x = static_cast<unsigned>(__double2hiint(v));
    const int exponent = static_cast<int>((x & 0x7ff00000u) >> 20) - 1023 + 127;
    if (exponent <= 0 || exponent >= 0xff) return 0;
    const unsigned mantissa = x & 0xfffffu, round = 0x1000u;
    unsigned bits = static_cast<unsigned>(exponent) << 7 | mantissa >> 13;
    if ((mantissa & round) != 0 && (mantissa & (3 * round - 1)) != 0) ++bits;
    const float scale = __uint_as_float(bits << 16);
    const bool usable = scale >= __uint_as_float((127u - 100) << 23) && scale <= __uint_as_float((127u + 100) << 23);
    return usable ? bits : 0;
}

__device__ __forceinline__ void butterfly(float& a, float& b) {
    const float sum = __fadd_rn(a, b), difference = __fsub_rn(a, b);
    a = sum;
    b = difference;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(256) quantize_rows(const __grid_constant__ QuantizeRowsParams p) {
    __shared__ unsigned scale_of_row;
    __shared__ float peaks[8];
    const unsigned lane = threadIdx.x & 31, warp = threadIdx.x >> 5, n_warps = blockDim.x >> 5;
    for (unsigned row = blockIdx.x; row < p.rows; row += gridDim.x) {
        const size_t start = static_cast<size_t>(row) * p.cols;
        float* units = p.units + start;
        bool nonzero = false, bad = false;
        // Signs and the strides below 128, in registers: a lane has four columns, a warp 128.
        for (unsigned first = warp * 128; first < p.cols; first += n_warps * 128) {
            const unsigned col = first + lane * 4;
            float v[4];
            unsigned tile[4];
            float factor[4];
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                v[j] = 0.0f;
                tile[j] = 1;
                factor[j] = 1.0f;
                if (col + j < p.cols) {
                    v[j] = read(p, start + col + j);
                    nonzero |= v[j] != 0.0f;
                    bad |= !(fabsf(v[j]) <= 3.402823466e38f);
                    if (p.n_runs > 0) {
                        const unsigned run = run_of(p, col + j);
                        tile[j] = p.run_tile[run];
                        factor[j] = p.run_scale[run];
                        const unsigned flip = p.signs[(col + j) >> 5] >> ((col + j) & 31) << 31;
                        v[j] = __uint_as_float(__float_as_uint(v[j]) ^ flip);
                    }
                }
            }
            if (tile[0] > 1) butterfly(v[0], v[1]);
            if (tile[2] > 1) butterfly(v[2], v[3]);
            if (tile[0] > 2) {
                butterfly(v[0], v[2]);
                butterfly(v[1], v[3]);
            }
#pragma unroll
            for (unsigned stride = 4; stride < 128; stride *= 2) {
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    const float other = __shfl_xor_sync(kAll, v[j], stride / 4);
                    if (tile[0] > stride) v[j] = (col & stride) == 0 ? __fadd_rn(v[j], other) : __fsub_rn(other, v[j]);
                }
            }
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                if (col + j < p.cols) units[col + j] = p.n_runs > 0 && tile[j] <= 128 ? __fmul_rn(v[j], factor[j]) : v[j];
            }
        }
        // Larger strides in memory; tiles come longest first.
        if (p.n_runs > 0 && p.run_tile[0] > 128) {
            for (unsigned stride = 128; stride < p.run_tile[0]; stride *= 2) {
                __syncthreads();
                for (unsigned i = threadIdx.x; i < p.cols / 2; i += blockDim.x) {
                    const unsigned at = i / stride * (2 * stride) + i % stride;
                    if (at + stride < p.cols && p.run_tile[run_of(p, at)] > stride) {
                        float a = units[at], b = units[at + stride];
                        butterfly(a, b);
                        units[at] = a;
                        units[at + stride] = b;
                    }
                }
            }
            __syncthreads();
            for (unsigned i = threadIdx.x; i < p.cols; i += blockDim.x) {
                const unsigned run = run_of(p, i);
                if (p.run_tile[run] > 128) units[i] = __fmul_rn(units[i], p.run_scale[run]);
            }
        }
        const bool any = __syncthreads_or(nonzero);
        const bool any_bad = __syncthreads_or(bad);
        if (warp == 0) {
            const double sum = sum_of_squares(units, p.cols);
            if (lane == 0) {
                scale_of_row = scale_bits(__dsqrt_rn(__ddiv_rn(sum, static_cast<double>(p.cols))));
                p.scales[row] = static_cast<uint16_t>(scale_of_row);
                if (scale_of_row == 0 && any) atomicAdd(&p.status[1], 1ull);
                if (any_bad) atomicMin(&p.status[2], static_cast<unsigned long long>(row));
            }
        }
        __syncthreads();
        const unsigned bits = scale_of_row;
        const float divisor = __uint_as_float(bits << 16);
        float peak = 0.0f;
        for (unsigned i = threadIdx.x; i < p.cols; i += blockDim.x) {
            const float v = bits == 0 ? 0.0f : __fdiv_rn(units[i], divisor);
            units[i] = v;
            peak = fmaxf(peak, fabsf(v));
        }
#pragma unroll
        for (int d = 16; d > 0; d >>= 1) peak = fmaxf(peak, __shfl_xor_sync(kAll, peak, d));
        if (lane == 0) peaks[warp] = peak;
        __syncthreads();
        if (threadIdx.x == 0) {
            for (unsigned w = 1; w < n_warps; ++w) peak = fmaxf(peak, peaks[w]);
            // The largest, and of those the first row.
            if (peak > 0.0f) {
                atomicMax(&p.status[0], static_cast<unsigned long long>(__float_as_uint(peak)) << 32 | (kAll - row));
            }
        }
        __syncthreads();
    }
}

namespace {

// ---- lattices ----

constexpr float kFastLimit = 4194304.0f;
constexpr float kMagic = 12582912.0f;
constexpr double kMagic64 = 6755399441055744.0;
constexpr double kInvSqrt3 = 0.5773502691896258;

__device__ __forceinline__ int round_f32(float v, float& rounded) {
    const float shifted = __fadd_rn(v, kMagic);
    rounded = __fsub_rn(shifted, kMagic);
    return static_cast<int>(__float_as_uint(shifted) - __float_as_uint(kMagic));
}

__device__ __forceinline__ int round_f64(double v, double& rounded) {
    const double shifted = __dadd_rn(v, kMagic64);
    rounded = __dsub_rn(shifted, kMagic64);
    return __double2loint(shifted);
}

__device__ __forceinline__ double saturate(float v) {
    return isnan(v) ? 0.0 : static_cast<double>(fminf(fmaxf(v, -67108864.0f), 67108864.0f));
}

// Rounded halves of N coordinates and their rounding errors.
template <int N>
__device__ __forceinline__ void round_halves(const float* x, int* f, float* d) {
    bool fast = true;
#pragma unroll
    for (int i = 0; i < N; ++i) fast = fast && fabsf(x[i]) < kFastLimit;
    if (fast) {
#pragma unroll
        for (int i = 0; i < N; ++i) {
            const float h = __fmul_rn(x[i], 0.5f);
            float rounded;
            f[i] = round_f32(h, rounded);
            d[i] = __fsub_rn(h, rounded);
        }
    } else {
#pragma unroll
        for (int i = 0; i < N; ++i) {
            const double h = __dmul_rn(saturate(x[i]), 0.5);
            double rounded;
            f[i] = round_f64(h, rounded);
            d[i] = static_cast<float>(__dsub_rn(h, rounded));
        }
    }
}

__device__ __forceinline__ unsigned zigzag(int v) { return static_cast<unsigned>(v << 1 ^ v >> 31); }

__device__ __forceinline__ void nearest_e8(const float* x, int* y) {
    int f[8];
    float d[8], m[8];
    round_halves<8>(x, f, d);
    int below[8];
    int even_off = 0, below_off = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        m[i] = fabsf(d[i]);
        below[i] = (d[i] < 0.0f ? 1 : 0) | (d[i] == 0.0f ? f[i] & 1 : 0);
        even_off ^= f[i];
        below_off ^= below[i];
    }
    even_off &= 1;
    const int odd_off = even_off ^ (below_off & 1);
    float largest = m[0], smallest = m[0];
    int max_at = 0, min_at = 0;
#pragma unroll
    for (int i = 1; i < 8; ++i) {
        if (m[i] > largest) {
            largest = m[i];
            max_at = i;
        }
        if (m[i] < smallest) {
            smallest = m[i];
            min_at = i;
        }
    }
    const float sum = __fadd_rn(__fadd_rn(__fadd_rn(m[0], m[4]), __fadd_rn(m[2], m[6])),
                                __fadd_rn(__fadd_rn(m[1], m[5]), __fadd_rn(m[3], m[7])));
    const float odd_cost = odd_off ? __fmul_rn(2.0f, smallest) : 0.0f;
    const float even_cost = even_off ? __fsub_rn(1.0f, __fmul_rn(2.0f, largest)) : 0.0f;
    const float excess = __fadd_rn(__fsub_rn(2.0f, sum), __fsub_rn(odd_cost, even_cost));
    bool odd = excess < 0.0f;
    if (fabsf(excess) < 1.0f / 262144.0f) {
        // Exact in double precision, whatever the order, for what single precision rounds to; the CPU's order.
        double total = 0.0;
#pragma unroll
        for (int i = 0; i < 8; ++i) total = __dadd_rn(total, static_cast<double>(m[i]));
        double e = __dsub_rn(2.0, total);
        if (odd_off) e = __dadd_rn(e, 2.0 * static_cast<double>(smallest));
        if (even_off) e = __dsub_rn(e, __dsub_rn(1.0, 2.0 * static_cast<double>(largest)));
        odd = e < 0.0;
    }
    const int moved_at = odd ? min_at : max_at;
    const int off = odd ? odd_off : even_off;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        int v = 2 * f[i] + (odd ? 1 - 2 * below[i] : 0);
        if (i == moved_at) {
            const bool up = odd ? below[i] == 1 || smallest == 0.5f : d[i] >= 0.0f;
            v += up ? 2 * off : -2 * off;
        }
        y[i] = v;
    }
}

__device__ __forceinline__ void strip_e8(const int* y, unsigned* s) {
    const int c = y[0] & 1;
    int parity = 0;
#pragma unroll
    for (int i = 0; i < 7; ++i) {
        const int half = y[i] >> 1;
        parity ^= half;
        s[i] = zigzag(half);
    }
    s[7] = zigzag(((y[7] >> 1) - (parity & 1)) >> 1) << 1 | static_cast<unsigned>(c);
}

__device__ __forceinline__ void symbols_d4(const float* x, unsigned* s) {
    int f[4];
    float d[4];
    round_halves<4>(x, f, d);
    const int off = (f[0] ^ f[1] ^ f[2] ^ f[3]) & 1;
    int at = 0;
#pragma unroll
    for (int i = 1; i < 4; ++i) at = fabsf(d[i]) > fabsf(at == 0 ? d[0] : at == 1 ? d[1] : d[2]) ? i : at;
    // The points are twice these halves.
    int half[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) half[i] = f[i] + (i == at ? (d[i] >= 0.0f ? off : -off) : 0);
    const int parity = (half[0] ^ half[1] ^ half[2]) & 1;
    s[0] = zigzag(half[0]);
    s[1] = zigzag(half[1]);
    s[2] = zigzag(half[2]);
    s[3] = zigzag((half[3] - parity) >> 1);
}

__device__ __forceinline__ int odd_step(int f, double d) { return d > 0.0 || (d == 0.0 && (f & 1) == 0) ? 1 : -1; }

__device__ __forceinline__ void symbols_a2(const float* x, unsigned* s) {
    const double hy = __dmul_rn(saturate(x[0]), 0.5 * kInvSqrt3), hx = __dmul_rn(saturate(x[1]), 0.5);
    double ry, rx;
    const int fy = round_f64(hy, ry), fx = round_f64(hx, rx);
    const double dy = __dsub_rn(hy, ry), dx = __dsub_rn(hx, rx);
    int ny = 2 * fy, nx = 2 * fx;
    if (__dadd_rn(__dmul_rn(3.0, fabs(dy)), fabs(dx)) > 1.0) {
        ny += odd_step(fy, dy);
        nx += odd_step(fx, dx);
    }
    s[0] = zigzag((ny - (nx & 1)) >> 1);
    s[1] = zigzag(nx);
}

__device__ __forceinline__ void symbols_z(const float* x, unsigned* s) {
    float rounded;
    double rounded64;
    s[0] = zigzag(fabsf(x[0]) < kFastLimit ? round_f32(x[0], rounded) : round_f64(saturate(x[0]), rounded64));
}

template <int N>  // Dimension: 1 Z, 2 A2, 4 D4, 8 E8.
__device__ __forceinline__ void symbols_of(const float* x, unsigned* s) {
    if (N == 8) {
        int y[8];
        nearest_e8(x, y);
        strip_e8(y, s);
    } else if (N == 4) {
        symbols_d4(x, s);
    } else if (N == 2) {
        symbols_a2(x, s);
    } else {
        symbols_z(x, s);
    }
}

// ---- streams ----

// Eight symbols from position `first` on.
template <int N>
__device__ __forceinline__ void eight_symbols(const QuantizeStreamParams& p, unsigned long long first, unsigned* s) {
    float x[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = first + i < p.n_values ? __fmul_rn(p.units[first + i], p.alpha) : 0.0f;
#pragma unroll
    for (int i = 0; i < 8; i += N) symbols_of<N>(x + i, s + i);
}

// The class of a position: the last coordinate of D4 and both of A2 have parameters of their own.
template <int N>
__device__ __forceinline__ constexpr unsigned class_of(unsigned i) {
    return N == 4 ? (i % 4 == 3 ? 1 : 0) : N == 2 ? i % 2 : 0;
}

__device__ __forceinline__ unsigned codeword_bits(unsigned z, unsigned k) {
    const unsigned q = z >> k;
    return q < kEscapeZeros ? q + 1 + k : kEscapeBits;
}

// Counts a symbol: small ones one by one, for the others what they cost under each parameter.
__device__ __noinline__ void count_large(unsigned long long* large, unsigned z) {
#pragma unroll 1
    for (unsigned k = 0; k < kParameters; ++k) atomicAdd(&large[k], static_cast<unsigned long long>(codeword_bits(z, k)));
    atomicAdd(&large[kParameters], 1ull);
}

// ORs a number of at most 32 bits whose last bit is bit `end - 1` of a string, most significant bit first.
__device__ __forceinline__ void put(uint32_t* words, unsigned end, unsigned value) {
    const unsigned last = (end - 1) >> 5;
    const unsigned long long both = static_cast<unsigned long long>(value) << (31 - ((end - 1) & 31));
    atomicOr(&words[last], static_cast<unsigned>(both));
    if (both >> 32) atomicOr(&words[last - 1], static_cast<unsigned>(both >> 32));
}

// One warp per stream. A lane has 16 consecutive symbols; writing finds them twice, first to know how long they are.
template <int N>  // Dimension of the lattice.
__device__ __forceinline__ void streams(const QuantizeStreamParams& p) {
    constexpr unsigned kClasses = N == 4 || N == 2 ? 2 : 1;
    // Counts of small symbols, or the words of eight streams.
    __shared__ uint32_t shared[kWarps * kMaxStreamWords];
    static_assert(kClasses * kDense <= kWarps * kMaxStreamWords);
    const unsigned lane = threadIdx.x & 31;
    uint32_t* words = shared + (threadIdx.x >> 5) * kMaxStreamWords;
    if (p.mode == kCount) {
        for (unsigned i = threadIdx.x; i < kClasses * kDense; i += blockDim.x) shared[i] = 0;
        __syncthreads();
    }
    const unsigned long long n_padded = (p.n_values + N - 1) / N * N;
#pragma unroll 1
    for (unsigned long long block = blockIdx.x; block * kWarps < p.n_streams; block += gridDim.x) {
        const unsigned long long stream = block * kWarps + (threadIdx.x >> 5);
        if (stream >= p.n_streams) continue;
        const unsigned long long first = stream * kStream + lane * kLane;
        unsigned at = 0, offset = 0, n_words = 0, bits = 0;
        unsigned long long start = 0;
        if (p.mode == kWrite) {
            // First bit: the page's and the streams before this one.
            const unsigned long long page = stream / kPageStreams, one = page * kPageStreams + lane, two = one + 32;
            unsigned before = (one < stream ? p.lengths[one] : 0) + (two < stream ? p.lengths[two] : 0);
            before = __reduce_add_sync(kAll, before);
            start = p.bases[page] + before;
            offset = static_cast<unsigned>(start & 31);
            n_words = (offset + p.lengths[stream] + 31) / 32;
            for (unsigned i = lane; i < n_words; i += 32) words[i] = 0;
            __syncwarp();
        }
#pragma unroll 1
        for (unsigned pass = 0; pass < (p.mode == kWrite ? 2 : 1); ++pass) {
            if (pass == 1) {
                // Sum of the bits of this lane and those before it.
                unsigned end = bits;
#pragma unroll
                for (int d = 1; d < 32; d <<= 1) {
                    const unsigned lower = __shfl_up_sync(kAll, end, d);
                    if (lane >= d) end += lower;
                }
                at = offset + end - bits;
            }
#pragma unroll 1
            for (unsigned half = 0; half < kLane; half += 8) {
                unsigned s[8];
                eight_symbols<N>(p, first + half, s);
#pragma unroll
                for (unsigned i = 0; i < 8; ++i) {
                    if (first + half + i >= n_padded) continue;
                    const unsigned z = s[i], k = p.k[class_of<N>(i)], length = codeword_bits(z, k);
                    if (pass == 1) {
                        at += length;
                        put(words, at, z >> k < kEscapeZeros ? 1u << k | (z & ((1u << k) - 1)) : z);
                    } else if (p.mode == kCount) {
                        if (z < kDense) {
                            atomicAdd(&shared[class_of<N>(i) * kDense + z], 1u);
                        } else {
                            count_large(p.counts + class_of<N>(i) * kClassCounts + kDense, z);
                        }
                    } else {
                        bits += length;
                    }
                }
            }
        }
        if (p.mode == kLengths) {
            bits = __reduce_add_sync(kAll, bits);
            if (lane == 0) p.lengths[stream] = static_cast<uint16_t>(bits);
        }
        if (p.mode == kWrite) {
            __syncwarp();
            // The first and the last word may be shared with neighbours.
            uint32_t* out = p.words + start / 32;
            for (unsigned i = lane; i < n_words; i += 32) {
                if (i == 0 || i + 1 == n_words) {
                    atomicOr(&out[i], words[i]);
                } else {
                    out[i] = words[i];
                }
            }
            __syncwarp();
        }
    }
    if (p.mode == kCount) {
        __syncthreads();
        for (unsigned i = threadIdx.x; i < kClasses * kDense; i += blockDim.x) {
            if (shared[i] > 0) {
                atomicAdd(&p.counts[i / kDense * kClassCounts + i % kDense], static_cast<unsigned long long>(shared[i]));
            }
        }
    }
}

}  // namespace

// `bases`: 1024 pages at a time, whole words each.
extern "C" __global__ void __launch_bounds__(1024) quantize_bases(const __grid_constant__ QuantizeStreamParams p) {
    __shared__ unsigned sums[32];
    const unsigned lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const unsigned long long n_pages = (p.n_streams + kPageStreams - 1) / kPageStreams;
    unsigned long long total = 0;
    for (unsigned long long first = 0; first < n_pages; first += 1024) {
        const unsigned long long page = first + threadIdx.x;
        unsigned bits = 0;
        for (unsigned i = 0; i < kPageStreams && page * kPageStreams + i < p.n_streams; ++i) {
            bits += p.lengths[page * kPageStreams + i];
        }
        const unsigned words = (bits + 31) / 32;
        unsigned end = words;
#pragma unroll
        for (int d = 1; d < 32; d <<= 1) {
            const unsigned lower = __shfl_up_sync(kAll, end, d);
            if (lane >= d) end += lower;
        }
        if (lane == 31) sums[warp] = end;
        __syncthreads();
        unsigned before = 0, all = 0;
        for (unsigned w = 0; w < 32; ++w) {
            before += w < warp ? sums[w] : 0;
            all += sums[w];
        }
        if (page < n_pages) p.bases[page] = (total + before + end - words) * 32;
        total += all;
        __syncthreads();
    }
    if (threadIdx.x == 0) *p.n_words = total;
}

#define GOSSET_LATTICE(name, n)                                                                                            \
    extern "C" __global__ void __launch_bounds__(256) quantize_streams_##name(const __grid_constant__ QuantizeStreamParams p) { \
        streams<n>(p);                                                                                                     \
    }

GOSSET_LATTICE(z, 1)
GOSSET_LATTICE(a2, 2)
GOSSET_LATTICE(d4, 4)
GOSSET_LATTICE(e8, 8)
