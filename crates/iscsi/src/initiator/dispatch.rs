//! Reads PDUs, determines the destination of their data, and passes each to the function that handles it.
//!
//! A PDU is handled in two steps. When its header is complete, [`Session::data_sink_for`] determines the
//! destination of the data segment, and refuses PDUs that must not be read at all. When its last byte was
//! read and its digest was checked, [`Session::handle_pdu`] acts on it.

use base::buffer::Buf;
use base::time::Instant;

use super::connection_slot::Incoming;
use super::contract::Slot;
use super::protocol_error::ProtocolError;
use super::session::Session;
use crate::framing::{DataSink, FramingEvent, ReceivedPdu, Receiver, StreamError};
use crate::pdu::async_message::AsyncMessage;
use crate::pdu::logout_response::LogoutResponse;
use crate::pdu::nop_in::NopIn;
use crate::pdu::r2t::R2t;
use crate::pdu::reject::Reject;
use crate::pdu::scsi_response::ScsiResponse;
use crate::pdu::text_response::TextResponse;
use crate::pdu::tmf_response::TmfResponse;
use crate::pdu::{Bhs, Itt, Opcode, PduHeader, TargetSn};
use crate::serial::StatSn;

impl Session {
    /// Reads every complete PDU in `bytes`, and the beginning of the next.
    pub(super) fn read(
        &mut self,
        now: Instant,
        slot: Slot,
        receiver: &mut Receiver,
        mut bytes: &[u8],
    ) -> Result<(), ProtocolError> {
        let conn = self.connection(slot).map(|connection| connection.conn);
        if let Some(connection) = self.connection(slot).filter(|connection| connection.login.is_none()) {
            // The initiator may have declared a longer limit since the last PDU.
            receiver.set_framing(connection.framing);
        }
        loop {
            match receiver.advance(&mut bytes) {
                Ok(FramingEvent::NeedMoreBytes) => return Ok(()),
                Ok(FramingEvent::Header(bhs)) => {
                    let sink = self.data_sink_for(slot, &bhs)?;
                    receiver.set_sink(sink);
                }
                Ok(FramingEvent::Pdu(segment)) => {
                    self.stats.pdus_in += 1;
                    if let Some(connection) = self.connection_mut(slot) {
                        connection.heard = now;
                    }
                    let has_ahs = !receiver.ahs().is_empty();
                    self.handle_pdu(now, slot, segment, has_ahs)?;
                    // The connection may have ended with this PDU, and its slot may hold another one.
                    let Some(connection) =
                        self.connection_mut(slot).filter(|connection| Some(connection.conn) == conn)
                    else {
                        return Ok(());
                    };
                    receiver.set_framing(connection.framing);
                    if let Some(decryptor) = connection.decryptor.take() {
                        receiver.set_decryptor(*decryptor);
                    }
                }
                Ok(FramingEvent::Damaged) => self.damaged_header(now, slot),
                Err(StreamError::HeaderDigest) => {
                    self.stats.header_digest_errors += 1;
                    return Err(ProtocolError::HeaderDigestMismatch);
                }
                Err(StreamError::Modified) => {
                    self.stats.data_digest_errors += 1;
                    return Err(ProtocolError::PdusModified);
                }
                Err(StreamError::TooLong) => return Err(ProtocolError::DataSegmentTooLong),
                Err(StreamError::RxBufferTaken) => return Err(ProtocolError::Bug),
            }
        }
    }

    /// Returns the destination of a PDU's data segment.
    fn data_sink_for(&mut self, slot: Slot, bhs: &Bhs) -> Result<DataSink, ProtocolError> {
        let Some(connection) = self.connection_mut(slot) else { return Err(ProtocolError::Bug) };
        connection.incoming = Incoming::Plain;
        let in_login = connection.login.is_some();
        let len = usize::try_from(bhs.data_len()).unwrap_or(usize::MAX);
        if in_login {
            if bhs.opcode() != Opcode::LOGIN_RESPONSE {
                //= rfc7143#section-4.2.4
                //# If the initiator receives any PDU except a Login Response, it MUST immediately
                //# terminate the connection.
                //= rfc7143#section-11.17.1
                //# An implementation receiving reason code 0x0b MUST treat it as a negotiation failure that
                //# terminates the Login Phase and the TCP connection, as specified in Section 7.12.
                return Err(ProtocolError::NotALogin);
            }
            return Ok(DataSink::Append(self.pool.take(len)));
        }
        match bhs.opcode() {
            Opcode::DATA_IN => self.data_in_sink(slot, bhs),
            Opcode::SCSI_RESPONSE
            | Opcode::NOP_IN
            | Opcode::TEXT_RESPONSE
            | Opcode::ASYNC_MESSAGE
            | Opcode::REJECT
                if len > 0 =>
            {
                Ok(DataSink::Append(self.pool.take(len)))
            }
            _ => Ok(DataSink::Discard),
        }
    }

