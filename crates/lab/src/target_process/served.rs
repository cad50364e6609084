//! `targe serve` as a child process.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::{PrivateDirectory, TargetProcess};
use crate::bed::{Namespace, TARGET_ADDRESS};
use crate::experiment::LabError;

/// The name of the target.
const NAME: &str = "iqn.2026-01.com.example:lab";

/// What the line of the banner begins with after which the target serves.
const READY: &str = "State is kept";

/// The files of [`ServedTarget::start_group`] in the directory of the target.
const CONFIG: &str = "targe.toml";
const PASSWORD: &str = "password";

/// A running `targe serve`. Dropping it ends the process and removes its directory.
#[derive(Debug)]
pub struct ServedTarget {
    process: TargetProcess,
    address: SocketAddr,
}

impl ServedTarget {
    /// Starts `program serve` with these LUNs, such as `ram:64M`, on a free port, and waits until it serves:
    /// at [`TARGET_ADDRESS`] on a host of a bed, and at 127.0.0.1 on this host.
    ///
    /// # Errors
    /// [`LabError::System`] if the process cannot be started, and [`LabError::Target`] with what the program
    /// printed if it does not serve.
    pub fn start(host: Option<&Namespace>, program: &Path, luns: &[String]) -> Result<Self, LabError> {
        let system = |why| LabError::System { what: "create a directory".to_owned(), why };
        let directory = PrivateDirectory::create().map_err(system)?;
        let mut options = vec![OsString::from("--target"), OsString::from(NAME)];
        options.extend(luns.iter().map(|lun| OsString::from(format!("--lun={lun}"))));
        Self::start_in(directory, host, program, &options)
    }

    /// Starts the target on a host of a bed with RAM disks of these lengths, and with these files as the LUNs
    /// behind them. It serves them to two groups on the Ethernet of the link too: `group` without a password,
    /// and [`encrypted_group`] with one.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_group(
        host: &Namespace,
        program: &Path,
        disks: (&[u64], &[PathBuf]),
        group: &str,
    ) -> Result<Self, LabError> {
        let system = |why| LabError::System { what: "write a configuration".to_owned(), why };
        let directory = PrivateDirectory::create().map_err(system)?;
        let path = |name: &str| directory.path().join(name);
        let (config, password) = (path(CONFIG), path(PASSWORD));
        let text = configuration(disks, group, &password);
        write_private(&password, "a password of the laboratory\n").map_err(system)?;
        write_private(&config, &text).map_err(system)?;
        let options = vec![OsString::from("--config"), config.into_os_string()];
        Self::start_in(directory, Some(host), program, &options)
    }

    /// Returns the query of a URL that logs in to the encrypted group of [`Self::start_group`].
    pub fn encrypted_query(&self) -> String {
        let password = self.process.directory().path().join(PASSWORD);
        format!("?protection=encrypt&password_file={}", password.display())
    }

    /// Starts `program serve` on a host of a bed with a configuration whose first portal is `address`, and
    /// waits until it serves. `directory` may hold files that the configuration names.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub(crate) fn start_configured(
        host: &Namespace,
        program: &Path,
        directory: PrivateDirectory,
        configuration: &str,
        address: SocketAddr,
    ) -> Result<Self, LabError> {
        let file = directory.path().join("lab.toml");
        std::fs::write(&file, configuration)
            .map_err(|why| LabError::System { what: "write a configuration".to_owned(), why })?;
        let mut command = Command::new(program);
        command.args(["serve", "--ephemeral"]).arg("--config").arg(file);
        Ok(Self { address, ..Self::spawn(Some(host), command, directory)? })
    }

    fn start_in(
        directory: PrivateDirectory,
        host: Option<&Namespace>,
        program: &Path,
        options: &[OsString],
    ) -> Result<Self, LabError> {
        let listen: IpAddr = if host.is_some() { TARGET_ADDRESS } else { Ipv4Addr::LOCALHOST }.into();
        let mut command = Command::new(program);
        command.args(["serve", "--ephemeral"]).args(options);
        command.arg(format!("--listen={}", SocketAddr::new(listen, 0)));
        Self::spawn(host, command, directory)
    }

    fn spawn(
        host: Option<&Namespace>,
        mut command: Command,
        directory: PrivateDirectory,
    ) -> Result<Self, LabError> {
        command.arg("--state-dir").arg(directory.path());
        command.arg("--socket").arg(directory.path().join("admin"));
        let mut process = TargetProcess::start(host, command, directory)?;
        let mut address = None;
        process.read_until(|line| {
            address = address.or_else(|| listening(line));
            line.contains(READY).then_some(())
        })?;
        let address = address.ok_or_else(|| LabError::Target("the target listens nowhere".to_owned()))?;
        Ok(Self { process, address })
    }

    /// Returns the URL of a LUN.
    pub fn url(&self, lun: u16) -> String {
        format!("iscsi://{}/{NAME}/{lun}", self.address)
    }

    /// Returns the process.
    pub fn process(&self) -> u32 {
        self.process.process()
    }

    /// Returns all processes of the target.
    pub(crate) fn processes(&self) -> Vec<u32> {
        self.process.processes()
    }

    /// Returns the processor time that the target has used.
    ///
    /// # Errors
    /// As [`super::processor_time`].
    pub fn processor_time(&self) -> io::Result<Duration> {
        self.process.processor_time()
    }

    /// Returns why the target is not running any more, with its last messages; `None` while it is running.
    pub fn end(&mut self) -> Option<String> {
        self.process.end()
    }
}

/// Returns the name of the group beside `group` whose sessions are encrypted.
pub fn encrypted_group(group: &str) -> String {
    format!("{group}-encrypt")
}

fn configuration((disks, files): (&[u64], &[PathBuf]), group: &str, password: &Path) -> String {
    let encrypted = encrypted_group(group);
    let mut text = format!(
        "[hyperscsi]\ninterfaces = [\"eth0\"]\n[[hyperscsi.group]]\nname = \"{group}\"\n[[hyperscsi.group]]\nname = \
         \"{encrypted}\"\npassword_file = {password:?}\n[[target]]\nname = \"{NAME}\"\ngroups = [\"{group}\", \
         \"{encrypted}\"]\n"
    );
    for (lun, len) in disks.iter().enumerate() {
        text += &format!("[[target.lun]]\nlun = {lun}\ntype = \"ram\"\nsize = {len}\n");
    }
    for (lun, path) in (disks.len()..).zip(files) {
        text += &format!("[[target.lun]]\nlun = {lun}\ntype = \"file\"\npath = {path:?}\n");
    }
    text
}

/// Writes a file that only this user can read.
fn write_private(path: &Path, text: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())
}

/// Reads the address from a line of the banner: `targe 0.1.0 listens on 127.0.0.1:3260 (uring)`. Interfaces
/// follow the address after a comma.
fn listening(line: &str) -> Option<SocketAddr> {
    line.split_once("listens on ")?.1.split([' ', ',']).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_found_in_the_banner() {
        let line = "targe 0.1.0 listens on 127.0.0.1:40123 (uring)\n";
        assert_eq!(listening(line), Some("127.0.0.1:40123".parse().unwrap()));
        let line = "targe 0.1.0 listens on 10.0.0.1:40123, eth0 (io_uring)\n";
        assert_eq!(listening(line), Some("10.0.0.1:40123".parse().unwrap()));
        assert_eq!(listening(""), None);
        assert_eq!(listening("targe 0.1.0 listens on eth0 (uring)"), None);
    }
}
