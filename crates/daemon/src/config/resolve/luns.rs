//! Resolves logical units: their media, numbers and identities.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use base::units::{BlockSize, ByteLen};
use device::contract::{InquiryOverrides, SpcLevel as Standard, TaskRules};
use security::Level;

use super::super::identity::{self, StateIdentity};
use super::super::library_record::{self, ServedLibrary};
use super::super::names::check_label;
use super::super::raw;
use super::super::resolved::{
    GroupSet, Identity, LunNumbers, MappedLun, Medium, Naa, Target, UNITS_MAX, Unit, UnitIndex,
};
use super::super::source_span::{ConfigReport, Located, SourceSpan, did_you_mean};
use super::changers::{self, Libraries};
use super::discs;
use super::disk_files::{block_size, block_size_of_lun, block_size_of_word};
use super::examination::{self, Examination, Finding};
use super::hyperscsi_groups::{HyperScsiGroups, level};
use super::limits;
use super::medium_key::MediumKey;
use super::numbers::Numbering;
use super::over_commit::Promises;
use super::sg;
use super::tapes;
use super::{Environment, at_line, nbd, printable};

/// The units that are resolved so far.
pub(super) struct UnitResolver<'a> {
    environment: &'a Environment,
    units: Vec<Unit>,
    /// The libraries, by the unit of the changer.
    libraries: Libraries,
    /// The libraries that are served, or were, by the paths of their folders.
    served_libraries: BTreeMap<PathBuf, ServedLibrary>,
    shared: BTreeMap<String, Shared>,
    /// The label of the unit that uses each file or device, so that no two units write to one medium.
    media: BTreeMap<MediumKey, String>,
    names: BTreeMap<Naa, String>,
    /// The label of the unit that has each serial number.
    serials: BTreeMap<String, String>,
    promises: Promises,
    /// What was found of the media of the LUNs that are still to be resolved, in their order.
    examinations: std::vec::IntoIter<Examination>,
}

struct Shared {
    span: SourceSpan,
    unit: Option<UnitIndex>,
    /// The identity of a shared unit. The first target that shows the unit completes it.
    identity: Option<Derived>,
    used: bool,
}

/// The parts of an identity that may have to be derived.
struct Derived {
    naa: Option<Located<Naa>>,
    serial: Option<Located<String>>,
    span: SourceSpan,
}

/// The LUNs of a target.
pub(super) struct TargetLuns {
    /// Every number that is used, by valid and by invalid LUNs.
    pub(super) numbers: BTreeSet<u16>,
    /// The valid LUNs, in ascending order.
    pub(super) mapped: Vec<MappedLun>,
    /// The numbers of each LUN table.
    pub(super) tables: Vec<LunNumbers>,
}

