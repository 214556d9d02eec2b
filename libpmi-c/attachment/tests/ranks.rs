//! Ranks as threads of this process, each with its own attachment, against an agent thread: in both
//! protocols, with a shared segment and without.

use std::borrow::Cow;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::thread;
use std::time::Duration;

use attachment::{Attachment, Environment, Error, Member, ServerAddress, Version};
use pmi::{Conversation, Epoch, JobAttributes, Rank, Ranks, segment, v1};

mod agent;

use agent::Agent;

/// A rank and its connection.
struct Process {
    attachment: Attachment,
    environment: Environment,
    socket: UnixStream,
}

impl Process {
    fn of(agent: &Agent, version: Version, rank: u32, size: u32) -> Self {
        Self::on(agent.serve(rank), version, rank, size)
    }

    fn on(socket: UnixStream, version: Version, rank: u32, size: u32) -> Self {
        let path = format!("/proc/self/fd/{}", socket.as_raw_fd());
        let inode = std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(path).expect("the socket has no inode"));
        let environment = Environment {
            server: ServerAddress::Descriptor(socket.as_raw_fd()),
            rank,
            size,
            is_spawned: false,
            job: None,
            segment: Some(segment::announcement(inode).into_bytes()),
        };
        Self { attachment: Attachment::new(version), environment, socket }
    }

    fn initialize(&self) -> &'static Member {
        self.attachment.initialize(&self.environment).expect("initialisation failed")
    }

    fn member(&self) -> &'static Member {
        self.attachment.member().expect("the rank is not initialised")
    }

    fn put(&self, key: &str, value: &str) {
        self.attachment.put(self.member(), key.as_bytes(), value.as_bytes()).expect("the put failed");
    }

    fn get(&self, key: &str) -> Option<String> {
        let value = self.attachment.get(self.member(), key.as_bytes()).expect("the get failed");
        value.map(|value| String::from_utf8_lossy(&value).into_owned())
    }

    fn fence(&self) {
        self.attachment.fence(self.member()).expect("the fence failed");
    }
}

/// Runs the ranks in both protocols, with a segment and without.
fn in_all_modes(size: u32, rank: impl Fn(&Process, u32) + Sync) {
    for version in [Version::One, Version::Two] {
        for has_segment in [true, false] {
            let agent = Agent::new(size, has_segment);
            thread::scope(|scope| {
                for number in 0..size {
                    let (agent, rank) = (&agent, &rank);
                    scope.spawn(move || {
                        let process = Process::of(agent, version, number, size);
                        process.initialize();
                        rank(&process, number);
                        process.attachment.finalize().expect("finalisation failed");
                    });
                }
            });
        }
    }
}

fn some(value: &str) -> Option<String> {
    Some(value.to_owned())
}

#[test]
fn own_puts_are_visible_at_once_and_those_of_others_after_the_fence() {
    in_all_modes(3, |process, me| {
        for round in 0..5 {
            let key = |rank: u32| format!("{rank}-{round}");
            process.put(&key(me), "wrong");
            process.put(&key(me), &format!("of {me}"));
            process.put("shared", &format!("{round}"));
            assert_eq!(process.get(&key(me)), some(&format!("of {me}")));
            process.fence();
            for other in 0..3 {
                assert_eq!(process.get(&key(other)), some(&format!("of {other}")));
            }
            assert_eq!(process.get("shared"), some(&round.to_string()));
            assert_eq!(process.get("absent"), None);
            process.fence();
        }
    });
}

#[test]
fn a_failed_fence_is_an_error_and_the_next_one_works() {
    for (has_segment, version) in [(true, Version::One), (false, Version::One), (false, Version::Two)] {
        let agent = Agent::new(1, has_segment);
        let process = Process::of(&agent, version, 0, 1);
        process.initialize();
        agent.state().fails = true;
        process.put("a", "1");
        let error = process.attachment.fence(process.member()).expect_err("a rank has died");
        assert!(error.to_string().contains("died"), "{error}");
        assert_eq!(process.get("a"), some("1"), "the entries of the fence are visible");
        process.fence();
    }
}

