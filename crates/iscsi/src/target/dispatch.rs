//! From bytes to requests: identifies each received PDU, decides where its data segment is stored, and passes
//! it to its handler.
//!
//! A PDU is handled in two steps. When its header is complete, [`Engine::handle_header`] decodes it, decides
//! where its data segment is stored, and keeps both as [`Incoming`]. When the last byte is received and the
//! digest is checked, [`Engine::handle_pdu`] acts on it.

use base::buffer::Bytes;
use base::state_machine::ConnId;
use base::time::Instant;

use super::arena::Key;
use super::connection::index;
use super::engine::{CONTROL_COST, Engine, MAX_CONTROL_QUEUED};
use super::incoming::{ControlPdu, Incoming};
use super::output::{Body, Control, MAX_CONTROL_BYTES, Output};
use super::protocol_error::ProtocolError;
use super::session::{ControlData, Request};
use crate::framing::{DataSink, FramingEvent, ReceivedPdu, Receiver, StreamError};
use crate::login::directory::Directory;
use crate::pdu::data_out::DataOut;
use crate::pdu::nop_in::NopIn;
use crate::pdu::reject::{Reject, RejectReason};
use crate::pdu::{Bhs, Itt, Opcode, PduHeader, TargetSn, Ttt};
use crate::recovery::TargetAction;
use crate::serial::{CmdSn, DataSn};

/// The context of a received PDU.
#[derive(Clone, Copy)]
pub(super) struct PduContext<'a> {
    pub(super) now: Instant,
    pub(super) conn: ConnId,
    pub(super) directory: &'a dyn Directory,
}

impl Engine {
    /// Reads every PDU that is complete in `bytes`, and the beginning of the next.
    pub(super) fn read(
        &mut self,
        now: Instant,
        conn: ConnId,
        receiver: &mut Receiver,
        mut bytes: &[u8],
        directory: &dyn Directory,
    ) -> Result<(), ProtocolError> {
        loop {
            match receiver.advance(&mut bytes) {
                Ok(FramingEvent::NeedMoreBytes) => return Ok(()),
                Ok(FramingEvent::Header(bhs)) => {
                    let sink = self.handle_header(conn, &bhs)?;
                    receiver.set_sink(sink);
                }
                Ok(FramingEvent::Pdu(segment)) => {
                    self.stats.pdus_in += 1;
                    let context = PduContext { now, conn, directory };
                    if !self.traces.is_empty() {
                        self.trace_received(&context, &segment, receiver);
                    }
                    self.handle_pdu(context, segment, receiver.ahs())?;
                    let Some(connection) = self.conn_mut(conn) else {
                        return Err(ProtocolError::impossible());
                    };
                    if !connection.is_reading() {
                        return Ok(());
                    }
                    connection.last_heard = now;
                    connection.bytes_since_heard = 0;
                    receiver.set_framing(connection.framing);
                    if let Some(decryptor) = connection.decryptor.take() {
                        receiver.set_decryptor(*decryptor);
                    }
                }
                Ok(FramingEvent::Damaged) => {
                    self.stats.header_digest_errors += 1;
                    self.count_repair(conn, |repairs| repairs.header_digest_errors += 1);
                }
                Err(StreamError::HeaderDigest) => return Err(ProtocolError::HeaderDigestMismatch),
                Err(StreamError::Modified) => {
                    self.handle_omission(conn, ProtocolError::PdusModified);
                    return Ok(());
                }
                Err(StreamError::TooLong) => return Err(ProtocolError::DataSegmentTooLong),
                Err(StreamError::RxBufferTaken) => return Err(ProtocolError::Bug),
            }
        }
    }

