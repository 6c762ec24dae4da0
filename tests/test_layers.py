"""The direction of imports, local ones included: what each layer may know. Read with ARCHITECTURE.md."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "src" / "holdfast"

# What whoever uses an engine may know: the contract, and what holds for every engine.
OF_ALL_ENGINES = {
    f"engines.{name}"
    for name in ("contract", "traits", "records", "store_calls", "topics", "liveness", "clock", "observers")
}

# Who may import what, by the longest prefix that fits. A layer always knows itself.
MAY = {
    "core": set(),
    "forking": {"safe_text"},
    "redaction": set(),
    "safe_text": {"redaction"},
    "tracebacks": set(),
    "safe_console": {"safe_text"},
    "background": set(),
    "blobs": {"core", "forking"},
    "engines": {"core", "forking", "safe_text", "blobs"},
    "jobs": {"core", "forking", *OF_ALL_ENGINES, "safe_text", "blobs"},
    "worker": {
        "redaction",
        "blobs",
        "core",
        "forking",
        *OF_ALL_ENGINES,
        "jobs",
        "safe_text",
        "tracebacks",
        "background",
    },
    "upkeep": {"blobs", "core", *OF_ALL_ENGINES, "jobs", "safe_text", "background"},
    "telemetry": {"core", "forking", *OF_ALL_ENGINES, "jobs", "safe_text"},
    "server": {"blobs", "core", *OF_ALL_ENGINES, "jobs", "redaction", "safe_text", "telemetry"},
    "conformance": {"blobs", "core", "engines", "jobs"},
    "app": {
        *("blobs", "core", "forking", "engines", "jobs", "worker", "upkeep"),
        *("safe_console", "safe_text", "background", "tracebacks", "redaction"),
    },
    "mounting": {"app", "server"},
    "testing": {"blobs", "core", "engines", "jobs", "worker", "upkeep", "app"},
    "demo": {"core", "engines", "jobs", "app"},
    "cli": {
        *("mounting", "demo", "blobs", "core", "forking", "engines", "jobs", "worker", "upkeep", "app"),
        *("server", "telemetry"),
        *("safe_text", "safe_console", "tracebacks", "redaction"),
    },
}

# Concrete engines are named by `engine_for(url)`, by themselves, by the command line, by the suite that compares every
# engine with the memory engine, and by the store of users' tests, which is one.
CONCRETE = {"engines.memory", "engines.file", "engines.sqlite", "engines.postgres", "engines.redis", "engines.http"}
IN_MEMORY = ("conformance.twins", "conformance.test_move", "testing.store")
PACKAGES = {"engines", "engines.file", "engines.sqlite", "engines.postgres", "engines.redis", "engines.http"}
SHOWN_ENGINES = {"engines.stores": PACKAGES - {"engines"}}


def modules() -> list[tuple[str, Path]]:
    return [
        (".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"), path)
        for path in sorted(ROOT.rglob("*.py"))
        if path != ROOT / "__init__.py"
    ]


def imports(path: Path) -> set[str]:
    """Every module of ours that a file imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            names = [node.module or ""] + [f"{node.module}.{alias.name}" for alias in node.names]
        found |= {name.removeprefix("holdfast.") for name in names if name.startswith("holdfast.")}
    return {name for name in found if is_module(name)}


def targets(path: Path) -> set[str]:
    """The modules that a file's imports lead to: `from package import module` leads to that module, not the package."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.add(whole if is_module(whole.removeprefix("holdfast.")) else node.module or "")
    return {name.removeprefix("holdfast.") for name in found if name.startswith("holdfast.")}


def outsiders(path: Path) -> set[str]:
    """The packages of others that a file imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").split(".")[0])
    return found - {"holdfast"}


def cycle_in(edges: dict[str, set[str]]) -> list[str] | None:
    """A way from a module back to itself, or None."""
    done: set[str] = set()

    def walk(module: str, way: list[str]) -> list[str] | None:
        if module in way:
            return [*way[way.index(module) :], module]
        if module not in done:
            for name in sorted(edges.get(module, ())):
                if (found := walk(name, [*way, module])) is not None:
                    return found
            done.add(module)
        return None

    return next((found for module in sorted(edges) if (found := walk(module, [])) is not None), None)


def is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or path.is_dir()


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


@pytest.mark.parametrize(("module", "path"), modules(), ids=lambda value: value if isinstance(value, str) else "")
def test_a_module_imports_only_what_its_layer_may_know(module: str, path: Path):
    layer = module.split(".")[0]
    allowed = MAY[layer] | {layer}

    for name in imports(path):
        assert any(within(name, one) or one.startswith(name + ".") for one in allowed), f"{module} imports {name}"


@pytest.mark.parametrize(("module", "path"), modules(), ids=lambda value: value if isinstance(value, str) else "")
def test_a_concrete_engine_is_named_only_where_stores_are_chosen(module: str, path: Path):
    if module in ("engines.stores", *IN_MEMORY) or within(module, "cli"):
        return
    for name in imports(path):
        for engine in CONCRETE:
            if within(name, engine):
                own = within(module, engine) or (module, engine) == ("engines.file.engine", "engines.memory")
                assert own, f"{module} imports {name}"


@pytest.mark.parametrize(("module", "path"), modules(), ids=lambda value: value if isinstance(value, str) else "")
def test_a_module_of_an_engine_names_the_module_it_means(module: str, path: Path):
    """What a package shows to others is made of its modules: one of these that imports it closes a circle."""
    if within(module, "engines") and module not in PACKAGES:
        assert not targets(path) & PACKAGES - SHOWN_ENGINES.get(module, set())


@pytest.mark.parametrize(("module", "path"), modules(), ids=lambda value: value if isinstance(value, str) else "")
def test_what_every_caller_asks_knows_no_terminal(module: str, path: Path):
    if within(module, "jobs") or within(module, "core"):
        assert not outsiders(path) & {"rich", "click"}


@pytest.mark.parametrize(("module", "path"), modules(), ids=lambda value: value if isinstance(value, str) else "")
def test_no_verb_knows_another_one_and_no_drawing_knows_a_verb(module: str, path: Path):
    if within(module, "cli.verbs") or within(module, "cli.render"):
        assert not [name for name in targets(path) if within(name, "cli.verbs") and name != module]


def test_no_module_imports_itself_by_way_of_others():
    edges = {module: targets(path) for module, path in modules()}

    assert cycle_in(edges) is None, f"{' imports '.join(cycle_in(edges) or ())}"


def test_the_law_catches_a_local_import(tmp_path):
    file = tmp_path / "sneaky.py"
    file.write_text("def later():\n    from holdfast.engines import memory\n    import holdfast.jobs.service\n")

    assert imports(file) == {"engines", "engines.memory", "jobs.service"}


def test_the_law_of_cycles_follows_a_local_import_to_its_module(tmp_path):
    file = tmp_path / "sneaky.py"
    file.write_text("def later():\n    from holdfast.engines import memory, engine_for\n")

    assert targets(file) == {"engines", "engines.memory"}
    assert cycle_in({"a": {"b"}, "b": {"c", "d"}, "c": set(), "d": {"a"}}) == ["a", "b", "d", "a"]
    assert cycle_in({"a": {"b", "c"}, "b": {"c"}, "c": set()}) is None


def test_every_module_has_a_layer():
    assert {name.split(".")[0] for name, _ in modules()} <= set(MAY)
