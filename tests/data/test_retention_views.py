"""The views: which there are, their pixels, their ids, and their way through loader and store."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from candor_monai.data.cohort import BOX_COLUMNS, Cohort
from candor_monai.data.cohorts import load_cohort
from candor_monai.data.decode_pool import DecodePool
from candor_monai.data.decoding import canonical, decode
from candor_monai.data.encode_loader import EncodeLoader
from candor_monai.data.feature_store import FeatureStore
from candor_monai.data.occlusion import boxes_in_image
from candor_monai.data.retention_views import RetentionViews
from candor_monai.handlers.feature_saver import FeatureSaver
from candor_monai.utils.errors import DecodeError, UserError
from tests.support import SHARED, needs_shared


@pytest.fixture(scope="module")
def pool():
    with DecodePool(workers=1, size=None) as shared:
        yield shared


def boxes(*rows: tuple) -> pd.DataFrame:
    return pd.DataFrame([(*row, None, None)[:8] for row in rows], columns=list(BOX_COLUMNS), dtype=object)


@pytest.fixture
def cohort(tmp_path: Path) -> Cohort:
    random = np.random.default_rng(0)
    for name in "abcd":
        Image.fromarray(random.integers(0, 256, (40, 30), dtype=np.uint8)).save(tmp_path / f"{name}.png")
    return Cohort.of(
        ["a", "b", "c", "d"],
        {"Mass": [1, 1, 0, 1], "Nodule": [1, 0, 0, 0]},
        root=tmp_path,
        images=[f"{name}.png" for name in "abcd"],
        patients=["p", "q", "r", None],
        boxes=boxes(
            ("a", "Mass", 2, 3, 5, 6),
            ("a", "Mass", 20, 30, 4, 4),
            ("a", "Nodule", 10, 10, 2, 2),
            ("b", "Mass", 13, 10, 4, 4),
            ("c", "Mass", 1, 1, 2, 2),
            ("d", "Mass", 4, 0, 24, 40),
            ("elsewhere", "Mass", 1, 1, 2, 2),
            ("b", "Other", 1, 1, 2, 2),
        ),
    )


def pixels_of(views: RetentionViews) -> dict[str, np.ndarray | DecodeError]:
    items = [(i, views.cohort.source(view.row)) for i, view in enumerate(views.views)]
    return {views.view_ids[index].rsplit(":", 1)[0]: pixels for index, pixels, _, _ in views.map(items)}


def test_by_hand(cohort: Cohort, pool: DecodePool):
    views = RetentionViews(cohort, pool, fill="zero", size=None)
    assert [view_id.rsplit(":", 1)[0] for view_id in views.view_ids] == [
        "a",
        "a#control:Mass",
        "a#occluded:Mass",
        "a#control:Nodule",
        "a#occluded:Nodule",
        "b",
        "b#control:Mass",
        "b#occluded:Mass",
        "d",
        "d#control:Mass",
        "d#occluded:Mass",
    ]
    assert dict(views.counts) == {
        "annotations used": 4,
        "annotations of images that are not positive": 1,
        "annotations of other findings": 1,
        "boxes of images that are not in the cohort": 1,
    }
    found = pixels_of(views)
    source = decode(cohort.path(0)).pixels
    np.testing.assert_array_equal(found["a"], canonical(source, None))
    expected = source.copy()
    expected[3:9, 2:7] = 0
    expected[30:34, 20:24] = 0
    np.testing.assert_array_equal(found["a#occluded:Mass"], canonical(expected, None))
    control = source.copy()
    control[3:9, 23:28] = 0
    control[30:34, 6:10] = 0
    np.testing.assert_array_equal(found["a#control:Mass"], canonical(control, None))
    assert found["d#control:Mass"].reason == "no_control"  # type: ignore[union-attr]


def test_covered_first_and_resized_after(cohort: Cohort, pool: DecodePool):
    views = RetentionViews(cohort, pool, size=16)
    source = decode(cohort.path(1)).pixels
    covered = source.copy()
    covered[10:14, 13:17] = np.rint(source.mean()).astype(np.uint8)
    np.testing.assert_array_equal(pixels_of(views)["b#occluded:Mass"], canonical(covered, 16))
    item = views[views.view_ids.index("b")]
    np.testing.assert_array_equal(item["image"].numpy(), canonical(source, 16))
    assert item["ok"]
    blank = views[next(i for i, v in enumerate(views.view_ids) if v.startswith("d#control"))]
    assert (blank["ok"], blank["image"].sum(), blank["image"].shape) == (False, 0, (3, 16, 16))


def test_ids_change_with_what_is_covered_and_only_then(cohort: Cohort, pool: DecodePool):
    def ids(**change) -> set[str]:
        parts = {name: change.pop(name) for name in ("boxes",) if name in change}
        import dataclasses

        return set(RetentionViews(dataclasses.replace(cohort, **parts), pool, **change).view_ids)

    first = ids()
    originals = {"a", "b", "d"}
    assert first == ids(boxes=cohort.boxes[::-1])
    for change in ({"fill": "zero"}, {"seed": 1}, {"masks": "box"}):
        assert first & ids(**change) == originals
    moved = cohort.boxes.copy()
    moved.loc[2, "x"] = 11  # the nodule of a: its own views and the control of the mass beside it
    assert {view.rsplit(":", 1)[0] for view in first - ids(boxes=moved)} == {
        "a#control:Mass",
        "a#control:Nodule",
        "a#occluded:Nodule",
    }


def test_each_image_is_decoded_once(cohort: Cohort, pool: DecodePool, monkeypatch: pytest.MonkeyPatch):
    views = RetentionViews(cohort, pool)
    seen = []
    decoded = pool.map

    def counted(items):
        def spied():
            for item in items:
                seen.append(item[1])
                yield item

        return decoded(spied())

    monkeypatch.setattr(pool, "map", counted)
    assert len(pixels_of(views)) == len(views) == 11
    assert len(seen) == 3


def test_the_parts_of_an_annotation_are_made_once(cohort: Cohort, pool: DecodePool, monkeypatch: pytest.MonkeyPatch):
    views = RetentionViews(cohort, pool, size=8)
    expected = pixels_of(views)
    made = []
    original = RetentionViews._pieces

    def counted(self, annotation, shape):
        made.append((annotation.row, annotation.finding))
        return original(self, annotation, shape)

    monkeypatch.setattr(RetentionViews, "_pieces", counted)
    found = pixels_of(views)
    assert sorted(made) == sorted(set(made))
    assert (0, "Nodule") in made  # which the control of the mass avoids
    for name, pixels in expected.items():
        if isinstance(pixels, DecodeError):
            assert (found[name].reason, str(found[name])) == (pixels.reason, str(pixels))
        else:
            np.testing.assert_array_equal(found[name], pixels)


def test_nothing_of_an_image_is_kept_while_the_next_is_waited_for(cohort: Cohort):
    """Neither its pixels nor, by the traceback of a view that cannot be made, what was computed from them."""
    alive = []

    class OneByOne:
        size = None

        def map(self, items):
            for indices, source, _ in items:
                gc.collect()
                assert [name for name, kept in alive if kept() is not None] == []
                pixels = np.repeat(decode(source).pixels[None], 3, axis=0)
                alive.append((source.name, weakref.ref(pixels)))
                yield indices, pixels, None, 0.0
                del pixels

    views = RetentionViews(cohort, OneByOne(), size=8)  # type: ignore[arg-type]
    errors = []
    for _, pixels, _, _ in views.map((i, cohort.source(view.row)) for i, view in enumerate(views.views)):
        errors += [pixels] if isinstance(pixels, DecodeError) else []
        del pixels
    assert [error.reason for error in errors] == ["no_control"]
    assert all(error.__traceback__ is None for error in errors)
    assert len(alive) == 3


def test_the_store_gets_each_view_once(cohort: Cohort, pool: DecodePool, tmp_path: Path):
    views = RetentionViews(cohort, pool, size=16)
    store = FeatureStore(tmp_path / "store", {"encoder": "pixels"})
    done = []
    for _ in range(2):
        records = views.records(store)
        loader = EncodeLoader(records, views, batch_size=4, image_size=16)
        saver = FeatureSaver(store, loader)
        for batch in loader:
            features = batch["image"].float().flatten(1) + 1
            saver.add(batch["index"].numpy(), batch["ok"].numpy(), features.numpy())
            done += [records.image_ids[i] for i in batch["index"].tolist() if i >= 0]
        saver.flush()
        store.refresh()
    assert sorted(done) == sorted(views.view_ids)  # the second round had nothing to do
    _, present = store.read(views.view_ids, views.sources())
    assert next(v for v, there in zip(views.view_ids, present, strict=True) if not there).startswith("d#control:Mass")
    assert present.sum() == 10
    rejected = store.rejections(views.view_ids, views.sources())
    assert rejected["reason"].tolist() == ["no_control"]


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_masks_are_decoded_and_covered(cohort: Cohort, pool: DecodePool, tmp_path: Path, dtype):
    import dataclasses

    mask = np.zeros((80, 60), dtype)  # twice the image's size
    mask[20:24, 10:20] = 1
    Image.fromarray(mask).save(tmp_path / "mask.tif")
    masks = pd.DataFrame({"image_id": ["b"], "finding": ["Nodule"], "path": ["mask.tif"]}, dtype=object)
    labels = cohort.labels.copy()
    labels[1, 1] = 1
    masked = dataclasses.replace(cohort, masks=masks, labels=labels)
    views = RetentionViews(masked, pool, findings=["Nodule"], fill="zero", size=None)
    index = next(i for i, view in enumerate(views.views) if view.kind == "occluded" and view.row == 1)
    expected = np.zeros((40, 30), bool)
    expected[10:12, 5:10] = True
    np.testing.assert_array_equal(views.covered(index, (40, 30)), expected)
    assert (pixels_of(views)["b#occluded:Nodule"][:, expected] == 0).all()
    (tmp_path / "mask.tif").write_bytes(b"nothing")
    broken = RetentionViews(masked, pool, findings=["Nodule"])
    assert pixels_of(broken)["b#occluded:Nodule"].reason == "unknown_format"  # type: ignore[union-attr]


def test_bad_boxes_cost_their_view_only(cohort: Cohort, pool: DecodePool):
    import dataclasses

    bad = dataclasses.replace(
        cohort,
        boxes=boxes(
            ("a", "Mass", 2, 3, 0, 6),
            ("b", "Mass", 100, 100, 4, 4),
            ("d", "Mass", 300, 300, 40, 40, 400, 400),
            ("a", "Nodule", 300, 5, 2, 2, 100, 100),
        ),
    )
    views = RetentionViews(bad, pool, size=16)
    found = pixels_of(views)
    reasons = {name: value.reason for name, value in found.items() if isinstance(value, DecodeError)}
    assert reasons == {
        "a#control:Mass": "box_empty",
        "a#occluded:Mass": "box_empty",
        "a#control:Nodule": "box_outside",
        "a#occluded:Nodule": "box_outside",
        "b#control:Mass": "box_out_of_frame",
        "b#occluded:Mass": "box_out_of_frame",
    }
    assert isinstance(found["d#occluded:Mass"], np.ndarray)
    good = dataclasses.replace(bad, boxes=boxes(("a", "Mass", 2, 3, 0, 6), ("a", "Nodule", 3, 5, 2, 2)))
    found = pixels_of(RetentionViews(good, pool, size=16))
    assert isinstance(found["a#control:Nodule"], np.ndarray)  # the other finding's empty box is nothing to avoid
    assert views.rescaled({3: (40, 30), 0: (40, 30)}) == 2


def test_what_cannot_be(cohort: Cohort, pool: DecodePool):
    with pytest.raises(UserError, match="fill='black'"):
        RetentionViews(cohort, pool, fill="black")
    with pytest.raises(UserError, match="size=None"):
        RetentionViews(cohort, DecodePool(size=224))
    with pytest.raises(UserError, match="no positive image has a box"):
        RetentionViews(cohort, pool, findings=["Effusion"])


@needs_shared
def test_real_boxes_are_in_the_publishers_frame(pool: DecodePool):
    cohort = load_cohort("nih_cxr", SHARED / "nih_cxr")
    views = RetentionViews(cohort, pool)
    assert views.counts["annotations used"] > 0
    items = [(i, cohort.source(v.row)) for i, v in enumerate(views.views)]
    shapes = {}
    for index, pixels, meta, _ in views.map(items):
        assert isinstance(pixels, np.ndarray), (views.view_ids[index], pixels)
        shapes[views.views[index].row] = (meta.rows, meta.columns)
    assert set(shapes.values()) == {(256, 256)}
    assert views.rescaled(shapes) == sum(len(a.boxes) for a in views._plan.annotations.values())
    annotation = next(iter(views._plan.annotations.values()))
    inside = boxes_in_image(annotation.boxes, annotation.frames, (256, 256))
    np.testing.assert_allclose(inside, annotation.boxes / 4)


def test_an_example_for_figures(cohort: Cohort, pool: DecodePool):
    views = RetentionViews(cohort, pool, size=32)
    example = views.example("Mass", 0)
    assert set(example) == {"original", "occluded", "control"}
    found = pixels_of(views)
    np.testing.assert_array_equal(example["occluded"], found["a#occluded:Mass"])
    assert isinstance(views.example("Mass", 3)["control"], DecodeError)
