//! Every key of the configuration, defined once: its name, type, default and meaning. The reader, the
//! defaults, the LUN specs of the command line and `docs/config.md` are all made from these tables.

mod auth_keys;
mod http_keys;
mod hyperscsi_keys;
mod isns_keys;
mod limit_keys;
mod portal_keys;
mod table;

pub(crate) use auth_keys::AUTH;
pub(crate) use http_keys::HTTP;
pub(crate) use hyperscsi_keys::{HYPERSCSI, HYPERSCSI_GROUP, LEVELS};
pub(crate) use isns_keys::ISNS;
pub(crate) use portal_keys::PORTAL;
use table::key;
pub(crate) use table::{Absent, Key, Kind, Section};

use Absent::{Required, Told, Value};
use Kind::{Choice, Count, Mappings, Path, Size, Span, Switch, Table, Tables, Text, Texts};

/// The longest name of a portal, group or shared LUN, in bytes.
const LABEL_LEN_MAX: usize = 64;

/// An iSCSI name or alias: RFC 7143 §4.2.7.1 allows 223 bytes for a name, §13.6 255 for an alias.
const NAME_LEN_MAX: usize = 255;

const DIGEST_POLICIES: &[&str] = &["offer", "require", "forbid"];

/// The range of segment and burst lengths: RFC 7143 allows 512 to 2^24 - 1 bytes.
const SEGMENT: Kind = Size { min: 512, max: (1 << 24) - 1 };

