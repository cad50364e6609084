//! Reads from a LUN, does not wait, and ends what is under way with a task management function:
//!
//! ```text
//! cargo run --package targe-initiator --example manage -- URL abort-task-set|logical-unit-reset
//! ```

use std::time::Duration;

use drivers::config::Config;
use initiator::answer::block_on;
use initiator::client::Client;
use initiator::command::Command;
use initiator::open::open_session;
use initiator::url::{OfProcess, Url};
use iscsi::pdu::tmf_request::TmfFunction;
use scsi::cdb::Cdb;
use scsi::lun::Lun;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, function] = arguments.as_slice() else { return Err("usage: manage URL FUNCTION".into()) };
    let function = match function.as_str() {
        "abort-task-set" => TmfFunction::ABORT_TASK_SET,
        "logical-unit-reset" => TmfFunction::LOGICAL_UNIT_RESET,
        other => return Err(format!("{other}: abort-task-set or logical-unit-reset").into()),
    };
    let client = Client::start(&Config::default())?;
    let session = block_on(open_session(&client, &Url::parse(url)?, &OfProcess))?;
    let lun = Lun(0);
    // READ(10) of eight blocks.
    let read = Cdb::from_16([0x28, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0]);
    session.submit(
        Command::new(lun, read).reading(4096),
        Box::new(|reply| println!("the read: {}", if reply.is_ok() { "answered" } else { "ended" })),
    );
    std::thread::sleep(Duration::from_millis(200));
    let answer = session.manage(function, lun).wait()?;
    println!("the function: {answer:?}");
    let ready = session.run(Command::new(lun, Cdb::from_16([0; 16]))).wait()?;
    println!("TEST UNIT READY: {ready:?}");
    session.log_out().wait()?;
    Ok(())
}
