"""Names from before 0.3, which work until 0.4."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Renamed:
    """What an old verb became: its words, options with a new name, and options it had by itself."""

    to: str
    options: Mapping[str, str] = field(default_factory=dict)
    default: Sequence[str] = ()  # unless the first of them was given
    second: str = ""  # the option that its second argument became

    def command(self, args: list[str]) -> list[str]:
        """Return the new command line of old arguments; after ``--`` no option is renamed."""
        end = args.index("--") if "--" in args else len(args)
        parts = (word.partition("=") for word in args[:end])
        flags = {f"--{old}": f"--{new}" for old, new in self.options.items()}
        words = [f"{flags.get(flag, flag)}{equals}{value}" for flag, equals, value in parts]
        words += args[end:]
        if self.second and words[1:]:
            words.insert(1, self.second)
        given = {word.partition("=")[0] for word in words}
        return [*self.to.split(), *words, *(() if given & {*self.default[:1]} else self.default)]


RENAMED = {
    "labelwise": {
        "start": Renamed("train", {"scorer": "model"}),
        "apply": Renamed("predict"),
        "mcp": Renamed("serve --mcp", {"folder": "tag-folder"}),
        "check": Renamed("audit", {"cut": "at-least", "output": "out"}),
        "verify": Renamed("audit", {"output": "out"}),
        "estimate": Renamed(
            "count", {"answers": "ask", "answers-from": "answers", "method": "count-by"}
        ),
        "review": Renamed("label next", {"by": "order", "count": "top"}),
        "dossier": Renamed("report --format dossier"),
        "reproduce": Renamed(
            "papers run", {"data": "source", "scores": "judge", "checkpoint": "judge"}
        ),
        "methods": Renamed("papers methods"),
        "aggregate": Renamed("data convert", {"how": "pool"}),
        "train": Renamed("train", {"calibrate": "calibrator"}),
        "calibrate": Renamed("calibrate", {"method": "calibrator"}),
        "predict": Renamed("predict", {"shares": "frequencies"}),
        "label": Renamed("label", {"export": "out"}),
        "serve": Renamed("serve", {"model": "also"}),
        "decide": Renamed(
            "calibrate",
            {
                "calibrate": "calibrator",
                "promise": "guarantee",
                "promise-share": "guarantee-share",
            },
            ("--calibrator", "none"),
        ),
    },
    "data": {
        "suspects": Renamed(
            "review",
            {"kind": "find", "false-at-most": "wrong-at-most", "most": "top", "page": "html"},
        ),
        "next": Renamed("review --find next", {"budget": "top", "by": "order", "page": "html"}),
        "repair": Renamed(
            "review",
            {"log": "changes", "accept-promised": "accept-guaranteed"},
            second="--apply",
        ),
        "near-copies": Renamed("group"),
        "bursts": Renamed(
            "group", {"time": "time-column", "camera": "camera-column"}, ("--gap", "60")
        ),
        "keywords": Renamed("import", {"least": "min-count", "taxonomy": "taxonomy-out"}),
        "crops": Renamed("import", {"least": "at-least", "root": "data"}),
        "answers": Renamed("convert", second="--predictions"),
        "export": Renamed("convert"),
        "clashes": Renamed("rules"),
        "votes": Renamed("votes", {"by": "vote-by", "photos": "data", "least": "min-count"}),
    },
}


def today(group: str, args: list[str]) -> list[str]:
    """Return a command line of a group of verbs as it is typed today."""
    name = args[0] if args else ""
    if name == "serve" and "--label" in args:
        photos = [word for word in args[1:] if word != "--label"]
        return Renamed("label --page", {"answers": "out"}).command(photos)
    if name == "reproduce" and "--list" in args:
        return ["papers", "list", *(word for word in args[1:] if word != "--list")]
    renamed = RENAMED.get(group, {}).get(name)
    return args if renamed is None else renamed.command(args[1:])
