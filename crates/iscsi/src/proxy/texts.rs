//! The keys in full feature phase whose values a proxy changes.
//!
//! TargetAddress: the addresses of a target become the address of the proxy, once, with the portal group of
//! the address that the proxy uses, so that the initiator comes back through the proxy.
//! MaxRecvDataSegmentLength: at most [`SEGMENT_MAX`], as in the login.

use alloc::string::ToString as _;
use alloc::vec::Vec;
use core::mem;
use core::net::SocketAddr;

use super::ProxyError;
use crate::aead::SEGMENT_LEN_MAX;
use crate::keys::Key;
use crate::login::directory::TargetAddress;
use crate::name::PortalGroupTag;
use crate::text::value::number_in;

/// The longest data segment on either side, in bytes: that of the records of an AEAD digest.
#[allow(clippy::cast_possible_truncation, reason = "64 KiB fit")]
pub(super) const SEGMENT_MAX: u32 = SEGMENT_LEN_MAX as u32;

/// The longest pair that is kept until its end arrives, in bytes: more than RFC 7143 §6.1 permits.
const PAIR_MAX: usize = 16 << 10;

/// Returns the limit that a declared value of MaxRecvDataSegmentLength becomes, if the value is legal.
pub(super) fn limited(value: &[u8]) -> Option<u32> {
    number_in(value, 512..=crate::keys::MAX_LENGTH_VALUE).ok().map(|limit| limit.min(SEGMENT_MAX))
}

/// Returns the text of a request whose declared limit is reduced; `None` if it need not change. A pair that
/// is spread over two PDUs is not changed.
pub(super) fn reduced_request(text: &[u8]) -> Option<Vec<u8>> {
    let name = Key::MaxRecvDataSegmentLength.name().as_bytes();
    let is_limit = |item: &&[u8]| split(item).is_some_and(|(key, _)| key == name);
    let (items, ends) = (text.split(|byte| *byte == 0), text.last() == Some(&0));
    if !ends || !items.clone().any(|item| is_limit(&item)) {
        return None;
    }
    let mut out = Vec::with_capacity(text.len());
    for item in items.filter(|item| !item.is_empty()) {
        put_reduced(item, &mut out);
    }
    Some(out)
}

/// Changes the texts of the target's responses, PDU by PDU.
#[derive(Debug)]
pub(super) struct TextRewriter {
    own_address: SocketAddr,
    peer: Option<SocketAddr>,
    /// The longest text that the initiator receives, in bytes.
    len_max: usize,
    /// A pair whose end has not arrived.
    rest: Vec<u8>,
    /// The portal group of the target whose addresses are being read, once it has one.
    group: Option<Group>,
}

#[derive(Clone, Copy, Debug)]
struct Group {
    tag: Option<PortalGroupTag>,
    /// Whether it is the group of the address that the proxy uses.
    is_ours: bool,
}

impl TextRewriter {
    pub(super) const fn new(own_address: SocketAddr, peer: Option<SocketAddr>, len_max: usize) -> Self {
        Self { own_address, peer, len_max, rest: Vec::new(), group: None }
    }

    /// Forgets the parts of an answer that the initiator has abandoned for a new negotiation.
    pub(super) fn restart(&mut self) {
        self.rest.clear();
        self.group = None;
    }

    /// Returns the text for the initiator. `is_last` states whether no text of this answer follows.
    pub(super) fn rewrite(&mut self, text: &[u8], is_last: bool) -> Result<Vec<u8>, ProxyError> {
        let mut text = [&mem::take(&mut self.rest), text].concat();
        if !is_last {
            let end = text.iter().rposition(|byte| *byte == 0).map_or(0, |at| at + 1);
            self.rest = text.split_off(end);
            if self.rest.len() > PAIR_MAX {
                return Err(ProxyError::PairTooLong);
            }
        }
        let mut out = Vec::with_capacity(text.len());
        for item in text.split(|byte| *byte == 0).filter(|item| !item.is_empty()) {
            self.put(item, &mut out);
        }
        if is_last {
            self.put_address(&mut out);
        }
        if out.len() > self.len_max { Err(ProxyError::AnswerTooLong) } else { Ok(out) }
    }

    fn put(&mut self, item: &[u8], out: &mut Vec<u8>) {
        match split(item).and_then(|(key, value)| Some((Key::by_name(key)?, value))) {
            Some((Key::TargetName, _)) => {
                self.put_address(out);
                put_item(item, out);
            }
            Some((Key::TargetAddress, value)) => {
                // An address that cannot be read leads nowhere.
                let Some((address, tag)) = TargetAddress::parse(value) else { return };
                let is_ours = self.peer.is_some_and(|peer| address == TargetAddress::Socket(peer));
                if self.group.is_none_or(|group| is_ours && !group.is_ours) {
                    self.group = Some(Group { tag, is_ours });
                }
            }
            _ => put_reduced(item, out),
        }
    }

