//! Products on the device against sums in f64 on the CPU: every kind of storage, type, batch, width and layout.

use candle_core::{DType, Device, Module, Tensor};
use gosset_runtime::Linear;

use crate::device;
use crate::matrices::{Matrix, OPS, matrix, normal, round};

const WIDTHS: [usize; 4] = [576, 896, 2560, 4864];
const BATCHES: [usize; 11] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17];
const MAX_BATCH: usize = 17;
const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];
/// No multiple of anything that a kernel works in.
const ROWS: usize = 70;

/// How the activation lies in memory.
#[derive(Debug, Clone, Copy)]
enum Layout {
    Plain,
    /// Rows and columns out of the middle of a larger tensor.
    Narrowed,
    /// Rows out of the middle: contiguous, with an offset.
    Offset,
    Transposed,
}

const LAYOUTS: [Layout; 4] = [Layout::Plain, Layout::Narrowed, Layout::Offset, Layout::Transposed];

/// Unit roundoff.
fn unit(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 2f64.powi(-11),
        DType::BF16 => 2f64.powi(-9),
        _ => 2f64.powi(-24),
    }
}

/// Largest error of an element over the norms of activation and row.
///
/// Dense: the weight is rounded to the type and so is the result, one unit each at most; sums of 4864 terms in f32 err by some 70
/// units of f32, twice that is granted. Coded: 1e-3 is what kernels are allowed, and the result is rounded.
fn bound(dtype: DType, coded: bool) -> f64 {
    let sum = 140.0 * unit(DType::F32);
    if coded { 1e-3 + unit(dtype) } else { 2.0 * unit(dtype) + sum }
}

/// `x` `[n, cols]`, its values given, in a layout on a device.
fn placed(x: &[f32], n: usize, cols: usize, dtype: DType, layout: Layout, device: &Device) -> Tensor {
    // What must not be read is far from anything that could pass for a result.
    let poison = |rows, cols| Tensor::full(3e4f32, (rows, cols), &Device::Cpu).unwrap();
    let plain = Tensor::from_slice(x, (n, cols), &Device::Cpu).unwrap();
    let put = |t: Tensor| t.to_dtype(dtype).unwrap().to_device(device).unwrap();
    match layout {
        Layout::Plain => put(plain),
        Layout::Transposed => put(plain.t().unwrap().contiguous().unwrap()).t().unwrap(),
        Layout::Offset => {
            let parts = [poison(2, cols), plain, poison(1, cols)];
            put(Tensor::cat(&parts, 0).unwrap()).narrow(0, 2, n).unwrap()
        }
        Layout::Narrowed => {
            let wide = Tensor::cat(&[poison(n, 8), plain, poison(n, 5)], 1).unwrap();
            let parts = [poison(1, cols + 13), wide, poison(2, cols + 13)];
            put(Tensor::cat(&parts, 0).unwrap()).narrow(0, 1, n).unwrap().narrow(1, 8, cols).unwrap()
        }
    }
}

/// `x Wᵀ + b` in f64.
fn expected(m: &Matrix, bias: Option<&[f32]>, x: &[f32]) -> Vec<f64> {
    let rows = x.chunks_exact(m.cols).flat_map(|x| {
        m.values.chunks_exact(m.cols).enumerate().map(move |(row, w)| {
            let sum: f64 = w.iter().zip(x).map(|(&w, &x)| f64::from(w) * f64::from(x)).sum();
            sum + bias.map_or(0.0, |bias| f64::from(bias[row]))
        })
    });
    rows.collect()
}

fn norm(x: &[f32]) -> f64 {
    x.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>().sqrt()
}

/// Largest error over norms, every element checked for type, shape and bound.
fn check(
    m: &Matrix,
    on_device: &Linear,
    bias: Option<&[f32]>,
    dtype: DType,
    batches: &[usize],
    layouts: &[Layout],
    device: &Device,
) -> f64 {
    let name = format!("{dtype:?}").to_uppercase();
    let x: Vec<f32> = normal(MAX_BATCH * m.cols, 77, 1.0).into_iter().map(|v| round(&name, v)).collect();
    let all = expected(m, bias, &x);
    let row_norms: Vec<f64> = m.values.chunks_exact(m.cols).map(norm).collect();
    let mut worst = 0f64;
    for &n in batches {
        for &layout in layouts {
            let given = placed(&x[..n * m.cols], n, m.cols, dtype, layout, device);
            let y = on_device.forward(&given).unwrap();
            let case = format!("{}x{} {dtype:?} batch {n} {layout:?}", m.rows, m.cols);
            assert_eq!((y.dtype(), y.dims()), (dtype, &[n, m.rows][..]), "{case}");
            assert!(y.device().same_device(device), "{case}");
            let y = y.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
            for (i, (&found, &expected)) in y.iter().zip(&all).enumerate() {
                let (token, row) = (i / m.rows, i % m.rows);
                let scale = norm(&x[token * m.cols..][..m.cols]) * row_norms[row]
                    + bias.map_or(0.0, |bias| f64::from(bias[row].abs()));
                let error = (f64::from(found) - expected).abs() / scale;
                worst = if error > worst || error.is_nan() { error } else { worst };
                assert!(
                    error <= bound(dtype, is_coded(on_device)),
                    "{case} row {row}: {found}, expected {expected}: {error:.2e}"
                );
            }
        }
    }
    worst
}

