//! The checks that a reload makes before it changes anything, and the tightening of a configuration that
//! cannot be applied.

use crate::mailbox::{RecvTimeoutError, channel};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use target::units::UnitId;

use super::silent::{SilentPaths, is_silent};
use super::{CLOSE_WAIT, DRAIN_LOOK, Daemon};
use crate::answers::{self, ANSWER_MAX};
use crate::config::{Config, Http, Medium, Naa, Unit, UnitIndex, UnitKey};
use crate::disc_image;
use crate::serve::late_media::does_not_answer;
use crate::serve::media::disc::{NewDisc, OpenDrive};
use crate::serve::media::disk::ComparedDisk;
use crate::serve::media::opened::OpenedMedium as _;
use crate::serve::media::{self, SameDisc};
use crate::serve::reactor_shard::ReactorShard;
use crate::serve::reactors::forget_pending_discs;
use crate::serve::runtime_config::RuntimeConfig;

/// The longest wait of a reload for the disks whose write cache it has turned off, or which it has enlarged.
const FLUSH_WAIT: Duration = Duration::from_secs(60);

/// How long a change waits for the image of a disc to be opened.
const DISC_OPEN_MAX: Duration = Duration::from_secs(10);

impl Daemon {
    /// Compares the files and devices of the disks that stay with what is served. A file may be shorter only
    /// if the operator reduced its size in the configuration: a file that shrank otherwise would be extended
    /// with zeros where data was. A disk that does not answer is left out.
    pub(super) fn compare_media(
        &self,
        old: &Config,
        runtime: &RuntimeConfig,
        silent: &SilentPaths,
    ) -> BTreeMap<UnitId, ComparedDisk> {
        let (mut ids, mut looks) = (Vec::new(), Vec::new());
        for (id, was, unit) in kept_units(old, runtime) {
            if matches!(unit.medium, Medium::Disc { .. }) || is_silent(unit, silent) {
                continue;
            }
            let Some(facts) = self.media_watch.find(id) else { continue };
            let block = u64::from(unit.block_size.bytes());
            // This is read first: a disk that is withheld from now on stays so.
            let was_withheld = facts.is_withheld();
            let len_min = match (size(was), size(unit)) {
                (before, after) if before == after => facts.len(),
                (_, after) => after.unwrap_or(block).min(facts.len()),
            };
            ids.push(id);
            looks.push((facts.path.clone(), move || {
                let wrong = facts.compare_with(len_min).err();
                ComparedDisk { wrong, len_min, was_withheld, size: facts.measure() }
            }));
        }
        let compared = answers::of(looks, ANSWER_MAX);
        ids.into_iter().zip(compared).filter_map(|(id, found)| Some((id, found?))).collect()
    }

    /// Measures the disks that stay, after those that grow have grown. The reactors must not do that: a file
    /// system can make them wait.
    pub(super) fn measure_media(&self, compared: &mut BTreeMap<UnitId, ComparedDisk>) {
        let (mut disks, mut looks) = (Vec::new(), Vec::new());
        for (id, disk) in compared {
            if let Some(facts) = self.media_watch.find(*id) {
                disks.push(disk);
                looks.push((facts.path.clone(), move || facts.measure()));
            }
        }
        for (disk, size) in disks.into_iter().zip(answers::of(looks, ANSWER_MAX)) {
            disk.size = size.unwrap_or_else(|| Err("it does not answer".to_owned()));
        }
    }

