//! Devices, memory, streams and graphs.

use gosset_cuda::{CudaError, Gpu, OpenOptions};

use crate::gpu;

#[test]
fn what_goes_up_comes_down() {
    let Some(gpu) = gpu() else { return };
    eprintln!("{}", gpu.info());
    let data: Vec<u32> = (0..100_003).map(|i: u32| i.wrapping_mul(2_654_435_761)).collect();
    let before = gpu.allocated_bytes();
    let mut buffer = gpu.upload(&data).unwrap();
    assert_eq!(gpu.download(buffer.as_slice()).unwrap(), data);
    assert_eq!(gpu.allocated_bytes() - before, 4 * 100_003);
    buffer.write(&[7, 8]).unwrap();
    assert_eq!(gpu.download(buffer.as_slice().slice(0..3).unwrap()).unwrap(), [7, 8, data[2]]);
    assert!(buffer.as_slice().slice(0..100_004).is_err());
    drop(buffer);
    assert_eq!(gpu.allocated_bytes(), before);
    let zeros = gpu.alloc::<f32>(1000).unwrap();
    assert!(gpu.download(zeros.as_slice()).unwrap().iter().all(|&x| x == 0.0));
}

#[test]
fn what_does_not_fit_is_refused_with_the_figures() {
    let Some(_) = gpu() else { return };
    let limited = Gpu::open(0, &OpenOptions::default().memory_limit(64 << 20)).unwrap();
    let kept = limited.alloc::<u8>(60 << 20).unwrap();
    let error = limited.alloc::<u8>(8 << 20).unwrap_err();
    let CudaError::OutOfMemory { needed, free, total, .. } = &error else { panic!("{error}") };
    assert_eq!((*needed, *total), (8 << 20, 64 << 20));
    assert!(*free <= 4 << 20);
    drop(kept);
    assert!(limited.alloc::<u8>(8 << 20).is_ok(), "the device is usable after a refusal");
    assert!(limited.alloc::<u64>(usize::MAX / 4).is_err());
}

#[test]
fn a_device_that_is_not_there_is_named_with_those_that_are() {
    let Some(_) = gpu() else { return };
    let error = Gpu::open(7, &OpenOptions::default()).unwrap_err();
    let CudaError::NoSuchDevice { ordinal: 7, found } = &error else { panic!("{error}") };
    assert!(!found.is_empty() && error.to_string().contains(&found[0]), "{error}");
}

#[test]
fn without_a_driver_the_reason_is_one_line() {
    if let Err(error) = Gpu::detect() {
        let text = error.to_string();
        assert!(!text.contains('\n') && text.contains("CPU"), "{text}");
    }
}
