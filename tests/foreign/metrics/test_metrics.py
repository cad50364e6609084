"""The metrics of a daemon under load, judged by Debian's Prometheus: its tools accept their text, a server of its own scrapes them, and the sums
that it computes are what `targe bench` counted. And HTTP clients that mean harm, who hold little and delay nobody.
"""

import contextlib
import http.client
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request

import pytest

import servers
from listening import free_port
from monitored import COUNT, IQN, MIB, PATIENCE_S, TARGE, TOKEN, Daemon, resident, wait
from verdicts import expect

MONITORING = os.path.join(servers.ROOT, "packaging", "monitoring")
RULES = os.path.join(MONITORING, "targe.rules.yml")
DASHBOARD = os.path.join(MONITORING, "grafana-dashboard.json")


@contextlib.contextmanager
def prometheus(folder, daemon):
    """A Prometheus that scrapes the daemon each second. Gives the function that asks it."""
    os.makedirs(folder)
    with open(f"{folder}/prometheus.yml", "w", encoding="utf-8") as file:
        file.write(f"""global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: ["{RULES}"]
scrape_configs:
- job_name: targe
  static_configs: [{{targets: ["127.0.0.1:{daemon.http}"]}}]
""")
    port = free_port()
    with open(f"{folder}/log", "wb") as log:
        process = subprocess.Popen(["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
                                    f"--web.listen-address=127.0.0.1:{port}"], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                                   preexec_fn=servers.die_with_parent)

    def get(path):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/{path}", timeout=PATIENCE_S) as response:
                return json.load(response)["data"]
        except urllib.error.HTTPError as refused:
            # It says so while it starts.
            if refused.code == http.HTTPStatus.SERVICE_UNAVAILABLE:
                return None
            raise AssertionError(f"Prometheus refuses {path}: {refused.read()}") from refused
        except OSError:
            expect(process.poll() is None, "Prometheus ended; its log has the reason")
            return None

    def ask(query):
        """The value of a query; none while there is none."""
        data = get("query?" + urllib.parse.urlencode({"query": query}))
        return float(data["result"][0]["value"][1]) if data and data["result"] else None

    ask.get = get

    try:
        yield ask
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    with Daemon(tmp_path_factory.mktemp("metrics")) as running:
        yield running


def value_of(text, name, *labels):
    """The sum of the samples of a metric in a scrape that have these labels."""
    lines = [line for line in text.splitlines() if line.startswith((name + "{", name + " ")) and all(label in line for label in labels)]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


def test_prometheus_counts_what_bench_counted(daemon, tmp_path):
    benches = [daemon.bench(0, "--rw", "mixed:50", "--random", "--write"), daemon.bench(1, "--bs", "16K", "--rw", "write", "--write"),
               daemon.bench(1, "--bs", "16K", "--random")]
    write = benches[0]["write"]["ios"] + COUNT
    read = benches[0]["read"]["ios"] + COUNT
    expect(read + write == 3 * COUNT, f"bench counted {read} reads and {write} writes")
    with prometheus(str(tmp_path / "prometheus"), daemon) as ask:
        total = "sum(targe_lun_commands_total{op=~'read|write'})"
        # A bench looks at the LUN in one session and loads it in another. The first command of each that is not exempt ends with UNIT
        # ATTENTION, and the initiator sends it again: in the session with the load that is a read or a write.
        sessions = len(benches)
        wait("Prometheus reaches the daemon", lambda: ask("up") == 1)
        wait("Prometheus has scraped what bench did", lambda: (ask(total) or 0) >= 3 * COUNT + sessions)
        for query, counted in [
            ("sum(targe_logins_total)", 2 * sessions),
            ("sum(targe_lun_check_conditions_total{sense_key='unit_attention'})", 2 * sessions),
            (total, read + write + sessions),
            ("sum(targe_lun_commands_total{op='read',lun='1'})", COUNT + 1),
            ("sum(targe_lun_commands_total{op='write',lun='1'})", COUNT + 1),
            ("sum(targe_lun_command_duration_seconds_count{op=~'read|write'})", read + write + sessions),
            ("sum(targe_lun_command_duration_seconds_bucket{op=~'read|write',le='+Inf'})", read + write + sessions),
            ("sum(targe_lun_commands_total)", sum(lun["commands"] for lun in daemon.ask("luns")["luns"])),
            ("sum(targe_lun_data_bytes_total{op='read'})", benches[0]["read"]["ios"] * 4096 + COUNT * 16384),
            ("sum(targe_lun_data_bytes_total{op='write'})", benches[0]["write"]["ios"] * 4096 + COUNT * 16384),
            ("targe_ready", 1), ("targe_internal_errors_total", 0),
        ]:
            agree(ask, query, counted, "bench counted")
        judge_rules_and_dashboard(ask)
        # What the admin socket tells is of the same source.
        luns = daemon.ask("luns")["luns"]
        agree(ask, "sum(targe_lun_data_bytes_total{op='write'})", sum(lun["write_bytes"] for lun in luns), "luns counts")
        operations = {name: sum(operation["commands"] for lun in luns for operation in lun["operations"] if operation["op"] == name)
                      for name in ("read", "write", "flush", "unmap", "other")}
        for name, commands in operations.items():
            agree(ask, f"sum(targe_lun_commands_total{{op='{name}'}})", commands, "luns counts")
        unit_attentions = sum(count["commands"] for lun in luns for count in lun["check_conditions"] if count["sense_key"] == 6)
        expect(unit_attentions == 2 * sessions, f"luns counts {unit_attentions} unit attentions")
        status = daemon.ask("status")
        for query, told in [("sum(targe_logins_total)", status["logins"]), ("sum(targe_transport_commands_total)", status["iscsi"]["commands"]),
                            ("sum(targe_iscsi_pdus_total{direction='in'})", status["iscsi"]["pdus_in"]),
                            ("targe_memory_limit_bytes", status["memory"]["limit_bytes"]), ("targe_memory_used_bytes", 0)]:
            agree(ask, query, told, "status says")
        expect((status["http"], status["problems"]) == (f"127.0.0.1:{daemon.http}", []), f"status: {status}")
    # Another initiator that asks for nothing but INQUIRY data and readiness.
    before = value_of(daemon.get("/metrics")[1], "targe_lun_commands_total", 'lun="0",op="other"')
    subprocess.run(["iscsi-inq", daemon.url(0)], check=True, capture_output=True, timeout=PATIENCE_S)
    wait("commands of libiscsi are counted",
         lambda: value_of(daemon.get("/metrics")[1], "targe_lun_commands_total", 'lun="0",op="other"') > before)