    /// Opens the images that are to be put into the wanted drives, because the configuration names another
    /// path, or the file there has changed, appeared or vanished. Returns also which discs stay withheld, and
    /// why.
    pub(super) fn open_discs(
        &self,
        old: &Config,
        runtime: &RuntimeConfig,
        wanted: impl Fn(UnitId) -> bool,
    ) -> Result<(Vec<NewDisc>, BTreeMap<UnitId, String>), String> {
        let (mut discs, mut withheld) = (Vec::new(), BTreeMap::new());
        let (mut drives, mut looks) = (Vec::new(), Vec::new());
        for (id, _, unit) in kept_units(old, runtime).filter(|(id, ..)| wanted(*id)) {
            let Medium::Disc { path, .. } = &unit.medium else { continue };
            let (served, at) = (self.media_watch.find(id), path.clone());
            drives.push((id, unit, path));
            looks.push((path.clone(), move || {
                let is_same = served.as_ref().map_or_else(|| !at.exists(), |facts| facts.serves_image(&at));
                (is_same, served.filter(|facts| !facts.read_only && facts.is_at(&at)))
            }));
        }
        for ((id, unit, path), found) in drives.into_iter().zip(answers::of(looks, ANSWER_MAX)) {
            let (is_same, same) = found.ok_or_else(|| does_not_answer(unit, &unit.medium))?;
            if is_same {
                continue;
            }
            self.wait_until_disc_is_closed(unit, path)?;
            let (of, at) = (unit.clone(), path.clone());
            let open = move || match same {
                None => Ok(SameDisc::OpenedAgain(media::open_disc(&of, &at)?.map(Box::new))),
                Some(facts) => media::open_disc_again(&of, &at, &facts),
            };
            let opened =
                answers::of_one(open, DISC_OPEN_MAX).ok_or_else(|| does_not_answer(unit, &unit.medium))?;
            let image = match opened {
                Ok(SameDisc::OpenedAgain(image)) => Ok(image.map(|image| *image)),
                Ok(SameDisc::StaysWithheld(why)) => {
                    withheld.insert(id, why);
                    continue;
                }
                Err(error) => Err(error),
            };
            let mut drive = OpenDrive(image.map_err(|error| error.to_string())?);
            // The disk notices a loss with its first operation.
            drive.check_loss(unit, &self.state).map_err(|error| error.to_string())?;
            discs.push(NewDisc { id, image: drive.0 });
        }
        Ok((discs, withheld))
    }

    /// Waits until a writable disc that was taken out of its drive is closed, if its image is at the path.
    /// Its last operations must not change what is served anew.
    fn wait_until_disc_is_closed(&self, unit: &Unit, path: &Path) -> Result<(), String> {
        let deadline = Instant::now() + CLOSE_WAIT;
        loop {
            let (watch, at) = (self.media_watch.clone(), path.to_owned());
            let is_leaving = answers::of_one(move || watch.is_leaving(&at), ANSWER_MAX);
            if !is_leaving.ok_or_else(|| does_not_answer(unit, &unit.medium))? {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(format!(
                    "{}: what hosts wrote to {}, which has left its drive, is not durable yet; reload the \
                     configuration again",
                    unit.label,
                    path.display()
                ));
            }
            std::thread::sleep(DRAIN_LOOK);
        }
    }

    /// Forgets the discs that are to be put into drives when others are saved, so that their images can be
    /// opened: a new configuration says anew what is in each drive.
    pub(super) fn forget_pending_discs(&mut self) {
        self.forgotten_discs = forget_pending_discs(&self.reactors);
    }

    /// Opens the discs again that were forgotten for a configuration that is not applied.
    pub(super) fn restore_pending_discs(&mut self) {
        let forgotten = std::mem::take(&mut self.forgotten_discs);
        if forgotten.is_empty() {
            return;
        }
        match self.open_discs(&self.runtime.config, &self.runtime, |id| forgotten.contains(&id)) {
            Ok((discs, _)) => self.put_discs(discs),
            Err(why) => crate::error!("{why}; reload the configuration again to replace discs"),
        }
    }

    /// Passes discs to the reactors that own their drives, and waits until they have changed the drives. The
    /// file of a disc that has left is closed soon after.
    pub(super) fn put_discs(&self, mut discs: Vec<NewDisc>) {
        let (sender, changed) = channel::<()>();
        for (index, running) in self.reactors.iter().enumerate() {
            let owned: Vec<UnitId> = self.runtime.units(index).map(|(id, ..)| id).collect();
            let ours: Vec<NewDisc> = discs.extract_if(.., |disc| owned.contains(&disc.id)).collect();
            if !ours.is_empty() {
                let sender = sender.clone();
                // If the reactor has ended, its own event reports that.
                let _ = running.handle.post(move |member: &mut ReactorShard, now| {
                    member.change_discs(now, ours);
                    drop(sender);
                });
            }
        }
        drop(sender);
        // Nothing is sent: this ends when every reactor has dropped its sender.
        let _ = changed.recv();
    }

    /// Applies only the access restrictions of a configuration that cannot be applied as a whole. Returns a
    /// description of the changes, if there were any.
    pub(super) fn tighten(&mut self, new: &Config) -> Option<String> {
        let old = Arc::clone(&self.runtime.config);
        let config = old.tightened(new);
        let changes = Config::diff(&old, &config);
        if changes.is_empty() {
            return None;
        }
        if let Err(why) = self.ids.assign_ports_and_records(&config) {
            return Some(format!("nothing: {why}"));
        }
        let listening: Vec<SocketAddr> = self.runtime.portals.iter().map(|(_, address)| *address).collect();
        let owners = self.runtime.owners();
        let runtime = self.ids.runtime_config(Arc::new(config), &listening, &owners);
        let nothing = || (0..self.reactors.len()).map(|_| Vec::new()).collect();
        let (units, ports) = (nothing(), (0..self.reactors.len()).map(|_| Vec::new()).collect());
        // A disk that is withheld stays withheld until a reload is applied as a whole.
        self.apply(runtime, (units, ports), Vec::new(), None);
        Some(changes.to_string())
    }

