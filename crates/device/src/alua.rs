//! Asymmetric logical unit access (SPC-4 §5.16.2): every target port group is always active and optimized.
//!
//! TPGS reports that only the target changes access states; SET TARGET PORT GROUPS is not supported.

use alloc::vec::Vec;

use scsi::target_port_groups::{AccessState, Format, Group, Groups};

use crate::contract::TargetPort;

/// Returns the groups that `ports` form, by group number.
pub(crate) fn groups(ports: &[TargetPort], format: Format) -> Groups {
    let mut groups: Vec<Group> = Vec::new();
    for port in ports {
        match groups.iter_mut().find(|group| group.number == port.group) {
            Some(group) => group.ports.push(port.relative.0),
            None => groups.push(Group {
                preferred: false,
                state: AccessState::ACTIVE_OPTIMIZED,
                supported: Group::ACTIVE_OPTIMIZED_SUPPORTED,
                number: port.group,
                status: 0,
                ports: Vec::from([port.relative.0]),
            }),
        }
    }
    groups.sort_by_key(|group| group.number);
    Groups { format, groups }
}

#[cfg(test)]
mod tests {
    use alloc::string::String;
    use alloc::vec;

    use super::*;
    use crate::contract::RelativePort;

    #[test]
    fn ports_are_told_by_group() {
        let port = |relative, group| TargetPort {
            relative: RelativePort(relative),
            group,
            port_name: String::new(),
            device_name: String::new(),
            protocol: 5,
        };
        let groups = groups(&[port(1, 2), port(2, 1), port(3, 2)], Format::LengthOnly).groups;
        let told: Vec<_> = groups.iter().map(|group| (group.number, group.ports.clone())).collect();
        assert_eq!(told, [(1, vec![2]), (2, vec![1, 3])]);
        assert!(groups.iter().all(|group| group.state == AccessState::ACTIVE_OPTIMIZED));
    }
}
