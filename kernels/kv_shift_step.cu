// One step of causal attention over a cache under the bit-shift trellis: q, k: + bias, optional norm per head, rotation by position; k, v go to the exact
// rows; out = softmax(q . K^T / sqrt(head_dim)) V over pages, decoded on the way to the tensor cores (kv_shift.cuh, kv_attend.cuh), and exact rows.
//
// x_q: [heads, DIM], x_k and x_v: [kv_heads, DIM], f32. Positions 0 .. sinks are exact, then pages of 64, as many as leave a window of positions exact, then
// exact rows in a ring, position p in row p % tail. Exact keys are rotated, exact values as they came.
//
// Keys of pages: step t codes rotary pair t of the rotated key less the rotated mean, over a factor of the pair. So a score has two parts: the scale of the
// key times the product of its points with the query times the factors; and the product of the query with the rotated mean. With w = q conj(mean), by pair,
// and position p0 + i, that is the real part of w conj(turn(p0)) conj(turn(i)): one more product, whose A operand is the same for all halves of pages: rows
// 4 g and 4 g + 1 are those turns, columns 0 to 3 of B are heads at p0, 4 to 7 at p0 + 2.
// Values of pages: signs, a Walsh-Hadamard transform, a scale. Sums over pages stay in that frame and apart from those over exact rows until the end.
//
// Two kernels. kv_shift_query: one warp per head rotates queries, makes w, and operands of the queries times the factors, rounded to halves and what that
// lost; and it appends the newest key and value. All that is older than its predecessor is there before it waits. Grid heads + 2 * kv_heads, block 32.
// queries: [heads, DIM] rotated; [heads, DIM] w over a power of two; [heads, 2, 4, DIM / 8] operands, rounded and lost, by lane t; [heads] the power of w and
// [heads] that of operands, both times what scores are multiplied by.
//
// kv_shift_attend: grid (splits <= 64, kv_heads * blocks of 4 heads). An item is half a page, or 32 exact rows; a block has a span of items, of which each of
// its warps has a span as even as can be: a warp that has one more than the others is what all wait for. A warp owns a slot for keys and one for values, and
// copies the next keys while it decodes values, and so on. Blocks of one head block meet at a counter; the last one adds up and transforms back. Shared
// memory, dynamic: 1024 + the table (128 KiB: at the absolute address 1024, so that a look-up needs no addition) + 16 KiB at most + slots. Programmatic launch:
// table, places of sets and the first copies are there before the kernel waits for the first one. Registers are what is short: 128 for 16 warps.
//
// Defines: KV_DIM (64, 128). Caller: gosset-cuda/src/launch/kv.rs.

#include "kv_attend.cuh"
#include "kv_shift.cuh"
#include "model_rope.cuh"
#include "params.cuh"