    /// Makes durable the writes that disks acknowledged before their write cache was disabled.
    /// The stores do it, which remember a failure.
    pub(super) fn flush_caches(&self, units: &BTreeSet<UnitId>) {
        let (sender, results) = channel();
        for running in &self.reactors {
            let (units, sender) = (units.clone(), sender.clone());
            // A reactor that has processed this acknowledges no write before it is durable. If it has ended,
            // its own event reports that.
            let _ = running.handle.post(move |member: &mut ReactorShard, now| {
                units.iter().for_each(|id| member.sync_disk(now, *id, sender.clone()));
            });
        }
        drop(sender);
        let deadline = Instant::now() + FLUSH_WAIT;
        loop {
            match results.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                // The disk has logged a failure.
                Ok(_) => {}
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {
                    return crate::warning!("what hosts had written is still being made durable");
                }
            }
        }
    }

    /// Refuses to lift `ro` of a medium that was opened for reading only.
    pub(super) fn refuse_writing(&self, old: &Config, new: &Config) -> Result<(), String> {
        let known: BTreeMap<UnitKey, usize> =
            old.units.iter().enumerate().rev().map(|(at, unit)| (unit.key(), at)).collect();
        let (mut refusals, mut looks) = (Vec::new(), Vec::new());
        for unit in new.units.iter().filter(|unit| !unit.read_only) {
            let id = known.get(&unit.key()).and_then(|at| self.runtime.number(UnitIndex(*at)));
            let facts = id.and_then(|id| self.media_watch.find(id));
            let Some(facts) = facts.filter(|facts| facts.read_only) else { continue };
            let refusal = format!(
                "{}: \"ro\" of {} cannot be cleared while it is served, since it was opened for reading only; \
                 remove the LUN, reload, add it again and reload, or restart targe",
                unit.label,
                facts.path.display()
            );
            let Medium::Disc { path, .. } = &unit.medium else { return Err(refusal) };
            refusals.push(refusal);
            let at = path.clone();
            // Another disc is opened as it needs to be. That of a read-only disc is never written.
            looks.push((path.clone(), move || !facts.is_at(&at) || !disc_image::is_writable(&at)));
        }
        // A disc that does not answer stays as it is.
        let mut judged = refusals.into_iter().zip(answers::of(looks, ANSWER_MAX));
        match judged.find(|(_, is_other)| *is_other == Some(false)) {
            Some((refusal, _)) => Err(refusal),
            None => Ok(()),
        }
    }
}

/// Returns the units with identifiers that both configurations have, each in its old and its new form.
pub(super) fn kept_units<'c>(
    old: &'c Config,
    runtime: &'c RuntimeConfig,
) -> impl Iterator<Item = (UnitId, &'c Unit, &'c Unit)> {
    let former: BTreeMap<UnitKey, &Unit> = old.units.iter().map(|unit| (unit.key(), unit)).collect();
    let units = runtime.config.units.iter().enumerate();
    units.filter_map(move |(at, unit)| {
        let was = former.get(&unit.key())?;
        Some((runtime.number(UnitIndex(at))?, *was, unit))
    })
}

/// Returns the configured size of a file.
fn size(unit: &Unit) -> Option<u64> {
    match &unit.medium {
        Medium::File { size, .. } => size.map(|size| size.0),
        _ => None,
    }
}

/// Refuses to switch TLS of a portal on or off: the new listener cannot be opened before the old one is
/// closed, and from then on nothing may fail.
pub(super) fn refuse_switched_tls(old: &Config, new: &Config) -> Result<(), String> {
    for portal in &new.portals {
        let was = old.portals.iter().find(|was| was.listen == portal.listen);
        if was.is_some_and(|was| was.tls.is_some() != portal.tls.is_some()) {
            return Err(format!(
                "portal {}: TLS cannot be switched on or off while it is served; restart targe to apply this",
                portal.listen
            ));
        }
    }
    Ok(())
}

/// Returns whether both units are drives for discs: several drives can hold the same image.
const fn are_drives(a: &Unit, b: &Unit) -> bool {
    matches!((&a.medium, &b.medium), (Medium::Disc { .. }, Medium::Disc { .. }))
}

