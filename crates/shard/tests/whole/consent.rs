//! Whose decision a logout is. An initiator that logs out because the target caused it comes back with its
//! LUNs still open, so they lead to the disks that it has used or to none.

use base::rng::Rng;
use base::state_machine::{AcceptInfo, ConnId, PortalId, StreamMachine as _};
use base::time::Duration;
use device::contract::RelativePort;
use device::unit::LogicalUnit;
use iscsi::name::PortalGroupTag;
use iscsi::pdu::Opcode;
use iscsi::pdu::logout_request::LogoutReason;
use iscsi::target::engine::Limits;
use scsi::transport_id::TransportId;
use security::Level;
use shard::admin::ShardEvent;
use shard::config::{InitiatorEntry, Portal, ShardConfig, TargetPortName};
use shard::handover::{ResumeError, ShardState};
use shard::shard::Shard;
use target::bindings::{Forgotten, NexusBindings};
use target::nexus::TargetNumber;
use target::units::{DiskId, UnitId};
use transport::initiator::{InitiatorTransport as _, Retry};

use crate::frames::{Member, both};
use crate::medium::{Keeper, held};
use crate::pair::{BLOCK, Initiator, World, config, pattern, ram, unit_config};
use crate::removal::{apply, logout, logout_by, sees_no_unit, two};
use crate::{ALICE, BOB, CHECK, GOOD};

const WITHIN: Duration = Duration::from_secs(3);

/// Requests that all sessions end, and returns how many there are.
fn drop_all(world: &mut World) -> usize {
    let dropped = world.shard.drop_sessions(world.now, WITHIN, |_, _, _| true);
    world.drain();
    dropped
}

#[test]
fn a_host_that_obeys_a_requested_logout_finds_its_disks_again_or_none() {
    for reason in [LogoutReason::CloseSession, LogoutReason::CloseConnection] {
        let (mut world, mut alice) = two();
        assert_eq!(drop_all(&mut world), 1);
        let (bhs, _) = world.receive(alice.conn).expect("an asynchronous message");
        assert_eq!(bhs.opcode(), Opcode::ASYNC_MESSAGE);
        logout_by(&mut world, &mut alice, reason);
        apply(&mut world, config(&[(0, 1), (1, 0)], vec![]));
        let mut again = Initiator::login(&mut world, ALICE, 1);
        for lun in [0, 1] {
            sees_no_unit(&mut world, &mut again, lun);
        }
        // Now the initiator logs out by its own decision.
        logout_by(&mut world, &mut again, reason);
        let mut anew = Initiator::login(&mut world, ALICE, 1);
        for lun in [0, 1] {
            anew.clear_attentions(&mut world, lun);
            assert_eq!(anew.read(&mut world, lun, 0, 1).data, pattern(BLOCK, 1 - lun));
        }
    }
}

#[test]
fn a_path_that_was_lost_finds_its_disk_again_or_none_although_another_one_logged_out() {
    let mut world = World::new(two_portals([true; 2], Some(0)), vec![]);
    let keepers = add_disks(&mut world.shard, &world.pool.clone(), world.now);
    let mut paths: Vec<Initiator> = (0..2).map(|at| login_at(&mut world, at).unwrap()).collect();
    paths[0].clear_attentions(&mut world, 0);
    assert_eq!(paths[0].write(&mut world, 0, 0, &pattern(BLOCK, 1), false).status, GOOD);
    world.cut(paths[1].conn);
    logout(&mut world, &mut paths[0]);
    apply(&mut world, two_portals([true; 2], Some(1)));
    let mut back = login_at(&mut world, 1).unwrap();
    sees_no_unit(&mut world, &mut back, 0);
    assert_eq!(keepers[1].peek(0, BLOCK), [0; BLOCK]);
    logout(&mut world, &mut back);
    let mut anew = login_at(&mut world, 0).unwrap();
    anew.clear_attentions(&mut world, 0);
}

