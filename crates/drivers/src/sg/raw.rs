//! The system calls of the SG driver, which pass pointers.
#![allow(unsafe_code, reason = "the kernel is given pointers to commands, sense data and buffers")]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;

use super::{SgData, SgReply, SgRequest};
use crate::files::{Errno, errno_of, rest, room};

/// `struct sg_io_hdr` of scsi/sg.h.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Header {
    interface_id: i32,
    dxfer_direction: i32,
    cmd_len: u8,
    mx_sb_len: u8,
    iovec_count: u16,
    dxfer_len: u32,
    dxferp: *mut libc::c_void,
    cmdp: *const u8,
    sbp: *mut u8,
    timeout: u32,
    flags: u32,
    pack_id: i32,
    usr_ptr: *mut libc::c_void,
    status: u8,
    masked_status: u8,
    msg_status: u8,
    sb_len_wr: u8,
    host_status: u16,
    driver_status: u16,
    resid: i32,
    duration: u32,
    info: u32,
}

const _: () = assert!(size_of::<Header>() == 88 || size_of::<*const u8>() != 8);

/// `struct sg_scsi_id` of scsi/sg.h.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct ScsiId {
    host_no: i32,
    channel: i32,
    scsi_id: i32,
    lun: i32,
    scsi_type: i32,
    h_cmd_per_lun: i16,
    d_queue_depth: i16,
    unused: [i32; 2],
}

const SG_SET_RESERVED_SIZE: libc::Ioctl = 0x2275;
const SG_GET_SCSI_ID: libc::Ioctl = 0x2276;
const SG_GET_RESERVED_SIZE: libc::Ioctl = 0x2272;
const SG_GET_VERSION_NUM: libc::Ioctl = 0x2282;
const SG_SCSI_RESET: libc::Ioctl = 0x2284;
/// `_IO(0x12, 103)` of linux/fs.h; SG answers in bytes.
const BLKSECTGET: libc::Ioctl = 0x1267;
/// `SG_SCSI_RESET_DEVICE`, and `SG_SCSI_RESET_NO_ESCALATE`: never the bus or the host adapter.
const RESET_DEVICE_ONLY: i32 = 1 | 0x100;

const TO_DEVICE: i32 = -2;
const FROM_DEVICE: i32 = -3;
const NO_DATA: i32 = -1;
const Q_AT_TAIL: u32 = 0x10;

/// The longest sense data.
const SENSE_LEN: usize = 252;
/// The most pieces of a buffer (`UIO_MAXIOV`).
const PIECES_MAX: usize = 1024;

/// A request, and everything that its header points to. It stays where it is until the reply is collected.
#[derive(Debug)]
pub(super) struct Pending {
    token: u64,
    timeout_ms: u32,
    command: Vec<u8>,
    sense: [u8; SENSE_LEN],
    data: SgData,
    /// The pieces of the buffers.
    pieces: Vec<Piece>,
}

/// `struct iovec`, as an address that can be moved to another thread with its request.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Piece {
    address: usize,
    len: usize,
}

/// The end of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct End {
    pub(super) slot: u32,
    status: u8,
    host_status: u16,
    sense_len: usize,
    residual: i32,
}

impl Pending {
    pub(super) fn new(request: SgRequest) -> Self {
        let SgRequest { token, command, data, timeout_ms } = request;
        Self { token, timeout_ms, command, sense: [0; SENSE_LEN], data, pieces: Vec::new() }
    }

