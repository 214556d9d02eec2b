//! Plays a session: starts the launcher, lets the faults happen, and ends a session that goes on.

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use tempfile::TempDir;
use tests::{Cluster, Process, Run, before, event_timeout, eventually, scela, scela_run};

use crate::draw::{Fault, HOSTS, Moment, Pace, Party, Place, Policy, Session, Stream, Way, What, pmix_library};
use crate::lateness::Lateness;
use crate::oracle;
use crate::pool;
use crate::reader::Reader;

/// How long all ranks of a session may take to start.
const START_TIME: Duration = Duration::from_secs(15);
/// How long a signal may take to have its effect.
const TAKE_TIME_MAX: Duration = Duration::from_secs(2);
/// The user of sessions with a process limit. Root has none.
const USER: u32 = 64_321;
/// The size of the full disk.
const DISK: &str = "size=64k";

/// Everything that sessions share.
pub(crate) struct Stage {
    cluster: Option<Cluster>,
    /// Children of this process that belong to no session.
    own: BTreeSet<i32>,
    /// A copy of the launcher that each user may execute, and the file that enters a host.
    place: TempDir,
    lateness: Lateness,
}

/// A fault that happened.
#[derive(Clone, Debug)]
pub(crate) struct Happened {
    pub(crate) fault: Fault,
    /// All ranks had been seen before.
    pub(crate) was_up: bool,
    pub(crate) hit: Hit,
}

/// The process or thing that a fault met.
#[derive(Clone, Debug)]
pub(crate) enum Hit {
    /// No such process existed, or the fault does not concern a process.
    Nothing,
    /// The host or stream, or the limit.
    Surroundings,
    Launcher,
    /// An agent, its guardian or both; its number if it is known.
    Agent {
        number: Option<u32>,
    },
    Rank {
        number: u32,
    },
}

/// A session that was played, for the oracle.
pub(crate) struct Played<'a> {
    pub(crate) session: &'a Session,
    pub(crate) happened: Vec<Happened>,
    /// The exit code; 128+n if signal n killed the launcher.
    pub(crate) code: i32,
    /// The launcher got a SIGTERM from the stage in the end.
    pub(crate) was_ended: bool,
    pub(crate) errors: String,
}

impl Stage {
    pub(crate) fn new() -> Self {
        let place = tempfile::Builder::new().prefix("chaos-").tempdir().expect("a temporary directory");
        let open = |path: PathBuf| fs::set_permissions(path, Permissions::from_mode(0o755)).expect("it is ours");
        fs::copy(scela_run(), place.path().join("scela-run")).expect("the disk has room");
        open(place.path().join("scela-run"));
        open(place.path().to_owned());
        let mut stage = Self { cluster: None, own: BTreeSet::new(), place, lateness: Lateness::start() };
        stage.build_cluster();
        stage
    }

    fn build_cluster(&mut self) {
        self.cluster = None;
        if Cluster::missing().is_none() {
            let cluster = Cluster::builder(HOSTS as usize).keep(self.place.path()).start();
            let mut cases = String::new();
            for host in cluster.hosts() {
                cases += &format!("{}) pid={} ;;\n", host.name(), host.pid());
            }
            let script = format!(
                "case $1 in\n{cases}esac\nshift\n\
                 exec nsenter --target $pid --net --uts --ipc --mount --pid --wdns=/ -- \"$@\"\n"
            );
            fs::write(self.place.path().join("enter"), script).expect("the disk has room");
            self.cluster = Some(cluster);
        }
        self.own = children().into_iter().collect();
    }

    /// Plays a session and checks everything about it. An error contains everything known about the failure.
    pub(crate) fn play(&mut self, session: &Session) -> Result<(), String> {
        let result = Play::begin(self, session).and_then(|mut play| {
            let result = play.run();
            let listing = if result.is_err() { play.describe() } else { String::new() };
            play.clean();
            result.map_err(|why| format!("{why}\n{listing}"))
        });
        if result.is_err() {
            self.end_orphans();
            if matches!(session.place, Place::Hosts { .. }) {
                self.build_cluster();
            }
        }
        result
    }

    /// Returns the descriptions of children that belong to no session, and reaps those that have ended.
    fn orphans(&self) -> Vec<Process> {
        let mut left = Vec::new();
        for pid in children().into_iter().filter(|pid| !self.own.contains(pid)) {
            match Process::of(pid) {
                Some(process) if process.state != 'Z' => left.push(process),
                _ => drop(waitpid(Pid::from_raw(pid), Some(WaitPidFlag::WNOHANG))),
            }
        }
        left
    }

