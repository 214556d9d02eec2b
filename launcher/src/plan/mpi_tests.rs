//! Tests of the variables that each command gets, on a fictitious machine.

use std::ffi::{OsStr, OsString};
use std::fs;

use nla::core::{CommandPlan, RankSessions};
use nla::sys::ShellState;

use super::*;
use crate::cli::{ENVIRONMENT, Typed, parse};
use crate::plan::elf::Needs;
use crate::plan::wrapper::{SEARCH_TIME, mpi_users};

/// Returns a machine with this scela-run and these variables.
fn machine(scela_run: &Path, environment: &[(&str, &OsStr)]) -> Machine {
    Machine {
        environment: environment.iter().map(|(name, value)| (name.into(), value.into())).collect(),
        wdir: "/".into(),
        program: scela_run.to_owned(),
        parts: |_| 1,
        cores: 2,
        shell: ShellState { umask: 0o22, limits: Vec::new(), blocked: 0, ignored: 0, bounds_hard: false },
        stdout_is_terminal: false,
        stdin_in_background: false,
        task_limits: |_| Vec::new(),
        memory_limits: |_| Vec::new(),
        session: 0x1234_5678_9abc_def0,
    }
}

/// Returns the plan for this command line.
fn planned(words: &str, machine: &Machine) -> Result<Plan, String> {
    let words = words.split_whitespace().map(OsString::from).collect();
    let Ok(Typed::Run(request)) = parse(OsStr::new("scela-run"), words, &|_| panic!("no test reads a configfile"))
    else {
        panic!("not a session");
    };
    let mut plan = crate::plan::plan(&request, machine, &crate::cluster::node_list::NodeList::HERE).unwrap();
    let (session, commands) = (&plan.settings.session, &plan.settings.first.commands);
    let users_of = |command| mpi_users(session, command, SEARCH_TIME).expect("this file system answers");
    let users: Vec<_> = commands.iter().map(users_of).collect();
    provide(&mut plan, machine, &users).map_err(|error| error.with_hint())?;
    Ok(plan)
}

/// Returns the variables that are set for each command's ranks.
fn provided(words: &str, machine: &Machine) -> Result<Vec<Vec<String>>, String> {
    let plan = planned(words, machine)?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let set = |command: &CommandPlan| {
        command.set.iter().map(|(name, value)| format!("{}={}", text(name), text(value))).collect()
    };
    Ok(plan.settings.first.commands.iter().map(set).collect())
}

/// Creates a directory with libraries of these names.
fn installed(names: &[&str]) -> tempfile::TempDir {
    let place = tempfile::tempdir().unwrap();
    for name in names {
        let path = place.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        // No shared library is at hand in unit tests, but any program's ELF file passes for one.
        fs::copy(std::env::current_exe().unwrap(), path).unwrap();
    }
    place
}

#[test]
fn only_open_mpi_programs_get_variables() {
    let place = installed(&["lib/libpmi.so.0"]);
    let machine = machine(&place.path().join("bin/scela-run"), &[("PATH", OsStr::new("/bin"))]);
    for words in ["sh : /nonexistent", "--mpi auto sh : sh", "--mpi none sh : sh"] {
        assert_eq!(provided(words, &machine).unwrap(), [[""; 0]; 2], "{words}");
    }
    let expected =
        ["FLUX_JOB_ID=2290616456", &format!("FLUX_PMI_LIBRARY_PATH={}/lib/libpmi.so.0", place.path().display())];
    assert_eq!(provided("--mpi openmpi sh : sh", &machine).unwrap(), [expected, expected]);
}

#[test]
fn ranks_of_open_mpi_share_a_session_where_they_share_cores() {
    let place = installed(&["libpmi.so.0"]);
    let machine = machine(&place.path().join("scela-run"), &[("PATH", OsStr::new("/bin"))]);
    let sessions = |words: &str| planned(words, &machine).unwrap().settings.session.rank_sessions;
    assert_eq!(sessions("sh"), RankSessions::All);
    assert_eq!(sessions("--mpi openmpi sh"), RankSessions::Unshared);
    assert_eq!(sessions("--mpi openmpi --no-rank-sessions sh"), RankSessions::None);
}

