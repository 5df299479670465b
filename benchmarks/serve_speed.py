"""Measure how fast `densekd serve` answers many clients, compared with prediction of a folder.

Teaches a model on the default backbone a few photos. Then two things take turns: prediction of a
folder in this process, and clients that send the same photos one by one to a server in a process of
its own, each as soon as its last one is answered. Every answer is compared with the prediction of
the folder. Prints images per second, their ratio, and what went wrong.

    python benchmarks/serve_speed.py [--photos FOLDER] [--clients 50] [--seconds 60] [--rounds 6]
"""

import argparse
import http.client
import itertools
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from common import seconds, taught_model
from PIL import Image

from densekd.model.model import Model
from densekd.model.predict import image_files, predict_files

CLASSES, PER_CLASS = 4, 32


class Answers(NamedTuple):
    """What clients got in one round."""

    right: int
    wrong: list[str]
    seconds: float
    delays: list[float]


def write_photos(folder: Path) -> Path:
    """Write blurred noise in one colour per class, as JPEGs of the size of a small photo."""
    source = np.random.default_rng(0)
    for label in range(CLASSES):
        (folder / str(label)).mkdir(parents=True)
        for number in range(PER_CLASS):
            noise = source.integers(0, 160, (30, 40, 3)) + 20 * np.eye(CLASSES, 3)[label]
            photo = Image.fromarray(noise.astype(np.uint8)).resize(
                (640, 480), Image.Resampling.BICUBIC
            )
            photo.save(folder / str(label) / f"{number}.jpg", quality=92)
    return folder


@contextmanager
def served(model: Path) -> Iterator[int]:
    """The port of a server, in a process of its own."""
    command = [sys.executable, "-m", "densekd", "serve", str(model), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline().split(". Press")[0].rpartition(":")[2])
        process.send_signal(signal.SIGINT)


def ask_for(duration: float, clients: int, port: int, wanted: dict[Path, str]) -> Answers:
    """Let clients ask for so many seconds, and wait for all answers."""
    sent = {file: file.read_bytes() for file in wanted}
    waiting, wrong, delays = itertools.cycle(sent), list[str](), list[float]()
    lock, began = threading.Lock(), time.perf_counter()

    def client() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
        while time.perf_counter() - began < duration:
            with lock:
                file = next(waiting)
            start = time.perf_counter()
            try:
                connection.request("POST", "/predict?top=1", sent[file])
                answer = connection.getresponse()
                told = answer.read()
                (found,) = json.loads(told)["predictions"]
                if found["guesses"][0]["name"] != wanted[file]:
                    wrong.append(f"{file}: another class")
            except (OSError, http.client.HTTPException, KeyError, ValueError) as error:
                wrong.append(f"{file}: {error!r}")
                connection.close()
            delays.append(time.perf_counter() - start)
        connection.close()

    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return Answers(len(delays) - len(wrong), wrong, time.perf_counter() - began, delays)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--photos", type=Path, help="a sub-folder for each class")
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rounds", type=int, default=6)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        photos = given.photos or write_photos(place / "photos")
        model = Model.open(taught_model(photos, place))
        files = image_files(photos)
        wanted = {each.file: each.prediction[0].name for each in predict_files(model, files)}
        folder, clients, rounds = [], [], []
        with served(place / "model") as port:
            ask_for(0.5, given.clients, port, wanted)  # to warm up
            for _ in range(given.rounds):
                took = seconds(lambda: list(predict_files(model, files)))
                folder.append(len(files) / took)
                rounds.append(ask_for(given.seconds / given.rounds, given.clients, port, wanted))
                clients.append(rounds[-1].right / rounds[-1].seconds)
    wrong = [each for one in rounds for each in one.wrong]
    delays = sorted(itertools.chain(*(one.delays for one in rounds)))
    ratios = [own / bare for own, bare in zip(clients, folder, strict=True)]
    print(f"{torch.get_num_threads()} threads, {given.clients} clients, {len(delays)} requests")
    print(f"wrong or without an answer: {len(wrong)} {wrong[:3] if wrong else ''}")
    speeds = [statistics.median(each) for each in (folder, clients)]
    print(f"folder {speeds[0]:.1f} images/s, served {speeds[1]:.1f} images/s")
    print(f"ratio {statistics.median(ratios):.2f}, from {min(ratios):.2f} to {max(ratios):.2f}")
    print(f"seconds to an answer: median {delays[len(delays) // 2]:.2f}, longest {delays[-1]:.2f}")


if __name__ == "__main__":
    main()
