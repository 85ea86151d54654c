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
// Two kernels. kv_shift_query: one warp per head rotates queries, makes w, and appends the newest key and value. Grid heads + 2 * kv_heads, block 32.
//
// kv_shift_attend: grid (splits <= 64, kv_heads * blocks of 4 heads). A unit is a page, or 32 exact rows; a block has a span of units, its warps take them in
// turn, 32 positions at a time. A warp owns `stages` slots for keys and as many for values, and copies ahead while it decodes. Blocks of one head block meet
// at a counter; the last one adds up and transforms back. Shared memory, dynamic: 1024 + the table (128 KiB: at the absolute address 1024, so that a look-up
// needs no addition) + 13 KiB at most + slots. Programmatic launch: table, patterns and the first copies are there before the kernel waits for the first one.
//
// Defines: KV_DIM (64, 128). Caller: gosset-cuda/src/launch/kv.rs.

#include "kv_attend.cuh"
#include "kv_shift.cuh"
#include "model_rope.cuh"
#include "params.cuh"

namespace {

using namespace kv;

#ifndef KV_WARPS
#define KV_WARPS 12
#endif
constexpr int DIM = KV_DIM, kWarps = KV_WARPS, kThreads = 32 * kWarps, kHalf = DIM / 2;

// Shared memory between the table and the slots.
struct Shared {
    float q[kHeads][DIM];         // Rotated queries; at the end `out` of join begins here.
    float mean[kHeads][DIM + 4];  // w by pair, over a power of two; heads on other banks.
    uint4 turns[32][DIM / 8];     // Halves: cosines and sines of position 4 (j / 2) + j % 2; odd j / 2 with columns 4 to 7 first, and so on.
    float references[2][kWarps][kHeads], weights[kWarps][kHeads];
    float mean_factor[kHeads], key_factors[kHalf];
};
static_assert(sizeof(Shared) % 16 == 0 && sizeof(float) * 2 * kHeads * DIM <= sizeof(Shared::q) + sizeof(Shared::mean));
static_assert(sizeof(Shared::turns) >= sizeof(float) * kHeads * 64);

// One head of queries, by one warp: rotated, and w by pair over a power of two, then that power.
__device__ __forceinline__ void make_query(const KvShiftStepParams& p, unsigned head, unsigned position, unsigned lane) {
    constexpr int kPairs = kHalf / 32;
    const unsigned kv_head = head / (p.heads / p.kv_heads);
    float a[kPairs], b[kPairs], re[kPairs], im[kPairs], most = 0.0f;
    rotate_head<kPairs>(p, p.x_q + head * DIM, p.bias ? p.bias + head * DIM : nullptr, p.q_norm, true, position, a, b);
    float* const q = p.queries + head * DIM;
    float* const mean = p.queries + p.heads * DIM + head * DIM;
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
        const unsigned i = lane + 32 * j, i0 = pair_first(p, i), i1 = pair_second(p, i);
        q[i0] = a[j];
        q[i1] = b[j];
        re[j] = im[j] = 0.0f;
        if (p.key_means != nullptr) {
            const float m0 = p.key_means[kv_head * DIM + i0], m1 = p.key_means[kv_head * DIM + i1];
            re[j] = a[j] * m0 + b[j] * m1;
            im[j] = b[j] * m0 - a[j] * m1;
        }
        most = fmaxf(most, fmaxf(fabsf(re[j]), fabsf(im[j])));
    }
#pragma unroll
    for (int m = 16; m > 0; m >>= 1) most = fmaxf(most, __shfl_xor_sync(kAll, most, m));
    const unsigned exponent = min(max(__float_as_uint(most) >> 23 & 255, 1u), 253u);
    const float up = __uint_as_float((254 - exponent) << 23);
#pragma unroll
    for (int j = 0; j < kPairs; ++j) *reinterpret_cast<float2*>(mean + 2 * (lane + 32 * j)) = make_float2(re[j] * up, im[j] * up);
    if (lane == 0) p.queries[2 * p.heads * DIM + head] = __uint_as_float(exponent << 23) * p.scale * kLog2E;
}

