//! Cases on drives for discs: MMC-6, a case for each rule.
//!
//! A case that ejects the disc loads it again. If it cannot, the run does when the case has ended.

mod disc;
mod features;
mod tray;

use crate::verdict::Outcome;
use crate::wire::word;

use super::Test;
use super::device::{Device, byte, half};
use super::fixture::Fixture;

pub(super) const TABLES: &[&[Test]] = &[features::CASES, disc::CASES, tray::CASES];

/// The profiles of read-only discs.
mod profile {
    pub(super) const CD_ROM: u16 = 0x0008;
    pub(super) const DVD_ROM: u16 = 0x0010;
    pub(super) const BD_ROM: u16 = 0x0040;
}

/// The length of a sector.
const SECTOR: u32 = 2048;

/// A feature.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Feature {
    code: u16,
    is_current: bool,
    body: Vec<u8>,
}

/// What GET CONFIGURATION returns.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Configuration {
    /// The current profile; 0 without a disc.
    profile: u16,
    features: Vec<Feature>,
}

impl Configuration {
    fn feature(&self, code: u16) -> Option<&Feature> {
        self.features.iter().find(|feature| feature.code == code)
    }

    fn codes(&self) -> Vec<u16> {
        self.features.iter().map(|feature| feature.code).collect()
    }

    fn has(&self, code: u16) -> bool {
        self.feature(code).is_some_and(|feature| feature.is_current)
    }
}

/// Parses the data of GET CONFIGURATION. That nothing follows what DATA LENGTH tells of is judged by a case
/// of its own.
///
/// # Errors
/// Other lengths that contradict each other, and features that do not ascend.
fn configuration(data: &[u8]) -> Outcome<Configuration> {
    let len = usize::try_from(word(data, 0)).unwrap_or(usize::MAX).saturating_add(4);
    let Some(mut rest) = data.get(8..len) else {
        fail!("DATA LENGTH tells of {len} bytes with the header, {} came", data.len())
    };
    let mut features: Vec<Feature> = Vec::new();
    while !rest.is_empty() {
        let code = half(rest, 0);
        let len = usize::from(byte(rest, 3));
        let Some((feature, after)) = rest.split_at_checked(4 + len) else {
            fail!("feature {code:04x} is beyond the end of the data")
        };
        require!(len.is_multiple_of(4), "feature {code:04x} has {len} bytes, no multiple of 4");
        let last = features.last().map(|feature| feature.code);
        require!(
            last.is_none_or(|last| last < code),
            "feature {code:04x} is behind {:04x}",
            last.unwrap_or_default()
        );
        let body = feature.get(4..).unwrap_or_default().to_vec();
        features.push(Feature { code, is_current: byte(feature, 2) & 1 != 0, body });
        rest = after;
    }
    Ok(Configuration { profile: half(data, 6), features })
}

/// A drive.
struct Drive {
    device: Device,
}

impl Drive {
    /// Logs in to a drive that holds a disc.
    fn attach(fixture: &mut Fixture) -> Outcome<Self> {
        let mut device = Device::attach(fixture)?;
        device.need_ready()?;
        Ok(Self { device })
    }

    /// GET CONFIGURATION with this request type, from this feature on.
    fn configuration(&mut self, request: u8, first: u16) -> Outcome<Configuration> {
        let [high, low] = first.to_be_bytes();
        let done = self.device.get(&[0x46, request, high, low, 0, 0, 0, 0x10, 0, 0], 0x1000)?;
        configuration(&done.good("GET CONFIGURATION")?.data)
    }

    /// Returns the current profile.
    fn profile(&mut self) -> Outcome<u16> {
        Ok(self.configuration(1, 0xffff)?.profile)
    }

    /// Skips the case unless the disc is a CD-ROM, DVD-ROM or BD-ROM.
    fn need_rom(&mut self) -> Outcome<u16> {
        let profile = self.profile()?;
        let is_rom = [profile::CD_ROM, profile::DVD_ROM, profile::BD_ROM].contains(&profile);
        need!(is_rom, "the disc is no ROM: profile {profile:04x}");
        Ok(profile)
    }

    /// Returns the number of sectors.
    fn sectors(&mut self) -> Outcome<u32> {
        let done = self.device.get(&[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0], 8)?.good("READ CAPACITY(10)")?;
        let len = word(&done.data, 4);
        require!(len == SECTOR, "a sector has {len} bytes, not {SECTOR}");
        Ok(word(&done.data, 0).saturating_add(1))
    }

    /// READ(10).
    fn read(&mut self, lba: u32, count: u16) -> Outcome<super::task::Done> {
        let ([a, b, c, d], [e, f]) = (lba.to_be_bytes(), count.to_be_bytes());
        self.device.get(&[0x28, 0, a, b, c, d, 0, e, f, 0], u32::from(count) * SECTOR)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::Stop;

    /// Two features, the second without a body.
    const DATA: [u8; 20] = [0, 0, 0, 16, 0, 0, 0, 0x10, 0, 0, 3, 4, 0, 0x10, 1, 0, 0, 0x1e, 8, 0];

    #[test]
    fn a_configuration_is_read() {
        let configuration = configuration(&DATA).unwrap();
        assert_eq!(configuration.profile, 0x10);
        assert_eq!(
            configuration.feature(0).map(|feature| feature.body.as_slice()),
            Some(&[0, 0x10, 1, 0][..])
        );
        assert!(configuration.has(0) && !configuration.has(0x1e));
    }

    #[test]
    fn a_configuration_that_contradicts_itself_fails() {
        for (at, value, part) in [
            (3, 17, "DATA LENGTH tells of 21 bytes with the header, 20 came"),
            (11, 3, "feature 0000 has 3 bytes"),
            (11, 20, "feature 0000 is beyond the end"),
            (17, 0, "feature 0000 is behind 0000"),
        ] {
            let mut data = DATA;
            data[at] = value;
            match configuration(&data) {
                Err(Stop::Fail(why)) => assert!(why.contains(part), "{why}"),
                other => panic!("expected a failure, {part}; came {other:?}"),
            }
        }
    }
}