pub(crate) static ROOT: Section = Section {
    noun: "the configuration",
    doc: "The top level: settings of the daemon as a whole.",
    keys: &[
        key(
            "state_dir",
            Path,
            Told("`$XDG_STATE_HOME/targe`, else `~/.local/state/targe`"),
            "Where persistent reservations, saved mode parameters, the disks that hosts have used under their LUNs, the keys of encrypted devices and the default disk are kept. Created with mode 0700 if missing. One daemon at a time can use it.",
        ),
        key(
            "admin_socket",
            Path,
            Told("`$XDG_RUNTIME_DIR/targe/admin.sock`, else `admin/admin.sock` in `state_dir`"),
            "The Unix socket that `targe status`, `sessions` and `luns` connect to. Its directory is created \
             with mode 0700 if missing. No other user may have access to it, unless `admin_readers` is set.",
        ),
        key(
            "admin_readers",
            Text { len_max: 64 },
            Told("none"),
            "A group, by its name in `/etc/group` or by its number, whose members may read the daemon's state over the admin socket: `targe status`, `sessions`, `luns` and `top`. They can change nothing. The user of the daemon must be a member. The socket gets mode 0660, and its directory, which must hold nothing else, mode 0710, both with this group.",
        ),
        key(
            "log",
            Choice(&["error", "warn", "info", "debug"]),
            Value("info"),
            "The log level: which messages are logged to stderr.",
        ),
        key(
            "log_format",
            Choice(&["text", "json"]),
            Value("text"),
            "The form of the log: lines of text, or one JSON object a line with `time`, `level`, `message` and fields such as `initiator`, `target` and `lun`.",
        ),
        key(
            "slow_command",
            Span { min_ms: 0, max_ms: 3_600_000 },
            Value("5s"),
            "A command that takes longer from its arrival to its status is logged, with where its time went. `0s` logs none. See [Slow commands](serve.md#slow-commands).",
        ),
        key(
            "reactor",
            Choice(&["auto", "uring", "epoll"]),
            Value("auto"),
            "The I/O interface of the reactors. `auto` uses io_uring where the kernel allows it, else epoll.",
        ),
        key(
            "cores",
            Text { len_max: 1024 },
            Told("every core that the process may use"),
            "The cores that reactors run on, such as `0-3,6`. Targets that share no LUN are spread over them.",
        ),
        key(
            "poll",
            Switch,
            Value("false"),
            "Whether reactors busy-poll instead of sleeping: latency is lower, but every core in `cores` is \
             always busy.",
        ),
        key(
            "look",
            Switch,
            Value("true"),
            "Whether idle reactors busy-poll for up to 100 µs before they sleep, while that increases \
             throughput and no other thread waits for a core (with io_uring). Commands that arrive one at a \
             time are answered several times as fast, but the core is busy between them.",
        ),
        key(
            "memory",
            Size { min: 16 << 20, max: 1 << 44 },
            Told("`256M`, or `64M` for each reactor where there are more than four"),
            "The budget for data in flight, over all sessions; reactors share it evenly. A peer that would exceed it waits.",
        ),
        key(
            "max_sessions",
            Count { min: 1, max: 65_535 },
            Value("4096"),
            "The most sessions of each reactor. A further login is rejected with `Out of resources`.",
        ),
        key(
            "max_connections",
            Count { min: 1, max: 65_535 },
            Value("8192"),
            "The most connections of each reactor, including those that have not logged in yet.",
        ),
        key(
            "login_timeout",
            Span { min_ms: 100, max_ms: 30_000 },
            Value("15s"),
            "How long a connection may take from its acceptance to the end of its login.",
        ),
        key(
            "queue_depth",
            Count { min: 1, max: 1024 },
            Value("128"),
            "The command window of a session: how many commands it may have outstanding. HyperSCSI allows 2 to 512, of \
             which initiators leave up to 8 to task management. A target can override it.",
        ),
        key(
            "nop_interval",
            Span { min_ms: 0, max_ms: 3_600_000 },
            Value("30s"),
            "After this long without a PDU from the initiator, a connection is probed with a NOP-In. `0s` \
             disables the probes. A target can override it.",
        ),
        key(
            "nop_timeout",
            Span { min_ms: 100, max_ms: 3_600_000 },
            Value("15s"),
            "A connection whose initiator leaves the NOP-In unanswered for this long is dropped. A target \
             can override it.",
        ),
        key(
            "nop_idle_timeout",
            Span { min_ms: 0, max_ms: 3_600_000 },
            Value("5m"),
            "While its session has no outstanding command, an initiator may leave the NOP-In unanswered for \
             this long before the connection is dropped: firmware does not answer while it waits in a menu. \
             When `max_sessions` is reached, a new login replaces such a session. `0s` drops the connection \
             after `nop_timeout` like any other.",
        ),
        key(
            "names",
            Choice(&["strict", "lenient"]),
            Value("strict"),
            "Which initiator names are accepted: names in the format of RFC 7143, or also any other text \
             without spaces, slashes, quotes and commas, as Linux's target (LIO) accepts.",
        ),
        key(
            "send_timeout",
            Span { min_ms: 0, max_ms: 3_600_000 },
            Value("30s"),
            "A connection whose initiator acknowledges none of the data sent to it for this long is dropped, \
             at the latest after half as long again. `0s` disables this limit.",
        ),
        key(
            "portal",
            Tables(&PORTAL),
            Told("one portal on 127.0.0.1:3260, none with `hyperscsi`"),
            "The addresses to listen on.",
        ),
        key("discovery", Table(&DISCOVERY), Told("discovery needs no authentication"), "Discovery sessions."),
        key(
            "session",
            Table(&SESSION),
            Told("the defaults below"),
            "What every target offers in its sessions; a target's own `session` table overrides single keys.",
        ),
        key(
            "group",
            Tables(&GROUP),
            Told("no groups"),
            "Named lists of initiators, for use in access lists.",
        ),
        key(
            "hyperscsi",
            Table(&HYPERSCSI),
            Told("HyperSCSI is not served"),
            "HyperSCSI: SCSI directly on Ethernet. With this table and without a `portal`, iSCSI is not served.",
        ),
        key("isns", Table(&ISNS), Told("no name servers"), "Where the targets are registered."),
        key(
            "http",
            Table(&HTTP),
            Told("no HTTP server"),
            "The HTTP server: status page, API, metrics, health.",
        ),
        key(
            "lun",
            Tables(&SHARED_LUN),
            Told("no shared LUNs"),
            "Logical units that several targets export. A target exports one with `share = NAME`.",
        ),
        key("target", Tables(&TARGET), Required, "The targets."),
    ],
};

