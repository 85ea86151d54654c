//! The cache folder and the models known by name.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::Result;

use crate::exit::{Exit, error};

/// A model with a short name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KnownModel {
    /// Short name; its folder in the cache.
    pub(crate) name: &'static str,
    /// What it is.
    pub(crate) title: &'static str,
    /// The file in its folder.
    pub(crate) file: &'static str,
    /// Size of that file.
    pub(crate) bytes: u64,
    /// Its licence.
    pub(crate) licence: &'static str,
    /// Where the original lives on the Hugging Face hub.
    pub(crate) hub: &'static str,
}

/// The models that `cargo xtask fetch` puts into the cache.
pub(crate) const KNOWN: &[KnownModel] = &[
    KnownModel {
        name: "smollm2",
        title: "SmolLM2-135M-Instruct, Q4_1",
        file: "SmolLM2-135M-Instruct.Q4_1.gguf",
        bytes: 98_362_432,
        licence: "Apache-2.0",
        hub: "HuggingFaceTB/SmolLM2-135M-Instruct",
    },
    KnownModel {
        name: "qwen2.5-coder-0.5b",
        title: "Qwen2.5-Coder-0.5B-Instruct, Q4_K_M",
        file: "qwen2.5-coder-0.5b.gguf",
        bytes: 491_400_064,
        licence: "Apache-2.0 (original); not stated by the packages",
        hub: "Qwen/Qwen2.5-Coder-0.5B-Instruct",
    },
];

impl KnownModel {
    /// Looks a name up.
    pub(crate) fn find(name: &str) -> Option<&'static KnownModel> {
        KNOWN.iter().find(|model| model.name == name)
    }

    /// Where the cache keeps the file.
    pub(crate) fn path(&self, cache: &std::path::Path) -> PathBuf {
        cache.join("models").join(self.name).join(self.file)
    }
}

/// `$GOSSET_CACHE`, else `$XDG_CACHE_HOME/gosset`, else `~/.cache/gosset`.
pub(crate) fn folder() -> Result<PathBuf> {
    folder_from(|name| env::var_os(name))
        .ok_or_else(|| error(Exit::Usage, "no cache folder: set GOSSET_CACHE, XDG_CACHE_HOME or HOME"))
}

fn folder_from(var: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let set = |name: &str| var(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("GOSSET_CACHE")
        .or_else(|| Some(set("XDG_CACHE_HOME")?.join("gosset")))
        .or_else(|| Some(set("HOME").or_else(|| set("USERPROFILE"))?.join(".cache").join("gosset")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_folder_follows_the_documented_order() {
        let lookup = |vars: &'static [(&'static str, &'static str)]| {
            folder_from(move |name| vars.iter().find(|(n, _)| *n == name).map(|(_, v)| OsString::from(v)))
        };
        assert_eq!(lookup(&[("GOSSET_CACHE", "/c"), ("XDG_CACHE_HOME", "/x")]), Some(PathBuf::from("/c")));
        assert_eq!(lookup(&[("GOSSET_CACHE", ""), ("XDG_CACHE_HOME", "/x")]), Some(PathBuf::from("/x/gosset")));
        assert_eq!(lookup(&[("HOME", "/h")]), Some(PathBuf::from("/h/.cache/gosset")));
        assert_eq!(lookup(&[]), None);
    }

    #[test]
    fn known_models_are_those_that_can_be_fetched() {
        let Ok(fetched) = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../xtask/models.toml"))
        else {
            eprintln!("SKIPPED: not inside the repository");
            return;
        };
        let fetched = fetched.replace('_', "");
        for model in KNOWN {
            for line in [
                format!("name = {:?}", model.name),
                format!("title = {:?}", model.title.replace('_', "")),
                format!("file = {:?}", model.file.replace('_', "")),
                format!("bytes = {}", model.bytes),
            ] {
                assert!(fetched.contains(&line), "{line}");
            }
        }
        assert_eq!(fetched.matches("[[model]]").count(), KNOWN.len());
    }

    #[test]
    fn known_names_are_unique() {
        for (i, model) in KNOWN.iter().enumerate() {
            assert_eq!(KnownModel::find(model.name), Some(&KNOWN[i]));
        }
    }
}