#[test]
fn entries_of_the_agent_are_found() {
    in_all_modes(2, |process, me| {
        let (attachment, member) = (&process.attachment, process.initialize());
        assert_eq!((member.rank(), member.size(), member.is_spawned()), (me, 2, false));
        assert_eq!(attachment.name(member).unwrap(), c"fake-1_0");
        assert_eq!(member.known_name(), Some(c"fake-1_0"));
        assert_eq!(attachment.appnum(member).unwrap(), 3);
        assert_eq!(attachment.universe_size().unwrap(), 16);
        assert_eq!(attachment.clique(member).unwrap(), [0, 1]);
        let maxes = attachment.maxes(member).unwrap();
        assert_eq!((maxes.kvsname, maxes.key, maxes.value), (64, 64, 1024));
        assert_eq!(process.get("PMI_process_mapping"), some("(vector,(0,1,2))"));
        assert_eq!(process.get("PARENT"), some("tag#0$"));
        assert_eq!(attachment.job_attribute(b"universeSize").unwrap(), Some(b"16".to_vec()));
    });
}

#[test]
fn puts_that_no_server_takes_are_refused_before_the_fence() {
    for version in [Version::One, Version::Two] {
        let process = Process::of(&Agent::new(1, true), version, 0, 1);
        let member = process.initialize();
        let put = |key: &[u8], value: &[u8]| process.attachment.put(member, key, value);
        assert!(put(&[b'k'; 63], &[b'v'; 1023]).is_ok());
        for refused in [put(&[b'k'; 64], b"v"), put(b"k", &[b'v'; 1024]), put(b"", b"v"), put(b"PMI_x", b"v")] {
            assert!(matches!(refused, Err(Error::Put(_))), "{refused:?}");
        }
        let large = [b'v'; 1023];
        let put_all = |count: u32| (0..count).try_for_each(|number| put(number.to_string().as_bytes(), &large));
        assert!(matches!(put_all(20_000), Err(Error::Full)));
        process.fence();
        assert_eq!(process.get("9999").map(|value| value.len()), Some(1023));
        assert!(put(b"k", b"again").is_ok());
    }
}

#[test]
fn with_a_closed_log_gets_go_over_the_wire_and_fences_still_release() {
    let agent = Agent::new(2, true);
    let processes = [0, 1].map(|rank| Process::of(&agent, Version::One, rank, 2));
    for process in &processes {
        process.initialize();
    }
    agent.publish(Epoch::from_entries([(&b"a"[..], &b"1"[..])]));
    agent.close_log();
    assert_eq!(processes[0].get("a"), some("1"));
    thread::scope(|scope| {
        for (rank, process) in processes.iter().enumerate() {
            scope.spawn(move || {
                process.put(&format!("{rank}"), "x");
                process.fence();
                assert_eq!(process.get(&format!("{}", 1 - rank)), some("x"));
            });
        }
    });
}

#[test]
fn a_board_that_outgrows_its_window_is_remapped() {
    let agent = Agent::new(1, true);
    let process = Process::of(&agent, Version::One, 0, 1);
    let member = process.initialize();
    let value = [b'v'; 1000];
    let mut first = None;
    // This agent writes its board anew each time: some 100 MB in the end.
    for round in 0..6 {
        let keys: Vec<String> = (0..4000).map(|number| format!("{round}-{number}")).collect();
        agent.publish(Epoch::from_entries(keys.iter().map(|key| (key.as_bytes(), &value[..]))));
        for key in keys.iter().step_by(97) {
            assert_eq!(process.get(key).map(|value| value.len()), Some(1000));
        }
        let got = process.attachment.get(member, b"0-7").unwrap();
        first.get_or_insert(got.clone());
        assert!(matches!(got, Some(Cow::Borrowed(_))), "not read from the segment");
    }
    // The value found in the first window is still readable.
    assert_eq!(first.flatten().as_deref(), Some(&value[..]));
}

#[test]
fn threads_get_while_others_are_in_fences() {
    let agent = Agent::new(2, true);
    let processes = [0, 1].map(|rank| Process::of(&agent, Version::One, rank, 2));
    for process in &processes {
        process.initialize();
    }
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let fencers: Vec<_> = processes
            .iter()
            .enumerate()
            .map(|(me, process)| {
                scope.spawn(move || {
                    for round in 0..300 {
                        process.put(&format!("{me}"), &format!("{round:0>500}"));
                        process.fence();
                    }
                })
            })
            .collect();
        for process in &processes {
            scope.spawn(|| {
                let mut seen = [0; 2];
                while !is_over.load(Ordering::Relaxed) {
                    for (rank, seen) in seen.iter_mut().enumerate() {
                        let Some(value) = process.get(&format!("{rank}")) else { continue };
                        let round: u32 = value.parse().expect("a value is torn");
                        assert!(round >= *seen, "round {round} was read after round {seen}");
                        *seen = round;
                    }
                }
            });
        }
        fencers.into_iter().for_each(|fencer| fencer.join().unwrap());
        is_over.store(true, Ordering::Relaxed);
    });
}

