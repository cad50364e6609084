//! Traces: copies of the PDUs of connections, for an operator who wants to see what a session does.
//!
//! The owner of an engine gives it a [`PduTrace`], which selects sessions and takes their PDUs. Each PDU is
//! shown once, as it is without the protection of an AEAD digest: a received one when it was read to its end
//! and its header digest was right, a sent one when it was written for the driver. While no trace is on, an
//! engine compares once per received PDU, and once per sent header and data segment.
//!
//! Secrets are never shown. The values of `CHAP_N`, `CHAP_R` and of the keys of a password login are masked
//! in the text of logins. The data of a command that [`PduTrace::carries_secret`] names is left out, and that
//! of a task whose command was sent before the trace began.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt::Debug;
use core::net::SocketAddr;

use smallvec::SmallVec;

use crate::digest::Crc32c;
use crate::framing::{DataSink, ReceivedPdu, Receiver};
use crate::pdu::{BHS_LEN, Bhs, Itt, Opcode};

/// Takes the PDUs of the connections that it selects. It must not block: the thread that moves the data calls
/// it.
pub trait PduTrace: Debug + Send + Sync {
    /// Returns whether the trace wants the connections of a session. `target` is `None` in a discovery
    /// session, and if a login has not named it yet.
    fn selects(&self, initiator: &str, target: Option<&str>, isid: [u8; 6]) -> bool;

    /// Returns whether the trace may show connections that are protected on the network.
    fn takes_protected(&self) -> bool;

    /// Returns whether the parameters or the data of the command with this CDB are secret.
    fn carries_secret(&self, cdb: &[u8]) -> bool;

    /// Begins a connection. Returns the number by which [`Self::record`] and [`Self::closed`] name it.
    fn opened(&self, local: SocketAddr, peer: SocketAddr) -> u64;

    /// Takes a PDU of a connection.
    fn record(&self, connection: u64, pdu: &TracedPdu<'_>);

    /// Ends a connection.
    fn closed(&self, connection: u64);

    /// Returns whether the trace takes no more PDUs.
    fn has_ended(&self) -> bool;
}

/// A PDU in a trace.
#[derive(Clone, Copy, Debug)]
pub struct TracedPdu<'a> {
    /// Whether the target received it.
    pub received: bool,
    /// The basic header, the additional header segments and the header digest.
    pub header: &'a [u8],
    /// The data segment in parts. Less than `data_len` bytes if some are left out at the end.
    pub data: &'a [&'a [u8]],
    /// The length of the data segment, in bytes.
    pub data_len: usize,
    /// The padding and the data digest.
    pub trailer: &'a [u8],
}

/// The traces of one connection.
#[derive(Debug)]
pub(crate) struct ConnectionTrace {
    traces: SmallVec<[(Arc<dyn PduTrace>, u64); 1]>,
    received_text: SecretMask,
    sent_text: SecretMask,
    /// The tasks whose command was seen, and whether their data is secret.
    tasks: BTreeMap<Itt, bool>,
    /// The header of a sent PDU whose data segment follows, with its data digest still to come.
    sent: Option<SentHeader>,
}

/// The header of a PDU whose data segment follows.
#[derive(Clone, Debug)]
struct SentHeader {
    bhs: Bhs,
    header: SmallVec<[u8; HEADER_LEN]>,
    has_data_digest: bool,
}

/// The length up to which a header is kept without an allocation: one without additional header segments,
/// with its digest.
const HEADER_LEN: usize = 64;

/// How many tasks a connection is known to have. When an initiator that ignores its window begins more, those
/// before are forgotten, and their data is left out.
const TASKS_MAX: usize = 4096;

impl ConnectionTrace {
    /// Adds `trace` to those of a connection.
    pub(crate) fn start(
        of: &mut Option<Box<Self>>,
        trace: &Arc<dyn PduTrace>,
        local: SocketAddr,
        peer: SocketAddr,
    ) {
        let state = of.get_or_insert_with(|| {
            Box::new(Self {
                traces: SmallVec::new(),
                received_text: SecretMask::default(),
                sent_text: SecretMask::default(),
                tasks: BTreeMap::new(),
                sent: None,
            })
        });
        if !state.traces.iter().any(|(known, _)| Arc::ptr_eq(known, trace)) {
            state.traces.push((Arc::clone(trace), trace.opened(local, peer)));
        }
    }

