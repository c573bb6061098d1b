"""Thumbnails in the page: each picture is stored once, however often it is shown."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence

import numpy as np
from markupsafe import Markup, escape

SIDE = 96


def as_rows_columns(pixels: np.ndarray) -> np.ndarray:
    """Pixels as (rows, columns) when grey or (rows, columns, 3), uint8.

    Args:
        pixels: uint8, shape (H, W), (H, W, 1), (H, W, 3), (1, H, W) or (3, H, W).

    Raises:
        ValueError: another shape or type.
    """
    pixels = np.asarray(pixels)
    if pixels.dtype != np.uint8:
        raise ValueError(f"a thumbnail must be uint8, is {pixels.dtype}")
    if pixels.ndim == 3 and pixels.shape[0] in (1, 3) and pixels.shape[2] not in (1, 3):
        pixels = pixels.transpose(1, 2, 0)
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    if pixels.ndim == 3 and pixels.shape[2] == 3:
        grey = (pixels[:, :, 0] == pixels[:, :, 1]).all() and (pixels[:, :, 0] == pixels[:, :, 2]).all()
        return np.ascontiguousarray(pixels[:, :, 0] if grey else pixels)
    if pixels.ndim != 2 or not pixels.size:
        raise ValueError(f"a thumbnail must be (H, W), (H, W, 3) or (3, H, W), is {pixels.shape}")
    return pixels


def data_uri(pixels: np.ndarray, side: int = SIDE) -> str:
    """A picture as a ``data:`` address: JPEG, at most ``side`` pixels in each direction."""
    from PIL import Image

    picture = Image.fromarray(as_rows_columns(pixels))
    picture.thumbnail((side, side), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=78, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


class Pictures:
    """The pictures of one page.

    Args:
        thumbnails: gives the pixels of an image id, or None when there are none.
        side: side of a thumbnail in pixels.
        large: side of a picture that is shown large.
    """

    def __init__(self, thumbnails: Callable[[str], np.ndarray | None], side: int = SIDE, large: int = SIDE) -> None:
        self.thumbnails = thumbnails
        self.sides = {False: side, True: large}
        self.addresses: dict[tuple[str, int], str | None] = {}
        self.number: dict[tuple[str, int], int] = {}

    def address(self, image_id: str, large: bool = False) -> str | None:
        """The picture's ``data:`` address, made at first use; None when the image cannot be shown."""
        key = (image_id, self.sides[large])
        if key not in self.addresses:
            pixels = self.thumbnails(image_id)
            self.addresses[key] = None if pixels is None else data_uri(pixels, self.sides[large])
        return self.addresses[key]

    def cost(self, image_ids: Sequence[str], large: bool = False) -> int:
        """Bytes that these images would add to the page's store of pictures."""
        new = {i for i in image_ids if (i, self.sides[large]) not in self.number}
        return sum(len(self.address(i, large) or "") + 120 for i in new)

    def show(self, image_id: str, alternative: str, large: bool = False) -> Markup:
        """The element that shows the picture here."""
        if self.address(image_id, large) is None:
            return Markup(f'<span class="th none" role="img" aria-label="{escape(alternative)}">no picture</span>')
        side = self.sides[large]
        number = self.number.setdefault((image_id, side), len(self.number))
        return Markup(
            f'<svg class="th" viewBox="0 0 {side} {side}" role="img" aria-label="{escape(alternative)}">'
            f'<use href="#p{number}"/></svg>'
        )

    def store(self) -> Markup:
        """The hidden element that holds every picture that :meth:`show` used."""
        if not self.number:
            return Markup("")
        held = "".join(
            f'<symbol id="p{number}" viewBox="0 0 {key[1]} {key[1]}">'
            f'<image width="{key[1]}" height="{key[1]}" href="{self.addresses[key]}"/></symbol>'
            for key, number in self.number.items()
        )
        return Markup(f'<svg class="store" width="0" height="0" aria-hidden="true">{held}</svg>')
