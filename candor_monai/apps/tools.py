"""Run ids of tools.yaml: what is not an evaluation of one encoder on one cohort."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..utils.errors import UserError
from ..utils.told import told_briefly
from . import options


def _needed(name: str, value: Any) -> Any:
    if value is None:
        raise UserError(f"--{name} is needed.")
    return value


@told_briefly
def list_encoders(weights_dir: Any = None) -> list[dict[str, Any]]:
    """Print the encoders: licence, gate, dimension, parameters, training data, and whether their weights are here."""
    from ..networks.table import encoder_table, format_table

    rows = encoder_table(options.path("weights_dir", weights_dir))
    print(format_table(rows))
    return rows


@told_briefly
def list_cohorts() -> list[str]:
    """Print the cohorts: access, licence and what they are."""
    from ..data.cohorts.cards import list_cohorts as names
    from ..data.cohorts.cards import load_card
    from ..networks.table import format_table

    cards = [load_card(name) for name in names()]
    rows = [
        {"name": c.name, "access": c.access, "licence": c.licence, "title": c.title, "adapter": c.adapter}
        for c in cards
    ]
    print(format_table(rows, ("name", "adapter", "access", "licence", "title")))
    return [card.name for card in cards]


@told_briefly
def describe_cohort(cohort: Any, dataset_dir: Any = None, cohort_options: Any = None) -> dict[str, Any]:
    """Print what a cohort holds beside what its publisher says: groups, findings, splits, and what was left out."""
    import yaml

    from ..data.cohorts import load_cohort
    from ..handlers.run_context import plain

    card = options.name_or_card("cohort", _needed("cohort", cohort))
    given = options.mapping("cohort_options", cohort_options)
    described = plain(load_cohort(card, options.path("dataset_dir", dataset_dir), **given).describe())
    print(yaml.safe_dump(described, sort_keys=False, allow_unicode=True, width=120))
    return described


@told_briefly
def check_encoder(encoder: Any, weights_dir: Any = None, device: str = "cpu") -> list[Any]:
    """Run the checks of an encoder and print what each found.

    Raises:
        SystemExit: a check failed.
    """
    from ..networks.checks import check_encoder as check

    results = check(_loaded(encoder, weights_dir, device))
    for result in results:
        print(f"[{result.status:>7}] {result.name}: {result.message}")
    failed = [result.name for result in results if result.status == "failed"]
    if failed:
        raise UserError(f"{len(failed)} of {len(results)} checks failed: {', '.join(failed)}.")
    return results


@told_briefly
def golden(encoder: Any, output: Any = None, weights_dir: Any = None, image: Any = None, device: str = "cpu") -> Path:
    """Record this site's golden embedding of an encoder; every later load is compared with it.

    Args:
        encoder: name or card.
        output: file or folder; None takes the encoder's folder in ``weights_dir``.
        weights_dir: folder with one folder an encoder.
        image: an image file; None takes the built-in synthetic image.
        device: where it is computed.
    """
    from ..networks.golden import record_golden

    loaded = _loaded(encoder, weights_dir, device)
    target = options.path("output", output)
    if target is None:
        target = Path(_needed("weights_dir", options.path("weights_dir", weights_dir))) / loaded.card.name
    target.mkdir(parents=True, exist_ok=True) if not target.suffix else target.parent.mkdir(parents=True, exist_ok=True)
    record_golden(loaded, target, options.path("image", image))
    written = target if target.suffix else target / "golden.json"
    print(f"golden embedding of {loaded.card.name} in {written}")
    return written


@told_briefly
def convert(encoder: Any, file: Any, weights_dir: Any) -> Path:
    """Turn a publisher's pickled weights into safetensors, once; nothing of the file's code is run."""
    from ..networks.convert import convert_weights

    card = _card(encoder)
    source = _needed("file", options.path("file", file))
    written = convert_weights(source, card, _needed("weights_dir", options.path("weights_dir", weights_dir)))
    print(f"weights of {encoder} in {written}")
    return written


@told_briefly
def export_encoder(encoder: Any, output: Any, weights_dir: Any = None) -> Path:
    """Write an encoder as a MONAI bundle of its own."""
    from ..networks.bundle_export import export_encoder_bundle

    card = _card(encoder)
    folder = _needed("output", options.path("output", output))
    root = export_encoder_bundle(card, folder, options.path("weights_dir", weights_dir))
    print(f"bundle of {encoder} in {root}")
    return root


def _card(encoder: Any) -> str | Path | dict[str, Any]:
    card = options.name_or_card("encoder", _needed("encoder", encoder))
    return _needed("encoder", card)


def _loaded(encoder: Any, weights_dir: Any, device: str) -> Any:
    from ..networks.encoders import load_encoder

    card = _card(encoder)
    return load_encoder(card, weights_dir=options.path("weights_dir", weights_dir), device=str(device))