    /// Gives the request to the kernel.
    pub(super) fn write(&mut self, file: &File, slot: u32) -> Result<(), Errno> {
        let (direction, len) = self.lay_out();
        if self.pieces.len() > PIECES_MAX || self.command.len() > super::COMMAND_LEN_MAX {
            return Err(Errno::INVAL);
        }
        let too_large = |_| Errno::INVAL;
        let header = Header {
            interface_id: i32::from(b'S'),
            dxfer_direction: direction,
            cmd_len: u8::try_from(self.command.len()).map_err(too_large)?,
            mx_sb_len: u8::try_from(SENSE_LEN).map_err(too_large)?,
            iovec_count: u16::try_from(self.pieces.len()).map_err(too_large)?,
            dxfer_len: u32::try_from(len).map_err(too_large)?,
            dxferp: self.pieces.as_mut_ptr().cast(),
            cmdp: self.command.as_ptr(),
            sbp: self.sense.as_mut_ptr(),
            timeout: self.timeout_ms,
            flags: Q_AT_TAIL,
            pack_id: i32::try_from(slot).map_err(too_large)?,
            ..Header::empty()
        };
        // The kernel writes to the sense data and, for Data-In, to the buffers of the pieces, only in the
        // `read` that collects the reply. `self` owns all of these, is boxed, and is neither moved nor
        // dropped before that: `SgDevice` keeps it in its slab. If the descriptor is closed first, no `read`
        // follows. SG copies through buffers of its own (no SG_FLAG_DIRECT_IO).
        // SAFETY: the kernel reads a header of this length, and the command and the pieces that it points to.
        let written =
            unsafe { libc::write(file.as_raw_fd(), (&raw const header).cast(), size_of::<Header>()) };
        if written < 0 { Err(errno_of(&io::Error::last_os_error())) } else { Ok(()) }
    }

    /// Lists the pieces of the buffers. Returns the direction and the length of the data.
    fn lay_out(&mut self) -> (i32, usize) {
        self.pieces.clear();
        match &mut self.data {
            SgData::Nothing => (NO_DATA, 0),
            SgData::In { len, bufs } => {
                for slice in &mut room(bufs, *len) {
                    self.pieces
                        .push(Piece { address: slice.as_mut_ptr().expose_provenance(), len: slice.len() });
                }
                (FROM_DEVICE, *len)
            }
            SgData::Out(data) => {
                for slice in &rest(data, 0) {
                    self.pieces.push(Piece { address: slice.as_ptr().expose_provenance(), len: slice.len() });
                }
                (TO_DEVICE, data.len())
            }
        }
    }

    pub(super) const fn data(&self) -> &SgData {
        &self.data
    }

    pub(super) fn into_request(self) -> SgRequest {
        let Self { token, command, data, timeout_ms, .. } = self;
        SgRequest { token, command, data, timeout_ms }
    }

    pub(super) fn into_reply(self, end: &End) -> SgReply {
        let mut data = self.data;
        let len = match &data {
            SgData::Nothing => 0,
            SgData::In { len, .. } => *len,
            SgData::Out(data) => data.len(),
        };
        let residual = usize::try_from(end.residual).unwrap_or(0).min(len);
        let transferred = len - residual;
        if let SgData::In { bufs, .. } = &mut data {
            let mut left = transferred;
            for buf in bufs {
                let filled = left.min(buf.capacity() - buf.len());
                buf.advance(filled);
                left -= filled;
            }
        }
        let sense = self.sense.get(..end.sense_len.min(SENSE_LEN)).unwrap_or_default().to_vec();
        let End { status, host_status, .. } = *end;
        SgReply { token: self.token, status, host_status, sense, transferred, data }
    }
}

impl Header {
    const fn empty() -> Self {
        Self {
            interface_id: 0,
            dxfer_direction: 0,
            cmd_len: 0,
            mx_sb_len: 0,
            iovec_count: 0,
            dxfer_len: 0,
            dxferp: std::ptr::null_mut(),
            cmdp: std::ptr::null(),
            sbp: std::ptr::null_mut(),
            timeout: 0,
            flags: 0,
            pack_id: 0,
            usr_ptr: std::ptr::null_mut(),
            status: 0,
            masked_status: 0,
            msg_status: 0,
            sb_len_wr: 0,
            host_status: 0,
            driver_status: 0,
            resid: 0,
            duration: 0,
            info: 0,
        }
    }
}

/// Collects the reply to any request.
pub(super) fn read(file: &File) -> Result<End, Errno> {
    let mut header = Header { interface_id: i32::from(b'S'), pack_id: -1, ..Header::empty() };
    // SAFETY: the kernel writes a header of this length to the address. Its pointers are those of the request
    // that has ended, whose `Pending` is still in the slab of the device, so that the sense data and the
    // buffers which the kernel fills in this call are alive and are borrowed by nobody.
    let taken = unsafe { libc::read(file.as_raw_fd(), (&raw mut header).cast(), size_of::<Header>()) };
    if taken < 0 {
        return Err(errno_of(&io::Error::last_os_error()));
    }
    Ok(End {
        slot: u32::try_from(header.pack_id).map_err(|_| Errno::IO)?,
        status: header.status,
        host_status: header.host_status,
        sense_len: usize::from(header.sb_len_wr),
        residual: header.resid,
    })
}

