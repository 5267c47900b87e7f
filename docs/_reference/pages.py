"""A hook of mkdocs: pages that are made from the source, so that they cannot fall behind it.

reference/*.md     one page per package, from its public names and its docstrings
reference/cli.md   ``--help`` of every command
tour.md            the notebook
contributing.md    and others from the root of the repository
evidence/*.md      how we measured; outside the navigation and the search
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe
from arguments import exported
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "api": "Train, and open a run",
    "training.settings": "Settings of a run",
    "learn.objectives": "Objectives: losses with their links",
    "links": "Links",
    "calibration": "Calibrators",
    "decide": "Rules",
    "metrics": "Metrics",
    "queries": "Queries",
    "learn.heads": "Heads",
    "learn.backbones": "Backbones",
    "tables": "Data",
    "taxonomy": "Taxonomies",
    "types": "Types",
    "learn.methods": "Methods",
    "models": "Models and runs",
    "predictions": "Predictions",
    "photos": "Photo index",
    "evaluation": "Evaluation",
    "report": "Report",
    "contrib.sklearn": "scikit-learn",
    "contrib.torchmetrics": "torchmetrics",
    "errors": "Errors",
}
UNSEARCHED = "---\nsearch:\n  exclude: true\n---\n\n"
FROM_THE_ROOT = ("CONTRIBUTING", "SECURITY", "CHANGELOG")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the generated reference pages into the navigation."""
    for entry in config.nav or []:
        if "Reference" in entry:
            pages = [{title: f"reference/{name}.md"} for name, title in PACKAGES.items()]
            entry["Reference"] = [
                "reference/index.md",
                {"Command line": "reference/cli.md"},
                {"Papers": "papers.md"},
                {"Python": pages},
            ]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    pages = {f"reference/{name}.md": package_page(package(name), name) for name in PACKAGES}
    pages["reference/index.md"] = index_page()
    pages["reference/cli.md"] = command_page()
    pages["tour.md"] = notebook_page(ROOT / "docs" / "tour.ipynb")
    for name in FROM_THE_ROOT:
        text = (ROOT / f"{name}.md").read_text("utf-8")
        for other in FROM_THE_ROOT:
            text = text.replace(f"]({other}.md", f"]({other.lower()}.md")
        pages[f"{name.lower()}.md"] = text.replace("](docs/", "](")
    for path in sorted((ROOT / "evidence").rglob("*.md")):
        text = path.read_text("utf-8").replace("](../docs/", "](../")
        pages[path.relative_to(ROOT).as_posix()] = UNSEARCHED + text
    for path in sorted((ROOT / "evidence").glob("*.svg")):
        pages[path.relative_to(ROOT).as_posix()] = path.read_text("utf-8")
    for uri, text in pages.items():
        files.append(File.generated(config, uri, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Take out what tells the tests which examples to run; lead ``../evidence`` into the site."""
    shown = re.sub(r"^([ ]*```\w+) no-run$", r"\1", markdown, flags=re.M)
    for name in FROM_THE_ROOT:
        shown = shown.replace(f"](../{name}.md", f"]({name.lower()}.md")
    return shown.replace("](../evidence/", "](evidence/")


def package(name: str) -> griffe.Object:
    """Return what the file of a package says, without those below it."""
    place = ROOT.joinpath("src", "labelwise", *name.split("."))
    file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    return griffe.visit(f"labelwise.{name}", filepath=file, code=file.read_text("utf-8"))


def public_names(module: griffe.Object) -> Iterator[tuple[str, list[str]]]:
    """Yield (path of the defining module, its public names) in the order of the source."""
    homes: dict[str, list[str]] = {}
    for name in exported(module):
        home = module.imports[name].rpartition(".")[0] if name in module.imports else module.path
        homes.setdefault(home, []).append(name)
    order = list(dict.fromkeys([*(p.rpartition(".")[0] for p in module.imports.values()), *homes]))
    own = {f"labelwise.{name}" for name in PACKAGES} - {module.path}  # shown on their own pages
    yield from ((home, homes[home]) for home in order if home in homes and home not in own)


def package_page(module: griffe.Object, name: str) -> str:
    """Return a page that shows the public names of a package, grouped as its files are."""
    parts = [f"# {PACKAGES[name]}\n\n`labelwise.{name}`\n"]
    homes = list(public_names(module))
    if module.docstring and homes != [(module.path, homes[0][1])]:
        parts.append(module.docstring.value + "\n")
    for home, names in homes:
        title = home.rpartition(".")[2].replace("_", " ").capitalize()
        parts.append(
            f"::: {home}\n    options:\n      heading: {title}\n      heading_level: 2\n"
            "      show_symbol_type_heading: false\n"
            f"      members: [{', '.join(names)}]\n      show_root_members_full_path: false\n"
        )
    return "\n".join(parts)


def index_page() -> str:
    """Return the page that lists the others."""
    rows = "\n".join(f"| `labelwise.{n}` | [{t}]({n}.md) |" for n, t in PACKAGES.items())
    return (
        "# Reference\n\nMade from the docstrings. Arrays are numpy or torch; shapes are written as"
        " (images, labels), or (B, K) for a batch, (N, K) for a data set.\n\n"
        f"| package | holds |\n|---|---|\n| `labelwise` | [Command line](cli.md) |\n{rows}\n"
    )


def command_page() -> str:
    """Return the help of every command, as the terminal shows it."""
    import typer.main
    from click import Context

    from labelwise.cli.app import app

    def helps(command: Any, path: str, parent: Context | None) -> Iterator[str]:
        context = Context(command, info_name=path.split()[-1], parent=parent, max_content_width=96)
        context.terminal_width = 96
        level = "#" * (1 + len(path.split()))
        yield f"{level} {path}\n\n```text\n{command.get_help(context)}\n```\n"
        for verb, child in getattr(command, "commands", {}).items():
            yield from helps(child, f"{path} {verb}", context)

    text = "\n".join(helps(typer.main.get_command(app), "labelwise", None))
    return f"# Command line\n\n{text}"


def notebook_page(path: Path) -> str:
    """Return a notebook as Markdown: cells, and what they printed when it was last run."""
    parts = []
    for cell in json.loads(path.read_text("utf-8"))["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            printed = "".join(output.get("text", data.get("text/plain", "")))
            if "image/png" in data:
                parts.append(f"![output](data:image/png;base64,{data['image/png'].strip()})")
            elif printed:
                parts.append(f"```text\n{printed.rstrip()}\n```")
    return "\n\n".join(parts) + f"\n\n[Download the notebook]({path.name})\n"
