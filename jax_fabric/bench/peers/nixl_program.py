"""Both sides of NIXL in two processes of this machine. Not for direct use; see bench.nixl.

Runs in the environment that benchmarks/peers/setup nixl makes, which has NumPy and NIXL and nothing
else: so it imports nothing of jax_fabric. Commands and answers are lines of JSON on standard input
and output. Set up as NIXL is fastest on one machine: UCX with its posix transport, error handling
off, no progress thread.
"""

import ctypes
import json
import mmap
import os
import pickle
import socket
import struct
import subprocess
import sys
import time

os.environ["UCX_TLS"] = "posix,self"
os.environ.setdefault("UCX_NET_DEVICES", "lo")
os.environ.setdefault("NIXL_LOG_LEVEL", "ERROR")
os.environ.setdefault("UCX_LOG_LEVEL", "error")

import logging  # noqa: E402

logging.disable(logging.WARNING)

import numpy as np  # noqa: E402
from nixl import _bindings as bindings  # noqa: E402
from nixl._api import nixl_agent, nixl_agent_config  # noqa: E402

WINDOW = 4
# Looks between two yields. Where cores are few and the two sides do not answer each other, one that
# spins keeps what it waits for from running: rates are 5 times lower then, on two cores. Answers
# are 4 times later with a yield after each look.
MANY_LOOKS = 2000
FEW_LOOKS = MANY_LOOKS if len(os.sched_getaffinity(0)) >= 8 else 1


class Side:
    """An agent with registered memory."""

    def __init__(self, name, nbytes, timeout_s):
        """Makes the agent."""
        config = nixl_agent_config(enable_prog_thread=False, backends=[], num_threads=0)
        self.agent = nixl_agent(name, config)
        self.agent.create_backend("UCX", {"ucx_error_handling_mode": "none"})
        self.memory = mmap.mmap(-1, nbytes)
        self.nbytes = nbytes
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        ctypes.memset(self.address, 1, nbytes)
        self.registration = self.agent.register_memory([(self.address, nbytes, 0, "")], "DRAM")
        self.raw = self.agent.agent  # what NIXL's own Python wrapper calls
        self.timeout_s = timeout_s
        self.looks = FEW_LOOKS
        self.peer = ""
        self.peer_address = 0

    def introduce(self, channel, first):
        """Exchanges metadata and addresses."""
        mine = (self.agent.get_agent_metadata(), self.address)
        if first:
            channel.send(mine)
            metadata, self.peer_address = channel.receive()
        else:
            metadata, self.peer_address = channel.receive()
            channel.send(mine)
        peer = self.agent.add_remote_agent(metadata)
        self.peer = peer.decode() if isinstance(peer, bytes) else peer

    def write(self, nbytes, offset=0, notification=b"n"):
        """A prepared write of one range."""
        local = self.agent.get_xfer_descs([(self.address + offset, nbytes, 0)], "DRAM")
        remote = self.agent.get_xfer_descs([(self.peer_address + offset, nbytes, 0)], "DRAM")
        return self.agent.initialize_xfer("WRITE", local, remote, self.peer, notification)

    def post(self, handle):
        """Starts a write; whether it has ended already."""
        return self.raw.postXferReq(handle._handle, b"n") == bindings.NIXL_SUCCESS

    def wait(self, handle):
        """Until a write has ended here."""
        self.poll(lambda: self.raw.getXferStatus(handle._handle) == bindings.NIXL_SUCCESS)

    def wait_notifications(self, count):
        """Until so many have come."""
        seen = 0

        def all_here():
            nonlocal seen
            seen += sum(map(len, self.raw.getNotifs({}, []).values()))
            return seen >= count

        self.poll(all_here)

    def poll(self, ready):
        """Spins, and now and then lets others run."""
        end = time.perf_counter() + self.timeout_s
        while True:
            for _ in range(self.looks):
                if ready():
                    return
            if time.perf_counter() > end:
                raise TimeoutError("NIXL: the other side did not answer in time")
            os.sched_yield()

    def notify(self):
        """A notification without a write."""
        self.raw.genNotif(self.peer, b"n")


class Channel:
    """Objects over a socket between the two sides: control only."""

    def __init__(self, end):
        """Over one end of it."""
        self.end = end

    def send(self, item):
        """Sends one."""
        data = pickle.dumps(item)
        self.end.sendall(struct.pack("<I", len(data)) + data)

    def receive(self):
        """Waits for one."""
        return pickle.loads(self._exactly(struct.unpack("<I", self._exactly(4))[0]))

    def _exactly(self, count):
        data = b""
        while len(data) < count:
            part = self.end.recv(count - len(data))
            if not part:
                raise EOFError("NIXL: the other side is gone")
            data += part
        return data


