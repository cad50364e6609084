//! A connection in the full feature phase, with the counters of its session. The cases are written in terms
//! of it.
//!
//! A case makes a PDU with one of the builders ([`Conn::command`], [`Conn::ping`], …), changes the fields
//! that it wants wrong, and sends it. Numbers advance as those of a correct initiator, unless the case
//! changes them.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};

use iscsi::pdu::async_message::AsyncEventCode;
use iscsi::pdu::data_out::DataOut;
use iscsi::pdu::login_response::LoginResponse;
use iscsi::pdu::logout_request::{LogoutReason, LogoutRequest};
use iscsi::pdu::nop_in::NopIn;
use iscsi::pdu::nop_out::NopOut;
use iscsi::pdu::r2t::R2t;
use iscsi::pdu::scsi_command::ScsiCommand;
use iscsi::pdu::snack::{Snack, SnackKind};
use iscsi::pdu::text_request::TextRequest;
use iscsi::pdu::tmf_request::TmfRequest;
use iscsi::pdu::{Itt, Opcode, PduHeader, Ttt};
use iscsi::serial::{CmdSn, DataSn, StatSn};
use transport::command::TaskAttribute;
use transport::task_management::TmfFunction;

use crate::cdb::Cdb;
use crate::text::Keys;
use crate::verdict::Outcome;
use crate::wire::{Damage, Pdu, PduStream, Received};

use super::fixture::{Fixture, Unit};
use super::login::LoginPlan;

/// The state that the connections of a session share: one I_T nexus.
#[derive(Debug)]
pub(crate) struct Nexus {
    pub(crate) isid: [u8; 6],
    pub(crate) tsih: u16,
    /// The next command number.
    pub(crate) cmd_sn: u32,
    next_itt: u32,
    /// The highest ExpCmdSN and MaxCmdSN that the target has sent.
    pub(crate) exp_cmd_sn: u32,
    pub(crate) max_cmd_sn: u32,
    pub(crate) params: Params,
}

impl Nexus {
    pub(super) fn new(plan: &LoginPlan) -> Self {
        Self {
            isid: plan.isid,
            tsih: plan.tsih,
            cmd_sn: plan.cmd_sn,
            next_itt: 1,
            exp_cmd_sn: plan.cmd_sn,
            max_cmd_sn: plan.cmd_sn,
            params: Params::default(),
        }
    }

    /// Records the command window that a PDU announces, unless it is older than the known one (§4.2.2.1).
    pub(super) fn heard(&mut self, exp: u32, max: u32) {
        if !CmdSn(exp).before(CmdSn(self.exp_cmd_sn)) {
            self.exp_cmd_sn = exp;
        }
        if !CmdSn(max).before(CmdSn(self.max_cmd_sn)) {
            self.max_cmd_sn = max;
        }
    }

    /// Returns a tag that no task of this session has used.
    pub(crate) fn itt(&mut self) -> Itt {
        let itt = Itt(self.next_itt);
        self.next_itt += 1;
        itt
    }
}

/// The negotiated parameters.
#[derive(Clone, Debug, Default)]
pub(crate) struct Params {
    pub(crate) header_digest: bool,
    pub(crate) data_digest: bool,
    pub(crate) max_connections: u32,
    pub(crate) initial_r2t: bool,
    pub(crate) immediate_data: bool,
    /// The longest data segment that the target accepts.
    pub(crate) send_max: usize,
    pub(crate) max_burst: u32,
    pub(crate) first_burst: u32,
    pub(crate) max_outstanding_r2t: u32,
    pub(crate) time2wait: u32,
    pub(crate) time2retain: u32,
    pub(crate) erl: u32,
    pub(crate) protocol_level: u32,
    pub(crate) task_reporting: String,
}

