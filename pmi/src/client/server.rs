//! [`Server`] and [`ScriptedStream`]: the servers that the tests of both clients use, without sockets.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Read, Write};
use std::sync::Arc;

use crate::{
    Answer, Board, Conversation, Epoch, JobAttributes, NameError, PmixAnswer, Rank, Request, RootRequest, SpawnedJob,
};

/// A server for a job of one rank, which serves what is written to it immediately.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) conversation: Conversation,
    pub(crate) board: Board,
    /// The published names and their ports.
    names: Vec<(Vec<u8>, Vec<u8>)>,
    /// The attributes of the node, the newest first.
    attributes: Vec<(Vec<u8>, Vec<u8>)>,
    pub(crate) requests: Vec<Request>,
    pub(crate) replies: VecDeque<u8>,
    /// The bytes of each write.
    pub(crate) writes: Vec<Vec<u8>>,
    /// The most bytes that one read or write transfers.
    pub(crate) bytes_at_once: usize,
    pub(crate) has_segment: bool,
}

impl Server {
    /// A server that transfers a few bytes at a time and has no segment.
    pub(crate) fn new() -> Self {
        let attributes = JobAttributes {
            kvsname: "kvs_1".into(),
            size: 1,
            universe_size: 4,
            mapping: Some("(vector,(0,1,1))".into()),
            preputs: Epoch::default(),
            spawner: Some("kvs_0".into()),
            puts_at_once: false,
        };
        Self {
            conversation: Conversation::new(Arc::new(attributes), Rank(0), 2),
            board: Board::new(),
            names: Vec::new(),
            attributes: Vec::new(),
            requests: Vec::new(),
            replies: VecDeque::new(),
            writes: Vec::new(),
            bytes_at_once: 7,
            has_segment: false,
        }
    }

    /// A server that takes each request whole and has a segment.
    pub(crate) fn with_segment() -> Self {
        Self { bytes_at_once: usize::MAX, has_segment: true, ..Self::new() }
    }

    fn serve(&mut self) {
        let mut out = Vec::new();
        while let Some(request) = self.conversation.advance(&self.board, &mut out) {
            if let Some(answer) = self.answer_to(&request) {
                self.conversation.answer(answer, &mut out);
            }
            self.requests.push(request);
        }
        self.replies.extend(out);
    }

    fn answer_to(&mut self, request: &Request) -> Option<Answer> {
        let find = |pairs: &[(Vec<u8>, Vec<u8>)], name: &[u8]| {
            pairs.iter().find(|pair| pair.0 == name).map(|pair| pair.1.clone())
        };
        Some(match request {
            Request::Fence { puts, in_segment } => {
                self.board.publish(Epoch::merge(puts).unwrap());
                if *in_segment {
                    return None;
                }
                Answer::Released
            }
            Request::GroupFence { ranks, tag, payload } => {
                Answer::GroupFenced { ranks: ranks.clone(), tag: *tag, payload: Some(payload.clone()) }
            }
            Request::Ring { to_left, to_right } => {
                Answer::Ring { position: 0, from_left: to_right.clone(), from_right: to_left.clone() }
            }
            Request::NodePut { key, value } => {
                self.attributes.insert(0, (key.clone(), value.clone()));
                Answer::NodePut(true)
            }
            Request::NodeGet { key, .. } => Answer::NodeGot(find(&self.attributes, key)),
            Request::Ask(RootRequest::GetFromJob { job, key }) if job == b"kvs_0" => {
                Answer::GotFromJob(self.board.get(key).map(Into::into))
            }
            Request::Ask(RootRequest::GetFromJob { .. }) => Answer::GotFromJob(None),
            Request::Ask(RootRequest::Pmix(_)) => Answer::Pmix(PmixAnswer::Modex(None)),
            Request::Ask(RootRequest::Connect { job }) => Answer::Connected(job == b"kvs_0"),
            Request::Ask(RootRequest::Publish { service, port }) => {
                let taken = find(&self.names, service).is_some();
                self.names.push((service.clone(), port.clone()));
                Answer::Published(if taken { Err(NameError::Taken) } else { Ok(()) })
            }
            Request::Ask(RootRequest::Lookup { service }) => {
                Answer::Found(find(&self.names, service).ok_or(NameError::Unknown))
            }
            Request::Ask(RootRequest::Unpublish { service }) => {
                self.names.retain(|(name, _)| name != service);
                Answer::Unpublished(Ok(()))
            }
            Request::Ask(RootRequest::Spawn(order)) => match &*order.commands[0].program {
                b"missing" => Answer::Spawned(Err("no such file or directory".into())),
                program => {
                    let mut codes = vec![0; order.ranks() as usize];
                    if program == b"partly" {
                        codes[1] = 13;
                    }
                    Answer::Spawned(Ok(SpawnedJob { job: "kvs_2".into(), codes }))
                }
            },
            Request::TopologyFile => Answer::Got(None),
            Request::Segment => Answer::Segment(self.has_segment),
            Request::Get { key } => Answer::Got(self.board.get(key).map(|value| value.to_vec().into())),
            Request::Put { .. } => return None,
            Request::Joined | Request::Abort { .. } | Request::Finalized | Request::Broken { .. } => return None,
        })
    }
}

impl Write for Server {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = bytes.len().min(self.bytes_at_once);
        self.writes.push(bytes[..written].to_vec());
        self.conversation.receive(&bytes[..written]);
        self.serve();
        Ok(written)
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let parts: Vec<&[u8]> = parts.iter().map(|part| &**part).collect();
        self.write(&parts.concat())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Server {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = buffer.len().min(self.bytes_at_once).min(self.replies.len());
        for (slot, byte) in buffer.iter_mut().zip(self.replies.drain(..read)) {
            *slot = byte;
        }
        Ok(read)
    }
}

/// A stream with prepared replies that records what is written.
#[derive(Debug)]
pub(crate) struct ScriptedStream {
    replies: Vec<u8>,
    read: usize,
    pub(crate) sent: Vec<u8>,
}

impl ScriptedStream {
    pub(crate) fn new(replies: impl Into<Vec<u8>>) -> Self {
        Self { replies: replies.into(), read: 0, sent: Vec::new() }
    }
}

impl Write for ScriptedStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.sent.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for ScriptedStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // One byte at a time, so that a client that reads further than it must is noticed.
        let read = (&self.replies[self.read..]).take(1).read(buffer)?;
        self.read += read;
        Ok(read)
    }
}