fn is_coded(linear: &Linear) -> bool {
    matches!(linear, Linear::Cuda(linear) if linear.is_coded())
}

/// The matrix of the case: op x type x batch x width x layout.
#[test]
fn h06_products_are_those_of_the_cpu() {
    let Some(gpu) = device() else { return };
    for &op in OPS {
        for cols in WIDTHS {
            let m = matrix(op, ROWS, cols, None);
            let mut line = format!("{op:14} {ROWS}x{cols:4}");
            for dtype in DTYPES {
                let on_device = m.linear.to_device(&gpu, dtype).unwrap();
                let worst = check(&m, &on_device, None, dtype, &BATCHES, &LAYOUTS, &gpu);
                let kind = if is_coded(&on_device) { "coded" } else { "dense" };
                line += &format!("  {dtype:?} {kind} {worst:.1e}");
            }
            eprintln!("{line}");
        }
    }
}

/// Weights in one type, activations in another.
#[test]
fn h06_the_type_of_the_result_is_that_of_the_activation_not_of_the_weight() {
    let Some(gpu) = device() else { return };
    let m = matrix("dense", ROWS, 576, None);
    for held in DTYPES {
        let on_device = m.linear.to_device(&gpu, held).unwrap();
        for dtype in DTYPES {
            let x = placed(&normal(3 * 576, 1, 1.0), 3, 576, dtype, Layout::Plain, &gpu);
            assert_eq!(on_device.forward(&x).unwrap().dtype(), dtype, "held in {held:?}");
        }
    }
}

/// Every linear of a layer of Qwen2.5-0.5B, with its bias.
#[test]
fn h06_the_layer_of_a_model_of_half_a_billion_weights() {
    let Some(gpu) = device() else { return };
    let (hidden, ffn, kv) = (896, 4864, 128);
    for op in ["dense", "e8-rice@4"] {
        for (name, rows, cols, biased) in [
            ("q", hidden, hidden, true),
            ("k", kv, hidden, true),
            ("o", hidden, hidden, false),
            ("gate", ffn, hidden, false),
            ("down", hidden, ffn, false),
        ] {
            let bias = biased.then(|| normal(rows, 3, 0.5));
            let m = matrix(op, rows, cols, bias.clone());
            for dtype in DTYPES {
                let on_device = m.linear.to_device(&gpu, dtype).unwrap();
                let worst = check(&m, &on_device, bias.as_deref(), dtype, &[1, 5, 17], &[Layout::Plain], &gpu);
                eprintln!("{op:14} {name:5} {rows}x{cols} {dtype:?} {worst:.1e}");
            }
        }
    }
}

/// The operations before and after are on the same stream: no result is read before it is there.
#[test]
fn products_are_in_order_with_candle_s_own_operations() {
    let Some(gpu) = device() else { return };
    let m = matrix("e8-rice@4", 896, 896, None);
    let on_device = m.linear.to_device(&gpu, DType::F32).unwrap();
    let chain = |linear: &Linear, device: &Device| {
        let mut x =
            Tensor::from_slice(&normal(4 * 896, 2, 1.0), (4, 896), &Device::Cpu).unwrap().to_device(device).unwrap();
        for _ in 0..20 {
            x = (linear.forward(&(&x * 1.5).unwrap()).unwrap() + &x).unwrap().tanh().unwrap();
        }
        x.flatten_all().unwrap().to_vec1::<f32>().unwrap()
    };
    let (found, expected) = (chain(&on_device, &gpu), chain(&m.linear, &Device::Cpu));
    let apart = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
    eprintln!("20 steps: {apart:.1e} apart");
    assert!(apart < 0.05, "{apart}");
}

/// Threads share a layer, each with the stream that candle gives it.
#[test]
fn h07_threads_share_a_layer() {
    let Some(gpu) = device() else { return };
    for op in ["e8-rice@4", "shift-16@3", "dense"] {
        let m = matrix(op, ROWS, 896, None);
        let on_device = m.linear.to_device(&gpu, DType::F32).unwrap();
        for n in [1, 5] {
            let x = placed(&normal(n * 896, 4, 1.0), n, 896, DType::F32, Layout::Plain, &gpu);
            let run = || on_device.forward(&x).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
            let alone = run();
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| (0..200).for_each(|_| assert_eq!(run(), alone, "{op} batch {n}")));
                }
            });
        }
    }
}
