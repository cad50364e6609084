//! `targe reservation show` and `targe reservation clear`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use daemon::admin::api::{Method, Request};
use daemon::admin::lun_api::{
    ClearedReservations, LunReservations, LunSelector, Reservation, ReservationSelector,
};
use serde_json::json;

use crate::change::call;
use crate::tables::Table;
use crate::{Failure, daemon_socket, print};

#[derive(Debug, Subcommand)]
pub(crate) enum ReservationCommand {
    /// Show the reservation of a LUN, and who is registered
    Show(ShowArgs),
    /// Remove the reservation and the registrations of a LUN, or those of one initiator
    ///
    /// For a host that is gone and has left its reservation. A host that is logged in keeps what it has,
    /// unless --force is given: without its reservation, hosts of a cluster can write the same data.
    Clear(ClearArgs),
}

#[derive(Debug, Args)]
pub(crate) struct LunArgs {
    /// The target's name
    #[arg(value_name = "IQN")]
    target: String,
    /// Its number
    lun: u16,
    /// The daemon's admin socket [default: that of a daemon without a configuration]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    #[command(flatten)]
    lun: LunArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ClearArgs {
    #[command(flatten)]
    lun: LunArgs,
    /// Only what this initiator has
    #[arg(long, value_name = "NAME")]
    initiator: Option<String>,
    /// Only what its port with this ISID has
    #[arg(long, value_name = "HEX", requires = "initiator")]
    isid: Option<String>,
    /// Also what hosts that are logged in have, and saved reservations that cannot be read
    #[arg(long)]
    force: bool,
}

pub(crate) fn run(command: ReservationCommand) -> Result<(), Failure> {
    match command {
        ReservationCommand::Show(ShowArgs { lun }) => show(&lun),
        ReservationCommand::Clear(args) => clear(args),
    }
}

fn show(args: &LunArgs) -> Result<(), Failure> {
    let LunArgs { target, lun, socket, json } = args;
    let mut connection = daemon_socket::connect(socket.as_deref())?;
    let selector = LunSelector { target: target.clone(), lun: *lun, path: None, wait_s: None };
    let request = Request { lun: Some(selector), ..Request::new(Method::Reservations) };
    let found: LunReservations = call(&mut connection, &request)?;
    if *json {
        let text = serde_json::to_string_pretty(&found).unwrap_or_default();
        print(&format!("{text}\n"));
    } else {
        print(&describe(&found));
    }
    Ok(())
}

fn clear(args: ClearArgs) -> Result<(), Failure> {
    let ClearArgs { lun: LunArgs { target, lun, socket, json }, initiator, isid, force } = args;
    let mut connection = daemon_socket::connect(socket.as_deref())?;
    let selector = ReservationSelector { target: target.clone(), lun, initiator, isid, force };
    let request = Request { reservations: Some(selector), ..Request::new(Method::ClearReservations) };
    let ClearedReservations { registrations, released } = call(&mut connection, &request)?;
    if json {
        print(&format!("{:#}\n", json!({ "registrations": registrations, "released": released })));
    } else {
        let ended = if released { ", and the reservation has ended" } else { "" };
        let (noun, verb) = if registrations == 1 { ("registration", "is") } else { ("registrations", "are") };
        print(&format!("LUN {lun} of {target}: {registrations} {noun} {verb} removed{ended}\n"));
    }
    Ok(())
}

/// Describes a reservation in one line, as `targe luns` shows it.
pub(crate) fn summary(reservation: &Reservation) -> String {
    let Reservation { kind, holders, registrations, persists, lost } = reservation;
    if *lost {
        return "its saved reservations could not be read: it refuses nearly every command until a host replaces the \
                lost reservation, or targe reservation clear --force"
            .to_owned();
    }
    let mut parts = Vec::new();
    if let Some(kind) = kind {
        let by = if holders.is_empty() { String::new() } else { format!(" by {}", holders.join(", ")) };
        parts.push(format!("reserved ({kind}){by}"));
    }
    match registrations {
        0 => {}
        1 => parts.push("1 registration".to_owned()),
        some => parts.push(format!("{some} registrations")),
    }
    if *persists {
        parts.push("kept over a restart".to_owned());
    }
    parts.join(", ")
}

fn describe(found: &LunReservations) -> String {
    let Some(reservation) = &found.reservation else {
        return format!("no reservation and no registration, generation {}\n", found.generation);
    };
    let mut text = format!("{}, generation {}\n", summary(reservation), found.generation);
    let mut table = Table::new(&["INITIATOR", "ISID", "PORT", "KEY", "HOLDER", "LOGGED IN"]);
    let word = |is_so: bool| if is_so { "yes" } else { "no" };
    if let Some(port) = &found.reserved_by {
        let isid = port.isid.as_deref().unwrap_or("-");
        table.row(&[&port.initiator, isid, &port.target_port.to_string(), "-", "yes", "yes"]);
    }
    for one in &found.registrants {
        let isid = one.isid.as_deref().unwrap_or("-");
        let (holder, logged_in) = (word(one.holder), word(one.logged_in));
        table.row(&[&one.initiator, isid, &one.target_port.to_string(), &one.key, holder, logged_in]);
    }
    if found.reserved_by.is_some() || !found.registrants.is_empty() {
        text += &table.to_string();
    }
    text
}

#[cfg(test)]
mod tests {
    use daemon::admin::lun_api::Registrant;

    use super::*;

    #[test]
    fn a_reservation_is_one_line_and_each_registration_another() {
        let reservation = Reservation {
            kind: Some("write exclusive, registrants only".to_owned()),
            holders: vec!["iqn.a".to_owned()],
            registrations: 1,
            persists: true,
            lost: false,
        };
        let registrant = Registrant {
            initiator: "iqn.a".to_owned(),
            isid: Some("00023d000001".to_owned()),
            target_port: 1,
            key: "0000000000000abc".to_owned(),
            holder: true,
            logged_in: false,
        };
        let found = LunReservations {
            reservation: Some(reservation),
            generation: 7,
            registrants: vec![registrant],
            reserved_by: None,
        };
        let text = describe(&found);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[0],
            "reserved (write exclusive, registrants only) by iqn.a, 1 registration, kept over a restart, generation 7"
        );
        let words: Vec<&str> = lines[2].split_whitespace().collect();
        assert_eq!(words, ["iqn.a", "00023d000001", "1", "0000000000000abc", "yes", "no"]);
        let none = LunReservations { reservation: None, registrants: Vec::new(), ..found };
        assert_eq!(describe(&none), "no reservation and no registration, generation 7\n");
    }
}
