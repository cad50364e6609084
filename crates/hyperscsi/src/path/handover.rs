//! A path that moves to another process.
//!
//! Its packet numbers, credit, path MTU and unfinished business with the peer move. Round trips, congestion
//! window and loss detection begin anew, as after a pause.

use alloc::vec::Vec;

use base::ether::{EtherPort, Mac, PortState};
use base::int_cast::to_usize;
use base::time::{Duration, Instant};
use serde::{Deserialize, Serialize};

use super::pn_space::handover::{COUNT_MAX, SpaceState, is_possible};
use super::pn_space::{FrameContent, Incoming, Outgoing};
use super::{Path, PathAddress, PnHorizon, PnSpaceState};
use crate::connection::ConnectionConfig;

/// A path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PathState {
    /// The top byte of its packet numbers.
    pub path: u8,
    /// The port of this host. The process that resumes the session numbers its ports itself:
    /// see [`SessionState::map_ports`](crate::target::handover::SessionState::map_ports).
    pub port: u32,
    /// The address of the peer's port.
    pub peer: [u8; 6],
    /// The challenge of this end that the peer did not echo yet; 0 if there is none.
    pub challenge: u64,
    /// The challenge of the peer, which this end echoes; 0 if there is none.
    pub echo: u64,
    /// Whether a step of path validation is to be sent.
    pub step_wanted: bool,
    /// Whether the peer is to be told what this port takes.
    pub receives_wanted: bool,
    /// Paths whose end the peer is to be told of.
    pub leaves: Vec<u8>,
    /// How long ago the last sign of life came, in microseconds.
    pub silent_us: u64,
    /// Whether the path was given up because it was silent.
    pub down: bool,
    /// Whether nothing was received on the path yet.
    pub unheard: bool,
    /// The longest frame that the path is known to carry, in bytes.
    pub mtu: u32,
    /// The longest frame that this port takes, in bytes, as the peer was told.
    pub port_mtu: u32,
    /// The longest frame that the peer's port takes, in bytes.
    pub peer_mtu: u32,
    /// How many frames this port lost because its receive ring was full; wraps.
    pub overruns: u32,
    /// The space of unprotected frames, and that of protected ones.
    pub spaces: [SpaceState; 2],
}

/// A path that was left. A new path with its number goes on with its packet numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeftPathState {
    /// The top byte of its packet numbers.
    pub path: u8,
    /// How long ago it was left, in microseconds.
    pub left_us: u64,
    /// The last packet numbers that were used, unprotected and protected.
    pub sent: [u64; 2],
    /// The largest packet numbers that were received.
    pub received: [u64; 2],
    /// The largest packet numbers that the peer may have used.
    pub granted: [u64; 2],
}

/// The longest frame that a state may name, in bytes: that of the protocol.
const FRAME_MAX: u32 = 65_535;

impl Path {
    /// Returns the state of the path.
    pub(crate) fn export(&self, now: Instant) -> PathState {
        let (mut step_wanted, mut receives_wanted) = (self.step_wanted, self.receives_wanted);
        let mut leaves = self.leaves.clone();
        for content in self.spaces.iter().flat_map(|space| space.outgoing.under_way()) {
            match content {
                FrameContent::PathStep => step_wanted = true,
                FrameContent::Receives => receives_wanted = true,
                FrameContent::Leave(path) => leaves.push(path),
                // The search of the path MTU begins anew, and no message is under way.
                FrameContent::Nothing | FrameContent::Mtu(_) | FrameContent::Chunk(_) => {}
            }
        }
        leaves.sort_unstable();
        leaves.dedup();
        let len = |bytes: usize| u32::try_from(bytes).unwrap_or(FRAME_MAX).min(FRAME_MAX);
        PathState {
            path: self.id,
            port: self.address.port.0,
            peer: self.address.mac.0,
            challenge: self.challenge,
            echo: self.echo,
            step_wanted,
            receives_wanted,
            leaves,
            silent_us: u64::try_from(now.since(self.heard).as_micros()).unwrap_or(u64::MAX),
            down: self.down,
            unheard: self.unheard,
            mtu: len(self.pmtu.current()),
            port_mtu: len(self.local_mtu),
            peer_mtu: len(self.peer_mtu),
            overruns: self.overruns,
            spaces: self.spaces.each_ref().map(|space| SpaceState {
                sent: space.outgoing.next() - 1,
                allowed: space.outgoing.limit().min(COUNT_MAX),
                received: space.incoming.largest(),
                acknowledge: space.incoming.came().collect(),
                granted: space.incoming.grant.limit(),
            }),
        }
    }

