use alloc::vec;

use base::buffer::Bytes;
use base::rng::Rng;
use scsi::lun::Lun;

use super::*;

const B512: BlockSize = BlockSize::B512;

/// The data of some units, and the calls that wait for an answer.
struct World {
    units: Vec<(BlockSize, Vec<u8>)>,
    /// The ranges of a token, on unit 0.
    token: Vec<BlockRange>,
    calls: Vec<(u32, usize, ThirdPartyRequest)>,
    next_call: u32,
    most_calls: usize,
}

/// Returns bytes in which no two blocks are equal; cheap enough to generate megabytes.
fn noise(rng: &mut Rng, len: usize) -> Vec<u8> {
    let mut base = vec![0; 512];
    rng.fill(&mut base);
    let mut bytes = base.repeat(len / 512);
    for block in bytes.chunks_mut(512) {
        let at = usize::try_from(rng.below(500)).unwrap();
        block[at..at + 8].copy_from_slice(&rng.next_u64().to_le_bytes());
    }
    bytes
}

fn unit(number: u16) -> ThirdPartyUnit {
    ThirdPartyUnit::Lun(Lun::from_number(number).unwrap())
}

fn range(lba: u64, blocks: u64) -> BlockRange {
    BlockRange { lba: Lba(lba), blocks: Blocks(blocks) }
}

impl World {
    fn new(rng: &mut Rng, sizes: &[(BlockSize, usize)]) -> Self {
        let units = sizes.iter().map(|(block, blocks)| (*block, noise(rng, blocks << block.shift())));
        Self { units: units.collect(), token: Vec::new(), calls: Vec::new(), next_call: 0, most_calls: 0 }
    }

    fn go(&mut self, transfer: &mut Transfer) -> TransferState {
        let (calls, next) = (&mut self.calls, &mut self.next_call);
        let standing = transfer.advance(&mut |unit, request| {
            let ThirdPartyUnit::Lun(lun) = unit else { panic!("{unit:?}") };
            *next += 1;
            calls.push((*next, usize::from(lun.number().unwrap()), request));
            *next
        });
        self.most_calls = self.most_calls.max(self.calls.len());
        standing
    }

    /// Executes a call, and returns the answer.
    fn serve(&mut self, number: usize, request: ThirdPartyRequest) -> ThirdPartyResult {
        let (block, medium) = &mut self.units[number];
        let bytes = |lba: Lba, blocks: Blocks| {
            let at = usize::try_from(lba.0 << block.shift()).unwrap();
            at..at + usize::try_from(blocks.0 << block.shift()).unwrap()
        };
        match request {
            ThirdPartyRequest::Read { lba, blocks } => {
                let data = Bytes::copied_from(&medium[bytes(lba, blocks)]);
                Ok(ThirdPartyReply::Data(data.into()))
            }
            ThirdPartyRequest::Write { lba, data } => {
                let at = bytes(lba, Blocks(0)).start;
                data.copy_to(0, &mut medium[at..at + data.len()]);
                Ok(ThirdPartyReply::Done)
            }
            ThirdPartyRequest::Zero { lba, blocks } => {
                medium[bytes(lba, blocks)].fill(0);
                Ok(ThirdPartyReply::Done)
            }
            ThirdPartyRequest::ReadToken { offset, blocks, .. } => {
                let mut skip = offset.0;
                for range in &self.token {
                    if skip < range.blocks.0 {
                        let len = blocks.0.min(range.blocks.0 - skip);
                        let data = &medium[bytes(Lba(range.lba.0 + skip), Blocks(len))];
                        return Ok(ThirdPartyReply::Data(Bytes::copied_from(data).into()));
                    }
                    skip -= range.blocks.0;
                }
                panic!("beyond the token")
            }
            other => panic!("{other:?}"),
        }
    }

