use alloc::vec;

use super::*;

fn port(name: &str) -> TransportId {
    TransportId::iscsi_port(name, [0, 2, 0x3d, 0, 0, 1]).unwrap()
}

fn register(initiator_ports: Option<Vec<TransportId>>) -> BasicList {
    BasicList {
        key: ReservationKey(0x1122_3344_5566_7788),
        service_action_key: ReservationKey(0xabcd),
        all_target_ports: true,
        persist: true,
        initiator_ports,
    }
}

#[test]
fn a_basic_list_is_24_bytes_and_comes_back_whole() {
    let list = register(None);
    let bytes = list.encode();
    assert_eq!(
        bytes,
        [
            0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0, 0, 0, 0, 0, 0, 0xab, 0xcd, 0, 0, 0, 0, 5, 0,
            0, 0
        ]
    );
    assert_eq!(BasicList::parse(&bytes), Ok(list));
}

#[test]
fn spec_i_pt_brings_transport_ids() {
    let list = register(Some(vec![port("iqn.a"), TransportId::iscsi_device("iqn.b").unwrap()]));
    let bytes = list.encode();
    assert_eq!(bytes[20], 0x0d);
    assert_eq!(bytes[24..28], [0, 0, 0, 52]);
    assert_eq!(BasicList::parse(&bytes), Ok(list));
    let none = register(Some(Vec::new()));
    assert_eq!(BasicList::parse(&none.encode()), Ok(none));
}

#[test]
fn every_other_length_is_a_parameter_list_length_error() {
    let error = Err(Sense::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR));
    let plain = register(None).encode();
    for len in 0..24 {
        assert_eq!(BasicList::parse(&plain[..len]), error, "{len}");
    }
    let mut long = plain;
    long.push(0);
    assert_eq!(BasicList::parse(&long), error);
    let listed = register(Some(vec![port("iqn.a")])).encode();
    for len in 0..listed.len() {
        assert_eq!(BasicList::parse(&listed[..len]), error, "{len}");
    }
}

#[test]
fn an_attacker_cannot_claim_more_transport_ids_than_there_are_bytes() {
    let mut bytes = register(Some(vec![port("iqn.a")])).encode();
    bytes[24..28].copy_from_slice(&u32::MAX.to_be_bytes());
    assert_eq!(BasicList::parse(&bytes), Err(Sense::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR)));
    let mut bytes = register(Some(vec![port("iqn.a")])).encode();
    bytes[30..32].copy_from_slice(&[0xff, 0xfc]);
    assert_eq!(BasicList::parse(&bytes), Err(Sense::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR)));
}

#[test]
fn a_malformed_transport_id_is_pointed_at() {
    let mut bytes = register(Some(vec![port("iqn.a"), port("iqn.b")])).encode();
    let second = 28 + port("iqn.a").encode().len();
    bytes[second] = 0x85;
    bytes[second + 4] = 0;
    assert_eq!(BasicList::parse(&bytes), Err(Sense::invalid_parameter(u16::try_from(second).unwrap(), None)),);
}

#[test]
fn a_move_list_names_the_new_holder() {
    let list = MoveList {
        key: ReservationKey(1),
        service_action_key: ReservationKey(2),
        unregister: true,
        persist: true,
        relative_port: 3,
        initiator_port: port("iqn.a"),
    };
    let bytes = list.encode();
    assert_eq!(bytes[16..24], [0, 3, 0, 3, 0, 0, 0, 28]);
    assert_eq!(MoveList::parse(&bytes), Ok(list));
    for len in 0..bytes.len() {
        assert_eq!(
            MoveList::parse(&bytes[..len]),
            Err(Sense::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR)),
            "{len}"
        );
    }
}

#[test]
fn read_data_comes_back_whole_and_survives_being_cut() {
    let keys = Keys { generation: 7, keys: vec![ReservationKey(1), ReservationKey(2)] };
    let bytes = keys.encode();
    assert_eq!(bytes, [0, 0, 0, 7, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2]);
    assert_eq!(Keys::parse(&bytes), Ok(keys));
    assert_eq!(Keys::parse(&bytes[..23]).unwrap().keys, [ReservationKey(1)]);
    assert_eq!(Keys::parse(&bytes[..8]).unwrap().keys, []);
    assert_eq!(Keys::parse(&bytes[..7]), Err(UnexpectedEof));

    let held = Reservation {
        generation: 1,
        reservation: Some(ReservationFacts {
            key: ReservationKey(9),
            kind: ReservationType::WriteExclusiveRegistrantsOnly,
        }),
    };
    let bytes = held.encode();
    assert_eq!(bytes, [0, 0, 0, 1, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 5, 0, 0]);
    assert_eq!(Reservation::parse(&bytes), Ok(held));
    let free = Reservation { generation: 1, reservation: None };
    assert_eq!(Reservation::parse(&free.encode()), Ok(free));

    let full = FullStatusList {
        generation: 2,
        registrants: vec![
            FullStatus {
                key: ReservationKey(5),
                holds: Some(ReservationType::ExclusiveAccess),
                relative_port: 0x102,
                initiator_port: port("iqn.a").encode(),
            },
            FullStatus {
                key: ReservationKey(6),
                holds: None,
                relative_port: 1,
                initiator_port: port("iqn.b").encode(),
            },
        ],
    };
    let bytes = full.encode();
    assert_eq!(bytes[8..32], [0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 1, 3, 0, 0, 0, 0, 1, 2, 0, 0, 0, 28]);
    assert_eq!(FullStatusList::parse(&bytes), Ok(full.clone()));
    assert_eq!(FullStatusList::parse(&bytes[..bytes.len() - 1]).unwrap().registrants, full.registrants[..1]);
}

#[test]
fn capabilities_stand_where_spc_puts_them() {
    let capabilities = Capabilities {
        replace_lost: true,
        compatible_reservation_handling: true,
        specify_initiator_ports: true,
        all_target_ports: true,
        persist: true,
        persist_active: false,
        allow_commands: 1,
        types: ReservationType::MASK_OF_ALL,
    };
    let bytes = capabilities.encode();
    assert_eq!(bytes, [0, 8, 0x9d, 0x90, 0xea, 0x01, 0, 0]);
    assert_eq!(Capabilities::parse(&bytes), Ok(capabilities));
}

#[test]
fn types_have_the_codes_of_the_standard() {
    let codes = ReservationType::ALL.map(ReservationType::code);
    assert_eq!(codes, [1, 3, 5, 6, 7, 8]);
    for code in 0..=255 {
        assert_eq!(
            ReservationType::from_code(code).map(ReservationType::code).is_some(),
            codes.contains(&code)
        );
    }
}
