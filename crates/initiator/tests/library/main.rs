//! Tests the library as a program uses it, against a target of ours.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "all of this is test code, where a panic is the verdict"
)]

mod block_length;
mod cache;
mod flush;
mod relay;
mod reset;
mod residual;
mod sense;
mod target;

#[path = "../../examples/poll_loop.rs"]
#[allow(dead_code, reason = "its main is that of a program")]
mod poll_loop;
#[path = "../../examples/read_block.rs"]
#[allow(dead_code, reason = "its main is that of a program")]
mod read_block;

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use base::buffer::{Bytes, DataList};
use base::units::Lba;
use drivers::config::{Config, EngineChoice};
use iscsi::initiator::contract::Slot;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use scsi::block;
use scsi::lun::Lun;
use scsi::sense::SenseKey;
use store::api::{Durability, ExtentState, OpAction, OpOutput};
use store::shared::SharedStore;
use targe_initiator::driver::{Driver, DriverEvent, ProtocolPlan, WAITING_MAX, plan};
use targe_initiator::{
    Cdb, Client, Command, CommandError, CommandHandle, Disk, EnvSecrets, Error, Event, OpenOptions, Path,
    Url, block_on, blocking,
};
use transport::initiator::SubmitError;
use transport::task_management::{TmfFunction, TmfResult};

/// No test here takes a second; a test that takes this long hangs.
const HANG: Duration = Duration::from_secs(60);
const MIB: usize = 1 << 20;

fn url(lun: u16) -> Url {
    target::url(lun).parse().unwrap()
}

fn disk(lun: u16) -> Disk {
    block_on(Disk::open(&url(lun))).unwrap()
}

fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    base::rng::Rng::from_seed(seed).fill(&mut bytes);
    bytes
}

fn list(bytes: &[u8]) -> DataList {
    Bytes::copied_from(bytes).into()
}

fn flat(data: &DataList) -> Vec<u8> {
    data.parts().iter().flat_map(|part| part.iter().copied()).collect()
}

/// Executes one operation through the interface of a shared medium.
fn perform(disk: &Disk, action: OpAction) -> OpOutput {
    let (tell, told) = channel();
    disk.submit(action, Box::new(move |result| tell.send(result).unwrap()));
    told.recv_timeout(HANG).unwrap().unwrap()
}

#[test]
fn a_disk_keeps_the_contract_of_a_medium() {
    let disk = disk(0);
    let profile = disk.capabilities();
    assert_eq!((profile.len, profile.logical_block_len, profile.read_only), (8 << 20, 512, false));
    assert!(profile.thin && profile.deallocated_reads_zero);
    // The write is longer than any command: it is divided, and the data of the read is put together again.
    let data = pattern(1, 5 * MIB + 512);
    let action = OpAction::Write { at: 512, data: list(&data), durability: Durability::Stable };
    assert!(matches!(perform(&disk, action), OpOutput::Done(back) if flat(&back) == data));
    let read = |at, len| match perform(&disk, OpAction::Read { at, len }) {
        OpOutput::Data(data) => flat(&data),
        other => panic!("{other:?}"),
    };
    assert_eq!(read(512, data.len()), data);
    assert_eq!(read(0, 512), [0; 512]);
    assert!(read(0, 0).is_empty());
    // Zeros are written in two ways, and then the mapped extents are compared.
    let zeroes = |at, may_deallocate| OpAction::WriteZeroes {
        at,
        len: MIB as u64,
        may_deallocate,
        durability: Durability::Cached,
    };
    perform(&disk, zeroes(1 << 20, false));
    perform(&disk, zeroes(2 << 20, true));
    perform(&disk, OpAction::Deallocate { at: 3 << 20, len: 1 << 20 });
    perform(&disk, OpAction::Flush);
    assert_eq!(read(1 << 20, 3 * MIB), vec![0; 3 * MIB]);
    assert_eq!(read(4 << 20, MIB), data[4 * MIB - 512..5 * MIB - 512]);
    let OpOutput::MapStatus(extents) =
        perform(&disk, OpAction::MapStatus { at: 0, len: 8 << 20, count_max: 99 })
    else {
        panic!("no extents");
    };
    let mut at = 0;
    for extent in &extents {
        assert_eq!(extent.at, at, "{extents:?}");
        at += extent.len;
    }
    assert_eq!(at, 8 << 20);
    let state = |at| extents.iter().find(|extent| extent.at + extent.len > at).unwrap().state;
    assert_eq!(
        [state(1 << 20), state(2 << 20), state(3 << 20)],
        [ExtentState::Mapped, ExtentState::Hole, ExtentState::Hole]
    );
    // Operations beyond the end of the medium, or on parts of blocks, are not sent.
    let beyond = block_on(disk.read(8 << 20, 512)).unwrap_err();
    assert!(matches!(beyond, Error::OutOfRange { size: 0x80_0000, .. }), "{beyond:?}");
    let unaligned = block_on(disk.write(1, list(&[0; 512]), Durability::Cached)).unwrap_err();
    assert!(matches!(unaligned, Error::Unaligned { offset: 1, block_size: 512, .. }), "{unaligned:?}");
}

