//! Tests of the protection that LUNs require, of access list entries that require another, and of password
//! records.

use security::Level;
use security::opaque::{Password, StretchCost};
use security::password_file::UserName;

use super::*;

const TARGET: &str = "[[target]]\nname = 'iqn.2001-04.com.example:a'\n";

impl Scratch {
    /// Makes a file of password records with these users.
    pub(super) fn records(&self, name: &str, users: &[&str]) {
        let cheap = StretchCost { memory_kib: 8, passes: 1, lanes: 1 };
        for user in users {
            let password = Password::new(b"correct horse battery").unwrap();
            crate::passwords::set(&self.path().join(name), &UserName::new(user).unwrap(), &password, cheap)
                .unwrap();
        }
    }
}

#[test]
fn entries_of_an_access_list_replace_the_protection_of_luns() {
    let scratch = Scratch::new();
    scratch.records("users", &["alice"]);
    let text = format!(
        "{TARGET}auth = {{ password_file = 'users' }}\n\
         lun = [{{ type = 'ram', size = '1M' }}, {{ type = 'ram', size = '1M', protection = 'integrity' }}]\n\
         [[target.acl]]\ninitiators = ['iqn.2001-04.com.example:all']\n\
         [[target.acl]]\ninitiators = ['iqn.2001-04.com.example:more']\nprotection = 'encrypt'\n\
         luns = [0, {{ lun = 1, as = 5, protection = 'integrity' }}]\n\
         [[target.acl]]\ninitiators = ['iqn.2001-04.com.example:one']\nluns = [{{ lun = 0, protection = 'encrypt' }}, 1]\n"
    );
    let config = scratch.config(&text);
    let levels =
        |luns: &[MappedLun]| -> Vec<_> { luns.iter().map(|lun| (lun.lun, lun.protection)).collect() };
    let target = &config.targets[0];
    assert_eq!(levels(&target.luns), [(0, Level::None), (1, Level::Integrity)]);
    let acl: Vec<_> = target.acl.iter().flatten().map(|entry| levels(&entry.luns)).collect();
    assert_eq!(acl[0], [(0, Level::None), (1, Level::Integrity)]);
    assert_eq!(acl[1], [(0, Level::Encrypt), (5, Level::Integrity)]);
    assert_eq!(acl[2], [(0, Level::Encrypt), (1, Level::Integrity)]);
    let raised = text.replace("protection = 'integrity' }]", "protection = 'encrypt' }]");
    let raised = scratch.load(&raised).unwrap().config;
    assert!(!Config::diff(&config, &raised).to_string().is_empty());
    let other = text.replace("{ lun = 0, protection = 'encrypt' }", "{ lun = 0, protection = 'integrity' }");
    let told = Config::diff(&config, &scratch.load(&other).unwrap().config).to_string();
    assert!(told.contains("example:a"), "a change of an entry is one: {told:?}");
}

#[test]
fn lower_protection_and_luns_that_nobody_reaches_are_warned_of() {
    let scratch = Scratch::new();
    scratch.records("users", &["alice"]);
    let luns = "lun = [{ type = 'ram', size = '1M', protection = 'encrypt' }, { type = 'ram', size = '1M', protection = 'integrity' }]\n";
    for (rest, expected) in [
        (
            "",
            "1:1: warning: LUN 0 requires \"encrypt\", which no session can have: UNREACHED\n\
              1:1: warning: LUN 1 requires \"integrity\", which no session can have: UNREACHED",
        ),
        ("auth = { password_file = 'users' }\n", ""),
        (
            "auth = { password_file = 'users' }\n[[target.acl]]\ninitiators = ['*']\nprotection = 'none'\n",
            "7:14: warning: LUN 0 requires \"encrypt\", but these initiators can access it with \"none\"; another LUN likewise",
        ),
        (
            "auth = { password_file = 'users' }\n[[target.acl]]\ninitiators = ['*']\nluns = [{ lun = 0, protection = 'integrity' }, 1]\n",
            "7:33: warning: LUN 0 requires \"encrypt\", but these initiators can access it with \"integrity\"",
        ),
        (
            "[[target.acl]]\ninitiators = ['iqn.2001-04.com.example:x']\nluns = [1]\n\
             [[target.acl]]\ninitiators = ['iqn.2001-04.com.example:y']\nluns = [0]\nauth = { password_file = 'users' }\n",
            "1:1: warning: LUN 1 requires \"integrity\", which no session of \"iqn.2001-04.com.example:x\" can have: UNREACHED",
        ),
    ] {
        let text = format!("{TARGET}{luns}{rest}");
        let report = scratch.load(&text).map_err(|report| scratch.told(&report)).unwrap().report;
        let unreached = "the target has no portal with TLS and no \"password_file\", and no HyperSCSI group with a \
                         password can access the LUN";
        let lines = if rest.starts_with("auth") {
            expected.to_owned()
        } else {
            expected.replace("UNREACHED", unreached)
        };
        check(&scratch.told(&report).replace("DIR/targe.toml:", ""), &lines);
    }
}

