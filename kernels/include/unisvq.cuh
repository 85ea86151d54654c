// Affine-grid codes on the device: where they lie, and how they meet int8 activations in mma.m16n8k32.
//
// Tiles of 16 rows, units of 256 columns: [tile][unit][BITS vectors][lane][4 words]. Lane (g, t), g = lane / 4, t = lane % 4, has
// rows g and g + 8; word k of each of its vectors is row g + 8 (k % 2), columns 128 (k / 2) + 32 t .. + 31 of the unit. Those
// 32 columns are eight quads of four consecutive codes, one code per byte of a word, all four at one place of their bytes:
//
//   2 bits: quad i of vector i / 4 in bits 2 (i % 4) ..
//   3 bits: quads 0 to 5: vector i % 3, bits 3 (i / 3) ..; quads 6 and 7: their upper two bits at the top of vectors 0 and 1,
//           their lowest in bit 7 and 6 of vector 2
//   4 bits: quad i of vector i / 2 in bits 4 (i % 2) ..
//
// A masked word is an operand of the mma as it is, 2^place times the codes; each place has a sum of its own, and whoever
// finishes the sums shifts them back. Sums are integers and therefore exact.
//
// An activation is 16 bits: 256 hi + lo, both int8, two columns of the mma: column 2 a is hi of activation a, 2 a + 1 is lo.
#pragma once

#include <cstdint>

namespace unisvq {

constexpr uint32_t kTileRows = 16;
constexpr uint32_t kUnitCols = 256;
constexpr uint32_t kAll = 0xffffffffu;
constexpr uint32_t kVectorX = 1, kVectorY = 2, kAdd = 4, kFinish = 8, kInput = 16, kOutput = 32, kHalves = 64;

// d += a b: 16 x 32 unsigned codes, 32 x 8 signed planes.
__device__ __forceinline__ void mma(int (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

template <int WIDTH>
struct Codes {
    static_assert(WIDTH >= 2 && WIDTH <= 4);
    static constexpr int kPlaces = WIDTH == 2 ? 4 : WIDTH == 3 ? 3 : 2;
    static constexpr uint32_t kMask = ((1u << WIDTH) - 1) * 0x01010101u;

    // Quad `i` of word `k` of the vectors, and its place.
    template <int WORDS>
    __device__ static __forceinline__ uint32_t quad(const uint32_t (&v)[WIDTH][WORDS], int i, int k) {
        if (WIDTH == 3) {
            if (i >= 6) return (v[i - 6][k] & 0xc0c0c0c0u) | (v[WIDTH - 1][k] >> (8 - i) & 0x20202020u);
            return v[i % 3][k] & kMask << (3 * (i / 3));
        }
        constexpr int each = 8 / WIDTH;
        return v[i / each][k] & kMask << (WIDTH * (i % each));
    }
    __device__ static constexpr int place(int i) { return WIDTH == 3 ? i / 3 : i % kPlaces; }
    // Bits that sums of a place are shifted by.
    __device__ static constexpr int shift(int place) { return WIDTH == 3 && place == 2 ? 5 : WIDTH * place; }

    // Quad `i` of both rows of a lane as an operand of products of halves: its codes 0 and 2, then 1 and 3. A code is the mantissa of a half that
    // is not normal, 2^(shift - 24) times the code without error, for tensor cores take such numbers as they are.
    __device__ static __forceinline__ void halves(uint32_t (&a)[4], const uint32_t (&v)[WIDTH][2], int i) {
#pragma unroll
        for (int k = 0; k < 2; ++k) {
            const uint32_t codes = quad(v, i, k);
            a[k] = codes & 0x00ff00ffu;
            a[2 + k] = codes >> 8 & 0x00ff00ffu;
        }
    }

    // Sum `k` of all places.
    __device__ static __forceinline__ int total(const int (&d)[kPlaces][4], int k) {
        int sum = d[0][k];
#pragma unroll
        for (int p = 1; p < kPlaces; ++p) sum += d[p][k] >> shift(p);
        return sum;
    }
};

// A unit of a tile times N times four activations: x[n][16], eight words of each half.
template <int WIDTH, int N>
__device__ __forceinline__ void multiply(int (&d)[N][Codes<WIDTH>::kPlaces][4], const uint32_t (&v)[WIDTH][4], const uint32_t (&x)[N][16]) {
    using C = Codes<WIDTH>;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const uint32_t a[4] = {C::quad(v, i, 0), C::quad(v, i, 1), C::quad(v, i, 2), C::quad(v, i, 3)};
#pragma unroll
        for (int n = 0; n < N; ++n) mma(d[n][C::place(i)], a[0], a[1], a[2], a[3], x[n][i], x[n][8 + i]);
    }
}

// The planes of four consecutive values: a byte of each per value.
struct Planes {
    uint32_t hi, lo;
    int sum;
};

// Values times `scale`, rounded to nearest even; they are at most 32512 in magnitude.
__device__ __forceinline__ Planes planes(const float (&v)[4], float scale) {
    Planes out = {0, 0, 0};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int q = __float2int_rn(v[i] * scale), hi = (q + 128) >> 8;
        out.hi |= static_cast<uint32_t>(hi & 255) << (8 * i);
        out.lo |= static_cast<uint32_t>(q & 255) << (8 * i);
        out.sum += q;
    }
    return out;
}

// What brings values of at most `most`, given as bits, to 16-bit integers; 0 where there is nothing to bring.
__device__ __forceinline__ float scale_of(uint32_t most) {
    return most < 0x08000000u ? 0.0f : __fdiv_rn(32512.0f, __uint_as_float(most));
}

// The inverse of that.
__device__ __forceinline__ float step_of(uint32_t most) { return __uint_as_float(most) * (1.0f / 32512.0f); }

// The normalized transform of a window of 128: one tile, or tiles of 2^log columns where `logs` has a byte for each column.
__device__ __forceinline__ void transform(float (&v)[4], const uint32_t* logs, uint32_t col) {
    if (logs == nullptr) {
        gosset::fwht_window<7>(v);
#pragma unroll
        for (int i = 0; i < 4; ++i) v[i] *= gosset::RHT128_SCALE;
        return;
    }
    const uint32_t four = logs[col / 4];
    const uint32_t log[4] = {four & 0xff, four >> 8 & 0xff, four >> 16 & 0xff, four >> 24};
    gosset::fwht_window(v, log);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        v[i] *= (log[i] & 1 ? 0x1.6a09e6p-1f : 1.0f) * __uint_as_float((127u - (log[i] >> 1)) << 23);
    }
}

