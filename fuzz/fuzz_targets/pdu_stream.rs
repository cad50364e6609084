//! Sequences of PDUs and raw bytes to a target that is logged in to, with a layer above that keeps to its
//! contract.
//!
//! The first byte says what kind of session; each operation is a PDU that is framed here (so that digests do
//! not stand in the way), raw bytes, something that the layer above does, or time that passes.
#![no_main]

use std::collections::VecDeque;

use base::buffer::{Bytes, Pool};
use base::state_machine::{Action, ConnId, DisconnectReason};
use base::time::{Duration, Instant};
use base::transmit::Transmit;
use ground::{Operations, Site, TARGET, arrival};
use iscsi::digest::Crc32c;
use iscsi::pdu::login_request::LoginRequest;
use iscsi::pdu::{BHS_LEN, Bhs, Itt, PduHeader};
use iscsi::serial::{CmdSn, StatSn};
use iscsi::target::contract::Event;
use iscsi::target::engine::{Engine, Limits};
use libfuzzer_sys::fuzz_target;
use transport::target::{Command, Finish, TargetTransport, TmfIndication};
use transport::task_management::TmfResult;

const CONN: ConnId = ConnId(0);
const DATA: [u8; 4096] = [0x5a; 4096];

struct World {
    engine: Engine,
    site: Site,
    pool: Pool,
    now: Instant,
    digests: bool,
    held: VecDeque<(Command, u32)>,
    manages: VecDeque<TmfIndication>,
    over: bool,
}

fuzz_target!(|input: &[u8]| {
    let Some((first, rest)) = input.split_first() else { return };
    let mut world = World::logged_in(*first);
    for (which, bytes) in Operations::of(rest) {
        match which >> 6 {
            0 => world.send(bytes),
            1 => world.feed(bytes),
            2 => world.serve(which, bytes),
            _ => world.pass(Duration::from_millis(u64::from(which & 0x3f) * 200)),
        }
        if world.over {
            break;
        }
    }
    world.end();
});

impl World {
    fn logged_in(first: u8) -> Self {
        let pool = Pool::new(1 << 20);
        // Little of everything, so that every limit is met.
        let limits = Limits {
            queue_depth: 4,
            data_out_bytes_max: 64 << 10,
            unsent_bytes_max: 8192,
            ..Limits::default()
        };
        let mut world = Self {
            engine: Engine::new(limits, pool.clone()),
            site: Site::from_byte(0),
            pool,
            now: Instant::ORIGIN,
            digests: false,
            held: VecDeque::new(),
            manages: VecDeque::new(),
            over: false,
        };
        world.engine.connected(world.now, CONN, &arrival());
        let kind =
            if first & 1 == 0 { format!("TargetName={TARGET}") } else { "SessionType=Discovery".into() };
        let order = if first & 2 == 0 { "Yes" } else { "No" };
        let digest = if first & 4 == 0 { "None" } else { "CRC32C" };
        let text = [
            "InitiatorName=iqn.2026-11.com.example:host",
            &kind,
            &format!("HeaderDigest={digest}"),
            &format!("DataDigest={digest}"),
            &format!("InitialR2T={order}"),
            "iSCSIProtocolLevel=2",
            "",
        ]
        .join("\0");
        let request = LoginRequest {
            transit: true,
            continues: false,
            csg: 1,
            nsg: 3,
            version_max: 0,
            version_min: 0,
            isid: [0x80, 0, 0, 0, 0, 1],
            tsih: 0,
            itt: Itt(0),
            cid: 0,
            cmd_sn: CmdSn(1),
            exp_stat_sn: StatSn(0),
        };
        world.send(&[&request.encode().to_bytes()[..], text.as_bytes()].concat());
        world.digests = first & 4 != 0;
        assert!(!world.over, "the login succeeds");
        world
    }

    /// Sends a header and data as a PDU with right lengths and digests.
    fn send(&mut self, bytes: &[u8]) {
        let Some((header, data)) = bytes.split_first_chunk::<BHS_LEN>() else { return };
        let bhs = Bhs::from_bytes(*header).with_ahs_len(0).with_data_len(data.len());
        let mut out = bhs.to_bytes().to_vec();
        if self.digests {
            out.extend(Crc32c::of(&out));
        }
        let start = out.len();
        out.extend_from_slice(data);
        out.resize(start + data.len().next_multiple_of(4), 0);
        if self.digests && !data.is_empty() {
            let crc = Crc32c::of(&out[start..]);
            out.extend(crc);
        }
        self.feed(&out);
    }

    fn feed(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        if let Some(mut loan) = self.engine.take_rx_buffer(CONN) {
            let (into, behind) = bytes.split_at(loan.len_max.min(bytes.len()));
            loan.buf.append(into);
            rest = behind;
            self.engine.return_rx_buffer(self.now, CONN, loan, &self.site);
        }
        self.engine.received(self.now, CONN, rest, &self.site);
        self.drain();
    }

    fn pass(&mut self, span: Duration) {
        self.now = self.now.after(span);
        self.engine.handle_timeout(self.now);
        self.drain();
    }

    /// The layer above deals with its oldest request or task.
    fn serve(&mut self, which: u8, bytes: &[u8]) {
        if which & 1 != 0
            && let Some(manage) = self.manages.pop_front()
        {
            for (command, _) in self.held.drain(..) {
                self.engine.abort(command.task);
            }
            self.engine.finish_tmf(manage.tmf, TmfResult(bytes.first().copied().unwrap_or(0)));
        } else if let Some((command, sent)) = self.held.pop_front() {
            let room = command.data_in_len - sent;
            match which >> 1 & 3 {
                0 if command.data_out_len > 0 => {
                    self.engine.fetch(command.task, 0, command.data_out_len.min(32 << 10));
                    self.held.push_back((command, sent));
                }
                1 if room > 0 => {
                    let len = room.min(4096);
                    let data = Bytes::copied_from(&DATA[..len as usize]);
                    self.engine.data_in(command.task, sent, data.into());
                    self.held.push_back((command, sent + len));
                }
                2 => self.engine.abort(command.task),
                _ => {
                    let status = u8::from(!bytes.is_empty()) * 2;
                    self.engine.finish(
                        command.task,
                        Finish { status, sense: bytes, transferable: sent.into(), is_unit_attention: false },
                    );
                }
            }
        }
        self.drain();
    }

    fn drain(&mut self) {
        loop {
            while let Some(event) = self.engine.poll_event() {
                self.hear(event);
            }
            match self.engine.poll_action() {
                None => break,
                Some(Action::Transmit(conn)) => {
                    let mut out = Transmit::new();
                    self.engine.transmit(self.now, conn, &mut out);
                    out.clear(&self.pool);
                }
                Some(Action::Close(_) | Action::Abort(_)) => self.over = true,
            }
        }
        assert_eq!(self.engine.stats().bugs, 0);
    }

    fn hear(&mut self, event: Event) {
        match event {
            Event::Command(command) => self.held.push_back((command, 0)),
            Event::Tmf(manage) => self.manages.push_back(manage),
            Event::TaskGone { task } => {
                let before = self.held.len();
                self.held.retain(|(command, _)| command.task != task);
                assert_eq!(self.held.len() + 1, before, "a task goes once");
            }
            Event::SessionDown { .. } => self.manages.clear(),
            Event::SessionUp(_) | Event::DataOut { .. } | Event::TasksCleared { .. } => {}
        }
    }

    fn end(&mut self) {
        self.engine.disconnected(self.now, CONN, DisconnectReason::Closed);
        self.drain();
        assert!(self.held.is_empty());
        assert_eq!(self.engine.sessions().count(), 0);
    }
}
