//! A relay between a suite and a true peer, which lets a mutant change the PDUs on their way.
//!
//! A thread for each direction of a connection reads whole PDUs. A mutant sees one PDU at a time, of all
//! connections of its case, so that it can keep a PDU of one connection and send it on another.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use iscsi::digest::Crc32c;
use iscsi::pdu::Opcode;

use crate::mutant::Breaks;
use crate::pdu::{EXP_CMD_SN, FINAL, HEADER_LEN, ITT, MAX_CMD_SN, Pdu, STAT_SN, STATUS};

/// The connections of a case, and the memory of its mutant.
pub(crate) struct Wire {
    links: Vec<Link>,
    /// The commands, by task tag.
    commands: HashMap<u32, Pdu>,
    /// PDUs that the mutant keeps for later.
    pub(crate) kept: Vec<Pdu>,
    /// A number that the mutant keeps.
    pub(crate) count: u32,
}

/// A connection.
struct Link {
    to_initiator: TcpStream,
    to_target: TcpStream,
    /// Whether the login has ended.
    in_full_feature: bool,
    /// The digests of headers and data that were agreed on.
    agreed: (bool, bool),
    /// The StatSN of the next response, and the latest ExpCmdSN and MaxCmdSN.
    counters: [u32; 3],
    /// The last command that came.
    command: Option<Pdu>,
    keeps_open: bool,
}

impl Wire {
    /// Sends a PDU on, to the side that its opcode is for.
    pub(crate) fn pass(&mut self, pdu: Pdu) {
        let Some(link) = self.links.get_mut(pdu.conn) else { return };
        let bytes = framed(&pdu, link.digests());
        let to = if pdu.is_from_target() { &mut link.to_initiator } else { &mut link.to_target };
        // The other end may be gone.
        let _ = to.write_all(&bytes);
    }

    /// Sends a SCSI Response to a command, as the target would.
    pub(crate) fn answer(&mut self, command: &Pdu, status: u8) {
        let mut response = Pdu::new(command.conn, Opcode::SCSI_RESPONSE);
        response.header[1] = FINAL;
        response.set(ITT, command.word(ITT));
        if status == 2 {
            response.make_aborted();
        }
        response.header[3] = status;
        self.say(response);
    }

    /// Sends a PDU of the target with its current counters.
    pub(crate) fn say(&mut self, mut pdu: Pdu) {
        let [stat_sn, exp_cmd_sn, max_cmd_sn] = self.counters(pdu.conn);
        pdu.set(STAT_SN, stat_sn);
        pdu.set(EXP_CMD_SN, exp_cmd_sn);
        pdu.set(MAX_CMD_SN, max_cmd_sn);
        self.pass(pdu);
    }

    /// Returns the StatSN of the next response on a connection, and its latest ExpCmdSN and MaxCmdSN.
    pub(crate) fn counters(&self, conn: usize) -> [u32; 3] {
        self.links[conn].counters
    }

    /// Returns the last command on a connection.
    pub(crate) fn command(&self, conn: usize) -> Option<Pdu> {
        self.links.get(conn)?.command.clone()
    }

    /// Returns the command that a PDU belongs to.
    pub(crate) fn command_of(&self, pdu: &Pdu) -> Option<Pdu> {
        self.commands.get(&pdu.word(ITT)).cloned()
    }

    pub(crate) fn is_in_full_feature(&self, conn: usize) -> bool {
        self.links[conn].in_full_feature
    }

    /// Leaves a connection open when the other side closes it.
    pub(crate) fn keep_open(&mut self, conn: usize) {
        self.links[conn].keeps_open = true;
    }

    /// Closes a connection on both sides.
    pub(crate) fn close(&mut self, conn: usize) {
        let link = &mut self.links[conn];
        link.keeps_open = false;
        let _ = link.to_initiator.shutdown(Shutdown::Both);
        let _ = link.to_target.shutdown(Shutdown::Both);
    }

    /// Learns from a PDU before the mutant sees it.
    fn note(&mut self, pdu: &mut Pdu) {
        let Some(link) = self.links.get_mut(pdu.conn) else { return };
        if pdu.is(Opcode::SCSI_COMMAND) {
            self.commands.insert(pdu.word(ITT), pdu.clone());
            link.command = Some(pdu.clone());
        }
        pdu.operation = self.commands.get(&pdu.word(ITT)).map(|command| command.header[32]);
        if pdu.is_from_target() {
            let uses_stat_sn = match pdu.opcode() {
                Opcode::DATA_IN => pdu.flags() & STATUS != 0,
                Opcode::R2T => false,
                Opcode::NOP_IN => pdu.word(ITT) != u32::MAX,
                _ => true,
            };
            let stat_sn = pdu.word(STAT_SN).wrapping_add(u32::from(uses_stat_sn));
            link.counters = [stat_sn, pdu.word(EXP_CMD_SN), pdu.word(MAX_CMD_SN)];
        }
        if pdu.is(Opcode::LOGIN_RESPONSE) {
            for (key, agreed) in [("HeaderDigest", &mut link.agreed.0), ("DataDigest", &mut link.agreed.1)] {
                if let Some(value) = pdu.value(key) {
                    *agreed = value == "CRC32C";
                }
            }
        }
    }
}

