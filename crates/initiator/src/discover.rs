//! Lists the targets of a portal and their logical units.

use iscsi::initiator::contract::{Portal, Purpose};
use iscsi::login::directory::TargetAddress;
use scsi::block::Capacity;
use scsi::inquiry::{DeviceType, Qualifier, StandardInquiry};
use scsi::lun::Lun;

use crate::client::{Client, Session};
use crate::command::CommandError;
use crate::error::Error;
use crate::login::plan_for;
use crate::open::open_discovery;
use crate::unit::LogicalUnit;
use crate::url::{Endpoint, Secrets, Transport, Url};

pub use iscsi::discovery::Discovered;

pub use crate::hyperscsi_discovery::{FoundTarget, HyperScsiDiscovery, PATIENCE, Wait, search};

/// The result of a discovery.
#[derive(Clone, Debug)]
pub struct Discovery {
    /// The targets.
    pub targets: Vec<Discovered>,
    /// How many entries were left out because they are no valid names or addresses, or exceed the limit.
    pub ignored: usize,
}

/// A logical unit that was found.
#[derive(Clone, Debug)]
pub struct FoundUnit {
    /// The URL of the unit.
    pub url: Url,
    /// Its standard INQUIRY data.
    pub inquiry: StandardInquiry,
    /// Its capacity, if it is a disk that reports one.
    pub capacity: Option<Capacity>,
    /// Why its capacity is unknown.
    pub trouble: Option<String>,
}

/// Sends SendTargets to a portal and returns its targets.
///
/// # Errors
/// [`Error`]
pub async fn targets(client: &Client, place: &Endpoint, secrets: &dyn Secrets) -> Result<Discovery, Error> {
    let session = open_discovery(client, place, secrets).await?;
    let told = session.send_targets(None).await;
    let (targets, ignored) = told.map_err(|source| Error::Discovery { target: place.to_string(), source })?;
    // The list is complete, so a failed logout does not matter.
    let _ = session.log_out().await;
    Ok(Discovery { targets, ignored })
}

/// Logs in to a target that was found at a portal and lists its logical units.
///
/// # Errors
/// [`Error`]
pub async fn units(
    client: &Client,
    place: &Endpoint,
    target: &Discovered,
    secrets: &dyn Secrets,
) -> Result<Vec<FoundUnit>, Error> {
    let (place, session) = log_in(client, place, target, secrets).await?;
    let at = || format!("{place}/{}", target.name);
    let told = LogicalUnit::new(session.clone(), Lun(0)).report_luns().await;
    let luns = told.map_err(|source| Error::Discovery { target: at(), source })?;
    let mut found = Vec::new();
    // LUNs of more than one level, and well-known ones, have no number that a URL could contain.
    for number in luns.into_iter().filter_map(Lun::number) {
        let url = Url { endpoint: place.clone(), target: target.name.clone(), lun: number };
        let Some(lun) = Lun::from_number(number) else { continue };
        let look = look_at(&LogicalUnit::new(session.clone(), lun), url).await;
        found.extend(look.map_err(|source| Error::Discovery { target: at(), source })?);
    }
    let _ = session.log_out().await;
    Ok(found)
}

/// Logs in to a target over the first of its portals that can be reached. Returns the endpoint with that
/// portal, which is part of the URLs.
///
/// # Errors
/// [`Error`], from the last portal that was tried. After a refusal that is permanent, no other is.
async fn log_in(
    client: &Client,
    place: &Endpoint,
    target: &Discovered,
    secrets: &dyn Secrets,
) -> Result<(Endpoint, Session), Error> {
    let mut ways = ways_to(place, target).into_iter();
    loop {
        let way = ways.next();
        let transport =
            way.as_ref().map_or_else(|| place.transport.clone(), |way| Transport::Iscsi(way.address.clone()));
        let place = Endpoint { transport, ..place.clone() };
        let mut plan = plan_for(&place, Purpose::Target(target.name.clone()), secrets)?;
        if let Some(way) = way {
            plan.session.portals = vec![way];
        }
        match client.log_in_planned(plan).await {
            Ok(session) => return Ok((place, session)),
            Err(why) if why.is_permanent() || ways.len() == 0 => {
                return Err(Error::of_login(format!("{place}/{}", target.name), &place, why));
            }
            Err(_) => {}
        }
    }
}

async fn look_at(unit: &LogicalUnit, url: Url) -> Result<Option<FoundUnit>, CommandError> {
    let inquiry = unit.inquiry().await?;
    if inquiry.qualifier != Qualifier::CONNECTED {
        return Ok(None);
    }
    let mut found = FoundUnit { url, inquiry, capacity: None, trouble: None };
    if inquiry.device_type == DeviceType::DIRECT_ACCESS_BLOCK {
        match unit.capacity().await {
            Ok((capacity, _)) => found.capacity = Some(capacity),
            Err(Error::Command(why @ (CommandError::Down(_) | CommandError::Lost(_)))) => {
                return Err(why);
            }
            Err(why) => found.trouble = Some(why.to_string()),
        }
    }
    Ok(Some(found))
}

/// Returns the portals of a target in the order in which to try them. If the target lists the portal that was
/// asked, that portal comes first. Otherwise it comes last, behind the listed ones: targets behind a network
/// address translation list addresses that initiators cannot reach.
fn ways_to(place: &Endpoint, target: &Discovered) -> Vec<Portal> {
    let Transport::Iscsi(portal) = &place.transport else { return Vec::new() };
    let asked = |address: &TargetAddress| address == portal;
    let mut ways: Vec<Portal> =
        target.addresses.iter().map(|(address, _)| Portal { address: address.clone() }).collect();
    match ways.iter().position(|way| asked(&way.address)) {
        Some(at) => ways.swap(0, at),
        None => ways.push(Portal { address: portal.clone() }),
    }
    ways
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_portal_that_was_asked_comes_first_if_it_is_listed_and_last_else() {
        let place = Endpoint::parse("10.0.0.2").unwrap();
        let shown = |addresses: &[&str]| -> Vec<String> {
            let addresses =
                addresses.iter().map(|text| TargetAddress::parse(text.as_bytes()).unwrap()).collect();
            let name = "iqn.2001-04.com.example:x".parse().unwrap();
            ways_to(&place, &Discovered { name, addresses })
                .iter()
                .map(|way| way.address.to_string())
                .collect()
        };
        assert_eq!(shown(&["10.0.0.1,1", "10.0.0.2,1"]), ["10.0.0.2:3260", "10.0.0.1:3260"]);
        assert_eq!(shown(&["192.168.0.1,1"]), ["192.168.0.1:3260", "10.0.0.2:3260"]);
        assert_eq!(shown(&[]), ["10.0.0.2:3260"]);
    }
}
