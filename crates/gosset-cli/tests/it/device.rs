//! `--device` and `gosset doctor` on machines of every kind: without driver, with one that is too old, with hidden or old devices.
//!
//! Drivers are imitated by a library of ours named `libcuda.so`, which the tests compile, so that nothing depends on the machine.

use std::path::PathBuf;
use std::process::Command;

use gosset_tests::t0::T0;

use crate::support::{Bench, Run, finish};

/// What a driver answers while it is only asked, steered by variables of the environment.
const FAKE_DRIVER: &str = r#"
use std::ffi::{c_char, c_int, c_void};

fn var(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

unsafe fn put(to: *mut c_char, len: usize, text: &str) {
    for (i, byte) in text.bytes().chain([0]).take(len).enumerate() { *to.add(i) = byte as c_char; }
}

#[no_mangle] pub unsafe extern "C" fn cuInit(_flags: u32) -> c_int {
    if let Some(path) = std::env::var_os("FAKE_TOUCHED") { let _ = std::fs::write(path, "touched"); }
    if var("FAKE_DEVICES", 0) == 0 { 100 } else { 0 }
}
#[no_mangle] pub unsafe extern "C" fn cuDriverGetVersion(to: *mut c_int) -> c_int {
    *to = var("FAKE_VERSION", 13000) as c_int; 0
}
#[no_mangle] pub unsafe extern "C" fn cuDeviceGetCount(to: *mut c_int) -> c_int { *to = var("FAKE_DEVICES", 0) as c_int; 0 }
#[no_mangle] pub unsafe extern "C" fn cuDeviceGet(to: *mut c_int, ordinal: c_int) -> c_int { *to = ordinal; 0 }
#[no_mangle] pub unsafe extern "C" fn cuDeviceGetName(to: *mut c_char, len: c_int, device: c_int) -> c_int {
    put(to, len as usize, if device == 0 { "Imitation One" } else { "Imitation Two" }); 0
}
#[no_mangle] pub unsafe extern "C" fn cuDeviceGetAttribute(to: *mut c_int, attribute: c_int, _device: c_int) -> c_int {
    *to = match attribute {
        75 => var("FAKE_CAPABILITY", 90) / 10,
        76 => var("FAKE_CAPABILITY", 90) % 10,
        16 => 8,
        _ => 1 << 16,
    } as c_int; 0
}
#[no_mangle] pub unsafe extern "C" fn cuDeviceTotalMem_v2(to: *mut usize, _device: c_int) -> c_int { *to = 8 << 30; 0 }
#[no_mangle] pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(to: *mut *mut c_void, _device: c_int) -> c_int {
    *to = 16 as *mut c_void; 0
}
#[no_mangle] pub unsafe extern "C" fn cuDevicePrimaryCtxRelease_v2(_device: c_int) -> c_int { 0 }
#[no_mangle] pub unsafe extern "C" fn cuCtxSetCurrent(_context: *mut c_void) -> c_int { 0 }
#[no_mangle] pub unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> c_int {
    *free = var("FAKE_FREE_MIB", 7 << 10) << 20; *total = 8 << 30; 0
}
#[no_mangle] pub unsafe extern "C" fn cuGetErrorName(_error: c_int, to: *mut *const c_char) -> c_int {
    *to = b"CUDA_ERROR_NO_DEVICE\0".as_ptr().cast(); 0
}
#[no_mangle] pub unsafe extern "C" fn cuGetErrorString(_error: c_int, to: *mut *const c_char) -> c_int {
    *to = b"no CUDA-capable device is detected\0".as_ptr().cast(); 0
}
"#;