    /// Ends the traces of a connection that `ends` names.
    pub(crate) fn end(of: &mut Option<Box<Self>>, ends: impl Fn(&Arc<dyn PduTrace>) -> bool) {
        let Some(state) = of else { return };
        state.traces.retain(|(trace, number)| {
            let ends = ends(trace);
            if ends {
                trace.closed(*number);
            }
            !ends
        });
        if state.traces.is_empty() {
            *of = None;
        }
    }

    /// Shows a received PDU.
    pub(crate) fn received(&mut self, pdu: &ReceivedPdu, receiver: &Receiver) {
        let bhs = &pdu.bhs;
        let (has_digest, trailer) = receiver.wire_form();
        let mut header: SmallVec<[u8; HEADER_LEN]> = SmallVec::from_slice(bhs.bytes());
        header.extend_from_slice(receiver.ahs());
        if has_digest {
            let digest = Crc32c::of(&header);
            header.extend_from_slice(&digest);
        }
        let data = match &pdu.sink {
            _ if receiver.lost_data(pdu) => &[],
            DataSink::Append(buf) => last(buf.filled(), bhs),
            DataSink::Overwrite { buf, at } => last(buf.filled().get(..*at).unwrap_or_default(), bhs),
            DataSink::Discard | DataSink::TakenByDriver { .. } => &[],
        };
        self.show(true, bhs, &header, &[data], trailer);
    }

    /// Takes the header of a PDU that is sent, and shows the PDU if it has no data segment.
    pub(crate) fn sent_header(&mut self, bhs: &Bhs, ahs: &[u8], (has_digest, has_data_digest): (bool, bool)) {
        let mut header: SmallVec<[u8; HEADER_LEN]> = SmallVec::from_slice(bhs.bytes());
        header.extend_from_slice(ahs);
        if has_digest {
            let digest = Crc32c::of(&header);
            header.extend_from_slice(&digest);
        }
        if bhs.data_len() == 0 {
            return self.show(false, bhs, &header, &[], &[]);
        }
        self.sent = Some(SentHeader { bhs: *bhs, header, has_data_digest });
    }

    /// Shows the PDU whose header was sent before, with its data segment.
    pub(crate) fn sent_data(&mut self, parts: &[&[u8]]) {
        let Some(SentHeader { bhs, header, has_data_digest }) = self.sent.take() else { return };
        let padding = [0; 3].get(..data_len(&bhs).wrapping_neg() % 4).unwrap_or_default();
        let mut trailer: SmallVec<[u8; 8]> = SmallVec::from_slice(padding);
        if has_data_digest {
            let mut crc = Crc32c::new();
            parts.iter().chain([&padding]).for_each(|part| crc.update(part));
            trailer.extend_from_slice(&crc.finish());
        }
        self.show(false, &bhs, &header, parts, &trailer);
    }

    /// Shows a PDU, without what is secret in it.
    fn show(&mut self, received: bool, bhs: &Bhs, header: &[u8], data: &[&[u8]], trailer: &[u8]) {
        let pdu = TracedPdu { received, header, data, data_len: data_len(bhs), trailer };
        match bhs.opcode() {
            Opcode::LOGIN_REQUEST | Opcode::LOGIN_RESPONSE => {
                let mask = if received { &mut self.received_text } else { &mut self.sent_text };
                let mut text = data.concat();
                mask.mask(&mut text, bhs.flags() & CONTINUES != 0);
                self.record(&TracedPdu { data: &[&text], ..pdu });
            }
            _ if self.leaves_data_out(bhs, header) => self.record(&TracedPdu { data: &[], ..pdu }),
            _ => self.record(&pdu),
        }
    }

    fn record(&self, pdu: &TracedPdu<'_>) {
        self.traces.iter().for_each(|(trace, number)| trace.record(*number, pdu));
    }

