// Lattice points and values of ANS streams (docs/FORMAT.md, section 3.3).
//
//   point  y[i]            integer, as the reference decoder has it
//   value  x[i] = (scale[row] * step) * embed(y[i]), every product rounded to f32 on its own, then to the output type
//
// Shapes: a sequence of rows * cols values in streams of 32768; stream s takes the words starts[s] up to starts[s + 1].
// Grid: one thread per stream, blocks of 32. Dynamic shared memory: 4096 bytes per context, at most 32 KB.
// DIM: dimension of the lattice, 1, 2, 4 or 8. Damaged streams, and points too large for the output, set status[0] to the least number 1 + stream of them.
// Only streams run in parallel, a matrix of 14336 x 4096 has 1792 of them: made for loading, not for products.
// Caller: gosset-cuda/src/launch/ans.rs.

#include "ans.cuh"
#include "decoded.cuh"
#include "params.cuh"
#include "rice.cuh"

namespace {

constexpr uint32_t kStreamLen = 32768;

// Index of the coordinate that is coded i-th.
__device__ __forceinline__ constexpr int coordinate(int i) { return DIM == 2 ? 1 - i : i; }

// Low bits of that coordinate that the ones before determine.
__device__ __forceinline__ constexpr unsigned known_bits(int i) {
    return (DIM == 4 || DIM == 8) && i == DIM - 1 ? 2 : DIM == 1 || (i == 0 && DIM != 4) ? 0 : 1;
}

// Those bits.
__device__ __forceinline__ uint32_t residue(int i, const int (&y)[DIM]) {
    if (DIM == 2 && i == 1) return y[DIM - 1] & 1;
    if ((DIM == 4 || DIM == 8) && i == DIM - 1) {
        uint32_t sum = 0;
#pragma unroll
        for (int j = 0; j < DIM - 1; ++j) sum -= static_cast<uint32_t>(y[j]);
        return sum & (DIM == 4 ? 2u : 3u);
    }
    return DIM == 8 && i > 0 ? y[0] & 1 : 0;
}

// The table of that coordinate.
__device__ __forceinline__ uint32_t context(int i, uint32_t known) {
    if (DIM == 2) return i == 1 ? 1 + known : 0;
    if (DIM == 4) return i == 3 ? 1 + (known >> 1) : 0;
    if (DIM == 8) return i == 7 ? 3 + known : i > 0 ? 1 + known : 0;
    return 0;
}

// The next coordinate of a block.
__device__ __forceinline__ int next(
    ans::Decoder& decoder, int lane, int i, const int (&y)[DIM], const AnsLatticeParams& p, const uint32_t* tables,
    const ans::Escape* escapes) {
    const uint32_t known = residue(i, y);
    if (p.raw_bits == 0) return decoder.symbol(lane, context(i, known), tables, escapes);
    const uint32_t high = decoder.symbol(lane, DIM == 2 ? i : 0, tables, escapes);
    const uint32_t low = decoder.raw(p.raw_bits - known_bits(i)) << known_bits(i);
    return static_cast<int>((high << p.raw_bits) | low | known);
}

template <typename Out>
__device__ __forceinline__ void decode(const AnsLatticeParams& p) {
    extern __shared__ uint32_t tables[];
    using T = typename Out::Element;
    ans::load_tables(tables, p.tables, p.n_contexts);
    const ans::Escape* const escapes = reinterpret_cast<const ans::Escape*>(p.escapes);
    const uint32_t stream = blockIdx.x * blockDim.x + threadIdx.x;
    if (stream >= p.n_streams) return;
    const uint64_t first = static_cast<uint64_t>(stream) * kStreamLen, n = static_cast<uint64_t>(p.rows) * p.cols;
    const uint32_t n_kept = static_cast<uint32_t>(min(n - first, static_cast<uint64_t>(kStreamLen)));
    const uint32_t n_blocks = (n_kept + DIM - 1) / DIM;
    const uint32_t* const words = p.words + p.starts[stream];
    const uint32_t n_words = static_cast<uint32_t>(p.starts[stream + 1] - p.starts[stream]);

    ans::Decoder decoder;
    decoder.open(words, words + n_words);
    RowCursor place{};
    if constexpr (Out::kValues) place.open(p.scales, p.step, p.rows, p.cols, first);
    T* const out = reinterpret_cast<T*>(p.out) + first;
    bool fits = true;
    for (uint32_t block = 0; block < n_blocks; block += ans::kLanes) {
        int y[ans::kLanes][DIM] = {};
        const int n_lanes = min(n_blocks - block, static_cast<uint32_t>(ans::kLanes));
#pragma unroll
        for (int i = 0; i < DIM; ++i) {
#pragma unroll
            for (int lane = 0; lane < ans::kLanes; ++lane) {
                if (lane < n_lanes) y[lane][coordinate(i)] = next(decoder, lane, i, y[lane], p, tables, escapes);
            }
        }
#pragma unroll
        for (int lane = 0; lane < ans::kLanes; ++lane) {
            const uint32_t at = (block + lane) * DIM;
            alignas(16) T values[DIM];
#pragma unroll
            for (int i = 0; i < DIM; ++i) {
                fits &= Out::fits(y[lane][i]);
                values[i] = Out::convert(y[lane][i], rice::embed<DIM>(y[lane][i], i), place.factor);
                if constexpr (Out::kValues) place.advance();
            }
            store_block<DIM>(out, at, n_kept, values);
        }
    }
    if (!fits || !decoder.finished(words, n_words)) atomicMin(p.status, 1u + stream);
}

}  // namespace

#define ENTRY(NAME, OUT) \
    extern "C" __global__ void __launch_bounds__(32) NAME(const __grid_constant__ AnsLatticeParams p) { decode<OUT>(p); }

ENTRY(ans_points_i32, Points<int32_t>)
ENTRY(ans_points_i16, Points<int16_t>)
ENTRY(ans_points_i8, Points<int8_t>)
ENTRY(ans_values_f32, Values<float>)
ENTRY(ans_values_f16, Values<__half>)
ENTRY(ans_values_bf16, Values<__nv_bfloat16>)
