"""Cover an annotated finding in the source image, and a control region of the same size elsewhere.

Source: arXiv 2607.18451 (occlusion retention); fills, mask modes and the control's placement are choices, see
docs/retention.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..metrics.keyed_hash import keyed_hash
from ..utils.errors import DecodeError, UserError

FILLS = ("mean", "zero", "blur", "noise")
MASK_MODES = ("pixels", "components", "box")

# Reason code of a view that cannot be made -> what it says. docs/retention.md prints this table; a test compares them.
VIEW_REASONS: dict[str, str] = {
    "box_empty": "a box without area, or with a number that is not finite",
    "box_outside": "a box that lies entirely outside the image",
    "box_out_of_frame": "a box that does not fit the image, and no size of the image it was drawn on is given",
    "box_covers_image": "the annotation covers the whole image",
    "mask_empty": "a mask without a single pixel, or of one value throughout",
    "mask_shape": "a mask whose proportions are not those of the image",
    "no_control": "no place of the same size is free of annotations",
}
_ROUNDING = 1e-6  # a box scaled from another frame may miss a pixel's edge by rounding
_TRIES = 64


@dataclass(frozen=True)
class Piece:
    """One connected part of an annotation.

    Args:
        row, column: its top left pixel.
        mask: (height, width) bool.
    """

    row: int
    column: int
    mask: np.ndarray

    @property
    def window(self) -> tuple[slice, slice]:
        """Rows and columns of its bounding box."""
        return slice(self.row, self.row + self.mask.shape[0]), slice(self.column, self.column + self.mask.shape[1])


def box_pieces(boxes: np.ndarray, shape: tuple[int, int]) -> list[Piece]:
    """The pixels that boxes touch.

    Args:
        boxes: (n, 4) as x, y, width, height in pixels of the image: x counts columns, y rows, from the top left corner.
        shape: rows and columns of the image; what lies outside is cut off.

    Returns:
        one piece a distinct box, in an order of their own.

    Raises:
        DecodeError: ``box_empty`` or ``box_outside``.

    >>> [(p.row, p.column, p.mask.shape) for p in box_pieces(np.array([[1.5, -2, 2, 4]]), (8, 10))]
    [(0, 1, (2, 3))]
    """
    boxes = np.unique(np.asarray(boxes, dtype=np.float64).reshape(-1, 4), axis=0)
    if not len(boxes) or not np.isfinite(boxes).all() or (boxes[:, 2:] <= 0).any():
        raise DecodeError("box_empty", VIEW_REASONS["box_empty"])
    pieces = []
    for x, y, width, height in boxes.tolist():
        top, bottom = _touched(y, height, shape[0])
        left, right = _touched(x, width, shape[1])
        if top >= bottom or left >= right:
            raise DecodeError("box_outside", VIEW_REASONS["box_outside"])
        pieces.append(Piece(top, left, np.ones((bottom - top, right - left), dtype=bool)))
    return pieces


def _touched(start: float, length: float, size: int) -> tuple[int, int]:
    """First and last-but-one pixel of an image of ``size`` that an interval touches."""
    first = np.floor(start + _ROUNDING)
    last = np.ceil(start + length - _ROUNDING)
    return int(np.clip(first, 0, size)), int(np.clip(last, 0, size))


def boxes_in_image(boxes: np.ndarray, frames: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Boxes in the pixels of the image at hand.

    Args:
        boxes: (n, 4) as x, y, width, height in pixels of their frame.
        frames: (n, 2) width and height of the image they were drawn on; NaN where not given.
        shape: rows and columns of the image at hand.

    Returns:
        boxes (n, 4) float64 in pixels of the image.

    Raises:
        DecodeError: ``box_out_of_frame`` a box without a frame exceeds the image by more than a pixel.

    >>> boxes_in_image(np.array([[512, 256, 100, 40]]), np.array([[1024, 1024]]), (256, 256))
    array([[128.,  64.,  25.,  10.]])
    """
    boxes = np.asarray(boxes, dtype=np.float64).reshape(-1, 4)
    frames = np.asarray(frames, dtype=np.float64).reshape(-1, 2)
    given = np.asarray(np.isfinite(frames).all(axis=1) & (frames > 0).all(axis=1))
    size = np.array([shape[1], shape[0]], dtype=np.float64)
    far = boxes[:, :2] + boxes[:, 2:]
    if (boxes[~given, :2] < -1).any() or (far[~given] > size + 1).any():
        raise DecodeError("box_out_of_frame", VIEW_REASONS["box_out_of_frame"])
    scale: np.ndarray = np.where(given[:, None], size / np.where(given[:, None], frames, 1.0), 1.0)
    return boxes * np.hstack([scale, scale])