    /// Returns whether the data of a PDU must not be shown. Follows the tasks by their commands and statuses.
    fn leaves_data_out(&mut self, bhs: &Bhs, header: &[u8]) -> bool {
        match bhs.opcode() {
            Opcode::SCSI_COMMAND => {
                let cdb = header.get(CDB_AT..BHS_LEN).unwrap_or_default();
                let is_secret = self.traces.iter().any(|(trace, _)| trace.carries_secret(cdb));
                if self.tasks.len() >= TASKS_MAX {
                    self.tasks.clear();
                }
                self.tasks.insert(bhs.itt(), is_secret);
                is_secret
            }
            Opcode::DATA_OUT => self.tasks.get(&bhs.itt()).is_none_or(|is_secret| *is_secret),
            Opcode::DATA_IN => {
                let known = match bhs.flags() & HAS_STATUS {
                    0 => self.tasks.get(&bhs.itt()).copied(),
                    _ => self.tasks.remove(&bhs.itt()),
                };
                known.unwrap_or(true)
            }
            Opcode::SCSI_RESPONSE => {
                self.tasks.remove(&bhs.itt());
                false
            }
            _ => false,
        }
    }
}

impl Drop for ConnectionTrace {
    fn drop(&mut self) {
        self.traces.drain(..).for_each(|(trace, number)| trace.closed(number));
    }
}

/// Returns the value of `InitiatorName` or another key in the text of one PDU.
pub(crate) fn value_of<'t>(text: &'t [u8], key: &str) -> Option<&'t str> {
    let pairs = text.split(|byte| *byte == 0).filter_map(|pair| core::str::from_utf8(pair).ok());
    pairs.filter_map(|pair| pair.split_once('=')).find(|(name, _)| *name == key).map(|(_, value)| value)
}

/// Masks the values of secret keys in text, also where a pair is split over PDUs.
#[derive(Clone, Debug, Default)]
struct SecretMask {
    /// The key of the present pair, as far as it was read: at most [`KEY_MAX`] bytes, so that no longer key
    /// is mistaken for a secret one.
    key: Vec<u8>,
    in_value: bool,
}

impl SecretMask {
    /// Masks a text, which goes on in another PDU if it `continues`. A secret value that has no end goes on
    /// in any case.
    fn mask(&mut self, text: &mut [u8], continues: bool) {
        for byte in text {
            if *byte == 0 {
                *self = Self::default();
            } else if self.in_value {
                *byte = if self.is_secret() { b'*' } else { *byte };
            } else if *byte == b'=' {
                self.in_value = true;
            } else if self.key.len() < KEY_MAX {
                self.key.push(*byte);
            }
        }
        let goes_on = continues || (self.in_value && self.is_secret());
        if !goes_on {
            *self = Self::default();
        }
    }

    fn is_secret(&self) -> bool {
        SECRET_KEYS.iter().any(|key| *key == self.key)
    }
}

/// The keys whose values prove who somebody is, or tell who.
const SECRET_KEYS: [&[u8]; 6] =
    [b"CHAP_N", b"CHAP_R", b"X-org.targe.user", b"X-org.targe.ke1", b"X-org.targe.ke2", b"X-org.targe.ke3"];

/// More than the length of every secret key, in bytes.
const KEY_MAX: usize = 64;

/// The offset of the CDB in a SCSI Command (§11.3).
const CDB_AT: usize = 32;

/// The C bit of a login PDU (§11.12.2).
const CONTINUES: u8 = 0x40;

/// The S bit of a Data-In (§11.7).
const HAS_STATUS: u8 = 0x01;

fn data_len(bhs: &Bhs) -> usize {
    usize::try_from(bhs.data_len()).unwrap_or(usize::MAX)
}

/// Returns the data segment at the end of `filled`.
fn last<'b>(filled: &'b [u8], bhs: &Bhs) -> &'b [u8] {
    let start = filled.len().checked_sub(data_len(bhs));
    start.and_then(|start| filled.get(start..)).unwrap_or_default()
}

#[cfg(test)]
mod tests;
