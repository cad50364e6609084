//! `targe top`: what the LUNs and sessions of the running daemon do, from second to second.

mod rates;
mod screen;
mod view;

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use daemon::admin::api::{Method, Request, Sessions, Status};
use daemon::admin::client::{ClientError, Connection};
use daemon::admin::lun_api::Luns;

use crate::daemon_socket::parse;
use crate::{Failure, daemon_socket, print};
use rates::{Rates, Sample};
use screen::{Key, Screen};
use view::View;

#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// The daemon's admin socket [default: that of the only daemon that runs]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Take a sample this often, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    interval: Duration,
    /// End after this many samples
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Print each sample below the one before, as where stdout is no terminal
    #[arg(long)]
    plain: bool,
    /// Print each sample as one line of JSON
    #[arg(long, conflicts_with = "plain")]
    json: bool,
}

/// Reads an interval.
fn interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let range = Duration::from_millis(100)..=Duration::from_secs(3600);
    seconds.filter(|span| range.contains(span)).ok_or_else(|| "must be 0.1 to 3600 seconds".to_owned())
}

pub(crate) fn run(args: &TopArgs) -> Result<(), Failure> {
    let mut source = Source::open(args)?;
    if args.json || args.plain || !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return print_samples(args, &mut source);
    }
    let mut screen =
        Screen::open().map_err(|why| Failure::Failed(format!("cannot use the terminal: {why}")))?;
    let shown = show(args, &mut source, &mut screen);
    drop(screen);
    shown.map_err(|why| Failure::Failed(format!("cannot write to the terminal: {why}")))
}

/// Where samples come from: the daemon, to which the connection is made anew after it restarted.
struct Source {
    socket: Option<PathBuf>,
    connection: Option<Connection>,
}

impl Source {
    fn open(args: &TopArgs) -> Result<Self, Failure> {
        let connection = daemon_socket::connect(args.socket.as_deref())?;
        // The daemon that was found is followed, whichever others start.
        let socket = Some(connection.path().to_path_buf());
        Ok(Self { socket, connection: Some(connection) })
    }

    fn sample(&mut self) -> Result<Sample, Failure> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => daemon_socket::connect(self.socket.as_deref())?,
        };
        let told = |error: ClientError| Failure::Failed(error.to_string());
        let status: Status = parse(connection.call(&Request::new(Method::Status)).map_err(told)?)?;
        let luns: Luns = parse(connection.call(&Request::new(Method::Luns)).map_err(told)?)?;
        let sessions: Sessions = parse(connection.call(&Request::new(Method::Sessions)).map_err(told)?)?;
        self.connection = Some(connection);
        Ok(Sample::new(Instant::now(), status, luns, sessions))
    }
}

/// Prints one sample below the other.
fn print_samples(args: &TopArgs, source: &mut Source) -> Result<(), Failure> {
    let mut before = source.sample()?;
    let mut count = 0;
    while args.count.is_none_or(|most| count < most) {
        std::thread::sleep(args.interval);
        let now = source.sample()?;
        let rates = Rates::between(&before, &now);
        if args.json {
            let line = serde_json::to_string(&rates).map_err(|why| Failure::Failed(why.to_string()))?;
            print(&format!("{line}\n"));
        } else {
            print(&format!("{}\n", view::whole(&rates)));
        }
        crate::printed()?;
        if crate::UNPRINTED.get().is_some() {
            return Ok(());
        }
        before = now;
        count += 1;
    }
    Ok(())
}

/// Shows samples on the terminal until a key or a signal ends it.
fn show(args: &TopArgs, source: &mut Source, screen: &mut Screen) -> io::Result<()> {
    let mut view = View::default();
    let mut before: Option<Sample> = None;
    let mut rates: Option<Rates> = None;
    let mut count = 0;
    loop {
        let due = Instant::now() + args.interval;
        match source.sample() {
            Ok(now) => {
                rates = before.as_ref().map(|before| Rates::between(before, &now));
                view.trouble = None;
                before = Some(now);
            }
            Err(Failure::Failed(why) | Failure::Misused(why) | Failure::Misconfigured(why)) => {
                // What the counters were says nothing after a restart.
                before = None;
                view.trouble = Some(why);
            }
        }
        loop {
            let (width, height) = screen.size()?;
            screen.show(&view.lines(rates.as_ref(), width, height))?;
            match screen.key(due.saturating_duration_since(Instant::now()))? {
                None => break,
                Some(Key::Quit) => return Ok(()),
                Some(key) => view.press(key, height),
            }
        }
        count += u64::from(rates.is_some());
        if args.count.is_some_and(|most| count >= most) {
            return Ok(());
        }
    }
}
