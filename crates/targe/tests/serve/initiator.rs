//! A minimal iSCSI initiator, to test that a target is served: login, SendTargets, ping, logout, as bytes of
//! RFC 7143.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// The longest that an answer may take.
const PATIENCE: Duration = Duration::from_secs(60);

const INITIATOR: &str = "iqn.2001-04.com.example:test";

pub(crate) struct Initiator {
    stream: TcpStream,
    /// The LUN that commands are sent to.
    pub(crate) lun: u8,
    cmd_sn: u32,
    stat_sn: u32,
}

/// A PDU: header, then data without its padding.
pub(crate) type Pdu = Vec<u8>;

impl Initiator {
    /// Logs in to a target.
    pub(crate) fn log_in(to: SocketAddr, target: &str) -> Self {
        Self::try_log_in(to, target).unwrap_or_else(|status| panic!("login to {target}: {status:?}"))
    }

    /// Logs in to a target, or returns status class and detail.
    pub(crate) fn try_log_in(to: SocketAddr, target: &str) -> Result<Self, [u8; 2]> {
        Self::start(to, &format!("InitiatorName={INITIATOR}\0SessionType=Normal\0TargetName={target}\0"))
    }

    /// Begins a discovery session.
    pub(crate) fn discover(to: SocketAddr) -> Self {
        Self::discover_or(to).unwrap()
    }

    /// Begins a discovery session, or returns status class and detail.
    pub(crate) fn discover_or(to: SocketAddr) -> Result<Self, [u8; 2]> {
        Self::start(to, &format!("InitiatorName={INITIATOR}\0SessionType=Discovery\0"))
    }

    fn start(to: SocketAddr, text: &str) -> Result<Self, [u8; 2]> {
        let stream = TcpStream::connect(to).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut initiator = Self { stream, lun: 0, cmd_sn: 1, stat_sn: 0 };
        // Transit from operational negotiation (1) to full feature phase (3); ISID of random format.
        let isid = [0x80, 0, 0, 1, 0, 0];
        let mut header = [0; 48];
        (header[0], header[1]) = (0x43, 0x87);
        header[8..14].copy_from_slice(&isid);
        initiator.send(header, text.as_bytes());
        let answer = initiator.receive().unwrap();
        assert_eq!(answer[0] & 0x3f, 0x23);
        match [answer[36], answer[37]] {
            [0, 0] => Ok(initiator),
            status => Err(status),
        }
    }

    /// Returns the initiator's own address.
    pub(crate) fn address(&self) -> SocketAddr {
        self.stream.local_addr().unwrap()
    }

    /// Returns the answer to `SendTargets=All`.
    pub(crate) fn send_targets(&mut self) -> String {
        let mut header = [0; 48];
        (header[0], header[1]) = (0x04, 0x80);
        header[20..24].fill(0xff);
        self.send(header, b"SendTargets=All\0");
        self.cmd_sn += 1;
        let answer = self.receive().unwrap();
        assert_eq!((answer[0] & 0x3f, answer[1]), (0x24, 0x80));
        String::from_utf8(answer[48..].to_vec()).unwrap()
    }

    /// Returns the size of the command window, from the answer to a ping.
    pub(crate) fn window(&mut self) -> u32 {
        let mut header = [0; 48];
        (header[0], header[1]) = (0x40, 0x80);
        header[16..20].copy_from_slice(&7_u32.to_be_bytes());
        header[20..24].fill(0xff);
        self.send(header, b"");
        loop {
            let answer = self.receive().unwrap();
            let word = |at: usize| u32::from_be_bytes(answer[at..at + 4].try_into().unwrap());
            if (answer[0] & 0x3f, word(16)) == (0x20, 7) {
                return word(32).wrapping_sub(word(28)).wrapping_add(1);
            }
        }
    }

    /// Returns whether the target answers a ping. Other PDUs that the target sends meanwhile are skipped.
    pub(crate) fn ping(&mut self) -> bool {
        let mut header = [0; 48];
        (header[0], header[1]) = (0x40, 0x80);
        header[16..20].copy_from_slice(&7_u32.to_be_bytes());
        header[20..24].fill(0xff);
        if self.try_send(header, b"").is_err() {
            return false;
        }
        loop {
            match self.receive() {
                Ok(answer) if answer[0] & 0x3f == 0x20 => return true,
                Ok(_) => {}
                Err(_) => return false,
            }
        }
    }

    /// Sends a command to the LUN, with `out` as immediate data. Repeats it while it is answered with unit
    /// attentions. Returns its data.
    ///
    /// # Errors
    /// Sense key, additional sense code and its qualifier; zeros when there is no sense data.
    pub(crate) fn command(&mut self, cdb: [u8; 16], out: &[u8], in_len: u32) -> Result<Vec<u8>, [u8; 3]> {
        loop {
            match self.try_command(cdb, out, in_len) {
                Err([6, ..]) => {}
                result => return result,
            }
        }
    }

