//! `targe --version`: from what this binary was built, and what the kernel that runs it offers. `targe -V`
//! prints the version only.

use std::error::Error;
use std::fmt::Write;
use std::io;

/// Ends the list of features with the one that no release has.
#[cfg(feature = "planted")]
macro_rules! planted {
    () => {
        ", planted bugs"
    };
}
#[cfg(not(feature = "planted"))]
macro_rules! planted {
    () => {
        ""
    };
}

/// What `--version` prints of the build. [`kernel_facilities`] follows.
pub(crate) const BUILD: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    "\n",
    env!("TARGE_COMMIT"),
    ", ",
    env!("TARGE_BUILT_FOR"),
    ", ",
    env!("TARGE_PROFILE"),
    "\nfeatures: iSCSI, HyperSCSI, TLS 1.3, LUKS2, NBD, FUSE, ublk",
    planted!()
);

/// When the commit was made, as `YYYY-MM-DD`; empty if that is unknown.
pub(crate) const COMMIT_DATE: &str = env!("TARGE_COMMIT_DATE");

/// Prints what clap has for `-V` or `--version`, and after the latter the facilities of the kernel.
pub(crate) fn print(version: &str) {
    crate::print(version);
    if version.trim_end().contains('\n') {
        crate::print(&kernel_facilities());
    }
}

/// Returns the kernel's release, and for each facility whether this process can use it, or why not.
fn kernel_facilities() -> String {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let release = if release.trim().is_empty() { "unknown" } else { release.trim() };
    let mut text = format!("kernel: Linux {release}\n");
    let facilities = [
        ("io_uring", drivers::reactor::probe_uring().map_err(|error| reason(&error))),
        (
            "Ethernet receive ring",
            drivers::ether::probe_ring().map_err(|error| match error.kind() {
                io::ErrorKind::PermissionDenied => "it needs CAP_NET_RAW".to_owned(),
                _ => reason(&error),
            }),
        ),
        ("ublk", attach::ublk::probe().map_err(|error| reason(&error))),
        ("FUSE", attach::fuse::probe().map_err(|error| reason(&error))),
    ];
    for (name, usable) in facilities {
        let told = usable.map_or_else(|why| format!("no: {why}"), |()| "yes".to_owned());
        // Writing to a string does not fail.
        let _ = writeln!(text, "  {name}: {told}");
    }
    text
}

/// Returns an error with its causes.
fn reason(error: &dyn Error) -> String {
    let (mut text, mut cause) = (error.to_string(), error.source());
    while let Some(error) = cause {
        // Writing to a string does not fail.
        let _ = write!(text, ": {error}");
        cause = error.source();
    }
    text
}