namespace {

using namespace kv;

#ifndef KV_WARPS
#define KV_WARPS 16
#endif
constexpr int DIM = KV_DIM, kWarps = KV_WARPS, kThreads = 32 * kWarps, kHalf = DIM / 2, kPairs = kHalf / 32, kOperand = DIM / 8;

// Shared memory between the table and the slots.
struct Shared {
    float q[kHeads][DIM];             // Rotated queries, where a block has exact rows; at the end `out` of join begins here.
    float mean[2 * kHeads][DIM + 4];  // w by pair, over a power of two, then w conj(turn(2)); heads on other banks.
    uint4 turns[32][DIM / 8];         // Halves: cosines and sines of position 4 (j / 2) + j % 2; odd j / 2 with columns 4 to 7 first, and so on.
    uint4 key_sets[DIM / 32][4], value_sets[DIM / 64][8];  // Set 4 s + t, set 8 s + g.
    float references[2][kWarps][kHeads], weights[kWarps][kHeads];
};
static_assert(sizeof(Shared) % 16 == 0 && sizeof(float) * 2 * kHeads * DIM <= sizeof(Shared::q) + sizeof(Shared::mean));
static_assert(sizeof(Shared::turns) >= sizeof(float) * kHeads * 64);

// The power of two that is next below the largest of a warp's numbers, as bits of an exponent whose inverse is normal too.
__device__ __forceinline__ unsigned exponent_of(float most) {
#pragma unroll
    for (int m = 16; m > 0; m >>= 1) most = fmaxf(most, __shfl_xor_sync(kAll, most, m));
    return min(max(__float_as_uint(most) >> 23 & 255, 1u), 253u);
}

// One head of queries, by one warp.
__device__ __forceinline__ void make_query(const KvShiftStepParams& p, unsigned head, unsigned position, unsigned lane) {
    const unsigned kv_head = head / (p.heads / p.kv_heads);
    float factor[kPairs], mean[kPairs][2], a[kPairs], b[kPairs], re[kPairs], im[kPairs], most = 0.0f, most_w = 0.0f;
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
        const unsigned i = lane + 32 * j;
        factor[j] = __ldg(p.key_factors + kv_head * kHalf + i);
        mean[j][0] = p.key_means ? __ldg(p.key_means + kv_head * DIM + pair_first(p, i)) : 0.0f;
        mean[j][1] = p.key_means ? __ldg(p.key_means + kv_head * DIM + pair_second(p, i)) : 0.0f;
    }
    const HeadTurns<kPairs> turns(p, position);
    wait_for_predecessor();
    rotate_head<kPairs>(p, p.x_q + head * DIM, p.bias ? p.bias + head * DIM : nullptr, p.q_norm, &turns, a, b);
    float* const q = p.queries + head * DIM;
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
        q[pair_first(p, lane + 32 * j)] = a[j];
        q[pair_second(p, lane + 32 * j)] = b[j];
        re[j] = a[j] * mean[j][0] + b[j] * mean[j][1];
        im[j] = b[j] * mean[j][0] - a[j] * mean[j][1];
        most_w = fmaxf(most_w, fmaxf(fabsf(re[j]), fabsf(im[j])));
        a[j] *= factor[j], b[j] *= factor[j];
        most = fmaxf(most, fmaxf(fabsf(a[j]), fabsf(b[j])));
    }
    const unsigned exponent = exponent_of(most), exponent_w = exponent_of(most_w);
    const float up = __uint_as_float((254 - exponent) << 23), up_w = __uint_as_float((254 - exponent_w) << 23);
    float* const factors = p.queries + 3 * p.heads * DIM;
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
        const unsigned i = lane + 32 * j;
        *reinterpret_cast<float2*>(q + p.heads * DIM + 2 * i) = make_float2(re[j] * up_w, im[j] * up_w);
        const float x = a[j] * up, y = b[j] * up;
        uint32_t* const to = reinterpret_cast<uint32_t*>(p.queries + 2 * p.heads * DIM) + (8 * head + i / 4 % 4) * kOperand + 4 * (i / 16) + i % 4;
        to[0] = Type<__half>::two(x, y);
        to[4 * kOperand] = Type<__half>::two(x - Type<__half>::round(x), y - Type<__half>::round(y));
    }
    if (lane == 0) {
        factors[head] = __uint_as_float(exponent_w << 23) * p.scale * kLog2E;
        factors[p.heads + head] = __uint_as_float(exponent << 23) * p.scale * kLog2E;
    }
}

