//! Tests of target port identifiers across several configurations.

use super::*;
use crate::config::{Environment, Flags};
use crate::scratch::Scratch;
use crate::serve::hostile_names;

const NAME: &str = "iqn.2001-04.com.example:";

/// Makes a configuration of targets that show the shared disks with these numbers, on portals with two tags.
fn config(targets: &[(&str, &[u8])]) -> Config {
    let scratch = Scratch::new();
    let file = scratch.path().join("targe.toml");
    let mut text = "portal = [{ listen = \"127.0.0.1:3260\" }, { listen = \"127.0.0.2:3260\", tag = 7 }]\n\
        [hyperscsi]\ninterfaces = [\"eth0\"]\ngroup = [{ name = \"two words\" }]\n"
        .to_owned();
    for unit in 0..4 {
        writeln!(text, "[[lun]]\nname = \"u{unit}\"\ntype = \"ram\"\nsize = \"1M\"").unwrap();
    }
    for (name, units) in targets {
        writeln!(text, "[[target]]\nname = \"{NAME}{name}\"\ngroups = [\"two words\"]").unwrap();
        for unit in *units {
            writeln!(text, "[[target.lun]]\nshare = \"u{unit}\"").unwrap();
        }
    }
    std::fs::write(&file, text).unwrap();
    let environment = Environment::for_tests(scratch.path());
    let flags = Flags { config: Some(file), ..Flags::default() };
    Config::load(&flags, &environment).map_err(|report| report.to_string()).unwrap().config
}

/// Returns the identifiers of a target's ports for portals, by tag, and that of its port for the group.
fn ids(ports: &TargetPorts, config: &Config, name: &str) -> (Vec<(u16, u16)>, u16) {
    let target =
        config.targets.iter().find(|target| target.name.as_str() == format!("{NAME}{name}")).unwrap();
    let portals = ports.of_portals(config, target).into_iter().map(|(tag, port)| (tag, port.0)).collect();
    (portals, ports.of_groups(config, target)[&0].0)
}

#[test]
fn a_new_target_renumbers_no_other_and_one_that_comes_back_finds_its_own() {
    let mut ports = TargetPorts::default();
    let first = config(&[("b", &[0]), ("c", &[0])]);
    ports.assign(&first).unwrap();
    let (b, c) = (ids(&ports, &first, "b"), ids(&ports, &first, "c"));
    assert_eq!((&b.0[..], &c.0[..]), (&[(1, 1), (7, 7)][..], &[(1, 2), (7, 3)][..]));
    // The new target sorts before the others and shares their disk.
    let second = config(&[("a", &[0, 1]), ("b", &[0]), ("c", &[0])]);
    ports.assign(&second).unwrap();
    assert_eq!((ids(&ports, &second, "b"), ids(&ports, &second, "c")), (b.clone(), c.clone()));
    let a = ids(&ports, &second, "a");
    assert_eq!(a.0, [(1, 4), (7, 5)]);
    // No other port gets the identifier of `b` while `b` is not configured.
    let third = config(&[("a", &[0]), ("c", &[0]), ("d", &[0])]);
    ports.assign(&third).unwrap();
    assert_eq!(ids(&ports, &third, "d").0, [(1, 6), (7, 8)]);
    ports.assign(&second).unwrap();
    assert_eq!((ids(&ports, &second, "a"), ids(&ports, &second, "b")), (a, b));
}

#[test]
fn the_state_of_an_older_release_keeps_the_identifiers_that_it_went_by() {
    let before = config(&[("c", &[0]), ("b", &[0]), ("z", &[1]), ("y", &[2])]);
    let mut ports = TargetPorts::positional(&before);
    let portals = |ports: &TargetPorts, name| ids(ports, &before, name).0;
    let expected =
        [("b", [(1, 1), (7, 2)]), ("c", [(1, 3), (7, 4)]), ("y", [(1, 1), (7, 7)]), ("z", [(1, 1), (7, 7)])];
    for (name, ids) in expected {
        assert_eq!(portals(&ports, name), ids, "{name}");
    }
    let more = config(&[("a", &[0]), ("b", &[0]), ("c", &[0]), ("y", &[2]), ("z", &[1])]);
    ports.assign(&more).unwrap();
    for (name, ids) in expected {
        assert_eq!(portals(&ports, name), ids, "{name}");
    }
    assert_eq!(ids(&ports, &more, "a").0, [(1, 5), (7, 6)]);
    // Two targets with the same identifiers now share a disk: the later one gets others.
    let joined = config(&[("y", &[2]), ("z", &[1, 2])]);
    ports.assign(&joined).unwrap();
    assert_eq!(
        (ids(&ports, &joined, "y").0, ids(&ports, &joined, "z").0),
        (vec![(1, 1), (7, 7)], vec![(1, 8), (7, 9)])
    );
}

