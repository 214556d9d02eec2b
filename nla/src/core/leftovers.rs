//! Files in /dev/shm that killed ranks leave behind: which of them an agent removes at an abnormal end of its ranks.
//!
//! MPI libraries share memory between the ranks of a node through files in /dev/shm. A rank that is killed cannot
//! remove its files, and their memory stays allocated until a user removes them. An agent removes a file only if all of
//! these hold:
//!
//! - a rank of this agent, or a descendant of one, had it mapped. The driver reads that from /proc/PID/maps after the
//!   first fences and before it signals ranks, and compares device and inode, never names;
//! - it was created after the agent had begun;
//! - it is a regular file of the agent's user;
//! - no process of this user has it mapped any more;
//! - its name is of a [kind that an MPI library is known to make](library_of), unless the user asked for all files.
//!
//! The driver reads the directory and the processes, and carries out the verdicts.

use std::collections::BTreeSet;

use pmi::{Rank, Ranks};
use serde::{Deserialize, Serialize};

use super::cause::Exit;
use super::ids::{AgentId, NamespaceId};
use super::limits::{FILE_NAMES_MAX, LEFT_PROGRAMS_MAX};
use super::words::deserialize_one_line;

const SIGUSR1: i32 = 10;
const SIGUSR2: i32 = 12;
const SIGCONT: i32 = 18;
const SIGSTOP: i32 = 19;

/// The files in /dev/shm that agents remove after an abnormal end.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum CleanShm {
    /// No files; agents do not look for any.
    None,
    /// Files that an MPI library is known to make.
    #[default]
    Mpi,
    /// All files that ranks had mapped.
    All,
}

impl CleanShm {
    /// All choices.
    pub const ALL: [Self; 3] = [Self::None, Self::Mpi, Self::All];

    /// The name as the user types it.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Mpi => "mpi",
            Self::All => "all",
        }
    }
}

/// Processes of one program that ranks had left, and that did not end in their time.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LeftProcesses {
    /// The name of the program, as the kernel has it.
    #[serde(deserialize_with = "deserialize_one_line")]
    pub program: String,
    /// How many there are.
    pub count: u32,
    /// The agent of one of them, and its pid.
    pub example: (AgentId, u32),
    /// The ranks that have left them, as far as that is known.
    pub ranks: Ranks,
}

impl LeftProcesses {
    /// Adds processes to those of the same program in `all`, which names at most [`LEFT_PROGRAMS_MAX`] programs.
    pub fn add_to(self, all: &mut Vec<Self>) {
        if let Some(known) = all.iter_mut().find(|known| known.program == self.program) {
            known.count = known.count.saturating_add(self.count);
            known.ranks.union_with(&self.ranks);
        } else if all.len() < LEFT_PROGRAMS_MAX {
            all.push(self);
        }
    }
}

/// One kind of name that an MPI library, or a library below it, gives to its files in /dev/shm.
struct Kind {
    library: &'static str,
    prefix: &'static str,
    /// Whether the rest of a name, after the prefix, is as the library makes it.
    is_rest: fn(&str) -> bool,
}

