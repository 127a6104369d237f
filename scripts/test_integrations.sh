#!/usr/bin/env bash
# Runs the tests of tests/integrations, each folder in an environment of its own with the real packages from PyPI.
#
#   scripts/test_integrations.sh [FOLDER …] [-- PYTEST_ARGUMENTS]
#
# The environment of a folder is .venv-integrations/FOLDER, with what the folder's requirements.txt names and this
# repository's package. If a requirement cannot be installed, the folder's tests are skipped, and the last lines say so.
# Exits with 1 if a test fails. SPARSEAGG_SERVER names the server's program.
set -euo pipefail
cd "$(dirname "$0")/.."

folders=() status=0 outcomes=()
while (($#)) && [[ $1 != -- ]]; do folders+=("$1") && shift; done
if (($#)); then shift; fi
if [[ ${#folders[@]} -eq 0 ]]; then
  for file in tests/integrations/*/requirements.txt; do folders+=("$(basename "$(dirname "$file")")"); done
fi

install() { # ENVIRONMENT FOLDER
  local pip=("$1/bin/python" -m pip install -q --disable-pip-version-check) line words
  [[ -x $1/bin/python ]] || "${PYTHON:-python3}" -m venv "$1"
  if ! cmp -s "$2/requirements.txt" "$1/installed.txt"; then
    while read -r line; do
      read -r -a words <<<"${line%%#*}"
      case "${words[*]}" in
        '') ;;
        # PyPI's torch brings gigabytes of CUDA libraries.
        torch) "$1/bin/python" -c 'import sys; sys.path.insert(0, "bench/peers"); import install; install.install_torch()' ;;
        *) "${pip[@]}" "${words[@]}" ;;
      esac || return 1
    done <"$2/requirements.txt"
    cp "$2/requirements.txt" "$1/installed.txt"
  fi
  # The engine is built in place, by `make build`.
  SPARSEAGG_EXTENSION=off "${pip[@]}" -e ./python
}

for name in "${folders[@]}"; do
  folder=tests/integrations/$name environment=.venv-integrations/$name code=0
  if [[ ! -f $folder/requirements.txt ]]; then
    echo "test_integrations: $folder has no requirements.txt" >&2
    exit 2
  fi
  echo "== $name"
  if ! install "$environment" "$folder"; then
    outcomes+=("$name: not run, a requirement cannot be installed")
    continue
  fi
  LD_LIBRARY_PATH=$PWD/$environment/torch-stand-ins${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} \
    "$environment/bin/python" -m pytest "$folder" "$@" || code=$?
  # 5: all modules were skipped, or none has a test.
  case $code in 0) outcomes+=("$name: passed") ;; 5) outcomes+=("$name: no tests") ;; *) outcomes+=("$name: FAILED ($code)") status=1 ;; esac
done
printf '%s\n' "${outcomes[@]}"
exit "$status"
