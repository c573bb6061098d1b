"""Made-up results in the form of results.json, with every kind of gap, for the tests of the report."""

from __future__ import annotations

import hashlib
import math
from functools import cache
from typing import Any

import numpy as np
import pandas as pd

CHEST = [
    "Pneumothorax",
    "Pneumonia",
    "Consolidation",
    "Edema",
    "Lung_Lesion",
    "Pleural_Effusion",
    "Fracture",
    "Cardiomegaly",
    "Lung_Opacity",
    "Enlarged_Cardiomediastinum",
    "Atelectasis",
    "Pleural_Other",
]
TITLES = [
    "RAD-DINO",
    "DenseNet-121 XRV",
    "BiomedCLIP",
    "DINOv3-S",
    "DINOv3-B",
    "DINOv3-L",
    "DINOv3-H+",
    "SigLIP-2-L",
    "CLIP-L/14",
    "DINOv2-L",
    "Random ViT-L",
    "Phikon-v2",
    "UNI",
    "UNI2",
    "Virchow",
    "Virchow2",
    "Prov-GigaPath",
    "CONCH",
    "RETFound",
    "FLAIR",
    "MONET",
    "DermLIP",
]
CARDS = {  # names of the cards that are not simply the title
    "DenseNet-121 XRV": "densenet121_xrv",
    "DINOv3-H+": "dinov3_h_plus",
    "SigLIP-2-L": "siglip2_l",
    "CLIP-L/14": "clip_l14",
}
SCRIPT = "<script>alert('x')</script>"


def random(*key: object) -> np.random.Generator:
    """A generator that depends on the key alone."""
    return np.random.default_rng(int.from_bytes(hashlib.blake2b(repr(key).encode(), digest_size=8).digest(), "big"))


def encoder(title: str, **more: Any) -> dict[str, Any]:
    name = CARDS.get(title, title.lower().replace("-", "_").replace(" ", "_"))
    untrained = title.startswith("Random")
    return {
        "name": name,
        "title": title,
        "dimension": 1024,
        "parameters": 303_000_000,
        "objective": "untrained" if untrained else "self-supervised",
        "year": None if untrained else 2024,
        "licence": None if untrained else "MIT",
        "trained": not untrained,
        "trained_on": None
        if untrained
        else ["MIMIC-CXR", "CheXpert", "NIH ChestX-ray14"]
        if title == "RAD-DINO"
        else [],
        "fingerprint": {"weights_sha256": "ab" * 32, "feature_point": "cls", "precision": "float32"},
        **more,
    }


def cell(
    name: str,
    task: str,
    finding: str,
    group: str | None,
    level: str,
    quality: float,
    n_positive: int,
    tested: bool = True,
) -> dict[str, Any]:
    """One row of discordance.csv: ``quality`` 0 is no better than chance, 1 perfect."""
    rng = random(name, task, finding, group, level)
    n_negative = int(n_positive * rng.uniform(1.5, 9)) + 2
    base: dict[str, Any] = {
        "encoder": name,
        "task": task,
        "finding": finding,
        "group": group,
        "level": level,
        "n_images": n_positive + n_negative,
        "n_positive": n_positive,
        "n_negative": n_negative,
        "sets": "patient",
        "queries": "all",
        "n_pos_patients": max(1, int(n_positive * 0.8)),
        "max_patient_share": round(1 / max(n_positive, 1), 4),
        "status": "ok",
        "reason": None,
    }
    empty = (
        "n_candidates",
        "n_queries",
        "clusters",
        "D",
        "D_sd",
        "D_lo",
        "D_hi",
        "D_total_lo",
        "D_total_hi",
        "D_mid",
        "D_common",
        "n_common",
        "tie_rate",
        "chance",
        "chance_null",
        "chance_null_sd",
        "chance_upper",
        "p_chance",
        "q_chance",
        "D_all",
        "D_all_sd",
        "D_all_lo",
        "D_all_hi",
        "margin_auroc",
        "margin_auroc_sd",
        "margin_auroc_lo",
        "margin_auroc_hi",
    )
    base.update(dict.fromkeys(empty))
    if n_positive < 6:
        return base | {"status": "insufficient", "reason": f"{n_positive} positive patients: fewer than k + 1 = 6"}
    queries = min(n_positive, 4000)
    d = round(queries * float(np.clip(0.5 * (1 - quality) + rng.normal(0, 0.02), 0, 1))) / queries
    sd = math.sqrt(max(d * (1 - d), 0.002) / queries)
    d_all = min(1.0, d + 0.45 * (1 - n_positive / (n_positive + n_negative)))
    auroc = float(np.clip(1 - d + rng.normal(0, 0.02), 0, 1))
    base |= {
        "n_candidates": max(6, int(n_positive * 0.8)),
        "n_queries": queries,
        "clusters": max(1, int(queries * 0.8)),
        "D": d,
        "D_sd": sd,
        "D_lo": max(0.0, d - 1.96 * sd),
        "D_hi": min(1.0, d + 1.96 * sd),
        "D_mid": d,
        "D_common": min(1.0, d + 0.03),
        "n_common": 20,
        "tie_rate": 0.0,
        "chance": 0.5,
        "D_all": d_all,
        "D_all_sd": sd,
        "D_all_lo": max(0.0, d_all - 1.96 * sd),
        "D_all_hi": min(1.0, d_all + 1.96 * sd),
        "margin_auroc": auroc,
        "margin_auroc_sd": sd,
        "margin_auroc_lo": max(0.0, auroc - 2 * sd),
        "margin_auroc_hi": min(1.0, auroc + 2 * sd),
    }
    if tested:
        p = math.erfc(abs(d - 0.5) / (1.6 * sd) / math.sqrt(2))
        base |= {
            "D_total_lo": max(0.0, d - 1.96 * 1.6 * sd),
            "D_total_hi": min(1.0, d + 1.96 * 1.6 * sd),
            "chance_null": 0.497,
            "chance_null_sd": 1.3 * sd,
            "p_chance": max(p, 2e-4),
            "q_chance": min(1.0, max(p * 1.3, 3e-4)),
        }
    return base


