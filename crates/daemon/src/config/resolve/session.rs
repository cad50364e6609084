//! What a session may use.

use std::time::Duration;

use super::super::place::{At, Place, Report};
use super::super::value::{DigestPolicy, SessionLimits};
use super::super::wire;

pub(super) fn resolve(session: wire::Session, report: &mut Report) -> SessionLimits {
    let max_burst_length = length(session.max_burst_length.as_ref());
    let mut first_burst_length = length(session.first_burst_length.as_ref());
    if let (Some(first), Some(_)) = (&session.first_burst_length, &session.max_burst_length)
        && first_burst_length > max_burst_length
    {
        if first.place == Place::Default {
            first_burst_length = max_burst_length;
        } else {
            report.mistake(&first.place, "\"first_burst_length\" is more than \"max_burst_length\"");
        }
    }
    SessionLimits {
        header_digest: policy(session.header_digest.as_ref()),
        data_digest: policy(session.data_digest.as_ref()),
        max_recv_data_segment_length: length(session.max_recv_data_segment_length.as_ref()),
        max_burst_length,
        first_burst_length,
        max_outstanding_r2t: session.max_outstanding_r2t.map_or(1, |at| at.value),
        initial_r2t: session.initial_r2t.is_some_and(|at| at.value),
        immediate_data: session.immediate_data.is_some_and(|at| at.value),
        data_pdu_in_order: session.data_pdu_in_order.is_some_and(|at| at.value),
        data_sequence_in_order: session.data_sequence_in_order.is_some_and(|at| at.value),
        max_connections: session.max_connections.map_or(1, |at| at.value),
        error_recovery_level: session
            .error_recovery_level
            .and_then(|at| u8::try_from(at.value).ok())
            .unwrap_or(0),
        time2wait: seconds("time2wait", session.time2wait, report),
        time2retain: seconds("time2retain", session.time2retain, report),
        queue_depth: session.queue_depth.map_or(1, |at| at.value),
        nop_interval: session.nop_interval.map(|at| at.value).filter(|span| !span.is_zero()),
        nop_timeout: session.nop_timeout.map_or(Duration::ZERO, |at| at.value),
    }
}

fn policy(word: Option<&At<&'static str>>) -> DigestPolicy {
    match word.map(|at| at.value) {
        Some("require") => DigestPolicy::Require,
        Some("forbid") => DigestPolicy::Forbid,
        _ => DigestPolicy::Offer,
    }
}

fn length(at: Option<&At<u64>>) -> u32 {
    at.and_then(|at| u32::try_from(at.value).ok()).unwrap_or(0)
}

fn seconds(name: &str, span: Option<At<Duration>>, report: &mut Report) -> u16 {
    let Some(span) = span else { return 0 };
    if span.value.subsec_nanos() != 0 {
        report.mistake(&span.place, format!("\"{name}\" must be whole seconds"));
    }
    u16::try_from(span.value.as_secs()).unwrap_or(u16::MAX)
}
