//! A unit other than a disk, over one session: commands as raw CDBs, and what their statuses must be.

use crate::cdb::{SenseData, cdb};
use crate::transcript::Record;
use crate::verdict::Outcome;
use crate::wire::word;

use super::changes::{Change, Changes};
use super::conn::{Conn, Flow};
use super::fixture::Fixture;
use super::login::LoginPlan;
use super::task::{CHECK_CONDITION, Done};

/// Sense keys.
pub(super) mod key {
    pub(in super::super) const NO_SENSE: u8 = 0;
    pub(in super::super) const NOT_READY: u8 = 2;
    pub(in super::super) const ILLEGAL_REQUEST: u8 = 5;
    pub(in super::super) const UNIT_ATTENTION: u8 = 6;
    pub(in super::super) const DATA_PROTECT: u8 = 7;
    pub(in super::super) const BLANK_CHECK: u8 = 8;
    pub(in super::super) const VOLUME_OVERFLOW: u8 = 0xd;
}

/// Additional sense codes with their qualifiers.
pub(super) mod asc {
    pub(in super::super) const END_OF_MEDIUM: u16 = 0x0002;
    pub(in super::super) const FILEMARK: u16 = 0x0001;
    pub(in super::super) const BEGINNING_OF_MEDIUM: u16 = 0x0004;
    pub(in super::super) const END_OF_DATA: u16 = 0x0005;
    pub(in super::super) const INVALID_OPERATION_CODE: u16 = 0x2000;
    pub(in super::super) const LBA_OUT_OF_RANGE: u16 = 0x2100;
    pub(in super::super) const INVALID_ELEMENT_ADDRESS: u16 = 0x2101;
    pub(in super::super) const INVALID_FIELD_IN_CDB: u16 = 0x2400;
    pub(in super::super) const INVALID_FIELD_IN_PARAMETER_LIST: u16 = 0x2600;
    pub(in super::super) const WRITE_PROTECTED: u16 = 0x2700;
    pub(in super::super) const MEDIUM_MAY_HAVE_CHANGED: u16 = 0x2800;
    pub(in super::super) const MODE_PARAMETERS_CHANGED: u16 = 0x2a01;
    pub(in super::super) const WORM_OVERWRITE: u16 = 0x300c;
    pub(in super::super) const DESTINATION_FULL: u16 = 0x3b0d;
    pub(in super::super) const SOURCE_EMPTY: u16 = 0x3b0e;
    pub(in super::super) const REMOVAL_PREVENTED: u16 = 0x5302;
    pub(in super::super) const ILLEGAL_MODE_FOR_TRACK: u16 = 0x6400;
    /// MEDIUM NOT PRESENT, without its qualifier.
    pub(in super::super) const MEDIUM_NOT_PRESENT: u16 = 0x3a00;
}

/// The most unit attentions in a row, and the most polls of a unit that becomes ready.
const MAX_ATTENTIONS: usize = 8;

/// The longest parameter data that a case asks for: a page of a changer with 2000 elements fits.
pub(super) const DATA_MAX: u16 = 0xfff0;

/// A unit, over a session of its own.
pub(super) struct Device {
    pub(super) conn: Conn,
    record: Record,
    isid: [u8; 6],
    changes: Changes,
}

impl Device {
    /// Logs in and clears unit attentions. The unit need not be ready.
    pub(super) fn attach(fixture: &mut Fixture) -> Outcome<Self> {
        Self::attach_as(fixture, Fixture::isid())
    }

    /// Does the same with this ISID. A session that has it already is replaced.
    pub(super) fn attach_as(fixture: &mut Fixture, isid: [u8; 6]) -> Outcome<Self> {
        let conn = fixture.login(&LoginPlan { isid, ..LoginPlan::normal(fixture) })?;
        let (record, changes) = (fixture.record.clone(), fixture.changes.clone());
        let mut device = Self { conn, record, isid, changes };
        device.clear_attentions()?;
        Ok(device)
    }

    /// Registers what the next commands change, so that it is undone when the case has ended.
    pub(super) fn will_change(&self, change: Change) {
        self.changes.register(self.isid, change);
    }

    /// Sends TEST UNIT READY until it ends with anything but a unit attention; returns that.
    pub(super) fn clear_attentions(&mut self) -> Outcome<Done> {
        for _ in 0..MAX_ATTENTIONS {
            let done = self.ask(&[0; 6])?;
            if done.sense_code().is_none_or(|(key, _)| key != key::UNIT_ATTENTION) {
                return Ok(done);
            }
        }
        fail!("TEST UNIT READY tells of {MAX_ATTENTIONS} unit attentions and more")
    }

    /// Skips the case unless the unit is ready.
    pub(super) fn need_ready(&mut self) -> Outcome {
        let done = self.clear_attentions()?;
        need!(done.is_good(), "the unit is not ready: {}", done.shown());
        Ok(())
    }

