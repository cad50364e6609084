//! Shows the reservations of LUNs, and removes those of hosts that cannot do so themselves any more.

use std::time::Instant;

use device::unit::reservations::{
    InitiatorPortReport, RegistrantReport, RemovalError, RemovalProgress, RemovedReservations,
    ReservationDetails, ReservationKind, ReservationRemoval, ReservationReport,
};
use scsi::pr::ReservationType;

use super::super::session_drop::parse_isid;
use super::{DRAIN_PAUSE, Found, LunMaintenance};
use crate::admin::api::{ErrorKind, Failure};
use crate::admin::lun_api::{
    ClearedReservations, LunReservations, LunSelector, Registrant, Reservation, ReservationSelector,
    ReservingPort,
};
use crate::serve::changes::failure;
use crate::serve::reactors::REACTOR_REPLY_TIMEOUT;

impl LunMaintenance<'_> {
    /// Returns the reservations and registrations of a LUN.
    pub(in crate::serve) fn reservations(
        &self,
        selector: Option<LunSelector>,
    ) -> Result<LunReservations, Failure> {
        let (_, found) = self.find(selector)?;
        let id = found.id;
        let details = self.all(move |member, _| member.reservation_details(id))?.into_iter().flatten().next();
        details.as_ref().map(answer).ok_or_else(|| removed_meanwhile(&found))
    }

    /// Removes reservations and registrations of a LUN.
    pub(in crate::serve) fn clear_reservations(
        &self,
        selector: Option<ReservationSelector>,
    ) -> Result<ClearedReservations, Failure> {
        let selector =
            selector.ok_or_else(|| failure(ErrorKind::Malformed, "the request has no \"reservations\""))?;
        let isid = selector.isid.as_deref().map(parse_isid).transpose()?;
        if isid.is_some() && selector.initiator.is_none() {
            return Err(failure(ErrorKind::Malformed, "an \"isid\" needs an \"initiator\""));
        }
        let ReservationSelector { target, lun, initiator, force, .. } = selector;
        let lun = LunSelector { target, lun, path: None, wait_s: None };
        let (_, found) = self.find(Some(lun))?;
        let subject = match &initiator {
            Some(initiator) => format!("- reservations of {initiator} on LUN {}", found.name),
            None => format!("- reservations on LUN {}", found.name),
        };
        let removal = match initiator {
            Some(name) => ReservationRemoval::Initiator { name, isid },
            None => ReservationRemoval::All,
        };
        let done = self.remove_from(&found, &removal, force);
        let outcome = done.as_ref().map(|cleared| {
            let forced = if force { ", forced" } else { "" };
            let released = if cleared.released { ", and the reservation" } else { "" };
            format!("{} registrations{released}{forced}", cleared.registrations)
        });
        self.record("reservation clear", &[subject], &outcome.map_err(Clone::clone));
        done
    }

    fn remove_from(
        &self,
        found: &Found,
        removal: &ReservationRemoval,
        force: bool,
    ) -> Result<ClearedReservations, Failure> {
        let (id, wanted) = (found.id, removal.clone());
        let begun =
            self.all(move |member, now| member.remove_reservations(now, id, wanted.clone(), force))?;
        let begun = begun.into_iter().flatten().next().ok_or_else(|| removed_meanwhile(found))?;
        let RemovedReservations { registrations, has_released } =
            begun.map_err(|why| refused(&found.name, removal, &why))?;
        let deadline = Instant::now() + REACTOR_REPLY_TIMEOUT;
        loop {
            let progress = self.all(move |member, _| member.removal_progress(id))?;
            match progress.into_iter().flatten().next().ok_or_else(|| removed_meanwhile(found))? {
                RemovalProgress::Done => {
                    let registrations = u32::try_from(registrations).unwrap_or(u32::MAX);
                    return Ok(ClearedReservations { registrations, released: has_released });
                }
                RemovalProgress::NotStored => {
                    let name = &found.name;
                    let why = format!(
                        "LUN {name}: its state could not be saved (see the log); nothing has changed"
                    );
                    return Err(failure(ErrorKind::Refused, why));
                }
                RemovalProgress::Storing | RemovalProgress::Ending if Instant::now() < deadline => {
                    std::thread::sleep(DRAIN_PAUSE);
                }
                RemovalProgress::Storing => {
                    let why = "its state is still being saved; the reservations end when it is";
                    return Err(failure(ErrorKind::Unavailable, format!("LUN {}: {why}", found.name)));
                }
                RemovalProgress::Ending => {
                    let why = "the reservations are removed, but commands that were aborted have not ended, and can \
                               still write";
                    return Err(failure(ErrorKind::Unavailable, format!("LUN {}: {why}", found.name)));
                }
            }
        }
    }
}

