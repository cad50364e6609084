//! The true initiator: targe's library in a process of its own, which is this program once more, so that a
//! case can end it and see how it ended.

use std::error::Error;
use std::time::Duration;

use initiator::discover;
use initiator::endpoint::Endpoint;
use initiator::unstable::store::api::{Durability, OpAction};
use initiator::{Bytes, Cdb, Client, Command, Disk, EnvSecrets, Lun, Session, TmfFunction, block_on};

/// The environment variable by which a case says what to do: the id of the case, and a URL.
const ORDER: &str = "TARGE_MUTANTS_INITIATOR";

const LUN: Lun = Lun(0);

/// Returns the shell command that starts the initiator with this URL.
pub(crate) fn command(url: &str) -> String {
    let program = std::env::current_exe().unwrap();
    format!("{ORDER}='{{id}} {url}' exec '{}' --exact is_the_initiator_of_a_case", program.display())
}

/// Returns the shell command that starts an initiator which logs in and does nothing else.
pub(crate) fn idle_command(url: &str) -> String {
    command(url).replace("{id}", IDLE)
}

/// The order to log in and to send nothing else.
const IDLE: &str = "idle";

/// Does what a case ordered, if one did.
pub(crate) fn obey() -> Result<(), Box<dyn Error>> {
    let Ok(order) = std::env::var(ORDER) else { return Ok(()) };
    let (case, url) = order.split_once(' ').ok_or("the order has no URL")?;
    if is_discovery(case) {
        let client = Client::new()?;
        block_on(discover::targets(&client, &Endpoint::parse(url)?, &EnvSecrets))?;
        return Ok(());
    }
    if case == IDLE {
        let session = block_on(Client::new()?.log_in(&format!("{url}?timeout=5")))?;
        std::thread::sleep(Duration::from_millis(500));
        drop(session);
        return Ok(());
    }
    let query = match case {
        "ffp-i-2.2" | "ffp-i-19.1" | "ffp-i-19.2" | "ffp-i-19.4.1" | "ffp-i-19.4.2" | "ffp-i-19.4.3" => {
            return managed(url, |session| manage(session, TmfFunction::ABORT_TASK_SET));
        }
        "ffp-i-19.3" => return managed(url, abort_one),
        "ffp-i-15.3" => return managed(url, idle),
        "ffp-i-18.5" => return managed(url, negotiate),
        "ffp-i-14.2" | "ffp-i-20.3" | "ffp-i-19.5" => "&connections=2",
        "ffp-i-12.3" => "&data_sequence_in_order=no&max_outstanding_r2t=4",
        _ => "",
    };
    let url = format!("{url}?timeout=5{query}");
    use_disk(&url, &|at| OpAction::Read { at, len: 64 << 10 })?;
    use_disk(&url, &|at| OpAction::Write {
        at: 2 * at,
        data: Bytes::copied_from(&[7; 128 << 10]).into(),
        durability: Durability::Cached,
    })?;
    use_disk(&url, &|at| OpAction::Read { at: at + (1 << 20), len: 64 << 10 })
}

/// Returns whether a case needs a discovery.
pub(crate) fn is_discovery(case: &str) -> bool {
    case.starts_with("ffp-i-18.") && case != "ffp-i-18.5"
}

/// Does two operations at a time in a session of their own.
fn use_disk(url: &str, action: &dyn Fn(u64) -> OpAction) -> Result<(), Box<dyn Error>> {
    let disk = block_on(Disk::open(url))?;
    for pair in 0..2 {
        let both: Vec<_> = (0..2).map(|one| disk.perform(action((2 * pair + one) * (64 << 10)))).collect();
        for one in both {
            one.wait()?;
        }
    }
    disk.session().log_out().wait()?;
    Ok(())
}

/// Does something in a session that block I/O does not do, and sees whether the session still works.
fn managed(url: &str, work: impl Fn(&Session) -> Result<(), Box<dyn Error>>) -> Result<(), Box<dyn Error>> {
    let session = block_on(Client::new()?.log_in(url))?;
    work(&session)?;
    session.run(Command::new(LUN, Cdb::from_16([0; 16]))).wait()?;
    session.log_out().wait()?;
    Ok(())
}

/// Returns a READ(10) of eight blocks.
fn read() -> Command {
    Command::new(LUN, Cdb::from_16([0x28, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0])).reading(4096)
}

fn abort_one(session: &Session) -> Result<(), Box<dyn Error>> {
    let running = session.start_command(read());
    std::thread::sleep(Duration::from_millis(200));
    running.abort().wait()?;
    // The read may have ended, or not.
    let _ = running.wait();
    Ok(())
}

fn manage(session: &Session, function: TmfFunction) -> Result<(), Box<dyn Error>> {
    session.submit(read(), |_| ());
    std::thread::sleep(Duration::from_millis(200));
    session.submit_tmf(function, LUN).wait()?;
    Ok(())
}

fn idle(session: &Session) -> Result<(), Box<dyn Error>> {
    session.run(read()).wait()?;
    std::thread::sleep(Duration::from_secs(5));
    Ok(())
}

fn negotiate(session: &Session) -> Result<(), Box<dyn Error>> {
    // The target may refuse.
    let _ = session.negotiate(None, &[("MaxRecvDataSegmentLength", "1024")]).wait();
    session.run(read()).wait()?;
    Ok(())
}
