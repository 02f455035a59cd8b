#!/bin/sh
# Builds PROGRAM.cc next to it: examples/cpp/build.sh examples/cpp/run_saved.cc OUTPUT
# TVM's runtime is found at run time by the paths of pip's packages that the program keeps.
set -e
PYTHON=${PYTHON:-python}
LIBS=$("$PYTHON" -c "
import importlib.util as u
folders = [u.find_spec('tvm').submodule_search_locations[0] + '/lib']
folders += [x + '/cu13/lib' for x in (u.find_spec('nvidia') or u.find_spec('tvm')).submodule_search_locations]
print(*('-Wl,-rpath,' + x for x in folders), '-L' + folders[0])")
FFI="$PYTHON -m tvm_ffi.config"
exec ${CXX:-g++} -std=c++17 -O2 $($FFI --cxxflags) "$1" -o "$2" \
  $($FFI --ldflags) -Wl,-rpath,$($FFI --libdir) $LIBS -Wl,--disable-new-dtags \
  -Wl,--no-as-needed -ltvm_runtime $($FFI --libs) -ldl
