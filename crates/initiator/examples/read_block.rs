//! Reads the first block of a disk with futures, on any executor:
//!
//! ```text
//! cargo run --package targe-initiator --example read_block -- iscsi://127.0.0.1/iqn.2026-11.example.targe:disk/0
//! ```

use targe_initiator::{Disk, Error, block_on};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).ok_or("usage: read_block URL")?;
    let block = block_on(first_block(&url))?;
    println!("{} bytes, {} of them zero", block.len(), block.iter().filter(|byte| **byte == 0).count());
    Ok(())
}

/// Reads the first block.
pub(crate) async fn first_block(url: &str) -> Result<Vec<u8>, Error> {
    let disk = Disk::open(url).await?;
    let mut block = vec![0; disk.block_size()];
    disk.read_at(0, &mut block).await?;
    Ok(block)
}
