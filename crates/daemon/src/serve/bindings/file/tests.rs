use base::rng::Rng;
use scsi::transport_id::TransportId as InitiatorPort;

use super::*;
use crate::config::Naa;
use crate::serve::hostile_names;

fn disk(last: u8, block_bytes: u32, encrypted: bool) -> DiskName {
    DiskName { naa: Naa::Short([0x3a, 0, 0, 0, 0, 0, 0, last]), block_bytes, encrypted }
}

fn port(name: &str) -> Box<[u8]> {
    InitiatorPort::iscsi_port(name, [0, 2, 0x3d, 0, 0, 1]).unwrap().encode().into()
}

fn record(target: &str, group: Option<&str>) -> SavedNexus {
    SavedNexus {
        target: format!("iqn.2001-04.com.example:{target}"),
        initiator_port: port("iqn.2001-04.com.example:host"),
        group: group.map(Into::into),
        target_ports: vec![1, 33_012],
        released_ports: None,
        rejoined_ports: Vec::new(),
        moved_ports: Vec::new(),
        is_sealed: false,
        luns: vec![(0, disk(1, 512, false)), (16_383, disk(2, 4096, true))],
        lost_at: None,
    }
}

fn some() -> Vec<SavedNexus> {
    let long = DiskName { naa: Naa::Long([0x6a; 16]), block_bytes: 512, encrypted: false };
    vec![
        record("a", None),
        SavedNexus { target_ports: Vec::new(), luns: vec![(3, long)], ..record("b", Some("Backup LAN")) },
        SavedNexus { is_sealed: true, luns: Vec::new(), ..record("c", Some("-")) },
        SavedNexus { released_ports: Some(vec![2, 3]), lost_at: Some(1_790_000_000), ..record("d", None) },
        SavedNexus { released_ports: Some(Vec::new()), is_sealed: true, ..record("e", None) },
        SavedNexus { released_ports: Some(vec![3]), rejoined_ports: vec![33_012], ..record("f", None) },
        SavedNexus {
            released_ports: Some(vec![3]),
            moved_ports: vec![3, 4],
            is_sealed: true,
            ..record("g", None)
        },
    ]
}

fn read(records: Vec<SavedNexus>) -> Contents {
    Contents { records, unreadable: Vec::new() }
}

#[test]
fn what_is_written_is_read_again() {
    for all in [Vec::new(), some()] {
        assert_eq!(decode(&encode(&all, &[])), read(all));
    }
    let unreadable = vec!["% not a record\u{e9} 1=2".to_owned(), String::new()];
    assert_eq!(decode(&encode(&some(), &unreadable)), Contents { records: some(), unreadable });
}

#[test]
fn a_file_of_version_2_is_read() {
    let mut text = "targe bindings 2\n".to_owned();
    let mut expected = some();
    for nexus in &mut expected {
        (nexus.released_ports, nexus.lost_at) = (None, None);
        (nexus.rejoined_ports, nexus.moved_ports) = (Vec::new(), Vec::new());
        let (owner, ports, luns) = (owner_words(nexus), ports_word(nexus), lun_words(nexus));
        let sums = (sum(&owner), sum(&format!("{owner};{ports}{luns}")));
        text += &format!("{owner};{ports};{};{}{luns}\n", sums.0, sums.1);
    }
    text += &format!("end {}\n", expected.len());
    assert_eq!(decode(&text), read(expected));
    // A line that an earlier release wrote.
    let fixture = "targe bindings 2\n\
                   iqn.2001-04.com.example:a 4500 iscsi;1,2;OWNER;WHOLE 0=3ba6cb8b7e9c9562/512\nend 1\n";
    let owner = sum("iqn.2001-04.com.example:a 4500 iscsi");
    let whole = sum("iqn.2001-04.com.example:a 4500 iscsi;1,2 0=3ba6cb8b7e9c9562/512");
    let found = decode(&fixture.replace("OWNER", &owner).replace("WHOLE", &whole));
    assert_eq!((found.records[0].target_ports.clone(), found.unreadable.len()), (vec![1, 2], 0));
}

