//! What is on a disc, and reading it.

use crate::suite::{case, writing};
use crate::verdict::Outcome;
use crate::wire::word;

use super::super::Test;
use super::super::device::{asc, byte, half, hex, key};
use super::super::fixture::Fixture;
use super::super::task::Done;
use super::{Drive, SECTOR, profile};

#[rustfmt::skip]
pub(super) const CASES: &[Test] = &[
    case("mmc-capacity", "MMC-6, READ CAPACITY", "sectors have 2048 bytes", capacity),
    case("mmc-read", "MMC-6, READ(10), READ(12)", "both forms return the same sectors", read),
    case("mmc-read-last", "MMC-6, READ(10)", "the last sector can be read, the next one cannot", read_last),
    case("mmc-read-beyond", "MMC-6, READ(12)", "a transfer beyond the end is refused", read_beyond),
    case("mmc-read-nothing", "MMC-6, READ(10)", "a transfer length of 0 reads nothing", read_nothing),
    case("mmc-toc", "MMC-6, READ TOC/PMA/ATIP", "format 0 lists tracks and the lead-out, which is the capacity", toc),
    case("mmc-toc-length", "MMC-6, READ TOC/PMA/ATIP", "TOC DATA LENGTH is that of the data", toc_length),
    case("mmc-toc-track", "MMC-6, READ TOC/PMA/ATIP", "format 0 begins at the starting track", toc_track),
    case("mmc-toc-msf", "MMC-6, READ TOC/PMA/ATIP", "TIME returns the same addresses in minutes, seconds and frames", toc_msf),
    case("mmc-toc-session", "MMC-6, READ TOC/PMA/ATIP", "format 1 tells of the last session", toc_session),
    case("mmc-toc-full", "MMC-6, READ TOC/PMA/ATIP", "format 2 of a CD has points A0h, A1h and A2h", toc_full),
    case("mmc-toc-allocation", "MMC-6, READ TOC/PMA/ATIP", "a short allocation length cuts, and counts all", toc_allocation),
    case("mmc-toc-format", "MMC-6, READ TOC/PMA/ATIP", "a reserved format is refused", toc_format),
    case("mmc-disc-information", "MMC-6, READ DISC INFORMATION", "a ROM is complete, as is its last session", disc_information),
    case("mmc-track-information", "MMC-6, READ TRACK INFORMATION", "track, session and address lead to the same track", track),
    case("mmc-track-none", "MMC-6, READ TRACK INFORMATION", "a track that does not exist is refused", track_none),
    case("mmc-information-length", "MMC-6, READ DISC INFORMATION", "this and the like return what they have and no more", lengths),
    case("mmc-structure", "MMC-6, READ DISC STRUCTURE", "the physical format of a DVD has its number of sectors", structure),
    case("mmc-read-cd", "MMC-6, READ CD", "user data is that of READ(10)", read_cd),
    case("mmc-read-cd-sector", "MMC-6, READ CD", "a whole sector has sync, its address, and the mode", read_cd_sector),
    case("mmc-read-cd-type", "MMC-6, READ CD", "another sector type than that of the track is refused", read_cd_type),
    case("mmc-read-cd-nothing", "MMC-6, READ CD", "without a field nothing is returned", read_cd_nothing),
    case("mmc-performance", "MMC-6, GET PERFORMANCE", "the speeds cover the whole disc", performance),
    case("mmc-speed", "MMC-6, SET CD SPEED", "the highest speed is accepted", speed),
    writing("mmc-write", "MMC-6, WRITE(10)", "a ROM is not written", write),
];

fn capacity(fixture: &mut Fixture) -> Outcome {
    let sectors = Drive::attach(fixture)?.sectors()?;
    require!(sectors > 1, "the disc has {sectors} sectors");
    Ok(())
}

/// A sector that exists on any disc that is longer, and is no block of zeros on one with a file system.
const FIRST: u32 = 16;

/// Returns the address of a sector whose data is worth comparing.
fn some_sector(drive: &mut Drive) -> Outcome<u32> {
    Ok(FIRST.min(drive.sectors()?.saturating_sub(2)))
}

