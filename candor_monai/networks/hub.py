"""Weights from the Hugging Face hub: its cache first, then the network, every failure in plain words."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from candor_monai.utils import WeightsError, first_line

from .cards import EncoderCard
from .weights import source_of

#: Seconds given to reach the hub at all: behind a firewall that drops packets nothing ever answers.
CONNECT_SECONDS = 5.0

_CONFIGS = ("config.json", "preprocessor_config.json", "open_clip_config.json")


def how_to(card: EncoderCard) -> str:
    """How to bring an encoder's weights to this machine by hand."""
    files = card.files[0] if card.files else "its files"
    return (
        f"Put a copy of the repository's files ({files} and its configs) into <weights_dir>/{card.name}/ and give "
        "--weights_dir; docs/encoders.md lists the files."
    )


def cached(card: EncoderCard) -> Path | None:
    """The hub cache's folder with this encoder's files, complete, or None. Asks no network."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    if not on_hub(card):
        return None
    try:
        folder = Path(snapshot_download(str(card.hub_id), revision=card.revision, local_files_only=True))
    except (OSError, HfHubHTTPError, HFValidationError):
        return None
    complete = any((folder / name).is_file() or (folder / f"{name}.index.json").is_file() for name in card.files)
    return folder if complete else None


def on_hub(card: EncoderCard) -> bool:
    """Whether the card names a repository of the hub."""
    return card.hub_id is not None and card.hub_id.count("/") == 1


def fetch(card: EncoderCard) -> Path:
    """Download an encoder's files to the hub's cache.

    Raises:
        WeightsError: gated, no such repository or revision, no such file, offline, or the download failed; names hub
            id, licence, gate, and what to do instead.
    """
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub import errors as hub

    what = f"encoder {card.name!r}: {source_of(card)}"
    _check_reachable(card)
    try:
        # By the card's own revision, not the commit found: the cache is asked by it when there is no network.
        info = HfApi().model_info(str(card.hub_id), revision=card.revision, timeout=CONNECT_SECONDS)
        files = _wanted(card, [sibling.rfilename for sibling in info.siblings or ()])
        folder = snapshot_download(
            str(card.hub_id), revision=card.revision, allow_patterns=files, etag_timeout=CONNECT_SECONDS
        )
    except hub.GatedRepoError as error:
        raise WeightsError(
            f"{what} cannot be read by this account: log in to the hub, accept the terms on the model's page, then set "
            f"HF_TOKEN. {how_to(card)}"
        ) from error
    except hub.RepositoryNotFoundError as error:
        raise WeightsError(
            f"{what}: the hub knows no such repository, or it is private or gated and HF_TOKEN is not set. "
            f"{how_to(card)}"
        ) from error
    except hub.RevisionNotFoundError as error:
        raise WeightsError(f"{what}: the repository has no revision {card.revision!r}. {how_to(card)}") from error
    except (hub.OfflineModeIsEnabled, hub.LocalEntryNotFoundError) as error:
        raise WeightsError(
            f"{what}: not in this machine's hub cache, and the hub cannot be reached. {how_to(card)}"
        ) from error
    except hub.EntryNotFoundError as error:
        raise WeightsError(f"{what}: the repository does not hold the file wanted. {how_to(card)}") from error
    except (hub.HfHubHTTPError, hub.HFValidationError, OSError) as error:
        raise WeightsError(f"{what}: the download failed: {first_line(error)}. {how_to(card)}") from error
    return Path(folder)


def _wanted(card: EncoderCard, there: Sequence[str]) -> list[str]:
    """The files to fetch: the configs, and the first of the card's weight files that is there, or its parts.

    Raises:
        WeightsError: the repository holds none of them.
    """
    configs = [name for name in _CONFIGS if name in there]
    for name in card.files:
        if name in there:
            return [*configs, name]
        stem, _, ending = name.rpartition(".")
        parts = [f for f in there if f.startswith(f"{stem}-") and f.endswith(f".{ending}") and "-of-" in f]
        if f"{name}.index.json" in there and parts:
            return [*configs, f"{name}.index.json", *parts]
    wanted = ", ".join(card.files)
    raise WeightsError(
        f"encoder {card.name!r}: {source_of(card)}: the repository holds none of {wanted}. {how_to(card)}"
    )


def _check_reachable(card: EncoderCard) -> None:
    """Fail within seconds when offline mode is set or nothing answers at the hub's address."""
    from huggingface_hub import constants

    what = f"encoder {card.name!r}: {source_of(card)}"
    if constants.HF_HUB_OFFLINE:
        raise WeightsError(f"{what}: not in this machine's hub cache, and HF_HUB_OFFLINE is set. {how_to(card)}")
    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return  # the proxy reaches the hub, not we
    address = urlsplit(constants.ENDPOINT)
    port = address.port or (80 if address.scheme == "http" else 443)
    failure = _connect(str(address.hostname), port)
    if failure is not None:
        raise WeightsError(
            f"{what}: not in this machine's hub cache, and {address.hostname} cannot be reached ({failure}). "
            f"{how_to(card)}"
        )


def _connect(host: str, port: int) -> str | None:
    """Why a host cannot be reached, or None when it can.

    In a thread of its own: neither name servers nor the several addresses of a host may take longer all together.
    """
    found: list[str | None] = []

    def attempt() -> None:
        try:
            socket.create_connection((host, port), timeout=CONNECT_SECONDS).close()
            found.append(None)
        except OSError as error:
            found.append(str(error))

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(CONNECT_SECONDS)
    return found[0] if found else f"no answer within {CONNECT_SECONDS:g} s"
