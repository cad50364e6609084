use super::*;
use base::buffer::Bytes;
use base::ether::Mac;
use base::rng::Rng;

fn message(head: usize, body: usize, level: Level) -> Message {
    let body = (0..body).step_by(100).map(|at| {
        let part: Vec<u8> = (at..body.min(at + 100)).map(|byte| u8::try_from(byte % 251).unwrap()).collect();
        Bytes::copied_from(&part)
    });
    let mut list = DataList::new();
    body.for_each(|part| list.push(part));
    let block = Message::block(Cmd::Request, 1, 1, level, alloc::vec![0xee; head]);
    Message { body: list, ..block }
}

/// Takes everything that a packet number space has to send, in parts of up to `room` bytes, as (message,
/// from, to).
fn take_all(send_queue: &mut SendQueue, lane: usize, room: usize) -> Vec<(Key, u32, u32)> {
    core::iter::from_fn(|| send_queue.take(lane, room))
        .map(|chunk| (chunk.key, chunk.from, chunk.to))
        .collect()
}

#[test]
fn a_head_is_never_cut_and_the_rest_goes_out_as_it_fits() {
    let mut send_queue = SendQueue::default();
    let key = send_queue.push(message(60, 200, Level::None));
    assert_eq!(send_queue.take(0, 59), None);
    let first = send_queue.take(0, 100).unwrap();
    assert_eq!((first.from, first.to), (0, 100));
    assert_eq!(take_all(&mut send_queue, 0, 100), [(key, 100, 200), (key, 200, 260)]);
    assert!(send_queue.lost(&first));
    assert_eq!(send_queue.take(0, 59), None);
    assert_eq!(take_all(&mut send_queue, 0, 80), [(key, 0, 80), (key, 80, 100)]);
}

#[test]
fn a_message_without_bytes_is_sent_and_acknowledged_like_the_others() {
    let mut send_queue = SendQueue::default();
    send_queue.push(message(0, 0, Level::None));
    let chunk = send_queue.take(0, 100).unwrap();
    assert!(send_queue.is_end(&chunk) && send_queue.message(&chunk).unwrap().is_empty());
    assert!(send_queue.lost(&chunk));
    let again = send_queue.take(0, 100).unwrap();
    assert!(
        send_queue.arrived(&again).is_some() && send_queue.len() == 0 && send_queue.arrived(&chunk).is_none()
    );
}

#[test]
fn urgent_messages_go_first_then_what_was_lost_then_the_others_in_turn() {
    let mut send_queue = SendQueue::default();
    let long = send_queue.push(message(0, 1 << 20, Level::Integrity));
    let room = 128 << 10;
    let first = send_queue.take(1, room).unwrap();
    let short = send_queue.push(message(0, 1000, Level::Encrypt));
    let urgent = send_queue.push(Message { urgent: true, ..message(10, 0, Level::Integrity) });
    send_queue.lost(&first);
    assert!(send_queue.has_more(1) && !send_queue.has_more(0));
    let order: Vec<_> =
        take_all(&mut send_queue, 1, room).into_iter().map(|(key, from, _)| (key, from >> 17)).collect();
    let turns = [(urgent, 0), (long, 0), (long, 1), (short, 0), (long, 2)];
    assert_eq!(order[..5], turns);
    assert_eq!(order.len(), 5 + 5);
}

#[test]
fn what_comes_next_travels_beside_a_part_if_it_fits_whole_and_belongs_there() {
    let mut send_queue = SendQueue::default();
    let push = |send_queue: &mut SendQueue, len, level| send_queue.push(message(len, 0, level));
    let a = push(&mut send_queue, 100, Level::Encrypt);
    let b = push(&mut send_queue, 60, Level::Encrypt);
    let c = send_queue.push(message(10, 1000, Level::Encrypt));
    let d = push(&mut send_queue, 60, Level::Integrity);
    let first = send_queue.take(1, 500).unwrap();
    assert_eq!(first.key, a);
    assert_eq!(send_queue.take_beside(1, 59, &first), None);
    assert_eq!(send_queue.take_beside(1, 60, &first), Some(Chunk { key: b, from: 0, to: 60 }));
    // A part that does not fit whole waits for a frame of its own, and so do the parts behind it.
    assert_eq!(send_queue.take_beside(1, 1009, &first), None);
    assert_eq!(take_all(&mut send_queue, 1, 1010)[..1], [(c, 0, 1010)]);
    // Another protection level needs another frame.
    let again = push(&mut send_queue, 5, Level::Integrity);
    assert_eq!(send_queue.take_beside(1, 500, &first), None);
    let first = send_queue.take(1, 500).unwrap();
    assert_eq!((first.key, send_queue.take_beside(1, 500, &first)), (again, None));
    assert!(send_queue.message(&Chunk { key: d, from: 0, to: 60 }).is_some() && !send_queue.has_more(1));
}

#[test]
fn only_what_commands_are_made_of_shares_a_frame_and_not_with_the_other_direction() {
    for (first, next) in [
        (Cmd::Request, Cmd::Abort),
        (Cmd::Abort, Cmd::Abort),
        (Cmd::Disconnect, Cmd::Reply),
        (Cmd::Reply, Cmd::Request),
    ] {
        let mut send_queue = SendQueue::default();
        let of = |cmd| Message { cmd, ..message(10, 0, Level::None) };
        send_queue.push(of(first));
        send_queue.push(of(next));
        let first = send_queue.take(0, 500).unwrap();
        assert_eq!(send_queue.take_beside(0, 500, &first), None);
        assert!(send_queue.take(0, 500).is_some());
    }
}

