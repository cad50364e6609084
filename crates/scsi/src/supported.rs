//! The parameter data of REPORT LUNS, REPORT SUPPORTED OPERATION CODES and REPORT SUPPORTED TASK MANAGEMENT
//! FUNCTIONS (SPC-5 §6.32, §6.34, §6.35), for initiators and targets.

use alloc::vec::Vec;

use base::bytes::{Reader, UnexpectedEof};

use crate::lun::Lun;

/// Encodes the parameter data of REPORT LUNS.
pub fn encode_luns(luns: impl Iterator<Item = Lun>) -> Vec<u8> {
    let mut bytes = Vec::from([0; 8]);
    bytes.extend(luns.flat_map(|lun| lun.0.to_be_bytes()));
    let len = u32::try_from(bytes.len() - 8).unwrap_or(u32::MAX);
    for (to, from) in bytes.iter_mut().zip(len.to_be_bytes()) {
        *to = from;
    }
    bytes
}

/// Parses the parameter data of REPORT LUNS. LUNs that the allocation length cut off are missing.
///
/// # Errors
/// When the data is shorter than the header.
pub fn parse_luns(bytes: &[u8]) -> Result<Vec<Lun>, UnexpectedEof> {
    let mut data = Reader::new(bytes);
    let len = usize::try_from(data.u32()?).unwrap_or(usize::MAX);
    data.u32()?;
    let mut list = Reader::new(data.take(len.min(data.remaining()))?);
    Ok(core::iter::from_fn(|| list.u64().ok().map(Lun)).collect())
}

/// The timeouts of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// NOMINAL COMMAND PROCESSING TIMEOUT in seconds; zero if none is reported.
    pub nominal_s: u32,
    /// RECOMMENDED COMMAND TIMEOUT in seconds; zero if none is reported.
    pub recommended_s: u32,
}

impl Timeouts {
    fn encode(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&[0, 0x0a, 0, 0]);
        out.extend_from_slice(&self.nominal_s.to_be_bytes());
        out.extend_from_slice(&self.recommended_s.to_be_bytes());
    }

    fn take(list: &mut Reader<'_>) -> Result<Self, UnexpectedEof> {
        list.u32()?;
        Ok(Self { nominal_s: list.u32()?, recommended_s: list.u32()? })
    }
}

/// A supported command in the all-commands format of REPORT SUPPORTED OPERATION CODES.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SupportedCommand {
    /// OPERATION CODE.
    pub opcode: u8,
    /// SERVICE ACTION, if the operation code has service actions (SERVACTV).
    pub service_action: Option<u16>,
    /// CDB LENGTH.
    pub cdb_len: u16,
    /// The timeouts of the command, if the initiator requested them (CTDP).
    pub timeouts: Option<Timeouts>,
}

impl SupportedCommand {
    /// Encodes the list of all supported commands.
    pub fn encode_all(commands: impl Iterator<Item = Self>) -> Vec<u8> {
        let mut body = Vec::new();
        for command in commands {
            let flags =
                u8::from(command.timeouts.is_some()) << 1 | u8::from(command.service_action.is_some());
            let [action_high, action_low] = command.service_action.unwrap_or(0).to_be_bytes();
            let [len_high, len_low] = command.cdb_len.to_be_bytes();
            body.extend_from_slice(&[
                command.opcode,
                0,
                action_high,
                action_low,
                0,
                flags,
                len_high,
                len_low,
            ]);
            if let Some(timeouts) = command.timeouts {
                timeouts.encode(&mut body);
            }
        }
        let mut bytes = Vec::from(u32::try_from(body.len()).unwrap_or(u32::MAX).to_be_bytes());
        bytes.extend_from_slice(&body);
        bytes
    }

