//! From bytes to requests: what each PDU that comes is, where its data goes, and whose affair it is.
//!
//! A PDU is looked at twice. When its header is whole, [`Engine::begin`] says where the data segment belongs, and
//! nothing else happens. When its last byte is there and its digest is right, [`Engine::end`] acts on it.

use base::buffer::{Buf, Bytes};
use base::state_machine::ConnId;
use base::time::Instant;

use super::arena::Key;
use super::connection::{Body, Control, Incoming, Output, index};
use super::contract::Down;
use super::engine::{CONTROL_COST, Engine, MAX_CONTROL_BYTES, MAX_CONTROL_QUEUED};
use super::session::Request;
use super::why::Why;
use crate::framing::{DataSink, FramingEvent, ReceivedPdu, Receiver, StreamError};
use crate::login::directory::Directory;
use crate::pdu::nop_in::NopIn;
use crate::pdu::reject::{Reject, RejectReason};
use crate::pdu::{Bhs, Itt, Opcode, PduHeader, TargetSn, Ttt};
use crate::recovery::RecoveryAction;
use crate::serial::{CmdSn, DataSn};

/// What a PDU comes with.
#[derive(Clone, Copy)]
pub(super) struct Cx<'a> {
    pub(super) now: Instant,
    pub(super) conn: ConnId,
    pub(super) directory: &'a dyn Directory,
}

impl Engine {
    /// Reads every PDU that is whole in `bytes`, and the beginning of the next.
    pub(super) fn read(
        &mut self,
        now: Instant,
        conn: ConnId,
        receiver: &mut Receiver,
        mut bytes: &[u8],
        directory: &dyn Directory,
    ) -> Result<(), Why> {
        loop {
            match receiver.advance(&mut bytes) {
                Ok(FramingEvent::NeedMoreBytes) => return Ok(()),
                Ok(FramingEvent::Header(bhs)) => {
                    let landing = self.begin(conn, &bhs)?;
                    receiver.set_sink(landing);
                }
                Ok(FramingEvent::Pdu(segment)) => {
                    self.stats.pdus_in += 1;
                    let cx = Cx { now, conn, directory };
                    self.end(cx, segment, receiver.ahs())?;
                    let Some(connection) = self.conn_mut(conn) else { return Ok(()) };
                    if !connection.is_heard() {
                        return Ok(());
                    }
                    connection.heard = now;
                    connection.progress = 0;
                    receiver.set_framing(connection.framing);
                }
                Ok(FramingEvent::Damaged) => {
                    self.stats.header_digest_errors += 1;
                    self.count(conn, |repairs| repairs.header_digest_errors += 1);
                }
                Err(StreamError::HeaderDigest) => return Err(Why::HeaderDigestMismatch),
                Err(StreamError::TooLong) => return Err(Why::DataSegmentTooLong),
                Err(StreamError::RxBufferTaken) => return Err(Why::Bug),
            }
        }
    }

    /// Says where the data segment of a PDU belongs.
    fn begin(&mut self, conn: ConnId, bhs: &Bhs) -> Result<DataSink, Why> {
        let Some(connection) = self.conn_mut(conn) else { return Err(Why::Bug) };
        connection.incoming = Incoming::Plain;
        let len = usize::try_from(bhs.data_len()).unwrap_or(usize::MAX);
        let Some(session) = connection.session else {
            return Ok(DataSink::Append(self.pool.take(len)));
        };
        match bhs.opcode() {
            Opcode::DATA_OUT => Ok(self.begin_data_out(conn, session, bhs)),
            _ if len == 0 => Ok(DataSink::Discard),
            Opcode::SCSI_COMMAND => Ok(self.begin_command(conn, session, bhs)),
            Opcode::NOP_OUT | Opcode::TEXT_REQUEST => Ok(self.room_for(conn, len)),
            _ => Ok(DataSink::Discard),
        }
    }

    /// Takes a buffer for `len` bytes out of the budget; without room the data is read and forgotten.
    pub(super) fn room_for(&mut self, conn: ConnId, len: usize) -> DataSink {
        let session = self.conn(conn).and_then(|connection| connection.session);
        let Some(state) = session.and_then(|key| self.sessions.get_mut(key)) else {
            return DataSink::Discard;
        };
        if !self.unasked.try_reserve(self.now, &mut state.unasked, len) {
            return DataSink::Discard;
        }
        let buf = self.pool.take(len);
        if let Some(connection) = self.conn_mut(conn) {
            connection.reserved = len;
        }
        DataSink::Append(buf)
    }

