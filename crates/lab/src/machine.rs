//! The machine that an experiment runs on, and the time, for reports.

use std::time::{Duration, SystemTime};

/// Returns what a reader must know of this machine: name and value.
pub fn describe() -> Vec<(String, String)> {
    let cpuinfo = read("/proc/cpuinfo");
    let model = field(&cpuinfo, "model name").or_else(|| field(&cpuinfo, "CPU implementer"));
    let virtualized =
        field(&cpuinfo, "flags").is_some_and(|flags| flags.split(' ').any(|flag| flag == "hypervisor"));
    let memory = field(&read("/proc/meminfo"), "MemTotal").and_then(|size| in_gib(&size));
    let processors = std::thread::available_parallelism().map_or(0, usize::from);
    let rows = [
        ("processor", model.unwrap_or_else(|| UNKNOWN.to_owned())),
        ("processors", processors.to_string()),
        ("virtual machine", if virtualized { "yes" } else { "no sign of one" }.to_owned()),
        ("memory", memory.unwrap_or_else(|| UNKNOWN.to_owned())),
        ("kernel", format!("Linux {}", read("/proc/sys/kernel/osrelease").trim())),
        (
            "load average at the start",
            load_average().map_or_else(|| UNKNOWN.to_owned(), |load| load.to_string()),
        ),
        ("architecture", std::env::consts::ARCH.to_owned()),
        ("targe", env!("CARGO_PKG_VERSION").to_owned()),
        (
            "build",
            if cfg!(debug_assertions) { "debug: the figures say nothing" } else { "release" }.to_owned(),
        ),
    ];
    rows.map(|(name, value)| (name.to_owned(), value)).into()
}

/// Returns a size that the kernel writes as `24684084 kB`: `23.5 GiB`.
fn in_gib(size: &str) -> Option<String> {
    let kib: u32 = size.strip_suffix(" kB")?.trim().parse().ok()?;
    Some(format!("{:.1} GiB", f64::from(kib) / f64::from(1 << 20)))
}

/// Returns how many threads ran or waited for a processor, on average over the last minute.
pub fn load_average() -> Option<f64> {
    read("/proc/loadavg").split(' ').next()?.parse().ok()
}

/// The time that all processors together have spent since the machine started, in the kernel's ticks.
#[derive(Clone, Copy, Debug)]
pub struct ProcessorTime {
    idle: u64,
    stolen: u64,
    all: u64,
}

/// How all processors together spent a span of time, in percent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProcessorShares {
    /// The time in which they had nothing to do.
    pub idle: f64,
    /// The time in which they had work and a hypervisor let others run.
    pub stolen: f64,
}

impl ProcessorShares {
    /// Returns the less idle share and the more stolen share of two spans.
    pub fn worse(self, other: Self) -> Self {
        Self { idle: self.idle.min(other.idle), stolen: self.stolen.max(other.stolen) }
    }
}

impl ProcessorTime {
    /// Reads it; none where the kernel does not tell.
    pub fn now() -> Option<Self> {
        Self::parse(&read("/proc/stat"))
    }

    fn parse(stat: &str) -> Option<Self> {
        let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
        // user, nice, system, idle, iowait, irq, softirq, steal. Guests are part of user and nice.
        let ticks: Vec<u64> = line.split_whitespace().take(8).filter_map(|word| word.parse().ok()).collect();
        let stolen = ticks.get(7).copied().unwrap_or(0);
        Some(Self { idle: ticks.get(3)? + ticks.get(4)?, stolen, all: ticks.iter().sum() })
    }

    /// Returns the shares of the time since then. What a hypervisor took away is not idle.
    pub fn shares_since(self, before: Self) -> Option<ProcessorShares> {
        let all = self.all.checked_sub(before.all).filter(|ticks| *ticks > 0)?;
        let ticks = |count: u64| f64::from(u32::try_from(count).unwrap_or(u32::MAX));
        let percent = |now: u64, before: u64| ticks(now.saturating_sub(before)) / ticks(all) * 100.0;
        Some(ProcessorShares {
            idle: percent(self.idle, before.idle),
            stolen: percent(self.stolen, before.stolen),
        })
    }
}

/// Runs `work`. Returns its result, and how all processors spent the time meanwhile.
pub(crate) fn with_processor_shares<T>(work: impl FnOnce() -> T) -> (T, Option<ProcessorShares>) {
    let before = ProcessorTime::now();
    let result = work();
    let shares = ProcessorTime::now().zip(before).and_then(|(now, before)| now.shares_since(before));
    (result, shares)
}

const UNKNOWN: &str = "unknown";

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// Returns the value of the first line `name : value`.
fn field(text: &str, name: &str) -> Option<String> {
    let values = text.lines().filter_map(|line| line.split_once(':'));
    values.filter(|(found, _)| found.trim() == name).map(|(_, value)| value.trim().to_owned()).next()
}

/// Returns the present time in UTC as RFC 3339 writes it: `2026-11-20T20:26:52Z`.
pub fn timestamp() -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    formatted(now.unwrap_or(Duration::ZERO).as_secs())
}

fn formatted(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Converts a number of days since 1970-01-01 to year, month and day of the Gregorian calendar.
fn civil(days: u64) -> (u64, u64, u64) {
    // Count from 0000-03-01, so that the leap day ends a year; 400 years have 146 097 days.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let shifted = (5 * day + 2) / 153;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (era * 400 + year + u64::from(month <= 2), month, day - (153 * shifted + 2) / 5 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_told_in_gib() {
        assert_eq!(in_gib("24684084 kB").as_deref(), Some("23.5 GiB"));
        assert_eq!(in_gib("24684084"), None);
    }

    #[test]
    fn idle_and_stolen_time_are_shares_of_all_time() {
        let at = |text| ProcessorTime::parse(text).unwrap();
        let before = at("cpu  100 0 50 800 50 0 0 0 0 0\ncpu0 1 2 3\n");
        let after = at("cpu  110 0 55 840 55 0 5 35 9 9\ncpu0 1 2 3\n");
        let shares = after.shares_since(before).unwrap();
        assert_eq!(shares, ProcessorShares { idle: 45.0, stolen: 35.0 });
        assert_eq!(shares.worse(ProcessorShares { idle: 50.0, stolen: 36.0 }).stolen, 36.0);
        assert_eq!(after.shares_since(after), None);
        assert!(ProcessorTime::parse("intr 5").is_none() && ProcessorTime::now().is_some());
    }

    #[test]
    fn moments_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_795_305_600, "2026-11-22T00:00:00Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(formatted(seconds), text);
        }
    }

    #[test]
    fn the_machine_has_a_kernel_and_processors() {
        let rows = describe();
        let value = |name: &str| rows.iter().find(|(found, _)| found == name).unwrap().1.clone();
        assert!(value("kernel").len() > "Linux ".len() && value("processors") != "0");
        assert_eq!(field("a\t: 1\nb : 2 3\n", "b").as_deref(), Some("2 3"));
    }
}
