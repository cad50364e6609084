//! The parameter data and parameter lists of PERSISTENT RESERVE IN and OUT (SPC-5 §6.16, §6.17), for
//! initiators and targets.

use alloc::vec::Vec;

use base::bytes::{Reader, UnexpectedEof};

use crate::cdb::Cdb;
use crate::opcode;
use crate::sense::{Asc, Sense};
use crate::transport_id::{self, Malformed, TransportId};

/// Service actions of PERSISTENT RESERVE IN.
#[allow(missing_docs, reason = "the names are the standard's")]
pub mod service_action_in {
    pub const READ_KEYS: u16 = 0x00;
    pub const READ_RESERVATION: u16 = 0x01;
    pub const REPORT_CAPABILITIES: u16 = 0x02;
    pub const READ_FULL_STATUS: u16 = 0x03;
}

/// Service actions of PERSISTENT RESERVE OUT.
#[allow(missing_docs, reason = "the names are the standard's")]
pub mod service_action_out {
    pub const REGISTER: u16 = 0x00;
    pub const RESERVE: u16 = 0x01;
    pub const RELEASE: u16 = 0x02;
    pub const CLEAR: u16 = 0x03;
    pub const PREEMPT: u16 = 0x04;
    pub const PREEMPT_AND_ABORT: u16 = 0x05;
    pub const REGISTER_AND_IGNORE_EXISTING_KEY: u16 = 0x06;
    pub const REGISTER_AND_MOVE: u16 = 0x07;
    pub const REPLACE_LOST_RESERVATION: u16 = 0x08;
}

/// Returns whether a command is PERSISTENT RESERVE OUT with PREEMPT AND ABORT (SPC-5 §6.17), which ends tasks
/// of other initiators.
pub fn is_preempt_and_abort(cdb: &Cdb) -> bool {
    cdb.opcode() == opcode::PERSISTENT_RESERVE_OUT
        && u16::from(cdb.u8(1) & 0x1f) == service_action_out::PREEMPT_AND_ABORT
}

/// A reservation key; zero means no key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReservationKey(pub u64);

impl ReservationKey {
    /// No key. As a service action reservation key it unregisters the I_T nexus.
    pub const NONE: Self = Self(0);
}

/// The types of persistent reservation (SPC-5 §5.14). The type decides which I_T nexuses may *not* read
/// or write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReservationType {
    /// Only the holder may write.
    WriteExclusive,
    /// Only the holder may read or write.
    ExclusiveAccess,
    /// Only registrants may write; one of them holds the reservation.
    WriteExclusiveRegistrantsOnly,
    /// Only registrants may read or write; one of them holds the reservation.
    ExclusiveAccessRegistrantsOnly,
    /// Only registrants may write; all of them hold the reservation.
    WriteExclusiveAllRegistrants,
    /// Only registrants may read or write; all of them hold the reservation.
    ExclusiveAccessAllRegistrants,
}

impl ReservationType {
    /// Every type, in the order of the codes.
    pub const ALL: [Self; 6] = [
        Self::WriteExclusive,
        Self::ExclusiveAccess,
        Self::WriteExclusiveRegistrantsOnly,
        Self::ExclusiveAccessRegistrantsOnly,
        Self::WriteExclusiveAllRegistrants,
        Self::ExclusiveAccessAllRegistrants,
    ];

    /// Returns the type with TYPE code `code`, or `None` for an obsolete or reserved code.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.code() == code)
    }

    /// Returns the TYPE code.
    pub const fn code(self) -> u8 {
        match self {
            Self::WriteExclusive => 1,
            Self::ExclusiveAccess => 3,
            Self::WriteExclusiveRegistrantsOnly => 5,
            Self::ExclusiveAccessRegistrantsOnly => 6,
            Self::WriteExclusiveAllRegistrants => 7,
            Self::ExclusiveAccessAllRegistrants => 8,
        }
    }

    /// Returns whether every registrant holds the reservation.
    pub const fn is_all_registrants(self) -> bool {
        matches!(self, Self::WriteExclusiveAllRegistrants | Self::ExclusiveAccessAllRegistrants)
    }

    /// Returns whether registrants may do all that the holder may.
    pub const fn admits_registrants(self) -> bool {
        !matches!(self, Self::WriteExclusive | Self::ExclusiveAccess)
    }

    /// Returns whether I_T nexuses that are not registered may read.
    pub const fn admits_readers(self) -> bool {
        matches!(
            self,
            Self::WriteExclusive | Self::WriteExclusiveRegistrantsOnly | Self::WriteExclusiveAllRegistrants
        )
    }

    /// The PERSISTENT RESERVATION TYPE MASK of all types (SPC-5 §6.16.4).
    pub const MASK_OF_ALL: u16 = 0xea01;
}

