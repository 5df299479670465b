"""The page: where things are, and what happens when they are used."""

import html
from collections.abc import Callable, Iterator
from functools import wraps
from importlib.resources import files
from typing import Any, ParamSpec, TypeVar

import gradio as gr

from densekd.model.images import OnKnownClass
from densekd.model.settings import TeachOptions
from densekd.ui import markup
from densekd.ui.session import Session
from densekd.ui.uploads import Upload, counts, named, remove

_P = ParamSpec("_P")
_R = TypeVar("_R")
# What is to be shown in which part of the page.
Changes = dict[Any, Any]

_TOP = 5
_SECONDS_BETWEEN_NEWS = 0.5
_AREA = """<div class='kd-drop'><p>${label}</p>
<button data-choose='images'>Choose images</button>
<button data-choose='folder'>Choose a folder</button>
<input data-kind='images' type='file' accept='image/*' multiple hidden>
<input data-kind='folder' type='file' webkitdirectory hidden>
<p class='kd-said' role='status'></p></div>"""
_CHOOSE_STEP = """element.addEventListener("click", (event) => {
  const step = event.target.dataset.step;
  if (step) trigger("select", { step: Number(step) });
});"""


def style() -> str:
    """The page's style sheet."""
    return _resource("page.css")


def theme() -> gr.themes.Base:
    """Gradio's look in the fonts that the computer has, for others would come from elsewhere."""
    return gr.themes.Default(
        primary_hue="blue", font=["system-ui", "sans-serif"], font_mono=["monospace"]
    )


