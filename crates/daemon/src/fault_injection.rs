//! The bugs that can be planted in a daemon. See [`base::fault_injection`].

/// Returns the name of every bug.
pub fn names() -> impl Iterator<Item = &'static str> {
    let protocols = iscsi::fault_injection::Bug::ALL.iter().map(|bug| bug.name());
    let protocols = protocols.chain(hyperscsi::fault_injection::Bug::ALL.iter().map(|bug| bug.name()));
    let units = device::fault_injection::Bug::ALL.iter().map(|bug| bug.name());
    let units = units.chain(target::fault_injection::Bug::ALL.iter().map(|bug| bug.name()));
    let files = drivers::fault_injection::Bug::ALL.iter().map(|bug| bug.name());
    let files = files.chain(backends::fault_injection::Bug::ALL.iter().map(|bug| bug.name()));
    protocols.chain(units).chain(files)
}