impl Params {
    /// Computes the negotiated parameters from our offer, the target's answer, and the session's parameters,
    /// if it has any.
    pub(super) fn settle(offered: &Keys, said: &Keys, session: Option<Self>) -> Self {
        let number = |name: &str, default: u32| said.number(name).unwrap_or(default);
        let yes = |name: &str, default: bool| said.value(name).map_or(default, |value| value == "Yes");
        let digest = |name: &str| said.value(name) == Some("CRC32C");
        let send_max = usize::try_from(number("MaxRecvDataSegmentLength", 8192)).unwrap_or(8192);
        let own = Self {
            header_digest: digest("HeaderDigest"),
            data_digest: digest("DataDigest"),
            send_max,
            ..Self::default()
        };
        if let Some(session) = session {
            return Self {
                header_digest: own.header_digest,
                data_digest: own.data_digest,
                send_max,
                ..session
            };
        }
        Self {
            max_connections: number("MaxConnections", 1),
            initial_r2t: yes("InitialR2T", true),
            immediate_data: yes("ImmediateData", offered.value("ImmediateData") != Some("No")),
            max_burst: number("MaxBurstLength", 262_144),
            first_burst: number("FirstBurstLength", 65_536),
            max_outstanding_r2t: number("MaxOutstandingR2T", 1),
            time2wait: number("DefaultTime2Wait", 2),
            time2retain: number("DefaultTime2Retain", 20),
            erl: number("ErrorRecoveryLevel", 0),
            protocol_level: number("iSCSIProtocolLevel", 1),
            task_reporting: said.value("TaskReporting").unwrap_or("RFC3720").to_owned(),
            ..own
        }
    }
}

/// The direction of the data of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    None,
    Read,
    Write,
}

/// A connection in the full feature phase.
#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) line: PduStream,
    pub(crate) nexus: Rc<RefCell<Nexus>>,
    pub(crate) cid: u16,
    pub(crate) unit: Unit,
    pub(crate) exp_stat_sn: u32,
    pub(crate) params: Params,
    /// The keys that the target sent during the login.
    pub(crate) said: Keys,
    pub(crate) responses: Vec<LoginResponse>,
    /// Every PDU received since the login.
    pub(crate) seen: Vec<Pdu>,
    pub(crate) patience: Duration,
    inbox: VecDeque<Pdu>,
    /// Whether the connection answers pings of the target when they arrive.
    pub(crate) answers_pings: bool,
    /// Whether the wait for the PDUs of a task continues when a Reject arrives.
    pub(crate) passes_rejects: bool,
    /// Whether no further status is acknowledged: the target must keep what it sent for a task until then.
    pub(crate) holds_acknowledgements: bool,
}

impl Conn {
    #[allow(clippy::too_many_arguments, reason = "the one caller has them all at hand")]
    pub(super) fn new(
        fixture: &Fixture,
        line: PduStream,
        nexus: Rc<RefCell<Nexus>>,
        cid: u16,
        exp_stat_sn: u32,
        params: Params,
        said: Keys,
        responses: Vec<LoginResponse>,
    ) -> Self {
        Self {
            line,
            nexus,
            cid,
            unit: fixture.unit,
            exp_stat_sn,
            params,
            said,
            responses,
            seen: Vec::new(),
            patience: fixture.options.patience,
            inbox: VecDeque::new(),
            answers_pings: true,
            passes_rejects: false,
            holds_acknowledgements: false,
        }
    }

    // --- builders ------------------------------------------------------------------------------------------

    /// Takes the next command number.
    pub(crate) fn next_cmd_sn(&mut self) -> CmdSn {
        let mut nexus = self.nexus.borrow_mut();
        let sn = CmdSn(nexus.cmd_sn);
        nexus.cmd_sn = sn.next().0;
        sn
    }

    /// Returns the next command number without using it, for an immediate request.
    pub(crate) fn this_cmd_sn(&self) -> CmdSn {
        CmdSn(self.nexus.borrow().cmd_sn)
    }

    pub(crate) fn itt(&mut self) -> Itt {
        self.nexus.borrow_mut().itt()
    }

    /// Makes a command and uses up its number.
    pub(crate) fn command(&mut self, cdb: Cdb, flow: Flow, len: u32) -> ScsiCommand {
        ScsiCommand {
            immediate: false,
            is_final: true,
            read: flow == Flow::Read,
            write: flow == Flow::Write,
            attribute: TaskAttribute::SIMPLE,
            priority: 0,
            lun: self.unit.lun,
            itt: self.itt(),
            expected_data_transfer_length: len,
            cmd_sn: self.next_cmd_sn(),
            exp_stat_sn: StatSn(self.exp_stat_sn),
            cdb,
        }
    }

