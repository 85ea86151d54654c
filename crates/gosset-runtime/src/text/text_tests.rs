//! Cases A06, E01, J01 and J02 on small vocabularies.

use serde_json::json;

use super::{ChatTemplate, Message, TextStream, Tokenizer};
use crate::source::fixture::{TinyFamily, TinyModel};

/// 256 byte tokens (id = byte) and four control tokens, of which `<bos>` is 257.
fn byte_level() -> Tokenizer {
    let json = TinyModel::t0(TinyFamily::Llama, 1).tokenizer().to_string();
    Tokenizer::from_bytes(json.as_bytes()).unwrap()
}

/// SentencePiece style: `<unk>`, `<s>`, 256 byte tokens from id 2, then some pieces.
fn sentencepiece() -> Tokenizer {
    let mut vocab = serde_json::Map::new();
    let names = ["<unk>".into(), "<s>".into()].into_iter().chain((0..256).map(|b| format!("<0x{b:02X}>")));
    for (id, name) in names.chain(["▁", "▁a", "b", "▁▁", "é"].map(String::from)).enumerate() {
        vocab.insert(name, json!(id));
    }
    let special = |id: u32, content: &str| {
        json!({ "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
                "special": true })
    };
    let json = json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [special(0, "<unk>"), special(1, "<s>")],
        "normalizer": { "type": "Sequence", "normalizers": [
            { "type": "Prepend", "prepend": "▁" },
            { "type": "Replace", "pattern": { "String": " " }, "content": "▁" }] },
        "pre_tokenizer": null, "post_processor": null,
        "decoder": { "type": "Sequence", "decoders": [
            { "type": "Replace", "pattern": { "String": "▁" }, "content": " " },
            { "type": "ByteFallback" }, { "type": "Fuse" },
            { "type": "Strip", "content": " ", "start": 1, "stop": 0 }] },
        "model": { "type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true, "vocab": vocab,
                   "merges": [["▁", "▁"]] },
    });
    Tokenizer::from_bytes(json.to_string().as_bytes()).unwrap()
}

/// The pieces of a stream, with the last one from `finish`.
fn stream(mut stream: TextStream<'_>, ids: &[u32]) -> Vec<String> {
    let mut pieces: Vec<String> = ids.iter().filter_map(|&id| stream.push(id)).collect();
    pieces.push(stream.finish());
    pieces
}

fn byte_ids(bytes: &[u8], offset: u32) -> Vec<u32> {
    bytes.iter().map(|&b| u32::from(b) + offset).collect()
}

/// Texts of case J01 as bytes: two-byte letter, emoji, joined emoji, CJK, a lone lead byte at the end, ten invalid bytes.
fn j01_bytes() -> Vec<Vec<u8>> {
    vec![
        "é".into(),
        "🦀".into(),
        "👩‍🚀 family 👨‍👩‍👧".into(),
        "日本語のテキスト".into(),
        b"end\xf0".to_vec(),
        b"end\xf0\x9f\xa6".to_vec(),
        b"\xff\xfe\x80\x80\x80\xc0\xc1\xf5\xff\xbf then text".to_vec(),
        b"a\xe2\x82b\xe2\x82\xac\xed\xa0\x80".to_vec(),
        "a literal \u{fffd} sign".into(),
        Vec::new(),
    ]
}

/// Case J01: the streamed text is the whole decode, which is the lossy reading of the bytes, for both kinds of vocabulary.
#[test]
fn j01_streamed_text_is_the_whole_decode() {
    for (tokenizer, offset) in [(byte_level(), 0), (sentencepiece(), 2)] {
        for bytes in j01_bytes() {
            let ids = byte_ids(&bytes, offset);
            let whole = String::from_utf8_lossy(&bytes);
            assert_eq!(tokenizer.decode(&ids), whole);
            assert_eq!(stream(TextStream::new(&tokenizer), &ids).concat(), whole);
            if let Ok(valid) = std::str::from_utf8(&bytes) {
                assert_eq!(stream(TextStream::new(&tokenizer), &ids).concat(), valid);
                // The library agrees wherever the text is valid.
                assert_eq!(tokenizer.decode_by_library(&ids), valid);
            }
        }
    }
}

