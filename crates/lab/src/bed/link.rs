//! The link between the two hosts of a bed: a veth pair, its MTU, and a shaper in each direction.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;

use super::namespace::{Namespace, system};
use super::netlink::{Request, RouteSocket};
use super::{ETHERNET_HEADER_LEN, INITIATOR_ADDRESS, LinkPlan, MTU_MAX, TARGET_ADDRESS, WIRE_OVERHEAD};
use crate::experiment::LabError;

// linux/rtnetlink.h: kinds of messages.
const RTM_NEWLINK: u16 = 16;
const RTM_NEWADDR: u16 = 20;
const RTM_NEWROUTE: u16 = 24;
const RTM_NEWQDISC: u16 = 36;
const RTM_DELQDISC: u16 = 37;
const NLM_F_REPLACE: u16 = 0x100;
const NLM_F_EXCL: u16 = 0x200;
const NLM_F_CREATE: u16 = 0x400;

// linux/if_link.h
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_LINKINFO: u16 = 18;
const IFLA_NET_NS_FD: u16 = 28;
const IFLA_GSO_MAX_SEGS: u16 = 40;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const VETH_INFO_PEER: u16 = 1;
const IFF_UP: u32 = 1;

// linux/if_addr.h
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_FLAGS: u16 = 8;
const IFA_F_NOPREFIXROUTE: u32 = 0x200;

// linux/rtnetlink.h: routes.
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_PREFSRC: u16 = 7;
const RTA_METRICS: u16 = 8;
const RTAX_CC_ALGO: u16 = 16;
const RT_TABLE_MAIN: u8 = 254;
const RTPROT_STATIC: u8 = 4;
const RT_SCOPE_LINK: u8 = 253;
const RTN_UNICAST: u8 = 1;

// linux/pkt_sched.h
const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TCA_STAB: u16 = 8;
const TCA_STAB_BASE: u16 = 1;
const TCA_TBF_PARMS: u16 = 1;
const TCA_TBF_RATE64: u16 = 4;
const TCA_TBF_BURST: u16 = 6;
const TC_H_ROOT: u32 = 0xffff_ffff;
const SHAPER_HANDLE: u32 = 0x1_0000;
const LINKLAYER_ETHERNET: u8 = 1;

const AF_INET: u8 = 2;
/// The index of `lo` in every namespace, and the one that we give the link.
const LOOPBACK_INDEX: u32 = 1;
pub(super) const LINK_INDEX: u32 = 2;
const LINK_NAME: &str = "eth0";
/// The interfaces of a host between two others: to the initiator's, and to the target's.
pub(super) const RELAY_PORTS: [&str; 2] = ["eth0", "eth1"];
const PREFIX_LEN: u8 = 24;
const HOST_PREFIX_LEN: u8 = 32;

/// The segments that TCP may hand to an interface in one piece: the kernel's default, and where a shaper is
/// to see frames of the link's MTU.
const GSO_SEGMENTS: u32 = 65_535;
const GSO_SEGMENTS_SHAPED: u32 = 1;

/// The bytes that the shaper lets through at once: it wakes up late now and then, and loses that time for
/// good. As few milliseconds of traffic as that takes.
const BURST_MIN: u64 = 64 << 10;
/// For fast links, the burst in parts of a second.
const BURST_PER_SECOND: u64 = 2000;

/// The bytes that wait for a shaped interface at most: as many full frames of 1500 bytes as an interface's
/// own queue holds.
const QUEUE_LEN: u32 = 1000 * 1514;

/// Creates the veth pair between two namespaces, with addresses.
pub(super) fn create(initiator: &Namespace, target: &Namespace) -> Result<(), LabError> {
    let pair = veth_pair(target, LINK_INDEX, LINK_NAME);
    initiator.route().request(pair).map_err(|why| system("create a veth pair", why))?;
    for (namespace, address) in [(initiator, INITIATOR_ADDRESS), (target, TARGET_ADDRESS)] {
        configure(namespace.route(), address).map_err(|why| system("configure a veth pair", why))?;
    }
    Ok(())
}

