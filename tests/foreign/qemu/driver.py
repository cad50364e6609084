"""QEMU's own iSCSI driver, by its tools: qemu-img and qemu-io."""

import os
import subprocess

TOOL_MAX_S = 120


def disk(server, unit=0):
    """The driver's options; the same for qemu-img and qemu-io."""
    options = (f"driver=raw,file.driver=iscsi,file.transport=tcp,file.portal=127.0.0.1:{server.port},"
               f"file.target={server.iqn},file.lun={server.first_lun + unit}")
    if server.export.digests == "header":
        options += ",file.header-digest=crc32c"
    if server.export.incoming:
        options += f",file.user={server.export.incoming[0]},file.password-secret=chap"
    return options


def secret(server):
    """What makes the secret known to the driver, which takes none in its options."""
    if not server.export.incoming:
        return []
    path = os.path.join(server.folder, "secret")
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(server.export.incoming[1])
    return ["--object", f"secret,id=chap,file={path}"]


def img(server, command, *arguments):
    return run("qemu-img", command, *secret(server), *arguments)


def io(server, *commands):
    run("qemu-io", *secret(server), "--image-opts", *[part for command in commands for part in ("-c", command)], disk(server))


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=TOOL_MAX_S)
    said = (done.stdout + done.stderr).splitlines()
    # qemu-io exits 0 on a pattern that does not match.
    wrong = [line for line in said if "Pattern verification failed" in line or "failed:" in line]
    if done.returncode != 0 or wrong:
        shown = " ".join(command)
        raise RuntimeError(f"{shown[:120]}{'…' * (len(shown) > 120)} exits {done.returncode}, {len(wrong)} lines of failure: "
                           f"{'; '.join((wrong or said[-3:])[:3])}")
    return done.stdout