def agree(ask, query, counted, whose):
    """Waits until Prometheus has the value. It has an older one until its next scrape, and none after one that took longer than a second."""
    wait(lambda: f"{query} is {ask(query)}, and {whose} {counted}", lambda: ask(query) == counted)


def judge_rules_and_dashboard(ask):
    """The alerts can be computed and none fires, and every query of the dashboard finds metrics that exist."""
    def rules():
        return [rule for group in (ask.get("rules") or {"groups": []})["groups"] for rule in group["rules"]]
    wait("the alerts are computed", lambda: rules() and all(rule["health"] != "unknown" for rule in rules()))
    expect(all(rule["health"] == "ok" for rule in rules()), f"alerts that cannot be computed: {rules()}")
    firing = [rule["name"] for rule in rules() if rule["state"] == "firing"]
    expect(not firing, f"alerts fire: {firing}")
    known = {name for name in ask.get("label/__name__/values")}
    with open(DASHBOARD, encoding="utf-8") as file:
        queries = [target["expr"] for panel in json.load(file)["panels"] for target in panel["targets"]]
    with open(RULES, encoding="utf-8") as file:
        text = "\n".join(queries) + file.read()
    for query in queries:
        for variable, value in (("$instance", ".*"), ("$target", ".*"), ("$__rate_interval", "1m")):
            query = query.replace(variable, value)
        ask(query)
    named = set(re.findall(r"\btarge_[a-z0-9_]+", text))
    expect(len(queries) > 20 and named <= known, f"metrics that do not exist: {named - known}")


def test_promtool_accepts_the_rules():
    checked = subprocess.run(["promtool", "check", "rules", RULES], capture_output=True, text=True, timeout=PATIENCE_S)
    expect(checked.returncode == 0 and "SUCCESS" in checked.stdout, f"promtool: {checked.stdout}{checked.stderr}")


def test_promtool_accepts_the_metrics(daemon):
    status, text, kind = daemon.get("/metrics", Accept="text/plain")
    expect(status == 200 and kind.startswith("text/plain; version=0.0.4"), f"{status} {kind}")
    checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=PATIENCE_S)
    expect(checked.returncode == 0 and not checked.stderr, f"promtool: {checked.stdout}{checked.stderr}")
    status, text, kind = daemon.get("/metrics")
    expect(status == 200 and kind.startswith("application/openmetrics-text; version=1.0.0"), f"{status} {kind}")
    expect(text.endswith("# EOF\n"), "the text does not end with EOF")


