//! Layouts of checkpoints: what is complete opens, what is not is refused before a weight is read, by its own error.

#![allow(clippy::unwrap_used, reason = "fixtures of tests")]

use std::fs;
use std::path::Path;

use gosset_container::safetensors_header::HeaderProblem;
use gosset_quantize::{ModelSource, SafetensorsSource, SourceError};
use gosset_tests::t0::{Dtype, T0, safetensors};
use tempfile::TempDir;

fn written(t0: &T0) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    t0.write(dir.path()).unwrap();
    dir
}

fn refused(path: &Path) -> SourceError {
    SafetensorsSource::open(path).map(|s| s.info().clone()).unwrap_err()
}

/// Every value of a source, by tensor.
fn values(source: &SafetensorsSource) -> Vec<(String, Vec<f32>)> {
    let read = |(i, t): (usize, &gosset_quantize::TensorInfo)| {
        let (rows, cols) = t.rows_cols();
        let mut out = vec![0.0; rows * cols];
        source.read_rows(i, 0..rows, &mut out).unwrap();
        (t.name.clone(), out)
    };
    source.tensors().iter().enumerate().map(read).collect()
}

#[test]
fn every_dtype_and_layout_gives_the_values_that_were_written() {
    for dtype in [Dtype::Bf16, Dtype::F16, Dtype::F32] {
        for shards in [1, 3] {
            let t0 = T0 { dtype, shards, ..T0::qwen2() };
            let dir = written(&t0);
            let source = SafetensorsSource::open(dir.path()).unwrap();
            let expected: Vec<_> = t0.tensors().into_iter().map(|t| (t.name, t.values)).collect();
            assert_eq!(values(&source), expected);
            assert_eq!(source.info().architecture.as_deref(), Some("Qwen2ForCausalLM"));
            assert_eq!(source.info().files.len(), shards);
            assert!(source.blob("tokenizer.json").is_some() && source.blob("chat_template.jinja").is_none());
            let mut copied = Vec::new();
            source.copy_raw(1, &mut copied).unwrap();
            assert_eq!(copied, *source.raw_bytes(1).unwrap());
        }
    }
}

#[test]
fn the_fingerprint_follows_content_and_not_place() {
    let (a, b) = (written(&T0::llama()), written(&T0::llama()));
    let print = |dir: &TempDir| SafetensorsSource::open(dir.path()).unwrap().info().fingerprint.clone();
    assert_eq!(print(&a), print(&b));
    assert_ne!(print(&a), print(&written(&T0::qwen2())));
}

#[test]
fn a_bare_file_is_plain_tensors() {
    let dir = written(&T0::llama());
    let source = SafetensorsSource::open(&dir.path().join("model.safetensors")).unwrap();
    assert_eq!(source.info().architecture, None);
    assert!(source.blobs().is_empty());
}

#[test]
fn rows_outside_a_tensor_are_refused() {
    let dir = written(&T0::llama());
    let source = SafetensorsSource::open(dir.path()).unwrap();
    let mut out = vec![0.0; 64];
    source.read_rows(0, 259..260, &mut out).unwrap();
    assert!(matches!(source.read_rows(0, 260..261, &mut out), Err(SourceError::Range { .. })));
    assert!(matches!(source.read_rows(0, 0..2, &mut out), Err(SourceError::Range { .. })));
    assert!(matches!(source.read_rows(99, 0..1, &mut out), Err(SourceError::Range { .. })));
}

#[test]
fn c02_missing_shards_are_listed_with_their_tensors() {
    let t0 = T0 { shards: 3, ..T0::llama() };
    let dir = written(&t0);
    fs::remove_file(dir.path().join(t0.shard_name(1))).unwrap();
    let error = refused(dir.path());
    let SourceError::MissingShards { missing, hint, .. } = &error else { panic!("{error}") };
    assert_eq!(missing, &[(t0.shard_name(1), 7)]);
    assert!(hint.contains("7 of their 7 tensors were not found"), "{hint}");
}

#[test]
fn c02_a_stale_index_is_told_apart() {
    let t0 = T0 { shards: 3, ..T0::llama() };
    let dir = written(&t0);
    let path = dir.path().join("model.safetensors.index.json");
    // The index of another version of the model: six shards of which none of these names exists.
    let index = fs::read_to_string(&path).unwrap().replace("-of-00003", "-of-00006");
    fs::write(&path, index).unwrap();
    let error = refused(dir.path());
    let SourceError::MissingShards { missing, hint, .. } = &error else { panic!("{error}") };
    assert_eq!(missing.iter().map(|(_, n)| n).sum::<usize>(), 20);
    assert!(hint.contains("all 20") && hint.contains("stale"), "{hint}");
}

