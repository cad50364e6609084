"""Judges what all rigs rest on: that a stage which judges nothing fails, that no skip passes for a verdict, that every failure is told with
its reason, and that a daemon which ends badly is told."""

import glob
import json
import os
import runpy
import signal
import subprocess
import sys
import time
import tomllib

import pytest

import building
import ending
import listening
import namespaces
import servers
import withheld
from budgets import Budgets, Machine
from counting import EXIT_CODE, LINES, READERS, RIG, TESTS, Excuses, Tally, conclude, in_ci, read_junit
from guest.initiator import without_one_overtaken_login
from recovery.damage import judge_counts
from verdicts import eventually, expect

pytestmark = pytest.mark.without_targe
HERE = os.path.dirname(os.path.abspath(__file__))
# Longest a pytest that has next to nothing to do may take on a busy machine, seconds.
PYTEST_MAX_S = 400
SAID = """== out
PASS rig one (0.1 s)
SKIP rig two: no loop devices here
FAIL rig three: AssertionError
PASSING by
"""
CARGO = """
     Running tests/media/main.rs (target/debug/deps/media-1)
running 3 tests
test plain ... ok
test absent ... ignored
test partly ... ok
test left::early ... ok

successes:

---- partly stdout ----
skipped: no io_uring here: Operation not permitted
skipped: no loop device: Permission denied

---- left::early stdout ----
SKIP early: no /dev/fuse


successes:
    left::early
    partly
    plain

test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s
"""
FAILING = """
running 1 test
test broken ... FAILED

failures:

---- broken stdout ----
thread 'broken' panicked at src/lib.rs:1:1

failures:
    broken

test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s
"""


# A daemon: its port, and how it ends.
BROKEN = """
import os, signal, socket, sys
port, how = int(sys.argv[1]), sys.argv[2]
code = int(how) if how.isdigit() else 0
signal.signal(signal.SIGTERM, lambda *_: os._exit(code))
# It may be told to end as soon as it listens.
if how == "panic":
    print("thread 'reactor-0' panicked at crates/drivers/src/reactor.rs:1:1:", flush=True)
listening = [socket.create_server((host, port)) for host in ("127.0.0.1", "127.0.0.2")]
while True:
    listening[0].accept()[0].close()
"""


def read(judged, text):
    tally, shown = Tally(), []
    reader = READERS[judged](tally)
    for line in text.splitlines(keepends=True):
        if reader.read(line):
            shown.append(line)
    return tally, "".join(shown)


def test_counts_the_lines_of_a_stage():
    tally, shown = read(LINES, SAID)
    assert (tally.passed, tally.failures, tally.skips) == (1, ["rig three: AssertionError"], ["rig two: no loop devices here"])
    assert shown == SAID


def test_counts_a_test_that_returned_early_as_skipped():
    tally, shown = read(TESTS, CARGO)
    assert (tally.passed, tally.failures) == (1, [])
    assert tally.skips == ["absent: ignored", "partly: no io_uring here: Operation not permitted",
                           "partly: no loop device: Permission denied", "left::early: early: no /dev/fuse"]
    assert "partly stdout" not in shown and "skipped: no io_uring" in shown and "test result: ok" in shown


def test_counts_and_shows_a_failing_cargo_test():
    tally, shown = read(TESTS, CARGO + FAILING)
    assert tally.passed == 1 and "panicked at" in shown
    assert tally.failures == ["tests/media/main.rs, broken: thread 'broken' panicked at src/lib.rs:1:1"]


def test_fails_a_stage_that_judged_nothing():
    for judged in (LINES, TESTS, RIG):
        tally, _ = read(judged, "all is well\n")
        assert conclude(judged, tally, 0) and len(tally.failures) == 1, judged
    tally, _ = read(EXIT_CODE, "all is well\n")
    assert conclude(EXIT_CODE, tally, 0) is None and (tally.passed, tally.failures) == (1, [])


