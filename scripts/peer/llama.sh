#!/bin/bash
# llama.sh DIR [SOURCE]: builds llama.cpp for this processor into DIR, and `drive`, the program that `make bench PEER=DIR`
# runs beside tandem. SOURCE is a llama.cpp checkout; without it the source is taken out of the sdist of the package
# llama-cpp-python. Needs cmake, ninja, gcc and g++; about ten minutes on two cores.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
version=0.3.36
[[ $# -ge 1 ]] || { sed -n '2,4s/^# //p' "$0"; exit 2; }
mkdir -p "$1"
cd "$1"
for tool in cmake ninja gcc g++; do
  command -v $tool >/dev/null || { echo "llama.sh: $tool is missing: apt-get install cmake ninja-build gcc g++" >&2; exit 1; }
done
src=${2:-}
if [[ -z $src ]]; then
  if [[ ! -d sdist ]]; then
    pip download -q --no-deps --no-binary llama-cpp-python "llama-cpp-python==$version"
    tar xf llama_cpp_python-*.tar.gz
    mv llama_cpp_python-*/ sdist
  fi
  src=$PWD/sdist/vendor/llama.cpp
fi
# GCC 12 drops the tile configuration of the AMX kernels before it is loaded; a
# barrier keeps it.
amx=$src/ggml/src/ggml-cpu/amx/mmq.cpp
if [[ -f $amx ]] && ! grep -q 'asm volatile("" : : "r"(&tc)' "$amx"; then
  sed -i 's/^\( *\)_tile_loadconfig(&tc);/\1asm volatile("" : : "r"(\&tc) : "memory");\n\1_tile_loadconfig(\&tc);/' "$amx"
fi
off=()
for o in USE_PREBUILT_UI BUILD_UI OPENSSL CURL BUILD_TESTS BUILD_TOOLS BUILD_EXAMPLES BUILD_SERVER; do off+=("-DLLAMA_$o=OFF"); done
cmake -S "$src" -B build -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DBUILD_SHARED_LIBS=ON "${off[@]}" >cmake.log
ninja -C build llama >ninja.log
gcc -O2 -std=c11 "$here/drive.c" -I "$src/include" -I "$src/ggml/include" -L build/bin -lllama -lggml -lggml-base -Wl,-rpath,"$PWD/build/bin" -o drive
echo "$PWD/drive"
