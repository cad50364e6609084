//! Tests of the runtime configuration made from a configuration.

use std::path::Path;

use security::password_file::UserName;
use tls::ServerSettings;

use super::*;
use crate::config::{Environment, Flags};
use crate::scratch::Scratch;

fn config(text: &str) -> Config {
    let scratch = Scratch::new();
    let file = scratch.path().join("targe.toml");
    std::fs::write(&file, text).unwrap();
    let environment = Environment::for_tests(scratch.path());
    let flags = Flags { config: Some(file), ..Flags::default() };
    Config::load(&flags, &environment).map_err(|report| report.to_string()).unwrap().config
}

fn runtime(numbers: &mut IdAllocator, text: &str) -> RuntimeConfig {
    let config = config(text);
    let listening: Vec<SocketAddr> = config.portals.iter().map(|portal| portal.listen).collect();
    numbers.assign_ports_and_records(&config).unwrap();
    numbers.runtime_config(Arc::new(config), &listening, &Owners::new())
}

const TWO: &str = r#"
[[portal]]
listen = "0.0.0.0:3260"
announce = "san.example.net"
[[portal]]
listen = "[::1]:3260"
announce = "2001:db8::1"
tag = 2
[[lun]]
name = "data"
type = "ram"
size = "1M"
bs = 4096
physical_bs = 16384
[[target]]
name = "iqn.2001-04.com.example:b"
[[target.lun]]
share = "data"
lun = 3
[[target.lun]]
type = "null"
size = "2M"
ro = true
vendor = "ACME"
[[target.acl]]
initiators = ["iqn.1994-05.com.redhat:*", "eui.*"]
luns = [{ lun = 3, as = 0, ro = true }]
[[target]]
name = "iqn.2001-04.com.example:a"
[[target.lun]]
share = "data"
"#;

#[test]
fn the_machine_is_told_who_sees_what_and_where() {
    let runtime = runtime(&mut IdAllocator::default(), TWO);
    let shard = runtime.shard_config(0);
    let announced: Vec<_> = shard
        .portals
        .iter()
        .map(|p| (p.group.0, p.bound, p.announced.as_ref().unwrap().to_string()))
        .collect();
    assert_eq!(
        announced,
        [
            (1, None, "san.example.net:3260".to_owned()),
            (2, Some("[::1]:3260".parse().unwrap()), "[2001:db8::1]:3260".to_owned())
        ]
    );
    let [a, b] = &shard.targets[..] else { panic!("two targets") };
    assert_eq!((a.name.as_str(), a.id, b.id), ("iqn.2001-04.com.example:a", TargetId(1), TargetId(0)));
    assert!(a.initiators.is_empty() && a.auth.policy.allows_none && a.auth.users.is_empty());
    let unit = a.luns[0].unit;
    assert_eq!(a.luns, [LunEntry::new(0, unit, Access::ReadWrite)]);
    assert_eq!(b.luns_of("eui.0123456789abcdef"), [LunEntry::new(0, unit, Access::ReadOnly)]);
    assert!(b.luns_of("iqn.2001-04.com.example:stranger").is_empty());
    let other = b.luns.iter().find(|lun| lun.number == 0).unwrap();
    // Here the unit itself is write-protected, for every initiator.
    assert_eq!((other.access, other.unit != unit), (Access::ReadWrite, true));
}

#[test]
fn ports_of_targets_that_share_a_unit_differ() {
    let runtime = runtime(&mut IdAllocator::default(), TWO);
    let shard = runtime.shard_config(0);
    let mut relative: Vec<u16> =
        shard.targets.iter().flat_map(|t| t.ports.iter().map(|(_, p)| p.0)).collect();
    relative.sort_unstable();
    assert_eq!(relative, [1, 2, 3, 4]);
    let (_, index, _) = runtime.units(0).next().unwrap();
    let unit = runtime.unit_config(index).unwrap();
    let ports: Vec<_> = unit.ports.iter().map(|p| (p.relative.0, p.port_name.as_str())).collect();
    assert_eq!(
        ports,
        [
            (1, "iqn.2001-04.com.example:a,t,0x0001"),
            (2, "iqn.2001-04.com.example:a,t,0x0002"),
            (3, "iqn.2001-04.com.example:b,t,0x0001"),
            (4, "iqn.2001-04.com.example:b,t,0x0002"),
        ]
    );
    assert_eq!((unit.block_size.bytes(), unit.physical_exponent, unit.transfer_blocks_max), (4096, 2, 2048));
}

