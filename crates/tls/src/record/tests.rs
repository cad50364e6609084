//! The record layer against published values, and against rustls as the other end.

use std::io::{Read, Write};
use std::sync::Arc;

use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, Connection, RootCertStore, ServerConnection, version};

use super::*;
use crate::handshake::tests::{TestSecrets, record_layer_of};
use crate::tests::Files;

/// The secrets of application data and the records with it of RFC 8448 §3.
const CLIENT_SECRET: &str = "9e40646ce79a7f9dc05af8889bce6552875afa0b06df0087f792ebb7c17504a5";
const SERVER_SECRET: &str = "a11af9f05531f856ad47116b45a950328204b4f44bfb6b3a4b4f1f3fcb631643";
const CLIENT_RECORD: &str = "1703030043a23f7054b62c94d0affafe8228ba55cbefacea42f914aa66bcab3f2b9819a8a5b46b395bd54a9a20441e2b\
                             62974e1f5a6292a2977014bd1e3deae63aeebb21694915e4";
const SERVER_RECORD: &str = "17030300432e937e11ef4ac740e538ad36005fc4a46932fc3225d05f82aa1b36e30efaf97d90e6dffc602dcb501a59a8\
                             fcc49c4bf2e5f0a21c0047c2abf332540dd032e167c2955d";

fn bytes(digits: &str) -> Vec<u8> {
    (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect()
}

fn direction(suite: Suite, secret: &[u8], sequence: u64) -> Direction {
    Direction::new(suite, Zeroizing::new(secret.to_vec()), sequence).unwrap()
}

/// Both ends of a connection without a handshake.
fn both(suite: Suite) -> (RecordLayer, RecordLayer) {
    let of = |byte| direction(suite, &vec![byte; suite.secret_len()], 0);
    (RecordLayer::new(Role::Server, of(1), of(2)), RecordLayer::new(Role::Client, of(2), of(1)))
}

/// Passes records to `to`; returns the application data.
fn pass(records: &[u8], to: &mut RecordLayer) -> Result<Vec<u8>, Violation> {
    let (mut records, mut data) = (records.to_vec(), vec![]);
    while let Some(len) = first_record(&records)? {
        let mut rest = records.split_off(len);
        std::mem::swap(&mut rest, &mut records);
        if let Received::Data(bytes) = to.receive(&mut rest)? {
            data.extend_from_slice(bytes);
        }
    }
    assert!(records.is_empty());
    Ok(data)
}

fn sealed(by: &mut RecordLayer, kind: u8, content: &[u8]) -> Vec<u8> {
    let mut out = vec![];
    by.send.seal(kind, content, &mut out).unwrap();
    out
}

#[test]
fn records_are_those_of_rfc_8448() {
    let content: Vec<u8> = (0..50).collect();
    // The server has sent a ticket before, so its record has number 1.
    for (secret, sequence, record) in [(CLIENT_SECRET, 0, CLIENT_RECORD), (SERVER_SECRET, 1, SERVER_RECORD)] {
        let mut sender = direction(Suite::Aes128GcmSha256, &bytes(secret), sequence);
        let mut out = vec![];
        sender.seal(APPLICATION_DATA, &content, &mut out).unwrap();
        assert_eq!(out, bytes(record));
        let receive = direction(Suite::Aes128GcmSha256, &bytes(secret), sequence);
        let mut receiver = RecordLayer::new(Role::Server, sender, receive);
        assert_eq!(receiver.receive(&mut out), Ok(Received::Data(&content[..])));
    }
}

/// A rustls connection, whose other end is a record layer.
struct Peer(Connection);

impl Peer {
    /// Returns the records that this end sends.
    fn records(&mut self) -> Vec<u8> {
        let mut out = vec![];
        while self.0.wants_write() {
            self.0.write_tls(&mut out).unwrap();
        }
        out
    }

    fn send(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.0.writer().write_all(bytes).unwrap();
        self.records()
    }

    fn receive(&mut self, mut records: &[u8]) -> Result<Vec<u8>, rustls::Error> {
        let mut data = vec![];
        while !records.is_empty() {
            self.0.read_tls(&mut records).unwrap();
            self.0.process_new_packets()?;
            let _ = self.0.reader().read_to_end(&mut data);
        }
        Ok(data)
    }
}

/// Does a handshake in memory; returns the record layer of one end, and the other end.
fn after_handshake(suite: Suite, role: Role) -> (RecordLayer, Peer) {
    let files = Files::new();
    let mut provider = aws_lc_rs::default_provider();
    provider.cipher_suites.retain(|one| u16::from(one.suite()) == suite.code());
    assert_eq!(provider.cipher_suites.len(), 1);
    let (server, client) = (server_config(&files), client_config(&files, provider));
    let secrets = TestSecrets::default();
    let (mut server, mut client) = (server, client);
    (server.enable_secret_extraction, client.enable_secret_extraction) = (true, true);
    match role {
        Role::Server => server.key_log = secrets.key_log(),
        Role::Client => client.key_log = secrets.key_log(),
    }
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let mut client = Peer(ClientConnection::new(Arc::new(client), name).unwrap().into());
    let mut server = Peer(ServerConnection::new(Arc::new(server)).unwrap().into());
    while client.0.wants_write() || server.0.wants_write() {
        let flight = client.records();
        assert_eq!(server.receive(&flight).unwrap(), []);
        let flight = server.records();
        assert_eq!(client.receive(&flight).unwrap(), []);
    }
    match role {
        Role::Server => (record_layer_of(server.0, role, &secrets), client),
        Role::Client => (record_layer_of(client.0, role, &secrets), server),
    }
}

fn server_config(files: &Files) -> rustls::ServerConfig {
    (*files.server("target", None).unwrap().config).clone()
}

fn client_config(files: &Files, provider: CryptoProvider) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(files.path("authority.crt")).unwrap()).unwrap();
    ClientConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&[&version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth()
}

