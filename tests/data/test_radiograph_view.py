"""The view of a radiograph: the stated rule, case by case."""

from __future__ import annotations

import pytest

from candor_monai.data.radiograph_view import view_of


@pytest.mark.parametrize(
    "header, expected",
    [
        ({}, ("", "missing")),
        ({"ViewPosition": "ap"}, ("AP", "view position")),
        ({"ViewPosition": "LL"}, ("LATERAL", "view position")),
        ({"ViewPosition": "AP_horizontal"}, ("AP_HORIZONTAL", "view position")),
        ({"ViewCode": "R-10206"}, ("AP", "view code")),
        ({"ViewCode": "272479007", "ViewCodeMeaning": "postero-anterior"}, ("PA", "view code")),
        ({"ViewPosition": "PA", "ViewCodeMeaning": "postero-anterior"}, ("PA", "view position")),
        ({"ViewPosition": "PA", "ViewCodeMeaning": "antero-posterior"}, ("contradictory", None)),
        ({"SeriesDescription": "CHEST AP PORTABLE"}, ("AP", "description")),
        ({"SeriesDescription": "CHEST PA AND LAT"}, ("", "missing")),
        ({"SeriesDescription": "CAP"}, ("", "missing")),
        ({"ViewPosition": "PA", "SeriesDescription": "Chest AP"}, ("PA", "view position, against the description")),
    ],
)
def test_rule(header, expected):
    view, rule = view_of(header)
    assert view == expected[0]
    assert expected[1] in (None, rule)
