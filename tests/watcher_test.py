"""Programs that bump watchers: what the host hears, and that nothing else changes."""

import ctypes
import sys
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

import jax_fabric as jf
from jax_fabric.errors import InvalidArgument

WAIT_S = 20.0


def mesh_of(devices):
    return jax.make_mesh((devices,), ("ep",), devices=jax.devices()[:devices])


def on_ranks(mesh, function, **options):
    spec = jax.P("ep")
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec), **options)


def calls_in(function, *operands):
    return function.lower(*operands).compile().as_text().count('custom_call_target="jf_bump"')


class Seen:
    """A callback that keeps what it hears, and waits for it."""

    def __init__(self):
        self.pairs = []
        self._changed = threading.Condition()

    def __call__(self, old, new):
        with self._changed:
            self.pairs.append((old, new))
            self._changed.notify_all()

    def wait_for(self, value):
        with self._changed:
            came = self._changed.wait_for(
                lambda: any(new == value for _, new in self.pairs), WAIT_S
            )
        assert came, f"{value} did not come: {self.pairs}"


class WatcherTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.mesh = mesh_of(1)
        self.fabric = jf.Fabric(self.mesh)
        self.addCleanup(self.fabric.close)
        self.seen = Seen()
        self.watcher = self.fabric.watcher(self.seen, initial=7)
        self.x = jnp.arange(12.0).reshape(3, 4)

    @parameterized.parameters(
        (8, 8),
        (0, 0),
        (2**32 + 5, 2**32 + 5),
        (2**64 - 1, 2**64 - 1),
        (-1, 2**64 - 1),
        (np.int32(9), 9),
    )
    def test_static_value(self, value, stored):
        f = jax.jit(lambda x: jf.bump(self.watcher, value, 2 * x) + 1)
        np.testing.assert_array_equal(f(self.x), 2 * self.x + 1)
        self.assertEqual(self.watcher.load(), [stored])
        self.seen.wait_for(stored)
        self.assertEqual(self.seen.pairs, [(7, stored)])

    @parameterized.parameters((jnp.int32, -3), (jnp.uint8, 200), (jnp.uint32, 2**32 - 1))
    def test_value_of_the_program(self, dtype, value):
        f = jax.jit(lambda v, x: jf.bump(self.watcher, v, x))
        np.testing.assert_array_equal(f(jnp.asarray(value, dtype), self.x), self.x)
        self.seen.wait_for(value % 2**64)

    def test_values_of_64_bits(self):
        with jax.enable_x64(True):
            f = jax.jit(lambda v, x: jf.bump(self.watcher, v, x))
            f(jnp.asarray(-(2**40) - 3, jnp.int64), self.x).block_until_ready()
        self.seen.wait_for(2**64 - 2**40 - 3)

    def test_values_rise_as_the_program_says(self):
        """Some may be skipped; none comes out of order."""

        @jax.jit
        def f(x):
            def body(i, x):
                x = jf.bump(self.watcher, 10 * i + 8, x + 1)
                return jf.bump(self.watcher, 10 * i + 9, x * 0.5)

            return jax.lax.fori_loop(0, 50, body, x)

        f(self.x).block_until_ready()
        self.seen.wait_for(499)
        old, new = zip(*self.seen.pairs, strict=True)
        self.assertEqual(old, (7, *new[:-1]))
        self.assertEqual(list(new), sorted(set(new)))

    def test_comes_before_what_uses_the_result(self):
        """A program that waits for the host between two bumps has bumped the first one."""

        def ask(x):
            self.seen.wait_for(1)
            return x

        @jax.jit
        def f(x):
            x = jf.bump(self.watcher, 1, x)
            x = jax.pure_callback(ask, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
            return jf.bump(self.watcher, 2, x)

        np.testing.assert_array_equal(f(self.x), self.x)
        self.seen.wait_for(2)

    def test_pytrees(self):
        tree = {"a": self.x, "b": (jnp.arange(3), True)}
        got = jax.jit(lambda t: jf.bump(self.watcher, 1, t))(tree)
        jax.tree.map(np.testing.assert_array_equal, got, tree)
        self.seen.wait_for(1)

    def test_in_place(self):
        f = jax.jit(lambda x: jf.bump(self.watcher, 1, x), donate_argnums=0)
        x = self.x + 1
        before = x.unsafe_buffer_pointer()
        got = f(x)
        self.assertTrue(x.is_deleted())
        self.assertEqual(got.unsafe_buffer_pointer(), before)
        np.testing.assert_array_equal(got, self.x + 1)

    def test_x_that_is_used_elsewhere_stays(self):
        @jax.jit
        def f(x):
            y = x * 3
            return y, jf.bump(self.watcher, 1, y) * 2, y + 1

        a, b, c = f(self.x)
        np.testing.assert_array_equal(a, 3 * self.x)
        np.testing.assert_array_equal(b, 6 * self.x)
        np.testing.assert_array_equal(c, 3 * self.x + 1)

    def test_nothing_where_the_result_is_dropped(self):
        def both(x):
            jf.bump(self.watcher, 1, x)
            return jf.bump(self.watcher, 2, x)

        self.assertEqual(calls_in(jax.jit(both), self.x), 1)

    def test_gradients(self):
        def loss(x):
            return (jf.bump(self.watcher, 3, x) ** 2).sum()

        np.testing.assert_array_equal(jax.grad(loss)(self.x), 2 * self.x)
        self.seen.wait_for(3)
        self.assertEqual(calls_in(jax.jit(jax.value_and_grad(loss)), self.x), 1)
        _, tangent = jax.jvp(lambda x: jf.bump(self.watcher, 4, x), (self.x,), (self.x,))
        np.testing.assert_array_equal(tangent, self.x)

    def test_vmap(self):
        f = jax.vmap(lambda x, y: jf.bump(self.watcher, 5, {"x": x, "y": y}), in_axes=(0, None))
        got = f(self.x, jnp.ones(2))
        np.testing.assert_array_equal(got["x"], self.x)
        np.testing.assert_array_equal(got["y"], np.ones((3, 2)))
        self.seen.wait_for(5)
        with self.assertRaisesRegex(ValueError, "value differs over a batch of vmap"):
            jax.vmap(lambda v, x: jf.bump(self.watcher, v, x))(jnp.arange(3), self.x)

    def test_after_close(self):
        f = jax.jit(lambda v, x: jf.bump(self.watcher, v, x))
        f(1, self.x).block_until_ready()
        self.seen.wait_for(1)
        self.watcher.close()
        self.watcher.close()
        np.testing.assert_array_equal(f(2, self.x), self.x)
        self.fabric.close()
        np.testing.assert_array_equal(f(3, self.x), self.x)
        self.assertEqual(self.watcher.load(), [3])
        self.assertEqual(self.seen.pairs, [(7, 1)])

    def test_arguments(self):
        for watcher, value, x, message in (
            (self.fabric, 1, self.x, "must be what Fabric.watcher returned"),
            (self.watcher, 2**64, self.x, "must have at most 64 bits"),
            (self.watcher, 1.5, self.x, r"value is float32\[\], and must be an integer scalar"),
            (self.watcher, jnp.arange(2), self.x, r"value is int32\[2\]"),
            (self.watcher, True, self.x, r"value is bool\[\]"),
            (self.watcher, 1, [], "has no array"),
        ):
            with self.subTest(message), self.assertRaisesRegex(ValueError, message):
                jf.bump(watcher, value, x)
        with self.assertRaisesRegex(InvalidArgument, "callback=3: must be a function"):
            self.fabric.watcher(3)
        with self.assertRaisesRegex(InvalidArgument, "initial=-1: must be a whole number"):
            self.fabric.watcher(self.seen, initial=-1)
        self.fabric.close()
        with self.assertRaisesRegex(RuntimeError, "this fabric was closed"):
            self.fabric.watcher(self.seen)

    def test_another_device(self):
        x = jax.device_put(self.x, jax.devices()[1])
        with self.assertRaisesRegex(
            (jax.errors.JaxRuntimeError, ValueError),
            r"watcher \d+ has no word for device 1: bump it on devices of the mesh of its Fabric",
        ):
            jax.block_until_ready(jax.jit(lambda x: jf.bump(self.watcher, 1, x))(x))


class WatcherOfManyDevicesTest(absltest.TestCase):
    def test_a_word_for_each_device(self):
        mesh, seen = mesh_of(4), Seen()
        with jf.Fabric(mesh) as fabric, fabric.watcher(seen) as watcher:

            def f(x):
                rank = jax.lax.axis_index("ep")

                def body(x, step):
                    return jf.bump(watcher, 100 * (step + 1) + rank, x + 1), None

                return jax.lax.scan(body, x, jnp.arange(5))[0]

            x = jax.device_put(jnp.zeros((8, 2)), jax.NamedSharding(mesh, jax.P("ep")))
            np.testing.assert_array_equal(on_ranks(mesh, f)(x), np.full((8, 2), 5))
            self.assertEqual(watcher.load(), [500, 501, 502, 503])
            for rank in range(4):
                seen.wait_for(500 + rank)

    def test_beside_exchanges(self):
        """The bumps of a layer say how far it is; results are what they are without."""
        mesh, seen = mesh_of(2), Seen()
        with jf.Fabric(mesh) as fabric:
            moe = jf.moe.ExpertParallel(
                fabric,
                axis_name="ep",
                num_experts=4,
                top_k=2,
                max_tokens=4,
                hidden=8,
                dtype=jnp.float32,
            )
            watcher = fabric.watcher(seen)

            def layer(x, experts, weights, watched):
                def mark(value, x):
                    return jf.bump(watcher, value, x) if watched else x

                r = mark(1, moe.dispatch(x, experts, weights))
                return mark(2, moe.combine(mark(3, r.tokens), r))

            rng = np.random.default_rng(0)
            operands = [
                jax.device_put(jnp.asarray(each), jax.NamedSharding(mesh, jax.P("ep")))
                for each in (
                    rng.standard_normal((8, 8)).astype(np.float32),
                    rng.integers(0, 4, (8, 2)).astype(np.int32),
                    rng.random((8, 2)).astype(np.float32),
                )
            ]
            want, got = (
                on_ranks(mesh, lambda *o, w=watched: layer(*o, w))(*operands)
                for watched in (False, True)
            )
            np.testing.assert_array_equal(got, want)
            self.assertEqual(watcher.load(), [2, 2])

    def test_closing_waits_for_a_callback_and_no_longer(self):
        mesh = mesh_of(1)
        inside, go_on = threading.Event(), threading.Event()

        def callback(old, new):
            inside.set()
            go_on.wait(WAIT_S)

        fabric = jf.Fabric(mesh)
        watcher = fabric.watcher(callback)
        jax.jit(lambda x: jf.bump(watcher, 1, x))(jnp.ones(3)).block_until_ready()
        self.assertTrue(inside.wait(WAIT_S))
        threading.Timer(0.3, go_on.set).start()
        begin = time.monotonic()
        fabric.close()
        self.assertLess(time.monotonic() - begin, 5)
        self.assertTrue(go_on.is_set())


class NativeCallbackTest(parameterized.TestCase):
    # A function of C with three words: memcpy(old_value, new_value, context). What it copies says
    # that it was called with all of them.
    @parameterized.named_parameters(("function", True), ("address", False))
    def test_runs_without_the_gil(self, as_function):
        source, target = np.arange(8, dtype=np.uint64), np.zeros(8, np.uint64)
        memcpy = ctypes.CDLL(None).memcpy
        address = ctypes.cast(memcpy, ctypes.c_void_p).value
        callback = jf.NativeCallback(memcpy if as_function else address, context=source.nbytes)
        with (
            jf.Fabric(mesh_of(1)) as fabric,
            fabric.watcher(callback, initial=target.ctypes.data) as watcher,
        ):
            # So long that this thread has the GIL, which the call gives away, before the bump.
            wait = lambda x: jax.lax.fori_loop(0, 50_000_000, lambda _, x: jnp.cos(x), x)  # noqa: E731
            program = jax.jit(lambda x: jf.bump(watcher, source.ctypes.data, wait(x)))
            x = jnp.zeros(3)
            compiled = program.lower(x).compile()
            begins = threading.Event()
            caller = threading.Thread(target=lambda: (begins.set(), compiled(x)))
            interval = sys.getswitchinterval()
            sys.setswitchinterval(1e6)  # the GIL stays with whoever has it
            try:
                caller.start()
                begins.wait()
                self.assertNotEqual(target[7], 7, "the bump was too soon to show anything")
                deadline = time.monotonic() + WAIT_S
                while target[7] != 7 and time.monotonic() < deadline:
                    pass
            finally:
                sys.setswitchinterval(interval)
            caller.join()
        np.testing.assert_array_equal(target, source)

    def test_calls_from_python(self):
        found = []
        kind = ctypes.CFUNCTYPE(None, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_void_p)
        callback = jf.NativeCallback(kind(lambda *words: found.append(words)), context=3)
        callback(1, 2**64 - 1)
        self.assertEqual(found, [(1, 2**64 - 1, 3)])

    @parameterized.parameters(
        ({"function": 0}, "function=0"),
        ({"function": "memcpy"}, "function='memcpy'"),
        ({"function": print}, "function=<built-in"),
        ({"function": ctypes.CFUNCTYPE(None)()}, "null pointer"),
        ({"function": 1, "context": -1}, "context=-1"),
    )
    def test_refuses(self, arguments, words):
        with self.assertRaisesRegex(InvalidArgument, words):
            jf.NativeCallback(**arguments)


if __name__ == "__main__":
    absltest.main()
