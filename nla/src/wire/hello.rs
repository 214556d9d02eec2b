//! The handshake: both ends of a link prove that they belong to the same session.
//!
//! The child connects. It sends a preamble in clear (magic, protocol version, product version, session ID) and the
//! first message of a Noise handshake, NNpsk0 with the session's key. The parent answers with its own preamble, a
//! verdict of one byte and, if it accepts, the second message. The child's preamble and the connection's [`Role`] are
//! the handshake's prologue: an attacker between them cannot change the preamble, and cannot use the handshake of one
//! connection for another purpose or with another parent. From then on both ends can seal records. The child's first record is
//! its [`Hello`]. Only after opening it does the parent know that the child is not a replay: no byte of an
//! unauthenticated peer is parsed before. The Noise protocol is implemented by the crate `snow`; this module has no
//! cryptography of its own, but wipes the copies of the session's key that `snow` makes.

use std::collections::HashSet;
use std::fmt;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use snow::{Builder, HandshakeState};
use thiserror::Error;

use super::record::{Opener, Sealer, Transport};
use crate::core::AgentId;
use crate::core::limits::HANDSHAKES_REMEMBERED;

/// The version of the protocol. Peers with different versions refuse each other.
pub const VERSION: u16 = 27;
const MAGIC: &[u8; 8] = b"ScELA\r\n\0";
const PRODUCT_BYTES: usize = 16;
/// The length of a preamble: magic, version, product, session.
pub const PREAMBLE_BYTES: usize = 8 + 2 + PRODUCT_BYTES + 8;
const NOISE: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
/// The length of each handshake message: an ephemeral key and a tag.
const HANDSHAKE_BYTES: usize = 48;

const GOOD: u8 = 0;
const OTHER_VERSION: u8 = 1;
const OTHER_SESSION: u8 = 2;
const WRONG_KEY: u8 = 3;
const REPLAYED: u8 = 4;
const TOO_MANY: u8 = 5;

/// The public ID of a session. It distinguishes sessions and proves nothing.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
pub struct SessionId(pub u64);

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

/// The bytes of a session's key.
type Key = [u8; 32];

/// The purpose of a connection, and the process that accepts it. Both ends know it before they connect, and the
/// handshake succeeds only if they agree. It is not sent.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Role {
    /// An agent's bootstrap channel to the process that started it: the agent at this target, or the launcher (0).
    Callback {
        /// The target.
        starter: u32,
    },
    /// A child's link to its parent in the tree.
    Link {
        /// The number of the parent.
        parent: AgentId,
    },
}

impl Role {
    /// The length of a role in a prologue.
    const BYTES: usize = 5;

    /// Returns the number of the process that accepts the connection.
    pub fn acceptor(self) -> AgentId {
        match self {
            Self::Callback { starter } => AgentId(starter),
            Self::Link { parent } => parent,
        }
    }

    /// Returns the prologue of a handshake that begins with this preamble.
    fn prologue(self, preamble: &[u8; PREAMBLE_BYTES]) -> [u8; PREAMBLE_BYTES + Self::BYTES] {
        let mut bytes = [0; PREAMBLE_BYTES + Self::BYTES];
        let (start, role) = bytes.split_at_mut(PREAMBLE_BYTES);
        start.copy_from_slice(preamble);
        role[0] = match self {
            Self::Callback { .. } => b'C',
            Self::Link { .. } => b'L',
        };
        role[1..].copy_from_slice(&self.acceptor().0.to_be_bytes());
        bytes
    }
}

/// The child's first sealed message.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Hello {
    /// The number of the agent.
    pub agent: AgentId,
}

/// The parent's sealed answer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Welcome {
    /// The session's time at which the message was sent.
    pub now: Duration,
}

/// The reason why a handshake failed.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub enum HelloError {
    /// The peer is not ScELA.
    #[error("the other end does not speak ScELA's protocol")]
    NotScela,
    /// The peer has another protocol version.
    #[error("the other end is ScELA {product} (protocol {version}), this is {} (protocol {VERSION})", env!("CARGO_PKG_VERSION"))]
    Version {
        /// The peer's protocol version.
        version: u16,
        /// The peer's product version.
        product: String,
    },
    /// The peer belongs to another session.
    #[error("the other end belongs to another session")]
    Session,
    /// The peer does not know the session's key, or has connected for another purpose or to another parent.
    #[error("the other end does not know this session's key")]
    Key,
    /// The first message was received before: an attacker recorded and replayed it.
    #[error("the first message of this handshake was seen before: it was replayed")]
    Replayed,
    /// The connection ended during the handshake.
    #[error("the connection ended in the middle of the hello")]
    Truncated,
    /// The session has had too many handshakes.
    #[error("more handshakes than a session can have")]
    TooMany,
    /// The peer is authenticated, but its first record is not the expected message.
    #[error("the other end proved that it knows the key, but then sent an unexpected message")]
    Unexpected,
}

