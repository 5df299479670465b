"""The HTTP API of a model."""

import asyncio
from typing import Annotated, Any

import fastapi
import pydantic
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from densekd import __version__
from densekd.data.decode import UnreadableImage
from densekd.serve.batching import BatchPredictor, StepPrediction, UnavailableModel
from densekd.serve.request_images import ImageReceiver, RefusedRequest, RequestLimits, SentImage


class ClassProbability(pydantic.BaseModel):
    """A class that an image may show."""

    name: str
    probability: float


class ImagePrediction(pydantic.BaseModel):
    """What an image shows."""

    file: str | None = pydantic.Field(description="The file name sent with the image, if any.")
    step: int = pydantic.Field(description="The step of the model that made the prediction.")
    known: bool = pydantic.Field(
        description="False if the image looks like nothing that the model was taught."
    )
    name: str | None = pydantic.Field(description="The likeliest class; null if `known` is false.")
    guesses: list[ClassProbability] = pydantic.Field(
        description="The likeliest classes, most probable first."
    )


class ImagePredictions(pydantic.BaseModel):
    """What each image shows, in the order in which they were sent."""

    predictions: list[ImagePrediction]


class ModelClasses(pydantic.BaseModel):
    """The classes that a model knows."""

    step: int
    classes: list[str]


class ServerHealth(pydantic.BaseModel):
    """Whether the model can predict."""

    status: str
    step: int


class ErrorAnswer(pydantic.BaseModel):
    """Why a request isn't answered."""

    error: str


_Top = Annotated[
    int,
    fastapi.Query(
        ge=1, le=1000, description="How many of the likeliest classes to return for each image."
    ),
]
_BINARY = {"schema": {"type": "string", "format": "binary"}}
_FILES = {
    "type": "object",
    "properties": {"image": {"type": "array", "items": _BINARY["schema"]}},
    "description": "Images as files of a form, under any field names.",
}
_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"multipart/form-data": {"schema": _FILES}, "image/*": _BINARY},
    }
}
_HANDLED = (RefusedRequest, UnavailableModel, HTTPException, RequestValidationError, Exception)
_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorAnswer} for status in (400, 401, 403, 408, 413, 422, 503)
}


def make_api(predictor: BatchPredictor, limits: RequestLimits) -> fastapi.FastAPI:
    """The API of a model, without any control of who may use it."""
    # The pages that FastAPI makes of /openapi.json load their scripts from another server.
    api = fastapi.FastAPI(
        title="densekd serve",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        responses=_ERRORS,
        exception_handlers=dict.fromkeys(_HANDLED, _answer_error),
    )
    receiver = ImageReceiver(limits)

    @api.post("/predict", openapi_extra=_BODY)
    async def predict(request: fastapi.Request, top: _Top = 3) -> ImagePredictions:
        """Predict what images show. Send them as files of a form, or one as the body."""
        async with receiver.receive(request) as images:
            waiting = [
                asyncio.wrap_future(predictor.submit(image.content, top)) for image in images
            ]
            found = await asyncio.gather(*waiting, return_exceptions=True)
        return ImagePredictions(
            predictions=[_shown(*each) for each in zip(images, found, strict=True)]
        )

    @api.get("/classes")
    def classes() -> ModelClasses:
        """The classes that the model knows, in the order in which it learned them."""
        model = predictor.model.open()
        return ModelClasses(step=model.step, classes=list(model.classes))

    @api.get("/healthz")
    def healthz() -> ServerHealth:
        """Whether the model can predict; needs no token."""
        return ServerHealth(status="ok", step=predictor.model.open().step)

    return api


def _shown(image: SentImage, found: StepPrediction | BaseException) -> ImagePrediction:
    if isinstance(found, UnreadableImage):
        name = "The image" if image.name is None else repr(image.name)
        raise RefusedRequest(422, f"{name} can't be read: {found}.")
    if isinstance(found, BaseException):
        raise found
    step, prediction = found
    guesses = [ClassProbability(name=name, probability=share) for name, share in prediction]
    return ImagePrediction(
        file=image.name, step=step, known=prediction.known, name=prediction.name, guesses=guesses
    )


async def _answer_error(_: fastapi.Request, error: Exception) -> JSONResponse:
    status, reason = 500, f"Unexpected error: {type(error).__name__}."
    match error:
        case RefusedRequest():
            status, reason = error.status, str(error)
        case UnavailableModel():
            status, reason = 503, str(error)
        case HTTPException():  # there is no such path
            status, reason = error.status_code, f"{error.detail}; /openapi.json describes the API."
        case RequestValidationError():
            first = error.errors()[0]
            status, reason = 422, f"{first['loc'][-1]}: {first['msg']}."
    return JSONResponse({"error": reason}, status)
