//! From bytes to answers: what each PDU that comes is, where its data goes, and whose affair it is.
//!
//! A PDU is looked at twice. When its header is whole, [`Session::begin`] says where the data segment belongs, and
//! refuses what must not be read at all. When its last byte is there and its digest was checked, [`Session::end_pdu`]
//! acts on it.

use base::buffer::Buf;
use base::time::Instant;

use super::contract::Slot;
use super::place::Incoming;
use super::session::Session;
use super::why::Why;
use crate::pdu::async_message::AsyncMessage;
use crate::pdu::logout_response::LogoutResponse;
use crate::pdu::nop_in::NopIn;
use crate::pdu::r2t::R2t;
use crate::pdu::reject::Reject;
use crate::pdu::scsi_response::ScsiResponse;
use crate::pdu::text_response::TextResponse;
use crate::pdu::tmf_response::TmfResponse;
use crate::pdu::{Bhs, Itt, Message, Opcode, TargetSn};
use crate::receive::{Landing, Lost, Receiver, Segment, Step};
use crate::serial::StatSn;

impl Session {
    /// Reads every PDU that is whole in `bytes`, and the beginning of the next.
    pub(super) fn read(
        &mut self,
        now: Instant,
        slot: Slot,
        receiver: &mut Receiver,
        mut bytes: &[u8],
    ) -> Result<(), Why> {
        let conn = self.link(slot).map(|link| link.conn);
        if let Some(link) = self.link(slot).filter(|link| link.login.is_none()) {
            // Longer segments may have been declared since the last PDU.
            receiver.set_framing(link.framing);
        }
        loop {
            match receiver.advance(&mut bytes) {
                Ok(Step::Starved) => return Ok(()),
                Ok(Step::Header(bhs)) => {
                    let landing = self.begin(slot, &bhs)?;
                    receiver.land(landing);
                }
                Ok(Step::Whole(segment)) => {
                    self.stats.pdus_in += 1;
                    if let Some(link) = self.link_mut(slot) {
                        link.heard = now;
                    }
                    let has_ahs = !receiver.ahs().is_empty();
                    self.end_pdu(now, slot, segment, has_ahs)?;
                    // The connection may have ended with this PDU, and another one may be in its place.
                    let Some(link) = self.link_mut(slot).filter(|link| Some(link.conn) == conn) else {
                        return Ok(());
                    };
                    receiver.set_framing(link.framing);
                }
                Ok(Step::Damaged) => self.damaged_header(now, slot),
                Err(Lost::HeaderDigest) => {
                    self.stats.header_digest_errors += 1;
                    return Err(Why::HeaderDigestMismatch);
                }
                Err(Lost::TooLong) => return Err(Why::DataSegmentTooLong),
                Err(Lost::Lent) => return Err(Why::Bug),
            }
        }
    }

    /// Says where the data segment of a PDU belongs.
    fn begin(&mut self, slot: Slot, bhs: &Bhs) -> Result<Landing, Why> {
        let Some(link) = self.link_mut(slot) else { return Err(Why::Bug) };
        link.incoming = Incoming::Plain;
        let in_login = link.login.is_some();
        let len = usize::try_from(bhs.data_len()).unwrap_or(usize::MAX);
        if in_login {
            if bhs.opcode() != Opcode::LOGIN_RESPONSE {
                return Err(Why::NotALogin);
            }
            return Ok(Landing::Append(self.pool.take(len)));
        }
        match bhs.opcode() {
            Opcode::DATA_IN => self.begin_data_in(slot, bhs),
            Opcode::SCSI_RESPONSE
            | Opcode::NOP_IN
            | Opcode::TEXT_RESPONSE
            | Opcode::ASYNC_MESSAGE
            | Opcode::REJECT
                if len > 0 =>
            {
                Ok(Landing::Append(self.pool.take(len)))
            }
            _ => Ok(Landing::Discard),
        }
    }

