"""The app folder of MONAI Label, copied to where the server may write."""

from __future__ import annotations

from pathlib import Path

from ...utils import UserError, atomic_write

TEMPLATE = Path(__file__).parent / "server" / "app_folder"
FILES = ("main.py", "requirements.txt")


def copy_label_app(folder: str | Path) -> Path:
    """Copy the app's folder; MONAI Label makes its own folders (model, lib, logs, bin) in it when it starts.

    Args:
        folder: where it goes; made when absent.

    Returns:
        the folder, for ``monailabel start_server --app``.

    Raises:
        UserError: another app lies there, or the folder cannot be written.
    """
    root = Path(folder).expanduser()
    for name in FILES:
        content = (TEMPLATE / name).read_bytes()
        try:
            if (root / name).exists():
                if (root / name).read_bytes() != content:
                    raise UserError(f"{root / name}: is there already and is not this app's; name another folder.")
                continue
            root.mkdir(parents=True, exist_ok=True)
            atomic_write(root / name, content)
        except OSError as error:
            raise UserError(f"{root}: cannot be written: {error.strerror}. Name another folder.") from error
    return root