// The newest key or value, by one warp, to its exact row.
__device__ __forceinline__ void append(const KvShiftStepParams& p, bool is_value, unsigned kv_head, unsigned position, unsigned lane) {
    constexpr int kPairs = kHalf / 32;
    float a[kPairs], b[kPairs];
    const unsigned head = p.heads + (is_value ? p.kv_heads : 0) + kv_head;
    rotate_head<kPairs>(
        p, (is_value ? p.x_v : p.x_k) + kv_head * DIM, p.bias ? p.bias + head * DIM : nullptr, is_value ? nullptr : p.k_norm, !is_value, position, a, b);
    __half* to = position < p.sinks ? (is_value ? p.sink_values : p.sink_keys) + (static_cast<size_t>(kv_head) * p.sinks + position) * DIM
                                    : (is_value ? p.tail_values : p.tail_keys) + (static_cast<size_t>(kv_head) * p.tail + position % p.tail) * DIM;
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
        to[pair_first(p, lane + 32 * j)] = __float2half_rn(a[j]);
        to[pair_second(p, lane + 32 * j)] = __float2half_rn(b[j]);
    }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(32) kv_shift_query(const __grid_constant__ KvShiftStepParams p) {
    let_successor_start();
    const unsigned position = *p.position;
    wait_for_predecessor();
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
    const unsigned tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, g = lane >> 2, t = lane & 3;
    const Strings ks(p.key_bits), vs(p.value_bits);

    const unsigned group = p.heads / p.kv_heads, blocks = (group + kHeads - 1) / kHeads;
    const unsigned kv_head = blockIdx.y / blocks, first = blockIdx.y % blocks * kHeads;
    const unsigned n_heads = min(kHeads, group - first), head0 = kv_head * group + first;

    TablePart<kThreads> part;
    part.load(p.table);
    Ends key_ends[DIM / 32], value_ends[DIM / 64];
#pragma unroll
    for (int s = 0; s < DIM / 32; ++s) key_ends[s].load(p.key_ends + kv_head * kHalf + 4 * (4 * s + t));
#pragma unroll
    for (int s = 0; s < DIM / 64; ++s) value_ends[s].load(p.value_ends + 4 * (8 * s + g));
    const float factor = tid < kHalf ? __ldg(p.key_factors + kv_head * kHalf + tid) : 0.0f;

    // The position is older than the predecessor, and so are all keys and values but the newest.
    const unsigned position = *p.position, behind = p.sinks + p.window;
    const unsigned pages = min(p.pages, position > behind ? (position - behind) / kPageRows : 0);
    const unsigned exact = position + 1 - kPageRows * pages, sinks = min(p.sinks, position + 1);
    const unsigned units = pages + (exact + kChunk - 1) / kChunk;
    const unsigned span = max(p.min_span, (units + gridDim.x - 1) / gridDim.x), active = (units + span - 1) / span;
    if (blockIdx.x >= active) return;
    const unsigned block_begin = blockIdx.x * span, block_end = min(units, block_begin + span);
    const unsigned begin = block_begin + warp, sealed_end = min(block_end, pages);
    const bool has_sealed = block_begin < pages, has_exact = block_end > pages;

    const uint8_t* keys = p.key_pages + static_cast<size_t>(kv_head) * p.pages * ks.page_bytes;
    const uint8_t* values = p.value_pages + static_cast<size_t>(kv_head) * p.pages * vs.page_bytes;
    const unsigned key_slot = kSlotHead + (ks.words + 2) * (4 * kKeyStride), value_slot = kSlotHead + (vs.words + 2) * (4 * kValueStride);
    const unsigned slot_bytes = max(p.stages * (key_slot + value_slot), static_cast<unsigned>(kHeads * DIM * sizeof(float)));
    uint8_t* const all_slots = table + kTableBytes + sizeof(Shared);
    uint8_t* const mine = all_slots + warp * slot_bytes;
    const uint32_t slots = static_cast<uint32_t>(__cvta_generic_to_shared(mine)), value_slots = p.stages * key_slot;
    auto load_keys = [&](unsigned item, unsigned stage) {
        if (item < 2 * sealed_end) load_slot<kKeyStride>(slots + stage * key_slot, keys, ks, item, lane);
        gosset::commit_copies();
    };
    auto load_values = [&](unsigned item, unsigned stage) {
        if (item < 2 * sealed_end) load_slot<kValueStride>(slots + value_slots + stage * value_slot, values, vs, item, lane);
        gosset::commit_copies();
    };
    for (unsigned s = 0; s < p.stages; ++s) {
        load_keys(2 * begin + s, s);
        load_values(2 * begin + s, s);
    }
    // The oldest copies: all but those of `2 * stages - 1` newer halves of slots.
    auto wait = [&] {
        if (p.stages == 1) {
            asm volatile("cp.async.wait_group 1;" ::: "memory");
        } else {
            asm volatile("cp.async.wait_group 3;" ::: "memory");
        }
        __syncwarp();
    };
    // The half page that comes `stages` later.
    auto later = [&](unsigned item) { return item + (p.stages == 2 ? 2 * kWarps : item % 2 == 0 ? 1 : 2 * kWarps - 1); };
    Set<kKeyStride> key_sets[DIM / 32];
    Set<kValueStride> value_sets[DIM / 64];
    uint32_t fits = 0;
#pragma unroll
    for (int s = 0; s < DIM / 32; ++s) fits |= key_ends[s].fit(p.state_bits) << s;
#pragma unroll
    for (int s = 0; s < DIM / 64; ++s) fits |= value_ends[s].fit(p.state_bits) << (8 + s);
    fits = __reduce_and_sync(kAll, fits);
#pragma unroll
    for (int s = 0; s < DIM / 32; ++s) key_sets[s].set(key_ends[s], 16 * g, fits >> s & 1);
#pragma unroll
    for (int s = 0; s < DIM / 64; ++s) value_sets[s].set(value_ends[s], 16 * t, fits >> (8 + s) & 1);
    if (has_sealed) {
        part.store(table);
        if (tid < kHalf) shared.key_factors[tid] = factor;
        if (p.key_means != nullptr) {
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
    for (unsigned i = tid; i < 2 * kHeads * (DIM / 4); i += kThreads) {
        const unsigned head = i / (DIM / 4) % kHeads, c = i % (DIM / 4);
        const bool is_mean = i >= kHeads * (DIM / 4);
        float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (head < n_heads) x = *(reinterpret_cast<const float4*>(p.queries + (is_mean ? p.heads * DIM : 0) + (head0 + head) * DIM) + c);
        *(reinterpret_cast<float4*>(is_mean ? shared.mean[head] : shared.q[head]) + c) = x;
    }
    if (tid < kHeads) shared.mean_factor[tid] = tid < n_heads ? p.queries[2 * p.heads * DIM + head0 + tid] : 0.0f;
    __syncthreads();

    Sums<DIM, __half> sums;
    sums.clear();
    Queries<DIM, __half> q;
    const float* const query = shared.q[g & 3];
    if (begin < sealed_end) {
        q.load(
            [&](unsigned pair) {
                const float f0 = shared.key_factors[pair], f1 = shared.key_factors[pair + 1];
                const unsigned i0 = pair_first(p, pair), j0 = pair_second(p, pair), i1 = pair_first(p, pair + 1), j1 = pair_second(p, pair + 1);
                return make_float4(query[i0] * f0, query[j0] * f0, query[i1] * f1, query[j1] * f1);
            },
            p.scale, lane);
    }
    const float mean_factor[2] = {shared.mean_factor[2 * (t & 1)], shared.mean_factor[2 * (t & 1) + 1]};

    unsigned stage = 0;
    for (unsigned page = begin; page < sealed_end; page += kWarps) {
        // Products with rotated means: m[h][2 i + c] is position 4 g + i of half h, from t = 2 on 4 g + 2 + i, of head 2 (t % 2) + c.
        float m[2][4] = {};
        if (p.key_means != nullptr) {
            const unsigned p0 = p.sinks + kPageRows * page + (g < 4 ? 0 : 2);
            const float4* turn = reinterpret_cast<const float4*>(p.rotations + static_cast<size_t>(p0) * kHalf) + 2 * t;
            const float4* mean = reinterpret_cast<const float4*>(shared.mean[g & 3]) + 2 * t;
#pragma unroll
            for (int s = 0; s < DIM / 32; ++s) {
                uint32_t b[2][2];
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const float4 r = __ldg(turn + 8 * s + i), w = mean[8 * s + i];
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
        }
#pragma unroll 1
        for (unsigned item = 2 * page; item < 2 * page + 2; ++item) {
            const uint32_t ring = slots + stage * key_slot, value_ring = slots + value_slots + stage * value_slot;
            uint8_t* const key_bytes = mine + stage * key_slot;
            uint8_t* const value_bytes = mine + value_slots + stage * value_slot;
            wait();
            join_left<kKeyStride>(key_bytes, ks, lane);
            float d[2][4] = {};
#pragma unroll
            for (int s = 0; s < DIM / 32; ++s) {
                uint32_t c[4][4];
                key_sets[s].decode(c, ring, p.multiplier, 4 * lane, fits >> s & 1);
#pragma unroll
                for (int i = 0; i < 2; ++i) {
#pragma unroll
                    for (int j = 0; j < 2; ++j) {
                        const uint32_t a[4] = {c[2 * i][2 * j], c[2 * i + 1][2 * j], c[2 * i][2 * j + 1], c[2 * i + 1][2 * j + 1]};
                        gosset::mma(d[i], a, q.b[2 * s + j][0], q.b[2 * s + j][1]);
                    }
                }
            }
            const uint32_t key_fields = *reinterpret_cast<const uint32_t*>(key_bytes + 4 * g);
            __syncwarp();
            load_keys(later(item), stage);

            wait();
            join_left<kValueStride>(value_bytes, vs, lane);
            const uint32_t value_fields = *reinterpret_cast<const uint32_t*>(value_bytes + 4 * g);
            float s[4][2], log[4];
#pragma unroll
            for (int r = 0; r < 4; ++r) {
                const uint32_t kb = key_fields >> 8 * r & 255, vb = value_fields >> 8 * r & 255;
                const float scale = kb == 0 ? 0.0f : exp2_fast(fmaf(kLogStep, static_cast<float>(kb), kLogFirst));
                log[r] = vb == 0 ? -64.0f : fmaf(kLogStep, static_cast<float>(vb), kLogFirst);
#pragma unroll
                for (int c = 0; c < 2; ++c) {
                    const float own = r / 2 == t / 2 ? m[0][2 * (r % 2) + c] * mean_factor[c] : 0.0f;
                    const float part = fmaf(d[r / 2][2 * (r % 2) + c] * q.factor[c], scale, own);
                    s[r][c] = part + __shfl_xor_sync(kAll, part, 2);
                }
            }
            uint32_t w[4];
            sums.weights(w, s, log, lane);
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                uint32_t b[4];
                Sums<DIM, __half>::operands(b, w, h, lane);
#pragma unroll
                for (int n = 0; n < DIM / 64; ++n) {
                    uint32_t c[4][4];
                    value_sets[n].decode(c, value_ring + 64 * h, p.multiplier, 4 * lane, fits >> (8 + n) & 1);
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
            load_values(later(item), stage);
            stage = stage + 1 == p.stages ? 0 : stage + 1;
#pragma unroll
            for (int i = 0; i < 4; ++i) m[0][i] = m[1][i];
        }
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncwarp();
    sums.write(reinterpret_cast<float*>(mine), lane);
    sums.write_reference(shared.references[0][warp], lane);

    float* const exact_sums = reinterpret_cast<float*>(table);
    if (has_exact) {
#pragma unroll
        for (int i = 0; i < DIM / 32; ++i) sums.acc[i][0] = sums.acc[i][1] = sums.acc[i][2] = sums.acc[i][3] = 0.0f;
        unsigned unit = begin;
        if (unit < sealed_end) unit += (sealed_end - unit + kWarps - 1) / kWarps * kWarps;
        if (unit < block_end) q.load([&](unsigned pair) { return *reinterpret_cast<const float4*>(query + 2 * pair); }, p.scale, lane);
        const unsigned tail_first = (p.sinks + kPageRows * pages) % p.tail;
        for (; unit < block_end; unit += kWarps) {
            const unsigned base = (unit - pages) * kChunk;
            auto row = [&](const __half* sink, const __half* tail, unsigned i) {
                const unsigned e = min(base + i, exact - 1);
                if (e < sinks) return sink + (static_cast<size_t>(kv_head) * p.sinks + e) * DIM;
                const unsigned at = tail_first + e - sinks;
                return tail + (static_cast<size_t>(kv_head) * p.tail + (at < p.tail ? at : at - p.tail)) * DIM;
            };
            ExactRows<DIM> rows;
            rows.load([&](unsigned i) { return row(p.sink_keys, p.tail_keys, i); }, [&](unsigned i) { return row(p.sink_values, p.tail_values, i); }, lane);
            float d[2][4] = {}, s[4][2];
            rows.scores(d, q);
            Sums<DIM, __half>::scores(s, d, q.factor);
            const float log[4] = {};
#pragma unroll
            for (int r = 0; r < 4; ++r) {
                if (base + 4 * g + r >= exact) s[r][0] = s[r][1] = kNegative;
            }
            uint32_t w[4];
            sums.weights(w, s, log, lane);
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                uint32_t b[4];
                Sums<DIM, __half>::operands(b, w, h, lane);
                exact_add<DIM, __half>(sums.acc, rows.v[h], b);
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
            if (kind == 0) return has_sealed ? reinterpret_cast<const float*>(all_slots + w * slot_bytes) : nullptr;
            return has_exact ? exact_sums + w * kHeads * DIM : nullptr;
        },
        // Blocks with pages come first, those with exact rows last.
        [&](int kind) { return kind == 0 ? make_uint2(0, (pages + span - 1) / span) : make_uint2(pages / span, active); },
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
