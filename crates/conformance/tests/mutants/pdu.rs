//! A PDU on its way, as a mutant sees and changes it.

use iscsi::pdu::Opcode;

/// The length of a basic header segment.
pub(crate) const HEADER_LEN: usize = 48;

/// READ(10) and WRITE(10), INQUIRY and READ CAPACITY(10).
pub(crate) const READ: u8 = 0x28;
pub(crate) const WRITE: u8 = 0x2a;
/// READ(16) and WRITE(16), which the true initiator sends.
pub(crate) const READ_16: u8 = 0x88;
pub(crate) const WRITE_16: u8 = 0x8a;
pub(crate) const INQUIRY: u8 = 0x12;
pub(crate) const READ_CAPACITY: u8 = 0x25;
pub(crate) const TEST_UNIT_READY: u8 = 0;

/// Offsets of fields in the basic header segment.
pub(crate) const LUN: usize = 8;
/// The CDB of a SCSI Command.
pub(crate) const CDB: usize = 32;
pub(crate) const ITT: usize = 16;
pub(crate) const TTT: usize = 20;
pub(crate) const STAT_SN: usize = 24;
pub(crate) const EXP_CMD_SN: usize = 28;
/// In PDUs of an initiator.
pub(crate) const EXP_STAT_SN: usize = 28;
pub(crate) const MAX_CMD_SN: usize = 32;
pub(crate) const DATA_SN: usize = 36;
pub(crate) const OFFSET: usize = 40;
pub(crate) const RESIDUAL: usize = 44;

/// The F bit, and T of a login.
pub(crate) const FINAL: u8 = 0x80;
/// The I bit, in the byte of the opcode.
pub(crate) const IMMEDIATE: u8 = 0x40;
/// The S bit of Data-In.
pub(crate) const STATUS: u8 = 1;
/// The O and the U bit of responses and of Data-In with a status.
pub(crate) const OVERFLOW: u8 = 4;
pub(crate) const UNDERFLOW: u8 = 2;

/// A PDU with all its segments.
#[derive(Clone, Debug)]
pub(crate) struct Pdu {
    /// The number of its connection, beginning with 0.
    pub(crate) conn: usize,
    pub(crate) header: [u8; HEADER_LEN],
    pub(crate) ahs: Vec<u8>,
    pub(crate) data: Vec<u8>,
    /// Whether it came, and goes on, with wrong digests.
    pub(crate) damaged_header: bool,
    pub(crate) damaged_data: bool,
    /// The operation code of the command that it belongs to.
    pub(crate) operation: Option<u8>,
}

impl Pdu {
    /// Makes a PDU of zeros without data.
    pub(crate) fn new(conn: usize, opcode: Opcode) -> Self {
        let mut header = [0; HEADER_LEN];
        header[0] = opcode.0;
        Self {
            conn,
            header,
            ahs: Vec::new(),
            data: Vec::new(),
            damaged_header: false,
            damaged_data: false,
            operation: None,
        }
    }

    pub(crate) const fn opcode(&self) -> Opcode {
        Opcode(self.header[0] & 0x3f)
    }

    pub(crate) fn is(&self, opcode: Opcode) -> bool {
        self.opcode() == opcode
    }

    /// Returns whether the PDU is of this kind, and belongs to a command with this operation code.
    pub(crate) fn of(&self, opcode: Opcode, operation: u8) -> bool {
        self.is(opcode) && self.operation == Some(operation)
    }

    pub(crate) const fn is_from_target(&self) -> bool {
        self.header[0] & 0x20 != 0
    }

    pub(crate) const fn is_immediate(&self) -> bool {
        self.header[0] & IMMEDIATE != 0
    }

    pub(crate) const fn flags(&self) -> u8 {
        self.header[1]
    }

    pub(crate) fn word(&self, at: usize) -> u32 {
        u32::from_be_bytes(self.header[at..at + 4].try_into().unwrap())
    }

    pub(crate) fn set(&mut self, at: usize, word: u32) {
        self.header[at..at + 4].copy_from_slice(&word.to_be_bytes());
    }

    /// Adds to a number in the header.
    pub(crate) fn add(&mut self, at: usize, by: i32) {
        self.set(at, self.word(at).wrapping_add_signed(by));
    }

    /// Returns the status of a Login Response.
    pub(crate) fn login_status(&self) -> u16 {
        u16::from_be_bytes([self.header[36], self.header[37]])
    }

    pub(crate) fn set_login_status(&mut self, status: u16) {
        self.header[36..38].copy_from_slice(&status.to_be_bytes());
    }

