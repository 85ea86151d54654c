//! From a checkpoint to a container and back, through the command alone.

use std::fs;
use std::path::Path;

use gosset_tests::t0::T0;

use crate::support::{Bench, names, stories};

/// The ledger of a container: per entry and by cause it sums to the file, and the rates recompute from it.
#[track_caller]
fn ledger_closes(bench: &Bench, container: &Path) {
    let run = bench.run_args(["inspect".as_ref(), container.as_os_str(), "--json".as_ref()]).ok();
    let inspection = run.json();
    let n = |value: &serde_json::Value| value.as_u64().unwrap();
    let file_bits = fs::metadata(container).unwrap().len() * 8;
    assert_eq!(n(&inspection["file_bytes"]) * 8, file_bits);
    assert_eq!(n(&inspection["total_bits"]), file_bits);
    let by_cause = inspection["bits_by_cause"].as_object().unwrap();
    assert_eq!(by_cause.values().map(n).sum::<u64>(), file_bits);
    let entries = inspection["entries"].as_array().unwrap();
    let sum = |of: &dyn Fn(&serde_json::Value) -> u64| entries.iter().map(of).sum::<u64>();
    assert_eq!(sum(&|e| n(&e["total_bits"])), file_bits);
    for (cause, bits) in by_cause {
        assert_eq!(sum(&|e| n(&e["bits_by_cause"][cause])), n(bits), "{cause}");
    }
    let coded = |e: &serde_json::Value| e["kind"] == "coded";
    let coded_bits: u64 = entries.iter().filter(|e| coded(e)).map(|e| n(&e["total_bits"])).sum();
    let coded_weights: u64 = entries.iter().filter(|e| coded(e)).map(|e| n(&e["tensor"]["n_weights"])).sum();
    assert_eq!(coded_weights, n(&inspection["n_quantized"]));
    let rate = |name: &str| inspection["rates"][name].as_f64().unwrap();
    assert_eq!(rate("all_in_bps"), coded_bits as f64 / coded_weights as f64);
    assert_eq!(rate("file_bps"), file_bits as f64 / n(&inspection["n_params"]) as f64);
    assert!(rate("payload_bps") < rate("stream_bps") && rate("stream_bps") < rate("all_in_bps"));
}

/// Quantizes `model`, moves the container alone to an empty folder and runs it there.
#[track_caller]
fn lives_from_one_file(model: &Path) {
    let bench = Bench::new();
    let out = bench.path("m.gosset");
    let quantize = |out: &Path, threads: &str| {
        let args = ["quantize".as_ref(), model.as_os_str(), "-o".as_ref(), out.as_os_str(), "--rate".as_ref()];
        bench.run_args(args.into_iter().chain(["4", "--threads", threads, "--json"].map(AsRef::as_ref))).ok().json()
    };
    let report = quantize(&out, "1");
    assert_eq!(report["target"], 4.0);
    assert_eq!(report["file_bytes"].as_u64().unwrap(), fs::metadata(&out).unwrap().len());
    ledger_closes(&bench, &out);

    let again = bench.path("again.gosset");
    quantize(&again, "7");
    assert!(fs::read(&out).unwrap() == fs::read(&again).unwrap(), "bytes depend on the number of threads");

    let alone = Bench::new();
    fs::rename(&out, alone.path("moved.gosset")).unwrap();
    alone.run("verify moved.gosset").ok();
    let generate = "generate moved.gosset --prompt Once --max-tokens 24";
    let text = alone.run(generate).ok().stdout;
    let json = alone.run(&format!("{generate} --json --threads 2")).ok().json();
    assert_eq!(text.trim_end_matches('\n'), json["text"].as_str().unwrap().trim_end_matches('\n'));
    assert_eq!(alone.names(), ["moved.gosset"], "running leaves nothing behind");
}

#[test]
fn i05_a_container_alone_runs() {
    let bench = Bench::new();
    lives_from_one_file(&bench.t0("t0", &T0::llama()));
    lives_from_one_file(&bench.t0("qwen", &T0::qwen2()));
}

#[test]
fn i05_a_container_made_from_gguf_runs_alone() {
    if let Some(gguf) = stories() {
        lives_from_one_file(&gguf);
    }
}

#[test]
fn unquantized_models_generate_too() {
    let bench = Bench::new();
    bench.t0("t0", &T0::llama());
    let run = bench.run("generate t0 -p abc -n 8 --json").ok();
    assert_eq!(run.json()["n_prompt"], 3);
    assert!(run.json()["n_tokens"].as_u64().unwrap() <= 8);
}

#[test]
fn a_dequantized_folder_is_a_model_again() {
    let bench = Bench::new();
    bench.container();
    for dtype in ["f32", "bf16", "f16"] {
        let out = format!("expanded-{dtype}");
        let report = bench.run(&format!("dequantize t0.gosset -o {out} --dtype {dtype} --json")).ok().json();
        let files = names(&bench.path(&out));
        for file in ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json"] {
            assert!(files.contains(&file.to_owned()), "{files:?}");
        }
        assert_eq!(report["n_tensors"], 20);
        bench.run(&format!("generate {out} -p abc -n 4")).ok();
        bench.run(&format!("quantize {out} -o {out}.gosset --rate 3 -q")).ok();
    }
    // A second time the folder is in the way.
    bench.run("dequantize t0.gosset -o expanded-f32").fails(5, &["expanded-f32", "exists already", "--force"]);
    let notes = bench.file("expanded-f32/notes.txt", "mine");
    bench.run("dequantize t0.gosset -o expanded-f32 --dtype bf16 --force").ok();
    assert_eq!(fs::read(notes).unwrap(), b"mine", "--force replaces files of its own names only");
    assert_eq!(
        fs::read(bench.path("expanded-f32/model.safetensors")).unwrap(),
        fs::read(bench.path("expanded-bf16/model.safetensors")).unwrap()
    );
    assert!(!bench.names().iter().any(|name| name.contains("tmp")), "{:?}", bench.names());
}

#[test]
fn gguf_blocks_are_expanded() {
    let Some(gguf) = stories() else { return };
    let bench = Bench::new();
    fs::copy(gguf, bench.path("s.gguf")).unwrap();
    bench.run("quantize s.gguf -o s.gosset --rate 5 --embeddings 6 -q").ok();
    bench.run("dequantize s.gosset -o s -q").ok();
    // Through another frame the sums differ in their last bits, so the greedy text agrees at its start only.
    let text = |model: &str| bench.run_args(["generate", model, "-p", "Once upon a time", "-n", "12"]).ok().stdout;
    assert_eq!(text("s.gosset"), text("s"));
}
