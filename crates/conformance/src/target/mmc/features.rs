//! GET CONFIGURATION, and the mode pages and log pages.

use crate::suite::case;
use crate::verdict::Outcome;
use crate::wire::word;

use super::super::Test;
use super::super::device::{Device, asc, byte, half, hex, key};
use super::super::fixture::Fixture;
use super::super::pages;
use super::{Drive, profile};

#[rustfmt::skip]
pub(super) const CASES: &[Test] = &[
    case("mmc-inquiry", "MMC-6, INQUIRY", "a drive has removable media", inquiry),
    case("mmc-features", "MMC-6, GET CONFIGURATION", "RT 0 reports features that ascend, profile list and core among them", all),
    case("mmc-features-length", "MMC-6, GET CONFIGURATION", "DATA LENGTH is that of the data", length),
    case("mmc-features-current", "MMC-6, GET CONFIGURATION", "RT 1 reports those that are current", current),
    case("mmc-features-one", "MMC-6, GET CONFIGURATION", "RT 2 reports one feature", one),
    case("mmc-features-none", "MMC-6, GET CONFIGURATION", "RT 2 of a feature that does not exist reports none", none),
    case("mmc-features-start", "MMC-6, GET CONFIGURATION", "the report begins at the starting feature", start),
    case("mmc-features-request", "MMC-6, GET CONFIGURATION", "RT 3 is refused", reserved),
    case("mmc-features-allocation", "MMC-6, GET CONFIGURATION", "a short allocation length cuts, and counts all", allocation),
    case("mmc-profile", "MMC-6, profile list feature", "the current profile is one of the list, marked current", profile_list),
    case("mmc-profile-features", "MMC-6, profiles", "the features of the current profile are current", profile_features),
    case("mmc-core", "MMC-6, core feature", "the physical interface is named", core),
    case("mmc-removable", "MMC-6, removable medium feature", "feature and capabilities page agree on the tray", removable),
    case("mmc-mode-pages", "SPC-4, MODE SENSE(10)", "each page is the same alone as among all", mode_pages),
    case("mmc-operation-codes", "SPC-4, REPORT SUPPORTED OPERATION CODES", "each command is the same alone as in the list", operation_codes),
    case("mmc-log-pages", "SPC-4, LOG SENSE", "every page that is listed has the right form", log_pages),
];

fn inquiry(fixture: &mut Fixture) -> Outcome {
    let mut device = Device::attach(fixture)?;
    let data = device.get(&[0x12, 0, 0, 0, 96, 0], 96)?.good("INQUIRY")?.data;
    require!(byte(&data, 1) & 0x80 != 0, "RMB is 0: byte 1 is {:02x}", byte(&data, 1));
    Ok(())
}

fn all(fixture: &mut Fixture) -> Outcome {
    let configuration = Drive::attach(fixture)?.configuration(0, 0)?;
    for code in [0x0000, 0x0001] {
        require!(configuration.has(code), "feature {code:04x} is missing or not current");
    }
    Ok(())
}

fn length(fixture: &mut Fixture) -> Outcome {
    let mut device = Device::attach(fixture)?;
    let data = device.get(&[0x46, 0, 0, 0, 0, 0, 0, 0x10, 0, 0], 0x1000)?.good("GET CONFIGURATION")?.data;
    let (told, came) = (word(&data, 0), data.len().saturating_sub(4));
    require!(usize::try_from(told) == Ok(came), "it tells of {told} bytes behind itself, {came} came");
    Ok(())
}

fn current(fixture: &mut Fixture) -> Outcome {
    let mut drive = Drive::attach(fixture)?;
    let mut all = drive.configuration(0, 0)?;
    all.features.retain(|feature| feature.is_current);
    let current = drive.configuration(1, 0)?;
    let (came, wanted) = (current.codes(), all.codes());
    require!(came == wanted, "RT 1 reports features {came:04x?}; by RT 0, {wanted:04x?} are current");
    require!(current == all, "RT 1 reports other data of features than RT 0");
    Ok(())
}

fn one(fixture: &mut Fixture) -> Outcome {
    let mut drive = Drive::attach(fixture)?;
    for feature in drive.configuration(0, 0)?.features {
        let code = feature.code;
        let alone = drive.configuration(2, code)?;
        let codes = alone.codes();
        require!(codes == [code], "RT 2 of feature {code:04x} reports {codes:04x?}");
        require!(alone.features == [feature], "RT 2 reports other data of feature {code:04x} than RT 0");
    }
    Ok(())
}

fn none(fixture: &mut Fixture) -> Outcome {
    // No version of MMC has this feature.
    let codes = Drive::attach(fixture)?.configuration(2, 0x0ff0)?.codes();
    require!(codes.is_empty(), "reported are {codes:04x?}");
    Ok(())
}

