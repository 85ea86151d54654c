//! The file is all there is: the same bytes from the same input, the same numbers from the same bytes, nothing else needed.

use std::fs;
use std::path::Path;

use gosset_container::Container;
use gosset_eval::{Scored, Tail};
use gosset_quantize::QuantizeOptions;
use gosset_runtime::source::fixture::{TinyFamily, TinyModel};
use gosset_runtime::text::{ChatTemplate, Message};
use gosset_runtime::{GenerateOptions, LanguageModel, LoadOptions, RopeScaling, RuntimeError, StopReason, generate};
use gosset_tests::t0::T0;

use crate::checkpoint::{
    Folder, assert_logits, decoded, e8, greedy, ids, load, logits, perplexity, quantize, reference_of, try_quantize,
    windows,
};
use crate::patch;

const THREADS: [usize; 3] = [1, 2, 7];

fn with_threads<T: Send>(n: usize, work: impl FnOnce() -> T + Send) -> T {
    rayon::ThreadPoolBuilder::new().num_threads(n).build().unwrap().install(work)
}

#[test]
fn g05_the_file_is_the_same_for_any_threads_place_and_time() {
    for t0 in [T0::llama(), T0 { tie: Some(false), head: true, shards: 3, ffn: 172, ..T0::qwen2() }] {
        let options = QuantizeOptions { embeddings: Some(5.5), seed: 12_345, ..e8(2.75) };
        let mut first: Option<Vec<u8>> = None;
        for (run, threads) in THREADS.into_iter().chain(THREADS).enumerate() {
            // Another folder, another name and another time each.
            let folder = Folder::new();
            let from = folder.t0(&format!("checkpoint-{run}"), &t0);
            let to = folder.path(&format!("out-{run}.gosset"));
            let report = with_threads(threads, || try_quantize(&from, &options, &to).unwrap());
            let bytes = fs::read(&to).unwrap();
            assert_eq!(report.file_bytes, bytes.len() as u64);
            let text = String::from_utf8_lossy(&bytes);
            for part in [folder.path("").to_str().unwrap(), "checkpoint-", "out-"] {
                assert!(!text.contains(part), "{part:?} is in the file");
            }
            assert!(*first.get_or_insert_with(|| bytes.clone()) == bytes, "run {run} with {threads} threads");
        }
    }
}

#[test]
fn g05_a_file_can_be_made_again_from_its_own_recipe() {
    let folder = Folder::new();
    let from = folder.t0("t0", &T0::llama());
    let mut options = QuantizeOptions { seed: 77, tile: 32, ..QuantizeOptions::new("d4-rice", 3.25) };
    options.overrides = vec![gosset_quantize::Override::parse("*.k_proj.weight=6").unwrap()];
    let (container, _) = quantize(&from, &options, &folder.path("first.gosset"));
    // Nothing but the file speaks from here on.
    let recipe = &container.manifest().recipe;
    for key in ["codec", "rate", "tile", "seed", "embeddings", "overrides", "strict", "tie"] {
        assert!(recipe["options"].get(key).is_some(), "{key} is not in {recipe}");
    }
    assert!(recipe["program"].as_str().unwrap().starts_with("gosset "), "{recipe}");
    let again = QuantizeOptions::from_recipe(recipe).unwrap();
    quantize(&from, &again, &folder.path("second.gosset"));
    let read = |name: &str| fs::read(folder.path(name)).unwrap();
    assert!(read("first.gosset") == read("second.gosset"));
    // The seed and the tile are not decoration.
    quantize(&from, &QuantizeOptions { seed: 78, ..again.clone() }, &folder.path("seed.gosset"));
    quantize(&from, &QuantizeOptions { tile: 64, ..again }, &folder.path("tile.gosset"));
    assert!(read("first.gosset") != read("seed.gosset") && read("first.gosset") != read("tile.gosset"));
}

#[test]
fn a_whole_model_decodes_to_the_same_bytes_for_any_number_of_threads() {
    let folder = Folder::new();
    let from = folder.t0("t0", &T0 { hidden: 192, heads: 12, ffn: 300, ..T0::qwen2() });
    let path = folder.path("m.gosset");
    quantize(&from, &QuantizeOptions { embeddings: Some(4.0), ..e8(2.5) }, &path);
    let tokens = ids(700, 260, 9);
    let run = |threads: usize| {
        with_threads(threads, || {
            let container = Container::open(&path).unwrap();
            let names = container.entries().iter().filter(|e| e.is_coded()).map(|e| e.name.clone());
            let bits: Vec<Vec<u32>> =
                names.map(|name| decoded(&container, &name).iter().map(|v| v.to_bits()).collect()).collect();
            let model = load(&container);
            let logits: Vec<Vec<u32>> =
                logits(&model, &tokens[..130]).iter().map(|r| r.iter().map(|v| v.to_bits()).collect()).collect();
            let result = perplexity(&model, &tokens, &windows(128, 64, Scored::All, Tail::Keep), None).unwrap();
            (bits, logits, result.ppl.to_bits(), result, greedy(&model, &tokens[..20], 20).unwrap())
        })
    };
    let one = run(1);
    assert_eq!(one.0.len(), 15);
    for threads in [2, 7] {
        assert!(run(threads) == one, "{threads} threads");
    }
}

#[test]
fn a_perplexity_is_reproduced_to_the_last_digit_with_the_source_gone() {
    let folder = Folder::new();
    let from = folder.t0("t0", &T0::llama());
    let path = folder.path("m.gosset");
    let tokens = ids(500, 260, 10);
    let protocol = windows(100, 100, Scored::SecondHalf, Tail::Drop);
    let first = perplexity(&load(&quantize(&from, &e8(3.0), &path).0), &tokens, &protocol, None).unwrap();
    fs::remove_dir_all(from).unwrap();
    let again = perplexity(&load(&Container::open(&path).unwrap()), &tokens, &protocol, None).unwrap();
    assert_eq!(again, first);
}

