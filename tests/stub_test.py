"""jax_fabric/_core.pyi says of the extension module what is so."""

import ast
import inspect
import re
from pathlib import Path

from absl.testing import absltest

from jax_fabric import _core

STUB = ast.parse((Path(_core.__file__).parent / "_core.pyi").read_text())


def stub_names(body):
    """Functions, properties and classes of a module or class, by name."""
    return {node.name: node for node in body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}


def real_names(of):
    return {
        name
        for name, value in vars(of).items()
        if not name.startswith("_") or name == "__array_interface__"
    } - {"abc"}


def real_arguments(function):
    """Names of the arguments; nanobind writes signatures into docstrings."""
    signature = function.__doc__.splitlines()[0]
    inside = signature[signature.index("(") + 1 : signature.rindex(") ->")]
    names = re.findall(r"(?:^|, )(\w+): ", re.sub(r"\[[^\]]*\]+", "", inside))
    return [name for name in names if name not in ("self", "cls")]


def stub_arguments(function):
    arguments = [*function.args.args, *function.args.kwonlyargs]
    return [each.arg for each in arguments if each.arg not in ("self", "cls")]


class StubTest(absltest.TestCase):
    def test_the_same_names(self):
        self.assertEqual(real_names(_core), set(stub_names(STUB.body)))

    def test_the_same_members(self):
        for name, node in stub_names(STUB.body).items():
            if isinstance(node, ast.ClassDef):
                members = set(stub_names(node.body)) - {"__init__"}
                self.assertEqual(real_names(getattr(_core, name)), members, name)

    def test_properties_are_properties(self):
        for name, node in stub_names(STUB.body).items():
            for member, definition in stub_names(getattr(node, "body", [])).items():
                is_property = any(
                    getattr(decorator, "id", "") == "property"
                    for decorator in definition.decorator_list
                )
                real = inspect.getattr_static(getattr(_core, name), member)
                self.assertEqual(isinstance(real, property), is_property, f"{name}.{member}")

    def test_the_same_arguments(self):
        checked = 0
        for name, node in stub_names(STUB.body).items():
            if isinstance(node, ast.FunctionDef):
                self.assertEqual(real_arguments(getattr(_core, name)), stub_arguments(node), name)
                continue
            for member, definition in stub_names(node.body).items():
                real = getattr(getattr(_core, name), member)
                if isinstance(real, property) or member == "__init__":
                    continue
                self.assertEqual(
                    real_arguments(real), stub_arguments(definition), f"{name}.{member}"
                )
                checked += 1
        self.assertGreater(checked, 30)


if __name__ == "__main__":
    absltest.main()
