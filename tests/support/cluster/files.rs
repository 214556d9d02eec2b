//! The files of a cluster: those that all hosts share, and those that each host has of its own.

use std::collections::BTreeSet;
use std::fmt::{Display, Write as _};
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::unistd::{Uid, User};
use tempfile::TempDir;

/// The file to which each host's sshd writes its pid.
pub(super) const SSHD_PID: &str = "/run/sshd.pid";
/// The key of all hosts and the key of the user.
const KEYS: [&str; 2] = ["host_key", "user_key"];

/// A directory of this machine with all files of a cluster. Removed when this value is dropped.
#[derive(Debug)]
pub(super) struct Files {
    directory: TempDir,
    /// The directory that a shell finds as `~`. ssh takes it from the passwd file.
    home: PathBuf,
    kept: BTreeSet<PathBuf>,
}

impl Files {
    /// Creates the files for these hosts. `sshd` and `kept` are as in [`super::Builder`].
    pub(super) fn new<'a>(
        hosts: impl Iterator<Item = (&'a str, Ipv4Addr)> + Clone,
        sshd: &[String],
        kept: &[PathBuf],
    ) -> Self {
        let directory = tempfile::Builder::new().prefix("cluster-").tempdir().expect("a temporary directory");
        let home = User::from_uid(Uid::effective()).ok().flatten().expect("this user is in the list of users").dir;
        let mut files = Self { directory, home, kept: BTreeSet::new() };
        fs::create_dir_all(files.shared()).expect("a directory of the cluster can be made");
        files.kept = outermost(kept.iter().cloned().chain(needed()).chain([files.common()]));
        for key in KEYS {
            let made = Command::new("ssh-keygen")
                .args(["-q", "-t", "ed25519", "-N", "", "-f"])
                .arg(files.in_common(key))
                .output();
            let made = made.expect("ssh-keygen can be started");
            assert!(made.status.success(), "ssh-keygen failed: {}", String::from_utf8_lossy(&made.stderr));
        }
        let names: Vec<_> = hosts.clone().map(|(name, _)| name).collect();
        write(&files.in_common("hosts"), &addresses(hosts));
        // Resolve names from files only, so that a lookup of an unknown name fails at once.
        write(&files.in_common("nsswitch.conf"), "passwd: files\ngroup: files\nshadow: files\nhosts: files\n");
        write(&files.in_common("sshd_config"), &files.sshd_config(sshd));
        // The first name is the front end.
        write(&files.host_file(), &names[1..].iter().map(|name| format!("{name}\n")).collect::<String>());
        for name in names {
            files.make_host(name);
        }
        files
    }

    /// Returns the directory with the files that all hosts see at the same path.
    pub(super) fn common(&self) -> PathBuf {
        self.directory.path().join("common")
    }

    /// Returns the directory that all hosts can also write to.
    pub(super) fn shared(&self) -> PathBuf {
        self.in_common("shared")
    }

    /// Returns the file with the names of all hosts but the front end, one per line.
    pub(super) fn host_file(&self) -> PathBuf {
        self.in_common("host_file")
    }

    fn in_common(&self, name: &str) -> PathBuf {
        self.common().join(name)
    }

    /// Returns the directory with the files of a host.
    pub(super) fn of_host(&self, name: &str) -> PathBuf {
        self.directory.path().join("hosts").join(name)
    }

    /// Returns the mounts of the host's own directories, one line "DIRECTORY PLACE" each.
    pub(super) fn covers(&self, host: &str, has_tmp: bool) -> String {
        let mut covers = vec![("home", self.home.clone()), ("shm", "/dev/shm".into()), ("run", "/run".into())];
        if has_tmp {
            covers.push(("tmp", "/tmp".into()));
        }
        // The mount that hides the directory of these files goes last.
        covers.sort_by_key(|(_, place)| self.directory.path().starts_with(place));
        let line = |(name, place): &(&str, PathBuf)| {
            format!("{} {}\n", self.of_host(host).join(name).display(), place.display())
        };
        covers.iter().map(line).collect()
    }

