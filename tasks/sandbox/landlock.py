"""Landlock: restrict this process to the named parts of the file system (kernel 5.13 or newer)."""

from __future__ import annotations

import errno
import os
import stat
import struct
from collections.abc import Iterable

from tasks.sandbox.linux import forbid_new_privileges, syscall

# The same numbers on every architecture.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ASK_VERSION = 1
_RULE_PATH_BENEATH = 1

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, REMOVE_FILE, MAKE_FILE = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 5, 1 << 8
TRUNCATE = 1 << 14
_OF_FOLDERS = READ_DIR | REMOVE_FILE | MAKE_FILE
# How many kinds of file access each ABI can take away, from ABI 1 on.
_FILE_RIGHTS_BY_ABI = (13, 14, 15, 15, 16)
# From ABI 4 on: bind and connect over TCP. From ABI 6 on: abstract sockets and signals leave the domain no more.
_TCP_SINCE, _SCOPE_SINCE = 4, 6


def abi() -> int:
    """The Landlock version of the running kernel; 0 where there is none."""
    try:
        return syscall("landlock_create_ruleset", _CREATE_RULESET, None, 0, _ASK_VERSION)
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM):
            return 0
        raise


def ruleset(
    readable: Iterable[str],
    listable: Iterable[str] = (),
    executable: Iterable[str] = (),
    writable: Iterable[str] = (),
) -> int:
    """Prepare a rule set under which only the given paths can be read, written or executed.

    Args:
        readable: files, or folders with everything below them.
        listable: folders whose names (and those of the folders below) can be listed, without reading the files.
        executable: what can be read and executed.
        writable: what can be read and written; in folders, files can be made and removed.

    Returns:
        A descriptor for `restrict`; it is not inherited by executed programs.

    Raises:
        OSError: no Landlock here, or a path that cannot be opened.
    """
    version = abi()
    if version < 1:
        raise OSError(errno.ENOSYS, "this kernel has no Landlock")
    files = (1 << _FILE_RIGHTS_BY_ABI[min(version, len(_FILE_RIGHTS_BY_ABI)) - 1]) - 1
    tcp = 0b11 if version >= _TCP_SINCE else 0
    scoped = 0b11 if version >= _SCOPE_SINCE else 0
    attributes = struct.pack("=QQQ", files, tcp, scoped)
    size = 24 if scoped else 16 if tcp else 8
    descriptor = syscall("landlock_create_ruleset", _CREATE_RULESET, attributes, size, 0)
    for path in readable:
        _allow(descriptor, path, READ_FILE | READ_DIR)
    for path in listable:
        _allow(descriptor, path, READ_DIR)
    for path in executable:
        _allow(descriptor, path, READ_FILE | READ_DIR | EXECUTE)
    for path in writable:
        _allow(descriptor, path, (READ_FILE | WRITE_FILE | TRUNCATE | _OF_FOLDERS) & files)
    return descriptor


def restrict(descriptor: int) -> None:
    """Enforce a rule set on this process; it cannot be removed.

    Raises:
        OSError: the kernel said no.
    """
    forbid_new_privileges()
    syscall("landlock_restrict_self", _RESTRICT_SELF, descriptor, 0)


def _allow(descriptor: int, path: str, rights: int) -> None:
    opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not stat.S_ISDIR(os.fstat(opened).st_mode):
            rights &= ~_OF_FOLDERS
        rule = struct.pack("=Qi", rights, opened)
        syscall("landlock_add_rule", _ADD_RULE, descriptor, _RULE_PATH_BENEATH, rule, 0)
    finally:
        os.close(opened)
