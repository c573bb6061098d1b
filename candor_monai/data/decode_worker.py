"""The process that touches untrusted bytes: one request at a time, under limits of its own.

Started by :class:`candor_monai.data.DecodePool` as ``python -m candor_monai.data.decode_worker``. It imports neither
torch nor MONAI, speaks JSON and raw pixels over two pipes (nothing is unpickled on either side), writes no file and
leaves no core dump, and what native codecs print is dropped because it may quote the file.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import math
import os
import signal
import struct
import sys
import time
from typing import Any, BinaryIO

from candor_monai.data.worker_limits import limit_process

REQUEST = struct.Struct("<IQ")
REPLY = struct.Struct("<IQ")


def main() -> None:
    """Read settings from the command line, then answer requests until the input ends."""
    settings: dict[str, Any] = json.loads(sys.argv[1])
    requests, replies = _private_pipes()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    limit_process(settings["memory_bytes"])
    from candor_monai.data.decoding import DecodeOptions

    options = DecodeOptions(**settings["options"])
    size = settings["size"] if not isinstance(settings["size"], list) else tuple(settings["size"])
    _reply(replies, {"ready": True})
    # A worker whose parent is gone ends at the end of its input; one that hangs then ends by this alarm.
    alarm = math.ceil(settings["seconds"]) + 5
    while (head := requests.read(REQUEST.size)) and len(head) == REQUEST.size:
        header_length, data_length = REQUEST.unpack(head)
        request = json.loads(requests.read(header_length))
        data = requests.read(data_length) if request["kind"] == "bytes" else None
        signal.alarm(alarm)
        answer, pixels = _answer(request, data, options, size)
        signal.alarm(0)
        _reply(replies, answer, pixels)


def _answer(
    request: dict[str, Any], data: bytes | None, options: Any, size: Any
) -> tuple[dict[str, Any], memoryview | None]:
    """Decode one image; every failure is an answer too."""
    from candor_monai.data.decoding import decode, read_source, squashed
    from candor_monai.utils.errors import DecodeError

    marks = [time.perf_counter()]  # start, read, decoded
    pixels = None
    try:
        if data is None:
            expected = tuple(request["expected"]) if request["expected"] else None
            data = read_source(request["path"], options, expected)
        marks.append(time.perf_counter())
        image = decode(data, options)
        marks.append(time.perf_counter())
        shown = squashed(image.pixels, size) if request["eight_bit"] else image.pixels
        answer: dict[str, Any] = {"shape": shown.shape, "dtype": str(shown.dtype), "meta": image.meta.as_dict()}
        pixels = shown.reshape(-1).data.cast("B")
    except DecodeError as error:
        answer = {"reason": error.reason, "message": str(error)}
    except MemoryError:
        answer = {"reason": "memory", "message": "decoding needs more memory than a worker may use"}
    if answer.get("reason") == "memory":
        gc.collect()
    marks.append(time.perf_counter())
    answer["stages"] = [after - before for before, after in itertools.pairwise(marks)]
    answer["seconds"] = marks[-1] - marks[0]
    return answer, pixels


def _reply(replies: int, answer: dict[str, Any], pixels: memoryview | None = None) -> None:
    text = json.dumps(answer).encode()
    parts = [memoryview(REPLY.pack(len(text), 0 if pixels is None else pixels.nbytes) + text)]
    if pixels is not None:
        parts.append(pixels)
    while parts:
        written = os.writev(replies, parts)
        while parts and written >= len(parts[0]):
            written -= len(parts.pop(0))
        if parts:
            parts[0] = parts[0][written:]


def _private_pipes() -> tuple[BinaryIO, int]:
    """The two pipes on private descriptors; the standard ones lead nowhere, so no library can disturb the protocol."""
    requests, replies = os.fdopen(os.dup(0), "rb"), os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    os.close(nowhere)
    return requests, replies


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
        main()
