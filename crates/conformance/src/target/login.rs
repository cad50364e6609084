//! The login with raw PDUs: it reaches the full feature phase with any keys, and offers its steps to cases
//! that break the rules.

use std::cell::RefCell;
use std::rc::Rc;

use iscsi::chap::{Algorithm, Credentials, Response};
use iscsi::pdu::login_request::LoginRequest;
use iscsi::pdu::login_response::LoginResponse;
use iscsi::pdu::{Itt, PduHeader};
use iscsi::serial::{CmdSn, StatSn};
use iscsi::text::value::{binary, to_hex};

use crate::entropy;
use crate::text::Keys;
use crate::verdict::Outcome;
use crate::wire::{Damage, Pdu, PduStream, Received};

use super::conn::{Conn, Nexus, Params};
use super::fixture::Fixture;

/// CSG and NSG values (§11.12.3).
pub(super) const SECURITY: u8 = 0;
pub(super) const OPERATIONAL: u8 = 1;
pub(super) const FULL_FEATURE: u8 = 3;

/// The first CmdSN of every session: close to the wrap, so that errors in serial number arithmetic show.
pub(super) const FIRST_CMD_SN: u32 = 0xffff_fff8;

/// The CHAP credentials of both sides.
#[derive(Clone, Debug, Default)]
pub(crate) struct Auth {
    pub(crate) user: Option<Credentials>,
    pub(crate) mutual: Option<Credentials>,
}

/// The keys and numbers of a login.
#[derive(Clone, Debug)]
pub(crate) struct LoginPlan {
    /// The identifying keys of the first request: names and session type.
    pub(super) names: Keys,
    /// The keys of the operational stage.
    pub(super) keys: Keys,
    pub(super) isid: [u8; 6],
    pub(super) tsih: u16,
    pub(super) cid: u16,
    pub(super) cmd_sn: u32,
    /// The index of the portal.
    pub(super) portal: usize,
}

impl LoginPlan {
    /// Plans a normal session with the target.
    pub(crate) fn normal(fixture: &Fixture) -> Self {
        let names = [
            ("InitiatorName", fixture.options.initiator.as_str()),
            ("SessionType", "Normal"),
            ("TargetName", &fixture.name),
        ];
        Self { names: Keys::of(&names), keys: Keys::of(&KEYS), ..Self::empty() }
    }

    /// Plans a discovery session.
    pub(crate) fn discovery(fixture: &Fixture) -> Self {
        let names = [("InitiatorName", fixture.options.initiator.as_str()), ("SessionType", "Discovery")];
        let keys = [("HeaderDigest", "None"), ("DataDigest", "None"), ("MaxRecvDataSegmentLength", "8192")];
        Self { names: Keys::of(&names), keys: Keys::of(&keys), ..Self::empty() }
    }

    fn empty() -> Self {
        Self {
            names: Keys::new(),
            keys: Keys::new(),
            isid: Fixture::isid(),
            tsih: 0,
            cid: 1,
            cmd_sn: FIRST_CMD_SN,
            portal: 0,
        }
    }

    /// Offers these values instead; an empty value removes the key.
    #[must_use]
    pub(crate) fn with(mut self, keys: &[(&str, &str)]) -> Self {
        for (name, value) in keys {
            if value.is_empty() {
                self.keys.remove(name);
            } else {
                self.keys.set(name, value);
            }
        }
        self
    }

    /// Returns the first request of this login, for the stage `csg`, with a transition to `nsg` if given.
    pub(crate) fn request(&self, csg: u8, nsg: Option<u8>) -> LoginRequest {
        LoginRequest {
            transit: nsg.is_some(),
            continues: false,
            csg,
            nsg: nsg.unwrap_or_default(),
            version_max: 0,
            version_min: 0,
            isid: self.isid,
            tsih: self.tsih,
            itt: Itt(0x10ca_1000 | u32::from(self.cid)),
            cid: self.cid,
            cmd_sn: CmdSn(self.cmd_sn),
            exp_stat_sn: StatSn(0),
        }
    }
}

/// The keys that every normal login offers unless a case changes them: R2T for all data, one connection, no
/// recovery.
const KEYS: [(&str, &str); 14] = [
    ("HeaderDigest", "None,CRC32C"),
    ("DataDigest", "None,CRC32C"),
    ("MaxConnections", "1"),
    ("InitialR2T", "Yes"),
    ("ImmediateData", "No"),
    ("MaxRecvDataSegmentLength", "8192"),
    ("MaxBurstLength", "262144"),
    ("FirstBurstLength", "65536"),
    ("DefaultTime2Wait", "0"),
    ("DefaultTime2Retain", "20"),
    ("MaxOutstandingR2T", "1"),
    ("DataPDUInOrder", "Yes"),
    ("DataSequenceInOrder", "Yes"),
    ("ErrorRecoveryLevel", "0"),
];

