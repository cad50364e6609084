//! No case passes with a peer that does nothing: a pass says that the peer did what the title demands.

use std::collections::BTreeMap;
use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use conformance::{CaseInfo, Selection, Verdict, initiator, target};
use iscsi::pdu::Opcode;

use crate::devices::Kind;
use crate::mutant::Breaks;
use crate::pdu::Pdu;
use crate::relay::Relay;
use crate::{driven, served};

/// How long a case waits for what never comes.
const PATIENCE: Duration = Duration::from_millis(300);
const LIMIT: Duration = Duration::from_secs(30);
/// How many cases run at the same time. They wait all the time.
const AT_A_TIME: usize = 40;
/// The initiator, so that no session of the other cases is reinstated.
const IDLE: &str = "iqn.2001-04.com.example:idle";

/// A target that does nothing.
#[derive(Clone, Copy, Debug)]
enum IdleTarget {
    /// It accepts connections, reads, and never sends anything.
    Silent,
    /// It closes every connection immediately.
    Closing,
    /// Initiators can log in, and nothing else happens.
    LogsIn,
}

impl IdleTarget {
    /// Returns the address, and what has to live as long as the target.
    fn start(self) -> (SocketAddr, Option<Relay>) {
        if matches!(self, Self::LogsIn) {
            // The first connection finds the unit for the case.
            let relay = Relay::start(served::address(), 1, Some(Breaks::Loss(|pdu| !is_login(pdu))));
            return (relay.address, Some(relay));
        }
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if matches!(self, Self::Silent) {
                    thread::spawn(move || read_all(stream));
                }
            }
        });
        (address, None)
    }

    /// Runs a case. Returns why it passed, if it did.
    fn passes(self, case: &str) -> Option<String> {
        let kind = Kind::of_case(case);
        let (user, mutual) = served::credentials();
        let with_chap = kind == Kind::DiskWithChap;
        let (address, _relay) = self.start();
        let options = target::Options {
            portals: vec![address],
            target: Some(served::name(0, kind)),
            lun: Some(0),
            initiator: IDLE.to_owned(),
            user: with_chap.then_some(user),
            mutual: with_chap.then_some(mutual),
            write: true,
            limit: LIMIT,
            patience: PATIENCE,
            revive: None,
        };
        let run = target::run(&options, &Selection::new(&[case.to_owned()]), |_| ()).ok()?;
        let passed = run.results.iter().find(|result| result.verdict == Verdict::Pass)?;
        Some(format!("{self:?}: {}\n{}", passed.line(), passed.record.join("\n")))
    }
}

fn is_login(pdu: &Pdu) -> bool {
    pdu.is(Opcode::LOGIN_REQUEST) || pdu.is(Opcode::LOGIN_RESPONSE)
}

fn read_all(mut stream: TcpStream) {
    let mut bytes = [0; 4096];
    while stream.read(&mut bytes).is_ok_and(|len| len > 0) {}
}

/// Runs a case with an initiator that a shell command starts. Returns why it passed, if it did.
fn passes_with(exec: &str, listen: SocketAddr, case: &str) -> Option<String> {
    let options = initiator::Options {
        listen,
        exec: Some(exec.to_owned()),
        discover: Some(exec.to_owned()),
        limit: LIMIT,
        patience: PATIENCE,
    };
    let results = initiator::run(&options, &Selection::new(&[case.to_owned()]), |_| ()).ok()?;
    let passed = results.iter().find(|result| result.verdict == Verdict::Pass)?;
    Some(format!("`{exec}`: {}\n{}", passed.line(), passed.record.join("\n")))
}

/// Fails if a case passes.
fn expect_none(list: &[CaseInfo], passes: impl Fn(&str) -> Vec<String> + Sync) {
    let jobs: Mutex<Vec<&str>> = Mutex::new(list.iter().map(|case| case.id).collect());
    let found = Mutex::new(BTreeMap::new());
    thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(|| {
                loop {
                    let Some(case) = jobs.lock().unwrap().pop() else { return };
                    let passed = passes(case);
                    if !passed.is_empty() {
                        found.lock().unwrap().insert(case, passed);
                    }
                }
            });
        }
    });
    let found = found.into_inner().unwrap();
    for passed in found.values().flatten() {
        println!("{passed}\n");
    }
    let found: Vec<_> = found.into_keys().collect();
    assert!(found.is_empty(), "{} cases pass with a peer that does nothing: {found:?}", found.len());
}

#[test]
fn no_case_on_a_target_passes_with_one_that_does_nothing() {
    expect_none(&target::list(), |case| {
        let is_of_login = OF_LOGIN.iter().any(|pattern| crate::names(pattern, case));
        let logs_in = (!is_of_login).then_some(IdleTarget::LogsIn);
        let idle = [IdleTarget::Silent, IdleTarget::Closing];
        idle.into_iter().chain(logs_in).filter_map(|target| target.passes(case)).collect()
    });
}

#[test]
fn no_case_on_an_initiator_passes_with_one_that_does_nothing() {
    expect_none(&initiator::list(), |case| {
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let listen = free.local_addr().unwrap();
        drop(free);
        let logs_in = driven::idle_command(&format!("iscsi://{listen}/{}/0", initiator::TARGET));
        ["true", &logs_in].into_iter().filter_map(|exec| passes_with(exec, listen, case)).collect()
    });
}

/// The cases that are about the login, which a target does that does nothing else.
const OF_LOGIN: &[&str] = &["login-*", "chap-*", "rfc7144-level", "rfc7144-range", "task-reporting"];
