"""The JSON API over HTTP: every path of its OpenAPI document, asked of a real daemon and compared with the schema and with the admin socket; who may
change something; and web pages of other sites, guessers of tokens, slow readers and refused reloads, which get and change nothing.
"""

import contextlib
import http.client
import json
import os
import re
import socket
import subprocess

import pytest

import servers
from hostile.initiator import Session
from monitored import IQN, MIB, PATIENCE_S, TOKEN, Daemon, resident, wait
from verdicts import expect

ADMIN = "fedcba9876543210-admin"
DOCUMENT = os.path.join(servers.ROOT, "docs", "http-api.json")
ASYNC_MESSAGE = 0x32
HOLDER = "iqn.2026-01.com.example:holder"


class Guarded(Daemon):
    """A daemon with a token for reading and one for changes."""

    def __init__(self, folder, top=""):
        os.makedirs(folder, mode=0o700, exist_ok=True)
        self.tokens = os.path.join(folder, "tokens")
        self.write_tokens(f"# who may ask\nprometheus read {TOKEN}\nanna admin {ADMIN}\n")
        super().__init__(folder, f'token_file = "{self.tokens}"\nhosts = ["san.example"]\n', top=top)

    def write_tokens(self, text):
        with open(self.tokens, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(self.tokens, 0o600)

    def call(self, method, path, body=None, token=ADMIN, **fields):
        """The status, the JSON or the text, and the fields of a response."""
        connection = http.client.HTTPConnection("127.0.0.1", self.http, timeout=PATIENCE_S)
        fields = {name.replace("_", "-"): value for name, value in fields.items()}
        if token:
            fields["Authorization"] = f"Bearer {token}"
        if method == "POST":
            fields.setdefault("Content-Type", "application/json")
        with contextlib.closing(connection):
            connection.request(method, path, body=None if body is None else json.dumps(body), headers=fields)
            response = connection.getresponse()
            data = response.read().decode()
            is_json = response.headers["Content-Type"] == "application/json"
            return response.status, json.loads(data) if is_json else data, response.headers

    def audit(self):
        with open(os.path.join(self.folder, "state", "audit.log"), encoding="utf-8") as log:
            return [json.loads(line) for line in log]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    with Guarded(str(tmp_path_factory.mktemp("api"))) as running:
        yield running


@pytest.fixture(scope="module")
def document():
    with open(DOCUMENT, encoding="utf-8") as file:
        return json.load(file)


def faults(document, schema, value, at="$"):
    """Where a value is not what a schema says: the part of JSON Schema that the document uses."""
    if "$ref" in schema:
        return faults(document, document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]], value, at)
    if "oneOf" in schema:
        tried = [faults(document, one, value, at) for one in schema["oneOf"]]
        return [] if [] in tried else tried[-1]
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    is_kind = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}
    if not any(type(value) is int and value >= schema["minimum"] if kind == "integer" else isinstance(value, is_kind[kind]) for kind in kinds):
        return [f"{at}: {value!r} is not {kinds}"]
    if "enum" in schema and value not in schema["enum"]:
        return [f"{at}: {value!r} is none of {schema['enum']}"]
    if isinstance(value, list):
        return [fault for number, one in enumerate(value) for fault in faults(document, schema["items"], one, f"{at}[{number}]")]
    if isinstance(value, dict):
        unknown = set(value) - set(schema["properties"]) | set(schema.get("required", [])) - set(value)
        return [f"{at}: {name}" for name in unknown] + [fault for name, one in value.items() if name in schema["properties"]
                                                        for fault in faults(document, schema["properties"][name], one, f"{at}.{name}")]
    return []