/// A login in progress.
#[derive(Debug)]
pub(crate) struct LoginExchange {
    pub(super) line: PduStream,
    pub(super) exp_stat_sn: u32,
    /// All keys that the target sent.
    pub(super) said: Keys,
    pub(super) responses: Vec<LoginResponse>,
    patience: std::time::Duration,
}

/// How a login ended.
#[derive(Debug)]
pub(crate) enum LoginOutcome {
    /// The login reached the full feature phase.
    In(Box<Conn>),
    /// The target refused the login with this status, class and detail.
    Refused(u16),
    /// The target closed the connection, or rejected every authentication method.
    Closed,
}

/// The reply to a login request.
pub(crate) enum Reply {
    Response(LoginResponse, Keys),
    /// Any other PDU, such as a Reject.
    Other(Box<Pdu>),
    Closed,
}

impl LoginExchange {
    pub(crate) fn open(fixture: &mut Fixture, portal: usize) -> Outcome<Self> {
        let number = fixture.next_number();
        let line = PduStream::open(fixture.portal(portal)?, number, &fixture.record, fixture.deadline)?;
        let patience = fixture.options.patience;
        Ok(Self { line, exp_stat_sn: 0, said: Keys::new(), responses: Vec::new(), patience })
    }

    /// Sends a request with the correct ExpStatSN.
    pub(crate) fn send(&mut self, request: LoginRequest, keys: &Keys) {
        self.send_text(request, &keys.to_bytes());
    }

    pub(crate) fn send_text(&mut self, request: LoginRequest, text: &[u8]) {
        let request = LoginRequest { exp_stat_sn: StatSn(self.exp_stat_sn), ..request };
        self.line.send(request.encode(), &[], text, Damage::None);
    }

    /// Waits for the whole reply, which the C bit can spread over several PDUs.
    pub(crate) fn reply(&mut self, request: LoginRequest) -> Outcome<Reply> {
        let mut text = Vec::new();
        loop {
            let pdu = match self.line.receive(self.patience)? {
                Received::Pdu(pdu) => pdu,
                Received::Closed => return Ok(Reply::Closed),
                Received::Nothing => fail!("no Login Response came within {:?}", self.patience),
            };
            if pdu.opcode() != LoginResponse::OPCODE {
                return Ok(Reply::Other(Box::new(pdu)));
            }
            let response: LoginResponse = pdu.read()?;
            if response.status == 0 {
                self.exp_stat_sn = response.sn.stat_sn.0.wrapping_add(1);
            }
            self.responses.push(response);
            text.extend_from_slice(&pdu.data);
            if !response.continues || response.status != 0 {
                let keys = Keys::parse(&text)?;
                self.said.append(keys.clone());
                return Ok(Reply::Response(response, keys));
            }
            require!(!response.transit, "a Login Response has both T and C set");
            self.send(LoginRequest { transit: false, ..request }, &Keys::new());
        }
    }

    /// Sends a request and waits for a response with status 0. Any other reply is returned as the outcome of
    /// the login.
    fn ask(
        &mut self,
        request: LoginRequest,
        keys: &Keys,
    ) -> Outcome<Result<(LoginResponse, Keys), LoginOutcome>> {
        self.send(request, keys);
        Ok(match self.reply(request)? {
            Reply::Response(response, keys) if response.status == 0 => Ok((response, keys)),
            Reply::Response(response, _) => Err(LoginOutcome::Refused(response.status)),
            Reply::Closed => Err(LoginOutcome::Closed),
            Reply::Other(pdu) => fail!("expected a Login Response, came {}", pdu.shown()),
        })
    }