    /// Sends a command like [`Self::command`], but only once. Returns its data.
    ///
    /// # Errors
    /// As for [`Self::command`].
    pub(crate) fn try_command(&mut self, cdb: [u8; 16], out: &[u8], in_len: u32) -> Result<Vec<u8>, [u8; 3]> {
        self.with_sense(cdb, out, in_len).map_err(|sense| match sense.first().map(|first| first & 0x7f) {
            None => [0; 3],
            Some(0x72) => [sense[1] & 0xf, sense[2], sense[3]],
            Some(_) => [sense[2] & 0xf, sense[12], sense[13]],
        })
    }

    /// Sends a command, and repeats it while it is answered with unit attentions. Returns the sense data of
    /// its failure.
    pub(crate) fn failure(&mut self, cdb: [u8; 16], out: &[u8], in_len: u32) -> Vec<u8> {
        loop {
            match self.with_sense(cdb, out, in_len) {
                Ok(_) => panic!("{cdb:02x?} does not fail"),
                Err(sense) if sense[2] & 0xf == 6 => {}
                Err(sense) => return sense,
            }
        }
    }

    fn with_sense(&mut self, cdb: [u8; 16], out: &[u8], in_len: u32) -> Result<Vec<u8>, Vec<u8>> {
        let mut header = [0; 48];
        let flags = if out.is_empty() { 0x40 } else { 0x20 };
        (header[0], header[1], header[9]) = (0x01, 0x81 | flags, self.lun);
        header[16..20].copy_from_slice(&9_u32.to_be_bytes());
        let expected = if out.is_empty() { in_len } else { u32::try_from(out.len()).unwrap() };
        header[20..24].copy_from_slice(&expected.to_be_bytes());
        header[32..].copy_from_slice(&cdb);
        self.send(header, out);
        self.cmd_sn += 1;
        let mut data = Vec::new();
        loop {
            let pdu = self.receive().unwrap();
            let status = match pdu[0] & 0x3f {
                0x25 => {
                    data.extend_from_slice(&pdu[48..]);
                    (pdu[1] & 1 == 1).then_some(pdu[3])
                }
                0x21 => Some(pdu[3]),
                _ => None,
            };
            match status {
                None => {}
                Some(0) => return Ok(data),
                // Fixed or descriptor format (SPC-5 §4.4), after two bytes of length.
                Some(_) => {
                    let sense = pdu.get(50..).filter(|sense| sense.len() > 13);
                    return Err(sense.unwrap_or_default().to_vec());
                }
            }
        }
    }

    /// PERSISTENT RESERVE OUT, REGISTER, with APTPL (SPC-5 §6.17).
    pub(crate) fn register(&mut self, key: u64) -> Result<Vec<u8>, [u8; 3]> {
        let mut list = [0; 24];
        list[8..16].copy_from_slice(&key.to_be_bytes());
        list[20] = 1;
        self.command([0x5f, 0, 0, 0, 0, 0, 0, 0, 24, 0, 0, 0, 0, 0, 0, 0], &list, 0)
    }

    /// PERSISTENT RESERVE IN, READ KEYS (SPC-5 §6.16.2).
    pub(crate) fn read_keys(&mut self) -> Result<Vec<u64>, [u8; 3]> {
        let data = self.command([0x5e, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0], &[], 256)?;
        Ok(data[8..].chunks(8).map(|key| u64::from_be_bytes(key.try_into().unwrap())).collect())
    }

    /// Closes the session with a logout.
    pub(crate) fn log_out(&mut self) {
        let mut header = [0; 48];
        (header[0], header[1]) = (0x46, 0x80);
        self.send(header, b"");
        assert_eq!(self.receive().unwrap()[0] & 0x3f, 0x26);
    }

    fn send(&mut self, header: [u8; 48], data: &[u8]) {
        self.try_send(header, data).unwrap();
    }

    fn try_send(&mut self, mut header: [u8; 48], data: &[u8]) -> io::Result<()> {
        header[5..8].copy_from_slice(&u32::try_from(data.len()).unwrap().to_be_bytes()[1..]);
        header[24..28].copy_from_slice(&self.cmd_sn.to_be_bytes());
        header[28..32].copy_from_slice(&self.stat_sn.to_be_bytes());
        let mut pdu = [&header[..], data].concat();
        pdu.resize(pdu.len().next_multiple_of(4), 0);
        self.stream.write_all(&pdu)
    }

    /// Receives the next PDU.
    pub(crate) fn receive(&mut self) -> io::Result<Pdu> {
        let mut pdu = vec![0; 48];
        self.stream.read_exact(&mut pdu)?;
        let len = usize::try_from(u32::from_be_bytes([0, pdu[5], pdu[6], pdu[7]])).unwrap();
        let mut data = vec![0; len.next_multiple_of(4)];
        self.stream.read_exact(&mut data)?;
        pdu.extend_from_slice(&data[..len]);
        let stat_sn = u32::from_be_bytes(pdu[24..28].try_into().unwrap());
        self.stat_sn = stat_sn.wrapping_add(1);
        Ok(pdu)
    }
}
