//! Discovery clients and servers on one link.

use alloc::vec;
use alloc::vec::Vec;

use base::rng::Rng;

use super::*;
use crate::frame::HEADER_LEN;
use crate::login::tests::fixture::{GROUP, TestDirectory, frames};
use security::Level;

const PORT: EtherPort = EtherPort(1);
const OURS: Mac = Mac([2, 0, 0, 0, 0, 1]);
const NOW: Instant = Instant(1_000_000_000);

fn state(mtu: usize) -> PortState {
    PortState { mac: Mac([2; 6]), mtu, receive_slots: 64 }
}

fn export(name: &str, luns: u64) -> Export {
    Export {
        target: Name::new(name).unwrap(),
        authenticates: true,
        luns: (0..luns).map(|lun| ExportedLun { lun: lun << 48, level: Level::Integrity }).collect(),
        macs: vec![Mac([2; 6])],
    }
}

fn discovery(target: Option<&str>) -> DiscoveryClient {
    let group = GroupName::new(GROUP).unwrap();
    let target = target.map(|name| Name::new(name).unwrap());
    let mut discovery = DiscoveryClient::new(NOW, group, target, Duration::from_secs(2), [7; 32]);
    discovery.port_up(PORT, &state(9000));
    discovery
}

fn discovery_server() -> DiscoveryServer {
    let mut discovery_server = DiscoveryServer::new(NOW);
    discovery_server.port_up(PORT, &state(1500));
    discovery_server
}

macro_rules! said {
    ($machine:expr) => {{
        let mut said = Vec::new();
        let machine = &mut $machine;
        while let Some(port) = machine.poll_port() {
            let mut batch = FrameBatch::new();
            machine.transmit(port, &mut batch);
            said.extend(frames(&batch));
        }
        said
    }};
}

/// Passes the client's questions to a server, and its answers to the client. Returns how many answers there
/// were.
fn ask(
    discovery: &mut DiscoveryClient,
    server: (&mut DiscoveryServer, &TestDirectory, Mac),
    now: Instant,
) -> usize {
    let (discovery_server, directory, mac) = server;
    for (to, mut frame) in said!(*discovery) {
        assert_eq!(to, Mac::BROADCAST);
        let (header, _) = Header::parse(&frame).unwrap();
        discovery_server.frame_received(now, directory, (PORT, OURS), &header, &mut frame);
    }
    let answers = said!(*discovery_server);
    for (to, frame) in &answers {
        assert_eq!(*to, OURS, "an answer is nobody else's business");
        let (header, _) = Header::parse(frame).unwrap();
        assert!(discovery.frame_received((PORT, mac), &header, &mut frame.clone()));
    }
    answers.len()
}

#[test]
fn finds_what_is_exported_to_the_group_and_nothing_else() {
    let mut directory = TestDirectory::default();
    directory.exports = vec![
        (PORT, GROUP, export("iqn.2026-11.a:b", 2)),
        (PORT, GROUP, export("iqn.2026-11.a:a", 200)),
        (PORT, "another", export("iqn.2026-11.a:c", 1)),
        (EtherPort(2), GROUP, export("iqn.2026-11.a:d", 1)),
    ];
    let (mut discovery, mut discovery_server) = (discovery(None), discovery_server());
    for round in 0..3 {
        let now = NOW.after(Duration::from_millis(300 * round));
        discovery.handle_timeout(now);
        assert_eq!(
            ask(&mut discovery, (&mut discovery_server, &directory, Mac([8; 6])), now),
            2,
            "round {round}"
        );
    }
    let found = discovery.found();
    let names: Vec<&str> = found.iter().map(|found| &*found.target).collect();
    assert_eq!(names, ["iqn.2026-11.a:a", "iqn.2026-11.a:b"], "each once");
    assert!(found[0].more && found[0].luns.len() == LUNS_MAX);
    assert_eq!((found[1].luns.len(), found[1].frame_max, found[1].mac), (2, 1500, Mac([8; 6])));
    assert_eq!(found[1].luns[1], ExportedLun { lun: 1 << 48, level: Level::Integrity });
    assert!(discovery.disputed().is_empty());
    assert!(
        !discovery.is_over(NOW.after(Duration::from_millis(1999))) && discovery.is_over(discovery.deadline)
    );
}

