"""What a hostile program in a session tries, one attempt a function.

Arguments are facts of the host as NAME=VALUE. Prints `held NAME REASON` or `open NAME WHAT` a line, and
`end` last. An attempt returns what it got hold of, or nothing; an OSError is a refusal.
"""

import ctypes
import errno
import fcntl
import os
import re
import signal
import socket
import stat
import struct
import subprocess
import sys
import threading
import time

FACTS = dict(word.split("=", 1) for word in sys.argv[1:])
SECRET = FACTS["secret"].encode()
STATE = FACTS["state"]
ATTEMPTS = []
# Looked at before anything is opened here.
INHERITED = []
for number in os.listdir("/proc/self/fd"):
    try:
        if int(number) > 2:
            INHERITED.append(os.readlink("/proc/self/fd/" + number))
    except OSError:
        # The list's own, which is closed again.
        pass
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long

# x86-64 and aarch64 numbers of calls that Python has no function for.
X86 = os.uname().machine == "x86_64"
CALLS = {
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "open_tree": (428, 428),
    "move_mount": (429, 429), "fsopen": (430, 430), "mount_setattr": (442, 442), "unshare": (272, 97),
    "setns": (308, 268), "clone": (56, 220), "clone3": (435, 435), "bpf": (321, 280), "ptrace": (101, 117),
    "keyctl": (250, 219), "add_key": (248, 217), "io_uring_setup": (425, 425), "perf_event_open": (298, 241),
    "userfaultfd": (323, 282), "init_module": (175, 105), "kexec_load": (246, 104), "reboot": (169, 142),
    "swapon": (167, 224), "acct": (163, 89), "quotactl": (179, 60), "settimeofday": (164, 170),
    "sethostname": (170, 161), "syslog": (103, 116), "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265), "process_vm_readv": (310, 270), "pidfd_getfd": (438, 438),
    "shmget": (29, 194), "mknodat": (259, 33),
}


def call(name, *arguments):
    """A system call; raises what it is refused with."""
    number = CALLS[name][0 if X86 else 1]
    result = libc.syscall(ctypes.c_long(number), *[
        ctypes.c_long(word) if isinstance(word, int) else word for word in arguments])
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def attempt(function):
    ATTEMPTS.append(function)
    return function


def calls(name, *arguments):
    """An attempt that is one call. What is refused for its arguments was let through before that; they are
    such that nothing comes of it."""
    def try_it():
        try:
            return "%s is allowed (%d)" % (name, call(name, *arguments))
        except OSError as error:
            if error.errno in (errno.EPERM, errno.EACCES, errno.ENOSYS):
                raise
            return "%s is let through (%s)" % (name, error)
    try_it.__name__ = "call_" + name
    ATTEMPTS.append(try_it)


def holds_secret(path):
    try:
        with open(path, "rb") as file:
            return SECRET in file.read(1 << 20)
    except OSError:
        return False


def search(top):
    """Files below `top` that hold the secret."""
    found = []
    for directory, names, files in os.walk(top, onerror=lambda error: None):
        # Toolchains of the user, which are shown on purpose, are hidden directories of the home.
        names[:] = [name for name in names if not name.startswith(".")
                    and not os.path.islink(os.path.join(directory, name))]
        for name in files:
            path = os.path.join(directory, name)
            try:
                if stat.S_ISREG(os.lstat(path).st_mode) and holds_secret(path):
                    found.append(path)
            except OSError:
                pass
    return found


def processes():
    return [name for name in os.listdir("/proc") if name.isdigit()]


@attempt
def files_of_others_by_path():
    here = FACTS["workspace"]
    tops = ["/tmp", "/var/tmp", "/dev/shm", "/run", os.path.expanduser("~"), STATE, "/.sandstack", here]
    return [path for top in tops for path in search(top)]


@attempt
def state_directory():
    found = []
    for directory, names, files in os.walk(STATE, onerror=lambda error: None):
        # Where the project is in it, only the view is there.
        names[:] = [name for name in names if os.path.join(directory, name) != FACTS["workspace"]]
        found += [os.path.join(directory, name) for name in files]
    return found


