//! Rules that are checked without a reviewer. Each failure names the file, the line and the reason for the rule.

mod blanked;
mod dependencies;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use blanked::blanked;
use dependencies::DEPENDENCIES;

/// The longest a file may be; longer files must be split.
const LINES_MAX: usize = 700;

/// A source file, with its path relative to the root of the repository.
struct Source {
    path: String,
    text: String,
}

/// A line of code with its comments and the contents of its strings blanked.
struct Line<'a> {
    number: usize,
    code: String,
    /// The whole line, unchanged.
    text: &'a str,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().expect("the repository is there")
}

/// Returns all files of the repository.
fn files() -> Vec<PathBuf> {
    fn below(place: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(place).expect("the repository can be read").flatten() {
            let path = entry.path();
            let name = entry.file_name();
            if path.is_dir() && name != "target" && name != ".git" {
                below(&path, found);
            } else if path.is_file() && name != ".git" {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    below(&root(), &mut found);
    found.sort();
    found
}

fn relative(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).to_string_lossy().into_owned()
}

/// Returns all Rust files of the repository.
fn sources() -> Vec<Source> {
    let rust = files().into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "rs"));
    rust.map(|path| Source { path: relative(&path), text: read(&path) }).collect()
}

fn sources_in(places: &[&str]) -> Vec<Source> {
    sources().into_iter().filter(|source| places.iter().any(|place| source.path.starts_with(place))).collect()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

impl Source {
    fn lines(&self) -> Vec<Line<'_>> {
        let code = blanked(&self.text);
        let lines = self.text.lines().zip(code.lines()).enumerate();
        lines.map(|(at, (text, code))| Line { number: at + 1, code: code.to_owned(), text }).collect()
    }

    /// Returns whether the file is compiled for tests only.
    fn is_test(&self) -> bool {
        let path = &self.path;
        let named = path.ends_with("/tests.rs") || path.ends_with("_tests.rs") || path.contains("/tests/");
        named || path.starts_with("tests/")
    }

    /// Returns the lines in front of the tests at the end of the file.
    fn product_lines(&self) -> Vec<Line<'_>> {
        if self.is_test() {
            return Vec::new();
        }
        self.lines().into_iter().take_while(|line| line.text.trim() != "#[cfg(test)]").collect()
    }
}

/// The violations of a rule.
#[derive(Default)]
struct Offences(String);

impl Offences {
    fn add(&mut self, path: &str, line: usize, what: impl std::fmt::Display) {
        let _ = writeln!(self.0, "  {path}:{line}: {what}");
    }

    #[track_caller]
    fn none(self, rule: &str) {
        assert!(self.0.is_empty(), "{rule}\n{}", self.0);
    }
}

/// Returns whether `code` contains the path or name `word`, other than as a part of another name.
fn mentions(code: &str, word: &str) -> bool {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    code.match_indices(word).any(|(at, _)| {
        let goes_on = |left: Option<u8>, right: Option<u8>| left.is_some_and(is_name) && right.is_some_and(is_name);
        let (before, after) = (code[..at].bytes().last(), code[at + word.len()..].bytes().next());
        !goes_on(before, word.bytes().next()) && !goes_on(word.bytes().last(), after)
    })
}

/// Checks that no line of these files mentions one of the words.
#[track_caller]
fn assert_not_mentioned(lines: impl Fn(&Source) -> Vec<Line<'_>>, sources: &[Source], words: &[&str], rule: &str) {
    let mut offences = Offences::default();
    for source in sources {
        for line in lines(source) {
            for word in words.iter().filter(|word| mentions(&line.code, word)) {
                offences.add(&source.path, line.number, word);
            }
        }
    }
    offences.none(rule);
}

#[test]
fn files_begin_with_a_description() {
    let mut offences = Offences::default();
    for source in sources() {
        if !source.text.starts_with("//!") {
            offences.add(&source.path, 1, source.text.lines().next().unwrap_or("empty"));
        }
    }
    offences.none("each file begins with //! and a sentence about itself");
}

