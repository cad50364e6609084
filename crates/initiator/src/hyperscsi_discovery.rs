//! Discovers the targets that are exported to a HyperSCSI group on the networks of our interfaces.
//!
//! A result is a hint, since no answer is authenticated. It has enough data to name each logical unit by a
//! URL.

use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

use base::ether::{EtherPort, FrameBatch, FrameMachine, Mac, PortState, ReceivedFrame};
use base::state_machine::NoStreams;
use base::time::Instant;
use drivers::config::Config;
use drivers::ether::PortSocket;
use drivers::reactor::Reactor;
use hyperscsi::discovery::{DiscoveredTarget, DiscoveryClient};
use hyperscsi::frame::{BadFrame, Header};
use hyperscsi::pdu::name::{GroupName, Name};
use iscsi::name::IscsiName;
use rustix::io::retry_on_intr;
use rustix::rand::{GetRandomFlags, getrandom};
use scsi::lun::Lun;
use security::Level;

use crate::driver::port_config;
use crate::error::Error;
use crate::login::PlanError;
use crate::url::{BadUrl, Endpoint, Transport, Url};

/// How long a discovery without any answer lasts by default: long enough for a host with a slow network card
/// to come up.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// How long after the last new answer a discovery ends.
const QUIET: Duration = Duration::from_millis(400);

/// The least number of queries before a discovery ends: where one frame in a hundred is lost, one server in a
/// hundred thousand is missed.
const ROUNDS_MIN: u32 = 3;

/// How long a discovery waits for answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Until three queries were sent and 0.4 s have passed without a new answer. [`PATIENCE`] if no server
    /// answers or an interface is not up, which is also the limit.
    WhileNew,
    /// For this time, whatever answers arrive.
    For(Duration),
}

/// The first byte of session identifiers for a program that only discovers. It has no session, and no session
/// identifier begins with zero.
const NO_SESSION: u8 = 0;

/// A target that a server exports to the group.
#[derive(Clone, Debug)]
pub struct FoundTarget {
    /// The answer of the server.
    pub found: DiscoveredTarget,
    /// Our interface.
    pub interface: String,
    /// Its logical units that a URL can name, each with the least protection that it requires.
    pub units: Vec<(Url, Level)>,
}

/// The result of a discovery.
#[derive(Clone, Debug, Default)]
pub struct HyperScsiDiscovery {
    /// The targets, sorted by name, server and network port.
    pub targets: Vec<FoundTarget>,
    /// The targets that more than one server claims.
    pub disputed: Vec<Name>,
    /// How many answers were left out because there were too many.
    pub left_out: u64,
    /// Our interfaces that were not up, or whose frames are shorter than those of every Ethernet.
    pub interfaces_down: Vec<String>,
    /// Whether a server used another version of the protocol.
    pub other_version: bool,
}

/// Queries all servers on the networks of an endpoint for the targets that they export to its group, for as
/// long as `wait` says. Calls `heard` with each target as soon as it is found, in no particular order.
///
/// # Errors
/// Returns [`Error::Plan`] if the endpoint has no group, [`Error::Interface`] if an interface cannot be used,
/// or [`Error::Start`].
pub fn search(
    place: &Endpoint,
    wait: Wait,
    heard: &mut dyn FnMut(&FoundTarget),
) -> Result<HyperScsiDiscovery, Error> {
    let (Transport::HyperScsi(interfaces), Some(group)) = (&place.transport, &place.login.user) else {
        return Err(PlanError::NotAGroup.into());
    };
    let group = GroupName::new(group).ok_or(PlanError::NotAGroup)?;
    let mut reactor = Reactor::<Search>::new(&Config::default()).map_err(Error::start)?;
    let patience = if let Wait::For(patience) = wait { patience } else { PATIENCE };
    let finder = DiscoveryClient::new(reactor.now(), group, None, patience, entropy().map_err(Error::start)?);
    let up = vec![false; interfaces.len()];
    let mut machine = Search { finder, up, told: BTreeSet::new(), news_at: None, other_version: false };
    for (number, interface) in (0..).zip(interfaces) {
        let socket = PortSocket::open(port_config(interface, NO_SESSION)).map_err(Error::interface)?;
        reactor.open_port(EtherPort(number), socket).map_err(Error::interface)?;
    }
    while !machine.is_over(reactor.now(), wait) {
        let left = machine.finder.poll_timeout().since(reactor.now());
        let left = if machine.news_at.is_some() { left.min(QUIET / 4) } else { left };
        reactor.run_once(&mut machine, Some(left)).map_err(Error::interface)?;
        if machine.finder.found_count() > machine.told.len() {
            machine.news_at = Some(reactor.now());
            for found in machine.finder.found() {
                if machine.told.insert((found.target.clone(), found.instance, found.port, found.mac)) {
                    heard(&neighbour(place, interfaces, found)?);
                }
            }
        }
    }
    let Search { finder, up, other_version, .. } = machine;
    let neighbours: Result<_, Error> =
        finder.found().into_iter().map(|found| neighbour(place, interfaces, found)).collect();
    let silent = interfaces.iter().zip(up).filter(|(_, up)| !up).map(|(name, _)| name.clone());
    Ok(HyperScsiDiscovery {
        targets: neighbours?,
        disputed: finder.disputed(),
        left_out: finder.left_out(),
        interfaces_down: silent.collect(),
        other_version,
    })
}

