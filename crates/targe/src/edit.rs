//! `targe target`, `lun`, `acl` and `user`: edit the configuration file, and apply the edit in one step.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand};
use daemon::admin::lun_api::Lun;
use daemon::config::{AuthPlace, Edit, Setting, parse_size, show_size};
use daemon::config_file::LockedFile;

use crate::change::{self, ChangeArgs, Source, Target, candidate, change_file, failed, setting};
use crate::{Failure, maintain};

/// How an edit is made.
#[derive(Debug, Args)]
pub(crate) struct EditArgs {
    /// Edit this file without a daemon [default: the file of the running daemon]
    #[arg(long, value_name = "FILE", conflicts_with = "socket")]
    config: Option<PathBuf>,
    /// The state directory of the daemon whose file --config names [default: that of the file, else
    /// /var/lib/targe for a file in /etc/targe]
    #[arg(long, value_name = "DIR", requires = "config")]
    state_dir: Option<PathBuf>,
    #[command(flatten)]
    how: ChangeArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TargetCommand {
    /// Add a target with its LUNs
    Add {
        /// The target's name
        #[arg(value_name = "IQN")]
        target: String,
        /// Serve a LUN, as in `targe serve`; share:NAME exports a shared LUN
        #[arg(long, value_name = "SPEC", required = true)]
        lun: Vec<String>,
        /// Set keys of [[target]] in docs/config.md, such as alias=backup or session.data_digest=require
        #[arg(value_name = "KEY=VALUE", value_parser = setting)]
        settings: Vec<Setting>,
        #[command(flatten)]
        edit: EditArgs,
    },
    /// Set keys of a target
    Set {
        /// The target's name
        #[arg(value_name = "IQN")]
        target: String,
        /// Set keys of [[target]] in docs/config.md; KEY= removes a key
        #[arg(value_name = "KEY=VALUE", value_parser = setting, required = true)]
        settings: Vec<Setting>,
        /// Do it although it ends sessions, takes LUNs from them, or keeps them from logging in again
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        edit: EditArgs,
    },
    /// Remove a target; the data of its LUNs stays
    Remove {
        /// The target's name
        #[arg(value_name = "IQN")]
        target: String,
        /// Remove it although this ends sessions
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        edit: EditArgs,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum LunCommand {
    /// Add a LUN to a target
    Add {
        /// The target's name
        #[arg(value_name = "IQN")]
        target: String,
        /// The LUN, as in `targe serve`: file:PATH,size=10G, or share:NAME for a shared one; lun=N sets its
        /// number
        spec: String,
        #[command(flatten)]
        edit: EditArgs,
    },
    /// Set keys of a LUN
    Set {
        /// The target's name
        #[arg(value_name = "IQN")]
        target: String,
        /// Its number
        lun: u16,
        /// Set keys of [[target.lun]] in docs/config.md; KEY= removes a key
        #[arg(value_name = "KEY=VALUE", value_parser = setting, required = true)]
        settings: Vec<Setting>,
        /// Replace or hide the disk although sessions use it
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        edit: EditArgs,
    },
    /// Enlarge the file of a LUN; its initiators learn of it
    Resize {
        /// The target's name
        #[arg(value_name = "IQN")]
        target: String,
        /// Its number
        lun: u16,
        /// Its new size, such as 20G
        size: String,
        #[command(flatten)]
        edit: EditArgs,
    },
    /// Let a LUN end its tasks and take no new ones, for work on its file; initiators wait
    Drain(maintain::DrainArgs),
    /// Accept that writes which a LUN acknowledged are lost; its flushes succeed again
    AcceptLoss(maintain::AcceptLossArgs),
    /// Copy what a LUN holds now into a new file, without copying its blocks (reflink); several by --and
    Snapshot(maintain::SnapshotArgs),
    /// Make a snapshot of a LUN, and add it as a LUN with an identity of its own
    Clone(maintain::CloneArgs),
    /// Remove a LUN from a target; its data stays
    Remove {
        /// The target's name
        #[arg(value_name = "IQN")]
        target: String,
        /// Its number
        lun: u16,
        /// Remove it although sessions use it
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        edit: EditArgs,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum AclCommand {
    /// Admit initiators to a target; the first entry of a target excludes all others
    Add {
        /// The target's name
        #[arg(value_name = "IQN")]
        target: String,
        /// Names of initiators, patterns with *, or @GROUP
        #[arg(required = true, value_parser = NonEmptyStringValueParser::new())]
        initiator: Vec<String>,
        /// Admit them to these LUNs only, such as 0,2
        #[arg(long, value_parser = NonEmptyStringValueParser::new())]
        luns: Option<String>,
        /// Let them only read
        #[arg(long)]
        ro: bool,
        /// Require this protection of them: none, integrity or encrypt
        #[arg(long, value_parser = NonEmptyStringValueParser::new())]
        protection: Option<String>,
        /// Put the entry before all others; the first entry that names an initiator counts
        #[arg(long)]
        first: bool,
        /// Add it although it ends sessions or takes LUNs from them
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        edit: EditArgs,
    },
    /// Set keys of the entry of an initiator
    Set {
        /// The target's name
        #[arg(value_name = "IQN")]
        target: String,
        /// The initiator, pattern or @GROUP, as in the file
        initiator: String,
        /// Set keys of [[target.acl]] in docs/config.md, such as luns=0,2 or ro=true; KEY= removes a key
        #[arg(value_name = "KEY=VALUE", value_parser = setting, required = true)]
        settings: Vec<Setting>,
        /// Do it although it takes LUNs from sessions
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        edit: EditArgs,
    },
    /// Remove an initiator from the access list
    Remove {
        /// The target's name
        #[arg(value_name = "IQN")]
        target: String,
        /// The initiator, pattern or @GROUP, as in the file
        initiator: String,
        /// Remove it even if it is the last, which admits every initiator
        #[arg(long)]
        admit_all: bool,
        /// Remove it even if another entry matches it, whose access it has then
        #[arg(long)]
        even_if_others_match: bool,
        /// Remove it although this ends sessions
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        edit: EditArgs,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum UserCommand {
    /// Require CHAP of the initiators of a target
    Add {
        #[command(flatten)]
        place: PlaceArgs,
        /// Read the initiator's secret from this file, which only its owner can read
        #[arg(long, value_name = "FILE", value_parser = NonEmptyStringValueParser::new())]
        secret_file: String,
        /// Authenticate the target as this user when the initiator asks for it
        #[arg(long, value_name = "NAME", requires = "mutual_secret_file", value_parser = NonEmptyStringValueParser::new())]
        mutual_user: Option<String>,
        /// Read the target's secret from this file
        #[arg(long, value_name = "FILE", requires = "mutual_user", value_parser = NonEmptyStringValueParser::new())]
        mutual_secret_file: Option<String>,
        #[command(flatten)]
        edit: EditArgs,
    },
    /// Set keys of a CHAP user
    Set {
        #[command(flatten)]
        place: PlaceArgs,
        /// Set keys of [target.auth] in docs/config.md, such as secret_file=FILE; KEY= removes a key
        #[arg(value_name = "KEY=VALUE", value_parser = setting, required = true)]
        settings: Vec<Setting>,
        #[command(flatten)]
        edit: EditArgs,
    },
    /// Require authentication no longer
    Remove {
        #[command(flatten)]
        place: PlaceArgs,
        /// Admit initiators that prove nothing
        #[arg(long)]
        admit_all: bool,
        #[command(flatten)]
        edit: EditArgs,
    },
}

#[derive(Debug, Args)]
pub(crate) struct PlaceArgs {
    /// The target's name, or "discovery" for discovery sessions
    #[arg(value_name = "IQN")]
    target: String,
    /// The name that the initiator gives (CHAP_N)
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    user: String,
    /// Only for this initiator of the access list, which gets an entry of its own
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    initiator: Option<String>,
}

impl PlaceArgs {
    fn place(&self) -> AuthPlace {
        match &self.initiator {
            Some(initiator) => AuthPlace::Initiator(self.target.clone(), initiator.clone()),
            None if self.target == "discovery" => AuthPlace::Discovery,
            None => AuthPlace::Target(self.target.clone()),
        }
    }
}

pub(crate) fn target(command: TargetCommand) -> Result<(), Failure> {
    let (done, action, force, args) = match command {
        TargetCommand::Add { target, lun, settings, edit } => {
            (Edit::AddTarget { name: target, luns: lun, settings }, "target add", false, edit)
        }
        TargetCommand::Set { target, settings, force, edit } => {
            (Edit::SetTarget { name: target, settings }, "target set", force, edit)
        }
        TargetCommand::Remove { target, force, edit } => {
            (Edit::RemoveTarget { name: target }, "target remove", force, edit)
        }
    };
    run(&done, action, force, &args)
}

pub(crate) fn lun(command: LunCommand) -> Result<(), Failure> {
    let (done, action, force, args) = match command {
        LunCommand::Add { target, spec, edit } => {
            let reserved = match &edit.config {
                Some(path) => stored_luns(path, edit.state_dir.as_deref(), &target)?,
                None => change::bound_luns(&edit.how, &target)?,
            };
            (Edit::AddLun { target, spec, reserved }, "lun add", false, edit)
        }
        LunCommand::Set { target, lun, settings, force, edit } => {
            (Edit::SetLun { target, lun, settings }, "lun set", force, edit)
        }
        LunCommand::Resize { target, lun, size, edit } => {
            refuse_smaller(&target, lun, &size, &edit)?;
            let settings = vec![("size".to_owned(), size)];
            (Edit::SetLun { target, lun, settings }, "lun resize", false, edit)
        }
        LunCommand::Drain(args) => return maintain::drain(args),
        LunCommand::AcceptLoss(args) => return maintain::accept_loss(args),
        LunCommand::Snapshot(args) => return maintain::snapshot(&args),
        LunCommand::Clone(args) => return maintain::clone(args),
        LunCommand::Remove { target, lun, force, edit } => {
            (Edit::RemoveLun { target, lun }, "lun remove", force, edit)
        }
    };
    run(&done, action, force, &args)
}

pub(crate) fn acl(command: AclCommand) -> Result<(), Failure> {
    let (done, action, force, args) = match command {
        AclCommand::Add { target, initiator: initiators, luns, ro, protection, first, force, edit } => {
            let given = [("luns", luns), ("ro", ro.then(|| "true".to_owned())), ("protection", protection)];
            let settings =
                given.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect();
            (Edit::AddAcl { target, initiators, settings, first }, "acl add", force, edit)
        }
        AclCommand::Set { target, initiator, settings, force, edit } => {
            (Edit::SetAcl { target, initiator, settings }, "acl set", force, edit)
        }
        AclCommand::Remove { target, initiator, admit_all, even_if_others_match, force, edit } => {
            let done = Edit::RemoveAcl { target, initiator, admit_all, even_if_others_match };
            (done, "acl remove", force, edit)
        }
    };
    run(&done, action, force, &args)
}

pub(crate) fn user(command: UserCommand) -> Result<(), Failure> {
    let (done, action, args) = match command {
        UserCommand::Add { place, secret_file, mutual_user, mutual_secret_file, edit } => {
            let given = [
                ("secret_file", Some(secret_file)),
                ("mutual_user", mutual_user),
                ("mutual_secret_file", mutual_secret_file),
            ];
            let settings =
                given.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect();
            (Edit::AddUser { place: place.place(), user: place.user, settings }, "user add", edit)
        }
        UserCommand::Set { place, settings, edit } => {
            if settings.iter().any(|(key, _)| matches!(key.as_str(), "secret" | "mutual_secret")) {
                let why = "a secret on the command line can be read by every user; write it to a file of mode 600, \
                           and set secret_file";
                return Err(Failure::Misused(why.to_owned()));
            }
            (Edit::SetUser { place: place.place(), user: place.user, settings }, "user set", edit)
        }
        UserCommand::Remove { place, admit_all, edit } => {
            (Edit::RemoveUser { place: place.place(), user: place.user, admit_all }, "user remove", edit)
        }
    };
    run(&done, action, false, &args)
}

/// Makes an edit. Without `force`, it ends no session and takes no LUN from one.
fn run(done: &Edit, action: &str, force: bool, args: &EditArgs) -> Result<(), Failure> {
    if let Some(path) = &args.config {
        let open = if args.how.dry_run { LockedFile::read } else { LockedFile::open };
        let mut file = open(path).map_err(failed)?;
        let state_dir = args.state_dir.as_deref();
        let candidate = candidate(done, action, force, &Source::of_file(&file, state_dir)?)?;
        return change_file(&mut file, &candidate, state_dir, &args.how);
    }
    let mut target = Target::open(&args.how, LockedFile::open)?;
    let candidate = candidate(done, action, force, &target.source()?)?;
    target.change(&candidate, &args.how)
}

/// Returns the LUNs of a target that hosts may still have open when the daemon of a file starts again.
fn stored_luns(file: &Path, state_dir: Option<&Path>, target: &str) -> Result<BTreeSet<u16>, Failure> {
    let file = LockedFile::read(file).map_err(failed)?;
    let state_dir = Source::of_file(&file, state_dir)?.state_dir()?;
    match daemon::serve::stored_luns(&state_dir, target) {
        // An edit of a copy need not be of the user who may read the state of the daemon.
        Err(why) if why.kind() == std::io::ErrorKind::PermissionDenied => {
            eprintln!(
                "targe: cannot read the bindings in {}: {why}; hosts that used the number of the new LUN for another disk \
                 will not see it",
                state_dir.display()
            );
            Ok(BTreeSet::new())
        }
        read => read.map_err(|why| {
            Failure::Failed(format!("cannot read the bindings in {}: {why}", state_dir.display()))
        }),
    }
}

/// Refuses to make a disk smaller, which targe never does: the file would keep its length.
fn refuse_smaller(target: &str, lun: u16, size: &str, args: &EditArgs) -> Result<(), Failure> {
    let wanted = parse_size(size).map_err(Failure::Misused)?;
    if args.config.is_some() {
        return Ok(());
    }
    let served = change::luns(&args.how)?;
    let is_it = |known: &&Lun| known.target.eq_ignore_ascii_case(target) && known.lun == lun;
    match served.iter().find(is_it).map(|known| known.bytes).filter(|bytes| *bytes > wanted) {
        None => Ok(()),
        Some(bytes) => Err(Failure::Failed(format!(
            "LUN {lun} of {target} has {}, and a disk is never made smaller",
            show_size(bytes)
        ))),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use crate::cli::Cli;

    #[test]
    fn an_empty_word_is_not_taken_for_a_missing_one() {
        for words in [
            "acl add T X --luns |",
            "acl add T |",
            "acl add T X --protection |",
            "user add T U --secret-file |",
            "user add T | --secret-file F",
            "user add T U --secret-file F --mutual-user | --mutual-secret-file F",
            "user add T U --secret-file F --mutual-user M --mutual-secret-file |",
            "user add T U --secret-file F --initiator |",
        ] {
            let with = |word: &str| {
                let words = words.split(' ').map(|part| if part == "|" { word } else { part });
                Cli::try_parse_from(std::iter::once("targe").chain(words)).is_ok()
            };
            assert!(with("x") && !with(""), "{words}");
        }
    }
}
