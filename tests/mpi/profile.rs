//! `--profile-comm` counts known patterns exactly under each MPI library, and Fortran's calls once; programs that it refuses.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::BufReader;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use placement::matrix::Matrix;
use tempfile::TempDir;
use tests::{Outcome, Run, scela, sh, skip};

use crate::library::{ALL, Library, debian_mpich, mpi_5_abi, open_mpi, python};

/// Bytes and messages by sender and receiver.
type Traffic = BTreeMap<(u32, u32), (u64, u64)>;

fn add(traffic: &mut Traffic, from: u32, to: u32, bytes: u64, messages: u64) {
    let sum = traffic.entry((from, to)).or_default();
    *sum = (sum.0 + bytes, sum.1 + messages);
}

/// Runs a program with a profile, and returns the profile's traffic and its remarks.
fn profile(run: Run) -> (Outcome, Traffic, Vec<String>) {
    let place = TempDir::new().expect("a directory for the profile");
    let file = place.path().join("p.comm");
    let outcome = run.arg("--profile-comm").arg(&file).run();
    let matrix = Matrix::read(BufReader::new(File::open(&file).expect("the profile is written")));
    let matrix = matrix.expect("the profile has its format");
    let traffic = matrix.pairs().iter().map(|pair| ((pair.from, pair.to), (pair.traffic.bytes, pair.traffic.messages)));
    (outcome, traffic.collect(), matrix.remarks().to_vec())
}

/// Asserts that a run was quiet and sent this.
#[track_caller]
fn check(name: &str, run: Run, expected: &Traffic) {
    let (outcome, found, _) = profile(run);
    outcome.has_code(0);
    let differences: Vec<_> = found
        .keys()
        .chain(expected.keys())
        .filter(|pair| found.get(pair) != expected.get(pair))
        .map(|pair| format!("{pair:?}: {:?}, not {:?}", found.get(pair), expected.get(pair)))
        .collect();
    assert!(differences.is_empty(), "{name}: {differences:#?}\n{}", outcome.err());
}

/// The traffic of `patterns.c ring halo transpose random groups`.
fn patterns(size: u32) -> Traffic {
    let mut all = Traffic::new();
    for rank in 0..size {
        // The ring, and its barrier.
        add(&mut all, rank, (rank + 1) % size, 1100, 11);
        (0..32).map(|round| 1 << round).take_while(|distance| *distance < size).for_each(|distance| {
            add(&mut all, rank, (rank + distance) % size, 0, 1);
        });
    }
    halo(&mut all, size);
    transpose(&mut all, size);
    random(&mut all, size);
    (0..size / 2).for_each(|rank| add(&mut all, rank, rank + size / 2, 7, 1));
    all
}

/// All libraries make 8 x 8 of 64 ranks; the first dimension is the outer one.
fn halo(all: &mut Traffic, size: u32) {
    let columns = size.isqrt();
    for rank in 0..size {
        let (row, column) = (rank / columns, rank % columns);
        let neighbours = [
            (row > 0).then(|| rank - columns),
            (row + 1 < size / columns).then(|| rank + columns),
            (column > 0).then(|| rank - 1),
            (column + 1 < columns).then(|| rank + 1),
        ];
        neighbours.into_iter().flatten().for_each(|to| add(all, rank, to, 2 * 64, 2));
    }
}

fn transpose(all: &mut Traffic, size: u32) {
    let columns = size.isqrt();
    for (from, to) in (0..size).flat_map(|from| (0..size).map(move |to| (from, to))) {
        for round in (0..3).filter(|round| (from + round) % columns == (to + round) % columns) {
            add(all, from, to, 10 + u64::from(round), 1);
        }
    }
}

fn random(all: &mut Traffic, size: u32) {
    let mut state = 7_u32;
    let mut next = |bound: u32| {
        state = state.wrapping_mul(1_103_515_245).wrapping_add(12345);
        (state >> 16) % bound
    };
    for _ in 0..20 * size {
        let (from, to, bytes) = (next(size), next(size), next(1000));
        add(all, from, to, bytes.into(), 1);
    }
    (1..size).for_each(|other| add(all, other, 0, 48, 1));
}

/// A run of 64 ranks in each library, in which the program sends by all functions of MPI that the patterns have.
#[test]
fn known_patterns_are_counted_exactly() {
    for library in ALL.into_iter().chain([mpi_5_abi as fn() -> Option<Library>]) {
        let Some(mpi) = library() else { continue };
        let program = mpi.c("patterns", &["ring", "halo", "transpose", "random", "groups"]);
        check(mpi.name(), mpi.scela_on_one_node(4).np(64).program(program), &patterns(64));
    }
}

/// Computed by hand from the schedules of docs/profiling.md.
const COLLECTIVES: [(u32, u32, u64, u64); 12] = [
    (0, 1, 2103, 12),
    (0, 2, 2093, 6),
    (0, 3, 8, 2),
    (1, 0, 129, 5),
    (1, 2, 1021, 10),
    (1, 3, 1085, 5),
    (2, 0, 133, 6),
    (2, 1, 8, 2),
    (2, 3, 2104, 12),
    (3, 0, 1023, 10),
    (3, 1, 85, 4),
    (3, 2, 129, 5),
];