#[test]
fn rustls_understands_both_roles_with_every_suite_and_changes_of_keys() {
    for suite in Suite::ALL {
        for role in [Role::Server, Role::Client] {
            let (mut ours, mut theirs) = after_handshake(suite, role);
            for round in 0..9_u8 {
                let content = vec![round; 40_000];
                let mut out = vec![];
                if round % 3 == 1 {
                    ours.seal_key_update(&mut out).unwrap();
                }
                ours.seal_data(&content, &mut out).unwrap();
                assert!(theirs.receive(&out).unwrap() == content, "{suite:?} {role:?} {round}");
                if round % 3 == 2 {
                    theirs.0.refresh_traffic_keys().unwrap();
                }
                let records = theirs.send(&content);
                assert!(pass(&records, &mut ours).unwrap() == content, "{suite:?} {role:?} {round}");
                // Rustls asks for new keys of the other end when it changes its own.
                if ours.owes_key_update() {
                    out.clear();
                    ours.seal_key_update(&mut out).unwrap();
                    assert_eq!(theirs.receive(&out).unwrap(), []);
                    assert!(!ours.owes_key_update());
                }
            }
            let mut out = vec![];
            ours.seal_close_notify(&mut out).unwrap();
            theirs.receive(&out).unwrap();
            assert_eq!(theirs.0.reader().read(&mut [0]).unwrap(), 0, "an end in order");
            theirs.0.send_close_notify();
            let mut record = theirs.records();
            assert_eq!(ours.receive(&mut record), Ok(Received::Closed));
        }
    }
}

#[test]
fn a_state_goes_on_where_it_was_taken() {
    for suite in Suite::ALL {
        let (mut ours, mut theirs) = after_handshake(suite, Role::Server);
        for round in 0..20_u8 {
            ours = RecordLayer::of_server(ours.state()).unwrap();
            let mut out = vec![];
            if ours.owes_key_update() {
                ours.seal_key_update(&mut out).unwrap();
            }
            ours.seal_data(&[round; 100], &mut out).unwrap();
            assert_eq!(theirs.receive(&out).unwrap(), [round; 100]);
            if round % 4 == 3 {
                theirs.0.refresh_traffic_keys().unwrap();
            }
            assert_eq!(pass(&theirs.send(&[round; 9]), &mut ours).unwrap(), [round; 9]);
        }
    }
}