fn twelve(lba: u32, count: u32) -> [u8; 12] {
    let ([a, b, c, d], [e, f, g, h]) = (lba.to_be_bytes(), count.to_be_bytes());
    [0xa8, 0, a, b, c, d, e, f, g, h, 0, 0]
}

fn read(fixture: &mut Fixture) -> Outcome {
    let mut drive = Drive::attach(fixture)?;
    let lba = some_sector(&mut drive)?;
    let ten = drive.read(lba, 2)?.good("READ(10)")?.data;
    let twelve = drive.device.get(&twelve(lba, 2), 2 * SECTOR)?.good("READ(12)")?.data;
    require!(ten.len() == 4096, "READ(10) of 2 sectors returns {} bytes", ten.len());
    require!(ten == twelve, "READ(12) returns other data than READ(10)");
    Ok(())
}

fn is_out_of_range(what: &str, done: &Done) -> Outcome {
    done.refused(what, key::ILLEGAL_REQUEST, asc::LBA_OUT_OF_RANGE)?;
    require!(done.data.is_empty(), "{what}: {} bytes come", done.data.len());
    Ok(())
}

fn read_last(fixture: &mut Fixture) -> Outcome {
    let mut drive = Drive::attach(fixture)?;
    let sectors = drive.sectors()?;
    drive.read(sectors - 1, 1)?.good("READ(10) of the last sector")?;
    is_out_of_range("READ(10) behind the last sector", &drive.read(sectors, 1)?)?;
    let done = drive.read(sectors - 1, 2)?;
    done.refused("READ(10) of the last sector and the next", key::ILLEGAL_REQUEST, asc::LBA_OUT_OF_RANGE)
}

fn read_beyond(fixture: &mut Fixture) -> Outcome {
    let mut drive = Drive::attach(fixture)?;
    let sectors = drive.sectors()?;
    let done = drive.device.get(&twelve(sectors, 1), SECTOR)?;
    is_out_of_range("READ(12) behind the last sector", &done)?;
    let done = drive.device.get(&twelve(u32::MAX, 2), 2 * SECTOR)?;
    is_out_of_range("READ(12) of sectors FFFFFFFFh and 100000000h", &done)
}

fn read_nothing(fixture: &mut Fixture) -> Outcome {
    let mut drive = Drive::attach(fixture)?;
    drive.device.ask(&[0x28, 0, 0, 0, 0, 0, 0, 0, 0, 0])?.good("READ(10) of 0 sectors").map(drop)
}

/// READ TOC/PMA/ATIP; returns what follows TOC DATA LENGTH, which a case of its own judges.
fn toc_data(drive: &mut Drive, in_msf: bool, format: u8, track: u8) -> Outcome<Vec<u8>> {
    let cdb = [0x43, if in_msf { 2 } else { 0 }, format, 0, 0, 0, track, 0x10, 0, 0];
    let data = drive.device.get(&cdb, 0x1000)?.good(&format!("READ TOC/PMA/ATIP, format {format}"))?.data;
    Ok(data.get(2..).unwrap_or_default().to_vec())
}

/// An entry of format 0: track number, ADR and CONTROL, and address.
type TocEntry = (u8, u8, u32);

/// Returns the first and the last track, and the entries of format 0.
fn toc_entries(drive: &mut Drive, in_msf: bool, track: u8) -> Outcome<(u8, u8, Vec<TocEntry>)> {
    let data = toc_data(drive, in_msf, 0, track)?;
    // A case of its own judges that the last one is whole.
    let entries = data.get(2..).unwrap_or_default().chunks(8);
    let entries = entries.map(|entry| (byte(entry, 2), byte(entry, 1), word(entry, 4))).collect();
    Ok((byte(&data, 0), byte(&data, 1), entries))
}

const LEAD_OUT: u8 = 0xaa;

