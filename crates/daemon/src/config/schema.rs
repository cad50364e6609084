//! Every key of the configuration, defined once: its name, type, default and meaning. The reader, the
//! defaults, the LUN specs of the command line and `docs/config.md` are all made from these tables.

mod hyperscsi_keys;
mod table;

pub(crate) use hyperscsi_keys::{HYPERSCSI, HYPERSCSI_GROUP, LEVELS};
use table::key;
pub(crate) use table::{Absent, Key, Kind, Section};

use Absent::{Required, Told, Value};
use Kind::{Choice, Choices, Count, Mappings, Path, Size, Span, Switch, Table, Tables, Text, Texts};

/// The longest name of a portal, group or shared LUN, in bytes.
const LABEL_LEN_MAX: usize = 64;

/// An iSCSI name or alias: RFC 7143 §4.2.7.1 allows 223 bytes for a name, §13.6 255 for an alias.
const NAME_LEN_MAX: usize = 255;

/// The CHAP algorithms, strongest first.
pub(crate) const CHAP_ALGORITHMS: &[&str] = &["SHA3-256", "SHA-256", "SHA1", "MD5"];

const DIGEST_POLICIES: &[&str] = &["offer", "require", "forbid"];

/// The range of segment and burst lengths: RFC 7143 allows 512 to 2^24 - 1 bytes.
const SEGMENT: Kind = Size { min: 512, max: (1 << 24) - 1 };

pub(crate) static ROOT: Section = Section {
    noun: "the configuration",
    doc: "The top level: what concerns the daemon as a whole.",
    keys: &[
        key(
            "state_dir",
            Path,
            Told("`$XDG_STATE_HOME/targe`, else `~/.local/state/targe`"),
            "Where persistent reservations, saved mode parameters, the keys of encrypted devices and the default disk are kept. Created with mode 0700 if missing.",
        ),
        key(
            "admin_socket",
            Path,
            Told("`$XDG_RUNTIME_DIR/targe/admin.sock`, else `admin/admin.sock` in `state_dir`"),
            "The Unix socket that `targe status`, `sessions` and `luns` talk to. Its directory is created with mode \
             0700 if missing, and must be closed to everyone else.",
        ),
        key(
            "log",
            Choice(&["error", "warn", "info", "debug"]),
            Value("info"),
            "How much is logged to stderr.",
        ),
        key(
            "reactor",
            Choice(&["auto", "uring", "epoll"]),
            Value("auto"),
            "How sockets and files are driven. `auto` takes io_uring where the kernel allows it.",
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
            "Whether reactors spin instead of sleeping: less delay, and every core in `cores` always busy.",
        ),
        key(
            "look",
            Switch,
            Value("true"),
            "Whether reactors that do not spin look for more for up to 100 µs before they sleep, while that makes the work faster and no \
             thread of the machine waits for a core (with io_uring). Where commands come one by one they are answered several times as \
             fast, and a core is busy that would sleep in between.",
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
            "The most sessions of each reactor. One more is refused with `Out of resources`.",
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
            "How long a connection may take from arriving to the end of its login.",
        ),
        key(
            "queue_depth",
            Count { min: 1, max: 1024 },
            Value("128"),
            "The command window of a session: how many commands it may have outstanding. A target can have its own.",
        ),
        key(
            "nop_interval",
            Span { min_ms: 0, max_ms: 3_600_000 },
            Value("30s"),
            "After this much silence an initiator is asked whether it is still there. `0s` never asks. A target can have its own.",
        ),
        key(
            "nop_timeout",
            Span { min_ms: 100, max_ms: 3_600_000 },
            Value("15s"),
            "A connection that leaves the question unanswered for so long is dropped. A target can have its own.",
        ),
        key(
            "nop_idle_timeout",
            Span { min_ms: 0, max_ms: 3_600_000 },
            Value("5m"),
            "A connection may be silent for so long, the question unanswered, while its session has no command under way: \
             firmware answers nothing while it waits in a menu. When `max_sessions` is reached, a new login replaces such a \
             session. `0s` drops it after `nop_timeout` like any other.",
        ),
        key(
            "names",
            Choice(&["strict", "lenient"]),
            Value("strict"),
            "Which initiator names are taken: those of the form of RFC 7143, or also any other text without spaces, slashes, \
             quotes and commas, as the target of Linux takes them.",
        ),
        key(
            "send_timeout",
            Span { min_ms: 0, max_ms: 3_600_000 },
            Value("30s"),
            "A connection whose initiator takes nothing of what is sent to it for so long is dropped, at most half as \
             much later. `0s` waits for ever.",
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
            Told("HyperSCSI is not spoken"),
            "HyperSCSI: SCSI straight on Ethernet. Where it is given and no `portal` is, there is no iSCSI.",
        ),
        key(
            "lun",
            Tables(&SHARED_LUN),
            Told("no shared LUNs"),
            "Logical units that several targets show. A target takes one with `share = NAME`.",
        ),
        key("target", Tables(&TARGET), Required, "The targets."),
    ],
};

