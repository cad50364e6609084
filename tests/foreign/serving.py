"""A target that serves several tests, and the verdict on how it ends."""

import contextlib

import pytest


@contextlib.contextmanager
def serving(request, name, server):
    """Starts a server for the tests of a fixture. How it ends is a verdict of its own, beside those of the tests."""
    with contextlib.ExitStack() as stack:
        server.start()
        stack.callback(server.kill)
        yield server
        add_verdict(request, f"{name}: the target ends as it should", server.stop)


def add_verdict(request, name, judge):
    """Reports what `judge` finds as a test of this name."""
    module = request.node.getparent(pytest.Module)
    call = pytest.CallInfo.from_call(judge, "call")
    failure = call.excinfo and module.repr_failure(call.excinfo)
    report = pytest.TestReport(f"{module.nodeid}::{name}", (str(module.path.relative_to(module.config.rootpath)), None, name), {},
                               "failed" if failure else "passed", failure, "call", duration=call.duration)
    # A fixture ends while output is captured, and this is none of a test's.
    with module.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        module.ihook.pytest_runtest_logreport(report=report)
