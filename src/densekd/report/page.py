"""The page: tables, figures and runs in one HTML file that needs no other."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

import densekd
from densekd.config.settings_tree import toml_lines
from densekd.files import to_json
from densekd.report.charts import Chart, HeatMap
from densekd.report.labels import file_name_part
from densekd.report.runs import RunRecord
from densekd.report.statistics import group_by
from densekd.report.tables import Table, cell_parts, cell_value, header_spans, short_duration


@dataclass(frozen=True)
class Section:
    """A part of the page: warnings, then tables, then charts."""

    name: str  # its anchor
    title: str
    about: str = ""
    remarks: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    charts: tuple[Chart | HeatMap, ...] = ()

    def figures(self) -> dict[str, tuple[str, list[Chart | HeatMap]]]:
        """The charts of each protocol, as ``{file name: (protocol, charts)}``."""
        found = group_by(self.charts, lambda chart: chart.protocol)
        names = [f"{self.name}-{file_name_part(protocol)}" for protocol in found]
        # Number protocols that have the same file name.
        unique = [n if n not in names[:i] else f"{n}-{i}" for i, n in enumerate(names)]
        return dict(zip(unique, found.items(), strict=True))


@dataclass(frozen=True)
class Contents:
    """All that is on a page. The section called ``runs`` shows the settings of all runs."""

    title: str
    lead: str  # what the page is about, in a sentence
    shortened: str  # which schedules were shortened; empty if none was
    methods: tuple[str, ...]  # in the order of their colours
    protocols: tuple[str, ...]
    sections: tuple[Section, ...]
    runs: tuple[tuple[RunRecord, str], ...]  # with the label of the method


def render_page(contents: Contents) -> bytes:
    """The page as HTML. All names are escaped."""
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    template = environment.from_string(_asset("page.html.jinja"))
    values = _PageValues(contents)
    text = template.render(
        contents=contents,
        values=values,
        cell_parts=cell_parts,
        cell_value=cell_value,
        header_spans=header_spans,
        facts=_facts,
        config=_config,
        # Numbered, because folder names may repeat.
        links={run.folder.name: f"run-{i}" for i, (run, _) in enumerate(contents.runs)},
        version=densekd.__version__,
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
        # Our own files, so they need no escaping.
        css=Markup(_asset("page.css")),
        js=Markup(_asset("chart.js") + _asset("page.js")),
        # Rendered before the data, because this fills them in.
        figures={section.name: values.figures(section) for section in contents.sections},
        # Through JSON, which replaces NaN.
        data=json.loads(to_json(values.data)),
    )
    return text.encode(errors="backslashreplace")


class _PageValues:
    """What the template asks for: methods and protocols by index, and figures."""

    def __init__(self, contents: Contents) -> None:
        self.method_indices = {method: i for i, method in enumerate(contents.methods)}
        self.protocol_indices = {protocol: i for i, protocol in enumerate(contents.protocols)}
        names = {"methods": list(contents.methods), "protocols": list(contents.protocols)}
        self.data: dict[str, list[Any]] = {**names, "charts": [], "maps": []}

    def methods(self, methods: Sequence[str]) -> str:
        return " ".join(str(self.method_indices[method]) for method in methods)

    def protocol(self, protocol: str) -> str:
        return str(self.protocol_indices.get(protocol, ""))

    def figures(self, section: Section) -> list[tuple[str, str, list[dict[str, Any]]]]:
        return [
            (protocol, name, [self._figure(chart) for chart in charts])
            for name, (protocol, charts) in section.figures().items()
        ]

    def _figure(self, chart: Chart | HeatMap) -> dict[str, Any]:
        """The template's values of a figure. Its points go into the page's data."""
        content = asdict(chart)
        if isinstance(chart, HeatMap):
            kind, title, about = "map", chart.method, _about(chart)
            content["method"] = self.method_indices[chart.method]
        else:
            kind, title, about = "chart", chart.title, "" if chart.y == "loss" else chart.y
            for series in content["series"]:
                series["method"] = self.method_indices[series["method"]]
        known = self.data[f"{kind}s"]
        known.append(content)
        return {"kind": kind, "place": len(known) - 1, "title": title, "about": about}


def _about(chart: HeatMap) -> str:
    words = [f"mean of {chart.count} runs"] if chart.count > 1 else []
    return ", ".join(["% of test images", *words, *([] if chart.finished else ["unfinished"])])


def _facts(run: RunRecord) -> list[tuple[str, str]]:
    """The protocol, code and machine of a run, as far as they are known."""
    result = run.result or {}
    machine, engine = result.get("machine") or {}, result.get("engine") or {}
    memory = machine.get("memory")
    versions = ", ".join(f"{name} {v}" for name, v in (result.get("versions") or {}).items())
    hardware = [machine.get("accelerator"), machine.get("processor")]
    hardware += [f"{machine['cores']} cores"] if machine.get("cores") else []
    hardware += [f"{memory / 2**30:.0f} GiB"] if memory else []
    facts = {
        "protocol": run.protocol.label,
        "training time": short_duration(run.seconds) if run.steps else "",
        "commit": run.commit,
        "machine": ", ".join(str(part) for part in hardware if part),
        "engine": ", ".join(f"{name} {value}" for name, value in engine.items()),
        "versions": versions,
        "distillation": str(result.get("combination") or ""),
    }
    return [(word, value) for word, value in facts.items() if value]


def _config(run: RunRecord) -> str:
    """Its settings without the folder of the data, which is nobody's business."""
    data = {**run.config.get("data", {}), "dir": None}
    return "\n".join(toml_lines({**run.config, "data": data}))


def _asset(name: str) -> str:
    return files("densekd.report").joinpath("assets", name).read_text("utf-8")