def test_fails_a_stage_by_its_exit_code():
    for judged in (LINES, TESTS, EXIT_CODE, RIG):
        tally, _ = read(judged, "PASS one\n")
        assert conclude(judged, tally, 124, "error: it hangs") and tally.failures == ["exit code 124: error: it hangs"], judged


def test_excuses_what_is_listed_and_nothing_else(tmp_path):
    path = tmp_path / "skips.toml"
    path.write_text('[[skip]]\nstage = "attach"\nname = "^two: no loop"\nreason = "none are there"\n'
                    '[[skip]]\nstage = "attach"\nname = "^three"\nreason = "old"\n[[skip]]\nstage = "guest"\nname = "x"\nreason = "y"\n')
    excuses = Excuses(path)
    assert excuses.unlisted("attach", ["two: no loop devices", "one two: no loop devices"]) == ["one two: no loop devices"], "by its name"
    assert excuses.unlisted("crash", ["two: no loop devices"]) == ["two: no loop devices"], "of another stage"
    assert [entry["name"] for entry in excuses.stale({"attach"})] == ["^three"], "what names nothing is stale"
    assert excuses.unlisted(None, ["x", "z"]) == ["z"], "of any stage"


def test_refuses_an_excuse_without_a_reason(tmp_path):
    path = tmp_path / "skips.toml"
    path.write_text('[[skip]]\nstage = "attach"\nname = "two"\n')
    with pytest.raises(ValueError):
        Excuses(path)


def test_knows_that_ci_runs():
    for said, meant in (("true", True), ("1", True), ("True", True), ("yes", True), ("", False), ("0", False), ("false", False)):
        expect(in_ci({"CI": said}) == meant, f"CI={said}")
    expect(not in_ci({}), "no CI")


def test_tells_a_panic_a_bug_and_a_bad_exit_code():
    panic = "thread 'reactor-0' panicked at crates/x.rs:1:1:\n"
    for faults, code, log, words in (([], 0, panic, "1 panics"), (ending.bugs('{"bugs": 2}'), 0, "", "counts 2 bugs"), (ending.bugs("{}"), 0, "", "counts None bugs"),
                                     ([], -6, "", "ended with -6"), ([], 101, panic, "1 panics")):
        try:
            ending.expect_sound("targe", faults, code, log)
        except AssertionError as told:
            expect(words in str(told), f"{told}")
        else:
            raise AssertionError(f"{words} is taken for a good end")
    ending.expect_sound("targe", ending.bugs('{"bugs": 0}'), 0, "State is kept\n")


class Broken(servers.Targe):
    """A daemon that listens, answers `status` and ends as it is told to."""

    how = "0"

    def command(self):
        return [sys.executable, "-c", BROKEN, str(self.port), self.how]

    def admin(self, what):
        return json.dumps({"bugs": int(self.how == "bug")})


def broken(folder, how):
    server = Broken(os.path.join(folder, how), servers.Export(luns=(servers.Lun("ram"),)))
    server.how = how
    return server


@pytest.mark.parametrize("how, told", [("0", None), ("1", "ended with 1"), ("panic", "1 panics"), ("bug", "counts 1 bugs")])
def test_judges_how_a_server_of_a_rig_ends(tmp_path, how, told):
    server = broken(tmp_path, how)
    server.start()
    if told is None:
        assert server.stop() == 0
        return
    with pytest.raises(AssertionError, match=told):
        server.stop()


def test_judges_a_server_that_died_by_itself(tmp_path):
    server = broken(tmp_path, "0")
    server.start()
    server.process.kill()
    server.process.wait()
    with pytest.raises(AssertionError, match="before it was asked"):
        server.stop()


# The plugins of these rigs (conftest.py), over tests of others


