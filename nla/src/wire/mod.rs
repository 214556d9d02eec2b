//! How agents speak to each other, byte by byte, without a socket in sight.
//!
//! A link is one TCP connection between an agent and its parent. It begins with a hello
//! ([`Initiator`], [`Responder`]): magic and version in clear, then a Noise handshake in which both
//! ends prove that they know the session's key. All that follows are encrypted records
//! ([`Sealer`], [`Opener`]). Records multiplex lanes ([`Lane`]), each an ordered stream of
//! length-prefixed messages; urgent lanes go first, and the lanes that carry output and input have
//! a window, so that a slow reader at the end of the way slows down who writes, and nothing else.
//! Messages are MessagePack. `docs/protocol.md` has it all in one table.

mod coding;
mod decoder;
mod hello;
mod lane;
mod record;
mod recording;

pub use coding::{CodingError, DownEncoder, Message, decode, decode_down, encode, encoded_bytes, framed};
pub use decoder::DecodeError;
pub use hello::{
    Established, Hello, HelloError, Initiator, PREAMBLE_BYTES, Responder, Seen, SessionId, SessionKey, VERSION, Welcome,
};
pub use lane::{Assembler, Lane};
pub use record::{Content, Opener, RecordError, Sealer, bytes_on_link};
pub use recording::{ReplayError, StepFrame, TreePosition, replay};