/// A container alone in an empty folder, made from a folder with every side file.
fn alone(folder: &Folder, rope_scaling: bool) -> std::path::PathBuf {
    let workshop = Folder::new();
    let from = workshop.path("in");
    if rope_scaling {
        let rope_llama3 = Some((8.0, 1.0, 4.0, 64));
        TinyModel { rope_llama3, ..TinyModel::t0(TinyFamily::Llama, 51) }.write_hf(&from, "BF16").unwrap();
    } else {
        T0::llama().write(&from).unwrap();
    }
    fs::write(from.join("chat_template.jinja"), "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}")
        .unwrap();
    fs::write(from.join("tokenizer_config.json"), "{\"bos_token\": \"<s>\"}").unwrap();
    quantize(&from, &e8(4.0), &workshop.path("made.gosset"));
    fs::rename(workshop.path("made.gosset"), folder.path("moved.gosset")).unwrap();
    folder.path("moved.gosset")
}

#[test]
fn i05_a_container_alone_has_everything_a_model_needs() {
    let folder = Folder::new();
    let container = Container::open(&alone(&folder, false)).unwrap();
    let model = load(&container);
    // Configuration, tokenizer and generation defaults: the stop ids of both files.
    assert_eq!(model.stop_ids(), [257, 258]);
    let prompt = model.require_tokenizer().unwrap().encode("hello é🦀").unwrap();
    assert_eq!(prompt.len(), 5 + 1 + 2 + 4);
    let generation =
        generate(&model, &prompt, &GenerateOptions::greedy(10), &mut |_| std::ops::ControlFlow::Continue(()));
    assert!(matches!(generation.unwrap().stop, StopReason::MaxTokens | StopReason::StopId(257 | 258)));
    let blob = |name: &str| container.blob(name).unwrap();
    let template =
        ChatTemplate::from_blobs(blob("chat_template.jinja"), blob("tokenizer_config.json")).unwrap().unwrap();
    assert_eq!(template.render(&[Message::new("user", "Hi")], true).unwrap(), "[user]Hi");
    assert_logits(&model, &reference_of(&container), &ids(70, 260, 11), 5e-5);
    assert_eq!(folder.names(), ["moved.gosset"], "running leaves nothing behind");
}

#[test]
fn i05_rope_scaling_comes_with_the_file_and_is_used() {
    let folder = Folder::new();
    let container = Container::open(&alone(&folder, true)).unwrap();
    let model = load(&container);
    assert_ne!(model.config().rope_scaling, RopeScaling::None);
    let tokens = ids(100, 260, 12);
    assert_logits(&model, &reference_of(&container), &tokens, 5e-5);
    // Without it the model would be another one.
    let config = String::from_utf8(container.blob("config.json").unwrap().unwrap().to_vec()).unwrap();
    patch::plane(container.path(), "@blob/config.json", |bytes| {
        bytes.copy_from_slice(config.replace("\"rope_scaling\"", "\"rope_scalinG\"").as_bytes());
    });
    let other = load(&Container::open(container.path()).unwrap());
    assert_eq!(other.config().rope_scaling, RopeScaling::None);
    assert!(logits(&other, &tokens) != logits(&model, &tokens));
}

#[test]
fn i05_a_stripped_part_is_named() {
    let strip = |name: &str| {
        let folder = Folder::new();
        let path = alone(&folder, false);
        // A side file under a name that nobody asks for is a side file that is not there.
        patch::header_text(&path, name, &"x".repeat(name.len()));
        Container::open(&path).unwrap().verify().unwrap();
        (folder, path)
    };
    let open = |path: &Path| LanguageModel::from_container(Container::open(path).unwrap(), &LoadOptions::default());

    let (_folder, path) = strip("tokenizer.json");
    let model = open(&path).unwrap();
    let error = model.require_tokenizer().unwrap_err();
    assert!(matches!(&error, RuntimeError::MissingPart { part, .. } if part == "tokenizer.json"), "{error}");
    // Ids need no tokenizer, and there is no text then.
    let generation = greedy(&model, &[1, 2, 3], 5).unwrap();
    assert_eq!((generation.tokens.len(), generation.text.as_str()), (5, ""));

    let (_folder, path) = strip("config.json");
    let error = open(&path).unwrap_err();
    assert!(matches!(error, RuntimeError::MissingPart { .. }) && error.to_string().contains("config.json"), "{error}");

    let (_folder, path) = strip("model.layers.1.mlp.up_proj.weight");
    let error = open(&path).unwrap_err();
    assert!(matches!(&error, RuntimeError::MissingTensor { name, .. } if name == "model.layers.1.mlp.up_proj.weight"));
}

#[test]
fn i01_a_model_of_another_version_names_both_sides_and_a_newer_minor_one_runs() {
    let version = |major: u32, minor: u32| format!("\\\"format\\\":{{\\\"major\\\":{major},\\\"minor\\\":{minor}}}");
    for (to, runs) in [(version(1, 9), true), (version(2, 0), false), (version(0, 0), false)] {
        let folder = Folder::new();
        let path = alone(&folder, false);
        patch::header_text(&path, &version(1, 0), &to);
        match Container::open(&path) {
            Ok(container) => {
                assert!(runs, "{to}");
                assert_eq!(greedy(&load(&container), &[1, 2], 4).unwrap().tokens.len(), 4);
            }
            Err(error) => {
                let text = error.to_string();
                assert!(!runs && text.contains("made by gosset") && text.contains("needs gosset"), "{text}");
            }
        }
    }
}