def test_readiness_says_what_is_wrong(daemon):
    expect(daemon.get("/healthz")[0] == 200, "healthz")
    status, body, _ = daemon.get("/readyz")
    expect((status, json.loads(body)["ready"]) == (200, True), body)
    kept = daemon.disk + ".kept"
    os.rename(daemon.disk, kept)
    try:
        wait("readyz says that the disk is gone", lambda: daemon.get("/readyz")[0] == 503)
        found = json.loads(daemon.get("/readyz")[1])
        expect(not found["ready"] and len(found["problems"]) == 1 and f"LUN 1 of {IQN}: " in found["problems"][0], str(found))
        def told():
            text = daemon.get("/metrics")[1]
            return value_of(text, "targe_ready"), value_of(text, "targe_luns_not_ready")

        wait(lambda: f"the metrics say so: {told()}", lambda: told() == (0, 1))
        expect(daemon.get("/healthz")[0] == 200, "the process lives all the same")
    finally:
        os.rename(kept, daemon.disk)
    daemon.process.send_signal(1)
    wait("the disk is served again", lambda: daemon.get("/readyz")[0] == 200)


def test_hostile_clients_hold_little_and_delay_nobody(daemon):
    daemon.get("/metrics")
    before, files = resident(daemon.process.pid), len(os.listdir(f"/proc/{daemon.process.pid}/fd"))
    address = ("127.0.0.1", daemon.http)
    with contextlib.ExitStack() as stack:
        held = []
        for at in range(2000):
            client = stack.enter_context(socket.create_connection(address, PATIENCE_S))
            # A third sends nothing, a third half a request, a third a head without end.
            with contextlib.suppress(OSError):
                client.sendall([b"", b"GET /metrics HTTP/1.1\r\nHost: localh", b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 60][at % 3])
            held.append(client)
            if at % 400 == 399:
                expect(daemon.get("/healthz")[0] == 200, f"with {at + 1} hostile connections nobody is served")
        bench = daemon.bench(0, "--random")
        expect(bench["ios"] == COUNT, f"bench beside hostile clients: {bench}")
        expect(daemon.get("/metrics")[0] == 200, "no scrape beside hostile clients")
        wait("connections above 64 are closed", lambda: len(os.listdir(f"/proc/{daemon.process.pid}/fd")) <= files + 64 + 8)
        # Bytes that dribble: a connection is closed although something keeps coming.
        slow = stack.enter_context(socket.create_connection(address, PATIENCE_S))
        slow.sendall(b"GET /metrics HTTP/1.1\r\n")
        ended, deadline = False, time.monotonic() + PATIENCE_S
        while not ended:
            expect(time.monotonic() < deadline, "a request that dribbles is never ended")
            slow.settimeout(0.2)
            try:
                slow.sendall(b"X: y\r\n")
                ended = not slow.recv(1024)
            except TimeoutError:
                pass
            except OSError:
                ended = True
    grown = resident(daemon.process.pid) - before
    expect(grown < 24 * MIB, f"2000 connections left {grown / MIB:.1f} MiB")
    for field, name in [("x" * 100_000, "a head of 100 KB"), ("y\r\n" + "X: y\r\n" * 200, "200 fields")]:
        with socket.create_connection(address, PATIENCE_S) as client:
            client.settimeout(PATIENCE_S)
            with contextlib.suppress(OSError):
                client.sendall(f"GET / HTTP/1.1\r\nHost: localhost\r\nX: {field}\r\n\r\n".encode())
            try:
                said = client.recv(1024)
            except OSError:
                said = b""
            expect(not said or b" 431 " in said, f"{name}: {said}")
    expect(daemon.get("/metrics", Host="evil.example")[0] == 421, "a foreign Host is served")
    expect(daemon.get("/healthz")[0] == 200, "it serves no more")


def test_a_log_in_json_has_an_object_on_each_line(tmp_path):
    with Daemon(tmp_path / "json", flags=("--log-format", "json")) as daemon:
        subprocess.run(["iscsi-inq", "-i", "iqn.2026-01.com.example:libiscsi", daemon.url(0)], check=True, capture_output=True, timeout=PATIENCE_S)
        denied = subprocess.run(["iscsi-inq", daemon.url(0).replace(":metrics", ":none")], capture_output=True, timeout=PATIENCE_S)
        expect(denied.returncode != 0, "a target that does not exist is served")
        wait("the log tells of the refused login", lambda: "is refused" in daemon.said())
    lines = [json.loads(line) for line in daemon.said().splitlines()]
    expect(all({"time", "level", "message"} <= set(line) for line in lines), f"lines without time, level or message: {lines}")
    up = [line for line in lines if line["message"].endswith(f"with {IQN} is up")]
    expect([(line["initiator"], line["target"], line["level"]) for line in up] == [("iqn.2026-01.com.example:libiscsi", IQN, "info")], str(up))
    refusals = [line for line in lines if "is refused" in line["message"]]
    expect([line.get("target") for line in refusals] == [IQN.replace(":metrics", ":none")], str(refusals))


