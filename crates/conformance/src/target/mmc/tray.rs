//! Events, ejecting and loading, and a drive without a disc.

use crate::suite::{case, writing};
use crate::verdict::Outcome;
use crate::wire::word;

use super::super::Test;
use super::super::changes::Change;
use super::super::device::{Device, asc, byte, half, key};
use super::super::fixture::Fixture;
use super::super::task::Done;
use super::{Drive, profile};

#[rustfmt::skip]
pub(super) const CASES: &[Test] = &[
    case("mmc-events", "MMC-6, GET EVENT STATUS NOTIFICATION", "a poll of media events tells that there is a disc", events),
    case("mmc-events-asynchronous", "MMC-6, GET EVENT STATUS NOTIFICATION", "without POLLED the command is refused", asynchronous),
    case("mmc-events-none", "MMC-6, GET EVENT STATUS NOTIFICATION", "of no class no event is available", no_class),
    case("mmc-mechanism", "MMC-6, MECHANISM STATUS", "a drive with a disc has its tray closed", mechanism),
    case("mmc-prevent", "MMC-6, PREVENT ALLOW MEDIUM REMOVAL", "preventing and allowing are accepted", prevent),
    writing("mmc-stop", "MMC-6, START STOP UNIT", "a stopped disc is started again", stop),
    writing("mmc-eject-prevented", "MMC-6, START STOP UNIT", "a host keeps the disc in the drive", eject_prevented),
    writing("mmc-eject", "MMC-6, START STOP UNIT", "without its disc the drive tells MEDIUM NOT PRESENT", eject),
    writing("mmc-eject-features", "MMC-6, GET CONFIGURATION", "without a disc no profile and no reading feature is current", eject_features),
    writing("mmc-eject-mechanism", "MMC-6, MECHANISM STATUS", "events and mechanism agree that there is no disc", eject_mechanism),
    writing("mmc-eject-events", "MMC-6, GET EVENT STATUS NOTIFICATION", "other hosts are told of removal and of a new disc, once", eject_events),
    writing("mmc-event-kept", "MMC-6, GET EVENT STATUS NOTIFICATION", "an event that does not fit is kept", event_kept),
    writing("mmc-load-attention", "MMC-6, START STOP UNIT", "the next command of other hosts is a unit attention", load_attention),
    writing("mmc-load-polled", "MMC-6, GET EVENT STATUS NOTIFICATION", "unit attentions do not stop polls", load_polled),
];

/// The media event codes.
mod event {
    pub(super) const NO_CHANGE: u8 = 0;
    pub(super) const NEW_MEDIA: u8 = 2;
    pub(super) const REMOVAL: u8 = 3;
}

/// The media class.
const MEDIA: u8 = 4;
/// MEDIA PRESENT and DOOR OR TRAY OPEN of a media event.
const PRESENT: u8 = 2;
const OPEN: u8 = 1;

/// A poll of the classes with these bits.
fn poll(device: &mut Device, classes: u8, allocation: u8) -> Outcome<Vec<u8>> {
    let done = device.get(&[0x4a, 1, 0, 0, classes, 0, 0, 0, allocation, 0], u32::from(allocation))?;
    Ok(done.good("GET EVENT STATUS NOTIFICATION")?.data)
}

/// Polls media events; returns the event code and the media status.
fn media_event(device: &mut Device) -> Outcome<(u8, u8)> {
    let data = poll(device, 1 << MEDIA, 8)?;
    require!(
        data.len() == 8 && half(&data, 0) == 6,
        "of a media event {} bytes come: {data:02x?}",
        data.len()
    );
    require!(byte(&data, 2) & 0x87 == MEDIA, "NEA and the class are {:02x}", byte(&data, 2));
    require!(byte(&data, 3) & 1 << MEDIA != 0, "the media class is not supported: {:02x}", byte(&data, 3));
    Ok((byte(&data, 4) & 0xf, byte(&data, 5)))
}

