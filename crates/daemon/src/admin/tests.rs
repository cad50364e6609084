//! Tests of both ends of the admin socket, and of clients that must be refused.

use crate::mailbox::channel;
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::scratch::Scratch;

use super::api::{ErrorKind, Failure, Method, REQUEST_LEN_MAX, Request};
use super::change::{Client, PreparedChange};
use super::client::{ClientError, request};
use super::server::{AdminSocketError, BoundSocket, RequestHandler, Server};

/// Returns the method's name; fails for `luns`, and notes a prepared change for `prepare`.
struct Echo;

impl RequestHandler for Echo {
    fn handle(&self, request: Request, caller: &mut Client) -> Result<Value, Failure> {
        if request.method == Method::Prepare {
            let ((verdict, _), (_, outcome)) = (channel(), channel());
            caller.prepared = Some(PreparedChange { verdict, outcome });
        }
        match request.method {
            Method::Luns => {
                Err(Failure { kind: ErrorKind::Unavailable, message: "the reactor is silent".to_owned() })
            }
            method => Ok(json!({ "asked": method })),
        }
    }
}

impl Scratch {
    fn socket(&self) -> PathBuf {
        self.path().join("run/admin.sock")
    }

    fn serve(&self) -> Server {
        Server::start(&self.socket(), Arc::new(Echo)).unwrap()
    }
}

fn exchange(stream: &UnixStream, line: &[u8]) -> Value {
    { stream }.write_all(line).unwrap();
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).unwrap();
    serde_json::from_str(&answer).unwrap()
}

#[test]
fn answers_what_is_asked_and_passes_refusals_on() {
    let scratch = Scratch::new();
    let _server = scratch.serve();
    assert_eq!(request(&scratch.socket(), Method::Status).unwrap(), json!({ "asked": "status" }));
    assert_eq!(request(&scratch.socket(), Method::Sessions).unwrap(), json!({ "asked": "sessions" }));
    let refused = request(&scratch.socket(), Method::Luns).unwrap_err();
    assert!(matches!(refused, ClientError::Refused(Failure { kind: ErrorKind::Unavailable, .. })));
    assert_eq!(refused.to_string(), "the reactor is silent");
}

#[test]
fn a_daemon_that_prepares_to_take_over_accepts_no_client_and_leaves_the_socket() {
    let scratch = Scratch::new();
    let serving = scratch.serve();
    let path = scratch.socket();
    let prepare = || {
        let taken = BoundSocket::take_over(&path, serving.descriptors().unwrap(), None);
        taken.prepare(Arc::new(Silent)).unwrap()
    };
    for _ in 0..16 {
        let prepared = prepare();
        assert_eq!(request(&path, Method::Status).unwrap(), json!({ "asked": "status" }));
        drop(prepared);
    }
    assert!(path.exists(), "the other daemon serves on");
}

/// Refuses everything.
struct Silent;

impl RequestHandler for Silent {
    fn handle(&self, _: Request, _: &mut Client) -> Result<Value, Failure> {
        Err(Failure { kind: ErrorKind::Unavailable, message: "this daemon does not serve yet".to_owned() })
    }
}

#[test]
fn one_connection_asks_many_times_and_survives_nonsense() {
    let scratch = Scratch::new();
    let _server = scratch.serve();
    let stream = UnixStream::connect(scratch.socket()).unwrap();
    assert_eq!(exchange(&stream, b"{\"method\":\"status\"}\n"), json!({ "result": { "asked": "status" } }));
    for nonsense in [&b"\n"[..], b"{}\n", b"{\"method\":\"halt\"}\n", b"status\n", b"\xff\xfe\n", b"[[[[\n"] {
        assert_eq!(exchange(&stream, nonsense)["error"]["kind"], "malformed", "{nonsense:?}");
    }
    assert_eq!(
        exchange(&stream, b"{\"method\":\"sessions\"}\n"),
        json!({ "result": { "asked": "sessions" } })
    );
}

/// CVE-2021-27365: a message of the control plane was longer than the buffer for it.
#[test]
fn a_line_that_is_too_long_ends_the_conversation() {
    let scratch = Scratch::new();
    let _server = scratch.serve();
    let stream = UnixStream::connect(scratch.socket()).unwrap();
    assert_eq!(exchange(&stream, &[b' '; REQUEST_LEN_MAX])["error"]["kind"], "too-long");
    assert_eq!({ &stream }.read(&mut [0]).unwrap_or(0), 0);
}

