//! Tests of the flags: without a configuration file, and overriding one.

use super::*;

#[test]
fn no_flag_at_all_serves_a_default_disk() {
    let scratch = Scratch::new();
    let config = scratch.flags(&Flags::default()).unwrap().config;
    assert_eq!(config.portals[0].listen.to_string(), "127.0.0.1:3260");
    assert_eq!(config.targets[0].name.as_str(), DEFAULT_TARGET);
    let Medium::File { path, size, direct: false } = &config.units[0].medium else { panic!("a file") };
    assert_eq!((path, size.unwrap().0), (&scratch.path().join("disk.img"), 1 << 30));
    // Default disks of two hosts must have different names: with the same name an initiator would take them
    // for two paths to one disk.
    let other = Environment { host: "other".to_owned(), ..scratch.environment() };
    let other = Config::load(&Flags::default(), &other).unwrap().config;
    assert_ne!(other.units[0].identity.naa, config.units[0].identity.naa);
    let named = Flags { target: Some(DEFAULT_TARGET.to_owned()), ..Flags::default() };
    assert_eq!(
        scratch.flags(&named).unwrap().config.units[0].identity,
        Config::load(&named, &Environment { host: "other".to_owned(), ..scratch.environment() })
            .unwrap()
            .config
            .units[0]
            .identity
    );
}

#[test]
fn names_are_those_of_the_daemon_or_said_to_be_unknown() {
    let scratch = Scratch::new();
    let text = "[[portal]]\nlisten = \"127.0.0.1\"\n[[target]]\nname = \"iqn.2001-04.com.example:a\"\n\
                lun = [{ type = \"ram\", size = \"1M\" }]\n";
    let file = scratch.file("targe.toml", text, 0o600);
    let salt = "00112233445566778899aabbccddeeff";
    let state = scratch.path().join("own");
    fs::create_dir(&state).unwrap();
    let load = |state_dir: Option<PathBuf>, state_source: StateSource| {
        let flags = Flags { config: Some(file.clone()), state_dir, ..Flags::default() };
        let environment = Environment { state_source, ..scratch.environment() };
        let Loaded { config, report, .. } = Config::load(&flags, &environment).unwrap();
        (config.units[0].identity.naa, report.unknown_names().map(str::to_owned))
    };
    let (unsalted, why) = load(Some(state.clone()), StateSource::ConfiguredDirectory);
    assert!(why.unwrap().contains("no daemon has used"));
    let identity = StateIdentity { salt: Some(salt.to_owned()), machine: String::new() };
    fs::write(StateIdentity::file(&state), identity.to_text()).unwrap();
    let (served, why) = load(Some(state), StateSource::Directory);
    assert!(served != unsalted && why.is_none(), "{why:?}");
    let of_daemon = StateSource::Daemon { salt: Some(salt.to_owned()) };
    assert_eq!(load(None, of_daemon), (served, None));
    let (naa, why) = load(None, StateSource::ConfiguredDirectory);
    assert!(naa == unsalted && why.unwrap().contains("--state-dir DIR"));
}

