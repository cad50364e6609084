//! PERSISTENT RESERVE IN (SPC-5 §6.16): the registrations and the reservation.

use scsi::pr::{
    Capabilities, FullStatus, FullStatusList, Keys, Reservation, ReservationFacts, ReservationKey,
    ReservationType,
};

use super::{PersistentReservations, PrRole};

impl PersistentReservations {
    /// Returns the data of READ KEYS.
    pub(crate) fn keys(&self) -> Keys {
        Keys {
            generation: self.generation,
            keys: self.registrants.iter().map(|registrant| registrant.key).collect(),
        }
    }

    /// Returns the data of READ RESERVATION. The key of an all registrants reservation is reported as zero.
    pub(crate) fn reservation(&self) -> Reservation {
        let key = self.holder_key().unwrap_or(ReservationKey::NONE);
        let reservation = self.kind().map(|kind| ReservationFacts { key, kind });
        Reservation { generation: self.generation, reservation }
    }

    /// Returns the data of READ FULL STATUS. Each nexus has its own descriptor, including those that one
    /// ALL_TG_PT registered.
    pub(crate) fn full_status(&self) -> FullStatusList {
        let told = self.registrants.iter().map(|registrant| {
            let holds = self.role_of(&registrant.nexus) == PrRole::Holder;
            FullStatus {
                key: registrant.key,
                holds: self.kind().filter(|_| holds),
                relative_port: registrant.nexus.target_port.0,
                initiator_port: registrant.nexus.initiator_port.to_vec(),
            }
        });
        FullStatusList { generation: self.generation, registrants: told.collect() }
    }

    /// Returns the data of REPORT CAPABILITIES.
    pub(crate) const fn capabilities(&self) -> Capabilities {
        Capabilities {
            replace_lost: true,
            compatible_reservation_handling: true,
            specify_initiator_ports: true,
            all_target_ports: true,
            persist: true,
            persist_active: self.persist,
            allow_commands: ALLOW_COMMANDS,
            types: ReservationType::MASK_OF_ALL,
        }
    }
}

/// ALLOW COMMANDS 100b (SPC-5 §6.16.4): TEST UNIT READY and RECEIVE COPY RESULTS pass every reservation.
/// MODE SENSE, READ BUFFER, RECEIVE DIAGNOSTIC RESULTS, the REPORT SUPPORTED commands and READ DEFECT DATA
/// pass the reservations that let unregistered nexuses read.
const ALLOW_COMMANDS: u8 = 0b100;
