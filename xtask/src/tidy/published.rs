//! What a package needs before strangers can use it, and what its tree must not hold.

use std::collections::{HashMap, HashSet};

use cargo_metadata::{DependencyKind, Metadata, Package, PackageId};

use super::{Finding, RepoFile, arrows};

/// Published crates that hold formats and codecs: nothing below them may be C.
const CORE: &[&str] = &[
    "gosset-lattice",
    "gosset-trellis",
    "gosset-entropy",
    "gosset-transform",
    "gosset-codec",
    "gosset-unisvq",
    "gosset-container",
    "gosset-kv",
    "gosset-quantize",
    "gosset-eval",
];

/// Crates that build or link C, beside those whose name ends in `-sys`.
const C_BUILDERS: &[&str] = &["cc", "cmake", "pkg-config", "bindgen", "vcpkg", "nasm-rs", "esaxx-rs", "onig", "ring"];

/// Bindings that are Rust alone.
const RUST_SYS: &[&str] = &["linux-raw-sys", "windows-sys", "js-sys", "web-sys"];

pub(super) fn check(metadata: &Metadata, files: &[RepoFile]) -> Vec<Finding> {
    let texts: HashMap<&str, &str> = files.iter().map(|file| (file.path.as_str(), file.text.as_str())).collect();
    let packages = metadata.workspace_packages();
    let mut findings = Vec::new();
    for package in packages.iter().filter(|package| package.publish.is_none()) {
        let faults = faults(package, &texts, minor_version(metadata, "candle-core"));
        findings.extend(faults.into_iter().map(|what| Finding::new(&package.name, what)));
    }
    let readme = texts.get("README.md").copied().unwrap_or_default();
    for name in ["candle-core", "cudarc"] {
        let row = format!("| {name} | {}, from ", minor_version(metadata, name));
        if !readme.contains(&row) {
            findings.push(Finding::new("README.md", format!("supported versions: expected {row:?}")));
        }
    }
    let edges = arrows::edges(metadata);
    for package in packages.iter().filter(|package| CORE.contains(&package.name.as_str())) {
        let reached = arrows::reach(&edges, &package.id);
        findings.extend(
            c_parts(metadata, &reached).map(|name| Finding::new(&package.name, format!("reaches {name}, which is C"))),
        );
    }
    findings
}

/// Major and minor version of a package of the tree.
fn minor_version(metadata: &Metadata, name: &str) -> String {
    let found = metadata.packages.iter().find(|package| package.name.as_str() == name);
    found.map(|package| format!("{}.{}", package.version.major, package.version.minor)).unwrap_or_default()
}

/// What is missing before `package` can be published.
fn faults(package: &Package, texts: &HashMap<&str, &str>, candle: String) -> Vec<String> {
    let mut faults = Vec::new();
    let mut expect = |good: bool, what: String| faults.extend((!good).then_some(what));
    let file = |name: &str| texts.get(format!("crates/{}/{name}", package.name).as_str()).copied();
    expect(package.description.is_some(), "has no description".into());
    expect(package.license.is_some(), "has no licence".into());
    expect(package.documentation.is_some(), "has no documentation link".into());
    expect((1..=5).contains(&package.categories.len()), "expected one to five categories".into());
    expect((1..=5).contains(&package.keywords.len()), "expected one to five keywords".into());
    for word in package.keywords.iter().filter(|word| word.len() > 20) {
        expect(false, format!("keyword {word}: expected at most 20 letters"));
    }
    for licence in ["LICENSE-MIT", "LICENSE-APACHE"] {
        expect(file(licence).is_some(), format!("has no {licence}"));
    }
    let readme = file("README.md").unwrap_or_default();
    let rust = package.rust_version.as_ref().map(|v| format!("Rust {}.{}", v.major, v.minor)).unwrap_or_default();
    for part in ["\n## Features\n", "\n## Versions\n", "\n## Licence\n", rust.as_str()] {
        expect(readme.contains(part), format!("README.md: expected {:?}", part.trim()));
    }
    for feature in package.features.keys().filter(|feature| *feature != "default") {
        expect(
            readme.contains(&format!("| `{feature}` |")),
            format!("README.md: feature {feature} is not in the table"),
        );
    }
    let names_candle = package.dependencies.iter().any(|d| d.name == "candle-core" && d.kind == DependencyKind::Normal);
    expect(
        !names_candle || readme.contains(&format!("candle-core {candle}")),
        format!("README.md: expected candle-core {candle}"),
    );
    if let Some(code) = file("src/lib.rs") {
        expect(
            readme.contains("\n```rust\n") && readme.contains("assert"),
            "README.md: expected an example that asserts".into(),
        );
        expect(
            code.contains("include_str!(\"../README.md\")"),
            "src/lib.rs: the README's example is not tested".into(),
        );
        expect(package.metadata.pointer("/docs/rs").is_some(), "has no package.metadata.docs.rs".into());
    }
    // Development dependencies by path alone are left out of a package; others are not.
    for dependency in package.dependencies.iter().filter(|d| d.path.is_some() && d.kind != DependencyKind::Development)
    {
        expect(dependency.req.to_string() != "*", format!("{} has no version", dependency.name));
    }
    faults
}

/// Names of C parts among `reached`.
fn c_parts<'a>(metadata: &'a Metadata, reached: &HashSet<&'a PackageId>) -> impl Iterator<Item = &'a str> {
    metadata
        .packages
        .iter()
        .filter(|package| reached.contains(&package.id))
        .map(|p| p.name.as_str())
        .filter(|name| is_c(name))
}

fn is_c(name: &str) -> bool {
    C_BUILDERS.contains(&name) || (name.ends_with("-sys") && !RUST_SYS.contains(&name))
}

#[cfg(test)]
mod tests {
    use cargo_metadata::MetadataCommand;

    use super::*;
    use crate::workspace::Workspace;

    #[test]
    fn what_builds_c_is_told_from_bindings_in_rust() {
        assert!(is_c("cc") && is_c("openssl-sys") && !is_c("linux-raw-sys") && !is_c("serde"));
    }

    #[test]
    fn a_package_without_readme_is_told_what_it_lacks() {
        let workspace = Workspace::find().unwrap();
        let metadata = MetadataCommand::new().current_dir(workspace.root()).no_deps().exec().unwrap();
        let codec = metadata.packages.iter().find(|p| p.name.as_str() == "gosset-codec").unwrap();
        let found = faults(codec, &HashMap::new(), String::new());
        for part in ["LICENSE-MIT", "## Features", "Rust 1.", "feature rayon"] {
            assert!(found.iter().any(|fault| fault.contains(part)), "{part} in {found:?}");
        }
        let text = ["\n## Features\n| `rayon` | yes |\n\n## Versions\n", "Rust 1.95\n\n## Licence\n"].concat();
        let files = HashMap::from([
            ("crates/gosset-codec/README.md", text.as_str()),
            ("crates/gosset-codec/LICENSE-MIT", ""),
            ("crates/gosset-codec/LICENSE-APACHE", ""),
        ]);
        assert_eq!(faults(codec, &files, String::new()), Vec::<String>::new());
    }
}
