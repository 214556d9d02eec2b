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
        for name in ["work", "work/sub", "work/sub/deep", "home", "home/bin", "bin", "scripts"] {
            fs::create_dir(place.at(name)).unwrap();
        }
        for name in ["work/here", "bin/installed", "scripts/beside", "bin/sh", "bin/env", "bin/other"] {
            fs::copy("/proc/self/exe", place.at(name)).unwrap();
        }
        for name in ["work/sub/below", "work/sub/deep/deepest", "home/own", "home/bin/mine", "bin/perl", "bin/flock"] {
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
        let environment = ["PATH", "HOME"].into_iter().zip([self.at("bin"), self.at("home")]);
        let environment = environment.map(|(name, value)| (name.into(), value.into_os_string())).collect();
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
        ("#!/usr/bin/perl\nexec './here'\n", Some("work/here")),
        ("", None),
        ("\0 ./here\n", None),
    ] {
        place.script("scripts/run.sh", text);
        let expected: BTreeSet<&str> = expected.into_iter().chain(["scripts/run.sh"]).collect();
        assert_eq!(place.seen(&["../scripts/run.sh"]), expected.into_iter().collect::<Vec<_>>(), "{text}");
    }
}

#[test]
fn directories_that_words_name_are_searched() {
    let place = Place::new();
    for (text, expected) in [
        ("cd sub && ./below", Some("work/sub/below")),
        ("cd sub/\n./below", Some("work/sub/below")),
        ("cd ./sub; cd deep; ./deepest", Some("work/sub/deep/deepest")),
        ("cd \"$PWD\"/sub && exec ./below", Some("work/sub/below")),
        ("export PATH=$PWD/sub:$PATH\nbelow", Some("work/sub/below")),
        ("PATH=/none:${PWD}/sub below", Some("work/sub/below")),
        ("exec ~/own", Some("home/own")),
        ("exec $HOME/bin/mine", Some("home/bin/mine")),
        ("exec \"${HOME}/bin/mine\"", Some("home/bin/mine")),
        ("exec \"$HOME\"/bin/mine", Some("home/bin/mine")),
        ("BIN=~/bin\n$BIN/mine", Some("home/bin/mine")),
        ("exec $HOMEPAGE/own", None),
        ("below", None),
        ("./below", None),
    ] {
        place.script("scripts/run.sh", text);
        let expected: Vec<&str> = expected.into_iter().chain(["scripts/run.sh"]).collect();
        let mut seen = place.seen(&["../scripts/run.sh"]);
        seen.sort_by_key(|file| file == "scripts/run.sh");
        assert_eq!(seen, expected, "{text}");
    }
    place.script("scripts/run.sh", "cd sub && ./here\n");
    fs::copy("/proc/self/exe", place.at("work/sub/here")).unwrap();
    let both = ["scripts/run.sh", "work/here", "work/sub/here"];
    assert_eq!(place.seen(&["../scripts/run.sh"]), both, "which one runs is not known");
}

#[test]
fn texts_among_arguments_are_searched() {
    let place = Place::new();
    assert_eq!(place.seen(&["perl", "-e", "exec \"./here\""]), ["bin/perl", "work/here"]);
    assert_eq!(place.seen(&["flock", "lock", "./here"]), ["bin/flock", "work/here"]);
    assert_eq!(place.seen(&["env", "PATH=sub:/bin", "below"]), ["bin/env", "work/sub/below"]);
    place.script("work/my run.sh", "installed\n");
    assert_eq!(place.seen(&["sh", "my run.sh"]), ["bin/installed", "bin/sh", "work/my run.sh"]);
}

