//! A connection of the scripted target: its responses and its counters.

use iscsi::pdu::data_in::{DataIn, DataInStatus};
use iscsi::pdu::login_request::LoginRequest;
use iscsi::pdu::nop_in::NopIn;
use iscsi::pdu::r2t::R2t;
use iscsi::pdu::scsi_command::ScsiCommand;
use iscsi::pdu::scsi_response::ScsiResponse;
use iscsi::pdu::{Itt, PduHeader, TargetSn, Ttt};
use iscsi::serial::{CmdSn, DataSn, R2tSn, StatSn};
use transport::initiator::{Residual, ServiceResponse};

use crate::wire::{Damage, PduStream};

use super::policy::Negotiated;

/// A session: the state that its connections share.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) isid: [u8; 6],
    pub(super) tsih: u16,
    pub(super) exp_cmd_sn: CmdSn,
    /// The highest MaxCmdSN that was sent, which must not decrease.
    pub(super) max_cmd_sn: CmdSn,
    pub(super) agreed: Negotiated,
}

/// A write that still receives data.
#[derive(Clone, Debug)]
pub(super) struct PendingWrite {
    pub(super) command: ScsiCommand,
    pub(super) lba: u64,
    pub(super) data: Vec<u8>,
    /// The end of the data received so far, in bytes.
    pub(super) have: usize,
    /// The end of the data that R2Ts have asked for, in bytes.
    pub(super) asked: usize,
    pub(super) r2t_sn: u32,
    /// Whether unsolicited data is still expected.
    pub(super) unsolicited: bool,
}

/// A connection.
#[derive(Debug)]
pub(super) struct Conn {
    pub(super) line: PduStream,
    pub(super) gone: bool,
    pub(super) session: Option<usize>,
    pub(super) cid: u16,
    pub(super) stat_sn: StatSn,
    pub(super) agreed: Negotiated,
    pub(super) offered: bool,
    pub(super) first: Option<LoginRequest>,
    pub(super) is_discovery: bool,
    pub(super) in_full_feature: bool,
    pub(super) pending: Vec<PendingWrite>,
    next_ttt: u32,
}

impl Conn {
    pub(super) fn new(line: PduStream) -> Self {
        Self {
            line,
            gone: false,
            session: None,
            cid: 0,
            stat_sn: StatSn(0x7fff_fff0),
            agreed: Negotiated::new(),
            offered: false,
            first: None,
            is_discovery: false,
            in_full_feature: false,
            pending: Vec::new(),
            next_ttt: 1,
        }
    }

    pub(super) fn send<M: PduHeader>(&mut self, message: &M, data: &[u8]) {
        self.line.send(message.encode(), &[], data, Damage::None);
    }

    /// Returns a transfer tag that was not used on this connection.
    pub(super) fn ttt(&mut self) -> Ttt {
        self.next_ttt += 1;
        Ttt(0x7a00_0000 | self.next_ttt)
    }
}

use super::fixture::Fixture;

impl Fixture {
    /// Returns the counters for a PDU on `conn` that uses up a StatSN.
    pub(super) fn counted(&mut self, conn: usize) -> TargetSn {
        let sn = self.uncounted(conn);
        if let Some(conn) = self.conns.get_mut(conn) {
            conn.stat_sn = conn.stat_sn.next();
        }
        sn
    }

    /// Returns the counters for a PDU on `conn` that uses up no StatSN.
    pub(super) fn uncounted(&mut self, conn: usize) -> TargetSn {
        let (stat_sn, session) = match self.conns.get(conn) {
            Some(conn) => (conn.stat_sn, conn.session),
            None => (StatSn(0), None),
        };
        let Some(session) = session.and_then(|index| self.sessions.get_mut(index)) else {
            return TargetSn { stat_sn, exp_cmd_sn: CmdSn(0), max_cmd_sn: CmdSn(0) };
        };
        let max = session.exp_cmd_sn.plus(self.window).minus(1);
        if session.max_cmd_sn.before(max) {
            session.max_cmd_sn = max;
        }
        TargetSn { stat_sn, exp_cmd_sn: session.exp_cmd_sn, max_cmd_sn: session.max_cmd_sn }
    }

    /// Sends a PDU.
    pub(super) fn send<M: PduHeader>(&mut self, conn: usize, message: &M, data: &[u8]) {
        if let Some(conn) = self.conns.get_mut(conn) {
            conn.send(message, data);
        }
    }

    /// Ends a command with a status and, if given, sense data in fixed format.
    pub(super) fn respond(&mut self, conn: usize, itt: Itt, status: u8, sense: Option<(u8, u16)>) {
        let sn = self.counted(conn);
        let data = match sense {
            Some((key, code)) => {
                let [asc, ascq] = code.to_be_bytes();
                let mut data = vec![0, 18, 0x70, 0, key, 0, 0, 0, 0, 10, 0, 0, 0, 0, asc, ascq];
                data.resize(20, 0);
                data
            }
            None => Vec::new(),
        };
        let response = ScsiResponse {
            response: ServiceResponse::COMPLETED,
            status,
            status_qualifier: 0,
            itt,
            snack_tag: 0,
            sn,
            exp_data_sn: DataSn(0),
            bidirectional_read_residual: Residual::None,
            residual: Residual::None,
        };
        self.send(conn, &response, &data);
    }