    /// Handles a complete PDU.
    fn handle_pdu(
        &mut self,
        now: Instant,
        slot: Slot,
        segment: ReceivedPdu,
        has_ahs: bool,
    ) -> Result<(), ProtocolError> {
        let Some(connection) = self.connection_mut(slot) else { return Err(ProtocolError::Bug) };
        if connection.login.is_some() {
            return self.handle_login_response(now, slot, segment);
        }
        if segment.bhs.opcode() == Opcode::DATA_IN {
            let incoming = core::mem::replace(&mut connection.incoming, Incoming::Plain);
            return if has_ahs {
                self.return_sink(incoming, segment.sink);
                Err(ProtocolError::AhsNotAllowed)
            } else {
                self.handle_data_in(now, slot, incoming, segment)
            };
        }
        let data = match segment.sink {
            DataSink::Append(buf) => Some(buf),
            _ => None,
        };
        let done = if has_ahs {
            Err(ProtocolError::AhsNotAllowed)
        } else if !segment.digest_ok {
            self.damaged_data(now, slot, &segment.bhs)
        } else {
            self.handle_control_pdu(now, slot, &segment.bhs, data.as_ref().map_or(&[], Buf::filled))
        };
        if let Some(buf) = data {
            self.pool.recycle_buf(buf);
        }
        done
    }

    /// Handles a PDU other than data.
    fn handle_control_pdu(
        &mut self,
        now: Instant,
        slot: Slot,
        bhs: &Bhs,
        data: &[u8],
    ) -> Result<(), ProtocolError> {
        match bhs.opcode() {
            Opcode::SCSI_RESPONSE => self.response(now, slot, &ScsiResponse::decode(bhs)?, data),
            Opcode::NOP_IN => self.nop_in(now, slot, &NopIn::decode(bhs)?),
            Opcode::TEXT_RESPONSE => self.text_response(now, slot, &TextResponse::decode(bhs)?, data),
            Opcode::ASYNC_MESSAGE => self.async_message(now, slot, AsyncMessage::decode(bhs)?, data),
            Opcode::REJECT => self.reject(now, slot, &Reject::decode(bhs)?, data),
            _ if bhs.data_len() > 0 => Err(ProtocolError::DataNotAllowed),
            Opcode::R2T => self.r2t(now, slot, &R2t::decode(bhs)?),
            Opcode::TMF_RESPONSE => self.tmf_response(now, slot, &TmfResponse::decode(bhs)?),
            Opcode::LOGOUT_RESPONSE => self.logout_response(now, slot, &LogoutResponse::decode(bhs)?),
            Opcode::LOGIN_RESPONSE => Err(ProtocolError::LoginAfterLogin),
            Opcode(0x00..=0x1f) => Err(ProtocolError::InitiatorPdu),
            _ => Err(ProtocolError::UnknownOpcode),
        }
    }

    /// Ignores a PDU whose data is damaged, and requests its contents again (RFC 7143 §7.8).
    fn damaged_data(&mut self, now: Instant, slot: Slot, bhs: &Bhs) -> Result<(), ProtocolError> {
        self.stats.data_digest_errors += 1;
        self.unless_requested_again(ProtocolError::DataDigestMismatch)?;
        //= rfc7143#section-7.8
        //# When an initiator discards one of these PDUs due to a payload digest error, the entire PDU,
        //# including the header, MUST be discarded.
        //= rfc7143#section-7.8
        //# Consequently, the initiator MUST treat the exception like a loss of any other solicited response
        //# PDU.
        let sn = match bhs.opcode() {
            Opcode::SCSI_RESPONSE => ScsiResponse::decode(bhs)?.sn,
            Opcode::TEXT_RESPONSE => TextResponse::decode(bhs)?.sn,
            Opcode::ASYNC_MESSAGE => AsyncMessage::decode(bhs)?.sn,
            Opcode::REJECT => Reject::decode(bhs)?.sn,
            Opcode::NOP_IN => {
                let ping = NopIn::decode(bhs)?;
                if ping.itt == Itt::NONE {
                    // No request waits for the PDU, and it used up no number.
                    return Ok(());
                }
                ping.sn
            }
            _ => return Ok(()),
        };
        //= rfc7143#section-7.8
        //# If the discarded PDU is a response PDU or an unsolicited PDU (e.g., Async, Reject), the initiator
        //# MUST do one of the following:
        self.status_is_due(now, slot, sn.stat_sn.next());
        Ok(())
    }

    /// Handles the sequence numbers of a PDU that carries a status. Returns `false` if the status was
    /// received before.
    pub(super) fn take_status(
        &mut self,
        now: Instant,
        slot: Slot,
        sn: TargetSn,
    ) -> Result<bool, ProtocolError> {
        self.note_window(sn);
        let retains = self.level().retains_statuses();
        let on_gap = self.unless_requested_again(ProtocolError::StatSnOutOfOrder);
        let Some(connection) = self.connection_mut(slot) else { return Err(ProtocolError::Bug) };
        let fresh = connection.take_status(sn.stat_sn, on_gap)?;
        let first = retains && connection.unacked_since.is_none();
        if first {
            connection.unacked_since = Some(now);
        }
        //= rfc7143#section-7.9
        //# When an initiator receives an iSCSI status PDU with an out-of-order StatSN that implies missing
        //# responses, it MUST address the one or more missing status PDUs as described in Section 7.8.
        if !connection.ahead.is_empty() {
            self.snack_statuses(now, slot, None);
        }
        if first {
            self.acknowledge_in_time(now, slot);
        }
        Ok(fresh)
    }

    /// Records that the target sent every status before `next`.
    pub(super) fn status_is_due(&mut self, now: Instant, slot: Slot, next: StatSn) {
        if self.level().requests_missing_pdus()
            && self.connection(slot).is_some_and(|connection| next.after(connection.exp_stat_sn))
        {
            self.snack_statuses(now, slot, Some(next));
        }
    }
}
