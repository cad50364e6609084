//! The password login and the AEAD digests (docs/iscsi-aead.md): both halves against each other, with every
//! PDU in its form on the wire and an attacker between them.

mod attacks;
mod rules;

use core::slice;

use security::Level;

use super::super::confirmation::BadConfirmation;
use super::super::test_site::{PASSWORD, USER, by_password, password};
use super::*;
use crate::aead::{AeadDigest, RecordKeys};
use crate::keys::Role;
use crate::opaque::OpaqueError;
use crate::pdu::{BHS_LEN, Bhs, Itt, PduHeader as _, TargetSn, login_request, login_response};
use crate::serial::{CmdSn, StatSn};

static EACH: [AeadDigest; 4] = AeadDigest::ALL;
const NEW_TSIH: u16 = 0x55;

/// Returns the list with this digest alone.
fn only(at: usize) -> &'static [AeadDigest] {
    slice::from_ref(&EACH[at])
}

fn by(user: &str, secret: &str) -> AuthPlan {
    AuthPlan::Opaque { user: user.into(), password: password(secret) }
}

fn alice() -> LoginPlan {
    plan(session(), by(USER, PASSWORD))
}

fn keys_with(aead_digests: &'static [AeadDigest], min_protection: Level) -> KeyPolicy {
    KeyPolicy { aead_digests, min_protection, ..KeyPolicy::default() }
}

/// A Login PDU on its way.
struct Pdu {
    is_request: bool,
    header: [u8; BHS_LEN],
    text: Vec<u8>,
}

impl Pdu {
    /// Replaces a part of the text wherever it occurs, and corrects the length. Returns whether it occurs.
    fn replace(&mut self, from: &str, to: &str) -> bool {
        let text = String::from_utf8(self.text.clone()).unwrap();
        self.set_text(text.replace(from, to).into_bytes());
        text.contains(from)
    }

    fn set_text(&mut self, text: Vec<u8>) {
        self.text = text;
        let len = u32::try_from(self.text.len()).unwrap().to_be_bytes();
        self.header[5..8].copy_from_slice(&len[1..]);
    }

    /// Returns whether the PDU is of the operational stage.
    fn is_operational(&self) -> bool {
        self.header[1] & 0x0c == 0x04
    }

    /// Returns whether the PDU moves to full feature phase.
    fn is_last(&self) -> bool {
        self.header[1] & 0x83 == 0x83
    }
}

/// How the two halves ended.
#[derive(Debug)]
struct Ends {
    initiator: Result<LoggedIn, InitiatorEnd>,
    /// The outcome and the keys of the target's end.
    target: Result<(Box<LoginOutcome>, Option<RecordKeys>), Option<LoginError>>,
    requests: usize,
}

#[derive(Debug, PartialEq)]
enum InitiatorEnd {
    Refused(Status),
    Dropped(InitiatorLoginError),
    /// It waits for a response that never comes.
    Waits,
}

impl Ends {
    /// Returns the results of both halves, which succeeded.
    fn both(self) -> (LoggedIn, Box<LoginOutcome>, Option<RecordKeys>) {
        let (outcome, keys) = self.target.unwrap();
        (self.initiator.unwrap(), outcome, keys)
    }

    fn dropped(self) -> InitiatorLoginError {
        match self.initiator {
            Err(InitiatorEnd::Dropped(why)) => why,
            other => panic!("{other:?}"),
        }
    }

    fn refused(self) -> (Status, LoginError) {
        match (self.initiator, self.target) {
            (Err(InitiatorEnd::Refused(status)), Err(Some(why))) => (status, why),
            other => panic!("{other:?}"),
        }
    }
}

fn encode_request(call: &initiator::OwnedLoginRequest) -> Pdu {
    let pdu = login_request::LoginRequest {
        transit: call.transit,
        continues: call.cont,
        csg: call.csg.0,
        nsg: call.nsg.0,
        version_max: VERSION,
        version_min: VERSION,
        isid: call.isid.0,
        tsih: call.tsih.0,
        itt: Itt(call.itt),
        cid: call.cid.0,
        cmd_sn: CmdSn(call.cmd_sn),
        exp_stat_sn: StatSn(0),
    };
    let header = pdu.encode().with_data_len(call.data.len()).to_bytes();
    Pdu { is_request: true, header, text: call.data.clone() }
}