fn toc(fixture: &mut Fixture) -> Outcome {
    let mut drive = Drive::attach(fixture)?;
    let sectors = drive.sectors()?;
    let (first, last, entries) = toc_entries(&mut drive, false, 0)?;
    let numbers: Vec<u8> = entries.iter().map(|entry| entry.0).collect();
    let wanted: Vec<u8> = (first..=last).chain([LEAD_OUT]).collect();
    require!(first >= 1 && numbers == wanted, "tracks {first} to {last}, and the entries {numbers:?}");
    require!(entries.is_sorted_by_key(|entry| entry.2), "the addresses do not ascend: {entries:02x?}");
    let end = entries.last().map_or(0, |entry| entry.2);
    require!(end == sectors, "the lead-out is at {end}, the disc has {sectors} sectors");
    let control = entries.first().map_or(0, |entry| entry.1);
    require!(control & 0x04 != 0, "CONTROL of the first track tells of audio: {control:02x}");
    Ok(())
}

fn toc_length(fixture: &mut Fixture) -> Outcome {
    let mut drive = Drive::attach(fixture)?;
    for format in [0, 1] {
        let cdb = [0x43, 0, format, 0, 0, 0, 0, 0x10, 0, 0];
        let data = drive.device.get(&cdb, 0x1000)?.good("READ TOC/PMA/ATIP")?.data;
        let (told, came) = (usize::from(half(&data, 0)), data.len().saturating_sub(2));
        require!(told == came, "format {format} tells of {told} bytes behind the length, {came} came");
    }
    Ok(())
}

fn toc_track(fixture: &mut Fixture) -> Outcome {
    let mut drive = Drive::attach(fixture)?;
    let (_, last, _) = toc_entries(&mut drive, false, 0)?;
    let (_, _, entries) = toc_entries(&mut drive, false, LEAD_OUT)?;
    let numbers: Vec<u8> = entries.iter().map(|entry| entry.0).collect();
    require!(numbers == [LEAD_OUT], "from AAh on, the entries {numbers:?} come");
    let done = drive.device.get(&[0x43, 0, 0, 0, 0, 0, last + 1, 0x10, 0, 0], 0x1000)?;
    let what = format!("READ TOC/PMA/ATIP from track {} on", last + 1);
    done.refused(&what, key::ILLEGAL_REQUEST, asc::INVALID_FIELD_IN_CDB)
}

fn toc_msf(fixture: &mut Fixture) -> Outcome {
    let mut drive = Drive::attach(fixture)?;
    let (_, _, blocks) = toc_entries(&mut drive, false, 0)?;
    let (_, _, times) = toc_entries(&mut drive, true, 0)?;
    require!(blocks.len() == times.len(), "{} entries in blocks, {} in time", blocks.len(), times.len());
    for ((track, _, lba), (_, _, time)) in blocks.into_iter().zip(times) {
        let [_, minutes, seconds, frames] = time.to_be_bytes();
        require!(seconds < 60 && frames < 75, "track {track} is at {minutes}:{seconds}:{frames}");
        let came = (u32::from(minutes) * 60 + u32::from(seconds)) * 75 + u32::from(frames);
        // 256 minutes and more do not fit.
        if lba + 150 < 256 * 60 * 75 {
            require!(
                came == lba + 150,
                "track {track} is at block {lba}, and at frame {came} with its pregap"
            );
        }
    }
    Ok(())
}

fn toc_session(fixture: &mut Fixture) -> Outcome {
    let mut drive = Drive::attach(fixture)?;
    let data = toc_data(&mut drive, false, 1, 0)?;
    require!(data.len() == 10, "format 1 returns {} bytes behind its length, not 10", data.len());
    let (first, last) = (byte(&data, 0), byte(&data, 1));
    require!(first == 1 && last >= first, "the sessions are {first} to {last}");
    let (_, _, entries) = toc_entries(&mut drive, false, 0)?;
    let (track, address) = (byte(&data, 4), word(&data, 6));
    let is_there = entries.iter().any(|entry| (entry.0, entry.2) == (track, address));
    require!(
        is_there,
        "the last session begins with track {track} at {address}, format 0 has {entries:02x?}"
    );
    Ok(())
}