pub(super) fn version(file: &File) -> io::Result<u32> {
    int(file, SG_GET_VERSION_NUM).map(|version| u32::try_from(version).unwrap_or(0))
}

pub(super) fn device_type(file: &File) -> io::Result<u8> {
    let mut id = ScsiId::default();
    // SAFETY: the kernel writes one `sg_scsi_id` to the address, which is valid for that.
    let outcome = unsafe { libc::ioctl(file.as_raw_fd(), SG_GET_SCSI_ID, &raw mut id) };
    if outcome < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(u8::try_from(id.scsi_type).unwrap_or(0x1f))
}

/// Reserves a buffer of at most `wanted` bytes. Returns its length, and that of the longest transfer of the
/// host adapter.
pub(super) fn reserve_buffer(file: &File, wanted: u32) -> io::Result<(u32, u32)> {
    let adapter = u32::try_from(int(file, BLKSECTGET)?).unwrap_or(0);
    let mut len = i32::try_from(wanted.min(adapter)).unwrap_or(i32::MAX);
    // SAFETY: the kernel reads one integer from the address.
    if unsafe { libc::ioctl(file.as_raw_fd(), SG_SET_RESERVED_SIZE, &raw mut len) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let reserved = u32::try_from(int(file, SG_GET_RESERVED_SIZE)?).unwrap_or(0);
    Ok((reserved, adapter.min(wanted)))
}

pub(super) fn reset(file: &File) -> io::Result<()> {
    let mut what = RESET_DEVICE_ONLY;
    // SAFETY: the kernel reads one integer from the address.
    if unsafe { libc::ioctl(file.as_raw_fd(), SG_SCSI_RESET, &raw mut what) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Makes a request that returns one integer.
fn int(file: &File, request: libc::Ioctl) -> io::Result<i32> {
    let mut value = 0_i32;
    // SAFETY: the kernel writes one integer to the address, which is valid for that.
    if unsafe { libc::ioctl(file.as_raw_fd(), request, &raw mut value) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(value)
}

/// Checks that a piece is laid out as the kernel expects it.
const _: () = assert!(size_of::<Piece>() == size_of::<libc::iovec>());

#[cfg(test)]
mod tests {
    use super::*;
    use base::buffer::{Buf, Bytes};

    #[test]
    fn a_reply_says_how_many_bytes_came() {
        for (residual, transferred) in [(0, 6), (4, 2), (6, 0), (99, 0), (-3, 6)] {
            let bufs = vec![Buf::with_capacity(4096), Buf::with_capacity(4096)];
            let data = SgData::In { len: 6, bufs };
            let request = SgRequest { token: 7, command: vec![0; 6], data, timeout_ms: 1 };
            let mut pending = Pending::new(request);
            assert_eq!(pending.lay_out(), (FROM_DEVICE, 6));
            assert_eq!(pending.pieces.len(), 1, "only the pieces that are needed");
            let end = End { slot: 0, status: 2, host_status: 0, sense_len: 300, residual };
            let reply = pending.into_reply(&end);
            assert_eq!((reply.token, reply.status, reply.transferred), (7, 2, transferred));
            assert_eq!(reply.sense.len(), SENSE_LEN);
            let SgData::In { bufs, .. } = reply.data else { panic!("{reply:?}") };
            assert_eq!(bufs.iter().map(Buf::len).sum::<usize>(), transferred);
        }
    }

    #[test]
    fn data_for_the_device_is_listed_in_order() {
        let mut data = base::buffer::DataList::new();
        data.push(Bytes::copied_from(&[1; 10]));
        data.push(Bytes::copied_from(&[2; 20]));
        let request = SgRequest { token: 0, command: vec![0; 6], data: SgData::Out(data), timeout_ms: 1 };
        let mut pending = Pending::new(request);
        assert_eq!(pending.lay_out(), (TO_DEVICE, 30));
        assert_eq!(pending.pieces.iter().map(|piece| piece.len).collect::<Vec<_>>(), [10, 20]);
    }
}