    /// Acts on a PDU that came whole.
    fn end(&mut self, cx: Cx<'_>, segment: ReceivedPdu, ahs: &[u8]) -> Result<(), Why> {
        let conn = cx.conn;
        let Some(connection) = self.conn_mut(conn) else { return Err(Why::Bug) };
        let reserved = core::mem::take(&mut connection.reserved);
        let Some(session) = connection.session else { return self.login_pdu(cx, segment) };
        self.take_ack(conn, &segment.bhs);
        let opcode = segment.bhs.opcode();
        if opcode == Opcode::DATA_OUT {
            return self.end_data_out(conn, session, segment);
        }
        if opcode == Opcode::SCSI_COMMAND {
            return self.end_command(cx, session, segment, ahs, reserved);
        }
        self.give_unasked(Some(session), reserved);
        let bhs = segment.bhs;
        let data = match segment.sink {
            DataSink::Append(buf) => Some(buf),
            _ => None,
        };
        let done = self.end_control(cx, session, &bhs, (data, segment.digest_ok));
        done.or_else(|why| self.refuse(conn, &bhs, why))
    }

    /// Acts on a PDU that is neither a command nor data.
    fn end_control(
        &mut self,
        cx: Cx<'_>,
        session: Key,
        bhs: &Bhs,
        (data, intact): (Option<Buf>, bool),
    ) -> Result<(), Why> {
        let conn = cx.conn;
        let data = data.map(Buf::freeze);
        if !intact {
            self.recycle(data);
            return Err(Why::DataDigestMismatch);
        }
        if bhs.ahs_len() > 0 {
            self.recycle(data);
            return Err(Why::AhsNotAllowed);
        }
        if bhs.data_len() > 0 && data.is_none() {
            let takes_data = matches!(bhs.opcode(), Opcode::NOP_OUT | Opcode::TEXT_REQUEST);
            return Err(if takes_data { Why::NoRoom } else { Why::DataNotAllowed });
        }
        match bhs.opcode() {
            Opcode::NOP_OUT => {
                let ping = crate::pdu::nop_out::NopOut::decode(bhs)?;
                let request = Request::Ping(conn, ping, data);
                self.number(cx, session, (ping.immediate, ping.cmd_sn), request)
            }
            Opcode::TEXT_REQUEST => {
                let text = crate::pdu::text_request::TextRequest::decode(bhs)?;
                let request = Request::Text(conn, text, data);
                self.number(cx, session, (text.immediate, text.cmd_sn), request)
            }
            Opcode::LOGOUT_REQUEST => {
                let logout = crate::pdu::logout_request::LogoutRequest::decode(bhs)?;
                let request = Request::Logout(conn, logout);
                self.number(cx, session, (logout.immediate, logout.cmd_sn), request)
            }
            Opcode::TMF_REQUEST => {
                let tmf = crate::pdu::tmf_request::TmfRequest::decode(bhs)?;
                self.tmf_request(cx, session, &tmf)
            }
            Opcode::SNACK => self.snack(conn, session, &crate::pdu::snack::Snack::decode(bhs)?),
            Opcode::LOGIN_REQUEST => Err(Why::LoginAfterLogin),
            Opcode(0x20..=0x3f) => Err(Why::TargetPdu),
            _ => Err(Why::UnknownOpcode),
        }
    }

    /// Gives a request its turn: at once if it is immediate, else by its number.
    pub(super) fn number(
        &mut self,
        cx: Cx<'_>,
        session: Key,
        (immediate, cmd_sn): (bool, CmdSn),
        request: Request,
    ) -> Result<(), Why> {
        if immediate {
            return self.act(cx, session, request);
        }
        let Some(state) = self.sessions.get_mut(session) else { return Err(Why::Bug) };
        match state.window.take(cmd_sn, request) {
            super::window::Turn::Now(request) => {
                self.act(cx, session, request)?;
                self.go_on(cx, session)
            }
            super::window::Turn::Later => {
                self.watch_gap(cx.now, session);
                Ok(())
            }
            super::window::Turn::Duplicate(request) => {
                self.forget(request);
                Err(Why::DuplicateCmdSn)
            }
            super::window::Turn::Outside(request) => {
                self.forget(request);
                Err(Why::CmdSnOutsideWindow)
            }
        }
    }

