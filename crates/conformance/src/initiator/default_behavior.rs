//! The default behavior of the scripted target, which a case can replace: that of an ordinary target.

use iscsi::pdu::data_out::DataOut;
use iscsi::pdu::login_request::LoginRequest;
use iscsi::pdu::login_response::LoginResponse;
use iscsi::pdu::logout_request::LogoutRequest;
use iscsi::pdu::logout_response::{LogoutResponse, LogoutResult};
use iscsi::pdu::nop_in::NopIn;
use iscsi::pdu::nop_out::NopOut;
use iscsi::pdu::scsi_command::ScsiCommand;
use iscsi::pdu::text_request::TextRequest;
use iscsi::pdu::text_response::TextResponse;
use iscsi::pdu::tmf_request::TmfRequest;
use iscsi::pdu::tmf_response::TmfResponse;
use iscsi::pdu::{Itt, Opcode, Ttt};
use iscsi::serial::CmdSn;
use transport::task_management::TmfResult;

use crate::text::Keys;
use crate::verdict::Outcome;
use crate::wire::Pdu;

use super::conn::{PendingWrite, Session};
use super::disk::Answer;
use super::fixture::{Event, EventKind, Fixture, TARGET};

impl Fixture {
    /// Handles an event as an ordinary target does.
    pub(crate) fn serve(&mut self, event: &Event) -> Outcome {
        let EventKind::Received(pdu) = &event.what else { return Ok(()) };
        let conn = event.conn;
        self.number(conn, pdu);
        match pdu.opcode() {
            Opcode::LOGIN_REQUEST => self.login(conn, &pdu.read()?, pdu),
            Opcode::SCSI_COMMAND => self.execute(conn, &pdu.read()?, &pdu.data),
            Opcode::DATA_OUT => self.take_data(conn, &pdu.read()?, &pdu.data),
            Opcode::NOP_OUT => {
                let ping: NopOut = pdu.read()?;
                if ping.itt != Itt::NONE {
                    let pong = NopIn { lun: ping.lun, itt: ping.itt, ttt: Ttt::NONE, sn: self.counted(conn) };
                    self.send(conn, &pong, &pdu.data);
                }
                Ok(())
            }
            Opcode::TEXT_REQUEST => self.handle_text(conn, &pdu.read()?, &pdu.data),
            Opcode::LOGOUT_REQUEST => {
                let request: LogoutRequest = pdu.read()?;
                self.log_out(conn, &request);
                Ok(())
            }
            Opcode::TMF_REQUEST => {
                let request: TmfRequest = pdu.read()?;
                self.answer_management(conn, &request, TmfResult::COMPLETE);
                Ok(())
            }
            Opcode::SNACK => Ok(()),
            _ => fail!("an initiator must not send {}", pdu.shown()),
        }
    }

    /// Counts the CmdSN of a request as received.
    pub(super) fn number(&mut self, conn: usize, pdu: &Pdu) {
        let counted = matches!(
            pdu.opcode(),
            Opcode::SCSI_COMMAND
                | Opcode::NOP_OUT
                | Opcode::TEXT_REQUEST
                | Opcode::LOGOUT_REQUEST
                | Opcode::TMF_REQUEST
        );
        let session = self.conns.get(conn).and_then(|conn| conn.session);
        if let (true, false, Some(session)) =
            (counted, pdu.bhs.is_immediate(), session.and_then(|index| self.sessions.get_mut(index)))
        {
            let sn = CmdSn(pdu.word(24));
            if !sn.before(session.exp_cmd_sn) {
                session.exp_cmd_sn = sn.next();
            }
        }
    }