/// Case J01: a character comes out exactly with the byte that completes it, and only unfinished ones are held back.
#[test]
fn j01_characters_come_whole_and_at_once() {
    for (tokenizer, offset) in [(byte_level(), 0), (sentencepiece(), 2)] {
        for text in ["é🦀日", "👩‍🚀"] {
            let mut s = TextStream::new(&tokenizer);
            for c in text.chars() {
                let ids = byte_ids(c.to_string().as_bytes(), offset);
                for (i, &id) in ids.iter().enumerate() {
                    let expected = (i + 1 == ids.len()).then(|| c.to_string());
                    assert_eq!(s.push(id), expected);
                }
            }
            assert_eq!(s.finish(), "");
        }
    }
}

/// Case J01: ten invalid bytes leave the stream at once, at most three bytes ever wait.
#[test]
fn j01_invalid_bytes_cannot_stall_the_stream() {
    for (tokenizer, offset) in [(byte_level(), 0), (sentencepiece(), 2)] {
        let mut s = TextStream::new(&tokenizer);
        for _ in 0..10 {
            assert_eq!(s.push(0xff + offset).as_deref(), Some("\u{fffd}"));
        }
        assert_eq!(s.push(0xf0 + offset), None);
        assert_eq!(s.push(u32::from(b'x') + offset).as_deref(), Some("\u{fffd}x"));
        assert_eq!(s.push(0xf0 + offset), None);
        assert_eq!(s.finish(), "\u{fffd}");
    }
}

/// Case J01: one leading space goes at the start of a text, none when a text is continued.
#[test]
fn j01_leading_space_rules_hold() {
    let t = sentencepiece();
    let [mark, a, b, two] = ["▁", "▁a", "b", "▁▁"].map(|p| t.id(p).unwrap());
    for (ids, text) in
        [(vec![a, b, a], "ab a"), (vec![mark, a], " a"), (vec![two, b], " b"), (vec![b, a], "b a"), (vec![1, a], "a")]
    {
        assert_eq!(t.decode(&ids), text);
        assert_eq!(stream(TextStream::new(&t), &ids).concat(), text);
        assert_eq!(t.decode_by_library(&ids), text);
    }
    assert_eq!(stream(TextStream::continuing(&t), &[a, b]).concat(), " ab");
    for text in ["a b", " a", "  a", "b", "", "a  b "] {
        assert_eq!(t.decode(&t.encode(text).unwrap()), text);
    }
}

