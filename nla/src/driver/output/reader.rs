//! The loop of the thread that reads all pipes of an agent.
//!
//! The kernel reports pipes that can be read (epoll). It does so at each write, which costs a rank that prints many short
//! lines about as much as the write itself. A busy pipe is therefore taken out of the epoll set and read again and
//! again, with pauses in which the pipes fill.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::time::Instant;

use bytes::BytesMut;
use pmi::Rank;
use slab::Slab;

use super::direct::Direct;
use super::lane::{Blocked, LaneState};
use super::pace::Pace;
use super::quote::{LastWriter, Quote, Tail};
use super::room::Room;
use super::stream::{Found, READ_BYTES, Stream, Watch};
use super::{Command, Commands, STREAM_HEADER_BYTES};
use crate::core::NamespaceId;
use crate::core::limits::{DRAIN_TIME, PARTIAL_LINE_DELAY};
use crate::driver::uplink::Uplink;
use crate::link::Receipt;
use crate::sys::{self, EpollSet};
use crate::wire::Lane;

/// Pipes of a lane that are read before the other lane, and commands, have their turn.
const READS_PER_TURN: usize = 32;
/// The most pipes that get more room. With more ranks that write fast, the agent always finds a full pipe, and more room only fills
/// the caches.
const WIDENED_MAX: usize = 4;
/// The key of the launcher's stream of the first lane; that of the next lane follows. No pipe of a rank has them.
const DIRECT_KEY: usize = usize::MAX - 2;

/// An incomplete line that is sent if its pipe is quiet until then.
struct Partial {
    key: usize,
    /// When its last bytes were read.
    read: Instant,
}

/// Reads all pipes of an agent.
pub(super) struct Reader {
    parent: Uplink,
    hold_lines: bool,
    set: EpollSet,
    pace: Pace,
    lanes: [LaneState; 2],
    /// Both lanes are the same pipe of the launcher. All pipes of ranks are then read in the first lane, so that no line is written in
    /// the middle of another one.
    has_one_pipe: bool,
    streams: Slab<Stream>,
    /// The pipes of ranks that have not exited, by lane. They may be closed.
    keys: HashMap<(NamespaceId, Rank), [usize; 2]>,
    /// The number of pipes that got more room.
    widened: usize,
    /// In the order in which they are due. Empty where lines are held.
    partials: VecDeque<Partial>,
    /// What ranks have written last to standard error whose pipes are closed and that may have failed.
    tails: HashMap<(NamespaceId, Rank), Tail>,
    last_writer: LastWriter,
    /// The rank whose last lines are sent at the end.
    quoted: Option<(NamespaceId, Rank)>,
    /// Bytes of all incomplete lines.
    held: usize,
    buffer: BytesMut,
    /// No process of the session is left; the time when a pipe was read last.
    draining: Option<Instant>,
    /// The number of pipes that were given up because processes out of reach have them open.
    leaked: usize,
    /// Messages were queued that the link's task has not been woken for.
    has_queued: bool,
}

impl Reader {
    /// `streams` are those of the launcher to which the thread writes.
    pub(super) fn new(streams: [Option<File>; 2], set: EpollSet, pace: Pace, parent: Uplink, hold_lines: bool) -> Self {
        let has_one_pipe = match &streams {
            [Some(out), Some(err)] => sys::is_same_pipe(out, err),
            _ => false,
        };
        let [out, err] = streams;
        let lanes =
            [(Lane::Stdout, out, DIRECT_KEY), (Lane::Stderr, err, DIRECT_KEY + 1)].map(|(lane, stream, key)| {
                let direct = stream.and_then(|stream| Direct::new(stream, lane == Lane::Stdout, &set, key).ok());
                LaneState::new(lane, direct, Room::new(set.waker()))
            });
        Self {
            parent,
            hold_lines,
            set,
            pace,
            lanes,
            has_one_pipe,
            streams: Slab::new(),
            keys: HashMap::new(),
            widened: 0,
            partials: VecDeque::new(),
            tails: HashMap::new(),
            last_writer: LastWriter::default(),
            quoted: None,
            held: 0,
            buffer: BytesMut::new(),
            draining: None,
            leaked: 0,
            has_queued: false,
        }
    }