fn neighbour(place: &Endpoint, interfaces: &[String], found: DiscoveredTarget) -> Result<FoundTarget, Error> {
    let number = usize::try_from(found.port.0).unwrap_or(usize::MAX);
    let interface = interfaces.get(number).cloned().unwrap_or_default();
    let bad = |why| BadUrl::Target(found.target.to_string(), why);
    let target = IscsiName::parse(found.target.as_bytes()).map_err(bad)?;
    let way = Transport::HyperScsi(vec![interface.clone()]);
    let place = Endpoint { transport: way, ..place.clone() };
    // LUNs of more than one level have no number that a URL could contain.
    let numbered = found.luns.iter().filter_map(|unit| Some((Lun(unit.lun).number()?, unit.level)));
    let units = numbered
        .map(|(lun, level)| (Url { endpoint: place.clone(), target: target.clone(), lun }, level))
        .collect();
    Ok(FoundTarget { found, interface, units })
}

pub(crate) fn entropy() -> io::Result<[u8; 32]> {
    let mut bytes = [0; 32];
    let got = retry_on_intr(|| getrandom(&mut bytes, GetRandomFlags::empty()))?;
    if got == bytes.len() { Ok(bytes) } else { Err(io::Error::other("the system has no random bytes")) }
}

/// A discovery on a reactor.
#[derive(Debug)]
struct Search {
    finder: DiscoveryClient,
    /// Whether each port was up at some time.
    up: Vec<bool>,
    /// The targets that were reported to the caller: target, server, port and address.
    told: BTreeSet<(Name, [u8; 16], EtherPort, Mac)>,
    /// The time of the last new answer.
    news_at: Option<Instant>,
    other_version: bool,
}

impl Search {
    fn is_over(&self, now: Instant, wait: Wait) -> bool {
        let quiet = self.news_at.is_some_and(|at| now.since(at) >= QUIET);
        let asked = self.finder.rounds() >= ROUNDS_MIN && self.up.iter().all(|up| *up);
        self.finder.is_over(now) || (wait == Wait::WhileNew && quiet && asked)
    }
}

impl FrameMachine for Search {
    fn port_up(&mut self, _: Instant, port: EtherPort, state: &PortState, _: [u8; 32]) {
        self.finder.port_up(port, state);
        let usable = state.mtu >= usize::from(hyperscsi::pdu::parameters::Parameters::FRAME_MAX_LEAST);
        let number = usize::try_from(port.0).unwrap_or(usize::MAX);
        if let Some(up) = self.up.get_mut(number).filter(|_| usable) {
            *up = true;
        }
    }

    fn port_down(&mut self, _: Instant, port: EtherPort) {
        self.finder.port_down(port);
    }

    fn frame_received(&mut self, _: Instant, frame: ReceivedFrame<'_>) {
        match Header::parse(frame.payload) {
            Ok((header, _)) => {
                self.finder.frame_received((frame.port, frame.source), &header, frame.payload);
            }
            Err(BadFrame::Version) => self.other_version = true,
            Err(_) => {}
        }
    }

    fn poll_port(&mut self) -> Option<EtherPort> {
        self.finder.poll_port()
    }

    fn transmit_frames(&mut self, _: Instant, port: EtherPort, out: &mut FrameBatch) {
        self.finder.transmit(port, out);
    }
}

impl NoStreams for Search {
    fn poll_timeout(&self) -> Option<Instant> {
        Some(self.finder.poll_timeout())
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.finder.handle_timeout(now);
    }
}
