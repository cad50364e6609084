//! The two initiators of these tests: a peer that sends whatever a test specifies, and a witness that uses
//! its disk normally.

use std::cell::Cell;

use base::state_machine::ConnId;
use iscsi::digest::Crc32c;
use iscsi::pdu::data_out::DataOut;
use iscsi::pdu::login_response::LoginResponse;
use iscsi::pdu::nop_out::NopOut;
use iscsi::pdu::r2t::R2t;
use iscsi::pdu::scsi_command::ScsiCommand;
use iscsi::pdu::text_request::TextRequest;
use iscsi::pdu::tmf_request::TmfRequest;
use iscsi::pdu::{BHS_LEN, Bhs, Itt, Opcode, PduHeader, Ttt};
use iscsi::serial::{CmdSn, DataSn, StatSn};
use transport::command::TaskAttribute;
use transport::task_management::TmfFunction;

use crate::pair::{BLOCK, Initiator, TARGET, World, login_request, pattern};

/// An initiator that obeys no rules by itself. It counts its sequence numbers, so that a test can break one
/// rule at a time.
pub(crate) struct Peer {
    pub(crate) conn: ConnId,
    /// Whether header and data digests were negotiated.
    pub(crate) digests: bool,
    pub(crate) cmd_sn: u32,
    pub(crate) exp_stat_sn: u32,
    pub(crate) next_itt: u32,
    /// How many more bytes the peer sends before its connection breaks.
    pub(crate) fuse: Cell<usize>,
    /// Whether the peer then stays connected and only stops sending.
    pub(crate) stalls: bool,
}

pub(crate) const MALLORY: &str = "iqn.2026-11.org.example:mallory";

/// The damage to a PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Damage {
    Nothing,
    /// A bit of the header digest is wrong.
    Header,
    /// A bit of the data digest is wrong, if there is data.
    Data,
    /// A bit of the data is wrong, if there is data.
    Payload,
}

pub(crate) const NO_DIGESTS: &str = "HeaderDigest=None\0DataDigest=None\0";
pub(crate) const DIGESTS: &str = "HeaderDigest=CRC32C\0DataDigest=CRC32C\0";

impl Peer {
    /// Connects and sends nothing.
    pub(crate) fn connect(world: &mut World) -> Self {
        Self {
            conn: world.connect(),
            digests: false,
            cmd_sn: 1,
            exp_stat_sn: 0,
            next_itt: 2,
            fuse: Cell::new(usize::MAX),
            stalls: false,
        }
    }

    /// Logs in to the target without authentication, with these keys in addition to the names.
    pub(crate) fn login(world: &mut World, name: &str, isid: u8, keys: &str) -> Self {
        Self::enter(world, isid, &format!("InitiatorName={name}\0TargetName={TARGET}\0{keys}"))
    }

    /// Logs in like [`Self::login`] and receives the first unit attention: from now on commands are executed.
    pub(crate) fn settle(world: &mut World, name: &str, keys: &str) -> Self {
        let mut peer = Self::login(world, name, 1, keys);
        let command = peer.command(0, &[0; 6]);
        peer.send(world, command.encode(), &[]);
        assert_eq!(peer.hear(world).len(), 1, "the unit attention");
        peer
    }

    /// Logs in to a discovery session.
    pub(crate) fn discover(world: &mut World, name: &str, isid: u8) -> Self {
        Self::enter(world, isid, &format!("InitiatorName={name}\0SessionType=Discovery\0{NO_DIGESTS}"))
    }

    fn enter(world: &mut World, isid: u8, text: &str) -> Self {
        let mut peer = Self::connect(world);
        peer.send(world, login_request(isid).encode(), text.as_bytes());
        let (bhs, answer) = peer.receive(world).expect("a login response");
        let response = LoginResponse::decode(&bhs).unwrap();
        assert_eq!((response.status, response.nsg), (0, 3), "{response:?}");
        peer.digests = String::from_utf8_lossy(&answer).contains("DataDigest=CRC32C");
        peer.exp_stat_sn = response.sn.stat_sn.0.wrapping_add(1);
        peer
    }

