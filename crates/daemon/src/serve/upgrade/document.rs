//! The document that holds the sessions of a daemon while it is replaced by another one.
//!
//! It is one line of JSON, the header, and a second value of JSON, the body, whose length and CRC32C are in
//! the header. The header has the same form in every release, so that a release that cannot read the body
//! can say so. The document is only ever in memory and in a Unix socket between the two processes: it can
//! hold keys of sessions.

mod relay;

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;

use iscsi::digest::Crc32c;
use nbd::handshake::{CHANGE_LEN_MAX, ExportInfo, HandshakeError};
use serde::{Deserialize, Serialize};
use serde_json::error::Category;
use shard::handover::ShardState;
use zeroize::Zeroizing;

pub(in crate::serve) use relay::{Bytes, DirectionState, RelayState};

/// What the header begins with.
pub(in crate::serve) const MAGIC: &str = "targe-upgrade";

/// The version of the format. It is increased when what is written changes. A process refuses to take over
/// from one that writes another version.
pub(in crate::serve) const FORMAT: u32 = 6;

/// The longest document in bytes: 65 535 sessions of 1 KiB, and as many units.
pub(in crate::serve) const DOCUMENT_LEN_MAX: usize = 128 << 20;

/// The longest header in bytes.
const HEADER_LEN_MAX: usize = 4096;

/// The sessions of a daemon.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::serve) struct Document {
    /// The reactors in order.
    pub(in crate::serve) reactors: Vec<ReactorState>,
    /// The cartridges in drives. Two files of each follow the sockets, in the same order: the label, which is
    /// locked, and the folder. Hosts can change cartridges until the sessions are frozen, so these files
    /// come with the document.
    pub(in crate::serve) cartridges: Vec<CartridgeState>,
    /// The connections to NBD servers, and the block devices of other processes. The socket of each
    /// connection follows the files of the cartridges, in the same order. A connection can be replaced by
    /// another one until the sessions are frozen.
    pub(in crate::serve) exports: Vec<ExportState>,
    /// The devices that commands are passed to. The file by which each of this host is locked follows the
    /// sockets of the exports, in the same order. A device can be opened again until the sessions are frozen.
    pub(in crate::serve) devices: Vec<DeviceState>,
    /// The memory of LUNs. The file of each follows the files of the devices, in the same order.
    pub(in crate::serve) memories: Vec<MemoryState>,
    /// The connections inside TLS. Two sockets of each follow the files of the memories, in the same order:
    /// the TCP socket, and the relay's end of the pair whose other end is the connection of a reactor.
    pub(in crate::serve) relays: Vec<RelayState>,
}

/// The memory of a LUN.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::serve) struct MemoryState {
    /// The NAA identifier of the unit.
    pub(in crate::serve) unit: String,
    /// Its length in bytes.
    pub(in crate::serve) len: u64,
    /// Each run of allocated chunks of 64 KiB, in order: the number of the first one, and how many there are.
    pub(in crate::serve) chunks: Vec<(u64, u64)>,
}

/// A device that commands are passed to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::serve) struct DeviceState {
    /// The NAA identifier of the unit.
    pub(in crate::serve) unit: String,
    /// Its type.
    pub(in crate::serve) kind: u8,
    /// The length of its blocks, if it had blocks when it was opened.
    pub(in crate::serve) block_len: Option<u32>,
    /// The most bytes that one command can transfer.
    pub(in crate::serve) transfer_max: u32,
    /// What it says of itself. It is known by that when it was removed and returns.
    pub(in crate::serve) names: Vec<Vec<u8>>,
    /// Whether a file locks it. A device of another process has none: the next process connects to it itself.
    pub(in crate::serve) is_locked: bool,
}

/// A connection to an NBD server, on which nothing is under way, and what was negotiated for it; or a block
/// device of another process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::serve) struct ExportState {
    /// The NAA identifier of the unit.
    pub(in crate::serve) unit: String,
    len: u64,
    flags: u16,
    block_len: u32,
    preferred_block_len: u32,
    payload_len_max: u32,
    structured: bool,
    allocation_id: Option<u32>,
    /// Whether the connection moves. To a device the next process connects itself: it has memory of its own.
    pub(in crate::serve) has_socket: bool,
}

impl ExportState {
    pub(in crate::serve) const fn new(unit: String, info: &ExportInfo, has_socket: bool) -> Self {
        let ExportInfo {
            len,
            flags,
            block_len,
            preferred_block_len,
            payload_len_max,
            change_len_max: _,
            structured,
            allocation_id,
        } = *info;
        Self {
            unit,
            len,
            flags,
            block_len,
            preferred_block_len,
            payload_len_max,
            structured,
            allocation_id,
            has_socket,
        }
    }

