"""The package: cheap to import, its public names a tested list, its documents true."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

import orderdp
import orderdp_paper

ROOT = Path(__file__).parent.parent


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300).stdout


def test_the_public_names_are_these_and_all_of_them_exist() -> None:
    assert sorted(orderdp.__all__) == [
        "Advice",
        "Budget",
        "Column",
        "Context",
        "Indexed",
        "OrderDP",
        "Policy",
        "Pruner",
        "Selection",
        "SpacedRepetition",
        "Unlearned",
        "__version__",
        "advise",
        "alternate_flip",
        "build",
        "coresets",
        "datasets",
        "diagnostics",
        "distributed",
        "errors",
        "experiments",
        "integrations",
        "last_layer_gradient_norm",
        "load_checkpoint",
        "losses",
        "per_sample",
        "plans",
        "policies",
        "report",
        "save_checkpoint",
        "streaming",
        "testing",
        "theory",
        "top_mean",
    ]
    for name in orderdp.__all__:
        assert getattr(orderdp, name) is not None
    assert dir(orderdp) == orderdp.__all__


def test_a_type_checker_knows_all_public_names_and_no_others(tmp_path: Path) -> None:
    lines = [f"orderdp.{name}" for name in orderdp.__all__]
    wrong = ["orderdp.Prunner", "orderdp.streamming", "orderdp.streaming.KeyFillter", "orderdp.datasets.laod"]
    script = tmp_path / "user.py"
    script.write_text("import orderdp\n" + "\n".join(lines + wrong) + "\n")
    config = tmp_path / "mypy.ini"  # what other libraries look like does not matter here, and takes most of the time
    config.write_text(
        f"[mypy]\nmypy_path = {ROOT / 'src'}\nfollow_imports = skip\n[mypy-orderdp.*]\nfollow_imports = silent\n"
    )
    command = [sys.executable, "-m", "mypy", "--no-incremental", f"--config-file={config}"]
    done = subprocess.run([*command, str(script)], capture_output=True, text=True, check=False, timeout=300, cwd=ROOT)
    found = {line.split(":")[1] for line in done.stdout.splitlines() if "error:" in line}
    first = len(lines) + 2
    assert found == {str(number) for number in range(first, first + len(wrong))}, done.stdout


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Prunner"):
        _ = orderdp.Prunner


def test_importing_the_package_loads_neither_torch_nor_numpy() -> None:
    assert run("import sys, orderdp; print('torch' in sys.modules, 'numpy' in sys.modules)").split() == ["False"] * 2


def test_the_core_loads_no_optional_library() -> None:
    code = """
import sys, orderdp
for name in orderdp.__all__: getattr(orderdp, name)
optional = ("sklearn", "scipy", "torchdata", "lightning", "accelerate", "transformers", "timm", "torchvision", "rich")
print([name for name in optional if name in sys.modules])
"""
    assert run(code).strip() == "[]"


def test_theory_and_the_planner_load_no_torch() -> None:
    code = """
import sys, orderdp.theory
from orderdp.cli import main
main(["plan", "--samples", "1000", "--prune-ratio", "0.4", "--epochs", "3", "--batch-size", "10", "--json"])
print("torch" in sys.modules)
"""
    assert run(code).split()[-1] == "False"


def test_policies_and_their_names_load_no_torch() -> None:
    code = """
import sys, orderdp.policies
orderdp.policies.config_of(orderdp.policies.build("budget", share=0.5, learned=0.8))
print("torch" in sys.modules)
"""
    assert run(code).split()[-1] == "False"


def test_help_loads_neither_torch_nor_numpy() -> None:
    code = """
import sys
from orderdp.cli import main
try: main(["--help"])
except SystemExit: pass
print("torch" in sys.modules, "numpy" in sys.modules)
"""
    assert run(code).split()[-2:] == ["False", "False"]


def test_workers_import_little() -> None:
    code = "import sys, orderdp.dataset; print([m for m in sys.modules if m in ('orderdp.pruner', 'torch._dynamo')])"
    assert run(code).strip() == "[]"


def test_one_process_loads_nothing_that_several_need() -> None:
    code = """
import sys, torch
from orderdp import OrderDP, Pruner
pruner = Pruner(OrderDP(0.4), 20)
for _ in range(2):
    for batch in pruner.batch_sampler(4):
        pruner.update(batch, torch.rand(len(batch)))
pruner.sync(), pruner.report(), Pruner(OrderDP(0.4), 20).load_state_dict(pruner.state_dict())
print([name for name in sys.modules if name.startswith("orderdp.distributed")])
"""
    assert run(code).strip() == "[]"


def test_every_module_imports_and_lists_its_names() -> None:
    ours, papers = pkgutil.walk_packages(orderdp.__path__, "orderdp."), orderdp_paper.__path__
    for module in (*ours, *pkgutil.walk_packages(papers, "orderdp_paper.")):
        loaded = importlib.import_module(module.name)
        assert loaded.__doc__
        assert all(hasattr(loaded, name) for name in loaded.__all__)


PAGES = [
    *(ROOT / f"{name}.md" for name in ("README", "CHANGELOG", "CONTRIBUTING")),
    *sorted((ROOT / ".github").glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
PAGES_WITH_CODE = [page for page in PAGES if "```python" in page.read_text()]


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
@pytest.mark.parametrize("page", PAGES_WITH_CODE, ids=lambda page: page.stem)
def test_the_examples_on_a_page_run_one_after_the_other(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)
    module = types.ModuleType("example")  # a real module, so that classes of the page can be pickled
    monkeypatch.setitem(sys.modules, "example", module)
    exec(compile("\n".join(blocks), str(page), "exec", dont_inherit=True), module.__dict__)


def anchors(page: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", page, flags=re.DOTALL), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_between_pages_and_names_of_tests_are_true(page: Path) -> None:
    text = page.read_text()
    for target, anchor in re.findall(r"\]\((?!http)([^)#]*)(?:#([^)]+))?\)", text):
        linked = page.parent / target if target else page
        assert linked.exists(), target
        assert not anchor or anchor in anchors(linked.read_text()), f"{target}#{anchor}"
    for file, test in re.findall(r"`(test_\w+\.py)::(\w+)`", text):
        assert f"def {test}(" in next((ROOT / "tests").rglob(file)).read_text(), test


def messages() -> str:
    """All text in the source, with three dots where a value is filled in."""
    texts = []
    for file in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.JoinedStr):
                texts.append(
                    "".join(str(part.value) if isinstance(part, ast.Constant) else "..." for part in node.values)
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
    return "\n".join(texts)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_errors_that_pages_quote_are_those_of_the_source(page: Path) -> None:
    quoted = re.findall(r"^\| `\w+Error: ([^`]+)` \|", page.read_text(), flags=re.MULTILINE)
    source = messages() if quoted else ""
    for message in quoted:
        for part in message.split("..."):
            assert part.strip() in source, message


def test_subpackages_that_pages_name_are_there_after_a_bare_import() -> None:
    named = [name for name in orderdp.__all__ if name[0].islower()]
    subpackages = [name for name in named if isinstance(getattr(orderdp, name), types.ModuleType)]
    code = f"""
import sys
for name in {subpackages}:
    for loaded in [module for module in sys.modules if module.partition(".")[0] == "orderdp"]:
        del sys.modules[loaded]  # as in a new process, but for torch
    import orderdp
    print(getattr(orderdp, name).__name__)
"""
    assert run(code).split() == [f"orderdp.{name}" for name in subpackages]
    assert "streaming" in subpackages
