//! Mutants of disc drives: `mmc-*`.

use crate::mutant::{Mutant, Nth, by, change};
use crate::pdu::{INQUIRY, Pdu, READ, READ_CAPACITY, TEST_UNIT_READY, WRITE};

use super::pages;

/// Operation codes.
const START_STOP: u8 = 0x1b;
const PREVENT: u8 = 0x1e;
const TOC: u8 = 0x43;
const CONFIGURATION: u8 = 0x46;
const EVENTS: u8 = 0x4a;
const DISC_INFORMATION: u8 = 0x51;
const TRACK_INFORMATION: u8 = 0x52;
const READ_12: u8 = 0xa8;
const PERFORMANCE: u8 = 0xac;
const STRUCTURE: u8 = 0xad;
const SPEED: u8 = 0xbb;
const MECHANISM: u8 = 0xbd;
const READ_CD: u8 = 0xbe;

/// What the report says if a case left the disc out of the drive.
const LOADED_AGAIN: &str = "the case left the drive without its medium, which was loaded again";

pub(super) const MUTANTS: &[Mutant] = &[
    change("mmc-inquiry", "RMB is 0", |pdu| pdu.on_data(INQUIRY, |data| data[1] &= 0x7f)),
    change("mmc-features", "feature 0000 is missing or not current", |pdu| {
        pdu.on_data(CONFIGURATION, |data| data[10] &= !1);
    }),
    change("mmc-features-length", "bytes behind itself", |pdu| {
        pdu.on_data(CONFIGURATION, |data| data[3] ^= 1)
    }),
    change("mmc-features-current", "RT 1 reports features", |pdu| {
        pdu.on_cdb(CONFIGURATION, |cdb| cdb[1] = 0)
    }),
    change("mmc-features-one", "RT 2 of feature 0000 reports", |pdu| {
        pdu.on_cdb(CONFIGURATION, |cdb| cdb[1] = 0);
    }),
    change("mmc-features-none", "reported are [0000", |pdu| {
        pdu.on_cdb(CONFIGURATION, |cdb| cdb[1..4].fill(0))
    }),
    change("mmc-features-start", "from feature 0010 on, [0000", |pdu| {
        pdu.on_cdb(CONFIGURATION, |cdb| cdb[2..4].fill(0));
    }),
    change("mmc-features-request", "GET CONFIGURATION with RT 3: expected sense 5/2400", |pdu| {
        pdu.accept(CONFIGURATION);
    }),
    change("mmc-features-allocation", "of 8 bytes came", |pdu| {
        pdu.on_data(CONFIGURATION, |data| {
            if data.len() == 8 {
                data[3] ^= 1
            }
        });
    }),
    change("mmc-profile", "the current profile is 0009, the list marks", |pdu| {
        pdu.on_data(CONFIGURATION, |data| data[7] ^= 1);
    }),
    change("mmc-profile-features", "has feature 0000, which is missing or not current", |pdu| {
        pdu.on_data(CONFIGURATION, |data| {
            if data.len() > 20 {
                data[10] &= !1
            }
        });
    }),
    change("mmc-core", "PHYSICAL INTERFACE STANDARD is 0", |pdu| {
        pdu.on_data(CONFIGURATION, |data| {
            if data.get(8..10) == Some(&[0, 1][..]) {
                data[12..16].fill(0)
            }
        });
    }),
    change("mmc-removable", "mechanism, Eject and Lock are", |pdu| {
        pdu.on_data(CONFIGURATION, |data| {
            if data.get(8..10) == Some(&[0, 3][..]) {
                data[12] ^= 8
            }
        });
    }),
    change("mmc-mode-pages", "among all pages is", pages::differs_among_all),
    change("mmc-operation-codes", "alone, SUPPORT is 1", pages::is_unsupported_alone),
    change("mmc-log-pages", "the log pages do not ascend", pages::lists_pages_in_disorder),
    // The disc.
    change("mmc-capacity", "the disc has 1 sectors", |pdu| {
        pdu.on_data(READ_CAPACITY, |data| data[..4].fill(0))
    }),
    change("mmc-capacity", "a sector has 2304 bytes", |pdu| pdu.on_data(READ_CAPACITY, |data| data[6] = 9)),
    change("mmc-read", "READ(12) returns other data than READ(10)", |pdu| {
        pdu.on_data(READ_12, |data| data[0] ^= 1);
    }),
    change("mmc-read-last", "READ(10) behind the last sector: expected sense 5/2100", |pdu| pdu.accept(READ)),
    change("mmc-read-beyond", "READ(12) behind the last sector: expected sense 5/2100", |pdu| {
        pdu.accept(READ_12);
    }),
    change("mmc-read-nothing", "READ(10) of 0 sectors", |pdu| pdu.refuse(READ)),
    change("mmc-toc", "the lead-out is at", |pdu| {
        pdu.on_data(TOC, |data| {
            if let Some(last) = data.last_mut() {
                *last ^= 1
            }
        });
    }),
    change("mmc-toc", "CONTROL of the first track tells of audio", |pdu| {
        pdu.on_data(TOC, |data| data[5] &= !4)
    }),
    change("mmc-toc-length", "bytes behind the length", |pdu| pdu.on_data(TOC, |data| data[1] ^= 1)),
    change("mmc-toc-track", "from AAh on, the entries", |pdu| {
        pdu.on_cdb(TOC, |cdb| {
            if cdb[6] == 0xaa {
                cdb[6] = 0
            }
        });
    }),
    change("mmc-toc-track", "READ TOC/PMA/ATIP from track 2 on: expected sense 5/2400", |pdu| {
        pdu.accept(TOC)
    }),
    change("mmc-toc-msf", "and at frame 0 with its pregap", |pdu| pdu.on_cdb(TOC, |cdb| cdb[1] = 0)),
    change("mmc-toc-session", "the last session begins with track", |pdu| {
        pdu.on_data(TOC, |data| {
            if data.len() == 12 {
                data[11] ^= 1
            }
        });
    }),
    change("mmc-toc-full", "is missing", |pdu| pdu.on_data(TOC, |data| data[7] = 0)),
    change("mmc-toc-allocation", "of 4 bytes came", |pdu| {
        pdu.on_data(TOC, |data| {
            if data.len() == 4 {
                data[1] ^= 1
            }
        });
    }),
    change("mmc-toc-format", "READ TOC/PMA/ATIP, format Fh: expected sense 5/2400", |pdu| pdu.accept(TOC)),
    change("mmc-disc-information", "DISC STATUS is 0, not complete (2)", |pdu| {
        pdu.on_data(DISC_INFORMATION, |data| data[2] &= !3);
    }),
    change("mmc-disc-information", "a ROM is erasable", |pdu| {
        pdu.on_data(DISC_INFORMATION, |data| data[2] |= 0x10);
    }),
    change("mmc-track-information", "it is track 5 of session 1", |pdu| {
        pdu.on_data(TRACK_INFORMATION, |data| data[2] = 5);
    }),
    by("mmc-track-information", "of session 1: ", |wire, mut pdu| {
        let is_by_session = wire.command_of(&pdu).is_some_and(|command| command.header[33] == 2);
        if is_by_session {
            pdu.on_data(TRACK_INFORMATION, |data| data[11] ^= 1);
        }
        wire.pass(pdu);
    }),
    change("mmc-track-none", "READ TRACK INFORMATION of track 2: expected sense 5/2400", |pdu| {
        pdu.accept(TRACK_INFORMATION);
    }),
    change("mmc-information-length", "READ DISC INFORMATION tells of", |pdu| {
        pdu.on_data(DISC_INFORMATION, |data| data[1] ^= 1);
    }),
    change("mmc-structure", "the data area is", |pdu| pdu.on_data(STRUCTURE, |data| data[15] ^= 1)),
    change("mmc-read-cd", "READ CD returns other data than READ(10)", |pdu| {
        pdu.on_data(READ_CD, |data| data[0] ^= 1);
    }),
    change("mmc-read-cd-sector", "its header is", |pdu| pdu.on_data(READ_CD, |data| data[12] ^= 1)),
    change("mmc-read-cd-sector", "its user data is not that of READ(10)", |pdu| {
        pdu.on_data(READ_CD, |data| data[16] ^= 1);
    }),
    change("mmc-read-cd-type", "READ CD of audio: expected sense 5/6400", |pdu| pdu.accept(READ_CD)),
    change("mmc-read-cd-nothing", "bytes come", |pdu| pdu.on_cdb(READ_CD, |cdb| cdb[9] = 0x10)),
    change("mmc-performance", "the last descriptor ends at 0", |pdu| {
        pdu.on_data(PERFORMANCE, |data| data[16..20].fill(0));
    }),
    change("mmc-speed", "SET CD SPEED of FFFFh", |pdu| pdu.refuse(SPEED)),
    change("mmc-write", "WRITE(10): expected ILLEGAL REQUEST or DATA PROTECT", |pdu| pdu.accept(WRITE)),
    // The tray.
    change("mmc-events", "MEDIA PRESENT is 0, and the unit is ready", |pdu| {
        pdu.on_data(EVENTS, |data| data[5] &= !2);
    }),
    change("mmc-events", "the tray is open, and the unit is ready", |pdu| {
        pdu.on_data(EVENTS, |data| data[5] |= 1)
    }),
    change("mmc-events-asynchronous", "without POLLED: expected sense 5/2400", |pdu| pdu.accept(EVENTS)),
    change("mmc-events-none", "NEA is 0", |pdu| pdu.on_data(EVENTS, |data| data[2] &= 0x7f)),
    change("mmc-mechanism", "the tray is open, and the unit is ready", |pdu| {
        pdu.on_data(MECHANISM, |data| data[1] |= 0x10);
    }),
    change("mmc-prevent", "PREVENT ALLOW MEDIUM REMOVAL, 1", |pdu| pdu.refuse(PREVENT)),
    change("mmc-stop", "START STOP UNIT, stop", |pdu| pdu.refuse(START_STOP)),
    change("mmc-stop", "READ(10) of a started disc", |pdu| pdu.refuse(READ)),
    change("mmc-eject-prevented", "START STOP UNIT, eject: expected MEDIUM REMOVAL PREVENTED", |pdu| {
        pdu.accept(START_STOP);
    }),
    by("mmc-eject-prevented", "PREVENT ALLOW MEDIUM REMOVAL, 0: expected GOOD", |wire, pdu| {
        Nth(PREVENT, 2).refuse(wire, pdu);
    }),
    by("mmc-eject-prevented", LOADED_AGAIN, |wire, mut pdu| {
        pdu.forget(PREVENT);
        Nth(PREVENT, 2).refuse(wire, pdu);
    }),
    by("mmc-eject", LOADED_AGAIN, |wire, pdu| Nth(START_STOP, 2).refuse(wire, pdu)),
    by("mmc-prevent", "PREVENT ALLOW MEDIUM REMOVAL, 0: expected GOOD", |wire, pdu| {
        Nth(PREVENT, 2).refuse(wire, pdu);
    }),
    change("mmc-eject", "TEST UNIT READY: expected MEDIUM NOT PRESENT", |pdu| pdu.forget(START_STOP)),
    change("mmc-eject-features", "the current profile is 0008", |pdu| pdu.forget(START_STOP)),
    change("mmc-eject-mechanism", "by media events,", |pdu| pdu.on_data(MECHANISM, |data| data[1] ^= 0x10)),
    change("mmc-eject-mechanism", "MEDIA PRESENT is 1 without a disc", |pdu| pdu.forget(START_STOP)),
    change("mmc-eject-events", "after an eject the event is", |pdu| pdu.forget(START_STOP)),
    change("mmc-event-kept", "behind a header alone the event is", |pdu| {
        pdu.on_cdb(EVENTS, |cdb| {
            if cdb[8] == 4 {
                cdb[8] = 8
            }
        });
    }),
    change(
        "mmc-load-attention",
        "TEST UNIT READY of another host after a load: expected sense 6/2800",
        |pdu| {
            pdu.accept(TEST_UNIT_READY);
        },
    ),
    change("mmc-load-polled", "the polls cleared the unit attention", |pdu| pdu.accept(TEST_UNIT_READY)),
    // The other rules of cases that judge several.
    by("mmc-features-current", "RT 1 reports other data of features", |wire, pdu| {
        Nth(CONFIGURATION, 2).on_data(wire, pdu, |data| data[12] ^= 0x80);
    }),
    by("mmc-features-one", "RT 2 reports other data of feature 0000", |wire, pdu| {
        Nth(CONFIGURATION, 2).on_data(wire, pdu, |data| data[12] ^= 0x80);
    }),
    by("mmc-features-start", "from feature 0010 on, other data is reported", |wire, pdu| {
        Nth(CONFIGURATION, 2).on_data(wire, pdu, |data| data[12] ^= 0x80);
    }),
    by("mmc-read-last", "READ(10) of the last sector: expected GOOD", |wire, pdu| {
        Nth(READ, 1).refuse(wire, pdu);
    }),
    by("mmc-read-last", "READ(10) of the last sector and the next: expected sense 5/2100", |wire, pdu| {
        Nth(READ, 3).accept(wire, pdu);
    }),
    by("mmc-read-beyond", "READ(12) of sectors FFFFFFFFh and 100000000h: expected", |wire, pdu| {
        Nth(READ_12, 2).accept(wire, pdu);
    }),
    change("mmc-toc-session", "the sessions are", |pdu| pdu.on_data(TOC, |data| data[2] = 2)),
    change("mmc-toc-msf", "track 1 is at", |pdu| {
        pdu.on_data(TOC, |data| data[10] = 61);
    }),
    change("mmc-information-length", "READ TRACK INFORMATION tells of", |pdu| {
        pdu.on_data(TRACK_INFORMATION, |data| data[1] ^= 1);
    }),
    change("mmc-structure", "the book type is", |pdu| pdu.on_data(STRUCTURE, |data| data[4] |= 0x10)),
    change("mmc-read-cd-sector", "it begins with", |pdu| pdu.on_data(READ_CD, |data| data[0] ^= 1)),
    by("mmc-write", "the refused WRITE(10) changed the sector", |wire, pdu| {
        Nth(READ, 2).spoil(wire, pdu);
    }),
    change("mmc-events-none", "expected the header alone", |pdu| pdu.on_data(EVENTS, |data| data[1] ^= 1)),
    change("mmc-stop", "START STOP UNIT, start", |pdu| {
        pdu.on_cdb(START_STOP, |cdb| {
            if cdb[4] == 1 {
                cdb[4] = 0xff
            }
        });
    }),
    change("mmc-eject", "READ CAPACITY(10): expected MEDIUM NOT PRESENT", |pdu| pdu.accept(READ_CAPACITY)),
    change("mmc-eject", "INQUIRY without a disc: expected GOOD", |pdu| pdu.refuse(INQUIRY)),
    change("mmc-eject-features", "feature 0010 is current", |pdu| {
        on_empty_drive(pdu, |features| {
            let mut rest = features;
            while rest.len() >= 4 {
                let len = 4 + usize::from(rest[3]);
                if rest[..2] == [0, 0x10] {
                    rest[2] |= 1;
                }
                rest = &mut rest[len..];
            }
        });
    }),
    change("mmc-eject-features", "the profile list marks", |pdu| {
        on_empty_drive(pdu, |features| features[6] |= 1);
    }),
    by("mmc-eject-features", "the profile of the disc that was loaded again is 0000", |wire, pdu| {
        Nth(CONFIGURATION, 3).on_data(wire, pdu, |data| data[6..8].fill(0));
    }),
    by("mmc-eject-events", "the same event comes again: 3", |wire, pdu| {
        Nth(EVENTS, 3).on_data(wire, pdu, |data| data[4] = 3);
    }),
    by("mmc-eject-events", "after a load the event is 0, not NewMedia", |wire, pdu| {
        Nth(EVENTS, 4).on_data(wire, pdu, |data| data[4] = 0);
    }),
    by("mmc-eject-events", "the same event comes again: 2", |wire, pdu| {
        Nth(EVENTS, 5).on_data(wire, pdu, |data| data[4] = 2);
    }),
];

/// Changes the features that GET CONFIGURATION returns for a drive without a disc.
fn on_empty_drive(pdu: &mut Pdu, change: impl FnOnce(&mut [u8])) {
    pdu.on_data(CONFIGURATION, |data| {
        if data.len() > 12 && data[6..8] == [0, 0] {
            change(&mut data[8..]);
        }
    });
}