/// Creates a veth pair from each of two namespaces to a third one, between them, with addresses at the two.
/// The interfaces of the third have the names of [`RELAY_PORTS`] and the longest MTU.
pub(super) fn create_relayed(
    initiator: &Namespace,
    target: &Namespace,
    relay: &Namespace,
) -> Result<(), LabError> {
    let made = |why| system("create a veth pair", why);
    for (host, (index, name)) in [initiator, target].into_iter().zip((LINK_INDEX..).zip(RELAY_PORTS)) {
        host.route().request(veth_pair(relay, index, name)).map_err(made)?;
        let up = Request::new(RTM_NEWLINK, 0, &link_header(index, IFF_UP));
        relay.route().request(up.number(IFLA_MTU, MTU_MAX)).map_err(made)?;
    }
    for (namespace, address) in [(initiator, INITIATOR_ADDRESS), (target, TARGET_ADDRESS)] {
        configure(namespace.route(), address).map_err(|why| system("configure a veth pair", why))?;
    }
    Ok(())
}

/// Changes the MTU and the rate of the link.
pub(super) fn shape(namespace: &Namespace, was: LinkPlan, plan: LinkPlan) -> io::Result<()> {
    let route = namespace.route();
    if was.rate_bits.is_some() {
        route.request(Request::new(RTM_DELQDISC, 0, &qdisc_header()))?;
    }
    let segments = plan.rate_bits.map_or(GSO_SEGMENTS, |_| GSO_SEGMENTS_SHAPED);
    let link = Request::new(RTM_NEWLINK, 0, &link_header(LINK_INDEX, 0));
    route.request(link.number(IFLA_MTU, plan.mtu).number(IFLA_GSO_MAX_SEGS, segments))?;
    match plan.rate_bits {
        Some(bits) => route.request(shaper(bits / 8, plan.mtu)),
        None => Ok(()),
    }
}

fn veth_pair(peer: &Namespace, peer_index: u32, peer_name: &str) -> Request {
    let (header, peer_header) = (link_header(LINK_INDEX, 0), link_header(peer_index, 0));
    let namespace = peer.file().as_raw_fd().to_ne_bytes();
    Request::new(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, &header).text(IFLA_IFNAME, LINK_NAME).nested(
        IFLA_LINKINFO,
        &[],
        |info| {
            info.text(IFLA_INFO_KIND, "veth").nested(IFLA_INFO_DATA, &[], |data| {
                data.nested(VETH_INFO_PEER, &peer_header, |end| {
                    end.text(IFLA_IFNAME, peer_name).attribute(IFLA_NET_NS_FD, &namespace)
                })
            })
        },
    )
}

/// Brings the interfaces up and gives the link its address and route.
fn configure(route: &RouteSocket, address: Ipv4Addr) -> io::Result<()> {
    for index in [LOOPBACK_INDEX, LINK_INDEX] {
        route.request(Request::new(RTM_NEWLINK, 0, &link_header(index, IFF_UP)))?;
    }
    let header = [&[AF_INET, PREFIX_LEN, 0, 0][..], &LINK_INDEX.to_ne_bytes()].concat();
    let request = Request::new(RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, &header)
        .attribute(IFA_LOCAL, &address.octets())
        .attribute(IFA_ADDRESS, &address.octets())
        .number(IFA_FLAGS, IFA_F_NOPREFIXROUTE);
    route.request(request)?;
    // The machine's default may be another congestion control. BBR, for one, is far from the rate behind a
    // token bucket. A route may choose what a namespace may not.
    route
        .request(prefix_route(address, Some("cubic")))
        .or_else(|_| route.request(prefix_route(address, None)))
}