// The newest key or value, by one warp, to its exact row.
__device__ __forceinline__ void append(const KvShiftStepParams& p, bool is_value, unsigned kv_head, unsigned position, unsigned lane) {
    float a[kPairs], b[kPairs];
    const unsigned head = p.heads + (is_value ? p.kv_heads : 0) + kv_head;
    const HeadTurns<kPairs> turns(p, position);
    wait_for_predecessor();
    rotate_head<kPairs>(p, (is_value ? p.x_v : p.x_k) + kv_head * DIM, p.bias ? p.bias + head * DIM : nullptr, is_value ? nullptr : p.k_norm,
                        is_value ? nullptr : &turns, a, b);
    __half* to = position < p.sinks ? (is_value ? p.sink_values : p.sink_keys) + (static_cast<size_t>(kv_head) * p.sinks + position) * DIM
                                    : (is_value ? p.tail_values : p.tail_keys) + (static_cast<size_t>(kv_head) * p.tail + position % p.tail) * DIM;
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
        to[pair_first(p, lane + 32 * j)] = __float2half_rn(a[j]);
        to[pair_second(p, lane + 32 * j)] = __float2half_rn(b[j]);
    }
}

// Keeps the compiler from making an address anew wherever it is used.
__device__ __forceinline__ void in_register(uint32_t& x) { asm volatile("" : "+r"(x)); }

}  // namespace

extern "C" __global__ void __launch_bounds__(32) kv_shift_query(const __grid_constant__ KvShiftStepParams p) {
    let_successor_start();
    const unsigned position = *p.position;
    if (blockIdx.x < p.heads) {
        make_query(p, blockIdx.x, position, threadIdx.x);
    } else {
        const unsigned i = blockIdx.x - p.heads;
        append(p, i >= p.kv_heads, i % p.kv_heads, position, threadIdx.x);
    }
}