def _in_words(act: Callable[_P, _R]) -> Callable[_P, _R]:
    """Show what can't be done as a sentence on the page."""

    @wraps(act)
    def acted(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return act(*args, **kwargs)
        except (ValueError, OSError) as error:
            sentence = html.escape(str(error), quote=False)
            raise gr.Error(sentence, duration=None, print_exception=False) from error

    return acted


class Page:
    """The page of a model.

    Args:
        session: does what is asked for.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.title = session.folder.resolve().name
        with gr.Blocks(title=f"{self.title} · densekd", analytics_enabled=False) as self.blocks:
            self.about = gr.HTML()
            with gr.Tab("Look"):
                self.look_area = _drop_area("Drop images here to see what they show.")
                self.seen = gr.HTML()
            with gr.Tab("Teach"):
                self._place_teaching()
            with gr.Tab("History"):
                self.history = gr.HTML(js_on_load=_CHOOSE_STEP)
            self._connect()

    def _place_teaching(self) -> None:
        self.teach_area = _drop_area(
            "Drop images of one class here, or a folder with a sub-folder for each class."
        )
        self.basket = gr.State([])
        self.listed = gr.HTML()
        self.name = gr.Textbox(label="What do images without a folder show?")
        with gr.Accordion("More", open=False):
            with gr.Row():
                self.minutes = gr.Number(0, label="Minutes it may take (0: what it needs)")
                self.epochs = gr.Number(
                    0, label="How often images are seen (0: as suits them)", precision=0
                )
            self.known = gr.Checkbox(label="There may be more images of known classes")
        with gr.Row():
            self.clear = gr.Button("Clear")
            self.add = gr.Button("Add another class")
            self.go = gr.Button("Teach", variant="primary")
            self.halt = gr.Button("Stop", variant="stop", visible=False)
        self.progress = gr.HTML()
        self.chart = gr.HTML()

    def _connect(self) -> None:
        quiet: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "undocumented"}
        # Following lasts as long as an update, in as many windows as there are.
        following = {**quiet, "concurrency_limit": None}
        # One after another, for what two of them put into the basket at once would not add up.
        in_turn = {**quiet, "concurrency_id": "basket"}
        basket, model = [self.basket, self.listed, self.name], [self.about, self.history, self.seen]
        followed = [self.progress, self.chart, self.go, self.halt, *model]
        self.look_area.upload(self.look, self.look_area, self.seen, **quiet)
        self.teach_area.upload(self.drop, [self.teach_area, self.basket], basket, **in_turn)
        self.add.click(self.put, [self.basket, self.name], basket, **in_turn)
        self.clear.click(self.forget, self.basket, basket, **in_turn)
        given = [self.basket, self.name, self.minutes, self.epochs, self.known]
        started = self.go.click(self.teach, given, basket, **in_turn)
        self.halt.click(self.stop, None, self.progress, **quiet)
        self.history.select(self.undo, None, model, **quiet)
        self.blocks.load(self.model, None, model, **quiet)
        # The browser asks for the images, so that no window that is gone gets them.
        for begin in (started.success, self.blocks.load):
            over = begin(self.follow, None, followed, **following)
            over.then(self.restore, self.basket, basket, **in_turn)

    @_in_words
    def model(self) -> Changes:
        """Show what the model is."""
        entries, current = self.session.history(), self.session.current()
        past = "<p>Nothing was taught yet.</p>"
        if current is not None:
            past = markup.history(entries) + markup.outcome(current.update)
        return {self.about: markup.about(self.title, current), self.history: past, self.seen: ""}

    @_in_words
    def look(self, sent: object) -> str:
        """Show what images may be of."""
        return markup.cards(self.session.look(sent, _TOP))

    @_in_words
    def drop(self, sent: object, basket: list[Upload]) -> Changes:
        """Put images aside to be taught."""
        return self._listing([*basket, *self.session.receive(sent)])

    @_in_words
    def put(self, basket: list[Upload], name: str) -> Changes:
        """Give a name to the images that have none, so that others can be added."""
        return {**self._listing(named(basket, name)), self.name: ""}

    def forget(self, basket: list[Upload]) -> Changes:
        """Take back what was dropped."""
        remove(basket)
        return self._listing([])

    @_in_words
    def teach(
        self,
        basket: list[Upload],
        name: str,
        minutes: float | None,
        epochs: int | None,
        known: bool,
    ) -> Changes:
        """Begin an update by what is in the basket, which is free for other images from then on."""
        uploads = named(basket, name)
        on_known: OnKnownClass = "replay" if known else "refuse"
        options = TeachOptions(epochs=epochs or None, budget=minutes or None, known=on_known)
        self.session.teach(uploads, options)
        return {**self._listing([]), self.name: ""}

    def restore(self, basket: list[Upload]) -> Changes:
        """Put back what wasn't learned, before what was dropped meanwhile."""
        return self._listing([*self.session.give_back(), *basket])

    def stop(self) -> str:
        """End an update; what it has done so far is kept."""
        self.session.stop()
        return self._news()

    @_in_words
    def undo(self, event: gr.EventData) -> Changes:
        """Go to the state whose button was pressed."""
        self.session.undo(int(event.step))
        return self.model()

    def follow(self) -> Iterator[Changes]:
        """Show how far an update is until it is over, and then what it did."""
        job = self.session.job
        yield {self.progress: self._news()}
        if job is None:
            return
        if job.running:
            busy = {self.go: gr.update(interactive=False), self.halt: gr.update(visible=True)}
            yield {**busy, self.chart: ""}
        while job.running:
            job.wait(_SECONDS_BETWEEN_NEWS)
            yield {self.progress: self._news()}
        yield {**self._result(), **self.model()}

    def _news(self) -> str:
        job = self.session.job
        return "" if job is None else markup.progress(job.progress)

    def _result(self) -> Changes:
        """What is shown when an update is over."""
        job = self.session.job
        assert job is not None
        said = markup.warnings(job.progress.warnings)
        if job.stopped:
            said += "<p>Stopped; the model is what it was. Teach the same again to go on.</p>"
        return {
            self.go: gr.update(interactive=True),
            self.halt: gr.update(visible=False),
            self.progress: said + markup.alert(job.failure or ""),
            self.chart: "" if job.update is None else markup.outcome(job.update),
        }

    def _listing(self, basket: list[Upload]) -> Changes:
        return {self.basket: basket, self.listed: markup.basket(counts(basket))}


def _drop_area(label: str) -> gr.HTML:
    return gr.HTML(html_template=_AREA, js_on_load=_resource("drop.js"), label=label)


def _resource(name: str) -> str:
    return files("densekd.ui").joinpath(name).read_text("utf-8")
