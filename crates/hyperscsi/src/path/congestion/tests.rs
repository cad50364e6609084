use super::*;

const US: u64 = 1000;
const FRAME: u64 = 9000;

/// A link with a queue in front of it, and a sender that always has data to send.
struct Wire {
    window: Congestion,
    now: u64,
    bytes_per_s: u64,
    base: u64,
    /// The delay that other senders' queues and slow hosts add.
    other: u64,
    lost_per_thousand: u64,
}

impl Wire {
    fn new(bytes_per_s: u64, base: u64) -> Self {
        let mut window = Congestion::new(Instant(0), FRAME, Duration::from_micros(200));
        // A first, short frame, as after a handshake.
        window.sent(Instant(0), 100);
        window.acked(Instant(base), 100, 1, Instant(0), Some(Duration::from_nanos(base)));
        Self { window, now: base + US, bytes_per_s, base, other: 0, lost_per_thousand: 0 }
    }

    /// Sends a full window and acknowledges it a round trip later.
    fn round(&mut self) {
        let begun = Instant(self.now);
        let frames = (self.window.room() / FRAME).max(1);
        (0..frames).for_each(|_| self.window.sent(begun, FRAME));
        self.window.limited();
        let on_wire = frames * FRAME * 1_000_000_000 / self.bytes_per_s;
        let first = self.base + self.other + FRAME * 1_000_000_000 / self.bytes_per_s;
        let took = (self.base + self.other).max(on_wire);
        let queue = took.saturating_sub(self.base + self.other);
        self.now += took;
        let lost = frames * self.lost_per_thousand / 1000;
        (0..lost).for_each(|_| self.window.lost(FRAME));
        let sample = Duration::from_nanos(first + queue);
        self.window.acked(Instant(self.now), (frames - lost) * FRAME, frames - lost, begun, Some(sample));
    }

    fn rounds(&mut self, count: usize) -> u64 {
        (0..count).for_each(|_| self.round());
        self.window.window() / FRAME
    }
}

#[test]
fn the_window_opens_to_what_the_wire_carries_and_the_queue_stays_near_the_target() {
    // 10 Gbit/s and 40 µs: 50 KB, and a queue of 200 µs: 250 KB.
    let frames = Wire::new(1_250_000_000, 40 * US).rounds(100);
    assert!((12..=45).contains(&frames), "{frames}");
}

#[test]
fn a_queue_of_others_makes_it_yield_and_it_is_back_soon() {
    let mut wire = Wire::new(1_250_000_000, 40 * US);
    let before = wire.rounds(100);
    wire.other = 2000 * US;
    let under_load = wire.rounds(10);
    assert!(under_load * 3 < before, "{before} to {under_load}");
    wire.other = 0;
    let after = wire.rounds(40);
    assert!(after * 10 >= before * 9, "{before} to {after}");
}

#[test]
fn a_slow_host_is_told_from_a_queue_of_its_own_by_what_insisting_brings() {
    let mut wire = Wire::new(1_250_000_000, 40 * US);
    wire.rounds(100);
    wire.other = 600 * US;
    let least = wire.rounds(15);
    let later = wire.rounds(100);
    assert!(least <= 10 && later > least * 3, "{least}, {later}");
    wire.other = 0;
    wire.rounds(300);
    assert_eq!(wire.window.insistence, DelayTolerance::None { late_rounds: 0 });
    // 1 Gbit/s: eight frames alone take 0.6 ms.
    let mut own = Wire::new(125_000_000, 40 * US);
    let before = own.rounds(20);
    let later = own.rounds(200);
    assert!(
        matches!(own.window.insistence, DelayTolerance::Vain { .. }) && later <= before,
        "{before} {later}"
    );
}

#[test]
fn losses_at_random_do_not_close_the_window() {
    for lost_per_thousand in [1, 10, 30, 100] {
        let mut wire = Wire::new(1_250_000_000, 40 * US);
        wire.lost_per_thousand = lost_per_thousand;
        let frames = wire.rounds(200);
        assert!(frames >= 6, "{lost_per_thousand}: {frames}");
    }
}

#[test]
fn a_third_lost_in_every_round_trip_closes_it_to_the_least() {
    let mut wire = Wire::new(1_250_000_000, 40 * US);
    wire.lost_per_thousand = 333;
    assert!(wire.rounds(60) <= 5);
}

#[test]
fn a_long_pause_begins_anew_and_a_short_one_does_not() {
    let mut wire = Wire::new(12_500_000_000, 100 * US);
    let before = wire.rounds(100);
    assert!(before > 64, "{before}");
    wire.now += 500_000 * US;
    wire.round();
    assert!(wire.window.window() / FRAME > 64);
    wire.now += 5_000_000 * US;
    wire.window.sent(Instant(wire.now), FRAME);
    assert_eq!(wire.window.window() / FRAME, 32);
}

#[test]
fn what_is_forgotten_is_no_longer_under_way() {
    let mut wire = Wire::new(1_250_000_000, 40 * US);
    wire.window.sent(Instant(US), 100);
    wire.window.sent(Instant(US), 200);
    wire.window.forgotten(100);
    wire.window.lost(200);
    assert_eq!(wire.window.in_flight(), 0);
}
