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
        let found = bed.calibrate(1.0).unwrap();
        assert!((found.expected.unwrap() - megabytes * 1e6).abs() < 1e3, "{found:?}");
        assert!(found.deviation_percent().unwrap().abs() < 1.0, "MTU {mtu}: {found:?}");
    }
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
    let one = echo_rate(&bed, 4096, 1, Duration::from_millis(400)).unwrap();
    let many = echo_rate(&bed, 4096, 32, Duration::from_millis(400)).unwrap();
    // Three frames carry a block: the link allows at most 2900 of them in a second, at any depth.
    assert!(one.per_second > 300.0 && one.per_second < many.per_second, "{one:?} {many:?}");
    assert!((2300.0..3100.0).contains(&many.per_second), "{many:?}");
}

#[test]
fn processor_time_is_what_the_kernel_accounts_elsewhere() {
    let mut child = Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(1500));
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
    let ours = processor_time(child.id()).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    // utime and stime (proc_pid_stat(5)), in hundredths of a second.
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_ascii_whitespace().collect();
    let ticks: u64 = fields[11..13].iter().map(|word| word.parse::<u64>().unwrap()).sum();
    let (ours, theirs) = (ours.as_secs_f64(), to_f64(ticks) / 100.0);
    assert!(theirs > 0.1 && (ours - theirs).abs() < 0.05, "{ours} s, {theirs} s");
    assert!(processor_time(child.id()).is_err());
}

#[test]
fn framing_leaves_a_share_of_the_rate() {
    for (mtu, payload, wire) in [(1500, 1448.0, 1538.0), (9000, 8948.0, 9038.0)] {
        let link = LinkPlan { mtu, rate_bits: Some(1_000_000_000) };
        assert!((link.payload_rate().unwrap() - 125e6 * payload / wire).abs() < 1.0);
    }
    assert_eq!(LinkPlan::DEFAULT.payload_rate(), None);
}