#[test]
fn collectives_are_counted_by_their_schedules() {
    let mut expected = Traffic::new();
    COLLECTIVES.into_iter().for_each(|(from, to, bytes, messages)| add(&mut expected, from, to, bytes, messages));
    for library in ALL.into_iter().chain([mpi_5_abi as fn() -> Option<Library>]) {
        let Some(mpi) = library() else { continue };
        let run = || mpi.scela_on_one_node(2).np(4).program(mpi.c("patterns", &["collectives"]));
        check(mpi.name(), run(), &expected);
    }
    let Some(mpi) = debian_mpich() else { return };
    let without = mpi.scela().np(4).arg("--profile-comm-collectives").arg("none");
    let (outcome, found, remarks) = profile(without.program(mpi.c("patterns", &["collectives"])));
    outcome.is_quiet_success();
    assert!(found.is_empty(), "{found:?}");
    assert_eq!(remarks[1], "collectives are not counted");
}

/// By the names of mpif.h and by those of mpi_f08. In MPICH and in Open MPI one function of MPI calls another.
#[test]
fn calls_of_fortran_are_counted_once() {
    let mut expected = Traffic::new();
    for rank in 0..4 {
        add(&mut expected, rank, (rank + 1) % 4, 10 + 12 + 3 * 8 + 7 + 4, 7);
        add(&mut expected, rank, rank, 20, 1);
        (1..4).for_each(|distance| add(&mut expected, rank, (rank + distance) % 4, 4, 1));
        (1..3).for_each(|distance| add(&mut expected, rank, (rank + distance) % 4, 0, 1));
    }
    for library in [debian_mpich, open_mpi] {
        let Some(mpi) = library() else { continue };
        match mpi.fortran("fortran") {
            Some(program) => check(mpi.name(), mpi.scela().np(4).program(program), &expected),
            None => skip("there is no Fortran compiler for this library"),
        }
    }
}

/// Python loads MPI where LD_PRELOAD's library does not look by itself.
#[test]
fn programs_that_load_mpi_late_are_profiled() {
    let Some(mpi) = crate::library::pypi_mpich() else { return };
    let script = "from mpi4py import MPI; c = MPI.COMM_WORLD; c.Send(bytearray(9), (c.rank + 1) % 2) if c.rank == 0 \
                  else c.Recv(bytearray(9), 0)";
    let expected = Traffic::from([((0, 1), (9, 1))]);
    check(
        mpi.name(),
        mpi.scela().np(2).arg("--profile-comm-collectives").arg("none").program(python(&["-c", script])),
        &expected,
    );
}

#[test]
fn a_rank_without_a_profile_is_named_and_the_rest_is_written() {
    for library in [debian_mpich, open_mpi] {
        let Some(mpi) = library() else { continue };
        let (outcome, found, remarks) = profile(mpi.scela().np(4).program(mpi.c("patterns", &["ring", "2"])));
        outcome.has_code(1).says("error: rank 2 on ").says("warning: rank 2 has written no communication profile");
        assert!(found.contains_key(&(0, 1)) && found.keys().all(|(from, _)| *from != 2), "{found:?}");
        assert!(remarks.contains(&"without a profile: 2".to_owned()), "{remarks:?}");
    }
}

#[test]
fn a_program_without_mpi_has_no_profile() {
    let place = TempDir::new().expect("a directory for the profile");
    let file = place.path().join("p.comm");
    let outcome = scela().np(3).arg("--profile-comm").arg(&file).program(sh("exit 0")).run();
    outcome.has_code(0).says("warning: no rank has written a communication profile");
    assert!(!file.exists(), "a profile of no rank is not kept");
}

#[test]
fn static_and_setuid_programs_are_refused() {
    let place = TempDir::new().expect("a directory for programs");
    let source = place.path().join("a.c");
    fs::write(&source, "int main(void) { return 0; }").expect("it can be written");
    let program = |name: &str, option: &[&str]| {
        let built = place.path().join(name);
        let done = Command::new("gcc").args(option).arg("-o").args([&built, &source]).status();
        assert!(done.is_ok_and(|status| status.success()));
        built
    };
    let refused = |program: &Path| {
        let run = scela().np(2).arg("--profile-comm").arg(place.path().join("p.comm"));
        run.program(vec![program.into()]).run()
    };
    refused(&program("static", &["-static"])).has_code(2).says("is linked statically");
    let setuid = program("setuid", &[]);
    if !nix::unistd::geteuid().is_root() {
        return skip("only root can give a file to another user");
    }
    nix::unistd::chown(&setuid, Some(nix::unistd::Uid::from_raw(65534)), None).expect("root may do so");
    fs::set_permissions(&setuid, fs::Permissions::from_mode(0o4755)).expect("it is ours");
    refused(&setuid).has_code(2).says("it is setuid or setgid, so the dynamic loader ignores LD_PRELOAD");
}

/// Two programs of the user's with their own LD_PRELOAD keep it.
#[test]
fn the_users_own_preload_is_kept() {
    let Some(mpi) = debian_mpich() else { return };
    let place = TempDir::new().expect("a directory for a library");
    let (source, library) = (place.path().join("a.c"), place.path().join("liba.so"));
    fs::write(
        &source,
        "#include <unistd.h>\n__attribute__((constructor)) static void f(void) { write(1, \"own\\n\", 4); }",
    )
    .expect("it can be written");
    let done = Command::new("gcc").args(["-shared", "-fPIC", "-w", "-o"]).args([&library, &source]).status();
    assert!(done.is_ok_and(|status| status.success()));
    let run = mpi.scela().np(2).args(["-genv", "LD_PRELOAD"]).arg(&library).program(mpi.c("patterns", &["ring"]));
    let (outcome, found, _) = profile(run);
    outcome.is_quiet_success().wrote("own\nown\n");
    assert_eq!(found[&(0, 1)], (1100, 12));
}
