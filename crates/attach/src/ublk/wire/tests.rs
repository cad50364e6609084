use super::*;

#[test]
fn commands_have_the_numbers_of_the_kernels_header() {
    // The numbers that a C compiler takes from linux/ublk_cmd.h of Linux 6.12.
    for (op, number) in [
        (ControlOp::GET_DEV_INFO, 0x8020_7502),
        (ControlOp::ADD_DEV, 0xc020_7504),
        (ControlOp::DEL_DEV, 0xc020_7505),
        (ControlOp::START_DEV, 0xc020_7506),
        (ControlOp::STOP_DEV, 0xc020_7507),
        (ControlOp::SET_PARAMS, 0xc020_7508),
        (ControlOp::GET_PARAMS, 0x8020_7509),
        (ControlOp::START_USER_RECOVERY, 0xc020_7510),
        (ControlOp::END_USER_RECOVERY, 0xc020_7511),
        (ControlOp::GET_FEATURES, 0x8020_7513),
        (ControlOp::DEL_DEV_ASYNC, 0x8020_7514),
    ] {
        assert_eq!(op.0, number, "{number:#x}");
    }
    assert_eq!((IoOp::FETCH.0, IoOp::COMMIT_AND_FETCH.0), (0xc010_7520, 0xc010_7521));
}

#[test]
fn fields_lie_where_the_kernel_has_them() {
    let command =
        ControlCommand { len: 0x1122, addr: 0x3344_5566_7788_99aa, ..ControlCommand::plain(7, 0x0bad_cafe) };
    let bytes = command.as_bytes();
    assert_eq!(bytes[0..4], 7_u32.to_ne_bytes());
    assert_eq!(bytes[4..6], [0xff; 2]);
    assert_eq!(bytes[6..8], 0x1122_u16.to_ne_bytes());
    assert_eq!(bytes[8..16], 0x3344_5566_7788_99aa_u64.to_ne_bytes());
    assert_eq!(bytes[16..24], 0x0bad_cafe_u64.to_ne_bytes());
    assert_eq!(bytes[24..], [0; 8]);

    let commit = IoCommand::commit(300, -5);
    assert_eq!(commit.as_bytes()[0..2], [0; 2]);
    assert_eq!(commit.as_bytes()[2..4], 300_u16.to_ne_bytes());
    assert_eq!(commit.as_bytes()[4..8], (-5_i32).to_ne_bytes());
    assert_eq!(commit.as_bytes()[8..], [0; 8], "an address is refused where payloads are copied");

    assert_eq!(std::mem::offset_of!(DeviceInfo, state), 4);
    assert_eq!(std::mem::offset_of!(DeviceInfo, device), 12);
    assert_eq!(std::mem::offset_of!(DeviceInfo, server), 16);
    assert_eq!(std::mem::offset_of!(DeviceInfo, flags), 24);
    assert_eq!(std::mem::offset_of!(DeviceInfo, note), 32);
    assert_eq!(std::mem::offset_of!(Params, basic), 8);
    assert_eq!(std::mem::offset_of!(BasicParams, sectors), 16);
    assert_eq!(std::mem::offset_of!(Params, discard), 40);
    assert_eq!(std::mem::offset_of!(DiscardParams, segments_max), 16);
}

#[test]
fn a_descriptor_is_read_as_the_kernel_wrote_it() {
    let mut bytes = Vec::new();
    bytes.extend((5_u32 | 1 << 13 | 1 << 15).to_ne_bytes());
    bytes.extend(8_u32.to_ne_bytes());
    bytes.extend(0x0123_4567_89ab_u64.to_ne_bytes());
    bytes.extend([0; 8]);
    let descriptor = Descriptor::read_from_bytes(&bytes).unwrap();
    assert_eq!(descriptor.op(), RequestOp::WRITE_ZEROES);
    assert!(descriptor.has(REQUEST_FUA) && descriptor.has(REQUEST_NOUNMAP));
    assert_eq!((descriptor.sectors, descriptor.start), (8, 0x0123_4567_89ab));
    assert_eq!(descriptor.as_bytes(), bytes);
}

#[test]
fn payloads_lie_one_behind_the_other() {
    assert_eq!(payload_at(0), 0x8000_0000);
    assert_eq!(payload_at(1), 0x8200_0000);
    // The last tag that a queue can have.
    assert_eq!(payload_at(4095), 0x8000_0000 + 4095 * (32 << 20));
}