    /// Answers calls in any order until the transfer is over. `fail_at` counts down the calls until one
    /// fails.
    fn run(&mut self, rng: &mut Rng, transfer: &mut Transfer, mut fail_at: Option<u64>) -> TransferState {
        loop {
            let standing = self.go(transfer);
            if standing != TransferState::Going {
                assert!(self.calls.is_empty(), "calls under way at the end");
                return standing;
            }
            let count = u64::try_from(self.calls.len()).unwrap();
            let at = usize::try_from(rng.below(count)).unwrap();
            let (call, number, request) = self.calls.swap_remove(at);
            let failed = fail_at == Some(0);
            fail_at = fail_at.and_then(|left| left.checked_sub(1));
            let result = if failed { Err(NO) } else { self.serve(number, request) };
            transfer.answered(call, result);
        }
    }
}

const NO: ThirdPartyError = ThirdPartyError::Status(Status::RESERVATION_CONFLICT, None);

fn below(rng: &mut Rng, bound: u64) -> u64 {
    rng.below(bound)
}

#[test]
fn any_copy_within_a_unit_is_as_if_all_was_read_before_anything_was_written() {
    for seed in 0..60 {
        let mut rng = Rng::from_seed(seed);
        let blocks = 8192;
        let mut world = World::new(&mut rng, &[(B512, 8192)]);
        let len = 1 + below(&mut rng, 6000);
        let (from, to) = (below(&mut rng, blocks - len), below(&mut rng, blocks - len));
        let before = world.units[0].1.clone();
        let source = Source::Unit { unit: unit(0), block: B512, at: from << 9 };
        let mut transfer = Transfer::new(source, unit(0), B512, &[range(to, len)]);
        assert_eq!(world.run(&mut rng, &mut transfer, None), TransferState::Finished, "seed {seed}");
        let bytes = |lba: u64| usize::try_from(lba << 9).unwrap();
        let mut wanted = before.clone();
        wanted[bytes(to)..bytes(to + len)].copy_from_slice(&before[bytes(from)..bytes(from + len)]);
        assert!(world.units[0].1 == wanted, "seed {seed}: {len} blocks from {from} to {to}");
        assert_eq!((transfer.written(), transfer.prefix()), (len << 9, len << 9));
        assert!(world.most_calls <= PIECES_UNDER_WAY);
    }
}

#[test]
fn bytes_go_between_units_of_different_block_sizes_and_from_inside_a_block() {
    for seed in 0..40 {
        let mut rng = Rng::from_seed(seed);
        let mut world = World::new(&mut rng, &[(B512, 16384), (BlockSize::B4096, 2048)]);
        let (from, to) = if rng.chance(1, 2) { (0, 1) } else { (1, 0) };
        let (from_block, to_block) = (world.units[from].0, world.units[to].0);
        let blocks = 1 + below(&mut rng, (2 << 20 >> to_block.shift()) - 1);
        let lba = below(&mut rng, (8 << 20 >> to_block.shift()) - blocks);
        let len = blocks << to_block.shift();
        let at = below(&mut rng, (8 << 20) - len);
        let before = world.units[from].1.clone();
        let number = |at: usize| unit(u16::try_from(at).unwrap());
        let source = Source::Unit { unit: number(from), block: from_block, at };
        let mut transfer = Transfer::new(source, number(to), to_block, &[range(lba, blocks)]);
        assert_eq!(world.run(&mut rng, &mut transfer, None), TransferState::Finished, "seed {seed}");
        let narrow = |value: u64| usize::try_from(value).unwrap();
        let wanted = &before[narrow(at)..narrow(at + len)];
        let start = narrow(lba << to_block.shift());
        assert!(&world.units[to].1[start..start + narrow(len)] == wanted, "seed {seed}");
    }
}

