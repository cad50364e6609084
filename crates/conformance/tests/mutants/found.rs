//! The state of a unit, which a case must leave as it found it, whatever its verdict: the medium, the mode
//! parameters, the position, the cartridges of a changer, and whether the removal of the medium is allowed.

use std::fmt::Write as _;

use initiator::{Cdb, Client, Command, Lun, Session, block_on};

use crate::devices::Kind;
use crate::{served, targets};

/// The most unit attentions in a row.
const ATTENTIONS_MAX: usize = 8;

/// Returns the state of the unit of a lane in words, read without a relay.
///
/// # Errors
/// What the unit refuses.
pub(crate) fn state(lane: usize, kind: Kind) -> Result<String, String> {
    let ask: fn(&Session, &mut String) -> Result<(), String> = match kind {
        Kind::Disk | Kind::DiskWithChap => return Ok(String::new()),
        Kind::Tape | Kind::ProtectedTape | Kind::WriteOnceTape => ask_tape,
        Kind::Changer => ask_changer,
        Kind::Cd | Kind::Dvd => ask_disc,
    };
    let url = format!("iscsi://{}/{}/0", served::address(), served::name(lane, kind));
    let client = Client::new().map_err(|error| error.to_string())?;
    let session = block_on(client.log_in(&url)).map_err(|error| error.to_string())?;
    let mut state = String::new();
    let asked = ask(&session, &mut state);
    let _ = session.log_out().wait();
    asked.map(|()| state)
}

fn ask_tape(session: &Session, state: &mut String) -> Result<(), String> {
    note(session, state, "ready", &[0], 0)?;
    note(session, state, "position", &[0x34], 20)?;
    note(session, state, "mode", &[0x1a, 0, 0x3f, 0, 255], 255)?;
    note(session, state, "attribute", &[0x8c, 1, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 64], 64)?;
    eject_and_load(session, 1)
}

fn ask_changer(session: &Session, state: &mut String) -> Result<(), String> {
    let cdb = [0xb8, 0x10, 0, 0, 0xff, 0xff, 0, 0, 0x40, 0];
    let mut data = run(session, "elements", &cdb, 0x4000)?;
    // Where a cartridge came from is no state that can be restored.
    targets::on_element_descriptors(&mut data, |element| element[9..12].fill(0));
    // Writing to a string does not fail.
    let _ = writeln!(state, "elements: {data:02x?}");
    Ok(())
}

fn ask_disc(session: &Session, state: &mut String) -> Result<(), String> {
    note(session, state, "ready", &[0], 0)?;
    note(session, state, "sectors", &[0x25], 8)?;
    eject_and_load(session, 3)
}

/// Removes the medium, which fails if an I_T nexus prevents it, and loads it again.
fn eject_and_load(session: &Session, load: u8) -> Result<(), String> {
    run(session, "eject", &[0x1b, 0, 0, 0, load & 2], 0)?;
    run(session, "load", &[0x1b, 0, 0, 0, load], 0)?;
    run(session, "ready again", &[0], 0).map(drop)
}

fn note(session: &Session, state: &mut String, what: &str, cdb: &[u8], len: u32) -> Result<(), String> {
    let data = run(session, what, cdb, len)?;
    // Writing to a string does not fail.
    let _ = writeln!(state, "{what}: {data:02x?}");
    Ok(())
}

/// Executes a command, and repeats it after unit attentions.
fn run(session: &Session, what: &str, cdb: &[u8], len: u32) -> Result<Vec<u8>, String> {
    let mut whole = [0; 16];
    whole[..cdb.len()].copy_from_slice(cdb);
    let mut told = String::new();
    for _ in 0..ATTENTIONS_MAX {
        let command = Command::new(Lun(0), Cdb::from_16(whole));
        let command = if len > 0 { command.reading(len) } else { command };
        match session.run(command).wait() {
            Ok(reply) => return Ok(reply.bytes().to_vec()),
            Err(error) => told = format!("{what}: {error}"),
        }
    }
    Err(told)
}
