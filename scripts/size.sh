#!/bin/bash
# Prints how large the repository is, by kind of file: lines, files, and files under 50 lines. Generated files count.
cd "$(git rev-parse --show-toplevel)" || exit
code=(-e '\.\(cc\|h\|cu\|cuh\|py\|pyi\|js\|proto\|sh\|css\|html\|cmake\)$' -e '\(^\|/\)\(CMakeLists.txt\|Makefile\)$')
count() { grep "${code[@]}" | xargs wc -l | awk -v name="$1" \
  '$2 != "total" { lines += $1; files++; small += $1 < 50 } END { printf "%-22s %6d lines %4d files %4d under 50\n", name, lines, files, small }'; }
git ls-files host cuda service proto python js cmake | count product
git ls-files bench tools bundle | count 'bench tools bundle'
git ls-files scripts Makefile .ci | count 'scripts Makefile'
git ls-files tests | count tests
echo "targets                $(grep -c '^\.PHONY' Makefile)"
# Without the bars of tables.
echo "words of docs          $(git ls-files '*.md' | grep '^docs/' | xargs cat | tr -s '[:space:]' '\n' | grep -c '[[:alnum:]]')"