fn encode_response(response: LoginResponse) -> Pdu {
    let pdu = login_response::LoginResponse {
        transit: response.transit,
        continues: response.cont,
        csg: response.csg.0,
        nsg: response.nsg.0,
        version_max: response.version_max,
        version_active: response.version_active,
        isid: response.isid,
        tsih: response.tsih,
        itt: Itt(response.itt),
        sn: TargetSn::default(),
        status: response.status().0,
    };
    let header = pdu.encode().with_data_len(response.data.len()).to_bytes();
    Pdu { is_request: false, header, text: response.data }
}

/// Returns the header as the receiver understands it, if it finds the end of the PDU where it is.
fn framed(pdu: &Pdu) -> Option<Bhs> {
    let bhs = Bhs::from_bytes(pdu.header);
    let fits = bhs.ahs_len() == 0 && usize::try_from(bhs.data_len()) == Ok(pdu.text.len());
    fits.then_some(bhs)
}

fn decode_request(pdu: &Pdu) -> Option<LoginRequest<'_>> {
    let decoded = login_request::LoginRequest::decode(&framed(pdu)?).ok()?;
    Some(LoginRequest {
        transit: decoded.transit,
        cont: decoded.continues,
        csg: Stage(decoded.csg),
        nsg: Stage(decoded.nsg),
        version_max: decoded.version_max,
        version_min: decoded.version_min,
        isid: decoded.isid,
        tsih: decoded.tsih,
        itt: decoded.itt.0,
        cid: decoded.cid,
        cmd_sn: decoded.cmd_sn.0,
        exp_stat_sn: decoded.exp_stat_sn.0,
        data: &pdu.text,
    })
}

fn decode_response(pdu: Pdu) -> Option<LoginResponse> {
    let decoded = login_response::LoginResponse::decode(&framed(&pdu)?).ok()?;
    let [status_class, status_detail] = decoded.status.to_be_bytes();
    Some(LoginResponse {
        transit: decoded.transit,
        cont: decoded.continues,
        csg: Stage(decoded.csg),
        nsg: Stage(decoded.nsg),
        version_max: decoded.version_max,
        version_active: decoded.version_active,
        isid: decoded.isid,
        tsih: decoded.tsih,
        itt: decoded.itt.0,
        status_class,
        status_detail,
        data: pdu.text,
    })
}

/// Runs a login whose PDUs pass an attacker, who gets the number of each PDU, from 0.
fn attacked(plan: LoginPlan, site: &TestSite, mut attacker: impl FnMut(usize, &mut Pdu)) -> Ends {
    let mut initiator = InitiatorLogin::new(plan, entropy(2));
    let mut target = TargetLogin::new(Instant::ORIGIN, &arrival(1));
    let mut call = initiator.start();
    let mut at_target = Err(None);
    for requests in 1..=MAX_LOGIN_PDUS {
        let mut pdu = encode_request(&call);
        attacker(2 * requests - 2, &mut pdu);
        let Some(request) = decode_request(&pdu) else {
            return Ends { initiator: Err(InitiatorEnd::Waits), target: at_target, requests };
        };
        let response = match target.handle(Instant::ORIGIN, &request, site) {
            LoginStep::Continue(response) => response,
            LoginStep::PermitGuess { response, .. } => {
                assert!(!target.has_proven());
                response
            }
            LoginStep::Complete { mut response, mut outcome } => {
                response.tsih = if response.tsih == 0 { NEW_TSIH } else { response.tsih };
                let seed = outcome.record_keys.take();
                let keys = seed.map(|seed| seed.derive(Role::Target, Tsih(response.tsih)));
                at_target = Ok((outcome, keys));
                response
            }
            LoginStep::Fail { response, why } => {
                at_target = Err(Some(why));
                response
            }
            LoginStep::Drop(why) => {
                let (initiator, target) = (Err(InitiatorEnd::Waits), Err(Some(why)));
                return Ends { initiator, target, requests };
            }
        };
        let mut pdu = encode_response(response);
        attacker(2 * requests - 1, &mut pdu);
        let Some(response) = decode_response(pdu) else {
            return Ends { initiator: Err(InitiatorEnd::Waits), target: at_target, requests };
        };
        let mut step = initiator.handle(&response);
        if let InitiatorLoginStep::Stretch = step {
            let job = initiator.poll_job().unwrap();
            assert!(initiator.poll_job().is_none());
            step = initiator.job_done(job.run());
        }
        let initiator = match step {
            InitiatorLoginStep::Send(next) => {
                call = next;
                continue;
            }
            InitiatorLoginStep::Complete(done) => Ok(*done),
            InitiatorLoginStep::Refused(status) => Err(InitiatorEnd::Refused(status)),
            InitiatorLoginStep::Drop(why) => Err(InitiatorEnd::Dropped(why)),
            // A status that an attacker made.
            InitiatorLoginStep::Redirected { .. } => Err(InitiatorEnd::Refused(Status::MOVED_TEMPORARILY)),
            InitiatorLoginStep::Stretch | InitiatorLoginStep::Relay => {
                panic!("a second slow step, or a relay")
            }
        };
        return Ends { initiator, target: at_target, requests };
    }
    panic!("no end");
}

