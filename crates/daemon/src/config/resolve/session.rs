//! Resolves the parameters and limits of sessions.

use std::time::Duration;

use iscsi::negotiate::{DigestPolicy, KeyPolicy};
use iscsi::target::contract::SessionLimits;
use iscsi::target::engine::Limits;
use security::Level;

use super::super::raw;
use super::super::source_span::{ConfigReport, Located, SourceSpan};
use super::hyperscsi_groups::level;

pub(super) fn resolve(session: &raw::Session, report: &mut ConfigReport) -> KeyPolicy {
    let max_burst_length = length(session.max_burst_length.as_ref());
    let mut first_burst_length = length(session.first_burst_length.as_ref());
    if let (Some(first), Some(_)) = (&session.first_burst_length, &session.max_burst_length)
        && first_burst_length > max_burst_length
    {
        if first.span == SourceSpan::Default {
            first_burst_length = max_burst_length;
        } else {
            report.error(&first.span, "\"first_burst_length\" is more than \"max_burst_length\"");
        }
    }
    let number = |at: &Option<Located<u16>>| at.as_ref().map_or(1, |at| at.value);
    let switch = |at: &Option<Located<bool>>| at.as_ref().is_some_and(|at| at.value);
    KeyPolicy {
        header_digest: policy(session.header_digest.as_ref()),
        data_digest: policy(session.data_digest.as_ref()),
        min_protection: session.protection.as_ref().map_or(Level::None, |at| level(at.value)),
        max_connections: number(&session.max_connections),
        initial_r2t: switch(&session.initial_r2t),
        immediate_data: switch(&session.immediate_data),
        max_recv_data_segment_length: length(session.max_recv_data_segment_length.as_ref()),
        max_burst_length,
        first_burst_length,
        default_time2wait: seconds("time2wait", session.time2wait.as_ref(), report),
        default_time2retain: seconds("time2retain", session.time2retain.as_ref(), report),
        max_outstanding_r2t: number(&session.max_outstanding_r2t),
        data_pdu_in_order: switch(&session.data_pdu_in_order),
        data_sequence_in_order: switch(&session.data_sequence_in_order),
        error_recovery_level: u8::try_from(number(&session.error_recovery_level)).unwrap_or(0),
        // Every value that the engine supports. The order of the initiator's list decides which one is
        // chosen.
        task_reporting: &["FastAbort", "ResponseFence", "RFC3720"],
        ..KeyPolicy::default()
    }
}

/// Resolves the limits of a session, each given on its own. `usual` has the values of those that are not
/// given.
pub(super) fn limits(
    queue_depth: Option<Located<u16>>,
    nop_interval: Option<Located<Duration>>,
    nop_timeout: Option<Located<Duration>>,
    usual: Option<&SessionLimits>,
) -> SessionLimits {
    // At the top level every key has a default, so every value is present there.
    let usual = usual.copied().unwrap_or(Limits::default().of_session());
    let patience = |span: Duration| if span.is_zero() { Duration::MAX } else { span };
    SessionLimits {
        queue_depth: queue_depth.map_or(usual.queue_depth, |at| at.value.into()),
        ping_after: nop_interval.map_or(usual.ping_after, |at| patience(at.value)),
        pong_within: nop_timeout.map_or(usual.pong_within, |at| at.value),
        idle_within: usual.idle_within,
    }
}

fn policy(word: Option<&Located<&'static str>>) -> DigestPolicy {
    match word.map(|at| at.value) {
        Some("require") => DigestPolicy::RequireCrc32c,
        Some("forbid") => DigestPolicy::RequireNone,
        _ => DigestPolicy::PreferCrc32c,
    }
}

fn length(at: Option<&Located<u64>>) -> u32 {
    at.and_then(|at| u32::try_from(at.value).ok()).unwrap_or(0)
}

fn seconds(name: &str, span: Option<&Located<Duration>>, report: &mut ConfigReport) -> u16 {
    let Some(span) = span else { return 0 };
    if span.value.subsec_nanos() != 0 {
        report.error(&span.span, format!("\"{name}\" must be whole seconds"));
    }
    u16::try_from(span.value.as_secs()).unwrap_or(u16::MAX)
}
