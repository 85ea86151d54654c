// Rows of halves to pages under the bit-shift trellis: the bytes that the CPU codec writes (gosset-kv/src/shift, which states the order of operations;
// nothing here is fused or reordered).
//
// One block per vector: into the frame, scale, then Viterbi's algorithm with a metric per state in shared memory. Keys are taken as attention sees them:
// less the rotated mean, times a factor per rotary pair. Values: signs and a Walsh-Hadamard transform. A walk goes 24 steps to either side of the seam of
// the ring, from where the state at the seam is traced; another one goes around from there.
//
// A step: the least metric over the 2^k states with each suffix and which of them had it (`ways`, for the way back), then metrics of all states, whose
// points stay in registers.
//
// Grid (64 * n_pages, 2 * kv_heads, layers): row; keys of all heads, then values; layer. Block: 256. Dynamic shared memory: metrics, least, ways.
// Defines: KV_STATE_BITS (10, 12). Caller: gosset-cuda/src/launch/kv.rs.

#include "kv_shift.cuh"
#include "model.cuh"
#include "params.cuh"

namespace {

using namespace kv;

constexpr unsigned kThreads = 256, kBits = KV_STATE_BITS, kStates = 1u << kBits, kPer = kStates / kThreads;
constexpr unsigned kReach = 24, kMaxDim = 128, kWarps = kThreads / 32;
constexpr float kFar = 1e30f, kMostValue = 1099511627776.0f, kMostTarget = 64.0f;
constexpr uint32_t kAllLanes = 0xffffffffu;

struct Shared {
    float y[kMaxDim], squares[kMaxDim], target[kMaxDim];
    float weight[kMaxDim / 2];
    uint16_t way_at[kMaxDim];  // Of the steps of a walk.
    uint16_t state[kMaxDim / 2], end[kMaxDim / 2];
    uint8_t bits[kMaxDim / 2];  // Of steps that have some.
    float best[kThreads];
    uint32_t from[kThreads];
    uint32_t n, seam;
};

// The lesser of two, the lower number of equal ones.
__device__ __forceinline__ void keep_least(float& best, uint32_t& from, float other, uint32_t other_from) {
    if (other < best || (other == best && other_from < from)) {
        best = other;
        from = other_from;
    }
}

// least[u] and ways[u] of states u + h 2^(L - k). All threads; least and ways are there afterwards.
__device__ __forceinline__ void fold(Shared& s, const float* metrics, float* least, uint8_t* ways, unsigned k) {
    const unsigned tid = threadIdx.x, log = kBits - k, suffixes = 1u << log, n = 1u << k;
    if (suffixes >= kThreads) {
        for (unsigned u = tid; u < suffixes; u += kThreads) {
            float best = metrics[u];
            uint32_t from = 0;
#pragma unroll 4
            for (unsigned h = 1; h < n; ++h) {
                const float m = metrics[(h << log) + u];
                if (m < best) best = m, from = h;
            }
            least[u] = best;
            ways[u] = static_cast<uint8_t>(from);
        }
    } else {
        // Threads share a suffix: thread tid takes every (256 >> log)-th of its states.
        float best = metrics[tid];
        uint32_t from = tid >> log;
#pragma unroll 4
        for (unsigned i = tid + kThreads; i < kStates; i += kThreads) {
            const float m = metrics[i];
            if (m < best) best = m, from = i >> log;
        }
        for (unsigned o = suffixes; o < 32; o *= 2) {
            const float other = __shfl_xor_sync(kAllLanes, best, o);
            const uint32_t other_from = __shfl_xor_sync(kAllLanes, from, o);
            keep_least(best, from, other, other_from);
        }
        s.best[tid] = best;
        s.from[tid] = from;
        __syncthreads();
        if (tid < suffixes) {
            for (unsigned i = tid + max(suffixes, 32u); i < kThreads; i += max(suffixes, 32u)) keep_least(best, from, s.best[i], s.from[i]);
            least[tid] = best;
            ways[tid] = static_cast<uint8_t>(from);
            ways[suffixes + tid] = static_cast<uint8_t>(from >> 8);
        }
    }
    __syncthreads();
}

// Where the states of one thread lie, and how they are reached.
struct Points {
    float c0[kPer], c1[kPer], energy[kPer];
};

// Metrics after a step.
__device__ __forceinline__ void extend(const Points& p, float* metrics, const float* least, unsigned k, float weight, float x0, float x1) {
#pragma unroll
    for (unsigned i = 0; i < kPer; ++i) {
        const unsigned state = threadIdx.x + i * kThreads;
        const float cost = __fsub_rn(__fsub_rn(p.energy[i], __fmul_rn(x0, p.c0[i])), __fmul_rn(x1, p.c1[i]));
        metrics[state] = __fadd_rn(least[state >> k], __fmul_rn(weight, cost));
    }
    __syncthreads();
}

// Bytes of ways of a step.
__device__ __forceinline__ unsigned way_bytes(unsigned k) { return (1u << (kBits - k)) * (k > 8 ? 2 : 1); }
__device__ __forceinline__ unsigned before(const uint8_t* ways, unsigned state, unsigned k) {
    const unsigned u = state >> k, suffixes = 1u << (kBits - k);
    const unsigned h = ways[u] | (k > 8 ? ways[suffixes + u] << 8 : 0);
    return h << (kBits - k) | u;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads) kv_shift_encode(const __grid_constant__ KvShiftEncodeParams p) {
    extern __shared__ __align__(16) uint8_t dynamic[];
    __shared__ Shared s;
    float* const metrics = reinterpret_cast<float*>(dynamic);
    float* const least = metrics + kStates;
    uint8_t* const ways = reinterpret_cast<uint8_t*>(least + kStates / 4);
    const unsigned tid = threadIdx.x, lane = tid & 31;
    const unsigned d = p.head_dim, half = d / 2, row = blockIdx.x % kPageRows, page = p.first_page + blockIdx.x / kPageRows;
    const bool is_key = blockIdx.y < p.kv_heads;
    const unsigned head = is_key ? blockIdx.y : blockIdx.y - p.kv_heads, layer = blockIdx.z, line = layer * p.kv_heads + head;
    const unsigned position = p.first_position + page * kPageRows + row;

    const uint8_t* pattern = is_key ? p.key_bits + line * half : p.value_bits;
    wait_for_predecessor();
    let_successor_start();

    // Into the frame.
    const __half* x = (is_key ? p.keys : p.values) + (static_cast<size_t>(line) * p.rows + position % p.rows) * p.row_stride;
    if (is_key) {
        if (tid < half) {
            const unsigned i = p.interleaved ? 2 * tid : tid, j = p.interleaved ? 2 * tid + 1 : tid + half;
            float a = __half2float(x[i]), b = __half2float(x[j]);
            if (p.key_means != nullptr) {
                const float2 turn = p.rotations[static_cast<size_t>(position) * half + tid];
                const float m0 = p.key_means[line * d + i], m1 = p.key_means[line * d + j];
                a = __fsub_rn(a, __fsub_rn(__fmul_rn(m0, turn.x), __fmul_rn(m1, turn.y)));
                b = __fsub_rn(b, __fadd_rn(__fmul_rn(m0, turn.y), __fmul_rn(m1, turn.x)));
            }
            const float scale = p.key_scales[line * half + tid];
            s.y[2 * tid] = __fmul_rn(fminf(fmaxf(a, -kMostValue), kMostValue), scale);
            s.y[2 * tid + 1] = __fmul_rn(fminf(fmaxf(b, -kMostValue), kMostValue), scale);
        }
    } else {
        float v = 0.0f;
        if (tid < d) {
            v = __half2float(x[tid]);
            if (p.value_signs[layer * (d / 32) + tid / 32] >> (tid & 31) & 1) v = -v;
            s.y[tid] = v;
        }
        for (unsigned m = 1; m < d; m *= 2) {
            __syncthreads();
            const float other = tid < d ? s.y[tid ^ m] : 0.0f;
            v = tid & m ? __fsub_rn(other, v) : __fadd_rn(v, other);
            __syncthreads();
            if (tid < d) s.y[tid] = v;
        }
        if (tid < d) s.y[tid] = __fmul_rn(v, p.value_scale);
    }
    __syncthreads();
    // Scale.
    if (tid < d) s.squares[tid] = s.target[tid] = __fmul_rn(s.y[tid], s.y[tid]);
    for (unsigned h = half; h > 0; h /= 2) {
        __syncthreads();
        if (tid < h) {
            s.squares[tid] = __fadd_rn(s.squares[tid], s.squares[tid + h]);
            s.target[tid] = fmaxf(s.target[tid], s.target[tid + h]);
        }
    }
    __syncthreads();
    unsigned field = 0;
    const float mean = fmaxf(__fmul_rn(s.squares[0], is_key ? p.key_shares[line] : p.value_share), __fmul_rn(s.target[0], 0.125f));
    if (mean != 0.0f) {
        const uint32_t bits = __float_as_uint(mean), m = bits & 0x7fffffu;
        // Mantissas of 2^(1/8), 2^(3/8), 2^(5/8), 2^(7/8).
        const int reached = (m >= 0x0b95c2u) + (m >= 0x25fed7u) + (m >= 0x45672au) + (m >= 0x6ac0c7u);
        field = min(max(4 * (static_cast<int>(bits >> 23) - 127) + reached + 129, 1), 255);
    }
    const float inverse = p.inverses[field];
    // Targets take the place of what the largest square was found in.
    __syncthreads();

    // Steps that have bits.
    if (tid < 32) {
        unsigned n = 0, end = 0;
        for (unsigned first = 0; first < half; first += 32) {
            const unsigned t = first + lane, k = t < half ? pattern[t] : 0, has = __ballot_sync(kAllLanes, k > 0);
            unsigned sum = k;
            for (unsigned o = 1; o < 32; o *= 2) {
                const unsigned other = __shfl_up_sync(kAllLanes, sum, o);
                if (lane >= o) sum += other;
            }
            if (k > 0) {
                const unsigned at = n + __popc(has & ((1u << lane) - 1));
                const float factor = is_key ? p.key_targets[line * half + t] : p.value_targets[t];
                s.bits[at] = k;
                s.end[at] = end + sum;
                s.weight[at] = is_key ? p.key_weights[line * half + t] : 1.0f;
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const float target = __fmul_rn(__fmul_rn(s.y[2 * t + i], inverse), factor);
                    s.target[2 * at + i] = fminf(fmaxf(target, -kMostTarget), kMostTarget);
                }
            }
            n += __popc(has);
            end += __shfl_sync(kAllLanes, sum, 31);
        }
        if (lane == 0) s.n = n;
    }
    Points points;
#pragma unroll
    for (unsigned i = 0; i < kPer; ++i) {
        const uint32_t word = __ldg(p.table + ((tid + i * kThreads) * p.multiplier >> 7 & 1023));
        const float2 c = __half22float2(*reinterpret_cast<const __half2*>(&word));
        points.c0[i] = c.x;
        points.c1[i] = c.y;
        points.energy[i] = __fmul_rn(__fadd_rn(__fmul_rn(c.x, c.x), __fmul_rn(c.y, c.y)), 0.5f);
    }
    __syncthreads();

