//! The one program of ScELA: launcher, agent and guardian.
//!
//! Which of them a process is, the name that it was called by says: `scela-agent` and `scela-guard` are started by the
//! launcher only; under any other name it is `scela-run`.

#![forbid(unsafe_code)]

use std::ffi::{CString, OsString};
use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use launcher::cli::{self, Typed};
use launcher::plan::{self, Machine};
use launcher::session::{self, Secrets};
use launcher::{demo, exit, mpi, simulate};
use nla::sys;
use nla::wire::SessionKey;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_default();
    let arguments: Vec<OsString> = arguments.collect();
    match name.as_bytes() {
        b"scela-guard" => guard(&arguments),
        b"scela-agent" => {
            // Nobody reads what an agent says, unless somebody looks for a fault.
            if std::env::var_os("SCELA_LOG").is_some() {
                trace();
            }
            nla::driver::run_agent()
        }
        _ if arguments.len() == 1 && arguments[0] == demo::RANK_ARGUMENT => match sys::pmi_socket() {
            Ok(socket) => demo::run_rank(socket),
            Err(error) => fail(&error.to_string(), exit::USAGE),
        },
        _ => {
            trace();
            // A panic has said where it came from by then.
            catch_unwind(AssertUnwindSafe(|| launch(&name, arguments))).unwrap_or_else(|_| {
                fail("this is a bug of ScELA; please report it with what is written above", exit::BUG)
            })
        }
    }
}

/// The guardian of an agent. Its words: host, session, dead-time in milliseconds.
fn guard(words: &[OsString]) -> ExitCode {
    let [host, session, dead_ms] = words else {
        return fail("scela-guard is started by scela-run only", exit::USAGE);
    };
    let Some(dead_ms) = dead_ms.to_str().and_then(|ms| ms.parse().ok()) else {
        return fail("scela-guard is started by scela-run only", exit::USAGE);
    };
    let word = |word: &[u8]| CString::new(word).unwrap_or_default();
    let agent = vec![word(b"scela-agent"), word(host.as_bytes()), word(session.as_bytes())];
    sys::guardian::run(agent, Duration::from_millis(dead_ms))
}

fn launch(name: &OsString, arguments: Vec<OsString>) -> ExitCode {
    let read_file = |path: &Path| {
        let mut bytes = Vec::new();
        File::open(path)?.take(cli::CONFIGFILE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let request = match cli::parse(name, arguments, &read_file) {
        Ok(Typed::Run(request)) => *request,
        Ok(Typed::Simulate(options)) => {
            let code = simulate::run(&options, &mut io::stdout().lock(), &mut io::stderr().lock());
            return ExitCode::from(code);
        }
        Ok(Typed::Help(text) | Typed::Version(text)) => {
            // Nobody to tell if nobody reads.
            let _ = io::stdout().write_all(text.as_bytes());
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            let mut text = format!("{error}");
            let mut source = std::error::Error::source(&error);
            while let Some(cause) = source {
                text.push_str(&format!(": {cause}"));
                source = cause.source();
            }
            return fail(&format!("{text}\n  hint: {}", error.hint()), exit::USAGE);
        }
    };
    match prepare(request) {
        Ok(code) => code,
        Err(Trouble::Usage(text)) => fail(&text, exit::USAGE),
        Err(Trouble::Missing(text)) => fail(&text, exit::NOT_LAUNCHED),
        Err(Trouble::Machine(error)) => fail(&format!("the job could not be launched: {error}"), exit::NOT_LAUNCHED),
    }
}

enum Trouble {
    Usage(String),
    Missing(String),
    Machine(io::Error),
}

fn prepare(request: cli::Request) -> Result<ExitCode, Trouble> {
    let random = random().map_err(Trouble::Machine)?;
    let machine = machine(random.session).map_err(Trouble::Machine)?;
    let mut plan = plan::plan(request, &machine).map_err(|error| Trouble::Usage(error.to_string()))?;
    mpi::provide(&mut plan, &machine).map_err(|error| Trouble::Missing(error.to_string()))?;
    let secrets = Secrets { key: SessionKey(random.key), marker: random.marker };
    session::run(plan, random.session, secrets).map_err(Trouble::Machine)
}

struct Random {
    session: u64,
    key: [u8; 32],
    marker: [u8; 16],
}

fn random() -> io::Result<Random> {
    let mut source = File::open("/dev/urandom")?;
    let (mut session, mut key, mut marker) = ([0; 8], [0; 32], [0; 16]);
    source.read_exact(&mut session)?;
    source.read_exact(&mut key)?;
    source.read_exact(&mut marker)?;
    Ok(Random { session: u64::from_le_bytes(session), key, marker })
}

fn machine(session: u64) -> io::Result<Machine> {
    let stdin = io::stdin();
    Ok(Machine {
        environment: plan::environment_of_process(),
        wdir: std::env::current_dir()
            .map_err(|error| io::Error::other(format!("the working directory is gone: {error}")))?,
        program: std::env::current_exe()?,
        cores: u32::try_from(sys::cores()).unwrap_or(1).max(1),
        shell: sys::ShellState::recorded(),
        stdout_is_terminal: io::stdout().is_terminal(),
        stdin_in_background: launcher::session::is_background(stdin.as_fd()),
        session,
    })
}

fn fail(text: &str, code: u8) -> ExitCode {
    let _ = io::stderr().write_all(format!("scela-run: error: {text}\n").as_bytes());
    ExitCode::from(code)
}

fn trace() {
    let filter = std::env::var_os("SCELA_LOG").unwrap_or_else(|| "warn".into());
    let filter = tracing_subscriber::EnvFilter::new(filter.to_string_lossy());
    let subscriber =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).with_ansi(false).without_time();
    // Called once per process, before anything else could have set one.
    let _ = subscriber.try_init();
}