#[test]
fn a_member_of_a_group_that_is_dropped_finds_its_disks_again_or_none() {
    let mut served = both(Level::None);
    let mut world = World::new(served.clone(), vec![ram(), ram()]);
    let retry = Retry { timeout: Duration::from_secs(60), ..Retry::default() };
    let mut alice = Member::with_retry(&mut world, ALICE, "open", None, retry);
    alice.until(&mut world, |alice| alice.session.is_up());
    alice.clear_attentions(&mut world, 0);
    assert_eq!(drop_all(&mut world), 1);
    alice.until(&mut world, |alice| !alice.session.is_up());
    served.targets[0].luns.iter_mut().for_each(|row| row.unit = UnitId(1 - row.unit.0));
    apply(&mut world, served);
    alice.until(&mut world, |alice| alice.session.is_up());
    let answer = alice.run(&mut world, 0, &[0; 6], &[], 0);
    assert_eq!((answer.status, answer.code()), (CHECK, (5, 0x2500)), "another disk is at its LUN");
}

#[test]
fn a_plan_counts_a_host_that_lost_its_session() {
    let (mut world, mut alice) = two();
    drop_all(&mut world);
    logout(&mut world, &mut alice);
    world.pass(Duration::from_secs(60));
    let swapped = || config(&[(0, 1), (1, 1)], vec![]);
    let losses = world.shard.losses(world.now, swapped());
    let [loss] = losses.as_slice() else { panic!("{losses:?}") };
    assert_eq!((&*loss.initiator, &*loss.luns, loss.ends), (ALICE, &[0][..], false));
    assert_eq!(loss.lost_for, Some(Duration::from_secs(60)));
    assert_eq!(world.shard.withheld_by(world.now, swapped()), [], "it is in the losses");
    assert_eq!(world.shard.losses(world.now, config(&[(0, 0), (1, 1)], vec![])), []);
    // LUN 0 was removed, and is given to another disk.
    apply(&mut world, config(&[(1, 1)], vec![]));
    assert_eq!(world.shard.losses(world.now, swapped()), []);
    let withheld = world.shard.withheld_by(world.now, swapped());
    let [lun] = withheld.as_slice() else { panic!("{withheld:?}") };
    assert_eq!((&*lun.initiator, lun.lun, lun.unit), (ALICE, 0, UnitId(1)));
    assert_eq!(lun.used, DiskId::of_unit(UnitId(0)));
    // A host that logs out by its own decision is in no plan.
    let mut again = Initiator::login(&mut world, ALICE, 1);
    logout(&mut world, &mut again);
    assert_eq!(world.shard.withheld_by(world.now, swapped()), []);
}

/// Returns the portal groups that the log names for each LUN that was withheld.
fn claims_reported(world: &mut World) -> Vec<(u16, Vec<TargetPortName>)> {
    let mut found = Vec::new();
    while let Some(notice) = world.shard.poll_event() {
        if let ShardEvent::LunWithheld { lun, claims, .. } = notice {
            found.push((lun, claims));
        }
    }
    found
}

#[test]
fn a_portal_that_was_removed_needs_no_logout() {
    let mut world = World::new(two_portals([true; 2], Some(0)), vec![]);
    let keepers = add_disks(&mut world.shard, &world.pool.clone(), world.now);
    let mut paths: Vec<Initiator> = (0..2).map(|at| login_at(&mut world, at).unwrap()).collect();
    paths[0].clear_attentions(&mut world, 0);
    assert_eq!(paths[0].write(&mut world, 0, 0, &pattern(BLOCK, 1), false).status, GOOD);
    let tag = |number| TargetPortName::PortalGroup(PortalGroupTag(number));
    apply(&mut world, two_portals([true; 2], Some(1)));
    let both = vec![tag(1), tag(2)];
    assert_eq!(claims_reported(&mut world), [(0, both.clone()), (0, both)]);
    // The second portal group goes while the host has a session there.
    apply(&mut world, two_portals([true, false], Some(1)));
    sees_no_unit(&mut world, &mut paths[0], 0);
    world.cut(paths[0].conn);
    let mut back = login_at(&mut world, 0).unwrap();
    sees_no_unit(&mut world, &mut back, 0);
    assert_eq!(claims_reported(&mut world), [(0, vec![tag(1)])]);
    logout(&mut world, &mut back);
    let mut anew = login_at(&mut world, 0).unwrap();
    anew.clear_attentions(&mut world, 0);
    assert_eq!(anew.write(&mut world, 0, 0, &pattern(BLOCK, 2), false).status, GOOD);
    assert_eq!(keepers[1].peek(0, BLOCK), pattern(BLOCK, 2));
    // The portal is back, and the host continues its session there with the first disk open.
    apply(&mut world, two_portals([true; 2], Some(1)));
    let mut other = login_at(&mut world, 1).unwrap();
    sees_no_unit(&mut world, &mut other, 0);
    assert_eq!(claims_reported(&mut world), [(0, vec![tag(2)])]);
}

