"""Tests write to folders of their own, never to the user's caches and configuration."""

import atexit
import os
import shutil
import tempfile

_HOME = tempfile.mkdtemp(prefix="candor-tests-")
atexit.register(shutil.rmtree, _HOME, ignore_errors=True)
os.environ["XDG_CACHE_HOME"] = os.path.join(_HOME, "cache")
os.environ["XDG_CONFIG_HOME"] = os.path.join(_HOME, "config")
os.environ.pop("CANDOR_MONAI_KEY_FILE", None)
if "PYTEST_XDIST_WORKER" in os.environ:  # one thread each, or those of all workers get in each other's way
    os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_configure(config):
    """Files go to the workers in their order, so that none of the long ones comes last."""
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False
