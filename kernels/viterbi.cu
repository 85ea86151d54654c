// Search for the best strings of the bit-shift trellis: Viterbi's algorithm on integers, with the arithmetic of
// gosset-trellis/src/shift/viterbi.rs, so that the words are equal bit for bit.
//
//   after[suffix] = min over ways of (before[state >> SB] + base[state] - <weights[state], target>),  state = way 2^n + suffix
//
// with n = L - SB bits of a suffix and W = 2^SB ways. The sum carries its way in the lowest bits, where the minimum settles
// ties. Two passes as on the CPU: around the seam of the ring from all states, then the ring from the state found.
//
// A block serves sets of R strings, no more strings than threads; a set has `set_threads` threads, each with four
// suffixes at a time for all R strings, so
// that a table entry is read once per R sums. Metrics lie in shared memory, R to a slot. Up to SB = 6 they are updated in
// place: the W suffixes after a step that share their upper bits come from W suffixes before it, whose slots they take over,
// so that after step i the slot of a suffix is the suffix rotated right by i SB bits; slots are swizzled against conflicts.
// For SB = 8 there are few suffixes and two buffers. Ways go to global memory (4 bits at SB = 4, else 8) and are traced back
// by one thread per string.
//
// Shapes: values [rows, cols]; words [strings, words_per_string]; table 2^L entries as `launch/viterbi.rs` orders them.
// Grid: any; a block takes the batches blockIdx.x, blockIdx.x + gridDim.x, ... of (blockDim.x / set_threads) R strings.
// Block: set_threads times sets, set_threads = min(2^n / 4, the limit of the module), at least 32 in all.
// Shared memory: sets 2^n R 4 bytes (twice that at SB = 8), 48 bytes per string, 8 W + 8 bytes.
// Caller: gosset-cuda/src/launch/viterbi.rs.

#include "params.cuh"

#ifndef STEP_BITS
#error "STEP_BITS: bits that a step appends, 4, 5, 6 or 8"
#endif

