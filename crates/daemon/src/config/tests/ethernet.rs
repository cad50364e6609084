//! Tests of HyperSCSI: interfaces, groups and protection levels.

use security::Level;

use super::*;

#[test]
fn hyperscsi_has_interfaces_groups_and_levels() {
    let scratch = Scratch::new();
    scratch.file("backup.password", "correct horse battery\n", 0o600);
    let config = scratch.config(
        r#"
        [hyperscsi]
        interfaces = ["eth0", "eth1"]
        [[hyperscsi.group]]
        name = "Lager 7"
        interfaces = ["eth1"]
        [[hyperscsi.group]]
        name = "backup"
        password_file = "backup.password"
        [[target]]
        name = "iqn.2001-04.com.example:a"
        groups = ["backup", "Lager 7"]
        lun = [
            { type = "ram", size = "1M" },
            { type = "ram", size = "1M", protection = "encrypt", groups = ["backup"] },
        ]
        [[target]]
        name = "iqn.2001-04.com.example:b"
        groups = ["Lager 7"]
        lun = [{ type = "ram", size = "1M" }]
        "#,
    );
    assert!(config.portals.is_empty(), "nobody asked for iSCSI");
    let frames = config.hyperscsi.unwrap();
    assert_eq!(frames.interfaces, ["eth0", "eth1"]);
    let [open, secret] = frames.groups.as_slice() else { panic!("two groups") };
    assert_eq!(
        (&*open.name, open.min_protection, open.interfaces.as_deref()),
        ("Lager 7", Level::None, Some(&[1][..]))
    );
    assert_eq!(
        (&*secret.name, secret.min_protection, &secret.interfaces),
        ("backup", Level::Integrity, &None)
    );
    let Some(GroupSecret::Password(password)) = &secret.password else { panic!("a password") };
    assert_eq!(**password.0, *b"correct horse battery");
    assert!(!format!("{secret:?}").contains("horse"));
    let [a, b] = config.targets.as_slice() else { panic!("two targets") };
    assert_eq!((a.groups, b.groups), (GroupSet::NONE.with(0).with(1), GroupSet::NONE.with(0)));
    let levels: Vec<_> = a.luns.iter().map(|lun| (lun.protection, lun.groups)).collect();
    assert_eq!(levels, [(Level::None, GroupSet::ALL), (Level::Encrypt, GroupSet::NONE.with(1))]);
}

#[test]
fn a_group_without_a_target_and_a_target_without_a_group_are_odd() {
    let scratch = Scratch::new();
    let text = r#"
        [hyperscsi]
        interfaces = ["eth0"]
        [[hyperscsi.group]]
        name = "backup"
        [[target]]
        name = "iqn.2001-04.com.example:a"
        lun = [{ type = "ram", size = "1M" }]
        "#;
    let report = scratch.load(text).unwrap().report;
    check(
        &scratch.told(&report),
        "DIR/targe.toml:5:16: warning: no target is exported to group \"backup\" (by its \
         \"groups\")\nDIR/targe.toml:6:9: warning: no initiator can reach this target: there is no \
         \"portal\", and it has no \"groups\"",
    );
    let log: Vec<String> = report.warning_lines().collect();
    assert!(log.len() == 2 && !log.concat().contains("warning"), "a log says so by itself: {log:?}");
}

#[test]
fn mistakes_about_hyperscsi_have_their_places() {
    let scratch = Scratch::new();
    scratch.file("open.password", "correct horse battery", 0o644);
    let told = scratch.errors(
        r#"
        portal = [{ listen = "127.0.0.1", tag = 65535 }]
        [hyperscsi]
        interfaces = ["eth0", "eth0", "eth/0"]
        [[hyperscsi.group]]
        name = "backup"
        password_file = "open.password"
        [[hyperscsi.group]]
        name = "backup"
        protection = "encrypt"
        interfaces = ["eth2"]
        [[target]]
        name = "iqn.2001-04.com.example:a"
        groups = ["backups"]
        lun = [{ type = "ram", size = "1M", groups = ["nobody"], protection = "most" }]
        "#,
    );
    check(
        &told,
        r#"
        DIR/targe.toml:3:9: portal 127.0.0.1:3260 has the tag 65535; tags from 32768 on are reserved for the target ports of HyperSCSI groups
        DIR/targe.toml:4:31: interface "eth0" is given twice
        DIR/targe.toml:4:39: "eth/0" is not an interface name
        DIR/targe.toml:7:25: secret file DIR/open.password can be read by others (mode 644); run: chmod 600 DIR/open.password
        DIR/targe.toml:9:16: group "backup" is given twice (first on line 6)
        DIR/targe.toml:10:22: protection "encrypt" needs a "password_file"
        DIR/targe.toml:11:23: hyperscsi has no interface "eth2" (did you mean "eth0"?)
        DIR/targe.toml:14:19: hyperscsi has no group "backups" (did you mean "backup"?)
        DIR/targe.toml:15:55: hyperscsi has no group "nobody"
        DIR/targe.toml:15:79: "protection" must be one of none, integrity, encrypt, not "most"
        "#,
    );
}

#[test]
fn flags_serve_hyperscsi_with_or_without_iscsi() {
    let scratch = Scratch::new();
    let password = scratch.file("password", "correct horse battery", 0o600);
    let text = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let flags = Flags {
        interfaces: text(&["eth0", "eth1"]),
        groups: text(&["backup"]),
        group_password: Some(password),
        luns: text(&["ram:1M", "ram:1M,protection=encrypt"]),
        ..Flags::default()
    };
    let alone = scratch.flags(&flags).map_err(|report| report.to_string()).unwrap().config;
    assert!(alone.portals.is_empty());
    let frames = alone.hyperscsi.unwrap();
    assert_eq!((frames.interfaces.len(), frames.groups.len()), (2, 1));
    assert!(frames.groups[0].password.is_some());
    assert_eq!(alone.targets[0].groups, GroupSet::NONE.with(0));
    assert_eq!(alone.targets[0].luns[1].protection, Level::Encrypt);
    let beside = Flags { listen: text(&["127.0.0.1:0"]), ..flags };
    assert_eq!(scratch.flags(&beside).map_err(|report| report.to_string()).unwrap().config.portals.len(), 1);
    let half = Flags { interfaces: text(&["eth0"]), ..Flags::default() };
    let told = scratch.flags(&half).unwrap_err().to_string();
    assert!(told.contains("--iface eth0: HyperSCSI also needs --group"), "{told}");
}
