#!/bin/bash
# CPython 3.13 with headers in a private prefix on Debian 12, so that such a machine can also test what
# needs a newer Python than its own (newer jax).
#
# usage: tools/mkpython313.sh [PREFIX]     then, since it has no pip of its own:
#        PREFIX/usr/bin/python3.13 -m venv --without-pip ENV
#        .venv/bin/python3 -m pip --python ENV/bin/python3 install ...
# Needs patchelf. SUITE (trixie), VERSION (3.13) and MIRROR may be set.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/_debian_prefix.sh"

prefix=$(realpath -m "${1:-/opt/python313}")
v=${VERSION:-3.13}
require patchelf
open_suite "${SUITE:-trixie}"
unpack "$prefix" \
  "python$v" "python$v-minimal" \
  "libpython$v-minimal" "libpython$v-stdlib" "libpython$v-dev" \
  libc6 libgcc-s1 libstdc++6 zlib1g libexpat1 libssl3t64 libffi8 libbz2-1.0 liblzma5 libsqlite3-0 \
  libncursesw6 libtinfo6 libreadline8t64 libuuid1 libzstd1

lib=$prefix/usr/lib/x86_64-linux-gnu
patchelf --set-interpreter "$lib/ld-linux-x86-64.so.2" --force-rpath --set-rpath "$lib" \
  "$prefix/usr/bin/python$v"
# Wheels bring extension modules in C++, which must find this libstdc++ and not the machine's.
patchelf --add-needed libstdc++.so.6 "$prefix/usr/bin/python$v"
echo "$prefix/usr/bin/python$v"
