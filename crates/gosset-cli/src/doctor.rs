//! `gosset doctor`: what this machine offers and what this build can use of it.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::{env, fs, thread};

use anyhow::Result;
use clap::Args;
use serde::Serialize;

use crate::exit::printable;
use crate::{cache, output, version};

/// Show what this machine offers: CPU, memory, cache, CUDA driver and GPUs.
///
/// Nothing is changed, and a machine without GPU is as healthy as any: the exit code is 0. What keeps a GPU from being
/// used is said with the remedy.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  gosset doctor
  gosset doctor --json")]
pub(crate) struct DoctorArgs {
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    version: &'static str,
    cpu: Cpu,
    memory: Memory,
    cache: Cache,
    gpu: Gpu,
}

#[derive(Debug, Serialize)]
struct Cpu {
    architecture: &'static str,
    /// Instruction sets that the kernels for CPUs look for, those that are there.
    features: Vec<&'static str>,
    threads: usize,
}

/// `None` where the system does not tell.
#[derive(Debug, Serialize)]
struct Memory {
    total_bytes: Option<u64>,
    available_bytes: Option<u64>,
    /// What this process may take at most where it is in a control group with a limit: containers, job schedulers.
    limit_bytes: Option<u64>,
}

#[derive(Debug, Serialize)]
struct Cache {
    /// `None` where no variable of the environment names one.
    path: Option<PathBuf>,
    exists: bool,
    /// Names of the models in it.
    models: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Gpu {
    /// Whether this build has the feature `gpu`.
    built: bool,
    /// Whether `--device auto` takes a GPU.
    usable: bool,
    /// Why not, with the remedy.
    problem: Option<String>,
    /// CUDA version that the driver supports; `None` without driver.
    driver: Option<String>,
    /// CUDA version that the driver has to support at least, for any device.
    minimum_driver: Option<String>,
    /// The Linux driver that first supported it.
    minimum_linux_driver: Option<&'static str>,
    targets: Vec<Target>,
    devices: Vec<Device>,
}

/// One kind of PTX that is embedded.
#[derive(Debug, Serialize)]
struct Target {
    name: &'static str,
    minimum_driver: String,
    n_modules: usize,
}

#[derive(Debug, Serialize)]
struct Device {
    ordinal: usize,
    name: String,
    usable: bool,
    problem: Option<String>,
    capability: Option<String>,
    multiprocessors: Option<u32>,
    memory_bytes: Option<u64>,
    free_bytes: Option<u64>,
}

/// Runs the command.
pub(crate) fn run(args: &DoctorArgs) -> Result<()> {
    let path = cache::folder().ok();
    let report = Report {
        version: version::LONG,
        cpu: Cpu {
            architecture: env::consts::ARCH,
            features: cpu_features(),
            threads: thread::available_parallelism().map_or(1, usize::from),
        },
        memory: memory(),
        cache: Cache {
            exists: path.as_ref().is_some_and(|path| path.is_dir()),
            models: path.as_deref().map(models).unwrap_or_default(),
            path,
        },
        gpu: gpu(),
    };
    if args.json {
        return output::json(&report);
    }
    let mut out = output::stdout();
    write(&report, &mut out)?;
    out.flush()?;
    Ok(())
}

fn write(report: &Report, out: &mut impl Write) -> io::Result<()> {
    let size = |bytes: Option<u64>| bytes.map_or_else(|| "not known on this system".to_owned(), output::bytes);
    let Report { version, cpu, memory, cache, gpu } = report;
    writeln!(out, "gosset     {version}")?;
    let features = if cpu.features.is_empty() { "no vector extension".to_owned() } else { cpu.features.join(" ") };
    writeln!(out, "cpu        {}, {} threads, {features}", cpu.architecture, cpu.threads)?;
    let available = memory.available_bytes.map(|n| format!(", {} available", output::bytes(n))).unwrap_or_default();
    let limit = memory.limit_bytes.map(|n| format!(", limited to {} here", output::bytes(n))).unwrap_or_default();
    writeln!(out, "memory     {}{available}{limit}", size(memory.total_bytes))?;
    match &cache.path {
        Some(path) => {
            let state = match cache.models.as_slice() {
                _ if !cache.exists => " (not there yet)".to_owned(),
                [] => ", no models".to_owned(),
                models => format!(", models: {}", printable(&models.join(", "))),
            };
            writeln!(out, "cache      {}{state}", printable(&path.display().to_string()))?;
        }
        None => writeln!(out, "cache      none: set GOSSET_CACHE, XDG_CACHE_HOME or HOME")?,
    }
    if gpu.built {
        let driver = gpu.driver.as_ref().map_or_else(|| "none".to_owned(), |v| format!("for CUDA {v}"));
        let least = gpu.minimum_driver.as_deref().unwrap_or("any");
        let linux = gpu.minimum_linux_driver.map(|v| format!(", on Linux {v} or newer")).unwrap_or_default();
        writeln!(out, "driver     {driver} (needed: for CUDA {least}{linux})")?;
        for Target { name, minimum_driver, n_modules } in &gpu.targets {
            writeln!(out, "kernels    {name}: {n_modules} modules, driver for CUDA {minimum_driver} or newer")?;
        }
    }
    for device in &gpu.devices {
        write!(out, "cuda:{}     {}", device.ordinal, printable(&device.name))?;
        if let (Some(capability), Some(n_sms)) = (&device.capability, device.multiprocessors) {
            write!(out, ", capability {capability}, {n_sms} multiprocessors")?;
            write!(out, ", {}, {} free", size(device.memory_bytes), size(device.free_bytes))?;
        }
        writeln!(out, "{}", device.problem.as_ref().map(|p| format!(": {}", printable(p))).unwrap_or_default())?;
    }
    match &gpu.problem {
        Some(problem) => writeln!(out, "computes   on the CPU: {}", printable(problem)),
        None => writeln!(out, "computes   on cuda:0 by default; --device cpu for the CPU"),
    }
}

#[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
fn cpu_features() -> Vec<&'static str> {
    let known = [
        ("avx2", is_x86_feature_detected!("avx2")),
        ("fma", is_x86_feature_detected!("fma")),
        ("f16c", is_x86_feature_detected!("f16c")),
        ("bmi2", is_x86_feature_detected!("bmi2")),
        ("avx512f", is_x86_feature_detected!("avx512f")),
        ("avx512bw", is_x86_feature_detected!("avx512bw")),
        ("avx512vnni", is_x86_feature_detected!("avx512vnni")),
    ];
    known.into_iter().filter_map(|(name, there)| there.then_some(name)).collect()
}

