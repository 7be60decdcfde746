"""The sandbox's system call filter: a classic BPF program for bubblewrap's `--seccomp`.

Namespaces and limits already contain a program. The filter reduces the part of the kernel that a program can reach.
It also closes two ways around the limits: memory that belongs to no process (memfd, System V shared memory), and
sockets that no network namespace covers (vsock).
"""

import errno
import platform
import re
import struct

from sspo_sandbox.types import SandboxError

# linux/filter.h, linux/seccomp.h, linux/audit.h
_LOAD, _JUMP_EQUAL, _JUMP_SET, _RETURN = 0x20, 0x15, 0x45, 0x06
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data; little-endian, lower half
_X32 = 0x40000000
_NEW_NAMESPACES = 0x7E020000  # every CLONE_NEW* that clone knows
_FAMILIES = (1, 2, 10)  # AF_UNIX, AF_INET, AF_INET6

_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column below, AUDIT_ARCH_*

# Calls with their numbers on x86_64 and aarch64; "-" if the architecture has no such call.
_REFUSED = """
# other processes
ptrace 101/117  process_vm_readv 310/270  process_vm_writev 311/271  process_madvise 440/440  kcmp 312/272
pidfd_getfd 438/438
# file systems and namespaces
mount 165/40  umount2 166/39  pivot_root 155/41  chroot 161/51  open_tree 428/428  move_mount 429/429
fsopen 430/430  fsconfig 431/431  fsmount 432/432  fspick 433/433  mount_setattr 442/442  unshare 272/97
setns 308/268  name_to_handle_at 303/264  open_by_handle_at 304/265  fanotify_init 300/262  quotactl 179/60
quotactl_fd 443/443  ustat 136/-  sysfs 139/-
# calls with a history of kernel exploits
bpf 321/280  perf_event_open 298/241  userfaultfd 323/282  io_uring_setup 425/425  io_uring_enter 426/426
io_uring_register 427/427  add_key 248/217  request_key 249/218  keyctl 250/219  personality 135/92
modify_ldt 154/-  uselib 134/-  remap_file_pages 216/234  move_pages 279/239  migrate_pages 256/238
mbind 237/235  set_mempolicy 238/237  lookup_dcookie 212/18  nfsservctl 180/42
# settings of the machine
kexec_load 246/104  kexec_file_load 320/294  init_module 175/105  finit_module 313/273  delete_module 176/106
reboot 169/142  swapon 167/224  swapoff 168/225  acct 163/89  settimeofday 164/170  clock_settime 227/112
clock_adjtime 305/266  adjtimex 159/171  sethostname 170/161  setdomainname 171/162  iopl 172/-  ioperm 173/-
vhangup 153/58  syslog 103/116
# memory that belongs to no process
memfd_create 319/279  memfd_secret 447/447  shmget 29/194  semget 64/190  msgget 68/186  mq_open 240/180
"""
_CLONE, _CLONE3 = (56, 220), 435
_PRLIMIT = (302, 261)
_SOCKETS = ((41, 198), (53, 199))  # socket, socketpair


def seccomp_filter(machine: str = "") -> bytes:
    """Returns the filter for an architecture, named as in `uname -m`; this machine's by default.

    Refused calls return EPERM. clone3 returns ENOSYS, so that the C library uses clone, whose flags a filter can read.
    A call of another architecture kills the process. prlimit is allowed only for the calling process (number 0): with
    it, a program could make the kernel kill the judge, which looks like a broken sandbox. Raises SandboxError if the
    system call numbers of this architecture are not listed here.
    """
    machine = machine or platform.machine()
    if machine not in _MACHINES:
        raise SandboxError(
            f"the sandbox has no system call filter for {machine}: run it on {' or '.join(_MACHINES)}, "
            "or name a remote sandbox by its url"
        )
    column, architecture = _MACHINES[machine]
    refuse = _ERRNO | errno.EPERM
    program = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_JUMP_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
    ]
    if machine == "x86_64":
        program += [(_JUMP_SET, 0, 1, _X32), (_RETURN, 0, 0, refuse)]
    program += [(_JUMP_EQUAL, 0, 1, _CLONE3), (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)]
    for numbers in re.findall(r"\w+ (\d+|-)/(\d+|-)", _REFUSED):
        if numbers[column] != "-":
            program += [(_JUMP_EQUAL, 0, 1, int(numbers[column])), (_RETURN, 0, 0, refuse)]
    program += [
        (_JUMP_EQUAL, 0, 4, _PRLIMIT[column]),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_JUMP_EQUAL, 1, 0, 0),
        (_RETURN, 0, 0, refuse),
        (_RETURN, 0, 0, _ALLOW),
        (_JUMP_EQUAL, 0, 4, _CLONE[column]),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_JUMP_SET, 0, 1, _NEW_NAMESPACES),
        (_RETURN, 0, 0, refuse),
        (_RETURN, 0, 0, _ALLOW),
    ]
    allowed = [(_JUMP_EQUAL, len(_FAMILIES) - place, 0, family) for place, family in enumerate(_FAMILIES)]
    for numbers in _SOCKETS:
        program += [
            (_JUMP_EQUAL, 0, len(allowed) + 3, numbers[column]),
            (_LOAD, 0, 0, _FIRST_ARGUMENT),
            *allowed,
            (_RETURN, 0, 0, refuse),
            (_RETURN, 0, 0, _ALLOW),
        ]
    program.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in program)
