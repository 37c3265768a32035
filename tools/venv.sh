# Sourced by install.sh and cluster/install.sh, in the checkout's folder: an environment in .venv that a kill at any
# moment leaves either whole or marked as incomplete, made by pip with its own settings (index, proxy, certificates).

# Prints one line and ends.
refuse() {
    echo "scalelab: $1" >&2
    exit 1
}

# Sets `python` to one that pyproject.toml accepts: PYTHON where it is set, else the first on the path.
choose_python() {
    local oldest before names here found="" versions
    read -r oldest before < <(sed -n 's/^requires-python = ">=3\.\([0-9]*\),<3\.\([0-9]*\)"/\1 \2/p' pyproject.toml)
    versions=$(seq -f "3.%g" -s ", " "$oldest" $((before - 1)))
    names=(${PYTHON:+"$PYTHON"})
    [ -n "${PYTHON:-}" ] || names=(python3 $(seq -f "python3.%g" $((before - 1)) -1 "$oldest"))
    for python in "${names[@]}"; do
        here=$("$python" -c 'import sys; print(*sys.version_info[:3], sep=".")' 2>/dev/null) || continue
        found+=${found:+, }$here
        [[ $here == 3.* ]] || continue
        minor=${here#3.} minor=${minor%%.*}
        [ "$minor" -ge "$oldest" ] && [ "$minor" -lt "$before" ] && return
    done
    refuse "needs Python $versions; found ${found:-none}: install one (Debian, Ubuntu: sudo apt-get install python3 python3-venv), or name one: make PYTHON=/path/to/python"
}

# One set-up of a checkout at a time: a second one waits.
lock_set_up() {
    mkdir -p .cache
    command -v flock >/dev/null || return 0
    exec 9>.cache/set-up.lock
    flock -n 9 && return
    echo "waiting for another set-up of this checkout" >&2
    flock -w 3600 9 || refuse "another set-up of this checkout did not end within an hour"
}

# Makes .venv, or keeps the one that is there; anew where an earlier set-up was interrupted, or its Python has gone.
# Arguments: the kind of set, cpu or gpu.
begin_venv() {
    "$python" -I scalelab/machine.py "$1" || exit 1
    if [ -e .venv/incomplete ] || ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
        rm -rf .venv
        mkdir .venv
        touch .venv/incomplete
        "$python" -m venv .venv >.venv/install.log 2>&1 || {
            local log
            log=$(cat .venv/install.log)
            rm -rf .venv
            [[ $log != *ensurepip* ]] || refuse "this Python has no venv: sudo apt-get install python3-venv (Debian, Ubuntu), then run this again"
            refuse "no environment could be made: ${log##*$'\n'}"
        }
    fi
    touch .venv/incomplete
    : >.venv/install.log
}

# Runs pip install with what is given; nothing is asked, nothing is printed, all is logged. PIP_USER: a person's own
# setting for pip outside of environments, which would fail here.
try_pip() {
    PIP_USER=0 .venv/bin/python -m pip install --no-input --disable-pip-version-check --no-deps "$@" >>.venv/install.log 2>&1
}

# The same, and ends with one line that says why, where it fails.
pip_install() {
    try_pip "$@" || explain_pip
}

explain_pip() {
    local log=.venv/install.log name why
    if grep -q "DO NOT MATCH THE HASHES" $log; then
        name=$(grep -A 3 "DO NOT MATCH THE HASHES" $log | grep -o '[A-Za-z0-9_.-]*==[^ ]*' | head -n 1)
        refuse "a file of $name is not the one that requirements/ names by its hash, and was not installed: try again; if it stays, the index or the network changes files (.venv/install.log)"
    fi
    if grep -qE "NameResolutionError|NewConnectionError|ProxyError|ConnectTimeout|Temporary failure|Network is unreachable|Could not fetch URL" $log; then
        refuse "the package index cannot be reached; pip's own settings are taken: a proxy with HTTPS_PROXY, another index with 'pip config set global.index-url URL' (.venv/install.log)"
    fi
    why=$(grep -E "^(ERROR|error|OSError)" $log | tail -n 1)
    refuse "the packages could not be installed: ${why:-pip was ended} (.venv/install.log)"
}

# Marks .venv as whole, with what it was made from.
end_venv() {
    rm -f .venv/installed-*
    touch "$1"
    rm .venv/incomplete
}

# The name of the stamp of what is given: files that the environment depends on.
stamp_of() {
    echo ".venv/installed-$(cat "$@" tools/venv.sh | sha256sum | cut -c1-16)"
}
