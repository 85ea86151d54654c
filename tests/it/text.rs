//! Streamed text, from a model that is made to say given bytes.

use std::ops::ControlFlow;

use gosset_runtime::{GenerateOptions, LanguageModel, generate};
use gosset_tests::t0::T0;

use crate::checkpoint::{Folder, e8, load, quantize, tensor};

/// A model that follows each id of `chain` by the next one: its layers add nothing, and each row of the head is the embedding of
/// the id before.
fn speaker(folder: &Folder, name: &str, chain: &[u32]) -> LanguageModel {
    let t0 = T0 { tie: Some(false), head: true, hidden: 320, ..T0::llama() };
    let path = folder.changed(name, &t0, |tensors| {
        for t in tensors.iter_mut().filter(|t| t.name.contains("_proj.")) {
            t.values.fill(0.0);
        }
        let table = tensor(tensors, "model.embed_tokens.weight").values.clone();
        let row = |id: u32| &table[id as usize * 320..][..320];
        let head = &mut tensor(tensors, "lm_head.weight").values;
        head.fill(0.0);
        for pair in chain.windows(2) {
            head[pair[1] as usize * 320..][..320].copy_from_slice(row(pair[0]));
        }
    });
    load(&quantize(&path, &e8(3.0), &folder.path(&format!("{name}.gosset"))).0)
}

#[test]
fn j01_a_forced_byte_stream_comes_out_as_whole_characters() {
    let folder = Folder::new();
    let invalid: Vec<u8> = (0xf5..=0xfe).collect();
    // No byte stands twice in a text, so that each decides the next; the model is at the same place in all of them.
    for (i, (bytes, pieces)) in [
        ("é".as_bytes(), vec!["é"]),
        ("🦀".as_bytes(), vec!["🦀"]),
        ("日語".as_bytes(), vec!["日", "語"]),
        // A joiner between two emoji is a character of its own to a stream.
        ("a\u{200d}👩".as_bytes(), vec!["a", "\u{200d}", "👩"]),
        (b"end\xf0", vec!["e", "n", "d", "\u{fffd}"]),
        (&invalid, vec!["\u{fffd}"; 10]),
        (b" \xe6x", vec![" ", "\u{fffd}x"]),
    ]
    .into_iter()
    .enumerate()
    {
        let chain: Vec<u32> = [256].into_iter().chain(bytes.iter().map(|&b| u32::from(b))).chain([257]).collect();
        let distinct: std::collections::HashSet<_> = chain.iter().collect();
        assert_eq!(distinct.len(), chain.len(), "{bytes:?} would branch");
        let model = speaker(&folder, &format!("m{i}"), &chain);
        let mut streamed = Vec::new();
        let generation = generate(&model, &[256], &GenerateOptions::greedy(40), &mut |piece| {
            streamed.push(piece.to_owned());
            ControlFlow::Continue(())
        })
        .unwrap();
        assert_eq!(generation.tokens, chain[1..chain.len() - 1], "the end token is not part of the text");
        assert_eq!(streamed, pieces);
        assert_eq!(generation.text, String::from_utf8_lossy(bytes));
    }
}
