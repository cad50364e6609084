//! Undoes what a case has changed on a unit other than a disk, whatever the verdict of the case.
//!
//! A case registers a change before the command that makes it. When the case has ended, a session with the
//! same ISID undoes the changes: it replaces the session of the case if the target still has that one
//! (RFC 7143 §6.3.5), so PREVENT ALLOW MEDIUM REMOVAL reaches the I_T nexus that prevented the removal.

use std::time::{Duration, Instant};

use crate::verdict::{Outcome, Stop};

use super::changes::Change;
use super::device::Device;
use super::fixture::Fixture;
use super::smc;

/// Undoes the changes of the case that has ended. Returns what the report must say: what the case had left
/// changed, and what could not be undone.
pub(super) fn restore(fixture: &mut Fixture) -> Option<String> {
    let mut notes = Vec::new();
    for (isid, change) in fixture.changes.take() {
        fixture.deadline = Instant::now() + fixture.options.limit;
        match undo(fixture, isid, &change) {
            // What a unit does not have changed nothing.
            Ok(None) | Err(Stop::Skip(_)) => {}
            Ok(Some(note)) => notes.push(note),
            Err(Stop::Fail(why)) => notes.push(format!("{}: {why}", change.not_undone())),
        }
    }
    (!notes.is_empty()).then(|| notes.join("; "))
}

fn undo(fixture: &mut Fixture, isid: [u8; 6], change: &Change) -> Outcome<Option<String>> {
    let mut device = Device::attach_as(fixture, isid)?;
    match change {
        Change::Prevention => {
            let what = "PREVENT ALLOW MEDIUM REMOVAL, allow";
            device.ask(&[0x1e, 0, 0, 0, 0, 0])?.optional(what)?.good(what)?;
        }
        Change::Medium(load) => return load_again(&mut device, *load, fixture.deadline),
        Change::Mode(list) => {
            let len = u8::try_from(list.len()).unwrap_or(u8::MAX);
            device.put(&[0x15, 0x10, 0, 0, len, 0], list)?.good("MODE SELECT(6)")?;
        }
        Change::Attribute(list) => {
            let len = u8::try_from(list.len()).unwrap_or(u8::MAX);
            let cdb = [0x8d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, len, 0, 0];
            device.put(&cdb, list)?.optional("WRITE ATTRIBUTE")?.good("WRITE ATTRIBUTE")?;
        }
        Change::Cartridges(before) => return smc::put_back(device, before),
        Change::Position(0) => drop(device.ask(&[0x01, 0, 0, 0, 0, 0])?.good("REWIND")?),
        Change::Position(object) => {
            let [a, b, c, d] = object.to_be_bytes();
            device.ask(&[0x2b, 0, 0, a, b, c, d, 0, 0, 0])?.optional("LOCATE(10)")?.good("LOCATE(10)")?;
        }
    }
    Ok(None)
}

/// How often a unit that loads its medium is asked whether it is ready.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Loads the medium unless the unit is ready, and waits until it is.
fn load_again(device: &mut Device, load: u8, deadline: Instant) -> Outcome<Option<String>> {
    if device.clear_attentions()?.is_good() {
        return Ok(None);
    }
    // IMMED: a drive may take longer to load than a response may take.
    device.ask(&[0x1b, 1, 0, 0, load, 0])?.good("the load")?;
    loop {
        let done = device.clear_attentions()?;
        if done.is_good() {
            return Ok(Some("the case left the drive without its medium, which was loaded again".to_owned()));
        }
        require!(Instant::now() < deadline, "the unit does not become ready: {}", done.shown());
        std::thread::sleep(POLL_INTERVAL);
    }
}
