//! A target that misbehaves in every allowed way, and drops some commands without a response.

use std::collections::{BTreeMap, VecDeque};

use base::rng::Rng;
use base::state_machine::ConnId;
use base::time::{Duration, Instant};
use iscsi::pdu::data_in::{DataIn, DataInStatus};
use iscsi::pdu::login_request::LoginRequest;
use iscsi::pdu::login_response::LoginResponse;
use iscsi::pdu::logout_request::LogoutRequest;
use iscsi::pdu::logout_response::{LogoutResponse, LogoutResult};
use iscsi::pdu::nop_in::NopIn;
use iscsi::pdu::nop_out::NopOut;
use iscsi::pdu::scsi_command::ScsiCommand;
use iscsi::pdu::scsi_response::ScsiResponse;
use iscsi::pdu::tmf_request::TmfRequest;
use iscsi::pdu::tmf_response::TmfResponse;
use iscsi::pdu::{BHS_LEN, Bhs, Itt, Opcode, PduHeader, TargetSn, Ttt};
use iscsi::serial::{CmdSn, DataSn, StatSn};
use scsi::opcode;
use scsi::sense::{Asc, Sense, SenseKey};
use transport::initiator::{Residual, ServiceResponse};
use transport::task_management::{TmfFunction, TmfResult};

use super::{Kind, LIMIT, PIECE, Property, Wrong};

/// How often the target does each of these, in parts per thousand.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Habits {
    /// The target never responds to a command.
    pub(super) hangs: u64,
    /// The target never responds to ABORT TASK, or to LOGICAL UNIT RESET.
    pub(super) deaf_to_aborts: bool,
    pub(super) deaf_to_resets: bool,
    /// The target is busy or its task set is full; or another initiator has reserved the unit.
    pub(super) busy: u64,
    pub(super) conflicts: u64,
    /// The target fails a read after the first half of its data.
    pub(super) fails: u64,
    /// The target reports a unit attention with a later command than the next one.
    pub(super) late_attentions: u64,
    /// After a reset, the target ends commands with TASK ABORTED.
    pub(super) tells_aborts: bool,
    /// The target answers INQUIRY only when the test says so.
    pub(super) slow_inquiries: bool,
    /// The target answers every READ CAPACITY with the unit attention of a reset.
    pub(super) resets_at_capacity: bool,
    /// The target ends every READ CAPACITY with NOT READY.
    pub(super) refuses_capacity: bool,
    /// The target rejects ABORT TASK.
    pub(super) rejects_aborts: bool,
    /// There is no device behind the LUN yet: the answer to INQUIRY.
    pub(super) absence: Option<Absence>,
}

/// How a target answers INQUIRY for a LUN whose device is not there yet.
#[derive(Clone, Copy, Debug)]
pub(super) enum Absence {
    /// With another device's serial number and PERIPHERAL QUALIFIER 011b.
    Qualifier,
    /// With ILLEGAL REQUEST, INVALID FIELD IN CDB.
    Refusal,
    /// With an empty page.
    NoSerialNumber,
}

/// A command that the target executes.
struct Task {
    conn: ConnId,
    itt: Itt,
    kind: Kind,
    id: u64,
    attempt: u64,
    /// When the command ends; `None` for never.
    at: Option<Instant>,
    since: Instant,
    /// Whether the initiator has aborted it.
    unwanted: bool,
}

/// The target's end of a connection.
#[derive(Default)]
pub(super) struct End {
    pub(super) inbox: Vec<u8>,
    pub(super) outbox: Vec<u8>,
    stat_sn: u32,
    pub(super) close: bool,
}

/// The history of a command at the target.
#[derive(Default)]
pub(super) struct Record {
    /// How often it may have been executed, or may still be.
    executions: u32,
    /// The attempt whose data the last GOOD status confirmed.
    pub(super) good: Option<u64>,
}

pub(super) struct Target {
    rng: Rng,
    pub(super) habits: Habits,
    pub(super) ends: BTreeMap<ConnId, End>,
    tasks: Vec<Task>,
    attentions: VecDeque<Asc>,
    /// INQUIRY commands that were not answered, each with the device that it found.
    inquiries: Vec<(ConnId, Itt, u8)>,
    exp_cmd_sn: u32,
    attempts: u64,
    /// The serial number of the device behind the unit.
    pub(super) device: u8,
    /// The capacity of that device, in blocks of 512 bytes.
    pub(super) blocks: u8,
    pub(super) records: BTreeMap<u64, Record>,
    pub(super) wrongs: Vec<Wrong>,
    pub(super) seen: BTreeMap<&'static str, u32>,
}

