"""The container: a root with exactly the files that packaging/Containerfile copies, used as its instructions say, by its user.

No container engine takes part. The binary that the rigs judge may be linked dynamically; then its libraries are there as well.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import time

import pytest

import servers
from namespaces import is_real_root
from verdicts import expect, same

LIMIT_S = 300
CONTEXT = os.path.join(servers.OUT, "container-files")
NAME = "iqn.2026-01.com.example.san:disk"
# The address is one of the network namespace that the container has for itself.
CONFIG = f"""[[portal]]
listen = "0.0.0.0:3260"

[[target]]
name = "{NAME}"
lun = [{{ type = "file", path = "/var/lib/targe/disk.img", size = "8M" }}]
"""
pytestmark = pytest.mark.skipif(not is_real_root(), reason="only root makes the root of another user")


class Containerfile:
    def __init__(self, path):
        self.copies, self.environment, self.volumes, self.commands = [], {}, [], {}
        with open(path) as file:
            text = re.sub(r"\\\n", "", file.read())
        for line in text.splitlines():
            word, _, rest = line.partition(" ")
            match word:
                case "COPY":
                    *flags, source, target = rest.split()
                    self.copies.append((dict(flag.removeprefix("--").split("=") for flag in flags), source, target))
                case "FROM":
                    self.base = rest
                case "USER":
                    self.user = rest
                case "ENV":
                    self.environment.update([rest.split("=", 1)])
                case "VOLUME":
                    self.volumes += json.loads(rest)
                case "ENTRYPOINT" | "CMD":
                    self.commands[word] = json.loads(rest)
                case "HEALTHCHECK":
                    self.commands[word] = json.loads(rest.split("CMD", 1)[1])
                case "" | "#" | "EXPOSE" | "STOPSIGNAL":
                    pass
                case _:
                    raise AssertionError(f"this rig does not know {line!r}")


class Container:
    """A root of its own, with /proc, in namespaces of its own."""

    def __init__(self, file, folder):
        self.file, self.root = file, os.path.join(folder, "root")
        os.makedirs(os.path.join(self.root, "proc"))
        for flags, source, target in file.copies:
            self.copy(flags, os.path.join(CONTEXT, source), self.root + target)
        for library in re.findall(r"(/\S+) \(0x", subprocess.run(["ldd", servers.Targe.binary], capture_output=True, text=True).stdout):
            os.makedirs(os.path.dirname(self.root + library), exist_ok=True)
            shutil.copy(library, self.root + library)
        os.makedirs(self.root + "/etc/targe")
        with open(self.root + "/etc/targe/targe.toml", "w") as config:
            config.write(CONFIG)

    def copy(self, flags, source, target):
        """As COPY does: the contents of a folder, or a file."""
        user, group = map(int, flags.get("chown", "0:0").split(":"))
        os.makedirs(os.path.dirname(target.rstrip("/")), exist_ok=True)
        if os.path.isdir(source):
            shutil.copytree(source, target, dirs_exist_ok=True)
            copied = [os.path.join(folder, name) for folder, folders, names in os.walk(source) for name in folders + names]
            for path in copied:
                os.chown(target + os.path.relpath(path, source), user, group)
        else:
            shutil.copy(source, target)
            os.chown(target, user, group)
            os.chmod(target, int(flags.get("chmod", "755"), 8))

    def words(self, *command):
        environment = [f"{name}={value}" for name, value in self.file.environment.items()]
        return ["chroot", f"--userspec={self.file.user}", self.root, *command], environment

    def start(self, *command):
        """Runs a command in new namespaces, which end with it."""
        words, environment = self.words(*command)
        script = f"mount -t proc proc {shlex.quote(self.root)}/proc && ip link set lo up && exec {shlex.join(words)}"
        entered = ["unshare", "--mount", "--pid", "--net", "--fork", "--kill-child", "sh", "-c", script]
        return subprocess.Popen(entered, env={"PATH": os.environ["PATH"], **dict(one.split("=", 1) for one in environment)},
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                preexec_fn=servers.die_with_parent)

    def enter(self, process, *command):
        """Runs a command beside the first one, as an engine runs a health check."""
        words, environment = self.words(*command)
        first = subprocess.run(["pgrep", "--parent", str(process.pid)], capture_output=True, text=True).stdout.split()
        if not first:
            return None
        entered = ["nsenter", "--target", first[0], "--mount", "--pid", "--net", *words]
        return subprocess.run(entered, env={"PATH": os.environ["PATH"], **dict(one.split("=", 1) for one in environment)},
                              capture_output=True, text=True, timeout=LIMIT_S)


@pytest.fixture(scope="module")
def file():
    command = [os.path.join(servers.ROOT, "packaging", "make-dist"), "--container-of", servers.Targe.binary, "--out", CONTEXT + ".out"]
    subprocess.run(command, check=True, timeout=LIMIT_S)
    shutil.rmtree(CONTEXT, ignore_errors=True)
    os.rename(CONTEXT + ".out/container", CONTEXT)
    return Containerfile(os.path.join(CONTEXT, "Containerfile"))


def test_the_file_names_what_is_there(file):
    same("what it begins with", file.base, "scratch")
    for _, source, _ in file.copies:
        expect(os.path.exists(os.path.join(CONTEXT, source)), f"{source} is not in the context")
    expect(re.fullmatch(r"[1-9]\d+:[1-9]\d+", file.user), f"the user {file.user} is root, or has a name that a root without files lacks")
    binary = file.commands["ENTRYPOINT"][0]
    expect(binary in [target for _, _, target in file.copies], f"{binary} is not copied")
    same("the health check's binary", file.commands["HEALTHCHECK"][0], binary)
    for words in (file.commands["CMD"], file.commands["HEALTHCHECK"][1:]):
        helped = subprocess.run([servers.Targe.binary, words[0], "--help"], capture_output=True, text=True, timeout=LIMIT_S)
        same(f"the exit code of targe {words[0]} --help", helped.returncode, 0)
        missing = [word for word in words if word.startswith("--") and word not in helped.stdout]
        same(f"what targe {words[0]} does not have", missing, [])
    same("its volumes", file.volumes, ["/var/lib/targe"])


def test_it_serves_and_is_healthy(file, tmp_path):
    tmp_path.chmod(0o755)
    container = Container(file, str(tmp_path))
    told = container.start(*file.commands["ENTRYPOINT"], "--version").communicate(timeout=LIMIT_S)[0]
    expect("features:" in told and "kernel: Linux" in told, told)
    daemon = container.start(*file.commands["ENTRYPOINT"], *file.commands["CMD"])
    deadline = time.monotonic() + LIMIT_S
    while not (health := container.enter(daemon, *file.commands["HEALTHCHECK"])) or health.returncode != 0:
        expect(daemon.poll() is None, "the daemon ended: " + (daemon.stdout.read() if daemon.poll() is not None else ""))
        expect(time.monotonic() < deadline, f"it does not become healthy: {health and health.stderr}")
        time.sleep(0.05)
    expect(NAME in health.stdout, health.stdout)
    url = f"iscsi://127.0.0.1:3260/{NAME}/0"
    read = container.enter(daemon, *file.commands["ENTRYPOINT"], "info", url)
    expect(read.returncode == 0 and "8M" in read.stdout, f"{read.stdout}{read.stderr}")
    user, group = map(int, file.user.split(":"))
    facts = os.stat(container.root + "/var/lib/targe/disk.img")
    same("the owner of the disk", (facts.st_uid, facts.st_gid), (user, group))
    first = subprocess.run(["pgrep", "--parent", str(daemon.pid)], capture_output=True, text=True, check=True).stdout.split()[0]
    os.kill(int(first), 15)
    said, _ = daemon.communicate(timeout=LIMIT_S)
    same(f"the end of the daemon, which said {said!r}", daemon.returncode, 0)
    same("the health of one that has ended", container.start(*file.commands["HEALTHCHECK"]).wait(LIMIT_S), 1)
