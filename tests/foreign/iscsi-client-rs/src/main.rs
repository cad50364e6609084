//! Uses one disk through iscsi-client-rs and judges what it answers: `judge CONFIG CASE`. CONFIG is the YAML
//! file of that library; it names the address, the target, the credentials and the parameters. The unit is
//! LUN 1.
//!
//! Everything runs on one thread: with several, the library's reader can remove the channel of a task tag
//! that the next request of a login has just begun to use (`PendingRequests::register` beside `deliver`), and
//! that login never ends well.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use iscsi_client_rs::{
    cfg::config::Config,
    client::{client::ClientConnection, pool_sessions::Pool},
    control_block::{inquiry, read, read_capacity, report_luns, write},
    models::logout::common::LogoutReason,
    state_machine::{nop_states::NopCtx, read_states::ReadCtx, tur_states::TurCtx, write_states::WriteCtx},
};

const LUN: u64 = 1 << 48;
const CID: u16 = 0;
/// Longest a case may take.
const CASE_MAX: Duration = Duration::from_secs(60);
/// Lengths in blocks of 512 bytes: one, around FirstBurstLength, and a whole burst with the block that is
/// read behind it. The library takes the F bit of a Data-In PDU for the end of the command, where it is the
/// end of a sequence (RFC 7143 §11.7.1), so that it cannot read more than MaxBurstLength.
const LENGTHS: [u16; 14] = [1, 2, 7, 8, 15, 16, 17, 63, 64, 127, 128, 129, 256, 511];
const TOGETHER: u32 = 32;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [config, case] = &arguments[..] else { bail!("usage: judge CONFIG CASE") };
    let config = Config::load_from_file(config)?;
    tokio::time::timeout(CASE_MAX, run(config, case)).await.context("the case did not end")?
}

async fn run(config: Config, case: &str) -> Result<()> {
    match case {
        "identify" => identify(&Disk::open(config, 1).await?).await,
        "patterns" => patterns(&Disk::open(config, 2).await?).await,
        "together" => together(&Disk::open(config, 3).await?).await,
        "again" => again(config).await,
        "refused" => refused(config).await,
        _ => bail!("no case {case}"),
    }
}

/// A session with one connection, and the unit behind it.
struct Disk {
    pool: Arc<Pool>,
    session: u16,
    block: u32,
    blocks: u64,
}

impl Disk {
    async fn open(config: Config, isid: u8) -> Result<Self> {
        let (pool, session) = log_in(config, isid).await?;
        let mut disk = Self { pool, session, block: 0, blocks: 0 };
        // The first command tells the unit attention of a new session, if there is one.
        let _ = disk.test_unit_ready().await;
        disk.test_unit_ready().await?;
        let data = disk.data_in(32, |cdb| read_capacity::build_read_capacity16(cdb, 0, false, 32, 0)).await?;
        let capacity = read_capacity::parse_read_capacity16_zerocopy(&data)?;
        (disk.block, disk.blocks) = (capacity.block_len.get(), capacity.max_lba.get() + 1);
        Ok(disk)
    }

    async fn test_unit_ready(&self) -> Result<()> {
        self.pool
            .execute_with(self.session, CID, |c, itt, cmd_sn, stat_sn| {
                TurCtx::new(c, itt, cmd_sn, stat_sn, LUN)
            })
            .await?;
        Ok(())
    }

    async fn ping(&self) -> Result<()> {
        self.pool
            .execute_with(self.session, CID, |c, itt, cmd_sn, stat_sn| {
                NopCtx::new(c, LUN, itt, cmd_sn, stat_sn, u32::MAX)
            })
            .await?;
        Ok(())
    }

    async fn data_in(&self, length: u32, fill: impl Fn(&mut [u8; 16])) -> Result<Vec<u8>> {
        let mut cdb = [0; 16];
        fill(&mut cdb);
        let done = self
            .pool
            .execute_with(self.session, CID, |c, itt, cmd_sn, stat_sn| {
                ReadCtx::new(c, LUN, itt, cmd_sn, stat_sn, length, cdb)
            })
            .await?;
        Ok(done.data)
    }

    async fn read(&self, lba: u32, blocks: u16) -> Result<Vec<u8>> {
        let wide = blocks.is_multiple_of(2);
        self.data_in(self.block * u32::from(blocks), |cdb| match wide {
            true => read::build_read16(cdb, lba.into(), blocks.into(), 0, 0),
            false => read::build_read10(cdb, lba, blocks, 0, 0),
        })
        .await
    }

    async fn write(&self, lba: u32, data: &[u8]) -> Result<()> {
        let blocks = data.len() as u32 / self.block;
        let mut cdb = [0; 16];
        match blocks.is_multiple_of(2) {
            true => write::build_write16(&mut cdb, lba.into(), blocks, 0, 0),
            false => write::build_write10(&mut cdb, lba, blocks as u16, 0, 0),
        }
        self.pool
            .execute_with(self.session, CID, |c, itt, cmd_sn, stat_sn| {
                WriteCtx::new(c, LUN, itt, cmd_sn, stat_sn, cdb, data)
            })
            .await?;
        Ok(())
    }

    /// Another content for each seed and place.
    fn pattern(&self, seed: u32, blocks: u16) -> Vec<u8> {
        let mut state = seed.wrapping_mul(0x9E37_79B9) | 1;
        let words = (0..self.block as usize * usize::from(blocks) / 4).map(|_| {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            state
        });
        words.flat_map(u32::to_be_bytes).collect()
    }

