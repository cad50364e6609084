//! `targe luks`: LUKS2 images in files and block devices.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::channel;

use clap::{Args, Subcommand};
use store::api::{self, Durability, Fault, OpAction, OpOutput};
use store::encrypt::DataUnit;
use store::encrypt::Volume;
use store::encrypt::shared_volume::SharedVolume;
use store::luks2::{Error, Header, MediumIo};
use store::shared::SharedStore;

use crate::{Failure, print};

#[derive(Debug, Args)]
pub(crate) struct LuksArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Make a LUKS2 image of a blank file or block device
    Format {
        /// The file or block device
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// The file with the secret that opens it: at least 32 bytes, readable only by its owner
        #[arg(long, value_name = "FILE")]
        key_file: PathBuf,
        /// Encrypt in sectors of this many bytes: 512 or 4096
        #[arg(long, value_name = "BYTES", default_value = "512", value_parser = sector_len)]
        sector: DataUnit,
    },
    /// Show the header of a LUKS2 image, which needs no secret
    Info {
        /// The file or block device
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
}

pub(crate) fn run(args: &LuksArgs) -> Result<(), Failure> {
    match &args.action {
        Action::Format { file, key_file, sector } => {
            daemon::luks::format_file(file, key_file, *sector).map_err(Failure::Failed)
        }
        Action::Info { file } => {
            let header = daemon::luks::header_of(file).map_err(Failure::Failed)?;
            let len = header.data_len().map_or_else(|| "to the end".to_owned(), |len| len.to_string());
            print(&format!(
                "UUID         {}\ndata offset  {}\ndata length  {len}\nsector       {}\nkeyslots     {}\n",
                header.uuid(),
                header.data_offset(),
                header.sector_len().bytes(),
                header.keyslots(),
            ));
            if let Some(what) = daemon::luks::describe_copies(header.copies()) {
                eprintln!("targe: {}: {what}", file.display());
            }
            Ok(())
        }
    }
}

/// A medium, decrypted here if it is a LUKS2 image that was opened.
pub(crate) struct Opened {
    pub(crate) medium: Arc<dyn SharedStore>,
    /// The name of the volume whose data it is; `None` for the disk itself.
    pub(crate) volume_name: Option<String>,
}

/// Returns the data of the LUKS2 image on `disk`, decrypted here: the target never sees them. Without a key
/// file, returns the disk itself. `name` is for messages.
pub(crate) fn decrypted(
    disk: Arc<dyn SharedStore>,
    key_file: Option<&Path>,
    name: &str,
) -> Result<Arc<dyn SharedStore>, Failure> {
    opened(disk, key_file, name).map(|opened| opened.medium)
}

/// Like [`decrypted`], with the name of the volume.
pub(crate) fn opened(
    disk: Arc<dyn SharedStore>,
    key_file: Option<&Path>,
    name: &str,
) -> Result<Opened, Failure> {
    let Some(key_file) = key_file else { return Ok(Opened { medium: disk, volume_name: None }) };
    let (header, volume) = unlocked(&disk, key_file, name)?;
    let volume_name = Some(header.volume_name());
    Ok(Opened { medium: Arc::new(SharedVolume::new(disk, &volume)), volume_name })
}

/// Opens the LUKS2 image on `disk`. `name` is for messages.
pub(crate) fn volume(disk: &Arc<dyn SharedStore>, key_file: &Path, name: &str) -> Result<Volume, Failure> {
    unlocked(disk, key_file, name).map(|(_, volume)| volume)
}

fn unlocked(disk: &Arc<dyn SharedStore>, key_file: &Path, name: &str) -> Result<(Header, Volume), Failure> {
    let secret = daemon::luks::secret_of(key_file).map_err(Failure::Misused)?;
    let capabilities = disk.capabilities();
    let mut io = SharedIo { block_len: u64::from(capabilities.logical_block_len), disk: Arc::clone(disk) };
    let described = |why| match why {
        Error::Luks(why) => Failure::Failed(format!("{name}: {why}")),
        Error::Io(api::Failure { fault, .. }) => {
            Failure::Failed(format!("{name}: the LUKS2 header cannot be read: {fault}"))
        }
    };
    let header = Header::load(&mut io, capabilities.len).map_err(described)?;
    if let Some(what) = daemon::luks::describe_copies(header.copies()) {
        eprintln!("targe: {name}: {what}");
    }
    let volume = header.unlock(&mut io, &secret).map_err(described)?;
    if !volume.is_aligned(capabilities.logical_block_len)
        || volume.sector_len.bytes() < capabilities.logical_block_len
    {
        let block_len = capabilities.logical_block_len;
        let why = format!("{name}: the sectors of the LUKS2 image are no whole blocks of {block_len} bytes");
        return Err(Failure::Failed(why));
    }
    Ok((header, volume))
}

/// Accesses a shared medium in order.
struct SharedIo {
    disk: Arc<dyn SharedStore>,
    block_len: u64,
}

impl SharedIo {
    fn run(&self, action: OpAction) -> Result<OpOutput, api::Failure> {
        let (end, ended) = channel();
        // The receiver exists until the result is there.
        self.disk.submit(action, Box::new(move |result| drop(end.send(result))));
        ended.recv().unwrap_or(Err(Fault::Gone.into()))
    }
}

impl MediumIo for SharedIo {
    type Error = api::Failure;

    fn read(&mut self, at: u64, buf: &mut [u8]) -> Result<(), Self::Error> {
        // The areas of keyslots need not be whole blocks.
        let block_len = usize::try_from(self.block_len).unwrap_or(1);
        let len = buf.len().next_multiple_of(block_len);
        match self.run(OpAction::Read { at, len })? {
            OpOutput::Data(data) => {
                data.copy_to(0, buf);
                Ok(())
            }
            _ => Err(Fault::Bug.into()),
        }
    }

    fn write(&mut self, at: u64, data: &[u8]) -> Result<(), Self::Error> {
        let data = base::buffer::Bytes::copied_from(data).into();
        self.run(OpAction::Write { at, data, durability: Durability::Cached }).map(drop)
    }

    fn zero(&mut self, at: u64, len: u64) -> Result<(), Self::Error> {
        let durability = Durability::Cached;
        self.run(OpAction::WriteZeroes { at, len, may_deallocate: true, durability }).map(drop)
    }

    fn flush(&mut self) -> Result<(), Self::Error> {
        self.run(OpAction::Flush).map(drop)
    }
}

fn sector_len(text: &str) -> Result<DataUnit, String> {
    match text {
        "512" => Ok(DataUnit::B512),
        "4096" => Ok(DataUnit::B4096),
        _ => Err("expected 512 or 4096".to_owned()),
    }
}
