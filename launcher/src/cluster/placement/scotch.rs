//! Asks Scotch's program `scotch_gmap` for a mapping, where it is installed.
//!
//! Its library is not loaded: foreign code that ends the process at an error would end the launcher. The program gets two
//! files in a private directory and [a little time](crate::cluster::system::System::answer_soon), and its answer is checked.

use std::fs;
use std::io;

use placement::graph::Graph;
use placement::mapping::Job;
use placement::scotch::{MAP_BYTES_PER_RANK, fitted, parse, source, target};

use crate::cluster::private_directory::PrivateDirectory;
use crate::cluster::system::{Process, System};

/// The program. Option -Cf fixes its seed, so that a job gets the same placement each time; -cb lets it balance slots.
const COMMAND: [&str; 3] = ["scotch_gmap", "-Cf", "-cb"];

/// Returns the host of each rank as Scotch maps the job. `Ok(None)` if Scotch is not installed, or does not map such jobs; the
/// error is the reason why it gave no mapping.
pub fn ask(job: &Job<'_>) -> Result<Option<Vec<u32>>, String> {
    let Some(target) = target(job) else { return Ok(None) };
    let ranks = job.matrix.ranks();
    let answer = run(&source(&Graph::of(job.matrix)), &target, ranks);
    match answer {
        Ok(text) => {
            let host_of = parse(&text, ranks, job.capacities.len()).ok_or("its mapping is not whole")?;
            Ok(Some(fitted(job, host_of)))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

/// Runs the program on two files. Returns what it prints.
fn run(source: &str, target: &str, ranks: u32) -> io::Result<String> {
    let directory = PrivateDirectory::create()?;
    let write = |name: &str, text: &str| {
        let path = directory.path().join(name);
        fs::write(&path, text)?;
        path.into_os_string().into_string().map_err(|_| io::Error::other("the directory for files is not UTF-8"))
    };
    let (source, target) = (write("graph", source)?, write("hosts", target)?);
    let command: Vec<&str> = COMMAND.into_iter().chain([&*source, &*target, "-"]).collect();
    let bytes_max = MAP_BYTES_PER_RANK * (ranks as usize + 1);
    let bytes = Process { environment: &[] }.answer_soon(&command, bytes_max)?;
    if bytes.len() > bytes_max {
        return Err(io::Error::other("it printed too much"));
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