    /// Decodes the header of a PDU, decides what becomes of the PDU, and returns the sink for its data
    /// segment.
    fn handle_header(&mut self, conn: ConnId, bhs: &Bhs) -> Result<DataSink, ProtocolError> {
        let Some(connection) = self.conn(conn) else { return Err(ProtocolError::impossible()) };
        let len = usize::try_from(bhs.data_len()).unwrap_or(usize::MAX);
        let Some(session) = connection.session else {
            // `login` decodes the PDUs of a login.
            return Ok(DataSink::Append(self.pool.take(len)));
        };
        let (incoming, sink) = match bhs.opcode() {
            Opcode::SCSI_COMMAND => return self.command_header(conn, session, bhs),
            Opcode::DATA_OUT => {
                let pdu = DataOut::decode(bhs)?;
                let (check, sink) = self.check_data_out(conn, session, bhs, &pdu);
                (Incoming::DataOut(pdu, check), sink)
            }
            opcode => {
                let takes_data = len > 0 && matches!(opcode, Opcode::NOP_OUT | Opcode::TEXT_REQUEST);
                let sink = if takes_data { self.reserve_unsolicited(conn, len) } else { DataSink::Discard };
                (Incoming::Control(ControlPdu::decode(bhs)), sink)
            }
        };
        if let Some(connection) = self.conn_mut(conn) {
            connection.incoming = Some(incoming);
        }
        Ok(sink)
    }

    /// Reserves `len` bytes of the memory quota and takes a buffer for them. Without memory, the data is read
    /// and discarded.
    pub(super) fn reserve_unsolicited(&mut self, conn: ConnId, len: usize) -> DataSink {
        let session = self.conn(conn).and_then(|connection| connection.session);
        let Some(state) = session.and_then(|key| self.sessions.get_mut(key)) else {
            return DataSink::Discard;
        };
        if !self.quotas.unsolicited.try_reserve(self.now, &mut state.shares.unsolicited, len) {
            return DataSink::Discard;
        }
        let buf = self.pool.take(len);
        if let Some(connection) = self.conn_mut(conn) {
            connection.reserved = len;
        }
        DataSink::Append(buf)
    }

    /// Handles a completely received PDU.
    fn handle_pdu(
        &mut self,
        context: PduContext<'_>,
        segment: ReceivedPdu,
        ahs: &[u8],
    ) -> Result<(), ProtocolError> {
        let conn = context.conn;
        let Some(connection) = self.conn_mut(conn) else { return Err(ProtocolError::impossible()) };
        let reserved = core::mem::take(&mut connection.reserved);
        let incoming = connection.incoming.take();
        let Some(session) = connection.session else { return self.login_pdu(context, segment) };
        self.handle_exp_stat_sn(conn, &segment.bhs);
        match &incoming {
            Some(Incoming::DataOut(pdu, check)) => {
                self.handle_data_out(conn, session, (pdu, *check), segment)
            }
            Some(Incoming::Command(command)) => {
                self.handle_command(context, session, command, segment, ahs, reserved)
            }
            Some(Incoming::Control(pdu)) => {
                let (bhs, intact) = (segment.bhs, segment.digest_ok);
                let bytes = match segment.sink {
                    DataSink::Append(buf) => Some(buf.freeze()),
                    _ => None,
                };
                let data = ControlData { bytes, reserved };
                let done = match check_control_pdu(&bhs, intact, *pdu, &data) {
                    Ok(pdu) => self.handle_control_pdu(context, session, &bhs, pdu, data),
                    Err(why) => {
                        self.drop_control_data(session, data);
                        Err(why)
                    }
                };
                done.or_else(|why| self.handle_violation(conn, &bhs, why))
            }
            None => Err(ProtocolError::impossible()),
        }
    }

    /// Handles a PDU that is neither a command nor Data-Out, and that [`check_control_pdu`] accepted.
    fn handle_control_pdu(
        &mut self,
        context: PduContext<'_>,
        session: Key,
        bhs: &Bhs,
        pdu: ControlPdu,
        data: ControlData,
    ) -> Result<(), ProtocolError> {
        let conn = context.conn;
        match pdu {
            ControlPdu::NopOut(ping) => {
                let request = Request::Ping(conn, ping, data);
                self.sequence_request(context, session, (ping.immediate, ping.cmd_sn), request)
            }
            ControlPdu::Text(text) => {
                let request = Request::Text(conn, text, data);
                self.sequence_request(context, session, (text.immediate, text.cmd_sn), request)
            }
            ControlPdu::Logout(logout) => {
                let request = Request::Logout(conn, logout);
                self.sequence_request(context, session, (logout.immediate, logout.cmd_sn), request)
            }
            ControlPdu::Tmf(tmf) => self.tmf_request(context, session, &tmf),
            ControlPdu::Snack(snack) => self.handle_snack(conn, session, bhs, &snack),
        }
    }