/// A folder with the imitated driver; says so and gives `None` where it cannot be made.
fn fake_driver(bench: &Bench) -> Option<PathBuf> {
    if !cfg!(all(target_os = "linux", feature = "gpu")) {
        eprintln!("SKIPPED: drivers are imitated on Linux only, in builds with the feature `gpu`");
        return None;
    }
    let source = bench.file("fake_driver.rs", FAKE_DRIVER);
    let folder = bench.path("driver");
    std::fs::create_dir(&folder).unwrap();
    let made = Command::new("rustc")
        .args(["--edition=2021", "--crate-type=cdylib", "-o"])
        .args([folder.join("libcuda.so"), source])
        .output();
    match made {
        Ok(made) if made.status.success() => Some(folder),
        Ok(made) => panic!("{}", String::from_utf8_lossy(&made.stderr)),
        Err(error) => {
            eprintln!("SKIPPED: no rustc to make an imitated driver ({error})");
            None
        }
    }
}

/// Runs `line` beside the imitated driver.
fn run(bench: &Bench, driver: &PathBuf, line: &str, env: &[(&str, &str)]) -> Run {
    finish(bench.command(line.split_whitespace()).env("LD_LIBRARY_PATH", driver).envs(env.iter().copied()))
}

const ASK: &str = "generate t0 -p abc -n 3";

#[test]
fn h03_the_cpu_is_taken_without_a_look_at_the_driver() {
    let bench = Bench::new();
    bench.t0("t0", &T0::llama());
    let Some(driver) = fake_driver(&bench) else { return };
    let touched = bench.path("touched");
    let env = [("FAKE_TOUCHED", touched.to_str().unwrap())];
    let cpu = run(&bench, &driver, &format!("{ASK} --device cpu"), &env).ok();
    assert_eq!(cpu.stderr.lines().next(), Some("device: cpu"), "{cpu:?}");
    assert!(!touched.exists());
    let auto = run(&bench, &driver, ASK, &env).ok();
    assert!(touched.exists(), "the imitated driver was not asked");
    assert_eq!(auto.stdout, cpu.stdout);
    let quiet = run(&bench, &driver, &format!("{ASK} --quiet --json"), &env).ok();
    assert_eq!((quiet.stderr.as_str(), &quiet.json()["device"]), ("", &"cpu".into()));
}

#[test]
fn h03_hidden_devices_are_a_reason_for_auto_and_an_error_for_cuda() {
    let bench = Bench::new();
    bench.t0("t0", &T0::llama());
    let Some(driver) = fake_driver(&bench) else { return };
    let auto = run(&bench, &driver, ASK, &[]).ok();
    let line = auto.stderr.lines().next().unwrap();
    assert!(line.starts_with("device: cpu (no GPU: ") && line.contains("CUDA_VISIBLE_DEVICES"), "{line}");
    for device in ["cuda", "cuda:0", "cuda:1"] {
        let asked = run(&bench, &driver, &format!("{ASK} --device {device}"), &[]);
        asked.fails(7, &["no device", "CUDA_VISIBLE_DEVICES", "--device cpu"]);
    }
    run(&bench, &driver, "chat t0 --device cuda:0", &[]).fails(7, &["cuda:0"]);
}

#[test]
fn h03_without_driver_auto_works_and_cuda_is_an_error() {
    let bench = Bench::new();
    bench.t0("t0", &T0::llama());
    // On a machine with driver, hide its devices: the other words, the same outcome.
    let hidden = |line: &str| finish(bench.command(line.split_whitespace()).env("CUDA_VISIBLE_DEVICES", ""));
    let auto = hidden(ASK).ok();
    assert!(auto.stderr.starts_with("device: cpu (no GPU: "), "{auto:?}");
    let words: &[&str] = if cfg!(feature = "gpu") { &["cuda:0", "--device cpu"] } else { &["cuda:0", "feature `gpu`"] };
    hidden(&format!("{ASK} --device cuda:0")).fails(7, words);
    let doctor = hidden("doctor --json").ok().json();
    assert_eq!(doctor["gpu"]["usable"], false);
    assert!(doctor["gpu"]["problem"].as_str().unwrap().len() > 20);
}

