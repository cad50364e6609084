//! What carries a copy of files between memory and a disk.

/// What carries a copy between the files and the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Carrier {
    /// Nothing: the disk is of the machine with the files.
    Local,
    /// A LUN attached over HyperSCSI.
    HyperScsi,
    /// A LUN attached over iSCSI, without digests.
    Iscsi,
    /// A file system of the other host, by an NFS server and an NFS client in user space.
    Nfs,
}

impl Carrier {
    /// All carriers; the first is what the others are compared with.
    pub(super) const ALL: [Self; 4] = [Self::Local, Self::HyperScsi, Self::Iscsi, Self::Nfs];
    /// Those with a network.
    pub(super) const REMOTE: [Self; 3] = [Self::HyperScsi, Self::Iscsi, Self::Nfs];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Local => "local disk",
            Self::HyperScsi => "HyperSCSI",
            Self::Iscsi => "iSCSI",
            Self::Nfs => "NFS",
        }
    }
}
