#!/usr/bin/env bash
# A Triton 2.51 (r24.10) without a container, in the folder TO: the server, its Python backend and response cache from
# the wheel of PyTriton, and its ONNX Runtime backend, compiled from NVIDIA's sources against the ONNX Runtime of this
# environment, so that both servers run the same. Needs git, g++ and pip.
#
#     tests/triton_answers/build_triton.sh TO
#     export TRITON=TO/run
#
# SOURCES is where the repositories are cloned from (default: https://github.com).
set -euo pipefail
to=$(realpath -m "${1:?"the folder to make"}")
python=${PYTHON:-python}
sources=${SOURCES:-https://github.com}
release=r24.10
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$to"

"$python" -m pip download --quiet --no-deps --dest "$work" nvidia-pytriton==0.5.13
"$python" -m zipfile -e "$work"/nvidia_pytriton-*.whl "$work/wheel"
rm -rf "$to/pytriton" "$to/nvidia_pytriton.libs"
mv "$work/wheel/pytriton" "$work/wheel/nvidia_pytriton.libs" "$to"
server=$to/pytriton/tritonserver
version=$("$python" -c 'import sys; print(f"{sys.version_info[0]}.{sys.version_info[1]}")')
cp "$server/python_backend_stubs/$version/triton_python_backend_stub" "$server/backends/python"
chmod +x "$server/bin/tritonserver" "$server/backends/python/triton_python_backend_stub"

for repository in onnxruntime_backend backend core common; do
  git clone --quiet --branch "$release" "$sources/triton-inference-server/$repository" "$work/$repository"
done
git clone --quiet "$sources/Tencent/rapidjson" "$work/rapidjson"
# The headers of the C API, which Microsoft's package for Python lacks.
git clone --quiet --no-checkout "$sources/yalue/onnxruntime_go" "$work/headers"
git -C "$work/headers" checkout --quiet HEAD -- '*.h'
touch "$work/headers/cpu_provider_factory.h"

onnxruntime=$server/backends/onnxruntime
mkdir -p "$onnxruntime" "$work/objects"
library=$("$python" -c 'import onnxruntime, pathlib; print(*pathlib.Path(onnxruntime.__file__).parent.glob("capi/libonnxruntime.so.*"))')
cp "$library" "$onnxruntime/libonnxruntime.so.1"
cd "$work"
# shellcheck disable=SC2016
printf '%s\n' onnxruntime_backend/src/*.cc common/src/{async_work_queue,error,logging,thread_pool}.cc \
  backend/src/backend_{common,input_collector,memory,model,model_instance,output_responder}.cc |
  xargs -P "$(nproc)" -I FILE sh -c 'g++ -O3 -DNDEBUG -std=c++17 -fPIC -DTRITON_ENABLE_STATS=1 -DTRITON_ENABLE_LOGGING=1 \
    -Iheaders -Icore/include -Ibackend/include -Ibackend/src -Icommon/include -Irapidjson/include \
    -Ionnxruntime_backend/src -c FILE -o "objects/$(basename FILE).o"'
g++ -shared -o "$onnxruntime/libtriton_onnxruntime.so" objects/*.o -Wl,-rpath,'$ORIGIN' \
  -Wl,--version-script,onnxruntime_backend/src/libtriton_onnxruntime.ldscript "$onnxruntime/libonnxruntime.so.1" -lpthread -ldl

# The process of a Python model gets no variables of Python; the first folder on its path is the server's.
"$python" -m pip install --quiet --no-deps --only-binary :all: --target "$to/python" 'numpy<2'
cat >"$to/run" <<RUN
#!/bin/sh
# Paths in the options have to be absolute.
export LD_LIBRARY_PATH=$("$python" -c 'import sysconfig; print(sysconfig.get_config_var("LIBDIR"))')
cd $to/python
exec $server/bin/tritonserver --backend-directory=$server/backends --cache-directory=$server/caches "\$@"
RUN
chmod +x "$to/run"
echo "$to/run"