    /// Executes a request in its turn: at once if it is immediate, else in the order of the CmdSNs.
    pub(super) fn sequence_request(
        &mut self,
        context: PduContext<'_>,
        session: Key,
        (immediate, cmd_sn): (bool, CmdSn),
        request: Request,
    ) -> Result<(), ProtocolError> {
        if immediate {
            return self.execute_request(context, session, request);
        }
        let Some(state) = self.sessions.get_mut(session) else { return Err(ProtocolError::impossible()) };
        match state.window.receive(cmd_sn, request) {
            super::window::CmdSnOrder::InOrder(request) => {
                let done = self.execute_request(context, session, request);
                // Even if it is rejected, its number was received.
                self.execute_in_order(context, session).and(done)
            }
            super::window::CmdSnOrder::Early => {
                self.watch_gap(context.now, session);
                Ok(())
            }
            super::window::CmdSnOrder::Duplicate(request) => {
                self.drop_request(session, request);
                Err(ProtocolError::DuplicateCmdSn)
            }
            super::window::CmdSnOrder::OutsideWindow(request) => {
                self.drop_request(session, request);
                Err(ProtocolError::CmdSnOutsideWindow)
            }
        }
    }

    /// Executes the requests that waited for a lower number which has now been received.
    pub(super) fn execute_in_order(
        &mut self,
        context: PduContext<'_>,
        session: Key,
    ) -> Result<(), ProtocolError> {
        while let Some(state) = self.sessions.get_mut(session).filter(|state| !state.is_logging_out())
            && let Some(request) = state.window.next_in_order()
        {
            self.execute_early(context, session, request)?;
        }
        self.watch_gap(context.now, session);
        self.release_tmfs(context.now, session);
        Ok(())
    }

    /// Executes a request whose turn has come.
    pub(super) fn execute_request(
        &mut self,
        context: PduContext<'_>,
        session: Key,
        request: Request,
    ) -> Result<(), ProtocolError> {
        match request {
            Request::Command(command) => {
                self.deliver_in_order(session, command);
                Ok(())
            }
            Request::Tmf(tmf) => self.start_tmf(context, tmf),
            Request::Ping(conn, ..) | Request::Text(conn, ..) | Request::Logout(conn, _)
                if !self.conn(conn).is_some_and(|c| c.is_reading() && c.session == Some(session)) =>
            {
                self.drop_request(session, request);
                Ok(())
            }
            Request::Ping(conn, ping, data) => {
                let data = self.release_control_data(session, data);
                self.handle_nop_out(conn, &ping, data)
            }
            Request::Text(conn, text, data) => {
                let data = self.release_control_data(session, data);
                self.handle_text_request(context, conn, session, (&text, data))
            }
            Request::Logout(conn, logout) => self.handle_logout(context.now, conn, session, &logout),
            Request::AbortedSlot => Ok(()),
        }
    }

    /// Starts the gap timer if a command number is missing, and clears it otherwise.
    fn watch_gap(&mut self, now: Instant, session: Key) {
        use super::timer::{Owner, Timer};
        let Some(state) = self.sessions.get_mut(session) else { return };
        if !state.window.has_gap() {
            state.deadlines.clear(Timer::Gap);
            state.gap_polls = 0;
        } else if !state.deadlines.is_set(Timer::Gap) {
            let at = now.after(self.limits.gap_within);
            self.timers.set(Owner::Session(session), &mut state.deadlines, Timer::Gap, at);
        }
    }

