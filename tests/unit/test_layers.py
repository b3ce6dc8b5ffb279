"""The rooms of heddle/ and their order: a module imports from its own room and from those above it, and in no circle.

The core imports no plugin, and no plugin another one: they meet by the parts that they register (base/plugins.py).

docs/architecture.md says what each room is for. Imports for type checking and inside functions count like all others.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

import heddle
from tests.unit.trees import statements, tree_of

ROOT = Path(__file__).resolve().parents[2]
ROOMS = (
    "base", "spec", "fabric", "render", "host", "kernel", "wire", "switch", "runtimes", "lab", "shards",
    "traffic", "endpoints", "predict", "proof", "offline", "runs", "checks", "views", "places", "cli", "testing",
)  # fmt: skip
PLUGINS = "heddle_plugins"
pytestmark = pytest.mark.usefixtures("parsed_once")
Imports = Mapping[str, Mapping[str, int]]  # module -> what it imports -> line


def modules_of(root: Path) -> dict[str, Path]:
    """`heddle.base.problems` -> its file; a package's name is its `__init__.py`. `tasks`, too."""
    found = {"tasks": root / "tasks.py"} if (root / "tasks.py").exists() else {}
    for folder, package in (("heddle", "heddle"), ("plugins", PLUGINS)):
        for path in sorted(root.glob(f"{folder}/**/*.py")):
            parts = (package, *path.relative_to(root / folder).with_suffix("").parts)
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(root: Path) -> Imports:
    """Every import of one of our modules by another, wherever in the file it is."""
    modules = modules_of(root)
    return {name: dict(_imports(name, path, modules)) for name, path in modules.items()}


def _imports(name: str, path: Path, modules: Mapping[str, Path]) -> Iterator[tuple[str, int]]:
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in statements(tree_of(path).body):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            above = ".".join(parts[: len(parts) - node.level + 1]) if node.level else ""
            base = ".".join(part for part in (above, node.module or "") if part)
            full = [f"{base}.{each.name}" for each in node.names]
            # `from pkg import sub` also runs pkg/__init__.py, which may import what imports this.
            names = [base, *(each for each in full if each in modules)]
        if names and not node.col_offset:  # at import time the packages around a module run first
            names += sorted(set().union(*map(_around, names)) - _around(name))
        yield from ((each, node.lineno) for each in names if each in modules and each != name)


def _around(name: str) -> set[str]:
    """`a` and `a.b` of `a.b.c`."""
    parts = name.split(".")
    return {".".join(parts[:count]) for count in range(1, len(parts))}


def arrows_against(imports: Imports) -> list[str]:
    """Imports of rooms that come later, as `heddle/base/x.py:12 base -> lab (heddle.lab.handle)`."""
    found = []
    for name, targets in imports.items():
        room = _room(name)
        for target, line in targets.items():
            if room and _room(target) and ROOMS.index(_room(target)) > ROOMS.index(room):
                found.append(f"{name.replace('.', '/')}.py:{line}  {room} -> {_room(target)}  ({target})")
    return found


def test_no_modules_import_each_other(imports: Imports) -> None:
    try:
        TopologicalSorter({name: [*targets] for name, targets in imports.items()}).prepare()
    except CycleError as error:
        pytest.fail(f"these import each other: {' '.join(error.args[1])}")


def _room(name: str) -> str:
    """`kernel` of heddle.kernel.fib; empty for heddle itself, and for modules of plugins."""
    return "" if name.split(".", maxsplit=1)[0] != "heddle" else [*name.split("."), ""][1]


def _plugin(name: str) -> str:
    """`readers` of heddle_plugins.readers.traces; empty for the core."""
    return [*name.split("."), ""][1] if name.split(".", maxsplit=1)[0] == PLUGINS else ""


def arrows_to_plugins(root: Path) -> list[str]:
    """Imports of plugins by the core or by other plugins, also by a text, `heddle_plugins.a.b:c`."""
    found = []
    modules = modules_of(root)
    for name, targets in imports_of(root).items():
        named = PLUGINS in modules[name].read_text(encoding="utf-8")
        texts = {
            node.value: node.lineno
            for node in (ast.walk(tree_of(modules[name])) if named else ())
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
            if re.fullmatch(rf"{PLUGINS}\.[\w.]+(:[\w.]+)?", node.value)
        }
        for target, line in {**targets, **texts}.items():
            if (plugin := _plugin(target.partition(":")[0])) and plugin != _plugin(name):
                found.append(f"{name}:{line} {_plugin(name) or 'the core'} -> {target}")
    return found


def test_the_core_imports_no_plugin_and_no_plugin_another() -> None:
    assert not (arrows := arrows_to_plugins(ROOT)), "\n".join(["these meet in the core only:", *arrows])


