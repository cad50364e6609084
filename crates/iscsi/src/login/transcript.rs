//! What of a Login PDU is part of the transcript of a login (`docs/iscsi-aead.md` §4.1).

use super::{LoginRequest, LoginResponse};
use crate::aead::login_keys::LoginTranscript;

impl LoginTranscript {
    /// Adds a Login Request.
    pub fn add_request(&mut self, request: &LoginRequest<'_>) {
        self.add(&request_header(request), request.data);
    }

    /// Adds a Login Response.
    pub fn add_response(&mut self, response: &LoginResponse) {
        self.add(&response_header(response), &response.data);
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
}

/// How many bytes of a Login PDU's header are part of the transcript: all that both sides have the same view
/// of before the session exists. Sequence numbers and status follow.
const HEADER_LEN: usize = 24;

fn request_header(request: &LoginRequest<'_>) -> [u8; HEADER_LEN] {
    let flags = flags(request.transit, request.cont, request.csg.0, request.nsg.0);
    let [c0, c1] = request.cid.to_be_bytes();
    header(
        [0x43, flags, request.version_max, request.version_min],
        request.data.len(),
        (request.isid, request.tsih, request.itt),
        [c0, c1, 0, 0],
    )
}

fn response_header(response: &LoginResponse) -> [u8; HEADER_LEN] {
    let flags = flags(response.transit, response.cont, response.csg.0, response.nsg.0);
    // The TSIH of a new session is not known when the last response is confirmed; `finish` adds it.
    header(
        [0x23, flags, response.version_max, response.version_active],
        response.data.len(),
        (response.isid, 0, response.itt),
        [0; 4],
    )
}

const fn flags(transit: bool, cont: bool, csg: u8, nsg: u8) -> u8 {
    ((transit as u8) << 7) | ((cont as u8) << 6) | ((csg & 3) << 2) | (nsg & 3)
}

fn header(
    first: [u8; 4],
    data_len: usize,
    (isid, tsih, itt): ([u8; 6], u16, u32),
    last: [u8; 4],
) -> [u8; HEADER_LEN] {
    let mut out = [0; HEADER_LEN];
    // The length of additional header segments, 0, and that of the data segment share four bytes.
    let lengths = u32::try_from(data_len).unwrap_or(u32::MAX).to_be_bytes();
    let parts = [&first[..], &lengths, &isid, &tsih.to_be_bytes(), &itt.to_be_bytes(), &last];
    for (to, from) in out.iter_mut().zip(parts.into_iter().flatten()) {
        *to = *from;
    }
    out
}
