//! `kernels/kernels.toml`: the one source of modules, entries and parameter structs.

use std::{collections::BTreeSet, fs, path::Path};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

/// Targets that a module is built for if it names none.
const DEFAULT_TARGETS: &[&str] = &["sm_80", "sm_90a"];

/// Bytes of parameters that every supported driver passes to a kernel.
const MAX_PARAM_BYTES: usize = 4096;

/// Everything in `kernels.toml`, checked.
#[derive(Debug)]
pub(super) struct Spec {
    pub(super) structs: Vec<Struct>,
    pub(super) modules: Vec<Module>,
}

/// A `#[repr(C)]` struct that is the one parameter of a kernel.
#[derive(Debug)]
pub(super) struct Struct {
    pub(super) name: String,
    pub(super) doc: String,
    pub(super) fields: Vec<Field>,
    pub(super) bytes: usize,
}

#[derive(Debug)]
pub(super) struct Field {
    pub(super) name: String,
    pub(super) doc: String,
    pub(super) kind: Kind,
    /// 0 for a plain field, else the length of the array.
    pub(super) len: usize,
    pub(super) offset: usize,
}

/// Type of a field, or of the elements of an array.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    /// A device pointer to this C++ type; `u64` in Rust.
    Pointer(String),
    U32,
    I32,
    U64,
    F32,
}

impl Kind {
    fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "u32" => Kind::U32,
            "i32" => Kind::I32,
            "u64" => Kind::U64,
            "f32" => Kind::F32,
            "ptr" => Kind::Pointer("void".into()),
            _ => Kind::Pointer(text.strip_prefix("ptr ")?.trim().into()),
        })
    }

    /// Size and alignment.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Kind::U32 | Kind::I32 | Kind::F32 => 4,
            Kind::U64 | Kind::Pointer(_) => 8,
        }
    }
}

/// One translation unit: a source with its defines.
#[derive(Debug)]
pub(super) struct Module {
    pub(super) name: String,
    pub(super) source: String,
    pub(super) defines: Vec<String>,
    pub(super) targets: Vec<String>,
    pub(super) entries: Vec<Entry>,
}

/// A kernel and the name of its parameter struct.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) params: String,
}

impl Spec {
    /// Reads and checks a file.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("{}", path.display()))?;
        Self::parse(&text).with_context(|| format!("{}", path.display()))
    }

    pub(super) fn parse(text: &str) -> Result<Self> {
        let raw: RawSpec = toml::from_str(text)?;
        let structs = raw.structs.into_iter().map(check_struct).collect::<Result<Vec<_>>>()?;
        let modules = raw.modules.into_iter().map(check_module).collect::<Result<Vec<_>>>()?;
        let spec = Spec { structs, modules };
        unique("struct", spec.structs.iter().map(|s| s.name.as_str()))?;
        unique("module", spec.modules.iter().map(|m| m.name.as_str()))?;
        unique("variant", spec.modules.iter().map(Module::variant).collect::<Vec<_>>().iter().map(String::as_str))?;
        for module in &spec.modules {
            for entry in &module.entries {
                spec.params(&entry.params).with_context(|| format!("module {}, entry {}", module.name, entry.name))?;
            }
        }
        Ok(spec)
    }

    /// The struct of that name.
    pub(super) fn params(&self, name: &str) -> Result<&Struct> {
        self.structs.iter().find(|s| s.name == name).with_context(|| format!("expected a struct {name}, found none"))
    }
}

impl Module {
    /// The name of the variant in Rust: `shift_gemv_k2` is `ShiftGemvK2`.
    pub(super) fn variant(&self) -> String {
        let mut out = String::new();
        for word in self.name.split('_') {
            let (head, tail) = word.split_at(1.min(word.len()));
            out.push_str(&head.to_ascii_uppercase());
            out.push_str(tail);
        }
        out
    }

