//! Models of the Hugging Face hub, kept in a cache folder.

use std::path::{Path, PathBuf};

use hf_hub::api::sync::{ApiBuilder, ApiRepo};
use hf_hub::{Cache, Repo, RepoType};

use super::gguf_in_folder;

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
/// Safetensors are preferred; a repository with GGUF files only must have one model, or `file` names it. One revision is fetched
/// in full: what is there already is not fetched again. If the hub does not answer, the last complete copy serves. The error is
/// a reason for people.
pub(super) fn download(repository: &str, file: Option<&str>, cache: &Path) -> Result<PathBuf, String> {
    download_from(None, repository, file, cache)
}

fn download_from(
    endpoint: Option<&str>,
    repository: &str,
    file: Option<&str>,
    cache: &Path,
) -> Result<PathBuf, String> {
    let cache = Cache::new(cache.join("hub"));
    let mut api = ApiBuilder::from_cache(cache.clone()).with_progress(false).with_retries(2);
    if let Some(endpoint) = endpoint {
        api = api.with_endpoint(endpoint.to_owned());
    }
    let api = api.build().map_err(|e| e.to_string())?;
    let info = match api.model(repository.to_owned()).info() {
        Ok(info) => info,
        Err(e) => return complete_copy(&cache, repository, file).ok_or_else(|| format!("no answer: {e}")),
    };
    // The revision is pinned, so that a change of the repository meanwhile cannot mix two of them.
    let pinned = api.repo(Repo::with_revision(repository.to_owned(), RepoType::Model, info.sha.clone()));
    let names: Vec<&str> = info.siblings.iter().map(|s| s.rfilename.as_str()).collect();
    let path = fetch(&pinned, repository, file, &names)?;
    // This mark is what a later run without an answer goes by: it is set once everything is there.
    cache.model(repository.to_owned()).create_ref(&info.sha).map_err(|e| e.to_string())?;
    Ok(path)
}

fn fetch(api: &ApiRepo, repository: &str, file: Option<&str>, names: &[&str]) -> Result<PathBuf, String> {
    let top = |extension: &str| -> Vec<&str> {
        names.iter().copied().filter(|n| !n.contains(['/', '\\']) && n.ends_with(extension)).collect()
    };
    if let Some(file) = file {
        if !names.contains(&file) {
            return Err(format!("it has no file {file}; it has {}", names.join(", ")));
        }
        return gguf_parts(api, file, names);
    }
    let safetensors = top(".safetensors");
    if safetensors.is_empty() {
        let ggufs = top(".gguf");
        let models: Vec<&str> = ggufs.iter().copied().filter(|n| !is_later_part(n)).collect();
        return match models.as_slice() {
            [one] => gguf_parts(api, one, names),
            [] => Err("it has no safetensors and no GGUF file".into()),
            several => Err(format!("it has several models, name one as {repository}:FILE: {}", several.join(", "))),
        };
    }
    let mut folder = None;
    let side = SIDE_FILES.into_iter().filter(|n| names.contains(n));
    for name in side.chain(safetensors.iter().copied()) {
        folder = get(api, name)?.parent().map(Path::to_owned);
    }
    folder.ok_or_else(|| "it has no files".into())
}

