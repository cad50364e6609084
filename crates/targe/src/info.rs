//! `targe info`: everything that a LUN reports of itself, and what its session negotiated.

use std::fmt::Write;

use daemon::config::show_size;
use hyperscsi::initiator::contract::SessionUp as EtherUp;
use hyperscsi::pdu::parameters::Repair;
use initiator::{CommandError, Error, LogicalUnit, SessionUp, Url, block_on};
use iscsi::negotiate::{Digest, SessionParameters};
use scsi::block::Capacity;
use scsi::inquiry::{DeviceType, Qualifier, StandardInquiry};
use scsi::lun::Lun;
use scsi::vpd::{
    BlockCharacteristics, BlockLimits, CodeSet, Designator, DesignatorType, LogicalBlockProvisioning, Page,
    page,
};
use security::Level;
use serde_json::{Map, Value, json};

use crate::cli::InfoArgs;
use crate::discover::words;
use crate::{Failure, connect, print, signals};

pub(crate) fn run(args: &InfoArgs) -> Result<(), Failure> {
    let url = connect::url(&args.url)?;
    let client = connect::client()?;
    let session = connect::session(&client, &url)?;
    let _guard = signals::LogoutGuard::new(&session)?;
    let lun = Lun::from_number(url.lun).ok_or_else(|| failed(&url, &Error::NoUnit(url.lun)))?;
    let unit = LogicalUnit::new(session.clone(), lun);
    let facts = block_on(query_unit(&unit, url.lun)).map_err(|why| failed(&url, &why))?;
    let digests = block_on(session.connections()).map_err(|why| failed(&url, &why.into()))?;
    let mut document = facts.as_json();
    document.insert("url".to_owned(), json!(url.to_string()));
    let agreed = match session.up() {
        SessionUp::Iscsi(up) => negotiated(&up.parameters, up.tsih.0),
        SessionUp::HyperScsi(up) => agreed_on(up),
        _ => Value::Null,
    };
    document.insert("session".to_owned(), agreed);
    let connections = digests.iter().map(|view| {
        json!({
            "cid": view.cid.0,
            "header_digest": digest(view.parameters.header_digest),
            "data_digest": digest(view.parameters.data_digest),
            "max_recv_data_segment_length": view.parameters.initiator_max_recv,
            "target_max_recv_data_segment_length": view.parameters.target_max_recv,
        })
    });
    if matches!(session.up(), SessionUp::Iscsi(_)) || args.json {
        document.insert("connections".to_owned(), connections.collect());
    }
    if args.json {
        print(&format!("{:#}\n", Value::Object(document)));
    } else {
        print(&show(&document));
    }
    Ok(())
}

fn failed(url: &Url, why: &Error) -> Failure {
    Failure::Failed(format!("{url}: {}", connect::error_chain(why)))
}

/// The data that a unit reports of itself.
struct UnitReport {
    inquiry: StandardInquiry,
    /// Pages with their codes, in the order that the unit lists them.
    pages: Vec<(u8, Vec<u8>)>,
    capacity: Option<Capacity>,
    trouble: Option<String>,
    caching: Option<initiator::Caching>,
}

async fn query_unit(unit: &LogicalUnit, number: u16) -> Result<UnitReport, Error> {
    let inquiry = unit.inquiry().await?;
    if inquiry.qualifier != Qualifier::CONNECTED {
        return Err(Error::NoUnit(number));
    }
    let listed = unit.vpd(page::SUPPORTED_PAGES).await?.unwrap_or_default();
    let codes = Page::parse(&listed).map(|page| page.body.to_vec()).unwrap_or_default();
    let mut pages = Vec::new();
    for code in codes.into_iter().filter(|code| *code != page::SUPPORTED_PAGES) {
        if let Some(bytes) = unit.vpd(code).await? {
            pages.push((code, bytes));
        }
    }
    let is_disk = inquiry.device_type == DeviceType::DIRECT_ACCESS_BLOCK;
    let (capacity, trouble) = match unit.capacity().await {
        Ok((capacity, _)) => (Some(capacity), None),
        Err(Error::Command(why @ (CommandError::Down(_) | CommandError::Lost(_)))) => {
            return Err(why.into());
        }
        Err(why) if is_disk => (None, Some(why.to_string())),
        Err(_) => (None, None),
    };
    let caching = unit.caching().await?;
    Ok(UnitReport { inquiry, pages, capacity, trouble, caching })
}