@attempt
def tokens_and_sockets():
    paths = [STATE + "/tokens/management.token", STATE + "/gateway.sock", "/.sandstack/holder.sock",
             "/.sandstack-holder"]
    paths += [STATE + "/sandboxes/%s/holder.sock" % FACTS["sandbox"]]
    return [path for path in paths if os.path.lexists(path) and not stat.S_ISCHR(os.stat(path).st_mode)]


@attempt
def docker_socket():
    for path in ["/var/run/docker.sock", "/run/docker.sock", "/run/containerd/containerd.sock"]:
        with socket.socket(socket.AF_UNIX) as client:
            try:
                client.connect(path)
                return path
            except OSError:
                pass


@attempt
def secrets_of_root():
    found = []
    for path in ["/etc/shadow", "/etc/gshadow", "/var/lib/docker", "/var/lib/containerd"]:
        try:
            if os.path.isdir(path):
                found += os.listdir(path) and [path]
            elif open(path, "rb").read(1) and FACTS["provider"] == "local":
                found.append(path)
        except OSError:
            pass
    return found


@attempt
def handles():
    """Opens what has inode numbers near to one's own, on the view and on the root."""
    handle = ctypes.create_string_buffer(struct.pack("Ii", 128, 0) + bytes(128))
    mount = ctypes.c_int()
    for path in [b".", b"/etc"]:
        try:
            call("name_to_handle_at", -100, ctypes.c_char_p(path), handle, ctypes.byref(mount), 0)
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
        directory = os.open(path, os.O_RDONLY)
        call("open_by_handle_at", directory, handle, os.O_RDONLY)
        return "a handle was opened"


@attempt
def environments():
    found = []
    for pid in processes():
        if pid != str(os.getpid()) and holds_secret("/proc/%s/environ" % pid):
            found.append(pid)
    return found


@attempt
def processes_of_others():
    found = []
    for pid in processes():
        try:
            with open("/proc/%s/cmdline" % pid, "rb") as file:
                if FACTS["marker"].encode() in file.read() and int(pid) not in ancestors():
                    found.append(pid)
        except OSError:
            pass
    return found


def ancestors():
    pid, found = os.getpid(), []
    while pid > 0:
        found.append(pid)
        with open("/proc/%d/stat" % pid) as file:
            pid = int(file.read().rsplit(")", 1)[1].split()[1])
    return found


@attempt
def roots_of_processes():
    found = []
    for pid in processes():
        for link in ["root", "cwd"]:
            path = "/proc/%s/%s" % (pid, link)
            try:
                if pid == "1":
                    found.append(os.readlink(path))
                if any(SECRET in os.fsencode(name) for name in os.listdir(path)):
                    found.append(path)
            except OSError:
                pass
        if os.path.exists("/proc/%s/root%s" % (pid, STATE)) and os.listdir("/proc/%s/root%s" % (pid, STATE)):
            names = set(os.listdir("/proc/%s/root%s" % (pid, STATE)))
            found += names & {"tokens", "store", "sandboxes", "gateway.sock"}
    return found


@attempt
def descriptors_of_init():
    found = []
    for number in os.listdir("/proc/1/fd"):
        for look in [os.readlink, lambda path: os.open(path, os.O_RDONLY)]:
            try:
                found.append(look("/proc/1/fd/" + number))
            except OSError:
                pass
    return found


@attempt
def memory_of_init():
    with open("/proc/1/mem", "rb") as file:
        return file.fileno()


@attempt
def memory_of_init_by_call():
    buffer = ctypes.create_string_buffer(8)
    part = (ctypes.c_ulong * 2)(ctypes.addressof(buffer), 8)
    call("process_vm_readv", 1, part, 1, part, 1, 0)
    return "memory of the init was read"


