//! [`Replies`]: what arrives on a connection that several threads use at once.
//!
//! The connection's lock orders the requests, so at most one thread expects an ordinary reply. Others wait for ends of
//! fences, which arrive at any time. One waiting thread reads, without a lock, and hands each line to the thread
//! that expects it. Once that thread has its own line, another waiting thread reads.

use std::io;
use std::os::fd::RawFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use pmi::client::ClientError;
use pmi::limits::LINE_BYTES_MAX;
use pmi::v1::client::barrier_end;

use crate::error::Error;
use crate::socket;

/// The lines that have arrived, by the thread that they are for.
#[derive(Debug)]
pub(crate) struct Replies {
    descriptor: RawFd,
    inbox: Mutex<Inbox>,
    arrived: Condvar,
}

#[derive(Debug, Default)]
struct Inbox {
    /// A thread reads from the connection.
    is_read: bool,
    is_closed: bool,
    /// The beginning of a line.
    begun: Vec<u8>,
    /// Lines other than ends of fences.
    ordinary: Vec<u8>,
    /// The fences that are waited for, the one that was entered first in front, with their outcomes.
    fences: Vec<(u32, Option<Result<(), ClientError>>)>,
    last_thread: u32,
}

/// The end of one fence, which one thread waits for.
#[derive(Debug)]
pub(crate) struct FenceEnd {
    replies: Arc<Replies>,
    thread: u32,
}

impl Replies {
    pub(crate) fn new(descriptor: RawFd) -> Self {
        Self { descriptor, inbox: Mutex::default(), arrived: Condvar::new() }
    }

    /// Reads bytes of ordinary replies; 0 once the connection is closed.
    pub(crate) fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.wait_for(|inbox| {
            let count = buffer.len().min(inbox.ordinary.len());
            buffer[..count].copy_from_slice(&inbox.ordinary[..count]);
            inbox.ordinary.drain(..count);
            (count > 0 || inbox.is_closed).then_some(count)
        })
    }

    /// Expects the end of a fence that is about to be entered.
    pub(crate) fn expect_end(self: &Arc<Self>) -> FenceEnd {
        let mut inbox = self.lock();
        inbox.last_thread = inbox.last_thread.wrapping_add(1);
        let thread = inbox.last_thread;
        inbox.fences.push((thread, None));
        drop(inbox);
        FenceEnd { replies: Arc::clone(self), thread }
    }

    /// Waits until `take` finds what it looks for.
    fn wait_for<T>(&self, mut take: impl FnMut(&mut Inbox) -> Option<T>) -> io::Result<T> {
        let mut inbox = self.lock();
        loop {
            if let Some(taken) = take(&mut inbox) {
                return Ok(taken);
            }
            if inbox.is_read {
                inbox = self.arrived.wait(inbox).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            inbox.is_read = true;
            drop(inbox);
            let mut chunk = [0; 4096];
            let received = socket::receive(self.descriptor, &mut chunk);
            inbox = self.lock();
            inbox.is_read = false;
            self.arrived.notify_all();
            match received? {
                0 => inbox.is_closed = true,
                count => inbox.take_in(&chunk[..count]),
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inbox> {
        // No panic can leave the contents inconsistent.
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inbox {
    fn take_in(&mut self, mut bytes: &[u8]) {
        while let Some(end) = bytes.iter().position(|&byte| byte == b'\n') {
            let (line, rest) = bytes.split_at(end + 1);
            bytes = rest;
            self.begun.extend_from_slice(line);
            match barrier_end(&self.begun[..self.begun.len() - 1]) {
                Some((thread, outcome)) => self.end_fence(thread, outcome),
                None => self.ordinary.append(&mut self.begun),
            }
            self.begun.clear();
        }
        self.begun.extend_from_slice(bytes);
        if self.begun.len() > LINE_BYTES_MAX {
            // Pass an overlong line to the reader of replies, which rejects it.
            self.ordinary.append(&mut self.begun);
        }
    }

    /// A server that serves one fence at a time names no thread, and ends the fence that was entered first.
    fn end_fence(&mut self, thread: Option<u32>, outcome: Result<(), ClientError>) {
        let is_it = |(number, ended): &&mut (u32, Option<_>)| match thread {
            Some(thread) => *number == thread,
            None => ended.is_none(),
        };
        if let Some((_, ended)) = self.fences.iter_mut().find(is_it) {
            *ended = Some(outcome);
        }
    }
}

impl FenceEnd {
    /// Returns the number by which the server names this fence.
    pub(crate) fn thread(&self) -> u32 {
        self.thread
    }

    /// Waits for the end.
    pub(crate) fn wait(self) -> Result<(), Error> {
        let outcome = self.replies.wait_for(|inbox| {
            let (_, outcome) = inbox.fences.iter_mut().find(|(thread, _)| *thread == self.thread)?;
            let closed = inbox.is_closed.then_some(Err(Error::Disconnected));
            outcome.take().map(|outcome| outcome.map_err(Error::from)).or(closed)
        });
        outcome.map_err(|error| Error::from(ClientError::from(error)))?
    }
}

impl Drop for FenceEnd {
    fn drop(&mut self) {
        self.replies.lock().fences.retain(|(thread, _)| *thread != self.thread);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inbox(threads: impl IntoIterator<Item = u32>) -> Inbox {
        Inbox { fences: threads.into_iter().map(|thread| (thread, None)).collect(), ..Inbox::default() }
    }

    /// Returns which fences have ended, and how.
    fn ends(inbox: &Inbox) -> Vec<(u32, Option<bool>)> {
        inbox.fences.iter().map(|(thread, end)| (*thread, end.as_ref().map(Result::is_ok))).collect()
    }

    #[test]
    fn each_line_reaches_the_thread_that_expects_it() {
        let lines: &[u8] = b"cmd=get_result rc=0 value=cmd=barrier_out\ncmd=barrier_out rc=0 thrid=8\n\
            cmd=barrier_out rc=-1 thrid=7 msg=a\ncmd=barrier_out rc=0 thrid=1\ncmd=put_result rc=0\n";
        for step in [1, 7, lines.len()] {
            let mut inbox = inbox([7, 8, 9]);
            lines.chunks(step).for_each(|bytes| inbox.take_in(bytes));
            assert_eq!(ends(&inbox), [(7, Some(false)), (8, Some(true)), (9, None)]);
            assert_eq!(inbox.ordinary, b"cmd=get_result rc=0 value=cmd=barrier_out\ncmd=put_result rc=0\n");
        }
    }

    #[test]
    fn a_server_without_thread_numbers_ends_fences_in_their_order() {
        let mut inbox = inbox([7, 8]);
        inbox.take_in(b"cmd=barrier_out rc=0\n");
        assert_eq!(ends(&inbox), [(7, Some(true)), (8, None)]);
        inbox.take_in(b"cmd=barrier_out rc=-1 msg=a\n");
        assert_eq!(ends(&inbox), [(7, Some(true)), (8, Some(false))]);
    }

    #[test]
    fn a_line_without_end_is_left_to_the_reader_of_replies() {
        let mut inbox = inbox([]);
        inbox.take_in(&vec![b'x'; LINE_BYTES_MAX + 1]);
        assert_eq!((inbox.ordinary.len(), inbox.begun.len()), (LINE_BYTES_MAX + 1, 0));
    }
}