impl UnitReport {
    fn as_json(&self) -> Map<String, Value> {
        let inquiry = &self.inquiry;
        let mut all = Map::new();
        let mut put = |name: &str, value: Value| all.insert(name.to_owned(), value);
        put("vendor", json!(words(&inquiry.vendor)));
        put("product", json!(words(&inquiry.product)));
        put("revision", json!(words(&inquiry.revision)));
        put("device_type", json!(inquiry.device_type.0));
        put("removable", json!(inquiry.removable));
        put("version", json!(inquiry.version));
        let versions: Vec<u16> = inquiry.versions.into_iter().filter(|version| *version != 0).collect();
        put("version_descriptors", json!(versions));
        if let Some(serial) = self.body(page::UNIT_SERIAL_NUMBER) {
            put("serial", json!(words(serial)));
        }
        if let Some(names) = self.body(page::DEVICE_IDENTIFICATION) {
            put("designators", Designator::list(names).iter().map(designator).collect());
        }
        if let Some(capacity) = &self.capacity {
            put("bytes", json!(capacity.bytes()));
            put("blocks", json!(capacity.blocks.0));
            put("block_bytes", json!(capacity.block_size.bytes()));
            let physical = u64::from(capacity.block_size.bytes()) << capacity.physical_exponent;
            put("physical_block_bytes", json!(physical));
            put("lowest_aligned_block", json!(capacity.lowest_aligned));
            put("protection_information", json!(capacity.protection));
        }
        if let Some(trouble) = &self.trouble {
            put("capacity_error", json!(trouble));
        }
        if let Some(caching) = &self.caching {
            put("write_protected", json!(caching.write_protected));
            put("write_cache", json!(caching.write_cache));
            put("force_unit_access", json!(caching.force_unit_access));
        }
        if let Some(limits) = self.body(page::BLOCK_LIMITS).and_then(|body| BlockLimits::parse(body).ok()) {
            put("limits", block_limits(&limits));
        }
        let thin = self.body(page::LOGICAL_BLOCK_PROVISIONING).map(LogicalBlockProvisioning::parse);
        if let Some(Ok(thin)) = thin {
            put("provisioning", provisioning(&thin, self.capacity.as_ref()));
        }
        let rotation = self.body(page::BLOCK_CHARACTERISTICS).map(BlockCharacteristics::parse);
        if let Some(Ok(rotation)) = rotation {
            put("rotation_rate", json!(rotation.rotation_rate));
        }
        let pages = self.pages.iter().map(|(code, bytes)| (format!("{code:02x}"), json!(hex(bytes))));
        put("vpd", Value::Object(pages.collect()));
        all
    }

    fn body(&self, code: u8) -> Option<&[u8]> {
        let (_, bytes) = self.pages.iter().find(|(of, _)| *of == code)?;
        Page::parse(bytes).ok().map(|page| page.body)
    }
}

fn block_limits(limits: &BlockLimits) -> Value {
    json!({
        "transfer_max": limits.transfer_max,
        "transfer_optimal": limits.transfer_optimal,
        "transfer_granularity": limits.transfer_granularity,
        "unmap_max": limits.unmap_max,
        "unmap_descriptors_max": limits.unmap_descriptors_max,
        "unmap_granularity": limits.unmap_granularity,
        "write_same_max": limits.write_same_max,
        "compare_and_write_max": limits.compare_and_write_max,
        "atomic_max": limits.atomic_max,
    })
}

fn provisioning(thin: &LogicalBlockProvisioning, capacity: Option<&Capacity>) -> Value {
    let kind = match thin.kind.0 {
        0 => "full",
        1 => "resource",
        2 => "thin",
        _ => "unknown",
    };
    json!({
        "type": kind,
        "unmap": thin.unmap,
        "write_same_unmap": thin.write_same_16,
        "anchor": thin.anchor,
        "reads_zero": thin.reads_zero || capacity.is_some_and(|capacity| capacity.reads_zero),
    })
}

