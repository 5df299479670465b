"""Make ``python -m densekd`` the same as ``densekd``."""

from densekd.cli import app

if __name__ == "__main__":
    app(prog_name="densekd")
