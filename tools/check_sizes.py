"""Check the house rules on sizes and imports: prints each offending place, exits with 1 if there is one.

Sizes, everywhere: a file has at most 400 lines (tests: 600), a function at most 60 without its docstring, a file at
most 8 private top-level functions and classes. Names, in the packages: no underscore name of another module or object,
imported or used, but in ADAPTERS, each of which does use some. Imports, inside `annopipe`: only from the same package
or a lower floor, none inside a function, and no torch in TORCH_FREE packages.
"""

import ast
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

CHECKED = ("annopipe", "rewriters", "benchmarks", "examples", "tests", "tools")
PACKAGES = ("annopipe", "rewriters", "benchmarks")
# The files that wrap private names of torch, each with what it wraps.
ADAPTERS = {
    "annopipe/capturing/cuda.py": "torch (copies of many tensors at once)",
    "annopipe/compiling/inductor.py": "torch._inductor (standalone_compile, its inner function, its cache), "
    "fake tensors and symbols",
    "annopipe/compiling/refusals.py": "torch._ops (what kind of operator a node calls)",
    "annopipe/graphs/calling.py": "nn.Module (its tables of parameters and buffers)",
    "annopipe/graphs/capture.py": "torch._functorch (joint graph, partitioner), torch._subclasses (fake tensors), and "
    "torch.utils._python_dispatch to see tensors of others",
    "annopipe/graphs/checkpointing.py": "torch.utils.checkpoint, and torch.utils._python_dispatch to mark operations",
    "annopipe/graphs/declared_ops.py": "the schema of an operator",
    "annopipe/graphs/distributed_tensors.py": "nn.Module (its tables of parameters and buffers)",
    "annopipe/graphs/dynamo.py": "torch._dynamo (graph capture, guards)",
    "annopipe/graphs/eager_kernels.py": "torch._C and torch._ops (Python kernels that only tracing uses)",
    "annopipe/graphs/min_cut.py": "torch._functorch.partitioners (what to save within a memory budget)",
    "annopipe/graphs/effects.py": "the schema of an operator",
    "annopipe/graphs/operators.py": "torch._ops, torch._C (operators that users name, and their schemas)",
    "annopipe/graphs/ops.py": "torch._ops (what kind of operator a node calls)",
    "annopipe/graphs/process_groups.py": "how functional collectives find a group, its time limit, absent ranks",
    "annopipe/graphs/tracing.py": "nn.Module (its tables, whether it is compiled), hooks of a tensor",
    "annopipe/models/exchange.py": "torch.distributed._functional_collectives (registers the gradient of waiting)",
    "annopipe/models/plain.py": "torch.distributed._functional_collectives (the model as users write it)",
    "annopipe/ordering/torch_scheduler.py": "torch._inductor.fx_passes.overlap_scheduling (the policy torch)",
    "annopipe/pipeline/data_parallel/fully_sharded.py": "torch.distributed.fsdp (what fully_shard puts on modules)",
    "annopipe/pipeline/data_parallel/gathering.py": "torch._C (whether a backward runs)",
    "annopipe/pipeline/data_parallel/sharding.py": "nn.Module (its table of parameters)",
    "annopipe/pipeline/calls/module_state.py": "nn.Module (its tables of parameters, buffers and children)",
    "annopipe/pipeline/profiling.py": "whether a profiler records",
    "annopipe/pipeline/calls/python_values.py": "hooks of a tensor",
    "annopipe/pipeline/upstream/schedule_objects.py": "torch.distributed.pipelining (schedule objects and stages)",
    "annopipe/pipeline/labels.py": "torch._C._profiler (labels that cost little)",
    "annopipe/pytrees.py": "torch.utils._pytree",
    "benchmarks/groups/gloo.py": "ProcessGroup (what carries a group's messages)",
}
# Floors of annopipe, lowest first. Packages on one floor do not know each other.
FLOORS = (
    "errors pytrees processors | toml_files annotate auxiliary simulation | scheduling graphs kernels | "
    "costs models compiling capturing | tuning ordering | workloads pipeline | cli | __main__"
)
# A class's own private names may be its parents'; those of os and sys are documented.
PUBLIC_OWNERS = ("self", "cls", "super()", "os", "sys")
TORCH_FREE = ("scheduling", "simulation", "tuning")
MAX_FUNCTION, MAX_FILE, MAX_TEST_FILE, MAX_PRIVATE = 60, 400, 600, 8
Function = (ast.FunctionDef, ast.AsyncFunctionDef)
Place = tuple[int, str]


