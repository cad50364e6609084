//! Many sessions at once: each logs in and stays, doing nothing. Tells when all are in, then waits for its
//! standard input to be closed.

use std::io::Read;
use std::time::Instant;

use crate::Failure;
use crate::arguments::Arguments;
use crate::session::Session;

pub(crate) fn run(mut arguments: Arguments) -> Result<(), Failure> {
    let (address, target) = (arguments.word("address")?, arguments.word("target")?);
    let count: u32 = arguments.word("the number of sessions")?.parse()?;
    let began = Instant::now();
    let mut sessions = Vec::new();
    for number in 0..count {
        let name = format!("iqn.2026-11.org.targe:load-{number}");
        sessions.push(Session::log_in(&address, &target, &name, number, false)?);
    }
    println!("{{\"sessions\": {}, \"seconds\": {:.6}}}", sessions.len(), began.elapsed().as_secs_f64());
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
