//! The text form of fault plans: `data=0.5%,cut=1/20000,stall=1%:200ms,responses.drop=1/500`.
//!
//! A plan is a list of `KIND=ODDS`, separated by commas. ODDS is the probability of the fault for one PDU: a
//! percentage (`0.5%`), a fraction (`1/2000`) or a number of parts per million (`500ppm`). A kind applies to
//! both directions, unless `requests.` or `responses.` precedes it. A stall also has a duration, as
//! `ODDS:TIME`. Besides faults there are `delay=TIME`, `rate=BYTES_PER_SECOND`, `bits=MOST_BITS`,
//! `limit=FAULTS` (in each direction of a connection), `login` (faults also hit the login) and `unprotected`
//! (bits also flip where no digest would detect it).

use std::time::Duration;

use netem::probability::{DurationRange, Probability};
use netem::stream::{StreamDirection, StreamPlan};

/// The fault plans of both directions of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faults {
    /// From initiator to target.
    pub requests: StreamPlan,
    /// From target to initiator.
    pub responses: StreamPlan,
}

/// Why a text is no fault plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FaultPlanError {
    /// The word names no kind of fault.
    #[error("`{0}` is not a fault; the faults are {KINDS}")]
    Unknown(String),
    /// The kind needs a value.
    #[error("`{0}` needs a value, as in `{0}=1%`")]
    Missing(String),
    /// The text is no probability.
    #[error("`{0}` is not a probability; write 0.5%, 1/2000 or 500ppm, at most 100%")]
    Odds(String),
    /// The text is no time.
    #[error("`{0}` is not a duration; write 200us, 200ms or 2s")]
    Time(String),
    /// The text is no number.
    #[error("`{0}` is not a number")]
    Number(String),
}

const KINDS: &str = "header, header_digest, data, data_digest, drop, duplicate, stall, cut, silence, delay, rate, \
                     bits, limit, login, unprotected";

impl Faults {
    /// No faults.
    pub const NONE: Self = Self { requests: StreamPlan::CLEAN, responses: StreamPlan::CLEAN };

    /// Parses a plan.
    ///
    /// # Errors
    /// The first error in the text.
    pub fn parse(words: &str) -> Result<Self, FaultPlanError> {
        let mut faults = Self::NONE;
        for word in words.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            let (key, value) = match word.split_once('=') {
                Some((key, value)) => (key.trim(), Some(value.trim())),
                None => (word, None),
            };
            let (ways, kind): (&[StreamDirection], _) = match key.split_once('.') {
                Some(("requests", kind)) => (&[StreamDirection::Forward], kind),
                Some(("responses", kind)) => (&[StreamDirection::Backward], kind),
                _ => (&StreamDirection::BOTH, key),
            };
            for way in ways {
                let plan = match way {
                    StreamDirection::Forward => &mut faults.requests,
                    StreamDirection::Backward => &mut faults.responses,
                };
                apply(plan, kind, value)?;
            }
        }
        Ok(faults)
    }
}

impl std::str::FromStr for Faults {
    type Err = FaultPlanError;

    fn from_str(words: &str) -> Result<Self, FaultPlanError> {
        Self::parse(words)
    }
}

fn apply(plan: &mut StreamPlan, kind: &str, value: Option<&str>) -> Result<(), FaultPlanError> {
    let wanted = || value.ok_or_else(|| FaultPlanError::Missing(kind.to_owned()));
    match kind {
        "header" => plan.corrupt_header = odds(wanted()?)?,
        "header_digest" => plan.corrupt_header_digest = odds(wanted()?)?,
        "data" => plan.corrupt_data = odds(wanted()?)?,
        "data_digest" => plan.corrupt_data_digest = odds(wanted()?)?,
        "drop" => plan.drop = odds(wanted()?)?,
        "duplicate" => plan.duplicate = odds(wanted()?)?,
        "cut" => plan.cut = odds(wanted()?)?,
        "silence" => plan.silence = odds(wanted()?)?,
        "stall" => {
            let word = wanted()?;
            let (often, long) = word.split_once(':').ok_or_else(|| FaultPlanError::Time(word.to_owned()))?;
            (plan.stall, plan.stall_for) = (odds(often)?, DurationRange::exactly(time(long)?));
        }
        "delay" => plan.delay = DurationRange::exactly(time(wanted()?)?),
        "rate" => plan.bytes_per_s = number(wanted()?)?,
        "bits" => plan.bits_max = number(wanted()?)?,
        "limit" => plan.faults_max = number(wanted()?)?,
        "login" => plan.spare_login = false,
        "unprotected" => plan.protected_only = false,
        _ => return Err(FaultPlanError::Unknown(kind.to_owned())),
    }
    Ok(())
}

