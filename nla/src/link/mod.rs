//! One connection at work: the stream, the handshake on it, the lanes over it, and the listener that accepts it.
//!
//! [`crate::bootstrap`] and [`crate::driver`] both build on this module. It knows [`crate::wire`] and [`crate::sys`],
//! and nothing of how agents are started or of what their messages mean.

mod clock;
mod handshake;
mod lanes;
pub(crate) mod listener;
mod stream;

pub use clock::Clock;
pub use handshake::{Accepted, Authenticator, HandshakeError, accept, accept_children, connect};
pub(crate) use handshake::{accept_over, connect_over};
pub use lanes::{Link, LinkEvent, Meter, Receipt, StreamSink};
pub(crate) use listener::SESSION_OPENER;
pub use listener::{BoundListener, Reach, listen};
pub(crate) use stream::Stream;
