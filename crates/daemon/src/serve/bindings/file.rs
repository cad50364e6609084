//! The file `bindings` in the state directory: text, one I_T nexus a line.
//!
//! ```text
//! targe bindings 3
//! iqn.2001-04.com.example:a 4500002869716e2e iscsi;1,2;-;3c59dc04;b6d767d2 0=3ba6cb8b7e9c9562/512
//! iqn.2001-04.com.example:b 4500002869716e2e group:Backup%20LAN;33012!1;1790000000;37693cfc;8e296a06 1=3f40b72c8b520c6c/4096/encrypted
//! iqn.2001-04.com.example:c 4500002869716e2e iscsi;-*;-;1679091c;45c48cce
//! end 3
//! ```
//!
//! A line has the target, the initiator port as a hexadecimal TransportID, a word with five parts, and for
//! each LUN its disk: the world-wide name, the block length, and whether it is encrypted. The five parts are
//! `iscsi` or the HyperSCSI group; the relative identifiers of the target ports (`-` if they are not known),
//! in a former record with `!` and those that the record does not concern, with `~` and those to which
//! portals have moved, and with `+` after those through which the initiator has continued a session with it,
//! and with `*` if the LUNs are not known; when the initiator port lost its last session, in seconds since
//! 1970 (`-` if it has one, or if that is not known); a checksum of what says whose the record is; and a
//! checksum of everything else in the line. The last line has the number of lines, so that a file that lost
//! its end is noticed. In names, every byte that could be taken for a separator is written as `%` and two
//! hexadecimal digits.
//!
//! A record that cannot be read and does not say whose it is stays in the file as `unreadable TEXT`.
//!
//! Version 2 has no time. Version 1 has neither checksums of lines nor target ports. It writes the group as
//! it is, also with spaces, `-` for iSCSI, and one checksum of all lines as its last line.

use std::fmt::Write;

use sha2::{Digest, Sha256};

use super::SavedNexus;
use crate::config::parse_naa;
use crate::serve::disk_ids::DiskName;
use crate::serve::target_ports;

const HEAD: &str = "targe bindings 3";
const HEAD_2: &str = "targe bindings 2";
const HEAD_1: &str = "targe bindings 1";

/// What a file contains.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Contents {
    /// The records that say whose they are. Those whose LUNs cannot be read are sealed.
    pub(super) records: Vec<SavedNexus>,
    /// The other ones, and a sentence for records that are missing.
    pub(super) unreadable: Vec<String>,
}

/// Formats bindings as the file stores them.
pub(super) fn encode(all: &[SavedNexus], unreadable: &[String]) -> String {
    let mut text = format!("{HEAD}\n");
    for nexus in all {
        let (owner, luns) = (owner_words(nexus), lun_words(nexus));
        let lost_at = nexus.lost_at.map_or_else(|| "-".to_owned(), |at| at.to_string());
        let state = format!("{};{lost_at}", ports_word(nexus));
        let sums = (sum(&owner), sum(&format!("{owner};{state}{luns}")));
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{owner};{state};{};{}{luns}", sums.0, sums.1);
    }
    for record in unreadable {
        let _ = writeln!(text, "unreadable {}", escaped(record));
    }
    let _ = writeln!(text, "end {}", all.len() + unreadable.len());
    text
}

fn owner_words(nexus: &SavedNexus) -> String {
    let group = match &nexus.group {
        Some(group) => format!("group:{}", escaped(group)),
        None => "iscsi".to_owned(),
    };
    format!("{} {} {group}", escaped(&nexus.target), hex(&nexus.initiator_port))
}

fn ports_word(nexus: &SavedNexus) -> String {
    let list = |ports: &[u16]| ports.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let claimed =
        |port: &u16| format!("{port}{}", if nexus.rejoined_ports.contains(port) { "+" } else { "" });
    let ports = match &*nexus.target_ports {
        [] => "-".to_owned(),
        ports => ports.iter().map(claimed).collect::<Vec<_>>().join(","),
    };
    let released =
        nexus.released_ports.as_ref().map_or_else(String::new, |ports| format!("!{}", list(ports)));
    let moved =
        if nexus.moved_ports.is_empty() { String::new() } else { format!("~{}", list(&nexus.moved_ports)) };
    let sealed = if nexus.is_sealed { "*" } else { "" };
    format!("{ports}{released}{moved}{sealed}")
}

