//! Tests of limits of LUNs and initiators.

use std::time::Duration;

use device::rate_limit::RateLimit;

use super::*;

const TARGET: &str =
    "[[target]]\nname = 'iqn.2001-04.com.example:a'\n[[target.lun]]\ntype = 'ram'\nsize = '2M'\n";

#[test]
fn limits_are_read_in_the_units_that_administrators_write() {
    let scratch = Scratch::new();
    let text = format!(
        "{TARGET}limit_iops = 500\nlimit_bandwidth = '10M'\n[[target.lun]]\ntype = 'null'\nsize = '1M'\n\
         [[target.acl]]\ninitiators = ['iqn.*']\nlimit_iops = 10\nlimit_burst = '2s'\nmax_sessions = 3\n"
    );
    let config = scratch.config(&text);
    let limits: Vec<RateLimit> = config.units.iter().map(|unit| unit.limit).collect();
    let first = RateLimit { iops: 500, bandwidth: 10 << 20, burst: Duration::from_millis(100) };
    assert_eq!(limits, [first, RateLimit::NONE]);
    let quota = config.targets[0].acl.as_ref().unwrap()[0].quota;
    assert_eq!(quota.limit, RateLimit { iops: 10, bandwidth: 0, burst: Duration::from_secs(2) });
    assert_eq!(quota.sessions_max, Some(3));
    let other = scratch.config(&text.replace("limit_iops = 10\n", "limit_iops = 11\n"));
    let told = Config::diff(&config, &other).to_string();
    assert_eq!(told, "target iqn.2001-04.com.example:a changed: access");
    let other = scratch.config(&text.replace("limit_iops = 500\n", ""));
    let told = Config::diff(&config, &other).to_string();
    assert_eq!(told, "target iqn.2001-04.com.example:a changed: LUN 0 changed");
}

#[test]
fn limits_that_would_let_commands_time_out_are_refused() {
    let scratch = Scratch::new();
    let text = format!("{TARGET}limit_iops = 9\nlimit_bandwidth = '512K'\nlimit_burst = '1ms'\n");
    check(
        &scratch.errors(&text),
        "DIR/targe.toml:6:14: \"limit_iops\" must be 10 to 4000000000\n\
         DIR/targe.toml:7:19: \"limit_bandwidth\" must be 1M to 1P\n\
         DIR/targe.toml:8:15: \"limit_burst\" must be 10ms to 3600s",
    );
    let text = format!("{TARGET}limit_burst = '1s'\n");
    check(
        &scratch.told(&scratch.load(&text).unwrap().report),
        "DIR/targe.toml:6:15: warning: \"limit_burst\" has no effect without \"limit_iops\" or \"limit_bandwidth\"",
    );
}