    fn end_orphans(&self) {
        let _ = eventually(|| {
            let left = self.orphans();
            left.iter().for_each(|process| process.send(Signal::SIGKILL));
            left.is_empty().then_some(())
        });
    }
}

/// Returns the children of this process.
fn children() -> Vec<i32> {
    let own = Process::of(std::process::id() as i32).expect("/proc is mounted");
    own.children().iter().map(|child| child.pid).collect()
}

/// A session in progress.
struct Play<'a> {
    stage: &'a Stage,
    session: &'a Session,
    run: Run,
    /// `None` once it was reaped.
    child: Option<Child>,
    launcher: i32,
    begun: Instant,
    over: Option<(Instant, i32)>,
    up: Option<Instant>,
    output: Reader,
    errors: Reader,
    feeder: Option<JoinHandle<()>>,
    happened: Vec<Happened>,
    /// Stopped processes that are to be continued.
    stopped: Vec<(Fault, Process)>,
    /// The time of the last change from outside.
    touched: Instant,
    /// The lateness at that time.
    late_before: Duration,
    was_ended: bool,
    disk: Option<PathBuf>,
}

/// A change from outside that is due.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Event {
    Do(usize),
    Undo(usize),
}

impl<'a> Play<'a> {
    fn begin(stage: &'a Stage, session: &'a Session) -> Result<Self, String> {
        let mut run = scela().args(session.options()).program(session.program.words());
        if let Some(library) = pmix_library().filter(|_| session.is_pmix) {
            run = run.env("SCELA_PMIX_LIBRARY", library);
        }
        if let (Place::Hosts { by, spares }, Some(cluster)) = (session.place, &stage.cluster) {
            let hosts = cluster.hosts().iter().take((session.agents + spares) as usize);
            let names: Vec<&str> = hosts.map(|host| host.name()).collect();
            let per_host = (session.ranks / session.agents).to_string();
            run = run.on(cluster).args(["-hosts", &names.join(","), "-ppn", &per_host]);
            if by == Way::Enter {
                let enter = stage.place.path().join("enter");
                run = run.args(["--bootstrap", &format!("exec:sh {} {{host}}", enter.display())]);
            }
        }
        if session.place == Place::Pool {
            run = pool::start(run, session.ranks)?;
        }
        let mut disk = None;
        let mut happened = Vec::new();
        for fault in session.faults.iter().filter(|fault| fault.at == Moment::Before) {
            match fault.what {
                What::Files(limit) => run = run.shell(&format!("ulimit -n {limit}")),
                What::Processes(limit) => {
                    let temporary = run.world().temporary();
                    chown(&temporary, Some(USER), Some(USER)).map_err(|error| error.to_string())?;
                    let above = temporary.parent().map(PathBuf::from).unwrap_or_default();
                    fs::set_permissions(above, Permissions::from_mode(0o755)).map_err(|error| error.to_string())?;
                    let copy = stage.place.path().join("scela-run");
                    run = run.shell(&format!(
                        "shift; cd /
                        set -- setpriv --reuid {USER} --regid {USER} --clear-groups {} \"$@\"
                        set -- prlimit --nproc={limit} \"$@\"",
                        copy.display()
                    ));
                }
                What::FullDisk => {
                    let place = run.world().file("full");
                    fs::create_dir(&place).map_err(|error| error.to_string())?;
                    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", DISK, "tmpfs"]).arg(&place).status();
                    if !mounted.is_ok_and(|status| status.success()) {
                        return Err("a small disk cannot be mounted".into());
                    }
                    run = run.args(["-outfile-pattern", &place.join("%r").to_string_lossy()]);
                    disk = Some(place);
                }
                _ => {}
            }
            happened.push(Happened { fault: *fault, was_up: false, hit: Hit::Surroundings });
        }
        let is_fed = session.program == crate::draw::Program::Sum;
        let mut command = run.command();
        command.process_group(0).stdin(if is_fed { Stdio::piped() } else { Stdio::null() });
        let begun = Instant::now();
        let mut child = command.spawn().map_err(|error| format!("{command:?}: {error}"))?;
        let feeder = child.stdin.take().map(|mut stdin| {
            thread::spawn(move || {
                let block = [b'x'; 4096];
                while stdin.write_all(&block).is_ok() {}
            })
        });
        let output = Reader::of(child.stdout.take().expect("it is a pipe"));
        let errors = Reader::of(child.stderr.take().expect("it is a pipe"));
        Ok(Self {
            stage,
            session,
            run,
            launcher: child.id() as i32,
            child: Some(child),
            begun,
            over: None,
            up: None,
            output,
            errors,
            feeder,
            happened,
            stopped: Vec::new(),
            touched: begun,
            late_before: stage.lateness.sum(),
            was_ended: false,
            disk,
        })
    }