// Four halves as floats.
__device__ __forceinline__ void halves(float (&v)[4], const void* at) {
    const uint2 h = *static_cast<const uint2*>(at);
    const float2 a = __half22float2(*reinterpret_cast<const __half2*>(&h.x)), b = __half22float2(*reinterpret_cast<const __half2*>(&h.y));
    v[0] = a.x, v[1] = a.y, v[2] = b.x, v[3] = b.y;
}

// Factors of four rows of a group of 128.
struct Rows {
    float factors[4];
    float scale;
};

template <class P>
__device__ __forceinline__ Rows rows_of(const P& p, uint32_t group, int lane) {
    Rows rows;
    halves(rows.factors, p.output_scales + group * 128 + lane * 4);
    rows.scale = p.group_scales[group];
    return rows;
}

// Transforms four rows per lane of activation `b` and writes them.
template <class P>
__device__ __forceinline__ void write_rows(const P& p, const Rows& rows, uint32_t row, uint32_t b, const float (&z)[4]) {
    float v[4] = {z[0] * rows.scale, z[1] * rows.scale, z[2] * rows.scale, z[3] * rows.scale};
    if (p.flags & kOutput) transform(v, p.output_logs, row);
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] *= rows.factors[i];
    float* y = p.y + static_cast<size_t>(b) * p.rows + row;
    if ((p.flags & kVectorY) && row + 4 <= p.rows) {
        *reinterpret_cast<float4*>(y) = make_float4(v[0], v[1], v[2], v[3]);
    } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if (row + i < p.rows) y[i] = v[i];
        }
    }
}

// The affine map on the side of the activation, by groups of d consecutive columns: t' = A^T t, and what B and the centre of the
// codes add. A lane has four columns; for d = 8 a group is two lanes.
enum Fold : uint32_t { kPlain, kFours, kEights };

// v becomes t'; returns this lane's share of beta = sum of B t + centre * sum of t'. `table`: for even and odd lanes, eight rows of A,
// the own columns' before the neighbour's, four columns each, then B.
template <bool EIGHTS>
__device__ __forceinline__ float fold(float (&v)[4], const float* table, float centre, uint32_t col, uint32_t cols) {
    const float4* rows = reinterpret_cast<const float4*>(table) + (col / 4 & 1) * 9;
    float out[4] = {0.0f, 0.0f, 0.0f, 0.0f}, beta = 0.0f;
    auto add = [&](int i, float t) {
        const float4 a = __ldg(rows + i);
        out[0] += t * a.x, out[1] += t * a.y, out[2] += t * a.z, out[3] += t * a.w;
    };
#pragma unroll
    for (int i = 0; i < 4; ++i) add(i, v[i]);
    if (EIGHTS) {
#pragma unroll
        for (int i = 0; i < 4; ++i) add(4 + i, __shfl_xor_sync(kAll, v[i], 1));
    }
    const float4 b = __ldg(rows + 8);
    const float add_b[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        // Codes beyond the last column are 0, not the centre.
        out[k] = col + k < cols ? out[k] : 0.0f;
        beta += add_b[k] * v[k] + centre * out[k];
        v[k] = out[k];
    }
    return beta;
}

}  // namespace unisvq
