//! The plots of the report.

use crate::report::cells::bars as report_bars;
use crate::report::{Axis, Plot};
use crate::targets::plan::Workload;
use crate::targets::samples::Measured;

/// Returns the rate of commands by workload, and the throughput of long commands, a bar for each target.
pub(super) fn rates(measured: &Measured) -> Vec<Plot> {
    let short = |workload: &Workload| workload.block < LONG;
    [
        bars(measured, "Commands per second of short commands", ("rate", "1/s"), short, |sample| sample.iops),
        bars(
            measured,
            "Throughput of long commands",
            ("throughput", "MB/s"),
            |workload| !short(workload),
            |sample| sample.throughput,
        ),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Returns a name that fits under a group of bars.
fn short_name(workload: &Workload) -> String {
    workload.name().replace("sequential", "seq.")
}

/// The bytes of a long command, which the throughput describes and not the rate.
const LONG: u32 = 64 << 10;

fn bars(
    measured: &Measured,
    caption: &str,
    (label, unit): (&str, &str),
    is_shown: impl Fn(&Workload) -> bool,
    of: impl Fn(&crate::targets::samples::Sample) -> f64,
) -> Option<Plot> {
    let shown: Vec<usize> = measured
        .workloads
        .iter()
        .enumerate()
        .filter(|(_, workload)| is_shown(workload))
        .map(|(at, _)| at)
        .collect();
    let names = shown.iter().filter_map(|at| measured.workloads.get(*at)).map(short_name).collect();
    let series = measured.measured().map(|target| {
        let samples_of = |at: &usize| target.values(*at, |sample| Some(of(sample)));
        (target.title().to_owned(), shown.iter().map(samples_of).collect())
    });
    let x = Axis { label: "workload".to_owned(), names, ..Axis::default() };
    let y = Axis { label: label.to_owned(), unit: unit.to_owned(), ..Axis::default() };
    report_bars(caption.to_owned(), (x, y), series)
}