/// Both directions of a link.
#[derive(Debug)]
pub struct Established {
    /// Seals outgoing records.
    pub sealer: Sealer,
    /// Opens incoming records.
    pub opener: Opener,
}

impl Established {
    fn new(state: HandshakeState) -> Result<Self, HelloError> {
        let transport = Transport::new(state.into_stateless_transport_mode().map_err(|_| HelloError::Key)?);
        Ok(Self { sealer: Sealer::new(Arc::clone(&transport)), opener: Opener::new(transport) })
    }

    /// Both directions of a link that needs neither a handshake nor encryption.
    pub(crate) fn unencrypted() -> Self {
        Self { sealer: Sealer::unencrypted(), opener: Opener::unencrypted() }
    }
}

fn preamble(session: SessionId) -> [u8; PREAMBLE_BYTES] {
    let mut bytes = [0; PREAMBLE_BYTES];
    let product = env!("CARGO_PKG_VERSION").as_bytes();
    let product = &product[..product.len().min(PRODUCT_BYTES)];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..10].copy_from_slice(&VERSION.to_be_bytes());
    bytes[10..10 + product.len()].copy_from_slice(product);
    bytes[10 + PRODUCT_BYTES..].copy_from_slice(&session.0.to_be_bytes());
    bytes
}

/// Checks the preamble of a peer.
fn check_preamble(theirs: &[u8; PREAMBLE_BYTES], session: SessionId) -> Result<(), HelloError> {
    if &theirs[..8] != MAGIC {
        return Err(HelloError::NotScela);
    }
    let version = u16::from_be_bytes([theirs[8], theirs[9]]);
    if version != VERSION {
        let product = theirs[10..10 + PRODUCT_BYTES].iter().take_while(|byte| byte.is_ascii_graphic());
        return Err(HelloError::Version { version, product: product.map(|byte| char::from(*byte)).collect() });
    }
    if theirs[10 + PRODUCT_BYTES..] != session.0.to_be_bytes() {
        return Err(HelloError::Session);
    }
    Ok(())
}

/// Builds the state of a handshake, still without the session's key.
fn state<'a>(
    prologue: &'a [u8],
    build: impl FnOnce(Builder<'a>) -> Result<HandshakeState, snow::Error>,
) -> Result<Box<HandshakeState>, HelloError> {
    let builder = || build(Builder::new(NOISE.parse()?).psk(0, &[0; 32])?.prologue(prologue)?);
    Ok(Box::new(builder().map_err(|_| HelloError::Key)?))
}

/// Makes or reads the first message, for which alone the state needs the session's key. No copy of the key is left in
/// the state or on the stack. The state is on the heap because moving it would copy the key.
fn with_key(
    state: &mut HandshakeState,
    key: &Key,
    message: impl FnOnce(&mut HandshakeState) -> Result<usize, snow::Error>,
) -> Result<(), HelloError> {
    let result = mix_key(state, key, message);
    wipe_stack();
    result.map_err(|_| HelloError::Key)
}

#[inline(never)]
fn mix_key(
    state: &mut HandshakeState,
    key: &Key,
    message: impl FnOnce(&mut HandshakeState) -> Result<usize, snow::Error>,
) -> Result<(), snow::Error> {
    let result = state.set_psk(0, key).and_then(|()| message(state));
    let wiped = state.set_psk(0, &[0; 32]);
    // The state may be dropped next. That must not make the compiler omit the write.
    black_box(state);
    result.and(wiped)
}

/// Overwrites the stack that calls before this one used. `snow` and the hash copy the key to their stack frames, which
/// take a few KiB.
#[inline(never)]
fn wipe_stack() {
    black_box(&mut [0u8; 16 * 1024]);
}

/// The child's side of the handshake.
pub struct Initiator {
    state: Box<HandshakeState>,
    session: SessionId,
}

impl Initiator {
    /// The length of the answer of a parent that accepts: preamble, verdict, handshake message.
    pub const ANSWER_BYTES: usize = PREAMBLE_BYTES + 1 + HANDSHAKE_BYTES;
    /// The length of the shortest answer: preamble and verdict.
    pub const VERDICT_BYTES: usize = PREAMBLE_BYTES + 1;