/// Parses a probability: `0.5%`, `1/2000` or `500ppm`.
///
/// # Errors
/// [`FaultPlanError::Odds`]
pub fn odds(word: &str) -> Result<Probability, FaultPlanError> {
    let parts = if let Some(percent) = word.strip_suffix('%') {
        decimal(percent, 4)
    } else if let Some(parts) = word.strip_suffix("ppm") {
        parts.parse().ok()
    } else if let Some((part, whole)) = word.split_once('/') {
        let (part, whole): (Option<u64>, Option<u64>) = (part.parse().ok(), whole.parse().ok());
        part.zip(whole).and_then(|(part, whole)| part.checked_mul(1_000_000)?.checked_div(whole))
    } else {
        None
    };
    let parts = parts.and_then(|parts| u32::try_from(parts).ok()).filter(|parts| *parts <= 1_000_000);
    parts.map(Probability).ok_or_else(|| FaultPlanError::Odds(word.to_owned()))
}

/// Parses a decimal number with at most `places` decimal places, and returns it in units of the last place.
fn decimal(word: &str, places: u32) -> Option<u64> {
    let (whole, fraction) = word.split_once('.').unwrap_or((word, ""));
    let missing = places.checked_sub(u32::try_from(fraction.len()).ok()?)?;
    if whole.is_empty() || !(whole.bytes().chain(fraction.bytes())).all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    format!("{whole}{fraction}").parse::<u64>().ok()?.checked_mul(10_u64.checked_pow(missing)?)
}

/// Parses a time: `200us`, `200ms` or `2s`.
///
/// # Errors
/// [`FaultPlanError::Time`]
pub fn time(word: &str) -> Result<Duration, FaultPlanError> {
    let bad = || FaultPlanError::Time(word.to_owned());
    let digits = word.find(|letter: char| !letter.is_ascii_digit()).ok_or_else(bad)?;
    let (count, unit) = word.split_at_checked(digits).ok_or_else(bad)?;
    let count: u64 = count.parse().map_err(|_| bad())?;
    match unit {
        "us" => Ok(Duration::from_micros(count)),
        "ms" => Ok(Duration::from_millis(count)),
        "s" => Ok(Duration::from_secs(count)),
        _ => Err(bad()),
    }
}

fn number<N: std::str::FromStr>(word: &str) -> Result<N, FaultPlanError> {
    word.parse().map_err(|_| FaultPlanError::Number(word.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_odds_in_every_notation() {
        for (word, parts) in [
            ("1%", 10_000),
            ("0.5%", 5_000),
            ("0.0001%", 1),
            ("100%", 1_000_000),
            ("1/2000", 500),
            ("500ppm", 500),
        ] {
            assert_eq!(odds(word), Ok(Probability(parts)), "{word}");
        }
        for word in ["", "%", "1", "101%", "1/0", "-1%", "0.00001%", "2/1", "x%", ".5%"] {
            assert_eq!(odds(word), Err(FaultPlanError::Odds(word.to_owned())), "{word}");
        }
    }

    #[test]
    fn a_kind_concerns_both_directions_unless_one_is_named() {
        let faults = Faults::parse("data=1%, requests.cut=1/1000,responses.stall=2%:30ms, login").unwrap();
        assert_eq!(
            (faults.requests.corrupt_data, faults.responses.corrupt_data),
            (Probability(10_000), Probability(10_000))
        );
        assert_eq!((faults.requests.cut, faults.responses.cut), (Probability(1000), Probability::NEVER));
        assert_eq!(faults.responses.stall_for, DurationRange::exactly(Duration::from_millis(30)));
        assert!(!faults.requests.spare_login && !faults.responses.spare_login);
        assert_eq!(Faults::parse(""), Ok(Faults::NONE));
    }

    #[test]
    fn tells_what_is_wrong() {
        for (words, error) in [
            ("dat=1%", FaultPlanError::Unknown("dat".into())),
            ("data", FaultPlanError::Missing("data".into())),
            ("upwards.data=1%", FaultPlanError::Unknown("upwards.data".into())),
            ("stall=1%", FaultPlanError::Time("1%".into())),
            ("delay=5", FaultPlanError::Time("5".into())),
            ("rate=fast", FaultPlanError::Number("fast".into())),
        ] {
            assert_eq!(Faults::parse(words), Err(error), "{words}");
        }
    }
}