#[test]
fn states_that_no_connection_can_have_are_refused() {
    let (ours, _) = both(Suite::Aes256GcmSha384);
    let good = ours.state();
    assert!(RecordLayer::of_server(good.clone()).is_some());
    let send = |sequence, len| DirectionState { secret: Zeroizing::new(vec![1; len]), sequence };
    for bad in [
        RecordState { suite: 0x1304, ..good.clone() },
        RecordState { suite: 0x1301, ..good.clone() },
        RecordState { send: send(0, 32), ..good.clone() },
        RecordState { send: send((1 << 24) + 2, 48), ..good.clone() },
        RecordState { receive: send(0, 0), ..good.clone() },
        RecordState { receive: send(u64::MAX, 48), ..good.clone() },
        RecordState { handshake: vec![KEY_UPDATE, 0, 0, 1, 0], ..good.clone() },
        RecordState { handshake: vec![NEW_SESSION_TICKET], ..good.clone() },
        RecordState { fruitless: FRUITLESS_MAX + 1, ..good.clone() },
    ] {
        assert!(RecordLayer::of_server(bad).is_none());
    }
}

#[test]
fn a_record_that_was_changed_or_repeated_is_not_authentic() {
    for suite in Suite::ALL {
        let (mut ours, _) = both(suite);
        let record = sealed(&mut ours, APPLICATION_DATA, b"content");
        // The type and the length are protected, too, and the version is ignored.
        for at in (0..record.len()).filter(|at| !matches!(at, 1..5)) {
            let (_, mut theirs) = both(suite);
            let mut damaged = record.clone();
            damaged[at] ^= 1;
            let wrong = if at == 0 { Violation::UnexpectedMessage } else { Violation::BadRecordMac };
            assert_eq!(theirs.receive(&mut damaged), Err(wrong), "byte {at}");
        }
        let (_, mut theirs) = both(suite);
        assert_eq!(theirs.receive(&mut record.clone()), Ok(Received::Data(b"content")));
        assert_eq!(theirs.receive(&mut record.clone()), Err(Violation::BadRecordMac));
        let (_, mut theirs) = both(suite);
        let mut short = record.clone();
        short.truncate(record.len() - 1);
        assert_eq!(theirs.receive(&mut short), Err(Violation::BadRecordMac));
        assert_eq!(theirs.receive(&mut [23, 3, 3, 0, 0]), Err(Violation::BadRecordMac));
        assert_eq!(theirs.receive(&mut [23]), Err(Violation::DecodeError));
    }
}

#[test]
fn padding_is_removed_and_lengths_are_bounded() {
    let (mut ours, mut theirs) = both(Suite::Aes128GcmSha256);
    // The type of a record is its last byte that is not zero.
    let padded = |ours: &mut RecordLayer, inner: &[u8]| sealed(ours, 0, inner);
    let mut record = padded(&mut ours, &[7, 0, APPLICATION_DATA, 0, 0, 0]);
    assert_eq!(theirs.receive(&mut record), Ok(Received::Data(&[7, 0])));
    let mut record = padded(&mut ours, &[APPLICATION_DATA, 0, 0]);
    assert_eq!(theirs.receive(&mut record), Ok(Received::Nothing));
    let mut record = padded(&mut ours, &[0; 9]);
    assert_eq!(theirs.receive(&mut record), Err(Violation::UnexpectedMessage));
    let longest = sealed(&mut ours, APPLICATION_DATA, &[5; PLAIN_LEN_MAX]);
    assert_eq!(pass(&longest, &mut theirs).unwrap(), [5; PLAIN_LEN_MAX]);
    let mut out = vec![];
    assert!(ours.send.seal(APPLICATION_DATA, &[5; PLAIN_LEN_MAX + 1], &mut out).is_none() && out.is_empty());
    let max = u16::try_from(SEALED_LEN_MAX).unwrap();
    let header = |len: u16| [&[23, 3, 3], &len.to_be_bytes()[..]].concat();
    assert_eq!(first_record(&header(max)), Ok(None));
    assert_eq!(first_record(&header(max + 1)), Err(Violation::RecordOverflow));
    assert_eq!(first_record(&header(9)[..4]), Ok(None));
    assert_eq!(first_record(&[header(1), vec![0; 2]].concat()), Ok(Some(6)));
}

