//! Hand-overs of whole logical units: two units over one medium, of which the second takes over the state of
//! the first, must answer alike.

mod busy;
mod changes;
mod documents;
mod fields;
mod fixture;
mod histories;
mod media;
mod write_cache;
