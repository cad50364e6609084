//! Task management functions and their results (SAM-5 §7), with the numbers of iSCSI. HyperSCSI uses the same
//! numbers.

base::code8! {
    /// A task management function (SAM-5 §7; RFC 7143 §11.5.1, RFC 7144 §6.3).
    pub struct TmfFunction {
        /// Aborts one task of the requester.
        ABORT_TASK = 1;
        /// Aborts the requester's tasks on a logical unit.
        ABORT_TASK_SET = 2;
        /// Ends an auto contingent allegiance.
        CLEAR_ACA = 3;
        /// Aborts the tasks of all initiators on a logical unit.
        CLEAR_TASK_SET = 4;
        /// Resets a logical unit.
        LOGICAL_UNIT_RESET = 5;
        /// Resets every logical unit of the target.
        TARGET_WARM_RESET = 6;
        /// Resets the target and ends every session.
        TARGET_COLD_RESET = 7;
        /// Moves a task to this connection. Only iSCSI has this function, and carries it out itself.
        TASK_REASSIGN = 8;
        /// Asks whether a task exists.
        QUERY_TASK = 9;
        /// Asks whether the requester has a task on a logical unit.
        QUERY_TASK_SET = 10;
        /// Reports a loss of the requester's I_T nexus to the logical unit.
        I_T_NEXUS_RESET = 11;
        /// Asks whether a unit attention is pending.
        QUERY_ASYNCHRONOUS_EVENT = 12;
    }
}

base::code8! {
    /// The result of a task management function (SAM-5 §7.1; RFC 7143 §11.6.1, RFC 7144 §6.4.2).
    pub struct TmfResult {
        /// FUNCTION COMPLETE.
        COMPLETE = 0;
        /// The task does not exist.
        NO_TASK = 1;
        /// The logical unit does not exist.
        NO_LUN = 2;
        /// The task still has allegiance to a connection that works. Only iSCSI returns it.
        STILL_ALLEGIANT = 3;
        /// Tasks cannot be reassigned. Only iSCSI returns it.
        NO_REASSIGNMENT = 4;
        /// The function is not supported.
        NOT_SUPPORTED = 5;
        /// The initiator is not authorized to use the function.
        NOT_AUTHORIZED = 6;
        /// FUNCTION SUCCEEDED: done, and the answer to the query is yes.
        SUCCEEDED = 7;
        /// FUNCTION REJECTED, for any other reason.
        REJECTED = 255;
    }
}