    /// Parses the list of all supported commands. Commands that the allocation length cut off are missing.
    ///
    /// # Errors
    /// When the data is shorter than the header.
    pub fn parse_all(bytes: &[u8]) -> Result<Vec<Self>, UnexpectedEof> {
        let mut data = Reader::new(bytes);
        let len = usize::try_from(data.u32()?).unwrap_or(usize::MAX);
        let mut list = Reader::new(data.take(len.min(data.remaining()))?);
        Ok(core::iter::from_fn(|| Self::take(&mut list).ok()).collect())
    }

    fn take(list: &mut Reader<'_>) -> Result<Self, UnexpectedEof> {
        let [opcode, _] = list.array()?;
        let action = list.u16()?;
        let [_, flags] = list.array()?;
        let cdb_len = list.u16()?;
        let timeouts = if flags & 2 == 0 { None } else { Some(Timeouts::take(list)?) };
        Ok(Self { opcode, service_action: (flags & 1 == 1).then_some(action), cdb_len, timeouts })
    }
}

/// One command in the one-command format of REPORT SUPPORTED OPERATION CODES.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OneCommand {
    /// CDB USAGE DATA, if the command is supported: the operation code, then bytes with a one for each bit
    /// that is evaluated.
    pub usage: Option<Vec<u8>>,
    /// The timeouts of the command, if the initiator requested them (CTDP).
    pub timeouts: Option<Timeouts>,
}

impl OneCommand {
    /// Returns the bytes on the wire.
    pub fn encode(&self) -> Vec<u8> {
        let support = if self.usage.is_some() { SUPPORTED } else { NOT_SUPPORTED };
        let usage = self.usage.as_deref().unwrap_or_default();
        let mut bytes = Vec::from([0, u8::from(self.timeouts.is_some()) << 7 | support]);
        bytes.extend_from_slice(&u16::try_from(usage.len()).unwrap_or(u16::MAX).to_be_bytes());
        bytes.extend_from_slice(usage);
        if let Some(timeouts) = self.timeouts {
            timeouts.encode(&mut bytes);
        }
        bytes
    }

    /// Parses the bytes.
    ///
    /// # Errors
    /// When the data is too short.
    pub fn parse(bytes: &[u8]) -> Result<Self, UnexpectedEof> {
        let mut data = Reader::new(bytes);
        let [_, flags] = data.array()?;
        let len = usize::from(data.u16()?);
        let usage = data.take(len)?.to_vec();
        let timeouts = if flags & 0x80 == 0 { None } else { Some(Timeouts::take(&mut data)?) };
        Ok(Self { usage: (flags & 7 == SUPPORTED).then_some(usage), timeouts })
    }
}

/// SUPPORT: not supported; supported in conformance with a standard.
const NOT_SUPPORTED: u8 = 1;
const SUPPORTED: u8 = 3;

/// The supported task management functions (SPC-5 §6.35).
#[allow(missing_docs, clippy::struct_excessive_bools, reason = "the names are the standard's, one bit each")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskManagement {
    pub abort_task: bool,
    pub abort_task_set: bool,
    pub clear_aca: bool,
    pub clear_task_set: bool,
    pub logical_unit_reset: bool,
    pub query_task: bool,
    pub target_reset: bool,
    pub query_asynchronous_event: bool,
    pub query_task_set: bool,
    pub nexus_reset: bool,
}

impl TaskManagement {
    /// Returns the four bytes, or the extended sixteen bytes with timeouts, which are all reported as
    /// unknown.
    pub fn encode(self, extended: bool) -> Vec<u8> {
        let bit = |flag: bool, at: u8| u8::from(flag) << at;
        let first = bit(self.abort_task, 7)
            | bit(self.abort_task_set, 6)
            | bit(self.clear_aca, 5)
            | bit(self.clear_task_set, 4)
            | bit(self.logical_unit_reset, 3)
            | bit(self.query_task, 2)
            | bit(self.target_reset, 1);
        let second =
            bit(self.query_asynchronous_event, 2) | bit(self.query_task_set, 1) | bit(self.nexus_reset, 0);
        let mut bytes = Vec::from([first, second, 0, if extended { 12 } else { 0 }]);
        bytes.resize(if extended { 16 } else { 4 }, 0);
        bytes
    }