    /// Acts on a PDU that came whole.
    fn end_pdu(&mut self, now: Instant, slot: Slot, segment: Segment, has_ahs: bool) -> Result<(), Why> {
        let Some(link) = self.link_mut(slot) else { return Err(Why::Bug) };
        if link.login.is_some() {
            return self.end_login_pdu(now, slot, segment);
        }
        if segment.bhs.opcode() == Opcode::DATA_IN {
            let incoming = core::mem::replace(&mut link.incoming, Incoming::Plain);
            return if has_ahs {
                self.give_back(incoming, segment.landing);
                Err(Why::AhsNotAllowed)
            } else {
                self.end_data_in(now, slot, incoming, segment)
            };
        }
        let data = match segment.landing {
            Landing::Append(buf) => Some(buf),
            _ => None,
        };
        let done = if has_ahs {
            Err(Why::AhsNotAllowed)
        } else if !segment.intact {
            self.damaged_data(now, slot, &segment.bhs)
        } else {
            self.end_control(now, slot, &segment.bhs, data.as_ref().map_or(&[], Buf::filled))
        };
        if let Some(buf) = data {
            self.pool.recycle_buf(buf);
        }
        done
    }

    /// Acts on a PDU that is no data.
    fn end_control(&mut self, now: Instant, slot: Slot, bhs: &Bhs, data: &[u8]) -> Result<(), Why> {
        match bhs.opcode() {
            Opcode::SCSI_RESPONSE => self.response(now, slot, &ScsiResponse::decode(bhs)?, data),
            Opcode::NOP_IN => self.nop_in(now, slot, &NopIn::decode(bhs)?),
            Opcode::TEXT_RESPONSE => self.text_response(now, slot, &TextResponse::decode(bhs)?, data),
            Opcode::ASYNC_MESSAGE => self.async_message(now, slot, AsyncMessage::decode(bhs)?, data),
            Opcode::REJECT => self.reject(now, slot, &Reject::decode(bhs)?, data),
            _ if bhs.data_len() > 0 => Err(Why::DataNotAllowed),
            Opcode::R2T => self.r2t(now, slot, &R2t::decode(bhs)?),
            Opcode::TMF_RESPONSE => self.tmf_response(now, slot, &TmfResponse::decode(bhs)?),
            Opcode::LOGOUT_RESPONSE => self.logout_response(now, slot, &LogoutResponse::decode(bhs)?),
            Opcode::LOGIN_RESPONSE => Err(Why::LoginAfterLogin),
            Opcode(0x00..=0x1f) => Err(Why::InitiatorPdu),
            _ => Err(Why::UnknownOpcode),
        }
    }

    /// Passes over a PDU whose data is damaged; what it would have said is asked for again (RFC 7143 §7.8).
    fn damaged_data(&mut self, now: Instant, slot: Slot, bhs: &Bhs) -> Result<(), Why> {
        self.stats.data_digest_errors += 1;
        if !self.repairs() {
            return Err(Why::DataDigestMismatch);
        }
        let sn = match bhs.opcode() {
            Opcode::SCSI_RESPONSE => ScsiResponse::decode(bhs)?.sn,
            Opcode::TEXT_RESPONSE => TextResponse::decode(bhs)?.sn,
            Opcode::ASYNC_MESSAGE => AsyncMessage::decode(bhs)?.sn,
            Opcode::REJECT => Reject::decode(bhs)?.sn,
            Opcode::NOP_IN => {
                let ping = NopIn::decode(bhs)?;
                if ping.itt == Itt::NONE {
                    // Nobody waits for it, and it used up no number.
                    return Ok(());
                }
                ping.sn
            }
            _ => return Ok(()),
        };
        self.status_is_due(now, slot, sn.stat_sn.next());
        Ok(())
    }

    /// Takes note of the counters of a PDU that carries a status. `false`: it came before.
    pub(super) fn take_status(&mut self, now: Instant, slot: Slot, sn: TargetSn) -> Result<bool, Why> {
        self.note_window(sn);
        let recovers = self.repairs();
        let Some(link) = self.link_mut(slot) else { return Err(Why::Bug) };
        let fresh = link.take_status(sn.stat_sn, recovers)?;
        let first = recovers && link.untold_since.is_none();
        if first {
            link.untold_since = Some(now);
        }
        if !link.ahead.is_empty() {
            self.ask_for_statuses(now, slot, None);
        }
        if first {
            self.acknowledge_in_time(now, slot);
        }
        Ok(fresh)
    }

    /// Takes note that every status before `next` was sent.
    pub(super) fn status_is_due(&mut self, now: Instant, slot: Slot, next: StatSn) {
        if self.repairs() && self.link(slot).is_some_and(|link| next.after(link.exp_stat_sn)) {
            self.ask_for_statuses(now, slot, Some(next));
        }
    }
}
