//! Seeds of the corpora: small good inputs of every kind, made from the golden files and from generated checkpoints.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gosset_codec::{CodeHeader, MatrixHeader, SchemeHeader};
use gosset_container::{Container, ContainerKind, ManifestInfo, Writer};
use gosset_quantize::QuantizeOptions;
use gosset_runtime::source::fixture::{GgufWriter, TinyFamily, TinyModel};
use gosset_tests::t0::{T0, byte_tokenizer};

use crate::entries::{self, SEPARATOR};

/// Target, name and bytes of a seed.
pub(crate) type Seed = (&'static str, String, Vec<u8>);

/// Seeds of matrices larger than this are left out; fuzzing grows what it needs.
const MAX_MATRIX: usize = 3000;

pub(crate) const GOLDENS: [&str; 4] = ["format-1.0", "format-1.1", "format-1.2", "format-1.2-columns"];

pub(crate) fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(format!("{name}.gosset"))
}

/// All of them, in a fixed order.
pub(crate) fn all() -> Vec<Seed> {
    let mut seeds = Vec::new();
    matrices(&mut seeds);
    containers(&mut seeds);
    checkpoints(&mut seeds);
    pages(&mut seeds);
    texts(&mut seeds);
    seeds
}

fn target(header: &MatrixHeader) -> &'static str {
    match (&header.columns, &header.scheme) {
        (Some(_), _) => "columns",
        (None, SchemeHeader::Trellis(_)) => "trellis",
        (None, SchemeHeader::Shift(_)) => "shift",
        (None, SchemeHeader::Lattice(lattice)) if matches!(lattice.code, CodeHeader::Rice { .. }) => "rice",
        (None, _) => "ans",
    }
}

/// Every tensor of the golden files that is small.
fn matrices(seeds: &mut Vec<Seed>) {
    for name in GOLDENS {
        let container = Container::open(&golden(name)).unwrap();
        for (i, entry) in container.entries().iter().enumerate() {
            let (target, bytes) = if entry.is_coded() {
                let tensor = container.coded(&entry.name).unwrap();
                (target(tensor.header()), entries::matrix_input(tensor.header(), &tensor.planes()))
            } else if entry.is_unisvq() {
                ("unisvq", entries::unisvq_input(&container.unisvq(&entry.name).unwrap().to_matrix()))
            } else {
                continue;
            };
            if bytes.len() <= MAX_MATRIX {
                seeds.push((target, format!("{name}-{i:02}"), bytes));
            }
        }
    }
}

