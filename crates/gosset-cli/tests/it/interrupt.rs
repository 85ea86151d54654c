//! J04: Ctrl-C.
#![cfg(unix)]

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

use gosset_tests::t0::T0;

use crate::support::Bench;

/// Starts the command and waits until it says where it is.
fn start(bench: &Bench, line: &str) -> (Child, BufReader<std::process::ChildStderr>) {
    let mut child =
        bench.command(line.split_whitespace()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut progress = String::new();
    while !progress.contains("scanning") && !progress.contains("quantizing") {
        progress.clear();
        assert!(stderr.read_line(&mut progress).unwrap() > 0, "no progress");
    }
    (child, stderr)
}

fn press_ctrl_c(child: &Child) {
    let status = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(status.success());
}

/// A model that takes seconds.
fn slow(bench: &Bench) {
    bench.t0("slow", &T0 { layers: 3, hidden: 1024, ffn: 4096, ..T0::llama() });
}

#[test]
fn j04_ctrl_c_stops_and_leaves_nothing() {
    let bench = Bench::new();
    slow(&bench);
    let (mut child, mut stderr) = start(&bench, "quantize slow -o slow.gosset --rate 4 --threads 1");
    press_ctrl_c(&child);
    let mut rest = String::new();
    stderr.read_to_string(&mut rest).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{rest}");
    assert!(rest.contains("stopping") && rest.contains("nothing was written"), "{rest}");
    assert_eq!(bench.names(), ["slow"], "a cancelled run leaves no file");
}

#[test]
fn j04_a_second_ctrl_c_ends_at_once() {
    let bench = Bench::new();
    slow(&bench);
    let (mut child, _stderr) = start(&bench, "quantize slow -o slow.gosset --rate 4 --threads 1");
    press_ctrl_c(&child);
    press_ctrl_c(&child);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(!bench.path("slow.gosset").exists());
}
