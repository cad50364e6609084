//! The flags of `targe serve`. They build the same tree as a configuration file.

use std::path::{Path, PathBuf};

use super::document::{RawValue, Tree, flag_span, from_word};
use super::lun_spec;
use super::schema::{Kind, ROOT};
use super::source_span::{ConfigReport, Located, SourceSpan};

/// The flags that affect the configuration, as given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// `--config FILE`.
    pub config: Option<PathBuf>,
    /// `--listen ADDR:PORT`; replaces the portals of the file.
    pub listen: Vec<String>,
    /// `--iface IFACE`.
    pub interfaces: Vec<String>,
    /// `--group NAME`.
    pub groups: Vec<String>,
    /// `--group-password-file FILE`; applies to every group.
    pub group_password: Option<PathBuf>,
    /// `--target IQN`.
    pub target: Option<String>,
    /// `--lun SPEC`.
    pub luns: Vec<String>,
    /// `--reactor KIND`.
    pub reactor: Option<String>,
    /// `--poll`.
    pub poll: bool,
    /// `--cores LIST`.
    pub cores: Option<String>,
    /// `--state-dir DIR`.
    pub state_dir: Option<PathBuf>,
    /// `--socket PATH`.
    pub socket: Option<PathBuf>,
    /// `--log LEVEL`.
    pub log: Option<String>,
    /// `--log-format FORMAT`.
    pub log_format: Option<String>,
    /// `--http ADDR:PORT`.
    pub http: Option<String>,
    /// `--http-token-file FILE`.
    pub http_token: Option<PathBuf>,
    /// `--strict`: the daemon does not start unless every medium is there.
    pub strict: bool,
}

impl Flags {
    /// Returns whether the daemon starts although media are not there yet. A disk that is given by a flag is
    /// wanted now.
    pub(crate) const fn waits_for_media(&self) -> bool {
        !self.strict && self.config.is_some()
    }

    /// Returns whether the default disk is served, because neither a configuration file nor a LUN is given.
    pub fn is_default_disk(&self) -> bool {
        self.config.is_none() && self.luns.is_empty()
    }

    /// Overrides what the file says with the flags, or builds a configuration from the flags alone.
    /// `state_dir` holds the default disk.
    pub(crate) fn apply(&self, tree: &mut Tree, state_dir: &Path, report: &mut ConfigReport) {
        self.settings(tree, report);
        self.http(tree, report);
        if !self.listen.is_empty() {
            tree.entries.remove("portal");
        }
        for listen in &self.listen {
            let span = flag_span("--listen", listen);
            let mut portal = Tree::new(span.clone());
            portal.set("listen", Located::new(RawValue::Text(listen.clone()), span));
            tree.push("portal", portal);
        }
        if self.config.is_some() {
            if let Some(name) = &self.target {
                report.error(&flag_span("--target", name), "the --config file defines the targets");
            }
            for (flag, values) in [("--iface", &self.interfaces), ("--group", &self.groups)] {
                for value in values {
                    report.error(
                        &flag_span(flag, value),
                        "the --config file defines the HyperSCSI interfaces and groups",
                    );
                }
            }
            for spec in &self.luns {
                report.error(&flag_span("--lun", spec), "the --config file defines the LUNs");
            }
            return;
        }
        let name_place = self.target.as_ref().map_or(SourceSpan::Default, |name| flag_span("--target", name));
        let name = self.target.as_deref().unwrap_or(super::DEFAULT_TARGET);
        let mut target = Tree::new(name_place.clone());
        target.set("name", Located::new(RawValue::Text(name.to_owned()), name_place));
        self.frames(tree, &mut target, report);
        for lun in &self.luns {
            let tree = lun_spec::parse(lun, &flag_span("--lun", lun), report);
            target.push("lun", tree);
        }
        if self.luns.is_empty() {
            target.push("lun", default_disk(&utf8(&state_dir.join("disk.img"), report)));
        }
        tree.push("target", target);
    }

