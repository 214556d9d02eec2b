//! SimGrid's `smpirun`, which simulates the messages of a placement.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::time::{Duration, Instant};

use placement::batch::Experiment;
use placement::matrix::Matrix;
use placement::simgrid;

use crate::cluster::private_directory::PrivateDirectory;
use crate::cluster::system::answer_within;

/// The program, which is found in `PATH`.
const PROGRAM: &str = "smpirun";

/// How long the program may take to state its version.
const VERSION_TIME: Duration = Duration::from_secs(10);

/// The seconds that one simulation may take, and all of them.
const SIMULATION_S: u64 = 60;
const TOTAL_TIME: Duration = Duration::from_secs(180);

/// After the time of a simulation, `smpirun` has this long to end the program that it has started.
const END_TIME: Duration = Duration::from_secs(10);

/// The bytes that are read of the program's output, and of its log.
const OUTPUT_BYTES_MAX: usize = 64 << 10;

/// SimGrid on this machine, and the times that it has simulated.
#[derive(Debug)]
pub(super) struct SimGrid<'a> {
    experiment: &'a Experiment,
    matrix: &'a Matrix,
    trace: String,
    seconds_of: HashMap<Vec<u32>, f64>,
    began: Instant,
}

/// Returns SimGrid's name and version, or the reason why it is of no use here, a fragment.
pub(super) fn version() -> Result<String, String> {
    match answer_within(VERSION_TIME, &[PROGRAM, "-version"], OUTPUT_BYTES_MAX) {
        Ok(text) => Ok(named(&String::from_utf8_lossy(&text))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(format!("there is no {PROGRAM} in PATH (Debian: libsimgrid-dev)"))
        }
        Err(error) => Err(format!("{PROGRAM} -version: {error}")),
    }
}

/// Returns SimGrid's name by what the program says of its version.
fn named(text: &str) -> String {
    let version = text.lines().find_map(|line| line.strip_prefix("SimGrid version ")).unwrap_or_default();
    let version: String = version.chars().filter(|c| c.is_ascii_graphic()).take(20).collect();
    format!("SimGrid {version}").trim_end().to_owned()
}

impl<'a> SimGrid<'a> {
    /// Prepares the simulations of a job. The error is a fragment.
    pub(super) fn new(experiment: &'a Experiment, matrix: &'a Matrix) -> Result<Self, String> {
        let trace = simgrid::trace(matrix).ok_or("a message is longer than MPI can send")?;
        Ok(Self { experiment, matrix, trace, seconds_of: HashMap::new(), began: Instant::now() })
    }

    /// Returns the seconds that the messages of a placement take. Each placement is simulated once. The error is a fragment.
    pub(super) fn seconds(&mut self, place_of: &[u32]) -> Result<f64, String> {
        if let Some(seconds) = self.seconds_of.get(place_of) {
            return Ok(*seconds);
        }
        if self.began.elapsed() > TOTAL_TIME {
            return Err(format!("all simulations took more than {} s", TOTAL_TIME.as_secs()));
        }
        let seconds = self.simulate(place_of)?;
        self.seconds_of.insert(place_of.to_vec(), seconds);
        Ok(seconds)
    }

    fn simulate(&self, place_of: &[u32]) -> Result<f64, String> {
        let unwritten = |error: io::Error| format!("its files cannot be written: {error}");
        let directory = PrivateDirectory::create().map_err(unwritten)?;
        let path = directory.path().to_str().ok_or("the path of the temporary directory is not UTF-8")?;
        let [platform, hosts, trace, traces, log] =
            ["platform.xml", "hosts", "trace", "traces", "log"].map(|name| format!("{path}/{name}"));
        let Experiment { topology, bandwidth, latency_s, .. } = self.experiment;
        let files = [
            (&platform, &simgrid::platform(topology, self.matrix, place_of, *bandwidth, *latency_s)),
            (&hosts, &simgrid::hosts(place_of)),
            (&trace, &self.trace),
            (&traces, &format!("{trace}\n")),
        ];
        files.into_iter().try_for_each(|(file, text)| fs::write(file, text)).map_err(unwritten)?;
        let (ranks, variable) = (place_of.len().to_string(), format!("TMPDIR={path}"));
        let (seconds, log_to) = (SIMULATION_S.to_string(), format!("--log=smpi_replay.app:file:{log}"));
        // smpirun is a shell script: `timeout` sends it SIGTERM, on which it ends the program that it has started.
        let command = [
            &["env", &variable, "timeout", "--foreground", "--kill-after=5", &seconds, PROGRAM][..],
            &["-np", &ranks, "-platform", &platform, "-hostfile", &hosts, "-no-privatize", "-replay", &traces],
            &["--log=root.thresh:error", "--log=smpi_replay.thresh:info", &log_to],
        ]
        .concat();
        let limit = Duration::from_secs(SIMULATION_S);
        let began = Instant::now();
        let outcome = answer_within(limit + END_TIME, &command, OUTPUT_BYTES_MAX);
        if let Err(error) = &outcome {
            let late = format!("{PROGRAM} took more than {SIMULATION_S} s");
            return Err(if began.elapsed() >= limit { late } else { format!("{PROGRAM}: {error}") });
        }
        if outcome.is_ok_and(|printed| printed.len() > OUTPUT_BYTES_MAX) {
            return Err(format!("{PROGRAM} printed more than {} KiB", OUTPUT_BYTES_MAX >> 10));
        }
        let mut text = String::new();
        let read = File::open(&log).and_then(|file| file.take(OUTPUT_BYTES_MAX as u64).read_to_string(&mut text));
        read.map_err(|error| format!("{PROGRAM} wrote no log: {error}"))?;
        simgrid::seconds(&text).ok_or_else(|| format!("{PROGRAM} stated no time"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_named() {
        assert_eq!(named("SimGrid version 3.32\n"), "SimGrid 3.32");
        assert_eq!(named("SimGrid version 4\u{1b}[2J\n"), "SimGrid 4[2J");
        assert_eq!(named("what?"), "SimGrid");
    }
}
