//! Project chores that `make` calls.
fn main() {}
