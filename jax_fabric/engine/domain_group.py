"""The NICs of one device as one endpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from jax_fabric import _core
from jax_fabric.arguments import (
    MAX_U32,
    byte_string,
    function,
    instance,
    integer,
    microseconds,
    seconds,
)
from jax_fabric.engine.barrier_target import BarrierTarget
from jax_fabric.engine.expectation import Expectation
from jax_fabric.engine.pages import Pages, page_arguments
from jax_fabric.engine.peer import Peer
from jax_fabric.engine.prepared_scatter import PreparedScatter
from jax_fabric.engine.revocation import Revocation
from jax_fabric.engine.scatter_entry import ScatterEntry
from jax_fabric.engine.source_range import source_range
from jax_fabric.engine.transfer import Transfer
from jax_fabric.engine.write_grant import WriteGrant, native_grant
from jax_fabric.errors import InvalidArgument
from jax_fabric.memory import Access, MemoryRegion, RemoteMemory
from jax_fabric.memory.buffer import address_of, array_of


class DomainGroup:
    """One endpoint: its peers, its memory and its requests; see ``TransferEngine.add_group``.

    Thread-safe. Sizes and offsets are bytes. Every request and every wait has a deadline:
    ``timeout_s``, by default the group's. Nothing is promised about order, between writes or
    between messages; receivers count immediates.

    All methods raise Cancelled once the engine is closed, and InvalidArgument for wrong arguments.

    Attributes:
      name: of the group, for messages here and at peers.
      timeout_s: default deadline.
    """

    def __init__(self, native: _core.DomainGroup, name: str, timeout_s: float):
        """Used by ``TransferEngine.add_group``."""
        self._native = native
        self._peers: dict[int, Peer] = {}
        self.name = name
        self.timeout_s = timeout_s

    def __repr__(self) -> str:
        """Name and peers."""
        return f"DomainGroup({self.name!r}, {len(self._peers)} peers)"

    # --- peers

    @property
    def nic_count(self) -> int:
        """NICs of the group; NIC i talks to NIC i of a peer."""
        return self._native.nic_count

    def address(self) -> bytes:
        """What a peer gives to ``add_peer``: versioned and checksummed."""
        return self._native.address()

    def add_peer(self, address: bytes) -> Peer:
        """Starts to connect to a peer; ``wait_peers`` waits for it.

        Args:
          address: of the peer's group. The same address twice gives the same peer.

        Raises:
          CorruptData: the address is damaged.
          FabricError: the peer is of another version, secret, transport or NIC count.
        """
        handle, name = self._native.add_peer(byte_string("address", address))
        return self._peers.setdefault(handle, Peer(handle, name))

    def wait_peers(self, peers: Iterable[Peer], timeout_s: float | None = None) -> None:
        """Waits until peers are ready. Requests may be made before.

        Raises:
          DeadlineExceeded: names those that still connect.
          PeerUnavailable: names those that cannot be reached, with the cause.
        """
        handles = [self._handle(peer) for peer in peers]
        self._native.wait_peers(handles, self._microseconds(timeout_s))

    def remove_peer(self, peer: Peer) -> None:
        """Ends all requests to a peer with PeerUnavailable, and forgets it; idempotent."""
        self._native.remove_peer(self._handle(peer))

    def peer_path(self, peer: Peer) -> str:
        """How writes reach a peer, as it was found out when the peer was connected.

        Returns:
          ``"same process"``; ``"shared memory and process_vm_writev"``, or ``"shared memory and
          bounce slots"`` where the kernel does not allow that: both say what happens to memory that
          is not from ``jax_fabric.memory.allocate``; ``"libfabric"`` with the provider's name;
          ``"libibverbs"`` with the device's;
          ``"not connected"`` before the peer is ready and after it is lost.
        """
        return self._native.peer_path(self._handle(peer))

    # --- memory

    def register(self, buffer: Any, access: Access = Access.LOCAL) -> MemoryRegion:
        """Registers memory with the group's NICs.

        Args:
          buffer: a NumPy array, anything with the buffer protocol, or a jax.Array on one CPU
            device; contiguous and not empty. ``jax_fabric.memory.allocate`` gives memory that
            processes of the same machine write to fastest.
          access: who may use it. Read-only memory, like that of a jax.Array, can only be a source.

        Returns:
          The region, which keeps the buffer alive.

        Raises:
          InvalidArgument: the buffer is none, or cannot be what is asked for.
          FabricError: a NIC refuses it.
        """
        instance("access", access, Access)
        array = array_of(buffer)
        address, read_only = address_of(array)
        if read_only and access is Access.REMOTE_WRITE:
            raise InvalidArgument(
                f"buffer: {type(buffer).__qualname__} is read-only, so peers must not write to it: "
                f"register it with Access.LOCAL as a source, or give writable memory"
            )
        native = self._native.register(array, address, array.nbytes, access is Access.REMOTE_WRITE)
        return MemoryRegion(native, array, access)

    # --- immediates

    def allocate_immediates(self, count: int) -> range:
        """Hands out ids that peers may send to this group.

        Raises:
          FabricError: so many are not left; ``release_immediates`` gives some back.
        """
        count = integer("count", count, least=1, most=MAX_U32)
        first = self._native.allocate_immediates(count)
        return range(first, first + count)

    def release_immediates(self, immediates: range) -> None:
        """Gives back what ``allocate_immediates`` returned.

        The caller knows that no peer uses the ids any more: a late one would count for their next
        owner.

        Raises:
          FabricError: an id was not handed out, or is still expected.
        """
        instance("immediates", immediates, range)
        if immediates.step != 1 or len(immediates) == 0 or immediates.start < 0:
            raise InvalidArgument(
                f"immediates={immediates!r}: must be what allocate_immediates returned"
            )
        self._native.release_immediates(
            integer("immediates", immediates.start, most=MAX_U32), len(immediates)
        )

    def expect(
        self, immediate: int, count: int = 1, *, timeout_s: float | None = None
    ) -> Expectation:
        """Expects that an immediate comes ``count`` times, before or after this call.

        When it is done, the payloads of that many writes are in memory. What comes beyond the count
        is carried over to the next expectation. One expectation an id at a time.

        Raises:
          FabricError: the id was not handed out, or is expected already.
        """
        immediate = integer("immediate", immediate, most=MAX_U32)
        count = integer("count", count, most=MAX_U32)
        native = self._native.expect(immediate, count, self._microseconds(timeout_s))
        return Expectation(native, self, immediate, count, self._seconds(timeout_s))

    @property
    def stray_immediates(self) -> int:
        """How many immediates came with an id that nobody owns."""
        return self._native.stray_immediates

    def write_immediates(self, peer: Peer, max_nbytes: int) -> int:
        """How many immediates a ``write`` of at most ``max_nbytes`` brings; equal on both sides."""
        return self._native.write_immediates(self._handle(peer), integer("max_nbytes", max_nbytes))

    def scatter_immediates(self, peer: Peer, max_nbytes: int) -> int:
        """How many immediates a scatter entry of at most ``max_nbytes`` brings."""
        return self._native.scatter_immediates(
            self._handle(peer), integer("max_nbytes", max_nbytes)
        )

    # --- requests

    def write(
        self,
        peer: Peer,
        source: MemoryRegion | None,
        target: RemoteMemory,
        *,
        source_offset: int = 0,
        target_offset: int = 0,
        nbytes: int | None = None,
        max_nbytes: int = 0,
        immediate: int | None = None,
        timeout_s: float | None = None,
        grant: WriteGrant | None = None,
    ) -> Transfer:
        """Writes one range into a peer's memory, spread over the NICs.

        Args:
          peer: whose memory it is.
          source: to write from; None writes no bytes.
          target: the peer's memory.
          source_offset: of the first byte in the source.
          target_offset: of the first byte in the target.
          nbytes: to write; default: all of the source from ``source_offset`` on. May be 0.
          max_nbytes: longest length that the receiver counts on (``write_immediates``); default:
            ``nbytes``.
          immediate: an id that the peer handed out.
          timeout_s: by when the request has ended; default: the group's.
          grant: that the peer gave for this (``open_grant``), with its immediate: the request ends
            with Cancelled once it is taken back.

        Raises:
          InvalidArgument: a range is outside of its memory; the immediate is not the grant's.
          FabricError: the target belongs to another peer or an earlier life of this one; or so many
            requests were under way all the time that none could be added.
        """
        handle = self._handle(peer)
        native_source, source_offset, nbytes = source_range(source, source_offset, nbytes)
        instance("target", target, RemoteMemory)
        native = self._native.write(
            handle,
            native_source,
            source_offset,
            target._native,
            integer("target_offset", target_offset),
            nbytes,
            integer("max_nbytes", max_nbytes),
            None if immediate is None else integer("immediate", immediate, most=MAX_U32),
            self._microseconds(timeout_s),
            native_grant(grant),
        )
        return self._transfer(native, "the write", timeout_s)

    def write_pages(
        self,
        peer: Peer,
        source: MemoryRegion,
        source_pages: Any | Pages,
        target: RemoteMemory,
        target_pages: Any | Pages,
        *,
        page_nbytes: int,
        immediate: int | None = None,
        timeout_s: float | None = None,
        grant: WriteGrant | None = None,
    ) -> Transfer:
        """Writes pages into a peer's memory: source page i goes to target page i.

        Args:
          peer: whose memory it is.
          source: that the pages are in.
          source_pages: indices, or ``Pages`` with stride and offset.
          target: the peer's memory.
          target_pages: as many.
          page_nbytes: length of every page.
          immediate: an id that the peer handed out; each page brings it once.
          timeout_s: by when the request has ended; default: the group's.
          grant: as of ``write``.

        Raises:
          InvalidArgument: a page is outside of its memory; there are not as many of both.
          FabricError: as ``write``.
        """
        handle = self._handle(peer)
        instance("source", source, MemoryRegion)
        instance("target", target, RemoteMemory)
        page_nbytes = integer("page_nbytes", page_nbytes)
        native = self._native.write_pages(
            handle,
            page_nbytes,
            source._native,
            page_arguments("source_pages", source_pages, page_nbytes),
            target._native,
            page_arguments("target_pages", target_pages, page_nbytes),
            None if immediate is None else integer("immediate", immediate, most=MAX_U32),
            self._microseconds(timeout_s),
            native_grant(grant),
        )
        return self._transfer(native, "the paged write", timeout_s)

    def scatter(
        self,
        entries: Sequence[ScatterEntry],
        *,
        timeout_s: float | None = None,
        grant: WriteGrant | None = None,
    ) -> Transfer:
        """Writes to many peers, one write each.

        Peers that can be reached are written to whatever happens to the others.

        Args:
          entries: what goes where.
          timeout_s: by when the request has ended; default: the group's.
          grant: as of ``write``; then all entries are for the peer that gave it, and bring its
            immediate.

        Raises:
          InvalidArgument: names what is wrong of an entry.
          FabricError: as ``write``.
        """
        native = self._native.scatter(
            [self._entry(entry) for entry in entries],
            self._microseconds(timeout_s),
            native_grant(grant),
        )
        return self._transfer(native, "the scatter", timeout_s)

    def prepare_scatter(self, entries: Sequence[ScatterEntry]) -> PreparedScatter:
        """Plans a scatter that is posted many times.

        Raises:
          InvalidArgument: names what is wrong of an entry.
        """
        arguments = [self._entry(entry) for entry in entries]
        return PreparedScatter(
            self._native.prepare_scatter(arguments), len(arguments), self.timeout_s
        )

    def barrier(
        self, targets: Sequence[BarrierTarget], *, timeout_s: float | None = None
    ) -> Transfer:
        """Sends an immediate without payload to many peers; what they expect makes it a barrier.

        Raises:
          InvalidArgument: names what is wrong of a target.
          FabricError: as ``write``.
        """
        arguments = []
        for target in targets:
            instance("targets", target, BarrierTarget)
            instance("target", target.target, RemoteMemory)
            immediate = integer("immediate", target.immediate, most=MAX_U32)
            arguments.append((self._handle(target.peer), target.target._native, immediate))
        native = self._native.barrier(arguments, self._microseconds(timeout_s))
        return self._transfer(native, "the barrier", timeout_s)

    # --- grants

    def open_grant(self, writer: Peer, immediate: int) -> WriteGrant:
        """Gives a peer leave to write here, that can be taken back; see ``revoke_grant``.

        Send its bytes to the writer, along with the descriptor. Both sides have to receive messages
        (``receive_messages``). What a peer writes without a grant is not held back.

        Args:
          writer: who may write.
          immediate: one of this group's, for this grant alone.

        Raises:
          FabricError: the immediate was not handed out, or this group does not receive messages.
        """
        immediate = integer("immediate", immediate, most=MAX_U32)
        native = self._native.open_grant(self._handle(writer), immediate)
        return WriteGrant(native.to_bytes())

    def close_grant(self, grant: WriteGrant) -> None:
        """Ends a grant under which all has come that is written."""
        instance("grant", grant, WriteGrant)
        self._native.close_grant(grant._native)

    def revoke_grant(self, grant: WriteGrant, *, timeout_s: float | None = None) -> Revocation:
        """Takes a grant back: the writer is told to stop.

        Once it has ended well, nothing can land any more that was written under the grant, and the
        memory may be used for something else; who expects its immediate has got Cancelled then. A
        writer that is lost is removed as a peer, which ends it as well.

        Args:
          grant: that this group has opened.
          timeout_s: how long to wait for the writer. Afterwards the memory is in quarantine: the
            engine goes on asking, and revoking again says how that went.
        """
        instance("grant", grant, WriteGrant)
        native = self._native.revoke_grant(grant._native, self._microseconds(timeout_s))
        return Revocation(native, f"the revocation of {grant!r}", self._seconds(timeout_s))

    def give_up_grant(self, owner: Peer, grant: WriteGrant) -> None:
        """The writer's: ends what it writes under the grant with Cancelled, now and later.

        The owner is told once nothing of it is in flight, and whoever expects its immediate there
        gets Cancelled.
        """
        instance("grant", grant, WriteGrant)
        self._native.give_up_grant(self._handle(owner), grant._native)

    # --- messages

    def send(self, peer: Peer, message: Any, *, timeout_s: float | None = None) -> Transfer:
        """Sends a small message, over the first NIC. It is copied.

        Args:
          peer: to send to; it gets the message once it receives (``receive_messages``).
          message: bytes or anything with the buffer protocol; a few KiB at most.
          timeout_s: by when the request has ended; default: the group's.

        Raises:
          InvalidArgument: the message is too long; says what fits.
          FabricError: so many messages were under way all the time that none could be added.
        """
        native = self._native.send(
            self._handle(peer), byte_string("message", message), self._microseconds(timeout_s)
        )
        return self._transfer(native, "the message", timeout_s)

    def receive_messages(
        self,
        callback: Callable[[Peer | None, bytes], None],
        *,
        buffers: int = 64,
        max_nbytes: int = 4096,
    ) -> None:
        """Calls ``callback(peer, message)`` for every message, until the engine closes; once.

        It runs on the engine's callback thread; what it raises goes to ``sys.unraisablehook``. The
        peer is None where this group has not added it.

        Args:
          callback: gets the messages.
          buffers: messages that may wait for the callback.
          max_nbytes: of a message; longer ones are lost.

        Raises:
          InvalidArgument: the NIC does not take so many or so large buffers.
          FabricError: messages are being received already.
        """
        function("callback", callback)
        peers = self._peers
        self._native.receive_messages(
            lambda handle, message: callback(peers.get(handle), message),
            integer("buffers", buffers, most=MAX_U32),
            integer("max_nbytes", max_nbytes),
        )

    @property
    def forged_messages(self) -> int:
        """How many messages were dropped since they were not from who they said, or not to us.

        Counted in a fabric with a secret only; without one everybody is believed.
        """
        return self._native.forged_messages

    @property
    def replayed_messages(self) -> int:
        """How many genuine messages were dropped since they had come before."""
        return self._native.replayed_messages

    # --- arguments

    def _seconds(self, timeout_s: float | None) -> float:
        return self.timeout_s if timeout_s is None else seconds("timeout_s", timeout_s)

    def _microseconds(self, timeout_s: float | None) -> int:
        return microseconds(self._seconds(timeout_s))

    def _transfer(self, native: _core.Pending, what: str, timeout_s: float | None) -> Transfer:
        return Transfer(native, what, self._seconds(timeout_s))

    def _handle(self, peer: Peer) -> int:
        instance("peer", peer, Peer)
        if self._peers.get(peer.handle) is not peer:
            raise InvalidArgument(
                f"peer={peer!r}: is not of group {self.name!r}: use what its add_peer returned"
            )
        return peer.handle

    def _entry(self, entry: ScatterEntry) -> tuple[Any, ...]:
        instance("entries", entry, ScatterEntry)
        instance("target", entry.target, RemoteMemory)
        source, source_offset, nbytes = source_range(
            entry.source, entry.source_offset, entry.nbytes
        )
        return (
            self._handle(entry.peer),
            source,
            source_offset,
            entry.target._native,
            integer("target_offset", entry.target_offset),
            nbytes,
            integer("immediate", entry.immediate, most=MAX_U32),
            integer("max_nbytes", entry.max_nbytes),
        )