    /// Returns the bytes of a PDU on the wire, with `damage`.
    pub(crate) fn frame(&self, bhs: Bhs, ahs: &[u8], data: &[u8], damage: Damage) -> Vec<u8> {
        let mut out = bhs.with_data_len(data.len()).with_ahs_len(ahs.len()).to_bytes().to_vec();
        out.extend_from_slice(ahs);
        if self.digests {
            let mut crc = Crc32c::of(&out);
            crc[0] ^= u8::from(damage == Damage::Header);
            out.extend_from_slice(&crc);
        }
        let start = out.len();
        out.extend_from_slice(data);
        out.resize(start + data.len().next_multiple_of(4), 0);
        if self.digests && !data.is_empty() {
            let mut crc = Crc32c::of(&out[start..]);
            crc[3] ^= u8::from(damage == Damage::Data) << 7;
            out[start + data.len() / 2] ^= u8::from(damage == Damage::Payload) << 4;
            out.extend_from_slice(&crc);
        }
        out
    }

    /// Sends an undamaged PDU.
    pub(crate) fn send(&self, world: &mut World, bhs: Bhs, data: &[u8]) {
        self.send_damaged(world, bhs, data, Damage::Nothing);
    }

    pub(crate) fn send_damaged(&self, world: &mut World, bhs: Bhs, data: &[u8], damage: Damage) {
        let bytes = self.frame(bhs, &[], data, damage);
        self.send_bytes(world, &bytes);
    }

    /// Sends bytes until `fuse` is used up, then breaks the connection or stalls.
    pub(crate) fn send_bytes(&self, world: &mut World, bytes: &[u8]) {
        let len = bytes.len().min(self.fuse.get());
        world.send(self.conn, &bytes[..len]);
        self.fuse.set(self.fuse.get() - len);
        if self.fuse.get() == 0 && !self.stalls && world.is_open(self.conn) {
            world.cut(self.conn);
        }
    }

    /// Returns the next PDU, and checks its digests.
    pub(crate) fn receive(&self, world: &mut World) -> Option<(Bhs, Vec<u8>)> {
        let (wire, _) = world.wire(self.conn);
        if wire.is_empty() {
            return None;
        }
        let mut take = |len: usize| wire.drain(..len).collect::<Vec<u8>>();
        let header: [u8; BHS_LEN] = take(BHS_LEN).try_into().unwrap();
        let bhs = Bhs::from_bytes(header);
        let digests = self.digests && bhs.opcode() != Opcode::LOGIN_RESPONSE;
        if digests {
            assert_eq!(take(4), Crc32c::of(&header), "header digest of {bhs:?}");
        }
        let len = usize::try_from(bhs.data_len()).unwrap();
        let mut data = take(len.next_multiple_of(4));
        if digests && len > 0 {
            assert_eq!(take(4), Crc32c::of(&data), "data digest of {bhs:?}");
        }
        data.truncate(len);
        Some((bhs, data))
    }

    /// Receives every PDU that the target sent, and returns the opcodes.
    pub(crate) fn hear(&self, world: &mut World) -> Vec<Opcode> {
        std::iter::from_fn(|| self.receive(world)).map(|(bhs, _)| bhs.opcode()).collect()
    }

    /// Returns the next initiator task tag.
    pub(crate) fn tag(&mut self) -> Itt {
        self.next_itt += 1;
        Itt(self.next_itt)
    }

