//! `targe passwd`: the records of users' passwords that a target keeps.

use std::io::IsTerminal as _;
use std::path::PathBuf;

use clap::Args;
use security::opaque::{Password, StretchCost, USUAL_COST};
use security::password_file::UserName;
use serde_json::{Value, json};
use zeroize::Zeroizing;

use crate::tables::Table;
use crate::terminal::{HiddenTerminal, line_of};
use crate::{Failure, print};

#[derive(Debug, Args)]
pub(crate) struct PasswdArgs {
    /// The file of password records, which is made if it does not exist
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Set the password of this user; a HyperSCSI group is a user of its own name
    #[arg(long, value_name = "NAME", required_unless_present = "list", value_parser = user_name)]
    user: Option<UserName>,
    /// Remove the user
    #[arg(long, requires = "user", conflicts_with_all = ["list", "memory", "passes", "lanes"])]
    delete: bool,
    /// List the users
    #[arg(long, conflicts_with_all = ["user", "memory", "passes", "lanes"])]
    list: bool,
    /// Print one JSON array
    #[arg(long, requires = "list")]
    json: bool,
    /// Make each guess cost this much memory (Argon2id), at most 256M
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = memory_kib)]
    memory: u32,
    /// Make each guess cost this many passes over the memory; memory times passes is at most 960M
    #[arg(long, value_name = "N", default_value_t = USUAL_COST.passes)]
    passes: u32,
    /// Use this many lanes, which can be computed at the same time, at most 16
    #[arg(long, value_name = "N", default_value_t = USUAL_COST.lanes)]
    lanes: u8,
}

pub(crate) fn run(args: &PasswdArgs) -> Result<(), Failure> {
    let file = args.file.display();
    let Some(user) = &args.user else { return list(args) };
    if args.delete {
        daemon::passwords::delete(&args.file, user).map_err(Failure::Failed)?;
        eprintln!("targe: {file}: user \"{}\" is removed", user.as_str());
        return Ok(());
    }
    let cost = StretchCost { memory_kib: args.memory, passes: args.passes, lanes: args.lanes };
    if !security::opaque::is_bearable(&cost) {
        let why = "--memory, --passes, --lanes: initiators refuse this cost";
        return Err(Failure::Misused(why.to_owned()));
    }
    let password = new_password(user)?;
    let known = daemon::passwords::set(&args.file, user, &password, cost).map_err(Failure::Failed)?;
    let done = if known { "has a new password" } else { "is added" };
    eprintln!("targe: {file}: user \"{}\" {done}", user.as_str());
    Ok(())
}

fn list(args: &PasswdArgs) -> Result<(), Failure> {
    let file = daemon::passwords::read(&args.file).map_err(Failure::Failed)?;
    let users = file.users().map(|(user, record)| (user.as_str(), record.cost()));
    if args.json {
        let as_json = |(user, cost): (&str, StretchCost)| json!({ "user": user, "memory_kib": cost.memory_kib, "passes": cost.passes, "lanes": cost.lanes });
        print(&format!("{:#}\n", Value::Array(users.map(as_json).collect())));
        return Ok(());
    }
    let mut table = Table::new(&["USER", "MEMORY", "PASSES", "LANES"]);
    for (user, StretchCost { memory_kib, passes, lanes }) in users {
        let memory = daemon::config::show_size(u64::from(memory_kib) << 10);
        table.row(&[user, &memory, &passes.to_string(), &lanes.to_string()]);
    }
    print(&table.to_string());
    Ok(())
}

/// Asks for the password twice on a terminal, or reads one line of another standard input.
fn new_password(user: &UserName) -> Result<Password, Failure> {
    let misused = |why: String| Failure::Misused(why);
    let failed = |why: std::io::Error| Failure::Failed(format!("cannot read the password: {why}"));
    let line = if std::io::stdin().is_terminal() {
        let mut terminal = HiddenTerminal::open().map_err(failed)?;
        let question = format!("Password of user \"{}\": ", user.as_str());
        let first = terminal.ask(&question).map_err(failed)?;
        let second = terminal.ask("The same again: ").map_err(failed)?;
        if first != second {
            return Err(misused("the two passwords differ; nothing was changed".to_owned()));
        }
        first
    } else {
        line_of(std::io::stdin()).map_err(failed)?
    };
    password_of(&line).map_err(misused)
}

fn password_of(line: &Zeroizing<Vec<u8>>) -> Result<Password, String> {
    if line.is_empty() {
        return Err("the password is empty; give it on the terminal, or as one line of stdin".to_owned());
    }
    Password::new(line).map_err(|why| why.to_string())
}

fn user_name(text: &str) -> Result<UserName, String> {
    UserName::new(text).map_err(|why| why.to_string())
}

fn memory_kib(text: &str) -> Result<u32, String> {
    let bytes = daemon::config::parse_size(text)?;
    if !bytes.is_multiple_of(1024) {
        return Err("not a whole number of KiB".to_owned());
    }
    u32::try_from(bytes >> 10).map_err(|_| "too much".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_a_size_in_whole_kib() {
        assert_eq!(memory_kib("64M"), Ok(USUAL_COST.memory_kib));
        assert_eq!(memory_kib("8K"), Ok(8));
        assert!(memory_kib("8193").is_err() && memory_kib("8T").is_err() && memory_kib("x").is_err());
    }
}