@attempt
def descriptor_of_init_by_call():
    return call("pidfd_getfd", os.pidfd_open(1), 0, 0)


@attempt
def own_descriptors():
    """Nothing was inherited but the three streams."""
    return [target for target in INHERITED if not target.endswith("/attacker.py")]


@attempt
def namespaces_of_init():
    for name in ["mnt", "user", "net", "pid"]:
        call("setns", os.open("/proc/1/ns/" + name, os.O_RDONLY), 0)
        return name


@attempt
def namespaces_of_own():
    return call("setns", os.open("/proc/self/ns/user", os.O_RDONLY), 0)


PTRACE_ATTACH = 16
CLONE_NEWUSER, CLONE_NEWNS, CLONE_NEWNET = 0x10000000, 0x00020000, 0x40000000
NULL = ctypes.c_char_p(None)
calls("mount", ctypes.c_char_p(b"none"), ctypes.c_char_p(b"/tmp"), ctypes.c_char_p(b"tmpfs"), 0, NULL)
calls("umount2", ctypes.c_char_p(FACTS["workspace"].encode()), 2)
calls("pivot_root", ctypes.c_char_p(b"/tmp"), ctypes.c_char_p(b"/tmp"))
calls("open_tree", -100, ctypes.c_char_p(b"/"), 1)
calls("move_mount", -100, ctypes.c_char_p(b"/tmp"), -100, ctypes.c_char_p(b"/var/tmp"), 0)
calls("fsopen", ctypes.c_char_p(b"tmpfs"), 0)
calls("mount_setattr", -100, ctypes.c_char_p(b"/"), 0, ctypes.c_char_p(bytes(32)), 32)
calls("unshare", CLONE_NEWUSER)
calls("clone3", ctypes.c_char_p(bytes(88)), 88)
calls("bpf", 0, ctypes.c_char_p(bytes(128)), 128)
calls("ptrace", PTRACE_ATTACH, 1, 0, 0)
calls("keyctl", 0, -3, 1)
calls("add_key", ctypes.c_char_p(b"user"), ctypes.c_char_p(b"a"), ctypes.c_char_p(b"b"), 1, -3)
calls("io_uring_setup", 4, ctypes.c_char_p(bytes(120)))
calls("perf_event_open", ctypes.c_char_p(bytes(128)), 0, -1, -1, 0)
calls("userfaultfd", 0)
calls("init_module", ctypes.c_char_p(b"x"), 1, ctypes.c_char_p(b""))
calls("kexec_load", 0, 0, NULL, 0)
calls("reboot", 0, 0, 0, NULL)
calls("swapon", ctypes.c_char_p(b"/tmp/swap"), 0)
calls("acct", 1)
calls("quotactl", 0, 1, 0, 0)
calls("settimeofday", 1, 0)
calls("sethostname", 1, 1)
calls("syslog", 3, ctypes.c_char_p(bytes(64)), 64)