    const unsigned n = s.n;
    // Two walks: around the seam, then around the ring from there.
    for (unsigned walk = 0; walk < 2; ++walk) {
        const unsigned len = walk == 0 ? 2 * kReach : n, back = walk == 0 ? n * ((kReach + n - 1) / n) - kReach : 0;
        unsigned at = 0, step = back % n;
        for (unsigned i = 0; i < len; ++i) {
            const unsigned k = s.bits[step];
            if (i == 0) {
                const unsigned suffixes = kStates >> k;
                for (unsigned u = tid; u < suffixes; u += kThreads) least[u] = walk == 0 || u == (s.seam & (suffixes - 1)) ? 0.0f : kFar;
                __syncthreads();
            } else {
                // The first walk is traced to the seam, no further.
                if (walk == 0 && i <= kReach) at = 0;
                fold(s, metrics, least, ways + at, k);
                if (tid == 0) s.way_at[i] = at;
                at += (way_bytes(k) + 3) & ~3u;
            }
            extend(points, metrics, least, k, s.weight[step], s.target[2 * step], s.target[2 * step + 1]);
            step = step + 1 == n ? 0 : step + 1;
        }
        if (walk == 0) {
            float best = metrics[tid];
            uint32_t from = tid;
            for (unsigned i = tid + kThreads; i < kStates; i += kThreads) {
                if (metrics[i] < best) best = metrics[i], from = i;
            }
            for (unsigned o = 1; o < 32; o *= 2) {
                const float other = __shfl_xor_sync(kAllLanes, best, o);
                const uint32_t other_from = __shfl_xor_sync(kAllLanes, from, o);
                keep_least(best, from, other, other_from);
            }
            if (lane == 0) s.best[tid / 32] = best, s.from[tid / 32] = from;
            __syncthreads();
            if (tid == 0) {
                for (unsigned w = 1; w < kWarps; ++w) keep_least(best, from, s.best[w], s.from[w]);
                unsigned state = from, at_step = (back + len - 1) % n;
                for (unsigned i = len - 1; i >= kReach; --i) {
                    state = before(ways + s.way_at[i], state, s.bits[at_step]);
                    at_step = at_step == 0 ? n - 1 : at_step - 1;
                }
                s.seam = state;
            }
        } else if (tid == 0) {
            unsigned state = s.seam;
            for (unsigned i = n - 1;; --i) {
                s.state[i] = state;
                if (i == 0) break;
                state = before(ways + s.way_at[i], state, s.bits[i]);
            }
        }
        __syncthreads();
    }

