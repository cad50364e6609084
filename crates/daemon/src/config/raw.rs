//! The configuration as written: one struct per section, every value with its source span, not cross-checked
//! yet.

use std::path::PathBuf;
use std::time::Duration;

use super::document::{RawValue, Tree};
use super::reader::Reader;
use super::schema::{
    ACL, AUTH, DISCOVERY, GROUP, HTTP, HYPERSCSI, HYPERSCSI_GROUP, ISNS, LUN, MAPPING, PORTAL, ROOT, SESSION,
    SHARED_LUN, Section, TARGET,
};
use super::source_span::{ConfigReport, Located, SourceSpan};

pub(crate) struct Root {
    pub(crate) state_dir: Option<Located<PathBuf>>,
    pub(crate) admin_socket: Option<Located<PathBuf>>,
    pub(crate) admin_readers: Option<Located<String>>,
    pub(crate) log: Option<Located<&'static str>>,
    pub(crate) log_format: Option<Located<&'static str>>,
    pub(crate) slow_command: Option<Located<Duration>>,
    pub(crate) reactor: Option<Located<&'static str>>,
    pub(crate) cores: Option<Located<String>>,
    pub(crate) poll: Option<Located<bool>>,
    pub(crate) look: Option<Located<bool>>,
    pub(crate) memory: Option<Located<u64>>,
    pub(crate) max_sessions: Option<Located<u16>>,
    pub(crate) max_connections: Option<Located<u16>>,
    pub(crate) login_timeout: Option<Located<Duration>>,
    pub(crate) queue_depth: Option<Located<u16>>,
    pub(crate) nop_interval: Option<Located<Duration>>,
    pub(crate) nop_timeout: Option<Located<Duration>>,
    pub(crate) nop_idle_timeout: Option<Located<Duration>>,
    pub(crate) names: Option<Located<&'static str>>,
    pub(crate) send_timeout: Option<Located<Duration>>,
    pub(crate) portals: Vec<Portal>,
    pub(crate) discovery_auth: Option<Auth>,
    pub(crate) groups: Vec<Group>,
    pub(crate) hyperscsi: Option<HyperScsi>,
    pub(crate) isns: Option<Isns>,
    pub(crate) http: Option<Http>,
    pub(crate) luns: Vec<Lun>,
    pub(crate) targets: Vec<Target>,
}

pub(crate) struct Portal {
    pub(crate) listen: Option<Located<String>>,
    pub(crate) announce: Option<Located<String>>,
    pub(crate) name: Option<Located<String>>,
    pub(crate) tag: Option<Located<u16>>,
    pub(crate) tls_certificate: Option<Located<PathBuf>>,
    pub(crate) tls_key: Option<Located<PathBuf>>,
    pub(crate) tls_client_authority: Option<Located<PathBuf>>,
    pub(crate) tls_client_names: Option<Located<bool>>,
}

pub(crate) struct Http {
    pub(crate) listen: Option<Located<String>>,
    pub(crate) token_file: Option<Located<PathBuf>>,
    pub(crate) hosts: Vec<Located<String>>,
    pub(crate) tls_certificate: Option<Located<PathBuf>>,
    pub(crate) tls_key: Option<Located<PathBuf>>,
    pub(crate) tls_client_authority: Option<Located<PathBuf>>,
}

pub(crate) struct Group {
    pub(crate) name: Option<Located<String>>,
    pub(crate) initiators: Vec<Located<String>>,
}

pub(crate) struct HyperScsi {
    pub(crate) span: SourceSpan,
    pub(crate) interfaces: Vec<Located<String>>,
    pub(crate) groups: Vec<HyperScsiGroup>,
}

pub(crate) struct HyperScsiGroup {
    pub(crate) name: Option<Located<String>>,
    pub(crate) password_file: Option<Located<PathBuf>>,
    pub(crate) protection: Option<Located<&'static str>>,
    pub(crate) interfaces: Option<Vec<Located<String>>>,
}

pub(crate) struct Isns {
    pub(crate) span: SourceSpan,
    pub(crate) servers: Vec<Located<String>>,
    pub(crate) entity: Option<Located<String>>,
    pub(crate) event_port: Option<Located<u16>>,
}

pub(crate) struct Auth {
    pub(crate) span: SourceSpan,
    pub(crate) method: Option<Located<&'static str>>,
    pub(crate) user: Option<Located<String>>,
    pub(crate) secret_file: Option<Located<PathBuf>>,
    pub(crate) secret: Option<Located<String>>,
    pub(crate) mutual_user: Option<Located<String>>,
    pub(crate) mutual_secret_file: Option<Located<PathBuf>>,
    pub(crate) mutual_secret: Option<Located<String>>,
    pub(crate) password_file: Option<Located<PathBuf>>,
    pub(crate) algorithms: Vec<&'static str>,
}

