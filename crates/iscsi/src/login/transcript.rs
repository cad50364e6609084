//! The transcript of a login: what both sides hash of its Login PDUs, confirm to each other and derive the
//! keys of the connection from (docs/iscsi-aead.md §4).

use core::fmt;

use sha2::{Digest as _, Sha512};

use super::{LoginRequest, LoginResponse};
use crate::aead::login_keys::{CONFIRMATION_LEN, LoginKeys};
use crate::aead::{AeadDigest, GenerationLimits, RecordKeys};
use crate::keys::Role;
use crate::name::Tsih;

/// The key whose value confirms the transcript. It is the last pair of the text of the last Login Request and
/// of the last Login Response.
pub const CONFIRMATION_KEY: &str = "X-org.targe.confirm";
/// The length of a confirmation's pair in the text, in bytes: key, `=0x`, hexadecimal digits, zero byte.
pub const CONFIRMATION_PAIR_LEN: usize = CONFIRMATION_KEY.len() + 3 + 2 * CONFIRMATION_LEN + 1;

/// A hash over the Login PDUs of a connection, from the first one on, in the order in which they are sent.
#[derive(Clone)]
pub struct LoginTranscript(Sha512);

impl LoginTranscript {
    /// Returns the transcript of no PDUs.
    pub fn new() -> Self {
        Self(Sha512::new_with_prefix(TRANSCRIPT))
    }

    /// Adds a Login Request.
    pub fn add_request(&mut self, request: &LoginRequest<'_>) {
        self.0.update(request_header(request));
        self.0.update(request.data);
    }

    /// Adds a Login Response.
    pub fn add_response(&mut self, response: &LoginResponse) {
        self.0.update(response_header(response));
        self.0.update(&response.data);
    }

    /// Returns the hash of the PDUs so far. After the request that completes the text with OPAQUE's first
    /// message, it is the context of the key exchange.
    pub fn digest(&self) -> [u8; 64] {
        self.0.clone().finalize().into()
    }

    /// Returns the hash that `request` confirms: that of the PDUs so far and of `request` without the pair of
    /// the confirmation, with which its text ends. Returns `None` if the text is too short for it.
    pub fn confirmed_by_request(&self, request: &LoginRequest<'_>) -> Option<[u8; 64]> {
        self.without_confirmation(&request_header(request), request.data)
    }

    /// Returns the hash that `response` confirms, like [`Self::confirmed_by_request`].
    pub fn confirmed_by_response(&self, response: &LoginResponse) -> Option<[u8; 64]> {
        self.without_confirmation(&response_header(response), &response.data)
    }

    fn without_confirmation(&self, header: &[u8; HEADER_LEN], text: &[u8]) -> Option<[u8; 64]> {
        let text = text.get(..text.len().checked_sub(CONFIRMATION_PAIR_LEN)?)?;
        Some(self.0.clone().chain_update(header).chain_update(text).finalize().into())
    }

    /// Returns the hash of the whole login, which led to the session with this TSIH.
    pub fn finish(self, tsih: Tsih) -> [u8; 64] {
        self.0.chain_update(tsih.0.to_be_bytes()).finalize().into()
    }
}

impl Default for LoginTranscript {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for LoginTranscript {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LoginTranscript")
    }
}

/// What the keys of a connection follow from when its login is complete but for the TSIH of its session. It
/// cannot be copied, so that no two connections get the same keys. Dropping it erases the secrets.
#[derive(Debug)]
pub struct RecordKeySeed {
    keys: LoginKeys,
    transcript: LoginTranscript,
    digest: AeadDigest,
}

impl RecordKeySeed {
    /// Takes the keys and the transcript of a whole login, which negotiated `digest`.
    pub const fn new(keys: LoginKeys, transcript: LoginTranscript, digest: AeadDigest) -> Self {
        Self { keys, transcript, digest }
    }

    /// Returns what protects the PDUs of the connection at `role`. `tsih` is the TSIH in the last Login
    /// Response.
    pub fn derive(self, role: Role, tsih: Tsih) -> RecordKeys {
        let keys = self.keys.connection_keys(&self.transcript.finish(tsih));
        keys.record_keys(role, self.digest, GenerationLimits::default())
    }
}

/// How many bytes of a Login PDU's header are part of the transcript: up to the CmdSN of a request, with
/// which a session begins. The other sequence numbers and the status follow, which the owners of the
/// connections set.
const HEADER_LEN: usize = 28;

fn request_header(request: &LoginRequest<'_>) -> [u8; HEADER_LEN] {
    let flags = flags(request.transit, request.cont, request.csg.0, request.nsg.0);
    let [c0, c1] = request.cid.to_be_bytes();
    header(
        [0x43, flags, request.version_max, request.version_min],
        request.data.len(),
        (request.isid, request.tsih, request.itt),
        ([c0, c1, 0, 0], request.cmd_sn),
    )
}

fn response_header(response: &LoginResponse) -> [u8; HEADER_LEN] {
    let flags = flags(response.transit, response.cont, response.csg.0, response.nsg.0);
    // The TSIH of a new session is not known when the last response is confirmed; `finish` adds it. Nor is
    // the StatSN, which stands where a request has its CmdSN.
    header(
        [0x23, flags, response.version_max, response.version_active],
        response.data.len(),
        (response.isid, 0, response.itt),
        ([0; 4], 0),
    )
}

const fn flags(transit: bool, cont: bool, csg: u8, nsg: u8) -> u8 {
    ((transit as u8) << 7) | ((cont as u8) << 6) | ((csg & 3) << 2) | (nsg & 3)
}

fn header(
    first: [u8; 4],
    data_len: usize,
    (isid, tsih, itt): ([u8; 6], u16, u32),
    (cid, cmd_sn): ([u8; 4], u32),
) -> [u8; HEADER_LEN] {
    let mut out = [0; HEADER_LEN];
    // The length of additional header segments, 0, and that of the data segment share four bytes.
    let lengths = u32::try_from(data_len).unwrap_or(u32::MAX).to_be_bytes();
    let (tsih, itt, cmd_sn) = (tsih.to_be_bytes(), itt.to_be_bytes(), cmd_sn.to_be_bytes());
    let parts = [&first[..], &lengths, &isid, &tsih, &itt, &cid, &cmd_sn];
    for (to, from) in out.iter_mut().zip(parts.into_iter().flatten()) {
        *to = *from;
    }
    out
}

/// The beginning of every transcript.
const TRANSCRIPT: &[u8] = b"iscsi aead 1 login";