#[test]
fn a_blocking_program_reads_and_writes_slices() {
    let client = blocking::Client::new().unwrap();
    let disk = client.open(target::url(4)).unwrap();
    assert_eq!((disk.size(), disk.block_size()), (8 << 20, 512));
    let data = pattern(4, 3 * MIB);
    disk.write_at(4 << 20, &data).unwrap();
    disk.flush().unwrap();
    let mut back = vec![0xa5; data.len()];
    disk.read_at(4 << 20, &mut back).unwrap();
    assert_eq!(back, data);
    disk.write_zeroes(4 << 20, 4096).unwrap();
    disk.discard(5 << 20, 4096).unwrap();
    for at in [4 << 20, 5 << 20] {
        disk.read_at(at, &mut back[..4096]).unwrap();
        assert_eq!(back[..4096], [0; 4096]);
    }
    // Any CDB: READ CAPACITY(10) returns the last block and the length of a block.
    let cdb = Cdb::from_bytes(&[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0]).unwrap();
    let reply = disk.run(disk.command(cdb).reading(8)).unwrap();
    assert_eq!(reply.bytes(), [0, 0, 0x3f, 0xff, 0, 0, 2, 0]);
    let error = disk.read_at(100, &mut back).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("offset 100") && text.contains("512 bytes"), "{text}");
    assert!(disk.write_at(8 << 20, &[0; 512]).unwrap_err().is_misuse());
    assert!(matches!(client.open("iscsi://192.0.2.7"), Err(Error::Url(_))));
    let missing = client.open(target::url(99)).unwrap_err();
    assert_eq!(
        missing.report().to_string(),
        format!("cannot use {}: this target has no LUN 99", target::url(99))
    );
    disk.log_out().unwrap();
}

#[test]
fn a_watcher_counts_the_paths_that_are_up() {
    let (tell, told) = channel();
    let options = OpenOptions::new().watch(move |event| {
        tell.send(match event {
            Event::PathUp { path, .. } => Some((path.clone(), true)),
            Event::PathDown { path, .. } => Some((path.clone(), false)),
            Event::Down(_) => None,
            _ => return true,
        })
        .unwrap();
        true
    });
    let client = Client::new().unwrap();
    let disk = block_on(options.open(&client, format!("{}?connections=3", target::url(19)))).unwrap();
    let began = Instant::now();
    while disk.session().connections().wait().unwrap().iter().filter(|path| path.up).count() < 3 {
        assert!(began.elapsed() < HANG, "three connections are wanted");
        std::thread::sleep(Duration::from_millis(1));
    }
    let present: BTreeSet<Path> = disk.session().paths().wait().unwrap().into_iter().collect();
    assert_eq!(present.len(), 3, "{present:?}");
    disk.session().log_out().wait().unwrap();
    assert!(disk.session().paths().wait().is_err(), "a session that has ended has paths");
    let mut up = BTreeSet::new();
    let mut most = 0;
    while let Some((path, is_up)) = told.recv_timeout(HANG).unwrap() {
        assert!(if is_up { up.insert(path) } else { up.remove(&path) }, "{up:?}");
        most = most.max(up.len());
    }
    assert!(up.is_empty() && most == 3, "{most} at most, {up:?} at the end");
}

