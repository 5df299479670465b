"""The page: tables, figures and runs in one HTML file that needs no other."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

import densekd
from densekd.config.settings_tree import toml_lines
from densekd.files import to_json
from densekd.reports.charts import Chart, HeatMap
from densekd.reports.labels import file_name_part, unused_name
from densekd.reports.runs import ReportedRun
from densekd.reports.statistics import group_by
from densekd.reports.tables import Table, cell_parts, cell_value, header_spans, short_duration


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
        used = set[str]()
        found = group_by(self.charts, lambda chart: chart.protocol)
        return {
            unused_name(f"{self.name}-{file_name_part(protocol)}", used): (protocol, charts)
            for protocol, charts in found.items()
        }


@dataclass(frozen=True)
class Contents:
    """The contents of a page. The section called ``runs`` shows the settings of all runs."""

    title: str
    lead: str  # what the page is about, in one sentence
    shortened: str  # which schedules were shortened; empty if none was
    damaged: tuple[str, ...]  # the names of sweeps that can't be read
    methods: tuple[str, ...]  # in the order of their colours
    protocols: tuple[str, ...]
    sections: tuple[Section, ...]
    runs: tuple[tuple[ReportedRun, str], ...]  # each with the label of its method


def render_page(contents: Contents) -> bytes:
    """Render the page as HTML, with all names escaped."""
    methods = {method: i for i, method in enumerate(contents.methods)}
    figures = {section.name: section.figures() for section in contents.sections}
    drawn = [chart for own in figures.values() for _, charts in own.values() for chart in charts]
    data = {
        "methods": contents.methods,
        "protocols": contents.protocols,
        "figures": [_with_indices(chart, methods) for chart in drawn],
    }
    # Numbered, because folder names can repeat; runs of one name have the order of the runs table.
    anchors = [(run.folder.name, f"run-{i}") for i, (run, _) in enumerate(contents.runs)]
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    environment.filters["method_index"] = methods.__getitem__
    text = environment.from_string(_asset("page.html.jinja")).render(
        contents=contents,
        protocols={protocol: i for i, protocol in enumerate(contents.protocols)},
        figures=figures,
        places={chart: i for i, chart in enumerate(drawn)},
        links=group_by(anchors, lambda each: each[0]),
        cell_parts=cell_parts,
        cell_value=cell_value,
        header_spans=header_spans,
        facts=_facts,
        config=_config,
        version=densekd.__version__,
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
        # Our own files, so they need no escaping.
        css=Markup(_asset("page.css")),
        js=Markup(_asset("chart.js") + _asset("page.js")),
        # Through JSON, which replaces NaN.
        data=json.loads(to_json(data)),
    )
    return text.encode(errors="backslashreplace")


def _with_indices(chart: Chart | HeatMap, methods: Mapping[str, int]) -> dict[str, Any]:
    content = asdict(chart)
    for named in content.get("series", [content]):
        named["method"] = methods[named["method"]]
    return content


def _facts(run: ReportedRun) -> list[tuple[str, str]]:
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


def _config(run: ReportedRun) -> str:
    """The settings of a run in TOML, without the data folder, which is private."""
    data = {**run.config.get("data", {}), "dir": None}
    return "\n".join(toml_lines({**run.config, "data": data}))


def _asset(name: str) -> str:
    return files("densekd.reports").joinpath("assets", name).read_text("utf-8")
