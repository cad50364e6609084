//! Tests commands that end well and, as the target tells, without all of their data.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use super::relay::Relay;
use super::*;

/// The flags of a SCSI Response and of a Data-In with a status (RFC 7143 §11.4.1, §11.7.2).
const OVERFLOW: u8 = 4;
const UNDERFLOW: u8 = 2;

#[test]
fn what_the_target_did_not_take_is_no_success() {
    let relay = Relay::of(25);
    let residual = Arc::new(AtomicU8::new(0));
    let told = Arc::clone(&residual);
    // Statuses get the flag `residual`, if it is not zero, and a residual count of 512 bytes.
    relay.change(move |cdb, pdu| {
        let residual = told.load(Ordering::Acquire);
        let has_status = pdu[0] == 0x21 || pdu[1] & 1 != 0;
        let is_identity_check = [scsi::opcode::INQUIRY, scsi::opcode::SERVICE_ACTION_IN_16].contains(&cdb[0]);
        if has_status && residual != 0 && !is_identity_check {
            pdu[1] |= residual;
            pdu[44..48].copy_from_slice(&512_u32.to_be_bytes());
        }
    });
    let client = blocking::Client::new().unwrap();
    let disk = client.open(relay.url()).unwrap();
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
    for (flag, text) in [(UNDERFLOW, " bytes instead of "), (OVERFLOW, "blocks are longer")] {
        residual.store(flag, Ordering::Release);
        let error = block_on(disk.as_async().compare_and_write(8192, list(&[7; 1024]))).unwrap_err();
        let error = error.report().to_string();
        assert!(error.contains(text), "{error}");
        // These have no data that can be taken in part, and some targets tell a residual count.
        disk.write_zeroes(0, 4096).unwrap();
        disk.discard(4096, 4096).unwrap();
        let (tell, told) = channel();
        let compared = Box::new(move |result| tell.send(result).unwrap());
        SharedStore::compare_and_write(disk.as_async(), 8192, list(&[7; 1024]), compared);
        assert!(told.recv_timeout(HANG).unwrap().is_err());
    }
    residual.store(0, Ordering::Release);
    disk.write_at(0, &short).unwrap();
    let mut back = vec![0; short.len()];
    disk.read_at(0, &mut back).unwrap();
    assert_eq!(back, short);
}
