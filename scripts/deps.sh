#!/usr/bin/env bash
# Installs what the project needs from Debian's packages, and nothing that is there already.
#
#   scripts/deps.sh GROUP...        groups: build python extension test browser sanitize bundle deploy lint cache
#
# Quick and offline when nothing is missing. Needs root or sudo only when something is.
set -euo pipefail

packages() {
  case $1 in
    build)
      echo cmake ninja-build pkg-config
      echo libgrpc++-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc libssl-dev
      echo libabsl-dev libtbb-dev libhwy-dev libsodium-dev libxxhash-dev
      echo libcli11-dev libtomlplusplus-dev libspdlog-dev prometheus-cpp-dev
      echo librocksdb-dev libboost-dev
      ;;
    python) echo python3 python3-venv ;;
    extension) echo python3-dev dpkg-dev xz-utils ;;
    test) echo libgtest-dev libgmock-dev faketime ;;
    browser) echo chromium chromium-driver nodejs curl ;;
    sanitize) echo clang-14 libclang-rt-14-dev llvm-14 ;;
    bundle) echo dpkg-dev xz-utils ;;
    deploy) echo podman runc netavark aardvark-dns iptables iproute2 mmdebstrap openssl ;;
    lint) echo clang-14 clang-format-14 shellcheck git yamllint systemd ;;
    cache) echo ccache ;;
    *)
      echo "deps: unknown group '$1' (build, python, extension, test, browser, sanitize, bundle, deploy, lint, cache)" >&2
      exit 2
      ;;
  esac
}

# Whether a group needs no package of ours: any C++ compiler serves, any Python that makes virtual environments, and the
# headers that this Python came with.
have_compiler() { command -v "${CXX:-c++}" >/dev/null; }
have_python() { "${PYTHON:-python3}" -c 'import ensurepip, venv' 2>/dev/null; }
have_headers() {
  "${PYTHON:-python3}" -c 'import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null
}

wanted=()
for group in "$@"; do
  names=$(packages "$group")
  read -r -d '' -a names <<<"$names" || true
  case $group in
    build) have_compiler || names+=(g++) ;;
    python) if have_python; then names=(); fi ;;
    extension) if have_headers; then names=(dpkg-dev xz-utils); fi ;;
  esac
  wanted+=("${names[@]}")
done

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  # Not Debian or one of its children: go on when the tools are there by other means.
  missing=()
  for tool in cmake ninja pkg-config protoc grpc_cpp_plugin; do
    command -v "$tool" >/dev/null || missing+=("$tool")
  done
  if [[ ${#missing[@]} -eq 0 ]]; then exit 0; fi
  {
    echo "deps: this system has no apt-get, so please install these by hand: ${missing[*]}"
    echo "deps: in Debian 12 the packages are: ${wanted[*]}"
  } >&2
  exit 1
fi

missing=()
if [[ ${#wanted[@]} -gt 0 ]]; then
  # dpkg-query fails when it does not know one of the names; what it prints still counts.
  # shellcheck disable=SC2016  # ${…} is dpkg-query's own
  installed=$(dpkg-query -W -f='${db:Status-Status} ${Package}\n' "${wanted[@]}" 2>/dev/null || true)
  for package in "${wanted[@]}"; do
    [[ $'\n'"$installed"$'\n' == *$'\n'"installed $package"$'\n'* ]] || missing+=("$package")
  done
fi
if [[ ${#missing[@]} -eq 0 ]]; then exit 0; fi

as_root=()
if [[ $(id -u) -ne 0 ]]; then
  if ! command -v sudo >/dev/null; then
    echo "deps: missing, and neither root nor sudo to install them: ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi

echo "deps: installing ${missing[*]}"
"${as_root[@]}" apt-get -q update
if ! "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y install --no-install-recommends "${missing[@]}"; then
  {
    echo "deps: apt-get could not install all of: ${missing[*]}"
    echo "deps: the names are those of Debian 12 (bookworm); scripts/deps.sh holds the list"
  } >&2
  exit 1
fi
