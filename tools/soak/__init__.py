"""Endurance: trainings by several processes that are killed, restarted with more or fewer, slowed down and fed NaN."""
