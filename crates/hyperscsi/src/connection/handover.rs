//! The transport of a session that moves to another process: keys, paths and their packet numbers.
//!
//! No message is under way when a transport moves, so no data moves. What the other process did not hear is
//! repaired as after any loss.

use alloc::vec::Vec;

use base::ether::{EtherPort, PortState};
use base::rng::Rng;
use base::time::{Duration, Instant};
use serde::{Deserialize, Serialize};

use super::{Connection, ConnectionConfig, PATHS_MAX};
use crate::Role;
use crate::aead::handover::KeysState;
use crate::aead::{Decryptor, Encryptor};
use crate::exchange::xid::PnSpace;
use crate::path::Path;
pub use crate::path::{LeftPathState, PathState, SpaceState};
use crate::pdu::ask::TOKEN_LEN;

/// The number that stands for a port that does not exist in the process that resumes a session.
pub(crate) const NO_PORT: EtherPort = EtherPort(u32::MAX);

/// The highest number of key updates that a session begins with, so that it can go on counting them.
const KEY_UPDATES_MAX: u64 = 1 << 62;

/// The transport of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConnectionState {
    /// The token that adds a path to a session without keys.
    pub token: [u8; TOKEN_LEN],
    /// How many frames this end takes before it sends credit, as it said in the handshake.
    pub frames_initial: u32,
    /// How long this end delays an acknowledgement at most, in microseconds, as it said in the handshake.
    pub ack_delay_max_us: u32,
    /// The keys; `None` in a session of a group without a password.
    pub keys: Option<KeysState>,
    /// How often the keys of sent frames were updated.
    pub key_updates: u64,
    /// Whether no frame that was protected with the present keys was acknowledged yet.
    pub key_unconfirmed: bool,
    /// How long ago the first such frame was acknowledged, in microseconds; `None` for the first keys.
    pub key_confirmed_us: Option<u64>,
    /// The largest XIDs that the peer may begin, unprotected and protected; 0 if none was named.
    pub xid_limits: [u32; 2],
    /// The paths, 1 to [`PATHS_MAX`].
    pub paths: Vec<PathState>,
    /// The paths that were left.
    pub left_paths: Vec<LeftPathState>,
}

/// Why a transport cannot be made of its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectionStateError {
    /// The number of paths
    #[error("the session has no path, or too many")]
    PathCount,
    /// A path number that occurs twice
    #[error("two paths of the session have the number {path}")]
    PathTwice {
        /// The number.
        path: u8,
    },
    /// The numbers, lengths or the address of a path
    #[error("path {path} of the session cannot be in the given state")]
    Path {
        /// The number.
        path: u8,
    },
    /// No port of the paths exists.
    #[error("no port that the session uses exists here")]
    NoPort,
    /// An XID limit of the wrong class
    #[error("an exchange limit of the session is out of place")]
    XidLimit,
}

impl Connection {
    /// Returns the state of the transport.
    pub(crate) fn export(&self, now: Instant) -> ConnectionState {
        let keys = self.encryptor.export(now).zip(self.decryptor.export());
        let micros = |since: Instant| u64::try_from(now.since(since).as_micros()).unwrap_or(u64::MAX);
        ConnectionState {
            token: self.plan.token,
            frames_initial: self.plan.frames_initial,
            ack_delay_max_us: u32::try_from(self.plan.ack_delay_max.as_micros()).unwrap_or(u32::MAX),
            keys: keys.map(|(send, receive)| KeysState { send, receive }),
            key_updates: self.key_updates,
            key_unconfirmed: self.key_unconfirmed.is_some(),
            key_confirmed_us: self.key_confirmed.map(micros),
            xid_limits: self.xid_limits,
            paths: self.paths.iter().map(|path| path.export(now)).collect(),
            left_paths: self
                .pn_horizons
                .iter()
                .map(|(path, (left, pn_horizon))| LeftPathState::of(now, *path, *left, pn_horizon))
                .collect(),
        }
    }