#[test]
fn nodes_on_one_host_do_not_share_memory() {
    let place = installed(&["libpmi.so.0"]);
    let scela_run = place.path().join("scela-run");
    let btl = |words: &str, environment: &[(&str, &OsStr)]| -> Vec<String> {
        let set = provided(words, &machine(&scela_run, environment)).unwrap().remove(0);
        set.into_iter().filter(|set| set.starts_with("OMPI_")).collect()
    };
    assert_eq!(btl("--mpi openmpi sh", &[]), [""; 0]);
    assert_eq!(btl("--mpi openmpi --agents-as-nodes sh", &[]), ["OMPI_MCA_btl=tcp,self"]);
    assert_eq!(btl("--agents-as-nodes sh", &[]), [""; 0]);
    let chosen = [("OMPI_MCA_btl", OsStr::new("self,vader"))];
    assert_eq!(btl("--mpi openmpi --agents-as-nodes sh", &chosen), [""; 0], "the user's value is inherited");
    assert_eq!(
        btl("--mpi openmpi --agents-as-nodes -genv OMPI_MCA_btl self sh", &[]),
        ["OMPI_MCA_btl=tcp,self", "OMPI_MCA_btl=self"],
        "the user's value comes last and wins"
    );
}

/// If a variable is set twice, the last value wins.
#[test]
fn values_of_the_user_win() {
    let place = installed(&["libpmi.so"]);
    let machine = machine(&place.path().join("scela-run"), &[]);
    let set = provided("--mpi openmpi -genv FLUX_JOB_ID 7 -env FLUX_PMI_LIBRARY_PATH /x sh", &machine).unwrap();
    assert_eq!(set[0].len(), 4);
    assert_eq!(set[0][2..], ["FLUX_JOB_ID=7", "FLUX_PMI_LIBRARY_PATH=/x"]);
}

#[test]
fn the_library_is_found_beside_the_program() {
    let places = ["bin/libpmi.so.0", "bin/libpmi.so", "lib/libpmi.so.0", "lib/libpmi.so", "lib64/libpmi.so.0"];
    let multiarch = format!("lib/{}-linux-gnu/libpmi.so.0", std::env::consts::ARCH);
    let all: Vec<PathBuf> =
        places.into_iter().chain([&*multiarch]).map(|place| Path::new("/opt").join(place)).collect();
    for first in 0..all.len() {
        let found = find_libpmi(Path::new("/opt/bin/scela-run"), &|path| all[first..].iter().any(|file| file == path));
        assert_eq!(found.as_ref(), Ok(&all[first]));
    }
}

#[test]
fn files_that_are_not_scelas_libpmi_are_skipped() {
    let place = installed(&["lib64/libpmi.so"]);
    for name in ["libpmi.so.0", "lib/libpmi.so"] {
        fs::create_dir_all(place.path().join("lib")).unwrap();
        fs::write(place.path().join(name), "not a library").unwrap();
    }
    let found = find_libpmi(&place.path().join("bin/scela-run"), &is_own_libpmi);
    assert_eq!(found, Ok(place.path().join("lib64/libpmi.so")));
}

#[test]
fn a_missing_library_is_reported_with_the_searched_directories() {
    let multiarch = format!("/opt/none/lib/{}-linux-gnu", std::env::consts::ARCH);
    assert_eq!(
        provided("--mpi openmpi ./solver", &machine(Path::new("/opt/none/bin/scela-run"), &[])).unwrap_err(),
        format!(
            "'./solver' is to run with Open MPI, which needs ScELA's libpmi.so, and that was not found\n  \
             looked for libpmi.so.0 and libpmi.so in /opt/none/bin, /opt/none/lib, /opt/none/lib64, {multiarch}\n  \
             hint: install it beside scela-run or in ../lib, or name it in SCELA_PMI_LIBRARY; \
             '--mpi none' starts the ranks without it"
        )
    );
}

