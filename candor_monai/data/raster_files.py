"""PNG, JPEG and TIFF files, as displayed."""

from __future__ import annotations

import io
import warnings
from typing import Any

import numpy as np

from candor_monai.utils.errors import DecodeError

from .decoded_image import DecodedImage, DecodeOptions, ImageMeta, stored_range
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


def raster_format(data: bytes) -> str | None:
    """``png``, ``jpeg`` or ``tiff`` by the file's first bytes, or None."""
    return next((name for signature, name in SIGNATURES.items() if data.startswith(signature)), None)


def decode_raster(data: bytes, name: str, options: DecodeOptions) -> DecodedImage:
    """The image of a PNG, JPEG or TIFF file.

    Grey of more than 8 bits is scaled, not clipped; alpha is laid on black; palettes and CMYK become RGB; the EXIF
    orientation is applied.

    Raises:
        DecodeError: see ``decoded_image.REASONS``.
    """
    from PIL import Image, UnidentifiedImageError

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            image: Any = Image.open(io.BytesIO(data), formats=(name.upper(),))
            frames = int(getattr(image, "n_frames", 1))
            frame = options.chosen_frame(frames)
            if options.frame is not None:
                image.seek(frame)
            rows, columns = image.height, image.width
            options.check_size(rows, columns)
            end = {"jpeg": b"\xff\xd9", "png": b"IEND"}.get(name, b"")
            if end not in data[-65536:]:  # Pillow forgives a missing end where all rows could be read
                raise DecodeError("truncated", f"the {name.upper()} data of {len(data)} bytes has no end marker")
            image.load()
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
        notes = []
        if name == "jpeg":
            from PIL import ImageOps

            turned = ImageOps.exif_transpose(image)
            if (turned is not image and turned.size != image.size) or image.getexif().get(0x0112, 1) != 1:
                notes.append("exif_orientation")
            image = turned
        return _shown(image, name, frame, frames, notes, options)


def _shown(image: Any, name: str, frame: int, frames: int, notes: list[str], options: DecodeOptions) -> DecodedImage:
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
            bits, signed = (32, True) if wide else (16, False)
            full_range = "image" if wide or options.full_range == "image" else "type"
            stored = stored.astype(np.int32 if wide else np.uint16)
        voi = "full_range" if full_range == "image" else "none"
        pixels = displayed_grey(stored, GreyMapping(bits=bits, signed=signed, full_range=full_range))
    elif image.mode in ("1", "L"):
        stored = np.asarray(image.convert("L"))
        pixels = displayed_grey(stored, GreyMapping(bits=8, signed=False, full_range="type"))
    elif image.mode in ("LA", "RGB", "RGBA", "P", "PA", "CMYK", "YCbCr"):
        photometric = "PALETTE COLOR" if image.mode in ("P", "PA") else "RGB"
        if image.mode in ("LA", "RGBA", "PA") or "transparency" in image.info:
            rgba = image.convert("RGBA")
            if rgba.getextrema()[3][0] < 255:
                notes.append("alpha_on_black")
                rgba = Image.alpha_composite(Image.new("RGBA", image.size, (0, 0, 0, 255)), rgba)
            image = rgba
        pixels = stored = np.asarray(image.convert("RGB"))
        if stored.min() == stored.max():
            raise DecodeError("constant", "every pixel has the same stored value")
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
            inverted=False,
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
