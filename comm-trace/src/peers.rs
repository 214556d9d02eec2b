//! Ranks of communicators and windows, as ranks of the job.

use std::ffi::c_int;
use std::sync::Arc;

use crate::arguments::Word;
use crate::mpi::{Mpi, pmpi};
use crate::schedule::Group;

/// The ranks that a communicator or window reaches.
#[derive(Debug)]
pub(crate) struct Peers {
    /// The rank in the job of each rank that a call can name; negative if it is not in the job. Of an intercommunicator: those
    /// of the remote group.
    ranks: Vec<c_int>,
    /// This process in its own group.
    pub(crate) group: Group,
    /// It is an intercommunicator.
    pub(crate) is_inter: bool,
}

impl Peers {
    /// The number of ranks that a call can name.
    pub(crate) fn len(&self) -> u32 {
        self.ranks.len() as u32
    }

    /// Returns the rank in the job: `Err` for a process outside, and `None` for MPI_PROC_NULL.
    pub(crate) fn rank(&self, rank: c_int) -> Option<Result<u32, Outside>> {
        let rank = self.ranks.get(usize::try_from(rank).ok()?)?;
        Some(u32::try_from(*rank).map_err(|_| Outside))
    }
}

/// A process that is not in the job: one of MPI_Comm_spawn or MPI_Comm_connect.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Outside;

/// The job: the processes of MPI_COMM_WORLD.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Job {
    pub(crate) rank: u32,
    pub(crate) size: u32,
    /// The program lets only one thread at a time call MPI.
    pub(crate) is_serial: bool,
    group: Word,
}

impl Job {
    /// Returns the job; `None` in a process that has no MPI_COMM_WORLD, because it uses sessions only.
    pub(crate) fn find(mpi: &Mpi) -> Option<Self> {
        let (mut initialized, mut rank, mut size, mut group): (c_int, c_int, c_int, Word) = (0, 0, 0, 0);
        pmpi!("Initialized", &raw mut initialized as Word)?;
        if initialized == 0 {
            return None;
        }
        pmpi!("Comm_rank", mpi.world, &raw mut rank as Word)?;
        pmpi!("Comm_size", mpi.world, &raw mut size as Word)?;
        pmpi!("Comm_group", mpi.world, &raw mut group as Word)?;
        let mut level: c_int = 0;
        pmpi!("Query_thread", &raw mut level as Word)?;
        let is_serial = level < mpi.thread_multiple;
        Some(Self { is_serial, rank: rank.try_into().ok()?, size: size.try_into().ok()?, group })
    }

    /// Frees its group, before MPI is finalized.
    pub(crate) fn free(mut self) {
        free(&mut self.group);
    }
}

fn free(group: &mut Word) {
    pmpi!("Group_free", &raw mut *group as Word);
}

/// Returns the ranks in the job of a group's ranks, and this process's own in the group. Frees the group.
fn translate(job: &Job, mut group: Word) -> Option<(Vec<c_int>, Group)> {
    let (mut size, mut rank): (c_int, c_int) = (0, 0);
    let found = pmpi!("Group_size", group, &raw mut size as Word).and_then(|()| {
        pmpi!("Group_rank", group, &raw mut rank as Word)?;
        let own: Vec<c_int> = (0..size).collect();
        let mut ranks = vec![-1; own.len()];
        pmpi!(
            "Group_translate_ranks",
            group,
            size as Word,
            own.as_ptr() as Word,
            job.group,
            ranks.as_mut_ptr() as Word
        )?;
        Some(ranks)
    });
    free(&mut group);
    let ranks = found?;
    let group = Group { size: ranks.len() as u32, rank: rank.try_into().unwrap_or(0) };
    Some((ranks, group))
}

fn of_comm(job: &Job, comm: Word) -> Option<Peers> {
    let (mut is_inter, mut group): (c_int, Word) = (0, 0);
    pmpi!("Comm_test_inter", comm, &raw mut is_inter as Word)?;
    pmpi!("Comm_group", comm, &raw mut group as Word)?;
    let (own, group) = translate(job, group)?;
    if is_inter == 0 {
        return Some(Peers { ranks: own, group, is_inter: false });
    }
    let mut remote: Word = 0;
    pmpi!("Comm_remote_group", comm, &raw mut remote as Word)?;
    Some(Peers { ranks: translate(job, remote)?.0, group, is_inter: true })
}

fn of_win(job: &Job, win: Word) -> Option<Peers> {
    let mut group: Word = 0;
    pmpi!("Win_get_group", win, &raw mut group as Word)?;
    let (ranks, group) = translate(job, group)?;
    Some(Peers { ranks, group, is_inter: false })
}

