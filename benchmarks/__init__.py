"""What the library costs, next to what it replaces: ``python -m benchmarks [NAME ...]``.

Every line printed is one JSON object. A timing is the median of several runs, and a ratio is that of two things timed
in turns in the same process; nothing is asserted, a goal is only reported as reached or not.
"""
