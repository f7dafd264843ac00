"""Which driver a version of CUDA needs.

Source: NVIDIA's CUDA Toolkit release notes, table "CUDA Toolkit and Minimum Required Driver Version for CUDA Minor
Version Compatibility", for Linux: libraries of any 12.x run on a driver of 12.0.
"""

from __future__ import annotations

# By CUDA's major version.
LEAST_DRIVERS = {11: "450.80.02", 12: "525.60.13", 13: "580.65.06"}
OLD_DRIVER_CURE = (
    "use a machine with a newer driver; in place of CUDA 13 the image with CUDA 12 (docker build --build-arg CUDA=12; "
    "with pip: trident-inference[gpu12]); see docs/gpu.md"
)


def old_driver(needed: str, driver: str, supported: str) -> str:
    """Why libraries of the CUDA version `needed`, such as "13.0", do not run on a driver; "" if they do.

    `supported` is the newest version of CUDA that the driver supports, with the libraries of a forward compatibility
    package if there is one. Unknown versions are not judged.
    """
    major, newest = needed.partition(".")[0], supported.partition(".")[0]
    if not major.isdecimal() or not newest.isdecimal() or int(newest) >= int(major):
        return ""
    least = LEAST_DRIVERS.get(int(major))
    needs = f"{least} or later" if least else "a newer one"
    return f"driver {driver} is too old for CUDA {major}: it supports CUDA {supported}, and {needs} is needed"
