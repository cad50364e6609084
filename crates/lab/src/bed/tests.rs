//! Beds need the rights to create namespaces: each test runs in a process of its own that is root of a user
//! namespace, unless this process is root already.

use std::process::Command;
use std::time::Duration;

use super::*;

const INSIDE: &str = "TARGE_TEST_INSIDE_NAMESPACE";

/// Returns whether this process may create beds. If it may not, the test runs in a process that may, and its
/// failure is this one's; where that is not possible either, the test is skipped and says so.
fn may_create_beds(test: &str) -> bool {
    match Bed::create() {
        Ok(_) => return true,
        Err(why) => assert!(is_not_permitted(&why) && std::env::var_os(INSIDE).is_none(), "{why}"),
    }
    let unshare = |arguments: &[&std::ffi::OsStr]| {
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--net", "--"]).args(arguments).env(INSIDE, "1").output()
    };
    match unshare(&["true".as_ref()]) {
        Ok(output) if output.status.success() => {}
        failed => {
            eprintln!("skipped: no user namespace: {failed:?}");
            return false;
        }
    }
    let program = std::env::current_exe().unwrap();
    let arguments = [program.as_os_str(), "--exact".as_ref(), test.as_ref(), "--nocapture".as_ref()];
    let output = unshare(&arguments).unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&said));
    false
}

/// Returns the interfaces of the calling thread's network namespace.
fn interfaces() -> Vec<String> {
    let text = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    text.lines().skip(2).filter_map(|line| Some(line.split_once(':')?.0.trim().to_owned())).collect()
}

#[test]
fn a_shaped_link_carries_the_payload_of_the_wire() {
    if !may_create_beds("bed::tests::a_shaped_link_carries_the_payload_of_the_wire") {
        return;
    }
    let outside = interfaces();
    let mut bed = Bed::create().unwrap();
    assert_eq!(bed.initiator().run(interfaces).unwrap(), ["lo", "eth0"]);
    for (mtu, megabytes) in [(1500, 11.768), (9000, 12.375)] {
        // A tenth of a gigabit leaves processors enough on a machine that does other work too.
        bed.shape(LinkPlan { mtu, rate_bits: Some(100_000_000) }).unwrap();
        // Another program may keep the shaper from its time, but not five times in a row.
        let exact = (0..5).map(|_| bed.calibrate(0.7).unwrap()).find(|found| {
            println!("MTU {mtu}: {found:?}");
            assert!((found.expected.unwrap() - megabytes * 1e6).abs() < 1e3);
            let deviation = found.deviation_percent().unwrap();
            // Nothing makes a link faster than the wire; data that a busy machine left in buffers seems to.
            assert!(deviation < 5.0);
            deviation.abs() < 1.0
        });
        assert!(exact.is_some());
    }
    bed.shape(LinkPlan { mtu: MTU_MAX, rate_bits: Some(100_000_000) }).unwrap();
    let is_near = (0..5).any(|_| {
        let found = bed.calibrate(1.0).unwrap();
        println!("the longest frames: {found:?}");
        found.deviation_percent().unwrap().abs() < 5.0
    });
    assert!(is_near, "the longest frames");
    bed.shape(LinkPlan::DEFAULT).unwrap();
    let found = bed.calibrate(0.2).unwrap();
    assert!(found.to_target > 50e6 && found.deviation_percent().is_none(), "{found:?}");
    drop(bed);
    assert_eq!(interfaces(), outside);
}

#[test]
fn an_echo_answers_every_request() {
    if !may_create_beds("bed::tests::an_echo_answers_every_request") {
        return;
    }
    let mut bed = Bed::create().unwrap();
    bed.shape(LinkPlan { mtu: 1500, rate_bits: Some(100_000_000) }).unwrap();
    let span = Duration::from_millis(400);
    // Other programs may keep the bed from its time, but not five times in a row.
    let measured = |what: &dyn Fn() -> Echo, rates: std::ops::Range<f64>| {
        let found: Vec<Echo> = (0..5).map(|_| what()).collect();
        assert!(found.iter().all(|echo| echo.per_second < rates.end), "{found:?}");
        *found.iter().find(|echo| rates.contains(&echo.per_second)).unwrap_or_else(|| panic!("{found:?}"))
    };
    // Three frames carry a block: the link allows at most 2900 of them in a second, at any depth.
    measured(&|| echo_rate(&bed, 4096, 1, span).unwrap(), 100.0..3100.0);
    let many = measured(&|| echo_rate(&bed, 4096, 32, span).unwrap(), 100.0..3100.0);
    assert!((many.latency_us * many.per_second / 32e6 - 1.0).abs() < 1e-9, "{many:?}");
    // Blocks of requests take as much of the link as blocks of answers. A whole request can be longer than
    // what is sent at once.
    measured(&|| write_echo_rate(&bed, 4096, 32, span).unwrap(), 100.0..3100.0);
    measured(&|| write_echo_rate(&bed, 1 << 20, 2, span).unwrap(), 1.0..16.0);
}

#[test]
fn framing_leaves_a_share_of_the_rate() {
    for (mtu, payload, wire) in [(1500, 1448.0, 1538.0), (9000, 8948.0, 9038.0)] {
        let link = LinkPlan { mtu, rate_bits: Some(1_000_000_000) };
        assert!((link.payload_rate().unwrap() - 125e6 * payload / wire).abs() < 1.0);
    }
    assert_eq!(LinkPlan::DEFAULT.payload_rate(), None);
}