    /// Returns the directories that stay visible below these mounts, one per line.
    pub(super) fn kept(&self) -> String {
        self.kept.iter().map(|path| format!("{}\n", path.display())).collect()
    }

    /// Removes a name from the hosts file that all hosts read.
    pub(super) fn forget(common: &Path, name: &str) {
        let path = common.join("hosts");
        let text = fs::read_to_string(&path).expect("the list of names is there");
        let is_other = |line: &&str| line.split_whitespace().nth(1) != Some(name);
        // Write into the same file instead of replacing it: the hosts have bind mounts of this very file.
        write(&path, &text.lines().filter(is_other).map(|line| format!("{line}\n")).collect::<String>());
    }

    /// Adds a name to that file again.
    pub(super) fn remember(common: &Path, name: &str, address: impl Display) {
        let path = common.join("hosts");
        let text = fs::read_to_string(&path).expect("the list of names is there");
        write(&path, &format!("{text}{address} {name}\n"));
    }

    fn make_host(&self, name: &str) {
        let directory = self.of_host(name);
        for own in ["home/.ssh", "tmp", "run", "shm"] {
            fs::create_dir_all(directory.join(own)).expect("a directory of a host can be made");
        }
        let ssh = directory.join("home/.ssh");
        let copy = |from: &str, to: &str| {
            fs::copy(self.in_common(from), ssh.join(to)).expect("a key can be copied");
        };
        copy("user_key", "id_ed25519");
        copy("user_key.pub", "authorized_keys");
        let key = fs::read_to_string(self.in_common("host_key.pub")).expect("a key was made");
        write(&ssh.join("known_hosts"), &format!("* {key}"));
    }

    fn sshd_config(&self, first: &[String]) -> String {
        let mut text: String = first.iter().map(|line| format!("{line}\n")).collect();
        let _ = write!(
            text,
            "AddressFamily inet
HostKey {}
PidFile {SSHD_PID}
StrictModes no
UsePAM no
UseDNS no
PermitRootLogin yes
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitUserEnvironment yes
PrintMotd no
PrintLastLog no
Subsystem sftp internal-sftp
",
            self.in_common("host_key").display()
        );
        text
    }
}

/// Returns the paths that hosts need wherever they are: the repository, the target directory, the programs of tests.
fn needed() -> impl Iterator<Item = PathBuf> {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_owned);
    // <target directory>/<profile>/deps/<test>
    let test = std::env::current_exe().expect("the path of the test program");
    let target = test.ancestors().nth(3).map(Path::to_owned);
    let program = std::env::var_os("SCELA_RUN").and_then(|path| Some(PathBuf::from(path).parent()?.to_owned()));
    let venvs = ["TESTS_VENV", "TESTS_VENV_INTEL", "TESTS_VENV_OPENMPI"];
    let venvs = venvs.into_iter().filter_map(std::env::var_os).map(PathBuf::from);
    [repository, target, program].into_iter().flatten().chain(venvs)
}

/// Returns the existing paths that are inside no other of these paths.
fn outermost(paths: impl Iterator<Item = PathBuf>) -> BTreeSet<PathBuf> {
    let all: BTreeSet<PathBuf> = paths.filter_map(|path| path.canonicalize().ok()).collect();
    let lies_in_other = |path: &PathBuf| path.ancestors().skip(1).any(|above| all.contains(above));
    all.iter().filter(|path| !lies_in_other(path)).cloned().collect()
}

/// Formats addresses as lines of /etc/hosts.
fn addresses<'a>(hosts: impl Iterator<Item = (&'a str, Ipv4Addr)>) -> String {
    let lines = hosts.map(|(name, address)| format!("{address} {name}\n"));
    std::iter::once("127.0.0.1 localhost\n".to_owned()).chain(lines).collect()
}

fn write(path: &Path, text: &str) {
    fs::write(path, text).unwrap_or_else(|error| panic!("failed to write {}: {error}", path.display()));
}