    /// Returns the pairs of its text.
    pub(crate) fn text(&self) -> Vec<(String, String)> {
        let text = String::from_utf8_lossy(&self.data);
        let pairs = text.split('\0').filter_map(|pair| pair.split_once('='));
        pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    pub(crate) fn value(&self, name: &str) -> Option<String> {
        self.text().into_iter().find(|(known, _)| known == name).map(|(_, value)| value)
    }

    pub(crate) fn set_text(&mut self, pairs: &[(String, String)]) {
        self.data = pairs.iter().flat_map(|(name, value)| format!("{name}={value}\0").into_bytes()).collect();
    }

    /// Sets the value of a key that its text has. Returns whether it has the key.
    pub(crate) fn replace(&mut self, name: &str, value: &str) -> bool {
        let mut text = self.text();
        let found = text.iter_mut().find(|(known, _)| known == name);
        let is_there = found.map(|(_, old)| value.clone_into(old)).is_some();
        if is_there {
            self.set_text(&text);
        }
        is_there
    }

    /// Appends a pair to its text.
    pub(crate) fn append(&mut self, name: &str, value: &str) {
        self.data.extend_from_slice(format!("{name}={value}\0").as_bytes());
    }

    pub(crate) fn remove(&mut self, name: &str) {
        let mut text = self.text();
        text.retain(|(known, _)| known != name);
        self.set_text(&text);
    }

    /// Turns a SCSI Response into GOOD.
    pub(crate) fn make_good(&mut self) {
        self.header[2] = 0;
        self.header[3] = 0;
        self.data.clear();
    }

    /// Turns a SCSI Response into CHECK CONDITION with ABORTED COMMAND.
    pub(crate) fn make_aborted(&mut self) {
        self.header[3] = 2;
        self.data = sense(0xb, 0x0000);
    }

    /// Changes the sense key and the additional sense code of a SCSI Response, if it has sense data of fixed
    /// format.
    pub(crate) fn set_sense(&mut self, key: u8, code: u16) {
        if self.header[3] == 2 {
            self.data = sense(key, code);
        }
    }

    /// Changes the CDB of a command with this operation code.
    pub(crate) fn on_cdb(&mut self, operation: u8, change: impl FnOnce(&mut [u8])) {
        if self.is(Opcode::SCSI_COMMAND) && self.header[CDB] == operation {
            change(&mut self.header[CDB..]);
        }
    }

    /// Turns a command with this operation code into TEST UNIT READY: it ends with GOOD and does nothing.
    pub(crate) fn forget(&mut self, operation: u8) {
        self.on_cdb(operation, |cdb| cdb.fill(0));
    }

    /// Changes the data that a command with this operation code reads.
    pub(crate) fn on_data(&mut self, operation: u8, change: impl FnOnce(&mut [u8])) {
        if self.of(Opcode::DATA_IN, operation) {
            change(&mut self.data);
        }
    }

    /// Changes the sense data of a command with this operation code, which have the fixed format.
    pub(crate) fn on_sense(&mut self, operation: u8, change: impl FnOnce(&mut [u8])) {
        if self.of(Opcode::SCSI_RESPONSE, operation) && self.data.len() > 2 {
            change(&mut self.data[2..]);
        }
    }

    /// Adds 1 to INFORMATION of such sense data.
    pub(crate) fn count_wrongly(&mut self, operation: u8) {
        self.on_sense(operation, |sense| sense[6] = sense[6].wrapping_add(1));
    }

    /// Ends a command with this operation code with GOOD.
    pub(crate) fn accept(&mut self, operation: u8) {
        if self.of(Opcode::SCSI_RESPONSE, operation) {
            self.make_good();
        }
    }

    /// Refuses a command with this operation code that does nothing else: [`Self::forget`] has turned it into
    /// TEST UNIT READY.
    pub(crate) fn refuse(&mut self, operation: u8) {
        self.forget(operation);
        if self.of(Opcode::SCSI_RESPONSE, operation) {
            self.make_aborted();
        }
    }

    /// Damages one byte of the data, if there is any, under a right digest.
    pub(crate) fn spoil(&mut self) {
        if let Some(byte) = self.data.last_mut() {
            *byte ^= 0x10;
        }
    }
}

/// Returns sense data in fixed format, as a SCSI Response carries it.
fn sense(key: u8, code: u16) -> Vec<u8> {
    let [asc, ascq] = code.to_be_bytes();
    let mut data = vec![0, 18, 0x70, 0, key, 0, 0, 0, 0, 10, 0, 0, 0, 0, asc, ascq];
    data.resize(20, 0);
    data
}
