//! Changes of what runs: reloads, and changes that clients of the admin socket prepare and commit.
//!
//! Both prepare everything that can fail before they change anything. A client replaces the configuration
//! file in between, so that the file and what runs are never apart: if the client or the daemon dies at any
//! moment, the file tells which of the two configurations is valid.

use crate::mailbox::{Receiver, RecvTimeoutError, Sender};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use base::state_machine::PortalId;
use security::secret_access::FileAccess;
use serde_json::Value;
use shard::losses::{SessionLoss, WithheldLun};
use target::units::UnitId;

use super::bounded::{NewMedia, ProvisionalFiles};
use super::reload::{kept_units, refuse_replaced_media, refuse_switched_tls, without_restart_changes};
use super::silent::{NO_ANSWER, SilentPaths, is_silent, silent_among};
use super::{CLOSE_WAIT, DRAIN_LOOK, Daemon, Port, PortalListener, log_listening, open_ports};
use crate::admin::api::{ErrorKind, Failure};
use crate::admin::change::Verdict;
use crate::admin::change_api::{Abandoned, AffectedSession, Applied, Change, Plan, Reloaded};
use crate::answers::{self, ANSWER_MAX};
use crate::config::secret::access_of;
use crate::config::{Config, Flags, Loaded, Naa, PlannedChange, Revision, Unit, plan};
use crate::config_file::read_text;
use crate::serve::admin_api::{Current, ReloadResult, json};
use crate::serve::audit::AuditEntry;
use crate::serve::changes::{
    REMEMBERED_AS_SESSION, affected, failure, note_of_loss, note_of_withheld, on_one_line,
};
use crate::serve::daemon_event::{ChangeRequest, ReloadRequest};
use crate::serve::media::disc::NewDisc;
use crate::serve::media::disk::ComparedDisk;
use crate::serve::media::growth;
use crate::serve::placement::{self, Owners, Placement};
use crate::serve::reactors::{closing_media, session_losses};
use crate::serve::runtime_config::RuntimeConfig;
use crate::serve::{ServeError, core_dumps, served_size, service_manager};

/// How long a client may take to replace the configuration file after its change was prepared.
const REPLACE_MAX: Duration = Duration::from_secs(10);

/// How long a change waits for the state directory.
const STATE_MAX: Duration = Duration::from_secs(10);

/// A configuration for which everything is open that it needs.
struct Prepared {
    old: Arc<Config>,
    log: crate::log::Level,
    runtime: RuntimeConfig,
    message: String,
    opened: Vec<PortalListener>,
    media: NewMedia,
    ports: Vec<Vec<Port>>,
    discs: Vec<NewDisc>,
    compared: BTreeMap<UnitId, ComparedDisk>,
    /// The disks whose files were enlarged.
    grown: Vec<UnitId>,
    /// The media that do not answer.
    silent: SilentPaths,
    /// Undoes the changes of the file system, unless the change is committed.
    provisional: ProvisionalFiles,
}

