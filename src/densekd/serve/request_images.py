"""Read the images in a request, in memory and within limits."""

import asyncio
import io
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import NamedTuple

from python_multipart.multipart import Field, File, FormParser, parse_options_header
from starlette.requests import ClientDisconnect, Request

MIB = 2**20


@dataclass(frozen=True)
class RequestLimits:
    """What one client may ask for."""

    body: int = 64 * MIB  # bytes of a request
    images: int = 64  # in a request
    pixels: int = 64_000_000  # of an image
    seconds: float = 60  # until a request must have arrived
    held: int = 512 * MIB  # bytes of all requests that are being answered


class RefusedRequest(Exception):
    """A request that isn't answered, with the HTTP status and one sentence for the client."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class SentImage(NamedTuple):
    """An image in a request."""

    name: str | None  # of the file, if there is one
    content: bytes


class ImageReceiver:
    """Reads requests, and counts the memory of all that are being answered."""

    def __init__(self, limits: RequestLimits) -> None:
        self.limits = limits
        self.held = 0  # bytes

    @asynccontextmanager
    async def receive(self, request: Request) -> AsyncIterator[list[SentImage]]:
        """Read the images of a request, which count as held until the end of the context.

        Raises `RefusedRequest`.
        """
        own = 0

        async def parts() -> AsyncGenerator[bytes]:
            nonlocal own
            async for part in request.stream():
                own += len(part)
                self.held += len(part)
                self._check(own)
                yield part

        try:
            length = request.headers.get("content-length", "0")
            self._check(int(length[:18]) if length.isdecimal() else 0)
            yield await self._read(request, parts())
        finally:
            self.held -= own

    def _check(self, size: int) -> None:
        if size > self.limits.body:
            raise RefusedRequest(
                413, f"A request may have at most {self.limits.body // MIB} MiB; send fewer images."
            )
        if self.held > self.limits.held:
            raise RefusedRequest(503, "The server is busy; try again in a second.")

    async def _read(self, request: Request, parts: AsyncGenerator[bytes]) -> list[SentImage]:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        read = self._form(request, parts) if kind == "multipart/form-data" else _raw(parts)
        try:
            async with asyncio.timeout(self.limits.seconds):
                images = await read
        except TimeoutError:
            raise RefusedRequest(408, "The request took too long to arrive; try again.") from None
        except ClientDisconnect:
            raise RefusedRequest(400, "The request ended too early.") from None
        if not images:
            raise RefusedRequest(
                400, "Send images as the files of a form, or one image as the body; none came."
            )
        return images

    async def _form(self, request: Request, parts: AsyncGenerator[bytes]) -> list[SentImage]:
        files: list[File] = []
        ends: list[None] = []

        def add(file: File) -> None:
            if len(files) == self.limits.images:
                many = (
                    f"A request may have at most {self.limits.images} images; send several "
                    "requests."
                )
                raise RefusedRequest(400, many)
            files.append(file)

        def refuse(_: Field) -> None:
            raise RefusedRequest(
                400, "A form may have files only, as `curl -F image=@FILE` sends them."
            )

        _, options = parse_options_header(request.headers["content-type"])
        try:
            parser = FormParser(
                "multipart/form-data",
                refuse,
                add,
                lambda: ends.append(None),
                boundary=options.get(b"boundary"),
                config={"MAX_MEMORY_FILE_SIZE": sys.maxsize},  # more would go to disk
            )
            async for part in parts:
                parser.write(part)
        except ValueError as error:
            raise RefusedRequest(
                400, "The form is malformed; send files as `curl -F image=@FILE` does."
            ) from error
        if not ends:
            raise RefusedRequest(400, "The form is incomplete; send it again.")
        return [_image(file) for file in files]


def _image(file: File) -> SentImage:
    assert isinstance(file.file_object, io.BytesIO)
    return SentImage((file.file_name or b"").decode(errors="replace"), file.file_object.getvalue())


async def _raw(parts: AsyncGenerator[bytes]) -> list[SentImage]:
    content = b"".join([part async for part in parts])
    return [SentImage(None, content)] if content else []
