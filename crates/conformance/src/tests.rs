//! Tests of the conformance suites: a correct peer passes, and each fault in a peer fails the case that must
//! find it.
//!
//! Each suite tests the other one's fixture: the scripted target is a target, and the fixture that logs in to
//! targets is an initiator. A relay between the two changes PDUs on their way, to inject one fault at a time.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::suite::{CaseResult, Selection};
use crate::verdict::{Outcome, Verdict};
use crate::{initiator, target};

/// Changes the header or the data of a PDU.
type Fault = fn(header: &mut [u8], data: &mut [u8]);

fn sound(_: &mut [u8], _: &mut [u8]) {}

/// Adds to a number in the header of PDUs with this opcode.
fn add(header: &mut [u8], opcode: u8, at: usize, by: u32) {
    if header[0] & 0x3f == opcode {
        let number = u32::from_be_bytes(header[at..at + 4].try_into().unwrap()).wrapping_add(by);
        header[at..at + 4].copy_from_slice(&number.to_be_bytes());
    }
}

/// Long enough for a machine that is busy with other tests.
const PATIENCE: Duration = Duration::from_secs(3);

/// Runs threads until it is dropped.
struct Peers {
    stop: Arc<AtomicBool>,
}

impl Drop for Peers {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

impl Peers {
    fn new() -> Self {
        Self { stop: Arc::new(AtomicBool::new(false)) }
    }

    /// Repeats `work` on its own thread.
    fn keep(&self, work: impl Fn() + Send + 'static) {
        let stop = Arc::clone(&self.stop);
        thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                work();
                thread::sleep(Duration::from_millis(2));
            }
        });
    }

    /// Relays connections to `to`, with faults in both directions. Returns the address of the relay.
    fn relay(&self, to: SocketAddr, there: Fault, back: Fault) -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let addr = listener.local_addr().unwrap();
        listener.set_nonblocking(true).unwrap();
        self.keep(move || {
            let Ok((near, _)) = listener.accept() else { return };
            near.set_nonblocking(false).unwrap();
            let Ok(far) = TcpStream::connect(to) else { return };
            for stream in [&near, &far] {
                stream.set_nodelay(true).unwrap();
            }
            let (near2, far2) = (near.try_clone().unwrap(), far.try_clone().unwrap());
            thread::spawn(move || pass(near, far, there));
            thread::spawn(move || pass(far2, near2, back));
        });
        addr
    }
}