def target(descriptor, nbytes, timeout_s):
    """The side that is written to: does what the other one says."""
    channel = Channel(socket.socket(fileno=descriptor))
    side = Side("target", nbytes, timeout_s)
    side.introduce(channel, first=True)
    while True:
        command, *arguments = channel.receive()
        if command == "quit":
            return
        if command == "bounce":
            size, rounds = arguments
            side.looks = MANY_LOOKS
            handle = side.write(size) if size else None
            channel.send("ready")
            for _ in range(rounds):
                side.wait_notifications(1)
                if handle is None:
                    side.notify()
                elif not side.post(handle):
                    side.wait(handle)
            side.looks = FEW_LOOKS
        elif command == "sink":
            channel.send("ready")
            side.wait_notifications(arguments[0])
            channel.send("all")
        elif command == "read":
            offset, count = arguments
            channel.send(side.memory[offset : offset + count])


class Initiator:
    """Measures."""

    def __init__(self, side, channel):
        """From this side to the one behind the channel."""
        self.side = side
        self.channel = channel

    def ask(self, *command):
        """What the other side answers."""
        self.channel.send(command)
        return self.channel.receive()

    def check(self):
        """One write arrives as it was sent."""
        pattern = os.urandom(4096)
        ctypes.memmove(self.side.address + 8192, pattern, len(pattern))
        self.ask("sink", 1)
        handle = self.side.write(len(pattern), 8192)
        if not self.side.post(handle):
            self.side.wait(handle)
        self.channel.receive()
        if self.ask("read", 8192, len(pattern)) != pattern:
            raise RuntimeError("NIXL: a write arrived with other bytes")
        return []

    def writes(self, nbytes, count):
        """Seconds for `count` writes, four at a time."""
        places = self.side.nbytes // nbytes
        handles = [self.side.write(nbytes, i % places * nbytes) for i in range(WINDOW)]
        live = [False] * WINDOW
        self.ask("sink", count)
        begin = time.perf_counter()
        for i in range(count):
            at = i % WINDOW
            if live[at]:
                self.side.wait(handles[at])
            live[at] = not self.side.post(handles[at])
        for at in range(WINDOW):
            if live[at]:
                self.side.wait(handles[at])
        seconds = time.perf_counter() - begin
        self.channel.receive()
        return seconds

    def pages(self, nbytes, order, count):
        """Seconds for `count` batches of pages, page i to place order[i]; the plan is made anew."""
        side, number = self.side, len(order)
        sources = [(side.address + i * nbytes, nbytes, 0) for i in range(number)]
        targets = [(side.peer_address + i * nbytes, nbytes, 0) for i in range(number)]
        local = side.agent.prep_xfer_dlist("NIXL_INIT_AGENT", np.array(sources, np.uint64), "DRAM")
        remote = side.agent.prep_xfer_dlist(side.peer, np.array(targets, np.uint64), "DRAM")
        source_indices = np.arange(number, dtype=np.int32)
        target_indices = np.array(order, dtype=np.int32)
        self.ask("sink", count)
        begin = time.perf_counter()
        for _ in range(count):
            handle = side.agent.make_prepped_xfer(
                "WRITE", local, source_indices, remote, target_indices, b"n"
            )
            if not side.post(handle):
                side.wait(handle)
            handle.release()
        seconds = time.perf_counter() - begin
        self.channel.receive()
        return seconds

    def bounce(self, nbytes, rounds):
        """Seconds of each round trip of a write, or of a bare notification."""
        handle = self.side.write(nbytes) if nbytes else None
        self.side.looks = MANY_LOOKS
        self.ask("bounce", nbytes, rounds)
        trips = []
        for _ in range(rounds):
            begin = time.perf_counter()
            if handle is None:
                self.side.notify()
            elif not self.side.post(handle):
                self.side.wait(handle)
            self.side.wait_notifications(1)
            trips.append(time.perf_counter() - begin)
        self.side.looks = FEW_LOOKS
        return trips


def initiator(nbytes, timeout_s):
    """Answers one line for each that comes, until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    mine, other = socket.socketpair()
    mine.settimeout(timeout_s)
    command = [sys.executable, __file__, str(other.fileno()), str(nbytes), str(timeout_s)]
    process = subprocess.Popen(command, pass_fds=[other.fileno()], stdin=subprocess.DEVNULL)
    other.close()
    channel = Channel(mine)
    try:
        side = Side("initiator", nbytes, timeout_s)
        side.introduce(channel, first=False)
        measure = Initiator(side, channel)
        for line in sys.stdin:
            name, *arguments = json.loads(line)
            print(json.dumps(getattr(measure, name)(*arguments)), file=answers, flush=True)
        channel.send(("quit",))
        process.wait(timeout_s)
    finally:
        process.kill()


if __name__ == "__main__":
    code = 0
    try:
        if len(sys.argv) == 4:
            target(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
        else:
            initiator(int(sys.argv[1]), float(sys.argv[2]))
    except Exception as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        code = 1
    os._exit(code)  # NIXL 1.5.1 crashes when the interpreter takes it down
