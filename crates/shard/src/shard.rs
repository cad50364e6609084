//! The shard: targets and logical units that can affect each other, with all their sessions, as one value on
//! one thread.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;

use base::buffer::Pool;
use base::ether::{EtherPort, FrameBatch, FrameMachine, PortState, ReceivedFrame};
use base::state_machine::{AcceptInfo, Action, ConnId, DisconnectReason, MediumId, RxBuffer, StreamMachine};
use base::time::Instant;
use base::transmit::Transmit;
use hyperscsi::target::engine::{Engine as HyperScsiEngine, EngineLimits as HyperScsiLimits};
use iscsi::target::contract::SessionLimits;
use iscsi::target::engine::{Engine, Limits};
use security::guess_limit::SharedGuessLimit;
use target::target::Target;
use target::transport_id::TransportId;
use target::transports::Transports as TransportTable;
use target::units::UnitId;
use transport::target::TargetTransport;

use crate::admin::ShardEvent;
use crate::config::ShardConfig;
use crate::hyperscsi_directory::GroupDirectory;
use crate::ingress::{Group, Ingresses, Portal};
use crate::login_directory::LoginDirectory;

/// A set of targets with their logical units, sessions and connections.
///
/// Drivers use it as a [`StreamMachine`] and a [`FrameMachine`]. The daemon calls the methods in
/// [`crate::admin`].
pub struct Shard {
    pub(crate) config: ShardConfig,
    /// The limits of sessions with targets that have no limits of their own.
    pub(crate) limits: SessionLimits,
    pub(crate) target: Target,
    pub(crate) transports: Transports,
    /// How the initiator of each session logged in.
    pub(crate) iscsi_ingresses: Ingresses<Portal>,
    pub(crate) hyperscsi_ingresses: Ingresses<Group>,
    /// The Ethernet ports that are up.
    pub(crate) ports: BTreeMap<EtherPort, PortState>,
    pub(crate) draining: bool,
    /// Events for the operator that were not polled yet.
    pub(crate) notices: VecDeque<ShardEvent>,
}

/// The transports of a shard.
pub(crate) struct Transports {
    pub(crate) iscsi: Engine,
    pub(crate) hyperscsi: HyperScsiEngine,
}

pub(crate) const ISCSI: TransportId = TransportId::new(0);
pub(crate) const HYPERSCSI: TransportId = TransportId::new(1);

impl TransportTable for Transports {
    fn get(&mut self, id: TransportId) -> Option<&mut dyn TargetTransport> {
        match id {
            ISCSI => Some(&mut self.iscsi),
            HYPERSCSI => Some(&mut self.hyperscsi),
            _ => None,
        }
    }
}

impl Shard {
    /// Makes a shard without units. [`Self::add_unit`] adds them before the first connection.
    pub fn new(mut config: ShardConfig, limits: Limits, pool: Pool) -> Self {
        config.sort();
        let mut iscsi = Engine::new(limits, pool.clone());
        iscsi.set_session_limits(Instant::ORIGIN, limits.of_session(), config.session_limits());
        let hyperscsi = HyperScsiEngine::new(HyperScsiLimits::default(), pool);
        let mut shard = Self {
            limits: limits.of_session(),
            config,
            target: Target::default(),
            transports: Transports { iscsi, hyperscsi },
            iscsi_ingresses: Ingresses::default(),
            hyperscsi_ingresses: Ingresses::default(),
            ports: BTreeMap::new(),
            draining: false,
            notices: VecDeque::new(),
        };
        shard.update_target_ports();
        shard
    }

    /// Sets the limits of HyperSCSI sessions. Call this before the first port is up.
    pub fn limit_frames(&mut self, limits: HyperScsiLimits, pool: Pool) {
        self.transports.hyperscsi = HyperScsiEngine::new(limits, pool);
    }

    /// Uses a limit on guesses of iSCSI passwords that others use too, from now on.
    pub fn share_guess_limit(&mut self, shared: Arc<dyn SharedGuessLimit>) {
        self.transports.iscsi.share_guess_limit(shared);
    }

    /// Moves events between the transports and the units until none has any.
    pub(crate) fn process_pending(&mut self, now: Instant) {
        loop {
            while let Some(event) = self.transports.iscsi.poll_event() {
                if let Some(event) = self.target.handle_event(now, ISCSI, event, &mut self.transports) {
                    self.handle_iscsi_session(now, event);
                }
            }
            while let Some(event) = self.transports.hyperscsi.poll_event() {
                if let Some(event) = self.target.handle_event(now, HYPERSCSI, event, &mut self.transports) {
                    self.handle_hyperscsi_session(now, event);
                }
            }
            if !self.target.drain_unit(now, &mut self.transports) {
                break;
            }
        }
    }
}

