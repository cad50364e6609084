//! The tables of all levels and both roles, as text.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::*;
use crate::initiator::protocol_error::RejectText;
use crate::keys::Key;
use crate::login::LoginError;
use crate::negotiate::full_feature::TextNegotiationError;
use crate::pdu::Malformed;
use crate::text::BadText;

/// Lists the variants of an error. A new variant does not compile until it is listed.
macro_rules! every {
    ($error:ty { $($variant:ident $(($content:expr))?,)* }) => {{
        type Error = $error;
        const fn is_listed(why: Error) {
            match why { $(Error::$variant { .. } => {})* }
        }
        let every = [$(Error::$variant $(($content))?),*];
        every.into_iter().for_each(is_listed);
        every
    }};
}

fn initiator_faults() -> impl Iterator<Item = InitiatorFault> {
    every!(InitiatorFault {
        HeaderDigestMismatch,
        DataDigestMismatch,
        DataOutDigestMismatch,
        RefusedDataOutDigestMismatch,
        PdusModified,
        DataSegmentTooLong,
        Malformed(MALFORMED),
        AhsNotAllowed,
        DataNotAllowed,
        NotALogin,
        LoginAfterLogin,
        TargetPdu,
        UnknownOpcode,
        NotInDiscovery,
        SnackWithoutRecovery,
        AfterLogout,
        LoginTooSlow,
        PingUnanswered,
        DataTooSlow,
        LogoutTooSlow,
        AnswersUnread,
        CmdSnOutsideWindow,
        DuplicateCmdSn,
        CmdSnHole,
        TaskTagInUse,
        ReservedTaskTag,
        TooManyImmediate,
        BidirectionalWithoutLength,
        ImmediateDataNotNegotiated,
        ImmediateDataWithoutWrite,
        UnsolicitedNotNegotiated,
        UnsolicitedBeyondLimit,
        NotEnoughUnsolicited,
        UnsolicitedNotExpected,
        DataOutUnknownTag,
        DataOutOtherLun,
        DataOutOtherConnection,
        DataSnOutOfOrder,
        DataOutOffset,
        DataOutBeyondR2t,
        DataOutShort,
        SnackUnknownTask,
        SnackNotSent,
        SnackUnserved,
        SnackUnservedAfterStatus,
        SnackIllegal,
        DataAckUnknown,
        Text(TEXT),
        Login(LOGIN),
        NoRoom,
        Bug,
    })
    .into_iter()
}

fn target_faults() -> impl Iterator<Item = TargetFault> {
    every!(TargetFault {
        HeaderDigestMismatch,
        DataDigestMismatch,
        PdusModified,
        DataSegmentTooLong,
        Malformed(MALFORMED),
        AhsNotAllowed,
        DataNotAllowed,
        NotALogin,
        LoginAfterLogin,
        InitiatorPdu,
        UnknownOpcode,
        PingUnanswered,
        CommandLost,
        NotRepaired,
        StatSnOutOfOrder,
        StatSnFarAhead,
        UnknownTask,
        OtherConnection,
        OtherAnswer,
        DataInNotExpected,
        DataInBeyondBuffer,
        DataInOffset,
        DataSnOutOfOrder,
        DataSnBeyondEnd,
        DataInScattered,
        DataInShort,
        DataInOtherLun,
        R2tNotExpected,
        R2tOtherLun,
        R2tBeyondData,
        R2tBeyondBurst,
        R2tSnOutOfOrder,
        R2tOffset,
        TooManyR2ts,
        R2tReservedTag,
        BadSense,
        TextNegotiation(TEXT),
        Text(BAD_TEXT),
        TextKeyTwice,
        TextNotExpected,
        RejectWithoutHeader,
        CommandDamaged,
        Rejected(RejectText(RejectReason::PROTOCOL_ERROR)),
        NotRecoverable,
        AnswersUnread,
        Bug,
    })
    .into_iter()
}

