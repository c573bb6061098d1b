"""What tests share: where the real data is, and skipping when it is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared" / "data"

needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="real data folder ../shared/data is absent")
