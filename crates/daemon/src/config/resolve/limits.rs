//! Resolves limits of operations and bytes per second.

use std::time::Duration;

use device::rate_limit::RateLimit;

use super::super::raw;
use super::super::source_span::{ConfigReport, SourceSpan};

/// Resolves the limits of a LUN or of initiators.
pub(super) fn rate_limit(written: &raw::Limit, report: &mut ConfigReport) -> RateLimit {
    let limit = RateLimit {
        iops: written.iops.as_ref().map_or(0, |at| at.value),
        bandwidth: written.bandwidth.as_ref().map_or(0, |at| at.value),
        burst: written.burst.as_ref().map_or(Duration::ZERO, |at| at.value),
    };
    match written.burst.as_ref().filter(|at| limit.is_none() && at.span != SourceSpan::Default) {
        Some(at) => {
            report.warn(
                &at.span,
                "\"limit_burst\" has no effect without \"limit_iops\" or \"limit_bandwidth\"",
            );
            RateLimit::NONE
        }
        None if limit.is_none() => RateLimit::NONE,
        None => limit,
    }
}