impl Daemon {
    /// Reads the configuration again, and applies it. A configuration that cannot be applied still withdraws
    /// access.
    pub(super) fn reload(&mut self, request: Option<&ReloadRequest>) {
        service_manager::reloading();
        let before = Arc::clone(&self.runtime.config);
        let mut revision = None;
        let flags = self.flags.clone();
        let read = self.read_config(move |environment| Config::read(&flags, &environment));
        let read =
            read.map(|(read, silent)| read.or_else(|unusable| self.with_known_media(unusable, &silent)));
        let result = match read {
            None => Err((NO_ANSWER.to_owned(), None)),
            Some(Err(unusable)) => {
                let taken = unusable.config.and_then(|config| self.tighten(&config));
                Err((unusable.report.to_string(), taken))
            }
            Some(Ok(Loaded { config, report, revision: read })) => {
                for line in report.warning_lines() {
                    crate::warning!("{line}");
                }
                revision = read;
                self.try_reload(config.clone()).map_err(|why| (why, self.tighten(&config)))
            }
        };
        // Of a refused reload, these are the access restrictions.
        let lines: Vec<String> = plan(&before, &self.runtime.config).iter().map(on_one_line).collect();
        let audit = |result, message: &str| {
            let revision = revision.map(|revision| revision.to_string());
            let (action, changes) = ("reload", lines.as_slice());
            let peer = request.map(|request| &request.peer);
            let entry = AuditEntry { peer, action, revision, changes, result, message };
            self.shared.audit.record(&entry);
        };
        let mut tightened = false;
        let (applied, message) = match result {
            Ok(message) => {
                crate::info!("reloaded: {message}");
                audit("applied", &message);
                (true, message)
            }
            Err((mut message, taken)) => {
                if let Some(changes) = taken {
                    tightened = true;
                    message = format!(
                        "{}\nreload refused; only its access restrictions were applied: {changes}\n",
                        message.trim_end()
                    );
                } else {
                    crate::error!("reload: nothing was changed");
                }
                audit("refused", &message);
                for line in message.lines() {
                    crate::error!("reload: {line}");
                }
                (false, message)
            }
        };
        let runs = match (applied, tightened) {
            (true, _) => Runs::Revision(revision),
            (false, true) => Runs::Revision(None),
            (false, false) => Runs::AsBefore,
        };
        let generation = self.publish(runs, applied, message.clone());
        if let Some(request) = request {
            let reloaded = if applied {
                json(&Reloaded { generation, message })
            } else {
                Err(failure(ErrorKind::Refused, message))
            };
            // A client that has gone needs no answer.
            let _ = request.reply.send(reloaded);
        }
        let refused = if applied { "" } else { "; reload refused" };
        service_manager::ready(&format!("{}{refused}", self.status()));
    }

    /// Tells the threads of the admin socket what runs now; returns its generation.
    fn publish(&self, runs: Runs, applied: bool, message: String) -> u64 {
        let mut current = self.shared.current.lock().unwrap_or_else(PoisonError::into_inner);
        let (revision, generation) = match runs {
            Runs::Revision(revision) => (revision, current.generation + 1),
            Runs::AsBefore => (current.revision, current.generation),
        };
        let reload = Some(ReloadResult { at: Instant::now(), applied, message });
        let reloads = current.reloads + 1;
        *current = Current { runtime: self.runtime.clone(), revision, generation, reloads, reload };
        generation
    }

    fn try_reload(&mut self, config: Config) -> Result<String, String> {
        let (ids, disks) = (self.ids.clone(), self.disks.clone());
        match self.prepare(config) {
            Ok(prepared) => Ok(self.commit(prepared)),
            Err(why) => {
                (self.ids, self.disks) = (ids, disks);
                self.restore_pending_discs();
                Err(why)
            }
        }
    }

    /// Plans a change for a client, or applies it.
    pub(super) fn change(&mut self, request: ChangeRequest) {
        let ChangeRequest { change, peer, verdict, reply } = request;
        let Some(verdict) = verdict else {
            let plan = self.planned(&change).and_then(|(_, plan, _)| json(&plan));
            // A client that has gone needs no answer.
            let _ = reply.send(plan);
            return;
        };
        service_manager::reloading();
        let mut lines = Vec::new();
        let outcome = self.apply_change(&change, &reply, &verdict, &mut lines);
        let (result, message) = match &outcome {
            Ok(Outcome::Applied(Applied { message, .. })) => ("applied", message.as_str()),
            Ok(Outcome::Abandoned(_)) => ("abandoned", ""),
            Err(failure) => ("refused", failure.message.as_str()),
        };
        let revision = Some(Revision::of(change.text.as_bytes()).to_string());
        let action = change.action.as_str();
        let entry = AuditEntry { peer: Some(&peer), action, revision, changes: &lines, result, message };
        self.shared.audit.record(&entry);
        service_manager::ready(&self.status());
        let _ = reply.send(outcome.and_then(|outcome| match outcome {
            Outcome::Applied(applied) => json(&applied),
            Outcome::Abandoned(abandoned) => json(&abandoned),
        }));
    }

