//! Resolves drives for discs: which keys apply to them, and whether an image can be a disc.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use base::units::BlockSize;
use device::contract::DiscProfile;

use super::super::raw;
use super::super::resolved::Medium;
use super::super::source_span::{ConfigReport, SourceSpan};
use super::check_access;
use crate::{disc_image, os_error};

/// The keys of a LUN that apply to a drive for discs, beside those of every LUN of a target.
pub(super) const KEYS: &[&str] = &[
    "name",
    "type",
    "path",
    "ro",
    "io_timeout",
    "limit_iops",
    "limit_bandwidth",
    "limit_burst",
    "tst",
    "tas",
    "spc",
    "serial",
    "naa",
    "vendor",
    "product",
    "revision",
];

/// Returns the medium of a drive.
pub(super) fn medium(lun: &raw::Lun, path: PathBuf) -> Medium {
    Medium::Disc { path, profile: profile(lun) }
}

fn profile(lun: &raw::Lun) -> Option<DiscProfile> {
    lun.profile.as_ref().map(|at| match at.value {
        "cd" => DiscProfile::Cd,
        "dvd" => DiscProfile::Dvd,
        _ => DiscProfile::Bd,
    })
}

/// Reports an image that cannot be a disc.
pub(super) fn examine(lun: &raw::Lun, path: &Path, span: &SourceSpan, report: &mut ConfigReport) {
    if let Err(why) = check_image(path, (span, lun.ro), profile(lun), report) {
        report.medium_error(span, why);
    }
}

fn check_image(
    path: &Path,
    (span, read_only): (&SourceSpan, bool),
    profile: Option<DiscProfile>,
    report: &mut ConfigReport,
) -> Result<(), String> {
    let name = path.display();
    let meta = match path.metadata() {
        Ok(meta) => meta,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            report.warn(span, format!("{name} does not exist, so the drive is empty"));
            return Ok(());
        }
        Err(error) => return Err(format!("cannot use {name}: {}", os_error(&error))),
    };
    if !meta.is_file() {
        return Err(format!("{name} is not a regular file"));
    }
    let record = disc_image::record_of(path)?;
    check_access(path, read_only || record.is_none())?;
    let sector = u64::from(BlockSize::B2048.bytes());
    let (sectors, rest) = (meta.len() / sector, meta.len() % sector);
    let max = profile.unwrap_or(DiscProfile::Bd).blocks_max().0;
    if sectors == 0 {
        return Err(format!("{name} is shorter than one sector of {sector} bytes"));
    }
    if sectors > max {
        return Err(format!("{name} has {sectors} sectors, and a disc of this kind has at most {max}"));
    }
    if rest != 0 {
        report.warn(span, format!("{name} ends with a part of a sector, which is not served"));
    }
    Ok(())
}