#[test]
fn an_operator_releases_the_record_of_a_host_without_a_session() {
    let (mut world, mut alice) = two();
    let target = Some(TargetNumber(config(&[], vec![]).targets[0].id.0));
    assert_eq!(world.shard.forget_bindings(target, ALICE, None), Forgotten { records: 0, in_use: 1 });
    drop_all(&mut world);
    logout(&mut world, &mut alice);
    apply(&mut world, config(&[(0, 1), (1, 0)], vec![]));
    let mut again = Initiator::login(&mut world, ALICE, 1);
    sees_no_unit(&mut world, &mut again, 0);
    world.cut(again.conn);
    assert_eq!(world.shard.bound_luns().into_values().collect::<Vec<_>>(), [[0, 1].into()]);
    assert_eq!(world.shard.forget_bindings(target, BOB, None), Forgotten::default());
    assert_eq!(world.shard.forget_bindings(target, ALICE, Some([9; 6])), Forgotten::default());
    assert_eq!(world.shard.forget_bindings(target, ALICE, None), Forgotten { records: 1, in_use: 0 });
    assert!(world.shard.bound_luns().is_empty());
    let mut anew = Initiator::login(&mut world, ALICE, 1);
    anew.clear_attentions(&mut world, 0);
    assert_eq!(anew.read(&mut world, 0, 0, 1).data, pattern(BLOCK, 1));
}

#[test]
fn an_operator_releases_the_record_of_a_host_at_a_target_that_was_removed() {
    let (mut world, mut alice) = two();
    let target = TargetNumber(config(&[], vec![]).targets[0].id.0);
    apply(&mut world, ShardConfig { targets: vec![], ..config(&[], vec![]) });
    logout(&mut world, &mut alice);
    let other = Some(TargetNumber(target.0 + 1));
    assert_eq!(world.shard.forget_bindings(other, ALICE, None), Forgotten::default());
    assert_eq!(world.shard.forget_bindings(Some(target), ALICE, None), Forgotten { records: 1, in_use: 0 });
    apply(&mut world, config(&[(0, 1), (1, 0)], vec![]));
    let mut anew = Initiator::login(&mut world, ALICE, 1);
    anew.clear_attentions(&mut world, 0);
    assert_eq!(anew.read(&mut world, 0, 0, 1).data, pattern(BLOCK, 1));
}

#[test]
fn a_late_disk_that_is_withheld_is_reported() {
    let (mut world, alice) = two();
    world.cut(alice.conn);
    assert!(world.shard.remove_unit(world.now, UnitId(1)));
    while world.shard.poll_removed().is_some() {}
    let _again = Initiator::login(&mut world, ALICE, 1);
    assert_eq!(claims_reported(&mut world), [], "it waits for its medium");
    let unit = LogicalUnit::new(unit_config(1), ram(), None, world.pool.clone()).unwrap();
    assert!(world.shard.add_disk(world.now, UnitId(1), unit, DiskId(77)));
    let [(1, _)] = claims_reported(&mut world)[..] else { panic!("LUN 1 is not reported as withheld") };
}