pub(crate) static DISCOVERY: Section = Section {
    noun: "discovery",
    doc: "Discovery sessions, in which an initiator asks for the targets it may use.",
    keys: &[key(
        "auth",
        Table(&AUTH),
        Told("no authentication"),
        "What the initiators of discovery sessions must prove.",
    )],
};

pub(crate) static GROUP: Section = Section {
    noun: "group",
    doc: "A named list of initiators.",
    keys: &[
        key("name", Text { len_max: LABEL_LEN_MAX }, Required, "Its name, `@NAME` in access lists."),
        key(
            "initiators",
            Texts { what: "initiator names or patterns" },
            Required,
            "Initiator names. `*` matches any sequence of characters.",
        ),
    ],
};

pub(crate) static SESSION: Section = Section {
    noun: "session",
    doc: "The operational parameters of a target's sessions (RFC 7143 §13).",
    keys: &[
        key(
            "header_digest",
            Choice(DIGEST_POLICIES),
            Value("offer"),
            "CRC32C over headers: `offer` uses it if the initiator supports it, `require` rejects a login \
             without it, `forbid` never uses it.",
        ),
        key("data_digest", Choice(DIGEST_POLICIES), Value("offer"), "CRC32C over data, likewise."),
        key(
            "protection",
            Choice(LEVELS),
            Value("none"),
            "The least protection of a session. Above `none`, a login through a portal without TLS must be the \
             password login (`password_file`) and choose an AEAD digest of at least this level.",
        ),
        key(
            "max_recv_data_segment_length",
            SEGMENT,
            Value("256K"),
            "The longest data segment that the target receives (`MaxRecvDataSegmentLength`).",
        ),
        key("max_burst_length", SEGMENT, Value("1M"), "The longest solicited burst (`MaxBurstLength`)."),
        key(
            "first_burst_length",
            SEGMENT,
            Value("256K"),
            "The most unsolicited data of a command (`FirstBurstLength`); at most `max_burst_length`.",
        ),
        key(
            "max_outstanding_r2t",
            Count { min: 1, max: 65_535 },
            Value("8"),
            "The most R2Ts of one task at a time (`MaxOutstandingR2T`).",
        ),
        key(
            "initial_r2t",
            Switch,
            Value("false"),
            "Whether an initiator must wait for an R2T before it sends more than immediate data (`InitialR2T`).",
        ),
        key(
            "immediate_data",
            Switch,
            Value("true"),
            "Whether a command PDU may carry data (`ImmediateData`).",
        ),
        key("data_pdu_in_order", Switch, Value("true"), "`DataPDUInOrder`."),
        key("data_sequence_in_order", Switch, Value("true"), "`DataSequenceInOrder`."),
        key(
            "max_connections",
            Count { min: 1, max: iscsi::target::MAX_CONNECTIONS as u64 },
            Value("8"),
            "The most connections of one session (`MaxConnections`).",
        ),
        key(
            "error_recovery_level",
            Count { min: 0, max: iscsi::target::MAX_ERROR_RECOVERY_LEVEL as u64 },
            Value("2"),
            "`ErrorRecoveryLevel`: 0 ends a session at the first damaged PDU, 1 repairs within a connection, 2 also \
             moves tasks from a lost connection to another. The initiator may negotiate a lower level.",
        ),
        key(
            "time2wait",
            Span { min_ms: 0, max_ms: 3_600_000 },
            Value("2s"),
            "`DefaultTime2Wait`, in whole seconds: how long an initiator waits before it reconnects.",
        ),
        key(
            "time2retain",
            Span { min_ms: 0, max_ms: 3_600_000 },
            Value("20s"),
            "`DefaultTime2Retain`, in whole seconds: how long, at level 2, tasks of a lost connection are kept after that.",
        ),
    ],
};

