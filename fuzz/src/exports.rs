//! Connections to NBD servers that move to another process.

use base::buffer::{Bytes, Pool};
use base::time::{Duration, Instant};
use base::transmit::Transmit;
use nbd::client::{Client, ClientConfig};
use nbd::handshake::{CHANGE_LEN_MAX, ExportInfo};
use store::api::{Durability, Op, OpAction, OpId};

/// What was negotiated for the connections to NBD servers of a document.
pub const EXPORTS: [ExportInfo; 2] = [
    ExportInfo {
        len: 1 << 30,
        flags: 0x6d,
        block_len: 512,
        preferred_block_len: 4096,
        payload_len_max: 32 << 20,
        change_len_max: CHANGE_LEN_MAX,
        structured: true,
        allocation_id: Some(1),
    },
    ExportInfo {
        len: 1 << 20,
        flags: 1,
        block_len: 1,
        preferred_block_len: 4096,
        payload_len_max: 1 << 20,
        change_len_max: CHANGE_LEN_MAX,
        structured: false,
        allocation_id: None,
    },
];

/// Lets a client go on with a connection for which this was negotiated, and use both ends of the export.
pub fn go_on(info: ExportInfo) {
    let block_len = info.block_len.max(512);
    let config =
        ClientConfig { patience: Some(Duration::from_secs(30)), write_cache: true, read_only: false, block_len };
    let pool = Pool::new(1 << 20);
    let mut client = Client::new(config, info, pool.clone());
    client.connected(Instant::ORIGIN, info);
    let (whole, len) = (client.capabilities().len, u64::from(block_len));
    let last = whole.saturating_sub(len);
    let data = || Bytes::copied_from(&vec![7; block_len as usize]).into();
    let actions = [0, last].into_iter().flat_map(|at| {
        [
            OpAction::Read { at, len: block_len as usize },
            OpAction::Write { at, data: data(), durability: Durability::Stable },
            OpAction::WriteZeroes { at, len: whole - at, may_deallocate: true, durability: Durability::Cached },
            OpAction::Deallocate { at, len: whole - at },
            OpAction::MapStatus { at, len: whole - at, count_max: 4 },
            OpAction::Flush,
        ]
    });
    for (number, action) in (1..).zip(actions) {
        client.submit(Instant::ORIGIN, Op { id: OpId(number), action });
        client.prepare_handover(false);
        let mut out = Transmit::new();
        while client.poll_action().is_some() {
            client.transmit(Instant::ORIGIN, &mut out);
            out.clear(&pool);
        }
    }
    client.disconnected(Instant::ORIGIN);
    client.close();
    client.handle_timeout(Instant::ORIGIN.after(Duration::from_secs(3600)));
    let ended = std::iter::from_fn(|| client.poll()).count();
    assert_eq!(ended, 12, "every operation ends");
}