    // Words of the string, first bit highest.
    const unsigned string_bits = s.end[n - 1], words = string_bits / 32, left = string_bits / 8 % 4;
    const size_t page_bytes = static_cast<size_t>(kPageRows) * (1 + string_bits / 8);
    uint8_t* out = (is_key ? p.key_pages : p.value_pages) + (static_cast<size_t>(line) * p.pages + page) * page_bytes;
    if (tid == 0) out[row] = static_cast<uint8_t>(field);
    if (tid <= words && tid * 32 < string_bits) {
        uint32_t word = 0;
        const int begin = 32 * tid;
        for (unsigned i = 0; i < n; ++i) {
            const int k = s.bits[i], last = static_cast<int>(s.end[i]) - begin;  // The step's bits end at bit `last` of the word.
            if (last <= 0 || last - k >= 32) continue;
            const uint32_t bits = s.state[i] & ((1u << k) - 1);
            word |= last <= 32 ? bits << (32 - last) : bits >> (last - 32);
        }
        if (tid < words) {
            reinterpret_cast<uint32_t*>(out + kPageRows)[tid * kPageRows + row] = word;
        } else {
            for (unsigned i = 0; i < left; ++i) out[kPageRows * (1 + 4 * words) + row * left + i] = static_cast<uint8_t>(word >> (24 - 8 * i));
        }
    }
}
