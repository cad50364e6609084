//! `targe bench`: its output, and that it changes only the blocks that it may.

use crate::{content, feed, json, pattern, two_disks, url};

#[test]
fn a_load_ends_in_time_and_tells_rates_and_latencies() {
    let (fixture, daemon) = two_disks();
    let url = url(&daemon, 0);
    for reactor in ["epoll", "auto"] {
        for rw in ["read", "write", "mixed:70"] {
            let args = ["bench", &url, "--rw", rw, "--random", "--time", "0.3", "--warmup", "0.1", "--write"];
            let (code, text, told) = fixture.run(&[&args[..], &["--json", "--reactor", reactor]].concat());
            assert_eq!(code, 0, "{told}");
            let report = json(&text);
            assert!(report["iops"].as_f64().unwrap() > 0.0, "{text}");
            let bytes = report["iops"].as_f64().unwrap() * 4096.0;
            assert!((report["bytes_per_s"].as_f64().unwrap() / bytes - 1.0).abs() < 0.01, "{text}");
            assert!(report["cpu_s"].as_f64().unwrap() > 0.0);
            let latency = &report["latency_us"];
            let at = |name: &str| latency[name].as_f64().unwrap();
            assert!(0.0 < at("p50") && at("p50") <= at("p99") && at("p99") <= at("p999"), "{text}");
            assert!(at("p999") <= at("max") && at("mean") <= at("max"), "{text}");
            assert_eq!((report["read"].is_null(), report["write"].is_null()), (rw == "write", rw == "read"));
        }
    }
}

#[test]
fn a_load_names_the_digests_that_were_negotiated() {
    let (fixture, daemon) = two_disks();
    let url = url(&daemon, 0);
    for (query, digest) in [("", "CRC32C"), ("?header_digest=none&data_digest=none", "None")] {
        let url = format!("{url}{query}");
        let args = ["bench", &url, "--time", "0.1", "--warmup", "0"];
        let (code, text, told) = fixture.run(&[&args[..], &["--json", "--sessions", "2"]].concat());
        assert_eq!(code, 0, "{told}");
        let report = json(&text);
        let sets = report["negotiated"].as_array().unwrap();
        assert_eq!(sets.len(), 1, "both sessions agreed on the same: {text}");
        assert_eq!((&sets[0]["HeaderDigest"], &sets[0]["DataDigest"]), (&digest.into(), &digest.into()));
        assert!(sets[0]["MaxBurstLength"].as_str().unwrap().parse::<u32>().is_ok(), "{text}");
        let (_, text, _) = fixture.run(&args);
        assert!(
            text.contains(&format!("negotiated: header digest {digest}, data digest {digest}\n")),
            "{text}"
        );
    }
}

#[test]
fn sessions_connections_and_units_are_loaded_together() {
    let (fixture, daemon) = two_disks();
    let (first, second) = (url(&daemon, 0), url(&daemon, 1));
    let args = ["bench", &first, &second, "--sessions", "2", "--connections", "2", "--threads", "2"];
    let (code, text, told) =
        fixture.run(&[&args[..], &["--time", "0.3", "--warmup", "0.1", "--json"]].concat());
    assert_eq!(code, 0, "{told}");
    let report = json(&text);
    assert_eq!((&report["sessions"], &report["threads"]), (&json("4"), &json("2")), "{text}");
    let connections = report["connections"].as_u64().unwrap();
    assert!(
        connections == 8 || told.contains("connections were established; the target allows no more"),
        "{told}"
    );
}

#[test]
fn a_load_ends_after_a_count_of_commands() {
    let (fixture, daemon) = two_disks();
    let (first, second) = (url(&daemon, 0), url(&daemon, 1));
    let args = ["bench", &first, &second, "--sessions", "2", "--depth", "3", "--count", "20", "--json"];
    let (code, text, told) = fixture.run(&args);
    assert_eq!(code, 0, "{told}");
    let report = json(&text);
    assert_eq!(report["ios"], json("80"), "{text}");
    let seconds = report["seconds"].as_f64().unwrap();
    assert!(report["latency_us"]["max"].as_f64().unwrap() <= seconds * 1e6, "{text}");
}

#[test]
fn a_load_keeps_to_its_range() {
    let (fixture, daemon) = two_disks();
    let url = url(&daemon, 0);
    let before = pattern(9, 4 << 20);
    assert_eq!(feed(&fixture, &["write", &url, "--write"], &before).0, 0);
    let args = ["bench", &url, "--rw", "write", "--random", "--range", "64K,128K", "--bs", "8K", "--write"];
    let (code, text, told) = fixture.run(&[&args[..], &["--time", "0.3", "--warmup", "0"]].concat());
    assert_eq!(code, 0, "{told}");
    assert!(text.contains("write") && text.contains("P99.9"), "{text}");
    let after = content(&fixture, &url, 0, 4 << 20);
    assert_eq!(after[..64 << 10], before[..64 << 10]);
    assert_eq!(after[192 << 10..], before[192 << 10..]);
    assert_ne!(after[64 << 10..192 << 10], before[64 << 10..192 << 10]);
}

#[test]
fn a_load_that_cannot_be_is_bad_usage() {
    let (fixture, daemon) = two_disks();
    let url = url(&daemon, 1);
    for (flags, told) in [
        (&["--bs", "512"][..], "has blocks of 4096 bytes; 512 bytes per command is not a multiple"),
        (&["--bs", "2M"], "takes at most 1048576 bytes in one command"),
        (&["--range", "1M,4K"], "the range from 1048576 on holds no whole command"),
        (&["--range", "1K,8K"], "does not start at a block"),
        (&["--range", "512K,1M"], "the range ends beyond that, at 1572864"),
        (&["--bs", "0"], "--bs: from one block"),
        (&["--rw", "mixed:101"], "expected read, write, mixed"),
        (&["--reactor", "kqueue"], "unknown reactor `kqueue`"),
        (&["--depth", "0"], "0 is not in 1..=8192"),
        (&["--time", "x"], "not a number of seconds"),
        (&["--time", "0"], "the duration must be longer than zero"),
    ] {
        let (code, _, said) = fixture.run(&[&["bench", &url][..], flags].concat());
        assert_eq!(code, 2, "{flags:?}: {said}");
        assert!(said.contains(told), "{flags:?}: {said}");
    }
}

#[test]
fn what_was_measured_before_a_failure_is_told() {
    let (fixture, daemon) = two_disks();
    let url = format!("{}?timeout=0", url(&daemon, 0));
    let mut command = fixture.command(&["bench", &url, "--time", "600", "--warmup", "0", "--json"]);
    let child =
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap();
    let began = std::time::Instant::now();
    while daemon.ask("sessions")["sessions"][0]["data_in_bytes"].as_u64().unwrap_or(0) < 1 << 20 {
        assert!(began.elapsed() < std::time::Duration::from_secs(60), "it moves nothing");
    }
    daemon.kill();
    let output = child.wait_with_output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("the report covers the "), "{told}");
    let report = json(std::str::from_utf8(&output.stdout).unwrap());
    assert!(report["ios"].as_u64().unwrap() > 0, "{report}");
}
