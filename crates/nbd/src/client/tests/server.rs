//! A server as a value.

use std::vec;
use std::vec::Vec;

use base::int_cast::{to_u32, to_usize};
use base::rng::Rng;

use crate::handshake::ExportInfo;
use crate::wire::{Cmd, Errno, FLAG_FUA, Head, Request, transmission};

/// Returns what an export of `len` bytes is that can do everything.
pub(super) fn info(len: u64) -> ExportInfo {
    ExportInfo {
        len,
        flags: transmission::HAS_FLAGS
            | transmission::SEND_FLUSH
            | transmission::SEND_FUA
            | transmission::SEND_TRIM
            | transmission::SEND_WRITE_ZEROES,
        block_len: 1,
        preferred_block_len: 4096,
        payload_len_max: 32 << 20,
        change_len_max: 1 << 31,
        structured: true,
        allocation_id: Some(1),
    }
}

pub(super) struct Server {
    pub(super) info: ExportInfo,
    /// What reads return, and what survives a death.
    pub(super) present: Vec<u8>,
    pub(super) durable: Vec<u8>,
    unflushed: Vec<(usize, Vec<u8>)>,
    input: Vec<u8>,
    held: Vec<(Request, Vec<u8>)>,
    /// Requests of connections that have ended while the server lives: it still works on them.
    left: Vec<(Request, Vec<u8>)>,
    /// Every request of all connections.
    pub(super) seen: Vec<Request>,
    pub(super) extents: Vec<(u32, u32)>,
    /// The errors of the next flushes, of the next changes, and of the next changes with FUA.
    pub(super) flush_errors: Vec<Errno>,
    pub(super) change_errors: Vec<Errno>,
    pub(super) fua_errors: Vec<Errno>,
    /// A change with FUA is one without it and a flush, as in nbdkit.
    pub(super) fua_flushes: bool,
}

impl Server {
    pub(super) fn new(info: ExportInfo) -> Self {
        let zeros = vec![0; to_usize(info.len)];
        Self {
            info,
            present: zeros.clone(),
            durable: zeros,
            unflushed: Vec::new(),
            input: Vec::new(),
            held: Vec::new(),
            left: Vec::new(),
            seen: Vec::new(),
            extents: vec![(512, 0)],
            flush_errors: Vec::new(),
            change_errors: Vec::new(),
            fua_errors: Vec::new(),
            fua_flushes: false,
        }
    }

    pub(super) fn receive(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
        while let Some(request) = Request::parse(&self.input) {
            let request = request.unwrap();
            let payload = if request.command == Cmd::WRITE { to_usize(request.len) } else { 0 };
            let Some(data) = self.input.get(Request::LEN..Request::LEN + payload) else { return };
            assert!(request.at + u64::from(request.len) <= self.info.len, "{request:?}");
            assert!(payload <= to_usize(self.info.payload_len_max), "{request:?}");
            let data = data.to_vec();
            self.input.drain(..Request::LEN + payload);
            self.seen.push(request);
            if request.command != Cmd::DISC {
                self.held.push((request, data));
            }
        }
    }

    pub(super) fn held(&self) -> usize {
        self.held.len()
    }

    /// Carries out one of the requests that wait, and returns its reply.
    pub(super) fn answer(&mut self, which: usize) -> Option<Vec<u8>> {
        if self.held.is_empty() {
            return None;
        }
        let (request, data) = self.held.remove(which % self.held.len());
        Some(self.carry_out(request, data))
    }

    /// Carries out one of the requests whose connection has ended.
    pub(super) fn carry_out_left(&mut self, which: usize) {
        if !self.left.is_empty() {
            let (request, data) = self.left.remove(which % self.left.len());
            self.carry_out(request, data);
        }
    }

    fn carry_out(&mut self, request: Request, data: Vec<u8>) -> Vec<u8> {
        let (from, len) = (to_usize(request.at), to_usize(request.len));
        let simple = |error| Head::simple(request.cookie, error).bytes().to_vec();
        match request.command {
            Cmd::READ => {
                let data = &self.present[from..from + len];
                let head = match self.info.structured {
                    true => Head::offset_data(request.cookie, request.at, request.len),
                    false => Head::simple(request.cookie, None),
                };
                [head.bytes(), data].concat()
            }
            Cmd::BLOCK_STATUS => {
                let words = self.extents.iter().flat_map(|(len, flags)| [*len, *flags]);
                let data: Vec<u8> = words.flat_map(u32::to_be_bytes).collect();
                [Head::block_status(request.cookie, to_u32(data.len())).bytes(), &data].concat()
            }
            Cmd::FLUSH => match self.flush_errors.pop() {
                Some(error) => {
                    // Like a system that reports a failed write-back once and forgets it.
                    self.unflushed.clear();
                    simple(Some(error))
                }
                None => {
                    self.write_back();
                    simple(None)
                }
            },
            _ if request.flags & FLAG_FUA != 0 && !self.fua_errors.is_empty() => {
                if self.fua_flushes {
                    self.unflushed.clear();
                }
                simple(self.fua_errors.pop())
            }
            _ => match self.change_errors.pop() {
                Some(error) => simple(Some(error)),
                None => {
                    let data = if request.command == Cmd::WRITE { data } else { vec![0; len] };
                    self.present[from..from + len].copy_from_slice(&data);
                    if request.flags & FLAG_FUA != 0 && !self.fua_flushes {
                        self.durable[from..from + len].copy_from_slice(&data);
                        self.unflushed.retain(|(at, old)| *at < from || at + old.len() > from + len);
                    } else {
                        self.unflushed.push((from, data));
                        if request.flags & FLAG_FUA != 0 {
                            self.write_back();
                        }
                    }
                    simple(None)
                }
            },
        }
    }

    fn write_back(&mut self) {
        for (at, data) in self.unflushed.drain(..) {
            self.durable[at..at + data.len()].copy_from_slice(&data);
        }
    }

    /// The connection ends.
    pub(super) fn disconnect(&mut self) {
        self.input.clear();
        self.left.append(&mut self.held);
    }

    /// The process ends. Of the changes that were not flushed, those stay that `keeps` chooses.
    pub(super) fn die(&mut self, keeps: Option<&mut Rng>) {
        let mut kept = self.durable.clone();
        if let Some(rng) = keeps {
            for (at, data) in &self.unflushed {
                if rng.chance(1, 2) {
                    kept[*at..*at + data.len()].copy_from_slice(data);
                }
            }
        }
        self.unflushed.clear();
        self.input.clear();
        self.held.clear();
        self.left.clear();
        (self.present, self.durable) = (kept.clone(), kept);
    }
}