#[test]
fn hostile_names_are_read_as_they_were_written() {
    let mut rng = Rng::from_seed(1);
    for _ in 0..5000 {
        let one = |rng: &mut Rng| SavedNexus {
            target: hostile_names::name(rng),
            group: (rng.below(4) > 0).then(|| hostile_names::name(rng).into()),
            is_sealed: rng.below(4) == 0,
            ..record("", None)
        };
        let all: Vec<SavedNexus> = (0..rng.below(4)).map(|_| one(&mut rng)).collect();
        let unreadable: Vec<String> = (0..rng.below(2)).map(|_| hostile_names::text(&mut rng)).collect();
        let text = encode(&all, &unreadable);
        assert_eq!(decode(&text), Contents { records: all, unreadable }, "{text}");
    }
}

#[test]
fn a_damaged_record_harms_no_other_one() {
    let (all, text) = (some(), encode(&some(), &[]));
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    for at in 0..text.len() {
        let mut bytes = text.clone().into_bytes();
        bytes[at] ^= 1;
        let found = decode(&String::from_utf8(bytes).unwrap());
        let mut line = 0;
        let mut left = at;
        while left >= lines[line].len() {
            left -= lines[line].len();
            line += 1;
        }
        // A newline that is gone joins two lines.
        let harmed = if left + 1 == lines[line].len() { line..=line + 1 } else { line..=line };
        for (number, one) in all.iter().enumerate().filter(|(number, _)| !harmed.contains(&(number + 1))) {
            assert!(found.records.contains(one), "byte {at} harms record {number}");
        }
        for one in &found.records {
            let sealed = |known: &SavedNexus| SavedNexus {
                target_ports: Vec::new(),
                released_ports: None,
                rejoined_ports: Vec::new(),
                moved_ports: Vec::new(),
                is_sealed: true,
                luns: Vec::new(),
                lost_at: None,
                ..known.clone()
            };
            let is_known = all.iter().any(|known| known == one || sealed(known) == *one);
            assert!(is_known, "byte {at} makes {one:?}");
        }
        let is_noticed = !found.unreadable.is_empty() || found.records != all;
        assert!(is_noticed, "byte {at}");
    }
}

#[test]
fn a_record_that_says_whose_it_is_seals_only_its_port() {
    let text = encode(&some(), &[]).replacen("/4096/", "/4095/", 1);
    let found = decode(&text);
    assert!(found.unreadable.is_empty());
    let sealed = SavedNexus { target_ports: vec![], is_sealed: true, luns: vec![], ..record("a", None) };
    assert_eq!(found.records[0], sealed);
    assert_eq!(found.records[1..], some()[1..]);
}

#[test]
fn a_lost_end_is_noticed() {
    let text = encode(&some(), &[]);
    for len in 0..text.len() {
        assert!(!decode(&text[..len]).unreadable.is_empty(), "{len} bytes");
    }
}

/// Returns a file as earlier releases wrote it.
fn version_1(lines: &[&str]) -> String {
    let body = format!("{HEAD_1}\n{}", lines.iter().map(|line| format!("{line}\n")).collect::<String>());
    let sum = target_ports::checksum(&body);
    body + &sum
}

#[test]
fn a_file_of_version_1_is_read_also_with_spaces_in_the_name_of_a_group() {
    let host = hex(&port("iqn.2001-04.com.example:host"));
    let luns = "0=3a00000000000001/512 16383=3a00000000000002/4096/encrypted";
    for (written, group) in [
        ("-", None),
        ("backup", Some("backup")),
        ("Backup LAN", Some("Backup LAN")),
        (" -  ", Some(" -  ")),
        ("a=b 7=x", Some("a=b 7=x")),
    ] {
        let text = version_1(&[&format!("iqn.2001-04.com.example:a {host} {written} {luns}")]);
        let expected = SavedNexus { target_ports: Vec::new(), ..record("a", group) };
        assert_eq!(decode(&text), read(vec![expected]), "{written:?}");
    }
}

#[test]
fn a_damaged_file_of_version_1_seals_its_ports_and_all_unknown_ones() {
    let host = hex(&port("iqn.2001-04.com.example:host"));
    let text = version_1(&[&format!("iqn.2001-04.com.example:a {host} - 0=3a00000000000001/512")]);
    for damaged in [text.replace("/512", "/513"), text[..text.len() - 1].to_owned()] {
        let found = decode(&damaged);
        let sealed = SavedNexus { target_ports: vec![], is_sealed: true, luns: vec![], ..record("a", None) };
        assert_eq!(found.records, [sealed]);
        assert_eq!(found.unreadable.len(), 1);
    }
}