def run_pytest(folder, tests, *arguments, ci=False):
    """Runs pytest as rigs are run, over these tests; returns its exit code, what it said, and its verdicts as they are counted."""
    path, junit = folder / "test_those.py", folder / "junit.xml"
    path.write_text(tests)
    environment = {name: value for name, value in os.environ.items() if name != "CI"} | {"PYTHONPATH": HERE} | ({"CI": "true"} if ci else {})
    done = subprocess.run([sys.executable, "-m", "pytest", "-c", os.path.join(HERE, "pytest.ini"), f"--rootdir={folder}", "-p", "conftest", "-v",
                           f"--junit-xml={junit}", path, *arguments], capture_output=True, text=True, timeout=PYTEST_MAX_S, env=environment, cwd=folder)
    tally = Tally()
    read_junit(junit, tally)
    return done.returncode, done.stdout + done.stderr, tally


FREE = "import pytest\npytestmark = pytest.mark.without_targe\n"


def test_a_rig_without_tests_fails(tmp_path):
    code, _, tally = run_pytest(tmp_path, FREE)
    assert code == 5 and conclude(RIG, tally, code)


def test_counts_the_verdicts_of_a_rig(tmp_path):
    code, said, tally = run_pytest(tmp_path, FREE + """
def test_good(): pass
def test_bad(): assert 1 == 2, "one is\\nnot two"
def test_left_out(): pytest.skip("no loop devices")
@pytest.mark.xfail(reason="the tool is wrong", raises=KeyError)
def test_wrong(): {}[1]
@pytest.mark.xfail(reason="the tool is wrong", raises=KeyError)
def test_right_after_all(): pass
@pytest.mark.xfail(reason="the tool is wrong", raises=KeyError)
def test_wrong_otherwise(): assert False
@pytest.fixture
def ends_badly():
    yield
    raise AssertionError("the target panicked")
def test_good_but_its_target(ends_badly): pass
@pytest.mark.timeout(1)
def test_hangs():
    import time
    time.sleep(30)
""")
    assert code == 1
    assert (tally.passed, tally.expected, tally.skips) == (1, 1, ["test_those::test_left_out: no loop devices"])
    told = "\n".join(tally.failures)
    for words in ("one is not two", "XPASS(strict)", "test_wrong_otherwise", "the target panicked", "Timeout >1.0s"):
        assert words in told and words in " ".join(said.split("generated xml")[-1].split()), f"{words}: {told} {said}"
    assert len(tally.failures) == 5, told


def test_a_skip_that_nobody_listed_fails_in_ci(tmp_path):
    tests = FREE + "def test_good(): pass\ndef test_left_out(): pytest.skip('no loop devices')\n"
    assert run_pytest(tmp_path, tests)[0] == 0
    code, said, tally = run_pytest(tmp_path, tests, ci=True)
    assert code == 1 and len(tally.failures) == 1 and "tests/skips.toml has no entry" in said and "no loop devices" in tally.failures[0]
    code, said, tally = run_pytest(tmp_path, "import pytest\npytest.skip('no cryptography', allow_module_level=True)\n", ci=True)
    assert code != 0 and "tests/skips.toml has no entry" in said


def test_how_a_target_ends_is_a_verdict_of_its_own(tmp_path):
    tests = FREE + """
from serving import serving
class Server:
    def __init__(self, end): self.end = end
    def start(self): pass
    def stop(self): assert self.end == "good", "it panicked"
    def kill(self): pass
@pytest.fixture(scope="module", params=["good", "bad"])
def server(request):
    with serving(request, request.param, Server(request.param)) as server: yield server
def test_one(server): pass
def test_two(server): pass
"""
    code, said, tally = run_pytest(tmp_path, tests)
    assert code == 1 and tally.passed == 5 and "good: the target ends as it should PASSED" in said
    assert len(tally.failures) == 1 and "bad: the target ends as it should" in tally.failures[0] and "it panicked" in tally.failures[0]