#[test]
fn files_have_a_bounded_length() {
    let mut offences = Offences::default();
    for source in sources() {
        let lines = source.text.lines().count();
        if lines > LINES_MAX {
            offences.add(&source.path, lines, "too long");
        }
    }
    offences.none(&format!("no file has more than {LINES_MAX} lines"));
}

#[test]
fn cores_have_no_effects() {
    let words = [
        "tokio",
        "std::net",
        "std::process",
        "std::thread",
        "std::os",
        "Instant::now",
        "SystemTime",
        "rand::",
        "std::fs",
        "std::env",
    ];
    assert_not_mentioned(
        |source| source.product_lines(),
        &sources_in(&["pmi/src/", "placement/src/", "nla/src/core/", "nla/src/bootstrap/decide/"]),
        &words,
        "cores have no clock, sockets, threads, processes, files or randomness: what they need is an argument",
    );
}

/// Checks that the code of `places` names, in paths, only the allowed crates.
#[track_caller]
fn only_uses(places: &[&str], allowed: &[&str]) {
    const CRATES: &[&str] = &[
        "attachment",
        "benches",
        "bytes",
        "clap",
        "dashmap",
        "launcher",
        "libc",
        "litemap",
        "lz4_flex",
        "lru",
        "memchr",
        "nix",
        "nla",
        "placement",
        "pmi",
        "rmp",
        "rmp_serde",
        "serde",
        "serde_bytes",
        "serde_json",
        "sha2",
        "sim",
        "slab",
        "snow",
        "strsim",
        "tempfile",
        "tests",
        "thiserror",
        "tokio",
        "tokio_util",
        "tracing",
        "tracing_subscriber",
        "zeroize",
    ];
    let words: Vec<String> =
        CRATES.iter().filter(|known| !allowed.contains(known)).map(|known| format!("{known}::")).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut offences = Offences::default();
    for source in sources_in(places) {
        for line in source.product_lines() {
            // A module may have the same name as a crate.
            let code = line.code.replace("crate::", "crate_").replace("self::", "self_").replace("super::", "super_");
            let names = |word: &str| mentions(&code.replace(&format!("::{word}"), "::_::"), word);
            for word in words.iter().filter(|word| names(word)) {
                offences.add(&source.path, line.number, word);
            }
        }
    }
    offences.none(&format!("{places:?} may use of crates no more than {allowed:?}"));
}

#[test]
fn dependencies_point_one_way() {
    // tracing is a facade: without a subscriber it does nothing, and with one the subscriber does the I/O.
    only_uses(
        &["nla/src/core/"],
        &["pmi", "serde", "serde_bytes", "thiserror", "bytes", "litemap", "lz4_flex", "tracing"],
    );
    only_uses(&["nla/src/bootstrap/decide/"], &["litemap", "serde"]);
    only_uses(&["pmi/src/"], &["serde", "serde_bytes", "thiserror", "bytes", "dashmap", "lru", "tracing"]);
    let never = |places: &[&str], words: &[&str]| {
        let rule = format!("{places:?} must not depend on {words:?}");
        assert_not_mentioned(|source| source.product_lines(), &sources_in(places), words, &rule);
    };
    never(&["nla/src/core/"], &["crate::driver", "crate::bootstrap", "crate::link", "crate::sys", "crate::wire"]);
    never(&["nla/src/wire/"], &["crate::driver", "crate::bootstrap", "crate::link", "crate::sys"]);
    never(&["nla/src/sys/"], &["crate::driver", "crate::bootstrap", "crate::link", "crate::core", "crate::wire"]);
    never(&["nla/src/link/"], &["crate::driver", "crate::bootstrap"]);
    never(&["nla/src/bootstrap/"], &["crate::driver", "crate::keeper"]);
    never(&["nla/src/keeper/"], &["crate::driver", "crate::bootstrap"]);
    never(
        &["nla/src/tasks.rs"],
        &["crate::driver", "crate::bootstrap", "crate::link", "crate::core", "crate::wire", "crate::sys"],
    );
    never(&["nla/src/core/", "nla/src/wire/", "nla/src/sys/"], &["crate::tasks"]);
    never(&["nla/src/"], &["launcher::", "sim::"]);
    only_uses(&["placement/src/"], &["thiserror"]);
    only_uses(&["nla/sim/src/"], &["pmi", "nla", "serde", "thiserror", "bytes"]);
    only_uses(&["libpmi-c/attachment/src/"], &["pmi", "libc", "thiserror"]);
    only_uses(&["comm-trace/src/"], &["libc"]);
    // The root crate of `libpmi-c` itself is called pmi.
    only_uses(&["libpmi-c/src/", "libpmi-c/pmi2/src/"], &["attachment", "libc"]);
}

