"""What an exported program may hold: tensors and a graph of tensor operations, nothing that runs when it is loaded.

``torch.export.load`` unpickles example inputs, weights of older layouts and opaque objects, loads compiled libraries
that lie in the archive, and evaluates texts of the graph. A file is therefore looked at first, by torch's own reader of
archives, and holds what is listed here or is not loaded.
"""

from __future__ import annotations

import ast
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from candor_monai.utils import WeightsError, first_line

LARGEST_TEXT = 64 << 20  # bytes of a list of tensors, or of the graph

_MODEL, _INPUTS = "models/model.json", "data/sample_inputs/model.pt"
_CONFIGS = ("data/weights/model_weights_config.json", "data/constants/model_constants_config.json")
_RECORD = re.compile(
    r"data/(weights/weight|constants/tensor)_\d+|archive_(format|version)|byteorder|version|\.data/\w+"
)
_TENSOR = re.compile(r"(weight|tensor)_\d+")
_OPERATION = re.compile(
    r"torch\.ops\.(aten|prims|higher_order|torchvision)\.\w+(\.\w+)?|torch\.sym_\w+"
    r"|_operator\.(add|sub|mul|truediv|floordiv|mod|pow|neg|getitem|eq|ne|lt|le|gt|ge|and_|or_|not_)"
)
_FILES = ("torch.ops.aten.from_file",)  # operations that open one
_NAME = re.compile(r"[\w.-]*")
_NAMES = ("name", "as_name", "parameter_name", "buffer_name", "tensor_constant_name", "forward_arg_names")
_SYMBOL = re.compile(r"[suzf]+\d+|-?\d+(\.\d*)?(e[+-]?\d+)?")  # of a size, such as s77, or a number
# What torch writes of sympy beside its own functions; none of them looks at a text but a symbol's name.
_SYMPY = (
    *("Symbol", "Integer", "Rational", "Float", "Add", "Mul", "Pow", "Max", "Min", "Mod", "Abs", "floor", "ceiling"),
    *("Equality", "Unequality", "Eq", "Ne", "LessThan", "StrictLessThan", "GreaterThan", "StrictGreaterThan"),
    *("And", "Or", "Not", "true", "false", "oo", "Infinity", "NegativeInfinity", "Piecewise", "ExprCondPair"),
)
_CALLED = ("size", "stride", "storage_offset", "dim", "len", "Eq", "Ne", "Max", "Min", "Mod", "FloorDiv")
_ASSUMED = ("positive", "nonnegative", "integer", "evaluate", "precision")
_ARITHMETIC = (
    *(ast.Expression, ast.Call, ast.Name, ast.Constant, ast.keyword, ast.BinOp, ast.UnaryOp, ast.Compare),
    *(ast.operator, ast.unaryop, ast.cmpop, ast.expr_context),
)


def check_program(path: Path) -> None:
    """Refuse a file that is no exported program, or one that could run code.

    Raises:
        WeightsError: it is; says what it holds.
    """
    try:
        reader = torch._C.PyTorchFileReader(str(path))
        records = reader.get_all_records()
        older = any(name.endswith("serialized_exported_program.json") for name in records)
        another = not older and not {_MODEL, *_CONFIGS} <= set(records)
        found = None if older or another else next(_forbidden(reader, records), None)
    except Exception as error:  # whatever torch's reader and JSON make of a damaged or hostile archive
        raise WeightsError(
            f"{path}: not an exported program (torch.export.save), or damaged: {first_line(error)}"
        ) from error
    if older:
        raise WeightsError(f"{path}: an exported program in an older format; save it again with torch 2.8 or later.")
    if another:
        raise WeightsError(
            f"{path}: a zip archive, but not an exported program (torch.export.save); a TorchScript program or a file "
            "of weights needs another loader."
        )
    if found is not None:
        raise WeightsError(
            f"{path}: holds {found}, which could run code and is not loaded; export the model with plain tensors only "
            "(torch.export.save)."
        )


