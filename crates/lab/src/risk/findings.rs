//! The report of the experiment `risk`: the answer in words, the matrix, the faults, and the stories.

use std::collections::BTreeSet;

use super::outcome::{Counts, Outcome};
use super::plan::{FAULTS, RiskPlan};
use super::{Cell, RiskResults, Subject};
use crate::plan::Digests;
use crate::report::negotiated::Sessions;
use crate::report::{
    Axis, Better, Cell as TableCell, Column, Estimate, Metric, Plot, PlotKind, Point, Report, SCHEMA,
    Section, Series, Table,
};
use crate::text::joined;

/// Returns the report, without the time and the machine.
pub(super) fn report(plan: &RiskPlan, subject: &Subject, results: &RiskResults) -> Report {
    let mut sections = vec![matrix(results), by_fault(results)];
    sections.extend(negotiated(results));
    sections.extend(results.stories.iter().map(|story| Section {
        title: story.title.to_owned(),
        text: story.text.clone(),
        ..Section::default()
    }));
    Report {
        schema: SCHEMA,
        experiment: "risk".to_owned(),
        title: "What happens to damaged data without iSCSI digests?".to_owned(),
        started: String::new(),
        seconds: 0.0,
        ended: results.ended.clone(),
        summary: summary(results),
        caveats: caveats(plan, subject, results),
        machine: Vec::new(),
        command: String::new(),
        plan: plan.to_toml(),
        sections,
        metrics: metrics(results),
    }
}

/// Returns the section with what the sessions of each cell agreed on.
fn negotiated(results: &RiskResults) -> Option<Section> {
    let mut sessions = Sessions::default();
    for cell in &results.cells {
        let name = format!("digests {}, ErrorRecoveryLevel {}", cell.digests.name(), cell.erl);
        sessions.record(&name, cell.negotiated.clone());
    }
    sessions.section()
}

impl RiskResults {
    /// Returns the counts of all cells with these digests.
    pub fn of_digests(&self, digests: Digests) -> Counts {
        self.sum(|cell| cell.digests == digests)
    }

    /// Returns the counts of all cells.
    pub fn total(&self) -> Counts {
        self.sum(|_| true)
    }

    fn sum(&self, chosen: impl Fn(&Cell) -> bool) -> Counts {
        let mut sum = Counts::default();
        for cell in self.cells.iter().filter(|cell| chosen(cell)) {
            sum += cell.counts;
        }
        sum
    }
}

fn summary(results: &RiskResults) -> Vec<String> {
    let total = results.total();
    if total.injected == 0 {
        return vec!["No PDU was damaged, so this run says nothing.".to_owned()];
    }
    let of = |digests| Some(results.of_digests(digests)).filter(|counts| counts.injected > 0);
    let mut text = answer(of(Digests::None), of(Digests::Both));
    text.push(WHAT_IS_WHAT.to_owned());
    for (digests, name) in [(Digests::Header, "header digests"), (Digests::Data, "data digests")] {
        if let Some(counts) = of(digests) {
            let (wrong, injected) = (grouped(counts.wrong), grouped(counts.injected));
            text.push(format!("With {name} alone, {wrong} of {injected} did such silent damage."));
        }
    }
    let levels: BTreeSet<String> = results.cells.iter().map(|cell| cell.erl.to_string()).collect();
    if levels.len() > 1 {
        let levels: Vec<String> = levels.into_iter().collect();
        text.push(format!("These are sums over the ErrorRecoveryLevels {}.", joined(&levels)));
    }
    for cell in results.cells.iter().filter(|cell| cell.digests == Digests::Both) {
        let counts = cell.counts;
        if counts.injected > 0 {
            text.push(format!(
                "With both digests at ErrorRecoveryLevel {}, {} of {} were repaired without the application noticing, \
                 {} were reported to it as errors, and {} did no harm, such as a PDU that arrives twice. Whatever their \
                 outcome, {} also cost a connection.",
                cell.erl,
                grouped(counts.recovered),
                grouped(counts.injected),
                grouped(counts.reported),
                grouped(counts.harmless),
                grouped(counts.dropped)
            ));
        }
    }
    text.push(format!(
        "The control: of {} commands without a damaged PDU, {} raised an alarm.",
        grouped(total.controls),
        grouped(total.false_alarms)
    ));
    if total.timed_out > 0 {
        text.push(format!(
            "In {} trials, with damage or without, the target did not respond in time; without damage this is no alarm.",
            grouped(total.timed_out)
        ));
    }
    if total.unexplained > 0 {
        text.push(format!(
            "At the end, {} blocks were wrong that no injected fault explains.",
            grouped(total.unexplained)
        ));
    }
    text
}