@attempt
def clone_with_a_user_namespace():
    pid = call("clone", CLONE_NEWUSER | CLONE_NEWNS | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return "a user namespace was made"


@attempt
def device_nodes():
    found = []
    for name, kind, device in [("disk", stat.S_IFBLK, (8, 0)), ("memory", stat.S_IFCHR, (1, 1)),
                               ("fuse", stat.S_IFCHR, (10, 229)), ("kvm", stat.S_IFCHR, (10, 232))]:
        for place in ["/tmp", "."]:
            path = "%s/%s" % (place, name)
            try:
                os.mknod(path, kind | 0o666, os.makedev(*device))
                os.close(os.open(path, os.O_RDWR))
                found.append(path)
            except OSError:
                pass
    found += [name for name in ["sda", "vda", "mem", "kmsg", "fuse", "kvm", "net", "loop0", "vsock"]
              if os.path.exists("/dev/" + name)]
    return found


@attempt
def set_id_programs():
    """A set-id copy of a program of one's own, run as another user."""
    for place in ["/tmp", "."]:
        path = place + "/set-id"
        with open("/bin/sh", "rb") as source, open(path, "wb") as target:
            target.write(source.read())
        os.chmod(path, 0o6755)
        before = (os.geteuid(), os.getegid())
        command = [path, "-c", "grep -E '^(Uid|Gid|NoNewPrivs)' /proc/self/status"]
        if os.getuid() == 0 and FACTS["all_ids"] == "yes":
            ran = subprocess.run(command, stdout=subprocess.PIPE, user=1234, group=1234, extra_groups=[])
            before = (1234, 1234)
        else:
            ran = subprocess.run(command, stdout=subprocess.PIPE)
        text = ran.stdout.decode()
        effective = (int(re.search(r"Uid:\s+\d+\s+(\d+)", text)[1]), int(re.search(r"Gid:\s+\d+\s+(\d+)", text)[1]))
        if effective != before or not re.search(r"NoNewPrivs:\s+1", text):
            return text


@attempt
def files_of_the_host():
    found = []
    for path in ["/etc/sandstack-was-here", "/usr/bin/sandstack-was-here", "/sandstack-was-here",
                 "/var/sandstack-was-here", "/boot/x", "/opt/x"]:
        try:
            with open(path, "w") as file:
                file.write("x")
            found.append(path)
        except OSError:
            pass
    for path in ["/etc/passwd", "/bin/sh"]:
        for doing in [lambda: os.chmod(path, 0o777), lambda: os.utime(path), lambda: os.truncate(path, 0),
                      lambda: os.link(path, "linked"), lambda: os.setxattr(path, "user.x", b"x")]:
            try:
                doing()
                found.append(path)
            except OSError:
                pass
    return found


@attempt
def kernel_settings():
    found = []
    values = {"/proc/sys/kernel/core_pattern": "|/bin/false", "/proc/sys/kernel/modprobe": "/bin/false",
              "/proc/sysrq-trigger": "h", "/proc/sys/vm/drop_caches": "1", "/proc/sys/kernel/pid_max": "400",
              "/sys/kernel/uevent_helper": "/bin/false", "/sys/fs/cgroup/cgroup.procs": "1",
              "/sys/fs/cgroup/memory/release_agent": "/bin/false", "/proc/1/oom_score_adj": "-1000",
              "/proc/self/oom_score_adj": "-1000", "/proc/self/uid_map": "0 0 1"}
    for path, value in values.items():
        try:
            with open(path, "w") as file:
                file.write(value)
            found.append(path)
        except OSError:
            pass
    return found


@attempt
def kernel_views():
    found = []
    for path in ["/proc/kcore", "/proc/keys", "/proc/kmsg", "/dev/kmsg", "/proc/timer_list", "/proc/sched_debug",
                 "/sys/kernel/debug", "/sys/kernel/tracing", "/sys/fs/fuse/connections", "/sys/fs/bpf"]:
        try:
            size = len(os.listdir(path)) if os.path.isdir(path) else len(open(path, "rb").read(1))
            found += [path] if size else []
        except OSError:
            pass
    return found


@attempt
def out_by_chroot():
    child = os.fork()
    if child == 0:
        code = 2
        try:
            os.mkdir("/tmp/cage")
            outside = os.open("/", os.O_RDONLY)
            os.chroot("/tmp/cage")
            os.fchdir(outside)
            for _ in range(64):
                os.chdir("..")
            os.chroot(".")
            code = 1 if os.path.exists(STATE + "/tokens") else 0
        except OSError:
            code = 0
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0


@attempt
def out_by_dots():
    path = "../" * 64 + STATE.lstrip("/") + "/tokens"
    return os.path.exists(path) or os.path.exists("/proc/self/root/" + path)


@attempt
def out_by_links():
    os.symlink(STATE + "/tokens/management.token", "to-token")
    os.symlink("/proc/1/root/etc/passwd", "to-init")
    found = []
    for name in ["to-token", "to-init"]:
        try:
            found.append(open(name, "rb").read(10))
        except OSError:
            pass
        os.unlink(name)
    return found


@attempt
def signals_to_others():
    """Every number there could be; only what was started here may be hit."""
    hit = []
    for pid in range(2, 40000):
        if pid in ancestors_now:
            continue
        try:
            os.kill(pid, 0)
            hit.append(pid)
        except OSError:
            pass
    seen = {int(pid) for pid in processes()} | {int(task) for pid in processes() for task in tasks(pid)}
    return [pid for pid in hit if pid not in seen]


def tasks(pid):
    try:
        return os.listdir("/proc/%s/task" % pid)
    except OSError:
        return []


ancestors_now = ancestors()


@attempt
def init_survives():
    os.kill(1, signal.SIGKILL)
    os.kill(1, signal.SIGTERM)
    os.kill(1, signal.SIGSTOP)
    time.sleep(0.01)
    with open("/proc/1/stat") as file:
        state = file.read().rsplit(")", 1)[1].split()[0]
    return state if state in "TZX" else None


@attempt
def shared_memory():
    call("shmget", int(FACTS["key"]), 0, 0)
    return "a segment of another session was found"


@attempt
def priorities():
    found = []
    for name, doing in [
        ("nice", lambda: os.setpriority(os.PRIO_PROCESS, 0, -10)),
        ("realtime", lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))),
    ]:
        try:
            doing()
            found.append(name)
        except OSError:
            pass
    return found


