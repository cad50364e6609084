//! The payloads of the handshake: Negotiate frames (initiator to target) and Negotiated frames (target to
//! initiator).
//!
//! ```text
//! initiator                                     target
//!    HELLO   group, target                   ──▶
//!                                            ◀──   COOKIE
//!    START   the same, cookie, offer, KE1    ──▶
//!                                            ◀──   ANSWER   choice, KE2          (a group with a password)
//!    FINISH  KE3                             ──▶
//!                                            ◀──   ACCEPT   choice, token
//! ```
//!
//! The key exchange is OPAQUE-3DH (RFC 9807) over ristretto255 with SHA-512. This module treats its messages
//! as bytes.

use alloc::boxed::Box;
use alloc::vec::Vec;

use security::opaque::{KE1_LEN, KE2_LEN, KE3_LEN, StretchCost};

use super::ask::TOKEN_LEN;
use super::discovery::INSTANCE_LEN;
use super::name::{GroupName, Name};
use super::parameters::{Illegal, Parameters};
use super::{Block, Malformed, exactly, once, put_block, put_item};

/// The length of a handshake's identifier, in bytes.
pub const HANDSHAKE_LEN: usize = 16;
/// The length of a cookie, in bytes. Only the target can interpret a cookie.
pub const COOKIE_LEN: usize = 40;
/// The length of the proof that the sender of an ACCEPT has the keys, in bytes.
pub const PROOF_LEN: usize = 32;

/// The identifier of a handshake: random bytes that the initiator chose for it.
pub type HandshakeId = [u8; HANDSHAKE_LEN];
/// A cookie.
pub type Cookie = [u8; COOKIE_LEN];

/// The least length of a HELLO's payload. The COOKIE that answers it goes to an address that may be forged,
/// and must not be longer than the HELLO.
pub const HELLO_PAYLOAD_MIN: usize = 4 + 16 + 3 + COOKIE_LEN;

const HELLO: u8 = 1;
const COOKIE: u8 = 2;
const START: u8 = 3;
const ANSWER: u8 = 4;
const FINISH: u8 = 5;
const ACCEPT: u8 = 6;
const REFUSE: u8 = 7;

const GROUP_ITEM: u8 = 0x81;
const TARGET_ITEM: u8 = 0x82;
const INITIATOR_ITEM: u8 = 0x83;
const ISID_ITEM: u8 = 0x84;
const COOKIE_ITEM: u8 = 0x85;
const SID_ITEM: u8 = 0x86;
const PARAMETERS_ITEM: u8 = 0x87;
const KE1_ITEM: u8 = 0x88;
const KE2_ITEM: u8 = 0x89;
const KE3_ITEM: u8 = 0x8a;
const TOKEN_ITEM: u8 = 0x8b;
const INSTANCE_ITEM: u8 = 0x8c;
const STRETCH_ITEM: u8 = 0x8e;
const PROOF_ITEM: u8 = 0x8f;
const RETRY_AFTER_ITEM: u8 = 0x0d;

/// A step of the handshake that the initiator takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Negotiate {
    /// HELLO: the initiator wants a session.
    Hello(Hello),
    /// START: the initiator returns the cookie, which proves that it receives at its address, and begins the
    /// handshake.
    Start(Box<Start>),
    /// A START whose offer is illegal. [`Parameters::DEFAULT`] stands in place of the offer.
    Illegal(Box<Start>, Illegal),
    /// FINISH: the initiator proves that it knows the password.
    Finish(Finish),
}

/// HELLO: asks for a cookie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The handshake's identifier.
    pub handshake: HandshakeId,
    /// The group.
    pub group: GroupName,
    /// The target.
    pub target: Name,
}

/// START: begins the handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// The handshake's identifier.
    pub handshake: HandshakeId,
    /// The cookie. It is the last item.
    pub cookie: Cookie,
    /// The group.
    pub group: GroupName,
    /// The target.
    pub target: Name,
    /// The initiator.
    pub initiator: Name,
    /// The ISID, which distinguishes the initiator's ports: with the initiator's name it names one port.
    pub isid: [u8; 6],
    /// The initiator's SID for the session; not 0.
    pub sid: u32,
    /// The parameters that the initiator offers.
    pub offer: Parameters,
    /// OPAQUE's first message; `None` if the initiator has no password.
    pub ke1: Option<[u8; KE1_LEN]>,
}

