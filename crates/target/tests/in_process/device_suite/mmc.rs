//! The commands of drives for discs.

#[path = "../../../../device/src/mmc/tests/configuration.rs"]
mod configuration;
#[path = "../../../../device/src/mmc/tests/durability.rs"]
mod durability;
#[path = "../../../../device/src/mmc/tests/fixture.rs"]
mod fixture;
#[path = "../../../../device/src/mmc/tests/information.rs"]
mod information;
#[path = "../../../../device/src/mmc/tests/media.rs"]
mod media;
#[path = "../../../../device/src/mmc/tests/reading.rs"]
mod reading;
#[path = "../../../../device/src/mmc/tests/replacing.rs"]
mod replacing;
#[path = "../../../../device/src/mmc/tests/rewritable.rs"]
mod rewritable;
#[path = "../../../../device/src/mmc/tests/sequential.rs"]
mod sequential;

use fixture::*;
#[path = "../../../../device/src/mmc/tests/verifying.rs"]
mod verifying;
