//! Runs several operations as one.

use std::sync::{Arc, Mutex, PoisonError};

use base::buffer::DataList;
use store::api::{Failure, OpAction, OpOutput};
use store::shared::{OnComplete, SharedStore};

/// The callback for several operations. It receives their results in the order of the operations, or the
/// failure of the first operation that failed.
pub(crate) type Gathered = Box<dyn FnOnce(Result<Vec<OpOutput>, Failure>) + Send>;

/// Starts all `operations`, and passes their results to `done` once all are completed.
pub(crate) fn join_all(
    operations: impl ExactSizeIterator<Item = (Arc<dyn SharedStore>, OpAction)>,
    done: Gathered,
) {
    let count = operations.len();
    if count == 0 {
        return done(Ok(Vec::new()));
    }
    let mut results = Vec::new();
    results.resize_with(count, || Ok(OpOutput::Done(DataList::new())));
    let rest = Arc::new(Mutex::new(Rest { left: count, results, done: Some(done) }));
    for (index, (store, action)) in operations.enumerate() {
        let rest = Arc::clone(&rest);
        store.submit(action, Box::new(move |result| Rest::arrived(&rest, index, result)));
    }
}

/// Returns a callback that reports only whether all operations succeeded.
pub(crate) fn finish(done: OnComplete) -> Gathered {
    Box::new(move |results| done(results.map(|_| OpOutput::Done(DataList::new()))))
}

/// Joins lists of data into one.
pub(crate) fn joined(lists: impl IntoIterator<Item = DataList>) -> DataList {
    let mut whole = DataList::new();
    for part in lists.into_iter().flat_map(DataList::into_parts) {
        whole.push(part);
    }
    whole
}

/// Returns the data of a read.
pub(crate) fn data(outcome: OpOutput) -> DataList {
    match outcome {
        OpOutput::Data(data) => data,
        OpOutput::Done(_) | OpOutput::MapStatus(_) | OpOutput::Response(_) => DataList::new(),
    }
}

/// The operations that are not completed yet, and the results so far.
struct Rest {
    left: usize,
    results: Vec<Result<OpOutput, Failure>>,
    done: Option<Gathered>,
}

impl Rest {
    fn arrived(rest: &Mutex<Self>, index: usize, result: Result<OpOutput, Failure>) {
        // No thread panics while it holds this lock.
        let mut rest = rest.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = rest.results.get_mut(index) {
            *slot = result;
        }
        rest.left = rest.left.saturating_sub(1);
        if rest.left > 0 {
            return;
        }
        let results = std::mem::take(&mut rest.results);
        let done = rest.done.take();
        drop(rest);
        if let Some(done) = done {
            done(results.into_iter().collect());
        }
    }
}
