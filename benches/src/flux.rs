//! An instance of Flux on this machine, in which `flux run` starts jobs.
//!
//! It has several brokers, each with a host name of its own, because the time that one broker's shell takes grows with the
//! square of its number of ranks.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use tests::{Capture, event_timeout, eventually};

/// A running instance. Dropping it ends the instance.
#[derive(Debug)]
pub struct Flux {
    instance: Child,
    uri: String,
}

impl Flux {
    /// Starts an instance of `brokers` brokers whose files are in `directory`, which must not exist.
    ///
    /// # Errors
    /// If it does not start; the text is the reason.
    pub fn start(flux: &Path, directory: &Path, brokers: u32) -> Result<Self, String> {
        let complaints = directory.join("complaints");
        let started = fs::create_dir(directory).and_then(|()| spawn(flux, directory, brokers, &complaints));
        let mut instance = started.map_err(|error| format!("cannot start an instance: {error}"))?;
        let said = Capture::of(instance.stdout.take().expect("its output is a pipe"));
        let is_said = said.wait(event_timeout(), |said| said.ends_with('\n'));
        let flux = Self { instance, uri: said.text().trim().to_owned() };
        if is_said {
            return Ok(flux);
        }
        let complaint = fs::read_to_string(&complaints).unwrap_or_default();
        Err(format!("its instance does not start: {}", complaint.lines().next().unwrap_or("no reason is given")))
    }

    /// Returns the variables with which a command of Flux finds the instance.
    #[must_use]
    pub fn environment(&self) -> Vec<(OsString, OsString)> {
        vec![("FLUX_URI".into(), self.uri.clone().into())]
    }
}

fn spawn(flux: &Path, directory: &Path, brokers: u32, complaints: &Path) -> io::Result<Child> {
    let hosts = format!("node[0-{}]", brokers - 1);
    // Flux starts no more ranks than there are cores. So each host is said to have many. Validators of jobs would be
    // processes that come and go beside the runs.
    let configuration = format!(
        "[resource]\nnoverify = true\n[[resource.config]]\nhosts = \"{hosts}\"\ncores = \"0-{}\"\n\
         [ingest.validator]\ndisable = true\n",
        CORES - 1
    );
    let file = directory.join("flux.toml");
    fs::write(&file, configuration)?;
    // The initial program of an instance tells where the instance is, and ends with its standard input.
    Command::new(flux)
        .arg("start")
        .arg(format!("--config-path={}", file.display()))
        .arg(format!("--test-size={brokers}"))
        .arg(format!("--test-hosts={hosts}"))
        .args(["sh", "-c", "echo \"$FLUX_URI\" && exec cat"])
        .env("TMPDIR", directory)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(File::create(complaints)?)
        .process_group(0)
        .spawn()
}

impl Drop for Flux {
    fn drop(&mut self) {
        drop(self.instance.stdin.take());
        // An error means that it was reaped already.
        let has_ended = eventually(|| (!matches!(self.instance.try_wait(), Ok(None))).then_some(()));
        if has_ended.is_none() {
            let _ = self.instance.kill();
            let _ = self.instance.wait();
        }
    }
}

/// More cores than ranks of any job on one host.
const CORES: u32 = 4096;
