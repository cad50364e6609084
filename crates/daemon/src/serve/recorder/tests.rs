use super::*;

const PAYLOAD_MAX: usize = (256 << 10) - 56;

const SELECTION: &str = "iqn.2026-01.test:initiator";

fn recorder(snap: usize, count_max: u64, waiting_max: usize) -> Recorder {
    let selection = Selection { initiator: SELECTION.to_owned(), target: None, isid: None };
    let settings =
        Settings { selection, takes_protected: false, follows: false, snap, count_max, waiting_max };
    Recorder::new(settings, Vec::with_capacity(waiting_max))
}

fn connect(recorder: &Recorder) -> u64 {
    recorder.opened("192.0.2.1:3260".parse().unwrap(), "192.0.2.2:40000".parse().unwrap())
}

fn pdu<'a>(received: bool, data: &'a [&'a [u8]], data_len: usize) -> TracedPdu<'a> {
    TracedPdu { received, header: &[1; 48], data, data_len, trailer: &[9; 4] }
}

/// Returns the packets of a capture: the captured bytes and the original length of each.
fn packets(capture: &[u8]) -> Vec<(Vec<u8>, usize)> {
    let word = |at: usize| u32::from_le_bytes(capture[at..at + 4].try_into().unwrap());
    let (mut at, mut found) = (0, Vec::new());
    while at < capture.len() {
        if word(at) == 6 {
            let len = usize::try_from(word(at + 20)).unwrap();
            let original = usize::try_from(word(at + 24)).unwrap();
            found.push((capture[at + 28..at + 28 + len].to_vec(), original));
        }
        at += usize::try_from(word(at + 4)).unwrap();
    }
    found
}

fn sequence(packet: &[u8]) -> u32 {
    u32::from_be_bytes(packet[38..42].try_into().unwrap())
}

fn take(recorder: &Recorder) -> Vec<(Vec<u8>, usize)> {
    packets(&recorder.take(Vec::new(), Duration::ZERO))
}

#[test]
fn a_long_pdu_is_divided_into_packets_that_follow_each_other() {
    let recorder = recorder(usize::MAX, u64::MAX, 2 << 20);
    let connection = connect(&recorder);
    let data = vec![7; 2 * PAYLOAD_MAX];
    recorder.record(connection, &pdu(false, &[&data[..5], &data[5..]], data.len()));
    recorder.record(connection, &pdu(true, &[], 0));
    let packets = take(&recorder);
    let lens: Vec<usize> = packets.iter().map(|(bytes, _)| bytes.len() - 54).collect();
    assert_eq!(lens, [PAYLOAD_MAX, PAYLOAD_MAX, 52, 52]);
    assert!(packets.iter().all(|(bytes, original)| bytes.len() == *original));
    let stream: Vec<u8> = packets[..3].iter().flat_map(|(bytes, _)| bytes[54..].to_vec()).collect();
    assert!(stream == [&[1; 48][..], &data, &[9; 4]].concat());
    for (packet, before) in packets[1..3].iter().zip(&packets) {
        assert_eq!(sequence(&packet.0), sequence(&before.0) + u32::try_from(PAYLOAD_MAX).unwrap());
    }
    assert_eq!(recorder.counts(), Counts { recorded: 2, dropped: 0 });
}

#[test]
fn data_beyond_the_snap_length_or_left_out_is_missing_and_counted_in_the_lengths() {
    let recorder = recorder(10, u64::MAX, 2 << 20);
    let connection = connect(&recorder);
    let data = vec![7; 2 * PAYLOAD_MAX];
    recorder.record(connection, &pdu(true, &[&data], data.len()));
    recorder.record(connection, &pdu(true, &[], 8));
    recorder.record(connection, &pdu(true, &[&data[..8]], 8));
    let packets = take(&recorder);
    let lens: Vec<_> = packets.iter().map(|(bytes, original)| (bytes.len() - 54, original - 54)).collect();
    assert_eq!(lens, [(58, PAYLOAD_MAX), (0, PAYLOAD_MAX), (0, 52), (48, 60), (60, 60)]);
    let end = sequence(&packets[0].0) + u32::try_from(2 * PAYLOAD_MAX + 52).unwrap();
    assert_eq!(sequence(&packets[3].0), end);
}

#[test]
fn what_does_not_fit_is_dropped_whole_and_counted() {
    let recorder = recorder(usize::MAX, u64::MAX, 4096);
    let connection = connect(&recorder);
    let data = [7; 1000];
    for _ in 0..10 {
        recorder.record(connection, &pdu(true, &[&data], 1000));
    }
    let counts = recorder.counts();
    assert_eq!(counts.recorded + counts.dropped, 10);
    assert!((2..4).contains(&counts.recorded), "{counts:?}");
    let kept = take(&recorder);
    assert_eq!(u64::try_from(kept.len()).unwrap(), counts.recorded);
    recorder.record(connection, &pdu(true, &[], 0));
    let capture = recorder.take(Vec::new(), Duration::ZERO);
    let after = packets(&capture);
    assert_eq!(sequence(&after[0].0), 1 + 10 * 1052, "the sequence numbers show the hole");
    let lost = [&[4, 0, 8, 0][..], &counts.dropped.to_le_bytes()].concat();
    assert!(capture.windows(lost.len()).any(|bytes| bytes == lost), "the packet tells how many were lost");
    let end = recorder.statistics("why");
    let text = format!("3 PDUs and frames are recorded, {} were dropped: why", counts.dropped);
    let text = text.replacen('3', &(counts.recorded + 1).to_string(), 1);
    assert!(end.windows(text.len()).any(|bytes| bytes == text.as_bytes()), "{text}");
}

#[test]
fn a_trace_ends_at_its_count_and_is_idle_without_sessions() {
    let recorder = recorder(usize::MAX, 2, 1 << 20);
    assert!(recorder.is_idle());
    recorder.set_frame_sessions(3, 1);
    assert!(!recorder.is_idle());
    recorder.set_frame_sessions(3, 0);
    let connection = connect(&recorder);
    assert!(!recorder.is_idle() && !recorder.has_ended());
    for _ in 0..3 {
        recorder.record(connection, &pdu(true, &[], 0));
    }
    assert!(recorder.has_ended());
    assert_eq!(take(&recorder).len(), 2);
    recorder.closed(connection);
    assert!(recorder.is_idle());
    assert!(!recorder.selects(SELECTION, None, [0; 6]), "it takes no more sessions");
}

#[test]
fn a_frame_is_kept_as_it_was_with_its_addresses() {
    let recorder = recorder(8, u64::MAX, 1 << 20);
    let (from, to) = (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));
    let frame = [5; 200];
    recorder.record_frame(PacketDirection::Inbound, (from, to), &[&frame[..28], &frame[28..30]]);
    recorder.record_frame(PacketDirection::Outbound, (to, from), &[&frame]);
    let packets = take(&recorder);
    assert_eq!(packets[0], ([&to.0[..], &from.0, &[0x88, 0x9a], &[5; 30]].concat(), 44));
    assert_eq!((packets[1].0.len(), packets[1].1), (14 + 28 + 8, 214));
}