    fn login(&mut self, at: usize, request: &LoginRequest, pdu: &Pdu) -> Outcome {
        let said = Keys::parse(&pdu.data)?;
        let policy = self.policy.clone();
        let Some(conn) = self.conns.get_mut(at) else { return Ok(()) };
        let first = conn.first.get_or_insert(*request).cmd_sn;
        conn.cid = request.cid;
        conn.is_discovery |= said.value("SessionType") == Some("Discovery");
        let mut answers = Keys::new();
        let mut transit = request.transit;
        if request.csg == 0 {
            answers.push("TargetPortalGroupTag", "1");
            if said.value("AuthMethod").is_some() {
                answers.push("AuthMethod", "None");
            }
            // Some initiators send all their keys in the first request.
            answers.append(policy.answer(&said, &mut conn.agreed));
        } else {
            if conn.offered {
                conn.agreed.take(&said);
            }
            answers.append(policy.answer(&said, &mut conn.agreed));
            if !conn.offered {
                conn.offered = true;
                answers.push("MaxRecvDataSegmentLength", &policy.recv_max.to_string());
                if !conn.is_discovery && request.tsih == 0 {
                    let offer = policy.offer(&mut conn.agreed);
                    transit &= offer.is_empty();
                    answers.append(offer);
                }
            }
        }
        let ends = transit && request.nsg == 3;
        if ends && request.csg == 0 {
            answers.push("MaxRecvDataSegmentLength", &policy.recv_max.to_string());
        }
        let tsih = if ends { self.join_session(at, request, first) } else { request.tsih };
        let sn = self.counted(at);
        let response = LoginResponse {
            transit,
            continues: false,
            csg: request.csg,
            nsg: if transit { request.nsg } else { 0 },
            version_max: 0,
            version_active: 0,
            isid: request.isid,
            tsih,
            itt: request.itt,
            sn: iscsi::pdu::TargetSn { exp_cmd_sn: if ends { sn.exp_cmd_sn } else { request.cmd_sn }, ..sn },
            status: 0,
        };
        self.send(at, &response, &answers.to_bytes());
        if let (true, Some(conn)) = (ends, self.conns.get_mut(at)) {
            conn.in_full_feature = true;
            conn.line.header_digest = conn.agreed.value("HeaderDigest") == "CRC32C";
            conn.line.data_digest = conn.agreed.value("DataDigest") == "CRC32C";
        }
        Ok(())
    }

    /// Creates the session of a completed login, or adds the connection to its session. Returns the TSIH.
    fn join_session(&mut self, at: usize, request: &LoginRequest, first: CmdSn) -> u16 {
        let known = self.sessions.iter().position(|s| s.tsih == request.tsih && s.isid == request.isid);
        let agreed = self.conns.get(at).map(|conn| conn.agreed.clone()).unwrap_or_default();
        let index = known.unwrap_or_else(|| {
            let tsih = u16::try_from(self.sessions.len() + 1).unwrap_or(1);
            let max_cmd_sn = first.minus(1);
            let session = Session { isid: request.isid, tsih, exp_cmd_sn: first, max_cmd_sn, agreed };
            self.sessions.push(session);
            self.sessions.len() - 1
        });
        if let Some(conn) = self.conns.get_mut(at) {
            conn.session = Some(index);
        }
        self.sessions.get(index).map_or(1, |session| session.tsih)
    }

    /// Executes a command.
    pub(super) fn execute(&mut self, conn: usize, command: &ScsiCommand, immediate: &[u8]) -> Outcome {
        match self.disk.answer(command.lun, &command.cdb) {
            Answer::Data(data) => self.send_data(conn, command, &data),
            Answer::Good => self.respond(conn, command.itt, 0, None),
            Answer::Illegal(code) => self.respond(conn, command.itt, 2, Some((5, code))),
            Answer::Write { lba, len } => {
                self.begin_write(conn, command, (lba, len), immediate);
                self.continue_write(conn, command.itt)?;
            }
        }
        Ok(())
    }

    /// Registers a write, without sending an R2T yet.
    pub(super) fn begin_write(
        &mut self,
        conn: usize,
        command: &ScsiCommand,
        (lba, len): (u64, usize),
        immediate: &[u8],
    ) {
        let mut data = vec![0; len];
        let have = immediate.len().min(len);
        data.iter_mut().zip(immediate).for_each(|(to, from)| *to = *from);
        let unsolicited = !command.is_final;
        let command = *command;
        let pending = PendingWrite { command, lba, data, have, asked: have, r2t_sn: 0, unsolicited };
        if let Some(conn) = self.conns.get_mut(conn) {
            conn.pending.push(pending);
        }
    }

    /// Stores data of a write at its offset.
    pub(super) fn take_data(&mut self, at: usize, head: &DataOut, bytes: &[u8]) -> Outcome {
        let Some(conn) = self.conns.get_mut(at) else { return Ok(()) };
        let Some(write) = conn.pending.iter_mut().find(|write| write.command.itt == head.itt) else {
            return Ok(());
        };
        let begin = usize::try_from(head.buffer_offset).unwrap_or(usize::MAX);
        let end = begin.saturating_add(bytes.len());
        let Some(place) = write.data.get_mut(begin..end) else {
            fail!("Data-Out ends at {end}, beyond the {} of the command", write.data.len())
        };
        place.copy_from_slice(bytes);
        write.have += bytes.len();
        if head.ttt == Ttt::NONE {
            write.asked = write.asked.max(end);
        }
        if head.is_final {
            write.unsolicited = false;
            self.continue_write(at, head.itt)?;
        }
        Ok(())
    }