/// Forwards PDUs until either side closes.
fn pass(mut from: TcpStream, mut to: TcpStream, fault: Fault) {
    let mut header = [0; 48];
    while from.read_exact(&mut header).is_ok() {
        let len = usize::from(header[4]) * 4
            + usize::try_from(u32::from_be_bytes([0, header[5], header[6], header[7]]))
                .unwrap()
                .next_multiple_of(4);
        let mut rest = vec![0; len];
        if from.read_exact(&mut rest).is_err() {
            break;
        }
        fault(&mut header, &mut rest);
        if to.write_all(&[&header[..], &rest].concat()).is_err() {
            break;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Write);
}

fn target_options(portal: SocketAddr) -> target::Options {
    target::Options {
        portals: vec![portal],
        target: Some(initiator::TARGET.to_owned()),
        lun: Some(0),
        initiator: target::INITIATOR.to_owned(),
        user: None,
        mutual: None,
        write: true,
        limit: Duration::from_secs(60),
        patience: PATIENCE,
        revive: None,
    }
}

/// Tests the scripted target with one case and one fault.
fn judge_target(id: &str, fault: Fault) -> CaseResult {
    run_on_target(id, fault).unwrap().results.remove(0)
}

/// Tests the scripted target with the cases that a pattern names and one fault.
fn run_on_target(pattern: &str, fault: Fault) -> Result<target::Run, String> {
    let peers = Peers::new();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let portal = listener.local_addr().unwrap();
    listener.set_nonblocking(true).unwrap();
    let stop = Arc::clone(&peers.stop);
    thread::spawn(move || {
        let options = Rc::new(initiator::Options {
            listen: portal,
            exec: None,
            discover: None,
            limit: Duration::from_secs(60),
            patience: PATIENCE,
        });
        let listener = Rc::new(listener);
        let mut fixture = initiator::fixture::Fixture::new(&options, &listener, "itself");
        while !stop.load(Ordering::Relaxed) {
            if let Ok(Some(event)) = fixture.step(Instant::now() + Duration::from_millis(20)) {
                let _ = fixture.serve(&event);
            }
        }
    });
    let portal = peers.relay(portal, sound, fault);
    let selection = Selection::new(&[pattern.to_owned()]);
    target::run(&target_options(portal), &selection, |_| ())
}

/// Tests an initiator that writes and reads with one case and one fault.
fn judge_initiator(id: &str, fault: Fault) -> CaseResult {
    judge_initiator_that(id, fault, |conn| {
        conn.write_blocks(&[7; 4096])?;
        conn.write_blocks(&[8; 1024])?;
        conn.read_blocks(16)?;
        Ok(())
    })
}

/// Tests an initiator that logs in again and again, and does this each time.
fn judge_initiator_that(id: &str, fault: Fault, work: fn(&mut target::Conn) -> Outcome) -> CaseResult {
    // Another test can get the port before the judge listens there.
    let results = std::iter::repeat_with(|| run_on_initiator(id, fault, work)).take(5);
    results.flatten().next().expect("no port is free").remove(0)
}

fn run_on_initiator(
    id: &str,
    fault: Fault,
    work: fn(&mut target::Conn) -> Outcome,
) -> Result<Vec<CaseResult>, String> {
    let peers = Peers::new();
    let listen = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
    let portal = peers.relay(listen, fault, sound);
    peers.keep(move || {
        let unit =
            target::fixture::Unit { lun: 0, kind: target::UnitKind::Disk, block: 512, blocks: 1 << 17 };
        let options = Rc::new(target_options(portal));
        let mut fixture = target::fixture::Fixture::new(&options, initiator::TARGET, unit);
        let _ = fixture.start(&[]).and_then(|mut conn| work(&mut conn));
    });
    let options = initiator::Options {
        listen,
        exec: None,
        discover: None,
        limit: Duration::from_secs(60),
        patience: PATIENCE,
    };
    initiator::run(&options, &Selection::new(&[id.to_owned()]), |_| ())
}

/// Fails unless a case passes. It is repeated if it does not: a busy machine can let a peer be too late.
fn expect_pass(what: &str, judge: impl Fn() -> CaseResult) {
    const ATTEMPTS: usize = 3;
    let mut failed = Vec::new();
    for _ in 0..ATTEMPTS {
        let result = judge();
        if result.verdict == Verdict::Pass {
            return;
        }
        failed.push(format!("{what}: {}\n{}", result.why, result.record.join("\n")));
    }
    panic!("{}", failed.join("\n"));
}

/// Fails unless each case passes without a fault and fails with its fault.
fn finds(judge: fn(&str, Fault) -> CaseResult, faults: &[(&str, Fault)]) {
    for (id, fault) in faults {
        expect_pass(&format!("{id} on a sound peer"), || judge(id, sound));
        let ill = judge(id, *fault);
        assert_eq!(ill.verdict, Verdict::Fail, "{id} with its fault: {}\n{}", ill.why, ill.record.join("\n"));
        assert!(!ill.why.is_empty() && !ill.record.is_empty(), "{id}: a failure says why and shows PDUs");
    }
}

/// Runs a scripted target that crashes once, at the first command on its second connection, and restarts if
/// `revive` is given. Returns the results of three cases.
fn judge_mortal(revive: Option<String>) -> Vec<CaseResult> {
    let peers = Peers::new();
    let stop = Arc::clone(&peers.stop);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let portal = listener.local_addr().unwrap();
    let coffin =
        revive.as_ref().map(|_| std::env::temp_dir().join(format!("targe-coffin-{}", portal.port())));
    let revived = coffin.clone();
    thread::spawn(move || {
        let mut lives = vec![listener];
        let mut deaths = 0;
        while !stop.load(Ordering::Relaxed) {
            let Some(listener) = lives.pop() else {
                // The target is down until the `revive` command creates the file.
                if revived.as_ref().is_some_and(|coffin| std::fs::remove_file(coffin).is_ok()) {
                    lives.push(TcpListener::bind(portal).unwrap());
                }
                thread::sleep(Duration::from_millis(5));
                continue;
            };
            listener.set_nonblocking(true).unwrap();
            let options = Rc::new(initiator::Options {
                listen: portal,
                exec: None,
                discover: None,
                limit: Duration::from_secs(60),
                patience: PATIENCE,
            });
            let listener = Rc::new(listener);
            let mut fixture = initiator::fixture::Fixture::new(&options, &listener, "itself");
            let mut dies = false;
            while !stop.load(Ordering::Relaxed) && !dies {
                let Ok(Some(event)) = fixture.step(Instant::now() + Duration::from_millis(20)) else {
                    continue;
                };
                dies = deaths == 0 && event.conn == 1 && event.is_command();
                if !dies {
                    let _ = fixture.serve(&event);
                }
            }
            deaths += 1;
        }
    });
    let mut options = target_options(portal);
    options.revive = revive.zip(coffin).map(|(command, coffin)| {
        format!("touch {0}; while [ -e {0} ]; do sleep 0.01; done; sleep 0.1; {command}", coffin.display())
    });
    let only = ["ffp-t-1.1", "ffp-t-2.1", "ffp-t-3.1"].map(str::to_owned);
    target::run(&options, &Selection::new(&only), |_| ()).unwrap().results
}

#[test]
fn a_target_that_dies_of_a_case_fails_it_and_is_brought_back_for_the_next() {
    let verdicts = |results: &[CaseResult]| results.iter().map(|result| result.verdict).collect::<Vec<_>>();
    // The target's port may close a moment after the connection of the case, so the second verdict is not
    // checked.
    let verdicts_alone = verdicts(&judge_mortal(None));
    assert_eq!((verdicts_alone[0], verdicts_alone[2]), (Verdict::Fail, Verdict::Skip));
    // A busy machine can let a peer be too late.
    let results = (0..3)
        .map(|_| judge_mortal(Some("echo it fell from a chair; echo and more".to_owned())))
        .find(|results| verdicts(results) == [Verdict::Fail, Verdict::Pass, Verdict::Pass])
        .expect("a target that is brought back passes");
    let why = &results.first().unwrap().why;
    assert!(why.ends_with("; the target cannot be reached any more; it fell from a chair"), "{why}");
    let results = judge_mortal(Some("false".to_owned()));
    assert_eq!(verdicts(&results), [Verdict::Fail, Verdict::Skip, Verdict::Skip]);
}

#[test]
fn each_fault_of_a_target_is_found_by_its_case() {
    finds(
        judge_target,
        &[
            ("ffp-t-1.1", |header, _| add(header, 0x21, 32, 0u32.wrapping_sub(100))),
            ("ffp-t-2.1", |header, _| add(header, 0x21, 24, 1)),
            ("ffp-t-3.1", |header, _| add(header, 0x25, 36, 1)),
            ("ffp-t-4.1", |header, _| add(header, 0x31, 36, 1)),
            ("ffp-t-8.1", |header, _| {
                if header[0] == 0x31 {
                    header[20..24].fill(0xff);
                }
            }),
            ("ffp-t-8.2", |header, _| add(header, 0x25, 8, 1)),
            ("ffp-t-9.2", |header, data| {
                if header[0] == 0x25 && data.len() >= 512 {
                    header[1] &= 0x7f;
                }
            }),
            ("ffp-t-9.5", |header, data| {
                if data.len() >= 512 {
                    add(header, 0x25, 40, 512);
                }
            }),
            ("ffp-t-13.1", |header, _| {
                if header[0] == 0x26 {
                    header[2] = 3;
                }
            }),
            ("ffp-t-15.1.3", |header, data| {
                if header[0] == 0x20 && !data.is_empty() {
                    data[0] ^= 1;
                }
            }),
            ("ffp-t-16.1", |header, _| add(header, 0x21, 44, 1)),
            ("ffp-t-16.3.3", |header, data| {
                // Flip one bit of a block that is read back.
                if header[0] == 0x25 && data.len() == 1024 {
                    data[1000] ^= 0x10;
                }
            }),
            ("ffp-t-17.2.2", |header, _| {
                if header[0] == 0x24 {
                    header[1] |= 0x80;
                }
            }),
            ("login-numbers", |header, _| add(header, 0x23, 28, 1)),
            // The suite must judge a target that assigns no TSIH, and not give up.
            ("login-numbers", |header, _| {
                if header[0] & 0x3f == 0x23 {
                    header[14..16].fill(0);
                }
            }),
        ],
    );
}

/// Changes the peripheral device type in INQUIRY data.
fn inquiry_of(kind: u8, header: &mut [u8], data: &mut [u8]) {
    let is_disk = header[0] == 0x25 && data.len() >= 36 && data[0] == 0;
    if is_disk {
        data[0] = kind;
    }
}

#[test]
fn the_type_of_the_unit_selects_the_cases() {
    use target::UnitKind::{Changer, Disc, Disk, Tape};
    let cases = "ffp-t-3.1,ssc-inquiry,mmc-inquiry,smc-status*";
    let as_tape: Fault = |header, data| inquiry_of(1, header, data);
    let as_disc: Fault = |header, data| inquiry_of(5, header, data);
    for (fault, kind, id) in
        [(sound as Fault, Disk, "ffp-t-3.1"), (as_tape, Tape, "ssc-inquiry"), (as_disc, Disc, "mmc-inquiry")]
    {
        let run = run_on_target(cases, fault).unwrap();
        assert_eq!(run.kind, kind);
        assert_eq!(run.results.iter().map(|result| result.entry.id).collect::<Vec<_>>(), [id]);
        let others: Vec<_> = run.left_out.iter().map(|(kind, _)| *kind).collect();
        assert_eq!(
            others,
            [Disk, Tape, Changer, Disc].into_iter().filter(|other| *other != kind).collect::<Vec<_>>()
        );
        assert!(run.left_out_words().unwrap().starts_with(&format!("The LUN is {};", kind.words())));
    }
    let alone = run_on_target("ffp-t-3.1", sound).unwrap();
    assert_eq!(alone.left_out_words(), None);
    let why = run_on_target("smc-*", as_tape).unwrap_err();
    assert_eq!(why, "the LUN is a tape drive, and no selected case is for that type");
}

#[test]
fn a_disk_that_poses_as_another_type_fails_its_cases() {
    // RMB is 0, blocks have 512 bytes, and the commands of the type do not exist.
    for (fault, ids) in [
        ((|header, data| inquiry_of(1, header, data)) as Fault, "ssc-inquiry,ssc-block-limits,ssc-density"),
        (
            |header, data| inquiry_of(5, header, data),
            "mmc-inquiry,mmc-capacity,mmc-features,mmc-toc,mmc-events",
        ),
        (|header, data| inquiry_of(8, header, data), "smc-assignment,smc-status,smc-move"),
    ] {
        let run = run_on_target(ids, fault).unwrap();
        assert_eq!(run.results.len(), ids.split(',').count());
        for result in run.results {
            assert_eq!(result.verdict, Verdict::Fail, "{}: {}", result.entry.id, result.why);
        }
    }
}

#[test]
fn an_initiator_that_only_logs_in_is_not_judged_by_its_window() {
    let result = judge_initiator_that("ffp-i-3.3", sound, |_| Ok(()));
    assert_eq!((result.verdict, &*result.why), (Verdict::Skip, "the initiator sent no READ or WRITE"));
}

#[test]
fn each_fault_of_an_initiator_is_found_by_its_case() {
    finds(
        judge_initiator,
        &[
            ("ffp-i-1.1", |header, _| {
                // Every READ skips a number.
                if header[0] == 0x01 && header[32] == 0x28 {
                    add(header, 0x01, 24, 1);
                }
            }),
            ("ffp-i-6.1", |header, _| add(header, 0x05, 36, 1)),
            ("ffp-i-9.1", |header, _| add(header, 0x05, 20, 1)),
            ("ffp-i-11.2.2", |header, _| {
                if header[0] == 0x05 {
                    header[1] = 0;
                }
            }),
            ("ffp-i-11.4", |header, _| add(header, 0x05, 40, 4)),
            ("ffp-i-15.1", |header, _| {
                if header[0] & 0x3f == 0 {
                    header[0] &= 0x3f;
                }
            }),
            ("ffp-i-16.1.1", |header, _| add(header, 0x01, 28, 1)),
            ("ffp-i-16.6", |header, _| {
                if header[0] == 0x01 && header[32] == 0x2a {
                    add(header, 0x01, 20, 512);
                }
            }),
        ],
    );
}
