//! The negotiation of options before the first request.

use base::bytes::{Reader, UnexpectedEof};
use store::api::Capabilities;

use ::nbd::wire::{
    BASE_ALLOCATION, BASE_ALLOCATION_ID, INFO_BLOCK_SIZE, INFO_DESCRIPTION, INFO_EXPORT, INFO_NAME, Opt, Rep,
    option_reply, transmission,
};

use super::Export;
use super::error::ProtocolError;
use super::session::PAYLOAD_LEN_MAX;
use base::int_cast::to_u32;

/// The options that client and server agreed on so far.
#[derive(Debug, Default)]
pub(super) struct Negotiation {
    /// The client needs no zeros after the answer to `EXPORT_NAME`, the oldest option.
    pub(super) no_zeroes: bool,
    /// Reads are answered in chunks (structured replies).
    pub(super) structured: bool,
    /// The name of the export that `base:allocation` was selected for.
    contexts_of: Option<Vec<u8>>,
    /// The client may query block status; decided at the end of the negotiation.
    pub(super) block_status: bool,
}

/// What follows an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Another option.
    Option,
    /// Requests.
    Requests,
    /// A regular end.
    End,
    /// A disconnection, because the client broke a rule.
    CutOff(ProtocolError),
}

impl Negotiation {
    /// Answers one option, by appending to `out`.
    pub(super) fn option(
        &mut self,
        export: &Export,
        profile: &Capabilities,
        option: Opt,
        data: &[u8],
        out: &mut Vec<u8>,
    ) -> Next {
        match option {
            Opt::EXPORT_NAME => return self.export_name(export, profile, data, out),
            Opt::ABORT => {
                option_reply(out, option, Rep::ACK, &[]);
                return Next::End;
            }
            Opt::GO | Opt::INFO => match self.info(export, profile, option, data, out) {
                Ok(name) => {
                    option_reply(out, option, Rep::ACK, &[]);
                    if option == Opt::GO {
                        self.settle(name);
                        return Next::Requests;
                    }
                }
                Err(refusal) => refusal.reply(option, out),
            },
            Opt::LIST if data.is_empty() => {
                let name = export.name.as_bytes();
                let name_len = to_u32(name.len()).to_be_bytes();
                option_reply(out, option, Rep::SERVER, &[&name_len, name, export.description.as_bytes()]);
                option_reply(out, option, Rep::ACK, &[]);
            }
            Opt::STRUCTURED_REPLY if data.is_empty() => {
                self.structured = true;
                option_reply(out, option, Rep::ACK, &[]);
            }
            Opt::LIST | Opt::STRUCTURED_REPLY => {
                Refusal(Rep::ERR_INVALID, "this option takes no data").reply(option, out);
            }
            Opt::LIST_META_CONTEXT | Opt::SET_META_CONTEXT => {
                match self.meta_contexts(export, option, data) {
                    Ok(true) => {
                        let id = if option == Opt::SET_META_CONTEXT { BASE_ALLOCATION_ID } else { 0 };
                        let parts = [&id.to_be_bytes()[..], BASE_ALLOCATION.as_bytes()];
                        option_reply(out, option, Rep::META_CONTEXT, &parts);
                        option_reply(out, option, Rep::ACK, &[]);
                    }
                    Ok(false) => option_reply(out, option, Rep::ACK, &[]),
                    Err(refusal) => refusal.reply(option, out),
                }
            }
            _ => Refusal(Rep::ERR_UNSUP, "this server does not support this option").reply(option, out),
        }
        Next::Option
    }

    /// Handles `EXPORT_NAME`, the oldest way to choose an export. The server can refuse it only by
    /// disconnecting.
    fn export_name(
        &mut self,
        export: &Export,
        profile: &Capabilities,
        name: &[u8],
        out: &mut Vec<u8>,
    ) -> Next {
        if !is_name_of(export, name) {
            return Next::CutOff(ProtocolError::UnknownExport);
        }
        out.extend_from_slice(&profile.len.to_be_bytes());
        out.extend_from_slice(&transmission_flags(profile, self.structured).to_be_bytes());
        if !self.no_zeroes {
            out.resize(out.len() + 124, 0);
        }
        self.settle(name.to_vec());
        Next::Requests
    }

    /// Ends the negotiation: the context counts if it was selected for the export that is used.
    fn settle(&mut self, name: Vec<u8>) {
        self.block_status = self.structured && self.contexts_of.as_ref() == Some(&name);
    }