    /// Starts a handshake. Returns the initiator and the bytes to send.
    pub fn new(session: SessionId, key: &Key, role: Role) -> Result<(Self, Vec<u8>), HelloError> {
        let preamble = preamble(session);
        let mut state = state(&role.prologue(&preamble), Builder::build_initiator)?;
        let mut message = [0; HANDSHAKE_BYTES];
        with_key(&mut state, key, |state| state.write_message(&[], &mut message))?;
        Ok((Self { state, session }, [&preamble[..], &message].concat()))
    }

    /// Checks the preamble and the verdict, which are the first [`Initiator::VERDICT_BYTES`] of the answer. Returns
    /// `Ok` if the handshake message follows.
    pub fn verdict(&self, answer: &[u8; Self::VERDICT_BYTES]) -> Result<(), HelloError> {
        let (theirs, verdict) = answer.split_at(PREAMBLE_BYTES);
        let theirs = theirs.first_chunk().ok_or(HelloError::Truncated)?;
        match (check_preamble(theirs, self.session), verdict.first()) {
            (Err(error), _) => Err(error),
            (Ok(()), Some(&GOOD)) => Ok(()),
            (Ok(()), Some(&REPLAYED)) => Err(HelloError::Replayed),
            (Ok(()), Some(&TOO_MANY)) => Err(HelloError::TooMany),
            (Ok(()), Some(&OTHER_SESSION)) => Err(HelloError::Session),
            (Ok(()), _) => Err(HelloError::Key),
        }
    }

    /// Processes the parent's handshake message.
    pub fn finish(mut self, message: &[u8]) -> Result<Established, HelloError> {
        self.state.read_message(message, &mut []).map_err(|_| HelloError::Key)?;
        Established::new(*self.state)
    }
}

/// The first handshake messages that a session has received. A message received twice is a replay.
#[derive(Debug, Default)]
pub struct Seen(HashSet<[u8; 32]>);

/// The parent's side of the handshake.
pub struct Responder;

impl Responder {
    /// The length of the child's request: preamble and handshake message.
    pub const REQUEST_BYTES: usize = PREAMBLE_BYTES + HANDSHAKE_BYTES;

    /// Processes a child's request. The caller sends the returned bytes in any case, and closes the connection after
    /// an error. The request may be a replay until a record of the child has been opened.
    pub fn answer(
        request: &[u8; Self::REQUEST_BYTES],
        session: SessionId,
        key: &Key,
        role: Role,
        seen: &mut Seen,
    ) -> (Result<Established, HelloError>, Vec<u8>) {
        let mut out = preamble(session).to_vec();
        let (theirs, message) = request.split_at(PREAMBLE_BYTES);
        let result = theirs
            .first_chunk()
            .ok_or(HelloError::Truncated)
            .and_then(|theirs| check_preamble(theirs, session).map(|()| role.prologue(theirs)))
            .and_then(|prologue| Self::respond(&prologue, message, key, seen));
        let verdict = match &result {
            Ok(_) => GOOD,
            Err(HelloError::NotScela | HelloError::Version { .. }) => OTHER_VERSION,
            Err(HelloError::Session) => OTHER_SESSION,
            Err(HelloError::Replayed) => REPLAYED,
            Err(HelloError::TooMany) => TOO_MANY,
            Err(_) => WRONG_KEY,
        };
        out.push(verdict);
        let result = result.map(|(established, message)| {
            out.extend_from_slice(&message);
            established
        });
        (result, out)
    }

