// Bias, optional norm and rotation of one head of queries or keys, by one warp.
#pragma once

// Columns i0, i1 of a pair: half a head apart, or neighbours.
template <typename P>
__device__ __forceinline__ unsigned pair_first(const P& p, unsigned i) {
    return p.interleaved ? 2 * i : i;
}
template <typename P>
__device__ __forceinline__ unsigned pair_second(const P& p, unsigned i) {
    return p.interleaved ? 2 * i + 1 : i + p.head_dim / 2;
}

// Turns of the pairs l + 32 j, j < PAIRS, of lane l at a position.
template <int PAIRS>
struct HeadTurns {
    float cos[PAIRS], sin[PAIRS];

    template <typename P>
    __device__ __forceinline__ HeadTurns(const P& p, unsigned position) {
#pragma unroll
        for (int j = 0; j < PAIRS; ++j) {
            const unsigned i = (threadIdx.x & 31) + 32 * j;
            // The angle is reduced in f64: its f32 form would be off by whole turns at long contexts.
            const double turns = static_cast<double>(position) * (i < p.head_dim / 2 ? p.turns[i] : 0.0);
            sincospif(2.0f * static_cast<float>(turns - rint(turns)), &sin[j], &cos[j]);
        }
    }
};

// Lane l holds pairs l + 32 j, j < PAIRS, of the head that starts at `x`: a[j] and b[j]. `bias`, `norm` and `turns` may be null.
template <int PAIRS, typename P>
__device__ __forceinline__ void rotate_head(const P& p, const float* x, const float* bias, const float* norm, const HeadTurns<PAIRS>* turns,
                                            float (&a)[PAIRS], float (&b)[PAIRS]) {
    const unsigned lane = threadIdx.x & 31, half = p.head_dim / 2;
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < PAIRS; ++j) {
        const unsigned i = lane + 32 * j, i0 = pair_first(p, i), i1 = pair_second(p, i);
        const bool in = i < half;
        a[j] = in ? x[i0] + (bias ? bias[i0] : 0.0f) : 0.0f;
        b[j] = in ? x[i1] + (bias ? bias[i1] : 0.0f) : 0.0f;
        sum += a[j] * a[j] + b[j] * b[j];
    }
    if (norm) {
#pragma unroll
        for (int d = 16; d > 0; d >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, d);
        const float scale = 1.0f / sqrtf(sum / static_cast<float>(p.head_dim) + p.eps);
#pragma unroll
        for (int j = 0; j < PAIRS; ++j) {
            const unsigned i = lane + 32 * j;
            if (i < half) {
                a[j] *= scale * norm[pair_first(p, i)];
                b[j] *= scale * norm[pair_second(p, i)];
            }
        }
    }
    if (turns == nullptr) return;
#pragma unroll
    for (int j = 0; j < PAIRS; ++j) {
        const float first = a[j] * turns->cos[j] - b[j] * turns->sin[j];
        b[j] = b[j] * turns->cos[j] + a[j] * turns->sin[j];
        a[j] = first;
    }
}

template <int PAIRS, typename P>
__device__ __forceinline__ void rotate_head(const P& p, const float* x, const float* bias, const float* norm, bool rotated,
                                            unsigned position, float (&a)[PAIRS], float (&b)[PAIRS]) {
    if (rotated) {
        const HeadTurns<PAIRS> turns(p, position);
        rotate_head<PAIRS>(p, x, bias, norm, &turns, a, b);
    } else {
        rotate_head<PAIRS>(p, x, bias, norm, static_cast<const HeadTurns<PAIRS>*>(nullptr), a, b);
    }
}