@attempt
def network_of_the_sandbox():
    """Takes the loopback interface down."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        fcntl.ioctl(handle, 0x8914, struct.pack("16sh14x", b"lo", 0))
    return "the loopback interface is down"


@attempt
def raw_packets():
    socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)).close()
    return "packets can be read"


@attempt
def hypervisor():
    socket.socket(40, socket.SOCK_STREAM).close()
    return "a socket to the hypervisor was made"


@attempt
def loopback_of_the_host():
    with socket.create_connection(("127.0.0.1", int(FACTS["port"])), 5):
        return "connected"


@attempt
def loopback_of_another_session():
    with socket.create_connection(("127.0.0.1", int(FACTS["service"])), 5):
        return "connected"


@attempt
def network_of_the_host():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.connect(("192.0.2.1", 9))
        return client.getsockname()


@attempt
def abstract_sockets():
    with socket.socket(socket.AF_UNIX) as client:
        client.connect("\0" + FACTS["abstract"])
        return "connected"


@attempt
def socket_of_another_session():
    """One in the workspace: the name is the same, the view is not."""
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(FACTS["workspace"] + "/service.sock")
        return "connected"


@attempt
def terminals_of_others():
    return [name for name in os.listdir("/dev/pts") if name != "ptmx"]


@attempt
def input_of_the_terminal():
    """Pushes a line into the terminal that others read from."""
    fcntl.ioctl(0, 0x5412, b"x")
    return "a byte was pushed"


def controls():
    """What must work, or the attempts above would fail for another reason."""
    child = subprocess.Popen(["sleep", "100"])
    os.kill(child.pid, signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        socket.create_connection(server.getsockname(), 5).close()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("\0control-%d" % os.getpid())
        server.listen()
        with socket.socket(socket.AF_UNIX) as client:
            client.connect("\0control-%d" % os.getpid())
    with open("own", "wb") as file:
        file.write(SECRET)
    assert search(".") == ["./own"], search(".")
    os.unlink("own")
    with open("/tmp/own", "wb") as file:
        file.write(SECRET)
    assert holds_secret("/tmp/own")
    os.unlink("/tmp/own")
    threading.Thread(target=lambda: None).start()


controls()
for function in ATTEMPTS:
    try:
        got = function()
        if got:
            print("open", function.__name__, got, flush=True)
        else:
            print("held", function.__name__, "nothing", flush=True)
    except OSError as error:
        print("held", function.__name__, errno.errorcode.get(error.errno, error), flush=True)
print("end", len(ATTEMPTS), flush=True)
