// Plain fixed-width weights: v of 2 or 4 bits stands for (v - (2^BITS - 1) / 2) times the scale of its row.
//
//   encode  v = clamp(floor(unit / step) + 2^(BITS-1), 0, 2^BITS - 1)
//   gemv    y[b][row] = scale[row] x_scale[b] sum over columns of (v - offset) x[b][column],  b < batch <= 8
//   rht     the same of RHT(x) for one f32 row, scaled to f16 by a power of two inside
//
// Layout: tiles of 16 rows, blocks of BK columns (128 at 2 bits, 64 at 4), [tile][block][lane][4 words]. Lane (g, t), g =
// lane / 4, t = lane % 4: word i holds 32 / BITS consecutive columns of row g + 8 (i % 2), from column
// (i / 2) BK / 2 + t 32 / BITS of the block on. Pair p of a word: its even column in bits BITS p of the lower half, its odd
// one in the same bits of the upper half.
//
// gemv: a masked OR turns a pair into two halves 1024 + 2^(BITS p) v. SUB: a fused multiply-add turns those into v - offset.
// Otherwise they go into mma.m16n8k16 as they are: pairs of one place p share an accumulator, so that the place is divided out
// once per tile, and what 1024 and the offset add, which depends on x alone, is a product of x with ones, once per warp.
// KS warps share a tile, each with every KS-th block, U of them loaded while U are computed; sums of up to T tiles wait in
// shared memory, so that no barrier is within a tile. XR: x stays in registers.
//
// Grid: gemv: up to the resident blocks of WARPS warps; encode: one thread per word, 256 per block. Shared memory of gemv:
// batch (padded columns + 8) 2 bytes for x, T WARPS 16 NB 4 bytes for sums.
// Caller: gosset-cuda/src/launch/fixed.rs.

#include <cuda_fp16.h>

#include "params.cuh"
#include "rht.cuh"

#ifndef BITS
#error "BITS: of a weight, 2 or 4"
#endif