    /// Makes a command that writes `blocks` blocks from the start of the unit.
    pub(crate) fn write(&mut self, blocks: u16) -> ScsiCommand {
        let len = u32::from(blocks) * self.unit.block;
        self.command(crate::cdb::write(0, blocks), Flow::Write, len)
    }

    /// Makes a command that reads `blocks` blocks from the start of the unit.
    pub(crate) fn read(&mut self, blocks: u16) -> ScsiCommand {
        let len = u32::from(blocks) * self.unit.block;
        self.command(crate::cdb::read(0, blocks), Flow::Read, len)
    }

    /// Makes a ping. Uses up its number, unless the ping is immediate.
    pub(crate) fn ping(&mut self, immediate: bool) -> NopOut {
        let cmd_sn = if immediate { self.this_cmd_sn() } else { self.next_cmd_sn() };
        let (itt, exp_stat_sn) = (self.itt(), StatSn(self.exp_stat_sn));
        NopOut { immediate, lun: 0, itt, ttt: Ttt::NONE, cmd_sn, exp_stat_sn }
    }

    /// Makes an immediate task management request on the unit.
    pub(crate) fn manage(&mut self, function: TmfFunction) -> TmfRequest {
        TmfRequest {
            immediate: true,
            function,
            lun: self.unit.lun,
            itt: self.itt(),
            referenced_task_tag: Itt::NONE,
            cmd_sn: self.this_cmd_sn(),
            exp_stat_sn: StatSn(self.exp_stat_sn),
            ref_cmd_sn: CmdSn(0),
            exp_data_sn: DataSn(0),
        }
    }

    /// Makes an immediate task management request that refers to a task.
    pub(crate) fn manage_task(&mut self, function: TmfFunction, task: &ScsiCommand) -> TmfRequest {
        let request = self.manage(function);
        // §11.5.3: functions that do not address a logical unit have no LUN.
        let lun = if function == TmfFunction::TASK_REASSIGN { 0 } else { task.lun };
        TmfRequest { referenced_task_tag: task.itt, ref_cmd_sn: task.cmd_sn, lun, ..request }
    }

    /// Makes a text request that is not immediate, and uses up its number.
    pub(crate) fn text(&mut self, is_final: bool) -> TextRequest {
        TextRequest {
            immediate: false,
            is_final,
            continues: false,
            lun: 0,
            itt: self.itt(),
            ttt: Ttt::NONE,
            cmd_sn: self.next_cmd_sn(),
            exp_stat_sn: StatSn(self.exp_stat_sn),
        }
    }

    /// Makes the next request of a text negotiation: same tags, next number.
    pub(crate) fn text_on(&mut self, before: &TextRequest, reply: &Pdu, is_final: bool) -> TextRequest {
        TextRequest {
            is_final,
            continues: false,
            lun: reply.bhs.lun(),
            ttt: Ttt(reply.word(20)),
            cmd_sn: self.next_cmd_sn(),
            exp_stat_sn: StatSn(self.exp_stat_sn),
            ..*before
        }
    }

    /// Makes a logout request that is not immediate.
    pub(crate) fn logout(&mut self, reason: LogoutReason, cid: u16) -> LogoutRequest {
        let (itt, cmd_sn) = (self.itt(), self.next_cmd_sn());
        LogoutRequest { immediate: false, reason, itt, cid, cmd_sn, exp_stat_sn: StatSn(self.exp_stat_sn) }
    }

    /// Makes a SNACK for data or R2Ts of a task.
    pub(crate) fn snack(&self, kind: SnackKind, itt: Itt, beg_run: u32, run_length: u32) -> Snack {
        Snack {
            kind,
            lun: self.unit.lun,
            itt,
            tag: u32::MAX,
            exp_stat_sn: StatSn(self.exp_stat_sn),
            beg_run,
            run_length,
        }
    }

    /// Makes a Data-Out PDU that answers an R2T.
    pub(crate) fn data_out(&self, r2t: &R2t, data_sn: u32, offset: u32, is_final: bool) -> DataOut {
        DataOut {
            is_final,
            lun: r2t.lun,
            itt: r2t.itt,
            ttt: r2t.ttt,
            exp_stat_sn: StatSn(self.exp_stat_sn),
            data_sn: DataSn(data_sn),
            buffer_offset: offset,
        }
    }

