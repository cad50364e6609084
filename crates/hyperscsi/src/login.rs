//! The handshake: an initiator and a target agree on a session, and on its keys if the group has a password.
//!
//! ```text
//! initiator                                     target
//!    HELLO   group, target                   ──▶          keeps nothing
//!                                            ◀──   COOKIE
//!    START   the same, cookie, offer, KE1    ──▶          keeps a half-open handshake
//!                                            ◀──   ANSWER   choice, KE2          (a group with a password)
//!    FINISH  KE3                             ──▶          keeps a session
//!                                            ◀──   ACCEPT   choice, token, proof
//! ```
//!
//! Every step is one frame. The initiator repeats its frame until it receives an answer. The target answers a
//! repeated frame with the same bytes as before. [`initiator::Login`] and [`target::HandshakeServer`] are the
//! two state machines. Their owner passes them frames with SID 0 and makes a session of each
//! [`HandshakeResult`]. The transport of frames after the handshake is handled by [`crate::connection`].
//!
//! # What a man in the middle can do
//!
//! The context of the key exchange covers all that both ends sent before the last message: their identities,
//! what was offered and chosen, the SIDs. A change to any of it makes the exchange fail as a wrong password
//! does. The initiator takes no failure as final before it has waited for a better answer. So an attacker can
//! delay a session, as he can by cutting the wire, and nothing else. Messages without proof (refusals,
//! cookies, answers that do not decrypt) change no state for good.
//!
//! A group without a password proves nothing: its sessions have no keys.

pub mod directory;
pub mod initiator;
pub mod target;

pub(crate) mod control_queue;
pub(crate) mod cookie;
pub(crate) mod rate_limit;

use core::fmt;

use base::ether::{EtherPort, Mac};
use security::opaque::KE2_LEN;
use security::random::mac;
use sha2::{Digest, Sha512};

use crate::aead::SessionKeys;
use crate::frame::VERSION;
use crate::pdu::Malformed;
use crate::pdu::name::{GroupName, Name};
use crate::pdu::negotiate::{Accept, COOKIE_LEN, Negotiated, PROOF_LEN, without_last};
use crate::pdu::parameters::{Levels, Parameters, Repair};

/// What both ends know when the handshake has succeeded.
pub struct HandshakeResult {
    /// The keys, if the group has a password.
    pub keys: Option<SessionKeys>,
    /// The other end's SID for the session. It stands in frames that we send.
    pub sid_out: u32,
    /// Our SID for the session. It stands in frames that we receive.
    pub sid_in: u32,
    /// The secret token that adds a path to a session without keys.
    pub token: [u8; 16],
    /// The agreed parameters. The fields that each end states for itself hold the other end's values.
    pub parameters: Parameters,
    /// The longest Ethernet payload of our own port, in bytes, as we announced it. The smaller of this and
    /// the other end's value holds.
    pub frame_max: u16,
    /// The group.
    pub group: GroupName,
    /// The target.
    pub target: Name,
    /// The initiator.
    pub initiator: Name,
    /// The ISID, which distinguishes the ports of the initiator.
    pub isid: [u8; 6],
    /// The instance: the identity of the server.
    pub instance: [u8; 16],
    /// The port that the handshake took place on.
    pub port: EtherPort,
    /// The other end's address on it.
    pub peer: Mac,
}

impl HandshakeResult {
    /// Returns the longest Ethernet payload that both ports take, in bytes.
    pub fn frame_max_common(&self) -> u16 {
        self.frame_max.min(self.parameters.frame_max)
    }
}

impl fmt::Debug for HandshakeResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agreed")
            .field("protected", &self.keys.is_some())
            .field("sid_out", &self.sid_out)
            .field("sid_in", &self.sid_in)
            .field("parameters", &self.parameters)
            .field("frame_max", &self.frame_max)
            .field("group", &self.group)
            .field("target", &self.target)
            .field("initiator", &self.initiator)
            .field("port", &self.port)
            .field("peer", &self.peer)
            .finish_non_exhaustive()
    }
}