#[test]
fn idle_clients_make_room_for_one_that_asks() {
    let scratch = Scratch::new();
    let _server = scratch.serve();
    let idle: Vec<UnixStream> = (0..16)
        .map(|_| {
            let stream = UnixStream::connect(scratch.socket()).unwrap();
            exchange(&stream, b"{\"method\":\"status\"}\n");
            stream
        })
        .collect();
    for _ in 0..3 {
        assert!(request(&scratch.socket(), Method::Status).is_ok());
    }
    // The client that was idle longest is disconnected; the client with the most recent request is not.
    assert_eq!({ &idle[0] }.read(&mut [0]).unwrap(), 0);
    assert_eq!(exchange(&idle[15], b"{\"method\":\"status\"}\n")["result"]["asked"], "status");
}

/// Answers a request when the test sends a signal on the channel.
struct Slow(std::sync::Mutex<crate::mailbox::Receiver<()>>, crate::mailbox::Sender<()>);

impl RequestHandler for Slow {
    fn handle(&self, _: Request, _: &mut Client) -> Result<Value, Failure> {
        self.1.send(()).unwrap();
        let _ = self.0.lock().unwrap().recv();
        Ok(json!({}))
    }
}

#[test]
fn a_paused_server_leaves_clients_to_another_process() {
    let scratch = Scratch::new();
    let server = scratch.serve();
    let connected = UnixStream::connect(scratch.socket()).unwrap();
    exchange(&connected, b"{\"method\":\"status\"}\n");
    server.pause(true);
    let [listener, _] = server.descriptors().unwrap();
    let listener = UnixListener::from(listener);
    // The server may accept one more before it pauses.
    let is_left = |_| {
        let _stream = UnixStream::connect(scratch.socket()).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
        listener.accept().is_ok()
    };
    assert!((0..50).any(is_left));
    exchange(&connected, b"{\"method\":\"status\"}\n");
    server.wait_for_responses(std::time::Duration::ZERO);
    server.pause(false);
    assert!(request(&scratch.socket(), Method::Status).is_ok());
}

#[test]
fn clients_that_wait_for_an_answer_keep_their_places() {
    let scratch = Scratch::new();
    let (go, wait) = channel();
    let (asked, seen) = channel();
    let answers = Slow(std::sync::Mutex::new(wait), asked);
    let _server = Server::start(&scratch.socket(), Arc::new(answers)).unwrap();
    let waiting: Vec<UnixStream> = (0..16)
        .map(|_| {
            let mut stream = UnixStream::connect(scratch.socket()).unwrap();
            stream.write_all(b"{\"method\":\"status\"}\n").unwrap();
            seen.recv().unwrap();
            stream
        })
        .collect();
    let refused = request(&scratch.socket(), Method::Status).unwrap_err();
    assert!(
        matches!(
            &refused,
            ClientError::Refused(Failure { kind: ErrorKind::Busy, .. }) | ClientError::Broken { .. }
        ),
        "{refused}"
    );
    drop(go);
    for stream in &waiting {
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).unwrap();
        assert_eq!(answer, "{\"result\":{}}\n");
    }
}

/// CVE-2018-14649: a management interface was open to everybody.
#[test]
fn only_the_owner_can_open_it() {
    let scratch = Scratch::new();
    let server = scratch.serve();
    let mode = |path: PathBuf| fs::symlink_metadata(path).unwrap().mode() & 0o777;
    assert_eq!(mode(server.path().to_path_buf()), 0o600);
    assert_eq!(mode(scratch.path().join("run")), 0o700);
    drop(server);
    fs::set_permissions(scratch.path().join("run"), Permissions::from_mode(0o750)).unwrap();
    let refused = Server::start(&scratch.socket(), Arc::new(Echo)).unwrap_err().to_string();
    assert!(refused.ends_with("(mode 750); it must have mode 700"), "{refused}");
    assert!(!scratch.socket().exists());
}

/// A group that no process of the tests is in, but those that say so.
const READERS: u32 = 54_321;