/// The parameter list of every PERSISTENT RESERVE OUT service action except REGISTER AND MOVE
/// (SPC-5 §6.17.3).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BasicList {
    /// RESERVATION KEY: the key with which the sender claims to be registered.
    pub key: ReservationKey,
    /// SERVICE ACTION RESERVATION KEY.
    pub service_action_key: ReservationKey,
    /// Whether the registration is made for every target port (ALL_TG_PT).
    pub all_target_ports: bool,
    /// Whether registrations and reservation are to survive a loss of power (APTPL).
    pub persist: bool,
    /// The initiator ports to register besides the sender, when SPEC_I_PT is set.
    pub initiator_ports: Option<Vec<TransportId>>,
}

impl BasicList {
    /// The length of the list without TransportIDs.
    pub const LEN: usize = 24;

    /// Parses a parameter list.
    ///
    /// # Errors
    /// PARAMETER LIST LENGTH ERROR if a length is wrong, INVALID FIELD IN PARAMETER LIST if a TransportID is
    /// malformed.
    pub fn parse(bytes: &[u8]) -> Result<Self, Sense> {
        let mut list = Reader::new(bytes);
        let (key, service_action_key, [flags, _, _, _]) = basic(&mut list).map_err(too_short)?;
        let initiator_ports = if flags & 0x08 == 0 {
            if !list.is_empty() {
                return Err(length_error());
            }
            None
        } else {
            let len = list.u32().map_err(too_short)?;
            if usize::try_from(len) != Ok(list.remaining()) {
                return Err(length_error());
            }
            Some(transport_ids(bytes, list)?)
        };
        Ok(Self {
            key,
            service_action_key,
            all_target_ports: flags & 0x04 != 0,
            persist: flags & 0x01 != 0,
            initiator_ports,
        })
    }

    /// Returns the bytes on the wire.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(Self::LEN);
        bytes.extend_from_slice(&self.key.0.to_be_bytes());
        bytes.extend_from_slice(&self.service_action_key.0.to_be_bytes());
        let spec_i_pt = u8::from(self.initiator_ports.is_some()) << 3;
        let flags = spec_i_pt | u8::from(self.all_target_ports) << 2 | u8::from(self.persist);
        bytes.extend_from_slice(&[0, 0, 0, 0, flags, 0, 0, 0]);
        if let Some(ports) = &self.initiator_ports {
            let ids: Vec<u8> = ports.iter().flat_map(TransportId::encode).collect();
            bytes.extend_from_slice(&u32::try_from(ids.len()).unwrap_or(u32::MAX).to_be_bytes());
            bytes.extend_from_slice(&ids);
        }
        bytes
    }
}

/// The parameter list of REGISTER AND MOVE (SPC-5 §6.17.4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MoveList {
    /// RESERVATION KEY: the key with which the sender claims to be registered.
    pub key: ReservationKey,
    /// SERVICE ACTION RESERVATION KEY: the key with which the new holder is registered.
    pub service_action_key: ReservationKey,
    /// Whether the sender's registration is removed afterwards (UNREG).
    pub unregister: bool,
    /// Whether registrations and reservation are to survive a loss of power (APTPL).
    pub persist: bool,
    /// RELATIVE TARGET PORT IDENTIFIER of the new holder's I_T nexus.
    pub relative_port: u16,
    /// The new holder's initiator port.
    pub initiator_port: TransportId,
}

impl MoveList {
    /// The offset of the TransportID in the list.
    pub const TRANSPORT_ID_AT: usize = 24;

    /// Parses a parameter list.
    ///
    /// # Errors
    /// The same as those of [`BasicList::parse`].
    pub fn parse(bytes: &[u8]) -> Result<Self, Sense> {
        let mut list = Reader::new(bytes);
        let mut fields = || -> Result<_, UnexpectedEof> {
            let key = ReservationKey(list.u64()?);
            let service_action_key = ReservationKey(list.u64()?);
            let [_, flags] = list.array()?;
            Ok((key, service_action_key, flags, list.u16()?, list.u32()?))
        };
        let (key, service_action_key, flags, relative_port, len) = fields().map_err(too_short)?;
        if usize::try_from(len) != Ok(list.remaining()) || list.remaining() < transport_id::MIN_LEN {
            return Err(length_error());
        }
        let initiator_port = TransportId::from_bytes(list.rest())
            .map_err(|why| transport_id_fault(Self::TRANSPORT_ID_AT, why))?;
        Ok(Self {
            key,
            service_action_key,
            unregister: flags & 0x02 != 0,
            persist: flags & 0x01 != 0,
            relative_port,
            initiator_port,
        })
    }

