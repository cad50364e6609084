//! Task management: functions that are requests of their own, and exchanges that initiators give up.
//!
//! A function names the exchange before it in AFTER, so the function is submitted to the layer above when
//! every task that it may affect was submitted. Every task that it ends gets a response or an Abort message,
//! which says that none follows. So the function's own response need not fence other responses.
//!
//! No function waits for memory. A command that waits for memory for its Data-In is unknown to the layer
//! above, so the transport ends it: ABORT TASK gives it up, and a function that ends many tasks ends it with
//! BUSY before that function is submitted.

use base::arena::Key;
use base::time::Instant;
use transport::target::{SessionId, TaskRef, TmfIndication, TmfRef};
use transport::task_management::{TmfFunction, TmfResult};

use super::contract::Event;
use super::engine::Engine;
use super::exchange::{Exchange, Holder, RequestState, TaskResult};
use crate::exchange::xid::PnSpace;
use crate::pdu::abort::AbortResult;
use crate::pdu::command::Manage as Request;
use security::Level;

impl Engine {
    /// Refuses a task management function whose request has too little protection. `short`: the request has
    /// less protection than its logical unit demands.
    pub(super) fn judge_manage(&mut self, key: Key, short: bool) {
        let Some(exchange) = self.exchanges.get(key) else { return };
        let RequestState::Manage(manage, _) = &exchange.request else { return };
        let Some(session) = self.sessions.get(exchange.session) else { return };
        let refused = match manage.function {
            // These functions concern the whole nexus, or more.
            TmfFunction::TARGET_WARM_RESET
            | TmfFunction::TARGET_COLD_RESET
            | TmfFunction::I_T_NEXUS_RESET => session.keyed && exchange.level == Level::None,
            TmfFunction::ABORT_TASK | TmfFunction::QUERY_TASK => {
                let of = PnSpace::of(manage.referenced);
                of == PnSpace::Sealed && exchange.level == Level::None || short
            }
            _ => short,
        };
        if refused {
            self.stats.refused_level += 1;
            self.fail_in_order(key, TaskResult::Managed(TmfResult::NOT_AUTHORIZED));
        }
    }

    /// Submits a function to the layer above when its turn is reached.
    pub(super) fn submit_tmf(&mut self, session: Key, key: Key) {
        let Some(exchange) = self.exchanges.get(key) else { return };
        let RequestState::Manage(manage, _) = exchange.request else { return };
        let task = match manage.function {
            TmfFunction::ABORT_TASK | TmfFunction::QUERY_TASK => {
                match self.referenced(session, key, &manage) {
                    Ok(task) => Some(task),
                    Err(result) => return self.fail_at_once(key, TaskResult::Managed(result)),
                }
            }
            TmfFunction::ABORT_TASK_SET
            | TmfFunction::CLEAR_ACA
            | TmfFunction::CLEAR_TASK_SET
            | TmfFunction::LOGICAL_UNIT_RESET
            | TmfFunction::TARGET_WARM_RESET
            | TmfFunction::TARGET_COLD_RESET
            | TmfFunction::I_T_NEXUS_RESET
            | TmfFunction::QUERY_ASYNCHRONOUS_EVENT => None,
            // The layer above does not know the commands that wait for memory.
            TmfFunction::QUERY_TASK_SET if self.has_memory_waiters(session, manage.lun) => {
                return self.fail_at_once(key, TaskResult::Managed(TmfResult::SUCCEEDED));
            }
            TmfFunction::QUERY_TASK_SET => None,
            _ => return self.fail_at_once(key, TaskResult::Managed(TmfResult::NOT_SUPPORTED)),
        };
        self.end_memory_waiters(session, &manage);
        self.push_tmf_event(session, key, manage, task);
    }

    fn has_memory_waiters(&self, session: Key, lun: u64) -> bool {
        self.sessions.get(session).is_some_and(|state| state.memory_waiters.contains(lun))
    }