    /// Makes an unsolicited Data-Out PDU.
    pub(crate) fn unsolicited(
        &self,
        task: &ScsiCommand,
        data_sn: u32,
        offset: u32,
        is_final: bool,
    ) -> DataOut {
        DataOut {
            is_final,
            lun: task.lun,
            itt: task.itt,
            ttt: Ttt::NONE,
            exp_stat_sn: StatSn(self.exp_stat_sn),
            data_sn: DataSn(data_sn),
            buffer_offset: offset,
        }
    }

    // --- sending -------------------------------------------------------------------------------------------

    pub(crate) fn send<M: PduHeader>(&mut self, message: &M, data: &[u8]) {
        self.line.send(message.encode(), &[], data, Damage::None);
    }

    pub(crate) fn send_damaged<M: PduHeader>(&mut self, message: &M, data: &[u8], damage: Damage) {
        self.line.send(message.encode(), &[], data, damage);
    }

    /// Sends `data` as the answer to an R2T, in as many PDUs as the target's limit requires.
    pub(crate) fn answer(&mut self, r2t: &R2t, data: &[u8]) {
        let mut offset = r2t.buffer_offset;
        let pieces: Vec<&[u8]> = data.chunks(self.params.send_max.max(1)).collect();
        let last = pieces.len().saturating_sub(1);
        for (sn, piece) in (0u32..).zip(&pieces) {
            let is_final = usize::try_from(sn).is_ok_and(|sn| sn == last);
            let head = self.data_out(r2t, sn, offset, is_final);
            self.send(&head, piece);
            offset = offset.wrapping_add(u32::try_from(piece.len()).unwrap_or_default());
        }
    }

    // --- receiving -----------------------------------------------------------------------------------------

    /// Waits for the next PDU, and updates the counters.
    pub(crate) fn arrive(&mut self, wait: Duration) -> Outcome<Received> {
        let until = Instant::now() + wait;
        loop {
            let came = self.line.receive(until.saturating_duration_since(Instant::now()))?;
            let Received::Pdu(pdu) = &came else { return Ok(came) };
            self.count(pdu);
            self.seen.push(pdu.clone());
            if self.answers_pings && is_unasked_nop(pdu) {
                self.answer_ping(pdu);
                continue;
            }
            return Ok(came);
        }
    }

    fn count(&mut self, pdu: &Pdu) {
        self.nexus.borrow_mut().heard(pdu.word(28), pdu.word(32));
        let is_next = consumes_stat_sn(pdu) && pdu.word(24) == self.exp_stat_sn;
        if is_next && !self.holds_acknowledgements {
            self.exp_stat_sn = self.exp_stat_sn.wrapping_add(1);
        }
    }

    /// Answers a NOP-In that asks for an answer.
    pub(crate) fn answer_ping(&mut self, pdu: &Pdu) {
        let ttt = Ttt(pdu.word(20));
        if ttt == Ttt::NONE {
            return;
        }
        let pong = NopOut {
            immediate: true,
            lun: pdu.bhs.lun(),
            itt: Itt::NONE,
            ttt,
            cmd_sn: self.this_cmd_sn(),
            exp_stat_sn: StatSn(self.exp_stat_sn),
        };
        self.send(&pong, &[]);
    }

    /// Returns the next PDU: the first that was put aside, or else the next that arrives.
    pub(crate) fn next(&mut self, what: &str) -> Outcome<Pdu> {
        if let Some(pdu) = self.inbox.pop_front() {
            return Ok(pdu);
        }
        self.fresh(what)
    }

    fn fresh(&mut self, what: &str) -> Outcome<Pdu> {
        match self.arrive(self.patience)? {
            Received::Pdu(pdu) => Ok(pdu),
            Received::Closed => fail!("expected {what}; the connection was closed"),
            Received::Nothing => fail!("expected {what}; nothing came within {:?}", self.patience),
        }
    }

