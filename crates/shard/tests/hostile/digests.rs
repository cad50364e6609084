//! Damaged PDUs, in every state that a request can be in.

use iscsi::pdu::scsi_command::ScsiCommand;
use iscsi::pdu::{Bhs, Itt, PduHeader, Ttt};
use iscsi::target::engine::Limits;
use transport::task_management::TmfFunction;

use crate::medium::{Keeper, held};
use crate::pair::{BLOCK, World, config};
use crate::peer::{DIGESTS, Damage, MALLORY, Peer, Witness};

/// The byte of which damaged data consists. It must never be written to the medium.
const BAD: u8 = 0xbd;

fn world() -> (World, Keeper, Witness) {
    let (medium, keeper) = held(8 << 20);
    let limits = Limits { data_out_bytes_max: 1 << 20, ..Limits::default() };
    let mut world = World::with(config(&[(0, 0)], vec![]), vec![medium], limits);
    let witness = Witness::login(&mut world, 0);
    (world, keeper, witness)
}

fn login(world: &mut World) -> Peer {
    let keys = format!("{DIGESTS}InitialR2T=No\0MaxBurstLength=65536\0FirstBurstLength=65536\0");
    let peer = Peer::settle(world, MALLORY, &keys);
    assert!(peer.digests);
    peer
}

/// Brings a session to a state, and returns a PDU with data that is valid in this state.
type Approach = fn(&mut World, &mut Peer) -> (Bhs, Vec<u8>);

const STATES: [(&str, Approach); 9] = [
    ("immediate data", |_, peer| (peer.write_command(0, 64, 8).encode(), vec![BAD; 8 * BLOCK])),
    ("unsolicited data", |world, peer| {
        let command = ScsiCommand { is_final: false, ..peer.write_command(0, 64, 8) };
        peer.send(world, command.encode(), &[]);
        (peer.data_out(command.itt, Ttt::NONE, 0, 0).encode(), vec![BAD; 8 * BLOCK])
    }),
    ("solicited data", |world, peer| {
        let command = peer.write_command(0, 64, 8);
        peer.send(world, command.encode(), &[]);
        let r2t = peer.next_r2t(world).unwrap();
        (peer.answer(&r2t).encode(), vec![BAD; 8 * BLOCK])
    }),
    ("data of an aborted task", |world, peer| {
        let command = peer.write_command(0, 64, 8);
        peer.send(world, command.encode(), &[]);
        let r2t = peer.next_r2t(world).unwrap();
        let abort = peer.manage(TmfFunction::ABORT_TASK, 0, command.itt);
        peer.send(world, abort.encode(), &[]);
        (peer.answer(&r2t).encode(), vec![BAD; 8 * BLOCK])
    }),
    ("data while its task set is being aborted", |world, peer| {
        let command = peer.write_command(0, 64, 8);
        peer.send(world, command.encode(), &[]);
        let r2t = peer.next_r2t(world).unwrap();
        let abort = peer.manage(TmfFunction::ABORT_TASK_SET, 0, Itt::NONE);
        peer.send(world, abort.encode(), &[]);
        (peer.answer(&r2t).encode(), vec![BAD; 8 * BLOCK])
    }),
    ("data of no task", |_, peer| (peer.data_out(Itt(0x7777), Ttt(5), 0, 0).encode(), vec![BAD; 8 * BLOCK])),
    ("ping", |_, peer| (peer.ping().encode(), vec![BAD; 4093])),
    ("text", |_, peer| (peer.text().encode(), b"SendTargets=\0".to_vec())),
    ("a PDU that has no data", |_, peer| {
        (peer.manage(TmfFunction::QUERY_TASK, 0, Itt(1)).encode(), vec![BAD; 5])
    }),
];

/// CVE-2026-64534, CVE-2026-64535: handling of a digest error in every state, followed directly by the end of
/// the connection or by session reinstatement.
#[test]
fn a_wrong_digest_in_any_state_costs_nobody_else_anything() {
    for (name, approach) in STATES {
        for damage in [Damage::Data, Damage::Payload, Damage::Header] {
            for cut in [false, true] {
                let (mut world, keeper, mut witness) = world();
                // 40 rounds, so that memory that one error fails to release is noticed.
                for round in 0..40 {
                    let mut peer = login(&mut world);
                    let (bhs, data) = approach(&mut world, &mut peer);
                    peer.send_damaged(&mut world, bhs, &data, damage);
                    let ended = !world.is_open(peer.conn);
                    assert!(ended || damage != Damage::Header, "{name}: who can trust that header?");
                    if ended {
                        world.forget(peer.conn);
                    } else if cut {
                        world.cut(peer.conn);
                        world.forget(peer.conn);
                    } else {
                        let again = login(&mut world);
                        assert!(!world.is_open(peer.conn));
                        world.cut(again.conn);
                        world.forget(again.conn);
                        world.forget(peer.conn);
                    }
                    if round % 20 == 0 {
                        witness.works(&mut world);
                    }
                }
                witness.works(&mut world);
                let medium = keeper.peek(64 * 512, 8 * BLOCK);
                assert!(medium.iter().all(|byte| *byte == 0), "{name}, {damage:?}: damaged data was written");
                assert_eq!(world.shard.sessions().len(), 1);
            }
        }
    }
}

/// Without damage the target accepts each of these PDUs, so the test above tests only the damage.
#[test]
fn the_same_pdus_with_right_digests_end_no_connection() {
    for (name, approach) in STATES {
        let (mut world, _, mut witness) = world();
        let mut peer = login(&mut world);
        let (bhs, data) = approach(&mut world, &mut peer);
        peer.send(&mut world, bhs, &data);
        assert!(world.is_open(peer.conn), "{name}");
        witness.works(&mut world);
    }
}

/// LIO 2026-06, `iscsit_handle_text_cmd`: LIO computed the digest of a Text Request past its buffer if the
/// length was not a multiple of four, and an error freed the buffer twice.
#[test]
fn a_text_of_any_length_is_checked_by_its_own_bytes() {
    let (mut world, _, mut witness) = world();
    let mut peer = login(&mut world);
    for len in (1..40).chain([4093, 8191, 8192]) {
        let key = [&b"X-"[..], &vec![b'a'; len]].concat();
        for damage in [Damage::Data, Damage::Payload, Damage::Nothing] {
            let text = peer.text();
            let data = [&b"SendTargets=\0"[..], &key[..len.min(60)], b"=1\0"].concat();
            peer.send_damaged(&mut world, text.encode(), &data, damage);
            assert_eq!(peer.hear(&mut world).len(), 1, "{len} {damage:?}");
            assert!(world.is_open(peer.conn));
        }
    }
    witness.works(&mut world);
}
