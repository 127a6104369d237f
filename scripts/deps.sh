#!/usr/bin/env bash
# Installs what the project needs from Debian's packages, and nothing that is there already.
#
#   scripts/deps.sh GROUP...                      a group is a name of the list below
#   scripts/deps.sh --sysroot FOLDER GROUP...     unpacks the groups' libraries for arm64 below FOLDER, and installs nothing
#
# Quick and offline when nothing is missing. Needs root or sudo only when something is; --sysroot never does.
set -euo pipefail

declare -A packages=(
  [build]='cmake ninja-build pkg-config libgrpc++-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc libssl-dev
           libabsl-dev libtbb-dev libhwy-dev libsodium-dev libxxhash-dev libcli11-dev libtomlplusplus-dev libspdlog-dev
           prometheus-cpp-dev librocksdb-dev libboost-dev'
  [python]='python3 python3-venv'
  [extension]='dpkg-dev xz-utils'
  [test]='libgtest-dev libgmock-dev faketime'
  [browser]='chromium chromium-driver nodejs curl'
  [languages]='golang-go golang-google-grpc-dev golang-github-golang-protobuf-1-5-dev protoc-gen-go-1-5 protoc-gen-go-grpc
               default-jdk-headless libgrpc-java libnetty-java libperfmark-java libprotobuf-java protobuf-compiler-grpc-java-plugin
               ruby-grpc ruby-grpc-tools cargo librust-ureq-dev librust-serde-json-dev librust-base64-dev'
  [sanitize]='clang-14 libclang-rt-14-dev llvm-14'
  [bundle]='dpkg-dev xz-utils'
  [deploy]='podman runc netavark aardvark-dns iptables iproute2 mmdebstrap openssl'
  [lint]='clang-14 clang-format-14 shellcheck git yamllint systemd'
  [cache]='ccache'
  [cross]='g++-aarch64-linux-gnu'
  [emulate]='qemu-user-static'
)
sysroot=
if [[ ${1-} == --sysroot ]]; then
  sysroot=$2
  shift 2
fi
python=${PYTHON:-python3}
find_headers='import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")'
wanted=()
for group in "$@"; do
  if [[ ! -v packages[$group] ]]; then
    echo "deps: unknown group '$group' (${!packages[*]})" >&2
    exit 2
  fi
  read -r -d '' -a names <<<"${packages[$group]}" || true
  # Any C++ compiler serves, any Python that makes virtual environments, and the headers that this Python came with.
  case $group in
    build) command -v "${CXX:-c++}" >/dev/null || names+=(g++) ;;
    python) if "$python" -c 'import ensurepip, venv' 2>/dev/null; then names=(); fi ;;
    extension) "$python" -c "$find_headers" 2>/dev/null || names+=(python3-dev) ;;
  esac
  wanted+=("${names[@]}")
done

if [[ -n $sysroot ]]; then
  # By an apt that knows arm64 alone, and no installed package: multiarch would change the machine's own.
  rm -rf "$sysroot"
  mkdir -p "$sysroot/.apt/lists/partial" "$sysroot/.apt/archives/partial"
  touch "$sysroot/.apt/status"
  apt=(apt-get -q -y -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o "Dir::State::Lists=$sysroot/.apt/lists"
    -o "Dir::State::Status=$sysroot/.apt/status" -o "Dir::Cache=$sysroot/.apt" -o Debug::NoLocking=1
    -o "APT::Sandbox::User=$(id -un)")
  # gRPC's CMake files want its plugins beside its libraries.
  mapfile -t libraries < <(printf '%s\n' "${wanted[@]}" | grep -E -e '-dev$|-grpc$')
  "${apt[@]}" update
  # python3-dev: the headers, and a Python in which emulated wheels run.
  "${apt[@]}" install --download-only --no-install-recommends "${libraries[@]}" python3-dev
  for package in "$sysroot"/.apt/archives/*.deb; do dpkg-deb -x "$package" "$sysroot"; done
  # The only CMake files that find their libraries by an absolute path.
  sed -i "s,\"/usr,\"$sysroot/usr," "$sysroot"/usr/lib/*/cmake/Snappy/SnappyTargets*.cmake
  rm -r "$sysroot/.apt"
  exit 0
fi

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  # Not Debian or one of its children: go on when the tools are there by other means.
  for tool in cmake ninja pkg-config protoc grpc_cpp_plugin; do
    if ! command -v "$tool" >/dev/null; then
      echo "deps: no $tool, and no apt-get. Please install by hand what Debian 12 has in: ${wanted[*]}" >&2
      exit 1
    fi
  done
  exit 0
fi

# dpkg-query fails when it does not know one of the names; what it prints still counts.
# shellcheck disable=SC2016  # ${…} is dpkg-query's own
installed=$(dpkg-query -W -f='${db:Status-Status} ${Package}\n' "${wanted[@]}" 2>/dev/null || true)
missing=()
for package in "${wanted[@]}"; do
  grep -qxF "installed $package" <<<"$installed" || missing+=("$package")
done
if [[ ${#missing[@]} -eq 0 ]]; then exit 0; fi

as_root=()
if [[ $(id -u) -ne 0 ]]; then
  as_root=(sudo)
  if ! command -v sudo >/dev/null; then
    echo "deps: missing, and neither root nor sudo to install them: ${missing[*]}" >&2
    exit 1
  fi
fi
echo "deps: installing ${missing[*]}, as Debian 12 (bookworm) calls them"
"${as_root[@]}" apt-get -q update
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y install --no-install-recommends "${missing[@]}"
