#!/usr/bin/env bash
# Installs the packages of Debian's that are named, as root. Waits for another apt-get: a machine that has just started
# often runs one. An installation that was killed is ended first.
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive
dpkg --configure -a >/dev/null 2>&1 || true # fails while another one runs, which the next lines wait for
tries=0
until apt-get -qq update; do # it does not wait for the lock of the lists by itself
    [ $((tries += 1)) -lt 10 ] || break
    sleep 6
done
exec apt-get -qq -o DPkg::Lock::Timeout=300 install -y "$@"
