//! Compares a reactor with a minimal TCP server. Requests are 48 bytes and an optional payload (a write);
//! answers are 48 bytes and an optional payload (a read).
//!
//! `echo_bench` runs all servers in turn, each as a process of its own, and prints medians of five rounds.
//! `echo_bench serve KIND SHAPE` is one of these servers; it prints its port and ends when its input ends, so
//! that `strace -c` or `perf` can watch it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_precision_loss,
    reason = "a benchmark that cannot go on should say where and stop"
)]

use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, BufReader, IoSlice, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant as Wall};

use base::buffer::{Buf, Bytes, Pool};
use base::ether::FrameMachine;
use base::state_machine::{
    AcceptInfo, Action, ConnId, DisconnectReason, MediumId, PortalId, RxBuffer, StreamMachine,
};
use base::time::Instant;
use base::transmit::Transmit;
use drivers::config::{Config, EngineChoice};
use drivers::listener;
use drivers::reactor::Reactor;

const REQUEST: usize = 48;
const HEADER: usize = 48;
const ROUNDS: usize = 5;
const SPAN: Duration = Duration::from_millis(700);

/// The workloads: name, payload of a request in bytes, payload of an answer in bytes, requests under way.
const SHAPES: [(&str, usize, usize, usize); 7] = [
    ("4 KiB reads, depth 1", 0, 4096, 1),
    ("4 KiB reads, depth 32", 0, 4096, 32),
    ("1 MiB reads, depth 8", 0, 1 << 20, 8),
    ("4 KiB writes, depth 1", 4096, 0, 1),
    ("4 KiB writes, depth 32", 4096, 0, 32),
    ("256 KiB writes, depth 8", 256 << 10, 0, 8),
    ("1 MiB writes, depth 8", 1 << 20, 0, 8),
];

/// The state machine provides receive buffers for payloads of at least this size.
const LOAN_MIN: usize = 16 << 10;

/// With one request under way, client and server share a core: they never work at the same time, and the
/// benchmark measures the work of each request, not how long an idle core takes to wake up.
const CLIENT_CORE: &str = "1";
const SERVER_CORE: &str = "0";

const KINDS: [&str; 4] = ["bare-blocking", "bare-epoll", "epoll", "uring"];

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["serve", kind, shape] => serve(kind, Shape::numbered(shape)),
        ["client", port, shape, millis] => {
            let span = Duration::from_millis(millis.parse().unwrap());
            println!("{:.0} per second", load(port.parse().unwrap(), Shape::numbered(shape), span));
        }
        [] | ["--bench"] => (0..SHAPES.len()).for_each(compare),
        [shape] => compare(shape.parse().unwrap()),
        _ => eprintln!("usage: echo_bench [SHAPE | serve KIND SHAPE | client PORT SHAPE MILLIS]"),
    }
}

#[derive(Clone, Copy)]
struct Shape {
    request: usize,
    answer: usize,
    depth: usize,
}

impl Shape {
    fn numbered(number: &str) -> Self {
        let (_, request, answer, depth) = SHAPES[number.parse::<usize>().unwrap()];
        Self { request, answer, depth }
    }
}

fn compare(shape: usize) {
    let us = std::process::id().to_string();
    let pinned = Command::new("taskset").args(["-cp", CLIENT_CORE, &us]).stdout(Stdio::null()).status();
    assert!(pinned.is_ok_and(|status| status.success()), "taskset does not work");
    let mut rates: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
    for _ in 0..ROUNDS {
        for kind in KINDS {
            rates.entry(kind).or_default().push(round(kind, shape));
        }
    }
    let median = |kind: &str, pick: fn(&(f64, f64)) -> f64| {
        let mut all: Vec<f64> = rates[kind].iter().map(pick).collect();
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    };
    let bare = KINDS[..2].iter().map(|kind| median(kind, |it| it.0)).fold(0.0, f64::max);
    println!("{}:", SHAPES[shape].0);
    for kind in KINDS {
        let rate = median(kind, |it| it.0);
        let cpu = median(kind, |it| it.1);
        let share = 100.0 * rate / bare;
        println!("  {kind:14} {rate:9.0} /s  {share:4.0} % of the better bare one  {cpu:7.2} us CPU each");
    }
}

/// Returns requests per second, and the server's CPU time per request in microseconds.
fn round(kind: &str, number: usize) -> (f64, f64) {
    let mut server = Server::start(kind, number);
    let shape = Shape::numbered(&number.to_string());
    load(server.port, shape, SPAN / 7);
    let before = server.cpu();
    let start = Wall::now();
    let rate = load(server.port, shape, SPAN);
    let count = rate * start.elapsed().as_secs_f64();
    (rate, (server.cpu() - before) * 1e6 / count)
}

struct Server {
    child: Child,
    port: u16,
}