pub(crate) struct Session {
    pub(crate) header_digest: Option<Located<&'static str>>,
    pub(crate) data_digest: Option<Located<&'static str>>,
    pub(crate) protection: Option<Located<&'static str>>,
    pub(crate) max_recv_data_segment_length: Option<Located<u64>>,
    pub(crate) max_burst_length: Option<Located<u64>>,
    pub(crate) first_burst_length: Option<Located<u64>>,
    pub(crate) max_outstanding_r2t: Option<Located<u16>>,
    pub(crate) initial_r2t: Option<Located<bool>>,
    pub(crate) immediate_data: Option<Located<bool>>,
    pub(crate) data_pdu_in_order: Option<Located<bool>>,
    pub(crate) data_sequence_in_order: Option<Located<bool>>,
    pub(crate) max_connections: Option<Located<u16>>,
    pub(crate) error_recovery_level: Option<Located<u16>>,
    pub(crate) time2wait: Option<Located<Duration>>,
    pub(crate) time2retain: Option<Located<Duration>>,
}

/// A LUN of a target or a shared one.
#[derive(Clone)]
pub(crate) struct Lun {
    pub(crate) span: SourceSpan,
    /// Only in a target.
    pub(crate) lun: Option<Located<u16>>,
    /// Only in a target.
    pub(crate) share: Option<Located<String>>,
    /// Only in a target.
    pub(crate) protection: Option<Located<&'static str>>,
    /// Only in a target.
    pub(crate) groups: Option<Vec<Located<String>>>,
    /// Only in a target.
    pub(crate) drive_lun: Option<Located<u16>>,
    /// The keys given besides `lun`, `drive_lun`, `share`, `ro`, `protection` and `groups`. Only those six
    /// may be given together with `share`.
    pub(crate) own_keys: Vec<(&'static str, SourceSpan)>,
    /// Only at the top level.
    pub(crate) name: Option<Located<String>>,
    pub(crate) kind: Option<Located<&'static str>>,
    pub(crate) path: Option<Located<PathBuf>>,
    pub(crate) size: Option<Located<u64>>,
    /// Whether `size` is given, with a valid or an invalid value.
    pub(crate) size_given: bool,
    pub(crate) path_given: bool,
    pub(crate) uri: Option<Located<String>>,
    pub(crate) uri_given: bool,
    pub(crate) reconnect_timeout: Option<Located<Duration>>,
    pub(crate) kind_given: bool,
    pub(crate) bs: Option<Located<&'static str>>,
    pub(crate) physical_bs: Option<Located<&'static str>>,
    pub(crate) ro: bool,
    pub(crate) direct: Option<Located<bool>>,
    pub(crate) provisioning: Option<Located<&'static str>>,
    pub(crate) write_cache: bool,
    pub(crate) io_timeout: Option<Located<Duration>>,
    pub(crate) limit: Limit,
    pub(crate) encrypt: Option<Located<PathBuf>>,
    pub(crate) atomic_bs: Option<Located<&'static str>>,
    pub(crate) removable: bool,
    pub(crate) profile: Option<Located<&'static str>>,
    pub(crate) dangerous_commands: bool,
    pub(crate) shared_with_host: bool,
    pub(crate) long_cdbs: bool,
    pub(crate) tst: Option<Located<&'static str>>,
    pub(crate) tas: bool,
    pub(crate) spc: Option<Located<&'static str>>,
    pub(crate) rotation: Option<Located<&'static str>>,
    pub(crate) unmapped: Option<Located<&'static str>>,
    pub(crate) write_same_to_end: bool,
    pub(crate) compare_and_write_max: Option<Located<u16>>,
    pub(crate) serial: Option<Located<String>>,
    pub(crate) naa: Option<Located<String>>,
    pub(crate) vendor: Option<Located<String>>,
    pub(crate) product: Option<Located<String>>,
    pub(crate) revision: Option<Located<String>>,
    pub(crate) drive_vendor: Option<Located<String>>,
    pub(crate) drive_product: Option<Located<String>>,
    pub(crate) drive_revision: Option<Located<String>>,
}

pub(crate) struct Target {
    pub(crate) span: SourceSpan,
    pub(crate) name: Option<Located<String>>,
    pub(crate) alias: Option<Located<String>>,
    pub(crate) portals: Option<Vec<Located<String>>>,
    pub(crate) groups: Vec<Located<String>>,
    pub(crate) max_sessions: Option<Located<u16>>,
    pub(crate) queue_depth: Option<Located<u16>>,
    pub(crate) nop_interval: Option<Located<Duration>>,
    pub(crate) nop_timeout: Option<Located<Duration>>,
    pub(crate) session: Session,
    pub(crate) auth: Option<Auth>,
    pub(crate) luns: Vec<Lun>,
    pub(crate) acl: Option<Vec<Acl>>,
}

pub(crate) struct Acl {
    pub(crate) initiators: Vec<Located<String>>,
    pub(crate) luns: Option<Vec<Mapping>>,
    pub(crate) ro: bool,
    pub(crate) protection: Option<Located<&'static str>>,
    pub(crate) auth: Option<Auth>,
    pub(crate) max_sessions: Option<Located<u16>>,
    pub(crate) limit: Limit,
}

/// The limits of a LUN or an initiator.
#[derive(Clone)]
pub(crate) struct Limit {
    pub(crate) iops: Option<Located<u32>>,
    pub(crate) bandwidth: Option<Located<u64>>,
    pub(crate) burst: Option<Located<Duration>>,
}

pub(crate) struct Mapping {
    pub(crate) lun: Option<Located<u16>>,
    pub(crate) shown_as: Option<Located<u16>>,
    pub(crate) ro: bool,
    pub(crate) protection: Option<Located<&'static str>>,
}

impl Root {
    pub(crate) fn read(tree: Tree, report: &mut ConfigReport) -> Self {
        let mut r = Reader::open(&ROOT, tree, report);
        let mut root = Self {
            state_dir: r.path("state_dir"),
            admin_socket: r.path("admin_socket"),
            admin_readers: r.text("admin_readers"),
            log: r.choice("log"),
            log_format: r.choice("log_format"),
            slow_command: r.duration("slow_command"),
            reactor: r.choice("reactor"),
            cores: r.text("cores"),
            poll: r.switch("poll"),
            look: r.switch("look"),
            memory: r.size("memory"),
            max_sessions: r.count16("max_sessions"),
            max_connections: r.count16("max_connections"),
            login_timeout: r.duration("login_timeout"),
            queue_depth: r.count16("queue_depth"),
            nop_interval: r.duration("nop_interval"),
            nop_timeout: r.duration("nop_timeout"),
            nop_idle_timeout: r.duration("nop_idle_timeout"),
            names: r.choice("names"),
            send_timeout: r.duration("send_timeout"),
            portals: Vec::new(),
            discovery_auth: None,
            groups: Vec::new(),
            hyperscsi: None,
            isns: None,
            http: None,
            luns: Vec::new(),
            targets: Vec::new(),
        };
        let portals = r.tables("portal");
        let groups = r.tables("group");
        let luns = r.tables("lun");
        let targets = r.tables("target");
        let discovery = r.table("discovery");
        let frames = r.table("hyperscsi");
        let isns = r.table("isns");
        let http = r.table("http");
        let session = r.table("session").unwrap_or_else(|| Tree::new(SourceSpan::Default));
        drop(r);
        Session::read(session.clone(), report);
        root.portals = portals.into_iter().map(|tree| Portal::read(tree, report)).collect();
        root.groups = groups.into_iter().map(|tree| Group::read(tree, report)).collect();
        root.luns = luns.into_iter().map(|tree| Lun::read(&SHARED_LUN, tree, report)).collect();
        root.targets = targets.into_iter().map(|tree| Target::read(tree, &session, report)).collect();
        root.hyperscsi = frames.map(|tree| HyperScsi::read(tree, report));
        root.isns = isns.map(|tree| Isns::read(tree, report));
        root.http = http.map(|tree| Http::read(tree, report));
        root.discovery_auth = discovery.and_then(|tree| {
            let auth = Reader::open(&DISCOVERY, tree, report).table("auth")?;
            Some(Auth::read(auth, report))
        });
        root
    }
}

impl Portal {
    fn read(tree: Tree, report: &mut ConfigReport) -> Self {
        let mut r = Reader::open(&PORTAL, tree, report);
        Self {
            listen: r.text("listen"),
            announce: r.text("announce"),
            name: r.text("name"),
            tag: r.count16("tag"),
            tls_certificate: r.path("tls_certificate"),
            tls_key: r.path("tls_key"),
            tls_client_authority: r.path("tls_client_authority"),
            tls_client_names: r.switch("tls_client_names"),
        }
    }
}

impl Http {
    fn read(tree: Tree, report: &mut ConfigReport) -> Self {
        let mut r = Reader::open(&HTTP, tree, report);
        Self {
            listen: r.text("listen"),
            token_file: r.path("token_file"),
            hosts: r.some_texts("hosts").unwrap_or_default(),
            tls_certificate: r.path("tls_certificate"),
            tls_key: r.path("tls_key"),
            tls_client_authority: r.path("tls_client_authority"),
        }
    }
}

impl Group {
    fn read(tree: Tree, report: &mut ConfigReport) -> Self {
        let mut r = Reader::open(&GROUP, tree, report);
        Self { name: r.text("name"), initiators: r.some_texts("initiators").unwrap_or_default() }
    }
}

impl Isns {
    fn read(tree: Tree, report: &mut ConfigReport) -> Self {
        let mut r = Reader::open(&ISNS, tree, report);
        Self {
            span: r.span().clone(),
            servers: r.some_texts("servers").unwrap_or_default(),
            entity: r.text("entity"),
            event_port: r.count16("event_port"),
        }
    }
}

impl HyperScsi {
    fn read(tree: Tree, report: &mut ConfigReport) -> Self {
        let mut r = Reader::open(&HYPERSCSI, tree, report);
        let span = r.span().clone();
        let interfaces = r.some_texts("interfaces").unwrap_or_default();
        let groups = r.tables("group");
        drop(r);
        Self {
            span,
            interfaces,
            groups: groups.into_iter().map(|tree| HyperScsiGroup::read(tree, report)).collect(),
        }
    }
}

impl HyperScsiGroup {
    fn read(tree: Tree, report: &mut ConfigReport) -> Self {
        let mut r = Reader::open(&HYPERSCSI_GROUP, tree, report);
        Self {
            name: r.text("name"),
            password_file: r.path("password_file"),
            protection: r.choice("protection"),
            interfaces: r.some_texts("interfaces"),
        }
    }
}

impl Auth {
    fn read(tree: Tree, report: &mut ConfigReport) -> Self {
        let mut r = Reader::open(&AUTH, tree, report);
        Self {
            span: r.span().clone(),
            method: r.choice("method"),
            user: r.text("user"),
            secret_file: r.path("secret_file"),
            secret: r.text("secret"),
            mutual_user: r.text("mutual_user"),
            mutual_secret_file: r.path("mutual_secret_file"),
            mutual_secret: r.text("mutual_secret"),
            password_file: r.path("password_file"),
            algorithms: r.choices("algorithms").unwrap_or_default(),
        }
    }
}

impl Session {
    fn read(tree: Tree, report: &mut ConfigReport) -> Self {
        let mut r = Reader::open(&SESSION, tree, report);
        Self {
            header_digest: r.choice("header_digest"),
            data_digest: r.choice("data_digest"),
            protection: r.choice("protection"),
            max_recv_data_segment_length: r.size("max_recv_data_segment_length"),
            max_burst_length: r.size("max_burst_length"),
            first_burst_length: r.size("first_burst_length"),
            max_outstanding_r2t: r.count16("max_outstanding_r2t"),
            initial_r2t: r.switch("initial_r2t"),
            immediate_data: r.switch("immediate_data"),
            data_pdu_in_order: r.switch("data_pdu_in_order"),
            data_sequence_in_order: r.switch("data_sequence_in_order"),
            max_connections: r.count16("max_connections"),
            error_recovery_level: r.count16("error_recovery_level"),
            time2wait: r.duration("time2wait"),
            time2retain: r.duration("time2retain"),
        }
    }
}

impl Lun {
    fn read(section: &'static Section, tree: Tree, report: &mut ConfigReport) -> Self {
        let shared = section.key("share").is_none();
        let mut r = Reader::open(section, tree, report);
        let own_keys = section
            .keys
            .iter()
            .filter(|key| !["lun", "drive_lun", "share", "ro", "protection", "groups"].contains(&key.name))
            .filter_map(|key| Some((key.name, r.given(key.name)?)))
            .collect();
        Self {
            span: r.span().clone(),
            own_keys,
            lun: if shared { None } else { r.count16("lun") },
            drive_lun: if shared { None } else { r.count16("drive_lun") },
            share: if shared { None } else { r.text("share") },
            protection: if shared { None } else { r.choice("protection") },
            groups: if shared { None } else { r.some_texts("groups") },
            name: if shared { r.text("name") } else { None },
            kind_given: r.given("type").is_some(),
            path_given: r.given("path").is_some(),
            size_given: r.given("size").is_some(),
            kind: r.choice("type"),
            uri_given: r.given("uri").is_some(),
            uri: r.text("uri"),
            reconnect_timeout: r.duration("reconnect_timeout"),
            path: r.path("path"),
            size: r.size("size"),
            bs: r.choice("bs"),
            physical_bs: r.choice("physical_bs"),
            ro: r.switch("ro").is_some_and(|on| on.value),
            direct: r.switch("direct"),
            provisioning: r.choice("provisioning"),
            write_cache: r.switch("write_cache").is_none_or(|on| on.value),
            io_timeout: r.duration("io_timeout"),
            limit: Limit::read(&mut r),
            encrypt: r.path("encrypt"),
            atomic_bs: r.choice("atomic_bs"),
            profile: r.choice("profile"),
            dangerous_commands: r.switch("dangerous_commands").is_some_and(|on| on.value),
            shared_with_host: r.switch("shared_with_host").is_some_and(|on| on.value),
            removable: r.switch("removable").is_some_and(|on| on.value),
            long_cdbs: r.switch("long_cdbs").is_some_and(|on| on.value),
            tst: r.choice("tst"),
            tas: r.switch("tas").is_none_or(|on| on.value),
            spc: r.choice("spc"),
            rotation: r.choice("rotation"),
            unmapped: r.choice("unmapped"),
            write_same_to_end: r.switch("write_same_to_end").is_some_and(|on| on.value),
            compare_and_write_max: r.count16("compare_and_write_max"),
            serial: r.text("serial"),
            naa: r.text("naa"),
            vendor: r.text("vendor"),
            product: r.text("product"),
            revision: r.text("revision"),
            drive_vendor: r.text("drive_vendor"),
            drive_product: r.text("drive_product"),
            drive_revision: r.text("drive_revision"),
        }
    }
}

impl Target {
    fn read(tree: Tree, session: &Tree, report: &mut ConfigReport) -> Self {
        let mut r = Reader::open(&TARGET, tree, report);
        let span = r.span().clone();
        let name = r.text("name");
        let alias = r.text("alias");
        let portals = r.some_texts("portals");
        let groups = r.some_texts("groups").unwrap_or_default();
        let max_sessions = r.count16("max_sessions");
        let queue_depth = r.count16("queue_depth");
        let (nop_interval, nop_timeout) = (r.duration("nop_interval"), r.duration("nop_timeout"));
        let mut own = r.table("session").unwrap_or_else(|| Tree::new(span.clone()));
        own.underlay(session);
        let auth = r.table("auth");
        let luns = r.tables("lun");
        let acl_given = r.given("acl").is_some();
        let acl = r.tables("acl");
        drop(r);
        Self {
            span,
            name,
            alias,
            portals,
            groups,
            max_sessions,
            queue_depth,
            nop_interval,
            nop_timeout,
            session: Session::read(own, report),
            auth: auth.map(|tree| Auth::read(tree, report)),
            luns: luns.into_iter().map(|tree| Lun::read(&LUN, tree, report)).collect(),
            acl: acl_given.then(|| acl.into_iter().map(|tree| Acl::read(tree, report)).collect()),
        }
    }
}

impl Acl {
    fn read(tree: Tree, report: &mut ConfigReport) -> Self {
        let mut r = Reader::open(&ACL, tree, report);
        let initiators = r.some_texts("initiators").unwrap_or_default();
        let luns = r.list("luns");
        let ro = r.switch("ro").is_some_and(|on| on.value);
        let protection = r.choice("protection");
        let auth = r.table("auth");
        let (max_sessions, limit) = (r.count16("max_sessions"), Limit::read(&mut r));
        drop(r);
        Self {
            initiators,
            protection,
            max_sessions,
            limit,
            luns: luns.map(|list| list.into_iter().filter_map(|item| Mapping::read(item, report)).collect()),
            ro,
            auth: auth.map(|tree| Auth::read(tree, report)),
        }
    }
}

impl Limit {
    fn read(r: &mut Reader<'_>) -> Self {
        let (iops, bandwidth) = (r.count32("limit_iops"), r.size("limit_bandwidth"));
        Self { iops, bandwidth, burst: r.duration("limit_burst") }
    }
}

impl Mapping {
    fn read(item: Located<RawValue>, report: &mut ConfigReport) -> Option<Self> {
        let tree = match item.value {
            RawValue::Table(tree) => tree,
            RawValue::Integer(_) => {
                let mut tree = Tree::new(item.span.clone());
                tree.set("lun", item);
                tree
            }
            other => {
                let message =
                    format!("an entry of \"luns\" must be a number or a table, not {}", other.noun());
                report.error(&item.span, message);
                return None;
            }
        };
        let mut r = Reader::open(&MAPPING, tree, report);
        Some(Self {
            lun: r.count16("lun"),
            shown_as: r.count16("as"),
            ro: r.switch("ro").is_some_and(|on| on.value),
            protection: r.choice("protection"),
        })
    }
}