/// The modules of the launcher in the order of launcher/src/lib.rs: each depends only on those before it.
const LAUNCHER_CHAPTERS: &[&str] =
    &["exit", "suggest", "refusal", "colour", "cluster", "plan", "comm", "run", "forecast", "cli", "pool", "program"];

/// Returns the modules of the launcher that a line of its code names, in a path from the root of the crate or in one
/// that climbs there by `super`.
fn chapters_named(code: &str) -> Vec<&'static str> {
    let is_named =
        |chapter: &&&str| ["crate", "super"].iter().any(|from| mentions(code, &format!("{from}::{chapter}")));
    LAUNCHER_CHAPTERS.iter().filter(is_named).copied().collect()
}

#[test]
fn launcher_chapters_depend_one_way() {
    let mut offences = Offences::default();
    for source in sources_in(&["launcher/src/"]) {
        let place = source.path.trim_start_matches("launcher/src/");
        let chapter = place.split('/').next().unwrap_or_default().trim_end_matches(".rs");
        if ["lib", "main", "bin"].contains(&chapter) {
            continue;
        }
        let Some(own) = LAUNCHER_CHAPTERS.iter().position(|known| *known == chapter) else {
            offences.add(&source.path, 1, "a chapter without a place in the order of LAUNCHER_CHAPTERS");
            continue;
        };
        for line in source.product_lines() {
            if mentions(&line.code, "crate::{") {
                offences.add(&source.path, line.number, "name each chapter in a path of its own, not in crate::{...}");
            }
            for other in chapters_named(&line.code) {
                if LAUNCHER_CHAPTERS.iter().position(|known| *known == other) > Some(own) {
                    offences.add(&source.path, line.number, format!("{chapter} depends on {other}"));
                }
            }
        }
    }
    offences.none(&format!("each chapter of the launcher depends only on those before it: {LAUNCHER_CHAPTERS:?}"));
}

#[test]
fn paths_to_chapters_are_found() {
    assert_eq!(chapters_named("use crate::cli::Typed;"), ["cli"]);
    assert_eq!(
        chapters_named("crate::run::session::run(super::super::forecast::model::COUNT_MAX)"),
        ["run", "forecast"]
    );
    assert!(chapters_named("use crate::runner; let planned = planes::plan(); ncrate::cli::x").is_empty());
}

/// Bootstrap's decisions may use messages and the core's values, but no code that has effects.
#[test]
fn decisions_of_bootstrap_have_no_effects() {
    let allowed = [
        "crate::bootstrap::protocol::",
        "crate::core::",
        "crate::link::ListensAt",
        "crate::link::Reach",
        "crate::wire::TreePosition",
    ];
    let mut offences = Offences::default();
    for source in sources_in(&["nla/src/bootstrap/decide/"]) {
        for line in source.product_lines() {
            let paths = line.code.match_indices("crate::").map(|(at, _)| &line.code[at..]);
            // `pub(in crate::bootstrap)` is a visibility, not a use.
            let used = paths.filter(|path| !path.starts_with("crate::bootstrap)"));
            for path in used.filter(|path| !allowed.iter().any(|allowed| path.starts_with(allowed))) {
                offences.add(&source.path, line.number, path);
            }
            if mentions(&line.code, "super::super") {
                offences.add(&source.path, line.number, "super::super");
            }
        }
    }
    offences.none("nla/src/bootstrap/decide uses nothing of this crate but values");
}

