//! The bugs that can be planted in what the simulator runs. See [`base::fault_injection`].

use std::fmt;

/// A bug of one of the simulated crates.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum PlantedBug {
    /// A bug of iSCSI.
    Iscsi(iscsi::fault_injection::Bug),
    /// A bug of HyperSCSI, which only its own worlds can find.
    HyperScsi(hyperscsi::fault_injection::Bug),
    /// A bug of logical units.
    Unit(device::fault_injection::Bug),
    /// A bug of the target.
    Target(target::fault_injection::Bug),
    /// A bug of cartridges, which only worlds of tapes can find.
    Cartridge(cartridge::fault_injection::Bug),
    /// A bug of the oracle.
    Oracle(oracle::fault_injection::Bug),
}

impl PlantedBug {
    /// Returns every bug that the simulator can find.
    pub fn all() -> impl Iterator<Item = Self> {
        let iscsi = iscsi::fault_injection::Bug::ALL.iter().copied().map(Self::Iscsi);
        let hyperscsi = hyperscsi::fault_injection::Bug::ALL.iter().copied().map(Self::HyperScsi);
        let units = device::fault_injection::Bug::ALL.iter().copied();
        let units = units.filter(|bug| !device::fault_injection::Bug::OF_SAVING.contains(bug));
        let target = target::fault_injection::Bug::ALL.iter().copied().map(Self::Target);
        let cartridges = cartridge::fault_injection::Bug::OF_COMMANDS.iter().copied();
        let oracle = oracle::fault_injection::Bug::ALL.iter().copied().map(Self::Oracle);
        iscsi
            .chain(hyperscsi)
            .chain(units.map(Self::Unit))
            .chain(cartridges.map(Self::Cartridge))
            .chain(target)
            .chain(oracle)
    }

    /// Returns the name of the bug.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Iscsi(bug) => bug.name(),
            Self::HyperScsi(bug) => bug.name(),
            Self::Unit(bug) => bug.name(),
            Self::Target(bug) => bug.name(),
            Self::Cartridge(bug) => bug.name(),
            Self::Oracle(bug) => bug.name(),
        }
    }
}

impl fmt::Debug for PlantedBug {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
