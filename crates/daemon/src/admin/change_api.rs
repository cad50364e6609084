//! The types of the admin protocol by which the running configuration is changed.
//!
//! A client reads the file, asks for a `plan`, sends `prepare`, replaces the file, and sends `commit`, all
//! over one connection. The daemon opens everything that the change needs before it answers `prepare`, so
//! that nothing can fail afterwards. If the connection breaks before `commit` or `abandon`, the daemon looks
//! at the file: it applies the change if the file has the prepared revision, and drops it otherwise.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::config;

use super::shape::{Described, Field, Object, Shape, object, words};

object! {
    /// A configuration that is to replace the running one.
    Change {
        /// The text of the file.
        text: String,
        /// How messages about mistakes call the file.
        name: String,
        /// The revision (SHA-256) of the configuration file that the text was made from; the request fails if
        /// the file has another one. Null for no check.
        base: Option<String>,
        /// The generation of the running configuration that the client has seen; the request fails if it is
        /// another one. Null for no check.
        generation: Option<u64>,
        /// What the operator did, in a few words, for the audit log.
        action: String,
    }
}

object! {
    /// What a change would do.
    Plan {
        /// The absolute path of the configuration file.
        file: String,
        /// The revision of the text.
        revision: String,
        /// The revision of the configuration file now; null if it cannot be read.
        base: Option<String>,
        /// The generation of the running configuration. It increases with every change.
        generation: u64,
        /// The differences between the running configuration and the text.
        changes: Vec<PlannedChange>,
        /// The warnings about the text, and what the operator should know before the change.
        warnings: Vec<String>,
        /// The sessions that the change ends or takes LUNs from, and those that could not log in again. The
        /// initiator ports that lost their session in the last ten minutes are listed like sessions.
        sessions: Vec<AffectedSession>,
        /// Why the daemon would refuse the change, as far as it can tell without opening anything; null if it
        /// would not.
        refusal: Option<String>,
        /// The differences between the running configuration and the configuration file now: changes that
        /// were made to the file and not applied.
        unapplied: Vec<String>,
    }
}

object! {
    /// A session that loses something by a change, or an initiator port that lost its session lately and
    /// would not find its LUNs again.
    AffectedSession {
        /// The target's name.
        target: String,
        /// The initiator's name.
        initiator: String,
        /// The ISID, 12 hexadecimal digits.
        isid: String,
        /// Whether there is a session now. If not, the host may still have the LUNs open, and log in again.
        logged_in: bool,
        /// Whether the session ends.
        ends: bool,
        /// The LUNs that it sees now, or would see if it logged in now, and loses.
        luns: Vec<u16>,
        /// The protection that its next login needs and this session does not have: `integrity` or `encrypt`;
        /// null if its initiator can log in again as it did.
        login_needs: Option<String>,
        /// Whether its portal gets another portal group tag: an initiator that has stored the former one
        /// cannot log in again before it discovers the target again.
        other_tag: bool,
    }
}

object! {
    /// A difference between the running configuration and another one. It holds no secrets.
    PlannedChange {
        /// The kind of item.
        subject: Subject,
        /// The address of a portal, the name of a target, `TARGET/LUN`, or a key of the top level.
        name: String,
        /// What happens to it.
        what: What,
        /// What differs in it.
        details: Vec<String>,
        /// When the difference takes effect.
        effective: Effective,
        /// Whether running sessions can lose the target or a LUN by it.
        disruptive: bool,
    }
}

impl From<config::PlannedChange> for PlannedChange {
    fn from(change: config::PlannedChange) -> Self {
        Self {
            subject: match change.subject {
                config::Subject::Portal => Subject::Portal,
                config::Subject::Target => Subject::Target,
                config::Subject::Lun => Subject::Lun,
                config::Subject::Access => Subject::Access,
                config::Subject::Setting => Subject::Setting,
            },
            name: change.name,
            what: match change.what {
                config::What::Added => What::Added,
                config::What::Removed => What::Removed,
                config::What::Changed => What::Changed,
                config::What::Replaced => What::Replaced,
            },
            details: change.details,
            effective: match change.effective {
                config::WhenEffective::Now => Effective::Now,
                config::WhenEffective::NewSessions => Effective::NewSessions,
                config::WhenEffective::Restart => Effective::Restart,
            },
            disruptive: change.disruptive,
        }
    }
}

