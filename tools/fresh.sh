#!/usr/bin/env bash
# Tries the lab on a bare Debian: makes its root with debootstrap, clones this checkout into it, and runs the commands of
# README there, as an ordinary user with that system's own Python. Says how long each took.
#
#     sudo tools/fresh.sh                    # what one runs before a release: set-up, doctor, a virtual run of four steps
#     sudo tools/fresh.sh --quickstart       # also make quickstart
#     sudo tools/fresh.sh --test             # also make test, with its skips by name, after apt-get install of what it needs
#
# SUITE=bookworm and MIRROR=URL choose another Debian, ROOT another folder. DNS, certificates, and what the environment says of proxies
# and indices, are those of this machine. The root stays, and is used again; remove it with rm -r.
set -euo pipefail
cd "$(dirname "$0")/.."
suite=${SUITE:-trixie} mirror=${MIRROR:-http://deb.debian.org/debian}
root=${ROOT:-/var/tmp/scalelab-$suite}
[ "$(id -u)" = 0 ] || { echo "only root can make another system's root: sudo tools/fresh.sh" >&2; exit 1; }
command -v debootstrap >/dev/null || tools/apt_install.sh debootstrap >/dev/null 2>&1 ||
    { echo "debootstrap is missing: sudo apt-get install debootstrap" >&2; exit 1; }

if ! [ -e "$root/made" ]; then
    rm -rf "$root"
    echo "making a bare $suite in $root"
    debootstrap --variant=minbase "$suite" "$root" "$mirror" >/dev/null
    cp /etc/resolv.conf "$root/etc/"
    chroot "$root" env DEBIAN_FRONTEND=noninteractive sh -ec '
        apt-get -qq update
        apt-get -qq install -y --no-install-recommends ca-certificates git libnuma1 make python3 python3-venv >/dev/null 2>&1
        useradd --create-home --shell /bin/bash visitor'
    cat /etc/ssl/certs/ca-certificates.crt >"$root/etc/ssl/certs/ca-certificates.crt"
    touch "$root/made"
fi

lab="/home/visitor/the lab"
rm -rf "${root:?}$lab"
git clone --quiet . "$root$lab"
chroot "$root" chown -R visitor: "$lab"
settings=(PATH=/usr/local/bin:/usr/bin:/bin HOME=/home/visitor LANG=C.UTF-8 PYTEST_ADDOPTS=-rs)
while IFS= read -r one; do settings+=("$one"); done < <(env | grep -iE '^(SSL_CERT_FILE|PIP_(CERT|INDEX_URL|EXTRA_INDEX_URL|PROXY|DEFAULT_TIMEOUT)|https?_proxy|no_proxy|OPENBLAS_[A-Z0-9_]+)=' || true)

# Runs one command as the visitor, in processes and mounts of its own, which end with it. Its root is a root to the kernel,
# too: bubblewrap may make no namespace below chroot. Its first process is a shell, which takes leave of orphans that end.
visit() {
    local began=$SECONDS
    echo "== $1"
    unshare --mount --pid --fork --kill-child bash -ec '
        mount --bind "$0" "$0"
        mount -t proc proc "$0/proc"
        mount --rbind /sys "$0/sys"
        mount --rbind /dev "$0/dev"
        cd "$0"
        pivot_root . mnt
        umount --lazy /mnt
        lab=$1; shift
        exec chroot --userspec=visitor:visitor / env -i "${@:2}" bash -c "cd \"$lab\" && $1; exit \$?"' \
        "$root" "$lab" "$1" "${settings[@]}"
    echo "== $((SECONDS - began)) s: $1"
}

visit 'cat /etc/debian_version; uname -m; python3 --version'
visit 'make install'
visit ".venv/bin/scalelab doctor || true"
visit '.venv/bin/scalelab run quickstart --virtual --set Budget.steps=4 --out runs/four_steps'
visit 'du -sm .venv ~/.cache/pip'
for one in "$@"; do
    case $one in
        --quickstart) visit 'make quickstart' ;;
        --test)
            chroot "$root" env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends \
                bubblewrap g++ nodejs chromium >/dev/null 2>&1
            visit 'make test'
            ;;
        *) echo "no such option: $one" >&2; exit 1 ;;
    esac
done