def test_judges_tests_in_processes_of_their_own(tmp_path):
    code, said, tally = run_pytest(tmp_path, FREE + """
import os, time
own = pytest.mark.own_process(limit_s=120)
@own
@pytest.mark.parametrize("number", [1, 2])
def test_good(seed, number): print("said", seed, number)
@own
@pytest.mark.waits(1)
def test_bad(seed): raise ValueError("bad")
@own
@pytest.mark.waits(1)
def test_left_out(): pytest.skip("not here")
@own
@pytest.mark.waits(1)
def test_dies(): os._exit(3)
@pytest.mark.own_process(limit_s=2)
@pytest.mark.waits(1)
def test_hangs(): time.sleep(600)
""", "-s", "--seed", "7")
    assert code == 1 and tally.passed == 2 and len(tally.skips) == 1
    assert "said 7 1" in said
    told = "\n".join(tally.failures)
    for words in ("ValueError: bad", "ended with 3 and no verdict", "not over within 2 s"):
        assert words in told, told


def test_says_what_to_do_without_a_binary(tmp_path):
    environment = os.environ | {"TARGE": str(tmp_path / "targe")}
    done = subprocess.run([sys.executable, "-m", "pytest", os.path.join(HERE, "foreign", "crash")], capture_output=True, text=True, timeout=PYTEST_MAX_S,
                          env=environment)
    assert done.returncode != 0 and "run `make build`" in done.stdout + done.stderr


def test_asks_what_to_run_where_no_rig_is_named():
    done = subprocess.run([sys.executable, "-m", "pytest"], cwd=os.path.dirname(HERE), capture_output=True, text=True, timeout=PYTEST_MAX_S)
    assert done.returncode == 4 and "`pytest tests/foreign/attach`" in done.stderr, done.stderr


def test_says_which_targets_a_rig_can_judge():
    done = subprocess.run([sys.executable, "-m", "pytest", os.path.join(HERE, "recovery"), "--server", "tgt"], capture_output=True, text=True,
                          timeout=PYTEST_MAX_S)
    assert done.returncode != 0 and "judges targe only" in done.stdout + done.stderr


# What rigs judge by


def test_wants_damage_to_be_noticed():
    broken = {"requests": {"damaged_data": 5, "damaged_headers": 6}, "responses": {"damaged_data": 4, "damaged_headers": 2}}
    only_data = {"requests": {"damaged_data": 5}, "responses": {"damaged_data": 4}}
    all_of_it = {"target": {"data_digest_errors": 5, "header_digest_errors": 6}, "initiator": {"data_digest_errors": 4, "header_digest_errors": 2}}
    no_headers = {who: {"header_digest_errors": 0} for who in all_of_it}

    def judged(exact, lost, injected=broken, **changed):
        headers = {} if injected is broken else no_headers
        try:
            judge_counts(injected, {who: seen | headers.get(who, {}) | changed.get(who, {}) for who, seen in all_of_it.items()}, exact, lost)
        except AssertionError:
            return "FAIL"
        return "PASS"

    one_less, none = {"target": {"data_digest_errors": 4}}, {"target": {"data_digest_errors": 0, "header_digest_errors": 0}}
    three_less = {"target": {"data_digest_errors": 2}}
    expect((judged(True, 0), judged(True, 9, **one_less)) == ("PASS", "FAIL"), "to the last")
    expect((judged(False, 0, only_data), judged(False, 0, only_data, **one_less)) == ("PASS", "FAIL"), "nothing is hidden by nothing")
    cut = only_data | {"responses": {"damaged_data": 4, "cut": 1}}
    expect((judged(False, 1, only_data, **one_less), judged(False, 0, cut, **one_less)) == ("PASS", "PASS"), "a connection that ended hides")
    expect((judged(False, 0, **one_less), judged(False, 1, **three_less)) == ("PASS", "PASS"), "a damaged header hides, and one end hides several")
    expect(judged(False, 0, target={"header_digest_errors": 5}) == "FAIL", "no damaged header hides another without an end")
    expect((judged(False, 20, **none), judged(False, 20, only_data, **none)) == ("FAIL", "FAIL"), "half of it at least")
    expect(judged(False, 20, target={"data_digest_errors": 6}) == "FAIL", "no more than there was")