/// Returns the contents of the strings in a line, or an empty text for a comment.
fn strings(line: &Line<'_>) -> String {
    if line.text.trim_start().starts_with("//") {
        return String::new();
    }
    let is_blank = |(at, _): &(usize, char)| line.code.as_bytes().get(*at).is_none_or(|byte| *byte == b' ');
    line.text.char_indices().filter(is_blank).map(|(_, letter)| letter).collect()
}

/// Only bootstrap and the launcher know the messages of commands that start agents, and the options that users may try.
#[test]
fn phrases_and_options_stay_out_of_the_core() {
    const PHRASES: [&str; 8] = [
        "Permission denied",
        "publickey",
        "Connection refused",
        "Could not resolve",
        "Host key",
        "kex_exchange",
        "command not found",
        "srun",
    ];
    let mut offences = Offences::default();
    for source in sources_in(&["nla/src/core/", "nla/src/wire/", "nla/src/link/"]) {
        for line in source.product_lines() {
            let text = strings(&line);
            let has_option = text
                .match_indices("--")
                .any(|(at, _)| text[at + 2..].starts_with(|letter: char| letter.is_ascii_lowercase()));
            if has_option || PHRASES.iter().any(|phrase| text.contains(phrase)) {
                offences.add(&source.path, line.number, line.text.trim());
            }
        }
    }
    offences.none("no phrase of OpenSSH, a shell or srun, and no command-line option, stands in the core");
}