    /// Gives the requests their turn that waited for a number which is there now.
    pub(super) fn go_on(&mut self, cx: Cx<'_>, session: Key) -> Result<(), Why> {
        while let Some(state) = self.sessions.get_mut(session).filter(|state| !state.is_leaving())
            && let Some(request) = state.window.next()
        {
            self.act(cx, session, request)?;
        }
        self.watch_gap(cx.now, session);
        self.release_tmfs(cx.now, session);
        Ok(())
    }

    /// Acts on a request whose turn it is.
    pub(super) fn act(&mut self, cx: Cx<'_>, session: Key, request: Request) -> Result<(), Why> {
        match request {
            Request::Command(command) => {
                self.deliver(session, command);
                Ok(())
            }
            Request::Manage(tmf) => self.line_up_tmf(cx, tmf),
            Request::Ping(conn, ..) | Request::Text(conn, ..) | Request::Logout(conn, _)
                if !self.conn(conn).is_some_and(|c| c.is_heard() && c.session == Some(session)) =>
            {
                self.forget(request);
                Ok(())
            }
            Request::Ping(conn, ping, data) => self.ping(conn, &ping, data),
            Request::Text(conn, text, data) => self.text(cx, conn, session, (&text, data)),
            Request::Logout(conn, logout) => self.logout(cx.now, conn, session, &logout),
            Request::Plug => Ok(()),
        }
    }

    /// Sets or clears the time that a missing number has.
    fn watch_gap(&mut self, now: Instant, session: Key) {
        use super::timer::{Owner, Timer};
        let Some(state) = self.sessions.get_mut(session) else { return };
        if !state.window.has_gap() {
            state.deadlines.clear(Timer::Gap);
            state.gap_looks = 0;
        } else if !state.deadlines.is_set(Timer::Gap) {
            let at = now.after(self.limits.gap_within);
            self.timers.set(Owner::Session(session), &mut state.deadlines, Timer::Gap, at);
        }
    }

    /// Looks after a session that has missed a command number for some time. At level 0 nothing can bring it; above,
    /// the initiator is shown what is expected, so that it sends the command again (§7.2.1), and given time.
    pub(super) fn gap_is_open(&mut self, now: Instant, session: Key) {
        use super::timer::{Owner, Timer};
        let Some(state) = self.sessions.get_mut(session) else { return };
        if !state.window.has_gap() {
            // What was behind it is gone with its connection.
            state.gap_looks = 0;
            return;
        }
        // While there is no connection, nothing can come.
        state.gap_looks += u32::from(!state.conns.is_empty());
        let waited = self.limits.gap_within.as_nanos().saturating_mul(state.gap_looks.into());
        if state.parameters.error_recovery_level == 0 || waited >= self.limits.data_within.as_nanos() {
            self.end_session(session, Down::Misbehaved(Why::CmdSnHole));
            self.stats.dropped += 1;
            return;
        }
        let at = now.after(self.limits.gap_within);
        self.timers.set(Owner::Session(session), &mut state.deadlines, Timer::Gap, at);
        let conns = state.conns.clone();
        for conn in conns {
            let shown = NopIn { lun: 0, itt: Itt::NONE, ttt: Ttt::NONE, sn: TargetSn::default() };
            if let Err(why) = self.control(conn, Control::NopIn(shown), Body::Empty) {
                self.drop_connection(conn, why);
            }
        }
    }

    fn forget(&mut self, request: Request) {
        if let Request::Ping(_, _, data) | Request::Text(_, _, data) = request {
            self.recycle(data);
        }
    }

    pub(super) fn recycle(&self, data: Option<Bytes>) {
        if let Some(data) = data {
            self.pool.recycle(data);
        }
    }

    /// Answers a PDU that broke a rule and belongs to no task.
    ///
    /// # Errors
    /// The rule again, when the connection must end.
    pub(super) fn refuse(&mut self, conn: ConnId, bhs: &Bhs, why: Why) -> Result<(), Why> {
        let answer = self.verdict(conn, why);
        if let Some(reason) = answer.reject {
            self.reject(conn, bhs, reason, self.next_number(conn, bhs, reason))?;
        }
        // A task that does not exist cannot fail.
        if answer.action == RecoveryAction::Drop { Err(why) } else { Ok(()) }
    }