def test_excuses_one_overtaken_login():
    left = without_one_overtaken_login
    overtaken, given_up, error = "Login/Text in progress. Cannot start", "detected conn error (1011)", "I/O error, dev sda"
    for said, complaints in (([overtaken, given_up], []), ([overtaken], []), ([overtaken, error], [error]), ([given_up], [given_up]),
                             ([overtaken, given_up, given_up], [given_up]), ([overtaken, given_up] * 2, [overtaken, given_up])):
        expect(left(said) == complaints, f"of {said} is left {left(said)}")


def test_no_rig_chooses_the_port_of_another(monkeypatch):
    """Also before a server listens on it."""
    monkeypatch.setattr(listening, "PORTS", range(21000, 21050))
    other = "import sys; sys.path.append(sys.argv[1]); import listening; listening.PORTS = range(21000, 21050); print(listening.free_port(), flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", other, os.path.join(HERE, "foreign")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as rig:
        theirs = int(rig.stdout.readline())
        ours = [listening.free_port() for _ in range(30)]
        rig.communicate("\n")
    assert len(set(ours)) == 30 and theirs not in ours, (theirs, ours)


def test_a_rig_has_its_mounts_for_itself():
    """No namespace that another rig makes has copies of them."""
    if namespaces.is_real_root():
        assert os.readlink("/proc/self/ns/mnt") != os.readlink(f"/proc/{os.getppid()}/ns/mnt")


def test_waits_for_what_comes_late_and_tells_what_never_comes():
    looks = iter((None, 0, "", "found"))
    assert eventually(lambda: next(looks), "it comes") == "found"
    with pytest.raises(AssertionError, match="within 0 s it is not so: the log has 3 lines"):
        eventually(lambda: False, lambda: f"the log has {1 + 2} lines", 0)


def test_extends_a_limit_by_what_was_withheld():
    waited = [5.0]
    limit = withheld.Limit(0.05, lambda: waited[0])
    end = limit.end
    time.sleep(0.06)
    waited[0] += 1000
    expect(not limit.over() and abs(limit.end - end - 1000) < 1e-3, f"it ends {limit.end - end:.3f} s later")
    strict = withheld.Limit(0.05, lambda: waited[0])
    time.sleep(0.06)
    expect(strict.over(), "extended though nothing was withheld")