fn events(fixture: &mut Fixture) -> Outcome {
    let mut drive = Drive::attach(fixture)?;
    let (_, status) = media_event(&mut drive.device)?;
    require!(status & PRESENT != 0, "MEDIA PRESENT is 0, and the unit is ready");
    require!(status & OPEN == 0, "the tray is open, and the unit is ready");
    Ok(())
}

fn asynchronous(fixture: &mut Fixture) -> Outcome {
    let mut drive = Drive::attach(fixture)?;
    let morphing = drive.configuration(2, 2)?;
    let is_asynchronous = morphing.feature(2).is_some_and(|feature| byte(&feature.body, 0) & 1 != 0);
    need!(!is_asynchronous, "the drive has asynchronous notification");
    let done = drive.device.get(&[0x4a, 0, 0, 0, 1 << MEDIA, 0, 0, 0, 8, 0], 8)?;
    let what = "GET EVENT STATUS NOTIFICATION without POLLED";
    done.refused(what, key::ILLEGAL_REQUEST, asc::INVALID_FIELD_IN_CDB)
}

fn no_class(fixture: &mut Fixture) -> Outcome {
    let mut drive = Drive::attach(fixture)?;
    let data = poll(&mut drive.device, 0, 8)?;
    require!(byte(&data, 2) & 0x80 != 0, "NEA is 0: {data:02x?}");
    require!(data.len() == 4 && half(&data, 0) == 2, "expected the header alone, came {data:02x?}");
    Ok(())
}

/// Returns byte 1 of MECHANISM STATUS.
fn mechanism_flags(device: &mut Device) -> Outcome<u8> {
    let done = device.get(&[0xbd, 0, 0, 0, 0, 0, 0, 0, 0, 255, 0, 0], 255)?;
    let data = done.optional("MECHANISM STATUS")?.good("MECHANISM STATUS")?.data;
    let tables = usize::from(half(&data, 6));
    require!(data.len() == 8 + tables, "the slot tables are {tables} bytes long, {} bytes came", data.len());
    Ok(byte(&data, 1))
}

const DOOR_OPEN: u8 = 0x10;

fn mechanism(fixture: &mut Fixture) -> Outcome {
    let mut drive = Drive::attach(fixture)?;
    let flags = mechanism_flags(&mut drive.device)?;
    require!(flags & DOOR_OPEN == 0, "the tray is open, and the unit is ready: {flags:02x}");
    Ok(())
}

fn set_prevent(device: &mut Device, prevent: u8) -> Outcome {
    device.will_change(Change::Prevention);
    let done = device.ask(&[0x1e, 0, 0, 0, prevent, 0])?;
    done.good(&format!("PREVENT ALLOW MEDIUM REMOVAL, {prevent}")).map(drop)
}

fn prevent(fixture: &mut Fixture) -> Outcome {
    let mut drive = Drive::attach(fixture)?;
    set_prevent(&mut drive.device, 1)?;
    set_prevent(&mut drive.device, 0)
}

/// LoEj and Start of START STOP UNIT.
const LOAD: u8 = 3;

/// START STOP UNIT with LoEj and Start in the last byte.
fn start_stop(device: &mut Device, bits: u8) -> Outcome<Done> {
    device.will_change(Change::Medium(LOAD));
    device.ask(&[0x1b, 0, 0, 0, bits, 0])
}

/// Loads the disc and waits until the unit is ready.
fn load(device: &mut Device) -> Outcome {
    start_stop(device, LOAD)?.good("START STOP UNIT, load")?;
    device.clear_attentions()?.good("TEST UNIT READY with a disc").map(drop)
}

fn stop(fixture: &mut Fixture) -> Outcome {
    let mut drive = Drive::attach(fixture)?;
    start_stop(&mut drive.device, 0)?.good("START STOP UNIT, stop")?;
    start_stop(&mut drive.device, 1)?.good("START STOP UNIT, start")?;
    drive.device.clear_attentions()?.good("TEST UNIT READY of a started disc")?;
    drive.read(0, 1)?.good("READ(10) of a started disc").map(drop)
}

