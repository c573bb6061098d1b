"""One-off conversion of a publisher's pickled weights into safetensors, which hold tensors and nothing else."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from candor_monai.utils import UserError, WeightsError, atomic_path, first_line

from .cards import EncoderCard, load_card
from .weights import check_torch_file, file_sha256, read_state

#: What a pickled module may be made of. Nothing here runs anything but the making of tensors and modules.
_ALLOWED = {
    "collections": {"OrderedDict", "defaultdict"},
    "builtins": {"set", "list", "dict", "tuple", "int", "float", "bool", "str", "slice", "object"},
    "__builtin__": {"set", "list", "dict", "tuple", "int", "float", "bool", "str", "object"},
    "torch": {
        "Size",
        "device",
        "dtype",
        "float32",
        "float64",
        "float16",
        "bfloat16",
        "int64",
        "int32",
        "uint8",
        "bool",
    },
    "torch._utils": {"_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_parameter"},
    "torch.storage": {"UntypedStorage", "TypedStorage"},
    "torch.nn.parameter": {"Parameter"},
    "torch.serialization": {"_get_layout"},
    "numpy": {"dtype", "ndarray"},
    "numpy.core.multiarray": {"_reconstruct", "scalar"},
    "numpy._core.multiarray": {"_reconstruct", "scalar"},
    "argparse": {"Namespace"},
}
_STORAGES = {f"{kind}Storage" for kind in ("Float", "Double", "Half", "BFloat16", "Long", "Int", "Byte", "Bool")}

#: Packages whose module classes stand in a pickle only as names: an empty module takes their place.
_STAND_IN = ("torchxrayvision.", "torchvision.models.")


def convert_weights(
    file: str | Path, encoder: str | Path | Mapping[str, Any] | EncoderCard, weights_dir: str | Path
) -> Path:
    """Write ``<weights_dir>/<encoder>/model.safetensors`` from a publisher's ``.pt``, ``.pth`` or ``.bin`` file.

    A file of plain tensors is read as such. A pickled module (torchxrayvision's) is opened by an unpickler that knows
    tensors, torch's own layers and nothing else: the module's classes are replaced by empty ones and no code of the
    file's author runs. All tensors are kept, under the publisher's names.

    Args:
        file: the publisher's file.
        encoder: whose weights they are.
        weights_dir: folder with one folder an encoder.

    Returns:
        path of the file written.

    Raises:
        WeightsError: the file is damaged, or asks for something that conversion does not allow.
        UserError: there is no such file.
    """
    source, card = Path(file), load_card(encoder)
    if not source.is_file():
        raise UserError(f"{source}: no such file to convert.")
    state = _state(source)
    if not state:
        raise WeightsError(f"{source}: holds no tensors.")
    target = Path(weights_dir) / card.name / "model.safetensors"
    from safetensors.torch import save_file

    own = {name: tensor.detach().clone().contiguous() for name, tensor in state.items()}
    with atomic_path(target) as temporary:
        save_file(own, temporary, metadata={"source": source.name, "source_sha256": file_sha256(source)})
    return target


def _state(source: Path) -> dict[str, Tensor]:
    if source.suffix == ".safetensors":
        content: Any = read_state(source)
    else:
        content = _unpickle(source)
    if isinstance(content, nn.Module):
        return dict(content.state_dict())
    if not isinstance(content, Mapping):
        raise WeightsError(f"{source}: must hold tensors or a module, holds {type(content).__name__}.")
    if not any(isinstance(value, Tensor) for value in content.values()):
        inner = [value for key, value in content.items() if key in ("state_dict", "model", "model_state_dict")]
        content = inner[0] if inner and isinstance(inner[0], Mapping) else content
    return {str(key): value for key, value in content.items() if isinstance(value, Tensor)}


def _unpickle(source: Path) -> Any:
    check_torch_file(source)
    if _is_torchscript(source):
        raise WeightsError(
            f"{source}: holds a TorchScript program, whose code would run when it is read; convert the module's "
            "state_dict, saved by torch.save."
        )
    try:
        return torch.load(source, map_location="cpu", weights_only=False, pickle_module=_restricted())
    except _RefusedError as error:
        raise WeightsError(
            f"{source}: asks for {error}, which conversion does not allow; a file of weights needs nothing of the kind."
        ) from error
    except Exception as error:  # a damaged pickle raises almost anything
        raise WeightsError(f"{source}: damaged, truncated or not a torch file: {first_line(error)}") from error


def _is_torchscript(source: Path) -> bool:
    """Whether torch.load would hand the file to torch.jit.load, past any unpickler; told as torch tells it."""
    try:
        return "constants.pkl" in torch._C.PyTorchFileReader(str(source)).get_all_records()
    except RuntimeError:  # no zip archive: a plain pickle, or damaged
        return False


class _RefusedError(pickle.UnpicklingError):
    """A name that the restricted unpickler does not give."""


class _Unpickler(pickle.Unpickler):
    """Knows tensors, torch's own layers and stand-ins, and refuses every other name."""

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and name in _STORAGES:
            return getattr(torch, name)
        if module.startswith("torch.nn.modules.") and "." not in name:
            found = super().find_class(module, name)
            if isinstance(found, type) and issubclass(found, nn.Module):
                return found
        elif module.startswith(_STAND_IN) and name.isidentifier():
            return type(name, (nn.Module,), {})
        elif name in _ALLOWED.get(module, ()):
            return super().find_class(module, name)
        raise _RefusedError(f"{module}.{name}")


def _restricted() -> ModuleType:
    """A stand-in for the module ``pickle``, as torch.load takes it."""
    module = ModuleType("restricted_pickle")

    def load(file: Any, **options: Any) -> Any:
        return _Unpickler(file, **options).load()

    def loads(data: bytes, **options: Any) -> Any:
        return _Unpickler(io.BytesIO(data), **options).load()

    vars(module).update(
        Unpickler=_Unpickler,
        load=load,
        loads=loads,
        UnpicklingError=pickle.UnpicklingError,
        PickleError=pickle.PickleError,
    )
    return module