def sizes(path: Path, tree: ast.Module, lines: int) -> Iterator[Place]:
    limit = MAX_TEST_FILE if path.parts[0] == "tests" else MAX_FILE
    if lines > limit:
        yield 1, f"file has {lines} lines, at most {limit} are allowed"
    private = [n for n in tree.body if isinstance(n, (*Function, ast.ClassDef)) and is_private(n.name)]
    if len(private) > MAX_PRIVATE:
        yield private[-1].lineno, f"{len(private)} private top-level helpers, at most {MAX_PRIVATE} are allowed"
    for node in ast.walk(tree):
        if isinstance(node, Function):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if ast.get_docstring(node, clean=False) is not None:
                length -= (node.body[0].end_lineno or 0) - node.body[0].lineno + 1
            if length > MAX_FUNCTION:
                yield node.lineno, f"function {node.name} has {length} lines, at most {MAX_FUNCTION} are allowed"


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def imports(path: Path, tree: ast.AST) -> Iterator[tuple[ast.stmt, str, list[str]]]:
    """Each import as its statement, the absolute module it names, and the names it takes from there."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name, []) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = path.parts[: -node.level] if node.level else ()
            yield node, ".".join([*base, *filter(None, [node.module])]), [alias.name for alias in node.names]


def private_names(path: Path, tree: ast.Module) -> Iterator[Place]:
    places = [
        (node.lineno, f"imports the private name {name} of {module}")
        for node, module, names in imports(path, tree)
        for name in filter(is_private, [*module.split("."), *names])
    ]
    own, operators = own_names(tree), operator_aliases(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in own:
            owner = ast.unparse(node.value)
            public = owner in PUBLIC_OWNERS or (owner, node.attr) == ("torch", "_check")
            if not public and not owner.startswith("torch.ops") and owner not in operators:
                places.append((node.lineno, f"uses the private name {node.attr} of {owner}"))
    if path.as_posix() not in ADAPTERS:
        yield from places
    elif not places:
        yield 1, "is listed in ADAPTERS and uses no private name"


def own_names(tree: ast.Module) -> set[str]:
    """The names that a file gives to its functions, classes, fields and attributes."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, (*Function, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            found.add(node.attr)
    return found


def operator_aliases(tree: ast.Module) -> set[str]:
    """Names for parts of ``torch.ops``, where an underscore is part of an operator's public name."""
    assigned = [node for node in ast.walk(tree) if isinstance(node, ast.Assign)]
    return {ast.unparse(node.targets[0]) for node in assigned if ast.unparse(node.value).startswith("torch.ops.")}


def floors(path: Path, tree: ast.Module) -> Iterator[Place]:
    own = path.with_suffix("").parts[1]
    if own not in FLOORS.split():
        if own != "__init__":
            yield 1, f"annopipe.{own} is on no floor: add it to FLOORS"
        return
    lower = (names.split() for names in FLOORS.split(" | "))
    face = {"__init__"} if own == "cli" else set()
    allowed = {own}.union(face, *itertools.takewhile(lambda names: own not in names, lower))
    for node, module, names in imports(path, tree):
        head, *rest = module.split(".")
        if head == "torch" and own in TORCH_FREE:
            yield node.lineno, f"annopipe.{own} imports no torch"
        if head in {"benchmarks", "rewriters", "examples"} and own != "cli":
            yield node.lineno, f"annopipe.{own} imports {head}, which is above it"
        if head == "annopipe":
            for name in rest[:1] or names or ["__init__"]:
                if name not in allowed or (own in TORCH_FREE and name == "annotate"):
                    yield node.lineno, f"annopipe.{own} imports annopipe.{name}, which is not below it"


def inner_imports(path: Path, tree: ast.Module) -> Iterator[Place]:
    if path.name == "__init__.py" or path.with_suffix("").parts[1] == "cli":
        return
    inside = {n.lineno for f in ast.walk(tree) if isinstance(f, Function) for n, _, _ in imports(path, f)}
    yield from ((line, "import inside a function") for line in sorted(inside))


def check(root: Path) -> list[str]:
    found = []
    for path in sorted(p for folder in CHECKED for p in (root / folder).rglob("*.py")):
        name, text = path.relative_to(root), path.read_text(encoding="utf-8")
        tree = ast.parse(text, filename=str(path))
        places = list(sizes(name, tree, len(text.splitlines())))
        if name.parts[0] in PACKAGES:
            places += private_names(name, tree)
        if name.parts[0] == "annopipe":
            places += [*floors(name, tree), *inner_imports(name, tree)]
        found += [f"{name.as_posix()}:{line}: {message}" for line, message in places]
    return found


if __name__ == "__main__":
    offences = check(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent)
    print(*(offences or ["sizes and imports: fine"]), sep="\n")
    sys.exit(bool(offences))