/// Returns the names under `[section]` of a manifest.
fn keys(manifest: &str, section: &str) -> BTreeSet<String> {
    let text = read(&root().join(manifest));
    let lines =
        text.lines().skip_while(|line| line.trim() != section).skip(1).take_while(|line| !line.starts_with('['));
    let key = |line: &str| Some(line.split(['=', '.']).next()?.trim().to_owned());
    lines.filter(|line| !line.trim_start().starts_with('#')).filter_map(key).filter(|key| !key.is_empty()).collect()
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// A further dependency needs a reason: CONTRIBUTING asks that a new crate is named and weighed.
#[test]
fn dependencies_are_the_allowed_ones() {
    assert_eq!(keys("Cargo.toml", "[workspace.dependencies]"), set(DEPENDENCIES));
    let workspace = set(&["pmi", "nla", "sim", "scela-run", "attachment", "libpmi-c", "libpmi2-c", "benches", "tests"]);
    let within = |manifest: &str| -> BTreeSet<String> {
        keys(manifest, "[dependencies]").intersection(&workspace).cloned().collect()
    };
    assert_eq!(within("pmi/Cargo.toml"), set(&[]));
    assert_eq!(within("nla/Cargo.toml"), set(&["pmi"]));
    assert_eq!(within("nla/sim/Cargo.toml"), set(&["nla", "pmi"]));
    assert_eq!(within("launcher/Cargo.toml"), set(&["nla", "pmi", "sim"]));
    assert_eq!(within("libpmi-c/attachment/Cargo.toml"), set(&["pmi"]));
    assert_eq!(within("libpmi-c/Cargo.toml"), set(&["attachment"]));
    assert_eq!(within("libpmi-c/pmi2/Cargo.toml"), set(&["attachment"]));
}

#[test]
fn unsafe_code_is_confined_and_has_a_reason() {
    let places = ["nla/src/sys/", "libpmi-c/", "comm-trace/", "benches/src/machine.rs"];
    let allowed = |path: &str| places.iter().any(|place| path.starts_with(place));
    let mut offences = Offences::default();
    for source in sources() {
        let lines = source.lines();
        for (at, line) in lines.iter().enumerate().filter(|(_, line)| mentions(&line.code, "unsafe")) {
            if !allowed(&source.path) {
                offences.add(&source.path, line.number, "unsafe");
            } else if mentions(&line.code, "unsafe {") || mentions(&line.code, "unsafe impl") {
                // Ignore comments and attributes between the two, and the head of a statement.
                let above = lines[..=at].iter().rev().take(8);
                if !above.into_iter().any(|line| line.text.contains("SAFETY:")) {
                    offences.add(&source.path, line.number, "no SAFETY: above it");
                }
            }
        }
    }
    offences.none("unsafe code is in nla/src/sys, libpmi-c and comm-trace, and each block says why it is sound");
}

#[test]
fn only_the_launcher_prints() {
    let may_print = |path: &str| {
        let launcher =
            ["main", "run/output", "run/report", "run/session/mod"].map(|name| format!("launcher/src/{name}.rs"));
        let printing = ["tests/", "benches/", "placement/benches/", "libpmi-c/attachment/examples/"];
        // A build script prints its instructions to Cargo.
        let is_build_script = path.ends_with("build.rs");
        is_build_script
            || printing.iter().any(|place| path.starts_with(place))
            || launcher.iter().any(|file| file == path)
    };
    let silent: Vec<Source> = sources().into_iter().filter(|source| !may_print(&source.path)).collect();
    let words = ["println!", "print!", "eprintln!", "eprint!"];
    assert_not_mentioned(
        |source| source.product_lines(),
        &silent,
        &words,
        "standard output belongs to the ranks; what the user reads goes through launcher/src/run/report.rs",
    );
}

#[test]
fn tasks_and_channels_name_their_bound() {
    let mut offences = Offences::default();
    for source in sources_in(&["nla/src/", "launcher/src/", "pmi/src/"]) {
        let lines = source.product_lines();
        for (at, line) in lines.iter().enumerate() {
            let word = ["tokio::spawn(", "unbounded_channel("].into_iter().find(|word| line.code.contains(word));
            let Some(word) = word else { continue };
            let near = &lines[at.saturating_sub(3)..=at];
            if !near.iter().any(|line| line.text.contains("Bounded by")) {
                offences.add(&source.path, line.number, word);
            }
        }
    }
    offences.none("a comment within three lines above says \"Bounded by\" what");
}

#[test]
fn no_work_is_left_undone() {
    let mut offences = Offences::default();
    // In parts, so that this file does not match.
    let words = [["TO", "DO"], ["FIX", "ME"], ["XX", "X"]].map(|parts| parts.concat());
    for source in sources() {
        for line in source.lines() {
            let code =
                ["todo!", "dbg!", "unimplemented!", "#[ignore"].into_iter().filter(|word| line.code.contains(word));
            for word in code.chain(words.iter().map(String::as_str).filter(|word| mentions(line.text, word))) {
                offences.add(&source.path, line.number, word);
            }
        }
    }
    offences.none("nothing is marked as undone, and no test is ignored");
}

/// The one loop that polls a condition has to pause in between.
#[test]
fn tests_do_not_sleep() {
    let waits = |source: &Source| source.path == "tests/support/waiting.rs";
    let tests: Vec<Source> =
        sources_in(&["tests/", "nla/tests/"]).into_iter().filter(|source| !waits(source)).collect();
    assert_not_mentioned(
        |source| source.lines(),
        &tests,
        &["thread::sleep", "time::sleep"],
        "tests wait for conditions (tests/support/waiting.rs), never for time to pass",
    );
}

/// Cargo compiles the modules that a target's root file names, and does not warn of a file that no module names.
#[test]
fn every_file_is_compiled() {
    let all: BTreeSet<String> = sources().into_iter().map(|source| source.path).collect();
    let mut reached: BTreeSet<String> = targets().into_iter().filter(|path| all.contains(path)).collect();
    let mut new: Vec<String> = reached.iter().cloned().collect();
    while let Some(path) = new.pop() {
        for module in modules(&path, reached_as_root(&path)) {
            if all.contains(&module) && reached.insert(module.clone()) {
                new.push(module);
            }
        }
    }
    let mut offences = Offences::default();
    all.difference(&reached).for_each(|path| offences.add(path, 1, "not reached from any target"));
    offences.none("each file is a module of some crate");
}

/// Returns the root files of all crates: those that manifests name, and those that Cargo finds by itself.
fn targets() -> BTreeSet<String> {
    let mut roots = BTreeSet::new();
    for manifest in files().iter().filter(|path| path.ends_with("Cargo.toml")) {
        let place = manifest.parent().expect("a manifest lies somewhere");
        let text = read(manifest);
        let paths = text.lines().filter_map(|line| line.trim().strip_prefix("path = \"")?.strip_suffix('"'));
        roots.extend(paths.map(|path| relative(&place.join(path))));
        roots.extend(["src/lib.rs", "src/main.rs", "build.rs"].map(|path| relative(&place.join(path))));
        for found in ["tests", "benches", "examples", "src/bin"] {
            let entries = fs::read_dir(place.join(found)).into_iter().flatten().flatten();
            roots.extend(entries.map(|entry| relative(&entry.path())));
        }
    }
    roots
}

fn reached_as_root(path: &str) -> bool {
    targets().contains(path)
}

/// Returns the paths that a file's `mod` declarations may mean.
fn modules(path: &str, is_root: bool) -> Vec<String> {
    let source = Source { path: path.to_owned(), text: read(&root().join(path)) };
    let place = path.rsplit_once('/').map_or("", |(place, _)| place);
    let name = path.rsplit('/').next().and_then(|file| file.strip_suffix(".rs")).unwrap_or_default();
    let inside = if is_root || name == "mod" { place.to_owned() } else { format!("{place}/{name}") };
    let mut found = Vec::new();
    let lines = source.lines();
    for (at, line) in lines.iter().enumerate() {
        let code = line.code.trim();
        let Some(module) = code.strip_suffix(';').and_then(|code| code.split_once("mod ")).map(|(_, name)| name) else {
            continue;
        };
        let named = lines[..at].iter().rev().take(2).find_map(|line| line.text.trim().strip_prefix("#[path = \""));
        if let Some(file) = named.and_then(|rest| rest.strip_suffix("\"]")) {
            found.push(format!("{place}/{file}"));
        }
        found.extend([format!("{inside}/{module}.rs"), format!("{inside}/{module}/mod.rs")]);
    }
    found
}

/// Returns the pairs of strings in the launcher's table `EXIT_CODES`.
fn exit_codes() -> Vec<(String, String)> {
    let text = read(&root().join("launcher/src/exit.rs"));
    let table = text.split("pub const EXIT_CODES").nth(1).and_then(|rest| rest.split("];").next());
    let rows = table.expect("exit.rs has the table").lines().filter_map(|line| {
        let row = line.trim().strip_prefix("(\"")?.strip_suffix("\"),")?;
        row.split_once("\", \"").map(|(code, meaning)| (code.to_owned(), meaning.to_owned()))
    });
    rows.collect()
}

#[test]
fn the_readme_has_the_exit_codes_of_the_help() {
    let readme = fs::read_to_string(root().join("README.md")).expect("there is a README.md");
    let rows: BTreeSet<String> = readme.lines().map(|line| line.replace(['`', '|'], " ")).map(words).collect();
    assert!(exit_codes().len() > 5, "the table is read: {:?}", exit_codes());
    for (code, meaning) in exit_codes() {
        let row = words(format!("{code} {meaning}").replace('`', ""));
        assert!(rows.contains(&row), "README.md lacks a row of the table of exit codes: | {code} | {meaning} |");
    }
}

fn words(text: String) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn the_protocol_page_names_the_version_and_every_bound() {
    let page = fs::read_to_string(root().join("docs/protocol.md")).expect("there is a docs/protocol.md");
    assert!(page.contains(&format!("`VERSION` is {}.", nla::wire::VERSION)), "the page names another version");
    let mut offences = Offences::default();
    for source in sources_in(&["pmi/src/limits.rs", "nla/src/core/limits.rs"]) {
        for line in source.lines() {
            let name = line.code.trim().strip_prefix("pub const ").and_then(|rest| rest.split(':').next());
            if let Some(name) = name.filter(|name| !mentions(&page, name)) {
                offences.add(&source.path, line.number, name);
            }
        }
    }
    offences.none("each bound is in docs/protocol.md");
}

/// Returns the tests that a page links to, as (line, name, path): `` [`name`](../path) ``.
fn linked_tests(page: &str) -> Vec<(usize, &str, &str)> {
    let mut found = Vec::new();
    for (index, line) in page.lines().enumerate() {
        for link in line.split("[`").skip(1) {
            let parts = link.split_once("`](../").and_then(|(name, rest)| Some((name, rest.split_once(')')?.0)));
            found.extend(parts.map(|(name, path)| (index + 1, name, path)));
        }
    }
    found
}

#[test]
fn the_security_page_names_tests_that_exist() {
    const PAGE: &str = "docs/security.md";
    let page = read(&root().join(PAGE));
    let mut offences = Offences::default();
    for (line, name, path) in linked_tests(&page) {
        let test = root().join(path);
        if !test.is_file() || !read(&test).contains(&format!("fn {name}(")) {
            offences.add(PAGE, line, format!("{path} has no test {name}"));
        }
    }
    // Each row of a table with an attack names a test.
    let mut has_tests = false;
    for (index, line) in page.lines().enumerate() {
        if line.starts_with('|') && line.ends_with("| Test |") {
            has_tests = true;
        } else if !line.starts_with('|') {
            has_tests = false;
        } else if has_tests && !line.starts_with("|---") && linked_tests(line).is_empty() {
            offences.add(PAGE, index + 1, "a row without a test");
        }
    }
    offences.none("each mechanism of docs/security.md has a test");
}

#[test]
fn no_path_of_a_developers_machine() {
    let mut offences = Offences::default();
    // In parts, so that this file does not match.
    let places = [["/wo", "rk/"], ["/ro", "ot/"]].map(|parts| parts.concat());
    for path in files() {
        let Ok(text) = fs::read_to_string(&path) else { continue };
        for (at, line) in text.lines().enumerate() {
            // Only at the beginning of a path, not inside one.
            let begins = |place: &String| {
                line.match_indices(place.as_str()).any(|(at, _)| {
                    !line[..at].ends_with(|before: char| before.is_alphanumeric() || "_-./}~".contains(before))
                })
            };
            if let Some(place) = places.iter().find(|place| begins(place)) {
                offences.add(&relative(&path), at + 1, place);
            }
        }
    }
    offences.none("no path of the machine that something was written on");
}

#[test]
fn blanks_for_comments_and_strings() {
    let check = |text: &str, code: &str| assert_eq!(blanked(text), code, "{text}");
    check("a // b\nc", "a     \nc");
    check(r#"a("b // c\"") d"#, "a(          ) d");
    check("f('\"', '\\'', b'x', &'a str)", "f(   ,     , b   , &'a str)");
    check("r#\"x\"y\"# z", "          z".get(1..).unwrap_or_default());
    assert!(mentions("std::thread::sleep(x)", "thread::sleep"));
    assert!(!mentions("grand::x", "rand::"));
    assert!(!mentions("print_all!", "print!"));
}

/// A panic in a task that is spawned without `nla::tasks` would go unnoticed.
#[test]
fn tasks_are_spawned_in_one_place() {
    let mut sources = sources_in(&["nla/src/", "launcher/src/run/"]);
    sources.retain(|source| source.path != "nla/src/tasks.rs");
    assert_not_mentioned(
        |source| source.product_lines(),
        &sources,
        &["tokio::spawn", "task::spawn_local", "thread::spawn", "thread::Builder"],
        "tasks and threads are spawned through nla::tasks, which reports their panics",
    );
}
