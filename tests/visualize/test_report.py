from __future__ import annotations

import base64
import copy
import hashlib
import html.parser
import re

import pandas as pd
import pytest

from candor_monai.visualize.report import write_report

from . import synthetic

VOID = {"meta", "link", "br", "input", "img"}


class Page(html.parser.HTMLParser):
    """Tags, attributes and text of a page; complains when elements are not closed in order."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.tags, self.attributes, self.stack, self.texts = [], [], [], []
        self.feed(text)
        assert not self.stack, self.stack

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag, (tag, self.stack)

    def handle_data(self, data):
        if self.stack and self.stack[-1] not in ("style", "script"):
            self.texts.append(data)

    @property
    def text(self):
        return re.sub(r"\s+", " ", " ".join(self.texts))


def write(tmp_path, document, images=True, **more):
    frames = more.pop("frames", None) or synthetic.frames(document)
    more.setdefault("features", synthetic.features)
    path = tmp_path / "report.html"
    write_report(
        path, document, frames["queries"], frames["candidates"], frames["rejected"], synthetic.thumbnail, images, **more
    )
    return path.read_text(encoding="utf-8")


def test_one_encoder(tmp_path):
    text = write(tmp_path, synthetic.one_encoder())
    page = Page(text)
    assert "RAD-DINO is better than chance for Infiltration and Edema" in page.text
    assert "611 images in = 605 scored + 6 left out." in page.text
    assert "3 positive patients: fewer than k + 1 = 6" in page.text
    assert page.text.count("Nearest without the finding") == 9  # 3 examples of each finding but Hernia
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


@pytest.mark.parametrize("tested", [True, False])
@pytest.mark.parametrize("compared", [True, False])
def test_three_encoders(tmp_path, tested, compared):
    page = Page(write(tmp_path, synthetic.three_encoders(tested, compared)))
    assert ("separates the 4 findings of task chest best of 3 encoders" in page.text) == (tested)
    assert ("Agreement and overlap" in page.text) == compared
    assert "31 % of the queries tie" in page.text
    assert "2 images have identical pixels" in page.text


def test_ids_are_unique_and_links_lead_somewhere(tmp_path):
    page = Page(write(tmp_path, synthetic.three_encoders()))
    ids = [value for _, name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    targets = [value[1:] for _, name, value in page.attributes if name == "href" and value.startswith("#")]
    assert set(targets) <= set(ids)
    assert {value for _, name, value in page.attributes if name in ("data-for", "aria-labelledby")} <= set(ids)


def test_every_picture_has_an_alternative(tmp_path):
    page = Page(write(tmp_path, synthetic.three_encoders()))
    drawn = [a for tag, name, a in page.attributes if tag == "svg" and name == "class"]
    named = [a for tag, name, a in page.attributes if tag == "svg" and name in ("aria-label", "aria-labelledby")]
    hidden = [a for tag, name, a in page.attributes if tag == "svg" and name == "aria-hidden"]
    assert len(drawn) == len(named) + len(hidden)
    assert all(named)


def test_nothing_is_asked_of_a_network(tmp_path):
    page = Page(write(tmp_path, synthetic.three_encoders()))
    for tag, name, value in page.attributes:
        if name in ("src", "href", "srcset", "action", "data", "poster", "background"):
            assert value.startswith(("#", "data:")), (tag, name, value)
        assert not name.startswith("on"), (tag, name)
        assert name != "style", (tag, value)  # the policy forbids it


def test_the_policy_allows_just_this_style_and_script(tmp_path):
    text = write(tmp_path, synthetic.one_encoder())
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert policy.startswith("default-src 'none'; img-src data:;")
    for tag in ("style", "script"):
        (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.S)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy


def test_markup_in_any_text_stays_text(tmp_path):
    document = synthetic.three_encoders()
    document["discordance"] += synthetic.one_encoder()["discordance"][-5:-1]  # with what is not estimable
    frames = synthetic.frames(document)
    harmless = Page(write(tmp_path, document, frames=frames))
    nasty = {
        name: frame.map(lambda v: v + synthetic.SCRIPT if isinstance(v, str) else v) for name, frame in frames.items()
    }
    for encoder, hostile in zip(document["encoders"], synthetic.hostile(document)["encoders"], strict=True):
        assert hostile["name"] == encoder["name"] + synthetic.SCRIPT
    text = write(
        tmp_path,
        synthetic.hostile(document),
        frames=nasty,
        features=lambda name, ids: synthetic.features(
            name.removesuffix(synthetic.SCRIPT), [i.removesuffix(synthetic.SCRIPT) for i in ids]
        ),
    )
    assert text.count("&lt;script&gt;") > 500
    page = Page(text)
    assert page.tags.count("script") == harmless.tags.count("script") == 1
    assert sorted(set(page.tags)) == sorted(set(harmless.tags))


def test_a_name_does_not_turn_the_sentence_around_it(tmp_path):
    document = synthetic.three_encoders()
    document["encoders"][0]["title"] = "An encoder \u202e whose name \u2067 turns"
    text = write(tmp_path, document)
    assert "An encoder \u27e8U+202E\u27e9 whose name \u27e8U+2067\u27e9 turns" in text
    assert not {"\u202e", "\u2067"} & set(text)


def test_patients_do_not_appear(tmp_path):
    document = synthetic.three_encoders()
    frames = synthetic.frames(document)
    people = {str(p) for name in ("queries", "candidates") for p in frames[name]["patient"]}
    assert len(people) == 24
    text = write(tmp_path, document, frames=frames)
    assert not [p for p in people if p in text]


def test_pictures_can_be_turned_off(tmp_path):
    def refuse(image_id):
        raise AssertionError("no picture may be read")

    document = synthetic.one_encoder()
    frames = synthetic.frames(document)
    path = tmp_path / "report.html"
    write_report(
        path, document, frames["queries"], frames["candidates"], frames["rejected"], refuse, False,
        features=synthetic.features,
    )  # fmt: skip
    text = path.read_text()
    assert "data:image" not in text
    assert "Pictures are turned off" in text
    assert "Nearest without the finding" in text


def test_without_features_the_page_says_that_neighbours_are_missing(tmp_path):
    text = write(tmp_path, synthetic.one_encoder(), features=None)
    assert "The neighbours are not shown" in text
    assert "Nearest without the finding" not in text


def test_pictures_that_cannot_be_read_are_told(tmp_path):
    document = synthetic.one_encoder()
    frames = synthetic.frames(document)
    path = tmp_path / "report.html"
    write_report(path, document, frames["queries"], frames["candidates"], frames["rejected"], lambda image_id: None)
    assert "no picture" in path.read_text()


def test_neighbours_that_do_not_give_the_margin_are_owned_up_to(tmp_path):
    document = synthetic.one_encoder()
    assert "differs from the recorded one" not in write(tmp_path, document)
    frames = synthetic.frames(document)
    frames["queries"]["c_neg"] += 1e-4
    assert "differs from the recorded one" in write(tmp_path, document, frames=frames)


@pytest.mark.parametrize("count", [0, 1, 5])
def test_number_of_examples(tmp_path, count):
    document = synthetic.one_encoder()
    queries = synthetic.frames(document)["queries"]
    expected = queries[queries["discordant"]].drop_duplicates(["finding", "patient"]).groupby("finding").size()
    text = write(tmp_path, document, examples=count)
    assert text.count('class="ex"') == sum(min(count, n) for n in expected)


def test_empty_run(tmp_path):
    document = synthetic.one_encoder()
    keep = {"encoder", "task", "finding", "group", "level"}
    document["discordance"] = [
        {key: value if key in keep else None for key, value in row.items()}
        | {"status": "insufficient", "reason": "none"}
        for row in document["discordance"]
    ]
    document["accounting"] = {"images_in": 0, "scored": 0, "rejected": 0, "rejected_by_reason": {}}
    page = Page(write(tmp_path, document, frames={n: pd.DataFrame() for n in ("queries", "candidates", "rejected")}))
    assert "No query was scored" in page.text
    assert "Nothing was left out." in page.text


@pytest.mark.parametrize("kept", ["encoders", "cohort"])
def test_optional_keys_may_all_be_missing(tmp_path, kept):
    document = copy.deepcopy(synthetic.three_encoders(compared=False))
    if kept != "encoders":
        document["encoders"] = [{"name": card["name"]} for card in document["encoders"]]
    if kept != "cohort":
        document["cohort"] = {"name": "c"}
    document |= {"run": {}, "versions": {}, "options": {}, "timings": {}}
    required = {"encoder", "task", "finding", "group", "level", "status", "reason"}
    document["discordance"] = [
        {k: v for k, v in row.items() if k in required or v is not None} for row in document["discordance"]
    ]
    page = Page(write(tmp_path, document))
    assert "None" not in page.text
    assert "undefined" not in page.text.lower()


@pytest.mark.parametrize(
    "column", ["D_lo", "D_total_lo", "D_all", "margin_auroc", "chance", "n_candidates", "p_chance"]
)
def test_any_number_may_be_undefined(tmp_path, column):
    document = copy.deepcopy(synthetic.three_encoders())
    for row in document["discordance"]:
        row[column] = None
    assert "None" not in Page(write(tmp_path, document)).text


def test_accounts_that_do_not_add_up_are_shouted(tmp_path):
    document = synthetic.one_encoder()
    assert "do not add up" not in write(tmp_path, document)
    document["accounting"]["scored"] = 604
    assert "do not add up" in write(tmp_path, document)


def test_image_sets_are_explained_otherwise(tmp_path):
    document = synthetic.one_encoder()
    assert "Each patient counts at most once a side" in write(tmp_path, document)
    document["options"]["sets"] = "image"
    assert "This run drew images, not patients" in write(tmp_path, document)


def test_lists_of_files_are_cut(tmp_path):
    document = synthetic.one_encoder()
    document["accounting"] |= {"images_in": 705, "rejected": 100, "rejected_by_reason": {"truncated": 100}}
    frames = synthetic.frames(document)
    text = write(tmp_path, document, frames=frames)
    assert "20 files of 100; all are in rejected.csv" in text
    assert text.count("images/bad0_") == 20


def test_long_ids_do_not_break_the_limit(tmp_path):
    document = synthetic.three_encoders()
    frames = synthetic.frames(document)
    for name in ("queries", "candidates"):
        frames[name]["image_id"] = frames[name]["image_id"] + "&" * 300  # each is five bytes in the page
    text = write(tmp_path, document, frames=frames, images=False, features=lambda e, i: synthetic.features(e, i))
    assert text.count('class="ex"') == 36
    text = write(tmp_path, document, frames=frames, images=False, max_bytes=900_000)
    assert len(text.encode()) <= 900_000
    assert 0 < text.count('class="ex"') < 36


def test_the_whole_study_stays_below_its_size(tmp_path):
    document = synthetic.whole_study(classes=True)
    frames = synthetic.frames(document, per_side=7)
    text = write(tmp_path, document, frames=frames, max_bytes=6_000_000)
    assert 5_000_000 < len(text.encode()) < 6_000_000
    page = Page(text)
    assert re.search(r"[\d,]+ of [\d,]+ examples are shown, to keep the page below its size limit", page.text)
    assert page.tags.count("symbol") > 500


@pytest.mark.parametrize("encoders", [1, 3])
def test_findings_that_cannot_be_pooled(tmp_path, encoders):
    page = Page(write(tmp_path, synthetic.two_views(encoders)))
    assert "Edema view AP only" in page.text
    assert "Edema (view PA)" in page.text
    assert "2 positive patients: fewer than k + 1 = 6" in page.text
    assert "findings without a value: Edema" in page.text
    assert "None" not in page.text


def test_negative_queries_are_no_examples(tmp_path):
    document = synthetic.one_encoder()
    frames = synthetic.frames(document)
    frames["queries"]["label"] = 0
    assert "No query was scored" in write(tmp_path, document, frames=frames)


def test_further_measures_are_shown(tmp_path):
    document = synthetic.three_encoders()
    document["retention"] = [
        {"encoder": "rad_dino", "task": "chest", "finding": "Pneumonia", "retention": 0.62, "control": 0.71}
    ]
    page = Page(write(tmp_path, document))
    assert "How much of a feature is left" in page.text
    assert "0.620" in page.text
    assert "Paired differences" in page.text


def test_places_on_a_disk_do_not_appear(tmp_path):
    document = synthetic.one_encoder()
    document["options"] |= {"output_dir": "/home/somebody/eval", "weights_dir": "C:\\Users\\somebody\\weights"}
    text = write(tmp_path, document)
    assert "somebody" not in text
    assert "…/eval" in text
    assert "…/weights" in text


def test_what_is_not_tested_is_listed_with_its_reason(tmp_path):
    document = synthetic.three_encoders()
    for row in document["discordance"]:
        if row["finding"] == "Edema":
            row |= {"p_chance": None, "q_chance": None, "chance_reason": "61 % of the positives can move"}
    assert "no permutation test: 61 % of the positives can move" in Page(write(tmp_path, document)).text


def test_example_occlusions(tmp_path):
    pixels = synthetic.thumbnail("x")
    example = {"finding": "Mass", "image_id": "x/<b>.png", "original": pixels, "occluded": pixels, "control": None}
    example |= {"retention": 0.61, "control_retention": None}
    text = write(tmp_path, synthetic.one_encoder(), occlusions=[example])
    page = Page(text)
    assert "finding covered: similarity 0.610" in page.text
    alternatives = [value for tag, name, value in page.attributes if (tag, name) == ("img", "alt")]
    assert alternatives == [
        "image x/<b>.png, Mass, as it is",
        "image x/<b>.png, Mass, finding covered: similarity 0.610",
    ]
    assert "finding covered" not in write(tmp_path, synthetic.one_encoder(), False, occlusions=[example])
