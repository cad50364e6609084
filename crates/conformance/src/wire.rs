//! One TCP connection as a stream of PDUs: framing, digests, the transcript of both directions, and faults on
//! request.
//!
//! Sending never fails: if the peer has closed the connection, the next receive reports that. Every receive
//! ends.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use iscsi::digest::{Crc32c, DIGEST_LEN};
use iscsi::pdu::{BHS_LEN, Bhs, Itt, Opcode, PduHeader};

use crate::text::Keys;
use crate::transcript::{Record, Way};
use crate::verdict::Outcome;

/// A PDU with all its segments.
#[derive(Clone)]
pub(crate) struct Pdu {
    pub(crate) bhs: Bhs,
    pub(crate) ahs: Vec<u8>,
    pub(crate) data: Vec<u8>,
}

/// The damage to a PDU that we send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Damage {
    None,
    /// The header digest does not match the header.
    HeaderDigest,
    /// The data digest does not match the data.
    DataDigest,
}

/// The result of waiting for a PDU.
#[derive(Clone)]
pub(crate) enum Received {
    Pdu(Pdu),
    /// The peer closed the connection.
    Closed,
    /// The time ran out.
    Nothing,
}

impl Pdu {
    pub(crate) fn opcode(&self) -> Opcode {
        self.bhs.opcode()
    }

    pub(crate) fn itt(&self) -> Itt {
        self.bhs.itt()
    }

    pub(crate) fn flags(&self) -> u8 {
        self.bhs.flags()
    }

    /// Returns one byte of the basic header segment.
    pub(crate) fn byte(&self, at: usize) -> u8 {
        self.bhs.bytes().get(at).copied().unwrap_or_default()
    }

    /// Returns four bytes of the basic header segment.
    pub(crate) fn word(&self, at: usize) -> u32 {
        word(self.bhs.bytes(), at)
    }

    /// Decodes the header. Fails only if the header is illegal in itself.
    pub(crate) fn read<M: PduHeader>(&self) -> Outcome<M> {
        match M::decode(&self.bhs) {
            Ok(value) => Ok(value),
            Err(why) => fail!("the header of {} is illegal: {why}", self.shown()),
        }
    }

    /// Returns the PDU as one line for the transcript.
    pub(crate) fn shown(&self) -> String {
        show(&self.bhs, self.ahs.len(), &self.data)
    }
}

/// Returns four bytes at `at`, or zero beyond the end.
pub(crate) fn word(bytes: &[u8], at: usize) -> u32 {
    let word = bytes.get(at..).and_then(|rest| rest.first_chunk::<4>());
    word.map_or(0, |word| u32::from_be_bytes(*word))
}

/// A connection.
#[derive(Debug)]
pub(crate) struct PduStream {
    stream: TcpStream,
    number: usize,
    record: Record,
    /// The time at which the case must have ended.
    deadline: Instant,
    received: Vec<u8>,
    closed: bool,
    /// While output is held, the bytes to send together.
    together: Option<Vec<u8>>,
    pub(crate) header_digest: bool,
    pub(crate) data_digest: bool,
}

impl PduStream {
    /// Opens connection `number` of a case.
    pub(crate) fn open(addr: SocketAddr, number: usize, record: &Record, deadline: Instant) -> Outcome<Self> {
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        match TcpStream::connect_timeout(&addr, left) {
            Ok(stream) => {
                record.event(&format!("#{number} connected to {addr}"));
                Self::over(stream, number, record, deadline)
            }
            Err(error) => fail!("{addr} cannot be reached: {error}"),
        }
    }

    /// Makes a stream from a connected socket.
    pub(crate) fn over(
        stream: TcpStream,
        number: usize,
        record: &Record,
        deadline: Instant,
    ) -> Outcome<Self> {
        let set = stream.set_nodelay(true).and_then(|()| stream.set_write_timeout(Some(WRITE_MAX)));
        if let Err(error) = set {
            fail!("the socket takes no settings: {error}");
        }
        Ok(Self {
            stream,
            number,
            record: record.clone(),
            deadline,
            received: Vec::new(),
            closed: false,
            together: None,
            header_digest: false,
            data_digest: false,
        })
    }

    pub(crate) const fn record(&self) -> &Record {
        &self.record
    }

    /// Sends a PDU; sets its length fields from the segments.
    pub(crate) fn send(&mut self, bhs: Bhs, ahs: &[u8], data: &[u8], damage: Damage) {
        let bhs = bhs.with_ahs_len(ahs.len()).with_data_len(data.len());
        let note = match damage {
            Damage::None => "",
            Damage::HeaderDigest => " WITH A WRONG HEADER DIGEST",
            Damage::DataDigest => " WITH A WRONG DATA DIGEST",
        };
        self.record.pdu(Way::Sent, self.number, &format!("{}{note}", show(&bhs, ahs.len(), data)));
        let bytes = self.frame(bhs, ahs, data, damage);
        match &mut self.together {
            Some(waiting) => waiting.extend_from_slice(&bytes),
            None => self.put(&bytes),
        }
    }

    /// Holds output from here on, so that it is sent together.
    pub(crate) fn hold_output(&mut self) {
        self.together = Some(Vec::new());
    }

