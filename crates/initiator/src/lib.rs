//! An iSCSI initiator as a library: discover targets, log in, and use their logical units.
//!
//! The protocol is [`iscsi`]'s machine, sockets and timers are [`drivers`]' reactor; this room joins the two and adds
//! what a user of disks wants: URLs, block I/O and any CDB, attentions handled, large I/O cut into what the device
//! takes, lost sessions built anew within limits that the caller sets.
//!
//! ```
//! # fn target() -> String { // A target of ours, which ends with this example.
//! #     let (tell, told) = std::sync::mpsc::channel();
//! #     let folder = std::env::temp_dir().join(format!("targe-initiator-{}", std::process::id()));
//! #     let flags = daemon::config::Flags {
//! #         listen: vec!["127.0.0.1:0".into()], luns: vec!["ram:1M".into()], log: Some("error".into()),
//! #         target: Some("iqn.2001-04.com.example:x".into()), state_dir: Some(folder), ..Default::default()
//! #     };
//! #     std::thread::spawn(move || {
//! #         let around = daemon::config::Surroundings::of_process().unwrap();
//! #         daemon::serve::serve(flags, around, |started| tell.send(started.listening[0]).unwrap()).unwrap();
//! #     });
//! #     told.recv().unwrap().to_string()
//! # }
//! use base::buffer::Bytes;
//! use initiator::answer::block_on;
//! use initiator::client::Client;
//! use initiator::open::open_disk;
//! use initiator::url::{OfProcess, Url};
//! use store::contract::Durability;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let portal = target();
//! let url: Url = format!("iscsi://{portal}/iqn.2001-04.com.example:x/0?timeout=30").parse()?;
//! let client = Client::start(&drivers::config::Config::default())?;
//! // Any executor will do; `block_on` is one for programs without.
//! let data = block_on(async {
//!     let disk = open_disk(&client, &url, &OfProcess).await?;
//!     disk.write(4096, Bytes::copied_from(&[7; 512]).into(), Durability::Stable).await?;
//!     Ok::<_, Box<dyn std::error::Error>>(disk.read(4096, 512).await?)
//! })?;
//! assert_eq!(&*data.parts()[0], [7; 512]);
//! # std::fs::remove_dir_all(std::env::temp_dir().join(format!("targe-initiator-{}", std::process::id())))?;
//! # Ok(())
//! # }
//! ```
//!
//! [`driver::Driver`] does the same in a loop of the caller's: a descriptor to wait for, and `advance`.
//!
//! **Invariant:** knows nothing of the kernel's block layer, of command lines, and of how to print.
#![forbid(unsafe_code)]

pub mod answer;
pub mod client;
pub mod command;
pub mod discover;
pub mod disk;
pub mod down;
pub mod driver;
pub mod identity;
pub mod login;
pub mod neighbours;
pub mod open;
pub mod running;
pub mod sessions;
pub mod unit;
pub mod url;

mod care;
mod carrier;
