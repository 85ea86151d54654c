//! The loops that depend on the machine: matrix products and exponentials over slices.
//!
//! The only module of this crate with `unsafe`, which is confined to two calls whose requirements are checked just before.

mod exp;
mod gemm;

pub(crate) use exp::{GELU_CUBE, GELU_ROOT, exp_sum_in_place, gelu_tanh_mul, silu_mul};
pub(crate) use gemm::{Mat, MatMut, Threads, matmul, matmul_add};
