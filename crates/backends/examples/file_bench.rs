//! Measures a file as a store, without a network: `file_bench PATH [direct]` creates PATH with 256 MiB and
//! prints operations per second and CPU time per operation, for each engine, medians of five rounds.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_precision_loss,
    reason = "a benchmark that cannot go on should say where and stop"
)]

use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::{Duration, Instant as Wall};

use backends::open::{Allocation, FileSpec};
use backends::store::FileStore;
use base::buffer::DataList;
use base::ether::FrameMachine;
use base::rng::Rng;
use base::state_machine::{MediumId, NoStreams};
use drivers::config::{Config, EngineChoice};
use drivers::reactor::Reactor;
use store::Store;
use store::api::{Durability, Op, OpAction, OpId, OpOutput};

const SIZE: u64 = 256 << 20;
const ROUNDS: usize = 5;
const SPAN: Duration = Duration::from_millis(400);

/// Name, length in bytes, queue depth, and for writes their durability.
const SHAPES: [(&str, usize, usize, Option<Durability>); 7] = [
    ("4 KiB reads, depth 1", 4096, 1, None),
    ("4 KiB reads, depth 32", 4096, 32, None),
    ("1 MiB reads, depth 8", 1 << 20, 8, None),
    ("4 KiB writes, depth 1", 4096, 1, Some(Durability::Cached)),
    ("4 KiB writes, depth 32", 4096, 32, Some(Durability::Cached)),
    ("1 MiB writes, depth 8", 1 << 20, 8, Some(Durability::Cached)),
    ("4 KiB stable writes, depth 32", 4096, 32, Some(Durability::Stable)),
];

fn main() {
    let mut words = std::env::args().skip(1);
    let path = PathBuf::from(words.next().expect("usage: file_bench PATH [direct]"));
    let direct = words.next().is_some();
    let spec = FileSpec {
        path,
        size: Some(SIZE),
        allocation: Allocation::Sparse,
        read_only: false,
        direct,
        write_cache: true,
    };
    // Writes everything once, so that reads find data and writes need no new storage.
    measure(&spec, EngineChoice::Epoll, (1 << 20, 8, Some(Durability::Cached)), true);
    for (name, len, depth, write) in SHAPES {
        println!("{name}:");
        for engine in [EngineChoice::Epoll, EngineChoice::Uring] {
            let mut rounds: Vec<_> =
                (0..ROUNDS).map(|_| measure(&spec, engine, (len, depth, write), false)).collect();
            rounds.sort_by(|a, b| a.0.total_cmp(&b.0));
            let (rate, cpu, enters) = rounds[ROUNDS / 2];
            println!("  {engine:?}: {rate:9.0} /s  {cpu:7.2} us CPU each  {enters:6.3} waits each");
        }
    }
}

/// Returns operations per second, CPU time of the whole process per operation in microseconds, and waits per
/// operation.
fn measure(
    spec: &FileSpec,
    engine: EngineChoice,
    (len, depth, write): (usize, usize, Option<Durability>),
    whole: bool,
) -> (f64, f64, f64) {
    let mut reactor = Reactor::new(&Config { engine, ..Config::default() }).unwrap();
    let mut store = FileStore::new(spec.open().unwrap(), reactor.files().queue(MediumId(0)));
    let mut rng = Rng::from_seed(7);
    let mut spare: VecDeque<DataList> = VecDeque::new();
    let mut buf = reactor.pool().take(len);
    buf.append_zeros(len);
    let data = DataList::from(buf.freeze());
    let places = SIZE / u64::try_from(len).unwrap();
    let (mut under_way, mut done, mut started) = (0, 0_u64, 0_u64);
    let (start, cpu) = (Wall::now(), cpu_us());
    loop {
        let timed_out = !whole && start.elapsed() >= SPAN;
        let over = |started| timed_out || (whole && started >= places);
        while under_way < depth && !over(started) {
            let place = if whole { started } else { rng.below(places) };
            let at = place * u64::try_from(len).unwrap();
            let action = match write {
                None => OpAction::Read { at, len },
                Some(durability) => OpAction::Write { at, data: data.clone(), durability },
            };
            store.submit(Op { id: OpId(started), action });
            started += 1;
            under_way += 1;
        }
        while let Some(completion) = store.poll() {
            match completion.result.unwrap() {
                OpOutput::Data(data) => spare.push_back(data),
                OpOutput::Done(_) | OpOutput::MapStatus(_) | OpOutput::Response(_) => {}
            }
            under_way -= 1;
            done += 1;
        }
        for data in spare.drain(..) {
            data.into_parts().for_each(|part| reactor.pool().recycle(part));
        }
        if over(started) && under_way == 0 {
            break;
        }
        if under_way == depth || over(started) {
            reactor.run_once(&mut Nobody, None).unwrap();
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    let count = done as f64;
    (count / seconds, (cpu_us() - cpu) / count, reactor.stats().enters as f64 / count)
}

/// Returns the CPU time of this process in microseconds.
fn cpu_us() -> f64 {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let texts = tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("schedstat")));
    let nanos = |text: String| text.split_whitespace().next().unwrap().parse::<f64>().unwrap();
    texts.map(|text| text.map_or(0.0, nanos)).sum::<f64>() / 1e3
}

struct Nobody;

impl FrameMachine for Nobody {}

impl NoStreams for Nobody {}
