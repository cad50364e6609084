//! Loop devices: block devices over files (loop(4)).

#![allow(unsafe_code, reason = "ioctls that no library has safe functions for")]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use crate::c_types::number;

/// A loop device over a file, with direct I/O if the file system of the file has it. The kernel detaches the
/// device when it is neither open nor mounted any more, however this process ends.
#[derive(Debug)]
pub struct LoopDevice {
    path: PathBuf,
    _open: File,
}

impl LoopDevice {
    /// Attaches a free loop device to a file that is open for reading and writing. One system call attaches
    /// it and sets the flag `autoclear`, so that a process that is killed leaves no device behind.
    ///
    /// # Errors
    /// Those of /dev/loop-control and of LOOP_CONFIGURE, which Linux has from 5.8 on: without root,
    /// permission denied.
    pub fn attach(file: &File) -> io::Result<Self> {
        let control = File::options().read(true).write(true).open(CONTROL)?;
        for _ in 0..ATTEMPTS_MAX {
            let path = PathBuf::from(format!("/dev/loop{}", free_number(&control)?));
            let device = File::options().read(true).write(true).open(&path)?;
            match configure(&device, file) {
                // A file system may refuse a device that is open for writing.
                Ok(()) => return Ok(Self { _open: File::open(&path)?, path }),
                // Another process has taken it meanwhile.
                Err(why) if why.kind() == io::ErrorKind::ResourceBusy => {}
                Err(why) => return Err(why),
            }
        }
        Err(io::ErrorKind::ResourceBusy.into())
    }

    /// Returns the path of the block device.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

const CONTROL: &str = "/dev/loop-control";

/// How often another process may take the free device. Each time, that process has one device more, and there
/// are seldom as many.
const ATTEMPTS_MAX: usize = 64;

/// Returns the number of a loop device that is free now; the kernel makes one if there is none.
fn free_number(control: &File) -> io::Result<u32> {
    // SAFETY: the request has no argument.
    let found = unsafe { libc::ioctl(control.as_raw_fd(), number(LOOP_CTL_GET_FREE)) };
    u32::try_from(found).map_err(|_| io::Error::last_os_error())
}

fn configure(device: &File, file: &File) -> io::Result<()> {
    let config = LoopConfig {
        file: file.as_raw_fd(),
        block_size: 0,
        numbers: [0; 5],
        number: 0,
        encryption: [0; 2],
        flags: LO_FLAGS_AUTOCLEAR | LO_FLAGS_DIRECT_IO,
        names: [0; 160],
        rest: [0; 10],
    };
    // SAFETY: the kernel reads as many bytes as LoopConfig has, and writes none.
    let done =
        unsafe { libc::ioctl(device.as_raw_fd(), number(LOOP_CONFIGURE), std::ptr::from_ref(&config)) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// struct loop_config with its struct loop_info64; zeros are defaults.
#[repr(C)]
#[allow(dead_code, reason = "the kernel reads the fields")]
struct LoopConfig {
    file: i32,
    block_size: u32,
    numbers: [u64; 5],
    number: u32,
    encryption: [u32; 2],
    flags: u32,
    names: [u8; 160],
    rest: [u64; 10],
}

const _: () = assert!(size_of::<LoopConfig>() == 304);

// linux/loop.h
const LOOP_CONFIGURE: u32 = 0x4c0a;
const LOOP_CTL_GET_FREE: u32 = 0x4c82;
const LO_FLAGS_AUTOCLEAR: u32 = 4;
const LO_FLAGS_DIRECT_IO: u32 = 16;

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{Read as _, Write as _};
    use std::time::{Duration, Instant};

    use super::*;

    const DETACHED_WITHIN: Duration = Duration::from_secs(20);

    #[test]
    fn a_device_has_the_data_of_its_file_and_is_detached_when_it_is_closed() {
        let path = std::env::temp_dir().join(format!("targe-loop-device-{}", std::process::id()));
        let mut file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        file.write_all(&[0x5a; 8192]).unwrap();
        let attached = LoopDevice::attach(&file);
        fs::remove_file(&path).unwrap();
        let device = match attached {
            Ok(device) => device,
            Err(why) => {
                eprintln!("skipped: no loop device here: {why}");
                return;
            }
        };
        let name = device.path().file_name().unwrap().to_str().unwrap();
        let state = PathBuf::from(format!("/sys/block/{name}/loop"));
        assert_eq!(fs::read_to_string(state.join("autoclear")).unwrap(), "1\n");
        let behind = fs::read_to_string(state.join("backing_file")).unwrap();
        assert!(behind.contains("targe-loop-device-"), "{behind}");
        let mut data = Vec::new();
        File::open(device.path()).unwrap().read_to_end(&mut data).unwrap();
        assert_eq!(data, [0x5a; 8192]);
        drop(device);
        // The kernel detaches a device a moment after it was closed, and another process may have it then.
        let is_ours = || fs::read_to_string(state.join("backing_file")).is_ok_and(|file| file == behind);
        let deadline = Instant::now() + DETACHED_WITHIN;
        while is_ours() {
            assert!(Instant::now() < deadline, "{} is not detached", state.display());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn what_is_no_file_of_a_file_system_is_refused() {
        let pipe = File::options().read(true).write(true).open("/dev/null").unwrap();
        assert!(LoopDevice::attach(&pipe).is_err());
    }
}