#[test]
fn what_was_lost_travels_beside_others_range_by_range_in_the_order_of_the_queues() {
    let mut send_queue = SendQueue::default();
    let a = send_queue.push(message(10, 290, Level::None));
    let chunks: Vec<Chunk> = core::iter::from_fn(|| send_queue.take(0, 100)).collect();
    assert_eq!(chunks.len(), 3);
    let b = send_queue.push(message(0, 0, Level::None));
    send_queue.lost(&chunks[0]);
    send_queue.lost(&chunks[2]);
    let first = send_queue.take(0, 500).unwrap();
    assert_eq!((first.from, first.to), (0, 100));
    let beside: Vec<_> = core::iter::from_fn(|| send_queue.take_beside(0, 100, &first))
        .map(|c| (c.key, c.from, c.to))
        .collect();
    assert_eq!(beside, [(a, 200, 300), (b, 0, 1)]);
}

#[test]
fn long_messages_follow_each_other_and_short_ones_take_turns_with_them() {
    let mut send_queue = SendQueue::default();
    let room = 64 << 10;
    let longs = [1 << 20, (1 << 20) + 1, 1 << 20].map(|len| send_queue.push(message(0, len, Level::None)));
    // Two portions of commands with their first bursts.
    let shorts: Vec<Key> = (0..8).map(|_| send_queue.push(message(0, room, Level::None))).collect();
    let mut order: Vec<Key> = take_all(&mut send_queue, 0, room).into_iter().map(|(key, ..)| key).collect();
    order.dedup();
    let (first, second) = shorts.split_at(4);
    let [a, b, c] = longs;
    // A message that is one byte longer than a long one's portion lets the next message pass before its last
    // byte.
    let want = [first, &[a], second, &[a, b, c, b]].concat();
    assert_eq!(order, want);
}

#[test]
fn what_was_withdrawn_is_neither_sent_nor_repeated() {
    let mut send_queue = SendQueue::default();
    let (a, b) =
        (send_queue.push(message(0, 500, Level::None)), send_queue.push(message(0, 500, Level::None)));
    let first = send_queue.take(0, 200).unwrap();
    assert_eq!(first.key, a);
    send_queue.lost(&first);
    assert!(send_queue.withdraw(a).is_some() && send_queue.withdraw(a).is_none());
    assert!(!send_queue.lost(&first) && send_queue.arrived(&first).is_none());
    assert_eq!(take_all(&mut send_queue, 0, 500), [(b, 0, 500)]);
}

#[test]
fn parts_of_any_size_lost_and_arriving_in_any_order_make_the_message_whole() {
    for seed in 0..300 {
        let mut rng = Rng::from_seed(seed);
        let mut send_queue = SendQueue::default();
        let (head, body) = (rng.below(40), rng.below(3000));
        send_queue.push(message(usize::try_from(head).unwrap(), usize::try_from(body).unwrap(), Level::None));
        let (mut under_way, mut truth, mut done) = (Vec::new(), Ranges::new(), false);
        let whole = (head + body).max(1);
        while !done {
            let room = 40 + usize::try_from(rng.below(400)).unwrap();
            if rng.chance(1, 2)
                && let Some(chunk) = send_queue.take(0, room)
            {
                under_way.push(chunk);
            }
            if under_way.is_empty() {
                continue;
            }
            let at = usize::try_from(rng.below(under_way.len() as u64)).unwrap();
            let chunk = under_way[at];
            match rng.below(4) {
                0 => _ = send_queue.lost(&under_way.swap_remove(at)),
                // Retransmitted before it is known whether it arrived.
                1 => _ = send_queue.lost(&chunk),
                _ => {
                    truth.insert(u64::from(chunk.from), u64::from(chunk.to));
                    done = send_queue.arrived(&chunk).is_some();
                    assert_eq!(done, truth.runs() == [(0, whole)], "seed {seed}: {truth:?} of {whole}");
                    under_way.swap_remove(at);
                }
            }
        }
        assert_eq!(send_queue.len(), 0, "seed {seed}");
        assert!(under_way.iter().all(|chunk| !send_queue.lost(chunk) && send_queue.arrived(chunk).is_none()));
    }
}

#[test]
fn the_bytes_of_a_part_are_those_of_the_message_shared_or_copied() {
    for seed in 0..100 {
        let mut rng = Rng::from_seed(seed);
        let (head, body) =
            (usize::try_from(rng.below(50)).unwrap(), usize::try_from(1 + rng.below(900)).unwrap());
        let mut send_queue = SendQueue::default();
        let key = send_queue.push(message(head, body, Level::None));
        let whole: Vec<u8> = core::iter::repeat_n(0xee, head)
            .chain((0..body).map(|byte| u8::try_from(byte % 251).unwrap()))
            .collect();
        for _ in 0..20 {
            let from = usize::try_from(rng.below(whole.len() as u64)).unwrap();
            let to = from + usize::try_from(rng.below((whole.len() - from) as u64 + 1)).unwrap();
            let chunk = Chunk { key, from: u32::try_from(from).unwrap(), to: u32::try_from(to).unwrap() };
            let mut batch = FrameBatch::new();
            batch.begin_frame(Mac::BROADCAST);
            send_queue.write(&chunk, rng.chance(1, 2), &mut batch);
            let written: Vec<u8> = batch.open_pieces().flatten().copied().collect();
            assert!(written == whole[from..to], "seed {seed}: {from}..{to} of {head}+{body}");
        }
    }
}