    /// Ends the commands that wait for memory and that a function affects. The function may be refused, so
    /// they get a response that is true in any case.
    fn end_memory_waiters(&mut self, session: Key, manage: &Request) {
        let Some(state) = self.sessions.get_mut(session) else { return };
        let ended = state.memory_waiters.take(|lun| match manage.function {
            TmfFunction::ABORT_TASK_SET | TmfFunction::CLEAR_TASK_SET | TmfFunction::LOGICAL_UNIT_RESET => {
                lun == manage.lun
            }
            TmfFunction::TARGET_WARM_RESET
            | TmfFunction::TARGET_COLD_RESET
            | TmfFunction::I_T_NEXUS_RESET => true,
            _ => false,
        });
        for exchange in ended {
            self.stats.busy += 1;
            self.fail_at_once(exchange, TaskResult::busy());
        }
    }

    fn push_tmf_event(&mut self, session: Key, key: Key, manage: Request, task: Option<Key>) {
        if let Some(exchange) = self.exchanges.get_mut(key) {
            exchange.holder = Holder::DeviceServer;
            exchange.request = RequestState::Manage(manage, task);
            self.events.push_back(Event::Tmf(TmfIndication {
                tmf: TmfRef(key),
                session: SessionId(session),
                function: manage.function,
                lun: manage.lun,
                task: task.map(TaskRef),
            }));
        }
    }

    /// Returns the task that ABORT TASK or QUERY TASK names; or the result of the function, if the layer
    /// above does not own that task.
    fn referenced(&mut self, session: Key, key: Key, manage: &Request) -> Result<Key, TmfResult> {
        let is_abort = manage.function == TmfFunction::ABORT_TASK;
        let none = if is_abort { TmfResult::NO_TASK } else { TmfResult::COMPLETE };
        let state = self.sessions.get(session).ok_or(none)?;
        let task = state
            .table(PnSpace::of(manage.referenced))
            .find(&self.exchanges, manage.referenced)
            .ok_or(none)?;
        let level = self.exchanges.get(key).map_or(Level::None, |exchange| exchange.level);
        let exchange = self.exchanges.get(task).filter(|exchange| exchange.result.is_none()).ok_or(none)?;
        if level < exchange.level {
            return Err(TmfResult::NOT_AUTHORIZED);
        }
        match (exchange.holder, &exchange.request) {
            (Holder::DeviceServer, RequestState::Started) => Ok(task),
            // This exchange waits for memory, or it is behind the function.
            (Holder::Session | Holder::OrphanData, _) if is_abort => {
                self.fail_at_once(task, TaskResult::GivenUp(AbortResult::NEVER_BEGUN));
                Err(TmfResult::COMPLETE)
            }
            (Holder::Session, _) => Err(TmfResult::SUCCEEDED),
            _ => Err(none),
        }
    }

    /// Gives up an exchange whose request was received.
    pub(super) fn give_up_known(&mut self, now: Instant, session: Key, key: Key) {
        let Some(exchange) = self.exchanges.get(key).filter(|exchange| exchange.result.is_none()) else {
            return;
        };
        match (exchange.holder, &exchange.request) {
            (Holder::DeviceServer, RequestState::Started) => {
                let wished = self.sessions.get(session).is_some_and(|state| {
                    state.wishes.iter().filter_map(|wish| self.exchanges.get(*wish)).any(
                        |wish| matches!(wish.request, RequestState::Manage(_, Some(task)) if task == key),
                    )
                });
                if wished {
                    return;
                }
                let (class, xid, level) = (exchange.class, exchange.xid, exchange.level);
                let wish =
                    self.exchanges.insert_with(|_| Exchange::new(session, (class, None, xid), level, now));
                if let Some(state) = self.sessions.get_mut(session) {
                    state.wishes.push(wish);
                    state.tasks += 1;
                }
                let request =
                    Request { function: TmfFunction::ABORT_TASK, lun: 0, after: 0, referenced: xid };
                self.stats.management += 1;
                self.push_tmf_event(session, wish, request, Some(key));
            }
            // A task management function is not aborted.
            (Holder::DeviceServer, _) => {}
            (Holder::OrphanData | Holder::Session | Holder::Finished, _) => {
                self.fail_at_once(key, TaskResult::GivenUp(AbortResult::NEVER_BEGUN));
            }
        }
    }
}