    /// Follows the commands until [`Command::Finish`] is done. Returns the number of pipes that were left open, or `None`
    /// after [`Command::Stop`].
    pub(super) fn run(mut self, commands: &Commands) -> Option<usize> {
        let leaked = self.follow_commands(commands);
        self.lanes.iter_mut().for_each(|lane| lane.hand_over(&self.parent));
        if leaked.is_some() {
            self.send_quote();
        }
        self.parent.flush();
        leaked
    }

    fn follow_commands(&mut self, commands: &Commands) -> Option<usize> {
        let mut ready = Vec::new();
        loop {
            for command in commands.take() {
                match command {
                    Command::Follow { namespace, rank, pipes } => self.follow(namespace, rank, pipes),
                    Command::Ended { namespace, rank, has_failed } => self.on_ended(namespace, rank, has_failed),
                    Command::Finish { quoted } => {
                        self.quoted = quoted;
                        self.begin_drain();
                    }
                    Command::Stop => return None,
                }
            }
            let now = Instant::now();
            let mut next = None;
            let mut is_blocked = false;
            for lane in 0..self.lanes.len() {
                let turn = self.read_turn(lane);
                is_blocked |= turn.is_err();
                let at = match turn {
                    Ok(at) => at,
                    Err(Blocked::Until(at)) => Some(at),
                    Err(Blocked::NoRoom) => None,
                };
                next = earlier(next, at);
            }
            if let Some(progress) = &mut self.draining {
                if is_blocked {
                    // A slow reader of the output has no deadline.
                    *progress = now;
                } else if self.streams.is_empty() {
                    return Some(self.leaked);
                } else if progress.elapsed() >= DRAIN_TIME {
                    return Some(self.give_up());
                }
                next = earlier(next, Some(*progress + DRAIN_TIME));
            }
            next = earlier(next, self.send_due());
            if std::mem::take(&mut self.has_queued) {
                self.parent.flush();
            }
            let time = next.map(|next| next.saturating_duration_since(Instant::now()));
            if let Err(error) = self.set.wait(time, &mut ready) {
                tracing::warn!(%error, "the output of ranks cannot be read");
                return Some(self.streams.len());
            }
            for (key, has_no_writer) in ready.drain(..) {
                if let Some(stream) = self.streams.get_mut(key) {
                    stream.has_no_writer |= has_no_writer;
                    self.lanes[stream.lane].enqueue(key, stream);
                }
            }
        }
    }

    fn follow(&mut self, namespace: NamespaceId, rank: Rank, pipes: [OwnedFd; 2]) {
        // Those of a former start of the rank.
        self.tails.remove(&(namespace, rank));
        let mut numbers = 0..;
        let keys = pipes.map(|pipe| {
            let number = numbers.next().unwrap_or_default();
            let (lane, is_stderr) = (if self.has_one_pipe { 0 } else { number }, number == 1);
            let entry = self.streams.vacant_entry();
            let key = entry.key();
            match self.set.add(&pipe, key) {
                Ok(()) => drop(entry.insert(Stream::new(namespace, rank, lane, pipe, is_stderr))),
                Err(error) => tracing::warn!(%rank, %error, "the output of a rank cannot be read"),
            }
            key
        });
        self.keys.insert((namespace, rank), keys);
    }