    /// Returns what was negotiated.
    ///
    /// # Errors
    /// No negotiation ends with this.
    pub(in crate::serve) fn info(&self) -> Result<ExportInfo, HandshakeError> {
        let info = ExportInfo {
            len: self.len,
            flags: self.flags,
            block_len: self.block_len,
            preferred_block_len: self.preferred_block_len,
            // A device may take less than any server, and says so again when it is connected to.
            payload_len_max: if self.has_socket { self.payload_len_max } else { CHANGE_LEN_MAX },
            change_len_max: CHANGE_LEN_MAX,
            structured: self.structured,
            allocation_id: self.allocation_id,
        };
        info.checked()
    }
}

/// The cartridge in a drive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::serve) struct CartridgeState {
    /// The NAA identifier of the drive.
    pub(in crate::serve) drive: String,
    /// The folder.
    pub(in crate::serve) path: PathBuf,
    /// Whether it was opened for reading only.
    pub(in crate::serve) read_only: bool,
}

/// The sessions and units of one reactor.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::serve) struct ReactorState {
    /// The state.
    pub(in crate::serve) shard: ShardState,
    /// The connections of each session, in the order in which the state refers to them: each by the index of
    /// its portal in the list that the other process got before
    /// ([`Welcome::portals`](super::messages::Welcome::portals)). The sockets follow the document in the same
    /// order.
    pub(in crate::serve) connections: Vec<Vec<usize>>,
    /// The addresses of those connections that are inside TLS, in the same order: of this end and of the
    /// peer. Their sockets are local ones.
    pub(in crate::serve) tls_addresses: Vec<(SocketAddr, SocketAddr)>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Header {
    magic: String,
    format: u32,
    /// The release that wrote the document.
    version: String,
    /// The length of the body in bytes.
    len: usize,
    crc32c: u32,
}

/// A document cannot be used.
#[derive(Debug, thiserror::Error)]
pub(in crate::serve) enum DocumentError {
    /// The bytes are not a document.
    #[error("the state of the sessions is damaged: {0}")]
    Damaged(String),
    /// A release wrote it that this one does not understand.
    #[error(
        "targe {version} writes the state of its sessions in format {format}, which this release does not read"
    )]
    OtherFormat {
        /// The release.
        version: String,
        /// Its format.
        format: u32,
    },
}

impl Document {
    /// Returns the document as bytes. They can hold keys of sessions, so the caller erases them;
    /// no other copy of them is left.
    ///
    /// # Errors
    /// [`DocumentError`], if it is too long.
    pub(in crate::serve) fn encode(&self) -> Result<Vec<u8>, DocumentError> {
        let damaged = |error: serde_json::Error| DocumentError::Damaged(kind_of(&error));
        // One type of writer for both passes, so that the compiler makes one copy of what writes a document.
        let write = |to: &mut dyn Write| serde_json::to_writer(to, self).map_err(damaged);
        let mut counter = Counter(0);
        write(&mut counter)?;
        // A vector that grows would leave copies of its bytes behind.
        let mut body = Zeroizing::new(Vec::with_capacity(counter.0));
        write(&mut *body)?;
        let header = Header {
            magic: MAGIC.to_owned(),
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            len: body.len(),
            crc32c: crc32c(&body),
        };
        let header = serde_json::to_vec(&header).map_err(damaged)?;
        let mut bytes = Vec::with_capacity(header.len() + 1 + body.len());
        bytes.extend_from_slice(&header);
        bytes.push(b'\n');
        bytes.extend_from_slice(&body);
        if bytes.len() > DOCUMENT_LEN_MAX {
            return Err(DocumentError::Damaged(format!("it is longer than {DOCUMENT_LEN_MAX} bytes")));
        }
        Ok(bytes)
    }

    /// Reads a document.
    ///
    /// # Errors
    /// [`DocumentError`]
    pub(in crate::serve) fn decode(bytes: &[u8]) -> Result<Self, DocumentError> {
        let damaged = |why: &str| DocumentError::Damaged(why.to_owned());
        if bytes.len() > DOCUMENT_LEN_MAX {
            return Err(damaged("it is too long"));
        }
        let end = bytes.iter().take(HEADER_LEN_MAX).position(|byte| *byte == b'\n');
        let (header, body) =
            end.and_then(|end| bytes.split_at_checked(end)).ok_or_else(|| damaged("it has no header"))?;
        let header: Header =
            serde_json::from_slice(header).map_err(|_| damaged("its header is malformed"))?;
        if header.magic != MAGIC {
            return Err(damaged("its header is that of something else"));
        }
        if header.format != FORMAT {
            return Err(DocumentError::OtherFormat { version: header.version, format: header.format });
        }
        let body = body.get(1..).unwrap_or_default();
        if body.len() != header.len || crc32c(body) != header.crc32c {
            return Err(damaged("its length or its checksum is wrong"));
        }
        serde_json::from_slice(body).map_err(|error| DocumentError::Damaged(kind_of(&error)))
    }
}

/// Counts the bytes that are written.
struct Counter(usize);

