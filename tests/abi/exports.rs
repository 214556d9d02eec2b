//! Names, SONAMEs and headers: all that a program sees before it runs.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::libraries::{Api, Ours, repository, slurms};

/// The names that a library defines.
#[track_caller]
fn exported(library: &Path) -> BTreeSet<String> {
    let text = said("nm", &["-D", "--defined-only"], library);
    text.lines().filter_map(|line| line.split_whitespace().nth(2)).map(str::to_owned).collect()
}

#[track_caller]
fn soname(library: &Path) -> String {
    let text = said("readelf", &["-d"], library);
    let line = text.lines().find(|line| line.contains("(SONAME)")).unwrap_or_else(|| panic!("no SONAME in\n{text}"));
    line.split(['[', ']']).nth(1).unwrap_or_default().to_owned()
}

#[track_caller]
fn said(program: &str, words: &[&str], library: &Path) -> String {
    let output = Command::new(program).args(words).arg(library).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}; ./tests/run installs it with gcc"));
    assert!(output.status.success(), "{program} {}: {}", library.display(), String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The names that an interface has: `exports/*.txt`.
#[track_caller]
fn listed(api: Api) -> BTreeSet<String> {
    let path = repository().join(format!("tests/abi/exports/{}.txt", api.name()));
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.lines().map(str::to_owned).collect()
}

#[test]
fn the_names_are_those_of_the_interface() {
    for api in Api::ALL {
        let (exported, listed) = (exported(&Ours::of(api).file), listed(api));
        let missing: Vec<_> = listed.difference(&exported).collect();
        let more: Vec<_> = exported.difference(&listed).collect();
        assert!(missing.is_empty() && more.is_empty(), "lib{}.so lacks {missing:?}, and has {more:?}", api.name());
    }
}

#[test]
fn no_name_of_slurms_is_missing() {
    for api in Api::ALL {
        let Some(theirs) = slurms(api) else { return };
        let (exported, listed) = (exported(&theirs.file), listed(api));
        let missing: Vec<_> = exported.difference(&listed).collect();
        assert!(missing.is_empty(), "exports/{}.txt lacks {missing:?}", api.name());
    }
}

#[test]
fn programs_linked_with_slurms_find_ours() {
    for api in Api::ALL {
        assert_eq!(soname(&Ours::of(api).file), api.soname());
    }
}

/// Compiles `text` and nothing else; what the compiler complains of is a failure.
#[track_caller]
fn compiles(compiler: &str, standard: &str, text: &str) {
    // A declaration of PMI-1 is not what C++ was before 2017, to the letter.
    let (language, strict) = if compiler == "g++" { ("c++", "-Wextra") } else { ("c", "-Wpedantic") };
    let include = repository().join("libpmi-c/include");
    let mut command = Command::new(compiler);
    command.args([standard, "-Wall", "-Wextra", strict, "-Werror", "-fsyntax-only", "-x", language, "-I"]);
    command.arg(include).arg("-").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{compiler}: {error}; ./tests/run installs it"));
    child.stdin.take().expect("a pipe").write_all(text.as_bytes()).expect("the compiler reads its input");
    let output = child.wait_with_output().expect("the compiler can be waited for");
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

/// The declarations of functions in our header, each ending with a semicolon.
#[track_caller]
fn declarations(api: Api) -> Vec<String> {
    let header = repository().join("libpmi-c/include").join(api.header());
    let text = said("gcc", &["-E", "-P"], &header);
    // Structures end with one as well, within and behind their braces.
    let declared = text.split(';').filter_map(|part| part.find("int PMI").map(|at| part[at..].trim()));
    declared.filter(|part| part.contains('(')).map(|part| format!("{part};\n")).collect()
}

/// What is declared twice in C has to be declared the same way.
#[test]
fn declarations_are_slurms() {
    for api in Api::ALL {
        let Some(theirs) = slurms(api) else { return };
        let declarations = declarations(api);
        assert_eq!(declarations.len(), listed(api).len(), "{declarations:?}");
        let include = format!("#include \"{}\"\n", theirs.headers.join(api.header()).display());
        compiles("gcc", "-std=c99", &(include + &declarations.concat()));
    }
}

/// The value of each constant that a header defines, as the compiler sees it.
#[track_caller]
fn constants(header: &Path) -> BTreeSet<(String, String)> {
    let defined = said("gcc", &["-E", "-dM", "-x", "c"], header);
    let defined = defined.lines().filter_map(|line| line.strip_prefix("#define ")?.split_once(' '));
    let named = defined.filter(|(name, _)| name.starts_with("PMI") || name.starts_with("HAVE_PMI"));
    named.map(|(name, value)| (name.to_owned(), value.trim_matches(['(', ')']).to_owned())).collect()
}

#[test]
fn constants_are_slurms() {
    for api in Api::ALL {
        let Some(theirs) = slurms(api) else { return };
        let ours = constants(&repository().join("libpmi-c/include").join(api.header()));
        let theirs = constants(&theirs.headers.join(api.header()));
        // Of its wire.
        let is_inner = |(name, _): &&(String, String)| name.starts_with("PMII_");
        let missing: Vec<_> = theirs.difference(&ours).filter(|constant| !is_inner(constant)).collect();
        assert!(missing.is_empty(), "{} lacks {missing:?}", api.header());
    }
}
