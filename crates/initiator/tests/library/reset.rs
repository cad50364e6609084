//! Tests commands that another initiator's reset ends.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

/// How long the bytes of the target are held back at most, and in which steps: the thread of a failed test
/// must not wait for ever.
const HELD_MAX: Duration = Duration::from_secs(30);
const STEP: Duration = Duration::from_millis(5);

/// Relays one connection to a target. While `held` is set, the bytes of the target are held back.
fn relay(to: SocketAddr, held: Arc<AtomicBool>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (client, _) = listener.accept().unwrap();
        let target = TcpStream::connect(to).unwrap();
        let (from_client, to_target) = (client.try_clone().unwrap(), target.try_clone().unwrap());
        std::thread::spawn(move || carry(from_client, to_target, &AtomicBool::new(false)));
        carry(target, client, &held);
    });
    address
}

fn carry(mut from: TcpStream, mut to: TcpStream, held: &AtomicBool) {
    let mut bytes = vec![0; 64 << 10];
    while let Ok(len @ 1..) = from.read(&mut bytes) {
        let since = Instant::now();
        while held.load(Ordering::Acquire) && since.elapsed() < HELD_MAX {
            std::thread::sleep(STEP);
        }
        if to.write_all(&bytes[..len]).is_err() {
            return;
        }
    }
}

/// The target has sent R2Ts for writes when another initiator resets the unit. With TAS=0 it sends no
/// response for them.
#[test]
fn writes_that_another_initiators_reset_ends_are_carried_out_again() {
    let lun = 7;
    let held = Arc::new(AtomicBool::new(false));
    let direct = target::url(lun);
    let (_, rest) = direct.split_once("//").unwrap();
    let (address, path) = rest.split_once('/').unwrap();
    let through = relay(address.parse().unwrap(), Arc::clone(&held));
    let url = format!("iscsi://{through}/{path}?initial_r2t=yes&immediate_data=no");
    let disk = block_on(Disk::open(&url)).unwrap();
    let other = super::disk(lun);
    // This fetches the unit attentions that a login leaves pending.
    perform(&disk, OpAction::Read { at: 0, len: 512 });
    block_on(other.read(0, 512)).unwrap();

    held.store(true, Ordering::Release);
    let data = pattern(7, 64 << 10);
    let count = 4;
    let (tell, told) = channel();
    for number in 0..count {
        let at = number * data.len() as u64;
        let action = OpAction::Write { at, data: list(&data), durability: Durability::Cached };
        let tell = tell.clone();
        disk.submit(action, Box::new(move |result| tell.send(result.map(drop)).unwrap()));
    }
    // After this time the writes have reached the target. A later command could not confirm that, since its
    // response would be held back too.
    std::thread::sleep(Duration::from_millis(300));
    let reset = other.session().submit_tmf(TmfFunction::LOGICAL_UNIT_RESET, Lun::from_number(lun).unwrap());
    assert_eq!(block_on(reset).unwrap(), Some(TmfResult::COMPLETE));
    held.store(false, Ordering::Release);

    for _ in 0..count {
        told.recv_timeout(HANG).expect("a write is never answered").unwrap();
    }
    for number in 0..count {
        let at = number * data.len() as u64;
        assert_eq!(flat(&block_on(other.read(at, data.len())).unwrap()), data);
    }
}

/// After a reset the disk asks the unit whether it is the same, and another reset can end the question.
#[test]
fn resets_that_follow_each_other_end_no_question_for_good() {
    // No other test resets these units.
    for lun in [5, 17] {
        let (reader, other) = (disk(lun), disk(lun));
        let mut rng = base::rng::Rng::from_seed(lun.into());
        for _ in 0..200 {
            let reset = || {
                other.session().submit_tmf(TmfFunction::LOGICAL_UNIT_RESET, Lun::from_number(lun).unwrap())
            };
            let (tell, told) = channel();
            let first = reset();
            reader.submit(
                OpAction::Read { at: 0, len: 512 },
                Box::new(move |result| tell.send(result.map(drop)).unwrap()),
            );
            std::thread::sleep(Duration::from_micros(rng.below(1500)));
            let second = reset();
            block_on(first).unwrap();
            block_on(second).unwrap();
            told.recv_timeout(HANG / 2).expect("a read is never answered").unwrap();
        }
    }
}