    /// Returns a command with the next initiator task tag and the next CmdSN, and uses both up.
    pub(crate) fn command(&mut self, lun: u64, cdb: &[u8]) -> ScsiCommand {
        let mut whole = [0; 16];
        whole[..cdb.len()].copy_from_slice(cdb);
        let cmd_sn = CmdSn(self.cmd_sn);
        self.cmd_sn = self.cmd_sn.wrapping_add(1);
        ScsiCommand {
            immediate: false,
            is_final: true,
            read: false,
            write: false,
            attribute: TaskAttribute::SIMPLE,
            priority: 0,
            lun: lun << 48,
            itt: self.tag(),
            expected_data_transfer_length: 0,
            cmd_sn,
            exp_stat_sn: StatSn(self.exp_stat_sn),
            cdb: whole,
        }
    }

    pub(crate) fn read_command(&mut self, lun: u64, lba: u32, blocks: u16) -> ScsiCommand {
        let command = self.command(lun, &transfer(0x28, lba, blocks));
        let len = u32::from(blocks) * u32::try_from(BLOCK).unwrap();
        ScsiCommand { read: true, expected_data_transfer_length: len, ..command }
    }

    pub(crate) fn write_command(&mut self, lun: u64, lba: u32, blocks: u16) -> ScsiCommand {
        let command = self.command(lun, &transfer(0x2a, lba, blocks));
        let len = u32::from(blocks) * u32::try_from(BLOCK).unwrap();
        ScsiCommand { write: true, expected_data_transfer_length: len, ..command }
    }

    pub(crate) fn manage(&mut self, function: TmfFunction, lun: u64, task: Itt) -> TmfRequest {
        TmfRequest {
            immediate: true,
            function,
            lun: lun << 48,
            itt: self.tag(),
            referenced_task_tag: task,
            cmd_sn: CmdSn(self.cmd_sn),
            exp_stat_sn: StatSn(self.exp_stat_sn),
            ref_cmd_sn: CmdSn(self.cmd_sn.wrapping_sub(1)),
            exp_data_sn: DataSn(0),
        }
    }

    /// Returns a ping that asks for an answer.
    pub(crate) fn ping(&mut self) -> NopOut {
        NopOut {
            immediate: true,
            lun: 0,
            itt: self.tag(),
            ttt: Ttt::NONE,
            cmd_sn: CmdSn(self.cmd_sn),
            exp_stat_sn: StatSn(self.exp_stat_sn),
        }
    }

    pub(crate) fn text(&mut self) -> TextRequest {
        TextRequest {
            immediate: true,
            is_final: true,
            continues: false,
            lun: 0,
            itt: self.tag(),
            ttt: Ttt::NONE,
            cmd_sn: CmdSn(self.cmd_sn),
            exp_stat_sn: StatSn(self.exp_stat_sn),
        }
    }

    pub(crate) fn data_out(&self, itt: Itt, ttt: Ttt, data_sn: u32, offset: u32) -> DataOut {
        DataOut {
            is_final: true,
            lun: 0,
            itt,
            ttt,
            exp_stat_sn: StatSn(self.exp_stat_sn),
            data_sn: DataSn(data_sn),
            buffer_offset: offset,
        }
    }

    /// Returns the first Data-Out PDU for an R2T, with correct offsets and tags.
    pub(crate) fn answer(&self, r2t: &R2t) -> DataOut {
        DataOut { lun: r2t.lun, ..self.data_out(r2t.itt, r2t.ttt, 0, r2t.buffer_offset) }
    }

    /// Receives PDUs up to the next R2T, and returns it if there is one.
    pub(crate) fn next_r2t(&self, world: &mut World) -> Option<R2t> {
        std::iter::from_fn(|| self.receive(world))
            .find(|(bhs, _)| bhs.opcode() == Opcode::R2T)
            .map(|(bhs, _)| R2t::decode(&bhs).unwrap())
    }