/// Handles that are remembered at the same time. A program with more of them is profiled more slowly.
const HANDLES_MAX: usize = 4096;

/// The ranks that communicators and windows reach, by their handles.
pub(crate) struct Handles {
    /// The first one was used last.
    comms: Vec<(Word, Arc<Peers>)>,
    wins: Vec<(Word, Arc<Peers>)>,
}

impl Handles {
    pub(crate) const fn new() -> Self {
        Self { comms: Vec::new(), wins: Vec::new() }
    }

    /// Returns the ranks of the communicator that was used last, if it is this one.
    #[inline]
    pub(crate) fn last_comm(&self, comm: Word) -> Option<&Arc<Peers>> {
        self.comms.first().filter(|(known, _)| *known == comm).map(|(_, peers)| peers)
    }

    pub(crate) fn comm(&mut self, job: &Job, comm: Word) -> Option<&Arc<Peers>> {
        look_up(&mut self.comms, comm, || of_comm(job, comm))
    }

    pub(crate) fn win(&mut self, job: &Job, win: Word) -> Option<&Arc<Peers>> {
        look_up(&mut self.wins, win, || of_win(job, win))
    }

    /// A communicator is freed: MPI may give its handle to another one.
    pub(crate) fn drop_comm(&mut self, comm: Word) {
        self.comms.retain(|(known, _)| *known != comm);
    }

    pub(crate) fn drop_win(&mut self, win: Word) {
        self.wins.retain(|(known, _)| *known != win);
    }
}

fn look_up(
    known: &mut Vec<(Word, Arc<Peers>)>,
    handle: Word,
    find: impl FnOnce() -> Option<Peers>,
) -> Option<&Arc<Peers>> {
    match known.iter().position(|(known, _)| *known == handle) {
        Some(0) => {}
        // Programs use few at a time.
        Some(at) => known.swap(0, at),
        None => {
            let peers = find()?;
            known.truncate(HANDLES_MAX - 1);
            known.push((handle, Arc::new(peers)));
            let last = known.len() - 1;
            known.swap(0, last);
        }
    }
    known.first().map(|(_, peers)| peers)
}

/// Returns the ranks in a communicator to which a neighbourhood collective of this process sends, in their order. Negative ones
/// are MPI_PROC_NULL.
pub(crate) fn neighbours(mpi: &Mpi, comm: Word, rank: u32) -> Option<Vec<c_int>> {
    let mut kind: c_int = 0;
    pmpi!("Topo_test", comm, &raw mut kind as Word)?;
    let [cart, graph, dist_graph] = mpi.topologies;
    if kind == cart {
        let mut dimensions: c_int = 0;
        pmpi!("Cartdim_get", comm, &raw mut dimensions as Word)?;
        let mut found = Vec::new();
        for dimension in 0..dimensions {
            let (mut before, mut after): (c_int, c_int) = (-1, -1);
            pmpi!("Cart_shift", comm, dimension as Word, 1, &raw mut before as Word, &raw mut after as Word)?;
            found.extend([before, after]);
        }
        return Some(found);
    }
    if kind == graph {
        let mut count: c_int = 0;
        pmpi!("Graph_neighbors_count", comm, rank as Word, &raw mut count as Word)?;
        let mut found = vec![-1; usize::try_from(count).unwrap_or(0)];
        pmpi!("Graph_neighbors", comm, rank as Word, count as Word, found.as_mut_ptr() as Word)?;
        return Some(found);
    }
    if kind != dist_graph {
        return None;
    }
    let (mut sources, mut targets, mut weighted): (c_int, c_int, c_int) = (0, 0, 0);
    pmpi!(
        "Dist_graph_neighbors_count",
        comm,
        &raw mut sources as Word,
        &raw mut targets as Word,
        &raw mut weighted as Word
    )?;
    // Each has an element at least: the addresses must not be those of MPI_UNWEIGHTED or MPI_WEIGHTS_EMPTY.
    let room = |count: c_int| vec![-1_i32; usize::try_from(count).unwrap_or(0).max(1)];
    let (mut from, mut from_weights, mut to, mut to_weights) =
        (room(sources), room(sources), room(targets), room(targets));
    pmpi!(
        "Dist_graph_neighbors",
        comm,
        sources as Word,
        from.as_mut_ptr() as Word,
        from_weights.as_mut_ptr() as Word,
        targets as Word,
        to.as_mut_ptr() as Word,
        to_weights.as_mut_ptr() as Word
    )?;
    to.truncate(usize::try_from(targets).unwrap_or(0));
    Some(to)
}