    fn run(&mut self) -> Result<(), String> {
        self.meet_faults()?;
        if !self.is_over() {
            if oracle::ends(self.session, &self.happened) {
                self.quicken();
                self.wait_over(self.deadline());
            } else {
                self.wait_over(Instant::now() + self.session.linger);
                if !self.is_over() {
                    self.end_it();
                }
                self.wait_over(self.deadline());
            }
        }
        let Some((at, code)) = self.over else {
            let since = self.touched.elapsed().as_secs_f64();
            return Err(format!("  it has not ended {since:.1} s after the last fault"));
        };
        let played = Played {
            session: self.session,
            happened: self.happened.clone(),
            code,
            was_ended: self.was_ended,
            errors: self.errors.text(),
        };
        let verdict = oracle::judge(&played);
        if self.session.place == Place::Pool {
            pool::stop(&self.run)?;
            self.touch();
        }
        let was_stopped = !self.stopped.is_empty();
        if was_stopped {
            self.resume(|_| true);
            self.touch();
        }
        // Nothing may outlive a launcher that ended by itself and its agents on this machine.
        let is_strict =
            self.session.place == Place::Here && !oracle::is_launcher_killed(&self.happened) && !was_stopped;
        let until = if is_strict { at } else { self.deadline_of_hosts().max(at + Duration::from_secs(1)) };
        let left = before(until, || self.left().is_empty().then_some(()));
        let left = if left.is_none() { self.left() } else { String::new() };
        match (verdict, left.is_empty()) {
            (Ok(()), true) => Ok(()),
            (verdict, true) => verdict,
            (verdict, false) => {
                let verdict = verdict.err().unwrap_or_default();
                Err(format!("{verdict}  it has left this, {:.1} s after its end:\n{left}", at.elapsed().as_secs_f64()))
            }
        }
    }

    /// Returns the time by which the session must end after the last fault.
    fn deadline(&self) -> Instant {
        self.touched + oracle::end_time(self.session) + self.lateness()
    }

    /// Returns the time by which nothing may be left on hosts that are cut off.
    fn deadline_of_hosts(&self) -> Instant {
        self.touched + oracle::end_time_of_hosts(self.session) + self.lateness()
    }

    /// Returns twice the time by which this process was late since the last fault: a busy machine delays all
    /// processes.
    fn lateness(&self) -> Duration {
        2 * self.stage.lateness.sum().saturating_sub(self.late_before)
    }

    fn is_over(&mut self) -> bool {
        if let Some(child) = &mut self.child
            && let Ok(Some(status)) = child.try_wait()
        {
            let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(-1);
            self.over = Some((Instant::now(), code));
            self.child = None;
        }
        self.over.is_some()
    }

    /// Waits for the end of the launcher, at most until `until`.
    fn wait_over(&mut self, until: Instant) {
        before(until, || self.is_over().then_some(()));
    }

    /// Makes slow readers fast: a session waits for the readers of its output without a deadline.
    fn quicken(&mut self) {
        if self.output.quicken() | self.errors.quicken() {
            self.touch();
        }
    }

    /// Sends the session the signal that ends it, and undoes faults that would keep it from ending.
    fn end_it(&mut self) {
        self.quicken();
        self.touch();
        if let Some(cluster) = &self.stage.cluster {
            for happened in &self.happened {
                if let What::Loss { host, .. } = happened.fault.what {
                    cluster.lose_no_packets(self.host(cluster, host));
                }
            }
        }
        self.was_ended = true;
        self.signal_launcher(Signal::SIGTERM);
    }

    fn touch(&mut self) {
        self.touched = Instant::now();
        self.late_before = self.stage.lateness.sum();
    }

    fn signal_launcher(&self, signal: Signal) {
        if self.child.is_some() {
            // It has not been reaped.
            let _ = kill(Pid::from_raw(self.launcher), signal);
        }
    }