    fn apply_change(
        &mut self,
        change: &Change,
        reply: &Sender<Result<Value, Failure>>,
        verdict: &Receiver<Verdict>,
        lines: &mut Vec<String>,
    ) -> Result<Outcome, Failure> {
        let (config, plan, changes) = self.planned(change)?;
        lines.extend(changes.iter().map(on_one_line));
        if let Some(why) = plan.refusal {
            return Err(failure(ErrorKind::Refused, why));
        }
        let (ids, disks) = (self.ids.clone(), self.disks.clone());
        let prepared = match self.prepare(config) {
            Ok(prepared) => prepared,
            Err(why) => {
                (self.ids, self.disks) = (ids, disks);
                self.restore_pending_discs();
                return Err(failure(ErrorKind::Refused, why));
            }
        };
        let _ = reply.send(json(&plan));
        let verdict = verdict.recv_timeout(REPLACE_MAX);
        let revision = Revision::of(change.text.as_bytes());
        let found = self.look_at_file().map(|(found, _)| found);
        if verdict == Ok(Verdict::Abandon) || found != Ok(Some(revision)) {
            drop(prepared);
            (self.ids, self.disks) = (ids, disks);
            self.restore_pending_discs();
            return match verdict {
                Ok(Verdict::Commit) => {
                    found?;
                    let why = format!("{} was changed meanwhile; nothing was applied", plan.file);
                    Err(failure(ErrorKind::Conflict, why))
                }
                Ok(Verdict::Abandon) => Ok(Outcome::Abandoned(Abandoned { generation: plan.generation })),
                // The client ended before it replaced the file.
                Err(RecvTimeoutError::Disconnected) => {
                    Ok(Outcome::Abandoned(Abandoned { generation: plan.generation }))
                }
                Err(RecvTimeoutError::Timeout) => {
                    let why = format!("{} was not replaced in time; nothing was applied", plan.file);
                    Err(failure(ErrorKind::Unavailable, why))
                }
            };
        }
        let message = self.commit(prepared);
        crate::info!("{}: {message}", change.action);
        self.publish(Runs::Revision(Some(revision)), true, message.clone());
        let generation = plan.generation + 1;
        Ok(Outcome::Applied(Applied { generation, revision: revision.to_string(), message }))
    }

    /// Reads and checks a configuration that a client sent, and says what it would change.
    fn planned(&self, change: &Change) -> Result<(Config, Plan, Vec<PlannedChange>), Failure> {
        let Some(file) = self.config_file() else {
            let why = "targe was started with flags and without --config, so there is no file to change; write \
                       what it serves to a file, and start it with --config FILE";
            return Err(failure(ErrorKind::Refused, why));
        };
        let (generation, running) = {
            let current = self.shared.current.lock().unwrap_or_else(PoisonError::into_inner);
            (current.generation, current.revision)
        };
        if change.generation.is_some_and(|seen| seen != generation) {
            let why = "what runs has changed meanwhile; nothing was applied";
            return Err(failure(ErrorKind::Conflict, why));
        }
        let (base, access) = self.look_at_file()?;
        if change.base.is_some() && change.base != base.map(|base| base.to_string()) {
            let why = format!("{} was changed meanwhile; nothing was applied", file.display());
            return Err(failure(ErrorKind::Conflict, why));
        }
        let name = PathBuf::from(&change.name);
        let flags = Flags { config: Some(file.clone()), ..self.flags.clone() };
        let read = self.read_config({
            let (flags, text) = (flags.clone(), change.text.clone());
            move |environment| Config::read_text(&flags, &environment, &name, &text, access)
        });
        let (loaded, silent) = read.ok_or_else(|| failure(ErrorKind::Unavailable, NO_ANSWER))?;
        let loaded = loaded.or_else(|unusable| self.with_known_media(unusable, &silent));
        let Loaded { config, report, .. } =
            loaded.map_err(|unusable| failure(ErrorKind::Invalid, unusable.report.to_string()))?;
        let changes = plan(&self.runtime.config, &config);
        let unapplied = if base == running { Vec::new() } else { self.unapplied(&flags) };
        let mut warnings: Vec<String> = report.warning_lines().collect();
        warnings.extend(self.inherited.left_without_portal(&self.runtime.config.portals, &config.portals));
        let (sessions, refusal) = match self.affected_sessions(&config) {
            Ok((sessions, notes)) => {
                warnings.extend(notes);
                (sessions, None)
            }
            Err(why) => (Vec::new(), Some(why)),
        };
        let plan = Plan {
            file: file.display().to_string(),
            revision: Revision::of(change.text.as_bytes()).to_string(),
            base: base.map(|base| base.to_string()),
            generation,
            changes: changes.iter().cloned().map(Into::into).collect(),
            warnings,
            sessions,
            refusal,
            unapplied,
        };
        Ok((config, plan, changes))
    }

