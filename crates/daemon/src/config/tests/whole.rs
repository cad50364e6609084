//! Tests of valid configurations and their meaning.

use device::contract::{InquiryOverrides, SpcLevel, TaskRules};
use iscsi::negotiate::{DigestPolicy, KeyPolicy};
use iscsi::target::contract::SessionLimits;

use super::*;
use crate::log;

#[test]
fn a_whole_configuration_resolves_to_what_it_says() {
    let scratch = Scratch::new();
    let config = scratch.config(SHARED);
    assert_eq!(config.state_dir, scratch.path().join("state"));
    assert_eq!(config.admin_socket, scratch.path().join("state/admin/admin.sock"));
    assert_eq!((config.log, config.reactor), (log::Level::Info, ReactorChoice::Auto));
    assert_eq!((config.poll, config.look), (false, true));
    assert_eq!(config.cores, [0, 1, 2, 5]);
    let portals: Vec<_> = config
        .portals
        .iter()
        .map(|p| (p.listen.to_string(), p.announce.as_ref().map(ToString::to_string), p.tag))
        .collect();
    assert_eq!(
        portals,
        [
            ("[::1]:3261".to_owned(), Some("san.example.net:3261".to_owned()), 1),
            ("127.0.0.1:3260".to_owned(), None, 2)
        ]
    );
    let [a, b] = &config.targets[..] else { panic!("two targets") };
    assert_eq!(a.name.as_str(), "iqn.2001-04.com.example:a");
    assert_eq!((&a.portals[..], &b.portals[..]), (&[0, 1][..], &[0][..]));
    assert_eq!(a.keys.header_digest, DigestPolicy::RequireNone);
    assert_eq!(b.keys.header_digest, DigestPolicy::PreferCrc32c);
    assert_eq!(
        (a.keys.data_digest, b.keys.data_digest),
        (DigestPolicy::RequireCrc32c, DigestPolicy::RequireCrc32c)
    );
    assert_eq!((a.keys.max_burst_length, a.keys.first_burst_length), (128 << 10, 128 << 10));
    assert_eq!(config.limits.ping_after, std::time::Duration::MAX);
    let show = |luns: &[MappedLun]| -> Vec<(u16, String, bool)> {
        luns.iter()
            .map(|lun| {
                (
                    lun.lun,
                    config.units[lun.unit.0].medium.to_string(),
                    lun.read_only || config.units[lun.unit.0].read_only,
                )
            })
            .collect()
    };
    let file = format!("file:{}/disk.img", scratch.path().display());
    assert_eq!(
        show(&a.luns),
        [(0, "ram:2M".to_owned(), true), (1, "null:1T".to_owned(), false), (2, file.clone(), false)]
    );
    assert_eq!(show(&b.luns), [(9, "ram:2M".to_owned(), true)]);
    assert_eq!(a.luns[0].unit, b.luns[0].unit);
    let entry = &a.acl.as_ref().unwrap()[0];
    assert_eq!(show(&entry.luns), [(0, "null:1T".to_owned(), true), (2, file, false)]);
    let patterns: Vec<_> = entry.initiators.iter().map(NamePattern::as_str).collect();
    assert_eq!(patterns, ["iqn.1994-05.com.redhat:*", "eui.0123456789abcdef"]);
    let unit = &config.units[a.luns[2].unit.0];
    assert_eq!((unit.identity.vendor.as_str(), unit.identity.product.as_str()), ("ACME", "Virtual Disk"));
    assert_eq!(unit.identity.serial, unit.identity.naa.to_string());
    assert!(unit.thin && unit.write_cache && !unit.read_only);
    assert_eq!(unit.physical_block_size.bytes(), 4096);
}