def test_an_import_or_a_text_that_names_another_plugin_is_seen(tmp_path: Path) -> None:
    for path, text in {
        "heddle/__init__.py": "",
        "heddle/a.py": "def f():\n    from heddle_plugins.one import x\n",
        "plugins/one/__init__.py": "x = 'heddle_plugins.two.y:z'\n",
        "plugins/two/__init__.py": "import heddle.a\n",
        "plugins/two/y.py": "from heddle_plugins.two import y\n",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    assert arrows_to_plugins(tmp_path) == [
        "heddle.a:2 the core -> heddle_plugins.one",
        "heddle_plugins.one:1 one -> heddle_plugins.two.y:z",
    ]


def test_an_import_of_a_module_from_its_package_counts_as_one_of_the_package(tmp_path: Path) -> None:
    (tmp_path / "heddle/p").mkdir(parents=True)
    (tmp_path / "heddle/__init__.py").write_text("")
    (tmp_path / "heddle/p/__init__.py").write_text("from heddle.p.a import x\n")
    (tmp_path / "heddle/p/a.py").write_text("from heddle.p import b\n")
    (tmp_path / "heddle/p/b.py").write_text("")
    (tmp_path / "heddle/q.py").write_text("from heddle.p.b import y\n\n\ndef f():\n    import heddle.p.a\n")
    found = imports_of(tmp_path)
    assert set(found["heddle.p.a"]) == {"heddle.p", "heddle.p.b"}
    assert found["heddle.q"] == {"heddle.p.b": 1, "heddle.p": 1, "heddle.p.a": 5}, "heddle/p/__init__.py runs, too"


@pytest.fixture(scope="module")
def imports(parsed_once: None) -> Imports:
    return imports_of(ROOT)


def test_every_folder_is_a_room_that_has_a_place_in_the_order() -> None:
    folders = {path.name for path in (ROOT / "heddle").iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders <= set(ROOMS)
    assert [path.name for path in (ROOT / "heddle").glob("*.py")] == ["__init__.py"]


def test_no_module_imports_from_a_later_room(imports: Imports) -> None:
    assert not (arrows := arrows_against(imports)), "\n".join(["these imports go against the order:", *arrows])


PACKAGE = Path(heddle.__file__).parent
FILES = sorted([*PACKAGE.rglob("*.py"), *(ROOT / "plugins").rglob("*.py")])
# Programs that start without the package on their path, so they define what they need: nsenter's replacement.
ALONE = {"heddle/runtimes/enter.py"}
# A private number up to this one can be equal in two modules by chance: timeouts, counts of lines.
SMALL = 255


def doubles(found: Iterable[tuple[Any, str]]) -> dict[Any, list[str]]:
    """Keys that occur more than once, with the places."""
    places: dict[Any, list[str]] = defaultdict(list)
    for key, place in found:
        places[key].append(place)
    return {key: where for key, where in places.items() if len(where) > 1}


def classes(files: Iterable[Path]) -> Iterator[tuple[str, str]]:
    """Public classes at the top of modules."""
    for path in files:
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield node.name, f"{path}:{node.lineno}"


def assigned(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Names and values of assignments at the top of a module; `A, B = 1, 2` gives two."""
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            targets: list[ast.expr] = [node.target]
        elif isinstance(node, ast.Assign):
            targets = node.targets
        else:
            continue
        for target in targets:
            if isinstance(target, ast.Name) and node.value is not None:
                yield target.id, node.value
            elif isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = zip(target.elts, node.value.elts, strict=True)
                yield from ((name.id, value) for name, value in pairs if isinstance(name, ast.Name))


def constants(files: Iterable[Path]) -> Iterator[tuple[tuple[str, str], str]]:
    """(name without underscore, value) of each constant that is not equal in two modules by chance."""
    for path in files:
        for name, value in assigned(tree_of(path)):
            if name.startswith("__") or isinstance(value, (ast.Subscript, ast.Lambda)):
                continue  # `__all__`; an alias of a type
            number = value.value if isinstance(value, ast.Constant) else None
            if name.startswith("_") and isinstance(number, (int, float)) and number <= SMALL:
                continue
            yield (name.lstrip("_"), ast.unparse(value)), f"{path}:{value.lineno}"


def test_each_public_class_has_a_name_of_its_own() -> None:
    assert doubles(classes(FILES)) == {}


def test_each_constant_is_defined_once() -> None:
    shared = [path for path in FILES if str(path.relative_to(ROOT)) not in ALONE]
    assert doubles(constants(shared)) == {}


def test_folders_of_tests_are_packages_so_that_two_files_can_have_one_name() -> None:
    # pytest imports a test file of a plain folder by its name alone: the second test_rail.py ends the whole run.
    # A repository of tests/examples is no part of ours: its tests run in a copy of it.
    files = Path(__file__).parents[1].rglob("test_*.py")
    folders = {path.parent for path in files if "examples" not in path.parts}
    assert len(folders) >= 4
    assert not [folder for folder in folders if not (folder / "__init__.py").exists()]


# pytest loads them by their entry points, or tests start them as programs; no module imports them.
LOADED = {"pytest-timeout", "hatchling"}
# pydantic's documentation says to import some names from here; its own version decides which one is installed.
# jinja2's says the same of markupsafe.
PARTS = {"pydantic-core": "pydantic", "markupsafe": "jinja2"}
# tests/browser/axe.py reads the JavaScript in it, and imports nothing of it.
CARRIERS = {"axe-playwright-python"}
# Clients of live tests, in the group dev: `./inv test` installs it.
CLIENTS = {"snappi"}
OURS = {"heddle", PLUGINS, "tests", "docs", "tasks", *(path.stem for path in (ROOT / ".engine").glob("*.py"))}
OURSELVES = "heddle-fabric"


def normal(name: str) -> str:
    """A package's name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def declared() -> set[str]:
    """The packages of the project, of its extras, of the build backend, and of the model tests."""
    file = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = file["project"]["optional-dependencies"].values()
    groups = [*extras, file["dependency-groups"]["build"], file["dependency-groups"]["models"]]
    assert file["dependency-groups"]["build"] == file["build-system"]["requires"]
    return core() | {_name(each) for group in groups for each in group}


def core() -> set[str]:
    """The packages of the project: what ./inv installs."""
    return {_name(each) for each in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]}


def browsers() -> set[str]:
    """The packages of suite browser, which `./inv test browser` installs."""
    return group("browser")


def group(name: str) -> set[str]:
    """The packages of a dependency group."""
    file = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return {_name(each) for each in file["dependency-groups"][name]}


def _name(requirement: str) -> str:
    return normal(re.split(r"[<>=~!;\[ ]", requirement, maxsplit=1)[0])


def imported() -> set[str]:
    """The packages of all imports in our code and in tests/, those of functions and of type checking too."""
    modules = {name.split(".")[0] for name in _modules()} - OURS - set(sys.stdlib_module_names)
    known = packages_distributions()
    packages = {normal(package) for module in modules for package in known.get(module, [module])}
    return {PARTS.get(package, package) for package in packages}


def _modules() -> Iterator[str]:
    for path in [*modules_of(ROOT).values(), *(ROOT / "tests").rglob("*.py")]:
        for node in statements(tree_of(path).body):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield node.module


def locked(lock: str) -> dict[str, set[str]]:
    """Package -> what asks for it, by the comments of a lock file."""
    found: dict[str, set[str]] = {}
    name = ""
    for line in (ROOT / lock).read_text().splitlines():
        if match := re.match(r"([A-Za-z0-9_.-]+)==", line):
            name = normal(match[1])
            found.setdefault(name, set())
        elif match := re.match(r"    #(?: via|  )\s*([A-Za-z0-9_.-]+)", line):
            found[name].add(normal(match[1]))
    return found


def test_every_declared_package_is_imported_and_every_imported_one_declared() -> None:
    assert imported() == (declared() | browsers() | CLIENTS) - LOADED - CARRIERS
    assert group("dev") >= CLIENTS
    assert declared() >= LOADED


def test_the_locks_have_what_is_declared_and_nothing_that_no_package_asks_for() -> None:
    always, extras = locked("requirements.lock"), locked("requirements-extras.lock")
    assert not always.keys() & extras.keys()
    both = {**always, **extras}
    for packages, asked, known in ((always, core(), always), (both, declared(), both)):
        assert {name for name, askers in packages.items() if OURSELVES in askers} == asked
        for name, askers in packages.items():
            assert askers, name
            assert askers <= {OURSELVES, *known}, name


def test_every_locked_package_has_hashes_and_no_index_is_named() -> None:
    names = sorted(path.name for path in ROOT.glob("requirements*.lock"))
    assert names == [f"requirements{group}.lock" for group in ("-browser", "-dev", "-docs", "-extras", "")]
    for name in names:
        lock = (ROOT / name).read_text()
        assert "://" not in lock and "--index" not in lock
        for stanza in re.split(r"\n(?=[^\s#])", lock.partition("# The following packages were excluded")[0].strip()):
            assert re.search(r"--hash=sha256:[0-9a-f]{64}", stanza), stanza.splitlines()[0]