/// The known kinds of names, each with its source.
///
/// Files that all jobs of a user share are not among them: PSM's `psm2_hfi_affinity_shm.UID` and
/// `psm3_nic_affinity_shm.UID`, and POSIX semaphores (`sem.*`).
const KINDS: [Kind; 13] = [
    // MPICH 4.2 and later: src/mpid/ch4/shm/posix, "mpich_shm_%x_%d" and "mpich_vci_%x_%d" of the world and the node.
    // They exist until MPI_Finalize.
    Kind { library: "MPICH", prefix: "mpich_shm_", is_rest: is_world_and_node },
    Kind { library: "MPICH", prefix: "mpich_vci_", is_rest: is_world_and_node },
    // MPICH 3 to 4.1: src/mpl/src/shm/mpl_shm_mmap.c, mkstemp("/dev/shm/mpich_shar_tmpXXXXXX"). Removed within MPI_Init.
    Kind { library: "MPICH", prefix: "mpich_shar_tmp", is_rest: is_random },
    // Intel MPI has no public source. The names are from strace logs, and the PMI entries sharedFilename[RANK].
    Kind { library: "Intel MPI", prefix: "Intel_MPI_", is_rest: is_random },
    // Open MPI 5: opal/mca/btl/sm/btl_sm_component.c, "sm_segment.%s.%u.%x.%d" of host, user, job and rank.
    Kind { library: "Open MPI", prefix: "sm_segment.", is_rest: is_job_and_rank },
    // Open MPI 4: opal/mca/btl/vader/btl_vader_component.c, the same after another word; 4.0 has no user.
    Kind { library: "Open MPI", prefix: "vader_segment.", is_rest: is_job_and_rank },
    // UCX: src/uct/sm/mm/posix/mm_posix.c, "/ucx_shm_posix_%lx".
    Kind { library: "UCX", prefix: "ucx_shm_posix_", is_rest: is_hex },
    // PSM2: ptl_am/am_reqrep_shmem.c, "/psm2_shm.%ld%016lx%d" of user, endpoint and attempt.
    Kind { library: "PSM2", prefix: "psm2_shm.", is_rest: is_hex },
    // PSM3 of libfabric: prov/psm3/psm3/ptl_am/am_reqrep_shmem.c, the same, later "/psm3_shm.%ld.%s.%d".
    Kind { library: "PSM3", prefix: "psm3_shm.", is_rest: is_hex_with_dots },
    // libfabric's shm provider: prov/shm/src/smr_ep.c, "%s:%d:%d:%d" of process, user, domain and endpoint; without the
    // user in older versions.
    Kind { library: "libfabric", prefix: "", is_rest: is_numbers_with_colons },
    // libfabric's opx provider: prov/opx/include/opx_shm.h, "/opx.shm." and a key of the job.
    Kind { library: "libfabric", prefix: "opx.shm.", is_rest: is_word },
    // MVAPICH2: ch3_smp_progress.c, "ib_shmem-%s-%s-%d.tmp" of kvsname, host and user.
    Kind { library: "MVAPICH2", prefix: "ib_shmem-", is_rest: is_temporary },
    Kind { library: "MVAPICH2", prefix: "ib_pool-", is_rest: is_temporary },
];

fn is_hex(rest: &str) -> bool {
    !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn is_decimal(rest: &str) -> bool {
    !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit())
}

/// The end of a name that mkstemp makes.
fn is_random(rest: &str) -> bool {
    rest.len() == 6 && rest.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

fn is_world_and_node(rest: &str) -> bool {
    rest.split_once('_').is_some_and(|(world, node)| is_hex(world) && is_decimal(node))
}

/// A host's name, which may contain dots, then fields of which the last two are a job and a rank.
fn is_job_and_rank(rest: &str) -> bool {
    let mut fields = rest.rsplitn(3, '.');
    let (rank, job, host) = (fields.next(), fields.next(), fields.next());
    rank.is_some_and(is_decimal) && job.is_some_and(is_hex) && host.is_some_and(is_word)
}

fn is_hex_with_dots(rest: &str) -> bool {
    !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_hexdigit() || b"x.:-".contains(&byte))
}

fn is_numbers_with_colons(rest: &str) -> bool {
    let numbers = rest.split(':');
    (3..=4).contains(&numbers.clone().count()) && numbers.into_iter().all(is_decimal)
}

fn is_word(rest: &str) -> bool {
    !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

fn is_temporary(rest: &str) -> bool {
    rest.strip_suffix(".tmp").is_some_and(is_word)
}

/// The library that gives files in /dev/shm names of this kind; `None` if no library is known to.
pub fn library_of(name: &[u8]) -> Option<&'static str> {
    let name = std::str::from_utf8(name).ok()?;
    let matches = |kind: &&Kind| name.strip_prefix(kind.prefix).is_some_and(kind.is_rest);
    KINDS.iter().find(matches).map(|kind| kind.library)
}

/// A file's identity: its device, as major and minor number, and its inode on it.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct FileId {
    /// The device's numbers.
    pub device: (u32, u32),
    /// The inode.
    pub inode: u64,
}

