"""The shell tests need sources that are built; without them there is nothing to collect."""


def pytest_ignore_collect(collection_path, config):
    return True if collection_path.name == "test_shell.py" and not config.getoption("source") else None
