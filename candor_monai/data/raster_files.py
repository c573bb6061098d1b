"""PNG, JPEG and TIFF files, as displayed."""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from candor_monai.utils.errors import DecodeError

from .decoded_image import DecodedImage, DecodeOptions, ImageMeta, check_not_constant, stored_range
from .display_values import GreyMapping, displayed_grey

SIGNATURES = {
    b"\x89PNG\r\n\x1a\n": "png",
    b"\xff\xd8\xff": "jpeg",
    b"II*\0": "tiff",
    b"MM\0*": "tiff",
    b"II+\0": "tiff",
    b"MM\0+": "tiff",
}
# Pillow's grey modes of more than 8 bits.
_WIDE = ("I;16", "I;16L", "I;16B", "I;16N", "I", "F")
# Tags of EXIF and TIFF.
_ORIENTATION, _BITS_PER_SAMPLE, _PHOTOMETRIC, _SAMPLE_FORMAT = 274, 258, 262, 339


def raster_format(data: bytes) -> str | None:
    """``png``, ``jpeg`` or ``tiff`` by the file's first bytes, or None."""
    return next((name for signature, name in SIGNATURES.items() if data.startswith(signature)), None)


@dataclass(frozen=True)
class _Stored:
    """What Pillow forgets of a file once its pixels are loaded.

    Args:
        bits: bits of a stored value, 0 where Pillow's mode says enough.
        unsigned: a value of 32 bits has no sign, which Pillow's mode cannot say.
        white_is_zero: 0 is white, and Pillow has not exchanged it with black.
        turned: the EXIF orientation says that the image lies otherwise than displayed.
    """

    bits: int = 0
    unsigned: bool = False
    white_is_zero: bool = False
    turned: bool = False

    @classmethod
    def of(cls, image: Any) -> _Stored:
        turned = image.getexif().get(_ORIENTATION, 1) in range(2, 9)
        tags = getattr(image, "tag_v2", None)
        if tags is None:
            return cls(turned=turned)
        bits = int(_first(tags.get(_BITS_PER_SAMPLE, 8)))
        integer = _first(tags.get(_SAMPLE_FORMAT, 1)) == 1
        return cls(
            bits if image.mode.startswith("I;16") else 0,
            bits == 32 and integer and image.mode == "I",
            tags.get(_PHOTOMETRIC) == 0 and image.mode in _WIDE,
            turned,
        )


def _first(value: Any) -> Any:
    """The value of a tag, or the first of several."""
    return value[0] if isinstance(value, tuple) else value