    /// File of the PTX for a target, in the folder of all PTX.
    pub(super) fn file(&self, target: &str) -> String {
        format!("{}.{target}.ptx", self.name)
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawSpec {
    #[serde(default, rename = "struct")]
    structs: Vec<RawStruct>,
    #[serde(default, rename = "module")]
    modules: Vec<RawModule>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawStruct {
    name: String,
    #[serde(default)]
    doc: String,
    fields: Vec<Vec<String>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawModule {
    name: String,
    source: String,
    #[serde(default)]
    defines: Vec<String>,
    targets: Option<Vec<String>>,
    entries: Vec<(String, String)>,
}

fn check_struct(raw: RawStruct) -> Result<Struct> {
    let name = raw.name;
    ensure!(is_type_name(&name), "struct {name}: expected a name in CamelCase");
    ensure!(!raw.fields.is_empty(), "struct {name}: expected fields, found none");
    let mut fields = Vec::new();
    let (mut at, mut align) = (0, 1);
    for raw in raw.fields {
        let (field, kind, doc) = match raw.as_slice() {
            [field, kind] => (field, kind, ""),
            [field, kind, doc] => (field, kind, doc.as_str()),
            _ => bail!("struct {name}: expected [name, type] or [name, type, doc], found {raw:?}"),
        };
        ensure!(is_snake(field), "struct {name}, field {field}: expected a name in snake_case");
        let (element, len) = match kind.strip_suffix(']').and_then(|kind| kind.rsplit_once('[')) {
            Some((element, len)) => (element.trim(), len.parse().ok().filter(|&len| (1..=1024).contains(&len))),
            None => (kind.as_str(), Some(0)),
        };
        let (Some(kind), Some(len)) = (Kind::parse(element), len) else {
            bail!("struct {name}, field {field}: expected ptr T, u32, i32, u64, f32 or an array of them, found {kind}");
        };
        let offset = usize::next_multiple_of(at, kind.bytes());
        at = offset + kind.bytes() * len.max(1);
        align = align.max(kind.bytes());
        fields.push(Field { name: field.clone(), doc: doc.to_owned(), kind, len, offset });
    }
    unique(&format!("field of {name}"), fields.iter().map(|field| field.name.as_str()))?;
    let bytes = at.next_multiple_of(align);
    ensure!(bytes <= MAX_PARAM_BYTES, "struct {name}: expected at most {MAX_PARAM_BYTES} bytes, found {bytes}");
    Ok(Struct { name, doc: raw.doc, fields, bytes })
}

fn check_module(raw: RawModule) -> Result<Module> {
    let name = raw.name;
    ensure!(is_snake(&name), "module {name}: expected a name in snake_case");
    let plain = raw.source.ends_with(".cu") && !raw.source.contains(['/', '\\']);
    ensure!(plain, "module {name}: expected a source like x.cu in kernels/, found {}", raw.source);
    let targets = raw.targets.unwrap_or_else(|| DEFAULT_TARGETS.iter().map(|&t| t.to_owned()).collect());
    ensure!(!targets.is_empty(), "module {name}: expected targets, found none");
    for target in &targets {
        let digits = target.strip_prefix("sm_").map(|rest| rest.strip_suffix('a').unwrap_or(rest));
        let valid = digits.is_some_and(|d| !d.is_empty() && d.bytes().all(|b| b.is_ascii_digit()));
        ensure!(valid, "module {name}: expected a target like sm_80, found {target}");
    }
    for define in &raw.defines {
        let valid = define.bytes().all(|b| b.is_ascii_alphanumeric() || b"_=-.".contains(&b));
        ensure!(valid && !define.starts_with('-'), "module {name}: expected NAME or NAME=VALUE, found {define}");
    }
    ensure!(!raw.entries.is_empty(), "module {name}: expected entries, found none");
    let entries: Vec<Entry> = raw.entries.into_iter().map(|(name, params)| Entry { name, params }).collect();
    unique(&format!("entry of {name}"), entries.iter().map(|entry| entry.name.as_str()))?;
    ensure!(entries.iter().all(|entry| is_snake(&entry.name)), "module {name}: expected entries in snake_case");
    Ok(Module { name, source: raw.source, defines: raw.defines, targets, entries })
}

fn unique<'a>(what: &str, names: impl Iterator<Item = &'a str>) -> Result<()> {
    let mut seen = BTreeSet::new();
    for name in names {
        ensure!(seen.insert(name), "expected one {what} {name}, found two");
    }
    Ok(())
}

fn is_snake(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
}

fn is_type_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_uppercase()) && name.bytes().all(|b| b.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
        [[struct]]
        name = "AParams"
        fields = [["n", "u32"], ["x", "ptr const float", "rows"], ["t", "u32[3]"], ["s", "f32"], ["o", "ptr"]]
        [[module]]
        name = "a_k2"
        source = "a.cu"
        defines = ["BITS=2"]
        entries = [["a", "AParams"]]
    "#;

    #[test]
    fn offsets_follow_the_c_rules() {
        let spec = Spec::parse(GOOD).unwrap();
        let fields = &spec.structs[0].fields;
        assert_eq!(fields.iter().map(|f| f.offset).collect::<Vec<_>>(), [0, 8, 16, 28, 32]);
        assert_eq!(spec.structs[0].bytes, 40);
        assert_eq!(fields[1].kind, Kind::Pointer("const float".into()));
        assert_eq!(spec.modules[0].variant(), "AK2");
        assert_eq!(spec.modules[0].targets, DEFAULT_TARGETS);
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (from, to, want) in [
            ("\"u32[3]\"", "\"u32[0]\"", "field t"),
            ("\"f32\"", "\"f64\"", "field s"),
            ("[\"a\", \"AParams\"]", "[\"a\", \"BParams\"]", "struct BParams"),
            ("a.cu", "../a.cu", "source"),
            ("BITS=2", "-lineinfo", "NAME=VALUE"),
            ("[\"s\"", "[\"n\"", "found two"),
            ("u32[3]", "u64[1000]", "4096"),
        ] {
            let error = format!("{:#}", Spec::parse(&GOOD.replace(from, to)).unwrap_err());
            assert!(error.contains(want), "{from} -> {to}: {error}");
        }
    }
}
