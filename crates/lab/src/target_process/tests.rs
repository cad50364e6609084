use std::path::Path;
use std::process::Command;

use super::supervisor::Supervised;
use super::*;

fn supervised(serve: &str, teardown: &str) -> Supervised {
    Supervised { serve: serve.to_owned(), teardown: teardown.to_owned(), variables: Vec::new() }
}

fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < deadline, "{what} does not happen");
        std::thread::sleep(POLL_INTERVAL);
    }
}

fn is_running(process: u32) -> bool {
    processor_time(process).is_ok()
}

#[test]
fn a_program_that_does_not_serve_is_an_error_and_leaves_nothing() {
    let parent = PrivateDirectory::create().unwrap();
    for program in ["/bin/false", "/none"] {
        let directory = PrivateDirectory::create_in(parent.path()).unwrap();
        let started = TargetProcess::start(None, Command::new(program), directory);
        let result = started.and_then(|mut process| process.read_until(|_| Some(())));
        match result.unwrap_err() {
            LabError::Target(why) => assert!(program == "/bin/false" && why.contains("no message"), "{why}"),
            LabError::System { what, .. } => assert_eq!((program, what.as_str()), ("/none", "start /none")),
            LabError::Plan(why) => panic!("{why}"),
        }
    }
    assert_eq!(std::fs::read_dir(parent.path()).unwrap().count(), 0);
    assert!(ServedTarget::start(None, Path::new("/bin/false"), &[]).is_err());
}

#[test]
fn a_supervisor_ends_its_program_and_removes_the_directory() {
    let parent = PrivateDirectory::create().unwrap();
    let directory = PrivateDirectory::create_in(parent.path()).unwrap();
    let mark = parent.path().join("mark");
    let serve = "trap '' TERM; echo hello >&2; while :; do sleep 0.05; done";
    let process = supervised(serve, &format!("echo done > {}", mark.display()));
    let mut process = process.start(None, directory).unwrap();
    let program = process.process();
    wait_for("a message", || process.messages.last().contains("hello"));
    assert!(process.processes().contains(&program) && !process.processes().contains(&process.child.id()));
    assert!(is_running(program) && process.end().is_none() && process.resident() > 0);
    process.pause(true);
    drop(process);
    assert!(!is_running(program));
    assert!(mark.exists());
    assert_eq!(std::fs::read_dir(parent.path()).unwrap().count(), 1, "only the mark");
}

#[test]
fn a_program_that_dies_is_reported_with_its_signal_and_its_messages() {
    let directory = PrivateDirectory::create().unwrap();
    let mut process = supervised("echo oh >&2; kill -SEGV $$", "").start(None, directory).unwrap();
    let mut end = None;
    wait_for("the end", || {
        end = process.end();
        end.is_some()
    });
    let end = end.unwrap();
    assert!(end.starts_with("the target ended: signal: 11; ") && end.contains("oh"), "{end}");
}

#[test]
fn a_target_without_a_process_is_torn_down_too() {
    let parent = PrivateDirectory::create().unwrap();
    let directory = PrivateDirectory::create_in(parent.path()).unwrap();
    let process = supervised("", "echo $PWD > ../mark").start(None, directory).unwrap();
    assert!(process.processes().is_empty() && process.processor_time().is_err());
    drop(process);
    let told = std::fs::read_to_string(parent.path().join("mark")).unwrap();
    assert!(told.contains("targe-lab-"), "{told}");
    assert_eq!(std::fs::read_dir(parent.path()).unwrap().count(), 1, "only the mark");
}

#[test]
fn processor_time_is_what_the_kernel_accounts_elsewhere() {
    let mut child = Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
    let id = child.id();
    let stat = || std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap();
    // The state, then utime and stime (proc_pid_stat(5)), in hundredths of a second.
    let read = || {
        let stat = stat();
        let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_ascii_whitespace().collect();
        let ticks: u32 = fields[11..13].iter().map(|word| word.parse::<u32>().unwrap()).sum();
        (fields[0] == "T", f64::from(ticks) / 100.0)
    };
    wait_for("some processor time", || read().1 > 0.5);
    // Between two readings of a program that runs, a busy machine may let it run on.
    assert!(Command::new("kill").args(["-STOP", &id.to_string()]).status().unwrap().success());
    wait_for("the stop", || read().0);
    let ours = processor_time(id).unwrap();
    let (_, theirs) = read();
    child.kill().unwrap();
    child.wait().unwrap();
    let ours = ours.as_secs_f64();
    assert!((ours - theirs).abs() < 0.05, "{ours} s, {theirs} s");
    assert!(processor_time(id).is_err());
}

#[test]
fn switches_of_threads_that_sleep_are_counted() {
    let mut child = Command::new("sh").args(["-c", "while :; do sleep 0.01; done"]).spawn().unwrap();
    let mut switches = ThreadSwitches::default();
    switches.observe(&[child.id()], true);
    assert_eq!(switches.total(), 0);
    wait_for("ten switches", || {
        switches.observe(&[child.id()], false);
        switches.total() >= 10
    });
    child.kill().unwrap();
    child.wait().unwrap();
    switches.observe(&[child.id()], false);
    assert!(switches.total() >= 10, "a thread that has ended keeps its count");
}