def mask_pieces(mask: np.ndarray, mode: str = "pixels") -> list[Piece]:
    """The parts of a mask, connected over edges and corners.

    Args:
        mask: (rows, columns), non-zero where the finding is.
        mode: ``pixels`` the mask itself; ``components`` each part's bounding box; ``box`` one box around all.

    Raises:
        DecodeError: ``mask_empty``.
        UserError: an unknown mode.
    """
    if mode not in MASK_MODES:
        raise UserError(f"masks={mode!r}: use one of {', '.join(MASK_MODES)}")
    present = np.asarray(mask) != 0
    if not present.any():
        raise DecodeError("mask_empty", VIEW_REASONS["mask_empty"])
    if mode == "box":
        rows, columns = np.flatnonzero(present.any(axis=1)), np.flatnonzero(present.any(axis=0))
        shape = (int(rows[-1] - rows[0]) + 1, int(columns[-1] - columns[0]) + 1)
        return [Piece(int(rows[0]), int(columns[0]), np.ones(shape, dtype=bool))]
    from scipy import ndimage

    parts, _ = ndimage.label(present, structure=np.ones((3, 3)))
    pieces = []
    for number, window in enumerate(ndimage.find_objects(parts), start=1):
        part = parts[window] == number
        pieces.append(Piece(window[0].start, window[1].start, np.ones_like(part) if mode == "components" else part))
    return pieces


def union(pieces: list[Piece], shape: tuple[int, int]) -> np.ndarray:
    """The pixels of several pieces, (rows, columns) bool."""
    result = np.zeros(shape, dtype=bool)
    for piece in pieces:
        result[piece.window] |= piece.mask
    return result


def control_pieces(pieces: list[Piece], annotated: np.ndarray, image_id: str, seed: int) -> list[Piece]:
    """The control: each piece at the left-right mirrored position, or at a random one.

    A mirrored piece that would touch an annotation is placed where neither an annotation nor another part of the
    control is, uniformly at random, from the seed and the image id alone.

    Args:
        pieces: the annotation of the finding, cut to the image.
        annotated: (rows, columns) bool, every annotation of the image, whatever its finding.
        image_id: the image.
        seed: seed of the run.

    Returns:
        pieces of the same sizes.

    Raises:
        DecodeError: ``no_control``.
    """
    columns = annotated.shape[1]
    control: list[Piece | None] = []
    blocked = annotated.copy()
    for piece in pieces:
        mirrored = Piece(piece.row, columns - piece.column - piece.mask.shape[1], piece.mask[:, ::-1])
        free = not (annotated[mirrored.window] & mirrored.mask).any()
        control.append(mirrored if free else None)
        if free:
            blocked[mirrored.window] |= mirrored.mask
    for place, piece in enumerate(pieces):
        if control[place] is None:
            moved = _random_place(piece, blocked, image_id, seed, place)
            blocked[moved.window] |= moved.mask
            control[place] = moved
    return [piece for piece in control if piece is not None]