/// Runs a call in a thread, whose end `done` reports.
fn in_thread(done: &mpsc::Sender<()>, call: impl FnOnce() + Send + 'static) {
    let done = done.clone();
    thread::spawn(move || {
        call();
        let _ = done.send(());
    });
}

/// Each rank has three threads in three fences, which the ranks enter in different orders.
#[test]
fn threads_are_in_fences_of_groups_and_of_all_ranks_at_the_same_time() {
    for has_segment in [true, false] {
        let agent = Agent::new(2, has_segment);
        // Never freed: if the test fails, threads are left that use them.
        let processes: [&'static Process; 2] =
            [0, 1].map(|rank| &*Box::leak(Box::new(Process::of(&agent, Version::One, rank, 2))));
        for process in processes {
            process.initialize();
        }
        let pair = Ranks::range(0..2);
        let (done, is_done) = mpsc::channel();
        let group = |process: &'static Process, tag: u32| {
            let (pair, me) = (pair.clone(), process.environment.rank);
            in_thread(&done, move || {
                process.put(&format!("{me}-{tag}"), "v");
                process.attachment.fence_group(process.member(), &pair, tag).expect("the fence of the group failed");
                assert_eq!(process.get(&format!("{}-{tag}", 1 - me)), some("v"));
            });
        };
        let all = |process: &'static Process| in_thread(&done, || process.fence());
        let wait_for = |count: usize| {
            (0..count).for_each(|_| is_done.recv_timeout(Duration::from_secs(60)).expect("a thread waits for ever"));
        };
        for _ in 0..3 {
            group(processes[0], 1);
            group(processes[1], 2);
            while agent.state().open_groups() < 2 {
                thread::yield_now();
            }
            assert!(matches!(processes[0].attachment.finalize(), Err(Error::Busy)));
            // Other requests are answered meanwhile.
            for process in processes {
                in_thread(&done, || assert_eq!(process.attachment.universe_size().expect("no answer"), 16));
            }
            wait_for(2);
            group(processes[0], 2);
            group(processes[1], 1);
            wait_for(4);
            // In the same order with the fence of all ranks, and twice in the same group.
            all(processes[0]);
            while agent.state().arrived() == 0 {
                thread::yield_now();
            }
            for _ in 0..2 {
                in_thread(&done, {
                    let pair = pair.clone();
                    move || processes[0].attachment.fence_group(processes[0].member(), &pair, 3).expect("it failed")
                });
            }
            for _ in 0..2 {
                processes[1].attachment.fence_group(processes[1].member(), &pair, 3).expect("it failed");
            }
            all(processes[1]);
            wait_for(4);
        }
        processes.iter().for_each(|process| process.attachment.finalize().expect("finalisation failed"));
    }
}

#[test]
fn a_thread_in_the_fence_of_a_group_notices_that_the_agent_has_disconnected() {
    for has_segment in [true, false] {
        let agent = Agent::new(2, has_segment);
        let process = Process::of(&agent, Version::One, 0, 2);
        let member = process.initialize();
        let (pair, attachment) = (&Ranks::range(0..2), &process.attachment);
        thread::scope(|scope| {
            let waiters = [1, 2].map(|tag| scope.spawn(move || attachment.fence_group(member, pair, tag)));
            while agent.state().open_groups() < 2 {
                thread::yield_now();
            }
            process.socket.shutdown(std::net::Shutdown::Both).unwrap();
            for waiter in waiters {
                assert!(matches!(waiter.join().unwrap(), Err(Error::Disconnected)));
            }
        });
        assert!(attachment.fence_group(member, pair, 3).is_err());
    }
}

#[test]
fn a_waiting_rank_notices_that_the_agent_has_disconnected() {
    for version in [Version::One, Version::Two] {
        let agent = Agent::new(2, true);
        let process = Process::of(&agent, version, 0, 2);
        let member = process.initialize();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| process.attachment.fence(member));
            while agent.state().arrived() == 0 {
                thread::yield_now();
            }
            process.socket.shutdown(std::net::Shutdown::Both).unwrap();
            assert!(matches!(waiter.join().unwrap(), Err(Error::Disconnected)));
        });
        assert!(process.attachment.fence(member).is_err());
        assert!(process.attachment.get(member, b"PARENT").unwrap().is_some(), "the mapped board is no longer readable");
        assert!(process.attachment.publish(b"s", b"p").is_err());
        assert!(process.attachment.finalize().is_err());
        assert!(process.attachment.finalize().is_ok(), "a second finalisation fails");
    }
}

