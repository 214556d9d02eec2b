//! Symbols, SONAMEs and headers.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::libraries::{Api, Ours, repository, slurms};

/// Returns the symbols that a library defines.
#[track_caller]
fn exported(library: &Path) -> BTreeSet<String> {
    let text = output_of("nm", &["-D", "--defined-only"], library);
    text.lines().filter_map(|line| line.split_whitespace().nth(2)).map(str::to_owned).collect()
}

#[track_caller]
fn soname(library: &Path) -> String {
    let text = output_of("readelf", &["-d"], library);
    let line = text.lines().find(|line| line.contains("(SONAME)")).unwrap_or_else(|| panic!("no SONAME in\n{text}"));
    line.split(['[', ']']).nth(1).unwrap_or_default().to_owned()
}

#[track_caller]
fn output_of(program: &str, words: &[&str], library: &Path) -> String {
    let output = Command::new(program).args(words).arg(library).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}; ./tests/run installs it with gcc"));
    assert!(output.status.success(), "{program} {}: {}", library.display(), String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Returns the symbols of an interface: `exports/*.txt`.
#[track_caller]
fn listed(api: Api) -> BTreeSet<String> {
    let path = repository().join(format!("tests/abi/exports/{}.txt", api.name()));
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.lines().map(str::to_owned).collect()
}

#[test]
fn a_library_exports_the_symbols_of_its_interface() {
    for api in Api::ALL {
        let (exported, listed) = (exported(&Ours::of(api).file), listed(api));
        let missing: Vec<_> = listed.difference(&exported).collect();
        let more: Vec<_> = exported.difference(&listed).collect();
        assert!(
            missing.is_empty() && more.is_empty(),
            "lib{}.so lacks {missing:?} and exports {more:?} as well",
            api.name()
        );
    }
}

#[test]
fn every_symbol_of_slurms_library_is_exported() {
    for api in Api::ALL {
        let Some(theirs) = slurms(api) else { return };
        let (exported, listed) = (exported(&theirs.file), listed(api));
        let missing: Vec<_> = exported.difference(&listed).collect();
        assert!(missing.is_empty(), "exports/{}.txt lacks {missing:?}", api.name());
    }
}

#[test]
fn the_sonames_are_slurms() {
    for api in Api::ALL {
        assert_eq!(soname(&Ours::of(api).file), api.soname());
    }
}

/// Checks that `text` compiles without a warning.
#[track_caller]
fn compiles(compiler: &str, standard: &str, text: &str) {
    // One declaration of PMI-1 is not strictly valid C++ before 2017.
    let (language, strict) = if compiler == "g++" { ("c++", "-Wextra") } else { ("c", "-Wpedantic") };
    let include = repository().join("libpmi-c/include");
    let mut command = Command::new(compiler);
    command.args([standard, "-Wall", "-Wextra", strict, "-Werror", "-fsyntax-only", "-x", language, "-I"]);
    command.arg(include).arg("-").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{compiler}: {error}; ./tests/run installs it"));
    child
        .stdin
        .take()
        .expect("stdin is a pipe")
        .write_all(text.as_bytes())
        .expect("the compiler does not read its input");
    let output = child.wait_with_output().expect("waiting for the compiler failed");
    assert!(output.status.success(), "{compiler} {standard}\n{}\n{text}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn headers_compile_alone() {
    let one = |name: &str| format!("#include <{name}.h>\n#include <{name}.h>\n");
    for text in [one("pmi"), one("pmi2"), one("pmi") + &one("pmi2")] {
        compiles("gcc", "-std=c99", &text);
        compiles("gcc", "-std=c11", &text);
        compiles("g++", "-std=c++98", &text);
        compiles("g++", "-std=c++17", &text);
    }
}

/// Returns the function declarations of ScELA's header, each with its semicolon.
#[track_caller]
fn declarations(api: Api) -> Vec<String> {
    let header = repository().join("libpmi-c/include").join(api.header());
    let text = output_of("gcc", &["-E", "-P"], &header);
    // Structures contain and end with semicolons as well.
    let declared = text.split(';').filter_map(|part| part.find("int PMI").map(|at| part[at..].trim()));
    declared.filter(|part| part.contains('(')).map(|part| format!("{part};\n")).collect()
}

/// In C, a second declaration must be compatible with the first.
#[test]
fn declarations_are_compatible_with_slurms() {
    for api in Api::ALL {
        let Some(theirs) = slurms(api) else { return };
        let declarations = declarations(api);
        assert_eq!(declarations.len(), listed(api).len(), "{declarations:?}");
        let include = format!("#include \"{}\"\n", theirs.headers.join(api.header()).display());
        compiles("gcc", "-std=c99", &(include + &declarations.concat()));
    }
}

/// Returns the value of each constant that a header defines, as the compiler sees it.
#[track_caller]
fn constants(header: &Path) -> BTreeSet<(String, String)> {
    let defined = output_of("gcc", &["-E", "-dM", "-x", "c"], header);
    let defined = defined.lines().filter_map(|line| line.strip_prefix("#define ")?.split_once(' '));
    let named = defined.filter(|(name, _)| name.starts_with("PMI") || name.starts_with("HAVE_PMI"));
    named.map(|(name, value)| (name.to_owned(), value.trim_matches(['(', ')']).to_owned())).collect()
}

#[test]
fn the_header_defines_the_constants_of_slurms() {
    for api in Api::ALL {
        let Some(theirs) = slurms(api) else { return };
        let ours = constants(&repository().join("libpmi-c/include").join(api.header()));
        let theirs = constants(&theirs.headers.join(api.header()));
        // Constants of Slurm's wire protocol.
        let is_inner = |(name, _): &&(String, String)| name.starts_with("PMII_");
        let missing: Vec<_> = theirs.difference(&ours).filter(|constant| !is_inner(constant)).collect();
        assert!(missing.is_empty(), "{} lacks {missing:?}", api.header());
    }
}