#[test]
fn a_tokens_ranges_and_the_ranges_written_need_not_match() {
    for seed in 0..40 {
        let mut rng = Rng::from_seed(seed);
        let mut world = World::new(&mut rng, &[(B512, 8192), (B512, 8192)]);
        let mut runs = |space: u64| {
            let mut ranges = Vec::new();
            let mut at = 0;
            while at < space {
                let len = below(&mut rng, 1500);
                ranges.push(range(at, len));
                at += len + below(&mut rng, 300);
            }
            ranges
        };
        world.token = runs(6000);
        let ranges = runs(3000);
        let total = blocks_of(&world.token).unwrap();
        let offset = Blocks(below(&mut rng, total.0));
        let ranges = cut_to(&ranges, Blocks(total.0 - offset.0));
        let flat = |medium: &[u8], ranges: &[BlockRange]| -> Vec<u8> {
            let run = |range: &BlockRange| {
                let at = usize::try_from(range.lba.0 << 9).unwrap();
                medium[at..at + usize::try_from(range.blocks.0 << 9).unwrap()].to_vec()
            };
            ranges.iter().flat_map(run).collect()
        };
        let source = Source::Token { unit: unit(0), token: Rc::from([0; 4]), block: B512, offset };
        let mut transfer = Transfer::new(source, unit(1), B512, &ranges);
        assert_eq!(world.run(&mut rng, &mut transfer, None), TransferState::Finished, "seed {seed}");
        let data = flat(&world.units[0].1, &world.token);
        let start = usize::try_from(offset.0 << 9).unwrap();
        let got = flat(&world.units[1].1, &ranges);
        assert!(data[start..start + got.len()] == got, "seed {seed}");
    }
}

#[test]
fn zeros_are_written_without_being_read() {
    let mut rng = Rng::from_seed(1);
    let mut world = World::new(&mut rng, &[(B512, 4096)]);
    let ranges = [range(10, 3000), range(0, 1), range(4000, 0)];
    let mut transfer = Transfer::new(Source::Zeros, unit(0), B512, &ranges);
    assert_eq!(world.run(&mut rng, &mut transfer, None), TransferState::Finished);
    let medium = &world.units[0].1;
    let zeros = |lba: usize| medium[lba * 512..lba * 512 + 512].iter().all(|byte| *byte == 0);
    assert!((10..3010).all(zeros) && zeros(0) && !zeros(9) && !zeros(3010) && !zeros(4000));
}

#[test]
fn after_a_failure_no_call_is_placed_and_the_prefix_is_true() {
    for seed in 0..40 {
        let mut rng = Rng::from_seed(seed);
        let mut world = World::new(&mut rng, &[(B512, 8192), (B512, 8192)]);
        let before = world.units[1].1.clone();
        let source = Source::Unit { unit: unit(0), block: B512, at: 0 };
        let mut transfer = Transfer::new(source, unit(1), B512, &[range(0, 8192)]);
        let fail_at = below(&mut rng, 16);
        let standing = world.run(&mut rng, &mut transfer, Some(fail_at));
        assert!(matches!(standing, TransferState::Failed(TransferFault { fault: NO, .. })), "seed {seed}");
        let prefix = usize::try_from(transfer.prefix()).unwrap();
        assert!(transfer.prefix() <= transfer.written());
        assert!(world.units[1].1[..prefix] == world.units[0].1[..prefix], "seed {seed}");
        let changed = world.units[1].1.chunks(512).zip(before.chunks(512)).filter(|(a, b)| a != b).count();
        assert_eq!(u64::try_from(changed * 512).unwrap(), transfer.written(), "seed {seed}");
    }
}

#[test]
fn an_answer_of_the_wrong_length_or_kind_is_a_failure() {
    let short = || DataList::from(Bytes::copied_from(&[0; 512]));
    for answer in
        [ThirdPartyReply::Done, ThirdPartyReply::Data(short()), ThirdPartyReply::Data(DataList::new())]
    {
        let mut world = World::new(&mut Rng::from_seed(0), &[(B512, 16), (B512, 16)]);
        let source = Source::Unit { unit: unit(0), block: B512, at: 0 };
        let mut transfer = Transfer::new(source, unit(1), B512, &[range(0, 2)]);
        assert_eq!(world.go(&mut transfer), TransferState::Going);
        transfer.answered(world.calls[0].0, Ok(answer));
        let fault = TransferFault { side: ForwardedFrom::Source, fault: BROKEN_ANSWER };
        assert_eq!(world.go(&mut transfer), TransferState::Failed(fault));
    }
}