def results(
    encoders: list[dict[str, Any]],
    tasks: dict[str, tuple[str, ...]],
    groups: tuple[str, ...] = ("view=AP", "view=PA"),
    tested: bool = True,
    sizes: tuple[int, ...] = (620, 55, 14, 3),
    compared: bool = True,
) -> dict[str, Any]:
    """Results of every encoder on every finding of every task; sizes are the positives of the findings, in turn."""
    rows = []
    for place, card in enumerate(encoders):
        quality = 0.0 if card["trained"] is False else 0.45 - 0.35 * place / max(1, len(encoders) - 1)
        for task, findings in tasks.items():
            pooled = []
            for index, finding in enumerate(findings):
                n = sizes[index % len(sizes)]
                parts = [
                    cell(card["name"], task, finding, group, "group", quality, n // (g + 1), tested)
                    for g, group in enumerate(groups)
                ]
                total = cell(card["name"], task, finding, None, "finding", quality, n, tested)
                total["n_common"] = total["D_common"] = None
                rows += [*parts, total]
                pooled.append(total)
            lacking = [p["finding"] for p in pooled if p["D"] is None]
            whole = cell(card["name"], task, "all", None, "task", quality, sum(p["n_positive"] for p in pooled), tested)
            whole["finding"] = None
            if lacking:
                keep = ("encoder", "task", "finding", "group", "level", "n_images", "n_positive", "n_negative")
                whole = {key: whole[key] if key in keep else None for key in whole}
                whole |= {"status": "insufficient", "reason": f"not estimable for {', '.join(lacking)}"}
            rows.append(whole)
    document: dict[str, Any] = {
        "schema_version": 1,
        "run": {"id": "candor_eval", "started": "2026-11-02T09:30:00+00:00", "device": "cpu"},
        "versions": {"candor_monai": "0.1.0", "monai": "1.6.1", "torch": "2.14.1"},
        "cohort": {
            "name": "nih_cxr",
            "title": "NIH ChestX-ray14 (part)",
            "fingerprint": "c0ffee" * 8,
            "n_images": 605,
            "patients": 412,
            "match_on": ["view"],
            "groups": [{"group": g, "n_images": 300} for g in groups],
            "findings": sorted({f for fs in tasks.values() for f in fs}),
            "labels": [
                {"finding": f, "positive": 55, "negative": 281, "uncertain": 4, "unlabelled": 0}
                for f in sorted({f for fs in tasks.values() for f in fs})
            ],
            "policy": {"uncertain": "exclude", "blank": "negative"},
            "counts": {"duplicate rows": 0, "files without a row": 3},
        },
        "encoders": encoders,
        "options": {"k": 5, "seed": 42, "sets": "patient", "queries": "all", "max_candidates": 4000, "resamples": 1000},
        "timings": {"decode": 3.2, "encode": 41.0, "score": 2.5},
        "accounting": {
            "images_in": 611,
            "scored": 605,
            "rejected": 6,
            "rejected_by_reason": {"truncated": 4, "constant_image": 1, "odd_reason": 1},
        },
        "discordance": rows,
        "warnings": [],
    }
    if compared and len(encoders) > 1:
        document |= comparisons(document, list(tasks))
    return document


def comparisons(document: dict[str, Any], tasks: list[str]) -> dict[str, Any]:
    """The parts that compare encoders, made from the pooled rows."""
    ranking, pairs, overlap, agreement = [], [], [], []
    for task in tasks:
        rows = [r for r in document["discordance"] if r["task"] == task and r["level"] == "task" and r["D"] is not None]
        rows.sort(key=lambda row: row["D"])
        for rank, row in enumerate(rows, 1):
            close = row["D"] - rows[0]["D"] < 0.03
            ranking.append(
                {"task": task, "finding": None, "encoder": row["encoder"], "rank": rank, "D": row["D"]}
                | {"not_worse_than_best": close, "p_best": 0.001 if rank == 1 else None}
            )
        for i, a in enumerate(rows):
            for b in rows[i + 1 :]:
                pairs.append(
                    {"task": task, "finding": None, "encoder_a": a["encoder"], "encoder_b": b["encoder"]}
                    | {"difference": a["D"] - b["D"], "lo": a["D"] - b["D"] - 0.03, "hi": a["D"] - b["D"] + 0.03}
                    | {"p": 0.01, "q": 0.02}
                )
        names = [card["name"] for card in document["encoders"]]
        for i, a in enumerate(names):
            for b in names[i + 1 :]:
                value = float(random(task, a, b).uniform(-0.05, 0.35))
                overlap.append(
                    {"task": task, "finding": None, "encoder_a": a, "encoder_b": b}
                    | {"delta_jaccard": None if (a, b) == (names[0], names[-1]) else value, "p": 0.01, "q": 0.02}
                )
        measures = ["D", "D_all", "margin_auroc", "head_auroc", "logme"]
        for i, a in enumerate(measures):
            for b in measures[i + 1 :]:
                agreement.append(
                    {"task": task, "finding": None, "measure_a": a, "measure_b": b}
                    | {"spearman": 0.85 if (a == "D") != (b == "D_all") else -0.2, "p": 0.004, "n_encoders": len(names)}
                )
    return {"ranking": ranking, "comparisons": pairs, "overlap": overlap, "agreement": agreement}


def one_encoder(tested: bool = True) -> dict[str, Any]:
    return results([encoder("RAD-DINO")], {"chest": ("Infiltration", "Edema", "Pneumonia", "Hernia")}, tested=tested)


def three_encoders(tested: bool = True, compared: bool = True) -> dict[str, Any]:
    """Three encoders on four findings; one of them ties on Edema."""
    document = results(
        [encoder("RAD-DINO"), encoder("DINOv3-S"), encoder("Random ViT-L")],
        {"chest": ("Infiltration", "Edema", "Pneumonia", "Effusion")},
        tested=tested,
        sizes=(620, 55, 220, 30),
        compared=compared,
    )
    for row in document["discordance"]:
        if (row["encoder"], row["finding"]) == ("random_vit_l", "Edema"):
            row |= {"status": "tied", "tie_rate": 0.31, "chance": 0.345, "reason": "31 % of the queries tie"}
    document["warnings"] = ["2 images have identical pixels and contradictory labels for Edema"]
    return document


def two_views(encoders: int = 1, tested: bool = True) -> dict[str, Any]:
    """As real data often are: Edema has two positive patients in one of the views, so it has no pooled number."""
    cards = [encoder(title) for title in TITLES[:encoders]]
    document = results(cards, {"chest": ("Infiltration", "Edema")}, tested=tested, sizes=(124, 55), compared=False)
    for row in document["discordance"]:
        lost = None
        if row["finding"] == "Edema" and row["group"] == "view=PA":
            lost = {"status": "insufficient", "reason": "2 positive patients: fewer than k + 1 = 6", "n_positive": 2}
        elif row["finding"] == "Edema" and row["level"] == "finding":
            lost = {"status": "incomplete", "reason": "groups not estimable: view=PA", "missing": "view=PA"}
        elif row["level"] == "task":
            lost = {"status": "incomplete", "reason": "findings without a value: Edema", "missing": "Edema"}
        if lost:
            keep = ("encoder", "task", "finding", "group", "level", "n_images", "n_positive", "n_negative", "sets")
            row |= {key: None for key in row if key not in keep} | lost
        if row["level"] != "group":
            row["group"] = ""
        if row["level"] == "task":
            row["finding"] = ""
    return document


def whole_study(classes: bool = True) -> dict[str, Any]:
    """22 encoders on 8 tasks: 12 chest findings in 8 groups, birds and aircraft by class, five of one finding."""
    cards = [encoder(title) for title in TITLES]
    views = tuple(f"site={site}|view={view}" for site in "ABCD" for view in ("AP", "PA"))
    document = results(cards, {"chest": tuple(CHEST)}, views, sizes=(9000, 4100, 1200, 620, 240))
    small = {task: (task,) for task in ("tumor", "referable_retinopathy", "malignancy", "glaucoma", "mammography")}
    if classes:
        small |= {
            "variant": tuple(f"variant {i}" for i in range(87)),
            "species": tuple(f"species {i}" for i in range(167)),
        }
    other = results(cards, small, ("one group",), sizes=(520, 60, 58))
    for key in ("discordance", "ranking", "comparisons", "overlap", "agreement"):
        document[key] += other[key]
    document["cohorts"] = [document["cohort"], other["cohort"] | {"name": "birds", "title": "CUB-200-2011"}]
    return document


def frames(document: dict[str, Any], per_side: int = 12, k: int = 5) -> dict[str, pd.DataFrame]:
    """Queries, candidates and rejected files that go with the results; margins are those of :func:`features`."""
    queries: list[dict[str, Any]] = []
    candidates: list[dict[str, Any]] = []
    drawn = set()
    for row in document["discordance"]:
        if row["level"] != "group" or row["D"] is None:
            continue
        place = {key: row[key] for key in ("task", "finding", "group")}
        stem = "/".join(str(part) for part in place.values())
        ids = {1: [f"{stem}/p{i}.png" for i in range(per_side)], 0: [f"{stem}/n{i}.png" for i in range(per_side)]}
        people = {1: [f"ps{i:04x}" for i in range(per_side)], 0: [f"ns{i:04x}" for i in range(per_side)]}
        unit = {label: features(row["encoder"], names).astype(np.float64) for label, names in ids.items()}
        unit = {label: f / np.linalg.norm(f, axis=1, keepdims=True) for label, f in unit.items()}
        for i, image_id in enumerate(ids[1]):
            # sets: patient: the query leaves its side, the other side loses its last-ranked candidate
            own, other = np.delete(unit[1] @ unit[1][i], i), (unit[0] @ unit[1][i])[:-1]
            c_pos, c_neg = (float(np.sort(side)[::-1][:k].mean()) for side in (own, other))
            queries.append(
                {"encoder": row["encoder"], **place, "image_id": image_id, "patient": people[1][i]}
                | {"c_pos": c_pos, "c_neg": c_neg, "dm": c_neg - c_pos, "discordant": c_neg > c_pos}
                | {"c_pos_all": c_pos, "c_neg_all": c_neg, "dm_all": c_neg - c_pos, "margin_bound": 0.15}
            )
        if stem not in drawn:
            drawn.add(stem)
            candidates += [
                {**place, "image_id": image_id, "label": label, "rank": rank, "patient": people[label][rank]}
                for label in (1, 0)
                for rank, image_id in enumerate(ids[label])
            ]
    reasons = document["accounting"]["rejected_by_reason"]
    rejected = [
        {
            "image_id": f"bad{r}_{i}",
            "file": f"images/bad{r}_{i}.dcm",
            "stage": "decode",
            "reason": reason,
            "message": "no",
        }
        for r, (reason, count) in enumerate(reasons.items())
        for i in range(count)
    ]
    return {
        "queries": pd.DataFrame(queries),
        "candidates": pd.DataFrame(candidates),
        "rejected": pd.DataFrame(rejected),
    }


def features(name: str, image_ids: list[str]) -> np.ndarray:
    """Made-up features, the same for an image whoever asks; (n, 16) float32."""
    return np.stack([_feature(name, image_id) for image_id in image_ids])


@cache
def _feature(name: str, image_id: str) -> np.ndarray:
    digest = hashlib.blake2b(f"{name}/{image_id}".encode(), digest_size=64).digest()
    return (np.frombuffer(digest, np.uint32) / 2.0**31 + 0.5).astype(np.float32)


@cache
def thumbnail(image_id: str) -> np.ndarray:
    """A picture that looks a little like a radiograph; (3, 64, 64) uint8."""
    rng = random(image_id)
    y, x = np.mgrid[-1:1:64j, -1:1:64j]
    lungs = np.exp(-(((np.abs(x) - 0.42) / 0.25) ** 2) - ((y + 0.05) / 0.6) ** 2)
    spot = np.exp(-(((x - rng.uniform(-0.5, 0.5)) / 0.12) ** 2) - ((y - rng.uniform(-0.4, 0.4)) / 0.12) ** 2)
    grey = np.clip(190 - 150 * lungs + 70 * spot + rng.normal(0, 6, (64, 64)), 0, 255).astype(np.uint8)
    return np.repeat(grey[None], 3, axis=0)


def hostile(document: Any) -> Any:
    """The same document with markup in every text that comes from outside."""
    keep = {"level", "status", "sets", "queries", "measure_a", "measure_b"}
    if isinstance(document, dict):
        return {key: value if key in keep else hostile(value) for key, value in document.items()}
    if isinstance(document, list):
        return [hostile(item) for item in document]
    return f"{document}{SCRIPT}" if isinstance(document, str) else document
