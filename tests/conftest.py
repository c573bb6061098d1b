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