fn eject_prevented(fixture: &mut Fixture) -> Outcome {
    let mut drive = Drive::attach(fixture)?;
    set_prevent(&mut drive.device, 1)?;
    let done = start_stop(&mut drive.device, 2)?;
    let allowed = set_prevent(&mut drive.device, 0);
    let sense = done.sense_code();
    let is_prevented = sense.is_some_and(|(key, code)| {
        [key::NOT_READY, key::ILLEGAL_REQUEST].contains(&key) && code == asc::REMOVAL_PREVENTED
    });
    require!(
        is_prevented,
        "START STOP UNIT, eject: expected MEDIUM REMOVAL PREVENTED, came {}",
        done.shown()
    );
    allowed?;
    drive.read(0, 1)?.good("READ(10) after the refusal").map(drop)
}

/// Ejects the disc, judges with `case`, and loads it again whatever the verdict.
fn without_disc(device: &mut Device, case: impl FnOnce(&mut Device) -> Outcome) -> Outcome {
    start_stop(device, 2)?.good("START STOP UNIT, eject")?;
    let outcome = case(device);
    let loaded = load(device);
    outcome.and(loaded)
}

fn eject(fixture: &mut Fixture) -> Outcome {
    let mut drive = Drive::attach(fixture)?;
    without_disc(&mut drive.device, |device| {
        // Whether the removal is told of first is the drive's choice.
        device.clear_attentions()?;
        let needing: [(&str, &[u8], u32); 5] = [
            ("TEST UNIT READY", &[0; 6], 0),
            ("READ CAPACITY(10)", &[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0], 8),
            ("READ(10)", &[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0], 2048),
            ("READ TOC/PMA/ATIP", &[0x43, 0, 0, 0, 0, 0, 0, 0, 255, 0], 255),
            ("READ DISC INFORMATION", &[0x51, 0, 0, 0, 0, 0, 0, 0, 255, 0], 255),
        ];
        for (what, cdb, len) in needing {
            let done = if len == 0 { device.ask(cdb)? } else { device.get(cdb, len)? };
            let is_told = done
                .sense_code()
                .is_some_and(|(key, code)| key == key::NOT_READY && code & 0xff00 == asc::MEDIUM_NOT_PRESENT);
            require!(is_told, "{what}: expected MEDIUM NOT PRESENT, came {}", done.shown());
        }
        let others: [(&str, &[u8], u32); 3] = [
            ("INQUIRY", &[0x12, 0, 0, 0, 36, 0], 36),
            ("GET CONFIGURATION", &[0x46, 0, 0, 0, 0, 0, 0, 0, 8, 0], 8),
            ("MODE SENSE(10)", &[0x5a, 0, 0x3f, 0, 0, 0, 0, 0, 255, 0], 255),
        ];
        for (what, cdb, len) in others {
            device.get(cdb, len)?.good(&format!("{what} without a disc"))?;
        }
        Ok(())
    })?;
    drive.read(0, 1)?.good("READ(10) of the disc that was loaded again").map(drop)
}

fn eject_features(fixture: &mut Fixture) -> Outcome {
    let mut drive = Drive::attach(fixture)?;
    drive.need_rom()?;
    without_disc(&mut drive.device, |device| {
        let done = device.get(&[0x46, 0, 0, 0, 0, 0, 0, 0x10, 0, 0], 0x1000)?;
        let empty = super::configuration(&done.good("GET CONFIGURATION")?.data)?;
        require!(empty.profile == 0, "the current profile is {:04x}", empty.profile);
        for code in [0x0010, 0x001e, 0x001f, 0x0040] {
            require!(!empty.has(code), "feature {code:04x} is current");
        }
        let list = empty.feature(0).map(|list| list.body.clone()).unwrap_or_default();
        let marked = list.as_chunks::<4>().0.iter().find(|[_, _, flags, _]| flags & 1 != 0);
        require!(
            marked.is_none(),
            "the profile list marks {:04x} as current",
            marked.map_or(0, |one| half(one, 0))
        );
        Ok(())
    })?;
    let profile = drive.profile()?;
    require!(
        [profile::CD_ROM, profile::DVD_ROM, profile::BD_ROM].contains(&profile),
        "the profile of the disc that was loaded again is {profile:04x}"
    );
    Ok(())
}

