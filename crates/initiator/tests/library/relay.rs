//! A relay between an initiator and a target of ours: it records the commands, and tests change the
//! responses.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use super::target;

/// The opcodes of PDUs (RFC 7143 §11.2.1.2).
const SCSI_COMMAND: u8 = 0x01;
const SCSI_RESPONSE: u8 = 0x21;
const DATA_IN: u8 = 0x25;

/// The length of a basic header segment.
pub(crate) const HEADER: usize = 48;

type Cdb = [u8; 16];
type Change = Box<dyn FnMut(&Cdb, &mut Vec<u8>) + Send>;

pub(crate) struct Relay {
    url: String,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// The commands that were sent, by initiator task tag.
    under_way: HashMap<[u8; 4], Cdb>,
    sent: Vec<Cdb>,
    change: Option<Change>,
    sockets: Vec<TcpStream>,
}

impl Relay {
    /// Starts a relay in front of a LUN that no other test uses.
    pub(crate) fn of(lun: u16) -> Self {
        let direct = target::url(lun);
        let (scheme, rest) = direct.split_at("iscsi://".len());
        let (address, path) = rest.split_once('/').unwrap();
        let to: SocketAddr = address.parse().unwrap();
        let state = Arc::new(Mutex::new(State::default()));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let through = listener.local_addr().unwrap();
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (client, target) = (client.unwrap(), TcpStream::connect(to).unwrap());
                let (from_client, to_target) = (client.try_clone().unwrap(), target.try_clone().unwrap());
                shared.lock().unwrap().sockets = vec![client.try_clone().unwrap(), to_target];
                let to_target = target.try_clone().unwrap();
                let (commands, responses) = (Arc::clone(&shared), Arc::clone(&shared));
                std::thread::spawn(move || carry(&from_client, &to_target, |pdu| record(&commands, pdu)));
                std::thread::spawn(move || carry(&target, &client, |pdu| change(&responses, pdu)));
            }
        });
        let url = format!("{scheme}{through}/{path}?header_digest=none&data_digest=none&erl=0");
        Self { url, state }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Returns the operation codes of the commands since the last call.
    pub(crate) fn sent(&self) -> Vec<u8> {
        std::mem::take(&mut self.state.lock().unwrap().sent).iter().map(|cdb| cdb[0]).collect()
    }

    /// Calls `change` with every Data-In and SCSI Response PDU, and the CDB of its command, from now on.
    pub(crate) fn change(&self, change: impl FnMut(&Cdb, &mut Vec<u8>) + Send + 'static) {
        self.state.lock().unwrap().change = Some(Box::new(change));
    }

    /// Cuts the connection.
    pub(crate) fn cut(&self) {
        for socket in self.state.lock().unwrap().sockets.drain(..) {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

/// Replaces a PDU with a status by a SCSI Response with CHECK CONDITION and sense data of the fixed format.
pub(crate) fn check_condition(pdu: &mut Vec<u8>, response_code: u8, key: u8, asc: u16) {
    let [asc, ascq] = asc.to_be_bytes();
    let sense = [response_code, 0, key, 0, 0, 0, 0, 10, 0, 0, 0, 0, asc, ascq, 0, 0, 0, 0];
    (pdu[0], pdu[1], pdu[2], pdu[3]) = (SCSI_RESPONSE, 0x80 | (pdu[1] & 6), 0, 2);
    pdu[36..40].fill(0);
    pdu.truncate(HEADER);
    pdu[4..8].copy_from_slice(&20_u32.to_be_bytes());
    pdu.extend([0, 18]);
    pdu.extend(sense);
}

fn record(state: &Mutex<State>, pdu: &[u8]) {
    if pdu[0] & 0x3f == SCSI_COMMAND {
        let mut state = state.lock().unwrap();
        let cdb = pdu[32..48].try_into().unwrap();
        state.under_way.insert(pdu[16..20].try_into().unwrap(), cdb);
        state.sent.push(cdb);
    }
}

fn change(state: &Mutex<State>, pdu: &mut Vec<u8>) {
    if [SCSI_RESPONSE, DATA_IN].contains(&pdu[0]) {
        let mut state = state.lock().unwrap();
        let tag: [u8; 4] = pdu[16..20].try_into().unwrap();
        let cdb = state.under_way.get(&tag).copied().unwrap_or_default();
        if let Some(change) = &mut state.change {
            change(&cdb, pdu);
        }
    }
}

/// Carries PDUs until a connection ends.
fn carry(mut from: &TcpStream, mut to: &TcpStream, mut each: impl FnMut(&mut Vec<u8>)) {
    let mut pdu = Vec::new();
    loop {
        pdu.resize(HEADER, 0);
        if from.read_exact(&mut pdu).is_err() {
            break;
        }
        let data_len = usize::from(pdu[5]) << 16 | usize::from(pdu[6]) << 8 | usize::from(pdu[7]);
        pdu.resize(HEADER + usize::from(pdu[4]) * 4 + data_len.next_multiple_of(4), 0);
        if from.read_exact(&mut pdu[HEADER..]).is_err() {
            break;
        }
        each(&mut pdu);
        if to.write_all(&pdu).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}