def test_every_path_of_the_document_answers_as_it_says(daemon, document):
    status, served, fields = daemon.call("GET", "/api/openapi.json", token=None)
    expect((status, served) == (200, document), "the document that is served is not that of docs/http-api.json")
    expect(served["openapi"].startswith("3.1"), served["openapi"])
    with open(daemon.config(), encoding="utf-8") as file:
        text = file.read()
    library = {"path": daemon.folder, "action": "load", "element": "1", "cartridges": ["A1"]}
    # What is sent, and the status that it gets here; a body for GET is none.
    bodies = {
        "plan": [({"text": text, "name": "targe.toml", "base": None, "generation": None, "action": "try"}, 200),
                 ({"text": "nonsense", "name": "targe.toml", "action": "try"}, 422),
                 ({"text": text, "name": "targe.toml", "action": "try", "generation": 99}, 409)],
        "reload": [(None, 200), ({}, 200)],
        "drop-sessions": [({"initiator": HOLDER}, 200), ({"initiator": HOLDER, "isid": "x"}, 400), ({}, 400)],
        "forget-ports": [({"initiator": "iqn.2026-01.com.example:unknown"}, 200), ({"initiator": HOLDER, "isid": "x"}, 400), ({}, 400)],
        "drain-lun": [({"target": IQN, "lun": 0, "wait_s": 30}, 200), ({"target": IQN, "lun": 0}, 200), ({"target": IQN, "lun": 9}, 422)],
        "accept-loss": [({"target": IQN, "lun": 0}, 422), ({"target": IQN}, 400)],
        "reservations": [({"target": IQN, "lun": 0}, 200), ({"target": IQN, "lun": 9}, 422), ({"target": IQN}, 400)],
        "clear-reservations": [({"target": IQN, "lun": 0, "force": False}, 422), ({"target": IQN, "lun": 0}, 400)],
        "snapshot-lun": [({"target": IQN, "lun": 0, "path": os.path.join(daemon.folder, "copy")}, 422), ({"target": IQN, "lun": 1}, 400)],
        "snapshot-luns": [({"luns": [{"target": IQN, "lun": 0, "path": os.path.join(daemon.folder, "copy")}]}, 422), ({"luns": [{"target": IQN}]}, 400),
                          ({"luns": []}, 422)],
        "library": [(library, 422), ({**library, "action": "burn"}, 400)],
    }
    holder = Session(daemon.port, IQN, HOLDER)
    with contextlib.closing(holder.socket):
        holder.ready()
        seen = set()
        for path, item in document["paths"].items():
            for method, operation in item.items():
                for body, wanted in bodies.get(path.rsplit("/", 1)[1], [(None, 200)]):
                    status, value, fields = daemon.call(method.upper(), path, body)
                    expect(status == wanted, f"{method} {path} with {body}: {status}, {value}")
                    told = operation["responses"][str(status)]["content"]
                    kind = fields["Content-Type"].partition(";")[0]
                    expect(kind in told, f"{path}: {kind} is none of {list(told)}")
                    schema = told[kind].get("schema")
                    if schema:
                        wrong = faults(document, schema, value)
                        expect(not wrong, f"{method} {path} with {body}: {wrong}")
                        seen.add(operation["operationId"])
    expect(len(seen) == 16, f"these have a schema: {sorted(seen)}")
    expect(set(bodies) <= seen, f"{set(bodies) - seen}")


def unmeasured(answer):
    luns = [{key: value for key, value in lun.items() if key != "space"} for lun in answer.get("luns", [])]
    return {key: value for key, value in answer.items() if key not in ("file_systems", "luns")} | {"luns": luns}


def test_the_api_tells_what_the_socket_tells(daemon):
    # The host of the test before has closed its connection.
    wait("no session is left", lambda: not daemon.ask("sessions")["sessions"])
    for what in ("sessions", "luns"):
        # The daemon measures file systems every few seconds.
        expect(unmeasured(daemon.call("GET", f"/api/v1/{what}", token=TOKEN)[1]) == unmeasured(daemon.ask(what)), what)
    ours, theirs = daemon.call("GET", "/api/v1/status", token=TOKEN)[1], daemon.ask("status")
    same = ["version", "pid", "generation", "revision", "targets", "portals", "memory", "http", "problems", "iscsi"]
    expect([ours[name] for name in same] == [theirs[name] for name in same] and set(ours) == set(theirs), f"{ours}, {theirs}")
    events = daemon.call("GET", "/api/v1/events")[1]["events"]
    expect([one["number"] for one in events] == list(range(1, len(events) + 1)), f"{events}")
    for event in events:
        wait(f"{event} stands in the log", lambda: f"{event['time']} {event['level']:5} {event['message']}" in daemon.said())