    /// Sends an R2T for the data that a write lacks, or ends the write.
    pub(super) fn continue_write(&mut self, at: usize, itt: Itt) -> Outcome {
        if self.held == Some(itt) {
            return Ok(());
        }
        let Some(conn) = self.conns.get_mut(at) else { return Ok(()) };
        let Some(index) = conn.pending.iter().position(|write| write.command.itt == itt) else {
            return Ok(());
        };
        let session = conn.session.and_then(|index| self.sessions.get(index));
        let burst = session.map_or(262_144, |session| session.agreed.number("MaxBurstLength"));
        let burst = usize::try_from(burst).unwrap_or(262_144);
        let Some(write) = conn.pending.get_mut(index) else { return Ok(()) };
        if write.unsolicited || write.have < write.asked {
            return Ok(());
        }
        if write.have >= write.data.len() {
            let write = conn.pending.remove(index);
            self.disk.write(write.lba, &write.data);
            self.respond(at, itt, 0, None);
            return Ok(());
        }
        let (offset, len) = (write.asked, burst.min(write.data.len() - write.asked));
        let (command, sn) = (write.command, write.r2t_sn);
        write.asked += len;
        write.r2t_sn += 1;
        let (offset, len) =
            (u32::try_from(offset).unwrap_or_default(), u32::try_from(len).unwrap_or_default());
        self.send_r2t(at, &command, sn, offset, len);
        Ok(())
    }

    /// Answers a text request: SendTargets, and declared keys.
    fn handle_text(&mut self, conn: usize, request: &TextRequest, data: &[u8]) -> Outcome {
        let said = Keys::parse(data)?;
        let mut answers = Keys::new();
        for (name, value) in said.iter() {
            match name {
                "SendTargets" => answers.append(self.records()),
                "MaxRecvDataSegmentLength" => {
                    if let Some(conn) = self.conns.get_mut(conn) {
                        conn.agreed.send_max = value.parse().unwrap_or(8192);
                    }
                    answers.push("MaxRecvDataSegmentLength", &self.policy.recv_max.to_string());
                }
                "InitiatorAlias" => {}
                _ => answers.push(name, "NotUnderstood"),
            }
        }
        self.send_text(conn, request, &answers, request.is_final);
        Ok(())
    }

    /// Returns the target records that answer SendTargets.
    pub(super) fn records(&self) -> Keys {
        let address = format!("{},1", self.options.listen);
        Keys::of(&[("TargetName", TARGET), ("TargetAddress", &address)])
    }

    /// Answers a text request, and keeps the negotiation open unless `is_final`.
    pub(super) fn send_text(
        &mut self,
        at: usize,
        request: &TextRequest,
        keys: &Keys,
        is_final: bool,
    ) -> TextResponse {
        let ttt = match self.conns.get_mut(at) {
            Some(conn) if !is_final => conn.ttt(),
            _ => Ttt::NONE,
        };
        let sn = self.counted(at);
        let response = TextResponse { is_final, continues: false, lun: 0, itt: request.itt, ttt, sn };
        self.send(at, &response, &keys.to_bytes());
        response
    }

    /// Answers a logout, and shuts down sending on the connections that it closes.
    pub(super) fn log_out(&mut self, at: usize, request: &LogoutRequest) {
        use iscsi::pdu::logout_request::LogoutReason;
        let sn = self.counted(at);
        let answer = LogoutResponse {
            response: LogoutResult::CLOSED,
            itt: request.itt,
            sn,
            time2wait: 0,
            time2retain: 20,
        };
        self.send(at, &answer, &[]);
        let session = self.conns.get(at).and_then(|conn| conn.session);
        for conn in self.conns.iter_mut().filter(|conn| conn.session == session && !conn.gone) {
            if request.reason == LogoutReason::CloseSession || conn.cid == request.cid {
                conn.line.end_sending();
            }
        }
    }

    /// Answers a task management request, and drops the tasks that it ends.
    pub(super) fn answer_management(&mut self, at: usize, request: &TmfRequest, result: TmfResult) {
        let sn = self.counted(at);
        self.send(at, &TmfResponse { response: result, itt: request.itt, sn }, &[]);
        if let Some(conn) = self.conns.get_mut(at) {
            let referenced = request.referenced_task_tag;
            conn.pending.retain(|write| referenced != Itt::NONE && write.command.itt != referenced);
        }
    }
}