def _random_place(piece: Piece, blocked: np.ndarray, image_id: str, seed: int, place: int) -> Piece:
    """The piece where its bounding box meets nothing blocked, all such places equally likely."""
    height, width = piece.mask.shape
    rows, columns = blocked.shape[0] - height + 1, blocked.shape[1] - width + 1
    for attempt in range(_TRIES):  # most images are mostly free
        at = _drawn(image_id, seed, place, attempt) % (rows * columns)
        moved = Piece(at // columns, at % columns, piece.mask)
        if not blocked[moved.window].any():
            return moved
    sums = np.zeros((blocked.shape[0] + 1, blocked.shape[1] + 1), dtype=np.int64)
    sums[1:, 1:] = blocked.cumsum(axis=0).cumsum(axis=1)
    inside = sums[height:, width:] - sums[:-height, width:] - sums[height:, :-width] + sums[:-height, :-width]
    free = np.flatnonzero(inside == 0)
    if not len(free):
        raise DecodeError("no_control", VIEW_REASONS["no_control"])
    at = int(free[_drawn(image_id, seed, place, _TRIES) % len(free)])
    return Piece(at // columns, at % columns, piece.mask)


def _drawn(image_id: str, *key: int) -> int:
    return int(keyed_hash([image_id], "control", *key)[0])


def occluded(pixels: np.ndarray, covered: np.ndarray, fill: str, image_id: str, seed: int) -> np.ndarray:
    """The image with some pixels replaced.

    Args:
        pixels: (rows, columns) or (rows, columns, 3), uint8 or uint16.
        covered: (rows, columns) bool.
        fill: ``mean`` the image's mean, per channel; ``zero`` black; ``blur`` the image under a Gaussian of a quarter
            of the longer side of the covered region's bounding box; ``noise`` Gaussian noise of the image's mean and
            standard deviation, from the seed and the image id.
        image_id: the image.
        seed: seed of the run.

    Returns:
        a copy, same shape and dtype; pixels that are not covered are unchanged.

    Raises:
        UserError: an unknown fill.
        DecodeError: ``box_covers_image``.
    """
    if fill not in FILLS:
        raise UserError(f"fill={fill!r}: use one of {', '.join(FILLS)}")
    if covered.all():
        raise DecodeError("box_covers_image", VIEW_REASONS["box_covers_image"])
    result = pixels.copy()
    if not covered.any():
        return result
    top = np.iinfo(pixels.dtype).max
    if fill == "zero":
        result[covered] = 0
    elif fill == "mean":
        result[covered] = np.rint(pixels.mean(axis=(0, 1))).astype(pixels.dtype)
    elif fill == "noise":
        random = np.random.Generator(np.random.Philox(key=int(keyed_hash([image_id], "noise", seed)[0])))
        drawn = random.normal(size=pixels[covered].shape) * pixels.std(axis=(0, 1)) + pixels.mean(axis=(0, 1))
        result[covered] = np.clip(np.rint(drawn), 0, top).astype(pixels.dtype)
    else:
        _blur(result, pixels, covered)
    return result


def _blur(result: np.ndarray, pixels: np.ndarray, covered: np.ndarray) -> None:
    """Put the blurred image into ``result`` where it is covered, computed around the covered region only."""
    from scipy import ndimage

    rows, columns = np.flatnonzero(covered.any(axis=1)), np.flatnonzero(covered.any(axis=0))
    sigma = max(1.0, max(rows[-1] - rows[0], columns[-1] - columns[0]) / 4.0)
    margin = int(np.ceil(4 * sigma))
    window = (
        slice(max(rows[0] - margin, 0), rows[-1] + margin + 1),
        slice(max(columns[0] - margin, 0), columns[-1] + margin + 1),
    )
    sigmas = (sigma, sigma) if pixels.ndim == 2 else (sigma, sigma, 0.0)
    smooth = ndimage.gaussian_filter(pixels[window].astype(np.float32), sigmas, mode="nearest")
    inside = covered[window]
    result[window][inside] = np.clip(np.rint(smooth[inside]), 0, np.iinfo(pixels.dtype).max).astype(pixels.dtype)


def mask_of_image(mask: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """A mask in the pixels of the image at hand: of another size but the same proportions it is resized, nearest pixel.

    Args:
        mask: (rows, columns) or (rows, columns, 3), displayed pixels of the mask's file.
        shape: rows and columns of the image.

    Raises:
        DecodeError: ``mask_shape``.
    """
    present = (mask if mask.ndim == 2 else mask.max(axis=2)) != 0  # of 16 bits as well: 1 of 65,535 is not black here
    if present.shape == shape:
        return present
    ratio = np.array(present.shape) / np.array(shape)
    if abs(ratio[0] - ratio[1]) > 0.01 * ratio.max():
        raise DecodeError("mask_shape", VIEW_REASONS["mask_shape"])
    rows = ((np.arange(shape[0]) + 0.5) * ratio[0]).astype(int)
    columns = ((np.arange(shape[1]) + 0.5) * ratio[1]).astype(int)
    return present[np.ix_(rows, columns)]
