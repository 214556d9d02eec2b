//! Chooses the processors, the memory and the devices of this agent's ranks.
//!
//! All agents of a node compute the same seats for the node's ranks, and each uses those of its own. The topology is read
//! for the first rank that is to be bound.

use std::cell::{OnceCell, RefCell};
use std::rc::Rc;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use pmi::{Rank, Ranks};

use super::accelerators::{Accelerators, RankDevices};
use super::node_topology::this_node;
use crate::core::{
    Allowed, BindTo, BindingError, BindingNote, BindingPolicy, BindingReport, BoundRanks, CpuSet, LackOfDevices,
    MemoryPolicy, NamespacePlan, Seat, Seating, Topology, describe, seats,
};
use crate::sys::CpuMarks;
use crate::tasks::Tasks;

/// How long marking processors may take.
const MARKING_TIME: Duration = Duration::from_millis(500);
/// The number of processors that Slurm has given the job, or the step, on this node.
const PROCESSORS_OF_JOB: &str = "SLURM_CPUS_ON_NODE";

/// The seats of a node with this number of ranks.
type Computed = (u32, Rc<Result<Seating, BindingError>>);

/// Binds the ranks of a session on this agent.
pub(super) struct Binder {
    policy: BindingPolicy,
    accelerators: Accelerators,
    session: u16,
    tasks: Tasks,
    node: OnceCell<(Topology, Allowed)>,
    last: RefCell<Option<Computed>>,
    /// Tells other sessions on this machine which processors this agent's ranks use.
    marks: Option<CpuMarks>,
    /// The user has asked for no binding, and another session uses the same processors.
    gives_way: bool,
}

impl Binder {
    /// Makes the binder of a session with this number.
    pub(super) fn new(policy: BindingPolicy, accelerators: Accelerators, session: u16, tasks: Tasks) -> Self {
        let (node, last) = (OnceCell::new(), RefCell::new(None));
        Self { policy, accelerators, session, tasks, node, last, marks: None, gives_way: false }
    }

    fn node(&self) -> &(Topology, Allowed) {
        self.node.get_or_init(this_node)
    }

    /// The policy for a namespace here; `None` if it asks for nothing. Ranks of MPI_Comm_spawn are not bound: they would
    /// get the processors of those that spawned them.
    fn policy(&self, plan: &NamespacePlan) -> Option<&BindingPolicy> {
        let asks = self.policy.bind_to != BindTo::Nothing || self.policy.memory != MemoryPolicy::Inherited;
        (asks && plan.spawner.is_none() && !self.gives_way && self.may_share()).then_some(&self.policy)
    }

    /// Whether an even share of the node is what this session may take: the job has all processors that this agent may use.
    fn may_share(&self) -> bool {
        if self.policy.bind_to != BindTo::Share {
            return true;
        }
        let of_job = std::env::var(PROCESSORS_OF_JOB).ok().and_then(|text| text.trim().parse::<u32>().ok());
        of_job.is_some_and(|of_job| of_job >= self.node().1.cpus.len())
    }

    /// Returns the seats of the ranks of a node with `ranks` ranks.
    fn seating(&self, policy: &BindingPolicy, ranks: u32) -> Rc<Result<Seating, BindingError>> {
        if let Some((of, seating)) = &*self.last.borrow()
            && *of == ranks
        {
            return Rc::clone(seating);
        }
        let (topology, allowed) = self.node();
        let seating = Rc::new(seats(topology, allowed, policy, ranks));
        *self.last.borrow_mut() = Some((ranks, Rc::clone(&seating)));
        seating
    }

    /// Returns the number of a rank among those of its node, and the number of those.
    fn local(&self, plan: &NamespacePlan, rank: Rank) -> Option<(u32, u32)> {
        if self.policy.is_one_machine {
            return Some((rank.0, plan.size));
        }
        let node = plan.mapping.node_of(rank)?;
        Some((plan.mapping.local_rank(rank)?, plan.mapping.local_size(node)))
    }

    /// Returns the seat of a rank of this agent; `None` if it is not bound.
    pub(super) fn seat(&self, plan: &NamespacePlan, rank: Rank) -> Result<Option<Seat>, BindingError> {
        let Some((policy, (local, ranks))) = self.policy(plan).zip(self.local(plan, rank)) else { return Ok(None) };
        let seating = self.seating(policy, ranks);
        seating.as_ref().as_ref().map(|seating| seating.of(policy.place_of(rank, local)).cloned()).map_err(Clone::clone)
    }