fn toc_full(fixture: &mut Fixture) -> Outcome {
    let mut drive = Drive::attach(fixture)?;
    need!(drive.profile()? == profile::CD_ROM, "the disc is no CD-ROM");
    let data = toc_data(&mut drive, true, 2, 0)?;
    let (entries, rest) = data.get(2..).unwrap_or_default().as_chunks::<11>();
    require!(rest.is_empty(), "{} bytes are no number of entries of 11 bytes", data.len().saturating_sub(2));
    let points: Vec<u8> = entries.iter().map(|entry| byte(entry, 3)).collect();
    for point in [0xa0, 0xa1, 0xa2, 1] {
        require!(points.contains(&point), "point {point:02x} is missing: {}", hex(&points));
    }
    Ok(())
}

fn toc_allocation(fixture: &mut Fixture) -> Outcome {
    let mut drive = Drive::attach(fixture)?;
    let whole =
        drive.device.get(&[0x43, 0, 0, 0, 0, 0, 0, 0x10, 0, 0], 0x1000)?.good("READ TOC/PMA/ATIP")?.data;
    let cut = drive.device.get(&[0x43, 0, 0, 0, 0, 0, 0, 0, 4, 0], 0x1000)?;
    let cut = cut.good("READ TOC/PMA/ATIP of 4 bytes")?.data;
    require!(
        Some(cut.as_slice()) == whole.get(..4),
        "of 4 bytes came {}, the whole begins with {}",
        hex(&cut),
        hex(whole.get(..4).unwrap_or_default())
    );
    Ok(())
}

fn toc_format(fixture: &mut Fixture) -> Outcome {
    let mut drive = Drive::attach(fixture)?;
    let done = drive.device.get(&[0x43, 0, 0x0f, 0, 0, 0, 0, 0x10, 0, 0], 0x1000)?;
    done.refused("READ TOC/PMA/ATIP, format Fh", key::ILLEGAL_REQUEST, asc::INVALID_FIELD_IN_CDB)
}

fn disc_information(fixture: &mut Fixture) -> Outcome {
    let mut drive = Drive::attach(fixture)?;
    drive.need_rom()?;
    let done = drive.device.get(&[0x51, 0, 0, 0, 0, 0, 0, 0x10, 0, 0], 0x1000)?;
    let data = done.good("READ DISC INFORMATION")?.data;
    let len = usize::from(half(&data, 0)) + 2;
    require!(len <= data.len() && len >= 34, "the length tells of {len} bytes, {} came", data.len());
    let flags = byte(&data, 2);
    require!(flags & 3 == 2, "DISC STATUS is {}, not complete (2)", flags & 3);
    require!(flags >> 2 & 3 == 3, "STATE OF LAST SESSION is {}, not complete (3)", flags >> 2 & 3);
    require!(flags & 0x10 == 0, "a ROM is erasable");
    let (first, sessions) = (byte(&data, 3), u16::from_be_bytes([byte(&data, 9), byte(&data, 4)]));
    require!(first == 1 && sessions >= 1, "the first track is {first}, in {sessions} sessions");
    Ok(())
}

/// READ TRACK INFORMATION by this kind of number.
fn track_information(drive: &mut Drive, kind: u8, number: u32) -> Outcome<Done> {
    let [a, b, c, d] = number.to_be_bytes();
    drive.device.get(&[0x52, kind, a, b, c, d, 0, 0, 255, 0], 255)
}

fn track(fixture: &mut Fixture) -> Outcome {
    let mut drive = Drive::attach(fixture)?;
    let sectors = drive.sectors()?;
    let (_, last, entries) = toc_entries(&mut drive, false, 0)?;
    need!(last == 1, "the disc has {last} tracks");
    let by_track = track_information(&mut drive, 1, 1)?.good("READ TRACK INFORMATION of track 1")?.data;
    let len = usize::from(half(&by_track, 0)) + 2;
    require!(len <= by_track.len() && len >= 28, "the length tells of {len} bytes, {} came", by_track.len());
    let (number, session) = (byte(&by_track, 2), byte(&by_track, 3));
    require!((number, session) == (1, 1), "it is track {number} of session {session}");
    let (start, size) = (word(&by_track, 8), word(&by_track, 24));
    let begins = entries.first().map_or(0, |entry| entry.2);
    require!(start == begins, "the track begins at {start}, in the TOC at {begins}");
    require!(start + size == sectors, "the track has {size} sectors from {start} on, the disc has {sectors}");
    for (kind, number, what) in [(0, 0, "block 0"), (2, 1, "session 1")] {
        let done = track_information(&mut drive, kind, number)?;
        let data = done.good(&format!("READ TRACK INFORMATION of {what}"))?.data;
        require!(data == by_track, "of {what}: {}, of track 1: {}", hex(&data), hex(&by_track));
    }
    Ok(())
}