def test_slow_commands_are_named_with_where_their_time_went(tmp_path):
    with Daemon(tmp_path / "slow", flags=("--log-format", "json"), top='slow_command = "1ms"') as daemon:
        def slow():
            # The last line may be written right now.
            lines = [json.loads(line) for line in daemon.said().splitlines(keepends=True) if line.endswith("\n")]
            return [line for line in lines if line["message"].startswith("slow command on LUN 1 of ")]

        def load():
            subprocess.run([TARGE, "bench", daemon.url(1), "--count", "200", "--bs", "1M", "--rw", "write", "--write", "--json"],
                           capture_output=True, timeout=PATIENCE_S)
            return slow()

        # A write of 1 MiB among 32 waits for its data, or for the medium, longer than a millisecond.
        found = wait("the log names a slow command", load)
        expect(all(line["target"] == IQN and line["lun"] == 1 and line["took_ms"] >= 1 and "initiator" in line for line in found), str(found))
        expect(any("WRITE(16) (8ah, 1048576 bytes) took " in line["message"] for line in found), str(found))
        expect(any(line["network_ms"] + line["medium_ms"] + line["queue_ms"] > 0 for line in found), str(found))


def refused(folder, http_table):
    """What the daemon says when it does not start."""
    daemon = Daemon(folder)
    path = daemon.config()
    with open(path, encoding="utf-8") as file:
        text = file.read().partition("[http]")[0]
    with open(path, "w", encoding="utf-8") as file:
        file.write(text + "[http]\n" + http_table)
    done = subprocess.run([TARGE, "serve", "--config", path], capture_output=True, text=True, timeout=PATIENCE_S)
    expect(done.returncode == 2, f"it ended with {done.returncode}: {done.stdout}{done.stderr}")
    return done.stderr


def test_a_server_that_others_reach_needs_a_token_that_nobody_can_read(tmp_path):
    token = tmp_path / "token"
    token.write_text(TOKEN + "\n")
    token.chmod(0o600)
    said = refused(tmp_path / "a", f'listen = "0.0.0.0:{free_port()}"\n')
    expect('set "token_file" or "tls_client_authority"' in said, said)
    token.chmod(0o644)
    said = refused(tmp_path / "b", f'listen = "127.0.0.1:{free_port()}"\ntoken_file = "{token}"\n')
    expect("can be read by others (mode 644)" in said, said)
    token.chmod(0o600)
    certificate, key = tmp_path / "http.crt", tmp_path / "http.key"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
                    "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)],
                   check=True, capture_output=True, timeout=PATIENCE_S)
    key.chmod(0o600)
    tls = f'token_file = "{token}"\ntls_certificate = "{certificate}"\ntls_key = "{key}"\n'
    with Daemon(tmp_path / "c", tls) as daemon:
        context = ssl.create_default_context(cafile=str(certificate))

        def status(method="GET", path="/metrics", **fields):
            connection = http.client.HTTPSConnection("127.0.0.1", daemon.http, timeout=PATIENCE_S, context=context)
            with contextlib.closing(connection):
                connection.request(method, path, headers={name.replace("_", "-"): value for name, value in fields.items()})
                return connection.getresponse().status

        expect(status() == 401, "it is served without a token")
        expect(status(Authorization="Bearer " + TOKEN[:-1]) == 401, "it is served with another token")
        expect(status(Authorization="Bearer " + TOKEN) == 200, "it is not served with the token")
        expect(TOKEN not in daemon.said(), "the token stands in the log")
        # A reload takes over another token.
        token.write_text("another-" + TOKEN)
        daemon.process.send_signal(1)
        wait("the new token is valid", lambda: status(Authorization="Bearer another-" + TOKEN) == 200)
        expect(status(Authorization="Bearer " + TOKEN) == 401, "the former token is still valid")
        # Over TLS, a page of this server has another origin than without.
        token.write_text(f"anna admin third-{TOKEN}")
        daemon.process.send_signal(1)
        wait("the third token is valid", lambda: status(Authorization="Bearer third-" + TOKEN) == 200)
        for scheme, wanted in (("https", 200), ("http", 403)):
            fields = {"Authorization": "Bearer third-" + TOKEN, "Origin": f"{scheme}://127.0.0.1:{daemon.http}", "Content_Type": "application/json"}
            expect(status("POST", "/api/v1/reload", **fields) == wanted, f"a change from a page over {scheme}")


@pytest.fixture(autouse=True, scope="module")
def tools():
    for tool in ("prometheus", "promtool", "iscsi-inq", "openssl"):
        expect(shutil.which(tool), f"there is no {tool}: run `make packages`")
