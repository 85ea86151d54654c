//! Drivers and capabilities: what the driver loads, what it refuses, and in which words (cases H01 and H02).

use gosset_cuda::{CudaError, Gpu, OpenOptions, launch::probe, targets};
use gosset_transform::{Domain, RandomStream};

use crate::gpu;

/// A module that only a driver of the far future reads.
const FUTURE: &str = ".version 99.0\n.target sm_80\n.address_size 64\n\n.visible .entry future()\n{\n\tret;\n}\n";

/// The probe's result on this device, checked.
fn check_probe(gpu: &Gpu) {
    for n in [0, 1, 255, 256, 257, 100_003] {
        let data: Vec<u32> = (0..n).map(|i: u32| i.wrapping_mul(2_654_435_761)).collect();
        let mut y = gpu.upload(&data).unwrap();
        let stream = gpu.stream().unwrap();
        probe::affine(gpu, stream.as_ref(), y.as_mut(), 0x9e37_79b9).unwrap();
        stream.synchronize().unwrap();
        let want: Vec<u32> = (0..n).zip(&data).map(|(i, y)| y.wrapping_mul(0x9e37_79b9).wrapping_add(i)).collect();
        assert!(gpu.download(y.as_slice()).unwrap() == want, "{n} words");
    }
}

#[test]
fn a_module_from_the_future_is_refused_in_one_message() {
    let Some(gpu) = gpu() else { return };
    let error = gpu.check_ptx(FUTURE).unwrap_err();
    let driver = gpu.info().driver;
    assert_eq!(error, CudaError::DriverTooOld { found: driver, needed: (103, 0) });
    let text = error.to_string();
    for part in [format!("CUDA {}.{}", driver.0, driver.1), "103.0".into(), "update".into(), "CPU".into()] {
        assert!(text.contains(&part), "expected {part:?} in {text:?}");
    }
    assert!(!text.contains('\n'), "{text}");
    // The same text with a version that the driver has is loaded, and the device is none the worse.
    gpu.check_ptx(&FUTURE.replace("99.0", "8.0")).unwrap();
    check_probe(&gpu);
}

#[test]
fn what_is_no_ptx_is_refused_with_the_log() {
    let Some(gpu) = gpu() else { return };
    let text = FUTURE.replace("99.0", "8.0").replace("ret;", "no_such_instruction;");
    let error = gpu.check_ptx(&text).unwrap_err().to_string();
    assert!(error.contains("CUDA_ERROR_INVALID_PTX"), "{error}");
    assert!(gpu.check_ptx("").is_err() && gpu.check_ptx(".version 8.0\n\0").is_err());
    check_probe(&gpu);
}

#[test]
fn random_words_are_those_of_the_cpu() {
    let Some(gpu) = gpu() else { return };
    let stream = gpu.stream().unwrap();
    for (seed, domain, index, first) in [
        (0, Domain::Signs, 0, 0),
        (0x0123_4567_89ab_cdef, Domain::Dither, (7 << 32) | 5, 1000),
        (u64::MAX, Domain::Rotation, u64::MAX, u32::MAX - 100),
    ] {
        let mut y = gpu.alloc(4 * 1000).unwrap();
        probe::random(&gpu, stream.as_ref(), y.as_mut(), seed, domain, index, first).unwrap();
        stream.synchronize().unwrap();
        let words = RandomStream::new(seed, domain, index);
        let want: Vec<u32> = (0..4000).map(|i| words.word(4 * u64::from(first) + i)).collect();
        assert!(gpu.download(y.as_slice()).unwrap() == want, "seed {seed:#x}, {domain:?}, index {index:#x}");
    }
    let mut y = gpu.alloc(6).unwrap();
    assert!(probe::random(&gpu, stream.as_ref(), y.as_mut(), 0, Domain::Signs, 0, 0).is_err());
}

#[test]
fn a_capability_below_the_least_is_refused_at_once() {
    let Some(gpu) = gpu() else { return };
    for (major, minor) in [(6, 1), (7, 5)] {
        let error = Gpu::open(0, &OpenOptions::default().pretend_capability(major, minor)).unwrap_err();
        assert!(matches!(error, CudaError::CapabilityTooLow { ordinal: 0, .. }), "{error}");
        let text = error.to_string();
        for part in [&format!("{major}.{minor}"), &gpu.info().name, "sm_80", "CPU"] {
            assert!(text.contains(part), "expected {part:?} in {text:?}");
        }
    }
}

#[test]
fn every_capability_runs_the_text_that_is_meant_for_it() {
    // The texts for 8.0 run on everything later; that for 9.0 only there.
    let Some(gpu) = gpu() else { return };
    let own = gpu.info().capability;
    for capability in [(8, 0), (8, 9), (9, 0), (12, 0)] {
        if capability == (9, 0) && own != capability {
            eprintln!("SKIPPED: texts for sm_90a on a device of capability {}.{}", own.0, own.1);
            continue;
        }
        let (major, minor) = capability;
        let pretended = Gpu::open(0, &OpenOptions::default().pretend_capability(major, minor)).unwrap();
        assert_eq!(pretended.info().capability, capability);
        check_probe(&pretended);
    }
}

#[test]
fn every_kernel_of_every_module_is_found() {
    let Some(gpu) = gpu() else { return };
    let begin = std::time::Instant::now();
    let n = gpu.preload().unwrap();
    eprintln!("{n} kernels compiled or found in the driver's cache in {:.1} s", begin.elapsed().as_secs_f64());
    assert!(n >= targets()[0].n_modules);
    check_probe(&gpu);
}
