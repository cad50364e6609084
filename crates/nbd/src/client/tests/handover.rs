//! A connection that moves to the client of another process.

use super::*;

/// Returns the client of another process that goes on with the connection.
fn moved(rig: Rig) -> Rig {
    assert_eq!(rig.client.unmovable(), None);
    let Rig { client: Client { config, info, .. }, server, now, pool, .. } = rig;
    let mut next = Rig::new(server);
    next.client = Client::new(config, info, pool.clone());
    next.client.connected(now, info);
    (next.now, next.pool) = (now, pool);
    next
}

#[test]
fn what_was_acknowledged_is_durable_before_a_connection_moves() {
    let mut rig = Rig::new(Server::new(info(1 << 20)));
    rig.write(0, &[1; 512]);
    assert_eq!(rig.client.unmovable(), Some(Unmovable::Working), "a write is under way");
    rig.settle();
    assert_eq!(rig.ended().len(), 1);
    assert_eq!(rig.client.unmovable(), Some(Unmovable::Working), "it is not flushed");
    rig.client.prepare_handover(false);
    assert!(rig.client.is_flushing());
    rig.drain();
    rig.client.prepare_handover(false);
    rig.drain();
    assert_eq!(rig.server.held(), 1, "one flush");
    rig.settle();
    assert!(!rig.client.is_flushing());
    assert_eq!(rig.server.durable[..512], [1; 512]);
    let mut next = moved(rig);
    assert!(next.notices.is_empty());
    let second = next.write(512, &[2; 512]);
    next.settle();
    assert_eq!(next.ended(), [(second, None)]);
    assert_eq!(next.server.seen.iter().filter(|request| request.command == Cmd::DISC).count(), 0);
    // It repeats its own changes as the first one would have.
    next.restart(None);
    next.settle();
    assert_eq!(next.server.present[..1024], [[1; 512], [2; 512]].concat());
}

#[test]
fn a_connection_without_unflushed_changes_moves_without_a_request() {
    let mut rig = Rig::new(Server::new(info(1 << 20)));
    let read = rig.read(0, 512);
    rig.settle();
    assert!(rig.result(read).is_some());
    let seen = rig.server.seen.len();
    rig.client.prepare_handover(false);
    rig.drain();
    assert_eq!((rig.client.unmovable(), rig.server.seen.len()), (None, seen));
}

#[test]
fn a_server_without_flush_is_not_asked_for_one() {
    let mut rig = Rig::new(Server::new(ExportInfo { flags: 1, ..info(1 << 20) }));
    rig.write(0, &[1; 512]);
    rig.settle();
    assert_eq!(rig.ended().len(), 1);
    rig.client.prepare_handover(false);
    assert_eq!(rig.client.unmovable(), None);
}

#[test]
fn a_flush_that_fails_keeps_the_connection_where_it_is_and_loses_nothing() {
    for again in [false, true] {
        let mut rig = Rig::new(Server::new(info(1 << 20)));
        rig.write(0, &[1; 512]);
        rig.settle();
        assert_eq!(rig.ended().len(), 1);
        rig.server.flush_errors = vec![Errno::IO];
        rig.client.prepare_handover(false);
        rig.settle();
        assert_eq!(rig.client.unmovable(), Some(Unmovable::FlushFailed));
        rig.client.prepare_handover(false);
        assert!(!rig.client.is_flushing(), "one failure is enough");
        let seen = rig.server.seen.len();
        if again {
            rig.client.prepare_handover(true);
            rig.settle();
        } else {
            let flush = rig.submit(OpAction::Flush);
            rig.settle();
            assert_eq!(rig.ended(), [(flush, None)]);
        }
        let commands: Vec<Cmd> = rig.server.seen[seen..].iter().map(|request| request.command).collect();
        assert_eq!(commands, [Cmd::WRITE, Cmd::FLUSH], "the change is repeated first");
        assert_eq!(rig.server.durable[..512], [1; 512]);
        assert_eq!((rig.client.unmovable(), rig.notices.len()), (None, 0));
    }
}

#[test]
fn a_flush_of_a_client_that_closes_is_not_one_for_another_process() {
    let mut rig = Rig::new(Server::new(info(1 << 20)));
    rig.write(0, &[1; 512]);
    rig.settle();
    rig.client.prepare_handover(false);
    rig.settle();
    rig.write(0, &[2; 512]);
    rig.settle();
    rig.server.flush_errors = vec![Errno::IO];
    rig.client.close();
    rig.settle();
    assert_eq!(rig.notices, [Notice::LostChanges(Fault::Medium)]);
    assert_eq!(rig.server.seen.last().map(|request| request.command), Some(Cmd::DISC));
}