    /// Returns the bytes on the wire.
    pub fn encode(&self) -> Vec<u8> {
        let id = self.initiator_port.encode();
        let mut bytes = Vec::with_capacity(Self::TRANSPORT_ID_AT + id.len());
        bytes.extend_from_slice(&self.key.0.to_be_bytes());
        bytes.extend_from_slice(&self.service_action_key.0.to_be_bytes());
        bytes.extend_from_slice(&[0, u8::from(self.unregister) << 1 | u8::from(self.persist)]);
        bytes.extend_from_slice(&self.relative_port.to_be_bytes());
        bytes.extend_from_slice(&u32::try_from(id.len()).unwrap_or(u32::MAX).to_be_bytes());
        bytes.extend_from_slice(&id);
        bytes
    }
}

/// A reservation as READ RESERVATION reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservationFacts {
    /// The holder's key; zero if all registrants hold the reservation.
    pub key: ReservationKey,
    /// The type, which decides what the reservation forbids.
    pub kind: ReservationType,
}

/// The parameter data of READ KEYS (SPC-5 §6.16.2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    /// PRGENERATION.
    pub generation: u32,
    /// The key of each registered I_T nexus.
    pub keys: Vec<ReservationKey>,
}

impl Keys {
    /// Returns the bytes on the wire.
    pub fn encode(&self) -> Vec<u8> {
        let body: Vec<u8> = self.keys.iter().flat_map(|key| key.0.to_be_bytes()).collect();
        with_header(self.generation, &body)
    }

    /// Parses the bytes. Keys that the allocation length cut off are missing.
    ///
    /// # Errors
    /// When the data is shorter than the header.
    pub fn parse(bytes: &[u8]) -> Result<Self, UnexpectedEof> {
        let (generation, mut body) = header(bytes)?;
        let mut keys = Vec::new();
        while let Ok(key) = body.u64() {
            keys.push(ReservationKey(key));
        }
        Ok(Self { generation, keys })
    }
}

/// The parameter data of READ RESERVATION (SPC-5 §6.16.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// PRGENERATION.
    pub generation: u32,
    /// The reservation, if there is one.
    pub reservation: Option<ReservationFacts>,
}

impl Reservation {
    /// Returns the bytes on the wire.
    pub fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        if let Some(ReservationFacts { key, kind }) = self.reservation {
            body.extend_from_slice(&key.0.to_be_bytes());
            body.extend_from_slice(&[0, 0, 0, 0, 0, kind.code(), 0, 0]);
        }
        with_header(self.generation, &body)
    }

    /// Parses the bytes.
    ///
    /// # Errors
    /// When the data is too short.
    pub fn parse(bytes: &[u8]) -> Result<Self, UnexpectedEof> {
        let (generation, mut body) = header(bytes)?;
        if body.is_empty() {
            return Ok(Self { generation, reservation: None });
        }
        let key = ReservationKey(body.u64()?);
        let [_, _, _, _, _, scope_and_type] = body.array()?;
        let kind = ReservationType::from_code(scope_and_type & 0x0f);
        Ok(Self { generation, reservation: kind.map(|kind| ReservationFacts { key, kind }) })
    }
}

/// One full status descriptor (SPC-5 §6.16.5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FullStatus {
    /// The key of the registered I_T nexus.
    pub key: ReservationKey,
    /// The type of the reservation, if this I_T nexus holds it.
    pub holds: Option<ReservationType>,
    /// The relative identifier of the target port of the I_T nexus.
    pub relative_port: u16,
    /// The initiator port, as a TransportID.
    pub initiator_port: Vec<u8>,
}

/// The parameter data of READ FULL STATUS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FullStatusList {
    /// PRGENERATION.
    pub generation: u32,
    /// One descriptor for each registered I_T nexus.
    pub registrants: Vec<FullStatus>,
}

impl FullStatusList {
    /// Returns the bytes on the wire.
    pub fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        for registrant in &self.registrants {
            body.extend_from_slice(&registrant.key.0.to_be_bytes());
            let (holder, kind) = registrant.holds.map_or((0, 0), |kind| (1, kind.code()));
            body.extend_from_slice(&[0, 0, 0, 0, holder, kind, 0, 0, 0, 0]);
            body.extend_from_slice(&registrant.relative_port.to_be_bytes());
            let len = u32::try_from(registrant.initiator_port.len()).unwrap_or(u32::MAX);
            body.extend_from_slice(&len.to_be_bytes());
            body.extend_from_slice(&registrant.initiator_port);
        }
        with_header(self.generation, &body)
    }

    /// Parses the bytes. Descriptors that the allocation length cut off are missing.
    ///
    /// # Errors
    /// When the data is shorter than the header.
    pub fn parse(bytes: &[u8]) -> Result<Self, UnexpectedEof> {
        let (generation, mut body) = header(bytes)?;
        let mut registrants = Vec::new();
        while let Ok(registrant) = full_status(&mut body) {
            registrants.push(registrant);
        }
        Ok(Self { generation, registrants })
    }
}

