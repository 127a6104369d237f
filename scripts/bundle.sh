#!/usr/bin/env bash
# Puts a bundle together from a build of the preset gpu-bundle or cpu-bundle, and packs it.
#
#   scripts/bundle.sh BUILD NAME WHEEL [MIB]      makes BUILD/NAME/ and BUILD/NAME.tar.xz; WHEEL is the Python package
#
# Fails where a program needs a shared library that is not libc's own or a libc newer than 2.28, or the archive takes
# MIB (60) or more.
set -euo pipefail

if [[ $# -lt 3 || $# -gt 4 ]]; then
  echo "usage: scripts/bundle.sh BUILD NAME WHEEL [MIB]" >&2
  exit 2
fi
build=$1 name=$2 wheel=$3
folder=$build/$name
max_mib=${4:-60}

rm -rf "$folder" "$folder.tar.xz"
cmake --install "$build" --component bundle --strip --prefix "$folder" >/dev/null
mkdir -p "$folder/python" "$folder/licences"
cp "$wheel" "$folder/python/"

# What was linked in comes with its licence.
while IFS= read -r package; do
  cp "/usr/share/doc/$package/copyright" "$folder/licences/$package"
done <scripts/linked_packages.txt

allowed='^(ld-linux-[a-z0-9-]+|libc|libm|libpthread|libdl|librt)\.so'
status=0
while IFS= read -r program; do
  while read -r library; do
    if ! [[ $library =~ $allowed ]]; then
      echo "bundle: $program needs $library" >&2
      status=1
    fi
  done < <(readelf -dW "$program" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
  libc=$(readelf -W --dyn-syms "$program" | grep -o 'GLIBC_[0-9.]*' | sort -Vu | tail -1)
  if ! printf '%s\n' "$libc" GLIBC_2.28 | sort -VC; then
    echo "bundle: $program needs $libc" >&2
    status=1
  fi
done < <(find "$folder/bin" "$folder/python" -type f ! -name '*.whl')

if [[ $status -ne 0 ]]; then exit "$status"; fi

# xz, since more machines have it than zstd, and every Python. A dictionary that reaches from one program to the next:
# they have most of their code in common.
tar -C "$build" --sort=name --owner=0 --group=0 --numeric-owner -cf - "$name" | xz -T1 --lzma2=preset=6,dict=128MiB >"$folder.tar.xz"
mib() { du -sm --apparent-size "$1" | cut -f1; }
printf 'bundle: %s, %s MiB; %s, %s MiB\n' "$folder" "$(mib "$folder")" "$folder.tar.xz" "$(mib "$folder.tar.xz")"
if [[ $(mib "$folder.tar.xz") -ge $max_mib ]]; then
  echo "bundle: the archive takes $max_mib MiB or more" >&2
  exit 1
fi
