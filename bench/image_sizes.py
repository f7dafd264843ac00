"""The picture of the images' sizes beside Triton's, for docs/gpu.md.

python -m bench.image_sizes        writes docs/pictures/image-sizes-light.svg and -dark.svg from docker/sizes.json
"""

from __future__ import annotations

import html

from bench.pictures import PICTURES, THEMES
from docker.size import counted, read_sizes

# In GB, as `docker images` printed them: issues 5383, 7474 and 8476 of triton-inference-server/server.
TRITON = {
    "Triton 23.01-py3-min, a base": 8.27,
    "Triton 25.02-py3-min, a base": 10.0,
    "Triton 23.01-tf2-python-py3": 10.2,
    "Triton 24.06-py3": 15.5,
    "Triton 23.01-py3": 16.0,
}
TRIDENT = {"cpu": "Trident, CPUs", "gpu": "Trident, CUDA 13", "gpu12": "Trident, CUDA 12"}
CAPTION = "GB on disk. Trident: files in the image (docker/size.py). Triton: as users reported them."
ROW, LABEL, WIDTH = 26, 200, 460


def rows() -> list[tuple[str, float]]:
    """The label and the GB of each image."""
    sizes = read_sizes()
    return [*((label, counted(image, sizes) / 1e9) for image, label in TRIDENT.items()), *TRITON.items()]


def svg(images: list[tuple[str, float]], theme: str) -> str:
    colours = THEMES[theme]
    scale = WIDTH / max(size for _, size in images)
    parts = []
    for row, (label, size) in enumerate(images):
        y, width, text = ROW * row, size * scale, colours["text"]
        colour = colours["behind" if label in TRITON else "bar"]
        parts += [
            f'<text x="{LABEL - 10}" y="{y + 17}" fill="{text}" text-anchor="end">{html.escape(label)}</text>',
            f'<rect x="{LABEL}" y="{y + 5}" width="{width:.1f}" height="{ROW - 10}" rx="2" fill="{colour}"/>',
            f'<text x="{LABEL + width + 6:.1f}" y="{y + 17}" fill="{colours["faint"]}">{size:.3g}</text>',
        ]
    right, bottom, caption = LABEL + WIDTH, ROW * len(images), html.escape(CAPTION)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {right + 50} {bottom + 28}" role="img" '
        f'font-size="12" font-family="system-ui, sans-serif"><title>{caption}</title>{"".join(parts)}'
        f'<text x="{right}" y="{bottom + 18}" text-anchor="end" fill="{colours["faint"]}">{caption}</text></svg>\n'
    )


if __name__ == "__main__":
    for theme in THEMES:
        (PICTURES / f"image-sizes-{theme}.svg").write_text(svg(rows(), theme))
