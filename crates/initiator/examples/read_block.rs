//! Reads the first block of a disk with futures, on any executor:
//!
//! ```text
//! cargo run --package targe-initiator --example read_block -- iscsi://127.0.0.1/iqn.2026-11.example.targe:disk/0
//! ```

use std::error::Error;

use targe_initiator::client::Client;
use targe_initiator::drivers::config::Config;
use targe_initiator::future::block_on;
use targe_initiator::open::open_disk;
use targe_initiator::url::{EnvSecrets, Url};

fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).ok_or("usage: read_block URL")?;
    let block = block_on(first_block(&url.parse()?))?;
    println!("{} bytes, {} of them zero", block.len(), block.iter().filter(|byte| **byte == 0).count());
    Ok(())
}

/// Reads the first block.
pub(crate) async fn first_block(url: &Url) -> Result<Vec<u8>, Box<dyn Error>> {
    let client = Client::start(&Config::default())?;
    let disk = open_disk(&client, url, &EnvSecrets).await?;
    let data = disk.read(0, usize::try_from(disk.geometry().block_size().bytes())?).await?;
    let mut block = vec![0; data.len()];
    data.copy_to(0, &mut block);
    disk.session().log_out().await?;
    Ok(block)
}