#[test]
fn asks_for_one_target_if_that_is_known() {
    let mut directory = TestDirectory::default();
    directory.exports =
        vec![(PORT, GROUP, export("iqn.2026-11.a:a", 1)), (PORT, GROUP, export("iqn.2026-11.a:b", 1))];
    let (mut discovery, mut discovery_server) = (discovery(Some("iqn.2026-11.a:b")), discovery_server());
    assert_eq!(ask(&mut discovery, (&mut discovery_server, &directory, Mac([8; 6])), NOW), 1);
    assert_eq!(&*discovery.found()[0].target, "iqn.2026-11.a:b");
}

#[test]
fn a_group_that_nothing_is_exported_to_hears_nothing() {
    let (mut discovery, mut discovery_server) = (discovery(None), discovery_server());
    assert_eq!(ask(&mut discovery, (&mut discovery_server, &TestDirectory::default(), Mac([8; 6])), NOW), 0);
    assert_eq!((discovery_server.answered(), discovery_server.ignored()), (0, 1));
    // A port that is too narrow, or down, gets no answers either.
    let mut directory = TestDirectory::default();
    directory.exports = vec![(PORT, GROUP, export("iqn.2026-11.a:a", 1))];
    discovery_server.port_up(PORT, &state(1400));
    discovery.handle_timeout(NOW.after(Duration::from_secs(1)));
    assert_eq!(ask(&mut discovery, (&mut discovery_server, &directory, Mac([8; 6])), NOW), 0);
}

#[test]
fn two_servers_with_one_identity_are_noticed() {
    let mut directory = TestDirectory::default();
    directory.exports = vec![(PORT, GROUP, export("iqn.2026-11.a:a", 1))];
    let mut discovery = discovery(None);
    for (frame_at, instance) in [(0, [0xee; 16]), (1, [0xee; 16]), (2, [0xef; 16])] {
        let now = NOW.after(Duration::from_millis(400 * frame_at));
        discovery.handle_timeout(now);
        let mac = Mac([u8::try_from(frame_at).unwrap(); 6]);
        let mac = Mac([2, mac.0[0], 0, 0, 0, 0]);
        directory.instance = instance;
        ask(&mut discovery, (&mut discovery_server(), &directory, mac), now);
        // One server at two addresses is no dispute.
        assert_eq!(discovery.disputed().len(), usize::from(frame_at == 2));
    }
    assert_eq!(discovery.found().len(), 3);
}

#[test]
fn a_copy_of_a_server_is_another_server() {
    let mut directory = TestDirectory::default();
    let (first, second, third) = (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]), Mac([2, 0, 0, 0, 0, 3]));
    let mut discovery = discovery(None);
    // Both have the same instance, and the first one answers from both of its ports.
    for (mac, macs, disputed) in
        [(first, vec![first, second], 0), (second, vec![first, second], 0), (third, vec![third], 1)]
    {
        let one = Export { macs, ..export("iqn.2026-11.a:a", 1) };
        directory.exports = vec![(PORT, GROUP, one)];
        discovery.ask(PORT);
        ask(&mut discovery, (&mut discovery_server(), &directory, mac), NOW);
        assert_eq!(discovery.disputed().len(), disputed, "{mac}");
    }
}

#[test]
fn questions_are_answered_so_often_and_no_oftener() {
    let mut directory = TestDirectory::default();
    directory.exports = vec![(PORT, GROUP, export("iqn.2026-11.a:a", 1))];
    let mut discovery_server = discovery_server();
    let (_, question) = said!(discovery(None)).remove(0);
    let (header, _) = Header::parse(&question).unwrap();
    let mut flood = |now| {
        (0..1000).for_each(|n: u16| {
            let [a, b] = n.to_be_bytes();
            discovery_server.frame_received(
                now,
                &directory,
                (PORT, Mac([2, 0, 0, 0, a, b])),
                &header,
                &mut question.clone(),
            );
        });
        said!(discovery_server).len()
    };
    assert_eq!(flood(NOW), 64);
    assert_eq!(flood(NOW.after(Duration::from_secs(1))), 20);
}