macro_rules! lun_keys {
    ($($extra:expr),* ; $type_default:expr) => {
        &[
            $($extra,)*
            key("type", Choice(&["file", "block", "ram", "null", "disc", "tape", "nbd", "changer", "sg", "vhost-user-blk", "vhost-user-scsi"]), $type_default,
                "The medium: `file` (a regular file), `block` (a block device), `ram` (memory, lost at \
                 exit), `null` (reads as zeros, discards writes), `disc` (a drive with the image of a CD, DVD \
                 or BD in it), `tape` (a tape drive with a cartridge in it), `nbd` (an export of an NBD server), \
                 `changer` (a tape library with its drives), `sg` (a SCSI device of this host), `vhost-user-blk` (a \
                 block device of another process) and `vhost-user-scsi` (a SCSI device of another process), see [devices.md](devices.md)."),
            key("path", Path, Told("required for `file`, `block`, `disc`, `tape`, `changer`, `sg`, `vhost-user-blk` and `vhost-user-scsi`"),
                "The file or device, the folder of a cartridge or library, or the socket of a process."),
            key("uri", Text { len_max: 8192 }, Told("required for `nbd`"),
                "The export of an NBD server: `nbd://HOST[:PORT]/EXPORT` or `nbd+unix:///EXPORT?socket=PATH`."),
            key("reconnect_timeout", Span { min_ms: 0, max_ms: 86_400_000 }, Value("30s"),
                "How long commands wait for an NBD server, or the process of a `vhost-user-blk` or `vhost-user-scsi` device, that does not answer, or \
                 is gone, before they fail. `0s` waits for ever."),
            key("dangerous_commands", Switch, Value("false"),
                "Whether initiators may send a SCSI device of this host or of another process the commands that change the device itself or \
                 erase it as a whole: firmware, ATA PASS-THROUGH, and on disks FORMAT UNIT, SANITIZE, SECURITY \
                 PROTOCOL OUT and the removal of storage elements. Only for `sg` and `vhost-user-scsi`."),
            key("shared_with_host", Switch, Value("false"),
                "Whether a disk that this host itself uses (mounted, swap space, or part of a volume) is served all the \
                 same. Only for `sg`."),
            key("profile", Choice(&["cd", "dvd", "bd"]), Told("the smallest that holds the image"),
                "The kind of disc that a drive reports. Only for `disc`."),
            key("size", Size { min: 1 << 20, max: 1 << 60 }, Told("the size of the file or device"),
                "Required for `ram` and `null`. A missing file is created with this size, and a shorter one \
                 is extended to it; a file is never truncated."),
            key("bs", Choice(&["512", "4096"]), Value("512"), "The length of a logical block in bytes."),
            key("physical_bs", Choice(&["512", "4096", "8192", "16384", "32768", "65536"]), Value("4096"),
                "The physical block length that is reported; at least `bs`."),
            key("ro", Switch, Value("false"),
                "Whether the medium is write-protected. For a LUN with `share`: whether initiators of this \
                 target may only read the shared disk; reservations, mode parameters and resets, which \
                 affect other initiators, are refused to them as well."),
            key("direct", Switch, Value("false"), "Whether a file or device bypasses the page cache (O_DIRECT)."),
            key("provisioning", Choice(&["thin", "full"]), Value("thin"),
                "`thin`: UNMAP deallocates storage. `full`: all storage is allocated at the start, and UNMAP \
                 is not supported."),
            key("write_cache", Switch, Value("true"),
                "Whether the disk has a volatile write cache: writes are acknowledged before they are \
                 durable, and initiators flush the cache."),
            key("io_timeout", Span { min_ms: 0, max_ms: 86_400_000 }, Value("60s"),
                "How long the medium may take for one read, write or flush before its command fails with ABORTED COMMAND, TIMEOUT \
                 ON LOGICAL UNIT, which initiators retry. `0s` waits for ever. See [A disk that hangs](serve.md#a-disk-that-hangs)."),
            limit_keys::IOPS,
            limit_keys::BANDWIDTH,
            limit_keys::BURST,
            key("encrypt", Path, Told("not encrypted"),
                "A file with at least 32 secret bytes that only its owner can read. All data is then stored \
                 encrypted (see [Encryption at rest](#encryption-at-rest)). Not for `null`."),
            key("atomic_bs", Choice(&["512", "4096", "8192", "16384", "32768", "65536"]), Told("any number of blocks"),
                "The granularity and alignment that are reported and required for WRITE ATOMIC, in bytes; at \
                 least `bs`. For `ram` and `null`, the only media that support atomic writes."),
            key("removable", Switch, Value("false"), "Whether the medium is reported as removable."),
            key("long_cdbs", Switch, Value("false"),
                "Whether the 32-byte commands are supported: READ(32) and the related commands, which are \
                 defined for protection information."),
            key("tst", Choice(&["0", "1"]), Value("1"),
                "Task sets (TST of the control mode page). `1`: each I_T nexus has its own task set, so that ORDERED \
                 commands, CLEAR TASK SET and QERR of one initiator do not affect others. `0`: all share one task set, \
                 so that an initiator that sends an ORDERED write without its data blocks all others."),
            key("tas", Switch, Value("true"),
                "Whether a command that another initiator aborts, as by LOGICAL UNIT RESET, is answered with TASK ABORTED \
                 (TAS of the control mode page). Otherwise the aborted command gets no response; its initiator gets a \
                 unit attention with its next command and times out on the aborted one. MODE SELECT can change it."),
            key("spc", Choice(&["3", "4", "5"]), Value("4"),
                "The standard that the VERSION field of INQUIRY data claims. `3`, for initiators that reject \
                 newer versions, also lists no later standard among the version descriptors, and disables \
                 ODX, EXTENDED COPY(LID4) and WRITE ATOMIC. `4` lists SPC-5 and SBC-4 among the version \
                 descriptors, `5` also claims SPC-5 in the VERSION field."),
            key("rotation", Choice(&["0", "ssd", "5400", "5900", "7200", "10000", "10500", "15000"]),
                Told("`ssd`, or `0` if the device below is rotational"),
                "The medium rotation rate that is reported: `ssd`, revolutions per minute, or `0` for not \
                 reported, which Linux treats as a rotational disk."),
            key("unmapped", Choice(&["zeros", "unspecified"]), Value("zeros"),
                "What is reported about reads of unmapped blocks: `zeros` (LBPRZ, where the medium guarantees it), or \
                 nothing, for a disk that may move to a medium that does not guarantee it."),
            key("write_same_to_end", Switch, Value("false"),
                "Whether a WRITE SAME with a number of blocks of zero writes to the end of the disk, as SBC \
                 allows. Otherwise it is rejected (WSNZ), so that a zero by mistake overwrites nothing."),
            key("compare_and_write_max", Count { min: 1, max: 255 }, Value("1"),
                "The maximum length of a COMPARE AND WRITE in blocks. VMware's ATS uses one block."),
            key("serial", Text { len_max: 36 }, Told("derived like `naa`"), "The unit serial number, printable ASCII. `targe check` warns of one that two LUNs have."),
            key("naa", Text { len_max: 36 }, Told("derived from target, medium and state directory"),
                "The world-wide name: 16 or 32 hexadecimal digits that begin with 2, 3, 5 or 6. Two LUNs never share \
                 one."),
            key("vendor", Text { len_max: 8 }, Value("TARGE"), "The vendor identification in INQUIRY data, \
                                                                printable ASCII."),
            key("product", Text { len_max: 16 }, Told("`Virtual Disk`, `Virtual Disc`, `Virtual Tape` or `Virtual Library`"), "The product identification in \
                                                                         INQUIRY data, printable ASCII."),
            key("drive_vendor", Text { len_max: 8 }, Value("TARGE"), "The vendor identification of the drives of a \
                                                                      library. Only for `changer`."),
            key("drive_product", Text { len_max: 16 }, Value("Virtual Tape"), "The product identification of the \
                                                                               drives of a library. Only for `changer`."),
            key("drive_revision", Text { len_max: 4 }, Told("like `revision`, by `drive_product`"),
                "The product revision level of the drives of a library. Only for `changer`."),
            key("revision", Text { len_max: 4 },
                Told("`0.1`, in every release; with a `product` that is an LTO drive, a revision of that drive"),
                "The product revision level in INQUIRY data, printable ASCII."),
        ]
    };
}

