//! A filter that makes a medium read-only.

use alloc::collections::VecDeque;

use crate::api::{Capabilities, Completion, Fault, Op, Space, Store};

/// A medium that refuses every change.
#[derive(Debug)]
pub struct ReadOnly<S> {
    inner: S,
    refused: VecDeque<Completion>,
}

impl<S: Store> ReadOnly<S> {
    /// Wraps `inner`.
    pub const fn new(inner: S) -> Self {
        Self { inner, refused: VecDeque::new() }
    }
}

impl<S: Store> Store for ReadOnly<S> {
    fn capabilities(&self) -> Capabilities {
        Capabilities { read_only: true, volatile_cache: false, ..self.inner.capabilities() }
    }

    fn space(&self) -> Option<Space> {
        self.inner.space()
    }

    fn is_away(&self) -> bool {
        self.inner.is_away()
    }

    fn keeps_changes(&self) -> bool {
        self.inner.keeps_changes()
    }

    fn submit(&mut self, op: Op) {
        if op.action.is_change() {
            self.refused.push_back(Completion { id: op.id, result: Err(Fault::ReadOnly.into()) });
        } else {
            self.inner.submit(op);
        }
    }

    fn poll(&mut self) -> Option<Completion> {
        self.refused.pop_front().or_else(|| self.inner.poll())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{Durability, OpAction, OpId, OpOutput};
    use crate::ram::Ram;
    use base::buffer::Bytes;

    struct Away(Ram);

    impl Store for Away {
        fn capabilities(&self) -> Capabilities {
            self.0.capabilities()
        }

        fn is_away(&self) -> bool {
            true
        }

        fn keeps_changes(&self) -> bool {
            true
        }

        fn submit(&mut self, op: Op) {
            self.0.submit(op);
        }

        fn poll(&mut self) -> Option<Completion> {
            self.0.poll()
        }
    }

    #[test]
    fn every_filter_passes_on_that_the_medium_is_away_and_that_it_keeps_changes() {
        let away = || Away(Ram::new(4096));
        let boxed: alloc::boxed::Box<dyn Store> = alloc::boxed::Box::new(away());
        assert!(boxed.is_away() && boxed.keeps_changes());
        let read_only = ReadOnly::new(boxed);
        assert!(read_only.is_away() && read_only.keeps_changes());
        let injector = crate::fault_inject::FaultInjector::new(away(), 0).0;
        assert!(injector.is_away() && injector.keeps_changes());
        let present = ReadOnly::new(Ram::new(4096));
        assert!(!present.is_away() && !present.keeps_changes());
    }

    #[test]
    fn reads_pass_and_changes_do_not() {
        let mut store = ReadOnly::new(Ram::new(4096));
        assert!(store.capabilities().read_only);
        let data = Bytes::copied_from(b"x").into();
        let durability = Durability::Cached;
        let changes = [
            OpAction::Write { at: 0, data, durability },
            OpAction::Deallocate { at: 0, len: 1 },
            OpAction::WriteZeroes { at: 0, len: 1, may_deallocate: true, durability },
        ];
        for action in changes {
            store.submit(Op { id: OpId(1), action });
            assert_eq!(store.poll().unwrap().result.unwrap_err().fault, Fault::ReadOnly);
        }
        store.submit(Op { id: OpId(2), action: OpAction::Read { at: 0, len: 1 } });
        assert!(matches!(store.poll().unwrap().result, Ok(OpOutput::Data(_))));
        store.submit(Op { id: OpId(3), action: OpAction::Flush });
        assert!(store.poll().unwrap().result.is_ok());
    }
}
