//! Third-party copies.

#[path = "../../../../device/src/copy/tests/abort.rs"]
mod abort;
#[path = "../../../../device/src/copy/tests/abuse.rs"]
mod abuse;
#[path = "../../../../device/src/copy/tests/extended.rs"]
mod extended;
#[path = "../../../../device/src/copy/tests/faults.rs"]
mod faults;
#[path = "../../../../device/src/copy/tests/models.rs"]
mod models;
#[path = "../../../../device/src/copy/tests/results.rs"]
mod results;
#[path = "../../../../device/src/copy/tests/rod.rs"]
mod rod;
mod units;
#[path = "../../../../device/src/copy/tests/world.rs"]
mod world;
