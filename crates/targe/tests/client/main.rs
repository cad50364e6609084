//! The initiator's commands as users run them, against a targe target that runs beside them.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "all of this is test code, where a panic is the verdict"
)]

#[path = "../serve/fixture.rs"]
#[allow(dead_code, reason = "what these tests do not use, those of the daemon do")]
mod fixture;

mod compare;
mod failures;
mod load;
mod passwords;

use std::io::Write;
use std::process::{Output, Stdio};

use fixture::{Daemon, Fixture};
use serde_json::Value;

pub(crate) const NAME: &str = "iqn.2001-04.com.example:disk";

/// Returns a fixture with a target of two RAM disks, of 4 MiB and 1 MiB.
pub(crate) fn two_disks() -> (Fixture, Daemon) {
    let fixture = Fixture::new();
    let args = ["--listen", "127.0.0.1:0", "--target", NAME, "--lun", "ram:4M", "--lun", "ram:1M,bs=4096"];
    let daemon = fixture.serve(&args);
    (fixture, daemon)
}

pub(crate) fn url(daemon: &Daemon, lun: u16) -> String {
    format!("iscsi://{}/{NAME}/{lun}", daemon.address)
}

/// Runs the binary with `input`: exit code, stdout, stderr.
pub(crate) fn feed(fixture: &Fixture, args: &[&str], input: &[u8]) -> (i32, Vec<u8>, String) {
    let mut child = fixture
        .command(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    // A command that needs no more input closes its end of the pipe.
    let feeder = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    feeder.join().unwrap();
    (status.code().unwrap(), stdout, String::from_utf8(stderr).unwrap())
}

/// Reads a whole range, and expects the read to succeed.
pub(crate) fn content(fixture: &Fixture, url: &str, offset: usize, length: usize) -> Vec<u8> {
    let (offset, length) = (offset.to_string(), length.to_string());
    let (code, data, told) = feed(fixture, &["read", url, "--offset", &offset, "--length", &length], &[]);
    assert_eq!(code, 0, "{told}");
    data
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

/// Returns bytes that differ from each other and from those of another seed.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    base::rng::Rng::from_seed(seed).fill(&mut bytes);
    bytes
}

#[test]
fn discovery_lists_every_lun_with_the_url_that_reaches_it() {
    let (fixture, daemon) = two_disks();
    let portal = daemon.address.to_string();
    let (code, text, told) = fixture.run(&["discover", &portal]);
    assert_eq!((code, told.as_str()), (0, ""));
    assert!(text.starts_with(&format!("{NAME}  {portal}\n")), "{text}");
    assert!(text.contains("4M") && text.contains("1M") && text.contains("TARGE"), "{text}");
    let (code, text, _) = fixture.run(&["discover", &portal, "--json"]);
    assert_eq!(code, 0);
    let all = json(&text);
    let all = all.as_array().unwrap();
    assert_eq!(all.len(), 2);
    for (lun, (bytes, block_bytes)) in [(4 << 20, 512), (1 << 20, 4096)].into_iter().enumerate() {
        assert_eq!(all[lun]["bytes"], bytes);
        assert_eq!(all[lun]["block_bytes"], block_bytes);
        assert_eq!(all[lun]["lun"], lun);
        let (code, text, told) = fixture.run(&["info", all[lun]["url"].as_str().unwrap(), "--json"]);
        assert_eq!(code, 0, "{told}");
        assert_eq!(json(&text)["bytes"], bytes);
    }
}

#[test]
fn info_tells_what_the_unit_says_and_what_the_session_agreed_on() {
    let (fixture, daemon) = two_disks();
    let (code, text, told) =
        fixture.run(&["info", &format!("{}?data_digest=none&erl=0", url(&daemon, 0)), "--json"]);
    assert_eq!((code, told.as_str()), (0, ""));
    let info = json(&text);
    assert_eq!(info["vendor"], "TARGE");
    assert_eq!(info["device_type"], 0);
    assert_eq!(info["physical_block_bytes"], 4096);
    assert_eq!(info["provisioning"]["type"], "thin");
    assert_eq!(info["connections"][0]["header_digest"], "crc32c");
    assert_eq!(info["connections"][0]["data_digest"], "none");
    assert_eq!(info["session"]["error_recovery_level"], 0);
    let names = info["designators"].as_array().unwrap();
    let naa = names.iter().find(|name| name["type"] == "naa").unwrap();
    assert_eq!(naa["value"].as_str().unwrap(), daemon.ask("luns")["luns"][0]["naa"].as_str().unwrap());
    assert!(info["vpd"]["b0"].as_str().unwrap().starts_with("00b0003c"));
    let (code, text, _) = fixture.run(&["info", &url(&daemon, 1)]);
    assert_eq!(code, 0);
    assert!(text.starts_with("size: 1M (1048576 bytes)\n") && text.contains("block bytes: 4096\n"), "{text}");
}

#[test]
fn what_is_written_is_read_back_and_nothing_beside_it_changes() {
    let (fixture, daemon) = two_disks();
    for (lun, size) in [(0, 4 << 20), (1, 1 << 20)] {
        let url = url(&daemon, lun);
        let before = pattern(1, size);
        let (code, _, told) = feed(&fixture, &["write", &url, "--write"], &before);
        assert_eq!(code, 0, "{told}");
        assert!(told.contains(&format!("wrote {size} bytes")), "{told}");
        assert_eq!(content(&fixture, &url, 0, size), before);
        let mut expected = before;
        // Ranges that start and end within blocks, within one block, and in small commands.
        for (seed, offset, len, bs) in [(2, 5000, 300_001, "64K"), (3, 4097, 10, "4K"), (4, 8192, 4096, "4K")]
        {
            let data = pattern(seed, len);
            let offset_text = offset.to_string();
            let args = ["write", &url, "--write", "--offset", &offset_text, "--bs", bs, "--depth", "3"];
            let (code, _, told) = feed(&fixture, &args, &data);
            assert_eq!(code, 0, "{told}");
            expected[offset..offset + len].copy_from_slice(&data);
        }
        assert_eq!(content(&fixture, &url, 0, size), expected);
        assert_eq!(content(&fixture, &url, 4099, 77_777), expected[4099..4099 + 77_777]);
        assert!(content(&fixture, &url, size, 0).is_empty());
    }
}

#[test]
fn a_length_takes_so_much_of_the_input_and_no_more() {
    let (fixture, daemon) = two_disks();
    let url = url(&daemon, 0);
    let data = pattern(5, 10_000);
    let (code, _, told) = feed(&fixture, &["write", &url, "--write", "--length", "6000"], &data);
    assert_eq!(code, 0, "{told}");
    let mut expected = data[..6000].to_vec();
    expected.resize(8192, 0);
    assert_eq!(content(&fixture, &url, 0, 8192), expected);
    let (code, _, told) = feed(&fixture, &["write", &url, "--write", "--length", "20000"], &data);
    assert_eq!(code, 1);
    assert!(told.contains("the input ended after 10000 of 20000 bytes"), "{told}");
}

#[test]
fn nothing_is_written_without_consent() {
    let (fixture, daemon) = two_disks();
    let url = url(&daemon, 0);
    for args in
        [&["write", &url][..], &["bench", &url, "--rw", "write"], &["bench", &url, "--rw", "mixed:99"]]
    {
        let (code, _, told) = feed(&fixture, args, &[1; 4096]);
        assert_eq!(code, 2);
        assert!(told.contains("this needs --write"), "{told}");
    }
    assert_eq!(content(&fixture, &url, 0, 4 << 20), vec![0; 4 << 20]);
}

#[test]
fn input_that_does_not_fit_is_refused_before_a_block_is_written_if_its_length_is_known() {
    let (fixture, daemon) = two_disks();
    let url = url(&daemon, 1);
    std::fs::write(fixture.path("large"), vec![7; (1 << 20) + 1]).unwrap();
    let file = std::fs::File::open(fixture.path("large")).unwrap();
    let output = fixture.command(&["write", &url, "--write"]).stdin(file).output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(told.contains("the range has only 1048576; nothing was written"), "{told}");
    assert_eq!(content(&fixture, &url, 0, 1 << 20), vec![0; 1 << 20]);
    let (code, _, told) = feed(&fixture, &["write", &url, "--write"], &vec![7; (1 << 20) + 1]);
    assert_eq!(code, 1);
    assert!(told.contains("is longer than the LUN; 1048576 bytes were written"), "{told}");
    for args in [["read", &url, "--offset", "2M"], ["write", &url, "--length", "2M"]] {
        let (code, data, told) =
            feed(&fixture, &[&args[..], &["--write"][..usize::from(args[0] == "write")]].concat(), &[]);
        assert_eq!((code, data.len()), (1, 0), "{told}");
        assert!(told.contains("the range exceeds the LUN, which has 1048576 bytes"), "{told}");
    }
}
