"""The page's layout, and what its controls do."""

import html
import os
from collections.abc import Callable
from functools import wraps
from importlib.resources import files
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import gradio as gr

from densekd.model.model import undo
from densekd.model.options import OnKnownClass, TeachOptions
from densekd.ui import markup
from densekd.ui.session import Session

_P = ParamSpec("_P")
_R = TypeVar("_R")
_Changes = dict[Any, Any]  # new values of the page's components
_Versions = dict[str, Any]  # of the parts of the page

# Seconds between a window's requests for changes: while something goes on, and always.
_BUSY_SECONDS, _ALWAYS_SECONDS = 0.3, 2.0
_DROP_AREA = """<div class='kd-drop'><p>${label}</p>
<button data-choose='images'>Choose photos</button>
<button data-choose='folder'>Choose a folder</button>
<button data-camera='open'>Camera</button>
<div class='kd-camera' hidden><video autoplay playsinline muted></video><p>
<button data-camera='take'>Take a photo</button>
<button data-camera='close'>Close the camera</button></p></div>
<input data-kind='images' type='file' accept='image/*' multiple hidden>
<input data-kind='folder' type='file' webkitdirectory hidden>
<p class='kd-status' role='status'></p></div>"""
# Buttons with a data attribute trigger an event with its value.
_BUTTONS = """element.addEventListener("click", (event) => {
  const data = event.target.dataset;
  if (Object.keys(data).length) trigger("select", { ...data });
});"""


def theme() -> gr.themes.Base:
    """Gradio's theme with system fonts: its own would be fetched from the internet."""
    return gr.themes.Default(
        primary_hue="blue", font=["system-ui", "sans-serif"], font_mono=["monospace"]
    )


