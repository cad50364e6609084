//! Tests of an initiator: this crate is a scripted target.

mod conn;
mod default_behavior;
mod disk;
pub(crate) mod fixture;
mod policy;

mod cmd_sn;
mod command;
mod management;
mod session;
mod transfer;

use std::net::TcpListener;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::suite::{Case, CaseInfo, CaseResult, Selection};

use fixture::Fixture;

pub use fixture::{Options, TARGET};

/// The default time limit of one case.
pub const LIMIT: Duration = Duration::from_secs(30);
/// The default time to wait for what the initiator does by itself.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// A case that tests an initiator.
type Test = Case<Fixture>;

fn cases() -> impl Iterator<Item = &'static Test> {
    let tables = [cmd_sn::CASES, transfer::CASES, command::CASES, session::CASES, management::CASES];
    tables.into_iter().flatten()
}

/// Lists the cases in the order in which they run.
pub fn list() -> Vec<CaseInfo> {
    cases().map(Case::entry).collect()
}

/// Runs the selected cases one after the other, and starts the initiator again for each. Calls `told` with
/// the result of each case when it ends.
///
/// # Errors
/// When the listener cannot be bound to the address.
pub fn run(
    options: &Options,
    selection: &Selection,
    mut told: impl FnMut(&CaseResult),
) -> Result<Vec<CaseResult>, String> {
    let listener =
        TcpListener::bind(options.listen).map_err(|error| format!("{}: {error}", options.listen))?;
    listener.set_nonblocking(true).map_err(|error| error.to_string())?;
    let listen = listener.local_addr().map_err(|error| error.to_string())?;
    let (options, listener) = (Rc::new(Options { listen, ..options.clone() }), Rc::new(listener));
    let mut results = Vec::new();
    for case in cases().filter(|case| selection.takes(case.id)) {
        // Close connections that the initiator of the last case opened late.
        while let Ok((stream, _)) = listener.accept() {
            drop(stream);
        }
        let mut fixture = Fixture::new(&options, &listener, case.id);
        let began = Instant::now();
        let outcome = (case.run)(&mut fixture);
        fixture.stop();
        let result = CaseResult::of(case.entry(), outcome, &fixture.record, began);
        told(&result);
        results.push(result);
    }
    Ok(results)
}
