// Products of tensor cores on halves: mma.m16n8k16 with f32 sums. Lane (g, t), g = lane / 4, t = lane % 4, holds of A rows g and g + 8 (registers 0, 2
// and 1, 3), k = 2 t, 2 t + 1 (0, 1) and 2 t + 8, 2 t + 9 (2, 3); of B the same k of column g; of d rows g (0, 1) and g + 8, columns 2 t and 2 t + 1.
#pragma once

#include <cstdint>

namespace gosset {

// d += a b, 16 x 16 by 16 x 8; `kFirst`: d = a b.
template <bool kFirst = false>
__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    if constexpr (kFirst) {
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
            : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));
    } else {
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
}

}  // namespace gosset