impl<'a> UnitResolver<'a> {
    /// Examines the media of all LUNs, and resolves the shared units. The record in the state directory has
    /// the libraries that were served.
    pub(super) fn new(
        (environment, state_dir): (&'a Environment, Option<&Path>),
        (shared, targets): (&[raw::Lun], &[raw::Target]),
        report: &mut ConfigReport,
    ) -> Self {
        let directory = environment.state_to_read(state_dir);
        // A state directory that does not answer is in the report.
        let directory = directory.filter(|state| !report.awaits_directory_of(&StateIdentity::file(state)));
        let recorded = directory.map(library_record::read);
        let mut served_libraries = recorded.unwrap_or_default();
        served_libraries.extend(environment.served_libraries.clone());
        let luns = shared.iter().chain(targets.iter().flat_map(|target| &target.luns));
        let examinations = examination::of(luns, environment, &served_libraries).into_iter();
        let mut pool = Self {
            examinations,
            served_libraries,
            environment,
            units: Vec::new(),
            libraries: Libraries::new(),
            shared: BTreeMap::new(),
            media: BTreeMap::new(),
            names: BTreeMap::new(),
            serials: BTreeMap::new(),
            promises: Promises::default(),
        };
        for lun in shared {
            let label = lun.name.as_ref().map(|at| at.value.clone()).unwrap_or_default();
            let examined = pool.examinations.next();
            let unit = pool.unit((lun, examined), label.clone(), report);
            let Some(name) = &lun.name else { continue };
            if let Err(why) = check_label(&name.value) {
                report.error(&name.span, why);
            }
            if let Some(first) = pool.shared.get(&label) {
                let line = at_line(&first.span);
                report.error(&name.span, format!("lun \"{label}\" is given twice{line}"));
                continue;
            }
            let identity = Some(derived(lun, report));
            pool.shared.insert(label, Shared { span: name.span.clone(), unit, identity, used: false });
        }
        pool
    }

    /// Resolves the LUNs of a target. `scope` is the string that their identities are derived from; if it is
    /// `None`, because the target's name is invalid, no identity is derived.
    pub(super) fn target_luns(
        &mut self,
        target: &str,
        scope: Option<&str>,
        luns: Vec<raw::Lun>,
        groups: &HyperScsiGroups,
        report: &mut ConfigReport,
    ) -> TargetLuns {
        let mut numbering = Numbering::new(&luns, report);
        let mut mapped = Vec::new();
        let mut seen = BTreeSet::new();
        let mut shown: BTreeMap<String, SourceSpan> = BTreeMap::new();
        for lun in luns {
            let examined = self.examinations.next();
            let Some(number) = numbering.number_lun(&lun, report) else { continue };
            let scope = scope.filter(|_| seen.insert(number));
            let unit = match &lun.share {
                Some(name) => {
                    if let Some(first) = shown.insert(name.value.clone(), name.span.clone()) {
                        let line = at_line(&first);
                        report
                            .error(&name.span, format!("the target exports \"{}\" twice{line}", name.value));
                    }
                    self.shared_unit(&lun, name, scope, report)
                }
                None => self.own_unit((&lun, examined), (target, number), scope, report),
            };
            if let Some(unit) = unit {
                // `ro` of a LUN that is not shared applies to the unit, which then is write-protected for
                // every initiator.
                let read_only = lun.ro && lun.share.is_some();
                let protection = lun.protection.as_ref().map_or(Level::None, |at| level(at.value));
                let groups = lun.groups.as_ref().map_or(GroupSet::ALL, |names| groups.set(names, report));
                let entry = MappedLun { lun: number, unit, read_only, protection, groups };
                let changer = (&entry, self.units.get(unit.0).map(|unit| &unit.medium));
                mapped.extend(changers::drive_luns(&self.libraries, changer, &lun, &mut numbering, report));
                mapped.push(entry);
            }
        }
        mapped.sort_unstable_by_key(|lun| lun.lun);
        mapped.dedup_by_key(|lun| lun.lun);
        let (numbers, tables) = numbering.finish();
        TargetLuns { numbers, mapped, tables }
    }

    /// Warns of shared units that no target shows, and returns the other units, without gaps in the indices
    /// that the targets have, and the media of those. A unit that no target shows is not served, and has no
    /// identity.
    pub(super) fn finish(
        self,
        targets: &mut [Target],
        report: &mut ConfigReport,
    ) -> (Vec<Unit>, Vec<Medium>) {
        self.promises.warn(report);
        let mut unused = BTreeSet::new();
        for (name, shared) in &self.shared {
            if !shared.used {
                report.warn(&shared.span, format!("no target exports lun \"{name}\""));
                let library = shared.unit.and_then(|unit| self.libraries.get(&unit));
                unused
                    .extend(shared.unit.into_iter().chain(library.into_iter().flat_map(|all| all.drives())));
            }
        }
        let mut next = 0;
        let moved: Vec<usize> = (0..self.units.len())
            .map(|index| {
                let moved = next;
                next += usize::from(!unused.contains(&UnitIndex(index)));
                moved
            })
            .collect();
        for target in targets {
            let restricted = target.acl.iter_mut().flatten().flat_map(|entry| &mut entry.luns);
            for lun in target.luns.iter_mut().chain(restricted) {
                lun.unit = UnitIndex(moved.get(lun.unit.0).copied().unwrap_or(lun.unit.0));
            }
        }
        let (mut units, mut unexported) = (Vec::new(), Vec::new());
        for (index, unit) in (0..).map(UnitIndex).zip(self.units) {
            if unused.contains(&index) {
                unexported.push(unit.medium);
            } else {
                units.push(unit);
            }
        }
        (units, unexported)
    }

    fn own_unit(
        &mut self,
        (lun, examined): (&raw::Lun, Option<Examination>),
        (target, number): (&str, u16),
        scope: Option<&str>,
        report: &mut ConfigReport,
    ) -> Option<UnitIndex> {
        let index = self.unit((lun, examined), format!("{target}/{number}"), report);
        let derived = derived(lun, report);
        let index = index?;
        let medium = match self.units.get(index.0).map(|unit| &unit.medium) {
            Some(Medium::Ram { .. }) => format!("ram:{number}"),
            Some(Medium::Null { .. }) => format!("null:{number}"),
            // A drive keeps its identity when its disc is replaced.
            Some(Medium::Disc { .. }) => format!("disc:{number}"),
            Some(medium) => medium.to_string(),
            None => return None,
        };
        self.identify(index, derived, scope, &medium, report);
        Some(index)
    }

    fn shared_unit(
        &mut self,
        lun: &raw::Lun,
        name: &Located<String>,
        scope: Option<&str>,
        report: &mut ConfigReport,
    ) -> Option<UnitIndex> {
        for (key, span) in &lun.own_keys {
            report.error(span, format!("\"{key}\" must be set in the shared lun, not in the target's"));
        }
        let Some(shared) = self.shared.get_mut(&name.value) else {
            let hint = did_you_mean(&name.value, self.shared.keys().map(String::as_str));
            report.error(&name.span, format!("no lun is named \"{}\"{hint}", name.value));
            return None;
        };
        shared.used = true;
        let unit = shared.unit;
        if let (Some(unit), Some(identity)) = (unit, shared.identity.take()) {
            self.identify(unit, identity, scope, &format!("shared:{}", name.value), report);
        }
        unit
    }

    /// Resolves everything of a unit except its identity.
    fn unit(
        &mut self,
        (lun, examined): (&raw::Lun, Option<Examination>),
        label: String,
        report: &mut ConfigReport,
    ) -> Option<UnitIndex> {
        let is_disc = lun.kind.as_ref().is_some_and(|kind| kind.value == "disc");
        let is_tape = lun.kind.as_ref().is_some_and(|kind| matches!(kind.value, "tape" | "changer"));
        let is_sg = lun.kind.as_ref().is_some_and(|kind| ["sg", "vhost-user-scsi"].contains(&kind.value));
        let block_size = block_size_of_lun(lun);
        let physical_block_size = match is_disc {
            true => block_size,
            false => block_size_of(lun.physical_bs.as_ref(), block_size, report),
        };
        report.examine_unit(Some(label.clone()));
        let Examination { medium: found, secret } = examined.unwrap_or_default();
        let Finding { report: of_medium, keys, promise, library } = found;
        report.add(of_medium);
        report.add(secret.report);
        self.promises.extend(promise);
        let medium = self.medium((lun, keys), block_size, &label, report);
        let encrypt = lun.encrypt.as_ref().map(|at| self.environment.absolute(&at.value));
        report.examine_unit(None);
        let atomic_block_size = lun.atomic_bs.as_ref().map(|at| {
            let size = block_size_of_word(at);
            if size.bytes() < block_size.bytes() {
                let bs = block_size.bytes();
                report.error(&at.span, format!("\"atomic_bs\" is less than \"bs\" ({bs})"));
            }
            size
        });
        let text = |at: &Option<Located<String>>, report: &mut ConfigReport| printable(at.as_ref(), report);
        let (vendor, product) = (text(&lun.vendor, report), text(&lun.product, report));
        let product = product.unwrap_or_else(|| usual_product(lun).to_owned());
        let revision = text(&lun.revision, report).unwrap_or_else(|| tapes::usual_revision(&product));
        let unit = Unit {
            label,
            medium: medium?,
            block_size,
            physical_block_size,
            // Whether a disc can be written is a property of the disc: the one that is named here can still
            // be replaced, or wait until a host releases the one in the drive.
            read_only: lun.ro,
            thin: !is_disc
                && !is_tape
                && !is_sg
                && lun.provisioning.as_ref().is_none_or(|at| at.value == "thin"),
            write_cache: lun.write_cache,
            io_timeout: lun.io_timeout.as_ref().map(|at| at.value).filter(|span| !span.is_zero() && !is_sg),
            limit: limits::rate_limit(&lun.limit, report),
            encrypt,
            atomic_block_size: atomic_block_size.filter(|size| size.bytes() >= block_size.bytes()),
            removable: lun.removable || is_disc || is_tape,
            long_cdbs: lun.long_cdbs || is_sg,
            tasks: TaskRules {
                nexus_task_sets: lun.tst.as_ref().is_none_or(|at| at.value == "1"),
                task_aborted_status: lun.tas,
            },
            claims: claims(lun),
            identity: Identity {
                serial: String::new(),
                naa: Naa::Short([0; 8]),
                vendor: vendor.unwrap_or_default(),
                product,
                revision,
            },
        };
        if u32::try_from(self.units.len()).is_ok_and(|count| count == UNITS_MAX) {
            report.error(&lun.span, format!("more than {UNITS_MAX} LUNs"));
        }
        self.units.push(unit);
        let index = UnitIndex(self.units.len() - 1);
        changers::add_drives(
            &mut self.units,
            (&mut self.libraries, &self.served_libraries, library),
            index,
            lun,
            report,
        );
        Some(index)
    }

    fn identify(
        &mut self,
        index: UnitIndex,
        given: Derived,
        scope: Option<&str>,
        medium: &str,
        report: &mut ConfigReport,
    ) {
        let span = given.naa.as_ref().map_or(given.span, |at| at.span.clone());
        let derived = || scope.map(|scope| identity::derived_naa(scope, medium));
        let Some(naa) = given.naa.map(|at| at.value).or_else(derived) else { return };
        let Some(unit) = self.units.get_mut(index.0) else { return };
        unit.identity.naa = naa;
        let serial_span = given.serial.as_ref().map_or_else(|| span.clone(), |at| at.span.clone());
        let serial = given.serial.map(|at| at.value);
        let serial = serial.or_else(|| Some(self.libraries.get(&index)?.serial.clone()));
        let serial = serial.unwrap_or_else(|| naa.to_string());
        unit.identity.serial.clone_from(&serial);
        let same_serial = self.serials.insert(serial.clone(), unit.label.clone());
        if let Some(other) = self.names.insert(naa, unit.label.clone()) {
            report.error(&span, format!("the name naa.{naa} is already used by {other}"));
        } else if let Some(other) = same_serial {
            let message = format!(
                "the serial number \"{serial}\" is already used by {other}: hosts can take the two for one disk"
            );
            report.warn(&serial_span, message);
        }
        let drives = self.libraries.get(&index).map(|library| library.identify(&mut self.units, naa));
        for (naa, label) in drives.unwrap_or_default() {
            if let Some(other) = self.names.insert(naa, label) {
                report.error(&span, format!("the name naa.{naa} is already used by {other}"));
            }
        }
    }

    fn medium(
        &mut self,
        (lun, keys): (&raw::Lun, Option<Vec<MediumKey>>),
        bs: BlockSize,
        label: &str,
        report: &mut ConfigReport,
    ) -> Option<Medium> {
        let size = lun.size.as_ref().filter(|at| whole_blocks(at, bs, report)).map(|at| ByteLen(at.value));
        let Some(kind) = &lun.kind else {
            if !lun.kind_given {
                report.missing(&lun.span, "lun has no \"type\"");
            }
            return None;
        };
        check_keys(lun, kind, report);
        let direct = lun.direct.as_ref().is_some_and(|at| at.value);
        match kind.value {
            "ram" => Some(Medium::Ram { size: size? }),
            "null" => Some(Medium::Null { size: size? }),
            "nbd" => {
                let medium = nbd::medium(lun, report)?;
                self.claim(
                    [MediumKey::Uri(medium.to_string())],
                    label,
                    &lun.uri.as_ref()?.span,
                    &medium,
                    report,
                );
                Some(medium)
            }
            "disc" => {
                let path = self.environment.absolute(&lun.path.as_ref()?.value);
                Some(discs::medium(lun, path))
            }
            _ => {
                let at = lun.path.as_ref()?;
                let path = self.environment.absolute(&at.value);
                let keys = keys.unwrap_or_else(|| vec![MediumKey::Path(path.clone())]);
                self.claim(keys, label, &at.span, &path.display(), report);
                Some(match kind.value {
                    "file" => Medium::File { path, size, direct },
                    "tape" => Medium::Tape { path },
                    "changer" => Medium::Changer { path },
                    "sg" => sg::medium(lun, path),
                    "vhost-user-scsi" => Medium::VhostUserScsi {
                        path,
                        patience: nbd::patience(lun),
                        dangerous_commands: lun.dangerous_commands,
                    },
                    "vhost-user-blk" => Medium::VhostUserBlk { path, patience: nbd::patience(lun) },
                    _ => Medium::Block { path, direct },
                })
            }
        }
    }
}

impl UnitResolver<'_> {
    /// Records which unit uses a medium, and reports one that another unit uses.
    fn claim(
        &mut self,
        keys: impl IntoIterator<Item = MediumKey>,
        label: &str,
        span: &SourceSpan,
        name: &dyn std::fmt::Display,
        report: &mut ConfigReport,
    ) {
        let known = keys.into_iter().map(|key| self.media.insert(key, label.to_owned()));
        if let Some(other) = known.collect::<Vec<_>>().into_iter().flatten().next() {
            let hint = "; to export one medium through several targets, make it a top-level [[lun]] \
                        and share it";
            report.error(span, format!("{name} is already the medium of {other}{hint}"));
        }
    }
}