#[test]
fn c02_a_tensor_outside_its_shard_is_refused() {
    let t0 = T0 { shards: 2, ..T0::llama() };
    let dir = written(&t0);
    let path = dir.path().join("model.safetensors.index.json");
    let index = fs::read_to_string(&path).unwrap();
    let moved = index.replace(
        &format!("\"model.norm.weight\":\"{}\"", t0.shard_name(1)),
        &format!("\"model.norm.weight\":\"{}\"", t0.shard_name(0)),
    );
    assert_ne!(index, moved);
    fs::write(&path, moved).unwrap();
    assert!(matches!(refused(dir.path()), SourceError::MissingTensor { name, .. } if name == "model.norm.weight"));
}

#[test]
fn c02_one_tensor_in_two_shards_is_refused() {
    let t0 = T0 { shards: 2, ..T0::llama() };
    let dir = written(&t0);
    let again = t0.safetensors(&t0.tensors());
    fs::write(dir.path().join(t0.shard_name(0)), again).unwrap();
    assert!(matches!(refused(dir.path()), SourceError::DuplicateTensor { .. }));
}

#[test]
fn c04_each_bad_file_has_its_own_error() {
    let dir = tempfile::tempdir().unwrap();
    let file = |header: &str, n_data: usize| {
        let mut out = (header.len() as u64).to_le_bytes().to_vec();
        out.extend_from_slice(header.as_bytes());
        out.resize(out.len() + n_data, 0);
        out
    };
    let entry = |name: &str, range: &str| format!(r#""{name}":{{"dtype":"F32","shape":[2],"data_offsets":{range}}}"#);
    let two = |a: &str, b: &str| format!("{{{},{}}}", entry("a", a), entry("b", b));
    let claimed = |len: u64| {
        let mut out = len.to_le_bytes().to_vec();
        out.extend_from_slice(b"{}        ");
        out
    };
    type Check = fn(&HeaderProblem) -> bool;
    let cases: [(&str, Vec<u8>, Check); 12] = [
        ("duplicate", file(&format!("{{{0},{0}}}", entry("a", "[0,8]")), 8), |p| {
            matches!(p, HeaderProblem::DuplicateName { .. })
        }),
        ("overlap", file(&two("[0,8]", "[0,8]"), 8), |p| matches!(p, HeaderProblem::Overlap { .. })),
        ("gap", file(&two("[0,8]", "[12,20]"), 20), |p| matches!(p, HeaderProblem::Gap { start: 8, end: 12, .. })),
        ("reversed", file(&two("[8,0]", "[0,8]"), 8), |p| matches!(p, HeaderProblem::ReversedRange { .. })),
        ("negative", file(&two("[-8,0]", "[0,8]"), 8), |p| matches!(p, HeaderProblem::Json { .. })),
        ("size", file(&two("[0,8]", "[8,12]"), 12), |p| matches!(p, HeaderProblem::SizeMismatch { .. })),
        ("zero", claimed(0), |p| matches!(p, HeaderProblem::HeaderLength { .. })),
        ("2^63", claimed(1 << 63), |p| matches!(p, HeaderProblem::HeaderLength { .. })),
        ("beyond", claimed(19), |p| matches!(p, HeaderProblem::TooShort { .. })),
        ("array", file("[1,2,3]", 0), |p| matches!(p, HeaderProblem::Json { .. })),
        ("zip", b"PK\x03\x04\x14\0\0\0\x08\x08data.pkl".to_vec(), |p| matches!(p, HeaderProblem::OtherFormat { .. })),
        ("long", file(&two("[0,8]", "[8,16]"), 17), |p| matches!(p, HeaderProblem::FileLength { .. })),
    ];
    for (name, bytes, check) in cases {
        let path = dir.path().join(format!("{name}.safetensors"));
        fs::write(&path, bytes).unwrap();
        match refused(&path) {
            SourceError::Header { path: told, problem } => {
                assert!(check(&problem), "{name}: {problem}");
                assert_eq!(told, path);
            }
            other => panic!("{name}: {other}"),
        }
    }
}

#[test]
fn c04_valid_oddities_load() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("odd.safetensors");
    let tensors = [
        ("scalar".to_owned(), "F32", vec![], 2.5f32.to_le_bytes().to_vec()),
        ("empty".to_owned(), "BF16", vec![0, 7], vec![]),
        ("ids".to_owned(), "I64", vec![1], vec![5, 0, 0, 0, 0, 0, 0, 0]),
    ];
    fs::write(&path, safetensors(&tensors)).unwrap();
    let source = SafetensorsSource::open(&path).unwrap();
    let mut one = [0.0];
    source.read_rows(0, 0..1, &mut one).unwrap();
    assert_eq!(one, [2.5]);
    source.read_rows(1, 0..0, &mut []).unwrap();
    assert!(matches!(source.read_rows(2, 0..1, &mut one), Err(SourceError::NotFloat { .. })));
    assert_eq!(source.raw_bytes(2).unwrap().len(), 8);
}