def _show_errors(act: Callable[_P, _R]) -> Callable[_P, _R]:
    """Show errors as a sentence on the page."""

    @wraps(act)
    def acted(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return act(*args, **kwargs)
        except (ValueError, OSError) as error:
            sentence = html.escape(str(error), quote=False)
            raise gr.Error(sentence, duration=None, print_exception=False) from error

    return acted


class Page:
    """The page of a model; ``blocks`` is the Gradio app.

    The session holds what it shows. Each window asks regularly what has changed since it last
    asked.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.title = Path(os.path.realpath(session.folder)).name
        with gr.Blocks(title=f"{self.title} · densekd", analytics_enabled=False) as self.blocks:
            self.seen = gr.State({})  # the versions that the window shows
            self.busy_timer = gr.Timer(_BUSY_SECONDS, active=False)
            self.always_timer = gr.Timer(_ALWAYS_SECONDS)
            self.header = gr.HTML()
            with gr.Tabs() as self.tabs:
                with gr.Tab("Classify"):
                    self.classify_area = _drop_area("Drop photos here to see what they show.")
                    self.predictions = gr.HTML(js_on_load=_BUTTONS)
                with gr.Tab("Teach", id="teach"):
                    self._add_teach_tab()
                with gr.Tab("Mistakes"):
                    self.mistakes = gr.HTML(js_on_load=_resource("photos.js"))
                with gr.Tab("History"):
                    self.history = gr.HTML(js_on_load=_BUTTONS)
            self._connect()

    def _add_teach_tab(self) -> None:
        self.class_name = gr.Textbox(
            label="Class name of the photos that you add",
            info="A folder with a sub-folder for each class brings its own names.",
        )
        self.teach_area = _drop_area("Drop photos or a folder here.")
        self.basket = gr.HTML(js_on_load=_resource("photos.js"))
        with gr.Accordion("Options", open=False):
            with gr.Row():
                self.minutes = gr.Number(0, label="Time limit in minutes (0: no limit)")
                self.epochs = gr.Number(
                    0, label="Epochs (0: automatic)", precision=0, visible=False
                )
            self.known = gr.Checkbox(True, label="Allow more photos of known classes")
        with gr.Row():
            self.clear_button = gr.Button("Clear")
            self.teach_button = gr.Button("Teach", variant="primary")
            self.stop_button = gr.Button("Stop", variant="stop", visible=False)
        self.progress = gr.HTML()
        self.result = gr.HTML()

    def _connect(self) -> None:
        views: list[Any] = [
            *(self.seen, self.busy_timer, self.header, self.history, self.predictions, self.basket),
            *(self.progress, self.result, self.class_name, self.teach_button, self.stop_button),
            *(self.tabs, self.mistakes, self.epochs),
        ]
        options = [self.minutes, self.epochs, self.known]
        events: list[tuple[Callable[..., Any], Callable[..., _Changes], list[Any]]] = [
            (self.blocks.load, self.refresh, []),
            (self.busy_timer.tick, self.refresh, []),
            (self.always_timer.tick, self.refresh, []),
            (self.classify_area.upload, self.classify, [self.classify_area]),
            (self.predictions.select, self.drop_predicted, []),
            (self.teach_area.upload, self.drop, [self.teach_area, self.class_name]),
            (self.class_name.submit, self.name_rest, [self.class_name]),
            (self.class_name.blur, self.name_rest, [self.class_name]),
            (self.basket.select, self.change_basket, []),
            (self.clear_button.click, self.clear, []),
            (self.teach_button.click, self.teach, [self.class_name, *options]),
            (self.stop_button.click, self.stop, []),
            (self.mistakes.select, self.correct, []),
            (self.history.select, self.go_to_step, []),
        ]
        # Gradio answers requests in a stream, which the server closes when none is left. A request
        # that arrives just then is answered only after the window has sent another one. So one
        # timer must keep sending requests, even while an earlier one has no answer.
        once = (self.busy_timer.tick, self.teach_button.click)
        for begin, act, given in events:
            begin(
                act,
                [self.seen, *given],
                views,
                show_progress="hidden",
                api_visibility="undocumented",
                # One at a time: else a window could show an older state after a newer one.
                concurrency_id="page",
                # By default Gradio drops a click while it handles an earlier one.
                trigger_mode="once" if begin in once else "multiple",
            )

    def refresh(self, seen: _Versions) -> _Changes:
        """Show what has changed since a window showed these versions."""
        session, job = self.session, self.session.job
        revision = session.revision()
        for follower in (session.predictor, session.reviewer):
            follower.follow(revision)
        state = job and (job.running, job.progress, len(job.warnings))
        parts = {
            "model": (revision, self._show_model),
            "basket": (session.basket.version, self._show_basket),
            "predictions": (session.predictor.version, self._show_predictions),
            "mistakes": (session.reviewer.version, self._show_mistakes),
            "update": ((session.updates, state), self._show_update),
            "pace": (session.busy, self._set_pace),
        }
        changes: _Changes = {self.seen: {name: version for name, (version, _) in parts.items()}}
        for name, (version, show) in parts.items():
            if name not in seen or seen[name] != version:
                changes |= show()
        return changes

    @_show_errors
    def classify(self, seen: _Versions, sent: object) -> _Changes:
        """Show the likeliest classes of photos."""
        self.session.classify(sent)
        return self.refresh(seen)

    @_show_errors
    def drop_predicted(self, seen: _Versions, event: gr.EventData) -> _Changes:
        """Add the photo whose button was pressed to the basket, and show it there."""
        self.session.drop_predicted(str(event.teach))
        return self.refresh(seen) | {self.tabs: gr.Tabs(selected="teach"), self.class_name: ""}

    @_show_errors
    def drop(self, seen: _Versions, sent: object, name: str) -> _Changes:
        """Add photos to the basket."""
        self.session.drop(sent, name)
        return self.refresh(seen)

    @_show_errors
    def name_rest(self, seen: _Versions, name: str) -> _Changes:
        """Put the photos that have no class yet into the class that was typed."""
        if name.strip():
            self.session.basket.name_rest(name)
        return self.refresh(seen)

    @_show_errors
    def change_basket(self, seen: _Versions, event: gr.EventData) -> _Changes:
        """Do what a button of the basket says."""
        photos, name = map(str, event.photos), str(event.name)
        chosen: _Changes = {}
        match event.action:
            case "remove":
                self.session.basket.remove(photos)
            case "move":
                self.session.basket.move(photos, name)
            case "choose":
                chosen = {self.class_name: name}
        return self.refresh(seen) | chosen

    def clear(self, seen: _Versions) -> _Changes:
        """Empty the basket."""
        basket = self.session.basket
        basket.remove(photo.id for photo in basket.photos())
        return self.refresh(seen)

    @_show_errors
    def teach(
        self,
        seen: _Versions,
        name: str,
        minutes: float | None,
        epochs: int | None,
        known: bool,
    ) -> _Changes:
        """Start an update with the photos in the basket."""
        on_known: OnKnownClass = "replay" if known else "refuse"
        options = TeachOptions(epochs=epochs or None, budget=minutes or None, known=on_known)
        self.session.basket.name_rest(name)
        self.session.teach(options)
        return self.refresh(seen) | {self.class_name: ""}

    def stop(self, seen: _Versions) -> _Changes:
        """Stop the update; its progress is saved."""
        self.session.stop()
        return self.refresh(seen)

    @_show_errors
    def correct(self, seen: _Versions, event: gr.EventData) -> _Changes:
        """Move or remove the selected photos, which are in the wrong class."""
        self.session.correct(
            [str(photo) for photo in event.photos], remove=event.action == "remove"
        )
        return self.refresh(seen)

    @_show_errors
    def go_to_step(self, seen: _Versions, event: gr.EventData) -> _Changes:
        """Make the step whose button was pressed the current one."""
        undo(self.session.folder, int(event.step))
        return self.refresh(seen)

    def _show_model(self) -> _Changes:
        try:
            entries, current = self.session.history(), self.session.current()
            trains = self.session.trains()
        except (ValueError, OSError) as error:
            return {self.header: markup.alert(str(error))}
        past = "<p>No updates yet.</p>"
        if current is not None:
            past = markup.history_table(entries) + markup.update_result(current.update)
        return {
            self.header: markup.model_header(self.title, current),
            self.history: past,
            # Hidden for a new model: epochs would make it a trained one, which is less accurate.
            self.epochs: gr.update(visible=trains),
        }

    def _show_basket(self) -> _Changes:
        return {self.basket: markup.basket(self.session.basket.photos())}

    def _show_predictions(self) -> _Changes:
        return {self.predictions: markup.prediction_cards(self.session.predictor.predictions)}

    def _show_mistakes(self) -> _Changes:
        found = self.session.reviewer
        if found.tested is None:
            return {self.mistakes: markup.alert(found.problem)}
        shown = markup.confusions(found.confusions, found.tested) + markup.suspects(found.suspects)
        return {self.mistakes: shown}

    def _set_pace(self) -> _Changes:
        return {self.busy_timer: gr.Timer(active=self.session.busy)}

    def _show_update(self) -> _Changes:
        """Show the progress of an update until it ends, then its result."""
        job = self.session.job
        if job is None:
            return {}
        buttons = {
            self.teach_button: gr.update(interactive=not job.running),
            self.stop_button: gr.update(visible=job.running),
        }
        if job.running:
            progress = markup.job_progress(job.progress, job.warnings)
            return {**buttons, self.progress: progress, self.result: ""}
        ended = markup.warning_list(job.warnings) + markup.alert(job.failure or "")
        if job.stopped:
            ended += (
                "<p>Stopped. The model is unchanged; teach the same photos again to continue.</p>"
            )
        result = "" if job.update is None else markup.update_result(job.update)
        return {**buttons, self.progress: ended, self.result: result}


def _drop_area(label: str) -> gr.HTML:
    script = _resource("drop.js") + _resource("camera.js")
    return gr.HTML(html_template=_DROP_AREA, js_on_load=script, label=label)


def _resource(name: str) -> str:
    return files("densekd.ui").joinpath(name).read_text("utf-8")
