//! The lines to paste that `targe serve` prints: how this and other programs use the first target.

use daemon::config::{Auth, AuthMethods, Medium, Target};

use crate::shell::quoted;

/// How initiators reach a LUN.
pub(crate) struct WayIn<'a> {
    /// The name by which this program is called again.
    pub(crate) targe: &'a str,
    pub(crate) target: &'a Target,
    /// The address of the portal.
    pub(crate) portal: &'a str,
    /// Whether the portal speaks TLS.
    pub(crate) tls: bool,
    /// The medium of each LUN by its unit.
    pub(crate) medium: &'a dyn Fn(daemon::config::UnitIndex) -> Option<&'a Medium>,
}

/// What one initiator must say, and which LUN it gets.
struct Login<'a> {
    /// The initiator name, where not every name is admitted.
    initiator: Option<String>,
    auth: &'a Auth,
    lun: u64,
    is_disk: bool,
}

impl WayIn<'_> {
    /// Returns the lines, each below the name of a program.
    pub(crate) fn lines(&self) -> String {
        let login = self.login();
        match login.auth {
            // Other programs know no password login, and no TLS.
            Auth::Required(AuthMethods { chap: None, .. }) => {
                self.through_proxy(&login, "auth=opaque&password_file=FILE")
            }
            _ if self.tls => self.through_proxy(&login, "tls_ca=FILE"),
            _ => self.direct(&login),
        }
    }

    fn login(&self) -> Login<'_> {
        let entry = self.target.acl.as_ref().and_then(|acl| {
            let is_exact = |entry: &&daemon::config::AclEntry| {
                entry.initiators.iter().any(|name| !name.as_str().contains('*'))
            };
            acl.iter().find(is_exact).or_else(|| acl.first())
        });
        let (auth, luns) =
            entry.map_or((&self.target.auth, &self.target.luns), |entry| (&entry.auth, &entry.luns));
        let pattern = entry.and_then(|entry| {
            let names = || entry.initiators.iter().map(daemon::config::NamePattern::as_str);
            names().find(|name| !name.contains('*')).or_else(|| names().next())
        });
        let initiator = pattern.filter(|pattern| *pattern != "*").map(|pattern| pattern.replace('*', "host"));
        let first = luns.first();
        let medium = first.and_then(|lun| (self.medium)(lun.unit));
        let is_disk =
            !matches!(medium, Some(Medium::Tape { .. } | Medium::Changer { .. } | Medium::Disc { .. }));
        Login { initiator, auth, lun: first.map_or(0, |lun| lun.lun.into()), is_disk }
    }

    /// Returns the line for targe: it benchmarks a disk, and describes any other device.
    fn own_line(&self, url: &str, login: &Login<'_>) -> String {
        let targe = self.targe;
        let url = quoted(url);
        if login.is_disk {
            format!("targe:\n  {targe} bench {url} --random\n")
        } else {
            format!("targe:\n  {targe} info {url}\n")
        }
    }

    fn direct(&self, login: &Login<'_>) -> String {
        let (name, portal, lun) = (&self.target.name, self.portal, login.lun);
        let user = match login.auth {
            Auth::Required(AuthMethods { chap: Some(chap), .. }) => Some(chap.user.name.as_str()),
            _ => None,
        };
        let before = user.map_or(String::new(), |user| format!("{user}%SECRET@"));
        let url = format!("iscsi://{before}{portal}/{name}/{lun}");
        let node = format!("sudo iscsiadm --mode node --targetname {name} --portal {portal}");
        let mut text = "\nLinux (open-iscsi):\n".to_owned();
        if let Some(initiator) = &login.initiator {
            text += &format!(
                "  echo InitiatorName={initiator} | sudo tee /etc/iscsi/initiatorname.iscsi && sudo systemctl restart iscsid\n"
            );
        }
        text += &format!("  sudo iscsiadm --mode discovery --type sendtargets --portal {portal}\n");
        for (key, value) in user
            .into_iter()
            .flat_map(|user| [("authmethod", "CHAP"), ("username", user), ("password", "SECRET")])
        {
            text +=
                &format!("  {node} --op update --name node.session.auth.{key} --value {}\n", quoted(value));
        }
        text += &format!("  {node} --login\n");
        let named = login
            .initiator
            .as_ref()
            .map_or(String::new(), |initiator| format!("--initiator-name={initiator} "));
        text += &format!(
            "libiscsi:\n  iscsi-ls {named}--show-luns {}\n  iscsi-inq {named}{}\n",
            quoted(&format!("iscsi://{before}{portal}")),
            quoted(&url)
        );
        if login.is_disk {
            text += &self.qemu(login, user, &url);
        }
        let query =
            login.initiator.as_ref().map_or(String::new(), |initiator| format!("?initiator={initiator}"));
        text + &self.own_line(&(url + &query), login)
    }

    fn qemu(&self, login: &Login<'_>, user: Option<&str>, url: &str) -> String {
        let Some(initiator) = &login.initiator else {
            let url = quoted(url);
            return format!(
                "QEMU:\n  qemu-img info {url}\n  qemu-system-x86_64 -drive file={url},format=raw,if=virtio\n"
            );
        };
        // A URL of QEMU has no place for the initiator name.
        let (name, lun) = (self.target.name.to_string(), login.lun.to_string());
        let place = [
            ("driver", "iscsi"),
            ("transport", "tcp"),
            ("portal", self.portal),
            ("target", &name),
            ("lun", &lun),
        ];
        let proof = user.into_iter().flat_map(|user| [("user", user), ("password-secret", "chap")]);
        let pairs: Vec<_> =
            place.into_iter().chain([("initiator-name", initiator.as_str())]).chain(proof).collect();
        let options = |prefix: &str| {
            pairs.iter().map(|(key, value)| format!("{prefix}{key}={value}")).collect::<Vec<_>>().join(",")
        };
        let secret = user.map_or("", |_| " -object secret,id=chap,data=SECRET");
        format!(
            "QEMU:\n  qemu-img info{} --image-opts {}\n  qemu-system-x86_64{secret} -drive {},format=raw,if=virtio\n",
            secret.replace(" -object", " --object"),
            quoted(&options("")),
            quoted(&options("file."))
        )
    }

    fn through_proxy(&self, login: &Login<'_>, key: &str) -> String {
        let (name, portal, lun, targe) = (&self.target.name, self.portal, login.lun, self.targe);
        let user = if matches!(login.auth, Auth::None) { "" } else { "USER@" };
        let initiator =
            login.initiator.as_ref().map_or(String::new(), |initiator| format!("&initiator={initiator}"));
        let proxied = quoted(&format!("iscsi://{user}{portal}?{key}"));
        let url = format!("iscsi://{user}{portal}/{name}/{lun}?{key}{initiator}");
        format!(
            "\nOther initiators, at 127.0.0.1:3260 of their own host:\n  {targe} proxy {proxied}\n{}",
            self.own_line(&url, login)
        )
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::atomic::{AtomicU32, Ordering};

    use daemon::config::{Config, Environment, Flags};

    use super::*;

    fn lines(target: &str, portal: &str) -> String {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("targe-ways-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let secret = dir.join("secret");
        std::fs::write(&secret, "0123456789abcdef").unwrap();
        std::fs::set_permissions(&secret, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        let text = format!(
            "[[portal]]\nlisten = \"127.0.0.1:3260\"\n[[target]]\nname = \"iqn.2026-11.test:a\"\n{target}"
        );
        let environment = Environment {
            directory: dir.clone(),
            state_dir: dir.join("state"),
            ..Environment::from_process().unwrap()
        };
        let loaded = Config::load_text(
            &Flags { config: Some(dir.join("targe.toml")), ..Flags::default() },
            &environment,
            Path::new("targe.toml"),
            &text,
            None,
        );
        std::fs::remove_dir_all(&dir).unwrap();
        let config = loaded.unwrap().config;
        let medium = |unit: daemon::config::UnitIndex| config.units.get(unit.0).map(|unit| &unit.medium);
        let way = WayIn { targe: "targe", target: &config.targets[0], portal, tls: false, medium: &medium };
        way.lines()
    }

    const RAM: &str = "[[target.lun]]\ntype = \"ram\"\nsize = \"1M\"\nlun = 3\n";
    const CHAP: &str = "user = \"alice\"\nsecret_file = \"secret\"\n";

    #[test]
    fn an_open_target_needs_neither_name_nor_secret() {
        let text = lines(RAM, "127.0.0.1:3260");
        assert!(text.contains("  qemu-img info iscsi://127.0.0.1:3260/iqn.2026-11.test:a/3\n"), "{text}");
        assert!(
            text.contains("  targe bench iscsi://127.0.0.1:3260/iqn.2026-11.test:a/3 --random\n"),
            "{text}"
        );
        assert!(!text.contains("SECRET") && !text.contains("nitiator"), "{text}");
    }

    #[test]
    fn a_secret_is_part_of_every_line_that_logs_in() {
        let text = lines(&format!("[target.auth]\n{CHAP}{RAM}"), "127.0.0.1:3260");
        for key in ["authmethod --value CHAP", "username --value alice", "password --value SECRET"] {
            assert!(text.contains(&format!("node.session.auth.{key}\n")), "{key}: {text}");
        }
        assert!(text.contains("iscsi-inq iscsi://alice%SECRET@127.0.0.1:3260/"), "{text}");
    }

    #[test]
    fn an_access_list_names_the_initiator_and_its_first_lun() {
        let acl = format!(
            "[[target.acl]]\ninitiators = [\"iqn.2026-11.test:h*\", \"iqn.2026-11.test:one\"]\nluns = [{{ lun = 3, as = 0 }}]\n[target.acl.auth]\n{CHAP}"
        );
        let text = lines(&format!("{RAM}{acl}"), "[::1]:3260");
        for line in [
            "  iscsi-ls --initiator-name=iqn.2026-11.test:one --show-luns 'iscsi://alice%SECRET@[::1]:3260'\n",
            "  qemu-img info --object secret,id=chap,data=SECRET --image-opts 'driver=iscsi,transport=tcp,portal=[::1]:3260,target=iqn.2026-11.test:a,lun=0,initiator-name=iqn.2026-11.test:one,user=alice,password-secret=chap'\n",
            "  targe bench 'iscsi://alice%SECRET@[::1]:3260/iqn.2026-11.test:a/0?initiator=iqn.2026-11.test:one' --random\n",
            "  echo InitiatorName=iqn.2026-11.test:one | sudo tee",
        ] {
            assert!(text.contains(line), "{line}{text}");
        }
    }
}