/// Refuses a change that requires closing a file and opening it again: the disk would be unavailable in
/// between. Refuses to give the world-wide name of a unit to another medium as well. A unit whose medium is
/// late is not served, and nothing of it is open.
pub(super) fn refuse_replaced_media(
    old: &Config,
    new: &Config,
    is_served: impl Fn(&Unit) -> bool,
) -> Result<(), String> {
    let keys = |config: &Config| config.units.iter().map(Unit::key).collect::<BTreeSet<_>>();
    let (old_keys, new_keys) = (keys(old), keys(new));
    let by_name: BTreeMap<Naa, &Unit> = old.units.iter().map(|unit| (unit.identity.naa, unit)).collect();
    let (mut by_path, mut by_label) = (BTreeMap::<_, Vec<&Unit>>::new(), BTreeMap::new());
    for unit in &old.units {
        by_label.entry(unit.label.as_str()).or_insert(unit);
        if let Some(path) = unit.medium.path().filter(|_| is_served(unit)) {
            by_path.entry(path).or_default().push(unit);
        }
    }
    for unit in new.units.iter().filter(|unit| !old_keys.contains(&unit.key())) {
        if let Some(path) = unit.medium.path()
            && by_path.get(path).is_some_and(|served| served.iter().any(|was| !are_drives(was, unit)))
        {
            return Err(format!(
                "{}: {} of {} cannot change while it is served; restart targe to apply this",
                unit.label,
                fixed_while_served(&unit.medium),
                path.display()
            ));
        }
        let was = by_label.get(unit.label.as_str()).filter(|was| !new_keys.contains(&was.key()));
        if let Some(was) = was.filter(|was| would_lose(&was.medium, &unit.medium)) {
            return Err(format!(
                "{}: {} cannot become {} while it is served: its data would be lost; remove the LUN, reload, \
                 add it again and reload, or restart targe",
                unit.label, was.medium, unit.medium
            ));
        }
        // The state of the new unit is read while initiators still change that of the former one, which has
        // the same file: a reservation that was acknowledged in between would be lost.
        if let Some(was) = by_name.get(&unit.identity.naa) {
            let (naa, medium) = (unit.identity.naa, &unit.medium);
            let change = match was.medium == *medium {
                true => format!("{} of {medium} cannot change", fixed_while_served(medium)),
                false => format!("naa.{naa} cannot move from {} to {medium}", was.medium),
            };
            return Err(format!(
                "{}: {change} while it is served; remove the LUN, reload, add it again and reload, or restart targe",
                unit.label
            ));
        }
    }
    Ok(())
}

/// Returns what of a medium is fixed while it is served.
const fn fixed_while_served(medium: &Medium) -> &'static str {
    match medium {
        Medium::Tape { .. } => "the type, \"ro\" and \"naa\"",
        Medium::Changer { .. }
        | Medium::LibraryDrive { .. }
        | Medium::Sg { .. }
        | Medium::VhostUserScsi { .. } => "the type and \"naa\"",
        _ => "the type, block length, provisioning, \"direct\", \"encrypt\" and \"naa\"",
    }
}

/// Returns whether replacing one medium by another under the same name changes the medium's type, or loses
/// the contents of memory.
fn would_lose(was: &Medium, is: &Medium) -> bool {
    matches!(was, Medium::Ram { .. }) || std::mem::discriminant(was) != std::mem::discriminant(is)
}