/// Asks as another user, with these groups. Credentials of Linux belong to threads.
fn ask_as_another(
    path: &std::path::Path,
    group: u32,
    others: &[u32],
    method: Method,
) -> Result<Value, ClientError> {
    use rustix::process::{Gid, Uid};
    let path = path.to_path_buf();
    let others: Vec<Gid> = others.iter().map(|group| Gid::from_raw(*group)).collect();
    let asks = move || {
        let (user, group) = (Uid::from_raw(65_534), Gid::from_raw(group));
        rustix::thread::set_thread_groups(&others).unwrap();
        rustix::thread::set_thread_res_gid(group, group, group).unwrap();
        rustix::thread::set_thread_res_uid(user, user, user).unwrap();
        request(&path, method)
    };
    std::thread::spawn(asks).join().unwrap()
}

#[test]
fn members_of_a_group_read_and_change_nothing() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can ask as another user");
        return;
    }
    let scratch = Scratch::new();
    fs::set_permissions(scratch.path(), Permissions::from_mode(0o711)).unwrap();
    let (path, run) = (scratch.socket(), scratch.path().join("run"));
    let server = BoundSocket::bind(&path, Some(READERS)).unwrap().serve(Arc::new(Echo)).unwrap();
    let access = |path: &PathBuf| {
        let found = fs::symlink_metadata(path).unwrap();
        (found.mode() & 0o777, found.gid())
    };
    assert_eq!((access(&path), access(&run)), ((0o660, READERS), (0o710, READERS)));
    for (group, others) in [(READERS, [].as_slice()), (65_534, &[7, READERS])] {
        for method in [Method::Status, Method::Sessions, Method::BoundLuns, Method::Events] {
            assert!(ask_as_another(&path, group, others, method).is_ok(), "{method:?}");
        }
        for method in [Method::Prepare, Method::Reload, Method::DropSessions, Method::Plan, Method::Upgrade] {
            let refused = ask_as_another(&path, group, others, method).unwrap_err().to_string();
            assert!(
                refused.starts_with("this user may only read the daemon's state"),
                "{method:?}: {refused}"
            );
        }
    }
    let denied = ask_as_another(&path, 65_534, &[7], Method::Status).unwrap_err();
    assert!(matches!(denied, ClientError::Denied { .. }), "{denied}");
    assert!(denied.to_string().contains("run the command with sudo"), "{denied}");
    assert!(request(&path, Method::Reload).is_ok());
    // A daemon that takes the socket over and has no such group admits none, whatever the socket's mode is.
    let taken = BoundSocket::take_over(&path, server.descriptors().unwrap(), None);
    server.pause(true);
    let taken = taken.serve(Arc::new(Echo)).unwrap();
    let refused = ask_as_another(&path, READERS, &[], Method::Status).unwrap_err().to_string();
    assert_eq!(refused, "the admin socket is for the user of the daemon and for root");
    drop((taken, server));
    // A start without the group closes both again; one with the group opens no directory with anything else.
    let server = scratch.serve();
    assert_eq!((access(&path).0, access(&run).0), (0o600, 0o700));
    drop(server);
    fs::write(run.join("other"), "").unwrap();
    let refused = BoundSocket::bind(&path, Some(READERS)).unwrap_err().to_string();
    assert!(refused.ends_with("so it must hold nothing else"), "{refused}");
}

#[test]
fn readers_keep_no_operator_out() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can ask as another user");
        return;
    }
    let scratch = Scratch::new();
    fs::set_permissions(scratch.path(), Permissions::from_mode(0o711)).unwrap();
    let path = scratch.socket();
    let _server = BoundSocket::bind(&path, Some(READERS)).unwrap().serve(Arc::new(Echo)).unwrap();
    let operator = UnixStream::connect(&path).unwrap();
    assert_eq!(exchange(&operator, b"{\"method\":\"status\"}\n")["result"]["asked"], "status");
    let place = path.clone();
    let crowd = std::thread::spawn(move || {
        let group = rustix::process::Gid::from_raw(READERS);
        rustix::thread::set_thread_res_gid(group, group, group).unwrap();
        let user = rustix::process::Uid::from_raw(65_534);
        rustix::thread::set_thread_res_uid(user, user, user).unwrap();
        (0..40)
            .map(|_| {
                let stream = UnixStream::connect(&place).unwrap();
                exchange(&stream, b"{\"method\":\"status\"}\n");
                stream
            })
            .collect::<Vec<_>>()
    });
    let crowd = crowd.join().unwrap();
    // The idle operator was disconnected by none of them.
    assert_eq!(exchange(&operator, b"{\"method\":\"reload\"}\n")["result"]["asked"], "reload");
    assert_eq!({ &crowd[0] }.read(&mut [0]).unwrap(), 0);
}

