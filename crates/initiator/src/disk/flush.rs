//! Makes acknowledged writes durable.
//!
//! A unit without SYNCHRONIZE CACHE has nothing to synchronize, unless its caching mode page says that it
//! has a volatile cache: then a flush fails.

use std::sync::Arc;

use base::buffer::DataList;
use scsi::block;
use scsi::mode::HeaderFormat;
use scsi::sense::{Asc, SenseKey};
use store::api::OpOutput;

use super::Inner;
use crate::command::{Command, CommandError, Reply};
use crate::error::Error;
use crate::unit::{CACHING_LEN, caching_question, is_illegal, write_cache};

/// Receives the result of an operation.
pub(super) type Done = Box<dyn FnOnce(Result<OpOutput, Error>) + Send>;

/// Flushes the cache, if `needed`. Returns `data` to the caller.
pub(super) fn flush_if(inner: &Arc<Inner>, needed: bool, data: DataList, done: Done) {
    if !needed {
        return done(Ok(OpOutput::Done(data)));
    }
    let owner = Arc::clone(inner);
    synchronize(
        inner,
        Box::new(move |result| {
            let done = move |result: Result<(), CommandError>| {
                done(result.map(|()| OpOutput::Done(data)).map_err(Error::Command));
            };
            match result {
                Err(why) if is_absent(&why) => check_cache(&owner, HeaderFormat::Six, why, Box::new(done)),
                result => done(result),
            }
        }),
    );
}

type End = Box<dyn FnOnce(Result<(), CommandError>) + Send>;

/// Sends SYNCHRONIZE CACHE(10), or (16) to a unit that does not have the former.
fn synchronize(inner: &Arc<Inner>, end: End) {
    let command = |cdb| Command::new(inner.lun, cdb).repeatable();
    let long = command(block::synchronize_cache_16());
    let owner = Arc::clone(inner);
    inner.session.submit(command(block::synchronize_cache_10()), move |result| match result {
        Err(why) if is_absent(&why) => owner.session.submit(long, move |result| end(result.map(drop))),
        result => end(result.map(drop)),
    });
}

/// Ends a flush of a unit that has no SYNCHRONIZE CACHE. It failed, with `why`, if the unit has a volatile
/// cache.
fn check_cache(inner: &Arc<Inner>, form: HeaderFormat, why: CommandError, end: End) {
    let len = CACHING_LEN.into();
    let question = Command::new(inner.lun, caching_question(form)).reading(len).repeatable();
    let owner = Arc::clone(inner);
    inner.session.submit(question, move |result: Result<Reply, CommandError>| match result {
        Ok(reply) if write_cache(form, reply.bytes()) == Some(true) => end(Err(why)),
        Ok(_) => end(Ok(())),
        Err(refused) if is_illegal(&refused) => match form {
            HeaderFormat::Six => check_cache(&owner, HeaderFormat::Ten, why, end),
            HeaderFormat::Ten => end(Ok(())),
        },
        Err(other) => end(Err(other)),
    });
}

/// Returns whether the unit reports that it does not have the command.
fn is_absent(error: &CommandError) -> bool {
    error.sense().is_some_and(|sense| {
        sense.key == SenseKey::ILLEGAL_REQUEST && sense.asc == Asc::INVALID_COMMAND_OPERATION_CODE
    })
}