/// Returns a word for each LUN, with a space before each.
fn lun_words(nexus: &SavedNexus) -> String {
    let mut text = String::new();
    for (number, DiskName { naa, block_bytes, encrypted }) in &nexus.luns {
        let _ = write!(text, " {number}={naa}/{block_bytes}");
        text += if *encrypted { "/encrypted" } else { "" };
    }
    text
}

/// Reads the output of [`encode`], or a file of version 1 or 2.
pub(super) fn decode(text: &str) -> Contents {
    let mut contents = Contents::default();
    let mut lines = text.split_terminator('\n');
    match lines.next() {
        Some(HEAD_1) => decode_version_1(text, &mut contents),
        Some(head @ (HEAD | HEAD_2)) => {
            let mut rest: Vec<&str> = lines.collect();
            let last = rest.pop();
            if head == HEAD_2 && rest.iter().any(|line| has_time(line)) {
                contents.unreadable.push(format!("{head} (the first line is wrong)"));
            }
            for line in &rest {
                contents.read_line(line);
            }
            let is_whole = text.ends_with('\n') && last == Some(&*format!("end {}", rest.len()));
            if !is_whole {
                contents
                    .unreadable
                    .push(format!("{} (the end is missing or wrong)", last.unwrap_or_default()));
            }
        }
        first => {
            contents.unreadable.push(format!("{} (the first line is wrong)", first.unwrap_or_default()));
            for line in lines {
                contents.read_line(line);
            }
        }
    }
    contents
}

impl Contents {
    fn read_line(&mut self, line: &str) {
        match decode_line(line) {
            Some(record) => self.records.push(record),
            None => {
                let kept = line.strip_prefix("unreadable ").and_then(unescaped);
                self.unreadable.push(kept.unwrap_or_else(|| line.to_owned()));
            }
        }
    }
}

/// Returns the record of a line of version 2 or 3, sealed if it only says whose it is.
fn decode_line(line: &str) -> Option<SavedNexus> {
    let mut words = line.splitn(4, ' ');
    let (target, port, via) = (words.next()?, words.next()?, words.next()?);
    let luns = words.next().map_or_else(String::new, |luns| format!(" {luns}"));
    // No part contains a separator.
    let (group, state, owner_sum, whole_sum) = match *via.split(';').collect::<Vec<_>>() {
        [group, ports, owner_sum, whole_sum] => (group, ports.to_owned(), owner_sum, whole_sum),
        [group, ports, lost_at, owner_sum, whole_sum] => {
            (group, format!("{ports};{lost_at}"), owner_sum, whole_sum)
        }
        _ => return None,
    };
    let owner = format!("{target} {port} {group}");
    if sum(&owner) != owner_sum {
        return None;
    }
    let group = match group.strip_prefix("group:") {
        Some(group) => Some(unescaped(group)?.into()),
        None if group == "iscsi" => None,
        None => return None,
    };
    let sealed = SavedNexus {
        target: unescaped(target)?,
        initiator_port: bytes_of(port)?.into(),
        group,
        target_ports: Vec::new(),
        released_ports: None,
        rejoined_ports: Vec::new(),
        moved_ports: Vec::new(),
        is_sealed: true,
        luns: Vec::new(),
        lost_at: None,
    };
    let is_whole = sum(&format!("{owner};{state}{luns}")) == whole_sum;
    let read = decode_state(&state, &sealed).zip(decode_luns(&luns)).filter(|_| is_whole);
    Some(read.map_or(sealed, |(state, luns)| SavedNexus { luns, ..state }))
}

/// Returns whether a line has a time, which version 2 does not have.
fn has_time(line: &str) -> bool {
    line.split(' ').nth(2).is_some_and(|via| via.split(';').count() == 5)
}

/// Reads the target ports and, since version 3, the time of the loss into a record.
fn decode_state(text: &str, sealed: &SavedNexus) -> Option<SavedNexus> {
    let (ports, lost_at) = text.split_once(';').unwrap_or((text, "-"));
    let lost_at = if lost_at == "-" { None } else { Some(lost_at.parse().ok()?) };
    let plain = ports.strip_suffix('*');
    let is_sealed = plain.is_some();
    let (ports, moved) = plain.unwrap_or(ports).split_once('~').unwrap_or((plain.unwrap_or(ports), ""));
    let moved_ports = decode_numbers(moved)?;
    let (ports, released) = match ports.split_once('!') {
        Some((ports, released)) => (ports, Some(decode_numbers(released)?)),
        None => (ports, None),
    };
    let (mut target_ports, mut rejoined_ports) = (Vec::new(), Vec::new());
    for word in ports.split(',').filter(|_| ports != "-") {
        let port = word.strip_suffix('+').unwrap_or(word).parse().ok()?;
        target_ports.push(port);
        rejoined_ports.extend(word.ends_with('+').then_some(port));
    }
    Some(SavedNexus {
        target_ports,
        released_ports: released,
        rejoined_ports,
        moved_ports,
        is_sealed,
        lost_at,
        ..sealed.clone()
    })
}

