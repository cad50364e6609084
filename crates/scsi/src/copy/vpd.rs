//! The third-party copy VPD page (8Fh, SPC-4 §7.8.17): the copies that a unit supports, and their limits.

use alloc::vec::Vec;

use super::cscd::CscdId;
use super::list::Limits;
use super::rod::RodType;
use super::{len16, u8_at, u16_at};

/// The contents of the page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThirdPartyCopy {
    /// The limits of ROD tokens of block devices, if tokens are supported.
    pub block_rod_limits: Option<BlockRodLimits>,
    /// Every supported operation code with its service actions, sorted.
    pub commands: Vec<(u8, Vec<u8>)>,
    /// The limits of a parameter list.
    pub limits: Limits,
    /// The type codes of the supported descriptors, sorted.
    pub descriptor_types: Vec<u8>,
    /// The supported CSCD identifiers that are not indices, sorted.
    pub cscd_ids: Vec<CscdId>,
    /// The lifetimes of tokens and the limits of the data that they represent, if tokens are supported.
    pub token_features: Option<TokenFeatures>,
    /// The supported ROD types.
    pub rod_types: Vec<RodTypeSupport>,
    /// The most copies that can run at once.
    pub total_concurrent: u32,
    /// The most copies with list identifiers that can run at once.
    pub concurrent: u32,
    /// The longest segment in bytes.
    pub segment_len_max: u32,
    /// The base-2 logarithm of the segment granularity: segment lengths in bytes are multiples of it.
    pub segment_granularity: u8,
    /// The most data that is held for the application client, in bytes.
    pub held_len_max: u32,
}

/// Limits of POPULATE TOKEN and WRITE USING TOKEN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRodLimits {
    /// The most ranges in one command.
    pub ranges_max: u16,
    /// The longest inactivity timeout in seconds.
    pub inactivity_timeout_max_s: u32,
    /// The inactivity timeout in seconds if the initiator gives none.
    pub inactivity_timeout_default_s: u32,
    /// The most blocks in one command; 0 for no limit.
    pub transfer_blocks_max: u64,
    /// The optimal number of blocks in one command; 0 if none is reported.
    pub transfer_blocks_optimal: u64,
}

/// The lifetimes of tokens and the limits of the data that they represent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenFeatures {
    /// How tokens of other copy managers are supported; 0 if they are not.
    pub remote_tokens: u8,
    /// The shortest lifetime of a token in seconds.
    pub lifetime_min_s: u32,
    /// The longest lifetime of a token in seconds.
    pub lifetime_max_s: u32,
    /// The longest inactivity timeout in seconds.
    pub inactivity_timeout_max_s: u32,
    /// The optimal granularity of the data that a token represents, in blocks.
    pub optimal_granularity_blocks: u16,
    /// The most bytes that a token can represent.
    pub len_max: u64,
    /// The optimal number of bytes to transfer in one command.
    pub optimal_len: u64,
}

/// The support for a ROD type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RodTypeSupport {
    /// The ROD type.
    pub rod_type: RodType,
    /// Whether tokens of this kind can be used (TOKEN_IN).
    pub token_in: bool,
    /// Whether tokens of this kind are made (TOKEN_OUT).
    pub token_out: bool,
    /// The preference: 1 is the most preferred type; 0 indicates no preference.
    pub preference: u16,
}

