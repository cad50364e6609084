//! `targe changer`: tape libraries in folders.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use cartridge::library::{Counts, Element, Library, StoredCartridge};
use cartridge::profile::Profile;
use clap::{Args, Subcommand};
use daemon::admin::api::{Method, Request};
use daemon::admin::change_api::{LibraryAction, LibraryChanged, LibraryRequest};
use daemon::library::{self, ChangeError};
use serde_json::{Value, json};

use crate::change::call;
use crate::tables::Table;
use crate::{Failure, daemon_socket, print, tape};

#[derive(Debug, Args)]
pub(crate) struct ChangerArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Make a library in a new folder
    Create(CreateArgs),
    /// List the drives, slots and mail slots of a library, and the cartridges in its folder that are in none
    Ls {
        /// The folder of the library
        #[arg(value_name = "FOLDER")]
        folder: PathBuf,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Put cartridges that are in the folder into slots
    Load {
        #[command(flatten)]
        at: Place,
        /// The folders of the cartridges in the folder of the library; the first goes into SLOT, the others
        /// into the slots after it
        #[arg(value_name = "CARTRIDGE", required = true)]
        cartridges: Vec<String>,
    },
    /// Take the cartridge in a slot out of the library; its folder stays where it is
    Eject(Place),
    /// Lock the cartridge in a mail slot: no host can move, read or write it
    Vault(Place),
    /// Unlock the cartridge in a mail slot
    Release(Place),
}

#[derive(Debug, Args)]
struct Place {
    /// The folder of the library
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
    /// The slot: a number, or mail1, mail2, … for a mail slot
    #[arg(value_name = "SLOT")]
    slot: String,
    /// The admin socket of the daemon that serves the library [default: that of a daemon without a
    /// configuration]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct CreateArgs {
    /// The folder to make
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
    /// How many drives
    #[arg(long, value_name = "N", default_value_t = 2)]
    drives: u16,
    /// How many slots
    #[arg(long, value_name = "N", default_value_t = 20)]
    slots: u16,
    /// How many mail slots
    #[arg(long, value_name = "N", default_value_t = 0)]
    mail_slots: u16,
    /// The generation: lto5, lto6, lto7, lto8 or lto9
    #[arg(long, value_name = "NAME", default_value = "lto8", value_parser = tape::profile)]
    profile: Profile,
    /// Make this many blank cartridges, in the first slots
    #[arg(long, value_name = "N", default_value_t = 0)]
    cartridges: u16,
    /// What the bar codes of these cartridges begin with: up to five upper-case letters and digits
    #[arg(long, value_name = "TEXT", default_value = "A")]
    prefix: String,
    /// The capacity of these cartridges [default: that of the generation]
    #[arg(long, value_name = "SIZE", value_parser = tape::size)]
    capacity: Option<u64>,
}

pub(crate) fn run(args: &ChangerArgs) -> Result<(), Failure> {
    match &args.action {
        Action::Create(args) => create(args),
        Action::Ls { folder, json } => list(folder, *json),
        Action::Load { at, cartridges } => change(at, LibraryAction::Load, cartridges),
        Action::Eject(at) => change(at, LibraryAction::Eject, &[]),
        Action::Vault(at) => change(at, LibraryAction::Vault, &[]),
        Action::Release(at) => change(at, LibraryAction::Release, &[]),
    }
}

fn create(args: &CreateArgs) -> Result<(), Failure> {
    let counts = Counts { drives: args.drives, slots: args.slots, mail_slots: args.mail_slots };
    let names = barcodes(args).map_err(Failure::Misused)?;
    let serial = serial().map_err(|error| Failure::Failed(format!("/dev/urandom: {error}")))?;
    let made = Library::new(serial, args.profile, counts).map_err(|why| Failure::Misused(why.to_string()))?;
    library::create(&args.folder, &made.encode()).map_err(Failure::Failed)?;
    for name in &names {
        let capacity = args.capacity.unwrap_or_else(|| args.profile.capacity());
        tape::create_blank(&args.folder.join(name), args.profile, name, capacity)?;
    }
    if names.is_empty() {
        return Ok(());
    }
    let path = args.folder.display().to_string();
    let (action, element) = (LibraryAction::Load, "1".to_owned());
    let request = LibraryRequest { path, action, element, cartridges: names };
    library::change(&request).map_err(|error| Failure::Failed(sentence(error)))
}

/// Returns the bar codes of the cartridges to make, such as A00001L8.
fn barcodes(args: &CreateArgs) -> Result<Vec<String>, String> {
    let CreateArgs { prefix, cartridges, slots, profile, .. } = args;
    let fits = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit();
    if !(1..=5).contains(&prefix.len()) || !prefix.bytes().all(fits) {
        return Err("a prefix has one to five upper-case letters and digits".to_owned());
    }
    let width = 6 - prefix.len();
    if cartridges > slots {
        return Err(format!("{cartridges} cartridges do not fit into {slots} slots"));
    }
    if cartridges.to_string().len() > width {
        return Err(format!(
            "{cartridges} cartridges cannot be numbered behind {prefix}; use a shorter prefix"
        ));
    }
    let media_id = profile.media_id(false);
    Ok((1..=*cartridges).map(|number| format!("{prefix}{number:0width$}{media_id}")).collect())
}