/// Returns the parameters that a target chooses from an offer; `None` if no protection level is left.
fn choose(ours: &Parameters, offer: &Parameters, has_keys: bool) -> Option<Parameters> {
    let possible = if has_keys { Levels::ALL } else { Levels::OPEN };
    Some(Parameters {
        frame_max: ours.frame_max,
        frames_initial: ours.frames_initial,
        ack_delay_max_us: ours.ack_delay_max_us,
        levels: ours.levels.common(offer.levels)?.common(possible)?,
        exchanges: ours.exchanges.min(offer.exchanges),
        first_burst: ours.first_burst.min(offer.first_burst),
        burst_max: ours.burst_max.min(offer.burst_max),
        paths: ours.paths.min(offer.paths),
        repair: if ours.repair == Repair::Window { ours.repair } else { offer.repair },
        lost_after_ms: ours.lost_after_ms.min(offer.lost_after_ms),
    })
}

/// Returns whether a target may choose `choice` after the initiator offered `offer`.
//= hyperscsi#section-4.10
//# The
//# initiator MUST NOT take a choice outside its offer.
fn is_within(choice: &Parameters, offer: &Parameters, has_keys: bool) -> bool {
    let possible = if has_keys { Levels::ALL } else { Levels::OPEN };
    choice.levels.common(offer.levels) == Some(choice.levels)
        && choice.levels.common(possible) == Some(choice.levels)
        && choice.exchanges <= offer.exchanges
        && choice.first_burst <= offer.first_burst
        && choice.burst_max <= offer.burst_max
        && choice.paths <= offer.paths
        && (choice.repair == Repair::Window || offer.repair == Repair::Selective)
        && choice.lost_after_ms <= offer.lost_after_ms
}

/// Returns the context that the key exchange is bound to: the initiator's START without the cookie, and the
/// target's ANSWER without its message of the key exchange, which OPAQUE binds by itself.
fn context(start: &[u8], answer: &[u8]) -> Result<[u8; 64], Malformed> {
    let answer = without_last(answer, KE2_LEN)?;
    let start = without_last(start, COOKIE_LEN)?;
    let len = u32::try_from(start.len()).map_err(|_| Malformed::Value)?;
    let mut hash = Sha512::new();
    for part in [CONTEXT, &[VERSION], &len.to_be_bytes(), &start, &answer] {
        hash.update(part);
    }
    Ok(hash.finalize().into())
}

/// Returns the PROOF item of an ACCEPT: it proves that the target has the keys.
fn proof(secret: &[u8; 64], context: &[u8; 64], accept: &[u8]) -> Result<[u8; PROOF_LEN], Malformed> {
    let accept = without_last(accept, PROOF_LEN)?;
    let mac = mac(secret, &[ACCEPTED, context, &accept]);
    mac.first_chunk().copied().ok_or(Malformed::Short)
}

/// Returns an ACCEPT, with the proof if there is a secret.
fn accept(accept: &Accept, secret: Option<(&[u8; 64], &[u8; 64])>) -> Result<alloc::vec::Vec<u8>, Malformed> {
    let encoded = |proof| {
        let mut out = alloc::vec::Vec::new();
        Negotiated::Accept(Accept { proof, ..accept.clone() }).encode(&mut out);
        out
    };
    let Some((secret, context)) = secret else { return Ok(encoded(None)) };
    let proof = proof(secret, context, &encoded(Some([0; PROOF_LEN])))?;
    Ok(encoded(Some(proof)))
}

const CONTEXT: &[u8] = b"HyperSCSI v2 handshake";
const ACCEPTED: &[u8] = b"HyperSCSI v2 accept";

#[cfg(test)]
pub(crate) mod tests;
#[cfg(test)]
mod vectors;
