"""HyperSCSI judged by a second implementation of docs/hyperscsi.md: our target by its initiator, our initiator by its target,
its two ends by each other, all in network namespaces that die with the rig."""

import importlib
import re

import pytest

for package in ("argon2", "cryptography"):
    pytest.importorskip(package, reason=f"this Python has no {package}, which Debian's has by its package python3-{package}")

import cases

# Each keeps its cases in `cases`; the longest that wait come first.
MODULES = ("initiator_handshake", "initiator_ends", "target_rules", "judged_target", "judged_initiator", "alone", "both_ends",
           "initiator_rules", "target_exchanges")
for module in MODULES:
    importlib.import_module(module)

pytestmark = [pytest.mark.servers("targe"), pytest.mark.own_process(limit_s=cases.CASE_MAX_S)]


@pytest.mark.parametrize("case", [
    pytest.param(case, id=re.sub(r"\W+", "_", case.name), marks=[pytest.mark.waits(0)] if case.waits else []) for case in cases.CASES])
def test(seed, case):
    cases.tell(case, seed)