#[test]
fn the_variable_names_the_library() {
    let place = installed(&["libpmi.so.0", "elsewhere/mine.so"]);
    let named = place.path().join("elsewhere/mine.so");
    let scela_run = place.path().join("scela-run");
    let with = |value: &OsStr| provided("--mpi openmpi sh", &machine(&scela_run, &[(LIBRARY_VARIABLE, value)]));
    assert_eq!(with(named.as_os_str()).unwrap()[0][1], format!("FLUX_PMI_LIBRARY_PATH={}", named.display()));
    let relative = named.strip_prefix("/").unwrap();
    assert_eq!(with(relative.as_os_str()).unwrap()[0][1], format!("FLUX_PMI_LIBRARY_PATH={}", named.display()));
    assert!(with(OsStr::new("")).unwrap()[0][1].ends_with("/libpmi.so.0"), "an empty value counts as unset");
    assert_eq!(
        with(OsStr::new("/opt/none/libpmi.so")).unwrap_err(),
        "SCELA_PMI_LIBRARY names '/opt/none/libpmi.so', which is not a file\n  \
         hint: name ScELA's libpmi.so, or unset it"
    );
    assert!(ENVIRONMENT.iter().any(|(name, _)| *name == LIBRARY_VARIABLE), "--help lists the variable");
}

#[test]
fn old_and_new_open_mpi_are_distinguished() {
    let needs = |libraries: &[&str]| Needs {
        libraries: libraries.iter().map(|library| (*library).to_owned()).collect(),
        ..Needs::default()
    };
    let old = needs(&["libopen-rte.so.40", "libopen-pal.so.40", "libc.so.6"]);
    let new = needs(&["libopen-pal.so.80", "libpmix.so.2", "libc.so.6"]);
    let library = |name: &str| Library { name: name.to_owned(), ..Library::default() };
    let version = |program: &str, main_library: Option<&Needs>| {
        let main = main_library.map(|needs| Library {
            file: Some("/lib/libmpi.so.40".into()),
            needs: needs.clone(),
            ..library("libmpi.so.40")
        });
        version(
            &[Some(library("libpmi2.so.0")), main, Some(library(program))].into_iter().flatten().collect::<Vec<_>>(),
        )
    };
    for program in ["libmpi.so.40", "libmpi_mpifh.so.40", "libmpi_usempif08.so.40.30", "liboshmem.so.40"] {
        assert_eq!(version(program, Some(&old)), Some(OpenMpi::ThroughPmi), "{program}");
        assert_eq!(version(program, Some(&new)), Some(OpenMpi::ThroughPmix), "{program}");
        assert_eq!(version(program, None), Some(OpenMpi::ThroughPmi), "{program}");
    }
    for program in ["libmpi.so.12", "libmpi.so.20", "libmpich.so.12", "libopen-rte.so.40", "libmpi.so.4"] {
        assert_eq!(version(program, None), None, "{program}");
    }
}

fn user_of_libpmi(needs: &Needs, is_certain: bool) -> MpiUser {
    let library = Library { name: "libpmi.so.0".to_owned(), needs: needs.clone(), ..Library::default() };
    MpiUser { file: "/opt/solver".into(), is_certain, libraries: vec![library], ..MpiUser::default() }
}

/// The loader would split it.
#[test]
fn a_libpmi_whose_path_has_a_blank_or_a_colon_is_refused() {
    let place = installed(&["a b/libpmi.so", "a:b/libpmi.so"]);
    let slurm = Needs { libraries: vec!["libslurm_pmi.so.40".to_owned()], ..Needs::default() };
    for name in ["a b", "a:b"] {
        let machine = machine(&place.path().join(name).join("scela-run"), &[]);
        let replaced = |is_certain| {
            let mut plan = planned("sh", &machine).unwrap();
            let result = replace_slurm(&mut plan, &machine, &[vec![user_of_libpmi(&slurm, is_certain)]]);
            assert!(plan.settings.first.commands[0].set.is_empty());
            result.map(|()| plan.remarks).map_err(|refusal| refusal.with_hint())
        };
        let path = place.path().join(name).join("libpmi.so");
        let text = format!(
            "'sh' would load Slurm's libpmi.so, which talks to srun only: \
             LD_PRELOAD cannot name ScELA's '{}', which has a blank or a colon\n  \
             hint: name a copy of ScELA's libpmi.so in SCELA_PMI_LIBRARY; '--mpi none' starts the ranks without it",
            path.display()
        );
        assert_eq!(replaced(true), Err(text.clone()));
        let remark = format!("if the command uses '/opt/solver', it will not find scela-run: {text}");
        assert_eq!(replaced(false), Ok(vec![remark]));
    }
}

