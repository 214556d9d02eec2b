//! Controllers whose files are removed.

use std::sync::mpsc;
use std::{fs, thread};

use super::*;

/// Longer than a controller takes to look at its files for the first time, and shorter than until it looks again.
const DEADLINE: Duration = Duration::from_secs(20);

#[test]
fn a_controller_without_one_of_its_files_ends() {
    for lost in ["p.sock", "p.lock"] {
        let above = tempfile::tempdir().unwrap();
        let directory = above.path().join("pools");
        let place = directory::take(std::slice::from_ref(&directory), "p").unwrap().expect("the name is free");
        let [forks, served] = Packets::pair().unwrap();
        let setup = Setup {
            place,
            forks,
            nodes: vec![Node::new("here", 1, Health::Up)],
            network: None,
            fleet: None,
            starter: Starter(tempfile::tempfile().unwrap()),
            lifetime: Lifetime::default(),
        };
        fs::remove_file(directory.join(lost)).unwrap();
        let (ended, ends) = mpsc::channel();
        thread::spawn(move || ended.send(Controller::new(setup).run().is_ok()));
        assert_eq!(ends.recv_timeout(DEADLINE), Ok(true), "without {lost}");
        drop(served);
    }
}