/// Reports the keys that a LUN of this type needs and lacks, and those that it does not take.
fn check_keys(lun: &raw::Lun, kind: &Located<&'static str>, report: &mut ConfigReport) {
    let is_disc = kind.value == "disc";
    let (is_tape, is_nbd) = (kind.value == "tape", kind.value == "nbd");
    let is_vhost = kind.value == "vhost-user-blk";
    let is_sg = kind.value == "sg";
    let is_process = kind.value == "vhost-user-scsi";
    let is_changer = kind.value == "changer";
    let on_disk = matches!(
        kind.value,
        "file" | "block" | "disc" | "tape" | "changer" | "sg" | "vhost-user-blk" | "vhost-user-scsi"
    );
    let unfit = |name: &str| format!("a lun of type {} takes no \"{name}\"", kind.value);
    if on_disk && !lun.path_given {
        report.missing(&kind.span, format!("lun of type {} has no \"path\"", kind.value));
    }
    if is_nbd && !lun.uri_given {
        report.missing(&kind.span, "lun of type nbd has no \"uri\"");
    }
    if !on_disk && !is_nbd && !lun.size_given {
        report.missing(&kind.span, format!("lun of type {} has no \"size\"", kind.value));
    }
    for (name, span) in &lun.own_keys {
        let fits = match *name {
            "path" => on_disk,
            "profile" => is_disc,
            "uri" => is_nbd,
            "reconnect_timeout" => is_nbd || is_vhost || is_process,
            name if is_nbd || is_vhost => !nbd::UNFIT_KEYS.contains(&name),
            "drive_vendor" | "drive_product" | "drive_revision" => is_changer,
            name if is_disc => discs::KEYS.contains(&name),
            name if is_tape => tapes::KEYS.contains(&name),
            name if is_changer => changers::KEYS.contains(&name),
            name if is_process => sg::PROCESS_KEYS.contains(&name),
            name if is_sg => sg::KEYS.contains(&name),
            "dangerous_commands" | "shared_with_host" => false,
            "direct" => on_disk,
            "atomic_bs" => !on_disk,
            "encrypt" => kind.value != "null",
            "size" => kind.value != "block",
            _ => true,
        };
        if !fits {
            report.error(span, unfit(name));
        }
    }
}