    /// Returns the differences between what runs and the configuration file.
    fn unapplied(&self, flags: &Flags) -> Vec<String> {
        let flags = flags.clone();
        let read = self.read_config(move |environment| Config::read(&flags, &environment));
        match read.map(|(read, silent)| read.or_else(|unusable| self.with_known_media(unusable, &silent))) {
            None => vec![NO_ANSWER.to_owned()],
            Some(Ok(loaded)) => {
                let changes = plan(&self.runtime.config, &loaded.config);
                // What waits for a restart stays in the file without being applied.
                let pending =
                    changes.iter().filter(|change| change.effective != crate::config::WhenEffective::Restart);
                pending.map(on_one_line).collect()
            }
            Some(Err(unusable)) => unusable.report.to_string().lines().map(str::to_owned).collect(),
        }
    }

    /// Returns the sessions that would lose something by a configuration, with the initiator ports that lost
    /// theirs lately, and sentences about what other initiator ports have used.
    ///
    /// # Errors
    /// A sentence that says why the configuration cannot be applied, as far as that shows without opening
    /// anything.
    fn affected_sessions(&self, config: &Config) -> Result<(Vec<AffectedSession>, Vec<String>), String> {
        let old = &self.runtime.config;
        let owners = self.owners(config)?;
        refuse_replaced_media(old, config, |unit| !self.shared.late.is_closed(unit))?;
        refuse_switched_tls(old, config)?;
        self.refuse_writing(old, config)?;
        // What is assigned here is assigned again when the change is prepared.
        let mut ids = self.ids.clone();
        ids.assign_ports_and_records(config)?;
        let listening: Vec<SocketAddr> = config.portals.iter().map(|portal| portal.listen).collect();
        let runtime = ids.runtime_config(Arc::new(config.clone()), &listening, &owners);
        let (losses, withheld) = session_losses(&self.reactors, &runtime)?;
        let is_late = |loss: &SessionLoss| loss.lost_for.is_none_or(|span| span <= REMEMBERED_AS_SESSION);
        let (sessions, earlier): (Vec<_>, Vec<_>) = losses.into_iter().partition(is_late);
        let is_other = |lun: &WithheldLun| {
            let unit = runtime.unit(lun.unit);
            unit.is_none_or(|unit| !self.disks.is_named(lun.used, unit))
        };
        let notes = earlier.iter().map(note_of_loss);
        let notes = notes.chain(withheld.iter().filter(|lun| is_other(lun)).map(note_of_withheld));
        Ok((sessions.into_iter().map(affected).collect(), notes.collect()))
    }

    fn owners(&self, config: &Config) -> Result<Owners, String> {
        let placement = Placement { former: self.last_owners.clone(), ..self.runtime.placement() };
        placement::owners(config, &placement, self.reactors.len()).map_err(|parted| parted.to_string())
    }

