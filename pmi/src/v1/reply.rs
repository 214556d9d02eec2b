//! [`Reply`]: every line that the server sends to a rank, and [`ReplyLine`], a line as a client reads it.
//!
//! Each reply satisfies what MPI libraries require:
//!
//! - `cmd=` comes first (MPICH >= 4.1), then `rc=`. Without it, legacy MPICH kills itself on `response_to_init` and takes
//!   name services as failed.
//! - Exactly one blank, never a tab, separates fields, and there are no bare words: a token without `=` makes legacy MPICH
//!   drop the whole line, and its peers then wait forever. So the text of `msg=` has no blanks.
//! - `value=`, which may contain blanks, is last (Flux reads it to the end of the line).
//! - No field is empty (MPICH >= 4.1 refuses the line), except the value of a key that was put empty: leaving it out
//!   breaks the other clients.
//! - A line including its newline has at most the 1,023 bytes of legacy clients, except where a value is longer than such
//!   a client could have put ([`VALUE_BYTES_MAX`](crate::limits::VALUE_BYTES_MAX)). `get_result` therefore has no `msg=`.

use std::io::Write;

use crate::limits::{ECHO_BYTES_MAX, KEYLEN_MAX, KVSNAME_MAX, LEGACY_LINE_BYTES_MAX, REASON_BYTES_MAX, VALLEN_MAX};
use crate::request::NameError;
use crate::wire::fields;