fn track_none(fixture: &mut Fixture) -> Outcome {
    let mut drive = Drive::attach(fixture)?;
    drive.need_rom()?;
    let (_, last, _) = toc_entries(&mut drive, false, 0)?;
    let done = track_information(&mut drive, 1, u32::from(last) + 1)?;
    let what = format!("READ TRACK INFORMATION of track {}", last + 1);
    done.refused(&what, key::ILLEGAL_REQUEST, asc::INVALID_FIELD_IN_CDB)
}

fn lengths(fixture: &mut Fixture) -> Outcome {
    let mut drive = Drive::attach(fixture)?;
    let commands: [(&str, &[u8]); 2] = [
        ("READ DISC INFORMATION", &[0x51, 0, 0, 0, 0, 0, 0, 0x10, 0, 0]),
        ("READ TRACK INFORMATION", &[0x52, 1, 0, 0, 0, 1, 0, 0x10, 0, 0]),
    ];
    for (what, cdb) in commands {
        let data = drive.device.get(cdb, 0x1000)?.good(what)?.data;
        let told = usize::from(half(&data, 0)) + 2;
        require!(told == data.len(), "{what} tells of {told} bytes, {} came", data.len());
    }
    Ok(())
}

fn structure(fixture: &mut Fixture) -> Outcome {
    let mut drive = Drive::attach(fixture)?;
    need!(drive.profile()? == profile::DVD_ROM, "the disc is no DVD-ROM");
    let sectors = drive.sectors()?;
    let done = drive.device.get(&[0xad, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0], 0x1000)?;
    let data = done.good("READ DISC STRUCTURE, format 00h")?.data;
    require!(usize::from(half(&data, 0)) + 2 >= 20, "the length is {}", half(&data, 0));
    require!(byte(&data, 4) >> 4 == 0, "the book type is {}, not DVD-ROM (0)", byte(&data, 4) >> 4);
    need!(byte(&data, 6) >> 5 & 3 == 0, "the disc has two layers");
    let (first, last) = (word(&data, 8), word(&data, 12));
    require!(
        last.checked_sub(first).and_then(|len| len.checked_add(1)) == Some(sectors),
        "the data area is {first:06x} to {last:06x}, the disc has {sectors} sectors"
    );
    Ok(())
}

/// READ CD of one sector.
fn read_cd_of(drive: &mut Drive, kind: u8, lba: u32, fields: u8) -> Outcome<Done> {
    let [a, b, c, d] = lba.to_be_bytes();
    drive.device.get(&[0xbe, kind << 2, a, b, c, d, 0, 0, 1, fields, 0, 0], 2352)
}

/// Logs in to a drive that holds a CD.
fn with_cd(fixture: &mut Fixture) -> Outcome<Drive> {
    let mut drive = Drive::attach(fixture)?;
    need!(drive.profile()? == profile::CD_ROM, "the disc is no CD-ROM");
    Ok(drive)
}

const USER_DATA: u8 = 0x10;
const WHOLE_SECTOR: u8 = 0xf8;

fn read_cd(fixture: &mut Fixture) -> Outcome {
    let mut drive = with_cd(fixture)?;
    let lba = some_sector(&mut drive)?;
    let ten = drive.read(lba, 1)?.good("READ(10)")?.data;
    let cd = read_cd_of(&mut drive, 0, lba, USER_DATA)?.good("READ CD of user data")?.data;
    require!(cd == ten, "READ CD returns other data than READ(10), {} bytes", cd.len());
    Ok(())
}

