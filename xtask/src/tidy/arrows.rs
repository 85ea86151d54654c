//! Arrows between the packages of the workspace: which crate may depend on which.

use std::collections::{HashMap, HashSet};

use cargo_metadata::{DependencyKind, Metadata, PackageId, TargetKind};

use super::Finding;

/// One crate: the layer it lives on and the crates of ours that it may depend on.
struct Rule {
    name: &'static str,
    layer: u8,
    may: &'static [&'static str],
}

const fn rule(layer: u8, name: &'static str, may: &'static [&'static str]) -> Rule {
    Rule { name, layer, may }
}

/// The layer table of `docs/ARCHITECTURE.md`; arrows point down only.
const RULES: &[Rule] = &[
    rule(0, "gosset-lattice", &[]),
    rule(0, "gosset-trellis", &[]),
    rule(0, "gosset-entropy", &[]),
    rule(1, "gosset-transform", &[]),
    rule(2, "gosset-codec", &["gosset-lattice", "gosset-trellis", "gosset-entropy", "gosset-transform"]),
    rule(2, "gosset-unisvq", &["gosset-transform"]),
    rule(3, "gosset-kv", &["gosset-codec", "gosset-transform", "gosset-lattice", "gosset-entropy"]),
    rule(3, "gosset-container", &["gosset-codec", "gosset-unisvq", "gosset-entropy"]),
    rule(
        4,
        "gosset-quantize",
        &["gosset-container", "gosset-codec", "gosset-unisvq", "gosset-transform", "gosset-lattice", "gosset-entropy"],
    ),
    rule(
        4,
        "gosset-cuda",
        &[
            "gosset-codec",
            "gosset-unisvq",
            "gosset-kv",
            "gosset-lattice",
            "gosset-trellis",
            "gosset-entropy",
            "gosset-transform",
        ],
    ),
    rule(
        5,
        "gosset-runtime",
        &[
            "gosset-quantize",
            "gosset-container",
            "gosset-codec",
            "gosset-unisvq",
            "gosset-kv",
            "gosset-cuda",
            "gosset-transform",
        ],
    ),
    rule(6, "gosset", PRODUCT),
    rule(6, "gosset-cli", PRODUCT),
    rule(6, "gosset-eval", &["gosset-entropy"]),
    rule(
        7,
        "gosset-baselines",
        &["gosset-eval", "gosset-transform", "gosset-lattice", "gosset-entropy", "gosset-unisvq", "gosset-kv"],
    ),
    rule(8, "gosset-benches", EVERYTHING),
    rule(8, "gosset-tests", EVERYTHING),
    rule(9, "xtask", &["gosset-cuda", "gosset-tests"]),
];

/// What a user may pull: no evaluation, no baselines.
const PRODUCT: &[&str] = &[
    "gosset-lattice",
    "gosset-trellis",
    "gosset-entropy",
    "gosset-transform",
    "gosset-codec",
    "gosset-unisvq",
    "gosset-kv",
    "gosset-container",
    "gosset-quantize",
    "gosset-cuda",
    "gosset-runtime",
];

const EVERYTHING: &[&str] = &[
    "gosset-lattice",
    "gosset-trellis",
    "gosset-entropy",
    "gosset-transform",
    "gosset-codec",
    "gosset-unisvq",
    "gosset-kv",
    "gosset-container",
    "gosset-quantize",
    "gosset-cuda",
    "gosset-runtime",
    "gosset",
    "gosset-cli",
    "gosset-eval",
    "gosset-baselines",
];

/// External crates that only some of ours may name.
const GUESTS: &[(&str, &[&str])] = &[
    ("candle-core", &["gosset-runtime", "gosset-tests", "gosset-benches"]),
    ("candle-nn", &["gosset-runtime", "gosset-tests", "gosset-benches"]),
    ("candle-transformers", &["gosset-tests", "gosset-benches"]),
    ("tokenizers", &["gosset-runtime", "gosset-tests", "gosset-benches"]),
    ("hf-hub", &["gosset-runtime"]),
    ("cudarc", &["gosset-cuda", "xtask"]),
];

/// The package whose library holds generated checkpoints for everybody's tests.
const FIXTURES: &str = "gosset-tests";

/// Crates that must not reach candle by any path.
const NO_CANDLE: &[&str] = &["xtask", "gosset-eval", "gosset-quantize", "gosset-cuda", "gosset-kv", "gosset-container"];

pub(super) fn check(metadata: &Metadata) -> Vec<Finding> {
    let mut findings = Vec::new();
    let packages = metadata.workspace_packages();
    let ours: HashSet<&str> = packages.iter().map(|p| p.name.as_str()).collect();
    for package in &packages {
        for dependency in &package.dependencies {
            let dev = dependency.kind == DependencyKind::Development;
            let fault = if ours.contains(dependency.name.as_str()) {
                arrow_fault(&package.name, &dependency.name, dev)
            } else {
                guest_fault(&package.name, &dependency.name)
            };
            findings.extend(fault.map(|what| Finding::new(&package.name, what)));
        }
        if package.targets.iter().any(|t| t.kind.contains(&TargetKind::CustomBuild)) {
            findings.push(Finding::new(&package.name, "has a build script, and none is allowed"));
        }
    }
    let edges = edges(metadata);
    for package in &packages {
        if NO_CANDLE.contains(&package.name.as_str()) {
            let reached = reach(&edges, &package.id);
            let candle = metadata.packages.iter().find(|p| p.name.starts_with("candle") && reached.contains(&p.id));
            findings.extend(candle.map(|p| Finding::new(&package.name, format!("reaches {}", p.name))));
        }
    }
    findings
}

/// What is wrong with the arrow `from -> to` between two crates of ours, if anything.
fn arrow_fault(from: &str, to: &str, dev: bool) -> Option<String> {
    let find = |name: &str| RULES.iter().find(|rule| rule.name == name);
    let Some(source) = find(from) else {
        return Some("is not in tidy's table of layers".to_owned());
    };
    let target = find(to)?;
    // Tests may look further than the product does, but never upwards; the fixtures of gosset-tests depend on nothing.
    let allowed = source.may.contains(&to) || (dev && (target.layer < source.layer || to == FIXTURES));
    (!allowed).then(|| {
        let kind = if dev { "a development dependency" } else { "a dependency" };
        format!(
            "has {kind} on {to}; allowed are {}",
            if source.may.is_empty() { "none".into() } else { source.may.join(", ") }
        )
    })
}

/// What is wrong with `from` naming the external crate `guest`, if anything.
fn guest_fault(from: &str, guest: &str) -> Option<String> {
    let (_, hosts) = GUESTS.iter().find(|(name, _)| *name == guest)?;
    (!hosts.contains(&from)).then(|| format!("names {guest}; only {} may", hosts.join(", ")))
}

/// Resolved dependencies without development ones.
pub(super) fn edges(metadata: &Metadata) -> HashMap<&PackageId, Vec<&PackageId>> {
    let nodes = metadata.resolve.iter().flat_map(|resolve| &resolve.nodes);
    nodes
        .map(|node| {
            let normal = node
                .deps
                .iter()
                .filter(|dep| dep.dep_kinds.iter().any(|kind| kind.kind != DependencyKind::Development))
                .map(|dep| &dep.pkg);
            (&node.id, normal.collect())
        })
        .collect()
}

pub(super) fn reach<'a>(
    edges: &HashMap<&'a PackageId, Vec<&'a PackageId>>,
    from: &'a PackageId,
) -> HashSet<&'a PackageId> {
    let mut reached = HashSet::new();
    let mut open = vec![from];
    while let Some(id) = open.pop() {
        if reached.insert(id) {
            open.extend(edges.get(id).into_iter().flatten());
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_itself_points_down() {
        for rule in RULES {
            for name in rule.may {
                let target = RULES.iter().find(|r| r.name == *name).unwrap();
                assert!(target.layer < rule.layer || (rule.layer, target.layer) == (2, 2), "{} -> {name}", rule.name);
            }
        }
    }

    #[test]
    fn arrows_outside_the_table_are_faults() {
        assert_eq!(arrow_fault("gosset-codec", "gosset-lattice", false), None);
        for (from, to) in [
            ("gosset-lattice", "gosset-codec"),
            ("gosset-lattice", "gosset-entropy"),
            ("gosset-entropy", "gosset-lattice"),
            ("gosset-runtime", "gosset-eval"),
            ("gosset-cli", "gosset-baselines"),
            ("xtask", "gosset-runtime"),
        ] {
            assert!(arrow_fault(from, to, false).is_some(), "{from} -> {to}");
        }
        assert!(arrow_fault("gosset-new", "gosset-codec", false).unwrap().contains("table"));
    }

    #[test]
    fn tests_look_down_only() {
        assert_eq!(arrow_fault("gosset-container", "gosset-lattice", true), None);
        assert!(arrow_fault("gosset-codec", "gosset-container", true).is_some());
        assert!(arrow_fault("gosset-lattice", "gosset-entropy", true).is_some());
    }

    #[test]
    fn candle_is_a_guest_of_the_runtime() {
        assert_eq!(guest_fault("gosset-runtime", "candle-core"), None);
        assert_eq!(guest_fault("gosset-quantize", "serde"), None);
        assert!(guest_fault("gosset-quantize", "candle-core").unwrap().contains("only gosset-runtime"));
        assert!(guest_fault("gosset-runtime", "cudarc").is_some());
    }
}
