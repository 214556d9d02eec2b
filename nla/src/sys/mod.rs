//! The agent's system calls: the only `unsafe` code of this crate.
//!
//! The functions are thin and safe, and contain no policy: `core` decides when to start or signal a rank, and
//! `driver` carries it out. The contract of the whole module:
//!
//! - **Order at start-up.** `main` of an agent calls [`guarded`], [`reserve_low`], [`raise_limit`],
//!   [`become_subreaper`] and [`forbid_dump`] before it opens anything else, then makes its
//!   [`Spawner`]s. A constructor has recorded the state of the user's shell ([`ShellState`]) before `main`.
//! - **One thread reaps and signals.** [`Launching::reap`], [`reap()`], [`has_children`], [`kill_children`], [`end_orphans`]
//!   and [`Child::signal_group`] belong to one thread: a pid is signalled only while no other thread can reap it, and each
//!   reaped child is reported to whatever may signal it before the next signal. So a reused pid is never signalled. The
//!   launcher does not let the kernel reap its children ([`reset_sigchld`]); an agent signals its guardian, which is no
//!   child of its, by a pidfd, and what lost agents have left ([`end_guardians`], [`end_marked`]), which any thread may end, by
//!   descriptors too. Each [`Spawner::spawn`] may belong to another thread, which lives as long as the agent;
//!   it reaps only a child that could not exec, under the lock of [`Launching`].
//! - **Every descriptor is close-on-exec from birth**; a rank gets 0, 1, 2, [`PMI_FD`] and
//!   [`RANK_FILE_FD`], with profiles [`PROFILE_FD`], and no other descriptor, however many ranks are started at the same time.
//! - **No function logs**, blocks unless documented, or changes the state of the whole process, except the functions
//!   of `identity`, `descriptors`, `end_signals`, `forked`, `guardian` and `spawn` whose names say so.
//!
//! Linux only: x86_64 and aarch64, glibc and musl.

pub mod allocator;
pub mod announced_directory;
mod attributes;
pub mod below;
mod cgroup;
mod cgroup_files;
mod child;
pub mod cpu_marks;
pub mod descriptors;
mod end_signals;
mod epoll_set;
pub mod forked;
pub mod guardian;
pub mod identity;
pub mod image;
pub mod inherited;
mod kernel_files;
mod launcher_streams;
mod launching;
pub mod local_socket;
mod memory;
mod nested;
pub mod new_file;
pub mod output_file;
pub mod packet;
mod path_walk;
pub mod pmix;
pub mod profile_file;
pub mod rank_file;
pub mod readiness;
pub mod reap;
pub mod regular_file;
mod remove_tree;
mod rewrite;
pub mod secret;
pub mod segment;
pub mod served;
pub mod shared_files;
pub mod shell;
mod shm_note;
mod signs;
pub mod spawn;
pub mod stage_cache;
pub mod stage_directory;
mod survivors;
mod task_limits;
mod tcp_pace;
pub mod tcp_peer;
mod timer;
mod told_signals;
#[cfg(test)]
pub(crate) mod users;

pub use allocator::{LargePages, keep_freed_memory};
pub use announced_directory::{AnnouncedDirectory, DirectoryNote};
pub use below::{Below, BelowEntry};
pub use cgroup::{end_group_of, look_up_cgroup};
pub use cgroup_files::{memory_limits, usable_cores};
pub use cpu_marks::CpuMarks;
pub use descriptors::{
    LOW_MAX, close_inherited, dev_null, inode, input_pipe, leave_to_program, make_room, open_descriptors,
    open_files_limit, open_files_max, pipe, raise_limit, read_more, read_with_sender, reserve_low, send_descriptor,
    set_nonblocking, socket_pair, socket_pair_with_senders, take_inherited, terminal_columns, unread_bytes, widen_pipe,
    write_ready,
};
pub use end_signals::EndSignalsHeld;
pub use epoll_set::{EpollSet, Waker};
pub use forked::{
    FORKED_EXIT_TIME, Forked, ForkedGuardian, ForkedGuardians, ForkedStanding, Standby, StandingGuardian, await_exit,
    fork_guardian, fork_guardians, fork_standing, name_process, serve_forks,
};
pub use guardian::{CODE_ABANDONED, GuardianLink, fork_alone, guarded};
pub use identity::{
    addresses, addresses_of, affinity, become_subreaper, cores, end_with_this_thread, forbid_dump,
    has_one_thread_within, host_name, new_session, set_process_name, set_thread_nice,
};
pub use image::{Image, ImageError};
pub use inherited::pmi_socket;
pub use kernel_files::random_source;
pub use launcher_streams::{is_pipe, is_same_pipe, needs_no_reader, open_pipe_again, take_launcher_streams};
pub use launching::{InLaunch, LaunchSlot, Launching, SPAWNERS_MAX, wait_channel};
pub use local_socket::{
    LocalName, LocalPeer, Surroundings, connect_to_name, listen_at_name, local_name, new_local_name, peer_of,
};
pub use memory::{MemoryShortage, MemoryWatch, largest_child_bytes, resident_bytes};
pub use nested::NestedGuardians;
pub use new_file::{create_beside, replace_file};
pub use output_file::{OutputMode, is_one_file, open_output, output_path, true_path};
pub use packet::{
    PACKET_BYTES_MAX, PACKET_DESCRIPTORS_MAX, Packet, PacketListener, Packets, WatchedListener, WatchedPackets,
};
pub use profile_file::{PROFILE_FD, ProfileFile};
pub use rank_file::{RANK_FILE_FD, RANK_FILE_PATH, RankFile};
pub use readiness::{Watched, watch, watch_end};
pub use reap::{
    Ended, ExitSignalsHeld, blocked_children_but, catches, children_but, descendants_but, end_orphans, has_children,
    has_children_but, has_group, is_stopped, kill_children, kill_children_but, kill_group, leave_exit_signals,
    pidfd_of_this, process_state, program_of, reap, refusal_text, signal_all, signal_by, signal_name, variable_of,
};
pub use regular_file::{open_input, open_regular};
pub use remove_tree::FilesLeft;
pub use rewrite::{Destination, Fifo, Rewrite};
pub use secret::{SECRET_BYTES, SecretPage};
pub use segment::{Segment, SegmentReader};
pub use served::{Served, adopt_shell, keep_variables, leave_served};
pub use shared_files::{
    FileNumbers, ProcessFiles, SharedFile, SharedMemory, files_in_use, mapped_files, processes, user,
};
pub use shell::{LimitCut, ShellState, limit_name, stdout_was_closed};
pub use shm_note::ShmNote;
pub use signs::Stop;
pub use spawn::{
    Child, Descriptors, Masks, PMI_FD, SpawnError, SpawnStep, Spawner, ignore_file_size_signal, let_kernel_reap,
    reset_sigchld, restore_termination_signals,
};
pub use stage_cache::StageCache;
pub use stage_directory::{StageDirectory, StageRoom, is_in_memory, set_modified, stage_room};
pub use survivors::{end_guardians, end_marked, machine, start_of};
pub use task_limits::{TaskLimit, TaskLimitPlace, processes_of_session, reached_limit};
pub use tcp_pace::{Acks, Delivery, acks, delivery, limit_rate};
pub use tcp_peer::{SocketDiag, process_of_peer, uid_in_table};
pub use timer::Timer;
pub use told_signals::{SignalSender, ToldSignals, block_all_deadly_signals, block_signals_without_meaning};
