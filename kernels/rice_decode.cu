// Rice streams to lattice points, and to values in the rotated frame.
//
//   point  y[i]            integer, as the reference decoder has it
//   value  x[i] = (scale[row] * step) * embed(y[i]), every product rounded to f32 on its own, then to the output type
//
// Shapes: a sequence of rows * cols values, cut into streams of 512; stream s starts at bit bases[s / 64] + offsets[s].
// Grid: one thread per stream, blocks of 64. No dynamic shared memory. DIM: dimension of the lattice, 1, 2, 4 or 8.
// Streams that do not take exactly their bits, symbols too large for the format and points too large for the output set
// status[0] to the least number 1 + stream of all of them.
// Caller: gosset-cuda/src/launch/rice.rs.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "decoded.cuh"
#include "params.cuh"
#include "rice.cuh"

namespace {

template <typename Out>
__device__ __forceinline__ void decode(const RiceDecodeParams& p) {
    using T = typename Out::Element;
    const uint32_t stream = blockIdx.x * blockDim.x + threadIdx.x;
    if (stream >= p.n_streams) return;
    const uint64_t first = static_cast<uint64_t>(stream) * rice::kStreamLen;
    const uint64_t n = static_cast<uint64_t>(p.rows) * p.cols;
    const uint64_t n_padded = (n + DIM - 1) / DIM * DIM;
    const uint32_t n_symbols = static_cast<uint32_t>(min(n_padded - first, static_cast<uint64_t>(rice::kStreamLen)));
    const uint32_t n_kept = static_cast<uint32_t>(min(n - first, static_cast<uint64_t>(rice::kStreamLen)));

    BitReader bits;
    bits.open(p.words, p.bases[stream / rice::kStreamsPerPage] + p.offsets[stream], p.words + p.n_words);
    RowCursor place{};
    if constexpr (Out::kValues) place.open(p.scales, p.step, p.rows, p.cols, first);
    T* const out = reinterpret_cast<T*>(p.out) + first;
    uint32_t all_bits = 0;
    bool fits = true;
    for (uint32_t at = 0; at < n_symbols; at += DIM) {
        uint32_t s[DIM];
#pragma unroll
        for (int i = 0; i < DIM; ++i) {
            s[i] = rice::symbol(bits, p.ks[rice::symbol_class<DIM>(i)]);
            all_bits |= s[i];
        }
        int y[DIM];
        rice::unstrip<DIM>(s, y);
        alignas(16) T block[DIM];
#pragma unroll
        for (int i = 0; i < DIM; ++i) {
            fits &= Out::fits(y[i]);
            block[i] = Out::convert(y[i], rice::embed<DIM>(y[i], i), place.factor);
            if constexpr (Out::kValues) place.advance();
        }
        store_block<DIM>(out, at, n_kept, block);
    }
    if (bits.n_read != p.lengths[stream] || all_bits >> rice::kSymbolBits || !fits) atomicMin(p.status, 1u + stream);
}

}  // namespace

#define ENTRY(NAME, OUT) \
    extern "C" __global__ void __launch_bounds__(64) NAME(const __grid_constant__ RiceDecodeParams p) { decode<OUT>(p); }

ENTRY(rice_points_i32, Points<int32_t>)
ENTRY(rice_points_i16, Points<int16_t>)
ENTRY(rice_points_i8, Points<int8_t>)
ENTRY(rice_values_f32, Values<float>)
ENTRY(rice_values_f16, Values<__half>)
ENTRY(rice_values_bf16, Values<__nv_bfloat16>)