#[test]
fn c05_a_short_shard_is_refused_with_both_lengths() {
    let t0 = T0 { shards: 2, ..T0::llama() };
    let dir = written(&t0);
    let path = dir.path().join(t0.shard_name(1));
    let whole = fs::read(&path).unwrap();
    let header = 8 + u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    for len in [whole.len() - 1, whole.len() - 128, header, header - 1, 4, 0] {
        fs::write(&path, &whole[..len]).unwrap();
        let text = refused(dir.path()).to_string();
        assert!(text.contains(&format!("found {len}")) || text.contains(&format!("file of {len}")), "{len}: {text}");
        assert!(text.contains("incomplete"), "{len}: {text}");
        if len >= header {
            assert!(text.contains(&whole.len().to_string()), "{text}");
        }
    }
}

#[test]
fn c05_a_file_that_shrinks_while_open_gives_an_io_error() {
    let dir = written(&T0::llama());
    let source = SafetensorsSource::open(dir.path()).unwrap();
    let path = dir.path().join("model.safetensors");
    let len = fs::metadata(&path).unwrap().len();
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(len / 2).unwrap();
    let last = source.tensors().len() - 1;
    let mut out = vec![0.0; 64];
    assert!(matches!(source.read_rows(last, 0..1, &mut out), Err(SourceError::Io { .. })));
    assert!(matches!(source.raw_bytes(last), Err(SourceError::Io { .. })));
    source.read_rows(0, 0..1, &mut out).unwrap();
}

#[test]
fn c06_shard_names_must_be_plain() {
    for name in ["../x.safetensors", "/abs/x.safetensors", "a/../../x", "C:\\\\x", "a\\u0000b", "", "..", "sub/x"] {
        let dir = tempfile::tempdir().unwrap();
        let index = format!("{{\"weight_map\":{{\"a\":\"{name}\"}}}}");
        fs::write(dir.path().join("model.safetensors.index.json"), index).unwrap();
        let error = refused(dir.path());
        assert!(matches!(error, SourceError::UnsafeShardName { .. }), "{name:?}: {error}");
    }
}

#[test]
fn c06_a_malformed_index_is_refused() {
    for (index, part) in [
        ("[]", "index"),
        ("{}", "weight_map"),
        ("{\"weight_map\":{}}", "no tensor"),
        ("{\"weight_map\":{\"a\":1}}", "index"),
        ("{\"weight_map\":{\"a\":\"x\",\"a\":\"y\"}}", "twice"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("model.safetensors.index.json"), index).unwrap();
        let error = refused(dir.path());
        assert!(matches!(error, SourceError::BadIndex { .. }) && error.to_string().contains(part), "{index}: {error}");
    }
}

#[cfg(unix)]
#[test]
fn c06_a_cache_of_symlinks_loads_and_a_broken_one_is_named() {
    use std::os::unix::fs::symlink;
    let t0 = T0 { shards: 2, ..T0::llama() };
    let real = written(&t0);
    let cache = tempfile::tempdir().unwrap();
    let (blobs, snapshot) = (cache.path().join("blobs"), cache.path().join("snapshots/main"));
    fs::create_dir_all(&blobs).unwrap();
    fs::create_dir_all(&snapshot).unwrap();
    for (i, entry) in fs::read_dir(real.path()).unwrap().enumerate() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), blobs.join(format!("hash{i}"))).unwrap();
        symlink(format!("../../blobs/hash{i}"), snapshot.join(entry.file_name())).unwrap();
    }
    let source = SafetensorsSource::open(&snapshot).unwrap();
    assert_eq!(source.tensors().len(), t0.tensors().len());

    let link = snapshot.join(t0.shard_name(1));
    let target = fs::read_link(&link).unwrap();
    fs::remove_file(snapshot.join(&target)).unwrap();
    match refused(&snapshot) {
        SourceError::BrokenLink { path, target: told } => assert_eq!((path, told), (link, target)),
        other => panic!("{other}"),
    }
}

