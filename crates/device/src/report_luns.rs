//! REPORT LUNS (SPC-5 §6.32): the units that a nexus may see.

use alloc::vec::Vec;

use scsi::cdb::Cdb;
use scsi::lun::Lun;
use scsi::sense::Sense;
use scsi::supported;

/// The shortest allocation length: a header and one LUN.
const MIN_ALLOCATION: u32 = 16;

/// SELECT REPORT (SPC-5 §6.32).
mod select {
    pub(super) const ALL_BUT_WELL_KNOWN: u8 = 0x00;
    pub(super) const WELL_KNOWN: u8 = 0x01;
    pub(super) const ALL: u8 = 0x02;
}

/// Returns the parameter data and the allocation length.
///
/// # Errors
/// INVALID FIELD IN CDB for an unsupported SELECT REPORT, or too short an allocation length.
pub(crate) fn answer(cdb: &Cdb, luns: &[Lun]) -> Result<(Vec<u8>, u64), Sense> {
    let allocation = cdb.u32(6);
    if allocation < MIN_ALLOCATION {
        return Err(Sense::invalid_cdb(6, None));
    }
    let selected: fn(&Lun) -> bool = match cdb.u8(2) {
        select::ALL_BUT_WELL_KNOWN => |lun| !lun.is_well_known(),
        select::WELL_KNOWN => |lun| lun.is_well_known(),
        select::ALL => |_| true,
        _ => return Err(Sense::invalid_cdb(2, None)),
    };
    Ok((supported::encode_luns(luns.iter().copied().filter(selected)), u64::from(allocation)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(select: u8, allocation: u32) -> Result<Vec<Lun>, Sense> {
        let luns = [Lun(0), Lun::from_number(7).unwrap(), Lun::REPORT_LUNS];
        let mut cdb = [0; 16];
        (cdb[0], cdb[2]) = (0xa0, select);
        cdb[6..10].copy_from_slice(&allocation.to_be_bytes());
        let (bytes, told) = answer(&Cdb::from_16(cdb), &luns)?;
        assert_eq!(told, u64::from(allocation));
        Ok(supported::parse_luns(&bytes).unwrap())
    }

    #[test]
    fn the_selection_is_obeyed() {
        let seven = Lun::from_number(7).unwrap();
        assert_eq!(ask(0, 512), Ok(Vec::from([Lun(0), seven])));
        assert_eq!(ask(1, 512), Ok(Vec::from([Lun::REPORT_LUNS])));
        assert_eq!(ask(2, 16), Ok(Vec::from([Lun(0), seven, Lun::REPORT_LUNS])));
        assert_eq!(ask(3, 512), Err(Sense::invalid_cdb(2, None)));
        assert_eq!(ask(0, 15), Err(Sense::invalid_cdb(6, None)));
    }
}