#[test]
fn a_plan_compares_thousands_of_luns_for_many_ports() {
    const LUNS: u16 = 8000;
    let rows = |unit: u32| (0..LUNS).map(|lun| (lun, unit)).collect::<Vec<_>>();
    let mut world = World::new(config(&rows(0), vec![]), vec![ram(), ram()]);
    let saved = {
        let mut alice = Initiator::login(&mut world, ALICE, 1);
        alice.clear_attentions(&mut world, 0);
        alice.read(&mut world, 0, 0, 1);
        world.shard.bindings(world.now).next().unwrap()
    };
    for port in 0..16 {
        let luns = (0..LUNS).map(|lun| (lun, saved.luns[0].1)).collect();
        let initiator_port = TransportId::iscsi_port(BOB, [0, 2, 0x3d, 0, 0, port]).unwrap().encode().into();
        let saved = NexusBindings { initiator_port, luns, lost_for: Some(Duration::ZERO), ..saved.clone() };
        world.shard.restore_bindings(world.now, saved);
    }
    let begun = std::time::Instant::now();
    // Only eight ports fit into the bound of remembered LUNs.
    assert_eq!(world.shard.losses(world.now, config(&rows(1), vec![])).len(), 9);
    assert!(world.shard.withheld_by(world.now, config(&rows(1), vec![])).is_empty());
    // With one search for each LUN this takes minutes.
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
}

const DISKS: u32 = 3;

/// Returns a configuration with two portals, each a portal group of its own, and LUN 0 on a disk, if on any.
fn two_portals(served: [bool; 2], disk: Option<u32>) -> ShardConfig {
    tagged_portals([1, 2], served, disk)
}

/// Returns a configuration with two portals that have these tags, and LUN 0 on a disk, if on any.
fn tagged_portals(tags: [u16; 2], served: [bool; 2], disk: Option<u32>) -> ShardConfig {
    let luns: Vec<(u16, u32)> = disk.map(|disk| (0, disk)).into_iter().collect();
    let mut config = config(&luns, vec![]);
    let ids = || (0..2_u16).filter(|id| served[usize::from(*id)]);
    config.portals = ids()
        .map(|id| Portal {
            id: PortalId(id.into()),
            group: PortalGroupTag(tags[usize::from(id)]),
            bound: None,
            announced: None,
            tls: false,
            certificates: None,
        })
        .collect();
    config.targets[0].ports =
        ids().map(|id| (PortalId(id.into()), RelativePort(tags[usize::from(id)]))).collect();
    config
}

/// Adds the disks to a new shard, on new media.
fn add_disks(shard: &mut Shard, pool: &base::buffer::Pool, now: base::time::Instant) -> Vec<Keeper> {
    let keepers: Vec<Keeper> = (0..DISKS).map(|_| held(1 << 20).1).collect();
    add_media(shard, &keepers, pool, now);
    keepers
}

fn add_media(shard: &mut Shard, keepers: &[Keeper], pool: &base::buffer::Pool, now: base::time::Instant) {
    for (number, keeper) in (0..).zip(keepers) {
        let unit = LogicalUnit::new(unit_config(number), keeper.again(), None, pool.clone()).unwrap();
        assert!(shard.add_disk(now, UnitId(number), unit, DiskId(70 + u64::from(number))));
    }
}

/// Logs Alice's only initiator port in through a portal.
fn login_at(world: &mut World, portal: usize) -> Option<Initiator> {
    world.portal = PortalId(u32::try_from(portal).unwrap());
    Initiator::try_login(world, ALICE, 1).ok()
}

/// A path of the host: what it is connected with, the disk that it has opened, and the tag of the portal
/// group of its latest session.
#[derive(Default)]
struct Path {
    session: Option<Initiator>,
    opened: Option<usize>,
    tag: u16,
}

