//! The block commands.

#[path = "../../../../device/src/sbc/tests/atomic.rs"]
mod atomic;
#[path = "../../../../device/src/sbc/tests/faults.rs"]
mod faults;
#[path = "../../../../device/src/sbc/tests/model.rs"]
mod model;
#[path = "../../../../device/src/sbc/tests/provisioning.rs"]
mod provisioning;
#[path = "../../../../device/src/sbc/tests/sanitize.rs"]
mod sanitize;
#[path = "../../../../device/src/sbc/tests/transfer.rs"]
mod transfer;
#[path = "../../../../device/src/sbc/tests/verify.rs"]
mod verify;