    /// Lets all faults happen at their times, unless the session ends before.
    fn meet_faults(&mut self) -> Result<(), String> {
        let mut events: Vec<(Instant, Event)> = Vec::new();
        let mut waiting: Vec<(Duration, usize)> = Vec::new();
        for (index, fault) in self.session.faults.iter().enumerate() {
            match fault.at {
                Moment::Before => {}
                Moment::Starting(after) => events.push((self.begun + after, Event::Do(index))),
                Moment::Running(after) => waiting.push((after, index)),
            }
        }
        let limit = self.begun + START_TIME;
        let is_disturbed = self.session.faults.iter().any(|fault| !matches!(fault.at, Moment::Running(_)));
        while !self.is_over() {
            if self.up.is_none() && self.is_up() {
                self.up = Some(Instant::now());
            }
            let now = Instant::now();
            if self.up.is_some() || now > limit || (is_disturbed && now > self.begun + START_TIME / 5) {
                if self.up.is_none() && !is_disturbed {
                    return Err(format!("  not all ranks started within {START_TIME:?}"));
                }
                waiting.drain(..).for_each(|(after, index)| events.push((now + after, Event::Do(index))));
            }
            events.sort();
            if let Some((at, event)) = events.first().copied() {
                if at <= Instant::now() {
                    events.remove(0);
                    match event {
                        Event::Do(index) => {
                            let fault = self.session.faults[index];
                            self.happen(&fault);
                            events.extend(fault.lasts.map(|lasts| (Instant::now() + lasts, Event::Undo(index))));
                        }
                        Event::Undo(index) => self.undo(self.session.faults[index])?,
                    }
                    continue;
                }
            } else if waiting.is_empty() && (self.up.is_some() || is_disturbed || now > limit) {
                return Ok(());
            }
            let next = events.first().map_or(now + Duration::from_millis(10), |(at, _)| *at);
            self.wait_over(next.min(now + Duration::from_millis(10)));
        }
        Ok(())
    }

    /// Returns whether all ranks run.
    fn is_up(&self) -> bool {
        self.run.world().ranks().len() == self.session.ranks as usize
    }

    fn happen(&mut self, fault: &Fault) {
        let was_up = self.up.is_some();
        let hit = match fault.what {
            What::Signal { party, which, signal } => {
                let (hit, victims) = self.victims(party, which as usize);
                victims.iter().for_each(|victim| victim.send(signal));
                // Another fault may continue or end the process before it is seen to have stopped.
                let have_taken = || victims.iter().all(|victim| victim.has_taken(signal)).then_some(());
                before(Instant::now() + TAKE_TIME_MAX, have_taken);
                if signal == Signal::SIGSTOP && fault.lasts.is_some() {
                    self.stopped.extend(victims.into_iter().map(|victim| (*fault, victim)));
                }
                hit
            }
            What::Cut { host } => {
                if let Some(cluster) = &self.stage.cluster {
                    cluster.cut(self.host(cluster, host));
                }
                Hit::Surroundings
            }
            What::Loss { host, percent } => {
                if let Some(cluster) = &self.stage.cluster {
                    cluster.lose_packets(self.host(cluster, host), percent);
                }
                Hit::Surroundings
            }
            What::Reader { stream, pace } => {
                match stream {
                    Stream::Output => self.output.set(pace),
                    Stream::Errors => self.errors.set(pace),
                }
                Hit::Surroundings
            }
            What::FullDisk | What::Files(_) | What::Processes(_) => Hit::Surroundings,
        };
        self.happened.push(Happened { fault: *fault, was_up, hit });
        self.touch();
    }

    fn undo(&mut self, fault: Fault) -> Result<(), String> {
        match fault.what {
            What::Signal { party, .. } => {
                let left = self.others();
                // Agents wait for a stopped launcher on their machine, and while the tree is assembled.
                let was_up = self.happened.iter().any(|happened| happened.fault == fault && happened.was_up);
                // Under the other policies, agents look for an ancestor for two dead times and 2 s first. A remote shell
                // cannot end before the launcher has read its output.
                let has_ports =
                    matches!(self.session.place, Place::Hosts { by: Way::Ssh | Way::SshTree | Way::Enter, .. });
                let ends = self.session.policy == Policy::Abort && has_ports;
                let has_ended = party == Party::Launcher && oracle::is_long(fault.lasts) && was_up && ends;
                if has_ended && !left.is_empty() {
                    return Err(format!("  beside the stopped launcher there are still\n{left}"));
                }
                self.resume(|stopped_by| stopped_by == fault);
            }
            What::Cut { host } => {
                if let Some(cluster) = &self.stage.cluster {
                    cluster.mend(self.host(cluster, host));
                }
            }
            _ => {}
        }
        self.touch();
        Ok(())
    }

