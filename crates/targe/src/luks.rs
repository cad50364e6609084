//! `targe luks`: LUKS2 images in files and block devices.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use store::encrypt::DataUnit;

use crate::progress::Progress;
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
    /// Convert an encrypted disk with a .media-key, as earlier releases made it, into a LUKS2 image in place
    Convert {
        /// The file of the disk, which no daemon may serve
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// The file with its secret
        #[arg(long, value_name = "FILE")]
        key_file: PathBuf,
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
        Action::Convert { file, key_file } => {
            let mut progress: Option<(Progress, u64)> = None;
            let mut tell = |done: u64, total: u64| {
                let (line, before) = progress.get_or_insert_with(|| (Progress::new(Some(total)), 0));
                line.add(done.saturating_sub(*before));
                *before = done;
            };
            let converted = daemon::luks::convert::convert(file, key_file, &mut tell);
            drop(progress);
            converted.map_err(Failure::Failed)?;
            eprintln!("{} is a LUKS2 image now", file.display());
            Ok(())
        }
    }
}

fn sector_len(text: &str) -> Result<DataUnit, String> {
    match text {
        "512" => Ok(DataUnit::B512),
        "4096" => Ok(DataUnit::B4096),
        _ => Err("expected 512 or 4096".to_owned()),
    }
}