/// Small containers: two or three tensors of a golden file each, one with everything else that a container may have.
fn containers(seeds: &mut Vec<Seed>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("seed.gosset");
    let info = || ManifestInfo {
        kind: ContainerKind::Tensors,
        source: serde_json::json!({ "kind": "test" }),
        recipe: QuantizeOptions::new("e8", 3.0).to_recipe(),
    };
    for name in GOLDENS {
        let from: Arc<Container> = Container::open(&golden(name)).unwrap();
        let mut small: Vec<(u64, &str)> = (from.ledger().unwrap().entries.iter())
            .filter(|line| from.entry(&line.name).is_some())
            .map(|line| (line.plane_bytes(), from.entry(&line.name).unwrap().name.as_str()))
            .collect();
        small.sort_unstable();
        let n = small.len();
        for (part, tensors) in [&small[..3.min(n)], &small[n / 3..n / 3 + 2]].into_iter().enumerate() {
            let mut writer = Writer::create(&path, true).unwrap();
            for (_, tensor) in tensors {
                writer.copy_tensor(&from, tensor).unwrap();
            }
            if part == 0 {
                writer.add_raw("@extra#", "BF16", &[2, 3], &[7; 12], "one dimension").unwrap();
                writer.add_blob("config.json", br#"{"model_type":"llama"}"#).unwrap();
            }
            writer.finish(info()).unwrap();
            seeds.push(("container", format!("{name}-{part}"), fs::read(&path).unwrap()));
        }
    }
}

/// Checkpoints of a few kB.
fn checkpoints(seeds: &mut Vec<Seed>) {
    let folder = tempfile::tempdir().unwrap();
    for (family, name) in [(TinyFamily::Llama, "llama"), (TinyFamily::Qwen2, "qwen2")] {
        for dtype in ["BF16", "Q8_0", "Q4_0"] {
            let tiny = TinyModel {
                hidden: 32,
                n_heads: 2,
                n_kv_heads: 1,
                head_dim: 8,
                ffn: 32,
                n_layers: 1,
                rope_llama3: (family == TinyFamily::Llama).then_some((8.0, 1.0, 4.0, 64)),
                tied: true,
                ..TinyModel::t0(family, 3)
            };
            let path = folder.path().join("seed.gguf");
            tiny.write_gguf(&path, dtype, 1).unwrap();
            seeds.push(("gguf", format!("{name}-{dtype}"), fs::read(&path).unwrap()));
        }
    }
    for (t0, name) in [(T0::llama(), "llama"), (T0::qwen2(), "qwen2")] {
        let t0 = T0 { layers: 1, hidden: 8, heads: 2, kv_heads: 1, head_dim: 4, ffn: 8, vocab: 5, shards: 1, ..t0 };
        let path = folder.path().join(name);
        t0.write(&path).unwrap();
        let shard = fs::read(path.join("model.safetensors")).unwrap();
        let header = gosset_container::safetensors_header::parse(
            &shard[8..8 + u64::from_le_bytes(shard[..8].try_into().unwrap()) as usize],
        );
        let map: serde_json::Map<_, _> = (header.unwrap().tensors.iter())
            .map(|t| (t.name.clone(), "model-00001-of-00001.safetensors".into()))
            .collect();
        let index = serde_json::json!({ "metadata": { "total_size": 1 }, "weight_map": map }).to_string();
        let parts = [index.as_bytes(), SEPARATOR, t0.config().as_bytes(), SEPARATOR, &shard].concat();
        seeds.push(("folder", name.to_owned(), parts));
        seeds.push(("config", name.to_owned(), t0.config().into_bytes()));
        seeds.push(("safetensors", name.to_owned(), shard));
    }
    let dtypes: Vec<(String, &str, Vec<usize>, Vec<u8>)> =
        [("F32", 4), ("F16", 2), ("F64", 8), ("I8", 1), ("BOOL", 1), ("U16", 2), ("F8_E4M3", 1)]
            .into_iter()
            .map(|(dtype, size)| (format!("w.{dtype}"), dtype, vec![2, 3], vec![0x3c; 6 * size]))
            .chain([("scalar".to_owned(), "F32", vec![], vec![0; 4]), ("empty".to_owned(), "F32", vec![0, 5], vec![])])
            .collect();
    seeds.push(("safetensors", "dtypes".to_owned(), gosset_tests::t0::safetensors(&dtypes)));
    let config = r#"{"architectures":["Qwen2ForCausalLM"],"vocab_size":9,"hidden_size":8,"intermediate_size":8,"num_hidden_layers":1,
"num_attention_heads":2,"rms_norm_eps":1e-6,"rope_scaling":{"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,
"original_max_position_embeddings":64},"sliding_window":8,"use_sliding_window":true,"max_window_layers":1,"eos_token_id":[1,2],"head_dim":null}"#;
    seeds.push(("config", "scaled".to_owned(), config.into()));
    for name in ["mistral", "gemma3", "gemma3-seeing"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/models").join(name).join("config.json");
        seeds.push(("config", name.to_owned(), fs::read(path).unwrap()));
    }
    // What Gemma 3 has of its own in GGUF: keys, names, and norms that are read less by one.
    let bytes = |values: &[f32]| values.iter().flat_map(|v| v.to_le_bytes()).collect();
    let gemma = GgufWriter::new()
        .str("general.architecture", "gemma3")
        .u32("gemma3.context_length", 64)
        .u32("gemma3.embedding_length", 4)
        .u32("gemma3.block_count", 1)
        .u32("gemma3.feed_forward_length", 4)
        .u32("gemma3.attention.head_count", 2)
        .u32("gemma3.attention.head_count_kv", 1)
        .u32("gemma3.attention.key_length", 2)
        .u32("gemma3.attention.value_length", 2)
        .u32("gemma3.attention.sliding_window", 8)
        .f32("gemma3.attention.layer_norm_rms_epsilon", 1e-6)
        .f32("gemma3.final_logit_softcapping", 30.0)
        .str("gemma3.rope.scaling.type", "linear")
        .f32("gemma3.rope.scaling.factor", 8.0)
        .tensor("token_embd.weight", &[3, 4], "F32", bytes(&[0.5; 12]))
        .tensor("blk.0.post_ffw_norm.weight", &[4], "F32", bytes(&[1.0, 1.5, 0.5, 2.0]));
    seeds.push(("gguf", "gemma3".to_owned(), gemma.to_bytes()));
}

/// A page of every codec, and specifications.
fn pages(seeds: &mut Vec<Seed>) {
    for index in 0..entries::n_codecs() {
        seeds.push(("kv_pages", format!("{index:02}"), entries::page_of(index, 4)));
    }
    for (i, text) in [
        "e8@2.25,window=256,sinks=64",
        "k=d4@2,v=f16,frame=none,rope=after,coder=rice,page=32,budget=fixed",
        "trellis-8@3,norm=log8,rot=haar,exact=bf16,protect=0+k3+v23,seed=18446744073709551615",
        "e8@2.5,k@2,v@3,dither=on,k.rot=signs,v.gain=off",
    ]
    .into_iter()
    .enumerate()
    {
        seeds.push(("kv_spec", i.to_string(), text.into()));
    }
}