/// Decoders this crate has no rule for go through the library and stream the same text.
#[test]
fn other_decoders_stream_the_library_text() {
    let vocab = json!({ "[UNK]": 0, "hug": 1, "##ging": 2, "face": 3, "é": 4 });
    let json = json!({
        "version": "1.0", "added_tokens": [], "decoder": { "type": "WordPiece", "prefix": "##", "cleanup": false },
        "pre_tokenizer": { "type": "Whitespace" },
        "model": { "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                   "max_input_chars_per_word": 100, "vocab": vocab },
    });
    let t = Tokenizer::from_bytes(json.to_string().as_bytes()).unwrap();
    for ids in [vec![1, 2, 3, 4], vec![3, 9, 1], vec![]] {
        let whole = t.decode_by_library(&ids);
        assert_eq!(t.decode(&ids), whole);
    }
    assert_eq!(stream(TextStream::new(&t), &[1, 2, 3]), ["hug", "ging", " face", ""]);
}

/// Case A06: ids beyond the tokenizer decode to nothing and can be told from real ones.
#[test]
fn a06_ids_without_a_token_decode_to_nothing() {
    for t in [byte_level(), sentencepiece()] {
        assert_eq!(t.decode(&[9999, u32::MAX]), "");
        assert!(!t.contains(9999));
        let bound = t.id_bound();
        assert!(t.contains(bound - 1) && !t.contains(bound));
    }
    let t = byte_level();
    assert_eq!((t.vocab_size(), t.id_bound()), (260, 260));
    assert_eq!(t.decode(&[u32::from(b'a'), 300, u32::from(b'b'), 258]), "ab");
}

/// Case E01: BOS is put in front on request, once, also when the text spells it; control tokens are no text.
#[test]
fn e01_never_two_bos() {
    let t = byte_level();
    let a = u32::from(b'a');
    assert!(t.leading_ids().is_empty());
    assert_eq!(t.encode("a").unwrap(), [a]);
    assert_eq!(t.encode_with_bos("a", None).unwrap(), [a]);
    assert_eq!(t.encode_with_bos("a", Some(257)).unwrap(), [257, a]);
    assert_eq!(t.encode_with_bos("<bos>a", Some(257)).unwrap(), [257, a]);
    assert_eq!(t.encode_with_bos("", Some(257)).unwrap(), [257]);
    assert_eq!(t.decode(&[257, a]), "a");
}

#[test]
fn truncation_and_padding_of_the_file_are_off() {
    let mut json = TinyModel::t0(TinyFamily::Llama, 1).tokenizer();
    json["truncation"] = json!({ "direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0 });
    json["padding"] = json!({ "strategy": { "Fixed": 8 }, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 256,
                              "pad_type_id": 0, "pad_token": "<pad>" });
    let t = Tokenizer::from_bytes(json.to_string().as_bytes()).unwrap();
    assert_eq!(t.encode("hello").unwrap().len(), 5);
}

#[test]
fn bad_tokenizer_files_are_errors() {
    for bytes in [&b""[..], b"{}", b"[]", b"\xff\xff", br#"{"version":"1.0","model":{"type":"Future"}}"#] {
        assert!(Tokenizer::from_bytes(bytes).unwrap_err().to_string().contains("tokenizer.json"));
    }
}

/// Files on which the library panics are errors, of this crate's own words where the contradiction is known.
#[test]
fn contradictory_tokenizer_files_are_errors() {
    let with = |part: &str, value: serde_json::Value| {
        let mut json = TinyModel::t0(TinyFamily::Llama, 1).tokenizer();
        json[part] = value;
        Tokenizer::from_bytes(json.to_string().as_bytes())
    };
    let replace = |pattern: serde_json::Value| json!({ "type": "Replace", "pattern": pattern, "content": "x" });
    let sequence = json!({ "type": "Sequence", "normalizers": [{ "type": "NFC" }, replace(json!({ "String": "" }))] });
    for normalizer in [replace(json!({ "String": "" })), sequence] {
        let message = with("normalizer", normalizer).unwrap_err().to_string();
        assert!(message.contains("tokenizer.json: normalizer: Replace has an empty pattern"), "{message}");
    }
    // Not known beforehand: whatever the library does with a pattern that matches nothing, it does not unwind through here.
    if let Ok(t) = with("normalizer", replace(json!({ "Regex": "" }))) {
        let _ = t.encode("hello");
    }
    let template = |id: &str, known: &str| {
        json!({
            "type": "TemplateProcessing", "pair": [],
            "single": [{ "SpecialToken": { "id": id, "type_id": 0 } }, { "Sequence": { "id": "A", "type_id": 0 } }],
            "special_tokens": { known: { "id": known, "ids": [257], "tokens": [known] } },
        })
    };
    let message = with("post_processor", template("<gone>", "<bos>")).unwrap_err().to_string();
    assert!(message.contains("<gone>") && message.contains("special_tokens"), "{message}");
    let t = with("post_processor", template("<bos>", "<bos>")).unwrap();
    assert_eq!((t.leading_ids(), t.encode("a").unwrap()), (&[257][..], vec![97]));
}

fn template(source: &str) -> ChatTemplate {
    ChatTemplate::new(source.into(), Some("<bos>".into()), Some("<eos>".into())).unwrap()
}

fn hello() -> Vec<Message> {
    vec![Message::new("system", "be brief"), Message::new("user", "hi")]
}

/// Case J02: a template that prints BOS and a tokenizer that adds it make one BOS.
#[test]
fn j02_template_and_tokenizer_make_one_bos() {
    let t = byte_level();
    for source in ["{{ bos_token }}{{ messages[1].content }}", "{{ messages[1]['content'] }}"] {
        let text = template(source).render(&hello(), true).unwrap();
        let ids = t.encode_with_bos(&text, Some(257)).unwrap();
        assert_eq!(ids, [257, u32::from(b'h'), u32::from(b'i')]);
    }
}

/// Case J02: what templates in the wild use works: Python methods, whitespace control, namespaces, JSON, marks for training.
#[test]
fn j02_common_constructs_render() {
    let source = "{%- set ns = namespace(n=0) %}\n{% for m in messages %}\n    {%- set ns.n = ns.n + 1 %}\n[{{ m.role.upper() }}]\
                  {{ m['content'].strip() | trim }}{% if not loop.last %};{% endif %}\n{% endfor %}\
                  {% generation %}{{ ns.n }}{%- endgeneration -%}\n\
                  {% if strftime_now is defined %}clock{% endif %}{% if tools is defined and tools %}tools{% endif %}\
                  {% if add_generation_prompt %}[ASSISTANT]{% endif %}{{ messages[0] | tojson }}{{ eos_token }}";
    let text = template(source).render(&hello(), true).unwrap();
    assert_eq!(text, "[SYSTEM]be brief;[USER]hi2[ASSISTANT]{\"role\": \"system\", \"content\": \"be brief\"}<eos>");
    assert_eq!(
        template("{{ {'a': [1, 'é<'], 'b': {}} | tojson(indent=2) }}").render(&[], false).unwrap(),
        "{\n  \"a\": [\n    1,\n    \"é<\"\n  ],\n  \"b\": {}\n}"
    );
}

/// Case J02: errors name the line and the construct, at compile time and when rendering.
#[test]
fn j02_bad_templates_name_line_and_construct() {
    let compile = ChatTemplate::new("one\n{% frobnicate %}\n".into(), None, None).unwrap_err().to_string();
    assert!(compile.contains("line 2") && compile.contains("frobnicate"), "{compile}");
    for (source, part) in [
        ("a\nb\n{{ messages[0].content.frobnicate() }}", "frobnicate"),
        ("a\nb\n{{ messages | nofilter }}", "nofilter"),
        ("a\nb\n{{ raise_exception('no system role') }}", "no system role"),
        ("a\nb\n{{ nofunction() }}", "nofunction"),
    ] {
        let message = match ChatTemplate::new(source.into(), None, None) {
            Ok(t) => t.render(&hello(), true).unwrap_err().to_string(),
            Err(e) => e.to_string(),
        };
        assert!(message.contains("line 3") && message.contains(part) && !message.contains('\n'), "{message}");
    }
}

/// Case J02: a file of its own wins over the entry in the tokenizer's settings; neither is no template.
#[test]
fn j02_templates_are_found_where_models_keep_them() {
    let render = |file: Option<&str>, config: Option<serde_json::Value>| {
        let config = config.map(|c| c.to_string());
        ChatTemplate::from_blobs(file.map(str::as_bytes), config.as_deref().map(str::as_bytes))
            .unwrap()
            .map(|t| t.render(&[], false).unwrap())
    };
    let config = |template: serde_json::Value| {
        Some(
            json!({ "bos_token": "<s>", "eos_token": { "content": "</s>", "lstrip": false }, "chat_template": template }),
        )
    };
    assert_eq!(render(None, None), None);
    assert_eq!(render(None, Some(json!({}))), None);
    assert_eq!(render(None, config(json!("{{ bos_token }}x{{ eos_token }}"))).as_deref(), Some("<s>x</s>"));
    assert_eq!(render(Some("{{ bos_token }}"), config(json!("y"))).as_deref(), Some("<s>"));
    let named = json!([{ "name": "tool_use", "template": "t" }, { "name": "default", "template": "d" }]);
    assert_eq!(render(None, config(named)).as_deref(), Some("d"));
    assert!(ChatTemplate::from_blobs(None, Some(b"{")).is_err());
    assert!(ChatTemplate::from_blobs(Some(b"\xff"), None).is_err());
}

/// A template that nests as deep as its size allows compiles or is refused; the stack holds either way.
#[test]
fn deep_templates_do_not_exhaust_the_stack() {
    const ROOM: usize = 63 << 10;
    let fill = |start: &str, part: &str, end: &str| format!("{start}{}{end}", part.repeat(ROOM / part.len()));
    for source in [fill("{{ ", "-", "1 }}"), fill("{{ ", "not ", "1 }}"), fill("{{ ", "- not\n", "1 }}")] {
        let message = ChatTemplate::new(source, None, None).unwrap_err().to_string();
        assert!(message.contains("256 prefix operators in a row"), "{message}");
    }
    for source in [
        fill("{{ x", ".a", " }}"),
        fill("{{ x", "|e", " }}"),
        fill("{{ x", "()", " }}"),
        // Folding constants takes quadratic time here.
        format!("{{{{ x{} }}}}", "+x".repeat(4 << 10)),
        fill("{{ ", "(", "1 }}"),
        fill("{{ [", "[", "1 }}"),
        fill("{% if x %}", "{%elif x%}", "{% endif %}"),
        fill("", "{%if x%}", ""),
        fill("{{ ", &format!("({}", "-".repeat(255)), "x }}"),
    ] {
        let _ = ChatTemplate::new(source, None, None).map(|t| t.render(&hello(), true));
    }
    assert!(ChatTemplate::new(" ".repeat(65 << 10), None, None).unwrap_err().to_string().contains("65536 bytes"));
    let rule = format!("{{# {} #}}x", "-".repeat(120));
    assert_eq!(template(&rule).render(&hello(), true).unwrap(), "x");
}

/// Endless, deep and large renderings end with an error that says which limit they met.
#[test]
fn renderings_are_limited() {
    let endless = "{% for a in range(9999) %}{% for b in range(9999) %}{% set c = 1 %}{% endfor %}{% endfor %}";
    let message = template(endless).render(&hello(), true).unwrap_err().to_string();
    assert!(message.contains("runs too long"), "{message}");
    let large = "{% set s = 'x' * 1000000 %}{% for a in range(9999) %}{{ s }}{% endfor %}";
    let message = template(large).render(&hello(), true).unwrap_err().to_string();
    assert!(message.contains("at most 16777216 bytes"), "{message}");
    for shown in ["{{ ns.x }}", "{{ ns.x | tojson }}", "{{ ns.x == ns.x }}"] {
        let (open, close) = ("[".repeat(60), "]".repeat(60));
        let nest = format!("{{% for a in range(2800) %}}{{% set ns.x = {open}ns.x{close} %}}{{% endfor %}}");
        let nested = format!("{{% set ns = namespace(x=1) %}}{nest}{shown}");
        let _ = template(&nested).render(&hello(), true);
    }
    let chat = vec![Message::new("user", "hi"); 3000];
    let long = "{% for m in messages %}{% for i in range(100) %}{% set x = i %}{% endfor %}{{ m.content }}{% endfor %}";
    assert_eq!(template(long).render(&chat, true).unwrap().len(), 6000);
}