/// A host that keeps its disk open whatever the target does, and closes it only before its own logout. Both
/// paths have one initiator port, so a session takes the place of another one of the same portal group, and
/// the host ends both by one logout (RFC 7143 §4.4.3, the ISID rule).
struct History {
    world: World,
    keepers: Vec<Keeper>,
    rng: Rng,
    paths: [Path; 2],
    served: [bool; 2],
    tags: [u16; 2],
    disk: Option<u32>,
    admitted: bool,
    writes: u64,
    /// How many writes found the opened disk, and how many found none.
    outcomes: [u64; 2],
}

impl History {
    fn new(seed: u64) -> Self {
        let mut world = World::new(two_portals([true; 2], Some(0)), vec![]);
        let keepers = add_disks(&mut world.shard, &world.pool.clone(), world.now);
        Self {
            world,
            keepers,
            rng: Rng::from_seed(seed),
            paths: Default::default(),
            served: [true; 2],
            tags: [1, 2],
            disk: Some(0),
            admitted: true,
            writes: 0,
            outcomes: [0; 2],
        }
    }

    fn config(&self) -> ShardConfig {
        let mut config = tagged_portals(self.tags, self.served, self.disk);
        if !self.admitted {
            let only =
                InitiatorEntry { pattern: BOB.into(), luns: None, auth: None, quota: Default::default() };
            config.targets[0].initiators = vec![only];
        }
        config
    }

    /// Writes through a path if it has a session, and checks where the write lands.
    fn write(&mut self, at: usize) {
        let Some(mut session) = self.paths[at].session.take() else { return };
        self.writes += 1;
        let data = pattern(BLOCK, self.writes);
        let answer = loop {
            let answer = session.write(&mut self.world, 0, 0, &data, false);
            // A unit attention.
            if answer.code().0 != 6 {
                break answer;
            }
        };
        let landed: Vec<usize> =
            (0..self.keepers.len()).filter(|disk| self.keepers[*disk].peek(0, BLOCK) == data).collect();
        let path = &mut self.paths[at];
        path.session = Some(session);
        if answer.status == GOOD {
            let opened = *path.opened.get_or_insert(landed[0]);
            assert_eq!(landed, [opened], "a write through path {at}");
            self.outcomes[0] += 1;
        } else {
            assert_eq!(landed, [0_usize; 0], "{answer:?}");
            self.outcomes[1] += 1;
        }
    }

    /// Lets the host react to requested logouts: it obeys, or does not until its session is closed.
    fn react(&mut self) {
        for path in &mut self.paths {
            let Some(mut session) = path.session.take() else { continue };
            match self.rng.below(3) {
                0 => logout(&mut self.world, &mut session),
                1 => logout_by(&mut self.world, &mut session, LogoutReason::CloseConnection),
                _ => {}
            }
        }
        self.world.pass(WITHIN * 2);
    }

    fn reload(&mut self) {
        let config = self.config();
        apply(&mut self.world, config);
        self.close_paths();
    }

    /// Closes the sessions whose connections the target has closed.
    fn close_paths(&mut self) {
        for path in &mut self.paths {
            if path.session.as_ref().is_some_and(|session| !self.world.is_open(session.conn)) {
                path.session = None;
            }
        }
    }

    fn login(&mut self, at: usize) {
        self.paths[at].session = login_at(&mut self.world, at);
        if self.paths[at].session.is_some() {
            self.paths[at].tag = self.tags[at];
        }
        self.close_paths();
    }

    /// Logs out by the host's own decision. It closes what it has opened through this portal group before,
    /// also through a portal that belongs to the group since.
    fn logout(&mut self, at: usize) {
        let Some(mut session) = self.paths[at].session.take() else { return };
        let tag = self.tags[at];
        for (path, now) in self.paths.iter_mut().zip(self.tags) {
            if [path.tag, now].contains(&tag) {
                path.opened = None;
            }
        }
        logout(&mut self.world, &mut session);
    }

    /// Returns the shard of the next process, with the saved bindings.
    fn next_shard(&self) -> Shard {
        let World { shard, pool, now, .. } = &self.world;
        let mut next = Shard::new(self.config(), Limits::default(), pool.clone());
        shard.bindings(*now).for_each(|saved| next.restore_bindings(*now, saved));
        add_media(&mut next, &self.keepers, pool, *now);
        next
    }

