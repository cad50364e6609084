//! The medium partition page (SSC-4): how FORMAT MEDIUM shall divide a cartridge.

use alloc::vec::Vec;

/// How many partitions a cartridge can have.
pub(crate) const PARTITIONS_MAX: usize = 4;
/// The length of the body of the page.
pub(crate) const BODY_LEN: usize = 6 + 2 * PARTITIONS_MAX;

/// What MODE SELECT can change: ADDITIONAL PARTITIONS DEFINED; FDP, SDP, IDP and PSUM; PARTITION UNITS; and
/// the sizes.
pub(crate) const CHANGEABLE: [u8; BODY_LEN] =
    [0, 0xff, 0xf8, 0, 0x0f, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];

/// Returns whether a body of this length has the sizes of the first partitions only.
pub(crate) const fn is_shorter_page(len: usize) -> bool {
    len >= 8 && len < BODY_LEN && len.is_multiple_of(2)
}

/// PARTITION SIZE of a partition that gets what the others leave.
const REST: u16 = 0xffff;

/// The flags of the page.
mod flag {
    pub(super) const FIXED: u8 = 0x80;
    pub(super) const SELECTED: u8 = 0x40;
    pub(super) const BY_INITIATOR: u8 = 0x20;
    pub(super) const METHODS: u8 = FIXED | SELECTED | BY_INITIATOR;
    pub(super) const UNITS: u8 = 0x18;
}

/// How a host wants a cartridge to be divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Partitioning {
    /// ADDITIONAL PARTITIONS DEFINED.
    additional: u8,
    /// FDP, SDP or IDP, and PSUM.
    flags: u8,
    /// PARTITION UNITS.
    units: u8,
    /// PARTITION SIZE.
    sizes: [u16; PARTITIONS_MAX],
}

impl Partitioning {
    /// Reads the body of a page for a cartridge of `capacity` bytes that can have `partitions_max`
    /// partitions. A page without a method divides nothing.
    ///
    /// # Errors
    /// The byte that is wrong.
    pub(crate) fn of_body(body: &[u8], capacity: u64, partitions_max: u8) -> Result<Option<Self>, usize> {
        let [_, additional, flags, _, units, _, sizes @ ..] = body else { return Err(0) };
        let mut page =
            Self { additional: *additional, flags: *flags & 0xf8, units: *units & 0x0f, sizes: [0; 4] };
        for (to, from) in page.sizes.iter_mut().zip(sizes.as_chunks::<2>().0) {
            *to = u16::from_be_bytes(*from);
        }
        match flags & flag::METHODS {
            0 => return Ok(None),
            flag::FIXED | flag::SELECTED | flag::BY_INITIATOR => {}
            _ => return Err(2),
        }
        if page.count() > usize::from(partitions_max) {
            return Err(1);
        }
        page.capacities(capacity).map(|_| Some(page)).ok_or(6)
    }

    /// Returns the fields: ADDITIONAL PARTITIONS DEFINED, the method, PARTITION UNITS, and the sizes.
    pub(crate) const fn fields(self) -> (u8, u8, u8, [u16; PARTITIONS_MAX]) {
        let Self { additional, flags, units, sizes } = self;
        (additional, flags, units, sizes)
    }

    /// Returns what has these fields; `None` if no page has them.
    pub(crate) fn of_fields(
        (additional, flags, units, sizes): (u8, u8, u8, [u16; PARTITIONS_MAX]),
    ) -> Option<Self> {
        let page = Self { additional, flags, units, sizes };
        let has_method = (flags & flag::METHODS).count_ones() == 1;
        let is_possible = has_method && flags & 0x07 == 0 && units < 16 && page.count() <= PARTITIONS_MAX;
        is_possible.then_some(page)
    }

    /// Returns the bytes of the page that tell it, by their index in the body.
    pub(crate) fn bytes(self) -> Vec<(usize, u8)> {
        let sizes = self.sizes.into_iter().flat_map(u16::to_be_bytes);
        let fixed = [(1, self.additional), (2, self.flags), (4, self.units)];
        fixed.into_iter().chain((6..).zip(sizes)).collect()
    }

    /// Returns how many partitions there will be.
    fn count(self) -> usize {
        let is_fixed = self.flags & flag::FIXED != 0;
        if is_fixed { 2 } else { usize::from(self.additional) + 1 }
    }