    /// Sends the output that was held.
    pub(crate) fn flush_output(&mut self) {
        if let Some(bytes) = self.together.take() {
            self.put(&bytes);
        }
    }

    fn frame(&self, bhs: Bhs, ahs: &[u8], data: &[u8], damage: Damage) -> Vec<u8> {
        let mut out = bhs.bytes().to_vec();
        out.extend_from_slice(ahs);
        if self.header_digest {
            let digest = Crc32c::of(&out);
            out.extend(spoilt(digest, damage == Damage::HeaderDigest));
        }
        if !data.is_empty() {
            let begin = out.len();
            out.extend_from_slice(data);
            out.resize(begin + data.len().next_multiple_of(4), 0);
            if self.data_digest {
                let digest = Crc32c::of(out.get(begin..).unwrap_or_default());
                out.extend(spoilt(digest, damage == Damage::DataDigest));
            }
        }
        out
    }

    fn put(&mut self, bytes: &[u8]) {
        if let Err(error) = self.stream.write_all(bytes) {
            self.record.event(&format!("#{} sending fails: {error}", self.number));
        }
    }

    /// Closes the connection without a Logout.
    pub(crate) fn drop_connection(&mut self) {
        self.record.event(&format!("#{} we close the connection", self.number));
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
        self.closed = true;
    }

    /// Shuts down the sending side; the peer can still send.
    pub(crate) fn end_sending(&mut self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Write);
    }

    /// Waits for the next PDU.
    pub(crate) fn receive(&mut self, wait: Duration) -> Outcome<Received> {
        let until = Instant::now() + wait;
        let mut looked = false;
        loop {
            if let Some(pdu) = self.take()? {
                self.record.pdu(Way::Came, self.number, &pdu.shown());
                return Ok(Received::Pdu(pdu));
            }
            if self.closed {
                return Ok(Received::Closed);
            }
            let now = Instant::now();
            if now >= self.deadline {
                fail!("the time limit of the case has passed");
            }
            // Even with the shortest wait, read the data that is already there.
            if now >= until && looked {
                return Ok(Received::Nothing);
            }
            looked = true;
            self.fill(until.min(self.deadline).saturating_duration_since(now));
        }
    }

    /// Receives the bytes that are there, or waits for some for at most `wait`.
    fn fill(&mut self, wait: Duration) {
        let mut chunk = [0; 64 << 10];
        let _ = self.stream.set_read_timeout(Some(wait.max(Duration::from_millis(1))));
        match self.stream.read(&mut chunk) {
            Ok(0) => self.end("the peer closed the connection"),
            Ok(len) => self.received.extend_from_slice(chunk.get(..len).unwrap_or_default()),
            Err(error) if again(error.kind()) => {}
            Err(error) => self.end(&error.to_string()),
        }
    }

    fn end(&mut self, why: &str) {
        self.closed = true;
        self.record.event(&format!("#{} {why}", self.number));
    }

    /// Takes a PDU out of the received bytes, once it is complete.
    fn take(&mut self) -> Outcome<Option<Pdu>> {
        let Some(head) = self.received.first_chunk::<BHS_LEN>() else { return Ok(None) };
        let bhs = Bhs::from_bytes(*head);
        let data_len = usize::try_from(bhs.data_len()).unwrap_or_default();
        let header_end = BHS_LEN + bhs.ahs_len();
        let data_begin = header_end + if self.header_digest { DIGEST_LEN } else { 0 };
        let data_end = data_begin + data_len.next_multiple_of(4);
        let end = data_end + if self.data_digest && data_len > 0 { DIGEST_LEN } else { 0 };
        if self.received.len() < end {
            return Ok(None);
        }
        let whole: Vec<u8> = self.received.drain(..end).collect();
        let part = |from: usize, to: usize| whole.get(from..to).unwrap_or_default();
        let pdu = Pdu {
            bhs,
            ahs: part(BHS_LEN, header_end).to_vec(),
            data: part(data_begin, data_begin + data_len).to_vec(),
        };
        require!(
            !self.header_digest || Crc32c::of(part(0, header_end)) == part(header_end, data_begin),
            "a header digest of the peer is wrong: {}",
            pdu.shown()
        );
        require!(
            end == data_end || Crc32c::of(part(data_begin, data_end)) == part(data_end, end),
            "a data digest of the peer is wrong: {}",
            pdu.shown()
        );
        Ok(Some(pdu))
    }
}

/// The longest time that a write may block; a peer that reads nothing for so long has stopped reading.
const WRITE_MAX: Duration = Duration::from_secs(5);

