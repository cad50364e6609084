//! Who may have access to a file with a secret in it.

/// The owner, the group and the permission bits of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileAccess {
    /// The user ID of the owner.
    pub owner: u32,
    /// The group ID.
    pub group: u32,
    /// The permission bits.
    pub mode: u32,
}

impl FileAccess {
    /// Returns whether the file can hold a secret of a process of `user`: nobody but its owner has access to
    /// it, or it belongs to root and its group can read it as well. `PostgreSQL` has this rule for the keys
    /// of certificates. A process that does not run as root reads such a file by its group, which only root
    /// can have chosen: `root:targe`, mode 0640, or a Secret of Kubernetes (`root:fsGroup`, mode 0440). A
    /// process of root needs no group for files of root, so `root:root` must be closed to that group.
    pub const fn is_confidential(self, user: u32) -> bool {
        let is_for_group = self.owner == ROOT && (user != ROOT || self.group != ROOT);
        let forbidden = if is_for_group { 0o037 } else { 0o077 };
        self.mode & forbidden == 0
    }

    /// Returns a mode that makes the file confidential, and leaves it readable for a process of `user`.
    pub const fn remedy(self, user: u32) -> u32 {
        if self.owner == ROOT && user != ROOT { 0o640 } else { 0o600 }
    }
}

/// The ID of root, and of its group.
const ROOT: u32 = 0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_its_owners_or_roots_and_one_groups() {
        for (owner, group, mode, for_user, for_root) in [
            (1000, 1000, 0o600, true, true),
            (1000, 1000, 0o400, true, true),
            (1000, 1000, 0o640, false, false),
            (1000, 1000, 0o604, false, false),
            (1000, 2000, 0o660, false, false),
            (0, 0, 0o600, true, true),
            (0, 2000, 0o440, true, true),
            (0, 2000, 0o640, true, true),
            (0, 0, 0o440, true, false),
            (0, 0, 0o640, true, false),
            (0, 2000, 0o660, false, false),
            (0, 2000, 0o650, false, false),
            (0, 2000, 0o644, false, false),
            (0, 2000, 0o441, false, false),
        ] {
            let access = FileAccess { owner, group, mode };
            let seen = [1000, 0].map(|user| access.is_confidential(user));
            assert_eq!(seen, [for_user, for_root], "{owner}:{group} {mode:o}");
        }
    }

    #[test]
    fn the_remedy_leaves_the_file_readable_for_the_user() {
        for (owner, user, mode) in [(0, 0, 0o600), (0, 1000, 0o640), (1000, 1000, 0o600), (1000, 0, 0o600)] {
            let access = FileAccess { owner, group: owner, mode: 0o644 };
            assert_eq!(access.remedy(user), mode);
            assert!(FileAccess { mode, ..access }.is_confidential(user));
        }
    }
}