    fn on_ended(&mut self, namespace: NamespaceId, rank: Rank, has_failed: bool) {
        if !has_failed {
            self.tails.remove(&(namespace, rank));
        }
        for key in self.keys.remove(&(namespace, rank)).into_iter().flatten() {
            // The pipe may be closed, and its key that of another one.
            if let Some(stream) = self.streams.get_mut(key)
                && (stream.namespace, stream.rank) == (namespace, rank)
            {
                stream.left = Some(stream.unread());
                if !has_failed {
                    stream.tail = None;
                }
                self.send_last_line(key);
            }
        }
    }

    /// Sends the last lines of a rank that has failed.
    fn send_quote(&mut self) {
        if let Some(rank) = self.quoted
            && let Some(tail) = self.tails.get(&rank)
        {
            let quote = Quote::of(rank, tail, &self.last_writer);
            self.parent.queue(Lane::Stderr, quote.message(), Receipt::default());
        }
    }

    /// Begins to read each pipe to its end.
    fn begin_drain(&mut self) {
        self.draining = Some(Instant::now());
        for (key, stream) in &mut self.streams {
            stream.left = Some(stream.unread());
            self.lanes[stream.lane].enqueue(key, stream);
        }
        self.lanes.iter_mut().for_each(|lane| lane.end_polling());
    }

    /// Closes the pipes that were silent for too long. Returns the number of pipes that were left open.
    fn give_up(&mut self) -> usize {
        let keys: Vec<usize> = self.streams.iter().map(|(key, _)| key).collect();
        self.leaked += keys.len();
        keys.into_iter().for_each(|key| self.close(key));
        self.leaked
    }

    /// Reads some pipes of a lane. Returns when it wants to be called again, unless a pipe is reported before.
    fn read_turn(&mut self, lane: usize) -> Result<Option<Instant>, Blocked> {
        let now = Instant::now();
        let state = &mut self.lanes[lane];
        self.has_queued |= state.write_waiting(&self.parent)?;
        for key in state.begin_round(now) {
            if let Some(stream) = self.streams.get_mut(key) {
                state.enqueue(key, stream);
            }
        }
        for _ in 0..READS_PER_TURN {
            if self.lanes[lane].queue.is_empty() {
                break;
            }
            if let Some(at) = self.pace.next_read() {
                return Err(Blocked::Until(at));
            }
            let state = &mut self.lanes[lane];
            self.has_queued |= state.write_waiting(&self.parent)?;
            if !state.room.has(READ_BYTES) {
                return Err(Blocked::NoRoom);
            }
            if let Some(key) = state.queue.pop_front() {
                self.read(key);
            }
        }
        let state = &mut self.lanes[lane];
        if !state.queue.is_empty() {
            return Ok(Some(now));
        }
        Ok(state.end_round())
    }

    /// Reads a pipe once, sends whole lines and stores the rest.
    fn read(&mut self, key: usize) {
        let Some(stream) = self.streams.get_mut(key) else { return };
        stream.is_queued = false;
        let held = stream.held();
        let found = stream.read(&mut self.buffer, self.held - held);
        let count = match &found {
            Found::End => return self.close(key),
            Found::Bytes(count, _) => *count,
            Found::Nothing => {
                stream.has_no_writer = false;
                0
            }
        };
        let state = &mut self.lanes[stream.lane];
        if let Found::Bytes(count, message) = found {
            self.pace.on_read();
            state.note_read(count);
            if self.widened < WIDENED_MAX && stream.widen(count) {
                self.widened += 1;
            }
            self.held = self.held - held + stream.held();
            if let Some(message) = message {
                if stream.is_stderr || self.has_one_pipe {
                    self.last_writer.note((stream.namespace, stream.rank), &message[STREAM_HEADER_BYTES..]);
                }
                self.has_queued |= state.send(&self.parent, message);
            }
            if !self.hold_lines && stream.held() > 0 {
                self.partials.push_back(Partial { key, read: stream.last_read });
            }
        }
        if let Some(progress) = &mut self.draining {
            if count > 0 {
                *progress = stream.last_read;
            }
            if stream.left == Some(0) && stream.unread() > 0 {
                // A process out of reach still writes.
                self.leaked += 1;
                return self.close(key);
            }
        }
        match stream.watch {
            // A pipe that has more is not reported again. A read of a pipe in packet mode returns one packet.
            Watch::Reported { .. } if stream.has_no_writer || count > 0 && stream.unread() > 0 => {
                state.enqueue(key, stream);
            }
            Watch::Reported { .. } if stream.is_busy() && self.set.remove(&stream.pipe).is_ok() => {
                stream.watch = Watch::POLLED;
                state.begin_polling(key);
            }
            Watch::Reported { .. } => {}
            Watch::Polled { .. } if stream.is_quiet() && self.set.add(&stream.pipe, key).is_ok() => {
                stream.watch = Watch::REPORTED;
            }
            Watch::Polled { .. } => state.poll_again(key),
        }
        self.send_last_line(key);
    }

