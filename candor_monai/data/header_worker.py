"""A process that reads DICOM headers: one JSON request a line in, one JSON answer a line out.

Started by header_pool as ``python -m candor_monai.data.header_worker <memory in bytes>``. It limits its own memory
before it opens anything, so that a file that inflates itself costs this process and nothing else.
"""

from __future__ import annotations

import json
import sys

from .header_reading import HeaderError, read_dicomdir, read_header
from .worker_limits import limit_process

READY = "ready"


def main() -> None:
    """Answer requests ``{"paths": [...], "keywords": [...], "dicomdir": false}`` until the input ends."""
    limit_process(int(sys.argv[1]))
    import pydicom  # noqa: F401 - loaded before it is said that all is ready

    sys.stdout.write(READY + "\n")
    sys.stdout.flush()
    for line in sys.stdin:
        request = json.loads(line)
        for path in request["paths"]:
            answer: dict[str, object]
            try:
                if request.get("dicomdir"):
                    answer = {"files": read_dicomdir(path)}
                else:
                    answer = {"header": read_header(path, request["keywords"])}
            except HeaderError as error:
                answer = {"reason": error.reason, "message": str(error)}
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