impl Target {
    pub(super) fn new(seed: u64, habits: Habits) -> Self {
        Self {
            rng: Rng::from_seed(seed),
            habits,
            ends: BTreeMap::new(),
            tasks: Vec::new(),
            attentions: VecDeque::new(),
            inquiries: Vec::new(),
            exp_cmd_sn: 1,
            attempts: 0,
            device: b'1',
            blocks: 100,
            records: BTreeMap::new(),
            wrongs: Vec::new(),
            seen: BTreeMap::new(),
        }
    }

    pub(super) fn connect(&mut self, conn: ConnId) {
        self.ends.insert(conn, End { stat_sn: 1, ..End::default() });
    }

    /// Ends a connection with all its tasks.
    pub(super) fn disconnect(&mut self, conn: ConnId) {
        self.ends.remove(&conn);
        self.tasks.retain(|task| task.conn != conn);
        self.inquiries.retain(|(of, ..)| *of != conn);
    }

    pub(super) fn next(&self) -> Option<Instant> {
        self.tasks.iter().filter_map(|task| task.at).min()
    }

    fn note(&mut self, what: &'static str) {
        *self.seen.entry(what).or_default() += 1;
    }

    /// Resets the unit, or clears its task set, as another initiator does.
    pub(super) fn reset_by_another(&mut self) {
        self.note("resets by another initiator");
        let asc = if self.rng.chance(1, 2) {
            Asc::BUS_DEVICE_RESET_OCCURRED
        } else {
            Asc::COMMANDS_CLEARED_BY_ANOTHER_INITIATOR
        };
        for task in std::mem::take(&mut self.tasks) {
            if self.habits.tells_aborts {
                self.status(task.conn, task.itt, 0x40, None);
            } else {
                self.note("commands ended without a word");
            }
        }
        self.attentions.push_back(asc);
    }

    /// Replaces the device behind the unit by another one.
    pub(super) fn exchange_device(&mut self) {
        self.device += 1;
        self.attentions.push_back(Asc::DEVICE_IDENTIFIER_CHANGED);
    }

    /// Reports a reset with the next command.
    pub(super) fn tell_reset(&mut self) {
        self.attentions.push_back(Asc::POWER_ON_OCCURRED);
    }

    /// Reports with the next command that the capacity changed.
    pub(super) fn tell_capacity(&mut self) {
        self.attentions.push_back(Asc::CAPACITY_DATA_HAS_CHANGED);
    }

    /// Reports with the next command that the INQUIRY data changed.
    pub(super) fn tell_change(&mut self) {
        self.attentions.push_back(Asc::INQUIRY_DATA_HAS_CHANGED);
    }

    /// Answers the INQUIRY commands that were held back. Returns how many there were.
    pub(super) fn answer_inquiries(&mut self) -> usize {
        let held = std::mem::take(&mut self.inquiries);
        held.iter().for_each(|(conn, itt, device)| self.inquiry(*conn, *itt, *device));
        held.len()
    }

    /// Returns how many unit attentions were not reported yet.
    pub(super) fn attentions_left(&self) -> usize {
        self.attentions.len()
    }

    /// Changes a mode page.
    pub(super) fn change_modes(&mut self) {
        self.attentions.push_back(Asc::MODE_PARAMETERS_CHANGED);
    }

    /// Ends the commands that are due, and looks for commands that the session has not aborted in time.
    pub(super) fn work(&mut self, now: Instant) {
        while let Some(at) = self.tasks.iter().position(|task| task.at.is_some_and(|at| at <= now)) {
            let task = self.tasks.remove(at);
            self.execute(&task);
        }
        let patient = LIMIT * 2;
        for task in &self.tasks {
            if task.at.is_none() && !task.unwanted && now.since(task.since) > patient {
                self.wrongs
                    .push((Property::LimitIsKept, format!("{:?} {} is left alone", task.kind, task.id)));
            }
        }
    }

    fn execute(&mut self, task: &Task) {
        match task.kind {
            Kind::Read => {
                self.piece(task, 0, None);
                if self.rng.below(1000) < self.habits.fails {
                    self.note("reads that failed with half their data");
                    let sense = Sense::new(SenseKey::ABORTED_COMMAND, Asc::PROTOCOL_SERVICE_CRC_ERROR);
                    return self.status_after(task, sense);
                }
                self.records.entry(task.id).or_default().good = Some(task.attempt);
                let status = DataInStatus { status: 0, residual: Residual::None };
                self.piece(task, 1, Some(status));
            }
            Kind::Write | Kind::Once | Kind::Look => self.status(task.conn, task.itt, 0, None),
        }
    }