    /// Sends a sequence of Data-Out PDUs of at most 16 KiB, with `data` at `offset`.
    pub(crate) fn send_sequence(&self, world: &mut World, first: &DataOut, data: &[u8]) {
        let parts: Vec<_> = data.chunks(16384).collect();
        for (number, part) in parts.iter().enumerate() {
            let at = u32::try_from(number).unwrap();
            let pdu = DataOut {
                is_final: number + 1 == parts.len(),
                data_sn: DataSn(at),
                buffer_offset: first.buffer_offset + at * 16384,
                ..*first
            };
            self.send(world, pdu.encode(), part);
        }
    }

    /// Sends a write with immediate, unsolicited and solicited data, until its connection breaks.
    pub(crate) fn write(&mut self, world: &mut World, lba: u32, data: &[u8]) {
        let blocks = u16::try_from(data.len() / BLOCK).unwrap();
        let immediate = data.len().min(4096);
        let unsolicited = data.len().min(65536);
        let command = self.write_command(0, lba, blocks);
        let command = ScsiCommand { is_final: unsolicited == immediate, ..command };
        self.send(world, command.encode(), &data[..immediate]);
        if unsolicited > immediate {
            let first = self.data_out(command.itt, Ttt::NONE, 0, u32::try_from(immediate).unwrap());
            self.send_sequence(world, &first, &data[immediate..unsolicited]);
        }
        while let Some(r2t) = self.next_r2t(world) {
            let from = usize::try_from(r2t.buffer_offset).unwrap();
            let to = from + usize::try_from(r2t.desired_data_transfer_length).unwrap();
            self.send_sequence(world, &self.answer(&r2t), &data[from..to]);
        }
    }
}

/// Returns a READ or WRITE CDB of 10 bytes.
pub(crate) fn transfer(opcode: u8, lba: u32, blocks: u16) -> [u8; 10] {
    let mut cdb = [opcode, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    cdb[2..6].copy_from_slice(&lba.to_be_bytes());
    cdb[7..9].copy_from_slice(&blocks.to_be_bytes());
    cdb
}

/// The session that must not be affected. The blocks from [`Witness::FIRST`] on are its own.
pub(crate) struct Witness {
    initiator: Initiator,
    lun: u64,
    round: u32,
}

impl Witness {
    pub(crate) const FIRST: u32 = 8192;
    const AREA: u32 = 4096;

    pub(crate) fn login(world: &mut World, lun: u64) -> Self {
        let mut initiator = Initiator::login(world, "iqn.2026-11.org.example:witness", 9);
        initiator.clear_attentions(world, lun);
        Self { initiator, lun, round: 0 }
    }

    /// Writes and reads back, small and large, and checks every block.
    pub(crate) fn works(&mut self, world: &mut World) {
        self.round += 1;
        for blocks in [1, 140] {
            let lba = Self::FIRST + (self.round * 37 + u32::from(blocks)) % (Self::AREA - 256);
            let data = pattern(usize::from(blocks) * BLOCK, self.round.into());
            let answer = self.initiator.write(world, self.lun, lba, &data, false);
            assert_eq!((answer.status, answer.code()), (0, (0, 0)), "write of the witness, {blocks} blocks");
            let answer = self.initiator.read(world, self.lun, lba, blocks);
            assert_eq!((answer.status, answer.code()), (0, (0, 0)), "read of the witness, {blocks} blocks");
            assert!(answer.data == data, "the witness reads what it did not write, {blocks} blocks");
        }
        assert!(world.is_open(self.initiator.conn), "the witness lost its connection");
    }

    /// Reads blocks, of any initiator.
    pub(crate) fn read(&mut self, world: &mut World, lba: u32, blocks: u16) -> Vec<u8> {
        let answer = self.initiator.read(world, self.lun, lba, blocks);
        assert_eq!((answer.status, answer.code()), (0, (0, 0)));
        answer.data
    }

    /// Receives the unit attentions of a reset (SAM-5 §6.3).
    pub(crate) fn hears_of_a_reset(&mut self, world: &mut World) {
        self.initiator.clear_attentions(world, self.lun);
    }
}
