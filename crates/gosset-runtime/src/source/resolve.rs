//! From a model's name to a path.

use std::path::{Path, PathBuf};

use super::gguf_in_folder;
use crate::RuntimeError;

/// The path of the model called `name`.
///
/// Tried in this order: an existing file or folder; a folder `models/<name>` in `cache` with a GGUF or safetensors model; with
/// the feature `hub`, a repository `org/name` (or `org/name:FILE.gguf`) of the Hugging Face hub, downloaded into `cache`.
/// Letter case of cached names does not matter.
///
/// # Errors
/// [`RuntimeError::UnknownModel`] lists every place that was tried and what to do next.
pub fn resolve_model(name: &str, cache: &Path) -> Result<PathBuf, RuntimeError> {
    let mut tried = Vec::new();
    let as_path = Path::new(name);
    if !name.is_empty() && as_path.exists() {
        return Ok(as_path.to_owned());
    }
    tried.push(format!("the path {name:?} (no such file or folder)"));

    let looks_like_path =
        as_path.is_absolute() || name.starts_with('.') || name.contains('\\') || name.matches('/').count() > 1;
    let models = cache.join("models");
    if plain(name) {
        match cached(&models, name)? {
            Some(path) => return Ok(path),
            None => tried.push(format!("the cache {}", models.join(name).display())),
        }
    }
    if !looks_like_path && let Some((repository, file)) = hub_name(name) {
        match download(repository, file, cache) {
            Ok(path) => return Ok(path),
            Err(reason) => tried.push(format!("the hub repository {repository} ({reason})")),
        }
    }
    let known = known(&models);
    let next = if known.is_empty() {
        format!("give a path, or put a GGUF file into {}/<name>/", models.display())
    } else {
        format!("give a path or one of the cached models: {}", known.join(", "))
    };
    Err(RuntimeError::UnknownModel { name: name.to_owned(), tried: format!("{}; {next}", tried.join("; ")) })
}

/// Names that may become one folder of the cache: no separators, nothing that leads elsewhere.
fn plain(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\\', ':', '\0'])
}

/// The model in the folder of that name: a Hugging Face folder as it is, else its one GGUF model.
fn cached(models: &Path, name: &str) -> Result<Option<PathBuf>, RuntimeError> {
    let exact = models.join(name);
    let folder = if exact.is_dir() {
        exact
    } else {
        let found = known(models).into_iter().find(|k| k.eq_ignore_ascii_case(name));
        let Some(found) = found else { return Ok(None) };
        models.join(found)
    };
    if let Some(gguf) = gguf_in_folder(&folder)? {
        return Ok(Some(gguf));
    }
    let has_weights = std::fs::read_dir(&folder)
        .map_err(RuntimeError::io(&folder))?
        .filter_map(Result::ok)
        .any(|e| e.path().extension().is_some_and(|x| x == "safetensors"));
    Ok(has_weights.then_some(folder))
}

/// Folders of the cache, in order.
fn known(models: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(models) else { return Vec::new() };
    let mut names: Vec<String> = entries
        .filter_map(Result::ok)
        .filter(|e| e.path().is_dir())
        .filter_map(|e| e.file_name().into_string().ok())
        .collect();
    names.sort();
    names
}

/// `org/name` and the file after a colon, if `name` has that form.
fn hub_name(name: &str) -> Option<(&str, Option<&str>)> {
    let (repository, file) = match name.split_once(':') {
        Some((repository, file)) => (repository, Some(file)),
        None => (name, None),
    };
    let part = |s: &str| {
        !s.is_empty() && !s.starts_with('.') && s.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
    };
    let (org, model) = repository.split_once('/')?;
    (part(org) && part(model) && file.is_none_or(part)).then_some((repository, file))
}

#[cfg(feature = "hub")]
fn download(repository: &str, file: Option<&str>, cache: &Path) -> Result<PathBuf, String> {
    super::hub::download(repository, file, cache)
}

#[cfg(not(feature = "hub"))]
fn download(_: &str, _: Option<&str>, _: &Path) -> Result<PathBuf, String> {
    Err("this build has no access to the hub: enable the feature `hub`".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cached_names_lead_to_their_model() {
        let cache = tempfile::tempdir().unwrap();
        let folder = cache.path().join("models/SmolLM2");
        std::fs::create_dir_all(&folder).unwrap();
        assert!(resolve_model("smollm2", cache.path()).is_err());
        let gguf = folder.join("weights.gguf");
        std::fs::write(&gguf, b"GGUF").unwrap();
        for name in ["SmolLM2", "smollm2"] {
            assert_eq!(resolve_model(name, cache.path()).unwrap(), gguf);
        }
        std::fs::write(folder.join("model.safetensors"), b"").unwrap();
        assert_eq!(resolve_model("smollm2", cache.path()).unwrap(), folder);
        let given = gguf.to_str().unwrap();
        assert_eq!(resolve_model(given, cache.path()).unwrap(), gguf);
    }

    #[test]
    fn failures_say_what_was_tried_and_what_to_do() {
        let cache = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(cache.path().join("models/tiny")).unwrap();
        let message = resolve_model("nothing", cache.path()).unwrap_err().to_string();
        for part in ["nothing", "models", "no such file", "cached models: tiny"] {
            assert!(message.contains(part), "{message}");
        }
        for hostile in ["", "...", "../no-such-tiny", "a/../../b", "models\\x", "a\0b", "/no/such/path"] {
            let message = resolve_model(hostile, cache.path()).unwrap_err().to_string();
            assert!(!message.contains("hub repository"), "{message}");
        }
    }

    #[test]
    fn hub_names_have_two_plain_parts() {
        assert_eq!(hub_name("org/name"), Some(("org/name", None)));
        assert_eq!(hub_name("org/name:model.Q8_0.gguf"), Some(("org/name", Some("model.Q8_0.gguf"))));
        for other in ["name", "a/b/c", "../x", "org/", "/x", "o rg/x", "org/x:", "org/x:../y"] {
            assert_eq!(hub_name(other), None, "{other}");
        }
    }
}