    /// Sends a command without data.
    pub(super) fn ask(&mut self, bytes: &[u8]) -> Outcome<Done> {
        self.exchange(bytes, Flow::None, 0, &[])
    }

    /// Sends a command that reads up to `len` bytes.
    pub(super) fn get(&mut self, bytes: &[u8], len: u32) -> Outcome<Done> {
        self.exchange(bytes, Flow::Read, len, &[])
    }

    /// Sends a command that writes `data`.
    pub(super) fn put(&mut self, bytes: &[u8], data: &[u8]) -> Outcome<Done> {
        let len = u32::try_from(data.len()).unwrap_or(u32::MAX);
        self.exchange(bytes, Flow::Write, len, data)
    }

    fn exchange(&mut self, bytes: &[u8], flow: Flow, len: u32, out: &[u8]) -> Outcome<Done> {
        self.record.event(&format!("CDB {}", hex(bytes)));
        let done = self.conn.run(cdb(bytes), flow, len, out)?;
        if done.status == CHECK_CONDITION {
            self.record.event(&format!("{}; {}", done.shown(), hex(&done.sense)));
        }
        Ok(done)
    }

    /// Notes what the target chose, where the standard leaves a choice.
    pub(super) fn remark(&self, text: impl Into<String>) {
        self.record.remark(text);
    }
}

/// The most bytes that are shown.
const SHOWN_MAX: usize = 48;

/// Returns bytes as text; of many the first.
pub(super) fn hex(bytes: &[u8]) -> String {
    let text = bytes.iter().take(SHOWN_MAX).map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ");
    if bytes.len() > SHOWN_MAX { format!("{text} … ({} bytes)", bytes.len()) } else { text }
}

/// What the sense data of a stream must be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expected {
    pub(super) key: u8,
    pub(super) code: u16,
    pub(super) bits: u8,
    pub(super) information: i64,
}

impl Done {
    /// Skips the case if the unit does not have this command.
    pub(super) fn optional(self, what: &str) -> Outcome<Self> {
        let missing = Some((key::ILLEGAL_REQUEST, asc::INVALID_OPERATION_CODE));
        need!(self.sense_code() != missing, "the unit does not have {what}");
        Ok(self)
    }

    /// Skips the case if the unit does not have this command, or this form of it.
    pub(super) fn optional_form(self, what: &str) -> Outcome<Self> {
        let missing = Some((key::ILLEGAL_REQUEST, asc::INVALID_FIELD_IN_CDB));
        need!(self.sense_code() != missing, "the unit does not have {what}");
        self.optional(what)
    }

    /// Fails unless the command ended with CHECK CONDITION and this sense.
    pub(super) fn refused(&self, what: &str, key: u8, code: u16) -> Outcome {
        let told = self.status == CHECK_CONDITION && self.sense_code() == Some((key, code));
        require!(told, "{what}: expected sense {key:x}/{code:04x}, came {}", self.shown());
        Ok(())
    }

    /// Fails unless the command ended with exactly this sense of a stream.
    pub(super) fn reports(&self, what: &str, expected: Expected) -> Outcome {
        let Expected { key, code, bits, information } = expected;
        self.refused(what, key, code)?;
        let Some(sense) = SenseData::read(&self.sense) else {
            fail!("{what}: these are no sense data: {}", hex(&self.sense))
        };
        require!(
            sense.bits == bits,
            "{what}: expected FILEMARK, EOM and ILI as {bits:02x}, came {:02x}",
            sense.bits
        );
        require!(
            sense.information == Some(information),
            "{what}: expected INFORMATION {information}, came {}",
            sense.information.map_or("none that is valid".to_owned(), |value| value.to_string())
        );
        Ok(())
    }
}

/// Returns the two bytes at `at`, or zero beyond the end.
pub(super) fn half(bytes: &[u8], at: usize) -> u16 {
    let pair = bytes.get(at..).and_then(|rest| rest.first_chunk::<2>());
    pair.map_or(0, |pair| u16::from_be_bytes(*pair))
}

/// Returns the three bytes at `at`, or zero beyond the end.
pub(super) fn triple(bytes: &[u8], at: usize) -> u32 {
    let [a, b, c] = [byte(bytes, at), byte(bytes, at + 1), byte(bytes, at + 2)];
    u32::from_be_bytes([0, a, b, c])
}

/// Returns the eight bytes at `at`, or zero beyond the end.
pub(super) fn double(bytes: &[u8], at: usize) -> u64 {
    u64::from(word(bytes, at)) << 32 | u64::from(word(bytes, at + 4))
}

/// Returns the byte at `at`, or zero beyond the end.
pub(super) fn byte(bytes: &[u8], at: usize) -> u8 {
    bytes.get(at).copied().unwrap_or(0)
}
