//! A bare TCP conversation in the shapes of iSCSI, without iSCSI: a read is a header answered by a header and
//! a block, a write is a header and a block answered by a header. The header holds the length of the answer.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use crate::Failure;
use crate::arguments::{Arguments, Direction};
use crate::exchange::{self, Exchange, Taken};

/// As long as an iSCSI basic header segment.
const HEADER_LEN: usize = 48;
const RECEIVE_LEN: usize = 256 << 10;
/// The longest answer served: a block of 16 MiB.
const ANSWER_LEN_MAX: usize = (16 << 20) + HEADER_LEN;

/// Answers until the process is killed, one thread per connection. Prints the address it listens on.
pub(crate) fn serve(mut arguments: Arguments) -> Result<(), Failure> {
    let listener = TcpListener::bind(arguments.word("address")?)?;
    println!("{}", listener.local_addr()?);
    for stream in listener.incoming() {
        let mut stream = stream?;
        stream.set_nodelay(true)?;
        std::thread::spawn(move || answer(&mut stream).unwrap_or_else(|why| eprintln!("load: {why}")));
    }
    Ok(())
}

fn answer(stream: &mut TcpStream) -> Result<(), Failure> {
    let mut received = vec![0_u8; RECEIVE_LEN];
    let block = vec![0x5a_u8; ANSWER_LEN_MAX];
    let (mut filled, mut to_skip) = (0_usize, 0_usize);
    let mut out = Vec::new();
    loop {
        let room = received.get_mut(filled..).unwrap_or_default();
        match stream.read(room)? {
            0 => return Ok(()),
            more => filled = filled.saturating_add(more),
        }
        let mut used = 0_usize;
        while used < filled {
            if to_skip > 0 {
                let skipped = to_skip.min(filled.saturating_sub(used));
                to_skip = to_skip.saturating_sub(skipped);
                used = used.saturating_add(skipped);
                continue;
            }
            let Some(header) = received.get(used..filled).and_then(Header::parse) else { break };
            used = used.saturating_add(HEADER_LEN);
            to_skip = header.follows;
            // An answer of many blocks at once goes straight from where it lies, as a target with its data in
            // memory would send it.
            let answer = block.get(..header.answer).ok_or("an answer longer than is served")?;
            if header.answer > RECEIVE_LEN {
                stream.write_all(&out)?;
                out.clear();
                stream.write_all(answer)?;
            } else {
                out.extend_from_slice(answer);
            }
        }
        received.copy_within(used..filled, 0);
        filled = filled.saturating_sub(used);
        if !out.is_empty() {
            stream.write_all(&out)?;
            out.clear();
        }
    }
}

/// The part of a request's header that says something: how many bytes follow it, and how many to answer.
struct Header {
    follows: usize,
    answer: usize,
}

impl Header {
    fn parse(bytes: &[u8]) -> Option<Self> {
        let header = bytes.get(..HEADER_LEN)?;
        let number = |at: usize| {
            let field = header.get(at..at.checked_add(4)?)?;
            usize::try_from(u32::from_be_bytes(field.try_into().ok()?)).ok()
        };
        Some(Self { follows: number(0)?, answer: number(4)? })
    }

    fn bytes(&self) -> Result<[u8; HEADER_LEN], Failure> {
        let mut header = [0_u8; HEADER_LEN];
        let numbers = [u32::try_from(self.follows)?, u32::try_from(self.answer)?];
        for (field, number) in header.chunks_exact_mut(4).zip(numbers) {
            field.copy_from_slice(&number.to_be_bytes());
        }
        Ok(header)
    }
}

pub(crate) fn run(mut arguments: Arguments) -> Result<(), Failure> {
    let mut stream = TcpStream::connect(arguments.word("address")?)?;
    stream.set_nodelay(true)?;
    let block: usize = arguments.number("bs")?;
    let answer = block.saturating_add(HEADER_LEN);
    let mut client = match arguments.direction()? {
        Direction::Read => Client::new(&Header { follows: 0, answer }, 0)?,
        Direction::Write => Client::new(&Header { follows: block, answer: HEADER_LEN }, block)?,
    };
    let duration = Duration::from_secs_f64(arguments.number("seconds")?);
    exchange::run(&mut stream, &mut client, arguments.number("depth")?, duration)?.print();
    Ok(())
}

struct Client {
    request: Vec<u8>,
    answer_len: usize,
    /// Bytes of the current answer still to come; 0 between answers.
    missing: usize,
}

impl Client {
    fn new(header: &Header, block: usize) -> Result<Self, Failure> {
        let mut request = header.bytes()?.to_vec();
        request.resize(HEADER_LEN.saturating_add(block), 0xa5);
        Ok(Self { request, answer_len: header.answer, missing: 0 })
    }
}

impl Exchange for Client {
    fn request(&mut self, out: &mut Vec<u8>) -> bool {
        out.extend_from_slice(&self.request);
        true
    }

    fn take(&mut self, bytes: &[u8], _: &mut Vec<u8>) -> Result<Taken, Failure> {
        if bytes.is_empty() {
            return Ok(Taken::default());
        }
        if self.missing == 0 {
            self.missing = self.answer_len;
        }
        let taken = self.missing.min(bytes.len());
        self.missing = self.missing.saturating_sub(taken);
        Ok(Taken { bytes: taken, completed: self.missing == 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serves_reads_and_writes_of_both_shapes() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || answer(&mut listener.accept().unwrap().0).unwrap());
        let mut stream = TcpStream::connect(address).unwrap();
        for (follows, answer) in [(0, 4096 + HEADER_LEN), (4096, HEADER_LEN), (0, (1 << 20) + HEADER_LEN)] {
            let mut client = Client::new(&Header { follows, answer }, follows).unwrap();
            exchange::run(&mut stream, &mut client, 8, Duration::from_millis(5)).unwrap();
        }
    }
}