#[test]
fn ports_of_a_target_on_its_own_are_its_tags() {
    let text = TWO
        .replace("[[target]]\nname = \"iqn.2001-04.com.example:a\"\n[[target.lun]]\nshare = \"data\"\n", "");
    let runtime = runtime(&mut IdAllocator::default(), &text);
    let shard = runtime.shard_config(0);
    assert_eq!(shard.targets[0].ports.iter().map(|(_, port)| port.0).collect::<Vec<_>>(), [1, 2]);
    let (_, index, _) = runtime.units(0).nth(1).unwrap();
    let unit = runtime.unit_config(index).unwrap();
    assert_eq!((&unit.identity.vendor, unit.read_only), (b"ACME    ", true));
}

#[test]
fn numbers_stay_with_what_they_name() {
    let mut numbers = IdAllocator::default();
    let first = runtime(&mut numbers, TWO);
    // The null disk grows, which makes it another disk; everything else keeps its identifier.
    let second = runtime(&mut numbers, &TWO.replace("2M", "4M").replace("[::1]:3260", "[::1]:3261"));
    let ids = |b: &RuntimeConfig| b.units(0).map(|(id, ..)| id.0).collect::<Vec<_>>();
    assert_eq!((ids(&first), ids(&second)), (vec![0, 1], vec![0, 2]));
    assert_eq!(first.targets, second.targets);
    let grown = |b: &RuntimeConfig, before| {
        b.units(0).map(|(id, ..)| b.presents_otherwise(before, id)).collect::<Vec<_>>()
    };
    assert_eq!(grown(&second, &first), [false, false]);
    let renamed = runtime(&mut numbers, &TWO.replace("ACME", "EMCA").replace("2M", "4M"));
    assert_eq!(grown(&renamed, &second), [false, true]);
    let portals = |b: &RuntimeConfig| b.portals.iter().map(|(id, _)| id.0).collect::<Vec<_>>();
    assert_eq!((portals(&first), portals(&second)), (vec![0, 1], vec![0, 2]));
}

/// A unit with the number of one that is served would be served from the medium of that one.
#[test]
fn a_new_unit_never_gets_the_number_of_a_unit_that_is_served() {
    let units = |names: &[&str]| {
        let lun =
            |name: &&str| format!("{{ type = \"null\", size = \"1M\", naa = \"300000000000000{name}\" }}");
        let luns: Vec<String> = names.iter().map(lun).collect();
        let luns = luns.join(", ");
        format!("[[target]]\nname = \"iqn.2001-04.com.example:a\"\nlun = [{luns}]\n")
    };
    let mut allocator = IdAllocator::default();
    let before = runtime(&mut allocator, &units(&["1", "2"]));
    // All numbers were given out once.
    allocator.next_unit = before.units[0].0;
    let after = runtime(&mut allocator, &units(&["3", "2"]));
    assert!(!before.units.contains(&after.units[0]), "{:?} {:?}", before.units, after.units);
    assert_eq!(before.units[1], after.units[1]);
    // The number is free when the unit is not served any more.
    allocator.next_unit = before.units[0].0;
    let last = runtime(&mut allocator, &units(&["3", "2", "4"]));
    assert_eq!(last.units, [after.units[0], after.units[1], before.units[0]]);
}

#[test]
fn several_portals_may_take_any_free_port() {
    let text = TWO.replace("0.0.0.0:3260", "127.0.0.1:0").replace("[::1]:3260", "127.0.0.1:0");
    let runtime = runtime(&mut IdAllocator::default(), &text);
    assert_eq!(runtime.portals.iter().map(|(id, _)| id.0).collect::<Vec<_>>(), [0, 1]);
}