fn claims(lun: &raw::Lun) -> InquiryOverrides {
    InquiryOverrides {
        level: match lun.spc.as_ref().map(|at| at.value) {
            Some("3") => Standard::Spc3,
            Some("5") => Standard::Spc5,
            _ => Standard::Spc4,
        },
        unmapped_zeros: lun.unmapped.as_ref().is_none_or(|at| at.value == "zeros"),
        write_same_to_end: lun.write_same_to_end,
        rotation_rate: lun
            .rotation
            .as_ref()
            .map(|at| if at.value == "ssd" { 1 } else { at.value.parse().unwrap_or(0) }),
        compare_and_write_max: lun
            .compare_and_write_max
            .as_ref()
            .and_then(|at| u8::try_from(at.value).ok())
            .unwrap_or(COMPARE_AND_WRITE_MAX),
    }
}

/// Returns the product identification of a unit for which the configuration has none.
fn usual_product(lun: &raw::Lun) -> &'static str {
    match lun.kind.as_ref().map(|kind| kind.value) {
        Some("disc") => "Virtual Disc",
        Some("tape") => "Virtual Tape",
        Some("changer") => "Virtual Library",
        _ => "Virtual Disk",
    }
}

/// The default of `compare_and_write_max`, in blocks.
const COMPARE_AND_WRITE_MAX: u8 = 1;

