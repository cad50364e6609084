//! Tests of whole configurations: their meaning, the mistakes with their source spans, and the differences
//! between two.

mod changers;
mod discs;
mod ethernet;
mod flags;
mod isns;
mod limits;
mod mistakes;
mod nbd;
mod protection;
mod reload;
mod secrets;
mod tighten;
mod whole;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use super::*;
use crate::scratch::Scratch;

impl Scratch {
    fn file(&self, name: &str, content: impl AsRef<[u8]>, mode: u32) -> PathBuf {
        let path = self.path().join(name);
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    fn environment(&self) -> Environment {
        Environment { host: "host".to_owned(), ..Environment::for_tests(self.path()) }
    }

    fn load(&self, text: &str) -> Result<Loaded, ConfigReport> {
        let flags = Flags { config: Some(self.file("targe.toml", text, 0o600)), ..Flags::default() };
        Config::load(&flags, &self.environment())
    }

    fn flags(&self, flags: &Flags) -> Result<Loaded, ConfigReport> {
        Config::load(flags, &self.environment())
    }

    /// Returns the report with the directory's name replaced by `DIR`.
    fn told(&self, report: &ConfigReport) -> String {
        report.to_string().replace(self.path().to_str().unwrap(), "DIR")
    }

    fn errors(&self, text: &str) -> String {
        self.told(&self.load(text).expect_err("the configuration has mistakes"))
    }

    fn config(&self, text: &str) -> Config {
        let loaded = self.load(text).map_err(|report| self.told(&report)).unwrap();
        assert_eq!(loaded.report.to_string(), "");
        loaded.config
    }
}

/// Compares two texts line by line, without indentation and empty lines.
#[track_caller]
fn check(told: &str, expected: &str) {
    let lines =
        |text: &str| text.lines().map(str::trim).filter(|l| !l.is_empty()).collect::<Vec<_>>().join("\n");
    assert_eq!(lines(told), lines(expected));
}

/// Two targets that share a unit, with examples of the iSCSI tables except those for authentication.
const SHARED: &str = r#"
state_dir = "state"
nop_interval = "0s"
cores = "0-2,1,5"
[[portal]]
name = "front"
listen = "[::1]:3261"
announce = "san.example.net"
[[portal]]
listen = "127.0.0.1"
tag = 2
[session]
data_digest = "require"
max_burst_length = "128K"
[[group]]
name = "vm"
initiators = ["IQN.1994-05.com.redhat:*"]
[[lun]]
name = "data"
type = "ram"
size = "2M"
ro = true
[[target]]
name = "iqn.2001-04.com.Example:a"
[target.session]
header_digest = "forbid"
[[target.lun]]
type = "null"
size = "1T"
bs = 4096
lun = 1
[[target.lun]]
share = "data"
[[target.lun]]
type = "file"
path = "disk.img"
size = "1M"
vendor = "ACME"
[[target.acl]]
initiators = ["@vm", "eui.0123456789abcdef"]
luns = [2, { lun = 1, as = 0, ro = true }]
[[target]]
name = "iqn.2001-04.com.example:b"
portals = ["front"]
[[target.lun]]
share = "data"
lun = 9
"#;