#[test]
fn a_compare_and_write_writes_only_what_it_found() {
    let disk = disk(1);
    let (old, new) = ([1; 512], [2; 512]);
    block_on(disk.write(4096, list(&old), Durability::Cached)).unwrap();
    block_on(disk.compare_and_write(4096, list(&[old, new].concat()))).unwrap();
    match block_on(disk.compare_and_write(4096, list(&[old, [3; 512]].concat()))) {
        Err(Error::Command(CommandError::Sense(sense))) => assert_eq!(sense.key, SenseKey::MISCOMPARE),
        other => panic!("{other:?}"),
    }
    assert_eq!(flat(&block_on(disk.read(4096, 512)).unwrap()), new);
}

#[test]
fn a_reset_is_heard_and_the_next_command_does_not_suffer_from_it() {
    let disk = disk(2);
    let (tell, heard) = channel();
    disk.session().watch(move |news| {
        if let Event::UnitAttention { asc, .. } = news {
            tell.send(*asc).unwrap();
        }
        true
    });
    let answer = block_on(disk.unit().submit_tmf(TmfFunction::LOGICAL_UNIT_RESET)).unwrap();
    assert_eq!(answer, Some(TmfResult::COMPLETE));
    assert_eq!(flat(&block_on(disk.read(0, 512)).unwrap()), [0; 512]);
    let asc = heard.recv_timeout(HANG).unwrap();
    assert_eq!(asc.0 >> 8, 0x29, "{asc:?}");
}

#[test]
fn commands_are_ended_one_by_one_and_no_other_suffers() {
    let mut plan = plan(&url(20), &EnvSecrets).unwrap();
    // Some commands are at the target, others wait.
    let ProtocolPlan::Iscsi(session) = &mut plan else { panic!("a plan of iSCSI") };
    session.session.limits.tasks_max = 8;
    let client = Client::new().unwrap();
    let session = client.log_in_planned(plan).wait().unwrap();
    let disk = block_on(Disk::open_unit(session.clone(), 5)).unwrap();
    let data = pattern(5, MIB);
    block_on(disk.write(0, list(&data), Durability::Cached)).unwrap();
    let read = || disk.geometry().read(Lun(0x0005_0000_0000_0000), Lba(0), 2048);
    let running: Vec<CommandHandle> = (0..64).map(|_| session.start_command(read())).collect();
    let answers: Vec<_> = running.iter().skip(1).step_by(2).map(CommandHandle::abort).collect();
    let mut ended = 0;
    for (number, running) in running.into_iter().enumerate() {
        match running.wait() {
            Ok(reply) => assert_eq!(reply.bytes(), data),
            Err(error) => {
                assert_eq!((number % 2, error), (1, CommandError::Aborted), "{number}");
                ended += 1;
            }
        }
    }
    let answers: Vec<_> = answers.into_iter().map(|answer| answer.wait().unwrap().unwrap()).collect();
    assert!(answers.iter().all(|answer| [TmfResult::COMPLETE, TmfResult::NO_TASK].contains(answer)));
    let complete = answers.iter().filter(|answer| **answer == TmfResult::COMPLETE).count();
    assert!(ended > 20 && complete <= ended, "{ended} ended, {complete} by the target's word");
    // A command that has ended is no task any more.
    let running = session.start_command(read());
    let abort_handle = running.abort_handle();
    assert_eq!(running.wait().unwrap().bytes(), data);
    assert_eq!(abort_handle.abort().wait().unwrap(), Some(TmfResult::NO_TASK));
}