extern "C" __global__ void __launch_bounds__(kThreads, 1) kv_shift_attend(const __grid_constant__ KvShiftStepParams p) {
    extern __shared__ uint8_t dynamic[];
    uint8_t* const table = shared_from_table(dynamic);
    Shared& shared = *reinterpret_cast<Shared*>(table + kTableBytes);
    const unsigned tid = threadIdx.x, lane = tid & 31, warp = __shfl_sync(kAll, tid >> 5, 0), g = lane >> 2, t = lane & 3;
    const Strings ks(p.key_bits), vs(p.value_bits);
    const unsigned group = p.heads / p.kv_heads, blocks = (group + kHeads - 1) / kHeads;
    const unsigned kv_head = blockIdx.y / blocks, first = blockIdx.y % blocks * kHeads;
    const unsigned n_heads = min(kHeads, group - first), head0 = kv_head * group + first;

    // The position is older than the predecessor, and so are all keys and values but the newest.
    const unsigned position = *p.position, behind = p.sinks + p.window;
    const unsigned pages = min(p.pages, position > behind ? (position - behind) / kPageRows : 0), sealed = 2 * pages;
    const unsigned exact = position + 1 - kPageRows * pages, sinks = min(p.sinks, position + 1);
    const unsigned items = sealed + (exact + kChunk - 1) / kChunk;
    const unsigned span = max(p.min_span, (items + gridDim.x - 1) / gridDim.x), active = (items + span - 1) / span;
    if (blockIdx.x >= active) return;
    const unsigned block_begin = blockIdx.x * span, block_end = min(items, block_begin + span);
    const unsigned each = (block_end - block_begin) / kWarps, more = (block_end - block_begin) % kWarps;
    const unsigned begin = block_begin + warp * each + min(warp, more), end = begin + each + (warp < more), sealed_end = min(end, sealed);
    const bool has_sealed = block_begin < sealed, has_exact = block_end > sealed, has_means = p.key_means != nullptr;

    TablePart<kThreads> part;
    part.load(p.table);
    const uint8_t* keys = p.key_pages + static_cast<size_t>(kv_head) * p.pages * ks.page_bytes;
    const uint8_t* values = p.value_pages + static_cast<size_t>(kv_head) * p.pages * vs.page_bytes;
    const unsigned key_slot = slot_bytes(ks), value_slot = slot_bytes(vs);
    const unsigned own_bytes = max(key_slot + value_slot + 4 * DIM, static_cast<unsigned>(kHeads * DIM * sizeof(float)));
    uint8_t* const all_slots = table + kTableBytes + sizeof(Shared);
    uint8_t* const mine = all_slots + warp * own_bytes;
    // Behind the slots, turns of the first position of a page.
    const float4* const page_turns = reinterpret_cast<const float4*>(mine + key_slot + value_slot);
    const uint32_t turns_at = static_cast<uint32_t>(__cvta_generic_to_shared(page_turns));
    uint32_t keys_at = static_cast<uint32_t>(__cvta_generic_to_shared(mine)), values_at = keys_at + key_slot;
    uint32_t keys_to = first_piece<false>(keys_at, lane), values_to = first_piece<true>(values_at, lane);
    in_register(keys_at), in_register(values_at), in_register(keys_to), in_register(values_to);
    constexpr unsigned kMostWords = 10 * kHalf / 32;
    auto load_keys = [&](unsigned item) {
        if (item < sealed_end) {
            load_slot<false, kMostWords>(keys_at, keys_to, keys, ks, item, lane);
            if (has_means && (item % 2 == 0 || item == begin) && lane < DIM / 4) {
                const float* from = reinterpret_cast<const float*>(p.rotations + static_cast<size_t>(p.sinks + kPageRows * (item / 2)) * kHalf);
                gosset::copy_16(turns_at + 16 * lane, reinterpret_cast<const uint4*>(from) + lane);
            }
        }
        gosset::commit_copies();
    };
    auto load_values = [&](unsigned item) {
        if (item < sealed_end) load_slot<true, kMostWords>(values_at, values_to, values, vs, item, lane);
        gosset::commit_copies();
    };
    load_keys(begin);
    load_values(begin);
    auto wait = [&] {
        asm volatile("cp.async.wait_group 1;" ::: "memory");
        __syncwarp();
    };
    float4 turn2 = make_float4(1.0f, 0.0f, 1.0f, 0.0f);
    if (has_sealed) {
        if (has_means && tid < kHeads * (DIM / 4)) turn2 = __ldg(reinterpret_cast<const float4*>(p.rotations + 2 * kHalf) + tid % (DIM / 4));
        if (tid < DIM / 8) {
            shared.key_sets[tid / 4][tid % 4] = place_of<false>(p.key_ends + kv_head * kHalf + 4 * tid);
        } else if (tid >= 32 && tid < 32 + DIM / 8) {
            shared.value_sets[(tid - 32) / 8][tid % 8] = place_of<true>(p.value_ends + 4 * (tid - 32));
        }
        part.store(table);
        if (has_means) {
            for (unsigned i = tid; i < 32 * (DIM / 8); i += kThreads) {
                const unsigned j = i / (DIM / 8), c = i % (DIM / 8);
                const float4* from = reinterpret_cast<const float4*>(p.rotations + (4 * (j / 2) + j % 2) * kHalf + 4 * c);
                const float4 x = __ldg(from), y = __ldg(from + 1);
                shared.turns[j][c ^ (j & 2) << 1] = make_uint4(Type<__half>::two(x.x, x.y), Type<__half>::two(x.z, x.w), Type<__half>::two(y.x, y.y), Type<__half>::two(y.z, y.w));
            }
        }
    }

    wait_for_predecessor();
    let_successor_start();
    const float* const factors = p.queries + 3 * p.heads * DIM;
    uint32_t q[DIM / 32][4];
    float key_factor[2], mean_factor[2];
    {
        const bool in = (g & 3) < n_heads;
        const uint4* from = reinterpret_cast<const uint4*>(p.queries + 2 * p.heads * DIM) + (((head0 + (g & 3)) * 2 + (g >> 2)) * 4 + t) * (kOperand / 4);
#pragma unroll
        for (int s = 0; s < DIM / 32; ++s) {
            const uint4 x = in ? from[s] : make_uint4(0, 0, 0, 0);
            q[s][0] = x.x, q[s][1] = x.y, q[s][2] = x.z, q[s][3] = x.w;
        }
#pragma unroll
        for (int c = 0; c < 2; ++c) {
            const unsigned h = 2 * (t & 1) + c;
            mean_factor[c] = h < n_heads ? factors[head0 + h] : 0.0f;
            key_factor[c] = h < n_heads ? factors[p.heads + head0 + h] : 0.0f;
        }
    }
    if (tid < kHeads * (DIM / 4)) {
        const unsigned head = tid / (DIM / 4), c = tid % (DIM / 4);
        float4 w = make_float4(0.0f, 0.0f, 0.0f, 0.0f), x = w;
        if (head < n_heads) {
            if (has_means) w = *(reinterpret_cast<const float4*>(p.queries + p.heads * DIM + (head0 + head) * DIM) + c);
            if (has_exact) x = *(reinterpret_cast<const float4*>(p.queries + (head0 + head) * DIM) + c);
        }
        *(reinterpret_cast<float4*>(shared.q[head]) + c) = x;
        *(reinterpret_cast<float4*>(shared.mean[head]) + c) = w;
        *(reinterpret_cast<float4*>(shared.mean[kHeads + head]) + c) =
            make_float4(w.x * turn2.x + w.y * turn2.y, w.y * turn2.x - w.x * turn2.y, w.z * turn2.z + w.w * turn2.w, w.w * turn2.z - w.z * turn2.w);
    }
    __syncthreads();

    Sums<DIM, __half> sums;
    sums.clear();
    const uint32_t key_sets = static_cast<uint32_t>(__cvta_generic_to_shared(&shared.key_sets[0][t])), value_sets = static_cast<uint32_t>(__cvta_generic_to_shared(&shared.value_sets[0][g]));
    float m[2][4] = {};
    for (unsigned item = begin; item < sealed_end; ++item) {
        wait();
        join_left<false>(keys_at, ks, lane);
#pragma unroll
        for (int i = 0; i < 4; ++i) m[0][i] = m[1][i];
        if (has_means && (item % 2 == 0 || item == begin)) {
            // Products with rotated means: m[h][2 i + c] is position 4 g + i of half h, from t = 2 on 4 g + 2 + i, of head 2 (t % 2) + c.
#pragma unroll
            for (int i = 0; i < 4; ++i) m[0][i] = m[1][i] = 0.0f;
            const float4* mean = reinterpret_cast<const float4*>(shared.mean[g]) + 2 * t;
            const float4* turn = page_turns + 2 * t;
#pragma unroll
            for (int s = 0; s < DIM / 32; ++s) {
                uint32_t b[2][2];
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const float4 r = turn[8 * s + i], w = mean[8 * s + i];
                    b[i][0] = Type<__half>::two(w.x * r.x + w.y * r.y, w.y * r.x - w.x * r.y);
                    b[i][1] = Type<__half>::two(w.z * r.z + w.w * r.w, w.w * r.z - w.z * r.w);
                }
                const unsigned c = 4 * s + t ^ (g & 1) << 2;
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const uint4 x = shared.turns[16 * h + 2 * g][c], y = shared.turns[16 * h + 2 * g + 1][c];
                    const uint32_t one[4] = {x.x, y.x, x.y, y.y}, two[4] = {x.z, y.z, x.w, y.w};
                    gosset::mma(m[h], one, b[0][0], b[0][1]);
                    gosset::mma(m[h], two, b[1][0], b[1][1]);
                }
            }
            if (item % 2 == 1) {
#pragma unroll
                for (int i = 0; i < 4; ++i) m[0][i] = m[1][i];
            }
        }
        float d[2][4] = {};
