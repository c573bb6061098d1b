"""Run ids of tools.yaml: what is not an evaluation of one encoder on one cohort."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..utils.errors import UserError
from ..utils.names import unknown
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
    from ..utils.plain_values import plain

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
    from ..networks.golden import FILE, record_golden

    loaded = _loaded(encoder, weights_dir, device)
    target = options.path("output", output)
    if target is None:
        target = Path(_needed("weights_dir", options.path("weights_dir", weights_dir))) / loaded.card.name / FILE
    elif target.is_dir() or not target.suffix:
        target = target / FILE
    record_golden(loaded, target, options.path("image", image))
    print(f"golden embedding of {loaded.card.name} in {target}")
    return target


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


@told_briefly
def export_classifier(encoder: Any, heads: Any, output: Any, weights_dir: Any = None) -> Path:
    """Write an encoder with trained heads as a MONAI bundle that gives a probability per finding."""
    from ..networks.classifier_export import export_classifier_bundle

    card = _card(encoder)
    trained = _needed("heads", options.path("heads", heads))
    folder = _needed("output", options.path("output", output))
    root = export_classifier_bundle(card, trained, folder, options.path("weights_dir", weights_dir))
    print(f"bundle of {encoder} with the heads of {trained} in {root}")
    return root


@told_briefly
def copy_label_app(output: Any) -> Path:
    """Copy the MONAI Label app to a folder that its server may write."""
    from .label.app_copy import copy_label_app as copy

    root = copy(_needed("output", options.path("output", output)))
    print(f"MONAI Label app in {root}: monailabel start_server --app {root} --studies <folder or DICOMweb URL> …")
    return root


@told_briefly
def export_labels(label_dir: Any, output: Any) -> Path:
    """Write what was labelled at a label desk as a cohort of one's own: a label table and its card.

    Args:
        label_dir: folder of the desk's state.
        output: folder to write to.
    """
    from .label.desk import LabelDesk

    desk = LabelDesk.of_folder(_needed("label_dir", options.path("label_dir", label_dir)))
    card = desk.export(_needed("output", options.path("output", output)))
    print(f"{len(desk.labelled())} labelled images in {card}: --cohort {card} --dataset_dir <folder of the images>")
    return card


@told_briefly
def draw_rereads(label_dir: Any, number: Any = None) -> Path:
    """Draw the images of a blinded re-read: discordant ones, and as many concordant ones at random.

    Args:
        label_dir: folder of the label desk's state.
        number: discordant images, the most discordant first; None: all.
    """
    from .label.desk import LabelDesk

    desk = LabelDesk.of_folder(_needed("label_dir", options.path("label_dir", label_dir)))
    path = desk.draw_rereads(options.whole(1)("number", number))
    print(f"{desk.left('reread')} images to read again, in the order of reading, in {path}")
    return path


@told_briefly
def compare_sites(results: Any, sites: Any = None, output: Any = None) -> list[dict[str, Any]]:
    """Put several sites' results into one table, with the findings pooled over the sites, print and write it.

    Args:
        results: output folders, one a site and encoder.
        sites: name of each folder's site; None takes the folders' names, which must differ.
        output: folder for ``sites.csv``; None only prints.
    """
    from ..networks.table import format_table
    from ..visualize.csv_files import write_csv
    from .sites import COLUMNS, read_sites, site_rows

    folders = _needed("results", options.names("results", results))
    named = options.listed("sites", sites)
    if named is None:
        named = tuple(Path(folder).resolve().name for folder in folders)
        repeated = [name for name in named if named.count(name) > 1]
        if repeated:
            raise UserError(f"several folders are called {repeated[0]!r}: name their sites with --sites, one a folder.")
    if len(named) != len(folders):
        raise UserError(f"--sites names {len(named)} sites for {len(folders)} result folders.")
    rows = site_rows(read_sites(folders), named)
    shown = ("site", "encoder", "finding", "D", "D_total_lo", "D_total_hi", "n_queries", "status")
    rounded = [{k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()} for row in rows]
    print(format_table(rounded, shown))
    target = options.path("output", output)
    if target is not None:
        write_csv(target / "sites.csv", rows, COLUMNS)
    return rows


@told_briefly
def plan(
    D: Any = None,
    difference: Any = None,
    power: Any = 0.8,
    results: Any = None,
    finding: Any = None,
    images_per_patient: Any = None,
    design_effect: Any = None,
) -> Any:
    """How many labelled positives tell D from chance, or two encoders apart? By simulation.

    Args:
        D: the value to be told from 1/2; with ``difference``, D of the better encoder.
        difference: how much larger D of the other encoder is; None: against chance.
        power: wanted probability of finding it.
        results: output folder of an evaluation, whose own clustering is taken.
        finding: of that evaluation; None takes its first one whose clustering is known.
        images_per_patient, design_effect: where no evaluation is at hand.
    """
    from ..metrics.planning import Clustering, plan_against_chance, plan_difference
    from .comparison import read_cell

    theta = _needed("D", options.number(0.0)("D", D))
    given = {
        "images_per_patient": options.number(1.0)("images_per_patient", images_per_patient),
        "design_effect": options.number(0.0)("design_effect", design_effect),
    }
    try:
        kind = Clustering(**{name: value for name, value in given.items() if value is not None})
        folder = options.path("results", results)
        if folder is not None:
            kind = _clustering(read_cell(folder), options.text("finding", finding))
        wanted = options.number(0.01)("power", power)
        gap = options.number(0.0)("difference", difference)
        found = plan_against_chance(theta, wanted, kind) if gap is None else plan_difference(theta, gap, wanted, kind)
    except ValueError as error:
        if isinstance(error, UserError):
            raise
        raise UserError(str(error).replace("theta", "--D")) from error
    what = "from chance" if gap is None else f"from an encoder with D = {theta + gap:.3f}"
    alike = "" if gap is None else f", correlation of the encoders {kind.correlation:.2f}"
    print(
        f"To tell D = {theta:.3f} {what} with probability {found.power:.2f} at the 5 % level:\n"
        f"{found.queries} labelled positive images of {found.patients} patients, and as many negative patients.\n"
        f"Taken as known: {kind.images_per_patient:.2f} positive images a patient, design effect "
        f"{kind.design_effect:.2f}{alike}."
    )
    return found


def _clustering(cell: Any, finding: str | None) -> Any:
    """The clustering of an evaluation's finding, or of its first finding whose clustering is known.

    Raises:
        UserError: it is not known of this finding, or of none.
    """
    from ..metrics.planning import clustering_of

    pooled = {key[1]: found for key, found in cell.companions.items() if key[0] == "finding"}
    if finding is not None and finding not in pooled:
        raise unknown("finding", finding, pooled)
    reasons = {}
    for name in pooled if finding is None else [finding]:
        try:
            splits = pooled[name].splits
            if "D" not in splits:
                raise ValueError((cell.row("finding", name) or {}).get("reason") or "no total interval was asked for")
            return clustering_of(splits["D"])
        except ValueError as error:
            reasons[name] = str(error)
    told = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
    raise UserError(
        f"{cell.folder}: the clustering is not known ({told}); give --images_per_patient and --design_effect."
    )


def _card(encoder: Any) -> str | Path | dict[str, Any]:
    card = options.name_or_card("encoder", _needed("encoder", encoder))
    return _needed("encoder", card)


def _loaded(encoder: Any, weights_dir: Any, device: str) -> Any:
    from ..networks.encoders import load_encoder

    card = _card(encoder)
    return load_encoder(card, weights_dir=options.path("weights_dir", weights_dir), device=str(device))