/// Returns a random serial number.
fn serial() -> std::io::Result<String> {
    const LETTERS: &[u8; 32] = b"ABCDEFGHJKLMNPQRSTUVWXYZ23456789";
    let mut random = [0; cartridge::library::SERIAL_LEN];
    File::open("/dev/urandom")?.read_exact(&mut random)?;
    let letter =
        |byte: &u8| LETTERS.get(usize::from(*byte) % LETTERS.len()).map(|letter| char::from(*letter));
    Ok(random.iter().filter_map(letter).collect())
}

/// Makes a change in the folder, or lets the daemon that serves the library make it.
fn change(at: &Place, action: LibraryAction, cartridges: &[String]) -> Result<(), Failure> {
    let absolute = std::path::absolute(&at.folder).map_err(|error| Failure::Failed(error.to_string()))?;
    let request = LibraryRequest {
        path: absolute.display().to_string(),
        action,
        element: at.slot.clone(),
        cartridges: cartridges.to_vec(),
    };
    match library::change(&request) {
        Ok(()) => Ok(()),
        Err(ChangeError::Failed(why)) => Err(Failure::Failed(why)),
        Err(ChangeError::InUse(why)) => {
            let connected = daemon_socket::connect(at.socket.as_deref());
            let mut connection = connected.map_err(|failure| match failure {
                Failure::Failed(other) => Failure::Failed(format!("{why}, and {other}")),
                other => other,
            })?;
            let request = Request { library: Some(request), ..Request::new(Method::Library) };
            let LibraryChanged { .. } = call(&mut connection, &request)?;
            Ok(())
        }
    }
}

fn sentence(error: ChangeError) -> String {
    match error {
        ChangeError::InUse(why) | ChangeError::Failed(why) => why,
    }
}

fn list(folder: &Path, is_json: bool) -> Result<(), Failure> {
    let file = library::read(folder).map_err(Failure::Failed)?;
    let found = Library::decode(&file).map_err(|why| Failure::Failed(why.to_string()))?;
    let outside = outside(folder, &found).map_err(|error| Failure::Failed(error.to_string()))?;
    if is_json {
        let elements: Vec<Value> = found.elements().map(|element| description(&found, element)).collect();
        let value = json!({
            "serial": found.serial(),
            "profile": found.profile().name(),
            "elements": elements,
            "outside": outside,
        });
        print(&format!("{value:#}\n"));
        return Ok(());
    }
    let mut table = Table::new(&["ELEMENT", "CARTRIDGE", "BAR CODE", "FROM", ""]);
    for element in found.elements() {
        let held = found.at(element);
        let name = held.map_or("", |held| held.name.as_str());
        let barcode = held.map_or("", |held| held.barcode.as_str());
        let from =
            held.and_then(|held| held.source).map_or_else(String::new, |number| format!("slot {number}"));
        let note = if held.is_some_and(|held| held.is_vaulted) { "locked" } else { "" };
        table.row(&[&element.to_string(), name, barcode, &from, note]);
    }
    let mut text = format!("library {}, {}\n{table}", found.serial(), found.profile().name());
    if !outside.is_empty() {
        text += &format!("\nnot in the library: {}\n", outside.join(", "));
    }
    print(&text);
    Ok(())
}

fn description(library: &Library, element: Element) -> Value {
    let (kind, number) = match element {
        Element::Mail(number) => ("mail", number),
        Element::Drive(number) => ("drive", number),
        Element::Slot(number) => ("slot", number),
    };
    let cartridge = library.at(element).map(|held: &StoredCartridge| {
        json!({
            "folder": held.name,
            "barcode": held.barcode,
            "from_slot": held.source,
            "locked": held.is_vaulted,
        })
    });
    json!({ "kind": kind, "number": number, "cartridge": cartridge })
}

/// Returns the cartridges in the folder that are in no element.
fn outside(folder: &Path, library: &Library) -> std::io::Result<Vec<String>> {
    let inside: BTreeSet<&str> = library.cartridges().iter().map(|held| held.name.as_str()).collect();
    let mut outside = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.path().join("label").is_file() && !inside.contains(name.as_str()) {
            outside.push(name);
        }
    }
    outside.sort_unstable();
    Ok(outside)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bar_codes_are_numbered_behind_their_prefix() {
        let args = |prefix: &str, cartridges| CreateArgs {
            folder: PathBuf::new(),
            drives: 1,
            slots: 1000,
            mail_slots: 0,
            profile: Profile::Lto9,
            cartridges,
            prefix: prefix.to_owned(),
            capacity: None,
        };
        assert_eq!(barcodes(&args("A", 2)).unwrap(), ["A00001L9", "A00002L9"]);
        assert_eq!(barcodes(&args("ABCDE", 9)).unwrap().last().unwrap(), "ABCDE9L9");
        for (prefix, count) in [("ABCDE", 10), ("ABCDEF", 1), ("", 1), ("a", 1), ("A", 1001)] {
            assert!(barcodes(&args(prefix, count)).is_err(), "{prefix} {count}");
        }
    }

    #[test]
    fn a_serial_number_is_possible() {
        let counts = Counts { drives: 1, slots: 1, mail_slots: 0 };
        assert!(Library::new(serial().unwrap(), Profile::Lto8, counts).is_ok());
    }
}