/// A reply to a rank.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Reply<'a> {
    /// `init` is granted, for version 1 or 2. Version 1 is always 1.1: with a higher one MPICH 5 would use groups and
    /// threads.
    Init(u32),
    /// `init` requested a version that is not supported.
    InitRefused,
    /// `initack` and the three lines after it, in the only order that clients read.
    Initack {
        /// The namespace's size.
        size: u32,
        /// The rank that the client named.
        rank: u32,
    },
    /// The advertised maxima.
    Maxes,
    /// The application number, which may be -1.
    Appnum(i32),
    /// The name of the rank's key-value space.
    Kvsname(&'a str),
    /// The universe's size; negative if unknown.
    UniverseSize(i32),
    /// A put was stored.
    Put,
    /// The value of a key.
    Found(&'a [u8]),
    /// No rank has put this key.
    NotFound(&'a [u8]),
    /// An entry by its number.
    Entry {
        /// Its number.
        index: usize,
        /// Its key.
        key: &'a [u8],
        /// Its value.
        value: &'a [u8],
    },
    /// No entry has that number.
    NoMoreEntries,
    /// `create_kvs` returns the namespace's only key-value space.
    NewKvs(&'a str),
    /// `destroy_kvs` succeeds without destroying anything.
    KvsDestroyed,
    /// The fence is complete.
    BarrierOut,
    /// A fence is over, or refused, whose request has this `thrid`.
    BarrierOutBeside {
        /// The `thrid` of the request, if it has one.
        thread: Option<u32>,
        /// Why the fence is refused or has failed.
        refusal: Option<&'a str>,
    },
    /// The rank is finalised.
    FinalizeAck,
    /// A name was published.
    Published,
    /// The port that is published under a name, without blanks.
    Port(&'a [u8]),
    /// The name is no longer published.
    Unpublished,
    /// A request about a name was refused; the reply's name and the reason.
    NameRefused(&'static str, NameError),
    /// All children were started. `errcodes` is left out: clients then assume zeros, and legacy clients read only 1,023
    /// bytes of it.
    Spawned,
    /// Some children were started. Clients assert that there is a code for each requested child.
    SpawnedPartly(&'a [i32]),
    /// Whether the segment's descriptor comes with this line.
    Segment(bool),
    /// A request was refused; the reply's name and the reason.
    Refused(&'static str, &'a str),
    /// The command is unknown. Hydra kills the job instead.
    Unsupported(&'a [u8]),
}

impl Reply<'_> {
    /// Appends the line or lines. Allocates only if `out` must grow.
    pub fn write(&self, out: &mut Vec<u8>) {
        match *self {
            // The hot path.
            Self::Found(value) => {
                out.extend_from_slice(b"cmd=get_result rc=0 value=");
                out.extend_from_slice(value);
            }
            Self::NotFound(key) => {
                out.extend_from_slice(b"cmd=get_result rc=-1 msg=key_");
                write_word(key, ECHO_BYTES_MAX, out);
                out.extend_from_slice(b"_not_found value=unknown");
            }
            Self::Put => out.extend_from_slice(b"cmd=put_result rc=0 msg=success"),
            Self::BarrierOut => out.extend_from_slice(b"cmd=barrier_out rc=0"),
            Self::BarrierOutBeside { thread, refusal } => {
                print(out, format_args!("cmd=barrier_out rc={}", if refusal.is_some() { -1 } else { 0 }));
                if let Some(thread) = thread {
                    print(out, format_args!(" thrid={thread}"));
                }
                if let Some(refusal) = refusal {
                    out.extend_from_slice(b" msg=");
                    write_word(refusal.as_bytes(), REASON_BYTES_MAX, out);
                }
            }
            Self::Init(2) => out.extend_from_slice(b"cmd=response_to_init rc=0 pmi_version=2 pmi_subversion=0"),
            Self::Init(_) => out.extend_from_slice(b"cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1"),
            Self::InitRefused => out.extend_from_slice(
                b"cmd=response_to_init rc=-1 pmi_version=1 pmi_subversion=1 msg=only_pmi_versions_1_and_2_are_spoken",
            ),
            Self::Initack { size, rank } => {
                print(out, format_args!("cmd=initack rc=0\ncmd=set size={size}\ncmd=set rank={rank}\ncmd=set debug=0"))
            }
            Self::Maxes => print(
                out,
                format_args!(
                    "cmd=maxes rc=0 kvsname_max={KVSNAME_MAX} keylen_max={KEYLEN_MAX} vallen_max={VALLEN_MAX}"
                ),
            ),
            Self::Appnum(appnum) => print(out, format_args!("cmd=appnum rc=0 appnum={appnum}")),
            Self::Kvsname(name) => print(out, format_args!("cmd=my_kvsname rc=0 kvsname={name}")),
            Self::UniverseSize(size) => print(out, format_args!("cmd=universe_size rc=0 size={size}")),
            Self::Entry { index, key, value } => {
                let next = index.saturating_add(1);
                print(out, format_args!("cmd=getbyidx_results rc=0 nextidx={next} key="));
                out.extend_from_slice(key);
                out.extend_from_slice(b" val=");
                out.extend_from_slice(value);
            }
            Self::NoMoreEntries => {
                out.extend_from_slice(b"cmd=getbyidx_results rc=-1 reason=no_more_keyvals");
            }
            Self::NewKvs(name) => print(out, format_args!("cmd=newkvs rc=0 kvsname={name}")),
            Self::KvsDestroyed => out.extend_from_slice(b"cmd=kvs_destroyed rc=0 msg=success"),
            Self::FinalizeAck => out.extend_from_slice(b"cmd=finalize_ack rc=0"),
            // Clients of MPICH2 1.0 read only `info`, later ones only `rc`.
            Self::Published => out.extend_from_slice(b"cmd=publish_result rc=0 info=ok msg=success"),
            Self::Unpublished => {
                out.extend_from_slice(b"cmd=unpublish_result rc=0 info=ok msg=success");
            }
            Self::Port(port) => {
                out.extend_from_slice(b"cmd=lookup_result rc=0 info=ok msg=success port=");
                out.extend_from_slice(port);
            }
            Self::NameRefused(reply, error) => {
                let reason = match error {
                    NameError::Taken => "key_already_present",
                    NameError::Unknown => "service_not_found",
                    NameError::Full => "too_many_names_published",
                };
                print(out, format_args!("cmd={reply} rc=-1 info=failed msg={reason}"));
            }
            Self::Spawned => out.extend_from_slice(b"cmd=spawn_result rc=0"),
            Self::SpawnedPartly(codes) => write_spawned_partly(codes, out),
            Self::Segment(true) => out.extend_from_slice(b"cmd=scela_segment_result rc=0"),
            Self::Segment(false) => out.extend_from_slice(b"cmd=scela_segment_result rc=-1 msg=no_segment_here"),
            Self::Refused(reply, reason) => {
                print(out, format_args!("cmd={reply} rc=-1 msg="));
                write_word(reason.as_bytes(), REASON_BYTES_MAX, out);
            }
            Self::Unsupported(command) => {
                out.extend_from_slice(b"cmd=");
                write_word(command, ECHO_BYTES_MAX, out);
                out.extend_from_slice(b"_result rc=-1 msg=unsupported");
            }
        }
        out.push(b'\n');
    }
}

/// Appends the codes, if a legacy client can read them all. Otherwise reports that the spawn failed, which is inaccurate
/// but never reports a dead child as alive.
fn write_spawned_partly(codes: &[i32], out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(b"cmd=spawn_result rc=0 errcodes=");
    for (index, code) in codes.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        print(out, format_args!("{code}"));
        if out.len() - start >= LEGACY_LINE_BYTES_MAX {
            out.truncate(start);
            let failed = codes.iter().filter(|&&code| code != 0).count();
            let all = codes.len();
            print(out, format_args!("cmd=spawn_result rc=-1 msg={failed}_of_{all}_processes_not_started"));
            return;
        }
    }
}

fn print(out: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    // Writing to a vector cannot fail.
    let _ = out.write_fmt(text);
}

/// Appends any text as one word of 1 to `bytes_max` bytes, without blanks and without characters that need
/// escaping (MPICH >= 4.1 reads a backslash as an escape).
fn write_word(text: &[u8], bytes_max: usize, out: &mut Vec<u8>) {
    if text.is_empty() {
        out.push(b'_');
    }
    out.extend(text.iter().take(bytes_max).map(|&byte| match byte {
        b'\\' | b'=' => b'_',
        byte if byte.is_ascii_graphic() => byte,
        _ => b'_',
    }));
}

/// A reply as a client reads it.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct ReplyLine<'a> {
    /// The reply's name.
    pub name: &'a [u8],
    /// `rc`; 0 if absent, as all clients assume.
    pub rc: i32,
    line: &'a [u8],
}

impl<'a> ReplyLine<'a> {
    /// Parses a line without its newline. Returns `None` if it has no `cmd=` or its `rc` is not a number.
    pub fn parse(line: &'a [u8]) -> Option<Self> {
        let name = fields::word(line, b"cmd")?;
        // A value may contain ` rc=`, but the real `rc` comes before it.
        let rc = match fields::word(line, b"rc") {
            Some(rc) => fields::number(rc)?,
            None => 0,
        };
        Some(Self { name, rc, line })
    }

    /// Returns a field of one word.
    pub fn word(&self, name: &str) -> Option<&'a [u8]> {
        fields::word(self.line, name.as_bytes())
    }

    /// Returns the last field, up to the end of the line.
    pub fn last(&self, name: &str) -> Option<&'a [u8]> {
        fields::rest(self.line, name.as_bytes())
    }

    /// Returns the reason of a refusal.
    pub fn reason(&self) -> String {
        let reason = self.word("msg").or_else(|| self.word("reason")).unwrap_or(b"no_reason_given");
        String::from_utf8_lossy(reason).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{MAPPING_BYTES_MAX, PORT_BYTES_MAX, VALUE_BYTES_MAX};

    fn written(reply: Reply<'_>) -> Vec<u8> {
        let mut out = Vec::new();
        reply.write(&mut out);
        out
    }

    #[track_caller]
    fn check(reply: Reply<'_>, expected: &str) {
        assert_eq!(String::from_utf8_lossy(&written(reply)), expected);
    }

    /// All replies, with the longest and strangest contents.
    fn all() -> Vec<Reply<'static>> {
        let odd: &[u8] = b" a=b\\c\td\x00\xff\n";
        let codes: &[i32] = &[i32::MIN; 1000];
        vec![
            Reply::Init(1),
            Reply::Init(2),
            Reply::Segment(true),
            Reply::Segment(false),
            Reply::InitRefused,
            Reply::Initack { size: u32::MAX, rank: u32::MAX },
            Reply::Maxes,
            Reply::Appnum(-1),
            Reply::Kvsname("kvs_9121_0_1201685559_vm"),
            Reply::UniverseSize(i32::MIN),
            Reply::Put,
            Reply::Found(b"v"),
            Reply::NotFound(odd),
            Reply::NotFound(b""),
            Reply::NotFound(&[b'k'; 100_000]),
            Reply::Entry { index: usize::MAX, key: b"k", value: b"v" },
            Reply::NoMoreEntries,
            Reply::NewKvs("kvs"),
            Reply::KvsDestroyed,
            Reply::BarrierOut,
            Reply::BarrierOutBeside { thread: None, refusal: None },
            Reply::BarrierOutBeside { thread: Some(u32::MAX), refusal: Some("a b") },
            Reply::FinalizeAck,
            Reply::Published,
            Reply::Port(&[b'p'; PORT_BYTES_MAX]),
            Reply::Unpublished,
            Reply::NameRefused("publish_result", NameError::Taken),
            Reply::NameRefused("lookup_result", NameError::Unknown),
            Reply::NameRefused("publish_result", NameError::Full),
            Reply::Spawned,
            Reply::SpawnedPartly(&[0, -1]),
            Reply::SpawnedPartly(codes),
            Reply::Refused("put_result", ""),
            Reply::Refused("spawn_result", "no such file or directory"),
            Reply::Unsupported(odd),
            Reply::Unsupported(&[b'x'; 100_000]),
        ]
    }

    #[test]
    fn every_reply_satisfies_what_clients_require() {
        for reply in all() {
            let text = written(reply);
            let text = text.strip_suffix(b"\n").unwrap();
            for line in text.split(|&byte| byte == b'\n') {
                let shown = String::from_utf8_lossy(line);
                assert!(line.starts_with(b"cmd="), "{shown}");
                assert!(line.len() < LEGACY_LINE_BYTES_MAX, "{shown}");
                assert!(line.is_ascii() && !line.contains(&b'\t') && !line.contains(&b'\\'), "{shown}");
                for token in line.split(|&byte| byte == b' ') {
                    let at = token.iter().position(|&byte| byte == b'=');
                    let at = at.unwrap_or_else(|| panic!("bare word or two blanks: {shown}"));
                    assert!(at > 0 && at + 1 < token.len(), "empty field: {shown}");
                }
                // `set`, which follows initack, is the only reply without `rc`.
                if !line.starts_with(b"cmd=set ") {
                    let second = line.split(|&byte| byte == b' ').nth(1).unwrap();
                    assert!(second.starts_with(b"rc="), "{shown}");
                }
            }
        }
    }

    #[test]
    fn a_long_reason_fits_a_legacy_line() {
        let reason = "x".repeat(REASON_BYTES_MAX);
        check(Reply::Refused("spawn_result", &reason), &format!("cmd=spawn_result rc=-1 msg={reason}\n"));
        let longer = written(Reply::Refused("spawn_result", &format!("{reason}x")));
        assert_eq!(longer, written(Reply::Refused("spawn_result", &reason)));
        assert!(longer.len() < LEGACY_LINE_BYTES_MAX);
    }

    #[test]
    fn replies_are_written_as_documented() {
        check(Reply::Init(1), "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1\n");
        check(Reply::Init(2), "cmd=response_to_init rc=0 pmi_version=2 pmi_subversion=0\n");
        check(Reply::Segment(true), "cmd=scela_segment_result rc=0\n");
        check(Reply::Maxes, "cmd=maxes rc=0 kvsname_max=64 keylen_max=64 vallen_max=1024\n");
        check(Reply::Appnum(-1), "cmd=appnum rc=0 appnum=-1\n");
        check(Reply::Kvsname("kvs_1"), "cmd=my_kvsname rc=0 kvsname=kvs_1\n");
        check(Reply::UniverseSize(8), "cmd=universe_size rc=0 size=8\n");
        check(Reply::Put, "cmd=put_result rc=0 msg=success\n");
        check(Reply::Found(b"MAAx -"), "cmd=get_result rc=0 value=MAAx -\n");
        check(Reply::NotFound(b"a b"), "cmd=get_result rc=-1 msg=key_a_b_not_found value=unknown\n");
        check(Reply::BarrierOut, "cmd=barrier_out rc=0\n");
        check(Reply::FinalizeAck, "cmd=finalize_ack rc=0\n");
        check(Reply::Spawned, "cmd=spawn_result rc=0\n");
        check(Reply::SpawnedPartly(&[0, -1, 7]), "cmd=spawn_result rc=0 errcodes=0,-1,7\n");
        check(Reply::SpawnedPartly(&[1; 1000]), "cmd=spawn_result rc=-1 msg=1000_of_1000_processes_not_started\n");
        check(
            Reply::Initack { size: 4, rank: 3 },
            "cmd=initack rc=0\ncmd=set size=4\ncmd=set rank=3\ncmd=set debug=0\n",
        );
        check(
            Reply::Entry { index: 0, key: b"k", value: b"v w" },
            "cmd=getbyidx_results rc=0 nextidx=1 key=k val=v w\n",
        );
        check(
            Reply::NameRefused("lookup_result", NameError::Unknown),
            "cmd=lookup_result rc=-1 info=failed msg=service_not_found\n",
        );
        check(Reply::Refused("spawn_result", "no such file"), "cmd=spawn_result rc=-1 msg=no_such_file\n");
        check(Reply::Unsupported(b"tv\nready"), "cmd=tv_ready_result rc=-1 msg=unsupported\n");
    }

    #[test]
    fn values_of_legacy_clients_fit_their_line() {
        let line = |bytes: usize| written(Reply::Found(&vec![b'v'; bytes])).len();
        assert!(line(MAPPING_BYTES_MAX) <= LEGACY_LINE_BYTES_MAX);
        assert_eq!(line(996), LEGACY_LINE_BYTES_MAX);
        assert_eq!(line(VALUE_BYTES_MAX), LEGACY_LINE_BYTES_MAX + 27);
    }

    mod properties {
        use proptest::collection::vec;
        use proptest::prelude::*;

        use super::super::*;

        proptest! {
            #[test]
            fn a_client_parses_a_written_reply(
                value in vec(any::<u8>().prop_filter("newline", |byte| *byte != b'\n'), 0..40)
            ) {
                let mut line = Vec::new();
                Reply::Found(&value).write(&mut line);
                prop_assert_eq!(line.pop(), Some(b'\n'));
                let reply = ReplyLine::parse(&line).unwrap();
                prop_assert_eq!((reply.name, reply.rc), (&b"get_result"[..], 0));
                prop_assert_eq!(reply.last("value"), Some(value.as_slice()));
            }

            #[test]
            fn no_line_panics(line in vec(any::<u8>(), 0..40), value in "( |=|rc|cmd|msg|1){0,9}") {
                for line in [line.as_slice(), value.as_bytes()] {
                    if let Some(reply) = ReplyLine::parse(line) {
                        reply.reason();
                    }
                }
            }
        }
    }
}