    /// Sends one Data-In PDU.
    pub(super) fn data_in(
        &mut self,
        conn: usize,
        command: &ScsiCommand,
        (data_sn, offset): (u32, usize),
        bytes: &[u8],
        end: End,
    ) {
        let status = (end == End::Status).then_some(DataInStatus { status: 0, residual: Residual::None });
        let sn = if status.is_some() { self.counted(conn) } else { self.uncounted(conn) };
        let acknowledge = end == End::Acknowledge;
        let ttt = match (acknowledge, self.conns.get_mut(conn)) {
            (true, Some(conn)) => conn.ttt(),
            _ => Ttt::NONE,
        };
        let head = DataIn {
            is_final: end != End::More,
            acknowledge,
            status,
            lun: if acknowledge { command.lun } else { 0 },
            itt: command.itt,
            ttt,
            sn,
            data_sn: DataSn(data_sn),
            buffer_offset: u32::try_from(offset).unwrap_or_default(),
        };
        self.send(conn, &head, bytes);
    }

    /// Sends all data of a read, and GOOD.
    pub(super) fn send_data(&mut self, conn: usize, command: &ScsiCommand, data: &[u8]) {
        let expected = usize::try_from(command.expected_data_transfer_length).unwrap_or_default();
        let short = expected.saturating_sub(data.len());
        let data = data.get(..expected).unwrap_or(data);
        if data.is_empty() || short > 0 {
            return self.send_short(conn, command, data, short);
        }
        let limit = self.send_max(conn);
        let last = data.chunks(limit).count() - 1;
        for (index, piece) in data.chunks(limit).enumerate() {
            let end = if index == last { End::Status } else { End::More };
            let number = u32::try_from(index).unwrap_or_default();
            self.data_in(conn, command, (number, index * limit), piece, end);
        }
    }

    /// Sends less data than expected, and a response with the residual count.
    fn send_short(&mut self, conn: usize, command: &ScsiCommand, data: &[u8], short: usize) {
        if !data.is_empty() {
            self.data_in(conn, command, (0, 0), data, End::Sequence);
        }
        let sn = self.counted(conn);
        let residual = match u32::try_from(short) {
            Ok(0) | Err(_) => Residual::None,
            Ok(short) => Residual::Underflow(short),
        };
        let response = ScsiResponse {
            response: ServiceResponse::COMPLETED,
            status: 0,
            status_qualifier: 0,
            itt: command.itt,
            snack_tag: 0,
            sn,
            exp_data_sn: DataSn(u32::from(!data.is_empty())),
            bidirectional_read_residual: Residual::None,
            residual,
        };
        self.send(conn, &response, &[]);
    }

    /// Returns the longest data segment that we send on this connection: the initiator's limit, clamped to
    /// 512 to 65536 bytes and rounded down to a multiple of four.
    pub(super) fn send_max(&self, conn: usize) -> usize {
        let max = self.conns.get(conn).map_or(8192, |conn| conn.agreed.send_max);
        usize::try_from(max).unwrap_or(8192).clamp(512, 65_536) & !3
    }

    /// Sends an R2T for `len` bytes of a write.
    pub(super) fn send_r2t(
        &mut self,
        conn: usize,
        command: &ScsiCommand,
        r2t_sn: u32,
        offset: u32,
        len: u32,
    ) -> R2t {
        let ttt = self.conns.get_mut(conn).map_or(Ttt(1), Conn::ttt);
        self.send_r2t_as(conn, command, (r2t_sn, ttt), offset, len)
    }

    /// Like [`Fixture::send_r2t`], with this R2TSN and transfer tag.
    pub(super) fn send_r2t_as(
        &mut self,
        conn: usize,
        command: &ScsiCommand,
        (r2t_sn, ttt): (u32, Ttt),
        offset: u32,
        len: u32,
    ) -> R2t {
        let r2t = R2t {
            lun: command.lun,
            itt: command.itt,
            ttt,
            sn: self.uncounted(conn),
            r2t_sn: R2tSn(r2t_sn),
            buffer_offset: offset,
            desired_data_transfer_length: len,
        };
        self.send(conn, &r2t, &[]);
        let pending = self.conns.get_mut(conn).map(|conn| conn.pending.iter_mut()).into_iter().flatten();
        for write in pending.filter(|write| write.command.itt == command.itt) {
            // R2Ts that the target sends by itself later go on from here.
            write.r2t_sn = write.r2t_sn.max(r2t_sn + 1);
        }
        r2t
    }

    /// Sends a ping, or a NOP-In without a transfer tag, which only updates the counters.
    pub(super) fn ping(&mut self, conn: usize, wants_answer: bool) -> NopIn {
        let ttt = match self.conns.get_mut(conn) {
            Some(conn) if wants_answer => conn.ttt(),
            _ => Ttt::NONE,
        };
        let ping = NopIn { lun: 0, itt: Itt::NONE, ttt, sn: self.uncounted(conn) };
        self.send(conn, &ping, &[]);
        ping
    }
}

/// What ends with a Data-In PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Nothing: more of the sequence follows.
    More,
    /// The sequence ends.
    Sequence,
    /// The sequence ends, and the initiator must acknowledge it (A bit).
    Acknowledge,
    /// The command ends with GOOD.
    Status,
}