def test_a_role_decides_who_changes_something(daemon):
    drop = ("POST", "/api/v1/drop-sessions", {"initiator": HOLDER})
    holder = Session(daemon.port, IQN, HOLDER)
    with contextlib.closing(holder.socket):
        holder.ready()
        for token, wanted in ((None, 401), ("x" * 20, 401), (TOKEN, 403)):
            expect(daemon.call(*drop, token=token)[0] == wanted, f"with {token}")
        expect([one["initiator"] for one in daemon.ask("sessions")["sessions"]] == [HOLDER], "the session has ended")
        status, value, _ = daemon.call(*drop)
        expect((status, value["sessions"]) == (200, 1), str(value))
        expect(holder.receive()[0][0] & 0x3F == ASYNC_MESSAGE, "the session is not asked to log out")
    wait("the session ends", lambda: not daemon.ask("sessions")["sessions"])
    entry = daemon.audit()[-1]
    expect((entry["action"], entry["via"], entry["token"], entry["address"], entry["uid"]) == ("session drop", "http", "anna", "127.0.0.1", None), str(entry))
    expect(TOKEN not in daemon.said() and ADMIN not in daemon.said() and ADMIN not in json.dumps(daemon.audit()), "a token is told")
    # Without a token file, everybody on this host reads, and nobody changes anything.
    with Daemon(os.path.join(daemon.folder, "open")) as lax:
        expect(lax.get("/api/v1/status")[0] == 200, "reading needs a token")
        lax.call = Guarded.call.__get__(lax)
        expect(lax.call(*drop, token=None)[0] == 403 and lax.call(*drop)[0] == 403, "a change needs no token")


def test_the_reservation_of_a_host_that_is_gone_is_removed_and_stays_removed(daemon):
    name, lun = "iqn.2026-01.com.example:cluster", {"target": IQN, "lun": 0}
    holder = Session(daemon.port, IQN, name)
    holder.ready()
    key = (0x11).to_bytes(8, "big")
    for action, kind, lists in ((0, 0, bytes(8) + key), (1, 5, key + bytes(8))):
        answer = holder.command(bytes([0x5F, action, kind, 0, 0, 0, 0, 0, 24, 0]), write=lists + bytes([0, 0, 0, 0, 1, 0, 0, 0]))
        expect(answer[0] == 0, f"PERSISTENT RESERVE OUT: {answer}")
    clear = ("POST", "/api/v1/clear-reservations", {**lun, "initiator": name.upper(), "force": False})
    status, value, _ = daemon.call(*clear)
    expect((status, f"{name} is logged in" in value["message"]) == (422, True), f"{status} {value}")
    holder.close()
    wait("the session ends", lambda: not daemon.ask("sessions")["sessions"])
    [registrant] = daemon.call("POST", "/api/v1/reservations", lun)[1]["registrants"]
    expect((registrant["initiator"], registrant["key"], registrant["holder"], registrant["logged_in"]) == (name, key.hex(), True, False), str(registrant))
    # Another host is kept out until the registration is removed, and never again afterwards.
    other = Session(daemon.port, IQN, HOLDER)
    try:
        other.ready()
        write = bytes([0x2A, 0, 0, 0, 0, 0, 0, 0, 1, 0])
        expect(other.command(write, write=bytes(512))[0] == 0x18, "the reservation keeps nobody out")
        status, value, _ = daemon.call(*clear)
        expect((status, value) == (200, {"registrations": 1, "released": True}), f"{status} {value}")
        expect(other.command(write, write=bytes(512))[0] == 0, "the reservation is still in force")
    finally:
        other.close()
    expect(daemon.call(*clear)[0] == 422, "there is nothing more to remove")
    entry = [one for one in daemon.audit() if one["action"] == "reservation clear" and one["result"] == "done"][-1]
    expect((entry["token"], entry["message"]) == ("anna", "1 registrations, and the reservation"), str(entry))


def test_a_snapshot_is_made_in_the_folder_of_the_disk_only(daemon):
    other = os.path.join(daemon.folder, "other")
    os.makedirs(other)
    for path in (os.path.join(other, "copy"), os.path.join(os.path.dirname(daemon.folder), "copy"), os.path.join(daemon.folder, "state", "copy")):
        status, value, _ = daemon.call("POST", "/api/v1/snapshot-lun", {"target": IQN, "lun": 1, "path": path})
        expect((status, "in the folder of the LUN's file" in value["message"]) == (422, True), f"{path}: {status} {value}")
        expect(not os.path.exists(path), path)
    # Not every file system can clone a file.
    path = os.path.join(daemon.folder, "copy")
    status, value, _ = daemon.call("POST", "/api/v1/snapshot-lun", {"target": IQN, "lun": 1, "path": path})
    expect("in the folder" not in json.dumps(value) and os.path.exists(path) == (status == 200), f"{status} {value}")


