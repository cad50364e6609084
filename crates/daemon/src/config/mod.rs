//! The configuration: read from TOML or from flags and checked as a whole. Every mistake is reported with its
//! source span.
//!
//! The configuration as written (`raw`, with source spans) and its meaning (`resolved`) are separate types.
//! All keys are defined in one table (`schema`), from which the reader, the defaults and the reference in
//! `docs/config.md` are made.
//!
//! **Invariant:** this module opens media only to check whether it may; it changes nothing in the file
//! system.

mod diff;
mod document;
mod edit;
mod flags;
mod http_tokens;
mod identity;
pub(crate) mod library_record;
mod lun_spec;
mod names;
mod plan;
mod quantity;
mod raw;
mod reader;
mod reference;
mod resolve;
mod resolved;
mod revision;
mod schema;
pub(crate) mod secret;
mod source_span;
mod tighten;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use security::secret_access::FileAccess;

pub(crate) use diff::UnitKey;
pub use diff::{Changes, LunChange, PortalChange, TargetChange, TargetDelta};
pub use edit::{AuthPlace, Edit, EditContext, Setting, edit};
pub use flags::Flags;
pub use http_tokens::{HttpRole, HttpToken, HttpTokens};
pub(crate) use identity::{StateIdentity, instance, machine_hash, parse_naa};
pub use library_record::ServedLibrary;
pub use names::NamePattern;
pub use plan::{PlannedChange, Subject, What, WhenEffective, plan};
pub use quantity::{show_size, size as parse_size};
pub use reference::reference;
pub use resolve::{Environment, StateSource};
pub(crate) use resolve::{expect_block_len, served_libraries};
pub use resolved::{
    AclEntry, Announced, Auth, AuthMethods, Chap, Config, Group, GroupPassword, GroupSecret, GroupSet, Http,
    HyperScsiService, Identity, LunNumbers, MappedLun, Medium, Naa, Portal, ReactorChoice, Target, UNITS_MAX,
    Unit, UnitIndex,
};
pub use revision::Revision;
pub use source_span::{ConfigError, ConfigReport, SourceSpan};

/// The longest configuration file in bytes. A file of this length holds some 50 000 LUNs.
pub const FILE_LEN_MAX: u64 = 8 << 20;

/// The name of the target if none is configured. Its domain is reserved, so nobody can own it (RFC 2606).
pub const DEFAULT_TARGET: &str = "iqn.2026-11.example.targe:disk";

/// A valid configuration and its report, which holds warnings only.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The configuration.
    pub config: Config,
    /// The warnings.
    pub report: ConfigReport,
    /// The revision of the file that it was read from; `None` for a configuration from flags alone.
    pub revision: Option<Revision>,
}

/// A configuration that cannot be applied.
#[derive(Clone, Debug)]
pub(crate) struct InvalidConfig {
    /// The mistakes and warnings.
    pub(crate) report: ConfigReport,
    /// The configuration as written, if every mistake is that a medium cannot be used; a reload takes from it
    /// which access to withdraw.
    pub(crate) config: Option<Config>,
    /// The revision of the file that it was read from.
    pub(crate) revision: Option<Revision>,
}

impl InvalidConfig {
    /// Returns the configuration as one without mistakes, if each mistake is that a medium cannot be used
    /// which `accepts` allows: by its unit, and whether the medium is not there.
    pub(crate) fn accepting(
        mut self: Box<Self>,
        accepts: impl Fn(&Unit, bool) -> bool,
    ) -> Result<Loaded, Box<Self>> {
        let Some(config) = self.config.take() else { return Err(self) };
        let units: BTreeMap<&str, &Unit> =
            config.units.iter().map(|unit| (unit.label.as_str(), unit)).collect();
        let mut report = self.report.clone();
        report.accept_media(|label, is_absent| units.get(label).is_some_and(|unit| accepts(unit, is_absent)));
        if report.is_clean() {
            return Ok(Loaded { config, report, revision: self.revision });
        }
        self.config = Some(config);
        Err(self)
    }
}

impl Config {
    /// Reads the configuration that the flags describe: the file that they name, if any, overridden by the
    /// other flags. Relative paths in the file start at the directory of the file, those in flags at the
    /// working directory.
    ///
    /// # Errors
    /// The report, when the configuration has mistakes.
    pub fn load(flags: &Flags, environment: &Environment) -> Result<Loaded, ConfigReport> {
        Self::read(flags, environment).map_err(|unusable| unusable.report)
    }

    /// Reads the configuration like [`Self::load`], for a daemon that withdraws access even if a medium
    /// cannot be used.
    ///
    /// # Errors
    /// [`InvalidConfig`], when the configuration has mistakes.
    pub(crate) fn read(flags: &Flags, environment: &Environment) -> Result<Loaded, Box<InvalidConfig>> {
        Self::read_watched(flags, environment, |_| ())
    }

