//! `targe disc`: images of writable discs.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use daemon::disc_image::{self, DiscDescription};
use serde_json::json;

use crate::tables::Table;
use crate::{Failure, print, tape};

#[derive(Debug, Args)]
pub(crate) struct DiscArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Make the image of a blank writable disc
    Create {
        /// The file to make
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// The kind of disc
        #[arg(long, value_name = "KIND", value_parser = clap::builder::PossibleValuesParser::new(disc_image::kinds()))]
        medium: String,
        /// The capacity, at most that of the kind of disc [default: that]
        #[arg(long, value_name = "SIZE", value_parser = tape::size)]
        capacity: Option<u64>,
    },
    /// Show the kind of a writable disc, and what is on it
    Ls {
        /// The image
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
}

pub(crate) fn run(args: &DiscArgs) -> Result<(), Failure> {
    match &args.action {
        Action::Create { file, medium, capacity } => {
            disc_image::create(file, medium, *capacity).map_err(Failure::Failed)
        }
        Action::Ls { file, json } => {
            let disc = disc_image::describe(file).map_err(Failure::Failed)?;
            print(&if *json { as_json(&disc) } else { as_text(&disc) });
            Ok(())
        }
    }
}

fn as_json(disc: &DiscDescription) -> String {
    let value = json!({
        "medium": disc.medium,
        "state": disc.state,
        "capacity": disc.capacity,
        "readable": disc.readable,
        "tracks": disc.tracks.iter().map(|track| json!({
            "session": track.session,
            "start": track.start,
            "sectors": track.sectors,
            "closed": track.is_closed,
        })).collect::<Vec<_>>(),
    });
    format!("{value}\n")
}

fn as_text(disc: &DiscDescription) -> String {
    let DiscDescription { medium, state, capacity, readable, .. } = disc;
    let head = format!("{medium}, {state}: {readable} of {capacity} bytes can be read\n");
    if disc.tracks.is_empty() {
        return head;
    }
    let mut table = Table::new(&["TRACK", "SESSION", "START", "SECTORS", "STATE"]);
    for (number, track) in (1..).zip(&disc.tracks) {
        let state = if track.is_closed { "closed" } else { "open" };
        let numbers =
            [number, u32::from(track.session), track.start, track.sectors].map(|word| word.to_string());
        let [number, session, start, sectors] = numbers.each_ref().map(String::as_str);
        table.row(&[number, session, start, sectors, state]);
    }
    format!("{head}{table}")
}