def test_another_site_changes_nothing_and_reads_nothing(daemon):
    drop = ("POST", "/api/v1/drop-sessions", {"initiator": HOLDER})
    ours = f"http://127.0.0.1:{daemon.http}"
    for fields, wanted in [({"Origin": ours}, 200), ({"Sec_Fetch_Site": "same-origin"}, 200), ({"Origin": "http://evil.example"}, 403), ({"Origin": "null"}, 403),
                           ({"Sec_Fetch_Site": "cross-site"}, 403), ({"Content_Type": "text/plain"}, 415), ({"Host": "evil.example"}, 421),
                           ({"Host": f"san.example:{daemon.http}"}, 200), ({"Host": "san.example", "Origin": "http://evil.example"}, 403)]:
        status, value, told = daemon.call(*drop, **fields)
        expect(status == wanted, f"{fields}: {status} {value}")
        expect(told["Access-Control-Allow-Origin"] is None, "another site may read")
    # A browser asks this before it sends a token to another site.
    status, _, told = daemon.call("OPTIONS", "/api/v1/drop-sessions", token=None, Origin="http://evil.example", Access_Control_Request_Method="POST")
    expect(status == 405 and told["Access-Control-Allow-Origin"] is None, f"{status}")
    for path in ("/", "/api/v1/status", "/metrics"):
        status, _, told = daemon.call("GET", path, Host="evil.example")
        expect(status == 421, f"{path} with a foreign Host: {status}")
        policy = told["Content-Security-Policy"]
        expect("default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy, policy)
        expect((told["X-Content-Type-Options"], told["Cache-Control"], told["Set-Cookie"]) == ("nosniff", "no-store", None), str(told))


def test_guessers_are_slowed_down_and_the_owner_of_a_token_is_served(daemon):
    # A guess is forgiven each second, and one waits for four: where that is too fast for this machine, it guesses again.
    wait("a guess after many is answered later than a request without a token", lambda: guesses_wait(daemon))
    expect(daemon.call("GET", "/api/v1/status")[0] == 200, "the owner of a token is not served")


def answer_of(client):
    """The begin of an answer; nothing from a server that has closed the connection."""
    try:
        return client.recv(12)
    except ConnectionError:
        return b""


def guesses_wait(daemon):
    """Guesses too often. Returns whether the next guess waits."""
    address = ("127.0.0.1", daemon.http)
    with contextlib.ExitStack() as stack:
        guesses = [stack.enter_context(socket.create_connection(address, PATIENCE_S)) for _ in range(21)]
        for number, guess in enumerate(guesses):
            guess.sendall(f"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {number:020}\r\n\r\n".encode())
        answers = {answer_of(guess) for guess in guesses}
        expect(answers <= {b"HTTP/1.1 401", b""}, f"a guess is answered otherwise: {answers}")
        if b"" in answers:
            # A request that did not come within five seconds.
            return False
        # The next guess is not looked at yet while a request without a token is answered.
        late = stack.enter_context(socket.create_connection(address, PATIENCE_S))
        late.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer 00000000000000000022\r\n\r\n")
        expect(daemon.call("GET", "/", token=None)[0] == 200, "the page needs a token")
        late.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            return late.recv(12) == b""
        return True


def test_a_refused_reload_leaves_the_tokens_as_they_are(tmp_path):
    with Guarded(str(tmp_path / "reload")) as daemon:
        other = "another-token-" + TOKEN

        def statuses():
            return [daemon.call("GET", "/api/v1/status", token=token)[0] for token in (TOKEN, other)]

        daemon.write_tokens(f"prometheus read {other}\nanna admin {ADMIN}\n")
        with open(daemon.config(), encoding="utf-8") as file:
            good = file.read()
        path = os.path.join(daemon.folder, "targe.toml")
        # A target goes, and a disk cannot be opened: the reload is refused, and still withdraws access to the target.
        for broken in (good + "\nnonsense = 1\n", good.replace('type = "file"', 'type = "ram"')):
            with open(path, "w", encoding="utf-8") as file:
                file.write(broken)
            status, value, _ = daemon.call("POST", "/api/v1/reload")
            expect(status == 422, f"{status} {value}")
            expect(daemon.call("GET", "/api/v1/status", token=TOKEN)[0] == 200, "a refused reload has withdrawn a token")
            expect(daemon.audit()[-1]["result"] == "refused", str(daemon.audit()[-1]))
        expect(statuses() == [200, 401], "a refused reload has changed the tokens")
        daemon.write_tokens("anna admin short\n")
        with open(path, "w", encoding="utf-8") as file:
            file.write(good)
        status, value, _ = daemon.call("POST", "/api/v1/reload")
        expect(status == 422 and "line 1: there must be a token" in value["message"] and "short" not in value["message"], str(value))
        daemon.write_tokens(f"prometheus read {other}\nanna admin {ADMIN}\n")
        os.chmod(daemon.tokens, 0o644)
        expect("can be read by others" in daemon.call("POST", "/api/v1/reload")[1]["message"], "others may read the tokens")
        os.chmod(daemon.tokens, 0o600)
        status, value, _ = daemon.call("POST", "/api/v1/reload")
        expect((status, statuses()) == (200, [401, 200]), f"{status} {value}")
        expect(value["generation"] == daemon.ask("status")["generation"], str(value))


def test_slow_readers_share_what_they_read(tmp_path):
    luns = "".join(f'[[target.lun]]\nlun = {number}\ntype = "null"\nsize = "1M"\n' for number in range(2, 800))
    daemon = Guarded(str(tmp_path / "slow"))
    plain = daemon.config

    def config():
        path = plain()
        with open(path, encoding="utf-8") as file:
            text = file.read().replace("[http]", luns + "[http]")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    daemon.config = config
    with daemon:
        length = len(json.dumps(daemon.call("GET", "/api/v1/luns")[1]))
        before = resident(daemon.process.pid)
        with contextlib.ExitStack() as stack:
            readers = []
            for _ in range(60):
                reader = socket.socket()
                stack.enter_context(reader)
                reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                reader.settimeout(PATIENCE_S)
                reader.connect(("127.0.0.1", daemon.http))
                reader.sendall(f"GET /api/v1/luns HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode())
                # Each begins after the one before has begun to get its answer, so that it gets another text.
                expect(reader.recv(12) == b"HTTP/1.1 200", "a slow reader gets no answer")
                readers.append(reader)
            grown = resident(daemon.process.pid) - before
            expect(60 * length > 48 * MIB, f"the texts are too short for a judgement: {length}")
            expect(grown < 40 * MIB, f"60 slow readers of {length} bytes hold {grown / MIB:.1f} MiB")
            # The first ones are cut off, which their clients notice; the last one gets all.
            last = b"".join(iter(lambda: readers[-1].recv(1 << 20), b"")) if readers[-1].send(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n") else b""
            announced = int(re.search(rb"content-length: (\d+)", last).group(1))
            body = last.partition(b"\r\n\r\n")[2][:announced]
            expect(len(json.loads(body)["luns"]) == 800, "the last reader does not get all")
            first = b""
            with contextlib.suppress(ConnectionError):
                first = b"".join(iter(lambda: readers[0].recv(1 << 20), b""))
            expect(len(first) < length, "the first reader gets all")


def test_a_token_file_that_says_nothing_clear_stops_the_start(tmp_path):
    for number, (text, why) in enumerate([("", "there must be a token"), ("a read short\n", "line 1: there must be a token"), (f"a write {TOKEN}\n", "line 1: the role must be"),
                                          (f"a read {TOKEN}\nb admin {TOKEN}\n", "line 2: the name or the token stands in a line before")]):
        daemon = Guarded(str(tmp_path / str(number)))
        daemon.write_tokens(text)
        done = subprocess.run([servers.Targe.binary, "check", daemon.config()], capture_output=True, text=True, timeout=PATIENCE_S)
        expect(done.returncode != 0 and why in done.stderr + done.stdout, f"{text!r}: {done.stdout}{done.stderr}")
        expect(TOKEN not in done.stderr + done.stdout, "a token is told")