def test_knows_how_long_nothing_went_on():
    """A program that is stopped goes on with nothing."""
    script = f"import sys; sys.path.insert(0, {os.path.join(HERE, 'foreign')!r})\nimport time, withheld\n" + """
with withheld.Standstill() as standstill:
    time.sleep(0.1)
    print("up", flush=True)
    input()
print(standstill.longest)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        process.send_signal(signal.SIGSTOP)
        time.sleep(1)
        process.send_signal(signal.SIGCONT)
        longest = float(process.communicate("\n", timeout=PYTEST_MAX_S)[0])
    expect(0.9 < longest, f"a program that was stopped for a second says {longest:.2f} s")


def test_knows_how_long_a_thread_waited_for_a_processor():
    """Two that compute on one processor wait for each other; one that sleeps waits for nobody."""
    only = {min(os.sched_getaffinity(0))}
    started = []
    try:
        for then in ("time.sleep(60)", "exec('while True: pass')", "exec('while True: pass')"):
            started.append(subprocess.Popen([sys.executable, "-c", f"import time; print('up', flush=True); {then}"], stdout=subprocess.PIPE,
                                            preexec_fn=lambda: os.sched_setaffinity(0, only)))
            started[-1].stdout.readline()
        idle, busy = (withheld.Waits(lambda process=process: [process.pid]) for process in started[:2])
        time.sleep(1)
        idle, busy = idle(), busy()
        expect(0.1 < busy and idle < busy / 2, f"within a second one waited {busy:.2f} s, and the one that slept {idle:.2f} s")
    finally:
        for process in started:
            process.kill()
            process.wait()


def test_the_test_build_has_one_list_of_features():
    with open(os.path.join(building.ROOT, ".cargo", "config.toml"), "rb") as file:
        alias = tomllib.load(file)["alias"]["test-build"]
    assert ["cargo", *alias.split()] == ["cargo", *building.tests()[1:]]


def test_names_a_stage_that_exceeds_its_budget_and_ends_one_that_hangs(tmp_path):
    path = tmp_path / "budgets.toml"
    path.write_text("[calibration]\nclock_s = 1\nprocessor_s = 1\n[stage]\na = { clock_s = 1000, processor_s = 10 }\n")
    rows, slow = Budgets(path), Machine(clock=3, processor=2)
    assert list(rows.exceeded({"a": 15}, Machine())) == []
    assert len(list(rows.exceeded({"a": 16}, Machine()))) == 1
    assert list(rows.exceeded({"a": 29}, slow)) == [], "the machine is slow, not the stage"
    assert "no row" in next(rows.exceeded({"b": 1}, slow))
    assert (rows.limit_s("a", Machine()), rows.limit_s("a", slow), rows.limit_s("b", slow)) == (5000, 15000, 2700)


def test_each_commit_runs_one_stage_of_the_rotation_and_says_which(monkeypatch, capsys):
    text = runpy.run_path(os.path.join(HERE, "everything"), run_name="stages")
    names = [row[0] for row in text["ROTATION"]]
    for number, name in enumerate(names):
        # Numbers that leave each remainder, in the first eight digits.
        monkeypatch.setenv("COMMIT", f"{len(names) * 1000 + number:08x}" + "f" * 32)
        assert text["rotated"]()[0] == name
        assert f"this commit runs {name}, one of {', '.join(names)}" in capsys.readouterr().out
    monkeypatch.setenv("COMMIT", "no commit")
    assert text["rotated"]()[0] == names[0]


# The rigs that no stage runs, each with what it needs beside Debian and this repository.
BY_HAND = {
    "tests/foreign/uiscsi/test_uiscsi.py": "Go, and the sources of uiscsi",
    "tests/foreign/iscsi-client-rs/test_iscsi_client_rs.py": "the sources of iscsi-client-rs",
    "tests/foreign/csi/test_sanity.py": "csi-sanity",
    "tests/foreign/csi/test_guest.py": "csi-sanity",
}


def test_every_rig_is_in_a_stage_but_those_by_hand():
    text = runpy.run_path(os.path.join(HERE, "everything"), run_name="stages")
    rows = [row for names in ("COMPILED", "UNIT", "RELEASE", "MEASURED", "BUSY", "WAITING", "IDLE", "ROTATION") for row in text[names]]
    named = [word for row in rows for word in row[2] if str(word).startswith("tests/")]
    modules = [f"tests/{path}" for path in glob.glob("**/test_*.py", root_dir=HERE, recursive=True)]
    assert {path for path in modules if not any(path == one or path.startswith(f"{one}/") for one in named)} == BY_HAND.keys()


def test_every_archive_that_a_rig_downloads_is_fetched_with_the_packages():
    """No stage needs the network after `make packages`."""
    rigs = glob.glob(os.path.join(HERE, "**", "*.py"), recursive=True)
    downloads = {os.path.relpath(path, HERE) for path in rigs if path != __file__ and '"download"' in open(path).read()}
    assert downloads == {"foreign/guest/image.py", "foreign/guest/bacula.py"}
    packages = runpy.run_path(os.path.join(HERE, "foreign", "packages"), run_name="packages")
    assert {fetch.__module__ for _, fetch in packages["ARCHIVES"]} == {"guest.image", "guest.bacula"}


def test_every_stage_has_a_budget():
    text = runpy.run_path(os.path.join(HERE, "everything"), run_name="stages")
    names = {row[0] for rows in ("COMPILED", "UNIT", "RELEASE", "MEASURED", "BUSY", "WAITING", "IDLE", "ROTATION") for row in text[rows]}
    assert names == set(Budgets().rows)
