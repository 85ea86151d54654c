//! Golden files of released versions: they never change, and this version reads every one.

#![allow(clippy::unwrap_used, reason = "fixtures of tests")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use gosset_container::{Container, FORMAT_MINOR};
use serde::Deserialize;
use xxhash_rust::xxh3::xxh3_64;

/// What one release left behind.
#[derive(Deserialize)]
struct Release {
    /// The newest minor version of format 1 that it writes.
    minor: u32,
    /// XXH3-64 of its golden files, containers and what must come out of them.
    files: BTreeMap<String, String>,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden")
}

fn releases() -> BTreeMap<String, Release> {
    serde_json::from_slice(&fs::read(folder().join("released.json")).unwrap()).unwrap()
}

#[test]
fn golden_files_of_releases_never_change_and_are_read() {
    let releases = releases();
    assert!(releases.contains_key("0.1.0"), "the first release is not forgotten");
    for (version, release) in releases {
        assert!(release.minor <= FORMAT_MINOR, "{version} wrote 1.{}", release.minor);
        for (name, hash) in &release.files {
            let path = folder().join(name);
            let found = format!("{:016x}", xxh3_64(&fs::read(&path).unwrap()));
            assert_eq!(&found, hash, "{name} of {version}");
            if name.ends_with(".gosset") {
                let container = Container::open(&path).unwrap();
                container.verify().unwrap();
                let expected = format!("{}.json", name.trim_end_matches(".gosset"));
                assert!(release.files.contains_key(&expected), "{version} has {name} without {expected}");
            }
        }
    }
}

#[test]
fn a_release_lists_every_golden_file_that_it_has() {
    let releases = releases();
    let Some(ours) = releases.get(env!("CARGO_PKG_VERSION")) else { return };
    assert_eq!(ours.minor, FORMAT_MINOR);
    for entry in fs::read_dir(folder()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(!name.starts_with("format-") || ours.files.contains_key(&name), "{name} is in no list");
    }
}