/// Returns the new configuration with the old values of the settings that only a restart can change. So every
/// reload until the restart reports these changes again.
pub(super) fn without_restart_changes(new: Config, old: &Config) -> Config {
    // The rules for requests belong to the socket that is open: those of another one may be laxer.
    let keeps_socket = Http::has_same_socket(&old.http, &new.http);
    let http = if keeps_socket { new.http.clone() } else { old.http.clone() };
    Config {
        http,
        state_dir: old.state_dir.clone(),
        admin_socket: old.admin_socket.clone(),
        admin_readers: old.admin_readers,
        reactor: old.reactor,
        cores: old.cores.clone(),
        poll: old.poll,
        look: old.look,
        memory: old.memory,
        ..new
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::config::{Environment, Flags};
    use crate::scratch::Scratch;

    /// Makes a configuration with a tape drive. No cartridge is there.
    fn config(scratch: &Scratch, ro: bool) -> Config {
        with_tables(scratch, ro, "")
    }

    fn with_tables(scratch: &Scratch, ro: bool, tables: &str) -> Config {
        let text = format!(
            "portal = [{{ listen = \"127.0.0.1\" }}]\n[[target]]\nname = \"iqn.2001-04.com.example:a\"\n\
             lun = [{{ type = \"tape\", path = \"A1\", ro = {ro} }}]\n{tables}"
        );
        let environment = Environment {
            state_dir: scratch.path().join("state"),
            host: "host".to_owned(),
            ..Environment::for_tests(scratch.path())
        };
        let name = scratch.path().join("targe.toml");
        let loaded = Config::load_text_without_media(&Flags::default(), &environment, &name, &text, None);
        loaded.map_err(|report| report.to_string()).unwrap().config
    }

    #[test]
    fn a_reload_that_changes_ro_of_a_tape_is_told_that_it_cannot() {
        let scratch = Scratch::new();
        for ro in [false, true] {
            let (old, new) = (config(&scratch, ro), config(&scratch, !ro));
            refuse_replaced_media(&old, &old, |_| true).unwrap();
            let refusal = refuse_replaced_media(&old, &new, |_| true).unwrap_err();
            let expected = format!(
                "the type, \"ro\" and \"naa\" of {} cannot change while it is served; restart targe to apply this",
                scratch.path().join("A1").display()
            );
            assert!(refusal.ends_with(&expected), "{refusal}");
        }
    }

    /// Initiators could still change the saved state of the former unit after that of the new one was read.
    #[test]
    fn a_world_wide_name_does_not_move_to_another_medium_in_one_reload() {
        let scratch = Scratch::new();
        let naa = |luns: &str| {
            let text = format!(
                "portal = [{{ listen = \"127.0.0.1\" }}]\n[[target]]\nname = \"iqn.2001-04.com.example:a\"\n\
                 lun = [{{ lun = 7, type = \"null\", size = \"1M\" }}, {luns}]\n"
            );
            let environment = Environment::for_tests(scratch.path());
            let name = scratch.path().join("targe.toml");
            let loaded = Config::load_text_without_media(&Flags::default(), &environment, &name, &text, None);
            loaded.map_err(|report| report.to_string()).unwrap().config
        };
        let first = naa("{ type = \"file\", path = \"a\", naa = \"3000000000000001\" }");
        for luns in [
            "{ type = \"file\", path = \"b\", naa = \"3000000000000001\" }",
            "{ lun = 1, type = \"ram\", size = \"1M\", naa = \"3000000000000001\" }",
        ] {
            let refusal = refuse_replaced_media(&first, &naa(luns), |_| true).unwrap_err();
            assert!(refusal.contains("naa.3000000000000001 cannot move from file:"), "{refusal}");
            refuse_replaced_media(&first, &naa("{ lun = 2, type = \"null\", size = \"2M\" }"), |_| true)
                .unwrap();
        }
        let null = |more: &str| naa(&format!("{{ lun = 2, type = \"null\", size = {more} }}"));
        let served = null("\"1M\"");
        let refusal = refuse_replaced_media(&served, &null("\"2M\""), |_| true).unwrap_err();
        assert!(refusal.contains("cannot move from null:1M to null:2M"), "{refusal}");
        let refusal = refuse_replaced_media(&served, &null("\"1M\", bs = 4096"), |_| true).unwrap_err();
        assert!(
            refusal.contains("block length") && refusal.contains("of null:1M cannot change"),
            "{refusal}"
        );
        let moved = naa("{ lun = 3, type = \"file\", path = \"a\", naa = \"3000000000000001\" }");
        refuse_replaced_media(&first, &moved, |_| true).unwrap();
    }

    #[test]
    fn the_rules_of_another_http_socket_wait_for_the_restart_over_any_number_of_reloads() {
        let scratch = Scratch::new();
        let token = scratch.path().join("token");
        std::fs::write(&token, "0123456789abcdef0123456789abcdef\n").unwrap();
        std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o600)).unwrap();
        let http = |listen: &str, rest: &str| {
            with_tables(&scratch, false, &format!("[http]\nlisten = \"{listen}\"\n{rest}"))
        };
        let served = http("0.0.0.0:9260", "token_file = \"token\"\n");
        // Without a token: other hosts do not reach the address that the restart will open.
        let open = http("127.0.0.1:9260", "");
        let first = without_restart_changes(open.clone(), &served);
        assert_eq!(first.http, served.http);
        let second = without_restart_changes(open.clone(), &first);
        assert_eq!(second.http, served.http);
        assert!(!Http::has_same_socket(&second.http, &open.http), "the reload tells the change again");
        // A change that keeps the socket is applied.
        let named = http("0.0.0.0:9260", "token_file = \"token\"\nhosts = [\"san\"]\n");
        assert_eq!(without_restart_changes(named.clone(), &second).http, named.http);
        assert_eq!(without_restart_changes(config(&scratch, false), &served).http, served.http);
    }
}