    /// Returns the next PDU of a task, and puts the PDUs of other tasks aside.
    pub(crate) fn next_of(&mut self, itt: Itt, what: &str) -> Outcome<Pdu> {
        if let Some(at) = self.inbox.iter().position(|pdu| pdu.itt() == itt)
            && let Some(pdu) = self.inbox.remove(at)
        {
            return Ok(pdu);
        }
        loop {
            let pdu = self.fresh(what)?;
            if tells_of_a_drop(&pdu) {
                // A target may announce a lost connection on the remaining ones (§11.9.1); the end of this
                // one is noticed anyway.
                continue;
            }
            let disturbs = pdu.opcode() == Opcode::ASYNC_MESSAGE
                || (pdu.opcode() == Opcode::REJECT && !self.passes_rejects);
            if pdu.itt() == itt || disturbs {
                return Ok(pdu);
            }
            self.inbox.push_back(pdu);
        }
    }

    /// Waits for a PDU of this kind with tag `itt`; any other PDU with that tag fails the case.
    pub(crate) fn expect<M: PduHeader>(&mut self, itt: Itt) -> Outcome<(M, Pdu)> {
        let what = format!("{:?} for task {:x}", M::OPCODE, itt.0);
        let pdu = self.next_of(itt, &what)?;
        require!(pdu.opcode() == M::OPCODE, "expected {what}; came {}", pdu.shown());
        Ok((pdu.read()?, pdu))
    }

    /// Returns the next PDU within `wait`, put aside or new. Silence and the end of the connection are no
    /// failure.
    pub(crate) fn receive_within(&mut self, wait: Duration) -> Outcome<Received> {
        match self.inbox.pop_front() {
            Some(pdu) => Ok(Received::Pdu(pdu)),
            None => self.arrive(wait),
        }
    }

    /// After a Reject: makes the next command reuse the number of the rejected one, if the ExpCmdSN of the
    /// Reject shows that the target does not count it as received (§7.3).
    pub(crate) fn plug_gap(&mut self, reject: &Pdu) {
        self.nexus.borrow_mut().cmd_sn = reject.word(28);
    }

    /// Fails if a new PDU arrives within `wait`; PDUs that were put aside arrived earlier and do not count.
    pub(crate) fn expect_nothing_new(&mut self, wait: Duration, why: &str) -> Outcome {
        match self.arrive(wait)? {
            Received::Nothing => Ok(()),
            Received::Closed => fail!("{why}; the connection was closed"),
            Received::Pdu(pdu) => fail!("{why}; came {}", pdu.shown()),
        }
    }

    /// Puts a PDU aside for a later wait.
    pub(crate) fn put_back(&mut self, pdu: Pdu) {
        self.inbox.push_back(pdu);
    }

    /// Fails if a PDU is put aside or arrives within `wait`.
    pub(crate) fn expect_nothing(&mut self, wait: Duration, why: &str) -> Outcome {
        match self.receive_within(wait)? {
            Received::Nothing => Ok(()),
            Received::Closed => fail!("{why}; the connection was closed"),
            Received::Pdu(pdu) => fail!("{why}; came {}", pdu.shown()),
        }
    }

    /// Waits for the target to close the connection, and ignores the PDUs that arrive before. Returns whether
    /// it did.
    pub(crate) fn closes(&mut self, wait: Duration) -> Outcome<bool> {
        let until = Instant::now() + wait;
        loop {
            match self.arrive(until.saturating_duration_since(Instant::now()))? {
                Received::Closed => return Ok(true),
                Received::Nothing => return Ok(false),
                Received::Pdu(_) => {}
            }
        }
    }
}

/// Returns whether a PDU announces that the target dropped a connection.
fn tells_of_a_drop(pdu: &Pdu) -> bool {
    pdu.opcode() == Opcode::ASYNC_MESSAGE && pdu.byte(36) == AsyncEventCode::CONNECTION_DROP.0
}

/// Returns whether a PDU is a NOP-In that answers no ping of ours.
fn is_unasked_nop(pdu: &Pdu) -> bool {
    pdu.opcode() == NopIn::OPCODE && pdu.itt() == Itt::NONE
}

/// Returns whether a PDU uses up a StatSN (§4.2.2.2).
pub(crate) fn consumes_stat_sn(pdu: &Pdu) -> bool {
    match pdu.opcode() {
        Opcode::DATA_IN => pdu.flags() & 1 != 0,
        Opcode::R2T => false,
        Opcode::NOP_IN => pdu.itt() != Itt::NONE,
        _ => true,
    }
}
