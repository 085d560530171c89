# Shared by scripts/demo, scripts/test and scripts/check, which source it from the repository's root.
#
# PYTHON, if set, names an interpreter that has everything; then nothing is installed.

say() { printf '%s\n' "weft: $*" >&2; }

fail() {
    say "$*"
    exit 1
}

# Print the newest interpreter from 3.10 on, if there is one.
find_python() {
    local name
    for name in python3.14 python3.13 python3.12 python3.11 python3.10 python3; do
        if command -v "$name" >/dev/null &&
            "$name" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
            printf '%s\n' "$name"
            return
        fi
    done
}

# Tell whether this user can install Debian packages on this machine now.
can_apt() {
    command -v apt-get >/dev/null || return 1
    [[ $(id -u) == 0 ]] && return 0
    command -v sudo >/dev/null && { [[ -t 0 ]] || sudo -n true 2>/dev/null; }
}

apt_install() {
    local root=()
    [[ $(id -u) == 0 ]] || root=(sudo)
    say "installing Debian packages: $*"
    "${root[@]}" apt-get update -qq
    "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >&2
}

is_installed() { dpkg-query -W -f '${Status}' "$1" 2>/dev/null | grep 'ok installed' >/dev/null; }

# Print those of the given Debian packages that are not installed.
missing_packages() {
    local each
    for each in "$@"; do
        is_installed "$each" || printf '%s ' "$each"
    done
}

# Tell whether the Vulkan loader and some driver's manifest are where the loader looks.
has_vulkan_driver() {
    [[ -n ${VK_DRIVER_FILES:-}${VK_ICD_FILENAMES:-} ]] && return 0
    compgen -G '/usr/share/vulkan/icd.d/*.json' >/dev/null || compgen -G '/etc/vulkan/icd.d/*.json' >/dev/null ||
        return 1
    # Debian's ldconfig is in a folder that is not on a plain user's PATH.
    PATH="$PATH:/sbin:/usr/sbin" ldconfig -p | grep 'libvulkan\.so\.1' >/dev/null
}

# Tell whether PyPI has an OpenCL driver for this machine's CPU: the extra [opencl-cpu] brings it.
pip_has_opencl() { [[ $(uname -s) == Linux && $(uname -m) == x86_64 ]]; }

# Tell whether some OpenCL driver is registered where the loader looks.
has_opencl_driver() {
    [[ -n ${OCL_ICD_VENDORS:-}${OPENCL_VENDOR_PATH:-} ]] || compgen -G '/etc/OpenCL/vendors/*.icd' >/dev/null
}

# Print the Debian package with the venv module of this machine's Python, if it is missing.
venv_package() {
    local python
    python=$(find_python)
    [[ -z $python || -x .venv/bin/python ]] || "$python" -c 'import ensurepip, venv' 2>/dev/null ||
        "$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])'
}

# Make .venv if it is missing, and install Weft with the given extras into it if anything changed. Further arguments go
# to pip.
make_environment() {
    local extras=$1 python stamp
    shift
    python=$(find_python)
    [[ -n $python ]] || fail "no Python 3.10 or newer was found. As root: apt install python3"
    if [[ ! -x .venv/bin/python ]]; then
        [[ -z $(venv_package) ]] || fail "$python cannot make virtual environments. As root: apt install $(venv_package)"
        say "making .venv with $("$python" --version)"
        "$python" -m venv .venv
        # The pip that Python brings may be years old: 23.2 takes 8 seconds of a core more than 26.
        .venv/bin/python -m pip install --quiet --no-compile --disable-pip-version-check --upgrade pip ||
            say "going on with $(.venv/bin/python -m pip --version)"
    fi
    stamp="$* $(cat pyproject.toml hatch_build.py packages/*/pyproject.toml | cksum) $(.venv/bin/python --version)"
    if ! grep -qsF "[$extras] $stamp" .venv/weft-installed; then
        say "installing Weft with the extras [$extras] into .venv"
        .venv/bin/python -m pip install --quiet --no-compile --disable-pip-version-check --editable ".[$extras]" "$@"
        printf '[%s] %s\n' "$extras" "$stamp" >>.venv/weft-installed
    fi
}
