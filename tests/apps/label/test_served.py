"""Reservations and marks: one image by hand, clocks, two processes' views, threads, torn journals."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from candor_monai.apps.label import served as module
from candor_monai.apps.label.served import Served
from candor_monai.utils import UserError

RANKING = [f"image {i}" for i in range(400)]


class Clock:
    def __init__(self, now: float = 1_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def _ids(served: Served, strategy: str, number: int, client: str | None = None) -> list[str | None]:
    marks = [served.take(strategy, RANKING, client) for _ in range(number)]
    return [mark and mark.image_id for mark in marks]


def test_by_hand(tmp_path: Path) -> None:
    clock = Clock()
    served = Served(tmp_path / "served.jsonl", 100, 1000, clock)
    assert _ids(served, "s", 2, "a") == ["image 0", "image 1"]
    assert _ids(served, "s", 1, "b") == ["image 2"]
    assert _ids(served, "other", 1, "b") == ["image 2"]  # b's own reservation does not hide it from b
    assert _ids(served, "other", 1, "c") == ["image 3"]  # a's and b's do hide theirs from c
    last = served.last("image 2", "b")
    assert last is not None
    assert (last.strategy, last.at) == ("other", clock.now)
    assert served.last("image 2", "a") is None
    assert served.last("image 9") is None


def test_nothing_left(tmp_path: Path) -> None:
    served = Served(tmp_path / "served.jsonl")
    assert served.take("s", ["a"]) is not None
    assert served.take("s", ["a"]) is None
    assert served.take("s", []) is None
    assert served.reset("s") == 1
    assert served.take("s", ["a"]) is None  # reserved for somebody without a name
    served.release("a")
    assert served.take("s", ["a"]) is not None


def test_reset_keeps_what_somebody_is_reading(tmp_path: Path) -> None:
    served = Served(tmp_path / "served.jsonl")
    served.take("s", ["a", "b"], "1")
    served.take("t", ["b"], "1")
    assert served.reset("s") == 1
    assert served.blocked("s", "2") == {"a", "b"}
    assert served.blocked("s", "1") == set()
    assert served.reset() == 1
    assert served.reset() == 0


@pytest.mark.parametrize(("later", "free"), [(99, set()), (100, {"other"}), (999, {"other"}), (1000, {"other", "s"})])
def test_expiry(tmp_path: Path, later: float, free: set[str]) -> None:
    clock = Clock()
    served = Served(tmp_path / "served.jsonl", 100, 1000, clock)
    served.take("s", ["a"], "1")
    clock.now += later
    assert {name for name in ("s", "other") if not served.blocked(name, "2")} == free


def test_a_clock_that_is_set_back_blocks_nothing_for_days(tmp_path: Path) -> None:
    clock = Clock()
    served = Served(tmp_path / "served.jsonl", 100, 1000, clock)
    served.take("s", ["a"], "1")
    clock.now -= 30  # small differences between machines are none
    assert served.blocked("s", "2") == {"a"}
    clock.now -= 86400
    assert served.blocked("s", "2") == set()
    served.take("s", ["b"], "1")
    assert Served(served.path, 100, 1000, clock).blocked("s", "2") == {"b"}


def test_a_clock_set_back_in_one_of_two_processes(tmp_path: Path) -> None:
    right, wrong = Clock(), Clock(2_000_000.0)
    one, two = (Served(tmp_path / "served.jsonl", 100, 1000, clock) for clock in (right, wrong))
    one.take("s", ["a"], "1")
    two.take("s", ["b"], "1")
    assert one.blocked("s", "2") == {"a"}


def test_a_restart_and_a_second_process_see_the_same(tmp_path: Path) -> None:
    one, two = (Served(tmp_path / "served.jsonl") for _ in range(2))
    assert _ids(one, "s", 3, "1") == RANKING[:3]
    assert _ids(two, "s", 2, "2") == RANKING[3:5]
    assert _ids(one, "s", 1, "1") == RANKING[5:6]
    one.release(RANKING[0])
    assert RANKING[0] not in two.blocked("t", "3")
    assert RANKING[1] in two.blocked("t", "3")
    two.reset("s")
    assert _ids(one, "s", 1, "1") == RANKING[:1]
    fresh = Served(tmp_path / "served.jsonl")
    assert fresh.blocked("s", "9") == one.blocked("s", "9") == two.blocked("s", "9")


def test_torn_and_foreign_lines(tmp_path: Path) -> None:
    path = tmp_path / "served.jsonl"
    served = Served(path)
    served.take("s", RANKING, "1")
    with open(path, "ab") as file:
        file.write(b'not a step\n{"serve": 3}\n[]\n{"serve":"image 1","strat')
    fresh = Served(path)
    assert _ids(fresh, "s", 2, "2") == ["image 1", "image 2"]
    again = Served(path)
    assert again.blocked("s", "3") == {"image 0", "image 1", "image 2"}
    assert again.skipped_lines == 4


def test_the_journal_is_written_anew_and_says_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SPARE_LINES", 20)
    clock = Clock()
    one, other = (Served(tmp_path / "served.jsonl", 100, 1000, clock) for _ in range(2))
    for number in range(300):
        clock.now += 10
        mark = one.take("st"[number % 2], RANKING, str(number % 3))
        assert mark is not None
        if number % 3 == 0:
            one.release(mark.image_id)
        for client in ("0", "9"):
            assert one.blocked("s", client) == other.blocked("s", client)
            assert one.blocked("t", client) == other.blocked("t", client)
    assert len(one.path.read_bytes().splitlines()) < 300
    fresh = Served(one.path, 100, 1000, clock)
    assert fresh.blocked("s", "0") == one.blocked("s", "0") != set()
    assert fresh.skipped_lines == 0


def test_eight_threads_never_get_the_same_image(tmp_path: Path) -> None:
    served = [Served(tmp_path / "served.jsonl") for _ in range(2)]  # two processes' worth
    got: list[str] = []

    def work(number: int) -> None:
        for _ in range(40):
            mark = served[number % 2].take("s", RANKING, f"client {number}")
            assert mark is not None
            got.append(mark.image_id)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 320
    assert sorted(got) == sorted(RANKING[:320])


def test_a_journal_that_is_gone(tmp_path: Path) -> None:
    served = Served(tmp_path / "served.jsonl")
    served.take("s", RANKING)
    served.path.unlink()
    assert _ids(served, "s", 1) == ["image 0"]


@pytest.mark.parametrize("seconds", [-1, float("inf"), float("nan")])
def test_bad_seconds(tmp_path: Path, seconds: float) -> None:
    with pytest.raises(UserError, match="seconds"):
        Served(tmp_path / "served.jsonl", reserve_seconds=seconds)