/// Begins with the answer: what damage does without digests, and with both.
fn answer(none: Option<Counts>, both: Option<Counts>) -> Vec<String> {
    let missed = |both: Counts| if both.wrong == 0 { "none".to_owned() } else { grouped(both.wrong) };
    let advice = match (none, both) {
        (Some(none), Some(both)) if none.wrong > 0 && both.wrong == 0 => "Use both digests. ",
        _ => "",
    };
    let mut text = Vec::new();
    if let Some(none) = none {
        text.push(format!(
            "{advice}Without digests, {} of {} damaged PDUs gave the application wrong data or left wrong blocks on the \
             medium, and nobody was told.",
            grouped(none.wrong),
            grouped(none.injected)
        ));
    }
    if let Some(both) = both {
        let (missed, injected) = (missed(both), grouped(both.injected));
        text.push(match none {
            Some(_) => format!("With both digests, {missed} of {injected} did."),
            None => {
                format!("With both digests, {missed} of {injected} damaged PDUs left wrong data unreported.")
            }
        });
    }
    text
}

const WHAT_IS_WHAT: &str = "A PDU is a message of iSCSI, and digests are checksums (CRC32C) of its header and its data. \
     Here a relay damaged PDUs, one at a time, behind the checksums of Ethernet and TCP, as faulty memory, adapters, \
     switches and drivers do. The ErrorRecoveryLevel says what happens to an error that was detected: at 0 the session \
     begins anew, at 1 the PDU is sent again, and at 2 a lost connection is replaced too. All kinds of damage are \
     equally frequent here, unlike in a network: the shares compare digests, and are no probability of damage.";

fn caveats(plan: &RiskPlan, subject: &Subject, results: &RiskResults) -> Vec<String> {
    let mut text = vec![
        "Every trial has exactly one damaged PDU. The shares are those of the damaged PDUs, not of all PDUs: how \
         often a network damages data after TCP has checked it is another question."
            .to_owned(),
        "The relay damages no LUN and no operation code of a CDB, and a damaged LBA is still inside the range that \
         the test may write, because other damage could destroy other data."
            .to_owned(),
        "The fault truncate overwrites the end of the data with zeros: the PDU keeps its length.".to_owned(),
        format!(
            "A command counts as reported when it has no response after {} ms. With header digests at \
             ErrorRecoveryLevel 1 and 2 the limit is 5 s longer, since a target may take seconds to request again what \
             it discarded. An application may wait longer.",
            plan.timeout_ms
        ),
        "The initiator is that of targe, which repeats reads and writes in a new session if theirs is lost. An \
         initiator that does not would report what is recovered here."
            .to_owned(),
    ];
    if plan.reseal {
        text.push(
            "The digests were computed again after the damage, so that no receiver could detect it."
                .to_owned(),
        );
    }
    if matches!(subject, Subject::Child { .. }) {
        text.push(
            "Both ends are targe, which is an iSCSI target and initiator, on one machine. Test another target by its \
             URL: targe lab risk iscsi://HOST/NAME/LUN."
                .to_owned(),
        );
    }
    for cell in &results.cells {
        let alarms = cell.alarms.iter();
        text.extend(alarms.map(|alarm| format!("A false alarm at {}: {alarm}.", name(cell))));
    }
    let missed = results.total().missed;
    if missed > 0 {
        text.push(format!("{missed} trials had no PDU that their fault could damage; they are not counted."));
    }
    text
}

fn name(cell: &Cell) -> String {
    format!("digests {}, ERL {}", cell.digests.name(), cell.erl)
}

fn matrix(results: &RiskResults) -> Section {
    let titles = ["digests", "ERL", "injected"].into_iter().chain(Outcome::ALL.map(Outcome::name)).chain([
        "connections dropped",
        "false alarms",
        "timed out",
        "unexplained blocks",
    ]);
    let rows = results.cells.iter().map(row).collect();
    Section {
        title: "What became of damaged PDUs".to_owned(),
        text: vec![
            "Detected means that an end reacted: a digest error in the initiator's counters, a Reject, a SNACK, a \
             repetition or a closed connection on the wire, or a command that failed. Without digests an end notices \
             only damage that makes a PDU nonsensical. Silent means that no end reacted. Digests cannot detect a PDU \
             that arrives twice, which is silent and harmless. A trial without damage that only timed out is no false \
             alarm: a busy machine responds late, too. Unexplained blocks are those that the last check of the \
             whole range found wrong without a fault that explains it."
                .to_owned(),
        ],
        tables: vec![Table {
            caption: "Outcomes of damaged PDUs, by digests and ErrorRecoveryLevel".to_owned(),
            columns: titles.map(column).collect(),
            rows,
        }],
        plots: vec![plot(results)],
    }
}

fn column(title: &str) -> Column {
    Column { title: title.to_owned(), unit: String::new() }
}