fn start(fixture: &mut Fixture) -> Outcome {
    let mut drive = Drive::attach(fixture)?;
    let mut all = drive.configuration(0, 0)?;
    all.features.retain(|feature| feature.code >= 0x0010);
    let later = drive.configuration(0, 0x0010)?;
    let (came, wanted) = (later.codes(), all.codes());
    require!(came == wanted, "from feature 0010 on, {came:04x?} are reported, and there are {wanted:04x?}");
    require!(later == all, "from feature 0010 on, other data is reported");
    Ok(())
}

fn reserved(fixture: &mut Fixture) -> Outcome {
    let mut device = Device::attach(fixture)?;
    let done = device.get(&[0x46, 3, 0, 0, 0, 0, 0, 0x10, 0, 0], 0x1000)?;
    done.refused("GET CONFIGURATION with RT 3", key::ILLEGAL_REQUEST, asc::INVALID_FIELD_IN_CDB)
}

fn allocation(fixture: &mut Fixture) -> Outcome {
    let mut device = Device::attach(fixture)?;
    let whole = device.get(&[0x46, 0, 0, 0, 0, 0, 0, 0x10, 0, 0], 0x1000)?.good("GET CONFIGURATION")?.data;
    let cut =
        device.get(&[0x46, 0, 0, 0, 0, 0, 0, 0, 8, 0], 0x1000)?.good("GET CONFIGURATION of 8 bytes")?.data;
    require!(
        Some(cut.as_slice()) == whole.get(..8),
        "of 8 bytes came {}, the whole begins with {}",
        hex(&cut),
        hex(whole.get(..8).unwrap_or_default())
    );
    Ok(())
}

fn profile_list(fixture: &mut Fixture) -> Outcome {
    let configuration = Drive::attach(fixture)?.configuration(0, 0)?;
    let Some(list) = configuration.feature(0) else { fail!("feature 0000 is missing") };
    let (profiles, _) = list.body.as_chunks::<4>();
    let current: Vec<u16> = profiles
        .iter()
        .filter(|[_, _, flags, _]| flags & 1 != 0)
        .map(|[high, low, ..]| u16::from_be_bytes([*high, *low]))
        .collect();
    require!(
        current.contains(&configuration.profile),
        "the current profile is {:04x}, the list marks {current:04x?}",
        configuration.profile
    );
    Ok(())
}

fn profile_features(fixture: &mut Fixture) -> Outcome {
    let mut drive = Drive::attach(fixture)?;
    let profile = drive.need_rom()?;
    let reading = match profile {
        profile::CD_ROM => 0x001e,
        profile::DVD_ROM => 0x001f,
        _ => 0x0040,
    };
    let configuration = drive.configuration(0, 0)?;
    for code in [0x0000, 0x0001, 0x0002, 0x0003, 0x0010, reading, 0x0100, 0x0105] {
        require!(
            configuration.has(code),
            "profile {profile:04x} has feature {code:04x}, which is missing or not current"
        );
    }
    Ok(())
}

fn core(fixture: &mut Fixture) -> Outcome {
    let configuration = Drive::attach(fixture)?.configuration(2, 1)?;
    let Some(core) = configuration.feature(1) else { fail!("feature 0001 is missing") };
    require!(core.body.len() >= 4, "the feature has {} bytes, fewer than 4", core.body.len());
    require!(word(&core.body, 0) != 0, "PHYSICAL INTERFACE STANDARD is 0, unspecified");
    Ok(())
}

fn removable(fixture: &mut Fixture) -> Outcome {
    let mut drive = Drive::attach(fixture)?;
    let configuration = drive.configuration(2, 3)?;
    let Some(feature) = configuration.feature(3) else { fail!("feature 0003 is missing") };
    let page = drive.device.mode_10(0x2a)?;
    let Some(page) = page.page(0x2a) else { fail!("MODE SENSE(10) of page 2A returns no such page") };
    // The loading mechanism, Eject and Lock have the same places in both.
    const SAME: u8 = 0xe9;
    let (of_feature, of_page) = (byte(&feature.body, 0) & SAME, byte(page, 6) & SAME);
    require!(
        of_feature == of_page,
        "mechanism, Eject and Lock are {of_feature:02x} in the feature and {of_page:02x} in page 2A"
    );
    require!(half(page, 0) & 0x3fff >= 0x2a0e, "page 2A has {} bytes", byte(page, 1));
    Ok(())
}

fn mode_pages(fixture: &mut Fixture) -> Outcome {
    pages::mode_pages_agree(&mut Device::attach(fixture)?)
}

fn operation_codes(fixture: &mut Fixture) -> Outcome {
    pages::operation_codes_agree(&mut Device::attach(fixture)?)
}

fn log_pages(fixture: &mut Fixture) -> Outcome {
    pages::log_pages_are_well_formed(&mut Device::attach(fixture)?)
}
