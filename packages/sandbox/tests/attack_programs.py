"""Hostile programs. Each calls `through` if it reached something; the host's targets are in `T`."""

from dataclasses import dataclass

PRELUDE = """
import contextlib, ctypes, json, mmap, os, resource, shutil, signal, socket, struct, subprocess, sys, threading, time
T = json.loads(sys.stdin.read())
libc = ctypes.CDLL(None, use_errno=True)

def through(what):
    os.write(2, ("THROUGH: %s\\n" % what).encode())

def attempt(what, action):
    try:
        if action() is not False:
            through(what)
    except (OSError, ValueError):
        pass

def put(path, text):
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)

def syscall(number, *arguments):
    return libc.syscall(number, *arguments) != -1

def connect(family, kind, address):
    with socket.socket(family, kind) as s:
        s.settimeout(1)
        s.connect(address)
        s.sendall(b"hello")
"""


@dataclass(frozen=True)
class Attack:
    name: str
    program: str
    ends: tuple[str, ...] = ("ok",)  # how it may end


ATTACKS = [
    Attack(
        "the network",
        """
attempt('tcp', lambda: connect(socket.AF_INET, socket.SOCK_STREAM, ('127.0.0.1', T['tcp'])))
for address in T['addresses']:
    attempt(address, lambda: connect(socket.AF_INET, socket.SOCK_STREAM, (address, T['tcp'])))
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
    with contextlib.suppress(OSError):
        s.sendto(b'hello', ('127.0.0.1', T['udp']))  # the test looks at what the host's socket has got
    attempt('udp', lambda: s.sendto(b'hello', ('192.0.2.1', 53)))
attempt('dns', lambda: socket.gethostbyname('pypi.org'))
attempt('ipv6', lambda: connect(socket.AF_INET6, socket.SOCK_STREAM, ('2001:db8::1', 80)))
attempt('abstract', lambda: connect(socket.AF_UNIX, socket.SOCK_STREAM, '\\0' + T['abstract']))
attempt('socket', lambda: connect(socket.AF_UNIX, socket.SOCK_STREAM, T['socket']))
attempt('raw', lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
attempt('packet', lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
attempt('netlink', lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW))
attempt('vsock', lambda: socket.socket(40, socket.SOCK_STREAM))
attempt('alg', lambda: socket.socket(38, socket.SOCK_SEQPACKET))
""",
    ),
    Attack(
        "reading files of the host",
        """
for path in T['secrets'] + ['/etc/shadow', '/etc/hostname', '/root', '/work', '/home', '/var', '/sys', '/bin', '/sbin']:
    attempt(path, lambda: os.listdir(path) if os.path.isdir(path) else open(path).read())
""",
    ),
    Attack(
        "files of the host",
        """
# reading by way of a process's root
for pid in ['self', '1', str(os.getppid())] + [str(n) for n in range(2, 200)]:
    for path in T['secrets']:
        attempt(path, lambda: open('/proc/%s/root%s' % (pid, path)).read())
        attempt(path, lambda: open('/proc/%s/cwd/../..%s' % (pid, path)).read())
# a symbolic link out of the box
for path in T['secrets']:
    os.symlink(path, '/tmp/link')
    attempt('link', lambda: open('/tmp/link').read())
    os.unlink('/tmp/link')
os.symlink('../../../../../..', '/tmp/up')
attempt('up', lambda: open('/tmp/up' + T['secrets'][0]).read())
attempt('link', lambda: os.link(T['secrets'][0], '/tmp/x'))
attempt('link', lambda: os.link('/python/bin/python3', '/tmp/x'))
for path in [T['folder'] + '/written', '/marker', '/etc/marker', '/usr/marker', '/var/tmp/marker', '/dev/marker',
             '/python/marker', '/sandbox/marker', '/lib/marker', '/proc/marker', '/home/marker']:
    attempt(path, lambda: open(path, 'w').close())
# changing the Python that other programs will get
for path in ['/python/bin/python3', '/sandbox/sspo_sandbox/inside/judge.py', '/lib/libc.so.6', '/etc/passwd',
             json.__file__]:
    attempt(path, lambda: open(path, 'r+b').close())
    attempt(path, lambda: os.rename(path, path + '.old'))
    attempt(path, lambda: os.chmod(path, 0o777))
    attempt(path, lambda: os.unlink(path))
# a module of its own in place of a real one
for folder in [os.path.dirname(json.__file__), os.path.dirname(os.__file__), '/python/lib', '/sandbox']:
    attempt(folder, lambda: open(folder + '/sitecustomize.py', 'w').close())
sys.path.append(T['folder'])
try:
    import host_module
    through('import')
except ImportError:
    pass
attempt('handle', lambda: syscall(303, -100, b'/', 0, 0, 0))
""",
    ),
    Attack(
        "inherited descriptors and secrets",
        """
for descriptor in range(3, 1024):
    attempt('fd %d' % descriptor, lambda: os.fstat(descriptor))
# changing its own input, which the host has made
attempt('input', lambda: os.write(os.open('/proc/self/fd/0', os.O_RDWR), b'x'))
attempt('input', lambda: os.ftruncate(0, 1 << 30))
# secrets in the environment
found = repr(dict(os.environ))
for pid in os.listdir('/proc'):
    if pid.isdigit():
        try:
            found += open('/proc/%s/environ' % pid).read() + open('/proc/%s/cmdline' % pid).read()
        except OSError:
            pass
if T['half'] + T['other_half'] in found:
    through('environment')
""",
    ),
    Attack(
        "other processes",
        """
pids = [int(pid) for pid in os.listdir('/proc') if pid.isdigit()]
if len(pids) > 3 or T['victim'] in pids:
    through(pids)
attempt('traceme', lambda: syscall(101, 0, 0, 0, 0))
for pid in [1, os.getppid(), T['victim'], T['trainer']]:
    attempt('attach', lambda: syscall(101, 16, pid, 0, 0))
    attempt('seize', lambda: syscall(101, 0x4206, pid, 0, 0))
    attempt('read', lambda: syscall(310, pid, 0, 0, 0, 0, 0))
attempt('mem', lambda: open('/proc/%d/mem' % T['victim'], 'rb').read(1))
# raising its own limits and priority
for name in ['RLIMIT_AS', 'RLIMIT_CPU', 'RLIMIT_NPROC', 'RLIMIT_FSIZE', 'RLIMIT_NOFILE', 'RLIMIT_CORE']:
    limit = getattr(resource, name)
    soft, hard = resource.getrlimit(limit)
    attempt(name, lambda: resource.setrlimit(limit, (hard, hard + 1)))
    attempt(name, lambda: resource.setrlimit(limit, (-1, -1)))
attempt('nice', lambda: os.nice(-5))
attempt('real time', lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10)))
""",
    ),
    Attack(
        "privileges",
        """
for uid in [0, 1, 65534, 2099999999]:
    attempt('setuid', lambda: os.setuid(uid))
    attempt('setgid', lambda: os.setgid(uid))
attempt('groups', lambda: os.setgroups([0]))
attempt('uid_map', lambda: put('/proc/self/uid_map', '0 0 1'))
# a setuid program
shutil.copy('/python/bin/python3', '/tmp/python')
os.chmod('/tmp/python', 0o6755)
done = subprocess.run(['/tmp/python', '-S', '-c', 'import os; print(os.geteuid())'], capture_output=True, text=True)
if done.stdout.strip() not in ('', '1000'):
    through(done.stdout)
for path in ['/bin/su', '/usr/bin/sudo', '/usr/bin/passwd', '/usr/bin/newuidmap', '/bin/sh']:
    attempt(path, lambda: os.stat(path))
for flag in [0x10000000, 0x20000, 0x20000000, 0x40000000, 0x08000000, 0x04000000, 0x02000000, 0x80]:
    attempt('unshare %x' % flag, lambda: libc.unshare(flag) == 0)
    if flag != 0x80:
        pid = libc.syscall(56, flag | 17, 0, 0, 0, 0)
        if pid == 0:
            os._exit(0)
        if pid > 0:
            through('clone %x' % flag)
    buffer = struct.pack('<11Q', flag, 0, 0, 0, 17, 0, 0, 0, 0, 0, 0)
    pid = libc.syscall(435, buffer, len(buffer))
    if pid == 0:
        os._exit(0)
    if pid > 0:
        through('clone3 %x' % flag)
for name in os.listdir('/proc/1/ns'):
    attempt('setns ' + name, lambda: libc.setns(os.open('/proc/1/ns/' + name, 0), 0) == 0)
attempt('tmpfs', lambda: libc.mount(b'none', b'/tmp', b'tmpfs', 0, None) == 0)
attempt('bind', lambda: libc.mount(b'/', b'/tmp', None, 4096, None) == 0)
attempt('remount', lambda: libc.mount(None, b'/', None, 32 | 4096, None) == 0)
attempt('umount', lambda: libc.umount2(b'/proc', 2) == 0)
attempt('fsopen', lambda: syscall(430, b'tmpfs', 0))
attempt('open_tree', lambda: syscall(428, -100, b'/', 1))
os.mkdir('/tmp/jail')
attempt('chroot', lambda: os.chroot('/tmp/jail'))
attempt('pivot_root', lambda: syscall(155, b'/tmp', b'/tmp/jail'))
for _ in range(50):
    os.chdir('..')
for path in T['secrets']:
    attempt('up', lambda: open('.' + path).read())
""",
    ),
    Attack(
        "the kernel",
        """
for path in ['kernel/hostname', 'kernel/core_pattern', 'vm/overcommit_memory', 'user/max_user_namespaces',
             'kernel/modprobe', 'net/ipv4/ip_forward', 'fs/binfmt_misc/register']:
    attempt(path, lambda: put('/proc/sys/' + path, '1'))
attempt('sysrq', lambda: put('/proc/sysrq-trigger', 'h'))
attempt('oom', lambda: put('/proc/self/oom_score_adj', '-1000'))
attempt('hostname', lambda: socket.sethostname('x'))
attempt('clock', lambda: time.clock_settime(time.CLOCK_REALTIME, 0))
attempt('settimeofday', lambda: libc.settimeofday(ctypes.create_string_buffer(16), None) == 0)
attempt('adjtimex', lambda: syscall(159, ctypes.create_string_buffer(512)))
for major, minor in [(1, 1), (1, 2), (8, 0), (254, 0), (10, 200)]:
    attempt('mknod', lambda: os.mknod('/tmp/node', 0o60666, os.makedev(major, minor)))
    attempt('mknod', lambda: os.mknod('/tmp/node', 0o20666, os.makedev(major, minor)))
for name in ['mem', 'kmem', 'kmsg', 'sda', 'vda', 'kvm', 'fuse', 'net/tun', 'nvidia0', 'nvidiactl', 'ptmx', 'tty']:
    attempt(name, lambda: os.open('/dev/' + name, os.O_RDWR))
calls = dict(bpf=321, perf_event_open=298, userfaultfd=323, io_uring_setup=425, add_key=248, request_key=249,
             keyctl=250, kexec_load=246, init_module=175, finit_module=313, delete_module=176, reboot=169, swapon=167,
             acct=163, iopl=172, ioperm=173, modify_ldt=154, personality=135, syslog=103, quotactl=179,
             fanotify_init=300, process_vm_writev=311, kcmp=312, pidfd_getfd=438, move_pages=279, memfd_secret=447,
             vhangup=153)
for name, number in calls.items():
    attempt(name, lambda: syscall(number, 0, 0, 0, 0, 0))
    attempt('x32 ' + name, lambda: syscall(number | 0x40000000, 0, 0, 0, 0, 0))
attempt('memfd', lambda: os.memfd_create('x'))
attempt('shmget', lambda: syscall(29, 0, 1 << 30, 0o1600))
attempt('mq_open', lambda: syscall(240, b'queue', 0o102, 0o600, 0))
import fcntl, termios
for descriptor in range(3):
    attempt('tiocsti', lambda: fcntl.ioctl(descriptor, termios.TIOCSTI, b'x'))
attempt('tty', lambda: os.open('/dev/tty', os.O_RDWR))
""",
    ),
    Attack("closing every descriptor", "os.closerange(0, 1024)", ("ok", "error")),
    Attack(
        "signals to the host",
        """
attempt('victim', lambda: os.kill(T['victim'], signal.SIGKILL))
attempt('trainer', lambda: os.kill(T['trainer'], signal.SIGKILL))
attempt('group', lambda: os.killpg(T['trainer'], signal.SIGKILL))
try:
    os.kill(1, signal.SIGKILL)  # its own init, which the kernel protects
    os.kill(-1, signal.SIGTERM)  # everything that it can see, and that is itself
except OSError:
    pass
""",
        ("ok", "crash"),
    ),
    Attack("signals to its parent", "os.kill(os.getppid(), signal.SIGKILL)\nos.kill(os.getppid(), signal.SIGSTOP)\n"),
    Attack(
        "a fork bomb",
        """
while True:
    try:
        os.fork()
    except OSError:
        pass
""",
        ("time",),
    ),
    Attack(
        "more processes than the limit",
        """
started = 0
try:
    for _ in range(500):
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        started += 1
except OSError:
    pass
if started > T['processes']:
    through(started)
""",
    ),
    Attack(
        "a bomb of threads",
        """
threads = []
try:
    for _ in range(500):
        threads.append(threading.Thread(target=time.sleep, args=(60,), daemon=True))
        threads[-1].start()
except RuntimeError:
    pass
if len(threads) > T['processes'] + 1:
    through(len(threads))
""",
        ("ok", "crash", "time"),
    ),
    Attack(
        "a daemon by double fork and setsid",
        """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for n in set(range(1, 32)) - {9, 19}:
            signal.signal(n, signal.SIG_IGN)
        os.closerange(0, 100)
        while True:
            time.sleep(1)
    os._exit(0)
os.wait()
""",
    ),
    Attack(
        "a storm of zombies",
        """
try:
    while True:
        if os.fork() == 0:
            os._exit(0)
except OSError:
    pass
""",
        ("ok", "time"),
    ),
    Attack(
        "ignoring every signal", "for n in set(range(1, 32)) - {9, 19}: signal.signal(n, 1)\ntime.sleep(600)", ("time",)
    ),
    Attack("sleeping for ever", "time.sleep(10**6)", ("time",)),
    Attack("computing for ever", "9 ** 9 ** 9 ** 9", ("time", "memory")),
    Attack("stopping itself", "os.kill(os.getpid(), signal.SIGSTOP)", ("time",)),
    Attack("memory by one block", "bytearray(8 << 30)\nthrough('8 GiB')", ("memory",)),
    Attack(
        "memory by small pieces",
        "x = []\nwhile True:\n    x.append(bytearray(1 << 16))\n    if len(x) > T['memory'] >> 16: through('memory')",
        ("memory",),
    ),
    Attack(
        "memory by mmap",
        """
blocks = []
try:
    while True:
        block = mmap.mmap(-1, 16 << 20)
        for place in range(0, 16 << 20, 4096):
            block[place] = 1
        blocks.append(block)
        if len(blocks) * (16 << 20) > T['memory']:
            through('memory')
            break
except (OSError, MemoryError):
    pass
""",
        ("ok", "memory"),
    ),
    Attack(
        "memory in many processes",
        """
for _ in range(10):
    if os.fork() == 0:
        block = bytearray(T['memory'] // 2)
        for place in range(0, len(block), 4096):
            block[place] = 1
        time.sleep(60)
for _ in range(10):
    os.wait()
""",
        ("memory", "time", "ok"),
    ),
    Attack("deep recursion", "def f(): f()\nsys.setrecursionlimit(10**9)\nf()", ("crash", "memory", "error", "time")),
    Attack(
        "a full disk",
        """
written = 0
for folder in ['/tmp', '/dev/shm', '/var/tmp', '/dev', '/run', '/']:
    for number in range(4):
        try:
            with open('%s/%d%d' % (folder, hash(folder), number), 'wb', buffering=0) as file:
                while written < 4 * T['disk']:
                    written += file.write(b'x' * (1 << 20))
        except OSError:
            pass
if written > T['disk']:
    through(written)
""",
        ("ok", "memory"),
    ),
    Attack(
        "a disk full of empty files",
        "n = 0\nwhile True:\n    open('/tmp/%d' % n, 'w').close()\n    n += 1\n",
        ("time", "error", "memory"),
    ),
    Attack(
        "a file with a hole", "attempt('hole', lambda: os.truncate(os.open('/tmp/x', 66), 1 << 40))", ("ok", "crash")
    ),
    Attack("a flood on standard output", "while True: os.write(1, b'x' * 65536)", ("output",)),
    Attack("a flood on standard error", "while True: os.write(2, b'x' * 65536)", ("output",)),
    Attack(
        "a flood by many processes",
        "for _ in range(4): os.fork()\nwhile True: os.write(1, b'x' * 65536)",
        ("output", "memory"),
    ),
    Attack(
        "all descriptors",
        "n = 0\ntry:\n    while True:\n        os.open('/dev/null', 0)\n        n += 1\nexcept OSError: pass\n"
        "if n > 1000: through(n)",
    ),
    Attack(
        "all pipes and inotify instances",
        """
n = 0
try:
    while True:
        if libc.inotify_init() == -1 or libc.epoll_create1(0) == -1:
            break
        os.pipe()
        n += 1
except OSError:
    pass
if n > 1000:
    through(n)
""",
    ),
    Attack(
        "32-bit system calls",
        """
code = bytes([0xb8, 20, 0, 0, 0, 0xcd, 0x80, 0xc3])  # mov eax, getpid; int 0x80; ret
block = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
block.write(code)
function = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(block)))
through('int 0x80 returned %d' % function())
""",
        ("crash",),
    ),
    Attack(
        "the sandbox's own first process",
        """
maps = [line for line in open('/proc/1/maps') if 'r-xp' in line]
start, end = (int(part, 16) for part in maps[0].split()[0].split('-'))
try:
    with open('/proc/1/mem', 'r+b', buffering=0) as memory:
        memory.seek(start)
        memory.write(b'\\xcc' * (end - start))  # a trap at every instruction
except OSError:
    pass
for name in os.listdir('/proc/1/fd'):
    try:
        descriptor = os.open('/proc/1/fd/' + name, os.O_WRONLY | os.O_NONBLOCK)
        os.write(descriptor, struct.pack('<q', -5))
    except OSError:
        pass
""",
        ("ok", "error", "crash", "time"),
    ),
]