#[test]
fn mistakes_about_protection_and_records_have_their_places() {
    let scratch = Scratch::new();
    scratch.records("users", &["alice"]);
    scratch.records("open", &["alice"]);
    fs::set_permissions(scratch.path().join("open"), fs::Permissions::from_mode(0o644)).unwrap();
    scratch.file("clear", "correct horse battery\n", 0o600);
    scratch.file("cut", "targe passwords 1\ndecoy 8,1,1 00\n", 0o600);
    for (rest, expected) in [
        (
            "auth = { password_file = 'open' }",
            "4:26: secret file DIR/open can be read by others (mode 644); run: chmod 600 DIR/open",
        ),
        (
            "auth = { password_file = 'none' }",
            "4:26: cannot read secret file DIR/none: no such file or directory",
        ),
        (
            "auth = { password_file = 'clear' }",
            "4:26: DIR/clear: no password records: the first line is not \"targe passwords 1\"",
        ),
        ("auth = { password_file = 'cut' }", "4:26: DIR/cut: line 2: not a password record"),
        (
            "auth = { method = 'none', password_file = 'users' }",
            "4:43: auth with method \"none\" takes no names or secrets",
        ),
        ("auth = { password_file = 'users', user = 'u' }", "4:8: auth has no \"secret_file\""),
        (
            "[[target.acl]]\ninitiators = ['*']\nprotection = 'most'",
            "6:14: \"protection\" must be one of none, integrity, encrypt, not \"most\"",
        ),
        (
            "[[target.acl]]\ninitiators = ['*']\nluns = [{ lun = 0, as = 1, protection = 'encrypt' }, 0]",
            "6:54: LUN 0 is exported twice with different protection",
        ),
    ] {
        let text = format!("{TARGET}lun = [{{ type = 'ram', size = '1M' }}]\n{rest}\n");
        check(&scratch.errors(&text).replace("DIR/targe.toml:", ""), expected);
    }
}

#[test]
fn a_hyperscsi_group_can_have_a_record_instead_of_its_password() {
    let scratch = Scratch::new();
    scratch.records("users", &["backup", "other"]);
    let text = |group: &str| {
        format!(
            "[hyperscsi]\ninterfaces = ['eth0']\n[[hyperscsi.group]]\nname = '{group}'\npassword_file = 'users'\n\
             {TARGET}groups = ['{group}']\nlun = [{{ type = 'ram', size = '1M', protection = 'encrypt' }}]\n"
        )
    };
    let config = scratch.config(&text("backup"));
    let Some(GroupSecret::Record(record)) = &config.hyperscsi.unwrap().groups[0].password else {
        panic!("a record")
    };
    let file = crate::passwords::read(&scratch.path().join("users")).unwrap();
    assert_eq!(file.find("backup"), Some(record));
    check(
        &scratch.errors(&text("lager")),
        "DIR/targe.toml:5:17: DIR/users has no user \"lager\"; run: targe passwd DIR/users --user \"lager\"",
    );
}

#[test]
fn a_target_whose_initiators_cannot_have_the_protection_of_its_sessions_is_warned_of() {
    let scratch = Scratch::new();
    scratch.records("users", &["alice"]);
    let lun = "lun = [{ type = 'ram', size = '1M' }]\nsession = { protection = 'encrypt' }\n";
    let load = |rest: &str| {
        let text = format!("{TARGET}{lun}{rest}");
        let loaded = scratch.load(&text).map_err(|report| scratch.told(&report)).unwrap();
        assert_eq!(loaded.config.targets[0].keys.min_protection, Level::Encrypt);
        scratch.told(&loaded.report)
    };
    let told = load("");
    assert!(told.contains("warning: no session can have protection \"encrypt\""), "{told}");
    let told = load("auth = { password_file = 'users' }\n");
    assert!(!told.contains("no session"), "{told}");
}