#pragma unroll
        for (int s = 0; s < DIM / 32; ++s) {
            uint32_t c[4][4];
            decode(c, keys_at, g << 4, gosset::load_shared(key_sets + 64 * s), p.multiplier, 4 * lane);
#pragma unroll
            for (int i = 0; i < 2; ++i) {
#pragma unroll
                for (int j = 0; j < 2; ++j) {
                    const uint32_t a[4] = {c[2 * i][2 * j], c[2 * i + 1][2 * j], c[2 * i][2 * j + 1], c[2 * i + 1][2 * j + 1]};
                    gosset::mma(d[i], a, q[s][2 * j], q[s][2 * j + 1]);
                }
            }
        }
        const uint32_t key_fields = gosset::load_shared_half(keys_at + 4 * g + (t & 2));
        __syncwarp();
        load_keys(item + 1);

        wait();
        join_left<true>(values_at, vs, lane);
        const uint32_t value_fields = gosset::load_shared_half(values_at + 4 * g + (t & 2));
        float s[2][2], log[2], value_scale[2];
        Sums<DIM, __half>::scores(s, d, lane);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const uint32_t kb = key_fields >> 8 * r & 255, vb = value_fields >> 8 * r & 255;
            const float scale = kb == 0 ? 0.0f : exp2_fast(fmaf(kLogStep, static_cast<float>(kb), kLogFirst));
            log[r] = vb == 0 ? -64.0f : fmaf(kLogStep, static_cast<float>(vb), kLogFirst);
            value_scale[r] = exp2_fast(log[r]);
