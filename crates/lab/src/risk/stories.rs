//! The four cases of the white paper "Understanding iSCSI Digests", each run once without digests and once
//! with both, and told with what happened.

use std::ops::Range;

use super::Cell;
use super::lane::{Combination, Lane, Trial};
use super::outcome::Outcome;
use super::plan::{Fault, RiskPlan};
use crate::corrupter::fault::{Injection, PduClass};
use crate::experiment::LabError;
use crate::plan::Digests;

/// A case that is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Story {
    /// The heading.
    pub(crate) title: &'static str,
    /// Paragraphs.
    pub(crate) text: Vec<String>,
}

/// A case: its heading, its fault, and when anyone would notice if nothing detects the damage.
struct Case {
    title: &'static str,
    fault: &'static str,
    noticed: &'static str,
}

const CASES: [Case; 4] = [
    Case {
        title: "A data bit flips in a read",
        fault: "read-data-bit",
        noticed: "The medium is right, so another read returns other data. Only an application that checks its \
                  own data notices, and it cannot reproduce the error.",
    },
    Case {
        title: "A data bit flips in a write",
        fault: "write-data-bit",
        noticed: "The target stored the damaged block and reported success. Every later read returns it, \
                  perhaps months later, and every backup and replica copies it.",
    },
    Case {
        title: "An LBA bit flips in a read",
        fault: "read-lba-bit",
        noticed: "The application received intact data of other blocks. A checksum of the data alone does not \
                  show that; the data must state its own address.",
    },
    Case {
        title: "An LBA bit flips in a write",
        fault: "write-lba-bit",
        noticed: "The write destroyed blocks that nobody accessed, and left those that it named as they were. \
                  Nothing connects the damage with this write when somebody reads either of them later.",
    },
];

/// The length of the commands in bytes.
const LEN: u32 = 4096;
/// How often a case is repeated until the damaged command stays within the blocks of the lane, so that there
/// is something to tell.
const ATTEMPTS_MAX: u32 = 64;

/// Runs and tells every case, as far as the target offers the digests.
pub(super) fn tell(lane: &mut Lane<'_>, plan: &RiskPlan, cells: &[Cell]) -> Result<Vec<Story>, LabError> {
    let mut stories = Vec::new();
    let erl = plan.erl.iter().copied().min().unwrap_or(0);
    for case in &CASES {
        let Some(fault) = Fault::named(case.fault) else { continue };
        let mut text = Vec::new();
        for digests in [Digests::None, Digests::Both] {
            let combination = Combination { digests, erl };
            let is_offered = |cell: &&Cell| (cell.digests, cell.erl) == (digests, erl);
            let Some(None) = cells.iter().find(is_offered).map(|cell| &cell.not_offered) else { continue };
            if lane.log_in(combination)?.is_some() {
                continue;
            }
            let Some(trial) = instance(lane, combination, fault)? else { continue };
            text.extend(paragraphs(&trial, combination, case));
        }
        if !text.is_empty() {
            stories.push(Story { title: case.title, text });
        }
    }
    Ok(stories)
}

/// Runs a case until it is one that the paper describes.
fn instance(
    lane: &mut Lane<'_>,
    combination: Combination,
    fault: &'static Fault,
) -> Result<Option<Trial>, LabError> {
    for _ in 0..ATTEMPTS_MAX {
        let trial = lane.trial(combination, Some(fault), LEN)?;
        let is_told = trial
            .passage
            .injection
            .as_ref()
            .is_some_and(|injection| fault.class != PduClass::Command || injection.misdirected.is_some());
        if is_told {
            return Ok(Some(trial));
        }
    }
    Ok(None)
}

fn paragraphs(trial: &Trial, combination: Combination, case: &Case) -> Vec<String> {
    let Some(injection) = &trial.passage.injection else { return Vec::new() };
    let digests = match combination.digests {
        Digests::None => "Without digests",
        _ => "With both digests",
    };
    let verb = if trial.is_write { "write" } else { "read" };
    let mut text = vec![format!(
        "{digests}, at ErrorRecoveryLevel {}: the application asked to {verb} {} ({LEN} bytes). {} The command \
         ended with: {}. The wire showed: {}. This is {}.",
        combination.erl,
        blocks(&trial.blocks),
        damage(injection),
        trial.result,
        wire(trial),
        trial.outcome().map_or("no fault", Outcome::name),
    )];
    for (lba, content) in &trial.wrong {
        let place =
            if trial.is_write { "on the medium" } else { "in the data that the application received" };
        text.push(format!("Block {lba} {place} is wrong: {content}."));
    }
    if trial.facts.is_wrong {
        text.push(case.noticed.to_owned());
    }
    text
}

fn blocks(range: &Range<u64>) -> String {
    format!("blocks {} to {}", range.start, range.end.saturating_sub(1))
}

fn damage(injection: &Injection) -> String {
    let (before, after) = (injection.before.first(), injection.after.first());
    let (before, after) = (before.copied().unwrap_or(0), after.copied().unwrap_or(0));
    let mut text = format!(
        "After TCP had checked the segment, bit {} of byte {} of the {} PDU flipped: {before:02x}h became \
         {after:02x}h.",
        (before ^ after).trailing_zeros(),
        injection.offset,
        injection.class.name()
    );
    if let Some(named) = &injection.misdirected {
        text += &format!(" The command now named {}.", blocks(named));
    }
    text
}

/// Returns what the corrupter saw after the fault.
fn wire(trial: &Trial) -> String {
    let seen = &trial.passage.seen;
    let mut signs: Vec<String> =
        seen.rejects.iter().map(|reason| format!("a Reject (reason {reason:02x}h)")).collect();
    for (count, what) in [
        (seen.snacks, "SNACK Requests"),
        (seen.resent, "PDUs sent again"),
        (seen.closed_by_initiator, "connections closed by the initiator"),
        (seen.closed_by_target, "connections closed by the target"),
        (seen.opened, "new connections"),
    ] {
        if count > 0 {
            signs.push(format!("{what}: {count}"));
        }
    }
    if signs.is_empty() { "no sign of an error".to_owned() } else { signs.join(", ") }
}