#[test]
fn keys_are_negotiated_while_commands_go_on() {
    let disk = disk(21);
    let session = disk.session();
    let data = pattern(6, 300_032);
    block_on(disk.write(2 << 20, list(&data), Durability::Cached)).unwrap();
    let reads: Vec<_> =
        (0..8).map(|_| disk.perform(OpAction::Read { at: 2 << 20, len: data.len() })).collect();
    for max in ["1024", "65536", "512"] {
        let answer = session.negotiate(Some(Slot(0)), &[("MaxRecvDataSegmentLength", max)]).wait().unwrap();
        assert!(answer.iter().all(|(_, value)| value != "Reject"), "{answer:?}");
        let [path] = session.connections().wait().unwrap()[..] else { panic!("one connection") };
        assert_eq!(path.parameters.initiator_max_recv.to_string(), max);
        assert_eq!(flat(&block_on(disk.read(2 << 20, data.len())).unwrap()), data);
    }
    for read in reads {
        assert!(matches!(read.wait().unwrap(), OpOutput::Data(back) if flat(&back) == data));
    }
    let refused = session.negotiate(None, &[("HeaderDigest", "None")]).wait();
    assert_eq!(refused, Err(CommandError::Refused(SubmitError::NotPossible)));
    let answer = session.negotiate(None, &[("X-org.example.unknown", "1")]).wait().unwrap();
    assert_eq!(answer, [("X-org.example.unknown".to_owned(), "NotUnderstood".to_owned())]);
}

#[test]
fn connections_come_and_go_while_commands_go_on() {
    let disk = block_on(Disk::open(format!("{}?connections=4", target::url(6)))).unwrap();
    let session = disk.session();
    let data = pattern(7, MIB);
    block_on(disk.write(0, list(&data), Durability::Cached)).unwrap();
    for wanted in [1, 4, 3] {
        session.set_connections(wanted).wait().unwrap();
        let began = Instant::now();
        loop {
            let reads: Vec<_> =
                (0..8).map(|_| disk.perform(OpAction::Read { at: 0, len: data.len() })).collect();
            for read in reads {
                assert!(matches!(read.wait().unwrap(), OpOutput::Data(back) if flat(&back) == data));
            }
            let paths = session.connections().wait().unwrap();
            if paths.len() == usize::from(wanted) && paths.iter().all(|path| path.up) {
                break;
            }
            assert!(began.elapsed() < HANG, "{wanted} are wanted, there are {paths:?}");
        }
    }
    let stats = session.stats().wait().unwrap();
    assert_eq!((stats.connections_lost, stats.sessions_rebuilt), (0, 0), "{stats:?}");
    session.log_out().wait().unwrap();
}

#[test]
fn a_target_that_lives_answers_a_ping() {
    let disk = disk(3);
    let session = disk.session();
    let (before, began) = (session.ping().wait().unwrap(), Instant::now());
    // No command is under way, and the target sends nothing by itself within this time.
    while session.ping().wait().unwrap() < before + 3 {
        assert!(began.elapsed() < HANG, "nothing comes");
        std::thread::sleep(Duration::from_millis(1));
    }
    session.log_out().wait().unwrap();
    assert!(session.ping().wait().is_err(), "a session that has ended is pinged");
}

#[test]
fn many_threads_use_one_disk() {
    let disk = disk(23);
    std::thread::scope(|scope| {
        for number in 0..8_u64 {
            let disk = &disk;
            scope.spawn(move || {
                let at = number << 20;
                for round in 0..20 {
                    let data = pattern(number * 100 + round, 64 << 10);
                    block_on(disk.write(at, list(&data), Durability::Cached)).unwrap();
                    assert_eq!(flat(&block_on(disk.read(at, data.len())).unwrap()), data);
                }
            });
        }
    });
    let busy = block_on(disk.session().stats()).unwrap();
    block_on(disk.session().log_out()).unwrap();
    // The counters of a session are available after its end, and they include the responses to its logouts.
    let whole = block_on(disk.session().stats()).unwrap();
    assert!(whole.pdus_in > busy.pdus_in, "{whole:?} after {busy:?}");
    let error = block_on(disk.read(0, 512)).unwrap_err();
    assert!(matches!(error, Error::Command(CommandError::Refused(_) | CommandError::Down(_))), "{error:?}");
}

#[test]
fn a_session_that_ends_as_it_begins_is_told_though_nothing_else_happens() {
    for engine in [EngineChoice::Epoll, EngineChoice::Auto] {
        let mut driver = Driver::with_config(&Config { engine, ..Config::default() }).unwrap();
        // The interface does not exist; where interfaces may not be opened at all, that error ends the
        // session likewise.
        let url = "hyperscsi://group@absent0/iqn.2026-11.com.example:disk/0";
        driver.open(plan(&url.parse().unwrap(), &EnvSecrets).unwrap());
        // Without the event there is nothing that would wake the driver: it would sleep for ever.
        driver.run_once(None).unwrap();
        let told = std::iter::from_fn(|| driver.poll_event());
        let downs = told.filter(|event| matches!(event, DriverEvent::Session { event: Event::Down(_), .. }));
        assert_eq!(downs.count(), 1);
    }
}