/// A name in /dev/shm, with what fstatat says about it. A link is not followed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShmEntry {
    /// The name.
    pub name: Vec<u8>,
    /// The file.
    pub id: FileId,
    /// The user who owns the file.
    pub owner: u32,
    /// The file is neither a directory, nor a link, nor another special file.
    pub is_regular: bool,
    /// The file's size.
    pub bytes: u64,
}

/// The fate of one file at an abnormal end.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The agent removes it.
    Remove,
    /// The agent reports it as left, and does not remove it.
    Report,
    /// The agent neither removes nor reports it: it belongs to another user or job, is older than the agent, or is in
    /// use.
    Ignore,
}

/// Whether processes of this user have a file mapped.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Mapped {
    /// No process has it mapped.
    No,
    /// At least one process has it mapped.
    Yes,
    /// Not all processes could be read in time.
    Unknown,
}

/// The files in /dev/shm, as far as an agent knows them.
#[derive(Clone, Debug)]
pub struct ShmLedger {
    policy: CleanShm,
    user: u32,
    /// The files that existed when the agent began.
    before: BTreeSet<u64>,
    /// The files that ranks had mapped.
    own: BTreeSet<FileId>,
    /// The session has no other agent with ranks on this node, so no file here belongs to another agent's ranks.
    is_alone: bool,
}

impl ShmLedger {
    /// The ledger of an agent of `user` that begins with the files `before`, by inode, in /dev/shm.
    pub fn new(policy: CleanShm, user: u32, before: BTreeSet<u64>) -> Self {
        Self { policy, user, before, own: BTreeSet::new(), is_alone: false }
    }

    /// Notes that the session has no other agent with ranks on this node.
    pub fn set_alone(&mut self) {
        self.is_alone = true;
    }

    /// Whether the file with this inode existed when the agent began.
    pub fn is_old(&self, inode: u64) -> bool {
        self.before.contains(&inode)
    }

    fn may_be_ours(&self, entry: &ShmEntry) -> bool {
        entry.is_regular && entry.owner == self.user && !self.is_old(entry.id.inode)
    }

    /// The files that may be those of ranks, and are not known to be.
    pub fn unexplained(&self, entries: &[ShmEntry]) -> BTreeSet<FileId> {
        let new = entries.iter().filter(|entry| self.may_be_ours(entry) && !self.own.contains(&entry.id));
        new.map(|entry| entry.id).collect()
    }

    /// Notes that a rank had this file mapped.
    pub fn note(&mut self, id: FileId) {
        self.own.insert(id);
    }

    /// Whether the verdict about this file depends on the processes that have it mapped.
    pub fn needs_mapped(&self, entry: &ShmEntry) -> bool {
        self.judge(entry, Mapped::No) != Verdict::Ignore
    }

    /// Judges a file after the agent's last process has ended.
    pub fn judge(&self, entry: &ShmEntry, mapped: Mapped) -> Verdict {
        if self.policy == CleanShm::None || !self.may_be_ours(entry) || mapped == Mapped::Yes {
            return Verdict::Ignore;
        }
        let is_known = library_of(&entry.name).is_some();
        match (self.own.contains(&entry.id), mapped) {
            (true, Mapped::No) if is_known || self.policy == CleanShm::All => Verdict::Remove,
            (true, _) => Verdict::Report,
            // No process has it mapped, and nothing shows whose it is: perhaps that of a rank that died too early.
            (false, Mapped::No) if is_known && self.is_alone => Verdict::Report,
            (false, _) => Verdict::Ignore,
        }
    }
}

/// The files that an agent has removed, and those that are left.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct FileReport {
    /// The number of files that were removed.
    pub removed: u64,
    /// The sum of their sizes.
    pub removed_bytes: u64,
    /// The number of files that are left.
    pub left: u64,
    /// The names of some files that are left, at most [`FILE_NAMES_MAX`]. Control characters are escaped.
    pub left_names: Vec<String>,
}