/// The script may not start it.
#[test]
fn a_possible_user_without_libpmi_gets_a_remark() {
    let machine = machine(Path::new("/opt/none/bin/scela-run"), &[]);
    let mut plan = planned("sh", &machine).unwrap();
    let library = Library { name: "libmpi.so.40".to_owned(), ..Library::default() };
    let user = MpiUser { file: "/opt/solver".into(), libraries: vec![library], ..MpiUser::default() };
    provide(&mut plan, &machine, &[vec![user]]).unwrap();
    let [remark] = &plan.remarks[..] else { panic!("{:?}", plan.remarks) };
    assert!(
        remark
            .starts_with("if the command uses '/opt/solver', it will not find scela-run: 'sh' is to run with Open MPI")
    );
}

/// The user's own libraries stay.
#[test]
fn slurms_libpmi_is_replaced() {
    let place = installed(&["libpmi.so"]);
    let own = place.path().join("libpmi.so");
    let scela_run = place.path().join("scela-run");
    let slurm = Needs { libraries: vec!["libslurm_pmi.so.40".to_owned()], ..Needs::default() };
    let user = |needs: &Needs| user_of_libpmi(needs, true);
    let set = |words: &str, environment: &[(&str, &OsStr)], needs: &Needs| {
        let machine = machine(&scela_run, environment);
        let mut plan = planned(words, &machine).unwrap();
        replace_slurm(&mut plan, &machine, &[vec![user(needs)]]).unwrap();
        let set = plan.settings.first.commands[0].set.iter().rfind(|(name, _)| name == PRELOAD.as_bytes());
        set.map(|(_, value)| String::from_utf8(value.clone()).unwrap())
    };
    assert_eq!(set("sh", &[], &slurm), Some(own.display().to_string()));
    let others = Some(format!("{}:/x.so", own.display()));
    assert_eq!(set("sh", &[(PRELOAD, OsStr::new("/x.so"))], &slurm), others);
    assert_eq!(set("-genv LD_PRELOAD /x.so sh", &[], &slurm), others);
    assert_eq!(set("--mpi none sh", &[], &slurm), None);
    assert_eq!(set("sh", &[], &Needs::default()), None, "another libpmi");
    fs::remove_file(&own).unwrap();
    assert_eq!(set("sh", &[], &slurm), None, "there is none");
}

#[test]
fn mpi_libraries_are_told_from_others() {
    for library in ["libmpi.so.12", "libmpich.so.12", "libmpifort.so.12", "libmpi_cray.so.12", "libmpi_usempif08.so.40"]
    {
        assert!(is_mpi(library), "{library}");
    }
    for library in ["libmpir.so.23", "libpmi.so.0", "libpmix.so.2", "libm.so.6"] {
        assert!(!is_mpi(library), "{library}");
    }
}

/// Open MPI 4 failed in trials with 32768, 32769 and 2147483647, and worked with numbers like these.
#[test]
fn job_numbers_fit_open_mpi() {
    for session in [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff, 0x1_0000, u64::from(u32::MAX), 1 << 32, 1 << 47, u64::MAX] {
        let job = job(session);
        assert_eq!(job & 0x8000, 0, "{session:#x} gives {job:#x}");
        assert_ne!(job & 0x7fff, 0, "{session:#x} gives {job:#x}");
    }
    assert_eq!(job(0x1234_5678_9abc_def0), 0x8888_0888);
    let distinct: std::collections::BTreeSet<u32> = (0..10_000).map(|session| job(session << 16 | 1)).collect();
    assert_eq!(distinct.len(), 10_000);
}
