//! HyperSCSI hosts on one Ethernet with the target.

use base::buffer::{Bytes, Pool};
use base::ether::{EtherPort, FrameBatch, FrameMachine as _, Mac, PortState, ReceivedFrame};
use base::time::{Duration, Instant};
use hyperscsi::initiator::contract::{Event, SessionPlan};
use hyperscsi::initiator::session::Session;
use hyperscsi::login::directory::GroupAccess;
use hyperscsi::pdu::name::GroupName;
use security::Level;
use shard::config::GroupConfig;
use transport::command::Cdb;
use transport::initiator::{InitiatorTransport as _, Request, TaskId, TaskResult};

use crate::pair::{Answer, World};

/// The number of the Ethernet port, in the target and in each host.
const PORT: EtherPort = EtherPort(0);
const TARGET: Mac = Mac([2, 0, 0, 0, 0, 1]);

/// A frame in transit.
pub(crate) struct Frame {
    source: Mac,
    to: Mac,
    pub(crate) payload: Vec<u8>,
}

/// A HyperSCSI session, with an Ethernet port of its own.
pub(crate) struct Host {
    pub(crate) session: Session,
    pub(crate) events: Vec<Event>,
    mac: Mac,
    pool: Pool,
}

pub(crate) fn group(text: &str) -> GroupName {
    GroupName::new(text).unwrap()
}

/// Makes a group that is served on every port.
pub(crate) fn group_config(name: &str, access: GroupAccess, least: Level) -> GroupConfig {
    GroupConfig { name: group(name), access, min_level: least, ports: None }
}

fn state(mac: Mac) -> PortState {
    PortState { mac, mtu: 9000, receive_slots: 1000 }
}

fn sent(batch: &FrameBatch, source: Mac) -> impl Iterator<Item = Frame> {
    let frames = batch.frames();
    frames.map(move |(to, _, pieces)| Frame { source, to, payload: pieces.flatten().copied().collect() })
}

impl Frame {
    /// Passes the frame to `take` if it is addressed to `to` or to a group address.
    fn deliver(&self, to: Mac, take: impl FnOnce(ReceivedFrame<'_>)) {
        let group = self.to.is_group();
        if group || self.to == to {
            let payload = &mut self.payload.clone();
            take(ReceivedFrame { port: PORT, source: self.source, group, age: Duration::ZERO, payload });
        }
    }
}

impl Host {
    /// Makes the host with this number and connects it to the Ethernet.
    pub(crate) fn new(now: Instant, number: usize, plan: SessionPlan) -> Self {
        let number = u8::try_from(number).unwrap();
        let (mac, pool) = (Mac([2, 0, 0, 0, 1, number]), Pool::new(16 << 20));
        let mut session = Session::new(now, plan, pool.clone());
        session.port_up(now, PORT, &state(mac), [number + 10; 32]);
        Self { session, events: vec![], mac, pool }
    }

    /// Collects the events of the session. Returns whether there were any.
    pub(crate) fn hear(&mut self) -> bool {
        let before = self.events.len();
        self.events.extend(std::iter::from_fn(|| self.session.poll_event()));
        self.events.len() > before
    }

    pub(crate) fn frames(&mut self, now: Instant) -> Vec<Frame> {
        let (mut frames, mut batch) = (vec![], FrameBatch::new());
        while let Some(port) = self.session.poll_port() {
            self.session.transmit_frames(now, port, &mut batch);
            frames.extend(sent(&batch, self.mac));
            batch.clear(&self.pool);
        }
        frames
    }

    pub(crate) fn take(&mut self, now: Instant, frame: &Frame) {
        frame.deliver(self.mac, |received| self.session.frame_received(now, received));
    }

    pub(crate) fn begin(
        &mut self,
        now: Instant,
        lun: u64,
        cdb: &[u8],
        out: &[u8],
        expect_in: usize,
    ) -> TaskId {
        let mut request = Request::new(lun, Cdb::new(cdb).unwrap());
        request.data_in_len = u32::try_from(expect_in).unwrap();
        if !out.is_empty() {
            request.data_out = Bytes::copied_from(out).into();
        }
        self.session.submit(now, request).unwrap()
    }

    pub(crate) fn has_ended(&self, task: TaskId) -> bool {
        self.place_of(task).is_some()
    }

    /// Returns the result of a task that has ended, and removes its event.
    pub(crate) fn answer(&mut self, task: TaskId) -> Answer {
        let at = self.place_of(task).expect("it has ended");
        let Event::Done { outcome, .. } = self.events.remove(at) else { panic!("it was one") };
        let TaskResult::Status(ending) = outcome.end else { panic!("no status: {:?}", outcome.end) };
        Answer {
            status: ending.status,
            sense: ending.sense.map(Vec::from).unwrap_or_default(),
            data: outcome.data_in.map(|bytes| bytes.to_vec()).unwrap_or_default(),
        }
    }

    fn place_of(&self, task: TaskId) -> Option<usize> {
        self.events.iter().position(|event| matches!(event, Event::Done { task: done, .. } if *done == task))
    }
}

impl World {
    /// Connects the target to the Ethernet.
    pub(crate) fn plug_in(&mut self, entropy: [u8; 32]) {
        self.shard.port_up(self.now, PORT, &state(TARGET), entropy);
    }

    pub(crate) fn frames(&mut self, now: Instant) -> Vec<Frame> {
        let (mut frames, mut batch) = (vec![], FrameBatch::new());
        while let Some(port) = self.shard.poll_port() {
            self.shard.transmit_frames(now, port, &mut batch);
            frames.extend(sent(&batch, TARGET));
            batch.clear(&self.pool);
        }
        frames
    }

    pub(crate) fn take(&mut self, now: Instant, frame: &Frame) {
        frame.deliver(TARGET, |received| self.shard.frame_received(now, received));
    }
}