/// Adds an address to the loopback interface: packets to it are accepted from everywhere.
pub(super) fn add_address(route: &RouteSocket, address: Ipv4Addr) -> io::Result<()> {
    let header = [&[AF_INET, HOST_PREFIX_LEN, 0, 0][..], &LOOPBACK_INDEX.to_ne_bytes()].concat();
    let request = Request::new(RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, &header)
        .attribute(IFA_LOCAL, &address.octets())
        .attribute(IFA_ADDRESS, &address.octets());
    route.request(request)
}

fn prefix_route(address: Ipv4Addr, congestion_control: Option<&str>) -> Request {
    let [a, b, c, _] = address.octets();
    let header =
        [[AF_INET, PREFIX_LEN, 0, 0], [RT_TABLE_MAIN, RTPROT_STATIC, RT_SCOPE_LINK, RTN_UNICAST], [0; 4]];
    let request = Request::new(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_REPLACE, header.as_flattened())
        .attribute(RTA_DST, &[a, b, c, 0])
        .number(RTA_OIF, LINK_INDEX)
        .attribute(RTA_PREFSRC, &address.octets());
    match congestion_control {
        Some(name) => request.nested(RTA_METRICS, &[], |metrics| metrics.text(RTAX_CC_ALGO, name)),
        None => request,
    }
}

/// Returns the request for a token bucket that counts each frame as a wire does: with preamble, frame check
/// sequence and gap. The kernel's own length has the Ethernet header already.
fn shaper(bytes_per_s: u64, mtu: u32) -> Request {
    // The bucket drops a frame that is longer than the burst.
    let frames = 2 * (u64::from(mtu) + u64::from(WIRE_OVERHEAD));
    let burst = BURST_MIN.max(bytes_per_s / BURST_PER_SECOND).max(frames);
    let burst = u32::try_from(burst).unwrap_or(u32::MAX);
    Request::new(RTM_NEWQDISC, NLM_F_CREATE | NLM_F_REPLACE, &qdisc_header())
        .text(TCA_KIND, "tbf")
        .nested(TCA_STAB, &[], |stab| stab.attribute(TCA_STAB_BASE, &size_table()))
        .nested(TCA_OPTIONS, &[], |options| {
            options
                .attribute(TCA_TBF_PARMS, &bucket(bytes_per_s))
                .attribute(TCA_TBF_RATE64, &bytes_per_s.to_ne_bytes())
                .number(TCA_TBF_BURST, burst)
        })
}

/// `struct tc_sizespec` without a table: only the overhead counts.
fn size_table() -> Vec<u8> {
    let overhead = u32::from(WIRE_OVERHEAD - ETHERNET_HEADER_LEN).to_ne_bytes();
    [&[0; 4][..], &overhead, &u32::from(LINKLAYER_ETHERNET).to_ne_bytes(), &[0; 12]].concat()
}

/// `struct tc_tbf_qopt`: rate, no peak rate, the length of the queue; `TCA_TBF_BURST` replaces the rest.
fn bucket(bytes_per_s: u64) -> Vec<u8> {
    let rate = u32::try_from(bytes_per_s).unwrap_or(u32::MAX);
    let spec = [&[0, LINKLAYER_ETHERNET, 0, 0, 0, 0, 0, 0][..], &rate.to_ne_bytes()].concat();
    [&spec[..], &[0; 12], &QUEUE_LEN.to_ne_bytes(), &[0; 8]].concat()
}

/// `struct ifinfomsg`, which sets `flags` and leaves the others.
fn link_header(index: u32, flags: u32) -> Vec<u8> {
    [[0; 4], index.to_ne_bytes(), flags.to_ne_bytes(), flags.to_ne_bytes()].concat()
}

/// `struct tcmsg` for the root of the link.
fn qdisc_header() -> Vec<u8> {
    [[0; 4], LINK_INDEX.to_ne_bytes(), SHAPER_HANDLE.to_ne_bytes(), TC_H_ROOT.to_ne_bytes(), [0; 4]].concat()
}