    /// Continues the processes that these faults have stopped, and nsenter, which stops itself when its child is stopped.
    fn resume(&mut self, is_meant: impl Fn(Fault) -> bool) {
        let of_world = self.run.world().processes().into_iter();
        of_world.filter(|process| process.name == "nsenter").for_each(|shell| shell.signal(Signal::SIGCONT));
        for (_, process) in self.stopped.extract_if(.., |(fault, _)| is_meant(*fault)) {
            // The pid may be another process's now.
            if Process::of(process.pid).is_some_and(|now| now.name == process.name) {
                process.signal(Signal::SIGCONT);
            }
        }
    }

    /// Selects the processes that a fault hits.
    fn victims(&self, party: Party, which: usize) -> (Hit, Vec<Process>) {
        let world = self.run.world();
        let one = |mut all: Vec<Process>| {
            all.sort_by_key(|process| process.pid);
            let count = all.len().max(1);
            all.into_iter().nth(which % count)
        };
        match party {
            Party::Launcher => match self.child.as_ref().and_then(|_| Process::of(self.launcher)) {
                Some(launcher) => (Hit::Launcher, vec![launcher]),
                None => (Hit::Nothing, Vec::new()),
            },
            Party::JobLauncher => {
                let jobs = world.processes().into_iter().filter(|process| process.name == "scela-job").collect();
                one(jobs).map_or((Hit::Nothing, Vec::new()), |job| (Hit::Surroundings, vec![job]))
            }
            Party::PmixServer => match one(world.pmix_servers()) {
                Some(server) => {
                    let agent = Process::of(server.parent);
                    let number = agent.and_then(|agent| self.number(&agent));
                    (Hit::Agent { number }, vec![server])
                }
                None => (Hit::Nothing, Vec::new()),
            },
            Party::Rank => {
                let ranks = world.ranks();
                match ranks.get(which % ranks.len().max(1)) {
                    Some((number, process)) => (Hit::Rank { number: *number }, vec![process.clone()]),
                    None => (Hit::Nothing, Vec::new()),
                }
            }
            Party::Agent | Party::Guardian | Party::Both => {
                let mut agents = world.agents();
                if self.session.place == Place::Pool {
                    // Others stand by.
                    agents.retain(|agent| world.ranks().iter().any(|(_, rank)| rank.parent == agent.pid));
                }
                let Some(agent) = one(agents) else { return (Hit::Nothing, Vec::new()) };
                let hit = Hit::Agent { number: self.number(&agent) };
                let guardian = Process::of(agent.parent).filter(|parent| parent.name == "scela-guard");
                let victims = match party {
                    Party::Agent => vec![agent],
                    Party::Guardian => guardian.into_iter().collect(),
                    // First the guardian: it would act on the agent's end.
                    _ => guardian.into_iter().chain([agent]).collect(),
                };
                if victims.is_empty() { (Hit::Nothing, victims) } else { (hit, victims) }
            }
        }
    }

    /// Returns the number of an agent: all agents have as many ranks, in the order of their numbers. Unknown while ranks
    /// are missing.
    fn number(&self, agent: &Process) -> Option<u32> {
        let ranks = self.run.world().ranks();
        let first = ranks.iter().find(|(_, rank)| rank.parent == agent.pid)?;
        (ranks.len() == self.session.ranks as usize).then(|| first.0 / (self.session.ranks / self.session.agents) + 1)
    }