/// FINISH: ends the key exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finish {
    /// The handshake's identifier.
    pub handshake: HandshakeId,
    /// The target's SID for the session.
    pub sid: u32,
    /// OPAQUE's third message.
    pub ke3: [u8; KE3_LEN],
}

/// A step of the handshake that the target takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Negotiated {
    /// COOKIE: the initiator returns the cookie, which proves that it receives what is sent to its address.
    Cookie {
        /// The handshake's identifier.
        handshake: HandshakeId,
        /// The cookie.
        cookie: Cookie,
    },
    /// ANSWER: the target has the record of the password, and chooses the parameters.
    Answer(Box<Answer>),
    /// ACCEPT: there is a session.
    Accept(Accept),
    /// REFUSE: there is no session.
    Refuse {
        /// The handshake's identifier.
        handshake: HandshakeId,
        /// The reason.
        reason: RefuseReason,
        /// When to try again, in milliseconds; 0 for no advice.
        retry_after_ms: u32,
    },
}

/// ANSWER: continues the key exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The handshake's identifier.
    pub handshake: HandshakeId,
    /// The target's SID for the session; not 0.
    pub sid: u32,
    /// The parameters that the target chose.
    pub choice: Parameters,
    /// The cost at which the target's record was made: the initiator must stretch the password with it.
    pub stretch: StretchCost,
    /// OPAQUE's second message. It is the last item.
    pub ke2: [u8; KE2_LEN],
}

/// ACCEPT: there is a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accept {
    /// The handshake's identifier.
    pub handshake: HandshakeId,
    /// The target's SID for the session; not 0.
    pub sid: u32,
    /// The parameters that the target chose.
    pub choice: Parameters,
    /// The token that adds a path to a session without keys.
    pub token: [u8; TOKEN_LEN],
    /// The identity of the server.
    pub instance: [u8; INSTANCE_LEN],
    /// In a session with keys, the proof that the sender has them. It is the last item.
    pub proof: Option<[u8; PROOF_LEN]>,
}

base::code8! {
    /// Why there is no session.
    pub struct RefuseReason {
        /// The password is wrong, or there is no such name: the target does not say which.
        NOT_AUTHORIZED = 1;
        /// The target demands a protection level, or another property, that was not offered.
        PARAMETERS = 2;
        /// The target has no free slot now, or too many passwords were tried lately.
        BUSY = 3;
        /// The target shuts down.
        SHUTDOWN = 4;
        /// The group has a password.
        PASSWORD_NEEDED = 5;
        /// The group has no password, and so its sessions have no keys.
        OPEN_GROUP = 6;
        /// The target speaks another version, which stands in this frame's header. The handshake's identifier
        /// is all zeros.
        VERSION = 7;
    }
}

impl Negotiate {
    /// Appends the block to `out`. Only padding may follow.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Hello(hello) => {
                let start = out.len();
                put_block(out, HELLO, 0, |out| {
                    out.extend_from_slice(&hello.handshake);
                    put_bytes(out, GROUP_ITEM, hello.group.as_bytes());
                    put_bytes(out, TARGET_ITEM, hello.target.as_bytes());
                });
                out.resize(out.len().max(start + HELLO_PAYLOAD_MIN), 0);
            }
            Self::Start(start) => {
                put_block(out, START, 0, |out| start.encode(out, |out| start.offer.encode(out)));
            }
            Self::Illegal(start, why) => {
                put_block(out, START, 0, |out| start.encode(out, |out| why.encode(out)));
            }
            Self::Finish(finish) => put_block(out, FINISH, 0, |out| {
                out.extend_from_slice(&finish.handshake);
                put_bytes(out, SID_ITEM, &finish.sid.to_be_bytes());
                put_bytes(out, KE3_ITEM, &finish.ke3);
            }),
        }
    }

    /// Parses the block at the front of `payload`. The bytes behind it are padding.
    ///
    /// # Errors
    /// [`Malformed`]
    pub fn parse(payload: &[u8]) -> Result<Self, Malformed> {
        let (kind, handshake, items) = Items::read(payload)?;
        match kind {
            //= hyperscsi#section-6.2
            //# A HELLO's payload MUST be padded to 63 bytes if it is shorter, and a target MUST drop a shorter one
            HELLO if payload.len() < HELLO_PAYLOAD_MIN => Err(Malformed::Short),
            HELLO => {
                let (group, target) = (need(items.group)?, need(items.target)?);
                Ok(Self::Hello(Hello { handshake, group, target }))
            }
            START => {
                let offer = need(items.parameters)?;
                let start = Box::new(Start {
                    handshake,
                    cookie: need(items.cookie)?,
                    group: need(items.group)?,
                    target: need(items.target)?,
                    initiator: need(items.initiator)?,
                    isid: need(items.isid)?,
                    sid: need(items.sid)?,
                    offer: offer.unwrap_or_default(),
                    ke1: items.ke1,
                });
                Ok(match offer {
                    Ok(_) => Self::Start(start),
                    Err(why) => Self::Illegal(start, why),
                })
            }
            FINISH => {
                let (sid, ke3) = (need(items.sid)?, need(items.ke3)?);
                Ok(Self::Finish(Finish { handshake, sid, ke3 }))
            }
            _ => Err(Malformed::Kind),
        }
    }
}