/// The highest LUN that flat space addressing can express (SAM-5 §4.7: 14 bits).
pub(crate) const LUN_MAX: u64 = 16_383;

pub(crate) static LUN: Section = Section {
    noun: "lun",
    doc: "A logical unit of a target. `--lun` takes the same keys: `file:PATH,size=10G,ro,bs=4096`.",
    keys: lun_keys!(
        key("lun", Count { min: 0, max: LUN_MAX }, Told("the lowest free number"), "The logical unit number."),
        key("drive_lun", Count { min: 0, max: LUN_MAX }, Told("the lowest free number above `lun`, for each drive"),
            "The logical unit number of the first drive of a library; the others have the numbers after it. Only for \
             `changer`."),
        key("share", Text { len_max: LABEL_LEN_MAX }, Told("a LUN of its own"),
            "Exports the top-level `lun` of this name instead; only `lun`, `drive_lun`, `ro`, `protection` and \
             `groups` can be given with it."),
        key("protection", Choice(LEVELS), Value("none"),
            "The least protection that access to it requires: `none`, `integrity` or `encrypt`. A session with less does \
             not see the LUN: see [Protection of LUNs](security.md#protection-of-luns)."),
        key("groups", Texts { what: "names of HyperSCSI groups" }, Told("every group of the target"),
            "The HyperSCSI groups that can access it, among those that the target is exported to.");
        Told("required unless `share` is given")
    ),
};