/// A daemon that starts must say what it waits for, and one that runs must not wait.
#[test]
fn a_state_directory_that_does_not_answer_is_named_in_time() {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    let scratch = Scratch::new();
    let state = scratch.path().join("own");
    fs::create_dir(&state).unwrap();
    // Opening a pipe waits for its other end, as a file system waits for its server.
    for name in ["identity", "libraries.json"] {
        mknodat(CWD, state.join(name), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    }
    let flags = Flags { state_dir: Some(state), luns: vec!["ram:1M".to_owned()], ..Flags::default() };
    let environment = scratch.environment();
    let (report, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || report.send(Config::load(&flags, &environment).unwrap_err()));
    let told = told.recv_timeout(std::time::Duration::from_secs(60)).expect("it waits for the pipe");
    let told = scratch.told(&told);
    assert!(told.contains("DIR/own/identity does not answer"), "{told}");
}

#[test]
fn flags_build_what_a_file_builds() {
    let scratch = Scratch::new();
    let flags = Flags {
        listen: vec!["[::1]:0".to_owned(), "127.0.0.1:0".to_owned(), "127.0.0.1:0".to_owned()],
        target: Some("iqn.2001-04.com.example:a".to_owned()),
        luns: vec![
            "file:a\\,b.img,size=10M,bs=4096,direct,lun=5".to_owned(),
            "ram:4M,ro".to_owned(),
            "null:1T,write_cache=off,serial=X1".to_owned(),
        ],
        reactor: Some("epoll".to_owned()),
        poll: true,
        cores: Some("1".to_owned()),
        log: Some("debug".to_owned()),
        ..Flags::default()
    };
    let by_flags = scratch.flags(&flags).map_err(|report| report.to_string()).unwrap().config;
    let by_file = scratch.config(
        "reactor = 'epoll'\npoll = true\ncores = '1'\nlog = 'debug'\n\
         [[portal]]\nlisten = '[::1]:0'\n[[portal]]\nlisten = '127.0.0.1:0'\n[[portal]]\nlisten = '127.0.0.1:0'\n\
         [[target]]\nname = 'iqn.2001-04.com.example:a'\n\
         [[target.lun]]\ntype = 'file'\npath = 'a,b.img'\nsize = '10M'\nbs = 4096\ndirect = true\nlun = 5\n\
         [[target.lun]]\ntype = 'ram'\nsize = '4M'\nro = true\n\
         [[target.lun]]\ntype = 'null'\nsize = '1T'\nwrite_cache = false\nserial = 'X1'\n",
    );
    assert_eq!(by_flags, by_file);
    assert_eq!(by_flags.targets[0].luns.iter().map(|lun| lun.lun).collect::<Vec<_>>(), [0, 1, 5]);
}

/// CVE-2017-1000198: an invalid description of a backend.
#[test]
fn wrong_specs_say_what_is_wrong() {
    let scratch = Scratch::new();
    scratch.file("open", [7; 32], 0o640);
    scratch.file("short", [7; 31], 0o600);
    scratch.file("good", [7; 32], 0o600);
    for (spec, expected) in [
        (
            "disk.img",
            "a LUN must begin with file:, block:, ram:, null:, disc:, tape:, nbd:, changer:, sg:, vhost-user-blk: or vhost-user-scsi:, not \"disk.img\"",
        ),
        (
            "fill:/x",
            "a LUN must begin with file:, block:, ram:, null:, disc:, tape:, nbd:, changer:, sg:, vhost-user-blk: or vhost-user-scsi:, not \"fill\" (did you mean \"file\"?)",
        ),
        ("changer:none", "cannot use DIR/none/library: no such file or directory"),
        (
            "changer:.",
            "DIR/. holds no library: it has no file \"library\" (targe changer create makes a library)",
        ),
        ("changer:none,ro", "a library cannot be \"ro\": hosts move its cartridges"),
        ("changer:none,bs=512", "a lun of type changer takes no \"bs\""),
        ("tape:none,drive_vendor=IBM", "a lun of type tape takes no \"drive_vendor\""),
        ("ram:1M,drive_lun=3", "only a lun of type changer takes \"drive_lun\""),
        ("file:", "\"file\" has no path (such as file:/srv/disk.img)"),
        ("ram:", "\"ram\" has no size (such as ram:512M)"),
        ("ram:lots", "\"lots\" is not a size (such as 512M or 10G)"),
        ("ram:1M,sise=5", "unknown key \"sise\" in lun (did you mean \"size\"?)"),
        ("ram:1M,size=5M", "\"size\" is given twice"),
        ("ram:1M,bs", "\"bs\" needs a value (bs=…)"),
        ("ram:1M,bs=1024", "\"bs\" must be one of 512, 4096, not \"1024\""),
        ("ram:1M,ro=maybe", "\"ro\" must be true or false, not \"maybe\""),
        ("ram:1M,lun=16384", "\"lun\" must be 0 to 16383"),
        ("ram:1M,lun=x", "\"lun\" must be a whole number, not \"x\""),
        ("ram:1M,encrypt=none", "cannot read secret file DIR/none: no such file or directory"),
        (
            "ram:1M,encrypt=open",
            "secret file DIR/open can be read by others (mode 640); run: chmod 600 DIR/open",
        ),
        (
            "ram:1M,encrypt=short",
            "secret file DIR/short has 31 bytes where 32 to 4096 random ones are needed; run: head -c 32 /dev/urandom > \
             DIR/short",
        ),
        ("null:1M,encrypt=good", "a lun of type null takes no \"encrypt\""),
        ("file:none.img,atomic_bs=4096", "a lun of type file takes no \"atomic_bs\""),
        ("ram:1M,bs=4096,atomic_bs=512", "\"atomic_bs\" is less than \"bs\" (4096)"),
        ("ram:1M,spc=2", "\"spc\" must be one of 3, 4, 5, not \"2\" (did you mean \"3\"?)"),
        ("ram:1M,compare_and_write_max=256", "\"compare_and_write_max\" must be 1 to 255"),
        ("ram:1M,direct", "a lun of type ram takes no \"direct\""),
        ("ram:1M,profile=cd", "a lun of type ram takes no \"profile\""),
        ("disc:none.iso,bs=512", "a lun of type disc takes no \"bs\""),
        ("disc:", "\"disc\" has no path (such as disc:/srv/disc.iso)"),
        ("disc:good", "DIR/good is shorter than one sector of 2048 bytes"),
        ("disc:.", "DIR/. is not a regular file"),
        ("tape:", "\"tape\" has no path (such as tape:/srv/cartridge)"),
        ("tape:none", "cannot open DIR/none: no such file or directory"),
        ("tape:good", "cannot open DIR/good: not a directory"),
        (
            "tape:.",
            "DIR/. holds no cartridge: it has no file \"label\" (targe tape create makes a cartridge)",
        ),
        ("tape:none,bs=512", "a lun of type tape takes no \"bs\""),
        ("tape:none,io_timeout=1s", "a lun of type tape takes no \"io_timeout\""),
        ("nbd:", "\"nbd\" has no uri (such as nbd:nbd://host/export)"),
        ("nbd:host:10809", "an NBD URI begins with nbd:// or nbd+unix://"),
        (
            "nbd:nbds://host/",
            "TLS to an NBD server is not supported; use a Unix socket, or a tunnel that encrypts",
        ),
        ("nbd:nbd+unix:///?socket=/nonexistent", "/nonexistent does not exist: is the NBD server running?"),
        ("nbd:nbd+unix:///?socket=/", "/ is not a socket"),
        ("nbd:nbd://host,size=1M", "a lun of type nbd takes no \"size\""),
        ("nbd:nbd://host,encrypt=key", "a lun of type nbd takes no \"encrypt\""),
        ("ram:1M,reconnect_timeout=1s", "a lun of type ram takes no \"reconnect_timeout\""),
        ("sg:", "\"sg\" has no path (such as sg:/dev/sg0)"),
        ("sg:none", "cannot open DIR/none: no such file or directory"),
        (
            "sg:good",
            "DIR/good is not a SCSI generic device (/dev/sgN; `lsscsi -g` and /sys/class/scsi_generic list them)",
        ),
        ("sg:none,bs=512", "a lun of type sg takes no \"bs\""),
        ("sg:none,product=x", "a lun of type sg takes no \"product\""),
        ("ram:1M,dangerous_commands", "a lun of type ram takes no \"dangerous_commands\""),
        ("tape:none,shared_with_host", "a lun of type tape takes no \"shared_with_host\""),
        ("ram:1M,", "unknown key \"\" in lun"),
        ("file:none.img", "DIR/none.img does not exist; give \"size\" to create it"),
    ] {
        let flags = Flags { luns: vec![spec.to_owned()], ..Flags::default() };
        let told = scratch.told(&scratch.flags(&flags).expect_err(spec));
        assert!(told.lines().any(|line| line == format!("--lun {spec}: {expected}")), "{spec}: {told}");
    }
}

#[test]
fn wrong_specs_of_devices_of_other_processes_say_what_is_wrong() {
    let scratch = Scratch::new();
    scratch.file("open", [7; 32], 0o640);
    scratch.file("short", [7; 31], 0o600);
    scratch.file("good", [7; 32], 0o600);
    for (spec, expected) in [
        ("vhost-user-blk:", "\"vhost-user-blk\" has no path (such as vhost-user-blk:/run/disk.sock)"),
        ("vhost-user-blk:none", "DIR/none does not exist: is the process of the device running?"),
        ("vhost-user-blk:good", "DIR/good is not a socket"),
        ("vhost-user-blk:none,size=1M", "a lun of type vhost-user-blk takes no \"size\""),
        (
            "vhost-user-blk:none,dangerous_commands",
            "a lun of type vhost-user-blk takes no \"dangerous_commands\"",
        ),
        ("vhost-user-scsi:none", "DIR/none does not exist: is the process of the device running?"),
        ("vhost-user-scsi:none,bs=512", "a lun of type vhost-user-scsi takes no \"bs\""),
        (
            "vhost-user-scsi:none,shared_with_host",
            "a lun of type vhost-user-scsi takes no \"shared_with_host\"",
        ),
    ] {
        let flags = Flags { luns: vec![spec.to_owned()], ..Flags::default() };
        let told = scratch.told(&scratch.flags(&flags).expect_err(spec));
        assert!(told.lines().any(|line| line == format!("--lun {spec}: {expected}")), "{spec}: {told}");
    }
}

#[test]
fn flags_go_over_the_file() {
    let scratch = Scratch::new();
    let file = scratch.file("targe.toml", SHARED.replace("portals = [\"front\"]", ""), 0o600);
    let flags = Flags {
        config: Some(file),
        listen: vec!["127.0.0.1:0".to_owned()],
        cores: Some("7".to_owned()),
        ..Flags::default()
    };
    let config = scratch.flags(&flags).unwrap().config;
    assert_eq!((config.portals.len(), config.portals[0].listen.port(), &config.cores[..]), (1, 0, &[7][..]));
    let both = Flags {
        luns: vec!["ram:1M".to_owned()],
        target: Some("iqn.2001-04.com.example:b".to_owned()),
        ..flags
    };
    check(
        &scratch.told(&scratch.flags(&both).unwrap_err()),
        "--lun ram:1M: the --config file defines the LUNs\n--target iqn.2001-04.com.example:b: the --config \
         file defines the targets",
    );
}