impl ThirdPartyCopy {
    /// Builds the body of the page: the bytes after its four-byte header.
    pub fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        if let Some(limits) = &self.block_rod_limits {
            descriptor(&mut body, 0x0000, &limits.encode());
        }
        descriptor(&mut body, 0x0001, &self.supported_commands());
        descriptor(&mut body, 0x0004, &self.parameter_data());
        descriptor(&mut body, 0x0008, &self.supported_descriptors());
        descriptor(&mut body, 0x000c, &self.supported_cscd_ids());
        if let Some(features) = &self.token_features {
            descriptor(&mut body, 0x0106, &features.encode());
        }
        if !self.rod_types.is_empty() {
            descriptor(&mut body, 0x0108, &self.supported_rod_types());
        }
        descriptor(&mut body, 0x8001, &self.general_operations());
        if self.held_len_max > 0 {
            let mut held = self.held_len_max.to_be_bytes().to_vec();
            held.resize(28, 0);
            descriptor(&mut body, 0xc001, &held);
        }
        body
    }

    fn supported_commands(&self) -> Vec<u8> {
        let mut list = Vec::new();
        for (opcode, actions) in &self.commands {
            list.extend([*opcode, u8::try_from(actions.len()).unwrap_or(u8::MAX)]);
            list.extend(actions.iter().take(usize::from(u8::MAX)));
        }
        counted(list)
    }

    fn parameter_data(&self) -> Vec<u8> {
        let mut out = [0; 4].to_vec();
        out.extend(self.limits.cscds_max.to_be_bytes());
        out.extend(self.limits.segments_max.to_be_bytes());
        out.extend(self.limits.descriptors_len_max.to_be_bytes());
        out.extend(self.limits.inline_len_max.to_be_bytes());
        out.resize(28, 0);
        out
    }

    fn supported_descriptors(&self) -> Vec<u8> {
        counted(self.descriptor_types.clone())
    }

    fn supported_cscd_ids(&self) -> Vec<u8> {
        let mut out = len16(self.cscd_ids.len() * 2).to_vec();
        for id in &self.cscd_ids {
            out.extend(id.0.to_be_bytes());
        }
        out
    }

    fn supported_rod_types(&self) -> Vec<u8> {
        let mut out = [0; 2].to_vec();
        out.extend(len16(self.rod_types.len() * 64));
        for support in &self.rod_types {
            out.extend(support.rod_type.0.to_be_bytes());
            out.extend([u8::from(support.token_in) << 1 | u8::from(support.token_out), 0]);
            out.extend(support.preference.to_be_bytes());
            out.extend([0; 56]);
        }
        out
    }

    fn general_operations(&self) -> Vec<u8> {
        let mut out = self.total_concurrent.to_be_bytes().to_vec();
        out.extend(self.concurrent.to_be_bytes());
        out.extend(self.segment_len_max.to_be_bytes());
        out.push(self.segment_granularity);
        out.resize(32, 0);
        out
    }
}

impl BlockRodLimits {
    fn encode(&self) -> Vec<u8> {
        let mut out = [0; 6].to_vec();
        out.extend(self.ranges_max.to_be_bytes());
        out.extend(self.inactivity_timeout_max_s.to_be_bytes());
        out.extend(self.inactivity_timeout_default_s.to_be_bytes());
        out.extend(self.transfer_blocks_max.to_be_bytes());
        out.extend(self.transfer_blocks_optimal.to_be_bytes());
        out
    }
}

impl TokenFeatures {
    fn encode(&self) -> Vec<u8> {
        let mut out = [self.remote_tokens & 0xf].to_vec();
        out.extend([0; 11]);
        out.extend(self.lifetime_min_s.to_be_bytes());
        out.extend(self.lifetime_max_s.to_be_bytes());
        out.extend(self.inactivity_timeout_max_s.to_be_bytes());
        out.extend([0; 18]);
        // One descriptor for direct access block devices follows, of 48 bytes.
        out.extend([0, 48]);
        out.extend([0, 0, 0, 44, 0, 0]);
        out.extend(self.optimal_granularity_blocks.to_be_bytes());
        out.extend(self.len_max.to_be_bytes());
        for _transfer_to_token_from_token in 0..3 {
            out.extend(self.optimal_len.to_be_bytes());
        }
        out.extend([0; 8]);
        out
    }
}

/// Returns `list` after a length of one byte.
fn counted(list: Vec<u8>) -> Vec<u8> {
    let mut out = Vec::with_capacity(1 + list.len());
    out.push(u8::try_from(list.len()).unwrap_or(u8::MAX));
    out.extend(list);
    out
}

fn descriptor(out: &mut Vec<u8>, kind: u16, data: &[u8]) {
    let padded = data.len().next_multiple_of(4);
    out.extend(kind.to_be_bytes());
    out.extend(len16(padded));
    out.extend_from_slice(data);
    out.resize(out.len() + padded - data.len(), 0);
}

/// Returns every descriptor in the body of a page as (type, data), up to the first that is cut off.
pub fn descriptors(body: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = body;
    core::iter::from_fn(move || {
        let data_len = usize::from(u16_at(rest, 2));
        let data = rest.get(4..)?.get(..data_len)?;
        let kind = u16_at(rest, 0);
        rest = rest.get(4 + data_len..).unwrap_or_default();
        Some((kind, data))
    })
}

