//! The commands of every device type.

#[path = "../../../../device/src/spc/tests/access.rs"]
mod access;
#[path = "../../../../device/src/spc/tests/fixture.rs"]
mod fixture;
#[path = "../../../../device/src/spc/tests/identity.rs"]
mod identity;
#[path = "../../../../device/src/spc/tests/media.rs"]
mod media;
#[path = "../../../../device/src/spc/tests/modes.rs"]
mod modes;
#[path = "../../../../device/src/spc/tests/persistent.rs"]
mod persistent;
#[path = "../../../../device/src/spc/tests/reports.rs"]
mod reports;
#[path = "../../../../device/src/spc/tests/reserve.rs"]
mod reserve;
#[path = "../../../../device/src/spc/tests/saving.rs"]
mod saving;
#[path = "../../../../device/src/spc/tests/write_cache.rs"]
mod write_cache;

use fixture::*;
