//! Download of a model from the Hugging Face hub.

use std::path::{Path, PathBuf};

use hf_hub::Cache;
use hf_hub::api::sync::{ApiBuilder, ApiRepo};

/// Side files that are fetched where they exist.
const SIDE_FILES: [&str; 6] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "model.safetensors.index.json",
];

/// Fetches `repository` into `cache/hub` and returns its folder, or the path of its GGUF model.
///
/// Safetensors are preferred; a repository with GGUF files only must have one model, or `file` names it. Files that are in the
/// cache already are not fetched again. The error is a reason for people.
pub(super) fn download(repository: &str, file: Option<&str>, cache: &Path) -> Result<PathBuf, String> {
    let api = ApiBuilder::from_cache(Cache::new(cache.join("hub")))
        .with_progress(false)
        .with_retries(2)
        .build()
        .map_err(|e| e.to_string())?;
    let api = api.model(repository.to_owned());
    let info = api.info().map_err(|e| format!("no answer: {e}"))?;
    let names: Vec<&str> = info.siblings.iter().map(|s| s.rfilename.as_str()).collect();
    let top = |extension: &str| -> Vec<&str> {
        names.iter().copied().filter(|n| !n.contains('/') && n.ends_with(extension)).collect()
    };
    if let Some(file) = file {
        if !names.contains(&file) {
            return Err(format!("it has no file {file}; it has {}", names.join(", ")));
        }
        return gguf_parts(&api, file, &names);
    }
    let safetensors = top(".safetensors");
    if safetensors.is_empty() {
        let ggufs = top(".gguf");
        let firsts: Vec<&str> = ggufs.iter().copied().filter(|n| !is_later_part(n)).collect();
        return match firsts.as_slice() {
            [one] => gguf_parts(&api, one, &names),
            [] => Err("it has no safetensors and no GGUF file".into()),
            several => Err(format!("it has several models, name one as {repository}:FILE: {}", several.join(", "))),
        };
    }
    let mut folder = None;
    let side = SIDE_FILES.into_iter().filter(|n| names.contains(n));
    for name in side.chain(safetensors.iter().copied()) {
        let path = get(&api, name)?;
        folder = path.parent().map(Path::to_owned);
    }
    folder.ok_or_else(|| "it has no files".into())
}

fn get(api: &ApiRepo, name: &str) -> Result<PathBuf, String> {
    api.get(name).map_err(|e| format!("{name}: {e}"))
}

fn is_later_part(name: &str) -> bool {
    name.contains("-of-") && !name.contains("-00001-of-")
}

/// Fetches every part of a GGUF model and returns the path of `first`.
fn gguf_parts(api: &ApiRepo, first: &str, names: &[&str]) -> Result<PathBuf, String> {
    if let Some((stem, rest)) = first.split_once("-00001-of-") {
        for name in names.iter().filter(|n| n.starts_with(stem) && n.ends_with(rest) && **n != first) {
            get(api, name)?;
        }
    }
    get(api, first)
}