    /// Returns the absolute path of the configuration file.
    fn config_file(&self) -> Option<PathBuf> {
        self.flags.config.as_ref().map(|file| self.environment.absolute(file))
    }

    /// Returns the revision of the configuration file as it is now, and who has access to it.
    ///
    /// # Errors
    /// It does not answer.
    fn look_at_file(&self) -> Result<(Option<Revision>, Option<FileAccess>), Failure> {
        let Some(file) = self.config_file() else { return Ok((None, None)) };
        let name = file.display().to_string();
        let look = move || {
            let access = std::fs::metadata(&file).ok().map(|meta| access_of(&meta));
            (read_text(&file).ok().map(|text| Revision::of(text.as_bytes())), access)
        };
        let silent = || failure(ErrorKind::Unavailable, format!("{name} does not answer"));
        answers::of_one(look, ANSWER_MAX).ok_or_else(silent)
    }

    /// Opens everything that a configuration needs, without changing what runs. The caller restores the
    /// identifiers if this fails, or if the result is dropped.
    fn prepare(&mut self, config: Config) -> Result<Prepared, String> {
        core_dumps::prevent(&config);
        let old = Arc::clone(&self.runtime.config);
        let changes = Config::diff(&old, &config);
        let owners = self.owners(&config)?;
        refuse_replaced_media(&old, &config, |unit| !self.shared.late.is_closed(unit))?;
        refuse_switched_tls(&old, &config)?;
        self.refuse_writing(&old, &config)?;
        let (opened, listening) = self.open_portals(&config).map_err(|error| error.to_string())?;
        let log = config.log;
        self.ids.assign_ports_and_records(&config)?;
        let runtime =
            self.ids.runtime_config(Arc::new(without_restart_changes(config, &old)), &listening, &owners);
        // Nothing else is written to the state directory here unless it answers now.
        let saved = self.state.save_ports_within(&self.ids.ports, STATE_MAX);
        saved.map_err(|error| error.to_string())?;
        let open = |index| open_ports(&runtime, index, &self.runtime.interfaces);
        let ports: Result<Vec<_>, _> = (0..self.reactors.len()).map(open).collect();
        let ports = ports.map_err(|error| error.to_string())?;
        let mut silent = silent_among(&old.units, &runtime.config.units)?;
        kept_units(&old, &runtime)
            .filter(|(_, was, unit)| was != unit)
            .try_for_each(|(_, _, unit)| self.worked_on.expect_free(unit))?;
        let worked_on: SilentPaths = self.worked_on.paths().into_iter().collect();
        silent.extend(worked_on.iter().cloned());
        self.wait_for_media_close(&runtime)?;
        self.forget_pending_discs();
        let mut provisional = ProvisionalFiles::default();
        let media = self.open_new_units(&runtime, &mut provisional)?;
        let answers = |id| !runtime.unit(id).is_some_and(|unit| is_silent(unit, &silent));
        let (discs, withheld) = self.open_discs(&old, &runtime, answers)?;
        let compared = self.compare_media(&old, &runtime, &silent);
        let wrong = |id: &UnitId| compared.get(id).and_then(|disk| disk.wrong.as_deref());
        let mut to_grow = Vec::new();
        for (id, unit) in kept_units(&old, &runtime).map(|(id, _, unit)| (id, unit)) {
            let is_right = compared.contains_key(&id) && wrong(&id).is_none();
            let served = self.media_watch.find(id).filter(|_| is_right && growth::can_grow(unit));
            to_grow.extend(served.map(|served| (id, unit, served.identity)));
        }
        let grown = self.worked_on.grow(&to_grow, &mut provisional)?;
        let mut message = changes.to_string();
        let withheld = withheld.iter().map(|(id, why)| (*id, why.as_str())).chain(media.not_ready());
        for (id, why) in compared.keys().filter_map(|id| Some((*id, wrong(id)?))).chain(withheld) {
            let label = runtime.unit(id).map_or("a disk", |unit| unit.label.as_str());
            message += &format!("; {label} is not ready: {why}");
        }
        for unit in runtime.config.units.iter().filter(|unit| is_silent(unit, &silent)) {
            let is_opened = self.shared.late.holds(unit) && is_silent(unit, &worked_on);
            let state =
                if is_opened { "is still being opened" } else { "does not answer, and stays as it is" };
            message += &format!("; {} {state}", unit.label);
        }
        Ok(Prepared {
            old,
            log,
            runtime,
            message,
            opened,
            media,
            ports,
            discs,
            compared,
            grown,
            silent,
            provisional,
        })
    }

