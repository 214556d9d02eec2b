//! One link: its byte stream, the handshake on it, the lanes over it, and the listener that accepts it.
//!
//! [`crate::bootstrap`] and [`crate::driver`] both build on this module. It uses [`crate::wire`] and [`crate::sys`], and
//! does not know how agents are started or what their messages mean.

mod address;
mod clock;
mod handshake;
mod key;
mod lanes;
pub(crate) mod listener;
mod pace;
mod pacer;
mod silence;
mod stream;
mod ticks;
mod unproven;

pub(crate) use address::deserialize_addresses;
pub use address::{Address, ListensAt, LocalSocket};
pub use clock::Clock;
pub use handshake::{
    Accepted, Admission, Authenticator, HandshakeError, accept, accept_children, accept_early, connect,
};
pub(crate) use handshake::{accept_over, connect_over};
pub use key::SessionKey;
pub use lanes::{Link, LinkEvent, Liveness, Meter, Receipt, StreamSink};
pub use listener::{BoundListener, Listener, Reach, listen};
pub(crate) use listener::{SSH_CONNECTION, candidates, listen_at, next_connection};
pub(crate) use stream::Stream;
pub use ticks::{Ticker, Ticks};
pub(crate) use unproven::{RefusalLog, Unproven};
