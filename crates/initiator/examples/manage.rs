//! Sends task management functions and negotiates keys, which block I/O does not do:
//!
//! ```text
//! cargo run --package targe-initiator --example manage -- URL abort-task            # end a read that is under way
//! cargo run --package targe-initiator --example manage -- URL abort-task-set        # the same with a function for all
//! cargo run --package targe-initiator --example manage -- URL logical-unit-reset
//! cargo run --package targe-initiator --example manage -- URL negotiate KEY=VALUE   # while the session is up
//! cargo run --package targe-initiator --example manage -- URL idle SECONDS          # read, and then nothing
//! ```

use std::error::Error;
use std::time::Duration;

use targe_initiator::{Cdb, Client, Command, Lun, Session, TmfFunction, block_on};

const USAGE: &str =
    "usage: manage URL abort-task|abort-task-set|logical-unit-reset|negotiate KEY=VALUE|idle SECONDS";
const LUN: Lun = Lun(0);

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let [url, what @ ..] = arguments.as_slice() else { return Err(USAGE.into()) };
    let session = block_on(Client::new()?.log_in(*url))?;
    match what {
        ["abort-task"] => abort_one(&session)?,
        ["abort-task-set"] => manage(&session, TmfFunction::ABORT_TASK_SET)?,
        ["logical-unit-reset"] => manage(&session, TmfFunction::LOGICAL_UNIT_RESET)?,
        ["negotiate", pair] => {
            let pair = pair.split_once('=').ok_or(USAGE)?;
            match session.negotiate(None, &[pair]).wait() {
                Ok(answer) => println!("the target answers: {answer:?}"),
                Err(why) => println!("nothing was agreed on: {why}"),
            }
            session.run(read()).wait()?;
        }
        ["idle", seconds] => {
            session.run(read()).wait()?;
            std::thread::sleep(Duration::from_secs(seconds.parse()?));
        }
        _ => return Err(USAGE.into()),
    }
    let ready = session.run(Command::new(LUN, Cdb::from_16([0; 16]))).wait()?;
    println!("TEST UNIT READY: {ready:?}");
    session.log_out().wait()?;
    Ok(())
}

/// Returns a READ(10) of eight blocks.
fn read() -> Command {
    Command::new(LUN, Cdb::from_16([0x28, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0])).reading(4096)
}

fn abort_one(session: &Session) -> Result<(), Box<dyn Error>> {
    let running = session.start_command(read());
    std::thread::sleep(Duration::from_millis(200));
    println!("the abort: {:?}", running.abort().wait()?);
    println!("the read: {:?}", running.wait().map(|reply| reply.bytes().len()));
    Ok(())
}

fn manage(session: &Session, function: TmfFunction) -> Result<(), Box<dyn Error>> {
    let told =
        |reply: Result<_, _>| println!("the read: {}", if reply.is_ok() { "answered" } else { "ended" });
    session.submit(read(), move |reply| told(reply.map(drop).map_err(drop)));
    std::thread::sleep(Duration::from_millis(200));
    println!("the function: {:?}", session.submit_tmf(function, LUN).wait()?);
    Ok(())
}
