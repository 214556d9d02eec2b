//! [`Command`]: one request line of PMI-1.
//!
//! Parsing borrows from the line and does not allocate. It checks only the form; the engine checks lengths, reserved keys
//! and the order of calls. Bytes need not be UTF-8. Unknown fields, bare words and blanks before the line are ignored,
//! but `cmd=` must come first, as every client since MPICH2 1.0 sends it.

use std::str::FromStr;

use thiserror::Error;

use crate::wire::fields;

/// A request of a rank.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Command<'a> {
    /// `init`: requests this version of the protocol.
    Init {
        /// `pmi_version`; 2 requests PMI-2's frames from here on.
        version: u32,
        /// `pmi_subversion`; 0 when absent.
        subversion: u32,
    },
    /// `initack`: names the rank on a connection to a port.
    Initack {
        /// `pmiid`.
        rank: u32,
    },
    /// `get_maxes`.
    Maxes,
    /// `get_appnum`.
    Appnum,
    /// `get_my_kvsname`.
    Kvsname,
    /// `get_universe_size`.
    UniverseSize,
    /// `put`.
    Put {
        /// The client's name for its key-value space.
        kvsname: &'a [u8],
        /// Everything before ` value=`.
        key: &'a [u8],
        /// Everything up to the end of the line.
        value: &'a [u8],
    },
    /// `get`.
    Get {
        /// The client's name for its key-value space.
        kvsname: &'a [u8],
        /// The key.
        key: &'a [u8],
    },
    /// `getbyidx`, of MPICH2 1.0.
    GetByIndex {
        /// `idx`, from 0.
        index: usize,
    },
    /// `create_kvs`, of MPICH2 1.0.
    CreateKvs,
    /// `destroy_kvs`, of MPICH2 1.0.
    DestroyKvs,
    /// `barrier_in`.
    BarrierIn {
        /// `group`, of PMI 1.2: ranks and a tag, `0,3,8-9:17`, or `WORLD:17`.
        group: Option<&'a [u8]>,
        /// `thrid`, which the reply repeats: other requests may follow before it.
        thread: Option<u32>,
    },
    /// `publish_name`.
    Publish {
        /// Everything up to ` port=`, including blanks.
        service: &'a [u8],
        /// Everything up to the end of the line.
        port: &'a [u8],
    },
    /// `lookup_name`.
    Lookup {
        /// Everything up to the end of the line.
        service: &'a [u8],
    },
    /// `unpublish_name`.
    Unpublish {
        /// Everything up to the end of the line.
        service: &'a [u8],
    },
    /// `abort`.
    Abort {
        /// `exitcode` (MPICH) or `exit_code`; `None` if absent or not a number.
        code: Option<i32>,
        /// `message` (MPICH >= 4.1) or `error_msg` (Flux); empty if absent.
        message: &'a [u8],
    },
    /// `finalize`.
    Finalize,
    /// `scela_segment`, sent by our own libpmi.
    Segment,
    /// `scela_fence`, sent by our own libpmi: encoded puts follow the line.
    FenceInSegment {
        /// `puts`: the length of the encoded puts.
        puts_bytes: usize,
    },
    /// Any other command; not empty.
    Unknown {
        /// The command's name.
        name: &'a [u8],
    },
}

/// Why a line is not a request.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Error)]
pub enum ParseError {
    /// The line has no command, so there is no reply to it.
    #[error("sent a line without a command")]
    NoCommand,
    /// The command lacks a field. A reply reports this.
    #[error("sent a request that lacks a field ({reason})")]
    Field {
        /// The name of the reply.
        reply: &'static str,
        /// The missing field, as a text without blanks.
        reason: &'static str,
    },
}