    /// Sends the incomplete line of a pipe whose rank has exited, once all that the rank wrote was read.
    fn send_last_line(&mut self, key: usize) {
        if self.draining.is_none()
            && let Some(stream) = self.streams.get_mut(key)
            && stream.left == Some(0)
        {
            stream.left = None;
            self.send_held(key);
        }
    }

    /// Sends the incomplete lines whose pipes were quiet for [`PARTIAL_LINE_DELAY`]. Returns when the next one is due.
    fn send_due(&mut self) -> Option<Instant> {
        let now = Instant::now();
        while let Some(partial) = self.partials.front() {
            let Partial { key, read } = *partial;
            if read + PARTIAL_LINE_DELAY > now {
                return Some(read + PARTIAL_LINE_DELAY);
            }
            self.partials.pop_front();
            if self.streams.get(key).is_some_and(|stream| stream.last_read == read) {
                self.send_held(key);
            }
        }
        None
    }

    /// Sends the incomplete line of a pipe, if there is one. Its bytes are stored here or in the link: the bound on the
    /// bytes of all such lines makes waiting for room unnecessary.
    fn send_held(&mut self, key: usize) {
        if let Some(stream) = self.streams.get_mut(key)
            && let held = stream.held()
            && let Some(message) = stream.take_held(&mut self.buffer)
        {
            self.held -= held;
            if stream.is_stderr || self.has_one_pipe {
                self.last_writer.note((stream.namespace, stream.rank), &message[STREAM_HEADER_BYTES..]);
            }
            self.has_queued |= self.lanes[stream.lane].send(&self.parent, message);
        }
    }

    /// Sends the incomplete line of a pipe, and closes the pipe.
    fn close(&mut self, key: usize) {
        self.send_held(key);
        if let Some(stream) = self.streams.try_remove(key) {
            if matches!(stream.watch, Watch::Reported { .. }) {
                let _ = self.set.remove(&stream.pipe);
            }
            if let Some(tail) = stream.tail.filter(|tail| !tail.is_empty()) {
                self.tails.insert((stream.namespace, stream.rank), tail);
            }
        }
    }
}

/// Returns the earlier time of those that are known.
fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    one.into_iter().chain(other).min()
}

#[cfg(test)]
mod tests {
    use std::io::{PipeWriter, Read, Seek, Write};
    use std::os::fd::AsFd;
    use std::sync::Arc;
    use std::thread;

    use super::super::pace::PmiWaits;
    use super::super::{PIPE_BYTES, STREAM_HEADER_BYTES, split_stream_message};
    use super::*;
    use crate::sys;

    const RANK: (NamespaceId, Rank) = (NamespaceId(0), Rank(5));

    /// A thread that reads, its commands, and where its messages arrive.
    struct Fixture {
        commands: Arc<Commands>,
        uplink: Uplink,
        thread: thread::JoinHandle<Option<usize>>,
    }

    impl Fixture {
        fn start(hold_lines: bool) -> Self {
            Self::start_with([None, None], hold_lines)
        }