#[test]
fn calls_in_a_forked_child_fail_without_blocking() {
    let agent = Agent::new(2, true);
    let process = Process::of(&agent, Version::One, 0, 2);
    let member = process.initialize();
    process.put("k", "v");
    thread::scope(|scope| {
        let waiter = scope.spawn(|| process.attachment.fence(member));
        while agent.state().arrived() == 0 {
            thread::yield_now();
        }
        // The child does not have the thread that waits in the fence.
        let attachment = &process.attachment;
        // SAFETY: the child makes calls that must not block or use anything of the parent's, and then
        // calls _exit.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                let fails = [
                    attachment.member().is_err(),
                    attachment.initialize(&process.environment).is_err(),
                    attachment.finalize().is_ok(),
                    attachment.last_member().is_err(),
                    attachment.universe_size().is_err(),
                    attachment.fence(member).is_err(),
                    attachment.put(member, b"a", b"b").is_err(),
                ];
                attachment.abort(1, b"no");
                libc::_exit(fails.iter().position(|&fails| !fails).map_or(0, |at| at as i32 + 1));
            }
            let mut status = 0;
            libc::waitpid(child, &mut status, 0);
            assert_eq!((libc::WIFEXITED(status), libc::WEXITSTATUS(status)), (true, 0));
        }
        let other = Process::of(&agent, Version::One, 1, 2);
        other.initialize();
        other.fence();
        waiter.join().unwrap().unwrap();
        assert_eq!(other.get("k"), some("v"));
    });
    assert!(agent.state().requests.iter().all(|request| !request.contains("Abort")));
}

#[test]
fn a_finalised_process_may_initialise_again() {
    for version in [Version::One, Version::Two] {
        let agent = Agent::new(1, true);
        let process = Process::of(&agent, version, 0, 1);
        let first = process.initialize();
        assert!(std::ptr::eq(first, process.initialize()), "a second call created another member");
        process.put("k", "lost");
        for _ in 0..20 {
            process.attachment.finalize().unwrap();
            assert!(process.attachment.member().is_err());
            assert!(matches!(process.attachment.last_member(), Ok(Some(last)) if std::ptr::eq(last, first)));
            assert!(process.attachment.universe_size().is_err());
            assert!(std::ptr::eq(first, process.initialize()), "the member was created anew");
        }
        assert_eq!(process.get("k"), None);
        process.put("k", "v");
        process.fence();
        assert_eq!(process.get("k"), some("v"));
    }
}

#[test]
fn a_process_without_a_launcher_is_a_singleton() {
    for version in [Version::One, Version::Two] {
        let attachment = Attachment::new(version);
        let member = attachment.initialize(&Environment::read(|_| None).unwrap()).unwrap();
        let get = |key: &[u8]| attachment.get(member, key).unwrap().map(Cow::into_owned);
        assert_eq!((member.rank(), member.size(), member.is_singleton()), (0, 1, true));
        attachment.put(member, b"k", b"1").unwrap();
        attachment.put(member, b"k", b"2").unwrap();
        assert_eq!(get(b"k"), Some(b"2".to_vec()));
        attachment.fence(member).unwrap();
        assert_eq!(get(b"k"), Some(b"2".to_vec()));
        assert_eq!(get(b"x"), None);
        assert_eq!(attachment.clique(member).unwrap(), [0]);
        assert_eq!(attachment.universe_size().unwrap(), 1);
        assert!(attachment.name(member).unwrap().to_bytes().starts_with(b"singleton_"));
        assert!(matches!(attachment.publish(b"s", b"p"), Err(Error::Unsupported)));
        let ring = attachment.ring(b"me", b"me").unwrap();
        assert_eq!((ring.position, &ring.from_left[..], &ring.from_right[..]), (0, &b"me"[..], &b"me"[..]));
        attachment.node_put(b"shm", b"path").unwrap();
        assert_eq!(attachment.node_get(b"shm", true).unwrap(), Some(b"path".to_vec()));
        let entries: Vec<_> = attachment.entries(member).unwrap().filter(|(key, _)| **key == *b"k").collect();
        assert_eq!(entries, [(Cow::Borrowed(&b"k"[..]), Cow::Borrowed(&b"2"[..]))]);
        attachment.finalize().unwrap();
    }
}

