//! What idle sessions cost each target.

use super::tables::number;
use crate::report::cells::{NOT_MEASURED, columns_without_units};
use crate::report::number::Short;
use crate::report::{Cell, Table};
use crate::targets::samples::{Fate, IdleSessions, Measured, TargetSamples};
use crate::text::{counted, joined};

/// Returns the memory and the time of logins; no table if the plan names no sessions.
pub(super) fn tables(measured: &Measured) -> Vec<Table> {
    let counts = &measured.idle_counts;
    let present = || measured.targets.iter().filter(|target| !matches!(target.fate, Fate::Absent(_)));
    if counts.is_empty() || present().next().is_none() {
        return Vec::new();
    }
    let mut sessions =
        columns_without_units(&["target", "sessions", "all logged in after", "resident", "for each session"]);
    for (column, unit) in sessions.iter_mut().zip(["", "", "ms", "KiB", "KiB"]) {
        column.unit = unit.to_owned();
    }
    let mut ends = columns_without_units(&[
        "target",
        "listens after",
        "resident without sessions",
        "after all have logged out",
    ]);
    for (column, unit) in ends.iter_mut().zip(["", "ms", "KiB", "KiB"]) {
        column.unit = unit.to_owned();
    }
    vec![
        Table {
            caption: "Idle sessions: the time of all logins, and the memory of the target".to_owned(),
            columns: sessions,
            rows: present().flat_map(|target| rows_of(target, counts)).collect(),
        },
        Table {
            caption: "The same targets before the first login and after the last logout".to_owned(),
            columns: ends,
            rows: present().map(ends_of).collect(),
        },
    ]
}

fn rows_of(target: &TargetSamples, counts: &[u32]) -> Vec<Vec<Cell>> {
    let costs = target.memory_of_sessions(counts);
    let row = |count: &u32| {
        let numbers = costs.iter().find(|(with, ..)| with == count).map(|(_, cost, memory)| {
            [cost.logins * 1e3, cost.resident / 1024.0, *memory].map(|value| number(Some(value)))
        });
        let absent = || [(); 3].map(|()| Cell::Absent(why_absent(target)));
        let first = [Cell::Text(target.title().to_owned()), Cell::Number(f64::from(*count))];
        first.into_iter().chain(numbers.unwrap_or_else(absent)).collect()
    };
    counts.iter().map(row).collect()
}

/// Returns why there is no figure: the first login that failed, or that nothing was measured.
fn why_absent(target: &TargetSamples) -> String {
    let why = match &target.idle_sessions {
        Some(Ok(found)) => found.costs.iter().find_map(|cost| cost.as_ref().err()),
        Some(Err(why)) => Some(why),
        None => None,
    };
    why.map_or_else(|| NOT_MEASURED.to_owned(), |why| format!("{NOT_MEASURED}: {why}"))
}

fn ends_of(target: &TargetSamples) -> Vec<Cell> {
    let cells = match &target.idle_sessions {
        Some(Ok(IdleSessions { listens_after, before, after, .. })) => [
            number(Some(listens_after * 1e3)),
            number(Some(before / 1024.0)),
            after.map_or_else(|| Cell::Absent(why_absent(target)), |after| number(Some(after / 1024.0))),
        ],
        _ => [(); 3].map(|()| Cell::Absent(why_absent(target))),
    };
    std::iter::once(Cell::Text(target.title().to_owned())).chain(cells).collect()
}

/// Tells how much memory a session takes when there are as many as the target could be measured with.
pub(super) fn sentence(measured: &Measured) -> Option<String> {
    let last = |target: &TargetSamples| {
        let (count, _, memory) = target.memory_of_sessions(&measured.idle_counts).pop()?;
        let count = counted(usize::try_from(count).unwrap_or(usize::MAX), "session");
        Some(format!("{} KiB in {} (with {count})", Short(memory), target.title()))
    };
    let texts: Vec<String> = measured.targets.iter().filter_map(last).collect();
    (!texts.is_empty())
        .then(|| format!("An idle session takes this memory of the target: {}.", joined(&texts)))
}
