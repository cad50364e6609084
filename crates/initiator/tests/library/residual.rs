//! Tests commands that end well and, as the target tells, without all of their data.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use super::*;

/// The flags of a SCSI Response and of a Data-In with a status (RFC 7143 §11.4.1, §11.7.2).
const OVERFLOW: u8 = 4;
const UNDERFLOW: u8 = 2;

/// Relays one connection to a target without digests. Statuses get the flag `residual`, if it is not zero,
/// and a residual count of 512 bytes.
fn relay(to: SocketAddr, residual: Arc<AtomicU8>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (client, _) = listener.accept().unwrap();
        let target = TcpStream::connect(to).unwrap();
        let (mut from_client, mut to_target) = (client.try_clone().unwrap(), target.try_clone().unwrap());
        std::thread::spawn(move || std::io::copy(&mut from_client, &mut to_target));
        while change_pdu(&target, &client, &residual).is_ok() {}
    });
    address
}

fn change_pdu(mut from: &TcpStream, mut to: &TcpStream, residual: &AtomicU8) -> std::io::Result<()> {
    let mut pdu = vec![0; 48];
    from.read_exact(&mut pdu)?;
    let residual = residual.load(Ordering::Acquire);
    let has_status = pdu[0] == 0x21 || pdu[0] == 0x25 && pdu[1] & 1 != 0;
    if has_status && residual != 0 {
        pdu[1] |= residual;
        pdu[44..48].copy_from_slice(&512_u32.to_be_bytes());
    }
    let data_len = usize::from(pdu[5]) << 16 | usize::from(pdu[6]) << 8 | usize::from(pdu[7]);
    pdu.resize(48 + usize::from(pdu[4]) * 4 + data_len.next_multiple_of(4), 0);
    from.read_exact(&mut pdu[48..])?;
    to.write_all(&pdu)
}

#[test]
fn what_the_target_did_not_take_is_no_success() {
    let direct = target::url(6);
    let (scheme, rest) = direct.split_at("iscsi://".len());
    let (address, path) = rest.split_once('/').unwrap();
    let residual = Arc::new(AtomicU8::new(0));
    let through = relay(address.parse().unwrap(), Arc::clone(&residual));
    let client = blocking::Client::new().unwrap();
    let disk = client.open(format!("{scheme}{through}/{path}?header_digest=none&data_digest=none")).unwrap();
    let short = vec![7; 4096];
    // One command, and several.
    for len in [4096, 3 * MIB] {
        let data = vec![7; len];
        residual.store(UNDERFLOW, Ordering::Release);
        let error = disk.write_at(0, &data).unwrap_err().report().to_string();
        assert!(error.contains(" bytes instead of "), "{error}");
        residual.store(OVERFLOW, Ordering::Release);
        let error = disk.write_at(0, &data).unwrap_err().report().to_string();
        assert!(error.contains("blocks are longer"), "{error}");
        let error = disk.read_at(0, &mut vec![0; len]).unwrap_err().report().to_string();
        assert!(error.contains("blocks are longer"), "{error}");
    }
    residual.store(0, Ordering::Release);
    disk.write_at(0, &short).unwrap();
    let mut back = vec![0; short.len()];
    disk.read_at(0, &mut back).unwrap();
    assert_eq!(back, short);
}