    fn piece(&mut self, task: &Task, number: u32, status: Option<DataInStatus>) {
        let pdu = DataIn {
            is_final: true,
            acknowledge: false,
            status,
            lun: 0,
            itt: task.itt,
            ttt: Ttt::NONE,
            sn: self.sn(task.conn, status.is_some()),
            data_sn: DataSn(number),
            buffer_offset: number * PIECE,
        };
        let data: Vec<u8> = task.attempt.to_be_bytes().iter().copied().cycle().take(PIECE as usize).collect();
        self.send(task.conn, &pdu, &data);
    }

    fn status_after(&mut self, task: &Task, sense: Sense) {
        let mut pdu = self.response(task.conn, task.itt, 2);
        pdu.exp_data_sn = DataSn(1);
        pdu.residual = Residual::Underflow(PIECE);
        self.send(task.conn, &pdu, &sense_data(sense));
    }

    fn status(&mut self, conn: ConnId, itt: Itt, status: u8, sense: Option<Sense>) {
        if !self.ends.contains_key(&conn) {
            return;
        }
        let pdu = self.response(conn, itt, status);
        self.send(conn, &pdu, &sense.map(sense_data).unwrap_or_default());
    }

    fn response(&mut self, conn: ConnId, itt: Itt, status: u8) -> ScsiResponse {
        ScsiResponse {
            response: ServiceResponse::COMPLETED,
            status,
            status_qualifier: 0,
            itt,
            snack_tag: 0,
            sn: self.sn(conn, true),
            exp_data_sn: DataSn(0),
            bidirectional_read_residual: Residual::None,
            residual: Residual::None,
        }
    }

    fn sn(&mut self, conn: ConnId, uses: bool) -> TargetSn {
        let exp_cmd_sn = CmdSn(self.exp_cmd_sn);
        let end = self.ends.get_mut(&conn).unwrap();
        let stat_sn = StatSn(if uses { end.stat_sn } else { 0 });
        end.stat_sn += u32::from(uses);
        TargetSn { stat_sn, exp_cmd_sn, max_cmd_sn: exp_cmd_sn.plus(31) }
    }

    fn send(&mut self, conn: ConnId, pdu: &impl PduHeader, data: &[u8]) {
        let Some(end) = self.ends.get_mut(&conn) else { return };
        end.outbox.extend_from_slice(&pdu.encode().with_data_len(data.len()).to_bytes());
        end.outbox.extend_from_slice(data);
        end.outbox.resize(end.outbox.len().next_multiple_of(4), 0);
    }

    /// Processes the bytes that were received on a connection.
    pub(super) fn read(&mut self, now: Instant, conn: ConnId) {
        while let Some(end) = self.ends.get_mut(&conn)
            && let Some(head) = end.inbox.first_chunk::<BHS_LEN>()
        {
            let bhs = Bhs::from_bytes(*head);
            let start = BHS_LEN + bhs.ahs_len();
            let stop = start + bhs.data_len() as usize;
            let data = end.inbox[start..stop].to_vec();
            end.inbox.drain(..stop.next_multiple_of(4));
            self.pdu(now, conn, &bhs, &data);
        }
    }

    fn pdu(&mut self, now: Instant, conn: ConnId, bhs: &Bhs, data: &[u8]) {
        match bhs.opcode() {
            Opcode::LOGIN_REQUEST => self.login(conn, &LoginRequest::decode(bhs).unwrap(), data),
            Opcode::SCSI_COMMAND => self.command(now, conn, &ScsiCommand::decode(bhs).unwrap()),
            Opcode::TMF_REQUEST => self.manage(conn, &TmfRequest::decode(bhs).unwrap()),
            Opcode::NOP_OUT => {
                let ping = NopOut::decode(bhs).unwrap();
                if ping.itt != Itt::NONE {
                    let sn = self.sn(conn, true);
                    self.send(conn, &NopIn { lun: ping.lun, itt: ping.itt, ttt: Ttt::NONE, sn }, &[]);
                }
            }
            Opcode::LOGOUT_REQUEST => {
                let asked = LogoutRequest::decode(bhs).unwrap();
                let sn = self.sn(conn, true);
                let response = LogoutResult::CLOSED;
                let pdu = LogoutResponse { response, itt: asked.itt, sn, time2wait: 0, time2retain: 0 };
                self.send(conn, &pdu, &[]);
                self.ends.get_mut(&conn).unwrap().close = true;
            }
            other => panic!("the session sent {other:?}"),
        }
    }

