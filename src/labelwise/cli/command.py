"""How a function becomes a verb: its options by name, its help page, and files it may write.

A verb takes its arguments and one object of options:

    @verb("out! seed", more="duplicates", examples=("data split photos.csv -o parted.csv", ...))
    def split(source: Source, given: Options) -> None: ...

``"out! seed"`` names options of ``options.toml``; ``!`` marks a needed one.
``given`` holds these and no others. Those of ``more`` are shown by ``--help-all`` alone.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from inspect import Parameter, cleandoc, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin

import typer
from typer.core import TyperCommand

from labelwise.cli.options import DECLARED, Options

if TYPE_CHECKING:
    from labelwise.models.run_folder import RunPart


@dataclass(frozen=True)
class FromBucket:
    """Marks an argument that may be the URI of a run: the verb gets the folder of a copy."""

    part: "RunPart"


A_MODEL, A_RUN = FromBucket("model"), FromBucket("results")


@dataclass(frozen=True)
class Spec:
    """What a verb takes beside its arguments, and two commands that show it."""

    shown: tuple[str, ...]
    more: tuple[str, ...]
    needed: frozenset[str]
    examples: tuple[str, ...]
    uri_out: bool
    dashes: bool


def verb(
    shown: str = "",
    *,
    more: str = "",
    examples: tuple[str, ...],
    uri_out: bool = False,
    dashes: bool = False,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Mark a function as a verb with these options.

    ``uri_out``: it also writes to buckets. ``dashes``: words that begin with a dash, but are not
    options, are arguments, such as ``-beach``.
    """
    names = shown.split()
    needed = frozenset(name[:-1] for name in names if name.endswith("!"))
    own = tuple(name.rstrip("!") for name in names)
    spec = Spec(own, tuple(more.split()), needed, examples, uri_out, dashes)

    def marked(function: Callable[..., None]) -> Callable[..., None]:
        function.spec = spec  # type: ignore[attr-defined]
        return function

    return marked


def mount(app: typer.Typer, function: Callable[..., None], name: str) -> None:
    """Add a verb to an application."""
    app.command(name, cls=type("Verb", (Verb,), {"spec": function.spec}))(_command(function))  # type: ignore[attr-defined]


def _command(function: Callable[..., None]) -> Callable[..., None]:
    """Return the function with one parameter per option, as typer reads it."""
    spec: Spec = function.spec  # type: ignore[attr-defined]
    own = signature(function).parameters
    arguments = [parameter for parameter in own.values() if parameter.annotation is not Options]
    takes = next((name for name, parameter in own.items() if parameter.annotation is Options), None)
    names = [*spec.shown, *spec.more]
    writes = [name for name in names if DECLARED[name].writes]
    if writes:
        names.append("overwrite")
    parameters = [argument.replace(kind=Parameter.KEYWORD_ONLY) for argument in arguments]
    parameters += [_parameter(name, name in spec.needed, name in spec.shown) for name in names]
    parameters.append(
        Parameter("help_all", Parameter.KEYWORD_ONLY, default=False, annotation=_HELP_ALL)
    )

    @wraps(function)
    def run(**values: Any) -> None:
        environment = values.pop("help_all")
        marks = {argument.name: _mark(argument.annotation) for argument in arguments}
        values = {
            name: _local(name, value, marks.get(name), spec) for name, value in values.items()
        }
        places = [Path(values[name]) for name in writes if values[name] is not None]
        if values.get("out") and values.get("for_") == "label-studio":
            places.append(Path(values["out"]).with_suffix(".config.xml"))
        for place in [] if values.get("overwrite") else places:
            refuse_overwriting(place, is_log=bool(values.get("page")))
        given = Options()
        given._environment = environment
        for name in names:
            setattr(given, name, values.pop(name))
        function(**values, **({} if takes is None else {takes: given}))

    run.__signature__ = signature(function).replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _parameter(name: str, needed: bool, shown: bool) -> Parameter:
    declared = DECLARED[name]
    flag = f"--{name.strip('_').replace('_', '-')}"
    flags = declared.flags if any(flag.startswith("--") for flag in declared.flags) else ()
    made = typer.Option(
        *(flags or (flag, *declared.flags)),
        help=declared.help,
        rich_help_panel="" if shown else "More options",
        **declared.typed,
    )
    default = Parameter.empty if needed else (False if declared.kind is bool else None)
    return Parameter(
        name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[declared.kind, made]
    )


def _mark(annotation: Any) -> FromBucket | None:
    marks = get_args(annotation) if get_origin(annotation) is Annotated else ()
    return next((mark for mark in marks if isinstance(mark, FromBucket)), None)


