"""The help of a verb with its options in groups, such as those of one kind of source."""

from typing import Any

from typer.core import TyperCommand


class GroupedHelp(TyperCommand):
    """A verb whose options stand under their ``rich_help_panel``, in plain text as elsewhere."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, then options of every use, then each group of options."""
        groups: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            shown = parameter.get_help_record(ctx)
            if shown is None:
                continue
            is_argument = parameter.param_type_name == "argument"
            panel = getattr(parameter, "rich_help_panel", None)
            group = "Arguments" if is_argument else panel or "Options"
            groups.setdefault(group, []).append(shown)
        for title, lines in groups.items():
            if lines:
                with formatter.section(title):
                    formatter.write_dl(lines)
