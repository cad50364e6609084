//! The framing of a connection, which also writes every PDU to the trace.

use netem::iscsi::Iscsi as Framing;
use netem::stream::{PduLayout, StreamDirection};

use crate::trace::Trace;

/// A framing that records each PDU before a fault can be injected into it.
pub(super) struct TracedFraming {
    inner: Framing,
    trace: Trace,
    wire: u64,
}

/// The first byte of an immediate SCSI Command PDU.
const IMMEDIATE_COMMAND: u8 = 0x41;

impl TracedFraming {
    /// Creates the framing of a new connection; `is_sealed` says whether it has an AEAD digest.
    pub(super) fn new(trace: Trace, wire: u64, is_sealed: bool) -> Self {
        let inner = if is_sealed { Framing::sealed() } else { Framing::new() };
        Self { inner, trace, wire }
    }
}

impl netem::stream::Framing for TracedFraming {
    fn pdu_layout(&mut self, way: StreamDirection, bytes: &[u8]) -> Option<PduLayout> {
        let mut shape = self.inner.pdu_layout(way, bytes)?;
        // An immediate command that is duplicated after it was answered is executed again at any
        // ErrorRecoveryLevel.
        shape.once = way == StreamDirection::Forward && bytes.first() == Some(&IMMEDIATE_COMMAND);
        Some(shape)
    }

    fn passed(&mut self, way: StreamDirection, unit: &[u8]) {
        self.inner.passed(way, unit);
        self.trace.mix_bytes(unit);
        self.trace.say(|| describe(self.wire, way, unit));
    }
}

fn describe(wire: u64, way: StreamDirection, unit: &[u8]) -> String {
    let name = match unit[0] & 0x3f {
        0x00 => "NOP-Out",
        0x01 => "Command",
        0x02 => "TMF",
        0x03 => "Login",
        0x04 => "Text",
        0x05 => "Data-Out",
        0x06 => "Logout",
        0x10 => "SNACK",
        0x20 => "NOP-In",
        0x21 => "Response",
        0x22 => "TMF response",
        0x23 => "Login response",
        0x24 => "Text response",
        0x25 => "Data-In",
        0x26 => "Logout response",
        0x31 => "R2T",
        0x32 => "Async",
        0x3f => "Reject",
        _ => "?",
    };
    let word = |at: usize| u32::from_be_bytes([unit[at], unit[at + 1], unit[at + 2], unit[at + 3]]);
    let arrow = if way == StreamDirection::Forward { '>' } else { '<' };
    let immediate = if unit[0] & 0x40 == 0 { "" } else { " immediate" };
    format!(
        "  {wire} {arrow} {name}{immediate} {:02x} {:02x}{:02x} len {} itt {:x} 20:{:x} 24:{:x} 28:{:x} 32:{:x} 36:{:x} 40:{:x} 44:{:x}",
        unit[1],
        unit[2],
        unit[3],
        word(4) & 0x00ff_ffff,
        word(16),
        word(20),
        word(24),
        word(28),
        word(32),
        word(36),
        word(40),
        word(44),
    )
}