#[test]
fn h01_an_old_driver_is_named_before_the_model_is_read() {
    let bench = Bench::new();
    let Some(driver) = fake_driver(&bench) else { return };
    let env = [("FAKE_DEVICES", "1"), ("FAKE_VERSION", "11080")];
    let old = run(&bench, &driver, "generate no-such-model.gosset -p abc --device cuda:0", &env);
    old.fails(7, &["CUDA 11.8", "12.0", "update the driver"]);
    let doctor = run(&bench, &driver, "doctor --json", &env).ok().json();
    let gpu = &doctor["gpu"];
    assert_eq!(
        (&gpu["driver"], &gpu["minimum_driver"], &gpu["usable"]),
        (&"11.8".into(), &"12.0".into(), &false.into())
    );
    assert!(gpu["problem"].as_str().unwrap().contains("update the driver"));
}

#[test]
fn h02_old_devices_are_refused_by_name_and_capability() {
    let bench = Bench::new();
    bench.t0("t0", &T0::llama());
    let Some(driver) = fake_driver(&bench) else { return };
    for (capability, words) in [("61", "6.1"), ("75", "7.5")] {
        let env = [("FAKE_DEVICES", "1"), ("FAKE_CAPABILITY", capability)];
        let asked = run(&bench, &driver, &format!("{ASK} --device cuda:0"), &env);
        asked.fails(7, &["Imitation One", words, "sm_80", "8.0"]);
        assert!(run(&bench, &driver, ASK, &env).ok().stderr.contains(words));
    }
}

#[test]
fn h08_a_model_without_room_runs_on_the_cpu_unless_the_gpu_was_asked_for() {
    let bench = Bench::new();
    bench.t0("t0", &T0::llama());
    let Some(driver) = fake_driver(&bench) else { return };
    let env = [("FAKE_DEVICES", "1"), ("FAKE_FREE_MIB", "0")];
    let auto = run(&bench, &driver, ASK, &env).ok();
    let lines: Vec<&str> = auto.stderr.lines().take(2).collect();
    assert!(lines[0].starts_with("device: cuda:0 (Imitation One"), "{auto:?}");
    assert!(lines[1].starts_with("device: cpu (no GPU: ") && lines[1].contains("memory"), "{auto:?}");
    assert_eq!(auto.stdout, run(&bench, &driver, &format!("{ASK} --device cpu"), &env).ok().stdout);
    let json = run(&bench, &driver, &format!("{ASK} --quiet --json"), &env).ok();
    assert_eq!((json.stderr.as_str(), &json.json()["device"]), ("", &"cpu".into()));
    run(&bench, &driver, &format!("{ASK} --device cuda:0"), &env).fails(7, &["memory", "lower the context"]);
}

#[test]
fn h04_a_wrong_number_lists_the_devices() {
    let bench = Bench::new();
    let Some(driver) = fake_driver(&bench) else { return };
    let env = [("FAKE_DEVICES", "2")];
    let asked = run(&bench, &driver, &format!("{ASK} --device cuda:7"), &env);
    asked.fails(7, &["cuda:7", "0: Imitation One", "1: Imitation Two"]);
    for wrong in ["gpu", "cuda:", "cuda:x", "CPU"] {
        bench.run(&format!("{ASK} --device {wrong}")).fails(2, &[wrong, "auto, cpu, cuda or cuda:N"]);
    }
}

#[test]
fn the_doctor_lists_devices_and_what_they_can_do() {
    let bench = Bench::new();
    let Some(driver) = fake_driver(&bench) else { return };
    let env = [("FAKE_DEVICES", "2"), ("FAKE_CAPABILITY", "89")];
    let json = run(&bench, &driver, "doctor --json", &env).ok().json();
    let gpu = &json["gpu"];
    assert_eq!((&gpu["usable"], &gpu["problem"]), (&true.into(), &serde_json::Value::Null));
    let device = &gpu["devices"][1];
    assert_eq!((&device["name"], &device["capability"]), (&"Imitation Two".into(), &"8.9".into()));
    assert_eq!(device["memory_bytes"], 8u64 << 30);
    assert!(json["cpu"]["threads"].as_u64().unwrap() >= 1);
    let text = run(&bench, &driver, "doctor", &env).ok().stdout;
    for part in ["Imitation One", "capability 8.9", "driver for CUDA", "525.60", "--device cpu", "sm_80"] {
        assert!(text.contains(part), "{part:?} in {text}");
    }
}