#[test]
fn a_target_has_the_limits_of_the_top_level_unless_it_has_its_own() {
    let scratch = Scratch::new();
    let lun = "[[target.lun]]\ntype = 'null'\nsize = '1M'\n";
    let target = |name, keys| format!("[[target]]\nname = 'iqn.2001-04.com.example:{name}'\n{keys}{lun}");
    let top = "queue_depth = 7\nnop_interval = '0s'\n";
    let own = "queue_depth = 9\nnop_interval = '3s'\nnop_timeout = '1s'\n";
    let config = scratch.config(&[top, &target("a", ""), &target("b", own)].concat());
    let show = |limits: &SessionLimits| (limits.queue_depth, limits.ping_after, limits.pong_within);
    let seconds = std::time::Duration::from_secs;
    let usual = (7, std::time::Duration::MAX, seconds(15));
    assert_eq!(show(&config.limits), usual);
    assert_eq!(show(&config.targets[0].limits), usual);
    assert_eq!(show(&config.targets[1].limits), (9, seconds(3), seconds(1)));
}

#[test]
fn what_a_lun_claims_can_be_less_than_it_can() {
    let scratch = Scratch::new();
    let claims = |spec: &str| {
        let flags = Flags { luns: vec![spec.to_owned()], ..Flags::default() };
        scratch.flags(&flags).unwrap().config.units[0].claims
    };
    let usual = InquiryOverrides {
        write_same_to_end: false,
        compare_and_write_max: 1,
        ..InquiryOverrides::default()
    };
    assert_eq!(claims("ram:1M"), usual);
    assert_eq!(claims("ram:1M,spc=3"), InquiryOverrides { level: SpcLevel::Spc3, ..usual });
    assert_eq!(claims("ram:1M,spc=5"), InquiryOverrides { level: SpcLevel::Spc5, ..usual });
    assert_eq!(
        claims("ram:1M,unmapped=unspecified,write_same_to_end,compare_and_write_max=255"),
        InquiryOverrides {
            unmapped_zeros: false,
            write_same_to_end: true,
            compare_and_write_max: 255,
            ..usual
        }
    );
    for (rotation, rate) in [("ssd", 1), ("0", 0), ("7200", 7200)] {
        let rotation_rate = Some(rate);
        assert_eq!(
            claims(&format!("ram:1M,rotation={rotation}")),
            InquiryOverrides { rotation_rate, ..usual }
        );
    }
}

#[test]
fn every_initiator_has_a_task_set_of_its_own_unless_it_is_said_otherwise() {
    let scratch = Scratch::new();
    let tasks = |spec: &str| {
        let flags = Flags { luns: vec![spec.to_owned()], ..Flags::default() };
        scratch.flags(&flags).unwrap().config.units[0].tasks
    };
    assert_eq!(tasks("ram:1M"), TaskRules { nexus_task_sets: true, task_aborted_status: true });
    assert_eq!(tasks("ram:1M,tst=1,tas=true"), TaskRules::default());
    assert_eq!(tasks("ram:1M,tst=0,tas=false"), TaskRules::SHARED);
}

#[test]
fn what_no_key_changes_is_what_the_protocol_engine_offers() {
    let scratch = Scratch::new();
    let keys = scratch.flags(&Flags::default()).unwrap().config.targets[0].keys.clone();
    // RFC 7143 §13.23 has another default; targe supports more values.
    assert_eq!(keys.task_reporting, ["FastAbort", "ResponseFence", "RFC3720"]);
    let task_reporting = KeyPolicy::default().task_reporting;
    assert_eq!(KeyPolicy { task_reporting, ..keys }, KeyPolicy::default());
}

#[test]
fn the_example_of_the_page_is_right() {
    let page = include_str!("../../../../../docs/config.md");
    let example = page.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    let scratch = Scratch::new();
    scratch.file("vm.secret", "twelve bytes or more", 0o600);
    let example = example.replace("/srv/san", scratch.path().to_str().unwrap());
    // A host may lack only two things of the example: its block device, and the space for its file.
    let told = scratch.load(&example).map_or_else(|report| scratch.told(&report), |_| String::new());
    let told: Vec<&str> = told
        .lines()
        .filter(|line| !line.is_empty() && !line.ends_with("writes will fail when it is full"))
        .collect();
    let told = told.join("\n");
    assert!(told.is_empty() || told.lines().count() == 1 && told.contains("/dev/vg0/data"), "{told}");
}
