//! The examples of the manual pages. A test runs each through the parser of the command line, and demands
//! some of every command.

/// A command line, and what it does.
pub(super) type Example = (&'static str, &'static str);

/// Returns the examples of the page with this name.
pub(super) fn of(page: &str) -> &'static [Example] {
    EXAMPLES.iter().find(|(name, _)| *name == page).map_or(&[], |(_, examples)| examples)
}

/// The examples by the name of their page. The page of a group of commands has those of its commands.
#[rustfmt::skip]
pub(super) const EXAMPLES: &[(&str, &[Example])] = &[
    ("targe", &[
        ("targe serve", "Serve a disk of 1 GiB on 127.0.0.1:3260, and print how to use it."),
        ("targe check /etc/targe/targe.toml", "Find the mistakes of a configuration file."),
        ("targe status", "Show the state of the running daemon."),
    ]),
    ("targe-serve", &[
        ("targe serve --lun file:/srv/vm.img,size=20G --listen 0.0.0.0:3260", "Serve a file, which is created if it is missing, to the network."),
        ("targe serve --config /etc/targe/targe.toml", "Serve what a configuration file describes."),
        ("targe serve --config /etc/targe/targe.toml --http 127.0.0.1:9090", "Serve a status page and metrics too."),
    ]),
    ("targe-check", &[("targe check /etc/targe/targe.toml", "Print all mistakes and warnings with their lines.")]),
    ("targe-status", &[("targe status --json", "Print the state of the daemon as a JSON object.")]),
    ("targe-sessions", &[("targe sessions", "List the sessions of all initiators.")]),
    ("targe-luns", &[("targe luns", "List the LUNs, their identities, and why some are not ready.")]),
    ("targe-top", &[("targe top", "Show rates and latencies until q is pressed.")]),
    ("targe-apply", &[
        ("targe apply --dry-run /etc/targe/new.toml", "Show what a file would change."),
        ("targe apply /etc/targe/new.toml", "Show it, ask, and apply it."),
    ]),
    ("targe-target", &[
        ("targe target add iqn.2026-01.com.example:web --lun file:/srv/web.img,size=20G", "Add a target with a LUN."),
        ("targe target set iqn.2026-01.com.example:web session.data_digest=require", "Require CRC32C over data."),
        ("targe target remove iqn.2026-01.com.example:web", "Remove a target."),
    ]),
    ("targe-lun", &[
        ("targe lun add iqn.2026-01.com.example:web file:/srv/log.img,size=5G", "Add a LUN."),
        ("targe lun resize iqn.2026-01.com.example:web 0 40G", "Enlarge a LUN while it is used."),
        ("targe lun drain iqn.2026-01.com.example:web 0", "Let initiators wait while the file is worked on."),
        ("targe lun drain iqn.2026-01.com.example:web 0 --undo", "Let them go on."),
    ]),
    ("targe-acl", &[
        ("targe acl add iqn.2026-01.com.example:web iqn.2026-01.com.example:host1", "Admit one initiator."),
        ("targe acl remove iqn.2026-01.com.example:web iqn.2026-01.com.example:host1", "Remove it again."),
    ]),
    ("targe-user", &[("targe user add iqn.2026-01.com.example:web alice --secret-file /etc/targe/alice", "Require CHAP.")]),
    ("targe-session", &[("targe session drop iqn.2026-01.com.example:host1", "End the sessions of an initiator.")]),
    ("targe-reservation", &[("targe reservation show iqn.2026-01.com.example:web 0", "List who has reserved a LUN.")]),
    ("targe-trace", &[("targe trace --session iqn.2026-01.com.example:host1 --out host1.pcap", "Record PDUs until Ctrl-C.")]),
    ("targe-upgrade", &[("targe upgrade", "Replace the daemon by the installed program without ending a session.")]),
    ("targe-discover", &[("targe discover 192.0.2.7", "List the targets of a portal and their LUNs.")]),
    ("targe-info", &[("targe info iscsi://192.0.2.7/iqn.2026-01.com.example:web/0", "Show what a LUN reports.")]),
    ("targe-read", &[("targe read iscsi://192.0.2.7/iqn.2026-01.com.example:web/0 > disk.img", "Copy a LUN to a file.")]),
    ("targe-write", &[("targe write iscsi://192.0.2.7/iqn.2026-01.com.example:web/0 --write < disk.img", "Copy a file to a LUN.")]),
    ("targe-bench", &[
        ("targe bench iscsi://192.0.2.7/iqn.2026-01.com.example:web/0 --random --bs 4K --depth 32", "Read at random for ten seconds."),
        ("targe bench iscsi://192.0.2.7/iqn.2026-01.com.example:web/0 --rw mixed:70 --write", "Read and write; this overwrites the LUN."),
    ]),
    ("targe-verify", &[("targe verify iscsi://192.0.2.7/iqn.2026-01.com.example:web/0 --full --write", "Write every block, and read it back; this overwrites the LUN.")]),
    ("targe-attach", &[("targe attach --ublk iscsi://192.0.2.7/iqn.2026-01.com.example:web/0", "Make a block device of a LUN until Ctrl-C.")]),
    ("targe-luks", &[
        ("targe luks info /srv/vm.img", "Show the header of an encrypted disk."),
        ("targe luks format /srv/vm.img --key-file /etc/targe/secret", "Make a header on a blank disk."),
    ]),
    ("targe-passwd", &[("targe passwd /etc/targe/passwords --user alice", "Keep the record of a password, which it asks for.")]),
    ("targe-tape", &[
        ("targe tape create /srv/tape/TAPE01", "Make a cartridge."),
        ("targe tape ls /srv/tape/TAPE01", "List what is on it."),
    ]),
    ("targe-changer", &[("targe changer ls /srv/library", "List the drives, slots and cartridges of a library.")]),
    ("targe-disc", &[("targe disc create /srv/blank.iso --medium bd-re", "Make a blank rewritable disc.")]),
    ("targe-proxy", &[("targe proxy 'iscsi://192.0.2.7:3261?tls_ca=/etc/targe/ca.pem'", "Carry iSCSI of this host over TLS to a portal.")]),
    ("targe-csi", &[("targe csi --node --endpoint unix:///csi/csi.sock", "Serve the node part of the driver.")]),
    ("targe-lab", &[("targe lab proxy --upstream 192.0.2.7:3260 --faults data=5%,unprotected", "Damage data on the way to a target, to see who notices.")]),
    ("targe-conform", &[("targe conform target 192.0.2.7", "Test a target; this writes nothing.")]),
    ("targe-completions", &[("targe completions bash > /usr/share/bash-completion/completions/targe", "Install the completions for bash.")]),
    ("targe-man", &[("targe man /usr/local/share/man/man1", "Write the manual pages.")]),
    ("targe-help", &[("targe help serve", "Describe targe serve.")]),
];