    /// Completes the security stage, with CHAP if there is a user and the target chooses it.
    fn security(&mut self, plan: &LoginPlan, auth: &Auth) -> Outcome<Result<(), LoginOutcome>> {
        let mut keys = plan.names.clone();
        keys.push("AuthMethod", if auth.user.is_some() { "CHAP,None" } else { "None" });
        let next = auth.user.is_none().then_some(OPERATIONAL);
        let (response, answer) = match self.ask(plan.request(SECURITY, next), &keys)? {
            Ok(reply) => reply,
            Err(entry) => return Ok(Err(entry)),
        };
        if response.transit {
            return Ok(Ok(()));
        }
        let method = answer.value("AuthMethod").unwrap_or("None").to_owned();
        let request = plan.request(SECURITY, Some(OPERATIONAL));
        match (method.as_str(), &auth.user) {
            ("CHAP", Some(user)) => self.chap(plan, user, auth.mutual.as_ref()),
            ("None", _) => Ok(self.ask(request, &Keys::new())?.map(|_| ())),
            // The target rejects all methods that were offered.
            ("Reject", _) => Ok(Err(LoginOutcome::Closed)),
            (other, _) => fail!("the target answers AuthMethod={other}, which was not offered"),
        }
    }

    /// Authenticates us, and with mutual CHAP the target.
    fn chap(
        &mut self,
        plan: &LoginPlan,
        user: &Credentials,
        mutual: Option<&Credentials>,
    ) -> Outcome<Result<(), LoginOutcome>> {
        let request = plan.request(SECURITY, None);
        let challenge = match self.ask(request, &Keys::of(&[("CHAP_A", "5")]))? {
            Ok((_, keys)) => keys,
            Err(entry) => return Ok(Err(entry)),
        };
        let ChapChallenge { algorithm, id, bytes } = ChapChallenge::read(&challenge)?;
        let proof = Response::compute(algorithm, id, &user.secret, &bytes);
        let mut keys = Keys::of(&[("CHAP_N", &user.name), ("CHAP_R", &to_hex(proof.as_bytes()))]);
        let (own_id, own) = (0x5a, entropy::pattern(entropy::fresh(), algorithm.response_len()));
        if mutual.is_some() {
            keys.push("CHAP_I", &own_id.to_string());
            keys.push("CHAP_C", &to_hex(&own));
        }
        let reply = match self.ask(plan.request(SECURITY, Some(OPERATIONAL)), &keys)? {
            Ok(reply) => reply,
            Err(entry) => return Ok(Err(entry)),
        };
        if let Some(mutual) = mutual {
            let expected = Response::compute(algorithm, own_id, &mutual.secret, &own);
            let claimed = reply.1.value("CHAP_R").unwrap_or_default();
            let claimed = binary(claimed.as_bytes(), 1..=64).unwrap_or_default();
            require!(expected.matches(&claimed), "the target does not prove that it knows the mutual secret");
        }
        require!(reply.0.transit, "the target does not leave the security stage after a good CHAP_R");
        Ok(Ok(()))
    }

    /// Negotiates until the target agrees to the full feature phase.
    fn operational(&mut self, plan: &LoginPlan) -> Outcome<Result<LoginResponse, LoginOutcome>> {
        let request = plan.request(OPERATIONAL, Some(FULL_FEATURE));
        let mut keys = plan.keys.clone();
        for _ in 0..MAX_ROUNDS {
            let (response, came) = match self.ask(request, &keys)? {
                Ok(reply) => reply,
                Err(entry) => return Ok(Err(entry)),
            };
            if response.transit {
                require!(response.nsg == FULL_FEATURE, "asked for stage 3, sent to stage {}", response.nsg);
                return Ok(Ok(response));
            }
            keys = answers(&plan.keys, &came);
        }
        fail!("after {MAX_ROUNDS} requests the target has not agreed to the full feature phase")
    }
}

/// The most requests of one negotiation.
const MAX_ROUNDS: usize = 10;

/// A CHAP challenge that the target sent.
pub(super) struct ChapChallenge {
    pub(super) algorithm: Algorithm,
    pub(super) id: u8,
    pub(super) bytes: Vec<u8>,
}

impl ChapChallenge {
    pub(super) fn read(keys: &Keys) -> Outcome<Self> {
        let number = keys.number("CHAP_A").unwrap_or_default();
        let Some(algorithm) = Algorithm::by_number(u64::from(number)) else {
            fail!("CHAP_A={:?} is none of those offered", keys.value("CHAP_A"))
        };
        let id = keys.number("CHAP_I").and_then(|id| u8::try_from(id).ok());
        let bytes = binary(keys.value("CHAP_C").unwrap_or_default().as_bytes(), 1..=1024).ok();
        let (Some(id), Some(bytes)) = (id, bytes) else { fail!("CHAP_I or CHAP_C is missing or malformed") };
        Ok(Self { algorithm, id, bytes })
    }
}

