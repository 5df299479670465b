"""How an exported model is used, as a few lines of Python that need nothing of ours."""

from pathlib import Path

from densekd.model.export import METADATA, Format

_OPEN: dict[Format, str] = {
    "onnx": """import json

import numpy as np
import onnxruntime
from PIL import Image, ImageOps

model = onnxruntime.InferenceSession({file})
about = model.get_modelmeta().custom_metadata_map
labels, size, side = (json.loads(about[k]) for k in ("labels", "image_size", "resize_shorter_side"))
""",
    "torch": """import json

import numpy as np
import torch
from PIL import Image, ImageOps

texts = {{"{metadata}": ""}}
model = torch.export.load({file}, extra_files=texts).module()
about = json.loads(texts["{metadata}"])
labels, size, side = (about[k] for k in ("labels", "image_size", "resize_shorter_side"))
""",
}
_READ = """
image = ImageOps.exif_transpose(Image.open({image})).convert("RGBA")
image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
width, height = (int(side * length / min(image.size)) for length in image.size)
left, top = round((width - size) / 2), round((height - size) / 2)
x, y = image.width / width, image.height / height
box = left * x, top * y, min((left + size) * x, image.width), min((top + size) * y, image.height)
crop = image.resize((size, size), Image.Resampling.BILINEAR, box=box)
pixels = np.asarray(crop).transpose(2, 0, 1)[None]  # uint8 [n, 3, size, size], any n

"""
_RUN: dict[Format, str] = {
    "onnx": """probabilities = model.run(["probabilities"], {"pixels": pixels})[0][0]
""",
    "torch": """with torch.no_grad():
    probabilities = model(torch.tensor(pixels))[0][0].numpy()
""",
}
_TELL = """for rank in probabilities.argsort()[::-1][:3]:
    print(f"{probabilities[rank]:.3f} {labels[rank]}")
"""


def usage(to: Format, file: Path, image: str = "image.jpg") -> str:
    """Python that opens an exported model, reads an image as in training and names what it shows.

    Args:
        to: the kind of file.
        file: the exported model.
        image: the name of an image's file.
    """
    opened = _OPEN[to].format(file=repr(str(file)), metadata=METADATA)
    return opened + _READ.format(image=repr(image)) + _RUN[to] + _TELL