/// The copy that an earlier download completed.
fn complete_copy(cache: &Cache, repository: &str, file: Option<&str>) -> Option<PathBuf> {
    let model = cache.model(repository.to_owned());
    // The path of any file beside the mark leads to the folder of its revision.
    let mark = cache.path().join(Repo::model(repository.to_owned()).folder_name()).join("refs/main");
    let folder = model.pointer_path(std::fs::read_to_string(mark).ok()?.trim());
    let path = match file {
        Some(file) => folder.join(file),
        None => gguf_in_folder(&folder).ok()?.unwrap_or(folder),
    };
    path.exists().then_some(path)
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

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpListener;

    use super::*;
    use crate::source::fixture::{TinyFamily, TinyModel};
    use crate::source::open_source;

    /// A hub of one repository: answers `requests` connections, then closes.
    fn serve(files: Vec<(String, Vec<u8>)>) -> (String, std::thread::JoinHandle<usize>, std::sync::mpsc::Sender<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            let mut served = 0;
            loop {
                let Ok((mut stream, _)) = listener.accept() else {
                    if stopped.try_recv() != Err(std::sync::mpsc::TryRecvError::Empty) {
                        return served;
                    }
                    std::thread::sleep(std::time::Duration::from_millis(2));
                    continue;
                };
                stream.set_nonblocking(false).unwrap();
                let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map(Result::unwrap);
                let Some(request) = lines.next() else { continue };
                let headers: Vec<String> = lines.take_while(|l| !l.is_empty()).collect();
                let path = request.split(' ').nth(1).unwrap();
                let (status, extra, body) = match path.strip_prefix("/org/tiny/resolve/abc123/") {
                    Some(name) => {
                        let (_, bytes) = files.iter().find(|(n, _)| n == name).unwrap();
                        let range = headers
                            .iter()
                            .find_map(|h| h.to_lowercase().strip_prefix("range: bytes=").map(String::from));
                        let range = range.unwrap();
                        let (from, to) = range.split_once('-').unwrap();
                        let from: usize = from.parse().unwrap();
                        let end = to.parse::<usize>().map_or(bytes.len(), |to| (to + 1).min(bytes.len()));
                        let last = end.saturating_sub(1);
                        let extra = format!(
                            "etag: \"{name}\"\r\nx-repo-commit: abc123\r\ncontent-range: bytes {from}-{last}/{}\r\n",
                            bytes.len()
                        );
                        ("206 Partial Content", extra, bytes[from..end].to_vec())
                    }
                    None => {
                        assert_eq!(path, "/api/models/org/tiny/revision/main");
                        let siblings: Vec<_> =
                            files.iter().map(|(n, _)| serde_json::json!({ "rfilename": n })).collect();
                        let info = serde_json::json!({ "siblings": siblings, "sha": "abc123" });
                        ("200 OK", "content-type: application/json\r\n".into(), info.to_string().into_bytes())
                    }
                };
                let head =
                    format!("HTTP/1.1 {status}\r\n{extra}content-length: {}\r\nconnection: close\r\n\r\n", body.len());
                stream.write_all(head.as_bytes()).unwrap();
                stream.write_all(&body).unwrap();
                served += 1;
            }
        });
        (endpoint, thread, stop)
    }

    fn files_of(folder: &Path) -> Vec<(String, Vec<u8>)> {
        let mut files: Vec<_> = std::fs::read_dir(folder)
            .unwrap()
            .map(|e| e.unwrap())
            .map(|e| (e.file_name().into_string().unwrap(), std::fs::read(e.path()).unwrap()))
            .collect();
        files.sort();
        files
    }

    #[test]
    fn a_repository_is_fetched_once_and_serves_without_an_answer() {
        let (made, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let model = TinyModel::t0(TinyFamily::Llama, 3);
        model.write_hf(made.path(), "BF16").unwrap();
        let mut files = files_of(made.path());
        files.push(("unrelated/notes.txt".into(), b"x".to_vec()));
        let (endpoint, thread, stop) = serve(files);
        let folder = download_from(Some(&endpoint), "org/tiny", None, cache.path()).unwrap();
        assert_eq!(open_source(&folder).unwrap().tensors().len(), model.tensors("BF16").unwrap().len());
        assert_eq!(download_from(Some(&endpoint), "org/tiny", None, cache.path()).unwrap(), folder);
        drop(stop);
        // Two listings, and two requests for each of the three files.
        assert_eq!(thread.join().unwrap(), 2 + 2 * 3);
        assert_eq!(download_from(Some(&endpoint), "org/tiny", None, cache.path()).unwrap(), folder);
        let absent = download_from(Some(&endpoint), "org/other", None, cache.path()).unwrap_err();
        assert!(absent.contains("no answer"), "{absent}");
    }

    #[test]
    fn a_split_gguf_model_comes_whole_and_several_must_be_named() {
        let (made, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let model = TinyModel::t0(TinyFamily::Llama, 3);
        model.write_gguf(&made.path().join("split.gguf"), "F16", 2).unwrap();
        let (endpoint, thread, stop) = serve(files_of(made.path()));
        let path = download_from(Some(&endpoint), "org/tiny", None, cache.path()).unwrap();
        assert_eq!(open_source(&path).unwrap().info().files.len(), 2);
        drop(stop);
        thread.join().unwrap();
        assert_eq!(download_from(Some(&endpoint), "org/tiny", None, cache.path()).unwrap(), path);

        model.write_gguf(&made.path().join("other.gguf"), "F16", 1).unwrap();
        let cache = tempfile::tempdir().unwrap();
        let (endpoint, thread, stop) = serve(files_of(made.path()));
        let several = download_from(Some(&endpoint), "org/tiny", None, cache.path()).unwrap_err();
        assert!(several.contains("org/tiny:FILE") && several.contains("other.gguf"), "{several}");
        let one = download_from(Some(&endpoint), "org/tiny", Some("other.gguf"), cache.path()).unwrap();
        assert!(one.ends_with("other.gguf"));
        assert!(
            download_from(Some(&endpoint), "org/tiny", Some("no.gguf"), cache.path()).unwrap_err().contains("no.gguf")
        );
        drop(stop);
        thread.join().unwrap();
    }
}