fn designator(designator: &Designator) -> Value {
    let kind = match designator.kind {
        DesignatorType::T10_VENDOR => "t10",
        DesignatorType::EUI_64 => "eui",
        DesignatorType::NAA => "naa",
        DesignatorType::RELATIVE_TARGET_PORT => "relative_target_port",
        DesignatorType::TARGET_PORT_GROUP => "target_port_group",
        DesignatorType::LOGICAL_UNIT_GROUP => "logical_unit_group",
        DesignatorType::MD5 => "md5",
        DesignatorType::SCSI_NAME => "scsi_name",
        _ => "vendor_specific",
    };
    let of = match designator.association.0 {
        0 => "unit",
        1 => "port",
        _ => "target",
    };
    let text = if designator.code_set == CodeSet::BINARY {
        hex(&designator.bytes)
    } else {
        let end = designator.bytes.iter().position(|byte| *byte == 0).unwrap_or(designator.bytes.len());
        words(designator.bytes.get(..end).unwrap_or_default())
    };
    json!({ "type": kind, "of": of, "value": text })
}

fn negotiated(parameters: &SessionParameters, tsih: u16) -> Value {
    json!({
        "tsih": tsih,
        "max_connections": parameters.max_connections,
        "error_recovery_level": parameters.error_recovery_level.number(),
        "initial_r2t": parameters.initial_r2t,
        "immediate_data": parameters.immediate_data,
        "max_burst_length": parameters.max_burst_length,
        "first_burst_length": parameters.first_burst_length,
        "max_outstanding_r2t": parameters.max_outstanding_r2t,
        "data_pdu_in_order": parameters.data_pdu_in_order,
        "data_sequence_in_order": parameters.data_sequence_in_order,
        "time2wait": parameters.default_time2wait,
        "time2retain": parameters.default_time2retain,
        "protocol_level": parameters.protocol_level,
    })
}

fn agreed_on(up: &EtherUp) -> Value {
    let parameters = &up.parameters;
    let levels = [Level::None, Level::Integrity, Level::Encrypt];
    let levels = levels.into_iter().filter(|level| parameters.levels.has(*level));
    json!({
        "authenticated": up.authenticated,
        "protection": levels.map(|level| level.to_string()).collect::<Vec<_>>(),
        "peer": up.peer.to_string(),
        "frame_max": parameters.frame_max,
        "exchanges": parameters.exchanges,
        "first_burst": parameters.first_burst,
        "burst_max": parameters.burst_max,
        "paths_max": parameters.paths,
        "retransmission": match parameters.repair {
            Repair::Selective => "selective",
            Repair::Window => "window",
        },
    })
}

const fn digest(digest: Digest) -> &'static str {
    match digest {
        Digest::None => "none",
        Digest::Crc32c => "crc32c",
        Digest::Aead(digest) => digest.name(),
    }
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Formats the document as text for display: a line for each fact, with groups indented.
fn show(document: &Map<String, Value>) -> String {
    let mut text = String::new();
    if let Some(bytes) = document.get("bytes").and_then(Value::as_u64) {
        let _ = writeln!(text, "size: {} ({bytes} bytes)", show_size(bytes));
    }
    lines(&mut text, document, 0);
    text
}

fn lines(text: &mut String, group: &Map<String, Value>, indent: usize) {
    for (name, value) in group {
        let _ = write!(text, "{:indent$}{}:", "", name.replace('_', " "));
        match value {
            Value::Object(inner) => {
                text.push('\n');
                lines(text, inner, indent + 2);
            }
            Value::Array(all) if all.iter().any(Value::is_object) => {
                text.push('\n');
                for one in all {
                    let shown = match one {
                        Value::Object(one) => one
                            .iter()
                            .map(|(name, value)| format!("{name} {}", bare(value)))
                            .collect::<Vec<_>>()
                            .join(", "),
                        other => bare(other),
                    };
                    let _ = writeln!(text, "{:indent$}  {shown}", "");
                }
            }
            Value::Array(all) => {
                let _ = writeln!(text, " {}", all.iter().map(bare).collect::<Vec<_>>().join(" "));
            }
            other => {
                let _ = writeln!(text, " {}", bare(other));
            }
        }
    }
}

fn bare(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Bool(flag) => (if *flag { "yes" } else { "no" }).to_owned(),
        other => other.to_string(),
    }
}