pub(crate) static PORTAL: Section = Section {
    noun: "portal",
    doc: "An address to listen on.",
    keys: &[
        key(
            "listen",
            Text { len_max: 64 },
            Required,
            "Address and port: `127.0.0.1:3260`, `[::1]:3260`, `0.0.0.0:3260`. Without a port, 3260. An IPv6 address \
             with a port needs brackets. `fd00::10:20` without brackets is refused, since its end could be a port; write \
             `[fd00::10:20]` or `[fd00::10]:20`.",
        ),
        key(
            "announce",
            Text { len_max: 300 },
            Told("the address that the initiator connected to"),
            "The address that SendTargets names instead, as `HOST`, `HOST:PORT` or `[IPV6]:PORT`: for a daemon behind \
             a forwarded port.",
        ),
        key(
            "name",
            Text { len_max: LABEL_LEN_MAX },
            Told("no name"),
            "A name for use in a target's `portals`.",
        ),
        key(
            "tag",
            Count { min: 1, max: 65_535 },
            Value("1"),
            "The portal group tag. The connections of one session come over portals of one tag. With `[hyperscsi]`, at most 32767: the others are for the target ports of groups.",
        ),
    ],
};

pub(crate) static DISCOVERY: Section = Section {
    noun: "discovery",
    doc: "Discovery sessions, in which an initiator asks for the targets it may use.",
    keys: &[key("auth", Table(&AUTH), Told("no authentication"), "Who may discover.")],
};

pub(crate) static GROUP: Section = Section {
    noun: "group",
    doc: "A named list of initiators.",
    keys: &[
        key("name", Text { len_max: LABEL_LEN_MAX }, Required, "Its name; an access list says `@NAME`."),
        key(
            "initiators",
            Texts { what: "initiator names or patterns" },
            Required,
            "Initiator names. `*` stands for any run of characters.",
        ),
    ],
};

pub(crate) static AUTH: Section = Section {
    noun: "auth",
    doc: "CHAP (RFC 7143 §12.1): the initiator proves that it knows a secret, and with the mutual keys the target \
          does as well. Secrets are 12 to 255 bytes.",
    keys: &[
        key(
            "method",
            Choice(&["chap", "none"]),
            Value("chap"),
            "`none` lets an entry of an access list in without CHAP where its target asks for it.",
        ),
        key(
            "user",
            Text { len_max: NAME_LEN_MAX },
            Told("needed for CHAP"),
            "The name the initiator gives (`CHAP_N`).",
        ),
        key(
            "secret_file",
            Path,
            Told("needed for CHAP, unless `secret` is given"),
            "A file that holds the initiator's secret; one newline at its end does not count. It must not be readable \
             by group or others.",
        ),
        key(
            "secret",
            Text { len_max: 255 },
            Told("none"),
            "The secret itself. Refused unless the configuration file is closed to group and others; prefer \
             `secret_file`.",
        ),
        key(
            "mutual_user",
            Text { len_max: NAME_LEN_MAX },
            Told("the target does not authenticate itself"),
            "The name the target gives when the initiator asks it to authenticate itself.",
        ),
        key(
            "mutual_secret_file",
            Path,
            Told("none"),
            "A file that holds the target's secret, which must be another one.",
        ),
        key("mutual_secret", Text { len_max: 255 }, Told("none"), "The target's secret itself; as `secret`."),
        key(
            "algorithms",
            Choices(CHAP_ALGORITHMS),
            Value("SHA3-256 SHA-256 SHA1 MD5"),
            "The algorithms that are accepted. Of those, an initiator's first choice is taken.",
        ),
    ],
};

