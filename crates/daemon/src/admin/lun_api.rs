//! The types of the admin protocol that describe and maintain LUNs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::counters_api::{Operation, SenseKeyCount};
use super::shape::{Described, Field, Object, Shape, object};

object! {
    /// The LUNs that are served.
    Luns {
        /// The LUNs, sorted by target, then by number.
        luns: Vec<Lun>,
        /// The file systems that hold files of LUNs, as they were measured in the last seconds; null from a
        /// release that does not measure them.
        file_systems: Option<Vec<FileSystem>>,
    }
}

object! {
    /// A limit of the rate at which commands are executed.
    Limit {
        /// The most operations per second; null for any number.
        iops: Option<u32>,
        /// The most bytes per second; null for any number.
        bandwidth: Option<u64>,
        /// For how long an unused rate is saved up, in milliseconds.
        burst_ms: u64,
    }
}

object! {
    /// A LUN of a target. A shared unit appears once for each target that exports it.
    Lun {
        /// The target's name.
        target: String,
        /// The number.
        lun: u16,
        /// The medium, as a LUN spec begins.
        medium: String,
        /// The capacity in bytes.
        bytes: u64,
        /// The length of a logical block in bytes.
        block_bytes: u32,
        /// Whether it is write-protected.
        read_only: bool,
        /// Whether UNMAP deallocates storage.
        thin: bool,
        /// Whether writes are acknowledged before they are durable.
        write_cache: bool,
        /// Whether its data is stored encrypted.
        encrypted: bool,
        /// The unit serial number.
        serial: String,
        /// The world-wide name, in hexadecimal digits.
        naa: String,
        /// Commands so far, through every target that exports the unit.
        commands: u64,
        /// Bytes read so far.
        read_bytes: u64,
        /// Bytes written so far.
        write_bytes: u64,
        /// How often its file or device failed so far: no space, an I/O error, or a file that is too short.
        medium_errors: u64,
        /// How often its file or device took longer than `io_timeout` so far.
        io_timeouts: u64,
        /// Its limit; null if it has none.
        limit: Option<Limit>,
        /// Commands that its limit or that of their initiator has delayed so far.
        delayed_commands: u64,
        /// How long these commands waited in total, in milliseconds.
        delayed_ms: u64,
        /// Commands that a limit delays now.
        waiting_commands: u64,
        /// Why it is not ready: how its file or device changed, why there is no disc or cartridge, or that
        /// its server does not answer. Null if it is.
        not_ready: Option<String>,
        /// The commands that ended with a status, by class.
        operations: Vec<Operation>,
        /// The commands that ended with CHECK CONDITION, by sense key; sense keys without commands are left
        /// out.
        check_conditions: Vec<SenseKeyCount>,
        /// Commands that ended with RESERVATION CONFLICT.
        reservation_conflicts: u64,
        /// Commands that ended with TASK SET FULL.
        task_set_full: u64,
        /// Tasks that were aborted.
        aborted_tasks: u64,
        /// The present number of tasks.
        tasks: u64,
        /// Its reservation and registrations; null if it has none.
        reservation: Option<Reservation>,
        /// Why writes that it acknowledged are lost: every flush fails until `accept-loss`. Null if none are.
        lost_writes: Option<String>,
        /// Which operations of its file or device failed, and why, until an operation of the same kind
        /// succeeds at the same place, or until `accept-loss`. Null if none did.
        medium_failure: Option<String>,
        /// What its file takes from its file system; null if the medium is no file, and for the first
        /// seconds.
        space: Option<LunSpace>,
    }
}

object! {
    /// The storage of a file that is served.
    LunSpace {
        /// The bytes that are allocated.
        allocated_bytes: u64,
        /// The bytes that it can still take from its file system, until all of it is allocated.
        promised_bytes: u64,
        /// The bytes that its file system has free for the daemon's user.
        free_bytes: u64,
    }
}

object! {
    /// A file system that holds served files.
    FileSystem {
        /// The directory of one of the files.
        directory: String,
        /// The bytes that it holds.
        bytes: u64,
        /// The bytes that it has free for the daemon's user.
        free_bytes: u64,
        /// The bytes that are allocated to the files that are served.
        allocated_bytes: u64,
        /// The bytes that these files can still take. If this is more than what is free, writes can fail.
        promised_bytes: u64,
        /// How many disks that are served it holds.
        disks: u32,
    }
}