namespace {

static_assert(BITS == 2 || BITS == 4);
constexpr int BK = BITS == 2 ? 128 : 64;  // columns of a block
constexpr int PAIRS = 16 / BITS;          // pairs of a word
constexpr int XV = PAIRS / 2;             // 16-byte vectors of x per block and lane
constexpr int PLACES = BITS == 2 ? 5 : 2;
constexpr int kAhead = 2;  // tiles whose first chunk is on its way before the previous kernel has ended
constexpr float kOffset = ((1 << BITS) - 1) / 2.0f;

__device__ __forceinline__ void mma(float* c, const uint32_t* a, uint32_t b0, uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// (w & MASK) | 0x64006400: two halves of 1024 + the masked bits.
template <uint32_t MASK>
__device__ __forceinline__ uint32_t magic(uint32_t w) {
    uint32_t d;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(d) : "r"(w), "n"(MASK), "r"(0x64006400));
    return d;
}

// Pairs as 1024 + 2^(BITS place) v; places: 2 bits: 0 1 2 3 4 | 0 1 2, 4 bits: 0 1 | 0 1.
__device__ __forceinline__ void spread(uint32_t w, uint32_t* h) {
#if BITS == 2
    const uint32_t s = w >> 10;
    h[0] = magic<0x00030003>(w);
    h[1] = magic<0x000c000c>(w);
    h[2] = magic<0x00300030>(w);
    h[3] = magic<0x00c000c0>(w);
    h[4] = magic<0x03000300>(w);
    h[5] = magic<0x00030003>(s);
    h[6] = magic<0x000c000c>(s);
    h[7] = magic<0x00300030>(s);
#else
    const uint32_t s = w >> 8;
    h[0] = magic<0x000f000f>(w);
    h[1] = magic<0x00f000f0>(w);
    h[2] = magic<0x000f000f>(s);
    h[3] = magic<0x00f000f0>(s);
#endif
}

__device__ __forceinline__ uint32_t fma2(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t d;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

__device__ __forceinline__ uint32_t add2(uint32_t a, uint32_t b) {
    uint32_t d;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}

// The bits of a binary16 number, twice.
__host__ __device__ constexpr uint32_t twice(float v) {
    const bool negative = v < 0;
    float a = negative ? -v : v;
    int e = 0;
    while (a >= 2) a /= 2, ++e;
    while (a < 1) a *= 2, --e;
    const uint32_t bits = static_cast<uint32_t>((a - 1) * 1024) | static_cast<uint32_t>(e + 15) << 10 | (negative ? 0x8000u : 0);
    return bits | bits << 16;
}

// 1024 + 2^(BITS PLACE) v to v - offset, exactly; at place 0 the constant would need 12 bits.
template <int PLACE>
__device__ __forceinline__ uint32_t center(uint32_t h) {
    constexpr float place = 1 << (BITS * PLACE);
    if (PLACE == 0) return add2(add2(h, twice(-1024.0f)), twice(-kOffset));
    return fma2(h, twice(1.0f / place), twice(-1024.0f / place - kOffset));
}

__device__ __forceinline__ void center_all(uint32_t* h) {
    h[0] = center<0>(h[0]);
    h[1] = center<1>(h[1]);
#if BITS == 2
    h[2] = center<2>(h[2]);
    h[3] = center<3>(h[3]);
    h[4] = center<4>(h[4]);
    h[5] = center<0>(h[5]);
    h[6] = center<1>(h[6]);
    h[7] = center<2>(h[7]);
#else
    h[2] = center<0>(h[2]);
    h[3] = center<1>(h[3]);
#endif
}

// All products of a block into one accumulator per place. `a(half, pair, row group)` gives weights, `b(half, pair)` x.
// N accumulators: as many as there are places, or fewer where weights are centred.
template <int N, typename A, typename B>
__device__ __forceinline__ void products(float (*c)[4], A a, B b) {
    auto step = [&](float* sum, int h0, int p0, int h1, int p1) {
        const uint32_t f[4] = {a(h0, p0, 0), a(h0, p0, 1), a(h1, p1, 0), a(h1, p1, 1)};
        mma(sum, f, b(h0, p0), b(h1, p1));
    };
#if BITS == 2
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        step(c[0], h, 0, h, 5);
        step(c[1 % N], h, 1, h, 6);
        step(c[2 % N], h, 2, h, 7);
    }
    step(c[3 % N], 0, 3, 1, 3);
    step(c[4 % N], 0, 4, 1, 4);
#else
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        step(c[0], h, 0, h, 2);
        step(c[1 % N], h, 1, h, 3);
    }
#endif
}

// Four words of the stream of weights, zero where there are none.
__device__ __forceinline__ uint4 load_words(const uint4* at, bool there) {
    uint4 v;
    asm volatile(
        "{ .reg .pred q; setp.ne.b32 q, %5, 0; mov.b32 %0, 0; mov.b32 %1, 0; mov.b32 %2, 0; mov.b32 %3, 0;"
        " @q ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4]; }"
        : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w)
        : "l"(at), "r"(static_cast<int>(there)));
    return v;
}

// Brings a line of 128 bytes into the L2 cache. Unlike a load, it is not moved behind the wait for the previous kernel.
__device__ __forceinline__ void prefetch(const uint4* at) { asm volatile("prefetch.global.L2 [%0];" ::"l"(at) : "memory"); }

__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

template <int NB,     // columns of x: 1 or 8
          int WARPS,  // of the block
          int KS,     // warps that share a tile
          int U,      // blocks of columns loaded at once
          bool XR,    // x in registers: at most KS * U blocks of columns
          bool FULL,  // exactly KS * U blocks
          bool SUB,   // weights are centred one by one
          bool ROTATE>  // x is f32 and not yet rotated: 4096 columns in tiles of 128, batch 1