    /// Returns what a Reject says about the numbers of a task (§11.17.2): for a SNACK that asks for Data-In or R2T PDUs
    /// that cannot be had, the next that would be sent.
    fn next_number(&self, conn: ConnId, bhs: &Bhs, reason: RejectReason) -> DataSn {
        if bhs.opcode() != Opcode::SNACK || reason != RejectReason::PROTOCOL_ERROR {
            return DataSn(0);
        }
        let session = self.conn(conn).and_then(|connection| self.sessions.get(connection.session?));
        let task = session.and_then(|state| self.tasks.get(state.find(&self.tasks, bhs.itt())?));
        task.map_or(DataSn(0), |task| DataSn(task.numbers().1))
    }

    /// Sends a Reject with the header of the refused PDU (RFC 7143 §11.17.4).
    pub(super) fn reject(
        &mut self,
        conn: ConnId,
        bhs: &Bhs,
        reason: RejectReason,
        data_sn: DataSn,
    ) -> Result<(), Why> {
        self.stats.rejects += 1;
        let reject = Reject { reason, sn: TargetSn::default(), data_sn };
        self.control(conn, Control::Reject(reject), Body::Text(bhs.bytes().to_vec()))
    }

    /// Queues a control PDU.
    ///
    /// # Errors
    /// `AnswersUnread` when too many wait.
    pub(super) fn control(&mut self, conn: ConnId, control: Control, body: Body) -> Result<(), Why> {
        let Some(connection) = self.conns.get_mut(index(conn)).and_then(Option::as_deref_mut) else {
            return Ok(());
        };
        let cost = CONTROL_COST + body.held();
        connection.control_queued += 1;
        connection.control_bytes += cost;
        self.control_bytes += cost;
        if connection.control_queued > MAX_CONTROL_QUEUED || connection.control_bytes > MAX_CONTROL_BYTES {
            return Err(Why::AnswersUnread);
        }
        self.queue(conn, Output::Control(alloc::boxed::Box::new((control, body))));
        self.relieve(conn)
    }

    /// Takes note that a control PDU has left and is not kept, or is kept no longer.
    pub(super) fn uncount(&mut self, conn: ConnId, body: &Body) {
        let cost = CONTROL_COST + body.held();
        if let Some(connection) = self.conns.get_mut(index(conn)).and_then(Option::as_deref_mut) {
            let freed = cost.min(connection.control_bytes);
            connection.control_bytes -= freed;
            self.control_bytes = self.control_bytes.saturating_sub(freed);
        }
    }

    /// Takes note of how much text a connection holds now.
    ///
    /// # Errors
    /// `AnswersUnread` when there is too much, and most of it is here.
    pub(super) fn hold_text(&mut self, conn: ConnId, held: usize) -> Result<(), Why> {
        let Some(connection) = self.conns.get_mut(index(conn)).and_then(Option::as_deref_mut) else {
            return Ok(());
        };
        let before = core::mem::replace(&mut connection.text_bytes, held);
        self.control_bytes = self.control_bytes.saturating_sub(before) + held;
        if held > before { self.relieve(conn) } else { Ok(()) }
    }

    /// Drops who has most of the control PDUs and of the text, if that is too much in all.
    ///
    /// # Errors
    /// `AnswersUnread` when it is this one.
    fn relieve(&mut self, conn: ConnId) -> Result<(), Why> {
        if self.control_bytes <= self.limits.control_bytes_max {
            return Ok(());
        }
        match self.greediest() {
            Some(greediest) if greediest != conn => {
                self.drop_connection(greediest, Why::AnswersUnread);
                Ok(())
            }
            _ => Err(Why::AnswersUnread),
        }
    }

    /// Returns who has most of them.
    fn greediest(&self) -> Option<ConnId> {
        let taken = (0..).zip(&self.conns).filter_map(|(number, conn)| Some((number, conn.as_ref()?)));
        taken
            .max_by_key(|(_, connection)| connection.control_bytes + connection.text_bytes)
            .map(|(number, _)| ConnId(number))
    }

    /// Ends a session for an error of our own.
    pub(super) fn bug(&mut self, session: Key) {
        self.stats.bugs += 1;
        self.end_session(session, Down::Misbehaved(Why::Bug));
    }
}