def decode_raster(data: bytes, name: str, options: DecodeOptions) -> DecodedImage:
    """The image of a PNG, JPEG or TIFF file.

    Grey of more than 8 bits is scaled, not clipped; alpha is laid on black; palettes and CMYK become RGB; the EXIF
    orientation is applied. Of a JPEG that holds further pictures (MPO, as telephones write it) the primary one is shown
    unless another is chosen.

    Raises:
        DecodeError: see ``decoded_image.REASONS``.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    notes = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            image: Any = Image.open(io.BytesIO(data), formats=(name.upper(),))
            frames, frame = int(getattr(image, "n_frames", 1)), 0
            if frames > 1 and image.format == "MPO" and options.frame is None:
                notes.append("primary_picture")
            else:
                frame = options.chosen_frame(frames)
            if options.frame is not None:
                image.seek(frame)
            rows, columns = image.height, image.width
            options.check_size(rows, columns)
            end = {"jpeg": b"\xff\xd9", "png": b"IEND"}.get(name, b"")
            if end not in data[-65536:]:  # Pillow forgives a missing end where all rows could be read
                raise DecodeError("truncated", f"the {name.upper()} data of {len(data)} bytes has no end marker")
            stored = _Stored.of(image)
            image.load()
            turned = ImageOps.exif_transpose(image)  # of a TIFF file this is done already
        except (DecodeError, MemoryError):
            raise
        except Image.DecompressionBombError:
            raise DecodeError("too_large", f"more pixels than the allowed {options.max_pixels}") from None
        except UnidentifiedImageError:
            raise DecodeError("corrupt", f"the {name.upper()} header cannot be parsed") from None
        except OSError as error:
            short = "truncated" in str(error) or "unrecognized data stream" in str(error)
            raise DecodeError(
                "truncated" if short else "corrupt", f"the {name.upper()} data of {len(data)} bytes cannot be read"
            ) from None
        except Exception as error:
            raise DecodeError("corrupt", f"the {name.upper()} file stopped Pillow ({type(error).__name__})") from None
        if stored.turned:
            notes.append("exif_orientation")
        return _shown(turned, stored, name, frame, frames, notes, options)


def _shown(
    image: Any, about: _Stored, name: str, frame: int, frames: int, notes: list[str], options: DecodeOptions
) -> DecodedImage:
    from PIL import Image
    from PIL import __version__ as pillow_version

    photometric, bits, voi, signed = "GREY", 8, "none", False
    if image.mode in _WIDE:
        stored = np.asarray(image)
        if image.mode == "F":
            bits, signed, full_range = 32, True, "image"
        else:
            # PNG knows no grey wider than 16 bits; Pillow before 11 opens it as 32-bit "I".
            wide = image.mode == "I" and name != "png"
            bits, signed = (32, not about.unsigned) if wide else (about.bits or 16, False)
            full_range = "image" if wide or options.full_range == "image" else "type"
            stored = stored.astype(np.int32 if wide else np.uint16)
            stored = stored.view(np.uint32) if about.unsigned else stored
        voi = "full_range" if full_range == "image" else "none"
        mapping = GreyMapping(bits=bits, signed=signed, full_range=full_range, inverted=about.white_is_zero)
        pixels = _without_transparent(displayed_grey(stored, mapping), stored, image, notes)
    elif image.mode in ("1", "L"):
        stored = np.asarray(image.convert("L"))
        pixels = displayed_grey(stored, GreyMapping(bits=8, signed=False, full_range="type"))
        pixels = _without_transparent(pixels, stored, image, notes)
    elif image.mode in ("LA", "RGB", "RGBA", "P", "PA", "CMYK", "YCbCr"):
        photometric = "PALETTE COLOR" if image.mode in ("P", "PA") else "RGB"
        if image.mode in ("LA", "RGBA", "PA") or "transparency" in image.info:
            rgba = image.convert("RGBA")
            if rgba.getextrema()[3][0] < 255:
                notes.append("alpha_on_black")
                rgba = Image.alpha_composite(Image.new("RGBA", image.size, (0, 0, 0, 255)), rgba)
            image = rgba
        pixels = stored = np.asarray(image.convert("RGB"))
        check_not_constant(stored)
    else:
        raise DecodeError("unsupported", f"{name.upper()} of Pillow mode {image.mode} is not handled")
    return DecodedImage(
        np.ascontiguousarray(pixels),
        ImageMeta(
            format=name,
            rows=pixels.shape[0],
            columns=pixels.shape[1],
            channels=1 if pixels.ndim == 2 else 3,
            photometric=photometric,
            inverted=about.white_is_zero,
            bits_stored=bits,
            signed=signed,
            **stored_range(stored),
            modality="none",
            voi=voi,
            transfer_syntax="",
            codec=f"pillow {pillow_version}",
            frame=frame,
            frames=frames,
            notes=";".join(notes),
        ),
    )


def _without_transparent(pixels: np.ndarray, stored: np.ndarray, image: Any, notes: list[str]) -> np.ndarray:
    """The grey image with the one value that the file calls transparent laid on black."""
    value = image.info.get("transparency")
    if not isinstance(value, int) or not (stored == value).any():
        return pixels
    notes.append("alpha_on_black")
    return np.where(stored == value, 0, pixels).astype(pixels.dtype)