object! {
    /// The reservation of a unit, and who is registered.
    Reservation {
        /// The type of the persistent reservation, such as `write exclusive, registrants only`; `reserve` for
        /// one by RESERVE (SPC-2). Null if there are only registrations.
        kind: Option<String>,
        /// The initiators that hold it, at most 16 of them.
        holders: Vec<String>,
        /// How many paths of initiators (I_T nexuses) are registered.
        registrations: u32,
        /// Whether it survives a restart of the daemon (APTPL).
        persists: bool,
        /// Whether its saved state could not be read: the unit refuses nearly every command until an
        /// initiator replaces the lost reservation.
        lost: bool,
    }
}

object! {
    /// The LUN that `drain-lun`, `snapshot-lun`, `accept-loss` or `reservations` is about, or one of those of
    /// `snapshot-luns`.
    LunSelector {
        /// The target's name.
        target: String,
        /// The LUN.
        lun: u16,
        /// `snapshot-lun` and `snapshot-luns`: the absolute path of the new file; null or absent otherwise.
        path: Option<String>,
        /// `drain-lun`: how long to wait for the end of its tasks, in seconds. Null or absent to end the
        /// drain: initiators can use the LUN again.
        wait_s: Option<u32>,
    }
}

object! {
    /// The answer to `drain-lun`.
    Drained {
        /// Whether initiators can no longer use the LUN.
        drained: bool,
        /// Whether nothing is under way any more: no task, and no operation of its medium.
        ended: bool,
        /// Whether everything that it acknowledged is durable. False before the end, and for writable tape
        /// drives and devices of the daemon's host: these keep what hosts wrote until hosts have it written
        /// out.
        durable: bool,
        /// How many tasks it still has.
        tasks: u64,
    }
}

object! {
    /// The answer to `accept-loss`: flushes of the LUN succeed again, and failed operations are no problem
    /// any more.
    LossAccepted {
        /// Why writes that it acknowledged are lost; null if none are.
        lost: Option<String>,
        /// Which operations failed, if nothing is lost; null otherwise.
        failed: Option<String>,
    }
}

object! {
    /// The answer to `reservations`.
    LunReservations {
        /// The reservation; null if there is neither a reservation nor a registration.
        reservation: Option<Reservation>,
        /// How often the registrations have changed since the unit exists (PRGENERATION).
        generation: u32,
        /// The registrations.
        registrants: Vec<Registrant>,
        /// Who has reserved the unit with RESERVE (SPC-2); null for nobody.
        reserved_by: Option<ReservingPort>,
    }
}

object! {
    /// A registration for persistent reservations.
    Registrant {
        /// The name of the initiator.
        initiator: String,
        /// The ISID of its port, 12 hexadecimal digits; null for a port without one.
        isid: Option<String>,
        /// The relative identifier of the target port.
        target_port: u16,
        /// The reservation key, 16 hexadecimal digits.
        key: String,
        /// Whether it holds the reservation.
        holder: bool,
        /// Whether the initiator is logged in with that port.
        logged_in: bool,
    }
}

object! {
    /// The initiator port that has reserved a unit with RESERVE (SPC-2). It is logged in.
    ReservingPort {
        /// The name of the initiator.
        initiator: String,
        /// The ISID of its port, 12 hexadecimal digits; null for a port without one.
        isid: Option<String>,
        /// The relative identifier of the target port.
        target_port: u16,
    }
}

object! {
    /// What `clear-reservations` removes. The tasks of an initiator whose registrations are removed end, and
    /// unit attentions report the change to all that were registered.
    ReservationSelector {
        /// The target's name.
        target: String,
        /// The LUN.
        lun: u16,
        /// The name of the initiator whose reservation and registrations are removed; null or absent for all.
        initiator: Option<String>,
        /// Only those of its port with this ISID, 12 hexadecimal digits; null or absent for all its ports.
        isid: Option<String>,
        /// Whether to remove also those of initiators that are logged in, and saved ones that cannot be read.
        /// Otherwise the request is refused, and changes nothing.
        force: bool,
    }
}

object! {
    /// The answer to `clear-reservations`: it is done, and durable.
    ClearedReservations {
        /// How many registrations were removed.
        registrations: u32,
        /// Whether a reservation ended.
        released: bool,
    }
}

object! {
    /// The answer to `snapshot-lun`: the file is there, and durable.
    Snapshot {
        /// Its path.
        path: String,
        /// Its length in bytes.
        bytes: u64,
    }
}

object! {
    /// The LUNs that `snapshot-luns` is about.
    LunList {
        /// The LUNs, at most 64.
        luns: Vec<LunSelector>,
    }
}

object! {
    /// The answer to `snapshot-luns`: all files are there, and durable.
    Snapshots {
        /// The files, in the order of the request.
        snapshots: Vec<Snapshot>,
    }
}