/// Tokenizers and templates as models have them.
fn texts(seeds: &mut Vec<Seed>) {
    let byte_level = byte_tokenizer();
    seeds.push(("tokenizer", "byte-level".to_owned(), byte_level.into_bytes()));
    seeds.push((
        "tokenizer",
        "tiny".to_owned(),
        TinyModel::t0(TinyFamily::Llama, 1).tokenizer().to_string().into_bytes(),
    ));
    let small = r#"{"version":"1.0","truncation":{"direction":"Right","max_length":4,"strategy":"LongestFirst","stride":0},
"padding":{"strategy":{"Fixed":8},"direction":"Right","pad_to_multiple_of":null,"pad_id":0,"pad_type_id":0,"pad_token":"<s>"},
"added_tokens":[{"id":0,"content":"<s>","single_word":false,"lstrip":true,"rstrip":false,"normalized":false,"special":true}],
"normalizer":{"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"\u2581"},{"type":"Replace","pattern":{"String":" "},"content":"\u2581"}]},
"pre_tokenizer":{"type":"Split","pattern":{"Regex":"\\p{N}{1,3}| ?\\p{L}+|\\s+"},"behavior":"Isolated","invert":false},
"post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],
"pair":[{"Sequence":{"id":"A","type_id":0}},{"Sequence":{"id":"B","type_id":0}}],"special_tokens":{"<s>":{"id":"<s>","ids":[0],"tokens":["<s>"]}}},
"decoder":{"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"\u2581"},"content":" "},{"type":"ByteFallback"},{"type":"Fuse"},
{"type":"Strip","content":" ","start":1,"stop":0}]},
"model":{"type":"BPE","dropout":null,"unk_token":"<s>","continuing_subword_prefix":null,"end_of_word_suffix":null,"fuse_unk":false,
"byte_fallback":true,"ignore_merges":false,"vocab":{"<s>":0,"\u2581":1,"a":2,"b":3,"ab":4,"<0x41>":5,"\u2581ab":6},"merges":[["a","b"],["\u2581","ab"]]}}"#;
    seeds.push(("tokenizer", "bpe".to_owned(), small.into()));
    let unigram = r#"{"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":{"type":"NFKC"},
"pre_tokenizer":{"type":"Metaspace","replacement":"\u2581","prepend_scheme":"always","split":true},"post_processor":null,
"decoder":{"type":"Metaspace","replacement":"\u2581","prepend_scheme":"always","split":true},
"model":{"type":"Unigram","unk_id":0,"vocab":[["<unk>",0.0],["\u2581a",-1.0],["b",-2.5],["\u2581",-3.0]],"byte_fallback":false}}"#;
    seeds.push(("tokenizer", "unigram".to_owned(), unigram.into()));
    let pieces = r###"{"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":{"type":"BertNormalizer","clean_text":true,
"handle_chinese_chars":true,"strip_accents":null,"lowercase":true},"pre_tokenizer":{"type":"BertPreTokenizer"},"post_processor":null,
"decoder":{"type":"WordPiece","prefix":"##","cleanup":true},"model":{"type":"WordPiece","unk_token":"[U]","continuing_subword_prefix":"##",
"max_input_chars_per_word":100,"vocab":{"[U]":0,"hello":1,"##x":2,",":3}}}"###;
    seeds.push(("tokenizer", "wordpiece".to_owned(), pieces.into()));
    for (name, source) in [
        (
            "plain",
            "{% for m in messages %}<|{{ m.role }}|>{{ m.content | trim }}{{ eos_token }}\n{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}",
        ),
        (
            "chatml",
            "{%- if messages[0]['role'] == 'system' -%}{%- set system = messages[0].content -%}{%- set rest = messages[1:] -%}{%- else -%}{%- set system = '' -%}{%- set rest = messages -%}{%- endif -%}{{ bos_token }}{{ system|upper }}{%- for m in rest -%}{%- if (m.role == 'user') != (loop.index0 % 2 == 0) -%}{{ raise_exception('roles: ' ~ m.role) }}{%- endif -%}[{{ loop.index }}]{{ m.content.strip().split('x')|join(', ') }}{%- generation -%}{{ '\\n' + '-' * 3 }}{%- endgeneration -%}{%- endfor -%}",
        ),
        (
            "macro",
            "{% macro show(m, tag='t') %}<{{ tag }}>{{ m|tojson(indent=2) }}</{{ tag }}>{% endmacro %}{% set ns = namespace(n=0, last=none) %}{% for m in messages|reverse %}{% set ns.n = ns.n + 1 %}{{ show(m, m.role[:2]) }}{% if ns.n is divisibleby 2 and m.content is string %}{{ m.content|replace('b', '**')|length }}{% endif %}{% endfor %}{{ ns.n }}{# done #}{% raw %}{{ no }}{% endraw %}",
        ),
        (
            "config",
            "{\"bos_token\":{\"content\":\"<s>\"},\"eos_token\":\"</s>\",\"chat_template\":[{\"name\":\"default\",\"template\":\"{% for i in range(3) %}{{ i }}{{ messages[0].content }}{% endfor %}\"}]}",
        ),
    ] {
        seeds.push(("chat_template", name.to_owned(), source.into()));
    }
}
