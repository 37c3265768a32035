#!/usr/bin/env bash
# Gets Debian's chromium for the tests of the page; without it they count as skips.
set -euo pipefail
command -v chromium >/dev/null && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    "$(dirname "$0")/apt_install.sh" --no-install-recommends chromium >/dev/null 2>&1 && exit 0
fi
echo "The page's tests need a browser and are skipped without it: sudo apt-get install chromium" >&2
