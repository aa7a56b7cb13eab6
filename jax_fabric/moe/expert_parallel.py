"""Expert parallelism: tokens to their experts' ranks and back, inside of a jitted program."""

from __future__ import annotations

from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import checkify

from jax_fabric import compat
from jax_fabric.fabric import Fabric
from jax_fabric.moe import exchange, operand_checks, started
from jax_fabric.moe.config import ExpertParallelConfig
from jax_fabric.moe.routes import Dispatched, Routes
from jax_fabric.moe.started import StartedCombine, StartedDispatch


def save_exchanges() -> Any:
    """Returns a ``jax.checkpoint`` policy that saves results of exchanges: none is sent again."""
    return jax.checkpoint_policies.save_only_these_names(
        exchange.DISPATCH_NAME, exchange.COMBINE_NAME
    )


class ExpertParallel:
    """An expert-parallel context over one axis of the fabric's mesh.

    Its memory is allocated here and given back when the fabric closes. Making one is collective:
    all processes make the same contexts in the same order.

    With ``dispatch_dtype=jnp.float8_e4m3fn`` rows travel to the experts quantised, about half as
    many bytes as in bfloat16. Each block of 128 elements (the last may be shorter) has a float32
    scale: the block's largest finite magnitude, at least 1e-4, divided by 448; elements are rounded
    to nearest even. That is what DeepEP and DeepSeek-V3 do. Zeros stay zeros; NaN and infinity
    become NaN and leave the rest of their block alone. Experts get the rows with their scales, as
    in DeepEP, or turned back with ``tokens_dtype``, which is what training needs: its gradients are
    those of a dispatch without quantisation (straight through), and travel in ``dtype``.

    What goes wrong at run time is a ``jax.errors.JaxRuntimeError``, when the program is called or
    its results are awaited. With one CPU device in a process the program runs inside of the call,
    and JAX raises the same text as ``ValueError``, from a program's second call on: catch both.

    On GPUs a program that is under way cannot raise. Where an exchange fails, its floating-point
    results are NaN and its group sizes 0, so are those of all later ones on the channel, and
    ``fabric.check()`` raises what went wrong, also when the ``with`` block of the fabric ends;
    ``fabric.recover`` goes on without ranks that are lost, as on CPUs. A ``done`` without a
    ``start``, or a second one, gives such results alone, is raised by ``check`` once, and leaves
    the channel as it was.
    """

    def __init__(
        self,
        fabric: Fabric,
        *,
        axis_name: str,
        num_experts: int,
        top_k: int,
        max_tokens: int,
        hidden: int,
        dtype: Any = jnp.bfloat16,
        combine_dtype: Any = None,
        private_tokens: int | None = None,
        dispatch_dtype: Any = None,
        tokens_dtype: Any = None,
        capacity: int | None = None,
        on_overflow: Literal["error", "drop"] = "error",
        channels: int = 1,
        timeout_s: float | None = None,
    ):
        """Allocates the slots and connects the ranks.

        Args:
          fabric: an open fabric.
          axis_name: axis of the fabric's mesh over which experts are spread. Each slice of the
            other axes is a group of its own.
          num_experts: see ``ExpertParallelConfig``, like the following.
          top_k: experts a token.
          max_tokens: rows of x a call at most.
          hidden: elements a row.
          dtype: of x.
          combine_dtype: of partial sums on their way back.
          private_tokens: rows from one rank to another at once; default: ``max_tokens``. Less of
            it is less memory, and more rounds where there are more rows.
          dispatch_dtype: of rows on their way to the experts: ``dtype`` or float8_e4m3fn.
          tokens_dtype: of the rows that experts get; default: ``dispatch_dtype``.
          capacity: rows for a rank's experts at most.
          on_overflow: "error" or "drop".
          channels: exchanges that may be in flight at once.
          timeout_s: of every wait for another rank; default: the fabric's.

        Raises:
          ValueError: an argument is wrong, or differs between the ranks.
          RuntimeError: a rank could not be reached; the message names it.
        """
        if axis_name not in fabric.mesh.axis_names:
            raise ValueError(
                f"axis_name={axis_name!r}: the fabric's mesh has axes "
                f"{tuple(fabric.mesh.axis_names)}"
            )
        self.config = ExpertParallelConfig(
            num_ranks=fabric.mesh.shape[axis_name],
            num_experts=num_experts,
            top_k=top_k,
            max_tokens=max_tokens,
            hidden=hidden,
            dtype=dtype,
            combine_dtype=combine_dtype,
            private_tokens=private_tokens,
            dispatch_dtype=dispatch_dtype,
            tokens_dtype=tokens_dtype,
            capacity=capacity,
            on_overflow=on_overflow,
            channels=channels,
            timeout_s=fabric.timeout_s if timeout_s is None else timeout_s,
        )
        self.axis_name = axis_name
        self._fabric = fabric
        self._context = fabric.open_moe_context(self.config, axis_name)

    @property
    def num_ranks(self) -> int:
        """N, size of the axis."""
        return self.config.num_ranks

    @property
    def experts_per_rank(self) -> int:
        """E_local, experts of one rank."""
        return self.config.experts_per_rank

    @property
    def capacity(self) -> int:
        """Rows of ``Dispatched.tokens``."""
        return self.config.capacity

    def memory_bytes(self) -> int:
        """Engine-owned memory of one rank, bytes.

        Beside the slots (``ExpertParallelConfig.memory_bytes``) failure notices, and over NICs or
        with ``force_staged`` the messages on their way out. On GPUs that of the device and of the
        host together, with the workspaces of the kernels and flags.
        """
        return self._fabric.moe_memory_bytes(self._context)

    def dispatch(
        self,
        x: jax.Array,
        experts: jax.Array,
        weights: jax.Array,
        *,
        scales: jax.Array | None = None,
        channel: int = 0,
        after: jax.Array | None = None,
        zero_padding: bool = False,
    ) -> Dispatched:
        """Sends each token to the ranks of its experts; inside of ``shard_map`` over the axis.

        Args:
          x: [T, H] of the context's dtype, T at most ``max_tokens``; or, where ``dispatch_dtype``
            is float8_e4m3fn, rows that are quantised already, which have no gradient.
          experts: integer[T, K]; ids outside [0, E) are not routed (see ``check_experts``). An
            expert named twice by a token gets one row with the summed weight.
          weights: floating[T, K].
          scales: float32[T, ceil(H / 128)], of x that is quantised already.
          channel: calls in flight at once go faster over different channels.
          after: ``Dispatched.token`` of a call that must go first, where no data says so.
          zero_padding: clear the rows past ``group_sizes.sum()``; they are unspecified otherwise.

        Returns:
          Rows for this rank's experts. Differentiable in x and weights.

        Raises:
          ValueError: at trace time: a shape, dtype or channel does not fit.
          jax.errors.JaxRuntimeError: at run time, or ValueError (see the class): a rank did not
            come in time, or there were more rows than ``capacity``.
        """
        site = self._site(channel, zero_padding)
        operands = self._dispatch_operands("dispatch", x, experts, weights, scales, channel, after)
        return self._dispatched(exchange.dispatch(site, *operands))

    def dispatch_start(
        self,
        x: jax.Array,
        experts: jax.Array,
        weights: jax.Array,
        *,
        scales: jax.Array | None = None,
        channel: int = 0,
        after: jax.Array | None = None,
    ) -> StartedDispatch:
        """The first half of ``dispatch``: sends, and waits for nobody.

        What does not need the rows is best computed between the halves, see ``dispatch_done``. The
        channel is occupied until then: exchanges that are in flight at once need channels of their
        own (``channels=``), or they end at the deadline. vmap takes whole exchanges only.

        Args:
          x: as in dispatch, like the following.
          experts: as in dispatch.
          weights: as in dispatch.
          scales: as in dispatch.
          channel: as in dispatch.
          after: as in dispatch.

        Returns:
          For ``dispatch_done``, once.

        Raises:
          ValueError: at trace time: a shape, dtype or channel does not fit; under vmap.
        """
        operands = self._dispatch_operands(
            "dispatch_start", x, experts, weights, scales, channel, after
        )
        return started.start_dispatch(self._site(channel), *operands)

    def dispatch_done(
        self, pending: StartedDispatch, *, overlap: Any = (), zero_padding: bool = False
    ) -> Dispatched:
        """The second half of ``dispatch``: waits for the rows.

        Args:
          pending: what ``dispatch_start`` returned.
          overlap: pytree of arrays to be computed first, while the rows travel. Without it XLA may
            place the two halves next to each other.
          zero_padding: as in dispatch.

        Returns:
          As dispatch. Gradients reach what was given to ``dispatch_start``; they take one whole
          exchange.

        Raises:
          ValueError: at trace time: ``pending`` is of another context.
          jax.errors.JaxRuntimeError: at run time, or ValueError: as dispatch; ``pending`` was
            done before.
        """
        self._check_pending("dispatch_done", pending, StartedDispatch)
        site = self._site(pending.channel, zero_padding)
        operands = compat.make_varying(
            pending.x,
            pending.weights,
            pending.ticket,
            pending.index,
            pending.slot,
            pending.token_ends,
            pending.scales,
        )
        return self._dispatched(started.finish_dispatch(site, *operands, _arrays(overlap)))

    def combine(
        self,
        y: jax.Array,
        dispatched: Dispatched,
        *,
        weighted: bool = True,
        channel: int = 0,
        after: jax.Array | None = None,
    ) -> jax.Array:
        """Sums each token's expert rows, back on the token's rank.

        Args:
          y: [capacity, H] of the context's dtype, the experts' results for ``dispatched.tokens``.
          dispatched: what dispatch returned.
          weighted: multiply each row by ``dispatched.weights`` first.
          channel: as in dispatch.
          after: as in dispatch.

        Returns:
          [T, H] of y's dtype. Summed in float32 by rising expert on a rank, rounded to
          ``combine_dtype``, then summed in float32 by rising rank. Differentiable in y and in
          ``dispatched.weights``.

        Raises:
          ValueError: at trace time: a shape, dtype or channel does not fit.
          jax.errors.JaxRuntimeError: at run time, or ValueError: a rank did not come in time.
        """
        operands = self._combine_operands("combine", y, dispatched, channel, after)
        return exchange.combine(self._site(channel), weighted, *operands)

    def combine_start(
        self,
        y: jax.Array,
        dispatched: Dispatched,
        *,
        weighted: bool = True,
        channel: int = 0,
        after: jax.Array | None = None,
    ) -> StartedCombine:
        """The first half of ``combine``, as ``dispatch_start`` is of dispatch.

        Args:
          y: as in combine, like the following.
          dispatched: as in combine.
          weighted: as in combine.
          channel: as in dispatch_start.
          after: as in combine.

        Returns:
          For ``combine_done``, once.

        Raises:
          ValueError: at trace time: a shape, dtype or channel does not fit; under vmap.
        """
        operands = self._combine_operands("combine_start", y, dispatched, channel, after)
        return started.start_combine(self._site(channel), weighted, *operands)

    def combine_done(self, pending: StartedCombine, *, overlap: Any = ()) -> jax.Array:
        """The second half of ``combine``: waits for the sums.

        Args:
          pending: what ``combine_start`` returned.
          overlap: as in dispatch_done.

        Returns:
          As combine. Gradients reach what was given to ``combine_start``.

        Raises:
          ValueError: at trace time: ``pending`` is of another context.
          jax.errors.JaxRuntimeError: at run time, or ValueError: as combine; ``pending`` was
            done before.
        """
        self._check_pending("combine_done", pending, StartedCombine)
        y, weights, token, ticket, *routes = compat.make_varying(
            pending.y, pending.weights, pending.token, pending.ticket, *pending.routes
        )
        return started.finish_combine(
            self._site(pending.channel),
            pending.weighted,
            y,
            weights,
            tuple(routes),
            token,
            ticket,
            _arrays(overlap),
        )

    def check_experts(self, experts: jax.Array) -> None:
        """Makes ids outside of [-1, E) an error, in programs under ``jax.experimental.checkify``.

        A call of its own, since checks are effects, and programs with effects start later.

        Args:
          experts: integer[...], what ``dispatch`` is going to get.
        """
        checkify.check(
            jnp.all(self._are_experts(experts) | (experts.astype(jnp.int32) == -1)),
            f"check_experts: ids outside of [-1, num_experts={self.config.num_experts})",
        )

    def _are_experts(self, experts: jax.Array) -> jax.Array:
        # Narrow ids cannot hold what they are compared with.
        wide = experts.astype(jnp.int32) if experts.dtype.itemsize < 4 else experts
        return (wide >= 0) & (wide < self.config.num_experts)

    def _dispatch_operands(
        self,
        call: str,
        x: jax.Array,
        experts: jax.Array,
        weights: jax.Array,
        scales: jax.Array | None,
        channel: int,
        after: jax.Array | None,
    ) -> tuple[jax.Array, ...]:
        """x, weights, expert ids, scales and ``after`` as the exchange takes them."""
        self._check_channel(call, channel)
        operand_checks.check_rows(self.config, call, x, experts, weights)
        operand_checks.check_scales(self.config, call, x, scales)
        if scales is None:
            scales = exchange.nothing(x, jnp.float32)
        else:
            why = (
                f"{call}: x is {x.dtype}, and such rows have no gradient: pass x as "
                f"{self.config.dtype}, to be quantised here, or lax.stop_gradient of x and scales"
            )
            x, scales = exchange.without_gradient(why, (x, scales))
        ids = jnp.where(self._are_experts(experts), experts.astype(jnp.int32), -1)
        if after is None:
            after = jnp.zeros((1,), jnp.int32)
        rank = lax.axis_index(self.axis_name)
        x, weights, ids, scales, after, _ = compat.make_varying(
            x, weights.astype(jnp.float32), ids, scales, after, rank
        )
        return x, weights, ids, scales, after

    def _dispatched(self, results: tuple[jax.Array, ...]) -> Dispatched:
        tokens, weights, group_sizes, dropped, token, *routes, scales = results
        if self.config.raw_tokens:
            why = (
                f"dispatch: quantised tokens have no gradient: make the context with "
                f"tokens_dtype={self.config.dtype}, or take lax.stop_gradient of tokens and scales"
            )
            tokens, scales = exchange.without_gradient(why, (tokens, scales))
        else:
            scales = None
        return Dispatched(tokens, weights, group_sizes, dropped, token, Routes(*routes), scales)

    def _combine_operands(
        self,
        call: str,
        y: jax.Array,
        dispatched: Dispatched,
        channel: int,
        after: jax.Array | None,
    ) -> tuple[jax.Array, jax.Array, tuple[jax.Array, ...], jax.Array]:
        """y, weights, routes and the token as the exchange takes them."""
        config = self.config
        self._check_channel(call, channel)
        expected = (config.capacity, config.hidden)
        if y.shape != expected or y.dtype != config.dtype:
            raise ValueError(
                f"{call}: y is {y.dtype}{list(y.shape)}, and dispatch gave rows of "
                f"{config.dtype}{list(expected)}: return one row for each row of tokens"
            )
        token = dispatched.token
        if after is not None:
            # Both are operands of the call: data, which is what orders.
            token = jnp.concatenate([token, after])
        routes = dispatched.routes
        y, weights, token, *parts = compat.make_varying(
            y,
            dispatched.weights,
            token,
            routes.index,
            routes.slot,
            routes.token_ends,
            routes.positions,
            routes.rows,
        )
        return y, weights, tuple(parts), token

    def _site(self, channel: int, zero_padding: bool = False) -> exchange.Site:
        return exchange.Site(self.config, self.axis_name, self._context, channel, zero_padding)

    def _check_channel(self, call: str, channel: int) -> None:
        if not 0 <= channel < self.config.channels:
            raise ValueError(
                f"{call}: channel={channel}: this context has channels 0 to "
                f"{self.config.channels - 1}; make it with channels={channel + 1}"
            )
        try:
            size = lax.axis_size(self.axis_name)
        except NameError:
            raise ValueError(
                f"{call}: axis {self.axis_name!r} is not bound here: call it inside of "
                f"jax.shard_map over the fabric's mesh"
            ) from None
        if size != self.config.num_ranks:
            raise ValueError(
                f"{call}: axis {self.axis_name!r} has size {size} here and "
                f"{self.config.num_ranks} in the fabric's mesh: use that mesh"
            )

    def _check_pending(self, call: str, pending: Any, expected: type) -> None:
        start = call.replace("done", "start")
        if not isinstance(pending, expected):
            raise ValueError(f"{call}: pending={pending!r}: must be what {start} returned")
        self._check_channel(call, pending.channel)
        if isinstance(pending, StartedDispatch):
            shape, wanted = pending.x.shape[1:], (self.config.hidden,)
        else:
            shape, wanted = pending.y.shape, (self.config.capacity, self.config.hidden)
        if shape != wanted:
            raise ValueError(
                f"{call}: pending has rows {list(shape)}, and this context has {list(wanted)}: it "
                f"was started on another one"
            )


def _arrays(overlap: Any) -> tuple[jax.Array, ...]:
    return tuple(lax.stop_gradient(jnp.asarray(leaf)) for leaf in jax.tree.leaves(overlap))