#pragma unroll
            for (int c = 0; c < 2; ++c) s[r][c] = fmaf(s[r][c] * key_factor[c], scale, m[0][2 * r + c] * mean_factor[c]);
        }
        uint32_t w[2];
        sums.weights(w, s, log, value_scale, lane);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            uint32_t b[4];
            Sums<DIM, __half>::operands(b, w, h, lane);
#pragma unroll
            for (int n = 0; n < DIM / 64; ++n) {
                uint32_t c[4][4];
                decode(c, values_at, t << 4 | h << 6, gosset::load_shared(value_sets + 128 * n), p.multiplier, 4 * lane);
#pragma unroll
                for (int i = 0; i < 2; ++i) {
#pragma unroll
                    for (int j = 0; j < 2; ++j) {
                        const uint32_t a[4] = {c[2 * i][2 * j], c[2 * i][2 * j + 1], c[2 * i + 1][2 * j], c[2 * i + 1][2 * j + 1]};
                        gosset::mma(sums.acc[2 * n + j], a, b[2 * i], b[2 * i + 1]);
                    }
                }
            }
        }
        __syncwarp();
        load_values(item + 1);
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncwarp();
    sums.write(reinterpret_cast<float*>(mine), lane);
    sums.write_reference(shared.references[0][warp], lane);

    float* const exact_sums = reinterpret_cast<float*>(table);
    if (has_exact) {
        sums.clear_values();
        unsigned item = max(begin, sealed);
        Queries<DIM, __half> exact_q;
        if (item < end) {
            const float* const query = shared.q[g & 3];
            exact_q.load([&](unsigned pair) { return *reinterpret_cast<const float4*>(query + 2 * pair); }, p.scale, lane);
        }
        const unsigned tail_first = (p.sinks + kPageRows * pages) % p.tail;
#pragma unroll 1
        for (; item < end; ++item) {
            const unsigned base = (item - sealed) * kChunk;
            auto row = [&](const __half* sink, const __half* tail, unsigned i) {
                const unsigned e = min(base + i, exact - 1);
                if (e < sinks) return sink + (static_cast<size_t>(kv_head) * p.sinks + e) * DIM;
                const unsigned at = tail_first + e - sinks;
                return tail + (static_cast<size_t>(kv_head) * p.tail + (at < p.tail ? at : at - p.tail)) * DIM;
            };
            // Values come while keys are multiplied.
            const __half* far = row(p.sink_values, p.tail_values, lane);
            prefetch_l2(far);
            if (DIM > 64) prefetch_l2(far + 64);
            float d[2][4] = {}, s[2][2];
            {
                uint4 k[4][DIM / 32];
#pragma unroll
                for (int r = 0; r < 4; ++r) {
                    const uint4* from = reinterpret_cast<const uint4*>(row(p.sink_keys, p.tail_keys, 4 * g + r)) + t;
#pragma unroll
                    for (int n = 0; n < DIM / 32; ++n) k[r][n] = from[4 * n];
                }
                exact_scores<DIM, __half>(d, k, exact_q);
            }
            Sums<DIM, __half>::scores(s, d, lane);
#pragma unroll
            for (int r = 0; r < 2; ++r) {
#pragma unroll
                for (int c = 0; c < 2; ++c) s[r][c] = base + 4 * g + (t & 2) + r >= exact ? kNegative : s[r][c] * exact_q.factor[c];
            }
            const float log[2] = {}, one[2] = {1.0f, 1.0f};
            uint32_t w[2];
            sums.weights(w, s, log, one, lane);
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                uint4 v[DIM / 64][4];
#pragma unroll
                for (int r = 0; r < 4; ++r) {
                    const uint4* from = reinterpret_cast<const uint4*>(row(p.sink_values, p.tail_values, 16 * h + 4 * t + r)) + g;
#pragma unroll
                    for (int n = 0; n < DIM / 64; ++n) v[n][r] = from[8 * n];
                }
                uint32_t b[4];
                Sums<DIM, __half>::operands(b, w, h, lane);
                exact_add<DIM, __half>(sums.acc, v, b);
            }
        }
        // The table is not used any more.
        __syncthreads();
        sums.write(exact_sums + warp * kHeads * DIM, lane);
    }
    sums.write_reference(shared.references[1][warp], lane);
    sums.write_sum(shared.weights[warp], lane);

    float* const out = shared.q[0];
    const bool last = join<DIM, kWarps, 2>(
        [&](int kind, int w) -> const float* {
            if (kind == 0) return has_sealed ? reinterpret_cast<const float*>(all_slots + w * own_bytes) : nullptr;
            return has_exact ? exact_sums + w * kHeads * DIM : nullptr;
        },
        // Blocks with pages come first, those with exact rows last.
        [&](int kind) { return kind == 0 ? make_uint2(0, (sealed + span - 1) / span) : make_uint2(sealed / span, active); },
        shared.references, shared.weights, reinterpret_cast<float(*)[64]>(&shared.turns), out, n_heads,
        p.parts + static_cast<size_t>(head0) * gridDim.x * (2 * DIM + 4), active, p.counters + blockIdx.y);
    if (!last || warp >= n_heads) return;
    // What pages gave, back from the frame of values.
    constexpr int kOwn = DIM / 32;
    float v[kOwn];
#pragma unroll
    for (int i = 0; i < kOwn; ++i) v[i] = out[warp * DIM + kOwn * lane + i] * __ldg(p.value_factors + (kOwn * lane + i) / 2);
#pragma unroll
    for (int m = 1; m < kOwn; m *= 2) {
#pragma unroll
        for (int i = 0; i < kOwn; ++i) {
            if (i & m) continue;
            const float a = v[i], b = v[i | m];
            v[i] = a + b;
            v[i | m] = a - b;
        }
    }
#pragma unroll
    for (int m = 1; m < 32; m *= 2) {
        const float sign = lane & m ? -1.0f : 1.0f;
#pragma unroll
        for (int i = 0; i < kOwn; ++i) v[i] = fmaf(v[i], sign, __shfl_xor_sync(kAll, v[i], m));
    }
    const uint32_t signs = __ldg(p.value_signs + kOwn * lane / 32) >> (kOwn * lane & 31);
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
        const float x = v[i] * p.value_scale;
        p.out[(head0 + warp) * DIM + kOwn * lane + i] = (signs >> i & 1 ? -x : x) + out[(kHeads + warp) * DIM + kOwn * lane + i];
    }
}