    async fn close(&self) -> Result<()> {
        match self.pool.logout(self.session, LogoutReason::CloseSession, None).await {
            Ok(()) => ensure!(self.pool.sessions.is_empty(), "the session is still there after its logout"),
            // The library forgets an answer that it has when the connection ends behind it, as it does behind
            // a Logout Response.
            Err(error) => ensure!(is_end_of_connection(&error), "logout: {error:#}"),
        }
        Ok(())
    }
}

async fn log_in(config: Config, isid: u8) -> Result<(Arc<Pool>, u16)> {
    let pool = Arc::new(Pool::new(&config));
    pool.attach_self();
    let target = Arc::from(config.login.identity.target_name.clone());
    let connection = ClientConnection::connect(config, pool.cancel_token().child_token()).await?;
    let session = pool.login_and_insert(target, [0, 2, 61, 0, 0, isid], CID, connection).await?;
    Ok((pool, session))
}

async fn identify(disk: &Disk) -> Result<()> {
    ensure!([512, 4096].contains(&disk.block), "blocks of {} bytes", disk.block);
    ensure!(
        u64::from(disk.block) * disk.blocks == 64 << 20,
        "{} blocks of {} bytes",
        disk.blocks,
        disk.block
    );
    let told = inquiry::parse_inquiry_standard(
        &disk.data_in(36, |cdb| inquiry::fill_inquiry_standard_simple(cdb, 36)).await?,
    )?;
    ensure!(told.device_type == 0 && told.peripheral_qualifier == 0, "INQUIRY says {told:?}");
    let pages = disk
        .data_in(255, |cdb| inquiry::fill_inquiry_vpd_simple(cdb, inquiry::VpdPage::SupportedPages, 255))
        .await?;
    let pages = inquiry::parse_vpd_supported_pages(&pages)?;
    ensure!(pages.starts_with(&[0]) && pages.contains(&0x83), "the pages are {pages:02x?}");
    let luns = disk.data_in(256, |cdb| report_luns::fill_report_luns_simple(cdb, 256)).await?;
    ensure!(luns[8..].chunks(8).any(|lun| lun == LUN.to_be_bytes()), "REPORT LUNS says {luns:02x?}");
    disk.ping().await?;
    disk.close().await
}

async fn patterns(disk: &Disk) -> Result<()> {
    for seed in [1, 2] {
        let mut lba = 0;
        for blocks in LENGTHS {
            disk.write(lba, &disk.pattern(seed + lba, blocks))
                .await
                .with_context(|| format!("WRITE of {blocks} blocks"))?;
            // A block is left alone between one pattern and the next.
            lba += u32::from(blocks) + 1;
        }
        let mut lba = 0;
        for blocks in LENGTHS {
            let found =
                disk.read(lba, blocks + 1).await.with_context(|| format!("READ of {blocks} blocks"))?;
            let mut wanted = disk.pattern(seed + lba, blocks);
            wanted.resize(found.len(), 0);
            ensure!(found == wanted, "{blocks} blocks at {lba} are not what was written");
            lba += u32::from(blocks) + 1;
        }
    }
    disk.close().await
}

async fn together(disk: &Disk) -> Result<()> {
    for blocks in [1, 64] {
        let place = |index: u32| 8192 + index * 64;
        let writes = (0..TOGETHER)
            .map(|index| async move { disk.write(place(index), &disk.pattern(index, blocks)).await });
        all(writes).await?;
        let reads = (0..TOGETHER).map(|index| async move {
            let found = disk.read(place(index), blocks).await?;
            ensure!(
                found == disk.pattern(index, blocks),
                "{blocks} blocks of command {index} are not what was written"
            );
            Ok(())
        });
        all(reads).await?;
    }
    disk.close().await
}

/// A session that logs out leaves nothing behind that would keep the next one out, under the same name and
/// ISID.
async fn again(config: Config) -> Result<()> {
    for round in 0..10 {
        let disk = Disk::open(config.clone(), 4).await.with_context(|| format!("login {round}"))?;
        disk.write(0, &disk.pattern(round, 8)).await?;
        disk.close().await?;
    }
    Ok(())
}

/// The configuration's credentials are wrong: no session may come of them.
async fn refused(config: Config) -> Result<()> {
    match log_in(config, 5).await {
        Ok(_) => bail!("the target let somebody in with wrong credentials"),
        Err(error)
            if is_end_of_connection(&error) || format!("{error:#}").contains("AuthenticationFailure") =>
        {
            Ok(())
        }
        Err(error) => Err(error.context("refused, but otherwise than RFC 7143 §11.13.5 has it")),
    }
}

fn is_end_of_connection(error: &anyhow::Error) -> bool {
    let said = format!("{error:#}");
    ["connection poisoned", "no pending request", "connection closed before response"]
        .iter()
        .any(|end| said.contains(end))
}

/// Runs all of them at the same time; the first error counts.
async fn all<F: Future<Output = Result<()>>>(futures: impl Iterator<Item = F>) -> Result<()> {
    let mut futures: Vec<_> = futures.map(Box::pin).collect();
    std::future::poll_fn(|context| {
        let mut failed = None;
        futures.retain_mut(|future| match future.as_mut().poll(context) {
            std::task::Poll::Ready(result) => {
                failed = failed.take().or(result.err());
                false
            }
            std::task::Poll::Pending => true,
        });
        match failed {
            Some(error) => std::task::Poll::Ready(Err(error)),
            None if futures.is_empty() => std::task::Poll::Ready(Ok(())),
            None => std::task::Poll::Pending,
        }
    })
    .await
}
