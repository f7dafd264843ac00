#!/usr/bin/env bash
# Installs the packages of extras while an image is built, in the root of the tree. EXTRAS are names with commas between:
#
#     docker/extras/install.sh VENV cpu|gpu|gpu12 EXTRAS
set -euo pipefail
venv=$1 stage=$2 extras=${3//[[:space:]]/}
cd docker/extras
for extra in ${extras//,/ }; do
  case $extra in otel | redis) continue ;; esac # in every image
  # An extra of one stage alone is called after both.
  lock=$extra.lock
  [ -f "$lock" ] || lock=$stage-$extra.lock
  if [[ $extra = *-* ]] || ! [ -f "$lock" ]; then
    known=$(ls | sed -nE "s/^($stage-)?([a-z]+)\.lock$/\2/p" | sort | tr '\n' ' ')
    echo "EXTRAS=$3: the $stage image has no extra '$extra', only: $known(otel and redis are in every image)" >&2
    exit 1
  fi
  "$venv/bin/python" -m pip install --no-compile --no-deps --require-hashes -r "$lock" || {
    if [ "$lock" = cpu-torch.lock ]; then
      echo "PyTorch for CPUs is not on PyPI: give PyTorch's index for CPUs, --build-arg PIP_EXTRA_INDEX_URL=ADDRESS" >&2
    elif [ "$extra" = tensorrt ]; then
      echo "TensorRT's libraries are not on PyPI: the build fetches them from pypi.nvidia.com" >&2
    fi
    exit 1
  }
done
