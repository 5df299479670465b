from hypothesis import settings

# Examples are drawn the same way every time, and none is timed: a red test stays red.
settings.register_profile("densekd", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("densekd")