impl Server {
    fn start(kind: &str, shape: usize) -> Self {
        let mut child = Command::new("taskset")
            .args(["-c", if SHAPES[shape].3 == 1 { CLIENT_CORE } else { SERVER_CORE }])
            .arg(std::env::current_exe().unwrap())
            .args(["serve", kind, &shape.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        Self { child, port: line.trim().parse().unwrap() }
    }

    /// Returns the CPU time used so far, in seconds.
    fn cpu(&mut self) -> f64 {
        let path = format!("/proc/{}/schedstat", self.child.id());
        let text = std::fs::read_to_string(path).unwrap();
        text.split_whitespace().next().unwrap().parse::<f64>().unwrap() / 1e9
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// Keeps requests under way for `span`. Returns how many were answered per second.
fn load(port: u16, shape: Shape, span: Duration) -> f64 {
    let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_nodelay(true).unwrap();
    let requests = vec![1; (REQUEST + shape.request) * shape.depth];
    let mut buffer = vec![0; 1 << 20];
    let (mut received, mut answered) = (0, 0);
    let start = Wall::now();
    let deadline = start + span;
    let mut sender = Sender { stream: &stream, left: requests.len() };
    // A write that the socket does not accept must not keep this client from reading.
    stream.set_nonblocking(true).unwrap();
    while Wall::now() < deadline {
        sender.push(&requests);
        match (&stream).read(&mut buffer) {
            Ok(count) => {
                received += count;
                let complete = received / (HEADER + shape.answer);
                received %= HEADER + shape.answer;
                answered += complete;
                sender.left += complete * (REQUEST + shape.request);
            }
            Err(why) if why.kind() == std::io::ErrorKind::WouldBlock => {
                let events = if sender.left > 0 {
                    rustix::event::PollFlags::IN | rustix::event::PollFlags::OUT
                } else {
                    rustix::event::PollFlags::IN
                };
                let mut fds = [rustix::event::PollFd::new(&stream, events)];
                rustix::event::poll(&mut fds, None).unwrap();
            }
            Err(_) => break,
        }
    }
    answered as f64 / start.elapsed().as_secs_f64()
}

struct Sender<'a> {
    stream: &'a TcpStream,
    left: usize,
}

impl Sender<'_> {
    fn push(&mut self, requests: &[u8]) {
        while self.left > 0 {
            match self.stream.write(&requests[..self.left.min(requests.len())]) {
                Ok(count) => self.left -= count,
                Err(why) if why.kind() == std::io::ErrorKind::WouldBlock => return,
                Err(why) => panic!("{why}"),
            }
        }
    }
}

fn serve(kind: &str, shape: Shape) {
    let listening = listener::open("127.0.0.1:0".parse().unwrap()).unwrap();
    println!("{}", listening.local_addr().unwrap().port());
    std::thread::spawn(|| {
        // The process ends when its input ends.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    match kind {
        "bare-blocking" => bare_blocking(&listening, shape),
        "bare-epoll" => bare_epoll(&listening, shape),
        "epoll" => reactor(listening, EngineChoice::Epoll, shape),
        "uring" => reactor(listening, EngineChoice::Uring, shape),
        other => panic!("no server {other}"),
    }
}

fn bare_blocking(listening: &TcpListener, shape: Shape) {
    loop {
        let (mut stream, _) = listening.accept().unwrap();
        stream.set_nodelay(true).unwrap();
        let mut bare = Bare::new(shape);
        while let Ok(count @ 1..) = stream.read(&mut bare.buffer) {
            if bare.answer(&mut stream, count).is_err() {
                break;
            }
        }
    }
}

fn bare_epoll(listening: &TcpListener, shape: Shape) {
    use rustix::buffer::spare_capacity;
    use rustix::event::epoll;
    loop {
        let (mut stream, _) = listening.accept().unwrap();
        stream.set_nodelay(true).unwrap();
        let set = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let flags = epoll::EventFlags::IN;
        epoll::add(&set, &stream, epoll::EventData::new_u64(0), flags).unwrap();
        let mut events = Vec::with_capacity(16);
        let mut bare = Bare::new(shape);
        loop {
            epoll::wait(&set, spare_capacity(&mut events), None).unwrap();
            events.clear();
            match stream.read(&mut bare.buffer) {
                Ok(count @ 1..) if bare.answer(&mut stream, count).is_ok() => {}
                _ => break,
            }
        }
    }
}

/// The processing of received bytes that both minimal servers share.
struct Bare {
    buffer: Vec<u8>,
    pending: usize,
    header: [u8; HEADER],
    payload: Vec<u8>,
    request: usize,
}

impl Bare {
    fn new(shape: Shape) -> Self {
        let buffer = vec![0; 256 << 10];
        Self {
            buffer,
            pending: 0,
            header: [7; HEADER],
            payload: vec![9; shape.answer],
            request: REQUEST + shape.request,
        }
    }

    fn answer(&mut self, stream: &mut TcpStream, count: usize) -> std::io::Result<()> {
        self.pending += count;
        let answers = self.pending / self.request;
        self.pending %= self.request;
        let mut slices = Vec::with_capacity(2 * answers);
        for _ in 0..answers {
            slices.push(IoSlice::new(&self.header));
            slices.push(IoSlice::new(&self.payload));
        }
        let mut left = slices.as_mut_slice();
        while !left.is_empty() {
            let sent = stream.write_vectored(left)?;
            IoSlice::advance_slices(&mut left, sent);
        }
        Ok(())
    }
}

fn reactor(listening: TcpListener, engine: EngineChoice, shape: Shape) {
    let mut reactor = Reactor::new(&Config { engine, ..Config::default() }).unwrap();
    reactor.listen(listening, PortalId(0)).unwrap();
    let pool = reactor.pool().clone();
    reactor.run(&mut Echo::new(shape, pool)).unwrap();
}

/// The same server as a state machine.
struct Echo {
    conns: BTreeMap<ConnId, Talk>,
    actions: VecDeque<Action>,
    payload: Bytes,
    shape: Shape,
    pool: Pool,
}

#[derive(Default)]
struct Talk {
    /// How many bytes of the next header were received.
    header: usize,
    /// The payload that is being received.
    payload: Option<Buf>,
    answers: usize,
}

impl Echo {
    fn new(shape: Shape, pool: Pool) -> Self {
        let payload = Bytes::copied_from(&vec![9; shape.answer]);
        Self { conns: BTreeMap::new(), actions: VecDeque::new(), payload, shape, pool }
    }

    fn take(&mut self, conn: ConnId, mut bytes: &[u8]) {
        let talk = self.conns.get_mut(&conn).unwrap();
        let before = talk.answers;
        while !bytes.is_empty() {
            if let Some(buf) = &mut talk.payload {
                let taken = bytes.len().min(self.shape.request - buf.len());
                buf.append(&bytes[..taken]);
                bytes = &bytes[taken..];
                talk.finish(self.shape.request, &self.pool);
                continue;
            }
            let taken = bytes.len().min(REQUEST - talk.header);
            talk.header += taken;
            bytes = &bytes[taken..];
            if talk.header == REQUEST {
                talk.header = 0;
                talk.payload = Some(self.pool.take(self.shape.request));
                talk.finish(self.shape.request, &self.pool);
            }
        }
        self.ask(conn, before);
    }

    fn ask(&mut self, conn: ConnId, before: usize) {
        if before == 0 && self.conns[&conn].answers > 0 {
            self.actions.push_back(Action::Transmit(conn));
        }
    }
}

impl Talk {
    fn finish(&mut self, whole: usize, pool: &Pool) {
        if let Some(buf) = self.payload.take_if(|buf| buf.len() == whole) {
            pool.recycle_buf(buf);
            self.answers += 1;
        }
    }
}

impl FrameMachine for Echo {}

impl StreamMachine for Echo {
    fn connected(&mut self, _: Instant, conn: ConnId, _: &AcceptInfo) {
        self.conns.insert(conn, Talk::default());
    }

    fn received(&mut self, _: Instant, conn: ConnId, bytes: &[u8]) {
        self.take(conn, bytes);
    }

    fn take_rx_buffer(&mut self, conn: ConnId) -> Option<RxBuffer> {
        let talk = self.conns.get_mut(&conn).unwrap();
        let want = self.shape.request - talk.payload.as_ref()?.len();
        if want < LOAN_MIN {
            return None;
        }
        Some(RxBuffer { buf: talk.payload.take()?, len_max: want })
    }

    fn return_rx_buffer(&mut self, _: Instant, conn: ConnId, rx_buffer: RxBuffer) {
        let talk = self.conns.get_mut(&conn).unwrap();
        let before = talk.answers;
        talk.payload = Some(rx_buffer.buf);
        talk.finish(self.shape.request, &self.pool);
        self.ask(conn, before);
    }

    fn transmit(&mut self, _: Instant, conn: ConnId, out: &mut Transmit) {
        let talk = self.conns.get_mut(&conn).unwrap();
        while talk.answers > 0 && !out.is_full() {
            out.put(&[7; HEADER]);
            out.put_shared(self.payload.clone());
            talk.answers -= 1;
        }
        if talk.answers > 0 {
            self.actions.push_back(Action::Transmit(conn));
        }
    }

    fn disconnected(&mut self, _: Instant, conn: ConnId, _: DisconnectReason) {
        self.conns.remove(&conn);
    }

    fn medium_ready(&mut self, _: Instant, _: MediumId) {}

    fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    fn handle_timeout(&mut self, _: Instant) {}
}