    /// Applies a prepared configuration; returns what changed, and which units are not served all the same.
    fn commit(&mut self, prepared: Prepared) -> String {
        let Prepared {
            old,
            log,
            runtime,
            mut message,
            opened,
            media,
            ports,
            discs,
            mut compared,
            grown,
            silent,
            provisional,
        } = prepared;
        provisional.commit();
        self.forgotten_discs.clear();
        crate::log::set_level(log);
        crate::log::set_format(runtime.config.log_format);
        for warning in self.inherited.left_without_portal(&old.portals, &runtime.config.portals) {
            crate::warning!("{warning}");
        }
        let uncached = kept_units(&old, &runtime)
            .filter(|(_, was, unit)| was.write_cache && !unit.write_cache)
            .map(|(id, ..)| id);
        let to_flush: BTreeSet<UnitId> = uncached.chain(grown).collect();
        for (portal, (id, address)) in runtime.config.portals.iter().zip(&runtime.portals) {
            if opened.iter().any(|(_, new)| new == id) {
                log_listening(*address, portal);
            }
        }
        if let Err(error) = served_size::note_removed(&old, &runtime.config, &self.state) {
            crate::warning!("{error}");
        }
        let NewMedia { fresh, unread, slow, awaiting } = media;
        self.add_unread(&runtime, unread);
        self.add_slow(&runtime, slow);
        self.add_awaiting(&runtime, awaiting);
        let differing = compared.iter().filter(|(_, disk)| disk.wrong.is_some());
        let not_right: Vec<&Unit> = differing.filter_map(|(id, _)| runtime.unit(*id)).collect();
        let is_right = |unit: &Unit| {
            !not_right.contains(&unit) && !self.shared.late.holds(unit) && !is_silent(unit, &silent)
        };
        let is_kept = |unit: &Unit| old.units.iter().any(|was| was.key() == unit.key());
        let new = runtime.config.units.iter().filter(|unit| is_right(unit) && !is_kept(unit));
        let saved = served_size::save(&runtime.config, is_right, &self.state);
        if let Err(error) = saved.and_then(|()| served_size::save_opened(new, &self.state)) {
            crate::warning!("{error}");
        }
        self.measure_media(&mut compared);
        for (id, why) in self.apply(runtime, (fresh, ports), opened, Some(&compared)) {
            message += &format!("; not served: {why}");
            if let Some(unit) = self.runtime.unit(id) {
                self.shared.late.add(id, unit, &why);
            }
        }
        self.put_discs(discs);
        self.look_for_late();
        if !to_flush.is_empty() {
            self.flush_caches(&to_flush);
        }
        message
    }

