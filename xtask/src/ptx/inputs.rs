//! What the PTX of a module depends on, as one digest that needs no compiler.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

use super::{
    generate,
    spec::{Module, Spec},
};
use crate::digest;

/// Changes when the flags of the compiler or the treatment of its output change.
const RECIPE: &str = "2";

/// The generated header. Of it, a module's digest holds only the structs that its entries name, so that a new struct
/// does not make every module stale.
const PARAMS_HEADER: &str = "params.cuh";

/// SHA-256 over recipe, compiler version, target, defines, entries with their structs, and every included file.
pub(super) fn digest(spec: &Spec, module: &Module, target: &str, kernels: &Path, compiler: &str) -> Result<String> {
    let mut hasher = Sha256::new();
    let mut part = |text: &str| {
        hasher.update((text.len() as u64).to_le_bytes());
        hasher.update(text.as_bytes());
    };
    [RECIPE, compiler, target, &module.source].into_iter().for_each(&mut part);
    module.defines.iter().for_each(|define| part(define));
    for entry in &module.entries {
        part(&entry.name);
        part(&generate::cuda_struct(spec.params(&entry.params)?, false));
    }
    for (name, text) in closure(kernels, &module.source).with_context(|| format!("module {}", module.name))? {
        part(&name);
        part(&text);
    }
    Ok(digest::hex(hasher))
}

/// The source and every file that it includes with quotes, by name; line ends are made plain.
fn closure(kernels: &Path, source: &str) -> Result<BTreeMap<String, String>> {
    let mut files = BTreeMap::new();
    let mut todo = vec![source.to_owned()];
    while let Some(name) = todo.pop() {
        if name == PARAMS_HEADER || files.contains_key(&name) {
            continue;
        }
        let beside = kernels.join(&name);
        let path = if beside.is_file() { beside } else { kernels.join("include").join(&name) };
        let text = fs::read_to_string(&path).with_context(|| format!("{}", path.display()))?.replace("\r\n", "\n");
        todo.extend(text.lines().filter_map(included));
        files.insert(name, text);
    }
    Ok(files)
}

/// `x.cuh` of a line `#include "x.cuh"`.
fn included(line: &str) -> Option<String> {
    let rest = line.trim_start().strip_prefix('#')?.trim_start().strip_prefix("include")?.trim_start();
    Some(rest.strip_prefix('"')?.split_once('"')?.0.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_includes_are_followed() {
        assert_eq!(included("  # include \"a/b.cuh\" // why").as_deref(), Some("a/b.cuh"));
        assert_eq!(included("#include <cuda_fp16.h>"), None);
        assert_eq!(included("// #include \"a\""), None);
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("include")).unwrap();
        fs::write(dir.path().join("a.cu"), "#include \"b.cuh\"\n#include \"params.cuh\"\n").unwrap();
        fs::write(dir.path().join("include/b.cuh"), "#include \"b.cuh\"\r\nint b;\n").unwrap();
        let files = closure(dir.path(), "a.cu").unwrap();
        assert_eq!(files.keys().collect::<Vec<_>>(), ["a.cu", "b.cuh"]);
        assert_eq!(files["b.cuh"], "#include \"b.cuh\"\nint b;\n");
        assert!(closure(dir.path(), "none.cu").is_err());
    }
}