        /// Output goes to the files, as far as there are any.
        fn start_with(files: [Option<File>; 2], hold_lines: bool) -> Self {
            let set = EpollSet::new().expect("descriptors are left");
            let commands = Arc::new(Commands { queue: Default::default(), waker: set.waker() });
            let uplink = Uplink::without_link();
            let pace = Pace::new(Arc::new(PmiWaits::new()));
            let reader = Reader::new(files, set, pace, uplink.clone(), hold_lines);
            let orders = Arc::clone(&commands);
            Self { commands, uplink, thread: thread::spawn(move || reader.run(&orders)) }
        }

        fn order(&self, command: Command) {
            self.commands.queue().push(command);
            self.commands.waker.wake();
        }

        fn stop(self) {
            self.order(Command::Stop);
            assert_eq!(self.thread.join().expect("it does not panic"), None);
        }

        /// Makes it read the pipes of a rank. Returns the rank's ends.
        fn follow(&self) -> [PipeWriter; 2] {
            self.follow_after(b"")
        }

        /// The rank has written `text` to standard output before.
        fn follow_after(&self, text: &[u8]) -> [PipeWriter; 2] {
            let [(out, mut to_out), (err, to_err)] = [(); 2].map(|()| std::io::pipe().expect("a pipe"));
            to_out.write_all(text).expect("the pipe has room");
            let pipes = [out, err].map(OwnedFd::from);
            pipes.iter().for_each(|pipe| sys::set_nonblocking(pipe.as_fd()).expect("a pipe can be nonblocking"));
            self.order(Command::Follow { namespace: RANK.0, rank: RANK.1, pipes });
            [to_out, to_err]
        }

        /// Waits until as many bytes of a lane have arrived.
        fn arrived(&self, lane: Lane, bytes: usize) -> Vec<u8> {
            let mut all = Vec::new();
            while all.len() < bytes {
                for (of, message) in self.uplink.take_waiting() {
                    assert_eq!(of, lane);
                    assert!(message.len() > STREAM_HEADER_BYTES);
                    let (namespace, rank, data) = split_stream_message(message).expect("it has a header");
                    assert_eq!((namespace, rank), RANK);
                    all.extend_from_slice(&data);
                }
                thread::yield_now();
            }
            all
        }
    }

    #[test]
    fn a_line_waits_for_its_end_or_that_of_its_rank_and_pipes_are_read_to_their_ends() {
        let reader = Fixture::start(true);
        let [mut out, mut err] = reader.follow();
        out.write_all(b"one\ntwo").expect("the pipe has room");
        assert_eq!(reader.arrived(Lane::Stdout, 4), b"one\n");
        // A process that outlives the rank has the pipes open.
        reader.order(Command::Ended { namespace: RANK.0, rank: RANK.1, has_failed: true });
        assert_eq!(reader.arrived(Lane::Stdout, 3), b"two");
        err.write_all(b"three\nfour").expect("the pipe has room");
        assert_eq!(reader.arrived(Lane::Stderr, 6), b"three\n");
        drop((out, err));
        reader.order(Command::Finish { quoted: None });
        assert_eq!(reader.arrived(Lane::Stderr, 4), b"four");
        assert_eq!(reader.thread.join().expect("it does not panic"), Some(0));
    }

    #[test]
    fn an_incomplete_line_is_sent_after_a_while_if_lines_are_not_held() {
        let reader = Fixture::start(false);
        let [mut out, _err] = reader.follow();
        out.write_all(b"name? ").expect("the pipe has room");
        assert_eq!(reader.arrived(Lane::Stdout, 6), b"name? ");
        reader.stop();
    }