#[test]
fn entries_are_a_snapshot_with_the_newest_values() {
    for (has_segment, is_closed) in [(true, false), (true, true), (false, false)] {
        let agent = Agent::new(1, has_segment);
        let process = Process::of(&agent, Version::One, 0, 1);
        let member = process.initialize();
        for (key, value) in [("a", "1"), ("b", "1")] {
            process.put(key, value);
        }
        process.fence();
        process.put("a", "2");
        process.fence();
        process.put("b", "3");
        process.put("c", "3");
        if is_closed {
            agent.close_log();
        }
        let entries = process.attachment.entries(member).unwrap();
        process.put("d", "4");
        process.fence();
        let mut entries: Vec<(String, String)> = entries
            .map(|(key, value)| (String::from_utf8_lossy(&key).into(), String::from_utf8_lossy(&value).into()))
            .collect();
        entries.sort();
        let expected = [("PARENT", "tag#0$"), ("a", "2"), ("b", "3"), ("c", "3")];
        assert_eq!(entries, expected.map(|(key, value)| (key.to_owned(), value.to_owned())));
    }
}

#[test]
fn names_attributes_and_rings_work_over_the_wire() {
    let agent = Agent::new(2, true);
    thread::scope(|scope| {
        let ranks = [0, 1].map(|me| {
            let agent = &agent;
            scope.spawn(move || {
                let process = Process::of(agent, Version::Two, me, 2);
                process.initialize();
                let attachment = &process.attachment;
                if me == 0 {
                    attachment.publish(b"service", b"port").unwrap();
                    assert!(attachment.publish(b"service", b"port").is_err());
                    attachment.node_put(b"shm", b"path").unwrap();
                    assert!(attachment.connect(b"fake-2_0").is_ok());
                    assert!(attachment.connect(b"fake-3_0").is_err());
                    assert_eq!(attachment.get_from_job(b"fake-2_0", -1, b"k").unwrap(), Some(b"theirs".to_vec()));
                } else {
                    assert_eq!(attachment.node_get(b"shm", true).unwrap(), Some(b"path".to_vec()));
                    assert_eq!(attachment.node_get(b"none", false).unwrap(), None);
                    assert_eq!(attachment.lookup(b"nothing").unwrap(), None);
                }
                let ring = attachment.ring(format!("l{me}").as_bytes(), format!("r{me}").as_bytes()).unwrap();
                let other = 1 - me;
                assert_eq!((ring.position, ring.from_left), (me, format!("r{other}").into_bytes()));
                assert_eq!(ring.from_right, format!("l{other}").into_bytes());
            })
        });
        ranks.into_iter().for_each(|rank| rank.join().unwrap());
    });
}

#[test]
fn an_abort_is_sent_while_another_thread_waits() {
    for (version, has_segment) in [(Version::One, true), (Version::One, false), (Version::Two, true)] {
        let agent = Agent::new(2, has_segment);
        let process = Process::of(&agent, version, 0, 2);
        let member = process.initialize();
        let barrier = Barrier::new(2);
        thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                barrier.wait();
                process.attachment.fence(member)
            });
            barrier.wait();
            while agent.state().arrived() == 0 {
                thread::yield_now();
            }
            process.attachment.abort(7, b"two\nwords");
            assert!(process.attachment.member().is_err());
            assert!(process.attachment.finalize().is_ok(), "finalisation waited for the fence");
            if has_segment {
                // Without a segment, the agent reads the next request only after the fence.
                let is_abort = |line: &String| line.contains("Abort { code: 7, message: \"two words\" }");
                while !agent.state().requests.iter().any(is_abort) {
                    thread::yield_now();
                }
            }
            process.socket.shutdown(std::net::Shutdown::Both).unwrap();
            assert!(waiter.join().unwrap().is_err());
        });
    }
}