words! {
    /// The kind of an item.
    Subject {
        /// A portal.
        Portal = "portal",
        /// A target.
        Target = "target",
        /// A LUN.
        Lun = "lun",
        /// The access list and the authentication of a target.
        Access = "access",
        /// A setting of the daemon.
        Setting = "setting",
    }
}

words! {
    /// What happens to an item.
    What {
        /// It is new.
        Added = "added",
        /// It goes.
        Removed = "removed",
        /// It changes.
        Changed = "changed",
        /// Another disk takes its place.
        Replaced = "replaced",
    }
}

words! {
    /// When a difference takes effect.
    Effective {
        /// At once.
        Now = "now",
        /// For sessions that log in from then on.
        NewSessions = "new-sessions",
        /// When targe is started again.
        Restart = "restart",
    }
}

object! {
    /// A change that was applied.
    Applied {
        /// The generation of the running configuration.
        generation: u64,
        /// The revision of the configuration file that runs now.
        revision: String,
        /// What changed, in one line.
        message: String,
    }
}

object! {
    /// The answer to `reload`: the configuration file was read again, and runs.
    Reloaded {
        /// The generation of the running configuration.
        generation: u64,
        /// What changed, in one line.
        message: String,
    }
}

object! {
    /// The answer to `abandon`: the change was dropped.
    Abandoned {
        /// The generation of the running configuration.
        generation: u64,
    }
}

object! {
    /// The sessions that a client wants to end, or the initiator ports that it wants to be forgotten.
    SessionSelector {
        /// The initiator's name.
        initiator: String,
        /// The target's name; null for every target.
        target: Option<String>,
        /// The ISID, 12 hexadecimal digits; null for every session of the initiator.
        isid: Option<String>,
    }
}

object! {
    /// The answer to `drop-sessions`.
    DroppedSessions {
        /// How many sessions are asked to log out, and end in any case within `within_s`.
        sessions: u32,
        /// The time in seconds after which connections are closed.
        within_s: u32,
    }
}

object! {
    /// The answer to `bound-luns`.
    BoundLuns {
        /// The targets with such LUNs.
        targets: Vec<TargetLuns>,
    }
}

object! {
    /// The answer to `state-facts`.
    StateFacts {
        /// The salt of the world-wide names that are derived for disks; null if they are derived without one.
        salt: Option<String>,
        /// The tape libraries that are or were served, which have these drives if they cannot be read.
        libraries: Vec<KnownLibrary>,
    }
}

object! {
    /// A tape library that is or was served.
    KnownLibrary {
        /// Its folder.
        path: String,
        /// Its serial number.
        serial: String,
        /// The serial number of each drive.
        drives: Vec<String>,
    }
}

object! {
    /// LUNs of a target that initiator ports have used, and not given up by a logout.
    TargetLuns {
        /// The target's name.
        target: String,
        /// The LUNs, in ascending order.
        luns: Vec<u16>,
    }
}

object! {
    /// The answer to `forget-ports`.
    ForgottenPorts {
        /// How many records of disks that an initiator port has used are removed.
        records: u32,
        /// How many records stay, because their initiator ports have sessions.
        in_use: u32,
    }
}

words! {
    /// The actions of an operator in a tape library.
    LibraryAction {
        /// Puts cartridges into elements: the first into the one that is named, the others behind it.
        Load = "load",
        /// Takes a cartridge out of an element.
        Eject = "eject",
        /// Locks the cartridge in a mail slot, so that no host can move it.
        Vault = "vault",
        /// Unlocks it.
        Release = "release",
    }
}

object! {
    /// A change of a tape library by an operator.
    LibraryRequest {
        /// The folder of the library.
        path: String,
        /// What is done.
        action: LibraryAction,
        /// Where: the number of a slot, such as `5`, or of a mail slot, such as `mail1`.
        element: String,
        /// For `load`: the names of the folders of the cartridges, in the folder of the library.
        cartridges: Vec<String>,
    }
}

object! {
    /// The answer to `library`: the change was made.
    LibraryChanged {
        /// The element.
        element: String,
    }
}