__device__ __forceinline__ void gemv(const FixedGemvParams& p) {
    static_assert(WARPS % KS == 0);
    static_assert(!ROTATE || (FULL && XR && NB == 1 && 32 % WARPS == 0));
    constexpr int TPC = WARPS / KS;  // tiles at once
    constexpr uint32_t T = NB == 1 ? 16 : 8;
    extern __shared__ __align__(16) unsigned char smem[];
    const uint32_t n_chunks = XR ? 1 : (p.k_blocks + KS * U - 1) / (KS * U);
    const uint32_t kp = n_chunks * KS * U * BK, x_stride = kp + 8;
    const uint32_t batch = NB == 1 ? 1 : p.batch;
    __half* xs = reinterpret_cast<__half*>(smem);
    float* sums = reinterpret_cast<float*>(smem + static_cast<size_t>(batch) * x_stride * 2);  // [T][WARPS][16][NB]
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, kq = warp % KS, g = lane >> 2, t = lane & 3;
    const uint32_t n_groups = (p.tiles + TPC - 1) / TPC;
    let_next_start();

    // The first weights do not depend on the previous kernel.
    uint32_t load_tile = blockIdx.x * TPC + warp / KS, load_chunk = 0;
    // Where a warp has no block, it reads the first one and multiplies by zeros.
    const uint4* at = p.words + (static_cast<size_t>(load_tile) * p.k_blocks + (kq < p.k_blocks ? kq : 0)) * 32 + lane;
    const size_t tile_stride = static_cast<size_t>(gridDim.x) * TPC * p.k_blocks * 32;
    auto fetch = [&](uint4* v) {
        const bool there = load_tile < p.tiles;
#pragma unroll
        for (int u = 0; u < U; ++u) {
            const uint32_t block = XR ? u * KS : (load_chunk * U + u) * KS;
            v[u] = load_words(at + (FULL || block + kq < p.k_blocks ? block * 32 : 0), there);
        }
        if (XR || ++load_chunk == n_chunks) {
            load_chunk = 0;
            load_tile += gridDim.x * TPC;
            at += tile_stride;
        }
    };
    if ((lane & 7) == 0) {
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
#pragma unroll
            for (int u = 0; u < U; ++u) {
                if (load_tile + i * gridDim.x * TPC < p.tiles && (FULL || u * KS + kq < p.k_blocks)) {
                    prefetch(at + i * tile_stride + u * KS * 32);
                }
            }
        }
    }
    wait_for_previous();
    uint4 now[U], next[U];
    fetch(now);
    float back = 1.0f;
    if (ROTATE) {
        constexpr int TILES = 32 / WARPS;
        __shared__ uint32_t peaks[WARPS];
        float v[TILES][4];
        uint32_t peak = 0;
#pragma unroll
        for (int i = 0; i < TILES; ++i) {
            const uint32_t col = (warp * TILES + i) * 128 + lane * 4;
            *reinterpret_cast<float4*>(v[i]) = *reinterpret_cast<const float4*>(p.x_f32 + col);
            gosset::rht128(v[i], gosset::sign_nibble(p.signs, col));
#pragma unroll
            for (int j = 0; j < 4; ++j) peak = max(peak, __float_as_uint(v[i][j]) & 0x7fffffffu);
        }
        peak = __reduce_max_sync(0xffffffffu, peak);
        if (lane == 0) peaks[warp] = peak;
        __syncthreads();
        peak = __reduce_max_sync(0xffffffffu, peaks[lane % WARPS]);
        // A power of two that brings the largest to 2^14 or more, below 2^15.
        const int e = min(max(268 - static_cast<int>(peak >> 23), 1), 253);
        const float scale = __uint_as_float(e << 23);
        back = __uint_as_float((254 - e) << 23);
#pragma unroll
        for (int i = 0; i < TILES; ++i) {
            __half2 h[2] = {__floats2half2_rn(v[i][0] * scale, v[i][1] * scale), __floats2half2_rn(v[i][2] * scale, v[i][3] * scale)};
            *reinterpret_cast<uint2*>(xs + (warp * TILES + i) * 128 + lane * 4) = *reinterpret_cast<uint2*>(h);
        }
    } else {
#pragma unroll 1
    for (uint32_t b = 0; b < batch; ++b) {
        const __half* from = p.x + static_cast<size_t>(b) * p.cols;
        __half* to = xs + static_cast<size_t>(b) * x_stride;
        const uint32_t n_vectors = p.x_vectors ? p.cols / 8 : 0;
#pragma unroll 1
        for (uint32_t i = threadIdx.x; i < n_vectors; i += WARPS * 32) {
            reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(from)[i];
        }
#pragma unroll 1
        for (uint32_t k = n_vectors * 8 + threadIdx.x; k < kp; k += WARPS * 32) {
            to[k] = k < p.cols ? from[k] : __ushort_as_half(0);
        }
    }
    }
    __syncthreads();

    // Column g of the mma is row g of x; lanes beyond the batch work on row 0, for nothing.
    const __half* xl = xs + (g < batch ? static_cast<size_t>(g) * x_stride : 0) + kq * BK + t * (2 * PAIRS);
    auto load_x = [&](uint4* v, uint32_t chunk, int u) {
        const __half* from = xl + (static_cast<size_t>(chunk) * U + u) * (KS * BK);
#pragma unroll
        for (int q = 0; q < XV; ++q) {
            v[q] = *reinterpret_cast<const uint4*>(from + q / (XV / 2) * (BK / 2) + q % (XV / 2) * 8);
        }
    };
    uint4 xr[XR ? U * XV : 1];
    if (XR) {
#pragma unroll
        for (int u = 0; u < U; ++u) load_x(xr + u * XV, 0, u);
    }
    auto x_of = [&](uint4* v, uint32_t chunk, int u) {
        if (XR) {
#pragma unroll
            for (int q = 0; q < XV; ++q) v[q] = xr[u * XV + q];
        } else {
            load_x(v, chunk, u);
        }
    };
    auto pick = [](const uint4* v, int h, int pair) {
        const uint4 q = v[(h * PAIRS + pair) / 4];
        const int i = pair & 3;
        return i == 0 ? q.x : i == 1 ? q.y : i == 2 ? q.z : q.w;
    };

    // What 1024 and the offset add: the same for every row.
    constexpr int N = SUB ? 2 : PLACES;
    float fix[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    if (!SUB) {
        float d[N][4] = {};
#pragma unroll 1
        for (uint32_t chunk = 0; chunk < n_chunks; ++chunk) {
#pragma unroll
            for (int u = 0; u < U; ++u) {
                uint4 xv[XV];
                x_of(xv, chunk, u);
                products<N>(d, [](int, int, int) { return 0x3c003c00u; }, [&](int h, int pair) { return pick(xv, h, pair); });
            }
        }
        float place = 1.0f;
#pragma unroll
        for (int i = 0; i < N; ++i, place /= 1 << BITS) {
#pragma unroll
            for (int j = 0; j < 4; ++j) fix[j] += (1024.0f * place + kOffset) * d[i][j];
        }
    }

    uint32_t held = 0, first = blockIdx.x;
#pragma unroll 1
    for (uint32_t group = blockIdx.x; group < n_groups; group += gridDim.x) {
        float c[N][4] = {};
#pragma unroll 1
        for (uint32_t chunk = 0; chunk < n_chunks; ++chunk) {
            fetch(next);
#pragma unroll
            for (int u = 0; u < U; ++u) {
                uint32_t w[4][PAIRS];
                spread(now[u].x, w[0]);
                spread(now[u].y, w[1]);
                spread(now[u].z, w[2]);
                spread(now[u].w, w[3]);
                if (SUB) {
#pragma unroll
                    for (int i = 0; i < 4; ++i) center_all(w[i]);
                }
                uint4 xv[XV];
                x_of(xv, chunk, u);
                products<N>(c, [&](int h, int pair, int r) { return w[2 * h + r][pair]; },
                            [&](int h, int pair) { return pick(xv, h, pair); });
            }
#pragma unroll
            for (int u = 0; u < U; ++u) now[u] = next[u];
        }
        float total[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            float place = 1.0f;
            total[j] = -fix[j];
#pragma unroll
            for (int i = 0; i < N; ++i, place /= SUB ? 1 : 1 << BITS) total[j] += place * c[i][j];
        }
        float* mine = sums + static_cast<size_t>(held * WARPS + warp) * (16 * NB);
        if (NB == 1) {
            if (t == 0) {
                mine[g] = total[0];
                mine[g + 8] = total[2];
            }
        } else {
            *reinterpret_cast<float2*>(mine + g * 8 + 2 * t) = make_float2(total[0], total[1]);
            *reinterpret_cast<float2*>(mine + (g + 8) * 8 + 2 * t) = make_float2(total[2], total[3]);
        }
        if (++held < T && group + gridDim.x < n_groups) continue;
        // Sums of the tiles since `first`, added up over the warps of each.
        __syncthreads();
#pragma unroll 1
        for (uint32_t i = threadIdx.x; i < held * (TPC * 16 * NB); i += WARPS * 32) {
            const uint32_t slot = i / (TPC * 16 * NB), rest = i % (TPC * 16 * NB);
            const uint32_t local = rest / (16 * NB), e = rest % (16 * NB), b = e % NB;
            const uint32_t row = ((first + slot * gridDim.x) * TPC + local) * 16 + e / NB;
            if (row < p.rows && b < batch) {
                const float scale = p.scales[row] * (ROTATE ? back : p.x_scale == nullptr ? 1.0f : p.x_scale[b]);
                const float* from = sums + static_cast<size_t>(slot * WARPS + local * KS) * (16 * NB) + e;
                float sum = 0.0f;
#pragma unroll
                for (int k = 0; k < KS; ++k) sum += from[k * 16 * NB];
                p.y[static_cast<size_t>(b) * p.rows + row] = sum * scale;
            }
        }
        held = 0;
        first = group + gridDim.x;
        __syncthreads();
    }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(256) fixed_encode(const __grid_constant__ FixedEncodeParams p) {
    const size_t n = static_cast<size_t>((p.rows + 15) / 16) * p.k_blocks * 128;
    const size_t at = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (at >= n) return;
    const uint32_t i = at & 3, lane = at >> 2 & 31;
    const size_t block = at >> 7;
    const uint32_t row = static_cast<uint32_t>(block / p.k_blocks) * 16 + (lane >> 2) + 8 * (i & 1);
    const uint32_t col = static_cast<uint32_t>(block % p.k_blocks) * BK + (i >> 1) * (BK / 2) + (lane & 3) * (2 * PAIRS);
    uint32_t word = 0;
    if (row < p.rows) {
        const float* from = p.units + static_cast<size_t>(row) * p.cols;
#pragma unroll
        for (int e = 0; e < 2 * PAIRS; ++e) {
            const float unit = col + e < p.cols ? from[col + e] : 0.0f;
            const float level = floorf(__fdiv_rn(unit, p.step)) + (1 << (BITS - 1));
            const float v = fminf(fmaxf(level, 0.0f), (1 << BITS) - 1);
            word |= static_cast<uint32_t>(v) << (BITS * (e / 2) + 16 * (e & 1));
        }
    }
    p.words[at] = word;
}

#define GOSSET_FIXED(name, nb, warps, ks, u, full, sub, rotate)                                                    \
    extern "C" __global__ void __launch_bounds__(32 * warps, 1) name(const __grid_constant__ FixedGemvParams p) { \
        gemv<nb, warps, ks, u, full, full, sub, rotate>(p);                                                        \
    }

#ifndef GOSSET_FIXED_VARIANTS
// 4096 columns in whole blocks, the same with the rotation of x, and any number of columns.
GOSSET_FIXED(fixed_gemv1_full, 1, 16, 16, BITS, true, false, false)
GOSSET_FIXED(fixed_gemv1_rht, 1, 16, 16, BITS, true, false, true)
GOSSET_FIXED(fixed_gemv1_any, 1, 32, 16, 2, false, true, false)
GOSSET_FIXED(fixed_gemv8_full, 8, 16, 16, BITS, true, BITS == 4, false)
GOSSET_FIXED(fixed_gemv8_any, 8, 16, 16, 2, false, true, false)
#endif