impl Write for Counter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Describes an error without the text that it is about: that can be a key.
fn kind_of(error: &serde_json::Error) -> String {
    let kind = match error.classify() {
        Category::Io => "it cannot be written",
        Category::Syntax => "it is not JSON",
        Category::Data => "a value is missing, unknown or of another kind",
        Category::Eof => "it ends early",
    };
    format!("{kind} (line {}, column {})", error.line(), error.column())
}

fn crc32c(bytes: &[u8]) -> u32 {
    u32::from_le_bytes(Crc32c::of(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nothing() -> Document {
        Document {
            reactors: Vec::new(),
            cartridges: Vec::new(),
            exports: Vec::new(),
            devices: Vec::new(),
            memories: Vec::new(),
            relays: Vec::new(),
        }
    }

    #[test]
    fn a_document_is_read_as_it_was_written() {
        let bytes = nothing().encode().unwrap();
        assert!(Document::decode(&bytes).unwrap().reactors.is_empty());
        let header = format!("{{\"magic\":\"targe-upgrade\",\"format\":{FORMAT},");
        assert!(bytes.starts_with(header.as_bytes()), "every release reads this much");
    }

    #[test]
    fn what_was_negotiated_is_read_as_it_was_written_and_checked() {
        let info = ExportInfo {
            len: 1 << 30,
            flags: 0x6d,
            block_len: 512,
            preferred_block_len: 4096,
            payload_len_max: 1 << 25,
            change_len_max: CHANGE_LEN_MAX,
            structured: true,
            allocation_id: Some(9),
        };
        let state = ExportState::new("naa.6".to_owned(), &info, true);
        let device = DeviceState {
            unit: "naa.7".to_owned(),
            kind: 5,
            block_len: Some(2048),
            transfer_max: 1 << 20,
            names: vec![b"a disc".to_vec(), Vec::new()],
            is_locked: true,
        };
        let document = Document { exports: vec![state.clone()], devices: vec![device.clone()], ..nothing() };
        let document = Document::decode(&document.encode().unwrap()).unwrap();
        assert_eq!(document.devices, [device]);
        let read = document.exports;
        assert_eq!(read, [state]);
        assert_eq!(read[0].info(), Ok(info));
        let damaged = ExportState { block_len: 0, ..read[0].clone() };
        assert!(damaged.info().is_err());
        let limited = ExportInfo { payload_len_max: 512, ..info };
        let device = |has_socket| ExportState::new("naa.8".to_owned(), &limited, has_socket).info();
        assert!(device(true).is_err(), "no server takes so little");
        assert_eq!(device(false), Ok(ExportInfo { payload_len_max: CHANGE_LEN_MAX, ..info }));
    }

    #[test]
    fn a_connection_inside_tls_is_read_as_it_was_written() {
        let relay = RelayState::for_tests();
        let document = Document { relays: vec![relay.clone()], ..nothing() };
        let bytes = document.encode().unwrap();
        assert_eq!(Document::decode(&bytes).unwrap().relays, [relay]);
        assert!(!format!("{document:?}").contains("1, 1, 1"), "secrets are not displayed");
    }

    #[test]
    fn damage_is_noticed() {
        let bytes = nothing().encode().unwrap();
        let body = bytes.iter().position(|byte| *byte == b'\n').unwrap();
        for at in body..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            assert!(matches!(Document::decode(&damaged), Err(DocumentError::Damaged(_))), "byte {at}");
            assert!(Document::decode(&bytes[..at]).is_err(), "cut at {at}");
        }
        assert!(Document::decode(&[b' '; 2 * HEADER_LEN_MAX]).is_err());
    }

    #[test]
    fn the_format_of_another_release_is_named() {
        let text = String::from_utf8(nothing().encode().unwrap()).unwrap();
        let other = text.replace(&format!("\"format\":{FORMAT}"), "\"format\":99");
        let error = Document::decode(other.as_bytes()).unwrap_err();
        assert!(matches!(error, DocumentError::OtherFormat { format: 99, .. }), "{error}");
    }

    #[test]
    fn an_error_does_not_repeat_what_the_document_holds() {
        let error = Document::decode(&with_header(br#"{"reactors":"the key"}"#)).unwrap_err();
        let told = "the state of the sessions is damaged: a value is missing, unknown or of another kind (line 1, column 21)";
        assert_eq!(error.to_string(), told);
    }

    #[test]
    fn a_field_that_this_release_does_not_know_is_refused() {
        let bytes = with_header(br#"{"reactors":[],"cartridges":[],"exports":[],"devices":[],"memories":[],"relays":[],"later":1}"#);
        assert!(matches!(Document::decode(&bytes), Err(DocumentError::Damaged(_))));
    }

    fn with_header(body: &[u8]) -> Vec<u8> {
        let header = Header {
            magic: MAGIC.to_owned(),
            format: FORMAT,
            version: "9.9.9".to_owned(),
            len: body.len(),
            crc32c: crc32c(body),
        };
        [&serde_json::to_vec(&header).unwrap()[..], b"\n", body].concat()
    }
}