/// The parameter data of REPORT CAPABILITIES (SPC-5 §6.16.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// RLR_C: REPLACE LOST RESERVATION is supported.
    pub replace_lost: bool,
    /// CRH: RESERVE and RELEASE of a registrant succeed and do nothing.
    pub compatible_reservation_handling: bool,
    /// SIP_C: SPEC_I_PT is supported.
    pub specify_initiator_ports: bool,
    /// ATP_C: ALL_TG_PT is supported.
    pub all_target_ports: bool,
    /// PTPL_C: APTPL is supported.
    pub persist: bool,
    /// PTPL_A: APTPL is in force, because the last registration requested it.
    pub persist_active: bool,
    /// ALLOW COMMANDS, three bits (SPC-5 §6.16.4).
    pub allow_commands: u8,
    /// PERSISTENT RESERVATION TYPE MASK.
    pub types: u16,
}

impl Capabilities {
    /// Returns the bytes on the wire.
    pub fn encode(&self) -> [u8; 8] {
        let bit = |flag: bool, at: u8| u8::from(flag) << at;
        let [types_high, types_low] = self.types.to_be_bytes();
        [
            0,
            8,
            bit(self.replace_lost, 7)
                | bit(self.compatible_reservation_handling, 4)
                | bit(self.specify_initiator_ports, 3)
                | bit(self.all_target_ports, 2)
                | bit(self.persist, 0),
            0x80 | (self.allow_commands & 7) << 4 | bit(self.persist_active, 0),
            types_high,
            types_low,
            0,
            0,
        ]
    }

    /// Parses the bytes.
    ///
    /// # Errors
    /// When the data is too short.
    pub fn parse(bytes: &[u8]) -> Result<Self, UnexpectedEof> {
        let [_, _, can, now, types @ .., _, _] = Reader::new(bytes).array::<8>()?;
        let bit = |byte: u8, at: u8| byte >> at & 1 == 1;
        Ok(Self {
            replace_lost: bit(can, 7),
            compatible_reservation_handling: bit(can, 4),
            specify_initiator_ports: bit(can, 3),
            all_target_ports: bit(can, 2),
            persist: bit(can, 0),
            persist_active: bit(now, 0),
            allow_commands: now >> 4 & 7,
            types: if bit(now, 7) { u16::from_be_bytes(types) } else { 0 },
        })
    }
}

fn basic(list: &mut Reader<'_>) -> Result<(ReservationKey, ReservationKey, [u8; 4]), UnexpectedEof> {
    let (key, service_action_key) = (list.u64()?, list.u64()?);
    list.u32()?;
    Ok((ReservationKey(key), ReservationKey(service_action_key), list.array()?))
}

fn transport_ids(whole: &[u8], mut list: Reader<'_>) -> Result<Vec<TransportId>, Sense> {
    let mut ids = Vec::new();
    while !list.is_empty() {
        let at = whole.len() - list.remaining();
        ids.push(TransportId::take(&mut list).map_err(|why| transport_id_fault(at, why))?);
    }
    Ok(ids)
}

fn transport_id_fault(at: usize, why: Malformed) -> Sense {
    match why {
        Malformed::Truncated => length_error(),
        Malformed::Field(within) => {
            Sense::invalid_parameter(u16::try_from(at + within).unwrap_or(u16::MAX), None)
        }
    }
}

fn too_short(_: UnexpectedEof) -> Sense {
    length_error()
}

const fn length_error() -> Sense {
    Sense::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR)
}

fn with_header(generation: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(8 + body.len());
    bytes.extend_from_slice(&generation.to_be_bytes());
    bytes.extend_from_slice(&u32::try_from(body.len()).unwrap_or(u32::MAX).to_be_bytes());
    bytes.extend_from_slice(body);
    bytes
}

fn header(bytes: &[u8]) -> Result<(u32, Reader<'_>), UnexpectedEof> {
    let mut list = Reader::new(bytes);
    let generation = list.u32()?;
    let len = usize::try_from(list.u32()?).unwrap_or(usize::MAX);
    let body = list.take(len.min(list.remaining()))?;
    Ok((generation, Reader::new(body)))
}

fn full_status(body: &mut Reader<'_>) -> Result<FullStatus, UnexpectedEof> {
    let key = ReservationKey(body.u64()?);
    let [_, _, _, _, flags, scope_and_type, _, _, _, _] = body.array()?;
    let relative_port = body.u16()?;
    let len = usize::try_from(body.u32()?).unwrap_or(usize::MAX);
    let kind = ReservationType::from_code(scope_and_type & 0x0f);
    Ok(FullStatus {
        key,
        holds: kind.filter(|_| flags & 1 == 1),
        relative_port,
        initiator_port: body.take(len)?.to_vec(),
    })
}

#[cfg(test)]
mod tests;
