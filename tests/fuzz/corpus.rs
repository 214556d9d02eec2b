//! The kept corpus: `fuzz/corpus/TARGET/*`, one input in each file. Inputs of binary formats are added (`seeds`).

use std::path::{Path, PathBuf};

use crate::parsers::TARGETS;
use crate::seeds;

/// The inputs of a target, in the order of their files' names.
pub(crate) struct Corpus {
    names: Vec<String>,
    inputs: Vec<Vec<u8>>,
}

/// Returns the directory of the package for libFuzzer.
pub(crate) fn fuzz_directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz")
}

impl Corpus {
    /// Returns a target's corpus, which must not be empty.
    pub(crate) fn of(target: &str) -> Self {
        let place = fuzz_directory().join("corpus").join(target);
        let entries = std::fs::read_dir(&place).unwrap_or_else(|error| panic!("{}: {error}", place.display()));
        let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        paths.sort();
        assert!(!paths.is_empty(), "{} has no inputs", place.display());
        let mut names: Vec<String> = paths.iter().map(|path| format!("fuzz/corpus/{target}/{}", name(path))).collect();
        let mut inputs: Vec<Vec<u8>> =
            paths.iter().map(|path| std::fs::read(path).expect("the corpus can be read")).collect();
        for (number, seed) in seeds::of(target).into_iter().enumerate() {
            names.push(format!("seed {number} of {target} in tests/fuzz/seeds.rs"));
            inputs.push(seed);
        }
        Self { names, inputs }
    }

    pub(crate) fn inputs(&self) -> &[Vec<u8>] {
        &self.inputs
    }

    /// Returns each input and its file.
    pub(crate) fn files(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.names.iter().map(String::as_str).zip(self.inputs.iter().map(Vec::as_slice))
    }
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

#[test]
fn the_corpus_is_small() {
    const BYTES_MAX: u64 = 300_000;
    let mut bytes = 0;
    for target in std::fs::read_dir(fuzz_directory().join("corpus")).expect("there is a corpus").flatten() {
        let inputs = std::fs::read_dir(target.path()).expect("a folder for each target").flatten();
        bytes += inputs.map(|input| input.metadata().expect("an input is a file").len()).sum::<u64>();
    }
    assert!(bytes < BYTES_MAX, "fuzz/corpus has {bytes} bytes: minimise it (CONTRIBUTING.md)");
}

/// Writes the inputs of binary formats for libFuzzer, if `SCELA_FUZZ_SEEDS` names a directory.
#[test]
fn seeds_are_written_on_request() {
    let Some(place) = std::env::var_os("SCELA_FUZZ_SEEDS").map(PathBuf::from) else { return };
    for target in TARGETS {
        let place = place.join(target.name);
        std::fs::create_dir_all(&place).expect("the directory can be made");
        for (number, seed) in seeds::of(target.name).into_iter().enumerate() {
            std::fs::write(place.join(format!("seed-{number:03}")), seed).expect("a seed can be written");
        }
    }
}