/// Answers the keys that the target offered first, and accepts its values as far as the rules allow.
fn answers(offered: &Keys, came: &Keys) -> Keys {
    let mut out = Keys::new();
    for (name, value) in came.iter().filter(|(name, _)| offered.value(name).is_none()) {
        match name {
            "HeaderDigest" | "DataDigest" => {
                out.push(name, if value.split(',').any(|v| v == "None") { "None" } else { "CRC32C" });
            }
            "MaxRecvDataSegmentLength"
            | "TargetAlias"
            | "TargetAddress"
            | "TargetPortalGroupTag"
            | "TargetName" => {}
            "MaxConnections"
            | "InitialR2T"
            | "ImmediateData"
            | "MaxBurstLength"
            | "FirstBurstLength"
            | "DefaultTime2Wait"
            | "DefaultTime2Retain"
            | "MaxOutstandingR2T"
            | "DataPDUInOrder"
            | "DataSequenceInOrder"
            | "ErrorRecoveryLevel" => out.push(name, value),
            _ => out.push(name, "NotUnderstood"),
        }
    }
    out
}

impl Fixture {
    /// Logs in; fails the case if the target refuses.
    pub(crate) fn login(&mut self, plan: &LoginPlan) -> Outcome<Conn> {
        match self.try_login(plan)? {
            LoginOutcome::In(conn) => Ok(*conn),
            LoginOutcome::Refused(status) => fail!("the login is refused with status {status:04x}"),
            LoginOutcome::Closed => fail!("the connection was closed during the login"),
        }
    }

    /// Logs in and returns the outcome.
    pub(crate) fn try_login(&mut self, plan: &LoginPlan) -> Outcome<LoginOutcome> {
        let nexus = Rc::new(RefCell::new(Nexus::new(plan)));
        self.try_join(plan, nexus)
    }

    /// Adds a connection to the session of `conn`.
    pub(crate) fn join(&mut self, conn: &Conn, cid: u16) -> Outcome<Conn> {
        let plan = self.join_plan(conn, cid);
        match self.try_join(&plan, Rc::clone(&conn.nexus))? {
            LoginOutcome::In(conn) => Ok(*conn),
            LoginOutcome::Refused(status) => fail!("a second connection is refused with status {status:04x}"),
            LoginOutcome::Closed => {
                fail!("the connection was closed during the login of a second connection")
            }
        }
    }

    /// Plans another connection of the session of `conn`. It negotiates only the keys of a connection (§13:
    /// not "LO").
    pub(crate) fn join_plan(&self, conn: &Conn, cid: u16) -> LoginPlan {
        let nexus = conn.nexus.borrow();
        let keys = [
            ("HeaderDigest", "None,CRC32C"),
            ("DataDigest", "None,CRC32C"),
            ("MaxRecvDataSegmentLength", "8192"),
        ];
        LoginPlan {
            keys: Keys::of(&keys),
            isid: nexus.isid,
            tsih: nexus.tsih,
            cid,
            cmd_sn: nexus.cmd_sn,
            portal: usize::from(cid.saturating_sub(1)),
            ..LoginPlan::normal(self)
        }
    }

    pub(crate) fn try_join(&mut self, plan: &LoginPlan, nexus: Rc<RefCell<Nexus>>) -> Outcome<LoginOutcome> {
        let auth = self.auth.clone();
        let mut talk = LoginExchange::open(self, plan.portal)?;
        if let Err(entry) = talk.security(plan, &auth)? {
            return Ok(entry);
        }
        let last = match talk.operational(plan)? {
            Ok(last) => last,
            Err(entry) => return Ok(entry),
        };
        let LoginExchange { mut line, exp_stat_sn, said, responses, .. } = talk;
        let joined = plan.tsih != 0;
        {
            let mut nexus = nexus.borrow_mut();
            if !joined {
                // The case `login-numbers` judges the TSIH; only a second connection needs one.
                nexus.tsih = last.tsih;
            }
            nexus.heard(last.sn.exp_cmd_sn.0, last.sn.max_cmd_sn.0);
        }
        let params = Params::settle(&plan.keys, &said, joined.then(|| nexus.borrow().params.clone()));
        if !joined {
            nexus.borrow_mut().params = params.clone();
        }
        (line.header_digest, line.data_digest) = (params.header_digest, params.data_digest);
        let conn = Conn::new(self, line, nexus, plan.cid, exp_stat_sn, params, said, responses);
        Ok(LoginOutcome::In(Box::new(conn)))
    }
}
