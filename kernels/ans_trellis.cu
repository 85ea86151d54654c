// Points and values of the entropy-coded trellis (docs/FORMAT.md, section 3.4).
//
//   point  y[i] = 2 j + u, u the parity of the state of path i mod 8
//   value  x[i] = (scale[row] * step) * unit(y[i]), every product rounded to f32 on its own, then to the output type
//
// Shapes: a sequence of rows * cols values in streams of 16384; stream s takes the words starts[s] up to starts[s + 1].
// units [2 * reach + 1]: what the points -reach to reach stand for; points beyond stand for themselves.
// Grid: one thread per stream, blocks of 32. Dynamic shared memory: 8192 bytes, the tables of even and odd points.
// Damaged streams, and points too large for the output, set status[0] to the least number 1 + stream of them.
// Caller: gosset-cuda/src/launch/ans.rs.

#include "ans.cuh"
#include "decoded.cuh"
#include "params.cuh"

namespace {

constexpr uint32_t kStreamLen = 16384;
constexpr int kPaths = 8;

__device__ __forceinline__ float unit(const AnsTrellisParams& p, int y) {
    const uint32_t index = static_cast<uint32_t>(y) + p.reach;
    return index <= 2 * p.reach ? __ldg(p.units + index) : static_cast<float>(y);
}

template <typename Out>
__device__ __forceinline__ void decode(const AnsTrellisParams& p) {
    extern __shared__ uint32_t tables[];
    using T = typename Out::Element;
    ans::load_tables(tables, p.tables, 2);
    const ans::Escape* const escapes = reinterpret_cast<const ans::Escape*>(p.escapes);
    const uint32_t stream = blockIdx.x * blockDim.x + threadIdx.x;
    if (stream >= p.n_streams) return;
    const uint64_t first = static_cast<uint64_t>(stream) * kStreamLen, n = static_cast<uint64_t>(p.rows) * p.cols;
    const uint32_t n_kept = static_cast<uint32_t>(min(n - first, static_cast<uint64_t>(kStreamLen)));
    const uint32_t* const words = p.words + p.starts[stream];
    const uint32_t n_words = static_cast<uint32_t>(p.starts[stream + 1] - p.starts[stream]);

    ans::Decoder decoder;
    decoder.open(words, words + n_words);
    RowCursor place{};
    if constexpr (Out::kValues) place.open(p.scales, p.step, p.rows, p.cols, first);
    T* const out = reinterpret_cast<T*>(p.out) + first;
    uint32_t states[kPaths] = {};
    bool fits = true;
    // Classes of even points are centred on zero.
    const uint32_t bias = p.raw_bits == 0 ? 0 : 1u << (p.raw_bits - 1);
    for (uint32_t at = 0; at < n_kept; at += kPaths) {
        alignas(16) T values[kPaths];
#pragma unroll
        for (int path = 0; path < kPaths; ++path) {
            values[path] = T{};
            if (at + path < n_kept) {
                const uint32_t state = states[path], odd = state & 1u;
                const int coded = decoder.symbol(path % ans::kLanes, odd, tables, escapes);
                const uint32_t raw = decoder.raw(p.raw_bits);
                const uint32_t j = (static_cast<uint32_t>(coded >> 1) << p.raw_bits) + raw - (odd ? 0u : bias);
                const int y = static_cast<int>(2 * j + odd);
                states[path] = (state >> 1) ^ (odd ? p.taps[0] : 0u) ^ (j & 1u ? p.taps[1] : 0u);
                fits &= Out::fits(y);
                values[path] = Out::convert(y, Out::kValues ? unit(p, y) : 0.0f, place.factor);
                if constexpr (Out::kValues) place.advance();
            }
        }
        store_block<kPaths>(out, at, n_kept, values);
    }
    if (!fits || !decoder.finished(words, n_words)) atomicMin(p.status, 1u + stream);
}

}  // namespace

#define ENTRY(NAME, OUT) \
    extern "C" __global__ void __launch_bounds__(32) NAME(const __grid_constant__ AnsTrellisParams p) { decode<OUT>(p); }

ENTRY(ans_trellis_points_i32, Points<int32_t>)
ENTRY(ans_trellis_points_i16, Points<int16_t>)
ENTRY(ans_trellis_points_i8, Points<int8_t>)
ENTRY(ans_trellis_values_f32, Values<float>)
ENTRY(ans_trellis_values_f16, Values<__half>)
ENTRY(ans_trellis_values_bf16, Values<__nv_bfloat16>)
