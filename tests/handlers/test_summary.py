"""The table on the terminal."""

from candor_monai.handlers.summary import summary


def test_names_do_not_break_the_table():
    rows = [
        {"level": "finding", "finding": "Ede\nma \x1b[31m", "status": "ok", "D": 0.25, "n_queries": 8},
        {"level": "finding", "finding": "Mass", "status": "insufficient", "reason": "group a\nb: none", "D": None},
    ]
    header, *lines = summary(rows).split("\n")
    assert lines[0].startswith("Ede\\nma \\x1b[31m  0.250")
    assert header.index("D ") == lines[0].index("0.250")
    assert lines[1] == "Mass: insufficient: group a\\nb: none"