def _local(name: str, value: Any, mark: FromBucket | None, spec: Spec) -> Any:
    """Return a value whose run was fetched from a bucket; stop at other URIs of local paths.

    ``Path("s3://bucket/run")`` is the folder ``s3:`` on this disk, which nobody means.
    """
    for item in value if isinstance(value, list) else [value]:
        uri = None
        if isinstance(item, Path):
            first, *rest = item.parts or ("",)
            uri = "//".join((first, "/".join(rest))) if rest and first[-1] == ":" else None
        elif isinstance(item, str) and "://" in item and name == "out":
            uri = item
        if uri is None or (name == "out" and spec.uri_out):
            continue
        if mark is not None:
            from labelwise.models.run_folder import fetched_run

            return fetched_run(uri, mark.part)
        from labelwise.errors import SettingsError

        raise SettingsError(
            f"{name} must be on a local or mounted disk, got {uri}; copy it, or mount the store"
        )
    return value


OURS = {  # files by which a folder is known to be labelwise's own
    *("evaluation.json", "link.json", "model.json", "dossier.json", "settings.yaml", "crops.csv"),
    *("index.json", "table.md", "comparison.json", "survey.json", "_manifest.jsonl"),
    *("metrics.jsonl", "thresholds.json", "labelwise.json"),
    *("answers.jsonl", "receipt.json"),
}


def refuse_overwriting(path: Path, *, is_log: bool = False) -> None:
    """Stop before something is overwritten that labelwise may not have made.

    A file is never replaced unasked. A folder must be empty, hold folders alone, or hold a file by
    which it is known as labelwise's own; a log of answers must lie beside its table.
    """
    from labelwise.errors import SettingsError

    if path.is_dir():
        files = sorted(entry.name for entry in path.iterdir() if entry.is_file())
        files = [name for name in files if not name.startswith((".", "part-"))]
        if files and not set(files) & OURS:
            raise SettingsError(
                f"{path} holds files that labelwise did not make, such as {files[0]!r}; choose "
                "another folder, or say --overwrite"
            )
    elif path.is_file() and not (is_log and path.with_suffix(".jsonl").is_file()):
        raise SettingsError(
            f"{path} exists and would be overwritten; choose another name, or say --overwrite"
        )


def _show_all(context: typer.Context, wanted: bool) -> None:
    if wanted:
        context.meta["all"] = True
        print(context.get_help())
        raise typer.Exit


_HELP_ALL = Annotated[
    bool,
    typer.Option("--help-all", is_eager=True, callback=_show_all, hidden=True, help="Show all."),
]


def sentence_of(text: str | None) -> str:
    """Return the first sentence of a docstring."""
    return " ".join(cleandoc(text or "").split("\n\n")[0].split())


class Verb(TyperCommand):
    """A verb whose help is one sentence, two examples and its main options."""

    spec: Spec

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take ``-beach`` as an argument where the verb does: it is written ``!beach`` then."""
        if self.spec.dashes:
            own = {
                flag
                for param in self.get_params(ctx)
                for flag in (*param.opts, *param.secondary_opts)
            }
            args = [
                f"!{word[1:]}" if re.match(r"-[^-]", word) and word[:2] not in own else word
                for word in args
            ]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the verb; ``help_all``, which has done its work, brings what the environment gave."""
        sources = {name: ctx.get_parameter_source(name) for name in ctx.params}
        told = (name for name, source in sources.items() if source and source.name == "ENVIRONMENT")
        ctx.params["help_all"] = frozenset(told)
        return super().invoke(ctx)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write usage, sentence, examples, arguments and options; all of them if asked to."""
        everything = ctx.meta.get("all", False)
        self.format_usage(ctx, formatter)
        formatter.write_paragraph()
        paragraphs = cleandoc(self.help or "").split("\n\n")
        for text in paragraphs if everything else paragraphs[:1]:
            formatter.write_text(" ".join(text.split()))
            formatter.write_paragraph()
        with formatter.section("Examples"):
            for example in self.spec.examples:
                formatter.write(f"  labelwise {example}\n")
        groups: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and param.name != "help":
                is_argument = param.param_type_name == "argument"
                panel = getattr(param, "rich_help_panel", "") or "Options"
                groups.setdefault("Arguments" if is_argument else panel, []).append(record)
        more = groups.pop("More options", [])
        if everything:
            groups["More options"] = more
        for title, lines in groups.items():
            if lines:
                with formatter.section(title):
                    formatter.write_dl(lines)
        if more and not everything:
            formatter.write_paragraph()
            formatter.write(f"{len(more)} more options: {ctx.command_path} --help-all\n")