pub(crate) static SESSION: Section = Section {
    noun: "session",
    doc: "What a target offers and bounds in a session (RFC 7143 §13).",
    keys: &[
        key(
            "header_digest",
            Choice(DIGEST_POLICIES),
            Value("offer"),
            "CRC32C over headers: `offer` takes it if the initiator does, `require` refuses a login without, \
             `forbid` never uses it.",
        ),
        key("data_digest", Choice(DIGEST_POLICIES), Value("offer"), "CRC32C over data, likewise."),
        key(
            "max_recv_data_segment_length",
            SEGMENT,
            Value("256K"),
            "The longest data segment that we receive (`MaxRecvDataSegmentLength`).",
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
            "Whether an initiator waits for an R2T before it sends more than \
             immediate data (`InitialR2T`).",
        ),
        key(
            "immediate_data",
            Switch,
            Value("true"),
            "Whether a command may bring data along (`ImmediateData`).",
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
            "`ErrorRecoveryLevel`: 0 ends a session at the first damaged PDU, 1 repairs within a connection, 2 also moves \
             tasks from a lost connection to another. The initiator may want less.",
        ),
        key(
            "time2wait",
            Span { min_ms: 0, max_ms: 3_600_000 },
            Value("2s"),
            "`DefaultTime2Wait`, in whole seconds: how long an initiator waits before it comes back.",
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
            key("type", Choice(&["file", "block", "ram", "null"]), $type_default,
                "The medium: `file` (a regular file), `block` (a block device), `ram` (memory, lost at exit), `null` \
                 (reads as zeros, forgets writes)."),
            key("path", Path, Told("needed for `file` and `block`"), "The file or device."),
            key("size", Size { min: 1 << 20, max: 1 << 60 }, Told("the size that the file or device has"),
                "Needed for `ram` and `null`. A file that is missing is created with it, a shorter one is made this \
                 long; none is ever cut."),
            key("bs", Choice(&["512", "4096"]), Value("512"), "The length of a logical block in bytes."),
            key("physical_bs", Choice(&["512", "4096", "8192", "16384", "32768", "65536"]), Value("4096"),
                "The length of a physical block that is reported; at least `bs`."),
            key("ro", Switch, Value("false"),
                "Whether the medium is write-protected for everyone. Where the LUN shows a shared disk (`share`): whether \
                 those who see it here may change nothing that others meet; reservations, mode parameters and resets are \
                 refused to them as well."),
            key("direct", Switch, Value("false"), "Whether a file or device bypasses the page cache (O_DIRECT)."),
            key("provisioning", Choice(&["thin", "full"]), Value("thin"),
                "`thin`: unmapped blocks give their storage back. `full`: everything is allocated at the start, and \
                 UNMAP is not offered."),
            key("write_cache", Switch, Value("true"),
                "Whether writes are acknowledged before they are durable, as a disk with a write cache does. Initiators \
                 flush it."),
            key("io_timeout", Span { min_ms: 0, max_ms: 86_400_000 }, Value("60s"),
                "How long the medium may take for one read, write or flush before its command fails with ABORTED COMMAND, TIMEOUT \
                 ON LOGICAL UNIT, which initiators retry. `0s` waits for ever. See [A disk that hangs](serve.md#a-disk-that-hangs)."),
            key("encrypt", Path, Told("not encrypted"),
                "A file with at least 32 secret bytes, readable by its owner alone: everything is then stored encrypted (see \
                 [Encryption at rest](#encryption-at-rest)). Not for `null`."),
            key("atomic_bs", Choice(&["512", "4096", "8192", "16384", "32768", "65536"]), Told("any number of blocks"),
                "WRITE ATOMIC is taken in whole, aligned pieces of this many bytes only, as from a disk that reports such \
                 a granularity; at least `bs`. For `ram` and `null`, which alone write atomically."),
            key("removable", Switch, Value("false"), "Whether the medium is reported as removable."),
            key("long_cdbs", Switch, Value("false"),
                "Whether the 32-byte commands are offered: READ(32) and its kin, which are made for protection \
                 information."),
            key("tst", Choice(&["0", "1"]), Value("1"),
                "Task sets (TST of the control mode page). `1`: every initiator has its own, so that ORDERED commands, \
                 CLEAR TASK SET and QERR of one do not reach another. `0`: one for all, which lets an initiator that sends \
                 an ORDERED write and not its data stop every other."),
            key("tas", Switch, Value("true"),
                "Whether a command that another initiator aborts, as by LOGICAL UNIT RESET, is answered with TASK ABORTED \
                 (TAS of the control mode page). Otherwise the aborted command gets no response; its initiator gets a \
                 unit attention with its next command and times out on the aborted one. MODE SELECT can change it."),
            key("spc", Choice(&["3", "4", "5"]), Value("4"),
                "The standard that INQUIRY claims in its VERSION field. `3`, for initiators that refuse what is newer, also \
                 names no later standard elsewhere, and offers no ODX, no EXTENDED COPY(LID4) and no WRITE ATOMIC. `4` names \
                 SPC-5 and SBC-4 among the version descriptors, `5` in the field too."),
            key("rotation", Choice(&["0", "ssd", "5400", "5900", "7200", "10000", "10500", "15000"]),
                Told("`ssd`, or `0` where the device below spins"),
                "The rotation rate that is reported: `ssd`, turns per minute, or `0` for none, which Linux takes for a \
                 spinning disk."),
            key("unmapped", Choice(&["zeros", "unspecified"]), Value("zeros"),
                "What is promised of unmapped blocks: `zeros` (LBPRZ, where the medium keeps it), or nothing, for a disk that \
                 is to move to a medium that does not."),
            key("write_same_to_end", Switch, Value("false"),
                "Whether a WRITE SAME of no blocks goes to the end of the disk, as SBC allows. Otherwise it is refused (WSNZ): \
                 a zero by mistake overwrites nothing."),
            key("compare_and_write_max", Count { min: 1, max: 255 }, Value("1"),
                "The most blocks of one COMPARE AND WRITE. VMware's ATS, which it is for, takes one."),
            key("serial", Text { len_max: 36 }, Told("derived like `naa`"), "The unit serial number, printable ASCII."),
            key("naa", Text { len_max: 36 }, Told("derived from the names of target and medium"),
                "The world-wide name: 16 or 32 hexadecimal digits that begin with 2, 3, 5 or 6. Two LUNs never share \
                 one."),
            key("vendor", Text { len_max: 8 }, Value("TARGE"), "The vendor that INQUIRY tells, printable ASCII."),
            key("product", Text { len_max: 16 }, Value("Virtual Disk"), "The product that INQUIRY tells, printable ASCII."),
            key("revision", Text { len_max: 4 }, Told("the version of targe"), "The revision that INQUIRY tells, printable ASCII."),
        ]
    };
}

