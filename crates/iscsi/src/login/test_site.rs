//! A small configuration for the tests of both halves of the login: one target, one user, a few sessions.

use alloc::boxed::Box;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::net::SocketAddr;

use base::rng::Rng;
use base::state_machine::{AcceptInfo, PortalId};
use base::time::Instant;
use security::opaque::{Password, PasswordRecord, StretchCost};

use super::directory::{
    AuthPolicy, ConnectionPath, Directory, DiscoveryAccess, Realm, SendTargetsEntry, SessionInfo,
    SessionQuery, TargetAccess, TargetAddress, TargetId, TargetLookup,
};
use super::target::TargetLogin;
use super::{LoginError, LoginOutcome, LoginRequest, LoginResponse, LoginStep, Stage, Status};
use crate::chap::{Algorithms, Credentials, Secret};
use crate::name::{IscsiName, Isid, PortalGroupTag, Tsih};
use crate::negotiate::KeyPolicy;

pub(crate) const TARGET: &str = "iqn.2026-11.com.example:disk";
pub(crate) const INITIATOR: &str = "iqn.2026-11.com.example:host";
pub(crate) const ISID: Isid = Isid([0x80, 1, 2, 3, 0, 1]);
pub(crate) const GROUP: PortalGroupTag = PortalGroupTag(7);

pub(crate) fn name(text: &str) -> IscsiName {
    text.parse().unwrap()
}

pub(crate) fn user() -> Credentials {
    Credentials { name: "0xuser".into(), secret: Secret::new(b"twelve bytes and more").unwrap() }
}

pub(crate) fn itself() -> Credentials {
    Credentials { name: "0btarget".into(), secret: Secret::new(b"another secret of ours").unwrap() }
}

pub(crate) fn entropy(seed: u64) -> [u8; 32] {
    let mut entropy = [0; 32];
    Rng::from_seed(seed).fill(&mut entropy);
    entropy
}

pub(crate) fn arrival(seed: u64) -> AcceptInfo {
    let address: SocketAddr = "127.0.0.1:3260".parse().unwrap();
    AcceptInfo { portal: PortalId(0), local: address, peer: address, entropy: entropy(seed) }
}

/// Returns a policy that permits logins without authentication.
pub(crate) fn open() -> AuthPolicy {
    AuthPolicy { allows_none: true, ..AuthPolicy::default() }
}

pub(crate) fn guarded() -> AuthPolicy {
    AuthPolicy { chap: Algorithms::ALL, own: Some(itself()), ..AuthPolicy::default() }
}

/// Returns a policy that requires the password login.
pub(crate) fn by_password() -> AuthPolicy {
    AuthPolicy { opaque: true, ..AuthPolicy::default() }
}

pub(crate) const USER: &str = "alice";
pub(crate) const PASSWORD: &str = "correct horse";

pub(crate) fn password(text: &str) -> Password {
    Password::new(text.as_bytes()).unwrap()
}

fn record(text: &str, seed: u8) -> Arc<PasswordRecord> {
    let cost = StretchCost { memory_kib: 8, passes: 1, lanes: 1 };
    Arc::new(PasswordRecord::make(&password(text), USER, cost, [seed; 32]).unwrap())
}

pub(crate) struct TestSite {
    pub(crate) auth: AuthPolicy,
    pub(crate) keys: KeyPolicy,
    pub(crate) sessions: Vec<SessionInfo>,
    /// The result of a target lookup, if it is not the test target.
    pub(crate) instead: Option<TargetLookup>,
    pub(crate) discovery: Option<DiscoveryAccess>,
    /// The name in the certificate of the connection, if it must have one.
    pub(crate) certified: Option<&'static str>,
    /// The record of the user's password, and the one that answers for all other users.
    pub(crate) records: Option<[Arc<PasswordRecord>; 2]>,
}

impl TestSite {
    pub(crate) fn with(auth: AuthPolicy, keys: KeyPolicy) -> Self {
        let records = auth.opaque.then(|| [record(PASSWORD, 1), record("nobody knows this one", 2)]);
        Self { auth, keys, sessions: vec![], instead: None, discovery: None, certified: None, records }
    }

    pub(crate) fn by_password() -> Self {
        Self::with(by_password(), KeyPolicy::default())
    }

    pub(crate) fn open() -> Self {
        Self::with(open(), KeyPolicy::default())
    }

    pub(crate) fn guarded() -> Self {
        Self::with(guarded(), KeyPolicy::default())
    }
}

impl Directory for TestSite {
    fn certifies(&self, _: &ConnectionPath, initiator: &IscsiName) -> bool {
        self.certified.is_none_or(|certified| *initiator == name(certified))
    }

    fn find_target(&self, _: &ConnectionPath, initiator: &IscsiName, asked: &IscsiName) -> TargetLookup {
        if let Some(instead) = &self.instead {
            return instead.clone();
        }
        if *asked != name(TARGET) {
            return TargetLookup::NotFound;
        }
        if *initiator != name(INITIATOR) {
            return TargetLookup::Forbidden;
        }
        TargetLookup::Found(TargetAccess {
            sessions_max: None,
            target: TargetId(3),
            portal_group: GROUP,
            alias: Some("The\ndisk".into()),
            auth: self.auth.clone(),
            keys: self.keys.clone(),
        })
    }

    fn discovery(&self, _: &ConnectionPath, _: &IscsiName) -> DiscoveryAccess {
        let granted = || DiscoveryAccess::Granted { auth: self.auth.clone(), keys: self.keys.clone() };
        self.discovery.clone().unwrap_or_else(granted)
    }