    /// Waits until the reactors have closed the media of recently removed units that the new configuration
    /// serves again.
    fn wait_for_media_close(&self, runtime: &RuntimeConfig) -> Result<(), String> {
        let served = |runtime: &RuntimeConfig| -> Vec<(UnitId, Unit)> {
            let units = (0..self.reactors.len()).flat_map(|index| runtime.units(index));
            units.map(|(id, _, unit)| (id, unit.clone())).collect()
        };
        let mut wanted = served(runtime);
        let before: BTreeSet<UnitId> = served(&self.runtime).into_iter().map(|(id, _)| id).collect();
        wanted.retain(|(id, _)| !before.contains(id));
        let deadline = Instant::now() + CLOSE_WAIT;
        loop {
            let closing = closing_media(&self.reactors);
            // A removed unit with the same name can still save its state.
            let busy = |unit: &&Unit| {
                let is_unit = |(path, naa): &(Option<PathBuf>, Option<Naa>)| {
                    (path.is_some() && path.as_ref() == unit.medium.path()) || *naa == Some(unit.identity.naa)
                };
                let mut paths = unit.medium.path().into_iter();
                closing.iter().any(is_unit) || paths.any(|path| self.shared.late.is_reading(path))
            };
            let Some(unit) = wanted.iter().map(|(_, unit)| unit).find(busy) else { return Ok(()) };
            if Instant::now() >= deadline {
                return Err(format!(
                    "{}: the disk that was removed earlier, with the same medium or \"naa\" as {}, has outstanding \
                     I/O; try again when the log says that it is closed",
                    unit.label, unit.medium
                ));
            }
            std::thread::sleep(DRAIN_LOOK);
        }
    }

    /// Opens the new portals. Returns them, and the address of every portal.
    fn open_portals(
        &mut self,
        config: &Config,
    ) -> Result<(Vec<PortalListener>, Vec<SocketAddr>), ServeError> {
        let known: BTreeMap<PortalId, SocketAddr> = self.runtime.portals.iter().copied().collect();
        let mut opened = Vec::new();
        let mut listening = Vec::new();
        for (portal, id) in config.portals.iter().zip(self.ids.portals(config)) {
            match known.get(&id) {
                Some(address) => listening.push(*address),
                None => {
                    let (listener, address) = self.inherited.open(portal.listen)?;
                    opened.push((listener, id));
                    listening.push(address);
                }
            }
        }
        Ok((opened, listening))
    }
}

/// The configuration that runs after a change.
enum Runs {
    /// The one of the file with this revision; `None` if it is that of no file.
    Revision(Option<Revision>),
    /// The same as before.
    AsBefore,
}

/// The end of a change that was prepared.
enum Outcome {
    Applied(Applied),
    Abandoned(Abandoned),
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::late::keeps_drives;
    use super::*;
    use crate::config::{Environment, served_libraries};
    use crate::scratch::Scratch;

    #[test]
    fn a_library_that_cannot_be_read_does_not_lose_its_drives() {
        let scratch = Scratch::new();
        let (folder, file) = (scratch.path().join("lib"), scratch.path().join("targe.toml"));
        fs::create_dir(&folder).unwrap();
        let library = "targe-library 1\nserial LIB00001\nprofile lto8\ndrives 2\nslots 4\nmail-slots 0\ncrc32c ea029480\n";
        let units_with = |text: &str, library: &str, served: &[Unit]| {
            fs::write(folder.join("library"), library).unwrap();
            let flags = Flags { config: Some(file.clone()), ..Flags::default() };
            let mut environment = Environment::for_tests(scratch.path());
            environment.served_libraries = served_libraries(served);
            Config::load_text_without_media(&flags, &environment, &file, text, None).unwrap().config.units
        };
        let units = |text: &str, library: &str| units_with(text, library, &[]);
        let head = "[[target]]\nname = 'iqn.2001-04.com.example:a'\nlun = [{ type = 'ram', size = '1M' }";
        let both = format!("{head}, {{ type = 'changer', path = 'lib' }}]\n");
        let served = units(&both, library);
        assert_eq!(served.len(), 4);
        assert!(keeps_drives(&served, &units(&both, library)));
        assert!(!keeps_drives(&served, &units(&both, "damaged")));
        assert!(keeps_drives(&served, &units(&format!("{head}]\n"), "damaged")));
        // With the drives that are served, everything stays as it is.
        assert_eq!(units_with(&both, "damaged", &served), served);
    }
}
