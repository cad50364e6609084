//! Placement: which reactor owns which target. Targets that share a unit must be on the same reactor; others
//! are distributed.

use std::collections::BTreeMap;

use iscsi::name::IscsiName;

use crate::config::{Config, Target, UnitKey};

/// The reactor that owns each target.
pub(super) type Owners = BTreeMap<IscsiName, usize>;

/// Targets that must be on the same reactor run on different ones. Only a restart can move them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0} and {1} must run on one reactor now, since they share a LUN, but run on different ones; restart \
     targe to apply this"
)]
pub struct PlacementConflict(String, String);

/// The reactor of each target and unit of a running daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Placement {
    pub(super) targets: Owners,
    pub(super) units: BTreeMap<UnitKey, usize>,
    /// Targets that were served earlier and the reactor of each, which still has the nexus bindings of their
    /// initiators.
    pub(super) former: Owners,
}

/// Returns the targets in groups that share units, as indices into the configuration.
pub(super) fn components(config: &Config) -> Vec<Vec<usize>> {
    let mut group: Vec<usize> = (0..config.targets.len()).collect();
    let mut first_of_unit: BTreeMap<usize, usize> = BTreeMap::new();
    for (at, target) in config.targets.iter().enumerate() {
        for lun in &target.luns {
            let first = *first_of_unit.entry(lun.unit.0).or_insert(at);
            let (from, to) = (group.get(at).copied(), group.get(first).copied());
            if from == to {
                continue;
            }
            for member in &mut group {
                if Some(*member) == from {
                    *member = to.unwrap_or(*member);
                }
            }
        }
    }
    let mut components: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (at, number) in group.into_iter().enumerate() {
        components.entry(number).or_default().push(at);
    }
    components.into_values().collect()
}

/// Assigns each target to a reactor: the one that already has the target, a target that it shares a unit
/// with, or one of their units; else the one with the fewest targets.
pub(super) fn owners(
    config: &Config,
    placement: &Placement,
    reactors: usize,
) -> Result<Owners, PlacementConflict> {
    let mut owners = Owners::new();
    let mut load = vec![0_usize; reactors.max(1)];
    let mut homeless = Vec::new();
    for component in components(config) {
        let members: Vec<&Target> = component.iter().filter_map(|at| config.targets.get(*at)).collect();
        match current_reactor(config, &members, placement)? {
            Some(reactor) => assign(&members, reactor, &mut owners, &mut load),
            None => homeless.push(members),
        }
    }
    for members in homeless {
        let roomiest = load.iter().enumerate().min_by_key(|(_, targets)| **targets).map_or(0, |(at, _)| at);
        let former = members.iter().find_map(|target| placement.former.get(&target.name).copied());
        assign(&members, former.unwrap_or(roomiest), &mut owners, &mut load);
    }
    Ok(owners)
}

fn assign(members: &[&Target], reactor: usize, owners: &mut Owners, load: &mut [usize]) {
    if let Some(count) = load.get_mut(reactor) {
        *count += members.len();
    }
    owners.extend(members.iter().map(|target| (target.name.clone(), reactor)));
}

