from collections import Counter
from pathlib import Path

from densekd.model.frozen.photo_files import PhotoFile, photos_within


def photo_files(parts: dict[bool, int], name: str) -> list[PhotoFile]:
    return [
        PhotoFile(Path(name, f"{test} {i}"), name, "val" if test else "train", test, b"")
        for test, count in parts.items()
        for i in range(count)
    ]


def test_a_budget_takes_photos_to_learn_from_and_to_test_on_alike() -> None:
    files = photo_files({False: 40, True: 20}, "cat") + photo_files({True: 10, False: 5}, "dog")

    def chosen(most: int) -> dict[tuple[str, bool], int]:
        return dict(Counter((x.name, x.test) for x in photos_within(files, most)))

    assert chosen(24) == {("cat", False): 9, ("cat", True): 3, ("dog", False): 4, ("dog", True): 8}
    assert chosen(1) == {("cat", False): 1, ("dog", False): 1}
    assert len(photos_within(files, 75)) == 75
