//! Which reactor owns which target. Targets that share a unit must be on one; others are spread.

use std::collections::BTreeMap;

use iscsi::name::IscsiName;

use crate::config::Config;

/// The reactor that owns each target.
pub(super) type Owners = BTreeMap<IscsiName, usize>;

/// Two targets came to share a unit while they are on different reactors. Only a restart brings them together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} and {1} share a LUN now, but run on different reactors; restart targe to apply this")]
pub(super) struct Parted(IscsiName, IscsiName);

/// Returns the targets in groups that share units, as places in the configuration.
pub(super) fn components(config: &Config) -> Vec<Vec<usize>> {
    let mut group: Vec<usize> = (0..config.targets.len()).collect();
    let mut first_of_unit: BTreeMap<usize, usize> = BTreeMap::new();
    for (at, target) in config.targets.iter().enumerate() {
        for lun in &target.luns {
            let first = *first_of_unit.entry(lun.unit.0).or_insert(at);
            let (from, to) = (group.get(at).copied(), group.get(first).copied());
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

/// Gives each target a reactor: the one that it, or one that it shares a unit with, had before; else the one with the
/// fewest targets.
pub(super) fn owners(config: &Config, before: &Owners, reactors: usize) -> Result<Owners, Parted> {
    let mut owners = Owners::new();
    let mut load = vec![0_usize; reactors.max(1)];
    let components = components(config);
    let names = |component: &Vec<usize>| -> Vec<IscsiName> {
        component.iter().filter_map(|at| Some(config.targets.get(*at)?.name.clone())).collect()
    };
    let (settled, fresh): (Vec<_>, Vec<_>) =
        components.iter().map(names).partition(|names| names.iter().any(|name| before.contains_key(name)));
    for names in settled.into_iter().chain(fresh) {
        let mut known = names.iter().filter_map(|name| Some((name, *before.get(name)?)));
        let reactor = match known.next() {
            Some((first, reactor)) => {
                if let Some((other, _)) = known.find(|(_, other)| *other != reactor) {
                    return Err(Parted(first.clone(), other.clone()));
                }
                reactor
            }
            None => load.iter().enumerate().min_by_key(|(_, targets)| **targets).map_or(0, |(at, _)| at),
        };
        if let Some(count) = load.get_mut(reactor) {
            *count += names.len();
        }
        owners.extend(names.into_iter().map(|name| (name, reactor)));
    }
    Ok(owners)
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;
    use crate::config::{Flags, Surroundings};
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
        let around = Surroundings {
            directory: scratch.path().to_path_buf(),
            state_dir: scratch.path().to_path_buf(),
            admin_socket: None,
            host: String::new(),
            file_mode: None,
            name_is_ours: false,
        };
        let flags = Flags { config: Some(file), ..Flags::default() };
        Config::load(&flags, &around).map_err(|report| report.to_string()).unwrap().config
    }

    fn show(owners: &Owners) -> String {
        let show = |(name, reactor): (&IscsiName, &usize)| format!("{}{reactor}", &name.as_str()[24..]);
        owners.iter().map(show).collect::<Vec<_>>().join(" ")
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
        assert_eq!(show(&owners(&config, &Owners::new(), 2).unwrap()), "a0 b1 c0 d1");
        assert_eq!(show(&owners(&config, &Owners::new(), 1).unwrap()), "a0 b0 c0 d0");
    }

    #[test]
    fn targets_stay_where_they_are_and_new_ones_go_where_there_is_room() {
        let before = owners(&config(&[("b", &[0]), ("c", &[1])]), &Owners::new(), 2).unwrap();
        assert_eq!(show(&before), "b0 c1");
        let after = owners(&config(&[("a", &[2]), ("c", &[1]), ("d", &[3])]), &before, 2).unwrap();
        assert_eq!(show(&after), "a0 c1 d0");
        let joined = owners(&config(&[("a", &[1]), ("c", &[1])]), &before, 2).unwrap();
        assert_eq!(show(&joined), "a1 c1");
    }

    #[test]
    fn targets_on_different_reactors_cannot_come_to_share() {
        let before = owners(&config(&[("b", &[0]), ("c", &[1])]), &Owners::new(), 2).unwrap();
        let parted = owners(&config(&[("b", &[0]), ("c", &[0])]), &before, 2).unwrap_err();
        assert_eq!(
            parted.to_string(),
            "iqn.2001-04.com.example:b and iqn.2001-04.com.example:c share a LUN now, but run on different reactors; \
             restart targe to apply this"
        );
    }
}