impl FrameMachine for Shard {
    fn port_up(&mut self, now: Instant, port: EtherPort, state: &PortState, entropy: [u8; 32]) {
        self.ports.insert(port, *state);
        self.transports.hyperscsi.port_up(now, port, state, entropy);
        self.push_event(ShardEvent::PortUp { port, state: *state });
        self.process_pending(now);
    }

    fn port_down(&mut self, now: Instant, port: EtherPort) {
        self.ports.remove(&port);
        self.transports.hyperscsi.port_down(now, port);
        self.push_event(ShardEvent::PortDown { port });
        self.process_pending(now);
    }

    fn frame_received(&mut self, now: Instant, frame: ReceivedFrame<'_>) {
        let directory = GroupDirectory {
            config: &self.config,
            target: &self.target,
            ingresses: &self.hyperscsi_ingresses,
            ports: &self.ports,
            draining: self.draining,
        };
        self.transports.hyperscsi.frame_received(now, frame, &directory);
        self.process_pending(now);
    }

    fn poll_port(&mut self) -> Option<EtherPort> {
        self.transports.hyperscsi.poll_port()
    }

    fn transmit_frames(&mut self, now: Instant, port: EtherPort, out: &mut FrameBatch) {
        self.transports.hyperscsi.transmit_frames(now, port, out);
        self.process_pending(now);
    }

    fn frames_too_long(&mut self, now: Instant, port: EtherPort, count: usize) {
        self.transports.hyperscsi.frames_too_long(now, port, count);
        self.process_pending(now);
    }

    fn frames_overrun(&mut self, now: Instant, port: EtherPort, count: u32) {
        self.transports.hyperscsi.frames_overrun(now, port, count);
        self.process_pending(now);
    }

    fn is_frame_idle(&self) -> bool {
        self.transports.hyperscsi.is_frame_idle()
    }

    fn entropy_wanted(&self) -> usize {
        self.transports.hyperscsi.entropy_wanted()
    }

    fn add_entropy(&mut self, entropy: [u8; 32]) {
        self.transports.hyperscsi.add_entropy(entropy);
    }
}

impl StreamMachine for Shard {
    fn connected(&mut self, now: Instant, conn: ConnId, arrival: &AcceptInfo) {
        self.transports.iscsi.connected(now, conn, arrival);
    }

    fn taken_over(&mut self, now: Instant, conn: ConnId, arrival: &AcceptInfo) {
        self.transports.iscsi.taken_over(now, conn, arrival);
    }

    fn received(&mut self, now: Instant, conn: ConnId, bytes: &[u8]) {
        let directory =
            LoginDirectory { config: &self.config, target: &self.target, draining: self.draining };
        self.transports.iscsi.received(now, conn, bytes, &directory);
        self.process_pending(now);
    }

    fn received_eof(&mut self, now: Instant, conn: ConnId) -> bool {
        let stays = self.transports.iscsi.received_eof(now, conn);
        self.process_pending(now);
        stays
    }

    fn take_rx_buffer(&mut self, conn: ConnId) -> Option<RxBuffer> {
        self.transports.iscsi.take_rx_buffer(conn)
    }

    fn return_rx_buffer(&mut self, now: Instant, conn: ConnId, rx_buffer: RxBuffer) {
        let directory =
            LoginDirectory { config: &self.config, target: &self.target, draining: self.draining };
        self.transports.iscsi.return_rx_buffer(now, conn, rx_buffer, &directory);
        self.process_pending(now);
    }

    fn transmit(&mut self, now: Instant, conn: ConnId, out: &mut Transmit) {
        self.transports.iscsi.transmit(now, conn, out);
        // Free slots in the queue of responses can let waiting commands proceed.
        self.process_pending(now);
    }

    fn disconnected(&mut self, now: Instant, conn: ConnId, why: DisconnectReason) {
        self.transports.iscsi.disconnected(now, conn, why);
        self.process_pending(now);
    }

    fn medium_ready(&mut self, now: Instant, medium: MediumId) {
        self.target.medium_ready(now, UnitId(medium.0));
        self.process_pending(now);
    }

    fn poll_action(&mut self) -> Option<Action> {
        self.transports.iscsi.poll_action()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        [
            self.transports.iscsi.poll_timeout(),
            self.transports.hyperscsi.poll_timeout(),
            self.target.poll_timeout(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.transports.iscsi.handle_timeout(now);
        if self.transports.hyperscsi.poll_timeout().is_some_and(|at| at <= now) {
            self.transports.hyperscsi.handle_timeout(now);
        }
        self.target.handle_timeout(now);
        self.process_pending(now);
    }
}