fn derived(lun: &raw::Lun, report: &mut ConfigReport) -> Derived {
    let naa = lun.naa.as_ref().and_then(|at| match identity::parse_naa(&at.value) {
        Ok(naa) => Some(Located::new(naa, at.span.clone())),
        Err(why) => {
            report.error(&at.span, why);
            None
        }
    });
    let serial = lun.serial.as_ref();
    let serial = printable(serial, report).zip(serial).map(|(text, at)| Located::new(text, at.span.clone()));
    Derived { naa, serial, span: lun.span.clone() }
}

fn block_size_of(
    word: Option<&Located<&'static str>>,
    logical: BlockSize,
    report: &mut ConfigReport,
) -> BlockSize {
    let physical = block_size(word);
    if let Some(at) = word
        && physical.bytes() < logical.bytes()
    {
        report.error(&at.span, format!("\"physical_bs\" is less than \"bs\" ({})", logical.bytes()));
    }
    physical
}

fn whole_blocks(size: &Located<u64>, bs: BlockSize, report: &mut ConfigReport) -> bool {
    let whole = size.value.is_multiple_of(u64::from(bs.bytes()));
    if !whole {
        let message = format!("\"size\" is not a multiple of the block length ({})", bs.bytes());
        report.error(&size.span, message);
    }
    whole
}
