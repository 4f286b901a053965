"""Checks a student's attention modules: `python -m imdbattn.check my_attention.py`."""


def main() -> None:
    """Prints what holds and what does not."""


if __name__ == "__main__":
    main()
