#!/bin/bash
# Debian's Bazel 7 in a private prefix on Debian 12 or 13, to check that the bzlmod side of the build
# works (the machine's own Bazel is 4.2.3). Optional: nothing of the project depends on it.
#
# usage: tools/mkbazel7.sh [PREFIX]     then: PREFIX/bazel test //...
# Needs patchelf and python3; about 50 s and 400 MB. SUITE (forky) and MIRROR may be set.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/_debian_prefix.sh"

prefix=$(realpath -m "${1:-/opt/bazel7}")
require patchelf python3
open_suite "${SUITE:-forky}"

# All that bazel-bootstrap depends on, less compilers, Perl, Python and the JDK: a headless JRE is
# enough for the server.
wanted='^(bazel-.*|lib.*-java|velocity|junit4|async-profiler-java|libasync-profiler-jni'
wanted+='|libjunixsocket-jni|libzstd-jni1|libabsl.*|libgrpc.*|libprotobuf[0-9].*|libprotoc[0-9].*'
wanted+='|libblake3-0|libstdc\+\+6|libgcc-s1|libc6|zlib1g|libssl3t64|libcares2|libre2-.*|libzstd1'
wanted+='|openjdk-[0-9]+-jre-headless|liblcms2-2|libjpeg62-turbo|libnspr4|libnss3|libpcsclite1)$'
mapfile -t packages < <(
  apt-get "${APT[@]}" -s install --no-install-recommends bazel-bootstrap libblake3-0 |
    awk '/^Inst/ {print $2}' | grep -E "$wanted"
)
unpack "$prefix" "${packages[@]}"

lib=$prefix/usr/lib/x86_64-linux-gnu
bazel=$prefix/usr/share/bazel
jre=$(find "$prefix/usr/lib/jvm" -maxdepth 1 -type d -name 'java-[0-9]*-openjdk-amd64' | sort | tail -n 1)

# Absolute links inside the packages (the JRE's configuration in /etc, jars in /usr/share/java) must
# lead into the prefix.
find "$prefix/usr/lib/jvm" "$prefix/usr/share" -type l | while read -r link; do
  target=$(readlink "$link")
  if [[ $target == /* && -e $prefix$target ]]; then ln -sfn "$prefix$target" "$link"; fi
done
for program in "$prefix/usr/bin/bazel" "$prefix"/usr/libexec/x86_64-linux-gnu/bazel/* \
  "$jre/bin/java" "$jre/lib/jspawnhelper"; do
  patchelf --set-interpreter "$lib/ld-linux-x86-64.so.2" \
    --force-rpath --set-rpath "$lib:$jre/lib:$jre/lib/server" "$program"
done
patchelf --add-needed libstdc++.so.6 --add-needed libblake3.so.0 "$jre/bin/java"
sed -i "s#/usr/share/java/#$prefix/usr/share/java/#" "$bazel/bazel_classpath_debian_depends.txt"

# Manifests of jars name their dependencies as /usr/share/java/X.jar: make them relative to the jar.
python3 - "$prefix/usr/share/java" <<'PY'
import os
import sys
import zipfile

MANIFEST = "META-INF/MANIFEST.MF"
folder = sys.argv[1]
for name in sorted(os.listdir(folder)):
    path = os.path.join(folder, name)
    if not name.endswith(".jar") or os.path.islink(path):
        continue
    with zipfile.ZipFile(path) as jar:
        if MANIFEST not in jar.namelist():
            continue
        text = jar.read(MANIFEST).replace(b"\r\n", b"\n").replace(b"\n ", b"")
        if b"/usr/share/java/" not in text:
            continue
        lines = []  # of 70 bytes at most; continuations begin with a space
        for line in text.replace(b"/usr/share/java/", b"").split(b"\n"):
            lines.append(line[:70])
            lines += [b" " + line[i : i + 69] for i in range(70, len(line), 69)]
        with zipfile.ZipFile(path + ".new", "w", zipfile.ZIP_DEFLATED) as out:
            for item in jar.infolist():
                data = b"\r\n".join(lines) if item.filename == MANIFEST else jar.read(item.filename)
                out.writestr(item, data)
    os.replace(path + ".new", path)
PY
rm -rf "$prefix"/usr/share/{doc,man,maven-repo,lintian,locale}

# Modules that @bazel_tools depends on and Debian does not package: empty, since no target reaches them.
stubs=$bazel/stubs
for module in apple_support buildozer protobuf zlib; do
  mkdir -p "$stubs/$module"
  echo "module(name = \"$module\")" >"$stubs/$module/MODULE.bazel"
  touch "$stubs/$module/BUILD.bazel"
done
cat >"$stubs/buildozer/buildozer_binary.bzl" <<'BZL'
def _repo(ctx):
    ctx.file("BUILD.bazel", "")

_r = repository_rule(_repo)
buildozer_binary = module_extension(lambda ctx: _r(name = "buildozer_binary"))
BZL

{
  echo "startup --install_base=$bazel --trust_install_base --server_javabase=$jre"
  echo "common --noenable_workspace"
  for module in \
    platforms=tools/platforms bazel_features=tools/features bazel_skylib=tools/skylib \
    rules_cc=rules/cc rules_java=rules/java rules_license=rules/license rules_proto=rules/proto \
    rules_python=rules/python apple_support=stubs/apple_support buildozer=stubs/buildozer \
    protobuf=stubs/protobuf zlib=stubs/zlib; do
    echo "common --override_module=${module%%=*}=$bazel/${module#*=}"
  done
} >"$prefix/bazelrc"
cat >"$prefix/bazel" <<SH
#!/bin/sh
exec $prefix/usr/bin/bazel --nosystem_rc --bazelrc=$prefix/bazelrc "\$@"
SH
chmod +x "$prefix/bazel"
echo "$prefix/bazel"