    /// Answers a query about an export, and returns the export's name as the client sent it.
    fn info(
        &self,
        export: &Export,
        profile: &Capabilities,
        option: Opt,
        data: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Vec<u8>, Refusal> {
        let (name, wanted) = asked_info(data).map_err(|UnexpectedEof| MALFORMED)?;
        if !is_name_of(export, name) {
            return Err(UNKNOWN_EXPORT);
        }
        let mut reply = |kind: u16, parts: &[&[u8]]| {
            let kind = kind.to_be_bytes();
            let parts: Vec<&[u8]> = std::iter::once(&kind[..]).chain(parts.iter().copied()).collect();
            option_reply(out, option, Rep::INFO, &parts);
        };
        let flags = transmission_flags(profile, self.structured).to_be_bytes();
        reply(INFO_EXPORT, &[&profile.len.to_be_bytes(), &flags]);
        if wanted.contains(&INFO_NAME) {
            reply(INFO_NAME, &[export.name.as_bytes()]);
        }
        if wanted.contains(&INFO_DESCRIPTION) {
            reply(INFO_DESCRIPTION, &[export.description.as_bytes()]);
        }
        if wanted.contains(&INFO_BLOCK_SIZE) {
            let sizes = block_sizes(profile).map(u32::to_be_bytes);
            reply(INFO_BLOCK_SIZE, &[&sizes.concat()]);
        }
        Ok(name.to_vec())
    }

    /// Returns whether the client asks for `base:allocation`, and selects it if the option is the one that
    /// selects.
    fn meta_contexts(&mut self, export: &Export, option: Opt, data: &[u8]) -> Result<bool, Refusal> {
        let select = option == Opt::SET_META_CONTEXT;
        if select {
            self.contexts_of = None;
        }
        if !self.structured {
            return Err(Refusal(
                Rep::ERR_INVALID,
                "metadata contexts need structured replies, which must be negotiated \
                                                  first",
            ));
        }
        let (name, queries) = asked_contexts(data).map_err(|UnexpectedEof| MALFORMED)?;
        if !is_name_of(export, name) {
            return Err(UNKNOWN_EXPORT);
        }
        let hit = |query: &&[u8]| *query == BASE_ALLOCATION.as_bytes() || (!select && *query == b"base:");
        let found = queries.iter().any(hit) || (!select && queries.is_empty());
        if found && select {
            self.contexts_of = Some(name.to_vec());
        }
        Ok(found)
    }
}

/// A reply that refuses an option, with a message for display.
pub(super) struct Refusal(pub(super) Rep, pub(super) &'static str);

impl Refusal {
    pub(super) fn reply(&self, option: Opt, out: &mut Vec<u8>) {
        option_reply(out, option, self.0, &[self.1.as_bytes()]);
    }
}

const MALFORMED: Refusal = Refusal(Rep::ERR_INVALID, "the lengths in this option are inconsistent");
const UNKNOWN_EXPORT: Refusal = Refusal(Rep::ERR_UNKNOWN, "this server has no such export");

fn is_name_of(export: &Export, name: &[u8]) -> bool {
    name.is_empty() || name == export.name.as_bytes()
}

/// Parses the data of `INFO` and `GO`: a name and the kinds of information wanted.
fn asked_info(data: &[u8]) -> Result<(&[u8], Vec<u16>), UnexpectedEof> {
    let mut reader = Reader::new(data);
    let name = counted(&mut reader)?;
    let count = reader.u16()?;
    let wanted = (0..count).map(|_| reader.u16()).collect::<Result<_, _>>()?;
    if reader.is_empty() { Ok((name, wanted)) } else { Err(UnexpectedEof) }
}

/// Parses the data of the options on contexts: a name and queries.
fn asked_contexts(data: &[u8]) -> Result<(&[u8], Vec<&[u8]>), UnexpectedEof> {
    let mut reader = Reader::new(data);
    let name = counted(&mut reader)?;
    let count = reader.u32()?;
    // Each query takes bytes of the option, so the length of the option bounds the queries, whatever `count`
    // holds.
    let queries = (0..count).map(|_| counted(&mut reader)).collect::<Result<_, _>>()?;
    if reader.is_empty() { Ok((name, queries)) } else { Err(UnexpectedEof) }
}

fn counted<'a>(reader: &mut Reader<'a>) -> Result<&'a [u8], UnexpectedEof> {
    let len = reader.u32()?;
    reader.take(usize::try_from(len).map_err(|_| UnexpectedEof)?)
}

/// Returns the transmission flags: what the disk can do.
fn transmission_flags(profile: &Capabilities, structured: bool) -> u16 {
    use transmission::*;
    let mut flags = HAS_FLAGS | SEND_FLUSH | SEND_FUA | CAN_MULTI_CONN | SEND_CACHE;
    if profile.read_only {
        flags |= READ_ONLY;
    } else {
        flags |= SEND_WRITE_ZEROES | SEND_FAST_ZERO;
        flags |= if profile.thin { SEND_TRIM } else { 0 };
    }
    flags |= if profile.rotational { ROTATIONAL } else { 0 };
    flags | if structured { SEND_DF } else { 0 }
}

/// Returns the minimum, the preferred and the maximum block size. The server also accepts shorter transfers,
/// at the price of a read-modify-write of whole blocks. A client that queries the sizes avoids that.
fn block_sizes(profile: &Capabilities) -> [u32; 3] {
    let minimum = profile.logical_block_len.clamp(1, BLOCK_SIZE_MINIMUM_MAX);
    let minimum = if minimum.is_power_of_two() { minimum } else { 1 };
    let preferred = profile.preferred_block_len.clamp(4096, PREFERRED_MAX).next_power_of_two();
    [minimum, preferred.max(minimum), to_u32(PAYLOAD_LEN_MAX)]
}

/// The largest minimum block size that the protocol allows.
const BLOCK_SIZE_MINIMUM_MAX: u32 = 64 << 10;
/// The largest preferred block size, which must not exceed the longest payload.
const PREFERRED_MAX: u32 = 1 << 20;