    /// Appends the address of the proxy, if the target has addresses.
    fn put_address(&mut self, out: &mut Vec<u8>) {
        let Some(group) = self.group.take() else { return };
        let mut text = self.own_address.to_string();
        if let Some(PortalGroupTag(tag)) = group.tag {
            text.push(',');
            text.push_str(&tag.to_string());
        }
        put_pair(Key::TargetAddress, &text, out);
    }
}

/// Appends an item, with a reduced value if it declares a limit.
fn put_reduced(item: &[u8], out: &mut Vec<u8>) {
    let limit = split(item)
        .filter(|(key, _)| *key == Key::MaxRecvDataSegmentLength.name().as_bytes())
        .and_then(|(_, value)| limited(value));
    match limit {
        Some(limit) => put_pair(Key::MaxRecvDataSegmentLength, &limit.to_string(), out),
        None => put_item(item, out),
    }
}

fn put_pair(key: Key, value: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(key.name().as_bytes());
    out.push(b'=');
    put_item(value.as_bytes(), out);
}

fn put_item(item: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(item);
    out.push(0);
}

/// Splits a pair into key and value.
fn split(item: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = item.iter().position(|byte| *byte == b'=')?;
    Some((item.get(..at)?, item.get(at + 1..)?))
}

#[cfg(test)]
mod tests {
    use alloc::string::String;

    use super::*;

    fn rewriter() -> TextRewriter {
        TextRewriter::new("127.0.0.1:3260".parse().unwrap(), Some("192.0.2.7:3261".parse().unwrap()), 8192)
    }

    fn text(words: &str) -> Vec<u8> {
        words
            .split(' ')
            .filter(|word| !word.is_empty())
            .flat_map(|word| [word.as_bytes(), b"\0"].concat())
            .collect()
    }

    fn words(text: &[u8]) -> String {
        String::from_utf8_lossy(text).trim_end_matches('\0').replace('\0', " ")
    }

    #[test]
    fn every_target_gets_the_address_of_the_proxy_once() {
        let answer = "TargetName=iqn.2001-04.com.example:a TargetAddress=10.0.0.1:3260,1 \
                      TargetAddress=192.0.2.7:3261,2 TargetAddress=10.0.0.2:3260,3 \
                      TargetName=iqn.2001-04.com.example:b \
                      TargetName=iqn.2001-04.com.example:c TargetAddress=san.example.com:3260,4";
        let wanted = "TargetName=iqn.2001-04.com.example:a TargetAddress=127.0.0.1:3260,2 \
                      TargetName=iqn.2001-04.com.example:b \
                      TargetName=iqn.2001-04.com.example:c TargetAddress=127.0.0.1:3260,4";
        let whole = text(answer);
        assert_eq!(words(&rewriter().rewrite(&whole, true).unwrap()), wanted);
        // Wherever the target cuts its answer, the initiator gets the same.
        for cut in 0..whole.len() {
            let mut rewriter = rewriter();
            let mut got = rewriter.rewrite(&whole[..cut], false).unwrap();
            got.extend(rewriter.rewrite(&whole[cut..], true).unwrap());
            assert_eq!(words(&got), wanted, "cut at {cut}");
        }
    }

    #[test]
    fn a_limit_is_reduced_and_everything_else_passes() {
        let mut rewriter = rewriter();
        let answer = text("MaxRecvDataSegmentLength=262144 X-com.example.a=1 nonsense");
        assert_eq!(
            words(&rewriter.rewrite(&answer, true).unwrap()),
            "MaxRecvDataSegmentLength=65536 X-com.example.a=1 nonsense"
        );
        let request = text("MaxRecvDataSegmentLength=0x20000 InitiatorAlias=a");
        assert_eq!(
            words(&reduced_request(&request).unwrap()),
            "MaxRecvDataSegmentLength=65536 InitiatorAlias=a"
        );
        assert_eq!(reduced_request(&text("SendTargets=All")), None);
        assert_eq!(reduced_request(b"MaxRecvDataSegmentLength=0x20"), None);
    }

    #[test]
    fn a_text_that_does_not_fit_is_refused() {
        let mut rewriter = TextRewriter { len_max: 40, ..rewriter() };
        let answer = text("TargetName=iqn.2001-04.com.example:a TargetAddress=1.1.1.1,1");
        assert_eq!(rewriter.rewrite(&answer, true), Err(ProxyError::AnswerTooLong));
        assert_eq!(rewriter.rewrite(&[b'a'; PAIR_MAX + 1], false), Err(ProxyError::PairTooLong));
    }
}