fn refused(name: &str, removal: &ReservationRemoval, why: &RemovalError) -> Failure {
    let why = match (why, removal) {
        (RemovalError::Nothing, ReservationRemoval::All) => {
            "it has neither a reservation nor a registration".to_owned()
        }
        (RemovalError::Nothing, ReservationRemoval::Initiator { name, .. }) => {
            format!("{name} has neither a reservation nor a registration")
        }
        (RemovalError::LoggedIn(present), _) => format!(
            "{} logged in, and a host that relies on a reservation can lose data without it; --force removes it all \
             the same",
            match present.as_slice() {
                [one] => format!("{one} is"),
                several => format!("{} are", several.join(", ")),
            }
        ),
        (RemovalError::Lost, _) => {
            "its saved reservations could not be read, so nobody knows which hosts they keep out; --force lets every \
             host in"
                .to_owned()
        }
        (RemovalError::Busy, _) => "another change of its state is being saved; try again".to_owned(),
    };
    failure(ErrorKind::Refused, format!("LUN {name}: {why}"))
}

fn removed_meanwhile(found: &Found) -> Failure {
    failure(ErrorKind::Conflict, format!("LUN {} was removed meanwhile", found.name))
}

fn answer(details: &ReservationDetails) -> LunReservations {
    LunReservations {
        reservation: details.summary.as_ref().map(reservation),
        generation: details.generation,
        registrants: details.registrants.iter().map(registrant).collect(),
        reserved_by: details.reserved_by.as_ref().map(|port| ReservingPort {
            initiator: port.initiator.clone(),
            isid: isid(port),
            target_port: port.target_port,
        }),
    }
}

fn registrant(registrant: &RegistrantReport) -> Registrant {
    let RegistrantReport { port, key, is_holder } = registrant;
    Registrant {
        initiator: port.initiator.clone(),
        isid: isid(port),
        target_port: port.target_port,
        key: format!("{key:016x}"),
        holder: *is_holder,
        logged_in: port.is_logged_in,
    }
}

fn isid(port: &InitiatorPortReport) -> Option<String> {
    port.isid.map(|isid| isid.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Returns the reservation of a unit in the words of the protocol.
pub(in crate::serve) fn reservation(report: &ReservationReport) -> Reservation {
    Reservation {
        kind: report.kind.map(|kind| word(kind).to_owned()),
        holders: report.holders.clone(),
        registrations: u32::try_from(report.registrations).unwrap_or(u32::MAX),
        persists: report.persists,
        lost: report.is_lost,
    }
}

const fn word(kind: ReservationKind) -> &'static str {
    let kind = match kind {
        ReservationKind::Spc2 => return "reserve",
        ReservationKind::Persistent(kind) => kind,
    };
    match kind {
        ReservationType::WriteExclusive => "write exclusive",
        ReservationType::ExclusiveAccess => "exclusive access",
        ReservationType::WriteExclusiveRegistrantsOnly => "write exclusive, registrants only",
        ReservationType::ExclusiveAccessRegistrantsOnly => "exclusive access, registrants only",
        ReservationType::WriteExclusiveAllRegistrants => "write exclusive, all registrants",
        ReservationType::ExclusiveAccessAllRegistrants => "exclusive access, all registrants",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_who_would_lose_a_reservation() {
        let one = RemovalError::LoggedIn(vec!["iqn.a".to_owned()]);
        let two = RemovalError::LoggedIn(vec!["iqn.a".to_owned(), "iqn.b".to_owned()]);
        for (why, wanted) in
            [(one, "LUN t/0: iqn.a is logged in"), (two, "LUN t/0: iqn.a, iqn.b are logged in")]
        {
            let failure = refused("t/0", &ReservationRemoval::All, &why);
            assert!(failure.message.starts_with(wanted), "{}", failure.message);
            assert_eq!(failure.kind, ErrorKind::Refused);
        }
    }

    #[test]
    fn keys_and_isids_are_shown_as_the_standards_write_them() {
        let port = InitiatorPortReport {
            initiator: "iqn.a".to_owned(),
            isid: Some([0, 2, 0x3d, 0, 0, 1]),
            target_port: 1,
            is_logged_in: false,
        };
        let shown = registrant(&RegistrantReport { port, key: 0xabc, is_holder: true });
        assert_eq!((shown.key.as_str(), shown.isid.as_deref()), ("0000000000000abc", Some("00023d000001")));
    }
}