fn read_cd_sector(fixture: &mut Fixture) -> Outcome {
    const SYNC: [u8; 12] = [0, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 0];
    let mut drive = with_cd(fixture)?;
    let lba = some_sector(&mut drive)?;
    let ten = drive.read(lba, 1)?.good("READ(10)")?.data;
    let sector = read_cd_of(&mut drive, 0, lba, WHOLE_SECTOR)?.good("READ CD of a whole sector")?.data;
    require!(sector.len() == 2352, "a whole sector has {} bytes", sector.len());
    require!(sector.starts_with(&SYNC), "it begins with {}", hex(sector.get(..12).unwrap_or_default()));
    let frames = lba + 150;
    let bcd = |value: u32| u8::try_from(value / 10 * 16 + value % 10).unwrap_or(0);
    let header = [bcd(frames / 4500), bcd(frames / 75 % 60), bcd(frames % 75), 1];
    require!(
        sector.get(12..16) == Some(&header),
        "its header is {}, not {}",
        hex(sector.get(12..16).unwrap_or_default()),
        hex(&header)
    );
    require!(sector.get(16..2064) == Some(ten.as_slice()), "its user data is not that of READ(10)");
    Ok(())
}

fn read_cd_type(fixture: &mut Fixture) -> Outcome {
    const AUDIO: u8 = 1;
    let mut drive = with_cd(fixture)?;
    let done = read_cd_of(&mut drive, AUDIO, 0, USER_DATA)?;
    done.refused("READ CD of audio", key::ILLEGAL_REQUEST, asc::ILLEGAL_MODE_FOR_TRACK)
}

fn read_cd_nothing(fixture: &mut Fixture) -> Outcome {
    let mut drive = with_cd(fixture)?;
    let data = read_cd_of(&mut drive, 0, 0, 0)?.good("READ CD of no field")?.data;
    require!(data.is_empty(), "{} bytes come", data.len());
    Ok(())
}

fn performance(fixture: &mut Fixture) -> Outcome {
    let mut drive = Drive::attach(fixture)?;
    let sectors = drive.sectors()?;
    // Type 0, nominal performance with a tolerance of 10 %.
    let done = drive.device.get(&[0xac, 0x10, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0], 0x1000)?;
    let data = done.optional_form("GET PERFORMANCE")?.good("GET PERFORMANCE")?.data;
    let len = usize::try_from(word(&data, 0)).unwrap_or(usize::MAX).saturating_add(4);
    let (descriptors, rest) = data.get(8..len).unwrap_or_default().as_chunks::<16>();
    require!(
        rest.is_empty() && !descriptors.is_empty(),
        "of {len} bytes {} came: no descriptors",
        data.len()
    );
    let end = descriptors.last().map_or(0, |descriptor| word(descriptor, 8));
    require!(end >= sectors - 1, "the last descriptor ends at {end}, the disc has {sectors} sectors");
    Ok(())
}

fn speed(fixture: &mut Fixture) -> Outcome {
    let mut drive = Drive::attach(fixture)?;
    let done = drive.device.ask(&[0xbb, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0])?;
    done.optional("SET CD SPEED")?.good("SET CD SPEED of FFFFh").map(drop)
}

fn write(fixture: &mut Fixture) -> Outcome {
    let mut drive = Drive::attach(fixture)?;
    drive.need_rom()?;
    let before = drive.read(0, 1)?.good("READ(10)")?.data;
    let done = drive.device.put(&[0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0], &[0x5a; 2048])?;
    let after = drive.read(0, 1)?.good("READ(10)")?.data;
    if after != before {
        // The verdict is that of the rule, whether or not this succeeds.
        drive.device.put(&[0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0], &before)?;
    }
    let is_refused =
        done.sense_code().is_some_and(|(key, _)| [key::ILLEGAL_REQUEST, key::DATA_PROTECT].contains(&key));
    require!(is_refused, "WRITE(10): expected ILLEGAL REQUEST or DATA PROTECT, came {}", done.shown());
    require!(after == before, "the refused WRITE(10) changed the sector");
    Ok(())
}