fn eject_mechanism(fixture: &mut Fixture) -> Outcome {
    let mut drive = Drive::attach(fixture)?;
    without_disc(&mut drive.device, |device| {
        let (_, status) = media_event(device)?;
        require!(status & PRESENT == 0, "MEDIA PRESENT is 1 without a disc");
        let flags = mechanism_flags(device)?;
        let (by_events, by_mechanism) = (status & OPEN != 0, flags & DOOR_OPEN != 0);
        require!(
            by_events == by_mechanism,
            "the tray is open: {by_events} by media events, {by_mechanism} by MECHANISM STATUS"
        );
        Ok(())
    })
}

fn eject_events(fixture: &mut Fixture) -> Outcome {
    let mut drive = Drive::attach(fixture)?;
    let mut other = Device::attach(fixture)?;
    media_event(&mut other)?;
    without_disc(&mut drive.device, |_| {
        let (code, status) = media_event(&mut other)?;
        require!(code == event::REMOVAL, "after an eject the event is {code}, not MediaRemoval (3)");
        require!(status & PRESENT == 0, "MEDIA PRESENT is 1 without a disc");
        let (code, _) = media_event(&mut other)?;
        require!(code == event::NO_CHANGE, "the same event comes again: {code}");
        Ok(())
    })?;
    let (code, status) = media_event(&mut other)?;
    require!(code == event::NEW_MEDIA, "after a load the event is {code}, not NewMedia (2)");
    require!(status & PRESENT != 0, "MEDIA PRESENT is 0 with a disc");
    let (code, _) = media_event(&mut other)?;
    require!(code == event::NO_CHANGE, "the same event comes again: {code}");
    Ok(())
}

fn event_kept(fixture: &mut Fixture) -> Outcome {
    let mut drive = Drive::attach(fixture)?;
    let mut other = Device::attach(fixture)?;
    media_event(&mut other)?;
    without_disc(&mut drive.device, |_| {
        let header = poll(&mut other, 1 << MEDIA, 4)?;
        require!(header.len() == 4, "of 4 bytes {} came", header.len());
        let (code, _) = media_event(&mut other)?;
        require!(code == event::REMOVAL, "behind a header alone the event is {code}, not MediaRemoval (3)");
        Ok(())
    })
}

fn load_attention(fixture: &mut Fixture) -> Outcome {
    let mut drive = Drive::attach(fixture)?;
    let mut other = Device::attach(fixture)?;
    without_disc(&mut drive.device, |_| Ok(()))?;
    let what = "TEST UNIT READY of another host after a load";
    other.ask(&[0; 6])?.refused(what, key::UNIT_ATTENTION, asc::MEDIUM_MAY_HAVE_CHANGED)
}

fn load_polled(fixture: &mut Fixture) -> Outcome {
    let mut drive = Drive::attach(fixture)?;
    let mut other = Device::attach(fixture)?;
    without_disc(&mut drive.device, |_| Ok(()))?;
    media_event(&mut other)?;
    let header = other.get(&[0x46, 0, 0, 0, 0, 0, 0, 0, 8, 0], 8)?.good("GET CONFIGURATION")?.data;
    require!(word(&header, 0) >= 4, "the feature header is cut");
    let done = other.ask(&[0; 6])?;
    let is_attention = done.sense_code().is_some_and(|(key, _)| key == key::UNIT_ATTENTION);
    require!(
        is_attention,
        "the polls cleared the unit attention: TEST UNIT READY ends with {}",
        done.shown()
    );
    Ok(())
}
