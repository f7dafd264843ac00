#!/usr/bin/env bash
# Finishes an image's virtual environment: the project goes in, what no server needs goes out, the rest is compiled.
# Runs in the root of the tree while an image is built, and in docker/size.py:
#
#     docker/install.sh VENV
set -euo pipefail
venv=$1
python="$venv/bin/python"
"$python" -m pip install --quiet --no-compile --no-build-isolation --no-deps --no-index .
"$python" -m pip uninstall --quiet --yes setuptools wheel pip
"$python" docker/leave_out.py "$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
# Whoever the server runs as may not write here. Compiled without dates, so that copying the files does not matter.
"$python" -m compileall -q -j 0 --invalidation-mode unchecked-hash "$venv/lib"
cp docker/healthcheck.py "$venv/healthcheck.py"
chmod -R a+rX,go-w "$venv"
