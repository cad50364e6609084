//! A disk whose logic is these lines: every block shows how often it was written.
//!
//!     cargo run -p targe-backends --example vhost_user_device -- /tmp/counting.sock 131072
//!     targe serve --lun vhost-user-blk:/tmp/counting.sock
//!
//! The second argument is the number of blocks. The first eight bytes of each block of 512 bytes count its
//! writes, most significant byte first. A host can write the rest.

use std::collections::HashMap;
use std::io::{Error, Read, Result, Write};
use std::sync::{Arc, Mutex};

use vhost::vhost_user::Listener;
use vhost::vhost_user::message::{VhostUserProtocolFeatures, VhostUserVirtioFeatures};
use vhost_user_backend::{VhostUserBackendMut, VhostUserDaemon, VringRwLock, VringT};
use virtio_queue::QueueOwnedT as _;
use vm_memory::{GuestAddressSpace, GuestMemoryAtomic, GuestMemoryMmap};
use vmm_sys_util::epoll::EventSet;
use vmm_sys_util::event::{EventConsumer, EventFlag, EventNotifier, new_event_consumer_and_notifier};

type Memory = GuestMemoryAtomic<GuestMemoryMmap>;

const BLOCK: usize = 512;
const VIRTIO_F_VERSION_1: u64 = 1 << 32;
/// The types of requests, and two of their results (VIRTIO 1.2, clause 5.2.6).
const READ: u32 = 0;
const WRITE: u32 = 1;
const OK: u8 = 0;
const UNSUPPORTED: u8 = 2;

/// The disk: the blocks that were written, by number, and the memory of the front end.
struct Counting {
    blocks: HashMap<u64, [u8; BLOCK]>,
    size: u64,
    memory: Memory,
}

impl Counting {
    /// Carries out one request. Returns the result, and appends the data of a read.
    fn execute(&mut self, request: &mut impl Read, data: &mut [u8], out: &mut Vec<u8>) -> Result<u8> {
        let (mut kind, mut rest, mut number) = ([0; 4], [0; 4], [0; 8]);
        request.read_exact(&mut kind)?;
        request.read_exact(&mut rest)?;
        request.read_exact(&mut number)?;
        let number = u64::from_le_bytes(number);
        match u32::from_le_bytes(kind) {
            READ => {
                for (at, place) in (number..).zip(data.chunks_exact_mut(BLOCK)) {
                    place.copy_from_slice(self.blocks.get(&at).unwrap_or(&[0; BLOCK]));
                }
                out.extend_from_slice(data);
            }
            WRITE => {
                let mut bytes = Vec::new();
                request.read_to_end(&mut bytes)?;
                for (at, new) in (number..).zip(bytes.chunks_exact(BLOCK)) {
                    let block = self.blocks.entry(at).or_insert([0; BLOCK]);
                    let count = block.first_chunk().map_or(0, |count| u64::from_be_bytes(*count));
                    block.copy_from_slice(new);
                    block.iter_mut().zip((count + 1).to_be_bytes()).for_each(|(place, byte)| *place = byte);
                }
            }
            _ => return Ok(UNSUPPORTED),
        }
        Ok(OK)
    }
}

impl VhostUserBackendMut for Counting {
    type Bitmap = ();
    type Vring = VringRwLock;

    fn num_queues(&self) -> usize {
        1
    }

    fn max_queue_size(&self) -> usize {
        256
    }

    fn features(&self) -> u64 {
        VIRTIO_F_VERSION_1 | VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits()
    }

    fn protocol_features(&self) -> VhostUserProtocolFeatures {
        VhostUserProtocolFeatures::CONFIG | VhostUserProtocolFeatures::REPLY_ACK
    }

    fn set_event_idx(&mut self, _enabled: bool) {}

    fn update_memory(&mut self, memory: Memory) -> Result<()> {
        self.memory = memory;
        Ok(())
    }

    /// The configuration begins with the number of blocks. This device has nothing else to say.
    fn get_config(&self, offset: u32, size: u32) -> Vec<u8> {
        let config = self.size.to_le_bytes().into_iter().chain(std::iter::repeat(0));
        config.skip(offset as usize).take(size as usize).collect()
    }

    /// Ends the thread of the queue when the front end has left.
    fn exit_event(&self, _: usize) -> Option<(EventConsumer, EventNotifier)> {
        new_event_consumer_and_notifier(EventFlag::NONBLOCK).ok()
    }

    /// Called when the front end has put requests into the queue.
    fn handle_event(&mut self, _: u16, _: EventSet, vrings: &[VringRwLock], _: usize) -> Result<()> {
        let memory = self.memory.memory();
        let Some(vring) = vrings.first() else { return Ok(()) };
        let chains: Vec<_> = {
            let mut state = vring.get_mut();
            state.get_queue_mut().iter(memory.clone()).map_err(Error::other)?.collect()
        };
        for chain in chains {
            let mut reader = chain.clone().reader(&*memory).map_err(Error::other)?;
            let mut writer = chain.clone().writer(&*memory).map_err(Error::other)?;
            let mut data = vec![0; writer.available_bytes().saturating_sub(1)];
            let mut out = Vec::new();
            let result = self.execute(&mut reader, &mut data, &mut out)?;
            out.resize(data.len(), 0);
            out.push(result);
            writer.write_all(&out)?;
            let written = u32::try_from(writer.bytes_written()).map_err(Error::other)?;
            vring.add_used(chain.head_index(), written).map_err(Error::other)?;
        }
        vring.signal_used_queue()
    }
}

/// Serves one front end after the other.
pub(crate) fn serve(socket: &str, size: u64) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let memory = Memory::new(GuestMemoryMmap::new());
    let device = Arc::new(Mutex::new(Counting { blocks: HashMap::new(), size, memory: memory.clone() }));
    let mut listener = Listener::new(socket, true)?;
    loop {
        let name = "counting".to_owned();
        let mut daemon = VhostUserDaemon::new(name, Arc::clone(&device), memory.clone()).map_err(told)?;
        daemon.start(&mut listener).map_err(told)?;
        // The end of the connection is an error, too.
        let _ = daemon.wait();
    }
}

fn told(error: vhost_user_backend::Error) -> String {
    error.to_string()
}

#[allow(dead_code, reason = "a test includes this file")]
fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, socket, size] = arguments.as_slice() else {
        return Err("give a SOCKET and a number of blocks".into());
    };
    serve(socket, size.parse()?)
}