pub(crate) static SHARED_LUN: Section = Section {
    noun: "lun",
    doc: "A logical unit that several targets export.",
    keys: lun_keys!(
        key("name", Text { len_max: LABEL_LEN_MAX }, Required, "The name that a target's `share` uses.");
        Required
    ),
};

pub(crate) static TARGET: Section = Section {
    noun: "target",
    doc: "A target: its name, its LUNs and their access control.",
    keys: &[
        key(
            "name",
            Text { len_max: NAME_LEN_MAX },
            Required,
            "Its iSCSI name: `iqn.YYYY-MM.REVERSED-DOMAIN:WHAT`, `eui.` with 16 or `naa.` with 16 or 32 \
             hexadecimal digits. Upper case is converted to lower case.",
        ),
        key("alias", Text { len_max: NAME_LEN_MAX }, Told("none"), "A name for display (`TargetAlias`)."),
        key(
            "portals",
            Texts { what: "names of portals" },
            Told("every portal"),
            "The portals on which it is served.",
        ),
        key(
            "groups",
            Texts { what: "names of HyperSCSI groups" },
            Told("none"),
            "The HyperSCSI groups that it is exported to. Access lists apply to their members as well, by \
             the initiator names that they present.",
        ),
        key(
            "max_sessions",
            Count { min: 1, max: 65_535 },
            Value("256"),
            "The most sessions with this target. A login that reinstates a session, or adds a connection to \
             one, is none in addition.",
        ),
        key(
            "queue_depth",
            Count { min: 1, max: 1024 },
            Told("the top-level `queue_depth`"),
            "The command window of each session with this target.",
        ),
        key(
            "nop_interval",
            Span { min_ms: 0, max_ms: 3_600_000 },
            Told("the top-level `nop_interval`"),
            "The time without a PDU from the initiator after which a connection is probed with a NOP-In; \
             `0s` disables the probes.",
        ),
        key(
            "nop_timeout",
            Span { min_ms: 100, max_ms: 3_600_000 },
            Told("the top-level `nop_timeout`"),
            "How long an initiator may leave the NOP-In unanswered.",
        ),
        key("session", Table(&SESSION), Told("the top-level `session`"), "Overrides of single keys."),
        key("auth", Table(&AUTH), Told("no authentication"), "What every initiator must prove."),
        key("lun", Tables(&LUN), Required, "Its logical units."),
        key(
            "acl",
            Tables(&ACL),
            Told("every initiator may use every LUN"),
            "Its access list. The first entry that matches an initiator applies; an initiator that matches \
             none is rejected. `targe check` warns of names whose entry never applies.",
        ),
    ],
};