/// Returns the reactor that has any part of a component.
fn current_reactor(
    config: &Config,
    members: &[&Target],
    placement: &Placement,
) -> Result<Option<usize>, PlacementConflict> {
    let targets = members
        .iter()
        .filter_map(|target| Some((target.name.to_string(), *placement.targets.get(&target.name)?)));
    let luns = members.iter().flat_map(|target| &target.luns);
    let units = luns.filter_map(|lun| {
        let unit = config.units.get(lun.unit.0)?;
        Some((unit.label.clone(), *placement.units.get(&unit.key())?))
    });
    let mut settled = targets.chain(units);
    let Some((first, reactor)) = settled.next() else { return Ok(None) };
    match settled.find(|(_, other)| *other != reactor) {
        Some((other, _)) => Err(PlacementConflict(first, other)),
        None => Ok(Some(reactor)),
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;
    use crate::config::{Environment, Flags};
    use crate::scratch::Scratch;

    /// Makes a configuration of targets `a`, `b`, … that show the shared units with these numbers.
    fn config(targets: &[(&str, &[u8])]) -> Config {
        let scratch = Scratch::new();
        let file = scratch.path().join("targe.toml");
        let mut text = String::new();
        for unit in 0..4 {
            writeln!(text, "[[lun]]\nname = \"u{unit}\"\ntype = \"ram\"\nsize = \"1M\"").unwrap();
        }
        for (name, units) in targets {
            writeln!(text, "[[target]]\nname = \"iqn.2001-04.com.example:{name}\"").unwrap();
            for unit in *units {
                writeln!(text, "[[target.lun]]\nshare = \"u{unit}\"").unwrap();
            }
        }
        std::fs::write(&file, text).unwrap();
        let environment = Environment::for_tests(scratch.path());
        let flags = Flags { config: Some(file), ..Flags::default() };
        Config::load(&flags, &environment).map_err(|report| report.to_string()).unwrap().config
    }

    fn show(owners: &Owners) -> String {
        let show = |(name, reactor): (&IscsiName, &usize)| format!("{}{reactor}", &name.as_str()[24..]);
        owners.iter().map(show).collect::<Vec<_>>().join(" ")
    }

    /// Returns the placement of a daemon that serves `config` with these owners.
    fn placement(config: &Config, owners: &Owners) -> Placement {
        let units = config.targets.iter().flat_map(|target| {
            target.luns.iter().map(|lun| (config.units[lun.unit.0].key(), owners[&target.name]))
        });
        Placement { targets: owners.clone(), units: units.collect(), ..Placement::default() }
    }

    #[test]
    fn targets_that_share_stay_together() {
        for (targets, expected) in [
            (&[("a", &[0][..]), ("b", &[1]), ("c", &[2])][..], vec![vec![0], vec![1], vec![2]]),
            (&[("a", &[0]), ("b", &[1]), ("c", &[0])], vec![vec![0, 2], vec![1]]),
            (&[("a", &[0]), ("b", &[1]), ("c", &[2]), ("d", &[0, 2])], vec![vec![0, 2, 3], vec![1]]),
            (&[("a", &[0, 1]), ("b", &[1, 2]), ("c", &[2, 3])], vec![vec![0, 1, 2]]),
        ] {
            let mut found = components(&config(targets));
            found.sort();
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn reactors_get_as_many_targets_each() {
        let config = config(&[("a", &[0]), ("b", &[1]), ("c", &[2]), ("d", &[3])]);
        assert_eq!(show(&owners(&config, &Placement::default(), 2).unwrap()), "a0 b1 c0 d1");
        assert_eq!(show(&owners(&config, &Placement::default(), 1).unwrap()), "a0 b0 c0 d0");
    }

    #[test]
    fn targets_stay_where_they_are_and_new_ones_go_where_there_is_room() {
        let first = config(&[("b", &[0]), ("c", &[1])]);
        let before = owners(&first, &Placement::default(), 2).unwrap();
        assert_eq!(show(&before), "b0 c1");
        let placement = placement(&first, &before);
        let next = |targets: &[(&str, &[u8])]| show(&owners(&config(targets), &placement, 2).unwrap());
        assert_eq!(next(&[("a", &[2]), ("c", &[1]), ("d", &[3])]), "a0 c1 d0");
        assert_eq!(next(&[("a", &[1]), ("c", &[1])]), "a1 c1");
    }

    #[test]
    fn a_target_that_comes_back_goes_where_it_was() {
        let placement = Placement {
            former: BTreeMap::from([("iqn.2001-04.com.example:c".parse().unwrap(), 1)]),
            ..placement(
                &config(&[("b", &[0])]),
                &BTreeMap::from([("iqn.2001-04.com.example:b".parse().unwrap(), 1)]),
            )
        };
        let now = config(&[("b", &[0]), ("c", &[1])]);
        assert_eq!(show(&owners(&now, &placement, 2).unwrap()), "b1 c1");
        let elsewhere = config(&[("b", &[0]), ("d", &[1])]);
        assert_eq!(show(&owners(&elsewhere, &placement, 2).unwrap()), "b1 d0");
    }

    #[test]
    fn what_is_on_different_reactors_cannot_come_to_belong_together() {
        let first = config(&[("b", &[0]), ("c", &[1])]);
        let placement = placement(&first, &owners(&first, &Placement::default(), 2).unwrap());
        let parted = owners(&config(&[("b", &[0]), ("c", &[0])]), &placement, 2).unwrap_err();
        assert_eq!(
            parted.to_string(),
            "iqn.2001-04.com.example:b and iqn.2001-04.com.example:c must run on one reactor now, since they \
             share a LUN, but run on different ones; restart targe to apply this"
        );
    }

    #[test]
    fn a_target_goes_where_its_unit_is() {
        // A shared unit's world-wide name is derived from the first target that shows the unit, so this
        // target keeps its name.
        let first = config(&[("a", &[0]), ("b", &[1, 2])]);
        let before = owners(&first, &Placement::default(), 2).unwrap();
        let placement = placement(&first, &before);
        let mut moved = first.clone();
        moved.targets[1].name = "iqn.2001-04.com.example:c".parse().unwrap();
        assert_eq!(show(&owners(&moved, &placement, 2).unwrap()), "a0 c1");
    }
}