impl Link {
    const fn digests(&self) -> (bool, bool) {
        if self.in_full_feature { self.agreed } else { (false, false) }
    }
}

/// Returns the bytes of a PDU, with digests that are right unless it is damaged.
fn framed(pdu: &Pdu, (header_digest, data_digest): (bool, bool)) -> Vec<u8> {
    let mut header = pdu.header;
    header[4] = (pdu.ahs.len() / 4) as u8;
    header[5..8].copy_from_slice(&(pdu.data.len() as u32).to_be_bytes()[1..]);
    let mut out = [&header[..], &pdu.ahs].concat();
    if header_digest {
        out.extend(digest(&out.clone(), pdu.damaged_header));
    }
    if !pdu.data.is_empty() {
        let mut data = pdu.data.clone();
        data.resize(data.len().next_multiple_of(4), 0);
        out.extend_from_slice(&data);
        if data_digest {
            out.extend(digest(&data, pdu.damaged_data));
        }
    }
    out
}

fn digest(bytes: &[u8], is_damaged: bool) -> [u8; 4] {
    let mut digest = Crc32c::of(bytes);
    digest[0] ^= u8::from(is_damaged);
    digest
}

/// A relay that a mutant acts in. It ends when it is dropped.
pub(crate) struct Relay {
    pub(crate) address: SocketAddr,
    stop: Arc<AtomicBool>,
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // Wakes the thread that accepts connections.
        let _ = TcpStream::connect(self.address);
    }
}

impl Relay {
    /// Relays connections to `to`. The mutant, if any, leaves the first `spared` of them alone.
    pub(crate) fn start(to: SocketAddr, spared: usize, breaks: Option<Breaks>) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let wire = Wire { links: Vec::new(), commands: HashMap::new(), kept: Vec::new(), count: 0 };
        let wire = Arc::new(Mutex::new(wire));
        thread::spawn(move || {
            while let Ok((near, _)) = listener.accept() {
                if stopped.load(Ordering::Relaxed) {
                    return;
                }
                let Ok(far) = TcpStream::connect_timeout(&to, Duration::from_secs(5)) else { continue };
                for stream in [&near, &far] {
                    stream.set_nodelay(true).unwrap();
                }
                let link = Link {
                    to_initiator: near.try_clone().unwrap(),
                    to_target: far.try_clone().unwrap(),
                    in_full_feature: false,
                    agreed: (false, false),
                    counters: [0; 3],
                    command: None,
                    keeps_open: false,
                };
                let conn = {
                    let mut wire = wire.lock().unwrap();
                    wire.links.push(link);
                    wire.links.len() - 1
                };
                let breaks = breaks.filter(|_| conn >= spared);
                for (from, is_target) in [(near, false), (far, true)] {
                    let wire = Arc::clone(&wire);
                    thread::spawn(move || pump((from, is_target), conn, &wire, breaks));
                }
            }
        });
        Self { address, stop }
    }
}

/// Takes PDUs from one side of a connection to the other, until the first side closes it.
fn pump((mut from, is_target): (TcpStream, bool), conn: usize, wire: &Mutex<Wire>, breaks: Option<Breaks>) {
    while let Some(mut pdu) = receive(&mut from, conn, wire) {
        let mut wire = wire.lock().unwrap();
        wire.note(&mut pdu);
        let ends_login = pdu.is(Opcode::LOGIN_RESPONSE)
            && pdu.flags() & (FINAL | 3) == FINAL | 3
            && pdu.login_status() == 0;
        match breaks {
            Some(breaks) => breaks.apply(&mut wire, pdu),
            None => wire.pass(pdu),
        }
        wire.links[conn].in_full_feature |= ends_login;
    }
    let wire = wire.lock().unwrap();
    let link = &wire.links[conn];
    if !link.keeps_open {
        let to = if is_target { &link.to_initiator } else { &link.to_target };
        let _ = to.shutdown(Shutdown::Write);
    }
}

fn receive(from: &mut TcpStream, conn: usize, wire: &Mutex<Wire>) -> Option<Pdu> {
    let mut header = [0; HEADER_LEN];
    from.read_exact(&mut header).ok()?;
    // The login may have ended while the thread waited.
    let (header_digest, data_digest) = wire.lock().unwrap().links[conn].digests();
    let mut take = |len: usize| {
        let mut bytes = vec![0; len];
        from.read_exact(&mut bytes).ok().map(|()| bytes)
    };
    let len = u32::from_be_bytes([0, header[5], header[6], header[7]]) as usize;
    let ahs = take(usize::from(header[4]) * 4)?;
    let damaged_header = header_digest && take(4)? != Crc32c::of(&[&header[..], &ahs].concat());
    let mut data = take(len.next_multiple_of(4))?;
    let damaged_data = data_digest && len > 0 && take(4)? != Crc32c::of(&data);
    data.truncate(len);
    Some(Pdu { conn, header, ahs, data, damaged_header, damaged_data, operation: None })
}