fn row(cell: &Cell) -> Vec<TableCell> {
    let counts = &cell.counts;
    let mut row =
        vec![TableCell::Text(cell.digests.name().to_owned()), TableCell::Text(cell.erl.to_string())];
    let numbers = std::iter::once(counts.injected)
        .chain(Outcome::ALL.map(|outcome| counts.of(outcome)))
        .chain([counts.dropped, counts.false_alarms, counts.timed_out, counts.unexplained]);
    row.extend(numbers.map(|number| match &cell.not_offered {
        Some(why) => TableCell::Absent(format!("not offered: {why}")),
        None => TableCell::Number(float(number)),
    }));
    row
}

fn plot(results: &RiskResults) -> Plot {
    let cells: Vec<&Cell> = results.cells.iter().filter(|cell| cell.counts.injected > 0).collect();
    let bar = |(at, cell): (u32, &&Cell), outcome| Point {
        x: f64::from(at),
        y: share(cell.counts.of(outcome), cell.counts.injected),
    };
    let series = |outcome: Outcome| Series {
        name: outcome.name().to_owned(),
        points: (0..).zip(&cells).map(|place| bar(place, outcome)).collect(),
    };
    Plot {
        caption: "Share of each outcome among the damaged PDUs, with 95 % confidence intervals".to_owned(),
        kind: PlotKind::Bars,
        x: Axis {
            label: "digests, ErrorRecoveryLevel".to_owned(),
            names: cells.iter().map(|cell| format!("{}, {}", cell.digests.name(), cell.erl)).collect(),
            ..Axis::default()
        },
        y: Axis { label: "share of damaged PDUs".to_owned(), unit: "%".to_owned(), ..Axis::default() },
        series: Outcome::ALL.map(series).into(),
    }
}

/// The 97.5 % quantile of the normal distribution.
const Z: f64 = 1.959_964;

/// Returns a share in percent with its 95 % confidence interval (Wilson).
fn share(count: u64, of: u64) -> Estimate {
    let (n, p) = (float(of.max(1)), float(count) / float(of.max(1)));
    let middle = (p + Z * Z / (2.0 * n)) / (1.0 + Z * Z / n);
    let half = Z / (1.0 + Z * Z / n) * (p * (1.0 - p) / n + Z * Z / (4.0 * n * n)).sqrt();
    let percent = |value: f64| (value * 100.0).clamp(0.0, 100.0);
    Estimate {
        value: percent(p),
        low: percent((middle - half).min(p)),
        high: percent((middle + half).max(p)),
    }
}

fn by_fault(results: &RiskResults) -> Section {
    let chosen = [Digests::None, Digests::Header, Digests::Data, Digests::Both]
        .into_iter()
        .filter(|digests| results.of_digests(*digests).injected > 0)
        .collect::<Vec<_>>();
    let mut columns = vec![column("fault")];
    columns.extend(chosen.iter().map(|digests| Column {
        title: format!("digests {}", digests.name()),
        unit: "wrong of injected".to_owned(),
    }));
    let rows = FAULTS.iter().map(|fault| {
        let cell = |digests: &Digests| {
            let cells = results.cells.iter().filter(|cell| cell.digests == *digests);
            let mut sum = Counts::default();
            cells.filter_map(|cell| cell.faults.get(fault.name)).for_each(|counts| sum += *counts);
            match sum.injected {
                0 => TableCell::Absent("not in the plan".to_owned()),
                injected => TableCell::Text(format!("{} of {injected}", sum.wrong)),
            }
        };
        std::iter::once(TableCell::Text(fault.name.to_owned())).chain(chosen.iter().map(cell)).collect()
    });
    Section {
        title: "Which faults stay silent".to_owned(),
        text: vec![
            "The faults named swap and pair leave the TCP checksum as it was: they could also happen before TCP \
             checks the segment. A fault of a data name damages data, and the others a header."
                .to_owned(),
        ],
        tables: vec![Table {
            caption: "Silent and wrong, by fault and digests, at all ErrorRecoveryLevels".to_owned(),
            columns,
            rows: rows.collect(),
        }],
        ..Section::default()
    }
}