    fn chap_secret(&self, _: Realm, _: &IscsiName, asked: &str) -> Option<Secret> {
        (asked == user().name).then(|| user().secret)
    }

    fn password_record(&self, _: Realm, _: &IscsiName, user: &str) -> Option<Arc<PasswordRecord>> {
        let [known, other] = self.records.as_ref()?;
        Some(if user == USER { known } else { other }.clone())
    }

    fn find_session(&self, query: &SessionQuery<'_>) -> Option<SessionInfo> {
        let fits = |facts: &&SessionInfo| match query.tsih {
            Tsih::NEW => query.isid == ISID && facts.portal_group == query.portal_group,
            tsih => query.isid == ISID && facts.tsih == tsih,
        };
        let facts = self.sessions.iter().find(fits)?;
        Some(SessionInfo { has_cid: query.cid.0 == 1, ..facts.clone() })
    }

    fn next_target(
        &self,
        _: &ConnectionPath,
        _: &IscsiName,
        after: Option<&IscsiName>,
    ) -> Option<SendTargetsEntry> {
        let address = TargetAddress::Socket("127.0.0.1:3260".parse().unwrap());
        after.is_none().then(|| SendTargetsEntry { name: name(TARGET), addresses: vec![(address, GROUP)] })
    }
}

/// A login at the test site whose texts the test writes. Texts are pairs divided by spaces.
pub(crate) struct Talk {
    pub(crate) site: TestSite,
    pub(crate) login: TargetLogin,
    pub(crate) now: Instant,
    pub(crate) tsih: u16,
    pub(crate) cid: u16,
}

/// The result of one request.
#[derive(Debug)]
pub(crate) enum Said {
    Stays(String),
    Moves(Stage, String),
    Enters(Box<LoginOutcome>, String),
    Refuses(Status, LoginError),
    Drops(LoginError),
}

pub(crate) const SEC: u8 = 0;
pub(crate) const OP: u8 = 1;
pub(crate) const FFP: u8 = 3;
pub(crate) const NAMES: &str =
    "InitiatorName=iqn.2026-11.com.example:host TargetName=iqn.2026-11.com.example:disk";

pub(crate) fn zeroed(text: &str) -> Vec<u8> {
    text.split_whitespace().flat_map(|pair| [pair.as_bytes(), b"\0"]).flatten().copied().collect()
}

pub(crate) fn spaced(data: &[u8]) -> String {
    String::from_utf8_lossy(data).trim_end_matches('\0').replace('\0', " ").to_string()
}

impl Talk {
    pub(crate) fn at(site: TestSite) -> Self {
        let login = TargetLogin::new(Instant::ORIGIN, &arrival(1));
        Self { site, login, now: Instant::ORIGIN, tsih: 0, cid: 1 }
    }

    pub(crate) fn request<'a>(&self, csg: u8, data: &'a [u8]) -> LoginRequest<'a> {
        LoginRequest {
            transit: false,
            cont: false,
            csg: Stage(csg),
            nsg: Stage(0),
            version_max: 0,
            version_min: 0,
            isid: ISID.0,
            tsih: self.tsih,
            itt: 5,
            cid: self.cid,
            cmd_sn: 77,
            exp_stat_sn: 0,
            data,
        }
    }

    pub(crate) fn send(&mut self, request: &LoginRequest<'_>) -> LoginStep {
        self.login.handle(self.now, request, &self.site)
    }

    pub(crate) fn hear(&mut self, request: &LoginRequest<'_>) -> Said {
        let step = self.send(request);
        let check = |response: &LoginResponse| {
            assert_eq!((response.isid, response.tsih, response.itt), (ISID.0, request.tsih, request.itt));
            assert_eq!((response.version_max, response.version_active), (0, 0));
            assert_eq!(response.csg, request.csg);
            assert!(!(response.transit && response.cont));
        };
        match step {
            LoginStep::Continue(response) | LoginStep::PermitGuess { response, .. } => {
                check(&response);
                assert_eq!(response.status(), Status::SUCCESS);
                let text = spaced(&response.data);
                if response.transit { Said::Moves(response.nsg, text) } else { Said::Stays(text) }
            }
            LoginStep::Complete { response, outcome } => {
                check(&response);
                assert_eq!((response.transit, response.nsg), (true, Stage::FULL_FEATURE));
                Said::Enters(outcome, spaced(&response.data))
            }
            LoginStep::Fail { response, why } => {
                check(&response);
                assert_eq!((response.transit, response.cont), (false, false));
                assert_eq!(Some(response.status()), why.status());
                Said::Refuses(response.status(), why)
            }
            LoginStep::Drop(why) => Said::Drops(why),
        }
    }

    /// Sends a text and stays in the stage.
    pub(crate) fn stay(&mut self, csg: u8, text: &str) -> Said {
        let data = zeroed(text);
        let request = self.request(csg, &data);
        self.hear(&request)
    }

    /// Sends a text and requests the next stage.
    pub(crate) fn go(&mut self, csg: u8, nsg: u8, text: &str) -> Said {
        let data = zeroed(text);
        let request = LoginRequest { transit: true, nsg: Stage(nsg), ..self.request(csg, &data) };
        self.hear(&request)
    }
}

impl Said {
    pub(crate) fn text(self) -> String {
        match self {
            Self::Stays(text) | Self::Moves(_, text) | Self::Enters(_, text) => text,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn status(self) -> Status {
        match self {
            Self::Refuses(status, _) => status,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn why(self) -> LoginError {
        match self {
            Self::Refuses(_, why) | Self::Drops(why) => why,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn outcome(self) -> LoginOutcome {
        match self {
            Self::Enters(outcome, _) => *outcome,
            other => panic!("{other:?}"),
        }
    }
}