    fn login(&mut self, conn: ConnId, asked: &LoginRequest, text: &[u8]) {
        let text = String::from_utf8_lossy(text).into_owned();
        let mut answers: Vec<String> = Vec::new();
        for (name, value) in text.split_terminator('\0').filter_map(|pair| pair.split_once('=')) {
            let value = match name {
                "InitiatorName" | "InitiatorAlias" | "SessionType" | "TargetName" => continue,
                "HeaderDigest" | "DataDigest" | "AuthMethod" => "None",
                "InitialR2T" => "No",
                _ => value.split(',').next().unwrap_or_default(),
            };
            answers.push(format!("{name}={value}"));
        }
        if asked.csg == 0 {
            answers.push("TargetPortalGroupTag=1".to_owned());
        }
        let done = asked.transit && asked.nsg == 3;
        if done && asked.tsih == 0 {
            // Session reinstatement: the tasks of the old session are ended first.
            let old: Vec<ConnId> = self.ends.keys().copied().filter(|other| *other != conn).collect();
            for other in old {
                self.tasks.retain(|task| task.conn != other);
                self.ends.get_mut(&other).unwrap().close = true;
            }
            self.exp_cmd_sn = asked.cmd_sn.0;
            self.attentions.push_back(Asc::I_T_NEXUS_LOSS_OCCURRED);
        }
        let pdu = LoginResponse {
            transit: asked.transit,
            continues: false,
            csg: asked.csg,
            nsg: if asked.transit { asked.nsg } else { 0 },
            version_max: 0,
            version_active: 0,
            isid: asked.isid,
            tsih: if done { 7 } else { asked.tsih },
            itt: asked.itt,
            sn: self.sn(conn, true),
            status: 0,
        };
        let text: Vec<u8> = answers.iter().flat_map(|key| key.bytes().chain([0])).collect();
        self.send(conn, &pdu, &text);
    }

    fn command(&mut self, now: Instant, conn: ConnId, asked: &ScsiCommand) {
        if !asked.immediate {
            self.exp_cmd_sn = asked.cmd_sn.next().0;
        }
        let kind = match asked.cdb[0] {
            opcode::READ_16 => Kind::Read,
            opcode::WRITE_16 => Kind::Write,
            opcode::COMPARE_AND_WRITE => Kind::Once,
            opcode::TEST_UNIT_READY => Kind::Look,
            opcode::INQUIRY if asked.cdb[1] == 0 => {
                let data = self.standard_inquiry();
                return self.answer(conn, asked.itt, &data, Residual::None);
            }
            opcode::INQUIRY if self.habits.slow_inquiries => {
                return self.inquiries.push((conn, asked.itt, self.device));
            }
            opcode::INQUIRY => return self.inquiry(conn, asked.itt, self.device),
            opcode::SERVICE_ACTION_IN_16 => return self.capacity(conn, asked.itt),
            other => panic!("the session sent {other:02x}h"),
        };
        let id = u64::from_be_bytes(asked.cdb[2..10].try_into().unwrap());
        self.attempts += 1;
        if kind != Kind::Look && self.tasks.iter().any(|task| task.id == id && task.kind != Kind::Look) {
            self.wrongs.push((Property::OneAttemptAtATime, format!("{kind:?} {id} is here already")));
        }
        let late = self.rng.below(1000) < self.habits.late_attentions;
        if !late && let Some(asc) = self.attentions.pop_front() {
            return self.status(conn, asked.itt, 2, Some(Sense::new(SenseKey::UNIT_ATTENTION, asc)));
        }
        if self.rng.below(1000) < self.habits.busy {
            let status = if self.rng.chance(1, 2) { 0x08 } else { 0x28 };
            return self.status(conn, asked.itt, status, None);
        }
        if self.rng.below(1000) < self.habits.conflicts && kind != Kind::Look {
            return self.status(conn, asked.itt, 0x18, None);
        }
        let record = self.records.entry(id).or_default();
        record.executions += 1;
        if kind == Kind::Once && record.executions > 1 {
            self.wrongs.push((Property::NeverTwice, format!("{id} may have been carried out before")));
        }
        let hangs = self.rng.below(1000) < self.habits.hangs;
        if hangs {
            self.note("commands that hang");
        }
        let at = (!hangs).then(|| now.after(Duration::from_micros(self.rng.below(50_000))));
        let attempt = self.attempts;
        let task = Task { conn, itt: asked.itt, kind, id, attempt, at, since: now, unwanted: false };
        if kind == Kind::Read && hangs && self.rng.chance(1, 2) {
            self.piece(&task, 0, None);
        }
        self.tasks.push(task);
    }