#[test]
fn chap_is_asked_of_whom_the_configuration_names() {
    let scratch = Scratch::new();
    let secret = scratch.path().join("secret");
    std::fs::write(&secret, "twelve bytes").unwrap();
    std::fs::set_permissions(&secret, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let auth = format!("user = \"u\"\nsecret_file = {secret:?}\nalgorithms = [\"SHA-256\"]\n");
    let text = format!(
        "[discovery.auth]\n{auth}[[target]]\nname = \"iqn.2001-04.com.example:a\"\n[target.auth]\n{auth}\
         [[target.lun]]\ntype = \"ram\"\nsize = \"1M\"\n\
         [[target.acl]]\ninitiators = [\"iqn.2001-04.com.example:free\"]\nauth = {{ method = \"none\" }}\n\
         [[target.acl]]\ninitiators = [\"*\"]\n"
    );
    let runtime = runtime(&mut IdAllocator::default(), &text);
    let shard = runtime.shard_config(0);
    assert!(!shard.discovery.auth.policy.allows_none);
    let target = &shard.targets[0];
    assert!(target.auth_of("iqn.2001-04.com.example:free").policy.allows_none);
    let AuthConfig { policy, users, passwords } = target.auth_of("iqn.2001-04.com.example:other");
    assert_eq!(*passwords, None);
    assert!(!policy.allows_none && policy.chap.contains(iscsi::chap::Algorithm::Sha256));
    assert!(!policy.chap.contains(iscsi::chap::Algorithm::Md5));
    assert_eq!((users.len(), users[0].name.as_str()), (1, "u"));
}

/// The wiring of the password login needs the records and no CHAP; nothing is open to anyone meanwhile.
#[test]
fn password_records_reach_targets_entries_and_discovery() {
    let scratch = Scratch::new();
    let file = scratch.path().join("users");
    let cheap = security::opaque::StretchCost { memory_kib: 8, passes: 1, lanes: 1 };
    let (alice, password) = (UserName::new("alice").unwrap(), Password::new(b"correct horse").unwrap());
    crate::passwords::set(&file, &alice, &password, cheap).unwrap();
    let auth = format!("password_file = {file:?}\n");
    let text = format!(
        "[discovery.auth]\n{auth}[[target]]\nname = \"iqn.2001-04.com.example:a\"\n[[target.lun]]\ntype = \"ram\"\n\
         size = \"1M\"\n[[target.acl]]\ninitiators = [\"iqn.2001-04.com.example:x\"]\n[target.acl.auth]\n{auth}\
         [[target]]\nname = \"iqn.2001-04.com.example:b\"\n[target.auth]\n{auth}[[target.lun]]\ntype = \"ram\"\n\
         size = \"1M\"\n"
    );
    let runtime = runtime(&mut IdAllocator::default(), &text);
    let shard = runtime.shard_config(0);
    let [a, b] = shard.targets.as_slice() else { panic!("two targets") };
    for auth in [&shard.discovery.auth, a.auth_of("iqn.2001-04.com.example:x"), b.auth_of("iqn.any")] {
        assert!(!auth.policy.allows_none && auth.users.is_empty());
        let records = auth.passwords.as_ref().unwrap();
        assert!(records.find("alice").is_some() && records.find("bob").is_none());
    }
    assert_eq!(a.auth.passwords, None);
}

#[test]
fn a_portal_that_gets_tls_is_another_one() {
    let mut ids = IdAllocator::default();
    let plain = config(TWO);
    let mut tls = plain.clone();
    let (scratch, source) =
        (Scratch::new(), Path::new(env!("CARGO_MANIFEST_DIR")).join("../tls/src/testdata"));
    let key = scratch.path().join("key");
    std::fs::copy(source.join("target.key"), &key).unwrap();
    std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    tls.portals[0].tls = Some(ServerSettings::read(&source.join("target.crt"), &key, None).unwrap());
    let (before, with, again) = (ids.portals(&plain)[0], ids.portals(&tls)[0], ids.portals(&plain)[0]);
    assert_ne!(before, with);
    assert_eq!(before, again);
}

#[test]
fn a_reactor_serves_its_own_targets_and_tells_of_all() {
    let text = TWO.replace("share = \"data\"\nlun = 3", "type = \"ram\"\nsize = \"1M\"\nlun = 3");
    let config = config(&text);
    let listening: Vec<SocketAddr> = config.portals.iter().map(|portal| portal.listen).collect();
    let owners = Owners::from([
        ("iqn.2001-04.com.example:a".parse().unwrap(), 0),
        ("iqn.2001-04.com.example:b".parse().unwrap(), 1),
    ]);
    let runtime = IdAllocator::default().runtime_config(Arc::new(config), &listening, &owners);
    assert_eq!(runtime.owners(), owners);
    let served = |reactor| {
        let targets = runtime.shard_config(reactor).targets;
        targets.iter().map(|t| (t.sessions_max > 0, t.luns.len())).collect::<Vec<_>>()
    };
    assert_eq!((served(0), served(1)), (vec![(true, 1), (false, 0)], vec![(false, 0), (true, 2)]));
    let foreign = runtime.shard_config(0);
    assert!(foreign.targets[1].luns_of("eui.0123456789abcdef").is_empty());
    let labels = |reactor| runtime.units(reactor).map(|(.., unit)| unit.label.clone()).collect::<Vec<_>>();
    assert_eq!(labels(0), ["data"]);
    assert_eq!(labels(1), ["iqn.2001-04.com.example:b/3", "iqn.2001-04.com.example:b/0"]);
}

const GROUPS: &str = r#"
portal = [{ listen = "127.0.0.1" }]
[hyperscsi]
interfaces = ["eth0"]
[[hyperscsi.group]]
name = "backup"
[[hyperscsi.group]]
name = "guests"
[[lun]]
name = "data"
type = "ram"
size = "1M"
[[target]]
name = "iqn.2001-04.com.example:a"
groups = ["backup", "guests"]
lun = [{ share = "data" }]
"#;

const NEIGHBOUR: &str = r#"
[[target]]
name = "iqn.2001-04.com.example:Z"
groups = ["archive", "backup"]
lun = [{ share = "data" }]
"#;

#[test]
fn each_group_has_a_target_port_that_nothing_else_in_the_file_moves() {
    let ports = |text: &str, at: usize| {
        let runtime = runtime(&mut IdAllocator::default(), text);
        let name = runtime.config.targets[at].name.clone();
        let shard = runtime.shard_config(0);
        let target = shard.targets.into_iter().find(|target| target.name == name).unwrap();
        let mut all: Vec<u16> =
            runtime.unit_config(UnitIndex(0)).unwrap().ports.iter().map(|port| port.relative.0).collect();
        let count = all.len();
        all.dedup();
        assert_eq!(all.len(), count, "the unit shows each port once: {all:?}");
        for (_, port) in &target.groups {
            assert!(all.contains(&port.0) && port.0 >= 0x8000);
        }
        target
            .groups
            .into_iter()
            .map(|(group, port)| ((*group).to_owned(), port.0))
            .collect::<BTreeMap<_, _>>()
    };
    let first = ports(GROUPS, 0);
    assert_eq!(first.len(), 2);
    assert_ne!(first["backup"], first["guests"]);
    let (head, tail) = GROUPS.split_once("[[hyperscsi.group]]").unwrap();
    let earlier =
        format!("{head}[[hyperscsi.group]]\nname = \"archive\"\n[[hyperscsi.group]]{tail}{NEIGHBOUR}");
    assert_eq!(ports(&earlier, 0), first);
    let other = ports(&earlier, 1);
    assert!(other.len() == 2 && other["backup"] != first["backup"]);
}

#[test]
fn a_unit_that_becomes_read_only_or_gets_a_port_is_changed_first() {
    let mut numbers = IdAllocator::default();
    let before = runtime(&mut numbers, TWO);
    let mut changed_first = |text: &str| {
        let after = runtime(&mut numbers, text);
        after.units(0).map(|(id, ..)| after.is_changed_first(&before, id)).collect::<Vec<_>>()
    };
    assert_eq!(changed_first(TWO), [false, false]);
    let read_only = TWO.replace("size = \"1M\"", "size = \"1M\"\nro = true");
    assert_eq!(changed_first(&read_only), [true, false]);
    assert_eq!(changed_first(&TWO.replace("ro = true\nvendor", "vendor")), [false, false]);
    let another = "[[target]]\nname = \"iqn.2001-04.com.example:c\"\n[[target.lun]]\nshare = \"data\"\n";
    assert_eq!(changed_first(&format!("{TWO}{another}")), [true, false]);
    // A port that goes is no reason: hosts lose the LUN before the unit loses the port.
    let fewer = TWO.split("[[target]]\nname = \"iqn.2001-04.com.example:a\"").next().unwrap();
    assert_eq!(changed_first(fewer), [false, false]);
}

#[test]
fn a_new_interface_does_not_get_a_number_that_another_process_has_assigned() {
    let mut numbers = IdAllocator::default();
    // The process that served had `eth0` as number 0 once.
    numbers.restore_interfaces(&[(EtherPort(1), "eth1".to_owned())]);
    let both = GROUPS.replace(r#"["eth0"]"#, r#"["eth1", "eth2", "eth3"]"#);
    let interfaces = runtime(&mut numbers, &both).interfaces;
    let numbered: Vec<_> = interfaces.iter().map(|(port, name)| (name.as_str(), port.0)).collect();
    assert_eq!(numbered, [("eth1", 1), ("eth2", 2), ("eth3", 3)]);
}
