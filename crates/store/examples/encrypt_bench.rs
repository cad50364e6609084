//! Measures the cost of encryption at rest: bytes per second of processor time, memory with and without
//! encryption, in the same run. Plain reads of memory return references and copy nothing, so compare reads
//! with the speed of a network or a disk.
//!
//! ```sh
//! cargo run --release -p targe-store --example encrypt_bench
//! ```
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "an example")]

use base::buffer::{Bytes, DataList, Pool};
use store::Store;
use store::api::{Durability, Op, OpAction, OpId, OpOutput};
use store::encrypt::{DataUnit, Encrypted, KeyStore, MediaKey, Replaced};
use store::ram::Ram;

const LEN: u64 = 64 << 20;
const ROUND_NS: u64 = 200_000_000;
const ROUNDS: usize = 5;

struct NoKeeper;

impl KeyStore for NoKeeper {
    fn replace(&mut self) {}

    fn poll(&mut self) -> Option<Replaced> {
        Some(Replaced::Kept)
    }
}

fn main() {
    println!("{:>8} {:>6} {:>6} {:>12} {:>12} {:>8}", "length", "sector", "", "plain", "encrypted", "ratio");
    for len in [4096, 65536, 1 << 20] {
        for unit in [DataUnit::B512, DataUnit::B4096] {
            for writes in [false, true] {
                let mut figures: Vec<(f64, f64)> = (0..ROUNDS).map(|_| round(len, unit, writes)).collect();
                figures.sort_by(|a, b| (a.1 / a.0).total_cmp(&(b.1 / b.0)));
                let (plain, hidden) = figures.get(ROUNDS / 2).copied().unwrap();
                let kind = if writes { "write" } else { "read" };
                let ratio = hidden / plain;
                println!(
                    "{len:>8} {:>6} {kind:>6} {plain:>9.2} GB/s {hidden:>7.2} GB/s {ratio:>8.3}",
                    unit.bytes()
                );
            }
        }
    }
}

/// Returns the gigabytes per second of both media, measured one after the other.
fn round(len: usize, unit: DataUnit, writes: bool) -> (f64, f64) {
    let pool = Pool::new(8 << 20);
    let key = MediaKey::new([[1; 32], [2; 32]]);
    let plain = speed(&mut Ram::new(LEN), &pool, len, writes);
    let mut hidden = Encrypted::new(Ram::new(LEN), NoKeeper, &key, unit, pool.clone());
    (plain, speed(&mut hidden, &pool, len, writes))
}

fn speed(store: &mut dyn Store, pool: &Pool, len: usize, writes: bool) -> f64 {
    let wide = u64::try_from(len).unwrap();
    let data: DataList = Bytes::copied_from(&vec![0x5a; len]).into();
    for at in (0..LEN).step_by(len) {
        run(store, pool, OpAction::Write { at, data: data.clone(), durability: Durability::Cached });
    }
    let began = cpu_ns();
    let (mut at, mut moved) = (0, 0);
    while cpu_ns() - began < ROUND_NS {
        for _ in 0..64 {
            run(
                store,
                pool,
                if writes {
                    OpAction::Write { at, data: data.clone(), durability: Durability::Cached }
                } else {
                    OpAction::Read { at, len }
                },
            );
            at = (at + wide) % LEN;
            moved += wide;
        }
    }
    let spent = f64::from(u32::try_from(cpu_ns() - began).unwrap_or(u32::MAX));
    // The kilobytes of one round are far below 2^32.
    f64::from(u32::try_from(moved >> 10).unwrap_or(u32::MAX)) * 1024.0 / spent
}

/// Returns the processor time of this thread in nanoseconds, which other programs on the machine do not
/// affect.
fn cpu_ns() -> u64 {
    let facts = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    facts.split(' ').next().unwrap().parse().unwrap()
}

fn run(store: &mut dyn Store, pool: &Pool, action: OpAction) {
    store.submit(Op { id: OpId(1), action });
    match store.poll().unwrap().result.unwrap() {
        OpOutput::Data(data) | OpOutput::Done(data) => data.into_parts().for_each(|part| pool.recycle(part)),
        OpOutput::MapStatus(_) | OpOutput::Response(_) => {}
    }
}
