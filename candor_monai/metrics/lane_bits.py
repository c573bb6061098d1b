"""Which bit of a word is set, where only one is: tables for compiled loops over words of 64 lanes.

Bit b is ``BIT[(word * SPREAD) >> np.uint64(58)]``: all windows of six bits of a de Bruijn sequence differ.
"""

from __future__ import annotations

import numpy as np

SPREAD = np.uint64(0x03F79D71B4CB0A89)
#: shape (64,), uint8.
BIT = np.zeros(64, np.uint8)
BIT[[(int(SPREAD) << bit) % 2**64 >> 58 for bit in range(64)]] = np.arange(64)