fn metrics(results: &RiskResults) -> Vec<Metric> {
    let of_cell = |cell: &Cell| {
        let counts = cell.counts;
        let circumstances =
            [("digests", cell.digests.name().to_owned()), ("ErrorRecoveryLevel", cell.erl.to_string())];
        let quantities = [
            ("injected", counts.injected, Better::Neither),
            ("detected and recovered", counts.recovered, Better::Neither),
            ("detected and reported", counts.reported, Better::Neither),
            ("silent and harmless", counts.harmless, Better::Neither),
            ("silent and wrong", counts.wrong, Better::Lower),
            ("connections dropped", counts.dropped, Better::Lower),
            ("false alarms", counts.false_alarms, Better::Lower),
            ("timed out", counts.timed_out, Better::Lower),
            ("unexplained blocks", counts.unexplained, Better::Lower),
        ];
        quantities.map(|(quantity, value, better)| Metric {
            circumstances: circumstances.clone().map(|(name, value)| (name.to_owned(), value)).into(),
            quantity: quantity.to_owned(),
            unit: String::new(),
            better,
            samples: vec![float(value)],
            resolution: None,
        })
    };
    results.cells.iter().filter(|cell| cell.not_offered.is_none()).flat_map(of_cell).collect()
}

/// Converts a count, which is far below the 2^32 that the conversion is exact for.
fn float(count: u64) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

/// Writes a number with groups of three digits: `12 345`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::Negotiated;
    use crate::report::Ended;

    fn results(wrong: u64) -> RiskResults {
        let counts =
            Counts { injected: 5000, wrong, reported: 5000 - wrong, controls: 70, ..Counts::default() };
        let cell = |digests, counts| Cell {
            digests,
            erl: 0,
            not_offered: None,
            counts,
            faults: [("read-data-bit", counts)].into(),
            alarms: Vec::new(),
            negotiated: vec![Negotiated(vec![("DataDigest", digests.name().to_owned())])],
        };
        let sound = Counts { injected: 5000, recovered: 5000, ..Counts::default() };
        let mut header = cell(Digests::Header, Counts::default());
        header.not_offered = Some("refused".to_owned());
        RiskResults {
            cells: vec![cell(Digests::None, counts), cell(Digests::Both, sound), header],
            stories: Vec::new(),
            ended: Ended::Complete,
        }
    }

    #[test]
    fn the_first_sentences_are_the_answer() {
        let results = results(4871);
        let report = report(&RiskPlan::default(), &Subject::Child { program: "targe".into() }, &results);
        assert_eq!(
            report.summary[..2],
            [
                "Use both digests. Without digests, 4 871 of 5 000 damaged PDUs gave the application wrong data or left wrong blocks \
                 on the medium, and nobody was told.",
                "With both digests, none of 5 000 did."
            ]
        );
        let alarms = "The control: of 70 commands without a damaged PDU, 0 raised an alarm.";
        assert_eq!(report.summary.last().unwrap(), alarms);
        for table in report.sections.iter().flat_map(|section| &section.tables) {
            assert!(table.rows.iter().all(|row| row.len() == table.columns.len()), "{}", table.caption);
        }
        let absent = &report.sections[0].tables[0].rows[2][2];
        assert_eq!(*absent, TableCell::Absent("not offered: refused".to_owned()));
        assert_eq!(RiskPlan::from_toml(&report.plan).unwrap(), RiskPlan::default());
    }

    #[test]
    fn what_the_sessions_of_each_cell_agreed_on_is_a_section() {
        let mut results = results(0);
        results.cells[2].negotiated.clear();
        let report = report(&RiskPlan::default(), &Subject::Child { program: "targe".into() }, &results);
        let section = report.sections.iter().find(|section| section.title == "What was negotiated").unwrap();
        let text = |text: &str| TableCell::Text(text.to_owned());
        assert_eq!(
            section.tables[0].rows,
            [
                [text("digests none, ErrorRecoveryLevel 0"), text("none")],
                [text("digests both, ErrorRecoveryLevel 0"), text("both")],
            ]
        );
    }

    #[test]
    fn timeouts_have_a_quantity_of_their_own() {
        let mut results = results(4871);
        results.cells[0].counts.timed_out = 2;
        let report = report(&RiskPlan::default(), &Subject::Child { program: "targe".into() }, &results);
        let of = |quantity: &str| {
            let metrics = report.metrics.iter().filter(|metric| metric.quantity == quantity);
            metrics.map(|metric| metric.samples[0]).collect::<Vec<_>>()
        };
        assert_eq!((of("timed out"), of("false alarms")), (vec![2.0, 0.0], vec![0.0, 0.0]));
        assert!(
            report.summary.last().unwrap().starts_with("In 2 trials, with damage or without, the target did")
        );
    }

    #[test]
    fn intervals_are_those_of_wilson() {
        let close = |estimate: Estimate, (value, low, high): (f64, f64, f64)| {
            (estimate.value - value).abs() < 0.01
                && (estimate.low - low).abs() < 0.01
                && (estimate.high - high).abs() < 0.01
        };
        assert!(close(share(5, 10), (50.0, 23.66, 76.34)));
        assert!(close(share(0, 100), (0.0, 0.0, 3.70)));
        assert!(close(share(100, 100), (100.0, 96.30, 100.0)));
    }
}
