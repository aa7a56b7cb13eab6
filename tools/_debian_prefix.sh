# Sourced by mkbazel7.sh and mkpython313.sh: packages of another Debian suite in a private prefix.
#
# apt only downloads, with package lists of its own, and dpkg -x unpacks: nothing is installed, and the
# machine's apt never hears of the other suite. The programs then get that suite's libc by patchelf.
# shellcheck shell=bash

require() {
  local tool
  for tool in "$@"; do
    command -v "$tool" >/dev/null || {
      echo "needs $tool: apt-get install $tool" >&2
      exit 1
    }
  done
}

# The mirror that this machine uses. Ubuntu's does not carry Debian's suites.
debian_mirror() {
  local found
  found=$(sed -n 's/^URIs: *//p; s/^deb \(\[[^]]*\] \)\?\([^ ]*\).*/\2/p' \
    /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null |
    grep -v -e security -e ubuntu | head -n 1 || true)
  echo "${found:-http://deb.debian.org/debian}"
}

# open_suite SUITE: sets SCRATCH (removed at exit) and APT, the options for apt-get.
open_suite() {
  local suite=$1 key=/usr/share/keyrings/debian-archive-keyring.gpg
  [[ $(dpkg --print-architecture) == amd64 ]] || { echo "for x86-64 only" >&2; exit 1; }
  [[ -r $key ]] || { echo "needs $key: apt-get install debian-archive-keyring" >&2; exit 1; }
  SCRATCH=$(mktemp -d)
  trap 'rm -rf "$SCRATCH"' EXIT
  mkdir -p "$SCRATCH"/{lists/partial,cache/archives/partial,debs}
  echo "deb [arch=amd64 signed-by=$key] ${MIRROR:-$(debian_mirror)} $suite main" \
    >"$SCRATCH/sources.list"
  APT=(
    -o Dir::Etc::sourcelist="$SCRATCH/sources.list" -o Dir::Etc::sourceparts=/dev/null
    -o Dir::State::Lists="$SCRATCH/lists" -o Dir::State::status=/dev/null
    -o Dir::Cache="$SCRATCH/cache" -o APT::Sandbox::User=root -o Acquire::Languages=none
  )
  apt-get "${APT[@]}" -qq update
}

# unpack PREFIX PACKAGE...: replaces PREFIX by the contents of the packages.
unpack() {
  local prefix=$1 deb
  shift
  (cd "$SCRATCH/debs" && apt-get "${APT[@]}" -qq download "$@")
  rm -rf "$prefix"
  mkdir -p "$prefix"
  for deb in "$SCRATCH"/debs/*.deb; do dpkg -x "$deb" "$prefix"; done
}
