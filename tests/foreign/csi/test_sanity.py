"""csi-sanity, the judge of the Container Storage Interface, with a daemon, a pool on Btrfs or XFS, and a node on this host.

It is in no distribution: `go install github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity@v5.4.0`, and then
`CSI_SANITY=.../csi-sanity make test-csi-sanity`.
"""

import os
import re
import shutil
import subprocess

import pytest

import servers
from csi.test_csi import MIB, driver_of, ends_well, reflinks
from verdicts import expect

pytestmark = pytest.mark.servers("targe")
SANITY = os.environ.get("CSI_SANITY") or shutil.which("csi-sanity")
# More than any test but that of the limit publishes.
VOLUMES_MAX = 8
MODIFIABLE = "limit_iops: \"100\"\n"
# Longest a run may take, seconds.
RUN_MAX_S = 900
__all__ = ["reflinks"]


@pytest.mark.parametrize("access", ["mount", "block"])
@pytest.mark.timeout(2 * RUN_MAX_S)
def test_csi_sanity_passes_whole(request, tmp_path, reflinks, access):
    if not SANITY:
        pytest.skip("csi-sanity is not here: name it with CSI_SANITY=PATH")
    pool = reflinks / f"sanity-{access}"
    pool.mkdir()
    driver = driver_of(request, tmp_path, pool=pool, options=("--max-volumes", str(VOLUMES_MAX)))
    mutable = tmp_path / "mutable.yaml"
    mutable.write_text(MODIFIABLE)
    words = [SANITY, f"--csi.endpoint=unix:{driver.socket}", f"--csi.mountdir={tmp_path}/mnt", f"--csi.stagingdir={tmp_path}/stage",
             f"--csi.testvolumeaccesstype={access}", f"--csi.testvolumesize={32 * MIB}", f"--csi.testvolumeexpandsize={48 * MIB}",
             f"--csi.testvolumemutableparameters={mutable}", "--csi.testnodevolumeattachlimit", "--ginkgo.no-color", "--ginkgo.v"]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=RUN_MAX_S, check=False)
    os.makedirs(os.path.join(servers.OUT, "csi"), exist_ok=True)
    with open(os.path.join(servers.OUT, "csi", f"sanity-{request.node.callspec.id}.log"), "w") as log:
        log.write(done.stdout)
    expect(done.returncode == 0, done.stdout[-3000:] + driver.log()[-2000:])
    print(re.findall(r"Ran \d+ of .*|\d+ Passed.*", done.stdout))
    ends_well(request, driver)