/// The server speaks PMI-1 only and has no segment, like Flux's.
#[test]
fn libpmi2_falls_back_to_pmi_1() {
    let (own, theirs) = UnixStream::pair().unwrap();
    let server = thread::spawn(move || {
        let attributes = JobAttributes {
            kvsname: "flux".into(),
            spawner: None,
            size: 1,
            universe_size: 4,
            mapping: Some("(vector,(0,1,1))".into()),
            preputs: Epoch::default(),
            puts_at_once: false,
        };
        let mut conversation = Conversation::new(Arc::new(attributes), Rank(0), 0);
        let (mut lines, mut out) = (BufReader::new(own), Vec::new());
        let mut line = String::new();
        let mut board = pmi::Board::new();
        while lines.read_line(&mut line).unwrap_or(0) > 0 {
            out.clear();
            if line.contains("pmi_version=2") {
                out.extend_from_slice(b"cmd=response_to_init rc=-1 pmi_version=1 pmi_subversion=1\n");
            }
            conversation.receive(if out.is_empty() { line.as_bytes() } else { b"" });
            while let Some(request) = conversation.advance(&board, &mut out) {
                if let pmi::Request::Fence { puts, .. } = request {
                    board.publish(Epoch::merge(&puts).unwrap());
                    conversation.answer(pmi::Answer::Released, &mut out);
                }
            }
            line.clear();
            lines.get_mut().write_all(&out).unwrap();
        }
    });
    let process = Process::on(theirs, Version::Two, 0, 1);
    let process = Process { environment: Environment { segment: None, ..process.environment.clone() }, ..process };
    let member = process.initialize();
    let attachment = &process.attachment;
    process.put("k", "v");
    assert_eq!(process.get("k"), some("v"));
    process.fence();
    assert_eq!(process.get("k"), some("v"));
    attachment.node_put(b"shm", b"path").unwrap();
    assert_eq!(attachment.node_get(b"shm", true).unwrap(), Some(b"path".to_vec()));
    assert_eq!(process.get("local::shm"), some("path"));
    assert_eq!(attachment.job_attribute(b"universeSize").unwrap(), Some(b"4".to_vec()));
    assert_eq!(attachment.job_attribute(b"PMI_process_mapping").unwrap(), Some(b"(vector,(0,1,1))".to_vec()));
    assert_eq!(attachment.clique(member).unwrap(), [0]);
    assert!(matches!(attachment.ring(b"", b""), Err(Error::Unsupported)));
    assert!(matches!(attachment.connect(b"job"), Err(Error::Unsupported)));
    attachment.finalize().unwrap();
    drop(process);
    server.join().unwrap();
}

#[test]
fn ranks_can_connect_to_a_port() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = thread::spawn(move || {
        for stream in listener.incoming().take(2) {
            let mut stream = stream.unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap());
            let mut line = String::new();
            lines.read_line(&mut line).unwrap();
            let rank = v1::initack::parse(line.trim_end().as_bytes()).unwrap();
            let mut conversation = Conversation::new(Arc::new(remote_attributes()), rank, 0);
            stream.write_all(&v1::initack::reply(&remote_attributes(), rank)).unwrap();
            let mut chunk = [0; 1000];
            while let Ok(read @ 1..) = lines.read(&mut chunk) {
                let mut out = Vec::new();
                conversation.receive(&chunk[..read]);
                while conversation.advance(&pmi::Board::new(), &mut out).is_some() {}
                stream.write_all(&out).unwrap();
            }
        }
    });
    for version in [Version::One, Version::Two] {
        let attachment = Attachment::new(version);
        let environment = Environment {
            server: ServerAddress::Port { host: "localhost".into(), port },
            rank: 3,
            size: 1,
            is_spawned: false,
            job: None,
            segment: None,
        };
        let member = attachment.initialize(&environment).unwrap();
        assert_eq!((member.rank(), member.size()), (3, 5));
        assert_eq!(attachment.name(member).unwrap(), c"port");
        assert_eq!(attachment.get(member, b"nothing").unwrap(), None);
        assert_eq!(attachment.clique(member).unwrap(), [3], "without a mapping, the clique is the rank alone");
        attachment.finalize().unwrap();
    }
    server.join().unwrap();
}

fn remote_attributes() -> JobAttributes {
    JobAttributes {
        kvsname: "port".into(),
        spawner: None,
        size: 5,
        universe_size: -1,
        mapping: None,
        preputs: Epoch::default(),
        puts_at_once: false,
    }
}

#[test]
fn a_segment_announced_for_another_socket_is_not_requested() {
    let agent = Agent::new(1, true);
    let mut process = Process::of(&agent, Version::One, 0, 1);
    process.environment.segment = Some(segment::announcement(1).into_bytes());
    process.initialize();
    assert_eq!(process.get("PARENT"), some("tag#0$"));
    assert_eq!(agent.state().requests, ["0: Joined"]);
}