    fn host<'c>(&self, cluster: &'c Cluster, number: u32) -> &'c tests::Host {
        match number {
            0 => cluster.front_end(),
            number => cluster.host(number as usize - 1),
        }
    }

    /// Lists the living processes of the session but the launcher, and the adopted ones.
    fn others(&self) -> String {
        let mut all = self.run.world().processes();
        all.extend(self.stage.orphans());
        all.retain(|process| process.pid != self.launcher);
        all.sort_by_key(|process| process.pid);
        all.dedup_by_key(|process| process.pid);
        let line = |Process { pid, parent, state, name, argv, .. }: &Process| {
            format!("    {pid} (child of {parent}, {state}) {name}: {}\n", argv.join(" "))
        };
        all.iter().map(line).collect()
    }

    /// Lists everything that is left of the session.
    fn left(&self) -> String {
        let mut text = self.others();
        let may_stay = |line: &&str| {
            oracle::may_leave_directories(&self.happened)
                && ["scela-stage-", "scela-pmix-"].iter().any(|name| line.contains(name))
        };
        let left = self.run.world().leftovers().unwrap_or_default();
        text.extend(left.lines().filter(|line| !may_stay(line)).map(|line| format!("{line}\n")));
        for entry in fs::read_dir("/dev/shm").into_iter().flatten().flatten().take(20) {
            if crate::has_own_shared_memory() {
                text += &format!("    {}\n", entry.path().display());
            }
        }
        if let (Place::Hosts { .. }, Some(cluster)) = (self.session.place, &self.stage.cluster) {
            for host in cluster.hosts() {
                // The sshd, and its process for a connection that is about to end.
                let is_left = |process: &Process| process.state != 'Z' && !process.name.starts_with("sshd");
                for process in host.processes().iter().filter(|process| is_left(process)) {
                    text += &format!("    on {}: {} {}\n", host.name(), process.pid, process.argv.join(" "));
                }
            }
        }
        text
    }

    /// Describes the session for a report of its failure.
    fn describe(&self) -> String {
        let words: Vec<String> = self.run.words().iter().map(|word| tests::quote(&word.to_string_lossy())).collect();
        let mut text = format!("    --- command: {}\n", words.join(" "));
        for happened in &self.happened {
            text += &format!("    --- happened: {}: {:?}, up: {}\n", happened.fault, happened.hit, happened.was_up);
        }
        let ended = self.over.map(|(at, code)| (at - self.begun, code));
        text += &format!(
            "    --- up after {:?}, last touched after {:?}, SIGTERM sent: {}, ended (after, code): {ended:?}\n",
            self.up.map(|up| up - self.begun),
            self.touched - self.begun,
            self.was_ended,
        );
        text += &format!("    --- processes now\n{}", self.others());
        let output = self.output.text();
        text += &format!("    --- stdout\n{}\n", output.chars().take(500).collect::<String>());
        text + &format!("    --- stderr\n{}\n    ---\n", self.errors.text())
    }

    /// Ends what is left and restores the hosts.
    fn clean(mut self) {
        self.resume(|_| true);
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
        if self.session.place == Place::Pool {
            let _ = pool::stop(&self.run);
        }
        self.run.world().end_all();
        self.stage.end_orphans();
        self.output.set(Pace::Closed);
        self.errors.set(Pace::Closed);
        for thread in [self.output.thread.take(), self.errors.thread.take(), self.feeder.take()].into_iter().flatten() {
            let _ = thread.join();
        }
        if let Some(disk) = &self.disk {
            let _ = Command::new("umount").arg(disk).status();
        }
        if let (Place::Hosts { .. }, Some(cluster)) = (self.session.place, &self.stage.cluster) {
            for fault in &self.session.faults {
                match fault.what {
                    What::Cut { host } => cluster.mend(self.host(cluster, host)),
                    What::Loss { host, .. } => cluster.lose_no_packets(self.host(cluster, host)),
                    _ => {}
                }
            }
            if self.session.faults.iter().any(|fault| matches!(fault.what, What::Cut { .. })) {
                wait_connected(cluster);
            }
            let temporary = self.run.world().temporary();
            for host in cluster.hosts() {
                let place = host.path(&temporary);
                let _ = fs::remove_dir_all(place.parent().unwrap_or(&place));
            }
        }
    }
}

/// Waits until the launcher's host can connect to all hosts again.
fn wait_connected(cluster: &Cluster) {
    for host in cluster.hosts() {
        let connect = format!("exec 3<>/dev/tcp/{}/22", host.address());
        let connects = || cluster.front_end().run(["bash", "-c", &connect]).status.success().then_some(());
        assert!(eventually(connects).is_some(), "{} is still cut off", host.name());
    }
}

/// Returns the number of open descriptors of this process. Waits a short time for it to fall to `expected`.
pub(crate) fn descriptors(expected: usize) -> usize {
    let count = || fs::read_dir("/proc/self/fd").into_iter().flatten().count();
    before(Instant::now() + event_timeout() / 10, || (count() <= expected).then_some(()));
    count()
}