/// NEON is part of the architecture.
#[cfg(target_arch = "aarch64")]
fn cpu_features() -> Vec<&'static str> {
    vec!["neon"]
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "x86", target_arch = "aarch64")))]
fn cpu_features() -> Vec<&'static str> {
    Vec::new()
}

fn memory() -> Memory {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    Memory {
        total_bytes: meminfo(&text, "MemTotal"),
        available_bytes: meminfo(&text, "MemAvailable"),
        limit_bytes: group_limit(&groups, Path::new("/sys/fs/cgroup")),
    }
}

/// The least memory limit of a control group of Linux and those above it; `groups` is `/proc/self/cgroup`.
fn group_limit(groups: &str, root: &Path) -> Option<u64> {
    // Version 2 has one tree, and its groups read "max" where they have no limit.
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let limit = |group: &Path| fs::read_to_string(root.join(group).join("memory.max")).ok()?.trim().parse::<u64>().ok();
    Path::new(group).ancestors().filter(|group| !group.has_root()).filter_map(limit).min()
}

/// Folders of models in the cache, sorted.
fn models(cache: &Path) -> Vec<String> {
    let entries = fs::read_dir(cache.join("models")).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.path().is_dir());
    let mut names: Vec<String> = folders.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// A field of Linux's `/proc/meminfo` in bytes.
fn meminfo(text: &str, field: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(not(feature = "gpu"))]
fn gpu() -> Gpu {
    Gpu {
        built: false,
        usable: false,
        problem: Some(
            "this build has no feature `gpu`; install gosset-cli with --features gpu to use a GPU".to_owned(),
        ),
        driver: None,
        minimum_driver: None,
        minimum_linux_driver: None,
        targets: Vec::new(),
        devices: Vec::new(),
    }
}