    fn restart(&mut self) {
        if self.rng.below(2) == 0 {
            self.world.shard.drain(self.world.now, WITHIN);
            self.world.drain();
            self.react();
        }
        let next = self.next_shard();
        for path in &mut self.paths {
            if let Some(session) = path.session.take() {
                *self.world.wire(session.conn).1 = false;
            }
        }
        self.world.shard = next;
    }

    fn upgrade(&mut self) {
        self.world.shard.freeze(self.world.now);
        self.world.drain();
        if self.world.shard.busy().is_some() {
            self.world.shard.thaw(self.world.now);
            return self.world.drain();
        }
        let exported = self.world.shard.export(self.world.now).unwrap();
        let text = serde_json::to_string(&exported.state).unwrap();
        let state: ShardState = serde_json::from_str(&text).unwrap();
        let mut next = self.next_shard();
        for conn in exported.connections.iter().flatten() {
            let arrival = AcceptInfo {
                portal: self.portal_of(*conn),
                local: "127.0.0.1:3260".parse().unwrap(),
                peer: "127.0.0.1:50000".parse().unwrap(),
                entropy: [8; 32],
            };
            next.taken_over(self.world.now, *conn, &arrival);
        }
        let is_one_group = self.tags[0] == self.tags[1];
        match next.resume(self.world.now, &state, &exported.connections) {
            Ok(()) => {}
            // The session began before its portal got the tag of another group, or its portal is gone and its
            // group is not: this process goes on.
            Err(why) => {
                let is_gone = is_one_group && self.served != [true; 2];
                let is_expected = matches!(why, ResumeError::PortalGroup(_))
                    || is_gone && matches!(why, ResumeError::Refused(_));
                assert!(is_expected, "{why}");
                self.world.shard.thaw(self.world.now);
                return self.world.drain();
            }
        }
        next.thaw(self.world.now);
        self.world.shard = next;
        self.world.drain();
    }

    fn portal_of(&self, conn: ConnId) -> PortalId {
        let is_it = |path: &Path| path.session.as_ref().is_some_and(|session| session.conn == conn);
        PortalId(u32::try_from(self.paths.iter().position(is_it).unwrap()).unwrap())
    }

    fn step(&mut self) {
        let at = usize::try_from(self.rng.below(2)).unwrap();
        match self.rng.below(17) {
            0..=4 if self.paths[at].session.is_none() => self.login(at),
            5 => {
                if let Some(session) = self.paths[at].session.take() {
                    self.world.cut(session.conn);
                }
            }
            6 | 7 => {
                drop_all(&mut self.world);
                self.react();
            }
            8 | 9 => {
                let disk = u32::try_from(self.rng.below(u64::from(DISKS) + 1)).unwrap();
                self.disk = Some(disk).filter(|disk| *disk < DISKS);
                self.reload();
            }
            10 => {
                self.served[at] = !self.served[at];
                self.reload();
            }
            11 => {
                self.admitted = !self.admitted;
                self.reload();
            }
            12 => self.logout(at),
            13 => self.restart(),
            14 => self.upgrade(),
            // The portal groups merge, or are two again. Nothing shows where the portal was before that was
            // away.
            15 if self.served[1] => {
                self.tags[1] = 3 - self.tags[1];
                self.reload();
            }
            _ => {}
        }
        (0..2).for_each(|at| self.write(at));
    }
}

#[test]
fn no_history_leads_a_write_to_another_disk() {
    let mut outcomes = [0; 2];
    for seed in 0..1000 {
        let mut history = History::new(seed);
        for _ in 0..50 {
            history.step();
        }
        outcomes = [outcomes[0] + history.outcomes[0], outcomes[1] + history.outcomes[1]];
    }
    assert!(outcomes.iter().all(|count| *count > 1000), "{outcomes:?}");
}