    /// Makes the target's transport of a session from the state that another process exported. `port` returns
    /// the state of a port that is up here, or was. A path over another port waits until that port is up,
    /// unless its port is [`NO_PORT`]: such a path is left.
    ///
    /// # Errors
    /// [`ConnectionStateError`]: the state contradicts itself, or no path has a port here.
    pub(crate) fn resume(
        now: Instant,
        plan: &ConnectionConfig,
        sids: (u32, u32),
        state: &ConnectionState,
        port: &dyn Fn(EtherPort) -> Option<PortState>,
    ) -> Result<Self, ConnectionStateError> {
        state.check()?;
        let (here, gone): (Vec<_>, Vec<_>) =
            state.paths.iter().partition(|path| EtherPort(path.port) != NO_PORT);
        let mut dice = Rng::from_seed(u64::from_be_bytes(plan.entropy));
        let keyed = state.keys.is_some();
        let mut paths = Vec::new();
        for path in here {
            let local = port(EtherPort(path.port));
            paths.push(Path::resume(now, path, local.as_ref(), plan, (keyed, dice.next_u64())));
        }
        let live = paths.iter().map(|path| (path.id, path.pn_horizon()));
        let left = state.left_paths.iter().map(|path| (path.path, path.pn_horizon()));
        let gone_too = gone.iter().map(|path| (path.path, path.pn_horizon()));
        let last = live.chain(left).chain(gone_too).map(|(path, horizon)| {
            let [_, sealed] = horizon.out;
            (path, sealed)
        });
        let (encryptor, decryptor) = match &state.keys {
            Some(keys) => {
                (Encryptor::resume(now, &keys.send, plan.key_limits, last), Decryptor::resume(&keys.receive))
            }
            None => (Encryptor::without_keys(), Decryptor::without_keys()),
        };
        let mut own = Self::with_keys(Role::Target, plan, sids, encryptor, decryptor, dice);
        own.keyed = keyed;
        own.key_updates = state.key_updates.min(KEY_UPDATES_MAX);
        // Every frame that is sent from now on has the present keys, or later ones.
        own.key_unconfirmed = (keyed && state.key_unconfirmed).then(|| now.before(Duration::from_nanos(1)));
        own.key_confirmed = state.key_confirmed_us.map(|span| now.before(Duration::from_micros(span)));
        own.xid_limits = state.xid_limits;
        own.paths = paths;
        for path in &state.left_paths {
            let left = now.before(Duration::from_micros(path.left_us));
            own.pn_horizons.insert(path.path, (left, path.pn_horizon()));
        }
        for path in gone {
            own.pn_horizons.insert(path.path, (now, path.pn_horizon()));
            let messenger = own.control_path().ok_or(ConnectionStateError::NoPort)?;
            messenger.leaves.push(path.path);
            messenger.leaves.extend(&path.leaves);
        }
        Ok(own)
    }

    /// Returns how many messages the peer has not acknowledged.
    pub(crate) fn messages_under_way(&self) -> usize {
        self.send_queue.len()
    }

    /// Returns whether the peer waits for an acknowledgement that a path can carry.
    pub(crate) fn owes_ack(&self) -> bool {
        self.paths.iter().any(Path::owes_ack)
    }

    /// Returns whether the session is lost and the owner was, or will be, told so.
    pub(crate) const fn is_lost(&self) -> bool {
        self.lost
    }

    /// Sends on every path what the peer may be waiting for: acknowledgements, credit, XID limits and a ping.
    pub(crate) fn speak_up(&mut self, now: Instant) {
        self.xid_announced = [0; 2];
        self.paths.iter_mut().for_each(|path| path.speak_up(now));
    }
}

impl ConnectionState {
    fn check(&self) -> Result<(), ConnectionStateError> {
        if self.paths.is_empty() || self.paths.len() > PATHS_MAX {
            return Err(ConnectionStateError::PathCount);
        }
        let live = self.paths.iter().map(|path| (path.path, path.is_possible()));
        let left = self.left_paths.iter().map(|path| (path.path, path.is_possible()));
        let mut known = [false; 256];
        for (path, is_possible) in live.chain(left) {
            if !is_possible {
                return Err(ConnectionStateError::Path { path });
            }
            if known.get_mut(usize::from(path)).is_none_or(|known| core::mem::replace(known, true)) {
                return Err(ConnectionStateError::PathTwice { path });
            }
        }
        let fits = |(limit, class): (&u32, PnSpace)| *limit == 0 || PnSpace::of(*limit) == class;
        if self.xid_limits.iter().zip(PnSpace::ALL).all(fits) {
            Ok(())
        } else {
            Err(ConnectionStateError::XidLimit)
        }
    }
}