    fn respond(
        prologue: &[u8],
        message: &[u8],
        key: &Key,
        seen: &mut Seen,
    ) -> Result<(Established, [u8; HANDSHAKE_BYTES]), HelloError> {
        let mut state = state(prologue, Builder::build_responder)?;
        with_key(&mut state, key, |state| state.read_message(message, &mut []))?;
        // Remember the message only after authentication, so that a peer without the key cannot fill the memory.
        let ephemeral = *message.first_chunk::<32>().ok_or(HelloError::Truncated)?;
        if seen.0.len() >= HANDSHAKES_REMEMBERED {
            return Err(HelloError::TooMany);
        }
        if !seen.0.insert(ephemeral) {
            return Err(HelloError::Replayed);
        }
        let mut answer = [0; HANDSHAKE_BYTES];
        state.write_message(&[], &mut answer).map_err(|_| HelloError::Key)?;
        Ok((Established::new(*state)?, answer))
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::{Content, bytes_on_link};
    use super::super::{Lane, RecordError};
    use super::*;
    use crate::core::limits::RECORD_BYTES_MAX;

    const SESSION: SessionId = SessionId(0x5ce1a);

    const ROLE: Role = Role::Link { parent: AgentId(3) };

    fn key(byte: u8) -> Key {
        [byte; 32]
    }

    fn request(session: SessionId, key: &Key) -> (Initiator, [u8; Responder::REQUEST_BYTES]) {
        let (initiator, out) = Initiator::new(session, key, ROLE).unwrap();
        (initiator, out.try_into().unwrap())
    }

    fn refusal(answer: &[u8], initiator: &Initiator) -> HelloError {
        assert_eq!(answer.len(), Initiator::VERDICT_BYTES);
        initiator.verdict(answer.try_into().unwrap()).unwrap_err()
    }

    fn pair() -> (Established, Established) {
        let (initiator, request) = request(SESSION, &key(1));
        let (parent, answer) = Responder::answer(&request, SESSION, &key(1), ROLE, &mut Seen::default());
        assert_eq!(answer.len(), Initiator::ANSWER_BYTES);
        initiator.verdict(answer[..Initiator::VERDICT_BYTES].try_into().unwrap()).unwrap();
        (initiator.finish(&answer[Initiator::VERDICT_BYTES..]).unwrap(), parent.unwrap())
    }

    #[test]
    fn after_the_handshake_both_ends_exchange_records() {
        let (mut child, mut parent) = pair();
        let mut wire = Vec::new();
        child.sealer.seal(&Content::Piece(Lane::Board, b"put key=value"), &mut wire);
        child.sealer.seal(&Content::Grant(Lane::Stdout, 77), &mut wire);
        assert!(!wire.windows(3).any(|window| window == b"key"), "the key is sent in clear");
        let (content, first) = parent.opener.open(&wire).unwrap().unwrap();
        assert_eq!(content, Content::Piece(Lane::Board, b"put key=value"));
        let (content, rest) = parent.opener.open(&wire[first..]).unwrap().unwrap();
        assert_eq!((content, first + rest), (Content::Grant(Lane::Stdout, 77), wire.len()));
    }

    #[test]
    fn the_length_of_a_message_on_the_link_is_computed_exactly() {
        let (mut child, _) = pair();
        for length in [0, 1, 1000, RECORD_BYTES_MAX - 5, RECORD_BYTES_MAX - 4, RECORD_BYTES_MAX, 100_000] {
            let framed = [&(length as u32).to_le_bytes()[..], &vec![7; length]].concat();
            let mut wire = Vec::new();
            for piece in framed.chunks(RECORD_BYTES_MAX) {
                child.sealer.seal(&Content::Piece(Lane::Board, piece), &mut wire);
            }
            assert_eq!(wire.len(), bytes_on_link(length), "{length} bytes");
        }
    }

    #[test]
    fn a_wrong_key_is_reported_at_both_ends() {
        let (initiator, request) = request(SESSION, &key(1));
        let (result, answer) = Responder::answer(&request, SESSION, &key(2), ROLE, &mut Seen::default());
        assert_eq!(result.unwrap_err(), HelloError::Key);
        assert_eq!(refusal(&answer, &initiator), HelloError::Key);
    }

    #[test]
    fn a_hello_for_one_purpose_and_parent_is_refused_for_any_other() {
        let number = [0, 1, 3, 0x100];
        let callbacks = number.map(|starter| Role::Callback { starter });
        let links = number.map(|parent| Role::Link { parent: AgentId(parent) });
        let roles = || callbacks.into_iter().chain(links);
        for (of_child, of_parent) in roles().flat_map(|role| roles().map(move |other| (role, other))) {
            let (initiator, request) = Initiator::new(SESSION, &key(1), of_child).unwrap();
            let request = request.try_into().unwrap();
            let (result, answer) = Responder::answer(&request, SESSION, &key(1), of_parent, &mut Seen::default());
            match of_child == of_parent {
                true => assert!(result.is_ok(), "{of_child:?}"),
                false => {
                    assert_eq!(result.unwrap_err(), HelloError::Key, "{of_child:?} at {of_parent:?}");
                    assert_eq!(refusal(&answer, &initiator), HelloError::Key);
                }
            }
        }
    }

    #[test]
    fn a_replayed_first_message_is_refused() {
        let mut seen = Seen::default();
        let (initiator, request) = request(SESSION, &key(1));
        assert!(Responder::answer(&request, SESSION, &key(1), ROLE, &mut seen).0.is_ok());
        let (result, answer) = Responder::answer(&request, SESSION, &key(1), ROLE, &mut seen);
        assert_eq!(result.unwrap_err(), HelloError::Replayed);
        assert_eq!(refusal(&answer, &initiator), HelloError::Replayed);
    }

    #[test]
    fn as_many_handshakes_as_the_bound_are_remembered() {
        let remembered = (0..HANDSHAKES_REMEMBERED as u64 - 1).map(|number| {
            let mut ephemeral = [0; 32];
            ephemeral[..8].copy_from_slice(&number.to_le_bytes());
            ephemeral
        });
        let mut seen = Seen(remembered.collect());
        let (_, last) = request(SESSION, &key(1));
        assert!(Responder::answer(&last, SESSION, &key(1), ROLE, &mut seen).0.is_ok());
        let (initiator, one_more) = request(SESSION, &key(1));
        let (result, answer) = Responder::answer(&one_more, SESSION, &key(1), ROLE, &mut seen);
        assert_eq!(result.unwrap_err(), HelloError::TooMany);
        assert_eq!(refusal(&answer, &initiator), HelloError::TooMany);
        assert_eq!(seen.0.len(), HANDSHAKES_REMEMBERED);
    }

    #[test]
    fn a_record_is_as_long_as_the_bound_at_most() {
        let (mut child, mut parent) = pair();
        let piece = vec![7; RECORD_BYTES_MAX];
        let mut wire = Vec::new();
        child.sealer.seal(&Content::Piece(Lane::Stdout, &piece), &mut wire);
        let opened = parent.opener.open(&wire);
        assert_eq!(opened, Ok(Some((Content::Piece(Lane::Stdout, &piece), wire.len()))));
        let length = wire.len() - 2;
        assert_eq!(parent.opener.open(&(length as u16).to_be_bytes()), Ok(None));
        let longer = (length + 1) as u16;
        assert_eq!(parent.opener.open(&longer.to_be_bytes()), Err(RecordError::TooLong(length + 1)));
    }

    #[test]
    fn another_protocol_version_is_named() {
        let (initiator, mut request) = request(SESSION, &key(1));
        request[8..10].copy_from_slice(&(VERSION + 1).to_be_bytes());
        request[10..15].copy_from_slice(b"9.9.9");
        let (result, mut answer) = Responder::answer(&request, SESSION, &key(1), ROLE, &mut Seen::default());
        assert_eq!(
            result.unwrap_err().to_string(),
            format!(
                "the other end is ScELA 9.9.9 (protocol {}), this is {} (protocol {VERSION})",
                VERSION + 1,
                env!("CARGO_PKG_VERSION")
            )
        );
        answer[8..10].copy_from_slice(&(VERSION + 1).to_be_bytes());
        assert!(matches!(refusal(&answer, &initiator), HelloError::Version { version, .. } if version == VERSION + 1));
    }

    #[test]
    fn a_changed_preamble_breaks_the_handshake() {
        let (_, mut request) = request(SESSION, &key(1));
        request[PREAMBLE_BYTES - 9] ^= 1; // a byte of the product's name, which is not compared
        assert_eq!(
            Responder::answer(&request, SESSION, &key(1), ROLE, &mut Seen::default()).0.unwrap_err(),
            HelloError::Key
        );
    }

    #[test]
    fn other_sessions_and_other_protocols_are_distinguished() {
        let (initiator, request) = request(SessionId(1), &key(1));
        let (result, answer) = Responder::answer(&request, SESSION, &key(1), ROLE, &mut Seen::default());
        assert_eq!(result.unwrap_err(), HelloError::Session);
        assert_eq!(refusal(&answer, &initiator), HelloError::Session);
        let (result, _) =
            Responder::answer(&[b'G'; Responder::REQUEST_BYTES], SESSION, &key(1), ROLE, &mut Seen::default());
        assert_eq!(result.unwrap_err(), HelloError::NotScela);
    }

    #[test]
    fn damaged_reordered_and_truncated_records_do_not_open() {
        let (mut child, mut parent) = pair();
        let (mut first, mut second) = (Vec::new(), Vec::new());
        child.sealer.seal(&Content::Alive, &mut first);
        child.sealer.seal(&Content::Alive, &mut second);
        assert_eq!(parent.opener.open(&second), Err(RecordError::Sealed), "out of order");
        let mut damaged = first.clone();
        damaged[5] ^= 1;
        assert_eq!(parent.opener.open(&damaged), Err(RecordError::Sealed));
        assert_eq!(parent.opener.open(&first[..first.len() - 1]), Ok(None), "truncated: more bytes are needed");
        assert_eq!(parent.opener.open(&[0xff, 0xff]), Err(RecordError::TooLong(0xffff)));
        assert!(parent.opener.open(&first).is_ok());
        assert_eq!(parent.opener.open(&first), Err(RecordError::Sealed), "replayed");
    }
}
