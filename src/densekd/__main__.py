"""``python -m densekd`` does what ``densekd`` does."""

from densekd.cli import app

if __name__ == "__main__":
    app(prog_name="densekd")