impl FileReport {
    /// Whether there is nothing to report.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Counts a removed file of this size.
    pub fn note_removed(&mut self, bytes: u64) {
        self.removed += 1;
        self.removed_bytes = self.removed_bytes.saturating_add(bytes);
    }

    /// Counts a file that is left.
    pub fn note_left(&mut self, name: &[u8]) {
        self.left += 1;
        if self.left_names.len() < FILE_NAMES_MAX {
            self.left_names.push(name.escape_ascii().to_string());
        }
    }

    /// Returns the report of a peer within the bounds of this agent's own.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        self.left_names.truncate(FILE_NAMES_MAX);
        self
    }
}

/// Whether an agent sends this signal to ranks to end them: all but those that stop and continue them, and those that
/// are only forwarded.
pub fn is_ending_signal(signal: i32) -> bool {
    ![SIGUSR1, SIGUSR2, SIGCONT, SIGSTOP].contains(&signal)
}

/// Decides whether the end of an agent's ranks is abnormal, so that they may have left files.
#[derive(Clone, Debug, Default)]
pub struct EndWatch {
    /// Ranks that have initialized PMI and not finalized it.
    unfinished: BTreeSet<(NamespaceId, Rank)>,
    is_abnormal: bool,
}

impl EndWatch {
    /// A rank has initialized PMI.
    pub fn on_initialized(&mut self, namespace: NamespaceId, rank: Rank) {
        self.unfinished.insert((namespace, rank));
    }

    /// A rank has finalized PMI.
    pub fn on_finalized(&mut self, namespace: NamespaceId, rank: Rank) {
        self.unfinished.remove(&(namespace, rank));
    }

    /// A rank has ended. Returns true for the first abnormal end: with a signal, another code than 0, or without having
    /// finalized PMI.
    pub fn on_ended(&mut self, namespace: NamespaceId, rank: Rank, exit: &Exit) -> bool {
        let was_unfinished = self.unfinished.remove(&(namespace, rank));
        let is_abnormal = was_unfinished || *exit != Exit::Code(0);
        is_abnormal && !std::mem::replace(&mut self.is_abnormal, true)
    }

    /// The agent is about to end running ranks by a signal.
    pub fn on_ending_signal(&mut self) {
        self.is_abnormal = true;
    }