impl<'a> Command<'a> {
    /// Parses a line without its newline.
    pub fn parse(line: &'a [u8]) -> Result<Self, ParseError> {
        let start = line.iter().position(|&byte| byte != b' ').unwrap_or(line.len());
        let line = &line[start..];
        if !line.starts_with(b"cmd=") {
            return Err(ParseError::NoCommand);
        }
        let name = fields::word(line, b"cmd").unwrap_or_default();
        let need = |field: Option<&'a [u8]>, reply, reason| field.ok_or(ParseError::Field { reply, reason });
        Ok(match name {
            b"" => return Err(ParseError::NoCommand),
            b"get" => Self::Get {
                kvsname: need(fields::word(line, b"kvsname"), "get_result", "kvsname_missing")?,
                key: need(fields::phrase(line, b"key"), "get_result", "key_missing")?,
            },
            b"put" => {
                // The value may look like fields, so search for those only before it.
                let missing = ParseError::Field { reply: "put_result", reason: "value_missing" };
                let (head, value) = fields::split(line, b"value").ok_or(missing)?;
                Self::Put {
                    kvsname: need(fields::word(head, b"kvsname"), "put_result", "kvsname_missing")?,
                    key: need(fields::phrase(head, b"key"), "put_result", "key_missing")?,
                    value,
                }
            }
            b"barrier_in" => Self::BarrierIn {
                group: fields::word(line, b"group"),
                thread: fields::word(line, b"thrid").and_then(fields::number),
            },
            b"init" => Self::Init {
                version: need_number(line, b"pmi_version", "response_to_init", "pmi_version_missing")?,
                subversion: fields::word(line, b"pmi_subversion").and_then(fields::number).unwrap_or(0),
            },
            b"initack" => Self::Initack { rank: need_number(line, b"pmiid", "initack", "pmiid_missing")? },
            b"get_maxes" => Self::Maxes,
            b"get_appnum" => Self::Appnum,
            b"get_my_kvsname" => Self::Kvsname,
            b"get_universe_size" => Self::UniverseSize,
            b"getbyidx" => Self::GetByIndex { index: need_number(line, b"idx", "getbyidx_results", "idx_missing")? },
            b"create_kvs" => Self::CreateKvs,
            b"destroy_kvs" => Self::DestroyKvs,
            b"publish_name" => {
                let service = fields::until(line, b"service", b"port");
                let port = fields::until(line, b"port", b"service");
                Self::Publish {
                    service: need(service, "publish_result", "service_missing")?,
                    port: need(port, "publish_result", "port_missing")?,
                }
            }
            b"lookup_name" => {
                let service = fields::rest(line, b"service");
                Self::Lookup { service: need(service, "lookup_result", "service_missing")? }
            }
            b"unpublish_name" => {
                let service = fields::rest(line, b"service");
                Self::Unpublish { service: need(service, "unpublish_result", "service_missing")? }
            }
            b"abort" => Self::parse_abort(line),
            b"finalize" => Self::Finalize,
            b"scela_segment" => Self::Segment,
            b"scela_fence" => {
                let puts_bytes = need_number(line, b"puts", "scela_fence_result", "puts_missing")?;
                Self::FenceInSegment { puts_bytes }
            }
            _ => Self::Unknown { name },
        })
    }

    fn parse_abort(line: &'a [u8]) -> Self {
        let code = fields::word(line, b"exitcode").or_else(|| fields::word(line, b"exit_code"));
        let message =
            fields::until(line, b"message", b"exitcode").or_else(|| fields::until(line, b"error_msg", b"exitcode"));
        Self::Abort { code: code.and_then(fields::number), message: message.unwrap_or_default() }
    }

    /// Appends the line, with its newline, that [`Command::parse`] parses as this command.
    ///
    /// No field may contain a newline, and fields of one word must be one word.
    pub fn write(&self, out: &mut Vec<u8>) {
        let mut line = |name: &[u8], fields: &[(&str, &[u8])]| {
            out.extend_from_slice(b"cmd=");
            out.extend_from_slice(name);
            for (field, value) in fields {
                out.push(b' ');
                out.extend_from_slice(field.as_bytes());
                out.push(b'=');
                out.extend_from_slice(value);
            }
        };
        match *self {
            Self::Init { version, subversion } => {
                let (version, subversion) = (version.to_string(), subversion.to_string());
                line(b"init", &[("pmi_version", version.as_bytes()), ("pmi_subversion", subversion.as_bytes())]);
            }
            Self::Initack { rank } => line(b"initack", &[("pmiid", rank.to_string().as_bytes())]),
            Self::Maxes => line(b"get_maxes", &[]),
            Self::Appnum => line(b"get_appnum", &[]),
            Self::Kvsname => line(b"get_my_kvsname", &[]),
            Self::UniverseSize => line(b"get_universe_size", &[]),
            Self::Put { kvsname, key, value } => {
                line(b"put", &[("kvsname", kvsname), ("key", key), ("value", value)]);
            }
            Self::Get { kvsname, key } => line(b"get", &[("kvsname", kvsname), ("key", key)]),
            Self::GetByIndex { index } => line(b"getbyidx", &[("idx", index.to_string().as_bytes())]),
            Self::CreateKvs => line(b"create_kvs", &[]),
            Self::DestroyKvs => line(b"destroy_kvs", &[]),
            Self::BarrierIn { group, thread } => {
                let thread = thread.map(|thread| thread.to_string());
                let group = group.map(|group| ("group", group));
                let thread = thread.as_deref().map(|thread| ("thrid", thread.as_bytes()));
                line(b"barrier_in", &group.into_iter().chain(thread).collect::<Vec<_>>());
            }
            Self::Publish { service, port } => line(b"publish_name", &[("service", service), ("port", port)]),
            Self::Lookup { service } => line(b"lookup_name", &[("service", service)]),
            Self::Unpublish { service } => line(b"unpublish_name", &[("service", service)]),
            Self::Abort { code, message } => {
                let code = code.map(|code| code.to_string());
                let code = code.as_ref().map(|code| ("exitcode", code.as_bytes()));
                let message = (!message.is_empty()).then_some(("message", message));
                line(b"abort", &code.into_iter().chain(message).collect::<Vec<_>>());
            }
            Self::Finalize => line(b"finalize", &[]),
            Self::Segment => line(b"scela_segment", &[]),
            Self::FenceInSegment { puts_bytes } => {
                line(b"scela_fence", &[("puts", b"")]);
                fields::write_number(puts_bytes, out);
            }
            Self::Unknown { name } => line(name, &[]),
        }
        out.push(b'\n');
    }
}

