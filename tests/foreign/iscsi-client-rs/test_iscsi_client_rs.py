"""Judge a target with iscsi-client-rs, an initiator library in Rust (crates.io, 0.0.9), by a program that uses it.

Cargo fetches the library and all it needs by Cargo.lock beside this.

Faults of the library that are kept out of its way: it segments what it sends by what it declared itself instead of the target's
MaxRecvDataSegmentLength (RFC 7143 §13.12), and its negotiation ends in an error wherever a target chooses less than it offered (§6.2.2),
so that its configuration asks for what is chosen. On several threads it loses answers (src/main.rs says how).
"""

import json
import os
import re
import shutil
import subprocess

import pytest

import servers
from servers import MIB, Export, Lun
from serving import serving
from verdicts import expect

HERE = os.path.dirname(os.path.abspath(__file__))
LIBRARY = "iscsi-client-rs"
USER = ("rust-host", "secret-of-the-rust-host")
BUILD_MAX_S = 1500
CASE_MAX_S = 90
# Its errors carry backtraces where these are asked for.
QUIET = dict(os.environ, RUST_BACKTRACE="0")
CASES = ("identify", "patterns", "together", "again")
# What the target is told, what goes into the library's configuration, and who logs in.
SETUPS = {
    "without CHAP": ({}, {}, None),
    "R2Ts for all data": ({}, {"ImmediateData": "No"}, None),
    "CHAP": ({"incoming": USER}, {}, USER),
    "both digests": ({"digests": "required"}, {"HeaderDigest": "CRC32C", "DataDigest": "CRC32C"}, None),
}
CONFIG = """\
login:
  identity:
    SessionType: Normal
    InitiatorName: iqn.2026-11.org.targe:rust-host
    InitiatorAlias: rust
    TargetName: {target}
    IsX86: No
  auth:
    {auth}
  integrity: {{HeaderDigest: {HeaderDigest}, DataDigest: {DataDigest}}}
  flow: {{MaxRecvDataSegmentLength: 262144, MaxBurstLength: 262144, FirstBurstLength: 65536}}
  write_flow: {{InitialR2T: "{InitialR2T}", ImmediateData: "{ImmediateData}", MaxOutstandingR2T: 1}}
  ordering: {{DataPDUInOrder: "Yes", DataSequenceInOrder: "Yes"}}
  recovery: {{ErrorRecoveryLevel: 0}}
  timers: {{DefaultTime2Wait: 2, DefaultTime2Retain: 0}}
  limits: {{MaxConnections: 1}}
  extensions: {{IFMarker: "No", OFMarker: "No"}}
  transport: {{TargetAddress: "127.0.0.1:{port}", TargetPortalGroupTag: 1}}
runtime: {{MaxSessions: 2, TimeoutConnection: 30}}
"""
pytestmark = pytest.mark.timeout(BUILD_MAX_S + 2 * CASE_MAX_S)


@pytest.fixture(scope="module")
def program():
    """The program that uses the library, built."""
    if shutil.which("cargo") is None:
        pytest.skip("no cargo")
    manifest = f"--manifest-path={os.path.join(HERE, 'Cargo.toml')}"
    fetched = cargo("metadata", "--format-version=1", manifest)
    if fetched.returncode != 0:
        pytest.skip(f"cargo cannot fetch the library: {fetched.stderr.strip().splitlines()[-1]}")
    done = cargo("build", manifest, "--message-format=json")
    expect(done.returncode == 0, f"cargo build: {done.stderr[-700:]}")
    built = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return [message["executable"] for message in built if message.get("executable")][-1]


def cargo(*arguments):
    folder = os.path.join(os.environ.get("CARGO_TARGET_DIR", os.path.join(servers.ROOT, "target")), LIBRARY)
    return subprocess.run(["cargo", arguments[0], "--locked", *arguments[1:]], env=dict(os.environ, CARGO_TARGET_DIR=folder),
                          capture_output=True, text=True, timeout=BUILD_MAX_S)


@pytest.fixture(scope="module", params=list(SETUPS))
def setup(request, kind, server_name):
    """The name of a way to log in, and a server for it. The program uses LUN 1, which is the target's first or second."""
    options, _, _ = SETUPS[request.param]
    luns = (Lun("file", size=64 * MIB), Lun("ram", size=16 * MIB))
    export = Export(luns if kind.first_lun == 1 else luns[::-1], level=2, **options)
    out = os.path.join(servers.OUT, LIBRARY, server_name, re.sub(r"\W+", "-", request.param))
    with serving(request, request.param, kind(out, export)) as server:
        yield request.param, server


def configuration(setup, user):
    """Writes the library's configuration file, and returns its path."""
    name, server = setup
    _, keys, _ = SETUPS[name]
    keys = {"HeaderDigest": "None", "DataDigest": "None", "InitialR2T": "Yes", "ImmediateData": "Yes", **keys}
    auth = f"AuthMethod: CHAP\n    username: {user[0]}\n    secret: {user[1]}" if user else "AuthMethod: None"
    path = os.path.join(server.folder, "config.yaml")
    with open(path, "w") as file:
        file.write(CONFIG.format(auth=auth, target=server.iqn, port=server.port, **keys))
    return path


def drive(program, config, case):
    done = subprocess.run([program, config, case], capture_output=True, text=True, timeout=CASE_MAX_S, env=QUIET)
    expect(done.returncode == 0, (done.stderr or done.stdout)[-700:] or f"exit code {done.returncode}")


@pytest.mark.parametrize("case", CASES)
def test_uses_a_disk(program, setup, case):
    drive(program, configuration(setup, SETUPS[setup[0]][2]), case)


@pytest.mark.parametrize("setup", ["CHAP"], indirect=True)
def test_is_refused_with_wrong_credentials(program, setup):
    drive(program, configuration(setup, (USER[0], "another-secret-of-it")), "refused")
