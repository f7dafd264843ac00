#!/usr/bin/env bash
# Completes an image's virtual environment: installs the project, removes what no server needs, compiles the rest.
# Runs in the folder of `dist`, where the project's wheel is, while an image is built:
#
#     docker/install.sh VENV
set -euo pipefail
venv=$1
python="$venv/bin/python"
"$python" -m pip install --quiet --no-compile --no-deps --no-index dist/trident_inference-*.whl
"$python" -m pip uninstall --quiet --yes setuptools wheel pip
# What the image consists of, with the packages of its base.
"$python" docker/components.py "$("$venv/bin/trident" --version | cut -d' ' -f2)" \
  "$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" /var/lib/dpkg/status >"$venv/components.cdx.json"
"$python" docker/leave_out.py "$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
# Compiled now, because the server's user may not write here; without dates, so that the files can be copied.
"$python" -m compileall -q -j 0 --invalidation-mode unchecked-hash "$venv/lib"
cp docker/healthcheck.py "$venv/healthcheck.py"
chmod -R a+rX,go-w "$venv"
