//! Reads the last block of a disk in an event loop of its own: this thread is the only one, and it waits for
//! one descriptor of the library among others.
//!
//! ```text
//! cargo run --package targe-initiator --example poll_loop -- iscsi://127.0.0.1/iqn.2026-11.example.targe:disk/0
//! ```

use std::error::Error;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use targe_initiator::driver::{Driver, DriverEvent, plan};
use targe_initiator::unstable::scsi::block;
use targe_initiator::{Capacity, Command, EnvSecrets, Event, Lba, Lun, Url};

/// The tokens of the commands for [`Driver::submit`].
const CAPACITY: u64 = 0;
const BLOCK: u64 = 1;

fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).ok_or("usage: poll_loop URL")?;
    let block = last_block(&url.parse()?)?;
    println!("{} bytes, {} of them zero", block.len(), block.iter().filter(|byte| **byte == 0).count());
    Ok(())
}

/// Reads the last block.
pub(crate) fn last_block(url: &Url) -> Result<Vec<u8>, Box<dyn Error>> {
    let mut driver = Driver::new()?;
    let session = driver.open(plan(url, &EnvSecrets)?);
    let lun = Lun::from_number(url.lun).ok_or("no such LUN")?;
    // The command waits until the session is up.
    let question = Command::new(lun, block::read_capacity_16(Capacity::LEN_16)).reading(Capacity::LEN_16);
    driver.submit(session, CAPACITY, question.repeatable());
    let mut block = Vec::new();
    loop {
        let sleep = driver.run_ready()?;
        let mut idle = true;
        while let Some(event) = driver.poll_event() {
            idle = false;
            match event {
                DriverEvent::Finished { token: CAPACITY, result, .. } => {
                    let capacity = Capacity::parse_16(result?.bytes())?;
                    let last = capacity.blocks.0.checked_sub(1).ok_or("the disk is empty")?;
                    let read = Command::new(lun, block::read_16(Lba(last), 1, false));
                    driver.submit(session, BLOCK, read.reading(capacity.block_size.bytes()).repeatable());
                }
                DriverEvent::Finished { result, .. } => {
                    block = result?.bytes().to_vec();
                    driver.log_out(session);
                }
                DriverEvent::Session { event: Event::Down(why), .. } if why.is_given_up() => {
                    return Err(why.into());
                }
                DriverEvent::Session { event: Event::Down(_), .. } => return Ok(block),
                _ => {}
            }
        }
        if idle {
            // A program adds its other descriptors here.
            let sleep = sleep.map(Timespec::try_from).transpose()?;
            poll(&mut [PollFd::new(&driver, PollFlags::IN)], sleep.as_ref())?;
        }
    }
}