    /// Handles a command number that has been missing for `gap_within`. At level 0 no initiator sends it
    /// again, and TCP keeps the order of one connection, so a session of one connection ends. From level 1
    /// on, a NOP-In shows the initiator the ExpCmdSN, so that it sends the command again (§7.2.1), until
    /// `data_within` has passed. In a session of several connections the command can still be in transit on
    /// a connection whose path is slower, so that it is awaited as long.
    pub(super) fn on_gap_timer(&mut self, now: Instant, session: Key) {
        use super::timer::{Owner, Timer};
        let Some(state) = self.sessions.get_mut(session) else { return self.impossible(Some(session)) };
        if !state.window.has_gap() {
            // The early requests were discarded when their connection was lost.
            state.gap_polls = 0;
            return;
        }
        // While the session has no connection, nothing can be received.
        state.gap_polls += u32::from(!state.conns.is_empty());
        let waited = self.limits.gap_within.as_nanos().saturating_mul(state.gap_polls.into());
        let can_come = state.parameters.error_recovery_level.retries_commands() || state.conns.len() > 1;
        if !can_come || waited >= self.limits.data_within.as_nanos() {
            return self.handle_gap(session, ProtocolError::CmdSnHole);
        }
        let at = now.after(self.limits.gap_within);
        self.timers.set(Owner::Session(session), &mut state.deadlines, Timer::Gap, at);
        let conns = state.conns.clone();
        for conn in conns {
            //= rfc7143#section-11.19.1
            //# If the target is initiating a NOP-In without wanting to receive a corresponding NOP-Out, this
            //# field MUST hold the reserved value 0xffffffff.
            let shown = NopIn { lun: 0, itt: Itt::NONE, ttt: Ttt::NONE, sn: TargetSn::default() };
            if let Err(why) = self.queue_control(conn, Control::NopIn(shown), Body::Empty) {
                self.drop_connection(conn, why);
            }
        }
    }

    /// Drops a request that is not executed, with the memory of its data.
    pub(super) fn drop_request(&mut self, session: Key, request: Request) {
        match request {
            Request::Command(command) => self.remove_task(command.task),
            Request::Tmf(key) => {
                self.drop_tmf(key);
            }
            Request::Ping(_, _, data) | Request::Text(_, _, data) => self.drop_control_data(session, data),
            Request::Logout(..) | Request::AbortedSlot => {}
        }
    }

    fn drop_control_data(&mut self, session: Key, data: ControlData) {
        let bytes = self.release_control_data(session, data);
        self.recycle(bytes);
    }

    /// Gives back the memory that is reserved for the data of a request, and returns the data: from now on,
    /// whatever keeps it counts it.
    fn release_control_data(&mut self, session: Key, data: ControlData) -> Option<Bytes> {
        self.release_unsolicited(Some(session), data.reserved);
        data.bytes
    }

    pub(super) fn recycle(&self, data: Option<Bytes>) {
        if let Some(data) = data {
            self.pool.recycle(data);
        }
    }

    /// Responds to a PDU that broke a rule and belongs to no task.
    ///
    /// # Errors
    /// Returns the broken rule again if the connection must end.
    pub(super) fn handle_violation(
        &mut self,
        conn: ConnId,
        bhs: &Bhs,
        why: ProtocolError,
    ) -> Result<(), ProtocolError> {
        let answer = self.error_response(conn, why);
        if let Some(reason) = answer.reject {
            self.reject(conn, bhs, reason, self.next_number(conn, bhs, reason))?;
        }
        match answer.action {
            TargetAction::Nothing => Ok(()),
            TargetAction::DropConnection => Err(why),
            TargetAction::EndSession => {
                self.end_session_of(conn, why);
                Ok(())
            }
            // A test of `recovery` knows that no error without a task has such a row.
            TargetAction::FailTask(_) | TargetAction::RequestAgain(_) => Err(ProtocolError::impossible()),
        }
    }

    /// Returns the DataSN field of a Reject (§11.17.2). For a SNACK that asks for Data-In or R2T PDUs that
    /// are not available, it is the next number to be sent.
    fn next_number(&self, conn: ConnId, bhs: &Bhs, reason: RejectReason) -> DataSn {
        if bhs.opcode() != Opcode::SNACK || reason != RejectReason::PROTOCOL_ERROR {
            return DataSn(0);
        }
        let session = self.conn(conn).and_then(|connection| self.sessions.get(connection.session?));
        let task = session.and_then(|state| self.tasks.get(state.find(&self.tasks, bhs.itt())?));
        task.map_or(DataSn(0), |task| DataSn(task.unacked_sn_range().1))
    }