#[test]
fn the_file_holds_them_and_a_damaged_one_is_refused() {
    let config = config(&[("a", &[0]), ("b", &[0])]);
    let mut ports = TargetPorts::default();
    ports.assign(&config).unwrap();
    let text = ports.encode();
    assert!(text.starts_with("targe ports 1\n1 portal 1 iqn.2001-04.com.example:a\n"), "{text}");
    assert!(text.contains(" group iqn.2001-04.com.example:a two words\n"), "{text}");
    assert_eq!(TargetPorts::decode(&text), Ok(ports));
    for at in 0..text.len() {
        let mut damaged = text.clone().into_bytes();
        damaged[at] ^= 1;
        let damaged = String::from_utf8(damaged).unwrap();
        assert_eq!(TargetPorts::decode(&damaged), Err(Damaged), "byte {at}");
        assert_eq!(TargetPorts::decode(&text[..at]), Err(Damaged), "{at} bytes");
    }
    assert_eq!(TargetPorts::decode(&TargetPorts::default().encode()), Ok(TargetPorts::default()));
}

#[test]
fn identifiers_that_are_lost_are_given_to_no_port() {
    let config = config(&[("a", &[0]), ("b", &[0])]);
    let mut first = TargetPorts::default();
    first.assign(&config).unwrap();
    let text = first.encode();
    let before: BTreeSet<u16> = first.ids.values().copied().collect();
    assert!(TargetPorts::numbers_in(&text).is_superset(&before));
    // 60 000 stands in another file.
    let mut lost = TargetPorts::numbers_in(&text);
    lost.insert(60_000);
    let mut ports = TargetPorts::without(lost.clone());
    ports.assign(&config).unwrap();
    let given = |ports: &TargetPorts| {
        let of_one = |name| {
            let (portals, group) = ids(ports, &config, name);
            portals.into_iter().map(|(_, number)| number).chain([group]).collect::<Vec<u16>>()
        };
        ["a", "b"].map(of_one).concat()
    };
    let fresh = given(&ports);
    assert!(fresh.iter().all(|number| !lost.contains(number)), "{fresh:?}");
    // The next start knows it as well.
    let mut again = TargetPorts::decode(&ports.encode()).unwrap();
    assert_eq!(again, ports);
    again.assign(&config).unwrap();
    assert_eq!(given(&again), fresh);
}

#[test]
fn when_all_were_given_those_of_ports_that_are_gone_are_given_again() {
    let config = config(&[("a", &[0])]);
    let gone = (1..=u16::MAX).map(|number| (Port::Portal(format!("{NAME}gone"), number), number));
    let mut ports = TargetPorts { ids: gone.collect() };
    ports.assign(&config).unwrap();
    let (portals, group) = ids(&ports, &config, "a");
    let given: BTreeSet<u16> = portals.iter().map(|(_, number)| *number).chain([group]).collect();
    assert_eq!((given.len(), ports.ids.len()), (3, usize::from(u16::MAX)));
}

#[test]
fn hostile_names_are_read_as_they_were_written() {
    let mut rng = base::rng::Rng::from_seed(1);
    for _ in 0..2000 {
        let port = |rng: &mut base::rng::Rng| match rng.below(2) {
            0 => Port::Portal(format!("{NAME}a"), 7),
            _ => Port::Group(format!("{NAME}a"), hostile_names::name(rng)),
        };
        let ports = TargetPorts { ids: (1..5).map(|number| (port(&mut rng), number)).collect() };
        let text = ports.encode();
        assert_eq!(TargetPorts::decode(&text), Ok(ports), "{text}");
    }
}
