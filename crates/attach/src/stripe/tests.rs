use std::sync::Mutex;

use base::buffer::Bytes;
use base::rng::Rng;
use store::api::{Durability, ExtentState};

use super::*;
use crate::testing::{Medium, seed};
use crate::unaligned::UnalignedStore;

const CHUNK: u64 = 4096;

fn stripe(members: &[Arc<Medium>]) -> Stripe {
    let members = members.iter().map(|member| Arc::clone(member) as Arc<dyn SharedStore>).collect();
    Stripe::new(members, CHUNK).unwrap()
}

fn media(lens: &[u64]) -> Vec<Arc<Medium>> {
    lens.iter().map(|len| Medium::new(*len, 512, 1 << 20)).collect()
}

fn does(disk: &dyn SharedStore, action: OpAction) -> Result<OpOutput, Failure> {
    let slot = Arc::new(Mutex::new(None));
    let there = Arc::clone(&slot);
    disk.submit(action, Box::new(move |result| *there.lock().unwrap() = Some(result)));
    slot.lock().unwrap().take().expect("the media answer at once")
}

fn write(at: u64, bytes: &[u8]) -> OpAction {
    OpAction::Write { at, data: Bytes::copied_from(bytes).into(), durability: Durability::Stable }
}

#[test]
fn chunks_lie_on_the_members_in_turn() {
    let members = media(&[1 << 20, 1 << 20, 1 << 20]);
    let disk = stripe(&members);
    let bytes: Vec<u8> = (0..8).flat_map(|chunk| [chunk + 1; CHUNK as usize]).collect();
    does(&disk, write(0, &bytes)).unwrap();
    let firsts = |member: &Arc<Medium>| [0, 1, 2].map(|row| member.bytes(row * CHUNK, 1)[0]);
    assert_eq!(firsts(&members[0]), [1, 4, 7]);
    assert_eq!(firsts(&members[1]), [2, 5, 8]);
    assert_eq!(firsts(&members[2]), [3, 6, 0]);
    let one_each = members.iter().map(|member| member.log()).collect::<Vec<_>>();
    assert_eq!(one_each, [["write Stable 0+12288"], ["write Stable 0+12288"], ["write Stable 0+8192"]]);
}

#[test]
fn is_as_long_as_the_shortest_allows() {
    let members = media(&[100 << 10, (96 << 10) + 512, 1 << 20]);
    assert_eq!(stripe(&members).capabilities().len, 3 * (96 << 10));
    members[1].change_profile(|profile| profile.len = 200 << 10);
    assert_eq!(stripe(&members).capabilities().len, 3 * (100 << 10));
    members[2].change_profile(|profile| profile.read_only = true);
    assert!(stripe(&members).capabilities().read_only);
    assert_eq!(does(&stripe(&members), write(300 << 10, &[1; 512])).unwrap_err().fault, Fault::OutOfRange);
}

#[test]
fn what_does_not_fit_together_is_refused() {
    let join = |members: &[Arc<Medium>], chunk| {
        let members = members.iter().map(|member| Arc::clone(member) as Arc<dyn SharedStore>).collect();
        Stripe::new(members, chunk).err()
    };
    assert_eq!(join(&[], CHUNK), Some(StripeError::Nothing));
    for chunk in [0, 512, 5000, 3 << 20, 2 << 30] {
        assert_eq!(join(&media(&[1 << 20]), chunk), Some(StripeError::Chunk(chunk)));
    }
    let large_blocks = Medium::new(1 << 20, 8192, 1 << 20);
    assert_eq!(join(&[large_blocks], 4096), Some(StripeError::Blocks { chunk: 4096, granule: 8192 }));
    assert_eq!(join(&media(&[1 << 20, 512]), 4096), Some(StripeError::Small(1)));
}

#[test]
fn a_failure_is_told_where_it_is_in_the_whole() {
    let members = media(&[1 << 20, 1 << 20]);
    let disk = stripe(&members);
    members[1].fail(Some(Failure { fault: Fault::Medium, at: Some(CHUNK + 512) }));
    let failure = does(&disk, OpAction::Read { at: 0, len: 1 << 20 }).unwrap_err();
    assert_eq!(failure, Failure { fault: Fault::Medium, at: Some(3 * CHUNK + 512) });
    assert!(does(&disk, OpAction::Flush).is_err(), "all are flushed");
    assert!(does(&disk, OpAction::Read { at: 0, len: 512 }).is_ok(), "the other one is well");
}

#[test]
fn extents_are_interleaved() {
    let members = media(&[256 << 10, 256 << 10]);
    let disk = stripe(&members);
    // A medium in memory allocates storage in runs of 64 KiB; the first run of the second member is
    // allocated.
    does(&*members[1], write(0, &[1; 512])).unwrap();
    let Ok(OpOutput::MapStatus(list)) =
        does(&disk, OpAction::MapStatus { at: 512, len: 4 * CHUNK, count_max: 9 })
    else {
        panic!("no extents");
    };
    let shown: Vec<_> = list.iter().map(|extent| (extent.at, extent.len, extent.state)).collect();
    use ExtentState::{Hole, Mapped};
    let expected = [
        (512, 3584, Hole),
        (4096, 4096, Mapped),
        (8192, 4096, Hole),
        (12288, 4096, Mapped),
        (16384, 512, Hole),
    ];
    assert_eq!(shown, expected);
    let Ok(OpOutput::MapStatus(list)) =
        does(&disk, OpAction::MapStatus { at: 0, len: 8 * CHUNK, count_max: 2 })
    else {
        panic!("no extents");
    };
    assert_eq!(list.len(), 2);
}

/// Compares the stripe with one plain array of bytes, through random ranges.
#[test]
fn is_one_disk() {
    let mut rng = Rng::from_seed(seed());
    for count in 1..5 {
        let members = media(&vec![64 << 10; count]);
        let disk = UnalignedStore::new(Arc::new(stripe(&members)));
        let len = disk.capabilities().len;
        let mut expected = vec![0; len as usize];
        for step in 0..300 {
            let at = rng.below(len);
            let part_max = 1 << rng.below(18);
            let part = 1 + rng.below(part_max).min(len - at - 1);
            let range = at as usize..(at + part) as usize;
            match rng.below(4) {
                0 => {
                    let zero = OpAction::WriteZeroes {
                        at,
                        len: part,
                        may_deallocate: true,
                        durability: Durability::Cached,
                    };
                    does(&disk, zero).unwrap();
                    expected[range].fill(0);
                }
                1 => {
                    let Ok(OpOutput::Data(list)) = does(&disk, OpAction::Read { at, len: part as usize })
                    else {
                        panic!("cannot read");
                    };
                    let mut read = vec![0; part as usize];
                    assert_eq!(list.copy_to(0, &mut read), read.len());
                    assert!(read == expected[range], "{count} members, step {step}");
                }
                _ => {
                    let mut bytes = vec![0; part as usize];
                    rng.fill(&mut bytes);
                    does(&disk, write(at, &bytes)).unwrap();
                    expected[range].copy_from_slice(&bytes);
                }
            }
        }
    }
}