#[cfg(target_os = "linux")]
#[test]
fn c07_any_path_will_do_and_nothing_is_written_beside_the_input() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::PermissionsExt;
    let root = tempfile::tempdir().unwrap();
    let long = "x".repeat(250);
    for name in ["dir with space".as_bytes(), "モデル-ñ-🦀".as_bytes(), long.as_bytes(), b"bad\xff"] {
        let dir = root.path().join(OsStr::from_bytes(name));
        T0::llama().write(&dir).unwrap();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o555)).unwrap();
        let source = SafetensorsSource::open(&dir).unwrap();
        assert_eq!(values(&source).len(), 20);
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 4);
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
    }
}

#[test]
fn c08_folders_without_safetensors_say_what_is_there() {
    let case = |files: &[(&str, &[u8])]| {
        let dir = tempfile::tempdir().unwrap();
        files.iter().for_each(|(name, bytes)| fs::write(dir.path().join(name), bytes).unwrap());
        refused(dir.path())
    };
    let empty = case(&[]);
    assert!(matches!(empty, SourceError::EmptyFolder { .. }));
    let zip = case(&[("pytorch_model.bin", b"PK\x03\x04xxxx"), ("config.json", b"{}")]);
    assert!(
        matches!(&zip, SourceError::OnlyPickle { files, .. } if files == &["pytorch_model.bin (zip archive of pickles)"])
    );
    assert!(zip.to_string().contains("not loaded") && zip.to_string().contains("convert"), "{zip}");
    let old = case(&[("pytorch_model.bin", b"\x80\x02\x8a\x0a\x6c")]);
    assert!(matches!(&old, SourceError::OnlyPickle { files, .. } if files == &["pytorch_model.bin (pickle)"]));
    let tokenizer = case(&[("tokenizer.model", b"\x0a\x0b")]);
    assert!(matches!(&tokenizer, SourceError::OnlyTokenizer { .. }), "{tokenizer}");
    let config = case(&[("config.json", b"{}")]);
    assert!(matches!(&config, SourceError::NoWeights { found, .. } if found == &["config.json"]));
    let gguf = case(&[("m.gguf", b"GGUF")]);
    assert!(matches!(&gguf, SourceError::OnlyGguf { .. }));
    let several = case(&[("a.safetensors", b""), ("b.safetensors", b"")]);
    assert!(matches!(&several, SourceError::SeveralFiles { files, .. } if files.len() == 2));
    let none = SafetensorsSource::open(Path::new("no/such/folder")).unwrap_err();
    assert!(matches!(none, SourceError::NotFound { .. }));
}

#[test]
fn c08_weights_need_no_tokenizer() {
    let dir = written(&T0::llama());
    fs::remove_file(dir.path().join("tokenizer.json")).unwrap();
    let source = SafetensorsSource::open(dir.path()).unwrap();
    assert_eq!(source.blob("tokenizer.json"), None);
}

#[test]
fn b01_eight_bit_floats_are_refused_up_front() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("fp8.safetensors");
    let tensors = [
        ("a".to_owned(), "F8_E4M3", vec![4, 4], vec![0; 16]),
        ("b".to_owned(), "F8_E4M3", vec![4, 4], vec![0; 16]),
        ("s".to_owned(), "F32", vec![2, 2], vec![0; 16]),
    ];
    fs::write(&path, safetensors(&tensors)).unwrap();
    let error = refused(&path);
    assert!(matches!(error, SourceError::AlreadyQuantized { .. }));
    assert!(error.to_string().contains("2 tensors of F8_E4M3, the first is \"a\""), "{error}");
}

#[test]
fn b02_quantized_checkpoints_are_refused_up_front() {
    let dir = written(&T0::llama());
    let config = dir.path().join("config.json");
    let text = fs::read_to_string(&config).unwrap();
    let quantized = text.replacen('{', "{\"quantization_config\":{\"quant_method\":\"gptq\",\"bits\":4},", 1);
    fs::write(&config, quantized).unwrap();
    let error = refused(dir.path()).to_string();
    assert!(
        error.contains("gptq") && error.contains("already quantized") && error.contains("full-precision"),
        "{error}"
    );
    // The same weights with a clean configuration but packed integers.
    fs::write(&config, text).unwrap();
    let packed = [("model.layers.0.mlp.up_proj.qweight".to_owned(), "I32", vec![8, 4], vec![0; 128])];
    fs::write(dir.path().join("model.safetensors"), safetensors(&packed)).unwrap();
    let error = refused(dir.path()).to_string();
    assert!(error.contains("1 tensors of I32") && error.contains("qweight"), "{error}");
}

#[test]
fn a_broken_configuration_is_named() {
    let dir = written(&T0::llama());
    for text in ["{", "[]"] {
        fs::write(dir.path().join("config.json"), text).unwrap();
        assert!(matches!(refused(dir.path()), SourceError::BadConfig { .. }));
    }
}
