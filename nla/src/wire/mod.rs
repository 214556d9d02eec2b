//! The wire protocol between agents, as bytes. This module opens no sockets.
//!
//! A link is a connection between an agent and its parent. It begins with the handshake ([`Initiator`],
//! [`Responder`]): magic and version in clear, then a Noise handshake in which both ends prove that they know the
//! session's key. All later bytes are encrypted records ([`Sealer`], [`Opener`]). Records multiplex lanes ([`Lane`]).
//! Each lane is an ordered stream of length-prefixed messages, and urgent lanes are sent first. The lanes of output
//! and input have a window, so that a slow reader slows down only the writer of its stream. Messages are encoded as
//! MessagePack. `docs/protocol.md` describes the protocol in full.

mod coding;
mod decoder;
mod hello;
mod lane;
mod record;
mod recording;

pub use coding::{
    CodingError, DownEncoder, Message, decode, decode_down, encode, encoded_bytes, framed, read_secret_frame,
    secret_frame,
};
pub use decoder::DecodeError;
pub use hello::{
    Established, Hello, HelloError, Initiator, PREAMBLE_BYTES, Responder, Role, Seen, SessionId, VERSION, Welcome,
};
pub use lane::{Assembler, Lane};
pub use record::{Content, Opener, RecordError, Sealer, bytes_on_link};
pub use recording::{ReplayError, TreePosition, TurnFrame, replay};