/// Returns the number in a required field.
fn need_number<T: FromStr>(
    line: &[u8],
    field: &[u8],
    reply: &'static str,
    reason: &'static str,
) -> Result<T, ParseError> {
    fields::word(line, field).and_then(fields::number).ok_or(ParseError::Field { reply, reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(line: &str, expected: Result<Command<'_>, ParseError>) {
        assert_eq!(Command::parse(line.as_bytes()), expected);
    }

    #[test]
    fn the_value_of_a_put_goes_to_the_end_of_the_line() {
        // Open MPI pads base64 with blanks, MPICH sends `segments=3`, and a value may look like fields.
        for value in ["MAAxNAAwMDA0AG9iMQA -", "segments=3", "", " x ", "a key=b value=c"] {
            let put = Command::Put { kvsname: b"k", key: b"key-0", value: value.as_bytes() };
            check(&format!("cmd=put kvsname=k key=key-0 value={value}"), Ok(put));
            check(&format!("cmd=put key=key-0 kvsname=k value={value}"), Ok(put));
        }
    }

    #[test]
    fn keys_of_mpi_libraries_are_parsed_whole() {
        for key in ["hostname[3]", "-bcast-1-0", "bc-80-seg-2/3", "-allgather-shm-1-7-seg-1/2", "a=b"] {
            let line = format!("cmd=get kvsname=kvs_1.0/a:b key={key}");
            check(&line, Ok(Command::Get { kvsname: b"kvs_1.0/a:b", key: key.as_bytes() }));
        }
    }

    #[test]
    fn a_key_of_two_words_is_parsed_whole() {
        check("cmd=get kvsname=k key=a b", Ok(Command::Get { kvsname: b"k", key: b"a b" }));
        let put = Command::Put { kvsname: b"k", key: b"a b", value: b"v" };
        check("cmd=put kvsname=k key=a b value=v", Ok(put));
    }

    #[test]
    fn unknown_fields_bare_words_and_leading_blanks_are_ignored() {
        let get = Command::Get { kvsname: b"k", key: b"a" };
        check("  cmd=get word kvsname=k  x=y key=a ", Ok(get));
        check("cmd=finalize now", Ok(Command::Finalize));
        check("cmd=init threads=1 pmi_version=1", Ok(Command::Init { version: 1, subversion: 0 }));
    }

    #[test]
    fn services_may_contain_blanks() {
        let publish = Command::Publish { service: b"svc two words", port: b"tag#0$desc#abc$" };
        check("cmd=publish_name service=svc two words port=tag#0$desc#abc$", Ok(publish));
        check("cmd=publish_name port=tag#0$desc#abc$ service=svc two words", Ok(publish));
        check("cmd=lookup_name service=svc two", Ok(Command::Lookup { service: b"svc two" }));
        check("cmd=unpublish_name service=x", Ok(Command::Unpublish { service: b"x" }));
    }

    #[test]
    fn aborts_of_all_clients_are_parsed() {
        let abort = |code, message| Ok(Command::Abort { code, message });
        check("cmd=abort exitcode=204066320", abort(Some(204_066_320), b""));
        check("cmd=abort exitcode=3 message=stub", abort(Some(3), b"stub"));
        check("cmd=abort exit_code=-1 error_msg=out of luck", abort(Some(-1), b"out of luck"));
        check("cmd=abort message=two words exitcode=4", abort(Some(4), b"two words"));
        check("cmd=abort", abort(None, b""));
        check("cmd=abort exitcode=99999999999", abort(None, b""));
    }

    #[test]
    fn a_missing_field_is_named_with_its_reply() {
        for (line, reply, reason) in [
            ("cmd=put kvsname=k key=a", "put_result", "value_missing"),
            ("cmd=put kvsname=k value=a key=b", "put_result", "key_missing"),
            ("cmd=put key=a value=b", "put_result", "kvsname_missing"),
            ("cmd=get kvsname=k", "get_result", "key_missing"),
            ("cmd=get key=k", "get_result", "kvsname_missing"),
            ("cmd=init", "response_to_init", "pmi_version_missing"),
            ("cmd=init pmi_version=x", "response_to_init", "pmi_version_missing"),
            ("cmd=initack pmiid=-1", "initack", "pmiid_missing"),
            ("cmd=getbyidx idx=", "getbyidx_results", "idx_missing"),
            ("cmd=publish_name service=a", "publish_result", "port_missing"),
            ("cmd=publish_name port=a", "publish_result", "service_missing"),
            ("cmd=lookup_name", "lookup_result", "service_missing"),
            ("cmd=unpublish_name", "unpublish_result", "service_missing"),
        ] {
            check(line, Err(ParseError::Field { reply, reason }));
        }
    }

    #[test]
    fn a_line_without_a_command_is_an_error() {
        for line in ["", " ", "cmd", "cmd=", "cmd= put", "put", "kvsname=k cmd=get key=a", "\tcmd=get"] {
            check(line, Err(ParseError::NoCommand));
        }
        check("cmd=tv_ready", Ok(Command::Unknown { name: b"tv_ready" }));
    }

    mod properties {
        use proptest::collection::vec;
        use proptest::prelude::*;

        use super::super::*;

        fn text() -> impl Strategy<Value = Vec<u8>> {
            vec(any::<u8>().prop_filter("newline", |byte| *byte != b'\n'), 0..12)
        }

        fn word() -> impl Strategy<Value = Vec<u8>> {
            vec(any::<u8>().prop_filter("blank", |byte| !b" \n".contains(byte)), 0..12)
        }

        proptest! {
            #[test]
            fn a_written_command_is_parsed_as_itself(
                (a, b) in (word(), word()), text in text(), number in any::<i32>(), pick in 0..18,
            ) {
                let (a, b, text) = (a.as_slice(), b.as_slice(), text.as_slice());
                let command = match pick {
                    0 => Command::Init { version: number.unsigned_abs(), subversion: 7 },
                    1 => Command::Initack { rank: number.unsigned_abs() },
                    2 => Command::Maxes,
                    3 => Command::Appnum,
                    4 => Command::Kvsname,
                    5 => Command::UniverseSize,
                    6 => Command::Put { kvsname: a, key: b, value: text },
                    7 => Command::Get { kvsname: a, key: b },
                    8 => Command::GetByIndex { index: number.unsigned_abs() as usize },
                    9 => Command::CreateKvs,
                    10 => Command::DestroyKvs,
                    11 => Command::BarrierIn { group: Some(a), thread: (number > 0).then_some(7) },
                    12 => Command::Publish { service: a, port: b },
                    13 => Command::Lookup { service: text },
                    14 => Command::Unpublish { service: text },
                    15 => Command::Abort { code: Some(number), message: a },
                    16 => Command::Finalize,
                    _ => Command::BarrierIn { group: None, thread: Some(number.unsigned_abs()) },
                };
                let mut line = Vec::new();
                command.write(&mut line);
                prop_assert_eq!(line.pop(), Some(b'\n'));
                prop_assert_eq!(Command::parse(&line), Ok(command));
            }

            #[test]
            fn no_line_panics(
                name in prop::sample::select(vec!["put", "get", "init", "abort", "publish_name", "x"]),
                rest in "( |=|key|kvsname|value|service|port|exitcode|message|pmi_version|1){0,12}",
            ) {
                let line = format!("cmd={name} {rest}");
                let _ = Command::parse(line.as_bytes());
                let _ = Command::parse(rest.as_bytes());
            }
        }
    }
}