    /// Returns the capacities of the partitions in bytes, or `None` if a cartridge of `capacity` bytes cannot
    /// be divided like that. Those that the drive chooses (FDP: two, and SDP) are of equal size.
    pub(crate) fn capacities(self, capacity: u64) -> Option<Vec<u64>> {
        let count = self.count();
        if self.flags & flag::BY_INITIATOR == 0 {
            let share = capacity / u64::try_from(count).ok()?;
            return Some(alloc::vec![share; count]);
        }
        let unit = match self.flags & flag::UNITS {
            0x00 => 1,
            0x08 => 1 << 10,
            0x10 => 1 << 20,
            _ => 10_u64.pow(u32::from(self.units)),
        };
        let sizes = self.sizes.get(..count)?;
        let fixed = sizes.iter().filter(|size| **size != REST);
        let bytes = |size: u16| u64::from(size).checked_mul(unit);
        let used = fixed.clone().try_fold(0_u64, |sum, size| sum.checked_add(bytes(*size)?))?;
        let rest = capacity.checked_sub(used)?;
        if fixed.count() + 1 < count {
            // Only one partition can get the rest.
            return None;
        }
        let capacity = |size: &u16| if *size == REST { Some(rest) } else { bytes(*size) };
        let capacities: Vec<u64> = sizes.iter().map(capacity).collect::<Option<_>>()?;
        capacities.iter().all(|capacity| *capacity >= CAPACITY_MIN).then_some(capacities)
    }
}

/// The smallest capacity of a partition.
const CAPACITY_MIN: u64 = cartridge::label::PARTITION_LEN_MIN;

#[cfg(test)]
mod tests {
    use super::*;

    const GB: u64 = 1_000_000_000;

    fn capacities(additional: u8, flags: u8, units: u8, sizes: [u16; 4]) -> Result<Vec<u64>, usize> {
        let mut body = alloc::vec![3, additional, flags, 3, units, 0];
        sizes.iter().for_each(|size| body.extend_from_slice(&size.to_be_bytes()));
        let page = Partitioning::of_body(&body, 100 * GB, 4)?;
        let page = page.ok_or(99_usize)?;
        let told: Vec<u8> = page.bytes().into_iter().map(|(_, byte)| byte).collect();
        assert_eq!(told[..3], [additional, flags & 0xf8, units]);
        Ok(page.capacities(100 * GB).unwrap())
    }

    #[test]
    fn sizes_are_in_the_units_of_the_page() {
        // As LTFS sends them, and for one partition.
        assert_eq!(capacities(1, 0x38, 9, [0xffff, 1, 0, 0]), Ok(alloc::vec![99 * GB, GB]));
        assert_eq!(capacities(1, 0x38, 9, [1, 0xffff, 0, 0]), Ok(alloc::vec![GB, 99 * GB]));
        assert_eq!(capacities(0, 0x38, 8, [0xffff, 0, 0, 0]), Ok(alloc::vec![100 * GB]));
        // As the Linux kernel sends them, in MB.
        assert_eq!(capacities(1, 0x30, 0, [1000, 500, 0, 0]), Ok(alloc::vec![1000 << 20, 500 << 20]));
        assert_eq!(
            capacities(1, 0x28, 0, [2048, 0xffff, 0, 0]),
            Ok(alloc::vec![2 << 20, 100 * GB - (2 << 20)])
        );
        assert_eq!(capacities(3, 0x38, 9, [10, 20, 30, 40]), Ok([10, 20, 30, 40].map(|n| n * GB).to_vec()));
    }

    #[test]
    fn the_drive_chooses_equal_sizes() {
        assert_eq!(capacities(0, 0x80, 0, [0; 4]), Ok(alloc::vec![50 * GB; 2]));
        assert_eq!(capacities(3, 0x40, 0, [0; 4]), Ok(alloc::vec![25 * GB; 4]));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let wrong = [
            (4, 0x38, 9, [1, 1, 1, 1], 1),
            (1, 0xb8, 9, [1, 1, 0, 0], 2),
            (1, 0x60, 9, [1, 1, 0, 0], 2),
            (1, 0x38, 9, [60, 60, 0, 0], 6),
            (1, 0x38, 9, [100, 0xffff, 0, 0], 6),
            (1, 0x38, 9, [0xffff, 0xffff, 0, 0], 6),
            (1, 0x38, 9, [1, 0, 0, 0], 6),
            (1, 0x38, 15, [0xfffe, 1, 0, 0], 6),
            (1, 0x20, 0, [0xfffe, 0xffff, 0, 0], 6),
            (1, 0x18, 9, [1, 1, 0, 0], 99),
        ];
        for (additional, flags, units, sizes, at) in wrong {
            assert_eq!(capacities(additional, flags, units, sizes), Err(at), "{flags:x} {sizes:?}");
        }
        assert_eq!(Partitioning::of_body(&[0; 5], GB, 4), Err(0));
    }
}