/// Prints one line for each response to an error, with the levels that give it.
fn rows<Fault: Copy + core::fmt::Debug>(
    role: &str,
    faults: impl Iterator<Item = Fault>,
    response: impl Fn(RecoveryLevel, Fault) -> String,
) -> String {
    let mut out = String::new();
    for why in faults {
        let name = format!("{why:?}");
        let name = name.split('(').next().unwrap_or_default();
        let mut answers: Vec<(String, String)> = Vec::new();
        for level in RecoveryLevel::ALL {
            let answer = response(level, why);
            match answers.iter_mut().find(|(known, _)| *known == answer) {
                Some((_, levels)) => *levels += &format!(" {}", level.number()),
                None => answers.push((answer, format!("{}", level.number()))),
            }
        }
        for (answer, levels) in answers {
            out += &format!("{role}, level {levels:<5}  {name:<30} {answer}\n");
        }
    }
    out
}

fn target_row(level: RecoveryLevel, why: InitiatorFault) -> String {
    let TargetResponse { reject, action } = target_response(level, why);
    match reject {
        Some(reason) => format!("Reject ({}), {action:?}", RejectText(reason)),
        None => format!("{action:?}"),
    }
}

/// A question of [`RecoveryLevel`].
type Question = (&'static str, fn(RecoveryLevel) -> bool);

const QUESTIONS: [Question; 8] = [
    ("requests_missing_pdus", RecoveryLevel::requests_missing_pdus),
    ("serves_snacks", RecoveryLevel::serves_snacks),
    ("retains_statuses", RecoveryLevel::retains_statuses),
    ("retains_data", RecoveryLevel::retains_data),
    ("retries_commands", RecoveryLevel::retries_commands),
    ("may_receive_twice", RecoveryLevel::may_receive_twice),
    ("skips_damaged_headers", RecoveryLevel::skips_damaged_headers),
    ("reassigns_tasks", RecoveryLevel::reassigns_tasks),
];

#[test]
fn the_responses_are_those_of_the_committed_table() {
    let mut table = String::from(LEGEND);
    table += &rows("target", initiator_faults(), target_row);
    table.push('\n');
    table +=
        &rows("initiator", target_faults(), |level, why| format!("{:?}", initiator_response(level, why)));
    table.push('\n');
    for (name, question) in QUESTIONS {
        let answers = RecoveryLevel::ALL.map(|level| if question(level) { "yes" } else { "no" });
        table += &format!("{name}: {}\n", answers.join(", "));
    }
    let committed = include_str!("responses.snap");
    let lost = committed.lines().filter(|line| !table.lines().any(|now| now == *line));
    let gained = table.lines().filter(|line| !committed.lines().any(|old| old == *line));
    let changes: Vec<_> =
        lost.map(|line| format!("- {line}")).chain(gained.map(|line| format!("+ {line}"))).collect();
    assert!(
        table == committed,
        "{LEGEND}\nThe committed table, crates/iscsi/src/recovery/responses.snap, differs:\n{}\n\nThe table is now:\n{table}",
        changes.join("\n"),
    );
}

/// What each response means for a host.
const LEGEND: &str = "\
# The response of each role to each rule that the other one broke, by ErrorRecoveryLevel (RFC 7143 section 7).
#
# target:    Nothing         The PDU is ignored, but for the Reject.
#            FailTask        The command ends with CHECK CONDITION, ABORTED COMMAND; the host retries it.
#            RequestAgain    A recovery R2T asks for the data again; the host notices nothing.
#            DropConnection  The connection closes. Its tasks end; at level 2 they can be reassigned.
#            EndSession      All connections close, and all tasks end.
# initiator: RequestMissing  A SNACK asks for the PDU again; the host notices nothing.
#            RetryCommand    The command is sent again under its CmdSN; the host notices nothing.
#            DropConnection  The connection closes. The session ends with it; at level 2 its tasks are reassigned.
#            EndSession      All connections close; what was sent ends as lost, unless it may be repeated.

";

/// The errors that are found with the task that they concern.
fn concerns_a_task(why: InitiatorFault) -> bool {
    matches!(
        why,
        InitiatorFault::DataOutDigestMismatch
            | InitiatorFault::RefusedDataOutDigestMismatch
            | InitiatorFault::ImmediateDataNotNegotiated
            | InitiatorFault::ImmediateDataWithoutWrite
            | InitiatorFault::UnsolicitedNotNegotiated
            | InitiatorFault::UnsolicitedBeyondLimit
            | InitiatorFault::NotEnoughUnsolicited
            | InitiatorFault::UnsolicitedNotExpected
            | InitiatorFault::DataOutUnknownTag
            | InitiatorFault::DataOutOtherLun
            | InitiatorFault::DataSnOutOfOrder
            | InitiatorFault::DataOutOffset
            | InitiatorFault::DataOutBeyondR2t
            | InitiatorFault::DataOutShort
            | InitiatorFault::SnackUnserved
    )
}

#[test]
fn a_target_fails_or_repairs_tasks_only_where_it_knows_the_task() {
    for level in RecoveryLevel::ALL {
        for why in initiator_faults().filter(|why| !concerns_a_task(*why)) {
            let action = target_response(level, why).action;
            let needs_task = matches!(action, TargetAction::FailTask(_) | TargetAction::RequestAgain(_));
            assert!(!needs_task, "{level:?} {why:?}: {action:?}, but of which task?");
        }
    }
}

#[test]
fn nothing_is_rejected_where_no_pdu_is_at_hand() {
    // Errors of the stream and of timers, and those of a login, which has responses of its own.
    for level in RecoveryLevel::ALL {
        for why in [
            InitiatorFault::HeaderDigestMismatch,
            InitiatorFault::DataSegmentTooLong,
            InitiatorFault::NotALogin,
            InitiatorFault::LoginTooSlow,
            InitiatorFault::Login(LOGIN),
            InitiatorFault::PingUnanswered,
            InitiatorFault::LogoutTooSlow,
            InitiatorFault::DataTooSlow,
            InitiatorFault::AnswersUnread,
            InitiatorFault::CmdSnHole,
            InitiatorFault::Bug,
        ] {
            let response = target_response(level, why);
            assert_eq!(response.reject, None, "{level:?} {why:?}");
            assert!(
                matches!(response.action, TargetAction::DropConnection | TargetAction::EndSession),
                "{level:?} {why:?}"
            );
        }
        assert_eq!(target_response(level, InitiatorFault::CmdSnHole).action, TargetAction::EndSession);
    }
}

#[test]
fn an_initiator_repairs_only_losses_that_it_can_ask_for() {
    for level in RecoveryLevel::ALL {
        for why in target_faults() {
            let can = match initiator_response(level, why) {
                InitiatorAction::RequestMissing => matches!(
                    why,
                    TargetFault::DataDigestMismatch
                        | TargetFault::StatSnOutOfOrder
                        | TargetFault::DataSnOutOfOrder
                        | TargetFault::R2tSnOutOfOrder
                ),
                InitiatorAction::RetryCommand => {
                    matches!(why, TargetFault::CommandLost | TargetFault::CommandDamaged)
                }
                InitiatorAction::DropConnection | InitiatorAction::EndSession => true,
            };
            assert!(can, "{level:?} {why:?}");
        }
    }
}

#[test]
fn each_level_has_what_the_level_below_has() {
    for (name, question) in QUESTIONS {
        for pair in RecoveryLevel::ALL.windows(2) {
            assert!(!question(pair[0]) || question(pair[1]), "{name} {pair:?}");
        }
    }
}

#[test]
fn a_level_is_the_number_that_was_agreed() {
    for (number, level) in (0..).zip(RecoveryLevel::ALL) {
        assert_eq!(RecoveryLevel::new(number), level);
        assert_eq!(u32::from(level.number()), number);
    }
    let key = Key::ErrorRecoveryLevel;
    assert_eq!(RecoveryLevel::default().number(), 0, "{}: the default of §13.20", key.name());
}

const MALFORMED: Malformed = Malformed::OtherOpcode;
const TEXT: TextNegotiationError = TextNegotiationError::TooLong;
const BAD_TEXT: BadText = BadText::NoEquals;
const LOGIN: LoginError = LoginError::TooSlow;