    /// Serves HyperSCSI to every group that is given.
    fn frames(&self, tree: &mut Tree, target: &mut Tree, report: &mut ConfigReport) {
        let (Some(interface), Some(group)) = (self.interfaces.first(), self.groups.first()) else {
            for (flag, values, other) in
                [("--iface", &self.interfaces, "--group"), ("--group", &self.groups, "--iface")]
            {
                if let Some(value) = values.first() {
                    report.error(&flag_span(flag, value), format!("HyperSCSI also needs {other}"));
                }
            }
            return;
        };
        let list = |flag: &str, values: &[String], first: &str| {
            let text = |value: &String| Located::new(RawValue::Text(value.clone()), flag_span(flag, value));
            Located::new(RawValue::List(values.iter().map(text).collect()), flag_span(flag, first))
        };
        let mut frames = Tree::new(flag_span("--iface", interface));
        frames.set("interfaces", list("--iface", &self.interfaces, interface));
        for name in &self.groups {
            let span = flag_span("--group", name);
            let mut group = Tree::new(span.clone());
            group.set("name", Located::new(RawValue::Text(name.clone()), span));
            if let Some(path) = &self.group_password {
                let path = utf8(path, report);
                let span = flag_span("--group-password-file", &path);
                group.set("password_file", Located::new(RawValue::Text(path), span));
            }
            frames.push("group", group);
        }
        tree.set("hyperscsi", Located::new(RawValue::Table(frames), flag_span("--iface", interface)));
        target.set("groups", list("--group", &self.groups, group));
    }

    fn http(&self, tree: &mut Tree, report: &mut ConfigReport) {
        let Some(listen) = &self.http else { return };
        let span = flag_span("--http", listen);
        let mut http = match tree.entries.remove("http").map(|given| given.value.value) {
            Some(RawValue::Table(http)) => http,
            _ => Tree::new(span.clone()),
        };
        http.set("listen", Located::new(RawValue::Text(listen.clone()), span.clone()));
        if let Some(path) = &self.http_token {
            let path = utf8(path, report);
            let span = flag_span("--http-token-file", &path);
            http.set("token_file", Located::new(RawValue::Text(path), span));
        }
        tree.set("http", Located::new(RawValue::Table(http), span));
    }

    fn settings(&self, tree: &mut Tree, report: &mut ConfigReport) {
        for (flag, key, value) in [
            ("--reactor", "reactor", self.reactor.clone()),
            ("--poll", "poll", self.poll.then(|| "true".to_owned())),
            ("--cores", "cores", self.cores.clone()),
            ("--state-dir", "state_dir", self.state_dir.as_deref().map(|path| utf8(path, report))),
            ("--socket", "admin_socket", self.socket.as_deref().map(|path| utf8(path, report))),
            ("--log", "log", self.log.clone()),
            ("--log-format", "log_format", self.log_format.clone()),
        ] {
            if let (Some(value), Some(key)) = (value, ROOT.key(key)) {
                let span = flag_span(flag, if matches!(key.kind, Kind::Switch) { "" } else { &value });
                tree.set(key.name, from_word(&value, key.kind, &span));
            }
        }
    }
}

/// Returns a path as text; reports a path that is not UTF-8 as a mistake.
fn utf8(path: &Path, report: &mut ConfigReport) -> String {
    if path.to_str().is_none() {
        report.error(&SourceSpan::Default, format!("the path {} is not UTF-8", path.display()));
    }
    path.to_string_lossy().into_owned()
}

/// Returns the disk that is served when neither a file nor a LUN is given: 1 GiB, thin, in the state
/// directory.
fn default_disk(path: &str) -> Tree {
    let span = SourceSpan::Flag("the default disk".into());
    let mut lun = Tree::new(span.clone());
    for (key, value) in [("type", "file"), ("path", path), ("size", "1G")] {
        lun.set(key, Located::new(RawValue::Text(value.to_owned()), span.clone()));
    }
    lun
}
