"""How ``verbs.toml`` becomes commands: arguments, options, help pages, and files a verb may write.

The function of a verb takes its arguments and one object of options, ``given``, which holds the
options that the verb names and no others. It is imported when the verb is run: until then nothing
that computes is.
"""

import re
from collections.abc import Callable
from importlib import import_module
from inspect import Parameter, Signature, cleandoc
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from labelwise.cli.options import DECLARED, KINDS, Options, declared, flag_of
from labelwise.cli.text import before_writing
from labelwise.errors import SettingsError

VERBS = declared("verbs.toml")


def mount(app: typer.Typer, path: str) -> None:
    """Add a verb, such as ``data split``, to an application."""
    spec = VERBS[path]
    cls = type("Verb", (Verb,), {"spec": spec})
    app.command(path.split()[-1], cls=cls, help=spec["help"])(_command(spec))


def _command(spec: dict[str, Any]) -> Callable[..., None]:
    shown = spec.get("options", "").split()
    names = [name.rstrip("!") for name in (*shown, *spec.get("more", "").split())]
    writes = [name for name in names if DECLARED[name].writes]
    parameters = [_argument(name, **facts) for name, facts in spec.get("arguments", {}).items()]
    arguments = [parameter.name for parameter in parameters]
    for position, name in enumerate(names):
        more = {"rich_help_panel": "" if position < len(shown) else "More options"}
        parameters.append(_option(name, needed=f"{name}!" in shown, **more))
    if writes:
        names.append("overwrite")
        parameters.append(_option("overwrite", needed=False, rich_help_panel="More options"))
    parameters.append(_parameter("help_all", False, bool, _HELP_ALL))
    parameters.append(_parameter("_call", False, typer.Context))

    def run(_call: typer.Context, help_all: bool, **values: Any) -> None:
        values = {name: _local(name, value, spec) for name, value in values.items()}
        places = [Path(values[name]) for name in writes if values[name] is not None]
        if values.get("out") and values.get("for_") == "label-studio":
            places.append(Path(values["out"]).with_suffix(".config.xml"))
        for place in [] if values.get("overwrite") else places:
            refuse_overwriting(place, is_log=bool(values.get("page")))
        given = Options()
        vars(given).update((name, values[name]) for name in names)
        sources = ((name, _call.get_parameter_source(name)) for name in names)
        told = (name for name, source in sources if source and source.name == "ENVIRONMENT")
        given._environment = frozenset(told)
        home, _, function = spec["run"].partition(":")
        with before_writing():  # imports take seconds
            verb = getattr(import_module(f"labelwise.cli.{home}"), function)
        verb(*(values[name] for name in arguments), given)

    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _argument(name: str, type: str, **facts: Any) -> Parameter:
    default = Parameter.empty if facts.pop("needed", False) else facts.pop("default", None)
    facts.pop("fetch", None)
    return _parameter(name, default, KINDS[type], typer.Argument(**facts))


def _option(name: str, *, needed: bool, **more: Any) -> Parameter:
    option = DECLARED[name]
    flag = flag_of(name)
    flags = option.flags if any(flag.startswith("--") for flag in option.flags) else ()
    more |= {"help": option.help, **option.typed}
    made: Any = typer.Option(*(flags or (flag, *option.flags)), **more)
    default = Parameter.empty if needed else (False if option.kind is bool else None)
    return _parameter(name, default, option.kind, made)


def _parameter(name: str, default: Any, kind: Any, made: Any = None) -> Parameter:
    kind = kind if made is None else Annotated[kind, made]
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def _local(name: str, value: Any, spec: dict[str, Any]) -> Any:
    """Return a value whose run was fetched from a bucket; stop at other URIs of local paths."""
    for item in value if isinstance(value, list) else [value]:
        uri = None
        if isinstance(item, Path):
            first, *rest = item.parts or ("",)  # "s3://bucket/run" is the folder "s3:" of this disk
            uri = "//".join((first, "/".join(rest))) if rest and first[-1] == ":" else None
        elif isinstance(item, str) and "://" in item and name == "out":
            uri = item
        if uri is None or (name == "out" and spec.get("uri_out")):
            continue
        part = spec.get("arguments", {}).get(name, {}).get("fetch")
        if part is not None:
            from labelwise.models.run_folder import fetched_run

            return fetched_run(uri, part)
        raise SettingsError(
            f"{name} must be on a local or mounted disk, got {uri}; copy it, or mount the store"
        )
    return value


OURS = {  # files by which a folder is known to be labelwise's own
    *("evaluation.json", "link.json", "model.json", "dossier.json", "settings.yaml", "crops.csv"),
    *("index.json", "table.md", "comparison.json", "survey.json", "_manifest.jsonl"),
    *("metrics.jsonl", "thresholds.json", "labelwise.json", "answers.jsonl", "receipt.json"),
}


def refuse_overwriting(path: Path, *, is_log: bool = False) -> None:
    """Stop before something is overwritten that labelwise may not have made.

    A file is never replaced unasked. A folder must be empty, hold folders alone, or hold a file by
    which it is known as labelwise's own; a log of answers must lie beside its table.
    """
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


_HELP_ALL = typer.Option(
    "--help-all", is_eager=True, callback=_show_all, hidden=True, help="Show all."
)


def sentence_of(text: str | None) -> str:
    """Return the first sentence of a help page."""
    return " ".join(cleandoc(text or "").split("\n\n")[0].split())


class Verb(TyperCommand):
    """A verb whose help is one sentence, two examples and its main options."""

    spec: dict[str, Any]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take ``-beach`` as an argument where the verb does: it is written ``!beach`` then."""
        if self.spec.get("dashes"):
            params = self.get_params(ctx)
            own = {flag for param in params for flag in (*param.opts, *param.secondary_opts)}
            args = [
                f"!{word[1:]}" if re.match(r"-[^-]", word) and word[:2] not in own else word
                for word in args
            ]
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        everything = ctx.meta.get("all", False)
        self.format_usage(ctx, formatter)
        formatter.write_paragraph()
        paragraphs = cleandoc(self.help or "").split("\n\n")
        for text in paragraphs if everything else paragraphs[:1]:
            formatter.write_text(" ".join(text.split()))
            formatter.write_paragraph()
        with formatter.section("Examples"):
            for example in self.spec["examples"]:
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
