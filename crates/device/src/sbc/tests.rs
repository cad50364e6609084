mod atomic;
mod faults;
mod model;
mod provisioning;
mod sanitize;
mod table;
mod transfer;
mod verify;
