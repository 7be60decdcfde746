"""The programs with which `probe` attacks a sandbox. They report what they reached, and do no harm if they succeed."""

# Reads a JSON object from standard input: targets to connect to, the name of an abstract socket, files that it must not
# be able to read or write, allowed environment variables. Prints a JSON list of the attempts that succeeded.
REACH = """
import ctypes, json, os, socket, sys
job = json.load(sys.stdin)
succeeded = []
libc = ctypes.CDLL(None, use_errno=True)

def attempt(what, action):
    try:
        found = action()
    except (OSError, ValueError):
        return
    if found is not False:
        succeeded.append(what)

def connect(family, address):
    with socket.socket(family, socket.SOCK_STREAM) as s:
        s.settimeout(1)
        s.connect(address)

def send():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.sendto(b"x", ("192.0.2.1", 9))

def status(field):
    for line in open("/proc/self/status"):
        if line.startswith(field + ":"):
            return line.split()[1]

for host, port in job["targets"]:
    attempt("the network (%s, port %d)" % (host, port), lambda: connect(socket.AF_INET, (host, port)))
attempt("the network (UDP)", send)
attempt("a socket of the host", lambda: connect(socket.AF_UNIX, job["abstract_socket"]))
interfaces = [line.split(":")[0].strip() for line in list(open("/proc/net/dev"))[2:]]
attempt("the network (an interface)", lambda: set(interfaces) > {"lo"})
for path in job["read"]:
    attempt("reading " + path, lambda: open(path).close())
for path in job["write"]:
    attempt("writing " + path, lambda: open(path, "w").close())
expected = {"python", "lib", "lib64", "sandbox", "proc", "dev", "tmp", "etc", "usr"}
attempt("files of the host", lambda: set(os.listdir("/")) > expected or os.listdir("/etc") != ["passwd"])
attempt("the environment", lambda: bool(set(os.environ) - set(job["environment"])))
attempt("other processes", lambda: len([p for p in os.listdir("/proc") if p.isdigit()]) > 4)
attempt("changing to the root user", lambda: os.setuid(0))
attempt("capabilities", lambda: int(status("CapEff"), 16) != 0 or int(status("CapBnd"), 16) != 0)
attempt("setuid programs", lambda: status("NoNewPrivs") != "1")
attempt("unfiltered system calls", lambda: status("Seccomp") != "2")
attempt("user namespaces", lambda: libc.unshare(0x10000000) == 0)
attempt("mounting", lambda: libc.mount(b"none", b"/tmp", b"tmpfs", 0, None) == 0)
attempt("kernel settings", lambda: open("/proc/sys/kernel/core_pattern", "w").close())
attempt("device nodes", lambda: os.mknod("/tmp/node", 0o60600, os.makedev(1, 1)))
attempt("vsock", lambda: socket.socket(40, socket.SOCK_STREAM).close())
attempt("memory files outside of the limits (memfd)", lambda: os.close(os.memfd_create("x")))
print(json.dumps(succeeded))
"""

# Reads from standard input how many processes to start. Prints how many it started.
FORK = """
import os, time
wanted, started = int(input()), 0
try:
    for _ in range(wanted):
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        started += 1
except OSError:
    pass
print(started)
"""

# Reads from standard input the bytes for each process and the number of processes. Prints how many had their memory at
# the same time: a process that the kernel kills so that another one gets its memory is not counted.
MEMORY = """
import os
size, number = map(int, input().split())
children = []
reading, writing = os.pipe()
waiting, releasing = os.pipe()
for _ in range(number):
    child = os.fork()
    if child == 0:
        os.close(releasing)
        try:
            block = bytearray(size)
            for place in range(0, size, 4096):
                block[place] = 1
            os.close(writing)
            os.read(waiting, 1)
            os._exit(0)
        finally:
            os._exit(1)
    children.append(child)
os.close(writing)
os.read(reading, 1)  # returns when each child has its memory or has ended
os.close(releasing)
print(sum(os.waitpid(child, 0)[1] == 0 for child in children))
"""

# Reads a number of bytes from standard input. Prints how many it could write.
DISK = """
wanted, written = int(input()), 0
for number in range(4):
    try:
        with open(f"/tmp/file{number}", "wb", buffering=0) as file:
            while written < wanted:
                written += file.write(b"x" * (1 << 20))
    except OSError:
        pass
print(written)
"""

FLOOD = "import os\nwhile True: os.write(1, b'x' * 65536)\n"
ENDLESS = """
import signal
for number in set(range(1, 32)) - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, signal.SIG_IGN)
while True:
    pass
"""

# Wrong programs that pretend to be right.
FORGED_VERDICTS = {
    "its exit code": "import os\nprint('passed')\nos._exit(0)\n",
    "an object that equals everything": "class E:\n  def __eq__(self, other): return True\ndef f(x): return E()\n",
    "a changed builtin": "import builtins\nbuiltins.AssertionError = Exception\ndef f(x): return 0\n",
}