#[test]
fn answers_without_end_fill_nothing() {
    let mut directory = TestDirectory::default();
    directory.exports = vec![(PORT, GROUP, export("iqn.2026-11.a:a", 1))];
    let (mut discovery, mut discovery_server) = (discovery(None), discovery_server());
    let (_, mut question) = said!(discovery).remove(0);
    let (header, _) = Header::parse(&question).unwrap();
    discovery_server.frame_received(NOW, &directory, (PORT, OURS), &header, &mut question);
    let (_, answer) = said!(discovery_server).remove(0);
    for n in 0..10_000_u32 {
        let [_, _, a, b] = n.to_be_bytes();
        let mut forged = answer.clone();
        forged[HEADER_LEN + 20] = a;
        forged[HEADER_LEN + 21] = b;
        crate::login::tests::abuse::recrc(&mut forged);
        let (header, _) = Header::parse(&forged).unwrap();
        discovery.frame_received(
            (PORT, Mac([2, 0, 0, 0, 1, u8::try_from(n % 20).unwrap()])),
            &header,
            &mut forged,
        );
    }
    assert_eq!(discovery.found().len(), DiscoveryClient::FOUND_MAX);
    assert!(discovery.left_out() > 0);
    // Answers to another question are ignored.
    let mut other =
        DiscoveryClient::new(NOW, GroupName::new(GROUP).unwrap(), None, Duration::from_secs(1), [8; 32]);
    let (header, _) = Header::parse(&answer).unwrap();
    assert!(!other.frame_received((PORT, OURS), &header, &mut answer.clone()));
}

#[test]
fn anything_at_all_does_no_harm() {
    let mut directory = TestDirectory::default();
    directory.exports = vec![(PORT, GROUP, export("iqn.2026-11.a:a", 3))];
    let (mut discovery, mut discovery_server) = (discovery(None), discovery_server());
    let (_, question) = said!(discovery).remove(0);
    let (header, _) = Header::parse(&question).unwrap();
    discovery_server.frame_received(NOW, &directory, (PORT, OURS), &header, &mut question.clone());
    let answer = said!(discovery_server).remove(0).1;
    for seed in 0..5000 {
        let mut rng = Rng::from_seed(seed);
        let mut frame = if seed % 2 == 0 { question.clone() } else { answer.clone() };
        for _ in 0..=rng.below(3) {
            let at = usize::try_from(rng.below(u64::try_from(frame.len()).unwrap())).unwrap();
            frame[at] = u8::try_from(rng.below(256)).unwrap();
        }
        if rng.chance(1, 2) {
            crate::login::tests::abuse::recrc(&mut frame);
        }
        if let Ok((header, _)) = Header::parse(&frame) {
            discovery_server.frame_received(NOW, &directory, (PORT, OURS), &header, &mut frame.clone());
            discovery.frame_received((PORT, OURS), &header, &mut frame);
        }
    }
    assert!(discovery.found().len() < 5000);
}

#[test]
fn answers_are_counted_one_by_one_since_their_reader_may_not_have_asked() {
    let names: Vec<_> = (0..200).map(|n| alloc::format!("iqn.2026-11.com.example:disk{n:03}")).collect();
    let mut directory = TestDirectory::default();
    directory.exports = names.iter().map(|name| (PORT, GROUP, export(name, 1))).collect();
    let mut discovery_server = discovery_server();
    let mut total = 0;
    for _ in 0..20 {
        total += ask(&mut discovery(None), (&mut discovery_server, &directory, OURS), NOW);
    }
    assert_eq!(total, 512);
    // A second later the allowance has grown by as much as it grows in a second.
    let later = NOW.after(Duration::from_secs(1));
    assert_eq!(ask(&mut discovery(None), (&mut discovery_server, &directory, OURS), later), 200);
    assert_eq!(ask(&mut discovery(None), (&mut discovery_server, &directory, OURS), later), 0);
}