    /// Whether at least one rank has ended abnormally.
    pub fn is_abnormal(&self) -> bool {
        self.is_abnormal
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USER: u32 = 1000;

    fn id(inode: u64) -> FileId {
        FileId { device: (0, 0x17), inode }
    }

    fn entry(name: &str, inode: u64) -> ShmEntry {
        ShmEntry { name: name.as_bytes().to_vec(), id: id(inode), owner: USER, is_regular: true, bytes: 7 }
    }

    /// A ledger with the old file 1 and the ranks' files 1 and 2.
    fn ledger(policy: CleanShm) -> ShmLedger {
        let mut ledger = ShmLedger::new(policy, USER, BTreeSet::from([1]));
        ledger.note(id(1));
        ledger.note(id(2));
        ledger.set_alone();
        ledger
    }

    const MPICH: &str = "mpich_shm_26fd3275_0";

    #[test]
    fn a_mapped_file_of_a_known_kind_is_removed() {
        assert_eq!(ledger(CleanShm::Mpi).judge(&entry(MPICH, 2), Mapped::No), Verdict::Remove);
        assert_eq!(ledger(CleanShm::All).judge(&entry(MPICH, 2), Mapped::No), Verdict::Remove);
        assert_eq!(ledger(CleanShm::None).judge(&entry(MPICH, 2), Mapped::No), Verdict::Ignore);
    }

    #[test]
    fn a_mapped_file_of_another_name_is_removed_only_on_demand() {
        assert_eq!(ledger(CleanShm::Mpi).judge(&entry("results", 2), Mapped::No), Verdict::Report);
        assert_eq!(ledger(CleanShm::All).judge(&entry("results", 2), Mapped::No), Verdict::Remove);
    }

    #[test]
    fn a_file_that_no_own_rank_had_mapped_is_never_removed() {
        for policy in [CleanShm::Mpi, CleanShm::All] {
            assert_eq!(ledger(policy).judge(&entry(MPICH, 3), Mapped::No), Verdict::Report);
            assert_eq!(ledger(policy).judge(&entry(MPICH, 3), Mapped::Yes), Verdict::Ignore, "another job's");
            assert_eq!(ledger(policy).judge(&entry("results", 3), Mapped::No), Verdict::Ignore);
            let beside_another_agent = ShmLedger { is_alone: false, ..ledger(policy) };
            assert_eq!(
                beside_another_agent.judge(&entry(MPICH, 3), Mapped::No),
                Verdict::Ignore,
                "perhaps the other's"
            );
            let on_another_device = ShmEntry { id: FileId { device: (0, 0x18), inode: 2 }, ..entry(MPICH, 2) };
            assert_eq!(ledger(policy).judge(&on_another_device, Mapped::No), Verdict::Report);
        }
    }

    #[test]
    fn a_file_in_use_is_left() {
        assert_eq!(ledger(CleanShm::All).judge(&entry(MPICH, 2), Mapped::Yes), Verdict::Ignore);
        assert_eq!(ledger(CleanShm::All).judge(&entry(MPICH, 2), Mapped::Unknown), Verdict::Report);
    }

    #[test]
    fn old_files_other_users_files_and_special_files_are_left() {
        for other in [
            entry(MPICH, 1),
            ShmEntry { owner: USER + 1, ..entry(MPICH, 2) },
            ShmEntry { owner: 0, ..entry(MPICH, 2) },
            ShmEntry { is_regular: false, ..entry(MPICH, 2) },
        ] {
            assert_eq!(ledger(CleanShm::All).judge(&other, Mapped::No), Verdict::Ignore, "{other:?}");
            assert!(!ledger(CleanShm::All).needs_mapped(&other));
            assert_eq!(ledger(CleanShm::All).unexplained(&[other]), BTreeSet::new());
        }
    }

    #[test]
    fn new_files_are_unexplained_until_a_rank_had_them_mapped() {
        let mut ledger = ledger(CleanShm::Mpi);
        let entries = [entry(MPICH, 2), entry("a", 3), entry("b", 4)];
        assert_eq!(ledger.unexplained(&entries), BTreeSet::from([id(3), id(4)]));
        ledger.note(id(4));
        assert_eq!(ledger.unexplained(&entries), BTreeSet::from([id(3)]));
    }

    #[test]
    fn names_of_libraries_are_known() {
        for (name, library) in [
            ("mpich_shm_26fd3275_0", "MPICH"),
            ("mpich_vci_1_12", "MPICH"),
            ("mpich_shar_tmpMCilHL", "MPICH"),
            ("Intel_MPI_87myzV", "Intel MPI"),
            ("sm_segment.node-1.cluster.org.1000.2c930001.3", "Open MPI"),
            ("vader_segment.node1.1000.e8f40001.0", "Open MPI"),
            ("vader_segment.node1.e8f40001.0", "Open MPI"),
            ("ucx_shm_posix_2e841ba5", "UCX"),
            ("psm2_shm.1000000000000000302003", "PSM2"),
            ("psm3_shm.1000.0x12:0xab.0", "PSM3"),
            ("4711:1000:0:0", "libfabric"),
            ("4711:0:0", "libfabric"),
            ("opx.shm.00112233-4455-6677-8899-aabbccddeeff-00.0", "libfabric"),
            ("ib_shmem-kvs_10887_0-node1-1000.tmp", "MVAPICH2"),
            ("ib_pool-kvs_10887_0-node1-1000.tmp", "MVAPICH2"),
        ] {
            assert_eq!(library_of(name.as_bytes()), Some(library), "{name}");
        }
    }

    #[test]
    fn similar_names_are_not_known() {
        for name in [
            "",
            "mpich_shm_",
            "mpich_shm_26fd3275",
            "mpich_shm_26fd3275_0.bak",
            "my_mpich_shm_26fd3275_0",
            "mpich_shm_26fd3275_0\n",
            "mpich_shm_../x_0",
            "mpich_shar_tmp",
            "mpich_shar_tmpMCilHLx",
            "Intel_MPI_results",
            "sm_segment.3",
            "sm_segment.node.data.txt",
            "sm_segment.node.1000.5a1d0001.x",
            "psm3_shm.",
            "psm3_shm.results",
            "ucx_shm_posix_",
            "psm2_hfi_affinity_shm.1000",
            "psm3_nic_affinity_shm.1000",
            "sem.psm3_nic_affinity_shm_rw_mutex.1000",
            "12:30",
            "1:2:3:4:5",
            "a:b:c",
            "ib_shmem-.tmp",
            "nccl-AbCdEf",
        ] {
            assert_eq!(library_of(name.as_bytes()), None, "{name:?}");
        }
        assert_eq!(library_of(b"mpich_shm_26fd3275_0\xff"), None);
    }

    #[test]
    fn an_end_with_a_signal_or_a_code_or_without_finalize_is_abnormal() {
        const NS: NamespaceId = NamespaceId::FIRST;
        let watch = || {
            let mut watch = EndWatch::default();
            watch.on_initialized(NS, Rank(0));
            watch
        };
        let mut normal = watch();
        normal.on_finalized(NS, Rank(0));
        assert!(!normal.on_ended(NS, Rank(0), &Exit::Code(0)) && !normal.on_ended(NS, Rank(1), &Exit::Code(0)));
        assert!(!normal.is_abnormal());
        let killed = Exit::Signal { signal: 9, core: false, out_of_memory: String::new() };
        for (rank, exit) in [(0, Exit::Code(0)), (1, Exit::Code(3)), (1, killed.clone())] {
            let mut watch = watch();
            assert!(watch.on_ended(NS, Rank(rank), &exit), "{rank} {exit:?}");
            assert!(!watch.on_ended(NS, Rank(7), &killed), "reported once");
            assert!(watch.is_abnormal());
        }
        let mut ended = watch();
        ended.on_ending_signal();
        assert!(ended.is_abnormal());
    }

    #[test]
    fn forwarded_signals_end_no_rank() {
        assert!([9, 15, 2, 1, 13].map(is_ending_signal).iter().all(|ends| *ends));
        assert!(![10, 12, 18, 19].map(is_ending_signal).iter().any(|ends| *ends));
    }

    #[test]
    fn a_report_names_a_bounded_number_of_files() {
        let mut report = FileReport::default();
        assert!(report.is_empty());
        report.note_removed(u64::MAX);
        report.note_removed(1);
        (0..=FILE_NAMES_MAX).for_each(|_| report.note_left(b"a\x1b[31m"));
        assert_eq!((report.removed, report.removed_bytes), (2, u64::MAX));
        assert_eq!((report.left, report.left_names.len()), (FILE_NAMES_MAX as u64 + 1, FILE_NAMES_MAX));
        assert_eq!(report.left_names[0], "a\\x1b[31m");
        let long = FileReport { left_names: vec![String::new(); FILE_NAMES_MAX + 1], ..report };
        assert_eq!(long.bounded().left_names.len(), FILE_NAMES_MAX);
    }

    #[test]
    fn choices_have_the_names_that_users_type() {
        assert_eq!(CleanShm::ALL.map(CleanShm::name), ["none", "mpi", "all"]);
    }

    #[test]
    fn only_files_that_may_be_those_of_ranks_need_a_search_for_processes() {
        assert!(ledger(CleanShm::Mpi).needs_mapped(&entry("results", 2)));
        assert!(!ledger(CleanShm::Mpi).needs_mapped(&entry("results", 3)), "no rank had it mapped");
        assert!(!ledger(CleanShm::None).needs_mapped(&entry(MPICH, 2)));
    }

    #[test]
    fn a_report_is_empty_until_a_file_is_counted() {
        assert!(FileReport::default().is_empty());
        let (mut removed, mut left) = (FileReport::default(), FileReport::default());
        removed.note_removed(0);
        left.note_left(b"results");
        assert!(!removed.is_empty() && !left.is_empty());
    }
}
