//! The packet filter of a port: the kernel drops frames that are not for us before they cost time in this
//! process.
//!
//! It is a classic BPF program (linux/filter.h). It runs on the bytes after the Ethernet header. A load
//! beyond the end of a frame ends the program, and the frame is dropped.

use crate::ether::PortConfig;

/// An instruction with the fields of `struct sock_filter`: code, jump if true, jump if false, operand.
pub(super) type Instruction = (u16, u8, u8, u32);

const LOAD_WORD: u16 = 0x20;
const SHIFT_RIGHT: u16 = 0x74;
const JUMP_EQUAL: u16 = 0x15;
const JUMP_GREATER: u16 = 0x25;
const JUMP_NOT_LESS: u16 = 0x35;
const RETURN: u16 = 0x06;

/// The offset from which metadata of a frame can be loaded (`SKF_AD_OFF`), and the offsets of two of its
/// fields.
const KNOWN: u32 = 0xffff_f000;
const PACKET_TYPE: u32 = KNOWN + 4;
const VLAN_TAG_PRESENT: u32 = KNOWN + 48;

/// The highest packet type that is for us: host 0, broadcast 1, multicast 2. Higher types are frames to other
/// hosts, and also frames of VLANs that are not ours, whose tag the kernel has already removed.
const FOR_US_MAX: u32 = 2;

/// Return values of the program: how many bytes of the frame to keep.
const WHOLE: u32 = 0x4_0000;
const NOTHING: u32 = 0;

/// Returns the program for a port.
pub(super) fn program(config: &PortConfig) -> Vec<Instruction> {
    // Jumps are relative, and all jumps that reject lead to the end: they are written as `NO` and filled in
    // last.
    let mut program = vec![
        (LOAD_WORD, 0, 0, PACKET_TYPE),
        (JUMP_GREATER, NO, 0, FOR_US_MAX),
        (LOAD_WORD, 0, 0, VLAN_TAG_PRESENT),
        (JUMP_EQUAL, 0, NO, 0),
    ];
    if let Some(steering) = &config.steering {
        let (first, last) = (u32::from(*steering.mine.start()), u32::from(*steering.mine.end()));
        program.extend([
            (LOAD_WORD, 0, 0, u32::from(steering.at)),
            // A frame without a session is for every reactor: jump over the next three instructions, to the
            // one that accepts.
            (JUMP_EQUAL, 3, 0, 0),
            (SHIFT_RIGHT, 0, 0, 24),
            (JUMP_NOT_LESS, 0, NO, first),
            (JUMP_GREATER, NO, 0, last),
        ]);
    }
    program.extend([(RETURN, 0, 0, WHOLE), (RETURN, 0, 0, NOTHING)]);
    let end = program.len() - 1;
    for (at, (_, yes, no, _)) in program.iter_mut().enumerate() {
        let distance = u8::try_from(end.saturating_sub(at + 1)).unwrap_or(u8::MAX);
        for jump in [yes, no] {
            if *jump == NO {
                *jump = distance;
            }
        }
    }
    program
}

const NO: u8 = u8::MAX;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ether::Steering;

    /// Runs a program as the kernel does, on a frame of this packet type, with a VLAN tag or without.
    fn accepts(program: &[Instruction], frame: &[u8], kind: u32, tagged: bool) -> bool {
        let (mut at, mut value) = (0, 0_u32);
        loop {
            let (code, yes, no, operand) = program[at];
            at += 1;
            let offset = usize::try_from(operand).unwrap();
            let jump = |condition| usize::from(if condition { yes } else { no });
            match code {
                LOAD_WORD if operand == PACKET_TYPE => value = kind,
                LOAD_WORD if operand == VLAN_TAG_PRESENT => value = tagged.into(),
                LOAD_WORD => match frame.get(offset..offset + 4) {
                    Some(word) => value = u32::from_be_bytes(word.try_into().unwrap()),
                    None => return false,
                },
                SHIFT_RIGHT => value >>= operand,
                JUMP_EQUAL => at += jump(value == operand),
                JUMP_GREATER => at += jump(value > operand),
                JUMP_NOT_LESS => at += jump(value >= operand),
                RETURN => return operand == WHOLE,
                other => panic!("instruction {other:#x}"),
            }
        }
    }

    fn config(steering: Option<Steering>) -> PortConfig {
        PortConfig { steering, ..PortConfig::new("eth0", 0x889a) }
    }

    #[test]
    fn only_frames_for_us_without_a_tag_pass() {
        let program = program(&config(None));
        let frame = [0, 0, 0, 0x20, 1, 2, 3, 4];
        for (kind, tagged, want) in [
            (0, false, true),
            (1, false, true),
            (2, false, true),
            (3, false, false),
            (4, false, false),
            (0, true, false),
        ] {
            assert_eq!(accepts(&program, &frame, kind, tagged), want, "kind {kind}, tagged {tagged}");
        }
        assert!(accepts(&program, &[], 0, false));
    }

    #[test]
    fn a_shard_hears_its_own_sessions_and_those_without_a_name() {
        let program = program(&config(Some(Steering { at: 8, mine: 3..=5 })));
        let frame = |name: u32| {
            let mut frame = vec![0, 0, 0, 0x20, 0, 0, 0, 0];
            frame.extend(name.to_be_bytes());
            frame
        };
        for (name, want) in [
            (0, true),
            (1, false),
            (0x02ff_ffff, false),
            (0x0300_0000, true),
            (0x05ff_ffff, true),
            (0x0600_0000, false),
            (0xff00_0001, false),
        ] {
            assert_eq!(accepts(&program, &frame(name), 0, false), want, "{name:#x}");
        }
        assert!(!accepts(&program, &frame(0)[..11], 0, false), "too short for its name");
        let all = super::program(&config(Some(Steering { at: 8, mine: 0..=255 })));
        assert!(accepts(&all, &frame(1), 0, false) && accepts(&all, &frame(u32::MAX), 1, false));
    }
}
