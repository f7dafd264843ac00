#!/usr/bin/env bash
# Builds an image without an engine and tests it in all three roles: `make image-check`. A GPU is not needed: without
# one the images for GPUs serve on the CPU, and their libraries are only resolved.
#
#     docker/check.sh [FOLDER]
#     EXTRAS=openvino,trees docker/check.sh
#     STAGE=gpu docker/check.sh
#     STAGE=gpu12 docker/check.sh
#
# Needs root on Debian or Ubuntu, `apt-get install buildah debootstrap`, and .venv as `make check` makes it (or PYTHON); for
# GPUs also `gcc binutils`. Not for the extra tensorrt, which has no wheels to build from.
# The base image is a substitute: Debian 12 with its Python 3.11. It is made once and kept in FOLDER (build/image-check)
# together with the wheels. Nothing else is kept: the store of images is removed at the end.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
folder=$(realpath -m "${1:-build/image-check}")
python=${PYTHON:-.venv/bin/python}
extras=${EXTRAS:-}
stage=${STAGE:-cpu}
base=localhost/trident-check-base
image=localhost/trident-check

[[ ",$extras," != *,tensorrt,* ]] || { echo "EXTRAS=tensorrt can only be built with a network" >&2; exit 1; }
[ "$(id -u)" = 0 ] || { echo "root is needed to make a root file system and to run in it" >&2; exit 1; }
for tool in buildah debootstrap unshare; do
  command -v "$tool" > /dev/null || { echo "$tool is missing: apt-get install buildah debootstrap util-linux" >&2; exit 1; }
done

mkdir -p "$folder"
store=$(mktemp -d "$folder/store.XXXXXX")
buildah() { command buildah --root "$store/root" --runroot "$store/run" --storage-driver "${STORAGE_DRIVER:-vfs}" "$@"; }
finish() {
  buildah rm --all > /dev/null 2>&1 || true
  rm -rf "$store"
}
trap finish EXIT

echo "== the substitute for the base image"
if [ ! -e "$folder/base.tar" ]; then
  root="$store/debian"
  debootstrap --variant=minbase --include=ca-certificates,python3,python3-async-timeout,python3-dev,python3-venv \
    bookworm "$root" > "$folder/debootstrap.log" || { tail "$folder/debootstrap.log" >&2; exit 1; }
  # Give the interpreter its path in the official image, and remove files that this image does not have.
  ln -s /usr/bin/python3 "$root/usr/local/bin/python"
  # Python 3.11.2 lacks what the client of Redis takes from 3.11.3.
  ln -s ../python3/dist-packages/async_timeout "$root/usr/lib/python3.11/async_timeout"
  rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/* "$root"/usr/share/doc
  tar --create --file "$folder/base.tar.part" --directory "$root" --one-file-system .
  mv "$folder/base.tar.part" "$folder/base.tar"
  rm -rf "$root"
fi
container=$(buildah from scratch)
buildah add --quiet "$container" "$folder/base.tar" / > /dev/null
buildah commit --quiet --rm "$container" "$base" > /dev/null

echo "== the wheels, with this machine's pip"
locks=(docker/requirements-build.lock docker/requirements-compile.lock "docker/requirements-$stage.lock")
for extra in ${extras//,/ }; do
  lock="docker/extras/$extra.lock"
  [ -f "$lock" ] || lock="docker/extras/$stage-$extra.lock"
  [ ! -f "$lock" ] || locks+=("$lock")
done
for lock in "${locks[@]}"; do
  "$python" -m pip download -qq --no-deps --require-hashes --dest "$folder/wheels" -r "$lock"
done
printf '[global]\nno-index = true\nfind-links = /wheels\n' > "$store/pip.conf"

echo "== the image"
buildah build --isolation chroot --network host --format docker --target "${stage%12}" --tag "$image" \
  --build-arg BASE_IMAGE="$base" --build-arg CUDA="$([ "$stage" = gpu12 ] && echo 12 || echo 13)" --build-arg EXTRAS="$extras" --file docker/Dockerfile \
  --volume "$folder/wheels:/wheels:ro" --volume "$store/pip.conf:/etc/pip.conf:ro" . \
  > "$folder/build.log" 2>&1 || { tail -n 40 "$folder/build.log" >&2; exit 1; }

container=$(buildah from "$image")
buildah inspect --type image "$image" > "$store/image.json"
root=$(buildah mount "$container")
"$python" docker/probe.py "$root" "$store/image.json" "$container" "$stage" "$extras" -- \
  "$(command -v buildah)" --root "$store/root" --runroot "$store/run" --storage-driver "${STORAGE_DRIVER:-vfs}" \
  run --isolation chroot --network host
echo "image-check: passed"