#[test]
fn only_what_may_follow_a_handshake_is_accepted() {
    use Violation::{AlertReceived, DecodeError, IllegalParameter, UnexpectedMessage};

    let update = [KEY_UPDATE, 0, 0, 1, 0];
    let ticket = [&[NEW_SESSION_TICKET, 0, 0, 2][..], &[0; 2]].concat();
    let two = [ticket.clone(), ticket.clone()].concat();
    for (kind, content, to_server, to_client) in [
        (HANDSHAKE, &update[..], Ok(Received::Nothing), Ok(Received::Nothing)),
        (HANDSHAKE, &update[..2], Ok(Received::Nothing), Ok(Received::Nothing)),
        (HANDSHAKE, &two, Err(UnexpectedMessage), Ok(Received::Nothing)),
        (HANDSHAKE, &[KEY_UPDATE, 0, 0, 1, 2], Err(IllegalParameter), Err(IllegalParameter)),
        (HANDSHAKE, &[KEY_UPDATE, 0, 0, 2], Err(DecodeError), Err(DecodeError)),
        (HANDSHAKE, &[KEY_UPDATE, 9], Err(DecodeError), Err(DecodeError)),
        (HANDSHAKE, &[KEY_UPDATE, 0, 0, 1, 0, 4], Err(UnexpectedMessage), Err(UnexpectedMessage)),
        // A request for a certificate, which this end has not said that it answers.
        (HANDSHAKE, &[13, 0, 0, 0], Err(UnexpectedMessage), Err(UnexpectedMessage)),
        (HANDSHAKE, &[1], Err(UnexpectedMessage), Err(UnexpectedMessage)),
        (HANDSHAKE, &[], Err(UnexpectedMessage), Err(UnexpectedMessage)),
        (20, &[1], Err(UnexpectedMessage), Err(UnexpectedMessage)),
        (24, &[1], Err(UnexpectedMessage), Err(UnexpectedMessage)),
        (ALERT, &[1, 0], Ok(Received::Closed), Ok(Received::Closed)),
        (ALERT, &[1, 90], Ok(Received::Nothing), Ok(Received::Nothing)),
        (ALERT, &[2, 20], Err(AlertReceived(20)), Err(AlertReceived(20))),
        (ALERT, &[], Err(UnexpectedMessage), Err(UnexpectedMessage)),
        (ALERT, &[2], Err(DecodeError), Err(DecodeError)),
        (ALERT, &[2, 20, 0], Err(DecodeError), Err(DecodeError)),
    ] {
        for is_server in [true, false] {
            let (server, client) = both(Suite::Chacha20Poly1305Sha256);
            let (mut from, mut to) = if is_server { (client, server) } else { (server, client) };
            let mut record = sealed(&mut from, kind, content);
            let told = to.receive(&mut record);
            let wanted = if is_server { &to_server } else { &to_client };
            assert_eq!(told, *wanted, "{kind} {content:?}, to the server: {is_server}");
        }
    }
    let (_, mut theirs) = both(Suite::Aes128GcmSha256);
    assert_eq!(theirs.receive(&mut [20, 3, 3, 0, 1, 1]), Err(UnexpectedMessage), "in the clear");
}

