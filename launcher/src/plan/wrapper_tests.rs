//! Tests of which programs are found, in a directory of scripts. Each program is a copy of this test's own file, which needs no MPI
//! library, so the files that were looked at are compared.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use super::*;
use crate::plan::Plan;
use crate::plan::tests::{machine, planned};

/// A working directory `work`, with programs in `bin`, which is PATH, and in `scripts`.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        for name in ["work", "bin", "scripts"] {
            fs::create_dir(place.at(name)).unwrap();
        }
        for name in ["work/here", "bin/installed", "scripts/beside", "bin/sh", "bin/env", "bin/other"] {
            fs::copy("/proc/self/exe", place.at(name)).unwrap();
        }
        place
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn script(&self, name: &str, text: &str) {
        fs::write(self.at(name), text).unwrap();
        fs::set_permissions(self.at(name), fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn plan(&self, words: &[&str]) -> Plan {
        let environment = vec![("PATH".into(), self.at("bin").into_os_string())];
        let machine = crate::plan::Machine { environment, wdir: self.at("work"), ..machine() };
        let mut plan = planned("-np 2 program", &machine).unwrap();
        let [program, arguments @ ..] = words else { panic!("a program") };
        let command = &mut plan.settings.first.commands[0];
        command.program = program.as_bytes().to_vec();
        command.args = arguments.iter().map(|word| word.as_bytes().to_vec()).collect();
        plan
    }

    /// The files that are looked at for this command, relative to the place.
    fn seen(&self, words: &[&str]) -> Vec<String> {
        let plan = self.plan(words);
        let command = &plan.settings.first.commands[0];
        let mut search = Search::new(&plan.settings.session, command);
        let arguments: Vec<&[u8]> = command.args.iter().map(Vec::as_slice).collect();
        search.visit(&elf::file_of(&plan.settings.session, command).unwrap(), &arguments, 0);
        let relative = |file: PathBuf| {
            let file = file.canonicalize().unwrap();
            file.strip_prefix(self.0.path().canonicalize().unwrap()).unwrap().to_string_lossy().into_owned()
        };
        let files: BTreeSet<String> = search.seen.into_iter().map(relative).collect();
        files.into_iter().collect()
    }
}

#[test]
fn programs_are_found_among_arguments() {
    let place = Place::new();
    place.script("scripts/run.sh", "#!/bin/sh\nexec \"$@\"\n");
    assert_eq!(place.seen(&["./here", "../scripts/beside"]), ["work/here"], "it starts no other program");
    assert_eq!(place.seen(&["../scripts/run.sh", "./here"]), ["scripts/run.sh", "work/here"]);
    assert_eq!(place.seen(&["../scripts/run.sh", "-v", "installed"]), ["bin/installed", "scripts/run.sh"]);
    assert_eq!(place.seen(&["env", "A=1", "../scripts/beside"]), ["bin/env", "scripts/beside"]);
    assert_eq!(place.seen(&["sh", "-c", "cd /; ./here && 'installed' x"]), ["bin/installed", "bin/sh", "work/here"]);
    assert_eq!(place.seen(&["env", "sh", "../scripts/run.sh"]), ["bin/env", "bin/sh", "scripts/run.sh"]);
}

#[test]
fn programs_are_found_in_scripts() {
    let place = Place::new();
    for (text, expected) in [
        ("#!/bin/bash\nexec ./here\n", Some("work/here")),
        ("./here\n", Some("work/here")),
        ("#!/usr/bin/env bash\n  installed --fast <in >out\n", Some("bin/installed")),
        ("#!/bin/sh\n$(dirname \"$0\")/beside\n", Some("scripts/beside")),
        ("#!/bin/sh\nHERE=$(cd \"$(dirname \"$0\")\" && pwd)\n\"$HERE/beside\" \"$@\"\n", Some("scripts/beside")),
        ("#!/bin/sh\nprog=\"${HERE}/beside\"\n$prog\n", Some("scripts/beside")),
        ("#!/bin/sh\n`dirname $0`/beside\n", Some("scripts/beside")),
        ("#!/bin/sh\n# ./here\ntrue\n", None),
        ("#!/bin/sh\nbeside\n", None),
        ("#!/bin/cat\n./here\n", None),
        ("#!/usr/bin/perl\nexec './here'\n", None),
        ("", None),
        ("\0 ./here\n", None),
    ] {
        place.script("scripts/run.sh", text);
        let expected: BTreeSet<&str> = expected.into_iter().chain(["scripts/run.sh"]).collect();
        assert_eq!(place.seen(&["../scripts/run.sh"]), expected.into_iter().collect::<Vec<_>>(), "{text}");
    }
}

#[test]
fn scripts_that_start_each_other_are_followed_once() {
    let place = Place::new();
    place.script("scripts/run.sh", "#!/bin/sh\n./work.sh\n\"$HERE/run.sh\"\n");
    place.script("work/work.sh", "#!/bin/sh\n../scripts/run.sh\ninstalled\n");
    assert_eq!(place.seen(&["../scripts/run.sh"]), ["bin/installed", "scripts/run.sh", "work/work.sh"]);
    // One script more than is followed.
    for number in 0..=DEPTH_MAX + 1 {
        place.script(&format!("work/{number}.sh"), &format!("#!/bin/sh\n./{}.sh\n", number + 1));
    }
    let seen = place.seen(&["./0.sh"]);
    assert_eq!(seen.len() as u32, DEPTH_MAX + 1, "{seen:?}");
}

#[test]
fn words_are_bounded() {
    let text = |count: usize| (0..count).map(|number| format!("w{number} w{number} ")).collect::<String>();
    assert_eq!(words(text(WORDS_MAX).as_bytes()).len(), WORDS_MAX);
    assert_eq!(words(text(WORDS_MAX + 1).as_bytes()).len(), WORDS_MAX);
    let place = Place::new();
    let padding = " ".repeat(SCRIPT_BYTES_MAX as usize);
    place.script("scripts/run.sh", &format!("#!/bin/sh\n{padding}./here\n"));
    assert_eq!(place.seen(&["../scripts/run.sh"]), ["scripts/run.sh"]);
    // More files than are looked at.
    let names: Vec<String> = (0..FILES_MAX).map(|number| format!("f{number}")).collect();
    names.iter().for_each(|name| fs::write(place.at("work").join(name), "").unwrap());
    place.script("scripts/run.sh", &format!("#!/bin/sh\n{}\n", names.join(" ")));
    assert_eq!(place.seen(&["../scripts/run.sh"]).len(), FILES_MAX);
}

/// No file of a script proves that ranks use it.
#[test]
fn only_the_program_itself_is_certain() {
    let place = Place::new();
    let users = |words: &[&str]| {
        let plan = place.plan(words);
        mpi_users(&plan.settings.session, &plan.settings.first.commands[0])
    };
    assert_eq!(users(&["./here"]), [], "it needs no MPI library");
    assert_eq!(users(&["./missing"]), []);
}

proptest::proptest! {
    #[test]
    fn words_are_parts_of_the_text_without_separators(text in proptest::collection::vec(proptest::num::u8::ANY, 0..300)) {
        for word in words(&text) {
            proptest::prop_assert!(!word.is_empty() && text.windows(word.len()).any(|part| part == word));
            proptest::prop_assert!(!word.iter().any(|byte| byte.is_ascii_whitespace() || b"\"'`()<>|&;=,".contains(byte)));
        }
    }
}