    /// Returns the devices of a rank of this agent; none if it asks for none. Ranks of MPI_Comm_spawn get none: all may be in
    /// use.
    ///
    /// # Errors
    ///
    /// The node has too few devices for its ranks.
    pub(super) fn devices(&self, plan: &NamespacePlan, rank: Rank) -> Result<RankDevices, LackOfDevices> {
        let asks = plan.spawner.is_none() && !self.accelerators.are_none();
        let Some((local, ranks)) = self.local(plan, rank).filter(|_| asks) else { return Ok(RankDevices::default()) };
        let node = plan.mapping.node_of(rank);
        let rank_of = |local: u32| {
            let is_meant = |rank: &Rank| plan.mapping.node_of(*rank) == node;
            let on_node = || (0..plan.size).map(Rank).filter(is_meant).nth(local as usize);
            if self.policy.is_one_machine { Rank(local) } else { on_node().unwrap_or(rank) }
        };
        let near = |local: u32| {
            let place = if self.policy.order.is_empty() { local } else { self.policy.place_of(rank_of(local), local) };
            let seating = self.policy(plan).map(|policy| self.seating(policy, ranks));
            let cpus = seating.and_then(|seating| Some(seating.as_ref().as_ref().ok()?.of(place)?.cpus.clone()));
            self.node().0.numa_nodes_of(&cpus.unwrap_or_default())
        };
        self.accelerators.of(rank, local, ranks, near, rank_of)
    }

    /// Chooses the seats of `ranks`, the ranks of a namespace on this agent, and marks their processors.
    pub(super) fn begin(&mut self, plan: &NamespacePlan, ranks: &Ranks) -> BindingReport {
        let mut report = BindingReport::default();
        if plan.spawner.is_some() {
            return report;
        }
        (self.marks, self.gives_way) = (None, false);
        report.note = self.settle(plan, ranks);
        if self.policy.reports {
            report.bound = self.bound(plan, ranks);
        }
        report
    }

    /// Marks the processors of `ranks`, and gives way to other sessions if the user has not asked for this binding.
    /// Returns a note for the user, if this agent has the node's first rank.
    fn settle(&mut self, plan: &NamespacePlan, ranks: &Ranks) -> Option<BindingNote> {
        let policy = self.policy(plan)?;
        let (first, size) = self.local(plan, ranks.first()?)?;
        let seating = self.seating(policy, size);
        // A binding that cannot be made is reported for each rank.
        let seating = seating.as_ref().as_ref().ok()?;
        let all = seating.cpus();
        if all.is_empty() {
            return BindingNote::of_crowded(seating, policy, size, &self.node().1).filter(|_| first == 0);
        }
        let own = ranks.iter().filter_map(|rank| seating.of(policy.place_of(rank, self.local(plan, rank)?.0)));
        let own = own.fold(CpuSet::new(), |all, seat| all.union(&seat.cpus));
        let (others, marks) = match mark(self.session, &own, &self.tasks) {
            Ok(marked) => marked,
            Err(why) => return why.filter(|_| first == 0).map(|why| BindingNote::Unmarked { why }),
        };
        let cpus = others.intersection(&all);
        if policy.bind_to == BindTo::Share && !cpus.is_empty() {
            self.gives_way = true;
            return None;
        }
        self.marks = Some(marks);
        (first == 0 && !cpus.is_empty()).then_some(BindingNote::Shared { cpus })
    }

    /// Describes the seats of this agent's ranks.
    fn bound(&self, plan: &NamespacePlan, ranks: &Ranks) -> Vec<BoundRanks> {
        let seat = |rank| {
            let devices = self.devices(plan, rank).unwrap_or_default().text();
            Some((rank, self.seat(plan, rank).ok()?.unwrap_or_default(), devices))
        };
        let (topology, allowed) = self.node();
        describe(topology, allowed, ranks.iter().filter_map(seat))
    }
}

/// Describes a binding that cannot be made, and says what to try.
pub fn binding_failed(error: &BindingError) -> String {
    match error {
        BindingError::Cpus { .. } => format!("{error}; name others with --bind-to user:LIST"),
        BindingError::Memory { .. } => format!("{error}; name others with --mem-bind"),
        BindingError::TooWide { most, .. } => {
            format!("{error}; give each at most {most} by --bind-to LEVEL:N, PE=N or --cpus-per-rank N")
        }
    }
}

/// Marks processors, then returns those of other sessions, and the marks: of two sessions that begin at the same time, at least one
/// sees the other. A thread does it, because no file system may stop the agent. Returns why it cannot be done; `None` on a machine
/// without a place for marks.
fn mark(session: u16, own: &CpuSet, tasks: &Tasks) -> Result<(CpuSet, CpuMarks), Option<String>> {
    let ranges = own.ranges();
    let (send, marked) = sync_channel(1);
    let work = move || {
        let marks = CpuMarks::set(session, &ranges);
        // If the thread finishes late, its result is dropped, which removes the marks.
        let _ = send.send(marks.and_then(|marks| Ok((marks.of_others()?, marks))));
    };
    tasks.spawn_thread("marks", work).map_err(|error| Some(format!("no thread can be started: {error}")))?;
    match marked.recv_timeout(MARKING_TIME) {
        Ok(Ok((others, marks))) => Ok((others.into_iter().flat_map(|(first, last)| first..=last).collect(), marks)),
        Ok(Err(error)) if error.kind() == std::io::ErrorKind::NotFound => Err(None),
        Ok(Err(error)) => Err(Some(error.to_string())),
        Err(_) => Err(Some(format!("it takes longer than {} s", MARKING_TIME.as_secs_f64()))),
    }
}