#[cfg(feature = "gpu")]
fn gpu() -> Gpu {
    let targets = gosset_cuda::targets();
    let minimum = targets.iter().map(|target| target.min_driver).min();
    let driver = gosset_cuda::driver_version();
    let devices = match driver {
        Ok(_) => gosset_cuda::device_names().unwrap_or_default().into_iter().enumerate().map(device).collect(),
        Err(_) => Vec::new(),
    };
    let problem = gosset_cuda::Gpu::detect().err().map(|e| e.to_string());
    Gpu {
        built: true,
        usable: problem.is_none(),
        problem,
        driver: driver.ok().map(cuda_version),
        minimum_driver: minimum.map(cuda_version),
        minimum_linux_driver: minimum.and_then(linux_driver),
        targets: targets
            .into_iter()
            .map(|target| Target {
                name: target.name,
                minimum_driver: cuda_version(target.min_driver),
                n_modules: target.n_modules,
            })
            .collect(),
        devices,
    }
}

#[cfg(feature = "gpu")]
fn device((ordinal, name): (usize, String)) -> Device {
    let open = gosset_cuda::Gpu::open(ordinal, &gosset_cuda::OpenOptions::default());
    let info = open.as_ref().ok().map(gosset_cuda::Gpu::info);
    Device {
        ordinal,
        name: name.split_once(": ").map_or(name.as_str(), |(_, name)| name).to_owned(),
        usable: open.is_ok(),
        problem: open.as_ref().err().map(ToString::to_string),
        capability: info.map(|info| format!("{}.{}", info.capability.0, info.capability.1)),
        multiprocessors: info.map(|info| info.n_sms),
        memory_bytes: info.map(|info| info.memory_bytes),
        free_bytes: open.as_ref().ok().and_then(|gpu| gpu.free_bytes().ok()),
    }
}

#[cfg(feature = "gpu")]
fn cuda_version((major, minor): (u32, u32)) -> String {
    format!("{major}.{minor}")
}

/// The first Linux driver for a CUDA version. Source: the table of the CUDA Toolkit's release notes.
#[cfg(feature = "gpu")]
fn linux_driver(cuda: (u32, u32)) -> Option<&'static str> {
    let known = [
        ((11, 8), "520.61.05"),
        ((12, 0), "525.60.13"),
        ((12, 1), "530.30.02"),
        ((12, 2), "535.54.03"),
        ((12, 3), "545.23.06"),
        ((12, 4), "550.54.14"),
        ((12, 5), "555.42.02"),
        ((12, 6), "560.28.03"),
        ((12, 8), "570.26"),
        ((12, 9), "575.51.03"),
        ((13, 0), "580.65.06"),
    ];
    known.into_iter().find_map(|(version, driver)| (version == cuda).then_some(driver))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_in_bytes() {
        let text = "MemTotal:       24689764 kB\nMemFree: 1 kB\nMemAvailable:   23000000 kB\n";
        assert_eq!(meminfo(text, "MemTotal"), Some(24_689_764 * 1024));
        assert_eq!(meminfo(text, "MemAvailable"), Some(23_000_000 * 1024));
        for odd in ["", "MemTotal", "MemTotal: x kB", "MemTotal: 5 pages", "MemTotalX: 5 kB"] {
            assert_eq!(meminfo(odd, "MemTotal"), None, "{odd:?}");
        }
    }

    #[test]
    fn the_least_limit_of_nested_groups_counts() {
        let root = tempfile::tempdir().unwrap();
        let group = root.path().join("job/step");
        fs::create_dir_all(&group).unwrap();
        let groups = "12:pids:/other\n0::/job/step\n";
        assert_eq!(group_limit(groups, root.path()), None);
        fs::write(group.join("memory.max"), "max\n").unwrap();
        fs::write(root.path().join("job/memory.max"), "4194304\n").unwrap();
        assert_eq!(group_limit(groups, root.path()), Some(4 << 20));
        fs::write(group.join("memory.max"), "1048576\n").unwrap();
        assert_eq!(group_limit(groups, root.path()), Some(1 << 20));
        for odd in ["", "0::", "1:memory:/job", "0:name:/job"] {
            assert_eq!(group_limit(odd, root.path()), None, "{odd:?}");
        }
    }

    #[test]
    fn models_of_the_cache_are_its_folders() {
        let cache = tempfile::tempdir().unwrap();
        assert_eq!(models(cache.path()), [""; 0]);
        fs::create_dir_all(cache.path().join("models/b")).unwrap();
        fs::create_dir_all(cache.path().join("models/a")).unwrap();
        fs::write(cache.path().join("models/file"), "").unwrap();
        assert_eq!(models(cache.path()), ["a", "b"]);
    }
}
