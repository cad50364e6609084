//! The list of targets that answers `SendTargets` (RFC 7143 §4.3, appendix C), for both roles: the target
//! builds it piece by piece from the directory, and the initiator parses it piece by piece and trusts none of
//! it.

use alloc::string::ToString;
use alloc::vec::Vec;
use core::net::{SocketAddr, SocketAddrV6};

use crate::keys::Key;
use crate::login::directory::{ConnectionPath, Directory, SendTargetsEntry, TargetAddress};
use crate::name::{IscsiName, MAX_NAME, PortalGroupTag};
use crate::text::{BadText, Pair, TextBuilder, parse};

/// The most addresses that are listed for one target: more portals than a computer has interfaces.
pub const MAX_ADDRESSES: usize = 64;

/// The most targets that an initiator accepts from one list.
pub const MAX_TARGETS: usize = 1 << 16;

/// The longest pair of a list: a name, or a host name with port and portal group tag.
const MAX_LIST_PAIR: usize = "TargetAddress=".len() + MAX_NAME + 64;

/// A text that is sent, optionally followed by a list of targets that is built while it is sent.
#[derive(Debug, Default)]
pub(crate) struct SendTargetsText {
    text: Vec<u8>,
    source: Source,
}

#[derive(Debug, Default)]
enum Source {
    /// Nothing follows the text.
    #[default]
    Dry,
    /// Every target after this one in the directory follows; `None` starts with the first.
    Behind(Option<IscsiName>),
}

/// The longest piece of a list, whatever length the initiator takes: libiscsi declares 256 KiB, and does not
/// know how to ask for a second piece.
pub(crate) const PIECE_MAX: usize = 256 << 10;

/// The directory, as one initiator on one connection may see it.
#[derive(Clone, Copy)]
pub(crate) struct DirectoryView<'a> {
    pub(crate) directory: &'a dyn Directory,
    pub(crate) via: &'a ConnectionPath,
    pub(crate) initiator: &'a IscsiName,
}

impl SendTargetsText {
    /// Begins to send `text`, followed by every target if `with_all`.
    pub(crate) fn new(text: Vec<u8>, with_all: bool) -> Self {
        Self { text, source: if with_all { Source::Behind(None) } else { Source::Dry } }
    }

    /// Removes and returns the next piece, of at most `limit` bytes, and whether more text follows. The piece
    /// ends at the end of a pair if a whole pair fits.
    pub(crate) fn next_piece(&mut self, limit: usize, reader: DirectoryView<'_>) -> (Vec<u8>, bool) {
        let limit = limit.max(1);
        while self.text.len() <= limit
            && let Source::Behind(after) = &mut self.source
        {
            match reader.directory.next_target(reader.via, reader.initiator, after.as_ref()) {
                Some(target) => {
                    self.text.extend(encode_target(&target, reader.via));
                    *after = Some(target.name);
                }
                None => self.source = Source::Dry,
            }
        }
        if self.text.len() <= limit {
            return (core::mem::take(&mut self.text), false);
        }
        let head = self.text.get(..limit).unwrap_or_default();
        let cut = head.iter().rposition(|byte| *byte == 0).map_or(limit, |at| at + 1);
        let rest = self.text.split_off(cut);
        (core::mem::replace(&mut self.text, rest), true)
    }

    pub(crate) const fn is_done(&self) -> bool {
        self.text.is_empty() && matches!(self.source, Source::Dry)
    }
}

/// Returns an address without its zone, which has a meaning on this host alone (RFC 4007 §11.2).
fn without_zone(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V4(_) => address,
        SocketAddr::V6(v6) => SocketAddr::V6(SocketAddrV6::new(*v6.ip(), v6.port(), 0, 0)),
    }
}

/// Encodes the list entry of a target: its name, then its addresses. A target without an address gets the
/// local address of the connection, in portal group 1. RFC 7143 permits to leave that address out, but some
/// initiators expect it.
pub(crate) fn encode_target(target: &SendTargetsEntry, via: &ConnectionPath) -> Vec<u8> {
    let mut out = TextBuilder::new();
    out.put(Key::TargetName.name(), target.name.as_str());
    let here = [(TargetAddress::Socket(without_zone(via.local)), PortalGroupTag(1))];
    let addresses = if target.addresses.is_empty() { &here[..] } else { &target.addresses };
    for (address, group) in addresses.iter().take(MAX_ADDRESSES) {
        let mut value = match address {
            TargetAddress::Socket(socket) => without_zone(*socket).to_string(),
            TargetAddress::Host { .. } => address.to_string(),
        };
        value.push(',');
        value.push_str(&group.0.to_string());
        out.put(Key::TargetAddress.name(), value);
    }
    out.into_bytes()
}

/// A target as an initiator discovered it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Discovered {
    /// The iSCSI name of the target.
    pub name: IscsiName,
    /// The addresses on which the target listens. Empty: the address at which the initiator asked.
    pub addresses: Vec<(TargetAddress, Option<PortalGroupTag>)>,
}

/// Parses the answer to `SendTargets` from pieces of any size.
#[derive(Debug, Default)]
pub struct TargetList {
    partial: Vec<u8>,
    targets: Vec<Discovered>,
    ignored: usize,
    /// Whether the addresses that follow belong to a target that was ignored.
    skipping: bool,
}

impl TargetList {
    /// Returns an empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the data of one Text Response.
    ///
    /// # Errors
    /// The data is not a legal text, or an incomplete pair is longer than any pair of a list.
    pub fn add(&mut self, data: &[u8]) -> Result<(), BadText> {
        self.partial.extend_from_slice(data);
        let whole = self.partial.iter().rposition(|byte| *byte == 0).map_or(0, |at| at + 1);
        let rest = self.partial.split_off(whole);
        if rest.len() > MAX_LIST_PAIR {
            return Err(BadText::TooLong);
        }
        let text = core::mem::replace(&mut self.partial, rest);
        // A list may be longer than [`crate::text::MAX_TEXT`] and may hold more pairs than a text. It is
        // therefore parsed pair by pair.
        for item in text.split_inclusive(|byte| *byte == 0) {
            for pair in parse(item)? {
                self.take(&pair);
            }
        }
        Ok(())
    }

    /// Ends the list.
    ///
    /// # Errors
    /// `Unterminated` when the last pair is incomplete.
    pub fn finish(self) -> Result<Vec<Discovered>, BadText> {
        if self.partial.is_empty() { Ok(self.targets) } else { Err(BadText::Unterminated) }
    }

    /// Returns how many names and addresses were left out because they are illegal or too many.
    pub const fn ignored(&self) -> usize {
        self.ignored
    }

    fn take(&mut self, pair: &Pair<'_>) {
        match Key::by_name(pair.name.as_bytes()) {
            Some(Key::TargetName) => {
                let name = IscsiName::parse(pair.value).ok().filter(|_| self.targets.len() < MAX_TARGETS);
                self.skipping = name.is_none();
                match name {
                    Some(name) => self.targets.push(Discovered { name, addresses: Vec::new() }),
                    None => self.ignored += 1,
                }
            }
            Some(Key::TargetAddress) if !self.skipping => {
                match (TargetAddress::parse(pair.value), self.targets.last_mut()) {
                    (Some(address), Some(last)) if last.addresses.len() < MAX_ADDRESSES => {
                        last.addresses.push(address);
                    }
                    _ => self.ignored += 1,
                }
            }
            _ => self.ignored += 1,
        }
    }
}

#[cfg(test)]
mod tests;