def _forbidden(reader: Any, records: list[str]) -> Iterator[str]:
    """What must not be there, in words."""
    for name in records:
        if name not in (_MODEL, _INPUTS, *_CONFIGS) and not _RECORD.fullmatch(name):
            yield f"the entry {name[:80]!r}"
    for name in _CONFIGS:
        for tensor in _json(reader, name)["config"].values():
            if tensor.get("use_pickle", True) or not _TENSOR.fullmatch(str(tensor["path_name"])):
                yield f"pickled objects ({str(tensor['path_name'])[:80]})"
    if _INPUTS in records and not _plain(reader.get_record(_INPUTS)):
        yield f"pickled objects ({_INPUTS})"
    yield from _texts(_json(reader, _MODEL))


def _json(reader: Any, name: str) -> dict[str, Any]:
    size = getattr(reader, "get_record_size", None)  # torch had it not always
    if size is not None and size(name) > LARGEST_TEXT:
        raise ValueError(f"a text of more than {LARGEST_TEXT} bytes")
    content: dict[str, Any] = json.loads(reader.get_record(name))
    return content


def _plain(pickled: bytes) -> bool:
    """Whether torch's restricted unpickler reads it: torch itself would try the other one next."""
    try:
        torch.load(io.BytesIO(pickled), weights_only=True)
    except Exception:
        return not pickled
    return True


def _texts(value: Any, key: str = "") -> Iterator[str]:
    """Texts of the graph that torch would resolve or evaluate and that are none of the usual ones."""
    if isinstance(value, dict):
        for name, part in value.items():
            if name == "guards_code" and any(not _is_guard(str(guard)) for guard in part or ()):
                yield "a guard that is no comparison of sizes"
            yield from _texts(part, name)
    elif isinstance(value, list):
        for part in value:
            yield from _texts(part, key)
    elif isinstance(value, str):
        operation = key in ("target", "as_operator")
        if operation and (not _OPERATION.fullmatch(value) or value.startswith(_FILES)):
            yield f"the operation {value[:80]!r}"
        if key in _NAMES and not _NAME.fullmatch(value):
            yield f"the name {value[:80]!r}"
        if key == "expr_str" and not _is_size(value):
            yield f"the expression {value[:80]!r}"


def _is_size(text: str) -> bool:
    """Whether an expression is arithmetic over sizes.

    >>> _is_size("2*Symbol('s77', positive=True, integer=True) + 1"), _is_size("exec(chr(49))")
    (True, False)
    """
    from torch.utils._sympy.functions import __all__ as functions

    known = {*_SYMPY, *functions}
    for node in ast.walk(ast.parse(text, mode="eval")):
        if not isinstance(node, _ARITHMETIC) or (isinstance(node, ast.Call) and not isinstance(node.func, ast.Name)):
            return False
        if isinstance(node, ast.Name) and node.id not in known and not _SYMBOL.fullmatch(node.id):
            return False
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and not _SYMBOL.fullmatch(node.value):
            return False
        if isinstance(node, ast.keyword) and node.arg not in _ASSUMED:
            return False
    return True


def _is_guard(text: str) -> bool:
    """Whether a guard compares sizes of inputs.

    >>> _is_guard("L['args'][0][0].size()[0] <= 8"), _is_guard("open('x')")
    (True, False)
    """
    if "\n" in text or "#" in text:  # torch puts the text into a line of code
        return False
    for node in ast.walk(ast.parse(text, mode="eval")):
        if not isinstance(node, (*_ARITHMETIC, ast.Attribute, ast.Subscript, ast.BoolOp, ast.boolop)):
            return False
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called not in _CALLED:
                return False
        if isinstance(node, ast.Attribute) and node.attr not in _CALLED:
            return False
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and not _NAME.fullmatch(node.value):
            return False
    return True