namespace {

constexpr unsigned kAll = 0xffffffffu;
constexpr int SB = STEP_BITS;
constexpr int kMaxThreads = SB <= 5 ? 512 : 256;  // of a block
constexpr int kMinBlocks = SB <= 5 ? 1 : 2;
constexpr int FRACTION_BITS = 12;
constexpr int METRIC_CAP = 40 << 24;
constexpr int W = 1 << SB;
constexpr int P = 4;  // suffixes of a thread
constexpr bool IN_PLACE = SB < 8;
static_assert(SB == 4 || SB == 5 || SB == 6 || SB == 8);
// The threads of a group, which share slots, are in one warp.
static_assert(!IN_PLACE || W / P <= 32);

// The least sum: one instruction on devices of capability 9.0.
__device__ __forceinline__ int min_sum(int a, int b, int c) { return min(a + b, c); }

// Slots in another order within 128 bytes, so that slots that differ in any few neighbouring bits lie in different banks.
template <int R>
__device__ __forceinline__ uint32_t swizzle(uint32_t slot) {
    constexpr int FB = R == 8 ? 2 : R == 4 ? 3 : 4;
    uint32_t f = 0;
#pragma unroll
    for (int s = FB; s < 16; s += FB) f ^= slot >> s;
    return slot ^ (f & ((1u << FB) - 1));
}

// The lowest `n` bits rotated right, 0 <= by < n.
__device__ __forceinline__ uint32_t rotr(uint32_t x, uint32_t by, uint32_t n) {
    return ((x >> by) | (x << (n - by))) & ((1u << n) - 1);
}
// `x` as a multiple of 2^(low_bits - FRACTION_BITS), in units of 2^-FRACTION_BITS; NaN counts as the least.
__device__ __forceinline__ int to_fixed(float x, int low_bits) {
    x = x > 4.5f ? 4.5f : x >= -4.5f ? x : -4.5f;
    const float scale = static_cast<float>(1u << (FRACTION_BITS - low_bits));
    return (__float2int_rz(__fadd_rn(__fmul_rn(x, scale), 32768.5f)) - 32768) << low_bits;
}

// What a step should come near to: the negated numbers and half their squared length.
struct Target {
    int t0, t1, half;
};

// Shared memory of a block. Strings are counted over all sets.
template <int R>
struct Shared {
    unsigned char* metrics;    // [sets][2^n][R], or twice that
    Target* target;            // [2][strings]: this step and the next
    int* least;                // [3][strings]: before a step, after it, and after the next
    uint32_t* way_slot;        // [2][W]: bytes of the part of a slot that a way decides
    uint32_t* mask;            // [2]: halves of weights that are read
    unsigned long long* best;  // [strings]: least metric and its suffix
};

// Row and column of a position, from the first of the string's region.
__device__ __forceinline__ void place(const ViterbiParams& p, uint32_t position, uint32_t& row, uint32_t& col) {
    if (p.tiles) {
        const uint32_t lane = position >> 3, reg = (position >> 1) & 3, half = position & 1;
        row = (lane >> 2) + 8 * (reg & 1);
        col = 2 * (lane & 3) + 8 * (reg >> 1) + half;
    } else {
        row = 0;
        col = position;
    }
}

// The numbers of one string at a step, and which of them are read; `origin` is the place of its first number.
__device__ __forceinline__ void load_target(const ViterbiParams& p, const float* origin, uint32_t step, float& x0, float& x1,
                                            uint32_t& mask) {
    uint32_t row, col;
    place(p, step * p.v, row, col);
    const bool r0 = row < p.region_rows && col < p.region_cols;
    const bool r1 = p.v == 2 && r0 && col + 1 < p.region_cols;
    const float* from = origin + static_cast<uint64_t>(row) * p.cols + col;
    x0 = r0 ? from[0] : 0.0f;
    x1 = r1 ? from[1] : 0.0f;
    mask = (r0 ? 0xffffu : 0) | (r1 ? 0xffff0000u : 0);
}

__device__ __forceinline__ Target make_target(float x0, float x1) {
    const int a = to_fixed(x0, SB / 2), b = to_fixed(x1, SB / 2);
    return Target{-a, -b, (a * a + b * b) >> 1};
}

// R metrics of a slot, four or two at a time.
template <int R>
__device__ __forceinline__ void load_metrics(int* m, const unsigned char* from) {
    if (R >= 4) {
#pragma unroll
        for (int r = 0; r < R; r += 4) *reinterpret_cast<int4*>(m + r) = *reinterpret_cast<const int4*>(from + r * 4);
    } else {
        *reinterpret_cast<int2*>(m) = *reinterpret_cast<const int2*>(from);
    }
}

template <int R>
__device__ __forceinline__ void store_metrics(unsigned char* to, const int* m) {
    if (R >= 4) {
#pragma unroll
        for (int r = 0; r < R; r += 4) *reinterpret_cast<int4*>(to + r * 4) = *reinterpret_cast<const int4*>(m + r);
    } else {
        *reinterpret_cast<int2*>(to) = *reinterpret_cast<const int2*>(m);
    }
}

// Searches `n_pass` steps from step `first` on, from known states or from all. Metrics after the last are in shared memory,
// ways in row i of `ways` for the i-th step. The thread of a string, tid < n_strings, notes whether a number is not zero.
template <int R>
__device__ __forceinline__ void pass(const ViterbiParams& p, const Shared<R>& sh, uint32_t n_strings, uint32_t first,
                                     uint32_t n_pass, const float* origin, bool& nonzero, unsigned char* ways, bool known,
                                     const uint32_t* start) {
    const uint32_t n = p.state_bits - SB;
    const uint32_t S = 1u << n, NT = S / P, TL = min(NT, 32u);
    const uint32_t tid = threadIdx.x, TS = p.set_threads, q = tid / TS, tl = tid % TS;
    const uint32_t way_bytes = SB <= 4 ? S / 2 : S;
    unsigned char* met = sh.metrics + static_cast<size_t>(q) * S * R * 4 * (IN_PLACE ? 1 : 2);
    constexpr uint32_t SLOT = R * 4;
    // Rotated by `rho`, the upper SB bits of a suffix, which a way decides.
    auto note_ways = [&](uint32_t* to, uint32_t rho) {
        for (uint32_t w = tid; IN_PLACE && w < W; w += blockDim.x) to[w] = swizzle<R>(rotr(w << (n - SB), rho, n)) * SLOT;
    };
    // Initial metrics.
    for (uint32_t s = tl; s < S; s += TS) {
        int* m = reinterpret_cast<int*>(met + (IN_PLACE ? swizzle<R>(s) : s) * SLOT);
#pragma unroll
        for (int r = 0; r < R; ++r) m[r] = known ? (s == (start[q * R + r] & (S - 1)) ? 0 : METRIC_CAP) : 0;
    }
    if (tid < n_strings) {
        float x0, x1;
        uint32_t mask;
        load_target(p, origin, first, x0, x1, mask);
        nonzero |= !(x0 == 0.0f && x1 == 0.0f);
        sh.target[tid] = make_target(x0, x1);
        if (tid == 0) sh.mask[0] = mask;
        sh.least[tid] = 0;
        sh.least[n_strings + tid] = 0x7fffffff;
        sh.least[2 * n_strings + tid] = 0x7fffffff;
    }
    note_ways(sh.way_slot, 0);
    __syncthreads();

    uint32_t rho = 0, step = first;
    uint32_t l_before = 0, l_after = 1, l_next = 2;
#pragma unroll 1
    for (uint32_t i = 0; i < n_pass; ++i) {
        const uint32_t cur = i & 1, nxt = cur ^ 1;
        const uint32_t next_step = step + 1 == p.n_steps ? 0 : step + 1;
        uint32_t next_rho = rho + SB;
        if (IN_PLACE) {
            while (next_rho >= n) next_rho -= n;
        }
        float x0 = 0, x1 = 0;
        uint32_t next_mask = 0;
        const bool loads = tid < n_strings && i + 1 < n_pass;
        if (loads) load_target(p, origin, next_step, x0, x1, next_mask);

        int t0[R], t1[R], bias[R], least[R];
#pragma unroll
        for (int r = 0; r < R; ++r) {
            const Target t = sh.target[cur * n_strings + q * R + r];
            t0[r] = t.t0;
            t1[r] = t.t1;
            bias[r] = ((sh.least[l_before * n_strings + q * R + r] - t.half) >> SB) << SB;
            least[r] = 0x7fffffff;
        }
        const uint32_t mask = sh.mask[cur];
        const unsigned char* before = IN_PLACE ? met : met + static_cast<size_t>(cur) * S * SLOT;
        unsigned char* after = IN_PLACE ? met : met + static_cast<size_t>(nxt) * S * SLOT;

#pragma unroll 1
        for (uint32_t T = tl; T < NT; T += TS) {
            const uint4* tab = p.table + (static_cast<size_t>(T / TL) * W * TL + T % TL);
            const uint32_t g = (4 * T) >> SB;
            const uint32_t ag = IN_PLACE ? swizzle<R>(rotr(g, rho, n)) * SLOT : g * SLOT;
            int best[P][R];
#pragma unroll
            for (int j = 0; j < P; ++j)
#pragma unroll
                for (int r = 0; r < R; ++r) best[j][r] = 0x7fffffff;
            uint4 next = __ldg(tab);
#pragma unroll 2
            for (uint32_t w = 0; w < W; ++w) {
                const uint4 e4 = next;
                if (w + 1 < W) next = __ldg(tab + (w + 1) * TL);
                const uint32_t at = IN_PLACE ? ag ^ sh.way_slot[cur * W + w]
                                             : ag + (n >= SB ? w << (n - SB) : w >> (SB - n)) * SLOT;
                int b[R];
                load_metrics<R>(b, before + at);
                const uint32_t e[4] = {e4.x, e4.y, e4.z, e4.w};
#pragma unroll
                for (int j = 0; j < P; ++j) {
                    const uint32_t c = e[j] & mask;
                    const int c0 = static_cast<short>(c), c1 = static_cast<int>(c) >> 16;
                    const int base = (((c0 * c0 + c1 * c1) >> (1 + SB)) << SB) | static_cast<int>(w);
#pragma unroll
                    for (int r = 0; r < R; ++r) {
                        best[j][r] = min_sum(c1 * t1[r] + (c0 * t0[r] + base), b[r], best[j][r]);
                    }
                }
            }
            if (IN_PLACE) __syncwarp();
#pragma unroll
            for (int j = 0; j < P; ++j) {
                const uint32_t at = IN_PLACE ? ag ^ sh.way_slot[cur * W + ((4 * T + j) & (W - 1))] : (4 * T + j) * SLOT;
                int m[R];
#pragma unroll
                for (int r = 0; r < R; ++r) {
                    m[r] = min((best[j][r] & ~(W - 1)) - bias[r], METRIC_CAP);
                    least[r] = min(least[r], m[r]);
                }
                store_metrics<R>(after + at, m);
            }
#pragma unroll
            for (int r = 0; r < R; ++r) {
                unsigned char* to = ways + (q * R + r) * p.ways_stride + static_cast<uint64_t>(i) * way_bytes;
                constexpr int BITS = SB <= 4 ? 4 : 8;
                uint32_t v = 0;
#pragma unroll
                for (int j = 0; j < P; ++j) v |= static_cast<uint32_t>(best[j][r] & (W - 1)) << (BITS * j);
                if (SB <= 4) {
                    reinterpret_cast<unsigned short*>(to)[T] = static_cast<unsigned short>(v);
                } else {
                    reinterpret_cast<uint32_t*>(to)[T] = v;
                }
            }
        }
        if (TS >= 32) {
#pragma unroll
            for (int r = 0; r < R; ++r) {
                const int m = __reduce_min_sync(kAll, least[r]);
                if ((tid & 31) == r) atomicMin(&sh.least[l_after * n_strings + q * R + r], m);
            }
        } else {
#pragma unroll
            for (int r = 0; r < R; ++r) atomicMin(&sh.least[l_after * n_strings + q * R + r], least[r]);
        }
        if (loads) {
            nonzero |= !(x0 == 0.0f && x1 == 0.0f);
            sh.target[nxt * n_strings + tid] = make_target(x0, x1);
            if (tid == 0) sh.mask[nxt] = next_mask;
        }
        note_ways(sh.way_slot + nxt * W, next_rho);
        __syncthreads();
        // Read no more, and the least after the step after the next.
        if (tid < n_strings) sh.least[l_before * n_strings + tid] = 0x7fffffff;
        const uint32_t l = l_before;
        l_before = l_after;
        l_after = l_next;
        l_next = l;
        step = next_step;
        rho = next_rho;
    }
    __syncthreads();
}

// The way into a suffix at a step of a pass.
__device__ __forceinline__ uint32_t way_of(const unsigned char* ways, uint64_t row, uint32_t suffix) {
    if (SB <= 4) return ways[row + suffix / 2] >> (4 * (suffix & 1)) & 15;
    return ways[row + suffix];
}

template <int R>
__device__ __forceinline__ void viterbi(const ViterbiParams& p) {
    extern __shared__ __align__(16) unsigned char smem[];
    const uint32_t n = p.state_bits - SB, S = 1u << n;
    const uint32_t sets = blockDim.x / p.set_threads, n_local = sets * R;
    const uint32_t tid = threadIdx.x, TS = p.set_threads, q = tid / TS, tl = tid % TS;
    Shared<R> sh;
    unsigned char* at = smem;
    sh.metrics = at;
    at += static_cast<size_t>(sets) * S * R * 4 * (IN_PLACE ? 1 : 2);
    sh.best = reinterpret_cast<unsigned long long*>(at);
    at += 8 * n_local;
    sh.target = reinterpret_cast<Target*>(at);
    at += 2 * n_local * sizeof(Target);
    sh.least = reinterpret_cast<int*>(at);
    at += 3 * n_local * 4;
    sh.way_slot = reinterpret_cast<uint32_t*>(at);
    at += 2 * W * 4;
    sh.mask = reinterpret_cast<uint32_t*>(at);
    at += 8;
    uint32_t* starts = reinterpret_cast<uint32_t*>(at);  // [n_local]
    const uint32_t way_bytes = SB <= 4 ? S / 2 : S;
    unsigned char* ways = p.ways + static_cast<uint64_t>(blockIdx.x) * n_local * p.ways_stride;
    const unsigned char* mine = ways + static_cast<uint64_t>(tid) * p.ways_stride;

#pragma unroll 1
    for (uint32_t batch = blockIdx.x * n_local; batch < p.n_strings; batch += gridDim.x * n_local) {
        const float* origin = nullptr;
        uint32_t string = 0;
        bool nonzero = false, owns = false;
        if (tid < n_local) {
            // Strings beyond the last are searched as the last one and not written.
            owns = batch + tid < p.n_strings;
            const uint32_t i = owns ? batch + tid : p.n_strings - 1;
            const uint32_t row = p.first_row + i / p.class_cols, col = p.first_col + i % p.class_cols;
            string = row * p.tiles_per_row + col;
            origin = p.values + static_cast<uint64_t>(row) * (p.tiles ? 16 : 1) * p.cols + col * 16;
        }
#pragma unroll 1
        for (uint32_t stage = 0; stage < 2; ++stage) {
            // Around the seam from all states, then the ring from the state found there; the state after its last step is
            // the one before the first, so that step needs no search.
            pass<R>(p, sh, n_local, stage == 0 ? p.n_steps - p.seam : 0, stage == 0 ? 2 * p.seam : p.n_steps - 1, origin,
                    nonzero, ways, stage == 1, starts);
            if (stage == 1) break;
            // The suffix of the least metric, the smallest of several.
            if (tid < n_local) sh.best[tid] = ~0ull;
            __syncthreads();
            // After an even number of steps: the first of two buffers.
            const unsigned char* met = sh.metrics + static_cast<size_t>(q) * S * R * 4 * (IN_PLACE ? 1 : 2);
            const uint32_t rho = IN_PLACE ? SB * 2 * p.seam % n : 0;
#pragma unroll 1
            for (int r = 0; r < R; ++r) {
                unsigned long long least = ~0ull;
#pragma unroll 1
                for (uint32_t s = tl; s < S; s += TS) {
                    const uint32_t slot = IN_PLACE ? swizzle<R>(rotr(s, rho, n)) : s;
                    const uint32_t metric = reinterpret_cast<const uint32_t*>(met + slot * R * 4)[r];
                    least = min(least, static_cast<unsigned long long>(metric) << 32 | s);
                }
                atomicMin(&sh.best[q * R + r], least);
            }
            __syncthreads();
            if (tid < n_local) {
                uint32_t suffix = static_cast<uint32_t>(sh.best[tid]), state = 0;
#pragma unroll 1
                for (uint32_t i = 2 * p.seam; i-- > p.seam - 1;) {
                    state = way_of(mine, static_cast<uint64_t>(i) * way_bytes, suffix) << n | suffix;
                    suffix = state >> SB;
                }
                starts[tid] = state;
            }
            __syncthreads();
        }
        if (owns) {
            // The newest bits of each state, last step first, into words from the last on.
            uint32_t* to = p.words + static_cast<uint64_t>(string) * p.words_per_string + p.words_per_string;
            const uint32_t keep = nonzero ? kAll : 0;
            uint32_t state = starts[tid], suffix = state >> SB, bits = SB;
            unsigned long long buffer = state & (W - 1);
#pragma unroll 1
            for (uint32_t i = p.n_steps - 1; i-- > 0;) {
                state = way_of(mine, static_cast<uint64_t>(i) * way_bytes, suffix) << n | suffix;
                suffix = state >> SB;
                if (bits >= 32) {
                    *--to = static_cast<uint32_t>(buffer) & keep;
                    buffer >>= 32;
                    bits -= 32;
                }
                buffer |= static_cast<unsigned long long>(state & (W - 1)) << bits;
                bits += SB;
            }
            *--to = static_cast<uint32_t>(buffer) & keep;
        }
        __syncthreads();
    }
}

}  // namespace

#define GOSSET_VITERBI(r)                                                                                             \
    extern "C" __global__ void __launch_bounds__(kMaxThreads, kMinBlocks)                                             \
        viterbi_r##r(const __grid_constant__ ViterbiParams p) {                                                       \
        viterbi<r>(p);                                                                                                \
    }

GOSSET_VITERBI(8)
GOSSET_VITERBI(4)
#if STEP_BITS == 4
GOSSET_VITERBI(2)
#endif
