"""The page's layout, and what its controls do."""

import html
from collections.abc import Callable, Iterator
from functools import wraps
from importlib.resources import files
from typing import Any, ParamSpec, TypeVar

import gradio as gr

from densekd.model.images import OnKnownClass
from densekd.model.model import undo
from densekd.model.settings import TeachOptions
from densekd.ui import markup
from densekd.ui.session import Session
from densekd.ui.uploads import Upload, class_counts, delete_uploads, with_class

_P = ParamSpec("_P")
_R = TypeVar("_R")
_Changes = dict[Any, Any]  # new values of the page's components

_TOP = 5
_REFRESH_SECONDS = 0.5
_DROP_AREA = """<div class='kd-drop'><p>${label}</p>
<button data-choose='images'>Choose images</button>
<button data-choose='folder'>Choose a folder</button>
<input data-kind='images' type='file' accept='image/*' multiple hidden>
<input data-kind='folder' type='file' webkitdirectory hidden>
<p class='kd-status' role='status'></p></div>"""
_STEP_BUTTONS = """element.addEventListener("click", (event) => {
  const step = event.target.dataset.step;
  if (step) trigger("select", { step: Number(step) });
});"""


def style() -> str:
    """The page's style sheet."""
    return _resource("page.css")


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
    """The page of a model; ``blocks`` is the Gradio app."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.title = session.folder.resolve().name
        with gr.Blocks(title=f"{self.title} · densekd", analytics_enabled=False) as self.blocks:
            self.header = gr.HTML()
            with gr.Tab("Look"):
                self.look_area = _drop_area("Drop images here to see what they show.")
                self.predictions = gr.HTML()
            with gr.Tab("Teach"):
                self._add_teach_tab()
            with gr.Tab("History"):
                self.history = gr.HTML(js_on_load=_STEP_BUTTONS)
            self._connect()

    def _add_teach_tab(self) -> None:
        self.teach_area = _drop_area(
            "Drop images of one class here, or a folder with a sub-folder for each class."
        )
        self.selected = gr.State([])
        self.selected_list = gr.HTML()
        self.class_name = gr.Textbox(label="Class name for these images")
        with gr.Accordion("Options", open=False):
            with gr.Row():
                self.minutes = gr.Number(0, label="Time limit in minutes (0: no limit)")
                self.epochs = gr.Number(0, label="Epochs (0: automatic)", precision=0)
            self.known = gr.Checkbox(label="Allow more images of known classes")
        with gr.Row():
            self.clear_button = gr.Button("Clear")
            self.add_button = gr.Button("Add another class")
            self.teach_button = gr.Button("Teach", variant="primary")
            self.stop_button = gr.Button("Stop", variant="stop", visible=False)
        self.progress = gr.HTML()
        self.result = gr.HTML()

    def _connect(self) -> None:
        quiet: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "undocumented"}
        # Each open window follows an update until it ends.
        following = {**quiet, "concurrency_limit": None}
        # One at a time: two concurrent events would overwrite each other's selection.
        in_turn = {**quiet, "concurrency_id": "selected"}
        selected = [self.selected, self.selected_list, self.class_name]
        model = [self.header, self.history, self.predictions]
        followed = [self.progress, self.result, self.teach_button, self.stop_button, *model]
        self.look_area.upload(self.look, self.look_area, self.predictions, **quiet)
        self.teach_area.upload(self.drop, [self.teach_area, self.selected], selected, **in_turn)
        self.add_button.click(
            self.name_images, [self.selected, self.class_name], selected, **in_turn
        )
        self.clear_button.click(self.clear, self.selected, selected, **in_turn)
        given = [self.selected, self.class_name, self.minutes, self.epochs, self.known]
        started = self.teach_button.click(self.teach, given, selected, **in_turn)
        self.stop_button.click(self.stop, None, self.progress, **quiet)
        self.history.select(self.go_to_step, None, model, **quiet)
        self.blocks.load(self.show_model, None, model, **quiet)
        # The browser asks for unused images, so that they don't go to a closed window.
        for begin in (started.success, self.blocks.load):
            ended = begin(self.follow, None, followed, **following)
            ended.then(self.restore, self.selected, selected, **in_turn)

    @_show_errors
    def show_model(self) -> _Changes:
        """Show the model's classes and history."""
        entries, current = self.session.history(), self.session.current()
        past = "<p>No updates yet.</p>"
        if current is not None:
            past = markup.history_table(entries) + markup.update_result(current.update)
        header = markup.model_header(self.title, current)
        return {self.header: header, self.history: past, self.predictions: ""}

    @_show_errors
    def look(self, sent: object) -> str:
        """Show the likeliest classes of images."""
        return markup.prediction_cards(self.session.predict(sent, _TOP))

    @_show_errors
    def drop(self, sent: object, selected: list[Upload]) -> _Changes:
        """Add images to the selection."""
        return self._show_selected([*selected, *self.session.receive(sent)])

    @_show_errors
    def name_images(self, selected: list[Upload], name: str) -> _Changes:
        """Give the images without a class a name, so that another class can be added."""
        return {**self._show_selected(with_class(selected, name)), self.class_name: ""}

    def clear(self, selected: list[Upload]) -> _Changes:
        """Delete the selected images."""
        delete_uploads(selected)
        return self._show_selected([])

    @_show_errors
    def teach(
        self,
        selected: list[Upload],
        name: str,
        minutes: float | None,
        epochs: int | None,
        known: bool,
    ) -> _Changes:
        """Start an update with the selected images, and empty the selection."""
        on_known: OnKnownClass = "replay" if known else "refuse"
        options = TeachOptions(epochs=epochs or None, budget=minutes or None, known=on_known)
        self.session.teach(with_class(selected, name), options)
        return {**self._show_selected([]), self.class_name: ""}

    def restore(self, selected: list[Upload]) -> _Changes:
        """Put images that weren't learned back into the selection."""
        return self._show_selected([*self.session.take_unused(), *selected])

    def stop(self) -> str:
        """Stop the update; its progress is saved."""
        self.session.stop()
        return self._progress()

    @_show_errors
    def go_to_step(self, event: gr.EventData) -> _Changes:
        """Make the step whose button was pressed the current one."""
        undo(self.session.folder, int(event.step))
        return self.show_model()

    def follow(self) -> Iterator[_Changes]:
        """Show the progress of an update until it ends, then its result."""
        job = self.session.job
        yield {self.progress: self._progress()}
        if job is None:
            return
        if job.running:
            yield {
                self.teach_button: gr.update(interactive=False),
                self.stop_button: gr.update(visible=True),
                self.result: "",
            }
        while job.running:
            job.wait(_REFRESH_SECONDS)
            yield {self.progress: self._progress()}
        ended = markup.warning_list(job.warnings) + markup.alert(job.failure or "")
        if job.stopped:
            ended += "<p>Stopped. The model is unchanged; teach the same again to continue.</p>"
        yield {
            self.teach_button: gr.update(interactive=True),
            self.stop_button: gr.update(visible=False),
            self.progress: ended,
            self.result: "" if job.update is None else markup.update_result(job.update),
            **self.show_model(),
        }

    def _progress(self) -> str:
        job = self.session.job
        return "" if job is None else markup.job_progress(job.progress, job.warnings)

    def _show_selected(self, selected: list[Upload]) -> _Changes:
        listing = markup.selected_images(class_counts(selected))
        return {self.selected: selected, self.selected_list: listing}


def _drop_area(label: str) -> gr.HTML:
    return gr.HTML(html_template=_DROP_AREA, js_on_load=_resource("drop.js"), label=label)


def _resource(name: str) -> str:
    return files("densekd.ui").joinpath(name).read_text("utf-8")