/// Returns whether the body of a page lists a command as supported.
pub fn supports(body: &[u8], opcode: u8, service_action: u8) -> bool {
    descriptors(body).filter(|(kind, _)| *kind == 0x0001).any(|(_, data)| {
        let listed = data.get(1..).unwrap_or_default();
        let mut rest = listed.get(..usize::from(u8_at(data, 0))).unwrap_or(listed);
        while let Some(actions) = rest.get(2..) {
            let actions = actions.get(..usize::from(u8_at(rest, 1))).unwrap_or(actions);
            if u8_at(rest, 0) == opcode && actions.contains(&service_action) {
                return true;
            }
            rest = rest.get(2 + actions.len()..).unwrap_or_default();
        }
        false
    })
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::super::list::CscdFields;
    use super::*;

    fn page() -> ThirdPartyCopy {
        ThirdPartyCopy {
            block_rod_limits: Some(BlockRodLimits {
                ranges_max: 64,
                inactivity_timeout_max_s: 3600,
                inactivity_timeout_default_s: 300,
                transfer_blocks_max: 0x8_0000,
                transfer_blocks_optimal: 0x2_0000,
            }),
            commands: vec![(0x83, vec![0, 1, 0x10]), (0x84, vec![0, 3])],
            limits: Limits {
                cscds_max: 8,
                segments_max: 64,
                descriptors_len_max: 2304,
                inline_len_max: 0,
                cscd_fields: CscdFields::Spc4,
            },
            descriptor_types: vec![2, 0xe4],
            cscd_ids: vec![CscdId::COPY_MANAGER_UNIT],
            token_features: Some(TokenFeatures {
                remote_tokens: 0,
                lifetime_min_s: 0,
                lifetime_max_s: 86_400,
                inactivity_timeout_max_s: 3600,
                optimal_granularity_blocks: 8,
                len_max: 1 << 28,
                optimal_len: 1 << 26,
            }),
            rod_types: vec![RodTypeSupport {
                rod_type: RodType::BLOCK_DEVICE_ZERO,
                token_in: true,
                token_out: false,
                preference: 0,
            }],
            total_concurrent: 16,
            concurrent: 16,
            segment_len_max: 1 << 28,
            segment_granularity: 9,
            held_len_max: 0,
        }
    }

    #[test]
    fn every_descriptor_has_its_standard_length() {
        let bytes = page().encode();
        let found: Vec<(u16, usize)> = descriptors(&bytes).map(|(kind, data)| (kind, data.len())).collect();
        let wanted = [
            (0x0000, 32),
            (0x0001, 12),
            (0x0004, 28),
            (0x0008, 4),
            (0x000c, 4),
            (0x0106, 92),
            (0x0108, 68),
            (0x8001, 32),
        ];
        assert_eq!(found, wanted);
        let without_tokens =
            ThirdPartyCopy { block_rod_limits: None, token_features: None, rod_types: vec![], ..page() };
        let found: Vec<u16> = descriptors(&without_tokens.encode()).map(|(kind, _)| kind).collect();
        assert_eq!(found, [0x0001, 0x0004, 0x0008, 0x000c, 0x8001]);
        let held = ThirdPartyCopy { held_len_max: 512, ..page() }.encode();
        assert_eq!(descriptors(&held).last().map(|(kind, data)| (kind, data.len())), Some((0xc001, 28)));
    }

    #[test]
    fn fields_stand_where_spc_puts_them() {
        let bytes = page().encode();
        let of = |wanted| descriptors(&bytes).find(|(kind, _)| *kind == wanted).unwrap().1;
        assert_eq!(of(0x0000)[4..16], [0, 0, 0, 64, 0, 0, 0x0e, 0x10, 0, 0, 1, 0x2c]);
        assert_eq!(of(0x0000)[16..24], [0, 0, 0, 0, 0, 8, 0, 0]);
        assert_eq!(of(0x0001), [9, 0x83, 3, 0, 1, 0x10, 0x84, 2, 0, 3, 0, 0]);
        assert_eq!(of(0x0004)[..12], [0, 0, 0, 0, 0, 8, 0, 64, 0, 0, 9, 0]);
        assert_eq!(of(0x000c), [0, 2, 0xff, 0xff]);
        let features = of(0x0106);
        assert_eq!(features[12..24], [0, 0, 0, 0, 0, 1, 0x51, 0x80, 0, 0, 0x0e, 0x10]);
        assert_eq!(features[42..52], [0, 48, 0, 0, 0, 44, 0, 0, 0, 8]);
        assert_eq!(features[52..60], [0, 0, 0, 0, 0x10, 0, 0, 0]);
        assert_eq!(of(0x0108)[..12], [0, 0, 0, 64, 0xff, 0xff, 0, 1, 2, 0, 0, 0]);
        assert_eq!(of(0x8001)[8..13], [0x10, 0, 0, 0, 9]);
    }

    #[test]
    fn an_initiator_finds_the_commands_again() {
        let bytes = page().encode();
        assert!(supports(&bytes, 0x83, 0x10) && supports(&bytes, 0x84, 3));
        assert!(!supports(&bytes, 0x83, 3) && !supports(&bytes, 0x84, 0x10) && !supports(&bytes, 0x85, 0));
        for cut in 0..bytes.len() {
            let _never_panics = supports(&bytes[..cut], 0x84, 3);
        }
    }
}