    #[test]
    fn output_with_a_file_is_written_there_in_whole_lines() {
        let mut file = tempfile::tempfile().expect("a file");
        let reader = Fixture::start_with([Some(file.try_clone().expect("a descriptor is left")), None], true);
        let [mut out, mut err] = reader.follow();
        out.write_all(b"one\ntw").expect("the pipe has room");
        err.write_all(b"three\n").expect("the pipe has room");
        assert_eq!(reader.arrived(Lane::Stderr, 6), b"three\n", "it has no file");
        out.write_all(b"o\nfour").expect("the pipe has room");
        drop((out, err));
        reader.order(Command::Finish { quoted: None });
        assert_eq!(reader.thread.join().expect("it does not panic"), Some(0));
        assert!(reader.uplink.take_waiting().is_empty());
        let mut written = String::new();
        file.rewind().and_then(|()| file.read_to_string(&mut written)).expect("the file is there");
        assert_eq!(written, "one\ntwo\nfour");
    }

    #[test]
    fn lines_of_both_streams_in_one_pipe_stay_whole_and_go_to_the_parent_in_one_lane_if_it_is_not_read() {
        let (mut from, to) = std::io::pipe().expect("a pipe");
        let to = File::from(OwnedFd::from(to));
        let copy = to.try_clone().expect("a descriptor is left");
        let reader = Fixture::start_with([Some(to), Some(copy)], true);
        let streams = reader.follow();
        // More than the pipe holds after it was widened.
        const LINES: usize = 100_000;
        let writers = [b'o', b'e'].into_iter().zip(streams).map(|(letter, mut stream)| {
            let line = [[letter; 9].as_slice(), b"\n"].concat();
            thread::spawn(move || stream.write_all(&line.repeat(LINES)).expect("it is read"))
        });
        let writers: Vec<_> = writers.collect();
        let mut rest = reader.arrived(Lane::Stdout, 1);
        // Nothing is added to the pipe after that.
        let mut all = vec![0; sys::unread_bytes(from.as_fd()).expect("a pipe knows")];
        from.read_exact(&mut all).expect("the bytes are there");
        rest.extend(reader.arrived(Lane::Stdout, 2 * 10 * LINES - all.len() - rest.len()));
        all.extend(rest);
        writers.into_iter().for_each(|writer| writer.join().expect("it does not panic"));
        reader.stop();
        for line in [b"ooooooooo", b"eeeeeeeee"] {
            assert_eq!(all.split(|byte| *byte == b'\n').filter(|found| found == line).count(), LINES);
        }
    }

    #[test]
    fn the_last_line_that_its_pipe_has_no_room_for_goes_to_the_parent() {
        let (from, to) = std::io::pipe().expect("a pipe");
        let reader = Fixture::start_with([Some(OwnedFd::from(to).into()), None], true);
        let [mut out, err] = reader.follow();
        out.write_all(&[b"0123456\n".repeat(PIPE_BYTES as usize / 8), b"last".to_vec()].concat()).expect("it is read");
        drop((out, err));
        reader.order(Command::Finish { quoted: None });
        assert_eq!(reader.arrived(Lane::Stdout, 4), b"last");
        assert_eq!(reader.thread.join().expect("it does not panic"), Some(0));
        assert_eq!(sys::unread_bytes(from.as_fd()).expect("a pipe knows"), PIPE_BYTES as usize);
    }

    #[test]
    fn output_that_its_file_does_not_take_goes_to_the_parent() {
        let file = File::open("/dev/null").expect("it exists");
        let reader = Fixture::start_with([Some(file), None], true);
        let [mut out, _err] = reader.follow();
        for line in [&b"one\n"[..], b"two\n"] {
            out.write_all(line).expect("the pipe has room");
            assert_eq!(reader.arrived(Lane::Stdout, 4), line);
        }
        reader.stop();
    }

