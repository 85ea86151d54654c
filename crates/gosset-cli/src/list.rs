//! `gosset list`: known models and what the cache holds.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use gosset_container::{Container, ContainerError};
use serde::Serialize;

use crate::cache::{self, KNOWN, KnownModel};
use crate::exit::printable;
use crate::output::{self, Table};

/// Folders below the cache that are searched for containers.
const MAX_DEPTH: usize = 4;

/// List known models and what the cache holds.
///
/// The cache is $GOSSET_CACHE, else $XDG_CACHE_HOME/gosset, else ~/.cache/gosset; models are in its folder models/NAME/.
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Listing {
    cache: PathBuf,
    models: Vec<ModelLine>,
    containers: Vec<ContainerLine>,
}

#[derive(Debug, Serialize)]
struct ModelLine {
    name: String,
    title: String,
    bytes: Option<u64>,
    licence: Option<&'static str>,
    hub: Option<&'static str>,
    cached: bool,
    path: PathBuf,
}

#[derive(Debug, Serialize)]
struct ContainerLine {
    path: PathBuf,
    bytes: u64,
    n_params: Option<u64>,
    file_bps: Option<f64>,
    problem: Option<String>,
}

/// Runs the command.
pub(crate) fn run(args: &ListArgs) -> Result<()> {
    let cache = cache::folder()?;
    let listing = Listing { models: models(&cache), containers: containers(&cache), cache };
    if args.json {
        return output::json(&listing);
    }
    let mut out = output::stdout();
    let mut table = Table::new(4, &["model", "what", "licence", "cache", "size"]);
    for m in &listing.models {
        let state = if m.cached { "cached" } else { "not fetched" };
        let size = m.bytes.map_or_else(|| "-".to_owned(), output::bytes);
        table.row([&m.name, &m.title, m.licence.unwrap_or("-"), state, &size]);
    }
    table.write(&mut out)?;
    writeln!(out)?;
    for m in listing.models.iter().filter(|m| m.cached) {
        writeln!(out, "{}: {}", printable(&m.name), printable(&m.path.display().to_string()))?;
    }
    for m in listing.models.iter().filter(|m| !m.cached) {
        let hub = m.hub.map(|hub| format!(", or use {hub} from the hub")).unwrap_or_default();
        writeln!(out, "{}: fetch it with `cargo xtask fetch {}`{hub}", m.name, m.name)?;
    }
    writeln!(out)?;
    if listing.containers.is_empty() {
        writeln!(out, "no containers in the cache {}", printable(&listing.cache.display().to_string()))?;
    } else {
        let mut table = Table::new(1, &["container", "size", "weights", "bits/parameter"]);
        for c in &listing.containers {
            let number = |value: Option<String>| value.unwrap_or_else(|| "unreadable".to_owned());
            table.row([
                c.path.display().to_string(),
                output::bytes(c.bytes),
                number(c.n_params.map(output::count)),
                number(c.file_bps.map(|bps| format!("{bps:.4}"))),
            ]);
        }
        table.write(&mut out)?;
    }
    out.flush()?;
    Ok(())
}

/// Known models first, then other folders of the cache.
fn models(cache: &Path) -> Vec<ModelLine> {
    let mut lines: Vec<ModelLine> = KNOWN
        .iter()
        .map(|model| {
            let path = model.path(cache);
            let size = fs::metadata(&path).map(|meta| meta.len()).ok();
            ModelLine {
                name: model.name.to_owned(),
                title: model.title.to_owned(),
                bytes: Some(size.unwrap_or(model.bytes)),
                licence: Some(model.licence),
                hub: Some(model.hub),
                cached: size.is_some(),
                path,
            }
        })
        .collect();
    for path in sorted_entries(&cache.join("models")) {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if !path.is_dir() || name.starts_with('.') || KnownModel::find(&name).is_some() {
            continue;
        }
        let bytes =
            sorted_entries(&path).iter().filter_map(|file| fs::metadata(file).ok()).map(|meta| meta.len()).sum();
        let title = "in the cache, not a known name".to_owned();
        lines.push(ModelLine { name, title, bytes: Some(bytes), licence: None, hub: None, cached: true, path });
    }
    lines
}

fn containers(cache: &Path) -> Vec<ContainerLine> {
    let mut found = Vec::new();
    walk(cache, MAX_DEPTH, &mut found);
    found
        .into_iter()
        .map(|path| {
            let bytes = fs::metadata(&path).map_or(0, |meta| meta.len());
            match Container::open(&path).and_then(|container| container.ledger()) {
                Ok(ledger) => {
                    let (n_params, file_bps) = (Some(ledger.n_params), Some(ledger.file_bps()));
                    ContainerLine { path, bytes, n_params, file_bps, problem: None }
                }
                Err(error) => {
                    let problem = Some(ContainerError::to_string(&error));
                    ContainerLine { path, bytes, n_params: None, file_bps: None, problem }
                }
            }
        })
        .collect()
}

/// Collects `*.gosset` below `folder`; links to folders are not followed, so that a loop cannot trap the search.
fn walk(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) {
    for path in sorted_entries(folder) {
        let is_folder = fs::symlink_metadata(&path).is_ok_and(|meta| meta.is_dir());
        if is_folder && depth > 0 {
            walk(&path, depth - 1, found);
        } else if path.extension().is_some_and(|e| e == "gosset") && path.is_file() {
            found.push(path);
        }
    }
}

/// Paths in `folder` by name; none if it cannot be read.
fn sorted_entries(folder: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> =
        fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok).map(|entry| entry.path()).collect();
    paths.sort();
    paths
}
