#!/bin/bash
# Runs a test that was built with a sanitizer (--run_under, see .bazelrc).
set -euo pipefail

# ThreadSanitizer of GCC < 14 refuses the address layout of kernels with more than 28 bits of mmap
# randomisation. Containers may forbid changing it: then go on, it is only needed on some kernels.
prefix=()
if setarch -R true 2>/dev/null; then
  prefix=(setarch -R)
fi

# Suppressions are found beside this script, wherever Bazel has put it.
here=${BASH_SOURCE[0]%/*}
for name in tsan lsan; do
  file=$(readlink -f "$here/suppressions/$name.supp" || true)
  variable=${name^^}_OPTIONS
  if [[ -s $file ]]; then
    export "$variable=suppressions=$file${!variable:+:${!variable}}"
  fi
done

exec "${prefix[@]}" "$@"