#[test]
fn commands_that_carry_keys_or_tokens_are_secret() {
    let recorder = recorder(usize::MAX, u64::MAX, 1 << 20);
    for (cdb, is_secret) in [
        ([0xb5, 0x20], true),
        ([0xa2, 0x20], true),
        ([0x83, 0x00], false),
        ([0x83, 0x01], true),
        ([0x83, 0x10], false),
        ([0x83, 0x11], true),
        ([0x84, 0x07], true),
        ([0x84, 0x03], false),
        ([0x8a, 0x00], false),
    ] {
        assert_eq!(recorder.carries_secret(&cdb), is_secret, "{cdb:x?}");
    }
}

#[test]
fn a_selection_compares_every_name_that_it_has() {
    let wide = Selection { initiator: "IQN.a".to_owned(), target: None, isid: None };
    assert!(
        wide.has("iqn.A", None, [1; 6])
            && wide.has("iqn.a", Some("t"), [2; 6])
            && !wide.has("iqn.b", None, [1; 6])
    );
    let narrow = Selection { target: Some("t".to_owned()), isid: Some([1; 6]), ..wide };
    assert!(narrow.has("iqn.a", Some("T"), [1; 6]));
    assert!(!narrow.has("iqn.a", None, [1; 6]) && !narrow.has("iqn.a", Some("t"), [2; 6]));
}