/// Scripts with many words that no directory has, in many files and places.
#[test]
fn lookups_are_bounded() {
    let place = Place::new();
    let many = |file: usize| (0..WORDS_MAX).map(|number| format!("w{file}x{number} ")).collect::<String>();
    let named = |kind: &str| (0..20).map(|number| format!("./{kind}{number} ")).collect::<String>();
    for file in 0..20 {
        fs::create_dir(place.at(&format!("work/d{file}"))).unwrap();
        fs::write(place.at(&format!("work/f{file}")), many(file)).unwrap();
    }
    place.script("scripts/run.sh", &(named("d") + &named("f")));
    let plan = place.plan(&["../scripts/run.sh"]);
    let mut search = Search::new(&plan.settings.session, &plan.settings.first.commands[0]);
    search.visit(&place.at("scripts/run.sh"), &[], 0);
    assert_eq!((search.lookups_left, search.places.len()), (0, PLACES_MAX));
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

/// The first word names a script with more words than may be looked up.
#[test]
fn long_scripts_leave_lookups_to_the_script_that_starts_them() {
    let place = Place::new();
    let many = |start: usize| (0..WORDS_MAX).map(|number| format!("w{start}x{number} ")).collect::<String>();
    let dirs: Vec<String> = (0..8).map(|number| format!("d{number}")).collect();
    dirs.iter().for_each(|name| fs::create_dir(place.at("work").join(name)).unwrap());
    place.script("scripts/long.sh", &format!("{}\n{}", dirs.join(" "), many(0)));
    place.script("scripts/run.sh", ". ../scripts/long.sh\ninstalled\n");
    assert_eq!(place.seen(&["../scripts/run.sh"]), ["bin/installed", "scripts/long.sh", "scripts/run.sh"]);
}

#[test]
fn a_search_that_is_not_answered_ends() {
    let (never, stuck) = mpsc::channel::<()>();
    assert_eq!(found_within(Duration::from_millis(1), move || stuck.recv()), None);
    drop(never);
    assert_eq!(found_within(Duration::MAX, || 1), Some(1));
}

#[test]
fn without_time_no_file_of_a_script_is_looked_at() {
    let place = Place::new();
    fs::copy("/proc/self/exe", place.at("work/libmpi.so.40")).unwrap();
    let plan = place.plan(&["env", "MPI4PY_LIBMPI=./libmpi.so.40", "./here"]);
    let found = |limit| mpi_users(&plan.settings.session, &plan.settings.first.commands[0], limit).unwrap().len();
    assert_eq!([found(SEARCH_TIME), found(Duration::ZERO)], [1, 0]);
}

/// No file of a script proves that ranks use it.
#[test]
fn only_the_program_itself_is_certain() {
    let place = Place::new();
    let users = |words: &[&str]| {
        let plan = place.plan(words);
        mpi_users(&plan.settings.session, &plan.settings.first.commands[0], SEARCH_TIME).expect("it answers")
    };
    assert_eq!(users(&["./here"]), [], "it needs no MPI library");
    assert_eq!(users(&["./missing"]), []);
    fs::copy("/proc/self/exe", place.at("work/libmpi.so.40")).unwrap();
    for word in ["MPI4PY_LIBMPI=./libmpi.so.40", "MPI4PY_LIBMPI=/none:libmpi.so.40"] {
        let users = users(&["env", word, "./here"]);
        let [MpiUser { is_certain: false, libraries, .. }] = &users[..] else { panic!("{users:?}") };
        let file = libraries[0].file.as_deref();
        assert_eq!((&*libraries[0].name, file), ("libmpi.so.40", Some(&*place.at("work/libmpi.so.40"))));
    }
}

#[test]
fn a_python_program_that_does_not_name_mpi4py_is_unlikely_to_use_it() {
    let place = Place::new();
    let [uses, other] = [("uses.py", "from mpi4py import MPI\n"), ("other.py", "print(1)\n")].map(|(name, text)| {
        fs::write(place.at("work").join(name), text).unwrap();
        place.at("work").join(name)
    });
    assert!(names_mpi4py(&[b"uses.py"], Some(&uses)));
    assert!(!names_mpi4py(&[b"other.py"], Some(&other)));
    assert!(names_mpi4py(&[b"-m", b"mpi4py.bench"], None));
    assert!(names_mpi4py(&[b"-c", b"import mpi4py.MPI"], None));
    assert!(!names_mpi4py(&[], None));
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