#[test]
fn a_handshake_message_in_parts_is_put_together_and_not_interleaved() {
    let (mut ours, mut theirs) = both(Suite::Aes128GcmSha256);
    for byte in [KEY_UPDATE, 0, 0, 1, 1] {
        assert!(!theirs.owes_key_update());
        let mut record = sealed(&mut ours, HANDSHAKE, &[byte]);
        assert_eq!(theirs.receive(&mut record), Ok(Received::Nothing));
    }
    assert!(theirs.owes_key_update());
    ours.send.change_keys().unwrap();
    assert_eq!(pass(&sealed(&mut ours, APPLICATION_DATA, b"new"), &mut theirs).unwrap(), b"new");
    let mut record = sealed(&mut ours, HANDSHAKE, &[NEW_SESSION_TICKET, 0, 0, 9]);
    assert_eq!(theirs.receive(&mut record), Ok(Received::Nothing));
    let mut record = sealed(&mut ours, APPLICATION_DATA, b"between");
    assert_eq!(theirs.receive(&mut record), Err(Violation::UnexpectedMessage));
    let (mut ours, mut theirs) = both(Suite::Aes128GcmSha256);
    let long = vec![NEW_SESSION_TICKET, 0, 0xff, 0xff];
    let parts = [long, vec![0; 4 * PLAIN_LEN_MAX]].concat();
    let told = parts.chunks(PLAIN_LEN_MAX).find_map(|part| {
        let mut record = sealed(&mut ours, HANDSHAKE, part);
        theirs.receive(&mut record).err()
    });
    assert_eq!(told, Some(Violation::RecordOverflow));
}

#[test]
fn records_without_data_are_limited() {
    for (kind, content) in [(APPLICATION_DATA, &[][..]), (HANDSHAKE, &[KEY_UPDATE, 0, 0, 1, 1])] {
        let (mut ours, mut theirs) = both(Suite::Aes128GcmSha256);
        for number in 0..2 * usize::from(FRUITLESS_MAX) + 2 {
            if number == 20 {
                assert_eq!(pass(&sealed(&mut ours, APPLICATION_DATA, b"x"), &mut theirs).unwrap(), b"x");
            }
            let mut record = sealed(&mut ours, kind, content);
            let told = theirs.receive(&mut record);
            let wanted = if number < 20 + usize::from(FRUITLESS_MAX) {
                Ok(Received::Nothing)
            } else {
                Err(Violation::TooManyFruitless)
            };
            assert_eq!(told, wanted, "record {number}");
            if told.is_err() {
                break;
            }
            if kind == HANDSHAKE {
                ours.send.change_keys().unwrap();
            }
        }
    }
}

#[test]
fn keys_are_changed_before_their_limit() {
    //= rfc8446#section-5.5
    for (suite, limit) in [(Suite::Aes128GcmSha256, 1 << 24), (Suite::Chacha20Poly1305Sha256, SEQUENCE_MAX)] {
        let secret = vec![1; suite.secret_len()];
        let of = |sequence| direction(suite, &secret, sequence);
        let mut ours = RecordLayer::new(Role::Server, of(limit - 1), of(0));
        let mut theirs = RecordLayer::new(Role::Client, of(0), of(limit - 1));
        let mut out = vec![];
        ours.seal_data(&[1; 10], &mut out).unwrap();
        assert_eq!(ours.send.sequence(), limit);
        ours.seal_data(&[2; 10], &mut out).unwrap();
        assert_eq!(ours.send.sequence(), 1, "a generation has begun");
        assert_eq!(pass(&out, &mut theirs).unwrap(), [[1; 10], [2; 10]].concat());
    }
    let mut last = direction(Suite::Aes128GcmSha256, &[1; 32], SEQUENCE_MAX);
    last.seal(ALERT, &[1, 0], &mut vec![]).unwrap();
    assert!(last.seal(ALERT, &[1, 0], &mut vec![]).is_none());
    assert!(last.open(&mut [0; 40]).is_none());
}

#[test]
fn no_bytes_make_it_panic() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for _ in 0..2000 {
        let (mut ours, mut theirs) = both(Suite::Aes128GcmSha256);
        for _ in 0..8 {
            let len = usize::try_from(random() % 12).unwrap();
            let inner: Vec<u8> =
                (0..len).map(|_| [0, 1, 4, 20, 21, 22, 23, 24][(random() % 8) as usize]).collect();
            let mut record = sealed(&mut ours, [0, 20, 21, 22, 22, 23][(random() % 6) as usize], &inner);
            if random().is_multiple_of(8) {
                let at = usize::try_from(random()).unwrap_or(0) % record.len();
                record[at] = random().to_le_bytes()[0];
            }
            if let Ok(Some(len)) = first_record(&record)
                && let Err(why) = theirs.receive(&mut record[..len])
            {
                theirs.seal_alert(why, &mut vec![]);
                break;
            }
        }
    }
}
