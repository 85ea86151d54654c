// Pages under the bit-shift trellis (kv_shift.cuh) to rows of halves as attention takes them, and rows between rings.
//
// kv_shift_decode: one warp per vector; keys as they are after the rotary embedding, values in their own coordinates. Grid (pages * 8, 2 * kv_heads), block 256.
// kv_copy_rows: 16 bytes per thread. Grid-stride. Position p is in row p % rows on both sides.
// Caller: gosset-cuda/src/launch/kv.rs.

#include "kv_shift.cuh"
#include "model.cuh"
#include "model_rope.cuh"
#include "params.cuh"

namespace {

using namespace kv;

// Strings of a page, word by word.
struct Page {
    const uint8_t* bytes;
    unsigned words, left;

    __device__ __forceinline__ uint32_t word(unsigned w, unsigned row) const {
        if (w < words) return reinterpret_cast<const uint32_t*>(bytes + kPageRows)[w * kPageRows + row];
        const uint8_t* at = bytes + kPageRows * (1 + 4 * words) + row * left;
        uint32_t x = 0;
        for (unsigned i = 0; i < left; ++i) x |= static_cast<uint32_t>(at[i]) << (24 - 8 * i);
        return x;
    }
    // The 32 bits ahead of bit `end`.
    __device__ __forceinline__ uint32_t ahead(unsigned end, unsigned row) const {
        const unsigned w = end / 32, turn = end % 32;
        const uint32_t hi = w > 0 ? word(w - 1, row) : left == 0 ? word(words - 1, row) : __funnelshift_l(word(words, row), word(words - 1, row), 8 * left);
        return turn == 0 ? hi : __funnelshift_l(word(w, row), hi, turn);
    }
};

// Pair `i` of a row, in the frame, times the scale of the vector.
__device__ __forceinline__ float2 pair_of(const KvShiftDecodeParams& p, const Page& page, const uint16_t* ends, unsigned i, unsigned row, float scale) {
    const unsigned end = ends[i];
    if (end == (i > 0 ? ends[i - 1] : 0)) return make_float2(0.0f, 0.0f);
    const uint32_t entry = __ldg(p.table + (page.ahead(end, row) * p.multiplier >> 7 & 1023));
    const float2 c = __half22float2(*reinterpret_cast<const __half2*>(&entry));
    return make_float2(c.x * scale, c.y * scale);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(256) kv_shift_decode(const __grid_constant__ KvShiftDecodeParams p) {
    const unsigned lane = threadIdx.x & 31, row = blockIdx.x % 8 * 8 + threadIdx.x / 32, number = p.first_page + blockIdx.x / 8;
    const bool is_value = blockIdx.y >= p.kv_heads;
    const unsigned head = is_value ? blockIdx.y - p.kv_heads : blockIdx.y, half = p.head_dim / 2, position = p.first_position + number * kPageRows + row;
    const Strings x(is_value ? p.value_bits : p.key_bits);
    const Page page = {(is_value ? p.value_pages : p.key_pages) + (static_cast<size_t>(head) * p.pages + number) * x.page_bytes, x.words, x.left};
    wait_for_predecessor();
    let_successor_start();
    const unsigned field = page.bytes[row];
    const float scale = field == 0 ? 0.0f : exp2f(fmaf(kLogStep, static_cast<float>(field), kLogFirst));
    __half* out = (is_value ? p.values : p.keys) + (static_cast<size_t>(head) * p.capacity + position) * p.row_stride;
    if (!is_value) {
        for (unsigned i = lane; i < half; i += 32) {
            const float2 c = pair_of(p, page, p.key_ends + head * half, i, row, scale);
            const float factor = p.key_factors[head * half + i];
            const unsigned i0 = pair_first(p, i), i1 = pair_second(p, i);
            float a = c.x * factor, b = c.y * factor;
            if (p.key_means != nullptr) {
                const float m0 = p.key_means[head * p.head_dim + i0], m1 = p.key_means[head * p.head_dim + i1];
                const float2 turn = p.rotations[static_cast<size_t>(position) * half + i];
                a += m0 * turn.x - m1 * turn.y;
                b += m0 * turn.y + m1 * turn.x;
            }
            out[i0] = __float2half_rn(a);
            out[i1] = __float2half_rn(b);
        }
        return;
    }
    // Lane l: pair l, and pair l + 32 of wide heads.
    const bool wide = half > 32;
    float2 v[2] = {};
#pragma unroll
    for (int j = 0; j < 2; ++j) {
        const unsigned i = lane + 32 * j;
        if (i >= half) continue;
        v[j] = pair_of(p, page, p.value_ends, i, row, scale * p.value_factors[i]);
        v[j] = make_float2(v[j].x + v[j].y, v[j].x - v[j].y);
    }
#pragma unroll
    for (int m = 1; m < 32; m *= 2) {
        const float sign = lane & m ? -1.0f : 1.0f;
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            v[j].x = fmaf(v[j].x, sign, __shfl_xor_sync(0xffffffffu, v[j].x, m));
            v[j].y = fmaf(v[j].y, sign, __shfl_xor_sync(0xffffffffu, v[j].y, m));
        }
    }
    if (wide) {
        const float2 a = v[0], b = v[1];
        v[0] = make_float2(a.x + b.x, a.y + b.y);
        v[1] = make_float2(a.x - b.x, a.y - b.y);
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) {
        const unsigned i = 2 * (lane + 32 * j);
        if (i >= p.head_dim) continue;
        const uint32_t signs = p.value_signs[i / 32] >> (i & 31);
        out[i] = __float2half_rn((signs & 1 ? -p.value_scale : p.value_scale) * v[j].x);
        out[i + 1] = __float2half_rn((signs >> 1 & 1 ? -p.value_scale : p.value_scale) * v[j].y);
    }
}

extern "C" __global__ void __launch_bounds__(256) kv_copy_rows(const __grid_constant__ KvCopyRowsParams p) {
    wait_for_predecessor();
    let_successor_start();
    const unsigned positions = p.end - p.first, per_head = positions * p.row_vectors;
    for (unsigned i = blockIdx.x * 256 + threadIdx.x; i < 2 * p.kv_heads * per_head; i += gridDim.x * 256) {
        const unsigned line = i / per_head, at = i % per_head, position = p.first + at / p.row_vectors, column = at % p.row_vectors;
        const unsigned head = line % p.kv_heads;
        const bool is_value = line >= p.kv_heads;
        const size_t from = (static_cast<size_t>(head) * p.from_rows + position % p.from_rows) * p.row_vectors + column;
        const size_t to = (static_cast<size_t>(head) * p.to_rows + position % p.to_rows) * p.row_vectors + column;
        (is_value ? p.to_values : p.to_keys)[to] = (is_value ? p.from_values : p.from_keys)[from];
    }
}