fn decode_numbers(list: &str) -> Option<Vec<u16>> {
    if list.is_empty() {
        return Some(Vec::new());
    }
    list.split(',').map(|port| port.parse().ok()).collect()
}

fn decode_luns(words: &str) -> Option<Vec<(u16, DiskName)>> {
    words.split(' ').skip(1).map(decode_lun).collect()
}

fn decode_lun(word: &str) -> Option<(u16, DiskName)> {
    let (number, disk) = word.split_once('=')?;
    let mut parts = disk.split('/');
    let (naa, block) = (parse_naa(parts.next()?).ok()?, parts.next()?);
    let encrypted = parts.next() == Some("encrypted");
    Some((number.parse().ok()?, DiskName { naa, block_bytes: block.parse().ok()?, encrypted }))
}

fn decode_version_1(text: &str, contents: &mut Contents) {
    let (body, last) = text.split_at(text.rfind("sum ").unwrap_or(text.len()));
    let is_whole = target_ports::checksum(body) == last;
    for line in body.split_terminator('\n').skip(1) {
        match decode_line_1(line) {
            Some(record) if is_whole => contents.records.push(record),
            // Nothing shows which lines are damaged.
            Some(record) => {
                contents.records.push(SavedNexus { is_sealed: true, luns: Vec::new(), ..record });
            }
            None => contents.unreadable.push(line.to_owned()),
        }
    }
    if !is_whole {
        contents.unreadable.push(format!("{last:?} (the checksum is wrong)"));
    }
}

/// Reads a line of version 1. The group is what stands between the port and the LUNs: no LUN has a space, and
/// a group is unlikely to end like a LUN.
fn decode_line_1(line: &str) -> Option<SavedNexus> {
    let (target, rest) = line.split_once(' ')?;
    let (port, rest) = rest.split_once(' ')?;
    let mut words: Vec<&str> = rest.split(' ').collect();
    let mut luns = Vec::new();
    // The first word belongs to the group, however it looks.
    while words.len() > 1
        && let Some(lun) = words.last().and_then(|word| decode_lun(word))
    {
        luns.push(lun);
        words.pop();
    }
    luns.reverse();
    let group = words.join(" ");
    Some(SavedNexus {
        target: target.to_owned(),
        initiator_port: bytes_of(port)?.into(),
        group: Some(group).filter(|group| group != "-").map(Into::into),
        target_ports: Vec::new(),
        released_ports: None,
        rejoined_ports: Vec::new(),
        moved_ports: Vec::new(),
        is_sealed: false,
        luns,
        lost_at: None,
    })
}

/// Returns bytes in hexadecimal digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the bytes of a TransportID that is written in hexadecimal digits.
fn bytes_of(port: &str) -> Option<Vec<u8>> {
    let pairs = (0..port.len()).step_by(2);
    pairs.map(|at| u8::from_str_radix(port.get(at..at + 2)?, 16).ok()).collect()
}

/// Returns a text as one word: bytes that could separate words or lines are written as `%` and two
/// hexadecimal digits.
fn escaped(text: &str) -> String {
    let mut word = String::new();
    for byte in text.bytes() {
        match byte {
            b'!'..=b'~' if !matches!(byte, b'%' | b';') => word.push(char::from(byte)),
            _ => {
                let _ = write!(word, "%{byte:02x}");
            }
        }
    }
    word
}

/// Returns the text of a word of [`escaped`].
fn unescaped(word: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = word;
    while let Some((plain, after)) = rest.split_once('%') {
        bytes.extend_from_slice(plain.as_bytes());
        bytes.push(u8::from_str_radix(after.get(..2)?, 16).ok()?);
        rest = after.get(2..)?;
    }
    bytes.extend_from_slice(rest.as_bytes());
    String::from_utf8(bytes).ok()
}

fn sum(text: &str) -> String {
    let digest: [u8; 32] = Sha256::digest(text.as_bytes()).into();
    hex(digest.get(..4).unwrap_or_default())
}

#[cfg(test)]
mod tests;