impl Start {
    fn encode(&self, out: &mut Vec<u8>, offer: impl FnOnce(&mut Vec<u8>)) {
        out.extend_from_slice(&self.handshake);
        put_bytes(out, GROUP_ITEM, self.group.as_bytes());
        put_bytes(out, TARGET_ITEM, self.target.as_bytes());
        put_bytes(out, INITIATOR_ITEM, self.initiator.as_bytes());
        put_bytes(out, ISID_ITEM, &self.isid);
        put_bytes(out, SID_ITEM, &self.sid.to_be_bytes());
        put_item(out, PARAMETERS_ITEM, offer);
        if let Some(ke1) = &self.ke1 {
            put_bytes(out, KE1_ITEM, ke1);
        }
        put_bytes(out, COOKIE_ITEM, &self.cookie);
    }
}

impl Negotiated {
    /// Appends the block to `out`. Only padding may follow.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Cookie { handshake, cookie } => put_block(out, COOKIE, 0, |out| {
                out.extend_from_slice(handshake);
                put_bytes(out, COOKIE_ITEM, cookie);
            }),
            Self::Answer(answer) => put_block(out, ANSWER, 0, |out| {
                out.extend_from_slice(&answer.handshake);
                put_bytes(out, SID_ITEM, &answer.sid.to_be_bytes());
                put_item(out, PARAMETERS_ITEM, |out| answer.choice.encode(out));
                put_item(out, STRETCH_ITEM, |out| {
                    out.extend_from_slice(&answer.stretch.memory_kib.to_be_bytes());
                    out.extend_from_slice(&answer.stretch.passes.to_be_bytes());
                    out.push(answer.stretch.lanes);
                });
                put_bytes(out, KE2_ITEM, &answer.ke2);
            }),
            Self::Accept(accept) => put_block(out, ACCEPT, 0, |out| {
                out.extend_from_slice(&accept.handshake);
                put_bytes(out, SID_ITEM, &accept.sid.to_be_bytes());
                put_item(out, PARAMETERS_ITEM, |out| accept.choice.encode(out));
                put_bytes(out, TOKEN_ITEM, &accept.token);
                put_bytes(out, INSTANCE_ITEM, &accept.instance);
                if let Some(proof) = &accept.proof {
                    put_bytes(out, PROOF_ITEM, proof);
                }
            }),
            Self::Refuse { handshake, reason, retry_after_ms } => put_block(out, REFUSE, reason.0, |out| {
                out.extend_from_slice(handshake);
                put_bytes(out, RETRY_AFTER_ITEM, &retry_after_ms.to_be_bytes());
            }),
        }
    }

    /// Parses the block at the front of `payload`. The bytes behind it are padding.
    ///
    /// # Errors
    /// [`Malformed`]
    pub fn parse(payload: &[u8]) -> Result<Self, Malformed> {
        let (kind, handshake, items) = Items::read(payload)?;
        match kind {
            COOKIE => Ok(Self::Cookie { handshake, cookie: need(items.cookie)? }),
            ANSWER => Ok(Self::Answer(Box::new(Answer {
                handshake,
                sid: need(items.sid)?,
                choice: need(items.parameters)?.map_err(|_| Malformed::Value)?,
                stretch: need(items.stretch)?,
                ke2: need(items.ke2)?,
            }))),
            ACCEPT => Ok(Self::Accept(Accept {
                handshake,
                sid: need(items.sid)?,
                choice: need(items.parameters)?.map_err(|_| Malformed::Value)?,
                token: need(items.token)?,
                instance: need(items.instance)?,
                proof: items.proof,
            })),
            REFUSE => Ok(Self::Refuse {
                handshake,
                reason: RefuseReason(items.info),
                retry_after_ms: items.retry_after_ms.unwrap_or_default(),
            }),
            _ => Err(Malformed::Kind),
        }
    }
}

