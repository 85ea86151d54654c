//! Crates whose types cross our borders, or candle's, exist once in the tree.

use cargo_metadata::Metadata;

use super::Finding;

/// Two versions of one of these would give two types of one name.
pub(crate) const ONCE: &[&str] = &["candle-core", "candle-nn", "cudarc", "half", "safetensors"];

pub(super) fn check(metadata: &Metadata) -> Vec<Finding> {
    let packages: Vec<(&str, String)> =
        metadata.packages.iter().map(|p| (p.name.as_str(), p.version.to_string())).collect();
    let mut findings: Vec<Finding> = ONCE.iter().filter_map(|name| more_than_one(&packages, name)).collect();
    findings.extend(check_rand(metadata));
    findings
}

fn more_than_one(packages: &[(&str, String)], name: &str) -> Option<Finding> {
    let mut versions: Vec<&str> = packages.iter().filter(|(n, _)| *n == name).map(|(_, v)| v.as_str()).collect();
    versions.sort_unstable();
    versions.dedup();
    (versions.len() > 1)
        .then(|| Finding::new("Cargo.lock", format!("{name}: expected one version, found {versions:?}")))
}

/// Our own crates use the `rand` that candle uses; other crates may bring theirs.
fn check_rand(metadata: &Metadata) -> Vec<Finding> {
    let Some(resolve) = &metadata.resolve else { return Vec::new() };
    let rand_of = |node: &cargo_metadata::Node| {
        node.deps.iter().map(|dep| &dep.pkg).find(|id| metadata[*id].name.as_str() == "rand").cloned()
    };
    let candle = resolve.nodes.iter().find(|node| metadata[&node.id].name.as_str() == "candle-core").and_then(rand_of);
    let Some(candle) = candle else { return Vec::new() };
    let ours = resolve.nodes.iter().filter(|node| metadata.workspace_members.contains(&node.id));
    ours.filter_map(|node| {
        let rand = rand_of(node).filter(|id| *id != candle)?;
        let (found, expected) = (&metadata[&rand].version, &metadata[&candle].version);
        Some(Finding::new(
            &metadata[&node.id].name,
            format!("rand: expected candle's version {expected}, found {found}"),
        ))
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_version_is_found() {
        let of = |list: &[(&'static str, &str)]| list.iter().map(|(n, v)| (*n, v.to_string())).collect::<Vec<_>>();
        let found = more_than_one(&of(&[("half", "2.7.1"), ("half", "1.8.3"), ("rand", "0.9.0")]), "half").unwrap();
        assert!(found.what.contains("1.8.3") && found.what.contains("2.7.1"));
        assert_eq!(more_than_one(&of(&[("half", "2.7.1")]), "half"), None);
        assert_eq!(more_than_one(&of(&[]), "half"), None);
    }
}