    /// Sends a Reject with the header of the refused PDU (RFC 7143 §11.17.4).
    pub(super) fn reject(
        &mut self,
        conn: ConnId,
        bhs: &Bhs,
        reason: RejectReason,
        data_sn: DataSn,
    ) -> Result<(), ProtocolError> {
        self.stats.rejects += 1;
        let reject = Reject { reason, sn: TargetSn::default(), data_sn };
        self.queue_control(conn, Control::Reject(reject), Body::Text(bhs.bytes().to_vec()))
    }

    /// Queues a control PDU.
    ///
    /// # Errors
    /// Returns `AnswersUnread` when too many control PDUs wait on the connection, or too many bytes of them
    /// on all.
    pub(super) fn queue_control(
        &mut self,
        conn: ConnId,
        control: Control,
        body: Body,
    ) -> Result<(), ProtocolError> {
        let Some(connection) = self.conns.get_mut(index(conn)).and_then(Option::as_deref_mut) else {
            return Ok(());
        };
        let cost = CONTROL_COST + body.held();
        connection.control_queued += 1;
        connection.control_bytes += cost;
        self.control_bytes += cost;
        if connection.control_queued > MAX_CONTROL_QUEUED || connection.control_bytes > MAX_CONTROL_BYTES {
            return Err(ProtocolError::AnswersUnread);
        }
        self.queue(conn, Output::Control(alloc::boxed::Box::new((control, body))));
        self.enforce_control_limit(conn)
    }

    /// Releases the memory of a control PDU that was sent and is not retained, or is no longer retained.
    pub(super) fn uncount(&mut self, conn: ConnId, body: &Body) {
        let cost = CONTROL_COST + body.held();
        if let Some(connection) = self.conns.get_mut(index(conn)).and_then(Option::as_deref_mut) {
            let freed = cost.min(connection.control_bytes);
            connection.control_bytes -= freed;
            self.control_bytes = self.control_bytes.saturating_sub(freed);
        }
    }

    /// Records how much text a connection holds now.
    ///
    /// # Errors
    /// Returns `AnswersUnread` when the total exceeds its limit and this connection holds most of it.
    pub(super) fn hold_text(&mut self, conn: ConnId, held: usize) -> Result<(), ProtocolError> {
        let Some(connection) = self.conns.get_mut(index(conn)).and_then(Option::as_deref_mut) else {
            return Ok(());
        };
        let before = core::mem::replace(&mut connection.text_bytes, held);
        self.control_bytes = self.control_bytes.saturating_sub(before) + held;
        if held > before { self.enforce_control_limit(conn) } else { Ok(()) }
    }

    /// Drops the connection that holds most of the control PDUs and text, if their total exceeds its limit.
    ///
    /// # Errors
    /// Returns `AnswersUnread` when that is this connection.
    fn enforce_control_limit(&mut self, conn: ConnId) -> Result<(), ProtocolError> {
        if self.control_bytes <= self.limits.control_bytes_max {
            return Ok(());
        }
        match self.greediest() {
            Some(greediest) if greediest != conn => {
                self.handle_omission(greediest, ProtocolError::AnswersUnread);
                Ok(())
            }
            _ => Err(ProtocolError::AnswersUnread),
        }
    }

    /// Returns the connection that holds most bytes of control PDUs and text.
    fn greediest(&self) -> Option<ConnId> {
        let taken = (0..).zip(&self.conns).filter_map(|(number, conn)| Some((number, conn.as_ref()?)));
        taken
            .max_by_key(|(_, connection)| connection.control_bytes + connection.text_bytes)
            .map(|(number, _)| ConnId(number))
    }
}

/// Checks a PDU that is neither a command nor Data-Out before it is handled.
fn check_control_pdu(
    bhs: &Bhs,
    intact: bool,
    pdu: Result<ControlPdu, ProtocolError>,
    data: &ControlData,
) -> Result<ControlPdu, ProtocolError> {
    if !intact {
        return Err(ProtocolError::DataDigestMismatch);
    }
    if bhs.ahs_len() > 0 {
        return Err(ProtocolError::AhsNotAllowed);
    }
    if bhs.data_len() > 0 && data.bytes.is_none() {
        let takes_data = matches!(bhs.opcode(), Opcode::NOP_OUT | Opcode::TEXT_REQUEST);
        return Err(if takes_data { ProtocolError::NoRoom } else { ProtocolError::DataNotAllowed });
    }
    pdu
}