    /// More than the pipes hold, so that pipes are polled, and returned to the epoll set when they are quiet.
    #[test]
    fn every_byte_of_a_flood_arrives_in_order_and_so_does_the_line_after_a_pause() {
        let reader = Fixture::start(true);
        let [mut out, _err] = reader.follow();
        let flood: Vec<u8> = (0..60_000).flat_map(|line| format!("line {line}\n").into_bytes()).collect();
        let writer = {
            let flood = flood.clone();
            thread::spawn(move || {
                flood.chunks(700).for_each(|piece| out.write_all(piece).expect("it is read"));
                out
            })
        };
        assert!(reader.arrived(Lane::Stdout, flood.len()) == flood);
        let mut out = writer.join().expect("it does not panic");
        out.write_all(b"after\n").expect("the pipe has room");
        assert_eq!(reader.arrived(Lane::Stdout, 6), b"after\n");
        reader.stop();
    }

    #[test]
    fn the_first_pipes_that_were_full_get_more_room() {
        use nix::fcntl::{FcntlArg, fcntl};
        let reader = Fixture::start(true);
        let rooms = [(); WIDENED_MAX + 1].map(|()| {
            let [out, _err] = reader.follow_after(&b"line 12\n".repeat(READ_BYTES / 8));
            reader.arrived(Lane::Stdout, READ_BYTES);
            fcntl(&out, FcntlArg::F_GETPIPE_SZ).expect("it is a pipe")
        });
        assert!(rooms[..WIDENED_MAX].iter().all(|room| *room == 256 * 1024), "{rooms:?}");
        assert_eq!(rooms[WIDENED_MAX], 64 * 1024, "{rooms:?}");
        reader.stop();
    }

    /// A rank may set O_DIRECT: each read of the pipe then returns one write.
    #[test]
    fn all_packets_of_a_pipe_in_packet_mode_arrive() {
        let reader = Fixture::start(true);
        let [mut out, _err] = reader.follow();
        let flags = nix::fcntl::OFlag::O_DIRECT;
        nix::fcntl::fcntl(out.as_fd(), nix::fcntl::FcntlArg::F_SETFL(flags)).expect("a pipe has this mode");
        for _ in 0..100 {
            out.write_all(b"packet\n").expect("the pipe has room");
        }
        assert_eq!(reader.arrived(Lane::Stdout, 700), b"packet\n".repeat(100));
        reader.stop();
    }

    /// Runs a rank that writes and ends with a failure or not. Returns its quote.
    fn quote(has_failed: bool) -> Option<Quote> {
        let reader = Fixture::start(true);
        let [_, mut err] = reader.follow();
        err.write_all(b"one\ntwo").expect("the pipe has room");
        assert_eq!(reader.arrived(Lane::Stderr, 4), b"one\n");
        drop(err);
        reader.order(Command::Ended { namespace: RANK.0, rank: RANK.1, has_failed });
        reader.order(Command::Finish { quoted: Some(RANK) });
        assert_eq!(reader.thread.join().expect("it does not panic"), Some(0));
        let mut messages = reader.uplink.take_waiting();
        let quote = messages.last().and_then(|(lane, message)| Quote::parse(message).filter(|_| *lane == Lane::Stderr));
        messages.truncate(messages.len() - usize::from(quote.is_some()));
        assert!(messages.iter().all(|(_, message)| Quote::parse(message).is_none()));
        quote
    }

    #[test]
    fn the_last_lines_of_a_rank_that_has_failed_follow_all_output() {
        let quote = quote(true).expect("the rank has failed");
        assert_eq!((quote.namespace, quote.rank, &quote.lines[..]), (RANK.0, RANK.1, &b"one\ntwo"[..]));
        assert!(quote.is_together, "no other rank has written");
        assert_eq!(super::tests::quote(false), None, "nothing is stored of a rank that has succeeded");
    }

    #[test]
    fn a_pipe_that_an_unreachable_process_keeps_open_is_given_up() {
        let reader = Fixture::start(true);
        let [_out, _err] = reader.follow();
        reader.order(Command::Finish { quoted: None });
        assert_eq!(reader.thread.join().expect("it does not panic"), Some(2));
    }
}
