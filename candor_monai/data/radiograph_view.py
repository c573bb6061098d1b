"""The view of a radiograph from its header: one stated rule, missing and contradictory entries counted.

1. ``ViewPosition`` when it is given.
2. Else the view code (``ViewCodeSequence``).
3. Else the series description or protocol name, when it names exactly one view.
4. Else the view is missing.

When ViewPosition and the view code name different views, the view is ``contradictory``: a value of its own. A
description that disagrees is counted and not followed, as descriptions are often those of the whole study.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

CONTRADICTORY = "contradictory"
LATERAL = "LATERAL"

# SNOMED CT and SNOMED RT codes of DICOM's DX views (CID 4010) that chest and breast radiographs use
CODES = {
    "399348003": "AP",
    "R-10206": "AP",
    "272479007": "PA",
    "R-10214": "PA",
    "R-40888": "PA",
    "399067008": LATERAL,
    "R-102CD": LATERAL,
    "399173006": LATERAL,
    "R-10236": LATERAL,
    "399198007": LATERAL,
    "R-10232": LATERAL,
    "399162004": "CC",
    "R-10242": "CC",
    "399368009": "MLO",
    "R-10226": "MLO",
}
MEANINGS = {
    "antero-posterior": "AP",
    "postero-anterior": "PA",
    "lateral": LATERAL,
    "left lateral": LATERAL,
    "right lateral": LATERAL,
    "cranio-caudal": "CC",
    "medio-lateral oblique": "MLO",
}
SAME = {"LL": LATERAL, "RL": LATERAL, "LAT": LATERAL, "LLAT": LATERAL, "RLAT": LATERAL, "LARGE LATERAL": LATERAL}
WORDS = {"AP": "AP", "PA": "PA", "LAT": LATERAL, "LATERAL": LATERAL, "LL": LATERAL}


def view_of(header: Mapping[str, str]) -> tuple[str, str]:
    """View of an image and how it was found.

    Args:
        header: texts by DICOM keyword, with ``ViewCode`` and ``ViewCodeMeaning``.

    Returns:
        the view (``AP``, ``PA``, ``LATERAL``, another ViewPosition as it stands, ``contradictory``, or ``""``) and
        the rule that gave it.

    >>> view_of({"ViewPosition": "", "ViewCodeMeaning": "postero-anterior"})
    ('PA', 'view code')
    >>> view_of({"ViewPosition": "AP", "ViewCode": "272479007"})
    ('contradictory', 'view position and view code differ')
    """
    position = _position(header.get("ViewPosition", ""))
    code = CODES.get(header.get("ViewCode", "")) or MEANINGS.get(header.get("ViewCodeMeaning", "").lower(), "")
    described = _described(f"{header.get('SeriesDescription', '')} {header.get('ProtocolName', '')}")
    if position and code and position != code and position in MEANINGS.values():
        return CONTRADICTORY, "view position and view code differ"
    if position:
        if described and described != position and position in MEANINGS.values():
            return position, "view position, against the description"
        return position, "view position"
    if code:
        return code, "view code"
    if described:
        return described, "description"
    return "", "missing"


def _position(text: str) -> str:
    upper = " ".join(text.upper().split())
    return SAME.get(upper, upper)


def _described(text: str) -> str:
    words = {WORDS[w] for w in re.findall(r"[A-Z]+", text.upper()) if w in WORDS}
    return words.pop() if len(words) == 1 else ""