/// The highest LUN that flat space addressing can express (SAM-5 §4.7.7.4: 14 bits).
pub(crate) const LUN_MAX: u64 = 16_383;

pub(crate) static LUN: Section = Section {
    noun: "lun",
    doc: "A logical unit of a target. `--lun` takes the same keys: `file:PATH,size=10G,ro,bs=4096`.",
    keys: lun_keys!(
        key("lun", Count { min: 0, max: LUN_MAX }, Told("the lowest that is free"), "Its number."),
        key("share", Text { len_max: LABEL_LEN_MAX }, Told("an own LUN"),
            "Shows the top-level `lun` of this name instead; only `lun`, `ro`, `protection` and `groups` can be given with it."),
        key("protection", Choice(LEVELS), Value("none"),
            "The least protection with which it is reached: `none`, `integrity` or `encrypt`. What is more than `none` is not \
             shown over iSCSI."),
        key("groups", Texts { what: "names of HyperSCSI groups" }, Told("every group of the target"),
            "The HyperSCSI groups that see it, of those that the target is exported to.");
        Told("needed unless `share` is given")
    ),
};

pub(crate) static SHARED_LUN: Section = Section {
    noun: "lun",
    doc: "A logical unit that several targets show.",
    keys: lun_keys!(
        key("name", Text { len_max: LABEL_LEN_MAX }, Required, "The name that a target's `share` uses.");
        Required
    ),
};

pub(crate) static TARGET: Section = Section {
    noun: "target",
    doc: "A target: a name, its LUNs, and who may use them.",
    keys: &[
        key(
            "name",
            Text { len_max: NAME_LEN_MAX },
            Required,
            "Its iSCSI name: `iqn.YYYY-MM.REVERSED-DOMAIN:WHAT`, `eui.` with 16 or `naa.` with 16 or 32 hexadecimal \
             digits. Upper case is made lower.",
        ),
        key("alias", Text { len_max: NAME_LEN_MAX }, Told("none"), "A name for display (`TargetAlias`)."),
        key(
            "portals",
            Texts { what: "names of portals" },
            Told("every portal"),
            "The portals it is reached over.",
        ),
        key(
            "groups",
            Texts { what: "names of HyperSCSI groups" },
            Told("none"),
            "The HyperSCSI groups that it is exported to. Access lists count for their members as well, by the names that \
             they give.",
        ),
        key(
            "max_sessions",
            Count { min: 1, max: 65_535 },
            Value("256"),
            "The most sessions with this target.",
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
            "The silence after which its initiators are asked whether they are still there; `0s` never asks.",
        ),
        key(
            "nop_timeout",
            Span { min_ms: 100, max_ms: 3_600_000 },
            Told("the top-level `nop_timeout`"),
            "How long they may leave that unanswered.",
        ),
        key("session", Table(&SESSION), Told("the top-level `session`"), "What this target offers instead."),
        key("auth", Table(&AUTH), Told("no authentication"), "The CHAP that every initiator needs."),
        key("lun", Tables(&LUN), Required, "Its logical units."),
        key(
            "acl",
            Tables(&ACL),
            Told("every initiator may use every LUN"),
            "Its access list. The first entry that fits an initiator counts; who fits none is refused.",
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
            "What the initiator sees: numbers, or tables `{ lun = 2, as = 0, ro = true }`.",
        ),
        key(
            "ro",
            Switch,
            Value("false"),
            "Whether the initiator may only read: what changes something for others, reservations, mode parameters and resets among it, is refused.",
        ),
        key("auth", Table(&AUTH), Told("the target's `auth`"), "The CHAP that these initiators need."),
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
    ("[discovery]", &DISCOVERY),
    ("{ } in luns", &MAPPING),
];
