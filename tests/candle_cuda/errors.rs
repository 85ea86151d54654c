//! What a layer on a device refuses, and with which words.

use candle_core::{DType, Device, Module, Tensor};

use crate::device;
use crate::matrices::matrix;

#[test]
fn h06_types_without_a_product_are_refused_by_name() {
    let Some(gpu) = device() else { return };
    for op in ["dense", "e8-rice@4"] {
        let m = matrix(op, 70, 576, None);
        let on_device = m.linear.to_device(&gpu, DType::F32).unwrap();
        for dtype in [DType::F64, DType::U32, DType::U8, DType::I64] {
            let x = Tensor::zeros((2, 576), dtype, &gpu).unwrap();
            let error = on_device.forward(&x).unwrap_err().to_string();
            assert!(error.contains("linear") && error.contains(&format!("{dtype:?}")), "{error}");
            let error = m.linear.to_device(&gpu, dtype).unwrap_err().to_string();
            assert!(error.contains(&format!("{dtype:?}")), "{error}");
        }
        let x = Tensor::zeros((2, 575), DType::F32, &gpu).unwrap();
        let error = on_device.forward(&x).unwrap_err().to_string();
        assert!(error.contains("576") && error.contains("575"), "{error}");
    }
}

#[test]
fn h04_tensors_and_weights_on_two_devices_are_an_error() {
    let Some(gpu) = device() else { return };
    let m = matrix("e8-rice@4", 70, 576, None);
    let on_device = m.linear.to_device(&gpu, DType::F32).unwrap();
    for (linear, x) in [(&on_device, &Device::Cpu), (&m.linear, &gpu)] {
        let x = Tensor::zeros((1, 576), DType::F32, x).unwrap();
        let error = linear.forward(&x).unwrap_err().to_string();
        assert!(error.contains("Cpu") && error.contains("Cuda") && error.contains("to_device"), "{error}");
    }
    assert!(m.linear.to_device(&Device::Cpu, DType::F32).is_err());
    assert!(on_device.to_device(&gpu, DType::F32).is_err());
}

#[test]
fn leading_dimensions_are_kept_and_may_be_empty() {
    let Some(gpu) = device() else { return };
    for op in ["dense", "e8-rice@4"] {
        let on_device = matrix(op, 70, 576, None).linear.to_device(&gpu, DType::F16).unwrap();
        for dims in [vec![576], vec![2, 3, 576], vec![0, 576], vec![2, 0, 576]] {
            let x = Tensor::zeros(dims.as_slice(), DType::F16, &gpu).unwrap();
            let y = on_device.forward(&x).unwrap();
            assert_eq!(y.dims().split_last().unwrap(), (&70, &dims[..dims.len() - 1]), "{op}");
        }
    }
}
