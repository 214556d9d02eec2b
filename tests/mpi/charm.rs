//! charm4py, whose own launcher starts its processes by `scela-run` as by any mpiexec. They use no PMI; CCS is Charm++'s
//! protocol for clients.

use std::fs;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tests::{Run, Running, event_timeout, quote, scela, scela_run, skip};

use crate::library::{program, wheels};

const PROCESSORS: u32 = 4;
/// The text that charmrun prints before the port at which it accepts requests of CCS clients.
const PORT: &str = "Server port = ";

/// Begins a run of `reduce.py`: charmrun with these options runs `scela-run` with those of `configure`.
fn charmrun(configure: impl Fn(Run) -> Run, options: &str, argument: &str) -> Option<Run> {
    let charmrun = wheels().join("bin/charmrun");
    if !charmrun.is_file() {
        skip(&format!("there is no {}; ./tests/run installs charm4py", charmrun.display()));
        return None;
    }
    let run = configure(scela());
    // charmrun leaves a script in its working directory.
    let directory = run.world().file("charm");
    fs::create_dir(&directory).expect("the directory of a run can be written");
    let quoted = |path: &Path| quote(path.to_str().expect("the paths of tests are in UTF-8"));
    let (charmrun, script) = (quoted(&charmrun), quoted(&program("reduce.py")));
    // The words are those of scela-run.
    let command = format!("exec {charmrun} +p{PROCESSORS} ++mpiexec {options} {script} {argument}");
    Some(run.directory(directory).shell(&command))
}

/// Asks charmrun, at this port of this machine, for a handler of a processor. Returns the integers of the answer.
fn ask(port: u16, handler: &str, processor: i32) -> io::Result<Vec<i32>> {
    const HANDLER_BYTES: usize = 32;
    let mut name = handler.as_bytes().to_vec();
    name.resize(HANDLER_BYTES, 0);
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(event_timeout()))?;
    // All integers are big-endian. The first one is the number of bytes after the name.
    stream.write_all(&[&0_i32.to_be_bytes()[..], &processor.to_be_bytes(), &name].concat())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let (integers, _) = answer.as_chunks();
    Ok(integers.iter().copied().map(i32::from_be_bytes).collect())
}

/// Starts a program that waits for clients, and returns the port of charmrun.
fn start_server() -> Option<(Running, u16)> {
    let run = charmrun(|run| run.agents(2), &format!("++server {WITH_OPTIONS}"), "serve")?;
    let running = run.spawn();
    running.wait_for("sum 6\n");
    let said = running.stdout().text();
    let port = said.split_once(PORT).and_then(|(_, port)| port.split_whitespace().next()?.parse().ok());
    let port = port.unwrap_or_else(|| running.fail("charmrun prints no port"));
    Some((running, port))
}

/// charmrun splits the value at blanks.
const WITH_OPTIONS: &str = "++remote-shell \"$*\"";

#[test]
fn charm4py_runs_over_agents() {
    for agents in [1, 2, 4] {
        let Some(run) = charmrun(|run| run.agents(agents), WITH_OPTIONS, "") else { return };
        // charmrun does not wait for scela-run, whose ranks wait for a second.
        let outcome = run.spawn().finish_killed();
        outcome.is_quiet_success().wrote_among_others("4 processors on 1 hosts: sum 6\n");
    }
}

/// Without a name, charmrun looks for mpiexec.
#[test]
fn charm4py_runs_under_the_name_mpiexec() {
    let link = |run: Run| {
        let link = run.world().file("mpiexec");
        std::os::unix::fs::symlink(scela_run(), &link).expect("the directory of a run can be written");
        let path = std::env::var("PATH").unwrap_or_default();
        let directory = link.parent().expect("it has a directory").display();
        run.env("PATH", format!("{directory}:{path}"))
    };
    let Some(run) = charmrun(link, "", "") else { return };
    run.spawn().finish_killed().is_quiet_success().wrote_among_others("4 processors on 1 hosts: sum 6\n");
}

#[test]
fn clients_of_ccs_are_answered() {
    let Some((running, port)) = start_server() else { return };
    for processor in [0, 3] {
        // The number of bytes, the number of processes, and the number of processors of each.
        assert_eq!(ask(port, "ccs_getinfo", processor).expect("an answer"), [20, 4, 1, 1, 1, 1]);
    }
    // As Ctrl-C does: to charmrun and to scela-run.
    killpg(Pid::from_raw(running.launcher().group), Signal::SIGINT).expect("the group of a run in progress");
    running.finish_killed();
}

#[test]
fn a_lost_processor_ends_the_program() {
    let Some((running, port)) = start_server() else { return };
    assert!(ask(port, "ccs_killpe", 2).expect("the end of the connection").is_empty());
    let outcome = running.finish_killed();
    outcome.has_code(1).says("error on request socket to node 2 ").took_less_than(Duration::from_secs(30));
}