    /// Makes a path of its state, which [`PathState::is_possible`]. `local` is the state of its port; `None`
    /// if the port is down, as its link may be.
    pub(crate) fn resume(
        now: Instant,
        state: &PathState,
        local: Option<&PortState>,
        plan: &ConnectionConfig,
        (keyed, seed): (bool, u64),
    ) -> Self {
        let address = PathAddress { port: EtherPort(state.port), mac: Mac(state.peer) };
        // Only the MTU counts, and `port_up` corrects it.
        let away = PortState { mac: Mac::default(), mtu: to_usize(state.port_mtu), receive_slots: 0 };
        let is_away = local.is_none();
        let local = local.unwrap_or(&away);
        let mut path = Self::new(now, (state.path, &PnHorizon::default()), address, local, plan, seed);
        let [open, sealed] = &state.spaces;
        let space = |state: &SpaceState, sealed: bool| PnSpaceState {
            outgoing: Outgoing::resume(state, sealed == keyed, seed ^ u64::from(sealed)),
            incoming: Incoming::resume(now, state, plan.ring_quota),
        };
        path.spaces = [space(open, false), space(sealed, true)];
        path.set_peer_mtu(to_usize(state.peer_mtu));
        path.pmtu.resume(to_usize(state.mtu));
        path.mtu_changed();
        (path.challenge, path.echo) = (state.challenge, state.echo);
        path.step_wanted = state.step_wanted;
        path.receives_wanted = state.receives_wanted || local.mtu != to_usize(state.port_mtu);
        path.leaves.clone_from(&state.leaves);
        path.heard = now.before(Duration::from_micros(state.silent_us));
        (path.down, path.unheard) = (state.down, state.unheard);
        path.overruns = state.overruns;
        if is_away {
            path.port_down();
        }
        path
    }

    /// Returns whether an acknowledgement that the path can carry is due, now or soon.
    pub(crate) fn owes_ack(&self) -> bool {
        self.port_up && !self.down && self.spaces.iter().any(|space| space.incoming.owes_ack())
    }

    /// Tells the peer at once what was received and how far it may go, and asks for the same.
    pub(crate) fn speak_up(&mut self, now: Instant) {
        for space in self.spaces.iter_mut().filter(|space| space.incoming.largest() > 0) {
            space.incoming.hurry();
        }
        if self.port_up {
            self.retry_at_once(now);
        }
        self.announced = false;
    }
}

impl PathState {
    /// Returns whether a path can be in this state.
    pub(crate) fn is_possible(&self) -> bool {
        self.spaces.iter().all(SpaceState::is_possible)
            && !Mac(self.peer).is_group()
            && [self.mtu, self.port_mtu, self.peer_mtu].iter().all(|len| *len <= FRAME_MAX)
            && self.leaves.is_sorted_by(|one, next| one < next)
    }

    /// Returns how far the path's packet numbers went.
    pub(crate) fn pn_horizon(&self) -> PnHorizon {
        let of = |number: fn(&SpaceState) -> u64| self.spaces.each_ref().map(number);
        PnHorizon {
            out: of(|space| space.sent),
            come: of(|space| space.received),
            granted: of(|space| space.granted),
        }
    }
}

impl LeftPathState {
    /// Returns the state of a path that was left at `left`.
    pub(crate) fn of(now: Instant, path: u8, left: Instant, pn_horizon: &PnHorizon) -> Self {
        Self {
            path,
            left_us: u64::try_from(now.since(left).as_micros()).unwrap_or(u64::MAX),
            sent: pn_horizon.out,
            received: pn_horizon.come,
            granted: pn_horizon.granted,
        }
    }

    /// Returns whether a path that was left can be in this state.
    pub(crate) fn is_possible(&self) -> bool {
        [self.sent, self.received, self.granted].as_flattened().iter().all(|number| is_possible(*number))
    }

    /// Returns how far the path's packet numbers went.
    pub(crate) const fn pn_horizon(&self) -> PnHorizon {
        PnHorizon { out: self.sent, come: self.received, granted: self.granted }
    }
}
