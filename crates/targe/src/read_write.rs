//! `targe read` and `targe write`: blocks to stdout, and stdin to blocks.

use std::collections::VecDeque;
use std::io::{ErrorKind, IsTerminal, Read, Write};

use base::buffer::{Buf, DataList};
use base::int_cast::{to_u64, to_usize};
use initiator::{Disk, Error, Geometry, ResponseFuture, Url, block_on};
use store::api::{Durability, OpAction, OpOutput};

use crate::cli::{ReadArgs, SpanArgs, WriteArgs};
use crate::progress::Progress;
use crate::{Failure, confirm, connect, signals};

pub(crate) fn read(args: &ReadArgs) -> Result<(), Failure> {
    if std::io::stdout().is_terminal() && !args.force {
        let hint = "redirect it (> FILE, | xxd), or use --force";
        return Err(Failure::Misused(format!("stdout is a terminal, which binary data may garble; {hint}")));
    }
    let url = connect::url(&args.url)?;
    let client = connect::client()?;
    let session = connect::session(&client, &url)?;
    let _guard = signals::LogoutGuard::new(&session)?;
    let disk = connect::disk_of(session, &url)?;
    let end = end_of(&args.span, &disk.geometry())?;
    let span = BlockRange::new(&args.span, &disk.geometry(), end)?;
    let mut progress = Progress::new(Some(end - args.span.offset));
    let mut out = std::io::stdout().lock();
    let mut under_way: VecDeque<(ResponseFuture<OpOutput, Error>, usize, usize)> = VecDeque::new();
    let mut next = span.from;
    loop {
        while under_way.len() < span.depth && next < span.to {
            let len = span.step(next);
            let answer = disk.perform(OpAction::Read { at: next, len });
            // Only a part of the first and last blocks may be wanted.
            let skip = to_usize(args.span.offset.saturating_sub(next));
            let keep = len.min(to_usize(end - next));
            under_way.push_back((answer, skip, keep));
            next += to_u64(len);
        }
        let Some((answer, skip, keep)) = under_way.pop_front() else { break };
        let data = match answer.wait() {
            Ok(OpOutput::Data(data)) => data.slice(skip, keep),
            Ok(_) => return Err(Failure::Failed(format!("{url}: a read without data"))),
            Err(why) => return Err(failed(&url, &why)),
        };
        for part in data.parts() {
            match out.write_all(part) {
                Ok(()) => {}
                // A reader that closed the pipe early (`targe read … | head -c 512`) is no error.
                Err(why) if why.kind() == ErrorKind::BrokenPipe => return Ok(()),
                Err(why) => return Err(Failure::Failed(format!("cannot write to stdout: {why}"))),
            }
        }
        progress.add(to_u64(data.len()));
    }
    out.flush().map_err(|why| Failure::Failed(format!("cannot write to stdout: {why}")))?;
    progress.finish("read");
    Ok(())
}

pub(crate) fn write(args: &WriteArgs) -> Result<(), Failure> {
    let url = connect::url(&args.url)?;
    confirm::ask(args.write, &format!("this overwrites what is on {url}"))?;
    let client = connect::client()?;
    let session = connect::session(&client, &url)?;
    let _guard = signals::LogoutGuard::new(&session)?;
    let disk = connect::disk_of(session, &url)?;
    let geometry = disk.geometry();
    let end = end_of(&args.span, &geometry)?;
    let given = input_len();
    if let Some(given) = given
        && args.span.length.is_none()
        && given > end - args.span.offset
    {
        return Err(Failure::Failed(format!(
            "{url}: the input has {given} bytes, but the range has only {}; nothing was written",
            end - args.span.offset
        )));
    }
    if geometry.write_protected {
        return Err(Failure::Failed(format!("{url}: the unit is write protected; nothing was written")));
    }
    let span = BlockRange::new(&args.span, &geometry, end)?;
    let total = args.span.length.or(given);
    let mut writer =
        Writer { disk: &disk, url: &url, span, under_way: VecDeque::new(), progress: Progress::new(total) };
    let written = writer.copy(args.span.offset, end, args.span.length);
    // Commands under way end before anything is printed, whether the copy succeeded or not.
    let drained = writer.drain(0);
    let flushed = block_on(disk.flush()).map_err(|why| failed(&url, &why));
    let Writer { progress, .. } = writer;
    let bytes = written?;
    drained?;
    flushed?;
    match args.span.length {
        Some(length) if bytes < length => Err(Failure::Failed(format!(
            "the input ended after {bytes} of {length} bytes, which were written"
        ))),
        _ => {
            progress.finish("wrote");
            Ok(())
        }
    }
}

/// The range to transfer, in whole blocks.
struct BlockRange {
    from: u64,
    to: u64,
    chunk: u64,
    depth: usize,
}

impl BlockRange {
    fn new(args: &SpanArgs, geometry: &Geometry, end: u64) -> Result<Self, Failure> {
        let block = u64::from(geometry.block_size().bytes());
        if args.bs == 0 || !args.bs.is_multiple_of(block) || args.bs > 64 << 20 {
            return Err(Failure::Misused(format!(
                "--bs: the logical block length is {block} bytes; use a multiple of it, at most 64M"
            )));
        }
        // A LUN ends at a block boundary.
        let (from, to) = (args.offset / block * block, end.div_ceil(block) * block);
        Ok(Self { from, to, chunk: args.bs, depth: usize::try_from(args.depth).unwrap_or(1) })
    }

