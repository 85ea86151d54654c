//! `cargo xtask bench`: the CPU benchmarks, with results as CSV under `docs/results`, each beside its machine and its command.

use std::{
    env,
    ffi::OsStr,
    fmt::Write as _,
    fs, io,
    io::{BufRead as _, BufReader},
    path::PathBuf,
    process::{Command, ExitCode, Stdio},
    thread,
};

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::Value;

use crate::workspace::Workspace;

#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// Only the micro-benchmarks whose path contains this.
    filter: Option<String>,
    /// Where results go [default: docs/results].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Measure rate and distortion of every codec too (`rate ladder`).
    #[arg(long)]
    ladder: bool,
}

/// One measurement: its name under `docs/results`, the cargo arguments that make it, and the reader of its output.
struct Measurement {
    name: &'static str,
    args: Vec<String>,
    rows: fn(&str) -> Result<String>,
}

pub(crate) fn run(workspace: &Workspace, args: &BenchArgs) -> Result<ExitCode> {
    let out = args.out.clone().unwrap_or_else(|| workspace.root().join("docs/results"));
    fs::create_dir_all(&out).with_context(|| format!("{}", out.display()))?;
    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let mut cpu = words("bench --package gosset-benches --bench cpu");
    if let Some(filter) = &args.filter {
        cpu.extend(["--".to_owned(), filter.clone()]);
    }
    let rate = |verb: &str| words(&format!("run --release --package gosset-benches --bin rate -- {verb} --json"));
    let mut measurements = vec![Measurement { name: "cpu", args: cpu, rows: divan_csv }];
    if args.filter.is_none() {
        measurements.push(Measurement { name: "speed", args: rate("speed"), rows: json_csv });
    }
    if args.ladder {
        measurements.push(Measurement { name: "ladder", args: rate("ladder"), rows: json_csv });
    }
    let machine = machine();
    for m in &measurements {
        let output = output(workspace, &m.args)?;
        let command = m.args.join(" ");
        let rows = (m.rows)(&output).with_context(|| format!("reading the output of cargo {command}"))?;
        let path = out.join(m.name).with_extension("csv");
        let text = format!("# command: cargo {command}\n{machine}{rows}");
        fs::write(&path, text).with_context(|| format!("{}", path.display()))?;
        println!("{}", path.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs cargo, shows what it prints as it comes, and returns it.
fn output(workspace: &Workspace, args: &[String]) -> Result<String> {
    let mut child =
        workspace.cargo().args(args).stdout(Stdio::piped()).stderr(io::stderr()).spawn().context("starting cargo")?;
    let stdout = child.stdout.take().context("cargo's stdout is piped")?;
    let mut text = String::new();
    for line in BufReader::new(stdout).lines() {
        let line = line?;
        eprintln!("{line}");
        text += &line;
        text.push('\n');
    }
    let status = child.wait()?;
    if !status.success() {
        bail!("cargo {} failed: {status}", args.join(" "));
    }
    Ok(text)
}

/// Comment lines that say what machine this is.
fn machine() -> String {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = cpuinfo.lines().find(|line| line.split(':').next().is_some_and(|key| key.trim() == name));
        line.and_then(|line| line.split_once(':')).map(|(_, value)| value.trim().to_owned())
    };
    let flags = field("flags").unwrap_or_default();
    let simd: Vec<&str> = flags
        .split(' ')
        .filter(|f| ["sse4_2", "avx", "avx2", "fma", "bmi2"].contains(f) || f.starts_with("avx512"))
        .collect();
    let cores = thread::available_parallelism().map_or(0, usize::from);
    let said = |program: &OsStr, args: &[&str]| {
        let output = Command::new(program).args(args).output().ok()?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned()).filter(|text| !text.is_empty())
    };
    let mut text = String::new();
    let mut line = |name: &str, value: Option<String>| {
        let value = value.filter(|value| !value.is_empty()).unwrap_or_else(|| "unknown".to_owned());
        let _ = writeln!(text, "# {name}: {value}");
    };
    line("cpu", field("model name"));
    line("cores", Some(cores.to_string()));
    line("simd", Some(simd.join(" ")));
    line("system", Some(format!("{} {}", env::consts::OS, env::consts::ARCH)));
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    line("compiler", said(&rustc, &["--version"]));
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    line("commit", said("git".as_ref(), &["-C", root, "describe", "--always", "--dirty"]));
    text
}

/// A JSON list of flat objects as CSV; the first object's keys are the columns.
///
/// The list may stand inside an object as its only list; the object's other members become comments.
fn json_csv(text: &str) -> Result<String> {
    let value: Value = serde_json::from_str(text)?;
    let mut csv = String::new();
    let rows = match &value {
        Value::Object(members) => {
            for (name, value) in members.iter().filter(|(_, value)| !value.is_array()) {
                let _ = writeln!(csv, "# {name}: {}", cell(value));
            }
            members.values().find_map(Value::as_array)
        }
        other => other.as_array(),
    };
    let rows = rows.context("expected a list of rows")?;
    let first = rows.first().and_then(Value::as_object).context("expected at least one row")?;
    let columns: Vec<&String> = first.keys().collect();
    csv += &columns.iter().map(|c| c.as_str()).collect::<Vec<_>>().join(",");
    csv.push('\n');
    for row in rows {
        csv += &columns.iter().map(|&column| cell(&row[column])).collect::<Vec<_>>().join(",");
        csv.push('\n');
    }
    Ok(csv)
}

/// A value as text: strings without quotes, null as nothing.
fn cell(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

/// The tree that divan prints, as CSV: times in nanoseconds, throughput per second of the median run.
fn divan_csv(text: &str) -> Result<String> {
    let mut csv = "bench,fastest_ns,median_ns,mean_ns,slowest_ns,samples,iters,median_per_s,unit\n".to_owned();
    let mut path: Vec<&str> = Vec::new();
    // A leaf waits for the line below it, which may hold its throughput.
    let mut leaf: Option<String> = None;
    for line in text.lines() {
        let cells: Vec<&str> = line.rsplitn(6, '│').collect();
        let [iters, samples, mean, median, slowest, head] = cells[..] else { continue };
        let Some(branch) = head.find(['├', '╰']) else {
            // The continuation of a leaf, or the header.
            if let (Some(row), Some((value, unit))) = (leaf.take(), per_second(median)) {
                let _ = writeln!(csv, "{row},{value},{unit}");
            }
            continue;
        };
        finish(&mut csv, leaf.take());
        let depth = head[..branch].chars().count() / 3;
        let label = head[branch..].trim_start_matches(['├', '╰', '─', ' ']).trim_end();
        path.truncate(depth);
        match (label.rsplit_once("  "), nanoseconds(median)) {
            (Some((name, fastest)), Some(median)) => {
                path.push(name.trim_end());
                let time = |cell: &str| nanoseconds(cell).with_context(|| format!("expected a time, found {cell:?}"));
                let (fastest, mean, slowest) = (time(fastest)?, time(mean)?, time(slowest)?);
                let (samples, iters, name) = (samples.trim(), iters.trim(), path.join("/"));
                leaf = Some(format!("{name},{fastest},{median},{mean},{slowest},{samples},{iters}"));
            }
            _ => path.push(label),
        }
    }
    finish(&mut csv, leaf);
    if csv.lines().count() < 2 {
        bail!("expected at least one benchmark");
    }
    Ok(csv)
}

/// A leaf without throughput.
fn finish(csv: &mut String, leaf: Option<String>) {
    if let Some(row) = leaf {
        let _ = writeln!(csv, "{row},,");
    }
}

/// `3.458 ms` in nanoseconds.
fn nanoseconds(cell: &str) -> Option<f64> {
    let (value, unit) = cell.trim().split_once(' ')?;
    let scale = match unit {
        "ps" => 1e-3,
        "ns" => 1.0,
        "µs" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        _ => return None,
    };
    Some(rounded(value.parse::<f64>().ok()? * scale))
}

/// `303.2 Mitem/s` as a number per second and its unit.
fn per_second(cell: &str) -> Option<(f64, String)> {
    let (value, unit) = cell.trim().split_once(' ')?;
    let unit = unit.strip_suffix("/s")?;
    let value: f64 = value.parse().ok()?;
    let (scale, unit) = match unit.split_at_checked(1)? {
        ("K", rest) => (1e3, rest),
        ("M", rest) => (1e6, rest),
        ("G", rest) => (1e9, rest),
        ("T", rest) => (1e12, rest),
        _ => (1.0, unit),
    };
    Some((rounded(value * scale), unit.to_owned()))
}

/// Without the digits that scaling made up.
fn rounded(x: f64) -> f64 {
    (x * 1e3).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIVAN: &str = "\
Timer precision: 21 ns
cpu                            fastest       │ slowest       │ median        │ mean          │ samples │ iters
├─ codec                                     │               │               │               │         │
│  ├─ decode                                 │               │               │               │         │
│  │  ├─ a2-rice@3             3.458 ms      │ 8.648 ms      │ 3.627 ms      │ 5.206 ms      │ 100     │ 100
│  │  │                        303.2 Mitem/s │ 121.2 Mitem/s │ 289 Mitem/s   │ 201.3 Mitem/s │         │
│  │  ╰─ z-rice@3              2.4 ms        │ 8.827 ms      │ 2.497 ms      │ 3.776 ms      │ 100     │ 100
│  │                           436.7 Mitem/s │ 118.7 Mitem/s │ 419.8 Mitem/s │ 277.6 Mitem/s │         │
╰─ lattice                                   │               │               │               │         │
   ├─ plain                    364.9 µs      │ 5.41 ms       │ 381.9 µs      │ 560.6 µs      │ 10      │ 20
   ╰─ last                     1 ns          │ 4 ns          │ 2 ns          │ 3 ns          │ 1       │ 2
";

    #[test]
    fn the_tree_becomes_one_line_per_benchmark() {
        let csv = divan_csv(DIVAN).unwrap();
        let lines: Vec<&str> = csv.lines().skip(1).collect();
        assert_eq!(
            lines,
            [
                "codec/decode/a2-rice@3,3458000,3627000,5206000,8648000,100,100,289000000,item",
                "codec/decode/z-rice@3,2400000,2497000,3776000,8827000,100,100,419800000,item",
                "lattice/plain,364900,381900,560600,5410000,10,20,,",
                "lattice/last,1,2,3,4,1,2,,",
            ]
        );
        assert!(divan_csv("nothing\n").is_err());
    }

    #[test]
    fn rows_of_json_become_columns() {
        let csv = json_csv(r#"[{"codec": "e8-rice@3", "mws": 1.5}, {"codec": "z", "mws": null}]"#).unwrap();
        assert_eq!(csv, "codec,mws\ne8-rice@3,1.5\nz,\n");
        assert_eq!(json_csv(r#"{"cpu": "x", "rows": 8, "speed": [{"a": 1}]}"#).unwrap(), "# cpu: x\n# rows: 8\na\n1\n");
        assert!(json_csv("[]").is_err());
    }

    #[test]
    fn units_are_read() {
        assert_eq!(nanoseconds(" 1.5 µs "), Some(1500.0));
        assert_eq!(nanoseconds("1.5 Mitem/s"), None);
        assert_eq!(per_second("2 GB/s"), Some((2e9, "B".to_owned())));
        assert_eq!(per_second("7 item/s"), Some((7.0, "item".to_owned())));
    }

    #[test]
    fn the_machine_is_described_in_comments() {
        let text = machine();
        assert!(text.lines().all(|line| line.starts_with("# ")) && text.contains("# cores: "), "{text}");
    }
}