#[test]
fn a_directory_that_kubernetes_has_opened_for_its_group_is_closed_again() {
    let scratch = Scratch::new();
    let run = scratch.path().join("run");
    drop(scratch.serve());
    // Kubelet does this with each directory of a volume before each start of a pod with fsGroup.
    fs::set_permissions(&run, Permissions::from_mode(0o2770)).unwrap();
    let server = scratch.serve();
    assert_eq!(fs::metadata(&run).unwrap().mode() & 0o777, 0o700);
    drop(server);
    // A directory that is also used for something else is not changed.
    fs::write(run.join("other"), "").unwrap();
    fs::set_permissions(&run, Permissions::from_mode(0o2770)).unwrap();
    let refused = Server::start(&scratch.socket(), Arc::new(Echo)).unwrap_err().to_string();
    assert!(refused.ends_with("(mode 770); it must have mode 700"), "{refused}");
}

#[test]
fn a_live_daemon_is_left_alone_and_a_dead_one_replaced() {
    let scratch = Scratch::new();
    let server = scratch.serve();
    let second = Server::start(&scratch.socket(), Arc::new(Echo)).unwrap_err();
    assert!(matches!(second, AdminSocketError::AlreadyRunning { .. }), "{second}");
    assert!(request(&scratch.socket(), Method::Status).is_ok());
    drop(server);
    assert!(!scratch.socket().exists());
    assert!(matches!(request(&scratch.socket(), Method::Status), Err(ClientError::Absent { .. })));
    // A killed daemon leaves a socket without a listener.
    drop(UnixListener::bind(scratch.socket()).unwrap());
    assert!(matches!(request(&scratch.socket(), Method::Status), Err(ClientError::Absent { .. })));
    let _server = scratch.serve();
    assert!(request(&scratch.socket(), Method::Status).is_ok());
}

#[test]
fn whatever_else_stands_there_is_not_removed() {
    let scratch = Scratch::new();
    drop(scratch.serve());
    fs::write(scratch.socket(), "precious").unwrap();
    let refused = Server::start(&scratch.socket(), Arc::new(Echo)).unwrap_err().to_string();
    assert!(refused.ends_with("the file is not a socket"), "{refused}");
    assert_eq!(fs::read_to_string(scratch.socket()).unwrap(), "precious");
}

#[test]
fn a_path_too_long_for_a_socket_is_told_as_such() {
    let scratch = Scratch::new();
    let long = scratch.path().join("x".repeat(120));
    let refused = Server::start(&long, Arc::new(Echo)).unwrap_err().to_string();
    assert!(refused.contains("a Unix socket has at most 107"), "{refused}");
}

#[test]
fn an_answer_that_breaks_off_is_told_as_such() {
    let scratch = Scratch::new();
    drop(scratch.serve());
    let listener = UnixListener::bind(scratch.socket()).unwrap();
    let daemon = std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        BufReader::new(&stream).read_line(&mut String::new()).unwrap();
        { &stream }.write_all(b"{\"result\":").unwrap();
    });
    let error = request(&scratch.socket(), Method::Status).unwrap_err().to_string();
    assert!(error.ends_with("the daemon closed the connection"), "{error}");
    daemon.join().unwrap();
}

#[test]
fn a_client_with_a_prepared_change_is_not_disconnected_for_others() {
    let scratch = Scratch::new();
    let _server = scratch.serve();
    let (prepared, idle) = (scratch.socket(), scratch.socket());
    let prepared = UnixStream::connect(prepared).unwrap();
    assert_eq!(exchange(&prepared, b"{\"method\":\"prepare\"}\n")["result"]["asked"], "prepare");
    let others: Vec<UnixStream> = (0..40)
        .map(|_| {
            let other = UnixStream::connect(&idle).unwrap();
            assert_eq!(exchange(&other, b"{\"method\":\"status\"}\n")["result"]["asked"], "status");
            other
        })
        .collect();
    assert_eq!(exchange(&prepared, b"{\"method\":\"commit\"}\n")["result"]["asked"], "commit");
    drop(others);
}
