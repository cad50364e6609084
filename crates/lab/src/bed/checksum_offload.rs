//! Checksum offload of the interface of a host: generic netlink, family `ethtool`.

use std::io;

use super::link::LINK_INDEX;
use super::netlink::{Request, RouteSocket};

// linux/genetlink.h
const GENL_ID_CTRL: u16 = 16;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;

// linux/ethtool_netlink.h
const ETHTOOL_MSG_FEATURES_SET: u8 = 12;
const ETHTOOL_A_FEATURES_HEADER: u16 = 1;
const ETHTOOL_A_FEATURES_WANTED: u16 = 3;
const ETHTOOL_A_HEADER_DEV_INDEX: u16 = 1;
const ETHTOOL_A_BITSET_BITS: u16 = 3;
const ETHTOOL_A_BITSET_BITS_BIT: u16 = 1;
const ETHTOOL_A_BITSET_BIT_NAME: u16 = 2;

/// The headers of a netlink message and of generic netlink, in bytes.
const HEADERS_LEN: usize = 16 + 4;

/// Lets the kernel compute the checksums of what the link's interface in the calling thread's namespace
/// sends, as `ethtool -K eth0 tx off` does.
pub(super) fn disable() -> io::Result<()> {
    let socket = RouteSocket::open_generic()?;
    let query = Request::new(GENL_ID_CTRL, 0, &[CTRL_CMD_GETFAMILY, 1, 0, 0]);
    let answer = socket.query(query.text(CTRL_ATTR_FAMILY_NAME, "ethtool"))?;
    let family =
        family_id(answer.get(HEADERS_LEN..).unwrap_or_default()).ok_or(io::ErrorKind::InvalidData)?;
    // A bit that is named without its value is cleared.
    let request = Request::new(family, 0, &[ETHTOOL_MSG_FEATURES_SET, 1, 0, 0])
        .nested(ETHTOOL_A_FEATURES_HEADER, &[], |header| {
            header.number(ETHTOOL_A_HEADER_DEV_INDEX, LINK_INDEX)
        })
        .nested(ETHTOOL_A_FEATURES_WANTED, &[], |set| {
            set.nested(ETHTOOL_A_BITSET_BITS, &[], |bits| {
                bits.nested(ETHTOOL_A_BITSET_BITS_BIT, &[], |bit| {
                    bit.text(ETHTOOL_A_BITSET_BIT_NAME, "tx-checksum-ip-generic")
                })
            })
        });
    socket.request(request)
}

/// Returns the number of a family from the attributes of an answer.
fn family_id(mut attributes: &[u8]) -> Option<u16> {
    loop {
        let (len, kind) = (attributes.first_chunk()?, attributes.get(2..)?.first_chunk()?);
        let (len, kind) = (usize::from(u16::from_ne_bytes(*len)), u16::from_ne_bytes(*kind));
        if kind == CTRL_ATTR_FAMILY_ID {
            return Some(u16::from_ne_bytes(*attributes.get(4..)?.first_chunk()?));
        }
        attributes = attributes.get(len.max(4).next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_a_family_is_found_behind_its_name() {
        let name = [&12_u16.to_ne_bytes()[..], &2_u16.to_ne_bytes(), b"ethtool\0"].concat();
        let number =
            [&6_u16.to_ne_bytes()[..], &1_u16.to_ne_bytes(), &21_u16.to_ne_bytes(), &[0; 2]].concat();
        assert_eq!(family_id(&[name.clone(), number.clone()].concat()), Some(21));
        assert_eq!(family_id(&number[..5]), None);
        assert_eq!(family_id(&name), None);
        assert_eq!(family_id(&[0; 8]), None);
    }
}