    /// Parses the bytes.
    ///
    /// # Errors
    /// When the data is too short.
    pub fn parse(bytes: &[u8]) -> Result<Self, UnexpectedEof> {
        let [first, second] = Reader::new(bytes).array()?;
        let bit = |byte: u8, at: u8| byte >> at & 1 == 1;
        Ok(Self {
            abort_task: bit(first, 7),
            abort_task_set: bit(first, 6),
            clear_aca: bit(first, 5),
            clear_task_set: bit(first, 4),
            logical_unit_reset: bit(first, 3),
            query_task: bit(first, 2),
            target_reset: bit(first, 1),
            query_asynchronous_event: bit(second, 2),
            query_task_set: bit(second, 1),
            nexus_reset: bit(second, 0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUTS: Timeouts = Timeouts { nominal_s: 0, recommended_s: 30 };

    #[test]
    fn luns_come_back_and_survive_being_cut() {
        let luns = [Lun(0), Lun::from_number(300).unwrap()];
        let bytes = encode_luns(luns.into_iter());
        assert_eq!(bytes[..16], [0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(parse_luns(&bytes), Ok(luns.to_vec()));
        assert_eq!(parse_luns(&bytes[..23]), Ok(luns[..1].to_vec()));
        assert_eq!(parse_luns(&bytes[..7]), Err(UnexpectedEof));
        assert_eq!(encode_luns(core::iter::empty()), [0; 8]);
    }

    #[test]
    fn the_list_of_commands_comes_back_whole() {
        let commands = [
            SupportedCommand { opcode: 0x12, service_action: None, cdb_len: 6, timeouts: None },
            SupportedCommand {
                opcode: 0x7f,
                service_action: Some(0x0b),
                cdb_len: 32,
                timeouts: Some(TIMEOUTS),
            },
        ];
        let bytes = SupportedCommand::encode_all(commands.into_iter());
        assert_eq!(bytes[..12], [0, 0, 0, 28, 0x12, 0, 0, 0, 0, 0, 0, 6]);
        assert_eq!(bytes[12..20], [0x7f, 0, 0, 0x0b, 0, 3, 0, 32]);
        assert_eq!(bytes[20..], [0, 0x0a, 0, 0, 0, 0, 0, 0, 0, 0, 0, 30]);
        assert_eq!(SupportedCommand::parse_all(&bytes), Ok(commands.to_vec()));
        assert_eq!(SupportedCommand::parse_all(&bytes[..31]), Ok(commands[..1].to_vec()));
    }

    #[test]
    fn one_command_tells_its_usage_or_that_there_is_none() {
        let one = OneCommand { usage: Some(Vec::from([0x12, 1])), timeouts: Some(TIMEOUTS) };
        let bytes = one.encode();
        assert_eq!(bytes[..6], [0, 0x83, 0, 2, 0x12, 1]);
        assert_eq!(OneCommand::parse(&bytes), Ok(one));
        let none = OneCommand { usage: None, timeouts: None };
        assert_eq!(none.encode(), [0, 1, 0, 0]);
        assert_eq!(OneCommand::parse(&none.encode()), Ok(none));
    }

    #[test]
    fn task_management_stands_where_spc_puts_it() {
        let all = TaskManagement {
            abort_task: true,
            abort_task_set: true,
            clear_aca: true,
            clear_task_set: true,
            logical_unit_reset: true,
            query_task: true,
            target_reset: true,
            query_asynchronous_event: true,
            query_task_set: true,
            nexus_reset: true,
        };
        assert_eq!(all.encode(false), [0xfe, 7, 0, 0]);
        assert_eq!(all.encode(true), [0xfe, 7, 0, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(TaskManagement::parse(&all.encode(true)), Ok(all));
    }
}
