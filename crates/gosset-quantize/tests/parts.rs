//! Parts of a run and their merge: the bytes of one run, or a reason why not.

#![allow(clippy::unwrap_used, reason = "fixtures of tests")]

use std::fs;
use std::path::{Path, PathBuf};

use gosset_container::{Container, ContainerKind};
use gosset_quantize::{
    Part, QuantizeError, QuantizeOptions, QuantizeTarget, RunOptions, SafetensorsSource, Silent, merge, plan, run,
};
use gosset_tests::t0::T0;
use tempfile::TempDir;

struct Case {
    dir: TempDir,
    source: SafetensorsSource,
}

impl Case {
    fn of(t0: &T0) -> Self {
        let dir = tempfile::tempdir().unwrap();
        t0.write(&dir.path().join("in")).unwrap();
        let source = SafetensorsSource::open(&dir.path().join("in")).unwrap();
        Case { dir, source }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn whole(&self, options: &QuantizeOptions) -> Vec<u8> {
        let out = self.path("whole.gosset");
        run(&plan(&self.source, options).unwrap(), &self.source, None, &out, &RunOptions::replacing(), &Silent)
            .unwrap();
        fs::read(out).unwrap()
    }

    fn part(&self, options: &QuantizeOptions, i: u32, n: u32, how: &RunOptions) -> PathBuf {
        let out = self.path(&format!("{i}-{n}.gosset"));
        let part = plan(&self.source, options).unwrap().part(Part::new(i, n).unwrap(), &self.source).unwrap();
        run(&part, &self.source, None, &out, how, &Silent).unwrap();
        out
    }

    fn parts(&self, options: &QuantizeOptions, n: u32) -> Vec<PathBuf> {
        (0..n).map(|i| self.part(options, i, n, &RunOptions::replacing())).collect()
    }

    fn merged(&self, parts: &[PathBuf]) -> Result<Vec<u8>, QuantizeError> {
        let out = self.path("merged.gosset");
        merge(parts, &out, true, &Silent)?;
        Ok(fs::read(out).unwrap())
    }
}

fn refusal(result: Result<Vec<u8>, QuantizeError>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn merged_parts_are_the_whole_to_the_last_byte() {
    let case = Case::of(&T0 { layers: 3, ..T0::qwen2() });
    let variants = [
        QuantizeOptions::new("e8", 3.0),
        QuantizeOptions { embeddings: Some(5.0), ..QuantizeOptions::new("trellis-8", 2.5) },
        QuantizeOptions::new("shift-12", 2.0),
    ];
    for options in &variants {
        let whole = case.whole(options);
        // More parts than there are tensors, too.
        for n in [1, 2, 3, 7, 64] {
            let mut parts = case.parts(options, n);
            assert!(case.merged(&parts).unwrap() == whole, "{n} parts by {}", options.codec);
            parts.reverse();
            assert!(case.merged(&parts).unwrap() == whole, "{n} parts by {}, backwards", options.codec);
        }
    }
}

#[test]
fn parts_that_can_be_taken_up_again_merge_to_the_same_bytes() {
    let case = Case::of(&T0::llama());
    let options = QuantizeOptions::new("e8", 3.0);
    let how = RunOptions { resumable: true, ..RunOptions::replacing() };
    let parts: Vec<PathBuf> = (0..3).map(|i| case.part(&options, i, 3, &how)).collect();
    assert!(case.merged(&parts).unwrap() == case.whole(&options));
}

#[test]
fn a_part_is_a_container_of_its_tensors_alone() {
    let case = Case::of(&T0::llama());
    let parts = case.parts(&QuantizeOptions::new("e8", 3.0), 2);
    let mut names = Vec::new();
    for (i, path) in parts.iter().enumerate() {
        let part = Container::open(path).unwrap();
        part.verify().unwrap();
        assert_eq!(part.manifest().kind, ContainerKind::Tensors);
        assert_eq!(part.manifest().blobs.is_empty(), i > 0, "side files are in part 0");
        names.extend(part.entries().iter().map(|e| e.name.clone()));
    }
    let whole = case.merged(&parts).unwrap();
    fs::write(case.path("again.gosset"), whole).unwrap();
    let whole = Container::open(&case.path("again.gosset")).unwrap();
    assert_eq!(whole.manifest().kind, ContainerKind::Model);
    let mut expected: Vec<String> = whole.entries().iter().map(|e| e.name.clone()).collect();
    expected.sort();
    names.sort();
    assert_eq!(names, expected, "every tensor is in one part");
}

#[test]
fn parts_that_make_no_whole_are_refused_by_what_is_wrong() {
    let case = Case::of(&T0::llama());
    let options = QuantizeOptions::new("e8", 3.0);
    let parts = case.parts(&options, 3);
    let error = refusal(case.merged(&parts[..2]));
    assert!(error.contains("missing 2/3"), "{error}");
    let error = refusal(case.merged(&[parts[0].clone(), parts[1].clone(), parts[1].clone(), parts[2].clone()]));
    assert!(error.contains("1/3 is there twice"), "{error}");
    let error = refusal(case.merged(&[]));
    assert!(error.contains("found none"), "{error}");
    let halves = case.parts(&options, 2);
    let error = refusal(case.merged(&[parts[0].clone(), halves[1].clone(), parts[2].clone()]));
    assert!(error.contains("one of 2 parts") && error.contains("one of 3"), "{error}");
    case.whole(&options);
    let error = refusal(case.merged(&[case.path("whole.gosset")]));
    assert!(error.contains("found a whole container"), "{error}");

    // Another rate, and the same layout with other weights.
    let other = Case::of(&T0::llama());
    let other_rate = other.part(&QuantizeOptions::new("e8", 2.5), 1, 3, &RunOptions::replacing());
    let error = refusal(case.merged(&[parts[0].clone(), other_rate, parts[2].clone()]));
    assert!(error.contains("recipe.options.rate: 3.0 in the first, 2.5 in the second"), "{error}");
    let weights = Case::of(&T0 { seed: 1, ..T0::llama() });
    let other_weights = weights.part(&options, 1, 3, &RunOptions::replacing());
    let error = refusal(case.merged(&[parts[0].clone(), other_weights, parts[2].clone()]));
    assert!(error.contains("weights:"), "{error}");
    assert!(!case.path("merged.gosset").exists());

    // What is there stays unless it may be replaced, and a part is never replaced.
    fs::write(case.path("there"), "precious").unwrap();
    assert!(merge(&parts, &case.path("there"), false, &Silent).is_err());
    assert_eq!(fs::read(case.path("there")).unwrap(), b"precious");
    let before = fs::read(&parts[1]).unwrap();
    let error = merge(&parts, &parts[1], true, &Silent).unwrap_err();
    assert!(matches!(error, QuantizeError::OutputIsInput { .. }), "{error}");
    assert!(fs::read(&parts[1]).unwrap() == before);
}

#[test]
fn a_damaged_part_is_noticed_and_nothing_is_written() {
    let case = Case::of(&T0::llama());
    let parts = case.parts(&QuantizeOptions::new("e8", 3.0), 2);
    let mut bytes = fs::read(&parts[1]).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&parts[1], bytes).unwrap();
    let error = refusal(case.merged(&parts));
    assert!(error.contains("1-2.gosset") && error.contains("checksum"), "{error}");
    let left: Vec<_> = names(case.dir.path());
    assert_eq!(left, ["0-2.gosset", "1-2.gosset", "in"]);
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn what_depends_on_other_tensors_has_no_parts() {
    let case = Case::of(&T0::llama());
    let part = Part::new(0, 2).unwrap();
    for target in [QuantizeTarget::AllInBpw(3.5), QuantizeTarget::FileBytes(100_000)] {
        let whole = plan(&case.source, &QuantizeOptions::with_target("e8", target)).unwrap();
        let error = whole.part(part, &case.source).unwrap_err().to_string();
        assert!(error.contains("part 0/2") && error.contains("--rate"), "{error}");
    }
    let tuned = plan(&case.source, &QuantizeOptions::new("unisvq+ft", 2.0)).unwrap();
    assert!(matches!(tuned.part(part, &case.source), Err(QuantizeError::PartImpossible { .. })));
    for text in ["", "1", "1/", "/2", "2/2", "0/0", "-1/2", "+1/2", "1/2/3", "a/b", "0x0/2", "1 /2"] {
        assert!(Part::parse(text).is_err(), "{text:?}");
    }
}