fn quiet(plan: LoginPlan, site: &TestSite) -> Ends {
    attacked(plan, site, |_, _| {})
}

/// Returns whether each end opens what the other one seals.
fn fit(mut ours: RecordKeys, mut theirs: RecordKeys) -> bool {
    let opens = |from: &mut RecordKeys, to: &mut RecordKeys| {
        let mut header = [7; BHS_LEN];
        header[4..8].fill(0);
        let tag = from.encryptor.seal_header(&mut header).unwrap();
        to.decryptor.open_header(&mut header, &tag).is_some()
    };
    ours.digest == theirs.digest && opens(&mut ours, &mut theirs) && opens(&mut theirs, &mut ours)
}

#[test]
fn both_halves_have_the_same_keys_for_each_digest_session_type_and_piece_size() {
    //= iscsi-aead#section-3.1
    //= type=test
    //# The initiator MUST choose NSG=1 in step 5, and the target MUST NOT enter full feature phase from the
    //# SecurityNegotiation stage
    for (at, digest) in EACH.iter().enumerate() {
        for purpose in [session(), Purpose::Discovery] {
            for (piece_max, stages) in [
                (8192, LoginStages::SecurityAndOperational),
                (100, LoginStages::SecurityOnly),
                (5, LoginStages::OperationalOnly),
            ] {
                let keys = keys_with(only(at), digest.level());
                let plan = LoginPlan { piece_max, stages, keys, ..plan(purpose.clone(), by(USER, PASSWORD)) };
                let (ours, outcome, theirs) = quiet(plan, &TestSite::by_password()).both();
                assert!(ours.peer_authenticated);
                assert_eq!(outcome.user.as_deref(), Some(USER));
                let login = PasswordLogin { user: USER.into(), protection: digest.level() };
                assert_eq!(outcome.password_login, Some(login));
                for connection in [ours.negotiated.connection, outcome.negotiated.connection] {
                    assert_eq!(connection.header_digest, Digest::Aead(*digest));
                    assert_eq!(connection.data_digest, Digest::Aead(*digest));
                }
                assert!(fit(ours.record_keys.unwrap(), theirs.unwrap()), "{digest:?} {piece_max}");
            }
        }
    }
    assert_eq!(quiet(alice(), &TestSite::by_password()).requests, 4, "a login takes four round trips");
}

#[test]
fn each_login_has_keys_of_its_own() {
    let site = TestSite::by_password();
    let (first, ..) = quiet(alice(), &site).both();
    let (_, _, again) = quiet(alice(), &site).both();
    assert!(fit(first.record_keys.unwrap(), again.unwrap()), "all random bytes are the same");
    let (first, ..) = quiet(alice(), &site).both();
    let other_cid = LoginPlan { cid: Cid(5), ..alice() };
    let (_, _, other) = quiet(other_cid, &site).both();
    assert!(!fit(first.record_keys.unwrap(), other.unwrap()), "another connection");
}
