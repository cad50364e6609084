"""Building outside of the workspace takes minutes: only with --build."""


def pytest_ignore_collect(collection_path, config):
    return True if collection_path.name == "test_outside.py" and not config.getoption("build") else None


def pytest_collection_modifyitems(items):
    # What is built is what was packed.
    items.sort(key=lambda item: item.path.name == "test_outside.py")
