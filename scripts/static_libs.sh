#!/usr/bin/env bash
# Builds the libraries of which Debian has no archives that serve here, from Debian's own sources: oneTBB and Highway; and
# Abseil and protobuf, whose archives cannot be linked into a Python extension (they are not position-independent).
#
#   scripts/static_libs.sh FOLDER            installs all of them below FOLDER, for bundles and wheels
#   scripts/static_libs.sh FOLDER protobuf   installs protobuf alone, which every Python extension links (2 CPU minutes)
#
# Does nothing where it has done so already. All else that bundle and wheels need Debian packs as archives, in the packages
# of `scripts/deps.sh build test`.
set -euo pipefail

if [[ $# -ne 1 && "$*" != "$1 protobuf" ]]; then
  echo "usage: scripts/static_libs.sh FOLDER [protobuf]" >&2
  exit 2
fi
mkdir -p "$1"
prefix=$(cd "$1" && pwd)
# Count up when what is built here changes.
protobuf_done=$prefix/.done-protobuf-1
done_file=$prefix/.done-4
sources=()
if [[ ! -e $protobuf_done ]]; then sources+=(protobuf); fi
if [[ $# -eq 1 && ! -e $done_file ]]; then sources+=(abseil onetbb highway); fi
if [[ ${#sources[@]} -eq 0 ]]; then exit 0; fi

work=$prefix/.work  # always the same, so that a compiler cache knows its files
rm -rf "$work"
mkdir "$work"
trap 'rm -rf "$work"' EXIT

# The system's own sources of packages, asked for sources instead of binaries; the system itself stays as it is.
mkdir -p "$work/apt/parts" "$work/apt/lists/partial" "$work/src"
shopt -s nullglob
for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
  if [[ -f $file ]]; then sed -n 's/^deb /deb-src /p' "$file" >"$work/apt/parts/$(basename "$file" .list).list"; fi
done
for file in /etc/apt/sources.list.d/*.sources; do
  sed 's/^Types:.*/Types: deb-src/' "$file" >"$work/apt/parts/$(basename "$file")"
done
apt=(apt-get -q -o "Dir::Etc::SourceList=/dev/null" -o "Dir::Etc::SourceParts=$work/apt/parts"
  -o "Dir::State::Lists=$work/apt/lists" -o "APT::Sandbox::User=$(id -un)")
"${apt[@]}" update
(cd "$work/src" && "${apt[@]}" source "${sources[@]}")

common=(-G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF -DCMAKE_POSITION_INDEPENDENT_CODE=ON
  "-DCMAKE_INSTALL_PREFIX=$prefix" -DCMAKE_INSTALL_LIBDIR=lib "-DCMAKE_CXX_FLAGS=-ffile-prefix-map=$work/src/=")

# Its headers and protoc are those of libprotobuf-dev and protobuf-compiler, of the same version. Hidden: another protobuf
# in the process (TensorFlow brings one) must not meet this one.
if [[ " ${sources[*]} " == *" protobuf "* ]]; then
  cmake -S "$work"/src/protobuf-*/cmake -B "$work/protobuf" "${common[@]}" -DCMAKE_CXX_VISIBILITY_PRESET=hidden \
    -DCMAKE_VISIBILITY_INLINES_HIDDEN=ON -Dprotobuf_BUILD_TESTS=OFF -Dprotobuf_BUILD_PROTOC_BINARIES=OFF -Dprotobuf_WITH_ZLIB=OFF
  cmake --build "$work/protobuf" --target libprotobuf
  install -D -m 644 "$work"/protobuf/libprotobuf.a "$prefix/lib/libprotobuf_pic.a"
  touch "$protobuf_done"
fi
if [[ " ${sources[*]} " != *" abseil "* ]]; then exit 0; fi

# Without hwloc and tbbmalloc, which would be loaded as shared libraries.
cmake -S "$work"/src/onetbb-*/ -B "$work/tbb" "${common[@]}" -DTBB_TEST=OFF -DTBB_STRICT=OFF -DTBBMALLOC_BUILD=OFF \
  -DTBB_DISABLE_HWLOC_AUTOMATIC_SEARCH=ON -DTBB_ENABLE_IPO=OFF
cmake --build "$work/tbb"
cmake --install "$work/tbb" >/dev/null

cmake -S "$work"/src/highway-*/ -B "$work/hwy" "${common[@]}" -DBUILD_TESTING=OFF -DHWY_FORCE_STATIC_LIBS=ON \
  -DHWY_ENABLE_CONTRIB=OFF -DHWY_ENABLE_EXAMPLES=OFF
cmake --build "$work/hwy"
cmake --install "$work/hwy" >/dev/null

cmake -S "$work"/src/abseil-*/ -B "$work/absl" "${common[@]}" -DBUILD_TESTING=OFF -DCMAKE_CXX_STANDARD=17
cmake --build "$work/absl"
cmake --install "$work/absl" >/dev/null

touch "$done_file"
