// Programmatic dependent launch: a kernel may start while its predecessor ends, and waits before it touches what that one made.
#pragma once

// Everything that earlier kernels of the stream wrote is there after this. Every kernel calls it before its first write.
__device__ __forceinline__ void wait_for_predecessor() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The successor may start as soon as every block got here.
__device__ __forceinline__ void let_successor_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Brings the 128 bytes around `p` to the second-level cache; also ahead of wait_for_predecessor.
__device__ __forceinline__ void prefetch_l2(const void* p) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}
