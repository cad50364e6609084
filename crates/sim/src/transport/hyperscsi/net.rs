//! One or two Ethernets, on each of which every host has a port. A frame contains its addresses while it
//! travels, so that they can be damaged as well.

use base::ether::{EtherPort, FrameBatch, Mac, PortState};
use base::rng::Rng;
use base::time::Instant;
use netem::frame::{FrameLink, FramePlan, FrameStats};

use super::wire_monitor::WireMonitor;
use crate::scenario::HyperPlan;
use crate::trace::Trace;

/// The host that a port belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Node {
    /// The target.
    Target,
    /// An initiator.
    Initiator(usize),
}

/// A frame that has arrived.
pub(super) struct ArrivedFrame {
    pub(super) to: Node,
    pub(super) port: EtherPort,
    pub(super) source: Mac,
    pub(super) group: bool,
    pub(super) payload: Vec<u8>,
}

/// All Ethernets.
pub(super) struct Nets {
    nets: Vec<Net>,
    initiators: usize,
    receive_slots: usize,
}

struct Net {
    /// The MTU that the ports report.
    mtu: usize,
    /// The directions to the target and back, for each initiator.
    ways: Vec<[Way; 2]>,
}

struct Way {
    link: FrameLink,
    plan: FramePlan,
}

/// The length of the destination and source addresses in bytes.
const ADDRESSES: usize = 12;

impl Nets {
    pub(super) fn new(plan: &HyperPlan, initiators: usize, start: Instant, rng: &mut Rng) -> Self {
        let nets = plan.nets.iter().map(|net| {
            let mut way = |plan: &FramePlan| {
                let mut plan = plan.clone();
                let shift = |at: Instant| start.after(at.since(Instant::ORIGIN));
                plan.cuts.iter_mut().for_each(|cut| *cut = (shift(cut.0), shift(cut.1)));
                plan.frame_len_max = vec![(Instant::ORIGIN, net.mtu + ADDRESSES)];
                Way { link: FrameLink::new(plan.clone(), rng.next_u64()), plan }
            };
            let ways = (0..initiators).map(|_| [way(&net.forward), way(&net.backward)]).collect();
            Net { mtu: net.mtu, ways }
        });
        Self { nets: nets.collect(), initiators, receive_slots: plan.receive_slots }
    }

    pub(super) const fn len(&self) -> usize {
        self.nets.len()
    }

    /// Returns the port of a host on a net.
    pub(super) fn port(&self, net: usize, who: Node) -> (EtherPort, PortState) {
        let port = EtherPort(u32::try_from(net).unwrap());
        let state =
            PortState { mac: mac(net, who), mtu: self.nets[net].mtu, receive_slots: self.receive_slots };
        (port, state)
    }

    /// Returns the begin and the end of each cut of any direction.
    pub(super) fn cuts(&self) -> Vec<(Instant, Instant)> {
        let ways = self.nets.iter().flat_map(|net| net.ways.iter().flatten());
        ways.flat_map(|way| way.plan.cuts.iter().copied()).collect()
    }

    /// Changes the MTU of a net; with `told`, also that which its ports report.
    pub(super) fn set_mtu(&mut self, net: usize, mtu: usize, told: bool, now: Instant) {
        let Some(net) = self.nets.get_mut(net) else { return };
        if told {
            net.mtu = mtu;
        }
        for way in net.ways.iter_mut().flatten() {
            way.plan.frame_len_max.push((now, mtu + ADDRESSES));
            way.link.replan(way.plan.clone());
        }
    }

    /// Stops fault injection from now on.
    pub(super) fn heal(&mut self) {
        for way in self.nets.iter_mut().flat_map(|net| net.ways.iter_mut().flatten()) {
            way.plan.faults_max = 0;
            way.link.heal();
        }
    }

    /// Sends frames. Returns how many were longer than the port's MTU.
    pub(super) fn send(
        &mut self,
        now: Instant,
        from: Node,
        port: EtherPort,
        batch: &FrameBatch,
        watch: &mut WireMonitor,
        trace: &Trace,
    ) -> usize {
        let number = usize::try_from(port.0).unwrap();
        let net = &mut self.nets[number];
        let source = mac(number, from);
        let mut too_long = 0;
        for (to, len, pieces) in batch.frames() {
            if len > net.mtu {
                too_long += 1;
                continue;
            }
            let mut bytes = [&to.0[..], &source.0].concat();
            pieces.for_each(|piece| bytes.extend_from_slice(piece));
            trace.mix_bytes(&bytes);
            watch.sent(now, from, &bytes[ADDRESSES..]);
            trace.say(|| describe(from, number, to, &bytes[ADDRESSES..]));
            for at in 0..self.initiators {
                let (who, way) = match from {
                    Node::Initiator(own) if own == at => (Node::Target, 0),
                    Node::Initiator(_) => continue,
                    Node::Target => (Node::Initiator(at), 1),
                };
                if to.is_group() || to == mac(number, who) {
                    net.ways[at][way].link.push(now, &bytes);
                }
            }
        }
        too_long
    }

    /// Returns the next frame that has arrived.
    pub(super) fn poll(&mut self, now: Instant) -> Option<ArrivedFrame> {
        for (number, net) in self.nets.iter_mut().enumerate() {
            for (at, [forward, backward]) in net.ways.iter_mut().enumerate() {
                for (to, way) in [(Node::Target, forward), (Node::Initiator(at), backward)] {
                    while let Some(bytes) = way.link.poll(now) {
                        let (Some(destination), Some(source)) = (address(&bytes, 0), address(&bytes, 6))
                        else {
                            continue;
                        };
                        if !destination.is_group() && destination != mac(number, to) {
                            continue;
                        }
                        return Some(ArrivedFrame {
                            to,
                            port: EtherPort(u32::try_from(number).unwrap()),
                            source,
                            group: destination.is_group(),
                            payload: bytes[ADDRESSES..].to_vec(),
                        });
                    }
                }
            }
        }
        None
    }

    /// Returns when the next frame arrives.
    pub(super) fn next(&self) -> Option<Instant> {
        let ways = self.nets.iter().flat_map(|net| net.ways.iter().flatten());
        ways.filter_map(|way| way.link.poll_timeout()).min()
    }

    /// Returns the statistics of each direction of every net.
    pub(super) fn stats(&self) -> Vec<FrameStats> {
        self.nets.iter().flat_map(|net| net.ways.iter().flatten()).map(|way| way.link.stats()).collect()
    }
}

/// Returns the address of a host on a net.
fn mac(net: usize, who: Node) -> Mac {
    let station = match who {
        Node::Target => 0,
        Node::Initiator(at) => u8::try_from(at).unwrap() + 1,
    };
    Mac([2, 0, 0, 0, u8::try_from(net).unwrap(), station])
}

fn address(bytes: &[u8], at: usize) -> Option<Mac> {
    Some(Mac(bytes.get(at..at + 6)?.try_into().ok()?))
}

fn describe(from: Node, net: usize, to: Mac, payload: &[u8]) -> String {
    let header = hyperscsi::frame::Header::parse(payload);
    format!("{from:?} on net {net} to {to}: {} bytes, {header:?}", payload.len())
}