pub(crate) static ACL: Section = Section {
    noun: "acl",
    doc: "An entry of an access list.",
    keys: &[
        key(
            "initiators",
            Texts { what: "initiator names, patterns or groups" },
            Required,
            "Initiator names, patterns with `*`, or `@GROUP`.",
        ),
        key(
            "luns",
            Mappings(&MAPPING),
            Told("every LUN under its own number"),
            "The LUNs that the initiator can access: numbers, or tables `{ lun = 2, as = 0, ro = true, protection = \"encrypt\" }`. A LUN with two numbers is read-only under both or under none.",
        ),
        key(
            "ro",
            Switch,
            Value("false"),
            "Whether the initiator may only read: commands that affect others, including reservations, mode \
             parameters and resets, are refused.",
        ),
        key(
            "protection",
            Choice(LEVELS),
            Told("that of each LUN"),
            "The least protection that these initiators need, for every LUN of the entry, instead of the LUN's own.",
        ),
        key("auth", Table(&AUTH), Told("the target's `auth`"), "What these initiators must prove."),
        limit_keys::SESSIONS,
        limit_keys::IOPS,
        limit_keys::BANDWIDTH,
        limit_keys::BURST,
    ],
};

pub(crate) static MAPPING: Section = Section {
    noun: "luns entry",
    doc: "A LUN as one initiator sees it.",
    keys: &[
        key("lun", Count { min: 0, max: LUN_MAX }, Required, "The number that the LUN has in its target."),
        key(
            "as",
            Count { min: 0, max: LUN_MAX },
            Told("the same number"),
            "The number that the initiator sees.",
        ),
        key("ro", Switch, Value("false"), "Whether this initiator may only read it."),
        key(
            "protection",
            Choice(LEVELS),
            Told("that of the entry, else that of the LUN"),
            "The least protection that this initiator needs for it.",
        ),
    ],
};

/// Every section, in the order of the reference, with the header that opens it in a file.
pub(crate) static SECTIONS: &[(&str, &Section)] = &[
    ("", &ROOT),
    ("[[portal]]", &PORTAL),
    ("[[target]]", &TARGET),
    ("[[target.lun]]", &LUN),
    ("[[target.acl]]", &ACL),
    ("[target.auth], [target.acl.auth], [discovery.auth]", &AUTH),
    ("[session], [target.session]", &SESSION),
    ("[[lun]]", &SHARED_LUN),
    ("[[group]]", &GROUP),
    ("[hyperscsi]", &HYPERSCSI),
    ("[[hyperscsi.group]]", &HYPERSCSI_GROUP),
    ("[isns]", &ISNS),
    ("[http]", &HTTP),
    ("[discovery]", &DISCOVERY),
    ("{ } in luns", &MAPPING),
];