#[test]
fn what_is_lost_is_told_before_a_connection_moves() {
    for is_prepared in [false, true] {
        let mut rig = Rig::new(Server::new(info(1 << 20)));
        rig.write(0, &[1; 512]);
        rig.settle();
        assert_eq!(rig.ended().len(), 1);
        rig.server.flush_errors = vec![Errno::IO];
        if is_prepared {
            rig.client.prepare_handover(false);
            rig.drain();
        }
        // The host may not flush any more.
        rig.client.set_write_cache(false);
        rig.settle();
        assert_eq!(rig.notices, [Notice::LostChanges(Fault::Medium)]);
        assert_eq!(rig.client.unmovable(), Some(Unmovable::LostChanges));
        let flush = rig.submit(OpAction::Flush);
        rig.settle();
        assert_eq!(rig.ended(), [(flush, Some(Fault::Medium))]);
        assert_eq!(rig.client.unmovable(), None);
    }
}

#[test]
fn a_connection_that_is_lost_or_ends_does_not_move() {
    let mut rig = Rig::new(Server::new(info(1 << 20)));
    rig.write(0, &[1; 512]);
    rig.settle();
    assert_eq!(rig.ended().len(), 1);
    rig.server.die(None);
    rig.client.disconnected(rig.now);
    rig.drain();
    assert_eq!(rig.client.unmovable(), Some(Unmovable::Away));
    rig.client.prepare_handover(false);
    assert!(!rig.client.is_flushing(), "there is nobody to flush");
    rig.reconnect();
    assert_eq!(rig.client.unmovable(), Some(Unmovable::Away), "the change is not repeated");
    rig.settle();
    assert_eq!(rig.client.unmovable(), Some(Unmovable::Working));
    rig.client.prepare_handover(false);
    rig.settle();
    assert_eq!(rig.client.unmovable(), None);
    rig.client.received(rig.now, &[0x67]);
    assert_eq!(rig.client.unmovable(), Some(Unmovable::Working), "within a reply");
    rig.client.close();
    assert_eq!(rig.client.unmovable(), Some(Unmovable::Away));
}

/// Returns a client that goes on without the connection of the other process.
fn without_connection() -> Rig {
    let mut rig = Rig::new(Server::new(info(1 << 20)));
    rig.client = Client::new(rig.client.config, info(1 << 20), rig.pool.clone());
    rig.client.connect();
    rig
}

#[test]
fn without_a_connection_a_client_connects_at_once_and_nobody_notices() {
    let mut rig = without_connection();
    let read = rig.read(0, 512);
    rig.drain();
    assert_eq!(rig.actions, [ClientAction::Connect]);
    assert_eq!(rig.client.unmovable(), Some(Unmovable::Working), "the server need not be away");
    rig.client.connected(rig.now, info(1 << 20));
    rig.settle();
    assert!(matches!(rig.result(read), Some(Ok(OpOutput::Data(_)))));
    assert_eq!((rig.client.unmovable(), rig.notices.len()), (None, 0));
}

#[test]
fn that_a_client_without_a_connection_finds_nobody_is_told_once() {
    let mut rig = without_connection();
    let read = rig.read(0, 512);
    for _ in 0..2 {
        rig.client.connect_failed(rig.now);
        rig.drain();
        assert_eq!(rig.client.unmovable(), Some(Unmovable::Away));
        rig.now = rig.client.poll_timeout().unwrap();
        rig.client.handle_timeout(rig.now);
    }
    assert_eq!(rig.notices, [Notice::Lost]);
    rig.client.connected(rig.now, info(1 << 20));
    rig.settle();
    assert!(matches!(rig.result(read), Some(Ok(OpOutput::Data(_)))));
    assert_eq!(rig.notices[1..], [Notice::Back(0)]);
}

#[test]
fn a_client_without_a_connection_uses_no_other_export() {
    let mut rig = without_connection();
    let read = rig.read(0, 512);
    rig.client.connected(rig.now, info(1 << 19));
    rig.drain();
    assert!(matches!(rig.notices[..], [Notice::Differs(_)]), "{:?}", rig.notices);
    assert_eq!(rig.ended(), [(read, Some(Fault::Gone))]);
}