    /// Reads the configuration like [`Self::read`]. What `begin` returns lives while the file is read.
    ///
    /// # Errors
    /// [`InvalidConfig`], when the configuration has mistakes.
    pub(crate) fn read_watched<G>(
        flags: &Flags,
        environment: &Environment,
        begin: impl FnOnce(&Path) -> G,
    ) -> Result<Loaded, Box<InvalidConfig>> {
        let Some(file) = &flags.config else {
            return Self::resolve(flags, environment, ConfigReport::new(None), None);
        };
        let reading = begin(file);
        let text = read(file);
        drop(reading);
        match text {
            Ok((text, mode)) => Self::read_text(flags, environment, file, &text, Some(mode)),
            Err(why) => {
                let mut report = ConfigReport::new(Some(file.clone()));
                report.whole(why);
                Err(Box::new(InvalidConfig { report, config: None, revision: None }))
            }
        }
    }

    /// Reads a text as if it were the file that the flags name and had this mode. The report calls it `name`.
    ///
    /// # Errors
    /// The report, when the text has mistakes.
    pub fn load_text(
        flags: &Flags,
        environment: &Environment,
        name: &Path,
        text: &str,
        access: Option<FileAccess>,
    ) -> Result<Loaded, ConfigReport> {
        Self::read_text(flags, environment, name, text, access).map_err(|unusable| unusable.report)
    }

    /// Reads a text as [`Self::load_text`] does, for a change that opens no medium: that a medium cannot be
    /// used in its present state is a warning.
    ///
    /// # Errors
    /// The report, when the text has other mistakes.
    pub fn load_text_without_media(
        flags: &Flags,
        environment: &Environment,
        name: &Path,
        text: &str,
        access: Option<FileAccess>,
    ) -> Result<Loaded, ConfigReport> {
        Self::read_text(flags, environment, name, text, access).or_else(|unusable| match *unusable {
            InvalidConfig { report, config: Some(config), revision } => {
                Ok(Loaded { config, report: report.with_media_warnings(), revision })
            }
            InvalidConfig { report, config: None, .. } => Err(report),
        })
    }

    /// Reads a text as [`Self::load_text`] does, for a change of a configuration with the units `kept`. A
    /// medium of a unit that stays exactly as it is need not be usable: that is a warning.
    ///
    /// # Errors
    /// The report, when the text has other mistakes.
    pub fn load_changed_text(
        flags: &Flags,
        environment: &Environment,
        (name, text): (&Path, &str),
        access: Option<FileAccess>,
        kept: &[Unit],
    ) -> Result<Loaded, ConfigReport> {
        let loaded = Self::read_text(flags, environment, name, text, access);
        loaded.or_else(|unusable| unusable.accepting(|unit, _| kept.contains(unit))).map_err(|one| one.report)
    }

    /// Reads a text as [`Self::load_text`] does, for a daemon that accepts some media which cannot be used.
    ///
    /// # Errors
    /// [`InvalidConfig`], when the text has mistakes.
    pub(crate) fn read_text(
        flags: &Flags,
        environment: &Environment,
        name: &Path,
        text: &str,
        access: Option<FileAccess>,
    ) -> Result<Loaded, Box<InvalidConfig>> {
        Self::resolve(flags, environment, ConfigReport::new(Some(name.to_path_buf())), Some((text, access)))
    }

    fn resolve(
        flags: &Flags,
        environment: &Environment,
        mut report: ConfigReport,
        file: Option<(&str, Option<FileAccess>)>,
    ) -> Result<Loaded, Box<InvalidConfig>> {
        let mut environment = environment.clone();
        let mut flags = flags.clone();
        for path in [&mut flags.state_dir, &mut flags.socket, &mut flags.http_token].into_iter().flatten() {
            *path = environment.absolute(path);
        }
        let revision = file.map(|(text, _)| Revision::of(text.as_bytes()));
        let mut tree = match file {
            Some((text, access)) => {
                environment.file_access = access;
                let whole = flags.config.as_ref().map(|file| environment.absolute(file));
                let directory = whole.as_ref().and_then(|whole| whole.parent());
                environment.directory = directory.map_or(environment.directory, Path::to_path_buf);
                document::from_toml(text, &mut report)
            }
            None => document::Tree::new(SourceSpan::Default),
        };
        let state_dir = flags.state_dir.clone().unwrap_or_else(|| environment.state_dir.clone());
        flags.apply(&mut tree, &state_dir, &mut report);
        environment.name_is_ours = flags.config.is_none() && flags.target.is_none();
        let root = raw::Root::read(tree, &mut report);
        let config = resolve::resolve(root, &environment, &mut report);
        if report.is_clean() {
            return Ok(Loaded { config, report, revision });
        }
        let config = report.has_only_media_errors().then_some(config);
        Err(Box::new(InvalidConfig { report, config, revision }))
    }
}

fn read(file: &Path) -> Result<(String, FileAccess), String> {
    let cannot = |error: std::io::Error| format!("cannot read: {}", crate::os_error(&error));
    let opened = std::fs::File::open(file).map_err(cannot)?;
    let meta = opened.metadata().map_err(cannot)?;
    // The length is checked while reading: pipes and devices report no length, and some of them never end.
    let mut bytes = Vec::new();
    opened.take(FILE_LEN_MAX + 1).read_to_end(&mut bytes).map_err(cannot)?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > FILE_LEN_MAX {
        return Err(format!("longer than {}", show_size(FILE_LEN_MAX)));
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        let line =
            error.as_bytes().iter().take(error.utf8_error().valid_up_to()).filter(|b| **b == b'\n').count();
        format!("not UTF-8 (on line {})", line + 1)
    })?;
    Ok((text, secret::access_of(&meta)))
}