/// All items and fields that a step of the handshake may have.
#[derive(Default)]
struct Items {
    info: u8,
    group: Option<GroupName>,
    target: Option<Name>,
    initiator: Option<Name>,
    isid: Option<[u8; 6]>,
    cookie: Option<Cookie>,
    sid: Option<u32>,
    parameters: Option<Result<Parameters, Illegal>>,
    ke1: Option<[u8; KE1_LEN]>,
    ke2: Option<[u8; KE2_LEN]>,
    ke3: Option<[u8; KE3_LEN]>,
    token: Option<[u8; TOKEN_LEN]>,
    instance: Option<[u8; INSTANCE_LEN]>,
    stretch: Option<StretchCost>,
    proof: Option<[u8; PROOF_LEN]>,
    retry_after_ms: Option<u32>,
}

impl Items {
    fn read(payload: &[u8]) -> Result<(u8, HandshakeId, Self), Malformed> {
        let mut block = Block::parse(payload)?;
        let (kind, info, handshake) = (block.kind, block.info, block.body.array()?);
        if info != 0 && kind != REFUSE {
            return Err(Malformed::Value);
        }
        let mut items = Self { info, ..Self::default() };
        block.items(|kind, value| items.set(kind, value))?;
        Ok((kind, handshake, items))
    }

    fn set(&mut self, kind: u8, value: &[u8]) -> Result<bool, Malformed> {
        match kind {
            GROUP_ITEM => once(&mut self.group, GroupName::parse(value)?),
            TARGET_ITEM => once(&mut self.target, Name::parse(value)?),
            INITIATOR_ITEM => once(&mut self.initiator, Name::parse(value)?),
            ISID_ITEM => once(&mut self.isid, exactly(value)?),
            COOKIE_ITEM => once(&mut self.cookie, exactly(value)?),
            SID_ITEM => match u32::from_be_bytes(exactly(value)?) {
                0 => Err(Malformed::Value),
                sid => once(&mut self.sid, sid),
            },
            PARAMETERS_ITEM => once(&mut self.parameters, Parameters::read(value)?),
            KE1_ITEM => once(&mut self.ke1, exactly(value)?),
            KE2_ITEM => once(&mut self.ke2, exactly(value)?),
            KE3_ITEM => once(&mut self.ke3, exactly(value)?),
            TOKEN_ITEM => once(&mut self.token, exactly(value)?),
            INSTANCE_ITEM => once(&mut self.instance, exactly(value)?),
            STRETCH_ITEM => {
                let [m0, m1, m2, m3, p0, p1, p2, p3, lanes] = exactly(value)?;
                let memory_kib = u32::from_be_bytes([m0, m1, m2, m3]);
                let passes = u32::from_be_bytes([p0, p1, p2, p3]);
                once(&mut self.stretch, StretchCost { memory_kib, passes, lanes })
            }
            PROOF_ITEM => once(&mut self.proof, exactly(value)?),
            RETRY_AFTER_ITEM => once(&mut self.retry_after_ms, u32::from_be_bytes(exactly(value)?)),
            _ => Ok(false),
        }
    }
}

fn need<T>(item: Option<T>) -> Result<T, Malformed> {
    item.ok_or(Malformed::Item)
}

fn put_bytes(out: &mut Vec<u8>, kind: u8, value: &[u8]) {
    put_item(out, kind, |out| out.extend_from_slice(value));
}

/// Returns the block at the front of `payload` with zeros in place of the value of its last item, provided
/// that this is `len` bytes long. The proofs of the handshake are computed over this, before that value
/// exists.
//= hyperscsi#section-4.9
//# What is left out where something is computed over a block (COOKIE of START, KE2 of ANSWER, PROOF of ACCEPT) MUST be its last item.
pub(crate) fn without_last(payload: &[u8], len: usize) -> Result<Vec<u8>, Malformed> {
    let whole = Block::parse(payload)?;
    let mut block = payload.get(..payload.len() - whole.rest.len()).unwrap_or_default().to_vec();
    let at = block.len().checked_sub(len + 3).ok_or(Malformed::Short)?;
    let (_, tail) = block.split_at_mut(at);
    let Some(([_, high, low], value)) = tail.split_first_chunk_mut::<3>() else {
        return Err(Malformed::Short);
    };
    if usize::from(u16::from_be_bytes([*high, *low])) != len {
        return Err(Malformed::Item);
    }
    value.fill(0);
    Ok(block)
}