fn again(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

/// Damages a digest like a bit error on the line. A target that can still find the end of the PDU may
/// continue behind it; where it cannot, RFC 7143 §7.8 lets it close the connection.
const fn spoilt([first, rest @ ..]: [u8; DIGEST_LEN], spoil: bool) -> [u8; DIGEST_LEN] {
    let [b, c, d] = rest;
    [first ^ spoil as u8, b, c, d]
}

/// Returns a PDU in one line: opcode, flags, tags, the numbers of its opcode, and the text if it carries
/// text.
fn show(bhs: &Bhs, ahs_len: usize, data: &[u8]) -> String {
    let bytes = bhs.bytes();
    let opcode = bhs.opcode();
    let mut out = format!("{opcode:?}");
    if bhs.is_immediate() && opcode.0 < 0x20 {
        out.push_str(" I");
    }
    out.push_str(&format!(" flags={:02x} itt={:x}", bhs.flags(), bhs.itt().0));
    for (name, at) in fields(opcode) {
        out.push_str(&format!(" {name}={:x}", word(bytes, *at)));
    }
    match opcode {
        Opcode::SCSI_COMMAND => {
            let cdb: String = bytes.iter().skip(32).take(10).map(|byte| format!("{byte:02x}")).collect();
            out.push_str(&format!(" cdb={cdb}"));
        }
        Opcode::SCSI_RESPONSE | Opcode::DATA_IN | Opcode::LOGIN_RESPONSE => {
            let at = if opcode == Opcode::LOGIN_RESPONSE { 36 } else { 2 };
            out.push_str(&format!(" status={:04x}", word(bytes, at) >> 16));
        }
        Opcode::REJECT | Opcode::TMF_RESPONSE | Opcode::LOGOUT_RESPONSE => {
            out.push_str(&format!(" code={:02x}", bytes.get(2).copied().unwrap_or_default()));
        }
        _ => {}
    }
    if ahs_len > 0 {
        out.push_str(&format!(" ahs={ahs_len}"));
    }
    if !data.is_empty() {
        out.push_str(&format!(" data={}", data.len()));
    }
    if matches!(opcode.0, 0x03 | 0x04 | 0x23 | 0x24) && !data.is_empty() {
        out.push_str(&format!(" {}", shown_text(data)));
    }
    out
}

/// The most characters of text in a line.
const TEXT_SHOWN_MAX: usize = 300;

fn shown_text(data: &[u8]) -> String {
    let text: String = match Keys::parse(data) {
        Ok(keys) => keys
            .iter()
            .map(|(name, value)| format!("{name}={}", hidden(name, value)))
            .collect::<Vec<_>>()
            .join(" "),
        Err(_) => String::from_utf8_lossy(data).into_owned(),
    };
    let cut: String = text.chars().take(TEXT_SHOWN_MAX).collect();
    if cut.len() < text.len() { format!("{{{cut}…}}") } else { format!("{{{text}}}") }
}

/// Hides CHAP responses. A response allows an offline attack on the secret, so a report that is passed on
/// must not contain it.
fn hidden<'a>(name: &str, value: &'a str) -> &'a str {
    if name == "CHAP_R" { "(hidden)" } else { value }
}

/// The numbers of each opcode, and their offsets in the basic header segment.
fn fields(opcode: Opcode) -> &'static [(&'static str, usize)] {
    match opcode {
        Opcode::SCSI_COMMAND => &[("lun", 8), ("edtl", 20), ("CmdSN", 24), ("ExpStatSN", 28)],
        Opcode::TMF_REQUEST => &[("rtt", 20), ("CmdSN", 24), ("ExpStatSN", 28), ("RefCmdSN", 32)],
        Opcode::NOP_OUT | Opcode::TEXT_REQUEST => &[("ttt", 20), ("CmdSN", 24), ("ExpStatSN", 28)],
        Opcode::LOGIN_REQUEST | Opcode::LOGOUT_REQUEST => &[("CmdSN", 24), ("ExpStatSN", 28)],
        Opcode::DATA_OUT => &[("ttt", 20), ("ExpStatSN", 28), ("DataSN", 36), ("offset", 40)],
        Opcode::SNACK => &[("ttt", 20), ("ExpStatSN", 28), ("BegRun", 40), ("RunLength", 44)],
        Opcode::DATA_IN => &[
            ("ttt", 20),
            ("StatSN", 24),
            ("ExpCmdSN", 28),
            ("MaxCmdSN", 32),
            ("DataSN", 36),
            ("offset", 40),
            ("residual", 44),
        ],
        Opcode::SCSI_RESPONSE => {
            &[("StatSN", 24), ("ExpCmdSN", 28), ("MaxCmdSN", 32), ("ExpDataSN", 36), ("residual", 44)]
        }
        Opcode::R2T => &[
            ("ttt", 20),
            ("StatSN", 24),
            ("ExpCmdSN", 28),
            ("MaxCmdSN", 32),
            ("R2TSN", 36),
            ("offset", 40),
            ("length", 44),
        ],
        Opcode::REJECT => &[("StatSN", 24), ("ExpCmdSN", 28), ("MaxCmdSN", 32), ("DataSN", 36)],
        Opcode::ASYNC_MESSAGE => &[("StatSN", 24), ("ExpCmdSN", 28), ("MaxCmdSN", 32), ("event", 36)],
        Opcode::NOP_IN | Opcode::TEXT_RESPONSE => {
            &[("ttt", 20), ("StatSN", 24), ("ExpCmdSN", 28), ("MaxCmdSN", 32)]
        }
        _ => &[("StatSN", 24), ("ExpCmdSN", 28), ("MaxCmdSN", 32)],
    }
}