#[test]
fn the_examples_read_what_was_written() {
    let disk = disk(24);
    let (first, last) = (pattern(8, 512), pattern(9, 512));
    block_on(disk.write(0, list(&first), Durability::Cached)).unwrap();
    block_on(disk.write((8 << 20) - 512, list(&last), Durability::Cached)).unwrap();
    assert_eq!(block_on(read_block::first_block(&target::url(24))).unwrap(), first);
    assert_eq!(poll_loop::last_block(&url(24)).unwrap(), last);
}

#[test]
fn commands_beyond_what_may_wait_are_refused_and_none_is_forgotten() {
    // Nothing answers on this port: every command waits.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("iscsi://{}/iqn.2001-04.com.example:silent/0", silent.local_addr().unwrap());
    let mut plan = plan(&url.parse().unwrap(), &EnvSecrets).unwrap();
    let ProtocolPlan::Iscsi(wanted) = &mut plan else { panic!("a plan of iSCSI") };
    wanted.session.limits.tasks_max = 8;
    let mut driver = Driver::new().unwrap();
    let session = driver.open(plan);
    let total = u64::try_from(8 + WAITING_MAX + 3).unwrap();
    for token in 0..total {
        driver.submit(session, token, Command::new(Lun(0), block::read_16(Lba(0), 1, false)).reading(512));
    }
    let finished = |driver: &mut Driver| -> Vec<(u64, CommandError)> {
        let told = std::iter::from_fn(|| driver.poll_event());
        told.filter_map(|event| match event {
            DriverEvent::Finished { token, result, .. } => Some((token, result.unwrap_err())),
            _ => None,
        })
        .collect()
    };
    let refused: Vec<_> =
        (total - 3..total).map(|token| (token, CommandError::Refused(SubmitError::Full))).collect();
    assert_eq!(finished(&mut driver), refused);
    driver.close(session);
    driver.run_once(Some(Duration::ZERO)).unwrap();
    let tokens: BTreeSet<u64> = finished(&mut driver).into_iter().map(|(token, _)| token).collect();
    assert_eq!(tokens, (0..total - 3).collect());
}

#[test]
fn a_driver_works_in_a_loop_of_its_owner() {
    for engine in [EngineChoice::Epoll, EngineChoice::Auto] {
        let mut driver = Driver::with_config(&Config { engine, ..Config::default() }).unwrap();
        let session = driver.open(plan(&url(22), &EnvSecrets).unwrap());
        let mut left: BTreeSet<u64> = (0..500).collect();
        for token in &left {
            // The commands are submitted before the session is up, and wait for it.
            let cdb = block::read_16(Lba(*token), 8, false);
            driver.submit(
                session,
                *token,
                Command::new(Lun(0x0004_0000_0000_0000), cdb).reading(4096).repeatable(),
            );
        }
        let start = Instant::now();
        let mut down = false;
        while !down {
            assert!(start.elapsed() < HANG, "it hangs with {} commands left", left.len());
            let sleep = driver.run_ready().unwrap();
            let mut busy = false;
            while let Some(event) = driver.poll_event() {
                busy = true;
                match event {
                    DriverEvent::Finished { token, result, .. } => {
                        assert_eq!(result.unwrap().bytes(), [0; 4096]);
                        assert!(left.remove(&token), "{token} ended twice");
                        if left.is_empty() {
                            driver.log_out(session);
                        }
                    }
                    DriverEvent::Session { event: Event::Down(_), .. } => down = true,
                    _ => {}
                }
            }
            if !busy {
                let limit = sleep.unwrap_or(HANG).min(HANG);
                let (tv_sec, tv_nsec) = (limit.as_secs().try_into().unwrap(), limit.subsec_nanos().into());
                poll(&mut [PollFd::new(&driver, PollFlags::IN)], Some(&Timespec { tv_sec, tv_nsec }))
                    .unwrap();
            }
        }
        assert!(left.is_empty());
    }
}