    /// Returns how many bytes the command at `at` transfers.
    fn step(&self, at: u64) -> usize {
        to_usize(self.chunk.min(self.to - at))
    }
}

/// Returns where the range ends, in bytes.
fn end_of(span: &SpanArgs, geometry: &Geometry) -> Result<u64, Failure> {
    let size = geometry.bytes();
    let end = match span.length {
        Some(length) => span.offset.checked_add(length),
        None => Some(size),
    };
    end.filter(|end| *end <= size && span.offset <= size)
        .ok_or_else(|| Failure::Failed(format!("the range exceeds the LUN, which has {size} bytes")))
}

struct Writer<'a> {
    disk: &'a Disk,
    url: &'a Url,
    span: BlockRange,
    under_way: VecDeque<(ResponseFuture<OpOutput, Error>, u64)>,
    progress: Progress,
}

impl Writer<'_> {
    /// Copies the input to the disk. Returns how many bytes that were.
    fn copy(&mut self, offset: u64, end: u64, length: Option<u64>) -> Result<u64, Failure> {
        let mut input = std::io::stdin().lock();
        let block = u64::from(self.disk.geometry().block_size().bytes());
        let mut at = offset;
        loop {
            // Each write ends at a chunk boundary, so that only the first and the last one can be shorter.
            let border = (at / self.span.chunk + 1) * self.span.chunk;
            let len = to_usize(border.min(end) - at);
            if len == 0 {
                break;
            }
            let mut buf = Buf::with_capacity(len);
            fill(&mut input, &mut buf, len)?;
            let came = to_u64(buf.len());
            if came > 0 {
                let (first, data) = self.whole_blocks(at, buf, block)?;
                let action = OpAction::Write { at: first, data, durability: Durability::Cached };
                self.under_way.push_back((self.disk.perform(action), came));
                self.drain(self.span.depth)?;
                at += came;
            }
            if came < to_u64(len) {
                return Ok(at - offset);
            }
        }
        if length.is_none() && input.read(&mut [0]).is_ok_and(|more| more > 0) {
            return Err(Failure::Failed(format!(
                "{}: the input is longer than the LUN; {} bytes were written",
                self.url,
                at - offset
            )));
        }
        Ok(at - offset)
    }

    /// Extends the data to whole blocks with the present content of the disk.
    fn whole_blocks(&self, at: u64, buf: Buf, block: u64) -> Result<(u64, DataList), Failure> {
        let (first, end) = (at / block * block, at + to_u64(buf.len()));
        let last = end.div_ceil(block) * block;
        if first == at && last == end {
            return Ok((first, buf.freeze().into()));
        }
        let mut whole = Buf::with_capacity(to_usize(last - first));
        let around = |from: u64, to: u64| -> Result<DataList, Failure> {
            if from == to {
                return Ok(DataList::new());
            }
            let (start, stop) = (from / block * block, to.div_ceil(block) * block);
            let data = block_on(self.disk.read(start, to_usize(stop - start)))
                .map_err(|why| failed(self.url, &why))?;
            Ok(data.slice(to_usize(from - start), to_usize(to - start)))
        };
        for part in [around(first, at)?, buf.freeze().into(), around(end, last)?] {
            for bytes in part.parts() {
                whole.append(bytes);
            }
        }
        Ok((first, whole.freeze().into()))
    }

    /// Waits until no more than `most` commands are under way.
    fn drain(&mut self, most: usize) -> Result<(), Failure> {
        let mut result = Ok(());
        while self.under_way.len() > most {
            let Some((answer, bytes)) = self.under_way.pop_front() else { break };
            match answer.wait() {
                Ok(_) => self.progress.add(bytes),
                Err(why) => result = result.and(Err(failed(self.url, &why))),
            }
        }
        result
    }
}

/// Reads until `buf` holds `len` bytes, or the input ends.
fn fill(input: &mut impl Read, buf: &mut Buf, len: usize) -> Result<(), Failure> {
    while buf.len() < len {
        let left = len - buf.len();
        let room = buf.spare_mut().get_mut(..left).unwrap_or_default();
        match input.read(room) {
            Ok(0) => break,
            Ok(count) => buf.advance(count),
            Err(why) if why.kind() == ErrorKind::Interrupted => {}
            Err(why) => return Err(Failure::Failed(format!("cannot read stdin: {why}"))),
        }
    }
    Ok(())
}

/// Returns the length of the input, if it is a file.
fn input_len() -> Option<u64> {
    use std::os::fd::AsFd;
    let file = std::fs::File::from(std::io::stdin().as_fd().try_clone_to_owned().ok()?);
    let whole = file.metadata().ok().filter(std::fs::Metadata::is_file)?.len();
    let at = std::io::Seek::stream_position(&mut &file).ok()?;
    Some(whole.saturating_sub(at))
}

fn failed(url: &Url, why: &Error) -> Failure {
    Failure::Failed(format!("{url}: {}", connect::error_chain(why)))
}