    /// Returns the serial number (INQUIRY, page 80h), even with a unit attention pending.
    fn inquiry(&mut self, conn: ConnId, itt: Itt, device: u8) {
        match self.habits.absence {
            None => {}
            Some(Absence::Qualifier) => {
                return self.answer(conn, itt, &[0x7f, 0x80, 0, 1, b'9'], Residual::Underflow(1024 - 5));
            }
            Some(Absence::Refusal) => {
                let sense = Sense::new(SenseKey::ILLEGAL_REQUEST, Asc::INVALID_FIELD_IN_CDB);
                return self.status(conn, itt, 2, Some(sense));
            }
            Some(Absence::NoSerialNumber) => {
                return self.answer(conn, itt, &[0, 0x80, 0, 0], Residual::Underflow(1024 - 4));
            }
        }
        self.answer(conn, itt, &[0, 0x80, 0, 1, device], Residual::Underflow(1024 - 5));
    }

    /// Returns the standard INQUIRY data: the serial number is part of the product.
    pub(super) fn standard_inquiry(&self) -> [u8; 36] {
        let mut data = [b' '; 36];
        data[..8].copy_from_slice(&[0, 0, 6, 2, 31, 0, 0, 0]);
        data[16] = self.device;
        data
    }

    /// Returns the capacity (READ CAPACITY(16)): blocks of 512 bytes.
    fn capacity(&mut self, conn: ConnId, itt: Itt) {
        self.note("READ CAPACITY");
        if self.habits.resets_at_capacity {
            self.tell_reset();
        }
        if let Some(asc) = self.attentions.pop_front() {
            return self.status(conn, itt, 2, Some(Sense::new(SenseKey::UNIT_ATTENTION, asc)));
        }
        if self.habits.refuses_capacity {
            let sense = Sense::new(SenseKey::NOT_READY, Asc::NONE);
            return self.status(conn, itt, 2, Some(sense));
        }
        let mut answer = [0; 32];
        (answer[7], answer[10]) = (self.blocks - 1, 2);
        self.answer(conn, itt, &answer, Residual::None);
    }

    fn answer(&mut self, conn: ConnId, itt: Itt, answer: &[u8], residual: Residual) {
        if !self.ends.contains_key(&conn) {
            return;
        }
        let status = DataInStatus { status: 0, residual };
        let pdu = DataIn {
            is_final: true,
            acknowledge: false,
            status: Some(status),
            lun: 0,
            itt,
            ttt: Ttt::NONE,
            sn: self.sn(conn, true),
            data_sn: DataSn(0),
            buffer_offset: 0,
        };
        self.send(conn, &pdu, answer);
    }

    fn manage(&mut self, conn: ConnId, asked: &TmfRequest) {
        if !asked.immediate {
            self.exp_cmd_sn = asked.cmd_sn.next().0;
        }
        let response = match asked.function {
            TmfFunction::ABORT_TASK => {
                self.note("ABORT TASK");
                self.inquiries.retain(|(_, itt, _)| *itt != asked.referenced_task_tag);
                let at = self.tasks.iter().position(|task| task.itt == asked.referenced_task_tag);
                if let Some(at) = at {
                    self.tasks[at].unwanted = true;
                }
                if self.habits.deaf_to_aborts {
                    return;
                }
                if self.habits.rejects_aborts {
                    let sn = self.sn(conn, true);
                    let response = TmfResult::REJECTED;
                    return self.send(conn, &TmfResponse { response, itt: asked.itt, sn }, &[]);
                }
                at.map_or(TmfResult::NO_TASK, |at| {
                    self.tasks.remove(at);
                    TmfResult::COMPLETE
                })
            }
            TmfFunction::LOGICAL_UNIT_RESET => {
                self.note("LOGICAL UNIT RESET");
                if self.habits.deaf_to_resets {
                    return;
                }
                self.tasks.clear();
                self.attentions.push_back(Asc::BUS_DEVICE_RESET_OCCURRED);
                TmfResult::COMPLETE
            }
            other => panic!("the session asked for {other:?}"),
        };
        let sn = self.sn(conn, true);
        self.send(conn, &TmfResponse { response, itt: asked.itt, sn }, &[]);
    }
}

fn sense_data(sense: Sense) -> Vec<u8> {
    let mut out = [0; Sense::MAX_LEN];
    let len = sense.encode(false, &mut out);
    let prefix = u16::try_from(len).unwrap().to_be_bytes();
    prefix.into_iter().chain(out[..len].iter().copied()).collect()
}
